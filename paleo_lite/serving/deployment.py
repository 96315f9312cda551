"""A deployment: network, devices, parallelism, engine, and the traffic's share of each replica."""

from __future__ import annotations

import math
from datetime import date
from functools import cached_property, partial
from typing import Any

import msgspec

from ..distributed.link_causes import usual_network
from ..distributed.links import LinkRate, device_link, link_rate
from ..distributed.platforms import usual_computer
from ..engines.records.record import Server
from ..errors import BadValue, DoesNotFit
from ..machines import Price
from ..timing.facility import Facility
from ..timing.fine_tuning import adapted_layers
from ..units import check_integer
from .adapters import AdapterCost, Adapters, cost_of_adapters
from .admission import Admission
from .cache import CacheRoom, NoCacheRoom, cached_tensors, sufficient_fraction
from .causes import crowd_deviations
from .drafts import HEADS
from .elastic import Elasticity
from .kernel_timer import KernelTimer
from .layer_timer import LayerTimer
from .options import SimulationOptions
from .placement import ModelOnDevice
from .requests import Traffic
from .routers import ROUND_ROBIN
from .speech import with_windows
from .stage_timer import StageTimer
from .stores import CacheStore
from .timer import Timer


def timer_of(on_device: ModelOnDevice) -> Timer:
    """Return the timer of a network's iterations on a device."""
    if on_device.local is not None:
        from .local_timer import LocalTimer

        return LocalTimer(on_device.local)
    if on_device.kernels is None:
        return LayerTimer(on_device)
    return KernelTimer(on_device) if on_device.pipeline.degree == 1 else StageTimer(on_device)


class Deployment(msgspec.Struct, frozen=True, dict=True, eq=False):
    """Replicas of a network on devices, under an engine."""

    on_device: ModelOnDevice  # network as one device of a tensor-parallel group computes it
    engine: Server  # the engine, and how it schedules requests
    # Copies of the network, each on the devices of its tensor-parallel groups, that serve requests in turn.
    replicas: int = 1
    options: SimulationOptions = SimulationOptions()  # prefix cache and speculative decoding
    draft: ModelOnDevice | None = None  # draft network of speculative decoding
    price_usd_per_h: float | None = None  # price of one device per hour; None if unknown
    listing: Price | None = None  # listing that the price comes from; None if it was given
    facility: Facility | None = None  # what surrounds the devices; None if it is not described
    # The pool that computes prompts and sends their keys and values to the replicas of this one, which decode; None
    # where every replica does both.
    prefill: Deployment | None = None
    router: str = ROUND_ROBIN  # how replicas share the requests, one of `paleo_lite.serving.routers.ROUTERS`
    stores: tuple[CacheStore, ...] = ()  # tiers of the prefix cache below the memory of the devices
    # Tokens of a request, with its answer, that its servers are started for; None for the positions of the network.
    longest_request: int | None = None
    adapters: Adapters | None = None  # LoRA adapters, of which each request asks for one
    has_priorities: bool = False  # whether its servers are started so that requests have priorities
    elasticity: Elasticity | None = None  # how replicas, of which there are so many at most, come and go
    admission: Admission | None = None  # what servers and their gateway refuse; None where they refuse nothing

    def __post_init__(self) -> None:
        check_integer("`--replicas`", self.replicas, 1)
        drafts_on_device = self.draft is not None or bool(self.options.speculation.heads)
        pools = (self,) if self.prefill is None else (self, self.prefill)  # the heads have keys and values of their own
        if drafts_on_device and any(pool.on_device.pipeline.degree > 1 for pool in pools):
            raise BadValue(
                "`--speculation draft` is not modelled with `--pipeline`: leave it out, as for drafting with n-grams"
            )
        if self.prefill is not None and self.prefill.on_device.kv_cache != self.on_device.kv_cache:
            # vLLM's NixlConnector compares `cache_dtype` in `compute_nixl_compatibility_hash`, SGLang raises "KV cache
            # dtype mismatch" (disaggregation/common/conn.py), and TensorRT-LLM's `CacheFormatter::inquireSupport` is
            # false of two data types.
            raise BadValue(
                "the caches of both pools must have one format, as engines hand keys and values over as they are "
                f"(prefill {self.prefill.on_device.kv_cache}, decode {self.on_device.kv_cache}): give `--kv-cache` for "
                "both, not kv-cache of one pool"
            )

    def price_notes(self, today: date) -> list[str]:
        """Return notes on whose prices costs use, and on their age if they are older than a year."""
        pools = (self,) if self.prefill is None else (self, self.prefill)
        listings = dict.fromkeys(pool.listing for pool in pools if pool.listing is not None)
        old = [note for listing in listings for note in listing.notes(today)]
        if old or not listings:
            return old
        return [f"costs are at {' and '.join(listing.describe() for listing in listings)}"]

    @cached_property
    def timer(self) -> Timer:
        """What times the iterations of the network."""
        return timer_of(self.on_device)

    @cached_property
    def tensors_per_device(self) -> float:
        """Tensors of keys and values of a device."""
        return cached_tensors(self.on_device.workload.network.layers) / self.on_device.pipeline.degree

    @cached_property
    def draft_timer(self) -> Timer | None:
        """What times the iterations of the draft network; None without one."""
        return None if self.draft is None else timer_of(self.draft)

    @property
    def limited_ranks(self) -> int:
        """Number of ranks of a replica that have limits of their own; 1 if they share those of the replica."""
        return self.on_device.division.attention_data_parallel if self.engine.limits_per_rank else 1

    def replica_engine(self, longest_prompt: int = 0) -> Server:
        """Return the engine with the limits of a whole replica, which are those of all its ranks.

        A rank computes a whole prompt, even if it is longer than the tokens of an iteration.
        """
        engine, ranks = self.engine, self.limited_ranks
        if self.on_device.workload.network.is_speech_model:
            return with_windows(engine, self.on_device)
        if engine.tokens_per_rank:
            # Ranks compute no more than the chunk that they share.
            tokens = min(
                self.on_device.division.attention_data_parallel * engine.max_batched_tokens, engine.chunked_prefill
            )
            engine = msgspec.structs.replace(engine, max_batched_tokens=max(engine.max_batched_tokens, tokens))
        if ranks == 1:
            return engine
        tokens = engine.max_batched_tokens if engine.chunked_prefill else max(engine.max_batched_tokens, longest_prompt)
        return msgspec.structs.replace(
            engine,
            max_batched_tokens=ranks * tokens,
            max_sequences=ranks * engine.max_sequences,
            chunked_prefill=ranks * engine.chunked_prefill,
        )

    def with_sequences(self, sequences: int) -> Deployment:
        """Return the deployment with so many sequences at the same time in each replica."""
        engine = msgspec.structs.replace(self.engine, max_sequences=-(-sequences // self.limited_ranks))
        return msgspec.structs.replace(self, engine=engine)

    @property
    def needs_router(self) -> bool:
        """Whether replicas depend on each other, or on a store."""
        return (self.router != ROUND_ROBIN and self.replicas > 1) or bool(self.stores)

    @property
    def devices(self) -> int:
        """Number of devices, of both pools if there are two."""
        decode_devices = self.replicas * self.on_device.devices
        return decode_devices if self.prefill is None else decode_devices + self.prefill.devices

    @property
    def usd_per_h(self) -> float | None:
        """Price of all devices per hour; None if one is unknown."""
        if self.price_usd_per_h is None:
            return None
        decode_usd_per_h = self.price_usd_per_h * self.replicas * self.on_device.devices
        if self.prefill is None:
            return decode_usd_per_h
        return None if self.prefill.usd_per_h is None else decode_usd_per_h + self.prefill.usd_per_h

    @cached_property
    def adapter_cost(self) -> AdapterCost:
        """What its LoRA adapters take on each device; raise BadValue in a pipeline."""
        assert self.adapters is not None
        workload, device = self.on_device.workload, self.on_device.machine.device
        if self.on_device.pipeline.degree > 1:
            raise BadValue("adapters are not modelled with `--pipeline`: leave one of them out")
        return cost_of_adapters(
            self.adapters,
            adapted_layers(workload.layers),
            workload.network.blocks,
            self.on_device.tensor,
            device,
        )

    def measure_room(self, traffic: Traffic) -> CacheRoom:
        """Return the room of the cache for traffic of these lengths, beside heads that draft and adapters."""
        lengths = traffic.input_tokens + traffic.output_tokens
        measure = partial(
            self.timer.measure_room, mean_tokens=float(lengths.mean()), prompt_tokens=int(traffic.input_tokens.max())
        )
        try:
            room = measure(self.replica_engine())
        except NoCacheRoom as error:
            raise error.with_fraction(sufficient_fraction(measure, self.replica_engine(), int(lengths.max()))) from None
        heads = self.options.speculation.heads
        if heads and HEADS[heads].is_block:
            room = room.beside(self._block_share * room.weights_bytes, 1 / self.on_device.workload.network.blocks)
            if room.blocks < 1:
                raise DoesNotFit(
                    f"heads that draft ({heads}) leave no memory for a KV cache: divide the network among more "
                    f"devices, or leave draft={heads} of `--speculation` out"
                )
        if self.adapters is not None:
            room = room.beside(self.adapters.slots * self.adapter_cost.slot_bytes)
            if room.blocks < 1:
                raise DoesNotFit(
                    f"{self.adapters.slots} adapters of rank {self.adapters.rank} leave no memory for a KV cache: "
                    "`--engine-settings` needs fewer adapter-slots"
                )
        return room

    @property
    def _block_share(self) -> float:
        """Share of the network's weights that one more block is, that which drafts where its size is known."""
        network = self.on_device.workload.network
        return network.left_out_parameters / network.parameters or 1 / network.blocks

    def shared_tokens(self, traffic: Traffic) -> Any:
        """Return the tokens of each prompt whose keys and values other requests may have as well."""
        return traffic.input_tokens * self.options.prefix_hit_rate if traffic.hashes is None else traffic.input_tokens

    def most_running(self, traffic: Traffic, room: CacheRoom) -> int:
        """Return the requests of a replica that ever run at the same time, by its engine and its cache.

        A request begins with its prompt, so that more of them begin than the cache has room for with their answers.
        """
        prompts = (traffic.input_tokens - self.shared_tokens(traffic))[traffic.counted]
        fitting = room.holds_prompts(int(prompts.min())) + 1
        return max(min(self.replica_engine(int(traffic.input_tokens.max())).max_sequences, fitting), 1)

    def latency_deviations(self, traffic: Traffic) -> dict[str, float]:
        """Return standard deviations of the logarithms of latencies beside those of the iterations, by latency."""
        users = 0.0 if traffic.concurrency is None else traffic.concurrency / self.replicas
        return crowd_deviations(self.timer.latency_deviations, users)

    @property
    def tokens_per_sequence(self) -> int:
        """New tokens of a sequence in an iteration: one, and those that are drafted."""
        return 1 + self.options.speculation.draft_length


def why_apart(prompts: Deployment, decoding: Deployment) -> str:
    """Return why two pools are in no place together: of two vendors, or at the prices of two clouds; empty if not.

    No engine documents that caches move between kernels of two vendors, and no network joins two clouds.
    """
    pools = (prompts, decoding)
    vendors = list(dict.fromkeys(pool.on_device.machine.device.vendor for pool in pools))
    if len(vendors) > 1:
        return f"no engine is known to hand keys and values from devices of {vendors[0]} to those of {vendors[1]}"
    clouds = list(
        dict.fromkeys(pool.listing.cloud for pool in pools if pool.listing is not None and pool.listing.cloud)
    )
    if len(clouds) > 1:
        return f"the prices are those of two clouds, {clouds[0]} and {clouds[1]}, which no network joins"
    return ""


def have_connector(prefill: Deployment, decode: Deployment) -> bool:
    """Return whether a connector is known that brings keys and values from one pool to the other: one program has it.

    Reads of blocks are those of a connector, and are not known without one.
    """
    return prefill.engine.program == decode.engine.program


def links_between_pools(prefill: Deployment, decode: Deployment) -> list[LinkRate]:
    """Return what the devices of two pools send over, at both ends: their own link where one computer holds all.

    Pools of several computers, or of two kinds of devices, send over the networks of these; a device of which no
    network is on record is taken to have its own link there, too.
    """
    devices = [pool.on_device.machine.device for pool in (prefill, decode)]
    computer = usual_computer(devices[0].id)
    per_computer = math.inf if computer is None else computer.devices_per_node
    is_one_computer = devices[0].id == devices[1].id and decode.devices <= per_computer  # those of both pools
    links = []
    for device in devices:
        network = None if is_one_computer else usual_network(device)
        links.append(link_rate(device_link(device)) if network is None else network)
    return links

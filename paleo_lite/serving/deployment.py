"""A deployment: network, devices, parallelism, engine, and the traffic's share of each replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..distributed.link_causes import usual_network
from ..distributed.links import LinkRate, device_link, link_rate
from ..distributed.platforms import usual_computer
from ..engines.causes import FIRST_TOKEN
from ..engines.records.record import Server
from ..errors import BadValue, DoesNotFit
from ..machines import Price
from ..timing.facility import Facility
from ..timing.fine_tuning import adapted_layers
from ..timing.intervals import Z_90
from ..units import check_integer
from .adapters import AdapterCost, Adapters, cost_of_adapters, times_with
from .admission import Admission
from .cache import CacheRoom, NoCacheRoom, cached_tensors, sufficient_fraction
from .captured_graphs import count_launches, eager_launch_s, with_launches
from .causes import RemainingWidths, causes_of_iterations, causes_of_users, crowd_deviations, remaining_widths
from .drafts import HEADS
from .elastic import Elasticity
from .flood import simulate_flood
from .host_intervals import HostWidths, count_running, host_widths
from .intervals import summarize_latencies
from .iteration import has_fitted_host
from .iteration_times import IterationTimes
from .kernel_timer import KernelTimer
from .layer_timer import LayerTimer
from .options import SimulationOptions
from .outcomes import Outcome
from .placement import ModelOnDevice
from .pools import (
    CacheTiers,
    ServerPool,
    Simulated,
    Transfer,
    keep,
    run_admitted,
    run_elastic,
    run_pool,
    run_split,
    simulate,
)
from .requests import Traffic
from .routers import ROUND_ROBIN
from .speech import check_lengths, with_windows
from .stage_timer import StageTimer
from .startup import START_FACTOR, StartTime, estimate_start
from .stores import CacheStore
from .timed_engine import TimedEngine
from .timer import Timer, tabulate

if TYPE_CHECKING:
    from ..engines.constants import Learned

LEVELS = ("low", "expected", "high")
"""Iteration times of a simulation: the ends of their 90% interval, and the expected times."""

POOL_DEVIATION = 0.13
"""Standard deviation of the logarithm by which iterations of split pools are further off than those of servers that do
both, to which constants are fitted.

It was chosen by published pools under SGLang and judged by those under TensorRT-LLM.
"""

HANDOVER_ENDS = {"low": 0.4, "high": 2.5}
"""Ends of the 90% interval of an engine's handover between pools, relative to it."""


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
        return self.on_device.attention_data if self.engine.limits_per_rank else 1

    def replica_engine(self, longest_prompt: int = 0) -> Server:
        """Return the engine with the limits of a whole replica, which are those of all its ranks.

        A rank computes a whole prompt, even if it is longer than the tokens of an iteration.
        """
        engine, ranks = self.engine, self.limited_ranks
        if self.on_device.workload.network.is_speech_model:
            return with_windows(engine, self.on_device)
        if engine.tokens_per_rank:
            # Ranks compute no more than the chunk that they share.
            tokens = min(self.on_device.attention_data * engine.max_batched_tokens, engine.chunked_prefill)
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
                    f"heads that draft ({heads}) leave no memory for a KV cache: use a larger `--tensor`, or leave "
                    f"draft={heads} of `--speculation` out"
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

    def prepare(self, traffic: Traffic, drafted: int = 0) -> PreparedDeployment:
        """Compute iteration times, which measured servers narrow, and cache room for traffic of these lengths.

        Tables are for drafts of at least so many tokens.
        """
        prepared = self._prepare(traffic, drafted)
        kernels = self.on_device.kernels
        learned = None if kernels is None else kernels.step.constants.learned
        return prepared if learned is None else prepared.narrowed(traffic, learned)

    def _prepare(self, traffic: Traffic, drafted: int = 0) -> PreparedDeployment:
        network = self.on_device.workload.network
        if network.is_speech_model:
            check_lengths(network, traffic)
        lengths = traffic.input_tokens + traffic.output_tokens
        engine = self.replica_engine(int(traffic.input_tokens.max()))
        room = self.measure_room(traffic)
        # No more sequences run than the cache has room for what the shortest requests do not share with others.
        fitting = room.tokens // max(int((lengths - self._shared_tokens(traffic)).min()), 1) + 1
        sequences = max(min(engine.max_sequences, fitting, len(traffic)), 1)
        if self.prefill is None:
            return self.prepare_sequences(traffic, room, sequences, drafted)
        prefill = self.prefill._prepare(traffic).widened(POOL_DEVIATION)
        return self.prepare_sequences(traffic, room, sequences, drafted, prefill).widened(POOL_DEVIATION)

    def _shared_tokens(self, traffic: Traffic) -> Any:
        """Return the tokens of each prompt whose keys and values other requests may have as well."""
        return traffic.input_tokens * self.options.prefix_hit_rate if traffic.hashes is None else traffic.input_tokens

    def most_running(self, traffic: Traffic, room: CacheRoom) -> int:
        """Return the requests of a replica that ever run at the same time, by its engine and its cache.

        A request begins with its prompt, so that more of them begin than the cache has room for with their answers.
        """
        prompts = (traffic.input_tokens - self._shared_tokens(traffic))[traffic.counted]
        fitting = room.holds_prompts(int(prompts.min())) + 1
        return max(min(self.replica_engine(int(traffic.input_tokens.max())).max_sequences, fitting), 1)

    def prepare_sequences(
        self,
        traffic: Traffic,
        room: CacheRoom,
        sequences: int,  # that run at the same time at most
        drafted: int = 0,  # tokens that each of them drafts at least
        prefill: PreparedDeployment | None = None,
    ) -> PreparedDeployment:
        """Compute iteration times of so many sequences of the lengths of some traffic."""
        longest = int((traffic.input_tokens + traffic.output_tokens).max())
        engine = self.replica_engine(int(traffic.input_tokens.max()))
        engine = msgspec.structs.replace(engine, max_sequences=sequences)
        drafted = max(self.options.speculation.most_tokens, 2 * drafted)  # as where a pass gives all drafted tokens
        # A whole prompt may be longer than an iteration's tokens; a preempted request is computed up to its answer.
        new_tokens = max(engine.max_batched_tokens, longest) + sequences * drafted
        tables = tabulate(
            self.timer,
            max_new_tokens=new_tokens,
            max_sequences=sequences,
            max_prompt=longest,
            max_context=longest,
            spread=traffic.context_spread,
        )
        if self.adapters is not None:
            tables = times_with(tables, self.adapter_cost, self.adapters.slots)
        tables = self._with_launches(tables, traffic)
        draft_tables = None
        if self.options.speculation.heads:
            draft_tables = tables.of_blocks(1 / self.on_device.workload.network.blocks)
        elif self.draft_timer is not None:
            draft_tables = tabulate(
                self.draft_timer,
                max_new_tokens=sequences * drafted,
                max_sequences=sequences,
                max_prompt=1,
                max_context=longest,
            )
        running = count_running(tables, engine, traffic, self.replicas, self.tokens_per_sequence)
        widths = self.host_widths(tables, engine, running, traffic)
        return PreparedDeployment(self, engine, room, tables, draft_tables, prefill, widths)

    def host_widths(self, tables: IterationTimes, engine: Server, sequences: int, traffic: Traffic) -> HostWidths:
        """Return what the interval of the host adds to that of iterations that decode some sequences."""
        if not has_fitted_host(engine, self.on_device.kernels):
            return HostWidths()
        return host_widths(tables, engine, sequences, traffic.mean_context, self.tokens_per_sequence)

    def latency_deviations(self, traffic: Traffic) -> dict[str, float]:
        """Return standard deviations of the logarithms of latencies beside those of the iterations, by latency."""
        users = 0.0 if traffic.concurrency is None else traffic.concurrency / self.replicas
        return crowd_deviations(self.timer.latency_deviations, users)

    @property
    def tokens_per_sequence(self) -> int:
        """New tokens of a sequence in an iteration: one, and those that are drafted."""
        return 1 + self.options.speculation.draft_length

    def _with_launches(self, tables: IterationTimes, traffic: Traffic) -> IterationTimes:
        """Return the times where batches above a limit are launched kernel by kernel; the same ones without a limit."""
        captured = self.engine.captured_sequences
        if captured is None:
            return tables
        context = traffic.mean_context
        launches = count_launches(self.on_device, context)
        return with_launches(tables, eager_launch_s() * launches, context, captured, self.tokens_per_sequence)


class PreparedDeployment(msgspec.Struct, frozen=True, eq=False):
    """A deployment with its iteration times and cache room."""

    deployment: Deployment
    engine: Server  # its engine, with no more sequences than the cache holds
    room: CacheRoom  # the cache of one replica
    tables: IterationTimes  # iteration times of one replica
    draft_tables: IterationTimes | None  # iteration times of the draft network
    prefill: PreparedDeployment | None = None  # the pool that computes prompts; None where every replica does both
    host_widths: HostWidths = HostWidths()  # what the interval of the host adds to that of iterations
    # What measured servers leave of the intervals of the host and of the wait for a first token, in logarithms; those
    # of `tables` are narrowed already.
    host_width: float = 1.0
    first_token_width: float = 1.0

    def narrowed(self, traffic: Traffic, learned: Learned) -> PreparedDeployment:
        """Return the deployment with the intervals that measured servers leave under some traffic.

        Iterations with and without prompts and the host are less certain apart than together, since a measured time per
        token is that of all. So all of them have the interval of their sum under this traffic.
        """
        simulated = {level: self.simulate(traffic, level) for level in LEVELS}
        at_levels = {level: summarize_latencies(at_level) for level, at_level in simulated.items()}
        widths = remaining_widths(
            self.deployment.on_device,
            self.engine,
            learned,
            traffic,
            simulated["expected"],
            causes_of_iterations(self, traffic, at_levels),
            causes_of_users(self, traffic),
            self.deployment.latency_deviations(traffic)[FIRST_TOKEN],
        )
        prefill = None if self.prefill is None else self.prefill._with_widths(widths)
        return msgspec.structs.replace(self._with_widths(widths), prefill=prefill)

    def widened(self, deviation: float) -> PreparedDeployment:
        """Return the deployment with an independent standard deviation of the logarithm of its iterations."""
        if not self.tables.relative_low:
            return self
        return msgspec.structs.replace(self, tables=self.tables.widened(Z_90 * deviation))

    def _with_widths(self, widths: RemainingWidths) -> PreparedDeployment:
        draft_tables = None if self.draft_tables is None else self.draft_tables.narrowed(widths.per_token)
        return msgspec.structs.replace(
            self,
            tables=self.tables.narrowed(widths.per_token),
            draft_tables=draft_tables,
            host_width=widths.per_token,
            first_token_width=widths.first_token,
        )

    def for_crowd(self, traffic: Traffic) -> PreparedDeployment:
        """Return the deployment for as many requests of these lengths as ever run at once, however few are sent."""
        running = self.deployment.most_running(traffic, self.room)
        prefill = None if self.prefill is None else self.prefill.for_crowd(traffic)
        if running <= self.engine.max_sequences:
            engine = msgspec.structs.replace(self.engine, max_sequences=running)
            crowd = msgspec.structs.replace(self, engine=engine, prefill=prefill)
        else:
            crowd = self.deployment.prepare_sequences(traffic, self.room, running, prefill=prefill)
        widths = self.deployment.host_widths(crowd.tables, crowd.engine, running, traffic)
        crowd = msgspec.structs.replace(crowd, host_widths=widths)
        if running <= self.engine.max_sequences:
            return crowd
        is_narrowed = self.host_width != 1.0
        return crowd._with_widths(RemainingWidths(self.host_width, self.first_token_width)) if is_narrowed else crowd

    def latency_deviations(self, traffic: Traffic) -> dict[str, float]:
        """Return standard deviations of the logarithms of latencies beside those of the iterations, by latency."""
        deviations = self.deployment.latency_deviations(traffic)
        return {name: deviation * self.first_token_width for name, deviation in deviations.items()}

    @property
    def slowest(self) -> str:
        """Level of the slowest iterations: the upper end of their interval, or the expected times without one."""
        return "high" if self.tables.relative_low else "expected"

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of the times of iterations that an answer has: all, or the expected one where there is no interval."""
        return LEVELS if self.tables.relative_low else ("expected",)

    def run(self, traffic: Traffic, level: str = "expected", answers: int | None = None) -> list[Outcome]:
        """Simulate all replicas at one of `LEVELS`; an outcome per replica that decodes."""
        return self.simulate(traffic, level, answers).outcomes

    def simulate(
        self,
        traffic: Traffic,
        level: str = "expected",
        answers: int | None = None,
        prefill_level: str | None = None,  # level of the pool of prompts, where it is another one
    ) -> Simulated:
        """Simulate all replicas at one of `LEVELS`, as one deployment or alone up to the first answers of each."""
        if self.prefill is not None:
            of_prompts = level if prefill_level is None else prefill_level
            transfer = self.transfer.times(HANDOVER_ENDS.get(of_prompts, 1.0))
            return run_split(traffic, self.prefill.pool(of_prompts), self.pool(level), transfer, answers)
        elasticity = self.deployment.elasticity
        if elasticity is not None:
            return run_elastic(
                traffic, self.pool(level), elasticity, self._start_s(level), self.deployment.on_device.devices
            )
        if self.deployment.admission is not None:
            return run_admitted(traffic, self.pool(level), self.deployment.admission)
        if self.deployment.needs_router or traffic.follows is not None:
            return run_pool(traffic, self.pool(level), answers)
        tables, engine, options = self.at_level(level)
        replicas = self.deployment.replicas
        if traffic.concurrency is not None:
            replicas = min(replicas, traffic.concurrency)  # the others have no user who sends them a request
        parts = [traffic.every(replicas, start) for start in range(replicas)]
        return Simulated(
            [simulate(part, tables, self.room, engine, options, answers) for part in parts if len(part)], []
        )

    def flood(self, traffic: Traffic, levels: Sequence[str]) -> list[list[Outcome]]:
        """Simulate requests that all wait from the beginning; the outcomes of the replicas at each of some levels.

        To a router all replicas are equal then, unless prompts have prefixes, so that they take requests in turn. One
        that draws replicas gives each as many requests in the long run, to which the rate of requests that always wait
        belongs.
        """
        deployment = self.deployment
        if self.prefill is not None or (deployment.needs_router and traffic.hashes is not None):
            return [self.run(traffic, level) for level in levels]
        timed = [self.at_level(level) for level in levels]
        parts = [traffic.every(deployment.replicas, start) for start in range(deployment.replicas)]
        conditions = (self.room, *timed)
        by_replica = [
            keep(part, timed[0].times, conditions, partial(simulate_flood, part, timed, self.room))
            for part in parts
            if len(part)
        ]
        return [list(outcomes) for outcomes in zip(*by_replica)]

    def _start_s(self, level: str) -> float:
        """Return the seconds in which a replica starts at one of `LEVELS`."""
        assert self.deployment.elasticity is not None
        if self.deployment.elasticity.start_s is not None:
            return self.deployment.elasticity.start_s
        ends = {"low": 1 / START_FACTOR, "high": START_FACTOR}
        return self.start.seconds * ends.get(level, 1.0)

    @property
    def start(self) -> StartTime:
        """The time in which a replica starts, by published starts."""
        on_device = self.deployment.on_device
        layers = on_device.workload.network.blocks / on_device.pipeline.degree
        return estimate_start(layers, self.room.weights_bytes * on_device.devices)

    @property
    def lasting(self) -> PreparedDeployment:
        """The deployment whose replicas stay, as many as there are at most, and refuse nothing.

        Of a gateway that lets so many requests through at a time, each replica has its share.
        """
        engine, admission = self.engine, self.deployment.admission
        lasting = msgspec.structs.replace(self.deployment, elasticity=None, admission=None)
        if admission is not None and admission.most_at_once is not None:
            share = max(admission.most_at_once // lasting.replicas, 1)
            if share < lasting.replica_engine().max_sequences:
                lasting = lasting.with_sequences(share)
            engine = msgspec.structs.replace(engine, max_sequences=min(engine.max_sequences, share))
        return msgspec.structs.replace(self, deployment=lasting, engine=engine)

    def pool(self, level: str) -> ServerPool:
        """Return the replicas of a split deployment's pool at one of `LEVELS`."""
        tables, engine, options = self.at_level(level)
        deployment, tiers = self.deployment, None
        if deployment.stores:
            token_bytes = self.room.sequence_bytes / self.room.sequence_tokens * deployment.on_device.devices
            tiers = CacheTiers(token_bytes, deployment.stores)
        return ServerPool(deployment.replicas, tables, self.room, engine, options, deployment.router, tiers)

    @property
    def transfer(self) -> Transfer:
        """How keys and values get here from the prefill pool."""
        assert self.prefill is not None
        prefill, room, handover = self.prefill.deployment, self.prefill.room, self.engine.handover
        block_s = handover.block_s if have_connector(prefill, self.deployment) else 0.0
        return Transfer(
            room.sequence_bytes / room.sequence_tokens,
            links_between_pools(prefill, self.deployment),
            handover.messages_s,
            block_s * prefill.tensors_per_device / room.block_tokens,
        )

    def engine_at(self, level: str) -> Server:
        """Return the engine with the time of its host at an end of the interval, ``low`` or ``high``."""
        return self.engine.at_end(level, self.host_width * self.host_widths.at(level))

    def at_level(self, level: str) -> TimedEngine:
        """Return iteration times, engine and options of a simulation at one of `LEVELS`."""
        engine, tables, draft = self.engine, self.tables, self.draft_tables
        if level != "expected":
            tables = tables.scaled(level)
            draft = None if draft is None else draft.scaled(level)
            engine = self.engine_at(level)
        speculation = msgspec.structs.replace(self.deployment.options.speculation, draft=draft)
        options = msgspec.structs.replace(self.deployment.options, speculation=speculation)
        if self.deployment.adapters is not None:
            load_s = self.deployment.adapter_cost.load_s
            options = msgspec.structs.replace(
                options, adapter_slots=self.deployment.adapters.slots, adapter_load_s=load_s
            )
        return TimedEngine(tables, engine, options)


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

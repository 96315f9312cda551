"""The deployments of a question of `serve`: what they have in common, and one of them on given devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..architectures import Network, find_network
from ..architectures.catalog import is_factory
from ..architectures.network import SequenceOptions
from ..calibration.evidence_file import EvidenceCalibration
from ..calibration.evidence_notes import notes_on_calibration
from ..calibration.power_causes import KIND as POWER
from ..calibration.power_causes import learned_device
from ..calibration.store import evidence_of, find_evidence
from ..distributed.link_causes import learned_topology
from ..distributed.links import NETWORK_PORT, LinkRate, Topology, device_link
from ..distributed.platforms import Computer, find_platform, usual_computer
from ..engines.division import Division
from ..engines.placed import NEEDS_KERNELS
from ..engines.records import LOCAL_ENGINES, find_server
from ..engines.records.record import LocalEngine, Server
from ..engines.routing import UNIFORM
from ..errors import BadValue, PaleoError, UnknownPrecision
from ..files import Paths, to_paths
from ..machines import Device, Machine, Price, find_device
from ..machines.prices import choose_price, price_of_group
from ..own_machines.causes import KIND as LOCAL
from ..serving.deployment import Deployment
from ..serving.drafts import heads_of
from ..serving.engine_model import choose_cache_format
from ..serving.iteration import has_fitted_host, with_fitted_host
from ..serving.learned import KIND as SERVER
from ..serving.learned import engine_traits, learned_constants
from ..serving.options import SimulationOptions, Speculation
from ..serving.pipeline import connect_stages
from ..serving.placement import ModelOnDevice, check_undivided, tensor_group, with_kernels
from ..serving.products import check_products, choose_precision
from ..timing.energy import with_power_limit
from ..timing.facility import Facility
from .question import Question, resolve_network, resolve_question

if TYPE_CHECKING:
    from ..calibration.ppp import PppCalibration
    from ..calibration.store import Calibration


class Deployments(msgspec.Struct, frozen=True, eq=False):
    """What the deployments of one question have in common.

    Attributes
    ----------
    decoder, draft : Network
        Language model as it decodes, and the draft network of speculative decoding, if there is one.
    precision : str or None
        Precision of the arithmetic; None for the one in which the engine multiplies weights of the format.
    kv_cache : str or None
        Format of the KV cache; None for the precision, but at least 16 bits.
    policy : str
        Engine, one of `paleo_lite.engines.records.SERVERS`.
    settings : dict
        Arguments of `paleo_lite.engines.records.find_server`.
    sampling : str or None
        How clients let the server choose tokens, one of `paleo_lite.engines.records.record.SAMPLINGS`; None for what is
        usual.
    usual_sampling : str or None
        What is usual; None for what the clients of the engine's own benchmarks do. It makes no difference where the
        host of the engine was not measured.
    expert_load : float
        Exponent of the popularity of experts (`paleo_lite.engines.routing`).
    options : SimulationOptions
        Prefix cache and speculative decoding.
    link, topology : str and Topology, optional
        Link between the devices of a replica, or the computer that they are in.
    price_usd_per_h, price_of, platform_price
        Given price of a device, cloud whose price is used, and price of the platform.
    listings : dict of str to Price or None, optional
        Listings by which devices are compared, by id, instead of `price_of`.
    facility : Facility or None
        What surrounds the devices.
    power_limit, time_model, calibration, clock, unit, hardware_files
        As for `paleo_lite.predict`.
    """

    decoder: Network
    draft: Network | None
    precision: str | None
    kv_cache: str | None
    policy: str
    settings: dict[str, Any]
    sampling: str | None = None
    usual_sampling: str | None = None
    expert_load: float = UNIFORM
    options: SimulationOptions = SimulationOptions()
    link: str | None = None
    topology: Topology | None = None
    price_usd_per_h: float | None = None
    price_of: str | None = None
    listings: Mapping[str, Price | None] | None = None
    platform_price: Price | None = None
    facility: Facility | None = None
    power_limit: float | str | None = None
    time_model: str | None = None
    calibration: str | Calibration | PppCalibration | EvidenceCalibration | None = None
    clock: str | None = None
    unit: str | None = None
    hardware_files: Paths = ()
    stage_blocks: tuple[int, ...] = ()  # blocks of each pipeline stage; empty for those that the engine chooses

    def make(
        self,
        device: str | Device,
        division: Division,
        weights: str | None,
        *,
        replicas: int = 1,
        prefill: Deployment | None = None,
    ) -> Deployment:
        """Return the deployment on a device; weights are by default in the precision of the arithmetic.

        With a prefill pool it is the one of the decode pool.

        Raise PaleoError if the network does not fit, or cannot be divided so.
        """
        if self.expert_load != UNIFORM and not self.decoder.is_mixture:
            raise BadValue(f"`--expert-load` is for mixtures of experts; {self.decoder.name} is not one")
        resolved_device = find_device(device, to_paths(self.hardware_files))
        if self.power_limit is not None:
            resolved_device = with_power_limit(resolved_device, self.power_limit)
        evidence = evidence_of(self.calibration)
        resolved_device = learned_device(resolved_device, self.decoder.name, evidence)
        local = LOCAL_ENGINES.get(self.policy)
        if local is not None:
            calibration = find_evidence(self.calibration, f"serve --engine {self.policy}", (LOCAL, POWER))
            one_device = Machine.single_device(resolved_device).device
            on_device = place_locally(self.decoder, one_device, local, weights, self.kv_cache, calibration)
            if calibration is not None:
                command = f"serve --engine {self.policy}"
                notes = notes_on_calibration(calibration, command, resolved_device, self.decoder.name, {LOCAL})
                on_device = on_device._replace(notes=(*on_device.notes, *notes))
        else:
            on_device = self._place(self.decoder, resolved_device, division, weights, evidence)
        engine = find_server(self.policy, on_device.machine.device, **self.settings)
        if self.decoder.is_speech_model:  # engines split no window, which an encoder reads whole
            engine = msgspec.structs.replace(engine, chunked_prefill=0)
        check_batch_wait(engine, on_device.division.attention_data_parallel)
        if engine.captured_sequences is not None and (on_device.kernels is None or division.pipeline > 1):
            raise BadValue(f"`--engine-settings captured-sequences` {NEEDS_KERNELS} and without `--pipeline`")
        if self.stage_blocks and (engine.launcher is None or not engine.launcher.stage_blocks):
            raise BadValue(f"`--engine-settings stage-blocks` is for vllm and sglang, not for {engine.name}")
        if self.settings["overhead_s"] is None:
            engine = with_fitted_host(engine, on_device.kernels, self.sampling or self.usual_sampling)
        if self.sampling is not None and not has_fitted_host(engine, on_device.kernels):
            raise BadValue(
                f"`--engine-settings sampling={self.sampling}` {NEEDS_KERNELS}, of a version whose host was measured"
            )
        price_usd_per_h, listing = self.price_usd_per_h, None
        if price_usd_per_h is None:
            listing = self._choose_listing(on_device.machine.device, division.tensor)
            price_usd_per_h = None if listing is None else listing.usd_per_h
        return Deployment(
            on_device,
            engine,
            replicas=replicas,
            prefill=prefill,
            options=self.options,
            draft=None if self.draft is None else self._place(self.draft, resolved_device, division, weights, evidence),
            price_usd_per_h=price_usd_per_h,
            listing=listing,
            facility=self.facility,
        )

    def with_speculation(self, speculation: Speculation) -> Deployments:
        """Return the deployments with other speculative decoding, of heads of the network or none."""
        options = msgspec.structs.replace(self.options, speculation=speculation)
        return msgspec.structs.replace(self, draft=None, options=options)

    def _choose_listing(self, device: Device, tensor: int) -> Price | None:
        """Return the listing of the price of a device, of which some work as one."""
        if self.listings is None:
            listing = choose_price(device, self.price_of, self.platform_price)
        else:
            listing = self.listings.get(device.id)
        return None if listing is None else price_of_group(device.id, listing, tensor)

    def _choose_precision(self, weights: str | None, device: Device) -> str:
        """Return the precision of the arithmetic with weights of a format."""
        if self.precision is None:
            return choose_precision(weights, device, self.unit)
        check_products(weights, self.precision, device)
        return self.precision

    def _place(
        self,
        network: Network,
        device: Device,
        division: Division,
        weights: str | None,
        evidence: EvidenceCalibration | None,
    ) -> ModelOnDevice:
        """Return a network on one of the devices that share it."""
        is_evidence = evidence is not None or isinstance(self.calibration, EvidenceCalibration)
        question = Question(
            network,
            device,
            precision=self._choose_precision(weights, device),
            phase="decode",
            time_model=self.time_model,
            clock=self.clock,
            unit=self.unit,
            calibration=None if is_evidence else self.calibration,  # type: ignore[arg-type]
            weights=weights,
        )
        has_stages = division.pipeline > 1
        workload, machine, model = resolve_question(question, is_by_layers=has_stages)
        if has_stages and not model.is_forecast:  # no layers were measured in the format; kernels may have been
            workload, machine, model = resolve_question(question)
        topology = self.topology
        if topology is None and self.link is None:
            topology = usual_nodes(machine.device, division.tensor * division.pipeline)
        if topology is not None:
            topology = learned_topology(topology, machine.device, evidence, SERVER)
        group = tensor_group(machine.device, division, self.link, topology)
        if group is not None and topology is None:
            group = learned_topology(group, machine.device, evidence, SERVER)
        has_links = topology is None and division.pipeline > 1
        stage_link = self.link or device_link(machine.device) if has_links else None
        connected = connect_stages(
            division.pipeline, division.tensor, device_link=stage_link, topology=topology, blocks=self.stage_blocks
        )
        notes: tuple[str, ...] = ()
        if evidence is not None:
            notes = notes_on_calibration(evidence, "serve", machine.device, network.name, {SERVER}, topology or group)
        if topology is not None and self.topology is None:
            notes += tuple(f"assumed: {assumption}" for assumption in topology.assumptions)
        if self.link is not None and group is not None and group.inside is not None:
            notes += joined_notes(machine.device, group.inside, division.tensor)
        cache_format = choose_cache_format(self.kv_cache, workload.precision)
        placed = ModelOnDevice(workload, machine, model, group, cache_format, connected, notes=notes)
        if workload.engine is None or has_stages:
            check_undivided(division, machine.device, self.expert_load)
            if evidence is not None and SERVER in evidence.kinds:
                raise BadValue(f"a calibration from result files {NEEDS_KERNELS} and without `--pipeline`")
        if workload.engine is None and network.is_speech_model:
            raise BadValue(
                f"a server of {network.name} {NEEDS_KERNELS} in 16 bits and fewer (got {machine.device.name})"
            )
        if workload.engine is None:
            return placed
        degrees: dict[str, Any] = {
            "expert_parallel": division.expert_parallel,
            "attention_data_parallel": division.attention_data_parallel,
            "alpha": self.expert_load,
        }
        on_device = with_kernels(placed, self.policy, **degrees)
        if evidence is None:
            return on_device
        assert on_device.kernels is not None
        traits = engine_traits(on_device.workload, machine.device, self.policy, on_device.kernels.step.devices)
        constants = learned_constants(evidence, traits)
        note = evidence.describe_distance(SERVER, traits)
        return with_kernels(placed, self.policy, **degrees, constants=constants)._replace(notes=(note, *notes))


def usual_nodes(device: Device, devices: int) -> Topology | None:
    """Return the usual computers that so many devices are in; None where one is enough, or none is known."""
    computer = None if devices == 1 else usual_computer(device.id)
    if computer is None or computer.between is None or devices <= computer.devices_per_node:
        return None
    topology = computer.topology(devices)
    return msgspec.structs.replace(topology, assumptions=(computer.name, *topology.assumptions))


def joined_notes(device: Device, link: LinkRate, devices: int) -> tuple[str, ...]:
    """Return the assumption that a link of devices joins more of them than their usual computer has, if it is one."""
    computer = usual_computer(device.id)
    joins_devices = link.per not in ("", NETWORK_PORT)  # neither a rate nor a network
    if computer is None or devices <= computer.devices_per_node or not joins_devices:
        return ()
    has = f"of which {computer.name} has {computer.devices_per_node}"
    return (f"assumed: {link.name} joins all {devices} devices, {has}",)


def find_topology(platform: str | None, link: str | None, workers: int | None) -> tuple[Topology | None, Price | None]:
    """Return the topology of a platform and its price per device; None where it has none."""
    if platform is None:
        return None, None
    if link is not None:
        raise BadValue("give only one of `--link` and `--platform`")
    computer = find_platform(platform)
    price = computer.price_of_device if isinstance(computer, Computer) else None
    return computer.topology(workers or 0), price


def find_decoder(name: str | Network) -> Network:
    """Return a language model as it computes one token per sequence."""
    if not (isinstance(name, str) and is_factory(name)):  # a factory or a folder is checked when it is traced
        network = find_network(name) if isinstance(name, str) else name
        if not (network.is_language_model or network.is_speech_model):
            raise BadValue(_why_no_server(network))
    return resolve_network(name, None, (), SequenceOptions(phase="decode"))


def _why_no_server(network: Network) -> str:
    """Return why a network has no server, and what answers for one that writes text from what its encoder reads."""
    try:
        resolve_network(network.name, None, (), SequenceOptions(phase="decode"))
    except PaleoError:
        return f"`serve` needs a language model that writes text; {network.name} is not one"
    return (
        f"`serve` needs a language model without an encoder of text, and {network.name} has one: "
        f"`predict {network.name} --phase prefill` and `--phase decode` answer for a batch of its requests"
    )


def find_draft(draft: str | Network | None, draft_length: int) -> Network | None:
    """Return the draft network of speculative decoding, if there is one: heads are no network of their own."""
    if draft is None or heads_of(draft):
        return None
    if not draft_length:
        raise BadValue("`--speculation draft` needs tokens=N, the tokens drafted per iteration")
    return find_decoder(draft)


def check_policy(policy: str, **options: Any) -> None:
    """Raise BadValue if an option is given that is not modelled under an engine of one's own machine.

    One is given if it is neither None nor False, and no number of devices that means no division (0 or 1).
    """
    if policy not in LOCAL_ENGINES:
        return
    for name, value in options.items():
        if value is True or value not in (None, False, 0, 1):
            option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise BadValue(f"`{option}` is not modelled with `--engine {policy}`: leave it out")


_OPTIONS = {"draft": "--speculation", "draft_length": "--speculation", "sampling": "--engine-settings sampling"}
"""Options of the command for parameters that have another name."""


def check_batch_wait(engine: Server, ranks: int) -> None:
    """Raise BadValue if a setting of how long prompts wait for others changes nothing."""
    iterations, share = "`--engine-settings batch-wait-iterations`", "`batch-wait-share`"
    if engine.batch_wait_share and not engine.batch_wait_iterations:
        raise BadValue(f"{share} of `--engine-settings` needs batch-wait-iterations=N, for which prompts wait at most")
    if engine.batch_wait_share and ranks > 1:
        raise BadValue(f"{share} is not for `--attention-data-parallel`, with which prompts wait for one of each rank")
    if engine.batch_wait_iterations and ranks == 1 and not engine.batch_wait_share:
        raise BadValue(f"{iterations} needs batch-wait-share=FRACTION, such as 0.8: at 0, the default, no prompt waits")


def place_locally(
    network: Network,
    device: Device,
    engine: LocalEngine,
    weights: str | None,
    kv_cache: str | None,
    calibration: EvidenceCalibration | None = None,
) -> ModelOnDevice:
    """Return a network under an engine of one's own machine on a device, which must hold all blocks.

    Formats of weights and of the cache are by default those of `paleo_lite.api.local.predict_local`.
    """
    from ..own_machines.batches import make_local_model
    from ..own_machines.contents import read_contents

    cache = kv_cache or engine.caches[0]
    contents = read_contents(network, weights, cache, engine)
    workload, machine, model = resolve_question(
        Question(
            network,
            device,
            precision=_precision_of(device),
            phase="decode",
            time_model="roofline",
            weights=weights or engine.default_weights,
        )
    )
    return ModelOnDevice(
        workload, machine, model, None, cache, local=make_local_model(contents, device, engine, calibration)
    )


def _precision_of(device: Device) -> str:
    """Return the precision in which a device computes: half precision where it has a peak in it."""
    try:
        device.find_peak("fp16")
    except UnknownPrecision:
        return "fp32"
    return "fp16"

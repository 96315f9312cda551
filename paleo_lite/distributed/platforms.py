"""Named machines of many devices: topologies from text or TOML, `Platform` and `Computer`.

A `Computer` is a documented node of a manufacturer or cloud provider. A `Platform` is a computer with software on which
training on several devices was measured; it adds the fitted parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import BadFile, BadValue, PaleoError, UnknownName, UsageProblem
from ..files import read_typed, shipped_folder
from ..machines import Device, Price, find_device
from ..machines.clouds import Instance, find_instance, list_clouds
from ..text import normalize_name
from ..units import parse_quantity
from .clusters import WORST, PredictStep, StepForecast
from .links import FORM, LinkRate, Topology, link_between_nodes, link_inside_nodes, link_rate
from .settings import BUCKET_BYTES, Settings

_MAX_BYTES = 2**16
_NODE = re.compile(r"(?:(?P<count>\d{1,9})\s*[xX×]\s*)?(?P<device>[^@]*?)\s*(?:@(?P<link>.*))?", re.DOTALL)
_NODES = re.compile(r"(?P<count>\d{1,9})\s+nodes?\s*(?:@(?P<link>.*))?", re.IGNORECASE | re.DOTALL)


class _LinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link in a TOML topology: its name or rate, and values that replace those of the registry."""

    link: str
    ppp: float | None = None
    latency: str | None = None


class _TopologySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topology as text or TOML describes it, before names are looked up."""

    device: str | None = None
    devices_per_node: int = 1
    inside: str | _LinkSpec | None = None
    nodes: int = 1
    between: str | _LinkSpec | None = None


def parse_topology(
    text: str,
    *,
    # Share of the data sheet's bandwidth that every link reaches; by default the value of each link.
    ppp: float | None = None,
    hardware_files: Iterable[Path] = (),  # files with further devices
    device: Device | None = None,  # device of a topology that names none
) -> Topology:
    """Parse a topology; the grammar is in docs/topology.md.

    The text has the devices of a node and the link between them, a comma, the nodes and the link between them: ``"2x
    k40m @ pcie3, 16 nodes @ infiniband"``. Either part may be missing, and so may the device; a link may be a rate:
    ``"8x @ nvlink3-x12, 4 nodes @ 100 Gbit/s"``. A text that ends in ``.toml`` is the path of a file: BadFile with its
    name if it cannot be used.

    The name of a link inside nodes means all lanes of the device, and that of a network between nodes of GPUs one port
    per device; ``1x`` in front of the name asks for one.
    """
    text = text.strip()
    if not text.endswith(".toml"):
        return _build_topology(_parse_spec(text), ppp, hardware_files, device)
    try:
        spec = read_typed(Path(text), _TopologySpec, "topology", _MAX_BYTES)
        return _build_topology(spec, ppp, hardware_files, device)
    except UsageProblem as error:
        raise BadFile(f"{text}: {error}") from None


def is_topology(text: str) -> bool:
    """Return whether a text, or the TOML file that it names, describes a topology and not a platform."""
    if not text.strip().endswith(".toml"):
        return "@" in text or re.match(r"\s*\d+ *(x|nodes?) ", text, re.IGNORECASE) is not None
    try:
        content = Path(text.strip()).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True  # the reader of topologies says what is wrong with the file
    return re.search(r"^format *=", content, re.MULTILINE) is None  # every file of a platform states its format


def _parse_spec(text: str) -> _TopologySpec:
    parts = [part.strip() for part in text.split(",")]
    nodes = _NODES.fullmatch(parts[-1])
    node_parts = parts[:-1] if nodes else parts
    if len(node_parts) > 1 or not all(parts) or text.count("@") > len(parts):
        raise BadValue(f"a topology must have a form such as {FORM} (got {text!r})")
    fields: dict[str, Any] = {}
    if nodes:
        fields["nodes"] = int(nodes["count"])
        fields["between"] = _link_text(nodes, text)
    node = _NODE.fullmatch(node_parts[0]) if node_parts else None
    if node:
        fields["device"] = node["device"] or None
        fields["devices_per_node"] = int(node["count"] or 1)
        fields["inside"] = _link_text(node, text)
    return _TopologySpec(**fields)


def _link_text(match: re.Match[str], text: str) -> str | None:
    link = match["link"]
    if link is not None and not link.strip():
        raise BadValue(f"topology {text!r}: @ must be followed by a link or its rate, such as @ pcie3 or @ 25 GB/s")
    return link


def _build_topology(
    spec: _TopologySpec, ppp: float | None, hardware_files: Iterable[Path], device: Device | None
) -> Topology:
    named = None if spec.device is None else find_device(spec.device, hardware_files)
    inside = between = None
    assumptions = []
    if spec.inside is not None:
        name, assumed = link_inside_nodes(_link_name(spec.inside), named or device)
        inside = _resolve_link(spec.inside, name, ppp)
        assumptions.append(assumed)
    if spec.between is not None:
        name, assumed = link_between_nodes(_link_name(spec.between), spec.devices_per_node)
        between = _resolve_link(spec.between, name, ppp)
        assumptions.append(assumed)
    return Topology(
        None if named is None else named.id,
        spec.devices_per_node,
        inside,
        spec.nodes,
        between,
        tuple(filter(None, assumptions)),
    )


def _link_name(spec: str | _LinkSpec) -> str:
    return spec if isinstance(spec, str) else spec.link


def _resolve_link(spec: str | _LinkSpec, name: str, ppp: float | None) -> LinkRate:
    """Return the rate of a link by name, with the values that a TOML file sets."""
    if isinstance(spec, str):
        return link_rate(name, ppp)
    rate = link_rate(name, spec.ppp if ppp is None else ppp)
    if spec.latency is None:
        return rate
    latency_s = parse_quantity(spec.latency, "s")
    return msgspec.structs.replace(rate, latency_s=latency_s, label=f"{rate.label}, latency as given")


_MOST_SCATTER = 10


class Platform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fitted parameters of a computer and its software.

    Attributes
    ----------
    description, software : str
        Computer and software that were measured.
    device : str
        Id of the device.
    devices_per_node, nodes : int
        Size of the largest machine measured. A node is the group of devices joined by one kind of link, for instance
        those of a CPU socket.
    inside, between : str
        Bandwidth that communication reaches in one direction, in a node and between nodes: ``"12.8 GB/s"``.
    sources : list of str
        Sources of the measurements.
    measurements : int
        Number of measurements.
    held_out : str
        Prediction error on measurements held out of the fit.
    slowdown, interference : float
        See `settings.Settings`.
    overlap : bool
        Whether communication overlaps with the backward pass.
    bucket : str
        Size of a bucket of gradients.
    compute_ratio : float
        Measured over predicted computation time of one device; in the TOML ``computing``.
    scatter : float
        Relative scatter of measurements held out of the fit.
    """

    format: Literal[1]
    description: str
    software: str
    device: str
    devices_per_node: int
    nodes: int
    inside: str
    between: str
    sources: list[str]
    measurements: int
    held_out: str
    slowdown: float = 0.0
    interference: float = 0.0
    overlap: bool = True
    bucket: str = "25 MiB"
    compute_ratio: float = msgspec.field(name="computing", default=1.0)
    scatter: float = 0.0

    def topology(self, workers: int = 0, ppp: float | None = None) -> Topology:
        """Return the platform's topology at full size, with measured link bandwidths; both arguments are ignored."""
        inside = LinkRate(f"{self.description} node", parse_quantity(self.inside, "B/s"), label="fitted")
        between = LinkRate(f"{self.description} network", parse_quantity(self.between, "B/s"), label="fitted")
        return Topology(self.device, self.devices_per_node, inside, self.nodes, between)

    def apply_to_settings(self, settings: Settings) -> Settings:
        """Return settings with the platform's values where the user set none; the fit assumed a ring all-reduce."""
        bucket_bytes = settings.bucket_bytes
        if bucket_bytes == BUCKET_BYTES:
            bucket_bytes = parse_quantity(self.bucket, "B")
        return msgspec.structs.replace(
            settings,
            collective=settings.collective or "ring",
            overlap=settings.overlap and self.overlap,
            bucket_bytes=bucket_bytes,
            slowdown=settings.slowdown or self.slowdown,
            interference=settings.interference or self.interference,
        )

    def forecast_step(self, predict_step: PredictStep, topology: Topology, settings: Settings) -> StepForecast:
        """Return the expected step, with the 90% interval of a log-normal distribution (see `Cluster`)."""
        step = predict_step(topology, settings, 1.0)
        deviation = WORST * self.scatter
        return StepForecast(step, step.time_s * math.exp(-deviation), step.time_s * math.exp(deviation))

    def describe(self) -> str:
        """Return the platform as text: ``EC2 p2.8xlarge, TensorFlow 1.1 (21 measurements; held out: ...)``."""
        return f"{self.description}, {self.software} ({self.measurements} measurements; {self.held_out})"


def platform_names() -> list[str]:
    """Return the names of the shipped platforms."""
    return sorted(path.stem for path in (shipped_folder("calibrations") / "platforms").glob("*.toml"))


def find_platform(name: str) -> Platform | Computer:
    """Return a platform or computer by name, or a platform from a TOML file; raise UnknownName without one."""
    if name.endswith(".toml"):
        return read_platform(Path(name))
    if name in platform_names():
        return read_platform(shipped_folder("calibrations") / "platforms" / f"{name}.toml")
    computer = find_computer(name)
    if computer is None:
        names = [*platform_names(), *computer_names()]
        hint = f"Valid are {', '.join(names)}, an instance of a cloud such as g5.xlarge, and the path of a TOML file."
        raise UnknownName("platform", name, names, hint)
    return computer


def read_platform(path: Path) -> Platform:
    """Read a platform's TOML file; raise BadFile with file and field if it is malformed or a value is impossible."""
    platform = read_typed(path, Platform, "platform", _MAX_BYTES)
    try:
        platform.topology()
        platform.apply_to_settings(Settings())
    except UsageProblem as error:
        raise BadFile(f"{path}: {error}") from None
    if not 1e-6 <= platform.compute_ratio <= 1e6:
        raise BadFile(f"{path}: computing must be a ratio from 1e-06 to 1e+06 (got {platform.compute_ratio:g})")
    if not 0 <= platform.scatter <= _MOST_SCATTER:
        raise BadFile(f"{path}: scatter must be from 0 to {_MOST_SCATTER} (got {platform.scatter:g})")
    return platform


class NodeLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link of a computer by name, with the source of this information."""

    link: str
    source: str
    note: str = ""


class Computer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A documented node; a machine may have any number of them.

    Attributes
    ----------
    name : str
        Name of the computer or cloud instance.
    device : str
        Id of the device.
    devices_per_node : int
        Number of devices.
    inside : NodeLink or None
        Link between the devices of a node, with the bandwidth of one device; None with one device.
    between : NodeLink or None
        Link between nodes, with the bandwidth that all devices of a node share; None if none is on record.
    sources : dict of str to str
        Sources by their short names.
    aliases : list of str
        Further names.
    price : Price or None
        Price of a node.
    notes : list of str
        Remarks for the user.
    is_rack : bool
        Whether a node is a rack, of which a job may use a part: 64 of 72 devices for a job of 256.
    is_usual : bool
        Whether this is the computer that is assumed for its device if no link is given. At most one per device is.
    devices_per_host : int or None
        Number of devices that share an operating system, in which servers are started; None for those of a node.
    """

    name: str
    device: str
    devices_per_node: int
    inside: NodeLink | None
    between: NodeLink | None
    sources: dict[str, str]
    is_rack: bool = False
    is_usual: bool = False
    aliases: list[str] = []
    price: Price | None = None
    notes: list[str] = []
    devices_per_host: int | None = None

    def topology(self, workers: int = 0, ppp: float | None = None) -> Topology:
        """Return a topology of as many nodes as the workers need, at least one.

        A job that does not fill racks uses the same number of devices of each, as few racks as possible. `ppp` is the
        share of the data sheet's bandwidth that the links reach.
        """
        per_node = self.devices_per_node
        assumptions = []
        if self.is_rack and workers > per_node and workers % per_node:
            per_node = max(devices for devices in range(1, per_node + 1) if workers % devices == 0)
            assumptions.append(f"{per_node} of the {self.devices_per_node} devices of each rack are used")
        nodes = max(-(-workers // max(per_node, 1)), 1)
        if self.inside is None and per_node > 1:
            raise BadValue(
                f"no link between the {per_node} devices of {self.name} is on record: give "
                f"`--platform '{per_node}x {self.device} @ LINK'`, with a link or its rate"
            )
        inside = None if self.inside is None else link_rate(self.inside.link, ppp)
        if self.between is None:
            if nodes > 1:
                raise BadValue(
                    f"the network of {self.name} is not on record, and {workers} devices need {nodes} of them: give "
                    f"`--gpu {self.device}` with the `--link` between them"
                )
            return Topology(self.device, per_node, inside, 1, None, tuple(assumptions))
        between, _ = link_between_nodes(self.between.link, per_node)
        return Topology(self.device, per_node, inside, nodes, link_rate(between, ppp), tuple(assumptions))

    @property
    def price_of_device(self) -> Price | None:
        """Price of one device; None if unknown."""
        if self.price is None:
            return None
        return self.price.per_device(self.name, self.devices_per_node)

    def describe(self) -> str:
        """Return name and price as text.

        Such as ``AWS p4d.24xlarge; list price 21.957642 USD/h per node, 2026-11-09, on demand, us-east-1``.
        """
        if self.price is None:
            return f"{self.name}; its price is unknown: costs use the price of its devices"
        return f"{self.name}; list price {self.price.value} per node, {self.price.date}, {self.price.note}"


def read_computer(path: Path) -> Computer:
    """Read a computer's TOML file.

    Raise BadFile with file and field if it is malformed, or names a link or a source that does not exist.
    """
    computer = read_typed(path, Computer, "computer", _MAX_BYTES)
    try:
        computer.topology()
    except PaleoError as error:
        raise BadFile(f"{path}: {error}") from None
    named_sources = [link.source for link in (computer.inside, computer.between) if link is not None]
    if computer.price:
        named_sources.append(computer.price.source)
    for source in named_sources:
        if source not in computer.sources:
            raise BadFile(f"{path}: {source!r} is missing in sources")
    return computer


def computer_names() -> list[str]:
    """Return the names of the shipped computers."""
    return sorted(path.stem for path in (shipped_folder("hardware") / "platforms").glob("*.toml"))


@cache
def find_computer(name: str) -> Computer | None:
    """Return the shipped computer or cloud instance with this name, ignoring case and hyphens; None if there is none.

    An instance without a file in ``hardware/platforms`` has the fastest link of its devices, and no network on record.
    """
    for stem in computer_names():
        computer = read_computer(shipped_folder("hardware") / "platforms" / f"{stem}.toml")
        names = (stem, computer.name, *computer.aliases)
        if any(normalize_name(name) == normalize_name(other) for other in names):
            return computer
    instance = find_instance(name)
    return None if instance is None else _computer_of_instance(instance)


@cache
def usual_computer(device_id: str) -> Computer | None:
    """Return the computer that a device is usually built into; None if none is on record."""
    for stem in computer_names():
        computer = read_computer(shipped_folder("hardware") / "platforms" / f"{stem}.toml")
        if computer.is_usual and computer.device == device_id:
            return computer
    return None


def computers_with(device_id: str, devices: int) -> list[str]:
    """Return the names of the shipped computers and instances in which a number of devices of a kind are joined."""
    folder = shipped_folder("hardware") / "platforms"
    shipped = {stem: read_computer(folder / f"{stem}.toml") for stem in computer_names()}
    names = [
        stem
        for stem, computer in shipped.items()
        if computer.device == device_id and (devices <= computer.devices_per_node or computer.between is not None)
    ]
    instances = [instance for cloud in list_clouds() for instance in cloud.instances if instance.device == device_id]
    names += [instance.name for instance in instances if instance.devices >= devices]
    return list(dict.fromkeys(names))


def _computer_of_instance(instance: Instance) -> Computer:
    device = find_device(instance.device)
    inside = None
    if instance.devices > 1 and device.links:
        fastest = max(device.links, key=lambda attached: link_rate(attached.link).bandwidth_bytes_per_s)
        inside = NodeLink(fastest.link, fastest.per_direction.source, f"the fastest link of a {device.name}")
    sources = {} if inside is None else {inside.source: device.sources[inside.source]}
    price = instance.price
    name = instance.name if price is None else f"{price.cloud} {instance.name}"
    return Computer(name, device.id, instance.devices, inside, None, sources, price=price)

"""Machines of many devices in words: a topology as a line of text or a TOML, and computers by name.

Platforms are computers whose training on several devices was measured, and what that taught. What a node of a DGX or of
a cloud's instance is made of is as its maker documents it.
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
from ..files import read_typed, shipped
from ..machines import Price, find_device
from ..machines.registry import key
from ..units import parse_quantity
from .clusters import WORST, Around, Run
from .job import BUCKET_BYTES, Settings
from .links import FORM, LinkRate, Topology, link_rate

_BYTES_AT_MOST = 2**16
_NODE = re.compile(r"(?:(?P<count>\d{1,9})\s*[xX×]\s*)?(?P<device>[^@]*?)\s*(?:@(?P<link>.*))?", re.DOTALL)
_NODES = re.compile(r"(?P<count>\d{1,9})\s+nodes?\s*(?:@(?P<link>.*))?", re.IGNORECASE | re.DOTALL)


class _LinkTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link as a table: its name or rate, and what is known better than the registry does."""

    link: str
    ppp: float | None = None
    latency: str | None = None


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topology as it is written, names not yet looked up."""

    device: str | None = None
    devices_per_node: int = 1
    inside: str | _LinkTable | None = None
    nodes: int = 1
    between: str | _LinkTable | None = None


def parse_topology(text: str, *, ppp: float | None = None, hardware_files: Iterable[Path] = ()) -> Topology:
    """Read a topology; docs/topology.md has the grammar.

    Parameters
    ----------
    text : str
        Devices of a node and the link between them, a comma, and nodes and the link between those:
        ``"2x k40m @ pcie3, 16 nodes @ infiniband"``. Either part may stand alone, the device may be left out, a link
        may be a rate: ``"8x @ nvlink3-x12, 4 nodes @ 100 Gbit/s"``. A text that ends in ``.toml`` names a file.
    ppp : float, optional
        The share of their bandwidth that all links reach, instead of their own.
    hardware_files : iterable of Path
        Further devices.

    Raises
    ------
    BadFile
        If the TOML cannot be used; the message names it.
    """
    text = text.strip()
    if not text.endswith(".toml"):
        return _built(_parsed(text), ppp, hardware_files)
    try:
        return _built(read_typed(Path(text), _Written, "topology", _BYTES_AT_MOST), ppp, hardware_files)
    except UsageProblem as error:
        raise BadFile(f"{text}: {error}") from None


def _parsed(text: str) -> _Written:
    parts = [part.strip() for part in text.split(",")]
    nodes = _NODES.fullmatch(parts[-1])
    rest = parts[:-1] if nodes else parts
    if len(rest) > 1 or not all(parts) or text.count("@") > len(parts):
        raise BadValue(f"topology {text!r} cannot be read: expected a form such as {FORM}")
    fields: dict[str, Any] = {}
    if nodes:
        fields |= {"nodes": int(nodes["count"]), "between": _link_text(nodes, text)}
    if rest and (node := _NODE.fullmatch(rest[0])):
        fields |= {"devices_per_node": int(node["count"] or 1), "inside": _link_text(node, text)}
        fields["device"] = node["device"] or None
    return _Written(**fields)


def _link_text(match: re.Match[str], text: str) -> str | None:
    link = match["link"]
    if link is not None and not link.strip():
        raise BadValue(f"topology {text!r}: after @ a link or its rate is missing, such as @ pcie3 or @ 25 GB/s")
    return link


def _built(written: _Written, ppp: float | None, hardware_files: Iterable[Path]) -> Topology:
    device = None if written.device is None else find_device(written.device, hardware_files).id
    inside, between = (_link(link, ppp) for link in (written.inside, written.between))
    return Topology(device, written.devices_per_node, inside, written.nodes, between)


def _link(written: str | _LinkTable | None, ppp: float | None) -> LinkRate | None:
    if written is None:
        return None
    if isinstance(written, str):
        return link_rate(written, ppp)
    rate = link_rate(written.link, written.ppp if ppp is None else ppp)
    if written.latency is None:
        return rate
    return msgspec.structs.replace(
        rate, latency_s=parse_quantity(written.latency, "s"), label=f"{rate.label}, latency as given"
    )


class Platform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was learnt of a computer and its software.

    Attributes
    ----------
    device : str
        Id.
    devices_per_node, nodes : int
        Of the largest machine measured; a node is what one kind of link joins, a CPU socket for instance.
    inside, between : str
        What exchanges reach in one direction, in a node and between nodes: ``"12.8 GB/s"``.
    slowdown, interference : float
        See `job.Settings`.
    overlap : bool
        Whether anything of an exchange hides behind the backward pass.
    bucket : str
        How much is exchanged at once.
    computing : float
        What one device takes, over what its calibration says.
    scatter : float
        Relative deviation of steps that its fit did not see.
    held_out : str
        How true it was on what its fit did not see.
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
    computing: float = 1.0
    scatter: float = 0.0

    def topology(self, workers: int = 0, ppp: float | None = None) -> Topology:
        """Its machine: all that was measured of it, however many are asked for, at the bandwidth that was measured."""
        inside, between = (
            LinkRate(f"{self.description} {where}", parse_quantity(rate, "B/s"), label="fitted")
            for where, rate in (("node", self.inside), ("network", self.between))
        )
        return Topology(self.device, self.devices_per_node, inside, self.nodes, between)

    def settings(self, asked: Settings) -> Settings:
        """What was asked, with what it leaves open as the platform has it; it was fitted to a ring."""
        left_open = asked.bucket_bytes == BUCKET_BYTES
        return msgspec.structs.replace(
            asked,
            collective=asked.collective or "ring",
            overlap=asked.overlap and self.overlap,
            bucket_bytes=parse_quantity(self.bucket, "B") if left_open else asked.bucket_bytes,
            slowdown=asked.slowdown or self.slowdown,
            interference=asked.interference or self.interference,
        )

    def around(self, run: Run, machine: Topology, settings: Settings) -> Around:
        """See `Cluster`: 90% of a normal logarithm."""
        step, off = run(machine, settings, 1.0), WORST * self.scatter
        return Around(step, step.time_s * math.exp(-off), step.time_s * math.exp(off))

    def describe(self) -> str:
        """``EC2 p2.8xlarge, TensorFlow 1.1 (21 measurements; held out: ...)``."""
        return f"{self.description}, {self.software} ({self.measurements} measurements; {self.held_out})"


def platform_names() -> list[str]:
    """Names of the shipped platforms that were measured."""
    return sorted(path.stem for path in (shipped("calibrations") / "platforms").glob("*.toml"))


def find_platform(name: str) -> Platform | Computer:
    """A platform that was measured, or a computer as its maker documents it, by name; or a platform in a TOML.

    Raises
    ------
    UnknownName
        If there is none of that name.
    """
    if name.endswith(".toml"):
        return read_platform(Path(name))
    if name not in platform_names():
        computer = find_computer(name)
        if computer is None:
            known = [*platform_names(), *computer_names()]
            raise UnknownName("platform", name, known, f"Known are {', '.join(known)}, and a TOML's path.")
        return computer
    return read_platform(shipped("calibrations") / "platforms" / f"{name}.toml")


def read_platform(path: Path) -> Platform:
    """Read a platform's TOML."""
    platform = read_typed(path, Platform, "platform", _BYTES_AT_MOST)
    try:
        platform.topology()
        platform.settings(Settings())
    except UsageProblem as error:
        raise BadFile(f"{path}: {error}") from None
    if not 0 < platform.computing < math.inf:
        raise BadFile(f"{path}: computing must be a ratio above 0, not {platform.computing:g}")
    return platform


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link, as one would name it, with where that was read."""

    link: str
    source: str
    note: str = ""


class Computer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node, of which there may be as many as one likes.

    Attributes
    ----------
    name, device : str
        `device` is an id.
    inside : Wire
        Between its devices; what one device has of it.
    between : Wire
        Between nodes; what a node has of it, for all of its devices together.
    price : Price or None
        Of a node.
    notes : list of str
        What somebody who uses it should know.
    """

    name: str
    device: str
    devices_per_node: int
    inside: Wire
    between: Wire
    sources: dict[str, str]
    aliases: list[str] = []
    price: Price | None = None
    notes: list[str] = []

    def topology(self, workers: int = 0, ppp: float | None = None) -> Topology:
        """As many nodes as so many devices need, one where nobody says; `ppp` is a share of the links' rates."""
        nodes = max(-(-workers // max(self.devices_per_node, 1)), 1)
        inside, between = (link_rate(wire.link, ppp) for wire in (self.inside, self.between))
        return Topology(self.device, self.devices_per_node, inside, nodes, between)

    @property
    def price_usd_per_h(self) -> float | None:
        """Of one device's hour; None where none is on record."""
        return None if self.price is None else self.price.usd_per_h / self.devices_per_node

    def describe(self) -> str:
        """``AWS p4d.24xlarge (list price 21.957642 USD/h of a node, 2026-11-09, on demand, us-east-1)``."""
        if self.price is None:
            return f"{self.name}; no price of it is on record: costs take that of its devices"
        return f"{self.name}; list price {self.price.value} of a node, {self.price.date}, {self.price.note}"


def read_computer(path: Path) -> Computer:
    """Read a computer's TOML.

    Raises
    ------
    BadFile
        If it is malformed, or names a link or a source that does not exist; the message names it and the field.
    """
    computer = read_typed(path, Computer, "computer", _BYTES_AT_MOST)
    try:
        computer.topology()
    except PaleoError as error:
        raise BadFile(f"{path}: {error}") from None
    given = [computer.inside.source, computer.between.source, *([computer.price.source] if computer.price else [])]
    for source in given:
        if source not in computer.sources:
            raise BadFile(f"{path}: sources: {source!r} is not explained")
    return computer


def computer_names() -> list[str]:
    """Names of the shipped computers."""
    return sorted(path.stem for path in (shipped("hardware") / "platforms").glob("*.toml"))


@cache
def find_computer(name: str) -> Computer | None:
    """The shipped computer of a name or alias, whatever its case and hyphens; None where none is called that."""
    for stem in computer_names():
        path = shipped("hardware") / "platforms" / f"{stem}.toml"
        computer = read_computer(path)
        if key(name) in {key(known) for known in (stem, computer.name, *computer.aliases)}:
            return computer
    return None

"""Platforms: computers whose training on several devices was measured, and what that taught; and computers by name.

What a node of a DGX or of a cloud's instance is made of is as its maker documents it.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import BadFile, PaleoError, UnknownName, UsageProblem
from ..files import read_typed, shipped
from ..hardware import Price
from ..hardware.registry import key
from ..units import parse_quantity
from .clusters import WORST, Around, Run
from .job import BUCKET_BYTES, Settings
from .links import LinkRate, link_rate
from .topology import Topology

_BYTES_AT_MOST = 2**16


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

"""Platforms: computers whose training on several devices was measured, and what that taught."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import BadFile, UnknownName, UsageProblem
from ..files import read_typed, shipped
from ..units import parse_quantity
from .clusters import WORST, Around, Run
from .collectives import LinkRate
from .computers import Computer, computer_names, find_computer
from .job import Settings
from .overlap import BUCKET_BYTES
from .topology import Topology

_BYTES_AT_MOST = 2**16


class Platform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was learnt of a computer and its software.

    Attributes
    ----------
    description, software : str
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
    sources : list of str
    measurements : int
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
        """See `Cluster`: 90 % of a normal logarithm."""
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
    BadFile
        If the file is malformed; the message names it and the field.
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

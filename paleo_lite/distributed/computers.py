"""Computers by name: what a node of a DGX or of a cloud's instance is made of, as its maker documents it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from ..errors import BadFile, PaleoError
from ..files import read_typed, shipped
from ..hardware import Price
from ..hardware.registry import key
from .links import link_rate
from .topology import Topology

_BYTES_AT_MOST = 2**16


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
    devices_per_node : int
    inside : Wire
        Between its devices; what one device has of it.
    between : Wire
        Between nodes; what a node has of it, for all of its devices together.
    sources : dict of str to str
    aliases : list of str
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
            return f"{self.name}; no price of it is on record"
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

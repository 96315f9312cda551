"""`Topology`: devices in nodes and nodes on a network, as an object, a line of text, or a TOML file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadFile, BadValue, UsageProblem
from ..files import read_typed
from ..hardware import find_device
from ..units import parse_quantity
from .links import LinkRate, link_rate

FORM = "'2x k40m @ pcie3, 16 nodes @ infiniband'"

_BYTES_AT_MOST = 2**16
_MOST = 1_000_000
_NODE = re.compile(r"(?:(?P<count>\d{1,9})\s*[xX×]\s*)?(?P<device>[^@]*?)\s*(?:@(?P<link>.*))?", re.DOTALL)
_NODES = re.compile(r"(?P<count>\d{1,9})\s+nodes?\s*(?:@(?P<link>.*))?", re.IGNORECASE | re.DOTALL)


class Topology(msgspec.Struct, frozen=True):
    """A machine of many devices.

    Attributes
    ----------
    device : str or None
        Id of the device; None where the text names none.
    inside : LinkRate or None
        Between the devices of a node; None with one device per node.
    between : LinkRate or None
        Between nodes, for all devices of a node together; None with one node.

    Raises
    ------
    BadValue
        If a count is below 1, or several of something have no link.
    """

    device: str | None
    devices_per_node: int
    inside: LinkRate | None
    nodes: int
    between: LinkRate | None

    def __post_init__(self) -> None:
        for count, what in ((self.devices_per_node, "devices per node"), (self.nodes, "nodes")):
            if not 1 <= count <= _MOST:
                raise BadValue(f"{what}: a topology has 1 to {_MOST}, not {count}")
        if self.devices_per_node > 1 and self.inside is None:
            raise BadValue(f"what links the {self.devices_per_node} devices of a node? Write, for example, {FORM}")
        if self.nodes > 1 and self.between is None:
            raise BadValue(f"what links the {self.nodes} nodes? Write, for example, {FORM}")

    @property
    def workers(self) -> int:
        """All devices."""
        return self.devices_per_node * self.nodes

    @property
    def links(self) -> dict[str, LinkRate]:
        """Those that join several of something, by where they are."""
        ways = (("inside", self.inside, self.devices_per_node), ("between", self.between, self.nodes))
        return {where: link for where, link, count in ways if link is not None and count > 1}

    def describe(self) -> str:
        """``16 nodes of 2 k40m: pcie3-x16 inside, infiniband-fdr between``."""
        device = self.device or ("device" if self.devices_per_node == 1 else "devices")
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        links = [f"{link.name} {where}" for where, link in self.links.items()]
        return f"{nodes} of {self.devices_per_node} {device}" + (f": {', '.join(links)}" if links else "")

    def with_workers(self, workers: int) -> Topology:
        """The same machine with so many devices, nodes filled first.

        Raises
        ------
        BadValue
            If they fill no whole number of nodes, or need several nodes and nothing links them.
        """
        if workers < 1:
            raise BadValue(f"workers must be whole numbers of 1 or more, not {workers}")
        full = self.devices_per_node
        if workers <= full:
            return msgspec.structs.replace(self, devices_per_node=workers, nodes=1)
        if self.between is None:
            raise BadValue(
                f"{workers} workers are more than the {full} of the one node, and no link leads out of it: "
                f"add one, as in {FORM}"
            )
        if workers % full:
            below = workers // full * full
            raise BadValue(f"{workers} workers do not fill nodes of {full}: take {below} or {below + full}")
        return msgspec.structs.replace(self, nodes=workers // full)


def flat(link: LinkRate, workers: int) -> Topology:
    """Workers that one kind of link joins: each a node of its own."""
    return Topology(None, 1, None, workers, link)


def apart(topology: Topology, stride: int, devices: int) -> Topology:
    """Some devices, every so many of them one, at their share of what links the nodes."""
    inside = max(min(devices, topology.devices_per_node // stride), 1)
    if devices == inside:
        return Topology(topology.device, devices, topology.inside, 1, None)
    between = topology.between
    assert between is not None
    share = inside / topology.devices_per_node
    shared = msgspec.structs.replace(between, bandwidth_bytes_per_s=between.bandwidth_bytes_per_s * share)
    return Topology(topology.device, inside, topology.inside, devices // inside, shared)


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

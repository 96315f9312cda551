"""Links and topologies: `LinkRate`, `Topology`, and the lookup of a link's rate by name.

A link's name is one of the registry (``hardware/links.toml``), one of a calibrated platform
(`paleo_lite.distributed.link_calibrations`), or a rate such as ``25 GB/s``.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import numpy as np

from ..errors import AmbiguousName, BadQuantity, BadValue, UnknownName
from ..machines import Device, Link, read_links
from ..text import normalize_name
from ..units import check_integer, check_positive, format_si, parse_quantity
from .link_calibrations import FITTED_FIELDS, MOST_FITTED, LinkCalibration, shipped_link_calibrations

FORM = "'2x k40m @ pcie3, 16 nodes @ infiniband'"

_MAX_DEVICES = 1_000_000

_RATE = re.compile(r"[-+.]?\d[\d.]*(e[-+]?\d+)?(\s+[^x×\s].*|[a-z]*(/s|bps))?|.*/s", re.IGNORECASE)
_PARALLEL_LINKS = re.compile(r"(\d{1,9})\s*[xX×]\s+(.*\S)")

Cost = tuple[Any, Any]
"""Number of steps of a collective, and bytes that the busiest device sends or receives."""


def link_time_s(
    wire_s: Any, steps: Any, start_s: Any, latency_s: Any, ramp_s: Any, switch_s: Any, small_share: Any
) -> Any:
    """Return the time of a collective by the formula of `LinkRate`; all arguments may be arrays.

    `wire_s` are the bytes divided by the achieved bandwidth, and `steps` the steps of the collective.
    """
    transfer_s = np.minimum(wire_s / small_share, switch_s + wire_s)
    return start_s + steps * latency_s + 2 * np.sqrt(ramp_s * wire_s) + transfer_s


_LEAST_RATE, _MOST_RATE = 1.0, 1e18
"""Limits of the bandwidth of a link in bytes per second, so that no time that follows is 0 or infinite."""


class LinkRate(msgspec.Struct, frozen=True):
    """Performance of a link for one device: the parameters of the time model of collectives.

    A collective takes ``start + steps * latency + 2 sqrt(ramp * wire) + min(wire / small_share, switch + wire)``
    seconds with ``wire = bytes / (bandwidth * ppp)``. The square root is the remaining cost of a pipeline that divides
    a message into the best number of pieces, each of which costs ``ramp`` (as in Sanders et al. 2009). The minimum
    describes a library with a second protocol for small messages, which reaches less bandwidth but saves the switch
    (NCCL's LL and LL128 in addition to Simple). Data sheets give neither.
    """

    name: str
    bandwidth_bytes_per_s: float  # of the data sheet in one direction
    latency_s: float = 0.0  # of one step of a collective
    ppp: float = 1.0  # share of the bandwidth that is reached
    label: str = "data sheet"  # origin of the other values
    start_s: float = 0.0  # cost of a call before its first step
    ramp_s: float = 0.0  # cost of a piece of a pipelined message
    switch_s: float = 0.0  # cost that the protocol for small messages saves
    small_share: float = 1.0  # share of the achieved bandwidth that the protocol for small messages reaches
    # Share of the bandwidth measured at several numbers of workers, in rising order. It is interpolated over
    # log(workers) and constant outside; `ppp` is the share at the largest number. Empty if nothing was measured.
    ppp_at: tuple[tuple[int, float], ...] = ()
    scatter: float = 0.0  # relative scatter of measurements around the model; 0 if nothing was measured
    # Kind of link by which `clusters.ClusterPrior` chooses the share of the bandwidth; empty if that share was measured
    # or given.
    kind: str = ""
    per: str = ""  # unit that the bandwidth belongs to: `lane`, `device` or `port`; empty for a given rate
    # What measured collectives lead to: the achieved bandwidth over the expected one, and the spread of the bandwidth
    # between clusters that remains, in logarithms, relative to that without them.
    moved: float = 1.0
    spread: float = 1.0
    # The same link in all-to-alls, where these were measured besides; else the values above are theirs, too.
    in_all_to_all: LinkRate | None = None

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth_bytes_per_s < math.inf:
            raise BadValue(f"link {self.name}: the bandwidth must be > 0 B/s (got {self.bandwidth_bytes_per_s:g})")
        if not _LEAST_RATE <= self.bandwidth_bytes_per_s <= _MOST_RATE:
            raise BadValue(
                f"link {self.name}: the bandwidth must be from {_LEAST_RATE:g} to {_MOST_RATE:g} B/s "
                f"(got {self.bandwidth_bytes_per_s:g})"
            )
        for seconds in (self.latency_s, self.start_s, self.ramp_s, self.switch_s):
            if not 0 <= seconds < math.inf:
                raise BadValue(f"link {self.name}: a latency must be >= 0 s (got {seconds:g})")
            if seconds > MOST_FITTED:
                raise BadValue(f"link {self.name}: a latency must be at most {MOST_FITTED} s (got {seconds:g})")
        for share in (self.ppp, self.small_share, *(share for _, share in self.ppp_at)):
            if not 0 < share < math.inf:
                raise BadValue(f"link {self.name}: the PPP must be > 0 (got {share:g})")

    @property
    def is_nvlink(self) -> bool:
        """Whether it is an NVLink on record."""
        link = read_links().link.get(self.name)
        return link is not None and link.is_nvlink

    @property
    def sums_in_switch(self) -> bool:
        """Whether it is a link on record to a switch that adds the messages of an all-reduce."""
        link = read_links().link.get(self.name)
        return link is not None and link.sums_in_switch

    def ppp_for(self, workers: Any) -> Any:
        """Return the share of the bandwidth that this number of workers reaches (scalar or array)."""
        if not self.ppp_at:
            return self.ppp
        counts, shares = np.array(self.ppp_at).T
        return np.exp(np.interp(np.log(workers), np.log(counts), np.log(shares)))

    def time_s(self, cost: Cost, workers: Any) -> Any:
        """Return the time of a collective from its steps and bytes (scalars or arrays that broadcast)."""
        steps, sent_bytes = cost
        wire_s = sent_bytes / (self.bandwidth_bytes_per_s * self.ppp_for(workers))
        small_share = self.small_share if self.switch_s else 1.0  # 1 without a second protocol
        return link_time_s(wire_s, steps, self.start_s, self.latency_s, self.ramp_s, self.switch_s, small_share)

    def with_factors(self, *, bandwidth: float = 1.0, share: float = 1.0, latency: float = 1.0) -> LinkRate:
        """Return the link, also in all-to-alls, with bandwidth, reached shares and latencies multiplied by factors."""
        exchanging = self.in_all_to_all
        if exchanging is not None:
            exchanging = exchanging.with_factors(bandwidth=bandwidth, share=share, latency=latency)
        return msgspec.structs.replace(
            self,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * bandwidth,
            ppp=self.ppp * share,
            ppp_at=tuple((workers, reached * share) for workers, reached in self.ppp_at),
            latency_s=self.latency_s * latency,
            start_s=self.start_s * latency,
            ramp_s=self.ramp_s * latency,
            switch_s=self.switch_s * latency,
            in_all_to_all=exchanging,
        )

    def describe(self) -> str:
        """Return the link as text.

        Such as ``nvlink4: 25 GB/s per lane and direction at PPP 0.7, latency 12 us (data sheet)``.
        """
        shares = sorted(share for _, share in self.ppp_at) or [self.ppp]
        ppp = f"{shares[0]:.2g}"
        if shares[-1] > shares[0]:
            ppp += f" to {shares[-1]:.2g}"
        at_ppp = "" if shares == [1] else f" at PPP {ppp}"
        latency = f", latency {format_si(self.latency_s, 's', 3)}" if self.latency_s else ""
        unit = "per direction"
        if self.per in ("lane", "device", "port"):
            unit = f"per {self.per} and direction"
        elif self.per.endswith("s"):
            unit = f"per direction over {self.per}"
        return f"{self.name}: {format_si(self.bandwidth_bytes_per_s, 'B/s')} {unit}{at_ppp}{latency} ({self.label})"


class Topology(msgspec.Struct, frozen=True):
    """Devices in nodes, and the links between them.

    Raise BadValue if a number is < 1, or several devices or nodes have no link.
    """

    device: str | None  # id of the device; None if the description names none
    devices_per_node: int
    inside: LinkRate | None  # link between the devices of a node; None with one device per node
    nodes: int
    between: LinkRate | None  # link between nodes, shared by all devices of a node; None with one node
    # What names of links were taken to mean; see `link_inside_nodes` and `link_between_nodes`.
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, name in ((self.devices_per_node, "devices per node"), (self.nodes, "nodes")):
            if not 1 <= number <= _MAX_DEVICES:
                raise BadValue(f"a topology must have 1 to {_MAX_DEVICES} {name} (got {number})")
        if self.devices_per_node > 1 and self.inside is None:
            raise BadValue(f"the {self.devices_per_node} devices of a node need a link, as in {FORM}")
        if self.nodes > 1 and self.between is None:
            raise BadValue(f"the {self.nodes} nodes need a link, as in {FORM}")

    @property
    def workers(self) -> int:
        """Number of devices in all nodes."""
        return self.devices_per_node * self.nodes

    @property
    def links(self) -> dict[str, LinkRate]:
        """Links in use, by their position: ``inside`` nodes and ``between`` nodes."""
        links = {}
        if self.inside is not None and self.devices_per_node > 1:
            links["inside"] = self.inside
        if self.between is not None and self.nodes > 1:
            links["between"] = self.between
        return links

    def describe(self) -> str:
        """Return the topology as text: ``16 nodes of 2 k40m: pcie3-x16 inside, infiniband-fdr between``."""
        device = self.device or ("device" if self.devices_per_node == 1 else "devices")
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        links = [f"{link.name} {position}" for position, link in self.links.items()]
        return f"{nodes} of {self.devices_per_node} {device}" + (f": {', '.join(links)}" if links else "")

    def with_workers(self, workers: int) -> Topology:
        """Return the topology with another number of devices; nodes are filled first.

        Raise BadValue if the workers do not fill whole nodes, or need several nodes without a link between them.
        """
        check_integer("the number of workers", workers, 1)
        per_node = self.devices_per_node
        if workers == self.workers:
            return self
        if workers <= per_node:
            return msgspec.structs.replace(self, devices_per_node=workers, nodes=1)
        if self.between is None:
            raise BadValue(
                f"the number of workers must be <= {per_node}, the devices of the single node, or the topology needs "
                f"a link between nodes, as in {FORM} (got {workers})"
            )
        if workers % per_node:
            below = workers // per_node * per_node
            raise BadValue(
                f"the number of workers must be a multiple of {per_node}, the devices per node, such as {below} or "
                f"{below + per_node} (got {workers})"
            )
        return msgspec.structs.replace(self, nodes=workers // per_node)


def link_inside_nodes(name: str, device: Device | None) -> tuple[str, str]:
    """Return the link between the devices of a node that a name stands for, and what was assumed.

    The name of one lane, such as ``nvlink5``, means all lanes of the device; ``1x nvlink5`` is a single lane. A name of
    several links, such as ``NVLink``, means the one that the device has. The assumption is empty for all other names,
    and for a device on record without such a link. Raise AmbiguousName if the device has none of several links.
    """
    if device is None or _PARALLEL_LINKS.fullmatch(name.strip()) or _RATE.fullmatch(name.strip()):
        return name, ""
    if name.strip() in shipped_link_calibrations():
        return name, ""
    try:
        identity, link = find_link(name.strip())
    except AmbiguousName:
        beginning = normalize_name(name)
        of_device = [attached.link for attached in device.links if normalize_name(attached.link).startswith(beginning)]
        if len(of_device) != 1:
            raise
        return of_device[0], f"{name.strip()} means {of_device[0]} of a {device.id}"
    if link.per != "lane":
        return name, ""
    for attached in device.links:
        if attached.link.startswith(f"{identity}-x"):
            lanes = attached.link.removeprefix(f"{identity}-x")
            return attached.link, f"{identity} means all {lanes} lanes of a {device.id}"
    return name, ""


def link_between_nodes(name: str, devices_per_node: int) -> tuple[str, str]:
    """Return the link between nodes that a name stands for, and what was assumed.

    Nodes of GPUs have a port for each device where the registry says so (``one_per_device``): ``infiniband-ndr`` is
    eight ports for a node of eight. ``1x infiniband-ndr`` is a single port.
    """
    text = name.strip()
    is_plain = not (_PARALLEL_LINKS.fullmatch(text) or _RATE.fullmatch(text) or text in shipped_link_calibrations())
    if devices_per_node == 1 or not is_plain:
        return name, ""
    identity, link = find_link(text)
    if not link.one_per_device:
        return name, ""
    return f"{devices_per_node}x {identity}", f"{identity} means one port per device, {devices_per_node} per node"


def device_link(device: Device) -> str:
    """Return the name of the fastest link of a device; raise BadValue if no link of it is on record."""
    if not device.links:
        raise BadValue(f"no link of {device.name} is on record: give `--link` or `--platform`")
    fastest = max(device.links, key=lambda attached: link_rate(attached.link).bandwidth_bytes_per_s)
    return fastest.link


NETWORK_PORT = "port"
"""Unit of the bandwidth of links that join nodes; the others join the devices of a node."""


def flat_topology(link: LinkRate, workers: int) -> Topology:
    """Return a topology of a single kind of link: one node, or nodes of one device if the link is a network's port."""
    if link.per == NETWORK_PORT or not link.per:
        return Topology(None, 1, None, workers, link)
    return Topology(None, workers, link, 1, None)


def link_rate(
    # A link of `hardware/links.toml` by id, alias or name, with the values of the shipped calibration that stands for
    # it, if any; a shipped calibration by name; a rate of one direction, such as "20 Gbit/s"; or several parallel
    # links: "8x infiniband-hdr".
    name_or_link: str | Link | LinkRate,
    ppp: float | None = None,  # share of the data sheet's bandwidth that is reached; it replaces calibrations
    operation: str = "all-reduce",  # one of `link_calibrations.OPERATIONS`; calibrations differ between them
) -> LinkRate:
    """Return the rate of a link."""
    if isinstance(name_or_link, LinkRate):
        rate = name_or_link
    elif isinstance(name_or_link, Link):
        rate = _data_sheet_rate(name_or_link.name, name_or_link)
    else:
        rate = _rate_by_name(name_or_link.strip(), operation, use_calibrations=ppp is None)
    if ppp is None:
        return rate
    label = f"{rate.label}, PPP as given"
    return LinkRate(rate.name, rate.bandwidth_bytes_per_s, rate.latency_s, ppp, label, per=rate.per)


def _rate_by_name(text: str, operation: str, use_calibrations: bool) -> LinkRate:
    parallel = _PARALLEL_LINKS.fullmatch(text)
    if parallel:
        count, link = int(parallel[1]), _rate_by_name(parallel[2], operation, use_calibrations)
        if count < 1:
            raise BadValue(f"the number of parallel links must be >= 1 (got {text!r})")
        per = f"{count} {link.per}s" if link.per else ""
        return msgspec.structs.replace(link.with_factors(bandwidth=count), name=f"{count}x {link.name}", per=per)
    if _RATE.fullmatch(text):
        return LinkRate(text, parse_rate(text), label="given", kind="network")
    calibrations = shipped_link_calibrations()
    if text in calibrations:
        identity = calibrations[text].link
        candidates = {text: calibrations[text]}
    else:
        identity = find_link(text)[0]
        candidates = {
            name: calibration
            for name, calibration in calibrations.items()
            if calibration.link == identity and calibration.stands_for_link
        }
    if use_calibrations:
        for name, calibration in candidates.items():
            rate = calibrated_link_rate(name, calibration, operation)
            if rate is not None:
                return msgspec.structs.replace(rate, per=read_links().link[identity].per)
    return _data_sheet_rate(identity, read_links().link[identity])


def parse_rate(text: str) -> float:
    """Return bytes per second from ``"25 GB/s"`` or ``"20 Gbit/s"``.

    Raise BadQuantity if the text has another form, and BadValue if the rate is not > 0.
    """
    problem = f"the rate of a link must have a unit, such as '25 GB/s' or '20 Gbit/s' (got {text!r})"
    if not text.endswith(("/s", "bps")):
        raise BadQuantity(problem)
    for unit, units_per_byte in (("B/s", 1), ("bit/s", 8)):
        try:
            rate = parse_quantity(text, unit) / units_per_byte
        except BadQuantity:
            continue
        check_positive("the rate of a link", rate, repr(text), "> 0")
        return rate
    raise BadQuantity(problem)


def find_link(name: str) -> tuple[str, Link]:
    """Return id and link for an id, an alias or a name, or for PALEO's name of a link, without ``paleo-``.

    Raise UnknownName or AmbiguousName if no link, or more than one, has this name.
    """
    links = read_links().link
    if name in links:
        return name, links[name]
    normalized = normalize_name(name)
    matches = []
    for identity, link in links.items():
        if any(normalize_name(other) == normalized for other in (identity, link.name, *link.aliases)):
            matches.append(identity)
    if not matches:
        matches = [identity for identity in links if identity == f"paleo-{name.lower()}"]
    if len(matches) == 1:
        return matches[0], links[matches[0]]
    candidates = matches or [
        identity for identity in links if normalized and normalize_name(identity).startswith(normalized)
    ]
    if candidates:
        raise AmbiguousName("link", name, candidates)
    names = [*links, *shipped_link_calibrations()]
    hint = "`paleo-lite hardware links` lists all links; a rate such as '25 GB/s' is valid, too."
    raise UnknownName("link", name, names, hint)


def _data_sheet_rate(identity: str, link: Link) -> LinkRate:
    latency_s = parse_quantity(link.latency.value, "s") if link.latency else 0.0
    return LinkRate(identity, link.bandwidth_bytes_per_s, latency_s, kind=link.kind, per=link.per)


def calibrated_link_rate(name: str, calibration: LinkCalibration, operation: str) -> LinkRate | None:
    """Return the rate of a calibrated link; None if the operation was not measured."""
    fit = calibration.operations.get(operation)
    if fit is None:
        return None
    error = f"held-out error {fit.held_out_sizes:.0%}"
    is_sum = operation == "all-reduce"
    return LinkRate(
        name=calibration.link,
        bandwidth_bytes_per_s=parse_quantity(calibration.per_direction, "B/s"),
        ppp=fit.ppp[-1],
        label=f"calibration {name}: {calibration.software}, {fit.points} measurements, {error}",
        ppp_at=tuple(zip(fit.workers, fit.ppp)),
        in_all_to_all=calibrated_link_rate(name, calibration, "all-to-all") if is_sum else None,
        **{field: getattr(fit, field) for field in FITTED_FIELDS},
    )

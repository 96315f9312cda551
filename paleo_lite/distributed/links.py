"""Links, `LinkRate`, and the machines whose devices they join, `Topology`; and how a link's name leads to its rate.

That is a name of the registry, a calibrated platform, whose `LinkCalibration` says what measured collectives taught
(``calibrations/links/``), or a rate such as ``25 GB/s``.
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..errors import AmbiguousName, BadFile, BadQuantity, BadValue, UnknownName
from ..files import read_typed, shipped
from ..machines import Link, read_links
from ..machines.registry import key
from ..units import format_si, parse_quantity

FORMAT = 1
OPERATIONS = {
    "all-reduce": (2, True),
    "reduce-scatter": (1, True),
    "all-gather": (1, True),
    "all-to-all": (1, True),
    "point-to-point": (1, False),
}
"""What is measured: how many times n - 1 steps and (n - 1) / n of the message, or a step and the whole of it."""

FORM = "'2x k40m @ pcie3, 16 nodes @ infiniband'"

_BYTES_AT_MOST = 2**16
_DEVICES_AT_MOST = 1_000_000

_RATE = re.compile(r"[-+.]?\d[\d.]*(e[-+]?\d+)?(\s+[^x×\s].*|[a-z]*(/s|bps))?|.*/s", re.IGNORECASE)
_SEVERAL = re.compile(r"(\d{1,9})\s*[xX×]\s+(.*\S)")

Cost = tuple[Any, Any]
"""Steps of a collective, and bytes that the busiest device sends or receives."""


def seconds_on(
    wire: Any, steps: Any, start_s: Any, latency_s: Any, ramp_s: Any, switch_s: Any, small_share: Any
) -> Any:
    """Seconds by the terms of `LinkRate`, whose ``wire`` is the time of the bytes alone; all may be arrays."""
    whole = np.minimum(wire / small_share, switch_s + wire)
    return start_s + steps * latency_s + 2 * np.sqrt(ramp_s * wire) + whole


class LinkRate(msgspec.Struct, frozen=True):
    """What a link does for one device: the terms of the model.

    Seconds of a collective are ``start + steps * latency + 2 sqrt(ramp * wire) + min(wire / small_share, switch +
    wire)`` with ``wire = bytes / (bandwidth * ppp)``. The root is what is left of a pipeline that cuts a message into
    the best number of pieces, each of which costs ``ramp`` (as in Sanders et al. 2009). The minimum is a library that
    has a second protocol, for small messages, which reaches less bandwidth and saves the switch (NCCL's LL and LL128
    beside Simple). A data sheet knows neither.

    Attributes
    ----------
    bandwidth_bytes_per_s : float
        Of one direction, as the data sheet has it.
    latency_s : float
        Of one step of a collective.
    ppp : float
        The share of the bandwidth that a platform reaches.
    label : str
        Where the other figures come from.
    start_s, ramp_s, switch_s : float
        What a call costs before its first step; the cost of a piece; what small messages save.
    small_share : float
        The share of the reached bandwidth that small messages have.
    ppp_at : tuple of (int, float)
        The same share where it was measured for several numbers of workers, in rising order: between them it is
        interpolated over log(workers), beyond them it stays. `ppp` is that of most workers then. Empty where nothing
        was measured.
    scatter : float
        Relative deviation of what was measured from the model; 0 where nothing was.
    kind : str
        Of what kind of link the share is taken where nobody says it: see `clusters.ClusterPrior`. Empty where it is
        measured or given.
    per : str
        Whose bandwidth it is: of a ``lane``, a ``device``, a ``port``; empty for a rate that was given.
    """

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    ppp: float = 1.0
    label: str = "data sheet"
    start_s: float = 0.0
    ramp_s: float = 0.0
    switch_s: float = 0.0
    small_share: float = 1.0
    ppp_at: tuple[tuple[int, float], ...] = ()
    scatter: float = 0.0
    kind: str = ""
    per: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth_bytes_per_s < math.inf:
            raise BadValue(f"link {self.name}: a bandwidth above 0 is needed, not {self.bandwidth_bytes_per_s:g} B/s")
        for cost in (self.latency_s, self.start_s, self.ramp_s, self.switch_s):
            if not 0 <= cost < math.inf:
                raise BadValue(f"link {self.name}: a latency must be 0 or more seconds, not {cost:g}")
        for share in (self.ppp, self.small_share, *(share for _, share in self.ppp_at)):
            if not 0 < share < math.inf:
                raise BadValue(f"link {self.name}: the PPP must be a share above 0, not {share:g}")

    def ppp_of(self, workers: Any) -> Any:
        """The share that so many workers reach (scalar or array)."""
        if not self.ppp_at:
            return self.ppp
        counts, shares = np.array(self.ppp_at).T
        return np.exp(np.interp(np.log(workers), np.log(counts), np.log(shares)))

    def time_s(self, cost: Cost, workers: Any) -> Any:
        """Seconds of steps and bytes among so many workers (scalars or arrays that broadcast)."""
        steps, sent_bytes = cost
        wire = sent_bytes / (self.bandwidth_bytes_per_s * self.ppp_of(workers))
        small_share = self.small_share if self.switch_s else 1.0  # without a second protocol nothing is small
        return seconds_on(wire, steps, self.start_s, self.latency_s, self.ramp_s, self.switch_s, small_share)

    def describe(self) -> str:
        """``nvlink4: 25 GB/s per lane and direction at PPP 0.7, latency 12 us (data sheet)``."""
        shares = sorted(share for _, share in self.ppp_at) or [self.ppp]
        share = f"{shares[0]:.2g}" + (f" to {shares[-1]:.2g}" if shares[-1] > shares[0] else "")
        at = "" if shares == [1] else f" at PPP {share}"
        latency = f", latency {format_si(self.latency_s, 's', 3)}" if self.latency_s else ""
        whose = f"per {self.per} and direction" if self.per in ("lane", "device", "port") else "per direction"
        whose += f" over {self.per}" if self.per.endswith("s") else ""
        return f"{self.name}: {format_si(self.bandwidth_bytes_per_s, 'B/s')} {whose}{at}{latency} ({self.label})"


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
            if not 1 <= count <= _DEVICES_AT_MOST:
                raise BadValue(f"{what}: a topology has 1 to {_DEVICES_AT_MOST}, not {count}")
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
        if workers == self.workers:
            return self
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


def link_rate(name_or_link: str | Link | LinkRate, ppp: float | None = None, operation: str = "all-reduce") -> LinkRate:
    """The rate of a link.

    Parameters
    ----------
    name_or_link : str, Link or LinkRate
        A link of ``hardware/links.toml`` by id, alias or name, with what a shipped calibration that stands for it has
        measured, if any; a shipped calibration by name; a rate of one direction, such as ``"20 Gbit/s"``; or several
        of these side by side: ``"8x infiniband-hdr"``.
    ppp : float, optional
        The share of the data sheet's bandwidth that is reached; calibrations are not used then.
    operation : str
        What it is used for, one of `OPERATIONS`: calibrations differ.
    """
    if isinstance(name_or_link, LinkRate):
        rate = name_or_link
    elif isinstance(name_or_link, Link):
        rate = _sheet_rate(name_or_link.name, name_or_link)
    else:
        rate = _named(name_or_link.strip(), operation, calibrated=ppp is None)
    if ppp is None:
        return rate
    label = f"{rate.label}, PPP as given"
    return LinkRate(rate.name, rate.bandwidth_bytes_per_s, rate.latency_s, ppp, label, per=rate.per)


def _named(text: str, operation: str, calibrated: bool) -> LinkRate:
    several = _SEVERAL.fullmatch(text)
    if several:
        count, one = int(several[1]), _named(several[2], operation, calibrated)
        if count < 1:
            raise BadValue(f"{text!r}: links side by side must be 1 or more")
        return msgspec.structs.replace(
            one,
            name=f"{count}x {one.name}",
            bandwidth_bytes_per_s=count * one.bandwidth_bytes_per_s,
            per=f"{count} {one.per}s" if one.per else "",
        )
    if _RATE.fullmatch(text):
        return LinkRate(text, parse_rate(text), label="given", kind="network")
    calibrations = shipped_link_calibrations()
    if text in calibrations:
        identity, named = calibrations[text].link, {text: calibrations[text]}
    else:
        identity = find_link(text)[0]
        named = {name: fit for name, fit in calibrations.items() if fit.link == identity and fit.stands_for_link}
    for name, fit in named.items():
        rate = link_rate_of(name, fit, operation) if calibrated else None
        if rate is not None:
            return msgspec.structs.replace(rate, per=read_links().link[identity].per)
    return _sheet_rate(identity, read_links().link[identity])


def parse_rate(text: str) -> float:
    """Bytes per second from ``"25 GB/s"`` or ``"20 Gbit/s"``.

    Raises
    ------
    BadQuantity
        If it is neither.
    BadValue
        If it is not above 0.
    """
    form = "expected one with its unit, such as '25 GB/s' or '20 Gbit/s'"
    if not text.endswith(("/s", "bps")):
        raise BadQuantity(f"{text!r} is not the rate of a link: {form}")
    for unit, per_byte in (("B/s", 1), ("bit/s", 8)):
        try:
            rate = parse_quantity(text, unit) / per_byte
        except BadQuantity:
            continue
        if not rate > 0:
            raise BadValue(f"a link needs a rate above 0, not {text!r}")
        return rate
    raise BadQuantity(f"{text!r} is not the rate of a link: {form}")


def find_link(name: str) -> tuple[str, Link]:
    """The id and link that a name means: an id, else an alias or name, else PALEO's name of a link without ``paleo-``.

    Raises
    ------
    UnknownName, AmbiguousName
        If no link, or more than one, is called that.
    """
    links = read_links().link
    if name in links:
        return name, links[name]
    wanted = key(name)
    matches = [
        identity
        for identity, link in links.items()
        if wanted in {key(known) for known in (identity, link.name, *link.aliases)}
    ]
    matches = matches or [identity for identity in links if identity == f"paleo-{name.lower()}"]
    if len(matches) == 1:
        return matches[0], links[matches[0]]
    candidates = matches or [identity for identity in links if wanted and key(identity).startswith(wanted)]
    if candidates:
        raise AmbiguousName("link", name, candidates)
    known = [*links, *shipped_link_calibrations()]
    raise UnknownName("link", name, known, "'paleo-lite hardware links' shows all; '25 GB/s' is a link as well.")


def _sheet_rate(identity: str, link: Link) -> LinkRate:
    latency_s = parse_quantity(link.latency.value, "s") if link.latency else 0.0
    return LinkRate(identity, link.bandwidth_bytes_per_s, latency_s, kind=link.kind, per=link.per)


class OperationFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fit of one collective operation; see `LinkRate` for the model.

    Attributes
    ----------
    workers : list of int
        Numbers of workers that were measured, in rising order.
    ppp : list of float
        The share of the link's bandwidth that each of them reaches.
    smallest_bytes, largest_bytes : int
        Of the messages measured.
    scatter : float
        Relative deviation of held-out measurements from the model: 90% lie within 2.015 times that.
    held_out_sizes : float
        Mean absolute relative error with message sizes held out.
    held_out_workers : float or None
        The same with each number of workers held out; None where only one was measured.
    """

    start_s: float
    latency_s: float
    ramp_s: float
    switch_s: float
    small_share: float
    workers: list[int]
    ppp: list[float]
    points: int
    smallest_bytes: int
    largest_bytes: int
    scatter: float
    held_out_sizes: float
    held_out_workers: float | None = None


class LinkCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One platform: devices, software, and the link that joins them.

    Attributes
    ----------
    link : str
        Id of the link in ``hardware/links.toml`` whose bandwidth the PPP refer to.
    per_direction : str
        That bandwidth when it was fitted.
    platform : str
        What was measured, in words.
    stands_for_link : bool
        Whether the link, asked for by its own name, is taken to do as well as this platform's.
    operations : dict of str to OperationFit
        By name of `OPERATIONS`.
    """

    format: int
    link: str
    per_direction: str
    platform: str
    software: str
    sources: list[str]
    operations: dict[str, OperationFit]
    inputs: list[str] = []
    stands_for_link: bool = False


_AS_FITTED = ("start_s", "latency_s", "ramp_s", "switch_s", "small_share", "scatter")


def link_rate_of(name: str, calibration: LinkCalibration, operation: str = "all-reduce") -> LinkRate | None:
    """The link as this platform uses it; None where the operation was not measured."""
    fit = calibration.operations.get(operation)
    if fit is None:
        return None
    error = f"held-out error {fit.held_out_sizes:.0%}"
    return LinkRate(
        name=calibration.link,
        bandwidth_bytes_per_s=parse_quantity(calibration.per_direction, "B/s"),
        ppp=fit.ppp[-1],
        label=f"calibration {name}: {calibration.software}, {fit.points} measurements, {error}",
        ppp_at=tuple(zip(fit.workers, fit.ppp)),
        **{name: getattr(fit, name) for name in _AS_FITTED},
    )


@cache
def shipped_link_calibrations() -> dict[str, LinkCalibration]:
    """The shipped calibrations of links by name."""
    folder = shipped("calibrations") / "links"
    return {path.stem: read_link_calibration(path) for path in sorted(folder.glob("*.toml"))}


def read_link_calibration(path: Path) -> LinkCalibration:
    """Read one.

    Raises
    ------
    BadFile
        If it is malformed, or a figure is not possible; the message names file and field.
    """
    calibration = read_typed(path, LinkCalibration, "calibration of a link", _BYTES_AT_MOST)
    if calibration.format != FORMAT:
        raise BadFile(f"{path}: format is {calibration.format}, this version of paleo-lite reads {FORMAT}")
    for name, fit in calibration.operations.items():
        if name not in OPERATIONS:
            raise BadFile(f"{path}: operations: {name!r} is not one of {', '.join(OPERATIONS)}")
        if not fit.workers or len(fit.workers) != len(fit.ppp) or sorted(set(fit.workers)) != fit.workers:
            raise BadFile(f"{path}: operations.{name}: workers must rise, each with a PPP")
        if fit.workers[0] < 2 or not all(0 < share < math.inf for share in (*fit.ppp, fit.small_share)):
            raise BadFile(f"{path}: operations.{name}: workers must be 2 or more, shares above 0")
        if not all(0 <= cost < math.inf for cost in (fit.start_s, fit.latency_s, fit.ramp_s, fit.switch_s)):
            raise BadFile(
                f"{path}: operations.{name}: start_s, latency_s, ramp_s and switch_s must be 0 or more seconds"
            )
    return calibration

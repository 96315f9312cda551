"""`ClusterPrior`: what is expected of a cluster that nobody measured, learnt from those that were."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from ..errors import BadFile
from ..files import read_typed, shipped
from .collectives import LinkRate
from .job import Settings
from .step import Step
from .topology import Topology

Run = Callable[[Topology, Settings, float], Step]
"""A step on a machine, as settings have it, computing as many times as long as the time model says."""

BEST, EXPECTED, WORST = -1.645, 0.0, 1.645
"""Normal scores of the ends of a `Range`: nine of ten lie between."""

_BYTES_AT_MOST = 2**16


class Around(NamedTuple):
    """The step to expect, and the seconds between which it lies with 90%.

    Attributes
    ----------
    best_s, worst_s : float
        If computing takes what it is said to: what exchanges and waiting leave open.
    interval : tuple of float or None
        Computing included, where that was measured together with them.
    """

    step: Step
    best_s: Any
    worst_s: Any
    interval: tuple[float, float] | None = None


class Cluster(Protocol):
    """What is known of how devices work together."""

    def around(self, run: Run, machine: Topology, settings: Settings) -> Around:
        """What to expect, and how sure that is."""
        ...


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a good, a usual and a bad cluster reach: nine of ten lie between the ends."""

    worst: float
    expected: float
    best: float

    def at(self, score: float) -> float:
        """The value at a normal score, linear on both sides of what is expected."""
        end = self.worst if score > 0 else self.best
        return self.expected + abs(score) / WORST * (end - self.expected)


class Scores(NamedTuple):
    """Where in the population a cluster stands: a normal score for each parameter, above 0 where it is worse."""

    stragglers: float
    hiding: float
    inside: float
    between: float

    @classmethod
    def all(cls, score: float) -> Scores:
        """The same for every parameter."""
        return cls(score, score, score, score)


class ClusterPrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The population of clusters.

    Attributes
    ----------
    stragglers, hiding : Range
        See `Settings`.
    bandwidth : Range
        Of links: over what is expected of them.
    share : dict of str to float
        Of the data sheet's bandwidth, by the link's kind: what collectives measured alone reach over such links.
    measurements, clusters : int
        What it was learnt from.
    sources : list of str
        Whose measurements it was learnt from.
    held_out : str
        How true it was on clusters that its fit did not see.
    """

    format: Literal[1]
    stragglers: Range
    hiding: Range
    bandwidth: Range
    share: dict[str, float]
    measurements: int
    clusters: int
    held_out: str
    sources: list[str]

    def at(self, scores: Scores, machine: Topology, settings: Settings) -> tuple[Topology, Settings]:
        """The machine and how it trains, somewhere in the population.

        What was asked for stays: a share of a link's bandwidth that was given, a slowdown, no overlap.
        """
        machine = msgspec.structs.replace(
            machine,
            inside=self._link(machine.inside, scores.inside),
            between=self._link(machine.between, scores.between),
        )
        changes = {}
        if not settings.slowdown and not settings.stragglers:
            changes["stragglers"] = max(self.stragglers.at(scores.stragglers), 0.0)
        if settings.overlap and settings.hiding == 1:
            changes["hiding"] = min(max(self.hiding.at(scores.hiding), 0.0), 1.0)
        return machine, msgspec.structs.replace(settings, **changes)

    def _link(self, link: LinkRate | None, score: float) -> LinkRate | None:
        """A link whose share nobody gave; one that was measured elsewhere is another's in this cluster."""
        if link is None or not (link.measured or link.kind in self.share):
            return link
        ends = [math.log(share) for share in (self.bandwidth.worst, self.bandwidth.expected, self.bandwidth.best)]
        factor = math.exp(Range(*ends).at(score))
        if link.measured:
            measured = tuple((workers, share * factor) for workers, share in link.ppp_at)
            return msgspec.structs.replace(link, ppp=link.ppp * factor, ppp_at=measured)
        label = f"{link.label}, share of {link.kind} links that were measured"
        return msgspec.structs.replace(link, ppp=self.share[link.kind] * factor, label=label)

    def around(self, run: Run, machine: Topology, settings: Settings) -> Around:
        """See `Cluster`: between clusters that are good, or bad, in all respects."""
        best, expected, worst = (
            run(*self.at(Scores.all(score), machine, settings), 1.0) for score in (BEST, EXPECTED, WORST)
        )
        return Around(expected, best.time_s, worst.time_s)

    def describe(self) -> str:
        """``as of 12 clusters that were measured (186 measurements; held out: ...)``."""
        return f"as of {self.clusters} clusters that were measured ({self.measurements} measurements; {self.held_out})"


@cache
def cluster_prior() -> ClusterPrior:
    """The shipped one.

    Raises
    ------
    BadFile
        If it is malformed.
    """
    path = shipped("calibrations") / "clusters.toml"
    prior = read_typed(path, ClusterPrior, "prior for clusters", _BYTES_AT_MOST)
    if not all(0 < share <= 1 for share in prior.share.values()):
        raise BadFile(f"{path}: shares must lie between 0 and 1")
    return prior


def best_case(machine: Topology, settings: Settings) -> tuple[Topology, Settings]:
    """The same machine by its data sheets: links without latency, computing undisturbed, all hidden that can be."""
    inside, between = (
        link and LinkRate(link.name, link.bandwidth_bytes_per_s) for link in (machine.inside, machine.between)
    )
    return (
        msgspec.structs.replace(machine, inside=inside, between=between),
        msgspec.structs.replace(settings, slowdown=0.0, interference=0.0, hiding=1.0, stragglers=0.0, inputs=None),
    )

"""What is expected of a cluster: `ClusterPrior` of one that nobody measured, learnt from those that were.

`Conditioned` is what is left of that population where somebody measured some steps: ``"16 workers: 5,900 samples/s"``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from ..errors import BadFile, BadQuantity, BadValue
from ..files import read_typed, shipped
from ..units import parse_quantity
from .job import Settings, Step
from .links import LinkRate, Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Run = Callable[[Topology, Settings, float], Step]
"""A step on a machine, as settings have it, computing as many times as long as the time model says."""

BEST, EXPECTED, WORST = -1.645, 0.0, 1.645
"""Normal scores of the ends of a `Range`: nine of ten lie between."""

_BYTES_AT_MOST = 2**16

FORM = "'16 workers: 5,900 samples/s' or '16 workers: 350 ms'"

SCATTER = 0.02
"""Of a measured step, and of the model beside it: what repeated runs of published measurements differ by."""

_DRAWS = 200
_MEASURED = re.compile(r"\s*([\d,]{1,12})\s*(?:workers?|devices?|gpus?)\s*:\s*(.*?)\s*", re.IGNORECASE)
_PER_S = re.compile(
    r"([\d.,]+\s*[kM]?)\s*(?:samples|images|img|sequences)\s*(?:/\s*s(?:ec)?|per s(?:econd)?)", re.IGNORECASE
)
_STEP = re.compile(r"([\d.,]+\s*(?:s|ms|us))(?:\s*(?:/|per|a)\s*step)?")


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
        links: dict[str, LinkRate] = {}
        for place in ("inside", "between"):
            link: LinkRate | None = getattr(machine, place)
            # A share that somebody gave stays; what was measured elsewhere is another's in this cluster.
            if link is None or not (link.ppp_at or link.kind in self.share):
                continue
            ends = [math.log(share) for share in (self.bandwidth.worst, self.bandwidth.expected, self.bandwidth.best)]
            factor = math.exp(Range(*ends).at(getattr(scores, place)))
            if link.ppp_at:
                shares = tuple((workers, share * factor) for workers, share in link.ppp_at)
                links[place] = msgspec.structs.replace(link, ppp=link.ppp * factor, ppp_at=shares)
            else:
                label = f"{link.label}, share of {link.kind} links that were measured"
                links[place] = msgspec.structs.replace(link, ppp=self.share[link.kind] * factor, label=label)
        changes = {}
        if not settings.slowdown and not settings.stragglers:
            changes["stragglers"] = max(self.stragglers.at(scores.stragglers), 0.0)
        if settings.overlap and settings.hiding == 1:
            changes["hiding"] = min(max(self.hiding.at(scores.hiding), 0.0), 1.0)
        return msgspec.structs.replace(machine, **links), msgspec.structs.replace(settings, **changes)

    def around(self, run: Run, machine: Topology, settings: Settings) -> Around:
        """See `Cluster`: between clusters that are good, or bad, in all respects."""
        steps = [run(*self.at(Scores(*[score] * 4), machine, settings), 1.0) for score in (BEST, EXPECTED, WORST)]
        return Around(steps[1], steps[0].time_s, steps[2].time_s)


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


class MeasuredStep(msgspec.Struct, frozen=True):
    """A measurement of the network, batch and strategy that is asked about, on so many workers.

    Attributes
    ----------
    per_s : float or None
        Samples per second of all of them; or
    step_s : float or None
        seconds of a step.
    """

    workers: int
    per_s: float | None = None
    step_s: float | None = None

    def seconds(self, batch_size: int) -> float:
        """Of a step of so many samples over all workers."""
        return self.step_s if self.step_s is not None else batch_size / (self.per_s or math.nan)


def parse_measured(text: str) -> MeasuredStep:
    """Read a measurement.

    Raises
    ------
    BadValue
        If it has another form, or a figure is not above 0.
    """
    whole = _MEASURED.fullmatch(text)
    rate, step = (form.fullmatch(whole[2]) if whole else None for form in (_PER_S, _STEP))
    try:
        workers = int(whole[1].replace(",", "")) if whole else 0
        figure = parse_quantity(rate[1].replace(",", ""), "") if rate else 0.0
        figure = parse_quantity(step[1].replace(",", ""), "s") if step else figure
    except (BadQuantity, ValueError):
        figure = 0.0
    if whole is None or not (rate or step) or workers < 1 or not 0 < figure < math.inf:
        raise BadValue(f"a measurement must read like {FORM}, with figures above 0, not {text!r}")
    return MeasuredStep(workers, per_s=figure) if rate else MeasuredStep(workers, step_s=figure)


class Conditioned(msgspec.Struct, frozen=True):
    """The population as far as it agrees with what was measured: draws from it, and how well each does.

    Attributes
    ----------
    draws : ndarray, shape (draws, 5)
        Normal scores as in `Scores`, and the logarithm of how much longer computing takes than the time model says.
    weights : ndarray, shape (draws,)
        They add up to 1.
    """

    prior: ClusterPrior
    draws: Floats
    weights: Floats

    @property
    def scores(self) -> Scores:
        """Of the middle of the draws."""
        return Scores(*(self.weights @ self.draws)[:4])

    @property
    def pace(self) -> float:
        """How many times as long computing takes as the time model says."""
        return math.exp(self.weights @ self.draws[:, 4])

    def relative(self) -> Conditioned:
        """The same, for a job that computes at that pace already."""
        draws = self.draws.copy()
        draws[:, 4] -= math.log(self.pace)
        return msgspec.structs.replace(self, draws=draws)

    def around(self, run: Run, machine: Topology, settings: Settings) -> Around:
        """See `Cluster`: the weighted mean of the draws' steps, and their weighted quantiles."""
        steps = []
        for draw in self.draws:
            steps.append(run(*self.prior.at(Scores(*draw[:4]), machine, settings), math.exp(draw[4])))
        times = np.array([step.time_s for step in steps])
        step = _mean(steps, self.weights)
        ends = [_quantiles(seconds, self.weights) for seconds in (times, times / np.exp(self.draws[:, 4]))]
        (low_s, high_s), (best_s, worst_s) = ((min(low, step.time_s), max(high, step.time_s)) for low, high in ends)
        return Around(step, best_s, worst_s, (low_s, high_s))


def _mean(steps: Sequence[Step], weights: Floats) -> Step:
    """Its parts are the means of all steps' parts: they still add up."""
    names = ("compute_s", "communication_s", "exposed_s", "update_s", "input_s")
    parts = {name: float(weights @ np.array([getattr(step, name) for step in steps])) for name in names}
    said = dict.fromkeys(name for step in steps for name in step.losses)
    losses = {name: float(weights @ np.array([step.losses.get(name, 0.0) for step in steps])) for name in said}
    return msgspec.structs.replace(steps[int(np.argmax(weights))], losses=losses, **parts)


def _quantiles(values: Floats, weights: Floats) -> tuple[float, float]:
    """Between which nine tenths of the weight lie."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - weights[order] / 2
    low, high = np.interp((0.05, 0.95), below, values[order])
    return float(low), float(high)


def condition(
    prior: ClusterPrior,
    seconds_of: Callable[[Scores, float], Sequence[float]],
    measured_s: Sequence[float],
    apart: float,
) -> Conditioned:
    """The population, given measured steps.

    Draws in three rounds, each from a normal distribution fitted to the weighted draws before and with measurements
    taken more exactly (population Monte Carlo, Cappe et al. 2004); the last weights are those of the posterior.

    Parameters
    ----------
    seconds_of : callable
        Seconds of each measured step, from scores and how many times as long computing takes.
    apart : float
        Deviation of the logarithm of what computing takes from what the time model says.
    """
    random = np.random.default_rng(0)  # the same answer to the same question
    measured = np.log(np.asarray(measured_s, dtype=np.float64))
    own = np.array([1.0, 1.0, 1.0, 1.0, max(apart, 1e-3)])
    centre, spread = np.zeros(5), np.diag(own)
    for scatter in (8 * SCATTER, 3 * SCATTER, SCATTER):
        normal = random.standard_normal((_DRAWS, 5))
        draws = centre + normal @ spread.T
        said = np.log([seconds_of(Scores(*draw[:4]), math.exp(draw[4])) for draw in draws])
        # Wide tails: a run that went wrong does not drag all with it (Student's t of 4 degrees of freedom).
        fit = -2.5 * np.log1p(((said - measured) / scatter) ** 2 / 4).sum(axis=1)
        logs = fit - ((draws / own) ** 2).sum(axis=1) / 2 + (normal**2).sum(axis=1) / 2
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        centre = weights @ draws
        covariance = (draws - centre).T @ ((draws - centre) * weights[:, None])
        spread = 1.2 * np.linalg.cholesky(covariance + np.diag((0.05 * own) ** 2))
    telling = weights > 1e-3 * weights.max()
    return Conditioned(prior, draws[telling], weights[telling] / weights[telling].sum())

"""Expected behaviour of a cluster: `ClusterPrior` for unmeasured clusters, `ConditionedPrior` after some measurements.

`ClusterPrior` was learned from published measurements of other clusters. `ConditionedPrior` restricts it to what agrees
with measured steps, such as ``"16 workers: 5,900 samples/s"``.
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
from ..files import read_shipped
from ..timing.intervals import QUANTILES, Z_90
from ..units import parse_quantity
from .job import Step
from .links import LinkRate, Topology
from .settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PredictStep = Callable[[Topology, Settings, float], Step]
"""Function from a topology, settings and a factor on the computation time to a step."""

BEST, EXPECTED, WORST = -Z_90, 0.0, Z_90
"""Normal scores of the ends and the centre of a `Range`; 90% of clusters lie between the ends."""

FORM = "'16 workers: 5,900 samples/s', '16 workers: 174,000 tokens/s' or '16 workers: 350 ms'"

MEASUREMENT_SCATTER = 0.02
"""Relative scatter of a measured step around the model: the differences between repeated runs that were published."""

_DRAWS = 200
_COMPUTE_DEGREES = 5
"""Degrees of freedom of Student's t of computation around the time model, as in `timing.intervals`. With a normal
distribution, whose tails are lighter than those of a measurement, a forecast that is far off would overrule what was
measured."""
_MEASURED = re.compile(r"\s*([\d,]{1,12})\s*(?:workers?|devices?|gpus?)\s*:\s*(.*?)\s*", re.IGNORECASE)
_NUMBER = r"[\d.,]+(?:e\d{1,2})?"
_PER_S = re.compile(
    rf"({_NUMBER}\s*[kM]?)\s*(samples|images|img|sequences|tokens|tok)\s*(?:/\s*s(?:ec)?|per s(?:econd)?)",
    re.IGNORECASE,
)
_STEP_TIME = re.compile(rf"({_NUMBER}\s*(?:s|ms|us))(?:\s*(?:/|per|a)\s*step)?")


class StepForecast(NamedTuple):
    """Expected step time with its 90% interval."""

    step: Step  # expected step
    # Interval due to communication and stragglers, with the computation time taken as exact.
    best_s: Any
    worst_s: Any
    # Interval including the uncertainty of computation, where both were measured together.
    interval: tuple[float, float] | None = None


class Cluster(Protocol):
    """Knowledge of how the devices of a cluster work together."""

    def forecast_step(self, predict_step: PredictStep, topology: Topology, settings: Settings) -> StepForecast:
        """Return the expected step and its interval."""
        ...


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distribution of a parameter over clusters: 90% of them lie between `worst` and `best`."""

    worst: float
    expected: float
    best: float

    def value_at(self, score: float) -> float:
        """Return the value at a normal score, linear on both sides of the expected value."""
        end = self.worst if score > 0 else self.best
        return self.expected + abs(score) / WORST * (end - self.expected)


class ClusterScores(NamedTuple):
    """Position of a cluster in the population: a normal score per parameter, > 0 where it is worse than expected."""

    straggler_penalty: float
    overlap_efficiency: float
    inside: float
    between: float

    @classmethod
    def uniform(cls, score: float) -> ClusterScores:
        """Return the scores of a cluster that is equally good or bad in all parameters."""
        return cls(score, score, score, score)


class ClusterPrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Population of clusters."""

    format: Literal[1]
    # See `Settings`; in the TOML ``stragglers`` and ``hiding``.
    straggler_penalty: Range = msgspec.field(name="stragglers")
    overlap_efficiency: Range = msgspec.field(name="hiding")
    bandwidth: Range  # achieved bandwidth of links, relative to the expected one
    # Expected share of the data sheet's bandwidth by kind of link, from benchmarks of collectives; in the TOML
    # ``share``.
    bandwidth_share: dict[str, float] = msgspec.field(name="share")
    # Number of measurements and clusters that the population was fitted to.
    measurements: int
    clusters: int
    held_out: str  # prediction error with clusters held out of the fit
    sources: list[str]  # sources of the measurements

    @property
    def bandwidth_deviation(self) -> float:
        """Standard deviation of the logarithm of the bandwidth of links between clusters."""
        return math.log(self.bandwidth.best / self.bandwidth.worst) / (WORST - BEST)

    def cluster_at(self, scores: ClusterScores, topology: Topology, settings: Settings) -> tuple[Topology, Settings]:
        """Return topology and settings of the cluster with these scores.

        Explicit settings of the user are not changed: the share of a link's bandwidth, a slowdown, no overlap.
        """
        inside = self._link_at(scores.inside, topology.inside)
        between = self._link_at(scores.between, topology.between)
        changes = {}
        if not settings.slowdown and not settings.straggler_penalty:
            changes["straggler_penalty"] = max(self.straggler_penalty.value_at(scores.straggler_penalty), 0.0)
        if settings.overlap and settings.overlap_efficiency == 1:
            efficiency = self.overlap_efficiency.value_at(scores.overlap_efficiency)
            changes["overlap_efficiency"] = min(max(efficiency, 0.0), 1.0)
        return (
            msgspec.structs.replace(topology, inside=inside, between=between),
            msgspec.structs.replace(settings, **changes),
        )

    def _link_at(self, score: float, link: LinkRate | None) -> LinkRate | None:
        """Return the link with the bandwidth at a normal score, on a logarithmic scale.

        A link measured elsewhere varies, too. A link with a share set by the user has no kind and stays unchanged.
        """
        if link is None or not (link.ppp_at or link.kind in self.bandwidth_share):
            return link
        logarithms = Range(
            math.log(self.bandwidth.worst), math.log(self.bandwidth.expected), math.log(self.bandwidth.best)
        )
        expected = logarithms.expected
        factor = math.exp(expected + link.spread * (logarithms.value_at(score) - expected))
        if link.ppp_at:
            return link.with_factors(share=factor)
        label = f"{link.label}, bandwidth share of measured {link.kind} links"
        return msgspec.structs.replace(link, ppp=self.bandwidth_share[link.kind] * factor * link.moved, label=label)

    def forecast_step(self, predict_step: PredictStep, topology: Topology, settings: Settings) -> StepForecast:
        """Return the expected step, and the steps of clusters that are good, or bad, in all parameters."""
        best, expected, worst = (
            predict_step(*self.cluster_at(ClusterScores.uniform(score), topology, settings), 1.0)
            for score in (BEST, EXPECTED, WORST)
        )
        return StepForecast(expected, best.time_s, worst.time_s)


@cache
def cluster_prior() -> ClusterPrior:
    """Return the shipped prior, ``calibrations/clusters.toml``; raise BadFile if it is malformed."""
    prior = read_shipped("clusters.toml", ClusterPrior)
    for kind, share in prior.bandwidth_share.items():
        if not 0 < share <= 1:
            raise BadFile(f"clusters.toml: share.{kind} must be > 0 and <= 1 (got {share:g})")
    return prior


def data_sheet_case(topology: Topology, settings: Settings) -> tuple[Topology, Settings]:
    """Return the best case by data sheets: links without latency, no slowdown of computation, complete overlap."""
    inside, between = topology.inside, topology.between
    if inside is not None:
        inside = LinkRate(inside.name, inside.bandwidth_bytes_per_s)
    if between is not None:
        between = LinkRate(between.name, between.bandwidth_bytes_per_s)
    best_settings = msgspec.structs.replace(
        settings, slowdown=0.0, interference=0.0, overlap_efficiency=1.0, straggler_penalty=0.0, inputs=None
    )
    return msgspec.structs.replace(topology, inside=inside, between=between), best_settings


class MeasuredStep(msgspec.Struct, frozen=True):
    """Measurement of the predicted network, batch and strategy; one of `per_s`, `tokens_per_s` and `step_s` is set."""

    workers: int  # number of workers
    per_s: float | None = None  # samples per second of all workers
    step_s: float | None = None  # step time
    tokens_per_s: float | None = None  # tokens per second of all workers

    def step_time_s(self, batch_size: int, sample_tokens: int | None = None) -> float:
        """Return the measured step time for a global batch size of samples with this many tokens.

        Raise BadValue if tokens were measured of a network that reads none.
        """
        if self.step_s is not None:
            return self.step_s
        if self.tokens_per_s is None:
            return batch_size / (self.per_s or math.nan)
        if not sample_tokens:
            raise BadValue(
                "`--measured` of a network that reads no tokens must be in samples/s, such as "
                f"'{self.workers} workers: 5,900 samples/s' (got {self.tokens_per_s:,g} tokens/s)"
            )
        return batch_size * sample_tokens / self.tokens_per_s


def parse_measured(text: str) -> MeasuredStep:
    """Parse a measurement in one of the forms of `FORM`.

    Raise BadValue if the text has another form, or a number is not > 0.
    """
    problem = BadValue(f"a measurement must have the form {FORM}, with numbers > 0 (got {text!r})")
    match = _MEASURED.fullmatch(text)
    if match is None:
        raise problem
    rate, step = _PER_S.fullmatch(match[2]), _STEP_TIME.fullmatch(match[2])
    try:
        workers = int(match[1].replace(",", ""))
        if rate:
            value = parse_quantity(rate[1].replace(",", ""), "")
        elif step:
            value = parse_quantity(step[1].replace(",", ""), "s")
        else:
            raise problem
    except (BadQuantity, ValueError):
        raise problem from None
    if workers < 1 or not 0 < value < math.inf:
        raise problem
    if rate is None:
        return MeasuredStep(workers, step_s=value)
    is_of_tokens = rate[2].lower().startswith("tok")
    return MeasuredStep(workers, tokens_per_s=value) if is_of_tokens else MeasuredStep(workers, per_s=value)


class ConditionedPrior(msgspec.Struct, frozen=True):
    """Population of clusters conditioned on measured steps: weighted draws."""

    prior: ClusterPrior  # population before the measurements
    # Normal scores as in `ClusterScores`, and the logarithm of the factor on the computation time, shape (draws, 5)
    draws: Floats
    weights: Floats  # weights of the draws; they sum to 1, shape (draws,)

    @property
    def mean_scores(self) -> ClusterScores:
        """Weighted mean of the draws' scores."""
        return ClusterScores(*(self.weights @ self.draws)[:4])

    @property
    def compute_scale(self) -> float:
        """Mean factor on the computation time, compared with the time model."""
        return math.exp(self.weights @ self.draws[:, 4])

    def relative_to_compute_scale(self) -> ConditionedPrior:
        """Return the same population for a job that already applies `compute_scale`."""
        draws = self.draws.copy()
        draws[:, 4] -= math.log(self.compute_scale)
        return msgspec.structs.replace(self, draws=draws)

    def forecast_step(self, predict_step: PredictStep, topology: Topology, settings: Settings) -> StepForecast:
        """Return the weighted mean of the draws' steps, and their weighted quantiles."""
        steps = []
        for draw in self.draws:
            drawn_topology, drawn_settings = self.prior.cluster_at(ClusterScores(*draw[:4]), topology, settings)
            steps.append(predict_step(drawn_topology, drawn_settings, math.exp(draw[4])))
        times = np.array([step.time_s for step in steps])
        mean_step = _mean_step(steps, self.weights)
        low_s, high_s = _quantiles(times, self.weights)
        best_s, worst_s = _quantiles(times / np.exp(self.draws[:, 4]), self.weights)
        return StepForecast(
            step=mean_step,
            best_s=min(best_s, mean_step.time_s),
            worst_s=max(worst_s, mean_step.time_s),
            interval=(min(low_s, mean_step.time_s), max(high_s, mean_step.time_s)),
        )


def _mean_step(steps: Sequence[Step], weights: Floats) -> Step:
    """Return the step with the weighted mean of every time, so that the parts still add up to the step time."""

    def mean(values: Sequence[Any]) -> float:
        return float(weights @ np.array(values))

    parts = {}
    for name in ("compute_s", "communication_s", "exposed_s", "update_s", "input_s"):
        parts[name] = mean([getattr(step, name) for step in steps])
    overheads_s = {}
    for cause in dict.fromkeys(cause for step in steps for cause in step.overheads_s):
        overheads_s[cause] = mean([step.overheads_s.get(cause, 0.0) for step in steps])
    most_likely = steps[int(np.argmax(weights))]
    return msgspec.structs.replace(most_likely, overheads_s=overheads_s, **parts)


def _quantiles(values: Floats, weights: Floats) -> tuple[float, float]:
    """Return the weighted 5% and 95% quantiles."""
    order = np.argsort(values)
    positions = np.cumsum(weights[order]) - weights[order] / 2
    low, high = np.interp((0.05, 0.95), positions, values[order])
    return float(low), float(high)


class _Normal(NamedTuple):
    """Normal distribution of draws."""

    centre: Floats
    spread: Floats  # lower triangle of Cholesky's decomposition of the covariance

    def draw(self, normal: Floats) -> Floats:
        """Return draws from draws of the standard normal distribution."""
        draws: Floats = self.centre + normal @ self.spread.T
        return draws

    def log_density(self, draws: Floats) -> Floats:
        """Return the logarithm of the density of draws, up to a constant that all normal distributions share."""
        normal = np.linalg.solve(self.spread, (draws - self.centre).T)
        density: Floats = -(normal**2).sum(axis=0) / 2 - np.log(np.diag(self.spread)).sum()
        return density


def condition_on_measurements(
    prior: ClusterPrior,  # population before the measurements
    # From scores and a factor on the computation time to the time of each measured step.
    predict_times: Callable[[ClusterScores, float], Sequence[float]],
    measured_s: Sequence[float],
    compute_deviation: float,  # standard deviation of the logarithm of computation time around the time model
) -> ConditionedPrior:
    """Condition the population of clusters on measured steps.

    Population Monte Carlo (Cappe et al. 2004) in four rounds. Each draws from a normal distribution fitted to the
    weighted draws of the round before, with a smaller scatter of the measurements; the last weights are those of the
    posterior. The first round draws one half from the population, and the other half around computation that takes
    half as much more, or less, as would explain the measurements alone.
    """
    random = np.random.default_rng(0)  # the same question always gets the same answer
    log_measured = np.log(np.asarray(measured_s, dtype=np.float64))
    compute_deviation = max(compute_deviation, 1e-3)
    prior_deviation = np.array([1.0, 1.0, 1.0, 1.0, compute_deviation])
    log_expected = np.log(predict_times(ClusterScores.uniform(EXPECTED), 1.0))
    half_distance = float(np.mean(log_measured - log_expected)) / 2
    shifted_deviation = np.array([1.0, 1.0, 1.0, 1.0, math.hypot(compute_deviation, half_distance)])
    proposals = [
        _Normal(np.zeros(5), np.diag(prior_deviation)),
        _Normal(np.array([0.0, 0.0, 0.0, 0.0, half_distance]), np.diag(shifted_deviation)),
    ]
    for scatter in (8 * MEASUREMENT_SCATTER, 3 * MEASUREMENT_SCATTER, MEASUREMENT_SCATTER, MEASUREMENT_SCATTER):
        normal = random.standard_normal((len(proposals), _DRAWS // len(proposals), 5))
        draws = np.concatenate([proposal.draw(part) for proposal, part in zip(proposals, normal)])
        log_predicted = np.log([predict_times(ClusterScores(*draw[:4]), math.exp(draw[4])) for draw in draws])
        # Student's t with 4 degrees of freedom: with its heavy tails a failed run does not dominate the others.
        log_likelihood = -2.5 * np.log1p(((log_predicted - log_measured) / scatter) ** 2 / 4).sum(axis=1)
        log_prior = -(draws[:, :4] ** 2).sum(axis=1) / 2 + _log_student_t(draws[:, 4], compute_deviation)
        log_proposal = np.logaddexp.reduce([proposal.log_density(draws) for proposal in proposals])
        log_weights = log_likelihood + log_prior - log_proposal
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        centre = weights @ draws
        covariance = (draws - centre).T @ ((draws - centre) * weights[:, None])
        spread = 1.2 * np.linalg.cholesky(covariance + np.diag((0.05 * prior_deviation) ** 2))
        proposals = [_Normal(centre, spread)]
    is_relevant = weights > 1e-3 * weights.max()
    return ConditionedPrior(prior, draws[is_relevant], weights[is_relevant] / weights[is_relevant].sum())


def _log_student_t(log_scale: Floats, deviation: float) -> Floats:
    """Return the logarithm of the density of Student's t, up to a constant.

    Its 90% interval is that of a normal distribution with this deviation.
    """
    scaled = log_scale / (deviation * Z_90 / QUANTILES[0.9])
    density: Floats = -(_COMPUTE_DEGREES + 1) / 2 * np.log1p(scaled**2 / _COMPUTE_DEGREES)
    return density

"""What measured figures say about the causes of a time: one Bayesian update of the shipped prior.

A forecast is a sum of seconds by cause (kernels of some class, waits of the host, prompts, exchanges, ...). The truth
is taken to be the same sum with a factor for each cause::

    ln(measured / forecast) = sensitivity * (ln(sum over causes of share * exp(theta)) + noise)

The sensitivity is 1 unless more time means more work: under open loads slower iterations gather more users (Little
1961), which slow them further.
The logarithm of the factor of a cause, theta, is a sum of effects with mean 0, each common to all rows that have some
traits in common: the same source, engine, device, network. Their variances are shipped (`evidence.toml`): those at
which published groups of measurements are most likely (``validation/evidence``). What is common moves wherever it is
common, and a measurement on one device informs another one through it. Conditioning is that of a Gaussian process,
linear in theta and repeated at the new shares (Gauss and Newton); rows far from the others count less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..errors import BadValue
from ..files import read_shipped
from ..timing.intervals import Z_90

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FILE = "evidence.toml"
"""File of the prior, in the folder of calibrations."""

OUTLYING = 3.0
"""Number of deviations from what the other rows say, from which on a row is an outlier."""

LINEARISATIONS, REWEIGHTINGS = 4, 6

STEP = 1e-3
"""Step of the numerical derivatives of the logarithm of a time with respect to those of the factors."""

KINDS = {
    "server": "servers",
    "local": "one's own machines",
    "train": "steps of training",
    "picture": "pictures",
    "link": "collectives",
    "power": "power",
}
"""Kinds of questions that evidence calibrates, and what they are of."""

COMMANDS = {
    "server": ("`serve`", "`rl`", "`predict --phase decode`"),
    "local": ("`local`", "`serve --engine llama.cpp`"),
    "train": ("`train`", "`rl`"),
    "picture": ("`diffusion`",),
    "link": ("`train --workers`", "`rl`", "`serve --tensor`"),
    "power": ("any command that prints watts",),
}
"""Commands that take the evidence of each kind."""

SHOWN_TRAITS = {"link": ("link", "device"), "power": ("device", "network")}
"""Traits that say what a situation is, by kind."""

USUAL_TRAITS = ("engine", "device", "format", "network")
"""Those of other kinds."""

MOST_ROWS = 1500
"""Rows that are conditioned on at once: the work grows with the third power."""


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A measured figure beside its forecast."""

    kind: str  # kind of question, one of the prior's
    figure: str  # name of the figure, as `tpot_s`
    situation: str  # what identifies the row, in words
    traits: dict[str, str]  # source, engine, device, format, network: what rows may have in common
    measured: float  # seconds
    forecast: float  # seconds without any evidence
    shares: dict[str, float]  # of the forecast by cause; they add up to 1
    # The 90% interval of the forecast as the command states it; None where it states none.
    interval: tuple[float, float] | None = None
    sensitivity: float = 1.0  # by how much the logarithm of the forecast moves with that of all causes together

    @property
    def log_ratio(self) -> float:
        """Logarithm of measured over forecast."""
        return float(np.log(self.measured / self.forecast))


class KindPrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prior of the cause factors of one kind of question."""

    levels: dict[str, list[str]]  # traits that rows share at each level, the widest first
    # Standard deviation of the logarithm of the factor of a cause that is common at each level.
    causes: dict[str, dict[str, float]]
    noise: dict[str, float]  # standard deviation of the logarithm of a row by itself, by figure
    groups: int = 0  # published groups that the deviations were fitted to
    rows: int = 0


class EvidencePrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known before any evidence, by kind of question."""

    kinds: dict[str, KindPrior]
    sources: list[str] = []


@cache
def evidence_prior() -> EvidencePrior:
    """Return the shipped prior."""
    return read_shipped(FILE, EvidencePrior)


def remaining_width(after: Any, before: Any, ends: tuple[Any, Any]) -> Any:
    """Return the width of the interval of a command with evidence, over that without it.

    `after` and `before` are the variances of the logarithm by the posterior and by the prior, and the ends of the
    command's interval are logarithms. It narrows as the prior does, but not below the interval of the posterior, since
    the prior of servers is wider than their intervals: narrowed as much as it, 82 to 88% of published latencies were
    inside 90% intervals, and 88 to 95% are. Evidence that says nothing narrows nothing.
    """
    low, high = ends
    return np.minimum(1.0, np.maximum(np.sqrt(after / before), 2 * Z_90 * np.sqrt(after) / (high - low)))


def shares_of(amounts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shares of causes in the sum of their amounts: of seconds, or of elasticities."""
    total = sum(amounts.values())
    return {cause: amount / total for cause, amount in amounts.items()}


def elasticities(causes: Iterable[str], log_time: Callable[[dict[str, float]], float]) -> dict[str, float]:
    """Return by how much the logarithm of a time moves with that of the factor of each cause; together 1.

    `log_time` takes the logarithms of the factors of some causes.
    """
    unmoved = log_time({})
    slopes = {cause: max((log_time({cause: STEP}) - unmoved) / STEP, 0.0) for cause in causes}
    return shares_of(slopes)


class Factors(NamedTuple):
    """Logarithms of the factors of all causes in one situation, before and after the evidence."""

    causes: tuple[str, ...]
    mean: Any  # after the evidence; before it they are 0
    covariance: Any
    prior_covariance: Any

    def of(self, cause: str) -> float:
        """Return the factor of a cause."""
        return float(np.exp(self.mean[self.causes.index(cause)]))

    def log_time(
        self, shares: Mapping[str, float], noise: float, sensitivity: float = 1.0
    ) -> tuple[float, float, float]:
        """Return the logarithm of a time over its forecast, and its variance after and before the evidence."""
        vector = np.array([shares.get(cause, 0.0) for cause in self.causes])
        factors = vector * np.exp(self.mean)
        total = factors.sum()
        moved = factors / total
        after = float(moved @ self.covariance @ moved) + noise**2
        before = float(vector @ self.prior_covariance @ vector) + noise**2
        return sensitivity * float(np.log(total)), sensitivity**2 * after, sensitivity**2 * before


class Posterior(msgspec.Struct, frozen=True, dict=True, eq=False):
    """Cause factors of one kind of question, conditioned on measured rows."""

    rows: tuple[Observation, ...]
    prior: KindPrior

    @cached_property
    def causes(self) -> tuple[str, ...]:
        """Names of the causes."""
        return tuple(self.prior.causes)

    @cached_property
    def _shares(self) -> Floats:
        return np.array([[row.shares.get(cause, 0.0) for cause in self.causes] for row in self.rows])

    @cached_property
    def _ratios(self) -> Floats:
        """Logarithms of measured over forecast, of a load that does not grow with its times."""
        return np.array([row.log_ratio / row.sensitivity for row in self.rows])

    @cached_property
    def _row_covariance(self) -> Floats:
        """Covariance of the factor of each cause between rows, shape (causes, rows, rows)."""
        return self._covariance_towards([row.traits for row in self.rows])

    def _covariance_towards(self, traits: Sequence[Mapping[str, str]]) -> Floats:
        """Return the covariance of the factor of each cause between situations and rows."""
        common = {level: self._shared_traits(names, traits) for level, names in self.prior.levels.items()}
        shape = (len(traits), len(self.rows))
        return np.array([
            sum((deviation**2 * common[level] for level, deviation in levels.items()), start=np.zeros(shape))
            for levels in self.prior.causes.values()
        ])  # fmt: skip

    def _shared_traits(self, names: Sequence[str], traits: Sequence[Mapping[str, str]]) -> Floats:
        """Return 1 where a situation and a row have the traits of a level in common."""
        numbers: dict[tuple[str, ...], int] = {}

        def number(situation: Mapping[str, str]) -> int:
            return numbers.setdefault(tuple(situation.get(name, "") for name in names), len(numbers))

        situation_ids = np.array([number(situation) for situation in traits])
        row_ids = np.array([number(row.traits) for row in self.rows])
        is_shared: Floats = (situation_ids[:, np.newaxis] == row_ids[np.newaxis, :]).astype(np.float64)
        return is_shared

    @cached_property
    def _conditioned(self) -> _Conditioned:
        """The rows after reweighting: those far from what the others say count less."""
        noise = np.array([self.prior.noise[row.figure] ** 2 for row in self.rows])
        weights = np.ones(len(self.rows))
        for _ in range(REWEIGHTINGS):
            conditioned = self._linearise(noise / weights)
            # How far a row is from the others, relative to its own noise before it counts less.
            distances = conditioned.left_out_errors(noise / weights, noise)
            smaller = np.minimum(1.0, (OUTLYING / np.maximum(np.abs(distances), 1e-9)) ** 2)
            if np.allclose(smaller, weights, rtol=0.05):
                break
            weights = smaller
        return conditioned._replace(distances=distances, noise=noise / weights)

    def _linearise(self, noise: Floats) -> _Conditioned:
        """Return the rows conditioned at the shares that the factors lead to."""
        logs = np.zeros_like(self._shares)
        for _ in range(LINEARISATIONS):
            scaled = self._shares * np.exp(np.clip(logs, -5.0, 5.0))
            totals = scaled.sum(axis=1)
            slopes = scaled / totals[:, np.newaxis]
            targets = self._ratios - np.log(totals) + (slopes * logs).sum(axis=1)
            covariance = np.einsum("ic,cij,jc->ij", slopes, self._row_covariance, slopes, optimize=True) + np.diag(
                noise
            )
            inverse = np.linalg.inv(covariance)
            weighted = inverse @ targets
            logs = np.einsum("cij,jc,j->ic", self._row_covariance, slopes, weighted, optimize=True)
        return _Conditioned(slopes, targets, inverse, weighted)

    def factors(self, traits: Mapping[str, str]) -> Factors:
        """Return the logarithms of the factors in a situation with some traits."""
        prior = self._prior_covariance
        if not self.rows:
            return Factors(self.causes, np.zeros(len(self.causes)), prior, prior)
        return self._towards_situation(traits).without(self._conditioned, [])

    @property
    def _prior_covariance(self) -> Floats:
        variances = [sum(deviation**2 for deviation in levels.values()) for levels in self.prior.causes.values()]
        return np.diag(np.array(variances, dtype=np.float64))

    def _towards_situation(self, traits: Mapping[str, str]) -> _Situation:
        """Return what the rows say of a situation with some traits."""
        cross = self._covariance_towards([traits])[:, 0, :] * self._conditioned.slopes.T
        return _Situation(self.causes, self._prior_covariance, cross, cross @ self._conditioned.inverse)

    @property
    def distances(self) -> Floats:
        """How far each row is above what the others say, in deviations; negative below it."""
        distances: Floats = self._conditioned.distances
        return distances

    @property
    def outliers(self) -> list[tuple[Observation, float]]:
        """Rows that are far from what the others say, and by how many deviations above it, the farthest first."""
        if len(self.runs()) < 2:
            return []  # there are no others
        pairs = zip(self.rows, self.distances)
        far = [(row, float(distance)) for row, distance in pairs if abs(distance) > OUTLYING]
        return sorted(far, key=lambda pair: -abs(pair[1]))

    def left_out(self) -> list[LeftOut]:
        """Return each row as the others forecast it, without the other figures of its own run."""
        situations: dict[Any, _Situation] = {}
        result = []
        for run in self.runs():
            traits = self.rows[run[0]].traits
            key = tuple(traits.items())
            if key not in situations:
                situations[key] = self._towards_situation(traits)
            factors = situations[key].without(self._conditioned, run)
            for row in (self.rows[index] for index in run):
                noise = self.prior.noise[row.figure]
                total, after, before = factors.log_time(row.shares, noise, row.sensitivity)
                result.append(LeftOut(row, row.log_ratio - total, math.sqrt(after), math.sqrt(before)))
        return result

    def runs(self) -> list[list[int]]:
        """Return the numbers of the rows of each run: rows one after another of one situation are its figures."""
        runs: list[list[int]] = []
        for index, row in enumerate(self.rows):
            last = [self.rows[other] for other in runs[-1]] if runs else []
            is_same = bool(last) and (last[0].situation, last[0].traits) == (row.situation, row.traits)
            if is_same and row.figure not in [other.figure for other in last]:
                runs[-1].append(index)
            else:
                runs.append([index])
        return runs

    def surprise(self) -> float:
        """Return by how many deviations the rows as a whole are farther from their forecasts than the prior allows.

        The deviation is that of their mean, weighted by what the prior says of it; single rows far from the others
        count less.
        """
        slopes = self._shares
        covariance = np.einsum("ic,cij,jc->ij", slopes, self._row_covariance, slopes, optimize=True)
        covariance += np.diag(self._conditioned.noise)
        weights = np.linalg.solve(covariance, np.ones(len(self.rows)))
        return float(weights @ self._ratios / np.sqrt(weights.sum()))


class AssumedFactors(Posterior, frozen=True, dict=True, eq=False):
    """Cause factors that are assumed instead of learned: what the time would be with them."""

    logs: dict[str, float] = {}  # logarithms of the factors of some causes; 0 of the others

    def factors(self, traits: Mapping[str, str]) -> Factors:
        """Return the assumed factors, as uncertain as before any evidence."""
        mean = np.array([self.logs.get(cause, 0.0) for cause in self.causes])
        return Factors(self.causes, mean, self._prior_covariance, self._prior_covariance)


class LeftOut(NamedTuple):
    """A row as the others forecast it."""

    row: Observation
    error: float  # logarithm of measured over forecast
    deviation: float
    deviation_before: float  # without any evidence

    @property
    def ends_before(self) -> tuple[float, float]:
        """Logarithms of the ends of the 90% interval relative to the forecast, as the command states them.

        Where it states none, they are those of the prior.
        """
        if self.row.interval is None:
            return -Z_90 * self.deviation_before, Z_90 * self.deviation_before
        low, high = (math.log(end / self.row.forecast) for end in self.row.interval)
        return low, high

    @property
    def ends(self) -> tuple[float, float]:
        """Logarithms of the ends with the evidence, as commands narrow their intervals."""
        low, high = self.ends_before
        if low == high:
            return low, high
        width = float(remaining_width(self.deviation**2, self.deviation_before**2, (low, high)))
        return width * low, width * high


class _Situation(NamedTuple):
    """What rows say of the factors in one situation."""

    causes: tuple[str, ...]
    prior: Any
    cross: Any  # covariance of the factors with the rows
    explained: Any  # the same times the inverse of the covariance of the rows

    def without(self, conditioned: _Conditioned, run: list[int]) -> Factors:
        """Return the factors that the rows lead to, without some of them.

        The inverse of the covariance of the other rows is that of all, less the part of those that are left out.
        """
        mean, covariance = self.cross @ conditioned.weighted, self.prior - self.explained @ self.cross.T
        if run:
            explained, block = self.explained[:, run], np.linalg.inv(conditioned.inverse[np.ix_(run, run)])
            mean = mean - explained @ block @ conditioned.weighted[run]
            covariance = covariance + explained @ block @ explained.T
        return Factors(self.causes, mean, covariance, self.prior)


class _Conditioned(NamedTuple):
    """Rows at the shares that their factors lead to."""

    slopes: Any
    targets: Any
    inverse: Any  # of the covariance of the rows
    weighted: Any  # inverse times targets
    distances: Any = None  # from what the others say, in deviations
    noise: Any = None  # variances of the rows by themselves, larger of those far from the others

    def left_out_errors(self, noise: Any, own_noise: Any) -> Any:
        """Return the distances of rows from what the others say, in deviations with their own noise."""
        diagonal = np.diag(self.inverse)
        variance = np.maximum(1 / diagonal - noise, 0.0) + own_noise
        return self.weighted / diagonal / np.sqrt(variance)


def condition(rows: Sequence[Observation], kind: str, prior: EvidencePrior | None = None) -> Posterior:
    """Return what the rows of a kind of question say; raise BadValue for a kind that nothing is known of."""
    evidence = prior or evidence_prior()
    if kind not in evidence.kinds:
        raise BadValue(f"nothing calibrates forecasts of the kind {kind}: those of {', '.join(evidence.kinds)} are")
    of_kind = [row for row in rows if row.kind == kind]
    return Posterior(tuple(_thin_out(of_kind)), evidence.kinds[kind])


def _thin_out(rows: Sequence[Observation]) -> Sequence[Observation]:
    """Return at most `MOST_ROWS` rows, evenly spread."""
    if len(rows) <= MOST_ROWS:
        return rows
    return [rows[int(index)] for index in np.linspace(0, len(rows) - 1, MOST_ROWS)]

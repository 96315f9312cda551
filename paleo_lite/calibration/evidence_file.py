"""Calibrations from result files of benchmarks: measured rows, their forecasts, and the fitted factors of causes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import msgspec
import numpy as np

from ..errors import BadFile, BadValue, CalibrationFailed
from ..result import Result
from ..text import format_plural
from ..timing.intervals import Z_90
from .posterior import (
    COMMANDS,
    KINDS,
    SHOWN_TRAITS,
    USUAL_TRAITS,
    AssumedFactors,
    LeftOut,
    Observation,
    Posterior,
    condition,
    evidence_prior,
)

EVIDENCE_FORMAT = 1

MOST_OBSERVATIONS = 20_000

LEAST_S, MOST_S = 1e-12, 1e12
"""Limits of measured and forecast seconds."""

LEAST_SENSITIVITY, MOST_SENSITIVITY = 0.1, 100.0
"""Limits of the sensitivity of a row to its causes."""

SURPRISING = 2.0
"""Number of deviations of all rows together from which on they look like rows of something else.

By this limit or `SURPRISING_FACTOR`, 4% of published servers, machines and clusters with their own networks look so. Of
those that are read as another network of the same device, 71% (servers) and 79% (machines) do, and all whose times
differ by a factor of 2 or more.
"""

_WORSE_ERROR, _WORSE_FACTOR = 0.15, 1.25
"""Error of rows as the others forecast them, and its ratio to that of the shipped constants, above which a warning says
both.

Sources differ by some 15%, and a few rows left out in turn move an error by a fifth by chance.
"""

SURPRISING_FACTOR = 2.0
"""Typical factor between measured and forecast times from which on rows look so, however uncertain the prior is."""

_ROUNDING = 0.01  # of shares that add up to 1, which have four digits


class EvidenceProvenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Files that a calibration was read from, with the SHA-256 of their content."""

    inputs: list[str] = []
    date: str = ""
    version: str = ""


class FigureAccuracy(msgspec.Struct, frozen=True):
    """Errors of the rows of a figure, before the evidence and with each run left out of it.

    Attributes
    ----------
    kind, figure : str
        Kind of question, and figure.
    rows : int
        Rows.
    before, after : float
        Mean absolute relative error of the forecasts, shipped and from the other rows.
    inside_before, inside_after : float
        Share of the rows inside the 90% interval that the command states, narrowed by the other rows.
    ends_before, ends_after : float
        Median ratio between the ends of the interval.
    """

    kind: str
    figure: str
    rows: int
    before: float
    after: float
    inside_before: float
    inside_after: float
    ends_before: float
    ends_after: float


class MovedCause(msgspec.Struct, frozen=True):
    """How a cause moved in the situation of most rows.

    Attributes
    ----------
    kind, cause, situation : str
        Kind of question, cause, and what the rows have in common.
    factor, low, high : float
        Factor of the seconds of the cause, with its 90% interval.
    deviations : float
        How far that is, in deviations of what was known before.
    """

    kind: str
    cause: str
    situation: str
    factor: float
    low: float
    high: float
    deviations: float


class SuggestedRow(msgspec.Struct, frozen=True):
    """A measurement that would narrow forecasts.

    Attributes
    ----------
    kind, situation : str
        Kind of question, and what to measure.
    ends_before, ends_after : float
        Mean ratio between the ends of the 90% intervals of forecasts of typical situations, before and after it.
    """

    kind: str
    situation: str
    ends_before: float
    ends_after: float


class EvidenceCalibration(
    Result, msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True, eq=False
):
    """A calibration from result files of benchmarks.

    Attributes
    ----------
    format : int
        Format of the file.
    time_model : str
        ``evidence``.
    observations : list of Observation
        Measured figures beside their forecasts.
    provenance : EvidenceProvenance
        Files that they are from.
    notes : list of str
        Why rows of the files are left out, and doubts.
    suggested : list of SuggestedRow
        What to measure next, if it was asked for.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.evidence:evidence_page"

    format: int
    time_model: Literal["evidence"]
    observations: list[Observation]
    provenance: EvidenceProvenance = EvidenceProvenance()
    notes: list[str] = []
    suggested: list[SuggestedRow] = []

    @property
    def kinds(self) -> list[str]:
        """Kinds of questions that the rows are of."""
        return list(dict.fromkeys(row.kind for row in self.observations))

    def of_kinds(self, kinds: Collection[str]) -> EvidenceCalibration:
        """Return the calibration with the rows of some kinds of questions alone."""
        return msgspec.structs.replace(self, observations=[row for row in self.observations if row.kind in kinds])

    @property
    def devices(self) -> list[str]:
        """Devices of the rows."""
        return list(dict.fromkeys(row.traits["device"] for row in self.observations))

    @property
    def device(self) -> str:
        """Devices of the rows, as text."""
        return ", ".join(self.devices)

    @property
    def precision(self) -> str:
        """Formats of the rows."""
        formats = dict.fromkeys(row.traits.get("format", "") for row in self.observations)
        return ", ".join(name for name in formats if name)

    @property
    def label(self) -> str:
        """Description of the calibration in predictions."""
        date = f" of {self.provenance.date}" if self.provenance.date else ""
        return f"{format_plural(len(self.observations), 'measured figure')} of {self.subject}{date}"

    @property
    def subject(self) -> str:
        """Description of what the rows measure."""
        return " and ".join(KINDS[kind] for kind in self.kinds)

    def model(self) -> NoReturn:
        """Raise CalibrationFailed: the causes of measured figures are no time model of passes of networks."""
        raise CalibrationFailed(
            f"this calibration covers {self.subject} only, not single passes of networks: {self.uses}"
        )

    @property
    def uses(self) -> str:
        """Sentence about the commands that take the calibration."""
        *others, last = dict.fromkeys(command for kind in self.kinds for command in COMMANDS[kind])
        return f"use it with {', '.join(others)} or {last}" if others else f"use it with {last}"

    def check_kinds(self, kinds: Sequence[str], command: str) -> None:
        """Raise BadValue if the calibration has no figures of any kind that a command learns from."""
        if not set(kinds) & set(self.kinds):
            subjects = " or ".join(KINDS[kind] for kind in kinds)
            raise BadValue(
                f"`{command}` learns from measurements of {subjects}, and the calibration is of {self.subject}: "
                f"{self.uses}"
            )

    @cached_property
    def _posteriors(self) -> dict[str, Posterior]:
        return {}

    def posterior(self, kind: str) -> Posterior:
        """Return what the rows of a kind of question say."""
        if kind not in self._posteriors:
            self._posteriors[kind] = self._condition(kind)
        return self._posteriors[kind]

    def _condition(self, kind: str) -> Posterior:
        """Return the prior of a kind of question, conditioned on its rows."""
        return condition(self.observations, kind)

    def notes_on_unused(
        self, used: Collection[str], command: str, reasons: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Return a sentence on the figures of each kind that an answer of a command does not use, with the reason."""
        sentences = []
        for kind in self.kinds:
            if kind in used:
                continue
            number = sum(row.kind == kind for row in self.observations)
            reason = (reasons or {}).get(kind, f"`{command}` does not learn from them")
            sentences.append(
                f"{format_plural(number, 'measured figure')} of {KINDS[kind]} in the calibration change nothing here: "
                f"{reason}"
            )
        return tuple(sentences)

    def describe_distance(self, kind: str, traits: Mapping[str, str]) -> str:
        """Return a sentence on how much of the evidence applies to a situation, for the notes of a forecast."""
        if kind not in self.kinds:
            return f"the calibration has no figures of {KINDS[kind]}, which stay as shipped"
        return f"calibrated by {self.describe_rows(kind, traits)}"

    def describe_rows(self, kind: str, traits: Mapping[str, str]) -> str:
        """Return the number of figures of a kind, and the traits in which all of them differ from a situation."""
        rows = self.posterior(kind).rows
        figures = format_plural(len(rows), "measured figure")
        differences = []
        for trait in SHOWN_TRAITS.get(kind, USUAL_TRAITS):
            measured = list(dict.fromkeys(row.traits.get(trait, "") for row in rows))
            if traits.get(trait, "") not in measured:
                named = [name or "not named" for name in measured]
                shown = f"{', '.join(named[:3])}{', ...' if len(named) > 3 else ''}"
                differences.append(f"another {trait} ({shown})")
        if not differences:
            return figures
        return f"{figures} of {' and '.join(differences)}: only what both have in common moves"

    def accuracy(self) -> list[FigureAccuracy]:
        """Return the errors of each figure before, and with each run left out."""
        rows = []
        for kind in self.kinds:
            left_out = self.posterior(kind).left_out()
            for figure in dict.fromkeys(forecast.row.figure for forecast in left_out):
                rows.append(
                    _accuracy(kind, figure, [forecast for forecast in left_out if forecast.row.figure == figure])
                )
        return rows

    def moved(self) -> list[MovedCause]:
        """Return how far the causes moved in the situation of most rows of each kind, the farthest first."""
        result = []
        for kind in self.kinds:
            posterior = self.posterior(kind)
            by_traits: dict[Any, int] = {}
            for row in posterior.rows:
                key = tuple(row.traits.items())
                by_traits[key] = by_traits.get(key, 0) + 1
            traits = dict(max(by_traits, key=lambda key: by_traits[key]))
            factors = posterior.factors(traits)
            measured_causes = {cause for row in posterior.rows for cause, share in row.shares.items() if share > 0}
            situation = ", ".join(traits[name] for name in ("network", "link", "device", "engine") if traits.get(name))
            for index, cause in enumerate(factors.causes):
                if cause not in measured_causes:
                    continue
                mean = float(factors.mean[index])
                reach = Z_90 * math.sqrt(max(float(factors.covariance[index, index]), 0.0))
                before = math.sqrt(float(factors.prior_covariance[index, index]))
                result.append(
                    MovedCause(
                        kind, cause, situation, math.exp(mean), math.exp(mean - reach), math.exp(mean + reach),
                        mean / before,
                    )
                )  # fmt: skip
        return sorted(result, key=lambda moved_cause: -abs(moved_cause.deviations))

    def warnings(self) -> list[str]:
        """Return sentences about rows that are far from the others, and about files that look like something else."""
        sentences = []
        for kind in self.kinds:
            posterior = self.posterior(kind)
            surprise = posterior.surprise()
            factor = math.exp(float(np.median([row.log_ratio for row in posterior.rows])))
            if abs(surprise) > SURPRISING or not 1 / SURPRISING_FACTOR < factor < SURPRISING_FACTOR:
                sentences.append(
                    f"the rows of {KINDS[kind]} take {factor:.2g} times their forecasts, {abs(surprise):.1f} "
                    "standard deviations from the prior: check the network, the device, the number of devices and the "
                    "format"
                )
            far = posterior.outliers
            for row, distance in far[:5]:
                sentences.append(
                    f"{row.situation}: {row.figure} is {abs(distance):.1f} deviations "
                    f"{'above' if distance > 0 else 'below'} what the other rows say, and counts less"
                )
            if len(far) > 5:
                sentences.append(f"{len(far) - 5} more rows are as far from the others, and count less")
        return [*sentences, *self._contradicted_figures()]

    def _contradicted_figures(self) -> Iterator[str]:
        """Yield a sentence for each figure that the other rows forecast clearly worse than the shipped constants do."""
        for row in self.accuracy():
            if row.after > _WORSE_ERROR and row.after > _WORSE_FACTOR * row.before:
                yield (
                    f"the other rows forecast {row.figure} with an error of {row.after:.0%}, and the shipped "
                    f"constants alone with {row.before:.0%}: rows of these files contradict each other, or "
                    "are not of one set-up: check them before you use this calibration"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the calibration, with what it says."""
        return {
            **msgspec.to_builtins(self),
            "accuracy": msgspec.to_builtins(self.accuracy()),
            "moved": msgspec.to_builtins(self.moved()),
            "warnings": self.warnings(),
        }


def _accuracy(kind: str, figure: str, rows: Sequence[LeftOut]) -> FigureAccuracy:
    before = np.array([forecast.row.log_ratio for forecast in rows])
    after = np.array([forecast.error for forecast in rows])
    ends_before, ends_after = (
        np.array([forecast.ends_before for forecast in rows]),
        np.array([forecast.ends for forecast in rows]),
    )

    def error(logs: Any) -> float:
        return float(np.mean(np.abs(np.expm1(-logs))))

    def inside(logs: Any, ends: Any) -> float:
        return float(np.mean((ends[:, 0] <= logs) & (logs <= ends[:, 1])))

    def ratio(ends: Any) -> float:
        return float(np.median(np.exp(ends[:, 1] - ends[:, 0])))

    return FigureAccuracy(
        kind, figure, len(rows), error(before), error(after), inside(before, ends_before),
        inside(after, ends_after), ratio(ends_before), ratio(ends_after),
    )  # fmt: skip


def is_plausible(seconds: float) -> bool:
    """Return whether a figure can be that of a measurement."""
    return LEAST_S <= seconds <= MOST_S


def is_interval(interval: Sequence[float], time_s: float) -> bool:
    """Return whether an interval around a figure can be one."""
    return all(map(is_plausible, interval)) and interval[0] <= time_s <= interval[1]


def rounded_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Return shares with the four digits that are stored."""
    return {cause: round(min(max(share, 0.0), 1.0), 4) for cause, share in shares.items()}


def check_evidence(calibration: EvidenceCalibration, path: Path) -> EvidenceCalibration:
    """Return a calibration that was read; raise BadFile if a number of it cannot be."""
    kinds = evidence_prior().kinds
    if len(calibration.observations) > MOST_OBSERVATIONS:
        raise BadFile(f"{path}: observations must be at most {MOST_OBSERVATIONS} (got {len(calibration.observations)})")
    for number, row in enumerate(calibration.observations):
        where = f"{path}: observations[{number}]"
        if row.kind not in kinds:
            raise BadFile(f"{where}.kind must be one of {', '.join(kinds)} (got {row.kind!r})")
        prior = kinds[row.kind]
        if row.figure not in prior.noise:
            raise BadFile(f"{where}.figure must be one of {', '.join(prior.noise)} (got {row.figure!r})")
        for name, seconds in (("measured", row.measured), ("forecast", row.forecast)):
            if not is_plausible(seconds):
                raise BadFile(f"{where}.{name} must be above 0 and at most {MOST_S:g} seconds (got {seconds:g})")
        if row.interval is not None and not is_interval(row.interval, row.forecast):
            raise BadFile(f"{where}.interval must contain the forecast {row.forecast:g} (got {row.interval})")
        if not LEAST_SENSITIVITY <= row.sensitivity <= MOST_SENSITIVITY:
            raise BadFile(
                f"{where}.sensitivity must be from {LEAST_SENSITIVITY:g} to {MOST_SENSITIVITY:g} "
                f"(got {row.sensitivity:g})"
            )
        unknown = [cause for cause in row.shares if cause not in prior.causes]
        if unknown:
            raise BadFile(f"{where}.shares: {unknown[0]!r} is not among the causes {', '.join(prior.causes)}")
        is_share = all(0 <= share <= 1 + _ROUNDING for share in row.shares.values())
        if not is_share or not abs(sum(row.shares.values()) - 1) <= _ROUNDING:
            raise BadFile(f"{where}.shares must be from 0 to 1 and add up to 1")
        if "device" not in row.traits:
            raise BadFile(f"{where}.traits must name the device")
    return calibration


def combine(parts: Mapping[str, Any]) -> EvidenceCalibration:
    """Return calibrations from result files, by their names, as one; rows that several have count once.

    Raise BadValue for a calibration of another kind, or too many rows.
    """
    for name, part in parts.items():
        if not isinstance(part, EvidenceCalibration):
            raise BadValue(
                f"{name} is a calibration of passes of networks, which stands alone: only those from result files of "
                "benchmarks are joined by +"
            )
    rows = {_without_words(row): row for part in parts.values() for row in part.observations}
    if len(rows) > MOST_OBSERVATIONS:
        raise BadValue(f"{' + '.join(parts)} have {len(rows):,} rows together, at most {MOST_OBSERVATIONS:,} are read")
    provenance = [part.provenance for part in parts.values()]
    inputs = dict.fromkeys(text for record in provenance for text in record.inputs)
    notes = dict.fromkeys(note for part in parts.values() for note in part.notes)
    latest = max(record.date for record in provenance)
    return EvidenceCalibration(
        EVIDENCE_FORMAT,
        "evidence",
        list(rows.values()),
        EvidenceProvenance(list(inputs), latest, provenance[0].version),
        list(notes),
    )


def _without_words(row: Observation) -> bytes:
    """Return a key that rows of the same measurement share: the words of a situation depend on what its file varies."""
    return msgspec.json.encode(msgspec.structs.replace(row, situation=""))


class AssumedCalibration(EvidenceCalibration, frozen=True, dict=True, eq=False):
    """A calibration whose factors, of the kind of its only row, are assumed instead of learned."""

    logs: dict[str, float] = {}  # logarithms of the factors of some causes; 0 of the others

    def _condition(self, kind: str) -> Posterior:
        """Return the assumed factors of the kind of the row, and of another kind its prior."""
        (row,) = self.observations
        if kind != row.kind:
            return super()._condition(kind)
        return AssumedFactors((row,), evidence_prior().kinds[kind], self.logs)


def assume_factor(row: Observation, cause: str, log: float) -> EvidenceCalibration:
    """Return the calibration in which a cause of a row's kind takes longer, by the logarithm of a factor."""
    return AssumedCalibration(EVIDENCE_FORMAT, "evidence", [row], logs={cause: log})


def best_rows(posterior: Posterior, candidates: Sequence[Observation], number: int) -> list[SuggestedRow]:
    """Return the situations that would most reduce the mean variance of all candidates, one after another.

    A benchmark yields all its figures; what they would say does not matter for how much they say.
    """
    if not candidates:
        return []
    noise = np.array([posterior.prior.noise[row.figure] ** 2 for row in candidates])
    causes = posterior.causes
    slopes = np.array([[row.shares.get(cause, 0.0) for cause in causes] for row in candidates])
    covariance = posterior.factors(candidates[0].traits).covariance
    situations = list(dict.fromkeys(row.situation for row in candidates))

    def ends(matrix: Any) -> float:
        variances = np.einsum("ic,cd,id->i", slopes, matrix, slopes) + noise
        return float(np.mean(np.exp(2 * Z_90 * np.sqrt(variances))))

    suggestions = []
    for _ in range(min(number, len(situations))):
        before = ends(covariance)
        updated = {}
        for situation in situations:
            chosen = [index for index, row in enumerate(candidates) if row.situation == situation]
            cross = slopes[chosen] @ covariance
            between = cross @ slopes[chosen].T + np.diag(noise[chosen])
            updated[situation] = covariance - cross.T @ np.linalg.solve(between, cross)
        best = min(situations, key=lambda situation: ends(updated[situation]))
        covariance = updated[best]
        suggestions.append(SuggestedRow(candidates[0].kind, best, before, ends(covariance)))
        situations.remove(best)
    return suggestions

"""`Comparison`: answers of any kind side by side; steps with their speed-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeGuard

import msgspec

from ..calibration.ratios import AnyPrediction, Ratio, speedup
from ..extras import require
from ..result import TableOfAnswers
from ..timing import Prediction
from ..timing.answer import BOUND
from ..timing.pipeline_prediction import PipelinePrediction
from .questions import OPTION_COLUMNS, question_row
from .rows import RowTerms, answer_rows

OF_FORECASTS = ("time_s", "low_s", "high_s", "throughput_per_s", "tokens_per_s", "power_w", "energy_j", "hours",
                "cost_usd", "kwh")  # fmt: skip
"""Columns that a bound does not have beside forecasts, so that nobody compares the two."""


class Comparison(TableOfAnswers, msgspec.Struct, frozen=True, eq=False, dict=True):
    """Answers to all combinations of the values of a question."""

    kind: str  # kind of question: "serve"
    answers: Sequence[Any]  # of the combinations that have one, in the requested order; one or more
    settings: Sequence[Mapping[str, Any]] = ()  # compared options of each answer; empty if nothing is compared
    left_out: Sequence[str] = ()  # combinations without an answer, with the reasons
    always: Mapping[str, Any] = {}  # options that every row states though they have one value: network and device

    _page: ClassVar[str] = "paleo_lite.reporting.sweep:comparison_page"
    answers_in: ClassVar[str] = "answers"

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows with the compared options and what `rows.answer_rows` says of each answer, and speed-ups of steps.

        A bound beside forecasts has no time, throughput, cost and speed-up.
        """
        rows = []
        for index, answer in enumerate(self.answers):
            settings = self.settings[index] if self.settings else {}
            rows += [question_row({**self.always, **settings}) | row for row in answer_rows(answer, RowTerms(None))]
        if are_steps(self.answers):
            rows = [self._row_of_step(answer, row) for answer, row in zip(self.answers, rows, strict=True)]
        answered = {row["answer"] for row in rows if row.get("answer")}
        for row in rows:
            if len(answered) > 1 and row.get("answer") == BOUND:
                row |= {name: None for name in OF_FORECASTS if name in row}
        return rows

    @property
    def compared(self) -> tuple[str, ...]:
        """Names of the compared options."""
        names = tuple(self.settings[0]) if self.settings else ()
        has_tables = len(self.rows) > len(self.answers)
        return (*names, "devices") if has_tables and "devices" not in names else names

    @property
    def baseline(self) -> AnyPrediction:
        """Baseline of speed-ups: the first forecast that fits into the memory, else the first forecast or bound."""
        answers: Sequence[AnyPrediction] = self.answers
        fitting = [answer for answer in answers if answer.is_forecast and answer.fits is not False]
        forecasts = [answer for answer in answers if answer.is_forecast]
        return [*fitting, *forecasts, *answers][0]

    def speedup(self, prediction: AnyPrediction) -> Ratio | None:
        """Return the speed-up of one of the predictions over the baseline; None if they cannot be compared."""
        return speedup(prediction, self.baseline)

    def _row_of_step(self, prediction: AnyPrediction, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a step, in which the columns of the step are first and replace those of the same name."""
        step_columns = _step_columns(prediction)
        further_columns = {name: value for name, value in row.items() if name not in step_columns}
        return {**step_columns, **further_columns, **self._speedup_columns(prediction, row)}

    def _speedup_columns(self, prediction: AnyPrediction, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the speed-up of a prediction with its interval; the baseline has none, nor what does not fit."""
        has_ratio = row.get("time_s") is not None and row.get("reason") is None
        ratio = self.speedup(prediction) if has_ratio else None
        interval = None if ratio is None or prediction is self.baseline else ratio.interval()
        low, high = interval or (None, None)
        return {"speedup": None if ratio is None else ratio.value, "speedup_low": low, "speedup_high": high}

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: the rows, the answers that they come from, and the left-out combinations."""
        return {
            "rows": self.rows,
            "answers": [answer.to_dict() for answer in self.answers],
            "left_out": list(self.left_out),
        }

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        return require("pandas", "a data frame", "profiles").DataFrame(self.rows)

    def labels(self) -> list[str]:
        """Return what tells each row apart from the others, as text: ``l40s, rate 4``."""
        return [", ".join(_label(row, name) for name in self.compared) for row in self.rows]

    def describe(self, indices: list[int]) -> str:
        """Return what only some answers have in common: ``h100-sxm, h200``, or their settings; empty for all."""
        total = len(self.answers)
        if len(indices) == total:
            return ""
        for name in self.settings[0]:
            values = dict.fromkeys(self.settings[index][name] for index in indices)
            if [index for index, settings in enumerate(self.settings) if settings[name] in values] == indices:
                first, *others = values
                named = _label(question_row({name: first}), name)
                return ", ".join([named, *map(str, others)])
        rows = [question_row(self.settings[index]) for index in indices[:_NAMED_AT_MOST]]
        labels = [", ".join(_label(row, name) for name in self.settings[0]) for row in rows]
        more = len(indices) - len(labels)
        rest = f" and {more} more, of {total}" if more else ""
        return "; ".join(labels) + rest


def as_comparison(result: Comparison | AnyPrediction) -> Comparison:
    """Return a comparison as it is, and a single prediction as one of its own."""
    return result if isinstance(result, Comparison) else Comparison("predict", [result])


def are_steps(answers: Sequence[Any]) -> TypeGuard[Sequence[AnyPrediction]]:
    """Return whether all answers are steps of networks or batches of pipelines, whose times have a ratio."""
    return all(isinstance(answer, (Prediction, PipelinePrediction)) for answer in answers)


def _step_columns(prediction: AnyPrediction) -> dict[str, Any]:
    """Return the columns that every row of a step begins with."""
    return {
        "network": prediction.network,
        "gpu": prediction.device.id,
        "precision": prediction.precision,
        "phase": prediction.phase,
        "batch_size": prediction.batch_size,
        "fits": prediction.fits,
    }


_NAMED_AT_MOST = 3  # answers that a note names

_SPEAKING = ("network", "gpu", "platform", "engine", "precision")
"""Options whose values need no name beside them."""


def _label(row: dict[str, Any], name: str) -> str:
    """Return the value of a compared option in a row, with the name of the option where it needs it."""
    column = OPTION_COLUMNS[name][0] if name in OPTION_COLUMNS else name
    value = row.get(column)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if name in _SPEAKING else f"{name.replace('_', ' ')} {text}"

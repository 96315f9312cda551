"""Ask every question of a table of published measurements, and compare the answers: ``python -m validation field``.

The table (``field/measured_YYYY_MM.csv``) has one measurement a row: ``source``, ``kind``, ``device``, ``model``,
``config``, ``measured``, ``unit`` and ``command``, the question as a careful user asks it. A new measurement is one
more line.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from click.testing import CliRunner

from paleo_lite.calibration.accuracy import interval_scores
from paleo_lite.cli import main as command_line
from paleo_lite.errors import BadFile, BadValue
from paleo_lite.progress import report as report_progress
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_3_digits, format_yes_no

from ..comparisons import GROUPED, group_errors

TABLES = "field/measured_*.csv"
"""Tables of measurements, in the folder of published data."""

COLUMNS = ("source", "kind", "device", "model", "config", "measured", "unit", "command")

GROUPINGS = ("kind", "source", "device")
"""Columns by which the errors are grouped."""


class Interval(NamedTuple):
    """A figure with the ends of its 90% interval."""

    value: float
    low: float
    high: float


class FieldRow(msgspec.Struct, frozen=True, kw_only=True):
    """A published measurement, and what the command line answers."""

    source: str
    kind: str
    device: str
    model: str
    config: str
    unit: str
    command: str
    measured: float
    forecast: Interval | None = None  # None for a bound or a refusal
    reason: str = ""  # why there is no forecast

    @property
    def error(self) -> float:
        """Forecast over measurement, minus 1."""
        assert self.forecast is not None
        return self.forecast.value / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the 90% interval contains the measurement."""
        assert self.forecast is not None
        return self.forecast.low <= self.measured <= self.forecast.high

    @property
    def score(self) -> float:
        """Interval score of the logarithm, lower is better."""
        assert self.forecast is not None
        return float(interval_scores(self.measured, self.forecast.low, self.forecast.high))


Answer = Mapping[str, Any]
"""JSON of an answer."""


def _rate(amount: float, time_s: float, interval_s: Sequence[float]) -> Interval:
    """Return the rate of an amount in a time, with its interval."""
    return Interval(amount / time_s, amount / interval_s[1], amount / interval_s[0])


def _step_rate(answer: Answer) -> Interval:
    """Return the tokens per second of a device, of a step of training or of an answer token."""
    tokens = answer["tokens_per_s"] * answer["time_s"] / answer["devices"]
    return _rate(tokens, answer["time_s"], answer["interval"])


def _milliseconds(name: str) -> Callable[[Answer], Interval]:
    """Return the function that reads the mean of a latency of a server in ms."""
    return lambda answer: Interval(**{end: 1e3 * value for end, value in answer["latencies"][name]["mean"].items()})


FIGURES: dict[tuple[str, str], Callable[[Answer], Interval]] = {
    ("serving", "output tokens/s/GPU"): lambda answer: Interval(**answer["figures"]["output_tokens_per_s_per_gpu"]),
    ("serving", "output tokens/s"): lambda answer: Interval(**answer["figures"]["output_tokens_per_s"]),
    ("serving", "total tok/s"): lambda answer: Interval(**answer["figures"]["total_tokens_per_s"]),
    ("serving", "s"): lambda answer: Interval(**answer["latencies"]["latency_s"]["mean"]),
    ("serving", "TTFT ms"): _milliseconds("ttft_s"),
    ("serving", "TPOT ms"): _milliseconds("tpot_s"),
    ("training", "tokens/s/GPU"): _step_rate,
    ("llama.cpp answer", "tokens/s"): _step_rate,
    ("llama.cpp prompt", "tokens/s"): lambda answer: _rate(
        answer["prompt_tokens"], answer["prompt_s"], answer["prompt_interval_s"]
    ),
}
"""How the measured figure is read from the JSON of an answer, by kind and unit; of a latency with its name."""

RENAMED = (
    ("scale ", "train "),
    ("predict (.*) --phase training", r"train \1"),
    ("predict (.*) --execution llama.cpp", r"local \1"),
    ("--policy", "--engine"),
    ("--lora-modules ", "--trainable adapters="),
    ("--sequence-parallel", "--communication sequence-parallel=yes"),
    ("--scaling strong (.*)--batch-size", r"\1--global-batch-size"),
)
"""Words of commands of earlier versions, as regular expressions, and those of today."""


OF_ALL_RANKS = "limits x groups"
"""Words of a source whose commands state limits for all ranks of attention data parallelism together.

An earlier version took them so. The limits of the source are those of one rank (``SOURCES.md`` of the published data),
and the commands state them times the number of ranks.
"""

RANK_LIMITS = ("--max-batched-tokens", "--max-sequences")
"""Options that state a limit of a rank."""


def read_field(data: Path) -> list[FieldRow]:
    """Return the measurements of all tables in the folder of published data, without forecasts.

    Raises
    ------
    BadFile
        If there is no table, or one lacks a column or a number.
    """
    rows = []
    paths = sorted(data.glob(TABLES))
    if not paths:
        raise BadFile(f"{data}: no table {TABLES}")
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            missing = set(COLUMNS) - set(table.fieldnames or ())
            if missing:
                raise BadFile(f"{path}: no column {', '.join(sorted(missing))}")
            for line in table:
                try:
                    rows.append(msgspec.convert({name: line[name] for name in COLUMNS}, FieldRow, strict=False))
                except msgspec.ValidationError as error:
                    raise BadFile(f"{path}, line {table.line_num}: {error}") from error
    return rows


def translate(command: str) -> list[str]:
    """Return the arguments of a command, in the words of today."""
    for pattern, words in RENAMED:
        command = re.sub(pattern, words, command)
    program, *arguments = shlex.split(command)
    if program != "paleo-lite":
        raise BadValue(f"a question begins with `paleo-lite` (got {command!r})")
    return arguments


def question_of(row: FieldRow) -> list[str]:
    """Return the arguments of a row's question, in the words of today and with the limits of one rank."""
    arguments = translate(row.command)
    if OF_ALL_RANKS in row.source:
        ranks = int(arguments[arguments.index("--attention-data-parallel") + 1])
        for option in RANK_LIMITS:
            position = arguments.index(option) + 1
            arguments[position] = str(int(arguments[position]) // ranks)
    return arguments


def ask(row: FieldRow) -> FieldRow:
    """Return a measurement with the forecast of its question, or with the reason why there is none."""
    answered = CliRunner().invoke(command_line, [*question_of(row), "--format", "json"])
    if answered.exit_code:
        return msgspec.structs.replace(row, reason=" ".join(answered.stderr.split()))
    answer = json.loads(answered.stdout)
    if not answer["is_forecast"]:
        return msgspec.structs.replace(row, reason="a bound, not a forecast")
    unit = f"{row.config.split()[-1]} {row.unit}" if row.unit == "ms" else row.unit
    return msgspec.structs.replace(row, forecast=FIGURES[row.kind, unit](answer))


def compare_field(data: Path, words: Sequence[str] = ()) -> list[FieldRow]:
    """Return all measurements with their forecasts; with words, those whose row contains all of them."""
    rows = [row for row in read_field(data) if all(word.lower() in _text(row) for word in words)]
    if not rows:
        raise BadValue(f"no measurement of {' '.join(words)}")
    answered = []
    for number, row in enumerate(rows):
        report_progress(number, len(rows))
        answered.append(ask(row))
    return answered


def _text(row: FieldRow) -> str:
    """Return the words of a row by which it is found."""
    return " ".join((row.source, row.kind, row.device, row.model, row.config, row.command)).lower()


ERRORS = (
    *GROUPED,
    Column("width", "width\nof 90%", "{:.2f} x".format),
    Column("score", "interval\nscore", "{:.2f}".format),
    Column("unanswered", "without\nforecast"),
)
"""Columns of the errors of a group, with the width, sharpness and honesty of its intervals."""

MEASURED = (
    Column("model", "network", left=True),
    Column("device", "device", left=True),
    Column("config", "configuration", left=True, wrap=True),
    Column("measured", "measured", format_3_digits),
    Column("forecast", "forecast", format_3_digits),
    Column("error", "off by", "{:+.0%}".format),
    Column("is_inside", "within\n90%", format_yes_no),
    Column("unit", "unit", left=True),
    Column("reason", "without forecast", left=True, wrap=True),
)
"""Columns of a measurement with its forecast."""


def field_page(rows: Sequence[FieldRow]) -> Document:
    """Return the page of the errors by kind, source and device, and of every measurement."""
    tables = []
    for grouping in GROUPINGS:
        groups = dict.fromkeys(getattr(row, grouping) for row in rows)
        grouped = [
            {grouping: name, **_errors([row for row in rows if getattr(row, grouping) == name])} for name in groups
        ]
        tables.append(
            Table(f"Errors by {grouping}", [Column(grouping, grouping, left=True, wrap=True), *ERRORS], grouped)
        )
    tables.append(Table("Measurements", MEASURED, [_line(row) for row in rows]))
    overall = _errors(rows)
    title = f"Published measurements: {overall['points']} forecasts of {len(rows)} questions"
    facts = []
    if overall["points"]:
        error = f"{overall['median']:.1%} in the median, {overall['mean']:.1%} in the mean; bias {overall['bias']:+.1%}"
        inside = f"{overall['inside']:.0%} inside 90%, {overall['width']:.2f} x wide in the median"
        facts = [("error", error), ("intervals", f"{inside}, interval score {overall['score']:.2f}")]
    return Document(title, facts, tables)


def _errors(rows: Sequence[FieldRow]) -> dict[str, Any]:
    """Return the errors of a group, by the keys of `ERRORS`; without forecasts only how many there are."""
    forecasts = [row for row in rows if row.forecast is not None]
    unanswered = len(rows) - len(forecasts)
    if not forecasts:
        return {"points": 0, "unanswered": unanswered}
    widths = [row.forecast.high / row.forecast.low for row in forecasts if row.forecast is not None]
    return {
        **group_errors(forecasts),
        "width": float(np.median(widths)),
        "score": float(np.mean([row.score for row in forecasts])),
        "unanswered": unanswered,
    }


def _line(row: FieldRow) -> dict[str, Any]:
    """Return a measurement as a row of the table."""
    line = msgspec.structs.asdict(row)
    if row.forecast is not None:
        value, low, high = row.forecast
        line |= {"forecast": value, "low": low, "high": high, "error": row.error, "is_inside": row.is_inside}
    return line

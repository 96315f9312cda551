"""Words for quantities of rows, such as ``cost``: their columns and labels in rows of each kind of question.

In rows of one kind, ``time``, ``energy`` and ``cost`` are of the same thing: of the amount of samples where rows have
one, otherwise of what a row is about, such as a step. Servers answer requests all the time: their cost and energy are
of a million output tokens, and their time is that of a request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..units import SECONDS_PER_HOUR, format_si

_AMOUNTS = ("hours", "cost_usd", "kwh", "site_kwh", "electricity_usd", "co2_g")
"""Columns of an amount of samples."""

_KWH = ("kwh", "energy_j")
_OF_AN_AMOUNT = {
    "cost": ("cost_usd", "usd_per_million"),
    "energy": _KWH,
    "joules": _KWH,
    "time": ("hours", "time_s"),
    "throughput": ("throughput_per_s", "tokens_per_s"),
    "latency": ("time_s",),
}


class RowKind(NamedTuple):
    """Rows of a kind of question."""

    rows: str  # the rows, as a message names them
    mark: str  # column that rows of no other kind have; empty for all other rows
    words: Mapping[str, tuple[str, ...]]  # columns of a word: the first that a file has is taken
    labels: Mapping[str, str] = {}  # labels of columns, where they differ from `COLUMN_LABELS`
    reasons: Mapping[str, str] = {}  # why the rows have no column for a word


KINDS = (
    RowKind(
        "rows of servers",
        "ttft_p50_s",
        {
            "cost": ("usd_per_million_output_tokens",),
            "energy": ("joules_per_million_output_tokens",),
            "joules": ("joules_per_million_output_tokens",),
            "time": ("latency_p50_s",),
            "throughput": ("output_tokens_per_s",),
            "latency": ("latency_p50_s",),
            "ttft": ("ttft_p50_s",),
            "tpot": ("tpot_p50_s",),
        },
    ),
    RowKind(
        "rows of one's own machine",
        "prompt_s",
        {
            "energy": ("energy_j",),
            "joules": ("energy_j",),
            "time": ("time_s",),
            "throughput": ("tokens_per_s",),
            "latency": ("time_s",),
            "ttft": ("prompt_s",),
            "tpot": ("time_s",),
        },
        labels={
            "time_s": "time of a token",
            "low_s": "lower end of the time of a token (90%)",
            "high_s": "upper end of the time of a token (90%)",
            "energy_j": "energy of a token",
        },
        reasons={"cost": "`local` takes no price"},
    ),
    RowKind(
        "rows of reinforcement learning",
        "rollouts_s",
        {
            "cost": ("usd_per_step", "usd_per_million"),
            "energy": ("energy_j",),
            "joules": ("energy_j",),
            "time": ("time_s",),
            "throughput": ("throughput_per_s",),
            "latency": ("time_s",),
        },
    ),
    RowKind(
        "rows of pictures and videos",
        "time_per_image_s",
        _OF_AN_AMOUNT,
        labels={
            "time_s": "time of a batch",
            "low_s": "lower end of the time of a batch (90%)",
            "high_s": "upper end of the time of a batch (90%)",
            "bound_s": "time of a batch by the data sheet",
            "energy_j": "energy of a batch",
            "throughput_per_s": "pictures or videos per second",
        },
    ),
    RowKind("rows of steps", "", _OF_AN_AMOUNT),
)
"""Kinds of rows; the last one is that of all rows without a mark."""

WORDS = tuple(dict.fromkeys(word for kind in KINDS for word in kind.words))
"""Words for quantities."""

COLUMN_LABELS = {
    "time_s": "step time",
    "low_s": "lower end of the step time (90%)",
    "high_s": "upper end of the step time (90%)",
    "bound_s": "step time by the data sheet",
    "throughput_per_s": "samples per second",
    "tokens_per_s": "tokens per second",
    "prompt_s": "time of the prompt",
    "prompt_tokens_per_s": "tokens of the prompt per second",
    "time_per_image_s": "time of a picture or video",
    "memory_bytes": "memory",
    "exposed_s": "exposed communication",
    "speedup": "speed-up",
    "energy_j": "energy of a step",
    "power_w": "power of a device",
    "kwh": "energy",
    "cost_usd": "cost",
    "usd_per_step": "cost of a step",
    "efficiency": "share of peak",
    "ttft_p50_s": "median time to first token",
    "ttft_p99_s": "99th percentile of the time to first token",
    "tpot_p50_s": "median time per output token",
    "tpot_p99_s": "99th percentile of the time per output token",
    "latency_p50_s": "median end-to-end latency",
    "latency_p99_s": "99th percentile of the end-to-end latency",
    "output_tokens_per_s": "output tokens per second",
    "output_tokens_per_s_per_gpu": "output tokens per second and GPU",
    "output_tokens_per_s_per_user": "output tokens per second and user",
    "requests_per_s": "requests per second",
    "saturation_requests_per_s": "saturation rate",
    "usd_per_million_output_tokens": "US dollars per million output tokens",
    "joules_per_million_output_tokens": "joules per million output tokens",
    "site_kwh": "energy at the meter",
    "electricity_usd": "US dollars of electricity",
    "co2_g": "grams of CO2",
}
"""Labels of columns, where they differ from the name with blanks.

They are phrases of sentences and axes; headings of tables are in the registry `reporting.columns`, a floor above.
"""


def kind_of_rows(columns: Collection[str]) -> RowKind:
    """Return the kind of rows that have these columns."""
    return next(kind for kind in KINDS if not kind.mark or kind.mark in columns)


def column_label(column: str, columns: Collection[str]) -> str:
    """Return the label of a column in rows that have these columns."""
    labels = {**COLUMN_LABELS, **kind_of_rows(columns).labels}
    return labels.get(column, column.replace("_", " "))


def describe_amount(column: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the amount of which a column of rows is, such as ``1 M samples``; empty for a column of no amount.

    Rows state the hours of the amount, and the samples per second.
    """
    if column not in _AMOUNTS or kind_of_rows(rows[0]).words is not _OF_AN_AMOUNT:
        return ""
    rates = [(row.get("hours"), row.get("throughput_per_s")) for row in rows]
    amounts = [hours * SECONDS_PER_HOUR * rate for hours, rate in rates if hours is not None and rate is not None]
    if not amounts or max(amounts) > min(amounts) * (1 + 1e-6):
        return "the run"
    return f"{format_si(round(amounts[0]))} samples"

"""Document of several predictions in one table: time, bound, cost, and speed relative to the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..calibration.ratios import AnyPrediction
from ..distributed.table import ScaleTable
from ..sweeps.comparison import Comparison
from ..sweeps.questions import OPTION_COLUMNS
from ..text import format_plural
from ..timing import Prediction
from ..timing.answer import FORECAST
from ..timing.memory import MemoryFit
from ..timing.notes import without_ranges
from ..timing.pipeline_prediction import PipelinePrediction
from ..units import format_number
from .answers import common_notes, cost_of_products, describe_fitting, format_shortage, join_notes, with_price_of_one
from .columns import option_column, select_columns
from .document import Document, Table, raw_table
from .formats import format_time_short
from .pipelines import memory_remedy


def time_shares_by_bound(prediction: Prediction) -> dict[str, float]:
    """Return the share of time that each bound limits, largest first; ``overhead`` is that of the step."""
    seconds: dict[str, float] = {}
    for row in prediction.rows():
        seconds[row["bound"]] = seconds.get(row["bound"], 0.0) + row["time_s"]
    seconds["overhead"] = prediction.terms.overhead_s
    shares = {bound: time_s / prediction.time_s for bound, time_s in seconds.items() if time_s}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def describe_bounds(prediction: Prediction) -> str:
    """Return the bounds and their shares of time: ``77% of the time compute-bound, 22% memory-bound; 1% overhead``."""
    shares = {}
    for bound, share in time_shares_by_bound(prediction).items():
        shares[bound] = f"{share:.0%}" if share >= 0.005 else "under 1%"
    overhead = shares.pop("overhead", None)
    bounds = [f"{share} {_BOUND_ADJECTIVES.get(bound, bound)}" for bound, share in shares.items()]
    if bounds:
        bounds[0] = bounds[0].replace("% ", "% of the time ", 1)
    parts = [", ".join(bounds)] if bounds else []
    if overhead:
        parts.append(f"{overhead} overhead")
    return "; ".join(parts) or "no layer takes time"


_BOUND_ADJECTIVES = {"compute": "compute-bound", "memory": "memory-bound", "unknown": "with unknown bound"}


def comparison_table(comparison: Comparison) -> Table:
    """Return one row per prediction; rows that are bounds have no speed-up over forecasts."""
    rows = in_unit(comparison)
    for row, prediction in zip(rows, comparison.answers):
        shares = {}
        if isinstance(prediction, Prediction) and prediction.is_forecast:
            shares = time_shares_by_bound(prediction)
        row["compute_share"] = shares.get("compute")
        row["memory_share"] = shares.get("memory")
    varying = [key for key in _CONFIGURATION if len({row[key] for row in rows}) > 1]
    names = [OPTION_COLUMNS[name][0] if name in OPTION_COLUMNS else name for name in comparison.compared]
    settings = [name for name in names if name not in _CONFIGURATION]
    if not varying and not settings:
        varying = ["gpu"]
    settings_columns = [option_column(key) for key in settings]
    counted = f"{counted_unit(comparison)}\nper s"
    results = [column.replace(title=counted) if column.key == "throughput_per_s" else column for column in _RESULTS]
    results = with_price_of_one(results, rows)
    table = Table("Side by side", [*select_columns(*varying), *settings_columns, *results], rows, sortable=True)
    return table.drop_empty_columns(*_CONFIGURATION)


def counted_unit(comparison: Comparison) -> str:
    """Return what throughputs and costs count: one unit for all answers.

    These are pictures; a token per sequence of a step of decode; tokens where samples have different lengths; prompts
    of a group of devices; or samples.
    """
    units = {unit_of(answer) for answer in comparison.answers}
    if len(units) > 1:
        return "samples"
    return "tokens" if _differ_in_length(comparison) else units.pop()


def unit_of(answer: Any) -> str:
    """Return what the throughput of an answer counts."""
    if isinstance(answer, PipelinePrediction):
        return f"{answer.made}s"
    phase = getattr(answer, "phase", "")
    if isinstance(answer, ScaleTable) and phase == "prefill":
        return "prompts"
    return "tokens" if phase == "decode" else "samples"


def _products(comparison: Comparison) -> list[str]:
    """Return what the pipelines of a comparison make: ``["image", "video"]``."""
    return sorted({answer.made for answer in comparison.answers if isinstance(answer, PipelinePrediction)})


def _differ_in_length(comparison: Comparison) -> bool:
    """Return whether all answers are steps that count tokens, and their samples do not have equally many."""
    if not all(isinstance(answer, (Prediction, ScaleTable)) for answer in comparison.answers):
        return False
    timed = [row for row in comparison.rows if row.get("throughput_per_s")]
    if any(not row.get("tokens_per_s") for row in timed):
        return False
    return len({round(row["tokens_per_s"] / row["throughput_per_s"]) for row in timed}) > 1


def in_unit(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the rows of a comparison with throughputs and costs of its unit.

    Samples of different lengths, and pictures and videos, have no speed-up over each other.
    """
    rows = [dict(row) for row in comparison.rows]
    have_lengths = _differ_in_length(comparison)
    for row in rows:
        if have_lengths or len(_products(comparison)) > 1:
            row |= {name: None for name in row if name.startswith("speedup")}
        if not have_lengths or not row.get("tokens_per_s"):
            continue
        tokens = row["tokens_per_s"] / row["throughput_per_s"]  # of a sample
        row["throughput_per_s"] = row["tokens_per_s"]
        if row.get("usd_per_million") is not None:
            row["usd_per_million"] /= tokens
    return rows


_CONFIGURATION = ("network", "gpu", "precision", "phase", "batch_size")
"""Settings; a table has columns for those that differ between its rows."""

_RESULTS = select_columns(
    "time_s", "low_s", "high_s", "bound_s", "energy_j", "throughput_per_s", "speedup", "speedup_low", "speedup_high",
    "memory_bytes", "fits", "usd_per_million", "hours", "cost_usd", "time_model", "compute_share", "memory_share",
    drop=(
        "compute_share", "memory_share", "time_model", "energy_j", "memory_bytes", "speedup_low", "speedup_high",
        "bound_s", "usd_per_million", "fits", "low_s", "high_s",
    ),
    short=True,
)  # fmt: skip


class _Ranked(NamedTuple):
    """A column by which answers are ranked."""

    column: str
    is_more_better: bool
    text: str  # unit and meaning of the best value, which follow its number; empty for `cost_of_products`


CONCLUSIONS = {
    "fastest": (
        _Ranked("latency_p50_s", False, "median latency"),
        _Ranked("throughput_per_s", True, "{unit}/s"),
        _Ranked("tokens_per_s", True, "tokens/s"),
    ),
    "cheapest": (
        _Ranked("usd_per_million_output_tokens", False, "USD per million output tokens"),
        _Ranked("cost_usd", False, "USD"),
        _Ranked("usd_per_million", False, ""),
    ),
}
"""Conclusions of a comparison, each with its columns: the first one that several rows have decides."""


def conclusions(comparison: Comparison) -> list[tuple[str, str]]:
    """Return which forecast is the fastest and which the cheapest, with its figure.

    Servers that are overloaded, or miss an objective, are neither. Pictures and videos are not ranked together.
    """
    products = _products(comparison)
    if len(products) > 1:
        return [("ranking", f"none: {' and '.join(f'{product}s' for product in products)} are different products")]
    unit = counted_unit(comparison)
    usable = [
        (row, label)
        for row, label in zip(in_unit(comparison), comparison.labels(), strict=True)
        if row.get("answer") == FORECAST
        and row.get("overloaded") != "yes"
        and row.get("meets") != "no"
        and row.get("fits") is not False
    ]
    facts = []
    for name, candidates in CONCLUSIONS.items():
        for ranked in candidates:
            values = [(row[ranked.column], label) for row, label in usable if row.get(ranked.column) is not None]
            if len(values) < 2:
                continue
            best, _ = (max if ranked.is_more_better else min)(values, key=lambda value: value[0])
            label = _join_ties([label for value, label in values if format_number(value) == format_number(best)])
            if ranked.column == "usd_per_million":
                figure = " ".join(cost_of_products(best, unit.removesuffix("s")))
            else:
                is_time = ranked.column.endswith("_s") and not ranked.is_more_better
                number = format_time_short(best) if is_time else format_number(best)
                figure = f"{number} {ranked.text.format(unit=unit)}"
            facts.append((name, f"{label}: {figure}"))
            break
    return facts


_TIES_NAMED = 3
"""Equally good answers that a conclusion names."""


def _join_ties(labels: Sequence[str]) -> str:
    """Return the names of equally good answers."""
    more = len(labels) - _TIES_NAMED
    named = [*labels[:_TIES_NAMED], *([f"{more} more"] if more > 0 else [])]
    return " and ".join(named)


def side_by_side_page(comparison: Comparison) -> Document:
    """Return the document of several predictions, with their common settings in the title."""
    first, table = comparison.baseline, comparison_table(comparison)
    shown = {column.key for column in table.columns}
    common = {key: str(table.rows[0][key]) for key in _CONFIGURATION if key not in shown}
    if "batch_size" in common:
        common["batch_size"] = f"batch {common['batch_size']}"
    title = f"{format_plural(len(table.rows), 'prediction')} side by side"
    if common:
        title += f": {', '.join(text for text in common.values() if text)}"
    baseline = f"{first.network} on {first.device.id}, {first.precision}, batch {first.batch_size}"
    unit = counted_unit(comparison)
    facts = conclusions(comparison)
    if len(table.rows) > 1 and any(row.get("speedup") is not None for row in table.rows):
        facts.append(("speed-up", f"ratio of {unit}/s to {baseline}; errors that both predictions share cancel"))
    forecasts = [prediction.is_forecast for prediction in comparison.answers]
    if any(forecasts) and not all(forecasts):
        facts.append(("bounds", "rows without a time have only a bound from the data sheet, no forecast"))
    if not any(prediction.convention == "given" for prediction in comparison.answers):
        facts.append(("bound", "shortest time that the data sheet allows (roofline)"))
    if "usd_per_million" in shown:
        column = next(column for column in table.columns if column.key == "usd_per_million")
        facts.append((column.heading, f"{unit}, at {_prices_of(comparison)}"))
    data = raw_table(comparison.rows)
    notes = [*(f"left out: {reason}" for reason in comparison.left_out), *_notes(comparison)]
    return Document(title, facts, [table], notes, data)


_PRICES_AT_MOST = 6
"""Devices up to which the prices of a comparison are named."""


def _prices_of(comparison: Comparison) -> str:
    """Return the prices that the costs are computed from, and whether they are of different clouds."""
    rents = dict.fromkeys(
        (answer.device.id, answer.device.rent.usd_per_h, answer.device.rent.cloud)
        for answer in comparison.answers
        if answer.device.rent is not None
    )
    clouds = {cloud for _, _, cloud in rents}
    differ = " of different clouds" if len(clouds) > 1 else ""
    if len(rents) > _PRICES_AT_MOST:
        return f"the recorded prices per hour{differ} (paleo-lite hardware show)"
    named = [f"{gpu} {usd_per_h:g}{f' ({cloud})' if cloud else ''}" for gpu, usd_per_h, cloud in rents]
    return f"prices per hour{differ}: {', '.join(named)} USD"


def _notes(comparison: Comparison) -> list[str]:
    """Return each note once, with what the predictions that have it have in common, if others do not have it."""
    notes = [
        [*_shortages(prediction), *(without_ranges(prediction.notes) if _has_no_time(row) else prediction.notes)]
        for prediction, row in zip(comparison.answers, comparison.rows, strict=True)
    ]
    if comparison.settings:
        return common_notes(comparison, notes)
    names = (f"{prediction.network} on {prediction.device.id}" for prediction in comparison.answers)
    return join_notes((name, note) for name, having in zip(names, notes, strict=True) for note in having)


def _has_no_time(row: Mapping[str, Any]) -> bool:
    """Return whether a row has no time, or that of a step that does not fit, of which ranges say nothing."""
    return row.get("time_s") is None or row.get("reason") is not None


def _shortages(prediction: AnyPrediction) -> list[str]:
    """Return what a prediction that does not fit into the memory needs, and what makes it fit."""
    memory = prediction.memory
    if memory is None or memory.fits:
        return []
    text = format_shortage(memory.total_bytes, memory.usable_bytes).removeprefix("; ")
    if isinstance(prediction, PipelinePrediction):
        return [f"{text}; {memory_remedy(prediction)}"]
    return [f"{text}; {describe_fitting(memory)}" if isinstance(memory, MemoryFit) else text]

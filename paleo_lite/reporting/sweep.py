"""Documents of sweeps: the summary of a run, its expected size, and its best rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..serving.answers import Serving
from ..serving.price_basis import PricedDevice, describe_prices
from ..sweeps.best import Best, is_better_larger
from ..sweeps.chunk import NUMBER_COLUMNS, STRING_COLUMNS
from ..sweeps.comparison import Comparison, are_steps
from ..sweeps.questions import OPTION_COLUMNS
from ..sweeps.rows import COLUMNS as ANSWER_COLUMNS
from ..sweeps.run import AnySpace, Sweep
from ..sweeps.words import column_label
from ..text import format_plural
from ..units import format_rate, format_si
from .answers import common_notes, with_price_of_one
from .columns import find_column, number_column, option_column, select_columns
from .document import (
    Column,
    Document,
    Table,
    raw_table,
)
from .side_by_side import conclusions, counted_unit, in_unit, side_by_side_page


def sweep_page(sweep: Sweep) -> Document:
    """Return the summary of a finished sweep."""
    facts = [
        ("feasible", f"{sweep.feasible:,}"),
        ("infeasible", f"{sweep.rows - sweep.feasible:,}, each with the reason"),
    ]
    if sweep.resumed:
        facts.append(("resumed", f"{sweep.resumed} of {sweep.chunks} chunks came from an earlier run"))
    duration = format_si(sweep.seconds, "s", 3)
    rate = "" if sweep.resumed else f", {format_rate(sweep.rows / sweep.seconds)} rows/s"
    facts.append(("duration", duration + rate))
    if sweep.samples is not None:  # otherwise rows have no such columns, or those of the question's own amount
        facts.append(("hours, cost and energy", f"for {format_si(sweep.samples)} samples"))
    return Document(title=f"{sweep.path}: {format_plural(sweep.rows, 'combination')}", facts=facts)


def size_lines(space: AnySpace) -> Document:
    """Return the expected size of a sweep."""
    facts = [
        ("combinations", space.describe()),
        ("expected", f"about {space.hours():,.3g} core hours, {space.gigabytes():,.3g} GB"),
    ]
    return Document(
        title=f"{format_plural(space.size, 'combination')} in {format_plural(space.chunk_count, 'chunk')}", facts=facts
    )


def best_page(best: Best) -> Document:
    """Return the best rows of a sweep; columns with the same value in all rows become facts above the table."""
    rows = _with_intervals(best.rows)
    columns = {column.key: column for column in _COLUMNS}
    shared = _shared_columns(rows)
    facts = [("rows", _count_rows(best))]
    facts += [(columns[name].heading, columns[name].text(rows[0])) for name in shared]
    facts += _knee_facts(best, columns, shared)
    others = _with_settings([column for column in _COLUMNS if column.key not in shared], rows)
    shown = [*_other_options(rows), *others]
    shown = _with_objectives(shown, [name for name in best.columns if name not in shared])
    title = f"{best.objective[0].upper()}{best.objective[1:]}"
    notes = []
    if best.worst_first:
        name = best.columns[0]
        better, option = ("larger", "--maximise") if is_better_larger(name) else ("smaller", "--minimise")
        notes.append(
            f"the first row is the worst: {column_label(name, rows[0])} is better the {better} it is, "
            f"and `{option} {name}` ranks the best first"
        )
    if best.bounds:
        notes.append(f"{best.bounds:,} rows that match are bounds, not forecasts; --bounds ranks them as well")
    for name, count in best.tasks.items():
        if count > 1 and best.rows[0].get(name):
            notes.append(
                f"rows of {count:,} {name}s are ranked together, though none is an alternative to that of another "
                f"{name}: choose one, as in `--where '{name} == {best.rows[0][name]}'`"
            )
    if len({row.get("answer") for row in rows}) > 1:
        notes.append("bounds (the limit of the data sheet) and forecasts (the expected time) are ranked together")
    prices = dict.fromkeys((row.get("gpu"), row["price"]) for row in rows if row.get("price"))
    if prices and any(row.get("cost_usd") is not None for row in rows):
        facts.append(("prices", "; ".join(f"{gpu} {price}" for gpu, price in prices)))
    shown = with_price_of_one(shown, rows)
    return Document(title, facts, [Table("", shown, rows).drop_empty_columns()], notes, raw_table(best.rows))


def _with_intervals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the interval of their time; None where an end is missing."""
    with_intervals = []
    for row in rows:
        low, high = row.get("low_s"), row.get("high_s")
        with_intervals.append({**row, "interval": None if low is None or high is None else (low, high)})
    return with_intervals


def _other_options(rows: list[dict[str, Any]]) -> list[Column]:
    """Return columns of the options that differ between rows and that no table has by itself, such as micro_batch."""
    excluded = {column.key for column in _COLUMNS} | {name for names in ANSWER_COLUMNS.values() for name in names}
    excluded |= {*NUMBER_COLUMNS, *STRING_COLUMNS, "interval", "batch_size_per_worker"}
    names = [name for name in rows[0] if name not in excluded and len({row.get(name) for row in rows}) > 1]
    # Other names and texts than those of options may stand in a file of unknown origin.
    options = [name for name in names if re.fullmatch(r"[a-z_]{1,40}", name)]
    return [option_column(name) for name in options]


def describe_settings(rows: list[dict[str, Any]]) -> list[str]:
    """Return the device of each row and the settings that tell rows apart, as text: ``h100-sxm, batch 8``."""
    if not rows:
        return []
    differing = [name for name in _SETTINGS if len({row.get(name) for row in rows}) > 1]
    given = [name for name in differing if name not in _FOLLOWING]
    names = [name for name in differing if name in given or not _follows(name, given, rows)]
    columns = [column for column in _COLUMNS if column.key in ("gpu", *names)]
    columns += _other_options(rows)
    return [
        ", ".join(_describe_setting(column, row) for column in columns if row.get(column.key) is not None)
        for row in rows
    ]


_SPEAKING = ("network", "gpu", "precision", "phase", "engine", "strategy", "link", "time_model", "execution")
"""Settings whose values need no name beside them."""


def _describe_setting(column: Column, row: dict[str, Any]) -> str:
    """Return a setting of a row, with its name where its value alone does not say what it is."""
    text = column.text(row)
    return text if column.key in _SPEAKING else f"{column.heading} {text}"


def _with_settings(shown: Sequence[Column], rows: Sequence[dict[str, Any]]) -> list[Column]:
    """Return columns of which those of settings that differ between rows are shown at any width."""
    differing = [name for name in _SETTINGS if len({row.get(name) for row in rows}) > 1]
    given = [name for name in differing if name not in _FOLLOWING]
    kept = [name for name in differing if name in given or not _follows(name, given, rows)]
    columns = []
    for column in shown:
        drop_order = column.drop_order
        if column.key in kept:
            drop_order = 0
        elif column.key not in _CONFIGURATION:
            drop_order = max(drop_order, 1)  # results make room for settings
        columns.append(column.replace(drop_order=drop_order))
    return columns


def _follows(name: str, given: Sequence[str], rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether rows that agree in the given settings agree in another one."""
    settings = {tuple(row.get(key) for key in given) for row in rows}
    return len(settings) == len({(*(row.get(key) for key in given), row.get(name)) for row in rows})


def _with_objectives(shown: Sequence[Column], objectives: Sequence[str]) -> list[Column]:
    """Return columns with those of the objectives, which are shown at any width."""
    keys = {column.key for column in shown}
    kept = [column.replace(drop_order=0) if column.key in objectives else column for column in shown]
    added = [number_column(name) for name in objectives if name not in keys]
    return [*kept, *select_columns(*added, short=True)]


def _knee_facts(best: Best, columns: dict[str, Column], shared: Sequence[str]) -> list[tuple[str, str]]:
    """Return the knee of a front: its setting, and what it saves and costs beside the first row."""
    knee = best.knee
    if knee is None or knee is best.rows[0]:
        return []
    differing = [name for name in _CONFIGURATION if name not in shared and knee.get(name) is not None]
    setting = ", ".join(columns[name].text(knee) for name in differing)
    changes = []
    for name in best.columns:
        change = knee[name] / best.rows[0][name] - 1
        changes.append(f"{abs(change):.1%} {'more' if change > 0 else 'less'} {column_label(name, knee)}")
    return [("knee", f"{setting}: {' and '.join(changes)} than the first row")]


def _shared_columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return the keys of the configuration that have the same value in all of several rows."""
    if len(rows) < 2:
        return []
    shared = []
    for column in _COLUMNS:
        is_shared = len({row.get(column.key) for row in rows}) == 1 and rows[0].get(column.key) is not None
        if column.key in _CONFIGURATION and is_shared:
            shared.append(column.key)
    return shared


def _count_rows(best: Best) -> str:
    """Return how many rows are listed, and how many there are."""
    listed = len(best.rows)
    if listed < best.front:
        return f"the first {listed} of {best.count_summary}"
    return best.count_summary if best.front else f"{listed} of {best.count_summary}"


_CONFIGURATION = (
    "network", "gpu", "power_limit_w", "clock", "precision", "phase", "time_model", "answer", "scaling", "strategy",
    "link", "collective", "workers", "sequence_length", "context", "batch_size", "weights", "tensor",
    "expert_parallel",
    "overloaded", "meets", "attention_data_parallel", "pipeline", "replicas", "rate_per_s", "concurrency", "execution",
    "offload", "image_size", "steps", "frames", "ulysses", "ring", "engine", "kv_cache",
)  # fmt: skip
"""Columns that are stated above the table where all rows agree."""

_SETTINGS = tuple(name for name in _CONFIGURATION if name not in ("answer", "overloaded", "meets"))
"""Columns of what was asked, without which rows that differ in nothing else look alike."""

_FOLLOWING = ("collective", "link", "time_model", "execution")
"""Settings that an answer chooses where none is given, and which then follow from the others."""

_COLUMNS = select_columns(
    "network", "gpu", "power_limit_w", "clock", "precision", "phase", "workers", "devices", "strategy", "scaling",
    "link", "collective", "sequence_length", "context", "batch_size", "engine", "weights", "kv_cache", "tensor",
    "expert_parallel", "attention_data_parallel", "pipeline", "replicas", "execution", "offload", "image_size",
    "steps", "frames", "ulysses", "ring", "rate_per_s", "concurrency", "tokens_per_s", "prompt_s", "overloaded",
    "meets", "ttft_p50_s", "tpot_p50_s", "latency_p99_s", "output_tokens_per_s_per_gpu", "output_tokens_per_s_per_user",
    "saturation_requests_per_s", "cache_occupancy", "usd_per_h", "usd_per_million_output_tokens",
    "joules_per_million_output_tokens", "time_s", "interval", "answer", "time_per_image_s", "bound_s",
    "throughput_per_s", "scaling_efficiency", "memory_bytes", "fits", find_column("flops_efficiency", key="efficiency"),
    "usd_per_million", "hours", "cost_usd", "energy_j", "kwh", "site_kwh", "electricity_usd", "co2_g", "time_model",
    drop=(
        "collective", "pipeline", "scaling_efficiency", "time_model", "scaling", "link", "strategy", "execution",
        "cache_occupancy", "energy_j", "devices", "latency_p99_s", "bound_s", "efficiency", "expert_parallel",
        "attention_data_parallel", "interval", "time_per_image_s", "precision", "replicas",
        "joules_per_million_output_tokens", "answer", "phase", "frames", "saturation_requests_per_s", "ulysses",
        "ring", "memory_bytes", "usd_per_million", "output_tokens_per_s_per_user", "throughput_per_s", "site_kwh",
        "engine", "kv_cache", "weights", "offload", "usd_per_h", "kwh", "tensor", "hours",
    ),
    short=True,
)  # fmt: skip


def comparison_page(comparison: Comparison) -> Document:
    """Return the answers of one kind of question side by side; what they have in common stands above the table."""
    if are_steps(comparison.answers):
        return side_by_side_page(comparison)
    rows, unit = _with_intervals(in_unit(comparison)), counted_unit(comparison)
    columns = {column.key: column for column in _COLUMNS}
    stated = [name for name in _CONFIGURATION if any(row.get(name) is not None for row in rows)]
    compared = [OPTION_COLUMNS[name][0] if name in OPTION_COLUMNS else name for name in comparison.compared]
    shared = [name for name in _shared_columns(rows) if name not in compared]
    first = [columns.get(name, option_column(name)).replace(drop_order=0) for name in compared]
    hidden = [*shared, *compared]
    if all(row.get("fits") is not False for row in rows):
        hidden.append("fits")
    if unit == "tokens":
        hidden.append("throughput_per_s")  # equals the tokens per second
    if all(row.get("strategy") == "3d" for row in rows):
        hidden.append("strategy")  # the only one of language models, by the degrees that are shown
    units = {"throughput_per_s": f"{unit}\nper s", "usd_per_million": f"USD per 1M\n{unit}"}
    others = [
        column.replace(title=units.get(column.key, column.title)) for column in _COLUMNS if column.key not in hidden
    ]
    facts = conclusions(comparison)
    facts += [
        (columns[name].heading, columns[name].text(rows[0])) for name in shared if name in stated and name != "strategy"
    ]
    priced = [
        PricedDevice(answer.gpu, answer.price_usd_per_h, answer.price_cloud)
        for answer in comparison.answers
        if isinstance(answer, Serving)
    ]
    if priced:
        facts.append(("prices", describe_prices(priced)))
    prices = dict.fromkeys((row.get("gpu"), row["price"]) for row in rows if row.get("price"))
    if prices:
        facts.append(("prices", "; ".join(f"{gpu} {price}" if gpu else price for gpu, price in prices)))
    notes = [f"left out: {reason}" for reason in comparison.left_out]
    notes += common_notes(comparison, [getattr(answer, "notes", ()) for answer in comparison.answers])
    others = with_price_of_one(others, rows)
    table = Table("Side by side", [*first, *others], rows, sortable=True).drop_empty_columns()
    title = f"{format_plural(len(rows), 'answer')} side by side"
    return Document(title, facts, [table], notes, raw_table(comparison.rows))

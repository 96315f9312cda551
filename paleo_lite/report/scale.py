"""Scaling to look at: one line per number of workers, or per strategy."""

from __future__ import annotations

from typing import NamedTuple

from ..distributed.step import ScaleRow
from ..distributed.table import ScaleTable
from ..result import BOUND
from ..units import format_si, say_interval, say_number
from ..version import __version__
from .document import (
    Column,
    Document,
    Table,
    say_percent,
    say_size_briefly,
    say_three_digits,
    say_time_briefly,
    say_yes_or_no,
)


class _Said(NamedTuple):
    """What a step of a phase is called, what of it is counted, and the title of its time."""

    step: str
    samples: str
    title: str


_SAID = {
    "training": _Said("per step", "samples", "step"),
    "prefill": _Said("to the first token", "prompts", "first\ntoken"),
    "decode": _Said("per token", "tokens", "token"),
}


def scale_page(table: ScaleTable) -> Document:
    """The page of a scaling prediction."""
    columns = _columns(table)
    rows = Table("", columns, [{column.key: getattr(row, column.key) for column in columns} for row in table.rows])
    facts = [("machine", table.topology)] + [("link", link) for link in table.links]
    answer = table.rows[0 if table.why else -1] if table.rows else None  # advice has the best first
    if table.is_forecast and answer is not None and answer.bound_s is not None:
        facts.append((BOUND, f"{format_si(answer.bound_s, 's')} by the data sheets"))
    facts.append(("time model", table.model))
    if table.memory_bytes is not None:
        facts.append(("memory", f"{format_si(table.memory_bytes, 'B')} per device"))
    if table.images is not None:
        samples = "images" if answer is None or answer.tokens is None else "sequences"
        spent = f"{format_si(table.images)} {samples}, {table.epochs:g} epoch{'' if table.epochs == 1 else 's'}"
        price = "price not known" if table.price_usd_per_h is None else f"{table.price_usd_per_h:g} USD/h per device"
        facts.append(("hours and cost", f"for {spent}; {price}"))
    notes = list(table.notes)
    for row in table.rows:
        notes += [f"{_named(table, row)}: {note}" for note in row.notes]
    notes += [f"left out: {name}: {reason}" for name, reason in table.refused.items()]
    return Document(_headline(table), facts, [rows], _merged(notes), lambda: _data(table, rows))


def _data(table: ScaleTable, rows: Table) -> Table:
    """What CSV gives: the same, each row with what it was computed by."""
    made = {"time_model": table.model, "version": __version__}
    columns = [*rows.columns, *(Column(name, name) for name in made)]
    return rows.but(columns=columns, rows=[{**row, **made} for row in rows.rows])


def _headline(table: ScaleTable) -> str:
    said, scaling = _SAID[table.phase], f", {table.scaling} scaling" if table.phase == "training" else ""
    head = f"{table.network} on {table.gpu_name}, {table.precision} {table.phase}{scaling}"
    batch = f"batch {table.batch_size}" + (" per worker" if table.scaling == "weak" else "")
    if table.why:
        best = "" if table.is_forecast else " by the best case of the data sheets"
        return f"{head}, {batch}, {table.rows[0].workers} workers{best}: {table.why}"
    last = table.rows[-1]
    time = format_si(last.time_s, "s")
    if not table.is_forecast:
        time = f"the best case of the data sheets, at least {time}"
    answer = f"{last.workers} worker{'' if last.workers == 1 else 's'}: {time} {said.step}"
    if last.interval is not None:
        answer += f" ({say_interval(last.interval)} at 90%)"
    answer += f", {say_number(last.throughput_per_s)} {said.samples} per second"
    if last.over != last.workers or last.workers == 1:
        answer += f", {last.speedup / last.over:.4g} times {_over(last)} ({_efficiency(last)})"
    refused = "; it does not fit into memory" if last.fits is False else ""
    strategy = f", {last.strategy}" if table.phase == "training" else ""
    return f"{head}, {batch}{strategy}: {answer}{refused}"


def _over(row: ScaleRow) -> str:
    return "one worker" if row.over == 1 else f"{row.over} workers"


def _efficiency(row: ScaleRow) -> str:
    if row.efficiency_interval is None:
        return f"{row.efficiency:.1%}"
    low, high = row.efficiency_interval
    return f"{row.efficiency:.1%}, {low:.0%} to {high:.0%} at 90%"


def _named(table: ScaleTable, row: ScaleRow) -> str:
    return row.strategy if table.why else f"{row.workers} workers"


def _merged(notes: list[str]) -> list[str]:
    """The same said of several rows is said once."""
    said: dict[str, list[str]] = {}
    for note in notes:
        who, colon, what = note.partition(": ")
        said.setdefault(what if colon else note, []).append(who if colon else "")
    return [f"{', '.join(whom)}: {what}" if whom != [""] else what for what, whom in said.items()]


def _columns(table: ScaleTable) -> list[Column]:
    def known(name: str) -> bool:
        return any(getattr(row, name) is not None for row in table.rows)

    first = [Column("workers", "workers"), Column("batch_size", "batch", spare=2)]
    if table.why:
        first = [Column("strategy", "strategy", left=True)]
        if any(row.fits is False for row in table.rows):
            first.append(Column("fits", "fits", say_yes_or_no, left=True))
    said, trains = _SAID[table.phase], table.phase == "training"
    columns = [
        *first,
        Column("compute_s", "compute", say_time_briefly, spare=3),
        Column("exposed_s", "exposed\nexchange", say_time_briefly, spare=1),
        *([Column("hidden_s", "hidden\nexchange", say_time_briefly, spare=6)] if trains else []),
        *([Column("update_s", "update", say_time_briefly, spare=7)] if trains else []),
        *([Column("input_s", "input\nwait", say_time_briefly)] if any(row.input_s for row in table.rows) else []),
        Column("time_s", said.title, say_time_briefly),
        *([Column("interval", "at 90%", say_interval)] if known("interval") else []),
        *([Column("bound_s", "at least", say_time_briefly, spare=5)] if table.is_forecast and known("bound_s") else []),
        Column("throughput_per_s", f"{said.samples}\nper s", say_number, spare=4),
    ]
    if any(row.over != row.workers or row.workers == 1 for row in table.rows):  # else there is nothing to compare
        columns += [
            Column("speedup", "speed-up", lambda value: f"{value:.4g}", spare=1),
            Column("efficiency", "efficiency", say_percent),
        ]
    for key, title, show, spare in (
        ("flops_per_s", "per device", lambda value: format_si(value, "FLOP/s", 3), 10),
        ("mfu", "MFU", say_percent, 9),
        *([("tokens_per_s", "tokens\nper s", say_number, 4)] if table.phase != "decode" else []),
        ("kwh_per_million", f"kWh per\n1M {said.samples}", say_three_digits, 11),
        ("cost_per_million", f"USD per\n1M {said.samples}", say_number, 9),
        ("memory_bytes", "memory", say_size_briefly, 5),
        ("hours", "hours", say_number, 0),
        ("kwh", "kWh", say_number, 8),
        ("cost", "USD", say_number, 0),
    ):
        if known(key):
            columns.append(Column(key, title, show, spare=spare))
    if any(row.collective for row in table.rows):
        columns.append(Column("collective", "collective", left=True, spare=8))
    columns.append(Column("limited_by", "limited by", left=True, fold=True))
    return columns

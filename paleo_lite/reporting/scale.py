"""Scaling to look at: one line per number of workers, or per strategy."""

from __future__ import annotations

from typing import NamedTuple

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
    values = [{column.key: getattr(row, column.key) for column in columns} for row in table.rows]
    rows = Table("", columns, values).known()
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
        notes += [f"{row.strategy if table.why else f'{row.workers} workers'}: {note}" for note in row.notes]
    notes += [f"left out: {name}: {reason}" for name, reason in table.refused.items()]
    said: dict[str, list[str]] = {}  # the same of several rows is said once
    for note in notes:
        who, colon, what = note.partition(": ")
        said.setdefault(what if colon else note, []).append(who if colon else "")
    notes = [f"{', '.join(whom)}: {what}" if whom != [""] else what for what, whom in said.items()]
    return Document(_headline(table), facts, [rows], notes, lambda: _data(table, rows))


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
        over, share = "one worker" if last.over == 1 else f"{last.over} workers", f"{last.efficiency:.1%}"
        if last.efficiency_interval is not None:
            low, high = last.efficiency_interval
            share += f", {low:.0%} to {high:.0%} at 90%"
        answer += f", {last.speedup / last.over:.4g} times {over} ({share})"
    refused = "; it does not fit into memory" if last.fits is False else ""
    strategy = f", {last.strategy}" if table.phase == "training" else ""
    return f"{head}, {batch}{strategy}: {answer}{refused}"


def _columns(table: ScaleTable) -> list[Column]:
    """What a phase and a question have to show, as far as it is known of any row."""
    said = _SAID[table.phase]
    left_out = {"workers", "batch_size"} if table.why else {"strategy", "fits"}
    if all(row.fits is not False for row in table.rows):
        left_out.add("fits")
    if table.phase != "training":
        left_out |= {"hidden_s", "update_s"}
    if table.phase == "decode":
        left_out.add("tokens_per_s")  # each step is one of every sequence: those are its samples
    if not any(row.input_s for row in table.rows):
        left_out.add("input_s")
    if not table.is_forecast:
        left_out.add("bound_s")
    if all(row.over == row.workers != 1 for row in table.rows):  # nothing to compare with
        left_out |= {"speedup", "efficiency"}
    if not any(row.collective for row in table.rows):
        left_out.add("collective")
    columns = [
        Column("workers", "workers"),
        Column("batch_size", "batch", spare=2),
        Column("strategy", "strategy", left=True),
        Column("fits", "fits", say_yes_or_no, left=True),
        Column("compute_s", "compute", say_time_briefly, spare=3),
        Column("exposed_s", "exposed\nexchange", say_time_briefly, spare=1),
        Column("hidden_s", "hidden\nexchange", say_time_briefly, spare=6),
        Column("update_s", "update", say_time_briefly, spare=7),
        Column("input_s", "input\nwait", say_time_briefly),
        Column("time_s", said.title, say_time_briefly),
        Column("interval", "at 90%", say_interval),
        Column("bound_s", "at least", say_time_briefly, spare=5),
        Column("throughput_per_s", f"{said.samples}\nper s", say_number, spare=4),
        Column("speedup", "speed-up", "{:.4g}".format, spare=1),
        Column("efficiency", "efficiency", say_percent),
        Column("flops_per_s", "per device", lambda value: format_si(value, "FLOP/s", 3), spare=10),
        Column("mfu", "MFU", say_percent, spare=9),
        Column("tokens_per_s", "tokens\nper s", say_number, spare=4),
        Column("kwh_per_million", f"kWh per\n1M {said.samples}", say_three_digits, spare=11),
        Column("cost_per_million", f"USD per\n1M {said.samples}", say_number, spare=9),
        Column("memory_bytes", "memory", say_size_briefly, spare=5),
        Column("hours", "hours", say_number),
        Column("kwh", "kWh", say_number, spare=8),
        Column("cost", "USD", say_number),
        Column("collective", "collective", left=True, spare=8),
        Column("limited_by", "limited by", left=True, fold=True),
    ]
    return [column for column in columns if column.key not in left_out]

"""Sweeps to look at: what was written, and the best rows of it."""

from __future__ import annotations

from ..sweeps.best import Best
from ..sweeps.run import Sweep
from ..sweeps.space import Space
from ..units import format_si, say_interval, say_number
from .document import (
    Column,
    Document,
    Table,
    raw_table,
    say_count,
    say_many,
    say_percent,
    say_size_briefly,
    say_three_digits,
    say_time_briefly,
)


def sweep_page(done: Sweep) -> Document:
    """What a finished sweep wrote."""
    facts = [("feasible", f"{done.feasible:,}"), ("infeasible", f"{done.rows - done.feasible:,}, each with its reason")]
    if done.resumed:
        facts.append(("resumed", f"{done.resumed} of {done.chunks} chunks were there from an earlier run"))
    took = format_si(done.seconds, "s", 3)
    facts.append(("took", took if done.resumed else f"{took}, {done.rows / done.seconds:,.0f} rows per second"))
    facts.append(("hours, cost and energy", f"for {format_si(done.samples)} samples"))
    return Document(title=f"{done.path}: {say_many(done.rows, 'combination')}", facts=facts)


def size_lines(space: Space) -> Document:
    """How large a sweep would be."""
    facts = [
        ("combinations", space.describe()),
        ("takes about", f"{space.hours():,.3g} core hours, {space.gigabytes():,.3g} GB"),
    ]
    return Document(
        title=f"{say_many(space.size, 'combination')} in {say_many(space.chunk_count, 'chunk')}", facts=facts
    )


def best_page(best: Best) -> Document:
    """The best rows; a column whose value is the same in all of them stands above the table."""
    intervals = [(row.get("low_s"), row.get("high_s")) for row in best.rows]
    rows = [{**row, "interval": None if None in both else both} for row, both in zip(best.rows, intervals)]
    known = {column.key: column for column in _COLUMNS}
    shared = [] if len(rows) < 2 else [
        name for name in known
        if name in _CONFIGURATION and len({row.get(name) for row in rows}) == 1 and rows[0].get(name) is not None
    ]  # fmt: skip
    facts = [(known[name].title, known[name].text(rows[0])) for name in shared]
    columns = [column for column in _COLUMNS if column.key not in shared]
    headline = f"{best.objective[0].upper()}{best.objective[1:]}"
    shown = f"the first {len(rows)} of " if len(rows) < best.front else "" if best.front else f"{len(rows)} of "
    facts.insert(0, ("rows", shown + best.counted))
    notes = []
    if best.bounds:
        notes.append(f"{best.bounds:,} rows that would fit are bounds, not forecasts: --bounds ranks them, too")
    if len({row.get("answer") for row in rows}) > 1:
        notes.append("bounds say what no device beats, forecasts what to expect: they are ranked together here")
    return Document(headline, facts, [Table("", columns, rows).known()], notes, raw_table(best.rows))


_CONFIGURATION = (
    "network", "gpu", "precision", "phase", "time_model", "answer", "scaling", "strategy", "link", "collective",
    "workers", "sequence_length", "batch_size",
)  # fmt: skip

_COLUMNS = [
    Column("network", "network", left=True),
    Column("gpu", "GPU", left=True),
    Column("precision", "precision", left=True, spare=6),
    Column("phase", "phase", left=True, spare=5),
    Column("workers", "workers"),
    Column("strategy", "strategy", left=True, spare=9),
    Column("scaling", "scaling", left=True, spare=11),
    Column("link", "link", left=True, spare=10),
    Column("collective", "collective", left=True, spare=13),
    Column("sequence_length", "tokens", say_count),
    Column("batch_size", "batch", say_count),
    Column("time_s", "time", say_time_briefly),
    Column("interval", "at 90%", say_interval, spare=7),
    Column("answer", "answer", left=True, spare=6),
    Column("bound_s", "at least", say_time_briefly, spare=8),
    Column("throughput_per_s", "samples\nper s", say_number, spare=3),
    Column("memory_bytes", "memory", say_size_briefly, spare=4),
    Column("efficiency", "of peak", say_percent, spare=8),
    Column("hours", "hours", say_three_digits, spare=1),
    Column("cost", "cost\nUSD", say_three_digits),
    Column("energy_j", "energy", lambda value: format_si(value, "J", 3), spare=2),
    Column("time_model", "time model", left=True, spare=12),
]

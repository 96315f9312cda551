"""Page and chart points of the validation of links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from paleo_lite.reporting.charts.accuracy import Pair, interval_of
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent, format_percent_rounded
from paleo_lite.units import format_si

from .hold_out import ExchangePoint, ExchangeRow


def exchange_validation_page(
    rows: Sequence[ExchangeRow], points: Sequence[ExchangePoint], left_out: Mapping[str, int]
) -> Document:
    """Return the page with the errors of links, the worst points, and the omitted rows."""
    tables = [
        Table(title, _COLUMNS, [msgspec.to_builtins(row) for row in rows if row.held_out == kind])
        for kind, title in (
            ("sizes", "Message sizes held out, every seventh at a time"),
            ("workers", "Each number of workers held out: its PPP comes from neighbouring numbers"),
        )
    ]
    worst = Table(
        "Worst points, message sizes held out",
        [
            Column("platform", "platform", left=True),
            Column("operation", "operation", left=True),
            Column("workers", "workers"),
            Column("message_bytes", "message", lambda value: format_si(value, "B", 3)),
            Column("time_s", "measured", lambda value: format_si(value, "s", 3)),
            Column("predicted_s", "predicted", lambda value: format_si(value, "s", 3)),
            Column("error", "error", lambda value: f"{value:+.0%}"),
        ],
        [
            {**msgspec.to_builtins(point.exchange), "predicted_s": point.predicted_s, "error": point.error}
            for point in sorted((p for p in points if p.held_out == "sizes"), key=lambda p: -abs(p.error))[:10]
        ],
    )
    facts = []
    for kind, text in (("sizes", "message sizes held out"), ("workers", "numbers of workers held out")):
        chosen = [row for row in rows if row.held_out == kind]
        if chosen:
            names = ("mape", "median", "data_sheet")
            mean, middle, table = (np.mean([getattr(row, name) for row in chosen]) for name in names)
            facts.append((text, f"{mean:.1%} mean, {middle:.1%} median absolute error; data table alone {table:.0%}"))
    inside = sum(row.coverage_90 * row.points for row in rows if row.held_out == "sizes")
    total = sum(row.points for row in rows if row.held_out == "sizes")
    facts.append(("within", f"{inside / total:.0%} of {total} points lie in their 90% interval, sizes held out"))
    groups = len({(row.platform, row.operation) for row in rows})
    notes = [f"{count} rows omitted: {reason}" for reason, count in sorted(left_out.items())]
    data = Table("", (Column("held_out", "held out", left=True), *_COLUMNS), [msgspec.to_builtins(row) for row in rows])
    return Document(f"collectives: {groups} groups of {total} measurements", facts, [*tables, worst], notes, data)


_COLUMNS = (
    Column("platform", "platform", left=True),
    Column("link", "link", left=True, drop_order=5),
    Column("operation", "operation", left=True),
    Column("points", "points", drop_order=4),
    Column("mape", "MAPE", format_percent),
    Column("median", "median", format_percent, drop_order=2),
    Column("p90", "90th\npercentile", format_percent, drop_order=3),
    Column("bias", "bias", lambda value: f"{value:+.1%}", drop_order=6),
    Column("coverage_90", "within\n90%", format_percent_rounded, drop_order=1),
    Column("sharpness_90", "ratio of\nends", "{:.2f}".format, drop_order=1),
    Column("data_sheet", "data\nsheet", format_percent_rounded),
)


def exchange_pairs(points: Iterable[ExchangePoint]) -> list[Pair]:
    """Return the points of the chart of held-out collectives, by operation."""
    return [
        Pair(f"{format_si(e.message_bytes, 'B')}, {e.workers} workers, {e.platform}, {p.held_out} held out",
             e.operation, e.time_s, p.predicted_s, interval_of(p.predicted_s, p.deviation))
        for p in points for e in [p.exchange]
    ]  # fmt: skip

"""Links, what was measured of them, and how true their models are, to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..units import format_si
from .sheet import Column, Page, Sheet

if TYPE_CHECKING:
    from ..calibration.validate_collectives import ExchangePoint, ExchangeRow
    from ..scaling.link_calibration import LinkCalibration


def share(value: float) -> str:
    """One digit behind the point: ``6.4%``."""
    return f"{value:.1%}"


def span(values: Sequence[float]) -> str:
    """``0.72 to 0.80``, or the one value."""
    low, high = min(values), max(values)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def calibrated_links_sheet(calibrations: Mapping[str, LinkCalibration]) -> Sheet:
    """Every measured platform: what its collectives cost, and how far off the model is on what was held out."""
    rows = [
        {
            "name": name,
            "link": calibration.link,
            "platform": calibration.platform,
            "stands_for_link": calibration.stands_for_link,
            "operation": operation,
            **msgspec.structs.asdict(fit),
        }
        for name, calibration in calibrations.items()
        for operation, fit in calibration.operations.items()
    ]
    return Sheet(
        "Measured collectives; what has * stands for its link where that is named",
        [
            Column("name", "name", left=True),
            Column("link", "link", left=True, spare=3),
            Column("stands_for_link", "", lambda value: "*" if value else "", left=True),
            Column("operation", "operation", left=True),
            Column("start_s", "start", lambda value: format_si(value, "s", 3), spare=4),
            Column("latency_s", "latency", lambda value: format_si(value, "s", 3)),
            Column("ppp", "PPP", span),
            Column("held_out_sizes", "held-out\nerror", share),
            Column("platform", "measured on", left=True, fold=True, spare=2),
            Column("points", "points", spare=5),
        ],
        rows,
    )


def add_measured(page: Page, calibrations: Mapping[str, LinkCalibration]) -> Page:
    """The page with what was measured below its own tables."""
    return msgspec.structs.replace(page, sheets=[*page.sheets, calibrated_links_sheet(calibrations)])


def exchange_validation_page(
    rows: Sequence[ExchangeRow], points: Sequence[ExchangePoint], left_out: Mapping[str, int]
) -> Page:
    """The table of truth of links, the points it is worst at, and what was not read."""
    sheets = [
        Sheet(title, _COLUMNS, [msgspec.to_builtins(row) for row in rows if row.held_out == kind])
        for kind, title in (
            ("sizes", "Message sizes held out, every seventh at a time"),
            ("workers", "Each number of workers held out: its PPP is that of the numbers beside it"),
        )
    ]
    worst = Sheet(
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
            mean, middle, sheet = (np.mean([getattr(row, name) for row in chosen]) for name in names)
            facts.append((text, f"{mean:.1%} mean, {middle:.1%} median absolute error; data sheet alone {sheet:.0%}"))
    inside = sum(row.coverage_90 * row.points for row in rows if row.held_out == "sizes")
    total = sum(row.points for row in rows if row.held_out == "sizes")
    facts.append(("within", f"{inside / total:.0%} of {total} points lie in their 90 % interval, sizes held out"))
    groups = len({(row.platform, row.operation) for row in rows})
    notes = [f"left out, {count} rows: {reason}" for reason, count in sorted(left_out.items())]
    data = Sheet("", (Column("held_out", "held out", left=True), *_COLUMNS), [msgspec.to_builtins(row) for row in rows])
    return Page(f"collectives: {groups} groups of {total} measurements", facts, [*sheets, worst], notes, data)


_COLUMNS = (
    Column("platform", "platform", left=True),
    Column("link", "link", left=True, spare=5),
    Column("operation", "operation", left=True),
    Column("points", "points", spare=4),
    Column("mape", "MAPE", share),
    Column("median", "median", share, spare=2),
    Column("p90", "90th\npercentile", share, spare=3),
    Column("bias", "bias", lambda value: f"{value:+.1%}", spare=6),
    Column("coverage_90", "within\n90 %", lambda value: f"{value:.0%}", spare=1),
    Column("data_sheet", "data\nsheet", lambda value: f"{value:.0%}"),
)

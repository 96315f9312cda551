"""Links and what was measured of them, to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..units import format_si
from .document import Column, Document, Table

if TYPE_CHECKING:
    from ..distributed.link_calibration import LinkCalibration


def share(value: float) -> str:
    """One digit behind the point: ``6.4%``."""
    return f"{value:.1%}"


def span(values: Sequence[float]) -> str:
    """``0.72 to 0.80``, or the one value."""
    low, high = min(values), max(values)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def calibrated_links_table(calibrations: Mapping[str, LinkCalibration]) -> Table:
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
    return Table(
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


def add_measured(page: Document, calibrations: Mapping[str, LinkCalibration]) -> Document:
    """The page with what was measured below its own tables."""
    return msgspec.structs.replace(page, content=[*page.tables, calibrated_links_table(calibrations)])

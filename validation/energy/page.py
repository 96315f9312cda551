"""Page of held-out powers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent, format_percent_rounded

from ..columns import ERROR_COLUMNS
from .forecasts import JoulesRow
from .hold_out import EnergyRow, PowerPoint


def energy_page(rows: Sequence[EnergyRow], points: Sequence[PowerPoint]) -> Document:
    """Return a page with error, coverage and width by split and device, and the error of the rated power."""
    table = Table(
        "Powers held out",
        [
            Column("split", "held out", left=True),
            Column("device", "judged on", left=True),
            Column("kind", "kind", left=True),
            Column("points", "powers"),
            *ERROR_COLUMNS,
            Column("rated", "rated\npower", format_percent),
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    errors = [abs(point.error) for point in points]
    inside = np.mean([point.is_inside for point in points])
    headline = (
        f"{len(points)} powers with their model held out: {np.median(errors):.1%} off in the median, "
        f"{inside:.0%} within 90%"
    )
    return Document(headline, (), [table], [])


def joules_page(rows: Sequence[JoulesRow]) -> Document:
    """Return a page with the errors of power and energy of servers and pipelines whose times are forecast, too."""
    table = Table(
        "Forecast times, with the model held out from the power",
        [
            Column("device", "judged on", left=True),
            Column("kind", "kind", left=True),
            Column("points", "points"),
            Column("watts", "watts,\nmedian", format_percent),
            Column("watts_coverage_90", "within\n90%", format_percent_rounded),
            Column("joules", "joules,\nmedian", format_percent),
            Column("joules_coverage_90", "within\n90%", format_percent_rounded),
            Column("joules_sharpness_90", "ratio of\nends", "{:.2f}".format),
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    total = rows[-1]
    headline = (
        f"{total.points} servers and batches of pictures or videos: watts {total.watts:.1%} and joules per token or "
        f"picture {total.joules:.1%} off in the median"
    )
    return Document(headline, (), [table], [])

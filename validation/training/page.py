"""Page and chart points of held-out training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from paleo_lite.reporting.charts.accuracy import Pair
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent

from ..columns import error_columns
from .hold_out import HeldOutTraining
from .published import TrainedStep


def training_page(rows: Sequence[HeldOutTraining], left_out: Mapping[str, int]) -> Document:
    """Return a page with error, coverage and width by split, and the error of assuming a constant MFU."""
    table = Table(
        "Training steps of language models held out",
        [
            Column("split", "split", left=True),
            Column("fitted_to", "fitted to", left=True),
            Column("source", "judged on", left=True),
            Column("points", "steps"),
            *error_columns("mape", "median", "coverage_90", "width_90", "sharpness_90"),
            Column("constant_mfu", "one MFU", format_percent),
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    own_error, constant_error = (np.mean([getattr(row, name) for row in rows]) for name in ("mape", "constant_mfu"))
    headline = (
        f"{len(rows)} parts held out: {own_error:.1%} mean absolute error on average, "
        f"{constant_error:.1%} by one MFU for all, {np.mean([row.coverage_90 for row in rows]):.0%} within 90%"
    )
    notes = [f"left out: {number} of {reason}" for reason, number in sorted(left_out.items())]
    return Document(headline, (), [table], notes)


def training_pairs(pairs: Sequence[tuple[TrainedStep, float]]) -> list[Pair]:
    """Return the points of the chart, grouped by source."""
    return [
        Pair(f"{s.model}, {s.workers} {s.gpu}: {s.split.describe_degrees(0)}", s.source, s.time_s, seconds)
        for s, seconds in pairs
    ]

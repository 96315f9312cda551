"""Records and columns of errors that tables of held-out measurements share."""

from __future__ import annotations

import msgspec

from paleo_lite.reporting.columns import find_column, select_columns
from paleo_lite.reporting.document import Column

ERROR_COLUMNS = (
    *select_columns("mape", "median", "bias"),
    # Headings of two columns are shorter than elsewhere: the tables are wide.
    find_column("coverage_90", title="within\n90%"),
    find_column("width_90", title="width"),
    find_column("sharpness_90"),
)
"""Mean and median absolute relative error, median relative error, share inside the 90% interval, its width relative to
the forecast, and the median ratio between its ends."""


def error_columns(*keys: str) -> list[Column]:
    """Return some of the columns of errors, in the given order."""
    by_key = {column.key: column for column in ERROR_COLUMNS}
    return [by_key[key] for key in keys]


class GroupErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a group of measurements."""

    group: str  # group that is judged
    points: int  # measurements
    # Median and mean absolute relative error, and median relative error.
    median: float
    mape: float
    bias: float
    # Share of the measurements inside the 90% interval, and the median ratio between its ends.
    coverage_90: float
    sharpness_90: float


GROUP_COLUMNS = error_columns("median", "mape", "bias", "coverage_90", "sharpness_90")
"""Columns of the errors of `GroupErrors`."""


class ScoredErrors(GroupErrors, frozen=True, kw_only=True):
    """Errors of a group of measurements, with the quality of their intervals in one number."""

    score: float  # mean interval score of the logarithm (`paleo_lite.calibration.accuracy.interval_scores`)


SCORED_COLUMNS = [*GROUP_COLUMNS, Column("score", "interval\nscore", "{:.2f}".format)]
"""Columns of the errors of `ScoredErrors`."""

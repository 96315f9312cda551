"""Records and columns of errors that tables of held-out measurements share."""

from __future__ import annotations

import msgspec

from paleo_lite.reporting.document import Column, format_percent

ERROR_COLUMNS = (
    Column("mape", "MAPE", format_percent),
    Column("median", "median", format_percent),
    Column("bias", "bias", lambda value: f"{value:+.1%}"),
    Column("coverage_90", "within\n90%", lambda value: f"{value:.0%}"),
    Column("width_90", "width", format_percent),
    Column("sharpness_90", "ratio of\nends", "{:.2f}".format),
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

"""Columns of errors that tables of held-out measurements share."""

from __future__ import annotations

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

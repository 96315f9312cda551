"""Columns of a sweep's rows about the facility: energy at the meter, and its cost and CO2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import BadValue

if TYPE_CHECKING:
    from ..timing.facility import Facility

SITE_COLUMNS = {
    "site_kwh": "`--site`, such as `--site pue=1.2`",
    "electricity_usd": "`--site electricity=0.12`",
    "co2_g": "`--site carbon-intensity=400`",
}
"""Columns that `with_site` adds, and the options with which it does."""

_TOKENS = 1e6
"""Output tokens to which the energy in a row of a server belongs."""


def site_columns(facility: Facility | None) -> list[str]:
    """Return the columns that a facility adds to the rows of a sweep."""
    if facility is None:
        return []
    prices = {"electricity_usd": facility.usd_per_kwh, "co2_g": facility.g_per_kwh}
    return ["site_kwh", *(name for name, per_kwh in prices.items() if per_kwh is not None)]


def check_site_columns(names: Iterable[str], facility: Facility | None) -> None:
    """Raise BadValue if a requested column is about a facility, and the facility does not add it."""
    added = site_columns(facility)
    for name in names:
        if name in SITE_COLUMNS and name not in added:
            raise BadValue(f"the column {name} needs {SITE_COLUMNS[name]}")


def with_site(rows: Any, facility: Facility | None) -> Any:
    """Return a record batch of pyarrow with the columns of `site_columns`; without a facility nothing is added.

    They are those of the energy in the row: of its samples, or of a million output tokens of a server.
    """
    if facility is None:
        return rows
    import pyarrow as pa
    import pyarrow.compute as pc

    from ..timing.facility import JOULES_PER_KWH

    names = rows.schema.names
    if "joules_per_million_output_tokens" in names:
        devices_j = rows.column("joules_per_million_output_tokens")
        device_seconds = pc.divide(pc.multiply(rows.column("devices"), _TOKENS), rows.column("output_tokens_per_s"))
    else:
        devices_j = pc.multiply(rows.column("kwh"), JOULES_PER_KWH)
        devices = rows.column("devices" if "devices" in names else "workers")
        device_seconds = pc.multiply(pc.multiply(rows.column("hours"), 3600.0), devices)
    site = facility.site_energy(_numbers(devices_j), _numbers(device_seconds))
    values = dict(zip(SITE_COLUMNS, (site.energy_j / JOULES_PER_KWH, site.usd, site.co2_g), strict=True))
    for name in site_columns(facility):
        rows = rows.append_column(name, pa.array(values[name], pa.float64(), from_pandas=True))
    return rows


def _numbers(column: Any) -> Any:
    """Return a column of arrow as floats of numpy, NaN where it is null."""
    return column.cast("float64").to_numpy(zero_copy_only=False)

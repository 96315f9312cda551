"""Columns of a sweep's rows about the facility: energy at the meter, and its cost and CO2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import BadValue
from ..timing.facility import JOULES_PER_KWH

if TYPE_CHECKING:
    from ..timing.facility import Facility

SITE_COLUMNS = {
    "site_energy_j": "`--electricity`, `--carbon-intensity`, `--pue` or `--host-watts`",
    "electricity_usd": "`--electricity`, such as '0.12 USD/kWh'",
    "co2_g": "`--carbon-intensity`, such as '400 g/kWh'",
}
"""Columns that `with_site` adds, and the options with which it does."""

_TOKENS = 1e6
"""Output tokens to which the energy in a row of a server belongs."""


def site_columns(facility: Facility | None) -> list[str]:
    """Return the columns that a facility adds to the rows of a sweep."""
    return [] if facility is None else [*_amounts_per_kwh(facility)]


def check_site_columns(names: Iterable[str], facility: Facility | None) -> None:
    """Check that a facility adds the requested columns that are about one.

    Raises
    ------
    BadValue
        If it does not.
    """
    added = site_columns(facility)
    for name in names:
        if name in SITE_COLUMNS and name not in added:
            raise BadValue(f"the column {name} needs {SITE_COLUMNS[name]}")


def with_site(rows: Any, facility: Facility | None) -> Any:
    """Return a batch of rows with the columns of `site_columns`.

    They are those of the energy in the row: of its samples, or of a million output tokens of a server.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        Rows of a sweep.
    facility : Facility or None
        What surrounds the devices; None adds nothing.
    """
    if facility is None:
        return rows
    import pyarrow as pa
    import pyarrow.compute as pc

    names = rows.schema.names
    if "joules_per_million_output_tokens" in names:
        devices_j = rows.column("joules_per_million_output_tokens")
        device_seconds = pc.divide(pc.multiply(rows.column("devices"), _TOKENS), rows.column("output_tokens_per_s"))
    else:
        devices_j = rows.column("energy_j")
        devices = rows.column("devices" if "devices" in names else "workers")
        device_seconds = pc.multiply(pc.multiply(rows.column("hours"), 3600.0), devices)
    hosts_j = pc.multiply(device_seconds, facility.host_w) if facility.host_w else 0.0
    energy_j = pc.multiply(pc.add(devices_j, hosts_j), facility.pue)
    for name, amount_per_kwh in _amounts_per_kwh(facility).items():
        rows = rows.append_column(name, pc.multiply(energy_j, amount_per_kwh / JOULES_PER_KWH).cast(pa.float64()))
    return rows


def _amounts_per_kwh(facility: Facility) -> dict[str, float]:
    """Return what a kWh at the meter is in joules, in US dollars and in grams of CO2, as far as they are known."""
    amounts = dict(zip(SITE_COLUMNS, (JOULES_PER_KWH, facility.usd_per_kwh, facility.g_per_kwh), strict=True))
    return {name: amount for name, amount in amounts.items() if amount is not None}

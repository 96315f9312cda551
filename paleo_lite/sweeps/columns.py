"""Columns of the rows of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadValue
from ..machines import Device, Price
from ..machines.prices import choose_price
from ..units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from ..timing.facility import Facility

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class StringColumn:
    """A column of strings, stored as codes."""

    def __init__(self, codes: NDArray[np.int32], values: Sequence[str] = ()) -> None:
        self.codes = codes  # by row; -1 for an absent value
        self.values = {value: code for code, value in enumerate(values)}  # code of each string

    def code(self, value: str) -> int:
        """Return the code of a string; add the string if it is new."""
        return self.values.setdefault(value, len(self.values))


Columns = dict[str, "StringColumn | Ints | Floats"]


def make_columns(
    rows: list[dict[str, Any]], strings: Iterable[str], integers: Iterable[str], numbers: Iterable[str]
) -> Columns:
    """Return the columns of rows, in which missing values are absent."""
    columns: Columns = {}
    for name in strings:
        columns[name] = StringColumn(np.full(len(rows), -1, dtype=np.int32))
    for name in integers:
        columns[name] = np.full(len(rows), -1, dtype=np.int64)
    for name in numbers:
        columns[name] = np.full(len(rows), np.nan)
    for index, row in enumerate(rows):
        for name, value in row.items():
            column = columns[name]
            if value is None:
                continue
            if isinstance(column, StringColumn):
                column.codes[index] = column.code(str(value))
            else:
                column[index] = value
    return columns


def listed_price(device: Device, price_usd_per_h: float | None, price_of: str | None) -> Price | None:
    """Return the price on record of a device; None if none is, or a price is given."""
    if price_usd_per_h is not None:
        return None
    try:
        return choose_price(device, price_of)
    except BadValue:  # the cloud does not list the device
        return None


def price_text(listing: Price | None, today: date) -> str:
    """Return a price with its cloud, and whether it is old; empty without a price."""
    if listing is None:
        return ""
    return listing.describe() + (", older than a year" if listing.is_old(today) else "")


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

    They are those of the energy in the row: of its samples, of a million output tokens of a server, or else of the time
    in the row.
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
        if "kwh" in names:
            devices_j = pc.multiply(rows.column("kwh"), JOULES_PER_KWH)
            seconds = pc.multiply(rows.column("hours"), SECONDS_PER_HOUR)
        else:  # a step of reinforcement learning, or a token on one's own machine
            devices_j, seconds = rows.column("energy_j"), rows.column("time_s")
        devices = rows.column("devices" if "devices" in names else "workers")
        device_seconds = pc.multiply(seconds, devices)
    site = facility.site_energy(_numbers(devices_j), _numbers(device_seconds))
    values = dict(zip(SITE_COLUMNS, (site.energy_j / JOULES_PER_KWH, site.usd, site.co2_g), strict=True))
    for name in site_columns(facility):
        rows = rows.append_column(name, pa.array(values[name], pa.float64(), from_pandas=True))
    return rows


def _numbers(column: Any) -> Any:
    """Return a column of arrow as floats of numpy, NaN where it is null."""
    return column.cast("float64").to_numpy(zero_copy_only=False)

"""Columns of the rows of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadValue
from ..machines import Device, Price
from ..machines.prices import choose_price

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
    """Return a price with who asks it and whether it is old; empty without one."""
    if listing is None:
        return ""
    return listing.describe() + (", older than a year" if listing.is_old(today) else "")

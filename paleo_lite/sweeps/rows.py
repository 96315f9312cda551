"""What sweeps of rows that are each predicted by themselves have in common: servers and pipelines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..errors import BadValue
from ..result import Result
from ..version import __version__
from .chunk import Columns, StringColumn


class RowSpace(Result):
    """Mixin of a space whose combinations are predicted one by one."""

    __slots__ = ()
    _page: ClassVar[str] = "paleo_lite.reporting.sweep:size_lines"
    kind: ClassVar[str]  # name of the kind of sweep
    dimensions: ClassVar[tuple[str, ...]]  # attributes with the values of the axes
    inner: ClassVar[tuple[str, ...]] = ()  # those of them that every chunk has in full
    titles: ClassVar[Mapping[str, str]] = {}  # names of axes in texts, where they differ from those of the attributes
    # Measured rows per second of one core, and bytes per row in Parquet, for estimates.
    rows_per_s: ClassVar[float]
    row_bytes: ClassVar[float] = 300
    hardware_files: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the total number of combinations and of chunks."""
        return {"rows": self.size, "chunks": self.chunk_count}

    def check_axes(self) -> None:
        """Raise an error if an axis is empty or has a duplicate."""
        for name in self.dimensions:
            values = getattr(self, name)
            if not values:
                raise BadValue(f"the sweep needs at least one value of {name}")
            if len(set(values)) < len(values):
                raise BadValue(f"the sweep has duplicate {name}: {', '.join(map(str, values))}")

    def describe(self) -> str:
        """Return the number of values per axis as text: ``2 networks x 3 gpus x 4 rates``."""
        axes = []
        for name in self.dimensions:
            length = len(getattr(self, name))
            if length > 1:
                axes.append(f"{length:,} {self.titles.get(name, name.replace('_', ' '))}")
        return " x ".join(axes) or "1 of each"

    def hours(self) -> float:
        """Return the estimated time of a single core, in hours."""
        return self.size / self.rows_per_s / 3600

    def gigabytes(self) -> float:
        """Return the estimated size of the output in GB."""
        return self.size * self.row_bytes / 1e9

    @property
    def size(self) -> int:
        """Number of combinations."""
        return prod(len(getattr(self, name)) for name in self.dimensions)

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return self.size // prod(len(getattr(self, name)) for name in self.inner)

    def digest(self) -> str:
        """Return a hash of everything that the results depend on, except the shipped data."""
        text = json.dumps([self.kind, __version__, msgspec.to_builtins(self)])
        for path in self.hardware_files:
            text += hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return hashlib.sha256(text.encode()).hexdigest()


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

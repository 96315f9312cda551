"""What is kept of the rows of a sweep: the best so far, a Pareto front with its knee, and a sample for charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadValue
from .run import without_dictionaries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_FRONT_ROWS = 200_000
"""Maximum number of rows of a Pareto front."""

BACKGROUND_ROWS = 3000
"""Number of other rows of a sweep that a chart shows behind its Pareto front."""


class Selection:
    """Rows that may still be among the best."""

    def __init__(self, names: Sequence[str], signs: Sequence[float], top: int, is_front: bool) -> None:
        self.names, self.signs, self.top, self.is_front = list(names), np.array(signs), top, is_front
        self.rows: Any = None  # a table of pyarrow, best first
        self.present: set[str] = set()  # objective columns that are present in some row

    def add(self, batch: Any) -> None:
        """Add the rows of a batch that are good enough; of equal rows the earlier one stays."""
        import pyarrow as pa

        self.present |= {name for name in self.names if batch.column(name).null_count < batch.num_rows}
        batch = batch.take(pa.array(self._select(batch)))
        table = without_dictionaries(pa.Table.from_batches([batch]))
        if self.rows is not None:
            table = pa.concat_tables([self.rows, table]).combine_chunks()
        self.rows = table.take(pa.array(self._select(table)))
        if len(self.rows) > MAX_FRONT_ROWS:
            raise BadValue(f"the front has more than {MAX_FRONT_ROWS:,} rows: use fewer columns, or `--where`")

    def _select(self, rows: Any) -> NDArray[np.int64]:
        """Return the indices of the best rows; rows without a value of some column are left out."""
        values = np.column_stack([to_floats(rows.column(name)) for name in self.names])
        complete = np.flatnonzero(~np.isnan(values).any(axis=1))
        values = values[complete] * self.signs
        selected = np.argsort(values[:, 0], kind="stable")[: self.top]
        if self.is_front:
            selected = pareto_front(values)
        return np.asarray(complete[selected], dtype=np.int64)


class Sample:
    """Evenly spaced sample of rows: every row until there are too many, then every second, fourth, ... row."""

    def __init__(self, names: Sequence[str], max_rows: int) -> None:
        self.names, self.max_rows, self.step, self.seen = list(names), max_rows, 1, 0
        self.values: list[tuple[float, ...]] = []

    def add(self, batch: Any) -> None:
        """Add every `step`-th row of a batch; rows without a value of some column do not count."""
        if not self.max_rows:
            return
        values = np.column_stack([to_floats(batch.column(name)) for name in self.names])
        values = values[~np.isnan(values).any(axis=1)]
        self.values += map(tuple, values[-self.seen % self.step :: self.step].tolist())
        self.seen += len(values)
        while len(self.values) > self.max_rows:
            self.values = self.values[::2]
            self.step *= 2


def to_floats(column: Any) -> Floats:
    """Return a column as an array, NaN where a value is absent."""
    import pyarrow as pa

    column = column.cast(pa.float64())
    array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return np.asarray(array, dtype=np.float64)


def pareto_front(values: Floats) -> NDArray[np.int64]:
    """Return the indices of the Pareto front of objectives to minimise, shape (rows, columns), by the first column.

    The front consists of the rows that no other row equals or beats in every column; of equal rows only the first.
    """
    order = np.lexsort((np.arange(len(values)), *values.T[::-1]))  # by the columns in turn, then by index
    if values.shape[1] == 1:
        return np.asarray(order[:1], dtype=np.int64)
    if values.shape[1] == 2:
        second = values[order, 1]
        best_before = np.concatenate([[np.inf], np.minimum.accumulate(second)[:-1]])
        return np.asarray(order[second < best_before], dtype=np.int64)
    front_rows: list[int] = []
    front = np.empty((0, values.shape[1]))
    for row in order.tolist():  # every row that beats another comes before it
        if not (front <= values[row]).all(axis=1).any():
            front_rows.append(row)
            front = values[front_rows]
    return np.array(front_rows, dtype=np.int64)


FEWEST_ROWS = 3
"""Rows that a front needs to have a knee."""


def find_knee(first: Sequence[float], second: Sequence[float]) -> int | None:
    """Return the index of the knee of a front; None if it has none.

    It is the point that is furthest below the line between both ends, where both columns are logarithms from 0 to 1
    (Satopaa et al. 2011, "Finding a kneedle in a haystack"). The values of both columns are > 0, are better the smaller
    they are, and have the order of the first column.
    """
    if len(first) < FEWEST_ROWS or min(first) <= 0 or min(second) <= 0:
        return None
    logs = np.log([first, second])
    low, high = logs.min(axis=1, keepdims=True), logs.max(axis=1, keepdims=True)
    if (high == low).any():
        return None
    below_line = 1 - ((logs - low) / (high - low)).sum(axis=0)
    knee = int(np.argmax(below_line))
    return knee if below_line[knee] > 0 else None

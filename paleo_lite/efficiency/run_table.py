"""Columns of runs: each lies by itself in memory, which a hundred thousand runs are read a tenth slower without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIELDS: dict[str, type] = {
    "signature": np.int32,  # place in the runs' `signatures`
    "row": np.int64,  # first row, among those of the device
    "last": np.int64,  # last row
    "rows": np.int64,
    "duration_ns": np.float64,
    "flops": np.float64,  # that the profiler counted
    "bytes": np.float64,
    "flops_rows": np.int64,  # rows whose FLOPs the profiler counted
    "bytes_rows": np.int64,
    "mix": np.uint64,  # which kernels how often: the sum of their names' hashes
    "execution": np.int64,  # -1 where the profiler does not tell
    "step": np.int32,  # place in the runs' `steps`, -1 outside of all
    "layer": np.int32,  # place in the runs' `layers` of its first row, -1 outside of all
}


class RunTable:
    """The fields of some runs: by a name a column, by places or truths those runs.

    Parameters
    ----------
    columns : mapping of str to ndarray, shape (runs,)
        All of `FIELDS`; without it no runs.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]] | None = None) -> None:
        given = columns or {name: np.empty(0, kind) for name, kind in FIELDS.items()}
        self._columns: dict[str, NDArray[Any]] = {name: np.asarray(given[name], kind) for name, kind in FIELDS.items()}

    @classmethod
    def concatenate(cls, tables: Sequence[RunTable]) -> RunTable:
        """The runs of all tables, one after the other."""
        return cls({name: np.concatenate([table[name] for table in tables]) for name in FIELDS}) if tables else cls()

    def __len__(self) -> int:
        return len(self._columns["row"])

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            return self._columns[which]
        return RunTable({name: column[which] for name, column in self._columns.items()})

    def but(self, **changed: NDArray[Any]) -> RunTable:
        """The same runs with these columns."""
        return RunTable({**self._columns, **changed})

    def repeat(self, times: NDArray[np.int64]) -> RunTable:
        """Every run so many times, in columns of its own."""
        return RunTable({name: np.repeat(column, times) for name, column in self._columns.items()})

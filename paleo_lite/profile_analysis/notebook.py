"""The ``notebook`` method: three efficiencies over all rows of a profile, as defined by SURFBoard's authors.

They are the functions compute_efficiency, flops_per_sec and bandwidth of their notebook ``gpu_efficiency.ipynb``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from ..errors import BadProfile
from ..profiles.table import device_rows, float_column, values_of

if TYPE_CHECKING:
    from .durations import Duration

COLUMNS = ("category", "kernel", "duration_ns", "flops", "bytes")
"""Columns of a profile that are read."""

SWAPPED_COLUMNS_NOTE = (
    "SURFBoard's notebook prints these two columns under each other's names; here FLOPs are listed under FLOPs and "
    "bytes under bandwidth"
)
"""Note on efficiencies over batch durations: the notebook's rows have FLOPs before bytes, its column names bandwidth
first."""


class NotebookSums(msgspec.Struct, frozen=True):
    """Sums over rows, by kernel name.

    The sums are integers below 2^53 stored as float, so that they do not depend on the order of merging.
    """

    # Sums by kernel name; rows without a FLOP count add 0.
    durations_ns: Mapping[str, float] = {}
    flops: Mapping[str, float] = {}
    # Bytes of rows with a nonzero duration. The notebook's ``Bytes / Sil`` is infinite for other rows, which
    # pandas leaves out.
    bytes: float = 0.0
    all_bytes: float = 0.0  # bytes of all rows, which the notebook divides by batch durations
    rows: int = 0  # number of rows

    def merge(self, later: NotebookSums) -> NotebookSums:
        """Return the sums over the rows of both."""
        return NotebookSums(
            _add_by_name(self.durations_ns, later.durations_ns),
            _add_by_name(self.flops, later.flops),
            self.bytes + later.bytes,
            self.all_bytes + later.all_bytes,
            self.rows + later.rows,
        )

    def efficiencies(self) -> dict[str, float]:
        """Return compute efficiency (0 to 1), FLOP/s, bytes/s, FLOPs and bytes.

        Compute efficiency is the fraction of time in kernels with a NAME that has FLOPs in any row. The notebook weighs
        each row's bandwidth by its duration, which equals the sum of bytes over the sum of durations. Raise BadProfile
        if there are no rows, or their total duration is zero.
        """
        total_ns = sum(self.durations_ns.values())
        if not self.rows:
            raise BadProfile("there are no kernels in it")
        if not total_ns:
            raise BadProfile("its kernels took no time at all")
        compute_ns = sum(duration for name, duration in self.durations_ns.items() if self.flops.get(name))
        flops = sum(self.flops.values())
        return {
            "compute_efficiency": compute_ns / total_ns,
            "flops_per_s": flops / total_ns * 1e9,
            "bandwidth_bytes_per_s": self.bytes / total_ns * 1e9,
            "flops": flops,
            "bytes": self.all_bytes,
        }


def sum_batch(batch: pa.RecordBatch) -> NotebookSums:
    """Return the sums of a batch with the columns `COLUMNS`."""
    batch = device_rows(batch)
    name_codes, names = values_of(batch, "kernel")
    durations_ns = float_column(batch, "duration_ns")
    flops = float_column(batch, "flops", 0.0)
    row_bytes = float_column(batch, "bytes", 0.0)
    return NotebookSums(
        durations_ns=_sum_by_name(name_codes, names, durations_ns),
        flops=_sum_by_name(name_codes, names, flops),
        bytes=float(row_bytes.sum(where=durations_ns > 0)),
        all_bytes=float(row_bytes.sum()),
        rows=int(batch.num_rows),
    )


def _sum_by_name(name_codes: np.ndarray[Any, Any], names: list[Any], values: np.ndarray[Any, Any]) -> dict[str, float]:
    sums = np.bincount(name_codes, values, len(names)).tolist()
    # Code 0 is a row without a name, which pandas' groupby leaves out.
    return dict(zip(names[1:], sums[1:]))


def _add_by_name(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    sums = dict(first)
    for name, value in second.items():
        sums[name] = sums.get(name, 0.0) + value
    return sums


def notebook_figures(sums: dict[str, float], duration: Duration | None, batches: int) -> dict[str, Any]:
    """Return the notebook's rates over the sum of kernel times, or over the measured duration of `batches` batches."""
    figures: dict[str, Any] = {**sums, "time_basis": "sum of kernel times", "batch_duration_s": None}
    if duration is not None:
        seconds = batches * duration.seconds
        figures["flops_per_s"] = sums["flops"] / seconds
        figures["bandwidth_bytes_per_s"] = sums["bytes"] / seconds
        figures["time_basis"] = f"{batches} batch durations"
        figures["batch_duration_s"] = duration.seconds
    return figures

"""The ``notebook`` method: three efficiencies over every row of a profile, as SURFBoard's authors defined them.

They are the functions compute_efficiency, flops_per_sec and bandwidth of their notebook ``gpu_efficiency.ipynb``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from ..errors import BadProfile
from ..profiles.table import device_rows, numbers, values_of

if TYPE_CHECKING:
    from .durations import Duration

COLUMNS = ("category", "kernel", "duration_ns", "flops", "bytes")
"""What the method reads."""

SWAPPED = (
    "SURFBoard's notebook prints these two columns under each other's names; here FLOPs stand under FLOPs and bytes "
    "under bandwidth"
)
"""Of its efficiencies over batch durations: its rows hold FLOPs before bytes, its column names bandwidth first."""


class NotebookSums(msgspec.Struct, frozen=True):
    """Sums over rows, by kernel name. Whole numbers below 2^53, so that no order of merging changes them.

    Attributes
    ----------
    durations_ns, flops : dict of str to float
        By kernel name; FLOPs that the profiler did not count add nothing.
    bytes : float
        Of the rows that took time: the notebook's ``Bytes / Sil`` is infinite for others, and pandas leaves them out.
    all_bytes : float
        Of all rows, which the notebook divides by batch durations.
    """

    durations_ns: Mapping[str, float] = {}
    flops: Mapping[str, float] = {}
    bytes: float = 0.0
    all_bytes: float = 0.0
    rows: int = 0

    def merge(self, later: NotebookSums) -> NotebookSums:
        """Sums over both."""
        return NotebookSums(
            _added(self.durations_ns, later.durations_ns),
            _added(self.flops, later.flops),
            self.bytes + later.bytes,
            self.all_bytes + later.all_bytes,
            self.rows + later.rows,
        )

    def finish(self) -> dict[str, float]:
        """Compute efficiency (a share of 1), FLOP/s and bytes/s, FLOPs and bytes.

        Compute efficiency is the share of time spent in kernels whose NAME has FLOPs in some row. The notebook weighs
        each row's bandwidth by its duration, which is the sum of bytes over the sum of durations.

        Raises
        ------
        BadProfile
            If there are no rows, or they took no time.
        """
        total_ns = sum(self.durations_ns.values())
        if not self.rows:
            raise BadProfile("there are no kernels in it")
        if not total_ns:
            raise BadProfile("its kernels took no time at all")
        compute_ns = sum(duration for name, duration in self.durations_ns.items() if self.flops.get(name))
        return {
            "compute_efficiency": compute_ns / total_ns,
            "flops_per_s": sum(self.flops.values()) / total_ns * 1e9,
            "bandwidth_bytes_per_s": self.bytes / total_ns * 1e9,
            "flops": sum(self.flops.values()),
            "bytes": self.all_bytes,
        }


def sum_rows(batch: pa.RecordBatch) -> NotebookSums:
    """The sums of a batch with the columns `COLUMNS`."""
    batch = device_rows(batch)
    places, names = values_of(batch, "kernel")
    duration = numbers(batch, "duration_ns")
    flops, moved = (numbers(batch, name, 0.0) for name in ("flops", "bytes"))
    # pandas' groupby leaves out rows whose key is absent.
    by_name = {
        label: dict(zip(names[1:], np.bincount(places, weights, len(names))[1:].tolist()))
        for label, weights in (("durations", duration), ("flops", flops))
    }
    timed = float(moved.sum(where=duration > 0))
    return NotebookSums(by_name["durations"], by_name["flops"], timed, float(moved.sum()), int(batch.num_rows))


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    both = dict(first)
    for name, value in second.items():
        both[name] = both.get(name, 0.0) + value
    return both


def notebook_figures(sums: dict[str, float], duration: Duration | None, batches: int) -> dict[str, Any]:
    """The notebook's rates: over the sum of kernel times, or over as many batch durations as were profiled."""
    figures: dict[str, Any] = {**sums, "time_basis": "sum of kernel times", "batch_duration_s": None}
    if duration is not None:
        seconds = batches * duration.seconds
        figures["flops_per_s"], figures["bandwidth_bytes_per_s"] = sums["flops"] / seconds, sums["bytes"] / seconds
        figures |= {"time_basis": f"{batches} batch durations", "batch_duration_s": duration.seconds}
    return figures

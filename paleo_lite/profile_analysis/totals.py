"""Sums over the rows of a profile for each kernel; memory use depends on the number of names, not of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BadProfile, BadValue, NothingOnDevice
from ..profiles.detect import Profile
from ..profiles.names import multiplies_matrices
from ..profiles.table import HOST, device_rows, float_column, integer_column, values_of
from . import DIRECTIONS
from .activity import BusyTime
from .parameters import is_convolution, recorded_precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

DEVICE_METRIC = "metric.device_ns"
"""Time on the device of an operation and of those that it calls, in tables of PyTorch's profiler."""


COLUMNS = (
    "category", "kernel", "op", "direction", "start_ns", "duration_ns", "calls", "flops", "bytes", "device",
    "tensor_core", "params",
)  # fmt: skip
"""Columns of a profile that are read."""

SUMS = (
    "calls", "duration_ns", "flops", "flops_rows", "flops_ns", "bytes", "bytes_rows", "both_flops", "both_bytes",
    "both_ns", "tensor_core_rows",
)  # fmt: skip
"""Summed quantities. ``flops_ns`` is the time of rows with known FLOPs; ``both_*`` require FLOPs and bytes."""


class KernelTotals:
    """Sums for each kernel name, as the profiler printed it."""

    def __init__(self) -> None:
        # By name and category, shape (len(SUMS),); the category is `convolution` for kernels of a convolution.
        self.sums: dict[tuple[str, str], Floats] = {}
        # By name and category, and then by counter, shape (2,): the sum of the counter, weighted by the rows' times (by
        # their calls if there are no times), and the sum of the weights.
        self.metrics: dict[tuple[str, str], dict[str, Floats]] = {}
        self.has_durations = False  # whether any row has a duration
        self.rows = self.untimed_rows = 0  # rows of the device that are summed, and those left out without a duration
        self.precision_ns: dict[str, float] = {}  # time of products by the recorded precision of their operands
        self.no_op_ns = 0.0  # time of the rows without an operation
        self.has_starts = True  # whether all rows have start times

    @property
    def duration_ns(self) -> float:
        """Time of all rows."""
        return float(sum(values[SUMS.index("duration_ns")] for values in self.sums.values()))

    def merge(self, other: KernelTotals) -> None:
        """Add the sums of another profile."""
        for label, values in other.sums.items():
            self.sums[label] = self.sums.get(label, np.zeros(len(SUMS))) + values
        for label, metrics in other.metrics.items():
            mine = self.metrics.setdefault(label, {})
            for name, pair in metrics.items():
                mine[name] = mine.get(name, np.zeros(2)) + pair
        self.has_durations |= other.has_durations
        self.has_starts &= other.has_starts
        self.rows += other.rows
        self.untimed_rows += other.untimed_rows
        self.no_op_ns += other.no_op_ns
        for precision, time_ns in other.precision_ns.items():
            self.precision_ns[precision] = self.precision_ns.get(precision, 0.0) + time_ns

    def add(self, batch: pa.RecordBatch, busy: BusyTime | None = None) -> None:
        """Add the rows of a batch, and their intervals to `busy`."""
        timed = self._timed_rows(batch)
        if not timed.num_rows:
            return
        self.rows += timed.num_rows
        kernels, group = group_by_kernel(timed)
        labels = [(name or "(no name)", category) for name, category in kernels]
        columns = self._columns(timed)
        for label, *values in zip(labels, *(np.bincount(group, columns[name], len(labels)) for name in SUMS)):
            self.sums[label] = self.sums.get(label, np.zeros(len(SUMS))) + values
        self._add_metrics(timed, labels, group, columns)
        self._add_precisions(timed, labels, group, columns["duration_ns"])
        if "op" in timed.schema.names:
            self.no_op_ns += float(columns["duration_ns"][values_of(timed, "op")[0] == 0].sum())
        self._add_intervals(timed, columns["duration_ns"], busy)

    def _timed_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the device rows with durations; all device rows if none has a duration but they have counters."""
        mine = batch.filter(pc.invert(pc.is_in(_category(batch).cast(pa.string()), pa.array(HOST))))
        if mine.column("duration_ns").null_count == mine.num_rows and not self.has_durations:
            if any(name.startswith("metric.") for name in batch.schema.names):
                return mine
            self.untimed_rows += mine.num_rows
            return batch.slice(0, 0)
        timed = device_rows(batch)
        self.has_durations |= timed.num_rows > 0
        self.untimed_rows += mine.num_rows - timed.num_rows
        return timed

    @staticmethod
    def _columns(batch: pa.RecordBatch) -> dict[str, Floats]:
        duration, flops, moved = (float_column(batch, name) for name in ("duration_ns", "flops", "bytes"))
        duration = np.nan_to_num(duration)
        calls = float_column(batch, "calls")
        has_flops, has_bytes = ~np.isnan(flops), ~np.isnan(moved)
        has_both = has_flops & has_bytes
        flops, moved = np.nan_to_num(flops), np.nan_to_num(moved)
        tensor_core = np.zeros(len(duration))
        if "tensor_core" in batch.schema.names:
            tensor_core = pc.fill_null(batch.column("tensor_core"), False).cast(pa.float64()).to_numpy()
        return {
            "calls": np.where(np.isnan(calls), 1.0, calls),
            "duration_ns": duration,
            "flops": flops,
            "flops_rows": has_flops.astype(float),
            "flops_ns": duration * has_flops,
            "bytes": moved,
            "bytes_rows": has_bytes.astype(float),
            "both_flops": flops * has_both,
            "both_bytes": moved * has_both,
            "both_ns": duration * has_both,
            "tensor_core_rows": tensor_core,
        }

    def _add_metrics(
        self, batch: pa.RecordBatch, labels: list[tuple[str, str]], group: NDArray[Any], columns: dict[str, Floats]
    ) -> None:
        names = [name for name in batch.schema.names if name.startswith("metric.")]
        weights = columns["duration_ns"] if self.has_durations else columns["calls"]
        for name in names:
            values = float_column(batch, name)
            weight = np.where(np.isnan(values), 0.0, weights)
            sums = np.bincount(group, np.nan_to_num(values) * weight, len(labels))
            for label, total, weighed in zip(labels, sums, np.bincount(group, weight, len(labels))):
                if weighed:
                    of_kernel = self.metrics.setdefault(label, {})
                    of_kernel[name[7:]] = of_kernel.get(name[7:], np.zeros(2)) + np.array([total, weighed])

    def _add_precisions(
        self, batch: pa.RecordBatch, labels: list[tuple[str, str]], group: NDArray[Any], duration_ns: Floats
    ) -> None:
        """Add the times of matrix products to those of the recorded precision of their operands."""
        index, texts = values_of(batch, "params")
        precisions = [None if text is None else recorded_precision(text) for text in texts]
        if not any(precisions):
            return
        in_product = np.array([multiplies_matrices(name) for name, _ in labels])[group]
        seconds = np.bincount(index[in_product], duration_ns[in_product], len(texts))
        for precision, time_ns in zip(precisions, seconds.tolist()):
            if precision is not None and time_ns:
                self.precision_ns[precision] = self.precision_ns.get(precision, 0.0) + time_ns

    def _add_intervals(self, batch: pa.RecordBatch, duration: Floats, busy: BusyTime | None) -> None:
        if "start_ns" not in batch.schema.names or batch.column("start_ns").null_count:
            self.has_starts = False
        elif busy is not None:
            starts = batch.column("start_ns").to_numpy()
            busy.add(starts, duration, integer_column(batch, "device"))


def total_kernels(
    profile: Profile, direction: str = "all", *, with_busy: bool = True
) -> tuple[KernelTotals, dict[int, float] | None]:
    """Sum the kernels of a profile, and return the busy seconds of each device (-1 is an unknown device).

    The busy time is the union of the kernels' intervals; it is None without start times or `with_busy`. The profile is
    read once, or twice if its start times are far from sorted. Raise BadProfile if there are no rows, no rows of this
    direction (one of `DIRECTIONS`), or no row has a duration or a counter.
    """
    try:
        busy = BusyTime() if with_busy else None
        totals, row_count = _total(profile, direction, busy)
        if busy is not None and not busy.sorted:
            busy = BusyTime(None)
            totals, row_count = _total(profile, direction, busy)
    except BadProfile as error:
        path = str(profile.path)
        raise error if path in str(error) else BadProfile(f"{path}: {error}") from None
    if not totals.rows:
        raise _no_kernels_error(profile, direction, row_count, totals)
    if busy is None or not totals.has_starts or not totals.has_durations:
        return totals, None
    return totals, busy.seconds


def _total(profile: Profile, direction: str, busy: BusyTime | None) -> tuple[KernelTotals, int]:
    totals, row_count = KernelTotals(), 0
    for batch in batches_in_direction(profile, direction, COLUMNS):
        row_count += batch.num_rows
        totals.add(batch, busy)
    return totals, row_count


def batches_in_direction(profile: Profile, direction: str, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a direction, one of `DIRECTIONS`; raise BadValue if it is unknown.

    The columns to read include `direction`.
    """
    if direction not in DIRECTIONS:
        raise BadValue(f"no direction is called {direction!r}: known are {', '.join(DIRECTIONS)}")
    for batch in profile.batches(columns):
        if direction == "all":
            yield batch
        elif "direction" in batch.schema.names:
            is_in_direction = pc.equal(batch.column("direction").cast(pa.string()), direction)
            yield batch.filter(pc.fill_null(is_in_direction, False))


def _no_kernels_error(profile: Profile, direction: str, row_count: int, totals: KernelTotals) -> BadProfile:
    which = f"this {profile.format} profile"
    if direction != "all":
        return BadProfile(f"{profile.path}: no kernel in {which} is labelled {direction}")
    if not row_count:
        return BadProfile(f"{profile.path}: there are no rows in {which}")
    if totals.untimed_rows:
        return BadProfile(f"{profile.path}: no row of {which} has a duration: the kernels' times are unknown")
    has_device_times = any(
        pc.any(pc.greater(batch.column(DEVICE_METRIC), 0.0)).as_py()
        for batch in profile.batches((DEVICE_METRIC,))
        if DEVICE_METRIC in batch.schema.names
    )
    if has_device_times:
        return NothingOnDevice(
            f"{profile.path}: the times on the device in {which} include the operations inside, so that they do not "
            "add up, and its kernels are not known: `paleo-lite kernels` shows the time of the host"
        )
    return NothingOnDevice(
        f"{profile.path}: nothing in {which} ran on a device: `paleo-lite kernels` shows the time of the host"
    )


def _category(batch: pa.RecordBatch) -> pa.DictionaryArray:
    if "category" in batch.schema.names:
        return batch.column("category")
    return pa.nulls(batch.num_rows, pa.dictionary(pa.int32(), pa.string()))


def group_by_kernel(batch: pa.RecordBatch) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """Return the distinct kernels of a batch, and the index of each row's kernel.

    A kernel is a name and a category, which is ``convolution`` for kernels of a convolution, and ``kernel`` if unknown.
    """
    category, categories = values_of(batch, "category")
    categories[0] = "kernel"
    op, operations = values_of(batch, "op")
    convolves = np.array([is_convolution(name) for name in operations])
    is_kernel = np.array([name == "kernel" for name in categories])
    category = np.where(is_kernel[category] & convolves[op], len(categories), category)
    categories.append("convolution")
    name, names = values_of(batch, "kernel")
    keys, index = np.unique(name * len(categories) + category, return_inverse=True)
    kernels = [(names[key // len(categories)] or "", categories[key % len(categories)]) for key in keys.tolist()]
    return kernels, index

"""What both methods share: the rows of a batch that are work of the device, and their columns as arrays."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from ..errors import BadProfile
from ..profiles.arrow import to_numpy, words
from .traced_call import is_convolution

HOST = ("api", "cpu", "marker", "message")
"""Categories of `KernelTable` that are not work of the device."""


def device_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that the device worked on: kernels, copies, communication; not what the host did.

    Rows without a duration (an event that the profiler saw begin but not end) are left out.

    Raises
    ------
    BadProfile
        If a duration is negative or no number.
    """
    rows = batch
    if "category" in batch.schema.names:
        category = batch.column("category")
        if any(word in HOST for word in category.dictionary.to_pylist()):
            import pyarrow.compute as pc  # most profiles need none of it, and it is slow to import

            rows = rows.filter(pc.invert(pc.is_in(category.cast(pa.string()), words(list(HOST)))))
    duration = rows.column("duration_ns")
    if duration.null_count:
        rows = rows.filter(duration.is_valid())
        duration = rows.column("duration_ns")
    values = to_numpy(duration)
    if len(values) and not values.min() >= 0:  # nor where it is NaN
        raise BadProfile(f"a duration is {values.min():g} ns, expected a number of 0 or more")
    return rows


def codes(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Places in the dictionary of a dictionary-encoded column, counted from 1; 0 where it is null."""
    return to_numpy(column.indices, -1).astype(np.int64) + 1


def categories(batch: pa.RecordBatch) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The categories that there are, and the place of each row's: ``convolution`` of kernels whose operation is one."""
    named, number = ["kernel"], np.zeros(batch.num_rows, np.int64)
    if "category" in batch.schema.names:
        column = batch.column("category")
        named, number = [*named, *column.dictionary.to_pylist()], codes(column)
    if "op" in batch.schema.names:
        op = batch.column("op")
        convolves = np.array([False, *(is_convolution(name) for name in op.dictionary.to_pylist())])
        is_kernel = np.array([name == "kernel" for name in named])
        number = np.where(is_kernel[number] & convolves[codes(op)], len(named), number)
    return [*named, "convolution"], number


def numbers(batch: pa.RecordBatch, name: str, absent: float = math.nan) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A column of numbers; `absent` where it is null or there is no such column."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, absent)
    column = batch.column(name)
    return to_numpy(column if column.type == pa.float64() else column.cast(pa.float64(), safe=False), absent)


def places(batch: pa.RecordBatch, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A column of devices, streams or the like, which may be any whole number; -1 where it is null or absent."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, -1)
    return to_numpy(batch.column(name), -1)

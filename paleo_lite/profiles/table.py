"""`KernelTable`: the one tidy frame that every reader of profiles returns, the batches of it, and their columns.

Absent is null, never 0: a kernel whose FLOPs are unknown is not a kernel that computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from ..errors import BadProfile

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

_NAME = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        ("category", _NAME),  # kernel, memcpy, memset, communication; of the host api, cpu, marker, message
        ("kernel", _NAME),  # the name as the profiler printed it, demangled
        ("op", _NAME),  # the framework's operation
        ("layer", _NAME),  # the network's, the path of a program's modules and ranges, or the library of a function
        ("direction", _NAME),  # fprop, bprop, update or null
        ("start_ns", pa.int64()),
        ("duration_ns", pa.float64()),  # of all calls of the row together
        ("calls", pa.int64()),  # launches that the row stands for: 1 in a trace, more in a summary
        ("flops", pa.float64()),  # of all calls of the row together
        ("bytes", pa.float64()),
        ("grid", _NAME),
        ("block", _NAME),
        ("stream", pa.int64()),
        ("device", pa.int64()),
        ("thread", pa.int64()),
        ("tensor_core", pa.bool_()),
        ("params", _NAME),  # shapes, or a collective's message, as the profiler printed them: data, never evaluated
        ("execution", pa.int64()),  # which of the framework's operations in time: the same for all kernels of one
        ("step", _NAME),  # the iteration, where the program marked them
        ("launch_ns", pa.int64()),  # when the host gave it to the device
    ]
)
"""Columns of every table, in this order. Metrics of a kernel follow as float64 columns named ``metric.NAME``."""

HOST = ("api", "cpu", "marker", "message")
"""Categories that are not work of the device."""


class KernelTable(msgspec.Struct, frozen=True, eq=False):
    """A profile in memory.

    Attributes
    ----------
    table : pyarrow.Table
        Columns of `SCHEMA`, then ``metric.*``.
    """

    table: pa.Table
    format: str
    configuration: Mapping[str, Any] = {}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def to_frame(self) -> pandas.DataFrame:
        """A pandas DataFrame with the configuration as further columns."""
        frame = self.table.to_pandas()
        for name, value in self.configuration.items():
            frame[name] = value
        return frame


def _names(values: Any) -> pa.DictionaryArray:
    """Texts, each held once however long it is and however many rows have it."""
    places: dict[str | None, int] = {}
    codes = [None if value is None else places.setdefault(value, len(places)) for value in values]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array([*places], pa.string()))


def coded(codes: NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Texts as places in a list of them; -1 is absent."""
    codes = codes.astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(names, pa.string()))


_ROWS = 2**14


def batches_of(
    rows: Iterable[dict[str, Any]], names: Iterable[str] | None, keep: tuple[str, ...] | None
) -> Iterator[pa.RecordBatch]:
    """Record batches of rows, 16,384 at a time, with the columns of those names, or of those that a batch's rows have.

    The last one may be empty.
    """
    left = iter(rows)
    while True:
        some = list(islice(left, _ROWS))
        present = names if names is not None else {name for row in some for name in row}
        yield batch_of({name: [row.get(name) for row in some] for name in present}, len(some), keep)
        if len(some) < _ROWS:
            return


def batch_of(columns: Mapping[str, Any], length: int, keep: tuple[str, ...] | None = None) -> pa.RecordBatch:
    """A record batch in the order and types of `SCHEMA`, null where a column is not given.

    Parameters
    ----------
    columns : mapping of str to sequence or Arrow array
        Columns of `SCHEMA` and ``metric.*``.
    length : int
        Rows.
    keep : tuple of str, optional
        The columns wanted; metrics are always kept.
    """
    fields, arrays = [], []
    for field in SCHEMA:
        if keep is not None and field.name not in keep:
            continue
        value = columns.get(field.name)
        if value is None:
            array = pa.nulls(length, field.type)
        elif isinstance(value, (pa.Array, pa.ChunkedArray)):
            array = value if value.type == field.type else value.cast(field.type)
        elif field.type == _NAME:
            array = _names(value)
        else:
            array = pa.array(value, type=field.type)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        fields.append(field)
        arrays.append(array)
    for name, value in columns.items():
        if name.startswith("metric."):
            fields.append(pa.field(name, pa.float64()))
            arrays.append(value if isinstance(value, pa.Array) else pa.array(value, type=pa.float64()))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


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


def values_of(batch: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], list[Any]]:
    """For each row the place of its value among those of a column, of which the first is None: nothing is said."""
    if name not in batch.schema.names or batch.column(name).null_count == batch.num_rows:
        return np.zeros(batch.num_rows, np.int64), [None]
    column = batch.column(name)
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return to_numpy(column.indices, -1).astype(np.int64) + 1, [None, *column.dictionary.to_pylist()]


def numbers(batch: pa.RecordBatch, name: str, absent: float = math.nan) -> NDArray[np.float64]:
    """A column of numbers; `absent` where it is null or there is no such column."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, absent)
    column = batch.column(name)
    return to_numpy(column if column.type == pa.float64() else column.cast(pa.float64(), safe=False), absent)


def places(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """A column of devices, streams or the like, which may be any whole number; -1 where it is null or absent."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, -1)
    return to_numpy(batch.column(name), -1)


# Between Arrow and NumPy without pandas, which pyarrow's own conversions import: a third of a second per process ------


def from_numpy(values: NDArray[Any], kind: pa.DataType, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """An array that shares the memory of contiguous numbers.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Of the width of `kind`.
    kind : pyarrow.DataType
        A fixed-width type other than bool.
    valid : ndarray of bool, shape (n,), optional
        Where False the array is null.
    """
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def to_numpy(array: pa.Array, absent: Any = None) -> NDArray[Any]:
    """The numbers of an array, read-only where they share its memory.

    Parameters
    ----------
    array : pyarrow.Array, shape (n,)
        Of a fixed-width type other than bool.
    absent : number, optional
        What stands where the array is null; without it, what happens to be there.
    """
    kind = np.dtype(array.type.to_pandas_dtype())
    _, data = array.buffers()
    if data is None or not len(array):
        return np.zeros(len(array), kind)
    values: NDArray[Any] = np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)
    return values if absent is None or not array.null_count else np.where(known_in(array), values, absent)


def known_in(array: pa.Array) -> NDArray[np.bool_]:
    """Where an array is not null."""
    bitmap = array.buffers()[0]
    if bitmap is None or not array.null_count:
        return np.full(len(array), not array.null_count)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(bool)


def words(values: list[str]) -> pa.Array:
    """A short array of text."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))

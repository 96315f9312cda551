"""Common table of all profile readers (`SCHEMA`, `KernelTable`), its record batches, and conversions to NumPy.

Absent values are null, never 0: unknown FLOPs differ from zero FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from ..errors import BadProfile

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

Records: TypeAlias = Any
"""An array of records, whose fields have types of their own.

As `NDArray[Any]` each operation on a field would take the type checker up to seven seconds: it tries all overloads.
"""

_NAME = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        ("category", _NAME),  # kernel, memcpy, memset, communication; of the host api, cpu, marker, message
        ("kernel", _NAME),  # the name as the profiler printed it, demangled
        ("op", _NAME),  # the framework's operation
        ("layer", _NAME),  # layer of the network, path of modules and ranges, or library of a function
        ("direction", _NAME),  # fprop, bprop, update or null
        ("start_ns", pa.int64()),
        ("duration_ns", pa.float64()),  # sum over all calls of the row
        ("calls", pa.int64()),  # launches in the row: 1 in a trace, more in a summary
        ("flops", pa.float64()),  # sum over all calls of the row
        ("bytes", pa.float64()),
        ("grid", _NAME),
        ("block", _NAME),
        ("stream", pa.int64()),
        ("device", pa.int64()),
        ("thread", pa.int64()),
        ("tensor_core", pa.bool_()),
        ("params", _NAME),  # shapes, or the message of a collective, as printed by the profiler; never evaluated
        ("execution", pa.int64()),  # index of the framework's operation: equal for all kernels of one execution
        ("step", _NAME),  # name of the iteration if the program marks iterations
        ("launch_ns", pa.int64()),  # start of the launching call on the host
        ("launched", _NAME),  # of a launch on the host: the name of the kernel, if the profiler records it (ROCm)
    ]
)
"""Columns of every table, in this order. Metrics of a kernel follow as float64 columns named ``metric.NAME``."""

_LARGEST_COUNT = 1e24
"""FLOPs or bytes of one row: those of a day on 10,000 devices. Sums of larger numbers could overflow."""

HOST = ("api", "cpu", "marker", "message")
"""Categories of host events."""


class KernelTable(msgspec.Struct, frozen=True, eq=False):
    """A profile in memory."""

    table: pa.Table  # columns of `SCHEMA`, then `metric.*`
    format: str
    configuration: Mapping[str, Any] = {}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with the configuration as additional columns."""
        frame = self.table.to_pandas()
        for name, value in self.configuration.items():
            frame[name] = value
        return frame


def encode_names(values: Iterable[str | None]) -> pa.DictionaryArray:
    """Dictionary-encode texts, so that each distinct text is stored once; None becomes null."""
    code_of: dict[str, int] = {}
    codes = [-1 if value is None else code_of.setdefault(value, len(code_of)) for value in values]
    return encode_text(np.array(codes, np.int32), list(code_of))


def encode_text(codes: NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Return a dictionary array from indices into a list of texts; -1 is absent."""
    indices = from_numpy(codes.astype(np.int32), pa.int32(), codes >= 0)
    return pa.DictionaryArray.from_arrays(indices, text_array(names))


_ROWS = 2**14

LATEST_NS = 2**61
"""Largest distance of a start from zero, in nanoseconds: since 1970 until the year 2043, so that differences fit."""


def batches_of(
    rows: Iterable[dict[str, Any]], names: Iterable[str] | None, keep: tuple[str, ...] | None
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of 16,384 rows, with the given columns, or with all columns of the rows of a batch.

    The last batch can be empty.
    """
    remaining = iter(rows)
    while True:
        chunk = list(islice(remaining, _ROWS))
        present = names if names is not None else {name for row in chunk for name in row}
        yield batch_of({name: [row.get(name) for row in chunk] for name in present}, len(chunk), keep)
        if len(chunk) < _ROWS:
            return


def batch_of(columns: Mapping[str, Any], length: int, keep: tuple[str, ...] | None = None) -> pa.RecordBatch:
    """Build a record batch with the order and types of `SCHEMA`; missing columns are null.

    The given columns are those of `SCHEMA` and ``metric.*``. Of them `keep` selects some; metrics are always kept.
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
            array = encode_names(value)
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
    """Select the rows of device events: kernels, copies, fills and communication.

    Rows without a duration (events without an end in the profile) are dropped. Raise BadProfile if a duration is
    negative or NaN, or FLOPs or bytes are more than any kernel can have.
    """
    rows = batch
    if "category" in batch.schema.names:
        category = batch.column("category")
        if any(word in HOST for word in category.dictionary.to_pylist()):
            import pyarrow.compute as pc  # imported here: slow to import and rarely needed

            rows = rows.filter(pc.invert(pc.is_in(category.cast(pa.string()), text_array(list(HOST)))))
    duration = rows.column("duration_ns")
    if duration.null_count:
        rows = rows.filter(duration.is_valid())
        duration = rows.column("duration_ns")
    values = to_numpy(duration)
    if len(values) and not values.min() >= 0:  # also true for NaN
        raise BadProfile(f"a duration is {values.min():g} ns, expected a number of 0 or more")
    for name in ("flops", "bytes"):
        if name in rows.schema.names and rows.column(name).null_count < rows.num_rows:
            largest = np.fmax.reduce(float_column(rows, name))
            if largest > _LARGEST_COUNT:
                raise BadProfile(f"a row has {largest:g} {name}, expected at most {_LARGEST_COUNT:g}")
    return rows


def values_of(batch: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return the index of each row's value in the list of distinct values; index 0 is None, for absent."""
    if name not in batch.schema.names or batch.column(name).null_count == batch.num_rows:
        return np.zeros(batch.num_rows, np.int64), [None]
    column = batch.column(name)
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return to_numpy(column.indices, -1).astype(np.int64) + 1, [None, *column.dictionary.to_pylist()]


def float_column(batch: pa.RecordBatch, name: str, absent: float = math.nan) -> NDArray[np.float64]:
    """Return a column as float64, with `absent` for nulls and for a missing column."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, absent)
    column = batch.column(name)
    return to_numpy(column if column.type == pa.float64() else column.cast(pa.float64(), safe=False), absent)


def integer_column(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """Return a column of ids (device, stream, thread), with -1 for nulls and for a missing column."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, -1)
    return to_numpy(batch.column(name), -1)


# Conversion between Arrow and NumPy. pyarrow's own functions import pandas: a third of a second per process -----------


def from_numpy(values: NDArray[Any], kind: pa.DataType, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an Arrow array that shares the memory of a contiguous NumPy array, shape (n,).

    `kind` is a fixed-width type other than bool, of the same item size. The result is null where `valid` is False.
    """
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def to_numpy(array: pa.Array, absent: Any = None) -> NDArray[Any]:
    """Return the numbers of an Arrow array, shape (n,); read-only if they share its memory.

    It has a fixed-width type other than bool. `absent` is the value for nulls; without it nulls have arbitrary values.
    """
    kind = np.dtype(array.type.to_pandas_dtype())
    _, data = array.buffers()
    if data is None or not len(array):
        return np.zeros(len(array), kind)
    values: NDArray[Any] = np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)
    return values if absent is None or not array.null_count else np.where(valid_mask(array), values, absent)


def valid_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of the entries that are not null."""
    bitmap = array.buffers()[0]
    if bitmap is None or not array.null_count:
        return np.full(len(array), not array.null_count)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(bool)


def text_array(values: Sequence[str]) -> pa.Array:
    """Return a text array of a short list."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))

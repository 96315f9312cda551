"""`KernelTable`: the one tidy frame that every reader of profiles returns, and the batches that it is made of.

Absent is null, never 0: a kernel whose FLOPs are unknown is not a kernel that computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

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


class Profile(msgspec.Struct, frozen=True):
    """A profile on disk, recognised but not read.

    Attributes
    ----------
    format : str
        Name of the reader: ``pyprof``, ``nvprof-summary``, ``nsys-sqlite``, ...
    configuration : dict
        What the file's name says of the run: nodes, gpus_per_node, batch_size, ... (see `configuration`).
    """

    path: Path
    format: str
    reader: Reader
    configuration: dict[str, Any] = {}

    @property
    def has_starts(self) -> bool:
        """False where the format never tells when anything began."""
        return getattr(self.reader, "has_starts", True)

    def batches(self, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, a bounded number at a time, with these columns of `SCHEMA` (all without) and the metrics."""
        return self.reader.batches(self.path, None if columns is None else tuple(columns))

    def read(self) -> KernelTable:
        """The whole profile in memory."""
        batches = list(self.batches())
        table = pa.Table.from_batches(batches) if batches else SCHEMA.empty_table()
        return KernelTable(table, self.format, dict(self.configuration))


class Reader(Protocol):
    """What a module of this folder offers; `paleo_lite.profiles.detect` lists them all in one place."""

    name: str
    """How the format is called in output and errors."""

    what: str
    """What it reads, in a user's words, for the error that lists the formats."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the first 64 KiB (decompressed where gzip) look like this format. Never by the name's extension."""
        ...

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """The rows in bounded memory; every batch has the same schema, a selection of `SCHEMA` in its order."""
        ...


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

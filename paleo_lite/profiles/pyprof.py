"""Readers of pyprof's tables, parquet or CSV: one row per kernel launch with the shapes of the operation.

Columns have the names of NVIDIA's PyProf (pyprof/prof/output.py); their selection depends on the user and the version.
There are no start times. If FLOPs and bytes are both 0, pyprof could not count the kernel, and both are read as absent.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import BadProfile
from .detect import open_decompressed
from .table import batch_of, from_numpy, text_array, to_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT = {
    "kernel": "Kernel",
    "op": "Op",
    "layer": "Layer",
    "direction": "Direction",
    "grid": "Grid",
    "block": "Block",
    "tensor_core": "TC",
    "params": "Params",
}
NUMBERS = {
    "duration_ns": "Sil(ns)",
    "flops": "FLOPs",
    "bytes": "Bytes",
    "stream": "Stream",
    "device": "Device",
    "thread": "TId",
}
"""Names in pyprof of the text columns (`TEXT`) and number columns (`NUMBERS`) of `SCHEMA`."""

ABSENT = ("", "-", "na", "na=na,")
"""Texts that pyprof writes for unknown values."""

_ROWS = 2**18
_GROUP_BYTES = 4 * 2**30  # a row group is read at once; no profiler writes larger ones
_BLOCK_BYTES = 2**20
PROBLEMS = (pa.ArrowException, OSError, ValueError, OverflowError, IndexError, MemoryError, EOFError, zlib.error)


class PyprofParquet:
    """Reader of pyprof's table as parquet, regardless of the file name."""

    name = "pyprof"
    maker = "NVIDIA"
    description = "pyprof parquet"
    has_starts = False

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a parquet file has a column of kernels or of their durations."""
        if not head.startswith(b"PAR1"):
            return False
        with open_parquet(path) as file:
            return bool({"Kernel", "Sil(ns)"} & set(file.schema_arrow.names))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, 262,144 at a time; memory holds one row group of the selected columns."""
        with open_parquet(path) as file:
            column_names = _present_columns(path, file.schema_arrow.names, columns)
        texts = [column_names[column] for column in TEXT if column in column_names]
        row = 0
        with open_parquet(path, texts) as file:
            # Threads would compete with the processes that read other files.
            pieces = file.iter_batches(_ROWS, columns=list(column_names.values()), use_threads=False)
            for piece in _guarded(path, pieces):
                yield _tidy(path, row, piece, column_names, columns)
                row += piece.num_rows


class PyprofCsv:
    """Reader of the output of ``python -m pyprof.prof --csv``, also as gzip."""

    name = "pyprof-csv"
    maker = "NVIDIA"
    description = "pyprof CSV"
    has_starts = False

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether the header has pyprof's names for kernel and duration."""
        names = head.partition(b"\n")[0].decode("utf-8", "replace").split(",")
        return {"Kernel", "Sil(ns)"} <= {name.strip(' "\r') for name in names}

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, about 1 MB of text at a time."""
        import pyarrow.csv as pa_csv

        types = {ours: pa.string() for ours in TEXT.values()} | {ours: pa.float64() for ours in NUMBERS.values()}
        convert = pa_csv.ConvertOptions(column_types=types, null_values=["", "na", "-", "nan", "NaN"])
        try:
            with pa.PythonFile(open_decompressed(path), mode="r") as raw:
                read = pa_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)
                reader = pa_csv.open_csv(raw, read_options=read, convert_options=convert)
                column_names = _present_columns(path, reader.schema.names, columns)
                row = 0
                for piece in _guarded(path, reader):
                    yield _tidy(path, row, piece, column_names, columns)
                    row += piece.num_rows
        except PROBLEMS as error:
            raise BadProfile(f"{path}: cannot be read as a pyprof CSV ({first_line(error)})") from None


def open_parquet(path: Path, texts: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a parquet file with unique, flat columns and row groups of limited size.

    The columns of `texts` are read as dictionaries. Raise BadProfile if the file is corrupted, or has duplicate or
    nested columns or too large row groups.
    """
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        names = file.schema_arrow.names
        if len({*names}) < len(names):
            duplicate = next(name for name in names if names.count(name) > 1)
            raise BadProfile(f"{path}: the column {duplicate[:60]!r} is there twice")
        nested = next((field for field in file.schema_arrow if pa.types.is_nested(field.type)), None)
        if nested is not None:
            raise BadProfile(f"{path}: the column {nested.name[:60]!r} holds lists or structs, not text or numbers")
        for number in range(file.metadata.num_row_groups):
            size = file.metadata.row_group(number).total_byte_size
            if not 0 <= size <= _GROUP_BYTES:
                raise BadProfile(f"{path}: row group {number} declares {size:,} bytes; the limit is 4 GiB")
        if texts:
            file.close()
            file = pq.ParquetFile(path, read_dictionary=list(texts), page_checksum_verification=True)
        return file
    except PROBLEMS as error:
        raise BadProfile(f"{path}: parquet that is truncated or corrupted ({first_line(error)})") from None


def _guarded(path: Path, pieces: Any) -> Iterator[pa.RecordBatch]:
    """Convert errors of Arrow to BadProfile with the number of the batch."""
    number = 0
    iterator = iter(pieces)
    while True:
        try:
            piece = next(iterator)
        except StopIteration:
            return
        except PROBLEMS as error:
            raise BadProfile(f"{path}: batch {number} cannot be read ({first_line(error)})") from None
        yield piece
        number += 1


def _present_columns(path: Path, names: Sequence[str], columns: tuple[str, ...] | None) -> dict[str, str]:
    """Return the requested columns that are present, with their names in pyprof."""
    for name in ("Kernel", "Sil(ns)"):
        if name not in names:
            raise BadProfile(f"{path}: a pyprof file without the column {name!r}: it has {', '.join(names) or 'none'}")
    selected = {ours: theirs for ours, theirs in {**TEXT, **NUMBERS}.items() if columns is None or ours in columns}
    if {"flops", "bytes"} & set(selected):  # both are needed to distinguish 0 from absent
        selected |= {"flops": "FLOPs", "bytes": "Bytes"}
    selected["duration_ns"] = "Sil(ns)"  # always read: every row has it
    return {ours: theirs for ours, theirs in selected.items() if theirs in names}


def _tidy(
    path: Path, row: int, piece: pa.RecordBatch, column_names: dict[str, str], columns: tuple[str, ...] | None
) -> pa.RecordBatch:
    """Convert a batch of pyprof's columns to `SCHEMA`; `row` is the number of rows before it."""
    table: dict[str, Any] = {}
    measured: dict[str, NDArray[np.float64]] = {}
    try:
        for ours, theirs in column_names.items():
            values = piece.column(theirs)
            if ours == "tensor_core":
                table[ours] = _tensor_core_flags(_text(values))
            elif ours in TEXT:
                table[ours] = _text(values)
            elif ours in ("stream", "device", "thread"):
                table[ours] = values if values.type == pa.int64() else values.cast(pa.int64())
            else:
                measured[ours] = _non_negative_column(path, row, theirs, values)
        uncounted: Any = False
        if {"flops", "bytes"} <= set(measured):
            uncounted = (measured["flops"] == 0) & (measured["bytes"] == 0)
        for ours, numbers in measured.items():
            valid = ~(np.isnan(numbers) | uncounted) if ours != "duration_ns" else None
            table[ours] = from_numpy(numbers, pa.float64(), valid)
        if columns is None or "category" in columns:
            zeros = from_numpy(np.zeros(piece.num_rows, np.int32), pa.int32())
            table["category"] = pa.DictionaryArray.from_arrays(zeros, text_array(["kernel"]))
        if columns is None or "calls" in columns:
            table["calls"] = from_numpy(np.ones(piece.num_rows, np.int64), pa.int64())
        return batch_of(table, piece.num_rows, columns)
    except PROBLEMS as error:
        raise BadProfile(f"{path}: rows from {row}: not what pyprof writes ({first_line(error)})") from None


def _non_negative_column(path: Path, row: int, name: str, values: pa.Array) -> NDArray[np.float64]:
    """Return durations, FLOPs or bytes, NaN if absent; raise for absent durations and for values < 0 or infinite."""
    if values.type != pa.float64() and not pa.types.is_integer(values.type):
        values = values.cast(pa.float64())
    numbers = to_numpy(values, np.nan).astype(np.float64, copy=False)
    if len(numbers) and numbers.min() >= 0 and numbers.max() < np.inf:  # NaN would fail both
        return numbers
    wrong = ~(numbers >= 0) | np.isinf(numbers)
    if name != "Sil(ns)":
        wrong &= ~np.isnan(numbers)
    if wrong.any():
        index = int(wrong.argmax())
        shown = "absent" if np.isnan(numbers[index]) else f"{numbers[index]:g}"
        raise BadProfile(f"{path}: row {row + index}: {name} is {shown}, expected a number of 0 or more")
    return numbers


def _text(values: pa.Array) -> pa.Array:
    """Return dictionary-encoded text, null for the texts of `ABSENT`."""
    if not pa.types.is_dictionary(values.type):
        values = values.cast(pa.string()).dictionary_encode()
    kind = pa.dictionary(pa.int32(), pa.string())
    values = values if values.type == kind else values.cast(kind)
    names = values.dictionary.to_pylist()
    is_present = np.array([name not in ABSENT for name in names], bool)
    indices = to_numpy(values.indices, -1)
    if len(indices) and not -1 <= indices.min() <= indices.max() < len(names):  # Arrow does not check this
        raise ValueError("text that refers to a missing entry of its dictionary")
    if is_present.all():
        return values
    # Rows without a text have index -1, which selects the appended entry -1.
    code = np.where(is_present, np.cumsum(is_present) - 1, -1).astype(np.int32)
    moved = np.append(code, np.int32(-1))[indices]
    rest = text_array([name for name in names if name not in ABSENT])
    return pa.DictionaryArray.from_arrays(from_numpy(moved, pa.int32(), moved >= 0), rest)


def _tensor_core_flags(values: pa.Array) -> pa.Array:
    """Return whether tensor cores were used: pyprof writes 1, 0, or "-" for operations that cannot use them."""
    flags = [_TRUTH.get(word, -1) for word in values.dictionary.to_pylist()]
    truth = np.array([*flags, -1], np.int8)[to_numpy(values.indices, -1)]
    bits = [pa.py_buffer(np.packbits(side, bitorder="little")) for side in (truth >= 0, truth == 1)]
    return pa.Array.from_buffers(pa.bool_(), len(truth), bits)


_TRUTH = {"1": 1, "True": 1, "0": 0, "False": 0}


def first_line(error: Exception) -> str:
    """Return the first line of an error message, truncated to 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

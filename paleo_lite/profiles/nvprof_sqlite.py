"""Reader of nvprof's SQLite files (``nvprof -o run.nvvp``, ``run.nvprof``), with a table per kind of CUPTI activity.

Tables and columns are CUPTI's activity records (CUPTI documentation, ``CUpti_ActivityKernel4``, ``..Memcpy``,
``..Memset``, ``..API``, ``..Marker2``); names are ids into ``StringTable``. Tables and columns depend on the version.
Times are in ns; if start and end are both 0, CUPTI did not collect them. Kernel names are mangled. Metrics and events
are not read, because the file does not contain their names.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import gpu_category
from .sqlite_file import Entries, open_readonly, recognised_tables, tables_of
from .table import LATEST_NS, batch_of

_ROWS = 2**14
_LONGEST_NAME = 2**16

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_KERNELS = ("CONCURRENT_KERNEL", "KERNEL", "CDP_KERNEL")
_COPIES = ("MEMCPY", "MEMCPY2")
_CALLS = ("RUNTIME", "DRIVER")
_READ = (*_KERNELS, *_COPIES, "MEMSET", *_CALLS, "MARKER")

_COPY_KINDS = dict(enumerate(["HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"], 1))
"""``CUpti_ActivityMemcpyKind``."""

_INSTANT, _BEGIN, _END = 1, 2, 4
"""``CUpti_ActivityFlag``: CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS, _START, _END."""

_RUNTIME_CALLS = {
    10: "cudaGetLastError", 11: "cudaPeekAtLastError", 13: "cudaLaunch", 17: "cudaGetDevice", 31: "cudaMemcpy",
    32: "cudaMemcpy2D", 41: "cudaMemcpyAsync", 44: "cudaMemcpy2DAsync", 49: "cudaMemset", 51: "cudaMemsetAsync",
    126: "cudaThreadSynchronize", 131: "cudaStreamSynchronize", 137: "cudaEventSynchronize",
    147: "cudaStreamWaitEvent", 160: "cudaMemcpyPeer", 161: "cudaMemcpyPeerAsync", 165: "cudaDeviceSynchronize",
    211: "cudaLaunchKernel", 269: "cudaLaunchCooperativeKernel", 311: "cudaGraphLaunch",
}  # fmt: skip
"""``CUpti_runtime_api_trace_cbid``: names of the calls that launch, copy and wait. The file contains only ids."""


class NvprofSqlite:
    """Reader of nvprof's SQLite. Registers per thread, static and dynamic shared memory (bytes) are ``metric.*``."""

    name = "nvprof-sqlite"
    maker = "NVIDIA"
    description = "nvprof SQLite (.nvvp, .nvprof)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a SQLite file has tables of CUPTI activities and nvprof's table of strings."""
        tables = recognised_tables(path, head)
        return tables is not None and "StringTable" in tables and any(name.startswith(_PREFIX) for name in tables)

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield kernels, copies, fills, API calls and NVTX markers, kind by kind, 16,384 at a time.

        Raise BadProfile if the file is cut or corrupted, lacks the tables, or an activity ends before it begins.
        """
        file_bytes = path.stat().st_size if path.exists() else 0
        with open_readonly(path) as connection:
            tables = tables_of(connection)
            kinds = [kind for kind in _READ if _PREFIX + kind in tables]
            if not kinds or "StringTable" not in tables:
                raise BadProfile(f"{path}: SQLite without the tables of nvprof ({_PREFIX}..., StringTable)")
            reader = _NvprofReader(path, connection, file_bytes)
            for kind in kinds:
                rows = reader.markers() if kind == "MARKER" else reader.activities(kind, tables[_PREFIX + kind])
                for batch in _grouped(rows):
                    yield reader.batch(kind, batch, columns)


class _NvprofReader:
    def __init__(self, path: Path, connection: sqlite3.Connection, most: int) -> None:
        self.path, self.connection, self.most = path, connection, most
        self.strings = Entries(connection, "StringTable", "_id_", "value", _LONGEST_NAME)

    def activities(self, kind: str, columns: list[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table with the columns that this version has."""
        for required in ("start", "end"):
            if required not in columns:
                raise BadProfile(f"{self.path}: {_PREFIX}{kind} has no column {required!r}")
        present = [name for name in _COLUMNS if name in columns]
        for values in self._select(kind, present):
            row = dict(zip(present, values))
            begin, end = row["start"], row["end"]
            if begin == end == 0:
                row["start"] = row["end"] = None
            elif not isinstance(begin, int) or not isinstance(end, int) or not 0 <= begin <= end <= LATEST_NS:
                where = f"{_PREFIX}{kind} row {row.get('_id_')}"
                raise BadProfile(f"{self.path}: {where}: begins at {begin!r:.40} and ends at {end!r:.40}")
            yield row

    def markers(self) -> Iterator[dict[str, Any]]:
        """Yield NVTX marks and ranges; a range without an end has no duration."""
        begun: dict[int, dict[str, Any]] = {}
        for number, flags, time, name, kind, owner in self._select(
            "MARKER", ["id", "flags", "timestamp", "name", "objectKind", "objectId"]
        ):
            if not all(isinstance(value, int) for value in (number, flags, time)) or not 0 <= time <= LATEST_NS:
                raise BadProfile(f"{self.path}: {_PREFIX}MARKER: marker {number!r:.40} at {time!r:.40}")
            # CUPTI_ACTIVITY_OBJECT_THREAD: 4 bytes of process, 8 of thread, little-endian
            thread = int.from_bytes(owner[4:8], "little") if kind == 2 and isinstance(owner, bytes) else None
            row = {"start": time, "end": None, "name": name, "threadId": thread}
            if flags & _INSTANT:
                yield row
            elif flags & _BEGIN:
                begun[number] = row
            elif flags & _END and number in begun:
                row = begun.pop(number)
                if time < row["start"]:
                    raise BadProfile(f"{self.path}: {_PREFIX}MARKER: marker {number} ends before it begins")
                yield row | {"end": time}
        yield from begun.values()

    def batch(self, kind: str, rows: Sequence[dict[str, Any]], columns: tuple[str, ...] | None) -> pa.RecordBatch:
        names = [self._name(kind, row) for row in rows]
        table: dict[str, Any] = {
            "category": [_category(kind, name) for name in names],
            "kernel": names,
            "start_ns": [row["start"] for row in rows],
            "duration_ns": [None if row["end"] is None else row["end"] - row["start"] for row in rows],
            "calls": [1] * len(rows),
            "grid": [_extent(row, "grid") for row in rows],
            "block": [_extent(row, "block") for row in rows],
            # CUPTI keeps 32 of the 64 bits of a pthread_t, and SQLite stores them as signed
            "thread": [_low_bits(row.get("threadId")) for row in rows],
        }
        for ours, theirs in _NUMBERS.items():
            table[ours] = [row.get(theirs) for row in rows]
        try:
            return batch_of(table, len(rows), columns)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            where = f"{_PREFIX}{kind} rows from {rows[0].get('_id_')}"
            raise BadProfile(f"{self.path}: {where}: not what nvprof writes ({error!s:.100})") from None

    def _select(self, kind: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        quoted = ", ".join(f'"{name}"' for name in columns)
        rows = self.connection.execute(f'SELECT {quoted} FROM "{_PREFIX}{kind}"')
        for count, row in enumerate(rows):
            if count > self.most:  # a damaged B-tree can visit the same pages repeatedly
                raise BadProfile(f"{self.path}: {_PREFIX}{kind} has more rows than the file has bytes")
            yield row

    def _name(self, kind: str, row: dict[str, Any]) -> str | None:
        if kind in _COPIES:
            copy = _COPY_KINDS.get(row.get("copyKind", 0))
            return f"[CUDA memcpy {copy}]" if copy else "[CUDA memcpy]"
        if kind == "MEMSET":
            return "[CUDA memset]"
        if kind in _CALLS:
            call_name = _RUNTIME_CALLS.get(row.get("cbid", 0)) if kind == "RUNTIME" else None
            return call_name or f"CUDA {kind.lower()} call {row.get('cbid')!s:.20}"
        return self._string(row.get("name"))

    def _string(self, number: Any) -> str | None:
        if not isinstance(number, int):
            return None
        try:
            return str(self.strings.find(number))
        except KeyError:
            raise BadProfile(f"{self.path}: StringTable has no entry {number}, the name of an activity") from None


_NUMBERS = {
    "bytes": "bytes",
    "stream": "streamId",
    "device": "deviceId",
    "metric.registers_per_thread": "registersPerThread",
    "metric.static_shared_bytes": "staticSharedMemory",
    "metric.dynamic_shared_bytes": "dynamicSharedMemory",
}
_COLUMNS = ("_id_", "start", "end", "name", "copyKind", "cbid", "threadId", *_NUMBERS.values())
_COLUMNS += tuple(f"{extent}{axis}" for extent in ("grid", "block") for axis in "XYZ")


def _category(kind: str, name: str | None) -> str:
    if kind in _KERNELS:
        return gpu_category(name or "")
    return {"MEMSET": "memset", "MARKER": "marker"}.get(kind) or ("memcpy" if kind in _COPIES else "api")


def _low_bits(number: Any) -> Any:
    return number & 0xFFFFFFFF if isinstance(number, int) else number


def _extent(row: dict[str, Any], extent: str) -> str | None:
    sides = [row.get(f"{extent}{axis}") for axis in "XYZ"]
    return None if None in sides else ",".join(map(str, sides))


def _grouped(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(row)
        if len(group) == _ROWS:
            yield group
            group = []
    if group:
        yield group

"""Reader of Nsight Systems' SQLite files (``nsys export --type sqlite``; ``nsys stats`` writes one too).

Tables and columns follow the comments in the file and the Nsight Systems User Guide ("SQLite Schema Reference").
Columns differ between versions, so the columns of each table are queried. Times are in ns since the start of the
session; names are ids into ``StringIds``. Ranges of PyTorch's ``emit_nvtx`` (``aten::mm, op_id = 7, sizes = [..]``)
give the operation of each kernel. Other ranges of the program are its iterations and layers (see `launches`), except
for those of libraries with their own NVTX domains.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import BadProfile
from .launches import LAUNCH, OPERATION, HostRange, Launched, Links, ProgramPaths, direction_of, find_steps
from .lines import LONGEST_LINE, gpu_category, quoted
from .sqlite_file import Entries, open_readonly, recognised_tables, tables_of
from .table import LATEST_NS, Records, batch_of, encode_text, text_array

if TYPE_CHECKING:
    from .launches import Integers

TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "memset",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "api",
    "NVTX_EVENTS": "marker",
}
"""Tables that are read, in this order, and the category of their rows."""

COPY_KINDS = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
"""ENUM_CUDA_MEMCPY_OPER."""

_ROWS = 2**14
_TEXT = 2**24  # characters of text in a batch
_LONGEST_NS = 2**53  # a hundred days: the range of exact nanoseconds in float64
_LINKED = ("op", "params", "direction", "execution", "step", "launch_ns", "layer")

_MARK, _DOMAIN = 34, 75
_NESTED = (None, 59, 70)  # ranges pushed and popped on one thread; older versions have no type
_NVTX_KINDS = (_MARK, 59, 60, 70, 71)
"""Marks and ranges of ENUM_NSYS_EVENT_TYPE; other events declare domains and names."""

_LIBRARIES = ("NCCL", "CCCL")  # NVTX domains with ranges that do not locate a kernel in the program
_TORCH_RANGE = re.compile(
    r"(?P<op>.+?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+)?"
    r"(?:, sizes = (?P<sizes>\[[\d, \[\]]*\]))?(?:, input_op_ids.*)?"
)
_TORCH_SIGNS = (", seq = ", ", op_id = ", ", sizes = ")


class NsysSqlite:
    """Reader of this format; see `detect.Reader`."""

    name = "nsys-sqlite"
    maker = "NVIDIA"
    description = "Nsight Systems SQLite"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return True for SQLite files other than nvprof's and rocprofv3's; `batches` checks for the tables."""
        tables = recognised_tables(path, head)
        foreign_tables = (
            () if tables is None else ("StringTable", *(name for name in tables if name.startswith("rocpd_")))
        )
        return tables is not None and ("StringIds" in tables or not tables.keys() & {*foreign_tables})

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield kernels, copies, fills, runtime calls and NVTX ranges, table by table, 16,384 rows at a time.

        Raise BadProfile if the file is cut or corrupted, lacks the tables, or an event ends before it begins.
        """
        with open_readonly(path) as connection:
            tables = tables_of(connection)
            present = [table for table in TABLES if table in tables]
            if "StringIds" in tables and not {"id", "value"} <= {*tables["StringIds"]}:
                raise BadProfile(f"{path}: StringIds has no stored columns 'id' and 'value'")
            if not present or "StringIds" not in tables:
                table_names = ", ".join(TABLES)
                raise BadProfile(
                    f"{path}: SQLite without the tables of Nsight Systems: looked for StringIds and {table_names}"
                )
            reader = _NsysReader(path, connection, tables)
            linked = columns is None or not set(_LINKED).isdisjoint(columns)
            reader.link(present if linked else [])
            for table in present:
                for row_ids, rows in reader.chunks(table):
                    yield batch_of(reader.columns(table, row_ids, rows), len(row_ids), columns)


class _NsysReader:
    def __init__(self, path: Path, connection: sqlite3.Connection, tables: dict[str, list[str]]) -> None:
        self.path, self.connection, self.tables = path, connection, tables
        self.most = path.stat().st_size  # no table has more rows than the file has bytes
        self.linked: _Linked | None = None
        self._strings = Entries(connection, "StringIds", "id", "value", LONGEST_LINE)
        self._pids: dict[int, int] = {}

    def chunks(self, table: str) -> Iterator[tuple[list[int], dict[str, list[Any]]]]:
        """Yield row ids and columns; ids of names are replaced by names, missing columns are None."""
        has = self.tables[table]
        for required in ("start", "end", *({"CUPTI_ACTIVITY_KIND_RUNTIME": ["nameId"]}.get(table, []))):
            if required not in has:
                raise BadProfile(f"{self.path}: {table} has no column {required!r}")
        selected = [f't."{name}"' if name in has else "NULL" for name in _COLUMNS]
        number = next((f't."{name}"' for name in _NAMES if name in has), "NULL")
        where = f"WHERE t.eventType IN {_NVTX_KINDS}" if "eventType" in has else ""
        cursor = self.connection.execute(f"SELECT t.rowid, {number}, {', '.join(selected)} FROM {table} t {where}")
        count = 0
        for rows in self._groups(cursor):
            count += len(rows)
            if count > self.most:  # a damaged B-tree can visit the same pages repeatedly
                raise BadProfile(f"{self.path}: {table} has more rows than the file has bytes")
            row_ids, numbers, *values = map(list, zip(*rows))
            names = [self._name(table, row, name_id) for row, name_id in zip(row_ids, numbers)]
            values_of = dict(zip(_COLUMNS, values))
            texts = values_of["text"]
            values_of["name"] = [
                str(n if text is None else text) if n or text else None for n, text in zip(names, texts)
            ]
            yield row_ids, values_of

    @staticmethod
    def _groups(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
        """Yield groups of rows; groups are smaller if the rows contain long texts."""
        text = 2 + _COLUMNS.index("text")
        group: list[tuple[Any, ...]] = []
        size = 0
        for row in cursor:
            group.append(row)
            size += len(row[text]) if isinstance(row[text], (str, bytes)) else 0
            if len(group) == _ROWS or size > _TEXT:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _name(self, table: str, row: int, number: Any) -> str | None:
        """Return an entry of StringIds, cached because many rows share it."""
        if number is None:
            return None
        text = self._string(number)
        if text is None:
            raise BadProfile(f"{self.path}: {table} row {row}: StringIds has no entry {number!r:.40}")
        return text

    def _string(self, number: Any) -> str | None:
        """Return an entry of StringIds; None if there is none."""
        try:
            text = self._strings.find(number)
        except KeyError:
            return None
        return None if text is None else str(text)

    def link(self, present: list[str]) -> None:
        """Record ranges and launching calls, to link kernels to operations, iterations and paths."""
        if "NVTX_EVENTS" not in present or "CUPTI_ACTIVITY_KIND_RUNTIME" not in present:
            return
        ranges = _Ranges(self._domains())
        for row_ids, rows in self.chunks("NVTX_EVENTS"):
            times = self._times("NVTX_EVENTS", row_ids, rows)
            for event in zip(*(rows[name] for name in ("name", "globalTid", "eventType", "domainId")), *times):
                ranges.add(*event)
        if not ranges:
            return
        calls = []
        for row_ids, rows in self.chunks("CUPTI_ACTIVITY_KIND_RUNTIME"):
            start, _ = self._times("CUPTI_ACTIVITY_KIND_RUNTIME", row_ids, rows)
            keys = self._launch_keys(rows["globalTid"], rows["correlationId"])
            calls += [
                (key, ranges.thread(thread), begin)
                for key, thread, begin in zip(keys, rows["globalTid"], start)
                if key >= 0
            ]
        self.linked = ranges.link(np.array(calls, LAUNCH))

    def _domains(self) -> dict[Any, str]:
        """Return the names of NVTX domains by id."""
        has = self.tables["NVTX_EVENTS"]
        if not {"eventType", "domainId", "text"} <= {*has}:
            return {}
        registered = "textId" if "textId" in has else "NULL"
        query = f"SELECT domainId, substr(text, 1, 100), {registered} FROM NVTX_EVENTS WHERE eventType = {_DOMAIN}"
        domains = {}
        for number, text, text_id in self.connection.execute(f"{query} LIMIT 10000").fetchall():
            name = self._string(text_id) if text is None else text
            domains[number] = str(name)[:100]
        return domains

    def columns(self, table: str, row_ids: list[int], rows: dict[str, list[Any]]) -> dict[str, Any]:
        start, end = self._times(table, row_ids, rows)
        category, names = TABLES[table], rows["name"]
        if category == "memcpy":
            names = [f"[CUDA memcpy {COPY_KINDS.get(kind, 'Unknown')}]" for kind in rows["copyKind"]]
        elif category == "memset":
            names = ["[CUDA memset]"] * len(row_ids)
        kinds = [gpu_category(name or "") for name in names] if category == "kernel" else [category] * len(row_ids)
        on_host = category in ("api", "marker")
        values_of: dict[str, Any] = {
            "category": kinds,
            "kernel": names,
            "start_ns": start,
            "duration_ns": [None if to is None else to - begin for begin, to in zip(start, end)],
            "calls": [1] * len(row_ids),
            "grid": _extents(rows, "grid"),
            "block": _extents(rows, "block"),
            # globalTid: 8 bits of hardware, 8 of virtual machine, 24 of process, 24 of thread
            "thread": [_whole(tid) and tid & 0xFFFFFF for tid in rows["globalTid"]] if on_host else None,
        }
        for ours, theirs in (("bytes", "bytes"), ("stream", "streamId"), ("device", "deviceId")):
            values_of[ours] = [_whole(value) for value in rows[theirs]]
        for row, size in zip(row_ids, values_of["bytes"]):
            if size is not None and not 0 <= size <= _LONGEST_NS:
                raise BadProfile(f"{self.path}: {table} row {row}: {size:,} bytes, expected 0 to {_LONGEST_NS:,}")
        if self.linked is not None and category != "marker":
            owners = rows["globalTid"] if category == "api" else rows["globalPid"]
            keys = self._launch_keys(owners, rows["correlationId"])
            values_of |= self.linked.columns(keys, np.array(start, np.int64))
        return values_of

    def _launch_keys(self, owners: list[Any], correlations: list[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return process-unique keys of launches: an index of the process and the 32-bit correlation id."""
        keys = np.full(len(owners), -1, dtype=np.int64)
        for index, (owner, correlation) in enumerate(zip(owners, correlations)):
            if isinstance(correlation, int) and 0 <= correlation < 2**32 and isinstance(owner, int):
                process = self._pids.setdefault(owner >> 24, len(self._pids))
                keys[index] = (process << 32) + correlation
        return keys

    def _times(self, table: str, row_ids: list[int], rows: dict[str, list[Any]]) -> tuple[list[int], list[int | None]]:
        for row, start, end in zip(row_ids, rows["start"], rows["end"]):
            unfinished = end is None and table == "NVTX_EVENTS"
            is_time = isinstance(start, int) and abs(start) <= LATEST_NS
            is_complete = isinstance(end, int) and is_time and 0 <= end - start < _LONGEST_NS
            if not is_time or not (unfinished or is_complete):
                raise BadProfile(
                    f"{self.path}: {table} row {row}: begins at {_describe_value(start)} "
                    f"and ends at {_describe_value(end)}"
                )
        return rows["start"], rows["end"]


_NAMES = ("demangledName", "shortName", "nameId", "textId")
_SIDES = tuple(f"{extent}{axis}" for extent in ("grid", "block") for axis in "XYZ")
_COLUMNS = (
    "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "globalTid", "bytes", "copyKind", "text",
    "eventType", "domainId", *_SIDES,
)  # fmt: skip


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _describe_value(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else f"{value!r:.40}"


def _extents(rows: dict[str, list[Any]], extent: str) -> list[str | None]:
    """Return grid or block sizes as "x,y,z"; None if one of them is not an integer."""
    texts: list[str | None] = []
    for sides in zip(*(rows[f"{extent}{axis}"] for axis in "XYZ")):
        are_integers = all(isinstance(side, int) for side in sides)
        texts.append(",".join(map(str, sides)) if are_integers else None)
    return texts


# NVTX -----------------------------------------------------------------------------------------------------------------
#
# PyTorch's ``emit_nvtx`` pushes a range per operation, ``aten::mm, seq = 3, op_id = 8, sizes = [[2, 3], [3, 4]]``. All
# other ranges are the program's own.


class _Ranges:
    """Collected NVTX ranges and marks; the names of their domains come by id."""

    def __init__(self, domains: Mapping[Any, str]) -> None:
        self._foreign = {number for number, name in domains.items() if name in _LIBRARIES}
        self._threads: dict[Any, int] = {}
        self.names: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self._operations: list[tuple[Any, ...]] = []
        self._ranges: list[HostRange] = []
        self._own: list[tuple[str, int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._operations or self._own)

    def thread(self, number: Any) -> int:
        """Return the code of a thread."""
        return self._threads.setdefault(number, len(self._threads))

    def add(self, name: str | None, thread: Any, kind: int | None, domain: Any, start: int, end: int | None) -> None:
        """Add a range or mark; events without a name and ranges without an end are ignored."""
        if name is None or (end is None and kind != _MARK) or domain in self._foreign:
            return
        match = _TORCH_RANGE.fullmatch(name) if any(sign in name for sign in _TORCH_SIGNS) else None
        code = self.thread(thread)
        if match is not None and end is not None:
            self._operations.append(self._operation(match, code, start, end))
            return
        self._own.append((name, start, start if end is None else end))
        if end is not None and kind in _NESTED:
            self._ranges.append(HostRange(name, code, start, end))

    def _operation(self, match: re.Match[str], thread: int, start: int, end: int) -> tuple[Any, ...]:
        code = self.names.setdefault(match["op"], len(self.names))
        sizes = match["sizes"]
        params = -1 if sizes is None else self.sizes.setdefault(sizes, len(self.sizes))
        sequence = -1 if match["sequence"] is None else int(match["sequence"])
        return -1, thread, start, end, code, params, sequence, direction_of(match["op"])

    def link(self, launches: Records) -> _Linked:
        """Return the links of the events launched by these calls (see `launches.LAUNCH`)."""
        names, starts, ends = zip(*self._own) if self._own else ((), (), ())
        steps = find_steps(names, np.array(starts, np.int64), np.array(ends, np.int64), launches["start"])
        operations = np.array(self._operations, OPERATION)
        links = Links(operations, launches, external_ids=False) if len(operations) else None
        texts = tuple(text_array([*codes]) for codes in (self.names, self.sizes))
        return _Linked(Launched(steps, steps, launches), ProgramPaths(self._ranges, steps), links, *texts)


class _Linked:
    """Links from device events to operations, iterations and paths, by the launching call."""

    def __init__(
        self, launched: Launched, places: ProgramPaths, links: Links | None, names: pa.Array, sizes: pa.Array
    ) -> None:
        self._launched, self._places, self._links = launched, places, links
        self._texts = names, sizes
        of_launch = places.find(launched.launches["thread"], launched.launches["start"])
        self._of_launch = np.append(of_launch, -1)  # the last entry is for events without a launch
        self._of_operation = None if links is None else places.of(links)

    def columns(self, keys: Integers, start: Integers) -> dict[str, Any]:
        """Return `step`, `launch_ns`, `layer`, and the columns of the operation if there is one."""
        table: dict[str, Any] = self._launched.columns(keys, start)
        inside = self._of_launch[self._launched.find(keys)]
        if self._links is not None and self._of_operation is not None:
            at = self._links.find(np.full(len(keys), -1), keys)
            table |= self._links.columns(at, *self._texts)
            inside = np.where(at >= 0, self._of_operation[at], inside)
        return table | {"layer": encode_text(inside, self._places.names)}

"""Readers of AMD's rocprof: kernels and copies with times, from CSV and from rocprofv3's database.

The columns of the CSV (rocprofv3 ``--kernel-trace``, rocprof ``-o``, and ``--stats``) follow the documentation of
ROCprofiler-SDK ("Using rocprofv3") and of rocprof ("rocprof command reference"). The database (``rocpd``, the default
format of rocprofv3) is SQLite with a set of tables per process, distinguished by a suffix, as described in ROCm's
"Using rocpd output format". Times are in ns. A work group is read as a block, and the grid is converted from work
items to blocks. Markers, HSA calls, regions and counters are not read.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import (
    LONGEST_LINE,
    SUMMARY_BYTES,
    CsvTable,
    decoded_head,
    gpu_category,
    number_of,
    numbered_lines,
    quoted,
    whole_cell,
)
from .printed import Spans, spans_of_rule, split_columns
from .sqlite_file import Entries, open_readonly, recognised_tables, tables_of
from .table import LATEST_NS, batches_of

LONGEST_NS = 2**53  # range of exact nanoseconds in float64
_HEADING = re.compile(
    r'"?(?:(?:HIP |OCL )?Kernel )?Name"?,"?Calls"?,"?TotalDurationNs\b'
    r'|(?:"?Guid"?,)?"?Kind"?,"?(?:Agent_Id|Direction|Stream_Id)\b'
    r'|"?Index"?,"?KernelName"?,'
)
_SPANS = (("Start_Timestamp", "End_Timestamp"), ("BeginNs", "EndNs"))
_CALL = re.compile(r"_{0,2}(?:hip|hsa)_?[A-Za-z]\w*")
CLONE = re.compile(r"(?: \[clone \.kd\]|\.kd)$")


class RocprofCsv:
    """Reader of the CSV. Registers are ``metric.*``."""

    name = "rocprof"
    maker = "AMD"
    description = "rocprof CSV (kernel_trace, memory_copy_trace, stats)"

    def recognises(self, path: Path, head: bytes) -> bool:
        return any(_HEADING.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel or copy, or per kernel of a summary, 16,384 at a time."""
        table = CsvTable(path, _HEADING, units=False)
        rows = (_row(path, number, dict(zip(table.names, fields))) for number, fields in table.rows())
        yield from batches_of(rows, _NAMES, columns)


_SUMMARY_HEADING = re.compile(r"\s*NAME\s+DOMAIN\s+CALLS\s+DURATION \(\w+\)\s")
_SUMMARY_UNITS = {"nsec": 1.0, "usec": 1e3, "msec": 1e6, "sec": 1e9}
_CATEGORY_OF_DOMAIN = {"MEMORY_COPY": "memcpy", "HIP_API": "api", "HIP_RUNTIME_API": "api"}


class RocprofSummary:
    """Reader of the tables that ``rocprofv3 --summary`` prints: one of all domains, or one of each domain, or both."""

    name = "rocprof-summary"
    maker = "AMD"
    description = "rocprofv3 --summary as printed"

    def recognises(self, path: Path, head: bytes) -> bool:
        return any(_SUMMARY_HEADING.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel, kind of copy and call of the runtime."""
        yield from batches_of(_summary_rows(path), ("category", "kernel", "duration_ns", "calls"), columns)


def _summary_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of each domain from the first table that has it."""
    table_of: dict[str, int] = {}  # line of the heading of the table with the rows of a domain
    heading: tuple[int, str] | None = None
    spans: Spans | None = None
    names: list[str] = []
    for number, line in numbered_lines(path, SUMMARY_BYTES):
        if _SUMMARY_HEADING.match(line):
            heading, spans = (number, line), None
            continue
        if heading is None:
            continue
        rule = spans_of_rule(line)
        if rule is not None and spans is None:
            spans, names = rule, split_columns(heading[1], rule) or []
            continue
        cells = None if spans is None or rule is not None else split_columns(line, spans)
        if cells is None or len(cells) != len(names):
            heading = None  # text below the table
            continue
        values = dict(zip(names, cells))
        domain = values.get("DOMAIN", "")
        if table_of.setdefault(domain, heading[0]) != heading[0]:
            continue
        category = _CATEGORY_OF_DOMAIN.get(domain)
        if domain == "KERNEL_DISPATCH":
            category = gpu_category(values["NAME"])
        if category is not None:
            yield _summary_row(path, number, category, values)


def _summary_row(path: Path, number: int, category: str, cells: dict[str, str]) -> dict[str, Any]:
    duration = next(name for name in cells if name.startswith("DURATION"))
    scale = _SUMMARY_UNITS.get(duration.partition("(")[2].rstrip(")"))
    try:
        calls, duration_ns = number_of(cells["CALLS"]), number_of(cells[duration]) * (scale or 0)
        if scale is None or not (0 <= calls < LONGEST_NS and calls == int(calls) and 0 <= duration_ns < LATEST_NS):
            raise ValueError
    except ValueError:
        raise BadProfile(
            f"{path}: line {number}: {quoted(cells['CALLS'])} calls in {quoted(cells[duration])}, expected numbers"
        ) from None
    return {"category": category, "kernel": cells["NAME"], "duration_ns": duration_ns, "calls": int(calls)}


_NAMES = (
    "category", "kernel", "start_ns", "duration_ns", "calls", "grid", "block", "stream", "device", "thread",
    "metric.vector_registers", "metric.scalar_registers",
)  # fmt: skip


def _name_in_summary(cells: dict[str, str]) -> str:
    """Return the name in a row of a summary, whose first column it is, such as ``Name`` or ``HIP Kernel Name``."""
    return next((value for column, value in cells.items() if column.endswith("Name")), "")


def _row(path: Path, number: int, cells: dict[str, str]) -> dict[str, Any]:
    def integer_cell(name: str) -> int | None:
        """Return a cell as an integer; None if it is blank."""
        text = cells.get(name, "").strip().removeprefix("Agent ").removeprefix("GPU ")
        return whole_cell(path, number, name, text)

    name = CLONE.sub("", cells.get("Kernel_Name") or cells.get("KernelName") or _name_in_summary(cells))
    if "TotalDurationNs" in cells:
        category = "api" if _CALL.fullmatch(name) else gpu_category(name)
        total = integer_cell("TotalDurationNs")
        return {
            "category": category,
            "kernel": name,
            "calls": integer_cell("Calls"),
            "duration_ns": None if total is None else float(total),
        }
    span = next((span for span in _SPANS if set(span) <= cells.keys()), None)
    if span is None:
        raise BadProfile(
            f"{path}: line {number}: no times: rocprof --timestamp on, or rocprofv3 --kernel-trace, has them"
        )
    start, end = integer_cell(span[0]), integer_cell(span[1])
    if start is None or end is None or not 0 <= end - start < LONGEST_NS:
        raise BadProfile(f"{path}: line {number}: begins at {start} and ends at {end}")
    row: dict[str, Any] = {"start_ns": start, "duration_ns": end - start, "calls": 1}
    if "Direction" in cells:
        name = f"[memcpy {cells['Direction'].removeprefix('MEMORY_COPY_')}]"
        return row | {"category": "memcpy", "kernel": name, "device": integer_cell("Destination_Agent_Id")}
    groups = [integer_cell(f"Workgroup_Size_{axis}") for axis in "XYZ"]
    items = [integer_cell(f"Grid_Size_{axis}") for axis in "XYZ"]
    if all(groups) and all(items):
        row["block"] = ",".join(map(str, groups))
        row["grid"] = ",".join(
            str(-(-work_items // size)) for work_items, size in zip(items, groups) if work_items and size
        )
    return row | {
        "category": gpu_category(name),
        "kernel": name,
        "device": integer_cell("Agent_Id" if "Agent_Id" in cells else "gpu-id"),
        "stream": integer_cell("Stream_Id" if "Stream_Id" in cells else "queue-id"),
        "thread": integer_cell("Thread_Id" if "Thread_Id" in cells else "tid"),
        "metric.vector_registers": _count(integer_cell("VGPR_Count")),
        "metric.scalar_registers": _count(integer_cell("SGPR_Count")),
    }


def _count(number: int | None) -> float | None:
    return None if number is None else float(number)


# The database ---------------------------------------------------------------------------------------------------------

_KERNELS, _COPIES = "rocpd_kernel_dispatch", "rocpd_memory_copy"
_AXES = "xyz"
_NEEDED = {
    _KERNELS: ("start", "end", "agent_id", "queue_id", "kernel_id",
               *(f"{extent}_size_{axis}" for extent in ("workgroup", "grid") for axis in _AXES)),
    _COPIES: ("start", "end", "dst_agent_id", "queue_id", "name_id", "size"),
    "rocpd_info_kernel_symbol": ("id", "display_name"), "rocpd_info_agent": ("id", "absolute_index"),
    "rocpd_string": ("id", "string"),
}  # fmt: skip


class RocpdSqlite:
    """Reader of the database."""

    name = "rocpd"
    maker = "AMD"
    description = "rocprofv3's database (rocpd)"

    def recognises(self, path: Path, head: bytes) -> bool:
        tables = recognised_tables(path, head)
        return tables is not None and any(name.startswith((_KERNELS, _COPIES)) for name in tables)

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel or copy, process by process, 16,384 at a time."""
        with open_readonly(path) as connection:
            rows = _activities(path, connection, tables_of(connection))
            yield from batches_of(rows, _OF_DATABASE, columns)


_OF_DATABASE = ("category", "kernel", "start_ns", "duration_ns", "calls", "bytes", "grid", "block", "stream", "device")


def _activities(path: Path, connection: sqlite3.Connection, tables: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    file_bytes = path.stat().st_size  # no table has more rows than the file has bytes
    for table in sorted(tables):
        base = next((base for base in (_KERNELS, _COPIES) if table.startswith(base)), None)
        if base is None:
            continue
        suffix = table.removeprefix(base)
        for required_base in (base, *list(_NEEDED)[2:]):
            lacking = {*_NEEDED[required_base]} - {*tables.get(required_base + suffix, [])}
            if lacking:
                raise BadProfile(f"{path}: {required_base + suffix} has no column {min(lacking)!r}")
        lookup = _Lookup(path, connection, suffix)
        selected = ", ".join(f'"{name}"' for name in _NEEDED[base])
        for count, row in enumerate(connection.execute(f'SELECT {selected} FROM "{table}"'), 1):
            start, end, agent, queue, name, *sizes = row
            spans = isinstance(start, int) and isinstance(end, int) and 0 <= end - start < LONGEST_NS
            spans = spans and abs(start) <= LATEST_NS
            if not spans or count > file_bytes:
                raise BadProfile(f"{path}: {table}: begins at {start!r:.40} and ends at {end!r:.40}")
            fields = _kernel(lookup, name, sizes) if base == _KERNELS else _copy(lookup, name, sizes)
            number = lookup.find("rocpd_info_agent", agent)
            yield fields | {
                "start_ns": start,
                "duration_ns": end - start,
                "calls": 1,
                "stream": queue if isinstance(queue, int) else None,
                "device": number if isinstance(number, int) else None,
            }


def _kernel(lookup: _Lookup, symbol: Any, sizes: list[Any]) -> dict[str, Any]:
    name = str(lookup.find("rocpd_info_kernel_symbol", symbol) or "")
    fields = {"category": gpu_category(name), "kernel": name}
    if all(isinstance(size, int) and size > 0 for size in sizes):
        fields["block"] = ",".join(map(str, sizes[:3]))
        fields["grid"] = ",".join(str(-(-items // group)) for group, items in zip(sizes[:3], sizes[3:]))
    return fields


def _copy(lookup: _Lookup, number: Any, sizes: list[Any]) -> dict[str, Any]:
    (size,) = sizes
    name = str(lookup.find("rocpd_string", number) or "")
    bytes_ = size if isinstance(size, int) and 0 <= size < LONGEST_NS else None
    return {"category": "memcpy", "kernel": f"[memcpy {name.removeprefix('MEMORY_COPY_')}]", "bytes": bytes_}


class _Lookup:
    """Cached lookup of the ids in the rows of a process."""

    def __init__(self, path: Path, connection: sqlite3.Connection, suffix: str) -> None:
        self.path, self.connection, self.suffix = path, connection, suffix
        self.entries: dict[str, Entries] = {}

    def find(self, table: str, number: Any) -> Any:
        if number is None:
            return None
        if table not in self.entries:
            key, value = _NEEDED[table]
            self.entries[table] = Entries(self.connection, table + self.suffix, key, value, LONGEST_LINE)
        try:
            return self.entries[table].find(number)
        except KeyError:
            raise BadProfile(f"{self.path}: {table + self.suffix} has no entry {number!r:.40}") from None

"""rocprof's CSV: kernels and copies with their times (rocprofv3 ``--kernel-trace``, rocprof ``-o``), and ``--stats``.

Columns as the documentation of ROCprofiler-SDK ("Using rocprofv3") and of rocprof ("rocprof command reference") have
them. Times are ns. What else is traced (markers, HSA) has other columns and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import CsvTable, decoded_head, gpu_category, shown
from .table import batches_of

_LONGEST_NS = 2**53  # what a float holds to the nanosecond
_HEADING = re.compile(
    r'"?Name"?,"?Calls"?,"?TotalDurationNs\b|(?:"?Guid"?,)?"?Kind"?,"?(?:Agent_Id|Direction|Stream_Id)\b'
    r'|"?Index"?,"?KernelName"?,'
)
_SPANS = (("Start_Timestamp", "End_Timestamp"), ("BeginNs", "EndNs"))
_CALL = re.compile(r"_{0,2}(?:hip|hsa)_?[A-Za-z]\w*")
_CLONE = re.compile(r"(?: \[clone \.kd\]|\.kd)$")


class RocprofCsv:
    """The reader; see `table.Reader`. Registers are ``metric.*``; a work group is a block, work items are divided."""

    name = "rocprof"
    what = "rocprof CSV (kernel_trace, memory_copy_trace, stats)"

    def recognises(self, path: Path, head: bytes) -> bool:
        return any(_HEADING.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """One row per kernel or copy, or of a summary for all calls of one, 16,384 at a time."""
        table = CsvTable(path, _HEADING, units=False)
        rows = (_row(path, number, dict(zip(table.names, fields))) for number, fields in table.rows())
        yield from batches_of(rows, _NAMES, columns)


_NAMES = (
    "category", "kernel", "start_ns", "duration_ns", "calls", "grid", "block", "stream", "device", "thread",
    "metric.vector_registers", "metric.scalar_registers",
)  # fmt: skip


def _row(path: Path, number: int, cells: dict[str, str]) -> dict[str, Any]:
    def whole(name: str) -> int | None:
        text = cells.get(name, "").strip().removeprefix("Agent ").removeprefix("GPU ")
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise BadProfile(f"{path}: line {number}: {name} is {shown(text)}, expected a whole number")
        return int(text)

    name = _CLONE.sub("", cells.get("Kernel_Name") or cells.get("KernelName") or cells.get("Name") or "")
    if "TotalDurationNs" in cells:
        category = "api" if _CALL.fullmatch(name) else gpu_category(name)
        total = whole("TotalDurationNs")
        return {
            "category": category,
            "kernel": name,
            "calls": whole("Calls"),
            "duration_ns": None if total is None else float(total),
        }
    span = next((span for span in _SPANS if set(span) <= cells.keys()), None)
    if span is None:
        raise BadProfile(
            f"{path}: line {number}: no times: rocprof --timestamp on, or rocprofv3 --kernel-trace, has them"
        )
    start, end = whole(span[0]), whole(span[1])
    if start is None or end is None or not 0 <= end - start < _LONGEST_NS:
        raise BadProfile(f"{path}: line {number}: begins at {start} and ends at {end}")
    row: dict[str, Any] = {"start_ns": start, "duration_ns": end - start, "calls": 1}
    if "Direction" in cells:
        name = f"[memcpy {cells['Direction'].removeprefix('MEMORY_COPY_')}]"
        return row | {"category": "memcpy", "kernel": name, "device": whole("Destination_Agent_Id")}
    groups = [whole(f"Workgroup_Size_{axis}") for axis in "XYZ"]
    items = [whole(f"Grid_Size_{axis}") for axis in "XYZ"]
    if all(groups) and all(items):
        row["block"] = ",".join(map(str, groups))
        row["grid"] = ",".join(str(-(-many // size)) for many, size in zip(items, groups) if many and size)
    return row | {
        "category": gpu_category(name),
        "kernel": name,
        "device": whole("Agent_Id" if "Agent_Id" in cells else "gpu-id"),
        "stream": whole("Stream_Id" if "Stream_Id" in cells else "queue-id"),
        "thread": whole("Thread_Id" if "Thread_Id" in cells else "tid"),
        "metric.vector_registers": _count(whole("VGPR_Count")),
        "metric.scalar_registers": _count(whole("SGPR_Count")),
    }


def _count(number: int | None) -> float | None:
    return None if number is None else float(number)

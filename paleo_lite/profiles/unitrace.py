"""Reader of the device times that Intel's unitrace, onetrace, ze_tracer and cl_tracer print (PTI-GPU).

``unitrace --device-timing`` prints a row per kernel and command of each backend (Level Zero, OpenCL) under the heading
``=== Device Timing Summary ===`` (``Results`` in older versions), with times in ns. Names are between quotation marks
or not, and may hold commas. Other summaries of the same file (host calls, submissions, properties of kernels) are
left out. A copy has its direction, from or to memory of the system (M), host (H), device (D) or both (S), and its bytes
behind its name: ``zeCommandListAppendMemoryCopy(M2D)[4096]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import MOST_ROWS, SUMMARY_BYTES, decoded_head, numbered_lines, quoted
from .names import communicates
from .table import batches_of

_SECTION = re.compile(r"\s*=== (?P<title>.+?):? ===\s*")
_DEVICE_TIMES = re.compile(r"Device Timing (?:Summary|Results)")
_HEADING = re.compile(r"\s*Kernel,\s*Calls,\s*Time \(ns\),\s*Time \(%\),\s*Average \(ns\),\s*Min \(ns\),\s*Max \(ns\)")
_ROW = re.compile(
    r'\s*(?P<name>".*"|\S.*?),\s*(?P<calls>\d{1,18}),\s*(?P<time_ns>\d{1,18}),'
    r"\s*[\d.]+%?(?:,\s*\d{1,18}){3},?\s*"
)
_COPY = re.compile(r"(?:zeCommandListAppend(?:MemoryCopy|ImageCopy)|clEnqueue\w*(?:Read|Write|Copy|Memcpy))")
_FILL = re.compile(r"zeCommandListAppendMemoryFill|clEnqueue\w*Fill")
_WAITS = re.compile(r"zeCommandListAppend(?:Barrier|WaitOnEvents|SignalEvent|EventReset)|clEnqueue(?:Barrier|Marker)")
_BYTES = re.compile(r"\[(\d{1,18})\]")
_COLUMNS = ("category", "kernel", "duration_ns", "calls", "bytes")


class UnitraceText:
    """Reader of this text, between whatever else the program printed."""

    name = "unitrace"
    description = "Intel unitrace's device timing, as printed text"
    has_starts = False

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether the head has the title of the summary of device times, or its heading."""
        lines = decoded_head(head)
        titles = (match["title"] for line in lines if (match := _SECTION.fullmatch(line)))
        return any(_HEADING.match(line) for line in lines) and any(map(_DEVICE_TIMES.match, titles))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel or command of the device; raise BadProfile without any, or if a row is damaged."""
        yield from batches_of(_rows(path), _COLUMNS, columns)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    title, is_table, count = "", False, 0
    for number, line in numbered_lines(path, SUMMARY_BYTES):
        section = _SECTION.fullmatch(line)
        if section or line.lstrip().startswith("=="):  # the next summary, or the next backend
            title = section["title"] if section else title
            is_table = False
        elif _DEVICE_TIMES.match(title) and _HEADING.match(line):
            is_table = True
        elif is_table:
            count += 1
            if count > MOST_ROWS:
                raise BadProfile(f"{path}: line {number}: more than {MOST_ROWS:,} rows, expected a summary")
            yield _row(path, number, line)
    if not count:
        raise BadProfile(f"{path}: the summary of device times has no row: did a kernel end before the program did?")


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    match = _ROW.fullmatch(line)
    if match is None:
        raise BadProfile(
            f"{path}: line {number}: {quoted(line.strip())} is not a kernel with calls and times in ns between commas"
        )
    name = match["name"].removeprefix('"').removesuffix('"')
    calls = int(match["calls"])
    size = _BYTES.search(name) if _COPY.match(name) else None
    return {
        "category": _category(name),
        "kernel": name,
        "duration_ns": float(match["time_ns"]),
        "calls": calls,
        "bytes": None if size is None else float(size[1]) * calls,
    }


def _category(name: str) -> str:
    if _COPY.match(name):
        return "memcpy"
    if _FILL.match(name):
        return "memset"
    if _WAITS.match(name):
        return "api"
    return "communication" if communicates(name) else "kernel"

"""Reader of nvprof's summary: kernels, copies and API calls with total, mean, minimum and maximum time.

The summary is text or, with ``--csv``, CSV with a separate line of units. Since CUDA 9 the first column distinguishes
GPU activities and API calls; before, each had its own heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import (
    MOST_ROWS,
    SIZE_BYTES,
    SUMMARY_BYTES,
    TIME_NS,
    decoded_head,
    fields_of,
    gpu_category,
    number_of,
    numbered_lines,
    quantity_of,
    quoted,
)
from .table import batches_of

_HEADER = re.compile(r"\s*(Type\s+)?Time\(%\)\s+Time\s+Calls\s+Avg\s+Min\s+Max\s+Name")
_CSV_HEADER = re.compile(r'(?:"?Type"?,)?"?Time\(%\)"?,"?Time"?,"?Calls"?,"?Avg"?,"?Min"?,"?Max"?,"?Name"?')
_LOOSE_HEADER = re.compile(r'"?(?:Type\b.{0,4})?Time\(%\).{1,12}Time.{1,12}Calls')
_MEMORY_HEADER = re.compile(r"\s*Count\s+Avg Size\s+Min Size\s+Max Size\s+Total Size\s+Total Time\s+Name")
_DEVICE = re.compile(r'\s*Device "[^"]*\((\d{1,6})\)"$')
_OWN = re.compile(r"\s*==[=\d]*== ?")
_ROW = re.compile(
    r"(?:\s*(?P<type>[A-Za-z][A-Za-z ()]{0,40}):)?\s*(?P<percent>[\d.]+)%\s+(?P<time>\S+)\s+(?P<calls>\d+)"
    r"\s+(?P<avg>\S+)\s+(?P<min>\S+)\s+(?P<max>\S+)\s+(?P<name>\S.*)"
)
_LIKE_A_ROW = re.compile(r"\s*(?:(?:GPU activities|API calls|OpenACC|OpenMP|Range)\b|[\d.]+%)|\s{12,}\d")
_TYPES = {
    "GPU activities": "", "API calls": "api", "OpenACC (excl)": "cpu", "OpenACC (incl)": "cpu", "OpenMP (incl)": "cpu",
    "OpenMP (excl)": "cpu", "Range": "marker",
}  # fmt: skip
_TIMES = ("Time", "Avg", "Min", "Max")


_COLUMNS = (
    "category", "kernel", "duration_ns", "calls", "bytes", "device", "metric.duration_avg_ns",
    "metric.duration_min_ns", "metric.duration_max_ns", "metric.time_percent",
)  # fmt: skip
_Row = dict[str, Any]


class SummaryText:
    """Reader of the output of ``nvprof COMMAND``, as text or CSV, also as gzip.

    A row stands for all calls of a kernel: `duration_ns` is their total, ``metric.duration_avg_ns``, ``_min_ns`` and
    ``_max_ns`` refer to one call, ``metric.time_percent`` is nvprof's share of the section. The shares of a truncated
    list add up to less than 100. Migrations of unified memory are copies with bytes. Of NVTX sections only the ranges
    are read, because their kernels also occur in the main section.
    """

    name = "nvprof-summary"
    maker = "NVIDIA"
    description = "nvprof summary (text or CSV)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether there is a heading ``Time(%) Time Calls Avg Min Max Name``."""
        return any(_LOOSE_HEADER.match(line.strip()) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per distinct kernel or call, 16,384 at a time.

        Raise BadProfile if a heading or row is incomplete, or a time cannot be read.
        """
        yield from batches_of(_rows(path), _COLUMNS, columns)


def _rows(path: Path) -> Iterator[_Row]:
    """Yield the rows of all sections and processes in the file."""
    sections, count = _Sections(path), 0
    for number, line in numbered_lines(path, SUMMARY_BYTES):
        row = sections.row(number, line)
        if row is None or (sections.has_ranges and row["category"] != "marker"):
            continue
        count += 1
        if count > MOST_ROWS:
            raise BadProfile(f"{path}: more than {MOST_ROWS:,} rows, expected a summary")
        yield row
    if not sections.has_heading:
        raise BadProfile(f"{path}: no heading 'Time(%) Time Calls Avg Min Max Name', expected an nvprof summary")


class _Sections:
    """What a reader remembers from line to line: the section that it is in, and what its headings said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.section = ""  # whose rows follow: text, csv or memory; "ended" after its last row, empty outside
        self.kind = "GPU activities"
        self.device: int | None = None
        self.has_ranges = False  # whether the section repeats kernels for ranges of NVTX
        self.has_heading = False  # whether the file has a table of times
        self.names: list[str] = []  # of the columns of a CSV table
        self.units: list[str] = []

    def row(self, number: int, line: str) -> _Row | None:
        """Return the row of a line; None for a heading, or what the program wrote.

        Raise BadProfile for a heading or a row that is incomplete.
        """
        if self._reads_heading(number, line):
            return None
        if self.section == "csv":
            return self._csv_row(number, line)
        if self.section == "memory":
            row = _migration(self.path, number, line, self.device)
            self.section = self.section if row else ""
            return row
        if self.section == "text" and (match := _ROW.fullmatch(line)):
            self.kind = match["type"] or self.kind
            times = [match[key] for key in ("time", "avg", "min", "max")]
            return _row(self.path, number, self.kind, match["name"], match["calls"], times, match["percent"])
        if self.section:
            if _LIKE_A_ROW.match(line):  # output of the program may follow a section, an incomplete row may not
                raise BadProfile(
                    f"{self.path}: line {number}: {quoted(line.strip())} is not a whole row of an nvprof summary"
                )
            self.section = "ended"
        return None

    def _reads_heading(self, number: int, line: str) -> bool:
        """Remember what a heading says; return whether the line is one."""
        if prefix := _OWN.match(line):
            self._read_title(line[prefix.end() :])
        elif _HEADER.fullmatch(line):
            self.section, self.has_heading = "text", True
        elif _CSV_HEADER.fullmatch(line):
            self.section, self.has_heading = "csv", True
            self.names, self.units = [name.strip('"') for name in line.split(",")], []
        elif _MEMORY_HEADER.fullmatch(line):
            self.section = "memory"
        elif _LOOSE_HEADER.match(line.strip()):
            raise BadProfile(
                f"{self.path}: line {number}: the heading is {quoted(line)}, expected Time(%), Time, Calls, ..."
            )
        elif device := _DEVICE.fullmatch(line):
            self.device = int(device[1])
        else:
            return False
        return True

    def _read_title(self, title: str) -> None:
        """Begin the section of a title that nvprof wrote; its other messages begin no section."""
        if title.endswith("result:") or title.startswith("API calls:"):
            self.section, self.has_ranges = "", title.startswith("NVTX")
            self.kind = "API calls" if title.startswith("API calls:") else "GPU activities"

    def _csv_row(self, number: int, line: str) -> _Row | None:
        """Return the row of a CSV table, whose first line has the units."""
        is_row = bool(self.units)
        self.units = self.units or _units(self.path, number, line, self.names)
        if is_row or not any(self.units):
            return _csv_row(self.path, number, line, self.names, self.units, self.kind)
        return None


def _row(path: Path, number: int, kind: str, name: str, calls: str, times: list[str], percent: str) -> _Row:
    if kind not in _TYPES:
        raise BadProfile(f"{path}: line {number}: {quoted(kind)} is not a known section of an nvprof summary")
    if not (calls.isdecimal() and calls.isascii()) or len(calls) > 18:
        raise BadProfile(f"{path}: line {number}: {quoted(calls)} is not a number of calls")
    try:
        total, mean, least, most = [quantity_of(text, TIME_NS) for text in times]
        share = number_of(percent)
    except ValueError as error:
        raise BadProfile(f"{path}: line {number}: {quoted(str(error))} is not a number with a unit") from None
    if min(total, mean, least, most) < 0:
        raise BadProfile(f"{path}: line {number}: a time is negative")
    row = (_TYPES[kind] or gpu_category(name), name, total, int(calls), None, None, mean, least, most, share)
    return dict(zip(_COLUMNS, row))


def _fields(path: Path, number: int, line: str, names: list[str]) -> dict[str, str]:
    fields = fields_of(path, number, line)
    if len(fields) != len(names):
        raise BadProfile(f"{path}: line {number}: {len(fields)} columns, expected {len(names)}")
    return dict(zip(names, fields))


def _units(path: Path, number: int, line: str, names: list[str]) -> list[str]:
    """Return the units of the times from the line below a CSV heading; empty if that line is a row with units."""
    fields = _fields(path, number, line, names)
    units = [fields[name] for name in _TIMES]
    if re.fullmatch(r"[\d.]+%", fields["Time(%)"]):
        return [""] * len(_TIMES)
    if not set(units) <= set(TIME_NS):
        raise BadProfile(f"{path}: line {number}: the units are {quoted(line)}, expected ns, us, ms or s")
    return units


def _csv_row(path: Path, number: int, line: str, names: list[str], units: list[str], kind: str) -> _Row:
    fields = _fields(path, number, line, names)
    times = [fields[name] + unit for name, unit in zip(_TIMES, units)]
    share = fields["Time(%)"].removesuffix("%")
    return _row(path, number, fields.get("Type") or kind, fields["Name"], fields["Calls"], times, share)


def _migration(path: Path, number: int, line: str, device: int | None) -> _Row | None:
    """Parse a row of 'Unified Memory profiling result'; None at the end of the section.

    Page faults have '-' instead of a size, thrashing has '-' instead of a time.
    """
    fields = line.split(None, 6)
    if not fields or not fields[0].isdecimal():
        return None
    try:
        count, _, _, _, size, time, name = fields
        moved = None if size == "-" else quantity_of(size, SIZE_BYTES)
        duration = None if time == "-" else quantity_of(time, TIME_NS)
        calls = int(count) if len(count) <= 18 else -1
    except ValueError:
        raise BadProfile(
            f"{path}: line {number}: {quoted(line.strip())} is not a whole row of unified memory"
        ) from None
    if min(calls, duration or 0, moved or 0) < 0:
        raise BadProfile(f"{path}: line {number}: a count, size or time is out of range")
    return dict(zip(_COLUMNS, ("memcpy", f"[Unified Memory {name}]", duration, calls, moved, device)))

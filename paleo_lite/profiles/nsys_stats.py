"""Reader of ``nsys stats``: one or several reports as CSV, or as printed by ``nsys profile --stats=true``.

Reports are recognised by their columns, as the scripts in Nsight Systems' ``reports`` folder print them and
``nsys stats --help-reports`` describes them: cuda_gpu_trace, cuda_api_trace, cuda_gpu_kern_sum, cuda_gpu_kern_gb_sum,
cuda_gpu_mem_time_sum, cuda_gpu_sum, cuda_api_sum, nvtx_sum, and the names and units of older versions (gputrace,
gpukernsum, ...). Other reports, such as calls of the operating system (osrt_sum), are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import MOST_PREAMBLE, decoded_head, fields_of, gpu_category, number_of, numbered_lines, quoted
from .printed import LEFT_OUT, Spans, describe_cut, plain_numbers, spans_of_rule, split_columns
from .table import batches_of

_TIME_NS = {"ns": 1.0, "nsec": 1.0, "us": 1e3, "μs": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9, "sec": 1e9}
_SIZE_BYTES = {"B": 1.0, "byte": 1.0, "bytes": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_SIZE_BYTES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_UNIT = re.compile(r"(?P<name>[^()]*?) ?\((?P<unit>[^()]+)\)")
_SUM_HEADING = re.compile(
    r'"?(?:Time ?\(%\)|Time)"?,"?Total Time ?(?:\(\w+\))?"?,"?(?:Instances|Num Calls|Count|Calls|Operations)"?,'
)
_TRACE_HEADING = re.compile(r'"?Start ?\(\w+\)"?,"?Duration ?\(\w+\)"?,')
_PRINTED_HEADING = re.compile(
    r"\s*(?:Time ?\(%\)\s+Total Time(?: ?\(\w+\))?\s+(?:Instances|Num Calls|Count|Calls|Operations)"
    r"|Start ?\(\w+\)\s+Duration ?\(\w+\))\s"
)
_NAMES = ("Name", "Operation", "Range")
_CALLS = ("Instances", "Num Calls", "Count", "Calls", "Operations")
_PERCENT = re.compile(r"\d{1,3}(?:\.\d{1,6})?")
_DEVICE = re.compile(r".*\((\d{1,6})\)")


class NsysStatsCsv:
    """Reader of this format; see `detect.Reader`."""

    name = "nsys-stats"
    maker = "NVIDIA"
    description = "nsys stats, CSV or as printed (cuda_gpu_trace, cuda_gpu_kern_sum, cuda_api_sum, nvtx_sum, ...)"

    def recognises(self, path: Path, head: bytes) -> bool:
        return any(_is_heading(line) or _PRINTED_HEADING.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in file order, 16,384 at a time; a row of a summary stands for all calls.

        nsys rounds sizes in MB to 1 kB.
        """
        yield from batches_of(_rows(path), None, columns)

    def remarks(self, path: Path) -> list[str]:
        """Return which summaries are cut: the printed shares of their rows of a device are not all of the time."""
        shares: dict[str, float] = {}
        for row in _rows(path, shares):
            if row.get("start_ns") is not None:
                return []  # a trace, whose rows have no shares
        return [note for table, percent in shares.items() for note in describe_cut(percent, table)]


_TABLES = {
    "kernel": "table of kernels", "communication": "table of kernels",
    "memcpy": "table of memory operations", "memset": "table of memory operations",
}  # fmt: skip
"""Words for the report of a device that rows of a category are in."""


def _is_heading(line: str) -> bool:
    return _SUM_HEADING.match(line) is not None or _TRACE_HEADING.match(line) is not None


def _rows(path: Path, shares: dict[str, float] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; `shares` gets the sums of the printed percentages of the reports of a device."""
    report: _Report | None = None
    report_line: dict[str, int] = {}  # heading line of the report with the rows of a category
    has_report = False
    printed: tuple[int, str] | None = None  # a printed heading, until the rule below it gives its columns
    for number, line in numbered_lines(path):
        if _is_heading(line):
            report, has_report = _Report(path, number, fields_of(path, number, line)), True
            continue
        spans = None if printed is None else spans_of_rule(line)
        if printed is not None and spans is not None:
            heading = split_columns(printed[1], spans)
            if heading is None:
                raise BadProfile(
                    f"{path}: line {printed[0]}: the heading does not fit the columns of the rule below it"
                )
            report, has_report, printed = _Report(path, printed[0], heading, spans), True, None
            continue
        printed = (number, line) if _PRINTED_HEADING.match(line) else None
        if spans_of_rule(line) is not None:
            continue  # the rule above a heading, or below the last row
        if not line.lstrip(' "')[:1].isdigit() and not line.startswith(("-", "nan")):
            report = None  # text between reports, or the heading of a report that is not read
            if not has_report and number > MOST_PREAMBLE:
                break
            continue
        fields = None if report is None else report.fields(number, line)
        if report is None or fields is None:
            report = None
            continue
        row = report.row(number, fields)
        if row is None:
            continue
        table = _TABLES.get(row["category"])
        if shares is not None and table is not None:
            shares[table] = shares.get(table, 0.0) + report.percent(fields)
        if report_line.setdefault(row["category"], report.line) != report.line:
            raise BadProfile(
                f"{path}: line {number}: a second report with {row['category']} rows, after the one at line "
                f"{report_line[row['category']]}: they would count twice"
            )
        yield row
    if not has_report:
        raise BadProfile(f"{path}: no heading of a report that can be read (traces and summaries of nsys stats)")


class _Report:
    """One report and its columns; `spans` are those of a printed report."""

    def __init__(self, path: Path, line: int, heading: list[str], spans: Spans | None = None) -> None:
        self.path, self.line, self.spans = path, line, spans
        self.columns: dict[str, tuple[int, str]] = {}
        for index, text in enumerate(heading):
            if text.strip() == LEFT_OUT:
                continue
            match = _UNIT.fullmatch(text.strip())
            name, unit = (match["name"], match["unit"]) if match else (text.strip(), "")
            if name in self.columns:
                raise BadProfile(f"{path}: line {line}: column {quoted(name)} appears twice in the heading")
            self.columns[name] = (index, unit)
        self.width = len(heading)
        self.name_column = self._one_of(*_NAMES)
        self.is_trace = "Start" in self.columns
        self.time = self._one_of("Duration" if self.is_trace else "Total Time")
        self.calls = "" if self.is_trace else self._one_of(*_CALLS)

    def _one_of(self, *names: str) -> str:
        for name in names:
            if name in self.columns:
                return name
        raise BadProfile(f"{self.path}: line {self.line}: a heading without a column {' or '.join(names)}")

    def fields(self, number: int, line: str) -> list[str] | None:
        """Split a line into fields; None for a line that is not in the columns of a printed report."""
        if self.spans is None:
            return plain_numbers(fields_of(self.path, number, line))
        fields = split_columns(line, self.spans)
        return None if fields is None else plain_numbers(fields)

    def percent(self, fields: list[str]) -> float:
        """Return the share of the time that a row of a summary prints in percent; 0 without one."""
        names = [name for name, (_, unit) in self.columns.items() if name.partition("(")[0].strip() == "Time"]
        text = fields[self.columns[names[0]][0]].strip() if names and not self.is_trace else ""
        return number_of(text) if _PERCENT.fullmatch(text) else 0.0

    def row(self, number: int, fields: list[str]) -> dict[str, Any] | None:
        """Return the columns of `SCHEMA`; None for a call that is not of CUDA."""
        if len(fields) != self.width:
            raise BadProfile(f"{self.path}: line {number}: {len(fields)} columns, expected {self.width}")
        texts = {name: fields[index].strip() for name, (index, _) in self.columns.items()}
        name = texts[self.name_column]
        category = self._category(name)
        if category is None:
            return None
        row: dict[str, Any] = {"category": category, "kernel": name or None}
        row["duration_ns"] = self._number(number, texts, self.time, _TIME_NS)
        if self.is_trace:
            start = self._number(number, texts, "Start", _TIME_NS)
            row |= {"start_ns": None if start is None else round(start), "calls": 1}
            row["bytes"] = self._number(number, texts, "Bytes", _SIZE_BYTES)
            row["grid"], row["block"] = (self._extent(texts, short) for short in ("Grd", "Blk"))
            row["stream"], row["thread"] = (self._id(number, texts, column) for column in ("Strm", "Tid"))
            device = _DEVICE.fullmatch(texts.get("Device", ""))
            row["device"] = int(device[1]) if device else None
        else:
            row["calls"] = self._id(number, texts, self.calls)
            for ours, theirs in (("grid", "GridXYZ"), ("block", "BlockXYZ")):
                row[ours] = ",".join(texts.get(theirs, "").split()) or None
        return row

    def _category(self, name: str) -> str | None:
        if self.name_column == "Range":
            return "marker"
        if "Num Calls" in self.columns or "Result" in self.columns:
            return "api" if name.startswith("cu") else None
        return gpu_category(name)

    def _number(self, number: int, texts: dict[str, str], column: str, units: dict[str, float]) -> float | None:
        text = texts.get(column, "")
        if not text:
            return None
        unit = self.columns[column][1]
        try:
            value = number_of(text) * (units[unit] if unit else 1.0)
        except (ValueError, KeyError):
            value = -1.0
        if not 0 <= value < 2**63:  # range of int64
            in_unit = f"in {unit}" if unit else ""
            raise BadProfile(
                f"{self.path}: line {number}: {column} is {quoted(text)} {in_unit}, expected a number from 0 to 2^63"
            )
        return round(value, 6)

    def _id(self, number: int, texts: dict[str, str], column: str) -> int | None:
        text = texts.get(column, "")
        if not text:
            return None
        if not text.isdecimal() or len(text) > 18:
            raise BadProfile(f"{self.path}: line {number}: {column} is {quoted(text)}, expected a whole number")
        return int(text)

    @staticmethod
    def _extent(texts: dict[str, str], short: str) -> str | None:
        sides = [texts.get(f"{short}{axis}", "") for axis in "XYZ"]
        return ",".join(sides) if all(sides) else None

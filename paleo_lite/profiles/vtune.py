"""Readers of Intel VTune's hotspots as CSV and of the Application Performance Snapshot's summary as text.

``vtune -report hotspots -format csv -csv-delimiter comma`` (amplxe-cl before 2020) prints one row per function (or
other ``-group-by`` key) with times in seconds; parts of a time have names such as ``CPU Time:Spin Time``. ``aps
--report`` prints one value per line, indented below its group, between lines of advice that begin with ``|``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from ..text import slug
from .lines import (
    MOST_ROWS,
    SUMMARY_BYTES,
    TIME_NS,
    CsvTable,
    decoded_head,
    number_of,
    numbered_lines,
    quantity_of,
    quoted,
)
from .table import batch_of
from .tau import category_of

_GROUPINGS = (
    "Function Stack|Function / Call Stack|Function|Module|Process|Thread|Source File|Source Line|Task Type|Core|Package"
)
_HEADING = re.compile(
    rf'"?(?:{_GROUPINGS})"?(?P<delimiter>[^\w"\s]|\t).*\b(?:(?:CPU|Wait|GPU) Time|Hardware Event Count)\b'
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_SELF_TIME = ("CPU Time", "CPU Time:Self")
_EVENTS = "Hardware Event Count"
_IDENTIFIERS = ("PID", "TID")  # numbers that are no measurements
_NUMBER = re.compile(r"[+-]?\d[\d.,]*(?:s|%)?")
_MOST_COLUMNS = 1000

_SUMMARY = re.compile(r"\|?\s*Summary information\b")
_FACT = re.compile(r"(?P<indent>\s*)(?P<label>[^:|]{1,100}?)\s*:(?:\s+(?P<value>.*))?")
_VALUE = re.compile(
    r"(?P<number>[+-]?\d{1,30}(?:\.\d{1,30})?)(?![\d.])\s*(?P<unit>%|[A-Za-z][A-Za-z/]{0,5}\b)?(?:\s+(?P<rest>.*))?"
)
_SHARE = re.compile(r"(?P<share>[\d.]+)% of Elapsed Time")
_UNITS = {"%": "percent", "s": "s", "ms": "ms", "GHz": "ghz", "MHz": "mhz"}
_UNITS |= {
    f"{size}{per}": f"{size.lower()}{name}"
    for size in ("B", "KB", "MB", "GB", "TB")
    for per, name in (("", ""), ("/s", "_per_s"))
}


class HotspotsCsv:
    """Reader of VTune's hotspots and hardware events, with any delimiter; `layer` is the module of a function.

    `duration_ns` is the CPU time of the function itself; reports of hardware events do not have it.

    Other numeric columns are ``metric.*``, times in ns: ``metric.cpu_time_spin_time_ns``, ``metric.cpi_rate``.
    """

    name = "vtune-hotspots"
    description = "Intel VTune hotspots and hw-events CSV"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a heading begins with a grouping of VTune and has a CPU time."""
        return any(_HEADING.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one batch with a row per function.

        Raise BadProfile if there is no CPU time, a row is incomplete or split by commas in a name, or a time is
        invalid.
        """
        names, numbers, rows = _read_report(path)
        time = next((names.index(name) for name in _SELF_TIME if name in names), None)
        if time is None and not any(name.startswith(_EVENTS) for name in names):
            raise BadProfile(f"{path}: no column 'CPU Time' under {quoted(', '.join(names), 200)}")
        functions = [row[0].strip() for row in rows]
        columns_by_name: dict[str, Any] = {"category": list(map(category_of, functions)), "kernel": functions}
        if time is not None:
            columns_by_name["duration_ns"] = _column(path, numbers, [row[time] for row in rows], "CPU Time", "s")
        if "Module" in names[1:]:
            columns_by_name["layer"] = [row[names.index("Module")].strip() or None for row in rows]
        for index, name in enumerate(names):
            if index in (0, time) or name in _IDENTIFIERS:
                continue
            cells = [row[index] for row in rows]
            first = next((cell for cell in cells if cell), "")
            if _NUMBER.fullmatch(first):
                is_time = name.startswith("CPU Time") or name.endswith("Time")
                unit = "s" if is_time and not first.endswith("%") else ""
                columns_by_name[_metric_of(name, unit)] = _column(path, numbers, cells, name, unit)
        yield batch_of(columns_by_name, len(rows), columns)


class ApsSummary:
    """Reader of the Application Performance Snapshot: one row for the application, one per listed MPI function.

    Other values are ``metric.*`` of the application, as printed, with the unit in the name:
    ``metric.cpu_utilization_percent``, ``metric.dram_bandwidth_peak_gb_per_s``.
    """

    name = "vtune-aps"
    description = "Intel Application Performance Snapshot summary"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether there is 'Summary information' with a platform, statistics or elapsed time."""
        lines = decoded_head(head)
        facts = any(line.strip().startswith(("HW Platform", "Used statistics", "Elapsed Time:")) for line in lines)
        return facts and any(_SUMMARY.match(line) for line in lines)

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one batch; raise BadProfile without a summary or a value in it, or with an invalid elapsed time."""
        application: dict[str, Any] = {"category": "cpu", "kernel": "application"}
        calls: list[dict[str, Any]] = []
        for number, names, text in _facts(path):
            label = names[-1]
            if label == "Application":
                application["kernel"] = text
                continue
            match = _VALUE.fullmatch(text)
            if label == "Elapsed Time" or label.startswith("MPI_"):
                duration = _seconds(path, number, label, match)
                if label == "Elapsed Time":
                    application["duration_ns"] = duration
                    continue
                share = _SHARE.search(text)
                row = {"category": "message", "kernel": label, "duration_ns": duration}
                calls.append(row | {"metric.time_percent": _finite(path, number, share["share"]) if share else None})
            elif match:
                unit = match["unit"] or ""
                name = "_".join(filter(None, [*(slug(part, "_") for part in names), _UNITS.get(unit, "")]))
                value = _finite(path, number, match["number"])
                if application.setdefault(f"metric.{name}", value) != value:
                    raise BadProfile(f"{path}: line {number}: {quoted(label)} appears twice with different values")
            if len(application) + len(calls) > _MOST_COLUMNS:
                raise BadProfile(f"{path}: line {number}: more than {_MOST_COLUMNS:,} values, expected a summary")
        rows = [application, *calls]
        if len(application) + len(calls) < 3:
            raise BadProfile(f"{path}: a summary of APS without any value")
        present = dict.fromkeys(name for row in rows for name in row)
        yield batch_of({name: [row.get(name) for row in rows] for name in present}, len(rows), columns)


def _read_report(path: Path) -> tuple[list[str], list[int], list[list[str]]]:
    """Return the names of the columns of a report, and the number and the cells of each line.

    Raise BadProfile if the file has a second table, or more than a summary has.
    """
    table = CsvTable(path, _HEADING, units=False, delimiter=_delimiter(path), most=SUMMARY_BYTES)
    names: list[str] = []
    numbers: list[int] = []
    rows: list[list[str]] = []
    for number, fields in table.rows():
        if names and table.names != names:
            raise BadProfile(f"{path}: line {number}: a second table with other columns, expected one report")
        if len(rows) >= MOST_ROWS or len(fields) > _MOST_COLUMNS:
            raise BadProfile(f"{path}: line {number}: more rows or columns than a summary has")
        names = table.names
        numbers.append(number)
        rows.append(fields)
    if rows and table.names != names:
        raise BadProfile(f"{path}: ends with the heading of a second table, expected one report")
    return [re.sub(r":\s+", ":", name) for name in table.names], numbers, rows


def _metric_of(name: str, unit: str) -> str:
    """Return the name of the metric of a column; times are in ns."""
    label = name.removesuffix(":Self") if name.startswith(_EVENTS) else name
    return f"metric.{slug(label, '_')}{'_ns' if unit else ''}"


def _delimiter(path: Path) -> str:
    """Return the character that follows the first name of the heading."""
    for number, line in numbered_lines(path):
        if match := _HEADING.match(line):
            return match["delimiter"]
        if number > 10_000:
            break
    raise BadProfile(f"{path}: no heading with Function and CPU Time, expected VTune's hotspots")


def _column(path: Path, numbers: list[int], cells: list[str], name: str, unit: str) -> list[float | None]:
    """Convert cells with or without unit to numbers, None for blank cells; seconds become ns."""
    values: list[float | None] = []
    for number, cell in zip(numbers, cells):
        text = cell.strip()
        text = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
        try:
            if not text:
                values.append(None)
                continue
            if unit:
                values.append(quantity_of(text if text.endswith("s") else text + unit, TIME_NS))
            else:
                values.append(number_of(text.rstrip("%")))
        except ValueError:
            raise BadProfile(f"{path}: line {number}: {name} is {quoted(cell)}, expected a number") from None
        if unit and (values[-1] or 0) < 0:
            raise BadProfile(f"{path}: line {number}: {name} is negative")
    return values


def _facts(path: Path) -> Iterator[tuple[int, list[str], str]]:
    """Yield line number, labels (enclosing headings and own label) and text of every value."""
    above: list[tuple[int, str]] = []
    has_summary = False
    for number, line in numbered_lines(path, SUMMARY_BYTES):
        if _SUMMARY.match(line):
            has_summary = True
        if not has_summary or line.lstrip().startswith("|") or line.startswith("Graphical representation"):
            continue
        match = _FACT.fullmatch(line)
        indent = len(line) - len(line.lstrip())
        above = [heading for heading in above if heading[0] < indent]
        label = match["label"].strip() if match else line.strip()
        if match and match["value"]:
            yield number, [*(heading for _, heading in above), label], match["value"].strip()
        elif len(above) < 8:
            above.append((indent, label[:100]))
    if not has_summary:
        raise BadProfile(f"{path}: no 'Summary information', expected the summary of APS")


def _seconds(path: Path, number: int, label: str, match: re.Match[str] | None) -> float:
    if match is None or match["unit"] not in ("s", "ms"):
        raise BadProfile(f"{path}: line {number}: {label} is not a time in seconds")
    value = _finite(path, number, match["number"])
    if value < 0:
        raise BadProfile(f"{path}: line {number}: {label} is negative")
    return round(value * TIME_NS[match["unit"]], 6)


def _finite(path: Path, number: int, text: str) -> float:
    try:
        return number_of(text)
    except ValueError:
        raise BadProfile(f"{path}: line {number}: {quoted(text)} is not a number") from None

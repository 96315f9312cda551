"""Reader of tables printed by PyTorch's profiler: ``prof.key_averages().table()`` and ``print(prof)``, any version.

Columns are delimited by rules of dashes, or by tabs if the table was copied through a document. Column names depend
on the version and the device (CUDA, XPU, ...). The total of an operation includes the operations it calls, so totals
add up to more than the run; ``metric.self_cpu_ns`` is the time of the operation itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import BadProfile
from ..units import format_si
from .lines import (
    MOST_PREAMBLE,
    MOST_ROWS,
    SUMMARY_BYTES,
    TIME_NS,
    decoded_head,
    number_of,
    numbered_lines,
    quantity_of,
    quoted,
)
from .names import communicates
from .printed import describe_cut
from .table import batches_of

_RULE = re.compile(r"\s*-{3,}(?: {1,2}-{3,})+\s*")
_PROCESS = re.compile(r"\([^()]*\bpid=\d+[^()]*\) ?")
"""What vLLM and Ray put before each line that a process prints: ``(EngineCore_0 pid=1389347)``."""
_GAP = re.compile(r"\t| {2,}")
_COLUMN = (
    r"Self CPU %|Self CPU total|Self CPU|CPU total %|CPU total|CPU time avg|CPU time|Self CPU Mem|CPU Mem"
    r"|Self [A-Z]\w+ %|Self [A-Z]\w+ Mem|Self [A-Z]\w+ total|Self [A-Z]\w+|[A-Z]\w+ total %|[A-Z]\w+ total"
    r"|[A-Z]\w+ time avg|[A-Z]\w+ time|[A-Z]\w+ Mem|[A-Z]\w+ %|# of Calls|Number of Calls|Total [KMGTP]?FLOPs"
)
"""Headings of the columns that hold numbers."""
# Atomic: "Self total" is a column in two ways, which would be tried for each of them.
_SQUEEZED_HEADING = re.compile(rf" ?Name(?: (?>{_COLUMN}))++", re.IGNORECASE)
_QUANTITY = r"(?:--|-?[\d.]+ ?[a-zA-Zµμ%]*)"
"""A number with its unit."""
_FOOTER = re.compile(r"\s*(Self [A-Z]\w+ time total): *(\S+(?: [a-zµμ]+)?)\s*")
_HOST_TOTAL = "Self CPU time total"
_KNOWN = {"Self CPU %", "Self CPU", "Self CPU total", "CPU total", "CPU total %", "CPU time", "CPU time avg"}
_NOT_DEVICES = {"CPU", "CPU %"}
_FLOPS = re.compile(r"Total ([KMGTP]?)FLOPs", re.IGNORECASE)
_FLOPS_RATE = re.compile(r"([KMGTP]?)FLOPS")
_SCALES = dict(zip(("", "K", "M", "G", "T", "P"), (1.0, 1e3, 1e6, 1e9, 1e12, 1e15)))
_SIZES = {"b": 1.0, "B": 1.0, "Kb": 2.0**10, "KB": 2.0**10, "Mb": 2.0**20, "MB": 2.0**20, "Gb": 2.0**30, "GB": 2.0**30}
_SIZES |= {"TB": 2.0**40}
_ABSENT = ("", "--", "NaN", "nan")
_ON_DEVICE = ("kernel", "memcpy", "memset", "communication")
"""Categories of what runs on a device."""
_OF_OPERATION = ("params", "flops")
"""What the row of an operation says of its kernels."""
_ROUNDING = 0.005
"""Share of the total by which the sum of rounded rows may differ from it."""
_PERCENT = re.compile(r"\d{1,9}(?:\.\d*)?%")
_WRONG_SHARE = 0.02
"""Difference between the printed share of a row and that of its time which rounding does not explain."""
_OPERATION = re.compile(r"aten::\w+")
_API = re.compile(r"cu(?:da)?[A-Z]\w+|hip[A-Z]\w+")


class TorchTable:
    """Reader of a table of PyTorch's profiler, also within a log or as gzip.

    An operation is a row of category cpu with its total CPU time. Its device time is ``metric.device_ns`` including
    called operations, and ``metric.self_device_ns`` without them. A row with device time only is a kernel or copy, of
    the operation that alone was called as often and took as long on the device itself. The device time of operations
    whose kernels are not listed, as before PyTorch 2, is a row besides. FLOPs are PyTorch's count (2 per
    multiply-accumulate); `params` are the printed input shapes.
    """

    name = "torch-table"
    description = "PyTorch profiler's printed table"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a heading begins with Name and has a CPU time."""
        return any(_is_heading(_without_process(line)) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield a row per operation or kernel, 16,384 at a time."""
        rows, times = _read(path)
        left_ns = times.total_ns - times.listed_ns - times.annotated_ns
        if times.listed_ns and left_ns > _ROUNDING * times.total_ns:
            rows.append({"category": "kernel", "kernel": LEFT_OUT, "duration_ns": left_ns, "calls": 0})
        metrics = dict.fromkeys(name for row in rows for name in row if name.startswith("metric."))
        present_columns = ("category", "kernel", "op", "duration_ns", "calls", "flops", "params", *metrics)
        yield from batches_of(rows, present_columns, columns)

    def doubts(self, path: Path) -> list[str]:
        """Return what contradicts itself in a table."""
        _, times = _read(path)
        sentences = [] if times.wrong_share is None else [times.wrong_share]
        if 0 < times.total_ns < (1 - _ROUNDING) * times.listed_ns:
            total, listed = (format_si(time_ns * 1e-9, "s") for time_ns in (times.total_ns, times.listed_ns))
            sentences.append(
                f"the total below the table is {total}, less than the {listed} of its rows: these are of several "
                "profiles, or somebody changed them"
            )
        return sentences

    def remarks(self, path: Path) -> list[str]:
        """Return which share of the host's time the device was busy, if the totals below the table tell.

        Without totals, return that the table is cut, if the printed shares of its rows are not all of the time.
        """
        _, times = _read(path)
        if not times.total_ns:
            return describe_cut(times.listed_percent)
        if times.total_ns >= times.host_ns:
            return []
        device, host = (format_si(time_ns * 1e-9, "s") for time_ns in (times.total_ns, times.host_ns))
        return [
            f"the device was busy for {device}, while operators and calls of the host took {host}: at most "
            f"{times.total_ns / times.host_ns:.0%} of the time, if one thread ran them"
        ]


LEFT_OUT = "(rows that the table leaves out)"
"""Name of a row with the device time of what ``row_limit`` or the person who copied the table left out."""


class _TableTimes(NamedTuple):
    """Device times of a table in ns."""

    total_ns: float  # as printed below the table; 0 without it
    listed_ns: float  # of the rows
    host_ns: float  # of the host, as printed below the table; 0 without it
    annotated_ns: float  # of the kernels within annotations, which the total counts twice before PyTorch 2.4
    listed_percent: float = 0.0  # sum of the printed shares of the device time
    wrong_share: str | None = None  # sentence about a row whose printed share is not that of its time


def _read(path: Path) -> tuple[list[dict[str, Any]], _TableTimes]:
    """Return the rows of a table, and its device times."""
    tables: list[_PrintedTable] = []
    lines = list(_cells(path, tables))  # a table that is cut is refused before the row at its end is read
    rows = [_row(path, number, cells) for number, cells in lines]
    names = {row["kernel"] for row in rows if row["category"] == "cpu"}
    annotated_ns = 0.0
    for row in rows:
        # Annotations also have a row with the device time of the kernels within them
        if row["category"] == "kernel" and (row["kernel"] in names or row["kernel"].startswith("Optimizer.")):
            row["category"] = "marker"
            annotated_ns += row["duration_ns"]
    total_ns, host_ns = _totals_ns(path, tables[0].totals)
    _name_operations(rows)
    left_ns = total_ns - annotated_ns - _device_ns(rows)
    rows += _device_rows(rows, left_ns)
    printed = [cells for _, cells in lines]
    percent = _listed_percent(printed)
    return rows, _TableTimes(
        total_ns, _device_ns(rows), host_ns, annotated_ns, percent, _wrong_share(printed, total_ns)
    )


def _listed_percent(rows: list[dict[str, str]]) -> float:
    """Return the sum of the shares of the device time that rows print in percent."""
    device = _device(rows[0]) if rows else ""
    shares = [cells.get(" ".join(("Self", device, "%")), "") for cells in rows] if device else []
    return sum(float(share.removesuffix("%")) for share in shares if _PERCENT.fullmatch(share))


def _wrong_share(rows: list[dict[str, str]], total_ns: float) -> str | None:
    """Return a sentence about the first row whose share of the device time contradicts the total; None without one."""
    device = _device(rows[0]) if rows else ""
    of_share = " ".join(("Self", device, "%"))
    wrong = []
    for cells in rows:
        printed, time = cells.get(of_share, ""), cells.get(f"Self {device}", "")
        if not device or not total_ns or not _PERCENT.fullmatch(printed) or time in _ABSENT:
            continue
        share = float(printed.removesuffix("%")) / 100
        own_ns = quantity_of(time, TIME_NS)
        if abs(own_ns / total_ns - share) > _WRONG_SHARE:
            own, total = (format_si(time_ns * 1e-9, "s") for time_ns in (own_ns, total_ns))
            wrong.append(
                f"{quoted(cells['Name'])}: {own} are {own_ns / total_ns:.0%} of {total}, and {printed} is printed"
            )
    if not wrong:
        return None
    others = f" ({len(wrong) - 1} more rows likewise)" if len(wrong) > 1 else ""
    return f"{wrong[0]}{others}: the row or the total below the table is of another profile, or was changed"


def _device_ns(rows: list[dict[str, Any]]) -> float:
    """Return the time of the rows of a device."""
    return sum(row["duration_ns"] or 0.0 for row in rows if row["category"] in _ON_DEVICE)


def _name_operations(rows: list[dict[str, Any]]) -> None:
    """Give kernels the operation that launched them, with its shapes and FLOPs, where times and calls tell which."""
    kernels: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    operations: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in rows:
        if row["category"] == "kernel":
            kernels.setdefault((row["duration_ns"], row["calls"]), []).append(row)
        elif _has_own_kernels(row):
            operations.setdefault((row["metric.self_device_ns"], row["calls"]), []).append(row)
    for key, (kernel, *other_kernels) in kernels.items():
        launching = operations.get(key, [])
        if len(launching) == 1 and not other_kernels:
            kernel.update((name, launching[0][name]) for name in ("op", *_OF_OPERATION) if name in launching[0])


def _has_own_kernels(row: dict[str, Any]) -> bool:
    """Return whether a row is an operation that launched something itself."""
    return row["category"] == "cpu" and bool(row.get("metric.self_device_ns"))


def _device_rows(rows: list[dict[str, Any]], left_ns: float) -> list[dict[str, Any]]:
    """Return what operations ran on the device themselves, as rows, where the table does not list their kernels.

    In a table with some kernels, these are the operations without one, if they account for the time that is left.
    """
    named = {row["op"] for row in rows if row["category"] in _ON_DEVICE and row.get("op")}
    operations = [row for row in rows if _has_own_kernels(row) and row["op"] not in named]
    own_ns = sum(row["metric.self_device_ns"] for row in operations)
    if any(row["category"] in _ON_DEVICE for row in rows) and not 0 < own_ns <= (1 + _ROUNDING) * left_ns:
        return []
    return [
        {
            "category": _category_on_device(row["kernel"]),
            "kernel": row["kernel"],
            "op": row["op"],
            "duration_ns": row["metric.self_device_ns"],
            "calls": row["calls"],
            **{name: row[name] for name in _OF_OPERATION if name in row},
        }
        for row in operations
    ]


def _totals_ns(path: Path, totals: dict[str, str]) -> tuple[float, float]:
    """Return the times of the device and of the host that are printed below a table; 0 for those that are not."""
    times = {True: 0.0, False: 0.0}  # by whether it is the host's
    for name, text in totals.items():
        try:
            times[name == _HOST_TOTAL] = times[name == _HOST_TOTAL] or quantity_of(text, TIME_NS)
        except ValueError:
            raise BadProfile(f"{path}: the total time below the table is {quoted(text)}") from None
    return times[False], times[True]


def _without_process(line: str) -> str:
    prefix = _PROCESS.match(line)
    return line[prefix.end() :] if prefix else line


def _is_heading(line: str) -> bool:
    cells = [cell.strip() for cell in _GAP.split(line.strip())]
    return (cells[0] == "Name" and bool(_KNOWN & set(cells))) or _SQUEEZED_HEADING.fullmatch(line) is not None


class _PrintedTable:
    """A table within a text: its columns, the number of its rows, and the totals below it."""

    def __init__(self, path: Path, number: int, line: str, rule: str) -> None:
        self.path, self.number = path, number
        self.rows, self.ended = 0, False
        self.totals: dict[str, str] = {}
        self.spans: list[tuple[int, int]] = []
        self.pattern: re.Pattern[str] | None = None
        if _SQUEEZED_HEADING.fullmatch(line) and not _GAP.search(line.strip()):
            self.names = ["Name", *re.findall(_COLUMN, line.strip().removeprefix("Name"), re.IGNORECASE)]
            self.pattern = re.compile(r" ?(.+?)" + f" ({_QUANTITY})" * (len(self.names) - 1))
        else:
            self.names, self.spans = _heading(path, number, line, rule)

    def row(self, number: int, line: str) -> dict[str, str] | None:
        """Return the cells of a line by column; None for the continuation of a call stack."""
        if self.pattern is not None:
            match = self.pattern.fullmatch(line)
            cells = None if match is None else list(match.groups())
        else:
            cells = _slices(line, self.spans) if self.spans else [cell.strip() for cell in line.split("\t")]
        if cells is None or len(cells) != len(self.names):
            raise BadProfile(
                f"{self.path}: line {number}: {quoted(line.strip())} is not a row of {len(self.names)} columns"
            )
        row = _in_order(dict(zip(self.names, cells)))
        filled = {name for name in self.names if row[name]}
        if all(name == "Source Location" or _FLOPS.fullmatch(name) for name in filled):
            return None
        self.rows += 1
        if self.rows > MOST_ROWS:
            raise BadProfile(f"{self.path}: more than {MOST_ROWS:,} rows, expected a summary")
        return row


def _cells(path: Path, tables: list[_PrintedTable]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and cells by column of every row of the first table; others must repeat its totals.

    Scripts print one profile several times, sorted by the time of the device and by that of the host. The tables are
    appended to a list; their totals are known when all rows are read.
    """
    rule = ""
    for number, text in numbered_lines(path, SUMMARY_BYTES):
        line = _without_process(text)
        table = tables[-1] if tables else None
        if _RULE.fullmatch(line):
            rule = line
            if table is not None and table.rows:
                table.ended = True
        elif _is_heading(line):
            tables.append(_PrintedTable(path, number, line, rule))
        elif table is None:
            if number > MOST_PREAMBLE:
                break
        elif total := _FOOTER.fullmatch(line):
            table.totals[total[1]] = total[2]
        elif not table.ended:
            row = table.row(number, line)
            if row is not None and table is tables[0]:
                yield number, row
    if not tables:
        raise BadProfile(f"{path}: no heading with Name and CPU time, expected a table of PyTorch's profiler")
    first = tables[0]
    for table in tables[1:]:  # each with the totals of the same profile
        if not first.totals or table.totals != first.totals:
            raise BadProfile(
                f"{path}: line {table.number}: a second table with other totals, expected one: they would be added up"
            )
    if first.spans and not first.ended and any(name.startswith("Self ") for name in first.names):
        raise BadProfile(
            f"{path}: the table is cut: no rule of dashes ends it; keep the whole output, with the totals below it"
        )


def _heading(path: Path, number: int, line: str, rule: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return column names and character ranges; no ranges for a table with tabs."""
    spans = [] if "\t" in line else [match.span() for match in re.finditer(r"-+", rule)]
    cells = _slices(line, spans) if spans else [cell.strip() for cell in line.split("\t")]
    if cells is None or len(cells) < 2:
        raise BadProfile(f"{path}: line {number}: a heading that is not under a rule of dashes")
    if cells[-1] == "" and spans:  # PyTorch prints an extra rule for an empty column of shapes
        cells, spans = cells[:-1], spans[:-1]
    if len(set(cells)) < len(cells):
        raise BadProfile(f"{path}: line {number}: a column appears twice in the heading")
    return cells, spans


def _slices(line: str, spans: list[tuple[int, int]]) -> list[str] | None:
    """Split a line at the rules; None if a cell is too wide and gaps do not separate the cells."""
    starts = [start for start, _ in spans]
    gaps = "".join(line[end:start] for (_, end), start in zip(spans, [*starts[1:], starts[-1]]))
    if not gaps.strip() and not line[: starts[0]].strip():
        ends = [*starts[1:], None]
        return [line[start:end].strip() for start, end in zip(starts, ends)]
    cells = [cell.strip() for cell in _GAP.split(line.strip())]
    return cells if len(cells) == len(spans) else None


def _in_order(row: dict[str, str]) -> dict[str, str]:
    """Correct the order of FLOPs and source location, which PyTorch swaps in the heading."""
    flops = next((name for name in row if _FLOPS.fullmatch(name)), None)
    source = row.get("Source Location")
    if flops is None or source is None:
        return row
    try:
        swapped = source == "--" or number_of(source) >= 0
    except ValueError:
        swapped = False
    if not swapped:
        return row
    return {**row, flops: source, "Source Location": row[flops]}


def _row(path: Path, number: int, cells: dict[str, str]) -> dict[str, Any]:
    def read(name: str, value_of: Callable[[str], float]) -> float | None:
        text = cells.get(name, "")
        if text in _ABSENT:
            return None
        try:
            return value_of(text)
        except ValueError:
            raise BadProfile(
                f"{path}: line {number}: {name} is {quoted(text)}, expected {_expected(name)} (a cut row?)"
            ) from None

    def time(*names: str) -> float | None:
        for name in names:
            value = read(name, lambda text: quantity_of(text, TIME_NS))
            if value is None:
                continue
            if value < 0:
                raise BadProfile(f"{path}: line {number}: a time is negative")
            return value
        return None

    device = _device(cells)
    counted = next((name for name in ("# of Calls", "Number of Calls", "Calls") if name in cells), "")
    calls = read(counted, number_of)
    if calls is not None and (calls != int(calls) or not 0 <= calls < 2**53):
        raise BadProfile(f"{path}: line {number}: {calls:g} is not a number of calls")
    total, self_cpu = time("CPU total"), time("Self CPU", "Self CPU total")
    on_device, self_on_device = time(f"{device} total"), time(f"Self {device}", f"Self {device} total")
    if total is None and on_device is None:
        raise BadProfile(f"{path}: line {number}: no total time under {quoted(', '.join(cells), 200)}")
    name = cells["Name"]
    row: dict[str, Any] = {"kernel": name, "calls": None if calls is None else int(calls)}
    row["category"] = _category(name, bool(on_device) and not total and not self_cpu)
    if row["category"] in ("cpu", "api", "marker") and total is not None:
        row["duration_ns"] = total
    else:
        row["duration_ns"] = on_device
    if row["category"] == "cpu":
        row["op"] = name
    shapes = cells.get("Input Shapes", "")
    row["params"] = None if shapes in ("", "[]") else shapes.replace(" ", "")
    row |= {"metric.self_cpu_ns": self_cpu}
    if device:
        row |= {"metric.device_ns": on_device, "metric.self_device_ns": self_on_device}
    for heading in cells:
        if match := _FLOPS.fullmatch(heading) or _FLOPS_RATE.fullmatch(heading):
            flops = read(heading, number_of)
            column = "flops" if heading.startswith("Total") else "metric.flops_per_s"
            row[column] = None if flops is None else flops * _SCALES[match[1].upper()]
        elif heading.endswith(" Mem"):
            word = heading.replace(device, "device") if device else heading
            memory = read(heading, lambda text: quantity_of(text, _SIZES))
            row[f"metric.{word.lower().replace(' mem', '').replace(' ', '_')}_memory_bytes"] = memory
    return row


def _expected(name: str) -> str:
    """Return what a cell of a column should be."""
    if name.endswith(" Mem"):
        return "a size such as 4.00 Kb"
    return "a number" if "Calls" in name or "FLOP" in name.upper() else "a time such as 12.500us"


def _device(cells: dict[str, str]) -> str:
    """Return the device in the column names (CUDA, XPU, ...); empty without device times."""
    for heading in cells:
        word, _, rest = heading.partition(" ")
        if rest == "total" and word not in _NOT_DEVICES:
            return word
    return ""


def _category(name: str, on_device_only: bool) -> str:
    if name.startswith("ProfilerStep"):
        return "marker"
    if on_device_only and not _OPERATION.fullmatch(name):
        return _category_on_device(name)
    return "api" if _API.fullmatch(name) else "cpu"


def _category_on_device(name: str) -> str:
    if communicates(name):
        return "communication"
    return {"Memc": "memcpy", "Mems": "memset"}.get(name[:4], "kernel")

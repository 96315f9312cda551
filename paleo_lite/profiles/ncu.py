"""Reader of Nsight Compute's output: CSV with a row per metric, or per kernel with ``--page raw``; or as printed.

Metric names, units and the counters of floating-point instructions are those of the Nsight Compute documentation
(Kernel Profiling Guide, "Metrics Structure" and "Roofline Charts"). ncu replays each kernel in isolation, by default at
base clock with flushed caches, so its durations differ from those in the program. DRAM bytes exclude hits in the L2
cache and can be fewer than the kernel reads and writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .detect import read_head
from .lines import CsvTable, decoded_head, gpu_category, number_of, numbered_lines, quoted
from .printed import Spans, spans_of_rule, split_columns, without_thousands
from .table import batch_of

_VALUES = 2**18  # in a batch
_MOST_METRICS = 4096
_HEADING = re.compile(r'"?ID"?,(?:"?Process ID"?,"?Process Name"?,|(?:.*,)?"?Kernel Name"?(?:,|$))')
"""Heading of the CSV; scripts keep only the columns that they need."""
_FEWEST = "ID, Kernel Name and a metric, such as gpu__time_duration.sum"
_EXTENTS = r"\(\d+, \d+, \d+\)"
_PRINTED_KERNEL = re.compile(
    rf"\s{{2,}}(?P<name>\S.*?)(?: (?P<grid>{_EXTENTS})x(?P<block>{_EXTENTS})|, \d{{4}}-\w{{3}}-\d\d [\d:]{{8}})"
    r", Context \d+, Stream (?P<stream>\d+)(?:, Device (?P<device>\d+))?(?:, CC (?P<capability>[\d.]+))?"
)
"""Line above the sections of a kernel: since 2022 with its grid and blocks, before with the time of its start."""
_TIME_NS = {
    "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
}  # fmt: skip
_PREFIXED = re.compile(r"(?P<prefix>[KMGTP])(?:byte|B|hz|Hz|inst|sector|request)\b.*")
_POWER = {prefix: 1e3**power for power, prefix in enumerate("KMGTP", 1)}
_PER_SECOND = {"cycle/nsecond": 1e9, "cycle/usecond": 1e6, "cycle/msecond": 1e3}
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration_measured_user.sum", "gpu__time_duration.avg", "Duration")
_DRAM = (
    ("dram__bytes.sum",),
    ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"),
)
_SCALAR_OPS = {"fma": 2, "add": 1, "mul": 1}
_ABOUT = {
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC", "Section Name",
}  # fmt: skip


class NcuCsv:
    """Reader of this format; see `detect.Reader`."""

    name = "ncu"
    maker = "NVIDIA"
    measures_shares = True
    description = "Nsight Compute (ncu), CSV (details or --page raw) or as printed"

    def recognises(self, path: Path, head: bytes) -> bool:
        return any(_HEADING.match(line) or _PRINTED_KERNEL.fullmatch(line) for line in decoded_head(head))

    def capability(self, path: Path) -> float | None:
        """Return the highest compute capability of the devices, which ncu prints since 2022; None without one."""
        printed = (about.get("CC", "") for about, _ in _kernels(path))
        return max((float(text) for text in printed if re.fullmatch(r"\d{1,3}\.\d", text)), default=None)

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel, with every numeric metric as ``metric.NAME``.

        Times are in ns, sizes in bytes, frequencies in Hz; percentages and other values are as printed. `bytes` is
        ``dram__bytes.sum``, or the sum of bytes read and written. `flops` is twice the ``fma`` plus the ``add`` and
        ``mul`` of ``smsp__sass_thread_inst_executed_op_{f,d}*_pred_on.sum`` (Kernel Profiling Guide, "Roofline
        Charts"); null if half-precision or tensor-core instructions also ran, because these counters do not give their
        FLOPs.
        """
        metrics = _metric_names(path)
        rows: list[dict[str, Any]] = []
        for about, values in _kernels(path):
            rows.append(_row(about, values) | {f"metric.{name}": values.get(name) for name in metrics})
            if len(rows) * (len(metrics) + 8) >= _VALUES:
                yield _batch(rows, columns)
                rows = []
        if rows:
            yield _batch(rows, columns)


def _batch(rows: list[dict[str, Any]], columns: tuple[str, ...] | None) -> pa.RecordBatch:
    names = dict.fromkeys(name for row in rows for name in row)
    return batch_of({name: [row.get(name) for row in rows] for name in names}, len(rows), columns)


def _metric_names(path: Path) -> list[str]:
    names: dict[str, None] = {}
    count = 0
    for _, values in _kernels(path):
        count += 1
        names |= dict.fromkeys(values)
        if len(names) > _MOST_METRICS:
            raise BadProfile(f"{path}: more than {_MOST_METRICS} metrics")
    if not count:
        raise BadProfile(f"{path}: a heading of Nsight Compute without a kernel below it")
    return list(names)


def _kernels(path: Path) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """Yield the attributes and the metrics of each kernel."""
    if any(_PRINTED_KERNEL.fullmatch(line) for line in decoded_head(read_head(path))):
        yield from _printed_kernels(path)
        return
    table = _table(path)
    about: dict[str, str] = {}
    values: dict[str, float] = {}
    for number, fields in table.rows():
        row = dict(zip(table.names, fields))
        if "Kernel Name" not in row:  # a later heading, below which the columns are others
            raise BadProfile(f"{path}: line {number}: no column 'Kernel Name'")
        if "Metric Name" not in row:
            if table.units[table.names.index("ID")].strip():
                raise BadProfile(
                    f"{path}: line {table.units_line}: a kernel where Nsight Compute prints the units of the columns"
                )
            metrics: dict[str, float] = {}
            for name, text, unit in zip(table.names, fields, table.units):
                if name not in _ABOUT:
                    _add(metrics, path, number, name, text, unit)
            yield row, metrics
            continue
        if about and any(row.get(name) != about.get(name) for name in ("ID", "Process ID")):
            yield about, values
            values = {}
        about = row
        if "Metric Value" not in row:
            raise BadProfile(f"{path}: line {number}: no column 'Metric Value'")
        _add(values, path, number, row["Metric Name"], row["Metric Value"], row.get("Metric Unit", ""))
    if about:
        yield about, values


def _printed_kernels(path: Path) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """Yield the attributes and the metrics of each kernel that ``ncu`` printed.

    A section is a table without blank lines: rule, heading, rule, rows, rule. What follows it (advice) is text.
    """
    about: dict[str, str] | None = None
    values: dict[str, float] = {}
    spans: Spans | None = None
    last = 0  # number of the line before
    for number, line in numbered_lines(path):
        if kernel := _PRINTED_KERNEL.fullmatch(line):
            if about is not None:
                yield about, values
            printed = {name: text or "" for name, text in kernel.groupdict().items()}
            about = {"Kernel Name": printed["name"], "Stream": printed["stream"], "Device": printed["device"]}
            about |= {"Grid Size": printed["grid"], "Block Size": printed["block"], "CC": printed["capability"]}
            values = {}
        rule = spans_of_rule(line)
        if rule is not None:
            spans = rule if len(rule) == 3 else None  # name, unit, value
        elif number != last + 1:
            spans = None
        elif spans is not None and about is not None:
            fields = split_columns(line, spans)
            if fields is not None and fields[0] != "Metric Name":
                name, unit, text = fields
                _add(values, path, number, name, text, unit)
        last = number
    if about is not None:
        yield about, values


def _table(path: Path) -> CsvTable:
    """Open the table; in the wide form the line below the heading contains the units."""
    probe = CsvTable(path, _HEADING, units=False, fewest=_FEWEST)
    next(probe.rows(), None)
    is_long = "Metric Name" in probe.names
    required = ("Kernel Name", "Metric Value", "Metric Unit") if is_long else ("Kernel Name",)
    lacking = [name for name in required if name not in probe.names]
    if lacking:
        raise BadProfile(
            f"{path}: the heading of Nsight Compute lacks {' and '.join(lacking)}, which `ncu --csv` prints: a table "
            "needs all of ID, Kernel Name, Metric Name, Metric Unit and Metric Value, or a column for each metric"
        )
    return CsvTable(path, _HEADING, units=not is_long, fewest=_FEWEST)


def _add(values: dict[str, float], path: Path, number: int, name: str, text: str, unit: str) -> None:
    """Add a metric if its value is a number; many are text, and rows of rules have no metric."""
    name, text, unit = name.strip(), without_thousands(text.strip()), unit.strip()
    is_time = name in _DURATION
    try:
        value = number_of(text) * _factor(unit)
    except ValueError:
        if is_time:
            raise BadProfile(f"{path}: line {number}: {name} is {quoted(text)}, expected a number") from None
        return
    least = 0 if is_time or name.endswith(".sum") else -(2**63)  # sums of counters are not negative
    if not least <= value < 2**63 or (is_time and unit not in _TIME_NS):
        expected = f"a {'duration' if is_time else 'number'} from {'0' if least == 0 else '-2^63'} to 2^63"
        raise BadProfile(f"{path}: line {number}: {name} is {quoted(text)} {quoted(unit)}, expected {expected}")
    if name:
        values.setdefault(name[:200], value)


def _factor(unit: str) -> float:
    prefixed = _PREFIXED.fullmatch(unit)
    if prefixed:
        return _POWER[prefixed["prefix"]]
    return _TIME_NS.get(unit) or _PER_SECOND.get(unit) or 1.0


def _row(about: dict[str, str], values: dict[str, float]) -> dict[str, Any]:
    name = about["Kernel Name"]
    duration = next((values[metric] for metric in _DURATION if metric in values), None)
    dram = next((names for names in _DRAM if all(metric in values for metric in names)), ())
    return {
        "category": gpu_category(name),
        "kernel": name,
        "duration_ns": duration,
        "calls": 1,
        "flops": counted_flops(values),
        "bytes": sum(values[metric] for metric in dram) if dram else None,
        "grid": _extent(about.get("Grid Size", "")),
        "block": _extent(about.get("Block Size", "")),
        "stream": _whole(about.get("Stream", "")),
        "device": _whole(about.get("Device", "")),
    }


def counted_flops(values: Mapping[str, float]) -> float | None:
    """Return the FLOPs from the counters of floating-point instructions (see `NcuCsv.batches`)."""
    total, counted = 0.0, False
    for unit in ("smsp", "sm"):
        for precision in "fd":
            names = {
                f"{unit}__sass_thread_inst_executed_op_{precision}{op}_pred_on.sum": weight
                for op, weight in _SCALAR_OPS.items()
            }
            if all(name in values for name in names):
                counted = True
                total += sum(weight * values[name] for name, weight in names.items())
        if counted:
            break
    uncounted = ("_op_hfma_", "_op_hadd_", "_op_hmul_", "pipe_tensor", "ops_path_tensor")
    if any(
        value and name.endswith(".sum") and any(part in name for part in uncounted) for name, value in values.items()
    ):
        return None
    return total if counted else None


def _extent(text: str) -> str | None:
    return "".join(text.strip().strip("()").split()) or None


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= 18 else None

"""Readers of nvprof's CSV: traces of GPU activities or API calls with start times, and metrics and events per kernel.

nvprof prints other lines (``==PID== ...``) around the table, and the units in a line below the heading. Columns and
units depend on the version, the options and the run. Sizes and throughputs use powers of 2 (a 409,600-byte copy is
400 KB).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BadProfile
from .detect import read_head
from .lines import (
    MOST_ROWS,
    SIZE_BYTES,
    SUMMARY_BYTES,
    TIME_NS,
    CsvTable,
    decoded_head,
    gpu_category,
    number_of,
    numbered_lines,
    quoted,
)
from .table import batch_of

_ROWS = 2**14
_BATCH_TEXT = 2**24
_MOST_VALUES = 2**24
_LONGEST_NAME = 200  # characters of a metric's name
_RATES = {f"{size}/s": factor for size, factor in SIZE_BYTES.items()}
_ABSENT = {"", "-", "N/A", "n/a", "nan", "-nan", "<OVERFLOW>"}
_VALUE = re.compile(r"(?P<number>[^%A-Za-z/]+)(?P<unit>%|[KMGT]?B(?:/s)?)?|[A-Z][a-z]{1,10} \((?P<level>\d{1,3})\)")
_TRACE_HEADING = re.compile(r'"?Start"?[;,\t|]"?Duration"?\s*(?:[;,\t|]|$)')
_METRIC_HEADING = re.compile(r'"?Device"?[;,\t|]"?Kernel"?[;,\t|]"?Invocations"?[;,\t|]"?(?:Metric|Event) Name"?')

_PRINTED_HEADING = re.compile(r"Invocations\s+(?P<kind>Metric|Event) Name\s")
_PRINTED_DEVICE = re.compile(r'Device "(?P<device>.*)"')
_PRINTED_KERNEL = re.compile(r"\s+Kernel: (?P<kernel>\S.*)")
_PRINTED_VALUE = r"\S+(?: \(\d+\))?"
_PRINTED_ROWS = {
    "Metric": re.compile(
        rf"\s+(?P<calls>\d+)\s+(?P<name>\S+)\s+\S.*?\s{{2,}}{_PRINTED_VALUE}\s{{2,}}{_PRINTED_VALUE}\s{{2,}}"
        rf"(?P<avg>{_PRINTED_VALUE})"
    ),
    "Event": re.compile(r"\s+(?P<calls>\d+)\s+(?P<name>\S+)\s+\S+\s+\S+\s+(?P<avg>\S+)(?:\s+\S+)?"),
}
"""Rows below a heading: Invocations, Name, (Description,) Min, Max, Avg and, for events, Total."""

_METRIC_COLUMNS = {"Device", "Kernel", "Invocations", "Avg"}


class GpuTraceCsv:
    """Reader of ``nvprof --csv --print-gpu-trace`` and ``--print-api-trace``, also as gzip: one row per activity.

    Registers per thread, static and dynamic shared memory (bytes) and a copy's throughput (bytes/s) are ``metric.*``.
    """

    name = "nvprof-trace"
    maker = "NVIDIA"
    description = "nvprof GPU-trace or API-trace CSV"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a heading begins with Start and Duration."""
        return any(_TRACE_HEADING.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, 16,384 at a time."""
        table = CsvTable(path, _TRACE_HEADING, units=True)
        names: list[str] = []
        units: list[str] = []
        numbers: list[int] = []
        rows: list[list[str]] = []
        line = size = 0
        for number, fields in table.rows():
            full = len(rows) == _ROWS or size > _BATCH_TEXT
            if rows and (full or table.names is not names or table.units is not units):
                yield _trace_batch(path, names, units, line, numbers, rows, columns)
                numbers, rows, size = [], [], 0
            names, units, line = table.names, table.units, table.units_line
            numbers.append(number)
            rows.append(fields)
            size += sum(map(len, fields))
        if not rows:
            names, units = table.names, [""] * len(table.names)
        yield _trace_batch(path, names, units, line, numbers, rows, columns)


class MetricsCsv:
    """Reader of ``nvprof --metrics NAMES`` (or ``--events``), CSV or as printed: one row per device and kernel.

    ``metric.NAME`` is the average over the invocations: percentages without the sign, a utilisation such as ``Low (2)``
    as 2, sizes and throughputs in bytes and bytes/s. Overflowed and unmeasured values are null. `flops` is the sum of
    the counters ``flop_count_hp``, ``_sp`` and ``_dp`` over all invocations, with 2 FLOPs per multiply-accumulate.
    """

    name = "nvprof-metrics"
    maker = "NVIDIA"
    description = "nvprof metrics and events, CSV or as printed"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether there is a heading Device, Kernel, Invocations, Metric Name or Event Name."""
        return any(_METRIC_HEADING.match(line) or _PRINTED_HEADING.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one batch with a row per kernel.

        Raise BadProfile if the heading or a row is incomplete, or a value is neither a number nor a level.
        """
        kernels: dict[tuple[int, str, str], dict[str, float | None]] = {}
        calls: dict[tuple[int, str, str], int] = {}
        metrics: dict[str, None] = {}
        section = 0
        for count, (number, row) in enumerate(_metric_rows(path)):
            if count >= MOST_ROWS:
                raise BadProfile(f"{path}: more than {MOST_ROWS:,} rows, expected a summary")
            name = row.get("Metric Name", row.get("Event Name", ""))
            if not row.keys() >= _METRIC_COLUMNS or not name or len(name) > _LONGEST_NAME:
                raise BadProfile(
                    f"{path}: line {number}: no metric with an average under {quoted(','.join(row))}, expected "
                    f"the columns {', '.join(sorted(_METRIC_COLUMNS))}"
                )
            if not row["Invocations"].isdecimal() or len(row["Invocations"]) > 18:
                raise BadProfile(f"{path}: line {number}: {quoted(row['Invocations'])} is not a number of invocations")
            key = (section, row["Device"], row["Kernel"])
            if name in kernels.get(key, {}):  # another process ran the same kernel
                section += 1
                key = (section, row["Device"], row["Kernel"])
            kernels.setdefault(key, {})[name] = _metric(path, number, row["Avg"])
            calls[key] = max(calls.get(key, 0), int(row["Invocations"]))
            metrics.setdefault(name)
            if len(kernels) * len(metrics) > _MOST_VALUES:
                raise BadProfile(f"{path}: line {number}: more than {_MOST_VALUES:,} values, expected a summary")
        columns_by_name: dict[str, Any] = {
            "category": [gpu_category(kernel) for _, _, kernel in kernels],
            "kernel": [kernel for _, _, kernel in kernels],
            "calls": list(calls.values()),
            "flops": [_flops(values, calls[key]) for key, values in kernels.items()],
            "device": [_device(device) for _, device, _ in kernels],
        }
        for metric in metrics:
            columns_by_name[f"metric.{metric}"] = [values.get(metric) for values in kernels.values()]
        yield batch_of(columns_by_name, len(kernels), columns)


def _metric_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields of every row of metrics, whether CSV or printed."""
    if not any(_PRINTED_HEADING.match(line) for line in decoded_head(read_head(path))):
        table = CsvTable(path, _METRIC_HEADING, units=False, most=SUMMARY_BYTES)
        for number, fields in table.rows():
            yield number, dict(zip(table.names, fields))
        return
    kind = device = kernel = ""
    for number, line in numbered_lines(path, SUMMARY_BYTES):
        if heading := _PRINTED_HEADING.match(line):
            kind, device, kernel = heading["kind"], "", ""
        elif place := _PRINTED_DEVICE.fullmatch(line):
            device = place["device"]
        elif kind and (title := _PRINTED_KERNEL.fullmatch(line)):
            kernel = title["kernel"]
        elif kernel and (row := _PRINTED_ROWS[kind].fullmatch(line)):
            about = {"Device": device, "Kernel": kernel, "Invocations": row["calls"]}
            yield number, about | {f"{kind} Name": row["name"], "Avg": row["avg"]}
        elif kernel and line.startswith("    "):
            raise BadProfile(f"{path}: line {number}: {quoted(line.strip())} is not a whole row of nvprof's metrics")


def _trace_batch(
    path: Path,
    names: Sequence[str],
    units: Sequence[str],
    units_line: int,
    numbers: Sequence[int],
    rows: Sequence[Sequence[str]],
    columns: tuple[str, ...] | None,
) -> pa.RecordBatch:
    """Convert rows of a trace to a batch; `numbers` are their line numbers."""
    for required in ("Start", "Duration", "Name"):
        if required not in names:
            raise BadProfile(f"{path}: no column {required!r} in the heading {quoted(','.join(names), 200)}")
    values = {name: pa.array([row[index] for row in rows], pa.string()) for index, name in enumerate(names)}
    unit = dict(zip(names, units))

    def measured(name: str, factors: dict[str, float]) -> pa.Array:
        """Return a column in base units; null if it is absent."""
        if name not in values:
            return pa.nulls(len(rows), pa.float64())
        array = _numbers(path, numbers, name, values[name], factors.get(unit[name], 1.0))
        if array.null_count < len(array) and unit[name] not in factors:
            expected = ", ".join(filter(None, factors)) or "none"
            raise BadProfile(
                f"{path}: line {units_line}: the unit of {name} is {quoted(unit[name])}, expected {expected}"
            )
        return array

    def joined(axis: str) -> pa.Array | None:
        """Return grid or block sizes as "x,y,z"."""
        extents = [values.get(f"{axis} {letter}") for letter in "XYZ"]
        if any(extent is None for extent in extents):
            return None
        blanks = [pc.if_else(pc.equal(extent, ""), pa.scalar(None, pa.string()), extent) for extent in extents]
        return pc.binary_join_element_wise(*blanks, ",", null_handling="emit_null")

    start, duration = measured("Start", TIME_NS), measured("Duration", TIME_NS)
    if duration.null_count:
        index = int(pc.index(pc.is_null(duration), True).as_py())
        raise BadProfile(f"{path}: line {numbers[index]}: no duration")
    # nvprof appends the correlation id to the name of a kernel.
    kernel = pc.replace_substring_regex(values["Name"], r"\s*\[\d+\]$", "").dictionary_encode()
    category = pa.array([gpu_category(name) for name in kernel.dictionary.to_pylist()], pa.string()).take(
        kernel.indices
    )
    device = values.get("Device")
    if device is None:
        category = pa.array(["api"] * len(rows), pa.string())
    else:
        category = pc.if_else(pc.equal(device, ""), "api", category)
    table = {
        "category": category,
        "kernel": kernel,
        "start_ns": pc.round(start).cast(pa.int64()),
        "duration_ns": duration,
        "calls": pa.array(np.ones(len(rows), np.int64)),
        "bytes": pc.round(measured("Size", SIZE_BYTES)),  # printed in MB with six decimals
        "grid": joined("Grid"),
        "block": joined("Block"),
        "stream": _last_numbers(values.get("Stream")),
        "device": _last_numbers(device),
        "metric.registers_per_thread": measured("Registers Per Thread", {"": 1.0}),
        "metric.static_shared_bytes": measured("Static SMem", SIZE_BYTES),
        "metric.dynamic_shared_bytes": measured("Dynamic SMem", SIZE_BYTES),
        "metric.throughput_bytes_per_s": measured("Throughput", _RATES),
    }
    return batch_of(table, len(rows), columns)


def _numbers(path: Path, numbers: Sequence[int], name: str, texts: pa.Array, factor: float) -> pa.Array:
    """Convert a column to numbers times a factor, from 0 to 2^63; null for blank fields."""
    filled = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    try:
        array = pc.multiply(filled.cast(pa.float64()), factor)
        wrong = pc.invert(pc.and_(pc.greater_equal(array, 0), pc.less(array, 2.0**63)))
        index = pc.index(wrong, True).as_py()
    except pa.ArrowInvalid:
        index = next(index for index, text in enumerate(texts.to_pylist()) if text and not _is_number(text))
    if index >= 0:
        text = quoted(texts[index].as_py())
        raise BadProfile(f"{path}: line {numbers[index]}: {name} is {text}, expected a number of 0 or more below 2^63")
    return array


def _is_number(text: str) -> bool:
    try:
        return bool(pa.scalar(text).cast(pa.float64()).is_valid)
    except pa.ArrowInvalid:
        return False


def _last_numbers(texts: pa.Array | None) -> pa.Array | None:
    """Return the number in ``7`` or ``GeForce GTX 1080 Ti (0)``; null for a name without a number."""
    if texts is None:
        return None
    encoded = texts.dictionary_encode()
    devices = pa.array([_device(text) for text in encoded.dictionary.to_pylist()], pa.int64())
    return devices.take(encoded.indices)


def _device(text: str) -> int | None:
    match = re.search(r"(?:^|[ (])(\d{1,9})\)?$", text)
    return int(match[1]) if match else None


def _flops(values: dict[str, float | None], calls: int) -> float | None:
    """Return the FLOPs of all calls of a kernel; None without counters."""
    counted = [values.get(f"flop_count_{precision}") for precision in ("hp", "sp", "dp")]
    if all(count is None for count in counted):
        return None
    return calls * sum(filter(None, counted))


def _metric(path: Path, number: int, text: str) -> float | None:
    """Convert the value of a metric (see `MetricsCsv`); None if it is absent."""
    if text.rstrip("%") in _ABSENT:
        return None
    match = _VALUE.fullmatch(text)
    if match and match["level"]:
        return float(match["level"])
    try:
        value = number_of(match["number"]) if match else math.nan
        factor = 1.0 if match is None or match["unit"] in (None, "%") else {**SIZE_BYTES, **_RATES}[match["unit"]]
    except (ValueError, KeyError):
        value = math.nan
    if math.isnan(value):
        raise BadProfile(f"{path}: line {number}: {quoted(text)} is not the value of a metric")
    return value * factor

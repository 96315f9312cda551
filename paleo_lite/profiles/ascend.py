"""Readers of Huawei's profilers of Ascend NPUs: kernels with times, as CSV.

`kernel_details.csv` of ``torch_npu.profiler`` and `op_summary_*.csv` of ``msprof`` have a row per kernel; the columns
of the first are those of the second without the words "Op" and "Task". `op_statistic*.csv` of both has a row per type
of operator and kind of core, and `task_time_*.csv` one per task of a stream, also one that waits (MindStudio's "Profile
data file reference"; names as in torch_npu's own parsers). `operator_details.csv` of ``torch_npu.profiler`` has a row
per operator of PyTorch, with its own time on the host and that of the kernels which it launched itself. Times are in
us, with a tab behind the start. Which columns there are depends on the options of the profiler.

`trace_view.json` of ``torch_npu.profiler`` and `msprof_*.json` of ``msprof`` are Chrome traces: a list of events in
processes by name. Those of the process "Ascend Hardware" are the tasks of the streams of a device, whose kind is the
argument "Task Type"; those of "Python" are operations of PyTorch, and those of "CANN" calls of the runtime. Other
processes ("Communication", "HCCL", "Overlap Analysis", frequencies) show the same time again. A flow of the category
"HostToDevice" starts in a call of the runtime and ends where the task begins that it launched. Times are in us, texts
with three decimals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..errors import BadProfile
from .detect import read_head
from .json_stream import JsonArray, doubts_of_array
from .lines import CsvTable, decoded_head, number_of, quoted, whole_cell
from .names import communicates
from .table import LATEST_NS, batches_of

_HEADING = re.compile(
    r'(?=(?:.*,)?"?(?:Op )?Name"?,)(?=.*,"?(?:Accelerator Core|Task Type|OP Type)"?,)(?=.*,"?(?:Task )?Duration\(us\))'
    r'|(?=(?:.*,)?"?OP Type"?,)(?=.*,"?Count"?,"?Total Time\(us\))'
    r'|(?=(?:.*,)?"?kernel_name"?,)(?=.*,"?kernel_type"?,)(?=.*,"?task_time\(us\))'
)
_OPERATORS = re.compile(r'"?Name"?,(?:.*,)?"?Host Self Duration\(us\)"?,(?:.*,)?"?Device Self Duration\(us\)')
"""Heading of a table of operators (torch_npu's `OperatorViewParser`)."""
_OPERATOR_NAMES = ("category", "kernel", "op", "duration_ns", "calls", "params")
_NAMES = (
    "category", "kernel", "op", "start_ns", "duration_ns", "calls", "stream", "device", "step", "params", "flops",
)  # fmt: skip
_BLOCK = (16, 16)
"""Last dimensions of a matrix in blocks of the cube unit (the format FRACTAL_NZ)."""
_PRODUCT = re.compile(r"(?:Batch)?MatMul(?:V[23])?")
_COPY = re.compile(r"MEMCPY|SDMA", re.IGNORECASE)
_ABSENT = ("", "N/A")
_DURATIONS = ("Duration(us)", "Task Duration(us)", "Total Time(us)", "task_time(us)")
_WAITS = re.compile(r"EVENT|NOTIFY|WAIT|RECORD|BARRIER|PROFIL", re.IGNORECASE)
"""Kinds of tasks that compute and move nothing: a stream waits for another, or tells it something."""


class AscendCsv:
    """Reader of these files; see `detect.Reader`."""

    name = "ascend"
    maker = "Huawei"
    description = "Ascend CSV (kernel_details, op_summary, op_statistic, operator_details, task_time)"

    def recognises(self, path: Path, head: bytes) -> bool:
        return any(_HEADING.match(line) or _OPERATORS.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel, or per type of operator of a summary, 16,384 at a time.

        An operator of `operator_details` has a row of the host, and one of the device if it launched kernels itself.
        """
        if any(_OPERATORS.match(line) for line in decoded_head(read_head(path))):
            yield from batches_of(_operator_rows(path), _OPERATOR_NAMES, columns)
            return
        table = CsvTable(path, _HEADING, units=False)
        rows = (_row(path, number, dict(zip(table.names, fields))) for number, fields in table.rows())
        yield from batches_of(rows, _NAMES, columns)


def _operator_rows(path: Path) -> Iterator[dict[str, Any]]:
    table = CsvTable(path, _OPERATORS, units=False, has_long_cells=True)  # call stacks have several lines
    for number, fields in table.rows():
        cells = dict(zip(table.names, fields))
        name = cells["Name"].strip()
        if not name:
            raise BadProfile(f"{path}: line {number}: an operator without a name")
        operator = {"kernel": name, "op": name, "calls": 1, "params": cells.get("Input Shapes", "").strip('" ') or None}
        host_us = _microseconds(path, number, "Host Self Duration(us)", cells["Host Self Duration(us)"].strip())
        device_us = _microseconds(path, number, "Device Self Duration(us)", cells["Device Self Duration(us)"].strip())
        yield {**operator, "category": "cpu", "duration_ns": float(host_us * 1000)}
        if device_us:
            yield {**operator, "category": _category(name, ""), "duration_ns": float(device_us * 1000)}


def _microseconds(path: Path, number: int, column: str, text: str) -> Decimal:
    """Return a cell in us, exactly: starts have more digits than a float."""
    try:
        number_of(text)
        time_us = Decimal(text)
    except (ValueError, InvalidOperation):
        time_us = Decimal(-1)
    if not 0 <= time_us * 1000 <= LATEST_NS:
        raise BadProfile(f"{path}: line {number}: {column} is {quoted(text)}, expected a time in us")
    return time_us


def _row(path: Path, number: int, cells: dict[str, str]) -> dict[str, Any]:
    def text(*names: str) -> str | None:
        """Return the first of some cells that is there; None without any."""
        for name in names:
            value = cells.get(name, "").strip()
            if value not in _ABSENT:
                return value
        return None

    def microseconds(*names: str) -> Decimal | None:
        """Return the first of some cells that is there, in us; None without any."""
        value = text(*names)
        return None if value is None else _microseconds(path, number, names[0], value)

    operator = text("Type", "OP Type")
    name = text("Name", "Op Name", "kernel_name") or operator
    if name is None:
        raise BadProfile(f"{path}: line {number}: neither a name nor a type of operator")
    duration_us = microseconds(*_DURATIONS)
    if duration_us is None and not any(cells.get(column, "").strip() for column in _DURATIONS):
        raise BadProfile(f"{path}: line {number}: no duration")
    start_us = microseconds("Start Time(us)", "Task Start Time(us)", "task_start(us)")
    shapes = (text("Input Shapes") or "").strip('"')
    types = (text("Input Data Types") or "").strip('"')
    return {
        "category": _category(name, text("Accelerator Core", "Task Type", "Core Type", "kernel_type") or ""),
        "kernel": name,
        "op": operator,
        "start_ns": None if start_us is None else int(start_us * 1000),
        "duration_ns": None if duration_us is None else float(duration_us * 1000),
        "calls": whole_cell(path, number, "Count", text("Count") or "") if "Count" in cells else 1,
        "stream": whole_cell(path, number, "Stream ID", text("Stream ID", "stream_id") or ""),
        "device": whole_cell(path, number, "Device_id", text("Device_id") or ""),
        "step": text("Step Id"),
        "params": f"{shapes} {types}".strip() or None,
        "flops": _flops(operator or "", shapes, text("Output Shapes") or ""),
    }


def _flops(operator: str, inputs: str, outputs: str) -> float | None:
    """Return the FLOPs of a matrix product, 2 M N K, from the shapes of its operands; None of other operators.

    Operands may be transposed, batched, and stored in blocks of 16 x 16 (FRACTAL_NZ): the result has as many numbers in
    each batch as rows times columns, and K is what the operands have beside these.
    """
    if not _PRODUCT.fullmatch(operator):
        return None
    operands, results = _shapes(inputs), _shapes(outputs)
    if len(operands) < 2 or not results or min(map(len, (*operands[:2], *results))) < 2:
        return None
    left, right, result = (math.prod(shape) for shape in (*operands[:2], results[0]))
    leading = [_matrix_count(shape) for shape in (results[0], *operands[:2])]
    batches = leading[0] if leading[0] == leading[1] == leading[2] else 1  # one operand may have no batches
    if not result:
        return None
    return 2.0 * result * math.sqrt(left * right / (result * batches))


def _matrix_count(shape: tuple[int, ...]) -> int:
    """Return the matrices of a tensor, whose last dimensions are rows and columns, or blocks and 16 x 16 numbers."""
    return math.prod(shape[:-4] if len(shape) >= 4 and shape[-2:] == _BLOCK else shape[:-2])


def _shapes(text: str) -> list[tuple[int, ...]]:
    """Return the shapes of a cell such as ``"2,4096;4096,64"``; none if one is not of sizes."""
    parts = [part.split(",") for part in text.replace('"', "").split(";")]
    if not all(size.isascii() and size.isdecimal() and len(size) <= 9 for part in parts for size in part):
        return []
    return [tuple(map(int, part)) for part in parts]


def _category(name: str, core: str) -> str:
    if core in ("COMMUNICATION", "HCCL") or communicates(name):
        return "communication"
    if _COPY.search(core):
        return "memcpy"
    return "api" if _WAITS.search(core) else "kernel"


TRACE_SIGN = re.compile(
    rb'"(?:Ascend Hardware|CANN|AscendCL|HostToDevice|Overlap Analysis)"|"Task Type"\s*:|"async_npu"'
)
"""Pattern of the names of processes, flows and arguments of these traces."""

_LATEST_US = 4 * 10**15  # range of int64 nanoseconds
_TRACE_COLUMNS = ("category", "kernel", "start_ns", "duration_ns", "calls", "stream", "device", "thread", "launch_ns")
_HARDWARE = "Ascend Hardware"
_HOST = {"Python": "cpu", "CANN": "api"}
"""Categories of the events on the host, by the name of the process."""


class _AscendArguments(msgspec.Struct, gc=False):
    name: Any = None  # of a process
    kind: Any = msgspec.field(name="Task Type", default=None)


class _AscendEvent(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    id: int | str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Decimal = Decimal(-1)
    dur: Decimal = Decimal(-1)
    args: _AscendArguments | None = None


_Track = tuple[int | str, int | str, Decimal]  # process, thread and start of an event
_EVENTS = msgspec.json.Decoder(list[_AscendEvent])


class AscendTrace:
    """Reader of these traces. `device` and `stream` count processes and threads in the order of their first tasks."""

    name = "ascend-trace"
    maker = "Huawei"
    description = "Ascend traces (trace_view.json, msprof_*.json)"

    def recognises(self, path: Path, head: bytes) -> bool:
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        is_list = re.match(rb"\[\s*\{", start) is not None and re.search(rb'"ph"\s*:', head) is not None
        return is_list and TRACE_SIGN.search(head) is not None

    def doubts(self, path: Path) -> list[str]:
        """Return a sentence about a trace whose end is missing."""
        return doubts_of_array(path)

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per task of a device, operation or call of the host, in file order, 16,384 at a time."""
        yield from batches_of(_trace_rows(path), _TRACE_COLUMNS, columns)


def _events(path: Path) -> Iterator[_AscendEvent]:
    for piece in JsonArray(path, "traceEvents", _EVENTS.decode).pieces():
        yield from piece.decoded


def _read_processes_and_launches(path: Path) -> tuple[dict[int | str, str], dict[_Track, int]]:
    """Return the names of the processes, and the start in ns of the call that launched each task, by its track."""
    names: dict[int | str, str] = {}
    calls: dict[int | str, int] = {}  # start of the call by the id of its flow
    ends: dict[_Track, int | str] = {}
    for event in _events(path):
        if event.ph == "M" and event.name == "process_name" and event.args is not None:
            names[event.pid] = str(event.args.name)
        elif event.cat == "HostToDevice" and _is_time(event.ts):
            if event.ph == "s":
                calls[event.id] = int(event.ts * 1000)
            elif event.ph == "f":
                ends[event.pid, event.tid, event.ts] = event.id
    return names, {track: calls[number] for track, number in ends.items() if number in calls}


def _is_time(time_us: Decimal) -> bool:
    return time_us.is_finite() and 0 <= time_us < _LATEST_US


def _trace_rows(path: Path) -> Iterator[dict[str, Any]]:
    names, launches = _read_processes_and_launches(path)
    devices: dict[int | str, int] = {}
    streams: dict[tuple[int | str, int | str], int] = {}
    has_rows = False
    for event in _events(path):
        process = names.get(event.pid, "")
        if event.ph != "X" or (process != _HARDWARE and process not in _HOST):
            continue
        has_rows = True
        if not (_is_time(event.ts) and _is_time(event.dur)):
            raise BadProfile(f"{path}: event {quoted(event.name)} has no start and duration in us")
        row = {
            "kernel": event.name, "calls": 1, "start_ns": int(event.ts * 1000), "duration_ns": float(event.dur * 1000),
        }  # fmt: skip
        if process in _HOST:
            thread = event.tid if isinstance(event.tid, int) and 0 <= event.tid < 2**63 else None
            yield {**row, "category": _HOST[process], "thread": thread}
            continue
        kind = "" if event.args is None else str(event.args.kind or "")
        yield {
            **row,
            "category": _category(event.name, kind),
            "device": devices.setdefault(event.pid, len(devices)),
            "stream": streams.setdefault((event.pid, event.tid), len(streams)),
            "launch_ns": launches.get((event.pid, event.tid, event.ts)),
        }
    if not has_rows:
        raise BadProfile(f"{path}: the trace has no task of a device and no operation: did anything run?")

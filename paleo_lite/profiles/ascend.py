"""Readers of Huawei's profilers of Ascend NPUs: kernels with times, as CSV.

`kernel_details.csv` of ``torch_npu.profiler`` and `op_summary_*.csv` of ``msprof`` have a row per kernel; the columns
of the first are those of the second without the words "Op" and "Task". `op_statistic*.csv` of both has a row per type
of operator and kind of core, and `task_time_*.csv` one per task of a stream, also one that waits (MindStudio's "Profile
data file reference"; names as in torch_npu's own parsers). Times are in us, with a tab behind the start. Which columns
there are depends on the options of the profiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import CsvTable, decoded_head, number_of, quoted, whole_cell
from .names import communicates
from .table import LATEST_NS, batches_of

_HEADING = re.compile(
    r'(?=(?:.*,)?"?(?:Op )?Name"?,)(?=.*,"?(?:Accelerator Core|Task Type|OP Type)"?,)(?=.*,"?(?:Task )?Duration\(us\))'
    r'|(?=(?:.*,)?"?OP Type"?,)(?=.*,"?Count"?,"?Total Time\(us\))'
    r'|(?=(?:.*,)?"?kernel_name"?,)(?=.*,"?kernel_type"?,)(?=.*,"?task_time\(us\))'
)
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
    description = "Ascend CSV (kernel_details, op_summary, op_statistic, task_time)"

    def recognises(self, path: Path, head: bytes) -> bool:
        return any(_HEADING.match(line) for line in decoded_head(head))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel, or per type of operator of a summary, 16,384 at a time."""
        table = CsvTable(path, _HEADING, units=False)
        rows = (_row(path, number, dict(zip(table.names, fields))) for number, fields in table.rows())
        yield from batches_of(rows, _NAMES, columns)


def _row(path: Path, number: int, cells: dict[str, str]) -> dict[str, Any]:
    def text(*names: str) -> str | None:
        """Return the first of some cells that is there; None without any."""
        for name in names:
            value = cells.get(name, "").strip()
            if value not in _ABSENT:
                return value
        return None

    def microseconds(*names: str) -> Decimal | None:
        """Return a cell in us, exactly: starts have more digits than a float."""
        value = text(*names)
        if value is None:
            return None
        try:
            number_of(value)
            time_us = Decimal(value)
        except (ValueError, InvalidOperation):
            time_us = Decimal(-1)
        if not 0 <= time_us * 1000 <= LATEST_NS:
            raise BadProfile(f"{path}: line {number}: {names[0]} is {quoted(value)}, expected a time in us")
        return time_us

    operator = text("Type", "OP Type")
    name = text("Name", "Op Name", "kernel_name") or operator
    if name is None:
        raise BadProfile(f"{path}: line {number}: neither a name nor a type of operator")
    duration_us = microseconds(*_DURATIONS)
    if duration_us is None and not any(cells.get(column, "").strip() for column in _DURATIONS):
        raise BadProfile(f"{path}: line {number}: no duration")
    start_us = microseconds("Start Time(us)", "Task Start Time(us)", "task_start(us)")
    shapes = (text("Input Shapes") or "").strip('"') or None
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
        "params": shapes,
        "flops": _flops(operator or "", shapes or "", text("Output Shapes") or ""),
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

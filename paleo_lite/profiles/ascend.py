"""Readers of Huawei's profilers of Ascend NPUs: kernels with times, as CSV.

`kernel_details.csv` of ``torch_npu.profiler`` and `op_summary_*.csv` of ``msprof`` have a row per kernel; the columns
of the first are those of the second without the words "Op" and "Task". `op_statistic*.csv` of both has a row per type
of operator and kind of core (MindStudio's "Profile data file reference"; names as in torch_npu's own parsers). Times
are in us, with a tab behind the start. Which columns there are depends on the options of the profiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import CsvTable, decoded_head, number_of, quoted
from .names import communicates
from .table import LATEST_NS, batches_of

_HEADING = re.compile(
    r'(?=(?:.*,)?"?(?:Op )?Name"?,)(?=.*,"?(?:Accelerator Core|Task Type|OP Type)"?,)(?=.*,"?(?:Task )?Duration\(us\))'
    r'|(?=(?:.*,)?"?OP Type"?,)(?=.*,"?Count"?,"?Total Time\(us\))'
)
_NAMES = ("category", "kernel", "op", "start_ns", "duration_ns", "calls", "stream", "device", "step")
_COPY = re.compile(r"MEMCPY|SDMA", re.IGNORECASE)
_ABSENT = ("", "N/A")


class AscendCsv:
    """Reader of these files; see `detect.Reader`."""

    name = "ascend"
    description = "Ascend CSV (kernel_details, op_summary, op_statistic)"

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

    def whole(*names: str) -> int | None:
        """Return a cell as an integer; None if it is blank."""
        value = text(*names)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal() and len(value) <= 18):
            raise BadProfile(f"{path}: line {number}: {names[0]} is {quoted(value)}, expected a whole number")
        return int(value)

    operator = text("Type", "OP Type")
    name = text("Name", "Op Name") or operator
    if name is None:
        raise BadProfile(f"{path}: line {number}: neither a name nor a type of operator")
    duration_us = microseconds("Duration(us)", "Task Duration(us)", "Total Time(us)")
    if duration_us is None:
        raise BadProfile(f"{path}: line {number}: no duration")
    start_us = microseconds("Start Time(us)", "Task Start Time(us)")
    return {
        "category": _category(name, text("Accelerator Core", "Task Type", "Core Type") or ""),
        "kernel": name,
        "op": operator,
        "start_ns": None if start_us is None else int(start_us * 1000),
        "duration_ns": float(duration_us * 1000),
        "calls": whole("Count") if "Count" in cells else 1,
        "stream": whole("Stream ID"),
        "device": whole("Device_id"),
        "step": text("Step Id"),
    }


def _category(name: str, core: str) -> str:
    if core in ("COMMUNICATION", "HCCL") or communicates(name):
        return "communication"
    return "memcpy" if _COPY.search(core) else "kernel"

"""Readers of what Intel's unitrace, onetrace, ze_tracer and cl_tracer print and write (PTI-GPU).

``unitrace --device-timing`` prints a row per kernel and command of each backend (Level Zero, OpenCL) under the heading
``=== Device Timing Summary ===`` (``Results`` in older versions), with times in ns. Names are between quotation marks
or not, and may hold commas. Other summaries of the same file (host calls, submissions, properties of kernels) are
left out. The older ze_tracer and cl_tracer, and the samples before them, have the SIMD width and the transferred bytes
in columns of their own. A copy has its direction, from or to memory of the system (M), host (H), device (D) or both
(S), and its bytes behind its name: ``zeCommandListAppendMemoryCopy(M2D)[4096]``. A kernel may have its width, grid and
work-group behind its name: ``gemm_kernel[SIMD16 {128; 1; 1} {16; 2; 8}]``.

``unitrace --chrome-kernel-logging`` writes a Chrome trace (``tools/unitrace/src/chromelogger.h``). Its events of the
category ``gpu_op`` are the same kernels and commands, in a process for each device and a thread for each engine or
queue; events of a kernel on one of several tiles begin with ``Tile #0:``. Those of ``cpu_op`` are calls on the host,
with ``--chrome-call-logging``: a flow ``Flow_H2D_7_0`` starts with the call that launches the kernel with the id 7.
Times are in us.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..errors import BadProfile
from .json_stream import JsonArray
from .lines import MOST_ROWS, SUMMARY_BYTES, decoded_head, numbered_lines, quoted
from .names import communicates
from .table import batches_of

_SECTION = re.compile(r"\s*=== (?P<title>.+?):? ===\s*")
_DEVICE_TIMES = re.compile(r"Device Timing (?:Summary|Results)")
_HEADING = re.compile(
    r"\s*Kernel,\s*Calls,(?P<simd>\s*SIMD,)?(?P<transferred>\s*Transferred \(bytes\),)?\s*Time \(ns\),\s*Time \(%\),"
    r"\s*Average \(ns\),\s*Min \(ns\),\s*Max \(ns\)"
)
_ROW = re.compile(
    r'\s*(?P<name>".*"|\S.*?),\s*(?P<calls>\d{1,18}),(?P<others>(?:\s*\d{1,18},){0,2})\s*(?P<time_ns>\d{1,18}),'
    r"\s*[\d.]+%?(?:,\s*\d{1,18}){3},?\s*"
)
_COPY = re.compile(r"(?:zeCommandListAppend(?:MemoryCopy|ImageCopy)|clEnqueue\w*(?:Read|Write|Copy|Memcpy))")
_FILL = re.compile(r"zeCommandListAppendMemoryFill|clEnqueue\w*Fill")
_WAITS = re.compile(r"zeCommandListAppend(?:Barrier|WaitOnEvents|SignalEvent|EventReset)|clEnqueue(?:Barrier|Marker)")
_BYTES = re.compile(r"\[(\d{1,18})\]")
_EXTENTS = r"\{(\d{1,10}; \d{1,10}; \d{1,10})\}"
_SHAPE = re.compile(rf"(?:\[SIMD\w{{1,8}})? {_EXTENTS} {_EXTENTS}\]$")
"""What is behind the name of a kernel: its grid and its work-group."""

_COLUMNS = ("category", "kernel", "duration_ns", "calls", "bytes", "grid", "block")


class UnitraceText:
    """Reader of this text, between whatever else the program printed."""

    name = "unitrace"
    maker = "Intel"
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
    title, heading, count = "", None, 0
    for number, line in numbered_lines(path, SUMMARY_BYTES):
        section = _SECTION.fullmatch(line)
        if section or line.lstrip().startswith("=="):  # the next summary, or the next backend
            title = section["title"] if section else title
            heading = None
        elif _DEVICE_TIMES.match(title) and (found := _HEADING.match(line)):
            heading = found
        elif heading is not None:
            count += 1
            if count > MOST_ROWS:
                raise BadProfile(f"{path}: line {number}: more than {MOST_ROWS:,} rows, expected a summary")
            yield _row(path, number, line, heading)
    if not count:
        raise BadProfile(f"{path}: the summary of device times has no row: did a kernel end before the program did?")


def _row(path: Path, number: int, line: str, heading: re.Match[str]) -> dict[str, Any]:
    columns = [name for name in ("simd", "transferred") if heading[name]]
    match = _ROW.fullmatch(line)
    others = [] if match is None else match["others"].replace(" ", "").split(",")[:-1]
    if match is None or len(others) != len(columns):
        raise BadProfile(
            f"{path}: line {number}: {quoted(line.strip())} is not a kernel with calls and times in ns between commas"
        )
    name = match["name"].removeprefix('"').removesuffix('"')
    row = {"duration_ns": float(match["time_ns"]), **_command(name, int(match["calls"]))}
    if "transferred" in columns and int(others[-1]):
        row["bytes"] = float(others[-1])
    return row


def _command(name: str, calls: int) -> dict[str, Any]:
    """Return what the name of a kernel or command says of a number of its calls."""
    size = _BYTES.search(name) if _COPY.match(name) else None
    shape = _SHAPE.search(name)
    return {
        "category": _category(name),
        "kernel": name if shape is None else name[: shape.start()],
        "calls": calls,
        "bytes": None if size is None else float(size[1]) * calls,
        "grid": None if shape is None else shape[1].replace("; ", ","),
        "block": None if shape is None else shape[2].replace("; ", ","),
    }


def _category(name: str) -> str:
    if _COPY.match(name):
        return "memcpy"
    if _FILL.match(name):
        return "memset"
    if _WAITS.match(name):
        return "api"
    return "communication" if communicates(name) else "kernel"


TRACE_SIGN = re.compile(
    rb'"cat"\s*:\s*"gpu_op"|"(?:RANK \d+ )?(?:HOST|DEVICE)<'
    rb'|\A\s*\{ "traceEvents":\[\s*\{"ph": "\w", "tid": \d+, "pid": \d+, "name"'
)
"""Pattern of the categories and process names of these traces, and of the beginning of one with events of the host."""

_TILE = re.compile(r"Tile #(\d{1,4}): ")
_CALL = re.compile(r"(?:ze|zex|zes|cl)[A-Z]")
_LATEST_US = 4 * 10**15  # range of int64 nanoseconds
_TRACE_COLUMNS = (*_COLUMNS, "start_ns", "stream", "device", "thread", "launch_ns")
_LAUNCH = re.compile(r"(?:CL_)?Flow_H2D_(\d{1,20})_")


class _UnitraceArguments(msgspec.Struct, gc=False):
    id: Any = None  # text in events of a device


class _UnitraceEvent(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int = -1
    tid: int = -1
    ts: Decimal = Decimal(-1)
    dur: Decimal = Decimal(-1)
    args: _UnitraceArguments | None = None


_EVENTS = msgspec.json.Decoder(list[_UnitraceEvent])


class UnitraceTrace:
    """Reader of these traces. `device` and `stream` count processes and threads in the order of their first events."""

    name = "unitrace-trace"
    maker = "Intel"
    description = "Chrome traces of Intel unitrace (--chrome-kernel-logging), as JSON"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a Chrome trace has the categories, processes or the beginning that unitrace writes."""
        return head.lstrip()[:1] == b"{" and b'"traceEvents"' in head and TRACE_SIGN.search(head) is not None

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel, command or call of the host, in file order, 16,384 at a time."""
        launches = _launches(path) if columns is None or "launch_ns" in columns else {}
        yield from batches_of(_trace_rows(path, launches), _TRACE_COLUMNS, columns)


def _launches(path: Path) -> dict[str, int]:
    """Return the start in ns of the call that launched each kernel, by the id of the kernel."""
    launches = {}
    for piece in JsonArray(path, "traceEvents", _EVENTS.decode).pieces():
        for event in piece.decoded:
            flow = _LAUNCH.match(event.cat) if event.ph == "s" else None
            if flow is not None and _is_time(event.ts):
                launches[flow[1]] = int(event.ts * 1000)
    return launches


def _is_time(time_us: Decimal) -> bool:
    return time_us.is_finite() and 0 <= time_us < _LATEST_US


def _trace_rows(path: Path, launches: dict[str, int]) -> Iterator[dict[str, Any]]:
    devices: dict[tuple[int, int], int] = {}  # by process and tile
    streams: dict[tuple[int, int], int] = {}  # by process and thread
    has_rows = False
    for piece in JsonArray(path, "traceEvents", _EVENTS.decode).pieces():
        for event in piece.decoded:
            if event.ph != "X" or event.cat not in ("gpu_op", "cpu_op"):
                continue
            has_rows = True
            if not (_is_time(event.ts) and _is_time(event.dur)):
                raise BadProfile(f"{path}: event {quoted(event.name)} has no start and duration in us")
            times = {"start_ns": int(event.ts * 1000), "duration_ns": float(event.dur * 1000)}
            if event.cat == "cpu_op":
                category = "api" if _CALL.match(event.name) else "cpu"
                thread = event.tid if 0 <= event.tid < 2**63 else None
                yield {**times, "category": category, "kernel": event.name, "calls": 1, "thread": thread}
                continue
            tile = _TILE.match(event.name)
            device = devices.setdefault((event.pid, int(tile[1]) if tile else 0), len(devices))
            stream = streams.setdefault((event.pid, event.tid), len(streams))
            name = event.name if tile is None else event.name[tile.end() :]
            launch_ns = launches.get(str(event.args.id)) if event.args is not None else None
            yield {**times, **_command(name, 1), "device": device, "stream": stream, "launch_ns": launch_ns}
    if not has_rows:
        raise BadProfile(f"{path}: the trace has no kernel or call: did the program run one before it ended?")

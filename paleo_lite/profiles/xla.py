"""Traces of JAX and TensorFlow: the Chrome trace (``*.trace.json.gz``) that their profilers write beside an XSpace.

As XProf's documentation ("Trace viewer") has it: a process per device, ``/device:GPU:0``, whose threads named
``Stream #13(Compute)`` are what ran; its other lines (steps, modules, name scopes) show the same time again. A TPU has
no streams: there the line ``XLA Ops`` is what ran. What the host did is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..errors import BadProfile
from .json_stream import JsonArray
from .lines import gpu_category
from .table import batches_of

_DEVICE = re.compile(r"/device:\w+:(\d{1,6})")
_STREAM = re.compile(r"Stream #(\d{1,18})")
SIGN = re.compile(rb'"name"\s*:\s*"/(?:device|host):')
"""What its processes are called."""

_EXTENT = re.compile(r"\b(grid|block):([\d,]{1,40})")
_SIZE = re.compile(r"\bsize:(\d{1,15})\b")
_LATEST_US = 4e15  # what int64 nanoseconds hold
_COLUMNS = (
    "category", "kernel", "op", "layer", "start_ns", "duration_ns", "calls", "bytes", "grid", "block", "stream",
    "device",
)  # fmt: skip


class _Args(msgspec.Struct, gc=False):
    name: str | None = None
    hlo_op: str | None = None
    tf_op: str | None = None
    kernel_details: str = ""
    memcpy_details: str = ""


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int = -1
    tid: int = -1
    ts: float = -1.0
    dur: float = -1.0
    args: _Args | None = None


_EVENTS = msgspec.json.Decoder(list[_Event])


class XlaTrace:
    """The reader; see `table.Reader`. `op` is the operation of XLA's program, `layer` the framework's path to it."""

    name = "xla-trace"
    what = "Chrome traces of JAX and TensorFlow (.trace.json.gz)"

    def recognises(self, path: Path, head: bytes) -> bool:
        return head.lstrip()[:1] == b"{" and b'"traceEvents"' in head and SIGN.search(head) is not None

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """The kernels and copies in the order of the file, 16,384 at a time."""
        yield from batches_of(_rows(path), _COLUMNS, columns)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    devices: dict[int, int] = {}
    lines: dict[tuple[int, int], str] = {}
    for piece in JsonArray(path, "traceEvents", _EVENTS.decode).pieces():
        for event in piece.decoded:
            if event.ph == "M" and event.args is not None and event.args.name:  # what a process or thread is called
                if event.name == "process_name" and (told := _DEVICE.match(event.args.name)):
                    devices[event.pid] = int(told[1])
                elif event.name == "thread_name":
                    lines[event.pid, event.tid] = event.args.name
            elif event.ph == "X" and event.pid in devices and (stream := _stream(event, lines)) is not None:
                yield _row(path, event, devices[event.pid], stream)


def _stream(event: _Event, lines: dict[tuple[int, int], str]) -> int | None:
    """The stream that an event ran on, 0 on a device without streams; None where it only shows others again."""
    line = lines.get((event.pid, event.tid), "")
    told = _STREAM.match(line)
    if told is not None:
        return int(told[1])
    if line != "XLA Ops" or any(pid == event.pid and _STREAM.match(other) for (pid, _), other in lines.items()):
        return None
    return 0


def _row(path: Path, event: _Event, device: int, stream: int) -> dict[str, Any]:
    if not (0 <= event.ts < _LATEST_US and 0 <= event.dur < _LATEST_US):
        raise BadProfile(f"{path}: an event begins at {event.ts:g} and lasts {event.dur:g} us")
    args = event.args or _Args()
    copied = event.name.lower().startswith(("memcpy", "memset"))
    size = _SIZE.search(args.memcpy_details[:1000])
    return {
        "category": event.name[:6].lower() if copied else gpu_category(event.name),
        "kernel": event.name,
        "op": args.hlo_op,
        "layer": args.tf_op,
        "start_ns": round(event.ts * 1000),
        "duration_ns": round(event.dur * 1000, 3),
        "calls": 1,
        "bytes": int(size[1]) if size else None,
        **dict(_EXTENT.findall(args.kernel_details[:1000])),
        "stream": stream,
        "device": device,
    }

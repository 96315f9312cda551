"""Reader of the Chrome traces of JAX and TensorFlow (``*.trace.json.gz``, written together with an XSpace).

According to XProf's documentation ("Trace viewer") there is a process per device, ``/device:GPU:0``. Its threads with
names like ``Stream #13(Compute)`` contain the executed kernels; its other threads (steps, modules, name scopes) repeat
the same time. A TPU has no streams; the thread ``XLA Ops`` contains its operations. Host events are skipped.
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
"""Pattern of the process names in these traces."""

_EXTENT = re.compile(r"\b(grid|block):([\d,]{1,40})")
_SIZE = re.compile(r"\bsize:(\d{1,15})\b")
_LATEST_US = 4e15  # range of int64 nanoseconds
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
    """Reader of this format. `op` is the operation in XLA's program, `layer` its path in the framework."""

    name = "xla-trace"
    description = "Chrome traces of JAX and TensorFlow (.trace.json.gz)"

    def recognises(self, path: Path, head: bytes) -> bool:
        return head.lstrip()[:1] == b"{" and b'"traceEvents"' in head and SIGN.search(head) is not None

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield kernels and copies in file order, 16,384 at a time."""
        yield from batches_of(_rows(path), _COLUMNS, columns)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    devices: dict[int, int] = {}
    lines: dict[tuple[int, int], str] = {}
    for piece in JsonArray(path, "traceEvents", _EVENTS.decode).pieces():
        for event in piece.decoded:
            if event.ph == "M" and event.args is not None and event.args.name:  # name of a process or thread
                device = _DEVICE.match(event.args.name)
                if event.name == "process_name" and device:
                    devices[event.pid] = int(device[1])
                elif event.name == "thread_name":
                    lines[event.pid, event.tid] = event.args.name
            elif event.ph == "X" and event.pid in devices:
                stream = _stream(event, lines)
                if stream is not None:
                    yield _row(path, event, devices[event.pid], stream)


def _stream(event: _Event, lines: dict[tuple[int, int], str]) -> int | None:
    """Return the stream of an event, 0 on a device without streams; None if it repeats other events."""
    line = lines.get((event.pid, event.tid), "")
    numbered = _STREAM.match(line)
    if numbered is not None:
        return int(numbered[1])
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

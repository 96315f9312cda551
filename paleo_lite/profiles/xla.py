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
    lines = _Lines()
    for piece in JsonArray(path, "traceEvents", _EVENTS.decode).pieces():
        for event in piece.decoded:
            if event.ph == "M" and event.args is not None and event.args.name:  # name of a process or thread
                device = _DEVICE.match(event.args.name)
                if event.name == "process_name" and device:
                    devices[event.pid] = int(device[1])
                elif event.name == "thread_name":
                    lines.add(event)
            elif event.ph == "X" and event.pid in devices:
                stream = lines.stream(event)
                if stream is not None:
                    yield _row(path, event, devices[event.pid], stream)


class _Lines:
    """The threads of the trace that hold operations, by process and thread."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, int], int] = {}
        self._operations: set[tuple[int, int]] = set()
        self._numbered: dict[int, int] = {}  # threads with a stream, by process

    def add(self, named: _Event) -> None:
        """Add the event that names a thread; a later name replaces an earlier one."""
        name = "" if named.args is None else named.args.name or ""
        line = named.pid, named.tid
        if self._streams.pop(line, None) is not None:
            self._numbered[named.pid] -= 1
        self._operations.discard(line)
        numbered = _STREAM.match(name)
        if numbered is not None:
            self._streams[line] = int(numbered[1])
            self._numbered[named.pid] = self._numbered.get(named.pid, 0) + 1
        elif name == "XLA Ops":
            self._operations.add(line)

    def stream(self, event: _Event) -> int | None:
        """Return the stream of an event, 0 on a device without streams; None if it repeats other events."""
        line = event.pid, event.tid
        if line in self._streams:
            return self._streams[line]
        return 0 if line in self._operations and not self._numbered.get(event.pid) else None


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

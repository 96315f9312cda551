"""Streaming reader of rocprofv3's JSON (``rocprofv3 --kernel-trace --memory-copy-trace --output-format json``).

The root object has the key ``rocprofiler-sdk-tool`` with a list of processes. Each process contains its agents, its
kernel symbols and then ``buffer_records`` with the arrays ``kernel_dispatch`` and ``memory_copy`` (ROCprofiler-SDK,
``source/lib/output/generateJSON.cpp``). Only these arrays are decoded, piece by piece; API calls, markers, counters and
samples are skipped. Times are in ns. A work group is read as a block, and the grid is converted from work items to
blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..errors import BadProfile
from .json_stream import NestedArrays
from .lines import LONGEST_LINE, gpu_category
from .rocprof import CLONE, LONGEST_NS
from .table import batches_of

_HEAD = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_END = re.compile(rb"\}\s*\]\s*\}\s*\Z")
_COPY_KINDS = ("", "HOST_TO_HOST", "HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE")
"""``rocprofiler_memory_copy_operation_t``."""

_KEYS = ("agents", "kernel_symbols", "kernel_dispatch", "memory_copy")
_COLUMNS = (
    "category",
    "kernel",
    "start_ns",
    "duration_ns",
    "calls",
    "bytes",
    "grid",
    "block",
    "stream",
    "device",
    "thread",
)


class _Handle(msgspec.Struct, gc=False):
    handle: int = 0


class _Extent(msgspec.Struct, gc=False):
    x: int = 0
    y: int = 0
    z: int = 0


class _DispatchInfo(msgspec.Struct, gc=False):
    kernel_id: int = -1
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    workgroup_size: _Extent = msgspec.field(default_factory=_Extent)
    grid_size: _Extent = msgspec.field(default_factory=_Extent)


class _Record(msgspec.Struct, gc=False):
    """An element of any of the arrays; fields of other arrays have their defaults."""

    id: Any = None  # an object with a handle in agents
    node_id: int = -1
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    kernel_name: str = ""
    start_timestamp: int = -1
    end_timestamp: int = -1
    thread_id: int | None = None
    dispatch_info: _DispatchInfo | None = None
    operation: Any = None
    bytes: int | None = None
    dst_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    stream_id: _Handle | None = None


_RECORDS = msgspec.json.Decoder(list[_Record])


class RocprofJson:
    """Reader of rocprofv3's JSON, also as gzip."""

    name = "rocprof-json"
    maker = "AMD"
    description = "rocprofv3 JSON"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether the first key of the document is ``rocprofiler-sdk-tool``."""
        return _HEAD.match(head) is not None

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per kernel or copy, in file order, 16,384 at a time."""
        yield from batches_of(_rows(path), _COLUMNS, columns)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    node_of_agent: dict[int, int] = {}
    kernel_names: dict[int, str] = {}
    previous_key = ""
    for key, piece in NestedArrays(path, _KEYS, _RECORDS.decode, _END).arrays():
        if key == "agents" and previous_key != "agents":  # the next process starts, with its own ids
            node_of_agent, kernel_names = {}, {}
        previous_key = key
        for record in piece.decoded:
            if key == "agents":
                handle = record.id.get("handle") if isinstance(record.id, dict) else None
                if isinstance(handle, int):
                    node_of_agent[handle] = record.node_id
            elif key == "kernel_symbols":
                name = record.formatted_kernel_name or record.kernel_name
                kernel_names[record.kernel_id] = CLONE.sub("", name[:LONGEST_LINE])
            elif key == "kernel_dispatch":
                yield _kernel_row(path, record, kernel_names, node_of_agent)
            else:
                yield _copy_row(path, record, node_of_agent)


def _kernel_row(
    path: Path, record: _Record, kernel_names: dict[int, str], node_of_agent: dict[int, int]
) -> dict[str, Any]:
    info = record.dispatch_info
    if info is None or info.kernel_id not in kernel_names:
        kernel_id = None if info is None else info.kernel_id
        raise BadProfile(f"{path}: a kernel dispatch has the kernel_id {kernel_id}, which is not in kernel_symbols")
    name = kernel_names[info.kernel_id]
    group = (info.workgroup_size.x, info.workgroup_size.y, info.workgroup_size.z)
    items = (info.grid_size.x, info.grid_size.y, info.grid_size.z)
    row = _common_columns(path, record)
    row["category"] = gpu_category(name)
    row["kernel"] = name
    row["device"] = _in_int64(node_of_agent.get(info.agent_id.handle))
    if record.stream_id is None:  # versions before 2025 record queues only
        row["stream"] = _in_int64(info.queue_id.handle)
    if min(group) > 0 and min(items) > 0:
        row["block"] = ",".join(map(str, group))
        row["grid"] = ",".join(str(-(-count // size)) for count, size in zip(items, group))
    return row


def _copy_row(path: Path, record: _Record, node_of_agent: dict[int, int]) -> dict[str, Any]:
    is_known = isinstance(record.operation, int) and 0 < record.operation < len(_COPY_KINDS)
    kind = _COPY_KINDS[record.operation] if is_known else "unknown"
    row = _common_columns(path, record)
    row["category"] = "memcpy"
    row["kernel"] = f"[memcpy {kind}]"
    row["device"] = _in_int64(node_of_agent.get(record.dst_agent_id.handle))
    if record.bytes is not None and 0 <= record.bytes < LONGEST_NS:
        row["bytes"] = record.bytes
    return row


def _common_columns(path: Path, record: _Record) -> dict[str, Any]:
    start, end = record.start_timestamp, record.end_timestamp
    if start < 0 or not 0 <= end - start < LONGEST_NS or start >= 2**63:
        raise BadProfile(f"{path}: a record begins at {start} and ends at {end} ns")
    row: dict[str, Any] = {"start_ns": start, "duration_ns": end - start, "calls": 1}
    row["thread"] = _in_int64(record.thread_id)
    if record.stream_id is not None:
        row["stream"] = _in_int64(record.stream_id.handle)
    return row


def _in_int64(number: int | None) -> int | None:
    """Return an id, or None if it is absent or does not fit into 64 bits."""
    return number if number is not None and -(2**63) <= number < 2**63 else None

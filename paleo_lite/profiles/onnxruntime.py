"""Streaming reader of the profiles of ONNX Runtime (``SessionOptions.enable_profiling``), as JSON.

The root is a list of events in the form of Chrome's traces (``core/common/profiler.cc``). A ``Node`` event whose name
ends with ``_kernel_time`` is the call of an operator by an execution provider, with the shapes of its tensors and their
bytes. Of the CPU's provider the call is the computation; of others it is the launch on the host, and the kernels are
``Kernel`` events (builds with CUPTI or roctracer), which follow the node that launched them. A run ends with the event
``model_run``, after the nodes of the run. Times are in us.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from ..errors import BadProfile
from ..text import make_printable
from .json_stream import JsonArray
from .lines import gpu_category, quoted
from .table import LATEST_NS, batches_of

HEAD = re.compile(rb'(?:\xef\xbb\xbf)?\s*\[\s*\{\s*"cat"\s*:\s*"(?:Session|Node)"\s*,')
"""Pattern of the beginning of these profiles."""

_CALL = "_kernel_time"
_CPU_PROVIDERS = ("CPUExecutionProvider", "DnnlExecutionProvider", "XnnpackExecutionProvider", "ACLExecutionProvider")
"""Execution providers that compute in the call itself, on the processor."""
_LATEST_US = LATEST_NS // 1000

_WEIGHT_OF = {
    "Conv": 1, "FusedConv": 1, "NhwcFusedConv": 1, "ConvInteger": 1, "QLinearConv": 3,
}  # fmt: skip
"""Convolutions, with the index of their weight among the inputs."""
_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulInteger", "QLinearMatMul", "DynamicQuantizeMatMul")
"""Matrix products."""

_COLUMNS = (
    "category", "kernel", "op", "layer", "start_ns", "duration_ns", "calls", "flops", "bytes", "grid", "block",
    "stream", "thread", "params", "step",
)  # fmt: skip


class _NodeArgs(msgspec.Struct, gc=False):
    op_name: str = ""
    provider: str = ""
    input_type_shape: Any = None
    output_type_shape: Any = None
    parameter_size: str = "0"
    activation_size: str = "0"
    output_size: str = "0"
    stream: str | None = None
    grid_x: str | None = None
    grid_y: str | None = None
    grid_z: str | None = None
    block_x: str | None = None
    block_y: str | None = None
    block_z: str | None = None


class _SessionEvent(msgspec.Struct, gc=False):
    cat: str = ""
    ph: str = ""
    name: str = ""
    tid: int = -1
    ts: int = -1
    dur: int = -1
    args: _NodeArgs | None = None


_EVENTS = msgspec.json.Decoder(list[_SessionEvent])


class OnnxRuntimeJson:
    """Reader of this format. `step` is the run, `layer` the node, and `bytes` those of its inputs and outputs."""

    name = "onnxruntime"
    description = "ONNX Runtime's profile as JSON (enable_profiling)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether the document is a list that begins with an event of a session or a node."""
        return HEAD.match(head) is not None

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield one row per call of an operator or kernel, in file order, 16,384 at a time."""
        yield from batches_of(_rows(path), _COLUMNS, columns)

    def on_processor(self, path: Path) -> str:
        """Return the providers that computed all kernels on the processor; empty if a GPU's kernels are recorded."""
        called = _find_providers(path)
        return "" if called.has_gpu_kernels else ", ".join(called.of_processor)

    def doubts(self, path: Path) -> list[str]:
        """Return what providers of several devices mean for the rows."""
        called = _find_providers(path)
        doubts = []
        if called.has_gpu_kernels and called.of_processor:
            doubts.append(
                f"calls of {', '.join(called.of_processor)} ran on the processor and are among the kernels of the GPU"
            )
        if called.others and not called.has_gpu_kernels:
            doubts.append(
                f"the kernels of {', '.join(called.others)} are not recorded, only their launches: builds of ONNX "
                "Runtime with CUPTI or roctracer record them"
            )
        return doubts


class _Providers(NamedTuple):
    """The execution providers that called operators, in the order of their first calls."""

    of_processor: tuple[str, ...]
    others: tuple[str, ...]
    has_gpu_kernels: bool  # whether the file has kernels of a GPU besides calls


def _find_providers(path: Path) -> _Providers:
    names: dict[str, None] = {}
    has_gpu_kernels = False
    for piece in JsonArray(path, "traceEvents", _EVENTS.decode).pieces():
        for event in piece.decoded:
            has_gpu_kernels = has_gpu_kernels or event.cat == "Kernel"
            if event.cat == "Node" and event.args is not None and event.args.provider:
                names[make_printable(event.args.provider)] = None
    on_processor = tuple(name for name in names if name in _CPU_PROVIDERS)
    return _Providers(on_processor, tuple(name for name in names if name not in _CPU_PROVIDERS), has_gpu_kernels)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    runs: dict[int, int] = {}  # runs that ended, by the thread that called them
    node: _SessionEvent | None = None  # the last one
    has_rows = False
    for piece in JsonArray(path, "traceEvents", _EVENTS.decode).pieces():
        for event in piece.decoded:
            if event.name == "model_run":
                runs[event.tid] = runs.get(event.tid, 0) + 1
            if event.ph != "X" or event.args is None:
                continue
            if event.cat == "Node" and event.name.endswith(_CALL):
                node, has_rows = event, True
                yield _node_row(path, event, event.args, runs.get(event.tid, 0))
            elif event.cat == "Kernel":
                has_rows = True
                yield _kernel_row(path, event, event.args, node)
    if not has_rows:
        raise BadProfile(f"{path}: no call of an operator: did the session run while it was profiled?")


def _node_row(path: Path, event: _SessionEvent, args: _NodeArgs, run: int) -> dict[str, Any]:
    inputs, outputs = _shapes(args.input_type_shape), _shapes(args.output_type_shape)
    stated_sizes = (args.parameter_size, args.activation_size, args.output_size)
    sizes = None if _has_packed_weight(args.op_name, inputs) else [_whole(path, event, size) for size in stated_sizes]
    is_copy = args.op_name.startswith("Memcpy")
    category = "cpu"
    if args.provider in _CPU_PROVIDERS:
        category = "memcpy" if is_copy else "kernel"
    name = event.name.removesuffix(_CALL)
    return {
        **_times(path, event),
        "category": category,
        "kernel": args.op_name or name,
        "op": args.op_name or None,
        "layer": name,
        "calls": 1,
        "flops": _flops(args.op_name, inputs, outputs),
        "bytes": None if sizes is None or not any(sizes) else float(sum(sizes)),
        "thread": event.tid if 0 <= event.tid < 2**63 else None,
        "params": _describe_operands(inputs, args.input_type_shape),
        "step": f"run {run}",
    }


def _kernel_row(path: Path, event: _SessionEvent, args: _NodeArgs, node: _SessionEvent | None) -> dict[str, Any]:
    launcher = None if node is None else node.args
    grid, block = (args.grid_x, args.grid_y, args.grid_z), (args.block_x, args.block_y, args.block_z)
    return {
        **_times(path, event),
        "category": "memcpy" if event.name.lower().startswith("memcpy") else gpu_category(event.name),
        "kernel": event.name,
        "op": (None if launcher is None else launcher.op_name) or None,
        "layer": None if node is None else node.name.removesuffix(_CALL),
        "calls": 1,
        "grid": ",".join(size for size in grid if size) or None,
        "block": ",".join(size for size in block if size) or None,
        "stream": int(args.stream) if args.stream and re.fullmatch(r"\d{1,18}", args.stream) else None,
    }


def _times(path: Path, event: _SessionEvent) -> dict[str, Any]:
    if not (0 <= event.ts < _LATEST_US and 0 <= event.dur < _LATEST_US):
        raise BadProfile(f"{path}: event {quoted(event.name)} has no start and duration in us")
    return {"start_ns": event.ts * 1000, "duration_ns": event.dur * 1e3}


def _has_packed_weight(operator: str, inputs: list[tuple[int, ...]]) -> bool:
    """Return whether the weight of a convolution or product is not among its inputs, whose bytes lack it then."""
    if operator in _PRODUCTS:
        return len(inputs) < 2 or len(inputs[1]) < 2
    index = _WEIGHT_OF.get(operator)
    return index is not None and (len(inputs) <= index or len(inputs[index]) != len(inputs[0]))


def _whole(path: Path, event: _SessionEvent, text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise BadProfile(f"{path}: event {quoted(event.name)} has the size {quoted(text)}, expected bytes")
    return int(text)


def _shapes(typed: Any) -> list[tuple[int, ...]]:
    """Return the shapes of tensors such as ``[{"float": [1, 3]}, {"int64": []}]``; none if one is not of sizes."""
    if not isinstance(typed, list):
        return []
    shapes = [next(iter(entry.values()), None) for entry in typed if isinstance(entry, dict)]
    is_size = all(
        isinstance(shape, list) and all(isinstance(size, int) and 0 <= size < 2**40 for size in shape)
        for shape in shapes
    )
    return [tuple(shape) for shape in shapes if isinstance(shape, list)] if is_size else []


def _describe_operands(shapes: list[tuple[int, ...]], typed: Any) -> str | None:
    """Return the shapes of the inputs and their types, as in ``1,3,64,64;32,3,3,3 float16;float16``; None without."""
    if not shapes:
        return None
    sizes = ";".join(",".join(map(str, shape)) for shape in shapes)
    types = ";".join(next(iter(entry)) for entry in typed if isinstance(entry, dict) and entry)
    return f"{sizes} {types}"


def _flops(operator: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]]) -> float | None:
    """Return the FLOPs of a convolution or matrix product, two per multiply-accumulate.

    Every number of the result of a convolution is a sum over the input channels of a group and the kernel, and every
    row of a product a sum over one dimension of its first operand, which may be transposed. None of other operators,
    and where the weight is not among the inputs: those of the CPU's provider are packed when the session starts.
    """
    if not outputs or not inputs:
        return None
    result = prod(outputs[0])
    index = _WEIGHT_OF.get(operator)
    if index is not None:
        weight = inputs[index] if len(inputs) > index else ()
        return 2.0 * result * prod(weight[1:]) if len(weight) == len(inputs[0]) else None
    if operator in _PRODUCTS and result and len(outputs[0]) >= 2:
        summed, rest = divmod(prod(inputs[0]), result // outputs[0][-1])
        return 2.0 * result * summed if not rest and summed in inputs[0] else None
    return None

"""Parsing of the arguments of operations in profiles: calls from PyTorch's traces, FLOPs and bytes from pyprof.

A trace contains for each ATen operator the shapes and types of its arguments, in the order of ATen's
``native_functions.yaml``. Internal names (``cudnn_convolution``, ``_softmax``, ``threshold_backward``) are mapped
to torch's names here; `traced_operators` counts the work. pyprof prints numbers and tuples, which are read with two
regular expressions. Nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from ..counting.kinds import KINDS, count_layer
from ..counting.layer import NO_COST, Layer, Op, PassCost, Shape
from ..errors import CountFailed
from ..units import PRECISION_BYTES


class CountedOperation(msgspec.Struct, frozen=True):
    """FLOPs and bytes of one operation; None if the text is not sufficient."""

    flops: float | None = None
    bytes: float | None = None
    precision: str | None = None  # precision of the operands of a matrix product, if the profile records it


UNKNOWN = CountedOperation()


# PyTorch's traces -----------------------------------------------------------------------------------------------------

MAX_PARAMS_LENGTH = 2**20
"""Maximum characters of a text of shapes; optimizers list the tensors of all parameters."""

FLOAT_PRECISIONS = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16", "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2fnuz": "fp8",
}  # fmt: skip
"""Precision by the floating-point types in traces."""

INTEGER_BYTES = {
    "longint": 8, "long": 8, "int": 4, "short": 2, "shortint": 2, "char": 1, "signedchar": 1, "unsignedchar": 1,
    "bool": 1,
}  # fmt: skip
"""Bytes per element by the integer types in traces."""

ELEMENT_BYTES = {name: PRECISION_BYTES[precision] for name, precision in FLOAT_PRECISIONS.items()} | INTEGER_BYTES
"""Bytes per element by type."""

ATTENTION = re.compile(r"attention\w*")
CONVOLUTION = re.compile(r"conv(?:olution)?(?:[123]d|_|$)")
_LIBRARY = re.compile(
    r"^(?:cudnn|miopen|mkldnn|native|fused|mps)_(?=\w*norm|(?:adaptive_)?\w*pool|dropout|gelu|linear)"
)
_ALIASES = {"scaled_mm": "mm", "addmm_activation": "addmm", "to_copy": "clone"}
_BACKWARD = re.compile(r"_(?:dense_)?backward(?:_data|_input|_weight)?$|_jvp$")


class Call(NamedTuple):
    """An operator's arguments."""

    # Name in the records of kinds: without ``aten::``, library, and marks of private, in-place and backward
    # variants.
    name: str
    backward: bool
    shapes: tuple[Shape | None, ...]  # shape of each argument; None for arguments that are not tensors
    types: tuple[str, ...]
    numbers: tuple[str, ...]  # texts of the other arguments; empty if not recorded
    part: str = "backward_data"  # gradient computed by an operator for a single gradient

    @property
    def tensors(self) -> list[Shape]:
        """Shapes of the tensors, without scalars unless all are scalars."""
        known_shapes = [shape for shape in self.shapes if shape is not None]
        return [shape for shape in known_shapes if shape] or known_shapes

    def integer_lists(self) -> list[list[int]]:
        """Return the arguments that are lists of integers."""
        texts = [text[1:-1] for text in self.numbers if re.fullmatch(r"\[-?\d+(?:,-?\d+)*\]", text)]
        return [[int(number) for number in text.split(",")] for text in texts]

    def argument(self, index: int) -> str:
        """Return the text of an argument, or an empty string."""
        return self.numbers[index] if index < len(self.numbers) else ""

    def gradient_mask(self) -> list[bool]:
        """Return the requested gradients of a backward operator; all if not recorded."""
        flags = next(
            (t for t in reversed(self.numbers) if re.fullmatch(r"\[(?:True|False)(?:,(?:True|False))*\]", t)), ""
        )
        return [word == "True" for word in flags[1:-1].split(",")] if flags else [True, True, True]


def is_traced(params: str) -> bool:
    """Return whether a parameter text is from a PyTorch trace."""
    return params.startswith("[")


def shapes_in(params: str) -> list[Shape]:
    """Return the shapes of the tensor arguments."""
    call = read_call("", params)
    return [] if call is None else call.tensors


def is_convolution(operator: str | None) -> bool:
    """Return whether an operator is a convolution by its name."""
    return CONVOLUTION.search(operator or "") is not None


def read_call(operator: str, params: str) -> Call | None:
    """Parse the call of an operator; None if the text is not from a trace."""
    decoded = decode_arguments(params)
    if decoded is None:
        return None
    dims, types, numbers = decoded
    shapes: list[tuple[int, ...] | None] = []
    for index, shape in enumerate(dims):
        # An empty shape is a tensor without dimensions if it has an element type, and otherwise another argument.
        is_tensor = bool(shape) or (index < len(types) and types[index] in ELEMENT_BYTES)
        shapes.append(tuple(shape) if is_shape(shape) and is_tensor else None)
    name = operator.removeprefix("aten::").removeprefix("_foreach").strip("_")
    backward = _BACKWARD.search(name) is not None
    name = _BACKWARD.sub("", name)
    if not CONVOLUTION.search(name):
        name = _LIBRARY.sub("", name).removesuffix("_with_indices").removesuffix("_forward")
    part = "backward_weight" if operator.endswith("_weight") else "backward_data"
    return Call(_ALIASES.get(name, name), backward, tuple(shapes), types, numbers, part)


def decode_arguments(params: str) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]] | None:
    """Return dimensions, types and numbers of the arguments; None if the text is not from a trace."""
    if len(params) > MAX_PARAMS_LENGTH:
        return None
    try:
        lists = [msgspec.json.decode(text, type=list) for text in params.split(" ")]
    except msgspec.DecodeError:
        return None
    types = tuple(map(str, lists[1])) if len(lists) > 1 else ()
    numbers = tuple(map(str, lists[2])) if len(lists) > 2 else ()
    return lists[0], types, numbers


def is_shape(value: Any) -> bool:
    """Return whether a value is the shape of one tensor."""
    return isinstance(value, list) and all(isinstance(size, int) and 0 <= size < 2**40 for size in value)


def recorded_precision(params: str) -> str | None:
    """Return the precision of the first operand of a floating-point type that a profiler recorded; None without one."""
    if not is_traced(params):
        return parse_parameters(params).precision
    decoded = decode_arguments(params)
    if decoded is None:
        return None
    shapes, types, _ = decoded
    of_tensors = [kind for kind, shape in zip(types, shapes) if shape and kind in FLOAT_PRECISIONS]
    return FLOAT_PRECISIONS[of_tensors[0]] if of_tensors else None


# pyprof ---------------------------------------------------------------------------------------------------------------

_LONGEST_PRINTED = 4096  # characters; a longer text is not a list of shapes
_NUMBER = re.compile(r"\b([A-Za-z]\w*)=(\d{1,9})(?![\d.])")
_SHAPE = re.compile(r"\(((?:\d{1,9},? ?){1,8})\)")
_PRINTED_TYPES = (
    ("fp64", re.compile(r"\b(?:fp64|float64|double|DT_DOUBLE)\b", re.IGNORECASE)),
    ("fp32", re.compile(r"\b(?:fp32|float32|float|DT_FLOAT)\b", re.IGNORECASE)),
    ("fp16", re.compile(r"\b(?:fp16|float16|DT_FLOAT16)\b", re.IGNORECASE)),
    ("bf16", re.compile(r"\b(?:bf16|bfloat16|DT_BF16)\b", re.IGNORECASE)),
    ("fp8", re.compile(r"\b(?:float8\w*|hifloat8)\b", re.IGNORECASE)),
)
"""Precisions by the types that profilers print: pyprof (fp16, float16), ONNX Runtime (float, float16) and Huawei's
(FLOAT16, DT_FLOAT16, DT_BF16)."""

BUILDERS = {
    operation: (builder, kind.name)
    for kind in KINDS.values()
    for builder, operations in kind.pyprof.items()
    for operation in operations.split()
}
"""Builder (see `_layer_of`) and kind of the layer by pyprof's operation."""

_NAMED = {"conv": {"N", "C", "H", "W", "K", "P", "Q", "R", "S"}, "linear": {"M", "N", "K"}}
"""Named numbers that pyprof prints instead of tensors."""


def count_printed(
    op: str,  # PyTorch's name, such as `conv2d`
    params: str,  # parameter text of pyprof
    direction: str | None,  # `bprop` for the gradients; anything else is the forward pass of a training step
    kernels: Iterable[str] = (),
    # Output shape, if the parameters do not contain it (pooling, convolutions in traces before 2022); for the gradient
    # of a convolution, the shape of its weight.
    after: Shape | None = None,
) -> CountedOperation:
    """Count FLOPs and bytes of one operation in one direction, by the rules of `paleo_lite.counting.kinds`.

    If all of its kernels compute weight gradients, there was no input gradient (as in the first layer), and vice versa;
    otherwise the backward pass computes both. The result is `UNKNOWN` if there is no rule, or the shapes are missing or
    inconsistent.
    """
    shapes = parse_parameters(params)
    layer = _layer_of(op, shapes, after)
    if layer is None or shapes.precision is None:
        return UNKNOWN
    try:
        cost = count_layer(Op(layer, 1, [True], True, [True]))
    except CountFailed:
        return UNKNOWN
    if cost is None:
        return UNKNOWN
    passes: list[PassCost] = [cost.forward]
    if direction == "bprop":
        passes, names = [cost.backward_data, cost.backward_weight], [name.lower() for name in kernels]
        if names and all("wgrad" in name for name in names):
            passes = [cost.backward_weight]
        elif names and all("dgrad" in name for name in names):
            passes = [cost.backward_data]
    passes = [cost_of_pass for cost_of_pass in passes if cost_of_pass is not NO_COST]
    size = PRECISION_BYTES[shapes.precision]
    moved = float(sum((item.reads + item.writes) * size + item.index_bytes for item in passes))
    if BUILDERS[op][0] == "windows":  # pyprof does not print the window of a pooling: only its bytes are known
        return CountedOperation(None, moved)
    return CountedOperation(float(sum(item.flops for item in passes)), moved)


def _layer_of(op: str, shapes: PrintedParameters, after: Shape | None) -> Layer | None:
    """Build the layer of an operation; None if its parameters are missing or inconsistent."""
    builder, kind = BUILDERS.get(op, ("", ""))
    n, tensors = shapes.numbers, shapes.tensors
    if not builder or not (_NAMED[builder] <= set(n) if builder in _NAMED else tensors):
        return None
    before: Shape
    output: Shape
    weights: tuple[Shape, ...] = ()
    attributes = {}
    if builder == "conv":
        groups = n.get("g", 1)
        if groups < 1 or n["C"] % groups or n["K"] % groups:
            return None
        before, output = (n["N"], n["C"], n["H"], n["W"]), (n["N"], n["K"], n["P"], n["Q"])
        weights = ((n["K"], n["C"] // groups, n["R"], n["S"]),)
    elif builder == "linear":  # printed as M x K times K x N, with M output features and N samples
        before, output, weights = (n["N"], n["K"]), (n["N"], n["M"]), ((n["M"], n["K"]),)
    else:
        before = output = tensors[0]
    if builder == "norm":
        if len(before) < 2:
            return None
        weights = (before[1:2], before[1:2])
    elif builder in ("pool", "windows"):
        if after is None:
            return None
        # A shape with two sizes is the flattened output, as read by a linear layer.
        output = (*after, *(1,) * (len(before) - 2)) if len(after) == 2 else after
        if len(output) != len(before) or output[:2] != before[:2] or any(a > b for a, b in zip(output, before)):
            return None
        if builder == "windows":
            attributes["kernel"] = (1,) * (len(before) - 2)
    if any(size < 1 for shape in (before, output, *weights) for size in shape):
        return None
    return Layer("profiled", kind, (before,), (output,), weights, attributes=attributes)


def input_shape(op: str, params: str) -> Shape | None:
    """Return the shape of the first input of an operation: ``(N, C, H, W)`` or ``(N, features)``."""
    if is_traced(params):
        return next(iter(shapes_in(params)), None)
    shapes = parse_parameters(params)
    n = shapes.numbers
    if op == "conv2d" and {"N", "C", "H", "W"} <= set(n):
        return n["N"], n["C"], n["H"], n["W"]
    if op == "linear" and {"N", "K"} <= set(n):
        return n["N"], n["K"]
    return shapes.tensors[0] if shapes.tensors and op in BUILDERS else None


class PrintedParameters(msgspec.Struct, frozen=True):
    """Parsed parameter text of pyprof."""

    numbers: dict[str, int]  # ``N``, ``C``, ``H``, ``W``, ``K``, ... of convolutions and matrix products
    tensors: list[Shape]  # shapes of the tensors, ``T=[(32,64,56,56)]``
    precision: str | None  # precision name of paleo-lite; None for integers or if absent


def parse_parameters(text: str) -> PrintedParameters:
    """Read ``N=32,C=256,H=14,...,fp32,`` or ``T=[(32,1000),(32,)],['float32','int64']``, and nothing else."""
    if len(text) > _LONGEST_PRINTED:
        return PrintedParameters({}, [], None)
    types = {match.start(): precision for precision, pattern in _PRINTED_TYPES if (match := pattern.search(text))}
    precision = types[min(types)] if types else None  # the first type is that of the first operand
    tensors = [tuple(int(size) for size in re.findall(r"\d+", inside)) for inside in _SHAPE.findall(text)]
    return PrintedParameters({name: int(value) for name, value in _NUMBER.findall(text)}, tensors, precision)

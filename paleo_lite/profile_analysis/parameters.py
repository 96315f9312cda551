"""What profilers print of an operation's arguments: of PyTorch's traces to calls, of pyprof to FLOPs and bytes.

A trace tells of each operator of ATen the shapes and types of its arguments, in the order of ATen's
``native_functions.yaml``. Its own names for what torch calls otherwise (``cudnn_convolution``, ``_softmax``,
``threshold_backward``) are undone here; `traced` counts what it tells. pyprof prints numbers and tuples of numbers,
which two regular expressions take out of its text. All of it is data: nothing is evaluated.
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
    """What one operation takes; None where the text does not say enough.

    Attributes
    ----------
    precision : str or None
        Of the numbers that a product multiplies, where it is one and a PyTorch trace tells.
    """

    flops: float | None = None
    bytes: float | None = None
    precision: str | None = None


UNKNOWN = CountedOperation()


# PyTorch's traces -----------------------------------------------------------------------------------------------------

MAX_PARAMS_LENGTH = 2**20
"""Characters of a text of shapes that are looked at; optimizers name the tensors of all parameters."""

FLOAT_PRECISIONS = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16", "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2fnuz": "fp8",
}  # fmt: skip
"""Types of tensors of floating-point numbers, as traces spell them, and their precision."""

INTEGER_BYTES = {
    "longint": 8, "long": 8, "int": 4, "short": 2, "shortint": 2, "char": 1, "signedchar": 1, "unsignedchar": 1,
    "bool": 1,
}  # fmt: skip
"""Types of tensors of whole numbers, and the bytes of one."""

ELEMENT_BYTES = {name: PRECISION_BYTES[precision] for name, precision in FLOAT_PRECISIONS.items()} | INTEGER_BYTES
"""Bytes of a number of a type."""

ATTENTION = re.compile(r"attention\w*")
CONVOLUTION = re.compile(r"conv(?:olution)?(?:[123]d|_|$)")
_LIBRARY = re.compile(
    r"^(?:cudnn|miopen|mkldnn|native|fused|mps)_(?=\w*norm|(?:adaptive_)?\w*pool|dropout|gelu|linear)"
)
_ALIASES = {"scaled_mm": "mm", "addmm_activation": "addmm", "to_copy": "clone"}
_BACKWARD = re.compile(r"_(?:dense_)?backward(?:_data|_input|_weight)?$|_jvp$")


class Call(NamedTuple):
    """An operator's arguments.

    Attributes
    ----------
    name : str
        As the records of kinds have it: without ``aten::``, the library, and what makes it private, in place, backward.
    shapes : tuple of (shape or None)
        Of each argument; None of those that are no tensors.
    numbers : tuple of str
        Texts of those that are no tensors; empty where the trace does not say.
    part : str
        Which gradient an operator for a single one gives.
    """

    name: str
    backward: bool
    shapes: tuple[Shape | None, ...]
    types: tuple[str, ...]
    numbers: tuple[str, ...]
    part: str = "backward_data"

    @property
    def tensors(self) -> list[Shape]:
        """Shapes of the tensors; a tensor without dimensions is a number, unless there are no others."""
        known = [shape for shape in self.shapes if shape is not None]
        return [shape for shape in known if shape] or known

    def integer_lists(self) -> list[list[int]]:
        """Arguments that are lists of whole numbers, in their order."""
        texts = [text[1:-1] for text in self.numbers if re.fullmatch(r"\[-?\d+(?:,-?\d+)*\]", text)]
        return [[int(number) for number in text.split(",")] for text in texts]

    def argument(self, index: int) -> str:
        """The text of an argument, empty where there is none."""
        return self.numbers[index] if index < len(self.numbers) else ""

    def gradient_mask(self) -> list[bool]:
        """Which gradients a backward operator is to give: all where it does not say."""
        flags = next(
            (t for t in reversed(self.numbers) if re.fullmatch(r"\[(?:True|False)(?:,(?:True|False))*\]", t)), ""
        )
        return [word == "True" for word in flags[1:-1].split(",")] if flags else [True, True, True]


def is_traced(params: str) -> bool:
    """Whether a text of parameters is one of a PyTorch trace."""
    return params.startswith("[")


def shapes_in(params: str) -> list[Shape]:
    """The tensors that an operator is given, in the order of its arguments."""
    call = read_call("", params)
    return [] if call is None else call.tensors


def is_convolution(operator: str | None) -> bool:
    """Whether an operator is a convolution, by its name."""
    return CONVOLUTION.search(operator or "") is not None


def read_call(operator: str, params: str) -> Call | None:
    """An operator's call; None where the text is none of a trace."""
    decoded = decode_arguments(params)
    if decoded is None:
        return None
    dims, types, numbers = decoded
    shapes = tuple(
        tuple(shape) if is_shape(shape) and (shape or (index < len(types) and types[index] in ELEMENT_BYTES)) else None
        for index, shape in enumerate(dims)
    )
    name = operator.removeprefix("aten::").removeprefix("_foreach").strip("_")
    backward = _BACKWARD.search(name) is not None
    name = _BACKWARD.sub("", name)
    if not CONVOLUTION.search(name):
        name = _LIBRARY.sub("", name).removesuffix("_with_indices").removesuffix("_forward")
    part = "backward_weight" if operator.endswith("_weight") else "backward_data"
    return Call(_ALIASES.get(name, name), backward, shapes, types, numbers, part)


def decode_arguments(params: str) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]] | None:
    """Dimensions, types and numbers of the arguments; None where the text is none of a trace."""
    if len(params) > MAX_PARAMS_LENGTH:
        return None
    try:
        dims, *rest = (msgspec.json.decode(text, type=list) for text in params.split(" "))
    except msgspec.DecodeError:
        return None
    types, numbers = (tuple(map(str, texts)) for texts in [*rest, [], []][:2])
    return dims, types, numbers


def is_shape(value: Any) -> bool:
    """Whether it is the dimensions of one tensor."""
    return isinstance(value, list) and all(isinstance(size, int) and 0 <= size < 2**40 for size in value)


# pyprof ---------------------------------------------------------------------------------------------------------------

_LONGEST_PRINTED = 4096  # characters; a longer text is not a list of shapes
_NUMBER = re.compile(r"\b([A-Za-z]\w*)=(\d{1,9})(?![\d.])")
_SHAPE = re.compile(r"\(((?:\d{1,9},? ?){1,8})\)")
_PRECISION = re.compile(r"\b(?:fp|float)(16|32|64)\b|\b(bf16|bfloat16)\b")

BUILDERS = {
    operation: (builder, kind.name)
    for kind in KINDS.values()
    for builder, operations in kind.pyprof.items()
    for operation in operations.split()
}
"""How an operation whose parameters pyprof prints becomes a layer (see `_layer_of`), and of which kind."""

_NAMED = {"conv": {"N", "C", "H", "W", "K", "P", "Q", "R", "S"}, "linear": {"M", "N", "K"}}
"""The numbers that pyprof prints of these instead of tensors."""


def count_printed(
    op: str, params: str, direction: str | None, kernels: Iterable[str] = (), after: Shape | None = None
) -> CountedOperation:
    """FLOPs and bytes of one operation in one direction, by the rules of `paleo_lite.counting.kinds`.

    Parameters
    ----------
    op : str
        PyTorch's name of it, ``conv2d``.
    params : str
        As pyprof prints it.
    direction : str or None
        ``bprop`` for the gradients; anything else is the forward pass of a training step.
    kernels : iterable of str
        The kernels that did it. Where all of them compute weight gradients, there was no gradient of the input (the
        first layer has none), and the reverse; otherwise backward is both.
    after : shape, optional
        What the operation gives, for those whose parameters do not say (pooling, convolutions of traces before 2022);
        of a convolution's gradient, the shape of its weight.

    Returns
    -------
    CountedOperation
        `UNKNOWN` where there is no rule, or the shapes are not given or do not fit.
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
    passes = [one for one in passes if one is not NO_COST]
    size = PRECISION_BYTES[shapes.precision]
    moved = float(sum((one.reads + one.writes) * size + one.index_bytes for one in passes))
    # The window of a pooling is not among pyprof's parameters, so that only its bytes are known.
    return CountedOperation(None if BUILDERS[op][0] == "windows" else float(sum(one.flops for one in passes)), moved)


def _layer_of(op: str, shapes: PrintedParameters, after: Shape | None) -> Layer | None:
    """The layer that an operation is; None where its parameters do not say, or do not fit each other."""
    builder, kind = BUILDERS.get(op, ("", ""))
    n, tensors = shapes.numbers, shapes.tensors
    if not builder or not (_NAMED[builder] <= set(n) if builder in _NAMED else tensors):
        return None
    before: Shape
    given: Shape
    weights: tuple[Shape, ...] = ()
    attributes = {}
    if builder == "conv":
        groups = n.get("g", 1)
        if groups < 1 or n["C"] % groups or n["K"] % groups:
            return None
        before, given = (n["N"], n["C"], n["H"], n["W"]), (n["N"], n["K"], n["P"], n["Q"])
        weights = ((n["K"], n["C"] // groups, n["R"], n["S"]),)
    elif builder == "linear":  # printed as M x K times K x N, with M features given for N samples
        before, given, weights = (n["N"], n["K"]), (n["N"], n["M"]), ((n["M"], n["K"]),)
    else:
        before = given = tensors[0]
    if builder == "norm":
        if len(before) < 2:
            return None
        weights = (before[1:2], before[1:2])
    elif builder in ("pool", "windows"):
        if after is None:
            return None
        # Two sizes of more are flattened: what a linear layer reads.
        given = (*after, *(1,) * (len(before) - 2)) if len(after) == 2 else after
        if len(given) != len(before) or given[:2] != before[:2] or any(a > b for a, b in zip(given, before)):
            return None
        if builder == "windows":
            attributes["kernel"] = (1,) * (len(before) - 2)
    if any(size < 1 for shape in (before, given, *weights) for size in shape):
        return None
    return Layer("profiled", kind, (before,), (given,), weights, attributes=attributes)


def input_shape(op: str, params: str) -> Shape | None:
    """The tensor that an operation reads first, which the one before it gave: ``(N, C, H, W)`` or ``(N, features)``."""
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
    """What is read of a text of parameters.

    Attributes
    ----------
    numbers : dict of str to int
        ``N``, ``C``, ``H``, ``W``, ``K``, ... of convolutions and matrix products.
    tensors : list of shapes
        Of the tensors, ``T=[(32,64,56,56)]``.
    precision : str or None
        One of paleo-lite's, None where it is an integer or not said.
    """

    numbers: dict[str, int]
    tensors: list[Shape]
    precision: str | None


def parse_parameters(text: str) -> PrintedParameters:
    """Read ``N=32,C=256,H=14,...,fp32,`` or ``T=[(32,1000),(32,)],['float32','int64']``, and nothing else."""
    if len(text) > _LONGEST_PRINTED:
        return PrintedParameters({}, [], None)
    said = _PRECISION.search(text)
    precision = None
    if said:
        precision = "bf16" if said.group(2) else f"fp{said.group(1)}"
    tensors = [tuple(int(size) for size in re.findall(r"\d+", inside)) for inside in _SHAPE.findall(text)]
    return PrintedParameters({name: int(value) for name, value in _NUMBER.findall(text)}, tensors, precision)

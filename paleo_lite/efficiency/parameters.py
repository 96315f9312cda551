"""From the shapes that profilers print to FLOPs and bytes, by the counting rules that layers are counted with.

The text is data: two regular expressions take numbers and tuples of numbers out of it, nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from ..counting.kinds import KINDS, count_layer
from ..counting.layer import NOTHING, Cost, Layer, Op, PassCost, Shape
from ..errors import CountFailed
from ..units import element_bytes
from .traced import count_traced
from .traced_call import is_traced, shapes_in

_LONGEST = 4096  # characters; a longer text is not a list of shapes
_NUMBER = re.compile(r"\b([A-Za-z]\w*)=(\d{1,9})(?![\d.])")
_SHAPE = re.compile(r"\(((?:\d{1,9},? ?){1,8})\)")
_PRECISION = re.compile(r"\b(?:fp|float)(16|32|64)\b|\b(bf16|bfloat16)\b")


class CountedOperation(msgspec.Struct, frozen=True):
    """What one operation takes; None where the text does not say enough.

    Attributes
    ----------
    precision : str or None
        Of the numbers that a product multiplies, where the text is of a PyTorch trace.
    """

    flops: float | None = None
    bytes: float | None = None
    precision: str | None = None


UNKNOWN = CountedOperation()


class Shapes(msgspec.Struct, frozen=True):
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


def parse_parameters(text: str) -> Shapes:
    """Read ``N=32,C=256,H=14,...,fp32,`` or ``T=[(32,1000),(32,)],['float32','int64']``, and nothing else."""
    if len(text) > _LONGEST:
        return Shapes({}, [], None)
    said = _PRECISION.search(text)
    precision = None
    if said:
        precision = "bf16" if said.group(2) else f"fp{said.group(1)}"
    tensors = [tuple(int(size) for size in re.findall(r"\d+", inside)) for inside in _SHAPE.findall(text)]
    return Shapes({name: int(value) for name, value in _NUMBER.findall(text)}, tensors, precision)


def count_operation(
    op: str, params: str, direction: str | None, kernels: Iterable[str] = (), after: Shape | None = None
) -> CountedOperation:
    """FLOPs and bytes of one operation in one direction, by the rules of `paleo_lite.counting.kinds`.

    Parameters
    ----------
    op : str
        PyTorch's name of it, ``conv2d``.
    params : str
        As pyprof prints it, or as a PyTorch trace has it (`traced`), whose operators name their direction.
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
    if is_traced(params):
        return CountedOperation(*count_traced(op, params, after))
    shapes = parse_parameters(params)
    builder = BUILDERS.get(op)
    if builder is None or shapes.precision is None:
        return UNKNOWN
    layer = builder(shapes, after)
    if layer is None:
        return UNKNOWN
    many = len(layer.inputs)
    try:
        cost = count_layer(Op(layer, 1, [True] * many, True, [True] * many))
    except CountFailed:
        return UNKNOWN
    if cost is None:
        return UNKNOWN
    flops, moved = _of_direction(cost, direction, list(kernels), element_bytes(shapes.precision))
    # The window of a pooling is not among pyprof's parameters, so that only its bytes are known.
    return CountedOperation(None if op in _WINDOWED else flops, moved)


def output_shape(op: str, params: str) -> Shape | None:
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


def _of_direction(cost: Cost, direction: str | None, kernels: list[str], size: int) -> tuple[float, float]:
    passes: list[PassCost] = [cost.forward]
    if direction == "bprop":
        passes = [cost.backward_data, cost.backward_weight]
        if kernels and all("wgrad" in name.lower() for name in kernels):
            passes = [cost.backward_weight]
        elif kernels and all("dgrad" in name.lower() for name in kernels):
            passes = [cost.backward_data]
    passes = [one for one in passes if one is not NOTHING]
    flops = sum(one.flops for one in passes)
    return float(flops), float(sum((one.reads + one.writes) * size + one.index_bytes for one in passes))


def _convolution(kind: str, shapes: Shapes, _: Shape | None) -> Layer | None:
    n = shapes.numbers
    if not {"N", "C", "H", "W", "K", "P", "Q", "R", "S"} <= set(n):
        return None
    groups = n.get("g", 1)
    if groups < 1 or n["C"] % groups or n["K"] % groups:
        return None
    weight = (n["K"], n["C"] // groups, n["R"], n["S"])
    return _layer(kind, (n["N"], n["C"], n["H"], n["W"]), (n["N"], n["K"], n["P"], n["Q"]), (weight,))


def _linear(kind: str, shapes: Shapes, _: Shape | None) -> Layer | None:
    n = shapes.numbers  # pyprof prints the product as M x K times K x N, with M features given for N samples
    if not {"M", "N", "K"} <= set(n):
        return None
    return _layer(kind, (n["N"], n["K"]), (n["N"], n["M"]), ((n["M"], n["K"]),))


def _norm(kind: str, shapes: Shapes, _: Shape | None) -> Layer | None:
    if not shapes.tensors or len(shapes.tensors[0]) < 2:
        return None
    channels = (shapes.tensors[0][1],)
    return _layer(kind, shapes.tensors[0], shapes.tensors[0], (channels, channels))


def _same(kind: str, shapes: Shapes, _: Shape | None) -> Layer | None:
    return _layer(kind, shapes.tensors[0], shapes.tensors[0]) if shapes.tensors else None


def _pooling(
    kind: str, shapes: Shapes, after: Shape | None, attributes: Mapping[str, Any] | None = None
) -> Layer | None:
    if not shapes.tensors or after is None:
        return None
    before = shapes.tensors[0]
    if len(after) == 2 and len(before) > 2:  # flattened: what a linear layer reads
        after = (*after, *(1,) * (len(before) - 2))
    if len(after) != len(before) or after[:2] != before[:2] or any(a > b for a, b in zip(after, before)):
        return None
    return _layer(kind, before, after, attributes=attributes)


def _windows(kind: str, shapes: Shapes, after: Shape | None) -> Layer | None:
    """With a window that is not among the parameters: only its bytes are known."""
    rank = len(shapes.tensors[0]) - 2 if shapes.tensors else 0
    return _pooling(kind, shapes, after, {"kernel": (1,) * rank})


def _layer(
    kind: str, before: Shape, after: Shape, weights: tuple[Shape, ...] = (), attributes: Mapping[str, Any] | None = None
) -> Layer | None:
    if any(size < 1 for shape in (before, after, *weights) for size in shape):
        return None
    return Layer("profiled", kind, (before,), (after,), weights, attributes=dict(attributes or {}))


_BUILDERS = {
    "conv": _convolution, "linear": _linear, "norm": _norm, "same": _same, "windows": _windows, "pool": _pooling,
}  # fmt: skip
BUILDERS: dict[str, partial[Layer | None]] = {
    operation: partial(_BUILDERS[builder], kind.name)
    for kind in KINDS.values()
    for builder, operations in kind.pyprof.items()
    for operation in operations.split()
}
"""How the operations whose parameters pyprof prints become layers."""

_WINDOWED = {operation for operation, builder in BUILDERS.items() if builder.func is _windows}

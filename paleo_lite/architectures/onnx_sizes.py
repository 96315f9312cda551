"""Checks of ONNX files before ``onnx.shape_inference``, which computes the numbers of shapes (data propagation).

It computes them however many they are: operators that join a shape with itself 30 times give 2**30 times its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from ..errors import BadDescriptor

STANDARD = ("", "ai.onnx")
"""Domains of the operators of ONNX itself."""

_DIMENSIONS = 64
"""Most numbers of the shape of a tensor: the most dimensions that NumPy (``NPY_MAXDIMS``) and PyTorch's reductions
(``dim_bitset_size`` in ATen) take."""

MOST_JOINED = 2**16
"""Most numbers of shapes that are computed when operators join them."""

MOST_SIZES = 2**10
"""Most numbers of a shape that operators compute."""

_PASSES_SIZES = {"Add", "Cast", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"}
"""Operators whose results are computed for tensors of sizes; they have no more numbers than they read."""

_READS_SHAPE = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1, "Unsqueeze": 1}
"""Input of an operator that gives the dimensions of its result."""


def can_compute_shapes(graph: Any, path: Path) -> bool:
    """Return whether shapes may be computed, as no operator joins more than `MOST_JOINED` of their numbers.

    Raise BadDescriptor if an operator reads a shape of more than `MOST_SIZES` numbers, or states another number of
    results than it has.
    """
    lengths: dict[str, int] = {}
    longest = 0
    for node in _nodes(graph, lengths):
        if node.domain not in STANDARD:
            continue
        for attribute in node.attribute:
            if attribute.name == "num_outputs" and attribute.i != len(node.output):
                raise BadDescriptor(
                    f"{path}: the operator {node.op_type}: num_outputs is {attribute.i}, but it has "
                    f"{len(node.output)} outputs"
                )
        read = [lengths.get(name, 0) for name in node.input]
        place = _READS_SHAPE.get(node.op_type, len(read))
        if place < len(read) and read[place] > MOST_SIZES:
            raise BadDescriptor(f"{path}: the operator {node.op_type} reads a shape of up to {read[place]:,} numbers")
        length = _count_numbers(node, read)
        if node.op_type == "Concat":
            longest = max(length, longest)
        for name in node.output[:1]:
            lengths[name] = length
    return longest <= MOST_JOINED


def _nodes(graph: Any, lengths: dict[str, int]) -> Iterator[Any]:
    """Yield all operators in order, those of branches after theirs; register the lengths of initializers on the way."""
    pending = [graph]
    while pending:
        current = pending.pop()
        for initializer in current.initializer:
            if len(initializer.dims) <= 1 and initializer.data_type in (initializer.INT32, initializer.INT64):
                lengths[initializer.name] = prod(initializer.dims)
        for node in current.node:
            yield node
            for attribute in node.attribute:
                pending += [attribute.g, *attribute.graphs]


def _count_numbers(node: Any, read: list[int]) -> int:
    """Return the most numbers of the result of an operator, if it is a tensor of sizes."""
    if node.op_type == "Shape":
        return _DIMENSIONS
    if node.op_type == "Concat":
        return sum(read)
    if node.op_type == "Constant":
        return max((max(len(item.ints), prod(item.t.dims)) for item in node.attribute), default=0)
    if node.op_type == "Gather":
        return max(*read[1:2], 1) if len(read) > 1 else 1
    return max(read, default=0) if node.op_type in _PASSES_SIZES else 0

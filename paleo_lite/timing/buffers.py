"""Which tensors share memory: the buffers behind a network's layers, and how large each is.

A view, a slice and the result of an in-place operation are their operand under another name; everything else that a
layer gives is a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ..counting import INPUT, Layer, Shape
from ..counting.attention import restores_order
from ..counting.kinds import ELEMENTWISE, KINDS, is_alias
from ..counting.layer import trace_flow

_KEEPS_ORDER = ELEMENTWISE | {name for name, kind in KINDS.items() if kind.alias is True}
"""Kinds whose result lies in memory as their first operand does."""

_PERMUTATIONS = frozenset(("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT"))


class Buffer(NamedTuple):
    """A piece of memory.

    Attributes
    ----------
    elements : int
        For one sample.
    element_bytes : int
        Bytes of an element whose size the precision does not change; 0 for numbers of the network's precision.
    scales : bool
        Whether it grows with the batch.
    activation : bool
        Whether a layer makes it; False for what the network is given, for constants, and for a cache of keys and
        values, which stays from pass to pass.
    """

    elements: int
    element_bytes: int
    scales: bool
    activation: bool

    def bytes_(self, number_bytes: int) -> int:
        """Bytes for one sample, for numbers of that many bytes."""
        return self.elements * (self.element_bytes or number_bytes)


class Buffers(NamedTuple):
    """The buffers of a network.

    Attributes
    ----------
    reads, writes : list of list of int
        For each layer the buffer behind each of its inputs and outputs.
    inputs : list of int
        The buffers that the network is given.
    gradient : list of bool
        For each layer whether a backward pass reaches its outputs.
    permuted : list of bool
        For each layer whether its outputs lie in memory in another order than that of their dimensions.
    """

    buffers: list[Buffer]
    reads: list[list[int]]
    writes: list[list[int]]
    inputs: list[int]
    gradient: list[bool]
    permuted: list[bool]


def find_buffers(layers: Sequence[Layer]) -> Buffers:
    """Follow every tensor of a network to its memory.

    Parameters
    ----------
    layers : sequence of Layer
        In the order of execution.
    """
    flow = trace_flow(layers)
    buffers: list[Buffer] = []
    given: dict[Shape, int] = {}
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    permuted: list[bool] = []

    def add(shape: Shape, element_bytes: int, scales: bool, activation: bool) -> int:
        buffers.append(Buffer(prod(shape), element_bytes, scales, activation))
        return len(buffers) - 1

    for index, layer in enumerate(layers):
        read = []
        for shape, parent in zip(layer.inputs, layer.parents):
            if parent >= 0:
                made = [tuple(output) for output in layers[parent].outputs]
                read.append(writes[parent][made.index(shape) if shape in made else 0])
            elif parent == INPUT:
                if shape not in given:
                    given[shape] = add(shape, 8 if layer.kind == "embedding" else 0, True, False)
                read.append(given[shape])
            else:
                read.append(add(shape, 0, False, False))
        scales = flow.output_scales[index]
        in_place = layer.attributes.get("function") in ("copy", "sum") and layer.kind == "exchange"
        if read and (in_place or is_alias(layer) or layer.attributes.get("in_place") or restores_order(layers, layer)):
            written = [read[0]] * len(layer.outputs)
        else:
            width = KINDS[layer.kind].element_bytes if layer.kind in KINDS else 0
            held = layer.kind == "cache" or (not read and is_alias(layer))  # the second lies in a parameter's memory
            written = [add(shape, width, scales, not held) for shape in layer.outputs]
        reads.append(read)
        writes.append(written)
        permuted.append(
            layer.attributes.get("function") in _PERMUTATIONS
            or (layer.kind in _KEEPS_ORDER and any(parent >= 0 and permuted[parent] for parent in layer.parents[:1]))
        )
    return Buffers(buffers, reads, writes, list(given.values()), flow.output_wants_gradient, permuted)

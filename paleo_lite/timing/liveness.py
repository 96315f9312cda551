"""How much memory activations take at once: which tensors share a buffer, and the live set along the order of
execution, forward and backward.

A view, a slice and the result of an in-place operation are their operand under another name; everything else that a
layer gives is a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..counting import INPUT, Layer, Shape
from ..counting.kinds import ELEMENTWISE, KINDS, is_alias, restores_order, saved_by
from ..counting.layer import SAVES_NOTHING, trace_flow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[Any]
    """Bytes for each sample, and bytes that do not grow with the batch: Python's integers, which do not overflow."""

_KEEPS_ORDER = ELEMENTWISE | {name for name, kind in KINDS.items() if kind.alias is True}
"""Kinds whose result lies in memory as their first operand does."""

_PERMUTATIONS = frozenset(("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT"))


class Buffer(NamedTuple):
    """A piece of memory.

    Attributes
    ----------
    size : int
        Bytes for one sample.
    scales : bool
        Whether it grows with the batch.
    activation : bool
        Whether a layer makes it; False for what the network is given, for constants, and for a cache of keys and
        values, which stays from pass to pass.
    """

    size: int
    scales: bool
    activation: bool


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


def find_buffers(layers: Sequence[Layer], number_bytes: int) -> Buffers:
    """Follow every tensor of a network to its memory.

    Parameters
    ----------
    layers : sequence of Layer
        In the order of execution.
    number_bytes : int
        Of a number of the network's precision.
    """
    flow = trace_flow(layers)
    buffers: list[Buffer] = []
    given: dict[Shape, int] = {}
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    permuted: list[bool] = []

    def add(shape: Shape, element_bytes: int, scales: bool, activation: bool) -> int:
        buffers.append(Buffer(prod(shape) * (element_bytes or number_bytes), scales, activation))
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


_PASSED_ON = frozenset(name for name, kind in KINDS.items() if kind.passes_gradient)
"""Kinds whose operands' gradients are the gradient of the result, or a part of it: no new memory."""


NONE: Bytes = np.array([0, 0], dtype=object)


class Plan(NamedTuple):
    """A network's memory as the walks need it: sizes, last uses and saved tensors, for numbers of one size.

    Attributes
    ----------
    sizes : ndarray, shape (buffers, 2)
        Bytes of each buffer, for each sample and of any batch; nothing for those that no layer makes.
    last_use : list of int
        The last layer that reads or writes each buffer.
    first_write : list of int
        The layer that makes each buffer; -1 for those that no layer makes.
    saved : list of frozenset of int
        The buffers that each layer saves for its gradient.
    own : ndarray, shape (layers, 2)
        Bytes that each layer saves beside these, for each sample and of any batch.
    wants : list of list of bool
        For each layer's inputs whether a gradient goes to them.
    """

    graph: Buffers
    kinds: list[str]
    sizes: Bytes
    last_use: list[int]
    first_write: list[int]
    saved: list[frozenset[int]]
    own: Bytes
    wants: list[list[bool]]


def make_plan(layers: Sequence[Layer], number_bytes: int) -> Plan:
    """Sizes, last uses and saved tensors.

    An operation that overwrites what its gradient needs copies it first; what was gathered is gathered again. A product
    of many matrices whose operands lie in another order than it can walk copies them, too (``torch.matmul``).

    Parameters
    ----------
    number_bytes : int
        Bytes of an activation's element.
    """
    graph = find_buffers(layers, number_bytes)
    sizes = np.zeros((len(graph.buffers), 2), dtype=object)
    for place, buffer in enumerate(graph.buffers):
        sizes[place, 0 if buffer.scales else 1] = buffer.size if buffer.activation else 0
    last_use, first_write = [-1] * len(sizes), [-1] * len(sizes)
    own = np.zeros((len(layers), 2), dtype=object)
    saved, wants = [], []
    for index, layer in enumerate(layers):
        for which in (*graph.reads[index], *graph.writes[index]):
            last_use[which] = index
        for which in graph.writes[index]:
            if first_write[which] < 0 and graph.buffers[which].activation:
                first_write[which] = index
        reached, in_place = graph.gradient[index], layer.attributes.get("in_place")
        wants.append([reached and parent >= 0 and graph.gradient[parent] for parent in layer.parents])
        trainable = bool(layer.weights) and not layer.attributes.get("frozen", False)
        # Of a kind without a record nothing is known: a note of the prediction says so.
        needs = (saved_by(layer, wants[-1], trainable) if reached else None) or SAVES_NOTHING
        held = graph.writes[index][:1] if needs.output else []
        copies = needs.numbers * number_bytes + needs.statistics * max(number_bytes, 4) + needs.bytes
        for operand in needs.inputs[: len(layer.inputs)]:  # operands that are parameters are there anyway
            maker, shape = layer.parents[operand], layer.inputs[operand]
            permuted = layer.kind == "matmul" and len(shape) > 3 and maker >= 0 and graph.permuted[maker]
            if permuted or (operand == 0 and in_place):
                copies += prod(shape) * number_bytes
                continue
            while maker >= 0 and layers[maker].kind == "view":
                maker = layers[maker].parents[0]
            gathered = maker >= 0 and layers[maker].attributes.get("function") == "gather"
            held = [*held, graph.reads[maker][0] if gathered else graph.reads[index][operand]]
        saved.append(frozenset(which for which in held if graph.buffers[which].activation))
        own[index, 0 if needs.scales else 1] = copies
    return Plan(graph, [layer.kind for layer in layers], sizes, last_use, first_write, saved, own, wants)


def saved_bytes(plan: Plan, start: int = 0, end: int | None = None, but: frozenset[int] = frozenset()) -> Bytes:
    """What the layers from `start` to `end` save together, a buffer that several save once; `but` is held already."""
    buffers = frozenset().union(*plan.saved[start:end]) - but
    together: Bytes = plan.sizes[[*buffers]].sum(axis=0) + plan.own[start:end].sum(axis=0)
    return together


def peak_forward(
    plan: Plan, start: int = 0, end: int | None = None, held: frozenset[int] = frozenset(), keep: bool = False
) -> Bytes:
    """The largest live set of a forward pass through some layers, without what is `held` all the while.

    What grows with the batch decides which of two is larger.

    Parameters
    ----------
    start, end : int
        The layers; all of them by default.
    held : frozenset of int
        Buffers that are accounted for elsewhere.
    keep : bool
        Whether what gradients need stays.
    """
    alive: set[int] = set()
    kept: set[int] = set()
    now, peak = NONE, NONE
    for index in range(start, len(plan.kinds) if end is None else end):
        for which in plan.graph.writes[index]:
            if which not in alive and which not in held:
                alive.add(which)
                now = now + plan.sizes[which]
        if keep:
            now = now + plan.own[index]
            kept |= plan.saved[index]
        peak = max(peak, now, key=tuple)
        for which in {*plan.graph.reads[index], *plan.graph.writes[index]} & alive:
            if plan.last_use[which] <= index and which not in kept:
                alive.remove(which)
                now = now - plan.sizes[which]
    return peak


def peak_backward(plan: Plan, start: int, end: int, held: frozenset[int]) -> Bytes:
    """The same of the way back: what layers kept goes as they are done, gradients of activations come and go.

    The gradient of an operand gets new memory, or that of the result's; with one there already the two are added up.
    """
    keepers: dict[int, int] = {}  # buffer: the first layer that keeps it, whose gradient is computed last
    for index in range(end - 1, start - 1, -1):
        keepers.update(dict.fromkeys(plan.saved[index] - held, index))
    results = {*plan.graph.writes[end - 1]} if end > start else set()
    arriving = [which for which in results if plan.last_use[which] >= end or end == len(plan.kinds)]
    of = {which: place for place, which in enumerate(arriving)}  # buffer: which memory holds its gradient
    memory, holders = [plan.sizes[which] for which in arriving], [1] * len(arriving)
    now: Bytes = saved_bytes(plan, start, end, held) + plan.sizes[arriving].sum(axis=0)
    peak = now
    for index in range(end - 1, start - 1, -1):
        if plan.graph.gradient[index]:
            taken = [of.pop(which) for which in dict.fromkeys(plan.graph.writes[index]) if which in of]
            passed = taken[0] if taken and plan.kinds[index] in _PASSED_ON else None
            second = NONE  # gradients that are there until they are added to a first one
            for which in dict.fromkeys(compress(plan.graph.reads[index], plan.wants[index])):
                size = plan.sizes[which]
                if passed is None and which in of:
                    second = second + size
                elif which not in of:
                    of[which] = len(memory) if passed is None else passed
                    if passed is None:
                        memory.append(size)
                        holders.append(0)
                        now = now + size
                    holders[of[which]] += 1
            peak = max(peak, now + second, key=tuple)
            for place in taken:
                holders[place] -= 1
                if not holders[place]:
                    now = now - memory[place]
        now = now - plan.own[index]
        for which in plan.saved[index]:
            if keepers.get(which) == index:
                now = now - plan.sizes[which]
    return peak

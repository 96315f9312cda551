"""How much memory activations take at once: which tensors share a buffer, and the live set along the order of
execution, forward and backward.

A view, a slice and the result of an in-place operation are their operand under another name; everything else that a
layer gives is a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import NamedTuple

from ..counting import INPUT, Layer, Shape
from ..counting.kinds import ELEMENTWISE, KINDS, is_alias, restores_order, saved_by
from ..counting.layer import SAVES_NOTHING, Saved, trace_flow

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


_PASSED_ON = frozenset(name for name, kind in KINDS.items() if kind.passes_gradient)
"""Kinds whose operands' gradients are the gradient of the result, or a part of it: no new memory."""


class Bytes(NamedTuple):
    """Bytes that grow with the batch and bytes that do not; the first decide which of two is larger."""

    per_sample: int = 0
    fixed: int = 0

    def plus(self, other: Bytes) -> Bytes:
        """Both together."""
        return Bytes(self.per_sample + other.per_sample, self.fixed + other.fixed)

    def minus(self, other: Bytes) -> Bytes:
        """What the other does not account for."""
        return Bytes(self.per_sample - other.per_sample, self.fixed - other.fixed)


NONE = Bytes()


class SavedBuffers(NamedTuple):
    """What one layer saves for backward: whole buffers, and bytes of its own."""

    buffers: frozenset[int]
    own: Bytes


class Plan(NamedTuple):
    """A network's memory as the walks need it: sizes, last uses and saved tensors, for numbers of one size.

    Attributes
    ----------
    sizes : list of Bytes
        Of each buffer; nothing for those that no layer makes.
    last_use : list of int
        The last layer that reads or writes each buffer.
    first_write : list of int
        The layer that makes each buffer; -1 for those that no layer makes.
    wants : list of list of bool
        For each layer's inputs whether a gradient goes to them.
    """

    graph: Buffers
    kinds: list[str]
    sizes: list[Bytes]
    last_use: list[int]
    first_write: list[int]
    saved: list[SavedBuffers]
    wants: list[list[bool]]


def make_plan(layers: Sequence[Layer], number_bytes: int) -> Plan:
    """Sizes, last uses and saved tensors.

    Parameters
    ----------
    number_bytes : int
        Bytes of an activation's element.
    """
    graph, sizes = find_buffers(layers), []
    for buffer in graph.buffers:
        amount = buffer.bytes_(number_bytes) if buffer.activation else 0
        sizes.append(Bytes(amount, 0) if buffer.scales else Bytes(0, amount))
    last_use, first_write = [-1] * len(sizes), [-1] * len(sizes)
    saved, wants = [], []
    for index, layer in enumerate(layers):
        for buffer_index in (*graph.reads[index], *graph.writes[index]):
            last_use[buffer_index] = index
        for buffer_index in graph.writes[index]:
            if first_write[buffer_index] < 0 and graph.buffers[buffer_index].activation:
                first_write[buffer_index] = index
        reached = graph.gradient[index]
        wanted = [reached and parent >= 0 and graph.gradient[parent] for parent in layer.parents]
        wants.append(wanted)
        trainable = bool(layer.weights) and not layer.attributes.get("frozen", False)
        # Of a kind without a record nothing is known: a note of the prediction says so.
        own = (saved_by(layer, wanted, trainable) if reached else None) or SAVES_NOTHING
        saved.append(_save(layers, own, graph, index, number_bytes))
    return Plan(graph, [layer.kind for layer in layers], sizes, last_use, first_write, saved, wants)


def _save(layers: Sequence[Layer], saved: Saved, graph: Buffers, index: int, number_bytes: int) -> SavedBuffers:
    """An operation that overwrites what its gradient needs copies it first; what was gathered is gathered again.

    So does a product of many matrices whose operands lie in another order than it can walk (``torch.matmul``).
    """
    layer = layers[index]
    held, own = [], saved.own_bytes(number_bytes)
    for which in saved.inputs[: len(layer.inputs)]:  # operands that are parameters are there anyway
        parent = layer.parents[which]
        copied = layer.kind == "matmul" and len(layer.inputs[which]) > 3 and parent >= 0 and graph.permuted[parent]
        if copied or (which == 0 and layer.attributes.get("in_place")):
            own += prod(layer.inputs[which]) * number_bytes
        else:
            maker = parent
            while maker >= 0 and layers[maker].kind == "view":
                maker = layers[maker].parents[0]
            gathered = maker >= 0 and layers[maker].attributes.get("function") == "gather"
            held.append(graph.reads[maker if gathered else index][0 if gathered else which])
    if saved.output:
        held += graph.writes[index][:1]
    activations = frozenset(which for which in held if graph.buffers[which].activation)
    return SavedBuffers(activations, Bytes(own, 0) if saved.scales else Bytes(0, own))


def total(plan: Plan, buffers: Collection[int], own: Sequence[Bytes] = ()) -> Bytes:
    """Bytes of a set of buffers, and of what layers save for themselves."""
    parts = [*(plan.sizes[which] for which in buffers), *own]
    return Bytes(sum(part.per_sample for part in parts), sum(part.fixed for part in parts))


def saved_bytes(plan: Plan, start: int = 0, end: int | None = None, but: frozenset[int] = frozenset()) -> Bytes:
    """What the layers from `start` to `end` save together, a buffer that several save once; `but` is held already."""
    chosen = plan.saved[start:end]
    return total(plan, frozenset().union(*(saved.buffers for saved in chosen)) - but, [saved.own for saved in chosen])


def peak_forward(
    plan: Plan, start: int = 0, end: int | None = None, held: frozenset[int] = frozenset(), keep: bool = False
) -> Bytes:
    """The largest live set of a forward pass through some layers, without what is `held` all the while.

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
                now = now.plus(plan.sizes[which])
        if keep:
            now = now.plus(plan.saved[index].own)
            kept |= plan.saved[index].buffers
        peak = max(peak, now)
        for which in {*plan.graph.reads[index], *plan.graph.writes[index]} & alive:
            if plan.last_use[which] <= index and which not in kept:
                alive.remove(which)
                now = now.minus(plan.sizes[which])
    return peak


def peak_backward(plan: Plan, start: int, end: int, held: frozenset[int]) -> Bytes:
    """The same of the way back: what layers kept goes as they are done, gradients of activations come and go."""
    keepers: dict[int, int] = {}  # buffer: the first layer that keeps it, whose gradient is computed last
    for index in range(end - 1, start - 1, -1):
        keepers.update(dict.fromkeys(plan.saved[index].buffers - held, index))
    now = saved_bytes(plan, start, end, held)
    gradients = _Gradients(plan)
    results = {*plan.graph.writes[end - 1]} if end > start else set()
    gradients.through("", (), [which for which in results if plan.last_use[which] >= end or end == len(plan.kinds)])
    peak = now.plus(gradients.now)
    for index in range(end - 1, start - 1, -1):
        if plan.graph.gradient[index]:
            wanted = [which for which, wants in zip(plan.graph.reads[index], plan.wants[index]) if wants]
            peak = max(peak, now.plus(gradients.through(plan.kinds[index], plan.graph.writes[index], wanted)))
        now = now.minus(plan.saved[index].own)
        done = [which for which in plan.saved[index].buffers if keepers.get(which) == index]
        now = now.minus(total(plan, frozenset(done)))
    return peak


class _Gradients:
    """Gradients of activations that are alive; several buffers may have the same memory for theirs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.of: dict[int, int] = {}  # buffer: which memory holds its gradient
        self.holders: dict[int, int] = {}
        self.memory: dict[int, Bytes] = {}
        self.now = NONE

    def through(self, kind: str, written: Sequence[int], wanted: Sequence[int]) -> Bytes:
        """Take the gradient of a layer's result to its operands; the most that is alive meanwhile.

        An operand gets new memory, or that of the result; with a gradient there already the two are added up in it.
        """
        taken = [self.of.pop(which) for which in dict.fromkeys(written) if which in self.of]
        passed = taken[0] if taken and kind in _PASSED_ON else None
        second = NONE
        for which in dict.fromkeys(wanted):
            size = self.plan.sizes[which]
            if which in self.of:
                second = second if passed is not None else second.plus(size)  # until it is added to the first
                continue
            memory = len(self.memory) if passed is None else passed
            if passed is None:
                self.memory[memory] = size
                self.now = self.now.plus(size)
            self.of[which] = memory
            self.holders[memory] = self.holders.get(memory, 0) + 1
        most = self.now.plus(second)
        for memory in taken:
            self.holders[memory] -= 1
            if not self.holders[memory]:
                self.now = self.now.minus(self.memory[memory])
        return most

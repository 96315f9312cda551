"""Memory of activations: the buffers that tensors share, and the peak of live buffers in the forward and backward pass.

A view, a slice and the output of an in-place operation share the buffer of their operand. Every other output has a
buffer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..counting import INPUT, Layer, Shape
from ..counting.kinds import ELEMENTWISE, KINDS, copies_attention_output, is_alias, is_cache, saved_tensors
from ..counting.layer import SAVES_NOTHING, WIDE, Saved, trace_flow
from ..counting.work import FP32_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[Any]
    """Bytes per sample and bytes that do not grow with the batch, shape (2,); Python integers, which do not
    overflow."""

_KEEPS_ORDER = ELEMENTWISE | {name for name, kind in KINDS.items() if kind.aliases_input is True}
"""Kinds whose output has the memory order of their first input."""

_PERMUTATIONS = frozenset(("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT"))

_PASSES_GRADIENT = frozenset(name for name, kind in KINDS.items() if kind.passes_gradient)
"""Kinds whose input gradients are the output gradient or slices of it, without new memory."""

_TOKEN_BYTES = 8
"""Bytes per token index in the input of an embedding (int64)."""

ZERO_BYTES: Bytes = np.array([0, 0], dtype=object)


class Buffer(NamedTuple):
    """A memory buffer."""

    size: int  # bytes for one sample
    scales: bool  # whether the size grows with the batch
    # Whether a layer creates the buffer. False for inputs of the network, constants, and the KV cache, which
    # persists between passes.
    activation: bool


class Buffers(NamedTuple):
    """The buffers of a network."""

    buffers: list[Buffer]  # all buffers
    # For each layer, the buffers of its inputs and of its outputs.
    reads: list[list[int]]
    writes: list[list[int]]
    inputs: list[int]  # buffers of the network's inputs
    gradient: list[bool]  # for each layer, whether the backward pass computes gradients of its outputs
    # For each layer, whether the memory order of its outputs differs from the order of their dimensions.
    permuted: list[bool]


def find_buffers(layers: Sequence[Layer], number_bytes: int) -> Buffers:
    """Assign every tensor of a network to a buffer.

    The layers are in the order of execution; `number_bytes` are those of an element in the network's precision.
    """
    flow = trace_flow(layers)
    buffers: list[Buffer] = []
    input_buffers: dict[Shape, int] = {}
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    permuted: list[bool] = []

    def add_buffer(shape: Shape, element_bytes: float, scales: bool, activation: bool) -> int:
        buffers.append(Buffer(round(prod(shape) * (element_bytes or number_bytes)), scales, activation))
        return len(buffers) - 1

    for index, layer in enumerate(layers):
        read = []
        for shape, parent in zip(layer.inputs, layer.parents):
            if parent >= 0:
                output = 0
                if len(layers[parent].outputs) > 1:
                    output_shapes = [tuple(output_shape) for output_shape in layers[parent].outputs]
                    output = output_shapes.index(shape) if shape in output_shapes else 0
                read.append(writes[parent][output])
            elif parent == INPUT:
                if shape not in input_buffers:
                    element_bytes = _TOKEN_BYTES if layer.kind == "embedding" else 0
                    input_buffers[shape] = add_buffer(shape, element_bytes, scales=True, activation=False)
                read.append(input_buffers[shape])
            else:
                read.append(add_buffer(shape, 0, scales=False, activation=False))
        if read and _shares_input_buffer(layers, layer):
            written = [read[0]] * len(layer.outputs)
        else:
            element_bytes = KINDS[layer.kind].element_bytes if layer.kind in KINDS else 0
            if "widths" in layer.attributes:  # a cast to another precision
                element_bytes = layer.attributes["widths"][1]
            elif "upcast" in layer.attributes:  # a layer in fp32 of a 16-bit network
                element_bytes = round(min(number_bytes * layer.attributes["upcast"][1], FP32_BYTES))
            is_view_of_parameter = not read and is_alias(layer)
            is_activation = not is_cache(layer) and not is_view_of_parameter
            scales = flow.output_scales[index]
            written = [add_buffer(shape, element_bytes, scales, is_activation) for shape in layer.outputs]
        reads.append(read)
        writes.append(written)
        first_parent = layer.parents[0] if layer.parents else -1
        has_permuted_input = first_parent >= 0 and permuted[first_parent]
        is_permutation = layer.attributes.get("function") in _PERMUTATIONS
        permuted.append(is_permutation or (layer.kind in _KEEPS_ORDER and has_permuted_input))
    return Buffers(buffers, reads, writes, list(input_buffers.values()), flow.output_wants_gradient, permuted)


def _shares_input_buffer(layers: Sequence[Layer], layer: Layer) -> bool:
    """Return whether the output of a layer is in the buffer of its first input."""
    is_in_place_exchange = layer.kind == "exchange" and layer.attributes.get("function") in ("copy", "sum")
    return bool(
        is_in_place_exchange
        or is_alias(layer)
        or layer.attributes.get("in_place")
        or copies_attention_output(layers, layer)
    )


class MemoryPlan(NamedTuple):
    """Sizes, last uses and saved tensors of the buffers of a network, for elements of one size."""

    graph: Buffers  # buffers of the network
    kinds: list[str]  # kind of each layer
    # Bytes of each buffer per sample, and bytes that do not grow with the batch; 0 for buffers that no layer
    # creates.
    sizes: list[tuple[int, int]]
    last_use: list[int]  # last layer that reads or writes each buffer
    first_write: list[int]  # layer that creates each buffer; -1 for buffers that no layer creates
    saved: list[frozenset[int]]  # buffers that each layer saves for its gradient; empty without gradients
    # Bytes that each layer saves outside these buffers, per sample and independent of the batch.
    private: list[tuple[int, int]]
    wants_gradient: list[list[bool]]  # for each input of each layer, whether its gradient is computed


def make_plan(layers: Sequence[Layer], number_bytes: int, has_gradients: bool = True) -> MemoryPlan:
    """Determine sizes, last uses and saved tensors of all buffers.

    A wide softmax saves its result in fp32, beside the converted one that other layers read. An in-place operation
    copies its input first if its gradient needs it. Gathered tensors are not saved, but gathered
    again. ``torch.matmul`` copies operands with more than three dimensions whose memory order it cannot use. The layers
    are in the order of execution; `number_bytes` are those of an activation element. Without a backward pass layers
    save no tensors.
    """
    graph = find_buffers(layers, number_bytes)
    sizes = [_affine_bytes(buffer.size if buffer.activation else 0, buffer.scales) for buffer in graph.buffers]
    last_use, first_write = [-1] * len(sizes), [-1] * len(sizes)
    for index in range(len(layers)):
        for buffer_index in (*graph.reads[index], *graph.writes[index]):
            last_use[buffer_index] = index
        for buffer_index in graph.writes[index]:
            if first_write[buffer_index] < 0 and graph.buffers[buffer_index].activation:
                first_write[buffer_index] = index
    private = [(0, 0)] * len(layers)
    saved: list[frozenset[int]] = []
    wants_gradient: list[list[bool]] = []
    for index, layer in enumerate(layers if has_gradients else ()):
        is_reached = graph.gradient[index]
        wants_gradient.append([is_reached and parent >= 0 and graph.gradient[parent] for parent in layer.parents])
        trainable = bool(layer.weights) and not layer.is_frozen
        # Nothing is known about kinds without a record; the prediction has a note.
        needs = (saved_tensors(layer, wants_gradient[-1], trainable) if is_reached else None) or SAVES_NOTHING
        wide_bytes = 0
        if needs.output and layer.attributes.get(WIDE) and number_bytes < FP32_BYTES:
            wide_bytes, needs = FP32_BYTES * prod(layer.outputs[0]), needs._replace(output=False)
        buffers, copied_elements = _saved_buffers(layers, graph, index, needs)
        saved.append(frozenset(buffer for buffer in buffers if graph.buffers[buffer].activation))
        elements_bytes = (needs.numbers + copied_elements) * number_bytes
        statistics_bytes = needs.statistics * max(number_bytes, FP32_BYTES)
        private[index] = _affine_bytes(elements_bytes + statistics_bytes + wide_bytes + needs.bytes, needs.scales)
    kinds = [layer.kind for layer in layers]
    return MemoryPlan(graph, kinds, sizes, last_use, first_write, saved, private, wants_gradient)


def plan_before(plan: MemoryPlan, end: int) -> MemoryPlan:
    """Return the plan of the layers before `end`, which read nothing that later layers write."""
    graph = plan.graph
    reads, writes = graph.reads[:end], graph.writes[:end]
    count = 1 + max((buffer for used in (*reads, *writes) for buffer in used), default=-1)
    inputs = [buffer for buffer in graph.inputs if buffer < count]
    graph = Buffers(graph.buffers[:count], reads, writes, inputs, graph.gradient[:end], graph.permuted[:end])
    last_use = plan.last_use[:count]
    outlived = {buffer for buffer, index in enumerate(last_use) if index >= end}
    for index in range(end - 1, -1, -1):
        if not outlived:
            break
        for buffer in outlived.intersection(reads[index] + writes[index]):
            last_use[buffer] = index
            outlived.remove(buffer)
    saved, private, wants_gradient = plan.saved[:end], plan.private[:end], plan.wants_gradient[:end]
    first_write = plan.first_write[:count]
    return MemoryPlan(
        graph, plan.kinds[:end], plan.sizes[:count], last_use, first_write, saved, private, wants_gradient
    )


def _affine_bytes(size: int, scales: bool) -> tuple[int, int]:
    """Return the bytes per sample and the bytes that do not grow with the batch; one of them is `size`."""
    return (size, 0) if scales else (0, size)


def total_bytes(amounts: Iterable[tuple[int, int]]) -> Bytes:
    """Return the sum of amounts, each bytes per sample and bytes that do not grow with the batch."""
    scaling = fixed = 0
    for of_sample, other in amounts:
        scaling += of_sample
        fixed += other
    return np.array([scaling, fixed], dtype=object)


def _saved_buffers(layers: Sequence[Layer], graph: Buffers, index: int, needs: Saved) -> tuple[list[int], int]:
    """Return the buffers that a layer saves, and the number of elements that it saves as copies."""
    layer = layers[index]
    buffers = graph.writes[index][:1] if needs.output else []
    copied_elements = 0
    for operand in needs.inputs[: len(layer.inputs)]:  # further operands are parameters, which stay in memory anyway
        producer, shape = layer.parents[operand], layer.inputs[operand]
        is_permuted = layer.kind == "matmul" and len(shape) > 3 and producer >= 0 and graph.permuted[producer]
        is_overwritten = operand == 0 and layer.attributes.get("in_place")
        if is_permuted or is_overwritten:
            copied_elements += prod(shape)
            continue
        while producer >= 0 and layers[producer].kind == "view":
            producer = layers[producer].parents[0]
        is_gathered = producer >= 0 and layers[producer].attributes.get("function") == "gather"
        buffers = [*buffers, graph.reads[producer][0] if is_gathered else graph.reads[index][operand]]
    return buffers, copied_elements


def saved_bytes(
    plan: MemoryPlan, start: int = 0, end: int | None = None, excluded: frozenset[int] = frozenset()
) -> Bytes:
    """Return the bytes that layers from `start` to `end` save for the backward pass, without the excluded buffers.

    A buffer that several layers save counts once. By default the range has all layers.
    """
    buffers = frozenset().union(*plan.saved[start:end]) - excluded
    return total_bytes([*(plan.sizes[buffer] for buffer in buffers), *plan.private[start:end]])


def peak_forward(
    plan: MemoryPlan,
    start: int = 0,
    end: int | None = None,
    excluded: frozenset[int] = frozenset(),
    keep_saved: bool = False,
) -> Bytes:
    """Return the peak bytes of live buffers in the forward pass of the layers from `start` to `end`, by default all.

    Of two amounts the one with more bytes per sample counts as larger. Excluded buffers do not count. `keep_saved` says
    whether saved tensors stay alive for the backward pass.
    """
    alive: set[int] = set()
    saved: set[int] = set()
    scaling = fixed = 0  # bytes per sample, and bytes that do not grow with the batch
    peak = (0, 0)
    for index in range(start, len(plan.kinds) if end is None else end):
        for buffer in plan.graph.writes[index]:
            if buffer not in alive and buffer not in excluded:
                alive.add(buffer)
                scaling += plan.sizes[buffer][0]
                fixed += plan.sizes[buffer][1]
        if keep_saved:
            scaling += plan.private[index][0]
            fixed += plan.private[index][1]
            saved |= plan.saved[index]
        peak = max(peak, (scaling, fixed))
        for buffer in {*plan.graph.reads[index], *plan.graph.writes[index]} & alive:
            if plan.last_use[buffer] <= index and buffer not in saved:
                alive.remove(buffer)
                scaling -= plan.sizes[buffer][0]
                fixed -= plan.sizes[buffer][1]
    return np.array(peak, dtype=object)


def peak_backward(plan: MemoryPlan, start: int, end: int, excluded: frozenset[int]) -> Bytes:
    """Return the peak bytes of saved tensors and activation gradients in the backward pass of a range of layers.

    Saved tensors are freed once the gradients that need them are computed. The gradient of an operand gets new memory,
    or shares that of the output gradient. If the operand already has a gradient, the second one lives until both are
    added. Excluded are saved buffers that do not count.
    """
    # The first layer that saves a buffer computes its gradient last, and then frees it.
    freeing_layer: dict[int, int] = {}
    for index in range(end - 1, start - 1, -1):
        freeing_layer.update(dict.fromkeys(plan.saved[index] - excluded, index))
    outputs = {*plan.graph.writes[end - 1]} if end > start else set()
    incoming = [buffer for buffer in outputs if plan.last_use[buffer] >= end or end == len(plan.kinds)]
    # Gradient memory blocks: the block of each buffer's gradient, and size and number of users of each block.
    block_of_buffer = {buffer: block for block, buffer in enumerate(incoming)}
    block_sizes = [plan.sizes[buffer] for buffer in incoming]
    num_users = [1] * len(incoming)
    scaling, fixed = saved_bytes(plan, start, end, excluded) + total_bytes(block_sizes)
    peak = (scaling, fixed)
    for index in range(end - 1, start - 1, -1):
        if plan.graph.gradient[index]:
            written = dict.fromkeys(plan.graph.writes[index])
            output_blocks = [block_of_buffer.pop(buffer) for buffer in written if buffer in block_of_buffer]
            passes_on = bool(output_blocks) and plan.kinds[index] in _PASSES_GRADIENT
            second_scaling = second_fixed = 0  # gradients that are alive until they are added to the first ones
            for buffer in dict.fromkeys(compress(plan.graph.reads[index], plan.wants_gradient[index])):
                size = plan.sizes[buffer]
                if buffer in block_of_buffer:
                    if not passes_on:
                        second_scaling += size[0]
                        second_fixed += size[1]
                    continue
                if passes_on:
                    block_of_buffer[buffer] = output_blocks[0]
                else:
                    block_of_buffer[buffer] = len(block_sizes)
                    block_sizes.append(size)
                    num_users.append(0)
                    scaling += size[0]
                    fixed += size[1]
                num_users[block_of_buffer[buffer]] += 1
            peak = max(peak, (scaling + second_scaling, fixed + second_fixed))
            for block in output_blocks:
                num_users[block] -= 1
                if not num_users[block]:
                    scaling -= block_sizes[block][0]
                    fixed -= block_sizes[block][1]
        scaling -= plan.private[index][0]
        fixed -= plan.private[index][1]
        for buffer in plan.saved[index]:
            if freeing_layer.get(buffer) == index:
                scaling -= plan.sizes[buffer][0]
                fixed -= plan.sizes[buffer][1]
    return np.array(peak, dtype=object)

"""Fused execution: which layers of a network share a kernel under a compiler, an inference library or Megatron-LM.

Fusion removes bytes and kernel launches, but no FLOPs, except that folding a batch norm into the weights of a
convolution removes the FLOPs of the batch norm. Folding and engines are counted at inference only. A compiler also
fuses the passes of training: the forward pass saves only the inputs of a kernel, from which the kernel of the data
gradient computes everything else again (PyTorch's inductor with the min-cut partitioner).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import UnknownName
from ..units import element_bytes
from .kinds import ACTIVATIONS, copies_attention_output, fusion_of
from .layer import Layer, Op, Shape
from .megatron import fuse_megatron_kernels
from .work import AUTOCAST, CHANNELS_LAST, COLUMNS, COMPILED, ENGINE, MEGATRON, PASSES, UNFUSED_EXECUTIONS, Work

EXECUTIONS = {
    "eager": "each layer's own kernels, as a framework launches them",
    AUTOCAST: "eager in mixed precision: weights stay in fp32, operands of products are cast, normalisations and "
    "softmax are in fp32 (torch.autocast)",
    CHANNELS_LAST: "autocast, with images as height, width, channels in memory, the layout that tensor cores read "
    "(memory_format=torch.channels_last)",
    MEGATRON: "eager, and one kernel each: attention's scale, mask and softmax, a dropout and the residual's addition, "
    "a gated activation, an RMS norm, rotary positions (Megatron-LM); in training, too",
    COMPILED: "chains of pointwise layers, each with at most one reduction, are one kernel; convolutions and matrix "
    "products are calls to a library (PyTorch's inductor)",
    "folded": "compiled, and batch norms folded into the weights of the convolution before them, activations and "
    "residual additions in the convolution's epilogue (TensorRT, oneDNN, inductor's freezing)",
    ENGINE: "folded, the pointwise layers of a module are one kernel, attention's output needs no copy, and the host "
    "launches a recorded graph (vLLM, TensorRT-LLM)",
}
"""The executions of a network, and the layers that each fuses."""

_OPEN_FUSIONS = ("pointwise", "folded", "reduction", "window", "start")
"""Fusions of layers whose kernel later layers may join."""
_POINTWISE_FUSIONS = ("pointwise", "folded")
_EXECUTIONS_WITH_EPILOGUES = ("folded", ENGINE)


class _Kernel:
    """The layers of one kernel launch."""

    def __init__(self, first: int, elements: int, accepts: str, waits_for: int) -> None:
        self.members = [first]  # indices of the layers
        self.elements = elements  # rank of the elements that the kernel iterates over
        # Layers that may join: "all" pointwise layers and reductions, an "epilogue" of a library call, or none: "".
        self.accepts = accepts
        self.reduced_elements = 0  # rank of those of the output of its reduction; 0 without one
        self.waits_for = waits_for  # bit mask of the kernels that must finish before, directly or transitively


class _Graph(NamedTuple):
    """What grouping asks of the layers of a network; networks that differ in their sizes have equal ones.

    Sizes are only compared, so each is its rank among all sizes of the graph, from 1.
    """

    kinds: tuple[str, ...]
    fusions: tuple[str | None, ...]
    read_ranks: tuple[int, ...]  # of the elements of the largest input
    written_ranks: tuple[int, ...]  # of the elements of the largest output
    parents: tuple[tuple[int, ...], ...]
    launched: tuple[bool, ...]  # whether a layer launches a kernel
    visible: tuple[bool, ...]  # whether it launches one or cannot be counted; others (views) are skipped

    @classmethod
    def of_layers(cls, layers: Sequence[Layer], launched: np.ndarray, counted: np.ndarray) -> _Graph:
        """Return the graph of layers, in their order; both arrays have the shape (layers,)."""
        largest = _LargestShape()
        read_elements = [largest[layer.inputs] for layer in layers]
        written_elements = [largest[layer.outputs] for layer in layers]
        ranks = {elements: rank for rank, elements in enumerate(sorted({*read_elements, *written_elements}), 1)}
        return cls(
            tuple([layer.kind for layer in layers]),
            tuple([fusion_of(layer) for layer in layers]),
            tuple([ranks[elements] for elements in read_elements]),
            tuple([ranks[elements] for elements in written_elements]),
            tuple([layer.parents for layer in layers]),
            tuple(launched.tolist()),
            tuple((launched | ~counted).tolist()),
        )


class _LargestShape(dict[tuple[Shape, ...], int]):
    """The number of elements of the largest of several shapes, which layers share; 0 of none."""

    def __missing__(self, shapes: tuple[Shape, ...]) -> int:
        elements = self[shapes] = max(map(prod, shapes), default=0)
        return elements


class _Edges(NamedTuple):
    """The graph of launched layers, in which views and other layers without a kernel are skipped."""

    readers: list[set[int]]  # for each layer, the launched layers that read its output
    # For each layer, the launched layers that produce its inputs; negative for inputs and constants.
    sources: list[list[int]]


class _Groups(NamedTuple):
    """The kernels of a graph under an execution."""

    kernels: tuple[tuple[int, ...], ...]  # the layers of each kernel
    edges: _Edges
    folded: dict[int, int]  # the convolution or linear layer of each folded batch norm


def fuse(layers: Sequence[Layer], work: Work, execution: str) -> Work:
    """Return the work of a network under an execution of `EXECUTIONS`; raise UnknownName for another.

    The bytes and the launch of a fused kernel are in the row of its first layer, the `carrier` of its layers, and 0 in
    the rows of the others; every row keeps its FLOPs. Only the pass ``inference`` changes, except under Megatron-LM and
    a compiler.
    """
    if execution not in EXECUTIONS:
        raise UnknownName("execution", execution, EXECUTIONS)
    if execution == MEGATRON:
        work = fuse_megatron_kernels(layers, work)
    if execution in UNFUSED_EXECUTIONS:
        return msgspec.structs.replace(work, execution=execution)
    if execution == ENGINE:
        work = _remove_attention_output_copies(layers, work)
    graph = _Graph.of_layers(layers, work.column("kernels", "inference")[0] > 0, work.counted)
    kernels, edges, folded = _group_layers(graph, execution in _EXECUTIONS_WITH_EPILOGUES)
    if execution == ENGINE:
        kernels = _merge_by_module(layers, graph.fusions, kernels)
    ops = {batch_size: _sizes_of_tensors(layers, work.flow.op_arguments, batch_size) for batch_size in (1, 2)}
    at_one, at_two = (
        _fused_columns(layers, work, ops[batch_size], batch_size, kernels, edges, folded) for batch_size in (1, 2)
    )
    per_sample, fixed = work.per_sample.copy(), work.fixed.copy()
    inference = PASSES.index("inference")
    per_sample[:, inference] = at_two - at_one
    fixed[:, inference] = 2 * at_one - at_two
    if execution == COMPILED:
        training_graph = _Graph.of_layers(layers, work.column("kernels", "forward")[0] > 0, work.counted)
        training_kernels, training_edges, _ = _group_layers(training_graph, False)
        trained_at_one, trained_at_two = (
            _trained_columns(layers, work, ops[batch_size], batch_size, training_kernels, training_edges)
            for batch_size in (1, 2)
        )
        per_sample[:, _TRAINED_PASSES] = trained_at_two - trained_at_one
        fixed[:, _TRAINED_PASSES] = 2 * trained_at_one - trained_at_two
    carrier = np.arange(len(layers))
    for members in kernels:
        carrier[list(members)] = members[0]
    for norm, convolution in folded.items():
        carrier[norm] = carrier[convolution]
    return msgspec.structs.replace(work, per_sample=per_sample, fixed=fixed, execution=execution, carrier=carrier)


def _sizes_of_tensors(layers: Sequence[Layer], op_arguments: Sequence[tuple[Any, ...]], batch_size: int) -> list[Op]:
    """Return the sizes of the tensors of each layer at a batch size; layers of equal shapes share them."""
    known_ops: dict[tuple[Any, ...], Op] = {}
    ops = []
    for layer, arguments in zip(layers, op_arguments):
        key = (layer.inputs, layer.outputs, layer.weights, arguments)
        op = known_ops.get(key)
        if op is None:
            op = known_ops[key] = Op(layer, batch_size, *arguments)
        ops.append(op)
    return ops


def _remove_attention_output_copies(layers: Sequence[Layer], work: Work) -> Work:
    """Return the work without copies of attention outputs, which an engine's attention writes in the final order."""
    copies = [index for index, layer in enumerate(layers) if copies_attention_output(layers, layer)]
    per_sample, fixed = work.per_sample.copy(), work.fixed.copy()
    inference = PASSES.index("inference")
    per_sample[:, inference, copies] = 0
    fixed[:, inference, copies] = 0
    return msgspec.structs.replace(work, per_sample=per_sample, fixed=fixed)


def _merge_by_module(
    layers: Sequence[Layer], fusions: Sequence[str | None], kernels: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Merge consecutive kernels of pointwise layers of the same module, such as rotary positions."""
    merged: list[tuple[int, ...]] = []
    for members in sorted(kernels, key=lambda members: members[0]):
        if merged and _can_merge_in_module(layers, fusions, merged[-1] + members):
            merged[-1] += members
        else:
            merged.append(members)
    return tuple(merged)


def _can_merge_in_module(layers: Sequence[Layer], fusions: Sequence[str | None], members: Sequence[int]) -> bool:
    modules = {layers[member].place.module for member in members}
    return len(modules) == 1 and all(fusions[member] in _OPEN_FUSIONS for member in members)


@lru_cache(32)
def _group_layers(graph: _Graph, has_epilogues: bool) -> _Groups:
    """Group the layers of a graph into kernels; library calls with epilogues also fold batch norms."""
    edges = _find_edges(graph)
    folded = _find_folded_norms(graph.fusions, edges) if has_epilogues else {}
    return _Groups(_Grouping(graph, edges, folded, has_epilogues).group(), edges, folded)


def _find_edges(graph: _Graph) -> _Edges:
    """Return the edges between visible layers; others are skipped."""
    source = list(range(len(graph.parents)))
    sources: list[list[int]] = []
    readers: list[set[int]] = [set() for _ in graph.parents]
    for index, (parents, is_visible) in enumerate(zip(graph.parents, graph.visible)):
        if not is_visible:
            parent = parents[0] if parents else -1
            source[index] = source[parent] if parent >= 0 else parent
        producers = [source[parent] if parent >= 0 else parent for parent in parents]
        sources.append(producers)
        if is_visible:
            for producer in producers:
                if producer >= 0:
                    readers[producer].add(index)
    return _Edges(readers, sources)


def _find_folded_norms(fusions: Sequence[str | None], edges: _Edges) -> dict[int, int]:
    """Return the convolution or linear layer of each batch norm that is its only reader."""
    folded = {}
    for index, fusion in enumerate(fusions):
        if fusion != "folded":
            continue
        parent = edges.sources[index][0] if edges.sources[index] else -1
        if parent >= 0 and edges.readers[parent] == {index} and fusions[parent] == "library":
            folded[index] = parent
    return folded


class _Grouping:
    """Assigns each layer, in the order of execution, to an earlier kernel or to a kernel of its own."""

    def __init__(self, graph: _Graph, edges: _Edges, folded: dict[int, int], has_epilogues: bool) -> None:
        self.graph = graph
        self.edges = edges
        self.folded = folded
        self.has_epilogues = has_epilogues
        self.kernels: dict[int, _Kernel] = {}  # by number; a merged kernel keeps the smaller number
        self.kernel_of_layer: dict[int, int] = {}  # number of the kernel of each layer
        self.next_number = 0

    def group(self) -> tuple[tuple[int, ...], ...]:
        """Return the layers of all kernels."""
        for index, is_launched in enumerate(self.graph.launched):
            if index in self.folded:
                self.kernel_of_layer[index] = self.kernel_of_layer[self.folded[index]]
            elif is_launched:
                self._assign(index)
        return tuple([tuple(kernel.members) for kernel in self.kernels.values()])

    def _parent_kernels(self, index: int) -> set[int]:
        sources = self.edges.sources[index]
        return {self.kernel_of_layer[source] for source in sources if source in self.kernel_of_layer}

    def _assign(self, index: int) -> None:
        parents = self._parent_kernels(index)
        candidates = []
        for parent in sorted(parents):
            if self._can_compute(parent, index) and self._is_ready(parent, parents):
                candidates.append(parent)
        if not candidates:
            self.kernels[self.next_number] = self._new_kernel(index, self._waits_for(parents))
            self.kernel_of_layer[index] = self.next_number
            self.next_number += 1
            return
        first = candidates[0]
        for other in candidates[1:]:
            if self._can_merge(first, other):
                self._merge(first, other)
        self._join(first, index)

    def _new_kernel(self, index: int, waits_for: int) -> _Kernel:
        fusion = self.graph.fusions[index]
        read, written = self.graph.read_ranks[index], self.graph.written_ranks[index]
        accepts = ""
        if fusion in _OPEN_FUSIONS:
            accepts = "all"
        elif self.has_epilogues and fusion == "library":
            accepts = "epilogue"
        is_reduction = fusion == "reduction"
        kernel = _Kernel(index, read if is_reduction else written, accepts, waits_for)
        kernel.reduced_elements = written if is_reduction else 0
        return kernel

    def _can_compute(self, number: int, index: int) -> bool:
        """Return whether a kernel can also compute a layer, according to its shapes and kind."""
        kernel = self.kernels[number]
        if kernel.accepts == "epilogue":
            return self._is_epilogue(kernel, index)
        if kernel.accepts != "all":
            return False
        fusion = self.graph.fusions[index]
        if fusion == "reduction":
            return not kernel.reduced_elements and self.graph.read_ranks[index] == kernel.elements
        if fusion == "window":
            return self._is_exclusive(kernel, index, lambda member: self.graph.kinds[member] in ACTIVATIONS)
        if fusion not in _POINTWISE_FUSIONS:
            return False
        elements = self.graph.written_ranks[index]
        return elements in (kernel.elements, kernel.reduced_elements) or self._is_inlined(kernel, index, elements)

    def _is_epilogue(self, kernel: _Kernel, index: int) -> bool:
        """Return whether a library call can apply a layer to its output: an activation, or one residual addition."""
        kind = self.graph.kinds[index]
        last = kernel.members[-1]
        norms = [norm for norm, convolution in self.folded.items() if convolution == last]
        readers = self.edges.readers[norms[0] if norms else last]
        has_addition = any(self.graph.kinds[member] == "add" for member in kernel.members)
        kind_fits = kind in ACTIVATIONS or (kind == "add" and not has_addition)
        return readers == {index} and kind_fits and self.graph.written_ranks[index] == kernel.elements

    def _is_inlined(self, kernel: _Kernel, index: int, elements: int) -> bool:
        """Return whether a kernel of pointwise layers on a smaller tensor (a gate's sigmoid) is recomputed in a
        layer."""
        return elements > kernel.elements and self._is_exclusive(
            kernel, index, lambda member: self.graph.fusions[member] in _POINTWISE_FUSIONS
        )

    def _is_exclusive(self, kernel: _Kernel, index: int, fits: Callable[[int], bool]) -> bool:
        """Return whether all layers of a kernel fit a condition, and only the layer `index` reads the kernel."""
        allowed_readers = {index, *kernel.members}
        return all(fits(member) and self.edges.readers[member] <= allowed_readers for member in kernel.members)

    def _is_ready(self, number: int, parents: set[int]) -> bool:
        """Return whether none of the other parents of a layer waits for this kernel."""
        bit = 1 << number
        return not any(self.kernels[other].waits_for & bit for other in parents - {number})

    def _can_merge(self, number: int, other: int) -> bool:
        """Return whether two kernels, neither of which waits for the other (`_is_ready`), can be one."""
        first, second = self.kernels[number], self.kernels[other]
        accept_all = first.accepts == second.accepts == "all"
        return accept_all and not (first.reduced_elements and second.reduced_elements)

    def _merge(self, number: int, other: int) -> None:
        first, second = self.kernels[number], self.kernels[other]
        first.members = sorted(first.members + second.members)
        first.elements = max(first.elements, second.elements)
        first.reduced_elements = first.reduced_elements or second.reduced_elements
        first.waits_for |= second.waits_for
        for layer in second.members:
            self.kernel_of_layer[layer] = number
        del self.kernels[other]
        for kernel in self.kernels.values():
            if kernel.waits_for >> other & 1:
                kernel.waits_for &= ~(1 << other)
                kernel.waits_for |= 1 << number | first.waits_for
        self._propagate_waits(number)

    def _join(self, number: int, index: int) -> None:
        kernel = self.kernels[number]
        parents = self._parent_kernels(index)
        previous_waits = kernel.waits_for
        kernel.waits_for |= self._waits_for(parents - {number})
        kernel.members.append(index)
        fusion, written = self.graph.fusions[index], self.graph.written_ranks[index]
        if fusion == "reduction":
            kernel.reduced_elements = written
        elif fusion in ("window", "start"):
            kernel.elements = written
        else:
            kernel.elements = max(kernel.elements, written)
        self.kernel_of_layer[index] = number
        if kernel.waits_for != previous_waits:
            self._propagate_waits(number)

    def _propagate_waits(self, number: int) -> None:
        """Add the kernels that a kernel waits for to all kernels that wait for it."""
        waits_for = self.kernels[number].waits_for
        for kernel in self.kernels.values():
            if kernel.waits_for >> number & 1:
                kernel.waits_for |= waits_for

    def _waits_for(self, parents: set[int]) -> int:
        bits = 0
        for parent in parents:
            bits |= 1 << parent | self.kernels[parent].waits_for
        return bits


def _fused_columns(
    layers: Sequence[Layer],
    work: Work,
    ops: Sequence[Op],
    batch_size: int,
    kernels: Sequence[tuple[int, ...]],  # the layers of each
    edges: _Edges,
    folded: dict[int, int],
) -> np.ndarray:
    """Return the columns of the inference pass with fused kernels at a batch size, shape (columns, layers)."""
    columns = np.array([work.column(name, "inference", batch_size)[0] for name in COLUMNS])
    flops, _, read, written, launches = columns
    element_size = element_bytes(work.precision)
    for norm, convolution in folded.items():
        flops[norm] = read[norm] = written[norm] = launches[norm] = 0
        if not ops[convolution].has_bias:  # the shift of the batch norm becomes a bias
            flops[convolution] += ops[convolution].y
            read[convolution] += element_size * layers[norm].inputs[0][1]
    norm_of_convolution = {convolution: norm for norm, convolution in folded.items()}
    for members in kernels:
        if len(members) == 1:
            continue
        norms = [norm_of_convolution[member] for member in members if member in norm_of_convolution]
        inside = {*members, *norms}
        bytes_read = sum(int(read[member]) - element_size * ops[member].x for member in members)
        bytes_read += element_size * _elements_read_from_outside(layers, ops, members, inside, edges)
        bytes_written = 0
        for member in members:
            readers = edges.readers[norm_of_convolution.get(member, member)]
            is_read_outside = not readers or not readers <= inside
            if is_read_outside:
                bytes_written += int(written[member])
        for member in members:
            read[member] = written[member] = launches[member] = 0
        first = members[0]
        read[first], written[first], launches[first] = bytes_read, bytes_written, 1
    return columns


_TRAINED_PASSES = [PASSES.index(name) for name in ("forward", "backward_data", "backward_weight")]


def _trained_columns(
    layers: Sequence[Layer],
    work: Work,
    ops: Sequence[Op],
    batch_size: int,
    kernels: Sequence[tuple[int, ...]],  # the layers of each
    edges: _Edges,
) -> np.ndarray:
    """Return the columns of the passes of training with fused kernels, shape (columns, passes, layers).

    The kernel of the data gradient reads the gradients of the outputs and the saved inputs, and writes the gradients of
    the inputs. It also leaves the sums for the gradients of weights.
    """
    columns = np.array(
        [[work.column(name, PASSES[index], batch_size)[0] for index in _TRAINED_PASSES] for name in COLUMNS]
    )
    read, written, launches = columns[COLUMNS.index("bytes_read") :]
    forward, data, weight = range(3)
    element_size = element_bytes(work.precision)
    for kernel in kernels:
        if len(kernel) == 1:
            continue
        members, first, inside = list(kernel), kernel[0], set(kernel)
        inputs_bytes = element_size * _elements_read_from_outside(layers, ops, members, inside, edges)
        outputs_bytes = 0
        for member in members:
            readers = edges.readers[member]
            if not readers or not readers <= inside:
                outputs_bytes += int(written[forward, member])
        has_gradient = bool(launches[data, members].any())
        weight_bytes = int(written[weight, members].sum())
        weight_launches = int(launches[weight, members].max())
        data_read, data_written = int(read[data, members].sum()), int(written[data, members].sum())
        if data_read + data_written > outputs_bytes + 2 * inputs_bytes:  # otherwise some gradients are only passed on
            data_read, data_written = outputs_bytes + inputs_bytes, inputs_bytes
        read[:, members] = written[:, members] = launches[:, members] = 0
        read[forward, first], written[forward, first], launches[forward, first] = inputs_bytes, outputs_bytes, 1
        if has_gradient:
            read[data, first], written[data, first], launches[data, first] = data_read, data_written, 1
        written[weight, first], launches[weight, first] = weight_bytes, weight_launches
    return columns


def _elements_read_from_outside(
    layers: Sequence[Layer], ops: Sequence[Op], members: Sequence[int], inside: set[int], edges: _Edges
) -> int:
    """Return the elements that a kernel reads from other kernels: each tensor once, or its slices if it is sliced."""
    elements_by_source: dict[int, dict[int, int]] = defaultdict(dict)  # source: elements by parent (a slice or view)
    for member in members:
        for operand, (parent, source) in enumerate(zip(layers[member].parents, edges.sources[member])):
            if source not in inside:
                slices = elements_by_source[source]
                slices[parent] = max(slices.get(parent, 0), ops[member].inputs[operand])
    total = 0
    for source, slices in elements_by_source.items():
        elements = sum(slices.values())
        # Views may expand or overlap: a kernel reads no more than the whole tensor.
        total += min(elements, ops[source].y) if source >= 0 else elements
    return total

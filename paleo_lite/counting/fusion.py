"""What is launched where several layers become one kernel: by a compiler, or by a library for inference.

Fusing removes bytes and launches, never FLOPs; folding a batch norm into a convolution's weights removes its FLOPs too.
Counted at inference: a training step needs most of what fusion would keep on chip.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from ..errors import UnknownName
from ..units import element_bytes
from .kinds import ACTIVATIONS, fusion_of, restores_order
from .layer import Layer, Op, trace_flow
from .megatron import with_fused_kernels
from .work import AUTOCAST, CHANNELS_LAST, COLUMNS, ENGINE, MEGATRON, PASSES, UNFUSED, Work

EXECUTIONS = {
    "eager": "each layer's own kernels, as a framework launches them",
    AUTOCAST: "eager in mixed precision: weights stay in fp32, what products read is cast, normalisations and softmax "
    "are in fp32 (torch.autocast)",
    CHANNELS_LAST: "autocast, with images as height, width, channels in memory, which tensor cores read as they are "
    "(memory_format=torch.channels_last)",
    MEGATRON: "eager, and one kernel each: attention's scale, mask and softmax, a dropout and the residual's addition, "
    "a gated activation, an RMS norm, rotary positions (Megatron-LM); in training, too",
    "compiled": "chains of pointwise layers, each with at most one reduction, are one kernel; convolutions and matrix "
    "products are calls to a library (PyTorch's inductor)",
    "folded": "compiled, and batch norms folded into the weights of the convolution before them, activations and "
    "residual additions computed where it writes its result (TensorRT, oneDNN, inductor's freezing)",
    ENGINE: "folded, the pointwise layers of a module are one kernel, attention's result needs no copy, and the host "
    "launches a recorded graph (vLLM, TensorRT-LLM)",
}
"""How a network can be run, and what that fuses."""

_JOINS = ("pointwise", "folded", "reduction", "window", "start")
"""Layers whose kernel takes what reads them."""
_POINTWISE = ("pointwise", "folded")
_WITH_EPILOGUES = ("folded", ENGINE)


class _Kernel:
    """Layers that one launch computes, and which kernels it must wait for (a bit each, transitively)."""

    def __init__(self, first: int, elements: int, open_: str, waits_for: int) -> None:
        self.members = [first]
        self.elements = elements
        self.open = open_  # what may join: "all" pointwise and reductions, "epilogue", or "" nothing
        self.reduced = 0  # elements of the reduction's result, where it has one
        self.waits_for = waits_for


class _Reader(NamedTuple):
    """For each layer which layers read it, views between them left out, and where it gets its own inputs from."""

    readers: list[list[int]]
    sources: list[list[int]]


def fuse(layers: Sequence[Layer], work: Work, execution: str) -> Work:
    """The work of a network as it is launched.

    Bytes and kernels of a fused kernel stand in the row of its first layer, those of its others become 0; every row
    keeps its FLOPs. Only the pass ``inference`` changes.

    Parameters
    ----------
    work : Work
        Counted from these layers.
    execution : str
        One of `EXECUTIONS`.

    Returns
    -------
    Work
        With `execution`, and `carrier`: for each layer the one in whose row its kernel stands.

    Raises
    ------
    UnknownName
        If there is no such execution.
    """
    if execution not in EXECUTIONS:
        raise UnknownName("execution", execution, EXECUTIONS)
    if execution == MEGATRON:
        work = with_fused_kernels(layers, work)
    if execution in UNFUSED:
        return msgspec.structs.replace(work, execution=execution)
    if execution == ENGINE:
        work = _without_copies(layers, work)
    launched = work.column("kernels", "inference")[0] > 0
    edges = _edges(layers, launched | ~work.counted)
    folded = _folded(layers, edges) if execution in _WITH_EPILOGUES else {}
    kernels = _Grouping(layers, edges, launched, folded, execution).kernels()
    if execution == ENGINE:
        kernels = _by_module(layers, kernels)
    seen_as = trace_flow(layers).seen
    at_one, at_two = (
        _changed(layers, work, [Op(layer, n, *seen) for layer, seen in zip(layers, seen_as)], n, kernels, edges, folded)
        for n in (1, 2)
    )
    per_sample, fixed = work.per_sample.copy(), work.fixed.copy()
    inference = PASSES.index("inference")
    per_sample[:, inference], fixed[:, inference] = at_two - at_one, 2 * at_one - at_two
    carrier = np.arange(len(layers))
    for kernel in kernels:
        carrier[kernel.members] = kernel.members[0]
    for norm, convolution in folded.items():
        carrier[norm] = carrier[convolution]
    return msgspec.structs.replace(work, per_sample=per_sample, fixed=fixed, execution=execution, carrier=carrier)


def _without_copies(layers: Sequence[Layer], work: Work) -> Work:
    """The work without the copies of attention's result into another order: an engine's attention writes it so."""
    copies = [index for index, layer in enumerate(layers) if restores_order(layers, layer)]
    per_sample, fixed = work.per_sample.copy(), work.fixed.copy()
    per_sample[:, PASSES.index("inference"), copies] = fixed[:, PASSES.index("inference"), copies] = 0
    return msgspec.structs.replace(work, per_sample=per_sample, fixed=fixed)


def _by_module(layers: Sequence[Layer], kernels: Sequence[_Kernel]) -> list[_Kernel]:
    """Kernels one after the other that only a module's pointwise layers have, as one: rotary positions, for example."""
    together: list[_Kernel] = []
    for kernel in sorted(kernels, key=lambda one: one.members[0]):
        before = together[-1].members if together else []
        members = [layers[member] for member in (*before, *kernel.members)]
        alike = len({member.name.rpartition(".")[0] for member in members}) == 1
        if before and alike and all(fusion_of(member) in _JOINS for member in members):
            together[-1].members += kernel.members
        else:
            together.append(kernel)
    return together


def _edges(layers: Sequence[Layer], seen: np.ndarray) -> _Reader:
    """Who reads whom; layers that launch nothing (views, dropout at inference) are looked through."""
    source = list(range(len(layers)))
    sources: list[list[int]] = []
    readers: list[list[int]] = [[] for _ in layers]
    for index, layer in enumerate(layers):
        if not seen[index]:
            parent = layer.parents[0] if layer.parents else -1
            source[index] = source[parent] if parent >= 0 else parent
        made_by = [source[parent] if parent >= 0 else parent for parent in layer.parents]
        sources.append(made_by)
        if seen[index]:
            for maker in {parent for parent in made_by if parent >= 0}:
                readers[maker].append(index)
    return _Reader(readers, sources)


def _folded(layers: Sequence[Layer], edges: _Reader) -> dict[int, int]:
    """Batch norms that alone read a convolution or linear layer, and that layer."""
    folded = {}
    for index, layer in enumerate(layers):
        parent = edges.sources[index][0] if edges.sources[index] else -1
        alone = parent >= 0 and edges.readers[parent] == [index]
        if alone and fusion_of(layer) == "folded" and fusion_of(layers[parent]) == "library":
            folded[index] = parent
    return folded


class _Grouping:
    """Layers in the order of execution, each put into a kernel before it or into one of its own."""

    def __init__(
        self, layers: Sequence[Layer], edges: _Reader, launched: np.ndarray, folded: dict[int, int], execution: str
    ) -> None:
        self.layers, self.edges, self.launched, self.folded = layers, edges, launched, folded
        self.epilogues = execution in _WITH_EPILOGUES
        self.found: dict[int, _Kernel] = {}
        self.made = 0
        self.of: dict[int, int] = {}  # layer to its kernel

    def kernels(self) -> list[_Kernel]:
        """All kernels."""
        for index in range(len(self.layers)):
            if index in self.folded:
                self.of[index] = self.of[self.folded[index]]
            elif self.launched[index]:
                self._place(index)
        return list(self.found.values())

    def _place(self, index: int) -> None:
        parents = {self.of[source] for source in self.edges.sources[index] if source in self.of}
        joined = [parent for parent in sorted(parents) if self._takes(parent, index) and self._in_time(parent, parents)]
        waits_for = self._waits_for(parents)
        if not joined:
            self.found[self.made] = self._alone(index, waits_for)
            self.of[index] = self.made
            self.made += 1
            return
        first = joined[0]
        for other in joined[1:]:
            if self._mergeable(first, other):
                self._merge(first, other)
        self._join(first, index)

    def _alone(self, index: int, waits_for: int) -> _Kernel:
        layer = self.layers[index]
        fusion = fusion_of(layer)
        reduction = fusion == "reduction"
        open_ = "all" if fusion in _JOINS else "epilogue" if self.epilogues and fusion == "library" else ""
        kernel = _Kernel(index, _elements(layer.inputs if reduction else layer.outputs), open_, waits_for)
        kernel.reduced = _elements(layer.outputs) if reduction else 0
        return kernel

    def _takes(self, number: int, index: int) -> bool:
        """Whether a kernel could compute this layer as well, by its shape and kind."""
        kernel, layer = self.found[number], self.layers[index]
        if kernel.open == "epilogue":
            ends = kernel.members[-1]
            norms = [norm for norm, convolution in self.folded.items() if convolution == ends]
            alone = set(self.edges.readers[norms[0] if norms else ends]) == {index}
            adds = [self.layers[member].kind for member in kernel.members].count("add")
            kind_fits = layer.kind in ACTIVATIONS or (layer.kind == "add" and not adds)
            return alone and kind_fits and _elements(layer.outputs) == kernel.elements
        if kernel.open != "all":
            return False
        fusion = fusion_of(layer)
        if fusion == "reduction":
            return not kernel.reduced and _elements(layer.inputs) == kernel.elements
        if fusion == "window":
            return self._read_by_one(kernel, index, lambda member: member.kind in ACTIVATIONS)
        if fusion not in _POINTWISE:
            return False
        elements = _elements(layer.outputs)
        return elements in (kernel.elements, kernel.reduced) or self._inlined(kernel, index, elements)

    def _inlined(self, kernel: _Kernel, index: int, elements: int) -> bool:
        """Pointwise layers of a smaller tensor that only this one reads (a gate's sigmoid) are computed again in it."""
        return elements > kernel.elements and self._read_by_one(
            kernel, index, lambda member: fusion_of(member) in _POINTWISE
        )

    def _read_by_one(self, kernel: _Kernel, index: int, of_these: Callable[[Layer], bool]) -> bool:
        """Whether a kernel is of these layers only, and nothing but this layer reads it."""
        return all(
            of_these(self.layers[member]) and set(self.edges.readers[member]) <= {index, *kernel.members}
            for member in kernel.members
        )

    def _in_time(self, number: int, parents: set[int]) -> bool:
        """Whether nothing else that the layer needs waits for this kernel."""
        bit = 1 << number
        return not any(self.found[other].waits_for & bit for other in parents - {number})

    def _mergeable(self, one: int, other: int) -> bool:
        first, second = self.found[one], self.found[other]
        apart = not (first.waits_for >> other & 1 or second.waits_for >> one & 1)
        alike = first.open == second.open == "all" and not (first.reduced and second.reduced)
        return apart and alike

    def _merge(self, one: int, other: int) -> None:
        first, second = self.found[one], self.found[other]
        first.members = sorted(first.members + second.members)
        first.elements = max(first.elements, second.elements)
        first.reduced = first.reduced or second.reduced
        first.waits_for |= second.waits_for
        for layer in second.members:
            self.of[layer] = one
        del self.found[other]
        for kernel in self.found.values():
            if kernel.waits_for >> other & 1:
                kernel.waits_for = kernel.waits_for & ~(1 << other) | 1 << one | first.waits_for
        self._pass_on(one)

    def _join(self, number: int, index: int) -> None:
        kernel, layer = self.found[number], self.layers[index]
        parents = {self.of[source] for source in self.edges.sources[index] if source in self.of}
        before = kernel.waits_for
        kernel.waits_for |= self._waits_for(parents - {number})
        kernel.members.append(index)
        fusion = fusion_of(layer)
        if fusion == "reduction":
            kernel.reduced = _elements(layer.outputs)
        elif fusion in ("window", "start"):
            kernel.elements = _elements(layer.outputs)
        else:
            kernel.elements = max(kernel.elements, _elements(layer.outputs))
        self.of[index] = number
        if kernel.waits_for != before:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        """What a kernel waits for, those that wait for it wait for too."""
        waits_for = self.found[number].waits_for
        for kernel in self.found.values():
            if kernel.waits_for >> number & 1:
                kernel.waits_for |= waits_for

    def _waits_for(self, parents: set[int]) -> int:
        bits = 0
        for parent in parents:
            bits |= 1 << parent | self.found[parent].waits_for
        return bits


def _changed(
    layers: Sequence[Layer],
    work: Work,
    ops: Sequence[Op],
    batch_size: int,
    kernels: Sequence[_Kernel],
    edges: _Reader,
    folded: dict[int, int],
) -> np.ndarray:
    """The columns of the inference pass at a batch size, shape (columns, layers)."""
    columns = np.array([work.column(name, "inference", batch_size)[0] for name in COLUMNS])
    flops, _, read, written, launches = columns
    size = element_bytes(work.precision)
    for norm, convolution in folded.items():
        flops[norm] = read[norm] = written[norm] = launches[norm] = 0
        if not ops[convolution].has_bias:  # the shift of the batch norm
            flops[convolution] += ops[convolution].y
            read[convolution] += size * layers[norm].inputs[0][1]
    norm_of = {convolution: norm for norm, convolution in folded.items()}
    for kernel in kernels:
        if len(kernel.members) == 1:
            continue
        inside = {*kernel.members, *(norm_of[member] for member in kernel.members if member in norm_of)}
        moved_in = sum(int(read[member]) - size * ops[member].x for member in kernel.members)
        moved_in += size * _read_from_outside(layers, ops, kernel.members, inside, edges)
        moved_out = 0
        for member in kernel.members:
            ends = norm_of.get(member, member)
            if not edges.readers[ends] or not set(edges.readers[ends]) <= inside:
                moved_out += int(written[member])
        for member in kernel.members:
            read[member] = written[member] = launches[member] = 0
        head = kernel.members[0]
        read[head], written[head], launches[head] = moved_in, moved_out, 1
    return columns


def _read_from_outside(
    layers: Sequence[Layer], ops: Sequence[Op], members: Sequence[int], inside: set[int], edges: _Reader
) -> int:
    """Elements that a kernel reads of what others made: each tensor once, of a sliced one its slices."""
    seen: dict[int, dict[int, int]] = defaultdict(dict)
    for member in members:
        for operand, (parent, source) in enumerate(zip(layers[member].parents, edges.sources[member])):
            if source not in inside:
                seen[source][parent] = max(seen[source].get(parent, 0), ops[member].inputs[operand])
    # A view may repeat what it shows, and views may overlap: no more is read than was made.
    return sum(
        min(sum(slices.values()), ops[source].y) if source >= 0 else sum(slices.values())
        for source, slices in seen.items()
    )


def _elements(shapes: Sequence[tuple[int, ...]]) -> int:
    return max((prod(shape) for shape in shapes), default=0)

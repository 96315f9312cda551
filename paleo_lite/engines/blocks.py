"""The kernels of a language model under an inference engine, from the layers that ``transformers`` would compute.

A layer either is a kernel by itself (a product with weights, attention, a layer of experts, a recurrence, an exchange),
or it is pointwise and belongs to a kernel with other layers of its module: the norm with the residual addition before
it, rotary embedding with the cache write, the activation between two projections, the choice of experts. Products of
one module with the same input are one kernel (QKV projection, gate and up projection). What an engine fuses beyond that
is data: the number of launches of each pointwise kernel (`Fusion`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

import msgspec

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..counting import Layer, Shape
from ..counting.kinds import class_of, is_all_reduce, is_attention, is_cache, is_embedding
from ..errors import BadValue
from .exchanges import EXCHANGE_MODES, Mode
from .formulas import RESULT_BYTES
from .kernels import (
    AttentionKernel,
    CountedKernel,
    ExchangeKernel,
    ExpertsKernel,
    Kernel,
    Pattern,
    Pointwise,
    ProductKernel,
    Rows,
)

RECURRENCES = ("selective_scan", "state_space_dual", "gated_delta_rule")
"""Kinds of layers that carry a state from token to token."""

NORM, ROTARY, QUERY_KEY_NORM = "norm", "rotary embedding and cache", "query and key norm"
ACTIVATION, ROUTING, COMBINATION = "activation", "routing", "sum of experts"
EMBEDDING, SAMPLING, OTHER = "embedding", "sampling", "other pointwise"

VIEWS = ("view", "slice", "exchange")
"""Kinds of layers that pass a tensor on without a kernel; an exchange that copies does nothing in inference."""

STATE_BYTES = 4
"""Recurrent states are kept in 32 bits."""

SAMPLED_BYTES = 12
"""Bytes per logit of a sampler: logits in 16 bits, converted to 32, normalised, and searched."""


SAMPLING_LAUNCHES = 5
"""Kernels of a sampler: conversion, temperature, softmax, limits, and the draw."""


class Fusion(msgspec.Struct, frozen=True):
    """What an engine fuses."""

    # Launches of a pointwise kernel by its name, where they are not 1; 0 where another kernel does its work.
    launches: dict[str, int]
    sources: tuple[str, ...] = ()  # where this can be read


class GroupedKernel(NamedTuple):
    """A kernel, and the position of the first of the layers that it computes."""

    kernel: Kernel
    position: int


def network_kernels(
    network: Network,  # a language model
    # "prefill" or "decode": whether prompts or single tokens are computed, where this makes a difference: latent
    # attention, recurrences.
    phase: str,
    *,
    context: int,  # tokens in the cache, or of the prompt; kernels do not depend on it unless a window ends before
    tensor: int,  # tensor-parallel degree; experts are not divided
    fusion: Fusion,
) -> list[CountedKernel]:
    """Return the kernels of one device for one iteration, in the order of their launch.

    Raise BadValue if the network is not built from a config.
    """
    if network.rebuild is None:
        raise BadValue(f"serving needs a language model from a config: not {network.name}")
    first_of_type = network.block_types or (0,) * network.blocks
    chosen = tuple(sorted(set(first_of_type)))
    # The first norm of a block adds what the block before it computed: one block more is built, and not counted.
    # Attention is fused whatever the config says of the framework.
    built = (chosen[0], *chosen)
    options = SequenceOptions(phase=phase, tensor_parallel=tensor, blocks=built, fused_attention=True)
    options = options._replace(context=context) if phase == "decode" else options._replace(length=context)
    layers = network.rebuild(options).layers
    undivided_layers = layers
    if tensor > 1:
        undivided_layers = network.rebuild(options._replace(tensor_parallel=1)).layers
    tokens = next(layer.outputs[0][1] for layer in layers if is_embedding(layer))
    experts = [
        part.kernel
        for part in group_layers(undivided_layers, phase, fusion, context, tokens)
        if isinstance(part.kernel, ExpertsKernel)
    ]
    graph = group_layers(layers, phase, fusion, context, tokens)
    counts = [0, *(first_of_type.count(block) for block in chosen)]
    kernels = []
    for part in graph:
        kernel = part.kernel
        if isinstance(kernel, ExpertsKernel):
            kernel = experts.pop(0)
        block = layers[part.position].place.number
        count = 1 if block is None else counts[block]
        if count:
            kernels.append(CountedKernel(kernel, count))
    return kernels + [CountedKernel(kernel, 1) for kernel in sampling_kernels(layers, tensor, fusion)]


def exchange_tokens(
    kernels: Sequence[CountedKernel],  # of one device
    ranks: int,  # devices that the experts are divided among
    operand_bytes: float,  # bytes per number of the dispatched tokens
    nodes: int = 1,  # nodes that these devices are on
    mode: Mode = "normal",  # of the kernels of the exchange
) -> list[CountedKernel]:
    """Return the kernels with the exchanges by which attention groups send tokens to experts and get results back.

    Tokens go there in the format of the experts' operands, and come back in 16 bits.
    """
    exchanged = []
    for counted in kernels:
        kernel = counted.kernel
        if not isinstance(kernel, ExpertsKernel):
            exchanged.append(counted)
            continue
        dispatch = _exchange("dispatch of tokens to experts", "dispatch", kernel, ranks, operand_bytes, nodes, mode)
        combine = _exchange("combination of experts' results", "combine", kernel, ranks, RESULT_BYTES, nodes, mode)
        exchanged += [CountedKernel(dispatch, counted.count), counted, CountedKernel(combine, counted.count)]
    return exchanged


def _exchange(
    name: str, direction: str, experts: ExpertsKernel, ranks: int, number_bytes: float, nodes: int, mode: Mode
) -> ExchangeKernel:
    """Return the kernel that sends tokens to experts, or results back, with so many bytes per number."""
    copies, prefix = EXCHANGE_MODES[mode]
    sent = copies(experts.active, ranks, nodes)
    copy_bytes = experts.hidden_size * number_bytes
    pattern = msgspec.convert(f"{prefix}{direction}", Pattern)
    return ExchangeKernel(name, pattern, sent.inside * copy_bytes, node_row_bytes=sent.between * copy_bytes)


def sampled_logits(kernels: Sequence[CountedKernel]) -> float:
    """Return the logits of a sequence among the kernels of a network: its vocabulary."""
    for counted in kernels:
        if isinstance(counted.kernel, Pointwise) and counted.kernel.name == SAMPLING:
            return counted.kernel.row_bytes / SAMPLED_BYTES
    return 0.0


def sampling_kernels(layers: Sequence[Layer], tensor: int, fusion: Fusion) -> list[Kernel]:
    """Return the kernels after the head: logits are gathered, converted and searched."""
    columns = next(layer for layer in reversed(layers) if _is_product(layer)).outputs[0][-1]
    sampling: list[Kernel] = []
    if tensor > 1:
        sampling.append(ExchangeKernel("all-gather", "all-gather", float(RESULT_BYTES * columns * tensor), "sampled"))
    launches = fusion.launches.get(SAMPLING, SAMPLING_LAUNCHES)
    sampling.append(Pointwise(SAMPLING, float(SAMPLED_BYTES * columns * tensor), launches=launches, rows="sampled"))
    return sampling


def _is_indexer(layer: Layer) -> bool:
    """Return whether a layer scores all keys of the cache to select those of sparse attention."""
    return layer.place.role == "indexer" and layer.kind == "matmul" and not layer.weights


def group_layers(layers: Sequence[Layer], phase: str, fusion: Fusion, context: int, tokens: int) -> list[GroupedKernel]:
    """Return the kernels of some layers, which compute so many tokens, in the order of their first layer."""
    return _KernelGrouping(layers, phase, fusion, context, tokens).parts()


class _KernelGrouping:
    """Assignment of layers to kernels."""

    def __init__(self, layers: Sequence[Layer], phase: str, fusion: Fusion, context: int, tokens: int) -> None:
        self.layers, self.fusion, self.context, self.tokens = layers, fusion, context, tokens
        self.phase_rows: Rows = "decoding" if phase == "decode" else "prompts"
        in_blocks = [index for index, layer in enumerate(layers) if layer.place.is_in_block]
        self.first, self.last = in_blocks[0], in_blocks[-1]
        self.anchors = self._find_anchors()

    def _find_anchors(self) -> dict[str, int]:
        """Return the position of attention or recurrence by the part of the block that it is in."""
        anchors = {}
        for index, layer in enumerate(self.layers):
            if is_attention(layer) or layer.kind in RECURRENCES:
                anchors[layer.place.part] = index
        return anchors

    def parts(self) -> list[GroupedKernel]:
        """Return the kernels in the order of their first layer."""
        groups: dict[object, list[int]] = {}
        for index, layer in enumerate(self.layers):
            key = self._kernel_key(index, layer)
            if key is not None:
                groups.setdefault(key, []).append(index)
        self._join_residuals(groups)
        parts = []
        for key, members in groups.items():
            kernel = self._kernel(key, members)
            if kernel is not None:
                parts.append(GroupedKernel(kernel, members[0]))
        return sorted(parts, key=lambda part: part.position)

    def _kernel_key(self, index: int, layer: Layer) -> object:
        """Return what layers of the same kernel have in common; None for layers without a kernel."""
        if is_all_reduce(layer) or is_attention(layer) or layer.kind in RECURRENCES or _is_indexer(layer):
            return (layer.kind, index)
        if layer.kind in VIEWS and layer.attributes.get("function") != "topk":
            return None
        place = layer.place
        if place.role == "experts":
            return ("experts", place.owner)
        if _is_product(layer):
            return ("product", place.module, self._producer(index), index > self.anchors.get(place.module, index))
        if index < self.first and not is_embedding(layer):
            return None  # masks and tables of positions, which the host prepares
        name = self._pointwise_name(index, layer)
        if name == NORM:
            return (NORM, place.owner)
        if name in (ROTARY, QUERY_KEY_NORM):
            return (name, place.number, place.part)
        return (name, place.number, place.owner if name == ROUTING else place.module)

    def _producer(self, index: int) -> int:
        """Return the layer whose output a product reads, behind views."""
        parent = self.layers[index].parents[0]
        while parent >= 0 and self.layers[parent].kind in VIEWS and self.layers[parent].parents:
            if is_all_reduce(self.layers[parent]):
                break
            parent = self.layers[parent].parents[0]
        return parent

    def _pointwise_producer(self, index: int) -> str:
        """Return the name of the pointwise kernel whose result a product reads; empty where there is none."""
        producer = self._producer(index)
        key = self._kernel_key(producer, self.layers[producer]) if producer >= self.first else None
        if not isinstance(key, tuple) or key[0] not in (NORM, ACTIVATION):
            return ""
        return str(key[0])

    def _pointwise_name(self, index: int, layer: Layer) -> str:
        """Return the name of the kernel of a pointwise layer."""
        if is_embedding(layer):
            return EMBEDDING
        place = layer.place
        is_norm = place.role == "norm"
        if index > self.last and not is_norm:
            return SAMPLING
        anchor = self.anchors.get(place.part)
        if anchor is not None:
            if is_norm:
                return QUERY_KEY_NORM if index < anchor else "output norm"
            if self.layers[anchor].kind in RECURRENCES:
                return "convolution" if index < anchor or is_cache(layer) else "output gate"
            if index < anchor:
                return ROTARY
            return OTHER if class_of(layer) == "copy" else "output gate"
        if is_norm:
            return NORM
        if place.role == "router":
            return ROUTING
        if not place.is_in_block:  # before the blocks, as the streams of Gemma 3n are made
            return OTHER
        if place.module == place.block and place.role != "feed-forward":
            return "residual"
        return COMBINATION if place.role == "mixture" and len(layer.inputs) > 1 else ACTIVATION

    def _join_residuals(self, groups: dict[object, list[int]]) -> None:
        """Let residual additions join the norm that follows them."""
        residuals = [key for key in groups if isinstance(key, tuple) and key[0] == "residual"]
        positions = [index for key in residuals for index in groups.pop(key)]
        starts = {min(groups[key]): key for key in groups if isinstance(key, tuple) and key[0] == NORM}
        for index in positions:
            following = [start for start in starts if start > index]
            if following:
                groups[starts[min(following)]].append(index)

    def _kernel(self, key: object, members: list[int]) -> Kernel | None:
        assert isinstance(key, tuple)
        first = self.layers[members[0]]
        if is_all_reduce(first):
            return ExchangeKernel("all-reduce", "all-reduce", RESULT_BYTES * prod(first.outputs[0]) / self.tokens)
        if is_attention(first):
            return self._attention(first)
        if _is_indexer(first):
            return self._indexer(first)
        if first.kind in RECURRENCES:
            return self._recurrence(first)
        if key[0] == "experts":
            return self._experts(members)
        if key[0] == "product":
            return self._product(members)
        return self._pointwise(str(key[0]), members)

    def _attention(self, layer: Layer) -> AttentionKernel:
        query, key = layer.inputs[0], layer.inputs[1]
        is_shared = bool(layer.attributes.get("shares_keys_and_values"))
        is_latent = is_shared or query[-1] != layer.inputs[2][-1]
        value_size = 0 if is_shared else layer.inputs[2][-1]
        window = layer.attributes.get("window")
        if window is None and self.phase_rows == "decoding":
            window = self._selected_keys(key)
        chunk = layer.attributes.get("attention_chunk")
        return AttentionKernel(
            "attention", query[1], key[1], key[-1], value_size, window, chunk, is_latent, self.phase_rows,
            has_sinks=bool(layer.weights), keeps=self._kept_tokens(layer),
        )  # fmt: skip

    def _kept_tokens(self, attention: Layer) -> Literal["window", "all", "none"]:
        """Return which tokens the cache of a block keeps, beside the keys of an indexer."""
        if self.phase_rows != "decoding":
            return "window"
        caches = [
            layer
            for layer in self.layers
            if is_cache(layer) and layer.place.block == attention.place.block and layer.place.role != "indexer"
        ]
        if not caches:
            return "none"
        return "all" if max(layer.outputs[0][2] for layer in caches) > self.context else "window"

    def _indexer(self, layer: Layer) -> AttentionKernel:
        """Return the kernel that scores all keys to select those of sparse attention: it reads keys only."""
        key = layer.inputs[1]
        heads = layer.inputs[0][-1] // key[-1]
        return AttentionKernel("indexer", heads, 1, key[-1], 0, self._selected_keys(key), rows=self.phase_rows)

    def _selected_keys(self, key: Shape) -> int | None:
        """Return the number of keys that a query reads where these are fewer than the tokens; else None."""
        tokens = self.context + (self.phase_rows == "decoding")
        return key[2] if key[2] < tokens else None

    def _recurrence(self, layer: Layer) -> Pointwise:
        """Return the kernel of a recurrence: the state is read and written, and every element of it is multiplied."""
        state = float(layer.attributes.get("state_elements") or 0)
        numbers = sum(prod(shape) for shape in (*layer.inputs, *layer.outputs)) / self.tokens
        if self.phase_rows == "decoding":
            row_bytes = RESULT_BYTES * numbers + 2 * STATE_BYTES * state
            return Pointwise("recurrence", row_bytes, rows="decoding", state_bytes=STATE_BYTES * state)
        return Pointwise(
            "recurrence", RESULT_BYTES * numbers, 2 * STATE_BYTES * state, row_flops=6.0 * state, rows="prompts"
        )

    def _experts(self, members: list[int]) -> ExpertsKernel | None:
        products = [self.layers[index] for index in members if _is_expert_product(self.layers[index])]
        if not products:
            return None
        count, hidden_size, width = products[0].weights[0]
        inner_size = products[-1].weights[0][1]
        matrices = 1 + round(width / inner_size) if len(products) == 2 else len(products)
        return ExpertsKernel("experts", hidden_size, inner_size, count, int(products[0].attributes["active"]), matrices)

    def _product(self, members: list[int]) -> ProductKernel:
        layers = [self.layers[index] for index in members]
        first = layers[0]
        name = self._product_name(members)
        if len(first.weights[0]) == 2:
            k = first.inputs[0][-1]
            n = sum(layer.outputs[0][-1] for layer in layers)
            groups = 1
        else:  # a matrix per head
            groups, k, n = first.weights[0]
        rows: Rows = "tokens"
        if members[0] > self.last:
            rows = "sampled"
        elif groups > 1 or name == "key and value up projection":
            rows = self.phase_rows
        part: Literal["attention", "feed-forward", "plain"] = "feed-forward"
        if name in ("router", "head") or groups > 1:
            part = "plain"
        elif first.place.part in self.anchors:
            part = "attention"
        has_own_weights = any(layer.parameters for layer in layers)  # not those of a tied head or a shared block
        is_stored = has_own_weights and name != "key and value up projection"
        return ProductKernel(name, n, k, groups, part, rows, is_stored, self._pointwise_producer(members[0]))

    def _product_name(self, members: list[int]) -> str:
        """Return the name of a product by its place."""
        index, layer = members[0], self.layers[members[0]]
        if index > self.last:
            return "head"
        place = layer.place
        anchor = self.anchors.get(place.part)
        if anchor is not None:
            if len(layer.weights[0]) > 2:
                return "latent key projection" if index < anchor else "latent value projection"
            if index > anchor:
                return "output projection"
            if self.layers[anchor].kind in RECURRENCES:
                return "input projection"
            if place.matrix in ("key and value up", "query up"):
                return f"{place.matrix} projection"
            return "QKV projection"
        if place.role == "router":
            return "router"
        shared = "shared experts: " if place.role == "shared experts" else ""
        same_module = [other for other in self.layers if other.place.module == place.module and _is_product(other)]
        if same_module[-1].name == self.layers[members[-1]].name:
            return f"{shared}down projection"
        return f"{shared}gate and up projection"

    def _pointwise(self, name: str, members: list[int]) -> Pointwise | None:
        """Return the kernel of pointwise layers: each tensor from outside is read once, each that leaves is written."""
        inside = set(members)
        launches = self.fusion.launches.get(name, 1)
        if name == OTHER:
            return None
        read: dict[int, int] = {}
        for index in members:
            layer = self.layers[index]
            for shape, parent in zip(layer.inputs, layer.parents):
                root = self._root(parent)
                if root not in inside and root >= self.first:
                    read[root] = max(read.get(root, 0), prod(shape))
        written = 0
        for index in members:
            layer = self.layers[index]
            if is_cache(layer):
                written += sum(prod(shape) for shape in layer.inputs)
            elif self._is_read_outside(index, inside):
                written += sum(prod(shape) for shape in layer.outputs)
        if name == SAMPLING:
            return None
        if name == EMBEDDING:
            read, written = {}, 2 * prod(self.layers[members[0]].outputs[0])
        row_bytes = RESULT_BYTES * (sum(read.values()) + written) / self.tokens
        rows: Rows = "sampled" if members[0] > self.last else "tokens"
        weights = sum(prod(shape) for index in members for shape in self.layers[index].weights)
        return Pointwise(name, row_bytes, launches=launches, rows=rows, weights=weights)

    def _root(self, parent: int) -> int:
        while parent >= 0 and self.layers[parent].kind in VIEWS and self.layers[parent].parents:
            parent = self.layers[parent].parents[0]
        return parent

    def _is_read_outside(self, index: int, inside: set[int]) -> bool:
        return not self._readers.get(index, set()) <= inside

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        """For each layer, the layers other than views that read its outputs, also through views."""
        readers: dict[int, set[int]] = {}
        for index, layer in enumerate(self.layers):
            if layer.kind not in VIEWS:
                for parent in layer.parents:
                    readers.setdefault(self._root(parent), set()).add(index)
        return readers


def _is_product(layer: Layer) -> bool:
    """Return whether a layer is a dense product with weights."""
    return class_of(layer) == "gemm" and bool(layer.weights) and not _is_expert_product(layer)


def _is_expert_product(layer: Layer) -> bool:
    """Return whether a layer is a product with the experts that each token chooses."""
    return "active" in layer.attributes

"""Tensors that a tuned training stack saves for the backward pass, and what recomputation by module frees.

Transformer Engine saves the input of every product in the numbers of its recipe, once for all products that read it;
the queries, keys, values and the result of attention; the input of every norm; and the inputs of every activation
function. Whatever is fused between them is computed again by the fused kernel of the backward pass. Eager attention
saves the weights of all keys instead of its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..counting import Layer
from ..counting.kinds import (
    ACTIVATIONS,
    KINDS,
    class_of,
    is_alias,
    is_attention,
    is_grouped_product,
    is_score_layer,
)
from ..counting.places import module_of
from ..timing.expert_kernels import expert_layers
from ..timing.fine_tuning import ADAPTER, original_layers
from ..timing.quantization import QUANTIZATION
from ..timing.training_options import TRAINING_RECIPES
from ..timing.workload import Workload, cached_for_layers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Booleans = NDArray[np.bool_]

RECOMPUTE_MODULES = {
    "layernorm": "results of norms, from which projections and feed-forward layers start",
    "moe_act": "results of activation functions, of experts and of plain feed-forward layers",
    "core_attn": "result of attention",
    "mla_up_proj": "queries, keys and values of latent attention, from their compressed forms",
    "mlp": "everything inside feed-forward layers without experts",
    "moe": "everything inside mixtures of experts, router and shared experts included; tokens are sent again",
    "shared_experts": "everything inside shared experts",
}
"""Modules that ``--recompute selective:MODULE`` names, as Megatron-LM does, and the tensors that are computed again."""

CONTAINED_MODULES = {"moe": ("moe_act", "shared_experts")}
"""Modules that are computed again as parts of another one."""

NUMBER_BYTES = 2.0
"""Bytes of a number that is not narrow."""

MASK_BYTES = 1.0
"""Bytes of a number of the mask of a dropout."""

_PASSED = ("view", "gather", "exchange", "copy")
"""Kinds of layers whose results are not saved, as they are those of their input, permuted, sent or repeated."""

_MIXING_GROUPS = ("attention", "convolution")
"""Groups of kinds that mix the tokens of recurrent blocks: scans, and convolutions over time."""


class SavedActivations(NamedTuple):
    """Bytes that a sample saves, and what each module of `RECOMPUTE_MODULES` frees and costs."""

    total_bytes: float  # saved without recomputation
    weights_bytes: float  # part of it that eager attention saves for each pair of a query and a key
    freed_bytes: tuple[float, ...]  # bytes that each module frees
    # Layers of the workload, the loss included, whose forward pass each module repeats, shape (modules, layers)
    repeated_layers: Booleans

    def times(self, samples: int) -> SavedActivations:
        """Return the same of a micro-batch of several samples."""
        return self._replace(
            total_bytes=samples * self.total_bytes,
            weights_bytes=samples * self.weights_bytes,
            freed_bytes=tuple(samples * freed for freed in self.freed_bytes),
        )

    def without_weights(self) -> SavedActivations:
        """Return the same where the scores of eager attention and their softmax are computed again."""
        return self._replace(total_bytes=self.total_bytes - self.weights_bytes, weights_bytes=0.0)


Tensors = dict[tuple[str, int], float]
"""Bytes of saved tensors, by their kind and the layer whose result they are."""


def saved_activations(workload: Workload, recipe: str | None) -> SavedActivations:
    """Return what a network saves for the backward pass of a sample, without the logits.

    `recipe` is that of narrow products.
    """
    return _Saving(workload, recipe).sum_up()


class _Saving:
    """Tensors that the layers of a network save, and those that each module of `RECOMPUTE_MODULES` computes again."""

    def __init__(self, workload: Workload, recipe: str | None) -> None:
        self.workload = workload
        self.layers = workload.network.layers
        self.positions = original_layers(workload.layers)  # of the layers of the network among those with adapters
        self.sources = [_skip_views(self.layers, index) for index in range(len(self.layers))]
        self.narrow_bytes = NUMBER_BYTES if recipe is None else TRAINING_RECIPES[recipe].saved_bytes
        self.saved: Tensors = {}
        self.freed: dict[str, Tensors] = {name: {} for name in RECOMPUTE_MODULES}
        self.repeated: dict[str, set[int]] = {name: set() for name in RECOMPUTE_MODULES}
        self.weights: Tensors = {}  # of eager attention

    def sum_up(self) -> SavedActivations:
        """Return the bytes of all layers and of each module."""
        products_before = _activation_layers(self.layers)
        for index, layer in enumerate(self.layers):
            if index in products_before:
                self.save("tensor", products_before[index], self.result_bytes(products_before[index]))
                self.repeated["moe_act"].add(index)
            else:
                self.save_tensors_of(index, layer)
        self.save_scores()
        self.free_parts()
        return SavedActivations(
            sum(self.saved.values()),
            sum(self.weights.values()),
            tuple(sum(self.freed[name].values()) for name in RECOMPUTE_MODULES),
            np.array(
                [_are_at(self.workload.layers, self.positions, self.repeated[name]) for name in RECOMPUTE_MODULES]
            ),
        )

    def save(self, kind: str, index: int, size: float, freed_by: str | None = None) -> None:
        """Note the bytes of a tensor, and the module that computes it again."""
        self.saved[kind, index] = size
        if freed_by is not None:
            self.freed[freed_by][kind, index] = size

    def result_bytes(self, index: int) -> float:
        """Return the bytes of the result of a layer."""
        return prod(self.layers[index].outputs[0]) * NUMBER_BYTES

    def save_tensors_of(self, index: int, layer: Layer) -> None:
        """Note what a layer saves, and the module that repeats it."""
        layers, sources, workload = self.layers, self.sources, self.workload
        if class_of(layer) == "gemm" and _has_weight_gradient(workload.layers, self.positions[index]):
            source, elements, module = _product_input(layers, sources, index)
            is_narrow = _is_saved_narrow(workload, self.positions[index])
            self.save("product", source, elements * (self.narrow_bytes if is_narrow else NUMBER_BYTES), module)
        elif is_attention(layer):
            self.saved |= _attention_inputs(layers, sources, layer)
            self.save("tensor", index, self.result_bytes(index), "core_attn")
            self.repeated["core_attn"].add(index)
        elif _is_norm(layer):
            self.save("norm", index, self.result_bytes(index))
            self.repeated["layernorm"].add(index)
        elif layer.kind in ACTIVATIONS or _mixes_tokens(layer):
            self.save("tensor", _source(sources, layer, 0), prod(layer.inputs[0]) * NUMBER_BYTES)
            if layer.kind in ACTIVATIONS:
                self.repeated["moe_act"].add(index)
        elif _is_gate(layers, sources, layer):
            self.repeated["moe_act"].add(index)
            _save_gated_inputs(self.saved, layers, sources, layer)
        elif _is_power_of_activation(layers, sources, layer):
            self.repeated["moe_act"].add(index)

    def save_scores(self) -> None:
        """Note what eager attention saves, whose scores and softmax are layers of their own."""
        layers, sources = self.layers, self.sources
        keys = self.workload.network.lengths.keys if self.workload.network.lengths else 0
        scores = [index for index, layer in enumerate(layers) if is_score_layer(layer, keys)]
        products = [layers[index] for index in scores if class_of(layers[index]) == "gemm"]
        for product in products:
            self.saved |= _attention_inputs(layers, sources, product)
        self.weights = _attention_weights(layers, sources, products, keys)
        self.saved |= self.weights
        self.freed["core_attn"] |= self.weights
        self.repeated["core_attn"].update(scores)

    def free_parts(self) -> None:
        """Note what modules free that are whole parts of a block, and the up-projections of latent attention."""
        layers, sources = self.layers, self.sources
        parts = cached_for_layers(_module_layers, layers)
        self.repeated |= parts
        for module, inside in parts.items():
            self.freed[module] = {
                key: size for key, size in self.saved.items() if key[1] in inside and key[0] != "norm"
            }
        self.repeated["mla_up_proj"] = set(_latent_up_projections(layers, sources))
        if self.repeated["mla_up_proj"]:
            read = {_source(sources, layer, number) for layer in layers if is_attention(layer) for number in range(3)}
            self.freed["mla_up_proj"] = {
                key: size for key, size in self.saved.items() if key[0] == "tensor" and key[1] in read
            }


def _product_input(layers: tuple[Layer, ...], sources: list[int], index: int) -> tuple[int, int, str | None]:
    """Return the layer whose result a product saves, the elements of it, and the module that computes it again."""
    product = layers[index]
    source = _source(sources, product, 0)
    elements, module = prod(product.inputs[0]), _module_of(layers, source)
    if is_grouped_product(product):  # its own copy, with a row per token and expert
        return (source, elements, module) if module == "moe_act" else (index, elements, None)
    if source >= 0:  # sequence parallelism saves its part of the sequence, and gathers it again
        elements = min(elements, prod(layers[source].outputs[0]))
    return source, elements, module


def _attention_inputs(layers: tuple[Layer, ...], sources: list[int], attention: Layer) -> Tensors:
    """Return the bytes of the queries, keys and values that attention saves."""
    saved = {}
    for number, shape in enumerate(attention.inputs[:3]):
        source = _source(sources, attention, number)  # keys and values may be repeated for groups of queries
        elements = min(prod(shape), prod(layers[source].outputs[0])) if source >= 0 else prod(shape)
        saved["tensor", source] = elements * NUMBER_BYTES
    return saved


def _attention_weights(layers: tuple[Layer, ...], sources: list[int], products: Sequence[Layer], keys: int) -> Tensors:
    """Return the bytes of the weights that eager attention saves, given the products of all attention.

    The softmax saves its result, and so does the product with values; a dropout between them its mask.
    """
    saved = {}
    for product in products:
        if product.inputs[0][-2:] != (keys, keys):
            continue  # the product of queries and keys
        elements = prod(product.inputs[0])
        weights = _source(sources, product, 0)
        saved["tensor", weights] = elements * NUMBER_BYTES
        if layers[weights].kind == "dropout" and not is_alias(layers[weights]):
            saved["mask", weights] = elements * MASK_BYTES
            saved["tensor", _source(sources, layers[weights], 0)] = elements * NUMBER_BYTES
    return saved


def _has_weight_gradient(layers: Sequence[Layer], index: int) -> bool:
    """Return whether a product or its adapter, whose layers follow it, has trained weights."""
    layer = layers[index]
    return bool(layer.weights) and (not layer.is_frozen or _has_adapter(layers, index))


def _has_adapter(layers: Sequence[Layer], index: int) -> bool:
    after = next((layer for layer in layers[index + 1 :] if layer.origin != QUANTIZATION), None)
    return after is not None and after.attributes.get(ADAPTER) in ("product", "dropout")


def _is_saved_narrow(workload: Workload, index: int) -> bool:
    """Return whether the saved input of a product is narrow: adapters read the same input, and save it in 16 bits."""
    return bool(workload.uses_narrow_products[index]) and not _has_adapter(workload.layers, index)


def _are_at(layers: Sequence[Layer], positions: Sequence[int], originals: set[int]) -> list[bool]:
    """Return for each layer whether it is one of those of the network without fine-tuning."""
    chosen = {positions[original] for original in originals}
    return [index in chosen for index in range(len(layers))]


def _save_gated_inputs(
    saved: Tensors,
    layers: tuple[Layer, ...],
    sources: list[int],
    gate: Layer,
) -> None:
    """Add the tensor that a gate multiplies with the result of an activation function."""
    for number in range(2):
        source = _source(sources, gate, number)
        if source >= 0 and layers[source].kind not in ACTIVATIONS:
            other_part = saved.get(("tensor", source), 0.0) if layers[source].kind == "slice" else 0.0
            saved["tensor", source] = other_part + prod(gate.inputs[number]) * NUMBER_BYTES


def _activation_layers(layers: tuple[Layer, ...]) -> dict[int, int]:
    """Return the layers of the activation functions of experts, each one kernel, with the product that they read."""
    return {index: first for first, last in expert_layers(layers) for index in range(first + 1, last)}


def _module_layers(layers: tuple[Layer, ...]) -> dict[str, set[int]]:
    """Return the layers of the modules that are computed again as a whole.

    A mixture is the part of a block with grouped products, and its shared experts are a module inside it. A
    feed-forward layer without experts is the module of a product that reads an activation function.
    """
    places = [layer.place for layer in layers]
    mixtures = {module_of(place.owner) for place, layer in zip(places, layers) if is_grouped_product(layer)}
    sources = [_skip_views(layers, index) for index in range(len(layers))]
    dense = set()
    for place, layer in zip(places, layers):
        if class_of(layer) == "gemm" and layer.weights and not is_grouped_product(layer):
            source = _source(sources, layer, 0)
            if source >= 0 and _is_activated(layers, sources, layers[source]):
                dense.add(place.module)
    shared = {module for module in dense if module_of(module) in mixtures}

    def inside(modules: set[str]) -> set[int]:
        return {index for index, place in enumerate(places) if not modules.isdisjoint(place.modules_around)}

    return {"mlp": inside(dense - shared), "moe": inside(mixtures), "shared_experts": inside(shared)}


def _latent_up_projections(layers: tuple[Layer, ...], sources: list[int]) -> list[int]:
    """Return the products that read the norm of another product's result: those of compressed queries and keys."""
    projections = []
    for index, layer in enumerate(layers):
        if class_of(layer) != "gemm" or not layer.weights or is_grouped_product(layer):
            continue
        norm = _source(sources, layer, 0)
        if norm >= 0 and _is_norm(layers[norm]):
            read = _source(sources, layers[norm], 0)
            owner = layers[norm].place.owner  # a norm may be written as several layers
            while read >= 0 and (layers[read].kind == "slice" or (owner and layers[read].place.owner == owner)):
                read = _source(sources, layers[read], 0)
            if read >= 0 and class_of(layers[read]) == "gemm" and layers[read].weights:
                projections.append(index)
    return projections


def _skip_views(layers: tuple[Layer, ...], index: int) -> int:
    while layers[index].kind in _PASSED and layers[index].parents and layers[index].parents[0] >= 0:
        index = layers[index].parents[0]
    return index


def _source(sources: list[int], layer: Layer, number: int) -> int:
    """Return the layer that computes an input, behind views and permutations; negative for inputs of the network."""
    parent = layer.parents[number] if number < len(layer.parents) else -1
    return sources[parent] if parent >= 0 else parent


def _is_norm(layer: Layer) -> bool:
    """Return whether a layer is a norm, or the scale of one that is written as several layers."""
    return class_of(layer) == "norm" or (class_of(layer) == "elementwise" and bool(layer.weights))


def _mixes_tokens(layer: Layer) -> bool:
    """Return whether a layer of a recurrent block reads several tokens."""
    return layer.kind in KINDS and KINDS[layer.kind].group in _MIXING_GROUPS


def _is_gate(layers: tuple[Layer, ...], sources: list[int], layer: Layer) -> bool:
    """Return whether a layer multiplies the result of an activation function with another tensor of its shape."""
    if layer.kind != "mul" or len(layer.inputs) != 2 or layer.inputs[0] != layer.inputs[1]:
        return False
    producers = [_source(sources, layer, number) for number in range(2)]
    return any(producer >= 0 and layers[producer].kind in ACTIVATIONS for producer in producers)


def _is_activated(layers: tuple[Layer, ...], sources: list[int], layer: Layer) -> bool:
    """Return whether a layer is an activation function, or the gate or the power of one."""
    return (
        layer.kind in ACTIVATIONS or _is_gate(layers, sources, layer) or _is_power_of_activation(layers, sources, layer)
    )


def _is_power_of_activation(layers: tuple[Layer, ...], sources: list[int], layer: Layer) -> bool:
    """Return whether a layer squares the result of an activation function, as in a squared ReLU."""
    source = _source(sources, layer, 0)
    return layer.kind == "pow" and source >= 0 and layers[source].kind in ACTIVATIONS


def _module_of(layers: tuple[Layer, ...], source: int) -> str | None:
    """Return the module that computes the input of a product again; None where it must be saved."""
    if source < 0:
        return None
    layer = layers[source]
    if _is_norm(layer):
        return "layernorm"
    if layer.kind in (*ACTIVATIONS, "mul", "pow"):
        return "moe_act"
    return None

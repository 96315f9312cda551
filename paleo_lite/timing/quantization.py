"""Quantized weights at inference: which layers are stored in a format, their bytes, and what a pass reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..architectures.stored_weights import StoredWeights
from ..counting import Layer, Work
from ..counting.kinds import class_of, is_attention, is_convolution, is_expert_layer
from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.layer import Matrix, Shape
from ..counting.places import TABLE_KINDS, parts_of
from ..counting.work import COLUMNS, PASSES
from ..formats import FORMATS, Format, wide_bytes
from ..gguf_types import Proportions, Role, mean_bytes_per_number
from ..units import element_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray


QUANTIZATION = "opaque:quantization"
"""Origin of an inserted kernel that quantizes activations, as in `Layer.origin`."""

CONVERSION = "opaque:dequantization"
"""Origin of an inserted kernel that converts quantized weights."""


def is_stored(layers: Sequence[Layer], stored: Format | None, reads_tokens: bool) -> tuple[bool, ...]:
    """Return whether the weight matrix of each layer is stored in a format.

    A format for experts stores all matrices in the blocks of a network that has no experts.
    """
    if stored is None:
        return (False,) * len(layers)
    parts, chosen = parts_of(layers, reads_tokens), set(stored.parts)
    if "experts" in chosen and "experts" not in parts:
        chosen.add("dense")
    return tuple(part in chosen for part in parts)


def parameter_bytes(
    layers: Sequence[Layer],
    precision: str,  # of the arithmetic
    # Format of the weight matrices, or the formats of a checkpoint; None if all parameters have the numbers of the
    # precision.
    stored: Format | StoredWeights | None,
    reads_tokens: bool,  # as in `parts_of`
) -> int:
    """Return the bytes of all parameters at inference."""
    parameters = sum(layer.parameters for layer in layers)
    if stored is None:
        return parameters * element_bytes(precision)
    elements, total = 0, 0.0
    for layer, size in zip(layers, stored_bytes_per_number(layers, stored, reads_tokens)):
        if size is not None and layer.parameters:
            elements += prod(layer.weights[0])
            total += prod(layer.weights[0]) * size
    return round(total) + (parameters - elements) * wide_bytes(precision)


def has_stored_weights(
    layers: Sequence[Layer], stored: Format | StoredWeights | None, reads_tokens: bool
) -> tuple[bool, ...]:
    """Return whether the weight matrix of each layer is quantized."""
    return tuple(size is not None for size in stored_bytes_per_number(layers, stored, reads_tokens))


def stored_bytes_per_number(
    layers: Sequence[Layer], stored: Format | StoredWeights | None, reads_tokens: bool
) -> list[float | None]:
    """Return the bytes per number of the weight matrix of each layer; None for matrices that are not quantized.

    Under a mixture of llama.cpp they are means over all blocks, so that some blocks of a network count as all of them.
    """
    if isinstance(stored, StoredWeights):
        formats = stored.formats_of(layers, parts_of(layers, reads_tokens))
        return [None if layer_format is None else layer_format.bytes_per_number for layer_format in formats]
    chosen = is_stored(layers, stored, reads_tokens)
    if stored is None or stored.mixture is None:
        return [stored.bytes_per_number if is_chosen and stored is not None else None for is_chosen in chosen]
    roles, network = tensor_roles(layers, reads_tokens), proportions_of(layers)
    known_sizes: dict[tuple[Role, int], float] = {}
    sizes: list[float | None] = []
    for layer, role, is_chosen in zip(layers, roles, chosen):
        if not is_chosen or role is None:
            sizes.append(None)
            continue
        key = (role, row_length(layer))
        if key not in known_sizes:
            known_sizes[key] = mean_bytes_per_number(stored.mixture, *key, network)
        sizes.append(known_sizes[key])
    return sizes


def quantize_inputs(
    layers: Sequence[Layer], stored: Format | StoredWeights | None, reads_tokens: bool, widths: tuple[int, float]
) -> tuple[Layer, ...]:
    """Return the layers with a kernel that quantizes each tensor which products with quantized weights read.

    The layers are those of a network at inference; the kernel reads and writes so many bytes per number (`widths`). The
    rest is as in `parameter_bytes`.
    """
    inserted: list[Layer] = []
    new_indices: list[int] = []
    quantized: dict[tuple[int, Shape], int] = {}
    for layer, is_chosen in zip(layers, has_stored_weights(layers, stored, reads_tokens)):
        parents = [new_indices[parent] if parent >= 0 else parent for parent in layer.parents]
        if is_chosen and parents and layer.inputs:
            source, shape = parents[0], layer.inputs[0]
            if (source, shape) not in quantized:
                quantized[source, shape] = len(inserted)
                name, attributes = f"{layer.name}.quantize", {"widths": widths}
                place = layer.place.of_addition(layer.name)
                inserted.append(
                    Layer(name, "copy", (shape,), (shape,), (), (source,), 0, attributes, QUANTIZATION, place)
                )
            parents[0] = quantized[source, shape]
        new_indices.append(len(inserted))
        inserted.append(layer._replace(parents=tuple(parents)))
    return tuple(inserted)


def dequantize_weights(
    layers: Sequence[Layer], stored: Format | StoredWeights | None, reads_tokens: bool, number_bytes: int
) -> tuple[Layer, ...]:
    """Return the layers with a kernel before each product that converts its quantized weights.

    Libraries do so for products of many rows: bitsandbytes' ``MatMul4Bit``, the nodes for GGUF files of ComfyUI. The
    layers are those of a network at inference; `number_bytes` are those of a converted number. The rest is as in
    `parameter_bytes`.
    """
    inserted: list[Layer] = []
    new_indices: list[int] = []
    for layer, size in zip(layers, stored_bytes_per_number(layers, stored, reads_tokens)):
        attributes = layer.attributes
        if size is not None:
            shape, widths = layer.weights[0], {"widths": (size, number_bytes)}
            name, place = f"{layer.name}.dequantize", layer.place.of_addition(layer.name)
            inserted.append(Layer(name, "copy", (), (shape,), (shape,), (), 0, widths, CONVERSION, place))
            attributes = {**attributes, "dequantized": True}
        new_indices.append(len(inserted))
        parents = tuple(new_indices[parent] if parent >= 0 else parent for parent in layer.parents)
        inserted.append(layer._replace(parents=parents, attributes=attributes))
    return tuple(inserted)


def read_quantized_inputs(
    work: Work, layers: Sequence[Layer], is_narrow: NDArray[np.bool_], saved_bytes: float
) -> Work:
    """Return the work of inference with products that read `saved_bytes` less per number of their quantized inputs."""
    read, inference = COLUMNS.index("bytes_read"), PASSES.index("inference")
    fixed, per_sample = work.fixed.copy(), work.per_sample.copy()
    for index in map(int, np.flatnonzero(is_narrow)):
        column = per_sample if per_sample[read, inference, index] else fixed
        column[read, inference, index] -= round(prod(layers[index].inputs[0]) * saved_bytes)
    return msgspec.structs.replace(work, fixed=fixed, per_sample=per_sample)


_ROLES: dict[Matrix, Role] = {
    "query": "attn_q", "key": "attn_k", "value": "attn_v", "query, key and value": "attn_qkv",
    "attention output": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "gate and up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
"""Roles of matrices in a GGUF file; others have the role ``other``."""


def tensor_roles(layers: Sequence[Layer], reads_tokens: bool) -> list[Role | None]:
    """Return the role of each layer's matrix in a GGUF file; None for layers that are not quantized there."""
    parts = parts_of(layers, reads_tokens)
    shares_table = any(part == "head" and not layer.parameters for layer, part in zip(layers, parts))
    roles: list[Role | None] = []
    for layer, part in zip(layers, parts):
        role: Role | None = _ROLES.get(layer.place.matrix, "other")
        if part is None or part == "router" or is_convolution(layer):
            role = None
        elif part == "head":
            role = "output"
        elif part == "embedding":
            role = "output" if shares_table else "token_embd"
        elif part == "experts":
            role = "experts_down" if role == "ffn_down" else "experts"
        roles.append(role)
    return roles


def row_length(layer: Layer) -> int:
    """Return the numbers per row of a layer's matrix: the depth of its product."""
    shape = layer.weights[0]
    return shape[1] if len(shape) > 1 else shape[0]


def proportions_of(layers: Sequence[Layer]) -> Proportions:
    """Return the proportions of a network on which the rules of mixtures depend.

    A sample of fewer than eight blocks stands for a network of 32.
    """
    blocks = max((layer.place.number or 0 for layer in layers if layer.weights), default=0) + 1
    experts = max((layer.weights[0][0] for layer in layers if layer.weights and is_expert_layer(layer)), default=0)
    attended = next((layer for layer in layers if is_attention(layer)), None)
    heads_per_key = 1 if attended is None else attended.inputs[0][1] // max(attended.inputs[1][1], 1)
    return Proportions(blocks if blocks >= 8 else 32, heads_per_key, experts)


def read_stored_weights(
    work: Work,  # counts with all weights in the precision
    layers: Sequence[Layer],
    stored: Format | StoredWeights | None,
    reads_tokens: bool,
    batch_size: int | None = None,  # for which experts that have no token are not read; None to read all experts
) -> Work:
    """Return the work of inference with weights read in their format, and with products in 16 bits marked.

    Format and `reads_tokens` are as in `parameter_bytes`.
    """
    element_size = element_bytes(work.precision)
    wide_size = element_size if stored is None else wide_bytes(work.precision)
    read, inference = COLUMNS.index("bytes_read"), PASSES.index("inference")
    fixed, per_sample = work.fixed.copy(), work.per_sample.copy()
    sizes = stored_bytes_per_number(layers, stored, reads_tokens)
    chosen = [size is not None for size in sizes]
    for index, layer in enumerate(layers):
        if not layer.weights:
            continue
        own_size = sizes[index]
        size = wide_size if own_size is None or layer.attributes.get("dequantized") else own_size
        if layer.kind in TABLE_KINDS or (layer.kind == "gather" and not layer.inputs):
            column = per_sample if per_sample[read, inference, index] else fixed
            column[read, inference, index] += round(prod(layer.outputs[0]) * (size - element_size))
            continue
        if not fixed[read, inference, index]:  # a layer without a counting rule
            continue
        matrix, other_numbers = prod(layer.weights[0]), sum(prod(shape) for shape in layer.weights[1:])
        size *= 1.0 if batch_size is None else _read_fraction(layer, batch_size)
        change = matrix * (size - element_size) + other_numbers * (wide_size - element_size)
        fixed[read, inference, index] += round(change)
    return msgspec.structs.replace(
        work, fixed=fixed, per_sample=per_sample, wide=_find_wide_products(layers, chosen, work.precision)
    )


def _read_fraction(layer: Layer, batch_size: int) -> float:
    """Return the expected fraction of the experts of a layer that have a token; 1 for layers without experts.

    Of E experts, of which each token selects k, n tokens select ``E (1 - (1 - k/E)^n)`` in expectation, if all experts
    are equally likely.
    """
    active = layer.attributes.get("active")
    if not active:
        return 1.0
    experts = layer.weights[0][0]
    tokens = batch_size * layer.outputs[0][0] // active
    fraction: float = 1 - (1 - active / experts) ** tokens
    return fraction


def _find_wide_products(layers: Sequence[Layer], chosen: Sequence[bool], precision: str) -> NDArray[np.bool_] | None:
    """Return the products that are computed in 16 bits in a network of a quantized precision; None in other precisions.

    They are the products with weights that are not quantized and, where activations have 16 bits, those of two
    activations, as in attention.
    """
    if not FORMATS[precision].is_quantized:
        return None
    has_wide_activations = not element_bytes(precision) < wide_bytes(precision)
    wide = [
        class_of(layer) in MATRIX_CLASSES and not is_quantized and (bool(layer.weights) or has_wide_activations)
        for layer, is_quantized in zip(layers, chosen)
    ]
    return np.array(wide, dtype=bool)

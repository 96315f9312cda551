"""Quantized weights at inference: which layers are stored in a format, their bytes, and what a pass reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..architectures.checkpoint import StoredWeights
from ..counting import Layer, Work
from ..counting.kinds import class_of
from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.work import COLUMNS, PASSES
from ..formats import FORMATS, Format, Part, wide_bytes
from ..units import element_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

TABLE_KINDS = ("embedding", "embedding_bag")
"""Kinds of look-up tables, of which a pass reads the rows of its tokens."""


def parts_of(layers: Sequence[Layer], reads_tokens: bool) -> tuple[Part | None, ...]:
    """Return the part of the network to which the weight matrix of each layer belongs; None for layers without one.

    The head is the last layer with weights, if it is a product outside the numbered blocks. A router is the product
    from whose outputs the largest are chosen (top-k).

    Parameters
    ----------
    layers : sequence of Layer
        Layers of a network, or of some of its blocks.
    reads_tokens : bool
        Whether the network reads tokens: other networks have no head that keeps its precision.
    """
    parts: list[Part | None] = [_part_of(layer) for layer in layers]
    last = max((index for index, layer in enumerate(layers) if layer.weights), default=None)
    if reads_tokens and last is not None and parts[last] == "dense":
        is_in_block = any(name.isdigit() for name in layers[last].name.split("."))
        if not is_in_block:
            parts[last] = "head"
    for index, layer in enumerate(layers):
        if layer.attributes.get("function") == "topk":
            router = _find_product_before(layers, index)
            if router is not None and parts[router] == "dense":
                parts[router] = "router"
    return tuple(parts)


def _part_of(layer: Layer) -> Part | None:
    """Return the part of a layer by its kind alone."""
    if not layer.weights:
        return None
    if layer.kind in TABLE_KINDS:
        return "embedding"
    if "active" in layer.attributes:  # experts, of which each token selects so many
        return "experts"
    return "dense" if class_of(layer) in MATRIX_CLASSES else None


def _find_product_before(layers: Sequence[Layer], index: int) -> int | None:
    """Return the nearest product from which a layer's first inputs come; None if there is none."""
    while True:
        parents = [parent for parent in layers[index].parents if parent >= 0]
        if not parents:
            return None
        index = parents[0]
        if class_of(layers[index]) in MATRIX_CLASSES:
            return index


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
    layers: Sequence[Layer], precision: str, stored: Format | StoredWeights | None, reads_tokens: bool
) -> int:
    """Return the bytes of all parameters at inference.

    Parameters
    ----------
    layers : sequence of Layer
        The layers.
    precision : str
        Precision of the arithmetic.
    stored : Format, StoredWeights or None
        Format of the weight matrices, or the formats of a checkpoint; None if all parameters have the numbers of the
        precision.
    reads_tokens : bool
        As in `parts_of`.
    """
    parameters = sum(layer.parameters for layer in layers)
    if stored is None:
        return parameters * element_bytes(precision)
    elements, total = 0, 0.0
    for layer, size in zip(layers, stored_bytes_per_number(layers, stored, reads_tokens)):
        if size is not None and layer.parameters:
            elements += prod(layer.weights[0])
            total += prod(layer.weights[0]) * size
    return round(total) + (parameters - elements) * wide_bytes(precision)


def stored_bytes_per_number(
    layers: Sequence[Layer], stored: Format | StoredWeights | None, reads_tokens: bool
) -> list[float | None]:
    """Return the bytes per number of the weight matrix of each layer; None for matrices that are not quantized."""
    if isinstance(stored, StoredWeights):
        formats = stored.formats_of(layers, parts_of(layers, reads_tokens))
        return [None if own is None else own.bytes_per_number for own in formats]
    chosen = is_stored(layers, stored, reads_tokens)
    return [stored.bytes_per_number if is_chosen and stored is not None else None for is_chosen in chosen]


def read_stored_weights(
    work: Work,
    layers: Sequence[Layer],
    stored: Format | StoredWeights | None,
    reads_tokens: bool,
    batch_size: int | None = None,
) -> Work:
    """Return the work of inference with weights read in their format, and with products in 16 bits marked.

    Parameters
    ----------
    work : Work
        Counts with all weights in the precision.
    layers : sequence of Layer
        The counted layers.
    stored : Format, StoredWeights or None
        Format of the weight matrices, or the formats of a checkpoint; None if all parameters have the numbers of the
        precision.
    reads_tokens : bool
        As in `parts_of`.
    batch_size : int or None
        Batch size for which experts that have no token are not read; None to read all experts.
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
        size = wide_size if own_size is None else own_size
        if layer.kind in TABLE_KINDS or (layer.kind == "gather" and not layer.inputs):
            column = per_sample if per_sample[read, inference, index] else fixed
            column[read, inference, index] += round(prod(layer.outputs[0]) * (size - element_size))
            continue
        if not fixed[read, inference, index]:  # a layer without a counting rule
            continue
        matrix, others = prod(layer.weights[0]), sum(prod(shape) for shape in layer.weights[1:])
        size *= 1.0 if batch_size is None else _read_fraction(layer, batch_size)
        change = matrix * (size - element_size) + others * (wide_size - element_size)
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

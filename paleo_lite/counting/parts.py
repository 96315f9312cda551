"""Parts of a network by which formats of weights differ: embedding, head, routers, experts, and other products."""

from __future__ import annotations

from collections.abc import Sequence

from ..formats import Part
from .kinds import class_of
from .kinds.products import MATRIX_CLASSES
from .layer import Layer

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

"""The places of layers in networks without a builder, from their names; and parts by which formats of weights differ.

A builder states the block, the module and the role of a layer as it adds it. Traced modules, exported programs, ONNX,
Caffe and descriptors get them from `place_layers`. This module alone reads the text of layer names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from ..formats import Part
from .kinds import class_of, is_expert_layer
from .kinds.products import MATRIX_CLASSES
from .layer import Layer, Matrix, Place, Role

TABLE_KINDS = ("embedding", "embedding_bag")
"""Kinds of look-up tables, of which a pass reads the rows of its tokens."""

_NORM = re.compile(r"norm|(?:^|_)ln(?:_|$)", re.IGNORECASE)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_FEED_FORWARD = re.compile(r"mlp|ffn|feed_?forward", re.IGNORECASE)
_ATTENTION_COPY = re.compile(r"self_attention\.(?:contiguous|reshape)(?:#\d+)?$")
"""Names of the copies of queries, keys, values and output in ``torch.nn.MultiheadAttention``."""

_MATRICES: tuple[tuple[str, Matrix], ...] = (
    ("qkv", "query, key and value"), ("c_attn", "query, key and value"), ("query_key_value", "query, key and value"),
    ("kv_b_proj", "key and value up"), ("q_b_proj", "query up"), ("q_proj", "query"), ("k_proj", "key"),
    ("v_proj", "value"), ("o_proj", "attention output"), ("gate_up", "gate and up"), ("gate_proj", "gate"),
    ("up_proj", "up"), ("down_proj", "down"), ("w1", "gate"), ("w3", "up"), ("w2", "down"),
)  # fmt: skip
"""Matrices by what the last part of a name contains; the first that fits."""

_TOWERS = ("vision", "visual", "audio")


def module_of(name: str) -> str:
    """Return the module that contains a layer."""
    return name.rpartition(".")[0]


def last_part(name: str) -> str:
    """Return the name of a layer in its module."""
    return name.rpartition(".")[2]


def called_module(name: str) -> str:
    """Return the name of a layer without the number of the call."""
    return name.partition("#")[0]


def matches_module(name: str, pattern: str) -> bool:
    """Return whether the name of a layer matches a name or pattern.

    A name without wildcards is the end of a layer's name, such as ``q_proj`` for ``model.layers.0.self_attn.q_proj``,
    or one of its modules, such as ``model.layers.0``. A pattern with ``*``, ``?`` or ``[...]`` matches a whole name.
    """
    name = called_module(name)
    if any(character in pattern for character in "*?["):
        return fnmatchcase(name, pattern)
    return name == pattern or name.endswith(f".{pattern}") or name.startswith(f"{pattern}.")


def is_in_tower(layer: Layer) -> bool:
    """Return whether a layer belongs to an encoder of images or sound before a language model."""
    return layer.name.partition(".")[0] in _TOWERS


def is_attention_copy(layer: Layer) -> bool:
    """Return whether a layer copies an operand or the output of ``torch.nn.MultiheadAttention``."""
    return layer.kind == "copy" and _ATTENTION_COPY.search(layer.name) is not None


@lru_cache(256)
def matrix_of(last: str) -> Matrix:
    """Return the matrix that the last part of a name stands for."""
    return next((matrix for text, matrix in _MATRICES if text in last), "")


def parts_of(layers: Sequence[Layer], reads_tokens: bool) -> tuple[Part | None, ...]:
    """Return the part of the network to which the weight matrix of each layer belongs; None for layers without one.

    A network that does not read tokens has no head that keeps its precision.
    """
    return tuple([_part_of(layer, reads_tokens) for layer in layers])


def _part_of(layer: Layer, reads_tokens: bool) -> Part | None:
    if not layer.weights:
        return None
    if layer.kind in TABLE_KINDS:
        return "embedding"
    if is_expert_layer(layer):  # experts, of which each token selects so many
        return "experts"
    if class_of(layer) not in MATRIX_CLASSES:
        return None
    if layer.place.role == "head":
        return "head" if reads_tokens else "dense"
    return "router" if layer.place.role == "router" else "dense"


def place_layers(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers of a network without a builder, with the places that their names state.

    A router is the product from whose outputs the largest are chosen (top-k); the head is the last layer with weights,
    if it is a product outside the blocks.
    """
    places = [_read_place(layer) for layer in layers]
    mixtures = {module_of(place.owner) for place in places if place.role == "experts"} - {""}
    for index, place in enumerate(places):
        if place.role in ("", "feed-forward") and not mixtures.isdisjoint(place.modules_around):
            is_shared = "shared" in place.module
            places[index] = place._replace(role="shared experts" if is_shared else "mixture")
    products = [_is_dense_product(layer) for layer in layers]
    last = max((index for index, layer in enumerate(layers) if layer.weights), default=None)
    if last is not None and products[last] and not places[last].block:
        places[last] = places[last]._replace(role="head")
    for index, layer in enumerate(layers):
        if layer.attributes.get("function") == "topk":
            router = _find_product_before(layers, products, index)
            if router is not None and places[router].role != "head":
                places[router] = places[router]._replace(role="router", owner=layers[router].name)
    return tuple([layer._replace(place=place) for layer, place in zip(layers, places)])


def _read_place(layer: Layer) -> Place:
    """Return the place of a layer as its name states it."""
    names = layer.name.split(".")
    modules = names[:-1]
    number = next((index for index, name in enumerate(names) if name.isdigit()), None)
    place = Place(module=module_of(layer.name), matrix=matrix_of(names[-1]))
    if number is not None:
        part = ".".join(names[: number + 2]) if len(names) > number + 2 else ""
        place = place._replace(block=".".join(names[: number + 1]), number=int(names[number]), part=part)
    norm = next((index for index, name in enumerate(names) if _NORM.search(name)), None)
    if norm is not None:
        return place._replace(role="norm", owner=called_module(".".join(names[: norm + 1])))
    if "experts" in modules:
        return place._replace(role="experts", owner=".".join(modules[: modules.index("experts") + 1]))
    roles: tuple[tuple[Role, re.Pattern[str]], ...] = (("attention", _ATTENTION), ("feed-forward", _FEED_FORWARD))
    for role, pattern in roles:
        position = next((index for index, name in enumerate(modules) if pattern.search(name)), None)
        if position is not None:
            return place._replace(role=role, owner=".".join(modules[: position + 1]))
    return place


def _is_dense_product(layer: Layer) -> bool:
    """Return whether a layer multiplies with a matrix, and not with those of experts."""
    return bool(layer.weights) and "active" not in layer.attributes and class_of(layer) in MATRIX_CLASSES


def _find_product_before(layers: Sequence[Layer], products: Sequence[bool], index: int) -> int | None:
    """Return the dense product from which a layer's first inputs come; None if there is none."""
    while True:
        parents = [parent for parent in layers[index].parents if parent >= 0]
        if not parents:
            return None
        index = parents[0]
        if class_of(layers[index]) in MATRIX_CLASSES:
            return index if products[index] else None

"""Convolutions and matrix products as the matrix products that libraries compute: rows, columns, inner size, groups.

How well a library fills a device depends on these four numbers. A convolution is an implicit matrix product (Chetlur et
al. 2014, cuDNN): forward ``positions x Cout/groups`` over ``Cin/groups * taps``, the data gradient ``input positions x
Cin/groups`` over ``Cout/groups * taps``, the weight gradient ``Cout/groups x Cin/groups * taps`` over ``positions``.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from .layer import Layer


class Gemm(NamedTuple):
    """`groups` products of ``rows x inner`` by ``inner x columns``, for one sample.

    Exactly one of rows, columns, inner and groups grows with the batch: `grows` names it, or is empty where none does.
    """

    rows: int
    columns: int
    inner: int
    groups: int
    grows: str


def of_linear(layer: Layer, pass_name: str) -> Gemm:
    """The product of a fully connected layer."""
    outputs, inputs = layer.weights[0][0], layer.weights[0][-1]
    rows = prod(layer.outputs[0]) // max(outputs, 1)
    return _turned(Gemm(rows, outputs, inputs, 1, "rows"), pass_name)


def of_matmul(layer: Layer, pass_name: str) -> Gemm | None:
    """The product of two tensors, one for each of their leading dimensions."""
    if not layer.outputs:
        return None
    shape = layer.outputs[0]
    left = layer.inputs[0] if layer.inputs else layer.weights[0]
    inner = layer.attributes.get("inner", left[-1])
    rows = shape[-2] if len(shape) > 1 else 1
    columns = shape[-1] if shape else 1
    groups = prod(shape) // max(rows * columns, 1)
    return _turned(Gemm(rows, columns, inner, groups, "groups" if groups > 1 else "rows"), pass_name)


def of_grouped(layer: Layer, pass_name: str) -> Gemm:
    """One product for each group of rows, which are taken to be of one size."""
    groups, inner, columns = layer.weights[0]
    rows = prod(layer.outputs[0]) // max(columns, 1)
    return _turned(Gemm(max(rows // max(groups, 1), 1), columns, inner, groups, "rows"), pass_name)


def of_attention(layer: Layer, pass_name: str) -> Gemm:
    """The scores of queries and keys, one product for each head; where heads share keys, one for those that do."""
    query, key = layer.inputs[0], layer.inputs[1]
    heads, groups = prod(query[:-2]), prod(key[:-2])
    together = heads // groups if groups and heads % groups == 0 else 1
    keys = key[-2] * layer.attributes.get("ring", 1)
    return _turned(Gemm(query[-2] * together, keys, query[-1], heads // max(together, 1), "groups"), pass_name)


def computed_scores(layer: Layer) -> float:
    """The share of the scores that a fused kernel computes: it leaves out what the mask hides.

    Of L queries and S keys, causal, the i-th query from the end sees S - i keys; with a window no more than that. Of a
    ring every device has early and late queries, so that all compute as many (Brandon et al. 2023, striped attention).
    """
    queries, keys = (layer.inputs[operand][-2] * layer.attributes.get("ring", 1) for operand in (0, 1))
    window = layer.attributes.get("window", keys)
    if not (layer.attributes.get("causal") or "window" in layer.attributes) or queries < 2:
        return 1.0
    short = min(max(window - (keys - queries), 0), queries)  # queries that see fewer keys than the window holds
    seen = sum((keys - queries + 1, keys - queries + short)) * short / 2 + (queries - short) * window
    return float(min(seen / (queries * keys), 1.0))


_OTHER_WAY = {"inference": "backward_data", "forward": "backward_data", "backward_data": "forward"}


def of_convolution(layer: Layer, pass_name: str) -> Gemm:
    """The implicit product of a convolution."""
    weight = layer.weights[0]
    rank = len(weight) - 2
    groups = layer.attributes.get("groups", 1)
    taps = prod(weight[2:])
    positions = prod(layer.outputs[0][-rank:])
    input_positions = prod(layer.inputs[0][-rank:])
    channels_in, channels_out = weight[1], weight[0] // groups
    if layer.attributes.get("transposed"):  # the data gradient of a convolution that goes the other way, and back
        positions, input_positions = input_positions, positions
        pass_name = _OTHER_WAY.get(pass_name, pass_name)
    if pass_name == "backward_data":
        return Gemm(input_positions, channels_in, channels_out * taps, groups, "rows")
    forward = Gemm(positions, channels_out, channels_in * taps, groups, "rows")
    return _turned(forward, pass_name) if pass_name == "backward_weight" else forward


def _turned(forward: Gemm, pass_name: str) -> Gemm:
    """The gradients of a product are products with the same three sizes in other roles."""
    rows, columns, inner, groups, grows = forward
    if pass_name == "backward_data":
        return Gemm(rows, inner, columns, groups, grows)
    if pass_name == "backward_weight":
        return Gemm(columns, inner, rows, groups, "inner" if grows == "rows" else grows)
    return forward

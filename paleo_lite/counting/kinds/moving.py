"""Data movement: kinds that compute nothing, and copy, choose or rename."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..layer import Layer, Op
from .kind import (
    FIRST,
    INDEX_BYTES,
    NOTHING,
    SAVES_NOTHING,
    Cost,
    Fusion,
    Kind,
    PassCost,
    Rule,
    Saved,
    Saves,
    cost,
)


def copy(op: Op) -> Cost:
    """Every element read and written once, none computed: contiguous, clone, pad, roll, concat."""
    back = PassCost(0, 0, op.y, op.x)
    return cost(op, PassCost(0, 0, op.x + op.w, op.y), back, PassCost(0, 0, op.w, op.w))


def concat(op: Op) -> Cost:
    """Copies forward; backward hands out slices of the gradient, which are views."""
    return cost(op, PassCost(0, 0, op.x + op.w, op.y), weight=NOTHING)


def embedding(op: Op) -> Cost:
    """Rows of a table by index: no FLOPs forward; backward adds the gradients into a table of zeros."""
    rows = op.y // op.layer.weights[0][-1]
    return cost(
        op,
        PassCost(0, 0, op.y, op.y, INDEX_BYTES * rows),
        weight=PassCost(op.y, 0, 2 * op.y, op.w + op.y, INDEX_BYTES * rows),
    )


def embedding_bag(op: Op) -> Cost:
    """The rows of a table that belong to each bag, added up; backward each row gets its bag's gradient."""
    indices, width = op.inputs[0] if op.inputs else 0, op.layer.weights[0][-1] if op.layer.weights else 1
    rows = indices * width
    return cost(
        op,
        PassCost(rows, 0, rows, op.y, INDEX_BYTES * indices),
        weight=PassCost(rows, 0, op.y + rows, op.w + rows, INDEX_BYTES * indices),
    )


def ordering(op: Op) -> Cost:
    """Sorting: ``log2 n`` comparisons for each element of a row of n; values and places are written."""
    return _ordered(op, max(int(op.attribute("length", 1)) - 1, 1).bit_length())


def selection(op: Op) -> Cost:
    """The largest k, or the median, of each row: a comparison for each element."""
    return _ordered(op, 1)


def _ordered(op: Op, comparisons: int) -> Cost:
    y = op.outputs[0]
    data = PassCost(0, 0, y, op.x, INDEX_BYTES * y)
    return cost(op, PassCost(comparisons * (op.x + op.w), 0, op.x + op.w, y, INDEX_BYTES * y), data, data)


def scatter(op: Op) -> Cost:
    """Values written or added where indices, the second input, say: into a copy unless it is done in place.

    Backward the values get what lies where they went.
    """
    into, indices, values = (*op.inputs, 0, 0)[:3]
    touched = values or indices
    adds = any(word in op.attribute("function", "") for word in ("add", "reduce"))
    in_place = op.attribute("in_place", False)
    reads = values + (touched if adds else 0) if in_place else into + values
    back = PassCost(0, 0, op.y + values, into + values, INDEX_BYTES * indices)
    writes = touched if in_place else op.y
    return cost(op, PassCost(touched if adds else 0, 0, reads, writes, INDEX_BYTES * indices), back)


def gather(op: Op) -> Cost:
    """Elements by index: read, written, with an index each, or whole rows; backward adds them into zeros."""
    size = op.inputs[0] if op.inputs else op.w
    row = op.layer.inputs[0][1:] if op.layer.inputs and op.attribute("function") in _OF_ROWS else ()
    index_bytes = INDEX_BYTES * op.y // (prod(row) if op.layer.outputs[0][-len(row) :] == row else 1)
    back = PassCost(op.y, 0, 2 * op.y, size + op.y, index_bytes)
    return cost(op, PassCost(0, 0, op.y, op.y, index_bytes), back, back)


_OF_ROWS = ("getitem", "index_select")
"""Calls that take whole rows by one index."""


def fill(op: Op) -> Cost:
    """A constant written."""
    return cost(op, PassCost(0, 0, 0, op.y))


def assign(op: Op) -> Cost:
    """``target[index] = value``: the values read and the part written; the first input is the target, whose rest stays.

    Backward the value's gradient is a part of the target's (a view), where zeros take its place.
    """
    return cost(op, PassCost(0, 0, op.x + op.w - op.inputs[0], op.y), PassCost(0, 0, 0, op.y))


def cache(op: Op) -> Cost:
    """Keys and values of new tokens, written beside those of the tokens before them."""
    return cost(op, PassCost(0, 0, op.x, op.x))


def exchange(op: Op) -> Cost:
    """What devices that share a layer send each other: no work of the device, a launch of its host."""
    function = op.attribute("function", "")
    forward, backward = (PassCost(kernels=int(function != none)) for none in ("copy", "sum"))
    return cost(op, forward, backward, NOTHING)


def view(op: Op) -> Cost:
    """Reshape, permute, flatten: no bytes. An expanded view's gradient is summed."""
    if op.y > op.x + op.w:
        back = PassCost(op.y, 0, op.y, op.x + op.w)
        return cost(op, NOTHING, back, back)
    return cost(op, NOTHING)


def slicing(op: Op) -> Cost:
    """Slice, split, select: no bytes forward; backward writes the gradient into its place."""
    back = PassCost(0, 0, op.y, op.x + op.w)
    return cost(op, NOTHING, back, back)


def _moving(
    name: str, rule: Rule, fusion: Fusion, torch: dict[str, str], *, work_class: str = "copy",
    saves: Saved | Saves = SAVES_NOTHING, profiled: str = "elementwise", **known: Any,
) -> Kind:  # fmt: skip
    return Kind(name, rule, work_class, saves, fusion, "data movement", profiled, splits=True, torch=torch, **known)


_VIEW: dict[str, Any] = {"alias": True, "passes_gradient": True}


def saved_places(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """The place of each value."""
    return Saved(bytes=INDEX_BYTES * prod(layer.outputs[0]))


def saved_indices(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """The indices."""
    return Saved(bytes=INDEX_BYTES * prod(layer.inputs[1]) if len(layer.inputs) > 1 else 0)


KINDS = (
    _moving("copy", copy, "pointwise", {
        "copied": "copy",
        "plain": "clone repeat repeat_interleave tile flip pixel_shuffle pixel_unshuffle channel_shuffle tril triu "
        "im2col pack_padded_sequence pad_packed_sequence",
    }, free="paleo lu2017", onnx="Cast Tile DepthToSpace SpaceToDepth"),
    _moving("pad", copy, "pointwise", {"plain": "pad constant_pad_nd"}, onnx="Pad", onnx_weights=0),
    _moving("roll", copy, "pointwise", {"like": "roll"}),
    _moving("concat", concat, "start", {
        "joined": "cat concat concatenate", "plain": "stack hstack vstack dstack",
    }, passes_gradient=True, free="paleo lu2017", onnx="Concat"),
    _moving("embedding", embedding, "alone", {"embedding": "embedding"}, saves=FIRST, profiled="other",
            onnx_weights=1),
    _moving("gather", gather, "alone", {"plain": "index_select gather take index take_along_dim"},
            onnx="Gather GatherElements GatherND"),
    _moving("embedding_bag", embedding_bag, "alone", {"embedding": "embedding_bag"}, saves=FIRST,
            profiled="other"),
    _moving("sort", ordering, "alone", {"ordered": "sort argsort msort"}, saves=saved_places, profiled="other"),
    _moving("select", selection, "alone", {"plain": "topk kthvalue median nanmedian mode"}, saves=saved_places,
            profiled="other", onnx="TopK"),
    _moving("scatter", scatter, "alone", {
        "scattered": "scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce",
    }, saves=saved_indices, profiled="other", onnx="ScatterElements ScatterND"),
    _moving("fill", fill, "alone", {
        "plain": "zeros ones full arange linspace zeros_like ones_like full_like new_zeros new_ones new_full "
        "tensor scalar_tensor as_tensor new_tensor eye rand randn randint rand_like randn_like randint_like",
        "filled": "fill zero bernoulli uniform normal random exponential log_normal fill_diagonal",
    }),
    _moving("assign", assign, "alone", {}, work_class="elementwise", **_VIEW),
    _moving("cache", cache, "alone", {}),
    _moving("exchange", exchange, "alone", {}, passes_gradient=True),
    _moving("view", view, "alone", {}, work_class="elementwise", **_VIEW, free="paleo lu2017",
            onnx="Reshape Flatten Squeeze Unsqueeze Transpose Expand"),
    _moving("slice", slicing, "alone", {}, **_VIEW, free="paleo lu2017", onnx="Slice Split"),
)  # fmt: skip

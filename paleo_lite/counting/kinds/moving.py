"""Counting rules of data movement: copies, indexing, views and exchanges between devices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..layer import (
    INDEX_BYTES,
    NO_COST,
    SAVES_FIRST_INPUT,
    SAVES_NOTHING,
    Cost,
    Kind,
    Layer,
    Op,
    PassCost,
    Saved,
    needed_cost,
)  # fmt: skip


def copy(op: Op) -> Cost:
    """Count a copy, such as contiguous, clone, pad or roll: every element is read and written once."""
    return needed_cost(
        op,
        forward=PassCost(0, 0, op.x + op.w, op.y),
        data=PassCost(0, 0, op.y, op.x),
        weight=PassCost(0, 0, op.w, op.w),
    )


def concat(op: Op) -> Cost:
    """Count a concatenation: a copy in the forward pass. The gradients are slices (views), which cost nothing."""
    return needed_cost(op, PassCost(0, 0, op.x + op.w, op.y), weight=NO_COST)


def embedding(op: Op) -> Cost:
    """Count a table look-up. The forward pass has no FLOPs; the backward pass adds gradients into a zeroed table."""
    rows = op.y // op.layer.weights[0][-1]
    return needed_cost(
        op,
        forward=PassCost(0, 0, op.y, op.y, INDEX_BYTES * rows),
        weight=PassCost(op.y, 0, 2 * op.y, op.w + op.y, INDEX_BYTES * rows),
    )


def embedding_bag(op: Op) -> Cost:
    """Count an embedding bag, which sums the rows of each bag.

    In the backward pass, each row receives the gradient of its bag.
    """
    num_indices = op.inputs[0] if op.inputs else 0
    width = op.layer.weights[0][-1] if op.layer.weights else 1
    elements = num_indices * width
    index_bytes = INDEX_BYTES * num_indices
    return needed_cost(
        op,
        forward=PassCost(elements, 0, elements, op.y, index_bytes),
        weight=PassCost(elements, 0, op.y + elements, op.w + elements, index_bytes),
    )


def sorting(op: Op) -> Cost:
    """Count a sort: ``log2 n`` comparisons per element in rows of n elements; values and indices are written."""
    length = int(op.attributes.get("length", 1))
    return _values_and_indices(op, comparisons=max(length - 1, 1).bit_length())


def selection(op: Op) -> Cost:
    """Count a selection (top k, median) from each row: one comparison per element; values and indices are written."""
    return _values_and_indices(op, comparisons=1)


def _values_and_indices(op: Op, comparisons: int) -> Cost:
    values = op.outputs[0]
    size = op.x + op.w
    backward = PassCost(0, 0, values, op.x, INDEX_BYTES * values)
    return needed_cost(op, PassCost(comparisons * size, 0, size, values, INDEX_BYTES * values), backward, backward)


def scatter(op: Op) -> Cost:
    """Count a scatter, which writes or adds values at the indices given by the second input.

    Unless it is in place, the target is copied first. The backward pass gathers the gradient at the indices.
    """
    target, indices, values = (*op.inputs, 0, 0)[:3]
    written_values = values or indices
    function = op.attributes.get("function", "")
    is_addition = "add" in function or "reduce" in function
    added = written_values if is_addition else 0
    if op.attributes.get("in_place", False):
        reads, writes = values + added, written_values
    else:
        reads, writes = target + values, op.y
    index_bytes = INDEX_BYTES * indices
    return needed_cost(
        op,
        forward=PassCost(added, 0, reads, writes, index_bytes),
        data=PassCost(0, 0, op.y + values, target + values, index_bytes),
    )


def gather(op: Op) -> Cost:
    """Count a gather, which reads and writes elements with one index per element or per row.

    The backward pass adds the gradients into a tensor of zeros.
    """
    size = op.inputs[0] if op.inputs else op.w
    takes_rows = op.layer.inputs and op.attributes.get("function") in _ROW_GATHERS
    row = op.layer.inputs[0][1:] if takes_rows else ()
    has_whole_rows = op.layer.outputs[0][-len(row) :] == row
    index_bytes = INDEX_BYTES * op.y // (prod(row) if has_whole_rows else 1)
    backward = PassCost(op.y, 0, 2 * op.y, size + op.y, index_bytes)
    return needed_cost(op, PassCost(0, 0, op.y, op.y, index_bytes), backward, backward)


_ROW_GATHERS = ("getitem", "index_select")
"""Calls that read whole rows with one index per row."""


def fill(op: Op) -> Cost:
    """Count a fill: every output element is written."""
    return needed_cost(op, PassCost(0, 0, 0, op.y))


def assign(op: Op) -> Cost:
    """Count ``target[index] = value``, which reads and writes the value; the target is the first input.

    In the backward pass, the gradient of the value is a view of the target's gradient, and the assigned part of the
    target's gradient is set to zero.
    """
    return needed_cost(op, PassCost(0, 0, op.x + op.w - op.inputs[0], op.y), PassCost(0, 0, 0, op.y))


def cache(op: Op) -> Cost:
    """Count the write of new keys and values to the KV cache."""
    return needed_cost(op, PassCost(0, 0, op.x, op.x))


def is_all_reduce(layer: Layer) -> bool:
    """Return whether a layer sums a tensor over the devices of a group."""
    return layer.kind == "exchange" and layer.attributes["function"] == "sum"


def exchange(op: Op) -> Cost:
    """Count a collective of tensor parallelism as a kernel launch without work on the device.

    The function ``copy`` communicates only in the backward pass, ``sum`` only in the forward pass.
    """
    function = op.attributes.get("function", "")
    forward = PassCost(kernels=0 if function == "copy" else 1)
    backward = PassCost(kernels=0 if function == "sum" else 1)
    return needed_cost(op, forward, backward, NO_COST)


def view(op: Op) -> Cost:
    """Count a view (reshape, permute, flatten), which moves no bytes. The gradient of an expanded view is a sum."""
    if op.y > op.x + op.w:
        backward = PassCost(op.y, 0, op.y, op.x + op.w)
        return needed_cost(op, NO_COST, backward, backward)
    return needed_cost(op, NO_COST)


def slice_view(op: Op) -> Cost:
    """Count a slice, split or select: a view; the backward pass writes the gradient into a tensor of zeros."""
    backward = PassCost(0, 0, op.y, op.x + op.w)
    return needed_cost(op, NO_COST, backward, backward)


def saved_output_indices(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the tensors that a sort or selection saves: the index of each output value."""
    return Saved(bytes=INDEX_BYTES * prod(layer.outputs[0]))


def saved_indices(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the tensors that a scatter saves: the indices, which are the second input."""
    return Saved(bytes=INDEX_BYTES * prod(layer.inputs[1]) if len(layer.inputs) > 1 else 0)


def _movement(name: str, work_class: str = "copy", **properties: Any) -> Kind:
    """Return the kind of an operation that moves elements, or of one that moves none."""
    return Kind(name, work_class=work_class, group="data movement", preserves_sharding=True, **properties)


KINDS = (
    _movement("copy", rule=copy, saves=SAVES_NOTHING, fusion="pointwise", profile_kind="elementwise",
        torch={
            "copy_into": "copy",
            "all_tensors": "clone repeat repeat_interleave tile flip pixel_shuffle pixel_unshuffle "
            "channel_shuffle tril triu im2col pack_padded_sequence pad_packed_sequence",
        },
        uncounted_by="paleo lu2017", onnx="Cast Tile DepthToSpace SpaceToDepth"),
    _movement("pad", rule=copy, saves=SAVES_NOTHING, fusion="pointwise", profile_kind="elementwise",
        torch={"all_tensors": "pad constant_pad_nd"}, onnx="Pad", onnx_weights=0),
    _movement("roll", rule=copy, saves=SAVES_NOTHING, fusion="pointwise", profile_kind="elementwise",
        torch={"same_shape": "roll"}),
    _movement("concat", rule=concat, saves=SAVES_NOTHING, fusion="start", profile_kind="elementwise",
        torch={"concat": "cat concat concatenate", "all_tensors": "stack hstack vstack dstack"}, passes_gradient=True,
        uncounted_by="paleo lu2017", onnx="Concat"),
    _movement("embedding", rule=embedding, saves=SAVES_FIRST_INPUT, fusion="alone", profile_kind="other",
        torch={"embedding": "embedding"}, onnx_weights=1),
    _movement("gather", rule=gather, saves=SAVES_NOTHING, fusion="alone", profile_kind="elementwise",
        torch={"all_tensors": "index_select gather take index take_along_dim"}, onnx="Gather GatherElements GatherND"),
    _movement("embedding_bag", rule=embedding_bag, saves=SAVES_FIRST_INPUT, fusion="alone", profile_kind="other",
        torch={"embedding": "embedding_bag"}),
    _movement("sort", rule=sorting, saves=saved_output_indices, fusion="alone", profile_kind="other",
        torch={"sort": "sort argsort msort"}),
    _movement("select", rule=selection, saves=saved_output_indices, fusion="alone", profile_kind="other",
        torch={"all_tensors": "topk kthvalue median nanmedian mode"}, onnx="TopK"),
    _movement("scatter", rule=scatter, saves=saved_indices, fusion="alone", profile_kind="other",
        torch={"scatter": "scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce"},
        onnx="ScatterElements ScatterND"),
    _movement("fill", rule=fill, saves=SAVES_NOTHING, fusion="alone", profile_kind="elementwise",
        torch={
            "all_tensors": "zeros ones full arange linspace zeros_like ones_like full_like new_zeros new_ones "
            "new_full tensor scalar_tensor as_tensor new_tensor eye rand randn randint rand_like "
            "randn_like randint_like",
            "fill": "fill zero bernoulli uniform normal random exponential log_normal fill_diagonal",
        }),
    _movement("assign", rule=assign, work_class="elementwise", saves=SAVES_NOTHING, fusion="alone",
        profile_kind="elementwise", aliases_input=True, passes_gradient=True),
    _movement("cache", rule=cache, saves=SAVES_NOTHING, fusion="alone", profile_kind="elementwise"),
    _movement("exchange", rule=exchange, saves=SAVES_NOTHING, fusion="alone", profile_kind="elementwise",
        passes_gradient=True),
    _movement("view", rule=view, work_class="elementwise", saves=SAVES_NOTHING, fusion="alone",
        profile_kind="elementwise", aliases_input=True, passes_gradient=True, uncounted_by="paleo lu2017",
        onnx="Reshape Flatten Squeeze Unsqueeze Transpose Expand"),
    _movement("slice", rule=slice_view, saves=SAVES_NOTHING, fusion="alone", profile_kind="elementwise",
        aliases_input=True, passes_gradient=True, uncounted_by="paleo lu2017", onnx="Slice Split"),
)  # fmt: skip

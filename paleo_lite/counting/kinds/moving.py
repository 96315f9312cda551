"""Counting rules of pooling, interpolation and data movement: copies, indexing, views and exchanges between devices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..layer import (
    INDEX_BYTES,
    NO_COST,
    SAVES_FIRST_INPUT,
    SAVES_NOTHING,
    Cost,
    Fusion,
    Kind,
    Layer,
    Op,
    PassCost,
    Saved,
    needed_cost,
)


def pooling(op: Op) -> Cost:
    """Count a pooling with windows of k elements: k - 1 comparisons per output for max, k FLOPs for average pooling.

    Average pooling with windows of a single element has no FLOPs. In training, max pooling stores the index of each
    maximum.
    """
    is_max = op.layer.kind.startswith(("max", "adaptive_max"))
    elements = window_elements(op)
    comparisons = elements - op.y
    average_flops = elements if elements > op.y else 0
    flops = comparisons if is_max else average_flops
    index_bytes = INDEX_BYTES * op.y if is_max else 0
    return needed_cost(
        op,
        forward=PassCost(flops, 0, op.x, op.y, index_bytes),
        data=PassCost(op.y if is_max else flops, 0, op.y, op.x, index_bytes),
        inference=PassCost(flops, 0, op.x, op.y),
    )


def window_elements(op: Op) -> int:
    """Return the total number of elements in all windows of a pooling, padding included.

    The windows of adaptive pooling are those of PyTorch, from floor(i * in / out) to ceil((i + 1) * in / out).
    """
    kernel = op.attributes.get("kernel")
    if kernel is not None:
        return op.y * prod(int(size) for size in kernel)
    rank = op.attributes.get("dims", len(op.layer.inputs[0]) - 2)
    input_sizes, output_sizes = op.layer.inputs[0][-rank:], op.layer.outputs[0][-rank:]
    per_channel = 1
    for size, out in zip(input_sizes, output_sizes):
        window_sizes = [-(-(i + 1) * size // out) - i * size // out for i in range(out)]
        per_channel *= sum(window_sizes)
    return op.y // prod(output_sizes) * per_channel


def saved_by_max_pool(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the tensors that max pooling saves for the backward pass: the input, and the index of each maximum."""
    return Saved((0,), bytes=INDEX_BYTES * prod(layer.outputs[0]))


def saved_by_adaptive_mean(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the tensors that adaptive average pooling saves: the input, or none for global pooling.

    PyTorch computes global pooling as a mean, whose gradient does not depend on the input.
    """
    rank = layer.attributes.get("dims", len(layer.inputs[0]) - 2)
    is_global = prod(layer.outputs[0][-rank:]) == 1
    return SAVES_NOTHING if is_global else SAVES_FIRST_INPUT


def fusion_of_adaptive_mean(layer: Layer) -> Fusion:
    """Return how adaptive average pooling is fused: as a reduction if its output has one element per channel."""
    is_global = prod(layer.outputs[0]) == prod(layer.outputs[0][:2])
    return "reduction" if is_global else "alone"


def interpolation(op: Op) -> Cost:
    """Count an interpolation: 2 * taps - 1 FLOPs per output, with 2^d taps (linear in d dimensions) or 4^d (cubic).

    Nearest-neighbour interpolation is a copy without FLOPs. The grid of `grid_sample` is its second input. The
    computation of interpolation weights is not counted.
    """
    taps_per_dimension = {"nearest": 1, "linear": 2, "cubic": 4}[op.attributes.get("mode", "nearest")]
    taps = taps_per_dimension ** op.attributes.get("dims", len(op.layer.inputs[0]) - 2)
    flops = op.y * (2 * taps - 1) if taps > 1 else 0
    return needed_cost(op, PassCost(flops, 0, op.x, op.y), PassCost(flops, 0, op.y, op.x))


def roi_align(op: Op) -> Cost:
    """Count RoIAlign (He et al. 2017, Mask R-CNN): the mean of several bilinear samples per output, 8 FLOPs each."""
    flops = op.y * op.attributes.get("samples", 4) * 8
    return needed_cost(op, PassCost(flops, 0, op.x, op.y), PassCost(flops, 0, op.y, op.x))


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


KINDS = (
    Kind(
        "copy",
        rule=copy,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="pointwise",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={
            "copy_into": "copy",
            "all_tensors": "clone repeat repeat_interleave tile flip pixel_shuffle pixel_unshuffle channel_shuffle "
            "tril triu im2col pack_padded_sequence pad_packed_sequence",
        },
        uncounted_by="paleo lu2017",
        onnx="Cast Tile DepthToSpace SpaceToDepth",
    ),
    Kind(
        "pad",
        rule=copy,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="pointwise",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={"all_tensors": "pad constant_pad_nd"},
        onnx="Pad",
        onnx_weights=0,
    ),
    Kind(
        "roll",
        rule=copy,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="pointwise",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={"same_shape": "roll"},
    ),
    Kind(
        "concat",
        rule=concat,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="start",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={"concat": "cat concat concatenate", "all_tensors": "stack hstack vstack dstack"},
        passes_gradient=True,
        uncounted_by="paleo lu2017",
        onnx="Concat",
    ),
    Kind(
        "embedding",
        rule=embedding,
        work_class="copy",
        saves=SAVES_FIRST_INPUT,
        fusion="alone",
        group="data movement",
        profile_kind="other",
        preserves_sharding=True,
        torch={"embedding": "embedding"},
        onnx_weights=1,
    ),
    Kind(
        "gather",
        rule=gather,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={"all_tensors": "index_select gather take index take_along_dim"},
        onnx="Gather GatherElements GatherND",
    ),
    Kind(
        "embedding_bag",
        rule=embedding_bag,
        work_class="copy",
        saves=SAVES_FIRST_INPUT,
        fusion="alone",
        group="data movement",
        profile_kind="other",
        preserves_sharding=True,
        torch={"embedding": "embedding_bag"},
    ),
    Kind(
        "sort",
        rule=sorting,
        work_class="copy",
        saves=saved_output_indices,
        fusion="alone",
        group="data movement",
        profile_kind="other",
        preserves_sharding=True,
        torch={"sort": "sort argsort msort"},
    ),
    Kind(
        "select",
        rule=selection,
        work_class="copy",
        saves=saved_output_indices,
        fusion="alone",
        group="data movement",
        profile_kind="other",
        preserves_sharding=True,
        torch={"all_tensors": "topk kthvalue median nanmedian mode"},
        onnx="TopK",
    ),
    Kind(
        "scatter",
        rule=scatter,
        work_class="copy",
        saves=saved_indices,
        fusion="alone",
        group="data movement",
        profile_kind="other",
        preserves_sharding=True,
        torch={"scatter": "scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce"},
        onnx="ScatterElements ScatterND",
    ),
    Kind(
        "fill",
        rule=fill,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={
            "all_tensors": "zeros ones full arange linspace zeros_like ones_like full_like new_zeros new_ones new_full "
            "tensor scalar_tensor as_tensor new_tensor eye rand randn randint rand_like randn_like randint_like",
            "fill": "fill zero bernoulli uniform normal random exponential log_normal fill_diagonal",
        },
    ),
    Kind(
        "assign",
        rule=assign,
        work_class="elementwise",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        aliases_input=True,
        passes_gradient=True,
    ),
    Kind(
        "cache",
        rule=cache,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
    ),
    Kind(
        "exchange",
        rule=exchange,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        passes_gradient=True,
    ),
    Kind(
        "view",
        rule=view,
        work_class="elementwise",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        aliases_input=True,
        passes_gradient=True,
        uncounted_by="paleo lu2017",
        onnx="Reshape Flatten Squeeze Unsqueeze Transpose Expand",
    ),
    Kind(
        "slice",
        rule=slice_view,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="data movement",
        profile_kind="elementwise",
        preserves_sharding=True,
        aliases_input=True,
        passes_gradient=True,
        uncounted_by="paleo lu2017",
        onnx="Slice Split",
    ),
    Kind(
        "roi_align",
        rule=roi_align,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="pooling",
        profile_kind="other",
        preserves_sharding=False,
    ),
    Kind(
        "max_pool",
        rule=pooling,
        work_class="pool",
        saves=saved_by_max_pool,
        fusion="window",
        group="pooling",
        profile_kind="pooling",
        preserves_sharding=True,
        torch={
            "pool1d": "max_pool1d",
            "pool2d": "max_pool2d max_pool2d_with_indices",
            "pool3d": "max_pool3d max_pool3d_with_indices",
        },
        module="MaxPool2d",
        pyprof={"windows": "max_pool1d max_pool2d max_pool3d"},
        onnx="MaxPool",
    ),
    Kind(
        "avg_pool",
        rule=pooling,
        work_class="pool",
        saves=SAVES_FIRST_INPUT,
        fusion="window",
        group="pooling",
        profile_kind="pooling",
        preserves_sharding=True,
        torch={"pool1d": "avg_pool1d", "pool2d": "avg_pool2d", "pool3d": "avg_pool3d"},
        module="AvgPool2d",
        pyprof={"windows": "avg_pool1d avg_pool2d avg_pool3d"},
        onnx="AveragePool",
    ),
    Kind(
        "adaptive_max_pool",
        rule=pooling,
        work_class="pool",
        saves=saved_by_max_pool,
        fusion="alone",
        group="pooling",
        profile_kind="pooling",
        preserves_sharding=True,
        torch={f"adaptive_pool{rank}d": f"adaptive_max_pool{rank}d" for rank in (1, 2, 3)},
        pyprof={"pool": "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"},
        onnx="GlobalMaxPool",
    ),
    Kind(
        "adaptive_avg_pool",
        rule=pooling,
        work_class="pool",
        saves=saved_by_adaptive_mean,
        fusion=fusion_of_adaptive_mean,
        group="pooling",
        profile_kind="pooling",
        preserves_sharding=True,
        torch={f"adaptive_pool{rank}d": f"adaptive_avg_pool{rank}d" for rank in (1, 2, 3)},
        pyprof={"pool": "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"},
        onnx="GlobalAveragePool",
    ),
    Kind(
        "interpolate",
        rule=interpolation,
        work_class="copy",
        saves=SAVES_NOTHING,
        fusion="start",
        group="pooling",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={"interpolate": "interpolate", "grid_sample": "grid_sample grid_sampler_2d grid_sampler_3d"},
        uncounted_by="paleo",
        onnx="Resize Upsample GridSample",
        onnx_weights=0,
    ),
)

"""Pooling and interpolation, each output from a window of the input; and data movement: copy, choose, rename."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..layer import FIRST, INDEX_BYTES, NOTHING, SAVES_NOTHING, Cost, Fusion, Kind, Layer, Op, PassCost, Saved, cost


def pooling(op: Op) -> Cost:
    """Maximum: k - 1 compares per output. Average: k operations (the sum and one division). k = window elements.

    An adaptive pooling's windows are those of PyTorch, from floor(i*in/out) to ceil((i+1)*in/out); windows of a single
    element compute nothing. Training keeps the place of each maximum.
    """
    maximum = op.layer.kind.startswith(("max", "adaptive_max"))
    taps = window_elements(op)
    flops = taps - op.y if maximum else (taps if taps > op.y else 0)
    places = INDEX_BYTES * op.y if maximum else 0
    return cost(
        op,
        PassCost(flops, 0, op.x, op.y, places),
        PassCost(op.y if maximum else flops, 0, op.y, op.x, places),
        inference=PassCost(flops, 0, op.x, op.y),
    )


def window_elements(op: Op) -> int:
    """Elements that all windows of a pooling cover together, padding included."""
    kernel = op.attributes.get("kernel")
    if kernel is not None:
        return op.y * prod(int(size) for size in kernel)
    rank = op.attributes.get("dims", len(op.layer.inputs[0]) - 2)
    inside, outside = op.layer.inputs[0][-rank:], op.layer.outputs[0][-rank:]
    covered = 1
    for size, out in zip(inside, outside):
        covered *= sum(-(-(i + 1) * size // out) - i * size // out for i in range(out))
    return op.y // prod(outside) * covered


def saved_by_maximum(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, and the place of each maximum."""
    return Saved((0,), bytes=INDEX_BYTES * prod(layer.outputs[0]))


def saved_by_adaptive_mean(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, unless a single position is left: PyTorch computes a mean, which needs its sizes only."""
    rank = layer.attributes.get("dims", len(layer.inputs[0]) - 2)
    return SAVES_NOTHING if prod(layer.outputs[0][-rank:]) == 1 else FIRST


def fusion_of_adaptive_mean(layer: Layer) -> Fusion:
    """A reduction of rows where one element per channel is left."""
    return "reduction" if prod(layer.outputs[0]) == prod(layer.outputs[0][:2]) else "alone"


def interpolation(op: Op) -> Cost:
    """Nearest copies; linear in d dimensions weighs 2^d neighbours, cubic 4^d: 2 * taps - 1 per output.

    Of `grid_sample` the grid is a second input; finding the neighbours' weights is not counted.
    """
    base = {"nearest": 1, "linear": 2, "cubic": 4}[op.attributes.get("mode", "nearest")]
    taps = base ** op.attributes.get("dims", len(op.layer.inputs[0]) - 2)
    flops = op.y * (2 * taps - 1) if taps > 1 else 0
    return cost(op, PassCost(flops, 0, op.x, op.y), PassCost(flops, 0, op.y, op.x))


def alignment(op: Op) -> Cost:
    """RoIAlign (He et al. 2017, Mask R-CNN): the mean of some points for each output, each between four neighbours."""
    flops = op.y * op.attributes.get("samples", 4) * 8
    return cost(op, PassCost(flops, 0, op.x, op.y), PassCost(flops, 0, op.y, op.x))


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
    return _ordered(op, max(int(op.attributes.get("length", 1)) - 1, 1).bit_length())


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
    adds = any(word in op.attributes.get("function", "") for word in ("add", "reduce"))
    in_place = op.attributes.get("in_place", False)
    reads = values + (touched if adds else 0) if in_place else into + values
    back = PassCost(0, 0, op.y + values, into + values, INDEX_BYTES * indices)
    writes = touched if in_place else op.y
    return cost(op, PassCost(touched if adds else 0, 0, reads, writes, INDEX_BYTES * indices), back)


def gather(op: Op) -> Cost:
    """Elements by index: read, written, with an index each, or whole rows; backward adds them into zeros."""
    size = op.inputs[0] if op.inputs else op.w
    row = op.layer.inputs[0][1:] if op.layer.inputs and op.attributes.get("function") in _OF_ROWS else ()
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
    function = op.attributes.get("function", "")
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


def saved_places(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """The place of each value."""
    return Saved(bytes=INDEX_BYTES * prod(layer.outputs[0]))


def saved_indices(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """The indices."""
    return Saved(bytes=INDEX_BYTES * prod(layer.inputs[1]) if len(layer.inputs) > 1 else 0)


KINDS = (
    Kind("copy", copy, "copy", SAVES_NOTHING, "pointwise", "data movement", "elementwise", splits=True,
         torch={
             "copied": "copy",
             "plain": "clone repeat repeat_interleave tile flip pixel_shuffle pixel_unshuffle channel_shuffle tril "
             "triu im2col pack_padded_sequence pad_packed_sequence",
         }, free="paleo lu2017", onnx="Cast Tile DepthToSpace SpaceToDepth"),
    Kind("pad", copy, "copy", SAVES_NOTHING, "pointwise", "data movement", "elementwise", splits=True,
         torch={"plain": "pad constant_pad_nd"}, onnx="Pad", onnx_weights=0),
    Kind("roll", copy, "copy", SAVES_NOTHING, "pointwise", "data movement", "elementwise", splits=True,
         torch={"like": "roll"}),
    Kind("concat", concat, "copy", SAVES_NOTHING, "start", "data movement", "elementwise", splits=True,
         torch={"joined": "cat concat concatenate", "plain": "stack hstack vstack dstack"}, passes_gradient=True,
         free="paleo lu2017", onnx="Concat"),
    Kind("embedding", embedding, "copy", FIRST, "alone", "data movement", "other", splits=True,
         torch={"embedding": "embedding"}, onnx_weights=1),
    Kind("gather", gather, "copy", SAVES_NOTHING, "alone", "data movement", "elementwise", splits=True,
         torch={"plain": "index_select gather take index take_along_dim"}, onnx="Gather GatherElements GatherND"),
    Kind("embedding_bag", embedding_bag, "copy", FIRST, "alone", "data movement", "other", splits=True,
         torch={"embedding": "embedding_bag"}),
    Kind("sort", ordering, "copy", saved_places, "alone", "data movement", "other", splits=True,
         torch={"ordered": "sort argsort msort"}),
    Kind("select", selection, "copy", saved_places, "alone", "data movement", "other", splits=True,
         torch={"plain": "topk kthvalue median nanmedian mode"}, onnx="TopK"),
    Kind("scatter", scatter, "copy", saved_indices, "alone", "data movement", "other", splits=True,
         torch={"scattered": "scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce"},
         onnx="ScatterElements ScatterND"),
    Kind("fill", fill, "copy", SAVES_NOTHING, "alone", "data movement", "elementwise", splits=True,
         torch={
             "plain": "zeros ones full arange linspace zeros_like ones_like full_like new_zeros new_ones new_full "
             "tensor scalar_tensor as_tensor new_tensor eye rand randn randint rand_like randn_like randint_like",
             "filled": "fill zero bernoulli uniform normal random exponential log_normal fill_diagonal",
         }),
    Kind("assign", assign, "elementwise", SAVES_NOTHING, "alone", "data movement", "elementwise", splits=True,
         alias=True, passes_gradient=True),
    Kind("cache", cache, "copy", SAVES_NOTHING, "alone", "data movement", "elementwise", splits=True),
    Kind("exchange", exchange, "copy", SAVES_NOTHING, "alone", "data movement", "elementwise", splits=True,
         passes_gradient=True),
    Kind("view", view, "elementwise", SAVES_NOTHING, "alone", "data movement", "elementwise", splits=True, alias=True,
         passes_gradient=True, free="paleo lu2017", onnx="Reshape Flatten Squeeze Unsqueeze Transpose Expand"),
    Kind("slice", slicing, "copy", SAVES_NOTHING, "alone", "data movement", "elementwise", splits=True, alias=True,
         passes_gradient=True, free="paleo lu2017", onnx="Slice Split"),
    Kind(
        "roi_align", alignment, "copy", SAVES_NOTHING, "alone", "pooling", "other", splits=False,
    ),
    Kind(
        "max_pool", pooling, "pool", saved_by_maximum, "window", "pooling", "pooling", splits=True,
        torch={"pool1d": "max_pool1d", "pool2d": "max_pool2d max_pool2d_with_indices",
               "pool3d": "max_pool3d max_pool3d_with_indices"},
        module="MaxPool2d", pyprof={"windows": "max_pool1d max_pool2d max_pool3d"}, onnx="MaxPool",
    ),
    Kind(
        "avg_pool", pooling, "pool", FIRST, "window", "pooling", "pooling", splits=True,
        torch={"pool1d": "avg_pool1d", "pool2d": "avg_pool2d", "pool3d": "avg_pool3d"},
        module="AvgPool2d", pyprof={"windows": "avg_pool1d avg_pool2d avg_pool3d"}, onnx="AveragePool",
    ),
    Kind(
        "adaptive_max_pool", pooling, "pool", saved_by_maximum, "alone", "pooling", "pooling", splits=True,
        torch={f"adaptive_pool{rank}d": f"adaptive_max_pool{rank}d" for rank in (1, 2, 3)},
        pyprof={"pool": "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"}, onnx="GlobalMaxPool",
    ),
    Kind(
        "adaptive_avg_pool", pooling, "pool", saved_by_adaptive_mean, fusion_of_adaptive_mean, "pooling", "pooling",
        splits=True, torch={f"adaptive_pool{rank}d": f"adaptive_avg_pool{rank}d" for rank in (1, 2, 3)},
        pyprof={"pool": "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"}, onnx="GlobalAveragePool",
    ),
    Kind(
        "interpolate", interpolation, "copy", SAVES_NOTHING, "start", "pooling", "elementwise", splits=True,
        torch={"interpolate": "interpolate", "sampled": "grid_sample grid_sampler_2d grid_sampler_3d"}, free="paleo",
        onnx="Resize Upsample GridSample", onnx_weights=0,
    ),
)  # fmt: skip

"""Counting rules of pooling and interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from ..layer import (
    INDEX_BYTES,
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
)  # fmt: skip


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

    The windows of adaptive pooling are those of PyTorch, from floor(i * in / out) to ceil((i + 1) * in / out). Two
    windows share an element where a border is inside it, so that all have in + out - gcd(in, out) elements.
    """
    kernel = op.attributes.get("kernel")
    if kernel is not None:
        return op.y * prod(int(size) for size in kernel)
    rank = op.attributes.get("dims", len(op.layer.inputs[0]) - 2)
    input_sizes, output_sizes = op.layer.inputs[0][-rank:], op.layer.outputs[0][-rank:]
    per_channel = 1
    for size, out in zip(input_sizes, output_sizes):
        per_channel *= size + out - gcd(size, out)
    return op.y // max(prod(output_sizes), 1) * per_channel


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


KINDS = (
    Kind("roi_align", rule=roi_align, work_class="copy", saves=SAVES_NOTHING, fusion="alone", group="pooling",
        profile_kind="other", preserves_sharding=False),
    Kind("max_pool", rule=pooling, work_class="pool", saves=saved_by_max_pool, fusion="window", group="pooling",
        profile_kind="pooling", preserves_sharding=True,
        torch={
            "pool1d": "max_pool1d",
            "pool2d": "max_pool2d max_pool2d_with_indices",
            "pool3d": "max_pool3d max_pool3d_with_indices",
        },
        module="MaxPool2d", pyprof={"windows": "max_pool1d max_pool2d max_pool3d"}, onnx="MaxPool"),
    Kind("avg_pool", rule=pooling, work_class="pool", saves=SAVES_FIRST_INPUT, fusion="window", group="pooling",
        profile_kind="pooling", preserves_sharding=True,
        torch={"pool1d": "avg_pool1d", "pool2d": "avg_pool2d", "pool3d": "avg_pool3d"}, module="AvgPool2d",
        pyprof={"windows": "avg_pool1d avg_pool2d avg_pool3d"}, onnx="AveragePool"),
    Kind("adaptive_max_pool", rule=pooling, work_class="pool", saves=saved_by_max_pool, fusion="alone", group="pooling",
        profile_kind="pooling", preserves_sharding=True,
        torch={f"adaptive_pool{rank}d": f"adaptive_max_pool{rank}d" for rank in (1, 2, 3)},
        pyprof={"pool": "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"}, onnx="GlobalMaxPool"),
    Kind("adaptive_avg_pool", rule=pooling, work_class="pool", saves=saved_by_adaptive_mean,
        fusion=fusion_of_adaptive_mean, group="pooling", profile_kind="pooling", preserves_sharding=True,
        torch={f"adaptive_pool{rank}d": f"adaptive_avg_pool{rank}d" for rank in (1, 2, 3)},
        pyprof={"pool": "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"}, onnx="GlobalAveragePool"),
    Kind("interpolate", rule=interpolation, work_class="copy", saves=SAVES_NOTHING, fusion="start", group="pooling",
        profile_kind="elementwise", preserves_sharding=True,
        torch={"interpolate": "interpolate", "grid_sample": "grid_sample grid_sampler_2d grid_sampler_3d"},
        uncounted_by="paleo", onnx="Resize Upsample GridSample", onnx_weights=0),
)  # fmt: skip

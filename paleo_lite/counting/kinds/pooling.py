"""Pooling and interpolation: each output from a window of its input."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..layer import Layer, Op
from .kind import FIRST, INDEX_BYTES, SAVES_NOTHING, Cost, Fusion, Kind, PassCost, Saved, cost


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
    kernel = op.attribute("kernel")
    if kernel is not None:
        return op.y * prod(int(size) for size in kernel)
    rank = op.spatial_rank
    inside, outside = op.layer.inputs[0][-rank:], op.layer.outputs[0][-rank:]
    covered = 1
    for size, out in zip(inside, outside):
        covered *= sum(-(-(i + 1) * size // out) - i * size // out for i in range(out))
    return op.y // prod(outside) * covered


def saved_by_maximum(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, and the place of each maximum."""
    return Saved((0,), bytes=INDEX_BYTES * prod(layer.outputs[0]))


def _is_mean(layer: Layer) -> bool:
    """Whether an adaptive pooling leaves a single position: PyTorch computes a mean, which needs its sizes only."""
    rank = layer.attributes.get("dims", len(layer.inputs[0]) - 2)
    return prod(layer.outputs[0][-rank:]) == 1


def saved_by_adaptive_mean(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, unless it is a mean."""
    return SAVES_NOTHING if _is_mean(layer) else FIRST


def fusion_of_adaptive_mean(layer: Layer) -> Fusion:
    """A reduction of rows where one element per channel is left."""
    return "reduction" if prod(layer.outputs[0]) == prod(layer.outputs[0][:2]) else "alone"


def interpolation(op: Op) -> Cost:
    """Nearest copies; linear in d dimensions weighs 2^d neighbours, cubic 4^d: 2 * taps - 1 per output.

    Of `grid_sample` the grid is a second input; finding the neighbours' weights is not counted.
    """
    base = {"nearest": 1, "linear": 2, "cubic": 4}[op.attribute("mode", "nearest")]
    taps = base**op.spatial_rank
    flops = op.y * (2 * taps - 1) if taps > 1 else 0
    return cost(op, PassCost(flops, 0, op.x, op.y), PassCost(flops, 0, op.y, op.x))


def alignment(op: Op) -> Cost:
    """RoIAlign (He et al. 2017, Mask R-CNN): the mean of some points for each output, each between four neighbours."""
    flops = op.y * op.attribute("samples", 4) * 8
    return cost(op, PassCost(flops, 0, op.x, op.y), PassCost(flops, 0, op.y, op.x))


KINDS = (
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

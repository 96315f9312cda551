"""Normalisations: over the batch, over rows, over neighbouring channels, and of a weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..layer import Layer, Op
from .kind import SAVES_NOTHING, Cost, Kind, PassCost, Saved, Saves, cost, together


def batch_norm(op: Op) -> Cost:
    """Inference: one scale and one shift per element, 2 FLOPs, from four vectors per channel.

    Training: mean (1), variance (3), normalise (1), scale and shift (2); backward the two sums (5 with the normalised
    input recomputed, they are also the parameters' gradients), then the data gradient (6). Without trainable parameters
    the sums are part of the data gradient.
    """
    y, channels = op.y, op.layer.inputs[0][1]
    sums = PassCost(5 * y, 0, 2 * y + 2 * channels, op.w)
    data = PassCost(6 * y, 0, 2 * y + 3 * channels, op.inputs[0])
    return cost(
        op,
        forward=PassCost(7 * y, 0, 2 * op.inputs[0] + op.w, y),
        data=data if op.trainable else together([sums._replace(writes=2 * channels), data]),
        weight=sums,
        inference=PassCost(2 * y, 0, op.inputs[0] + 2 * channels + op.w, y),
    )


def saved_by_batch_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, and mean and deviation of each channel."""
    return Saved((0,), statistics=2 * layer.inputs[0][1], scales=False)


def row_norm(op: Op) -> Cost:
    """Layer, group and instance norm: statistics of what fits on chip, 5 FLOPs per element, 7 with scale and shift."""
    y = op.y
    affine = 2 if op.w else 0
    return cost(
        op,
        PassCost((5 + affine) * y, 0, op.x + op.w, y),
        PassCost(10 * y, 0, op.x + y + op.w, op.x),
        PassCost(5 * y, 0, op.x + y, op.w),
    )


def _rows(layer: Layer) -> int:
    elements, last = prod(layer.inputs[0]), layer.inputs[0][-1]
    return elements // max(prod(layer.weights[0]) if layer.weights else last, 1)


def saved_by_layer_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, and mean and deviation of each row."""
    return Saved((0,), statistics=2 * _rows(layer))


def saved_by_group_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, and mean and deviation of each group."""
    return Saved((0,), statistics=2 * layer.inputs[0][0] * layer.attributes.get("num_groups", 1))


def saved_by_instance_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, mean and deviation of each channel, and its weight repeated for each sample."""
    channels = layer.inputs[0][0] * layer.inputs[0][1]
    return Saved((0,), numbers=channels if layer.weights else 0, statistics=2 * channels)


def rms_norm(op: Op) -> Cost:
    """Root-mean-square norm: square, sum, scale; a factor per channel where it has one."""
    y = op.y
    return cost(
        op,
        PassCost((4 if op.w else 3) * y, 0, op.x + op.w, y),
        PassCost(8 * y, 0, op.x + y + op.w, op.x),
        PassCost(3 * y, 0, op.x + y, op.w),
    )


def saved_by_rms_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, and the deviation of each row."""
    return Saved((0,), statistics=_rows(layer))


def local_response_norm(op: Op) -> Cost:
    """``x / (k + alpha/n sum x^2)^beta`` over n channels: a square, n - 1 additions, and 5 more per element."""
    y, size = op.y, op.attribute("size", 5)
    return cost(op, PassCost((size + 5) * y, 0, op.x, y), PassCost(2 * (size + 5) * y, 0, op.x + 2 * y, op.x))


def saved_by_local_response_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """It is a chain of a square, a padding, a sum and a power."""
    shape, window = layer.inputs[0], layer.attributes.get("size", 5)
    elements = prod(shape)
    return Saved((0,), numbers=elements // shape[1] * (shape[1] + window - 1) + 2 * elements)


def weight_norm(op: Op) -> Cost:
    """``g v / |v|``: square, sum and scale, 3 per element; backward a scalar product more, 6."""
    v = op.y
    back = PassCost(6 * v, 0, 2 * v, op.x + op.w)
    return cost(op, PassCost(3 * v, 0, op.x + op.w, v), back, back)


def _over_rows(
    name: str, saves: Saves, torch: dict[str, str], rule: Callable[[Op], Cost] = row_norm, **known: Any
) -> Kind:
    return Kind(
        name, rule, "norm", saves, "reduction", "normalisation", "normalization", splits=False, torch=torch, **known
    )


KINDS = (
    Kind(
        "batch_norm", batch_norm, "norm", saved_by_batch_norm, "folded", "normalisation", "batch_norm", splits=True,
        statistics=True, torch={"norm": "batch_norm", "aten_norm": "native_batch_norm"}, module="BatchNorm2d",
        caffe="batchnorm", pyprof={"norm": "batch_norm"}, autocast="input", free="paleo", paleo="BatchNorm",
        onnx="BatchNormalization", onnx_weights=2,
    ),
    _over_rows("layer_norm", saved_by_layer_norm, {"rows": "layer_norm", "aten_rows": "native_layer_norm"},
               autocast="fp32", onnx="LayerNormalization", onnx_weights=2),
    _over_rows("group_norm", saved_by_group_norm, {"groups": "group_norm", "aten_norm": "native_group_norm"},
               autocast="fp32", onnx="GroupNormalization", onnx_weights=2),
    _over_rows("instance_norm", saved_by_instance_norm, {"norm": "instance_norm"}, autocast="input",
               onnx="InstanceNormalization", onnx_weights=2),
    _over_rows("rms_norm", saved_by_rms_norm, {"scaled_rows": "rms_norm"}, rms_norm, onnx="RMSNormalization",
               onnx_weights=1),
    Kind(
        "local_response_norm", local_response_norm, "norm", saved_by_local_response_norm, "alone", "normalisation",
        "normalization", splits=False, torch={"windows": "local_response_norm"}, module="LocalResponseNorm",
        free="paleo", paleo="LRN", onnx="LRN",
    ),
    Kind(
        "weight_norm", weight_norm, "norm", SAVES_NOTHING, "alone", "normalisation", "normalization", splits=False,
        torch={"weight_norm": "weight_norm_interface"},
    ),
)  # fmt: skip

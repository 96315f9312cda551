"""Counting rules of normalisations. Operations are counted as in `activations`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..layer import (
    SAVES_NOTHING,
    Cost,
    Kind,
    Layer,
    Op,
    PassCost,
    Saved,
    needed_cost,
    sum_costs,
)  # fmt: skip


def batch_norm(op: Op) -> Cost:
    """Count a batch norm.

    Inference: one scale and one shift per element (2 FLOPs), from four vectors with an element per channel.

    Training: mean (1), variance (3), normalise (1), scale and shift (2). The backward pass computes two sums, which are
    also the gradients of the parameters (5 FLOPs, including the recomputed normalised input), and the data gradient
    (6). Without trainable parameters the sums are part of the data gradient.
    """
    y, channels = op.y, op.layer.inputs[0][1]
    sums = PassCost(5 * y, 0, 2 * y + 2 * channels, op.w)
    data = PassCost(6 * y, 0, 2 * y + 3 * channels, op.inputs[0])
    if not op.trainable:
        data = sum_costs([sums._replace(writes=2 * channels), data])
    return needed_cost(
        op,
        forward=PassCost(7 * y, 0, 2 * op.inputs[0] + op.w, y),
        data=data,
        weight=sums,
        inference=PassCost(2 * y, 0, op.inputs[0] + 2 * channels + op.w, y),
    )


def saved_by_batch_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input, and mean and standard deviation per channel."""
    return Saved((0,), statistics=2 * layer.inputs[0][1], scales=False)


def row_norm(op: Op) -> Cost:
    """Count a layer, group or instance norm: 5 FLOPs per element, 7 with scale and shift.

    The statistics of a row are computed on chip, so that the input is read once.
    """
    y = op.y
    affine = 2 if op.w else 0
    return needed_cost(
        op,
        forward=PassCost((5 + affine) * y, 0, op.x + op.w, y),
        data=PassCost(10 * y, 0, op.x + y + op.w, op.x),
        weight=PassCost(5 * y, 0, op.x + y, op.w),
    )


def _num_rows(layer: Layer) -> int:
    row_size = prod(layer.weights[0] if layer.weights else layer.inputs[0][-1:])  # a scalar is a row of one
    return prod(layer.inputs[0]) // max(row_size, 1)


def saved_by_layer_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input, and mean and standard deviation per row."""
    return Saved((0,), statistics=2 * _num_rows(layer))


def saved_by_group_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input, and mean and standard deviation per group."""
    return Saved((0,), statistics=2 * layer.inputs[0][0] * layer.attributes.get("num_groups", 1))


def saved_by_instance_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input, mean and deviation per channel, and the weight repeated for each sample."""
    channels = layer.inputs[0][0] * layer.inputs[0][1]
    return Saved((0,), numbers=channels if layer.weights else 0, statistics=2 * channels)


def rms_norm(op: Op) -> Cost:
    """Count a root-mean-square norm: square, sum, scale, and a factor per channel if it has a weight."""
    y = op.y
    return needed_cost(
        op,
        forward=PassCost((4 if op.w else 3) * y, 0, op.x + op.w, y),
        data=PassCost(8 * y, 0, op.x + y + op.w, op.x),
        weight=PassCost(3 * y, 0, op.x + y, op.w),
    )


def saved_by_rms_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input, and the root mean square per row."""
    return Saved((0,), statistics=_num_rows(layer))


def local_response_norm(op: Op) -> Cost:
    """Count ``x / (k + alpha/n sum x^2)^beta`` over n channels: a square, n - 1 additions, and 5 more per element."""
    y, size = op.y, op.attributes.get("size", 5)
    return needed_cost(op, PassCost((size + 5) * y, 0, op.x, y), PassCost(2 * (size + 5) * y, 0, op.x + 2 * y, op.x))


def saved_by_local_response_norm(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input, its padded square, and the two tensors of the power.

    PyTorch computes the norm as a chain of square, padding, sum and power.
    """
    shape, window = layer.inputs[0], layer.attributes.get("size", 5)
    elements = prod(shape)
    padded_elements = elements // shape[1] * (shape[1] + window - 1)
    return Saved((0,), numbers=padded_elements + 2 * elements)


def weight_norm(op: Op) -> Cost:
    """Count ``g v / |v|``: square, sum and scale (3 per element); backward also a scalar product (6)."""
    elements = op.y
    backward = PassCost(6 * elements, 0, 2 * elements, op.x + op.w)
    return needed_cost(op, PassCost(3 * elements, 0, op.x + op.w, elements), backward, backward)


def _row_normalisation(name: str, **properties: Any) -> Kind:
    """Return the kind of a normalisation over rows, groups or channels of a sample."""
    return Kind(
        name,
        work_class="norm",
        fusion="reduction",
        group="normalisation",
        profile_kind="normalization",
        preserves_sharding=False,
        **properties,
    )


KINDS = (
    Kind("batch_norm", rule=batch_norm, work_class="norm", saves=saved_by_batch_norm, fusion="folded",
        group="normalisation", profile_kind="batch_norm", preserves_sharding=True, has_running_statistics=True,
        torch={"norm": "batch_norm", "aten_norm": "native_batch_norm"}, module="BatchNorm2d", caffe="batchnorm",
        pyprof={"norm": "batch_norm"}, autocast="input", uncounted_by="paleo", paleo="BatchNorm",
        onnx="BatchNormalization", onnx_weights=2),
    _row_normalisation("layer_norm", rule=row_norm, saves=saved_by_layer_norm,
        torch={"layer_norm": "layer_norm", "aten_layer_norm": "native_layer_norm"}, autocast="fp32",
        onnx="LayerNormalization", onnx_weights=2),
    _row_normalisation("group_norm", rule=row_norm, saves=saved_by_group_norm,
        torch={"group_norm": "group_norm", "aten_norm": "native_group_norm"}, autocast="fp32",
        onnx="GroupNormalization", onnx_weights=2),
    _row_normalisation("instance_norm", rule=row_norm, saves=saved_by_instance_norm, torch={"norm": "instance_norm"},
        autocast="input", onnx="InstanceNormalization", onnx_weights=2),
    _row_normalisation("rms_norm", rule=rms_norm, saves=saved_by_rms_norm, torch={"rms_norm": "rms_norm"},
        onnx="RMSNormalization", onnx_weights=1),
    Kind("local_response_norm", rule=local_response_norm, work_class="norm", saves=saved_by_local_response_norm,
        fusion="alone", group="normalisation", profile_kind="normalization", preserves_sharding=False,
        torch={"local_response_norm": "local_response_norm"}, module="LocalResponseNorm", uncounted_by="paleo",
        paleo="LRN", onnx="LRN"),
    Kind("weight_norm", rule=weight_norm, work_class="norm", saves=SAVES_NOTHING, fusion="alone", group="normalisation",
        profile_kind="normalization", preserves_sharding=False, torch={"weight_norm": "weight_norm_interface"}),
)  # fmt: skip

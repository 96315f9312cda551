"""Counting rules of activation functions, softmax and cross entropy.

Each of + - * / compare, exp, log, tanh, erf, sqrt and pow counts as one operation; a sign change is free. Backward
counts are the operations that turn the gradient of the output into that of the input, given the saved tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from ..layer import (
    SAVES_FIRST_INPUT,
    SAVES_OUTPUT,
    Cost,
    Kind,
    Layer,
    Op,
    PassCost,
    Saved,
    needed_cost,
)  # fmt: skip


def activation(op: Op, forward: int, backward: int) -> Cost:
    """Count an activation function, given its operations per output element in the forward and backward pass."""
    return needed_cost(
        op,
        forward=PassCost(forward * op.y, 0, op.x + op.w, op.y),
        data=PassCost(backward * op.y, 0, op.x + op.y + op.w, op.x),
        weight=PassCost(2 * op.y, 0, op.x + op.y, op.w),  # the slope of PReLU
    )


def saves_output_if_in_place(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the output of an in-place operation, otherwise the input."""
    return SAVES_OUTPUT if layer.attributes.get("in_place") else SAVES_FIRST_INPUT


def saved_by_softsign(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input, and 1 + |x|."""
    return Saved((0,), numbers=prod(layer.outputs[0]))


def softmax(op: Op) -> Cost:
    """Count softmax: maximum, subtract, exp, sum, divide (5 per element); backward ``y (dy - sum dy y)`` (4)."""
    return needed_cost(op, PassCost(5 * op.y, 0, op.x, op.y), PassCost(4 * op.y, 0, 2 * op.y, op.x))


def cross_entropy(op: Op) -> Cost:
    """Count a fused cross entropy: softmax and one logarithm per row; the backward pass reads the logits again."""
    x = op.inputs[0]
    return needed_cost(op, PassCost(5 * x, 0, x, op.y), PassCost(2 * x, 0, x + op.y, x))


def _activation(name: str, forward: int, backward: int, **properties: Any) -> Kind:
    """Return the kind of an activation function with these operations per element."""
    return Kind(
        name,
        rule=partial(activation, forward=forward, backward=backward),
        work_class="elementwise",
        fusion="pointwise",
        group="activation",
        profile_kind="elementwise",
        preserves_sharding=True,
        uncounted_by="paleo",
        **properties,
    )


KINDS = (
    # forward: max(x, 0); backward: select
    _activation("relu", forward=1, backward=1, saves=SAVES_OUTPUT, torch={"same_shape": "relu"},
        pyprof={"same": "relu"}, caffe="relu", module="ReLU", onnx="Relu", paleo="ReLU"),
    _activation("relu6", forward=2, backward=2, saves=SAVES_FIRST_INPUT, torch={"same_shape": "relu6"}, caffe="relu6"),
    _activation("hardtanh", forward=2, backward=2, saves=SAVES_FIRST_INPUT, torch={"same_shape": "hardtanh"}),
    _activation("leaky_relu", forward=2, backward=2, saves=saves_output_if_in_place,
        torch={"same_shape": "leaky_relu rrelu"}, onnx="LeakyRelu"),
    _activation("prelu", forward=2, backward=2, saves=SAVES_FIRST_INPUT, torch={"prelu": "prelu"}, onnx="PRelu",
        onnx_weights=1),
    _activation("threshold", forward=1, backward=1, saves=SAVES_FIRST_INPUT, torch={"same_shape": "threshold"},
        onnx="ThresholdedRelu"),
    _activation("hard_shrink", forward=2, backward=1, saves=SAVES_FIRST_INPUT, torch={"same_shape": "hardshrink"}),
    _activation("soft_shrink", forward=3, backward=1, saves=SAVES_FIRST_INPUT, torch={"same_shape": "softshrink"}),
    # forward: compare, exp, -1, *alpha
    _activation("elu", forward=4, backward=3, saves=saves_output_if_in_place, torch={"same_shape": "elu"}, caffe="elu",
        onnx="Elu"),
    _activation("selu", forward=5, backward=4, saves=saves_output_if_in_place, torch={"same_shape": "selu"},
        onnx="Selu"),
    _activation("celu", forward=5, backward=4, saves=saves_output_if_in_place, torch={"same_shape": "celu"},
        onnx="Celu"),
    # forward: exp, +1, /; backward: y (1 - y) dy
    _activation("sigmoid", forward=3, backward=3, saves=SAVES_OUTPUT, torch={"same_shape": "sigmoid"},
        pyprof={"same": "sigmoid"}, caffe="sigmoid", onnx="Sigmoid", paleo="Sigmoid"),
    _activation("log_sigmoid", forward=3, backward=3, saves=SAVES_FIRST_INPUT,
        torch={"same_shape": "logsigmoid log_sigmoid"}),
    # forward: x + 3, max, min, /6
    _activation("hard_sigmoid", forward=4, backward=3, saves=SAVES_FIRST_INPUT, torch={"same_shape": "hardsigmoid"},
        caffe="hardsigmoid", onnx="HardSigmoid"),
    _activation("hard_swish", forward=5, backward=5, saves=SAVES_FIRST_INPUT, torch={"same_shape": "hardswish"},
        onnx="HardSwish"),
    # forward: sigmoid s, *x; backward: s (1 + x (1 - s)) dy
    _activation("silu", forward=4, backward=7, saves=SAVES_FIRST_INPUT, torch={"same_shape": "silu"},
        pyprof={"same": "silu"}, caffe="swish", onnx="Swish"),
    # forward: x / sqrt 2, erf, +1, *x, *0.5; backward: cdf + x pdf
    _activation("gelu", forward=5, backward=9, saves=SAVES_FIRST_INPUT, torch={"gelu": "gelu"}, pyprof={"same": "gelu"},
        onnx="Gelu"),
    # torch's gelu with approximate="tanh"
    _activation("gelu_tanh", forward=9, backward=15, saves=SAVES_FIRST_INPUT),
    _activation("tanh", forward=1, backward=3, saves=SAVES_OUTPUT, torch={"same_shape": "tanh"},
        pyprof={"same": "tanh"}, caffe="tanh", onnx="Tanh", paleo="TanH"),
    _activation("softplus", forward=3, backward=4, saves=SAVES_FIRST_INPUT, torch={"same_shape": "softplus"},
        caffe="bnll", onnx="Softplus", autocast="fp32"),
    _activation("softsign", forward=3, backward=4, saves=saved_by_softsign, torch={"same_shape": "softsign"},
        onnx="Softsign"),
    _activation("mish", forward=5, backward=9, saves=SAVES_FIRST_INPUT, torch={"same_shape": "mish"}, onnx="Mish"),
    _activation("glu", forward=4, backward=6, saves=SAVES_FIRST_INPUT, torch={"first_tensor": "glu"}),
    Kind("softmax", rule=softmax, work_class="elementwise", saves=SAVES_OUTPUT, fusion="reduction", group="activation",
        profile_kind="softmax", preserves_sharding=True, torch={"same_shape": "softmax softmin"}, module="Softmax",
        caffe="softmax softmaxwithloss softmaxloss", pyprof={"same": "softmax"}, autocast="fp32",
        uncounted_by="paleo lu2017", paleo="Softmax", onnx="Softmax"),
    # cross_entropy is counted as its log_softmax: selecting one element per sample is negligible.
    Kind("log_softmax", rule=softmax, work_class="elementwise", saves=SAVES_OUTPUT, fusion="reduction",
        group="activation", profile_kind="softmax", preserves_sharding=True, torch={"same_shape": "log_softmax"},
        pyprof={"same": "log_softmax cross_entropy"}, autocast="fp32", uncounted_by="paleo", onnx="LogSoftmax"),
    Kind("cross_entropy", rule=cross_entropy, work_class="elementwise", saves=SAVES_FIRST_INPUT, fusion="alone",
        group="activation", profile_kind="softmax", preserves_sharding=False, uncounted_by="paleo lu2017 pthflops"),
)  # fmt: skip

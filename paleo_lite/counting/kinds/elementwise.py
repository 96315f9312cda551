"""Counting rules of activations, elementwise arithmetic, softmax, dropout, reductions and normalisations.

Each of + - * / compare, exp, log, tanh, erf, sqrt and pow counts as one operation; a sign change is free. Backward
counts are the operations that turn the gradient of the output into that of the input, given the saved tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log2, prod
from typing import Any

from ..layer import (
    INDEX_BYTES,
    NO_COST,
    SAVES_FIRST_INPUT,
    SAVES_NOTHING,
    SAVES_OUTPUT,
    Cost,
    Kind,
    Layer,
    Op,
    PassCost,
    Saved,
    needed_cost,
    sum_costs,
)
from .products import saved_factors


def activation(op: Op, forward: int, backward: int) -> Cost:
    """Count an activation function.

    Parameters
    ----------
    op : Op
        The layer.
    forward, backward : int
        Operations per output element in the forward and backward pass.
    """
    return needed_cost(
        op,
        forward=PassCost(forward * op.y, 0, op.x + op.w, op.y),
        data=PassCost(backward * op.y, 0, op.x + op.y + op.w, op.x),
        weight=PassCost(2 * op.y, 0, op.x + op.y, op.w),  # the slope of PReLU
    )


def arithmetic(op: Op, forward: int, backward: int, factor: bool = False) -> Cost:
    """Count arithmetic on one or more tensors with broadcasting; the gradient of a broadcast operand is summed.

    Parameters
    ----------
    op : Op
        The layer.
    forward, backward : int
        Operations per output element in the forward pass, and in the gradient of each operand.
    factor : bool
        Whether an operation with a single tensor multiplies it by a number, so that its gradient needs no saved tensor.
        Otherwise the gradient reads the operand itself; with several operands it reads the others.
    """
    num_operands = len(op.inputs) + len(op.weights)
    read = op.x + op.w

    def gradient(size: int) -> PassCost | None:
        is_broadcast = size < op.y
        if not backward and not is_broadcast:
            return None  # the gradient is passed on unchanged
        saved = 0
        if backward and num_operands > 1:
            saved = read - size
        elif backward and not factor:
            saved = size
        return PassCost((backward + is_broadcast) * op.y, 0, op.y + saved, size)

    data_costs, weight_costs = [], []
    for size, is_wanted in zip(op.inputs, op.wants_gradient):
        cost = gradient(size)
        if is_wanted and cost is not None:
            data_costs.append(cost)
    for size in op.weights:
        cost = gradient(size)
        if cost is not None:
            weight_costs.append(cost)
    forward_cost = PassCost(forward * op.y, 0, read, op.y)
    return needed_cost(op, forward_cost, sum_costs(data_costs), sum_costs(weight_costs))


def saves_output_if_in_place(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the output of an in-place operation, otherwise the input."""
    return SAVES_OUTPUT if layer.attributes.get("in_place") else SAVES_FIRST_INPUT


def saves_all_inputs(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: all inputs."""
    return Saved(tuple(range(len(layer.inputs))))


def saved_by_quotient(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the divisor, and the dividend if the divisor wants a gradient."""
    if len(layer.inputs) == 1:
        return saved_factors(layer, wants_gradient, trainable)
    divisor_wants_gradient = wants_gradient[1]
    return saves_all_inputs(layer, wants_gradient, trainable) if divisor_wants_gradient else Saved((1,))


def saved_by_power(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: all inputs, and the output if the exponent is a tensor."""
    return Saved(tuple(range(len(layer.inputs))), output=len(layer.inputs) > 1)


def saved_by_softsign(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input, and 1 + |x|."""
    return Saved((0,), numbers=prod(layer.outputs[0]))


def saved_by_where(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the condition, which is the first input of ``where`` and the second of
    ``masked_fill``."""
    if len(layer.inputs) > 2:
        return SAVES_FIRST_INPUT
    return Saved(tuple(position for position, is_wanted in enumerate(wants_gradient) if not is_wanted))


def saved_by_lerp(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: all inputs if the interpolation weight is a tensor, otherwise nothing."""
    return saves_all_inputs(layer, wants_gradient, trainable) if len(layer.inputs) > 2 else SAVES_NOTHING


def saved_by_scale(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input of a scale per channel, or both factors of ``a + b c``."""
    return Saved((1, 2)) if len(layer.inputs) > 2 else SAVES_FIRST_INPUT


def softmax(op: Op) -> Cost:
    """Count softmax: maximum, subtract, exp, sum, divide (5 per element); backward ``y (dy - sum dy y)`` (4)."""
    return needed_cost(op, PassCost(5 * op.y, 0, op.x, op.y), PassCost(4 * op.y, 0, 2 * op.y, op.x))


def cross_entropy(op: Op) -> Cost:
    """Count a fused cross entropy: softmax and one logarithm per row; the backward pass reads the logits again."""
    x = op.inputs[0]
    return needed_cost(op, PassCost(5 * x, 0, x, op.y), PassCost(2 * x, 0, x + op.y, x))


def dropout(op: Op) -> Cost:
    """Count dropout: in training a compare, a multiplication and one byte of mask per element; at inference nothing.

    With probability 0 it costs nothing in training either.
    """
    if op.attributes.get("p") == 0:
        return Cost(NO_COST, NO_COST)
    y = op.y
    return needed_cost(
        op,
        forward=PassCost(2 * y, 0, op.x, y, index_bytes=y),
        data=PassCost(y, 0, y, op.x, index_bytes=y),
        inference=NO_COST,
    )


def saved_by_dropout(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: a mask of one byte per element; nothing with probability 0."""
    return SAVES_NOTHING if _is_identity_dropout(layer) else Saved(bytes=prod(layer.outputs[0]))


def _is_identity_dropout(layer: Layer) -> bool:
    return bool(layer.attributes.get("p") == 0)


def reduction(op: Op) -> Cost:
    """Count a reduction: `per_element` operations per input element (1 for a sum, 3 for a variance).

    The backward pass broadcasts the gradient.
    """
    per_element = op.attributes.get("per_element", 1)
    size = op.x + op.w
    backward = PassCost(size, 0, op.y, size)
    return needed_cost(op, PassCost(per_element * size, 0, size, op.y), backward, backward)


def saved_by_scan(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: nothing for a cumulative sum, otherwise input and output."""
    return SAVES_NOTHING if layer.attributes.get("function", "cumsum") == "cumsum" else Saved((0,), output=True)


def fourier(op: Op) -> Cost:
    """Count a Fourier transform: ``5 N log2 N`` FLOPs for N complex numbers, half as many for real ones.

    This is the count of Cooley and Tukey (1965) that benchmarks use. A complex number is two elements of memory.
    """
    function = op.attributes.get("function", "fft_c2c")
    input_width = 1 if "r2c" in function else 2
    output_width = 1 if "c2r" in function else 2
    elements = op.y if output_width == 1 else op.x
    per_element_and_level = 5 if input_width == output_width else 2.5
    flops = int(per_element_and_level * elements * log2(max(op.attributes.get("length", 1), 1)))
    read, written = input_width * op.x, output_width * op.y
    return needed_cost(op, PassCost(flops, 0, read, written), PassCost(flops, 0, written, read))


def saved_by_reduction(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors of a reduction.

    Sums and means save nothing, maximum and minimum the indices, variances the input, and others input and output.
    """
    function = layer.attributes.get("function", "sum")
    if function in ("mean", "sum"):
        return SAVES_NOTHING
    if function in ("max", "min"):
        return Saved(bytes=INDEX_BYTES * prod(layer.outputs[0]))
    return SAVES_FIRST_INPUT if function.startswith("var") else Saved((0,), output=True)


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
    elements, last_size = prod(layer.inputs[0]), layer.inputs[0][-1]
    row_size = prod(layer.weights[0]) if layer.weights else last_size
    return elements // max(row_size, 1)


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


def _arithmetic(name: str, forward: int, backward: int, factor: bool = False, **properties: Any) -> Kind:
    """Return the kind of an elementwise operation with these operations per element."""
    return Kind(
        name,
        rule=partial(arithmetic, forward=forward, backward=backward, factor=factor),
        work_class="elementwise",
        fusion="pointwise",
        group="elementwise",
        profile_kind="elementwise",
        preserves_sharding=True,
        **properties,
    )


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


_COMPARISONS = "eq ne lt le gt ge isnan isinf isfinite"
_LOGICAL = "logical_and logical_or logical_xor logical_not bitwise_not bitwise_and bitwise_or"

KINDS = (
    # forward: max(x, 0); backward: select
    _activation(
        "relu",
        forward=1,
        backward=1,
        saves=SAVES_OUTPUT,
        torch={"same_shape": "relu"},
        pyprof={"same": "relu"},
        caffe="relu",
        module="ReLU",
        onnx="Relu",
        paleo="ReLU",
    ),
    _activation("relu6", forward=2, backward=2, saves=SAVES_FIRST_INPUT, torch={"same_shape": "relu6"}, caffe="relu6"),
    _activation("hardtanh", forward=2, backward=2, saves=SAVES_FIRST_INPUT, torch={"same_shape": "hardtanh"}),
    _activation(
        "leaky_relu",
        forward=2,
        backward=2,
        saves=saves_output_if_in_place,
        torch={"same_shape": "leaky_relu rrelu"},
        onnx="LeakyRelu",
    ),
    _activation(
        "prelu", forward=2, backward=2, saves=SAVES_FIRST_INPUT, torch={"prelu": "prelu"}, onnx="PRelu", onnx_weights=1
    ),
    _activation(
        "threshold",
        forward=1,
        backward=1,
        saves=SAVES_FIRST_INPUT,
        torch={"same_shape": "threshold"},
        onnx="ThresholdedRelu",
    ),
    _activation("hard_shrink", forward=2, backward=1, saves=SAVES_FIRST_INPUT, torch={"same_shape": "hardshrink"}),
    _activation("soft_shrink", forward=3, backward=1, saves=SAVES_FIRST_INPUT, torch={"same_shape": "softshrink"}),
    # forward: compare, exp, -1, *alpha
    _activation(
        "elu",
        forward=4,
        backward=3,
        saves=saves_output_if_in_place,
        torch={"same_shape": "elu"},
        caffe="elu",
        onnx="Elu",
    ),
    _activation(
        "selu", forward=5, backward=4, saves=saves_output_if_in_place, torch={"same_shape": "selu"}, onnx="Selu"
    ),
    _activation(
        "celu", forward=5, backward=4, saves=saves_output_if_in_place, torch={"same_shape": "celu"}, onnx="Celu"
    ),
    # forward: exp, +1, /; backward: y (1 - y) dy
    _activation(
        "sigmoid",
        forward=3,
        backward=3,
        saves=SAVES_OUTPUT,
        torch={"same_shape": "sigmoid"},
        pyprof={"same": "sigmoid"},
        caffe="sigmoid",
        onnx="Sigmoid",
        paleo="Sigmoid",
    ),
    _activation(
        "log_sigmoid", forward=3, backward=3, saves=SAVES_FIRST_INPUT, torch={"same_shape": "logsigmoid log_sigmoid"}
    ),
    # forward: x + 3, max, min, /6
    _activation(
        "hard_sigmoid",
        forward=4,
        backward=3,
        saves=SAVES_FIRST_INPUT,
        torch={"same_shape": "hardsigmoid"},
        caffe="hardsigmoid",
        onnx="HardSigmoid",
    ),
    _activation(
        "hard_swish",
        forward=5,
        backward=5,
        saves=SAVES_FIRST_INPUT,
        torch={"same_shape": "hardswish"},
        onnx="HardSwish",
    ),
    # forward: sigmoid s, *x; backward: s (1 + x (1 - s)) dy
    _activation(
        "silu",
        forward=4,
        backward=7,
        saves=SAVES_FIRST_INPUT,
        torch={"same_shape": "silu"},
        pyprof={"same": "silu"},
        caffe="swish",
        onnx="Swish",
    ),
    # forward: x / sqrt 2, erf, +1, *x, *0.5; backward: cdf + x pdf
    _activation(
        "gelu",
        forward=5,
        backward=9,
        saves=SAVES_FIRST_INPUT,
        torch={"gelu": "gelu"},
        pyprof={"same": "gelu"},
        onnx="Gelu",
    ),
    # torch's gelu with approximate="tanh"
    _activation("gelu_tanh", forward=9, backward=15, saves=SAVES_FIRST_INPUT),
    _activation(
        "tanh",
        forward=1,
        backward=3,
        saves=SAVES_OUTPUT,
        torch={"same_shape": "tanh"},
        pyprof={"same": "tanh"},
        caffe="tanh",
        onnx="Tanh",
        paleo="TanH",
    ),
    _activation(
        "softplus",
        forward=3,
        backward=4,
        saves=SAVES_FIRST_INPUT,
        torch={"same_shape": "softplus"},
        caffe="bnll",
        onnx="Softplus",
        autocast="fp32",
    ),
    _activation(
        "softsign", forward=3, backward=4, saves=saved_by_softsign, torch={"same_shape": "softsign"}, onnx="Softsign"
    ),
    _activation("mish", forward=5, backward=9, saves=SAVES_FIRST_INPUT, torch={"same_shape": "mish"}, onnx="Mish"),
    _activation("glu", forward=4, backward=6, saves=SAVES_FIRST_INPUT, torch={"first_tensor": "glu"}),
    # The gradient of a sum is passed on unchanged.
    _arithmetic(
        "add",
        forward=1,
        backward=0,
        saves=SAVES_NOTHING,
        torch={"broadcast": "add"},
        passes_gradient=True,
        onnx="Add Sum",
        uncounted_by="paleo",
    ),
    _arithmetic(
        "sub",
        forward=1,
        backward=0,
        saves=SAVES_NOTHING,
        torch={"broadcast": "sub rsub subtract"},
        passes_gradient=True,
        onnx="Sub",
    ),
    # backward, for each operand: dy times the other operand
    _arithmetic(
        "mul",
        forward=1,
        backward=1,
        factor=True,
        saves=saved_factors,
        torch={"broadcast": "mul multiply square"},
        onnx="Mul",
        uncounted_by="paleo",
    ),
    _arithmetic(
        "div",
        forward=1,
        backward=2,
        factor=True,
        saves=saved_by_quotient,
        torch={"broadcast": "div divide true_divide floor_divide remainder fmod"},
        onnx="Div Mod",
    ),
    _arithmetic(
        "pow",
        forward=1,
        backward=3,
        saves=saved_by_power,
        torch={"broadcast": "pow"},
        caffe="power",
        onnx="Pow",
        autocast="fp32",
    ),
    _arithmetic("sqrt", forward=1, backward=2, saves=SAVES_OUTPUT, torch={"broadcast": "sqrt"}, onnx="Sqrt"),
    _arithmetic("rsqrt", forward=2, backward=3, saves=SAVES_OUTPUT, torch={"broadcast": "rsqrt"}, autocast="fp32"),
    _arithmetic(
        "exp",
        forward=1,
        backward=1,
        saves=SAVES_OUTPUT,
        torch={"broadcast": "exp exp2 expm1"},
        caffe="exp",
        onnx="Exp",
        autocast="fp32",
    ),
    _arithmetic(
        "log",
        forward=1,
        backward=1,
        saves=SAVES_FIRST_INPUT,
        torch={"broadcast": "log log2 log10 log1p"},
        caffe="log",
        onnx="Log",
        autocast="fp32",
    ),
    _arithmetic(
        "abs", forward=1, backward=1, saves=SAVES_FIRST_INPUT, torch={"broadcast": "abs"}, caffe="absval", onnx="Abs"
    ),
    _arithmetic("neg", forward=0, backward=0, saves=SAVES_NOTHING, torch={"broadcast": "neg"}, onnx="Neg"),
    _arithmetic("sin", forward=1, backward=2, saves=SAVES_FIRST_INPUT, torch={"broadcast": "sin"}, onnx="Sin"),
    _arithmetic("cos", forward=1, backward=2, saves=SAVES_FIRST_INPUT, torch={"broadcast": "cos"}, onnx="Cos"),
    _arithmetic("erf", forward=1, backward=5, saves=SAVES_FIRST_INPUT, torch={"broadcast": "erf"}, onnx="Erf"),
    _arithmetic(
        "reciprocal",
        forward=1,
        backward=3,
        saves=SAVES_OUTPUT,
        torch={"broadcast": "reciprocal"},
        onnx="Reciprocal",
        autocast="fp32",
    ),
    _arithmetic(
        "clamp",
        forward=2,
        backward=1,
        saves=SAVES_FIRST_INPUT,
        torch={"broadcast": "clamp clip"},
        onnx="Clip",
        onnx_weights=0,
    ),
    _arithmetic(
        "maximum",
        forward=1,
        backward=1,
        saves=saves_all_inputs,
        torch={"broadcast": "maximum clamp_min", "min_or_max": "max"},
        onnx="Max",
        uncounted_by="paleo",
    ),
    _arithmetic(
        "minimum",
        forward=1,
        backward=1,
        saves=saves_all_inputs,
        torch={"broadcast": "minimum clamp_max", "min_or_max": "min"},
        onnx="Min",
    ),
    _arithmetic(
        "round",
        forward=1,
        backward=0,
        saves=SAVES_NOTHING,
        torch={"broadcast": "floor ceil round trunc sign"},
        onnx="Round Floor Ceil Sign",
    ),
    _arithmetic(
        "where",
        forward=1,
        backward=1,
        saves=saved_by_where,
        torch={"all_tensors": "where", "masked": "masked_fill"},
        onnx="Where",
    ),
    _arithmetic(
        "compare",
        forward=1,
        backward=0,
        saves=SAVES_NOTHING,
        torch={"comparison": _COMPARISONS},
        caffe="threshold",
        element_bytes=1,
        onnx="Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf",
    ),
    _arithmetic(
        "logical",
        forward=1,
        backward=0,
        saves=SAVES_NOTHING,
        torch={"without_gradient": _LOGICAL},
        element_bytes=1,
        onnx="And Or Xor Not",
    ),
    _arithmetic("lerp", forward=3, backward=2, saves=saved_by_lerp, torch={"all_tensors": "lerp"}),
    # Caffe's Scale layer: a factor and an offset per channel
    _arithmetic(
        "scale",
        forward=2,
        backward=1,
        saves=saved_by_scale,
        torch={"broadcast": "addcmul addcdiv"},
        uncounted_by="paleo",
        paleo="Scale",
    ),
    Kind(
        "softmax",
        rule=softmax,
        work_class="elementwise",
        saves=SAVES_OUTPUT,
        fusion="reduction",
        group="activation",
        profile_kind="softmax",
        preserves_sharding=True,
        torch={"same_shape": "softmax softmin"},
        module="Softmax",
        caffe="softmax softmaxwithloss softmaxloss",
        pyprof={"same": "softmax"},
        autocast="fp32",
        uncounted_by="paleo lu2017",
        paleo="Softmax",
        onnx="Softmax",
    ),
    # cross_entropy is counted as its log_softmax: selecting one element per sample is negligible.
    Kind(
        "log_softmax",
        rule=softmax,
        work_class="elementwise",
        saves=SAVES_OUTPUT,
        fusion="reduction",
        group="activation",
        profile_kind="softmax",
        preserves_sharding=True,
        torch={"same_shape": "log_softmax"},
        pyprof={"same": "log_softmax cross_entropy"},
        autocast="fp32",
        uncounted_by="paleo",
        onnx="LogSoftmax",
    ),
    Kind(
        "cross_entropy",
        rule=cross_entropy,
        work_class="elementwise",
        saves=SAVES_FIRST_INPUT,
        fusion="alone",
        group="activation",
        profile_kind="softmax",
        preserves_sharding=False,
        uncounted_by="paleo lu2017 pthflops",
    ),
    Kind(
        "dropout",
        rule=dropout,
        work_class="elementwise",
        saves=saved_by_dropout,
        fusion="alone",
        group="elementwise",
        profile_kind="elementwise",
        preserves_sharding=True,
        aliases_input=_is_identity_dropout,
        module="Dropout",
        caffe="dropout",
        uncounted_by="lu2017",
        paleo="Dropout",
        torch={"dropout": "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"},
    ),
    Kind(
        "reduce",
        rule=reduction,
        work_class="elementwise",
        saves=saved_by_reduction,
        fusion="reduction",
        group="elementwise",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={
            "all_tensors": "sum mean amax amin prod logsumexp any all col2im",
            "without_gradient": "argmax argmin",
            "two_per_element": "norm linalg_vector_norm vector_norm",
            "three_per_element": "var std var_mean std_mean",
        },
        onnx="ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp "
        "ArgMax ArgMin Mean",
    ),
    Kind(
        "scan",
        rule=reduction,
        work_class="elementwise",
        saves=saved_by_scan,
        fusion="alone",
        group="elementwise",
        profile_kind="elementwise",
        preserves_sharding=True,
        torch={"all_tensors": "cumsum cumprod logcumsumexp cummax cummin"},
        autocast="fp32",
        onnx="CumSum",
        onnx_weights=0,
    ),
    Kind(
        "fourier",
        rule=fourier,
        work_class="elementwise",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="elementwise",
        profile_kind="other",
        preserves_sharding=False,
        torch={"fourier_transform": "fft_r2c fft_c2r fft_c2c"},
    ),
    Kind(
        "batch_norm",
        rule=batch_norm,
        work_class="norm",
        saves=saved_by_batch_norm,
        fusion="folded",
        group="normalisation",
        profile_kind="batch_norm",
        preserves_sharding=True,
        has_running_statistics=True,
        torch={"norm": "batch_norm", "aten_norm": "native_batch_norm"},
        module="BatchNorm2d",
        caffe="batchnorm",
        pyprof={"norm": "batch_norm"},
        autocast="input",
        uncounted_by="paleo",
        paleo="BatchNorm",
        onnx="BatchNormalization",
        onnx_weights=2,
    ),
    _row_normalisation(
        "layer_norm",
        rule=row_norm,
        saves=saved_by_layer_norm,
        torch={"layer_norm": "layer_norm", "aten_layer_norm": "native_layer_norm"},
        autocast="fp32",
        onnx="LayerNormalization",
        onnx_weights=2,
    ),
    _row_normalisation(
        "group_norm",
        rule=row_norm,
        saves=saved_by_group_norm,
        torch={"group_norm": "group_norm", "aten_norm": "native_group_norm"},
        autocast="fp32",
        onnx="GroupNormalization",
        onnx_weights=2,
    ),
    _row_normalisation(
        "instance_norm",
        rule=row_norm,
        saves=saved_by_instance_norm,
        torch={"norm": "instance_norm"},
        autocast="input",
        onnx="InstanceNormalization",
        onnx_weights=2,
    ),
    _row_normalisation(
        "rms_norm",
        rule=rms_norm,
        saves=saved_by_rms_norm,
        torch={"rms_norm": "rms_norm"},
        onnx="RMSNormalization",
        onnx_weights=1,
    ),
    Kind(
        "local_response_norm",
        rule=local_response_norm,
        work_class="norm",
        saves=saved_by_local_response_norm,
        fusion="alone",
        group="normalisation",
        profile_kind="normalization",
        preserves_sharding=False,
        torch={"local_response_norm": "local_response_norm"},
        module="LocalResponseNorm",
        uncounted_by="paleo",
        paleo="LRN",
        onnx="LRN",
    ),
    Kind(
        "weight_norm",
        rule=weight_norm,
        work_class="norm",
        saves=SAVES_NOTHING,
        fusion="alone",
        group="normalisation",
        profile_kind="normalization",
        preserves_sharding=False,
        torch={"weight_norm": "weight_norm_interface"},
    ),
)

"""Activations and arithmetic per element, softmax, dropout, reductions, and normalisations.

Arithmetic: one operation each for + - * / compare, and exp, log, tanh, erf, sqrt, pow. A sign change is free. The
backward figure is what turns the gradient of the output into that of the input, from the saved tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log2, prod
from typing import Any

from ..layer import (
    FIRST,
    INDEX_BYTES,
    NOTHING,
    OUTPUT,
    SAVES_NOTHING,
    Cost,
    Kind,
    Layer,
    Op,
    PassCost,
    Saved,
    cost,
    together,
)
from .products import saved_by_product


def activation(forward: int, backward: int, op: Op) -> Cost:
    """An activation function, of so many operations per output element forward and backward."""
    return cost(
        op,
        PassCost(forward * op.y, 0, op.x + op.w, op.y),
        PassCost(backward * op.y, 0, op.x + op.y + op.w, op.x),
        PassCost(2 * op.y, 0, op.x + op.y, op.w),  # prelu
    )


def arithmetic(forward: int, backward: int, op: Op, *, factor: bool = False) -> Cost:
    """Arithmetic on one or more tensors, broadcast; a broadcast operand's gradient is summed.

    The gradient needs the other operands; of a single operand itself, but of one multiplied by a number (`factor`) not.
    """
    operands, read = len(op.inputs) + len(op.weights), op.x + op.w
    gradients: tuple[list[PassCost], list[PassCost]] = [], []  # of inputs, of weights
    wanted = [size for size, wants in zip(op.inputs, op.wants_gradient) if wants]
    for sizes, made in zip((wanted, op.weights), gradients):
        for size in sizes:
            broadcast = size < op.y
            if backward or broadcast:
                others = read - size if operands > 1 else (0 if factor else size)
                made.append(PassCost((backward + broadcast) * op.y, 0, op.y + (others if backward else 0), size))
    return cost(op, PassCost(forward * op.y, 0, read, op.y), *map(together, gradients))


def output_where_in_place(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, or in place its result."""
    return OUTPUT if layer.attributes.get("in_place") else FIRST


def both(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """All operands."""
    return Saved(tuple(range(len(layer.inputs))))


def saved_by_quotient(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """The divisor, and the dividend where the divisor wants a gradient."""
    if len(layer.inputs) == 1:
        return saved_by_product(layer, wants_gradient, trainable)
    return both(layer, wants_gradient, trainable) if wants_gradient[1] else Saved((1,))


def saved_by_power(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """All operands, and the result where the exponent is a tensor."""
    return Saved(tuple(range(len(layer.inputs))), output=len(layer.inputs) > 1)


def saved_by_softsign(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, and one plus the size of each element."""
    return Saved((0,), numbers=prod(layer.outputs[0]))


def saved_by_where(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """The condition alone: it comes first, or second where values are filled in."""
    if len(layer.inputs) > 2:
        return FIRST
    return Saved(tuple(place for place, wanted in enumerate(wants_gradient) if not wanted))


def saved_by_lerp(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Nothing between two tensors by a number; all where a third says how far."""
    return both(layer, wants_gradient, trainable) if len(layer.inputs) > 2 else SAVES_NOTHING


def saved_by_scale(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """The factors: the input of one per channel, both of ``a + b c``."""
    return Saved((1, 2)) if len(layer.inputs) > 2 else FIRST


def softmax(op: Op) -> Cost:
    """Maximum, subtract, exp, sum, divide: 5 per element; backward ``y (dy - sum dy y)``: 4."""
    return cost(op, PassCost(5 * op.y, 0, op.x, op.y), PassCost(4 * op.y, 0, 2 * op.y, op.x))


def dropout(op: Op) -> Cost:
    """Inference: nothing. Training: a compare and a multiplication per element, and a mask of one byte each.

    With a probability of 0 nothing in training either.
    """
    y = op.y
    if op.attributes.get("p") == 0:
        return Cost(NOTHING, NOTHING)
    return cost(op, PassCost(2 * y, 0, op.x, y, y), PassCost(y, 0, y, op.x, y), inference=NOTHING)


def saved_by_dropout(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """A mask of a byte for each element; nothing with a probability of 0."""
    return SAVES_NOTHING if _is_off(layer) else Saved(bytes=prod(layer.outputs[0]))


def _is_off(layer: Layer) -> bool:
    return bool(layer.attributes.get("p") == 0)


def reduction(op: Op) -> Cost:
    """Sum, mean, maximum: one operation per input element; variance three; backward spreads the gradient."""
    per = op.attributes.get("per_element", 1)
    size = op.x + op.w
    back = PassCost(size, 0, op.y, size)
    return cost(op, PassCost(per * size, 0, size, op.y), back, back)


def saved_by_scan(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Nothing of cumulative sums, input and result of all others."""
    return SAVES_NOTHING if layer.attributes.get("function", "cumsum") == "cumsum" else Saved((0,), output=True)


def fourier(op: Op) -> Cost:
    """``5 N log2 N`` for N complex numbers (Cooley and Tukey 1965, as benchmarks count), half of it for real ones.

    A complex number is two numbers of memory.
    """
    function = op.attributes.get("function", "fft_c2c")
    reads, writes = (1 if "r2c" in function else 2), (1 if "c2r" in function else 2)
    elements = op.y if writes == 1 else op.x
    flops = int((5 if reads == writes else 2.5) * elements * log2(max(op.attributes.get("length", 1), 1)))
    forward = PassCost(flops, 0, reads * op.x, writes * op.y)
    return cost(op, forward, PassCost(flops, 0, writes * op.y, reads * op.x))


def saved_by_reduction(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Nothing of sums and means, places of extremes, the input of a variance, the result as well of all others."""
    function = layer.attributes.get("function", "sum")
    if function in ("mean", "sum"):
        return SAVES_NOTHING
    if function in ("max", "min"):
        return Saved(bytes=INDEX_BYTES * prod(layer.outputs[0]))
    return FIRST if function.startswith("var") else Saved((0,), output=True)


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
    y, size = op.y, op.attributes.get("size", 5)
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


_POINTWISE: dict[str, Any] = {
    "work_class": "elementwise", "fusion": "pointwise", "profiled": "elementwise", "splits": True,
}  # fmt: skip
_ACTIVATION = {**_POINTWISE, "group": "activation", "free": "paleo"}
_ARITHMETIC = {**_POINTWISE, "group": "elementwise"}
_OVER_ROWS: dict[str, Any] = {
    "work_class": "norm", "fusion": "reduction", "group": "normalisation", "profiled": "normalization", "splits": False,
}  # fmt: skip
_COMPARISONS = "eq ne lt le gt ge isnan isinf isfinite"
_LOGICAL = "logical_and logical_or logical_xor logical_not bitwise_not bitwise_and bitwise_or"

KINDS = (
    # max(x, 0); select
    Kind("relu", partial(activation, 1, 1), saves=OUTPUT, torch={"like": "relu"}, pyprof={"same": "relu"}, caffe="relu",
         module="ReLU", onnx="Relu", paleo="ReLU", **_ACTIVATION),
    Kind("relu6", partial(activation, 2, 2), saves=FIRST, torch={"like": "relu6"}, caffe="relu6", **_ACTIVATION),
    Kind("hardtanh", partial(activation, 2, 2), saves=FIRST, torch={"like": "hardtanh"}, **_ACTIVATION),
    Kind("leaky_relu", partial(activation, 2, 2), saves=output_where_in_place, torch={"like": "leaky_relu rrelu"},
         onnx="LeakyRelu", **_ACTIVATION),
    Kind("prelu", partial(activation, 2, 2), saves=FIRST, torch={"prelu": "prelu"}, onnx="PRelu", onnx_weights=1,
         **_ACTIVATION),
    Kind("threshold", partial(activation, 1, 1), saves=FIRST, torch={"like": "threshold"}, onnx="ThresholdedRelu",
         **_ACTIVATION),
    Kind("hard_shrink", partial(activation, 2, 1), saves=FIRST, torch={"like": "hardshrink"}, **_ACTIVATION),
    Kind("soft_shrink", partial(activation, 3, 1), saves=FIRST, torch={"like": "softshrink"}, **_ACTIVATION),
    # compare, exp, -1, *alpha
    Kind("elu", partial(activation, 4, 3), saves=output_where_in_place, torch={"like": "elu"}, caffe="elu", onnx="Elu",
         **_ACTIVATION),
    Kind("selu", partial(activation, 5, 4), saves=output_where_in_place, torch={"like": "selu"}, onnx="Selu",
         **_ACTIVATION),
    Kind("celu", partial(activation, 5, 4), saves=output_where_in_place, torch={"like": "celu"}, onnx="Celu",
         **_ACTIVATION),
    # exp, +1, /; y (1 - y) dy
    Kind("sigmoid", partial(activation, 3, 3), saves=OUTPUT, torch={"like": "sigmoid"}, pyprof={"same": "sigmoid"},
         caffe="sigmoid", onnx="Sigmoid", paleo="Sigmoid", **_ACTIVATION),
    Kind("log_sigmoid", partial(activation, 3, 3), saves=FIRST, torch={"like": "logsigmoid log_sigmoid"},
         **_ACTIVATION),
    # x + 3, max, min, /6
    Kind("hard_sigmoid", partial(activation, 4, 3), saves=FIRST, torch={"like": "hardsigmoid"}, caffe="hardsigmoid",
         onnx="HardSigmoid", **_ACTIVATION),
    Kind("hard_swish", partial(activation, 5, 5), saves=FIRST, torch={"like": "hardswish"}, onnx="HardSwish",
         **_ACTIVATION),
    # sigmoid, *; s (1 + x (1 - s)) dy
    Kind("silu", partial(activation, 4, 7), saves=FIRST, torch={"like": "silu"}, pyprof={"same": "silu"}, caffe="swish",
         onnx="Swish", **_ACTIVATION),
    # x / sqrt 2, erf, +1, *x, *0.5; cdf + x pdf
    Kind("gelu", partial(activation, 5, 9), saves=FIRST, torch={"gelu": "gelu"}, pyprof={"same": "gelu"}, onnx="Gelu",
         **_ACTIVATION),
    # torch's gelu, by an argument
    Kind("gelu_tanh", partial(activation, 9, 15), saves=FIRST, **_ACTIVATION),
    Kind("tanh", partial(activation, 1, 3), saves=OUTPUT, torch={"like": "tanh"}, pyprof={"same": "tanh"}, caffe="tanh",
         onnx="Tanh", paleo="TanH", **_ACTIVATION),
    Kind("softplus", partial(activation, 3, 4), saves=FIRST, torch={"like": "softplus"}, caffe="bnll", onnx="Softplus",
         autocast="fp32", **_ACTIVATION),
    Kind("softsign", partial(activation, 3, 4), saves=saved_by_softsign, torch={"like": "softsign"}, onnx="Softsign",
         **_ACTIVATION),
    Kind("mish", partial(activation, 5, 9), saves=FIRST, torch={"like": "mish"}, onnx="Mish", **_ACTIVATION),
    Kind("glu", partial(activation, 4, 6), saves=FIRST, torch={"first": "glu"}, **_ACTIVATION),
    # the gradient of a sum passes through
    Kind("add", partial(arithmetic, 1, 0), saves=SAVES_NOTHING, torch={"broadcast": "add"}, passes_gradient=True,
         onnx="Add Sum", free="paleo", **_ARITHMETIC),
    Kind("sub", partial(arithmetic, 1, 0), saves=SAVES_NOTHING, torch={"broadcast": "sub rsub subtract"},
         passes_gradient=True, onnx="Sub", **_ARITHMETIC),
    # for each operand: dy * the other
    Kind("mul", partial(arithmetic, 1, 1, factor=True), saves=saved_by_product,
         torch={"broadcast": "mul multiply square"}, onnx="Mul", free="paleo", **_ARITHMETIC),
    Kind("div", partial(arithmetic, 1, 2, factor=True), saves=saved_by_quotient,
         torch={"broadcast": "div divide true_divide floor_divide remainder fmod"}, onnx="Div Mod", **_ARITHMETIC),
    Kind("pow", partial(arithmetic, 1, 3), saves=saved_by_power, torch={"broadcast": "pow"}, caffe="power", onnx="Pow",
         autocast="fp32", **_ARITHMETIC),
    Kind("sqrt", partial(arithmetic, 1, 2), saves=OUTPUT, torch={"broadcast": "sqrt"}, onnx="Sqrt", **_ARITHMETIC),
    Kind("rsqrt", partial(arithmetic, 2, 3), saves=OUTPUT, torch={"broadcast": "rsqrt"}, autocast="fp32",
         **_ARITHMETIC),
    Kind("exp", partial(arithmetic, 1, 1), saves=OUTPUT, torch={"broadcast": "exp exp2 expm1"}, caffe="exp", onnx="Exp",
         autocast="fp32", **_ARITHMETIC),
    Kind("log", partial(arithmetic, 1, 1), saves=FIRST, torch={"broadcast": "log log2 log10 log1p"}, caffe="log",
         onnx="Log", autocast="fp32", **_ARITHMETIC),
    Kind("abs", partial(arithmetic, 1, 1), saves=FIRST, torch={"broadcast": "abs"}, caffe="absval", onnx="Abs",
         **_ARITHMETIC),
    Kind("neg", partial(arithmetic, 0, 0), saves=SAVES_NOTHING, torch={"broadcast": "neg"}, onnx="Neg", **_ARITHMETIC),
    Kind("sin", partial(arithmetic, 1, 2), saves=FIRST, torch={"broadcast": "sin"}, onnx="Sin", **_ARITHMETIC),
    Kind("cos", partial(arithmetic, 1, 2), saves=FIRST, torch={"broadcast": "cos"}, onnx="Cos", **_ARITHMETIC),
    Kind("erf", partial(arithmetic, 1, 5), saves=FIRST, torch={"broadcast": "erf"}, onnx="Erf", **_ARITHMETIC),
    Kind("reciprocal", partial(arithmetic, 1, 3), saves=OUTPUT, torch={"broadcast": "reciprocal"}, onnx="Reciprocal",
         autocast="fp32", **_ARITHMETIC),
    Kind("clamp", partial(arithmetic, 2, 1), saves=FIRST, torch={"broadcast": "clamp clip"}, onnx="Clip",
         onnx_weights=0, **_ARITHMETIC),
    Kind("maximum", partial(arithmetic, 1, 1), saves=both, torch={"broadcast": "maximum clamp_min", "extreme": "max"},
         onnx="Max", free="paleo", **_ARITHMETIC),
    Kind("minimum", partial(arithmetic, 1, 1), saves=both, torch={"broadcast": "minimum clamp_max", "extreme": "min"},
         onnx="Min", **_ARITHMETIC),
    Kind("round", partial(arithmetic, 1, 0), saves=SAVES_NOTHING, torch={"broadcast": "floor ceil round trunc sign"},
         onnx="Round Floor Ceil Sign", **_ARITHMETIC),
    Kind("where", partial(arithmetic, 1, 1), saves=saved_by_where, torch={"plain": "where masked_fill"}, onnx="Where",
         **_ARITHMETIC),
    Kind("compare", partial(arithmetic, 1, 0), saves=SAVES_NOTHING, torch={"without_gradient": _COMPARISONS},
         caffe="threshold", element_bytes=1, onnx="Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf",
         **_ARITHMETIC),
    Kind("logical", partial(arithmetic, 1, 0), saves=SAVES_NOTHING, torch={"without_gradient": _LOGICAL},
         element_bytes=1, onnx="And Or Xor Not", **_ARITHMETIC),
    Kind("lerp", partial(arithmetic, 3, 2), saves=saved_by_lerp, torch={"plain": "lerp"}, **_ARITHMETIC),
    # Caffe's Scale layer: one factor and one offset per channel
    Kind("scale", partial(arithmetic, 2, 1), saves=saved_by_scale, torch={"broadcast": "addcmul addcdiv"}, free="paleo",
         paleo="Scale", **_ARITHMETIC),
    Kind(
        "softmax", softmax, "elementwise", OUTPUT, "reduction", "activation", "softmax", splits=True,
        torch={"like": "softmax softmin"}, module="Softmax", caffe="softmax softmaxwithloss softmaxloss",
        pyprof={"same": "softmax"}, autocast="fp32", free="paleo lu2017", paleo="Softmax", onnx="Softmax",
    ),
    Kind(
        # cross_entropy is its log_softmax: the choice of one element per sample computes nothing worth counting
        "log_softmax", softmax, "elementwise", OUTPUT, "reduction", "activation", "softmax", splits=True,
        torch={"like": "log_softmax"}, pyprof={"same": "log_softmax cross_entropy"}, autocast="fp32", free="paleo",
        onnx="LogSoftmax",
    ),
    Kind(
        "dropout", dropout, "elementwise", saved_by_dropout, "alone", "elementwise", "elementwise", splits=True,
        alias=_is_off, module="Dropout", caffe="dropout", free="lu2017", paleo="Dropout",
        torch={"dropout": "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"},
    ),
    Kind(
        "reduce", reduction, "elementwise", saved_by_reduction, "reduction", "elementwise", "elementwise", splits=True,
        torch={
            "plain": "sum mean amax amin prod logsumexp any all col2im",
            "without_gradient": "argmax argmin",
            "twice": "norm linalg_vector_norm vector_norm",
            "three_times": "var std var_mean std_mean",
        },
        onnx="ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp "
        "ArgMax ArgMin Mean",
    ),
    Kind(
        "scan", reduction, "elementwise", saved_by_scan, "alone", "elementwise", "elementwise", splits=True,
        torch={"plain": "cumsum cumprod logcumsumexp cummax cummin"}, autocast="fp32", onnx="CumSum", onnx_weights=0,
    ),
    Kind(
        "fourier", fourier, "elementwise", SAVES_NOTHING, "alone", "elementwise", "other", splits=False,
        torch={"transform": "fft_r2c fft_c2r fft_c2c"},
    ),
    Kind(
        "batch_norm", batch_norm, "norm", saved_by_batch_norm, "folded", "normalisation", "batch_norm", splits=True,
        statistics=True, torch={"norm": "batch_norm", "aten_norm": "native_batch_norm"}, module="BatchNorm2d",
        caffe="batchnorm", pyprof={"norm": "batch_norm"}, autocast="input", free="paleo", paleo="BatchNorm",
        onnx="BatchNormalization", onnx_weights=2,
    ),
    Kind("layer_norm", row_norm, saves=saved_by_layer_norm,
         torch={"rows": "layer_norm", "aten_rows": "native_layer_norm"}, autocast="fp32", onnx="LayerNormalization",
         onnx_weights=2, **_OVER_ROWS),
    Kind("group_norm", row_norm, saves=saved_by_group_norm,
         torch={"groups": "group_norm", "aten_norm": "native_group_norm"}, autocast="fp32", onnx="GroupNormalization",
         onnx_weights=2, **_OVER_ROWS),
    Kind("instance_norm", row_norm, saves=saved_by_instance_norm, torch={"norm": "instance_norm"}, autocast="input",
         onnx="InstanceNormalization", onnx_weights=2, **_OVER_ROWS),
    Kind("rms_norm", rms_norm, saves=saved_by_rms_norm, torch={"scaled_rows": "rms_norm"}, onnx="RMSNormalization",
         onnx_weights=1, **_OVER_ROWS),
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

"""Activations and arithmetic per element, softmax, dropout, and reductions.

Arithmetic: one operation each for + - * / compare, and exp, log, tanh, erf, sqrt, pow. A sign change is free. The
backward figure is what turns the gradient of the output into that of the input, from the saved tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod
from typing import Any

from ..layer import Layer, Op
from .kind import (
    FIRST,
    INDEX_BYTES,
    NOTHING,
    OUTPUT,
    SAVES_NOTHING,
    Cost,
    Kind,
    PassCost,
    Rule,
    Saved,
    Saves,
    cost,
    together,
)  # fmt: skip
from .products import saved_by_product


def activation(forward: int, backward: int) -> Rule:
    """An activation function, of so many operations per output element forward and backward."""

    def rule(op: Op) -> Cost:
        weight = PassCost(2 * op.y, 0, op.x + op.y, op.w)  # prelu
        return cost(
            op,
            PassCost(forward * op.y, 0, op.x + op.w, op.y),
            PassCost(backward * op.y, 0, op.x + op.y + op.w, op.x),
            weight,
        )

    return rule


def arithmetic(forward: int, backward: int, *, factor: bool = False) -> Rule:
    """Arithmetic on one or more tensors, broadcast; a broadcast operand's gradient is summed.

    The gradient needs the other operands; of a single operand itself, but of one multiplied by a number (`factor`) not.
    """

    def rule(op: Op) -> Cost:
        operands = len(op.inputs) + len(op.weights)

        def gradient(size: int) -> PassCost:
            broadcast = size < op.y
            if backward == 0 and not broadcast:
                return NOTHING
            others = op.x + op.w - size if operands > 1 else (0 if factor else size)
            reads = op.y + (others if backward else 0)
            return PassCost((backward + broadcast) * op.y, 0, reads, size)

        data = [gradient(x) for x, wanted in zip(op.inputs, op.wants_gradient) if wanted]
        weights = [gradient(w) for w in op.weights]
        return cost(op, PassCost(forward * op.y, 0, op.x + op.w, op.y), together(data), together(weights))

    return rule


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
    if op.attribute("p") == 0:
        return Cost(NOTHING, NOTHING)
    return cost(op, PassCost(2 * y, 0, op.x, y, y), PassCost(y, 0, y, op.x, y), inference=NOTHING)


def saved_by_dropout(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """A mask of a byte for each element; nothing with a probability of 0."""
    return SAVES_NOTHING if _is_off(layer) else Saved(bytes=prod(layer.outputs[0]))


def _is_off(layer: Layer) -> bool:
    return bool(layer.attributes.get("p") == 0)


def reduction(op: Op) -> Cost:
    """Sum, mean, maximum: one operation per input element; variance three; backward spreads the gradient."""
    per = op.attribute("per_element", 1)
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
    function = op.attribute("function", "fft_c2c")
    reads, writes = (1 if "r2c" in function else 2), (1 if "c2r" in function else 2)
    elements = op.y if writes == 1 else op.x
    flops = int((5 if reads == writes else 2.5) * elements * log2(max(op.attribute("length", 1), 1)))
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


def _activation(
    name: str, forward: int, backward: int, saves: Saved | Saves = FIRST, torch: str | dict[str, str] = "",
    pyprof: str = "", **known: Any,
) -> Kind:  # fmt: skip
    return Kind(
        name, activation(forward, backward), "elementwise", saves, "pointwise", "activation", "elementwise",
        splits=True, torch={"like": torch or name} if isinstance(torch, str) else torch, free="paleo",
        pyprof={"same": pyprof} if pyprof else {}, **known,
    )  # fmt: skip


def _arithmetic(
    name: str, forward: int, backward: int, saves: Saved | Saves, torch: str | dict[str, str] = "", *,
    factor: bool = False, **known: Any,
) -> Kind:  # fmt: skip
    rule = arithmetic(forward, backward, factor=factor)
    return Kind(
        name, rule, "elementwise", saves, "pointwise", "elementwise", "elementwise", splits=True,
        torch={"broadcast": torch or name} if isinstance(torch, str) else torch, **known,
    )  # fmt: skip


_COMPARISONS = "eq ne lt le gt ge isnan isinf isfinite"
_LOGICAL = "logical_and logical_or logical_xor logical_not bitwise_not bitwise_and bitwise_or"

KINDS = (
    # max(x, 0); select
    _activation("relu", 1, 1, OUTPUT, caffe="relu", module="ReLU", pyprof="relu", onnx="Relu", paleo="ReLU"),
    _activation("relu6", 2, 2, caffe="relu6"),
    _activation("hardtanh", 2, 2),
    _activation("leaky_relu", 2, 2, output_where_in_place, "leaky_relu rrelu", onnx="LeakyRelu"),
    _activation("prelu", 2, 2, torch={"prelu": "prelu"}, onnx="PRelu", onnx_weights=1),
    _activation("threshold", 1, 1, onnx="ThresholdedRelu"),
    _activation("hard_shrink", 2, 1, torch="hardshrink"),
    _activation("soft_shrink", 3, 1, torch="softshrink"),
    _activation("elu", 4, 3, output_where_in_place, caffe="elu", onnx="Elu"),  # compare, exp, -1, *alpha
    _activation("selu", 5, 4, output_where_in_place, onnx="Selu"),
    _activation("celu", 5, 4, output_where_in_place, onnx="Celu"),
    # exp, +1, /; y (1 - y) dy
    _activation("sigmoid", 3, 3, OUTPUT, caffe="sigmoid", pyprof="sigmoid", onnx="Sigmoid", paleo="Sigmoid"),
    _activation("log_sigmoid", 3, 3, torch="logsigmoid log_sigmoid"),
    # x + 3, max, min, /6
    _activation("hard_sigmoid", 4, 3, torch="hardsigmoid", caffe="hardsigmoid", onnx="HardSigmoid"),
    _activation("hard_swish", 5, 5, torch="hardswish", onnx="HardSwish"),
    _activation("silu", 4, 7, caffe="swish", pyprof="silu", onnx="Swish"),  # sigmoid, *; s (1 + x (1 - s)) dy
    # x / sqrt 2, erf, +1, *x, *0.5; cdf + x pdf
    _activation("gelu", 5, 9, torch={"gelu": "gelu"}, pyprof="gelu", onnx="Gelu"),
    _activation("gelu_tanh", 9, 15, torch={}),  # torch's gelu, by an argument
    _activation("tanh", 1, 3, OUTPUT, caffe="tanh", pyprof="tanh", onnx="Tanh", paleo="TanH"),
    _activation("softplus", 3, 4, caffe="bnll", onnx="Softplus", autocast="fp32"),
    _activation("softsign", 3, 4, saved_by_softsign, onnx="Softsign"),
    _activation("mish", 5, 9, onnx="Mish"),
    _activation("glu", 4, 6, torch={"first": "glu"}),
    # the gradient of a sum passes through
    _arithmetic("add", 1, 0, SAVES_NOTHING, passes_gradient=True, onnx="Add Sum", free="paleo"),
    _arithmetic("sub", 1, 0, SAVES_NOTHING, "sub rsub subtract", passes_gradient=True, onnx="Sub"),
    # for each operand: dy * the other
    _arithmetic("mul", 1, 1, saved_by_product, "mul multiply square", factor=True, onnx="Mul", free="paleo"),
    _arithmetic("div", 1, 2, saved_by_quotient, "div divide true_divide floor_divide remainder fmod", factor=True,
                onnx="Div Mod"),
    _arithmetic("pow", 1, 3, saved_by_power, caffe="power", onnx="Pow", autocast="fp32"),
    _arithmetic("sqrt", 1, 2, OUTPUT, onnx="Sqrt"),
    _arithmetic("rsqrt", 2, 3, OUTPUT, autocast="fp32"),
    _arithmetic("exp", 1, 1, OUTPUT, "exp exp2 expm1", caffe="exp", onnx="Exp", autocast="fp32"),
    _arithmetic("log", 1, 1, FIRST, "log log2 log10 log1p", caffe="log", onnx="Log", autocast="fp32"),
    _arithmetic("abs", 1, 1, FIRST, caffe="absval", onnx="Abs"),
    _arithmetic("neg", 0, 0, SAVES_NOTHING, onnx="Neg"),
    _arithmetic("sin", 1, 2, FIRST, onnx="Sin"),
    _arithmetic("cos", 1, 2, FIRST, onnx="Cos"),
    _arithmetic("erf", 1, 5, FIRST, onnx="Erf"),
    _arithmetic("reciprocal", 1, 3, OUTPUT, onnx="Reciprocal", autocast="fp32"),
    _arithmetic("clamp", 2, 1, FIRST, "clamp clip", onnx="Clip", onnx_weights=0),
    _arithmetic("maximum", 1, 1, both, {"broadcast": "maximum clamp_min", "extreme": "max"}, onnx="Max", free="paleo"),
    _arithmetic("minimum", 1, 1, both, {"broadcast": "minimum clamp_max", "extreme": "min"}, onnx="Min"),
    _arithmetic("round", 1, 0, SAVES_NOTHING, "floor ceil round trunc sign", onnx="Round Floor Ceil Sign"),
    _arithmetic("where", 1, 1, saved_by_where, {"plain": "where masked_fill"}, onnx="Where"),
    _arithmetic("compare", 1, 0, SAVES_NOTHING, {"without_gradient": _COMPARISONS}, caffe="threshold", element_bytes=1,
                onnx="Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf"),
    _arithmetic("logical", 1, 0, SAVES_NOTHING, {"without_gradient": _LOGICAL}, element_bytes=1, onnx="And Or Xor Not"),
    _arithmetic("lerp", 3, 2, saved_by_lerp, {"plain": "lerp"}),
    # Caffe's Scale layer: one factor and one offset per channel
    _arithmetic("scale", 2, 1, saved_by_scale, "addcmul addcdiv", free="paleo", paleo="Scale"),
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
)  # fmt: skip

"""Counting rules of elementwise arithmetic, dropout and reductions. Operations are counted as in `activations`."""

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
)  # fmt: skip
from .products import saved_factors


def arithmetic(
    op: Op,
    forward: int,  # operations per output element in the forward pass
    backward: int,  # operations per output element in the gradient of each operand
    # Whether an operation with a single tensor multiplies it by a number, so that its gradient needs no saved tensor.
    # Otherwise the gradient reads the operand itself; with several operands it reads the others.
    factor: bool = False,
) -> Cost:
    """Count arithmetic on one or more tensors with broadcasting; the gradient of a broadcast operand is summed."""
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


_COMPARISONS = "eq ne lt le gt ge isnan isinf isfinite"
_LOGICAL = "logical_and logical_or logical_xor logical_not bitwise_not bitwise_and bitwise_or"


KINDS = (
    # The gradient of a sum is passed on unchanged.
    _arithmetic("add", forward=1, backward=0, saves=SAVES_NOTHING, torch={"broadcast": "add"}, passes_gradient=True,
        onnx="Add Sum", uncounted_by="paleo"),
    _arithmetic("sub", forward=1, backward=0, saves=SAVES_NOTHING, torch={"broadcast": "sub rsub subtract"},
        passes_gradient=True, onnx="Sub"),
    # backward, for each operand: dy times the other operand
    _arithmetic("mul", forward=1, backward=1, factor=True, saves=saved_factors,
        torch={"broadcast": "mul multiply square"}, onnx="Mul", uncounted_by="paleo"),
    _arithmetic("div", forward=1, backward=2, factor=True, saves=saved_by_quotient,
        torch={"broadcast": "div divide true_divide floor_divide remainder fmod"}, onnx="Div Mod"),
    _arithmetic("pow", forward=1, backward=3, saves=saved_by_power, torch={"broadcast": "pow"}, caffe="power",
        onnx="Pow", autocast="fp32"),
    _arithmetic("sqrt", forward=1, backward=2, saves=SAVES_OUTPUT, torch={"broadcast": "sqrt"}, onnx="Sqrt"),
    _arithmetic("rsqrt", forward=2, backward=3, saves=SAVES_OUTPUT, torch={"broadcast": "rsqrt"}, autocast="fp32"),
    _arithmetic("exp", forward=1, backward=1, saves=SAVES_OUTPUT, torch={"broadcast": "exp exp2 expm1"}, caffe="exp",
        onnx="Exp", autocast="fp32"),
    _arithmetic("log", forward=1, backward=1, saves=SAVES_FIRST_INPUT, torch={"broadcast": "log log2 log10 log1p"},
        caffe="log", onnx="Log", autocast="fp32"),
    _arithmetic("abs", forward=1, backward=1, saves=SAVES_FIRST_INPUT, torch={"broadcast": "abs"}, caffe="absval",
        onnx="Abs"),
    _arithmetic("neg", forward=0, backward=0, saves=SAVES_NOTHING, torch={"broadcast": "neg"}, onnx="Neg"),
    _arithmetic("sin", forward=1, backward=2, saves=SAVES_FIRST_INPUT, torch={"broadcast": "sin"}, onnx="Sin"),
    _arithmetic("cos", forward=1, backward=2, saves=SAVES_FIRST_INPUT, torch={"broadcast": "cos"}, onnx="Cos"),
    _arithmetic("erf", forward=1, backward=5, saves=SAVES_FIRST_INPUT, torch={"broadcast": "erf"}, onnx="Erf"),
    _arithmetic("reciprocal", forward=1, backward=3, saves=SAVES_OUTPUT, torch={"broadcast": "reciprocal"},
        onnx="Reciprocal", autocast="fp32"),
    _arithmetic("clamp", forward=2, backward=1, saves=SAVES_FIRST_INPUT, torch={"broadcast": "clamp clip"}, onnx="Clip",
        onnx_weights=0),
    _arithmetic("maximum", forward=1, backward=1, saves=saves_all_inputs,
        torch={"broadcast": "maximum clamp_min", "min_or_max": "max"}, onnx="Max", uncounted_by="paleo"),
    _arithmetic("minimum", forward=1, backward=1, saves=saves_all_inputs,
        torch={"broadcast": "minimum clamp_max", "min_or_max": "min"}, onnx="Min"),
    _arithmetic("round", forward=1, backward=0, saves=SAVES_NOTHING, torch={"broadcast": "floor ceil round trunc sign"},
        onnx="Round Floor Ceil Sign"),
    _arithmetic("where", forward=1, backward=1, saves=saved_by_where,
        torch={"all_tensors": "where", "masked": "masked_fill"}, onnx="Where"),
    _arithmetic("compare", forward=1, backward=0, saves=SAVES_NOTHING, torch={"comparison": _COMPARISONS},
        caffe="threshold", element_bytes=1, onnx="Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf"),
    _arithmetic("logical", forward=1, backward=0, saves=SAVES_NOTHING, torch={"without_gradient": _LOGICAL},
        element_bytes=1, onnx="And Or Xor Not"),
    _arithmetic("lerp", forward=3, backward=2, saves=saved_by_lerp, torch={"all_tensors": "lerp"}),
    # Caffe's Scale layer: a factor and an offset per channel
    _arithmetic("scale", forward=2, backward=1, saves=saved_by_scale, torch={"broadcast": "addcmul addcdiv"},
        uncounted_by="paleo", paleo="Scale"),
    Kind("dropout", rule=dropout, work_class="elementwise", saves=saved_by_dropout, fusion="alone", group="elementwise",
        profile_kind="elementwise", preserves_sharding=True, aliases_input=_is_identity_dropout, module="Dropout",
        caffe="dropout", uncounted_by="lu2017", paleo="Dropout",
        torch={"dropout": "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"}),
    Kind("reduce", rule=reduction, work_class="elementwise", saves=saved_by_reduction, fusion="reduction",
        group="elementwise", profile_kind="elementwise", preserves_sharding=True,
        torch={
            "all_tensors": "sum mean amax amin prod logsumexp any all col2im",
            "without_gradient": "argmax argmin",
            "two_per_element": "norm linalg_vector_norm vector_norm",
            "three_per_element": "var std var_mean std_mean",
        },
        onnx="ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
        "ReduceLogSumExp ArgMax ArgMin Mean"),
    Kind("scan", rule=reduction, work_class="elementwise", saves=saved_by_scan, fusion="alone", group="elementwise",
        profile_kind="elementwise", preserves_sharding=True,
        torch={"all_tensors": "cumsum cumprod logcumsumexp cummax cummin"}, autocast="fp32", onnx="CumSum",
        onnx_weights=0),
    Kind("fourier", rule=fourier, work_class="elementwise", saves=SAVES_NOTHING, fusion="alone", group="elementwise",
        profile_kind="other", preserves_sharding=False, torch={"fourier_transform": "fft_r2c fft_c2r fft_c2c"}),
)  # fmt: skip

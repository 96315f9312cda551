"""The canonical counting rules: what one layer computes and moves, by kind.

FLOPs: a multiply-accumulate is 2, a bias 1 per output, elementwise work as `elementwise` lists it.
Bytes: every operand once, the least that any kernel must move. A normalisation over the batch reads its input twice in
training, because its statistics are needed before its first output. Views move nothing.
Backward: gradients with respect to the inputs ("data") and to the parameters ("weight") apart. The table in
``docs/counting.md`` says the same in words.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple, TypeVar

from ..errors import CountFailed
from .elementwise import ACTIVATIONS, ELEMENTWISE
from .layer import Op


class Phase(NamedTuple):
    """What one pass over one layer takes.

    Attributes
    ----------
    flops, macs : int
        Floating-point operations, and multiply-accumulates of convolution, linear, matmul and attention.
    reads, writes : int
        Numbers of the network's precision read and written.
    index_bytes : int
        Bytes of indices and masks, whose size the precision does not change.
    kernels : int
        Kernels that an eager framework launches.
    """

    flops: int = 0
    macs: int = 0
    reads: int = 0
    writes: int = 0
    index_bytes: int = 0
    kernels: int = 1


NOTHING = Phase(kernels=0)
_INDEX = 8  # bytes of an index: int64, as PyTorch has it


class Cost(NamedTuple):
    """What a layer takes: at inference, and in the passes of a training step."""

    inference: Phase
    forward: Phase
    backward_data: Phase = NOTHING
    backward_weight: Phase = NOTHING


Rule = Callable[[Op], Cost]
Counted = TypeVar("Counted")


def _cost(
    op: Op, forward: Phase, data: Phase = NOTHING, weight: Phase = NOTHING, inference: Phase | None = None
) -> Cost:
    """Drop the gradients that are not needed."""
    return Cost(
        forward if inference is None else inference,
        forward,
        data if any(op.wants_gradient) else NOTHING,
        weight if op.trainable else NOTHING,
    )


def convolution(op: Op) -> Cost:
    """Convolution, 1-D to 3-D, grouped or transposed; weight ``(Cout, Cin/groups, *kernel)``.

    MACs = outputs * Cin/groups * prod(kernel). Transposed, with weight ``(Cin, Cout/groups, *kernel)``, every input
    element meets prod(weight[1:]). The gradients have the MACs of the forward pass.
    """
    taps = prod(op.layer.weights[0][1:])
    macs = (op.inputs[0] if op.attribute("transposed") else op.y) * taps
    return _multiply(op, macs)


def linear(op: Op) -> Cost:
    """``y = x W' + b``, weight ``(out, in)``: MACs = outputs * in."""
    return _multiply(op, op.y * op.layer.weights[0][-1])


def _multiply(op: Op, macs: int) -> Cost:
    bias = op.y if op.has_bias else 0
    x = op.inputs[0]
    return _cost(
        op,
        Phase(2 * macs + bias, macs, x + op.w, op.y),
        Phase(2 * macs, macs, op.y + op.weights[0], x),
        Phase(2 * macs + bias, macs, x + op.y, op.w),
    )


def matmul(op: Op) -> Cost:
    """``A B`` over any batch dimensions: MACs = outputs * inner dimension; each operand's gradient costs as much.

    An operand that is a parameter is among the weights; with the attribute ``bias`` the last weight is added.
    """
    bias = op.weights[-1] if op.attribute("bias") else 0
    left_first = op.layer.inputs[0] if op.layer.inputs else op.layer.weights[0]
    macs = op.y * op.attribute("inner", left_first[-1])
    operands = op.x + op.w - bias
    data = [Phase(2 * macs, macs, op.y + operands - x, x) for x, wanted in zip(op.inputs, op.wants_gradient) if wanted]
    weight = [Phase(2 * macs, macs, op.y + operands - w, w) for w in op.weights[: len(op.weights) - bool(bias)]]
    weight += [Phase(op.y, 0, op.y, bias)] if bias else []
    forward = Phase(2 * macs + (op.y if bias else 0), macs, op.x + op.w, op.y)
    return _cost(op, forward, _together(data), _together(weight))


def attention(op: Op) -> Cost:
    """Scaled dot-product attention of queries ``(..., L, E)``, keys ``(..., S, E)`` and values ``(..., S, V)``.

    MACs = scores * (E + V) with scores = ... * L * S, whether or not a mask hides half of them. Scaling 1, softmax 5
    per score. Bytes are those of a fused kernel, which keeps the scores on chip; backward has twice the MACs (a fused
    kernel's recomputation of the scores comes on top and is not counted).
    """
    q, k, v = op.layer.inputs[:3]
    scores = op.inputs[0] // q[-1] * k[-2]
    macs = scores * (q[-1] + v[-1])
    return _cost(
        op,
        Phase(2 * macs + 6 * scores, macs, op.x, op.y),
        Phase(4 * macs + 5 * scores, 2 * macs, op.x + 2 * op.y, sum(op.inputs[:3])),
    )


def batch_norm(op: Op) -> Cost:
    """Inference: one scale and one shift per element, 2 FLOPs, from four vectors per channel.

    Training: mean (1), variance (3), normalise (1), scale and shift (2); backward the two sums (5 with the normalised
    input recomputed, they are also the parameters' gradients), then the data gradient (6). Without trainable parameters
    the sums are part of the data gradient.
    """
    y, channels = op.y, op.layer.inputs[0][1]
    sums = Phase(5 * y, 0, 2 * y + 2 * channels, op.w)
    data = Phase(6 * y, 0, 2 * y + 3 * channels, op.inputs[0])
    return _cost(
        op,
        forward=Phase(7 * y, 0, 2 * op.inputs[0] + op.w, y),
        data=data if op.trainable else _together([sums._replace(writes=2 * channels), data]),
        weight=sums,
        inference=Phase(2 * y, 0, op.inputs[0] + 2 * channels + op.w, y),
    )


def row_norm(op: Op) -> Cost:
    """Layer, group and instance norm: statistics of what fits on chip, 5 FLOPs per element, 7 with scale and shift."""
    y = op.y
    affine = 2 if op.w else 0
    return _cost(
        op,
        Phase((5 + affine) * y, 0, op.x + op.w, y),
        Phase(10 * y, 0, op.x + y + op.w, op.x),
        Phase(5 * y, 0, op.x + y, op.w),
    )


def rms_norm(op: Op) -> Cost:
    """Root-mean-square norm: square, sum, scale; a factor per channel where it has one."""
    y = op.y
    return _cost(
        op,
        Phase((4 if op.w else 3) * y, 0, op.x + op.w, y),
        Phase(8 * y, 0, op.x + y + op.w, op.x),
        Phase(3 * y, 0, op.x + y, op.w),
    )


def local_response_norm(op: Op) -> Cost:
    """``x / (k + alpha/n sum x^2)^beta`` over n channels: a square, n - 1 additions, and 5 more per element."""
    y, size = op.y, op.attribute("size", 5)
    return _cost(op, Phase((size + 5) * y, 0, op.x, y), Phase(2 * (size + 5) * y, 0, op.x + 2 * y, op.x))


def softmax(op: Op) -> Cost:
    """Maximum, subtract, exp, sum, divide: 5 per element; backward ``y (dy - sum dy y)``: 4."""
    return _cost(op, Phase(5 * op.y, 0, op.x, op.y), Phase(4 * op.y, 0, 2 * op.y, op.x))


def elementwise(op: Op) -> Cost:
    """Activations and arithmetic, operands broadcast; a broadcast operand's gradient is summed."""
    per = ELEMENTWISE[op.layer.kind]
    if op.layer.kind in ACTIVATIONS:
        weight = Phase(2 * op.y, 0, op.x + op.y, op.w)  # prelu
        return _cost(
            op,
            Phase(per.forward * op.y, 0, op.x + op.w, op.y),
            Phase(per.backward * op.y, 0, op.x + op.y + op.w, op.x),
            weight,
        )
    operands = len(op.inputs) + len(op.weights)
    data = [
        _operand_gradient(op, per.backward, x, operands) for x, wanted in zip(op.inputs, op.wants_gradient) if wanted
    ]
    weights = [_operand_gradient(op, per.backward, w, operands) for w in op.weights]
    forward = Phase(per.forward * op.y, 0, op.x + op.w, op.y)
    return _cost(op, forward, _together(data), _together(weights))


def _operand_gradient(op: Op, flops: int, size: int, operands: int) -> Phase:
    """Gradient of one operand: `flops` per element with what the others hold, a sum where it was broadcast."""
    broadcast = size < op.y
    if flops == 0 and not broadcast:
        return NOTHING
    others = op.x + op.w - size if operands > 1 else (0 if op.layer.kind in ("mul", "div") else size)
    reads = op.y + (others if flops else 0)
    return Phase((flops + broadcast) * op.y, 0, reads, size)


def pooling(op: Op) -> Cost:
    """Maximum: k - 1 compares per output. Average: k operations (the sum and one division). k = window elements.

    An adaptive pooling's windows are those of PyTorch, from floor(i*in/out) to ceil((i+1)*in/out); windows of a single
    element compute nothing. Training keeps the place of each maximum.
    """
    maximum = op.layer.kind.startswith(("max", "adaptive_max"))
    taps = window_elements(op)
    flops = taps - op.y if maximum else (taps if taps > op.y else 0)
    places = _INDEX * op.y if maximum else 0
    return _cost(
        op,
        Phase(flops, 0, op.x, op.y, places),
        Phase(op.y if maximum else flops, 0, op.y, op.x, places),
        inference=Phase(flops, 0, op.x, op.y),
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


def interpolation(op: Op) -> Cost:
    """Nearest copies; linear in d dimensions weighs 2^d neighbours, cubic 4^d: 2 * taps - 1 per output."""
    base = {"nearest": 1, "linear": 2, "cubic": 4}[op.attribute("mode", "nearest")]
    taps = base**op.spatial_rank
    flops = op.y * (2 * taps - 1) if taps > 1 else 0
    return _cost(op, Phase(flops, 0, op.x, op.y), Phase(flops, 0, op.y, op.x))


def dropout(op: Op) -> Cost:
    """Inference: nothing. Training: a compare and a multiplication per element, and a mask of one byte each.

    With a probability of 0 nothing in training either.
    """
    y = op.y
    if op.attribute("p") == 0:
        return Cost(NOTHING, NOTHING)
    return _cost(op, Phase(2 * y, 0, op.x, y, y), Phase(y, 0, y, op.x, y), inference=NOTHING)


def embedding(op: Op) -> Cost:
    """Rows of a table by index: no FLOPs forward; backward adds the gradients into a table of zeros."""
    rows = op.y // op.layer.weights[0][-1]
    return _cost(
        op, Phase(0, 0, op.y, op.y, _INDEX * rows), weight=Phase(op.y, 0, 2 * op.y, op.w + op.y, _INDEX * rows)
    )


def gather(op: Op) -> Cost:
    """Elements by index: read, written, with an index each; backward adds them into zeros."""
    size = op.inputs[0] if op.inputs else op.w
    back = Phase(op.y, 0, 2 * op.y, size + op.y, _INDEX * op.y)
    return _cost(op, Phase(0, 0, op.y, op.y, _INDEX * op.y), back, back)


def reduction(op: Op) -> Cost:
    """Sum, mean, maximum: one operation per input element; variance three; backward spreads the gradient."""
    per = op.attribute("per_element", 1)
    size = op.x + op.w
    back = Phase(size, 0, op.y, size)
    return _cost(op, Phase(per * size, 0, size, op.y), back, back)


def copy(op: Op) -> Cost:
    """Every element read and written once, none computed: contiguous, clone, pad, roll, concat."""
    back = Phase(0, 0, op.y, op.x)
    return _cost(op, Phase(0, 0, op.x + op.w, op.y), back, Phase(0, 0, op.w, op.w))


def concat(op: Op) -> Cost:
    """Copies forward; backward hands out slices of the gradient, which are views."""
    return _cost(op, Phase(0, 0, op.x + op.w, op.y), weight=NOTHING)


def fill(op: Op) -> Cost:
    """A constant written."""
    return _cost(op, Phase(0, 0, 0, op.y))


def assign(op: Op) -> Cost:
    """``target[index] = value``: the values read and the part written; the first input is the target, whose rest stays.

    Backward the value's gradient is a part of the target's (a view), where zeros take its place.
    """
    return _cost(op, Phase(0, 0, op.x + op.w - op.inputs[0], op.y), Phase(0, 0, 0, op.y))


def weight_norm(op: Op) -> Cost:
    """``g v / |v|``: square, sum and scale, 3 per element; backward a scalar product more, 6."""
    v = op.y
    back = Phase(6 * v, 0, 2 * v, op.x + op.w)
    return _cost(op, Phase(3 * v, 0, op.x + op.w, v), back, back)


def view(op: Op) -> Cost:
    """Reshape, permute, flatten: no bytes. An expanded view's gradient is summed."""
    if op.y > op.x + op.w:
        back = Phase(op.y, 0, op.y, op.x + op.w)
        return _cost(op, NOTHING, back, back)
    return _cost(op, NOTHING)


def slicing(op: Op) -> Cost:
    """Slice, split, select: no bytes forward; backward writes the gradient into its place."""
    back = Phase(0, 0, op.y, op.x + op.w)
    return _cost(op, NOTHING, back, back)


def _together(phases: list[Phase]) -> Phase:
    return Phase(*(sum(column) for column in zip(*phases))) if phases else NOTHING


RULES: dict[str, Rule] = {
    **{f"conv{n}d": convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolution for n in (1, 2, 3)},
    "linear": linear,
    "matmul": matmul,
    "attention": attention,
    "batch_norm": batch_norm,
    **dict.fromkeys(["layer_norm", "group_norm", "instance_norm"], row_norm),
    "rms_norm": rms_norm,
    "local_response_norm": local_response_norm,
    "weight_norm": weight_norm,
    "softmax": softmax,
    "log_softmax": softmax,
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(["max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool"], pooling),
    "interpolate": interpolation,
    "dropout": dropout,
    "embedding": embedding,
    "gather": gather,
    "reduce": reduction,
    "concat": concat,
    **dict.fromkeys(["copy", "pad", "roll"], copy),
    "assign": assign,
    "fill": fill,
    "view": view,
    "slice": slicing,
}
"""The rule of every kind that the canonical convention counts."""

MATRIX_KINDS = frozenset(kind for kind, rule in RULES.items() if rule in (convolution, linear, matmul, attention))
"""Kinds whose work is multiply-accumulates, which tensor cores can do."""


def count_layer(op: Op) -> Cost | None:
    """The canonical cost of a layer, or None where no rule knows its kind.

    Raises
    ------
    CountFailed
        If the layer's shapes do not fit its kind.
    """
    rule = RULES.get(op.layer.kind)
    return None if rule is None else guarded(rule, op)


def guarded(rule: Callable[[Op], Counted], op: Op) -> Counted:
    """What a rule says of a layer; where the layer's shapes do not fit its kind, that in words."""
    try:
        return rule(op)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CountFailed(
            f"layer {op.layer.name!r} cannot be counted as {op.layer.kind}: inputs {op.layer.inputs}, "
            f"weights {op.layer.weights}, attributes {op.layer.attributes} ({type(error).__name__}: {error})"
        ) from error

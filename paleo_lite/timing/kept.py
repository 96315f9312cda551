"""What each layer keeps from the forward pass for the backward pass, as PyTorch's autograd does.

From the formulas in PyTorch's ``derivatives.yaml`` (what a gradient is computed from is what is kept) and held against
``torch.autograd.graph.saved_tensors_hooks`` on real modules in the tests. ``docs/training.md`` says the same in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ..counting import Layer

_INDEX_BYTES = 8  # int64


class Kept(NamedTuple):
    """What a layer keeps.

    Attributes
    ----------
    inputs : tuple of int
        Which of its inputs.
    output : bool
        Whether its output.
    numbers : int
        Further numbers of the network's precision that nothing else holds.
    statistics : int
        Means, deviations, logarithms of sums: kept in fp32 or wider.
    bytes : int
        Bytes of masks and indices, whose size the precision does not change.
    scales : bool
        Whether these three grow with the batch.
    """

    inputs: tuple[int, ...] = ()
    output: bool = False
    numbers: int = 0
    statistics: int = 0
    bytes: int = 0
    scales: bool = True

    def own_bytes(self, number_bytes: int) -> int:
        """Bytes that nothing else holds, for numbers of that many bytes."""
        return self.numbers * number_bytes + self.statistics * max(number_bytes, 4) + self.bytes


NOTHING = Kept()
FIRST = Kept(inputs=(0,))
OUTPUT = Kept(output=True)

_FROM_OUTPUT = frozenset((
    "relu", "sigmoid", "tanh", "softmax", "log_softmax", "exp", "sqrt", "rsqrt", "reciprocal",
))  # fmt: skip
_FROM_INPUT = frozenset((
    "hardtanh", "relu6", "hard_swish", "hard_sigmoid", "silu", "gelu", "gelu_tanh", "mish", "softplus", "glu",
    "prelu", "threshold", "hard_shrink", "soft_shrink", "log_sigmoid", "log", "abs", "sin", "cos", "erf", "clamp",
    "avg_pool",
))  # fmt: skip
_FROM_OUTPUT_IN_PLACE = frozenset(("leaky_relu", "elu", "selu", "celu"))
_REDUCTIONS_OF_SIZES = frozenset(("mean", "sum"))


def kept_by(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Kept:
    """What a layer keeps for its gradients.

    Parameters
    ----------
    layer : Layer
        One that a backward pass reaches.
    wants_gradient : sequence of bool
        For each input whether its gradient is computed.
    trainable : bool
        Whether the layer's weights get a gradient.
    """
    kind, inputs = layer.kind, layer.inputs
    elements = prod(layer.outputs[0]) if layer.outputs else 0
    if kind.startswith("conv"):
        return FIRST
    if kind == "linear":
        return FIRST if trainable else NOTHING
    if kind in ("matmul", "mul", "div", "pow", "scale", "lerp", "maximum", "minimum", "attention"):
        return _of_operands(layer, wants_gradient, trainable)
    if kind in _FROM_OUTPUT:
        return OUTPUT
    if kind in _FROM_OUTPUT_IN_PLACE:
        return OUTPUT if layer.attributes.get("in_place") else FIRST
    if kind in _FROM_INPUT:
        return FIRST
    if kind == "batch_norm":
        return Kept((0,), statistics=2 * inputs[0][1], scales=False)
    if kind.endswith("_norm"):
        return _of_norm(layer)
    if kind in ("max_pool", "adaptive_max_pool"):
        return Kept((0,), bytes=_INDEX_BYTES * elements)
    if kind == "adaptive_avg_pool":
        # To a single position PyTorch computes a mean, which needs its sizes only.
        rank = layer.attributes.get("dims", len(inputs[0]) - 2)
        return NOTHING if prod(layer.outputs[0][-rank:]) == 1 else FIRST
    if kind == "dropout":
        return NOTHING if layer.attributes.get("p") == 0 else Kept(bytes=elements)
    if kind == "softsign":
        return Kept((0,), numbers=elements)
    if kind == "where":
        # The condition alone: it comes first, or second where values are filled in.
        return (
            FIRST
            if len(inputs) > 2
            else Kept(tuple(place for place, wanted in enumerate(wants_gradient) if not wanted))
        )
    if kind == "embedding":
        return FIRST
    if kind == "reduce":
        return _of_reduction(layer)
    # add, sub, neg, concat, copy, pad, roll, views, interpolation: their gradients follow from sizes alone.
    return NOTHING


def _of_operands(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Kept:
    """Products: each operand's gradient needs the others. Attention needs all and its result, and a sum per row."""
    kind, count = layer.kind, len(layer.inputs)
    every = Kept(tuple(range(count)))
    if kind == "attention":
        return every._replace(output=True, statistics=prod(layer.inputs[0][:-1]))
    if kind in ("maximum", "minimum"):
        return every
    if kind == "pow":
        return every._replace(output=count > 1)
    if kind == "lerp":  # between two tensors by a number, or by a third
        return every if count > 2 else NOTHING
    if kind == "scale":  # by factors per channel, or ``a + b c``
        return Kept((1, 2)) if count > 2 else FIRST
    if count == 1:  # by a parameter, or by a number
        return FIRST if layer.weights and trainable else NOTHING
    if kind == "div":
        return every if wants_gradient[1] else Kept((1,))
    return Kept(tuple(place for place in range(count) if trainable or _others_want(wants_gradient, place)))


def _others_want(wants_gradient: Sequence[bool], place: int) -> bool:
    return any(wanted for other, wanted in enumerate(wants_gradient) if other != place)


def _of_norm(layer: Layer) -> Kept:
    """Input and statistics; local response norm is a chain of a square, a padding, a sum and a power."""
    shape = layer.inputs[0]
    elements = prod(shape)
    if layer.kind == "local_response_norm":
        window = layer.attributes.get("size", 5)
        return Kept((0,), numbers=elements // shape[1] * (shape[1] + window - 1) + 2 * elements)
    if layer.kind == "group_norm":
        return Kept((0,), statistics=2 * shape[0] * layer.attributes.get("num_groups", 1))
    if layer.kind == "instance_norm":
        affine = 1 if layer.weights else 0
        return Kept((0,), numbers=affine * shape[0] * shape[1], statistics=2 * shape[0] * shape[1])
    if layer.kind == "weight_norm":
        return Kept()
    normalised = prod(layer.weights[0]) if layer.weights else shape[-1]
    rows = elements // max(normalised, 1)
    if layer.kind == "rms_norm":
        return Kept((0,), statistics=rows)
    return Kept((0,), statistics=2 * rows)


def _of_reduction(layer: Layer) -> Kept:
    function = layer.attributes.get("function", "sum")
    if function in _REDUCTIONS_OF_SIZES:
        return NOTHING
    if function in ("max", "min"):
        return Kept(bytes=_INDEX_BYTES * prod(layer.outputs[0]))
    if function.startswith("var"):
        return FIRST
    return Kept((0,), output=True)

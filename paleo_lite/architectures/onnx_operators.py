"""How operators of ONNX become layers: kinds, attributes, and sizes that a file may state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from ..counting import KINDS, Shape


class Operator(NamedTuple):
    """Attributes of an operator, the shapes of its operands and results, and its layer kind."""

    attributes: dict[str, Any]
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    kind: str


KindAndAttributes = tuple[str, dict[str, Any]]
"""Kind and attributes of the layer of an operator."""

KINDS_OF = {operator: kind.name for kind in KINDS.values() for operator in kind.onnx.split()}
LIKE_WEIGHTS = {kind.name: kind.onnx_weights for kind in KINDS.values() if kind.onnx_weights is not None}


def _convolution(operator: Operator) -> KindAndAttributes:
    rank = len(operator.inputs[1]) - 2
    if rank < 1:
        raise ValueError(f"its weights have the shape {operator.inputs[1]}, expected at least three dimensions")
    attributes: dict[str, Any] = {
        "stride": list(operator.attributes.get("strides", [1] * rank)),
        "padding": list(operator.attributes.get("pads", [0] * rank))[:rank],
    }
    if any(step != 1 for step in operator.attributes.get("dilations", ())):
        attributes["dilation"] = list(operator.attributes["dilations"])
    if operator.attributes.get("group", 1) != 1:
        attributes["groups"] = operator.attributes["group"]
    if "transpose" in operator.kind:
        attributes["transposed"] = True
    return f"{operator.kind.removesuffix('2d')}{rank}d", attributes


def _pool(operator: Operator) -> KindAndAttributes:
    kernel = list(operator.attributes["kernel_shape"])
    attributes = {"kernel": kernel, "stride": list(operator.attributes.get("strides", [1] * len(kernel)))}
    padding = list(operator.attributes.get("pads", []))[: len(kernel)]
    if any(padding):
        attributes["padding"] = padding
    return operator.kind, attributes


def _mean(operator: Operator) -> KindAndAttributes:
    """Read a mean; over images it is an adaptive pooling to one position, as in torch."""
    if (
        len(operator.inputs[0]) == len(operator.outputs[0]) == 4
        and prod(operator.outputs[0][2:]) == 1
        and operator.inputs[0][:2] == operator.outputs[0][:2]
    ):
        return "adaptive_avg_pool", {}
    return operator.kind, {"function": "mean"}


def _resize(operator: Operator) -> KindAndAttributes:
    mode = str(operator.attributes.get("mode", b"nearest"), "utf-8")
    return operator.kind, {"mode": "linear" if mode == "bilinear" else mode}


def _attention(operator: Operator) -> KindAndAttributes:
    """Read attention over queries of shape (1, heads, tokens, size); other layouts are not counted."""
    if len(operator.inputs[0]) != 4:
        return "onnx.Attention", {}
    attributes = {"causal": True} if operator.attributes.get("is_causal") else {}
    return operator.kind, attributes


def parse_einsum(equation: str, shapes: Sequence[Shape]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of each operand and of the result of an einsum; dimensions of an ellipsis are numbered labels.

    Raise ValueError if the equation does not have the operands and dimensions of the operator.
    """
    text, arrow, explicit = equation.replace(" ", "").partition("->")
    terms = []
    for term, shape in zip(text.split(","), shapes):
        before, ellipsis, after = term.partition("...")
        hidden = len(shape) - len(before) - len(after)
        if hidden < 0 or (hidden and not ellipsis):
            raise ValueError(f"the equation {equation!r:.60} does not fit an operand of shape {shape}")
        numbered = [str(position) for position in range(hidden, 0, -1)]  # counted from the last: they broadcast
        terms.append([*before, *numbered, *after])
    if len(terms) != len(shapes) or text.count(",") + 1 != len(shapes):
        raise ValueError(f"the equation {equation!r:.60} does not have {len(shapes)} operands")
    hidden_labels = sorted({label for term in terms for label in term if label.isdecimal()}, reverse=True)
    if arrow:
        before, ellipsis, after = explicit.partition("...")
        return terms, [*before, *(hidden_labels if ellipsis else []), *after]
    all_labels = [label for term in terms for label in term if not label.isdecimal()]  # implicit: those that occur once
    return terms, [*hidden_labels, *sorted(label for label in all_labels if all_labels.count(label) == 1)]


COUNTS = ("group", "size", "num_groups", "hidden_size")
"""Attributes that are a number of positions or parts."""

COUNTS_BY_DIMENSION = ("kernel_shape", "strides", "dilations")
"""Attributes that are a number of positions for each dimension."""

RECURRENT = {"LSTM": (4, (3, 2, 3, 5)), "GRU": (3, (2, 1, 2, 5)), "RNN": (1, (0, 1, 0, 1))}
"""Number of gates, and sigmoids, tanhs, products and sums per element of the state (formulas of ONNX)."""

READERS: dict[str, Callable[[Operator], KindAndAttributes]] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "ReduceMean": _mean,
    "Resize": _resize,
    "Upsample": _resize,
    "GridSample": _resize,
    "Attention": _attention,
    "MatMul": lambda operator: (operator.kind, {"inner": operator.inputs[0][-1]}),
    "LRN": lambda operator: (operator.kind, {"size": operator.attributes["size"]}),
    "GroupNormalization": lambda operator: (operator.kind, {"num_groups": operator.attributes["num_groups"]}),
    "Gelu": lambda operator: ("gelu_tanh" if operator.attributes.get("approximate") == b"tanh" else operator.kind, {}),
}

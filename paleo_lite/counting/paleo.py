"""What the released PALEO counts (Qi, Sparks, Talwalkar, ICLR 2017; github TalwalkarLab/paleo, read from its source).

Two revisions: ``first`` (b12c04b, the one behind the authors' web demo) and ``last`` (984bbf5). Each pass over a layer
is a list of `Term`s, arithmetic or memory transfers, timed one by one (`paleo_lite.timing.paleo`). The defects of the
original stand here on purpose and nowhere else; ``docs/paleo.md`` lists them and what each is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..errors import CountFailed, UnknownName
from .kinds import ACTIVATIONS
from .kinds.pooling import window_elements
from .layer import Layer, Op
from .paleo_convolution import FLOAT, Term, convolution_terms

REVISIONS = ("first", "last")
PARTS = ("forward", "backward_data", "backward_weight")
"""The passes that PALEO times."""

ALGORITHMS = ("gemm", "fft", "fft-tiled", "winograd")
"""Convolution algorithms that PALEO has a path for; winograd has no model there and takes no time."""

_POOLS = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")
_FREE = ACTIVATIONS | {
    "add", "mul", "maximum", "scale", "batch_norm", "local_response_norm", "softmax", "log_softmax", "concat", "view",
    "slice", "copy", "interpolate",
}  # fmt: skip
"""Kinds that cost nothing in PALEO."""


def count_paleo(op: Op) -> int | None:
    """The ``paleo`` convention: forward FLOPs as PALEO has them, None for layers that it has no type for.

    Convolution and inner product 2 per multiply-accumulate, biases nothing; pooling 2 per window element; dropout 1 per
    element, in inference, too; batch norm, activations, softmax, concat, sums and reshapes 0.
    """
    kind = op.layer.kind
    if kind == "conv2d" and knows(op.layer):
        return 2 * op.y * prod(op.layer.weights[0][1:])
    if kind == "linear":
        return 2 * op.y * op.layer.weights[0][-1]
    if kind in _POOLS and op.spatial_rank == 2:
        return 2 * window_elements(op)
    if kind == "dropout":
        return op.x
    return 0 if kind in _FREE else None


def knows(layer: Layer) -> bool:
    """Whether PALEO has this layer: its convolutions have neither groups nor dilation, its layers two dimensions."""
    attributes = layer.attributes
    if layer.kind == "conv2d":
        return attributes.get("groups", 1) == 1 and set(attributes.get("dilation", [1])) == {1}
    if layer.kind == "linear":
        return len(layer.inputs[0]) == 2
    if layer.kind in _POOLS:
        return len(layer.inputs[0]) == 4
    return layer.kind == "dropout" or layer.kind in _FREE


def parameter_bytes(layers: Sequence[Layer]) -> int:
    """Bytes of the weights of convolutions and inner products, each with a bias whether it has one or not."""
    matrix = [layer for layer in layers if layer.kind in ("conv2d", "linear")]
    return sum(FLOAT * (prod(layer.weights[0]) + layer.weights[0][0]) for layer in matrix)


def one_of(what: str, name: str, known: Sequence[str]) -> None:
    """Refuse a name that is not among the known ones.

    Raises
    ------
    UnknownName
    """
    if name not in known:
        raise UnknownName(what, name, known)


def paleo_terms(
    layer: Layer, part: str, batch_size: int, revision: str = "last", algorithm: str = "gemm"
) -> list[Term]:
    """What a pass over a layer takes.

    Parameters
    ----------
    layer : Layer
    part : str
        One of `PARTS`.
    batch_size : int
    revision : {"first", "last"}
    algorithm : str
        One of `ALGORITHMS`, for convolutions that cuDNN can compute so; all others are GEMMs. (PALEO itself asks the
        cuDNN library, version 4, on a GPU.)

    Returns
    -------
    list of Term
        Empty where PALEO counts nothing.

    Raises
    ------
    UnknownName
        If there is no such pass, revision or algorithm.
    CountFailed
        If PALEO does not know the layer, or fails on it.
    """
    one_of("pass", part, PARTS)
    one_of("revision of PALEO", revision, REVISIONS)
    one_of("convolution algorithm of PALEO", algorithm, ALGORITHMS)
    if not knows(layer):
        extra = {name: layer.attributes[name] for name in ("groups", "dilation") if name in layer.attributes}
        raise CountFailed(f"layer {layer.name!r}: PALEO knows no {layer.kind} like it {extra or layer.inputs}")
    if layer.kind == "conv2d":
        return convolution_terms(layer, part, batch_size, revision, algorithm)
    if layer.kind == "linear":
        inputs, outputs = layer.weights[0][-1], layer.weights[0][0]
        moved = [batch_size * inputs, inputs * outputs, batch_size * outputs]
        return [Term(True, 2 * batch_size * inputs * outputs), *(Term(False, FLOAT * size) for size in moved)]
    if part == "backward_weight" or (layer.kind not in _POOLS and layer.kind != "dropout"):
        return []
    op = Op(layer, batch_size, [True], True, [True])
    flops = op.x if layer.kind == "dropout" else 2 * window_elements(op)
    return [Term(True, flops), Term(False, FLOAT * op.x), Term(False, FLOAT * op.y)]


__all__ = ["ALGORITHMS", "PARTS", "REVISIONS", "Term", "count_paleo", "paleo_terms", "parameter_bytes"]

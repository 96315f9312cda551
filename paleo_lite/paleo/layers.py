"""What PALEO counts of each layer: the ``paleo`` convention, and the terms that its passes are timed by.

Source: ``layers/*.py`` and ``profilers/flops_profiler.py``. Each pass over a layer is a list of `Term`s, arithmetic or
memory transfers, timed one by one (`simulator`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..counting.kinds import KINDS, class_of, is_free
from ..counting.kinds.moving import window_elements
from ..counting.layer import Layer, Op
from ..errors import CountFailed
from .convolution import FLOAT_BYTES, Term, convolution_terms, terms_of

PASSES = ("forward", "backward_data", "backward_weight")
"""The passes over a layer that PALEO times; it has the update for all layers together."""

ALGORITHMS = ("gemm", "fft", "fft-tiled", "winograd")
"""Convolution algorithms that PALEO has a path for; winograd has no model there and takes no time."""


def is_product(layer: Layer) -> bool:
    """Whether it is a convolution or an inner product: no other layer has weights in PALEO."""
    return layer.kind in ("conv2d", "linear")


def count_paleo(op: Op) -> int | None:
    """The ``paleo`` convention: forward FLOPs as PALEO has them, None for layers that it has no type for.

    Convolution and inner product 2 per multiply-accumulate, biases nothing; pooling 2 per window element; dropout 1 per
    element, in inference, too; batch norm, activations, softmax, concat, sums and reshapes 0. Its convolutions have
    neither groups nor dilation, its images two dimensions.
    """
    kind, attributes, weights = op.layer.kind, op.layer.attributes, op.layer.weights
    if kind == "conv2d" and attributes.get("groups", 1) == 1 and set(attributes.get("dilation", [1])) == {1}:
        return 2 * op.y * prod(weights[0][1:])
    if kind == "linear":
        return 2 * op.y * weights[0][-1]
    if class_of(op.layer) == "pool" and op.attributes.get("dims", len(op.layer.inputs[0]) - 2) == 2:
        return 2 * window_elements(op)
    if kind in KINDS and KINDS[kind].paleo == "Dropout":
        return op.x
    return 0 if is_free(kind, "paleo") else None


def layer_terms(layer: Layer, pass_name: str, batch_size: Any, revision: str, algorithm: str = "gemm") -> list[Term]:
    """What a pass over a layer takes.

    Parameters
    ----------
    pass_name : str
        One of `PASSES`.
    batch_size : int or ndarray
        With several, each term has an amount for each of them.
    revision : str
        One of `REVISIONS`.
    algorithm : str
        One of `ALGORITHMS`, for convolutions that cuDNN can compute so; all others are GEMMs. (PALEO itself asks the
        cuDNN library, version 4, on a GPU.)

    Returns
    -------
    list of Term
        Empty where PALEO counts nothing.

    Raises
    ------
    CountFailed
        If PALEO does not know the layer, or fails on it.
    """
    kind, inputs = layer.kind, layer.inputs
    if is_free(kind, "paleo"):
        return []
    op = Op(layer, 1, [True] * len(inputs), True, [True] * len(inputs))
    flops = count_paleo(op)
    if flops is None or (kind == "linear" and len(inputs[0]) != 2):
        special = {name: layer.attributes[name] for name in ("groups", "dilation") if name in layer.attributes}
        raise CountFailed(f"layer {layer.name!r}: PALEO has no rule for this {kind}: {special or inputs}")
    if kind == "conv2d":
        return convolution_terms(layer, pass_name, batch_size, revision, algorithm)
    if pass_name == "backward_weight" and kind != "linear":
        return []  # pooling and dropout have no weights
    return terms_of(batch_size * flops, batch_size * op.x, *op.weights[:1], batch_size * op.y)


def parameter_bytes(layers: Sequence[Layer]) -> int:
    """Bytes of the weights of convolutions and inner products, each with a bias whether it has one or not."""
    matrices = [layer.weights[0] for layer in layers if is_product(layer)]
    return sum(FLOAT_BYTES * (prod(shape) + shape[0]) for shape in matrices)

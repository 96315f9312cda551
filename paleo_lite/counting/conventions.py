"""The rules of other conventions of counting: one network, several published numbers.

Each is a function from a layer to its forward count, or None where the convention has no rule for it: they reproduce
what somebody printed. Which there are says `paleo_lite.counting.work.CONVENTIONS`.
"""

from __future__ import annotations

from math import prod

from .kinds import ACTIVATIONS, KINDS, MATRIX_KINDS, class_of, count_layer, is_free
from .layer import Op


def _is_convolution(op: Op) -> bool:
    return op.layer.kind.startswith("conv")


def _has_statistics(op: Op) -> bool:
    """Whether it is a batch norm: no other kind has running statistics."""
    return op.layer.kind in KINDS and KINDS[op.layer.kind].statistics


def _kernel(op: Op) -> int:
    return prod(map(int, op.attributes["kernel"]))


def pthflops(op: Op) -> int | None:
    """pthflops 0.4 (fx tracing), read from its source: counts by module class, and three functions by name.

    Everything else is 0 there by its own rule: functional activations, layer norm, softmax, methods such as
    ``x.add(y)``, and whatever hides in a function that fx does not look into. That 0 is the package's answer, not ours.
    """
    layer = op.layer
    kind = layer.kind
    if layer.origin in ("function", "operator"):
        if layer.attributes.get("function", kind) in ("add", "mul"):
            return op.y * 2  # elements * arguments: both operands
        if layer.attributes.get("function", kind) == "matmul":
            left = op.inputs[0] if layer.parents else op.weights[0]
            return int(left * layer.outputs[0][-1])
        return 0
    if not layer.origin.startswith("module:"):
        return 0
    if _is_convolution(op):
        rank = len(layer.weights[0]) - 2
        channels = layer.inputs[0][-rank - 1] // int(op.attributes.get("groups", 1))
        return op.y * (prod(layer.weights[0][2:]) * channels + op.has_bias)
    if layer.origin == "module:Linear":
        return op.inputs[0] * layer.outputs[0][-1] + (layer.outputs[0][-1] if op.has_bias else 0)
    if layer.origin == "module:ReLU" or _has_statistics(op):
        return 2 * op.y
    if kind == "max_pool":
        return op.y * (_kernel(op) - 1)
    if kind == "avg_pool":
        return op.y * _kernel(op)
    if kind == "adaptive_avg_pool":
        return op.y * prod(layer.inputs[0][-2:])
    return 0


def lu2017(op: Op) -> int | None:
    """Lu et al. 2017 (arXiv 1709.09503), a reading: the rules were found from the totals that the paper prints.

    MACs + 1 per output for a bias + 1 per activation + window per pooled output + window per element of LRN + 2 per
    element for batch norm, Caffe's Scale and an elementwise sum; concat, dropout, softmax and reshapes 0.
    """
    kind = op.layer.kind
    if kind in MATRIX_KINDS:
        cost = count_layer(op)
        assert cost is not None
        return cost.inference.macs + (op.y if op.has_bias else 0)
    if kind in ACTIVATIONS:
        return op.y
    if class_of(op.layer) == "pool":
        cost = count_layer(op)
        assert cost is not None
        if cost.inference.flops == 0:  # windows of one element: nothing is pooled
            return 0
        return cost.inference.flops + (op.y if kind.endswith("max_pool") else 0)
    if kind == "local_response_norm":
        return int(op.attributes.get("size", 5)) * op.y
    if _has_statistics(op) or kind in ("scale", "add"):
        return 2 * op.y
    return 0 if is_free(kind, "lu2017") else None

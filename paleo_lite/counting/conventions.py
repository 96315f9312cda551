"""Counting rules of other conventions, which reproduce published FLOP counts of a network.

Each rule is a function from a layer to its forward count, or None if the convention has no rule for the layer.
`paleo_lite.counting.work.CONVENTIONS` lists all conventions.
"""

from __future__ import annotations

from math import prod

from .kinds import ACTIVATIONS, KINDS, MATRIX_KINDS, class_of, count_layer, is_convolution, is_uncounted
from .layer import Op


def _is_batch_norm(op: Op) -> bool:
    """Return whether a layer is a batch norm, the only kind with running statistics."""
    return op.layer.kind in KINDS and KINDS[op.layer.kind].has_running_statistics


def _kernel_elements(op: Op) -> int:
    return prod(map(int, op.attributes["kernel"]))


def pthflops(op: Op) -> int | None:
    """Count a layer as pthflops 0.4 does (torch.fx tracing), after its source: by module class and three functions.

    Everything else counts 0 by the package's own rule: functional activations, layer norm, softmax, methods such as
    ``x.add(y)``, and operations inside functions that torch.fx does not trace.
    """
    layer = op.layer
    kind = layer.kind
    if layer.origin in ("function", "operator"):
        function = layer.attributes.get("function", kind)
        if function in ("add", "mul"):
            return op.y * 2  # elements times arguments, for two operands
        if function == "matmul":
            left_size = op.inputs[0] if layer.parents else op.weights[0]
            return int(left_size * layer.outputs[0][-1])
        return 0
    if not layer.origin.startswith("module:"):
        return 0
    if is_convolution(op.layer):
        rank = len(layer.weights[0]) - 2
        channels = layer.inputs[0][-rank - 1] // int(op.attributes.get("groups", 1))
        return op.y * (prod(layer.weights[0][2:]) * channels + op.has_bias)
    if layer.origin == "module:Linear":
        outputs = layer.outputs[0][-1]
        return op.inputs[0] * outputs + (outputs if op.has_bias else 0)
    if layer.origin == "module:ReLU" or _is_batch_norm(op):
        return 2 * op.y
    if kind == "max_pool":
        return op.y * (_kernel_elements(op) - 1)
    if kind == "avg_pool":
        return op.y * _kernel_elements(op)
    if kind == "adaptive_avg_pool":
        return op.y * prod(layer.inputs[0][-2:])
    return 0


def lu2017(op: Op) -> int | None:
    """Count a layer as Lu et al. 2017 do (arXiv 1709.09503), with rules inferred from the totals in the paper.

    MACs + 1 per output for a bias + 1 per activation + window size per pooled output + window size per element of LRN
    + 2 per element of a batch norm, Caffe's Scale or an elementwise sum; concat, dropout, softmax and reshapes count 0.
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
        if cost.inference.flops == 0:  # windows of one element
            return 0
        return cost.inference.flops + (op.y if kind.endswith("max_pool") else 0)
    if kind == "local_response_norm":
        return int(op.attributes.get("size", 5)) * op.y
    if _is_batch_norm(op) or kind in ("scale", "add"):
        return 2 * op.y
    return 0 if is_uncounted(kind, "lu2017") else None

"""Classes of work: layers whose share of peak is one number, because libraries run them alike."""

from __future__ import annotations

from math import prod

from ..counting import MATRIX_KINDS, Layer

MATRIX_CLASSES = (
    "conv_3x3", "conv_direct", "conv_1x1", "conv_grouped", "conv_depthwise", "gemm", "attention",
)  # fmt: skip
"""Classes that multiply and accumulate; each has its own efficiency.

``conv_3x3`` is dense, stride 1: libraries may compute it with Winograd's algorithm (Lavin and Gray 2016), which needs
2.25 (tiles of 2x2 outputs) to 4 (4x4) times fewer multiplications, so that its share of the direct count's peak may
exceed 1.
"""

MEMORY_CLASSES = ("norm", "elementwise", "pool", "copy")
"""Classes that memory bounds."""

CLASSES = (*MATRIX_CLASSES, *MEMORY_CLASSES)


def class_of(layer: Layer) -> str:
    """The class of a layer."""
    kind = layer.kind
    if kind in MATRIX_KINDS:
        if kind.startswith("conv"):
            return _class_of_convolution(layer)
        return "attention" if kind == "attention" else "gemm"
    if kind.endswith("norm"):
        return "norm"
    if kind.endswith("_pool"):
        return "pool"
    if kind in ("concat", "copy", "pad", "roll", "slice", "gather", "embedding", "interpolate", "fill"):
        return "copy"
    return "elementwise"


def _class_of_convolution(layer: Layer) -> str:
    weight, attributes = layer.weights[0], layer.attributes
    groups = attributes.get("groups", 1)
    if groups > 1:
        return "conv_depthwise" if weight[1] == 1 else "conv_grouped"
    if prod(weight[2:]) == 1:
        return "conv_1x1"
    plain = (
        set(attributes.get("stride", [1])) == {1} and "dilation" not in attributes and not attributes.get("transposed")
    )
    return "conv_3x3" if plain and set(weight[2:]) == {3} and len(weight) == 4 else "conv_direct"

"""Attention as the software of a measurement runs it: one kernel, or a product, a softmax and a product."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .kinds import KINDS
from .layer import Layer

FUSED_SINCE = 2
"""The PyTorch whose ``scaled_dot_product_attention`` is one kernel; before it, the scores went through memory."""

_MAKES = re.compile(r"self_attention\.(?:contiguous|reshape)(?:#\d+)?$")
"""Copies of queries, keys and values, and of the result, that ``torch.nn.MultiheadAttention`` makes."""


UNFUSED, OF_VIEWS = "unfused", "of views"


def attention_of(framework: str) -> str:
    """How a framework runs attention: `UNFUSED`, `OF_VIEWS`, or as its layers stand, which is empty.

    Parameters
    ----------
    framework : str
        As `paleo_lite.calibration.measurements.Measurement` has it. ``pytorch 1.13`` does not fuse attention; ``timm``
        among its words says that queries, keys and values are views of one product, and so is the result.
    """
    name, version, *_ = (*framework.lower().split(), "", "")
    number = version.partition(".")[0]
    if name in ("pytorch", "torch") and number.isdecimal() and int(number) < FUSED_SINCE:
        return UNFUSED
    return OF_VIEWS if "timm" in framework.lower().split() else ""


def with_attention(layers: tuple[Layer, ...], how: str) -> tuple[Layer, ...]:
    """Layers with attention run as `attention_of` says."""
    return unfused(layers) if how == UNFUSED else without_copies(layers) if how == OF_VIEWS else layers


def unfused(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers with attention as its operations."""
    made: list[Layer] = []
    places: list[int] = []
    for layer in layers:
        parents = tuple(places[parent] if parent >= 0 else parent for parent in layer.parents)
        if layer.kind in KINDS and (operations := KINDS[layer.kind].unfused):
            made += operations(layer, parents, len(made))
        else:
            made.append(layer._replace(parents=parents))
        places.append(len(made) - 1)
    return tuple(made)


def without_copies(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers without the copies that ``torch.nn.MultiheadAttention`` makes: views of what it copies."""
    return tuple(
        layer._replace(kind="view") if layer.kind == "copy" and _MAKES.search(layer.name) else layer for layer in layers
    )

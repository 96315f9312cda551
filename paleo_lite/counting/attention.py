"""Attention as the software of a measurement runs it: fused, as separate operations, or without copies of its
inputs."""

from __future__ import annotations

from collections.abc import Sequence

from .kinds import KINDS
from .layer import Layer
from .places import is_attention_copy

FUSED_SINCE = 2
"""First major version of PyTorch whose ``scaled_dot_product_attention`` is one kernel; earlier versions write the
scores to memory."""

UNFUSED, WITHOUT_COPIES = "unfused", "of views"


def attention_implementation(framework: str) -> str:
    """Return how a framework runs attention: `UNFUSED`, `WITHOUT_COPIES`, or an empty text for the layers as they are.

    The framework is a name and version as in `paleo_lite.calibration.measurements.Measurement`. ``pytorch 1.13`` does
    not fuse attention. With ``timm`` among the words, queries, keys and values are views of one product, and the output
    is not copied either.
    """
    words = framework.lower().split()
    name = words[0] if words else ""
    version = words[1] if len(words) > 1 else ""
    major = version.partition(".")[0]
    if name in ("pytorch", "torch") and major.isdecimal() and int(major) < FUSED_SINCE:
        return UNFUSED
    return WITHOUT_COPIES if "timm" in words else ""


def apply_attention(layers: tuple[Layer, ...], implementation: str) -> tuple[Layer, ...]:
    """Return the layers with attention run as `attention_implementation` states."""
    if implementation == UNFUSED:
        return decompose_attention(layers)
    if implementation == WITHOUT_COPIES:
        return remove_attention_copies(layers)
    return layers


def decompose_attention(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers with every fused attention replaced by its separate operations."""
    result: list[Layer] = []
    new_indices: list[int] = []
    for layer in layers:
        parents = tuple(new_indices[parent] if parent >= 0 else parent for parent in layer.parents)
        decompose = KINDS[layer.kind].decompose if layer.kind in KINDS else None
        if decompose is not None:
            result += decompose(layer, parents, len(result))
        else:
            result.append(layer._replace(parents=parents))
        new_indices.append(len(result) - 1)
    return tuple(result)


def remove_attention_copies(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers with the copies of ``torch.nn.MultiheadAttention`` replaced by views."""
    result = []
    for layer in layers:
        result.append(layer._replace(kind="view") if is_attention_copy(layer) else layer)
    return tuple(result)

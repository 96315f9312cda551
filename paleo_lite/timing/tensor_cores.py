"""Which layers' products tensor cores take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..counting import Layer, Work
from ..counting.kinds import gemm_of, is_attention
from .models import TimeModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

TENSOR_MULTIPLE = 8
"""Tensor cores take fp16 and bf16 products whose sizes are multiples of 8 (NVIDIA, "Train with mixed precision")."""


def takes_tensor_cores(layers: Sequence[Layer], batch_size: int) -> NDArray[np.bool_]:
    """Layers whose products tensor cores take in fp16 and bf16, shape (layers,).

    Convolutions with input and output channels per group that are multiples of 8; linear layers and other products
    whose three sizes are; attention whose heads are that wide. Newer libraries (cuBLAS 11, cuDNN 7.6.3) pad what is
    not, and lose what they pad.
    """
    return np.array([_fits_tensor_cores(layer, batch_size) for layer in layers], dtype=bool)


def _fits_tensor_cores(layer: Layer, batch_size: int) -> bool:
    if layer.kind.startswith("conv"):
        sizes: tuple[int, ...] = (layer.weights[0][0] // layer.attributes.get("groups", 1), layer.weights[0][1])
    elif is_attention(layer):
        sizes = (layer.inputs[0][-1], layer.inputs[2][-1])
    else:
        gemm = gemm_of(layer, "forward")
        if gemm is None:
            return False
        sizes = (gemm.rows * (batch_size if gemm.grows == "rows" else 1), gemm.columns, gemm.inner)
    return all(size % TENSOR_MULTIPLE == 0 for size in sizes)


def tensor_notes(layers: Sequence[Layer], work: Work, taken: NDArray[np.bool_], model: TimeModel) -> list[str]:
    """What somebody who trains in mixed precision should know of the layers that tensor cores do not take."""
    macs = work.column("macs", "forward").sum(axis=0)
    total = int(macs.sum())
    left = [layer.name for layer, takes, multiplies in zip(layers, taken, macs) if multiplies and not takes]
    if not total or not left:
        return ["mixed precision: every product takes the tensor cores"]
    named = ", ".join(left[:3]) + (", ..." if len(left) > 3 else "")
    note = f"mixed precision: {float(macs[taken].sum()) / total:.1%} of the products take the tensor cores"
    note += f", {len(left)} layers do not (sizes that are not multiples of {TENSOR_MULTIPLE}: {named})"
    if model.label:  # learnt from what was measured, such layers included
        note += "; what that costs is part of the calibration"
    return [note]

"""A training step as its options say: a micro-batch, what tensor cores take of it, and the step that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer, Work
from ..counting.kinds import gemm_of, is_attention
from ..machines import Machine
from ..units import element_bytes
from .models import TimeModel
from .workload import Workload, with_update

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .prediction import Prediction

RECOMPUTE = "recompute"
"""The pass of what is computed again."""


def micro_batch(workload: Workload, machine: Machine) -> Workload:
    """One micro-batch of a training step and the update, with what tensor cores take of it."""
    leaves_products, options = _has_tensor_core_size_limits(workload, machine), workload.options
    micro = options.micro_batch(workload.batch_size)
    work = with_update(workload.work, workload.precision, options)
    if leaves_products:
        work = msgspec.structs.replace(work, matrix=work.matrix & takes_tensor_cores(workload.layers, micro))
    return workload.with_changes(batch_size=micro).with_work(work)


def assemble_step(one: Prediction, workload: Workload) -> Prediction:
    """The training step that predictions of a micro-batch's passes make, put together as the options say.

    Forward and backward count once for each micro-batch, the update once, and with checkpointing there is a second
    forward pass of what was not saved.
    """
    options, layers, precision = workload.options, workload.layers, workload.precision
    micro, notes = one.batch_size, []
    if _has_tensor_core_size_limits(workload, one.machine):
        notes += tensor_core_notes(layers, workload.work, takes_tensor_cores(layers, micro), one.model)
    again = np.zeros(len(layers), dtype=bool)
    if options.checkpointing != "none":
        # Where tensors live is asked of a network's graph: only then, as an inference should not wait for it.
        from .liveness import make_plan
        from .memory import find_segments

        plan = make_plan(layers, element_bytes(precision))
        *_, last = find_segments(layers, plan, options.checkpointing)  # whose forward pass has just been
        again[: last.start] = True
        notes.append(f"checkpointing: {int(again.sum())} of {len(layers)} layers are computed twice")
    if options.accumulation > 1:
        notes.append(f"{options.accumulation} micro-batches of {micro}, one update")

    # forward and gradients once for each micro-batch, the update once
    often = np.array([[1 if name == "update" else options.accumulation] for name in one.terms.passes])
    forward = one.terms.passes.index("forward")

    def of_step(passes: Any) -> Any:
        if passes is None:
            return None
        parts = passes * often
        if not again.any():
            return parts
        return np.concatenate([parts, options.accumulation * np.where(again, passes[forward : forward + 1], 0)])

    terms = msgspec.structs.replace(
        one.terms,
        passes=(*one.terms.passes, RECOMPUTE) if again.any() else one.terms.passes,
        overhead_s=one.terms.overhead_s * options.accumulation,
        **{name: of_step(getattr(one.terms, name)) for name in ("compute_s", "memory_s", "floor_s", "layers_s")},
    )
    return msgspec.structs.replace(
        one,
        workload=workload,
        terms=terms,
        notes=(*one.notes, *notes),
        **{name: of_step(getattr(one, name)) for name in ("counts_by_pass", "macs_by_pass", "bytes_by_pass")},
    )


def _has_tensor_core_size_limits(workload: Workload, machine: Machine) -> bool:
    """Whether some products are not for tensor cores: those of Volta and Turing, under libraries of their years.

    Later ones have known nothing but cuBLAS 11 and cuDNN 8, which give them every product (NVIDIA, "Matrix
    Multiplication Background User's Guide", table 1), and a bound has to allow for it.
    """
    if not (workload.options.mixed_precision and machine.device.capability.startswith("7.")):
        return False
    return machine.peak(workload.precision).peak.unit == "tensor"


TENSOR_MULTIPLE = 8
"""Tensor cores take fp16 and bf16 products whose sizes are multiples of 8 (NVIDIA, "Train with mixed precision")."""


def takes_tensor_cores(layers: Sequence[Layer], batch_size: int) -> NDArray[np.bool_]:
    """Layers whose products tensor cores take in fp16 and bf16, shape (layers,).

    Convolutions with input and output channels per group that are multiples of 8; linear layers and other products
    whose three sizes are; attention whose heads are that wide. Newer libraries (cuBLAS 11, cuDNN 7.6.3) pad what is
    not, and lose what they pad: see `_leaves_products`.
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


def tensor_core_notes(layers: Sequence[Layer], work: Work, taken: NDArray[np.bool_], model: TimeModel) -> list[str]:
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

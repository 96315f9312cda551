"""A training step on one device: forward, backward, what is computed again, update.

One prediction of a micro-batch's passes, put together as the options say: forward and backward once for each
micro-batch, the update once, and with checkpointing a second forward pass of what was not kept.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ..hardware import Machine
from ..units import element_bytes
from .buffers import find_buffers
from .checkpointing import find_segments, recomputed
from .liveness import make_plan
from .models import TimeModel
from .passes import predict_passes
from .prediction import Prediction
from .tensor_cores import takes_tensor_cores, tensor_notes
from .update import with_update
from .workload import Workload

RECOMPUTE = "recompute"
"""The pass of what is computed again."""


def predict_training(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time a training step.

    Parameters
    ----------
    workload : Workload
        In the phase ``training``; its batch is that of all micro-batches together.
    machine : Machine
    model : TimeModel

    Raises
    ------
    BadValue
        If the batch cannot be divided into the micro-batches.
    UnknownPrecision
        If the device has no peak for the precision, unit or clock.
    """
    options, layers, precision = workload.options, workload.layers, workload.precision
    micro = options.micro_batch(workload.batch_size)
    work = with_update(workload.work, precision, options)
    notes = []
    if options.mixed_precision and machine.peak(precision).peak.unit == "tensor":
        taken = takes_tensor_cores(layers, micro)
        work = msgspec.structs.replace(work, matrix=work.matrix & taken)
        notes += tensor_notes(layers, workload.work, taken, model)
    one = predict_passes(workload.but(batch_size=micro).doing(work), machine, model)
    again = np.zeros(len(layers), dtype=bool)
    if options.checkpointing != "none":
        plan = make_plan(layers, find_buffers(layers), element_bytes(precision))
        again = np.array(recomputed(layers, find_segments(layers, plan, options.checkpointing)), dtype=bool)
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

"""A training step on one device: forward, backward, what is computed again, update; and the memory that it takes.

One prediction of a micro-batch's passes, put together as the options say: forward and backward once for each
micro-batch, the update once, and with checkpointing a second forward pass of what was not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting import PASSES, Work, count
from ..counting.work import COLUMNS
from ..hardware import Device
from ..networks import Network
from ..units import element_bytes
from .buffers import find_buffers
from .checkpointing import find_segments, recomputed
from .liveness import make_plan
from .memory import Memory, memory_of
from .models import TimeModel
from .options import CHECKPOINTING, OPTIMIZERS, TrainingOptions
from .predict import predict_work
from .prediction import Prediction
from .tensor_cores import takes_tensor_cores, tensor_notes
from .update import with_update

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


class TrainingStep(msgspec.Struct, frozen=True, eq=False):
    """The time and memory of one step.

    Attributes
    ----------
    forward_s, backward_s, recompute_s, update_s : float
        Seconds of each part, all micro-batches together.
    time_s : float
        Their sum, and what the model adds for each pass besides its layers.
    interval : tuple of float or None
        Seconds between which the step lies at 90 %; None for models that do not say.
    memory : Memory
        At the peak.
    notes : tuple of str
    backward_s_per_layer : ndarray, shape (layers,)
        Seconds of one micro-batch's backward pass, in network order: data and weight gradients, what is computed again
        before them, and what the model adds because the host launches slowly.
    gradient_bytes_per_layer : ndarray of int, shape (layers,)
        Bytes of the gradients that each layer's backward pass makes ready.
    prediction : Prediction
        The same step layer by layer.
    """

    forward_s: float
    backward_s: float
    recompute_s: float
    update_s: float
    time_s: float
    interval: tuple[float, float] | None
    memory: Memory
    notes: tuple[str, ...]
    backward_s_per_layer: Array
    gradient_bytes_per_layer: NDArray[np.int64]
    prediction: Prediction


def train(
    network: Network,
    device: Device,
    precision: str,
    batch_size: int,
    model: TimeModel,
    options: TrainingOptions | None = None,
    clock: str | None = None,
    unit: str | None = None,
    *,
    work: Work | None = None,
) -> TrainingStep:
    """Time a training step and say what memory it takes.

    Parameters
    ----------
    network : Network
    device : Device
    precision : str
    batch_size : int
        Samples per step, all micro-batches together.
    model : TimeModel
    options : TrainingOptions, optional
    clock, unit : str, optional
        As for `predict_work`.
    work : Work, optional
        Counted from the network's layers for this precision; counted here without it.

    Raises
    ------
    BadValue
        If the batch cannot be divided into the micro-batches, or mixed precision is asked of another precision than
        fp16 or bf16.
    UnknownPrecision
        If the device has no peak for the precision, unit or clock.
    """
    options = options or TrainingOptions()
    options.check(precision)
    micro = options.micro_batch(batch_size)
    layers = network.layers
    work = work or count(layers, precision)
    prepared = with_update(work, precision, options)
    notes = []
    if options.mixed_precision and device.find_peak(precision, unit, clock).peak.unit == "tensor":
        taken = takes_tensor_cores(layers, micro)
        prepared = msgspec.structs.replace(prepared, matrix=work.matrix & taken)
        notes += tensor_notes(layers, work, taken, model)
    one = predict_work(
        network, prepared, device, precision, model, batch_size=micro, phase="training", clock=clock, unit=unit
    )
    again = np.zeros(len(layers), dtype=bool)
    if options.checkpointing != "none":
        plan = make_plan(layers, find_buffers(layers), element_bytes(precision))
        again = np.array(recomputed(layers, find_segments(layers, plan, options.checkpointing)), dtype=bool)
        notes.append(f"checkpointing: {int(again.sum())} of {len(layers)} layers are computed twice")
    if options.accumulation > 1:
        notes.append(f"{options.accumulation} micro-batches of {micro}, one update")
    step = _assemble(one, again, options.accumulation, batch_size, notes)
    seconds = step.times_s.sum(axis=1)
    update = PASSES.index("update")
    return TrainingStep(
        forward_s=float(seconds[0]),
        backward_s=float(seconds[1] + seconds[2]),
        recompute_s=float(seconds[4:].sum()),
        update_s=float(seconds[3]),
        time_s=step.time_s,
        interval=step.interval,
        memory=memory_of(layers, work, precision, batch_size, "training", options),
        notes=step.notes,
        backward_s_per_layer=one.times_s[1] + one.times_s[2] + np.where(again, one.times_s[0], 0.0),
        gradient_bytes_per_layer=work.fixed[COLUMNS.index("flops"), update] // 2 * element_bytes(precision),
        prediction=step,
    )


def _assemble(
    one: Prediction, again: NDArray[np.bool_], accumulation: int, batch_size: int, notes: list[str]
) -> Prediction:
    """From the passes of one micro-batch to those of the step."""
    often = np.array([[accumulation], [accumulation], [accumulation], [1]])
    parts = {}
    for name in ("counts_by_pass", "macs_by_pass", "bytes_by_pass", "compute_s", "memory_s", "times_s"):
        passes = getattr(one, name)
        parts[name] = passes * often
        if again.any():
            parts[name] = np.concatenate([parts[name], accumulation * np.where(again, passes[:1], 0)])
    constant = one.constant_s * accumulation
    factor = (float(parts["times_s"].sum()) + constant) / one.time_s if one.time_s else 1.0
    return msgspec.structs.replace(
        one,
        **parts,
        passes=(*one.passes, "recompute") if again.any() else one.passes,
        batch_size=batch_size,
        constant_s=constant,
        interval=None if one.interval is None else (one.interval[0] * factor, one.interval[1] * factor),
        intervals={level: (low * factor, high * factor) for level, (low, high) in one.intervals.items()},
        notes=(*one.notes, *notes),
    )


__all__ = [
    "CHECKPOINTING",
    "OPTIMIZERS",
    "TrainingOptions",
    "TrainingStep",
    "takes_tensor_cores",
    "train",
    "with_update",
]

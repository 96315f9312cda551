"""What a predicted time is spent on: arithmetic, memory traffic, short kernels, waiting for the host."""

from __future__ import annotations

from typing import cast

import msgspec
import numpy as np

from ..counting import count
from .fitted import CalibratedModel, step_of
from .options import TrainingOptions
from .prediction import Prediction
from .update import with_update

BOUNDS = {
    "arithmetic": "layers whose arithmetic takes longer than their memory traffic",
    "memory traffic": "layers whose memory traffic takes longer than their arithmetic",
    "short kernels": "layers so small that starting and ending a kernel takes longer than either",
    "waiting for the host": "the device is idle until the host has launched the next kernel",
    "besides layers": "what a step takes whatever its layers",
}
"""What time is spent on, and what that means."""


def bound_seconds(prediction: Prediction, options: TrainingOptions | None = None) -> dict[str, float]:
    """Seconds of a prediction by what bounds them: together its time.

    A layer's pass counts in full to the largest of its terms. In the calibrated model the device's time of all layers
    is stretched by one factor where the host launches more slowly; what it adds is waiting.

    Parameters
    ----------
    prediction : Prediction
        With layers.
    options : TrainingOptions, optional
        That it was made with.

    Returns
    -------
    dict of str to float
        In the order of `BOUNDS`; those that nothing is spent on are 0.
    """
    waiting = _waiting(prediction, options) if prediction.model.name == "calibrated" else 1.0
    device = prediction.times_s / waiting
    compute = prediction.compute_s
    memory = prediction.memory_s if prediction.model.uses_memory else np.zeros_like(compute)
    short = np.zeros_like(compute)
    if prediction.model.name == "calibrated":  # t^4 = compute^4 + memory^4 + floor^4
        short = np.maximum(device**4 - compute**4 - memory**4, 0.0) ** 0.25
    largest = np.argmax(np.stack([compute, memory, short]), axis=0)
    seconds = [float(device[largest == place].sum()) for place in range(3)]
    return dict(zip(BOUNDS, [*seconds, float(prediction.times_s.sum() - device.sum()), prediction.constant_s]))


def _waiting(prediction: Prediction, options: TrainingOptions | None) -> float:
    """By what factor the host stretches the device's time: `Step.waiting` of the step that was predicted."""
    work = count(prediction.layers, prediction.precision, prediction.convention)
    micro = prediction.batch_size
    if prediction.execution != "eager":
        from ..counting.fusion import fuse

        work = fuse(prediction.layers, work, prediction.execution)
    if options is not None and prediction.phase == "training":
        work, micro = with_update(work, prediction.precision, options), options.micro_batch(micro)
    work = msgspec.structs.replace(work, matrix=prediction.matrix)
    model, peak = cast("CalibratedModel", prediction.model), prediction.peak
    where = (prediction.device, prediction.precision, prediction.phase, micro, peak.clock, peak.peak.unit)
    step, _ = step_of(model, prediction.layers, work, *where)
    return step.waiting


__all__ = ["BOUNDS", "bound_seconds"]

"""What a predicted time is spent on: arithmetic, memory traffic, short kernels, waiting for the host."""

from __future__ import annotations

import numpy as np

from .prediction import Prediction

BOUNDS = {
    "arithmetic": "layers whose arithmetic takes longer than their memory traffic",
    "memory traffic": "layers whose memory traffic takes longer than their arithmetic",
    "short kernels": "layers so small that starting and ending a kernel takes longer than either",
    "waiting for the host": "the device is idle until the host has launched the next kernel",
    "overhead": "what a step takes whatever its layers are",
}
"""What time is spent on, and what that means."""


def bound_seconds(prediction: Prediction) -> dict[str, float]:
    """Seconds of a prediction by what bounds them: together its time.

    A layer's pass counts in full to the largest of its terms. Where the host launches more slowly than the device
    computes, the device's time of all layers is stretched by one factor; what that adds is waiting.

    Parameters
    ----------
    prediction : Prediction
        With layers.

    Returns
    -------
    dict of str to float
        In the order of `BOUNDS`; those that nothing is spent on are 0.
    """
    terms = prediction.terms
    device_s = terms.layers_s / terms.waiting
    none = np.zeros_like(device_s)
    memory_s = terms.memory_s if prediction.model.uses_memory else none
    floor_s = none if terms.floor_s is None else terms.floor_s
    largest = np.argmax(np.stack([terms.compute_s, memory_s, floor_s]), axis=0)
    seconds = [float(device_s[largest == place].sum()) for place in range(3)]
    return dict(zip(BOUNDS, [*seconds, float(terms.layers_s.sum() - device_s.sum()), terms.overhead_s]))


__all__ = ["BOUNDS", "bound_seconds"]

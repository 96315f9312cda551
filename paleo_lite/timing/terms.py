"""`Terms`: what a time model makes of a workload on a machine, pass by pass and layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Seconds = TypeVar("Seconds", float, "Floats")

QUANTILES = {0.8: 1.476, 0.9: 2.015}
"""Two-sided quantiles of Student's t with 5 degrees of freedom: residuals have longer tails than a normal's."""

LEVEL = 0.9


def interval_of(time_s: Seconds, deviation: Seconds, level: float = LEVEL) -> tuple[Seconds, Seconds]:
    """Seconds between which a time lies with this probability, from the standard deviation of its logarithm."""
    reach = np.exp(QUANTILES[level] * deviation)
    return time_s / reach, time_s * reach


class Terms(msgspec.Struct, frozen=True, eq=False):
    """Seconds over the axes (pass, layer), and what is known of the whole.

    Attributes
    ----------
    passes : tuple of str
        Names of the first axis.
    compute_s, memory_s : ndarray, shape (passes, layers)
        Arithmetic, and memory traffic, as if there were nothing else.
    floor_s : ndarray, shape (passes, layers), or None
        Shortest kernels; None for models that know of none.
    layers_s : ndarray, shape (passes, layers)
        What the model makes of them: together the step without its overhead.
    overhead_s : float
        Seconds of a step that belong to no layer; 0 for models that know of none.
    deviation : float or None
        Standard deviation of the logarithm of the time; None for models that do not say.
    slopes : ndarray, shape (parameters,), or None
        Derivatives of the logarithm of the time by those of the model's parameters; None for models without.
    waiting : float
        By what factor the host, launching more slowly than the device computes, stretches the layers; 1: not at all.
    """

    passes: tuple[str, ...]
    compute_s: Floats
    memory_s: Floats
    layers_s: Floats
    overhead_s: float = 0.0
    deviation: float | None = None
    waiting: float = 1.0
    floor_s: Floats | None = None
    slopes: Floats | None = None

    @property
    def time_s(self) -> float:
        """Seconds of the step."""
        return float(self.layers_s.sum()) + self.overhead_s

    def of(self, *passes: str) -> Floats:
        """Seconds of some passes by layer, shape (layers,); passes that the step does not have take none."""
        chosen = [name in passes for name in self.passes]
        seconds: Floats = self.layers_s[chosen].sum(axis=0)
        return seconds

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Seconds between which the step lies with this probability; None where the model does not say."""
        if self.deviation is None:
            return None
        return interval_of(self.time_s, self.deviation, level)


BOUNDS = {
    "arithmetic": "layers whose arithmetic takes longer than their memory traffic",
    "memory traffic": "layers whose memory traffic takes longer than their arithmetic",
    "short kernels": "layers so small that starting and ending a kernel takes longer than either",
    "waiting for the host": "the device is idle until the host has launched the next kernel",
    "overhead": "what a step takes whatever its layers are",
}
"""What time is spent on, and what that means."""


def bound_seconds(terms: Terms, uses_memory: bool) -> dict[str, float]:
    """Seconds by what bounds them, in the order of `BOUNDS`: together the time. Bytes may play no part in a model.

    A layer's pass counts in full to the largest of its terms. Where the host launches more slowly than the device
    computes, the device's time of all layers is stretched by one factor; what that adds is waiting.
    """
    device_s = terms.layers_s / terms.waiting
    none = np.zeros_like(device_s)
    memory_s = terms.memory_s if uses_memory else none
    floor_s = none if terms.floor_s is None else terms.floor_s
    largest = np.argmax(np.stack([terms.compute_s, memory_s, floor_s]), axis=0)
    seconds = [float(device_s[largest == place].sum()) for place in range(3)]
    return dict(zip(BOUNDS, [*seconds, float(terms.layers_s.sum() - device_s.sum()), terms.overhead_s]))

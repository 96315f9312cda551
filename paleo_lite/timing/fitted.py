"""`CalibratedModel`: fitted parameters at work, with the interval that they imply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting import PHASES, Layer, Work
from ..hardware import Device
from .calibrated import NAMES, Rates, Terms, evaluate, sensitivities
from .features import Features, features_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

QUANTILES = {0.8: 1.476, 0.9: 2.015}
"""Two-sided quantiles of Student's t with 5 degrees of freedom: residuals have longer tails than a normal's."""

LEVEL = 0.9

UNFAMILIAR = 0.07
"""Relative error that the networks of a family share beyond what a fit without the family knows of itself, and those of
a source beyond a fit of other sources: 0.077 and 0.062 in the published measurements of 14 devices (maximum likelihood
under Student's t with 5 degrees of freedom, of the errors with a family or a source held out). Part of every
prediction: who asks runs other software than who measured."""


def own_variance(scatter: float) -> float:
    """Variance of a prediction's logarithm besides that of the parameters: of single measurements, and of families."""
    return scatter**2 + UNFAMILIAR**2


class CalibratedModel(msgspec.Struct, frozen=True, eq=False):
    """A calibration as a time model.

    Attributes
    ----------
    label : str
        Which calibration: reported with every prediction.
    theta : ndarray
        Logarithms of the parameters, in the order of `PARAMETERS`.
    covariance : ndarray
        Of `theta`.
    scatter : float
        Relative scatter of single measurements around the model.
    notes : tuple of str
        What every prediction with it should say.
    """

    label: str
    theta: Floats
    covariance: Floats
    scatter: float
    name: str = "calibrated"
    ppp: float | None = None
    uses_memory: bool = True
    notes: tuple[str, ...] = ()

    @property
    def own_variance(self) -> float:
        """Variance of a prediction's logarithm besides that of the parameters."""
        return own_variance(self.scatter)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """The formula in one line."""
        return f"({compute} at its class's efficiency ^4 + {memory} at its share ^4 + shortest kernel ^4)^(1/4)"

    def time_s(self, compute_s: Floats, memory_s: Floats) -> Floats:
        """The calibrated model needs more than the two terms: see `step`."""
        raise TypeError("the calibrated model takes features of the layers: use CalibratedModel.step")

    def step(self, features: Features, rates: Rates) -> Step:
        """Time a step: of every entry, of the host, and the interval of the whole."""
        values = np.exp(self.theta)
        run = np.zeros(len(features.flops), dtype=np.int64)
        (total,), gradient = sensitivities(features, rates, values, run, 1)
        terms = evaluate(features, rates, values)
        relative = gradient[0] / total
        deviation = math.sqrt(float(relative @ self.covariance @ relative) + self.own_variance)
        constant = float(values[NAMES.index("step_s")])
        return Step(terms, float(total), constant, deviation)


class Step(msgspec.Struct, frozen=True, eq=False):
    """A timed step.

    Attributes
    ----------
    terms : Terms
        Of each entry, on the device.
    total_s : float
    constant_s : float
        What a step takes besides its layers.
    deviation : float
        Standard deviation of the logarithm of the total.
    """

    terms: Terms
    total_s: float
    constant_s: float
    deviation: float

    @property
    def waiting(self) -> float:
        """How much longer than the device's own work the layers take because the host launches them; 1: not at all."""
        return (self.total_s - self.constant_s) / float(self.terms.device_s.sum())

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Seconds between which the step lies with this probability."""
        reach = QUANTILES[level] * self.deviation
        return self.total_s * math.exp(-reach), self.total_s * math.exp(reach)


def rates_of(device: Device, precision: str, clock: str | None = None, unit: str | None = None) -> Rates:
    """The rates that a calibration of this device and precision refers to.

    Cards without fast fp16 arithmetic (vector units slower in fp16 than in fp32) compute fp16 networks in fp32: cuDNN's
    pseudo-half configuration, which converts on load.

    Raises
    ------
    UnknownPrecision
        If the device has no such peak.
    """
    vector = device.find_peak("fp64" if precision == "fp64" else "fp32", "vector", clock).per_s
    matrix = device.find_peak(precision, unit, clock).per_s
    if precision == "fp16":
        matrix = max(matrix, vector)
    return Rates(matrix, vector, device.bandwidth_bytes_per_s, float(device.cores.multiprocessors.value))


def step_of(
    model: CalibratedModel,
    layers: Sequence[Layer],
    work: Work,
    device: Device,
    precision: str,
    phase: str,
    batch_size: int,
    clock: str | None = None,
    unit: str | None = None,
) -> tuple[Step, dict[str, Floats]]:
    """Time a network with a calibration.

    Returns
    -------
    Step
    dict of str to ndarray, shape (passes, layers)
        ``compute``, ``memory`` and ``time``: seconds, those of the layers together the step without its constant.
    """
    features = features_of(layers, work, phase, batch_size)
    step = model.step(features, rates_of(device, precision, clock, unit))
    arrays = {}
    for name, seconds in (
        ("compute", step.terms.compute_s),
        ("memory", step.terms.memory_s),
        ("time", step.terms.device_s * step.waiting),
    ):
        array = np.zeros((len(PHASES[phase]), len(layers)))
        array[tuple(features.place.T)] = seconds
        arrays[name] = array
    return step, arrays

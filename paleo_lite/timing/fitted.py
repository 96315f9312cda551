"""`CalibratedModel`: fitted parameters at work, with the interval that they imply."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from ..hardware import Machine, PeakRate
from .calibrated import NAMES, EntryTerms, Rates, evaluate, sensitivities, step_times
from .features import Features, features_of
from .models import Times, Want
from .terms import LEVEL, QUANTILES, Terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .broadcast import Laid
    from .workload import Workload

    Floats = NDArray[np.float64]

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

    name: ClassVar[str] = "calibrated"
    ppp: ClassVar[float | None] = None
    is_forecast: ClassVar[bool] = True
    needs_bytes: ClassVar[bool] = True
    uses_memory: ClassVar[bool] = True
    label: str
    theta: Floats
    covariance: Floats
    scatter: float
    notes: tuple[str, ...] = ()

    @property
    def own_variance(self) -> float:
        """Variance of a prediction's logarithm besides that of the parameters."""
        return own_variance(self.scatter)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """The formula in one line."""
        return f"({compute} at its class's efficiency ^4 + {memory} at its share ^4 + shortest kernel ^4)^(1/4)"

    def peak(self, machine: Machine, precision: str) -> PeakRate:
        """See `works_in`."""
        return works_in(machine, precision)

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """See `TimeModel.evaluate`; layers that wait for the host are stretched by one factor."""
        features = features_of(workload)
        step = self.step(features, rates_of(machine, workload.precision))
        shape = len(workload.passes), len(workload.layers)

        def laid_out(seconds: Floats) -> Floats:
            laid = np.zeros(shape)
            laid[tuple(features.place.T)] = seconds
            return laid

        return Terms(
            workload.passes, laid_out(step.terms.compute_s), laid_out(step.terms.memory_s),
            laid_out(step.terms.device_s * step.waiting), step.constant_s, step.deviation, step.waiting,
            laid_out(step.terms.floor_s),
        )  # fmt: skip

    def evaluate_many(self, laid: Laid, machine: Machine, precision: str, want: Want) -> Times:
        """See `TimeModel.evaluate_many`: as `step`, for every case and batch size."""
        features, run, cases = laid.features, laid.run, laid.cases
        rates, values = rates_of(machine, precision), np.exp(self.theta)
        low = high = pieces_s = None
        if want.interval:
            total, gradient = sensitivities(features, rates, values, run, cases, laid.steps)
            variance = np.einsum("rpb,rpb->rb", gradient, self.covariance @ gradient) / np.square(total)
            reach = np.exp(QUANTILES[LEVEL] * np.sqrt(variance + self.own_variance))
            low, high = total / reach, total * reach
        else:
            total = step_times(features, rates, values, run, cases, laid.steps)
        if want.pieces:
            device_s = evaluate(features, rates, values).device_s
            waiting = (total - values[NAMES.index("step_s")]) / laid.by_case(device_s)
            pieces_s = laid.by_piece(device_s * waiting[run[:, 0]])
        return Times(total, low, high, pieces_s)

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
    terms : EntryTerms
        Of each entry, on the device.
    total_s : float
    constant_s : float
        Overhead: what a step takes beyond its layers.
    deviation : float
        Standard deviation of the logarithm of the total.
    """

    terms: EntryTerms
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


def rates_of(machine: Machine, precision: str) -> Rates:
    """The rates that a calibration of this device and precision refers to.

    Raises
    ------
    UnknownPrecision
        If the device has no such peak.
    """
    vector, matrix = machine.vector_peak(precision).per_s, works_in(machine, precision).per_s
    multiprocessors = float(machine.device.cores.multiprocessors.value)
    return Rates(matrix, vector, machine.bandwidth_bytes_per_s, multiprocessors)


def works_in(machine: Machine, precision: str) -> PeakRate:
    """The peak that libraries compute a precision at.

    fp64 runs on vector units: of devices with fp64 tensor cores cuDNN's convolutions do not take those (an A100 is held
    out with 17 % error against its vector peak, with 73 % against its tensor cores').

    Raises
    ------
    UnknownPrecision
        If the device has no such peak.
    """
    if precision == "fp64" and machine.unit is None:
        return machine.vector_peak(precision)
    return machine.peak(precision)

"""`CalibratedModel`: fitted parameters at work, with the interval that they imply."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from ..counting.work import passes_of
from ..hardware import Machine, PeakRate
from .calibrated import NAMES, EntryTerms, Rates, Steps, sensitivities, step_times
from .features import Features, features_of
from .models import Terms, Times, Want, interval_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .broadcast import Laid
    from .workload import Workload

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

UNFAMILIAR = 0.09
"""Relative error that the networks of a family share beyond what a fit without the family knows of itself, and those of
a source beyond a fit of other sources: 0.077 and 0.062 by maximum likelihood, under Student's t with 5 degrees of
freedom, of the errors with a family or a source held out. With 0.09 instead of 0.07 the 90% intervals of held-out
families and of held-out ranges of batch sizes hold 88 and 85% of what was measured instead of 84 and 82. Part of every
prediction: who asks runs other software than who measured."""


def own_variance(scatter: float) -> float:
    """Variance of a prediction's logarithm besides that of the parameters: of single measurements, and of families."""
    return scatter**2 + UNFAMILIAR**2


def works_in(machine: Machine, precision: str) -> PeakRate:
    """The peak that libraries compute a precision at.

    fp64 runs on vector units: of devices with fp64 tensor cores cuDNN's convolutions do not take those (an A100 is held
    out with 17% error against its vector peak, with 73% against its tensor cores'). AMD's rocBLAS does: an MI210
    reaches 1.8 times its vector peak.
    """
    if precision == "fp64" and machine.unit is None and machine.device.vendor == "NVIDIA":
        return machine.vector_peak(precision)
    return machine.peak(precision)


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
    moved : ndarray or None
        How far the device's own measurements narrowed what others say of each parameter, 0 to 1; None where nothing is
        known of that.
    products : float
        What narrower products reach of their own peak, over what those of the precision reach of theirs.
    """

    name: ClassVar[str] = "calibrated"
    ppp: ClassVar[float | None] = None
    is_forecast: ClassVar[bool] = True
    needs_bytes: ClassVar[bool] = True
    uses_memory: ClassVar[bool] = True
    takes_count: ClassVar[bool] = False
    label: str
    theta: Floats
    covariance: Floats
    scatter: float
    notes: tuple[str, ...] = ()
    moved: Floats | None = None
    products: float = 1.0

    @property
    def own_variance(self) -> float:
        """Variance of a prediction's logarithm besides that of the parameters."""
        return own_variance(self.scatter)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """The formula in one line."""
        return f"({compute} at its class's efficiency ^4 + {memory} at its share ^4 + shortest kernel ^4)^(1/4)"

    peak = staticmethod(works_in)

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """See `TimeModel.evaluate`; layers that wait for the host are stretched by one factor."""
        features, rates = features_of(workload), rates_of(machine, workload.precision)
        passes = passes_of(workload.phase)
        products = None if workload.training is None else workload.training.products
        if products is not None:  # narrower: as much less to compute as they are faster
            faster = machine.peak(products).per_s / machine.peak(workload.precision).per_s * self.products
            narrow = workload.narrow[features.place[:, 1]] & (features.part < 3)
            features = msgspec.structs.replace(features, padding=features.padding / np.where(narrow, faster, 1.0))
        entries, run = EntryTerms.to_fill(features), np.zeros(len(features.flops), dtype=np.int64)
        total, deviation, slopes = self._steps(features, rates, run, 1, entries=entries)
        # How much longer than the device's own work layers take because the host launches them; 1: not at all.
        waiting = float((total - self.overhead_s)[0] / entries.device_s.sum())
        shape = len(passes), len(workload.layers)

        def laid_out(seconds: Floats) -> Floats:
            laid = np.zeros(shape)
            laid[tuple(features.place.T)] = seconds
            return laid

        return Terms(
            passes, laid_out(entries.compute_s), laid_out(entries.memory_s),
            laid_out(entries.device_s * waiting), self.overhead_s, float(deviation[0]), waiting,
            laid_out(entries.floor_s), slopes[0, :, 0],
        )  # fmt: skip

    def evaluate_many(self, laid: Laid, machine: Machine, precision: str, want: Want) -> Times:
        """See `TimeModel.evaluate_many`."""
        features, run, cases = laid.features, laid.run, laid.cases
        rates, values = rates_of(machine, precision), np.exp(self.theta)
        low = high = pieces_s = None
        entries = EntryTerms.to_fill(features) if want.pieces else None
        if want.interval:
            total, deviation, _ = self._steps(features, rates, run, cases, laid.steps, entries)
            low, high = interval_of(total, deviation)
        else:
            total = step_times(features, rates, values, run, cases, laid.steps, entries)
        if entries is not None:
            waiting = (total - self.overhead_s) / laid.by_case(entries.device_s)
            pieces_s = laid.by_piece(entries.device_s * waiting[run[:, 0]])
        return Times(total, low, high, pieces_s)

    @property
    def overhead_s(self) -> float:
        """What a step takes beyond its layers."""
        return float(np.exp(self.theta[NAMES.index("step_s")]))

    def _steps(
        self, features: Features, rates: Rates, run: Ints, runs: int, steps: Steps | None = None,
        entries: EntryTerms | None = None,
    ) -> tuple[Floats, Floats, Floats]:  # fmt: skip
        """Seconds of whole steps, the standard deviations of their logarithms by the delta method, and what it takes.

        The last are the derivatives of those logarithms, shape (runs, parameters, batch sizes).
        """
        total, gradient = sensitivities(features, rates, np.exp(self.theta), run, runs, steps, entries)
        gradient = gradient.reshape(*gradient.shape[:2], -1)  # entries without batch sizes are entries at one
        slopes = gradient / total.reshape(len(gradient), 1, -1)
        variance = np.einsum("rpb,rpb->rb", slopes, self.covariance @ slopes).reshape(total.shape)
        return total, np.sqrt(variance + self.own_variance), slopes


def rates_of(machine: Machine, precision: str) -> Rates:
    """The rates that a calibration of this device and precision refers to."""
    vector, matrix = machine.vector_peak(precision).per_s, works_in(machine, precision).per_s
    multiprocessors = float(machine.device.cores.multiprocessors.value)
    return Rates(matrix, vector, machine.device.bandwidth_bytes_per_s, multiprocessors)

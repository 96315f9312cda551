"""Fitting the calibrated model: robust on relative error, every parameter held by a prior.

What is minimised, over the logarithms theta of the parameters (Huber-like soft L1, rho(z) = 2 (sqrt(1 + z) - 1))::

    sum over measurements  rho((log predicted - log measured)^2 / s^2)
  + sum over parameters    ((theta - prior mean) / prior deviation)^2

s is the scatter that a good model keeps. The covariance of theta is that of the quadratic approximation at the minimum
(Gauss-Newton with the weights of the robust loss), so a parameter that no measurement moves keeps its prior's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import CalibrationFailed
from ..extras import need
from ..timing.calibrated import NAMES, Rates, sensitivities
from ..timing.features import Features
from ..timing.fitted import own_variance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SCATTER = 0.05
"""s: relative scatter of whole networks around a good model."""


class Prior(msgspec.Struct, frozen=True, eq=False):
    """What is believed before any measurement: mean and deviation of each parameter's logarithm."""

    mean: Floats
    deviation: Floats


class MeasuredRuns(msgspec.Struct, frozen=True, eq=False):
    """Measured steps of one device in one precision: features of all their layers, stacked, and seconds measured."""

    features: Features
    run: NDArray[np.int64]
    rates: Rates
    measured_s: Floats

    def __len__(self) -> int:
        return len(self.measured_s)

    def choose(self, chosen: NDArray[np.int64]) -> MeasuredRuns:
        """Some of the steps."""
        place = np.full(len(self), -1)
        place[chosen] = np.arange(len(chosen))
        kept = place[self.run] >= 0
        fields = {name: getattr(self.features, name)[kept] for name in Features.__struct_fields__}
        return MeasuredRuns(Features(**fields), place[self.run][kept], self.rates, self.measured_s[chosen])

    def predict_s(self, theta: Floats) -> Floats:
        """Seconds of each step with these parameters."""
        return sensitivities(self.features, self.rates, np.exp(theta), self.run, len(self))[0]


class Fit(msgspec.Struct, frozen=True, eq=False):
    """What a fit found.

    Attributes
    ----------
    theta : ndarray
        Logarithms of the parameters.
    covariance : ndarray
        Of `theta`.
    scatter : float
        Relative deviation of single measurements from the model, robust.
    residuals : ndarray
        log(predicted / measured) of each measurement.
    moved : ndarray
        For each parameter how far its deviation has shrunk from the prior's: 0 held, 1 known.
    """

    theta: Floats
    covariance: Floats
    scatter: float
    residuals: Floats
    moved: Floats

    def predict(self, runs: MeasuredRuns) -> tuple[Floats, Floats]:
        """Seconds of each step, and the standard deviation of the logarithm of each.

        To first order in the parameters, d = d log(step) / d theta: the variance is d^T covariance d, and that of
        single measurements on top.
        """
        times, gradient = sensitivities(runs.features, runs.rates, np.exp(self.theta), runs.run, len(runs))
        relative = gradient / times[:, None]
        variance = np.einsum("ij,jk,ik->i", relative, self.covariance, relative)
        return times, np.sqrt(variance + own_variance(self.scatter))


def stack(features: Sequence[Features], rates: Rates, measured_s: Sequence[float]) -> MeasuredRuns:
    """Stack measured steps.

    Raises
    ------
    CalibrationFailed
        If a time is not a number above 0.
    """
    for value in measured_s:
        if not (np.isfinite(value) and value > 0):
            raise CalibrationFailed(f"a measured time must be a number above 0, not {value!r}")
    fields = {name: np.concatenate([getattr(one, name) for one in features]) for name in Features.__struct_fields__}
    run = np.repeat(np.arange(len(features)), [len(one.flops) for one in features])
    return MeasuredRuns(Features(**fields), run, rates, np.array(measured_s, dtype=np.float64))


def fit(runs: MeasuredRuns, prior: Prior, scatter: float = SCATTER, start: Floats | None = None) -> Fit:
    """Fit the parameters to measured steps.

    Parameters
    ----------
    runs : MeasuredRuns
        May be empty: the prior comes back.
    scatter : float
        See `SCATTER`.
    start : ndarray, optional
        Where to start from instead of the prior's mean: a fit to almost the same measurements saves most of the work.
    """
    least_squares = need("scipy.optimize", "fitting", "calibrate").least_squares

    measured = np.log(runs.measured_s)
    start = prior.mean if start is None else start

    def residuals(theta: Floats) -> Floats:
        predicted, _ = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
        return np.concatenate([_soft((np.log(predicted) - measured) / scatter), (theta - prior.mean) / prior.deviation])

    def jacobian(theta: Floats) -> Floats:
        predicted, gradient = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
        plain = (np.log(predicted) - measured) / scatter
        rows = _soft_slope(plain)[:, None] * gradient / predicted[:, None] / scatter
        return np.vstack([rows, np.diag(1 / prior.deviation)])

    if len(runs):
        solution = least_squares(residuals, start, jac=jacobian, method="lm", max_nfev=200, xtol=1e-10, ftol=1e-10)
        theta = np.asarray(solution.x)
    else:
        theta = prior.mean.copy()
    predicted, gradient = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
    left = np.log(predicted) - measured
    spread = _robust_deviation(left, scatter)
    weights = 1 / np.sqrt(1 + (left / spread) ** 2)
    rows = gradient / predicted[:, None] if len(runs) else np.zeros((0, len(NAMES)))
    precision = (rows * (weights / spread**2)[:, None]).T @ rows + np.diag(1 / prior.deviation**2)
    covariance = np.linalg.inv(precision)
    moved = 1 - np.sqrt(np.diag(covariance)) / prior.deviation
    return Fit(theta, covariance, spread, left, moved)


def _soft(z: Floats) -> Floats:
    """Residuals whose squares are soft L1 of z."""
    return np.asarray(np.sign(z) * np.sqrt(2 * (np.sqrt(1 + z**2) - 1)))


def _soft_slope(z: Floats) -> Floats:
    small = np.abs(z) < 1e-6
    root = np.sqrt(1 + z**2)
    safe = np.where(small, 1.0, np.sqrt(2 * (root - 1)))
    return np.where(small, 1.0, np.abs(z) / root / safe)


def _robust_deviation(residuals: Floats, expected: float) -> float:
    """Standard deviation from the median absolute one, drawn to what is expected where there are few points."""
    if not len(residuals):
        return 2 * expected
    median = 1.4826 * float(np.median(np.abs(residuals)))
    mean = float(np.sqrt(np.mean(np.minimum(np.abs(residuals), 3 * max(median, 1e-3)) ** 2)))
    number = len(residuals)
    # A scaled inverse chi-square prior worth five points.
    return float(np.sqrt((number * max(median, mean) ** 2 + 5 * expected**2) / (number + 5)))

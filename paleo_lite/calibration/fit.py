"""From measurements to fitted parameters: robust on relative error, every parameter held by a prior.

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

from ..architectures import find_network
from ..counting.attention import apply_attention, attention_implementation
from ..errors import CalibrationFailed
from ..extras import require
from ..machines import Device, Machine
from ..timing.calibrated import NAMES, Rates, rates_of, residual_variance, sensitivities
from ..timing.features import Features, features_of, merge_identical_entries
from ..timing.workload import Workload
from .measurements import Measurement
from .prior import SCATTER, Prior, device_prior

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# What was measured ----------------------------------------------------------------------------------------------------


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


def runs_of(measurements: Sequence[Measurement], device: Device, precision: str) -> MeasuredRuns:
    """Measured steps as the fit takes them, in the order given.

    Raises
    ------
    PaleoError
        If a network is unknown or unavailable at its image size.
    """
    features = []
    for m in measurements:
        key = (
            m.network,
            m.image_size,
            m.precision,
            m.phase,
            m.batch_size,
            m.execution,
            attention_implementation(m.framework),
        )
        if key not in _features:
            _features[key] = merge_identical_entries(features_of(workload_of(m)))
        features.append(_features[key])
    return stack(features, rates_of(Machine(device), precision), [m.time_s for m in measurements])


def workload_of(measurement: Measurement) -> Workload:
    """The step that was measured; a network is counted once for all its batch sizes and phases."""
    m, attention = measurement, attention_implementation(measurement.framework)
    key = (m.network, m.image_size, m.precision, m.execution, attention)
    if key not in _counted:
        network = find_network(m.network, m.image_size or None)
        if attention:
            network = network._replace(layers=apply_attention(network.layers, attention))
        _counted[key] = Workload(network, m.precision, execution=m.execution)
    return _counted[key].with_changes(phase=m.phase, batch_size=m.batch_size)


_features: dict[tuple[str | int, ...], Features] = {}  # the same step is measured on many devices
_counted: dict[tuple[str | int, ...], Workload] = {}


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


# What it says of the parameters ---------------------------------------------------------------------------------------


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
        return times, np.sqrt(variance + residual_variance(self.scatter))


def calibrate(
    measurements: Sequence[Measurement], device: Device, precision: str, prior: Prior | None = None
) -> tuple[list[Measurement], Fit]:
    """Fit a device in a precision to measurements of it.

    Parameters
    ----------
    measurements : sequence of Measurement
        All of this device and precision.
    prior : Prior, optional
        Without it `device_prior`, which is weak.

    Returns
    -------
    list of Measurement
        In the order of the fit's residuals.

    Raises
    ------
    CalibrationFailed
        If there is no measurement, one of another precision, or several ways of execution: the host of one is not that
        of another.
    """
    if not measurements:
        raise CalibrationFailed(f"no measurement of {device.name} in {precision} to fit")
    others = sorted({m.precision for m in measurements} - {precision})
    if others:
        raise CalibrationFailed(f"measurements in {', '.join(others)} cannot calibrate {precision}")
    executions = sorted({m.execution for m in measurements})
    if len(executions) > 1:
        raise CalibrationFailed(
            f"one calibration is of one way of execution, not of {' and '.join(executions)} together"
        )
    ordered = sorted(measurements)  # no result depends on the order of rows
    prior = prior or device_prior(device, precision)
    return ordered, fit(runs_of(ordered, device, precision), prior)


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
    least_squares = require("scipy.optimize", "fitting", "calibrate").least_squares

    measured = np.log(runs.measured_s)
    start = prior.mean if start is None else start

    def residuals(theta: Floats) -> Floats:
        predicted, _ = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
        soft, _ = _soft((np.log(predicted) - measured) / scatter)
        return np.concatenate([soft, (theta - prior.mean) / prior.deviation])

    def jacobian(theta: Floats) -> Floats:
        predicted, gradient = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
        _, slope = _soft((np.log(predicted) - measured) / scatter)
        rows = slope[:, None] * gradient / predicted[:, None] / scatter
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


def _soft(z: Floats) -> tuple[Floats, Floats]:
    """Residuals whose squares are soft L1 of z, and their derivatives."""
    root = np.sqrt(1 + z**2)
    half = np.sqrt(2 * (root - 1))
    small = np.abs(z) < 1e-6
    return np.sign(z) * half, np.where(small, 1.0, np.abs(z) / root / np.where(small, 1.0, half))


def _robust_deviation(residuals: Floats, expected: float) -> float:
    """Standard deviation from the median absolute one, drawn to what is expected where there are few points."""
    if not len(residuals):
        return 2 * expected
    median = 1.4826 * float(np.median(np.abs(residuals)))
    mean = float(np.sqrt(np.mean(np.minimum(np.abs(residuals), 3 * max(median, 1e-3)) ** 2)))
    number = len(residuals)
    # A scaled inverse chi-square prior worth five points.
    return float(np.sqrt((number * max(median, mean) ** 2 + 5 * expected**2) / (number + 5)))


# How true that is -----------------------------------------------------------------------------------------------------


def held_out_error(
    measurements: Sequence[Measurement], device: Device, precision: str, prior: Prior | None = None
) -> float | None:
    """Mean absolute relative error with each network predicted from all others; None with fewer than three networks."""
    networks = np.array([m.network for m in measurements])
    folds = [np.flatnonzero(networks == name) for name in np.unique(networks)]
    if len(folds) < 3:
        return None
    runs = runs_of(measurements, device, precision)
    predicted, _ = held_out(runs, [prior or device_prior(device, precision)] * len(folds), folds)
    return float(np.mean(np.abs(predicted / runs.measured_s - 1)))


def held_out(
    runs: MeasuredRuns, priors: Sequence[Prior], folds: Sequence[np.ndarray], scatter: float = SCATTER
) -> tuple[np.ndarray, np.ndarray]:
    """Predict each fold from all the others.

    Parameters
    ----------
    priors : sequence of Prior
        Of each fold.
    scatter : float
        See `SCATTER`.

    Returns
    -------
    predicted_s : ndarray
        Of every step; NaN where no fold holds it.
    deviation : ndarray
        Standard deviation of the logarithm of each prediction.
    """
    predicted, deviation = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    everything = np.arange(len(runs))
    whole = fit(runs, priors[0], scatter) if len(folds) > 1 else None
    for fold, prior in zip(folds, priors):
        start = None if whole is None else whole.theta
        learnt = fit(runs.choose(np.setdiff1d(everything, fold)), prior, scatter, start)
        predicted[fold], deviation[fold] = learnt.predict(runs.choose(fold))
    return predicted, deviation

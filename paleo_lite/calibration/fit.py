"""Fit of the model's parameters to measurements: a robust loss on relative errors, with a prior on every parameter.

The fit minimizes over theta, the logarithms of the parameters (with soft L1, rho(z) = 2 (sqrt(1 + z) - 1))::

    sum over measurements  rho((log predicted - log measured)^2 / s^2)
  + sum over parameters    ((theta - prior mean) / prior deviation)^2

s is the scatter of measurements around a good model. The covariance of theta is that of the quadratic approximation at
the minimum (Gauss-Newton with the weights of the robust loss), so a parameter that the measurements do not constrain
keeps the width of its prior.
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
from ..timing.calibrated import Rates, rates_of, residual_variance, sensitivities
from ..timing.features import Features, features_of, merge_identical_entries
from ..timing.parameters import NAMES
from ..timing.workload import Workload
from .measurements import Measurement
from .prior import FIT_SCATTER, Prior, device_prior

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Measured steps -------------------------------------------------------------------------------------------------------


class MeasuredRuns(msgspec.Struct, frozen=True, eq=False):
    """Measured steps of one device in one precision."""

    features: Features  # stacked features of the layers of all steps, arrays of shape (entries,)
    run: NDArray[np.int64]  # index of the step that each entry belongs to, shape (entries,)
    rates: Rates  # peak rates of the device
    measured_s: Floats  # seconds of each step, shape (steps,)

    def __len__(self) -> int:
        return len(self.measured_s)

    def select(self, indices: NDArray[np.int64]) -> MeasuredRuns:
        """Return the steps with these indices."""
        new_index = np.full(len(self), -1)
        new_index[indices] = np.arange(len(indices))
        is_selected = new_index[self.run] >= 0
        fields = {name: getattr(self.features, name)[is_selected] for name in Features.__struct_fields__}
        run = new_index[self.run][is_selected]
        return MeasuredRuns(Features(**fields), run, self.rates, self.measured_s[indices])

    def predict_s(self, theta: Floats) -> Floats:
        """Return the predicted seconds of each step with these parameters."""
        return sensitivities(self.features, self.rates, np.exp(theta), self.run, len(self))[0]


def runs_of(measurements: Sequence[Measurement], device: Device, precision: str) -> MeasuredRuns:
    """Return measurements of a device in the form that `fit` takes, in the same order.

    Raise PaleoError if a network is unknown or unavailable at its image size.
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
    return stack_features(features, rates_of(Machine(device), precision), [m.time_s for m in measurements])


def workload_of(measurement: Measurement) -> Workload:
    """Return the workload of a measured step; a network is counted once for all its batch sizes and phases."""
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


def stack_features(features: Sequence[Features], rates: Rates, measured_s: Sequence[float]) -> MeasuredRuns:
    """Concatenate the features of measured steps; raise CalibrationFailed if a time is not a number above 0."""
    for time_s in measured_s:
        if not (np.isfinite(time_s) and time_s > 0):
            raise CalibrationFailed(f"a measured time must be a number of seconds above 0 (got {time_s!r})")
    fields = {}
    for name in Features.__struct_fields__:
        fields[name] = np.concatenate([getattr(step, name) for step in features])
    run = np.repeat(np.arange(len(features)), [len(step.flops) for step in features])
    return MeasuredRuns(Features(**fields), run, rates, np.array(measured_s, dtype=np.float64))


# Fitting --------------------------------------------------------------------------------------------------------------


class Fit(msgspec.Struct, frozen=True, eq=False):
    """Result of a fit."""

    theta: Floats  # logarithms of the parameters, shape (parameters,)
    covariance: Floats  # of `theta`, shape (parameters, parameters)
    scatter: float  # robust relative deviation of single measurements from the model
    residuals: Floats  # log(predicted / measured) of each measurement, shape (steps,)
    # Relative reduction of each parameter's standard deviation from the prior's, shape (parameters,): 0 no information,
    # 1 exact.
    learned_fraction: Floats

    def predict(self, runs: MeasuredRuns) -> tuple[Floats, Floats]:
        """Predict the seconds of each step, and the standard deviation of their logarithms, both of shape (steps,).

        To first order in the parameters, with d = d log(step) / d theta, the variance of the logarithm is d^T
        covariance d plus the scatter of single measurements.
        """
        times, gradient = sensitivities(runs.features, runs.rates, np.exp(self.theta), runs.run, len(runs))
        slopes = gradient / times[:, None]
        variance = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        return times, np.sqrt(variance + residual_variance(self.scatter))


def calibrate(
    measurements: Sequence[Measurement], device: Device, precision: str, prior: Prior | None = None
) -> tuple[list[Measurement], Fit]:
    """Fit the parameters of a device in a precision to measurements of it.

    Return the measurements in the order of the residuals, and the fit.

    The prior is `device_prior` by default, which is weak. Raise CalibrationFailed if there is no measurement, one in
    another precision, or more than one kind of execution: host overheads differ between them.
    """
    if not measurements:
        raise CalibrationFailed(f"no measurement of {device.name} in {precision} to fit")
    others = sorted({m.precision for m in measurements} - {precision})
    if others:
        raise CalibrationFailed(f"measurements in {', '.join(others)} cannot calibrate {precision}")
    executions = sorted({m.execution for m in measurements})
    if len(executions) > 1:
        raise CalibrationFailed(
            f"a calibration holds for one execution; the measurements have {len(executions)}: {', '.join(executions)}"
        )
    # Results do not depend on the order of the rows.
    ordered = sorted(measurements, key=lambda step: step.sort_key)
    prior = prior or device_prior(device, precision)
    return ordered, fit(runs_of(ordered, device, precision), prior, expected_scatter(len(ordered)))


FEW_MEASUREMENTS = 8
"""Fewer measurements than these have `FEW_SCATTER`."""

FEW_SCATTER = 0.06
"""Expected relative scatter of few measurements: they are often of related networks, which share a part of their error.

With `FIT_SCATTER`, so few measurements move the parameters too far: on held-out devices, the error after two of them is
0.1 points higher (docs/model.md).
"""


def expected_scatter(measurements: int) -> float:
    """Return the expected relative scatter of a number of measurements of one device around the fitted model."""
    return FEW_SCATTER if measurements < FEW_MEASUREMENTS else FIT_SCATTER


def fit(runs: MeasuredRuns, prior: Prior, scatter: float = FIT_SCATTER, start: Floats | None = None) -> Fit:
    """Fit the parameters to measured steps; without any, the fit is the prior.

    `scatter` is the expected relative scatter of single measurements, see `FIT_SCATTER`. The search starts at the
    prior's mean by default; starting from a fit to almost the same measurements saves most of the work.
    """
    least_squares = require("scipy.optimize", "fitting", "calibrate").least_squares

    log_measured = np.log(runs.measured_s)
    start = prior.mean if start is None else start

    def residuals(theta: Floats) -> Floats:
        predicted, _ = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
        soft, _ = _soft_l1((np.log(predicted) - log_measured) / scatter)
        return np.concatenate([soft, (theta - prior.mean) / prior.deviation])

    def jacobian(theta: Floats) -> Floats:
        predicted, gradient = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
        _, slope = _soft_l1((np.log(predicted) - log_measured) / scatter)
        rows = slope[:, None] * gradient / predicted[:, None] / scatter
        return np.vstack([rows, np.diag(1 / prior.deviation)])

    if len(runs):
        solution = least_squares(residuals, start, jac=jacobian, method="lm", max_nfev=200, xtol=1e-10, ftol=1e-10)
        theta = np.asarray(solution.x)
    else:
        theta = prior.mean.copy()
    predicted, gradient = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
    log_errors = np.log(predicted) - log_measured
    spread = _robust_deviation(log_errors, scatter)
    weights = 1 / np.sqrt(1 + (log_errors / spread) ** 2)
    slopes = gradient / predicted[:, None] if len(runs) else np.zeros((0, len(NAMES)))
    inverse_covariance = (slopes * (weights / spread**2)[:, None]).T @ slopes + np.diag(1 / prior.deviation**2)
    covariance = np.asarray(np.linalg.inv(inverse_covariance), np.float64)
    learned_fraction = 1 - np.sqrt(np.diag(covariance)) / prior.deviation
    return Fit(theta, covariance, spread, log_errors, learned_fraction)


def _soft_l1(z: Floats) -> tuple[Floats, Floats]:
    """Return residuals with the soft L1 of z as their squares, and the derivatives of these residuals."""
    root = np.sqrt(1 + z**2)
    magnitude = np.sqrt(2 * (root - 1))
    is_small = np.abs(z) < 1e-6  # where the quotient below is 0 / 0; its limit is 1
    derivative = np.abs(z) / root / np.where(is_small, 1.0, magnitude)
    return np.sign(z) * magnitude, np.where(is_small, 1.0, derivative)


def _robust_deviation(residuals: Floats, expected: float) -> float:
    """Return a robust standard deviation of residuals, drawn to the expected one where there are few."""
    if not len(residuals):
        return 2 * expected
    median_deviation = 1.4826 * float(np.median(np.abs(residuals)))
    clipped = np.minimum(np.abs(residuals), 3 * max(median_deviation, 1e-3))
    clipped_deviation = float(np.sqrt(np.mean(clipped**2)))
    number = len(residuals)
    deviation = max(median_deviation, clipped_deviation)
    # The prior of the variance is a scaled inverse chi-square distribution with five degrees of freedom.
    return float(np.sqrt((number * deviation**2 + 5 * expected**2) / (number + 5)))


# Held-out accuracy ----------------------------------------------------------------------------------------------------


def held_out_error(
    measurements: Sequence[Measurement], device: Device, precision: str, prior: Prior | None = None
) -> float | None:
    """Return the mean absolute relative error with each network predicted from the others.

    None with fewer than three networks.
    """
    networks = np.array([m.network for m in measurements])
    folds = [np.flatnonzero(networks == name) for name in np.unique(networks)]
    if len(folds) < 3:
        return None
    runs = runs_of(measurements, device, precision)
    predicted, _ = predict_held_out(runs, [prior or device_prior(device, precision)] * len(folds), folds)
    return float(np.mean(np.abs(predicted / runs.measured_s - 1)))


def predict_held_out(
    runs: MeasuredRuns, priors: Sequence[Prior], folds: Sequence[np.ndarray], scatter: float = FIT_SCATTER
) -> tuple[np.ndarray, np.ndarray]:
    """Predict the steps of each fold from all the others, with a prior for each fold.

    A fold is an array of the indices of its steps; `scatter` is as for `fit`. Return the predicted seconds, NaN for
    steps that are in no fold, and the standard deviation of the logarithm of each, both of shape (steps,).
    """
    predicted, deviation = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    all_indices = np.arange(len(runs))
    start = None
    if len(folds) > 1:  # the fit to all steps is close to the fit without one fold
        start = fit(runs, priors[0], scatter).theta
    for fold, prior in zip(folds, priors):
        others = runs.select(np.setdiff1d(all_indices, fold))
        predicted[fold], deviation[fold] = fit(others, prior, scatter, start).predict(runs.select(fold))
    return predicted, deviation

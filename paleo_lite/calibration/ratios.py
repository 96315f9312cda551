"""`speedup`: the ratio of two predicted times, with its interval.

Errors that two predictions share cancel in their ratio. With d = d log(time) / d theta and C the covariance of theta,
log(time / other time) has, to first order, the variance::

    same calibration:  (d - d')^T C (d - d')
    two calibrations:  d^T C d + d'^T C' d' - 2 r (d^T W) . (d'^T W'),    W = C diag(1 / prior deviation)

plus the variance of single measurements of both, and of network families. r is `PRIOR_ERROR_CORRELATION`. W is the
fraction of the prior's error that remains after a fit: all of it for a parameter that no measurement informs. The error
of a family depends on the network, not on the device: it cancels for the same step on two devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..timing import Prediction
from ..timing.calibrated import CalibratedModel
from ..timing.intervals import INTERVAL_LEVEL, interval_of
from ..timing.pipeline_prediction import PipelinePrediction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PRIOR_ERROR_CORRELATION = 0.4
"""Correlation between the prior errors of two devices in one precision, chosen by held-out ratios of published steps on
two devices: with 0.5 too few lie in their intervals if neither device was measured (docs/model.md)."""

_MAX_LEARNED_FRACTION = 0.9995
"""Upper limit of the learned fraction: calibrations give it with three digits, so that 1.000 may mean this."""


AnyPrediction = Prediction | PipelinePrediction


class Ratio(msgspec.Struct, frozen=True):
    """Ratio of two throughputs."""

    value: float
    deviation: float | None  # standard deviation of its logarithm; None if a model has no uncertainty

    def interval(self, level: float = INTERVAL_LEVEL) -> tuple[float, float] | None:
        """Return the interval of the ratio at this probability; None if the deviation is unknown."""
        return None if self.deviation is None else interval_of(self.value, self.deviation, level)


def speedup(prediction: AnyPrediction, other: AnyPrediction) -> Ratio | None:
    """Return the ratio of the throughput of a prediction to that of another.

    None if one of the two takes no time, or if only one of them is a forecast: a bound and a forecast are not
    comparable.
    """
    rate, other_rate = prediction.throughput_per_s, other.throughput_per_s
    if rate is None or other_rate is None or prediction.is_forecast != other.is_forecast:
        return None
    if prediction is other:
        return Ratio(1.0, 0.0)
    estimate, other_estimate = _estimate(prediction), _estimate(other)
    deviation = None
    if estimate is not None and other_estimate is not None:
        is_same_step = _step_key(_main_step(prediction)) == _step_key(_main_step(other))
        deviation = float(np.sqrt(log_ratio_variance(estimate, other_estimate, is_same_step)))
    return Ratio(rate / other_rate, deviation)


def _main_step(prediction: AnyPrediction) -> Prediction:
    """Return the step that the time consists of: of a pipeline a run of its denoiser, whose error the others share."""
    return prediction.denoiser.prediction if isinstance(prediction, PipelinePrediction) else prediction


def _estimate(prediction: AnyPrediction) -> Estimate | None:
    """Return the uncertainty of a predicted time; None for models without one."""
    prediction = _main_step(prediction)
    model, slopes = prediction.model, prediction.terms.slopes
    if slopes is None or not isinstance(model, CalibratedModel):
        return None
    return Estimate(model, slopes, prediction.device.id, prediction.workload.precision)


def _step_key(prediction: Prediction) -> tuple[object, ...]:
    """Return the identity of a step, independent of the device."""
    workload = prediction.workload
    return (
        workload.network.name,
        workload.precision,
        workload.batch_size,
        workload.phase,
        workload.execution,
        workload.options,
    )


class Estimate(msgspec.Struct, frozen=True, eq=False):
    """Uncertainty of a predicted time."""

    model: CalibratedModel
    slopes: Floats  # derivatives d log(time) / d theta; shape (parameters,)
    # Device and precision that the model is valid for.
    device: str
    precision: str

    @property
    def prior_error_slopes(self) -> Floats:
        """Derivatives of log(time) by the prior error of each parameter, in units of the prior's deviation."""
        model = self.model
        if model.learned_fraction is None:
            return np.zeros(len(model.theta))
        deviation = np.sqrt(np.diag(model.covariance))
        prior_deviation = deviation / (1 - np.minimum(model.learned_fraction, _MAX_LEARNED_FRACTION))
        result: Floats = self.slopes @ model.covariance / prior_deviation
        return result


def log_ratio_variance(estimate: Estimate, other: Estimate, is_same_step: bool) -> float:
    """Return the variance of the logarithm of the ratio of two times; the module's docstring has the formula.

    `is_same_step` says whether both are of the same network, batch size and phase in the same precision, on two
    devices.
    """
    is_same_device = (estimate.device, estimate.precision) == (other.device, other.precision)
    if is_same_device and np.array_equal(estimate.model.theta, other.model.theta):  # the same calibration
        difference = estimate.slopes - other.slopes
        variance = float(difference @ estimate.model.covariance @ difference)
    else:
        variance = float(estimate.slopes @ estimate.model.covariance @ estimate.slopes)
        variance += float(other.slopes @ other.model.covariance @ other.slopes)
        if estimate.precision == other.precision:
            shared = float(estimate.prior_error_slopes @ other.prior_error_slopes)
            variance -= 2 * PRIOR_ERROR_CORRELATION * shared
    if is_same_step:
        return variance + (estimate.model.scatter**2 + other.model.scatter**2)
    return variance + (estimate.model.residual_variance + other.model.residual_variance)

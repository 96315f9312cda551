"""`Predictions`: several beside each other, what each costs, how many times as fast as the first it is, how surely.

Errors that two predictions share cancel in their ratio. With d = d log(time) / d theta and C the covariance of theta,
log(time / other time) has, to first order, the variance::

    one calibration:  (d - d')^T C (d - d')
    two:              d^T C d + d'^T C' d' - 2 SHARED (d^T W) . (d'^T W'),    W = C diag(1 / prior deviation)

plus that of single measurements of both, and of families. W is how much of what the prior was off a fit has kept: a
parameter that no measurement moved keeps it all. A family's own error is that of its network on any device: of the same
step on two devices it cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from ..result import Result
from ..timing import Prediction
from ..timing.calibrated import CalibratedModel
from ..timing.models import INTERVAL_LEVEL, interval_of
from ..version import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SAMPLES = 1e6
"""Samples that a cost is of."""

SHARED = 0.4
"""Correlation of what the priors of two devices in one precision are off, by ratios of published steps on two devices,
held out: with 0.5 too few lie in their intervals where neither device was measured (docs/model.md)."""

_MOVED_AT_MOST = 0.9995
"""Calibrations say with three digits how far a parameter was moved: 1.000 may be this."""


class Predictions(Result, msgspec.Struct, frozen=True, eq=False):
    """Predictions beside each other.

    Attributes
    ----------
    predictions : sequence of Prediction
        In the order asked for; one or more.
    left_out : sequence of str
        What could not be predicted, and why.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.side_by_side:side_by_side_page"

    predictions: Sequence[Prediction]
    left_out: Sequence[str] = ()

    @property
    def first(self) -> Prediction:
        """What the others are compared with: the first forecast, or the first bound where there is no forecast."""
        return next((prediction for prediction in self.predictions if prediction.is_forecast), self.predictions[0])

    def speedup(self, prediction: Prediction) -> Ratio | None:
        """How many times as many samples per second one of them has as the first: see `speedup`."""
        return speedup(prediction, self.first)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per prediction; a bound has no time, throughput, cost and speed-up, unless all are bounds."""
        first = self.first
        for prediction in self.predictions:
            low, high = prediction.interval or (None, None)
            ratio = self.speedup(prediction)
            least, most = (ratio and prediction is not first and ratio.interval()) or (None, None)
            counts = prediction.is_forecast == first.is_forecast
            yield {
                "network": prediction.network,
                "gpu": prediction.device.id,
                "precision": prediction.precision,
                "phase": prediction.phase,
                "batch_size": prediction.batch_size,
                "is_forecast": prediction.is_forecast,
                "time_s": prediction.time_s if prediction.is_forecast else None,
                "low_s": low,
                "high_s": high,
                "bound_s": prediction.bound_s,
                "throughput_per_s": prediction.throughput_per_s if counts else None,
                "memory_bytes": None if prediction.memory is None else prediction.memory.memory.total_bytes,
                "fits": None if prediction.memory is None else prediction.memory.fits,
                "usd_per_million": usd(prediction) if prediction.is_forecast else None,
                "speedup": None if ratio is None else ratio.value,
                "speedup_low": least,
                "speedup_high": most,
                "time_model": prediction.model.name,
                "calibration": prediction.calibration,
                "version": __version__,
            }

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: the rows, what each was computed from, and what was left out."""
        predictions = [prediction.to_dict() for prediction in self.predictions]
        return {"rows": list(self.rows()), "predictions": predictions, "left_out": list(self.left_out)}

    def __repr__(self) -> str:
        return f"Predictions({', '.join(map(repr, self.predictions))})"


def usd(prediction: Prediction) -> float | None:
    """US dollars for `SAMPLES` samples at the price on record; None where there is none."""
    price, throughput = prediction.device.rent_usd_per_h, prediction.throughput_per_s
    if price is None or throughput is None:
        return None
    return price / 3600 / throughput * SAMPLES


class Ratio(msgspec.Struct, frozen=True):
    """How many times as many samples per second as another.

    Attributes
    ----------
    deviation : float or None
        Standard deviation of its logarithm; None where a model does not say how sure it is.
    """

    value: float
    deviation: float | None

    def interval(self, level: float = INTERVAL_LEVEL) -> tuple[float, float] | None:
        """Between which it lies with this probability; None where that is not known."""
        return None if self.deviation is None else interval_of(self.value, self.deviation, level)


def speedup(prediction: Prediction, other: Prediction) -> Ratio | None:
    """How many times as many samples per second a prediction has as another one.

    None where one of the two takes no time, or only one of them is a forecast: a bound is none.
    """
    rates = prediction.throughput_per_s, other.throughput_per_s
    if rates[0] is None or rates[1] is None or prediction.is_forecast != other.is_forecast:
        return None
    if prediction is other:
        return Ratio(1.0, 0.0)
    one, two = _estimate(prediction), _estimate(other)
    variance = None
    if one is not None and two is not None:
        variance = log_ratio_variance(one, two, _step_of(prediction) == _step_of(other))
    return Ratio(rates[0] / rates[1], None if variance is None else float(np.sqrt(variance)))


def _estimate(prediction: Prediction) -> Estimate | None:
    """None for models that do not say how sure they are of what."""
    model, slopes = prediction.model, prediction.terms.slopes
    if slopes is None or not isinstance(model, CalibratedModel):
        return None
    return Estimate(model, slopes, prediction.device.id, prediction.precision)


def _step_of(prediction: Prediction) -> tuple[object, ...]:
    """What is computed, without where."""
    asked = prediction.workload
    return asked.network.name, asked.precision, asked.batch_size, asked.phase, asked.execution, asked.options


class Estimate(msgspec.Struct, frozen=True, eq=False):
    """What an error of a predicted time depends on.

    Attributes
    ----------
    slopes : ndarray, shape (parameters,)
        Derivatives of the logarithm of the time by those of the parameters.
    device, precision : str
        What the model is of.
    """

    model: CalibratedModel
    slopes: Floats
    device: str
    precision: str

    @property
    def kept(self) -> Floats:
        """By how much the logarithm of the time is off where the prior of each parameter is by one deviation."""
        model = self.model
        if model.learned_fraction is None:
            return np.zeros(len(model.theta))
        prior_deviation = np.sqrt(np.diag(model.covariance)) / (1 - np.minimum(model.learned_fraction, _MOVED_AT_MOST))
        kept: Floats = self.slopes @ model.covariance / prior_deviation
        return kept


def log_ratio_variance(one: Estimate, other: Estimate, is_same_step: bool) -> float:
    """Variance of the logarithm of the ratio of two times: see the module.

    Parameters
    ----------
    is_same_step : bool
        Whether they are of the same network, batch size and phase in the same precision, on two devices.
    """
    same_device = (one.device, one.precision) == (other.device, other.precision)
    if same_device and np.array_equal(one.model.theta, other.model.theta):  # one calibration: errors are shared whole
        apart = one.slopes - other.slopes
        parameters = float(apart @ one.model.covariance @ apart)
    else:
        parameters = sum(
            float(prediction.slopes @ prediction.model.covariance @ prediction.slopes) for prediction in (one, other)
        )
        if one.precision == other.precision:
            parameters -= 2 * SHARED * float(one.kept @ other.kept)
    own = (
        prediction.model.scatter**2 if is_same_step else prediction.model.residual_variance
        for prediction in (one, other)
    )
    return parameters + sum(own)

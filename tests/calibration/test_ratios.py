"""How sure a ratio is: against parameters and priors drawn at random, and by hand.

Tests: calibration/ratios.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.calibration.ratios import PRIOR_ERROR_CORRELATION, Estimate, log_ratio_variance, speedup
from paleo_lite.machines import Machine
from paleo_lite.timing import Workload
from paleo_lite.timing.calibrated import CalibratedModel, residual_variance
from paleo_lite.timing.predicting import predict


def made(theta, covariance, moved=None, scatter=0.0) -> CalibratedModel:
    return CalibratedModel("made", np.array(theta), np.array(covariance), scatter, learned_fraction=moved)


@pytest.mark.thorough
@pytest.mark.slow
def test_within_one_calibration_shared_errors_cancel() -> None:
    """The ratio of two predictions with parameters drawn from the calibration's own covariance.

    They are drawn a hundred times narrower: there the model is linear in them, as the formula takes it.
    """
    first, other = (pl.predict(name, gpu="titan-rtx", batch_size=16) for name in ("resnet50", "resnet101"))
    model = first.model
    draws = np.random.default_rng(0).multivariate_normal(model.theta, model.covariance / 1e4, 1500)
    logarithms = []
    for theta in draws:
        drawn = CalibratedModel("drawn", theta, model.covariance, model.scatter)
        times = [drawn.evaluate(each.workload, each.machine).time_s for each in (first, other)]
        logarithms.append(math.log(times[0] / times[1]))
    ratio = speedup(other, first)
    assert ratio.value == pytest.approx(first.time_s / other.time_s)
    own = 2 * residual_variance(model.scatter)  # of single measurements and of families
    assert ratio.deviation**2 - own == pytest.approx(1e4 * np.var(logarithms), rel=0.15)
    assert ratio.deviation < math.hypot(first.terms.deviation, other.terms.deviation)
    low, high = ratio.interval(0.9)
    assert math.log(high / low) == pytest.approx(2 * 2.015 * ratio.deviation)


def test_shared_prior_uncertainty_remains_after_measurements() -> None:
    """Two devices' parameters are drawn around priors that are off together, measured with noise, and estimated."""
    random = np.random.default_rng(1)
    number, prior = 200_000, np.array([0.3, 0.5])
    off = random.normal(size=(number, 2, 1))
    errors, estimates = [], []
    for rows, noise in ((np.array([[1.0, 0.5]]), 0.2), (np.array([[0.2, 1.0]]), 0.1)):
        own = random.normal(size=(number, 2, 1))
        truth = prior[:, None] * (
            math.sqrt(PRIOR_ERROR_CORRELATION) * off + math.sqrt(1 - PRIOR_ERROR_CORRELATION) * own
        )  # the prior's mean is 0
        measured = rows @ truth + noise * random.normal(size=(number, 1, 1))
        covariance = np.linalg.inv(rows.T @ rows / noise**2 + np.diag(1 / prior**2))
        estimate = covariance @ rows.T @ measured / noise**2
        slopes = np.array([0.7, 0.4])
        errors.append((estimate - truth)[:, :, 0] @ slopes)
        moved = 1 - np.sqrt(np.diag(covariance)) / prior
        estimates.append(Estimate(made([0, len(errors)], covariance, moved), slopes, f"gpu{len(errors)}", "fp32"))
    variance = log_ratio_variance(*estimates, is_same_step=True)
    assert variance == pytest.approx(np.var(errors[0] - errors[1]), rel=0.02)
    assert variance < np.var(errors[0]) + np.var(errors[1])


def test_other_precisions_and_unknown_priors_are_independent() -> None:
    one = Estimate(made([0.0], [[0.04]], np.zeros(1), 0.1), np.ones(1), "a", "fp32")
    other = Estimate(made([0.0], [[0.09]], np.zeros(1), 0.2), np.ones(1), "b", "fp16")
    unknown = Estimate(made([0.0], [[0.09]], None, 0.2), np.ones(1), "b", "fp32")
    for second in (other, unknown):
        assert log_ratio_variance(one, second, is_same_step=True) == pytest.approx(0.13 + 0.01 + 0.04)
        assert log_ratio_variance(one, second, is_same_step=False) == pytest.approx(
            0.13 + residual_variance(0.1) + residual_variance(0.2)
        )
    # Devices with the same pooled parameters still have separate errors.
    same = Estimate(made([0.0], [[0.09]], np.zeros(1), 0.2), np.ones(1), "b", "fp32")
    assert log_ratio_variance(one, same, is_same_step=True) == pytest.approx(0.18 - 2 * 0.4 * 0.2 * 0.3)


def test_ratios_that_cannot_be_computed() -> None:
    forecast, bound = pl.predict("alexnet", gpu="t4"), pl.predict("alexnet", gpu="arc-b580")
    assert speedup(forecast, bound) is None and speedup(bound, forecast) is None
    assert speedup(bound, bound).value == 1
    typed = pl.predict("alexnet", gpu="k40m", ppp=0.5)
    assert speedup(typed, forecast).value == pytest.approx(forecast.time_s / typed.time_s)
    assert speedup(typed, forecast).interval() is None
    machine = Machine(forecast.device)
    larger = predict(Workload(forecast.workload.network, batch_size=2), machine, typed.model)
    assert speedup(larger, typed).value == pytest.approx(2 * typed.time_s / larger.time_s)

"""Tests of the accuracy of forecasts, with figures that were computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.calibration.accuracy import (
    error_statistics,
    interval_accuracy,
    interval_scores,
    relative_errors,
    sharpness,
)


def test_relative_errors_are_absolute_in_mean_and_median_but_not_in_their_bias() -> None:
    assert relative_errors([-0.1, 0.2, 0.6]) == pytest.approx({"mape": 0.3, "median": 0.2, "bias": 0.2})
    assert relative_errors([-0.3, -0.1, 0.2, 0.2])["bias"] == pytest.approx(0.05)


def test_ends_of_an_interval_belong_to_it() -> None:
    accuracy = interval_accuracy([1.0, 2.0, 3.0, 4.0], [1.0, 2.5, 2.0, 1.0], [2.0, 5.0, 3.0, 3.0])
    assert accuracy == pytest.approx({"coverage_90": 0.5, "sharpness_90": 2.0})


def test_sharpness_is_a_median_of_ratios() -> None:
    assert sharpness([1, 1, 2], [1.5, 9, 4]) == 2.0


def test_statistics_follow_from_the_deviation_of_the_logarithm() -> None:
    stats = pytest.importorskip("scipy.stats")
    measured = np.array([1.0, 2.0, 4.0, 8.0])
    predicted = np.array([1.1, 1.8, 4.0, 4.0])
    deviation = np.array([0.1, 0.05, 0.1, 0.1])
    statistics = error_statistics(measured, predicted, deviation)
    assert statistics["mape"] == pytest.approx((0.1 + 0.1 + 0.0 + 0.5) / 4)
    # ln 1.1 = 0.95 deviations of 0.1, ln 0.9 = 2.1 deviations of 0.05, ln 0.5 = 6.9 deviations: two of four are inside.
    assert statistics["coverage_90"] == statistics["coverage_80"] == 0.5
    assert statistics["sharpness_90"] == pytest.approx(np.exp(2 * stats.t.ppf(0.95, 5) * 0.1), rel=1e-3)
    ties = np.array([1.1, 1.8, 4.0, 4.1])
    assert error_statistics(measured, ties, deviation)["rank_correlation"] == stats.spearmanr(measured, ties).statistic


def test_interval_scores_are_widths_and_penalties() -> None:
    """Gneiting and Raftery 2007, equation 43, of the logarithm with alpha = 0.1: 2 / alpha = 20."""
    inside, below, above = interval_scores([2.0, 0.5, 8.0], 1.0, 4.0)
    assert inside == pytest.approx(np.log(4))
    assert below == pytest.approx(np.log(4) + 20 * np.log(2))
    assert above == pytest.approx(np.log(4) + 20 * np.log(2))

"""Accuracy of forecasts: their relative errors, and how often and how narrowly intervals contain the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..timing.intervals import INTERVAL_LEVEL, QUANTILES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]


class GroupAccuracy(Protocol):
    """Accuracy of a group of held-out measurements, such as an `AccuracyRow`."""

    @property
    def points(self) -> int:
        """Number of measurements."""
        ...

    @property
    def mape(self) -> float:
        """Mean absolute relative error."""
        ...

    @property
    def coverage_90(self) -> float:
        """Fraction of the measurements within their 90% intervals."""
        ...


def relative_errors(errors: ArrayLike) -> dict[str, float]:
    """Return mean and median of absolute relative errors, and the median of the errors, by their names in tables."""
    errors = np.asarray(errors)
    absolute = np.abs(errors)
    return {"mape": float(absolute.mean()), "median": float(np.median(absolute)), "bias": float(np.median(errors))}


def interval_accuracy(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> dict[str, float]:
    """Return coverage and sharpness of 90% intervals, by their names in tables."""
    measured, low, high = np.asarray(measured), np.asarray(low), np.asarray(high)
    is_inside = (low <= measured) & (measured <= high)
    return {"coverage_90": float(np.mean(is_inside)), "sharpness_90": sharpness(low, high)}


def sharpness(low: ArrayLike, high: ArrayLike) -> float:
    """Return the median ratio between the ends of intervals."""
    return float(np.median(np.asarray(high) / np.asarray(low)))


def interval_scores(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> Floats:
    """Return the interval score of the logarithm of each 90% interval, lower is better.

    It is the width of the interval, plus 2 / alpha times the distance of the measurement from it, where alpha is the
    probability that it is outside (Gneiting and Raftery 2007, JASA 102, equation 43).
    """
    measured, low, high = np.log(measured), np.log(low), np.log(high)
    outside: Floats = np.maximum(low - measured, 0.0) + np.maximum(measured - high, 0.0)
    return high - low + 2 / (1 - INTERVAL_LEVEL) * outside


def mean_error(rows: Sequence[GroupAccuracy]) -> float:
    """Return the mean absolute relative error, in which each group has the same weight."""
    return sum(row.mape for row in rows) / len(rows)


def coverage(rows: Sequence[GroupAccuracy]) -> float:
    """Return the fraction of all measurements that lie in their 90% interval."""
    return sum(row.coverage_90 * row.points for row in rows) / sum(row.points for row in rows)


def error_statistics(measured: Floats, predicted: Floats, deviation: Floats) -> dict[str, Any]:
    """Return the errors of predicted seconds and the coverage of their intervals, named as in `AccuracyRow`.

    `deviation` is the standard deviation of the logarithm of each prediction.
    """
    errors = predicted / measured - 1
    standardized = np.abs(np.log1p(errors)) / deviation
    reach = QUANTILES[0.9] * deviation
    return {
        **relative_errors(errors),
        "p90": float(np.quantile(np.abs(errors), 0.9)),
        "rank_correlation": _rank_correlation(measured, predicted),
        "coverage_80": float(np.mean(standardized < QUANTILES[0.8])),
        "coverage_90": float(np.mean(standardized < QUANTILES[0.9])),
        "width_90": float(np.mean(np.exp(reach) - np.exp(-reach))),
        "sharpness_90": sharpness(np.exp(-reach), np.exp(reach)),
    }


def _rank_correlation(values: Floats, others: Floats) -> float | None:
    """Return Spearman's rank correlation, without correction for ties; None for a single value."""
    if len(values) < 2:
        return None
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    other_ranks = np.argsort(np.argsort(others, kind="stable"), kind="stable")
    return float(np.corrcoef(ranks, other_ranks)[0, 1])

"""Intervals of times: Student's t with 5 degrees of freedom on the logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

OneOrMany = TypeVar("OneOrMany", float, "Floats")
"""A number, or an array of numbers."""

QUANTILES = {0.8: 1.476, 0.9: 2.015}
"""Two-sided quantiles of Student's t with 5 degrees of freedom, by level. Residuals have heavier tails than a normal
distribution."""

INTERVAL_LEVEL = 0.9
"""Default probability of an interval."""

Z_90 = 1.645
"""Standard normal quantile of the ends of a 90% interval."""

NORMAL_QUANTILES = {0.8: 1.2816, INTERVAL_LEVEL: Z_90}
"""Two-sided quantiles of the standard normal distribution, by level."""


DIRECT_PRECISIONS = ("fp64",)
"""Precisions in which no library uses an algorithm with fewer multiplications than are counted.

Intervals do not extend below the lower bound in them."""


def not_below(low_s: Any, least_s: Any, time_s: Any) -> Any:
    """Return the lower end of an interval of a time, raised to the least that is possible; at most the time itself."""
    return np.minimum(np.maximum(low_s, least_s), time_s)


def log_reach(kernels: Any, host: Any, host_share: Any) -> Any:
    """Return how far an end of the interval of a time is from it, in logarithms.

    `kernels` is how far it were with a certain host, `host` how far the end of the host's interval is from its time, a
    share of the whole. Both are independent, so that their squares add up.
    """
    return np.sqrt(np.square(kernels) + np.square(host_share * host))


def interval_of(time_s: OneOrMany, deviation: OneOrMany, level: float = INTERVAL_LEVEL) -> tuple[OneOrMany, OneOrMany]:
    """Return the interval that contains a time with the probability `level`, 0.8 or 0.9.

    `deviation` is the standard deviation of the logarithm of the time. For single numbers the ends are Python floats.
    """
    factor = np.exp(QUANTILES[level] * deviation)
    ends: tuple[Any, Any] = (time_s / factor, time_s * factor)
    if np.ndim(ends[0]) == 0:
        ends = (float(ends[0]), float(ends[1]))
    return ends

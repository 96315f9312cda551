"""Lengths of responses: a distribution that ends at a maximum, given by its mean or by a file of lengths."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadFile, BadValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

SPREAD = 0.6
"""Standard deviation of the logarithm of the length of a response before it is cut off, where nothing is known."""

_CUT = 1 - 1e-9
"""Share of the maximum from which a length counts as cut off."""

_TOLERATED = 0.02
"""Tolerated difference between the share that is cut off and the requested one."""

_SPREADS = (0.02, 4.0)
"""Range of spreads that is searched for the one that cuts off a requested share."""


def response_lengths(count: int, mean: float, maximum: int, clipped_share: float | None = None) -> Ints:
    """Return the lengths of some responses in rising order: quantiles of a log-normal distribution cut at a maximum.

    The mean is that after the cut. With `clipped_share` the spread is the one at which this share is cut off.
    """
    if not 1 <= mean <= maximum:
        raise BadValue(
            f"`--response-tokens` must be between 1 and {maximum:,}, what `--max-tokens` leaves for a response "
            f"(got {mean:,g})"
        )
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((number + 0.5) / count) for number in range(count)])
    spread = SPREAD if clipped_share is None else _spread_with_share(scores, mean, maximum, clipped_share)
    lengths = _clipped_lengths(scores, _location_with_mean(scores, mean, maximum, spread), spread, maximum)
    if clipped_share is not None:
        share = float(np.mean(lengths >= maximum * _CUT))
        if abs(share - clipped_share) > _TOLERATED + 1 / count:
            raise BadValue(
                f"`--clipped-share {clipped_share:g}` cannot be: of responses of {mean:,g} tokens on average, at most "
                f"{maximum:,}, a usual distribution has {share:.2g} cut off; change it or `--response-tokens`"
            )
    rounded: Ints = np.maximum(np.rint(lengths), 1).astype(np.int64)
    return rounded


def _clipped_lengths(scores: Floats, location: float, spread: float, maximum: int) -> Floats:
    """Return quantiles of a log-normal distribution cut at a maximum."""
    return np.exp(np.minimum(location + spread * scores, math.log(maximum)))


def _location_with_mean(scores: Floats, mean: float, maximum: int, spread: float) -> float:
    """Return the mean logarithm at which the cut distribution has a mean, by bisection."""
    low, high = math.log(mean) - spread * 6 - 1, math.log(maximum) + spread * 6
    for _ in range(60):
        middle = (low + high) / 2
        if _clipped_lengths(scores, middle, spread, maximum).mean() < mean:
            low = middle
        else:
            high = middle
    return float((low + high) / 2)


def _spread_with_share(scores: Floats, mean: float, maximum: int, clipped_share: float) -> float:
    """Return the spread at which a share of the responses is cut off, by bisection: more are with a larger spread."""
    low, high = _SPREADS
    for _ in range(40):
        middle = (low + high) / 2
        location = _location_with_mean(scores, mean, maximum, middle)
        share = float(np.mean(location + middle * scores >= np.log(maximum)))
        if share < clipped_share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def read_lengths(path: Path, count: int, maximum: int) -> Ints:
    """Return the lengths of some responses in rising order: quantiles of a file with one length per line."""
    try:
        recorded = np.sort([float(line) for line in path.read_text("utf-8").split()])
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} cannot be read: {error}") from None
    except ValueError:
        raise BadFile(f"{path} must have one number of tokens per line, and no heading") from None
    if not len(recorded) or recorded[0] < 1:
        raise BadFile(f"{path} must have numbers of tokens >= 1, one per line")
    if recorded[-1] > maximum:
        raise BadValue(
            f"{path} has a response of {recorded[-1]:,.0f} tokens, but `--max-tokens` leaves {maximum:,} for a response"
        )
    positions = (np.arange(count) + 0.5) / count
    lengths: Ints = np.rint(np.quantile(recorded, positions)).astype(np.int64)
    return lengths

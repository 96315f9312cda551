"""The knee of a Pareto front: the row beyond which a gain in one column costs more and more of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEWEST_ROWS = 3
"""Rows that a front needs to have a knee."""


def find_knee(first: Sequence[float], second: Sequence[float]) -> int | None:
    """Return the index of the knee of a front; None if it has none.

    It is the point that is furthest below the line between both ends, where both columns are logarithms from 0 to 1
    (Satopaa et al. 2011, "Finding a kneedle in a haystack"). The values of both columns are > 0, are better the smaller
    they are, and have the order of the first column.
    """
    if len(first) < FEWEST_ROWS or min(first) <= 0 or min(second) <= 0:
        return None
    logs = np.log([first, second])
    low, high = logs.min(axis=1, keepdims=True), logs.max(axis=1, keepdims=True)
    if (high == low).any():
        return None
    below_line = 1 - ((logs - low) / (high - low)).sum(axis=0)
    knee = int(np.argmax(below_line))
    return knee if below_line[knee] > 0 else None

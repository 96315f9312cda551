"""Pairs of a measured and a predicted time, out of every result that has them: what `accuracy_chart` draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...timing.models import QUANTILES
from .accuracy import Pair

if TYPE_CHECKING:
    from ...calibration.fit import Fit
    from ...calibration.measurements import Measurement
    from ...calibration.validate import Point


def interval_of(predicted_s: float, deviation: float) -> tuple[float, float]:
    """At 90%, from the standard deviation of the logarithm."""
    reach = math.exp(QUANTILES[0.9] * deviation)
    return predicted_s / reach, predicted_s * reach


def network_pairs(points: Iterable[Point]) -> list[Pair]:
    """Held-out steps of whole networks, by precision."""
    return [
        Pair(f"{_step(m)}, {m.gpu}", m.precision, m.time_s, p.predicted_s, interval_of(p.predicted_s, p.deviation))
        for p in points
        for m in [p.measurement]
    ]


def fitted_pairs(measurements: Sequence[Measurement], fit: Fit) -> list[Pair]:
    """Measured steps beside the fit to them; `measurements` in the order of its residuals (ln fitted / measured)."""
    return [
        Pair(_step(m), m.phase, m.time_s, m.time_s * math.exp(float(residual)))
        for m, residual in zip(measurements, fit.residuals)
    ]


def _step(m: Measurement) -> str:
    return f"{m.network}, batch {m.batch_size}, {m.phase}"

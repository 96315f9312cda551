"""Pairs of a measured and a predicted time, out of every result that has them: what `accuracy_chart` draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...timing.terms import QUANTILES
from ...units import format_si
from .accuracy import Pair

if TYPE_CHECKING:
    from ...calibration import validate, validate_scaling
    from ...calibration.fit import Fit
    from ...calibration.measurements import Measurement
    from ...calibration.validate_collectives import ExchangePoint
    from ...calibration.validate_layers import LayerPoint
    from ...calibration.validate_profiles import ProfileRow


def _interval(predicted_s: float, deviation: float) -> tuple[float, float]:
    """At 90 %, from the standard deviation of the logarithm."""
    reach = math.exp(QUANTILES[0.9] * deviation)
    return predicted_s / reach, predicted_s * reach


def network_pairs(points: Iterable[validate.Point]) -> list[Pair]:
    """Held-out steps of whole networks, by precision."""
    return [
        Pair(f"{_step(m)}, {m.gpu}", m.precision, m.time_s, p.predicted_s, _interval(p.predicted_s, p.deviation))
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


def layer_pairs(points: Iterable[LayerPoint]) -> list[Pair]:
    """Held-out layers, by kind."""
    return [
        Pair(f"{e.kind} {e.shape}, {e.phase}, {e.gpu} {e.precision}", e.kind, e.time_s, p.predicted_s,
             _interval(p.predicted_s, p.deviation))
        for p in points for e in [p.layer]
    ]  # fmt: skip


def profile_pairs(rows: Iterable[ProfileRow]) -> list[Pair]:
    """Classes of work in profiles, by pass."""
    return [
        Pair(f"{row.work_class}, batch {row.batch_size}", row.phase, row.measured_s, row.predicted_s,
             (row.low_s, row.high_s))
        for row in rows
    ]  # fmt: skip


def exchange_pairs(points: Iterable[ExchangePoint]) -> list[Pair]:
    """Held-out collectives, by operation."""
    return [
        Pair(f"{format_si(e.message_bytes, 'B')}, {e.workers} workers, {e.platform}, {p.held_out} held out",
             e.operation, e.time_s, p.predicted_s, _interval(p.predicted_s, p.deviation))
        for p in points for e in [p.exchange]
    ]  # fmt: skip


def scaling_pairs(points: Iterable[validate_scaling.Point]) -> list[Pair]:
    """Measured steps of several devices, by platform, held out or not."""
    return [
        Pair(f"{m.network}, batch {m.batch_size} per GPU, {m.workers} workers", _seen(m.platform, p.held_out),
             m.time_s, p.predicted_s)
        for p in points for m in [p.measurement]
    ]  # fmt: skip


def _seen(platform: str, held_out: str) -> str:
    return f"{platform}, {held_out} held out" if held_out else f"{platform}, fitted to it"

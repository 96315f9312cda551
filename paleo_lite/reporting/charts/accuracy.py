"""Predicted against measured, with intervals: what a calibration or a validation comes to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...timing.models import QUANTILES
from .marks import either
from .render import POINTS_AT_MOST, SERIES, SHAPES, altair, decades, values

if TYPE_CHECKING:
    from ...calibration.fit import Fit
    from ...calibration.measurements import Measurement
    from ...calibration.validate import Point

WITHIN = 1.2
"""The dashed lines: predicted a fifth above measured, and measured a fifth above predicted."""

BARS_AT_MOST = 300
"""Intervals of more points than this hide each other and the points: they are not drawn."""

_FEW = (0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
_MANY = (0.5, 0.6, 0.8, 1.0, 1.25, 1.6, 2.0)


class Pair(msgspec.Struct, frozen=True):
    """A measured and a predicted time, the interval of the prediction, what it is of and what it belongs to."""

    name: str
    group: str
    measured_s: float
    predicted_s: float
    interval: tuple[float, float] | None = None


def accuracy_chart(pairs: Sequence[Pair], title: str, subtitle: str = "") -> Any:
    """Predicted over measured time, and their ratio; the lines are equality and a factor of 1.2 to either side.

    Above stands how far all pairs are off, and how many their intervals hold; then what they are (`title`).
    Beyond `POINTS_AT_MOST` every so many points, spread over all measured times, are drawn, and the subtitle says so.
    """
    alt = altair()
    ordered = sorted(pairs, key=lambda pair: (pair.measured_s, pair.name))
    step = -(-len(ordered) // POINTS_AT_MOST) or 1
    kept = ordered[::step]
    groups = sorted({pair.group for pair in kept})
    colour = alt.Color("group:N", title=None, scale=alt.Scale(
        domain=groups, range=[SERIES[index % len(SERIES)] for index in range(len(groups))]))  # fmt: skip
    shape = alt.Shape("group:N", title=None, scale=alt.Scale(
        domain=groups, range=[SHAPES[index // len(SERIES) % len(SHAPES)] if len(groups) > len(SERIES)
                              else SHAPES[index % len(SHAPES)] for index in range(len(groups))]))  # fmt: skip
    rows: list[dict[str, Any]] = [
        {
            "name": pair.name, "group": pair.group, "error": pair.predicted_s / pair.measured_s - 1,
            "measured": pair.measured_s * 1e3, "predicted": pair.predicted_s * 1e3,
            "low": pair.interval and pair.interval[0] * 1e3, "high": pair.interval and pair.interval[1] * 1e3,
        }
        for pair in kept
    ]  # fmt: skip
    data = values(rows)
    low = min(min(row["measured"], row["predicted"]) for row in rows) / 1.5
    high = max(max(row["measured"], row["predicted"]) for row in rows) * 1.5
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    ruled = alt.Axis(format="~g", values=decades(low, high))
    x = alt.X("measured:Q", title=None, scale=scale, axis=ruled)
    y = alt.Y("predicted:Q", title="predicted (ms)", scale=scale, axis=ruled)
    few = len(kept) <= BARS_AT_MOST
    dots = alt.Chart().mark_point(filled=True, size=36 if few else 10, opacity=0.8).encode(
        x=x, y=y, color=colour, shape=shape,
        tooltip=[alt.Tooltip("name:N"), alt.Tooltip("group:N"), alt.Tooltip("measured:Q", format=".4~g"),
                 alt.Tooltip("predicted:Q", format=".4~g"), alt.Tooltip("error:Q", format="+.1%")],
    )  # fmt: skip
    guides = [_guide(alt, x, y, low, high, share) for share in (1.0, WITHIN, 1 / WITHIN)]
    bars = alt.Chart().mark_rule(opacity=0.35).encode(
        x=x, y=alt.Y("low:Q", scale=scale, axis=ruled, title="predicted (ms)"), y2=alt.Y2("high:Q"), color=colour
    )  # fmt: skip
    lines = [subtitle, "dashed: a factor of 1.2 to either side"]
    if few and any(row["low"] is not None for row in rows):
        guides.append(bars)
        lines.append("bars: 90% intervals")
    lines.append(f"{len(kept):,} of {len(ordered):,} points are drawn" if step > 1 else "")
    above = alt.layer(*guides, dots).properties(width=480, height=370)
    below = _ratios(alt, rows, dots.encode(x=x.title("measured (ms)")))
    return alt.vconcat(above, below, data=data).properties(
        title=alt.Title(_point(ordered), subtitle=[title, "; ".join(filter(None, lines))])
    )


def _point(pairs: Sequence[Pair]) -> str:
    """How far predictions are off on average, and how many of their intervals hold what was measured."""
    off = sum(abs(pair.predicted_s / pair.measured_s - 1) for pair in pairs) / len(pairs)
    ends = [(pair.interval, pair.measured_s) for pair in pairs if pair.interval]
    held = sum(interval[0] <= measured_s <= interval[1] for interval, measured_s in ends)
    hold = f"; 90% intervals hold {held / len(ends):.0%}" if ends else ""
    return f"{off:.1%} off on average, of {len(pairs):,} point{'s' * (len(pairs) > 1)}{hold}"


def _guide(alt: Any, x: Any, y: Any, low: float, high: float, share: float) -> Any:
    """Where predicted is so many times measured, from edge to edge."""
    start, end = max(low, low / share), min(high, high / share)
    ends = [{"measured": at, "predicted": at * share} for at in (start, end)]
    dash = [1, 0] if share == 1 else [4, 4]
    return alt.Chart(values(ends)).mark_line(strokeWidth=1, strokeDash=dash).encode(x=x, y=y)


def _ratios(alt: Any, rows: Sequence[dict[str, Any]], dots: Any) -> Any:
    """Predicted over measured, which shows what is small on many decades."""
    furthest = max(max(1 + row["error"], 1 / (1 + row["error"])) for row in rows)
    reach = max(furthest, WITHIN**2) * 1.05
    ticks = [tick for tick in (_MANY if reach < 2 else _FEW) if 1 / reach < tick < reach]
    y = alt.Y("ratio:Q", title="predicted / measured", axis=alt.Axis(format="~g", values=ticks),
              scale=alt.Scale(type="log", domain=[1 / reach, reach], nice=False))  # fmt: skip
    edges = values([{"ratio": 1.0}, {"ratio": WITHIN}, {"ratio": 1 / WITHIN}])
    dash = either(alt.StrokeDashValue, "datum.ratio == 1", [1, 0], [4, 4])
    rules = alt.Chart(edges).mark_rule(strokeWidth=1).encode(y=y, strokeDash=dash)
    return alt.layer(rules, dots.transform_calculate(ratio="1 + datum.error").encode(y=y)).properties(
        width=480, height=140
    )


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

"""Predicted against measured, with intervals: what a calibration or a validation comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from .render import POINTS_AT_MOST, altair, decades, values
from .theme import SERIES, SHAPES


class Pair(msgspec.Struct, frozen=True):
    """A measured and a predicted time, the interval of the prediction, what it is of and what it belongs to."""

    name: str
    group: str
    measured_s: float
    predicted_s: float
    interval: tuple[float, float] | None = None


def accuracy_chart(pairs: Sequence[Pair], title: str, subtitle: str = "") -> Any:
    """Predicted over measured time, logarithmic; the lines are equality and 20 % to either side.

    Beyond `POINTS_AT_MOST` every so many points, spread over all measured times, are drawn, and the subtitle says so.

    Raises
    ------
    BadValue
        If there are no pairs.
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
    base = alt.Chart(data).encode(x=alt.X("measured:Q", title="measured (ms)", scale=scale, axis=ruled), color=colour)
    y = alt.Y("predicted:Q", title="predicted (ms)", scale=scale, axis=ruled)
    bars = base.mark_rule(opacity=0.35).encode(
        y=alt.Y("low:Q", scale=scale, axis=ruled, title="predicted (ms)"), y2="high:Q"
    )
    dots = base.mark_point(filled=True, size=36, opacity=0.8).encode(
        y=y, shape=shape,
        tooltip=["name:N", "group:N", alt.Tooltip("measured:Q", format=".4~g"),
                 alt.Tooltip("predicted:Q", format=".4~g"), alt.Tooltip("error:Q", format="+.1%")],
    )  # fmt: skip
    guides = [
        alt.Chart(alt.Data(values=[{"x": low, "y": low * share}, {"x": high, "y": high * share}]))
        .mark_line(strokeWidth=1, strokeDash=dash, clip=True)
        .encode(x=alt.X("x:Q", scale=scale, axis=ruled), y=alt.Y("y:Q", scale=scale, axis=ruled))
        for share, dash in ((1.0, [1, 0]), (1.2, [4, 4]), (1 / 1.2, [4, 4]))
    ]
    lines = [subtitle] if subtitle else []
    if step > 1:
        lines.append(f"{len(kept)} of {len(ordered)} points are drawn")
    chart = alt.layer(*guides, bars, dots)
    return chart.properties(width=460, height=460, title=alt.Title(title, subtitle=lines or [""]))

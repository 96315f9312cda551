"""Chart of predicted against measured times with intervals, of a calibration or a validation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...calibration.accuracy import GroupAccuracy, coverage, mean_error
from ...text import format_plural
from ...timing.intervals import QUANTILES
from .marks import conditional_value
from .render import POINTS_AT_MOST, SERIES, SHAPES, altair, inline_data, log_ticks

if TYPE_CHECKING:
    from ...calibration.fit import Fit
    from ...calibration.measurements import Measurement
    from ...calibration.validate import Point

WITHIN = 1.2
"""Ratio of the dashed lines, to either side of equality."""

BARS_AT_MOST = 300
"""Maximum number of points with intervals; more intervals would hide one another."""

_FEW = (0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
_MANY = (0.5, 0.6, 0.8, 1.0, 1.25, 1.6, 2.0)


class Pair(msgspec.Struct, frozen=True):
    """A measured and a predicted time in seconds, with the interval of the prediction, its name and its series."""

    name: str
    group: str
    measured_s: float
    predicted_s: float
    interval: tuple[float, float] | None = None


def accuracy_chart(pairs: Sequence[Pair], title: str, subtitle: str = "", heading: str = "") -> Any:
    """Draw predicted over measured time, and their ratio, with lines at equality and at a factor of 1.2.

    The chart's title is `heading`, by default the mean error of all pairs and the coverage of the intervals; `title` is
    its second line. Groups of measurements have a heading of their own, see `held_out_title`. Of more than
    `POINTS_AT_MOST` pairs, every n-th in the order of measured time is drawn, and the subtitle reports it.
    """
    alt = altair()
    ordered = sorted(pairs, key=lambda pair: (pair.measured_s, pair.name))
    step = -(-len(ordered) // POINTS_AT_MOST) or 1
    shown = ordered[::step]
    groups = sorted({pair.group for pair in shown})
    colour, shape = _group_channels(alt, groups)
    rows: list[dict[str, Any]] = [
        {
            "name": pair.name,
            "group": pair.group,
            "error": pair.predicted_s / pair.measured_s - 1,
            "measured": pair.measured_s * 1e3,
            "predicted": pair.predicted_s * 1e3,
            "low": pair.interval and pair.interval[0] * 1e3,
            "high": pair.interval and pair.interval[1] * 1e3,
        }
        for pair in shown
    ]
    data = inline_data(rows)
    low = min(min(row["measured"], row["predicted"]) for row in rows) / 1.5
    high = max(max(row["measured"], row["predicted"]) for row in rows) * 1.5
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    axis = alt.Axis(format="~g", values=log_ticks(low, high))
    x = alt.X("measured:Q", title=None, scale=scale, axis=axis)
    y = alt.Y("predicted:Q", title="predicted (ms)", scale=scale, axis=axis)
    has_few_points = len(shown) <= BARS_AT_MOST
    dots = (
        alt.Chart()
        .mark_point(filled=True, size=36 if has_few_points else 10, opacity=0.8)
        .encode(
            x=x,
            y=y,
            color=colour,
            shape=shape,
            tooltip=[
                alt.Tooltip("name:N"),
                alt.Tooltip("group:N"),
                alt.Tooltip("measured:Q", format=".4~g"),
                alt.Tooltip("predicted:Q", format=".4~g"),
                alt.Tooltip("error:Q", format="+.1%"),
            ],
        )
    )
    guides = [_guide(alt, x, y, low, high, ratio) for ratio in (1.0, WITHIN, 1 / WITHIN)]
    bars = (
        alt.Chart()
        .mark_rule(opacity=0.35)
        .encode(
            x=x, y=alt.Y("low:Q", scale=scale, axis=axis, title="predicted (ms)"), y2=alt.Y2("high:Q"), color=colour
        )
    )
    lines = [subtitle, "dashed: a factor of 1.2 to either side"]
    if has_few_points and any(row["low"] is not None for row in rows):
        guides.append(bars)
        lines.append("bars: 90% intervals")
    lines.append(f"{len(shown):,} of {len(ordered):,} points are drawn" if step > 1 else "")
    above = alt.layer(*guides, dots).properties(width=480, height=370)
    below = _ratio_panel(alt, rows, dots.encode(x=x.title("measured (ms)")))
    return alt.vconcat(above, below, data=data).properties(
        title=alt.Title(heading or _error_title(ordered), subtitle=[title, "; ".join(filter(None, lines))])
    )


def _group_channels(alt: Any, groups: Sequence[str]) -> tuple[Any, Any]:
    """Return the channels of the colour and of the shape of each group; with more groups than colours, which then
    repeat, the shape tells the repetitions apart."""
    colours = [SERIES[index % len(SERIES)] for index in range(len(groups))]
    groups_per_shape = len(SERIES) if len(groups) > len(SERIES) else 1
    shapes = [SHAPES[index // groups_per_shape % len(SHAPES)] for index in range(len(groups))]
    return (
        alt.Color("group:N", title=None, scale=alt.Scale(domain=groups, range=colours)),
        alt.Shape("group:N", title=None, scale=alt.Scale(domain=groups, range=shapes)),
    )


def held_out_title(rows: Sequence[GroupAccuracy]) -> str:
    """Return the mean error of groups of equal weight and the coverage, as the tables of the same rows have them."""
    title = f"Mean error {mean_error(rows):.1%} over {format_plural(len(rows), 'group')} of measurements"
    return f"{title}; 90% intervals contain {coverage(rows):.0%}"


def _error_title(pairs: Sequence[Pair]) -> str:
    """Return the mean error of the predictions and the coverage of their intervals."""
    error = sum(abs(pair.predicted_s / pair.measured_s - 1) for pair in pairs) / len(pairs)
    title = f"Mean error {error:.1%} over {format_plural(len(pairs), 'point')}"
    intervals = [(pair.interval, pair.measured_s) for pair in pairs if pair.interval]
    if intervals:
        inside = sum(interval[0] <= measured_s <= interval[1] for interval, measured_s in intervals)
        title += f"; 90% intervals contain {inside / len(intervals):.0%}"
    return title


def _guide(alt: Any, x: Any, y: Any, low: float, high: float, ratio: float) -> Any:
    """Draw a line at a constant ratio of predicted to measured time."""
    start, end = max(low, low / ratio), min(high, high / ratio)
    ends = [{"measured": measured, "predicted": measured * ratio} for measured in (start, end)]
    dash = [1, 0] if ratio == 1 else [4, 4]
    return alt.Chart(inline_data(ends)).mark_line(strokeWidth=1, strokeDash=dash).encode(x=x, y=y)


def _ratio_panel(alt: Any, rows: Sequence[dict[str, Any]], dots: Any) -> Any:
    """Draw the ratio of predicted to measured time, which shows errors that are invisible over many decades."""
    furthest = max(max(1 + row["error"], 1 / (1 + row["error"])) for row in rows)
    reach = max(furthest, WITHIN**2) * 1.05
    ticks = [tick for tick in (_MANY if reach < 2 else _FEW) if 1 / reach < tick < reach]
    y = alt.Y(
        "ratio:Q",
        title="predicted / measured",
        axis=alt.Axis(format="~g", values=ticks),
        scale=alt.Scale(type="log", domain=[1 / reach, reach], nice=False),
    )
    edges = inline_data([{"ratio": 1.0}, {"ratio": WITHIN}, {"ratio": 1 / WITHIN}])
    dash = conditional_value(alt.StrokeDashValue, "datum.ratio == 1", [1, 0], [4, 4])
    rules = alt.Chart(edges).mark_rule(strokeWidth=1).encode(y=y, strokeDash=dash)
    return alt.layer(rules, dots.transform_calculate(ratio="1 + datum.error").encode(y=y)).properties(
        width=480, height=140
    )


def interval_of(predicted_s: float, deviation: float) -> tuple[float, float]:
    """Return the 90% interval of a log-normal prediction from the standard deviation of its logarithm."""
    reach = math.exp(QUANTILES[0.9] * deviation)
    return predicted_s / reach, predicted_s * reach


def network_pairs(points: Iterable[Point]) -> list[Pair]:
    """Return the pairs of held-out steps of networks, with the precision as series."""
    pairs = []
    for point in points:
        step = point.measurement
        interval = interval_of(point.predicted_s, point.deviation)
        pairs.append(Pair(f"{_step_name(step)}, {step.gpu}", step.precision, step.time_s, point.predicted_s, interval))
    return pairs


def fitted_pairs(measurements: Sequence[Measurement], fit: Fit) -> list[Pair]:
    """Return the pairs of measured and fitted times; residuals are ln(fitted / measured) per measurement."""
    pairs = []
    for step, residual in zip(measurements, fit.residuals):
        pairs.append(Pair(_step_name(step), step.phase, step.time_s, step.time_s * math.exp(float(residual))))
    return pairs


def _step_name(step: Measurement) -> str:
    return f"{step.network}, batch {step.batch_size}, {step.phase}"

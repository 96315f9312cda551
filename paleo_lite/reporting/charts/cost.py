"""Chart of cost against time over devices, with the Pareto front: devices that no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...calibration.ratios import AnyPrediction
from ...errors import BadValue
from ...sweeps.comparison import Comparison, as_comparison
from ..side_by_side import unit_of
from .marks import NUMBER_FORMAT, AxisSpan, left_out_lines, place_labels
from .render import SERIES, altair, inline_data, log_ticks, time_unit

_WIDTH, _HEIGHT = 620, 400
_POINTS_PER_STEP = 40
_NAMES_AT_MOST = 4
"""Maximum number of devices that the subtitle names as left out for one reason."""


def cost_chart(predictions: Comparison | AnyPrediction) -> Any:
    """Draw the cost of a million samples over the time of a step, a point per device with its 90% interval.

    The line of a point is diagonal, because cost and time have a common error. Forecasts only: a bound of the time is
    no expectation of the cost. Raise BadValue if no device has a recorded price, a forecast and enough memory.
    """
    alt = altair()
    predictions = as_comparison(predictions)
    drawn, reasons = select_priced(predictions.answers)
    if not drawn:
        raise BadValue(f"there is nothing to draw: {'; '.join(reasons)}")
    factor, unit = time_unit(sorted(prediction.time_s for prediction in drawn)[len(drawn) // 2])
    front = pareto_front(drawn)
    rows = [_row(prediction, factor, prediction in front) for prediction in drawn]
    rows.sort(key=lambda row: (not row["front"], row["x"]))
    spans = _span(rows, "x", _WIDTH), _span(rows, "y", _HEIGHT)
    titles = f"time of a {drawn[0].time_of} ({unit})", f"USD per million {unit_of(drawn[0])}"
    x = _axis(alt.X, "x", titles[0], spans[0])
    y = _axis(alt.Y, "y", titles[1], spans[1])
    names = ["on the Pareto front", "slower and dearer"]
    colour = alt.Color("group:N", title=None, scale=alt.Scale(domain=names, range=[SERIES[0], SERIES[7]]))
    shape = alt.Shape("group:N", title=None, scale=alt.Scale(domain=names, range=["circle", "square"]))
    for row in rows:
        row["group"] = names[0] if row["front"] else names[1]
    base = alt.Chart(inline_data(rows))
    tooltip = [alt.Tooltip("device:N"), alt.Tooltip("x:Q", format=".4~r", title=titles[0])]
    tooltip += [alt.Tooltip("y:Q", format=".4~r", title=titles[1]), alt.Tooltip("price:Q", title="USD per hour")]
    spread = base.mark_rule(strokeWidth=2, opacity=0.3, clip=True).encode(
        x=_axis(alt.X, "x_low", titles[0], spans[0]),
        x2=alt.X2("x_high:Q"),
        y=_axis(alt.Y, "y_low", titles[1], spans[1]),
        y2=alt.Y2("y_high:Q"),
        color=colour,
    )
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        x=x, y=y, color=colour, shape=shape, tooltip=tooltip
    )
    line = base.transform_filter("datum.front").mark_line(interpolate="step-after", strokeWidth=1)
    labels, labelled = place_labels(rows, *spans, "device", _points_on_line(rows, *spans))
    layers = [spread, line.encode(x=x, y=y, order=alt.Order("x:Q")), points, *labels]
    first = drawn[0]
    lines = [
        f"{first.network}, {first.precision} {first.phase}, batch {first.batch_size}, one device, at recorded prices "
        "per hour",
        "line: Pareto front; lines through points: 90% intervals",
        *left_out_lines([*reasons, *predictions.left_out]),
    ]
    if labelled < len(rows):
        lines.append(f"{labelled} of {len(rows)} points are labelled, where there is room; HTML has tooltips for all")
    title = alt.Title(_cost_title(drawn), subtitle=lines)
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=title)


def select_priced(predictions: Sequence[AnyPrediction]) -> tuple[list[AnyPrediction], list[str]]:
    """Return the forecasts that fit into memory, on devices with a recorded price, and reasons for the others."""
    drawn = []
    left_out: dict[str, list[str]] = {}
    for prediction in {prediction.device.id: prediction for prediction in predictions}.values():
        if prediction.device.rent_usd_per_h is None or prediction.throughput_per_s is None:
            left_out.setdefault("no recorded price", []).append(prediction.device.id)
        elif prediction.memory is not None and not prediction.memory.fits:
            left_out.setdefault("does not fit into memory", []).append(prediction.device.id)
        elif not prediction.is_forecast:
            left_out.setdefault("a bound, not a forecast", []).append(prediction.device.id)
        else:
            drawn.append(prediction)
    reasons = []
    for reason, devices in left_out.items():
        suffix = f" and {len(devices) - _NAMES_AT_MOST} more" if len(devices) > _NAMES_AT_MOST else ""
        reasons.append(f"{', '.join(devices[:_NAMES_AT_MOST])}{suffix} ({reason})")
    return drawn, reasons


def pareto_front(predictions: Sequence[AnyPrediction]) -> list[AnyPrediction]:
    """Return the predictions for which no other one is at least as fast and cheaper, or faster and as cheap."""
    front: list[AnyPrediction] = []
    for prediction in sorted(predictions, key=lambda candidate: (candidate.time_s, candidate.usd_per_million)):
        if not front or _cost(prediction) < _cost(front[-1]):
            front.append(prediction)
    return front


def _cost(prediction: AnyPrediction) -> float:
    cost = prediction.usd_per_million
    assert cost is not None
    return cost


def _row(prediction: AnyPrediction, factor: float, on_front: bool) -> dict[str, Any]:
    """Return the row of a device: time, cost, and the ends of their intervals."""
    cost, time_s = _cost(prediction), prediction.time_s
    low_s, high_s = prediction.interval or (time_s, time_s)
    return {
        "device": prediction.device.id,
        "x": time_s * factor,
        "y": cost,
        "x_low": low_s * factor,
        "x_high": high_s * factor,
        "y_low": cost * low_s / time_s,
        "y_high": cost * high_s / time_s,
        "price": prediction.device.rent_usd_per_h,
        "front": on_front,
    }


def _points_on_line(rows: Sequence[dict[str, Any]], x: AxisSpan, y: AxisSpan) -> list[dict[str, float]]:
    """Return points on the steps of the front, a few pixels apart, which labels must not cover."""
    points = []
    for row, following in pairwise(row for row in rows if row["front"]):
        for part in range(_POINTS_PER_STEP):
            share = part / _POINTS_PER_STEP
            x_fraction = x.fraction(row["x"]) * (1 - share) + x.fraction(following["x"]) * share
            y_fraction = y.fraction(row["y"]) * (1 - share) + y.fraction(following["y"]) * share
            points.append({"x": x.value_at(x_fraction), "y": row["y"]})
            points.append({"x": following["x"], "y": y.value_at(y_fraction)})
    return points


def _span(rows: Sequence[dict[str, Any]], key: str, pixels: int) -> AxisSpan:
    """Return a logarithmic axis for a field and the ends of its interval."""
    numbers = [row[name] for row in rows for name in (f"{key}_low", f"{key}_high")]
    return AxisSpan(min(numbers) / 1.3, max(numbers) * 1.3, pixels)


def _axis(channel: Any, field: str, title: str, span: AxisSpan) -> Any:
    alt = altair()
    scale = alt.Scale(type="log", domain=[span.low, span.high], nice=False)
    axis = alt.Axis(values=log_ticks(span.low, span.high), format=NUMBER_FORMAT)
    return channel(f"{field}:Q", title=f"{title}, low is better", scale=scale, axis=axis)


def _cost_title(predictions: Sequence[AnyPrediction]) -> str:
    """Return the fastest and the cheapest device."""
    if len(predictions) == 1:
        return (
            f"A million {unit_of(predictions[0])} on {predictions[0].device.id} cost {_cost(predictions[0]):,.3g} USD"
        )
    fastest = min(predictions, key=lambda prediction: prediction.time_s).device.id
    cheapest = min(predictions, key=_cost).device.id
    if fastest == cheapest:
        return f"{fastest} is the fastest and the cheapest"
    return f"{fastest} is the fastest, {cheapest} the cheapest"

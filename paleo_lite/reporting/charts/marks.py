"""Elements shared by all charts: number formats, hollow marks for bounds, colours of series, labels of points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Any, NamedTuple

import numpy as np

from .render import SERIES, SHAPES, altair, inline_data, log_ticks

NUMBER_FORMAT = ",~r"
"""Format of numbers on axes: 0.25 and 2,000, without SI prefixes."""

SI_LABELS = "datum.value ? format(datum.value, '.3~s') : '0'"
"""Label expression of counts and bytes on axes: 2G, and 0 without a prefix."""

BOUNDS_LEGEND = "hollow, dashed: bounds from the data sheet, not forecasts"
"""Subtitle line of every chart that contains bounds."""

SERIES_AT_MOST = 12
"""Maximum number of curves or devices in a chart."""

CHARACTER_WIDTH = 6.0
"""Width in pixels of a character of a label."""

_LABEL_HEIGHT = 12.0


def left_out_lines(left_out: Sequence[str]) -> list[str]:
    """Return a subtitle line per reason why something is not drawn; from the fourth reason on, only their number."""
    reasons = list(dict.fromkeys(left_out))
    if len(reasons) > 3:
        return [*(f"left out: {reason}" for reason in reasons[:2]), f"and {len(reasons) - 2} more"]
    return [f"left out: {reason}" for reason in reasons]


def hollow_encoding(colour: Any, condition: str = "datum.bound", dashed: bool = False) -> dict[str, Any]:
    """Return the encoding channels that draw bounds hollow, from the colour channel of the marks.

    The condition is a Vega expression that is true for bounds; their edges may be dashed, as for bars.
    """
    alt = altair()
    channels = {
        "fillOpacity": conditional_value(alt.FillOpacityValue, condition, 0.1, 1),
        "strokeWidth": conditional_value(alt.StrokeWidthValue, condition, 1.5, 0),
        "stroke": alt.Stroke(**colour.to_dict()),
    }
    if dashed:
        channels["strokeDash"] = conditional_value(alt.StrokeDashValue, condition, [4, 3], [1, 0])
    return channels


def conditional_value(channel: Any, condition: str, if_true: Any, if_false: Any) -> Any:
    """Return a channel with one value where a condition holds, and another elsewhere.

    Channels are constructed from their classes in all charts: for a plain string or dict, altair searches its whole
    schema for the class, which takes 20 ms.
    """
    return channel(if_false, condition={"test": condition, "value": if_true})


def assign_colours_and_shapes(names: Sequence[str], order: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return a colour and a shape for each name.

    They depend on the position of the name in `order`, so that a name looks the same in all charts of a page. Colours
    repeat after `SERIES`; the combination with a shape does not.
    """
    ordered = [*dict.fromkeys((*order, *names))]
    positions = [ordered.index(name) for name in names]
    count = len(SERIES)
    colours = [SERIES[position % count] for position in positions]
    shapes = [SHAPES[(position + position // count) % len(SHAPES)] for position in positions]
    return colours, shapes


_DECADE = 10.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


def scale_of(numbers: Sequence[float], margins: tuple[float, float]) -> tuple[Any, Any]:
    """Return the scale and the axis of numbers: logarithmic, with margins below and above, over more than a decade."""
    alt = altair()
    low, high = min(numbers, default=1.0), max(numbers, default=1.0)
    if high <= _DECADE * low:
        return alt.Scale(zero=True), alt.Axis(format=NUMBER_FORMAT)
    domain = [low / margins[0], high * margins[1]]
    scale = alt.Scale(type="log", domain=domain, nice=False)
    return scale, alt.Axis(format=NUMBER_FORMAT, values=log_ticks(low, high))


def title_of_axis(title: str, scale: Any) -> str:
    """Return the title of an axis, which says whether the scale is logarithmic."""
    return f"{title}, logarithmic" if scale.to_dict().get("type") == "log" else title


class AxisSpan(NamedTuple):
    """Range of an axis, its length in pixels, and whether it is logarithmic."""

    low: float
    high: float
    pixels: int
    log: bool = True

    def fraction(self, value: float) -> float:
        """Return the position of a value on the axis, 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = log10(low), log10(high), log10(value)
        return (value - low) / (high - low)

    def value_at(self, fraction: float) -> float:
        """Return the value at a position on the axis, 0 to 1."""
        if self.log:
            return float(self.low * (self.high / self.low) ** fraction)
        return self.low + (self.high - self.low) * fraction


def place_labels(
    rows: Iterable[Mapping[str, Any]],  # points to label, with fields ``x`` and ``y``, in the order of priority
    x: AxisSpan,
    y: AxisSpan,
    key: str,  # field of the label
    others: Iterable[Mapping[str, Any]] = (),  # further points that no label may cover
    distance: int = 8,  # of a label from its point in pixels
) -> tuple[list[Any], int]:
    """Place labels next to points; a label that would cover another label or a point is omitted.

    Return the layers of the chart and the number of labels placed.
    """
    alt, rows = altair(), list(rows)
    points = []
    for row in (*rows, *others):
        points.append((x.fraction(row["x"]) * x.pixels, (1 - y.fraction(row["y"])) * y.pixels))
    occupied = np.zeros((len(points) + len(rows), 4))  # boxes: left, top, right, bottom; empty ones cover nothing
    occupied[: len(points)] = np.reshape(points, (-1, 2))[:, [0, 1, 0, 1]] + [-4, -4, 4, 4]
    labels: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    placed = 0
    for row, (left, top) in zip(rows, points):
        width = CHARACTER_WIDTH * len(row[key])
        for align, dx, dy in _label_offsets(distance):
            start = left + dx - {"left": 0.0, "right": width, "center": width / 2}[align]
            box = start, top + dy - _LABEL_HEIGHT / 2, start + width, top + dy + _LABEL_HEIGHT / 2
            is_inside = box[0] >= 0 and box[2] <= x.pixels and box[1] >= 0 and box[3] <= y.pixels
            if is_inside and not _covers_any(box, occupied[: len(points) + placed]):
                occupied[len(points) + placed] = box
                labels.setdefault((align, dx, dy), []).append({"x": row["x"], "y": row["y"], "label": row[key]})
                placed += 1
                break
    layers = _leaders(alt, labels, x, y)
    for (align, dx, dy), texts in labels.items():
        mark = alt.Chart(inline_data(texts)).mark_text(align=align, dx=dx, dy=dy, fontSize=10)
        layers.append(mark.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), text=alt.Text("label:N")))
    return layers, placed


_BESIDE = 13
"""Pixels above or below its point up to which a label stands beside it."""


def _leaders(
    alt: Any, labels: Mapping[tuple[str, int, int], Sequence[Mapping[str, Any]]], x: AxisSpan, y: AxisSpan
) -> list[Any]:
    """Return thin lines from points to their labels that do not stand beside them."""
    ends = []
    for (_, dx, dy), texts in labels.items():
        if not dx or abs(dy) <= _BESIDE:
            continue
        for text in texts:
            end_x = x.value_at(x.fraction(text["x"]) + dx / x.pixels)
            end_y = y.value_at(y.fraction(text["y"]) - dy / y.pixels)
            ends.append({"x": text["x"], "y": text["y"], "end_x": end_x, "end_y": end_y})
    if not ends:
        return []
    rule = alt.Chart(inline_data(ends)).mark_rule(strokeWidth=0.7, color="#606060")
    return [rule.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), x2=alt.X2("end_x:Q"), y2=alt.Y2("end_y:Q"))]


def _label_offsets(distance: int) -> list[tuple[str, int, int]]:
    """Return candidate positions of a label as (alignment, dx, dy) in pixels, the nearest first."""
    offsets = [
        ("left", distance, 0),
        ("right", -distance, 0),
        ("center", 0, -distance - 5),
        ("center", 0, distance + 5),
    ]
    for dy in (15, -15, 30, -30):
        offsets += [("left", distance, dy), ("right", -distance, dy)]
    return offsets


def _covers_any(box: tuple[float, ...], boxes: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    """Return whether a box overlaps any of several boxes, an array of shape (boxes, 4)."""
    left, top, right, bottom = boxes.T
    return bool(((box[0] < right) & (left < box[2]) & (box[1] < bottom) & (top < box[3])).any())

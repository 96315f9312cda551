"""Roofline charts: attained FLOP/s over arithmetic intensity, limited by peaks and memory bandwidth.

Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import BadValue
from ...timing import Prediction
from ...timing.terms import seconds_by_limit
from ...units import format_si
from ..formats import format_percent
from .layers import prediction_subtitle
from .marks import CHARACTER_WIDTH, NUMBER_FORMAT, SI_LABELS, AxisSpan, hollow_encoding, place_labels
from .render import POINTS_AT_MOST, SHAPES, altair, group_colour, group_of, inline_data, log_ticks

NAMED = 5
"""Number of dots with a label, those with the longest times."""

ABOVE_THE_ROOF = "faster algorithms than counted (Winograd, FFT), or data in caches"
_FEWER_MULTIPLICATIONS = "convolutions above the roof: Winograd multiplies less than counted"
_FASTER_CLOCK = "above the peak: a faster clock or another algorithm"
_IN_CACHES = "above the slope: data in caches"

_WIDTH, _HEIGHT = 620, 400
_MERGE_RESOLUTION = 25  # dots within a factor of e^(1/25), 4%, in both directions are merged
_TOLERANCE = 1.02  # a dot above the roof by less is taken to be on it
_MAX_NAME_LENGTH = 26


class Dot(msgspec.Struct, frozen=True):
    """A layer or kernel: kind; FLOPs, bytes and seconds of its counted calls; origin; whether it is a bound."""

    name: str
    kind: str
    flops: float
    bytes: float
    time_s: float
    origin: str = "predicted"
    is_bound: bool = False
    all_s: float | None = None

    @property
    def total_s(self) -> float:
        """Seconds of all calls, including those without counts."""
        return self.time_s if self.all_s is None else self.all_s


def roofline_chart(
    dots: Sequence[Dot],
    peaks: Sequence[tuple[str, float]],  # labels and FLOP/s
    bandwidth_bytes_per_s: float,
    title: str,
    subtitle: Sequence[str],
    noun: str = "layer",  # type of the dots: "layer" or "kernel"
) -> Any:
    """Draw a roofline; the subtitle reports how many dots without FLOPs, bytes or time are not drawn.

    Raise BadValue if no dot can be drawn.
    """
    alt = altair()
    drawable = [dot for dot in dots if dot.flops > 0 and dot.bytes > 0 and dot.time_s > 0]
    if not drawable:
        raise BadValue(f"there is nothing to draw: no {noun} has FLOPs, bytes and time")
    shown = sorted(drawable, key=lambda dot: -dot.total_s)[:POINTS_AT_MOST]
    total = sum(dot.total_s for dot in dots)
    lines = [*subtitle, _omission_line(noun, dots, drawable, len(shown), total)]
    rows = _merge_dots(shown, total)
    intensities = [row["x"] for row in rows] + [peak / bandwidth_bytes_per_s for _, peak in peaks]
    rates = [row["y"] for row in rows] + [peak for _, peak in peaks]
    x_span = AxisSpan(min(intensities) / 2, max(intensities) * 4, _WIDTH)
    y_span = AxisSpan(min(rates) / 3, max(rates) * 3, _HEIGHT)
    spans = x_span, y_span
    marks = _draw_dots(alt, rows, shown, noun, *spans)
    above = [row for row in rows if row["y"] > _TOLERANCE * min(peaks[0][1], row["x"] * bandwidth_bytes_per_s)]
    if above:
        lines.append(f"above the roof ({sum(row['share'] for row in above):.0%} of the time): {ABOVE_THE_ROOF}")
    roof = []
    for step in range(61):
        intensity = x_span.value_at(step / 60)
        roof += [{"x": intensity, "y": min(intensity * bandwidth_bytes_per_s, peak)} for _, peak in peaks]
    labels, _ = place_labels(rows[:NAMED], *spans, "label", [*rows[NAMED:], *roof], distance=14)
    layers = [*_roofs(alt, peaks, bandwidth_bytes_per_s, *spans), marks, *labels]
    if above:
        layers.append(_reasons_above(alt, above, peaks[0][1], *spans))
    return alt.layer(*layers).properties(
        width=_WIDTH, height=_HEIGHT, title=alt.Title(title, subtitle=[line for line in lines if line])
    )


def _draw_dots(
    alt: Any, rows: Sequence[dict[str, Any]], dots: Sequence[Dot], noun: str, x_span: AxisSpan, y_span: AxisSpan
) -> Any:
    """Draw the rows of the merged dots: colour by kind, area by share of the time, shape by origin."""
    x = alt.X(
        "x:Q",
        title="arithmetic intensity (FLOP/byte)",
        scale=alt.Scale(type="log", domain=[x_span.low, x_span.high], nice=False),
        axis=alt.Axis(values=log_ticks(x_span.low, x_span.high), format=NUMBER_FORMAT),
    )
    y = alt.Y(
        "y:Q",
        title="attained FLOP/s",
        scale=alt.Scale(type="log", domain=[y_span.low, y_span.high], nice=False),
        axis=alt.Axis(values=log_ticks(y_span.low, y_span.high), labelExpr=SI_LABELS),
    )
    origins = sorted({dot.origin for dot in dots})
    shapes = list(SHAPES[: len(origins)])
    colour = group_colour([dot.kind for dot in dots], f"kind of {noun}")
    return (
        alt.Chart(inline_data(rows))
        .mark_point(filled=True, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=colour,
            **hollow_encoding(colour),
            size=alt.Size(
                "share:Q",
                title="share of time",
                scale=alt.Scale(range=[15, 500]),
                legend=alt.Legend(format="%", tickCount=3),
            ),
            shape=alt.Shape(
                "origin:N",
                scale=alt.Scale(domain=origins, range=shapes),
                title=None,
                legend=alt.Legend() if len(origins) > 1 else None,
            ),
            tooltip=[
                alt.Tooltip("name:N"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("time:N"),
                alt.Tooltip("share:Q", format=".1%"),
                alt.Tooltip("x:Q", format=".3~r", title="FLOP per byte"),
                alt.Tooltip("attained:N"),
            ],
        )
    )


def _merge_dots(dots: Sequence[Dot], total: float) -> list[dict[str, Any]]:
    """Return the drawn dots, longest first; dots of one kind at the same position are merged into their sum."""
    groups: dict[tuple[Any, ...], list[Dot]] = {}
    for dot in dots:
        x = round(_MERGE_RESOLUTION * math.log(dot.flops / dot.bytes))
        y = round(_MERGE_RESOLUTION * math.log(dot.flops / dot.time_s))
        groups.setdefault((dot.kind, dot.origin, x, y), []).append(dot)
    rows = []
    for group in groups.values():
        first, time_s = group[0], sum(dot.total_s for dot in group)
        suffix = f" and {len(group) - 1} more" if len(group) > 1 else ""
        rate = first.flops / first.time_s
        label = f"{_shorten_kernel_name(first.name)}{suffix}"
        if len(group) > 2:
            label = f"{len(group)} × {first.kind.replace('_', ' ')}"
        rows.append(
            {
                "name": f"{first.name}{suffix}",
                "label": label,
                "kind": first.kind,
                "group": group_of(first.kind),
                "origin": first.origin,
                "bound": first.is_bound,
                "x": first.flops / first.bytes,
                "y": rate,
                "attained": format_si(rate, "FLOP/s", 3),
                "share": time_s / total,
                "time": format_si(time_s, "s"),
            }
        )
    return sorted(rows, key=lambda row: -row["share"])


def _shorten_kernel_name(name: str) -> str:
    """Return the name of a kernel without namespaces and arguments, at most `_MAX_NAME_LENGTH` characters."""
    last = name.split("<", maxsplit=1)[0].split("(", maxsplit=1)[0].rsplit("::", 1)[-1] or name
    return last if len(last) <= _MAX_NAME_LENGTH else f"{last[: _MAX_NAME_LENGTH - 1]}…"


def _roofs(
    alt: Any, peaks: Sequence[tuple[str, float]], bandwidth_bytes_per_s: float, x: AxisSpan, y: AxisSpan
) -> list[Any]:
    """Draw the bandwidth limit up to the highest ridge point, and the limit of each peak right of its ridge point."""
    top = max(peak for _, peak in peaks)
    low = max(x.low, y.low / bandwidth_bytes_per_s)
    slope = [{"x": low, "y": low * bandwidth_bytes_per_s}, {"x": top / bandwidth_bytes_per_s, "y": top}]
    layers = [
        alt.Chart(inline_data(slope)).mark_line(strokeWidth=1.5, clip=True).encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
    ]
    for label, peak in peaks:
        ridge = peak / bandwidth_bytes_per_s
        flat = [{"x": ridge, "y": peak}, {"x": x.high, "y": peak}]
        roof = alt.Chart(inline_data(flat)).encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
        layers.append(roof.mark_line(strokeWidth=1.5, clip=True))
        text = f"{label} {format_si(peak, 'FLOP/s')}, ridge {ridge:.3g}"
        # Left of the ridge point, where no dots are, if the label fits there; else above the line.
        fits_left = x.fraction(ridge) * x.pixels > CHARACTER_WIDTH * len(text) + 7
        position = inline_data([{"x": ridge if fits_left else x.high, "y": peak, "label": text}])
        dx, dy = (-7, 0) if fits_left else (-2, -8)
        label_mark = alt.Chart(position).mark_text(align="right", dx=dx, dy=dy)
        layers.append(label_mark.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), text=alt.Text("label:N")))
    return layers


def _reasons_above(alt: Any, above: Sequence[dict[str, Any]], peak: float, x: AxisSpan, y: AxisSpan) -> Any:
    """Draw why dots are above the roof, as lines of text in the upper right corner, above all dots."""
    over_peak = {row["group"] == "convolution" for row in above if row["y"] > _TOLERANCE * peak}
    reasons = {
        _FEWER_MULTIPLICATIONS: True in over_peak,
        _FASTER_CLOCK: False in over_peak,
        _IN_CACHES: any(row["y"] <= _TOLERANCE * peak for row in above),
    }
    text = [reason for reason, holds in reasons.items() if holds]
    corner = alt.Chart(inline_data([{"x": x.high, "y": y.high, "label": text}]))
    mark = corner.mark_text(align="right", baseline="top", dx=-2, dy=2, fontStyle="italic")
    return mark.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), text=alt.Text("label:N"))


def _omission_line(noun: str, dots: Sequence[Dot], drawable: Sequence[Dot], shown: int, total: float) -> str:
    """Return how many dots are not drawn, and why."""
    parts = []
    if len(drawable) < len(dots):
        share = 1 - sum(dot.total_s for dot in drawable) / total
        time = f" ({format_percent(share)} of the time)" if share > 1e-9 else ""
        missing = f"{len(dots) - len(drawable)} of {len(dots)} {noun}s{time}"
        parts.append(f"not drawn: {missing} with zero or unknown FLOPs, bytes or time")
    if shown < len(drawable):
        parts.append(f"the {shown} longest of {len(drawable)} {noun}s are drawn")
    return "; ".join(parts)


def prediction_roofline(prediction: Prediction) -> Any:
    """Draw the layers of a prediction under the peaks of the device in its precision."""
    seconds = seconds_by_limit(prediction.terms, prediction.model.uses_memory)
    largest = max(seconds, key=lambda bound: seconds[bound])
    title = f"{largest.capitalize()} accounts for {seconds[largest] / prediction.time_s:.0%} of the time"
    dots = [
        Dot(
            row["name"],
            row["kind"],
            row["flops"] or 0,
            row["bytes"],
            row["time_s"],
            is_bound=not prediction.is_forecast,
        )
        for row in prediction.rows()
    ]
    rates = [prediction.peak]
    if prediction.vector_peak.per_s != prediction.peak.per_s:
        rates.append(prediction.vector_peak)
    peaks = [(f"{rate.peak.precision} {rate.peak.unit} peak", rate.per_s) for rate in rates]
    memory = f"memory {format_si(prediction.bandwidth_bytes_per_s, 'B/s')}"
    subtitle = [*prediction_subtitle(prediction), memory]
    return roofline_chart(dots, peaks, prediction.bandwidth_bytes_per_s, title, subtitle)

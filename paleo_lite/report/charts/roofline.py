"""The roofline: attained FLOP/s over arithmetic intensity, under the peaks and the memory bandwidth.

Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import BadValue
from ...timing import Prediction
from ...units import format_si
from .render import POINTS_AT_MOST, altair, decades, group_colour, values
from .theme import SHAPES, group_of


class Dot(msgspec.Struct, frozen=True):
    """A layer or kernel: its kind, FLOPs, bytes, seconds, and whether those are predicted or measured."""

    name: str
    kind: str
    flops: float
    bytes: float
    time_s: float
    origin: str = "predicted"


def roofline_chart(
    dots: Sequence[Dot],
    peaks: Sequence[tuple[str, float]],
    bandwidth_bytes_per_s: float,
    title: str,
    subtitle: str,
    what: str = "layer",
) -> Any:
    """The chart; dots without FLOPs, bytes or time have no place in it and are counted in the subtitle.

    Parameters
    ----------
    dots : sequence of Dot
    peaks : sequence of (label, FLOP/s)
    bandwidth_bytes_per_s : float
    title, subtitle : str
    what : str
        A dot is: ``layer`` or ``kernel``.

    Raises
    ------
    BadValue
        If no dot can be drawn.
    """
    alt = altair()
    placed = [dot for dot in dots if dot.flops > 0 and dot.bytes > 0 and dot.time_s > 0]
    if not placed:
        raise BadValue(f"nothing to draw in a roofline: no {what} has FLOPs, bytes and time")
    kept = sorted(placed, key=lambda dot: -dot.time_s)[:POINTS_AT_MOST]
    total = sum(dot.time_s for dot in dots)
    said = [subtitle, _left_out(len(dots), len(placed), len(kept))]
    rows: list[dict[str, Any]] = [
        {
            "name": dot.name, "kind": dot.kind, "group": group_of(dot.kind), "origin": dot.origin,
            "intensity": dot.flops / dot.bytes, "rate": dot.flops / dot.time_s, "share": dot.time_s / total,
            "time": format_si(dot.time_s, "s"),
        }
        for dot in kept
    ]  # fmt: skip
    intensities = [row["intensity"] for row in rows] + [peak / bandwidth_bytes_per_s for _, peak in peaks]
    low, high = min(intensities) / 2, max(intensities) * 4
    x = alt.X("intensity:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False),
              title="arithmetic intensity (FLOP per byte)",
              axis=alt.Axis(format="~g", values=decades(low, high)))  # fmt: skip
    rates = [row["rate"] for row in rows] + [peak for _, peak in peaks]
    floor, roof = min(rates) / 3, max(rates) * 3
    y = alt.Y("rate:Q", scale=alt.Scale(type="log", domain=[floor, roof], nice=False),
              title="attained (FLOP/s)", axis=alt.Axis(format="~s", values=decades(floor, roof)))  # fmt: skip
    origins = sorted({dot.origin for dot in kept})
    marks = (
        alt.Chart(values(rows))
        .mark_point(filled=True, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=group_colour([dot.kind for dot in kept], f"kind of {what}"),
            size=alt.Size("share:Q", title="share of time", scale=alt.Scale(range=[15, 500]),
                          legend=alt.Legend(format="%", tickCount=3)),
            shape=alt.Shape("origin:N", scale=alt.Scale(domain=origins, range=list(SHAPES[: len(origins)])),
                            title=None, legend=alt.Legend() if len(origins) > 1 else None),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("kind:N"), alt.Tooltip("time:N"),
                     alt.Tooltip("share:Q", format=".1%"), alt.Tooltip("intensity:Q", format=".3~s"),
                     alt.Tooltip("rate:Q", format=".3~s")],
        )
    )  # fmt: skip
    low = max(low, floor / bandwidth_bytes_per_s)
    roofs = _roofs(alt, peaks, bandwidth_bytes_per_s, low, high)
    lines = [line for line in said if line]
    return alt.layer(*roofs, marks).properties(width=620, height=400, title=alt.Title(title, subtitle=lines))


def _roofs(
    alt: Any, peaks: Sequence[tuple[str, float]], bandwidth_bytes_per_s: float, low: float, high: float
) -> list[Any]:
    """The slope of the bandwidth up to the highest ridge, and a flat roof for each peak from its ridge on."""
    top = max(peak for _, peak in peaks)
    slope = [
        {"intensity": low, "rate": low * bandwidth_bytes_per_s},
        {"intensity": top / bandwidth_bytes_per_s, "rate": top},
    ]
    layers = [
        alt.Chart(alt.Data(values=slope)).mark_line(strokeWidth=1.5, clip=True).encode(x="intensity:Q", y="rate:Q")
    ]
    for label, peak in peaks:
        ridge = peak / bandwidth_bytes_per_s
        flat = [{"intensity": ridge, "rate": peak}, {"intensity": high, "rate": peak}]
        roof = alt.Chart(alt.Data(values=flat)).encode(x="intensity:Q", y="rate:Q")
        layers.append(roof.mark_line(strokeWidth=1.5, clip=True))
        named = f"{label} {format_si(peak, 'FLOP/s')}, ridge {ridge:.3g}"
        # Left of its ridge a peak is out of reach, so that no dot covers its name.
        corner = alt.Data(values=[{"intensity": ridge, "rate": peak, "label": named}])
        text = alt.Chart(corner).mark_text(align="right", dx=-7).encode(x="intensity:Q", y="rate:Q", text="label:N")
        layers.append(text)
    return layers


def _left_out(given: int, placed: int, kept: int) -> str:
    parts = []
    if placed < given:
        parts.append(f"{given - placed} without FLOPs, bytes or time are not drawn")
    if kept < placed:
        parts.append(f"the {kept} that take longest of {placed} are drawn")
    return "; ".join(parts)


def prediction_roofline(prediction: Prediction) -> Any:
    """The layers of a prediction under the device's peaks for its precision.

    Raises
    ------
    BadValue
        If the prediction has no layers with FLOPs, bytes and time.
    """
    dots = [Dot(row["name"], row["kind"], row["flops"] or 0, row["bytes"], row["time_s"]) for row in prediction.rows()]
    held = [prediction.peak] if prediction.peak.per_s == prediction.vector_peak.per_s else [
        prediction.peak, prediction.vector_peak]  # fmt: skip
    peaks = [(f"{rate.peak.precision} {rate.peak.unit} peak", rate.per_s) for rate in held]
    title = f"{prediction.network} on {prediction.device.name}, {prediction.precision} {prediction.phase}"
    subtitle = (
        f"batch {prediction.batch_size}, {prediction.model.name} model, {format_si(prediction.time_s, 's')}; "
        f"memory {format_si(prediction.bandwidth_bytes_per_s, 'B/s')}"
    )
    return roofline_chart(dots, peaks, prediction.bandwidth_bytes_per_s, title, subtitle)

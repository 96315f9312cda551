"""The roofline: attained FLOP/s over arithmetic intensity, under the peaks and the memory bandwidth.

Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import BadValue
from ...timing import Prediction
from ...timing.models import bound_seconds
from ...units import format_si
from ..document import say_percent
from .layers import said_of
from .marks import LETTER, PLAIN, PREFIXED, Span, hollow, names_beside
from .render import POINTS_AT_MOST, SHAPES, altair, decades, group_colour, group_of, values

NAMED = 5
"""Dots, those that take longest, that have their name beside them where there is room."""

ABOVE_THE_ROOF = "fewer operations than are counted (Winograd, Fourier), or data that stays in caches"

_WIDTH, _HEIGHT = 620, 400
_NEAR = 25  # dots closer than e^(1/25), 4%, both ways lie on one another
_ABOVE = 1.02
_NAME = 26


class Dot(msgspec.Struct, frozen=True):
    """A layer or kernel: kind, FLOPs, bytes and seconds of what was counted of it, from where, and if a bound."""

    name: str
    kind: str
    flops: float
    bytes: float
    time_s: float
    origin: str = "predicted"
    is_bound: bool = False
    all_s: float | None = None

    @property
    def taken_s(self) -> float:
        """Seconds of all its calls, also of those that were not counted."""
        return self.time_s if self.all_s is None else self.all_s


def roofline_chart(
    dots: Sequence[Dot],
    peaks: Sequence[tuple[str, float]],
    bandwidth_bytes_per_s: float,
    title: str,
    subtitle: Sequence[str],
    what: str = "layer",
) -> Any:
    """The chart; dots without FLOPs, bytes or time have no place in it and are counted in the subtitle.

    Parameters
    ----------
    peaks : sequence of (label, FLOP/s)
    subtitle : sequence of str
        Its lines.
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
    kept = sorted(placed, key=lambda dot: -dot.taken_s)[:POINTS_AT_MOST]
    total = sum(dot.taken_s for dot in dots)
    said = [*subtitle, _left_out(what, dots, placed, len(kept), total)]
    rows = _stacked(kept, total)
    intensities = [row["x"] for row in rows] + [peak / bandwidth_bytes_per_s for _, peak in peaks]
    rates = [row["y"] for row in rows] + [peak for _, peak in peaks]
    spans = Span(min(intensities) / 2, max(intensities) * 4, _WIDTH), Span(min(rates) / 3, max(rates) * 3, _HEIGHT)
    titles = "arithmetic intensity (FLOP per byte)", "attained (FLOP/s)"
    written = {"format": PLAIN}, {"labelExpr": PREFIXED}
    x, y = (
        kind(f"{field}:Q", title=title, scale=alt.Scale(type="log", domain=[span.low, span.high], nice=False),
             axis=alt.Axis(values=decades(span.low, span.high), **how))
        for kind, field, title, span, how in zip((alt.X, alt.Y), "xy", titles, spans, written)
    )  # fmt: skip
    origins = sorted({dot.origin for dot in kept})
    shapes = list(SHAPES[: len(origins)])
    colour = group_colour([dot.kind for dot in kept], f"kind of {what}")
    marks = (
        alt.Chart(values(rows))
        .mark_point(filled=True, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=colour,
            **hollow(colour),
            size=alt.Size("share:Q", title="share of time", scale=alt.Scale(range=[15, 500]),
                          legend=alt.Legend(format="%", tickCount=3)),
            shape=alt.Shape("origin:N", scale=alt.Scale(domain=origins, range=shapes),
                            title=None, legend=alt.Legend() if len(origins) > 1 else None),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("kind:N"), alt.Tooltip("time:N"),
                     alt.Tooltip("share:Q", format=".1%"),
                     alt.Tooltip("x:Q", format=".3~r", title="FLOP per byte"),
                     alt.Tooltip("attained:N")],
        )
    )  # fmt: skip
    over = [row for row in rows if row["y"] > _ABOVE * min(peaks[0][1], row["x"] * bandwidth_bytes_per_s)]
    if over:
        said.append(f"above the roof ({sum(row['share'] for row in over):.0%} of the time): {ABOVE_THE_ROOF}")
    along = [spans[0].value(step / 60) for step in range(61)]
    roof = [{"x": at, "y": min(at * bandwidth_bytes_per_s, peak)} for at in along for _, peak in peaks]
    names, _ = names_beside(rows[:NAMED], *spans, "label", [*rows[NAMED:], *roof], room=14)
    lines = [line for line in said if line]
    layers = [*_roofs(alt, peaks, bandwidth_bytes_per_s, *spans), marks, *names]
    return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=alt.Title(title, subtitle=lines))


def _stacked(dots: Sequence[Dot], total: float) -> list[dict[str, Any]]:
    """Those that take longest first; what would lie on one another, of one kind, is one dot with their sum."""
    piles: dict[tuple[Any, ...], list[Dot]] = {}
    for dot in dots:
        at = (round(_NEAR * math.log(value)) for value in (dot.flops / dot.bytes, dot.flops / dot.time_s))
        piles.setdefault((dot.kind, dot.origin, *at), []).append(dot)
    rows = []
    for pile in piles.values():
        first, time_s = pile[0], sum(dot.taken_s for dot in pile)
        more = f" and {len(pile) - 1} more" if len(pile) > 1 else ""
        rate = first.flops / first.time_s
        many = f"{len(pile)} × {first.kind.replace('_', ' ')}"
        label = many if len(pile) > 2 else f"{_short(first.name)}{more}"
        rows.append({
            "name": f"{first.name}{more}",
            "label": label, "kind": first.kind,
            "group": group_of(first.kind), "origin": first.origin, "bound": first.is_bound,
            "x": first.flops / first.bytes, "y": rate, "attained": format_si(rate, "FLOP/s", 3),
            "share": time_s / total, "time": format_si(time_s, "s"),
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["share"])


def _short(name: str) -> str:
    """A kernel's name without its namespaces, at most `_NAME` long."""
    last = name.split("<", maxsplit=1)[0].split("(", maxsplit=1)[0].rsplit("::", 1)[-1] or name
    return last if len(last) <= _NAME else f"{last[: _NAME - 1]}…"


def _roofs(
    alt: Any, peaks: Sequence[tuple[str, float]], bandwidth_bytes_per_s: float, x: Span, y: Span
) -> list[Any]:  # fmt: skip
    """The slope of the bandwidth up to the highest ridge, and a flat roof for each peak from its ridge on."""
    top = max(peak for _, peak in peaks)
    low = max(x.low, y.low / bandwidth_bytes_per_s)
    slope = [{"x": low, "y": low * bandwidth_bytes_per_s}, {"x": top / bandwidth_bytes_per_s, "y": top}]
    layers = [alt.Chart(values(slope)).mark_line(strokeWidth=1.5, clip=True).encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))]
    for label, peak in peaks:
        ridge = peak / bandwidth_bytes_per_s
        flat = [{"x": ridge, "y": peak}, {"x": x.high, "y": peak}]
        roof = alt.Chart(values(flat)).encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
        layers.append(roof.mark_line(strokeWidth=1.5, clip=True))
        named = f"{label} {format_si(peak, 'FLOP/s')}, ridge {ridge:.3g}"
        # Left of its ridge a peak is out of reach, so that no dot covers its name; where there is no room, above it.
        left = x.share(ridge) * x.pixels > LETTER * len(named) + 7
        corner = values([{"x": ridge if left else x.high, "y": peak, "label": named}])
        text = alt.Chart(corner).mark_text(align="right", dx=-7 if left else -2, dy=0 if left else -8)
        layers.append(text.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), text=alt.Text("label:N")))
    return layers


def _left_out(what: str, dots: Sequence[Dot], placed: Sequence[Dot], kept: int, total: float) -> str:
    parts = []
    if len(placed) < len(dots):
        share = 1 - sum(dot.taken_s for dot in placed) / total
        taken = f" ({say_percent(share)} of the time)" if share > 1e-9 else ""
        missing = f"{len(dots) - len(placed)} of {len(dots)} {what}s{taken}"
        parts.append(f"not drawn: {missing}, whose FLOPs, bytes or time are 0 or unknown")
    if kept < len(placed):
        parts.append(f"the {kept} that take longest of {len(placed)} are drawn")
    return "; ".join(parts)


def prediction_roofline(prediction: Prediction) -> Any:
    """The layers of a prediction under the device's peaks for its precision."""
    seconds = bound_seconds(prediction.terms, prediction.model.uses_memory)
    most = max(seconds, key=lambda bound: seconds[bound])
    point = f"{seconds[most] / prediction.time_s:.0%} of the time goes to {most}"
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
    held = [prediction.peak] if prediction.peak.per_s == prediction.vector_peak.per_s else [
        prediction.peak, prediction.vector_peak]  # fmt: skip
    peaks = [(f"{rate.peak.precision} {rate.peak.unit} peak", rate.per_s) for rate in held]
    memory = f"memory {format_si(prediction.bandwidth_bytes_per_s, 'B/s')}"
    return roofline_chart(dots, peaks, prediction.bandwidth_bytes_per_s, point, [*said_of(prediction), memory])

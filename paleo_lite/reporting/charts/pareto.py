"""The Pareto front of a sweep: the rows that no other row beats in all columns, before a sample of those that lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import BadValue
from ...sweeps.best import LARGER_IS_BETTER, Best, in_words
from ...sweeps.chunk import BOUND
from .marks import BOUNDS_ARE, PLAIN, PREFIXED, Span, hollow, names_beside, told_apart
from .render import POINTS_AT_MOST, altair, decades, time_unit, values

NAMED_AT_MOST = 7
"""Devices that have a colour and shape of their own; the rest are one."""

NO_FRONT = "a chart of a sweep shows a Pareto front of two columns or more, such as --pareto hours,cost"

_WIDTH, _HEIGHT = 560, 380
_UNITS = {"cost": "USD", "energy_j": "J", "memory_bytes": "B"}
_AS_TIME = {"time_s": 1, "hours": 1, "cost": 1, "energy_j": 1, "throughput_per_s": -1}
"""Columns that grow with the time, to what power: an interval of the time is one of theirs."""


def pareto_chart(best: Best) -> Any:
    """The front in its first two columns, by device, with 90% intervals; further columns are in the tooltip.

    Network and batch size stand beside a point where there is room, as far as they differ between rows.

    Raises
    ------
    BadValue
        If the rows are not a front of two columns or more.
    """
    if len(best.columns) < 2:
        raise BadValue(NO_FRONT)
    alt = altair()
    first, second = best.columns[:2]
    factors = {name: _factor(name, [row[name] for row in best.rows]) for name in (first, second)}
    step = -(-len(best.rows) // POINTS_AT_MOST) or 1
    kept = best.rows[::step]
    common = [name for name, _ in Counter(row["gpu"] for row in kept).most_common(NAMED_AT_MOST)]
    differ, alike = _words(kept)
    rows = [
        {"x": row[first] * factors[first][0], "y": row[second] * factors[second][0],
         "gpu": row["gpu"] if row["gpu"] in common else "others", "device": row["gpu"], "what": what,
         "bound": row.get("answer") == BOUND, **_interval(row, first, second, factors),
         **{name: row[name] for name in best.columns}}
        for row, what in zip(kept, differ)
    ]  # fmt: skip
    data = values(rows)
    devices = [*common, *(["others"] if len({row["gpu"] for row in rows}) > len(common) else [])]
    cloud = [{"x": x * factors[first][0], "y": y * factors[second][0]} for x, y, *_ in best.sample]
    spans = [
        _span([each[name] for each in (*rows, *cloud) for name in (key, f"{key}_low", f"{key}_high") if name in each],
              pixels)
        for key, pixels in (("x", _WIDTH), ("y", _HEIGHT))
    ]  # fmt: skip
    x, y, x_low, y_low = (
        _axis(alt, field, name, factors[name][1], span)
        for end in ("", "_low") for field, name, span in ((f"x{end}", first, spans[0]), (f"y{end}", second, spans[1]))
    )  # fmt: skip
    colours, shapes = told_apart(devices)
    colour = alt.Color("gpu:N", title=None, scale=alt.Scale(domain=devices, range=colours))
    shape = alt.Shape("gpu:N", title=None, scale=alt.Scale(domain=devices, range=shapes))
    front = alt.Chart().encode(x=x, y=y)
    tips = [alt.Tooltip("device:N"), alt.Tooltip("what:N", title="configuration"),
            *(alt.Tooltip(f"{name}:Q", format=".4~r", title=in_words(name)) for name in best.columns)]  # fmt: skip
    points = front.mark_point(filled=True, size=60, opacity=1).encode(
        color=colour, shape=shape, tooltip=tips, **hollow(colour))  # fmt: skip
    layers = [points]
    if ends := [row for row in rows if "x_low" in row]:
        spread = alt.Chart(values(ends)).mark_rule(strokeWidth=2, opacity=0.3, clip=True)
        layers.insert(0, spread.encode(x=x_low, x2=alt.X2("x_high:Q"), y=y_low, y2=alt.Y2("y_high:Q"), color=colour))
    corners: list[dict[str, float]] = []
    if len(best.columns) == 2:
        before = first in LARGER_IS_BETTER  # up to where a row is beaten
        layers.insert(0, front.mark_line(interpolate="step-before" if before else "step-after", strokeWidth=1))
        corners = _along(rows, spans, before)
    if cloud:
        others = alt.Chart(values(cloud)).mark_point(filled=True, size=8, opacity=0.5, color="#9A9A9A")
        layers.insert(0, others.encode(x=x, y=y))
    names, named = names_beside(_ends_first(rows), spans[0], spans[1], "what", corners)
    lines = _said(best, alike, step, len(cloud), bool(ends), any(row["bound"] for row in rows))
    if named < len(rows):
        lines.append(f"{named} of {len(rows)} points are named, as far as there is room; HTML names each")
    title = alt.Title(_point(best.rows, first, second), subtitle=lines)
    return alt.layer(*layers, *names, data=data).properties(width=_WIDTH, height=_HEIGHT, title=title)


def _point(rows: Sequence[dict[str, Any]], *columns: str) -> str:
    """Which device is at each end of a front."""
    signs = {name: 1.0 if name in LARGER_IS_BETTER else -1.0 for name in columns}
    ends = [rows[int(np.argmax([sign * row[name] for row in rows]))]["gpu"] for name, sign in signs.items()]
    words = [f"the {'highest' if name in LARGER_IS_BETTER else 'lowest'} {in_words(name)}" for name in columns]
    if ends[0] == ends[1]:
        return f"{ends[0]} has {' and '.join(words)}"
    return " and ".join(f"{gpu} has {said}" for gpu, said in zip(ends, words))


def _said(best: Best, alike: str, step: int, cloud: int, intervals: bool, bounds: bool) -> list[str]:
    """What stands below the title: the same count as above the table, and what is drawn and left out."""
    lines = [best.objective, f"{alike}: {best.counted}" if alike else best.counted]
    drawn = [
        f"1 in {step} of the front is drawn" if step > 1 else "",
        "lines through points: 90% intervals" if intervals else "",
        f"grey: {cloud:,} of the rows that fit" if cloud else "",
    ]
    lines.append("; ".join(filter(None, drawn)))
    lines.append(BOUNDS_ARE if bounds else f"{best.bounds:,} bounds of the data sheet are left out" * bool(best.bounds))
    return [line for line in lines if line]


def _words(rows: Sequence[dict[str, Any]]) -> tuple[list[str], str]:
    """Of each row what tells it from the others, beside its device; and what all have in common."""
    asked = [
        {"network": row["network"], "precision": row.get("precision"), "phase": row.get("phase"),
         "workers": f"{row['workers']} workers" if (row.get("workers") or 1) > 1 else None,
         "batch": f"batch {row.get('batch_size')}"}
        for row in rows
    ]  # fmt: skip
    several = [key for key in asked[0] if len({each[key] for each in asked}) > 1] if asked else []
    if len(asked) == 1:
        several = ["network", "batch"]
    differ = [", ".join(each[key] for key in several if each[key]) for each in asked]
    return differ, ", ".join(asked[0][key] for key in asked[0] if key not in several and asked[0][key]) if asked else ""


def _ends_first(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The two ends of a front, then its middle, then the middles between: so names are spread over it."""
    order, gaps = [0, len(rows) - 1], [(0, len(rows) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [rows[place] for place in dict.fromkeys(order)]


def _along(rows: Sequence[dict[str, Any]], spans: Sequence[Span], before: bool) -> list[dict[str, float]]:
    """Points of the steps between rows, close enough that no name finds room between them."""
    x, y = spans
    found = []
    for one, other in pairwise(rows):
        corner = (one["x"], other["y"]) if before else (other["x"], one["y"])
        for start, end in (((one["x"], one["y"]), corner), (corner, (other["x"], other["y"]))):
            ends = [(x.share(at[0]), y.share(at[1])) for at in (start, end)]
            parts = 1 + int(sum(abs(a - b) * span.pixels for a, b, span in zip(*ends, spans)) / 8)
            for part in range(parts):
                shares = [a + (b - a) * part / parts for a, b in zip(*ends)]
                found.append({"x": x.value(shares[0]), "y": y.value(shares[1])})
    return found


def _interval(
    row: dict[str, Any], first: str, second: str, factors: dict[str, tuple[float, str]]
) -> dict[str, float]:  # fmt: skip
    """Both ends of what the time's interval makes of the two columns: they err together."""
    if row.get("low_s") is None or row.get("high_s") is None or not row.get("time_s"):
        return {}
    found = {}
    for key, name in (("x", first), ("y", second)):
        for end in ("low", "high"):
            times = (row[f"{end}_s"] / row["time_s"]) ** _AS_TIME.get(name, 0)
            found[f"{key}_{end}"] = row[name] * times * factors[name][0]
    return found


def _factor(name: str, numbers: Sequence[float]) -> tuple[float, str]:
    """What a column is multiplied by, and the unit that makes of it."""
    if name.endswith("_s") and not name.endswith("per_s"):
        middle = sorted(numbers)[len(numbers) // 2] if numbers else 1.0
        return time_unit(middle)
    return 1.0, _UNITS.get(name, "")


def _span(numbers: Sequence[float], pixels: int) -> Span:
    """Logarithmic where all numbers are above 0 and span a decade."""
    low, high = min(numbers), max(numbers)
    if low > 0 and high > 10 * low:
        return Span(low / 1.3, high * 1.3, pixels)
    room = 0.08 * (high - low) or abs(high) or 1.0
    return Span(low - room, high + room, pixels, log=False)


def _axis(alt: Any, field: str, name: str, unit: str, span: Span) -> Any:
    """The title says which way is better."""
    better = "high" if name in LARGER_IS_BETTER else "low"
    words = in_words(name) + (f" ({unit})" if unit else "")
    written = {"labelExpr": PREFIXED} if unit in ("B", "J") else {"format": PLAIN}
    scale = alt.Scale(type="log" if span.log else "linear", domain=[span.low, span.high], nice=False)
    axis = alt.Axis(**written, values=decades(span.low, span.high)) if span.log else alt.Axis(**written, tickCount=6)
    kind = alt.X if field.startswith("x") else alt.Y
    return kind(f"{field}:Q", title=f"{words}, {better} is better", scale=scale, axis=axis)

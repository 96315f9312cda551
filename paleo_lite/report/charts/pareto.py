"""The Pareto front of a sweep: the rows that no other row beats in all columns, before a sample of those that lose."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...errors import BadValue
from ...sweeps.best import LARGER_IS_BETTER, Best
from .render import POINTS_AT_MOST, altair, decades, values
from .theme import SERIES, SHAPES

NAMED_AT_MOST = 7
"""Devices that have a colour and shape of their own; the rest are one."""

NO_FRONT = "a chart of a sweep shows a Pareto front of two columns or more, such as --pareto hours,cost"

_TITLES = {
    "time_s": "time of a step (s)", "hours": "hours", "cost": "cost (USD)", "energy_j": "energy (J)",
    "memory_bytes": "memory (B)", "throughput_per_s": "samples per second", "batch_size": "batch size",
    "efficiency": "share of peak", "scaling_efficiency": "scaling efficiency", "speedup": "speed-up",
}  # fmt: skip


def pareto_chart(best: Best) -> Any:
    """The front in its first two columns, by device; further columns are in the tooltip.

    Raises
    ------
    BadValue
        If the rows are not a front of two columns or more.
    """
    if len(best.columns) < 2:
        raise BadValue(NO_FRONT)
    alt = altair()
    first, second = best.columns[:2]
    step = -(-len(best.rows) // POINTS_AT_MOST) or 1
    kept = best.rows[::step]
    common = [name for name, _ in Counter(row["gpu"] for row in kept).most_common(NAMED_AT_MOST)]
    rows = [
        {"x": row[first], "y": row[second], "gpu": row["gpu"] if row["gpu"] in common else "others",
         "device": row["gpu"], "what": _words(row), **{name: row[name] for name in best.columns}}
        for row in kept
    ]  # fmt: skip
    devices = [*common, *(["others"] if len({row["gpu"] for row in rows}) > len(common) else [])]
    data = values(rows)
    cloud = [{"x": x, "y": y} for x, y, *_ in best.sample]
    x, y = (_axis(alt, kind, name, [each[key] for each in (*rows, *cloud)])
            for kind, name, key in ((alt.X, first, "x"), (alt.Y, second, "y")))  # fmt: skip
    colour = alt.Color("gpu:N", title=None, scale=alt.Scale(domain=devices, range=list(SERIES[: len(devices)])))
    shape = alt.Shape("gpu:N", title=None, scale=alt.Scale(domain=devices, range=list(SHAPES[: len(devices)])))
    front = alt.Chart().encode(x=x, y=y)
    tips = ["device:N", "what:N", *(alt.Tooltip(f"{name}:Q", format=".4~s") for name in best.columns)]
    layers = [front.mark_point(filled=True, size=60, opacity=1).encode(color=colour, shape=shape, tooltip=tips)]
    if len(best.columns) == 2:
        steps = "step-before" if first in LARGER_IS_BETTER else "step-after"  # up to where a row is beaten
        layers.insert(0, front.mark_line(interpolate=steps, strokeWidth=1))
    if cloud:
        others = alt.Chart(alt.Data(values=cloud)).mark_point(filled=True, size=8, opacity=0.5, color="#9A9A9A")
        layers.insert(0, others.encode(x=x, y=y))
    lines = [f"{len(rows)} of {best.fitting:,} rows that fit, of {best.seen:,} in all"]
    if step > 1:
        lines[0] += f"; 1 in {step} of the front is drawn"
    if cloud:
        lines.append(f"grey: {len(cloud):,} rows that fit")
    title = alt.Title(best.objective, subtitle=lines)
    return alt.layer(*layers, data=data).properties(width=560, height=380, title=title)


def _words(row: dict[str, Any]) -> str:
    """The configuration of a row in words."""
    parts = [row["network"], row.get("precision"), row.get("phase"), f"batch {row.get('batch_size')}"]
    workers = row.get("workers")
    return ", ".join(str(part) for part in (*parts, f"{workers} workers" if workers and workers > 1 else None) if part)


def _axis(alt: Any, kind: Any, name: str, numbers: list[float]) -> Any:
    """Logarithmic where all numbers are above 0 and span a decade; the title says which way is better."""
    better = "high" if name in LARGER_IS_BETTER else "low"
    title = f"{_TITLES.get(name, name.replace('_', ' '))}, {better} is better"
    field = f"{'x' if kind is alt.X else 'y'}:Q"
    low, high = min(numbers), max(numbers)
    shown = "~s" if high >= 1e4 else "~g"  # 0.1 hours are not 100m
    if low > 0 and high > 10 * low:
        low, high = low / 1.3, high * 1.3
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        return kind(field, title=title, scale=scale, axis=alt.Axis(format=shown, values=decades(low, high)))
    return kind(field, title=title, scale=alt.Scale(zero=False), axis=alt.Axis(format=shown))

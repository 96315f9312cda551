"""Chart of the Pareto front of a sweep, in front of a sample of the dominated rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...sweeps.best import Best, is_better_larger
from ...sweeps.words import column_label
from ...timing.answer import BOUND
from .marks import (
    BOUNDS_LEGEND,
    NUMBER_FORMAT,
    SI_LABELS,
    AxisSpan,
    assign_colours_and_shapes,
    hollow_encoding,
    place_labels,
)
from .render import POINTS_AT_MOST, altair, inline_data, log_ticks, time_unit

NAMED_AT_MOST = 7
"""Maximum number of devices with their own colour and shape; the others share one."""

_WIDTH, _HEIGHT = 560, 380
_UNITS = {"cost_usd": "USD", "energy_j": "J", "kwh": "kWh", "memory_bytes": "B"}
_POWER_OF_TIME = {"time_s": 1, "hours": 1, "cost_usd": 1, "kwh": 1, "energy_j": 1, "throughput_per_s": -1}
"""Columns that depend on the time, with the exponent; their intervals follow from that of the time."""


def pareto_chart(best: Best) -> Any:
    """Draw the front in its first two columns, by device, with 90% intervals; further columns are in the tooltips.

    Points are labelled with the settings that differ between rows, where there is room. Raise BadValue if there is
    nothing to draw.
    """
    alt = altair()
    first, second = best.columns[:2]
    factors = {name: factor_and_unit(name, [row[name] for row in best.rows]) for name in (first, second)}
    x_factor, y_factor = factors[first][0], factors[second][0]
    step = -(-len(best.rows) // POINTS_AT_MOST) or 1
    shown = best.rows[::step]
    common_devices = [name for name, _ in Counter(row["gpu"] for row in shown).most_common(NAMED_AT_MOST)]
    settings, shared_settings = _row_labels(shown)
    rows = [
        {
            "x": row[first] * x_factor,
            "y": row[second] * y_factor,
            "gpu": row["gpu"] if row["gpu"] in common_devices else "others",
            "device": row["gpu"],
            "configuration": label,
            "bound": row.get("answer") == BOUND,
            **interval_ends(row, first, second, factors),
            **{name: row[name] for name in best.columns},
        }
        for row, label in zip(shown, settings)
    ]
    data = inline_data(rows)
    labels = {name: column_label(name, best.rows[0]) for name in best.columns}
    devices = list(common_devices)
    if len({row["gpu"] for row in rows}) > len(common_devices):
        devices.append("others")
    cloud = [{"x": x * x_factor, "y": y * y_factor} for x, y, *_ in best.sample]
    x_span = _axis_span([*rows, *cloud], "x", _WIDTH)
    y_span = _axis_span([*rows, *cloud], "y", _HEIGHT)
    x = _axis(alt.X, "x", first, labels[first], factors[first][1], x_span)
    y = _axis(alt.Y, "y", second, labels[second], factors[second][1], y_span)
    colours, shapes = assign_colours_and_shapes(devices)
    colour = alt.Color("gpu:N", title=None, scale=alt.Scale(domain=devices, range=colours))
    shape = alt.Shape("gpu:N", title=None, scale=alt.Scale(domain=devices, range=shapes))
    front = alt.Chart().encode(x=x, y=y)
    figures = (alt.Tooltip(f"{name}:Q", format=".4~r", title=label) for name, label in labels.items())
    tooltip = [alt.Tooltip("device:N"), alt.Tooltip("configuration:N"), *figures]
    points = front.mark_point(filled=True, size=60, opacity=1).encode(
        color=colour, shape=shape, tooltip=tooltip, **hollow_encoding(colour)
    )
    layers = [points]
    rows_with_interval = [row for row in rows if "x_low" in row]
    if rows_with_interval:
        spread = alt.Chart(inline_data(rows_with_interval)).mark_rule(strokeWidth=2, opacity=0.3, clip=True)
        spread = spread.encode(
            x=_axis(alt.X, "x_low", first, labels[first], factors[first][1], x_span),
            x2=alt.X2("x_high:Q"),
            y=_axis(alt.Y, "y_low", second, labels[second], factors[second][1], y_span),
            y2=alt.Y2("y_high:Q"),
            color=colour,
        )
        layers.insert(0, spread)
    layers += _knee_layers(alt, best, dict(zip(map(id, shown), rows)), x, y)
    step_points: list[dict[str, float]] = []
    if len(best.columns) == 2:
        steps_before = is_better_larger(first)  # the area dominated by a row extends to smaller values
        interpolation = "step-before" if steps_before else "step-after"
        layers.insert(0, front.mark_line(interpolate=interpolation, strokeWidth=1))
        step_points = _points_on_steps(rows, x_span, y_span, steps_before)
    if cloud:
        others = alt.Chart(inline_data(cloud)).mark_point(filled=True, size=8, opacity=0.5, color="#9A9A9A")
        layers.insert(0, others.encode(x=x, y=y))
    label_layers, labelled = place_labels(_ends_first(rows), x_span, y_span, "configuration", step_points)
    lines = _subtitle(best, shared_settings, step, len(cloud), rows)
    if labelled < len(rows):
        lines.append(f"{labelled} of {len(rows)} points are labelled, where there is room; HTML has tooltips for all")
    title = alt.Title(_front_title(best.rows, first, second), subtitle=lines)
    return alt.layer(*layers, *label_layers, data=data).properties(width=_WIDTH, height=_HEIGHT, title=title)


def _knee_layers(alt: Any, best: Best, drawn: dict[int, dict[str, Any]], x: Any, y: Any) -> list[Any]:
    """Return a ring around the knee of the front, if it has one that is drawn; `drawn` are the points by their rows."""
    point = drawn.get(id(best.knee))
    if best.knee is None or point is None:
        return []
    data = inline_data([{"x": point["x"], "y": point["y"], "knee": True}])
    ring = alt.Chart(data).mark_point(size=220, strokeWidth=2, color="#333333")
    return [ring.encode(x=x, y=y)]


def _subtitle(
    best: Best, shared_settings: str, step: int, cloud_size: int, rows: Sequence[dict[str, Any]]
) -> list[str]:
    """Return the subtitle: objective, settings and counts, and the legend of the marks."""
    lines = [best.objective, f"{shared_settings}: {best.count_summary}" if shared_settings else best.count_summary]
    legend = []
    if step > 1:
        legend.append(f"1 in {step} rows of the front is drawn")
    if any("x_low" in row for row in rows):
        legend.append("lines through points: 90% intervals")
    if best.knee is not None:
        legend.append("ring: the knee")
    if cloud_size:
        legend.append(f"grey: {cloud_size:,} of the matching rows")
    if legend:
        lines.append("; ".join(legend))
    if any(row["bound"] for row in rows):
        lines.append(BOUNDS_LEGEND)
    elif best.bounds:
        lines.append(f"{best.bounds:,} bounds from the data sheets are left out")
    return lines


def _front_title(rows: Sequence[dict[str, Any]], *columns: str) -> str:
    """Return the devices at both ends of the front, or what differs between the ends if they are of one device."""
    labels, _ = _row_labels(rows)
    ends, phrases = [], []
    for name in columns:
        choose = max if is_better_larger(name) else min
        ends.append(choose(range(len(rows)), key=lambda index, name=name: rows[index][name]))  # type: ignore[misc]
        phrases.append(f"the {'highest' if is_better_larger(name) else 'lowest'} {column_label(name, rows[0])}")
    device, other = (rows[end]["gpu"] for end in ends)
    if device != other:
        return f"{device} has {phrases[0]} and {other} has {phrases[1]}"
    if labels[ends[0]] == labels[ends[1]]:
        return f"{device} has {' and '.join(phrases)}"
    return f"{device}: {labels[ends[0]]} has {phrases[0]} and {labels[ends[1]]} has {phrases[1]}"


def _row_labels(rows: Sequence[dict[str, Any]]) -> tuple[list[str], str]:
    """Return the settings that differ between rows, as a label for each row, and the shared settings."""
    if not rows:
        return [], ""
    settings = []
    for row in rows:
        workers = row.get("workers") or 1
        settings.append(
            {
                "network": row["network"],
                "precision": row.get("precision"),
                "phase": row.get("phase"),
                "workers": f"{workers} workers" if workers > 1 else None,
                "batch": f"batch {row['batch_size']}" if row.get("batch_size") is not None else None,
                "rate": f"{row['rate_per_s']:g} requests/s" if row.get("rate_per_s") is not None else None,
                "limit": f"{row['power_limit_w']:g} W" if row.get("power_limit_w") is not None else None,
            }
        )
    names = list(settings[0])
    varying = [name for name in names if len({setting[name] for setting in settings}) > 1]
    if len(rows) == 1:
        varying = ["network", "batch"]
    labels = [", ".join(setting[name] for name in varying if setting[name]) for setting in settings]
    shared = ", ".join(settings[0][name] for name in names if name not in varying and settings[0][name])
    return labels, shared


def _ends_first(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order the rows of a front for labelling: both ends, the middle, the middles between, and so on."""
    order, gaps = [0, len(rows) - 1], [(0, len(rows) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [rows[index] for index in dict.fromkeys(order)]


def _points_on_steps(
    rows: Sequence[dict[str, Any]], x: AxisSpan, y: AxisSpan, steps_before: bool
) -> list[dict[str, float]]:
    """Return points on the step line between rows, at most 8 pixels apart, which labels must not cover."""
    points = []
    for row, following in pairwise(rows):
        corner = (row["x"], following["y"]) if steps_before else (following["x"], row["y"])
        for start, end in (((row["x"], row["y"]), corner), (corner, (following["x"], following["y"]))):
            x_start, y_start = x.fraction(start[0]), y.fraction(start[1])
            x_end, y_end = x.fraction(end[0]), y.fraction(end[1])
            length = abs(x_start - x_end) * x.pixels + abs(y_start - y_end) * y.pixels
            parts = 1 + int(length / 8)
            for part in range(parts):
                x_fraction = x_start + (x_end - x_start) * part / parts
                y_fraction = y_start + (y_end - y_start) * part / parts
                points.append({"x": x.value_at(x_fraction), "y": y.value_at(y_fraction)})
    return points


def interval_ends(
    row: dict[str, Any], first: str, second: str, factors: dict[str, tuple[float, str]]
) -> dict[str, float]:
    """Return the ends of both columns' intervals, which follow from the interval of the time."""
    if row.get("low_s") is None or row.get("high_s") is None or not row.get("time_s"):
        return {}
    ends = {}
    for key, name in (("x", first), ("y", second)):
        for end in ("low", "high"):
            ratio = (row[f"{end}_s"] / row["time_s"]) ** _POWER_OF_TIME.get(name, 0)
            ends[f"{key}_{end}"] = row[name] * ratio * factors[name][0]
    return ends


def factor_and_unit(name: str, numbers: Sequence[float]) -> tuple[float, str]:
    """Return the factor from a column to the unit of its axis, and the unit."""
    if name.endswith("_s") and not name.endswith("per_s"):
        median = sorted(numbers)[len(numbers) // 2] if numbers else 1.0
        return time_unit(median)
    return 1.0, _UNITS.get(name, "")


def _axis_span(rows: Sequence[dict[str, Any]], key: str, pixels: int) -> AxisSpan:
    """Return an axis for a field and the ends of its interval, logarithmic for positive numbers over a decade."""
    numbers = [row[name] for row in rows for name in (key, f"{key}_low", f"{key}_high") if name in row]
    low, high = min(numbers), max(numbers)
    if low > 0 and high > 10 * low:
        return AxisSpan(low / 1.3, high * 1.3, pixels)
    margin = 0.08 * (high - low) or abs(high) or 1.0
    return AxisSpan(low - margin, high + margin, pixels, log=False)


def _axis(channel: Any, field: str, name: str, label: str, unit: str, span: AxisSpan) -> Any:
    """Return the channel of an axis; its title tells whether high or low is better."""
    alt = altair()
    direction = "high" if is_better_larger(name) else "low"
    title = f"{label} ({unit})" if unit else label
    label_format = {"labelExpr": SI_LABELS} if unit in ("B", "J") else {"format": NUMBER_FORMAT}
    scale = alt.Scale(type="log" if span.log else "linear", domain=[span.low, span.high], nice=False)
    if span.log:
        axis = alt.Axis(**label_format, values=log_ticks(span.low, span.high))
    else:
        axis = alt.Axis(**label_format, tickCount=6)
    return channel(f"{field}:Q", title=f"{title}, {direction} is better", scale=scale, axis=axis)

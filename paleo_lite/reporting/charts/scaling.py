"""Charts of scaling predictions: speed-up or efficiency, parts of a step and cost, in the panels of PALEO.

Qi, Sparks, Talwalkar, "Paleo", ICLR 2017, figures 3 to 5.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...distributed.table import ScaleRow, ScaleTable
from ...text import format_plural
from ...units import format_si
from .marks import BOUNDS_LEGEND, NUMBER_FORMAT, assign_colours_and_shapes, conditional_value, hollow_encoding
from .render import GROUPS, altair, inline_data, time_unit

COMPUTE = "#6C7F93"
"""Colour of computation of all kinds of layers, different from the colour of each kind."""

PARTS = {
    "compute": ("compute_s", COMPUTE),
    "exposed communication": ("exposed_s", GROUPS["communication"]),
    "update": ("update_s", GROUPS["update"]),
}

_MAX_BAR_RATIO = 10.0
"""Length of the longest bar over that of the shortest; longer ones are cut off."""

_TIMES_AT_MOST = 9
"""Maximum number of bars that are labelled with the time of a step; more are too narrow."""


def scale_chart(table: ScaleTable) -> Any:
    """Draw the result of ``scale``: curves over the number of workers, or for one number a bar per strategy."""
    per = "per worker" if table.scaling == "weak" else "in total"
    subtitle = [
        f"{table.network} on {table.gpu_name}, {table.precision} {table.phase}, {table.scaling} scaling, "
        f"batch {table.batch_size} {per}",
        f"{table.topology}; {table.model}",
    ]
    if len({row.workers for row in table.rows}) == 1:
        first = table.rows[0]
        title = f"{_row_name(first)}, {format_si(first.time_s, 's', 3)} per step"
        if len(table.rows) > 1:
            title = f"Best: {title}"
        elif first.fits is False:
            title = f"Does not fit into memory: {title}"
        return advice_chart(table.rows, title, subtitle, _describe_order(table))
    too_large = [str(row.workers) for row in table.rows if row.fits is False]
    if too_large:
        subtitle.append(f"does not fit into memory: {', '.join(too_large)} workers")
    return scaling_chart(table.rows, subtitle, () if table.is_forecast else _series(table.rows))


def _describe_order(table: ScaleTable) -> str:
    """Return in which order advice names strategies that fit into memory, and divisions of blocks."""
    if table.ranked_by == "joules":
        return "by energy per sample"
    compares_divisions = any(row.parallel is not None for row in table.rows)
    return "by time" if compares_divisions else "by time; within 2%, simpler ones first"


def advice_chart(rows: Sequence[ScaleRow], title: str, subtitle: Sequence[str], ranked: str) -> Any:
    """Draw the time of a step by part, a bar per strategy, in the order of the rows."""
    alt = altair()
    longest = max((_longest_time_s(row) for row in rows), default=0.0)
    shortest = min((row.time_s for row in rows), default=0.0)
    furthest = min(longest, _MAX_BAR_RATIO * shortest)
    factor, unit = time_unit(furthest)
    names = [f"{rank}. {_row_name(row)}" if len(rows) > 1 else _row_name(row) for rank, row in enumerate(rows, 1)]
    parts = [
        {
            "strategy": name,
            "part": part,
            "order": order,
            "limited": row.limited_by,
            "time": getattr(row, field) * factor,
            "unfit": row.fits is False,
        }
        for name, row in zip(names, rows)
        for order, (part, (field, _)) in enumerate(PARTS.items())
    ]
    steps = [
        {
            "strategy": name,
            "time": row.time_s * factor,
            **_scaled_interval(row, factor),
            "end": min(_longest_time_s(row), furthest) * factor,
            "label": _step_label(row, row.time_s > furthest),
        }
        for name, row in zip(names, rows)
    ]
    axis_title = f"time of a step ({unit})"
    scale = alt.Scale(domain=[0, furthest * factor], clamp=True, nice=False)
    time = alt.X("time:Q", title=axis_title, axis=alt.Axis(format=NUMBER_FORMAT, grid=False), scale=scale)
    bars = (
        alt.Chart(inline_data(parts))
        .mark_bar()
        .encode(
            y=alt.Y("strategy:N", sort=names, title=None, axis=alt.Axis(labelLimit=500)),
            x=time,
            color=_part_colour(alt, alt.Legend(orient="bottom")),
            opacity=conditional_value(alt.OpacityValue, "datum.unfit", 0.3, 1),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("strategy:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("time:Q", format=".4~r", title=unit),
                alt.Tooltip("limited:N", title="limited by"),
            ],
        )
    )
    base = alt.Chart(inline_data(steps)).encode(y=alt.Y("strategy:N", sort=names))
    spread = base.mark_rule().encode(x=alt.X("low:Q", title=axis_title), x2=alt.X2("high:Q"))
    unfit = base.mark_text(align="left", dx=6, fontSize=10).encode(
        x=alt.X("end:Q", title=axis_title), text=alt.Text("label:N")
    )
    lines = [*subtitle, f"{format_plural(rows[0].workers, 'worker')}; overlapped communication is not drawn"]
    legend = []
    if len(rows) > 1:
        legend.append(f"order: those that fit into memory, then {ranked}")
    if any(row.interval for row in rows):
        legend.append("lines: 90% intervals")
    if legend:
        lines.append("; ".join(legend))
    chart = alt.layer(bars, spread.transform_filter("isValid(datum.low)"), unfit)
    return chart.properties(width=560, height=alt.Step(24), title=alt.Title(title, subtitle=lines))


def _scaled_interval(row: ScaleRow, factor: float) -> dict[str, float]:
    """Return the interval of the time of a step on the axis, empty without an interval."""
    if row.interval is None:
        return {}
    low, high = row.interval
    return {"low": low * factor, "high": high * factor}


def _longest_time_s(row: ScaleRow) -> float:
    """Return the upper end of the interval of a step, or its time without an interval."""
    time_s: float = row.time_s
    return time_s if row.interval is None else max(time_s, row.interval[1])


def _step_label(row: ScaleRow, is_cut: bool) -> str:
    """Return the label of a bar: the time of a step, and whether it does not fit into memory."""
    label = format_si(row.time_s, "s", 3)
    if is_cut:
        label = f"→ {label}"
    if row.fits is False:
        label += ": does not fit into memory"
    return label


def scaling_chart(
    rows: Sequence[ScaleRow],  # of one or several strategies and collectives
    subtitle: Sequence[str] = (),
    bounds: Collection[str] = (),  # names of the series that are bounds, not forecasts
    order: Sequence[str] = (),  # series in the order that determines their colours; by default their order in `rows`
) -> Any:
    """Draw speed-up (weak scaling: efficiency), parts of a step and cost over the number of workers."""
    alt = altair()
    weak = len({row.batch_size for row in rows}) > 1
    named: list[dict[str, Any]] = [
        {
            "series": series,
            "bound": series in bounds,
            "workers": row.workers,
            "collective": row.collective,
            "speedup": row.speedup,
            "cost": row.cost_usd,
            "throughput": row.throughput_per_s,
            "efficiency": row.efficiency,
            "limited": row.limited_by,
            "exposed": row.exposed_s / row.time_s,
            **_interval_ends(row),
        }
        for series, row in zip(_series(rows), rows)
    ]
    data = inline_data(named)
    series = list(dict.fromkeys(row["series"] for row in named))
    workers = sorted({row.workers for row in rows})
    style = _series_style(alt, series, order)
    key = "efficiency" if weak else "speedup"
    curves = alt.layer(*_ideal_line(alt, workers, key), *_curves(alt, data, style, workers, key))
    # One series: all parts of a step; several series: a curve of the exposed communication of each.
    parts = (
        _part_bars(alt, rows, bool(bounds))
        if len(series) == 1
        else alt.layer(*_curves(alt, data, style, workers, "exposed"))
    )
    panels = [_set_panel_size(curves), _set_panel_size(parts)]
    if all(row.cost_usd is not None for row in rows):
        panels.append(_set_panel_size(alt.layer(*_curves(alt, data, style, workers, "cost"))))
    lines = [*subtitle, "overlapped communication is not drawn"]
    if any("cost_low" in row or "efficiency_low" in row for row in named):
        lines.append("bands: 90% intervals")
    if any(row["bound"] for row in named):
        lines.append(BOUNDS_LEGEND)
    chart = alt.hconcat(*panels).resolve_scale(color="independent", shape="independent", stroke="independent")
    return chart.properties(title=alt.Title(_scaling_title(rows, bounds), subtitle=lines))


def _scaling_title(rows: Sequence[ScaleRow], bounds: Collection[str]) -> str:
    """Return the speed-up of the largest number of workers, and the part that costs most time.

    Of several series it is the best one; forecasts precede bounds, and what fits into memory precedes what does not.
    """
    series = _series(rows)

    def rank(index: int) -> tuple[bool, bool, int, float]:
        row = rows[index]
        return row.fits is not False, series[index] not in bounds, row.workers, row.speedup

    best = max(range(len(rows)), key=rank)
    name, last = series[best], rows[best]
    if last.fits is False:
        return "Does not fit into memory: speed-ups are those of a step that cannot run"
    workers = f"{last.workers:,} workers"
    over = "" if last.baseline_workers == 1 else f"over {last.baseline_workers:,} "
    other_rows = []
    for other_name, row in zip(series, rows):
        if row.workers == last.workers and other_name != name and other_name not in bounds:
            other_rows.append(row)
    interval = last.efficiency_interval
    if interval and any((row.efficiency_interval or interval)[1] >= interval[0] for row in other_rows):
        lowest = min(row.speedup for row in other_rows) / last.baseline_workers
        highest = last.speedup / last.baseline_workers
        return f"No significant difference: speed-up {lowest:,.3g} to {highest:,.3g} {over}on {workers}"
    speedup = last.speedup / last.baseline_workers
    title = f"Speed-up {'at most ' if name in bounds else ''}{speedup:,.3g} {over}on {workers}"
    if len(set(series)) > 1:
        title = f"{name} scales best: {title[0].lower()}{title[1:]}"
    losses = {part: getattr(last, field) / last.time_s for part, (field, _) in PARTS.items() if part != "compute"}
    largest = max(losses, key=lambda part: losses[part])
    if last.workers > 1 and losses[largest] >= 0.01:
        title += f"; {losses[largest]:.0%} of a step is {largest}"
    return title


def _row_name(row: ScaleRow) -> str:
    return " ".join(part for part in (row.strategy, row.collective) if part)


def _series(rows: Sequence[ScaleRow]) -> list[str]:
    """Return the series of each row: its strategy, with the collective only if several were requested.

    Otherwise the collective may differ between numbers of workers, as the fastest one is used.
    """
    several = len({(row.strategy, row.workers) for row in rows}) < len(rows)
    return [_row_name(row) if several else row.strategy for row in rows]


def _interval_ends(row: ScaleRow) -> dict[str, float]:
    """Return the ends of the 90% intervals of the drawn quantities, where they are known."""
    ends: dict[str, float] = {}
    if row.efficiency_interval is not None:
        low, high = row.efficiency_interval
        ends["efficiency_low"], ends["efficiency_high"] = low, high
        ends["speedup_low"], ends["speedup_high"] = low * row.workers, high * row.workers
    if row.interval is not None:
        cost_per_s = (row.cost_usd or 0.0) / row.time_s
        ends["cost_low"], ends["cost_high"] = row.interval[0] * cost_per_s, row.interval[1] * cost_per_s
    return ends


def _part_colour(alt: Any, legend: Any) -> Any:
    scale = alt.Scale(domain=list(PARTS), range=[colour for _, colour in PARTS.values()])
    return alt.Color("part:N", title=None, legend=legend, scale=scale)


def _series_style(alt: Any, series: Sequence[str], order: Sequence[str]) -> tuple[Any, Any]:
    """Return the colour and shape channels of the curves."""
    colours, shapes = assign_colours_and_shapes(series, order)
    legend = alt.Legend(orient="bottom", columns=1, title=None) if len(series) > 1 else None
    return (
        alt.Color("series:N", title=None, scale=alt.Scale(domain=list(series), range=colours), legend=legend),
        alt.Shape("series:N", title=None, scale=alt.Scale(domain=list(series), range=shapes), legend=legend),
    )


def _set_panel_size(panel: Any) -> Any:
    return panel.properties(width=270, height=240)


def _worker_axis(alt: Any, workers: Sequence[int]) -> Any:
    shown = list(workers) if len(workers) <= 9 else [n for n in workers if n & (n - 1) == 0]
    scale = alt.Scale(type="log", base=2, domain=[workers[0], max(workers[-1], workers[0] + 1)], nice=False)
    return alt.X("workers:Q", title="workers", scale=scale, axis=alt.Axis(values=shown, format="d"))


def _ideal_line(alt: Any, workers: Sequence[int], key: str) -> list[Any]:
    """Draw a thin labelled line at the ideal scaling."""
    weak = key == "efficiency"
    ends = [{"workers": n, key: 1.0 if weak else n, "label": "ideal"} for n in dict.fromkeys((workers[0], workers[-1]))]
    x, y = _worker_axis(alt, workers), _value_axis(alt, key)
    line = alt.Chart(inline_data(ends)).mark_line(strokeWidth=1, opacity=0.6).encode(x=x, y=y)
    name = alt.Chart(inline_data(ends[-1:])).mark_text(align="right", dx=-8 if weak else -14, dy=-7, fontSize=10)
    return [line, name.encode(x=x, y=y, text=alt.Text("label:N"))]


_SHARES = ("efficiency", "exposed")
_TITLES = {
    "efficiency": "efficiency: share of the ideal speed-up",
    "speedup": "speed-up",
    "cost": "cost (USD)",
    "exposed": "exposed communication: share of a step",
}


def _value_axis(alt: Any, key: str, field: str = "") -> Any:
    scale = alt.Scale(type="log", base=2, nice=False) if key == "speedup" else alt.Scale(zero=True)
    axis = alt.Axis(format="%" if key in _SHARES else NUMBER_FORMAT, tickCount=6)
    return alt.Y(f"{field or key}:Q", title=_TITLES[key], scale=scale, axis=axis)


def _curves(alt: Any, data: Any, style: tuple[Any, Any], workers: Sequence[int], key: str) -> list[Any]:
    """Draw curves with their bands; only the first panel has a legend."""
    colour, shape = style
    if key in ("cost", "exposed"):
        colour, shape = colour.copy().legend(None), shape.copy().legend(None)
    base = alt.Chart(data).encode(x=_worker_axis(alt, workers), y=_value_axis(alt, key), color=colour)
    # With two numbers of workers a band would have only one end, as one worker has no interval.
    area = alt.Chart(data).mark_area(opacity=0.18) if len(workers) > 2 else alt.Chart(data).mark_rule(opacity=0.4)
    low, high = _value_axis(alt, key, f"{key}_low"), alt.Y2(f"{key}_high:Q")
    bands = [area.encode(x=_worker_axis(alt, workers), y=low, y2=high, color=colour)] if key != "exposed" else []
    tooltip = [
        alt.Tooltip("series:N"),
        alt.Tooltip("collective:N"),
        alt.Tooltip("workers:Q"),
        alt.Tooltip(f"{key}:Q", format=".1%" if key in _SHARES else ".4~r"),
        alt.Tooltip("efficiency:Q", format=".1%"),
        alt.Tooltip("throughput:Q", format=",.4~r", title="per second"),
        alt.Tooltip("limited:N", title="limited by"),
    ]
    dash = conditional_value(alt.StrokeDashValue, "datum.bound", [5, 4], [1, 0])
    return [
        *bands,
        base.mark_line().encode(strokeDash=dash, detail=alt.Detail("bound:N")),
        base.mark_point(filled=True, size=45, opacity=1).encode(
            shape=shape, tooltip=tooltip, **hollow_encoding(colour)
        ),
    ]


def _part_bars(alt: Any, rows: Sequence[ScaleRow], bound: bool) -> Any:
    """Draw the shares of the parts of a step, with the time of a step above each bar.

    Shares, as the times of strong scaling become too short to see.
    """
    has_few_bars = len({row.workers for row in rows}) <= _TIMES_AT_MOST
    parts = [
        {
            "workers": row.workers,
            "part": part,
            "order": order,
            "bound": bound,
            "time": getattr(row, field),
            "share": getattr(row, field) / row.time_s,
            "took": format_si(getattr(row, field), "s", 3),
            "step": format_si(row.time_s, "s", 3),
            "top": 1.0,
        }
        for row in rows
        for order, (part, (field, _)) in enumerate(PARTS.items())
    ]
    x = alt.X("workers:O", title="workers", sort=None, axis=alt.Axis(labelAngle=0, labelOverlap=True))
    title = "share of a step (above: its time)" if has_few_bars else "share of a step"
    y = alt.Y("share:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5))
    colour = _part_colour(alt, alt.Legend(orient="bottom", columns=1))
    base = alt.Chart(inline_data(parts))
    bars = base.mark_bar().encode(
        x=x,
        y=y,
        color=colour,
        order=alt.Order("order:Q"),
        **hollow_encoding(colour, dashed=True),
        tooltip=[
            alt.Tooltip("workers:O"),
            alt.Tooltip("part:N"),
            alt.Tooltip("took:N", title="time"),
            alt.Tooltip("share:Q", format=".1%"),
        ],
    )
    if not has_few_bars:
        return bars
    text = base.transform_filter("datum.order == 0").mark_text(dy=-6, fontSize=8)
    return alt.layer(bars, text.encode(x=x, y=alt.Y("top:Q", title=title), text=alt.Text("step:N")))

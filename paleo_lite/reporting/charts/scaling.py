"""Scaling curves in PALEO's panels: speed-up or efficiency, the step by part, and what it costs.

Qi, Sparks, Talwalkar, "Paleo", ICLR 2017, figures 3 to 5.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...distributed.table import ScaleRow, ScaleTable
from ...units import format_si
from .marks import BOUNDS_ARE, PLAIN, either, hollow, told_apart
from .render import GROUPS, altair, time_unit, values

COMPUTE = "#6C7F93"
"""All kinds of layers together: the colour of none of them."""

PARTS = {
    "compute": ("compute_s", COMPUTE),
    "exposed communication": ("exposed_s", GROUPS["communication"]),
    "update": ("update_s", GROUPS["update"]),
}

_CUT = 10.0
"""Times the shortest step up to which bars of strategies are drawn."""

_TIMES_AT_MOST = 9
"""Bars of more numbers of workers are too narrow for the time of a step above them."""


def scale_chart(table: ScaleTable) -> Any:
    """What ``scale`` found: curves over the workers, or, of one number of them, time by part of each strategy."""
    per = "per worker" if table.scaling == "weak" else "in all"
    subtitle = [
        f"{table.network} on {table.gpu_name}, {table.precision} {table.phase}, {table.scaling} scaling, "
        f"batch {table.batch_size} {per}",
        f"{table.topology}; {table.model}",
    ]
    if len(table.rows) > 1 and len({row.workers for row in table.rows}) == 1:
        first = table.rows[0]
        return advice_chart(table.rows, f"First: {_name(first)}, {format_si(first.time_s, 's', 3)} a step", subtitle)
    return scaling_chart(table.rows, subtitle, () if table.is_forecast else _series(table.rows))


def advice_chart(rows: Sequence[ScaleRow], title: str, subtitle: Sequence[str] = ()) -> Any:
    """Time of a step by part, for several strategies on one number of workers, in the order of the rows."""
    alt = altair()
    # One that takes ten times as long would leave the others no room: its bar is cut, and says so.
    furthest = min(max((max(row.time_s, *(row.interval or ())) for row in rows), default=0.0),
                   _CUT * min((row.time_s for row in rows), default=0.0))  # fmt: skip
    factor, unit = time_unit(furthest)
    names = [f"{place}. {_name(row)}" for place, row in enumerate(rows, 1)]
    parts = [
        {"strategy": name, "part": part, "order": order, "limited": row.limited_by,
         "time": getattr(row, field) * factor, "unfit": row.fits is False}
        for name, row in zip(names, rows)
        for order, (part, (field, _)) in enumerate(PARTS.items())
    ]  # fmt: skip
    whole = [
        {"strategy": name, "time": row.time_s * factor, **dict(zip(("low", "high"), _scaled(row.interval, factor))),
         "end": min(max(row.time_s, *(row.interval or ())), furthest) * factor,
         "said": _said(row, row.time_s > furthest)}
        for name, row in zip(names, rows)
    ]  # fmt: skip
    said = f"time of a step ({unit})"
    scale = alt.Scale(domain=[0, furthest * factor], clamp=True, nice=False)
    time = alt.X("time:Q", title=said, axis=alt.Axis(format=PLAIN, grid=False), scale=scale)
    bars = (
        alt.Chart(values(parts))
        .mark_bar()
        .encode(
            y=alt.Y("strategy:N", sort=names, title=None, axis=alt.Axis(labelLimit=400)),
            x=time,
            color=_part_colour(alt, alt.Legend(orient="bottom")),
            opacity=either(alt.OpacityValue, "datum.unfit", 0.3, 1),
            order=alt.Order("order:Q"),
            tooltip=[alt.Tooltip("strategy:N"), alt.Tooltip("part:N"), alt.Tooltip("time:Q", format=".4~r", title=unit),
                     alt.Tooltip("limited:N", title="limited by")],
        )
    )  # fmt: skip
    base = alt.Chart(values(whole)).encode(y=alt.Y("strategy:N", sort=names))
    spread = base.mark_rule().encode(x=alt.X("low:Q", title=said), x2=alt.X2("high:Q"))
    unfit = base.mark_text(align="left", dx=6, fontSize=10).encode(
        x=alt.X("end:Q", title=said), text=alt.Text("said:N")
    )
    lines = [*subtitle, f"{rows[0].workers} workers; hidden communication is not drawn"]
    ranked = "in this order: what fits, then the fastest; of those within 2% of it the simplest first"
    lines.append(f"{ranked}; lines: 90% intervals" if any(row.interval for row in rows) else ranked)
    chart = alt.layer(bars, spread.transform_filter("isValid(datum.low)"), unfit)
    return chart.properties(width=560, height=alt.Step(24), title=alt.Title(title, subtitle=lines))


def _said(row: ScaleRow, cut: bool) -> str:
    """The time of a step, and what speaks against the strategy."""
    time = ("→ " if cut else "") + format_si(row.time_s, "s", 3)
    return f"{time}: does not fit into memory" if row.fits is False else time


def scaling_chart(
    rows: Sequence[ScaleRow],
    subtitle: Sequence[str] = (),
    bounds: Collection[str] = (),
    order: Sequence[str] = (),
) -> Any:
    """Speed-up beside the ideal (weak scaling: efficiency), the step by part, and cost, over the number of workers.

    Parameters
    ----------
    rows : sequence of ScaleRow
        Of one or several strategies and collectives.
    bounds : collection of str
        Series whose times are what data sheets allow, no forecasts.
    order : sequence of str
        Series by whose places colours are given; without it their order in `rows`.
    """
    alt = altair()
    weak = len({row.batch_size for row in rows}) > 1
    named: list[dict[str, Any]] = [
        {
            "series": series, "bound": series in bounds, "workers": row.workers, "collective": row.collective,
            "speedup": row.speedup, "cost": row.cost, "throughput": row.throughput_per_s,
            "efficiency": row.efficiency, "limited": row.limited_by,
            "exposed": row.exposed_s / row.time_s, **_ends(row),
        }
        for series, row in zip(_series(rows), rows)
    ]  # fmt: skip
    data = values(named)
    series = list(dict.fromkeys(row["series"] for row in named))
    workers = sorted({row.workers for row in rows})
    look = _look(alt, series, order)
    key = "efficiency" if weak else "speedup"
    curves = alt.layer(*_ideal(alt, workers, key), *_lines(alt, data, look, workers, key))
    # Of several curves the part that grows is a curve of each, too; of one every part is drawn.
    parts = (
        _shares(alt, rows, bool(bounds))
        if len(series) == 1
        else alt.layer(*_lines(alt, data, look, workers, "exposed"))
    )
    panels = [_sized(curves), _sized(parts)]
    if all(row.cost is not None for row in rows):
        panels.append(_sized(alt.layer(*_lines(alt, data, look, workers, "cost"))))
    lines = [*subtitle, "hidden communication is not drawn: it takes no time of its own"]
    lines += ["bands: 90% intervals"] if any("cost_low" in row or "efficiency_low" in row for row in named) else []
    lines += [BOUNDS_ARE] if any(row["bound"] for row in named) else []
    chart = alt.hconcat(*panels).resolve_scale(color="independent", shape="independent", stroke="independent")
    return chart.properties(title=alt.Title(_point(rows, bounds), subtitle=lines))


def _point(rows: Sequence[ScaleRow], bounds: Collection[str]) -> str:
    """How much more most workers do than one, and what they lose; of several the best, forecasts before bounds."""
    series = _series(rows)
    name, last = max(zip(series, rows), key=lambda pair: (pair[0] not in bounds, pair[1].workers, pair[1].speedup))
    most = max(PARTS, key=lambda part: float(getattr(last, PARTS[part][0])) if part != "compute" else 0.0)
    share = getattr(last, PARTS[most][0]) / last.time_s
    lost = f"; {share:.0%} of a step is {most}" if last.workers > 1 and most != "compute" and share >= 0.01 else ""
    others = [row for each, row in zip(series, rows) if row.workers == last.workers and each not in {name, *bounds}]
    ends = last.efficiency_interval
    if ends and any((row.efficiency_interval or ends)[1] >= ends[0] for row in others):
        least = min(row.speedup for row in others)
        return f"Not told apart: {last.workers:,} workers do {least:,.3g} to {last.speedup:,.3g} times the work of one"
    best = f"{name} scales best: " if len(set(series)) > 1 else ""
    at_best = "at best " if name in bounds else ""
    return f"{best}{last.workers:,} workers do {at_best}{last.speedup:,.3g} times the work of one{lost}"


def _name(row: ScaleRow) -> str:
    return " ".join(part for part in (row.strategy, row.collective) if part)


def _series(rows: Sequence[ScaleRow]) -> list[str]:
    """Of each row the curve it belongs to: a strategy, and its collective only where several were asked for.

    Else the collective may be the fastest of each number of workers, and one worker has none.
    """
    several = len({(row.strategy, row.workers) for row in rows}) < len(rows)
    return [_name(row) if several else row.strategy for row in rows]


def _scaled(ends: Sequence[float] | None, factor: float) -> tuple[float, ...]:
    return tuple(end * factor for end in ends or ())


def _ends(row: ScaleRow) -> dict[str, float]:
    """The ends of the 90% intervals of what is drawn, where they are known."""
    found: dict[str, float] = {}
    for name, interval, factor in (
        ("efficiency", row.efficiency_interval, 1.0),
        ("speedup", row.efficiency_interval, float(row.workers)),
        ("cost", row.interval, (row.cost or 0.0) / row.time_s),
    ):
        found |= dict(zip((f"{name}_low", f"{name}_high"), _scaled(interval, factor)))
    return found


def _part_colour(alt: Any, legend: Any) -> Any:
    scale = alt.Scale(domain=list(PARTS), range=[colour for _, colour in PARTS.values()])
    return alt.Color("part:N", title=None, legend=legend, scale=scale)


def _look(alt: Any, series: Sequence[str], order: Sequence[str]) -> tuple[Any, Any]:
    """Colour and shape of each curve."""
    colours, shapes = told_apart(series, order)
    legend = alt.Legend(orient="bottom", columns=1, title=None) if len(series) > 1 else None
    return (
        alt.Color("series:N", title=None, scale=alt.Scale(domain=list(series), range=colours), legend=legend),
        alt.Shape("series:N", title=None, scale=alt.Scale(domain=list(series), range=shapes), legend=legend),
    )


def _sized(panel: Any) -> Any:
    return panel.properties(width=270, height=240)


def _workers(alt: Any, workers: Sequence[int]) -> Any:
    shown = list(workers) if len(workers) <= 9 else [n for n in workers if n & (n - 1) == 0]
    scale = alt.Scale(type="log", base=2, domain=[workers[0], max(workers[-1], workers[0] + 1)], nice=False)
    return alt.X("workers:Q", title="workers", scale=scale, axis=alt.Axis(values=shown, format="d"))


def _ideal(alt: Any, workers: Sequence[int], key: str) -> list[Any]:
    """A thin line where nothing is lost, with its name."""
    weak = key == "efficiency"
    ends = [{"workers": n, key: 1.0 if weak else n, "said": "ideal"} for n in dict.fromkeys((workers[0], workers[-1]))]
    x, y = _workers(alt, workers), _axis(alt, key)
    line = alt.Chart(values(ends)).mark_line(strokeWidth=1, opacity=0.6).encode(x=x, y=y)
    name = alt.Chart(values(ends[-1:])).mark_text(align="right", dx=-8 if weak else -14, dy=-7, fontSize=10)
    return [line, name.encode(x=x, y=y, text=alt.Text("said:N"))]


_SHARES = ("efficiency", "exposed")
_TITLES = {"efficiency": "efficiency: share of the ideal speed-up", "speedup": "speed-up", "cost": "cost (USD)",
           "exposed": "exposed communication: share of a step"}  # fmt: skip


def _axis(alt: Any, key: str, field: str = "") -> Any:
    scale = alt.Scale(type="log", base=2, nice=False) if key == "speedup" else alt.Scale(zero=True)
    axis = alt.Axis(format="%" if key in _SHARES else PLAIN, tickCount=6)
    return alt.Y(f"{field or key}:Q", title=_TITLES[key], scale=scale, axis=axis)


def _lines(alt: Any, data: Any, look: tuple[Any, Any], workers: Sequence[int], key: str) -> list[Any]:
    """Curves with their bands; the legend stands below the first panel."""
    colour, shape = look
    if key in ("cost", "exposed"):
        colour, shape = colour.copy().legend(None), shape.copy().legend(None)
    base = alt.Chart(data).encode(x=_workers(alt, workers), y=_axis(alt, key), color=colour)
    # One worker has no interval: of two a band has but one end.
    area = alt.Chart(data).mark_area(opacity=0.18) if len(workers) > 2 else alt.Chart(data).mark_rule(opacity=0.4)
    low, high = _axis(alt, key, f"{key}_low"), alt.Y2(f"{key}_high:Q")
    bands = [area.encode(x=_workers(alt, workers), y=low, y2=high, color=colour)] if key != "exposed" else []
    tips = [alt.Tooltip("series:N"), alt.Tooltip("collective:N"), alt.Tooltip("workers:Q"),
            alt.Tooltip(f"{key}:Q", format=".1%" if key in _SHARES else ".4~r"),
            alt.Tooltip("efficiency:Q", format=".1%"), alt.Tooltip("throughput:Q", format=",.4~r", title="per second"),
            alt.Tooltip("limited:N", title="limited by")]  # fmt: skip
    dash = either(alt.StrokeDashValue, "datum.bound", [5, 4], [1, 0])
    return [
        *bands,
        base.mark_line().encode(strokeDash=dash, detail=alt.Detail("bound:N")),
        base.mark_point(filled=True, size=45, opacity=1).encode(shape=shape, tooltip=tips, **hollow(colour)),
    ]


def _shares(alt: Any, rows: Sequence[ScaleRow], bound: bool) -> Any:
    """What a step consists of, and above each bar how long it takes.

    Shares, not times: under strong scaling the bars would fall to nothing, and under weak scaling say one thing.
    """
    few = len({row.workers for row in rows}) <= _TIMES_AT_MOST
    parts = [
        {"workers": row.workers, "part": part, "order": order, "bound": bound,
         "time": getattr(row, field), "share": getattr(row, field) / row.time_s,
         "took": format_si(getattr(row, field), "s", 3), "step": format_si(row.time_s, "s", 2), "top": 1.0}
        for row in rows
        for order, (part, (field, _)) in enumerate(PARTS.items())
    ]  # fmt: skip
    x = alt.X("workers:O", title="workers", sort=None, axis=alt.Axis(labelAngle=0, labelOverlap=True))
    title = "share of a step" + ("; above: its time" if few else "")
    y = alt.Y("share:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5))
    colour = _part_colour(alt, alt.Legend(orient="bottom", columns=1))
    base = alt.Chart(values(parts))
    bars = base.mark_bar().encode(
        x=x, y=y, color=colour, order=alt.Order("order:Q"), **hollow(colour, dashed=True),
        tooltip=[alt.Tooltip("workers:O"), alt.Tooltip("part:N"), alt.Tooltip("took:N", title="time"),
                 alt.Tooltip("share:Q", format=".1%")],
    )  # fmt: skip
    if not few:
        return bars
    text = base.transform_filter("datum.order == 0").mark_text(dy=-6, fontSize=8)
    return alt.layer(bars, text.encode(x=x, y=alt.Y("top:Q", title=title), text=alt.Text("step:N")))

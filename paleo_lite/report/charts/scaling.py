"""Scaling curves in PALEO's three panels: speed-up, time of a step by part, and cost (else throughput).

Qi, Sparks, Talwalkar, "Paleo", ICLR 2017, figures 3 to 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...distributed.step import ScaleRow
from ...distributed.table import ScaleTable
from .render import altair, time_unit, values
from .theme import GROUPS, SERIES, SHAPES

PARTS = {
    "compute": ("compute_s", SERIES[0]),
    "exposed communication": ("exposed_s", GROUPS["communication"]),
    "update": ("update_s", GROUPS["update"]),
}


def scale_chart(table: ScaleTable) -> Any:
    """What ``scale`` found: curves over the workers, or, of one number of them, time by part of each strategy.

    Raises
    ------
    BadValue
        If there are no rows.
    """
    per = "per worker" if table.scaling == "weak" else "in all"
    title = f"{table.network} on {table.gpu_name}, {table.precision} training, {table.scaling} scaling"
    subtitle = f"batch {table.batch_size} {per}; {table.topology}; {table.model}"
    if len(table.rows) > 1 and len({row.workers for row in table.rows}) == 1:
        return advice_chart(table.rows, title, subtitle)
    return scaling_chart(table.rows, title, subtitle)


def advice_chart(rows: Sequence[ScaleRow], title: str, subtitle: str = "") -> Any:
    """Time of a step by part, for several strategies on one number of workers, in the order of the rows.

    Raises
    ------
    BadValue
        If there are no rows.
    """
    alt = altair()
    factor, unit = time_unit(max((row.time_s for row in rows), default=0.0))
    names = [f"{place}. {_name(row)}" for place, row in enumerate(rows, 1)]
    parts = [
        {"strategy": name, "part": part, "order": order, "limited": row.limited_by,
         "time": getattr(row, field) * factor}
        for name, row in zip(names, rows)
        for order, (part, (field, _)) in enumerate(PARTS.items())
    ]  # fmt: skip
    bars = (
        alt.Chart(values(parts))
        .mark_bar()
        .encode(
            y=alt.Y("strategy:N", sort=names, title=None, axis=alt.Axis(labelLimit=400)),
            x=alt.X("time:Q", title=f"time of a step ({unit})"),
            color=_part_colour(alt, alt.Legend(orient="bottom")),
            order="order:Q",
            tooltip=["strategy:N", "part:N", alt.Tooltip("time:Q", format=".4~g", title=unit), "limited:N"],
        )
    )
    lines = [line for line in (subtitle, f"{rows[0].workers} workers; hidden communication is not drawn") if line]
    return bars.properties(width=560, height=alt.Step(24), title=alt.Title(title, subtitle=lines))


def scaling_chart(rows: Sequence[ScaleRow], title: str, subtitle: str = "") -> Any:
    """Speed-up beside the ideal, time by part, cost or throughput, over the number of workers.

    Parameters
    ----------
    rows : sequence of ScaleRow
        Of one or several strategies and collectives.
    title, subtitle : str

    Raises
    ------
    BadValue
        If there are no rows.
    """
    alt = altair()
    factor, unit = time_unit(max((row.time_s for row in rows), default=0.0))
    named: list[dict[str, Any]] = [
        {
            "series": series, "workers": row.workers, "collective": row.collective,
            "speedup": row.speedup, "cost": row.cost, "throughput": row.throughput_per_s,
            "efficiency": row.efficiency, "limited": row.limited_by,
        }
        for series, row in zip(_series(rows), rows)
    ]  # fmt: skip
    data = values(named)
    series = list(dict.fromkeys(row["series"] for row in named))
    workers = sorted({row.workers for row in rows})
    ideal = [{"workers": n, "speedup": n} for n in (workers[0], workers[-1])]
    speed = alt.layer(
        alt.Chart(alt.Data(values=ideal)).mark_line(strokeDash=[4, 4], strokeWidth=1).encode(
            x=_workers(alt, workers), y=alt.Y("speedup:Q", scale=alt.Scale(type="log", base=2, nice=False))
        ),
        *_lines(alt, data, series, workers, "speedup", "speed-up (dashed: ideal)", log=True),
    )  # fmt: skip
    priced = all(row.cost is not None for row in rows)
    last = ("cost", "cost (USD)") if priced else ("throughput", "samples per second")
    money = alt.layer(*_lines(alt, data, series, workers, *last))
    panels = [_sized(speed), _times(alt, rows, named, series, factor, unit), _sized(money)]
    lines = [line for line in (subtitle, "hidden communication is not drawn: it takes no time of its own") if line]
    chart = alt.hconcat(*panels).resolve_scale(color="independent", shape="independent")
    return chart.properties(title=alt.Title(title, subtitle=lines))


def _name(row: ScaleRow) -> str:
    return " ".join(part for part in (row.strategy, row.collective) if part)


def _series(rows: Sequence[ScaleRow]) -> list[str]:
    """Of each row the curve it belongs to: a strategy, and its collective only where several were asked for.

    Else the collective may be the fastest of each number of workers, and one worker has none.
    """
    several = len({(row.strategy, row.workers) for row in rows}) < len(rows)
    return [_name(row) if several else row.strategy for row in rows]


def _part_colour(alt: Any, legend: Any) -> Any:
    scale = alt.Scale(domain=list(PARTS), range=[colour for _, colour in PARTS.values()])
    return alt.Color("part:N", title=None, legend=legend, scale=scale)


def _sized(panel: Any) -> Any:
    return panel.properties(width=250, height=240)


def _workers(alt: Any, workers: Sequence[int]) -> Any:
    shown = list(workers) if len(workers) <= 9 else [n for n in workers if n & (n - 1) == 0]
    scale = alt.Scale(type="log", base=2, domain=[workers[0], max(workers[-1], workers[0] + 1)], nice=False)
    return alt.X("workers:Q", title="workers", scale=scale, axis=alt.Axis(values=shown, format="d"))


def _lines(
    alt: Any, data: Any, series: list[str], workers: Sequence[int], key: str, title: str, log: bool = False
) -> list[Any]:
    colours = [SERIES[index % len(SERIES)] for index in range(len(series))]
    shapes = [SHAPES[index % len(SHAPES)] for index in range(len(series))]
    legend = alt.Legend(orient="bottom", columns=1, title=None) if len(series) > 1 and key == "speedup" else None
    base = alt.Chart(data).encode(
        x=_workers(alt, workers),
        y=alt.Y(f"{key}:Q", title=title, axis=alt.Axis(format="~s", tickCount=6),
                scale=alt.Scale(type="log", base=2, nice=False) if log else alt.Scale(zero=True)),
        color=alt.Color("series:N", scale=alt.Scale(domain=series, range=colours), legend=legend),
    )  # fmt: skip
    shape = alt.Shape("series:N", scale=alt.Scale(domain=series, range=shapes), legend=legend)
    tips = ["series:N", "collective:N", "workers:Q", alt.Tooltip(f"{key}:Q", format=".4~s"),
            alt.Tooltip("efficiency:Q", format=".1%"), "limited:N"]  # fmt: skip
    return [base.mark_line(), base.mark_point(filled=True, size=45, opacity=1).encode(shape=shape, tooltip=tips)]


def _times(
    alt: Any, rows: Sequence[ScaleRow], named: Sequence[dict[str, Any]], series: list[str], factor: float, unit: str
) -> Any:
    """Stacked bars, one row of panels per series where there are several: at most the first four."""
    drawn = series[:4]
    parts = [
        {"workers": row.workers, "series": name["series"], "part": part, "order": order,
         "time": getattr(row, field) * factor}
        for row, name in zip(rows, named)
        for order, (part, (field, _)) in enumerate(PARTS.items())
        if name["series"] in drawn
    ]  # fmt: skip
    bars = (
        alt.Chart(alt.Data(values=parts))
        .mark_bar()
        .encode(
            x=alt.X("workers:O", title="workers", sort=None, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("time:Q", title=f"time of a step ({unit})"),
            color=_part_colour(alt, alt.Legend(orient="bottom", columns=1)),
            order="order:Q",
            tooltip=["series:N", "workers:O", "part:N", alt.Tooltip("time:Q", format=".4~g", title=unit)],
        )
    )  # fmt: skip
    if len(drawn) == 1:
        return _sized(bars)
    panel = bars.encode(y=alt.Y("time:Q", title=None, axis=alt.Axis(tickCount=3)))
    panel = panel.properties(width=250, height=240 / len(drawn) - 20)
    row = alt.Row("series:N", title=f"time of a step ({unit})", sort=drawn, header=alt.Header(labelOrient="top"))
    return panel.facet(row=row, spacing=4)

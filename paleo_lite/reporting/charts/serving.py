"""Charts of serving: the Pareto front of deployments, and the latencies of one deployment with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...serving.answers import Serving
from ...serving.candidates import RANKINGS, DeploymentAdvice
from ...serving.outcomes import LATENCIES
from ...sweeps.comparison import Comparison
from ...text import format_plural
from ...units import format_number
from ..formats import format_time_short
from ..side_by_side import conclusions
from .marks import NUMBER_FORMAT, assign_colours_and_shapes, scale_of, title_of_axis
from .render import altair, inline_data, log_ticks, time_unit

WIDTH, HEIGHT = 560, 360


SINGLE, SPLIT = "every replica does both", "pools for prompts and for decoding"
"""What points of deployments are, in the legend of their shapes."""


def serving_chart(serving: Serving | Comparison) -> Any:
    """Draw the Pareto front of tokens per second per GPU and per user, or the latencies of deployments."""
    if isinstance(serving, Comparison):
        return _comparison_chart(serving)
    if serving.advice is not None:
        return _front_chart(serving)
    return _latency_chart(serving)


def _front_chart(serving: Serving) -> Any:
    """Draw all deployments, with a line along the front and a ring around the chosen one."""
    alt = altair()
    advice = serving.advice
    assert advice is not None
    rows: list[dict[str, Any]] = []
    for candidate in advice.candidates:
        configuration = f"{candidate.parallelism()}, weights {candidate.weights}, batch {candidate.batch_limit}"
        if candidate.draft is not None:
            configuration += f", drafts {candidate.draft.describe()}"
        if candidate.prefill is not None:
            configuration += f", {format_plural(candidate.replicas, 'replica')} behind {candidate.prefill.describe()}"
        rows.append(
            {
                "device": candidate.gpu,
                "configuration": configuration,
                "per_user": candidate.tokens_per_s_per_user,
                "per_gpu": candidate.tokens_per_s_per_gpu,
                "front": candidate.is_on_front,
                "meets": candidate.meets_objectives,
                "pools": SINGLE if candidate.prefill is None else SPLIT,
            }
        )
    devices = sorted({row["device"] for row in rows})
    colours, _ = assign_colours_and_shapes(devices)
    log_scale = alt.Scale(type="log", nice=False, padding=12)
    x_axis, y_axis = (_log_axis(alt, [row[name] for row in rows]) for name in ("per_user", "per_gpu"))
    x = alt.X("per_user:Q", title="output tokens per second and user", scale=log_scale, axis=x_axis)
    y = alt.Y("per_gpu:Q", title="output tokens per second and GPU", scale=log_scale, axis=y_axis)
    colour = alt.Color("device:N", title=None, scale=alt.Scale(domain=devices, range=colours))
    tooltip = [alt.Tooltip("device:N"), alt.Tooltip("configuration:N")]
    tooltip += [alt.Tooltip(f"{name}:Q", format=".4~r") for name in ("per_user", "per_gpu")]
    base = alt.Chart(inline_data(rows)).encode(x=x, y=y)
    pools = {row["pools"]: None for row in rows}
    shapes = alt.Scale(domain=[SINGLE, SPLIT], range=["circle", "diamond"])
    shape = alt.Shape("pools:N", title=None, scale=shapes) if SPLIT in pools else alt.value("circle")
    points = base.mark_point(filled=True, size=45).encode(
        color=colour,
        shape=shape,
        tooltip=tooltip,
        opacity=alt.condition("datum.meets", alt.value(1.0), alt.value(0.25)),
    )
    front = alt.Chart(inline_data([row for row in rows if row["front"]])).mark_line(strokeWidth=1, color="#808080")
    layers = [front.encode(x=x, y=y, order="per_user:Q"), points]
    if advice.best is not None:
        chosen = {"per_user": advice.best.tokens_per_s_per_user, "per_gpu": advice.best.tokens_per_s_per_gpu}
        ring = alt.Chart(inline_data([chosen])).mark_point(filled=False, size=220, strokeWidth=2, color="#808080")
        layers.append(ring.encode(x=x, y=y))
    title = alt.Title(
        f"{serving.network}: throughput per GPU against speed per user",
        subtitle=[serving.traffic, f"logarithmic axes; {_front_legend(advice)}"],
    )
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _front_legend(advice: DeploymentAdvice) -> str:
    """Return what the marks of the front mean that are drawn."""
    legend = ["line: Pareto front"]
    meeting = [candidate.meets_objectives for candidate in advice.candidates]
    if not all(meeting):
        legend.append(f"faint: misses an objective{'' if advice.devices is None else ' or needs too many devices'}")
    if advice.best is None:
        legend.append("none is chosen")
    else:
        legend.append(f"ring: the {RANKINGS[advice.by].best}{'' if all(meeting) else ' that misses nothing'}")
    return "; ".join(legend)


def _log_axis(alt: Any, values: Sequence[float]) -> Any:
    """Return a logarithmic axis with few ticks, whose labels do not touch."""
    return alt.Axis(values=log_ticks(min(values), max(values)), format=NUMBER_FORMAT)


def _comparison_chart(result: Comparison) -> Any:
    """Draw the median latencies and the saturation rate of several deployments with their 90% intervals."""
    alt = altair()
    labels = result.labels()
    panels = []
    for name, text in COMPARED.items():
        figures = {
            label: _Ranged(row[name], row.get(f"{name}_low"), row.get(f"{name}_high"))
            for label, row in zip(labels, result.rows, strict=True)
            if row.get(name) is not None
        }
        if figures:
            panels.append(_figures_panel(alt, figures, text, is_time=name != "saturation_requests_per_s"))
    found = dict(conclusions(result))
    common: list[str] = []
    for name in ("network", "gpu_name", "engine", "traffic"):
        values = {getattr(answer, name) for answer in result.answers}
        common += values if len(values) == 1 else ()
    subtitle = [f"{name}: {text}" for name, text in found.items()]
    subtitle += [", ".join(common), _LEGEND] if common else [_LEGEND]
    heading = "Servers side by side"
    if "fastest" in found:
        heading = f"{found['fastest'].rpartition(': ')[0]} answers fastest"
    return alt.vconcat(*panels).properties(title=alt.Title(heading, subtitle=subtitle))


_LEGEND = "lines through points: 90% intervals"


class _Ranged(NamedTuple):
    """A figure with the ends of its interval; None without one."""

    value: float
    low: float | None
    high: float | None


def _figures_panel(alt: Any, figures: Mapping[str, _Ranged], text: str, *, is_time: bool) -> Any:
    """Draw one kind of figure as labelled points on their intervals, one below the other."""
    factor, unit = time_unit(max(figure.value for figure in figures.values())) if is_time else (1.0, "")
    marks: list[dict[str, Any]] = []
    for name, figure in figures.items():
        marks.append(
            {
                "name": name,
                "value": figure.value * factor,
                "low": (figure.low or figure.value) * factor,
                "high": (figure.high or figure.value) * factor,
                "label": format_time_short(figure.value) if is_time else format_number(figure.value),
            }
        )
    scale, axis = scale_of([mark[end] for mark in marks for end in ("low", "high")], (1.2, 1.2))
    title = title_of_axis(f"{text} ({unit})" if unit else text, scale)
    x, x_low = (alt.X(f"{end}:Q", title=title, scale=scale, axis=axis) for end in ("value", "low"))
    base = alt.Chart(inline_data(marks)).encode(y=alt.Y("name:N", title=None, sort=None))
    spread = base.mark_rule(strokeWidth=3, opacity=0.4).encode(x=x_low, x2=alt.X2("high:Q"))
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=x, tooltip=[alt.Tooltip("name:N"), alt.Tooltip("label:N", title=text)]
    )
    numbers = base.mark_text(align="center", dy=-9, fontSize=9).encode(x=x, text=alt.Text("label:N"))
    return alt.layer(spread, points, numbers).properties(width=WIDTH, height={"step": 26})


COMPARED = {
    "ttft_p50_s": "time to first token, p50",
    "tpot_p50_s": "time per output token, p50",
    "saturation_requests_per_s": "saturation rate, requests per second",
}
"""Numbers of a comparison that are drawn, with the titles of their axes."""


def _latency_chart(serving: Serving) -> Any:
    """Draw mean and percentiles of each latency with their 90% intervals."""
    alt = altair()
    panels = []
    for name, text in LATENCIES.items():
        figures = {
            part: _Ranged(figure.value, figure.low, figure.high)
            for part, figure in serving.latencies[name].items()
            if figure.value
        }
        if figures:
            panels.append(_figures_panel(alt, figures, text, is_time=True))
    title = alt.Title(
        f"{serving.network} on {serving.gpu_name}, {serving.engine}: latency of a request",
        subtitle=[serving.traffic, _LEGEND],
    )
    return alt.vconcat(*panels).properties(title=title)

"""Charts of serving: the Pareto front of deployments, and the latencies of one deployment with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...serving.answers import Serving
from ...serving.outcomes import LATENCIES
from ...sweeps.comparison import Comparison
from ...text import format_plural
from .marks import NUMBER_FORMAT, assign_colours_and_shapes
from .render import altair, inline_data, log_ticks

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
    subtitle = [serving.traffic, "line: Pareto front; faint: objectives not met; ring: the cheapest that meets them"]
    title = alt.Title(f"{serving.network}: throughput per GPU against speed per user", subtitle=subtitle)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _log_axis(alt: Any, values: Sequence[float]) -> Any:
    """Return a logarithmic axis with few ticks, whose labels do not touch."""
    return alt.Axis(values=log_ticks(min(values), max(values)), format=NUMBER_FORMAT)


def _comparison_chart(result: Comparison) -> Any:
    """Draw the median latencies and the saturation rate of several deployments as bars."""
    alt = altair()
    charts = []
    for name, label in COMPARED.items():
        rows = [
            {"deployment": label, "value": row[name]}
            for row, label in zip(result.rows, result.labels(), strict=True)
            if row.get(name) is not None
        ]
        bars = alt.Chart(inline_data(rows)).mark_bar().encode(
            x=alt.X("value:Q", title=label),
            y=alt.Y("deployment:N", title=None, sort=None),
            tooltip=["deployment:N", "value:Q"],
        )  # fmt: skip
        charts.append(bars.properties(width=WIDTH))
    title = alt.Title("Deployments side by side")
    return alt.vconcat(*charts).properties(title=title)


COMPARED = {
    "ttft_p50_s": "time to first token, p50, in seconds",
    "tpot_p50_s": "time per output token, p50, in seconds",
    "saturation_requests_per_s": "saturation rate, requests per second",
}
"""Numbers of a comparison that are drawn, with the titles of their axes."""


def _latency_chart(serving: Serving) -> Any:
    """Draw mean and percentiles of each latency with their 90% intervals."""
    alt = altair()
    rows: list[dict[str, Any]] = []
    for name, label in LATENCIES.items():
        for part, figure in serving.latencies[name].items():
            if figure.value:
                low = figure.value if figure.low is None else max(figure.low, 1e-6)
                high = figure.value if figure.high is None else figure.high
                rows.append({"latency": label, "part": part, "value": figure.value, "low": low, "high": high})
    log_scale = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("value:Q", title="seconds", scale=log_scale)
    y = alt.Y("part:N", title=None, sort=["mean", "p50", "p90", "p99"])
    base = alt.Chart(inline_data(rows))
    spread = base.mark_rule(strokeWidth=2, opacity=0.4).encode(
        x=alt.X("low:Q", title="seconds", scale=log_scale), x2="high:Q", y=y
    )
    points = base.mark_point(filled=True, size=60).encode(x=x, y=y, tooltip=["latency:N", "part:N", "value:Q"])
    facets = []
    for label in LATENCIES.values():
        if not any(row["latency"] == label for row in rows):
            continue
        facet = alt.layer(spread, points).transform_filter(alt.datum.latency == label)
        facets.append(facet.properties(width=WIDTH, height=80, title=label))
    title = alt.Title(
        f"{serving.network} on {serving.gpu_name}, {serving.engine}: latency of a request",
        subtitle=[serving.traffic, "lines: 90% intervals"],
    )
    return alt.vconcat(*facets).properties(title=title)

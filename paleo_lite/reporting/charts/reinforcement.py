"""Charts of reinforcement learning: the phases of a step over the devices, live sequences, and divisions compared."""

from __future__ import annotations

from typing import Any

from ...reinforcement.answer import RlAnswer
from ...reinforcement.step import PHASES
from ...sweeps.comparison import Comparison
from ...units import format_si
from .marks import NUMBER_FORMAT
from .render import SERIES, altair, inline_data, time_unit

WIDTH, ROW_HEIGHT, LIVE_HEIGHT = 640, 40, 160

SHARED = "in turns"
"""Label of a division in which engines and trainer take turns on the same devices."""


def rl_chart(answer: RlAnswer | Comparison) -> Any:
    """Draw the phases of a step with its live sequences, the divisions that advice compared, or several steps."""
    if isinstance(answer, Comparison):
        return _comparison_chart(answer)
    if answer.divisions:
        return _division_chart(answer)
    return _step_chart(answer)


def _step_chart(answer: RlAnswer) -> Any:
    """Draw the phases over the devices, and below them the sequences that are live during generation."""
    alt = altair()
    spans = answer.spans()
    end_s = max(span.end_s for span in spans)
    factor, unit = time_unit(end_s)
    marks = [
        {
            "devices": span.devices,
            "phase": PHASES[span.phase],
            "start": span.start_s * factor,
            "end": span.end_s * factor,
            "took": format_si(span.end_s - span.start_s, "s", 3),
        }
        for span in spans
    ]
    names = list(dict.fromkeys(mark["phase"] for mark in marks))
    colours = alt.Scale(domain=names, range=[SERIES[number % len(SERIES)] for number in range(len(names))])
    rows = list(dict.fromkeys(span.devices for span in spans))
    scale = alt.Scale(domain=[0, end_s * factor], nice=False)
    bars = (
        alt.Chart(inline_data(marks))
        .mark_bar()
        .encode(
            x=alt.X("start:Q", title=f"time ({unit})", scale=scale, axis=alt.Axis(format=NUMBER_FORMAT)),
            x2=alt.X2("end:Q"),
            y=alt.Y("devices:N", title=None, sort=rows),
            color=alt.Color(
                "phase:N", title=None, scale=colours, legend=alt.Legend(orient="bottom", columns=2, labelLimit=300)
            ),
            tooltip=[alt.Tooltip("devices:N"), alt.Tooltip("phase:N"), alt.Tooltip("took:N", title="time")],
        )
        .properties(width=WIDTH, height=ROW_HEIGHT * len(rows))
    )
    charts = [bars]
    if answer.rollouts is not None:
        live = [{"time": seconds * factor, "live": count} for seconds, count in answer.rollouts.live]
        line = (
            alt.Chart(inline_data(live))
            .mark_area(opacity=0.5, color=SERIES[0], line=True)
            .encode(
                x=alt.X("time:Q", title=f"time ({unit})", scale=scale, axis=alt.Axis(format=NUMBER_FORMAT)),
                y=alt.Y("live:Q", title="live sequences"),
                tooltip=[alt.Tooltip("time:Q", format=".4~r"), alt.Tooltip("live:Q")],
            )
        )
        charts.append(line.properties(width=WIDTH, height=LIVE_HEIGHT))
    title = alt.Title(
        f"{answer.network}: a step of {answer.algorithm} takes {format_si(answer.time_s, 's', 3)}",
        subtitle=[f"{answer.devices} x {answer.gpu_name}, {answer.framework}, {answer.samples:,} samples"],
    )
    return alt.vconcat(*charts).properties(title=title)


def _division_chart(answer: RlAnswer) -> Any:
    """Draw the time of a step over the number of devices that only engines use, for every division that fits."""
    alt = altair()
    factor, unit = time_unit(max(row.time_s for row in answer.divisions))
    marks = [
        {
            "devices": SHARED if row.rollout_workers is None else str(row.rollout_workers),
            "tensor": f"{row.rollout_tensor}",
            "step": row.time_s * factor,
            "trainer": f"tensor {row.tensor}, pipeline {row.pipeline}, context {row.context_parallel}, "
            f"experts {row.expert_parallel}",
        }
        for row in answer.divisions
    ]
    numbers = sorted({row.rollout_workers for row in answer.divisions if row.rollout_workers is not None})
    order = [SHARED, *map(str, numbers)]
    points = (
        alt.Chart(inline_data(marks))
        .mark_point(filled=True, size=60, opacity=0.7)
        .encode(
            x=alt.X("devices:N", title="devices of the engines alone", sort=order),
            y=alt.Y("step:Q", title=f"step ({unit})", axis=alt.Axis(format=NUMBER_FORMAT)),
            color=alt.Color("tensor:N", title="tensor-parallel size of an engine"),
            tooltip=["devices:N", "tensor:N", "trainer:N", alt.Tooltip("step:Q", format=".4~r")],
        )
    )
    title = alt.Title(
        f"{answer.network}: step time by the division of {answer.devices} x {answer.gpu_name}",
        subtitle=["a point for every division that fits; in turns: trainer and engines share all devices"],
    )
    return points.properties(width=WIDTH, height=320, title=title)


def _comparison_chart(comparison: Comparison) -> Any:
    """Draw the times of several steps as bars, with their 90% intervals as lines."""
    alt = altair()
    factor, unit = time_unit(max(row["time_s"] for row in comparison.rows))
    rows = [
        {
            "step": label,
            "time": row["time_s"] * factor,
            "low": row["low_s"] * factor,
            "high": row["high_s"] * factor,
        }
        for row, label in zip(comparison.rows, comparison.labels(), strict=True)
    ]
    base = alt.Chart(inline_data(rows)).encode(y=alt.Y("step:N", title=None, sort=None))
    bars = base.mark_bar().encode(
        x=alt.X("time:Q", title=f"step ({unit})", axis=alt.Axis(format=NUMBER_FORMAT)),
        tooltip=["step:N", alt.Tooltip("time:Q", format=".4~r")],
    )
    ends = base.mark_rule(strokeWidth=2, opacity=0.6).encode(x=alt.X("low:Q", title=f"step ({unit})"), x2="high:Q")
    title = alt.Title("Steps side by side", subtitle=["lines: 90% intervals"])
    return alt.layer(bars, ends).properties(width=WIDTH, title=title)

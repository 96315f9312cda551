"""Charts of reinforcement learning: the phases of a step over the devices, live sequences, and divisions compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...reinforcement.answer import ENGINES, TRAINER, RlAnswer, RlRow
from ...reinforcement.step import PHASES
from ...sweeps.comparison import Comparison
from ...text import format_plural
from ...units import format_si
from ..reinforcement import SHOWN_DIVISIONS
from .marks import NUMBER_FORMAT
from .render import SERIES, altair, inline_data, time_unit
from .side_by_side import side_by_side_chart

WIDTH, ROW_HEIGHT, LIVE_HEIGHT = 640, 40, 160


def rl_chart(answer: RlAnswer | Comparison) -> Any:
    """Draw the phases of a step with its live sequences, the divisions that advice compared, or several steps."""
    if isinstance(answer, Comparison):
        return side_by_side_chart(answer, "Steps side by side", "step")
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
                "phase:N", title=None, scale=colours, legend=alt.Legend(orient="bottom", columns=1, labelLimit=300)
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
    """Draw the time of a step under the fastest divisions that fit, with those of its two sides."""
    alt = altair()
    shown = answer.divisions[:SHOWN_DIVISIONS]
    factor, unit = time_unit(max(row.time_s for row in shown))
    names = describe_divisions(shown)
    steps = [
        {"division": name, "time": row.time_s * factor, "label": format_si(row.time_s, "s", 3)}
        for name, row in zip(names, shown)
    ]
    sides = [
        {"division": name, "time": seconds * factor, "side": side, "label": format_si(seconds, "s", 3)}
        for name, row in zip(names, shown)
        for side, seconds in ((TRAINER, row.trainer_s), (ENGINES, row.rollouts_s))
    ]
    y = alt.Y("division:N", title=None, sort=names, axis=alt.Axis(labelLimit=480))
    title = f"step ({unit})"
    x = alt.X("time:Q", title=title, axis=alt.Axis(format=NUMBER_FORMAT))
    tooltip = [alt.Tooltip("division:N"), alt.Tooltip("label:N", title="time")]
    base = alt.Chart(inline_data(steps)).encode(x=x, y=y)
    bars = base.mark_bar(color=SERIES[0], opacity=0.35).encode(tooltip=tooltip)
    labels = base.mark_text(align="left", dx=4, fontSize=9).encode(text=alt.Text("label:N"))
    colours = alt.Scale(domain=[TRAINER, ENGINES], range=[SERIES[1], SERIES[2]])
    points = (
        alt.Chart(inline_data(sides))
        .mark_tick(thickness=3, opacity=1)
        .encode(x=x, y=y, color=alt.Color("side:N", title=None, scale=colours), tooltip=tooltip)
    )
    best = shown[0]
    subtitle = [f"bars: a step of {answer.algorithm}; ticks: all phases of one side, which take turns or overlap"]
    if len(answer.divisions) > len(shown):
        subtitle.append(f"the {len(shown)} fastest of {len(answer.divisions)} divisions that fit")
    heading = f"{answer.network} on {answer.devices} x {answer.gpu_name}: {format_si(best.time_s, 's', 3)} at best"
    return alt.layer(bars, points, labels).properties(
        width=WIDTH, height=alt.Step(20), title=alt.Title(heading, subtitle=subtitle)
    )


def describe_divisions(rows: Sequence[RlRow]) -> list[str]:
    """Return what tells divisions apart: the settings that differ between them."""
    settings = [
        {
            "devices": "in turns" if row.rollout_workers is None else f"engines on {row.rollout_workers}",
            "engine": f"tensor {row.rollout_tensor}",
            "tensor": f"trainer tensor {row.tensor}",
            "pipeline": f"pipeline {row.pipeline}",
            "context": f"context {row.context_parallel}",
            "experts": f"experts {row.expert_parallel}",
            "off": format_plural(row.steps_off, "step") + " off",
        }
        for row in rows
    ]
    always = {"devices", "engine", "tensor"}
    names = [name for name in settings[0] if name in always or len({setting[name] for setting in settings}) > 1]
    return [", ".join(setting[name] for name in names) for setting in settings]

"""Chart of a pipeline's schedule: a row per stage with its passes, exchanges and waiting."""

from __future__ import annotations

from typing import Any

import msgspec

from ...distributed.pipeline_schedule import (
    BACKWARD,
    BUBBLE,
    EXCHANGE,
    FORWARD,
    UPDATE,
    Span,
    StageTimes,
    fraction_of,
    simulate_schedule,
    step_end_s,
)
from ...distributed.table import ScaleTable
from ...errors import BadValue
from ...text import format_plural
from ...units import format_si
from .marks import NUMBER_FORMAT
from .render import GROUPS, POINTS_AT_MOST, SERIES, altair, inline_data, time_unit

COLOURS = {
    FORWARD: SERIES[0],
    BACKWARD: SERIES[1],
    EXCHANGE: GROUPS["communication"],
    UPDATE: GROUPS["update"],
    BUBBLE: "#8C929966",
}
"""Colour of each kind of span; waiting is faint, in the chart and in its legend."""

STAGES_AT_MOST = 64
"""Maximum number of stages in a chart."""

_WIDTH, _ROW_HEIGHT = 720, 24
_DIGIT_WIDTHS = {9: 5.0, 8: 4.5, 7: 4.0}
"""Pixels of a digit by font size of the numbers, the largest first."""

_SPANS_PER_TASK = 2


def schedule_chart(table: ScaleTable) -> Any:
    """Draw the schedule of the largest pipeline among the rows of ``scale``.

    If there are too many micro-batches to see, the schedule of fewer is drawn; the steady part in the middle repeats.
    The title is that of all micro-batches. Raise BadValue if no row has a pipeline, or a pipeline has more than
    `STAGES_AT_MOST` stages.
    """
    rows = [row for row in table.rows if row.pipeline is not None]
    if not rows:
        raise BadValue(
            "the chart schedule needs a pipeline: use `--strategy pipeline-1f1b` or `pipeline-gpipe`, or `--pipeline`"
        )
    row = max(rows, key=lambda row: row.workers)
    times = row.pipeline
    assert times is not None
    if times.stages > STAGES_AT_MOST:
        raise BadValue(f"the chart schedule shows at most {STAGES_AT_MOST} stages (got {times.stages})")
    alt = altair()
    all_spans = simulate_schedule(times)
    drawn = msgspec.structs.replace(times, micro_batches=_drawn_micro_batches(times))
    spans = all_spans if drawn == times else simulate_schedule(drawn)
    end_s = step_end_s(spans)
    factor, unit = time_unit(end_s)
    marks = [_mark_of(span, factor) for span in spans]
    parts = [part for part in COLOURS if any(mark["part"] == part for mark in marks)]
    colours = alt.Scale(domain=parts, range=[COLOURS[part] for part in parts])
    x = alt.X("start:Q", title=f"time ({unit})", scale=alt.Scale(domain=[0, end_s * factor], nice=False))
    y = alt.Y("stage:O", title="stage")
    bars = (
        alt.Chart(inline_data(marks))
        .mark_bar(height=_ROW_HEIGHT - 4)
        .encode(
            x=x.axis(alt.Axis(format=NUMBER_FORMAT, grid=False)),
            x2=alt.X2("end:Q"),
            y=y,
            color=alt.Color("part:N", title=None, scale=colours, legend=alt.Legend(orient="bottom")),
            opacity=alt.Opacity("opacity:Q", scale=None, legend=None),
            tooltip=[
                alt.Tooltip("stage:O"),
                alt.Tooltip("part:N"),
                alt.Tooltip("micro_batch:N", title="micro-batch"),
                alt.Tooltip("took:N", title="time"),
            ],
        )
    )
    layers = [bars]
    pixels_per_unit = _WIDTH / (end_s * factor)
    passes = [mark for mark in marks if mark["part"] in (FORWARD, BACKWARD)]
    wide = [{**mark, "size": size} for mark in passes if (size := _font_size(mark, pixels_per_unit)) is not None]
    if not all(_most_are_in(wide, passes, part) for part in (FORWARD, BACKWARD)):
        wide = []  # numbers of one kind of pass alone would be misleading
    if wide:
        numbers = alt.Chart(inline_data(wide)).mark_text(color="#FFFFFF")
        layers.append(
            numbers.encode(
                x=alt.X("middle:Q", title=f"time ({unit})"),
                y=y,
                text=alt.Text("micro_batch:N"),
                size=alt.Size("size:Q", scale=None, legend=None),
            )
        )
    title = f"{fraction_of(all_spans, BUBBLE):.0%} of the time of the stages is the pipeline bubble"
    lines = [
        f"{table.network} on {row.workers} x {table.gpu_name}, {table.precision} {table.phase}, batch {row.batch_size}",
        f"{describe_schedule(times)}; a step takes {format_si(row.time_s, 's', 3)}",
    ]
    if drawn != times:
        lines.append(f"drawn with {drawn.micro_batches} of {times.micro_batches} micro-batches: the middle repeats")
    if wide:
        lines.append("numbers: micro-batches" + ("" if len(wide) == len(passes) else ", where they fit"))
    if times.virtual_stages > 1:
        lines.append("pale: every second virtual stage of a device")
    chart = alt.layer(*layers).properties(width=_WIDTH, height={"step": _ROW_HEIGHT})
    return chart.properties(title=alt.Title(title, subtitle=lines))


def _mark_of(span: Span, factor: float) -> dict[str, Any]:
    """Return the row of a span, with its times in the unit of the axis; `factor` converts seconds into it."""
    return {
        "stage": span.stage + 1,
        "part": span.kind,
        "start": span.start_s * factor,
        "end": span.end_s * factor,
        "middle": (span.start_s + span.end_s) / 2 * factor,
        "took": format_si(span.end_s - span.start_s, "s", 3),
        "micro_batch": "" if span.micro_batch is None else str(span.micro_batch + 1),
        "opacity": _opacity(span),
    }


def _font_size(mark: dict[str, Any], pixels_per_unit: float) -> int | None:
    """Return the largest font size in which the number of the micro-batch fits into a bar; None if it fits in none."""
    width: float = (mark["end"] - mark["start"]) * pixels_per_unit
    digits = len(mark["micro_batch"])
    return next((size for size, digit_width in _DIGIT_WIDTHS.items() if width >= digits * digit_width + 1), None)


def _most_are_in(chosen: list[dict[str, Any]], marks: list[dict[str, Any]], part: str) -> bool:
    """Return whether at least half of the marks of a kind are among the chosen ones."""
    of_kind = [mark for mark in marks if mark["part"] == part]
    return 2 * len([mark for mark in chosen if mark["part"] == part]) >= len(of_kind)


def _opacity(span: Span) -> float:
    """Return the opacity of a span: virtual stages alternate."""
    if span.kind == BUBBLE:
        return 1.0
    return 1.0 if span.virtual_stage % 2 == 0 else 0.65


def describe_schedule(times: StageTimes) -> str:
    """Return the name of the schedule with its numbers of stages and micro-batches."""
    name = "GPipe" if times.schedule == "gpipe" else "1F1B"
    if times.virtual_stages > 1:
        name = f"interleaved 1F1B with {times.virtual_stages} virtual stages per device"
    return f"{name}, {format_plural(times.stages, 'stage')}, {format_plural(times.micro_batches, 'micro-batch')}"


def _drawn_micro_batches(times: StageTimes) -> int:
    """Return as many micro-batches as can be drawn, at least one per stage and a multiple of the stages."""
    tasks = 2 * times.stages * times.virtual_stages
    drawable = POINTS_AT_MOST // (_SPANS_PER_TASK * tasks)
    if times.micro_batches <= drawable:
        return times.micro_batches
    return min(times.micro_batches, max(1, drawable // times.stages) * times.stages)

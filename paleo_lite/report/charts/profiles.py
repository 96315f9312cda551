"""A profile in pictures: shares of the classes of kernels, the kernels under the roofline, and what ran when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...efficiency.kernels import KernelReport
from ...efficiency.timeline import Timeline
from ...units import format_si
from .render import altair, group_colour, time_unit, values
from .roofline import Dot, roofline_chart
from .theme import GROUPS, group_of

_WHOLE = 0.99
"""Share of a kernel's time whose calls were counted from which its count is taken to be whole, as `kernels` does."""


def title_of(report: KernelReport) -> str:
    """Title of a profile's charts, where none is given."""
    direction = "" if report.direction == "all" else f", {report.direction}"
    return f"{Path(report.path).name} on {report.device.name}{direction}"


def class_chart(report: KernelReport, title: str = "") -> Any:
    """Share of the time of each class of kernels.

    Raises
    ------
    BadValue
        If the profile has no durations.
    """
    alt = altair()
    rows = [
        {"class": row["class"].replace("_", " "), "group": group_of(row["class"]), "share": row["share"],
         "label": f"{row['share']:.1%}", "time": format_si(row["time_s"], "s"), "calls": row["calls"]}
        for row in (report.by_class() if report.time_s is not None else [])
        if row["share"]
    ]  # fmt: skip
    base = alt.Chart(values(rows)).encode(
        y=alt.Y("class:N", sort=[row["class"] for row in rows], title=None),
        x=alt.X("share:Q", title="share of the kernels' time", axis=alt.Axis(format="%")),
    )
    bars = base.mark_bar().encode(
        color=group_colour([row["class"].replace(" ", "_") for row in rows]).legend(None),
        tooltip=[alt.Tooltip("class:N"), alt.Tooltip("time:N"), alt.Tooltip("label:N"), alt.Tooltip("calls:Q")],
    )
    text = base.mark_text(align="left", dx=4).encode(text=alt.Text("label:N"))
    total = "no durations" if report.time_s is None else format_si(report.time_s, "s")
    subtitle = f"{sum(row.calls for row in report.kernels):,} kernels, {total}"
    named = alt.Title(title or title_of(report), subtitle=subtitle)
    return alt.layer(bars, text).properties(width=560, height=alt.Step(20), title=named)


def kernel_roofline(report: KernelReport, title: str = "") -> Any:
    """The kernels of a profile under the device's peaks: one dot for the calls of a name that were counted.

    Where those are a part of its calls, the dot has another shape.

    Raises
    ------
    BadValue
        If no kernel has FLOPs, bytes and time.
    """
    dots = [
        Dot(
            row.name,
            row.label,
            row.counted_flops or 0.0,
            row.counted_bytes or 0.0,
            row.counted_s or 0.0,
            "all calls counted" if (row.counted_s or 0.0) >= _WHOLE * (row.time_s or 0.0) else "a part of the calls",
            all_s=row.time_s,
        )
        for row in report.kernels
    ]
    peaks = [(f"{report.peak.peak.precision} {report.peak.peak.unit} peak", report.peak.per_s)]
    bandwidth = report.device.bandwidth_bytes_per_s
    return roofline_chart(
        dots, peaks, bandwidth, title or title_of(report), f"memory {format_si(bandwidth, 'B/s')}", "kernel"
    )


def timeline_chart(timeline: Timeline, title: str) -> Any:
    """What ran when: of each slice of time the share that each class of kernels kept the device busy.

    More than 1 means that kernels overlapped on several streams. Several devices are a row each.

    Raises
    ------
    BadValue
        If the profile holds no kernel with a start and a duration.
    """
    alt = altair()
    length = timeline.slice_s
    devices = timeline.by_device if len(timeline.by_device) > 1 else {-1: timeline.busy_s}
    factor, unit = time_unit(length * timeline.busy_s.shape[1])
    panels: list[Any] = []
    for device, seconds in devices.items():
        last = len(panels) == len(devices) - 1
        x = alt.X("from:Q", title=f"time ({unit})" if last else None, scale=alt.Scale(nice=False))
        bars = (
            alt.Chart(values(_slices(timeline, seconds, factor)))
            .mark_rect(strokeWidth=0)
            .encode(
                x=x,
                x2=alt.X2("to:Q"),
                y=alt.Y("low:Q", title="busy" if len(devices) == 1 else f"device {device}", axis=alt.Axis(format="%")),
                y2=alt.Y2("high:Q"),
                color=group_colour(list(timeline.classes), "kind of kernel"),
                tooltip=[
                    alt.Tooltip("group:N"),
                    alt.Tooltip("from:Q", format=".4~r"),
                    alt.Tooltip("busy:Q", format=".1%"),
                ],
            )
        )
        panels.append(bars.properties(width=860, height=220 if len(devices) == 1 else 110))
    gathered = f"{timeline.kernels:,} kernels in {timeline.busy_s.shape[1]} slices of {format_si(length, 's')}"
    named = alt.Title(title, subtitle=gathered)
    if len(panels) == 1:
        return panels[0].properties(title=named)
    return alt.vconcat(*panels, spacing=8).resolve_scale(x="shared", y="shared").properties(title=named)


def _slices(timeline: Timeline, seconds: Any, factor: float) -> list[dict[str, Any]]:
    """For each slice of time the shares of the kinds of kernels, one on the other."""
    length = timeline.slice_s
    busy: dict[str, Any] = {}
    for label, row in zip(timeline.classes, seconds):
        group = group_of(label)
        busy[group] = busy.get(group, 0.0) + row
    rows = []
    for index in range(seconds.shape[1]):
        below = 0.0
        for group in (group for group in GROUPS if group in busy):
            share = float(busy[group][index] / length)
            if share > 0:
                span = {"from": index * length * factor, "to": (index + 1) * length * factor}
                rows.append({**span, "group": group, "busy": share, "low": below, "high": below + share})
            below += share
    return rows

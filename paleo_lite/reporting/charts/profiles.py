"""Charts of a profile: time by class of kernels, kernels on the roofline, and the timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...profile_analysis.kernels import KernelReport
from ...profile_analysis.recorded_device import require_peak
from ...profile_analysis.timeline import Timeline
from ...text import format_plural, truncate
from ...units import format_si
from ..formats import format_percent
from .render import GROUPS, altair, group_colour, group_of, inline_data, time_unit
from .roofline import Dot, roofline_chart

_FULLY_COUNTED = 0.99
"""Share of a kernel's time in counted calls from which its count is taken as complete, as in `kernels`."""


def _profile_title(report: KernelReport) -> str:
    """Return file, device and direction of a profile, for the subtitle of its charts."""
    direction = "" if report.direction == "all" else f", {report.direction}"
    return f"{truncate(Path(report.path).name, 60)} on {report.device.name}{direction}"


def class_chart(report: KernelReport, title: str = "") -> Any:
    """Draw the share of time of each class of kernels."""
    alt = altair()
    rows = [
        {
            "class": row["class"].replace("_", " "),
            "group": group_of(row["class"]),
            "share": row["share"],
            "label": format_percent(row["share"]),
            "time": format_si(row["time_s"], "s"),
            "calls": row["calls"],
        }
        for row in (report.by_class() if report.time_s is not None else [])
        if row["share"]
    ]
    base = alt.Chart(inline_data(rows)).encode(
        y=alt.Y("class:N", sort=[row["class"] for row in rows], title=None),
        x=alt.X("share:Q", title="share of the kernels' time", axis=alt.Axis(format="%", grid=False)),
    )
    bars = base.mark_bar().encode(
        color=group_colour([row["class"].replace(" ", "_") for row in rows]).legend(None),
        tooltip=[alt.Tooltip("class:N"), alt.Tooltip("time:N"), alt.Tooltip("label:N"), alt.Tooltip("calls:Q")],
    )
    text = base.mark_text(align="left", dx=4).encode(text=alt.Text("label:N"))
    shares: dict[str, float] = {}
    for row in rows:
        shares[row["group"]] = shares.get(row["group"], 0.0) + row["share"]
    largest = max(shares, key=lambda group: shares[group], default="")
    totals = (
        f"{format_plural(sum(row.calls for row in report.kernels), 'kernel')}, {format_si(report.time_s or 0.0, 's')}"
    )
    default_title = f"{shares.get(largest, 0.0):.0%} of the kernels' time is {largest}"
    chart_title = alt.Title(title or default_title, subtitle=[_profile_title(report), totals])
    return alt.layer(bars, text).properties(width=560, height=alt.Step(20), title=chart_title)


def kernel_roofline(report: KernelReport, title: str = "") -> Any:
    """Draw the kernels of a profile on the roofline, a dot per kernel name, computed from its counted calls.

    Kernels with calls that were not counted have another shape.
    """
    device, peak = require_peak(report.device, report.peak)
    dots = [
        Dot(
            row.name,
            row.label,
            row.counted_flops or 0.0,
            row.counted_bytes or 0.0,
            row.counted_s or 0.0,
            "all calls counted"
            if (row.counted_s or 0.0) >= _FULLY_COUNTED * (row.time_s or 0.0)
            else "some calls counted",
            all_s=row.time_s,
        )
        for row in report.kernels
    ]
    peaks = [(f"{peak.peak.precision} {peak.peak.unit} peak", peak.per_s)]
    bandwidth = device.bandwidth_bytes_per_s
    counted_s = sum(dot.time_s for dot in dots)
    reached = sum(dot.flops for dot in dots) / counted_s / peak.per_s if counted_s else 0.0
    default_title = f"Counted kernels reach {format_percent(reached)} of peak FLOP/s"
    subtitle = [f"{_profile_title(report)}; memory {format_si(bandwidth, 'B/s')}"]
    return roofline_chart(dots, peaks, bandwidth, title or default_title, subtitle, "kernel")


def timeline_chart(timeline: Timeline, title: str) -> Any:
    """Draw a timeline: the share of each time slice in which kernels of each class ran, a row per device.

    Shares above 1 mean that kernels overlapped on several streams.
    """
    alt = altair()
    length = timeline.slice_s
    devices = timeline.by_device if len(timeline.by_device) > 1 else {-1: timeline.busy_s}
    factor, unit = time_unit(length * timeline.busy_s.shape[1])
    panels: list[Any] = []
    for device, seconds in devices.items():
        is_last = len(panels) == len(devices) - 1
        x = alt.X("from:Q", title=f"time ({unit})" if is_last else None, scale=alt.Scale(nice=False))
        bars = (
            alt.Chart(inline_data(_slices(timeline, seconds, factor)))
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
    slices = timeline.busy_s.shape[1]
    subtitle = f"{title}: {format_plural(timeline.kernels, 'kernel')} in {slices} slices of {format_si(length, 's')}"
    duration_s = slices * length
    share = timeline.busy_s.sum() / duration_s / len(devices)
    per_device = " of each device" if len(devices) > 1 else ""
    classes_s = dict.fromkeys(map(group_of, timeline.classes), 0.0)
    for label, seconds in zip(timeline.classes, timeline.busy_s.sum(axis=1)):
        classes_s[group_of(label)] += float(seconds)
    largest = max(classes_s, key=lambda group: classes_s[group])
    headline = f"Kernels fill {format_percent(share)} of {format_si(duration_s, 's')}{per_device}"
    headline += f", {classes_s[largest] / sum(classes_s.values()):.0%} of it {largest}"
    if share > 1:
        headline += " (kernels overlap)"
    chart_title = alt.Title(headline, subtitle=subtitle)
    if len(panels) == 1:
        return panels[0].properties(title=chart_title)
    return alt.vconcat(*panels, spacing=8).resolve_scale(x="shared", y="shared").properties(title=chart_title)


def _slices(timeline: Timeline, seconds: Any, factor: float) -> list[dict[str, Any]]:
    """Return the stacked shares of the groups of kernels in each time slice."""
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

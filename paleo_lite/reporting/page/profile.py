"""The report of a profile: utilisation of the device, time breakdown, and kernels to optimize first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import convert

from ...profile_analysis.analysis import Efficiency
from ...profile_analysis.device_time import CAUSES, TimeBreakdown, idle_remedies
from ...profile_analysis.kernels import KernelReport, KernelRow
from ...profile_analysis.next_command import kernels_to_profile
from ...profile_analysis.recorded_device import require_peak
from ...profile_analysis.timeline import Timeline
from ...text import format_plural, truncate
from ...units import format_si
from ..charts.profiles import class_chart, kernel_roofline, timeline_chart
from ..columns import find_column, select_columns
from ..document import Chart, Document, KeyFigure, ReportProvenance, Table, draw_chart
from ..efficiency import efficiency_page
from ..formats import format_percent
from ..kernels import kernels_page, measure_next
from .sections import device_section, sources_section

_MIN_BUSY_SHARE = 0.75  # below, idle time is the first thing to fix
_MIN_COVERED = 0.5  # share of an iteration's time in operations with known FLOPs (bytes) to show a share of peak


def profile_report(
    kernels: KernelReport,
    provenance: ReportProvenance,
    *,
    efficiency: Efficiency | str,  # by the steady method, or the reason why it is unavailable
    timeline: Timeline | str,  # or the reason why it is unavailable
    # Purposes and commands that profile the most important kernels in more detail.
    next_commands: Sequence[tuple[str, str]] = (),
) -> Document:
    """Return the report of a profile."""
    device, _ = require_peak(kernels.device, kernels.peak)
    name = truncate(kernels.path.rpartition("/")[2])
    page = kernels_page(kernels, top=None)
    listed = [table for table in page.tables if table.name == "kernels"]
    sections = [
        _efficiency_section(efficiency),
        _time_section(kernels, page, timeline),
        _roofline_section(kernels),
        _optimization_section(kernels),
        Document(format_plural(len(kernels.kernels), "kernel"), content=listed, notes=page.notes, name="kernels"),
    ]
    counters = [table for table in page.tables if table.name == "counters"]
    if counters:
        sections.append(Document("Hardware counters", content=counters, name="counters"))
    sections += [_configuration_section(kernels, page), device_section(device)]
    if next_commands:
        introduction = [
            "Counters slow a program down many times, so only the most important kernels are profiled again."
        ]
        sections.append(Document("Next measurements", introduction=introduction, commands=next_commands, name="next"))
    sections.append(sources_section(provenance))
    return Document(
        title=f"{name} on {kernels.device.name}",
        question=f"How well did this run use the {kernels.device.name}, and which kernels should be optimized first?",
        introduction=[*_idle_remedies(efficiency), _summary(kernels)],
        answers=_answers(kernels, efficiency),
        sections=sections,
        provenance=provenance,
    )


def _answers(kernels: KernelReport, efficiency: Efficiency | str) -> list[KeyFigure]:
    answers = []
    device, rate = require_peak(kernels.device, kernels.peak)
    peak = format_si(rate.per_s, "FLOP/s")
    if not isinstance(efficiency, str) and efficiency.rows:
        row = efficiency.rows[0]
        answers += _busy_figures(row)
        bandwidth = format_si(device.bandwidth_bytes_per_s, "B/s")
        answers.append(_peak_figure("FLOP/s", "FLOPs", row["flops_efficiency"], row["flops_covered"], peak))
        answers.append(_peak_figure("bandwidth", "bytes", row["bandwidth_efficiency"], row["bytes_covered"], bandwidth))
        if row["kernel_s"] is not None:
            answers.append(
                KeyFigure("Kernels of an iteration", format_si(row["kernel_s"], "s"), "sum, median of the iterations")
            )
    calls = sum(row.calls for row in kernels.kernels)
    if kernels.time_s is not None:
        answers.append(KeyFigure("All kernels", format_si(kernels.time_s, "s", 5), f"sum of {calls:,} calls"))
    else:
        answers.append(KeyFigure("Calls", f"{calls:,}", "the profile has no durations"))
    return answers


def _busy_figures(row: dict[str, Any]) -> list[KeyFigure]:
    """Return busy and idle time of the device, with the causes of idle time."""
    if row.get("busy_share") is None:
        return []
    window_s, busy = row["window_s"], row["busy_share"]
    causes = sorted(((time_s, cause) for cause, time_s in row["idle_s"].items() if time_s), reverse=True)
    cause_text = ", ".join(f"{CAUSES[cause]} {format_si(time_s, 's')}" for time_s, cause in causes)
    idle_s = (1 - busy) * window_s
    return [
        KeyFigure("Device busy", format_percent(busy), f"of {format_si(window_s, 's')}"),
        KeyFigure(
            "Device idle", format_si(idle_s, "s") if causes else "never", cause_text, is_alarm=busy < _MIN_BUSY_SHARE
        ),
    ]


def _peak_figure(name: str, counted: str, share: float | None, covered: float, peak: str) -> KeyFigure:
    """Return a share of peak, or `unknown` if counts cover too little of the time."""
    if covered < _MIN_COVERED:
        return KeyFigure(
            f"Share of peak {name}", "unknown", f"{counted} are known for only {covered:.0%} of an iteration's time"
        )
    if share is None:
        return KeyFigure(
            f"Share of peak {name}", "unknown", f"no {counted} in the counted operations (copies and similar)"
        )
    return KeyFigure(f"Share of peak {name}", f"{share:.1%}", f"of {peak}, in a steady-state iteration")


def _idle_remedies(efficiency: Efficiency | str) -> list[str]:
    """Return what shortens large parts of the idle time, which precede kernels."""
    if isinstance(efficiency, str) or not efficiency.rows or efficiency.rows[0]["idle_s"] is None:
        return []
    row = efficiency.rows[0]
    breakdown = convert({name: row[name] for name in TimeBreakdown.__struct_fields__}, TimeBreakdown)
    return [f"{sentence[0].upper()}{sentence[1:]}." for sentence in idle_remedies(breakdown)]


def _summary(kernels: KernelReport) -> str:
    """Return a paragraph on the kernel to optimize first."""
    ranked = _ranked_kernels(kernels)
    if not ranked:
        if kernels.time_s is None:
            return "The profile has no times, so its kernels cannot be ranked."
        return "The profile does not contain what bounds its kernels; profile the longest ones with counters next."
    first = ranked[0]
    text = f"Optimize {truncate(first.name)} first: {first.share or 0:.1%} of the time"
    if first.bound is not None and first.headroom is not None:
        text += f", of which {first.headroom:.0%} would be saved at the limit set by {first.bound}"
    text += "."
    if len(ranked) > 1:
        share = sum(row.share or 0.0 for row in ranked)
        text += f" The {len(ranked)} kernels listed first take {share:.0%} of the time."
    return text


def _efficiency_section(efficiency: Efficiency | str) -> Document:
    title = "Utilisation of the device"
    if isinstance(efficiency, str):
        return Document(title, content=[f"Not available: {efficiency}"], name="efficiency")
    page = efficiency_page(efficiency)
    facts = [fact for fact in page.facts if fact[0] != "common settings"]
    tables = [_transpose(table) if table.title == "Profiles" else table for table in page.tables]
    return page.replace(name="efficiency", title=title, facts=facts, content=tables)


def _transpose(table: Table) -> Table:
    """Return the single row of a table as a table with a row per figure."""
    row = table.rows[0]
    rows = [
        {"figure": column.heading, "value": column.text(row)}
        for column in table.columns
        if column.key != "file" and row.get(column.key) is not None
    ]
    return Table("Summary", select_columns("figure", find_column("value", left=False)), rows)


def _time_section(kernels: KernelReport, page: Document, timeline: Timeline | str) -> Document:
    content: list[Chart | Table | str] = []
    if kernels.time_s is not None:
        content.append(draw_chart("Time by class of kernels.", lambda: class_chart(kernels, "Classes of kernels")))
        content += [table for table in page.tables if table.title == "By class"]
    if isinstance(timeline, str):
        content.append(f"No timeline: {timeline}")
    else:
        caption = (
            "Share of each time slice in which kernels of each class ran. Above 100%, kernels overlap; below 100%, the "
            "device is idle for part of the slice."
        )
        content.append(draw_chart(caption, lambda: timeline_chart(timeline, "Timeline"), has_tooltips=False))
    return Document("Where the time went", content=content, name="time")


def _roofline_section(kernels: KernelReport) -> Document:
    caption = (
        "Each dot is a kernel (all calls with counted FLOPs and bytes). The lines are the limits set by memory "
        "bandwidth and by the arithmetic units."
    )
    otherwise = "The profile contains no FLOPs and bytes, so there is no roofline."
    picture = draw_chart(caption, lambda: kernel_roofline(kernels, "Roofline of the kernels"), otherwise=otherwise)
    return Document("Roofline", content=[picture], name="roofline")


def _ranked_kernels(kernels: KernelReport) -> list[KernelRow]:
    """Return the most important kernels with known headroom, ordered by the time that could be saved."""
    with_headroom = [row for row in kernels.kernels if row.headroom is not None]
    return [] if kernels.time_s is None else kernels_to_profile(with_headroom)


def _optimization_section(kernels: KernelReport) -> Document:
    rows = [row.to_dict() for row in _ranked_kernels(kernels)]
    title = "Kernels to optimize first"
    if not rows:
        unranked = "The profile has no times, so its kernels cannot be ranked."
        return Document(title, content=measure_next(kernels) or [unranked], name="first")
    introduction = [
        "Ordered by possible savings: the time of a kernel times its headroom, the share of its time that it would "
        "save at the roofline, or at the peak of what Nsight Compute measured. Kernels with unknown headroom are "
        "listed separately."
    ]
    columns = select_columns(
        "rank",
        find_column("kernel", key="name"),
        "class",
        "time_s",
        "share",
        "headroom",
        "occupancy",
        "bound",
        "flops_efficiency",
    )
    return Document(
        title,
        content=[Table("Kernels by possible savings", columns, rows).drop_empty_columns(), *measure_next(kernels)],
        introduction=introduction,
        name="first",
    )


def _configuration_section(kernels: KernelReport, page: Document) -> Document:
    facts = [fact for fact in page.facts if fact[0] != "run"]
    content: list[Chart | Table | str] = []
    if kernels.configuration:
        rows = [{"name": name.replace("_", " "), "value": value} for name, value in kernels.configuration.items()]
        columns = select_columns(find_column("setting", key="name"), "value")
        content.append(Table("Settings from the file name", columns, rows))
    return Document("Run", [("file", truncate(kernels.path)), *facts], content, name="run")

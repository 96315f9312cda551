"""The report of a profile: how well the device was used, where the time went, what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...profile_analysis.analysis import Efficiency
from ...profile_analysis.device_time import CAUSES
from ...profile_analysis.kernels import KernelReport, KernelRow
from ...profile_analysis.next_command import kernels_that_matter
from ...profile_analysis.timeline import Timeline
from ...text import short
from ...units import format_si
from ..charts.profiles import class_chart, kernel_roofline, timeline_chart
from ..document import Chart, Column, Document, KeyFigure, Made, Table, drawn, say_percent, say_time, say_whole_percent
from ..efficiency import efficiency_page
from ..kernels import kernels_page, measure_next
from .sections import all_of, device_section, sources_section

_IDLE = 0.75  # a device that is busy for less of the time is what to look at first
_ENOUGH = 0.5  # of an iteration's time must be in operations with known FLOPs (bytes) before a share of peak is shown


def profile_report(
    kernels: KernelReport,
    made: Made,
    *,
    efficiency: Efficiency | str,
    timeline: Timeline | str,
    next_commands: Sequence[tuple[str, str]] = (),
) -> Document:
    """The report of a profile.

    Parameters
    ----------
    made : Made
        How to get it again.
    efficiency : Efficiency or str
        Of this one profile, by the steady method; or the sentence why there is none.
    timeline : Timeline or str
        Or the sentence why there is none.
    next_commands : sequence of (what for, command)
        What to run to know more of the kernels that matter.
    """
    name = short(kernels.path.rpartition("/")[2])
    page = kernels_page(kernels, top=None)
    listed = [table for table in page.tables if table.title.startswith("Kernels")]
    sections = [
        _efficiency(efficiency),
        _time(kernels, page, timeline),
        _roofline(kernels),
        _first(kernels),
        Document(all_of(len(kernels.kernels), "kernel"), content=listed, notes=page.notes, name="kernels"),
    ]
    if counters := [table for table in page.tables if table.title.startswith("Counters of")]:
        sections.append(Document("What the counters say", content=counters, name="counters"))
    sections += [_configuration(kernels, page), device_section(kernels.device)]
    if next_commands:
        lead = ["Counters slow a program down many times over, so only the kernels that matter are profiled again."]
        sections.append(Document("What to measure next", lead=lead, commands=next_commands, name="next"))
    sections.append(sources_section(made))
    return Document(
        title=f"{name} on {kernels.device.name}",
        question=f"How well did this run use the {kernels.device.name}, and what should be made faster first?",
        lead=[_summary(kernels)],
        answers=_answers(kernels, efficiency),
        sections=sections,
        made=made,
    )


def _answers(kernels: KernelReport, efficiency: Efficiency | str) -> list[KeyFigure]:
    answers = []
    peak = format_si(kernels.peak.per_s, "FLOP/s")
    if not isinstance(efficiency, str) and efficiency.rows:
        row = efficiency.rows[0]
        answers += _busy(row)
        bandwidth = format_si(kernels.device.bandwidth_bytes_per_s, "B/s")
        answers.append(_share_of("FLOP/s", "FLOPs", row["flops_efficiency"], row["flops_covered"], peak))
        answers.append(_share_of("bandwidth", "bytes", row["bandwidth_efficiency"], row["bytes_covered"], bandwidth))
        if row["kernel_s"] is not None:
            answers.append(KeyFigure("Kernels of an iteration", format_si(row["kernel_s"], "s"), "summed; the median"))
    calls = sum(row.calls for row in kernels.kernels)
    if kernels.time_s is not None:
        answers.append(KeyFigure("All kernels", format_si(kernels.time_s, "s", 5), f"{calls:,} calls, summed"))
    else:
        answers.append(KeyFigure("Calls", f"{calls:,}", "the profile has no durations"))
    return answers


def _busy(row: dict[str, Any]) -> list[KeyFigure]:
    """How much of the time anything ran, and why nothing did for the rest."""
    if row.get("busy_share") is None:
        return []
    window_s, busy = row["window_s"], row["busy_share"]
    causes = sorted(((time_s, cause) for cause, time_s in row["idle_s"].items() if time_s), reverse=True)
    why = ", ".join(f"{CAUSES[cause]} {format_si(time_s, 's')}" for time_s, cause in causes)
    idle_s = (1 - busy) * window_s
    return [
        KeyFigure("Device busy", say_percent(busy), f"of {format_si(window_s, 's')}"),
        KeyFigure("Device idle", format_si(idle_s, "s") if causes else "never", why, alarm=busy < _IDLE),
    ]


def _share_of(name: str, counted: str, share: float | None, covered: float, peak: str) -> KeyFigure:
    """A share of peak, where what was counted covers enough of the time to say so."""
    if covered < _ENOUGH:
        return KeyFigure(f"Of peak {name}", "unknown", f"{counted} are known for {covered:.0%} of an iteration's time")
    if share is None:
        return KeyFigure(f"Of peak {name}", "unknown", f"of copies and the like, the rest of it, {counted} are none")
    return KeyFigure(f"Of peak {name}", f"{share:.1%}", f"of {peak}, over a steady iteration")


def _summary(kernels: KernelReport) -> str:
    first = _ranked(kernels)
    if not first:
        return (
            "The profile has no times, so it does not say what to make faster first."
            if kernels.time_s is None
            else "The profile does not say what bounds its kernels: measure those that take longest next."
        )
    share = sum(row.share or 0.0 for row in first)
    told = f"{short(first[0].name)} comes first: {first[0].share or 0:.1%} of the time"
    if first[0].bound is not None and first[0].headroom is not None:
        told += f", {first[0].headroom:.0%} of which would not be needed at the limit that {first[0].bound} sets"
    listed = "" if len(first) == 1 else f" The {len(first)} to look at first make up {share:.0%} of it."
    return f"{told}.{listed}"


def _efficiency(efficiency: Efficiency | str) -> Document:
    title = "How well the device was used"
    if isinstance(efficiency, str):
        return Document(title, content=[f"Not from this profile: {efficiency}"], name="efficiency")
    page = efficiency_page(efficiency)
    facts = [fact for fact in page.facts if fact[0] != "all of them"]
    tables = [_upright(table) if table.title == "Profiles" else table for table in page.tables]
    return page.but(name="efficiency", title=title, facts=facts, content=tables)


def _upright(table: Table) -> Table:
    """The one row of a table as a line for each figure."""
    row = table.rows[0]
    told = [
        {"figure": column.title.replace("\n", " "), "value": column.text(row)}
        for column in table.columns
        if column.key != "file" and row.get(column.key) is not None
    ]
    return Table("In figures", [Column("figure", "figure", left=True), Column("value", "value")], told)


def _time(kernels: KernelReport, page: Document, timeline: Timeline | str) -> Document:
    content: list[Chart | Table | str] = []
    if kernels.time_s is not None:
        content.append(drawn("Shares of the classes of kernels.", lambda: class_chart(kernels, "Classes of kernels")))
        content += [table for table in page.tables if table.title == "By class"]
    if isinstance(timeline, str):
        content.append(f"No timeline: {timeline}")
    else:
        caption = (
            "What ran when: of each slice of time the share that kernels of a kind were running. Above 100% kernels "
            "overlap, below it the device waits."
        )
        content.append(drawn(caption, lambda: timeline_chart(timeline, "Timeline"), tips=False))
    return Document("Where the time went", content=content, name="time")


def _roofline(kernels: KernelReport) -> Document:
    caption = (
        "Each dot is a kernel, all its calls together, as far as the profiler counted its FLOPs and bytes; the lines "
        "are the fastest that memory and arithmetic units allow."
    )
    otherwise = "The profiler counted no FLOPs and bytes of any kernel, so there is no roofline to draw."
    picture = drawn(caption, lambda: kernel_roofline(kernels, "Kernels under the roofline"), otherwise=otherwise)
    return Document("Roofline", content=[picture], name="roofline")


def _ranked(kernels: KernelReport) -> list[KernelRow]:
    """Those whose headroom is known, by what would be gained."""
    known = [row for row in kernels.kernels if row.headroom is not None]
    return [] if kernels.time_s is None else kernels_that_matter(known)


def _first(kernels: KernelReport) -> Document:
    rows = [row.to_dict() for row in _ranked(kernels)]
    title = "What to make faster first"
    if not rows:
        unranked = "The profile has no times, so its kernels cannot be ranked."
        return Document(title, content=measure_next(kernels) or [unranked], name="first")
    lead = [
        "By what could be gained: the time of a kernel times its headroom, the share of that time which it would not "
        "need at the roofline; where FLOPs or bytes are unknown, 1 less its occupancy. Where that is unknown, too, "
        "nobody knows what would be gained: those are listed apart, to be measured."
    ]
    columns = [
        Column("rank", "rank"),
        Column("name", "kernel", left=True),
        Column("class", "class", left=True),
        Column("time_s", "time", say_time),
        Column("share", "share", say_percent),
        Column("headroom", "headroom", say_whole_percent),
        Column("occupancy", "occupancy", say_whole_percent),
        Column("bound", "nearest limit", left=True),
        Column("flops_efficiency", "of peak FLOP/s", say_percent),
    ]
    return Document(
        title,
        content=[Table("To look at first", columns, rows).known(), *measure_next(kernels)],
        lead=lead,
        name="first",
    )


def _configuration(kernels: KernelReport, page: Document) -> Document:
    facts = [fact for fact in page.facts if fact[0] != "run"]
    content: list[Chart | Table | str] = []
    if kernels.configuration:
        rows = [{"name": name.replace("_", " "), "value": value} for name, value in kernels.configuration.items()]
        columns = [Column("name", "setting", left=True), Column("value", "value", left=True)]
        content.append(Table("What the file's name says", columns, rows))
    return Document("The run", [("file", short(kernels.path)), *facts], content, name="run")

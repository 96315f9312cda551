"""Kernels of a profile to look at: where the time went, how near the limits, what to do first, what counters mean; and
what the host did, by kind, by module, by function.
"""

from __future__ import annotations

import re
from typing import Any

from ..profile_analysis.host import KINDS, HostReport
from ..profile_analysis.kernels import NOT_PROFILED, KernelReport, KernelRow
from ..profile_analysis.metrics import explain
from ..profile_analysis.next_command import kernels_that_matter
from ..profile_analysis.timeline import Timeline
from ..profiles.names import CLASSES
from ..text import printable
from ..units import format_si
from .document import Column, Document, Table, raw_table, say_count, say_many, say_percent, say_time, say_whole_percent

_MEASURED_NEXT = 5
_EXPLAINED = 3  # kernels whose counters are explained


def kernels_page(report: KernelReport, top: int | None = 20, order: str = "time") -> Document:
    """The page of a profile's kernels.

    Parameters
    ----------
    top : int or None
        How many kernels to list; None lists all.
    order : {"time", "rank", "share"}
    """
    rows = [row.to_dict() for row in _ordered(report.kernels, order)]
    calls, timed = sum(row.calls for row in report.kernels), report.time_s is not None
    foot = [{"name": "all kernels", "calls": calls, "time_s": report.time_s, "share": 1.0}] if timed else []
    kernels = Table("Kernels", _columns(report), rows, foot, sortable=True, filterable=True)
    kernels = kernels.known("name", "class", "calls", "time_s").first(top)
    tables = [kernels.but(title=f"{kernels.title}, by {order}")]
    if timed:
        classes = [{**row, "meaning": CLASSES.get(row["class"])} for row in report.by_class()]
        tables.insert(0, Table("By class", _CLASSES, classes, sortable=True))
    if report.busy_s and not _one(report):
        busy = [{"name": name, "busy_s": seconds} for name, seconds in report.busy_s.items()]
        columns = [
            Column("name", "profile", left=True),
            Column("busy_s", "busy", lambda value: format_si(value, "s", 5)),
        ]
        tables.insert(0, Table("By profile", columns, busy))
    tables += measure_next(report) + _metric_tables(report)
    return Document(
        title=_headline(report),
        facts=_facts(report),
        content=tables,
        notes=report.notes,
        data=raw_table(rows, [key for key in rows[0] if key != "metrics"]),
    )


def measure_next(report: KernelReport) -> list[Table]:
    """What takes long, and nobody knows what bounds it."""
    unknown = [row for row in report.kernels if row.time_s and row.headroom is None and row.label not in NOT_PROFILED]
    if not unknown:
        return []
    tool = _profiler(report)
    how = "" if tool is None else f": --next-command {tool} prints how"
    columns = [
        Column("name", "kernel", left=True),
        Column("class", "class", left=True, spare=1),
        Column("time_s", "time", say_time),
        Column("share", "share", say_percent),
    ]
    table = Table(f"Measure these next{how}", columns, [row.to_dict() for row in unknown])
    return [table.first(_MEASURED_NEXT, "the longest ")]


def _profiler(report: KernelReport) -> str | None:
    """NVIDIA's for the device: nvprof knows none after Volta, Nsight Compute none before."""
    capability = report.device.capability
    if not re.fullmatch(r"\d+\.\d+", capability):
        return None
    return "ncu" if float(capability) >= 7.0 else "nvprof"


def command_lines(report: KernelReport, commands: list[str]) -> str:
    """The commands of the selective run, with what they are for as shell comments."""
    chosen = kernels_that_matter(report.kernels)
    share = sum(row.share or 0.0 for row in chosen)
    lines = [f"# step 1 is done: {len(report.kernels)} kernels by time, from {printable(report.path)}"]
    lines.append(f"# step 2: counters for the {len(chosen)} that matter, {share:.0%} of the time:")
    lines += [f"#   {row.share or 0:6.1%}  {printable(row.name)}" for row in chosen]
    lines.append("# collection starts where the program says so: torch.cuda.profiler.start() and stop()")
    return "\n".join([*lines, *commands])


def _ordered(rows: list[KernelRow], order: str) -> list[KernelRow]:
    if order == "rank":
        return sorted(rows, key=lambda row: (row.rank is None, row.rank or 0))
    if order == "share":
        return sorted(
            rows, key=lambda row: -1.0 if row.flops_efficiency is None else row.flops_efficiency, reverse=True
        )
    return rows


def _headline(report: KernelReport) -> str:
    direction = "" if report.direction == "all" else f", {report.direction}"
    kernels, calls = len(report.kernels), sum(row.calls for row in report.kernels)
    answer = f"{report.path}{direction}: {say_many(kernels, 'kernel')}, {say_many(calls, 'call')}"
    if report.time_s is None:
        return answer
    return f"{answer}, {format_si(report.time_s, 's', 5)}"


def _one(report: KernelReport) -> bool:
    """Whether it is of one profile, whose devices are numbers."""
    return all(name.lstrip("-").isdigit() for name in report.busy_s or {})


def _facts(report: KernelReport) -> list[tuple[str, str]]:
    facts = [("format", report.format)]
    if report.configuration:
        facts.append(("run", ", ".join(f"{name} {value}" for name, value in report.configuration.items())))
    facts.append(("peak", f"{report.peak.describe()}, {report.device.name}"))
    facts.append(("memory", f"{format_si(report.device.bandwidth_bytes_per_s, 'B/s')} peak bandwidth"))
    if report.union_s is not None and report.time_s:
        by_device = (
            format_si(seconds, "s", 5) + ("" if name == "-1" else f" on device {name}")
            for name, seconds in (report.busy_s or {}).items()
        )
        busy = ", ".join(by_device) if _one(report) else f"{format_si(report.union_s, 's', 5)} in all"
        facts.append(
            ("busy", f"{busy}; overlapping kernels count once, {report.time_s / report.union_s:.3f}x in the sum")
        )
    return facts


def _columns(report: KernelReport) -> list[Column]:
    return [
        Column("name", "kernel", left=True),
        Column("rank", "rank", spare=1),
        Column("class", "class", left=True, spare=2),
        Column("calls", "calls", say_count, spare=6),
        Column("time_s", "time", say_time),
        Column("share", "share", say_percent),
        Column("flops_per_s", "FLOP/s", format_si, spare=5),
        *([Column("flops", "FLOPs", format_si)] if report.time_s is None else []),
        Column("flops_efficiency", "share\nof peak", lambda value: f"{value:.2%}"),
        Column("bound", "bound by", left=True, spare=4),
        Column("headroom", "headroom", say_whole_percent, spare=3),
        Column("occupancy", "occu-\npancy", say_whole_percent, spare=1),
    ]


_CLASSES = [
    Column("class", "class", left=True),
    Column("kernels", "kernels", spare=1),
    Column("calls", "calls", say_count),
    Column("time_s", "time", say_time),
    Column("share", "share", say_percent, bar=True),
    Column("meaning", "what it is", left=True, spare=2),
]


def _metric_tables(report: KernelReport) -> list[Table]:
    """What the counters of the kernels that matter say, in words."""
    measured = [row for row in report.kernels if any(explain(name, 0.0) for name in row.metrics)]
    chosen = sorted(measured, key=lambda row: -row.gain_s)[:_EXPLAINED]
    rows: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(chosen, 1):
        for name, value in row.metrics.items():
            if (told := explain(name, value)) is not None:
                rows.setdefault(name, told)[f"value_{number}"] = told["shown"]
    if not rows:
        return []
    columns = [Column("metric", "counter", left=True)]
    columns += [Column(f"value_{number}", f"({number})", spare=number) for number in range(1, len(chosen) + 1)]
    columns += [
        Column("meaning", "what it is", left=True, fold=True),
        Column("good", "good", left=True, fold=True),
        Column("remedy", "if it is not", left=True, fold=True, spare=2),
    ]
    names = ", ".join(f"({number}) {row.name.rsplit('::', 1)[-1]}" for number, row in enumerate(chosen, 1))
    return [Table(f"Counters of {names}", columns, [rows[name] for name in sorted(rows)])]


def timeline_page(timeline: Timeline) -> Document:
    """How long each class of kernels kept the device, of the time in slices."""
    window_s = timeline.slice_s * timeline.busy_s.shape[1]
    rows = [
        {"class": label, "time_s": float(busy.sum()), "share": float(busy.sum()) / window_s}
        for label, busy in zip(timeline.classes, timeline.busy_s)
    ]
    columns = [
        Column("class", "class", left=True),
        Column("time_s", "time", say_time),
        Column("share", "of the window", say_percent, bar=True),
    ]
    slices = f"{timeline.busy_s.shape[1]} slices of {format_si(timeline.slice_s, 's')}"
    return Document(
        f"{timeline.name}: {timeline.kernels:,} kernels in {format_si(window_s, 's')}",
        [("window", slices)],
        [Table("Kernels by class", columns, rows)],
    )


def host_page(report: HostReport, top: int | None = 20, order: str = "time") -> Document:
    """The page of a profile of the host.

    Parameters
    ----------
    top : int or None
        How many functions to list; None lists all.
    order : str
        Ignored: the host has no peak to rank by.
    """
    what, share = "cycles" if report.time_s is None else "time", Column("share", "share", say_percent, bar=True)
    functions = Table(
        "Functions",
        [
            Column("name", "function", left=True),
            Column("kind", "kind", left=True, spare=2),
            Column("module", "module", left=True, spare=1),
            Column("calls", "calls", say_count, spare=4),
            Column("time_s", "time in it", say_time),
            Column("total_s", "with what\nit called", say_time, spare=3),
            share,
        ],
        report.to_dict()["hotspots"],
        sortable=True,
        filterable=True,
    ).known()
    listed = functions.first(top)
    tables = [listed.but(title=f"{listed.title}, by {what}")]
    for key in ("module", "kind"):
        groups = report.sums(key)
        if len(groups) > 1:
            columns = [
                Column(key, key, left=True),
                Column("functions", "functions", say_count, spare=2),
                *([] if report.time_s is None else [Column("time_s", "time in it", say_time)]),
                share,
                *([Column("meaning", "what it is", left=True, spare=1)] if key == "kind" else []),
            ]
            rows = [{**group, "meaning": KINDS.get(group[key] or "")} for group in groups]
            tables.insert(0, Table(f"By {key}", columns, rows, sortable=True))
    facts = [("format", report.format)]
    if report.configuration:
        facts.append(("run", ", ".join(f"{name} {value}" for name, value in report.configuration.items())))
    facts.append(("time", f"{what} of the host, summed over threads: nothing in it ran on a device"))
    first = report.hotspots[0]
    spent = "" if report.time_s is None else f"{format_si(report.time_s, 's', 5)} of the host, "
    headline = f"{report.path}: {spent}{first.share:.0%} of the {what} in {first.name[:60]}"
    return Document(headline, facts, tables, (), functions.but(title=""))

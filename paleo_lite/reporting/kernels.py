"""Documents of kernels, timelines and host profiles: time by class, roofline bounds, headroom, counters, functions."""

from __future__ import annotations

import re
from typing import Any

from ..machines import Device
from ..profile_analysis.host import KINDS, HostReport
from ..profile_analysis.kernels import KernelReport, KernelRow
from ..profile_analysis.metrics import device_throughputs, explain
from ..profile_analysis.next_command import kernels_to_profile
from ..profile_analysis.timeline import Timeline
from ..profiles.names import CLASSES, CLASSES_WITHOUT_ARITHMETIC
from ..text import format_plural, make_printable
from ..units import format_si
from .columns import find_column, select_columns
from .document import (
    Column,
    Document,
    Table,
    raw_table,
)

_MAX_UNMEASURED = 5
_MAX_EXPLAINED = 3  # kernels with explained counters


def kernels_page(report: KernelReport, top: int | None = 20, order: str = "time") -> Document:
    """Return the document of the kernels of a profile, with the `top` of them; None lists all.

    They are ordered by "time", "rank" or "share".
    """
    rows = [row.to_dict() for row in _ordered(report.kernels, order)]
    calls, timed = sum(row.calls for row in report.kernels), report.time_s is not None
    foot = [{"name": "all kernels", "calls": calls, "time_s": report.time_s, "share": 1.0}] if timed else []
    kernels = Table("Kernels", _columns(report), rows, foot, sortable=True, filterable=True, name="kernels")
    kernels = kernels.drop_empty_columns("name", "class", "calls", "time_s").head(top)
    tables = [kernels.replace(title=f"{kernels.title}, by {order}")]
    if timed:
        classes = [{**row, "meaning": CLASSES.get(row["class"])} for row in report.by_class()]
        tables.insert(0, Table("By class", _CLASSES, classes))
    if report.busy_s and not _is_single_profile(report):
        busy = [{"name": name, "busy_s": seconds} for name, seconds in report.busy_s.items()]
        columns = select_columns(find_column("profile", key="name"), "busy_s")
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
    """Return a table of the longest kernels with unknown bound, which should be profiled next, or none."""
    unknown = [
        row
        for row in report.kernels
        if row.time_s and row.calls != 0 and row.headroom is None and row.label not in CLASSES_WITHOUT_ARITHMETIC
    ]
    if not unknown:
        return []
    tool = _profiler(report)
    hint = "" if tool is None else f" (--next-command {tool} prints the command)"
    columns = select_columns(find_column("kernel", key="name"), "class", "time_s", "share", drop=("class",))
    table = Table(f"Kernels to measure next{hint}", columns, [row.to_dict() for row in unknown], name="kernels")
    return [table.head(_MAX_UNMEASURED, "the longest ")]


def _profiler(report: KernelReport) -> str | None:
    """Return NVIDIA's kernel profiler for the device: nvprof up to Pascal, Nsight Compute from Volta."""
    capability = report.device.capability if isinstance(report.device, Device) else ""
    if not re.fullmatch(r"\d+\.\d+", capability):
        return None
    return "ncu" if float(capability) >= 7.0 else "nvprof"


def command_lines(report: KernelReport, commands: list[str]) -> str:
    """Return the commands that profile only the important kernels, with shell comments."""
    chosen = kernels_to_profile(report.kernels)
    share = sum(row.share or 0.0 for row in chosen)
    lines = [f"# step 1 (done): {len(report.kernels)} kernels by time, from {make_printable(report.path)}"]
    lines.append(f"# step 2: counters of the {len(chosen)} most important kernels ({share:.0%} of the time):")
    lines += [f"#   {row.share or 0:6.1%}  {make_printable(row.name)}" for row in chosen]
    lines.append("# the program selects the profiled range with torch.cuda.profiler.start() and stop()")
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
    kernels = sum(row.calls != 0 for row in report.kernels)  # without those that a table leaves out
    calls = sum(row.calls for row in report.kernels)
    answer = f"{report.path}{direction}: {format_plural(kernels, 'kernel')}, {format_plural(calls, 'call')}"
    if report.time_s is not None:
        answer = f"{answer}, {format_si(report.time_s, 's', 5)}"
    if report.device_conflict:
        answer = f"{answer}; {report.device_conflict}, no share of peak"
    elif not isinstance(report.device, Device):
        answer = f"{answer}; {_measured_share(report) or f'it {report.device.reason}, no share of peak'}"
    return answer


def _measured_share(report: KernelReport) -> str:
    """Return the share of peak memory bandwidth of the longest kernel, which needs no device; empty without one."""
    longest = report.kernels[0]
    memory, _ = device_throughputs(longest.metrics)
    return "" if memory is None else f"{longest.name[:60]} at {memory:.1%} of the peak memory bandwidth"


def _is_single_profile(report: KernelReport) -> bool:
    """Return whether the report is of one profile: its busy times are then by device number."""
    return all(name.lstrip("-").isdigit() for name in report.busy_s or {})


def _file_facts(report: KernelReport | HostReport) -> list[tuple[str, str]]:
    """Return the facts about the file of a profile: its format, and the settings in its name."""
    facts = [("format", report.format)]
    if report.configuration:
        facts.append(("run", ", ".join(f"{name} {value}" for name, value in report.configuration.items())))
    return facts


def _facts(report: KernelReport) -> list[tuple[str, str]]:
    facts = _file_facts(report)
    if report.peak is None:
        facts.append(("device", report.device.name))
    else:
        facts.append(("peak", f"{report.peak.describe()}, {report.device.name}"))
        facts.append(("memory", f"{format_si(report.bandwidth_bytes_per_s, 'B/s')} peak bandwidth"))
    if report.union_s is not None and report.time_s:
        by_device = (
            format_si(seconds, "s", 5) + ("" if name == "-1" else f" on device {name}")
            for name, seconds in (report.busy_s or {}).items()
        )
        busy = ", ".join(by_device) if _is_single_profile(report) else f"{format_si(report.union_s, 's', 5)} in total"
        facts.append(
            (
                "busy",
                f"{busy}; overlapping kernels counted once (summed kernel time is "
                f"{report.time_s / report.union_s:.3f}x)",
            )
        )
    return facts


def _columns(report: KernelReport) -> list[Column]:
    return select_columns(
        find_column("kernel", key="name"),
        "rank",
        "class",
        "calls",
        "time_s",
        "share",
        "flops_per_s",
        *(["flops"] if report.time_s is None else []),
        "flops_efficiency",
        "bound",
        "headroom",
        "occupancy",
        drop=("calls", "flops_per_s", "bound", "headroom", "class", "rank", "occupancy"),
    )


_CLASSES = select_columns(
    "class", "kernels", "calls", "time_s", "share", "meaning", drop=("meaning", "kernels"), bars=("share",)
)


def _metric_tables(report: KernelReport) -> list[Table]:
    """Return a table that explains the counters of the most important kernels."""
    measured = [row for row in report.kernels if any(explain(name, 0.0) for name in row.metrics)]
    chosen = sorted(measured, key=lambda row: -row.gain_s)[:_MAX_EXPLAINED]
    rows: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(chosen, 1):
        for name, value in row.metrics.items():
            explanation = explain(name, value)
            if explanation is not None:
                rows.setdefault(name, explanation)[f"value_{number}"] = explanation["shown"]
    if not rows:
        return []
    columns = [find_column("metric")]
    for number in range(1, len(chosen) + 1):
        columns.append(find_column("value", key=f"value_{number}", title=f"({number})", left=False, drop_order=number))
    columns += select_columns("meaning", "good", "remedy", drop=("remedy",))
    names = ", ".join(f"({number}) {row.name.rsplit('::', 1)[-1]}" for number, row in enumerate(chosen, 1))
    return [
        Table(f"Counters of {make_printable(names)}", columns, [rows[name] for name in sorted(rows)], name="counters")
    ]


def timeline_page(timeline: Timeline) -> Document:
    """Return the busy time of each class of kernels in a timeline."""
    window_s = timeline.slice_s * timeline.busy_s.shape[1]
    rows = [
        {"class": label, "time_s": float(busy.sum()), "share": float(busy.sum()) / window_s}
        for label, busy in zip(timeline.classes, timeline.busy_s)
    ]
    share_of_window = find_column("share", title="share of\nthe window")  # kernels of several classes overlap
    columns = select_columns("class", "time_s", share_of_window, bars=("share",))
    slices = f"{timeline.busy_s.shape[1]} slices of {format_si(timeline.slice_s, 's')}"
    return Document(
        f"{timeline.name}: {format_plural(timeline.kernels, 'kernel')} in {format_si(window_s, 's')}",
        [("window", slices)],
        [Table("Kernels by class", columns, rows)],
    )


def host_page(report: HostReport, top: int | None = 20, order: str = "time") -> Document:
    """Return the document of a host profile, with the `top` functions; None lists all.

    The order is ignored: functions of the host are always ordered by time.
    """
    quantity = "cycles" if report.time_s is None else "time"
    functions = Table(
        "Functions",
        select_columns(
            find_column("function", key="name"),
            "kind",
            "module",
            "calls",
            find_column("self_s", key="time_s"),
            "total_s",
            "device_total_s",
            "share",
            drop=("calls", "total_s", "kind", "module"),
            bars=("share",),
        ),
        report.to_dict()["hotspots"],
        sortable=True,
        filterable=True,
    ).drop_empty_columns()
    listed = functions.head(top)
    tables = [listed.replace(title=f"{listed.title}, by {quantity}")]
    for key in ("module", "kind"):
        groups = report.sums(key)
        if len(groups) > 1:
            columns = select_columns(
                key,
                "functions",
                *([] if report.time_s is None else [find_column("self_s", key="time_s")]),
                "share",
                *(["meaning"] if key == "kind" else []),
                drop=("functions", "meaning"),
                bars=("share",),
            )
            rows = [{**group, "meaning": KINDS.get(group[key] or "")} for group in groups]
            tables.insert(0, Table(f"By {key}", columns, rows, sortable=True))
    facts = _file_facts(report)
    facts.append(("time", f"{quantity} on the host, summed over threads; {_describe_device_activity(report)}"))
    first = report.hotspots[0]
    spent = "" if report.time_s is None else f"{format_si(report.time_s, 's', 5)} on the host, "
    headline = f"{report.path}: {spent}{first.share:.0%} of the {quantity} in {first.name[:60]}"
    return Document(headline, facts, tables, report.notes, functions.replace(title=""))


def _describe_device_activity(report: HostReport) -> str:
    """Return the activity of the device that a profile of the host shows."""
    on_device = [row for row in report.hotspots if row.device_total_s]
    if not on_device:
        return "the profile has no device activity"
    longest = max(on_device, key=lambda row: row.device_total_s or 0.0)
    return (
        f"on the device {format_si(longest.device_total_s, 's')} in {longest.name[:60]}, the longest operation: "
        "device times include the operations inside, so that they do not add up"
    )

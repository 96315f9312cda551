"""Host time of a profile in which nothing ran on a device, by function, operator and module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from ..errors import BadProfile
from ..profiles.detect import Profile
from ..profiles.table import float_column, integer_column, values_of
from ..result import Result
from .activity import positions_by_value
from .totals import DEVICE_METRIC

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = {
    "cpu": "operators and functions",
    "api": "calls of the runtime",
    "marker": "ranges marked by the program, without the calls inside them",
    "communication": "collectives and messages, including waits",
}
"""Kinds of host rows, by category, and their descriptions."""

COLUMNS = ("category", "kernel", "layer", "start_ns", "duration_ns", "calls", "stream", "device", "thread")
"""Columns of a profile that are read."""

CYCLES = ("metric.hardware_event_count_cpu_clk_unhalted_thread", "metric.hardware_event_count_cpu_clk_unhalted_core")
"""Counters used as time if a profile has none: cycles during which a core was not halted."""

_SELF_TIME_METRICS = ("metric.exclusive_ns", "metric.self_cpu_ns")
"""Metrics of profilers that record the self time of a function."""


_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc)(?:::?|_)", re.I)
"""Prefix of the ranges that PyTorch records around collectives."""

_NUMBER_SUFFIX = re.compile(r"#\d+$")  # matches ProfilerStep#3, but not Optimizer.step#Adam.step
_EVENT = np.dtype([("group", "i4"), ("thread", "i8"), ("start", "i8"), ("end", "i8")])


class Hotspot(msgspec.Struct, frozen=True):
    """All calls of a function, operator or range."""

    name: str
    kind: str  # one of `KINDS`
    module: str | None  # library or module of a network that contains it
    calls: int | None
    time_s: float | None  # self time over all threads, without the recorded calls inside
    total_s: float | None  # time including the calls inside
    share: float  # fraction of the summed self times; of the cycles if there are no times
    device_total_s: float | None = None  # time on the device including the calls inside, if the profiler records it


class HostReport(Result, msgspec.Struct, frozen=True, eq=False):
    """Host time by function, longest first."""

    _page: ClassVar[str] = "paleo_lite.reporting.kernels:host_page"

    path: str
    format: str
    configuration: dict[str, Any]  # configuration read from the file's name
    hotspots: list[Hotspot]
    time_s: float | None  # sum of the self times over all threads; None for a profile with cycles only
    notes: tuple[str, ...] = ()

    def sums(self, key: str) -> list[dict[str, Any]]:
        """Return time and share by ``kind`` or ``module``, longest first."""
        groups: dict[str | None, dict[str, Any]] = {}
        for hotspot in self.hotspots:
            name = getattr(hotspot, key)
            group = groups.setdefault(name, {key: name, "functions": 0, "time_s": 0.0, "share": 0.0})
            group["functions"] += 1
            group["time_s"] += hotspot.time_s or 0.0
            group["share"] += hotspot.share
        return sorted(groups.values(), key=lambda group: -group["share"])

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: stable names, SI units, shares of 1."""
        return {
            "path": self.path,
            "format": self.format,
            "configuration": self.configuration,
            "on": "host",
            "time_s": self.time_s,
            "kinds": self.sums("kind"),
            "modules": [group for group in self.sums("module") if group["module"] is not None],
            "hotspots": msgspec.to_builtins(self.hotspots),
            "notes": list(self.notes),
        }


def report_host(profile: Profile) -> HostReport:
    """Sum the host's time by function; raise BadProfile if no host row has a time or cycles.

    The self time is the profiler's own figure if it records one. For a trace it is computed from the nesting of calls
    on a thread. For a sampling profiler (functions do not nest) it is the recorded time.
    """
    sums = _HostSums()
    for batch in profile.batches(COLUMNS):
        sums.add(batch)
    self_ns = sums.self_times_ns()
    has_times = self_ns.sum() > 0
    weights = self_ns if has_times else np.array(sums.cycles)
    total = float(weights.sum())
    if not total:
        raise BadProfile(f"{profile.path}: no row of this {profile.format} profile has a time")
    hotspots = []
    for (name, kind, module), group in sums.groups.items():
        if not weights[group]:
            continue
        hotspots.append(
            Hotspot(
                name=name,
                kind=kind,
                module=module,
                calls=round(sums.calls[group]) or None,
                time_s=float(self_ns[group]) * 1e-9 if has_times else None,
                total_s=sums.total_ns[group] * 1e-9 if sums.total_ns[group] else None,
                share=float(weights[group]) / total,
                device_total_s=sums.device_ns[group] * 1e-9 or None,
            )
        )
    return HostReport(
        str(profile.path),
        profile.format,
        profile.configuration,
        sorted(hotspots, key=lambda hotspot: (-hotspot.share, hotspot.name)),
        total * 1e-9 if has_times else None,
        tuple(profile.doubts),
    )


class _HostSums:
    """Sums by name, kind and module, collected batch by batch."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str, str | None], int] = {}
        self.calls: list[float] = []
        self.total_ns: list[float] = []
        self.recorded_self_ns: list[float] = []  # self times recorded by the profiler
        self.cycles: list[float] = []
        self.device_ns: list[float] = []
        self._events: list[NDArray[Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        columns = batch.schema.names
        duration = float_column(batch, "duration_ns", 0.0)
        calls = float_column(batch, "calls", 0.0)
        self_metric = next((name for name in _SELF_TIME_METRICS if name in columns), None)
        cycles_metric = next((name for name in CYCLES if name in columns), None)
        group = self._group_of_rows(batch)
        is_host = group >= 0
        has_starts = "start_ns" in columns and not batch.column("start_ns").null_count
        if self_metric is not None:
            self._add_values(self.total_ns, group, duration)
            self_ns = float_column(batch, self_metric, 0.0)
            self._add_values(self.recorded_self_ns, group, np.maximum(self_ns, 0.0))
        elif not has_starts:
            self._add_values(self.recorded_self_ns, group, np.maximum(duration, 0.0))
        elif len(group):
            self._events.append(_make_events(batch, group, is_host, duration))
        if cycles_metric is not None:
            self._add_values(self.cycles, group, float_column(batch, cycles_metric, 0.0))
        if DEVICE_METRIC in columns:
            self._add_values(self.device_ns, group, float_column(batch, DEVICE_METRIC, 0.0))
        self._add_values(self.calls, group, calls)

    def _add_values(self, sums: list[float], group: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add each host row's value to the sum of its group."""
        if not len(values):
            return
        is_host = group >= 0
        added = np.bincount(group[is_host], values[is_host], len(self.groups))
        sums[:] = [before + increment for before, increment in zip(sums, added.tolist())]

    def _group_of_rows(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the group of each row; -1 for rows of a device."""
        name_codes, names = values_of(batch, "kernel")
        category_codes, categories = values_of(batch, "category")
        module_codes, modules = values_of(batch, "layer")
        row_keys = (name_codes * len(categories) + category_codes) * len(modules) + module_codes
        on_device = ~np.isnan(float_column(batch, "stream"))
        distinct_keys, key_of_row = np.unique(row_keys, return_inverse=True)
        group_of_key = []
        for row_key in distinct_keys.tolist():
            name_and_category, module_code = divmod(row_key, len(modules))
            name_code, category_code = divmod(name_and_category, len(categories))
            name = _NUMBER_SUFFIX.sub("", names[name_code] or "(no name)")
            category = categories[category_code]
            if category == "message" or (category == "marker" and _COLLECTIVE.match(name)):
                category = "communication"
            kind = category or "cpu"
            if kind in KINDS:
                group_of_key.append(self._find_group((name, kind, modules[module_code])))
            else:
                group_of_key.append(-1)
        return np.where(on_device, -1, np.array(group_of_key, np.int64)[key_of_row])

    def _find_group(self, key: tuple[str, str, str | None]) -> int:
        """Return the index of a group; add the group if it is new."""
        if key not in self.groups:
            self.groups[key] = len(self.groups)
            for sums in (self.calls, self.total_ns, self.recorded_self_ns, self.cycles, self.device_ns):
                sums.append(0)
        return self.groups[key]

    def self_times_ns(self) -> NDArray[np.float64]:
        """Return the self time of each group in nanoseconds."""
        self_ns = np.array(self.recorded_self_ns, np.float64)
        if self._events:
            events = np.concatenate(self._events)
            self._events = []
            group = events["group"]
            start = events["start"]
            end = events["end"]
            parent = enclosing_intervals(events["thread"], start, end)
            self_ns += np.bincount(group, self_times(start, end, parent), len(self_ns))
            is_outermost = (parent < 0) | (group[parent] != group)  # a recursive function is counted once
            lengths = (end - start)[is_outermost]
            self.total_ns = np.bincount(group[is_outermost], lengths, len(self_ns)).tolist()
        return self_ns


def _make_events(
    batch: pa.RecordBatch, group: NDArray[np.int64], is_host: NDArray[np.bool_], duration: NDArray[np.float64]
) -> NDArray[Any]:
    events = np.empty(int(is_host.sum()), _EVENT)
    events["group"] = group[is_host]
    events["thread"] = integer_column(batch, "thread")[is_host]
    events["start"] = batch.column("start_ns").to_numpy()[is_host]
    events["end"] = events["start"] + np.rint(duration[is_host]).astype(np.int64)
    return events


def enclosing_intervals(
    thread: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the index of the innermost interval on the same thread that encloses each one; -1 for outermost ones."""
    parent = np.full(len(start), -1)
    if not len(start):
        return parent
    order = np.lexsort((start - end, start, thread))
    thread_changes = np.flatnonzero(np.diff(thread[order])) + 1
    for of_thread in np.split(order, thread_changes):
        ended_before = np.searchsorted(np.sort(end[of_thread]), start[of_thread], side="right")
        depth = np.arange(len(of_thread)) - ended_before
        levels = dict(positions_by_value(depth))
        nothing = np.empty(0, np.int64)
        level_above = levels.get(0, nothing)
        for level in range(1, int(depth.max()) + 1):
            on_level = levels.get(level, nothing)
            latest_above = level_above[np.searchsorted(level_above, on_level) - 1]
            parent[of_thread[on_level]] = of_thread[latest_above]
            level_above = on_level
    return parent


def self_times(start: NDArray[np.int64], end: NDArray[np.int64], parent: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the length of each interval minus the parts of its direct children that lie inside it."""
    times = (end - start).astype(np.float64)
    children = np.flatnonzero(parent >= 0)
    child_lengths = np.minimum(end[children], end[parent[children]]) - start[children]
    np.subtract.at(times, parent[children], np.maximum(child_lengths, 0))
    return np.maximum(times, 0.0)

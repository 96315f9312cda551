"""Where the time of a profile went on which nothing ran on a device: functions, operators and modules of the host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from ..errors import BadProfile
from ..profiles.detect import Profile
from ..profiles.table import numbers, places, values_of
from ..result import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = {
    "cpu": "operators and functions",
    "api": "calls of the runtime",
    "marker": "ranges that the program marked, less what ran in them",
    "communication": "collectives and messages, waiting included",
}
"""What rows of the host are, by their category."""

COLUMNS = ("category", "kernel", "layer", "start_ns", "duration_ns", "calls", "stream", "device", "thread")
"""What is read of a profile."""

CYCLES = ("metric.hardware_event_count_cpu_clk_unhalted_thread", "metric.hardware_event_count_cpu_clk_unhalted_core")
"""Counters that stand in for time where a profile has none: cycles in which a core was awake."""

_OWN = ("metric.exclusive_ns", "metric.self_cpu_ns")  # how profilers that tell the time in a function itself call it
_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc)(?:::?|_)", re.I)
"""How the ranges that PyTorch draws around collectives begin."""

_NUMBERED = re.compile(r"#\d+$")  # ProfilerStep#3, Optimizer.step#Adam.step has none
_EVENT = np.dtype([("key", "i4"), ("thread", "i8"), ("start", "i8"), ("end", "i8")])


class Hotspot(msgspec.Struct, frozen=True):
    """All calls of a function, operator or range.

    Attributes
    ----------
    kind : str
        Of `KINDS`.
    module : str or None
        The library, or module of a network, that it is of.
    time_s : float or None
        In itself, without what it called and the profile shows, too; over all threads.
    total_s : float or None
        With what it called.
    share : float
        Of the sum of the times in themselves; of the cycles, where there are no times.
    """

    name: str
    kind: str
    module: str | None
    calls: int | None
    time_s: float | None
    total_s: float | None
    share: float


class HostReport(Result, msgspec.Struct, frozen=True, eq=False):
    """Where the host spent its time, longest first.

    Attributes
    ----------
    configuration : dict
        What the file's name says.
    time_s : float or None
        Sum of the times in themselves, over all threads; None of a profile that has cycles alone.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.kernels:host_page"

    path: str
    format: str
    configuration: dict[str, Any]
    hotspots: list[Hotspot]
    time_s: float | None

    def sums(self, key: str) -> list[dict[str, Any]]:
        """Time and share by ``kind`` or ``module``, longest first."""
        groups: dict[str | None, dict[str, Any]] = {}
        for spot in self.hotspots:
            name = getattr(spot, key)
            group = groups.setdefault(name, {key: name, "functions": 0, "time_s": 0.0, "share": 0.0})
            group["functions"] += 1
            group["time_s"] += spot.time_s or 0.0
            group["share"] += spot.share
        return sorted(groups.values(), key=lambda group: -group["share"])

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: stable names, SI units, shares of 1."""
        return {
            "path": self.path,
            "format": self.format,
            "configuration": self.configuration,
            "on": "host",
            "time_s": self.time_s,
            "kinds": self.sums("kind"),
            "modules": [group for group in self.sums("module") if group["module"] is not None],
            "hotspots": msgspec.to_builtins(self.hotspots),
        }


def report_host(profile: Profile) -> HostReport:
    """Sum what the host did, by function.

    A profiler's own figure for the time in a function itself counts; of a trace it follows from what lies in what on
    the same thread; where functions do not call each other (a sampling profiler's) it is their time.

    Raises
    ------
    BadProfile
        If the host did nothing that has a time or cycles.
    """
    sums = _Sums()
    for batch in profile.batches(COLUMNS):
        sums.add(batch)
    own_ns = sums.own_ns()
    weight, timed = (own_ns, True) if own_ns.sum() > 0 else (np.array(sums.cycles), False)
    whole = float(weight.sum())
    if not whole:
        raise BadProfile(f"{profile.path}: no row of this {profile.format} profile has a time")
    spots = [
        Hotspot(
            name, kind, module, round(sums.calls[group]) or None, float(own_ns[group]) * 1e-9 if timed else None,
            sums.total_ns[group] * 1e-9 if sums.total_ns[group] else None, float(weight[group]) / whole,
        )
        for (name, kind, module), group in sums.places.items()
        if weight[group]
    ]  # fmt: skip
    return HostReport(
        str(profile.path),
        profile.format,
        profile.configuration,
        sorted(spots, key=lambda spot: (-spot.share, spot.name)),
        whole * 1e-9 if timed else None,
    )


class _Sums:
    """Sums by name, kind and module, batch by batch."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str, str | None], int] = {}
        self.calls: list[float] = []
        self.total_ns: list[float] = []
        self.told_ns: list[float] = []  # what profilers say is in the function itself
        self.cycles: list[float] = []
        self._events: list[NDArray[Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        duration = numbers(batch, "duration_ns", 0.0)
        own = next((numbers(batch, name, 0.0) for name in _OWN if name in batch.schema.names), None)
        cycles = next((numbers(batch, name, 0.0) for name in CYCLES if name in batch.schema.names), np.zeros(0))
        calls, group = numbers(batch, "calls", 0.0), self._places(batch)
        in_time = own is None and "start_ns" in batch.schema.names and not batch.column("start_ns").null_count
        told = np.zeros(len(group)) if in_time else np.maximum(duration if own is None else own, 0.0)
        if in_time and len(group):
            self._events.append(_events(batch, group, duration))
        is_host = group >= 0
        for sums, values in (
            (self.total_ns, np.zeros(0) if own is None else duration),
            (self.told_ns, told), (self.cycles, cycles), (self.calls, calls),
        ):  # fmt: skip
            if len(values):
                added = np.bincount(group[is_host], values[is_host], len(self.places))
                sums[:] = [before + more for before, more in zip(sums, added.tolist())]

    def _places(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The group of each row; -1 where a row is not the host's, or was drawn on a device."""
        labels, words = zip(*(values_of(batch, name) for name in ("kernel", "category", "layer")))
        key = (labels[0] * len(words[1]) + labels[1]) * len(words[2]) + labels[2]
        on_device = ~np.isnan(numbers(batch, "stream"))
        distinct, inverse = np.unique(key, return_inverse=True)
        groups = []
        for one in distinct.tolist():
            rest, module = divmod(one, len(words[2]))
            name, category = words[0][rest // len(words[1])], words[1][rest % len(words[1])]
            name = _NUMBERED.sub("", name or "(no name)")
            if category == "message" or (category == "marker" and _COLLECTIVE.match(name)):
                category = "communication"
            known = (name, category or "cpu", words[2][module])
            if known[1] not in KINDS:
                groups.append(-1)
                continue
            if known not in self.places:
                self.places[known] = len(self.places)
                for sums in (self.calls, self.total_ns, self.told_ns, self.cycles):
                    sums.append(0)
            groups.append(self.places[known])
        return np.where(on_device, -1, np.array(groups, np.int64)[inverse])

    def own_ns(self) -> NDArray[np.float64]:
        """The time of each group in itself."""
        own = np.array(self.told_ns, np.float64)
        if self._events:
            events, self._events = np.concatenate(self._events), []
            key, start, end = events["key"], events["start"], events["end"]
            parent = parents(events["thread"], start, end)
            own += np.bincount(key, own_times(start, end, parent), len(own))
            first = (parent < 0) | (key[parent] != key)  # what calls itself is counted once
            self.total_ns = np.bincount(key[first], (end - start)[first], len(own)).tolist()
        return own


def _events(batch: pa.RecordBatch, group: NDArray[np.int64], duration: NDArray[np.float64]) -> NDArray[Any]:
    is_host = group >= 0
    events = np.empty(int(is_host.sum()), _EVENT)
    events["key"], events["thread"] = group[is_host], places(batch, "thread")[is_host]
    events["start"] = batch.column("start_ns").to_numpy()[is_host]
    events["end"] = events["start"] + np.rint(duration[is_host]).astype(np.int64)
    return events


def parents(thread: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the interval that each lies directly within on the same thread; -1 of the outermost."""
    above_each = np.full(len(start), -1)
    order = np.lexsort((start - end, start, thread))
    for of_thread in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1) if len(order) else ():
        depth = np.arange(len(of_thread)) - np.searchsorted(np.sort(end[of_thread]), start[of_thread], side="right")
        above = np.flatnonzero(depth == 0)
        for level in range(1, int(depth.max()) + 1):
            here = np.flatnonzero(depth == level)
            above_each[of_thread[here]] = of_thread[above[np.searchsorted(above, here) - 1]]
            above = here
    return above_each


def own_times(start: NDArray[np.int64], end: NDArray[np.int64], parent: NDArray[np.int64]) -> NDArray[np.float64]:
    """The length of intervals less what lies directly within each; what reaches past its end is taken off nothing."""
    own = (end - start).astype(np.float64)
    inner = np.flatnonzero(parent >= 0)
    inside = np.minimum(end[inner], end[parent[inner]]) - start[inner]
    np.subtract.at(own, parent[inner], np.maximum(inside, 0))
    return np.maximum(own, 0.0)

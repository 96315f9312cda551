"""Where a profile's time went, kernel by kernel, how near each came to the machine's limits, what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..machines import Device, PeakRate
from ..profiles.detect import Profile
from ..profiles.names import classify
from ..result import Result
from .metrics import occupancy_of
from .totals import SUMS, KernelTotals, total_kernels

NOT_PROFILED = ("memcpy", "memset", "communication")
"""Classes without counters: copies have none, and collectives hang when they are replayed."""

_TRUSTED = 0.25  # of a kernel's time must have FLOPs and bytes before its bound says anything


class KernelRow(msgspec.Struct, frozen=True):
    """All calls of one kernel. Absent is None.

    Attributes
    ----------
    name, label : str
        Normalised name (as printed with full names) and class.
    time_s, share : float or None
        Summed over the calls, and of the sum of all kernels; None where the profile holds counters only.
    flops, bytes : float or None
        That the profiler counted.
    known_share : float
        Share of its time whose FLOPs are known.
    flops_per_s, flops_efficiency : float or None
        Known FLOPs over the whole time, and as a share of the device's peak: lower bounds where `known_share` is not 1.
    counted_flops, counted_bytes, counted_s : float or None
        Of the calls whose FLOPs and bytes are both known; None where none is.
    bound : {"compute", "memory"} or None
        Which limit of the roofline is nearer, over the calls with known FLOPs and bytes; None where those make up
        less than a quarter of the time.
    headroom : float or None
        Share of its time that a kernel at the roofline would not need; from the occupancy (1 less it) where the
        roofline says nothing; None where neither is known.
    occupancy : float or None
        Achieved occupancy, a share of 1.
    rank : int or None
        1 is what to optimise first: the largest time x headroom. None where that is unknown: measure these next.
    metrics : dict of str to float
        Counters as the profiler names and scales them, means over the time.
    """

    name: str
    label: str
    calls: int
    time_s: float | None
    share: float | None
    flops: float | None
    bytes: float | None
    known_share: float
    flops_per_s: float | None
    flops_efficiency: float | None
    counted_flops: float | None
    counted_bytes: float | None
    counted_s: float | None
    bound: str | None
    headroom: float | None
    occupancy: float | None
    rank: int | None
    tensor_core: bool | None
    metrics: dict[str, float]

    @property
    def gain_s(self) -> float:
        """What would be gained at the roofline; all of its time where that is unknown."""
        return (self.time_s or 0.0) * (1.0 if self.headroom is None else self.headroom)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        row = msgspec.structs.asdict(self)
        return {"name": row.pop("name"), "class": row.pop("label"), **row}


class KernelReport(Result, msgspec.Struct, frozen=True, eq=False):
    """The kernels of a profile, longest first.

    Attributes
    ----------
    configuration : dict
        What the file's name says.
    peak : PeakRate
        What FLOP/s are held against.
    time_s : float or None
        Sum over all kernels.
    busy_s : dict of str to float, or None
        Union of the kernels' intervals for each device (of each file, where there are several): overlapping kernels
        count once; None without start times. A device is called by its number, -1 where the profiler does not say.
    raw_s : dict of str to float
        Seconds of kernels by name as the profiler prints it, which tells what they were compiled for; not in JSON.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.kernels:kernels_page"

    path: str
    format: str
    direction: str
    configuration: dict[str, Any]
    device: Device
    peak: PeakRate
    kernels: list[KernelRow]
    time_s: float | None
    busy_s: dict[str, float] | None
    notes: tuple[str, ...]
    raw_s: dict[str, float] = {}

    @property
    def union_s(self) -> float | None:
        """Busy seconds of all devices together."""
        return None if self.busy_s is None else sum(self.busy_s.values())

    def by_class(self) -> list[dict[str, Any]]:
        """Class, kernels, calls, time_s and share, longest first."""
        classes: dict[str, dict[str, Any]] = {}
        for row in self.kernels:
            entry = classes.setdefault(row.label, {"class": row.label, "kernels": 0, "calls": 0, "time_s": 0.0})
            entry["kernels"] += 1
            entry["calls"] += row.calls
            entry["time_s"] += row.time_s or 0.0
        for entry in classes.values():
            entry["share"] = entry["time_s"] / self.time_s if self.time_s else None
        return sorted(classes.values(), key=lambda entry: (-entry["time_s"], entry["class"]))

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: stable names, SI units, shares of 1."""
        return {
            "path": self.path,
            "format": self.format,
            "configuration": self.configuration,
            "direction": self.direction,
            "gpu": self.device.id,
            "precision": self.peak.peak.precision,
            "peak_flops": self.peak.per_s,
            "bandwidth_bytes_per_s": self.device.bandwidth_bytes_per_s,
            "time_s": self.time_s,
            "union_s": self.union_s,
            "busy_s": self.busy_s,
            "classes": self.by_class(),
            "kernels": [row.to_dict() for row in self.kernels],
            "notes": list(self.notes),
        }


def report_kernels(
    profile: Profile | Sequence[Profile],
    device: Device,
    precision: str = "fp32",
    *,
    direction: str = "all",
    full_names: bool = False,
) -> KernelReport:
    """Sum a profile's kernels, or those of several (the ranks of a job), and hold them against a device.

    Parameters
    ----------
    profile : Profile, or sequence of Profile
    precision : str
        Of the peak.
    direction : {"all", "fprop", "bprop", "update"}
    full_names : bool
        One row per name as printed, templates and parameters included, rather than per function.
    """
    peak = device.find_peak(precision)
    profiles = [profile] if isinstance(profile, Profile) else list(profile)
    totals, busy_s = _total(profiles, direction)
    profile, formats = profiles[0], sorted({one.format for one in profiles})
    total_ns = totals.duration_ns if totals.has_durations else None
    rows = [
        _row(name, label, group, total_ns, peak, device)
        for (name, label), group in _grouped(totals, full_names).items()
    ]
    return KernelReport(
        path=str(profile.path) if len(profiles) == 1 else f"{len(profiles)} profiles of {profile.path.parent}",
        format=", ".join(formats),
        direction=direction,
        configuration={
            name: value
            for name, value in profile.configuration.items()
            if all(one.configuration.get(name) == value for one in profiles)
        },
        device=device,
        peak=peak,
        kernels=_ranked(rows),
        time_s=None if total_ns is None else total_ns * 1e-9,
        busy_s=busy_s,
        notes=_notes(profile, direction, totals, rows, peak),
        raw_s=_raw_seconds(totals),
    )


def _raw_seconds(totals: KernelTotals) -> dict[str, float]:
    """Seconds of each kernel by the name that the profiler printed, whichever operation called it."""
    seconds: dict[str, float] = {}
    for (raw, kind), sums in totals.sums.items():
        if kind in ("kernel", "convolution"):
            seconds[raw] = seconds.get(raw, 0.0) + float(sums[_TIME]) * 1e-9
    return seconds


_TIME = SUMS.index("duration_ns")


def _total(profiles: Sequence[Profile], direction: str) -> tuple[KernelTotals, dict[str, float] | None]:
    """Sums over some profiles, and the busy seconds of each of their devices."""
    whole, busy_s = KernelTotals(), {}
    timed = True
    for profile in profiles:
        totals, seconds = total_kernels(profile, direction)
        whole.merge(totals)
        timed &= seconds is not None
        for device, busy in (seconds or {}).items():
            name = profile.path.name + (f", device {device}" if len(seconds or {}) > 1 else "")
            busy_s[str(device) if len(profiles) == 1 else name] = busy
    return whole, busy_s if timed else None


_NOTHING = np.zeros(len(SUMS))
_ON_TENSOR_CORES = np.array([float(name == "tensor_core_rows") for name in SUMS])
_Group = tuple[np.ndarray[Any, np.dtype[np.float64]], dict[str, np.ndarray[Any, np.dtype[np.float64]]], bool | None]


def _grouped(totals: KernelTotals, full_names: bool) -> dict[tuple[str, str], _Group]:
    """Sums, metrics, and whether names tell that tensor cores are used, by name and class."""
    groups: dict[tuple[str, str], _Group] = {}
    for (raw, category), sums in totals.sums.items():
        known = classify(raw, category)
        key = (raw if full_names else known.name, known.label)
        before, metrics, _ = groups.get(key, (_NOTHING, {}, None))
        for name, values in totals.metrics.get((raw, category), {}).items():
            metrics[name] = metrics.get(name, np.zeros(2)) + values
        on_tensor_cores = known.tensor_core
        own = sums + _ON_TENSOR_CORES if on_tensor_cores else sums
        groups[key] = own if before is _NOTHING else before + own, metrics, on_tensor_cores
    return groups


def _row(
    name: str,
    label: str,
    group: _Group,
    total_ns: float | None,
    peak: PeakRate,
    device: Device,
) -> KernelRow:
    sums, weighed, on_tensor_cores = group
    of = dict(zip(SUMS, sums.tolist()))
    time_ns = of["duration_ns"]
    flops = of["flops"] if of["flops_rows"] else None
    rate = flops / time_ns * 1e9 if flops is not None and time_ns else None
    counted = (of["both_flops"], of["both_bytes"], of["both_ns"] * 1e-9) if of["both_ns"] else (None, None, None)
    metrics = {metric: float(total / weight) for metric, (total, weight) in sorted(weighed.items())}
    occupancy = occupancy_of(metrics)
    bound, headroom = _roofline(of, peak.per_s, device.bandwidth_bytes_per_s)
    if headroom is None and occupancy is not None and label not in NOT_PROFILED:
        headroom = max(0.0, 1 - occupancy)
    return KernelRow(
        name=name,
        label=label,
        calls=round(of["calls"]),
        time_s=None if total_ns is None else time_ns * 1e-9,
        share=time_ns / total_ns if total_ns else None,
        flops=flops,
        bytes=of["bytes"] if of["bytes_rows"] else None,
        known_share=of["flops_ns"] / time_ns if time_ns else 0.0,
        flops_per_s=rate,
        flops_efficiency=None if rate is None else rate / peak.per_s,
        counted_flops=counted[0],
        counted_bytes=counted[1],
        counted_s=counted[2],
        bound=bound,
        headroom=headroom,
        occupancy=occupancy,
        rank=None,
        tensor_core=True if of["tensor_core_rows"] else on_tensor_cores,
        metrics=metrics,
    )


def _roofline(of: dict[str, float], peak: float, bandwidth: float) -> tuple[str | None, float | None]:
    """Bound and headroom over the rows with known FLOPs and bytes: the roofline's time is the larger of two."""
    if not of["both_ns"] or of["both_ns"] < _TRUSTED * of["duration_ns"]:
        return None, None
    compute_s, memory_s = of["both_flops"] / peak, of["both_bytes"] / bandwidth
    bound = "compute" if compute_s >= memory_s else "memory"
    return bound, max(0.0, 1 - max(compute_s, memory_s) / (of["both_ns"] * 1e-9))


def _ranked(rows: list[KernelRow]) -> list[KernelRow]:
    """Longest first, with their ranks."""
    if all(row.time_s is None for row in rows):
        return sorted(rows, key=lambda row: (-row.calls, row.name))
    known = [row for row in rows if row.headroom is not None]
    order = sorted(known, key=lambda row: (-row.gain_s, row.name, row.label))
    ranks = {(row.name, row.label): place for place, row in enumerate(order, 1)}
    ranked = [msgspec.structs.replace(row, rank=ranks.get((row.name, row.label))) for row in rows]
    return sorted(ranked, key=lambda row: (-(row.time_s or 0.0), row.name, row.label))


def _notes(
    profile: Profile, direction: str, totals: KernelTotals, rows: list[KernelRow], peak: PeakRate
) -> tuple[str, ...]:
    notes = []
    if not totals.has_durations:
        notes.append("this profile has counters but no durations: take the time from a run without counters")
    elif not totals.has_starts:
        notes.append(
            f"{profile.format} has no start times: times are sums over kernels, and kernels that overlap on several "
            "streams count more than once"
        )
    if not any(row.flops is not None for row in rows):
        notes.append(
            "this profile has no FLOP counts, so no share of peak: --next-command shows how to measure what bounds a "
            "kernel"
        )
    share = totals.no_op_ns / totals.duration_ns if totals.duration_ns else 0.0
    if profile.format.startswith("pyprof") and direction == "fprop" and share > 0.01:
        notes.append(
            f"{share:.0%} of this time belongs to no operation: pyprof labels every kernel fprop that it cannot match "
            "with a backward pass, those of unprofiled backward passes included"
        )
    time_s = sum(row.time_s or 0.0 for row in rows)
    partly = sum(row.time_s or 0.0 for row in rows if row.flops is not None and row.known_share < 0.99)
    if time_s and partly > 0.01 * time_s:
        notes.append(
            f"the profiler counted FLOPs of a part of the calls only for kernels with {partly / time_s:.0%} of the "
            "time: their FLOP/s and shares of peak are lower bounds"
        )
    if peak.peak.precision == "fp32" and peak.peak.unit == "vector" and any(row.tensor_core for row in rows):
        notes.append("some kernels run on tensor cores and are held against the fp32 vector peak: see --precision")
    return tuple(notes)

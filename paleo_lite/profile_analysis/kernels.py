"""Time, rates and roofline bound of each kernel of a profile, ranked by the time that could be saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..machines import Device, PeakRate
from ..profiles.detect import Profile
from ..profiles.names import classify
from ..result import Result
from ..text import format_plural
from .contradictions import main_precision, operand_precision, precision_in_names
from .counters import how_to_measure, vendor_of
from .metrics import achieved_occupancy, device_throughputs, measured_bound
from .peaks import Peaks, explain_flops_above_peak
from .recorded_device import MissingDevice
from .totals import SUMS, KernelTotals, total_kernels

_MIN_COUNTED_SHARE = 0.25  # of a kernel's time with FLOPs and bytes, for its bound to be meaningful


class KernelRow(msgspec.Struct, frozen=True):
    """All calls of one kernel; unknown values are None.

    Attributes
    ----------
    name, label : str
        Normalised name (with full names, the printed name) and class.
    time_s, share : float or None
        Seconds over all calls, and fraction of the sum of all kernels; None if the profile has counters only.
    flops, bytes : float or None
        Counted by the profiler.
    known_share : float
        Fraction of the time of calls with known FLOPs.
    flops_per_s, flops_efficiency : float or None
        Known FLOPs over the whole time, and as a fraction of the device's peak; lower bounds if `known_share` is not 1.
    counted_flops, counted_bytes, counted_s : float or None
        FLOPs, bytes and seconds of the calls for which FLOPs and bytes are both known; None without such calls.
    bound : {"compute", "memory"} or None
        Bound of the roofline over the calls with known FLOPs and bytes; if these are less than a quarter of the time,
        of the throughputs that Nsight Compute measured; None without them, or if both are below 60% of the peak.
    headroom : float or None
        Fraction of the time that would be saved at the roofline, or at the peak of the larger measured throughput;
        None if neither is known.
    occupancy : float or None
        Achieved occupancy, 0 to 1.
    rank : int or None
        Rank by time x headroom, largest first. None if that is unknown; such kernels should be measured next.
    metrics : dict of str to float
        Counters with the profiler's names and scales, averaged over time.
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
        """Seconds that would be saved at the roofline; the whole time if that is unknown."""
        return (self.time_s or 0.0) * (1.0 if self.headroom is None else self.headroom)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        row = msgspec.structs.asdict(self)
        return {"name": row.pop("name"), "class": row.pop("label"), **row}


class KernelReport(Result, msgspec.Struct, frozen=True, eq=False):
    """Kernels of a profile, longest first.

    Attributes
    ----------
    configuration : dict
        Configuration read from the file's name.
    device : Device or MissingDevice
        Device of the peaks, or why the registry has none. Shares of peak are then None.
    peak : PeakRate or None
        Peak that FLOP/s are compared with; None without a device.
    time_s : float or None
        Seconds summed over all kernels.
    busy_s : dict of str to float, or None
        Busy seconds of each device (of each file, if there are several), the union of the kernels' intervals; None
        without start times. The key is the device's number, -1 if the profiler does not record it.
    raw_s : dict of str to float
        Seconds by the kernel's full name as the profiler prints it, which indicates the GPU generation it was compiled
        for; not in JSON.
    device_conflict : str
        Why the profile cannot be of this device; empty without a contradiction. Shares of peak are then None.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.kernels:kernels_page"

    path: str
    format: str
    direction: str
    configuration: dict[str, Any]
    device: Device | MissingDevice
    peak: PeakRate | None
    kernels: list[KernelRow]
    time_s: float | None
    busy_s: dict[str, float] | None
    notes: tuple[str, ...]
    raw_s: dict[str, float] = {}
    device_conflict: str = ""

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Peak memory bandwidth of the device; None without a device."""
        return self.device.bandwidth_bytes_per_s if isinstance(self.device, Device) else None

    @property
    def union_s(self) -> float | None:
        """Busy seconds summed over all devices."""
        return None if self.busy_s is None else sum(self.busy_s.values())

    def by_class(self) -> list[dict[str, Any]]:
        """Return class, kernels, calls, time_s and share of each class, longest first."""
        classes: dict[str, dict[str, Any]] = {}
        for row in self.kernels:
            entry = classes.setdefault(row.label, {"class": row.label, "kernels": 0, "calls": 0, "time_s": 0.0})
            entry["kernels"] += row.calls != 0  # otherwise kernels that a table leaves out
            entry["calls"] += row.calls
            entry["time_s"] += row.time_s or 0.0
        for entry in classes.values():
            entry["share"] = entry["time_s"] / self.time_s if self.time_s else None
        return sorted(classes.values(), key=lambda entry: (-entry["time_s"], entry["class"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: stable names, SI units, shares of 1."""
        return {
            "path": self.path,
            "format": self.format,
            "configuration": self.configuration,
            "direction": self.direction,
            "gpu": self.device.id if isinstance(self.device, Device) else None,
            "precision": None if self.peak is None else self.peak.peak.precision,
            "peak_flops": None if self.peak is None else self.peak.per_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "time_s": self.time_s,
            "union_s": self.union_s,
            "busy_s": self.busy_s,
            "classes": self.by_class(),
            "kernels": [row.to_dict() for row in self.kernels],
            "notes": list(self.notes),
        }


def report_kernels(
    profile: Profile | Sequence[Profile],
    device: Device | MissingDevice,
    precision: str = "fp32",
    *,
    direction: str = "all",
    full_names: bool = False,
) -> KernelReport:
    """Sum the kernels of one or several profiles (the ranks of a job) and compare them with a device's peaks.

    Without a device, nothing is compared with a peak. `direction` is one of `DIRECTIONS`. With `full_names` there is a
    row per printed name, with templates and parameters, instead of per function.
    """
    profiles = [profile] if isinstance(profile, Profile) else list(profile)
    peak = None
    bandwidth_bytes_per_s = None
    if isinstance(device, Device):
        peak = device.find_peak(precision)  # raises UnknownPrecision before any file is read
        bandwidth_bytes_per_s = device.bandwidth_bytes_per_s
    totals, busy_s = _total(profiles, direction)
    if isinstance(device, Device) and peak is not None:
        peak = Peaks(device, peak).in_precision(_recorded_precision(totals)).rate
    first = profiles[0]
    formats = sorted({member.format for member in profiles})
    total_ns = totals.duration_ns if totals.has_durations else None
    rows = []
    for (name, label), group in _group_totals(totals, full_names).items():
        rows.append(_make_row(name, label, group, total_ns, peak, bandwidth_bytes_per_s))
    missing = () if isinstance(device, Device) else (device.note,)
    remarks = [remark for member in profiles for remark in (*member.doubts, *member.remarks)]
    configuration = {}
    for name, value in first.configuration.items():
        if all(member.configuration.get(name) == value for member in profiles):
            configuration[name] = value
    return KernelReport(
        path=str(first.path) if len(profiles) == 1 else f"{len(profiles)} profiles of {first.path.parent}",
        format=", ".join(formats),
        direction=direction,
        configuration=configuration,
        device=device,
        peak=peak,
        kernels=_sort_and_rank(rows),
        time_s=None if total_ns is None else total_ns * 1e-9,
        busy_s=busy_s,
        notes=(
            *missing,
            *remarks,
            *_notes(first, direction, totals, rows, device, peak, device_count=len(busy_s or {}) or 1),
        ),
        raw_s=_raw_seconds(totals),
    )


def mark_device_conflict(report: KernelReport, conflicts: Sequence[str], warnings: Sequence[str]) -> KernelReport:
    """Return the report with warnings; if the profile contradicts the device, without what its peaks give."""
    if not conflicts:
        return report
    rows = []
    for row in report.kernels:
        bound, headroom = measured_bound(row.metrics)
        rows.append(msgspec.structs.replace(row, flops_efficiency=None, bound=bound, headroom=headroom, rank=None))
    return msgspec.structs.replace(
        report,
        kernels=_sort_and_rank(rows),
        device_conflict="; ".join(conflicts),
        notes=(*warnings, *(note for note in report.notes if "% of peak" not in note)),
    )


def _raw_seconds(totals: KernelTotals) -> dict[str, float]:
    """Return the seconds of each kernel by printed name, summed over operations."""
    seconds: dict[str, float] = {}
    for (raw_name, category), sums in totals.sums.items():
        if category in ("kernel", "convolution"):
            seconds[raw_name] = seconds.get(raw_name, 0.0) + float(sums[_DURATION_INDEX]) * 1e-9
    return seconds


def _recorded_precision(totals: KernelTotals) -> str | None:
    """Return the precision of most matrix products, from the types of their operands or the names of their kernels."""
    return operand_precision(main_precision(totals.precision_ns), precision_in_names(_raw_seconds(totals)))


def _notes_above_peak(rows: Sequence[KernelRow], peak: PeakRate, device_count: int) -> list[str]:
    """Return a note for each reason of rates above the peak, with the kernel of the highest rate."""
    with_reason: dict[str, list[tuple[float, str]]] = {}
    for row in rows:
        share = row.flops_efficiency or 0.0
        reason = explain_flops_above_peak(share, peak, [row.name], counted_by_profiler=True, device_count=device_count)
        if reason:
            with_reason.setdefault(reason, []).append((share, row.name[:60]))
    notes = []
    for reason, kernels in with_reason.items():
        share, name = max(kernels)
        others = "" if len(kernels) == 1 else f" and {format_plural(len(kernels) - 1, 'other kernel')} above it"
        notes.append(f"{name} at {share:.1%} of peak{others}: {reason}")
    return notes


_DURATION_INDEX = SUMS.index("duration_ns")


def _total(profiles: Sequence[Profile], direction: str) -> tuple[KernelTotals, dict[str, float] | None]:
    """Return the sums over the profiles, and the busy seconds of each of their devices."""
    sum_of_profiles = KernelTotals()
    busy_s = {}
    has_starts = True
    for profile in profiles:
        totals, busy_of_device = total_kernels(profile, direction)
        sum_of_profiles.merge(totals)
        if busy_of_device is None:
            has_starts = False
            continue
        for device, seconds in busy_of_device.items():
            if len(profiles) == 1:
                name = str(device)
            elif len(busy_of_device) == 1:
                name = profile.path.name
            else:
                name = f"{profile.path.name}, device {device}"
            busy_s[name] = seconds
    return sum_of_profiles, busy_s if has_starts else None


_TENSOR_CORE_ROW = np.array([float(name == "tensor_core_rows") for name in SUMS])
"""Sums of a row that runs on tensor cores, to be added to those of a kernel with tensor cores in its name."""

_Group = tuple[np.ndarray[Any, np.dtype[np.float64]], dict[str, np.ndarray[Any, np.dtype[np.float64]]], bool | None]
"""Sums, metrics, and whether the name indicates tensor cores."""


def _group_totals(totals: KernelTotals, full_names: bool) -> dict[tuple[str, str], _Group]:
    """Return the totals grouped by name and class."""
    groups: dict[tuple[str, str], _Group] = {}
    for (raw_name, category), kernel_sums in totals.sums.items():
        kernel = classify(raw_name, category)
        sums = kernel_sums + _TENSOR_CORE_ROW if kernel.tensor_core else kernel_sums
        metrics: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
        key = (raw_name if full_names else kernel.name, kernel.label)
        if key in groups:
            previous_sums, metrics, _ = groups[key]
            sums = previous_sums + sums
        for metric, values in totals.metrics.get((raw_name, category), {}).items():
            metrics[metric] = metrics.get(metric, np.zeros(2)) + values
        groups[key] = sums, metrics, kernel.tensor_core
    return groups


def _make_row(
    name: str,
    label: str,
    group: _Group,
    total_ns: float | None,
    peak: PeakRate | None,
    bandwidth_bytes_per_s: float | None,
) -> KernelRow:
    sum_values, weighted_metrics, name_has_tensor_cores = group
    sums = dict(zip(SUMS, sum_values.tolist()))
    time_ns = sums["duration_ns"]
    has_counted_time = bool(sums["both_ns"])
    flops = sums["flops"] if sums["flops_rows"] else None
    flops_per_s = flops / time_ns * 1e9 if flops is not None and time_ns else None
    metrics = {}
    for metric, (weighted_sum, weight) in sorted(weighted_metrics.items()):
        metrics[metric] = float(weighted_sum / weight)
    occupancy = achieved_occupancy(metrics)
    bound, headroom = None, None
    if peak is not None and bandwidth_bytes_per_s is not None:
        bound, headroom = _roofline(sums, peak.per_s, bandwidth_bytes_per_s)
    if headroom is None:
        bound, headroom = measured_bound(metrics)
    return KernelRow(
        name=name,
        label=label,
        calls=round(sums["calls"]),
        time_s=None if total_ns is None else time_ns * 1e-9,
        share=time_ns / total_ns if total_ns else None,
        flops=flops,
        bytes=sums["bytes"] if sums["bytes_rows"] else None,
        known_share=sums["flops_ns"] / time_ns if time_ns else 0.0,
        flops_per_s=flops_per_s,
        flops_efficiency=None if flops_per_s is None or peak is None else flops_per_s / peak.per_s,
        counted_flops=sums["both_flops"] if has_counted_time else None,
        counted_bytes=sums["both_bytes"] if has_counted_time else None,
        counted_s=sums["both_ns"] * 1e-9 if has_counted_time else None,
        bound=bound,
        headroom=headroom,
        occupancy=occupancy,
        rank=None,
        tensor_core=True if sums["tensor_core_rows"] else name_has_tensor_cores,
        metrics=metrics,
    )


def _roofline(sums: dict[str, float], peak: float, bandwidth: float) -> tuple[str | None, float | None]:
    """Return bound and headroom over the rows with known FLOPs and bytes."""
    if not sums["both_ns"] or sums["both_ns"] < _MIN_COUNTED_SHARE * sums["duration_ns"]:
        return None, None
    compute_s = sums["both_flops"] / peak
    memory_s = sums["both_bytes"] / bandwidth
    bound = "compute" if compute_s >= memory_s else "memory"
    roofline_s = max(compute_s, memory_s)
    return bound, max(0.0, 1 - roofline_s / (sums["both_ns"] * 1e-9))


def _sort_and_rank(rows: list[KernelRow]) -> list[KernelRow]:
    """Return the rows with ranks, longest first."""
    if all(row.time_s is None for row in rows):
        return sorted(rows, key=lambda row: (-row.calls, row.name))
    with_headroom = [row for row in rows if row.headroom is not None]
    by_gain = sorted(with_headroom, key=lambda row: (-row.gain_s, row.name, row.label))
    ranks = {(row.name, row.label): rank for rank, row in enumerate(by_gain, 1)}
    ranked = [msgspec.structs.replace(row, rank=ranks.get((row.name, row.label))) for row in rows]
    return sorted(ranked, key=lambda row: (-(row.time_s or 0.0), row.name, row.label))


def _notes(
    profile: Profile,
    direction: str,
    totals: KernelTotals,
    rows: list[KernelRow],
    device: Device | MissingDevice,
    peak: PeakRate | None,
    device_count: int,
) -> tuple[str, ...]:
    notes = []
    if not totals.has_durations:
        notes.append("this profile has counters but no durations: take the time from a run without counters")
    elif not totals.has_starts:
        notes.append(
            f"{profile.format} has no start times: times are sums over kernels, and kernels that overlap on several "
            "streams count more than once"
        )
    if totals.untimed_rows:
        notes.append(f"{format_plural(totals.untimed_rows, 'row')} without a duration left out")
    has_throughput = device_throughputs(max(rows, key=lambda row: row.time_s or 0.0).metrics)[0] is not None
    if not has_throughput and not any(row.flops is not None for row in rows):
        notes.append(
            "this profile has no FLOP counts of single kernels, hence no share of peak (`efficiency` computes those of "
            "operations from the shapes that a profile records); of the counters that determine a kernel's bound, "
            f"{how_to_measure(vendor_of(device, profile.format))}"
        )
    share = totals.no_op_ns / totals.duration_ns if totals.duration_ns else 0.0
    if profile.format.startswith("pyprof") and direction == "fprop" and share > 0.01:
        notes.append(
            f"{share:.0%} of this time belongs to no operation: pyprof labels every kernel fprop that it cannot match "
            "with a backward pass, including those of unprofiled backward passes"
        )
    time_s = sum(row.time_s or 0.0 for row in rows)
    partly = sum(row.time_s or 0.0 for row in rows if row.flops is not None and row.known_share < 0.99)
    if time_s and partly > 0.01 * time_s:
        notes.append(
            f"for kernels with {partly / time_s:.0%} of the time, the profiler counted the FLOPs of some calls only: "
            "their FLOP/s and shares of peak are lower bounds"
        )
    if peak is None:
        return tuple(notes)
    notes += _notes_above_peak(rows, peak, device_count)
    if peak.peak.precision == "fp32" and peak.peak.unit == "vector" and any(row.tensor_core for row in rows):
        notes.append("some kernels run on tensor cores and are compared with the fp32 vector peak: see --precision")
    return tuple(notes)

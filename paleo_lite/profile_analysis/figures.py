"""Figures of analysed profiles: rates and shares of a device's peaks, one row per file, and means over rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..machines import Device
from ..machines.device import PeakRate
from ..units import format_si
from .device_time import TIME_KEYS, idle_remedies
from .iteration_work import OperatorWork, known_sum
from .measured_shares import MeasuredShare, share_of_kernels
from .notebook import notebook_figures
from .one_file import FileAnalysis, ReadOptions
from .peaks import MAX_BOOST, UNEXPLAINED, Peaks, explain_bytes_above_peak, explain_flops_above_peak
from .steady import SteadyIteration

HOW_TO_RECORD_SHAPES = {
    "chrome-trace": "FLOPs are counted from shapes, which `torch.profiler.profile(record_shapes=True)` records",
    "torch-table": (
        "FLOPs are counted from shapes, which `torch.profiler.profile(record_shapes=True)` and "
        "`key_averages(group_by_input_shape=True)` print"
    ),
}
"""Note of a profile without FLOPs, by the formats in which PyTorch's profiler can state shapes."""


def make_row(analysis: FileAnalysis, peaks: Peaks | None, reading: ReadOptions) -> dict[str, Any]:
    """Return the row of one file; shares of peak are None without peaks."""
    durations = reading.durations
    duration = None if durations is None else durations.find(analysis.configuration)
    if analysis.steady is None:
        assert analysis.notebook is not None  # a readable file was analysed by one of the two methods
        figures = notebook_figures(analysis.notebook, duration, reading.batches)
    else:
        if peaks is not None:
            peaks = peaks.in_precision(analysis.steady.precision)
        peak_per_s = None if peaks is None else peaks.rate.per_s
        figures = steady_figures(analysis.steady, peak_per_s, duration.seconds if duration is not None else None)
        figures["operators"] = [
            _operator_row(operator, peaks, share_of_kernels(analysis.measured_shares, operator.kernels))
            for operator in analysis.steady.operators
        ]
        if analysis.device_time is None:
            figures.update(dict.fromkeys(TIME_KEYS))
        else:
            figures.update(analysis.device_time.to_dict())
            figures["notes"] = [*figures["notes"], *idle_remedies(analysis.device_time.breakdown)]
        figures["engine_steps"] = msgspec.to_builtins(analysis.engine_steps)
        figures["captured_graphs"] = msgspec.to_builtins(analysis.captured_graphs)
        figures["peak"] = None if peaks is None else peaks.rate.describe()
        figures["peak_flops_per_s"] = peak_per_s
        figures["mfu"] = _rate(analysis.steady.flops, figures["step_s"], peak_per_s)
        if peaks is not None:
            figures["notes"] = figures["notes"] + _notes_above_peak(analysis.steady, figures, peaks)
        if analysis.steady.flops is None and analysis.format in HOW_TO_RECORD_SHAPES:
            figures["notes"] = [*figures["notes"], HOW_TO_RECORD_SHAPES[analysis.format]]
        if analysis.captured_graphs is not None:
            figures["notes"].append(analysis.captured_graphs.describe())
    figures["duration_from"] = None if duration is None else duration.source
    row = {"file": analysis.path.name, **analysis.configuration}
    for name in ("compute_efficiency", "flops_per_s", "bandwidth_bytes_per_s"):
        row[name] = figures.pop(name)
    row["flops_efficiency"] = row["bandwidth_efficiency"] = None
    if peaks is not None:
        row["flops_efficiency"] = _rate(row["flops_per_s"], 1.0, peaks.rate.per_s)
        row["bandwidth_efficiency"] = _rate(row["bandwidth_bytes_per_s"], 1.0, peaks.device.bandwidth_bytes_per_s)
        if row["bandwidth_efficiency"] is None and analysis.steady is not None:
            measured = share_of_kernels(
                analysis.measured_shares, {name for operator in analysis.steady.operators for name in operator.kernels}
            )
            row["bandwidth_efficiency"] = None if measured is None else measured.memory
            figures["notes"] = [*figures["notes"], *_notes_measured(measured)]
    row.update(figures)
    return row


_SHARES_OF_PEAK = (
    "flops_efficiency",
    "bandwidth_efficiency",
    "mfu",
    "conv_of_peak",
    "conv_of_peak_forward",
    "conv_of_peak_backward",
)
_OPERATOR_SHARES_OF_PEAK = ("of_peak", "bound", "of_roofline", "above_peak")


def without_shares_of_peak(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with None for all figures that refer to the peaks of the device."""
    row = {**row, **{name: None for name in _SHARES_OF_PEAK if name in row}}
    if "operators" in row:
        unknown = dict.fromkeys(_OPERATOR_SHARES_OF_PEAK)
        row["operators"] = [{**operator, **unknown} for operator in row["operators"]]
    row["notes"] = [note for note in row.get("notes", ()) if " of peak " not in note]
    return row


def _notes_measured(measured: MeasuredShare | None) -> list[str]:
    """Return a note on shares of peak that the profiler measured itself."""
    if measured is None:
        return []
    compute = "" if measured.compute is None else f" and {measured.compute:.1%} of that of the multiprocessors"
    return [
        f"{measured.memory:.1%} of peak of the device memory{compute} is the mean over the time of the kernels of what "
        "Nsight Compute measured, at the clocks to which it locks the device"
    ]


def _notes_above_peak(steady: SteadyIteration, figures: dict[str, Any], peaks: Peaks) -> list[str]:
    """Return a note with the likely reason for each share of an iteration above a peak of the device."""
    notes = []
    device, peak = peaks.device, peaks.rate
    flops_share = (figures["flops_per_s"] or 0.0) / peak.per_s
    kernels = {name for operator in steady.operators for name in operator.kernels}
    reason = explain_flops_above_peak(
        flops_share, peak, kernels, counted_by_profiler=steady.profiler_flops == steady.flops
    )
    bandwidth_share = (figures["bandwidth_bytes_per_s"] or 0.0) / device.bandwidth_bytes_per_s
    if reason == UNEXPLAINED and bandwidth_share > 1:
        return [f"{flops_share:.1%} of peak FLOP/s and {bandwidth_share:.1%} of peak bandwidth: {reason}"]
    if reason:
        notes.append(f"{flops_share:.1%} of peak FLOP/s: {reason}")
    reason = explain_bytes_above_peak(None, bandwidth_share, device)
    if reason:
        notes.append(f"{bandwidth_share:.1%} of peak bandwidth: {reason}")
    return notes


def _operator_row(operator: OperatorWork, peaks: Peaks | None, measured: MeasuredShare | None = None) -> dict[str, Any]:
    """Return an operation's figures relative to the roofline, the larger of compute time and memory time.

    Where FLOPs or bytes are unknown, bound and share are those that the profiler measured.
    """
    row: dict[str, Any] = msgspec.to_builtins(operator)
    del row["kernels"], row["has_profiler_flops"]
    flops = operator.flops
    moved_bytes = operator.bytes
    time_s = operator.time_s
    for name in ("flops_per_s", "bandwidth_bytes_per_s", *_OPERATOR_SHARES_OF_PEAK):
        row[name] = None
    if time_s and flops is not None:
        row["flops_per_s"] = flops / time_s
    if time_s and moved_bytes is not None:
        row["bandwidth_bytes_per_s"] = moved_bytes / time_s
    if peaks is None:
        return row
    peaks = peaks.in_precision(operator.precision)
    device, peak = peaks.device, peaks.rate
    if row["flops_per_s"] is not None:
        row["of_peak"] = row["flops_per_s"] / peak.per_s
    if time_s and flops is not None and moved_bytes is not None:
        compute_s = flops / peak.per_s
        memory_s = moved_bytes / device.bandwidth_bytes_per_s
        row["bound"] = "compute" if compute_s >= memory_s else "memory"
        row["of_roofline"] = max(compute_s, memory_s) / time_s
    elif measured is not None:
        row["bound"], row["of_roofline"] = measured.bound()
    row["above_peak"] = _reason_above_peak(operator, row, device, peak) or None
    return row


def _reason_above_peak(operator: OperatorWork, row: dict[str, Any], device: Device, peak: PeakRate) -> str:
    """Return the likely reason of an operation's rate above a peak of the device; empty below the peaks."""
    reason = explain_flops_above_peak(
        row["of_peak"] or 0.0, peak, operator.kernels, counted_by_profiler=operator.has_profiler_flops
    )
    if reason or operator.bytes is None:
        return reason
    bandwidth_share = (row["bandwidth_bytes_per_s"] or 0.0) / device.bandwidth_bytes_per_s
    return explain_bytes_above_peak(operator.bytes / operator.calls, bandwidth_share, device)


def steady_figures(
    steady: SteadyIteration, peak_flops_per_s: float | None, batch_duration_s: float | None = None
) -> dict[str, Any]:
    """Return the rates of a steady iteration.

    Rates are over the measured duration of an iteration if there is one, else over the device's busy time, else over
    the sum of the kernels' times; ``time_basis`` names which. The busy time is not used either where kernels that were
    recorded at the same time would exceed the peak over it, which no device can do.
    """
    conflict = _busy_conflict(steady, peak_flops_per_s)
    notes = [*steady.notes]
    if batch_duration_s is not None:
        basis, seconds = "batch duration", batch_duration_s
    elif steady.busy_s is not None and not conflict:
        basis, seconds = "busy time", steady.busy_s
    else:
        basis, seconds = "sum of kernel times", steady.kernel_s
        notes += conflict
    conv_flops = known_sum((steady.conv_flops_forward, steady.conv_flops_backward))
    return {
        "compute_efficiency": _rate(steady.compute_s, steady.kernel_s),
        "flops_per_s": _rate(steady.flops, seconds),
        "bandwidth_bytes_per_s": _rate(steady.bytes, seconds),
        "time_basis": basis,
        "batch_duration_s": batch_duration_s,
        "conv_flops": conv_flops,
        "conv_of_peak": _rate(conv_flops, seconds, peak_flops_per_s),
        "conv_of_peak_forward": _rate(steady.conv_flops_forward, steady.conv_forward_s, peak_flops_per_s),
        "conv_of_peak_backward": _rate(steady.conv_flops_backward, steady.conv_backward_s, peak_flops_per_s),
        **msgspec.to_builtins(steady),
        "notes": notes,
    }


def _busy_conflict(steady: SteadyIteration, peak_flops_per_s: float | None) -> list[str]:
    """Return a sentence if kernels at the same time exceed the peak over the busy time, and not over their own times.

    A device computes at most its peak, however many kernels share it: their times are wrong.
    """
    busy_share = _rate(steady.flops, steady.busy_s, peak_flops_per_s) or 0.0
    own_share = _rate(steady.flops, steady.kernel_s, peak_flops_per_s) or 0.0
    if busy_share <= MAX_BOOST or own_share > 1 or steady.busy_s is None:
        return []
    busy, own = format_si(steady.busy_s, "s"), format_si(steady.kernel_s, "s")
    return [
        f"kernels of {own} are recorded within {busy}, in which they would reach {busy_share:.1%} of peak FLOP/s: no "
        "device runs them at the same time, and rates are over the sum of their times: check the starts and durations"
    ]


def _rate(value: float | None, seconds: float | None, peak: float | None = 1.0) -> float | None:
    """Return a rate, or its fraction of a peak; None if it is unknown."""
    if value is None or not seconds or peak is None:
        return None
    return value / seconds / peak


def group_rows(
    rows: Sequence[Mapping[str, Any]], group_by: Sequence[str], configuration: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the means of the figures over the rows that agree in `group_by`; absent figures are left out."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in group_by), []).append(row)
    means = []
    for values in sorted(groups, key=_sort_key):
        members = groups[values]
        group = dict(zip(group_by, values))
        group["files"] = len(members)
        for name in dict.fromkeys(key for member in members for key in member if key not in configuration):
            figures = [member.get(name) for member in members]
            numbers = [figure for figure in figures if isinstance(figure, (int, float))]
            if numbers:
                group[name] = sum(numbers) / len(numbers)
            elif all(figure is None for figure in figures):
                group[name] = None
        means.append(group)
    return means


def _sort_key(values: tuple[Any, ...]) -> list[tuple[bool, bool, Any]]:
    """Return a key that sorts numbers before text before absent values."""
    return [(value is None, isinstance(value, str), 0 if value is None else value) for value in values]

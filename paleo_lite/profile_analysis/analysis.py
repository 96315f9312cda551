"""Device utilisation over many profiles: one row of figures per file, and means over groups of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..errors import BadProfile, BadValue, UnknownName
from ..executor import run_tasks
from ..machines import Device
from ..machines.device import PeakRate
from ..profiles.detect import find_files, open_profile, parse_name
from ..progress import report as report_progress
from ..result import Result
from ..text import format_plural
from .contradictions import (
    OriginEvidence,
    device_warnings,
    find_contradictions,
    gather_evidence,
    recorded_gpu_names,
)
from .figures import group_rows, make_row, without_shares_of_peak
from .notebook import SWAPPED_COLUMNS_NOTE
from .one_file import FileAnalysis, Method, ReadOptions, analyse_file, failed_analysis
from .peaks import Peaks
from .ranks import Ranks, compare_ranks
from .recorded_device import MissingDevice, describe_ambiguous_name

if TYPE_CHECKING:
    from .durations import DurationBook


class Efficiency(Result, msgspec.Struct, frozen=True):
    """Utilisation of a device in one or more profiles.

    Attributes
    ----------
    device : Device or MissingDevice
        Device of the peaks, or why the registry has none. Shares of peak are then None.
    peak : PeakRate or None
        Peak that FLOP/s are compared with, unless a profile records the precision of its matrix products; None without
        a device.
    rows : list of dict
        Configuration and figures of each file; None for figures that the profile does not determine.
    groups : list of dict
        Means over the rows that agree in `group_by`; ``files`` is the number of rows.
    configuration : list of str
        Keys of a row that describe the configuration.
    failed : list of dict
        ``file`` and ``error`` of the files that could not be read.
    notes : tuple of str
        Evidence in the first profile that it was taken on another device, and `SWAPPED_COLUMNS_NOTE`. Only the first
        profile is checked, as the others are assumed to come from the same device.
    by : str
        Key of the rows' ``operators``, one of `GROUPINGS`.
    ranks : Ranks or None
        Comparison of ranks, if the profiles are of different ranks of one job.
    device_conflict : str
        Why the first profile cannot be of this device; empty without a contradiction. Shares of peak are then None.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.efficiency:efficiency_page"

    method: Method
    device: Device | MissingDevice
    peak: PeakRate | None
    rows: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    group_by: list[str]
    configuration: list[str]
    failed: list[dict[str, str]]
    notes: tuple[str, ...] = ()
    by: str = "op"
    ranks: Ranks | None = None
    device_conflict: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "method": self.method,
            "by": self.by,
            "device": self.device.id if isinstance(self.device, Device) else None,
            "peak_flops_per_s": None if self.peak is None else self.peak.per_s,
            "peak_bandwidth_bytes_per_s": (
                self.device.bandwidth_bytes_per_s if isinstance(self.device, Device) else None
            ),
            "rows": msgspec.to_builtins(self.rows),
            "ranks": msgspec.to_builtins(self.ranks),
            "group_by": self.group_by,
            "groups": self.groups,
            "failed": self.failed,
            "notes": list(self.notes),
        }


def measure_efficiency(
    paths: Iterable[Path],
    device: Device | MissingDevice,
    reading: ReadOptions | None = None,
    precision: str = "fp32",  # precision of the peak
    group_by: Sequence[str] = (),  # columns of the configuration to average over
    jobs: int | None = None,  # see `executor.run_tasks`
    scheduler: str | None = None,  # see `executor.run_tasks`
) -> Efficiency:
    """Analyse files, and folders of files, and compare their rates with a device's peaks.

    Without a device, nothing is compared with a peak. Raise BadProfile if, without `keep_going`, a file cannot be read,
    or the notebook method is used with durations and a file has none; UnknownName or BadValue if no file's
    configuration has a column of `group_by`.
    """
    reading = reading or ReadOptions()
    peaks = Peaks(device, device.find_peak(precision)) if isinstance(device, Device) else None
    parse_name("", reading.name_pattern)  # reports an invalid pattern before any work is done
    analyses = _analyse_files(find_files(paths), reading, jobs, scheduler)
    readable = [analysis for analysis in analyses if not analysis.error]
    columns = list(dict.fromkeys(name for analysis in readable for name in analysis.configuration))
    for name in group_by:
        if readable and name not in columns:
            if not columns:
                raise BadValue(
                    f"`--group-by {name}`: the names of the files have no settings that paleo-lite recognises; "
                    "`--name-pattern` reads others"
                )
            raise UnknownName("column", name, columns, "The columns come from the files' names (--name-pattern).")
    notes = [f"{analysis.path.name}: {remark}" for analysis in readable for remark in analysis.remarks]
    conflicts: dict[Path, list[str]] = {}
    if reading.method == "notebook" and reading.durations is not None:
        notes.append(SWAPPED_COLUMNS_NOTE)
    if not isinstance(device, Device):
        notes.append(device.note)
    elif readable:
        warned: dict[str, list[str]] = {}  # names of the files by what is said of them
        for analysis in readable:
            evidence = _evidence_of(analysis, reading, is_first=analysis is readable[0])
            conflicts[analysis.path] = find_contradictions(evidence, device)
            for warning in device_warnings(evidence, device):
                warned.setdefault(warning, []).append(analysis.path.name)
            ambiguous = [describe_ambiguous_name(name, device) for name in evidence.gpus]
            if analysis is readable[0]:
                notes += [f"{analysis.path.name}: {note}" for note in ambiguous if note]
        notes += [f"{_name_files(names)}: {warning}" for warning, names in warned.items()]
    rows = []
    for analysis in readable:
        row = make_row(analysis, peaks, reading)
        rows.append(without_shares_of_peak(row) if conflicts.get(analysis.path) else row)
    ranked = []
    for analysis in readable:
        if analysis.rank is not None and analysis.device_time is not None:
            ranked.append((analysis.rank, analysis.path, analysis.device_time))
    distinct_ranks = {rank for rank, _, _ in ranked}
    has_rank_each = len(distinct_ranks) == len(readable) > 1
    return Efficiency(
        method=reading.method,
        device=device,
        peak=None if peaks is None else _common_peak(readable, peaks),
        rows=rows,
        groups=group_rows(rows, group_by, columns) if group_by else [],
        group_by=list(group_by),
        configuration=columns,
        failed=[{"file": str(analysis.path), "error": analysis.error} for analysis in analyses if analysis.error],
        notes=tuple(notes),
        by=reading.by,
        ranks=compare_ranks(ranked) if has_rank_each else None,
        device_conflict="; ".join(conflicts.get(readable[0].path, ())) if readable else "",
    )


def _common_peak(analyses: Sequence[FileAnalysis], peaks: Peaks) -> PeakRate:
    """Return the peak that all profiles are compared with, or that of the question where they differ."""
    recorded = {None if analysis.steady is None else analysis.steady.precision for analysis in analyses}
    return peaks.in_precision(recorded.pop()).rate if len(recorded) == 1 else peaks.rate


def _name_files(names: Sequence[str]) -> str:
    """Return the name of the first file, and how many others there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {format_plural(len(names) - 1, 'other profile')}"


def _evidence_of(analysis: FileAnalysis, reading: ReadOptions, *, is_first: bool) -> OriginEvidence:
    """Return the evidence in a file; without kernels in it, of files after the first only the recorded device."""
    if analysis.evidence is not None:
        return analysis.evidence
    profile = open_profile(analysis.path, reading.name_pattern)
    if is_first:
        return gather_evidence(profile)
    return OriginEvidence(recorded_gpu_names(profile), profile.configuration, None, None)


def _analyse_files(
    files: list[Path], reading: ReadOptions, jobs: int | None, scheduler: str | None
) -> list[FileAnalysis]:
    """Analyse each file; with the notebook method and durations, a file without a duration is an error."""
    task = partial(analyse_file, reading=reading)
    analysis_of: dict[Path, FileAnalysis] = {}
    for completed, (path, result) in enumerate(run_tasks(files, task, jobs, scheduler, failed_analysis), 1):
        analysis = _require_duration(result, reading.durations)
        if analysis.error and not reading.keep_going:
            raise BadProfile(analysis.error)
        analysis_of[path] = analysis
        report_progress(completed, len(files))
    return [analysis_of[path] if path in analysis_of else analysis_of[path.absolute()] for path in files]


def _require_duration(analysis: FileAnalysis, durations: DurationBook | None) -> FileAnalysis:
    """Return the analysis, or an error if the notebook method lacks the duration of this configuration."""
    if analysis.notebook is None or durations is None or durations.find(analysis.configuration) is not None:
        return analysis
    settings = ", ".join(f"{name} {value}" for name, value in analysis.configuration.items())
    settings = settings or "a file without a configuration in its name"
    return FileAnalysis(analysis.path, error=f"{analysis.path}: no batch duration for {settings}")

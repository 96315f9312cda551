"""Device utilisation over many profiles: one row of figures per file, and means over groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from ..errors import BadProfile, BadValue, PaleoError, UnknownName, UnknownPrecision
from ..executor import run_tasks
from ..machines import Device
from ..machines.device import PeakRate
from ..profiles.detect import Profile, find_files, open_profile, parse_name
from ..result import Result
from . import GROUPINGS, activity, runs
from .above_peak import explain_bytes_above_peak, explain_flops_above_peak
from .activity import ActivityRecorder
from .captured_graphs import CapturedGraphs, add_captured_operations
from .device_time import TIME_KEYS, DeviceTime, analyse_device_time
from .evidence import Evidence, device_warnings, find_contradictions, find_rank, gather_evidence
from .iteration_work import OperatorWork, known_sum
from .notebook import COLUMNS, SWAPPED_COLUMNS_NOTE, NotebookSums, notebook_figures, sum_batch
from .ranks import Ranks, compare_ranks
from .recorded_device import MissingDevice, describe_ambiguous_name
from .serving_steps import EngineStepRecorder, PhaseSummary
from .steady import SteadyIteration, analyse_steady_state, parse_steps

if TYPE_CHECKING:
    from .durations import DurationBook

Method = Literal["steady", "notebook"]


class ReadOptions(msgspec.Struct, frozen=True):
    """Options of reading profiles.

    Attributes
    ----------
    method : {"steady", "notebook"}
        ``steady`` analyses one steady iteration and fills in counts that the profiler lacks; ``notebook`` sums every
        row as SURFBoard's notebook does.
    name_pattern : str, optional
        Pattern that reads the configuration from a file's name, see `profiles.detect.parse_name`.
    steps : str, optional
        Steady method only: the numbers of the marked iterations to use (`steady.parse_steps`).
    durations : DurationBook, optional
        Measured durations of one batch, used as the time in place of kernel times.
    batches : int
        Notebook method with durations: number of batches that a profile's FLOPs and bytes cover.
    keep_going : bool
        Report a file that cannot be read in `failed` instead of raising.
    by : str
        Key that the time of an iteration is summed by, one of `GROUPINGS`.
    capture_traces : tuple of Path
        Steady method only: traces of the captures of the graphs that the profiles replay (`captured_graphs`).
    """

    method: Method = "steady"
    name_pattern: str | None = None
    steps: str | None = None
    durations: DurationBook | None = None
    batches: int = 25
    keep_going: bool = False
    by: str = "op"
    capture_traces: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.steps is not None and self.method != "steady":
            raise BadValue("--steps selects iterations and cannot be used with --method notebook, which has none")
        if self.by not in GROUPINGS:
            raise UnknownName("grouping", self.by, GROUPINGS)
        if self.by != "op" and self.method != "steady":
            raise BadValue("--by groups the time of an iteration and cannot be used with --method notebook")
        if self.capture_traces and self.method != "steady":
            raise BadValue("--capture-trace names operations and cannot be used with --method notebook, which has none")


class Efficiency(Result, msgspec.Struct, frozen=True):
    """Utilisation of a device in one or more profiles.

    Attributes
    ----------
    device : Device or MissingDevice
        Device of the peaks, or why the registry has none. Shares of peak are then None.
    peak : PeakRate or None
        Peak that FLOP/s are compared with, unless a trace records the precision of its matrix products; None without a
        device.
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


class FileAnalysis(msgspec.Struct, frozen=True):
    """Analysis of one file.

    Attributes
    ----------
    configuration : dict
        Configuration read from the file's name.
    notebook : dict or None
        Figures of the notebook method.
    steady : SteadyIteration or None
        Figures of the steady method.
    device_time : DeviceTime or None
        Busy and idle time, if the profile has start times.
    evidence : Evidence or None
        Evidence of the device, if kernels have start times; for other profiles it is gathered later, at little cost.
    rank : int or None
        Rank in a distributed job, if the profile or its name records one.
    engine_steps : list of PhaseSummary
        Steps of an inference engine by phase; empty without its annotations.
    captured_graphs : CapturedGraphs or None
        How many graph launches have the operations of captured graphs; None without traces of captures.
    error : str
        Error message of a file without figures; empty if the file was read.
    """

    path: Path
    format: str = ""
    configuration: dict[str, Any] = {}
    notebook: dict[str, float] | None = None
    steady: SteadyIteration | None = None
    device_time: DeviceTime | None = None
    evidence: Evidence | None = None
    rank: int | None = None
    engine_steps: list[PhaseSummary] = []
    captured_graphs: CapturedGraphs | None = None
    error: str = ""


def measure_efficiency(
    paths: Iterable[Path],
    device: Device | MissingDevice,
    reading: ReadOptions | None = None,
    precision: str = "fp32",
    group_by: Sequence[str] = (),
    jobs: int | None = None,
    scheduler: str | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> Efficiency:
    """Analyse profiles and compare their rates with a device's peaks.

    Parameters
    ----------
    paths : iterable of Path
        Files, and folders of files.
    device : Device or MissingDevice
        Device of the peaks. Without one, nothing is compared with a peak.
    reading : ReadOptions, optional
        Options of reading the profiles.
    precision : str
        Precision of the peak.
    group_by : sequence of str
        Columns of the configuration to average over.
    jobs, scheduler
        See `executor.run_tasks`.
    on_done : callable, optional
        Called with the number of files done and the number of all files.

    Raises
    ------
    BadProfile
        If, without `keep_going`, a file cannot be read, or the notebook method is used with durations and a file has
        none.
    UnknownName, BadValue
        If no file's configuration has a column of `group_by`.
    """
    reading = reading or ReadOptions()
    peaks = _Peaks(device, device.find_peak(precision)) if isinstance(device, Device) else None
    parse_name("", reading.name_pattern)  # reports an invalid pattern before any work is done
    analyses = _analyse_files(find_files(paths), reading, jobs, scheduler, on_done)
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
    notes = []
    conflicts: list[str] = []
    if reading.method == "notebook" and reading.durations is not None:
        notes.append(SWAPPED_COLUMNS_NOTE)
    if not isinstance(device, Device):
        notes.append(device.note)
    elif readable:
        first = readable[0]
        evidence = first.evidence or gather_evidence(open_profile(first.path, reading.name_pattern))
        conflicts = find_contradictions(evidence, device)
        notes += [f"{first.path.name}: {warning}" for warning in device_warnings(evidence, device)]
        for name in evidence.gpus:
            note = describe_ambiguous_name(name, device)
            if note:
                notes.append(f"{first.path.name}: {note}")
    rows = [_make_row(analysis, peaks, reading) for analysis in readable]
    if conflicts:
        rows = [_without_shares_of_peak(row) for row in rows]
    ranked = []
    for analysis in readable:
        if analysis.rank is not None and analysis.device_time is not None:
            ranked.append((analysis.rank, analysis.path, analysis.device_time))
    distinct_ranks = {rank for rank, _, _ in ranked}
    has_rank_each = len(distinct_ranks) == len(readable) > 1
    return Efficiency(
        method=reading.method,
        device=device,
        peak=None if peaks is None else peaks.rate,
        rows=rows,
        groups=group_rows(rows, group_by, columns) if group_by else [],
        group_by=list(group_by),
        configuration=columns,
        failed=[{"file": str(analysis.path), "error": analysis.error} for analysis in analyses if analysis.error],
        notes=tuple(notes),
        by=reading.by,
        ranks=compare_ranks(ranked) if has_rank_each else None,
        device_conflict="; ".join(conflicts),
    )


def _analyse_files(
    files: list[Path],
    reading: ReadOptions,
    jobs: int | None,
    scheduler: str | None,
    on_done: Callable[[int, int], None] | None,
) -> list[FileAnalysis]:
    """Analyse each file; with the notebook method and durations, a file without a duration is an error."""
    steps = None if reading.steps is None else parse_steps(reading.steps)
    task = partial(
        analyse_file,
        method=reading.method,
        name_pattern=reading.name_pattern,
        steps=steps,
        by=reading.by,
        capture_traces=reading.capture_traces,
    )
    analysis_of: dict[Path, FileAnalysis] = {}
    for done, (path, result) in enumerate(run_tasks(files, task, jobs, scheduler, failed_analysis), 1):
        analysis = _require_duration(result, reading.durations)
        if analysis.error and not reading.keep_going:
            raise BadProfile(analysis.error)
        analysis_of[path] = analysis
        if on_done is not None:
            on_done(done, len(files))
    return [analysis_of[path] if path in analysis_of else analysis_of[path.absolute()] for path in files]


def _require_duration(analysis: FileAnalysis, durations: DurationBook | None) -> FileAnalysis:
    """Return the analysis, or an error if the notebook method lacks the duration of this configuration."""
    if analysis.notebook is None or durations is None or durations.find(analysis.configuration) is not None:
        return analysis
    settings = ", ".join(f"{name} {value}" for name, value in analysis.configuration.items())
    settings = settings or "a file without a configuration in its name"
    return FileAnalysis(analysis.path, error=f"{analysis.path}: no batch duration for {settings}")


def analyse_file(
    path: Path,
    method: Method = "steady",
    name_pattern: str | None = None,
    steps: range | None = None,
    by: str = "op",
    capture_traces: tuple[Path, ...] = (),
) -> FileAnalysis:
    """Analyse one file; errors are returned in `FileAnalysis.error`."""
    try:
        return _analyse(path, method, name_pattern, steps, by, capture_traces)
    except PaleoError as error:
        return failed_analysis(path, error)
    except Exception as error:  # one file must not end the analysis of the others
        return FileAnalysis(path, error=f"{path}: cannot be read: internal error, {type(error).__name__}: {error}")


def failed_analysis(path: Path, error: PaleoError) -> FileAnalysis:
    """Return the analysis of a file that cannot be read: an error message that names the file."""
    text = str(error)
    return FileAnalysis(path, error=text if str(path) in text else f"{path}: {text}")


def _analyse(
    path: Path,
    method: Method,
    name_pattern: str | None,
    steps: range | None,
    by: str,
    capture_traces: tuple[Path, ...],
) -> FileAnalysis:
    profile = open_profile(path, name_pattern)
    configuration = dict(profile.configuration)
    if method == "notebook":
        return FileAnalysis(path, profile.format, configuration, _notebook_sums(profile), rank=find_rank(profile))
    captured_graphs = None
    if capture_traces:
        profile, captured_graphs = add_captured_operations(profile, capture_traces)
    recorder = ActivityRecorder() if profile.has_starts else None
    columns = set(runs.COLUMNS)
    if by == "module":
        columns.add("layer")
    if recorder is not None:
        columns.update(activity.COLUMNS)
    engine_recorder = EngineStepRecorder()
    batches = []
    run_count = 0
    for batch in profile.batches(columns):
        batch_runs = runs.find_runs(batch)
        if batch_runs.length:
            batches.append(batch_runs)
            run_count += len(batch_runs.table["row"])
        if run_count > runs.MAX_RUNS:
            raise BadProfile(
                f"more than {runs.MAX_RUNS:,} operations: profile fewer iterations, or use --method notebook"
            )
        if recorder is not None:
            recorder.add(batch)
            engine_recorder.add(batch)
    if not batches:
        raise _no_durations_error(profile)
    steady = analyse_steady_state(runs.concatenate_runs(batches), steps, by)
    device_time = None
    evidence = None
    kernel_seconds = None if recorder is None else recorder.kernel_seconds()
    if recorder is not None and kernel_seconds is not None:
        device_time = analyse_device_time(recorder, steady, steps is not None)
        evidence = gather_evidence(profile, kernel_seconds)
    return FileAnalysis(
        path,
        profile.format,
        configuration,
        steady=steady,
        device_time=device_time,
        evidence=evidence,
        rank=find_rank(profile),
        engine_steps=engine_recorder.summarise(),
        captured_graphs=captured_graphs,
    )


def _notebook_sums(profile: Profile) -> dict[str, float]:
    sums = NotebookSums()
    for batch in profile.batches(COLUMNS):
        sums = sums.merge(sum_batch(batch))
    if not sums.rows:
        raise _no_durations_error(profile)
    if not any(sums.flops.values()):
        raise BadProfile(f"the profiler counted no FLOPs (a {profile.format} file), which the notebook's method needs")
    return sums.efficiencies()


def _no_durations_error(profile: Profile) -> BadProfile:
    """Return the error of a profile without durations of device rows; raise a more specific one if there is one."""
    from .totals import total_kernels

    total_kernels(profile, with_busy=False)
    return BadProfile("its kernels have counters but no durations: take the time from a run without counters")


class _Peaks(msgspec.Struct, frozen=True):
    """A device with the peak that FLOP/s are compared with."""

    device: Device
    rate: PeakRate

    def in_precision(self, precision: str | None) -> _Peaks:
        """Return the peaks for a precision that the trace records; these if the trace or the device has none."""
        if precision is None:
            return self
        try:
            return _Peaks(self.device, self.device.find_peak(precision))
        except UnknownPrecision:
            return self


def _make_row(analysis: FileAnalysis, peaks: _Peaks | None, reading: ReadOptions) -> dict[str, Any]:
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
        figures["operators"] = [_operator_row(operator, peaks) for operator in analysis.steady.operators]
        if analysis.device_time is None:
            figures.update(dict.fromkeys(TIME_KEYS))
        else:
            figures.update(analysis.device_time.to_dict())
        figures["engine_steps"] = msgspec.to_builtins(analysis.engine_steps)
        figures["captured_graphs"] = msgspec.to_builtins(analysis.captured_graphs)
        figures["peak"] = None if peaks is None else peaks.rate.describe()
        figures["peak_flops_per_s"] = peak_per_s
        figures["mfu"] = _rate(analysis.steady.flops, figures["step_s"], peak_per_s)
        if peaks is not None:
            figures["notes"] = figures["notes"] + _notes_above_peak(analysis.steady, figures, peaks)
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


def _without_shares_of_peak(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with None for all figures that refer to the peaks of the device."""
    row = {**row, **{name: None for name in _SHARES_OF_PEAK if name in row}}
    if "operators" in row:
        unknown = dict.fromkeys(_OPERATOR_SHARES_OF_PEAK)
        row["operators"] = [{**operator, **unknown} for operator in row["operators"]]
    row["notes"] = [note for note in row.get("notes", ()) if " of peak " not in note]
    return row


def _notes_above_peak(steady: SteadyIteration, figures: dict[str, Any], peaks: _Peaks) -> list[str]:
    """Return a note with the likely reason for each share of an iteration above a peak of the device."""
    notes = []
    device, peak = peaks.device, peaks.rate
    flops_share = (figures["flops_per_s"] or 0.0) / peak.per_s
    kernels = {name for operator in steady.operators for name in operator.kernels}
    reason = explain_flops_above_peak(
        flops_share, peak, kernels, counted_by_profiler=steady.profiler_flops == steady.flops
    )
    if reason:
        notes.append(f"{flops_share:.1%} of peak FLOP/s: {reason}")
    bandwidth_share = (figures["bandwidth_bytes_per_s"] or 0.0) / device.bandwidth_bytes_per_s
    reason = explain_bytes_above_peak(None, bandwidth_share, device)
    if reason:
        notes.append(f"{bandwidth_share:.1%} of peak bandwidth: {reason}")
    return notes


def _operator_row(operator: OperatorWork, peaks: _Peaks | None) -> dict[str, Any]:
    """Return an operation's figures relative to the roofline, the larger of compute time and memory time."""
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
    the sum of the kernels' times; ``time_basis`` names which.
    """
    if batch_duration_s is not None:
        basis, seconds = "batch duration", batch_duration_s
    elif steady.busy_s is not None:
        basis, seconds = "busy time", steady.busy_s
    else:
        basis, seconds = "sum of kernel times", steady.kernel_s
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
    }


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

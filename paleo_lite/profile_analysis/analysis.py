"""How well a device was used, over many profiles: rows, one per file, and means over groups of them."""

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
from . import BY, activity, runs
from .activity import Activity
from .device_time import TIMES, DeviceTime, describe_time
from .evidence import Evidence, doubts, evidence_of, rank_of
from .notebook import COLUMNS, SWAPPED, NotebookSums, notebook_figures, sum_rows
from .ranks import Ranks, compare_ranks
from .sample import Operator, known_sum
from .steady import Steady, parse_steps, steady_state

if TYPE_CHECKING:
    from .durations import DurationBook

Method = Literal["steady", "notebook"]


class ReadAs(msgspec.Struct, frozen=True):
    """How profiles are read.

    Attributes
    ----------
    method : {"steady", "notebook"}
        One steady iteration, with what the profiler did not count; or every row as SURFBoard's notebook counts it.
    name_pattern : str, optional
        How a file's name tells its configuration, see `profiles.detect`.
    steps : str, optional
        Of the steady method: only these iterations, by their marks' numbers (`steady.parse_steps`).
    durations : DurationBook, optional
        Measured durations of one batch, which kernel times then do not stand in for.
    batches : int
        Of the notebook's method with durations: the batches that a profile's FLOPs and bytes are of.
    keep_going : bool
        Whether a file that cannot be read is reported in `failed` rather than raised.
    by : str
        What the time of an iteration is summed by, of `BY`.
    """

    method: Method = "steady"
    name_pattern: str | None = None
    steps: str | None = None
    durations: DurationBook | None = None
    batches: int = 25
    keep_going: bool = False
    by: str = "op"

    def __post_init__(self) -> None:
        if self.steps is not None and self.method != "steady":
            raise BadValue("--steps chooses iterations, which --method notebook does not know: leave one out")
        if self.by not in BY:
            raise UnknownName("grouping", self.by, BY)
        if self.by != "op" and self.method != "steady":
            raise BadValue("--by sums the time of an iteration, which --method notebook does not know: leave one out")


class Efficiency(Result, msgspec.Struct, frozen=True):
    """How well a device was used.

    Attributes
    ----------
    peak : PeakRate
        What FLOP/s are compared with, where a trace does not say what it multiplies in.
    rows : list of dict
        Per file its configuration and figures; None where a profile does not tell.
    groups : list of dict
        Means over the rows that agree in `group_by`, with ``files``, their number.
    configuration : list of str
        The keys of a row that say what was run.
    failed : list of dict
        ``file`` and ``error`` of those that could not be read.
    notes : tuple of str
        What in the first profile speaks against the device; those beside it were taken alike. And `SWAPPED`.
    by : str
        What the rows' ``operators`` are, of `BY`.
    ranks : Ranks or None
        Where the profiles are of different ranks of one job.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.efficiency:efficiency_page"

    method: Method
    device: Device
    peak: PeakRate
    rows: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    group_by: list[str]
    configuration: list[str]
    failed: list[dict[str, str]]
    notes: tuple[str, ...] = ()
    by: str = "op"
    ranks: Ranks | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "method": self.method,
            "by": self.by,
            "device": self.device.id,
            "peak_flops_per_s": self.peak.per_s,
            "peak_bandwidth_bytes_per_s": self.device.bandwidth_bytes_per_s,
            "rows": msgspec.to_builtins(self.rows),
            "ranks": msgspec.to_builtins(self.ranks),
            "group_by": self.group_by,
            "groups": self.groups,
            "failed": self.failed,
            "notes": list(self.notes),
        }


class Finding(msgspec.Struct, frozen=True):
    """What was found of one file.

    Attributes
    ----------
    configuration : dict
        From the file's name.
    notebook, steady : dict, Steady or None
        The figures of the method that was asked for.
    device_time : DeviceTime or None
        Where the profile has start times.
    evidence : Evidence or None
        Of the device, where kernels have start times; the others are read again in no time.
    rank : int or None
        Of the job that it is one rank of, where the profile or its name says so.
    error : str
        What is wrong with the file, in which case there are no figures.
    """

    path: Path
    format: str = ""
    configuration: dict[str, Any] = {}
    notebook: dict[str, float] | None = None
    steady: Steady | None = None
    device_time: DeviceTime | None = None
    evidence: Evidence | None = None
    rank: int | None = None
    error: str = ""


def measure_efficiency(
    paths: Iterable[Path],
    device: Device,
    reading: ReadAs | None = None,
    precision: str = "fp32",
    group_by: Sequence[str] = (),
    jobs: int | None = None,
    scheduler: str | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> Efficiency:
    """Read profiles and compare what they say with a device's peaks.

    Parameters
    ----------
    paths : iterable of Path
        Files, and folders of files.
    precision : str
        Of the peak.
    group_by : sequence of str
        Columns of the configuration.
    jobs, scheduler
        See `executor.run_tasks`.
    on_done : callable, optional
        Called with the number of files done and of all.

    Raises
    ------
    BadProfile
        If a file cannot be read, or the notebook's method has durations and none for it, without `keep_going`.
    UnknownName
        If no file's configuration has a column to group by.
    """
    reading, peak = reading or ReadAs(), device.find_peak(precision)
    parse_name("", reading.name_pattern)  # a pattern that is invalid is reported before any work
    findings = _read(find_files(paths), reading, jobs, scheduler, on_done)
    good = [finding for finding in findings if not finding.error]
    columns = list(dict.fromkeys(name for finding in good for name in finding.configuration))
    for name in group_by:
        if good and name not in columns:
            raise UnknownName("column", name, columns, "The columns come from the files' names (--name-pattern).")
    notes = [SWAPPED] if reading.method == "notebook" and reading.durations is not None else []
    for finding in good[:1]:
        evidence = finding.evidence or evidence_of(open_profile(finding.path, reading.name_pattern))
        notes += [f"{finding.path.name}: {doubt}" for doubt in doubts(evidence, device)]
    rows = [_row(finding, device, peak, reading) for finding in good]
    ranked = [(f.rank, f.path, f.device_time) for f in good if f.rank is not None and f.device_time is not None]
    distinct = {rank for rank, _, _ in ranked}
    return Efficiency(
        reading.method,
        device,
        peak,
        rows,
        group_rows(rows, group_by, columns) if group_by else [],
        list(group_by),
        columns,
        [{"file": str(finding.path), "error": finding.error} for finding in findings if finding.error],
        tuple(notes),
        reading.by,
        compare_ranks(ranked) if len(distinct) == len(good) > 1 else None,
    )


def _read(
    files: list[Path],
    reading: ReadAs,
    jobs: int | None,
    scheduler: str | None,
    on_done: Callable[[int, int], None] | None,
) -> list[Finding]:
    """What is found of each file; with durations of the notebook's method none without one."""
    steps = None if reading.steps is None else parse_steps(reading.steps)
    work = partial(examine, method=reading.method, name_pattern=reading.name_pattern, steps=steps, by=reading.by)
    book = reading.durations
    finding_of: dict[Path, Finding] = {}
    for number, (path, found) in enumerate(run_tasks(files, work, jobs, scheduler, failed), 1):
        finding, told = found, found.configuration
        if found.notebook is not None and book is not None and book.find(told) is None:
            what = ", ".join(f"{name} {value}" for name, value in told.items())
            what = what or "a file whose name tells no configuration"
            finding = Finding(found.path, error=f"{found.path}: no batch duration for {what}")
        if finding.error and not reading.keep_going:
            raise BadProfile(finding.error)
        finding_of[path] = finding
        if on_done is not None:
            on_done(number, len(files))
    return [finding_of[path] if path in finding_of else finding_of[path.absolute()] for path in files]


def examine(
    path: Path, method: Method = "steady", name_pattern: str | None = None, steps: range | None = None, by: str = "op"
) -> Finding:
    """What is found of one file, or what is wrong with it."""
    try:
        return _found(path, method, name_pattern, steps, by)
    except PaleoError as error:
        return failed(path, error)
    except Exception as error:  # one file must not end what is read of the others
        return Finding(path, error=f"{path}: cannot be read: a defect of paleo-lite, {type(error).__name__}: {error}")


def failed(path: Path, error: PaleoError) -> Finding:
    """What is found of a file that cannot be read."""
    text = str(error)
    return Finding(path, error=text if str(path) in text else f"{path}: {text}")


def _found(path: Path, method: Method, name_pattern: str | None, steps: range | None, by: str) -> Finding:
    profile = open_profile(path, name_pattern)
    told = dict(profile.configuration)
    if method == "notebook":
        return Finding(path, profile.format, told, _sums(profile), rank=rank_of(profile))
    ran = Activity() if profile.has_starts else None
    columns = {*runs.COLUMNS, *(["layer"] if by == "module" else []), *(activity.COLUMNS if ran is not None else [])}
    batches, many = [], 0
    for batch in profile.batches(columns):
        found = runs.find_runs(batch)
        if found.length:
            batches.append(found)
            many += len(found.table["row"])
        if many > runs.MOST:
            raise BadProfile(f"more than {runs.MOST:,} operations: profile fewer iterations, or use --method notebook")
        if ran is not None:
            ran.add(batch)
    if not batches:
        raise _no_kernels(profile)
    steady = steady_state(runs.together(batches), steps, by)
    seconds, device_time, evidence = None if ran is None else ran.seconds(), None, None
    if ran is not None and seconds is not None:
        device_time, evidence = describe_time(ran, steady, steps is not None), evidence_of(profile, seconds)
    return Finding(path, profile.format, told, None, steady, device_time, evidence, rank_of(profile))


def _sums(profile: Profile) -> dict[str, float]:
    sums = NotebookSums()
    for batch in profile.batches(COLUMNS):
        sums = sums.merge(sum_rows(batch))
    if not sums.rows:
        raise _no_kernels(profile)
    if not any(sums.flops.values()):
        raise BadProfile(f"the profiler counted no FLOPs (a {profile.format} file), which the notebook's method needs")
    return sums.finish()


def _no_kernels(profile: Profile) -> BadProfile:
    """Why there is nothing with a duration on a device."""
    from .totals import total_kernels

    total_kernels(profile, with_busy=False)
    return BadProfile("its kernels have counters, and no durations: take the time from a run without counters")


def _row(finding: Finding, device: Device, peak: PeakRate, reading: ReadAs) -> dict[str, Any]:
    book = reading.durations
    duration = None if book is None else book.find(finding.configuration)
    if finding.notebook is not None:
        figures = notebook_figures(finding.notebook, duration, reading.batches)
    if finding.steady is not None:
        peak = _peak_of(finding.steady.precision, device, peak)
        figures = steady_figures(finding.steady, peak.per_s, duration.seconds if duration is not None else None)
        figures["operators"] = [
            _operator(row, device, _peak_of(row.precision, device, peak)) for row in finding.steady.operators
        ]
        figures |= dict.fromkeys(TIMES) if finding.device_time is None else finding.device_time.to_dict()
        figures |= {"peak": peak.describe(), "peak_flops_per_s": peak.per_s}
        figures["mfu"] = _over(finding.steady.flops, figures["step_s"], peak.per_s)
    figures["duration_from"] = None if duration is None else duration.source
    row = {"file": finding.path.name, **finding.configuration}
    for name in ("compute_efficiency", "flops_per_s", "bandwidth_bytes_per_s"):
        row[name] = figures.pop(name)
    row["flops_efficiency"] = _over(row["flops_per_s"], peak.per_s)
    row["bandwidth_efficiency"] = _over(row["bandwidth_bytes_per_s"], device.bandwidth_bytes_per_s)
    return row | figures


def _peak_of(precision: str | None, device: Device, requested: PeakRate) -> PeakRate:
    """The peak for what a trace says its products are in; the requested one where it, or the device, does not."""
    try:
        return requested if precision is None else device.find_peak(precision)
    except UnknownPrecision:
        return requested


def _operator(operator: Operator, device: Device, peak: PeakRate) -> dict[str, Any]:
    """An operation against the roofline, whose time is the larger of arithmetic's and memory's."""
    row: dict[str, Any] = msgspec.to_builtins(operator)
    flops, moved, time_s = operator.flops, operator.bytes, operator.time_s
    row |= dict.fromkeys(("flops_per_s", "bandwidth_bytes_per_s", "of_peak", "bound", "of_roofline"))
    if time_s and flops is not None:
        row["flops_per_s"], row["of_peak"] = flops / time_s, flops / time_s / peak.per_s
    if time_s and moved is not None:
        row["bandwidth_bytes_per_s"] = moved / time_s
    if time_s and flops is not None and moved is not None:
        compute_s, memory_s = flops / peak.per_s, moved / device.bandwidth_bytes_per_s
        row["bound"] = "compute" if compute_s >= memory_s else "memory"
        row["of_roofline"] = max(compute_s, memory_s) / time_s
    return row


def steady_figures(steady: Steady, peak_flops_per_s: float, batch_duration_s: float | None = None) -> dict[str, Any]:
    """The rates that follow from a steady iteration.

    They are over the measured duration of an iteration where there is one, else over the time in which the device was
    busy, else over the sum of the kernels' times; ``time_basis`` says which.
    """
    basis, seconds = next(
        (name, value)
        for name, value in (
            ("batch duration", batch_duration_s),
            ("busy time", steady.busy_s),
            ("sum of kernel times", steady.kernel_s),
        )
        if value is not None
    )
    conv = known_sum((steady.conv_flops_forward, steady.conv_flops_backward))
    return {
        "compute_efficiency": _over(steady.compute_s, steady.kernel_s),
        "flops_per_s": _over(steady.flops, seconds),
        "bandwidth_bytes_per_s": _over(steady.bytes, seconds),
        "time_basis": basis,
        "batch_duration_s": batch_duration_s,
        "conv_flops": conv,
        "conv_of_peak": _over(conv, seconds, peak_flops_per_s),
        "conv_of_peak_forward": _over(steady.conv_flops_forward, steady.conv_forward_s, peak_flops_per_s),
        "conv_of_peak_backward": _over(steady.conv_flops_backward, steady.conv_backward_s, peak_flops_per_s),
        **msgspec.to_builtins(steady),
    }


def _over(value: float | None, seconds: float | None, peak: float = 1.0) -> float | None:
    """A rate, or its share of a peak; None where it is unknown."""
    return value / seconds / peak if value is not None and seconds else None


def group_rows(
    rows: Sequence[Mapping[str, Any]], group_by: Sequence[str], configuration: Sequence[str]
) -> list[dict[str, Any]]:
    """Means of the figures over the rows that agree in some columns; rows in which a figure is absent do not count."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in group_by), []).append(row)
    means = []
    for values in sorted(groups, key=_order):
        members = groups[values]
        group = dict(zip(group_by, values)) | {"files": len(members)}
        for name in dict.fromkeys(key for member in members for key in member if key not in configuration):
            numbers = [member.get(name) for member in members]
            known = [number for number in numbers if isinstance(number, (int, float))]
            if known:
                group[name] = sum(known) / len(known)
            elif all(number is None for number in numbers):
                group[name] = None
        means.append(group)
    return means


def _order(values: tuple[Any, ...]) -> list[tuple[bool, bool, Any]]:
    """Numbers before text before what is absent."""
    return [(value is None, isinstance(value, str), 0 if value is None else value) for value in values]

"""Analysis of one profile: its steady iteration or the sums of the notebook, busy and idle time, and evidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..errors import BadProfile, BadValue, PaleoError, UnknownName
from ..profiles.detect import Profile, open_profile
from . import GROUPINGS, activity, runs
from .activity import ActivityRecorder
from .captured_graphs import CapturedGraphs, add_captured_operations
from .contradictions import OriginEvidence, find_rank, gather_evidence
from .device_time import DeviceTime, analyse_device_time
from .measured_shares import MeasuredShare, measure_shares
from .notebook import COLUMNS, NotebookSums, sum_batch
from .serving_steps import EngineStepRecorder, PhaseSummary
from .steady import SteadyIteration, analyse_steady_state, parse_steps

if TYPE_CHECKING:
    from .durations import DurationBook

Method = Literal["steady", "notebook"]


class ReadOptions(msgspec.Struct, frozen=True):
    """Options of reading profiles."""

    # `steady` analyses one steady iteration and fills in counts that the profiler lacks; `notebook` sums every row as
    # SURFBoard's notebook does.
    method: Method = "steady"
    name_pattern: str | None = None  # reads the configuration from a file's name, see `profiles.detect.parse_name`
    steps: str | None = None  # steady method only: the numbers of the marked iterations to use (`steady.parse_steps`)
    durations: DurationBook | None = None  # measured durations of one batch, used in place of kernel times
    batches: int = 25  # notebook method with durations: batches that a profile's FLOPs and bytes cover
    keep_going: bool = False  # report a file that cannot be read in `failed` instead of raising
    by: str = "op"  # key that the time of an iteration is summed by, one of `GROUPINGS`
    # Steady method only: captures of the graphs that the profiles replay (`captured_graphs`).
    capture_traces: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.steps is not None and self.method != "steady":
            raise BadValue("--steps selects iterations and cannot be used with --method notebook, which has none")
        if self.steps is not None:
            parse_steps(self.steps)
        if self.by not in GROUPINGS:
            raise UnknownName("grouping", self.by, GROUPINGS)
        if self.by != "op" and self.method != "steady":
            raise BadValue("--by groups the time of an iteration and cannot be used with --method notebook")
        if self.capture_traces and self.method != "steady":
            raise BadValue("--capture-trace names operations and cannot be used with --method notebook, which has none")


class FileAnalysis(msgspec.Struct, frozen=True):
    """Analysis of one file."""

    path: Path
    format: str = ""
    configuration: dict[str, Any] = {}  # configuration read from the file's name
    notebook: dict[str, float] | None = None  # figures of the notebook method
    steady: SteadyIteration | None = None  # figures of the steady method
    device_time: DeviceTime | None = None  # busy and idle time, if the profile has start times
    # Evidence of the device, if kernels have start times; for other profiles it is gathered later, at little cost.
    evidence: OriginEvidence | None = None
    rank: int | None = None  # rank in a distributed job, if the profile or its name records one
    engine_steps: list[PhaseSummary] = []  # steps of an inference engine by phase; empty without its annotations
    # How many graph launches have the operations of captured graphs; None without traces of captures.
    captured_graphs: CapturedGraphs | None = None
    # Shares of peak that the profiler measured, by the printed name of each kernel; empty of profilers that do not.
    measured_shares: dict[str, MeasuredShare] = {}
    remarks: tuple[str, ...] = ()  # what the profile says besides (`Profile.remarks`)
    error: str = ""  # error message of a file without figures; empty if the file was read


def analyse_file(path: Path, reading: ReadOptions | None = None) -> FileAnalysis:
    """Analyse one file; errors are returned in `FileAnalysis.error`."""
    try:
        return _analyse(path, reading or ReadOptions())
    except PaleoError as error:
        return failed_analysis(path, error)
    except Exception as error:  # one file must not end the analysis of the others
        return FileAnalysis(path, error=f"{path}: cannot be read: internal error, {type(error).__name__}: {error}")


def failed_analysis(path: Path, error: PaleoError) -> FileAnalysis:
    """Return the analysis of a file that cannot be read: an error message that names the file."""
    text = str(error)
    return FileAnalysis(path, error=text if str(path) in text else f"{path}: {text}")


def _analyse(path: Path, reading: ReadOptions) -> FileAnalysis:
    """Analyse one file by the method of the options."""
    profile = open_profile(path, reading.name_pattern)
    configuration = dict(profile.configuration)
    if reading.method == "notebook":
        return FileAnalysis(path, profile.format, configuration, _notebook_sums(profile), rank=find_rank(profile))
    steps = None if reading.steps is None else parse_steps(reading.steps)
    captured_graphs = None
    if reading.capture_traces:
        profile, captured_graphs = add_captured_operations(profile, reading.capture_traces)
    recorder = ActivityRecorder() if profile.has_starts else None
    columns = set(runs.COLUMNS)
    if reading.by == "module":
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
    ordered = runs.order_by_start(runs.concatenate_runs(batches))
    steady = analyse_steady_state(ordered, steps, reading.by)
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
        measured_shares=measure_shares(profile) if profile.measures_shares else {},
        remarks=tuple(profile.remarks),
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

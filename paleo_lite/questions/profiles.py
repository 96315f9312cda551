"""`efficiency`, `kernels` and `compare`: the analysis of profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
import msgspec

from ..api.prediction import predict_pass
from ..api.question import Question
from ..calibration.choose import used_calibration
from ..counting import GENERATION_PHASES
from ..counting.work import ENGINE
from ..errors import BadProfile, BadValue, NothingOnDevice, UnknownFormat
from ..extras import require
from ..files import Paths, file_exists, to_paths, without_copies
from ..machines import Device, find_device
from ..timing.energy import with_power_limit
from ..timing.models import TIME_MODELS
from .completion import DEVICE, NETWORK, CompletedText
from .kind import make_function
from .names import Names, PrecisionNames
from .option import Options, argument, documented_spelling, option, options_of
from .recorded_facts import RunFacts
from .records import (
    DEVICE_GROUP,
    HARDWARE_FILES,
    NETWORK_GROUP,
    TRAINING_PRECISIONS,
    DeviceOptions,
    PppOptions,
)
from .values import INTEGER, CommaSeparated, to_list

if TYPE_CHECKING:
    from ..calibration.comparison import ProfileComparison
    from ..machines import Device
    from ..profile_analysis.analysis import Efficiency
    from ..profile_analysis.compare import RunComparison
    from ..profile_analysis.host import HostReport
    from ..profile_analysis.kernels import KernelReport
    from ..profile_analysis.merged_trace import MergedTrace
    from ..profile_analysis.recorded_device import MissingDevice
    from ..result_files.beside import MeasuredBesideForecast
    from ..timing import Prediction

PROFILE_GROUP = "Profiles"
DURATION_GROUP = "Measured durations"
PROCESS_GROUP = "Processes"

EXISTING_PATH = click.Path(path_type=Path, exists=True)
PRECISIONS = PrecisionNames("precision", ".units:PRECISION_BYTES")
DIRECTIONS = Names("direction", ".profile_analysis:DIRECTIONS")
GROUPINGS = Names("grouping", ".profile_analysis:GROUPINGS")
COLUMNS = CommaSeparated(CompletedText(".questions.completion:configuration_names"))


@dataclass(frozen=True)
class RecordedDevice(Options):
    """The device of profiles, and the precision of its peak."""

    compares: ClassVar[bool] = False

    gpu: str | Device | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE",
        help="Device of the profiles. [default: the one recorded in the first profile]",
    )  # fmt: skip
    precision: str = option(
        "fp32", group=DEVICE_GROUP, type=PRECISIONS,
        help="Precision of the peak, where a profile does not record that of its matrix products.",
    )  # fmt: skip
    hardware_files: Sequence[str | Path] = option((), **HARDWARE_FILES)


@dataclass(frozen=True)
class FileNames(Options):
    """Settings of a run that are read from file names."""

    name_pattern: str | None = option(
        group=PROFILE_GROUP, metavar="REGEX",
        help="Regular expression with named groups that reads the settings of a run from its file name: "
        "(?P<nodes>[0-9]+).",
    )  # fmt: skip


@dataclass(frozen=True)
class CaptureOptions(Options):
    """The captures of graphs that profiles replay."""

    capture_traces: Paths = option(
        (), group=PROFILE_GROUP, spellings=("--capture-trace",), is_repeatable=True, type=EXISTING_PATH, metavar="PATH",
        help="Trace of the capture of the CUDA or HIP graphs that the profiles replay, or a folder of such traces: "
        "kernels of the graphs get their operations and shapes.",
    )  # fmt: skip


@dataclass(frozen=True)
class ProcessOptions(Options):
    """The processes that read files."""

    jobs: int | None = option(
        group=PROCESS_GROUP, type=INTEGER, metavar="N", help="Number of processes. [default: one per core]"
    )
    scheduler: str | None = option(
        group=PROCESS_GROUP, metavar="ADDRESS",
        help="Dask scheduler, tcp://host:8786, on whose workers the computation runs.",
    )  # fmt: skip
    keep_going: bool = option(False, group=PROCESS_GROUP, help="Report unreadable files and continue with the others.")


@dataclass(frozen=True)
class EfficiencyQuestion(ProcessOptions, FileNames, CaptureOptions, RecordedDevice):
    """Measure how well a device was used, from profiles.

    Without a device, a profile of one that the registry lacks is analyzed without shares of peak. Unreadable files are
    listed in `failed` with ``keep_going``.
    """

    paths: Paths = argument("Profiles, or folders of profiles; several are read in parallel.")
    method: str = option(
        "steady", group=PROFILE_GROUP, type=Names("method", ".profile_analysis:METHODS"),
        help="steady analyzes one steady iteration, notebook all rows as the notebook of SURFBoard does.",
    )  # fmt: skip
    steps: str | None = option(
        group=PROFILE_GROUP, metavar="FIRST:LAST",
        help="Analyze only these iterations, by the numbers of their step markers: 3, or 2:5.",
    )  # fmt: skip
    by: str = option(
        "op", group=PROFILE_GROUP, type=GROUPINGS,
        help="Sum the time of an iteration by operation, by operation and shapes, by module (or marked range), or by "
        "kernel.",
    )  # fmt: skip
    group_by: str | Sequence[str] = option(
        (), group=PROFILE_GROUP, type=COLUMNS, metavar="COLUMNS",
        help="Also print means over these columns of the configuration, such as batch_size,nodes.",
    )  # fmt: skip
    durations: Paths = option(
        (), group=DURATION_GROUP, is_repeatable=True, type=EXISTING_PATH, metavar="FILE",
        help="Measured batch durations, used for rates instead of kernel times: CSV tables, CSVs of markers, TAU "
        "intervals, or folders of these; the shortest duration is used.",
    )  # fmt: skip
    batches: int = option(
        25, group=DURATION_GROUP, type=INTEGER,
        help="With --durations and the method notebook: number of batches in the profiles.",
    )  # fmt: skip
    tau_init: str | Path | None = option(
        group=DURATION_GROUP, type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
        help="TAU intervals of runs with one batch; their median is subtracted as the initialization time.",
    )  # fmt: skip
    tau_batches: int = option(50, group=DURATION_GROUP, type=INTEGER, help="Number of batches of the TAU runs.")


@dataclass(frozen=True)
class KernelsQuestion(FileNames, RecordedDevice):
    """Break the time of a profile down by kernel, and rank the kernels by optimization potential.

    A profile without device activity (a trace of the CPU, hotspots of VTune) is broken down by function. Without a
    device, a profile of one that the registry lacks is analyzed without shares of peak.
    """

    paths: Paths = argument(
        "A profile; or several, or folders of them, whose kernels are added up, such as the ranks of a job."
    )
    direction: str = option("all", group=PROFILE_GROUP, type=DIRECTIONS, help="Pass of the kernels.")
    full_names: bool = option(
        False, group=PROFILE_GROUP, help="One row per full kernel name, with template arguments and parameters."
    )


@dataclass(frozen=True)
class ComparisonQuestion(RunFacts, FileNames, CaptureOptions, PppOptions, DeviceOptions):
    """Compare the kernels of two profiles, a prediction with a profile, or a result file with its forecasts.

    Of repeated profiles, every difference is compared with the spread between the repeats. A single result file of a
    benchmark (see `measurements`) is compared with the forecasts for its own configuration; ``predict``, ``gpu``,
    ``precision``, ``sequence_length`` and the options of a run add what it lacks. With ``predict``, the time model
    ``ppp`` without a PPP is fitted to the profile.
    """

    compares: ClassVar[bool] = False

    a: Paths = argument("A profile, repeated profiles, or a result file of a benchmark.")
    b: Paths = argument("The other profile, or its repeats; omitted with `predict` and for a result file.", ())
    repeats: bool = option(
        False, group=PROFILE_GROUP,
        help="Also read the repeats in the folders of A and B, recognised by their names.",
    )  # fmt: skip
    direction: str = option("all", group=PROFILE_GROUP, type=DIRECTIONS, help="Pass of the kernels.")
    by: str = option(
        "kernel", group=PROFILE_GROUP, type=GROUPINGS,
        help="Sum the times by kernel, by operation, by operation and shapes, or by module.",
    )  # fmt: skip
    predict: str | None = option(
        group=NETWORK_GROUP, type=NETWORK, metavar="NETWORK", spellings=("--predict", "--network"),
        help="Compare a prediction for this network with one profile; options of networks, devices and time models are "
        "for the prediction. The network of a result file that does not record it.",
    )  # fmt: skip
    gpu: str | Device | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE",
        help="With --predict: device. [default: the one recorded in the profile]",
    )  # fmt: skip
    precision: str | None = option(
        group=NETWORK_GROUP, type=TRAINING_PRECISIONS, metavar="NAME",
        help="Precision of the arithmetic. [default: fp32, or that of a result file]",
    )  # fmt: skip
    batch_size: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N",
        help="With --predict: samples per pass. [default: as in the file name of the profile]",
    )  # fmt: skip
    sequence_length: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="TOKENS",
        help="Tokens per sequence of a language model; in prefill the length of the prompt. [default: the maximum of "
        "the model, but at most 2048]",
    )  # fmt: skip
    context: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="TOKENS", help="Tokens in the KV cache, for the phase decode."
    )
    phase: str | None = option(
        group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES", ".counting:GENERATION_PHASES"), metavar="NAME",
        help="With --predict: phase. [default: training if the profile has backward kernels, else inference]",
    )  # fmt: skip


OF_A_PREDICTION = (
    "gpu", "batch_size", "sequence_length", "context", "phase", "time_model", "ppp", "calibration", "clock", "unit",
    "power_limit", "capture_traces",
)  # fmt: skip
"""Options of a comparison that only a prediction has."""


PROFILE_READER = ("pyarrow", "reading profiles", "profiles")
"""Arguments of `require` for the library that reads profiles."""

_FITTED_TO_PROFILE = [name for name, model in TIME_MODELS.items() if model.is_fitted and model.needs_ppp]
"""Time models with one parameter, which `compare` can fit to a profile."""


def answer_efficiency(question: EfficiencyQuestion) -> Efficiency:
    """Return how well a device was used.

    Raise PaleoError for a malformed profile, or an unknown device, column or precision.
    """
    require(*PROFILE_READER)
    if not question.keep_going:
        _refuse_result_file(question.paths)
    from ..profile_analysis.analysis import measure_efficiency
    from ..profile_analysis.one_file import ReadOptions

    device = _find_or_identify_device(question.gpu, question.paths, question.name_pattern, question.hardware_files)
    if isinstance(device, Device):
        device.find_peak(question.precision)  # raises UnknownPrecision before any file is read
    elif question.method == "notebook":
        raise BadValue(device.request)  # its figures are shares of peak
    batch_durations = None
    initialization_path = None if question.tau_init is None else Path(question.tau_init)
    if question.durations:
        from ..profile_analysis.durations import read_durations

        batch_durations = read_durations(
            to_paths(question.durations),
            initialisation=initialization_path,
            tau_batches=question.tau_batches,
            name_pattern=question.name_pattern,
        )
    elif initialization_path is not None:
        raise BadValue("`--tau-init` requires `--durations`: it is the initialization of these TAU runs")
    reading = ReadOptions(
        method=question.method,  # type: ignore[arg-type]  # one of the names that the record has checked
        name_pattern=question.name_pattern,
        steps=question.steps,
        durations=batch_durations,
        batches=question.batches,
        keep_going=question.keep_going,
        by=question.by,
        capture_traces=tuple(to_paths(question.capture_traces)),
    )
    columns = to_list(question.group_by) if question.group_by else []
    return measure_efficiency(
        to_paths(question.paths), device, reading, question.precision, columns, question.jobs, question.scheduler
    )


efficiency = make_function("efficiency", EfficiencyQuestion, answer_efficiency)


def _find_or_identify_device(
    gpu: str | Device | None, paths: Paths, name_pattern: str | None, hardware_files: Paths
) -> Device | MissingDevice:
    """Return the requested device, or the one recorded in the first profile, or why there is none."""
    files = to_paths(hardware_files)
    if gpu is not None:
        return find_device(gpu, files)
    from ..profile_analysis.recorded_device import describe_missing_device, identify_device
    from ..profiles.detect import find_files, open_profile

    profile = open_profile(find_files(to_paths(paths))[0], name_pattern)
    return identify_device(profile, files) or describe_missing_device(profile, files)


def answer_kernels(question: KernelsQuestion) -> KernelReport | HostReport:
    """Return the time of profiles by kernel, or by function where no device was active.

    Raise PaleoError for a malformed profile, or an unknown device or precision.
    """
    require(*PROFILE_READER)
    _refuse_result_file(question.paths)
    from ..profile_analysis.contradictions import device_warnings, find_contradictions, gather_evidence
    from ..profile_analysis.host import report_host
    from ..profile_analysis.kernels import mark_device_conflict, report_kernels
    from ..profile_analysis.totals import total_kernels
    from ..profiles.detect import open_profile

    device: Device | MissingDevice | None = None
    if question.gpu is not None:
        device = find_device(question.gpu, to_paths(question.hardware_files))
        device.find_peak(question.precision)  # raises UnknownPrecision before any file is read
    files, copies = without_copies(_list_files(question.paths))
    profiles = [open_profile(file, question.name_pattern) for file in files]
    try:
        if device is None:
            total_kernels(profiles[0], question.direction)  # raises NothingOnDevice for a profile of the host
            device = _find_or_identify_device(None, question.paths, question.name_pattern, question.hardware_files)
        report = report_kernels(
            profiles, device, question.precision, direction=question.direction, full_names=question.full_names
        )
        report = msgspec.structs.replace(report, notes=(*copies, *report.notes))
    except NothingOnDevice:
        if len(profiles) > 1:
            raise
        return report_host(profiles[0])
    if not isinstance(device, Device):
        return report
    evidence = gather_evidence(profiles[0], report.raw_s)
    return mark_device_conflict(report, find_contradictions(evidence, device), device_warnings(evidence, device))


kernels = make_function("kernels", KernelsQuestion, answer_kernels)


def _list_files(paths: Paths) -> list[Path]:
    """Return the given files, with folders replaced by their files."""
    from ..profiles.detect import find_files

    listed = to_paths(paths)
    if len(listed) > 1 or file_exists(listed[0], Path.is_dir):
        return find_files(listed)
    return listed


def answer_comparison(question: ComparisonQuestion) -> RunComparison | ProfileComparison | MeasuredBesideForecast:
    """Return two profiles, a prediction and a profile, or a result file and its forecasts side by side.

    Raise PaleoError for a malformed profile, or if the profile contradicts the options.
    """
    profiles_a, profiles_b = to_paths(question.a), to_paths(question.b)
    paths = [*profiles_a, *profiles_b]
    if len(paths) == 1 and file_exists(paths[0]):
        require(*PROFILE_READER)
        from ..api.result_forecasts import compare_result, is_result_file

        if is_result_file(paths[0]):
            return compare_result(paths[0], _recorded_facts(question), to_paths(question.hardware_files))
    for name in question.given():
        if name in options_of(RunFacts):
            raise BadValue(f"`--{name.replace('_', '-')}` is for a result file of a benchmark")
    if question.predict is not None:
        if len(paths) != 1:
            raise BadValue("`--predict` needs one profile")
        return _compare_prediction(paths[0], question)
    if len(paths) == 1 and question.predict is None and file_exists(paths[0]):
        _check_is_profile(paths[0])
    of_prediction = [name for name in question.given() if name in OF_A_PREDICTION]
    if of_prediction:
        spelling = documented_spelling(of_prediction[0], options_of(ComparisonQuestion)[of_prediction[0]])
        raise BadValue(f"`{spelling}` can be used only with `--predict`: give the network, such as --predict resnet50")
    if not profiles_a or not profiles_b:
        raise BadValue("`compare` needs two profiles, A and B (or `--predict NETWORK` and one profile)")
    require(*PROFILE_READER)
    from ..profile_analysis.compare import compare as compare_profiles
    from ..profile_analysis.compare import find_repeats
    from ..profiles.detect import open_profile

    pattern = question.name_pattern
    sides = []
    copies = list[str]()
    for given_paths in (profiles_a, profiles_b):
        unique_paths = list(dict.fromkeys(given_paths))
        if question.repeats:
            unique_paths = list(dict.fromkeys(file for path in given_paths for file in find_repeats(path, pattern)))
        profiles = [open_profile(path, pattern) for path in unique_paths]
        originals, of_side = without_copies(unique_paths)
        sides.append([profile for profile in profiles if profile.path in originals])
        copies += of_side
    comparison = compare_profiles(sides[0], sides[1], question.direction, question.by)
    return msgspec.structs.replace(comparison, notes=(*copies, *comparison.notes))


compare = make_function("compare", ComparisonQuestion, answer_comparison)


def _check_is_profile(path: Path) -> None:
    """Raise PaleoError for an empty file, and for one that is neither a profile nor a result file."""
    from ..profiles.detect import open_profile
    from ..result_files.detect import recognise

    try:
        open_profile(path)
    except UnknownFormat:
        recognise(path)  # raises UnknownFormat with the formats that there are


def _refuse_result_file(paths: Paths) -> None:
    """Raise UnknownFormat if the first file is what a benchmark wrote, and no profile."""
    from ..profiles.detect import open_profile
    from ..result_files.detect import recognise

    first = next(iter(to_paths(paths)), None)
    if first is None or not file_exists(first, Path.is_file):
        return
    try:
        open_profile(first)
    except UnknownFormat as no_profile:
        try:
            result = recognise(first)
        except UnknownFormat:
            raise no_profile from None
        raise UnknownFormat(
            f"{first}: not a profile, but a result file of {result.tool}: `paleo-lite measurements` reads it"
        ) from None


def _recorded_facts(question: ComparisonQuestion) -> dict[str, Any]:
    """Return what the user adds to a result file, by the names of its facts."""
    names = {"network": "predict", **{name: name for name in ("gpu", "precision", "sequence_length")}}
    names |= {name: name for name in options_of(RunFacts)}
    facts = {fact: getattr(question, name) for fact, name in names.items()}
    return {fact: value for fact, value in facts.items() if value is not None}


def _compare_prediction(path: Path, question: ComparisonQuestion) -> ProfileComparison:
    """Compare a prediction with a profile."""
    require(*PROFILE_READER)
    from ..calibration.comparison import compare_with_profile, training_overlap_notes
    from ..calibration.from_profiles import predict_with_fitted_ppp
    from ..profile_analysis.captured_graphs import add_captured_operations
    from ..profile_analysis.contradictions import check_evidence
    from ..profile_analysis.pass_times import measure_passes
    from ..profiles.detect import open_profile

    device = _find_or_identify_device(question.gpu, path, question.name_pattern, question.hardware_files)
    if not isinstance(device, Device):
        raise BadValue(device.request)
    if question.power_limit is not None:
        device = with_power_limit(device, question.power_limit)
    profile = open_profile(path, question.name_pattern)
    batch_size = question.batch_size or profile.configuration.get("batch_size")
    if not isinstance(batch_size, int):
        raise BadProfile(f"{path}: the file name does not give the batch size: use `--batch-size`")
    calibration: Any = question.calibration
    is_fitted = question.time_model in _FITTED_TO_PROFILE and question.ppp is None and calibration is None

    def predict_phase(phase: str) -> Prediction:
        """Predict a phase by its layers, whose kinds the operations of a profile have."""
        return predict_pass(
            Question(
                question.predict,
                gpu=device,
                precision=question.precision or "fp32",
                batch_size=batch_size,
                phase=phase,
                sequence_length=question.sequence_length,
                context=question.context,
                time_model=question.time_model,
                calibration=calibration,
                clock=question.clock,
                unit=question.unit,
                ppp=1.0 if is_fitted else question.ppp,
                execution=ENGINE if phase in GENERATION_PHASES else None,
            )
        )

    prediction = predict_phase(question.phase or "inference")  # an unknown network raises before the profile is read
    check_evidence(profile, prediction.device, prediction.network, prediction.precision)
    if question.capture_traces:
        profile, _ = add_captured_operations(profile, to_paths(question.capture_traces))
    measured = measure_passes(profile)
    comparison = compare_with_profile(str(path), measured, predict_phase(question.phase or measured.phase))
    if is_fitted:
        return predict_with_fitted_ppp(comparison)
    used = used_calibration(comparison.prediction, calibration)
    if used is not None:
        return msgspec.structs.replace(comparison, remarks=training_overlap_notes(comparison, used.provenance))
    return comparison


def merge_traces(paths: Paths, output: str | Path, *, force: bool = False) -> MergedTrace:
    """Write the activity of the devices of several ranks into one trace for Perfetto and chrome://tracing.

    A rank is a process and a stream a thread; counters say how much each stream has in its queue, and at what rate
    copies run.

    Parameters
    ----------
    paths : path, or sequence of paths
        Profiles with start times, or folders of them: one for each rank.
    output : path
        The trace, ``.json`` or ``.json.gz``; an existing file is replaced only with `force`.

    Returns
    -------
    MergedTrace
        Path, size in bytes, and the number of events of each rank.

    Raises
    ------
    PaleoError
        For a malformed profile, one without start times, or an output that exists.
    """
    require(*PROFILE_READER)
    from ..profile_analysis.merged_trace import merge_traces as merge

    return merge(to_paths(paths), Path(output), force=force)


def replay_operator(paths: Paths, operator: str | None = None) -> str:
    """Return a Python script that runs one operator of a PyTorch trace again, with the recorded shapes and types.

    Parameters
    ----------
    paths : path, or sequence of paths
        Traces with shapes (``record_shapes=True``), or folders of them.
    operator : str, optional
        Name of the operator, such as ``aten::mm``; its call with most time is run. By default the operator with most
        time of those whose arguments are all recorded.

    Returns
    -------
    str
        The script, which needs only PyTorch and prints its own time beside the recorded one.

    Raises
    ------
    PaleoError
        For a malformed profile, an unknown operator, or arguments that are not recorded.
    """
    require(*PROFILE_READER)
    from ..profile_analysis.replay import recorded_calls, replay_script
    from ..profiles.detect import find_files, open_profile

    files = find_files(to_paths(paths))
    return replay_script(recorded_calls(map(open_profile, files)), operator, files[0].name)

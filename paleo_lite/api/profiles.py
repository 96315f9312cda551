"""`efficiency`, `kernels` and `compare`: the analysis of profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..calibration.choose import used_calibration
from ..counting import GENERATION_PHASES
from ..counting.work import ENGINE
from ..errors import BadProfile, BadValue, NothingOnDevice
from ..extras import require
from ..files import Paths, file_exists, to_paths
from ..machines import Device, find_device
from ..questions.kind import make_function
from ..questions.option import documented_spelling, options_of
from ..questions.profiles import OF_A_PREDICTION, ComparisonQuestion, EfficiencyQuestion, KernelsQuestion
from ..questions.values import to_list
from ..timing.energy import with_power_limit
from ..timing.models import TIME_MODELS
from .prediction import predict_pass
from .question import Question

if TYPE_CHECKING:
    from ..calibration.comparison import ProfileComparison
    from ..profile_analysis.analysis import Efficiency
    from ..profile_analysis.compare import RunComparison
    from ..profile_analysis.host import HostReport
    from ..profile_analysis.kernels import KernelReport
    from ..profile_analysis.recorded_device import MissingDevice
    from ..result_files.beside import MeasuredBesideForecast
    from ..timing import Prediction


PROFILE_READER = ("pyarrow", "reading profiles", "profiles")
"""Arguments of `require` for the library that reads profiles."""

_FITTED_TO_PROFILE = [name for name, model in TIME_MODELS.items() if model.is_fitted and model.options]
"""Time models with one parameter, which `compare` can fit to a profile."""


def answer_efficiency(question: EfficiencyQuestion) -> Efficiency:
    """Return how well a device was used.

    Raise PaleoError for a malformed profile, or an unknown device, column or precision.
    """
    require(*PROFILE_READER)
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
    from ..profile_analysis.evidence import device_warnings, find_contradictions, gather_evidence
    from ..profile_analysis.host import report_host
    from ..profile_analysis.kernels import mark_device_conflict, report_kernels
    from ..profile_analysis.totals import total_kernels
    from ..profiles.detect import open_profile

    device: Device | MissingDevice | None = None
    if question.gpu is not None:
        device = find_device(question.gpu, to_paths(question.hardware_files))
        device.find_peak(question.precision)  # raises UnknownPrecision before any file is read
    profiles = [open_profile(file, question.name_pattern) for file in _list_files(question.paths)]
    try:
        if device is None:
            total_kernels(profiles[0], question.direction)  # raises NothingOnDevice for a profile of the host
            device = _find_or_identify_device(None, question.paths, question.name_pattern, question.hardware_files)
        report = report_kernels(
            profiles, device, question.precision, direction=question.direction, full_names=question.full_names
        )
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
        from .result_forecasts import compare_result, is_result_file

        if is_result_file(paths[0]):
            return compare_result(
                paths[0],
                network=question.predict,
                gpu=question.gpu,
                precision=question.precision,
                sequence_length=question.sequence_length,
                hardware_files=to_paths(question.hardware_files),
            )
    if question.predict is not None:
        if len(paths) != 1:
            raise BadValue("`--predict` needs one profile")
        return _compare_prediction(paths[0], question)
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
    for given_paths in (profiles_a, profiles_b):
        unique_paths = dict.fromkeys(given_paths)
        if question.repeats:
            unique_paths = dict.fromkeys(repeat for path in given_paths for repeat in find_repeats(path, pattern))
        sides.append([open_profile(path, pattern) for path in unique_paths])
    return compare_profiles(sides[0], sides[1], question.direction, question.by)


compare = make_function("compare", ComparisonQuestion, answer_comparison)


def _compare_prediction(path: Path, question: ComparisonQuestion) -> ProfileComparison:
    """Compare a prediction with a profile."""
    require(*PROFILE_READER)
    from ..calibration.comparison import compare_with_profile, training_overlap_notes
    from ..calibration.from_profiles import predict_with_fitted_ppp
    from ..profile_analysis.captured_graphs import add_captured_operations
    from ..profile_analysis.evidence import check_evidence
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

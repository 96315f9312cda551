"""`efficiency`, `kernels` and `compare`: the analysis of profiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..calibration.choose import used_calibration
from ..counting import GENERATION_PHASES
from ..counting.work import ENGINE
from ..errors import BadProfile, BadValue, NothingOnDevice
from ..extras import require
from ..files import file_exists
from ..machines import Device, find_device
from ..timing.energy import with_power_limit
from ..timing.models import TIME_MODELS
from .arguments import Paths, to_paths
from .prediction import predict_pass
from .question import Question

if TYPE_CHECKING:
    from ..calibration.comparison import ProfileComparison
    from ..calibration.store import Calibration
    from ..profile_analysis.analysis import Efficiency
    from ..profile_analysis.compare import RunComparison
    from ..profile_analysis.host import HostReport
    from ..profile_analysis.kernels import KernelReport
    from ..profile_analysis.one_file import Method
    from ..profile_analysis.recorded_device import MissingDevice
    from ..result_files.beside import MeasuredBesideForecast
    from ..timing import Prediction


PROFILE_READER = ("pyarrow", "reading profiles", "profiles")
"""Arguments of `require` for the library that reads profiles."""

_FITTED_TO_PROFILE = [name for name, model in TIME_MODELS.items() if model.is_fitted and model.options]
"""Time models with one parameter, which `compare` can fit to a profile."""


def efficiency(
    paths: Paths,
    *,
    gpu: str | Device | None = None,
    method: Method = "steady",
    precision: str = "fp32",
    group_by: Sequence[str] = (),
    name_pattern: str | None = None,
    steps: str | None = None,
    by: str = "op",
    capture_traces: Paths = (),
    durations: Paths = (),
    batches: int = 25,
    tau_init: str | os.PathLike[str] | None = None,
    tau_batches: int = 50,
    jobs: int | None = None,
    scheduler: str | None = None,
    keep_going: bool = False,
    hardware_files: Paths = (),
    on_done: Callable[[int, int], None] | None = None,
) -> Efficiency:
    r"""Measure how well a device was used, from profiles.

    Parameters
    ----------
    paths : path, or sequence of paths
        Profiles, or folders of profiles; several are read in parallel.
    gpu : str or Device, optional
        Device on which the profiles were taken; by default the device recorded in the first profile. Without `gpu`, a
        profile of a device that the registry lacks is analyzed without shares of peak.
    method : {"steady", "notebook"}
        ``steady`` analyzes one steady iteration, ``notebook`` all rows as the notebook of SURFBoard does.
    precision : str
        Precision of the peak, where a PyTorch trace does not record the precision of its matrix products.
    group_by : sequence of str
        Columns of the configuration over which means are reported, too: ``["batch_size", "nodes"]``.
    name_pattern : str, optional
        Regular expression with named groups that reads the settings of a run from its file name:
        ``(?P<nodes>[0-9]+)``.
    steps : str, optional
        Analyze only these iterations, by the numbers of their step markers: ``"3"``, or ``"2:5"``.
    by : {"op", "shape", "module", "kernel"}
        Sum the time of an iteration by operation, by operation and shapes, by module (or marked range), or by kernel.
    capture_traces : path, or sequence of paths
        Traces of the captures of the CUDA or HIP graphs that the profiles replay, or folders of them: the kernels of
        the graphs get the operations, shapes and modules of the captures.
    durations : path, or sequence of paths
        Measured batch durations, used for rates instead of kernel times: CSV tables, CSVs of markers, TAU intervals, or
        folders of these; the shortest duration is used.
    batches : int
        With `durations` and the method ``notebook``: number of batches in the profiles.
    tau_init : path, optional
        TAU intervals of runs with one batch; their median is subtracted as the initialization time.
    tau_batches : int
        Number of batches of the TAU runs.
    jobs : int, optional
        Number of processes; by default one per core.
    scheduler : str, optional
        Address of a Dask scheduler, ``tcp://host:8786``, on whose workers the profiles are read.
    keep_going : bool
        List unreadable files in `failed` instead of raising an error.
    hardware_files : path, or sequence of paths
        TOML files of further devices.
    on_done : callable, optional
        Called with the number of completed files and the number of all files.

    Returns
    -------
    Efficiency

    Raises
    ------
    PaleoError
        For a malformed profile, or an unknown device, column or precision.
    """
    require(*PROFILE_READER)
    from ..profile_analysis.analysis import measure_efficiency
    from ..profile_analysis.one_file import ReadOptions

    device = _find_or_identify_device(gpu, paths, name_pattern, hardware_files)
    if isinstance(device, Device):
        device.find_peak(precision)  # raises UnknownPrecision before any file is read
    elif method == "notebook":
        raise BadValue(device.request)  # its figures are shares of peak
    batch_durations = None
    initialization_path = None if tau_init is None else Path(tau_init)
    if durations:
        from ..profile_analysis.durations import read_durations

        batch_durations = read_durations(
            to_paths(durations),
            initialisation=initialization_path,
            tau_batches=tau_batches,
            name_pattern=name_pattern,
        )
    elif initialization_path is not None:
        raise BadValue("`--tau-init` requires `--durations`: it is the initialization of these TAU runs")
    reading = ReadOptions(
        method=method,
        name_pattern=name_pattern,
        steps=steps,
        durations=batch_durations,
        batches=batches,
        keep_going=keep_going,
        by=by,
        capture_traces=tuple(to_paths(capture_traces)),
    )
    return measure_efficiency(to_paths(paths), device, reading, precision, group_by, jobs, scheduler, on_done)


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


def kernels(
    paths: Paths,
    *,
    gpu: str | Device | None = None,
    precision: str = "fp32",
    direction: str = "all",
    full_names: bool = False,
    name_pattern: str | None = None,
    hardware_files: Paths = (),
) -> KernelReport | HostReport:
    """Break the time of a profile down by kernel, and rank the kernels by optimization potential.

    A profile without device activity (a trace of the CPU, hotspots of VTune) is broken down by function.

    Parameters
    ----------
    paths : path, or sequence of paths
        A profile; or several, or folders of them, whose kernels are added up, such as the ranks of a job.
    gpu : str or Device, optional
        Device on which the kernels ran; by default the device recorded in the first profile. Without `gpu`, a profile
        of a device that the registry lacks is analyzed without shares of peak.
    precision : str
        Precision of the peak, as for `efficiency`.
    direction : str
        Pass of the kernels: one of `paleo_lite.profile_analysis.DIRECTIONS`.
    full_names : bool
        One row per full kernel name, with template arguments and parameters.
    name_pattern, hardware_files
        As for `efficiency`.

    Returns
    -------
    KernelReport or HostReport

    Raises
    ------
    PaleoError
        For a malformed profile, or an unknown device or precision.
    """
    require(*PROFILE_READER)
    from ..profile_analysis.evidence import device_warnings, find_contradictions, gather_evidence
    from ..profile_analysis.host import report_host
    from ..profile_analysis.kernels import mark_device_conflict, report_kernels
    from ..profile_analysis.totals import total_kernels
    from ..profiles.detect import open_profile

    device: Device | MissingDevice | None = None
    if gpu is not None:
        device = find_device(gpu, to_paths(hardware_files))
        device.find_peak(precision)  # raises UnknownPrecision before any file is read
    profiles = [open_profile(file, name_pattern) for file in _list_files(paths)]
    try:
        if device is None:
            total_kernels(profiles[0], direction)  # raises NothingOnDevice for a profile of the host
            device = _find_or_identify_device(None, paths, name_pattern, hardware_files)
        report = report_kernels(profiles, device, precision, direction=direction, full_names=full_names)
    except NothingOnDevice:
        if len(profiles) > 1:
            raise
        return report_host(profiles[0])
    if not isinstance(device, Device):
        return report
    evidence = gather_evidence(profiles[0], report.raw_s)
    return mark_device_conflict(report, find_contradictions(evidence, device), device_warnings(evidence, device))


def _list_files(paths: Paths) -> list[Path]:
    """Return the given files, with folders replaced by their files."""
    from ..profiles.detect import find_files

    listed = to_paths(paths)
    if len(listed) > 1 or file_exists(listed[0], Path.is_dir):
        return find_files(listed)
    return listed


def compare(
    a: Paths,
    b: Paths = (),
    *,
    repeats: bool = False,
    direction: str = "all",
    by: str = "kernel",
    predict: str | None = None,
    gpu: str | Device | None = None,
    precision: str = "fp32",
    batch_size: int | None = None,
    sequence_length: int | None = None,
    context: int | None = None,
    phase: str | None = None,
    time_model: str | None = None,
    ppp: float | None = None,
    calibration: str | Calibration | None = None,
    clock: str | None = None,
    power_limit: float | str | None = None,
    capture_traces: Paths = (),
    name_pattern: str | None = None,
    hardware_files: Paths = (),
) -> RunComparison | ProfileComparison | MeasuredBesideForecast:
    """Compare the kernels of two profiles, a prediction with a profile, or a result file with its forecasts.

    Parameters
    ----------
    a, b : path, or sequence of paths
        A profile, or repeated profiles: every difference is then compared with the spread of the repeats. With
        `predict`, `b` is omitted. A single result file of a benchmark (see `measurements`) is compared with the
        forecasts for its own configuration; `predict`, `gpu`, `precision` and `sequence_length` add what it lacks.
    repeats : bool
        Also read the repeats in the folders of A and B, which are recognised by their names.
    direction : str
        Pass of the kernels: one of `paleo_lite.profile_analysis.DIRECTIONS`.
    by : {"kernel", "op", "shape", "module"}
        Sum the times by kernel, by operation, by operation and shapes, or by module.
    predict : str, optional
        Network to predict.
    gpu : str or Device, optional
        With `predict`: device; by default the one recorded in the profile.
    precision, time_model, ppp, calibration, clock, power_limit, hardware_files
        With `predict`: as for `paleo_lite.predict`. The time model ``ppp`` without `ppp` is fitted to the profile.
    batch_size : int, optional
        With `predict`: samples per pass; by default the batch size in the file name of the profile.
    sequence_length, context : int, optional
        With `predict`: tokens per sequence of a language model, and tokens in the KV cache for the phase ``decode``.
    phase : str, optional
        With `predict`: phase, such as ``"prefill"`` or ``"decode"``; by default ``training`` if the profile has
        backward kernels, and otherwise ``inference``.
    capture_traces : path, or sequence of paths
        With `predict`: as for `efficiency`.
    name_pattern : str, optional
        As for `efficiency`.

    Returns
    -------
    Comparison, ProfileComparison or MeasuredBesideForecast

    Raises
    ------
    PaleoError
        For a malformed profile, or if the profile contradicts the arguments.
    """
    profiles_a = to_paths(a)
    profiles_b = to_paths(b)
    if len(profiles_a) + len(profiles_b) == 1 and file_exists((*profiles_a, *profiles_b)[0]):
        require(*PROFILE_READER)
        from .result_forecasts import compare_result, is_result_file

        (path,) = (*profiles_a, *profiles_b)
        if is_result_file(path):
            return compare_result(
                path,
                network=predict,
                gpu=gpu,
                precision=None if precision == "fp32" else precision,  # the default says nothing of the file
                sequence_length=sequence_length,
                hardware_files=to_paths(hardware_files),
            )
    if predict is None:
        of_prediction = (
            gpu,
            batch_size,
            sequence_length,
            context,
            phase,
            time_model,
            ppp,
            calibration,
            clock,
            power_limit,
        )
        if any(argument is not None for argument in of_prediction) or to_paths(capture_traces):
            raise BadValue(
                "`--gpu`, `--batch-size`, `--sequence-length`, `--context`, `--phase`, `--time-model`, `--ppp`, "
                "`--calibration`, `--clock`, `--power-limit` and `--capture-trace` can be used only with `--predict`"
            )
        if not profiles_a or not profiles_b:
            raise BadValue("`compare` needs two profiles, A and B (or `--predict NETWORK` and one profile)")
    elif len(profiles_a) + len(profiles_b) != 1:
        raise BadValue("`--predict` needs one profile")
    require(*PROFILE_READER)
    from ..profile_analysis.compare import compare as compare_profiles
    from ..profile_analysis.compare import find_repeats
    from ..profiles.detect import open_profile

    if predict is not None:
        (path,) = (*profiles_a, *profiles_b)
        device = _find_or_identify_device(gpu, path, name_pattern, hardware_files)
        if not isinstance(device, Device):
            raise BadValue(device.request)
        if power_limit is not None:
            device = with_power_limit(device, power_limit)
        return _compare_prediction(
            path,
            predict,
            device,
            precision=precision,
            batch_size=batch_size,
            sequence_length=sequence_length,
            context=context,
            phase=phase,
            time_model=time_model,
            ppp=ppp,
            calibration=calibration,
            clock=clock,
            capture_traces=to_paths(capture_traces),
            name_pattern=name_pattern,
        )
    sides = []
    for given_paths in (profiles_a, profiles_b):
        unique_paths = dict.fromkeys(given_paths)
        if repeats:
            unique_paths = dict.fromkeys(repeat for path in given_paths for repeat in find_repeats(path, name_pattern))
        sides.append([open_profile(path, name_pattern) for path in unique_paths])
    return compare_profiles(sides[0], sides[1], direction, by)


def _compare_prediction(
    path: Path,
    network: str,
    device: Device,
    *,
    precision: str,
    batch_size: int | None,
    sequence_length: int | None,
    context: int | None,
    phase: str | None,
    time_model: str | None,
    ppp: float | None,
    calibration: str | Calibration | None,
    clock: str | None,
    capture_traces: Sequence[Path],
    name_pattern: str | None,
) -> ProfileComparison:
    """Compare a prediction with a profile."""
    from ..calibration.comparison import compare_with_profile, training_overlap_notes
    from ..calibration.from_profiles import predict_with_fitted_ppp
    from ..profile_analysis.captured_graphs import add_captured_operations
    from ..profile_analysis.evidence import check_evidence
    from ..profile_analysis.pass_times import measure_passes
    from ..profiles.detect import open_profile

    profile = open_profile(path, name_pattern)
    if batch_size is None:
        batch_size = profile.configuration.get("batch_size")
    if not isinstance(batch_size, int):
        raise BadProfile(f"{path}: the file name does not give the batch size: use `--batch-size`")
    is_fitted = time_model in _FITTED_TO_PROFILE and ppp is None and calibration is None

    def predict_phase(phase: str) -> Prediction:
        """Predict a phase by its layers, whose kinds the operations of a profile have."""
        return predict_pass(
            Question(
                network,
                gpu=device,
                precision=precision,
                batch_size=batch_size,
                phase=phase,
                sequence_length=sequence_length,
                context=context,
                time_model=time_model,
                calibration=calibration,
                clock=clock,
                ppp=1.0 if is_fitted else ppp,
                execution=ENGINE if phase in GENERATION_PHASES else None,
            )
        )

    prediction = predict_phase(phase or "inference")  # an unknown network raises before the profile is read
    check_evidence(profile, prediction.device, prediction.network, prediction.precision)
    if capture_traces:
        profile, _ = add_captured_operations(profile, capture_traces)
    measured = measure_passes(profile)
    comparison = compare_with_profile(str(path), measured, predict_phase(phase or measured.phase))
    if is_fitted:
        return predict_with_fitted_ppp(comparison)
    used = used_calibration(comparison.prediction, calibration)
    if used is not None:
        return msgspec.structs.replace(comparison, remarks=training_overlap_notes(comparison, used.provenance))
    return comparison

"""What profiles say: `efficiency`, `kernels`, `compare`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..calibration.choose import used_calibration
from ..errors import BadProfile, BadValue, NothingOnDevice
from ..extras import need
from ..hardware import Device, find_device
from ..timing.models import PppModel
from .prediction import predict as run_prediction

if TYPE_CHECKING:
    from ..calibration.beside import PredictedBeside
    from ..calibration.store import Calibration
    from ..efficiency.analysis import Efficiency
    from ..efficiency.compare import Comparison
    from ..efficiency.files import Method
    from ..efficiency.host import HostReport
    from ..efficiency.kernels import KernelReport

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, or several."""


def paths_of(paths: Paths) -> list[Path]:
    """The paths that are meant."""
    return [Path(paths)] if isinstance(paths, (str, os.PathLike)) else [Path(path) for path in paths]


def need_pyarrow() -> None:
    """Refuse in one sentence where what reads profiles is absent."""
    need("pyarrow", "reading profiles", "profiles")


def _device(gpu: str | Device, precision: str, hardware_files: Paths) -> Device:
    """The device, which has a peak in that precision."""
    device = find_device(gpu, paths_of(hardware_files)) if isinstance(gpu, str) else gpu
    device.find_peak(precision)  # before any work
    return device


def efficiency(
    paths: Paths,
    *,
    gpu: str | Device,
    method: Method = "steady",
    precision: str = "fp32",
    group_by: Sequence[str] = (),
    name_pattern: str | None = None,
    steps: str | None = None,
    by: str = "op",
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
    """Say how well a device was used, from profiles.

    Parameters
    ----------
    paths : path, or sequence of paths
        Profiles, or folders of them; several are read in parallel.
    gpu : str or Device
    method : {"steady", "notebook"}
        One steady iteration with all that it computes, or all rows as SURFBoard's notebook counts them.
    precision : str
        Of the peak, where a PyTorch trace does not say what it multiplies in.
    group_by : sequence of str
        Columns of the configuration, such as ``["batch_size", "nodes"]``: means too.
    name_pattern : str, optional
        How to read a run's settings from file names: a regular expression with named groups.
    steps : str, optional
        Only these iterations, by their marks' numbers: ``"3"``, or ``"2:5"``.
    by : {"op", "shape", "module", "kernel"}
        What the time of an iteration is summed by.
    durations : path, or sequence of paths
        Measured batch durations, which rates are over instead of kernel times: CSV tables, CSVs of markers, TAU
        intervals, or folders of these; the shortest counts.
    batches : int
        With durations and the notebook's method: how many batches the profiles are of.
    tau_init : path, optional
        TAU intervals of runs of one batch, whose median is taken for the initialisation.
    tau_batches : int
        Batches of the TAU runs.
    jobs : int, optional
        Processes, one per core without it.
    scheduler : str, optional
        A Dask scheduler's address, whose workers read.
    keep_going : bool
        Whether files that cannot be read are listed in `failed` rather than raised.
    hardware_files : path, or sequence of paths
        Further hardware TOMLs.
    on_done : callable, optional
        Called with the number of files done and of all.

    Returns
    -------
    Efficiency

    Raises
    ------
    PaleoError
        One of its classes: a bad profile, an unknown device, column or precision.
    """
    need_pyarrow()
    from ..efficiency.analysis import Reading, measure_efficiency

    device, book = _device(gpu, precision, hardware_files), None
    if durations:
        from ..efficiency.durations import read_durations

        first = None if tau_init is None else Path(tau_init)
        book = read_durations(
            paths_of(durations), initialisation=first, tau_batches=tau_batches, name_pattern=name_pattern
        )
    elif tau_init is not None:
        raise BadValue("--tau-init is the initialisation of the TAU runs that --durations names: give both")
    reading = Reading(method, name_pattern, steps, book, batches, keep_going, by)
    return measure_efficiency(paths_of(paths), device, reading, precision, group_by, jobs, scheduler, on_done)


def kernels(
    paths: Paths,
    *,
    gpu: str | Device,
    precision: str = "fp32",
    direction: str = "all",
    full_names: bool = False,
    name_pattern: str | None = None,
    hardware_files: Paths = (),
) -> KernelReport | HostReport:
    """Say where the time of a profile went, kernel by kernel, and what to optimise first.

    Of a profile in which nothing ran on a device (a trace of the CPU, VTune's hotspots): function by function.

    Parameters
    ----------
    paths : path, or sequence of paths
        A profile; or several, and folders of them, whose kernels are summed: the ranks of a job.
    direction : str
        Kernels of which pass: one of `paleo_lite.efficiency.DIRECTIONS`.
    full_names : bool
        One row per name as the profiler has it, with templates and parameters.
    gpu, precision, name_pattern, hardware_files
        As for `efficiency`.

    Returns
    -------
    KernelReport or HostReport

    Raises
    ------
    PaleoError
        One of its classes.
    """
    need_pyarrow()
    from ..efficiency.contradictions import doubts
    from ..efficiency.host import report_host
    from ..efficiency.kernels import report_kernels
    from ..profiles.detect import open_profile
    from ..profiles.evidence import evidence_of

    device = _device(gpu, precision, hardware_files)
    profiles = [open_profile(file, name_pattern) for file in _files(paths)]
    try:
        report = report_kernels(profiles, device, precision, direction=direction, full_names=full_names)
    except NothingOnDevice:
        if len(profiles) > 1:
            raise
        return report_host(profiles[0])
    questioned = doubts(evidence_of(profiles[0], report.raw_s), device)
    return msgspec.structs.replace(report, notes=(*questioned, *report.notes))


def _files(paths: Paths) -> list[Path]:
    """The files that are meant; those in folders, where there are any."""
    from ..efficiency.files import find_files

    given = paths_of(paths)
    return find_files(given) if len(given) > 1 or given[0].is_dir() else given


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
    time_model: str | None = None,
    ppp: float | None = None,
    calibration: str | Calibration | None = None,
    name_pattern: str | None = None,
    hardware_files: Paths = (),
) -> Comparison | PredictedBeside:
    """Lay the kernels of two profiles side by side, or a prediction beside one.

    Parameters
    ----------
    a, b : path, or sequence of paths
        A profile, or its repeats: then every difference is judged against the spread between them. Without `b` a
        prediction is laid beside `a`.
    repeats : bool
        Also read the repeats that lie beside them, by their names.
    direction : str
        Kernels of which pass: one of `paleo_lite.efficiency.DIRECTIONS`.
    by : {"kernel", "op", "shape", "module"}
        What the times of two profiles are summed by.
    predict : str, optional
        The network to predict.
    gpu, precision, time_model, ppp, calibration, hardware_files
        With `predict`: as for `paleo_lite.predict`. The time model ``ppp`` without a PPP is fitted to the profile.
    batch_size : int, optional
        With `predict`: without it what the profile's name says.
    name_pattern : str, optional
        As for `efficiency`.

    Returns
    -------
    Comparison or PredictedBeside

    Raises
    ------
    PaleoError
        One of its classes; also where the profile contradicts the question.
    """
    need_pyarrow()
    from ..efficiency.compare import compare as compare_profiles
    from ..efficiency.compare import find_repeats
    from ..profiles.detect import open_profile

    sides = [paths_of(a), paths_of(b)]
    if predict is not None:
        return _beside(
            [path for side in sides for path in side], name_pattern, predict, gpu=gpu, batch_size=batch_size,
            time_model=time_model, ppp=ppp, calibration=calibration, precision=precision,
            hardware_files=paths_of(hardware_files),
        )  # fmt: skip
    if any(asked is not None for asked in (gpu, batch_size, time_model, ppp, calibration)):
        raise BadValue("--gpu, --batch-size, --time-model, --ppp and --calibration go with --predict")
    if not all(sides):
        raise BadValue("compare takes two profiles, A and B (or --predict NETWORK and one)")
    if repeats:
        sides = [[repeat for path in side for repeat in find_repeats(path, name_pattern)] for side in sides]
    profiles = [[open_profile(path, name_pattern) for path in dict.fromkeys(side)] for side in sides]
    return compare_profiles(profiles[0], profiles[1], direction, by)


def _beside(
    paths: Sequence[Path],
    name_pattern: str | None,
    network: str,
    *,
    gpu: str | Device | None = None,
    batch_size: int | None = None,
    time_model: str | None = None,
    ppp: float | None = None,
    calibration: str | Calibration | None = None,
    **question: Any,
) -> PredictedBeside:
    from ..calibration.beside import lay_beside, learnt_from
    from ..calibration.ppp_profiles import fit_beside
    from ..efficiency.by_kind import measure_passes
    from ..efficiency.contradictions import question as doubt
    from ..profiles.detect import open_profile

    if gpu is None or len(paths) != 1:
        raise BadValue("--predict takes one profile and the device it was taken on: --gpu DEVICE")
    profile = open_profile(paths[0], name_pattern)
    batch_size = batch_size or profile.configuration.get("batch_size")
    if not isinstance(batch_size, int):
        raise BadProfile(f"{paths[0]}: its name does not give the batch size: use --batch-size")
    is_fitted = time_model == PppModel.name and ppp is None and calibration is None
    question |= {"gpu": gpu, "batch_size": batch_size, "time_model": time_model, "calibration": calibration,
                 "ppp": 1.0 if is_fitted else ppp}  # fmt: skip
    asked = run_prediction(network, **question)  # an unknown network or device is said before the profile is read
    doubt(profile, asked.device, asked.network, asked.precision)
    measured = measure_passes(profile)
    beside = lay_beside(str(paths[0]), measured, run_prediction(network, phase=measured.phase, **question))
    if is_fitted:
        return fit_beside(beside)
    if (learnt := used_calibration(beside.prediction, calibration)) is not None:
        return msgspec.structs.replace(beside, remarks=learnt_from(beside, learnt.provenance))
    return beside

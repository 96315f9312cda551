"""What profiles say: `efficiency`, `kernels`, `compare`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..calibration.choose import used_calibration
from ..errors import BadProfile, BadValue, NothingOnDevice
from ..extras import need
from ..machines import Device, find_device
from ..timing.models import TIME_MODELS
from .prediction import predict as run_prediction
from .question import OnDevice, Paths, asked, paths_of

if TYPE_CHECKING:
    from ..calibration.beside import PredictedBeside
    from ..calibration.store import Calibration
    from ..profile_analysis.analysis import Efficiency, Method
    from ..profile_analysis.compare import Comparison
    from ..profile_analysis.host import HostReport
    from ..profile_analysis.kernels import KernelReport


READING = ("pyarrow", "reading profiles", "profiles")
"""What is needed, what for, and the extra that has it."""


FITTED = [name for name, model in TIME_MODELS.items() if model.learns and model.takes]
"""Time models whose one parameter a profile tells."""


class _OfProfiles(OnDevice, frozen=True):
    paths: Paths


class _Read(_OfProfiles, frozen=True, kw_only=True):
    name_pattern: str | None = None


class EfficiencyQuestion(_Read, frozen=True, kw_only=True):
    """What `efficiency` is asked; see there."""

    method: Method = "steady"
    group_by: Sequence[str] = ()
    steps: str | None = None
    by: str = "op"
    durations: Paths = ()
    batches: int = 25
    tau_init: str | os.PathLike[str] | None = None
    tau_batches: int = 50
    jobs: int | None = None
    scheduler: str | None = None
    keep_going: bool = False
    on_done: Callable[[int, int], None] | None = None


@partial(asked, EfficiencyQuestion)
def efficiency(question: EfficiencyQuestion) -> Efficiency:
    r"""Say how well a device was used, from profiles.

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
        Means too, over columns of the configuration: ``["batch_size", "nodes"]``.
    name_pattern : str, optional
        How to read a run's settings from file names: named groups, ``(?P<nodes>[0-9]+)``.
    steps : str, optional
        Only these iterations, by their marks' numbers: ``"3"``, or ``"2:5"``.
    by : {"op", "shape", "module", "kernel"}
        Sum the time of an iteration by operation, with its shapes, by module (and marked range), or by kernel.
    durations : path, or sequence of paths
        Measured batch durations, which rates are over instead of kernel times: CSV tables, CSVs of markers, TAU
        intervals, or folders of these; the shortest counts.
    batches : int
        With `durations` and the notebook's method: how many batches the profiles are of.
    tau_init : path, optional
        TAU intervals of runs of one batch, whose median is taken for the initialisation.
    tau_batches : int
        Batches of the TAU runs.
    jobs : int, optional
        Processes; without it one per core.
    scheduler : str, optional
        A Dask scheduler, ``tcp://host:8786``, whose workers compute.
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
    need(*READING)
    from ..profile_analysis.analysis import ReadAs, measure_efficiency

    device, durations = find_device(question.gpu, paths_of(question.hardware_files)), None
    device.find_peak(question.precision)  # before any work
    first = None if question.tau_init is None else Path(question.tau_init)
    if question.durations:
        from ..profile_analysis.durations import read_durations

        durations = read_durations(
            paths_of(question.durations), initialisation=first, tau_batches=question.tau_batches,
            name_pattern=question.name_pattern,
        )  # fmt: skip
    elif first is not None:
        raise BadValue("--tau-init is the initialisation of the TAU runs that --durations names: give both")
    reading = ReadAs(
        question.method, question.name_pattern, question.steps, durations, question.batches, question.keep_going,
        question.by,
    )  # fmt: skip
    return measure_efficiency(
        paths_of(question.paths), device, reading, question.precision, question.group_by, question.jobs,
        question.scheduler, question.on_done,
    )  # fmt: skip


class KernelsQuestion(_Read, frozen=True, kw_only=True):
    """What `kernels` is asked; see there."""

    gpu: str | Device | None = None  # type: ignore[assignment]  # a profile of the host needs none
    direction: str = "all"
    full_names: bool = False


@partial(asked, KernelsQuestion)
def kernels(question: KernelsQuestion) -> KernelReport | HostReport:
    """Say where the time of a profile went, kernel by kernel, and what to optimise first.

    Of a profile in which nothing ran on a device (a trace of the CPU, VTune's hotspots): function by function.

    Parameters
    ----------
    paths : path, or sequence of paths
        A profile; or several, and folders of them, whose kernels are summed: the ranks of a job.
    direction : str
        Kernels of which pass: one of `paleo_lite.profile_analysis.DIRECTIONS`.
    full_names : bool
        One row per name as the profiler has it, with templates and parameters.
    gpu : str or Device, optional
        Device that the kernels ran on; not needed where nothing ran on one.
    precision, name_pattern, hardware_files
        As for `efficiency`.

    Returns
    -------
    KernelReport or HostReport

    Raises
    ------
    PaleoError
        One of its classes.
    """
    need(*READING)
    from ..profile_analysis.evidence import doubts, evidence_of
    from ..profile_analysis.host import report_host
    from ..profile_analysis.kernels import report_kernels
    from ..profile_analysis.totals import total_kernels
    from ..profiles.detect import open_profile

    device = None if question.gpu is None else find_device(question.gpu, paths_of(question.hardware_files))
    if device is not None:
        device.find_peak(question.precision)  # before any work
    profiles = [open_profile(file, question.name_pattern) for file in _files(question.paths)]
    try:
        if device is None:
            total_kernels(profiles[0], question.direction)
            raise BadValue(f"{profiles[0].path} has kernels of a device: --gpu DEVICE says which it is")
        report = report_kernels(
            profiles, device, question.precision, direction=question.direction, full_names=question.full_names
        )
    except NothingOnDevice:
        if len(profiles) > 1:
            raise
        return report_host(profiles[0])
    questioned = doubts(evidence_of(profiles[0], report.raw_s), device)
    return msgspec.structs.replace(report, notes=(*questioned, *report.notes))


def _files(paths: Paths) -> list[Path]:
    """The files that are meant; those in folders, where there are any."""
    from ..profiles.detect import find_files

    given = paths_of(paths)
    return find_files(given) if len(given) > 1 or given[0].is_dir() else given


class _Sides(msgspec.Struct, frozen=True):
    a: Paths
    b: Paths = ()


class CompareQuestion(_Sides, frozen=True, kw_only=True):
    """What `compare` is asked; see there."""

    repeats: bool = False
    direction: str = "all"
    by: str = "kernel"
    predict: str | None = None
    gpu: str | Device | None = None
    precision: str = "fp32"
    batch_size: int | None = None
    time_model: str | None = None
    ppp: float | None = None
    calibration: str | Calibration | None = None
    name_pattern: str | None = None
    hardware_files: Paths = ()

    def __post_init__(self) -> None:
        of_prediction = (self.gpu, self.batch_size, self.time_model, self.ppp, self.calibration)
        if self.predict is None:
            if any(said is not None for said in of_prediction):
                raise BadValue("--gpu, --batch-size, --time-model, --ppp and --calibration go with --predict")
            if not all(self.sides):
                raise BadValue("compare takes two profiles, A and B (or --predict NETWORK and one)")
        elif self.gpu is None or sum(map(len, self.sides)) != 1:
            raise BadValue("--predict takes one profile and the device it was taken on: --gpu DEVICE")

    @property
    def sides(self) -> tuple[list[Path], list[Path]]:
        """The profiles of either side."""
        return paths_of(self.a), paths_of(self.b)


@partial(asked, CompareQuestion)
def compare(question: CompareQuestion) -> Comparison | PredictedBeside:
    """Lay the kernels of two profiles side by side, or a prediction beside one.

    Parameters
    ----------
    a, b : path, or sequence of paths
        A profile, or its repeats: then every difference is judged against the spread between them. Without `b` a
        prediction is laid beside `a`.
    repeats : bool
        Also read the repeats that lie beside A and B, by their names.
    direction : str
        Kernels of which pass: one of `paleo_lite.profile_analysis.DIRECTIONS`.
    by : {"kernel", "op", "shape", "module"}
        Sum the times of two profiles by kernel, operation, operation with its shapes, or module.
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
    need(*READING)
    from ..profile_analysis.compare import compare as compare_profiles
    from ..profile_analysis.compare import find_repeats
    from ..profiles.detect import open_profile

    if question.predict is not None:
        return _beside(question)
    pattern, sides = question.name_pattern, list(question.sides)
    if question.repeats:
        sides = [[repeat for path in side for repeat in find_repeats(path, pattern)] for side in sides]
    profiles = [[open_profile(path, pattern) for path in dict.fromkeys(side)] for side in sides]
    return compare_profiles(profiles[0], profiles[1], question.direction, question.by)


def _beside(question: CompareQuestion) -> PredictedBeside:
    from ..calibration.beside import lay_beside, learnt_from
    from ..calibration.from_profiles import fit_beside
    from ..profile_analysis.by_kind import measure_passes
    from ..profile_analysis.evidence import question as doubt
    from ..profiles.detect import open_profile

    (path,) = (*question.sides[0], *question.sides[1])
    profile, calibration = open_profile(path, question.name_pattern), question.calibration
    batch_size = question.batch_size
    if batch_size is None:
        batch_size = profile.configuration.get("batch_size")
    if not isinstance(batch_size, int):
        raise BadProfile(f"{path}: its name does not give the batch size: use --batch-size")
    is_fitted = question.time_model in FITTED and question.ppp is None and calibration is None
    predict = functools.partial(
        run_prediction, question.predict, gpu=find_device(question.gpu or "", paths_of(question.hardware_files)),
        precision=question.precision, batch_size=batch_size, time_model=question.time_model, calibration=calibration,
        ppp=1.0 if is_fitted else question.ppp,
    )  # fmt: skip
    expected = predict()  # an unknown network or device is said before the profile is read
    doubt(profile, expected.device, expected.network, expected.precision)
    measured = measure_passes(profile)
    beside = lay_beside(str(path), measured, predict(phase=measured.phase))
    if is_fitted:
        return fit_beside(beside)
    if (learnt := used_calibration(beside.prediction, calibration)) is not None:
        return msgspec.structs.replace(beside, remarks=learnt_from(beside, learnt.provenance))
    return beside

"""Calibration files: readable TOML with the fitted parameters, their provenance and their accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import numpy as np

from ..errors import BadFile, BadValue, CalibrationFailed, MissingExtra, PaleoError, UnknownName
from ..files import NO_SUCH_FILE, file_exists, is_missing_path, read_typed, shipped_folder, write_atomically
from ..result import Result
from ..text import format_plural
from ..timing.calibrated import CalibratedModel
from ..timing.energy import PARAMETERS as POWER_PARAMETERS
from ..timing.energy import PowerConstants, are_constants
from ..timing.intervals import QUANTILES
from ..timing.models import PppModel
from ..timing.parameters import NAMES, PARAMETERS
from .measurements import Measurement, Provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .evidence_file import EvidenceCalibration
    from .fit import Fit
    from .ppp import PppCalibration

    Floats = NDArray[np.float64]

FORMAT = 2
"""Format of calibrations of all parameters. In format 1, they belong to a formula that combines the time of the device
and that of the host as the fourth root of fourth powers, and their values mean something else."""

_MAX_FILE_BYTES = 2**24

LEAST_VALUE, LARGEST_VALUE = 1e-20, 1e20
"""Limits of parameters, far from every fit."""

LARGEST_SCATTER = 10.0
"""Largest relative scatter of measurements: beyond a factor of e to the tenth nothing is known."""

LARGEST_VARIANCE = 100.0
"""Largest variance of the logarithm of a parameter, for the same reason."""

_ROUNDING = 0.01  # relative error of a stored covariance, which has four digits
_WORST_COUNT = 5


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fitted parameter.

    Attributes
    ----------
    value : float
        Median.
    low, high : float
        Ends of the 90% interval.
    moved : float
        Relative reduction of the prior's standard deviation by the measurements: 0 none, 1 complete.
    """

    value: float
    low: float
    high: float
    unit: str
    moved: float


class PowerFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Constants of a device's power, fitted to its measured watts.

    Attributes
    ----------
    points : int
        Number of measured powers.
    constants : PowerConstants
        The constants, and their covariance.
    error : float
        Mean absolute relative error of the fit.
    prior_error : float
        The same of what was known before.
    held_out_error : float or None
        The same with each network predicted from the others; None with fewer than three networks.
    """

    points: int
    constants: PowerConstants
    error: float
    prior_error: float
    held_out_error: float | None = None


class Calibration(Result, msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of a calibration file.

    Attributes
    ----------
    device, precision : str
        Device and precision that the calibration is valid for.
    scatter : float
        Relative scatter of single measurements around the model.
    held_out_error : float or None
        Mean absolute relative error with each network predicted from the others; None with fewer than three networks.
    worst : list of str
        Descriptions of the measurements furthest from the fit.
    power : PowerFit or None
        Constants of the device's power, if watts were measured.
    covariance : list of str
        Covariance of the logarithms of the parameters: a row of numbers per parameter, in the order of `PARAMETERS`.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.calibrations:calibration_page"

    format: int
    device: str
    precision: str
    scatter: float
    parameters: dict[str, Parameter]
    covariance: list[str]
    provenance: Provenance
    held_out_error: float | None = None
    worst: list[str] = []
    power: PowerFit | None = None

    @property
    def label(self) -> str:
        """Description of the calibration in predictions."""
        date = f" of {self.provenance.date}" if self.provenance.date else ""
        return f"{self.device} {self.precision}{date}, {format_plural(self.provenance.points, 'measurement')}"

    def model(self) -> CalibratedModel:
        """Return the time model with these parameters."""
        theta = np.log([self.parameters[name].value for name in NAMES])
        learned_fraction = np.array([self.parameters[name].moved for name in NAMES])
        covariance = _parse_matrix(self.covariance)
        return CalibratedModel(
            self.label,
            theta,
            covariance,
            self.scatter,
            learned_fraction=learned_fraction,
            power_constants=None if self.power is None else self.power.constants,
        )


class _FileHeader(msgspec.Struct):
    """Fields that decide how to read the rest of a calibration file, and those that only other files have."""

    format: int | None = None
    time_model: str = CalibratedModel.name
    device: Any = None
    parameters: Any = None
    vendor: Any = None  # of a device
    stragglers: Any = None  # of clusters
    kinds: Any = None  # of evidence
    scatter: Any = None

    def describe_other_file(self) -> str | None:
        """Return what a file is that is not a calibration of a device; None for a calibration."""
        is_calibration = self.parameters is not None or self.device is not None
        if is_calibration or self.time_model != CalibratedModel.name:
            return None
        if self.vendor is not None:
            return "the data of a device, which `--hardware-file` takes"
        if self.stragglers is not None:
            return "the prior of clusters"
        if self.kinds is not None:
            return "the prior of causes, which `paleo-lite calibrate` updates by result files"
        return "another file of constants" if self.scatter is not None else "another file: it has no `parameters`"


AnyCalibration: TypeAlias = "Calibration | PppCalibration | EvidenceCalibration"
"""Any content of a calibration file; all have a device, a precision, a provenance and a label."""


def make_calibration(
    device: str,
    precision: str,
    measurements: Sequence[Measurement],
    fit: Fit,
    provenance: Provenance,
    held_out_error: float | None,
) -> Calibration:
    """Make a calibration from a fit, with its measurements in the order of the fit's residuals."""
    deviations = np.sqrt(np.diag(fit.covariance))
    parameters = {}
    for name, theta, deviation, learned in zip(NAMES, fit.theta, deviations, fit.learned_fraction):
        reach = QUANTILES[0.9] * deviation
        parameters[name] = Parameter(
            value=_round(math.exp(theta)),
            low=_round(math.exp(theta - reach)),
            high=_round(math.exp(theta + reach)),
            unit=PARAMETERS[name],
            moved=round(float(learned), 3),
        )
    worst = []
    for index in np.argsort(-np.abs(fit.residuals), kind="stable")[:_WORST_COUNT]:
        step = measurements[index]
        error = math.exp(float(fit.residuals[index])) - 1
        worst.append(
            f"{step.network}, batch {step.batch_size}, {step.phase}: "
            f"measured {step.time_s * 1e3:.4g} ms, fitted {error:+.1%}"
        )
    covariance = [" ".join(f"{value:.4g}" for value in row) for row in fit.covariance.tolist()]
    return Calibration(
        format=FORMAT,
        device=device,
        precision=precision,
        scatter=round(fit.scatter, 4),
        parameters=parameters,
        covariance=covariance,
        provenance=provenance,
        held_out_error=None if held_out_error is None else round(held_out_error, 4),
        worst=worst,
    )


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def write_calibration(calibration: AnyCalibration, path: Path, force: bool = False) -> None:
    """Write a calibration atomically; raise CalibrationFailed if the file already exists and `force` is false."""
    if path.exists() and not force:
        raise CalibrationFailed(f"{path} already exists: choose another name, or `--force` to replace it")
    try:
        text = msgspec.toml.encode(calibration)
    except ImportError:
        raise MissingExtra("writing a calibration", "calibrate") from None
    write_atomically(path, b"# Fitted by paleo-lite calibrate; every parameter is explained in docs/model.md.\n" + text)


def read_calibration(path: Path) -> AnyCalibration:
    """Read a calibration of all parameters, of a PPP, or from result files of benchmarks.

    Raise BadFile with file and field if it is malformed, incomplete or of another format.
    """
    header = read_typed(path, _FileHeader, "calibration", _MAX_FILE_BYTES)
    other = header.describe_other_file()
    if other is not None:
        raise BadFile(f"{path} is not a calibration but {other}; `paleo-lite calibrate` writes calibrations")
    if header.format is None:
        raise BadFile(f"{path}: Object missing required field `format`")
    if header.time_model == PppModel.name:
        from .ppp import PPP_FORMAT, PppCalibration, check_ppp

        _check_format(path, header.format, PPP_FORMAT)
        return check_ppp(read_typed(path, PppCalibration, "calibration", _MAX_FILE_BYTES), path)
    if header.time_model == "evidence":
        from .evidence_file import EVIDENCE_FORMAT, EvidenceCalibration, check_evidence

        _check_format(path, header.format, EVIDENCE_FORMAT)
        return check_evidence(read_typed(path, EvidenceCalibration, "calibration", _MAX_FILE_BYTES), path)
    _check_format(path, header.format, FORMAT)
    calibration = read_typed(path, Calibration, "calibration", _MAX_FILE_BYTES)
    missing = [name for name in NAMES if name not in calibration.parameters]
    if missing:
        raise BadFile(f"{path}: parameters: {', '.join(missing)} missing")
    for name, parameter in calibration.parameters.items():
        for field in ("value", "low", "high"):
            value = getattr(parameter, field)
            if not LEAST_VALUE <= value <= LARGEST_VALUE:
                raise BadFile(f"{path}: parameters.{name}.{field} must be above 0 and at most 1e20 (got {value:g})")
    if not 0 <= calibration.scatter <= LARGEST_SCATTER:
        raise BadFile(f"{path}: scatter must be from 0 to {LARGEST_SCATTER:g} (got {calibration.scatter:g})")
    if calibration.power is not None and not are_constants(calibration.power.constants):
        count = len(POWER_PARAMETERS)
        raise BadFile(f"{path}: power: constants must have {count} numbers, and {count} rows of as many")
    _check_covariance(calibration.covariance, path)
    return calibration


def _check_format(path: Path, recorded: int, expected: int) -> None:
    if recorded < expected:
        raise BadFile(
            f"{path}: format is {recorded}, with the parameters of an earlier formula: fit the measurements again with "
            "`paleo-lite calibrate`"
        )
    if recorded > expected:
        raise BadFile(f"{path}: format is {recorded}, this version of paleo-lite reads {expected}")


def _check_covariance(rows: Sequence[str], path: Path) -> None:
    """Raise BadFile if rows of numbers are not the covariance of the parameters' logarithms."""
    try:
        matrix = _parse_matrix(rows)
    except ValueError:
        matrix = np.empty((0, 0))
    if matrix.shape != (len(NAMES), len(NAMES)) or not np.isfinite(matrix).all():
        raise BadFile(f"{path}: covariance must have {len(NAMES)} rows of {len(NAMES)} numbers")
    for name, variance in zip(NAMES, np.diag(matrix).tolist()):
        if not 0 <= variance <= LARGEST_VARIANCE:
            raise BadFile(
                f"{path}: covariance: the variance of {name} must be from 0 to {LARGEST_VARIANCE:g} (got {variance:g})"
            )
    deviation = np.sqrt(np.diag(matrix))
    tolerance = _ROUNDING * np.outer(deviation, deviation)
    if (np.abs(matrix - matrix.T) > tolerance).any() or (np.abs(matrix) > tolerance / _ROUNDING + tolerance).any():
        raise BadFile(f"{path}: covariance must be symmetric, and no covariance larger than its variances allow")


def _parse_matrix(rows: Sequence[str]) -> Floats:
    return np.array([[float(value) for value in row.split()] for row in rows])


def shipped_calibrations() -> dict[str, Path]:
    """Return the paths of the shipped device calibrations by name, ``DEVICE-PRECISION``."""
    files = sorted(shipped_folder("calibrations").glob("*-*.toml"))  # the pattern leaves out those of clusters
    return {path.stem: path for path in files}


TOGETHER = "+"
"""Separator of the names of calibrations from result files that are used together as one."""


def names_of_parts(name: str) -> list[str]:
    """Return the names that are joined by +; a file with a + in its own name counts as one name."""
    return [name] if file_exists(name) else name.split(TOGETHER)


def find_calibration(name: str) -> AnyCalibration:
    """Read a calibration, given its path, several paths joined by +, or the name of a shipped one.

    Raise UnknownName if there is none, and BadValue for several of which one is not from result files of benchmarks.
    """
    parts = names_of_parts(name)
    if len(parts) > 1:
        from .evidence_file import combine

        return combine({part: find_calibration(part) for part in parts})
    if name.endswith(".toml"):
        return read_calibration(Path(name))
    shipped = shipped_calibrations()
    if name not in shipped:
        if is_missing_path(name):
            raise BadFile(f"{name}: {NO_SUCH_FILE}")
        if file_exists(name, Path.exists):
            raise BadFile(_describe_other_file(Path(name)))
        raise UnknownName("calibration", name, shipped, "`paleo-lite calibrations list` shows all.")
    return read_calibration(shipped[name])


def _describe_other_file(path: Path) -> str:
    """Return what a file or folder is that was given as a calibration, and how it becomes one."""
    from ..result_files.detect import recognise

    calibrate = f"`paleo-lite calibrate {path} -o mine.toml`"
    if file_exists(path, Path.is_dir):
        return f"{path} is a folder, not a calibration: {calibrate} makes one of the files in it"
    try:
        tool = recognise(path).tool
    except PaleoError:
        return f"{path} is not a calibration: expected a TOML file that `paleo-lite calibrate` wrote"
    return f"{path} is a result file of {tool}, not a calibration: {calibrate} makes one of it"


def evidence_of(calibration: str | AnyCalibration | None) -> EvidenceCalibration | None:
    """Return a calibration, or that of a name or a path, if it is one from result files; None for any other."""
    from .evidence_file import EvidenceCalibration

    resolved = find_calibration(calibration) if isinstance(calibration, str) else calibration
    return resolved if isinstance(resolved, EvidenceCalibration) else None


def find_evidence(
    calibration: str | AnyCalibration | None, command: str, kinds: Sequence[str]
) -> EvidenceCalibration | None:
    """Return the calibration from result files of a command that takes no other one; None without one.

    Raise BadValue if it is of passes of networks, or has no figures of the kinds that the command learns from.
    """
    evidence = evidence_of(calibration)
    if calibration is not None and evidence is None:
        raise BadValue(
            f"`{command}` takes calibrations from result files of benchmarks, as `paleo-lite calibrate FILE` writes, "
            "not those of passes of networks"
        )
    if evidence is not None:
        evidence.check_kinds(kinds, command)
    return evidence

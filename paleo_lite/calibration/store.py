"""Calibrations on disk: readable TOML with what was fitted, from what, and how well it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec
import numpy as np

from ..errors import BadFile, CalibrationFailed, MissingExtra, UnknownName
from ..files import read_typed, shipped_folder, write_atomically
from ..result import Result
from ..timing.calibrated import NAMES, PARAMETERS, CalibratedModel
from ..timing.models import QUANTILES, PppModel
from .measurements import Measurement, Provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .fit import Fit
    from .ppp import PppCalibration

    Floats = NDArray[np.float64]

FORMAT = 1
_BYTES_AT_MOST = 2**22


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fitted parameter.

    Attributes
    ----------
    value : float
        The median.
    low, high : float
        Its 90% interval.
    moved : float
        How far the measurements narrowed the prior: 0 not at all, 1 fully.
    """

    value: float
    low: float
    high: float
    unit: str
    moved: float


class Calibration(Result, msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The whole file.

    Attributes
    ----------
    device, precision : str
        What it holds for.
    scatter : float
        Relative scatter of single measurements around the model.
    held_out_error : float or None
        Mean absolute relative error with each network predicted from the others; None with fewer than three networks.
    worst : list of str
        The measurements furthest from the fit, in words.
    covariance : list of str
        Of the logarithms of the parameters, a row of numbers per parameter, in the order of `PARAMETERS`.
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

    @property
    def label(self) -> str:
        """How a prediction names it."""
        made = f" of {self.provenance.date}" if self.provenance.date else ""
        return f"{self.device} {self.precision}{made}, {self.provenance.points} measurements"

    def model(self) -> CalibratedModel:
        """The time model with these parameters."""
        theta = np.log([self.parameters[name].value for name in NAMES])
        moved = np.array([self.parameters[name].moved for name in NAMES])
        return CalibratedModel(self.label, theta, _matrix(self.covariance), self.scatter, learned_fraction=moved)


class _Head(msgspec.Struct):
    """What tells how the rest of a file is to be read."""

    format: int
    time_model: str = CalibratedModel.name


AnyCalibration: TypeAlias = "Calibration | PppCalibration"
"""What a calibration's file may hold; each has a device, a precision, a provenance, a label and a `model`."""


def make_calibration(
    device: str,
    precision: str,
    measurements: Sequence[Measurement],
    fit: Fit,
    provenance: Provenance,
    held_out_error: float | None = None,
) -> Calibration:
    """A calibration from a fit; `measurements` in the order of the fit's residuals."""
    deviations = np.sqrt(np.diag(fit.covariance))
    reach = QUANTILES[0.9]
    parameters = {}
    for name, theta, deviation, moved in zip(NAMES, fit.theta, deviations, fit.moved):
        value, low, high = (float(f"{math.exp(theta + by * deviation):.6g}") for by in (0.0, -reach, reach))
        parameters[name] = Parameter(value, low, high, PARAMETERS[name], round(float(moved), 3))
    furthest = np.argsort(-np.abs(fit.residuals), kind="stable")[:5]
    worst = [
        f"{m.network}, batch {m.batch_size}, {m.phase}: measured {m.time_s * 1e3:.4g} ms, fitted {math.exp(r) - 1:+.1%}"
        for m, r in ((measurements[i], float(fit.residuals[i])) for i in furthest)
    ]
    covariance = [" ".join(f"{value:.4g}" for value in row) for row in fit.covariance.tolist()]
    error = None if held_out_error is None else round(held_out_error, 4)
    return Calibration(
        FORMAT, device, precision, round(fit.scatter, 4), parameters, covariance, provenance, error, worst
    )


def write_calibration(calibration: AnyCalibration, path: Path, force: bool = False) -> None:
    """Write a calibration; the file appears whole or not at all.

    Raises
    ------
    CalibrationFailed
        If the file is there already and `force` is not given.
    """
    if path.exists() and not force:
        raise CalibrationFailed(f"{path} already exists: choose another name, or `--force` to replace it")
    try:
        text = msgspec.toml.encode(calibration)
    except ImportError:
        raise MissingExtra("writing a calibration", "calibrate") from None
    write_atomically(path, b"# Fitted by paleo-lite calibrate; every parameter is explained in docs/model.md.\n" + text)


def read_calibration(path: Path) -> AnyCalibration:
    """Read a calibration: of all parameters, or of a PPP alone.

    Raises
    ------
    BadFile
        If it is malformed, incomplete or of a newer format; the message names file and field.
    """
    head = read_typed(path, _Head, "calibration", _BYTES_AT_MOST)
    if head.format != FORMAT:
        raise BadFile(f"{path}: format is {head.format}, this version of paleo-lite reads {FORMAT}")
    if head.time_model == PppModel.name:
        from .ppp import PppCalibration, check_ppp

        return check_ppp(read_typed(path, PppCalibration, "calibration", _BYTES_AT_MOST), path)
    calibration = read_typed(path, Calibration, "calibration", _BYTES_AT_MOST)
    missing = [name for name in NAMES if name not in calibration.parameters]
    if missing:
        raise BadFile(f"{path}: parameters: {', '.join(missing)} missing")
    bad = [name for name, parameter in calibration.parameters.items() if not (0 < parameter.value < math.inf)]
    if bad:
        raise BadFile(f"{path}: parameters: {', '.join(bad)} must be above 0")
    try:
        covariance = _matrix(calibration.covariance)
    except ValueError:
        covariance = np.zeros(0)
    if covariance.shape != (len(NAMES), len(NAMES)) or not np.isfinite(covariance).all():
        raise BadFile(f"{path}: covariance must have {len(NAMES)} rows of {len(NAMES)} numbers")
    return calibration


def _matrix(rows: Sequence[str]) -> Floats:
    return np.array([[float(value) for value in row.split()] for row in rows])


def shipped_calibrations() -> dict[str, Path]:
    """The shipped calibrations by name, ``DEVICE-PRECISION``."""
    return {path.stem: path for path in sorted(shipped_folder("calibrations").glob("*-*.toml"))}  # not clusters


def find_calibration(name: str) -> AnyCalibration:
    """A calibration by its path or shipped name.

    Raises
    ------
    UnknownName
        If neither exists.
    """
    if name.endswith(".toml"):
        return read_calibration(Path(name))
    known = shipped_calibrations()
    if name not in known:
        raise UnknownName("calibration", name, known, "'paleo-lite calibrations list' shows all.")
    return read_calibration(known[name])

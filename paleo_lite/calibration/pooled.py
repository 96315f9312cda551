"""A device without measurements: parameters pooled from the shipped fits of others, and how little that leaves known.

``calibrations/pooled.json`` holds what each of them brings, fitted from its own measurements alone, so that a
prediction reads one small file. ``make calibrations`` writes it; `prior_from_others` pools, here as in ``validate
--split gpu``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import BadFile
from ..files import read_typed, shipped, write_aside
from ..hardware import Device, Machine, find_device
from ..timing.calibrated import NAMES
from ..timing.fitted import CalibratedModel, rates_of
from .covered import why_not_covered
from .fit import SCATTER, Fit, Prior
from .prior import Neighbour, base_prior, is_kepler, prior_from_others

if TYPE_CHECKING:
    from .store import Calibration

POOL_FILE = "pooled.json"
FORMAT = 1
_BYTES_AT_MOST = 2**22

SAME_UNITS = {"bf16": "fp16"}
"""Precisions that tensor cores multiply with the same kernels and at the same rate as the one that was measured."""

OTHER_RATE = 4.0
"""Devices whose rate in a precision, relative to fp32, differs by more than this factor are told apart in a note."""


class PooledFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one calibration brings to the pool.

    Attributes
    ----------
    id, architecture : str
        Of its device.
    year : int
    precision, unit : str
        ``vector`` or ``tensor``: which units multiplied.
    share_of_fp32 : float
        The device's peak in this precision over its fp32 vector peak.
    source : str
        Its first word names the software.
    theta, variance, moved : list of float
        Logarithm of each parameter, the variance of that, and how far measurements moved it; in the order of `NAMES`.
    """

    id: str
    architecture: str
    year: int
    precision: str
    unit: str
    share_of_fp32: float
    source: str
    theta: list[float]
    variance: list[float]
    moved: list[float]


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; `parameters` are the names that its numbers belong to."""

    format: int
    parameters: list[str]
    fits: list[PooledFit]


class NotPooled(msgspec.Struct, frozen=True):
    """Why there is no pooled model, in words."""

    reason: str


def make_pool(calibrations: Iterable[Calibration]) -> Pool:
    """The pool of some calibrations, in the order of device and precision."""
    return Pool(FORMAT, list(NAMES), [_pooled(each) for each in sorted(calibrations, key=_place)])


def write_pool(pool: Pool, path: Path) -> None:
    """Write the pool; the file appears whole or not at all."""
    head = msgspec.json.encode(pool.parameters).decode()
    lines = ",\n".join(msgspec.json.encode(each).decode() for each in pool.fits)  # a line per fit, for people's diffs
    write_aside(path, f'{{"format":{pool.format},"parameters":{head},"fits":[\n{lines}\n]}}\n'.encode())


def read_pool(path: Path | None = None) -> Pool:
    """Read a pool, the shipped one without a path.

    Raises
    ------
    BadFile
        If it is malformed, or of other parameters than this version fits.
    """
    path = path or shipped("calibrations") / POOL_FILE
    pool = read_typed(path, Pool, "pool", _BYTES_AT_MOST)
    if pool.format != FORMAT or pool.parameters != list(NAMES):
        raise BadFile(f"{path}: written by another version: 'make calibrations' renews it")
    for each in pool.fits:
        if not len(each.theta) == len(each.variance) == len(each.moved) == len(NAMES):
            raise BadFile(f"{path}: {each.id} in {each.precision} must have {len(NAMES)} numbers in each of its lists")
    return pool


def pooled_model(device: Device, precision: str, pool: Pool | None = None) -> CalibratedModel | NotPooled:
    """The model of a device from fits of all others in its precision: those of the device itself are not looked at.

    Parameters
    ----------
    device : Device
    precision : str
    pool : Pool, optional
        Without it the shipped one.

    Returns
    -------
    CalibratedModel or NotPooled
        The latter says what is missing: the vendor, a single device, or any fit in this precision on such units.

    Raises
    ------
    UnknownPrecision
        If the device has no such peak.
    BadFile
        If the pool cannot be read.
    """
    used = _others(device, precision, pool or read_pool())
    if isinstance(used, NotPooled):
        return used
    prior = _pooled_prior(device, precision, used)
    names = {each.id for each in used}
    number = f"{len(names)} device{'s' if len(names) > 1 else ''} in {used[0].precision}"
    return CalibratedModel(
        f"pooled from {number}, not including this one",
        prior.mean,
        np.diag(prior.deviation**2),
        2 * SCATTER,  # what a fit of no measurement says
        notes=(_note(device, precision, used),),
    )


def pool_prior(device: Device, precision: str, pool: Pool | None = None) -> Prior:
    """The prior that a device's own measurements start from: that of the pool, or the weak one where it covers none.

    Raises
    ------
    UnknownPrecision
        If the device has no such peak.
    BadFile
        If the pool cannot be read.
    """
    used = _others(device, precision, pool or read_pool())
    return _pooled_prior(device, precision, [] if isinstance(used, NotPooled) else used)


def _others(device: Device, precision: str, pool: Pool) -> list[PooledFit] | NotPooled:
    """What the pool holds of other devices in this precision on such units."""
    unit = device.find_peak(precision).peak.unit
    if reason := why_not_covered(device):
        return NotPooled(reason)
    measured = SAME_UNITS.get(precision, precision) if unit == "tensor" else precision
    used = [each for each in pool.fits if (each.precision, each.unit) == (measured, unit) and each.id != device.id]
    return used or NotPooled(f"no other device was measured in {precision} on {unit} units")


def _pooled_prior(device: Device, precision: str, used: list[PooledFit]) -> Prior:
    base = base_prior(device.find_peak(precision).peak.unit == "tensor", is_kepler(device))
    return prior_from_others(base, device, "", [_neighbour(each) for each in used])


def _note(device: Device, precision: str, used: list[PooledFit]) -> str:
    share = _share_of_fp32(device, precision)
    told = (
        f"no measurements of {device.name} in {precision}: the interval is as wide as the spread between other devices"
    )
    far = [each for each in used if not 1 / OTHER_RATE <= each.share_of_fp32 / share <= OTHER_RATE]
    if len(far) == len(used) and used[0].unit == "vector":
        rates = " or ".join(sorted({_ratio(each.share_of_fp32) for each in used}))
        told += f"; all of them compute {precision} at {rates} of their fp32 rate, this one at {_ratio(share)}"
    return told


def _ratio(share: float) -> str:
    return f"1/{1 / share:.0f}" if share < 1 else f"{share:.0f}"


def _place(calibration: Calibration) -> tuple[str, str]:
    return calibration.device, calibration.precision


def _pooled(calibration: Calibration) -> PooledFit:
    device = find_device(calibration.device)
    model = calibration.model()
    return PooledFit(
        device.id,
        device.architecture,
        device.year,
        calibration.precision,
        device.find_peak(calibration.precision).peak.unit,
        float(f"{_share_of_fp32(device, calibration.precision):.4g}"),
        calibration.provenance.sources[0] if calibration.provenance.sources else "",
        [float(f"{value:.6g}") for value in model.theta],
        [float(f"{value:.4g}") for value in np.diag(model.covariance)],
        [calibration.parameters[name].moved for name in NAMES],
    )


def _share_of_fp32(device: Device, precision: str) -> float:
    rates = rates_of(Machine(device), precision)
    return rates.matrix_per_s / device.find_peak("fp32", "vector").per_s


def _neighbour(each: PooledFit) -> Neighbour:
    fit = Fit(np.array(each.theta), np.diag(each.variance), SCATTER, np.zeros(0), np.array(each.moved))
    return Neighbour(each, each.source, fit)

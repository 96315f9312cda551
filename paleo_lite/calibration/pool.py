"""Where fits of other devices come from: the shipped pool, or measurements at hand. `prior.narrow_by_others` uses them.

``calibrations/pooled.json`` holds a fit of each calibrated device, from its own measurements alone, so that nothing
counts twice and a prediction reads one small file. ``make calibrations`` writes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import BadFile
from ..files import read_typed, shipped, write_aside
from ..hardware import Device, Machine, find_device
from ..timing.calibrated import NAMES
from ..timing.fitted import CalibratedModel, rates_of
from .calibrate import order, runs_of
from .fit import SCATTER, Fit, Prior, fit
from .measurements import Measurement
from .poolable import why_not_pooled
from .prior import DeviceFit, device_prior, narrow_by_others, on_tensor_cores

if TYPE_CHECKING:
    from .store import Calibration

POOL_FILE = "pooled.json"
FORMAT = 1
_BYTES_AT_MOST = 2**22

SAME_UNITS = {"bf16": "fp16"}
"""Precisions that tensor cores multiply with the same kernels and at the same rate as the one that was measured."""

OTHER_RATE = 4.0
"""Devices whose rate in a precision, relative to fp32, differs by more than this factor are told apart in a note."""


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; `parameters` are the names that its numbers belong to."""

    format: int
    parameters: list[str]
    fits: list[DeviceFit]


class NotPooled(msgspec.Struct, frozen=True):
    """Why there is no pooled model, in words."""

    reason: str


# What a device without measurements gets, and what its own measurements start from ------------------------------------


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
    others = _others(device, precision, pool)
    if isinstance(others, NotPooled):
        return others
    prior = narrow_by_others(device_prior(device, precision), device, "", others)
    names = {other.id for other in others}
    number = f"{len(names)} device{'s' if len(names) > 1 else ''} in {others[0].precision}"
    return CalibratedModel(
        f"pooled from {number}, not including this one",
        prior.mean,
        np.diag(prior.deviation**2),
        2 * SCATTER,  # what a fit of no measurement says
        notes=(_note(device, precision, others),),
        moved=np.zeros(len(NAMES)),
    )


def pool_prior(device: Device, precision: str, pool: Pool | None = None) -> Prior:
    """The prior that a device's own measurements start from: narrowed by the pool where it covers the device.

    Raises
    ------
    UnknownPrecision
        If the device has no such peak.
    BadFile
        If the pool cannot be read.
    """
    others, base = _others(device, precision, pool), device_prior(device, precision)
    return base if isinstance(others, NotPooled) else narrow_by_others(base, device, "", others)


def _others(device: Device, precision: str, pool: Pool | None) -> list[DeviceFit] | NotPooled:
    """What the pool holds of other devices in this precision on such units."""
    unit = device.find_peak(precision).peak.unit
    if reason := why_not_pooled(device):
        return NotPooled(reason)
    measured = SAME_UNITS.get(precision, precision) if unit == "tensor" else precision
    fits = (pool or read_pool()).fits
    others = [other for other in fits if (other.precision, other.unit) == (measured, unit) and other.id != device.id]
    return others or NotPooled(f"no other device was measured in {precision} on {unit} units")


def _note(device: Device, precision: str, others: list[DeviceFit]) -> str:
    share = _share_of_fp32(device, precision)
    note = (
        f"no measurements of {device.name} in {precision}: the interval is as wide as the spread between other devices"
    )
    alike = any(1 / OTHER_RATE <= other.share_of_fp32 / share <= OTHER_RATE for other in others)
    if not alike and others[0].unit == "vector":
        rates = " or ".join(sorted({_ratio(other.share_of_fp32) for other in others}))
        note += f"; all of them compute {precision} at {rates} of their fp32 rate, this one at {_ratio(share)}"
    return note


def _ratio(share: float) -> str:
    return f"1/{1 / share:.0f}" if share < 1 else f"{share:.0f}"


def _share_of_fp32(device: Device, precision: str) -> float:
    return rates_of(Machine(device), precision).matrix_per_s / device.find_peak("fp32", "vector").per_s


# The file -------------------------------------------------------------------------------------------------------------


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
    for other in pool.fits:
        if not len(other.theta) == len(other.variance) == len(other.moved) == len(NAMES):
            raise BadFile(
                f"{path}: {other.id} in {other.precision} must have {len(NAMES)} numbers in each of its lists"
            )
    return pool


def make_pool(calibrations: Iterable[Calibration]) -> Pool:
    """The pool of some calibrations, in the order of device and precision."""
    ordered = sorted(calibrations, key=lambda calibration: (calibration.device, calibration.precision))
    return Pool(FORMAT, list(NAMES), [_rounded(_fit_of(calibration)) for calibration in ordered])


def write_pool(pool: Pool, path: Path) -> None:
    """Write the pool; the file appears whole or not at all."""
    head = msgspec.json.encode(pool.parameters).decode()
    lines = ",\n".join(msgspec.json.encode(other).decode() for other in pool.fits)  # a line per fit, for people's diffs
    write_aside(path, f'{{"format":{pool.format},"parameters":{head},"fits":[\n{lines}\n]}}\n'.encode())


def device_fit(device: Device, precision: str, source: str, fit: Fit) -> DeviceFit:
    """What a fit of a device says to others."""
    return DeviceFit(
        device.id, device.architecture, device.year, precision, device.find_peak(precision).peak.unit,
        _share_of_fp32(device, precision), source,
        fit.theta.tolist(), np.diag(fit.covariance).tolist(), fit.moved.tolist(),
    )  # fmt: skip


def _fit_of(calibration: Calibration) -> DeviceFit:
    model = calibration.model()
    moved = np.array([calibration.parameters[name].moved for name in NAMES])
    fitted = Fit(model.theta, model.covariance, model.scatter, np.zeros(0), moved)
    source = next(iter(calibration.provenance.sources), "")
    return device_fit(find_device(calibration.device), calibration.precision, source, fitted)


def _rounded(other: DeviceFit) -> DeviceFit:
    """With as many digits as a file needs."""
    return msgspec.structs.replace(
        other,
        share_of_fp32=float(f"{other.share_of_fp32:.4g}"),
        theta=[float(f"{value:.6g}") for value in other.theta],
        variance=[float(f"{value:.4g}") for value in other.variance],
    )


# Measurements at hand -------------------------------------------------------------------------------------------------

Key = tuple[str, str, str]
"""Device, precision, source."""


def group_by_source(measurements: Sequence[Measurement]) -> dict[Key, list[Measurement]]:
    """Measurements by device, precision and source, each in an order of its own."""
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for step in order(measurements):
        groups[step.gpu, step.precision, step.source].append(step)
    return groups


class MeasuredDevices:
    """Measurements of several devices, each of which narrows the prior of the others.

    A device, precision and source are fitted from their own measurements alone, when they are first asked for.

    Parameters
    ----------
    measurements : sequence of Measurement
    label_of : function of a Measurement, optional
        What may be held out: its network, or the family of that.
    """

    def __init__(
        self, measurements: Sequence[Measurement], label_of: Callable[[Measurement], str] | None = None
    ) -> None:
        self._groups = group_by_source(measurements)
        self._labels = {
            key: np.array([label_of(step) if label_of else "" for step in group]) for key, group in self._groups.items()
        }
        self._fits: dict[tuple[Key, str], Fit] = {}

    def others(self, device: Device, precision: str) -> list[Key]:
        """What was measured of other devices in the same precision on such units."""
        unit = on_tensor_cores(device, precision)
        return [
            key
            for key in self._groups
            if key[0] != device.id and key[1] == precision and on_tensor_cores(find_device(key[0]), precision) == unit
        ]

    def prior(self, device: Device, precision: str, source: str, held_out: str = "") -> Prior:
        """The prior of a device under some software, from others that have not seen what is held out.

        Parameters
        ----------
        device : Device
        precision : str
        source : str
            Its first word names the software.
        held_out : str
            The label of what is held out; empty for nothing.
        """
        others = [
            device_fit(find_device(gpu), precision, other_source, self.fit((gpu, precision, other_source), held_out))
            for gpu, _, other_source in self.others(device, precision)
            if not held_out or (self._labels[gpu, precision, other_source] != held_out).any()
        ]
        return narrow_by_others(device_prior(device, precision), device, source, others)

    def fit(self, key: Key, held_out: str = "") -> Fit:
        """The fit of a device under some software to its own measurements without those that are held out."""
        gpu, precision, _ = key
        seen = np.flatnonzero(self._labels[key] != held_out) if held_out else np.arange(len(self._groups[key]))
        everything = len(seen) == len(self._groups[key])
        name = (key, "" if everything else held_out)
        if name not in self._fits:
            device = find_device(gpu)
            runs, prior = runs_of(self._groups[key], device, precision), device_prior(device, precision)
            start = None if everything else self.fit(key).theta
            self._fits[name] = fit(runs if everything else runs.choose(seen), prior, start=start)
        return self._fits[name]

"""What is learnt from measurements: `calibrate`, `calibrations`, `validate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, overload

import msgspec

from ..calibration.calibrate import calibrate as fit_device
from ..calibration.calibrate import held_out_error, measurements_of
from ..calibration.fit import Fit
from ..calibration.measured_devices import execution_of, software_of
from ..calibration.measurements import Measurement, is_measurements, read_measurements
from ..calibration.pool import NotPooled, pool_prior, pooled_model
from ..calibration.ppp import PppCalibration, PppRun, PppShare, calibrate_ppp
from ..calibration.store import (
    AnyCalibration,
    Calibration,
    find_calibration,
    make_calibration,
    read_calibration,
    shipped_calibrations,
    write_calibration,
)
from ..calibration.suggest import Suggestions, typical_steps
from ..calibration.suggest import suggest as suggest_steps
from ..calibration.validate import Validation, read_validation
from ..calibration.validate import validate as hold_out
from ..errors import BadValue
from ..files import check_new
from ..hardware import Device, Machine, find_device
from ..networks import find_network
from ..report.calibrations import calibrations_page
from ..report.document import Document, Shown
from ..result import Result
from ..timing import Workload
from ..timing.fitted import CalibratedModel
from ..timing.models import LEARNT, PppModel
from ..version import __version__
from .profiles import Paths, need_pyarrow, paths_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Learnt(Result, msgspec.Struct, frozen=True, eq=False):
    """A calibration of a device; of all parameters also what they were fitted to, in the order of the residuals."""

    calibration: AnyCalibration
    device: Device
    measurements: Sequence[Measurement] = ()
    fit: Fit | None = None

    def to_dict(self) -> dict[str, Any]:
        """The calibration's."""
        return self.calibration.to_dict()

    def document(self, **how: Any) -> Document:
        """The calibration's."""
        found: Document = self.calibration.document(**how)
        return found

    def pairs(self) -> list[Any]:
        """What the chart of the fit draws: measured steps beside fitted ones, a title and what is said below it."""
        from ..report.charts.pairs import fitted_pairs

        made = self.calibration
        if self.fit is None or not isinstance(made, Calibration):
            raise BadValue("a PPP alone has no chart of its fit: learn all parameters, --time-model calibrated")
        off = "" if made.held_out_error is None else f"; {made.held_out_error:.1%} off on held-out networks"
        return [
            fitted_pairs(self.measurements, self.fit),
            f"Fit of {self.device.name}, {made.precision}",
            f"single measurements scatter {made.scatter:.1%} around the fit{off}",
        ]


class Learning(TypedDict, total=False):
    """What `calibrate` may be told besides; see there."""

    precision: str
    network: str | None
    time_model: str
    batch_size: int | None
    phase: str | None
    name_pattern: str | None
    output: str | Path | None
    force: bool
    date: str
    hardware_files: Paths


@overload
def calibrate(
    measured: Paths | Sequence[Measurement] = (), *, gpu: str | Device, suggest: None = None, **how: Unpack[Learning]
) -> AnyCalibration: ...
@overload
def calibrate(
    measured: Paths | Sequence[Measurement] = (), *, gpu: str | Device, suggest: int, **how: Unpack[Learning]
) -> Suggestions: ...


def calibrate(
    measured: Paths | Sequence[Measurement] = (),
    *,
    gpu: str | Device,
    precision: str = "fp32",
    network: str | None = None,
    time_model: str = LEARNT,
    batch_size: int | None = None,
    phase: str | None = None,
    suggest: int | None = None,
    name_pattern: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    date: str = "",
    hardware_files: Paths = (),
) -> AnyCalibration | Suggestions:
    """Learn a device's parameters from measured steps.

    Of a profile the forward and the backward pass of a steady iteration are taken. The fit starts from the best that is
    known of the device: what was measured of it and of others, under the software that the CSV names.

    Parameters
    ----------
    measured : path, sequence of paths, or sequence of Measurement
        Measurements CSVs, profiles, folders of profiles; may be left out with `suggest`.
    gpu : str or Device
        The device that was measured.
    precision : str
    network : str, optional
        What was profiled; needed for profiles.
    time_model : {"calibrated", "ppp"}
        What to learn: all parameters, or PALEO's one, the platform percent of peak.
    batch_size : int, optional
        Only profiles of this batch size; with `suggest` that of the step asked about, 1 without it.
    phase : str, optional
        With `suggest`: the phase asked about, inference without it.
    suggest : int, optional
        Name so many measurements that would narrow the answer most, the time of `network` or of a typical set of
        networks, and learn nothing. `measured` is what was measured already.
    name_pattern : str, optional
        How to read a run's settings from file names: a regular expression with named groups.
    output : path, optional
        A TOML to write; `force` replaces one that is there.
    date : str
        When it was measured, for the record.
    hardware_files : path, or sequence of paths
        Further hardware TOMLs.

    Returns
    -------
    Calibration or PppCalibration
        What `paleo_lite.predict` and others take as `calibration`; with `suggest` a `Suggestions`.

    Raises
    ------
    PaleoError
        One of its classes: nothing measured of that device and precision, a bad file, an unknown network.
    """

    def learnt(only: int | None) -> AnyCalibration:
        return learn(
            measured, gpu=gpu, precision=precision, network=network, time_model=time_model, batch_size=only,
            name_pattern=name_pattern, output=output, force=force, date=date, hardware_files=hardware_files,
        ).calibration  # fmt: skip

    if suggest is None:
        if phase is not None:
            raise BadValue("--phase is what --suggest is asked about: give --suggest, too")
        return learnt(batch_size)
    if time_model != LEARNT or output is not None:
        raise BadValue("--suggest learns nothing and writes no file: leave --time-model and -o out")
    machine = Machine.one_of(find_device(gpu, paths_of(hardware_files)) if isinstance(gpu, str) else gpu)
    found = learnt(None).model() if measured else pooled_model(machine.device, precision)
    if not isinstance(found, CalibratedModel):
        why = found.reason if isinstance(found, NotPooled) else "a PPP"
        raise BadValue(
            f"nothing is known of {machine.device.id} in {precision} that measurements could narrow ({why}): "
            "'paleo-lite measure' chooses by itself"
        )
    asked = phase or "inference"
    if network is None:
        steps = typical_steps(precision, asked, batch_size)
    else:
        steps = [Workload(find_network(network), precision, batch_size or 1, asked)]
    return suggest_steps(found, machine, steps, suggest)


def learn(
    measured: Paths | Sequence[Measurement],
    *,
    gpu: str | Device,
    precision: str = "fp32",
    network: str | None = None,
    time_model: str = LEARNT,
    batch_size: int | None = None,
    name_pattern: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    date: str = "",
    hardware_files: Paths = (),
) -> Learnt:
    """`calibrate`, with what the parameters were fitted to."""
    if time_model not in (LEARNT, PppModel.name):
        raise BadValue(f"the {time_model} model has nothing to learn: --time-model takes {LEARNT} or {PppModel.name}")
    check_new(None if output is None else Path(output), force=force)
    further = paths_of(hardware_files)
    device = find_device(gpu, further) if isinstance(gpu, str) else gpu
    several = [measured] if isinstance(measured, (str, os.PathLike)) else list(measured)
    steps = [step for step in several if isinstance(step, Measurement)]
    paths = [Path(path) for path in several if not isinstance(path, Measurement)]
    tables = [path for path in paths if is_measurements(path)]
    profiles = [path for path in paths if path not in tables]
    steps += [row for path in tables for row in read_measurements(path)]
    files = list(tables)
    if profiles:
        if network is None:
            raise BadValue(f"{profiles[0]} is not a measurements CSV: for profiles give --network")
        need_pyarrow()
        from ..efficiency.files import find_files

        files += find_files(profiles)
    if time_model == PppModel.name:
        steps, machine = measurements_of(steps, device, precision, further) if steps else [], Machine(device)
        runs, shares = list[PppRun](), list[PppShare]()
        if network is not None and profiles:
            from ..calibration.ppp_profiles import beside_profiles, run_beside, shares_of

            profiled = Workload(find_network(network), precision)
            beside = beside_profiles(profiles, profiled, machine, batch_size, name_pattern)
            runs, shares = [run_beside(profile) for profile in beside], shares_of(beside)
        found = calibrate_ppp(steps, machine, precision, runs, shares, inputs=files, date=date, version=__version__)
        learnt = Learnt(found, device)
    else:
        if network is not None and profiles:
            from ..calibration.from_profiles import measure_profiles

            name = find_network(network).name
            steps += measure_profiles(profiles, device.id, name, precision, batch_size, name_pattern, further)
        learnt = _fitted(measurements_of(steps, device, precision, further), device, precision, files, date)
    if output is not None:
        write_calibration(learnt.calibration, Path(output), force)
    return learnt


def _fitted(steps: Sequence[Measurement], device: Device, precision: str, files: Sequence[Path], date: str) -> Learnt:
    """All parameters, from the prior that the pool of all devices gives."""
    prior = pool_prior(device, precision, execution_of(steps), software_of(steps))
    measurements, fit = fit_device(steps, device, precision, prior)
    error = held_out_error(measurements, device, precision, prior)
    made = make_calibration(
        device.id, precision, measurements, fit, held_out_error=error, inputs=files, date=date, version=__version__
    )
    return Learnt(made, device, measurements, fit)


def calibrations(name: str | None = None) -> Shown | AnyCalibration:
    """List the shipped calibrations with their held-out error, or show what one learnt.

    Parameters
    ----------
    name : str, optional
        A shipped calibration's name, or a file.

    Returns
    -------
    Calibration, PppCalibration, or a list of all shipped ones

    Raises
    ------
    UnknownName, BadFile
        If there is no such calibration, or its file is malformed.
    """
    if name is not None:
        return find_calibration(name)
    page = calibrations_page({name: read_calibration(path) for name, path in shipped_calibrations().items()})
    return Shown({"calibrations": list(page.tables[0].rows)}, page)


def validate(
    data: str | Path | Sequence[Measurement], *, split: str = "network", gpus: Sequence[str] = (),
    precisions: Sequence[str] = (), on_done: Callable[[int, int], None] = lambda done, groups: None,
) -> Validation:  # fmt: skip
    """Hold measurements out, predict them from the rest, and say how far off that is.

    Parameters
    ----------
    data : path, or sequence of Measurement
        A measurements CSV; or a ``.json`` that holds what this said before (`to_dict`), with the split it had.
    split : {"network", "family", "gpu", "source"}
        What is held out at a time: see `paleo_lite.calibration.validate.validate`.
    gpus, precisions : sequence of str
        Only these devices and precisions; all where empty. The others are learnt from all the same.
    on_done : callable
        Called with how many devices of how many are done.

    Returns
    -------
    Validation

    Raises
    ------
    BadValue
        If the split is unknown or there is nothing to hold out.
    """
    if isinstance(data, (str, Path)) and Path(data).suffix == ".json":
        stored = read_validation(Path(data)).only(gpus, precisions)
        if not stored.points:
            raise BadValue(f"no measurement of {', '.join((*gpus, *precisions))} in {data}")
        return stored
    measurements = read_measurements(Path(data)) if isinstance(data, (str, Path)) else data
    if not any((not gpus or m.gpu in gpus) and (not precisions or m.precision in precisions) for m in measurements):
        where = f" in {data}" if isinstance(data, (str, Path)) else ""
        raise BadValue(f"no measurement of {', '.join((*gpus, *precisions))}{where}")
    return Validation(split, *hold_out(measurements, split, gpus, precisions, on_done=on_done))


__all__ = ["Learnt", "PppCalibration", "calibrate", "calibrations", "learn", "validate"]

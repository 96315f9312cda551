"""What is learnt from measurements: `calibrate`, `calibrations`, `validate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from ..architectures import find_network
from ..calibration.choose import NotPooled, pool_prior, pooled_model
from ..calibration.fit import Fit, held_out_error
from ..calibration.fit import calibrate as fit_device
from ..calibration.measurements import Measurement, measurements_of, provenance_of, read_given, read_measurements
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
from ..calibration.validate import BYTES_AT_MOST, Validation
from ..calibration.validate import validate as hold_out
from ..errors import BadValue
from ..extras import need
from ..files import check_new, read_typed
from ..machines import Device, Machine, find_device
from ..reporting.calibrations import calibrations_page
from ..reporting.document import Document, Shown
from ..result import Result
from ..timing import Workload
from ..timing.calibrated import CalibratedModel
from ..timing.models import LEARNT, TIME_MODELS
from ..version import __version__
from .profiles import READING
from .question import OnDevice, Paths, asked, paths_of


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
        page: Document = self.calibration.document(**how)
        return page

    def pairs(self) -> list[Any]:
        """What the chart of the fit draws: measured steps beside fitted ones, a title and what is said below it."""
        from ..reporting.charts.accuracy import fitted_pairs

        made = self.calibration
        if self.fit is None or not isinstance(made, Calibration):
            raise BadValue("a PPP alone has no chart of its fit: learn all parameters, --time-model calibrated")
        off = "" if made.held_out_error is None else f"; {made.held_out_error:.1%} off on held-out networks"
        return [
            fitted_pairs(self.measurements, self.fit),
            f"Fit of {self.device.name}, {made.precision}",
            f"single measurements scatter {made.scatter:.1%} around the fit{off}",
        ]


class _OfMeasurements(OnDevice, frozen=True):
    measured: Paths | Sequence[Measurement] = ()


class CalibrateQuestion(_OfMeasurements, frozen=True, kw_only=True):
    """What `calibrate` is asked; see there."""

    network: str | None = None
    time_model: str = LEARNT
    batch_size: int | None = None
    phase: str | None = None
    suggest: int | None = None
    name_pattern: str | None = None
    output: str | Path | None = None
    force: bool = False
    date: str = ""

    def __post_init__(self) -> None:
        able = [name for name, model in TIME_MODELS.items() if model.learns]
        if self.time_model not in able:
            raise BadValue(f"the {self.time_model} model has nothing to learn: --time-model takes {' or '.join(able)}")
        if self.suggest is None and self.phase is not None:
            raise BadValue("--phase is what --suggest is asked about: give --suggest, too")
        if self.suggest is not None and (self.time_model != LEARNT or self.output is not None):
            raise BadValue("--suggest learns nothing and writes no file: leave --time-model and -o out")


@partial(asked, CalibrateQuestion)
def calibrate(question: CalibrateQuestion) -> AnyCalibration | Suggestions:
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
    if question.suggest is None:
        return learn(question).calibration
    precision, phase = question.precision, question.phase or "inference"
    machine = Machine.one_of(find_device(question.gpu, paths_of(question.hardware_files)))
    if question.measured:  # of whatever batch size
        model: Any = learn(structs.replace(question, batch_size=None)).calibration.model()
    else:
        machine.peak(precision)  # refused where the device has none
        model = pooled_model(machine.device, precision)
    if not isinstance(model, CalibratedModel):
        why = model.reason if isinstance(model, NotPooled) else "a PPP"
        raise BadValue(
            f"nothing is known of {machine.device.id} in {precision} that measurements could narrow ({why}): "
            "'paleo-lite measure' chooses by itself"
        )
    if question.network is None:
        steps = typical_steps(precision, phase, question.batch_size)
    else:
        batch_size = 1 if question.batch_size is None else question.batch_size
        steps = [Workload(find_network(question.network), precision, batch_size, phase)]
    return suggest_steps(model, machine, steps, question.suggest)


def learn(question: CalibrateQuestion) -> Learnt:
    """What `calibrate` learns, with what the parameters were fitted to."""
    output = None if question.output is None else Path(question.output)
    check_new(output, force=question.force)
    further, precision = paths_of(question.hardware_files), question.precision
    device = find_device(question.gpu, further)
    network = question.network
    steps, files, profiles = read_given(question.measured)
    if profiles:
        if network is None:
            raise BadValue(f"{profiles[0]} is not a measurements CSV: for profiles give --network")
        need(*READING)
        from ..profiles.detect import find_files

        files += find_files(profiles)
    only = question.batch_size, question.name_pattern
    if question.time_model != LEARNT:
        steps, machine = measurements_of(steps, device, precision, further) if steps else [], Machine(device)
        runs, shares = list[PppRun](), list[PppShare]()
        if network is not None and profiles:
            from ..calibration.from_profiles import beside_profiles, run_beside, shares_of

            beside = beside_profiles(profiles, Workload(find_network(network), precision), machine, *only)
            runs, shares = [run_beside(profile) for profile in beside], shares_of(beside)
        learnt = Learnt(
            calibrate_ppp(steps, machine, precision, runs, shares, inputs=files, date=question.date,
                          version=__version__),
            device,
        )  # fmt: skip
    else:
        if network is not None and profiles:
            from ..calibration.from_profiles import measure_profiles

            steps += measure_profiles(profiles, device.id, find_network(network).name, precision, *only, further)
        steps = measurements_of(steps, device, precision, further)
        provenance = provenance_of(steps, files, question.date, __version__)
        prior = pool_prior(device, precision, steps[0].execution, steps[0].software)
        measurements, fit = fit_device(steps, device, precision, prior)
        error = held_out_error(measurements, device, precision, prior)
        made = make_calibration(device.id, precision, measurements, fit, provenance, error)
        learnt = Learnt(made, device, measurements, fit)
    if output is not None:
        write_calibration(learnt.calibration, output, question.force)
    return learnt


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
        stored = read_typed(Path(data), Validation, "stored validation", BYTES_AT_MOST).only(gpus, precisions)
        if not stored.points:
            raise BadValue(f"no measurement of {', '.join((*gpus, *precisions))} in {data}")
        return stored
    measurements = read_measurements(Path(data)) if isinstance(data, (str, Path)) else data
    if not any((not gpus or m.gpu in gpus) and (not precisions or m.precision in precisions) for m in measurements):
        where = f" in {data}" if isinstance(data, (str, Path)) else ""
        raise BadValue(f"no measurement of {', '.join((*gpus, *precisions))}{where}")
    return Validation(split, *hold_out(measurements, split, gpus, precisions, on_done=on_done))


__all__ = ["Learnt", "PppCalibration", "calibrate", "calibrations", "learn", "validate"]

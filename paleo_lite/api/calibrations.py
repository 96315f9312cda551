"""`calibrate`, `calibrations` and `validate`: fit the time model to measurements and check it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ..architectures import find_network
from ..arguments import check_arguments
from ..calibration.evidence_file import EvidenceCalibration
from ..calibration.fit import Fit, held_out_error
from ..calibration.fit import calibrate as fit_device
from ..calibration.measurements import (
    FitOrigin,
    Measurement,
    describe_columns,
    describe_others,
    is_measurements_csv,
    provenance_of,
    read_inputs,
    read_measurements,
    select_measurements,
)
from ..calibration.pool import NotPooled, pool_prior, pooled_model
from ..calibration.power import fit_power
from ..calibration.power_logs import is_power_log
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
from ..calibration.validate import MAX_FILE_BYTES, Validation, validate_powers
from ..calibration.validate import validate as hold_out
from ..errors import BadValue, UnknownFormat
from ..extras import require
from ..files import Paths, check_outputs, file_exists, read_typed, to_paths, without_copies
from ..machines import Device, Machine, find_device
from ..questions.kind import make_function
from ..questions.measured import OF_RESULT_FILES, CalibrationQuestion, RecordedFacts, ValidationQuestion
from ..questions.option import options_of
from ..questions.profile_options import PROFILE_READER
from ..questions.values import flatten
from ..reporting.calibrations import calibrations_page
from ..reporting.document import Document
from ..result import Result, ResultList
from ..timing import Workload
from ..timing.calibrated import CalibratedModel
from ..timing.models import CALIBRATED, TIME_MODELS
from ..version import __version__


class FittedCalibration(Result, msgspec.Struct, frozen=True, eq=False):
    """A calibration of a device, with the measurements and the fit that it comes from.

    Attributes
    ----------
    calibration : Calibration or PppCalibration
    device : Device
    measurements : sequence of Measurement
        Fitted measurements, in the order of the residuals; empty for a PPP.
    fit : Fit or None
        None for a PPP.
    """

    calibration: AnyCalibration
    device: Device
    measurements: Sequence[Measurement] = ()
    fit: Fit | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the calibration."""
        return self.calibration.to_dict()

    def document(self, **options: Any) -> Document:
        """Return the document of the calibration."""
        page: Document = self.calibration.document(**options)
        return page

    def pairs(self) -> list[Any]:
        """Return the arguments of the chart of the fit: pairs of measured and fitted times, title and subtitle."""
        from ..reporting.charts.accuracy import fitted_pairs

        calibration = self.calibration
        if self.fit is None or not isinstance(calibration, Calibration):
            raise BadValue("a PPP has no chart of its fit: fit all parameters with `--time-model calibrated`")
        subtitle = f"scatter of single measurements around the fit: {calibration.scatter:.1%}"
        if calibration.held_out_error is not None:
            subtitle = f"{subtitle}; mean error on held-out networks: {calibration.held_out_error:.1%}"
        return [
            fitted_pairs(self.measurements, self.fit),
            f"Fit of {self.device.name}, {calibration.precision}",
            subtitle,
        ]


def answer_calibration(question: CalibrationQuestion) -> AnyCalibration | Suggestions:
    """Return the fitted or learned calibration, or the measurements to make next.

    Raise PaleoError if there is no measurement of this device and precision, a file is malformed or the network is
    unknown.
    """
    _check_time_model(question.time_model)
    result_files = find_result_files(question.measured)
    if result_files:
        return _learn_from_results(result_files, question)
    check_inputs(question.measured)
    for name in question.given():
        if name in OF_RESULT_FILES:
            raise BadValue(f"`--{name.replace('_', '-')}` is for result files of benchmarks")
    if question.gpu is None:
        raise BadValue("the device that was measured is missing: give `--gpu`")
    if question.suggest is not None:
        return _suggest(question, question.gpu, question.suggest)
    if question.phase is not None:
        raise BadValue("`--phase` requires `--suggest`: it is the phase of the prediction")
    return fit_calibration(question).calibration


calibrate = make_function("calibrate", CalibrationQuestion, answer_calibration)


def _learn_from_results(files: list[Path], question: CalibrationQuestion) -> EvidenceCalibration:
    """Learn from result files of benchmarks by which factor each cause of a forecast is off."""
    from .observations import calibrate_from_results
    from .suggestions import suggest_rows

    facts = options_of(RecordedFacts)
    user_facts = {name: getattr(question, name) for name in question.given() if name in facts}
    if isinstance(question.gpu, Device):
        user_facts["gpu"] = question.gpu.id
    output = None if question.output is None else Path(question.output)
    check_outputs(output, force=question.force)
    hardware_files = to_paths(question.hardware_files)
    learned = calibrate_from_results(files, user_facts, hardware_files=hardware_files, date=question.date)
    if question.suggest is not None:
        learned = msgspec.structs.replace(learned, suggested=suggest_rows(learned, question.suggest, hardware_files))
    if output is not None:
        write_calibration(msgspec.structs.replace(learned, suggested=[]), output, question.force)
    return learned


def _suggest(question: CalibrationQuestion, gpu: str | Device, count: int) -> Suggestions:
    """Return the measurements that would most reduce the interval of a prediction, or of typical ones."""
    if question.time_model != CALIBRATED or question.output is not None:
        raise BadValue("`--suggest` fits nothing and writes no file: leave `--time-model` and `--output` out")
    precision, phase = question.precision or "fp32", question.phase or "inference"
    machine = Machine.single_device(find_device(gpu, to_paths(question.hardware_files)))
    if question.measured:
        # Existing measurements count with all batch sizes.
        model: Any = fit_calibration(replace(question, batch_size=None)).calibration.model()
    else:
        machine.peak(precision)  # raises UnknownPrecision if the device has no peak in this precision
        model = pooled_model(machine.device, precision)
    if not isinstance(model, CalibratedModel):
        reason = model.reason if isinstance(model, NotPooled) else "a PPP"
        raise BadValue(
            f"there is no prior for {machine.device.id} in {precision} that measurements could improve ({reason}): "
            "use 'paleo-lite measure', which chooses its measurements itself"
        )
    if question.network is None:
        steps = typical_steps(precision, phase, question.batch_size)
    else:
        steps = [Workload(find_network(question.network), precision, question.batch_size or 1, phase)]
    return suggest_steps(model, machine, steps, count)


def find_result_files(measured: Paths | Sequence[Measurement]) -> list[Path]:
    """Return the files if all are result files of benchmarks, also those of folders; an empty list for anything else.

    Raise BadValue if only some of the given files are.
    """
    if isinstance(measured, (list, tuple)) and any(isinstance(item, Measurement) for item in measured):
        return []
    from .result_forecasts import is_result_file

    entries = to_paths(measured)  # type: ignore[arg-type]
    paths: list[Path] = []
    for path in entries:
        if file_exists(path, Path.is_dir):  # of profiles or of result files, whose readers need the same library
            require(*PROFILE_READER)
            paths += sorted(file for file in path.iterdir() if file.is_file())
        else:
            paths.append(path)
    result_files = [
        path for path in paths if file_exists(path) and not is_measurements_csv(path) and is_result_file(path)
    ]
    if any(path not in result_files and not is_power_log(path) for path in paths):
        # Logs of power beside steps are those of the steps.
        result_files = [path for path in result_files if not is_power_log(path)]
    if len(result_files) < len(paths) and any(file_exists(path, Path.is_dir) for path in entries):
        return []  # a folder of profiles
    if result_files and len(result_files) < len(paths):
        others = [str(path) for path in paths if path not in result_files]
        raise BadValue(
            f"{result_files[0]} is a result file and {others[0]} is not: calibrate separately from result files and "
            "from steps or profiles"
        )
    return result_files


def check_inputs(measured: Paths | Sequence[Measurement]) -> None:
    """Raise PaleoError for a missing or empty file, and one that is no table of steps, profile or result file."""
    from ..profiles.detect import open_profile, read_head
    from ..result_files.detect import recognise

    if isinstance(measured, (list, tuple)) and any(isinstance(item, Measurement) for item in measured):
        return
    for path in to_paths(measured):  # type: ignore[arg-type]
        if file_exists(path, Path.is_dir) or (file_exists(path) and (is_measurements_csv(path) or is_power_log(path))):
            continue
        try:
            open_profile(path)
        except UnknownFormat:
            if path.suffix == ".csv":
                raise UnknownFormat(f"{path}: neither a profile nor measurements: {describe_columns(path)}") from None
            if b"\0" in read_head(path):
                raise  # of no text: a damaged profile at best
            recognise(path)


def _check_time_model(time_model: str) -> None:
    fittable = [name for name, model in TIME_MODELS.items() if model.is_fitted]
    if time_model not in fittable:
        raise BadValue(f"the {time_model} model has no parameters to fit: `--time-model` takes {' or '.join(fittable)}")


def _find_profiles(paths: list[Path]) -> list[Path]:
    """Return the files of profiles.

    Raise UnknownFormat for a table which is not a profile: it may have been meant as measurements.
    """
    from ..profiles.detect import find_files, open_profile

    for path in paths:
        if path.suffix != ".csv" or not file_exists(path):
            continue
        try:
            open_profile(path)
        except UnknownFormat:
            raise UnknownFormat(f"{path}: neither a profile nor measurements: {describe_columns(path)}") from None
    return find_files(paths)


def fit_calibration(question: CalibrationQuestion) -> FittedCalibration:
    """Fit a calibration as `calibrate` does, and return it with the measurements and the fit."""
    _check_time_model(question.time_model)
    if question.gpu is None:
        raise BadValue("the device that was measured is missing: give `--gpu`")
    output_path = None if question.output is None else Path(question.output)
    check_outputs(output_path, force=question.force)
    hardware_paths = to_paths(question.hardware_files)
    device = find_device(question.gpu, hardware_paths)
    precision, network, batch_size = question.precision or "fp32", question.network, question.batch_size
    steps, files, profiles, notes = read_inputs(question.measured)
    if profiles:
        if network is None:
            columns = describe_columns(profiles[0])
            raise BadValue(f"{profiles[0]} is not a measurements CSV: for profiles give `--network`; {columns}")
        require(*PROFILE_READER)
        profiles, copies = without_copies(_find_profiles(profiles))
        files += profiles
        notes += copies
    origin = FitOrigin(files, question.date, __version__, notes)
    if question.time_model == CALIBRATED:
        if network is not None and profiles:
            from ..calibration.from_profiles import measure_profiles

            network_name = find_network(network).name
            steps += measure_profiles(
                profiles, device.id, network_name, precision, batch_size, question.name_pattern, hardware_paths
            )
        steps, origin = _select(steps, device, precision, hardware_paths, origin)
        provenance = provenance_of(steps, origin)
        prior = pool_prior(device, precision, steps[0].execution, steps[0].software)
        measurements, fit = fit_device(steps, device, precision, prior)
        error = held_out_error(measurements, device, precision, prior)
        calibration = make_calibration(device.id, precision, measurements, fit, provenance, error)
        power = fit_power(measurements, device, calibration.model())
        calibration = msgspec.structs.replace(calibration, power=power)
        fitted = FittedCalibration(calibration, device, measurements, fit)
    else:
        machine = Machine(device)
        if steps:
            steps, origin = _select(steps, device, precision, hardware_paths, origin)
        runs: list[PppRun] = []
        shares: list[PppShare] = []
        if network is not None and profiles:
            from ..calibration.from_profiles import compare_with_profiles, ppp_run_of_profile, ppp_shares

            workload = Workload(find_network(network), precision)
            compared = compare_with_profiles(profiles, workload, machine, batch_size, question.name_pattern)
            runs = [ppp_run_of_profile(profile) for profile in compared]
            shares = ppp_shares(compared)
        ppp_calibration = calibrate_ppp(steps, machine, precision, runs, shares, origin)
        fitted = FittedCalibration(ppp_calibration, device)
    if output_path is not None:
        write_calibration(fitted.calibration, output_path, question.force)
    return fitted


def _select(
    steps: list[Measurement], device: Device, precision: str, hardware_paths: list[Path], origin: FitOrigin
) -> tuple[list[Measurement], FitOrigin]:
    """Return the measurements of a device in a precision, and their origin with a note on the others."""
    selected = select_measurements(steps, device, precision, hardware_paths)
    return selected, origin._replace(notes=[*origin.notes, *describe_others(steps, selected)])


@check_arguments
def calibrations(name: str | None = None) -> ResultList[AnyCalibration] | AnyCalibration:
    """List the shipped calibrations, or load one.

    Parameters
    ----------
    name : str, optional
        Name of a shipped calibration, or path of a file.

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
    shipped = {calibration_name: read_calibration(path) for calibration_name, path in shipped_calibrations().items()}
    return ResultList(shipped.values(), "calibrations", _calibrations_document)


def _calibrations_document(calibrations: list[AnyCalibration]) -> Document:
    return calibrations_page(
        {f"{each.device}-{each.precision}": each for each in calibrations if not isinstance(each, EvidenceCalibration)}
    )


def answer_validation(question: ValidationQuestion) -> Validation:
    """Return the errors of held-out measurements.

    Raise BadValue if there is nothing to hold out.
    """
    data, gpus, precisions = question.data, flatten(question.gpus), flatten(question.precisions)
    selection = ", ".join((*gpus, *precisions))
    if isinstance(data, (str, Path)) and Path(data).suffix == ".json":
        stored = read_typed(Path(data), Validation, "stored validation", MAX_FILE_BYTES).select(gpus, precisions)
        if not stored.points:
            raise BadValue(f"no measurement of {selection} in {data}")
        return stored
    measurements = read_measurements(Path(data)) if isinstance(data, (str, Path)) else data
    is_selected = [
        (not gpus or measurement.gpu in gpus) and (not precisions or measurement.precision in precisions)
        for measurement in measurements
    ]
    if not any(is_selected):
        source = f" in {data}" if isinstance(data, (str, Path)) else ""
        raise BadValue(f"no measurement of {selection}{source}")
    rows, points = hold_out(measurements, question.split, gpus, precisions)
    return Validation(question.split, rows, points, validate_powers(measurements, question.split, gpus, precisions))


validate = make_function("validate", ValidationQuestion, answer_validation)

__all__ = ["FittedCalibration", "PppCalibration", "calibrate", "calibrations", "fit_calibration", "validate"]

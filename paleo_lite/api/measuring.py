"""`measure`: measure and calibrate the machine on which this runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from ..architectures import find_network
from ..calibration.choose import pool_prior
from ..calibration.fit import calibrate, held_out_error
from ..calibration.measurements import Measurement, format_csv, provenance_of
from ..calibration.prior import Prior, device_prior, narrow_by_probes
from ..calibration.store import make_calibration, write_calibration
from ..calibration.validate import predict_measured, prior_as_fit
from ..errors import AmbiguousName, BadValue, CalibrationFailed, UnknownName
from ..extras import require
from ..files import check_outputs, save
from ..machines import Device, Machine, find_device
from ..machines.registry import read_device
from ..measurement.clock import QUICK, RISE_S, ROUNDS, Effort, Timing, best_of
from ..measurement.machine import (
    bandwidth_bytes_per_s,
    describe,
    describe_other_load,
    describe_throttling,
    hardware_fields,
    launch_s,
    make_device_id,
    peak_per_s,
)
from ..measurement.running import STEPS, OutOfMemory, Probed, Setup, probes, run_probes, set_up, time_step
from ..reporting.measure import MachineReport, TimedStep
from ..timing.calibrated import rates_of
from ..version import __version__
from .arguments import Paths, to_paths

FITTED = (
    "squeezenet1_1", "resnet18", "mobilenet_v2", "shufflenet_v2_x1_0", "alexnet", "densenet121", "resnext50_32x4d",
    "vgg11", "efficientnet_b0",
)  # fmt: skip
HELD_OUT = ("resnet50", "mnasnet1_0", "vgg13")
FITTED_QUICK = ("squeezenet1_1", "resnet18", "mobilenet_v2", "shufflenet_v2_x1_0", "densenet121", "resnext50_32x4d")
HELD_OUT_QUICK = ("resnet34", "mnasnet1_0")
"""Networks that are fitted, which cover every class of convolution; and networks that are predicted, then timed."""

_Plan = dict[str, list[tuple[str, int]]]
"""Phases and batch sizes of each network."""

_BATCH_SIZE_FACTOR = {"cpu": 1, "cuda": 8}

StepCallback = Callable[[str], None]
"""Function that receives a description of the current measurement."""


def measure(
    steps: Sequence[str] = (),
    *,
    device: str = "cpu",
    quick: bool = False,
    threads: int | None = None,
    precision: str = "fp32",
    phases: Sequence[str] = (),
    channels_last: bool = False,
    compiled: bool = False,
    gpu: str | None = None,
    output: str | Path | None = None,
    calibration_out: str | Path | None = None,
    hardware_out: str | Path | None = None,
    force: bool = False,
    hardware_files: Paths = (),
    on_step: StepCallback | None = None,
) -> MachineReport:
    """Calibrate this machine: time operations and networks, fit the model, then predict and time other networks.

    Parameters
    ----------
    steps : sequence of str
        Time only these steps, such as ``"resnet18:16:inference"`` (network, batch size, phase), and compare each with
        its prediction. `paleo_lite.calibrate` with ``suggest`` names the most informative steps.
    device : {"cpu", "cuda"}
        Device to measure.
    quick : bool
        Measure for less than a minute: fewer networks, inference only, wider intervals.
    threads : int, optional
        Number of CPU threads; by default that of torch.
    precision : str
        Precision of the arithmetic.
    phases : sequence of {"inference", "training"}
        Phases to time; by default both.
    channels_last : bool
        Store images as NHWC.
    compiled : bool
        Run networks through ``torch.compile``.
    gpu : str, optional
        Name of this device, if it is not recognised automatically.
    output, calibration_out, hardware_out : path, optional
        CSV file of the measurements, TOML file of the calibration, TOML file of this machine with its measured peaks;
        existing files are replaced only with `force`.
    hardware_files : path, or sequence of paths
        TOML files of further devices.
    on_step : callable, optional
        Called with a description of each measurement.

    Returns
    -------
    MachineReport

    Raises
    ------
    PaleoError
        For a missing extra, an unknown device or an existing output file.
    """
    if gpu is not None and hardware_out is not None:
        raise BadValue("`--gpu` uses the data of a known device, `--hardware-out` measures it: give one of them")
    if steps and phases:
        raise BadValue("a STEP includes its phase: leave `--phase` out")
    report_step = on_step or _ignore_step
    output_path, calibration_path, hardware_path = (
        None if path is None else Path(path) for path in (output, calibration_out, hardware_out)
    )
    chosen_steps = _parse_steps(steps)
    check_outputs(output_path, calibration_path, hardware_path, force=force)
    _require_libraries()
    effort = _effort(device, quick)
    machine = None if gpu is None else find_device(gpu, to_paths(hardware_files))
    disturbance = describe_other_load()
    if disturbance:
        report_step(f"although {disturbance}")
    with set_up(device, precision, threads, channels_last, compiled) as setup:
        report_step("probes: matrix products, convolutions, memory streams, launches")
        probed = run_probes(probes(quick, _BATCH_SIZE_FACTOR[setup.device]), setup, effort)
        if machine is None and hardware_path is None:
            machine = _find_shipped_device(setup)
        is_derived = machine is None
        if machine is None:
            machine = _derive_device(setup, probed, quick, effort, hardware_path)
        timer = _Timer(setup, machine.id, effort, report_step)
        if chosen_steps:
            plans: tuple[_Plan, _Plan] = (chosen_steps, {})
        else:
            plans = _default_plans(device, quick, phases)
        fitted, held_out = timer.time_plans(*plans)
        disturbances = "; ".join(text for text in (disturbance, describe_throttling(setup)) if text)
    if not fitted or not (held_out or chosen_steps):
        raise CalibrationFailed("the networks to measure do not fit into this device's memory: nothing to fit")
    execution = "compiled" if compiled else "eager"
    prior = None if is_derived else pool_prior(machine, precision, execution)
    if prior is None:
        prior = _prior_from_probes(machine, precision, probed, serial=device == "cpu")
    measurements, fit = calibrate([step.measurement for step in fitted], machine, precision, prior)
    provenance = provenance_of(measurements, date=date.today().isoformat(), version=__version__)
    error = held_out_error(measurements, machine, precision, prior)
    calibration = make_calibration(machine.id, precision, measurements, fit, provenance, error)
    if output_path is not None:
        save(output_path, format_csv(step.measurement for step in (*fitted, *held_out)).encode())
    if chosen_steps:  # compare them with the prediction before they were measured
        held_out = fitted
        fit = prior_as_fit(prior)
    points = predict_measured(fit, [step.measurement for step in held_out], machine, precision)
    if calibration_path is not None:
        write_calibration(calibration, calibration_path, force)
    left_out = [f"{step}: {reason}" for step, reason in timer.left_out.items()]
    written = [str(path) for path in (output_path, calibration_path, hardware_path) if path is not None]
    return MachineReport(
        machine.id,
        machine.name,
        precision,
        setup.software,
        bandwidth_bytes_per_s(probed, precision),
        peak_per_s(probed, precision),
        launch_s(probed),
        probed,
        fitted,
        held_out,
        points,
        calibration,
        left_out,
        written,
        disturbances,
    )


def _require_libraries() -> None:
    require("torch", "measuring this machine", "torch")
    for module in ("scipy", "tomli_w"):
        require(module, "fitting measurements", "calibrate")


def _effort(device: str, quick: bool) -> Effort:
    """Return how long each operation is timed."""
    effort = QUICK if quick else Effort()
    if device == "cuda":
        return msgspec.structs.replace(effort, warm_up_s=RISE_S)
    return effort


def _default_plans(device: str, quick: bool, phases: Sequence[str]) -> tuple[_Plan, _Plan]:
    """Return the steps to fit and the steps to hold out."""
    if not phases:
        phases = ("inference",) if quick else ("inference", "training")
    factor = _BATCH_SIZE_FACTOR[device]
    batch_sizes = [size * factor for size in ((1, 4) if quick else (1, 4, 8))]
    held_out_batch_sizes = [batch_sizes[0], 2 * batch_sizes[0], batch_sizes[1]]
    fitted_names = FITTED_QUICK if quick else FITTED
    held_out_names = HELD_OUT_QUICK if quick else HELD_OUT
    return _grid(fitted_names, batch_sizes, phases), _grid(held_out_names, held_out_batch_sizes, phases)


def _parse_steps(steps: Sequence[str]) -> _Plan:
    """Parse steps such as ``"resnet18:16:inference"``.

    Raises
    ------
    BadValue
        If a step is not a network, a batch size and a phase.
    """
    plan: _Plan = {}
    for text in steps:
        fields = text.split(":")
        is_valid = len(fields) == 3 and fields[1].isdecimal() and int(fields[1]) >= 1 and fields[2] in STEPS
        if not is_valid:
            raise BadValue(
                f"{text!r} is not a step: expected network, batch size and phase ({', '.join(STEPS)}), such as "
                "resnet18:16:inference"
            )
        name, batch_size, phase = fields
        plan.setdefault(find_network(name).name, []).append((phase, int(batch_size)))
    return plan


def _grid(names: Sequence[str], batches: Sequence[int], phases: Sequence[str]) -> _Plan:
    return {name: [(phase, size) for phase in phases for size in batches] for name in names}


def _prior_from_probes(machine: Device, precision: str, probed: Sequence[Probed], serial: bool) -> Prior:
    """Return the prior that follows from the timed operations."""
    base = device_prior(machine, precision)
    rates = rates_of(Machine(machine), precision)
    return narrow_by_probes(base, probed, rates, precision, launch_s(probed), serial)


def _ignore_step(description: str) -> None:
    pass


def _find_shipped_device(setup: Setup) -> Device | None:
    """Return the shipped device with the name of this GPU; None for a CPU, as its rates depend on the threads."""
    if setup.device == "cpu":
        return None
    name = setup.torch.cuda.get_device_name()
    try:
        device = find_device(name)
    except AmbiguousName as error:
        raise BadValue(f"{error}; give `--gpu`, or measure it with `--hardware-out`") from None
    except UnknownName:
        return None
    # The driver gives each die the name of its board; a program runs on one die.
    return device if device.parts is None else find_device(device.parts.device)


def _derive_device(
    setup: Setup, probed: Sequence[Probed], quick: bool, effort: Effort, hardware_path: Path | None
) -> Device:
    """Write a hardware file of this machine with its measured peaks, and read it."""
    import tomli_w

    description = describe(setup)
    peaks = {setup.precision: peak_per_s(probed, setup.precision)}
    if setup.precision != "fp32":  # elementwise operations run on the vector units
        products = [probe for probe in probes(quick, _BATCH_SIZE_FACTOR[setup.device]) if probe.is_product]
        with set_up(setup.device, "fp32", setup.threads) as plain:
            peaks["fp32"] = peak_per_s(run_probes(products, plain, effort), "fp32")
    on_cpu = setup.device == "cpu"
    fields = hardware_fields(
        description, make_device_id(description, setup.threads if on_cpu else None), peaks,
        bandwidth_bytes_per_s(probed, setup.precision), date.today().year, "cpu" if on_cpu else "die", setup.software,
    )  # fmt: skip
    text = f"# Measured by paleo-lite measure {__version__}; no data sheet.\n{tomli_w.dumps(fields)}".encode()
    with tempfile.TemporaryDirectory() as folder:
        path = hardware_path or Path(folder) / "machine.toml"
        save(path, text)
        return read_device(path)


class _Timer:
    """Times steps of networks, and records those that run out of memory."""

    def __init__(self, setup: Setup, device_id: str, effort: Effort, report_step: StepCallback) -> None:
        self.setup = setup
        self.device_id = device_id
        self.effort = effort
        self.report_step = report_step
        self.left_out: dict[str, str] = {}

    def time_plans(self, *plans: _Plan) -> list[list[TimedStep]]:
        """Time the steps of each plan; each step is the best of `ROUNDS` rounds through all plans."""
        timed: list[dict[tuple[str, str, int], list[Timing]]] = [{} for _ in plans]
        for number in range(ROUNDS):
            for timings, plan in zip(timed, plans):
                for name, steps in plan.items():
                    self.report_step(f"round {number + 1} of {ROUNDS}: {name}")
                    self._time_network(name, steps, timings)
        return [[self._make_step(key, best_of(timings)) for key, timings in plan.items()] for plan in timed]

    def _time_network(
        self, name: str, steps: Sequence[tuple[str, int]], timings: dict[tuple[str, str, int], list[Timing]]
    ) -> None:
        module = _build(name)
        for phase, batch_size in steps:
            try:
                timing = time_step(module, self.setup, phase, batch_size, effort=self.effort)
            except OutOfMemory as error:
                self.left_out[f"{name}, {phase}, batch {batch_size}"] = str(error)
            else:
                timings.setdefault((name, phase, batch_size), []).append(timing)

    def _make_step(self, key: tuple[str, str, int], timing: Timing) -> TimedStep:
        name, phase, batch_size = key
        measurement = Measurement(
            self.device_id, name, batch_size, phase, self.setup.precision, timing.median_s,
            framework=self.setup.software, source=f"paleo-lite measure {__version__}",
        )  # fmt: skip
        return TimedStep(measurement, timing)


def _build(name: str) -> Any:
    """Build a network with its initial weights; with values close to zero everywhere it would run slower."""
    from ..architectures.torch_import import import_torchvision

    return import_torchvision("measuring whole networks").models.get_model(name, weights=None)

"""`measure`: measure and calibrate the machine on which this runs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..architectures import find_network
from ..calibration.fit import calibrate, held_out_error
from ..calibration.measurements import FitOrigin, Measurement, format_csv, provenance_of
from ..calibration.pool import pool_prior
from ..calibration.prior import Prior, device_prior, narrow_by_probes
from ..calibration.store import make_calibration, write_calibration
from ..calibration.validate import predict_measured, prior_as_fit
from ..errors import AmbiguousName, BadValue, CalibrationFailed, UnknownName
from ..extras import require
from ..files import check_outputs, save, to_paths
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
from ..progress import announce
from ..questions.kind import make_function
from ..questions.measured import MeasuringQuestion
from ..questions.values import flatten
from ..reporting.measure import MachineReport, TimedStep
from ..reporting.tools import ToolReport
from ..timing.calibrated import rates_of
from ..version import __version__
from .measuring_tools import OF_TOOLS, measure_with_tools

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


class _Timed(NamedTuple):
    """What was timed on this machine."""

    machine: Device
    is_derived: bool  # whether the data of the machine was measured
    software: str
    probed: Sequence[Probed]
    fitted: list[TimedStep]
    held_out: list[TimedStep]
    left_out: dict[str, str]  # steps that ran out of memory, with the message
    disturbances: str


def answer(question: MeasuringQuestion) -> MachineReport | ToolReport:
    """Return what was measured of this machine, the calibration, and the check of its predictions.

    With `tools` it is what public benchmarks measured. Raise PaleoError for a missing extra, an unknown device or an
    existing output file.
    """
    if question.tools:
        return measure_with_tools(question)
    others = [name for name in question.given() if name in OF_TOOLS]
    if others:
        raise BadValue(f"`--{others[0]}` is for public benchmarks: name them with `--tools`")
    if question.gpu is not None and question.hardware_out is not None:
        raise BadValue("`--gpu` uses the data of a known device, `--hardware-out` measures it: give one of them")
    steps = [question.steps] if isinstance(question.steps, str) else question.steps
    if steps and question.phases:
        raise BadValue("a STEP includes its phase: leave `--phase` out")
    output_path, calibration_path, hardware_path = (
        None if path is None else Path(path)
        for path in (question.output, question.calibration_out, question.hardware_out)
    )
    chosen_steps = _parse_steps(steps)
    check_outputs(output_path, calibration_path, hardware_path, force=question.force)
    _require_libraries()
    timed = _time_steps(question, chosen_steps, hardware_path)
    machine, precision, held_out = timed.machine, question.precision, timed.held_out
    if not timed.fitted or not (held_out or chosen_steps):
        raise CalibrationFailed("the networks to measure do not fit into this device's memory: nothing to fit")
    execution = "compiled" if question.compiled else "eager"
    prior = None if timed.is_derived else pool_prior(machine, precision, execution)
    if prior is None:
        prior = _prior_from_probes(machine, precision, timed.probed, serial=question.device == "cpu")
    measurements, fit = calibrate([step.measurement for step in timed.fitted], machine, precision, prior)
    provenance = provenance_of(measurements, FitOrigin(date=date.today().isoformat(), version=__version__))
    error = held_out_error(measurements, machine, precision, prior)
    calibration = make_calibration(machine.id, precision, measurements, fit, provenance, error)
    if output_path is not None:
        save(output_path, format_csv(step.measurement for step in (*timed.fitted, *held_out)).encode())
    if chosen_steps:  # compare them with the prediction before they were measured
        held_out = timed.fitted
        fit = prior_as_fit(prior)
    points = predict_measured(fit, [step.measurement for step in held_out], machine, precision)
    if calibration_path is not None:
        write_calibration(calibration, calibration_path, question.force)
    return MachineReport(
        machine.id,
        machine.name,
        precision,
        timed.software,
        bandwidth_bytes_per_s(timed.probed, precision),
        peak_per_s(timed.probed, precision),
        launch_s(timed.probed),
        timed.probed,
        timed.fitted,
        held_out,
        points,
        calibration,
        [f"{step}: {reason}" for step, reason in timed.left_out.items()],
        [str(path) for path in (output_path, calibration_path, hardware_path) if path is not None],
        timed.disturbances,
    )


measure = make_function("measure", MeasuringQuestion, answer)


def _time_steps(question: MeasuringQuestion, chosen_steps: _Plan, hardware_path: Path | None) -> _Timed:
    """Time single operations, and the chosen steps or those of the default plans."""
    device, quick = question.device, question.quick
    effort = _effort(device, quick)
    machine = None if question.gpu is None else find_device(question.gpu, to_paths(question.hardware_files))
    load = describe_other_load()
    if load:
        announce(f"although {load}")
    with set_up(device, question.precision, question.threads, question.channels_last, question.compiled) as setup:
        announce("probes: matrix products, convolutions, memory streams, launches")
        probed = run_probes(probes(quick, _BATCH_SIZE_FACTOR[setup.device]), setup, effort)
        if machine is None and hardware_path is None:
            machine = _find_shipped_device(setup)
        is_derived = machine is None
        if machine is None:
            machine = _derive_device(setup, probed, quick, effort, hardware_path)
        timer = _Timer(setup, machine.id, effort)
        plans = (chosen_steps, {}) if chosen_steps else _default_plans(device, quick, flatten(question.phases))
        fitted, held_out = timer.time_plans(*plans)
        disturbances = "; ".join(text for text in (load, describe_throttling(setup)) if text)
    return _Timed(machine, is_derived, setup.software, probed, fitted, held_out, timer.left_out, disturbances)


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
    """Parse steps such as ``"resnet18:16:inference"``; raise BadValue for one without network, batch size and phase."""
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

    def __init__(self, setup: Setup, device_id: str, effort: Effort) -> None:
        self.setup = setup
        self.device_id = device_id
        self.effort = effort
        self.left_out: dict[str, str] = {}

    def time_plans(self, *plans: _Plan) -> list[list[TimedStep]]:
        """Time the steps of each plan; each step is the best of `ROUNDS` rounds through all plans."""
        timed: list[dict[tuple[str, str, int], list[Timing]]] = [{} for _ in plans]
        for number in range(ROUNDS):
            for timings, plan in zip(timed, plans):
                for name, steps in plan.items():
                    announce(f"round {number + 1} of {ROUNDS}: {name}")
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

"""What this machine does: `measure`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..architectures import find_network
from ..calibration.choose import pool_prior
from ..calibration.fit import calibrate, held_out_error
from ..calibration.measurements import Measurement, provenance_of, write_csv
from ..calibration.prior import Prior, device_prior, narrow_by_probes
from ..calibration.store import make_calibration, write_calibration
from ..calibration.validate import expected_from, predict_measured
from ..errors import AmbiguousName, BadValue, CalibrationFailed, UnknownName
from ..extras import need
from ..files import check_new, save
from ..machines import Device, Machine, find_device
from ..machines.registry import read_device
from ..measurement.clock import QUICK, RISE_S, ROUNDS, Effort, Timing, best_of
from ..measurement.machine import (
    bandwidth_bytes_per_s,
    describe,
    hardware,
    held_back,
    identity,
    launch_s,
    other_work,
    peak_per_s,
)
from ..measurement.running import STEPS, OutOfMemory, Probed, Setup, probes, run_probes, set_up, time_step
from ..reporting.measure import Measured, TimedStep
from ..timing.calibrated import rates_of
from ..version import __version__
from .question import Paths, asked, paths_of

FITTED = (
    "squeezenet1_1", "resnet18", "mobilenet_v2", "shufflenet_v2_x1_0", "alexnet", "densenet121", "resnext50_32x4d",
    "vgg11", "efficientnet_b0",
)  # fmt: skip
HELD_OUT = ("resnet50", "mnasnet1_0", "vgg13")
FITTED_QUICK = ("squeezenet1_1", "resnet18", "mobilenet_v2", "shufflenet_v2_x1_0", "densenet121", "resnext50_32x4d")
HELD_OUT_QUICK = ("resnet34", "mnasnet1_0")
"""Networks whose steps are fitted, between them every class of convolution; and those that are predicted, then run."""

_Plan = dict[str, list[tuple[str, int]]]
"""Phases and batch sizes of each network."""

_SCALE = {"cpu": 1, "cuda": 8}

Say = Callable[[str], None]
"""Told what is being measured."""


class _Steps(msgspec.Struct, frozen=True):
    steps: Sequence[str] = ()


class MeasureQuestion(_Steps, frozen=True, kw_only=True):
    """What `measure` is asked; see there."""

    device: str = "cpu"
    quick: bool = False
    threads: int | None = None
    precision: str = "fp32"
    phases: Sequence[str] = ()
    channels_last: bool = False
    compiled: bool = False
    gpu: str | None = None
    output: str | Path | None = None
    calibration_out: str | Path | None = None
    hardware_out: str | Path | None = None
    force: bool = False
    hardware_files: Paths = ()
    on_step: Say | None = None

    def __post_init__(self) -> None:
        if self.gpu is not None and self.hardware_out is not None:
            raise BadValue("--gpu takes the figures of a known device, --hardware-out measures them: give one")
        if self.steps and self.phases:
            raise BadValue("a STEP says its phase: leave --phase out")

    @property
    def files(self) -> list[Path | None]:
        """What is written: measurements, calibration, hardware."""
        return [None if path is None else Path(path) for path in (self.output, self.calibration_out, self.hardware_out)]

    @property
    def effort(self) -> Effort:
        """How long each time is taken."""
        effort = QUICK if self.quick else Effort()
        return msgspec.structs.replace(effort, warm_up_s=RISE_S) if self.device == "cuda" else effort

    def plans(self, chosen: _Plan) -> tuple[_Plan, _Plan]:
        """What is timed: to be fitted, and to be predicted first."""
        if chosen:
            return chosen, {}
        phases = tuple(self.phases) or (("inference",) if self.quick else ("inference", "training"))
        batches = [size * _SCALE[self.device] for size in ((1, 4) if self.quick else (1, 4, 8))]
        unseen = [batches[0], 2 * batches[0], batches[1]]
        return (
            _grid(FITTED_QUICK if self.quick else FITTED, batches, phases),
            _grid(HELD_OUT_QUICK if self.quick else HELD_OUT, unseen, phases),
        )


@partial(asked, MeasureQuestion)
def measure(question: MeasureQuestion) -> Measured:
    """Calibrate this machine: time operations and networks, fit, then predict other networks and run them.

    Parameters
    ----------
    steps : sequence of str
        Only these steps, such as ``"resnet18:16:inference"`` (network, batch size, phase), each beside what was
        expected of it: `paleo_lite.calibrate` with ``suggest`` says which are worth it.
    device : {"cpu", "cuda"}
        What to measure.
    quick : bool
        Less than a minute: fewer networks, inference alone, wider intervals.
    threads : int, optional
        Threads of the CPU; without it torch's own.
    precision : str
    phases : sequence of {"inference", "training"}
        Both without any.
    channels_last : bool
        Images as height, width, channels in memory.
    compiled : bool
        Networks through ``torch.compile``.
    gpu : str, optional
        Device that this is, where its own name does not say.
    output, calibration_out, hardware_out : path, optional
        A CSV of the measurements, a TOML of the calibration, a TOML of this machine with its peaks as measured; `force`
        replaces what is there.
    hardware_files : path, or sequence of paths
        Further hardware TOMLs.
    on_step : callable, optional
        Told what is being measured.

    Returns
    -------
    Measured

    Raises
    ------
    PaleoError
        One of its classes: a missing extra, an unknown device, a file that is there already.
    """
    output, calibration_out, hardware_out = question.files
    say, precision, quick, effort = question.on_step or _silent, question.precision, question.quick, question.effort
    chosen = _chosen(question.steps)
    check_new(*question.files, force=question.force)
    need("torch", "measuring this machine", "torch")
    for module in ("scipy", "tomli_w"):
        need(module, "fitting what was measured", "calibrate")
    known = None if question.gpu is None else find_device(question.gpu, paths_of(question.hardware_files))
    if busy := other_work():
        say(f"although {busy}")
    with set_up(question.device, precision, question.threads, question.channels_last, question.compiled) as setup:
        say("probes: matrix products, convolutions, memory streams, launches")
        probed = run_probes(probes(quick, _SCALE[setup.device]), setup, effort)
        machine, is_derived = known or (None if hardware_out else _known(setup)), False
        if machine is None:
            machine, is_derived = _derive(setup, probed, quick, effort, hardware_out), True
        timer = _Timer(setup, machine.id, effort, say)
        fitted, unseen = timer.rounds(*question.plans(chosen))
        busy = "; ".join(text for text in (busy, held_back(setup)) if text)
    if not fitted or not (unseen or chosen):
        raise CalibrationFailed("the networks to measure do not fit into this device's memory: nothing to fit")
    execution = "compiled" if question.compiled else "eager"
    prior = None if is_derived else pool_prior(machine, precision, execution)
    prior = prior or _from_probes(machine, precision, probed, serial=question.device == "cpu")
    measurements, fit = calibrate([step.measurement for step in fitted], machine, precision, prior)
    calibration = make_calibration(
        machine.id, precision, measurements, fit,
        provenance_of(measurements, date=date.today().isoformat(), version=__version__),
        held_out_error(measurements, machine, precision, prior),
    )  # fmt: skip
    if output is not None:
        save(output, write_csv(step.measurement for step in (*fitted, *unseen)).encode())
    # Chosen steps stand beside what was expected of them before they were run.
    unseen, basis = (fitted, expected_from(prior)) if chosen else (unseen, fit)
    points = predict_measured(basis, [step.measurement for step in unseen], machine, precision)
    if calibration_out is not None:
        write_calibration(calibration, calibration_out, question.force)
    return Measured(
        machine.id, machine.name, precision, setup.software, bandwidth_bytes_per_s(probed, precision),
        peak_per_s(probed, precision), launch_s(probed), probed, fitted, unseen, points, calibration,
        [f"{step}: {reason}" for step, reason in timer.left_out.items()],
        [str(path) for path in question.files if path is not None], busy,
    )  # fmt: skip


def _chosen(steps: Sequence[str]) -> _Plan:
    """The steps that were named.

    Raises
    ------
    BadValue
        If one is not a network, a batch size and a phase.
    """
    plan: _Plan = {}
    for text in steps:
        name, batch_size, phase = [*text.split(":"), "", ""][:3]
        if text.count(":") != 2 or not batch_size.isdecimal() or int(batch_size) < 1 or phase not in STEPS:
            raise BadValue(
                f"{text!r} is no step: expected network, batch size and phase ({', '.join(STEPS)}), such as "
                "resnet18:16:inference"
            )
        plan.setdefault(find_network(name).name, []).append((phase, int(batch_size)))
    return plan


def _grid(names: Sequence[str], batches: Sequence[int], phases: Sequence[str]) -> _Plan:
    return {name: [(phase, size) for phase in phases for size in batches] for name in names}


def _from_probes(machine: Device, precision: str, probed: Sequence[Probed], serial: bool) -> Prior:
    """What single operations on the machine say."""
    base, rates = device_prior(machine, precision), rates_of(Machine(machine), precision)
    return narrow_by_probes(base, probed, rates, precision, launch_s(probed), serial)


def _silent(text: str) -> None:
    """Who is not listening is told nothing."""


def _known(setup: Setup) -> Device | None:
    """The shipped device that this is; a CPU never: a program is given a part of one, and its threads count."""
    if setup.device == "cpu":
        return None
    name = setup.torch.cuda.get_device_name()
    try:
        device = find_device(name)
    except AmbiguousName as error:
        raise BadValue(f"{error}; --gpu says which, --hardware-out measures it anew") from None
    except UnknownName:
        return None
    # The driver calls each die of a board by the board's name; a program runs on one.
    return device if device.parts is None else find_device(device.parts.device)


def _derive(setup: Setup, probed: Sequence[Probed], quick: bool, effort: Effort, target: Path | None) -> Device:
    """The machine as its own hardware file, read back as any other would be."""
    import tomli_w

    seen = describe(setup)
    peaks = {setup.precision: peak_per_s(probed, setup.precision)}
    if setup.precision != "fp32":  # what is not multiplied and accumulated runs on the vector units
        products = [probe for probe in probes(quick, _SCALE[setup.device]) if probe.is_product]
        with set_up(setup.device, "fp32", setup.threads) as plain:
            peaks["fp32"] = peak_per_s(run_probes(products, plain, effort), "fp32")
    on_cpu = setup.device == "cpu"
    described = hardware(
        seen, identity(seen, setup.threads if on_cpu else None), peaks,
        bandwidth_bytes_per_s(probed, setup.precision), date.today().year, "cpu" if on_cpu else "die", setup.software,
    )  # fmt: skip
    text = f"# Measured by paleo-lite measure {__version__}; no data sheet.\n{tomli_w.dumps(described)}".encode()
    with tempfile.TemporaryDirectory() as folder:
        path = target or Path(folder) / "machine.toml"
        save(path, text)
        return read_device(path)


class _Timer:
    """Times steps of networks and remembers those that found no room."""

    def __init__(self, setup: Setup, device_id: str, effort: Effort, say: Say) -> None:
        self.setup, self.device_id, self.effort, self.say = setup, device_id, effort, say
        self.left_out: dict[str, str] = {}

    def rounds(self, *plans: _Plan) -> list[list[TimedStep]]:
        """The steps of each plan, the best of `ROUNDS`, each of which goes through all plans."""
        timed: list[dict[tuple[str, str, int], list[Timing]]] = [{} for _ in plans]
        for number in range(ROUNDS):
            for timings, plan in zip(timed, plans):
                for name, steps in plan.items():
                    self.say(f"round {number + 1} of {ROUNDS}: {name}")
                    self._network(name, steps, timings)
        return [[self._step(key, best_of(timings)) for key, timings in plan.items()] for plan in timed]

    def _network(
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

    def _step(self, key: tuple[str, str, int], timing: Timing) -> TimedStep:
        name, phase, batch_size = key
        measurement = Measurement(
            self.device_id, name, batch_size, phase, self.setup.precision, timing.median_s,
            framework=self.setup.software, source=f"paleo-lite measure {__version__}",
        )  # fmt: skip
        return TimedStep(measurement, timing)


def _build(name: str) -> Any:
    """A network with weights as training starts from: numbers near 0 throughout would run slower than real ones."""
    from ..architectures.torch_import import import_torchvision

    return import_torchvision("measuring whole networks").models.get_model(name, weights=None)

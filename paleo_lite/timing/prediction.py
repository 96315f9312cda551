"""`predict`, which times a workload on a machine, and `Prediction`, its result with the times of all layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..counting import GENERATION_PHASES, Layer
from ..counting.kinds import USER_RULES, missing_rules_note, user_rules_note
from ..errors import BadValue, UnknownName
from ..extras import require
from ..machines import Device, Machine, PeakRate
from ..machines.device import CLOCKS
from ..result import Result
from ..units import format_interval, format_si, parse_quantity
from ..version import __version__
from .activity import Activity, Shares, divide_time, layers_peak_s
from .energy import Power, power_under
from .facility import Facility, SiteEnergy
from .generating import STATIC_BATCH_NOTE, generation_dict, tokens_per_s
from .models import DIRECT_PRECISIONS, QUANTILES, PeakModel, RooflineModel, Terms, TimeModel, interval_of
from .power import MIN_FRACTION, limited_fraction, sustained_fraction
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .budget import Budget, TrainingRun
    from .memory import MemoryFit


def predict(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Predict the time of a workload on a machine, with its lower bound."""
    prediction = _time_workload(workload, machine, model)
    bound = RooflineModel() if workload.has_layers else PeakModel()
    if model.is_forecast:
        bound_terms = _time_workload(workload, machine, bound).terms
        prediction = msgspec.structs.replace(prediction, bound_terms=bound_terms)
        if prediction.time_s < bound_terms.time_s:
            note = _faster_than_bound_note(prediction)
            prediction = msgspec.structs.replace(prediction, notes=(*prediction.notes, note))
    if machine.board is not None:
        board = Machine(machine.board, machine.clock, machine.unit)
        board_bound_s = _time_workload(workload, board, bound).time_s
        prediction = msgspec.structs.replace(prediction, board_bound_s=board_bound_s)
    return prediction


def _time_workload(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time the passes of the phase by one model, and assemble a training step from them."""
    if model.needs_bytes and not workload.has_layers:
        raise BadValue(f"the {model.name} model requires a network: use the peak or ppp model for a FLOP count alone")
    whole_step = workload
    if workload.training is not None:
        from .training import assemble_step, micro_batch  # imported only for training steps

        workload = micro_batch(workload, machine)
    work, phase, batch_size = workload.work, workload.phase, workload.batch_size
    counts = work.counts_by_pass(phase, batch_size)
    terms = model.evaluate(workload, machine)
    if workload.has_layers:
        macs = work.column("macs", phase, batch_size)
        moved_bytes = work.column("bytes", phase, batch_size)
        kernels = int(work.column("kernels", phase, batch_size).sum())
    else:
        macs = moved_bytes = np.zeros((1, 1), dtype=np.int64)
        kernels = None
    prediction = Prediction(
        workload,
        machine,
        model,
        terms,
        counts_by_pass=counts,
        macs_by_pass=macs,
        bytes_by_pass=moved_bytes,
        matrix=work.matrix,
        kernels=kernels,
        notes=_notes(workload, machine, model, terms),
    )
    return prediction if whole_step.training is None else assemble_step(prediction, whole_step)


def _notes(workload: Workload, machine: Machine, model: TimeModel, terms: Terms) -> tuple[str, ...]:
    """Return the caveats of a prediction: of the network, the model, the machine's figures, and the count."""
    work, device, precision, phase = workload.work, machine.device, workload.precision, workload.phase
    notes = list(workload.network.notes)
    if workload.has_layers:
        notes += model.notes
    peak = machine.peak(precision)
    if device.parts is not None:
        notes.append(
            f"{device.name} is {device.parts.count} devices on one {device.scope}; a program that uses one of them "
            f"runs on {device.parts.device}"
        )
    if peak.peak.unverified:
        notes.append(f"the {peak.describe()} could not be checked against a primary source")
    notes += setting_notes(machine, model)
    if not workload.has_layers:
        return tuple(notes)
    if phase in GENERATION_PHASES:
        notes.append(STATIC_BATCH_NOTE)
    is_language_model = phase in GENERATION_PHASES or (phase == "training" and workload.network.blocks)
    if is_language_model and precision == "fp32":
        supported = {peak.precision for peak in device.peaks}
        narrow = [name for name in ("bf16", "fp16") if name in supported]
        if narrow:
            notes.append(f"in fp32; language models are usually run in 16 bits: `--precision {narrow[0]}`")
    if work.convention.unit != "FLOP" and model.uses_convention_count:  # a FLOP count is consistent with the peak
        notes.append(
            f"the {work.convention.name} convention counts a multiply-accumulate as 1, the peak counts it as 2: "
            "compute times are too short by about half"
        )
    if work.unknown:
        notes.append(missing_rules_note(work.unknown))
    if USER_RULES:
        user_note = user_rules_note(work.kinds)
        if user_note:
            notes.append(user_note)
    vector_peak = machine.vector_peak(precision)
    matrix_peak = model.peak(machine, precision).peak
    if (vector_peak.peak.precision, vector_peak.peak.unit) != (matrix_peak.precision, matrix_peak.unit):
        notes.append(
            f"operations other than convolution, linear, matmul and attention use the {vector_peak.describe()}"
        )
    if terms.host_slowdown > 1.05:
        notes.append(
            f"the device waits for the host to launch kernels: the step takes {terms.host_slowdown:.2g} times as long"
        )
    return tuple(notes)


def setting_notes(machine: Machine, model: TimeModel) -> list[str]:
    """Return notes on a requested clock or power limit that the device does not have, or that changes nothing."""
    return [*clock_notes(machine), *limit_notes(machine.device, model)]


def clock_notes(machine: Machine) -> list[str]:
    """Return a note on a requested clock that the device does not have."""
    device = machine.device
    boost_hz = device.clock_hz("boost")
    if machine.clock is not None and machine.clock not in CLOCKS and boost_hz is not None:
        clock_hz = parse_quantity(machine.clock, "Hz")
        if clock_hz > boost_hz:
            return [
                f"the clock {format_si(clock_hz, 'Hz')} is above the boost clock of {device.name}, "
                f"{format_si(boost_hz, 'Hz')}: only an overclocked device reaches it"
            ]
    return []


def limit_notes(device: Device, model: TimeModel) -> list[str]:
    """Return a note on a requested power limit: what it leaves of the speed, or why it changes nothing."""
    notes: list[str] = []
    limit_w, rated_w = device.requested_power_limit_w, device.rated_power_w
    if limit_w is None:
        return notes
    if not slows_under_power_limit(model):
        notes.append(f"the {model.name} model does not depend on the power limit")
    elif device.rated_power is None or rated_w is None:
        notes.append(f"the power limit changes nothing: that of the data sheet of {device.name} is unknown")
    elif limit_w > rated_w:
        notes.append(
            f"the power limit {limit_w:g} W is above that of the data sheet, {rated_w:g} W: "
            f"the times are those at {rated_w:g} W"
        )
    elif limited_fraction(device) <= MIN_FRACTION:
        notes.append(
            f"the power limit {limit_w:g} W is too low for {device.name} ({rated_w:g} W): "
            f"the times assume {MIN_FRACTION:.0%} of its speed"
        )
    elif limited_fraction(device) < 1:
        notes.append(f"the power limit {limit_w:g} W leaves {limited_fraction(device):.0%} of the speed of the kernels")
    return notes


def slows_under_power_limit(model: TimeModel) -> bool:
    """Return whether the times of a model depend on the power limit; bounds and the ppp model assume the peak clock."""
    return model.is_forecast and model.ppp is None


def _faster_than_bound_note(prediction: Prediction) -> str:
    """Return the reasons why a forecast is faster than the bound, from the layers that are."""
    from ..counting.algorithms import algorithms_of

    ppp = prediction.model.ppp
    if ppp is not None and ppp > 1:
        return f"faster than the bound: the PPP of {ppp:.4g} is above 1"
    peak, reasons = prediction.peak.peak, dict[str, None]()
    for row, layer in zip(prediction.rows(), prediction.layers):
        if row["time_s"] >= row["bound_s"]:
            continue
        if len(algorithms_of(layer, prediction.batch_size, prediction.precision, peak.unit)) > 1:
            reasons["convolutions by an algorithm with fewer multiplications"] = None
        elif layer.attributes.get("causal"):
            reasons["attention without its masked scores"] = None
        else:
            reasons["clocks above that of the data sheet in measurements of such devices"] = None
    return f"faster than the bound: {'; '.join(reasons)}"


class DerivedQuantities(NamedTuple):
    """Quantities derived from a prediction.

    Attributes
    ----------
    flops : int
        Count in the workload's convention.
    macs, bytes, parameters : int or None
        Multiply-accumulates; bytes read and written; parameters of the network. None for a FLOP count alone.
    intensity : float or None
        Arithmetic intensity in FLOPs per byte.
    peak, vector_peak : PeakRate
        Peak rates of multiply-accumulates and of all other arithmetic.
    ridge_point : float
        Intensity in FLOPs per byte at which arithmetic and memory traffic take equally long at peak.
    bound_s : float
        Lower bound in seconds: the roofline, or FLOPs / peak for a FLOP count alone.
    throughput_per_s : float or None
        Samples per second on one device; None if the time is 0.
    mfu : float or None
        Model FLOP/s utilization: FLOPs over peak, over the time; None if the time is 0. Chowdhery et al. 2022 (PaLM,
        appendix B), but including recomputed FLOPs; None in a convention that counts a multiply-accumulate as 1.
    interval : tuple of float or None
        90% interval of the time in seconds; None for models without intervals.
    intervals : dict
        Intervals by level in percent, ``"80"`` and ``"90"``; empty for models without intervals.
    board : dict or None
        For a board of several devices: throughput of all devices, each with its own batch, and the board's bound.
    """

    flops: int
    macs: int | None
    bytes: int | None
    parameters: int | None
    intensity: float | None
    peak: PeakRate
    vector_peak: PeakRate
    bandwidth_bytes_per_s: float
    ridge_point: float
    bound_s: float
    throughput_per_s: float | None
    mfu: float | None
    interval: tuple[float, float] | None
    intervals: dict[str, tuple[float, float]]
    board: dict[str, Any] | None


class Prediction(Result, msgspec.Struct, frozen=True, eq=False, dict=True):
    """Predicted time of a workload on a machine, with the times and counts of all layers.

    Attributes
    ----------
    workload : Workload
        Predicted workload; its batch size is that of the whole step.
    terms : Terms
        Seconds by pass and layer.
    counts_by_pass, macs_by_pass, bytes_by_pass : ndarray of int, shape (passes, layers)
        Counts in the workload's convention, MACs and bytes, of the passes in `terms`.
    matrix : ndarray of bool, shape (layers,)
        Whether a layer uses `peak` rather than `vector_peak`.
    kernels : int or None
        Number of kernel launches; None for a FLOP count alone.
    notes : tuple of str
        Caveats.
    memory : MemoryFit or None
        Peak memory compared with the device's; None if it was not requested.
    bound_terms : Terms or None
        Terms of the lower bound; None if the model itself is a bound.
    board_bound_s : float or None
        Bound of all devices of a board, if they shared the work; None for single devices.
    budget : Budget or None
        Amount of training, for hours, cost and energy; None if it was not requested.
    facility : Facility or None
        What surrounds the devices; None if it was not requested.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.predictions:prediction_page"

    workload: Workload
    machine: Machine
    model: TimeModel
    terms: Terms
    counts_by_pass: NDArray[np.int64]
    macs_by_pass: NDArray[np.int64]
    bytes_by_pass: NDArray[np.int64]
    matrix: NDArray[np.bool_]
    kernels: int | None
    notes: tuple[str, ...] = ()
    memory: MemoryFit | None = None
    bound_terms: Terms | None = None
    board_bound_s: float | None = None
    budget: Budget | None = None
    facility: Facility | None = None

    # Properties of the workload, the machine and the derived quantities.

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.workload.network.name

    @property
    def device(self) -> Device:
        """Device that the workload runs on."""
        return self.machine.device

    @property
    def precision(self) -> str:
        """Precision of the network."""
        return self.workload.precision

    @property
    def phase(self) -> str:
        """Phase of the workload."""
        return self.workload.phase

    @property
    def batch_size(self) -> int:
        """Batch size of the step."""
        return self.workload.batch_size

    @property
    def convention(self) -> str:
        """Counting convention."""
        return self.workload.convention

    @property
    def execution(self) -> str:
        """Execution of the kernels."""
        return self.workload.execution

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers of the network; empty for a FLOP count alone."""
        return self.workload.layers

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return self.workload.work.names

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the layers."""
        return self.workload.work.kinds

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Peak memory bandwidth in bytes per second."""
        return self.derived.bandwidth_bytes_per_s

    @property
    def time_s(self) -> float:
        """Predicted time in seconds."""
        return self.terms.time_s

    @property
    def sustained_fraction(self) -> float:
        """Clock that the device sustains in matrix products under its power limit, relative to that of its peak."""
        return sustained_fraction(self.device, self.peak)

    @cached_property
    def activity(self) -> Activity:
        """What the device does in the step."""
        return self.terms.activity(float(self._layers_peak_s.sum()))

    @property
    def _layers_peak_s(self) -> NDArray[np.float64]:
        """Seconds of each layer's arithmetic at the peak of the data sheet, as `Activity.peak_s`, shape (layers,)."""
        return layers_peak_s(self.bound_terms or self.terms, self.workload, self.device)

    @cached_property
    def power(self) -> Power | None:
        """What the device draws; None if its power limit or process is unknown."""
        relative_clock = 1.0
        if self.machine.clock is not None:
            default_machine = msgspec.structs.replace(self.machine, clock=None)
            relative_clock = self.peak.per_s / self.model.peak(default_machine, self.precision).per_s
        return power_under(self.model, self.device, relative_clock)

    @property
    def shares(self) -> Shares:
        """Shares of the time in which the device does one thing or another."""
        return Shares(*(float(share) for share in self.activity.shares_of(self.time_s)))

    @property
    def power_w(self) -> float | None:
        """Average power of the device in watts; None if its power limit or process is unknown, or the time is 0."""
        return None if self.power is None or not self.time_s else float(self.power.watts(self.shares))

    @property
    def power_interval_w(self) -> tuple[float, float] | None:
        """90% interval of the power in watts; None if the power is unknown."""
        if self.power is None or not self.time_s:
            return None
        low_w, high_w = self.power.interval_w(self.shares)
        return float(low_w), float(high_w)

    @property
    def energy_j(self) -> float | None:
        """Energy of the step in joules, of the device alone; None if its power limit or process is unknown."""
        return None if self.power_w is None else self.power_w * self.time_s

    @property
    def site(self) -> SiteEnergy | None:
        """Energy of the step at the meter, and what it costs; None if it was not requested, or the power is unknown."""
        if self.facility is None or self.energy_j is None:
            return None
        return self.facility.site_energy(self.energy_j, self.time_s)

    @property
    def energy_interval_j(self) -> tuple[float, float] | None:
        """90% interval of the energy in joules, from those of the time and of the power; None without one."""
        if self.power is None or self.interval is None or not self.time_s:
            return None
        return self.power.energy_interval_j(self.activity, self.time_s, self.interval)

    @property
    def is_forecast(self) -> bool:
        """Whether the time is a forecast; otherwise it is a bound."""
        return self.model.is_forecast

    @property
    def flops(self) -> int:
        """FLOPs in the workload's convention."""
        return self.derived.flops

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates; None for a FLOP count alone."""
        return self.derived.macs

    @property
    def bytes(self) -> int | None:
        """Bytes read and written; None for a FLOP count alone."""
        return self.derived.bytes

    @property
    def parameters(self) -> int | None:
        """Number of parameters; None for a FLOP count alone."""
        return self.derived.parameters

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOPs per byte."""
        return self.derived.intensity

    @property
    def peak(self) -> PeakRate:
        """Peak rate of multiply-accumulates."""
        return self.derived.peak

    @property
    def vector_peak(self) -> PeakRate:
        """Peak rate of all other arithmetic."""
        return self.derived.vector_peak

    @property
    def ridge_point(self) -> float:
        """Intensity at which arithmetic and memory traffic take equally long, in FLOPs per byte."""
        return self.derived.ridge_point

    @property
    def bound_s(self) -> float:
        """Lower bound of the time in seconds."""
        return self.derived.bound_s

    @property
    def throughput_per_s(self) -> float | None:
        """Samples per second on one device; None if the time is 0."""
        return self.derived.throughput_per_s

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s utilization; None if the time is 0 or the convention does not count FLOPs."""
        return self.derived.mfu

    @property
    def interval(self) -> tuple[float, float] | None:
        """90% interval of the time in seconds; None for models without intervals."""
        return self.derived.interval

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals by level in percent; empty for models without intervals."""
        return self.derived.intervals

    @property
    def board(self) -> dict[str, Any] | None:
        """Throughput and bound of a board of several devices; None for single devices."""
        return self.derived.board

    @cached_property
    def derived(self) -> DerivedQuantities:
        """Derived quantities, computed once."""
        workload, machine, terms = self.workload, self.machine, self.terms
        precision, time_s, has_layers = workload.precision, self.time_s, workload.has_layers
        peak = self.model.peak(machine, precision)
        bandwidth_bytes_per_s = machine.device.bandwidth_bytes_per_s
        flops = int(self.counts_by_pass.sum())
        moved_bytes = int(self.bytes_by_pass.sum()) if has_layers else None
        throughput_per_s = workload.batch_size / time_s if time_s else None
        mfu = None
        if time_s and workload.work.convention.unit == "FLOP":
            mfu = flops / peak.per_s / time_s
        intervals = {}
        if terms.deviation is not None:
            for level in QUANTILES:
                low_s, high_s = interval_of(time_s, terms.deviation, level)
                if precision in DIRECT_PRECISIONS and self.bound_terms is not None:
                    low_s = min(max(low_s, self.bound_terms.time_s), time_s)
                intervals[f"{level:.0%}".rstrip("%")] = (low_s, high_s)
        board = None
        if machine.board is not None:
            board_throughput_per_s = None
            if throughput_per_s is not None:
                board_throughput_per_s = machine.device_count * throughput_per_s
            board = {
                "gpu": machine.board.id,
                "devices": machine.device_count,
                "throughput_per_s": board_throughput_per_s,
                "bound_s": self.board_bound_s,
            }
        return DerivedQuantities(
            flops=flops,
            macs=int(self.macs_by_pass.sum()) if has_layers else None,
            bytes=moved_bytes,
            parameters=workload.network.parameters if has_layers else None,
            intensity=flops / moved_bytes if moved_bytes else None,
            peak=peak,
            vector_peak=machine.vector_peak(precision) if has_layers else peak,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            ridge_point=peak.per_s / bandwidth_bytes_per_s,
            bound_s=(self.bound_terms or terms).time_s,
            throughput_per_s=throughput_per_s,
            mfu=mfu,
            interval=intervals.get("90"),
            intervals=intervals,
            board=board,
        )

    @property
    def calibration(self) -> str | None:
        """Label of the calibration of the model's parameters; None for models without."""
        return self.model.label or None

    @property
    def run(self) -> TrainingRun | None:
        """Hours, cost and energy of the amount of training; None without one."""
        if self.budget is None:
            return None
        from .budget import training_run

        power_w, interval_w = self.power_w or self.device.power_w, self.power_interval_w
        return training_run(self.budget, self.time_s, self.interval, self.batch_size, 1, power_w, interval_w)

    @property
    def trainable_parameters(self) -> int | None:
        """Number of parameters that a training step updates; None in phases without an update."""
        return self.workload.trainable_parameters if self.phase == "training" else None

    @property
    def passes_s(self) -> dict[str, float]:
        """Seconds by pass, with both gradients as ``backward``, and the overhead; they add up to the time."""
        seconds: dict[str, float] = {}
        for name in self.terms.passes:
            shown = "backward" if name.startswith("backward") else name
            seconds[shown] = seconds.get(shown, 0.0) + float(self.terms.seconds_of(name).sum())
        return {**seconds, "overhead": self.terms.overhead_s}

    @property
    def waiting_s(self) -> dict[str, float]:
        """Seconds of each of `passes_s` in which the device waits for the host."""
        waiting = 1 - 1 / self.terms.host_slowdown
        return {name: 0.0 if name == "overhead" else seconds * waiting for name, seconds in self.passes_s.items()}

    def peak_of(self, part: str, layer: int) -> PeakRate:
        """Return the peak rate of a layer's arithmetic in a pass."""
        return self.peak if self.matrix[layer] and part != "update" else self.vector_peak

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one dict per layer: name, kind, flops (None without a counting rule), bytes, time_s, bound_s, bound.

        The last is ``compute``, ``memory``, ``nothing`` (the layer takes no time), ``fused`` (into another layer) or
        ``unknown`` (no counting rule).
        """
        terms, work = self.terms, self.workload.work
        flops, moved_bytes = self.counts_by_pass.sum(0), self.bytes_by_pass.sum(0)
        layers_s = terms.layers_s.sum(0)
        bound_s = (self.bound_terms or terms).layers_s.sum(0)
        # With several passes, the bound of the larger part of the time.
        signed_s = np.where(terms.compute_s >= terms.memory_s, terms.layers_s, -terms.layers_s).sum(0)
        is_memory_bound = (signed_s < 0) & self.model.uses_memory
        for index, name in enumerate(self.names):
            bound = "memory" if is_memory_bound[index] else "compute"
            if not work.counted[index]:
                bound = "unknown"
            elif work.carrier is not None and work.carrier[index] != index:
                bound = "fused"
            elif not layers_s[index]:
                bound = "nothing"
            yield {
                "name": name,
                "kind": self.kinds[index],
                "flops": int(flops[index]) if work.counted[index] else None,
                "bytes": int(moved_bytes[index]),
                "time_s": float(layers_s[index]),
                "bound_s": float(bound_s[index]),
                "bound": bound,
            }

    def bound(self, layer: int) -> str:
        """Return the bound of a layer, as in `rows`."""
        return str(list(self.rows())[layer]["bound"])

    @property
    def layers_energy_j(self) -> NDArray[np.float64] | None:
        """Joules of each layer, shape (layers,); None if the power is unknown.

        The energy of the step is divided in proportion to what the layers would draw alone, without a limit; the
        overhead of the step draws idle power.
        """
        power, terms = self.power, self.terms
        if power is None or self.energy_j is None:
            return None
        floor_s = 0.0 if terms.floor_s is None else terms.floor_s
        divided = divide_time(terms.layers_s / terms.host_slowdown, terms.compute_s, terms.memory_s, floor_s)
        arithmetic_s, memory_s = (seconds.sum(axis=0) for seconds in divided)
        layers_s = terms.layers_s.sum(axis=0)
        activity = Activity(arithmetic_s, memory_s, peak_s=self._layers_peak_s)
        demand_j = power.demand_w(activity.shares_of(layers_s)) * layers_s
        energy_j: NDArray[np.float64] = self.energy_j * demand_j / (demand_j.sum() + power.idle_w * terms.overhead_s)
        return energy_j

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Return layers, flops, bytes, time_s, energy_j and share of the time for each kind of layer, longest first."""
        energy_j = self.layers_energy_j
        kinds: dict[str, dict[str, Any]] = {}
        for index, row in enumerate(self.rows()):
            entry = kinds.setdefault(row["kind"], {"layers": 0, "flops": 0, "bytes": 0, "time_s": 0.0})
            entry["layers"] += 1
            if energy_j is not None:
                entry["energy_j"] = entry.get("energy_j", 0.0) + float(energy_j[index])
            for key in ("flops", "bytes", "time_s"):
                entry[key] = None if row[key] is None or entry[key] is None else entry[key] + row[key]
        for entry in kinds.values():
            entry.setdefault("energy_j", None)
            entry["share"] = entry["time_s"] / self.time_s if self.time_s else 0.0
        return dict(sorted(kinds.items(), key=lambda item: (-item[1]["time_s"], item[0])))

    def layer_index(self, name: str) -> int:
        """Return the index of a layer.

        Raises
        ------
        UnknownName
            If there is no such layer.
        """
        if name not in self.names:
            raise UnknownName(f"layer of {self.network}", name, self.names)
        return self.names.index(name)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON, with stable names and SI units."""
        return {
            "network": self.network,
            "gpu": self.device.id,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "phase": self.phase,
            "time_model": self.model.name,
            "calibration": self.calibration,
            "is_forecast": self.is_forecast,
            "convention": self.convention,
            "clock": self.peak.clock,
            "flops": self.flops,
            "macs": self.macs,
            "bytes": self.bytes,
            "parameters": self.parameters,
            "trainable_parameters": self.trainable_parameters,
            "peak_flops": self.peak.per_s,
            "peak_unit": self.peak.peak.unit,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "ppp": self.model.ppp,
            "intensity": self.intensity,
            "ridge_point": self.ridge_point,
            "time_s": self.time_s,
            "bound_s": self.bound_s,
            "throughput_per_s": self.throughput_per_s,
            "tokens_per_s": tokens_per_s(self),
            "generating": generation_dict(self),
            "passes_s": self.passes_s,
            "waiting_s": self.waiting_s,
            "mfu": self.mfu,
            "power_w": self.power_w,
            "power_interval_w": None if self.power_interval_w is None else list(self.power_interval_w),
            "energy_j": self.energy_j,
            "energy_interval_j": self.energy_interval_j,
            "site": None if self.site is None else self.site.to_dict(),
            "sustained_fraction": self.sustained_fraction,
            "constant_s": self.terms.overhead_s,
            "interval": None if self.interval is None else list(self.interval),
            "execution": self.execution,
            "kernels": self.kernels,
            "intervals": {level: list(interval) for level, interval in self.intervals.items()} or None,
            "memory": None if self.memory is None else self.memory.to_dict(),
            "fits": None if self.memory is None else self.memory.fits,
            "board": self.board,
            "run": None if self.run is None else self.run.to_dict(),
            "version": __version__,
            "notes": list(self.notes),
            "by_kind": self.by_kind(),
            "layers": list(self.rows()),
        }

    def to_frame(self) -> Any:
        """Return the layers as a pandas DataFrame, with a row for the overhead; the times add up to the predicted one.

        Quantities of the whole prediction, such as the calibration and the bound, are in its ``attrs``.

        Raises
        ------
        MissingExtra
            If pandas is not installed.
        """
        columns = ["name", "kind", "flops", "bytes", "time_s", "bound_s", "bound"]
        frame = require("pandas", "a data frame", "profiles").DataFrame(list(self.steps()), columns=columns)
        frame.attrs = {key: value for key, value in self.to_dict().items() if key not in ("layers", "by_kind")}
        return frame

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of all layers, and one for the overhead if any; the times add up to the predicted time."""
        yield from self.rows()
        if self.terms.overhead_s:
            yield {
                "name": "overhead",
                "kind": "overhead",
                "time_s": self.terms.overhead_s,
                "bound_s": 0.0,
                "bound": "host",
            }

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        throughput = self.throughput_per_s
        return [
            ("network", self.network),
            ("gpu", self.device.id),
            ("precision", self.precision),
            ("batch_size", self.batch_size),
            ("phase", self.phase),
            ("time_model", self.model.name),
            ("time", format_si(self.time_s, "s")),
            ("interval", None if self.interval is None else format_interval(self.interval)),
            ("bound", format_si(self.bound_s, "s")),
            ("throughput", "-" if throughput is None else f"{throughput:.5g} per s"),
        ]

    def __repr__(self) -> str:
        return f"Prediction({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

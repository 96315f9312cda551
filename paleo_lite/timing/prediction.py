"""From a workload and a machine to a `Prediction`: how long, layer by layer, and what it was computed from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..counting import GENERATION_PHASES, Layer
from ..counting.kinds import USER_RULES, missing_rules_note, user_rules_note
from ..errors import BadValue, UnknownName
from ..extras import require
from ..machines import Device, Machine, PeakRate
from ..result import Result
from ..units import format_interval, format_si
from ..version import __version__
from .generating import STATIC_BATCH_NOTE, generation_dict, tokens_per_s
from .models import QUANTILES, PeakModel, RooflineModel, Terms, TimeModel, interval_of
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .memory import MemoryFit


def predict(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time a workload on a machine."""
    prediction = _timed(workload, machine, model)
    bound = RooflineModel() if workload.has_layers else PeakModel()
    if model.is_forecast:
        at_least = _timed(workload, machine, bound).terms
        prediction = msgspec.structs.replace(prediction, bound_terms=at_least)
        if prediction.time_s < at_least.time_s:
            prediction = msgspec.structs.replace(
                prediction, notes=(*prediction.notes, _faster_than_bound_note(prediction))
            )
    if machine.board is not None:
        whole = Machine(machine.board, machine.clock, machine.unit)
        prediction = msgspec.structs.replace(prediction, board_bound_s=_timed(workload, whole, bound).time_s)
    return prediction


def _timed(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time the passes of the phase, and what a training step makes of them, by one model."""
    if model.needs_bytes and not workload.has_layers:
        raise BadValue(f"the {model.name} model needs the bytes of a network: a bare FLOP count takes peak or ppp")
    asked = workload
    if workload.training is not None:
        from .training import assemble_step, micro_batch  # with what it needs, and only then

        workload = micro_batch(workload, machine)
    work, phase, batch_size = workload.work, workload.phase, workload.batch_size
    counts = work.counts_by_pass(phase, batch_size)
    terms = model.evaluate(workload, machine)
    none = np.zeros((1, 1), dtype=np.int64)
    passes = Prediction(
        workload,
        machine,
        model,
        terms,
        counts_by_pass=counts,
        macs_by_pass=work.column("macs", phase, batch_size) if workload.has_layers else none,
        bytes_by_pass=work.column("bytes", phase, batch_size) if workload.has_layers else none,
        matrix=work.matrix,
        kernels=int(work.column("kernels", phase, batch_size).sum()) if workload.has_layers else None,
        notes=_notes(workload, machine, model, terms),
    )
    return passes if asked.training is None else assemble_step(passes, asked)


def _notes(workload: Workload, machine: Machine, model: TimeModel, terms: Terms) -> tuple[str, ...]:
    """What somebody who uses the number should know: of network and model, the machine's figures, and the count."""
    work, device, precision, phase = workload.work, machine.device, workload.precision, workload.phase
    notes = [*workload.network.notes, *(model.notes if workload.has_layers else ())]
    peak, vector = machine.peak(precision), machine.vector_peak(precision) if workload.has_layers else None
    if device.parts is not None:
        notes.append(
            f"{device.name} is {device.parts.count} devices on one {device.scope}; a program that uses one of them "
            f"gets {device.parts.device}"
        )
    if peak.peak.unverified:
        notes.append(f"the {peak.describe()} could not be checked against a primary source")
    if vector is None:
        return tuple(notes)
    if phase in GENERATION_PHASES:
        notes.append(STATIC_BATCH_NOTE)
    is_large = phase in GENERATION_PHASES or (phase == "training" and workload.network.blocks)
    if is_large and precision == "fp32":
        narrow = [name for name in ("bf16", "fp16") if any(one.precision == name for one in device.peaks)]
        if narrow:
            notes.append(f"in fp32: language models mostly run in 16 bits, --precision {narrow[0]}")
    if work.convention.unit != "FLOP" and model.uses_convention_count:  # a convention in FLOPs goes with the peak
        notes.append(
            f"the {work.convention.name} convention counts a multiply-accumulate as 1, the peak counts it as 2: "
            "compute times come out about half as long as they should"
        )
    if work.unknown:
        notes.append(missing_rules_note(work.unknown))
    if USER_RULES and (own := user_rules_note(work.kinds)):
        notes.append(own)
    held = model.peak(machine, precision).peak
    if (vector.peak.precision, vector.peak.unit) != (held.precision, held.unit):
        notes.append(f"all but convolution, linear, matmul and attention are held against the {vector.describe()}")
    if terms.host_slowdown > 1.05:
        notes.append(
            f"the host launches kernels more slowly than the device runs them: {terms.host_slowdown:.2g} times as long"
        )
    return tuple(notes)


def _faster_than_bound_note(prediction: Prediction) -> str:
    """Why a forecast may beat the data sheet's bound: by the layers that do."""
    from ..counting.algorithms import algorithms_of

    peak, reasons = prediction.peak.peak, dict[str, None]()
    for row, layer in zip(prediction.rows(), prediction.layers):
        if row["time_s"] >= row["bound_s"]:
            continue
        if len(algorithms_of(layer, prediction.batch_size, prediction.precision, peak.unit)) > 1:
            reasons["convolutions by an algorithm with fewer multiplications"] = None
        elif layer.attributes.get("causal"):
            reasons["attention without the scores that its mask hides"] = None
        else:
            reasons["such devices were measured above the clock of the data sheet"] = None
    return f"faster than the bound: {'; '.join(reasons)}"


class DerivedQuantities(NamedTuple):
    """What a prediction comes to.

    Attributes
    ----------
    flops : int
        The count, in the convention.
    macs, bytes, parameters : int or None
        Multiply-accumulates; bytes read and written; of the network; None where only a FLOP count was given.
    intensity : float or None
        Arithmetic intensity, FLOPs per byte.
    peak, vector_peak : PeakRate
        The peaks that multiply-accumulates and all other arithmetic are held against.
    ridge_point : float
        The intensity, FLOPs per byte, at which arithmetic and memory traffic take equally long at peak.
    bound_s : float
        Seconds that the data sheet allows: the roofline's, or FLOPs / peak for a bare count.
    throughput_per_s : float or None
        Samples per second on one device; None where nothing takes time.
    mfu : float or None
        Model FLOP/s utilisation: FLOPs over the peak, over the time; None where nothing takes time. Chowdhery et al.
        2022 (PaLM, appendix B), here of all FLOPs, those of what is computed again too; None in a convention that
        counts a multiply-accumulate as 1.
    interval : tuple of float or None
        Seconds between which the time lies at 90%; None for models that do not say.
    intervals : dict
        The same for each level in percent, ``"80"`` and ``"90"``; empty for models that do not say.
    board : dict or None
        Of a board of several devices what all do at once, each its own batch; and what the data sheet says of it.
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


_property: Any = property
"""So that what a property gives can be declared where it is made."""


class Prediction(Result, msgspec.Struct, frozen=True, eq=False, dict=True):
    """The answer to "how long?", with everything it was made of.

    Attributes
    ----------
    workload : Workload
        What is computed; its batch is that of the whole step.
    terms : Terms
        Seconds by pass and layer.
    counts_by_pass, macs_by_pass, bytes_by_pass : ndarray of int, shape (passes, layers)
        Counts in the workload's convention, MACs and bytes, of the passes in `terms`.
    matrix : ndarray of bool, shape (layers,)
        Layers that are held against `peak` rather than `vector_peak`.
    kernels : int or None
        Launched in all; None where only a FLOP count was given.
    notes : tuple of str
        What somebody who uses the number should know.
    memory : MemoryFit or None
        Peak memory held against the device's; None where it was not asked for.
    bound_terms : Terms or None
        What the data sheet allows; None where the model itself is a bound, and its own terms say it.
    board_bound_s : float or None
        The bound of all devices of a board together, if they could share the work; None for single devices.
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

    # What is asked of its parts. Without layers, where only a FLOP count was given, those are empty.
    network: ClassVar[str] = _property(attrgetter("workload.network.name"))
    device: ClassVar[Device] = _property(attrgetter("machine.device"))
    precision: ClassVar[str] = _property(attrgetter("workload.precision"))
    phase: ClassVar[str] = _property(attrgetter("workload.phase"))
    batch_size: ClassVar[int] = _property(attrgetter("workload.batch_size"))
    convention: ClassVar[str] = _property(attrgetter("workload.convention"))
    execution: ClassVar[str] = _property(attrgetter("workload.execution"))
    layers: ClassVar[tuple[Layer, ...]] = _property(attrgetter("workload.layers"))
    names: ClassVar[tuple[str, ...]] = _property(attrgetter("workload.work.names"))
    kinds: ClassVar[tuple[str, ...]] = _property(attrgetter("workload.work.kinds"))
    bandwidth_bytes_per_s: ClassVar[float] = _property(attrgetter("derived.bandwidth_bytes_per_s"))
    time_s: ClassVar[float] = _property(attrgetter("terms.time_s"))
    is_forecast: ClassVar[bool] = _property(attrgetter("model.is_forecast"))
    # Reckoned once, from them all: see `Figures`.
    flops: ClassVar[int] = _property(attrgetter("derived.flops"))
    macs: ClassVar[int | None] = _property(attrgetter("derived.macs"))
    bytes: ClassVar[int | None] = _property(attrgetter("derived.bytes"))
    parameters: ClassVar[int | None] = _property(attrgetter("derived.parameters"))
    intensity: ClassVar[float | None] = _property(attrgetter("derived.intensity"))
    peak: ClassVar[PeakRate] = _property(attrgetter("derived.peak"))
    vector_peak: ClassVar[PeakRate] = _property(attrgetter("derived.vector_peak"))
    ridge_point: ClassVar[float] = _property(attrgetter("derived.ridge_point"))
    bound_s: ClassVar[float] = _property(attrgetter("derived.bound_s"))
    throughput_per_s: ClassVar[float | None] = _property(attrgetter("derived.throughput_per_s"))
    mfu: ClassVar[float | None] = _property(attrgetter("derived.mfu"))
    interval: ClassVar[tuple[float, float] | None] = _property(attrgetter("derived.interval"))
    intervals: ClassVar[dict[str, tuple[float, float]]] = _property(attrgetter("derived.intervals"))
    board: ClassVar[dict[str, Any] | None] = _property(attrgetter("derived.board"))

    @cached_property
    def derived(self) -> DerivedQuantities:
        """What it comes to."""
        workload, machine, terms = self.workload, self.machine, self.terms
        precision, time_s, known = workload.precision, self.time_s, workload.has_layers
        peak = self.model.peak(machine, precision)
        flops, moved = int(self.counts_by_pass.sum()), int(self.bytes_by_pass.sum()) if known else None
        throughput_per_s = workload.batch_size / time_s if time_s else None
        bandwidth_bytes_per_s = machine.device.bandwidth_bytes_per_s
        intervals = {} if terms.deviation is None else {
            f"{level:.0%}".rstrip("%"): interval_of(time_s, terms.deviation, level) for level in QUANTILES
        }  # fmt: skip
        board = None if machine.board is None else {
            "gpu": machine.board.id,
            "devices": machine.together,
            "throughput_per_s": None if throughput_per_s is None else machine.together * throughput_per_s,
            "bound_s": self.board_bound_s,
        }  # fmt: skip
        return DerivedQuantities(
            flops=flops,
            macs=int(self.macs_by_pass.sum()) if known else None,
            bytes=moved,
            parameters=workload.network.parameters if known else None,
            intensity=flops / moved if moved else None,
            peak=peak,
            vector_peak=machine.vector_peak(precision) if known else peak,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            ridge_point=peak.per_s / bandwidth_bytes_per_s,
            bound_s=(self.bound_terms or terms).time_s,
            throughput_per_s=throughput_per_s,
            mfu=flops / peak.per_s / time_s if time_s and workload.work.convention.unit == "FLOP" else None,
            interval=intervals.get("90"),
            intervals=intervals,
            board=board,
        )

    @property
    def calibration(self) -> str | None:
        """What the model's parameters were learnt from; None for models without."""
        return self.model.label or None

    @property
    def passes_s(self) -> dict[str, float]:
        """Seconds by pass, the two gradients together as ``backward``, and the overhead: together the time."""
        seconds: dict[str, float] = {}
        for name in self.terms.passes:
            shown = "backward" if name.startswith("backward") else name
            seconds[shown] = seconds.get(shown, 0.0) + float(self.terms.seconds_of(name).sum())
        return {**seconds, "overhead": self.terms.overhead_s}

    @property
    def waiting_s(self) -> dict[str, float]:
        """Seconds of each of `passes_s` that the device waits for the host: what is left is the same in every phase."""
        waiting = 1 - 1 / self.terms.host_slowdown
        return {name: 0.0 if name == "overhead" else seconds * waiting for name, seconds in self.passes_s.items()}

    def peak_of(self, part: str, layer: int) -> PeakRate:
        """The peak that a layer's arithmetic is held against in a pass."""
        return self.peak if self.matrix[layer] and part != "update" else self.vector_peak

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per layer: name, kind, flops (None where no rule counts it), bytes, time_s, bound_s, bound.

        The last is ``compute``, ``memory``, ``nothing`` (it takes no time), ``fused`` (into another) or ``unknown`` (no
        rule).
        """
        terms, work = self.terms, self.workload.work
        flops, moved, seconds = self.counts_by_pass.sum(0), self.bytes_by_pass.sum(0), terms.layers_s.sum(0)
        bound_s = (self.bound_terms or terms).layers_s.sum(0)
        # Over several passes: the term that rules the larger part of the time.
        ruled = np.where(terms.compute_s >= terms.memory_s, terms.layers_s, -terms.layers_s).sum(0)
        in_memory = (ruled < 0) & self.model.uses_memory
        for index, name in enumerate(self.names):
            bound = "memory" if in_memory[index] else "compute"
            if not work.counted[index]:
                bound = "unknown"
            elif work.carrier is not None and work.carrier[index] != index:
                bound = "fused"
            elif not seconds[index]:
                bound = "nothing"
            yield {
                "name": name,
                "kind": self.kinds[index],
                "flops": int(flops[index]) if work.counted[index] else None,
                "bytes": int(moved[index]),
                "time_s": float(seconds[index]),
                "bound_s": float(bound_s[index]),
                "bound": bound,
            }

    def bound(self, layer: int) -> str:
        """What bounds a layer, as `rows` says it."""
        return str(list(self.rows())[layer]["bound"])

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Per kind of layer: layers, flops, bytes, time_s and share of the time; longest first."""
        kinds: dict[str, dict[str, Any]] = {}
        for row in self.rows():
            entry = kinds.setdefault(row["kind"], {"layers": 0, "flops": 0, "bytes": 0, "time_s": 0.0})
            entry["layers"] += 1
            for key in ("flops", "bytes", "time_s"):
                entry[key] = None if row[key] is None or entry[key] is None else entry[key] + row[key]
        for entry in kinds.values():
            entry["share"] = entry["time_s"] / self.time_s if self.time_s else 0.0
        return dict(sorted(kinds.items(), key=lambda item: (-item[1]["time_s"], item[0])))

    def layer_index(self, name: str) -> int:
        """Where a layer stands.

        Raises
        ------
        UnknownName
            If there is no such layer.
        """
        if name not in self.names:
            raise UnknownName(f"layer of {self.network}", name, self.names)
        return self.names.index(name)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: stable names, SI units."""
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
            "constant_s": self.terms.overhead_s,
            "interval": None if self.interval is None else list(self.interval),
            "execution": self.execution,
            "kernels": self.kernels,
            "intervals": {level: list(interval) for level, interval in self.intervals.items()} or None,
            "memory": None if self.memory is None else self.memory.to_dict(),
            "board": self.board,
            "version": __version__,
            "notes": list(self.notes),
            "by_kind": self.by_kind(),
            "layers": list(self.rows()),
        }

    def to_frame(self) -> Any:
        """The layers as a pandas DataFrame, and a row of the overhead: together the time.

        What holds for all of them, such as the calibration and the bound, is in its ``attrs``.

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
        """The rows of all layers, and one of the overhead where there is any: together the time."""
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

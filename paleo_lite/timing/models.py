"""Time models: their protocol, the models without fitted parameters, and the list of all models."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import msgspec
import numpy as np

from ..counting.work import GENERATION_PHASES, passes_of
from ..errors import BadValue, UnknownName
from ..machines import Device, Machine, PeakRate
from ..units import check_positive, element_bytes, parse_quantity
from .activity import Activity, divide_time
from .terms import RequestedOutputs, Terms, Times
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .broadcast import BatchedStack
    from .energy import PowerConstants
    from .memory import Memory

    Seconds = NDArray[np.float64]


class TimeModel(Protocol):
    """Protocol of a time model, which times a workload on a machine. `TIME_MODELS` lists all models."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...  # origin of its parameters, such as the name of a calibration; empty without parameters

    @property
    def ppp(self) -> float | None: ...  # platform percent of peak by which it scales, as a fraction

    @property
    def is_forecast(self) -> bool: ...  # otherwise it is a bound: a time that cannot be beaten

    @property
    def needs_bytes(self) -> bool: ...  # whether it requires the layers of a network instead of a bare FLOP count

    @property
    def uses_memory(self) -> bool: ...  # whether its time depends on the bytes moved

    @property
    def uses_convention_count(self) -> bool: ...  # whether it divides that count by the peak, or else canonical FLOPs

    @property
    def notes(self) -> tuple[str, ...]: ...  # for every prediction with this model

    @property
    # Fitted to the device's own watts; None for the shipped ones.
    def power_constants(self) -> PowerConstants | None: ...

    @property
    def description(self) -> str: ...  # name of the model, with the origin of its parameters

    @property
    def bound_model(self) -> TimeModel: ...  # model of the lower bound of its forecasts, for networks with layers

    def memory(self, workload: Workload, machine: Machine) -> Memory:
        """Return the peak memory of a workload on a machine."""
        ...

    def largest_batch(self, workload: Workload, machine: Machine) -> int | None:
        """Return the largest batch size that fits into the usable memory; None if not even one sample does."""
        ...

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """Time each layer of a workload in each pass.

        Raise UnknownPrecision if the machine has no peak for the precision, unit or clock, and UnsupportedPhase if the
        workload's convention does not count the phase.
        """
        ...

    def evaluate_many(self, stack: BatchedStack, machine: Machine, precision: str, outputs: RequestedOutputs) -> Times:
        """Time many cases and batch sizes at once."""
        ...

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Return the formula in one line, with `compute` and `memory` as the text of its two terms."""
        ...

    def peak(self, machine: Machine, precision: str) -> PeakRate:
        """Return the peak rate used for matrix operations; raise UnknownPrecision if the machine has no such peak."""
        ...


def _saved_s_by_matrix_units(machine: Machine, vector_per_s: float) -> float:
    """Return the seconds per FLOP that products of an update save, as Muon and Shampoo multiply in 16 bits."""
    return 1 / vector_per_s - 1 / max(machine.wide_peak().per_s, vector_per_s)


class LayerModel:
    """Base class of models that time the layers of a network one by one."""

    name: ClassVar[str]
    label: str

    @property
    def description(self) -> str:
        """Name of the model, with the origin of its parameters."""
        return f"{self.name} ({self.label})" if self.label else self.name

    @property
    def bound_model(self) -> TimeModel:
        """Model of the lower bound."""
        return BoundModel()

    def memory(self, workload: Workload, machine: Machine) -> Memory:
        """Return the peak memory of the layers."""
        from .memory import peak_memory

        return peak_memory(workload)

    def largest_batch(self, workload: Workload, machine: Machine) -> int | None:
        """Return the largest batch size that fits into the usable memory; None if not even one sample does."""
        from .memory import largest_batch, usable_bytes

        return largest_batch(workload, memory_bytes=usable_bytes(machine.device))


class TwoTermModel(LayerModel):
    """Base class of models that combine the seconds of arithmetic and of memory traffic at peak."""

    label: str = ""
    ppp: float | None = None
    is_forecast: ClassVar[bool] = False
    needs_bytes: ClassVar[bool] = False
    uses_memory: ClassVar[bool] = True
    uses_convention_count: ClassVar[bool] = True
    notes: tuple[str, ...] = ()
    power_constants: ClassVar[None] = None
    # Standard deviation of the logarithm of the time of a workload; None without uncertainty.
    deviation_of: Callable[[Workload], float] | None = None
    beyond_peak: ClassVar[str] = ""  # why its seconds may be shorter than those at the peaks of the data sheet

    peak = staticmethod(Machine.peak)

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Combine seconds of arithmetic and of memory traffic, arrays of any shape, to the seconds of each layer."""
        raise TypeError(f"{type(self).__name__} must define time_s(compute_s, memory_s)")

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """Time a workload; see `TimeModel.evaluate`."""
        compute_s, memory_s = self.seconds_at_peak(workload, machine)
        return Terms(
            passes_of(workload.phase),
            compute_s,
            memory_s,
            self.time_s(*self.attainable(compute_s, memory_s, workload, machine)),
            deviation=None if self.deviation_of is None else self.deviation_of(workload),
        )

    def attainable(
        self, compute_s: Seconds, memory_s: Seconds, workload: Workload, machine: Machine
    ) -> tuple[Seconds, Seconds]:
        """Return the seconds of arithmetic and of memory traffic that the model combines, from those at peak."""
        return compute_s, memory_s

    def seconds_at_peak(self, workload: Workload, machine: Machine) -> tuple[Seconds, Seconds]:
        """Return the seconds of arithmetic and of memory traffic at peak, both of shape (passes, layers).

        Matrix operations run at the peak of their unit, all other arithmetic at the vector peak.
        """
        work, phase, batch_size = workload.work, workload.phase, workload.batch_size
        passes = passes_of(phase)
        matrix_per_s: Any = machine.peak(workload.precision).per_s
        vector_per_s = machine.vector_peak(workload.precision).per_s if workload.has_layers else matrix_per_s
        if workload.has_layers and workload.product_precision != workload.precision:
            narrow_per_s = machine.peak(workload.product_precision).per_s
            matrix_per_s = np.where(workload.narrow_products_in(passes), narrow_per_s, matrix_per_s)
        if work.wide is not None and passes == ("inference",):
            matrix_per_s = np.where(work.wide, machine.wide_peak().per_s, matrix_per_s)
        is_matrix_pass = np.array([[name != "update"] for name in passes])
        is_matrix_operation = is_matrix_pass & work.matrix
        rates = np.where(is_matrix_operation, matrix_per_s, vector_per_s)
        counts = work.counts_by_pass(phase, batch_size)
        compute_s = counts / rates
        if "update" in passes:
            products = np.minimum(2 * work.column("macs", "update", batch_size), counts[passes.index("update")])
            compute_s[passes.index("update")] -= products[0] * _saved_s_by_matrix_units(machine, vector_per_s)
        return compute_s, work.column("bytes", phase, batch_size) / machine.device.bandwidth_bytes_per_s

    def evaluate_many(self, stack: BatchedStack, machine: Machine, precision: str, outputs: RequestedOutputs) -> Times:
        """Time many cases and batch sizes; see `TimeModel.evaluate_many`."""
        compute_s, memory_s = self._stack_seconds_at_peak(stack, machine, precision)
        seconds = self.time_s(*self.attainable_of_stack(compute_s, memory_s, stack, machine, precision))
        pieces_s = stack.sum_by_piece(seconds) if outputs.pieces else None
        activity = None
        if outputs.activity:
            arithmetic_s, traffic_s = divide_time(seconds, compute_s, memory_s)
            activity = Activity(
                stack.sum_by_case(arithmetic_s), stack.sum_by_case(traffic_s), peak_s=stack.sum_by_case(compute_s)
            )
        return Times(stack.sum_by_case(seconds), None, None, pieces_s, activity)

    def attainable_of_stack(
        self, compute_s: Seconds, memory_s: Seconds, stack: BatchedStack, machine: Machine, precision: str
    ) -> tuple[Seconds, Seconds]:
        """Return the seconds that the model combines for the entries of a stack, from those at peak."""
        return compute_s, memory_s

    @staticmethod
    def _stack_seconds_at_peak(stack: BatchedStack, machine: Machine, precision: str) -> tuple[Seconds, Seconds]:
        features = stack.features
        matrix_per_s: Any = machine.peak(precision).per_s
        if features.wide.any():
            matrix_per_s = np.where(features.wide, machine.wide_peak().per_s, matrix_per_s)
        rates = np.where(features.matrix, matrix_per_s, machine.vector_peak(precision).per_s)
        compute_s, memory_s = features.flops / rates, features.bytes / machine.device.bandwidth_bytes_per_s
        if features.update_products.any():
            saved_s = _saved_s_by_matrix_units(machine, machine.vector_peak(precision).per_s)
            compute_s = compute_s - features.update_products * saved_s
        return compute_s, memory_s


class PeakModel(TwoTermModel, msgspec.Struct, frozen=True):
    """FLOPs / peak: a lower bound for algorithms that execute the counted FLOPs. Memory traffic is free."""

    name: ClassVar[str] = "peak"
    uses_memory: ClassVar[bool] = False

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Return the compute time, broadcast to the common shape of both terms."""
        return np.broadcast_to(compute_s, np.broadcast_shapes(np.shape(compute_s), np.shape(memory_s)))

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Return the formula in one line."""
        return compute


PLAUSIBLE_PPP = 3.0
"""Largest plausible PPP. Winograd's F(4x4, 3x3) saves a factor of 4 in multiplications and of 2 to 3 in all FLOPs
(Lavin and Gray 2016), and no platform achieves all of that."""


class PppModel(TwoTermModel, msgspec.Struct, frozen=True):
    """PALEO (Qi et al. 2017, eq. 2 and section 4.3): (FLOPs / peak + bytes / bandwidth) / PPP."""

    name: ClassVar[str] = "ppp"
    is_forecast: ClassVar[bool] = True
    ppp: float  # platform percent of peak, as a fraction
    label: str = ""  # name of the calibration of a fitted PPP; empty for one given by the user
    # Standard deviation of the logarithm of the time of a workload; None for a PPP given by the user.
    deviation_of: Callable[[Workload], float] | None = None
    notes: tuple[str, ...] = ()  # for every prediction with this model

    def __post_init__(self) -> None:
        number = self.ppp if isinstance(self.ppp, (int, float)) else math.nan
        check_positive("the PPP", number, repr(self.ppp), "a fraction of peak > 0, such as 0.62")

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Return the sum of both terms over the PPP."""
        return (compute_s + memory_s) / self.ppp

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Return the formula in one line."""
        return f"({compute} + {memory}) / {self.ppp:.4g}"


class OverlappingPppModel(PppModel, frozen=True):
    """PALEO with arithmetic and memory traffic of a layer at the same time: max(FLOPs / peak, bytes / bandwidth) / PPP.

    Option ``concurrent`` of the authors' code.
    """

    name: ClassVar[str] = "ppp-overlap"

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Return the larger of both terms over the PPP."""
        seconds: Seconds = np.maximum(compute_s, memory_s) / self.ppp
        return seconds

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Return the formula in one line."""
        return f"max({compute}, {memory}) / {self.ppp:.4g}"


class RooflineModel(TwoTermModel, msgspec.Struct, frozen=True):
    """Roofline model per layer (Williams et al. 2009): max(FLOPs / peak, bytes / bandwidth), without parameters."""

    name: ClassVar[str] = "roofline"
    needs_bytes: ClassVar[bool] = True
    notes: tuple[str, ...] = ()  # reasons why it replaces a calibrated model, if the user did not request it

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Return the larger of both terms."""
        return np.maximum(compute_s, memory_s)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Return the formula in one line."""
        return f"max({compute}, {memory})"


class BoundModel(RooflineModel, frozen=True):
    """Roofline of what no device beats: at the highest clock that a board holds, of the bytes that must move.

    The clock of boards for gaming and workstations rises above that of their data sheet, and a layer may find its input
    in the L2 cache and leave its result there, so that only its weights and the rest of its bytes move. What a step of
    generation reads of its own past does not stay in the cache. The terms are those of the data sheet, to which the
    power of devices was fitted; the time of a layer is shorter.
    """

    name: ClassVar[str] = "bound"
    beyond_peak: ClassVar[str] = "the highest clock that a board holds, without bytes that the L2 cache may keep"

    def attainable(
        self, compute_s: Seconds, memory_s: Seconds, workload: Workload, machine: Machine
    ) -> tuple[Seconds, Seconds]:
        """Return the seconds of arithmetic at the highest clock, and of the bytes that must move."""
        kept_bytes = 0.0 if workload.phase in GENERATION_PHASES else kept_in_cache_bytes(machine.device)
        weights = np.array([float(layer.parameters) for layer in workload.layers])
        return _beyond_data_sheet(compute_s, memory_s, machine, workload.precision, kept_bytes, weights)

    def attainable_of_stack(
        self, compute_s: Seconds, memory_s: Seconds, stack: BatchedStack, machine: Machine, precision: str
    ) -> tuple[Seconds, Seconds]:
        """Return the seconds of arithmetic at the highest clock, and of the bytes that must move."""
        kept_bytes = stack.kept_layers * kept_in_cache_bytes(machine.device)
        return _beyond_data_sheet(compute_s, memory_s, machine, precision, kept_bytes, stack.weights)


class TrafficModel(BoundModel, frozen=True):
    """Bytes that must move / bandwidth: what no device was measured to beat, whatever the algorithm of its arithmetic.

    Of 2,953 published steps of networks 66 are below their bound, and none is below this.
    """

    name: ClassVar[str] = "traffic"

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Return the seconds of traffic, broadcast to the common shape of both terms."""
        return np.broadcast_to(memory_s, np.broadcast_shapes(np.shape(compute_s), np.shape(memory_s)))

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Return the formula in one line."""
        return memory


def kept_in_cache_bytes(device: Device) -> float:
    """Return the bytes that a layer may find in the L2 cache, and leave there; 0 without a cache on record."""
    return 0.0 if device.memory.l2 is None else 2 * parse_quantity(device.memory.l2.value, "B")


def _beyond_data_sheet(
    compute_s: Seconds, memory_s: Seconds, machine: Machine, precision: str, kept_bytes: Any, weights: Seconds
) -> tuple[Seconds, Seconds]:
    """Return seconds of arithmetic and memory traffic at the highest clock, without the bytes that the cache keeps.

    The given ones are those of the data sheet; `weights` are the numbers of weights of layers, all of which must move.
    """
    from .power import boost_fraction

    per_s = machine.device.bandwidth_bytes_per_s
    weights_s = np.minimum(weights * element_bytes(precision) / per_s, memory_s)
    moved_s = np.maximum(memory_s - kept_bytes / per_s, weights_s)
    return compute_s / boost_fraction(machine.device, machine.peak(precision)), moved_s


def _with_plausible_ppp(model: type[PppModel], ppp: float) -> PppModel:
    """Return a model with the PPP given by the user, with a note if the value looks like percent."""
    plausible = model(ppp)
    if ppp <= PLAUSIBLE_PPP:
        return plausible
    note = f"a PPP of {ppp:g} means {ppp:g} times the peak: for {ppp:g} percent use {ppp / 100:g}"
    return msgspec.structs.replace(plausible, notes=(note,))


class ModelEntry(NamedTuple):
    """An entry of the list of time models."""

    # Function that returns the model from its options. A string `module:Class` relative to this package is imported on
    # demand. None if the model needs a calibration of the device.
    factory: Callable[..., TimeModel] | str | None
    needs_ppp: bool = False  # whether the user gives its PPP
    is_fitted: bool = False  # whether `paleo_lite.calibrate` fits the model to measurements


CALIBRATED = "calibrated"
"""Name of the model whose parameters are learned. Requested by name, it uses the best available calibration of a
device."""

TIME_MODELS: dict[str, ModelEntry] = {
    "peak": ModelEntry(PeakModel),
    PppModel.name: ModelEntry(partial(_with_plausible_ppp, PppModel), needs_ppp=True, is_fitted=True),
    OverlappingPppModel.name: ModelEntry(partial(_with_plausible_ppp, OverlappingPppModel), needs_ppp=True),
    "roofline": ModelEntry(RooflineModel),
    "bound": ModelEntry(BoundModel),
    CALIBRATED: ModelEntry(None, is_fitted=True),
}
"""All models by name, used for help, completion, validation and sweeps."""


MODELS_WITHOUT_PPP = tuple(name for name, entry in TIME_MODELS.items() if not entry.needs_ppp)
"""Models for kinds of question that take no PPP."""


def find_model(name: str | None, ppp: float | None = None) -> TimeModel:
    """Return the time model of a name; without one ``ppp`` if a PPP is given, a fraction of peak, else ``roofline``.

    Raise UnknownName if there is no such model, and BadValue if a PPP is given for a model without one, or is missing.
    """
    if not name:
        name = PppModel.name if ppp is not None else RooflineModel.name
    if name not in TIME_MODELS:
        raise UnknownName("time model", name, TIME_MODELS)
    entry = TIME_MODELS[name]
    if entry.factory is None:
        raise BadValue(f"the {name} model needs a calibration: --calibration FILE or the name of a shipped one")
    factory: Callable[..., TimeModel] = (
        resolve_name(f"{__package__}.{entry.factory}") if isinstance(entry.factory, str) else entry.factory
    )
    if not entry.needs_ppp:
        if ppp is not None:
            raise BadValue(f"a PPP belongs to the {PppModel.name} model, not to {name}")
        return factory()
    if ppp is None:
        raise BadValue(
            f"the {name} model needs a PPP, the fraction of peak that the platform reaches, such as --ppp 0.62"
        )
    return factory(ppp)


def describe_model(model: TimeModel) -> str:
    """Return the name of a model, with the origin of its parameters."""
    return model.description

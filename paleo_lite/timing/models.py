"""Time models: the protocol, the `Terms` that they make, the ones without fitted parameters, and the list of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from ..counting.work import passes_of
from ..errors import BadValue, UnknownName
from ..machines import Machine, PeakRate
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .broadcast import Laid

    Seconds = NDArray[np.float64]

OneOrMany = TypeVar("OneOrMany", float, "Seconds")


class TimeModel(Protocol):
    """From a workload and a machine to seconds. Each model is one class; `TIME_MODELS` is the one list of them.

    Attributes
    ----------
    name : str
        How it is asked for.
    label : str
        Which parameters it has: a calibration's name, or empty.
    ppp : float or None
        The platform percent of peak that it scales by, as a share.
    is_forecast : bool
        Whether it says how long something will take; else it says what cannot be beaten: a bound.
    needs_bytes, uses_memory, takes_count : bool
        Whether it refuses a bare FLOP count; whether bytes play a part; whether it divides the convention's count by
        the peak, rather than count by itself.
    notes : tuple of str
        What every answer by it should say.
    """

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def ppp(self) -> float | None: ...

    @property
    def is_forecast(self) -> bool: ...

    @property
    def needs_bytes(self) -> bool: ...

    @property
    def uses_memory(self) -> bool: ...

    @property
    def takes_count(self) -> bool: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """Time a workload, pass by pass and layer by layer.

        Raises
        ------
        UnknownPrecision
            If the machine has no peak for the precision, unit or clock.
        UnsupportedPhase
            If the workload's convention does not count the phase.
        """
        ...

    def evaluate_many(self, laid: Laid, machine: Machine, precision: str, want: Want) -> Times:
        """The same of many cases and batch sizes at once."""
        ...

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """The formula in one line, with words or with numbers in the place of its two terms."""
        ...

    def peak(self, machine: Machine, precision: str) -> PeakRate:
        """The peak that it holds multiply-accumulates against.

        Raises
        ------
        UnknownPrecision
            If the machine has no such peak.
        """
        ...


QUANTILES = {0.8: 1.476, 0.9: 2.015}
"""Two-sided quantiles of Student's t with 5 degrees of freedom: residuals have longer tails than a normal's."""

LEVEL = 0.9


def interval_of(time_s: OneOrMany, deviation: OneOrMany, level: float = LEVEL) -> tuple[OneOrMany, OneOrMany]:
    """Seconds between which a time lies with this probability, from the standard deviation of its logarithm."""
    reach = np.exp(QUANTILES[level] * deviation)
    return time_s / reach, time_s * reach


class Terms(msgspec.Struct, frozen=True, eq=False):
    """Seconds over the axes (pass, layer), and what is known of the whole.

    Attributes
    ----------
    passes : tuple of str
        Names of the first axis.
    compute_s, memory_s : ndarray, shape (passes, layers)
        Arithmetic, and memory traffic, as if there were nothing else.
    floor_s : ndarray, shape (passes, layers), or None
        Shortest kernels; None for models that know of none.
    layers_s : ndarray, shape (passes, layers)
        What the model makes of them: together the step without its overhead.
    overhead_s : float
        Seconds of a step that belong to no layer; 0 for models that know of none.
    deviation : float or None
        Standard deviation of the logarithm of the time; None for models that do not say.
    slopes : ndarray, shape (parameters,), or None
        Derivatives of the logarithm of the time by those of the model's parameters; None for models without.
    waiting : float
        By what factor the host, launching more slowly than the device computes, stretches the layers; 1: not at all.
    """

    passes: tuple[str, ...]
    compute_s: Seconds
    memory_s: Seconds
    layers_s: Seconds
    overhead_s: float = 0.0
    deviation: float | None = None
    waiting: float = 1.0
    floor_s: Seconds | None = None
    slopes: Seconds | None = None

    @property
    def time_s(self) -> float:
        """Seconds of the step."""
        return float(self.layers_s.sum()) + self.overhead_s

    def of(self, *passes: str) -> Seconds:
        """Seconds of some passes by layer, shape (layers,); passes that the step does not have take none."""
        chosen = [name in passes for name in self.passes]
        seconds: Seconds = self.layers_s[chosen].sum(axis=0)
        return seconds

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Seconds between which the step lies with this probability; None where the model does not say."""
        if self.deviation is None:
            return None
        return interval_of(self.time_s, self.deviation, level)


BOUNDS = {
    "arithmetic": "layers whose arithmetic takes longer than their memory traffic",
    "memory traffic": "layers whose memory traffic takes longer than their arithmetic",
    "short kernels": "layers so small that starting and ending a kernel takes longer than either",
    "waiting for the host": "the device is idle until the host has launched the next kernel",
    "overhead": "what a step takes whatever its layers are",
}
"""What time is spent on, and what that means."""


def bound_seconds(terms: Terms, uses_memory: bool) -> dict[str, float]:
    """Seconds by what bounds them, in the order of `BOUNDS`: together the time. Bytes may play no part in a model.

    A layer's pass counts in full to the largest of its terms. Where the host launches more slowly than the device
    computes, the device's time of all layers is stretched by one factor; what that adds is waiting.
    """
    device_s = terms.layers_s / terms.waiting
    none = np.zeros_like(device_s)
    memory_s = terms.memory_s if uses_memory else none
    floor_s = none if terms.floor_s is None else terms.floor_s
    largest = np.argmax(np.stack([terms.compute_s, memory_s, floor_s]), axis=0)
    seconds = [float(device_s[largest == place].sum()) for place in range(3)]
    return dict(zip(BOUNDS, [*seconds, float(terms.layers_s.sum() - device_s.sum()), terms.overhead_s]))


class Want(NamedTuple):
    """What `TimeModel.evaluate_many` is to say beside the times: intervals, and the seconds of each piece."""

    interval: bool = True
    pieces: bool = False


class Times(NamedTuple):
    """Seconds of a batch, shape (cases, batch sizes), and between which they lie; None for models that do not say.

    `pieces_s` are the seconds of each piece, shape (pieces, batch sizes): a case's forward pass and update, then the
    pieces of its backward pass (`Stack.first_piece`); together the time without a model's overhead.
    """

    time_s: Seconds
    low_s: Seconds | None
    high_s: Seconds | None
    pieces_s: Seconds | None = None


class TwoTerms:
    """What models have in common that need nothing but the seconds of arithmetic and of memory traffic at peak."""

    label: str = ""
    ppp: float | None = None
    is_forecast: ClassVar[bool] = False
    needs_bytes: ClassVar[bool] = False
    uses_memory: ClassVar[bool] = True
    takes_count: ClassVar[bool] = True
    notes: tuple[str, ...] = ()
    deviation_of: Callable[[Workload], float] | None = None
    """Says the standard deviation of the logarithm of a time; None for models that do not."""

    peak = staticmethod(Machine.peak)

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Seconds of each layer from the seconds of its arithmetic and of its memory traffic at peak, any shape."""
        raise TypeError(f"{type(self).__name__} does not say how its two terms make a time")

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """See `TimeModel.evaluate`: products against the peak, all other arithmetic against the vector units."""
        work, phase, batch = workload.work, workload.phase, workload.batch_size
        per_s: Any = machine.peak(workload.precision).per_s
        passes, options = passes_of(phase), workload.training
        multiplies = np.array([[name != "update" for name in passes]]).T & work.matrix
        other_per_s = machine.vector_peak(workload.precision).per_s if workload.has_layers else per_s
        if options is not None and options.products:
            per_s = np.where(workload.narrow, machine.peak(options.products).per_s, per_s)
        compute_s = work.counts_by_pass(phase, batch) / np.where(multiplies, per_s, other_per_s)
        memory_s = work.column("bytes", phase, batch) / machine.device.bandwidth_bytes_per_s
        return Terms(
            passes,
            compute_s,
            memory_s,
            self.time_s(compute_s, memory_s),
            deviation=None if self.deviation_of is None else self.deviation_of(workload),
        )

    def evaluate_many(self, laid: Laid, machine: Machine, precision: str, want: Want) -> Times:
        """See `TimeModel.evaluate_many`."""
        features = laid.features
        rates = np.where(features.matrix, machine.peak(precision).per_s, machine.vector_peak(precision).per_s)
        seconds = self.time_s(features.flops / rates, features.bytes / machine.device.bandwidth_bytes_per_s)
        return Times(laid.by_case(seconds), None, None, laid.by_piece(seconds) if want.pieces else None)


class PeakModel(TwoTerms, msgspec.Struct, frozen=True):
    """FLOPs / peak: what direct convolution cannot beat. Memory is free."""

    name: ClassVar[str] = "peak"
    uses_memory: ClassVar[bool] = False

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Compute time alone, in the shape that both terms make together."""
        return np.broadcast_to(compute_s, np.broadcast_shapes(np.shape(compute_s), np.shape(memory_s)))

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Compute time."""
        return compute


MOST = 3.0
"""A PPP above this is questioned. Winograd's F(4x4, 3x3) saves a factor of 4 in multiplications, 2 to 3 in all FLOPs
(Lavin and Gray 2016), and no platform reaches all of that."""


class PppModel(TwoTerms, msgspec.Struct, frozen=True):
    """PALEO (Qi et al. 2017, eq. 2 and section 4.3): (FLOPs / peak + bytes / bandwidth) / PPP.

    With `concurrent` a layer's memory traffic hides behind its arithmetic, or the other way round. A PPP that was
    fitted has a `label`, and knows how far it is off (`deviation_of`); of one that was typed in nothing is known.
    """

    name: ClassVar[str] = "ppp"
    is_forecast: ClassVar[bool] = True
    ppp: float
    concurrent: bool = False
    label: str = ""
    deviation_of: Callable[[Workload], float] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.ppp, (int, float)) and math.isfinite(self.ppp) and self.ppp > 0):
            raise BadValue(f"the PPP must be a number above 0 (a share of peak, such as 0.62), not {self.ppp!r}")

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Sum of the two over the PPP; where they are concurrent the larger."""
        joined = np.maximum(compute_s, memory_s) if self.concurrent else compute_s + memory_s
        return joined / self.ppp

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Sum or larger of the two, over the PPP."""
        joined = f"max({compute}, {memory})" if self.concurrent else f"({compute} + {memory})"
        return f"{joined} / {self.ppp:.4g}"


class RooflineModel(TwoTerms, msgspec.Struct, frozen=True):
    """Williams et al. 2009, per layer: max(FLOPs / peak, bytes / bandwidth). No free parameter.

    `notes` say why it stands in for a calibrated model where it was not asked for.
    """

    name: ClassVar[str] = "roofline"
    needs_bytes: ClassVar[bool] = True
    notes: tuple[str, ...] = ()

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """The larger of the two."""
        return np.maximum(compute_s, memory_s)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """The larger of the two."""
        return f"max({compute}, {memory})"


def _typed_ppp(ppp: float, concurrent: bool = False) -> PppModel:
    """A PPP that somebody typed in; one that looks like percent is questioned."""
    model = PppModel(ppp, concurrent)
    if ppp <= MOST:
        return model
    doubt = f"a PPP of {ppp:g} is {ppp:g} times the peak: for {ppp:g} percent say {ppp / 100:g}"
    return msgspec.structs.replace(model, notes=(doubt,))


class Entry(NamedTuple):
    """A model of the list.

    Attributes
    ----------
    make : callable, str or None
        Makes it from what was given; ``module:Class`` of this folder is imported when it is asked for. None where
        parameters were learnt for one device, and a calibration is needed.
    takes : tuple of str
        What must or may be given to make it: ``ppp``, ``concurrent``.
    learns : bool
        Whether `paleo_lite.calibrate` fits it to measurements.
    """

    make: Callable[..., TimeModel] | str | None
    takes: tuple[str, ...] = ()
    learns: bool = False


TIME_MODELS: dict[str, Entry] = {
    "peak": Entry(PeakModel),
    "ppp": Entry(_typed_ppp, ("ppp", "concurrent"), learns=True),
    "roofline": Entry(RooflineModel),
    "calibrated": Entry(None, learns=True),
}
"""Every model that can be asked for by name: help, completion, checks and sweeps read this list."""

_SAID = {"ppp": "a PPP"}

LEARNT = next(name for name, entry in TIME_MODELS.items() if entry.make is None)
"""The model whose parameters are learnt: asked for by name, the best of what is known of a device answers."""


def find_model(name: str | None, ppp: float | None = None, concurrent: bool = False) -> TimeModel:
    """The model of a name; without one, ``ppp`` where a PPP is given and ``roofline`` otherwise.

    Raises
    ------
    UnknownName
        If there is no such model.
    BadValue
        If options and model do not go together.
    """
    given = {} if ppp is None else {"ppp": ppp}
    if concurrent:
        given["concurrent"] = concurrent
    name = name or ("ppp" if given else "roofline")
    if name not in TIME_MODELS:
        raise UnknownName("time model", name, TIME_MODELS)
    make, takes, _ = TIME_MODELS[name]
    for option in given:
        if option not in takes:
            owner = next(model for model, entry in TIME_MODELS.items() if option in entry.takes)
            raise BadValue(f"{_SAID.get(option, option)} belongs to the {owner} model, not to {name}")
    if takes and ppp is None:
        raise BadValue("the ppp model needs a PPP, the share of peak that the platform reaches, such as --ppp 0.62")
    if make is None:
        raise BadValue(f"the {name} model needs a calibration: --calibration FILE or the name of a shipped one")
    model: Callable[..., TimeModel] = resolve_name(f"{__package__}.{make}") if isinstance(make, str) else make
    return model(**given)


def describe(model: TimeModel) -> str:
    """A model's name, and which parameters it has."""
    return f"{model.name} ({model.label})" if model.label else model.name

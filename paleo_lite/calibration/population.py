"""What all measured devices say together of one device: a prior for its fit, and all that is known of a new one.

Every parameter is a sum of effects, each normal around 0 with the deviation that its level has (`LEVELS`): of the unit
that multiplies, of its generation, of the precision, the chip, the software, the source. Two fits are alike in a
parameter by the variance of the effects that they share, so that what is expected of a device is a weighted mean of
fits, those that share most with it first: the best linear unbiased predictor of a mixed model (Henderson, 1975), which
geostatistics calls kriging. The variance of the effects that nobody shares stays in the interval.

The host launches kernels, whatever the device: what it takes belongs to the software, the way of execution and the
computer of a source. That is why devices differ only by `DEVICE` parameters when they are compared under one software.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..counting.work import CHANNELS_LAST, UNFUSED
from ..hardware import Device, Machine
from ..hardware.device import PeakRate
from ..timing.calibrated import NAMES
from ..timing.fitted import works_in
from .fit import SCATTER, MeasuredRuns, Prior, fit
from .prior import BASE, KEPLER, base_prior, device_prior

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SOFTWARE = "pytorch"
"""What devices are compared under unless something else is asked for."""

HOST = ("overhead_s", "overhead_backward_s", "overhead_gradient_s", "step_s")
"""Parameters of the host: no device has them."""

SHAPE = ("factor_data_gradient", "factor_weight_gradient", "half", "half_3x3")
"""Parameters of kernels that devices of a kind share: telling devices apart in them loses nothing on held-out ones."""

TAUGHT = tuple(name for name in NAMES if name not in ("floor_s", "efficiency_attention"))
"""What measured steps teach others. The shortest kernel and attention stay where `BASE` has them: networks hold too
little of either to tell it from the products around it."""

SAME_KERNELS = {"bf16": "fp16", "tf32": "fp16"}
"""Precisions that tensor cores multiply with kernels alike those of another; each at its own peak."""

KERNELS = "kernels"
"""The software of operations that were timed one by one."""


class Traits(msgspec.Struct, frozen=True):
    """Who is asked for, or was measured.

    Attributes
    ----------
    id, chip : str
        Of the device.
    year : int
        Of the device.
    unit : str
        Vendor and unit that multiplies, ``"NVIDIA tensor"``.
    precision : str
        Of the kernels: tf32 and bf16 take those of fp16.
    software, execution : str
        ``"pytorch"``; ``"eager"``, ``"channels-last"``, ``"compiled"`` or ``"folded"``.
    source : str
        Who measured; empty for somebody new.
    per_clock : int
        FLOP of a multiprocessor in a clock, as a power of two.
    """

    id: str
    chip: str
    year: int
    kepler: bool
    unit: str
    precision: str
    software: str = SOFTWARE
    execution: str = "eager"
    source: str = ""
    per_clock: int = 0

    @property
    def launched(self) -> str:
        """How the host launches kernels: where images lie in memory is nothing to it."""
        return "eager" if self.execution == CHANNELS_LAST else self.execution


class Evidence(Traits, frozen=True):
    """What one source's measurements of a device in a precision say of its parameters.

    Attributes
    ----------
    points : int
        How many measurements.
    measured_in : str
        Their precision, whatever its kernels.
    theta : tuple of float
        Logarithm of each parameter, in the order of `NAMES`.
    deviation : tuple of float or None
        What the measurements alone leave open of each; None where they say nothing.
    """

    points: int = 0
    measured_in: str = ""
    theta: tuple[float, ...] = ()
    deviation: tuple[float | None, ...] = ()


def traits_of(
    device: Device, precision: str, software: str = SOFTWARE, execution: str = "eager", source: str = ""
) -> Traits:
    """The traits of a device in a precision under some software."""
    if execution in UNFUSED and execution != CHANNELS_LAST:  # casts are counted: kernels are the same
        execution = "eager"
    rate = works_in(Machine(device), precision)
    unit = rate.peak.unit
    kernels = SAME_KERNELS.get(precision, precision) if unit == "tensor" else precision
    kepler = device.architecture == KEPLER
    return Traits(
        device.id, device.chip, device.year, kepler, f"{device.vendor} {unit}", kernels, software, execution, source,
        per_clock_of(device, rate),
    )  # fmt: skip


def per_clock_of(device: Device, rate: PeakRate) -> int:
    """FLOP that a multiprocessor makes in a clock, as a power of two: 0 where no source gives the clock.

    Tensor cores of gaming cards make half as many as those of workstations (with sums in fp32), those of data centres
    twice to eight times as many: the fewer, the easier they are fed.
    """
    clock_hz = device.clock_hz(rate.clock)  # type: ignore[arg-type]
    multiprocessors = float(device.cores.multiprocessors.value)
    return round(math.log2(rate.per_s / multiprocessors / clock_hz)) if clock_hz else 0


# How alike two are ----------------------------------------------------------------------------------------------------


class Level(NamedTuple):
    """One level of effects.

    Attributes
    ----------
    deviation : float
        Of the logarithm of a parameter between members of the level.
    of : tuple of str
        Fields of `Traits` in which two must agree to share the effect.
    """

    name: str
    deviation: float
    of: tuple[str, ...]


GENERATION = 0.06
"""Deviation by which a parameter walks in a year: kernels are written for a generation."""

FIRST_YEAR = 2012

DEVICE_LEVELS = (
    Level("unit", 0.35, ("unit",)),
    Level("precision", 0.3, ("unit", "precision")),
    Level("rate", 0.25, ("unit", "per_clock")),
    Level("chip", 0.1, ("unit", "chip")),
    Level("chip and precision", 0.1, ("unit", "chip", "precision")),
    Level("software", 0.13, ("unit", "software")),
    Level("execution", 0.25, ("unit", "execution")),
    Level("source", 0.08, ("unit", "source")),
)
"""What devices differ by, in each parameter: chosen by what leaving a device or a source out costs (docs/model.md)."""

SHAPE_LEVELS = (
    Level("unit", 0.35, ("unit",)),
    Level("precision", 0.3, ("unit", "precision")),
    Level("execution", 0.25, ("unit", "execution")),
    Level("source", 0.15, ("unit", "source")),
)
"""The same of `SHAPE`."""

HOST_LEVELS = (
    Level("host", 0.3, ()),
    Level("software", 0.2, ("software",)),
    Level("execution", 0.5, ("launched",)),
    Level("source", 0.25, ("source",)),
    Level("computer", 0.15, ("source", "id")),
)
"""The same of `HOST`."""

USUAL = 0.3
"""Levels are of parameters with this deviation in `BASE`; those of the others are as much wider."""


def _scale(name: str) -> float:
    return max(BASE[name][2], USUAL) / USUAL


def _levels_of(name: str) -> tuple[Level, ...]:
    return HOST_LEVELS if name in HOST else SHAPE_LEVELS if name in SHAPE else DEVICE_LEVELS


class _Likeness:
    """Shared variances of some traits with others, by set of levels; computed once for all parameters."""

    def __init__(self, ones: Sequence[Traits], others: Sequence[Traits]) -> None:
        self.shape = len(ones), len(others)
        names = {name for levels in (DEVICE_LEVELS, SHAPE_LEVELS, HOST_LEVELS) for each in levels for name in each.of}
        self.equal = {name: self._same(name, ones, others) for name in names}
        years = [np.array([each.year for each in some], dtype=float) for some in (ones, others)]
        together = np.minimum(years[0][:, None], years[1][None, :])
        self.walked = GENERATION**2 * np.maximum(0.0, together - FIRST_YEAR) * self.equal["unit"]
        self.found: dict[tuple[Level, ...], Floats] = {}

    @staticmethod
    def _same(name: str, ones: Sequence[Traits], others: Sequence[Traits]) -> NDArray[np.bool_]:
        columns = [np.array([getattr(each, name) for each in some], dtype=object) for some in (ones, others)]
        same = columns[0][:, None] == columns[1][None, :]
        # Somebody new shares nothing with anybody, not even with somebody else who is new.
        return np.asarray(same & (columns[0] != "")[:, None] if name == "source" else same, dtype=bool)

    def of(self, name: str) -> Floats:
        """The covariance of a parameter, shape (ones, others)."""
        levels = _levels_of(name)
        if levels not in self.found:
            total = self.walked.copy() if levels is DEVICE_LEVELS else np.zeros(self.shape)
            for level in levels:
                shared = np.ones(self.shape, dtype=bool)
                for field in level.of:
                    shared &= self.equal[field]
                total += level.deviation**2 * shared
            self.found[levels] = total
        return self.found[levels] * _scale(name) ** 2


def _variance(name: str, asked: Traits) -> float:
    """Of a parameter where nothing is known."""
    levels = _levels_of(name)
    walked = GENERATION**2 * max(0, asked.year - FIRST_YEAR) if levels is DEVICE_LEVELS else 0.0
    return (walked + sum(level.deviation**2 for level in levels)) * _scale(name) ** 2


def expect(asked: Traits, base: Prior, evidence: Sequence[Evidence]) -> Prior:
    """What is expected of a device under some software: mean and deviation of each parameter's logarithm.

    With the covariance K of the fits that speak of a parameter, their own variances S, their covariances k with what is
    asked for, and its variance v, all around the mean of `base`::

        mean = base + k (K + S)^-1 (theta - base),    variance = v - k (K + S)^-1 k

    Parameters
    ----------
    base : Prior
        What is believed before anything was measured.
    evidence : sequence of Evidence
        Of all devices, the one asked for among them.
    """
    others = tuple([one for one in evidence if len(one.theta)])
    mean, deviation = base.mean.copy(), np.empty(len(NAMES))
    own = _Likeness([asked], others)
    for index, (name, (speaks, total, beyond)) in enumerate(zip(NAMES, _together(others))):
        # What no measured step teaches stays as it is believed, and as surely.
        is_taught = name in TAUGHT or len(speaks)
        variance = _variance(name, asked) if is_taught else base.deviation[index] ** 2
        if len(speaks):
            shared = own.of(name)[0, speaks]
            weights = np.linalg.solve(total, shared)
            mean[index] += weights @ beyond
            variance -= weights @ shared
        deviation[index] = np.sqrt(variance)
    return Prior(mean, deviation)


@lru_cache(maxsize=4)
def _together(others: tuple[Evidence, ...]) -> list[tuple[NDArray[np.intp], Floats, Floats]]:
    """Of each parameter which fits speak of it, their K + S, and their theta - base, whoever is asked for."""
    theta = np.array([one.theta for one in others]).reshape(-1, len(NAMES))
    open_to = np.array([one.deviation for one in others], dtype=float).reshape(-1, len(NAMES))
    # Means of units and of Kepler are those of the base: only what is beyond them is shared.
    means = [base_prior(one.unit.endswith("tensor"), one.kepler).mean for one in others]
    beyond = theta - np.array(means).reshape(-1, len(NAMES))
    among = _Likeness(others, others)
    found = []
    for index, name in enumerate(NAMES):
        speaks = np.flatnonzero(np.isfinite(open_to[:, index]))
        total = among.of(name)[np.ix_(speaks, speaks)] + np.diag(open_to[speaks, index] ** 2)
        found.append((speaks, total, beyond[speaks, index]))
    return found


# What measurements say ------------------------------------------------------------------------------------------------


class DeviceData(NamedTuple):
    """One source's measurements of a device in a precision.

    Attributes
    ----------
    scatter : float
        See `fit.SCATTER`.
    speaks_of : tuple of str
        Parameters that others may learn from it: all of whole steps, few of single operations.
    """

    device: Device
    precision: str
    traits: Traits
    runs: MeasuredRuns
    scatter: float = SCATTER
    speaks_of: tuple[str, ...] = TAUGHT


ROUNDS = 3
LEAST = 0.05
"""By what share of a prior's precision measurements must add to it to be said to speak of a parameter."""


def learn(measured: Iterable[DeviceData], known: Sequence[Evidence] = (), rounds: int = ROUNDS) -> list[Evidence]:
    """What measurements say, fit by fit: each starts from what the others say of it, until they agree.

    A parameter that a source's measurements hardly move is then close to what is expected of it, and the parameters
    that they do move are not bent by it. After three rounds nothing changes that matters.

    Parameters
    ----------
    known : sequence of Evidence
        Of others, which stays as it is.
    """
    groups = list(measured)
    learnt = [evidence_of(group, device_prior(group.device, group.precision)) for group in groups]
    for _ in range(rounds - 1):
        for index, group in enumerate(groups):
            others = [*learnt[:index], *learnt[index + 1 :], *known]
            start = np.array(learnt[index].theta)
            learnt[index] = evidence_of(group, prior_of(group, others), start)
    return learnt


def prior_of(group: DeviceData, others: Sequence[Evidence]) -> Prior:
    """What a group's fit starts from: what others say, of the parameters that it may speak of; the base of the rest."""
    base = device_prior(group.device, group.precision)
    expected = expect(group.traits, base, others)
    speaks = np.array([name in group.speaks_of for name in NAMES])
    return Prior(np.where(speaks, expected.mean, base.mean), np.where(speaks, expected.deviation, base.deviation))


def evidence_of(group: DeviceData, prior: Prior, start: Floats | None = None) -> Evidence:
    """What a group's own measurements say, its prior taken out of the precision again."""
    fitted = fit(group.runs, prior, group.scatter, start)
    precision = 1 / np.diag(fitted.covariance) - 1 / prior.deviation**2
    speaks = precision * prior.deviation**2 > LEAST
    deviation = tuple([
        float(value**-0.5) if moved and name in group.speaks_of else None
        for name, value, moved in zip(NAMES, precision, speaks)
    ])  # fmt: skip
    fields: dict[str, Any] = msgspec.structs.asdict(group.traits)
    return Evidence(
        **fields,
        points=len(group.runs),
        measured_in=group.precision,
        theta=tuple(fitted.theta.tolist()),
        deviation=deviation,
    )

"""What is believed of a device before its own steps are measured.

In three steps, each narrower than the one before:

1. `base_prior`: what kind of device it is, the medians of `BASE` for the units that multiply, shifted on Kepler;
2. `expect`: what all measured devices say together (`choose.read_pool` has them);
3. `narrow_by_probes`: single operations timed on the device itself.

A prior holds the logarithms of the parameters, in the order of `NAMES`: each normal, with a mean and a deviation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..architectures import Network
from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.work import CHANNELS_LAST, UNFUSED_EXECUTIONS
from ..machines import Device, Machine
from ..timing.calibrated import NAMES, POWER, Rates, evaluate, library_peak
from ..timing.features import CLASSES, features_of
from ..timing.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..measurement.running import Probed

    Floats = NDArray[np.float64]


class Prior(msgspec.Struct, frozen=True, eq=False):
    """What is believed before any measurement: mean and deviation of each parameter's logarithm."""

    mean: Floats
    deviation: Floats


SCATTER = 0.05
"""Relative scatter of whole networks around a good model."""

# 1. What kind of device it is -----------------------------------------------------------------------------------------

BASE: dict[str, tuple[float, float, float]] = {
    "efficiency_conv_3x3": (1.45, 0.62, 0.25),
    "efficiency_conv_direct": (0.55, 0.45, 0.3),
    "efficiency_conv_1x1": (0.8, 0.65, 0.3),
    "efficiency_conv_grouped": (0.42, 0.15, 0.45),
    "efficiency_conv_depthwise": (0.17, 0.06, 0.4),
    "efficiency_gemm": (0.72, 0.7, 0.3),
    "efficiency_attention": (0.5, 0.45, 0.15),
    "factor_data_gradient": (1.05, 1.0, 0.25),
    "factor_weight_gradient": (0.66, 0.6, 0.2),
    "share_matrix": (0.55, 0.65, 0.25),
    "share_other": (0.7, 0.6, 0.2),
    "half": (0.5, 0.5, 0.5),
    "half_3x3": (0.7, 0.7, 0.6),
    "floor_s": (5e-6, 5e-6, 0.4),
    "overhead_s": (28e-6, 28e-6, 0.4),
    "overhead_backward_s": (8e-6, 8e-6, 0.4),
    "overhead_gradient_s": (120e-6, 120e-6, 0.5),
    "step_s": (1.5e-3, 1.5e-3, 0.8),
}
"""Median on vector units, median on tensor cores, and deviation of the logarithm, of every parameter.

About what devices have in common, and by what they differ. 3x3 convolution on vector units is above 1 because of
Winograd's algorithm (2.25 times fewer multiplications at about 0.6 of peak); grouped and depthwise convolution reach a
few to some tens of percent; launching from Python takes 10 to 60 us per operation, from the autograd engine, which is
C++, less than half of that; a kernel takes a few microseconds at least.
"""

KEPLER = "Kepler"

KEPLER_SHARE = 128 / 192
"""Of Kepler's 192 lanes per multiprocessor four schedulers fill 128 with one instruction each (GK110 white paper)."""

KEPLER_HALF = 20.0
"""How many times more tiles a 3x3 convolution needs on Kepler: cuDNN computes Winograd's 36 products there in as many
launches, each of a sixteenth of the positions. Two fits of a K80 say 19 and 26."""


def device_prior(device: Device, precision: str) -> Prior:
    """What is believed of a device in a precision when nothing but its data sheet is known."""
    unit = library_peak(Machine(device), precision).peak.unit
    return base_prior(unit == "tensor", device.architecture == KEPLER)


def base_prior(tensor_cores: bool, kepler: bool = False) -> Prior:
    """The prior of `BASE` for multiply-accumulates on tensor cores or on vector units, on Kepler's where said.

    fp64 takes that of fp32, although libraries have no Winograd's algorithm there: what is measured in fp64 tells it.
    """
    rows = [BASE[name] for name in NAMES]
    mean = np.log([row[1 if tensor_cores else 0] for row in rows])
    if kepler:
        mean += np.log([KEPLER_SHARE if name.startswith("efficiency") else 1.0 for name in NAMES])
        mean[NAMES.index("half_3x3")] += np.log(KEPLER_HALF)
    return Prior(mean, np.array([row[2] for row in rows]))


# 2. What all measured devices say together ----------------------------------------------------------------------------
#
# Every parameter is a sum of effects, each normal around 0 with the deviation that its level has: of the unit that
# multiplies, of its generation, of the precision, the chip, the software, the source. Two fits are alike in a parameter
# by the variance of the effects that they share, so that what is expected of a device is a weighted mean of fits, those
# that share most with it first: the best linear unbiased predictor of a mixed model (Henderson, 1975), which
# geostatistics calls kriging. The variance of the effects that nobody shares stays in the interval.
#
# The host launches kernels, whatever the device: what it takes belongs to the software, the way of execution and the
# computer of a source. That is why devices differ only by `DEVICE_LEVELS` when they are compared under one software.

SOFTWARE = "pytorch"
"""What devices are compared under unless something else is asked for."""

HOST = ("overhead_s", "overhead_backward_s", "overhead_gradient_s", "step_s")
"""Parameters of the host: no device has them."""

SHAPE = ("factor_data_gradient", "factor_weight_gradient", "half", "half_3x3")
"""Parameters of kernels that devices of a kind share: telling devices apart in them loses nothing on held-out ones."""

TELLING = tuple(name for name in NAMES if name not in (*HOST, *SHAPE))
"""Parameters of kernels that tell devices apart."""

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
        FLOP of a multiprocessor in a clock, as a power of two: 0 where no source gives the clock.
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
    if execution in UNFUSED_EXECUTIONS and execution != CHANNELS_LAST:  # casts are counted: kernels are the same
        execution = "eager"
    rate = library_peak(Machine(device), precision)
    unit = rate.peak.unit
    kernels = SAME_KERNELS.get(precision, precision) if unit == "tensor" else precision
    # Tensor cores of gaming cards make half as many FLOP in a clock as those of workstations (with sums in fp32), those
    # of data centres twice to eight times as many: the fewer, the easier they are fed.
    clock_hz = device.clock_hz(rate.clock)  # type: ignore[arg-type]
    multiprocessors = float(device.cores.multiprocessors.value)
    per_clock = round(math.log2(rate.per_s / multiprocessors / clock_hz)) if clock_hz else 0
    return Traits(
        device.id, device.chip, device.year, device.architecture == KEPLER, f"{device.vendor} {unit}", kernels,
        software, execution, source, per_clock,
    )  # fmt: skip


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


def expect(asked: Traits, evidence: Sequence[Evidence]) -> Prior:
    """What is expected of a device under some software: mean and deviation of each parameter's logarithm.

    With the covariance K of the fits that speak of a parameter, their own variances S, their covariances k with what is
    asked for, and its variance v, all around the mean of the base, `base_prior`::

        mean = base + k (K + S)^-1 (theta - base),    variance = v - k (K + S)^-1 k

    Parameters
    ----------
    evidence : sequence of Evidence
        Of all devices, the one asked for among them.
    """
    others = tuple([one for one in evidence if len(one.theta)])
    base = base_prior(asked.unit.endswith("tensor"), asked.kepler)
    mean, deviation = base.mean.copy(), np.empty(len(NAMES))
    own = _variances([asked], others)
    for index, (name, (speaks, total, beyond)) in enumerate(zip(NAMES, _together(others))):
        alone, covariance = own[name]
        # What no measured step teaches stays as it is believed, and as surely.
        variance = alone[0] if name in TAUGHT or len(speaks) else base.deviation[index] ** 2
        if len(speaks):
            shared = covariance[0, speaks]
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
    among = _variances(others, others)
    found = []
    for index, name in enumerate(NAMES):
        speaks = np.flatnonzero(np.isfinite(open_to[:, index]))
        total = among[name][1][np.ix_(speaks, speaks)] + np.diag(open_to[speaks, index] ** 2)
        found.append((speaks, total, beyond[speaks, index]))
    return found


def _variances(ones: Sequence[Traits], others: Sequence[Traits]) -> dict[str, tuple[Floats, Floats]]:
    """Of each parameter the variances of some traits, where nothing is known, and their covariances with others."""
    shape = len(ones), len(others)
    equal: dict[str, NDArray[np.bool_]] = {}
    for field in {field for level in (*DEVICE_LEVELS, *SHAPE_LEVELS, *HOST_LEVELS) for field in level.of}:
        own, theirs = (np.array([getattr(one, field) for one in some], dtype=object) for some in (ones, others))
        equal[field] = np.asarray(own[:, None] == theirs[None, :], dtype=bool)
        if field == "source":  # somebody new shares nothing with anybody, not even with somebody else who is new
            equal[field] &= (own != "")[:, None]
    years, other_years = (np.array([one.year for one in some], dtype=float) for some in (ones, others))
    found: dict[str, tuple[Floats, Floats]] = {}
    for names, levels in ((TELLING, DEVICE_LEVELS), (SHAPE, SHAPE_LEVELS), (HOST, HOST_LEVELS)):
        walked, shared = np.zeros(len(ones)), np.zeros(shape)
        if levels is DEVICE_LEVELS:
            walked = GENERATION**2 * np.maximum(0.0, years - FIRST_YEAR)
            together = np.minimum(years[:, None], other_years[None, :])
            shared = GENERATION**2 * np.maximum(0.0, together - FIRST_YEAR) * equal["unit"]
        for level in levels:
            alike = np.ones(shape, dtype=bool)
            for field in level.of:
                alike &= equal[field]
            shared = shared + level.deviation**2 * alike
        alone = walked + sum(level.deviation**2 for level in levels)
        for name in names:
            scale = max(BASE[name][2], USUAL) / USUAL
            found[name] = alone * scale**2, shared * scale**2
    return found


# 3. What single operations on the device itself say -------------------------------------------------------------------

PROBE_DEVIATION = 0.3
"""Deviation of a parameter's logarithm that a probe leaves at least: networks hold other shapes, and cold caches."""


def narrow_by_probes(
    base: Prior, timed: Iterable[Probed], rates: Rates, precision: str, launch_s: float, serial: bool
) -> Prior:
    """The prior of a device on which single operations were timed.

    Each probe inverts the model's own formula for one layer (`timing.calibrated`): with the time measured and the
    other terms at their prior, what is left is the compute term, and FLOPs over it is the efficiency of the probe's
    class. Of several probes of a class the median holds, and their spread is what it leaves open.

    Parameters
    ----------
    base : Prior
        What is kept where no probe measures a parameter.
    timed : iterable of Probed
        Operations run by themselves; those of the launch itself, which `launch_s` is of, are left out.
    launch_s : float
        Seconds of the shortest operation.
    serial : bool
        Whether launching and computing take turns, as on a CPU: then the shortest operation is the floor of each.
        Elsewhere it is what the host needs to launch one.
    """
    mean, deviation = base.mean.copy(), base.deviation.copy()

    def believe(name: str, value: float, spread: float) -> None:
        index = NAMES.index(name)
        mean[index] = np.log(value)
        deviation[index] = min(max(spread, PROBE_DEVIATION), deviation[index])

    for name in ("floor_s", "overhead_s", "overhead_backward_s") if serial else ("overhead_s",):
        believe(name, launch_s, 0.5)
    shares: dict[str, list[float]] = defaultdict(list)
    for probed in timed:
        name, share = _share(probed, rates, precision, mean)
        if share is not None and probed.probe.purpose != "launch":
            shares[name].append(share)
    for name, values in shares.items():
        believe(name, float(np.median(values)), float(np.std(np.log(values))))
    return Prior(mean, deviation)


def _share(probed: Probed, rates: Rates, precision: str, theta: Floats) -> tuple[str, float | None]:
    """The parameter that a probe measures and its value; None where the other terms leave nothing of the time."""
    network, time_s = Network("probe", (), (probed.probe.layer,), 0), probed.timing.median_s
    features = features_of(Workload(network, precision, probed.probe.batch_size))
    values = np.exp(theta)
    work_class = CLASSES[int(features.work_class[0])]
    name = f"efficiency_{work_class}" if work_class in MATRIX_CLASSES else "share_other"
    values[NAMES.index(name)] = 1.0
    terms = evaluate(features, rates, values)
    own, other = (terms.compute_s, terms.memory_s) if work_class in MATRIX_CLASSES else (terms.memory_s, 0.0)
    left = time_s**POWER - float(np.sum(other**POWER + terms.floor_s**POWER))
    # Less than a third of the time does not measure this term.
    if left < (time_s / 3) ** POWER:
        return name, None
    return name, float(own[0]) / left ** (1 / POWER)

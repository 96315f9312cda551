"""Prior distributions of a device's parameters, before any step of it is measured.

There are three sources, each narrower than the one before:

1. `base_prior`: the kind of device; medians of `BASE` for its arithmetic units, adapted for Kepler;
2. `prior_from_evidence`: the measurements of all devices (from `choose.read_pool`);
3. `narrow_by_probes`: single operations timed on the device.

A prior is a normal distribution of the logarithm of each parameter, in the order of `NAMES`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..architectures import Network
from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.work import CHANNELS_LAST, UNFUSED_EXECUTIONS
from ..machines import Device, Machine
from ..timing.calibrated import POWER, Rates, evaluate, library_peak
from ..timing.features import CLASSES, features_of
from ..timing.parameters import NAMES
from ..timing.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..measurement.running import Probed

    Floats = NDArray[np.float64]


class Prior(msgspec.Struct, frozen=True, eq=False):
    """Mean and standard deviation of the logarithm of each parameter."""

    mean: Floats
    deviation: Floats


FIT_SCATTER = 0.05
"""Expected relative scatter of measured steps around the fitted model."""

# 1. Kind of device ----------------------------------------------------------------------------------------------------

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
    "overhead_s": (20e-6, 20e-6, 0.4),
    "overhead_backward_s": (8e-6, 8e-6, 0.4),
    "overhead_gradient_s": (120e-6, 120e-6, 0.5),
    "step_s": (0.5e-3, 0.5e-3, 0.8),
}
"""Median on vector units, median on tensor cores, and standard deviation of the logarithm, of every parameter.

3x3 convolution on vector units is above 1 because of Winograd's algorithm (2.25 times fewer multiplications at about
0.6 of peak). Grouped and depthwise convolution reach between a few and some tens of percent. Launching an operation
from Python takes 10 to 60 us, and less than half of that from the autograd engine, which is written in C++. A kernel
takes a few microseconds at least.
"""

KEPLER = "Kepler"

KEPLER_SHARE = 128 / 192
"""Usable fraction of Kepler's peak: four schedulers fill 128 of the 192 lanes of a multiprocessor with one instruction
each (GK110 white paper)."""

KEPLER_HALF = 20.0
"""Factor on `half_3x3` on Kepler: cuDNN computes the 36 products of Winograd's algorithm there in as many launches,
each with a sixteenth of the positions. Two fits of a K80 give 19 and 26."""


def device_prior(device: Device, precision: str) -> Prior:
    """Return the prior of a device in a precision from its data sheet alone."""
    unit = library_peak(Machine(device), precision).peak.unit
    return base_prior(unit == "tensor", device.architecture == KEPLER, precision)


def base_prior(tensor_cores: bool, kepler: bool = False, precision: str = "fp32") -> Prior:
    """Return the prior of `BASE` for tensor cores or vector units, adapted for Kepler and for fp64 if requested.

    In fp64 libraries do not use Winograd's algorithm: 3x3 convolutions have the efficiency of other dense ones, and on
    Kepler their own saturation, not that of its many launches.
    """
    rows = [BASE[name] for name in NAMES]
    column = 1 if tensor_cores else 0
    mean = np.log([row[column] for row in rows])
    if precision == "fp64":
        mean[NAMES.index("efficiency_conv_3x3")] = mean[NAMES.index("efficiency_conv_direct")]
    if kepler:
        mean += np.log([KEPLER_SHARE if name.startswith("efficiency") else 1.0 for name in NAMES])
        if precision != "fp64":
            mean[NAMES.index("half_3x3")] += np.log(KEPLER_HALF)
    return Prior(mean, np.array([row[2] for row in rows]))


# 2. Measurements of all devices ---------------------------------------------------------------------------------------
#
# Every parameter is a sum of random effects: of the arithmetic unit, the device generation, the precision, the chip,
# the software and the source. Each effect is normal around 0 with the deviation of its level. The covariance of two
# fits in a parameter is the variance of the effects that they share. The prior of a device is therefore a weighted mean
# of fits, in which those that share most with it weigh most: the best linear unbiased predictor of a mixed model
# (Henderson, 1975), called kriging in geostatistics. Effects that no fit shares remain in the variance.
#
# Some fits are far from what all others imply, for example because a card throttled. In the parameters of kernels, they
# have less weight, as if effects had Student's t distribution, which has longer tails (Lange, Little and Taylor, 1989).
#
# The host launches kernels independently of the device: its overheads depend on the software, the execution and the
# computer of a source. Devices compared under one software therefore differ only by `DEVICE_LEVELS`.

SOFTWARE = "pytorch"
"""Software under which devices are compared by default."""

HOST_PARAMETERS = ("overhead_s", "overhead_backward_s", "overhead_gradient_s", "step_s")
"""Parameters of the host, which do not depend on the device."""

SHARED_PARAMETERS = ("factor_data_gradient", "factor_weight_gradient", "half", "half_3x3")
"""Parameters of kernels with one value for all devices of a kind; values per device do not improve held-out devices."""

DEVICE_PARAMETERS = tuple(name for name in NAMES if name not in (*HOST_PARAMETERS, *SHARED_PARAMETERS))
"""Parameters of kernels that differ between devices."""

INFORMED_PARAMETERS = tuple(name for name in NAMES if name not in ("floor_s", "efficiency_attention"))
"""Parameters that measured steps inform. The shortest kernel and attention stay at the values of `BASE`, because
networks contain too little of either to separate it from the products around it."""

SAME_KERNELS = {"bf16": "fp16", "tf32": "fp16"}
"""Precisions with kernels like those of another precision on tensor cores; each has its own peak."""

OWN_SATURATION_PARAMETERS = ("half", "half_3x3")
OWN_SATURATION_DEVIATION = 0.5
"""Additional deviation of these parameters in the prior of a calibration. Common values of all devices of a kind
predict unmeasured devices best, but the values differ between devices: with the narrower prior, the 90% intervals of a
calibration contain 84% of the measurements with other batch sizes instead of 86%, and errors are larger."""

SINGLE_OPERATIONS = "kernels"
"""Name of the software in evidence from operations that were timed individually."""


class Traits(msgspec.Struct, frozen=True):
    """Properties of a device, its precision and its software that effects depend on."""

    id: str  # name of the device
    chip: str  # chip of the device
    year: int  # release year of the device
    kepler: bool  # whether the device has the Kepler architecture
    unit: str  # vendor and arithmetic unit, "NVIDIA tensor"
    precision: str  # precision of the kernels: tf32 and bf16 use those of fp16
    software: str = SOFTWARE  # name of the framework
    execution: str = "eager"  # "eager", "channels-last", "compiled" or "folded"
    source: str = ""  # origin of the measurements; empty for an unknown computer
    per_clock: int = 0  # log2 of the FLOPs per multiprocessor and clock; 0 if the clock is unknown

    @property
    def launch_mode(self) -> str:
        """Execution that determines the host overhead: the memory format does not affect it."""
        return "eager" if self.execution == CHANNELS_LAST else self.execution


class Evidence(Traits, frozen=True):
    """Parameters fitted to one source's measurements of a device in a precision.

    Attributes
    ----------
    points : int
        Number of measurements.
    measured_in : str
        Precision of the measurements, which may differ from that of the kernels.
    theta : tuple of float
        Logarithm of each parameter, in the order of `NAMES`.
    deviation : tuple of float or None
        Standard deviation of each by the measurements alone; None if they contain no information on it.
    """

    points: int = 0
    measured_in: str = ""
    theta: tuple[float, ...] = ()
    deviation: tuple[float | None, ...] = ()


def traits_of(
    device: Device, precision: str, software: str = SOFTWARE, execution: str = "eager", source: str = ""
) -> Traits:
    """Return the traits of a device in a precision under some software."""
    if execution in UNFUSED_EXECUTIONS and execution != CHANNELS_LAST:  # the kernels are those of eager execution
        execution = "eager"
    rate = library_peak(Machine(device), precision)
    unit = rate.peak.unit
    kernel_precision = SAME_KERNELS.get(precision, precision) if unit == "tensor" else precision
    # Tensor cores of gaming cards do half as many FLOPs per clock as those of workstation cards (with fp32
    # accumulation), those of data-center cards two to eight times as many. Slower cores are easier to keep busy.
    clock_hz = device.clock_hz(rate.clock)  # type: ignore[arg-type]
    multiprocessors = float(device.cores.multiprocessors.value)
    per_clock = round(math.log2(rate.per_s / multiprocessors / clock_hz)) if clock_hz else 0
    return Traits(
        id=device.id,
        chip=device.chip,
        year=device.year,
        kepler=device.architecture == KEPLER,
        unit=f"{device.vendor} {unit}",
        precision=kernel_precision,
        software=software,
        execution=execution,
        source=source,
        per_clock=per_clock,
    )


class Level(NamedTuple):
    """One level of random effects."""

    name: str
    deviation: float  # standard deviation of the effects on the logarithm of a parameter
    fields: tuple[str, ...]  # fields of `Traits` that two fits must have in common to share the effect


GENERATION = 0.06
"""Standard deviation of the random walk of a parameter per year: kernels are optimized for a device generation."""

FIRST_YEAR = 2012
"""Start of the random walk."""

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
"""Effects on `DEVICE_PARAMETERS`, chosen by the errors on held-out devices and sources (docs/model.md)."""

SHARED_LEVELS = (
    Level("unit", 0.35, ("unit",)),
    Level("precision", 0.3, ("unit", "precision")),
    Level("execution", 0.25, ("unit", "execution")),
    Level("source", 0.15, ("unit", "source")),
)
"""Effects on `SHARED_PARAMETERS`."""

HOST_LEVELS = (
    Level("host", 0.3, ()),
    Level("software", 0.2, ("software",)),
    Level("execution", 0.5, ("launch_mode",)),
    Level("source", 0.25, ("source",)),
    Level("computer", 0.15, ("source", "id")),
)
"""Effects on `HOST_PARAMETERS`."""

LEAST_HOST_POINTS = 4
"""Steps that a fit needs to say something about the host, as many as there are parameters of it: one time of one large
step cannot tell a slow host from a slow device."""

REFERENCE_DEVIATION = 0.3
"""Deviation in `BASE` that the levels are given for; for parameters with a larger one they are scaled up."""

DEGREES_OF_FREEDOM = 4.0
"""Degrees of freedom of Student's t distribution by which fits far from all others lose weight (docs/model.md)."""

_OUTLIER_ITERATIONS = 3
"""Number of times that the weights are computed; with ten, none of them would change by more than 0.02."""


def prior_from_evidence(target: Traits, evidence: Sequence[Evidence]) -> Prior:
    """Return the prior of a device under some software, conditional on the fits of measured devices.

    For each parameter, with the prior mean of `base_prior`, the covariance K of the fits that inform it, their own
    variances S, their covariances k with the target, and the variance v of the target::

        mean = base + k (K + S)^-1 (theta - base),    variance = v - k (K + S)^-1 k

    S includes the additional variance of fits that contradict the others (`_outlier_variances`). In the parameters of
    devices, fits of the target's chip in its precision are excepted: what is special about them may be the chip. The
    evidence has the fits of all devices, possibly including the target.
    """
    fits = tuple([fit for fit in evidence if len(fit.theta)])
    base = base_prior(target.unit.endswith("tensor"), target.kepler, target.precision)
    mean, deviation = base.mean.copy(), np.empty(len(NAMES))
    covariances = _prior_covariances([target], fits)
    is_other_chip = np.array([(fit.chip, fit.precision) != (target.chip, target.precision) for fit in fits])
    for index, (name, system) in enumerate(zip(NAMES, _kriging_systems(fits))):
        target_variance, covariance = covariances[name]
        if name in INFORMED_PARAMETERS or len(system.informative):
            variance = target_variance[0]
        else:  # parameters without any information keep their prior deviation
            variance = base.deviation[index] ** 2
        if len(system.informative):
            covariance_with_fits = covariance[0, system.informative]
            outlier_variances = system.outlier_variances
            if name in DEVICE_PARAMETERS:
                outlier_variances = outlier_variances * is_other_chip[system.informative]
            weights = np.linalg.solve(system.covariance + np.diag(outlier_variances), covariance_with_fits)
            mean[index] += weights @ system.differences
            variance -= weights @ covariance_with_fits
        deviation[index] = np.sqrt(variance)
    return Prior(mean, deviation)


def prior_of_calibration(target: Traits, evidence: Sequence[Evidence]) -> Prior:
    """Return the prior for fitting a device's own measurements.

    It is that of `prior_from_evidence`, except that the parameters of saturation are free to differ from those of other
    devices (`OWN_SATURATION_DEVIATION`), unless the evidence includes the device under the same software.
    """
    expected = prior_from_evidence(target, evidence)
    for fit in evidence:
        if (fit.id, fit.precision, fit.software) == (target.id, target.precision, target.software):
            return expected
    deviation = expected.deviation.copy()
    for name in OWN_SATURATION_PARAMETERS:
        index = NAMES.index(name)
        deviation[index] = math.hypot(deviation[index], OWN_SATURATION_DEVIATION)
    return Prior(expected.mean, deviation)


class _KrigingSystem(NamedTuple):
    """Linear system of one parameter."""

    informative: NDArray[np.intp]  # indices of the fits that inform the parameter
    covariance: Floats  # K + S, without the additional variances of outliers, shape (informative, informative)
    differences: Floats  # theta - base, shape (informative,)
    outlier_variances: Floats  # additional variances of fits that contradict the others, shape (informative,)


@lru_cache(maxsize=4)
def _kriging_systems(fits: tuple[Evidence, ...]) -> list[_KrigingSystem]:
    """Return the system of each parameter; it does not depend on the target."""
    theta = np.array([fit.theta for fit in fits]).reshape(-1, len(NAMES))
    deviations = np.array([fit.deviation for fit in fits], dtype=float).reshape(-1, len(NAMES))
    # Differences between kinds of units, and of Kepler, are in the base means; effects are deviations from them.
    kinds = [(fit.unit.endswith("tensor"), fit.kepler, fit.precision) for fit in fits]
    base_means = {kind: base_prior(*kind).mean for kind in set(kinds)}
    differences = theta - np.array([base_means[kind] for kind in kinds]).reshape(-1, len(NAMES))
    covariances = _prior_covariances(fits, fits)
    systems = []
    for index, name in enumerate(NAMES):
        is_informative = np.isfinite(deviations[:, index])
        if name in HOST_PARAMETERS:
            is_informative &= np.array([fit.points >= LEAST_HOST_POINTS for fit in fits], dtype=bool)
        informative = np.flatnonzero(is_informative)
        between_fits = covariances[name][1][np.ix_(informative, informative)]
        covariance = between_fits + np.diag(deviations[informative, index] ** 2)
        parameter_differences = differences[informative, index]
        outlier_variances = np.zeros(len(informative))
        if name not in HOST_PARAMETERS:  # computers differ widely without being outliers
            outlier_variances = _outlier_variances(covariance, parameter_differences)
        systems.append(_KrigingSystem(informative, covariance, parameter_differences, outlier_variances))
    return systems


def _outlier_variances(covariance: Floats, differences: Floats) -> Floats:
    """Return the variances to add to fits that contradict the others, shape (fits,).

    Each fit is compared with its expectation from all others. Its distance d from there, in standard deviations, has
    the weight (nu + 1) / (nu + d^2) of Student's t distribution with nu degrees of freedom, at most 1; the variance of
    the fit is divided by the weight (iteratively reweighted; Lange, Little and Taylor, *Robust Statistical Modeling
    Using the t Distribution*, 1989). The result is 0 for fits within a standard deviation of their expectation. The
    covariance is K + S, shape (fits, fits), and the differences are theta - base, shape (fits,).
    """
    additional = np.zeros(len(differences))
    for _ in range(_OUTLIER_ITERATIONS):
        inverse = np.linalg.inv(covariance + np.diag(additional))
        # For a normal distribution with precision matrix Q, the distance of an element from its expectation given all
        # others is (Q x)_i / Q_ii, and its variance is 1 / Q_ii.
        distances = inverse @ differences / np.diag(inverse)
        variances = 1 / np.diag(inverse) - additional
        weights = (DEGREES_OF_FREEDOM + 1) / (DEGREES_OF_FREEDOM + distances**2 / variances)
        additional = variances * (1 / np.minimum(weights, 1.0) - 1)
    return additional


def _prior_covariances(targets: Sequence[Traits], others: Sequence[Traits]) -> dict[str, tuple[Floats, Floats]]:
    """Return the variances and covariances of every parameter before any measurement.

    For each parameter they are the variances of the targets, shape (targets,), and their covariances with the others,
    shape (targets, others).
    """
    shape = len(targets), len(others)
    is_equal: dict[str, NDArray[np.bool_]] = {}
    for field in {field for level in (*DEVICE_LEVELS, *SHARED_LEVELS, *HOST_LEVELS) for field in level.fields}:
        codes: dict[Any, int] = {}  # comparing numbers is a hundred times as fast as comparing texts
        target_codes = np.array([codes.setdefault(getattr(traits, field), len(codes)) for traits in targets])
        other_codes = np.array([codes.setdefault(getattr(traits, field), len(codes)) for traits in others])
        is_equal[field] = target_codes[:, None] == other_codes[None, :]
        if field == "source":  # unknown sources share nothing, not even with each other
            is_equal[field] &= (target_codes != codes.get("", -1))[:, None]
    years = np.array([traits.year for traits in targets], dtype=float)
    other_years = np.array([traits.year for traits in others], dtype=float)
    covariances: dict[str, tuple[Floats, Floats]] = {}
    for names, levels in (
        (DEVICE_PARAMETERS, DEVICE_LEVELS),
        (SHARED_PARAMETERS, SHARED_LEVELS),
        (HOST_PARAMETERS, HOST_LEVELS),
    ):
        walk_variance, shared = np.zeros(len(targets)), np.zeros(shape)
        if levels is DEVICE_LEVELS:
            walk_variance = GENERATION**2 * np.maximum(0.0, years - FIRST_YEAR)
            earlier_year = np.minimum(years[:, None], other_years[None, :])
            shared = GENERATION**2 * np.maximum(0.0, earlier_year - FIRST_YEAR) * is_equal["unit"]
        for level in levels:
            has_same_effect = np.ones(shape, dtype=bool)
            for field in level.fields:
                has_same_effect &= is_equal[field]
            shared = shared + level.deviation**2 * has_same_effect
        variance = walk_variance + sum(level.deviation**2 for level in levels)
        for name in names:
            scale = max(BASE[name][2], REFERENCE_DEVIATION) / REFERENCE_DEVIATION
            covariances[name] = variance * scale**2, shared * scale**2
    return covariances


# 3. Single operations on the device -----------------------------------------------------------------------------------

PROBE_DEVIATION = 0.3
"""Least standard deviation of a parameter's logarithm after a probe: networks have other shapes, and cold caches."""

_LAUNCH_DEVIATION = 0.5
"""Standard deviation of the logarithm of launch parameters after probes."""


def narrow_by_probes(
    base: Prior,  # prior of the parameters that no probe measures
    # Operations timed individually. Those that measure the launch are not used: `launch_s` is their result.
    timed: Iterable[Probed],
    rates: Rates,
    precision: str,
    launch_s: float,  # seconds of the shortest operation
    # Whether launching and computing alternate, as on a CPU: then the shortest operation is the minimum time of each.
    # Otherwise it is the host time to launch one operation.
    serial: bool,
) -> Prior:
    """Return the prior of a device on which single operations were timed.

    Each probe inverts the model's formula for one layer (`timing.calibrated`): the measured time without the other
    terms, at their prior values, is the compute term; the FLOPs over it give the efficiency of the probe's class. The
    median is used if there are several probes of a class, and their spread is the remaining uncertainty.
    """
    mean, deviation = base.mean.copy(), base.deviation.copy()

    def update(name: str, value: float, spread: float) -> None:
        index = NAMES.index(name)
        mean[index] = np.log(value)
        deviation[index] = min(max(spread, PROBE_DEVIATION), deviation[index])

    launch_parameters = ("floor_s", "overhead_s", "overhead_backward_s") if serial else ("overhead_s",)
    for name in launch_parameters:
        update(name, launch_s, _LAUNCH_DEVIATION)
    fractions: dict[str, list[float]] = defaultdict(list)
    for probed in timed:
        name, fraction = _measured_fraction(probed, rates, precision, mean)
        if fraction is not None and probed.probe.purpose != "launch":
            fractions[name].append(fraction)
    for name, values in fractions.items():
        update(name, float(np.median(values)), float(np.std(np.log(values))))
    return Prior(mean, deviation)


def _measured_fraction(probed: Probed, rates: Rates, precision: str, theta: Floats) -> tuple[str, float | None]:
    """Return the parameter that a probe measures, and its value; None if the other terms explain the time."""
    network, time_s = Network("probe", (), (probed.probe.layer,), 0), probed.timing.median_s
    features = features_of(Workload(network, precision, probed.probe.batch_size))
    values = np.exp(theta)
    work_class = CLASSES[int(features.work_class[0])]
    is_matrix = work_class in MATRIX_CLASSES
    name = f"efficiency_{work_class}" if is_matrix else "share_other"
    values[NAMES.index(name)] = 1.0
    terms = evaluate(features, rates, values)
    if is_matrix:
        at_peak_s = float(terms.compute_s[0])
        others = float(np.sum(terms.memory_s**POWER + terms.floor_s**POWER))
    else:
        at_peak_s = float(terms.memory_s[0])
        others = float(np.sum(terms.floor_s**POWER))
    rest = time_s**POWER - others
    if rest < (time_s / 3) ** POWER:  # a term below a third of the time is not measured by it
        return name, None
    return name, at_peak_s / rest ** (1 / POWER)

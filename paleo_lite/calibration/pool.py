"""The time model pooled from all measurements: the parameters of a device, from those of every device measured alone.

The pool, ``calibrations/pooled.json``, has the parameters fitted to the measurements of each source and device alone,
so that nothing counts twice and a prediction reads one small file. `prior.prior_from_evidence` combines them.
``make calibrations`` writes the file. Every prediction imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting.work import COMPILED, ENGINE, UNFUSED_EXECUTIONS
from ..errors import BadFile
from ..files import FileVersion, read_typed, shipped_folder, version_of
from ..machines import Device, find_device
from ..text import format_plural
from ..timing.calibrated import CalibratedModel
from ..timing.notes import WIDE_INTERVAL
from ..timing.parameters import NAMES
from .prior import (
    HOST_PARAMETERS,
    SINGLE_OPERATIONS,
    SOFTWARE,
    Evidence,
    Prior,
    Traits,
    prior_from_evidence,
    prior_of_calibration,
    traits_of,
)

if TYPE_CHECKING:
    pass

POOL_FILE = "pooled.json"
FORMAT = 2
_MAX_FILE_BYTES = 2**22

POOL_SCATTER = 0.07
"""Relative scatter of single measurements around the pooled model."""

FAST_FP64_SHIFT = -0.4
"""Addition to the logarithms of the shares of peak of products in fp64, on devices with a third of the fp32 rate or
more and without measurements in fp64.

The pooled shares rest on an A100 and on devices whose rate is 1/32. Steps of a TITAN V (half rate) take 1.2 to 5.0
times as long, exp(1.1) in the mean of the logarithm: libraries have few fp64 convolution kernels for such devices. The
shift lies between the two devices, nearer to the A100 with its 64 steps.
"""

FAST_FP64_SCATTER = 0.4
"""Scatter of single steps around that, beside the deviations of the pooled parameters.

Of the four steps of the TITAN V two are in the 90% interval, and one is 3.7 times the forecast.
"""

_FAST_FP64_NOTE = (
    "fp64 at a third of the fp32 rate or more was measured on an A100 and on a TITAN V, whose steps take 1.2 to 5 "
    "times as long relative to the peak: the forecast is between the two"
)

INT8_DEVIATION = 0.25
"""Deviation of the logarithm of a share of peak in int8, each precision relative to its own peak, from that in 16 bits.

An engine's networks in int8 were not timed kernel by kernel, but where both precisions were, their shares are alike:
products of more than 100 GFLOP under TensorRT-LLM on an A100 run 1.83 to 2.1 times as fast as in bf16, whose peak is
half of that in int8 (ai-dynamo/aiconfigurator 095f58a), and the one convolution of more than 1.5 GFLOP that DeepBench
timed in both on a T4 runs 2.17 times as fast. In fp8 the shares are 0.73 to 0.9 of those in 16 bits.
"""

_INT8_NOTE = (
    "no network was timed in int8: each layer is given the share of the int8 peak that 16 bits reach of theirs, as "
    "products on an A100 and convolutions on a T4 do, and the interval is wider for it"
)

VENDORS = ("NVIDIA", "AMD")
"""Vendors of the measured GPUs, each with its own libraries."""


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the pool's file."""

    format: int
    parameters: list[str]  # names of the parameters, in the order of the numbers in the fits
    fits: list[Evidence]  # parameters fitted to each source's measurements of a device
    # Additions to the logarithms of parameters, for devices such as ``"k40m fp32"``, or ``"k40m fp32 engine"`` in
    # an inference engine. They prevent that a device with better figures in every respect is predicted to be
    # slower, see `validation/ordering.py`.
    order: dict[str, dict[str, float]] = {}


class NotPooled(msgspec.Struct, frozen=True):
    """Reason why there is no pooled model."""

    reason: str


def pooled_model(
    device: Device, precision: str, execution: str = "eager", software: str = SOFTWARE, pool: Pool | None = None
) -> CalibratedModel | NotPooled:
    """Return the model pooled from the measurements of all devices, for some software on an unknown host.

    It is `NotPooled` if the vendor was not measured, the device is a board of several, or no fit is in this precision
    on such arithmetic units. `execution` is one of `paleo_lite.counting.fusion.EXECUTIONS`, `software` the name of a
    framework without version. Without a pool it is the shipped one.
    """
    is_engine = execution == ENGINE
    if is_engine:
        # Engines call the kernels that were timed one by one. The losses around a matrix product in steps of eager
        # PyTorch do not apply to them.
        software = execution = SINGLE_OPERATIONS
    takes_16_bit_shares = is_engine and precision == "int8" and has_int8_matrix_units(device)
    measured_precision = "fp16" if takes_16_bit_shares else precision
    match = _match_pool(device, measured_precision, execution, software, pool)
    if isinstance(match, NotPooled):
        return match
    is_shipped = pool is None
    traits, pool = match
    prior = _shipped_prior(traits, version_of(_pool_path())) if is_shipped else prior_from_evidence(traits, pool.fits)
    if is_engine:
        prior = engine_prior(prior)
    mean = prior.mean.copy()
    variance = prior.deviation**2
    for name, shift in pool.order.get(order_key(device, precision, ENGINE if is_engine else execution), {}).items():
        mean[NAMES.index(name)] += shift
    label, notes = _label_and_notes(device, measured_precision, traits, pool.fits)
    scatter = POOL_SCATTER
    is_efficiency = np.array([name.startswith("efficiency_") for name in NAMES])
    if takes_16_bit_shares:
        variance = np.where(is_efficiency, variance + INT8_DEVIATION**2, variance)
        notes = (*notes, _INT8_NOTE)
    if _has_unmeasured_fast_fp64(device, precision, pool):
        mean[is_efficiency] += FAST_FP64_SHIFT
        scatter = FAST_FP64_SCATTER
        notes = (*notes, _FAST_FP64_NOTE)
    covariance = np.diag(variance)
    slowdown = _embedded_slowdown(device)
    if slowdown > 1.0 and execution in (*UNFUSED_EXECUTIONS, COMPILED):  # programs that launch kernel by kernel
        is_host = np.isin(NAMES, HOST_PARAMETERS)
        mean[is_host] += math.log(slowdown)
        covariance[np.ix_(is_host, is_host)] += EMBEDDED_HOST_DEVIATION**2
        notes = (
            *notes,
            f"the processor of a Jetson is assumed to launch kernels {slowdown:.1f} times as slowly as those of "
            "desktops and servers",
        )
    return CalibratedModel(
        label,
        mean,
        covariance,
        scatter,
        notes=notes,
        learned_fraction=np.zeros(len(NAMES)),
    )


def order_key(device: Device, precision: str, execution: str) -> str:
    """Return the key of a device in `Pool.order`; inference engines have shifts of their own."""
    key = f"{device.id} {precision}"
    return f"{key} {ENGINE}" if execution == ENGINE else key


def has_int8_matrix_units(device: Device) -> bool:
    """Return whether the matrix units of a device compute in int8 and in 16 bits."""
    on_matrix_units = {peak.precision for peak in device.peaks if peak.unit == "tensor"}
    return {"int8", "fp16"} <= on_matrix_units


EMBEDDED_HOST_SLOWDOWN = 3.0
EMBEDDED_HOST_DEVIATION = 0.5
"""Time in which the processor of a Jetson launches a kernel, over that of desktops and servers, and the deviation of
its logarithm between boards. The factor was chosen on 29 networks under PyTorch on an AGX Xavier (torch2trt's
benchmarks): the median error of the logarithm of the time falls from 0.90 to 0.11. On 18 networks on a Nano, which are
held out, it falls from 0.73 to 0.53. Of boards since Orin, with cores of later generations, none was measured: the
factor is taken to lie in the middle between 1 and that of the Xavier."""


def _embedded_slowdown(device: Device) -> float:
    """Return how much slower an embedded board launches kernels than desktops and servers; 1 for all other devices."""
    if not device.embedded:
        return 1.0
    is_early = float(device.capability or 0.0) < 8.0  # up to Volta
    return EMBEDDED_HOST_SLOWDOWN if is_early else math.sqrt(EMBEDDED_HOST_SLOWDOWN)


def _has_unmeasured_fast_fp64(device: Device, precision: str, pool: Pool) -> bool:
    """Return whether a device has fp64 at a third of the fp32 rate or more, and no measurement in fp64.

    Boards with the chip and the rate of a measured one need none of their own.
    """
    if precision != "fp64" or device.vendor != "NVIDIA":
        return False
    fp64, fp32 = (device.find_peak(name, "vector").per_s for name in ("fp64", "fp32"))
    chip = device.chip.partition("-")[0]  # without its variant, as in GA100-883
    is_measured = any(
        fit.precision == "fp64"
        and fit.chip.partition("-")[0] == chip
        and abs(find_device(fit.id).find_peak("fp64", "vector").per_s / fp64 - 1) < 0.05
        for fit in pool.fits
    )
    return fp64 >= 0.3 * fp32 and not is_measured


def pool_prior(
    device: Device, precision: str, execution: str = "eager", software: str = SOFTWARE, pool: Pool | None = None
) -> Prior | None:
    """Return the prior for fitting a device's own measurements; None if the pool does not cover the device."""
    match = _match_pool(device, precision, execution, software, pool)
    if isinstance(match, NotPooled):
        return None
    traits, pool = match
    return prior_of_calibration(traits, pool.fits)


def _match_pool(
    device: Device, precision: str, execution: str, software: str, pool: Pool | None
) -> tuple[Traits, Pool] | NotPooled:
    """Return the traits of a device, and the pool if it has a fit in this precision on such arithmetic units."""
    reason = why_not_pooled(device)
    if reason:
        return NotPooled(reason)
    pool = pool or shipped_pool()
    traits = traits_of(device, precision, software, execution)
    if not any((fit.unit, fit.precision) == (traits.unit, traits.precision) for fit in pool.fits):
        return NotPooled(f"no device was measured in {precision} on {traits.unit.split()[-1]} units")
    return traits, pool


def why_not_pooled(device: Device) -> str:
    """Return the reason why no measurement covers a device; empty if some may."""
    if device.parts is not None:
        return f"only single devices were measured, {device.id} is a {device.scope} of {device.parts.count}"
    if device.vendor not in VENDORS or device.scope == "cpu":
        return f"only GPUs of {' and '.join(VENDORS)} were measured"
    if device.laptop:
        return "no GPU of a laptop was measured, and its clock and power depend on the laptop"
    return ""


def read_pool(path: Path | None = None) -> Pool:
    """Read a pool; the shipped one without a path.

    Raise BadFile if it is malformed, or has other parameters than this version.
    """
    path = path or _pool_path()
    pool = read_typed(path, Pool, "pool", _MAX_FILE_BYTES)
    if pool.format != FORMAT or pool.parameters != list(NAMES):
        raise BadFile(f"{path}: written by another version of paleo-lite: `make calibrations` writes it again")
    for fit in pool.fits:
        if not len(fit.theta) == len(fit.deviation) == len(NAMES):
            raise BadFile(f"{path}: {fit.id} in {fit.precision} must have {len(NAMES)} numbers in each of its lists")
    return pool


def _pool_path() -> Path:
    return shipped_folder("calibrations") / POOL_FILE


def shipped_pool() -> Pool:
    """Return the shipped pool, which is read once."""
    return _shipped_pool(version_of(_pool_path()))


@lru_cache(1)
def _shipped_pool(version: FileVersion) -> Pool:
    return read_pool(version.path)


@lru_cache(1024)
def _shipped_prior(traits: Traits, version: FileVersion) -> Prior:
    """Return the prior by the shipped pool: a sweep asks for that of each device many times."""
    return prior_from_evidence(traits, _shipped_pool(version).fits)


def _label_and_notes(
    device: Device, precision: str, traits: Traits, fits: Sequence[Evidence]
) -> tuple[str, tuple[str, ...]]:
    """Return the label and notes of a pooled model, which state the origin of its parameters."""
    related = [fit for fit in fits if (fit.unit, fit.precision) == (traits.unit, traits.precision)]
    operation_fits = [fit for fit in related if fit.software == SINGLE_OPERATIONS]
    if traits.software == SINGLE_OPERATIONS and operation_fits:
        return _label_of_single_operations(device, traits, operation_fits)
    network_fits = [fit for fit in related if fit.software != SINGLE_OPERATIONS]
    device_fits = [fit for fit in network_fits if fit.id == device.id]
    if not device_fits:
        return _label_of_other_devices(device, traits, related, network_fits)
    same_precision = [fit for fit in device_fits if fit.measured_in == precision]
    used = same_precision or device_fits
    same_software = [fit for fit in used if (fit.software, fit.execution) == (traits.software, traits.execution)]
    measured_in = used[0].measured_in
    points = sum(fit.points for fit in same_software or used)
    label = f"{device.id} {measured_in}, {format_plural(points, 'measurement')}"
    notes = []
    if not same_precision:
        notes.append(f"measured in {measured_in}: {precision} uses the same kernels, at its own peak")
    if not same_software:
        measured_under = " and ".join(sorted({f"{fit.software} {fit.execution}" for fit in used}))
        notes.append(
            f"{device.name} was measured under {measured_under}, not under {traits.software} {traits.execution}: "
            "the interval is wider for it"
        )
    return label, tuple(notes)


def _label_of_single_operations(
    device: Device, traits: Traits, operation_fits: Sequence[Evidence]
) -> tuple[str, tuple[str, ...]]:
    """Return the label and notes of a model of an inference engine, which runs kernels that were timed one by one."""
    number = len({fit.id for fit in operation_fits})
    label = f"pooled from single operations on {format_plural(number, 'device')} in {traits.precision}"
    if any(fit.id == device.id for fit in operation_fits):
        return f"{label}, including this one", ()
    note = (
        f"no operation was timed on {device.name} in {_describe_precision(traits)}: {WIDE_INTERVAL} the spread between "
        "devices"
    )
    return f"{label}, not including this one", (note,)


def _label_of_other_devices(
    device: Device, traits: Traits, related: Sequence[Evidence], network_fits: Sequence[Evidence]
) -> tuple[str, tuple[str, ...]]:
    """Return the label and notes of a model for a device on which no network was measured."""
    if network_fits:
        origin = "pooled from"
        number = len({fit.id for fit in network_fits})
        is_included = False
        spread = "other devices"
    else:
        origin = "pooled from single operations on"
        number = len({fit.id for fit in related})
        is_included = any(fit.id == device.id for fit in related)
        spread = "devices"
    label = f"{origin} {format_plural(number, 'device')} in {traits.precision}"
    if not is_included:
        label += ", not including this one"
    measured = f"{device.name} in {_describe_precision(traits)}"
    return label, (f"no network was measured on {measured}: {WIDE_INTERVAL} the spread between {spread}",)


def _describe_precision(traits: Traits) -> str:
    """Return the precision that measurements need, which is one for both formats of 16 bits."""
    return "16 bits" if traits.precision == "fp16" else traits.precision


# Inference engines ----------------------------------------------------------------------------------------------------
#
# An engine's products and memory-bound kernels are those of the pool that were timed one by one. Matrix products and
# attention under vLLM, SGLang and TensorRT-LLM (ai-dynamo/aiconfigurator 095f58a) on five devices give the parameters
# that single operations do not contribute to the pool. The result is validated against published times of decoder
# layers (docs/transformers.md). Two properties were not measured and are assumed: the kernels of a graph need no host
# time, and the time that the engine needs between two steps.

ENGINE_KERNELS: dict[str, tuple[float, float]] = {
    "efficiency_attention": (0.55, 0.2),
    "share_matrix": (0.85, 0.1),
    "half": (0.65, 0.4),
    "floor_s": (5e-6, 0.25),
}
"""Median and deviation of the logarithm. Masked scores of causal attention are not computed. The number of tiles at
half efficiency is the median of 15 fits of matrix products in 8 and 16 bits on tensor cores, which range from 0.1 to
1.6; of convolutional networks it is 1.7."""

ENGINE_HOST: dict[str, tuple[float, float]] = {
    "overhead_s": (1e-9, 0.1),
    "overhead_backward_s": (1e-9, 0.1),
    "overhead_gradient_s": (1e-9, 0.1),
    "step_s": (3e-4, 0.7),
}
"""Median and deviation of the logarithm: no time per kernel, and some tenths of a millisecond between two steps for
sampling and preparing the next step."""


def engine_prior(prior: Prior) -> Prior:
    """Combine a device's prior with the kernels of engines, weighted by precision, and set the host parameters."""
    mean, deviation = prior.mean.copy(), prior.deviation.copy()
    for name, (median, spread) in ENGINE_KERNELS.items():
        index = NAMES.index(name)
        engine_weight, device_weight = spread**-2, deviation[index] ** -2
        total_weight = engine_weight + device_weight
        mean[index] = (engine_weight * np.log(median) + device_weight * mean[index]) / total_weight
        deviation[index] = total_weight**-0.5
    for name, (median, spread) in ENGINE_HOST.items():
        index = NAMES.index(name)
        mean[index] = np.log(median)
        deviation[index] = spread
    return Prior(mean, deviation)

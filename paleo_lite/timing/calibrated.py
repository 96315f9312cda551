"""The calibrated time model: each layer's work at a learned efficiency of its class, and the cost of kernel launches.

For each layer and pass, with p = 4, so that the largest term dominates and the others still contribute::

    device = (compute^p + memory^p + floor^p)^(1/p)
    compute = FLOPs * padding / (peak * efficiency[class] * factor[pass] * tiles / (tiles + half * multiprocessors))
    memory = bytes / (bandwidth * share[class])
    floor = shortest kernel * kernels

The host launches kernels ahead of the device, but not far enough to hide all launches behind the device's work: a step
ends with a synchronisation, and some layers are launched more slowly than they run. The two times combine as::

    host = sum(overhead[pass] * kernels) + overhead of a gradient * parameter tensors
    step = sqrt(sum(device)^2 + host^2) + constant

The constant covers the framework's own work, and copies to the device if a source includes them. ``efficiency`` may
exceed 1 if a library uses an algorithm with fewer multiplications. ``tiles / (tiles + half * multiprocessors)`` is a
smoothed fraction of the multiprocessors that have a tile to compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..counting.kinds import class_of, is_grouped_product
from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.work import passes_of
from ..machines import Machine, PeakRate
from .activity import Activity, divide_time
from .features import UPDATE, Features, features_of
from .intervals import interval_of
from .models import LayerModel
from .parameters import INDEX, NAMES, NO_PARAMETER, OVERHEADS, Steps, prepare_steps
from .power import boost_fraction, convolution_fraction, limited_fraction, matrix_fraction, power_model
from .terms import RequestedOutputs, Terms, Times

if TYPE_CHECKING:
    from types import EllipsisType

    from numpy.typing import NDArray

    from ..counting import Layer
    from .broadcast import BatchedStack
    from .energy import PowerConstants
    from .workload import Workload

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Block = EllipsisType | tuple[slice, slice]

POWER = 4.0
"""Exponent p of the norm that combines the terms of a layer."""

_BLOCK = 2**15
"""Entries times batch sizes that are computed at a time, so that the arrays stay in a core's cache."""


class Rates(msgspec.Struct, frozen=True):
    """Rates of a device."""

    matrix_per_s: float  # peak of matrix operations in FLOP/s, at the clock of the data sheet
    vector_per_s: float  # peak of all other arithmetic in FLOP/s, at the highest clock of the device
    bandwidth_bytes_per_s: float  # of the memory
    multiprocessors: float
    # Clock that the device sustains in matrix products and attention under its rated power limit, relative to that of
    # the data sheet (`paleo_lite.timing.power`).
    sustained_fraction: float = 1.0
    convolution_fraction: float = 1.0  # the same in convolutions
    # Variance of the logarithm of the time that is due to a power limit below the rated one.
    limit_variance: float = 0.0


class EntryTerms(NamedTuple):
    """Seconds of each entry on the device: its three terms, and their p-norm `device_s`."""

    compute_s: Floats
    memory_s: Floats
    floor_s: Floats
    device_s: Floats


def rates_of(machine: Machine, precision: str) -> Rates:
    """Return the rates of a device in a precision, to which the parameters of a calibration are relative.

    A power limit below the rated one reduces all rates, unless the clock is locked at a lower one.
    """
    peak = library_peak(machine, precision)
    device = machine.device
    fraction = limited_fraction(device)
    if fraction < 1 and machine.clock is not None:
        default_peak = library_peak(msgspec.structs.replace(machine, clock=None), precision)
        fraction = min(1.0, fraction * default_peak.per_s / peak.per_s)
    return Rates(
        matrix_per_s=fraction * peak.per_s,
        vector_per_s=fraction * boost_fraction(device, peak) * machine.vector_peak(precision).per_s,
        bandwidth_bytes_per_s=fraction * device.bandwidth_bytes_per_s,
        multiprocessors=float(device.cores.multiprocessors.value),
        sustained_fraction=matrix_fraction(device, peak),
        convolution_fraction=convolution_fraction(device, peak),
        limit_variance=power_model().limit_deviation ** 2 if fraction < 1 else 0.0,
    )


SHARED_ERROR = 0.09
"""Relative error that the networks of a family have in common, beyond the uncertainty of a fit without the family, and
the runs of a source beyond that of a fit to other sources.

The maximum-likelihood estimates are 0.077 and 0.062, under Student's t with 5 degrees of freedom, from the errors with
a family or a source held out. With 0.09 instead of 0.07 the 90% intervals cover 88% and 85% instead of 84% and 82%
of the measurements of held-out families and held-out ranges of batch sizes. It is part of every prediction, because
users run other software than the measured one.
"""


def residual_variance(scatter: float) -> float:
    """Return the variance of log time that is not due to parameter uncertainty: measurement scatter and network
    family."""
    return scatter**2 + SHARED_ERROR**2


def library_peak(machine: Machine, precision: str) -> PeakRate:
    """Return the peak rate of the units on which libraries compute in a precision.

    In fp64 cuDNN's convolutions do not use the fp64 tensor cores: with an A100 held out, the error is 17% relative to
    the vector peak and 73% relative to the tensor-core peak. AMD's rocBLAS does use them: an MI210 reaches 1.8 times
    its vector peak.
    """
    if precision == "fp64" and machine.unit is None and machine.device.vendor == "NVIDIA":
        return machine.vector_peak(precision)
    return machine.peak(precision)


class CalibratedModel(LayerModel, msgspec.Struct, frozen=True, eq=False):
    """Time model with the parameters of a calibration."""

    name: ClassVar[str] = "calibrated"
    ppp: ClassVar[float | None] = None
    is_forecast: ClassVar[bool] = True
    needs_bytes: ClassVar[bool] = True
    uses_memory: ClassVar[bool] = True
    uses_convention_count: ClassVar[bool] = False
    label: str  # name of the calibration, reported with every prediction
    theta: Floats  # logarithms of the parameters, in the order of `PARAMETERS`, shape (parameters,)
    covariance: Floats  # of `theta`, shape (parameters, parameters)
    scatter: float  # relative scatter of single measurements around the model
    notes: tuple[str, ...] = ()  # for every prediction with this calibration
    # Fraction, 0 to 1, by which the device's own measurements narrowed the prior of each parameter, shape
    # (parameters,); None if unknown.
    learned_fraction: Floats | None = None
    # Fraction of peak of products in a narrower precision, such as fp8, over that of products in the precision of the
    # workload.
    narrow_relative_efficiency: float = 1.0
    # Of the device's power, fitted to its own watts; None for the shipped ones.
    power_constants: PowerConstants | None = None
    # What measured steps say beside the parameters (`paleo_lite.timing.causes`): the time of products of experts over
    # that of other products, and the width of intervals in logarithms over that without them.
    expert_slowdown: float = 1.0
    interval_width: float = 1.0

    @property
    def residual_variance(self) -> float:
        """Variance of log time that is not due to parameter uncertainty."""
        return residual_variance(self.scatter)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Return the formula in one line."""
        return f"({compute} at its class's efficiency ^4 + {memory} at its share ^4 + shortest kernel ^4)^(1/4)"

    peak = staticmethod(library_peak)

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """Time a workload; see `TimeModel.evaluate`. The time spent waiting for the host stretches all layers
        equally."""
        features, rates = features_of(workload), rates_of(machine, workload.precision)
        passes = passes_of(workload.phase)
        if workload.product_precision != workload.precision:
            features = self._with_narrow_products(features, workload, machine)
        features = _with_wide_products(features, machine, workload.precision)
        features = _with_upcast_products(features, workload, machine)
        features = self._with_update_products(features, rates, machine)
        features = self.with_kernel_rates(features, workload, machine)
        if self.expert_slowdown != 1:
            features = _with_slower_experts(features, workload, self.expert_slowdown)
        entries = EntryTerms(*np.empty((4, *features.flops.shape)))
        run = np.zeros(len(features.flops), dtype=np.int64)
        total_s, deviation, slopes = self._time_steps(features, rates, run, 1, entries=entries)
        overhead_s = float(np.exp(self.theta[INDEX["step_s"]]))
        host_slowdown = float((total_s - overhead_s)[0] / entries.device_s.sum())
        by_layer = np.zeros((4, len(passes), len(workload.layers)))
        by_layer[:, features.position[:, 0], features.position[:, 1]] = entries
        compute_s, memory_s, floor_s, device_s = by_layer
        return Terms(
            passes=passes,
            compute_s=compute_s,
            memory_s=memory_s,
            layers_s=device_s * host_slowdown,
            overhead_s=overhead_s,
            deviation=float(deviation[0]),
            host_slowdown=host_slowdown,
            floor_s=floor_s,
            slopes=slopes[0, :, 0],
        )

    def with_kernel_rates(self, features: Features, workload: Workload, machine: Machine) -> Features:
        """Return the features at the rate of the workload's implementation of attention, relative to the default."""
        if workload.attention is None:
            return features
        from .attention import kernel_shares

        default, chosen = kernel_shares(None, machine.device), kernel_shares(workload.attention, machine.device)
        if default is None or chosen is None:
            return features
        slowdowns = chosen.slowdowns(features) / default.slowdowns(features)
        return msgspec.structs.replace(features, padding=features.padding * slowdowns)

    def _with_narrow_products(self, features: Features, workload: Workload, machine: Machine) -> Features:
        """Return the features with less padding for products in a narrower precision, in proportion to their
        speedup."""
        narrow_per_s, wide_per_s = (
            machine.peak(precision).per_s for precision in (workload.product_precision, workload.precision)
        )
        speedup = narrow_per_s / wide_per_s * self.narrow_relative_efficiency
        in_passes = workload.narrow_products_in(passes_of(workload.phase))
        is_narrow = in_passes[tuple(features.position.T)] & (features.pass_number < UPDATE)
        return msgspec.structs.replace(features, padding=features.padding / np.where(is_narrow, speedup, 1.0))

    def _with_update_products(self, features: Features, rates: Rates, machine: Machine) -> Features:
        """Return the features with fewer FLOPs of updates whose products run in 16 bits on matrix units.

        Implementations of Muon and of Shampoo multiply in bf16 (Jordan et al. 2024). All other arithmetic of an update
        runs at the vector peak, to which the FLOPs that take as long are relative.
        """
        if not features.update_products.any():
            return features
        efficiency = float(np.exp(self.theta[INDEX["efficiency_gemm"]]))
        speedup = efficiency * rates.sustained_fraction * machine.wide_peak().per_s / rates.vector_per_s
        saved_flops = features.update_products * (1 - 1 / max(speedup, 1.0))
        return msgspec.structs.replace(features, flops=features.flops - saved_flops)

    def evaluate_many(self, stack: BatchedStack, machine: Machine, precision: str, outputs: RequestedOutputs) -> Times:
        """Time many cases and batch sizes; see `TimeModel.evaluate_many`."""
        features, run, cases, steps = stack.features, stack.run, stack.cases, stack.steps
        rates, values = rates_of(machine, precision), np.exp(self.theta)
        if features.wide.any():
            features = _with_wide_products(features, machine, precision)
            steps = prepare_steps(features, run, cases, steps.plan)
        if features.update_products.any():
            features = self._with_update_products(features, rates, machine)
            steps = prepare_steps(features, run, cases, steps.plan)
        low_s = high_s = pieces_s = activity = None
        wants_entries = outputs.pieces or outputs.activity
        entries = EntryTerms(*np.empty((4, *features.flops.shape))) if wants_entries else None
        if outputs.interval:
            total_s, deviation, _ = self._time_steps(features, rates, run, cases, steps, entries)
            low_s, high_s = interval_of(total_s, deviation)
        else:
            total_s = step_times(features, rates, values, run, cases, steps, entries)
        if entries is not None and outputs.pieces:
            host_slowdown = (total_s - values[INDEX["step_s"]]) / stack.sum_by_case(entries.device_s)
            pieces_s = stack.sum_by_piece(entries.device_s * host_slowdown[run[:, 0]])
        if entries is not None and outputs.activity:
            divided = divide_time(entries.device_s, entries.compute_s, entries.memory_s, entries.floor_s)
            activity = Activity(*map(stack.sum_by_case, divided))
        return Times(total_s, low_s, high_s, pieces_s, activity)

    def _time_steps(
        self,
        features: Features,
        rates: Rates,
        run: Ints,
        runs: int,
        steps: Steps | None = None,
        entries: EntryTerms | None = None,
    ) -> tuple[Floats, Floats, Floats]:
        """Time whole steps and propagate the parameter covariance by the delta method.

        Return the seconds of each step, shape (runs,) or (runs, batch sizes), the standard deviation of the logarithm
        of each, and the derivatives of the logarithm with respect to `theta`, shape (runs, parameters, batch sizes),
        with one batch size for entries without any.
        """
        total_s, gradient = sensitivities(features, rates, np.exp(self.theta), run, runs, steps, entries)
        gradient = gradient.reshape(*gradient.shape[:2], -1)
        slopes = gradient / total_s.reshape(len(gradient), 1, -1)
        variance = np.einsum("rpb,rpb->rb", slopes, self.covariance @ slopes).reshape(total_s.shape)
        deviation = np.sqrt(variance + self.residual_variance + rates.limit_variance)
        return total_s, deviation * self.interval_width, slopes


def _with_wide_products(features: Features, machine: Machine, precision: str) -> Features:
    """Return the features with more padding for products in 16 bits, in proportion to the ratio of the peaks."""
    if not features.wide.any():
        return features
    slowdown = library_peak(machine, precision).per_s / machine.wide_peak().per_s
    return msgspec.structs.replace(features, padding=features.padding * np.where(features.wide, slowdown, 1.0))


def _with_slower_experts(features: Features, workload: Workload, slowdown: float) -> Features:
    """Return the features with more padding for products of experts."""
    is_expert = np.array([is_grouped_product(layer) for layer in workload.layers], dtype=bool)
    factors = np.where(is_expert[features.position[:, 1]] & (features.pass_number < UPDATE), slowdown, 1.0)
    return msgspec.structs.replace(features, padding=features.padding * factors)


def _with_upcast_products(features: Features, workload: Workload, machine: Machine) -> Features:
    """Return the features with more padding for the products that a network in 16 bits computes in fp32.

    PyTorch multiplies fp32 matrices without tensor cores by default.
    """
    from .workload import cached_for_layers

    is_upcast = cached_for_layers(upcast_products, workload.layers)
    if not is_upcast.any() or workload.precision in ("fp64", "fp32", "tf32"):
        return features
    slowdown = library_peak(machine, workload.precision).per_s / machine.vector_peak("fp32").per_s
    factors = np.where(is_upcast[features.position[:, 1]], slowdown, 1.0)
    return msgspec.structs.replace(features, padding=features.padding * factors)


def upcast_products(layers: tuple[Layer, ...]) -> NDArray[np.bool_]:
    """Return which layers are products that a network in 16 bits computes in fp32, boolean of shape (layers,)."""
    return np.array(
        [layer.attributes.get("upcast", (1, 1))[1] > 1 and class_of(layer) in MATRIX_CLASSES for layer in layers],
        dtype=bool,
    )


def evaluate(features: Features, rates: Rates, values: Floats) -> EntryTerms:
    """Return the terms of every entry; `values` are the parameters in the order of `PARAMETERS`."""
    entries = EntryTerms(*np.empty((4, *features.flops.shape)))
    step_times(features, rates, values, np.zeros_like(features.pass_number), 1, entries=entries)
    return entries


def step_times(
    features: Features,  # entries of all steps
    rates: Rates,
    values: Floats,  # parameters in the order of `PARAMETERS`, shape (parameters,)
    run: Ints,  # step of each entry, shape (entries,) or (entries, 1)
    runs: int,  # number of steps
    steps: Steps | None = None,  # result of `prepare_steps`, to be reused between calls
    entries: EntryTerms | None = None,  # arrays that receive the terms of every entry
) -> Floats:
    """Return the seconds of whole steps, shape (runs,) or (runs, batch sizes)."""
    steps = steps or prepare_steps(features, run, runs)
    device_s = np.zeros((runs, *features.flops.shape[1:]))
    for times in _device_times(features, rates, values, steps, entries):
        steps.plan.by_step.sum(times.device_s, device_s[times.block])
    return np.asarray(_combine_with_host(device_s, steps.launched, values)[0] + values[INDEX["step_s"]])


def sensitivities(
    features: Features,
    rates: Rates,
    values: Floats,
    run: Ints,
    runs: int,
    steps: Steps | None = None,
    entries: EntryTerms | None = None,
) -> tuple[Floats, Floats]:
    """Return the seconds of whole steps and their derivatives with respect to the logarithms of the parameters.

    With t = (a^p + b^p + c^p)^(1/p), dt / d log a = a^p t / t^p. Each term is a power of each parameter except
    ``half``, for which d log a / d log half = half * multiprocessors / (tiles + half * multiprocessors).

    The arguments are as for `step_times`. The derivatives have the shape (runs, parameters) or (runs, parameters, batch
    sizes).
    """
    steps = steps or prepare_steps(features, run, runs)
    plan, shape = steps.plan, features.flops.shape[1:]
    gradient = np.zeros((runs * (NO_PARAMETER + 1), *shape))
    device_s, floor_sums = np.zeros((2, runs, *shape))
    for times in _device_times(features, rates, values, steps, entries):
        block, memory, underfill = times.block, times.memory, times.underfill
        slope = np.divide(times.device_s, times.power, out=times.power)
        floor = times.floor * slope  # `times.floor` has one column if no kernel count grows with the batch
        np.negative(slope, out=slope)  # the other terms decrease as their parameters grow
        memory *= slope
        products = times.compute[plan.products]
        products *= slope[plan.products]
        plan.by_step.sum(times.device_s, device_s[block])
        plan.by_step.sum(floor, floor_sums[block])
        plan.by_memory.sum(memory, gradient[block])
        plan.by_compute.sum(products, gradient[block])
        underfill /= -1 - underfill
        underfill *= products
        plan.by_half.sum(underfill, gradient[block])
    gradient = gradient.reshape(runs, NO_PARAMETER + 1, *shape)[:, :NO_PARAMETER]
    gradient[:, INDEX["floor_s"]] = floor_sums
    busy_s, host_s, overheads_s = _combine_with_host(device_s, steps.launched, values)
    device_share, host_share = device_s / busy_s, host_s / busy_s
    gradient *= device_share[:, None]
    overhead_slopes = overheads_s * host_share
    gradient[:, [INDEX[name] for name in OVERHEADS]] = np.moveaxis(overhead_slopes, 0, 1)
    gradient[:, INDEX["step_s"]] = values[INDEX["step_s"]]
    return busy_s + values[INDEX["step_s"]], gradient


class _DeviceTimes(NamedTuple):
    """Times of all entries on the device, for a block of batch sizes."""

    block: Block  # the batch sizes
    device_s: Floats  # of each entry
    # `device_s` and its three terms, raised to `POWER`.
    power: Floats
    compute: Floats
    memory: Floats
    floor: Floats
    # Relative increase of the compute time of products because too few tiles occupy the multiprocessors, shape
    # (products,) or (products, batch sizes).
    underfill: Floats


def _device_times(
    features: Features, rates: Rates, values: Floats, steps: Steps, entries: EntryTerms | None
) -> Iterator[_DeviceTimes]:
    """Yield the times of all entries on the device, for a block of batch sizes at a time.

    Squaring and square roots take a fifth of the time of powers, and writing into an input array takes half the time of
    writing into a new one. Entries without batch sizes are one block.
    """
    plan = steps.plan
    values_or_one = np.append(values, 1.0)  # index `NO_PARAMETER` is 1
    peak = np.where(plan.efficiency == NO_PARAMETER, rates.vector_per_s, rates.matrix_per_s)
    peak = peak * _clock_fractions(rates)[plan.efficiency]
    flop_s = 1 / (peak * values_or_one[plan.efficiency] * values_or_one[plan.factor])
    byte_s = 1 / (rates.bandwidth_bytes_per_s * values_or_one[plan.share])
    kernel_s = float(values[INDEX["floor_s"]])
    half_tiles = rates.multiprocessors * values_or_one[plan.half]
    width = max(_BLOCK // max(len(features.flops), 1), 16)
    blocks: list[Block] = [...]
    if features.flops.ndim > 1:
        blocks = [(slice(None), slice(start, start + width)) for start in range(0, features.flops.shape[1], width)]
    has_one_kernel_column = features.kernels.shape[1:] == (1,)
    for block in blocks:
        compute = steps.work[block] * flop_s
        underfill = half_tiles / features.tiles[plan.products][block]
        compute[plan.products] *= 1 + underfill
        memory = features.bytes[block] * byte_s
        floor = (features.kernels if has_one_kernel_column else features.kernels[block]) * kernel_s
        if entries is not None:
            entries.compute_s[block] = compute
            entries.memory_s[block] = memory
            entries.floor_s[block] = floor
        for term in (compute, memory, floor):  # raise each term to the power of 4, in place
            np.square(term, out=term)
            np.square(term, out=term)
        floor += 1e-300  # keeps the slope finite for entries that launch nothing at this batch size
        power = compute + memory
        power += floor
        device_s = np.sqrt(power)
        np.sqrt(device_s, out=device_s)
        if entries is not None:
            entries.device_s[block] = device_s
        yield _DeviceTimes(block, device_s, power, compute, memory, floor, underfill)


def _clock_fractions(rates: Rates) -> Floats:
    """Return the sustained clock by index of the efficiency that applies, shape (parameters + 1,); 1 without one."""
    fractions = np.ones(len(NAMES) + 1)
    for name in MATRIX_CLASSES:
        is_convolution = name.startswith("conv")
        fraction = rates.convolution_fraction if is_convolution else rates.sustained_fraction
        fractions[INDEX[f"efficiency_{name}"]] = fraction
    return fractions


def _combine_with_host(device_s: Floats, launched: Floats, values: Floats) -> tuple[Floats, Floats, Floats]:
    """Combine device and host time of whole steps as the root of the sum of their squares.

    Return the combined time without the constant per step and the time of the host, both of shape (runs,) or (runs,
    batch sizes), and the latter by parameter of `OVERHEADS`, shape (3, runs) or (3, runs, batch sizes).
    """
    overheads = values[[INDEX[name] for name in OVERHEADS]]
    overheads_s = overheads.reshape(-1, *[1] * (launched.ndim - 1)) * launched
    host_s = overheads_s.sum(axis=0)
    busy_s = np.hypot(device_s, host_s)
    return busy_s, host_s, overheads_s

"""Time of an iteration of an engine on one device: its kernels, the exchanges between devices, and how sure it is.

Every kernel's time follows from its shape and the constants of the engine on the device (`paleo_lite.engines.formulas`,
`paleo_lite.engines.constants`). The variance of the logarithm of a sum of kernels is that of the constants, propagated
by the delta method and independent between classes and formats, and the scatter of kernels around their formulas,
independent between shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats import bytes_per_number
from ..machines import Device
from ..timing.activity import narrow_factor
from ..timing.intervals import Z_90
from .causes import CAUSES, LAUNCHES
from .constants import EngineConstants, Host, KernelConstants, engine_constants, generation_of
from .division import ONE_DEVICE, LinkedDevices
from .formulas import (
    KERNEL_CLASSES,
    RESULT_BYTES,
    AttentionSizes,
    ExpertSizes,
    KernelRates,
    MatrixSizes,
    all_reduce_s,
    decode_attention_s,
    expert_exchange_s,
    experts_s,
    pointwise_s,
    product_s,
    prompt_attention_s,
)  # fmt: skip
from .kernel_formats import KERNEL_FORMATS, SIMILAR_FORMATS, Formats, device_clock_hz, kernel_rates
from .kernels import (
    AttentionKernel,
    CountedKernel,
    ExchangeKernel,
    ExpertsKernel,
    Kernel,
    Load,
    Pointwise,
    ProductKernel,
    decoded_keys,
    have_experts,
    prompt_pairs,
    prompt_queries,
    rows_of,
)
from .records import KERNELS
from .routing import expert_load

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SHORTEST = {
    name: next(
        index for index, parameter in enumerate(kernels.parameters) if parameter in ("floor_cycles", "latency_s")
    )
    for name, kernels in KERNEL_CLASSES.items()
}
"""Position of the shortest kernel among the constants of each class, in cycles or, of exchanges, in seconds."""

UNKNOWN_HOST = Host(
    iteration_s=1e-3, logit_s=1e-10, request_s=5e-3, request_token_s=2e-6, request_iterations=5.0,
    first_token_deviation=0.4,
)  # fmt: skip
"""Time of the host of an engine without fitted servers."""

STEP = 0.02
"""Step of the numerical derivatives of log time with respect to the logarithms of constants."""


SERVED_FORMATS = {
    "products": ("fp8", "bf16", "fp16"),
    "prompt attention": ("bf16/fp8", "bf16/bf16", "bf16/fp16"),
    "decode attention": ("bf16/fp8", "bf16/bf16", "bf16/fp16"),
    "single decode attention": ("bf16/fp8", "bf16/bf16", "bf16/fp16"),
    "pointwise": ("bf16",),
    "all-reduce": ("bf16",),
}
"""Classes and formats of the kernels of dense networks, whose steps are measured where no kernels are
(`EngineConstants.served`). Of others nothing is known there, and their intervals are those of predicted constants."""


def _was_served(cell: tuple[str, str]) -> bool:
    """Return whether kernels of a class and a format are among those of measured servers."""
    kernels, form = cell
    return form in SERVED_FORMATS.get(kernels, ())


EMPTY_ROW_POWER = 0.45
"""Power of an empty row's products relative to that of a row with a token, in an expert that has tokens.

Experts without a token draw nothing, though their buffers take time. The value is a compromise between two networks
that ML.ENERGY measured in blocks of fp8 under vLLM 0.11. With 0.4 the power of DeepSeek-V3.1 is 10% too high and that
of Qwen3 235B 17% too low, with 0.5 it is 15% too high and 13% too low (medians of the logarithm); with 0 both are too
low, by 28% and 46%.
"""


class EngineStep:
    """Times of kernels of one engine on one device; the constants are the shipped ones by default."""

    def __init__(
        self,
        device: Device,
        engine: str,
        formats: Formats,
        devices: LinkedDevices = ONE_DEVICE,
        constants: EngineConstants | None = None,
    ) -> None:
        self.device, self.engine, self.formats, self.devices = device, engine, formats, devices
        self.constants = engine_constants() if constants is None else constants
        self.shifts: dict[tuple[str, str], Floats] = {}
        self._company: dict[tuple[str, str, bool], tuple[float, float]] = {}
        self._known_rates: dict[str, tuple[KernelRates, float, float]] = {}
        self._narrow_factors: dict[str, float] = {}
        # Steps whose kernels take the time of one term each, by its name (`paleo_lite.engines.activity`).
        self.parts: dict[str, EngineStep] = {}

    def _constants(self, kernels: str, form: str) -> tuple[Floats, KernelConstants]:
        constants = self.constants.of(kernels, self.device, self.engine, SIMILAR_FORMATS.get(form, form))
        return constants.theta + self.shifts.get((kernels, form), 0.0), constants

    def narrow_factor(self, precision: str) -> float:
        """Return the factor of a precision on the device, which is looked up once."""
        if precision not in self._narrow_factors:
            self._narrow_factors[precision] = narrow_factor(self.device, precision)
        return self._narrow_factors[precision]

    @property
    def host(self) -> Host:
        """Time of the engine's host."""
        return self.constants.hosts.get(self.engine, UNKNOWN_HOST)

    @property
    def latency_deviations(self) -> dict[str, float]:
        """Standard deviations of the logarithms of latencies beside those of the steps, by the name of the latency."""
        deviation = self.host.first_token_deviation
        return {"ttft_s": deviation, "queue_s": deviation}

    def cell_of(self, kernel: Kernel) -> tuple[str, str]:
        """Return the class of constants and the format of a kernel."""
        if isinstance(kernel, ProductKernel):
            return "products", self.formats.of_product(kernel)
        if isinstance(kernel, ExpertsKernel):
            return "experts", self.formats.experts
        if isinstance(kernel, AttentionKernel):
            phase = "decode" if kernel.rows == "decoding" else "prompt"
            if kernel.is_latent:
                return f"latent {phase} attention", self.formats.attention
            is_single = phase == "decode" and self._decodes_heads_apart(kernel)
            return f"{'single ' if is_single else ''}{phase} attention", self.formats.attention
        if isinstance(kernel, Pointwise):
            return "pointwise", "bf16"
        if kernel.pattern in ("all-reduce", "all-gather"):
            return "all-reduce", "bf16"
        return "expert exchange", kernel.pattern

    def _decodes_heads_apart(self, kernel: AttentionKernel) -> bool:
        """Return whether the engine decodes every head of queries by itself, with its own reads of the keys."""
        if self.engine not in KERNELS or not KERNELS[self.engine].has_single_decode:
            return False
        is_chunked = kernel.chunk is not None and generation_of(self.device) not in KERNELS[self.engine].decodes_chunks
        return is_chunked or kernel.heads == kernel.kv_heads

    def kernel_s(self, kernel: Kernel, load: Load) -> Any:
        """Return the seconds of one launch of a kernel in a server."""
        shortest_s, rest_s = self.kernel_parts_s(kernel, load)
        launch, work = self.company(kernel, load)
        seconds = launch * shortest_s + work * rest_s
        if isinstance(kernel, ExpertsKernel) and work < 1:
            # Tokens of a server share experts, but each token has all of its own: those are read in any case.
            seconds = np.maximum(seconds, self.one_token_s(kernel, load))
        return seconds

    def one_token_s(self, kernel: ExpertsKernel, load: Load) -> Any:
        """Return the seconds in which a device reads the experts of one token at the bandwidth of its data sheet."""
        rates, weight_bytes, _ = self._rates(self.formats.experts)
        devices = self.devices
        numbers = kernel.active / devices.division.expert_parallel * kernel.matrices * kernel.hidden_size
        numbers = numbers * kernel.inner_size / devices.division.expert_tensor
        return numbers * weight_bytes / rates.bandwidth_bytes_per_s * (np.asarray(load.all_tokens) > 0)

    def company(self, kernel: Kernel, load: Load) -> tuple[float, float]:
        """Return the factors of the shortest kernel and of all other time of a kernel in a server."""
        kernels, form = self.cell_of(kernel)
        key = (kernels, form, load.has_prompts)
        if key not in self._company:
            self._company[key] = self.constants.company_of(kernels, self.device, self.engine, form, load.has_prompts)
        return self._company[key]

    def kernel_parts_s(self, kernel: Kernel, load: Load) -> tuple[Any, Any]:
        """Return the seconds of a kernel alone: those of the shortest kernel, and the rest."""
        timer = _TIMERS[type(kernel)]
        seconds = timer(self, kernel, load)
        cell = self.cell_of(kernel)
        theta, _ = self._constants(*cell)
        shortest_s = np.exp(theta[SHORTEST[cell[0]]])
        if not isinstance(kernel, ExchangeKernel):
            shortest_s = shortest_s / self._clock_hz
        launches = kernel.launches if isinstance(kernel, Pointwise) else 1
        shortest_s = np.minimum(seconds, launches * shortest_s)
        return shortest_s, seconds - shortest_s

    def total_s(self, kernels: Sequence[CountedKernel], load: Load) -> Any:
        """Return the seconds of some kernels."""
        total: Any = 0.0
        for counted in kernels:
            total = total + counted.count * self.kernel_s(counted.kernel, load)
        return total

    def seconds_by_cause(self, kernels: Sequence[CountedKernel], load: Load) -> dict[str, Any]:
        """Return the seconds of some kernels by the cause that may be wrong by a factor of its own."""
        seconds: dict[str, Any] = {LAUNCHES: 0.0}
        for counted in kernels:
            shortest_s, rest_s = self.kernel_parts_s(counted.kernel, load)
            launch, work = self.company(counted.kernel, load)
            cause = CAUSES[self.cell_of(counted.kernel)[0]]
            seconds[LAUNCHES] = seconds[LAUNCHES] + counted.count * launch * shortest_s
            seconds[cause] = seconds.get(cause, 0.0) + counted.count * work * rest_s
        return seconds

    def variance(self, kernels: Sequence[CountedKernel], load: Load) -> Any:
        """Return the variance of the logarithm of the seconds of some kernels."""
        cells: dict[tuple[str, str], list[CountedKernel]] = {}
        for counted in kernels:
            cells.setdefault(self.cell_of(counted.kernel), []).append(counted)
        served = self._served_deviation(kernels)
        if served is not None:
            return np.full(np.shape(self.total_s(kernels, load)), served**2)[()]
        total, variance = 0.0, 0.0
        for cell, members in cells.items():
            _, constants = self._constants(*cell)
            seconds = [counted.count * self.kernel_s(counted.kernel, load) for counted in members]
            expected = sum(seconds)
            squares = sum((constants.scatter * one_s) ** 2 for one_s in seconds)
            for index, deviation in enumerate(constants.deviation):
                shift = np.zeros(len(constants.theta))
                shift[index] = STEP
                self.shifts[cell] = shift
                slope = (self.total_s(members, load) - expected) / STEP
                squares = squares + (slope * deviation) ** 2
            self.shifts.pop(cell, None)
            total, variance = total + expected, variance + squares
        return variance / np.maximum(total, 1e-30) ** 2

    def _served_deviation(self, kernels: Sequence[CountedKernel]) -> float | None:
        """Return the deviation of a step of a server where steps were measured instead of kernels; else None."""
        served = self.constants.served_deviation(self.device)
        if served is None or not all(_was_served(self.cell_of(counted.kernel)) for counted in kernels):
            return None
        return served

    def relative_interval(self, kernels: Sequence[CountedKernel], load: Load) -> tuple[Any, Any]:
        """Return the ends of the 90% interval of the seconds of an iteration, relative to them."""
        deviation = self.deviation(kernels, load)
        return np.exp(-Z_90 * deviation), np.exp(Z_90 * deviation)

    def deviation(self, kernels: Sequence[CountedKernel], load: Load) -> Any:
        """Return the standard deviation of the logarithm of the seconds of an iteration in a server.

        What measured servers leave of it depends on the causes of the time that is asked for, of which an iteration is
        a part: see `EngineConstants.learned`.
        """
        has_experts = have_experts(kernels)
        of_kernels = self.variance(kernels, load)
        if self._served_deviation(kernels) is None:
            variance = self.constants.step_variance(of_kernels, self.device, self.engine, has_experts=has_experts)
        else:  # the deviation of measured steps contains what kernels do not explain of one
            spread = self.constants.spread if has_experts else self.constants.dense_spread
            variance = of_kernels + spread.source**2
        return np.sqrt(variance)

    @cached_property
    def _clock_hz(self) -> float:
        return device_clock_hz(self.device)

    def _rates(self, form: str) -> tuple[KernelRates, float, float]:
        if form not in self._known_rates:
            self._known_rates[form] = kernel_rates(self.device, form)
        return self._known_rates[form]

    def _product_s(self, kernel: ProductKernel, load: Load) -> Any:
        kernels, form = self.cell_of(kernel)
        theta, _ = self._constants(kernels, form)
        rates, _, _ = self._rates(form)
        return product_s(theta, rates, sizes=self.product_sizes(kernel, load)) * (rows_of(kernel, load) > 0)

    def product_sizes(self, kernel: ProductKernel, load: Load) -> MatrixSizes:
        """Return the sizes of a product, of at least one row."""
        _, weight_bytes, operand_bytes = self._rates(self.formats.of_product(kernel))
        rows = np.maximum(rows_of(kernel, load), 1.0)
        is_quantised = self.formats.has_quantised_operand(kernel)
        return MatrixSizes(rows, kernel.n, kernel.k, weight_bytes, operand_bytes, kernel.groups, is_quantised)

    def _experts_s(self, kernel: ExpertsKernel, load: Load) -> Any:
        kernels, form = self.cell_of(kernel)
        theta, _ = self._constants(kernels, form)
        rates, _, _ = self._rates(form)
        tokens = np.asarray(load.all_tokens, dtype=np.float64)
        flat = np.maximum(tokens.reshape(-1), 1e-9)
        sizes = self.expert_sizes(kernel, flat)
        seconds = experts_s(theta, rates, tokens=flat, active=kernel.active, sizes=sizes)
        return seconds.reshape(tokens.shape) * (tokens > 0)

    def expert_sizes(self, kernel: ExpertsKernel, tokens: Any) -> ExpertSizes:
        """Return the sizes of a layer of experts on the device with the most rows."""
        devices = self.devices
        _, weight_bytes, operand_bytes = self._rates(self.formats.experts)
        loads = expert_load(
            tokens,
            active=kernel.active,
            experts=kernel.experts,
            ranks=devices.division.expert_parallel,
            alpha=devices.alpha,
        )
        return ExpertSizes(
            rows=loads.rows + self._empty_rows(kernel),
            distinct=loads.distinct,
            hidden_size=kernel.hidden_size,
            inner_size=np.ceil(kernel.inner_size / devices.division.expert_tensor),
            matrices=kernel.matrices,
            weight_bytes=weight_bytes,
            operand_bytes=operand_bytes,
        )

    def _empty_rows(self, kernel: ExpertsKernel) -> int:
        """Return the rows without a token in the buffers of the experts of a device."""
        return self._own_experts(kernel) * KERNEL_FORMATS[self.formats.experts].empty_rows

    def _own_experts(self, kernel: ExpertsKernel) -> int:
        """Return the number of experts of a device."""
        return max(kernel.experts // self.devices.division.expert_parallel, 1)

    def drawing_share(self, kernel: Kernel, load: Load) -> Any:
        """Return the power of a kernel's products relative to products of rows that all have a token."""
        if not isinstance(kernel, ExpertsKernel) or not self._empty_rows(kernel):
            return 1.0
        tokens = np.asarray(load.all_tokens, dtype=np.float64)
        sizes = self.expert_sizes(kernel, np.maximum(tokens.reshape(-1), 1e-9))
        used_share = sizes.distinct / self._own_experts(kernel)  # of the experts, those that have a token
        saved_rows = self._empty_rows(kernel) * (1 - EMPTY_ROW_POWER * used_share)
        return (1 - saved_rows / sizes.rows).reshape(tokens.shape)

    def _attention_s(self, kernel: AttentionKernel, load: Load) -> Any:
        kernels, form = self.cell_of(kernel)
        theta, _ = self._constants(kernels, form)
        rates, _, _ = self._rates(form.partition("/")[0])
        sizes = self.attention_sizes(kernel)
        if kernel.rows == "decoding":
            sequences = np.asarray(load.sequences, dtype=np.float64)
            busy, keys = np.maximum(sequences, 1e-9), decoded_keys(kernel, load)
            if self._decodes_heads_apart(kernel):
                sizes = sizes._replace(kv_heads=sizes.heads)
            return decode_attention_s(theta, rates, sequences=busy, keys=keys, sizes=sizes) * (sequences > 0)
        length, cached = prompt_queries(kernel, load), np.asarray(load.cached, dtype=np.float64)
        prompts = np.asarray(load.prompts, dtype=np.float64)
        pairs = prompt_pairs(kernel, length, cached)
        seconds = prompt_attention_s(
            theta, rates, sequences=np.maximum(prompts, 1e-9), length=np.maximum(length, 1.0), pairs=pairs, sizes=sizes,
            encoded=kernel.positions,
        ) * (prompts * length > 0)  # fmt: skip
        if not kernel.has_sinks or self.engine not in KERNELS:
            return seconds
        return seconds * KERNELS[self.engine].sink_factors.get(generation_of(self.device), 1.0)

    def attention_sizes(self, kernel: AttentionKernel) -> AttentionSizes:
        """Return the sizes of attention, with the bytes per number of the cache, in which an encoder keeps nothing."""
        cache_bytes = bytes_per_number(self.formats.attention.partition("/")[2])
        if kernel.rows == "encoded":
            cache_bytes = RESULT_BYTES
        return AttentionSizes(kernel.heads, kernel.kv_heads, kernel.key_size, kernel.value_size, cache_bytes)

    def _pointwise_s(self, kernel: Pointwise, load: Load) -> Any:
        theta, _ = self._constants("pointwise", "bf16")
        rates, _, _ = self._rates("bf16")
        rows = rows_of(kernel, load)
        moved_bytes = (kernel.row_bytes * rows + kernel.fixed_bytes) / max(kernel.launches, 1)
        seconds = pointwise_s(theta, rates, moved_bytes=moved_bytes)
        if kernel.row_flops:
            seconds = seconds + kernel.row_flops * rows / self.vector_peak_per_s
        return kernel.launches * seconds * (rows > 0)

    @cached_property
    def vector_peak_per_s(self) -> float:
        """Peak of arithmetic outside tensor cores, in FLOP/s."""
        return self.device.find_peak("fp32", "vector").per_s

    def _exchange_s(self, kernel: ExchangeKernel, load: Load) -> Any:
        kernels, form = self.cell_of(kernel)
        theta, _ = self._constants(kernels, form)
        devices = self.devices
        rows = rows_of(kernel, load)
        message_bytes = kernel.row_bytes * rows
        if kernel.pattern in ("all-reduce", "all-gather"):
            is_sum = kernel.pattern == "all-reduce"
            factor = 1.0 if is_sum else 0.5
            return factor * all_reduce_s(
                theta, ranks=devices.division.attention_tensor, message_bytes=np.maximum(message_bytes, 1.0),
                link_bytes_per_s=devices.link_bytes_per_s, sums_in_switch=is_sum and devices.sums_in_switch,
            ) * (rows > 0)  # fmt: skip
        seconds = expert_exchange_s(
            theta,
            sent_bytes=message_bytes,
            node_bytes=kernel.node_row_bytes * rows,
            nodes=devices.nodes,
            link_bytes_per_s=devices.link_bytes_per_s,
            node_link_bytes_per_s=devices.node_link_bytes_per_s if devices.nodes > 1 else np.inf,
        )
        return seconds * (rows > 0)


_TIMERS: dict[type, Callable[[EngineStep, Any, Load], Any]] = {
    ProductKernel: EngineStep._product_s,
    ExpertsKernel: EngineStep._experts_s,
    AttentionKernel: EngineStep._attention_s,
    Pointwise: EngineStep._pointwise_s,
    ExchangeKernel: EngineStep._exchange_s,
}

"""One pass of prefill or decode under an engine on one device: its kernels and host, their time, activity and memory.

`predict`, `scale` and `sweep` time this pass; `serve` tabulates the same kernels over many loads
(`paleo_lite.serving.kernel_timer`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import structs

from ..calibration.posterior import remaining_width, shares_of
from ..engines.activity import DataSheetConstants, kernel_activities, kernel_activity, kernel_flops, least_s
from ..engines.blocks import sampled_logits
from ..engines.causes import HOST, PROMPTS, TIME_PER_TOKEN
from ..engines.constants import EngineConstants, Host
from ..engines.division import ONE_DEVICE, LinkedDevices
from ..engines.kernels import CountedKernel, ExchangeKernel, Load, count_expert_layers
from ..engines.memory import activation_bytes, sequence_bytes
from ..engines.placed import CHECKED_CONTEXT, EngineKernels, place_kernels
from ..engines.records import SERVERS, find_server
from ..engines.records.record import NUCLEUS, Server
from ..engines.step import EngineStep
from ..machines import Device
from ..timing.activity import Activity
from ..timing.energy import speed_under_limit
from ..timing.intervals import INTERVAL_LEVEL, NORMAL_QUANTILES, Z_90, log_reach, not_below
from ..timing.memory import Memory

if TYPE_CHECKING:
    from ..timing import Workload


def with_host(
    server: Server,
    host: Host,
    logits: float,
    sampling: str | None = None,
    *,
    prompt_launches: int = 0,
    expert_layers: int = 0,
) -> Server:
    """Return an engine with the time of its host as it was fitted to servers, for a vocabulary of some logits.

    `prompt_launches` is the number of kernels of an iteration with a prompt, and `expert_layers` that of its layers of
    experts.

    Clients sample as usual unless one of `paleo_lite.engines.records.record.SAMPLINGS` is given.
    """
    logit_s = host.logit_s
    if (sampling or server.usual_sampling) == NUCLEUS:
        logit_s += host.nucleus_logit_s if server.nucleus_logit_s is None else server.nucleus_logit_s
    return structs.replace(
        server,
        overhead_s=host.iteration_s,
        overhead_range_s=(host.iteration_s / host.interval_factor, host.iteration_s * host.interval_factor),
        sequence_overhead_s=logit_s * logits,
        request_overhead_s=host.request_s,
        request_token_s=host.request_token_s,
        request_kernels_s=host.request_kernel_s * prompt_launches + host.request_expert_s * expert_layers,
        request_iterations=host.request_iterations,
    )


def has_fitted_host(server: Server, kernels: EngineKernels | None) -> bool:
    """Return whether an engine's host was fitted to servers: not where layers are timed, nor of old versions."""
    return kernels is not None and server.is_host_fitted


def with_fitted_host(server: Server, kernels: EngineKernels | None, sampling: str | None = None) -> Server:
    """Return an engine with the time of its host that was fitted to servers.

    Old versions, and networks whose layers are timed, keep hosts of their own.
    """
    if kernels is None or not has_fitted_host(server, kernels):
        return server
    decode, prefill = (kernels.of_iteration(phase, CHECKED_CONTEXT) for phase in ("decode", "prefill"))
    launches = sum(counted.launches for counted in prefill)
    return with_host(
        server,
        kernels.step.host,
        sampled_logits(decode),
        sampling,
        prompt_launches=launches,
        expert_layers=count_expert_layers(prefill),
    )


class Iteration(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A pass of prefill or decode under an engine, for one or for many batch sizes."""

    placed: EngineKernels  # kernels of one device
    policy: Server | None  # engine with the time of its host; None for a lower bound, in which the host takes none
    phase: str  # "prefill" or "decode"
    keys: int  # tokens of a prompt, or tokens in the cache with the new one
    sequences: Any  # sequences of all attention groups, a number or an array

    @property
    def is_decode(self) -> bool:
        """Whether one token of each sequence is computed."""
        return self.phase == "decode"

    @property
    def step(self) -> EngineStep:
        """Times of the kernels."""
        return self.placed.step

    @cached_property
    def _decode_kernels(self) -> list[CountedKernel]:
        return self.placed.of_iteration("decode", max(self.keys - 1, 1))

    @cached_property
    def kernels(self) -> list[CountedKernel]:
        """Kernels in the order of their launch."""
        return self._decode_kernels if self.is_decode else self.placed.of_iteration("prefill", self.keys)

    @cached_property
    def load(self) -> Load:
        """What the kernels compute."""
        groups = self.step.devices.division.attention_data_parallel
        if self.is_decode:
            return Load.of_decoding(self.sequences, self.keys - 1, groups)
        return Load.of_prompts(self.sequences, self.keys, groups)

    @property
    def own_sequences(self) -> Any:
        """Sequences of the attention group of this device."""
        return -(-self.sequences // self.step.devices.division.attention_data_parallel)

    @cached_property
    def exchange_s(self) -> Any:
        """Seconds in which devices exchange data."""
        exchanges = [counted for counted in self.kernels if isinstance(counted.kernel, ExchangeKernel)]
        return self.step.total_s(exchanges, self.load)

    @cached_property
    def _unlimited_s(self) -> Any:
        """Seconds of all kernels under the power limit of the data sheet."""
        return self.step.total_s(self.kernels, self.load)

    @cached_property
    def activity(self) -> Activity:
        """What the device does."""
        return kernel_activity(self.step, self.kernels, self.load)

    @cached_property
    def speed(self) -> Any:
        """Speed of the kernels under the power limit and at the clock of the device, relative to the data sheet's.

        Bounds are those of the data sheet at the clock, as what a limit leaves is a forecast.
        """
        if self.policy is None:
            return 1.0 if self.step.device.locked_clock == 1 else self._unlimited_s / self._bound_at_clock_s()
        return speed_under_limit(self.step.device, self.activity.shares_of(self._unlimited_s))

    def _bound_at_clock_s(self) -> Any:
        """Return the least seconds of the kernels at the clock of the device, at which each does its arithmetic."""
        activities = kernel_activities(self.step, self.kernels, self.load)
        clock = self.step.device.locked_clock
        total_s: Any = 0.0
        for counted, activity in zip(self.kernels, activities, strict=True):
            at_default_s = counted.count * self.step.kernel_s(counted.kernel, self.load)
            total_s = total_s + np.maximum(at_default_s, activity.peak_s / clock)
        return total_s

    @property
    def compute_s(self) -> Any:
        """Seconds of the kernels without exchanges, under the power limit of the device."""
        return (self._unlimited_s - self.exchange_s) / self.speed

    @property
    def kernels_s(self) -> Any:
        """Seconds of all kernels, under the power limit of the device."""
        return self.compute_s + self.exchange_s

    @property
    def flops(self) -> float:
        """FLOPs of all kernels, of one number of sequences."""
        return sum(counted.count * kernel_flops(counted.kernel, self.load) for counted in self.kernels)

    @property
    def host_s(self) -> Any:
        """Seconds in which the device waits for the engine's host."""
        return self._host_at(self.policy)

    @property
    def host_range_s(self) -> tuple[Any, Any]:
        """90% interval of `host_s` without measured servers."""
        if self.policy is None:
            return 0.0, 0.0
        return self._host_at(self.policy.at_end("low")), self._host_at(self.policy.at_end("high"))

    def _host_at(self, policy: Server | None) -> Any:
        if policy is None:
            return 0.0
        decoding = self.own_sequences if self.is_decode else 0
        return policy.overhead_s + policy.sequence_overhead_s * decoding

    @cached_property
    def width(self) -> Any:
        """What measured servers leave of the width of the interval; 1 without any.

        Kernels and host are less certain apart than together, since a time per token is that of both.
        """
        learned = self.step.constants.learned
        if learned is None:
            return 1.0
        if self.is_decode:
            seconds = self.step.seconds_by_cause(self.kernels, self.load)
        else:
            seconds = {PROMPTS: self._unlimited_s}
        variances = learned.variances(TIME_PER_TOKEN, shares_of({**seconds, HOST: self.host_s}))
        low, high = self._reaches(self._unlimited_s, Z_90 * self.step.deviation(self.kernels, self.load), Z_90)
        return remaining_width(*variances, (-low, high))

    @cached_property
    def deviation(self) -> Any:
        """Standard deviation of the logarithm of the seconds of all kernels."""
        return self.step.deviation(self.kernels, self.load) * self.width

    def interval(self, kernels_s: Any, level: float = INTERVAL_LEVEL) -> tuple[Any, Any]:
        """Return the interval that contains the time with the probability `level`, of kernels that take `kernels_s`."""
        quantile = NORMAL_QUANTILES[level]
        low, high = self._reaches(kernels_s, quantile * self.deviation, quantile * self.width)
        time_s, fastest_s = kernels_s + self.host_s, least_s(self.step, self.kernels, self.load)
        return not_below(time_s * np.exp(-low), fastest_s, time_s), time_s * np.exp(high)

    def _reaches(self, kernels_s: Any, kernels_log: Any, quantile: Any) -> tuple[Any, Any]:
        """Return how far the ends of an interval are from the time, in logarithms, of kernels that take `kernels_s`.

        `kernels_log` is how far those of the kernels are, and `quantile` that of the host relative to `Z_90`.
        """
        if self.policy is None:
            return kernels_log, kernels_log
        host_s = self.host_s
        low_log, high_log = (quantile / Z_90 * np.log(end_s / np.maximum(host_s, 1e-30)) for end_s in self.host_range_s)
        time_s = kernels_s + host_s
        if not self.policy.is_host_fitted:  # nothing says that what makes an old version's host slow leaves its kernels
            low_s = kernels_s * np.exp(-kernels_log) + host_s * np.exp(low_log)
            return np.log(time_s / low_s), np.log(
                (kernels_s * np.exp(kernels_log) + host_s * np.exp(high_log)) / time_s
            )
        return log_reach(kernels_log, low_log, host_s / time_s), log_reach(kernels_log, high_log, host_s / time_s)

    @property
    def cache_bytes_per_sequence(self) -> float:
        """Bytes of keys, values and states that a sequence keeps on one device."""
        return sequence_bytes(self.step, self._decode_kernels, self.keys)

    def memory(self) -> Memory:
        """Return the peak memory of one device, for a single batch size."""
        sequences = int(self.own_sequences)
        tokens = sequences if self.is_decode else sequences * self.keys
        logit_bytes = SERVERS[self.step.engine].logit_bytes
        return Memory(
            parameters_bytes=round(self.placed.weight_bytes(self._decode_kernels)),
            gradients_bytes=0,
            optimizer_bytes=0,
            activations_bytes=round(activation_bytes(self.step, self._decode_kernels, tokens, sequences, logit_bytes)),
            inputs_bytes=0,
            workspace_bytes=0,
            cache_bytes=round(sequences * self.cache_bytes_per_sequence),
        )


def iteration_of(
    workload: Workload,
    device: Device,
    devices: LinkedDevices = ONE_DEVICE,
    *,
    sequences: Any = None,
    constants: EngineConstants | None = None,  # other ones than those that are shipped
    is_bound: bool = False,
) -> Iteration:
    """Return a pass of a workload under an engine, of some sequences of all attention groups or those of the workload.

    Of a bound, kernels take no longer than the data sheet allows, and the host no time.
    """
    engine, lengths = workload.engine, workload.network.lengths
    assert engine is not None and lengths is not None
    policy = find_server(engine.name, device)
    placed = place_kernels(
        workload,
        device,
        engine.name,
        kv_cache=engine.kv_cache,
        devices=devices,
        constants=DataSheetConstants(classes={}) if is_bound else constants,
    )
    batch = workload.batch_size if sequences is None else sequences
    host = None if is_bound else with_fitted_host(policy, placed)
    return Iteration(placed, host, workload.phase, lengths.keys, batch)

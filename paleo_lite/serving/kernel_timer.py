"""Times of the iterations of a deployment whose engine has constants of its own for the device.

Kernels by the number of new tokens, experts by the new tokens of all attention groups, attention by sequences and
context or by the length of the prompt, the head by the sampled sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..engines.activity import kernel_activity, least_s
from ..engines.kernels import AttentionKernel, CountedKernel, ExpertsKernel, Load
from ..engines.placed import KERNEL_MODEL
from ..engines.records.record import Server
from ..machines import Device
from ..timing.activity import Activity
from ..timing.intervals import not_below
from .adapters import AdapterCost
from .cache import CacheRoom, measure_room
from .placement import ModelOnDevice
from .timer import Limits, TimedParts, Timer, from_zero, powers_of_two

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TYPICAL_CONTEXT = 2048
"""Context at which the interval of an iteration is computed."""


class KernelTimer(Timer):
    """Kernels of an engine, where they were measured."""

    can_equal = True

    def __init__(self, on_device: ModelOnDevice) -> None:
        assert on_device.kernels is not None
        self.on_device, self.kernels, self.step = on_device, on_device.kernels, on_device.kernels.step
        self.prompt_activities: dict[tuple[float, float], Activity] = {}  # those that were asked for, as advice repeats

    def _key(self) -> tuple[object, ...]:
        """Return what determines the times, without the constants."""
        step = self.step
        return (self.on_device.workload.network.rebuild, step.device, step.engine, step.formats, step.devices)

    def __hash__(self) -> int:
        return hash((self.on_device.workload.network.rebuild, self.step.device.id, self.step.engine))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KernelTimer) or self.step.constants is not other.step.constants:
            return False
        return self._key() == other._key()

    @property
    def description(self) -> str:
        """The model of the times, as text, with what calibrates it."""
        return "; ".join((KERNEL_MODEL, *self.on_device.notes))

    @property
    def device(self) -> Device:
        """The device."""
        return self.step.device

    @property
    def weights(self) -> str:
        """Format of the weights, by default the precision."""
        return self.on_device.workload.weights or self.on_device.workload.precision

    @property
    def latency_deviations(self) -> dict[str, float]:
        """Those of times to first token."""
        return self.step.latency_deviations

    def chunks(self, longest: int) -> Sequence[int]:
        """Return the lengths of the chunks within which tokens of a sequence attend to each other."""
        kernels = (counted.kernel for counted in self.kernels.of_iteration("decode", longest))
        chunks = (kernel.chunk for kernel in kernels if isinstance(kernel, AttentionKernel))
        return sorted({chunk for chunk in chunks if chunk is not None})

    def time_parts(self, limits: Limits, contexts: Sequence[int]) -> TimedParts:
        """Return the seconds of the kernels, by what they have a row for."""
        longest = max(limits.context - 1, 1)
        kernels = self.kernels.of_iteration("decode", longest)
        prefill = self.kernels.of_iteration("prefill", longest)
        groups = self.step.devices.division.attention_data_parallel
        tokens, sequences, lengths = _sizes(limits.tokens), _sizes(limits.sequences), powers_of_two(limits.prompt)
        # Tokens of prompts are exchanged in another way than those of decoding sequences.
        with_rows = {True: _rows_of_tokens(prefill), False: _rows_of_tokens(kernels)}
        experts = [counted for counted in with_rows[False] if isinstance(counted.kernel, ExpertsKernel)]
        sampled, decoding = (
            [counted for counted in kernels if counted.kernel.rows == rows] for rows in ("sampled", "decoding")
        )
        prompts, encoder = (
            [counted for counted in prefill if counted.kernel.rows == rows] for rows in ("prompts", "encoded")
        )

        def token_s(has_prompts: bool) -> Floats:
            per_token = with_rows[has_prompts]
            others = per_token if groups == 1 else [counted for counted in per_token if counted not in experts]
            return self._total(others, lambda n: Load(tokens=n, all_tokens=n, has_prompts=has_prompts), tokens)

        def experts_s(has_prompts: bool) -> Floats | None:
            def load(every: Any) -> Load:
                return Load(tokens=np.ceil(every / groups), all_tokens=every, has_prompts=has_prompts)

            return None if groups == 1 else self._total(experts, load, tokens)

        def attention_s(context: int) -> Floats:
            return self._total(decoding, lambda n: Load(sequences=n, context=context, spread=limits.spread), sequences)

        prompt_s = self._total(prompts, lambda n: Load(prompts=1.0, length=n, has_prompts=True), np.array(lengths))
        shortest_s = 0.95 * float(prompt_s[0])
        encoder_s = self._total(encoder, lambda n: Load(prompts=n, has_prompts=True), np.array([1.0]))
        low, high = (
            from_zero(tokens, ends, limits.tokens, first=ends[0])
            for ends in self._relative_interval(kernels, tokens, limits.context)
        )
        return TimedParts(
            tokens=tokens,
            token_s=token_s(has_prompts=False)[np.newaxis],
            head_s=self._total(sampled, lambda n: Load(sampled=n), tokens)[np.newaxis],
            sequences=sequences,
            decode_attention_s=np.array([[attention_s(context)] for context in contexts]),
            lengths=lengths,
            prompt_attention_s=(np.maximum(prompt_s - shortest_s, 1e-9) + encoder_s)[:, np.newaxis],
            relative_low=low,
            relative_high=high,
            prompt_s=np.array([shortest_s]),
            token_with_prompts_s=token_s(has_prompts=True),
            experts_s=experts_s(has_prompts=False),
            experts_with_prompts_s=experts_s(has_prompts=True),
            attention_data=groups,
        )

    def _total(self, kernels: Sequence[CountedKernel], load: Callable[[Any], Load], sizes: Any) -> Floats:
        """Return the seconds of kernels at several sizes."""
        seconds: Floats = np.zeros(len(sizes))
        seconds += self.step.total_s(kernels, load(np.asarray(sizes, dtype=np.float64)))
        return seconds

    def _relative_interval(
        self, kernels: Sequence[CountedKernel], tokens: Any, max_context: int
    ) -> tuple[Floats, Floats]:
        """Return the ends of the interval of a decode step relative to its time."""
        of_group, context = np.asarray(tokens, dtype=np.float64), min(TYPICAL_CONTEXT, max_context)
        all_tokens = of_group * self.step.devices.division.attention_data_parallel
        load = Load(
            tokens=of_group,
            all_tokens=all_tokens,
            sampled=of_group,
            sequences=np.minimum(of_group, 1024.0),
            context=context,
        )
        low, high = self.step.relative_interval(kernels, load)
        return not_below(low, least_s(self.step, kernels, load) / self.step.total_s(kernels, load), 1.0), high

    def measure_room(self, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
        """Return the room of the cache."""
        return measure_room(self.on_device, engine, mean_tokens=mean_tokens, prompt_tokens=prompt_tokens)

    def decode_activity(self, sequences: float, context: float, tokens_per_sequence: int = 1) -> Activity:
        """Return what a device does in an iteration without prompts."""
        group_sequences = sequences / self.on_device.division.attention_data_parallel
        tokens, everywhere = group_sequences * tokens_per_sequence, sequences * tokens_per_sequence
        load = Load(tokens=tokens, all_tokens=everywhere, sampled=tokens, sequences=group_sequences, context=context)
        return self._kernel_activity("decode", context, load)

    def prompt_activity(self, tokens: float, cached: float = 0.0) -> Activity:
        """Return what a device does for a prompt."""
        if (tokens, cached) not in self.prompt_activities:
            load = Load(tokens, tokens, 1.0, prompts=1.0, length=tokens, cached=cached, has_prompts=True)
            activity = self._kernel_activity("prefill", tokens, load)
            self.prompt_activities[tokens, cached] = activity.times(1 / self.on_device.division.attention_data_parallel)
        return self.prompt_activities[tokens, cached]

    def _kernel_activity(self, phase: str, context: float, load: Load) -> Activity:
        """Return the activity in the kernels of an iteration."""
        counted = self.kernels.of_iteration(phase, max(math.ceil(context), 1))
        return kernel_activity(self.kernels.step, counted, load)


def _rows_of_tokens(kernels: Sequence[CountedKernel]) -> list[CountedKernel]:
    """Return the kernels that have a row for each new token."""
    return [counted for counted in kernels if counted.kernel.rows == "tokens"]


def device_kernels(on_device: ModelOnDevice, phase: str, context: int) -> list[CountedKernel]:
    """Return the kernels of one device in an iteration; see `EngineKernels.of_iteration`."""
    assert on_device.kernels is not None
    return on_device.kernels.of_iteration(phase, context)


def _sizes(largest: int) -> NDArray[np.int64]:
    """Return sizes from 1 to `largest`: dense where tiles of 16 to 128 rows fill up, then by fractions."""
    small = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128]
    large = np.rint(np.geomspace(1, max(largest / 64, 1), 24)) * 64
    distinct = np.unique(np.concatenate([small, large, [largest]])).astype(np.int64)
    within: NDArray[np.int64] = distinct[distinct <= largest]
    return within


ADAPTER_KERNELS = "adapters (LoRA)"
"""Name of the kernels of adapters beside all products."""


class KernelTime(msgspec.Struct, frozen=True):
    """Kernels of the same name in an iteration."""

    name: str  # name of the kernel
    launches: int  # launches per iteration on one device
    time_s: float  # seconds of all launches
    share: float  # fraction of the time of all kernels


def time_decode_kernels(
    on_device: ModelOnDevice, sequences: float, context: float, adapters: tuple[AdapterCost, int] | None = None
) -> list[KernelTime] | None:
    """Return the kernels of a decode iteration, the longest first; None if the layers are timed one by one.

    Attention groups have equal parts of the sequences of a replica. Of `adapters` are given what they take and how many
    of them are in a batch.
    """
    if on_device.kernels is None:
        return None
    step = on_device.kernels.step
    load = Load.of_decoding(max(round(sequences), 1), round(context), on_device.division.attention_data_parallel)
    launches: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for counted in device_kernels(on_device, "decode", max(round(context), 1)):
        kernel = counted.kernel
        if counted.launches:
            launches[kernel.name] = launches.get(kernel.name, 0) + counted.launches
            time_s = counted.count * float(step.kernel_s(kernel, load))
            seconds[kernel.name] = seconds.get(kernel.name, 0.0) + time_s
    if adapters is not None:
        cost, slots = adapters
        tokens = round(float(load.tokens))
        launches[ADAPTER_KERNELS] = cost.launches
        seconds[ADAPTER_KERNELS] = cost.time_s(tokens, min(tokens, slots))
    total_s = sum(seconds.values())
    names = sorted(seconds, key=lambda name: -seconds[name])
    return [KernelTime(name, launches[name], seconds[name], seconds[name] / total_s) for name in names]

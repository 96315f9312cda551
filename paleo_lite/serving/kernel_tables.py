"""Tables of the time of an iteration from the kernels of an engine.

The counterpart of `paleo_lite.serving.iteration_times.tabulate` for deployments whose engine has constants of its own
for the device: kernels by the number of new tokens, experts by the new tokens of all attention groups, attention by
sequences and context or by the length of the prompt, the head by the sampled sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..engines.kernels import CountedKernel, ExpertsKernel
from ..engines.step import Load
from .iteration_times import IterationTimes, interpolate_prompts, tabulated_contexts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .iteration_times import ModelOnDevice

    Floats = NDArray[np.float64]

TYPICAL_CONTEXT = 2048
"""Context at which the interval of an iteration is computed."""


def device_kernels(on_device: ModelOnDevice, phase: str, context: int) -> list[CountedKernel]:
    """Return the kernels of one device in an iteration; see `EngineKernels.of_iteration`."""
    assert on_device.kernels is not None
    return on_device.kernels.of_iteration(phase, context)


def tabulate_kernels(
    on_device: ModelOnDevice, *, max_new_tokens: int, max_sequences: int, max_prompt: int, max_context: int
) -> IterationTimes:
    """Compute the tables of an iteration; the arguments are those of `paleo_lite.serving.iteration_times.tabulate`."""
    longest = max(max_context - 1, 1)
    decode, prefill = (device_kernels(on_device, phase, longest) for phase in ("decode", "prefill"))
    return _Tables(on_device, decode, prefill, max_new_tokens, max_sequences, max_prompt, max_context).build()


class _Tables:
    """Tables of the iterations of one device."""

    def __init__(
        self,
        on_device: ModelOnDevice,
        decode: Sequence[CountedKernel],
        prefill: Sequence[CountedKernel],
        max_new_tokens: int,
        max_sequences: int,
        max_prompt: int,
        max_context: int,
    ) -> None:
        assert on_device.kernels is not None
        self.step = on_device.kernels.step
        self.groups = self.step.placement.attention_data
        self.max_tokens = max(max_new_tokens, max_sequences)
        self.max_sequences, self.max_prompt, self.max_context = max_sequences, max_prompt, max_context
        self.decode, self.prefill = decode, prefill

    def build(self) -> IterationTimes:
        tokens = _sizes(self.max_tokens)
        sampled = [one for one in self.decode if _rows(one) == "sampled"]
        head_s = self._total(sampled, lambda n: Load(sampled=n), tokens)
        contexts = tabulated_contexts(self.max_context)
        sequences = _sizes(self.max_sequences)
        decoding = [one for one in self.decode if _rows(one) == "decoding"]
        rows = []
        for context in contexts:
            load = partial(_decoding_load, context)
            row = self._total(decoding, load, sequences)
            rows.append(_interpolate(sequences, row, self.max_sequences))
        lengths = _lengths(self.max_prompt)
        prompts = [one for one in self.prefill if _rows(one) == "prompts"]
        prompt_s = self._total(prompts, _prompt_load, np.array(lengths))
        shortest_s = 0.95 * float(prompt_s[0])
        low, high = self._relative_interval(tokens)
        decode_only = IterationTimes(
            token_s=self._token_s(tokens, has_prompts=False),
            head_s=_interpolate(tokens, head_s, self.max_tokens),
            contexts=[float(context) for context in contexts],
            decode_attention_s=np.array(rows).T.tolist(),
            prompt_attention_s=interpolate_prompts(lengths, np.maximum(prompt_s - shortest_s, 1e-9)),
            relative_low=_interpolate(tokens, low, self.max_tokens, first=low[0]),
            relative_high=_interpolate(tokens, high, self.max_tokens, first=high[0]),
            experts_s=self._separate_experts_s(tokens, has_prompts=False),
            prompt_s=shortest_s,
            attention_data=self.groups,
        )
        with_prompts = msgspec.structs.replace(
            decode_only,
            token_s=self._token_s(tokens, has_prompts=True),
            experts_s=self._separate_experts_s(tokens, has_prompts=True),
        )
        return msgspec.structs.replace(decode_only, with_prompts=with_prompts)

    def _token_s(self, tokens: Any, has_prompts: bool) -> list[float]:
        """Return the seconds of the kernels with a row per new token, by the tokens of an attention group from 0."""
        is_separate = self.groups > 1
        kernels = [one for one in self.decode if _is_per_token(one) and not (is_separate and _is_expert(one))]
        seconds = self._total(kernels, lambda n: Load(tokens=n, all_tokens=n, has_prompts=has_prompts), tokens)
        return _interpolate(tokens, seconds, self.max_tokens)

    def _separate_experts_s(self, tokens: Any, has_prompts: bool) -> list[float]:
        """Return the seconds of the experts by the tokens of all attention groups; empty if there is only one group."""
        if self.groups == 1:
            return []
        experts = [one for one in self.decode if _is_expert(one)]

        def load(every: Any) -> Load:
            return Load(tokens=np.ceil(every / self.groups), all_tokens=every, has_prompts=has_prompts)

        return _interpolate(tokens, self._total(experts, load, tokens), self.max_tokens)

    def _total(self, kernels: Sequence[CountedKernel], load: Callable[[Any], Load], sizes: Any) -> Floats:
        """Return the seconds of kernels at several sizes."""
        seconds: Floats = np.zeros(len(sizes))
        seconds += self.step.total_s(kernels, load(np.asarray(sizes, dtype=np.float64)))
        return seconds

    def _relative_interval(self, tokens: Any) -> tuple[Floats, Floats]:
        """Return the ends of the interval of a decode step relative to its time."""
        context = min(TYPICAL_CONTEXT, self.max_context)
        own = np.asarray(tokens, dtype=np.float64)
        load = Load(
            tokens=own, all_tokens=own * self.groups, sampled=own, sequences=np.minimum(own, 1024.0), context=context
        )
        return self.step.relative_interval(self.decode, load)


def _decoding_load(context: float, sequences: Any) -> Load:
    """Return the load of decoding sequences."""
    return Load(sequences=sequences, context=context)


def _prompt_load(length: Any) -> Load:
    """Return the load of a prompt."""
    return Load(prompts=1.0, length=length, has_prompts=True)


def _rows(counted: CountedKernel) -> str:
    return counted.kernel.rows


def _is_per_token(counted: CountedKernel) -> bool:
    return _rows(counted) == "tokens"


def _is_expert(counted: CountedKernel) -> bool:
    return isinstance(counted.kernel, ExpertsKernel)


def _sizes(largest: int) -> NDArray[np.int64]:
    """Return sizes from 1 to `largest`: dense where tiles of 16 to 128 rows fill up, then by fractions."""
    small = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128]
    large = np.rint(np.geomspace(1, max(largest / 64, 1), 24)) * 64
    distinct = np.unique(np.concatenate([small, large, [largest]])).astype(np.int64)
    within: NDArray[np.int64] = distinct[distinct <= largest]
    return within


def _lengths(longest: int) -> list[int]:
    """Return lengths of prompts by factors of 2."""
    lengths = [1]
    while lengths[-1] < longest:
        lengths.append(min(max(2 * lengths[-1], 32), longest))
    return lengths


def _interpolate(sizes: Any, seconds: Floats, largest: int, first: float = 0.0) -> list[float]:
    """Return the seconds by size from 0, linear between the given ones."""
    every = np.interp(np.arange(largest + 1), sizes, seconds)
    every[0] = first
    return [float(value) for value in every]

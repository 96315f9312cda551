"""Iteration times and cache of `llama-server`: the counterpart of `kernel_tables` for llama.cpp.

A slot is a sequence that runs; the cache is one for all slots, and a request waits until its whole length is free.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import DoesNotFit
from ..own_machines.batches import LocalModel, matrices_s, prompt_attention_s, slots_attention_s
from ..own_machines.step import DEVIATIONS_AT_90
from ..units import format_si
from .cache import CacheRoom
from .iteration_times import IterationTimes, interpolate_prompts, tabulated_contexts


def tabulate_local(
    model: LocalModel, *, max_new_tokens: int, max_sequences: int, max_prompt: int, max_context: int
) -> IterationTimes:
    """Compute the tables of an iteration; the sizes are those of `paleo_lite.serving.iteration_times.tabulate`."""
    tokens = max(max_new_tokens, max_sequences)
    contexts = tabulated_contexts(max_context)
    rows = [
        [slots_attention_s(model, sequences, float(context)) for context in contexts]
        for sequences in range(max_sequences + 1)
    ]
    lengths = np.unique(np.rint(np.geomspace(1, max(max_prompt, 2), 24)).astype(np.int64)).tolist()
    deviations = np.full(tokens + 1, model.constants.prompt_deviation)
    deviations[: max_sequences + 1] = model.constants.deviation
    return IterationTimes(
        token_s=_over_sizes(lambda size: matrices_s(model, size), tokens),
        head_s=_over_sizes(lambda size: matrices_s(model, size, "last"), tokens),
        contexts=[float(context) for context in contexts],
        decode_attention_s=rows,
        prompt_attention_s=interpolate_prompts(lengths, np.array([prompt_attention_s(model, n) for n in lengths])),
        relative_low=np.exp(-DEVIATIONS_AT_90 * deviations).tolist(),
        relative_high=np.exp(DEVIATIONS_AT_90 * deviations).tolist(),
    )


def _over_sizes(seconds: Callable[[float], float], largest: int) -> list[float]:
    """Return seconds by size from 0: of each size up to 64, of multiples of 64, and linear between them."""
    sizes = np.unique([*range(min(largest, 64) + 1), *range(64, largest + 1, 64), largest])
    every = np.interp(np.arange(largest + 1), sizes, [seconds(float(size)) for size in sizes])
    return [float(value) for value in every]


def measure_local_room(model: LocalModel, block_tokens: int, mean_tokens: float) -> CacheRoom:
    """Compute how many blocks the cache has beside weights and buffers.

    Raises
    ------
    DoesNotFit
        If there is no room for a single request of mean length.
    """
    room_bytes, contents = model.cache_room_bytes, model.contents
    tokens = max(round(mean_tokens), 1)
    sequence_bytes = contents.cache_bytes(tokens)
    if room_bytes < sequence_bytes:
        raise DoesNotFit(
            f"{contents.name} in {contents.weights} leaves no memory for a KV cache on {model.device.name}: weights "
            f"take {format_si(model.weight_bytes, 'B', 3)}, and `serve` needs all blocks on the device: use narrower "
            "`--weights`"
        )
    blocks = int(room_bytes // (sequence_bytes / tokens * block_tokens)) if sequence_bytes else 1 << 40
    return CacheRoom(model.weight_bytes, model.buffer_bytes, room_bytes, sequence_bytes, block_tokens, blocks)

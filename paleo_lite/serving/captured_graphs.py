"""Iterations that no captured graph replays, whose kernels the host launches one by one.

Engines capture the kernels of a decode step in CUDA graphs, for batches up to a limit. A larger batch lasts no shorter
than its launches take. ``trtllm-serve`` captures 1 to 32, 64 and 128 sequences unless its file says otherwise, and pads
no batch to the next size (``CudaGraphConfig`` in tensorrt_llm/llmapi/llm_args.py).
"""

from __future__ import annotations

from functools import cache

import msgspec

from ..engines.kernels import ExpertsKernel
from ..engines.records import KERNELS
from ..files import read_shipped
from .iteration_times import IterationTimes, ScheduledTokens, as_table
from .kernel_timer import device_kernels
from .placement import ModelOnDevice


class _FittedLaunch(msgspec.Struct, frozen=True):
    """The constant of rollouts without graphs that servers share, of those in calibrations/reinforcement.toml."""

    launch_s: float


@cache
def eager_launch_s() -> float:
    """Return the time in which the host of an engine launches a kernel outside of a graph, with what is around it.

    It was fitted to rollouts of vLLM without graphs.
    """
    return read_shipped("reinforcement.toml", _FittedLaunch).launch_s


def count_launches(on_device: ModelOnDevice, context: float) -> int:
    """Return how often the host launches a kernel in a decode step that no graph replays."""
    assert on_device.kernels is not None
    of_experts = KERNELS[on_device.kernels.step.engine].expert_launches
    launches = 0
    for counted in device_kernels(on_device, "decode", max(round(context), 1)):
        launches += counted.launches * (of_experts if isinstance(counted.kernel, ExpertsKernel) else 1)
    return launches


def with_launches(
    tables: IterationTimes,
    least_s: float,  # time of the launches of an iteration
    context: float,  # mean context of decoding sequences
    captured: int = 0,  # decoding sequences of a rank up to which graphs are replayed
    tokens_per_sequence: int = 1,
) -> IterationTimes:
    """Return the times of an engine whose larger batches take no less than the launches of their kernels.

    Large batches hide the launches, and small ones wait for them.
    """
    groups, token_s = tables.attention_data, list(tables.token_s)
    largest = min((len(tables.decode_attention_s) - 1) // groups, (len(token_s) - 1) // tokens_per_sequence)
    for own_sequences in range(captured + 1, largest + 1):
        sequences = own_sequences * groups
        replayed_s = tables.iteration_s(ScheduledTokens(sequences, sequences * context), tokens_per_sequence)
        token_s[own_sequences * tokens_per_sequence] += max(least_s - replayed_s, 0.0)
    launched: IterationTimes = msgspec.structs.replace(tables, token_s=as_table(token_s))
    return launched

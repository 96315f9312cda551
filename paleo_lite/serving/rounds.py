"""Time of a round of a pipeline: every batch in flight passes all stages once.

With P stages an engine keeps P batches in flight (vLLM's batch queue, TensorRT-LLM's micro-batches). The decoding
sequences and the prompts of a replica are divided evenly over them. Batches pass the stages in order and do not
overtake each other, so that a round, in which every decoding sequence yields a token, takes

``max(overhead + sum over stages of t(largest batch) + sends, max over stages of sum over batches of t(batch))``

The first term is the latency of one batch, the second the work of the slowest stage (Huang et al. 2019, GPipe: with as
many micro-batches as stages and more coming, no bubble remains but for stages of different speed; Agrawal et al. 2024,
Sarathi-Serve, section 3.3: bubbles by batches of different size). After a pause the pipeline is empty, and the last
batch arrives after the latency of one batch and the slowest stage's work for the others (GPipe's ``(M + P - 1) t``).
The scheduler prepares a batch while others are in flight: its overhead delays one batch, and limits how often batches
start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .iteration_times import IterationTimes


class Round(NamedTuple):
    """Tokens that a round computes."""

    decoding: int  # decoding sequences
    cached_tokens: float  # sum of their contexts
    tokens_per_sequence: int = 1  # tokens that each of them computes: 1, and with speculative decoding the drafted ones
    chunks: Sequence[tuple[int, int]] = ()  # first token and end of the chunks of prompts
    completed: int = 0  # prompts that are completed


def round_time_s(
    times: IterationTimes, work: Round, *, overhead_s: float, batch_tokens: int, starts_empty: bool = False
) -> float:
    """Return the time of a round, in seconds.

    Parameters
    ----------
    times : IterationTimes
        Iteration times with those of the stages.
    work : Round
        Tokens of the round.
    overhead_s : float
        Overhead of the engine per batch.
    batch_tokens : int
        Largest number of tokens of prompts in one batch; a longer chunk is divided over several batches.
    starts_empty : bool
        Whether no batch was in flight before.
    """
    prompt_tokens = sum(end - start for start, end in work.chunks)
    with_prompts = min(times.pipeline, max(len(work.chunks), _ceil(prompt_tokens, batch_tokens)))
    batches = max(min(times.pipeline, work.decoding + len(work.chunks)), with_prompts)
    sequences = _ceil(work.decoding, batches)
    cached_tokens = work.cached_tokens * sequences / work.decoding if work.decoding else 0.0
    decoded = sequences * work.tokens_per_sequence

    def batch_time_s(tables: IterationTimes, divided_prompts: int) -> float:
        """Return the time of one batch, with its share of the prompts if they are divided over some batches."""
        if not divided_prompts:
            return tables.decode_s(sequences, cached_tokens, decoded, max(decoded, 1)) if sequences else 0.0
        sampled = decoded + _ceil(work.completed, divided_prompts)
        new_tokens = decoded + _ceil(prompt_tokens, divided_prompts)
        attention_s = sum(tables.chunk_s(start, end) for start, end in work.chunks) / divided_prompts + tables.prompt_s
        return tables.decode_s(sequences, cached_tokens, new_tokens, max(sampled, 1)) + attention_s

    latency_s = overhead_s + batch_time_s(times, with_prompts)
    busy_s = 0.0
    for stage in times.stages:
        largest_s = max(batch_time_s(stage, with_prompts), overhead_s)
        others_s = (batches - with_prompts) * max(batch_time_s(stage, 0), overhead_s)
        stage_s = with_prompts * largest_s + others_s
        if starts_empty:
            stage_s += latency_s - largest_s
        busy_s = max(busy_s, stage_s)
    return max(latency_s, busy_s)


def _ceil(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)

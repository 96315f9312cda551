"""Tables of the time of an iteration over new tokens, decoding sequences and cached tokens, and how they are read.

The table over (new tokens, sequences, cached tokens) is a sum of small ones:

- what treats every token alike (products with weights, norms, activations): by the number of new tokens of prompts and
  of decoding sequences together;
- attention: of decoding sequences by their number and their mean context, of prompts by the length of the prompt; a
  chunk takes the difference between its end and its start;
- the head: by the number of sequences of which a token is sampled.

With pipeline parallelism the time of an iteration is the sum over the stages and of the sends between them, and each
stage has tables of its own. `paleo_lite.serving.timer` makes the tables.

In a round of a pipeline every batch in flight passes all stages once.

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

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np


def as_table(values: Any) -> Sequence[float]:
    """Return numbers as a table that is read one number at a time: in a third of the room of a list, and made at once.

    Tables of many devices have half a million numbers, of which a simulation reads a few thousand.
    """
    return array("d", np.ascontiguousarray(values, dtype=np.float64).tobytes())


class ScheduledTokens(NamedTuple):
    """Tokens that a scheduler puts into an iteration, or into a round of a pipeline."""

    decoding: int  # decoding sequences
    cached_tokens: float  # sum of their contexts
    chunks: Sequence[tuple[int, int]] = ()  # first token and end of the chunks of prompts
    completed: int = 0  # prompts that are completed, of each of which a token is sampled
    # Ranks that compute the chunks, for the busiest of which all others wait; empty if they share the chunks evenly.
    ranks: Sequence[int] = ()


class IterationTimes(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Tables of the time of an iteration on one replica."""

    # Seconds of the layers that treat every token alike, with the all-reduces, by the number of new tokens of an
    # attention group from 0.
    token_s: Sequence[float]
    head_s: Sequence[float]  # seconds of the head by the number of sequences from 0
    contexts: list[float]  # mean contexts at which attention of decoding sequences is tabulated
    # Seconds of attention by the number of decoding sequences from 0, and by `contexts`.
    decode_attention_s: list[list[float]]
    prompt_attention_s: Sequence[float]  # seconds of attention of a whole prompt by its length from 0
    # 90% interval of an iteration relative to its time, by the number of new tokens from 0; empty if the time model
    # gives none.
    relative_low: Sequence[float]
    relative_high: Sequence[float]
    # Times of each stage of a pipeline that can be the slowest, without sending; empty without a pipeline.
    stages: tuple[IterationTimes, ...] = ()
    pipeline: int = 1  # number of stages
    # Seconds of experts by the number of new tokens of all attention groups from 0; empty if they are a part of
    # `token_s`.
    experts_s: Sequence[float] = ()
    # Seconds of the shortest kernels of attention of prompts, once per iteration that computes any.
    prompt_s: float = 0.0
    attention_data: int = 1  # groups of devices that compute attention for sequences of their own
    # Speed under a lower power limit than the rated one, relative to that without, by the number of new tokens from 0;
    # empty without such a limit.
    limited_speed: Sequence[float] = ()
    # Tables of iterations that compute prompts, where `token_s` and `experts_s`, and they alone, are others; None if
    # they are not.
    with_prompts: IterationTimes | None = None

    def iteration_s(
        self,
        scheduled: ScheduledTokens,
        tokens_per_sequence: int = 1,
        sampled_per_sequence: int = 0,  # 0: all of them
    ) -> float:
        """Return the time of an iteration; with speculative decoding a sequence has more than one new token."""
        sequences, cached_tokens, chunks, completed, ranks = scheduled
        if chunks and self.with_prompts is not None:
            return self.with_prompts.iteration_s(scheduled, tokens_per_sequence, sampled_per_sequence)
        prompt_tokens, attention_s = 0, 0.0
        for start, end in chunks:
            attention_s += self.chunk_s(start, end)
            prompt_tokens += end - start
        decoded = sequences * tokens_per_sequence
        sampled = sequences * (sampled_per_sequence or tokens_per_sequence) + completed or 1
        if self.attention_data == 1:
            time_s = self.decode_s(sequences, cached_tokens, decoded + prompt_tokens, sampled)
            if self.experts_s:
                time_s += self.experts_s[decoded + prompt_tokens]
            return time_s + attention_s + (self.prompt_s if chunks else 0.0)
        groups = self.attention_data
        own_sequences = -(-sequences // groups)
        own_tokens = own_sequences * tokens_per_sequence
        if ranks:
            rank_tokens, rank_s = [0] * groups, [0.0] * groups
            for (start, end), rank in zip(chunks, ranks):
                rank_tokens[rank] += end - start
                rank_s[rank] += self.chunk_s(start, end)
            own_tokens += max(rank_tokens)
            attention_s = max(rank_s) + self.prompt_s
        elif chunks:
            busy_groups = min(len(chunks), groups)
            own_tokens += -(-prompt_tokens // busy_groups)
            attention_s = attention_s / busy_groups + self.prompt_s
        own_cached = cached_tokens * own_sequences / sequences if sequences else 0.0
        time_s = self.decode_s(own_sequences, own_cached, own_tokens, -(-sampled // groups))
        if self.experts_s:
            time_s += self.experts_s[decoded + prompt_tokens]
        return time_s + attention_s

    def decode_s(self, sequences: int, cached_tokens: float, new_tokens: int = 0, sampled: int = 0) -> float:
        """Return the time of an iteration of one attention group, without attention of prompts and separate experts.

        By default decoding sequences have one new token each, and one of each is sampled.
        """
        new_tokens = new_tokens or sequences
        time_s = self.token_s[new_tokens] + self.head_s[sampled or sequences]
        if not sequences:
            return time_s
        contexts = self.contexts
        row = self.decode_attention_s[sequences]
        context = cached_tokens / sequences
        index = bisect_right(contexts, context) - 1
        if index < 0:
            return time_s + row[0]
        if index >= len(contexts) - 1:
            index = len(contexts) - 2
        start = contexts[index]
        share = (context - start) / (contexts[index + 1] - start)
        return time_s + row[index] + share * (row[index + 1] - row[index])

    def chunk_s(self, start: int, end: int) -> float:
        """Return the time of attention of the tokens `start` to `end` of a prompt."""
        attention_s = self.prompt_attention_s
        difference_s = attention_s[end] - attention_s[start]
        alone_s = attention_s[end - start]
        return difference_s if difference_s > alone_s else alone_s

    def scaled(self, end: str) -> IterationTimes:
        """Return the tables at an end of the interval: ``low`` has the shorter, ``high`` the longer times."""
        if not self.relative_low:
            return self
        return self._low if end == "low" else self._high

    def narrowed(self, width: float) -> IterationTimes:
        """Return the tables with an interval of so much of its width, in logarithms."""
        low, high = (as_table(np.asarray(ends) ** width) for ends in (self.relative_low, self.relative_high))
        narrowed: IterationTimes = msgspec.structs.replace(self, relative_low=low, relative_high=high)
        return narrowed

    def widened(self, reach: float) -> IterationTimes:
        """Return the tables with an interval that an independent one widens, which reaches so far in logarithms."""
        low, high = (np.hypot(np.log(np.asarray(ends)), reach) for ends in (self.relative_low, self.relative_high))
        widened: IterationTimes = msgspec.structs.replace(
            self, relative_low=as_table(np.exp(-low)), relative_high=as_table(np.exp(high))
        )
        return widened

    @cached_property
    def simulations(self) -> list[Any]:
        """Simulations with these tables that are kept (`paleo_lite.serving.pools.keep`)."""
        return []

    @cached_property
    def _low(self) -> IterationTimes:
        return self.times_factors(self.relative_low)

    @cached_property
    def _high(self) -> IterationTimes:
        return self.times_factors(self.relative_high)

    def times_factors(self, factors: Sequence[float]) -> IterationTimes:
        """Return the tables multiplied by factors by the number of new tokens."""
        last = len(factors) - 1
        sizes = max(len(self.prompt_attention_s), len(self.token_s), len(self.decode_attention_s))
        by_size = np.asarray(factors)[np.minimum(np.arange(sizes), last)]

        def scale(values: Sequence[float]) -> Sequence[float]:
            return as_table(np.asarray(values) * by_size[: len(values)])

        rows = np.array(self.decode_attention_s) * by_size[: len(self.decode_attention_s), np.newaxis]
        scaled = IterationTimes(
            token_s=scale(self.token_s),
            head_s=scale(self.head_s),
            contexts=self.contexts,
            decode_attention_s=rows.tolist(),
            prompt_attention_s=scale(self.prompt_attention_s),
            relative_low=[],
            relative_high=[],
            stages=tuple(stage.times_factors(factors) for stage in self.stages),
            pipeline=self.pipeline,
            experts_s=scale(self.experts_s),
            prompt_s=self.prompt_s * factors[last],
            attention_data=self.attention_data,
        )
        with_prompts = self.with_prompts
        if with_prompts is None:
            return scaled
        scaled_with_prompts = msgspec.structs.replace(
            scaled, token_s=scale(with_prompts.token_s), experts_s=scale(with_prompts.experts_s)
        )
        whole: IterationTimes = msgspec.structs.replace(scaled, with_prompts=scaled_with_prompts)
        return whole

    def of_blocks(self, share: float) -> IterationTimes:
        """Return the tables of a share of the network's blocks, with its whole head."""
        scaled: IterationTimes = msgspec.structs.replace(
            self,
            token_s=as_table(share * np.asarray(self.token_s)),
            decode_attention_s=[[share * time_s for time_s in row] for row in self.decode_attention_s],
            prompt_attention_s=as_table(share * np.asarray(self.prompt_attention_s)),
            experts_s=as_table(share * np.asarray(self.experts_s)),
            prompt_s=share * self.prompt_s,
            with_prompts=None if self.with_prompts is None else self.with_prompts.of_blocks(share),
        )
        return scaled

    def is_never_slower_than(self, other: IterationTimes) -> bool:
        """Return whether no time of these tables exceeds that of tables of the same sizes."""
        return (
            _none_exceeds(self.token_s, other.token_s)
            and _none_exceeds(self.head_s, other.head_s)
            and _none_exceeds(self.decode_attention_s, other.decode_attention_s)
            and _none_exceeds(self.prompt_attention_s, other.prompt_attention_s)
            and _none_exceeds(self.prompt_s, other.prompt_s)
        )


def _none_exceeds(values: Any, others: Any) -> bool:
    """Return whether no value, or the only one, exceeds its counterpart by more than rounding."""
    return bool(np.all(np.asarray(values) <= np.asarray(others) * (1 + 1e-9)))


def slowest_stages(stages: Sequence[IterationTimes]) -> tuple[IterationTimes, ...]:
    """Return the stages without those that are never slower than another."""
    remaining: list[IterationTimes] = []
    for stage in stages:
        if any(stage.is_never_slower_than(other) for other in remaining):
            continue
        remaining = [other for other in remaining if not other.is_never_slower_than(stage)]
        remaining.append(stage)
    return tuple(remaining)


def round_time_s(
    times: IterationTimes,
    scheduled: ScheduledTokens,
    tokens_per_sequence: int = 1,
    *,
    overhead_s: float,
    batch_tokens: int,
    starts_empty: bool = False,
    sequence_overhead_s: float = 0.0,  # of each sequence of a batch
) -> float:
    """Return the time of a round, in seconds.

    No batch has more than `batch_tokens` of prompts: a longer chunk is divided over several. The engine's overhead is
    one of each batch. A pipeline that starts empty had no batch in flight before.
    """
    decoding, chunks = scheduled.decoding, scheduled.chunks
    prompt_tokens = sum(end - start for start, end in chunks)
    with_prompts = min(times.pipeline, max(len(chunks), _ceil(prompt_tokens, batch_tokens)))
    batches = max(min(times.pipeline, decoding + len(chunks)), with_prompts)
    sequences = _ceil(decoding, batches)
    cached_tokens = scheduled.cached_tokens * sequences / decoding if decoding else 0.0
    decoded = sequences * tokens_per_sequence
    overhead_s += sequence_overhead_s * sequences

    def batch_time_s(tables: IterationTimes, divided_prompts: int) -> float:
        """Return the time of one batch, with its share of the prompts if they are divided over some batches."""
        if not divided_prompts:
            return tables.decode_s(sequences, cached_tokens, decoded, max(decoded, 1)) if sequences else 0.0
        sampled = decoded + _ceil(scheduled.completed, divided_prompts)
        new_tokens = decoded + _ceil(prompt_tokens, divided_prompts)
        attention_s = sum(tables.chunk_s(start, end) for start, end in chunks) / divided_prompts + tables.prompt_s
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

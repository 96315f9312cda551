"""The time of an iteration of an engine, from the tables of its iterations, with its host and its drafts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..engines.records.record import Server
from .iteration_times import IterationTimes, ScheduledTokens, round_time_s
from .options import SimulationOptions, Speculation


def undivided_iteration_s(
    times: IterationTimes, engine: Server, speculation: Speculation, scheduled: ScheduledTokens
) -> float:
    """Return the time of an iteration without a pipeline, with its drafts and the host."""
    # Every attention group has a sampler of its own.
    time_s = engine.overhead_s + engine.sequence_overhead_s * -(-scheduled.decoding // times.attention_data)
    time_s += times.iteration_s(scheduled, speculation.draft_length + 1)
    if speculation.draft is not None and scheduled.decoding:
        drafted = ScheduledTokens(scheduled.decoding, scheduled.cached_tokens)
        for number, tokens, sampled in speculation.draft_passes:
            time_s += number * (speculation.draft.iteration_s(drafted, tokens, sampled) + engine.draft_pass_s)
    return time_s


class TimedEngine(NamedTuple):
    """An engine, its options, and how long its iterations take beside its own overhead."""

    times: IterationTimes
    engine: Server
    options: SimulationOptions

    def iteration_s(
        self,
        scheduled: ScheduledTokens,
        *,
        starts_empty: bool = False,  # whether a pipeline had no batch in flight before
    ) -> float:
        """Return the time of one iteration, with pipeline parallelism of one round."""
        times, engine, speculation = self.times, self.engine, self.options.speculation
        if times.pipeline > 1:
            batch_tokens = min(engine.chunked_prefill or engine.max_batched_tokens, engine.max_batched_tokens)
            return round_time_s(
                times,
                scheduled,
                speculation.draft_length + 1,
                overhead_s=engine.overhead_s,
                batch_tokens=batch_tokens,
                starts_empty=starts_empty,
                sequence_overhead_s=engine.sequence_overhead_s,
            )
        return undivided_iteration_s(times, engine, speculation, scheduled)

    def draw_ranks(self, requests: int) -> list[int]:
        """Draw the rank that computes each prompt; nothing where ranks share prompts evenly."""
        ranks = self.times.attention_data
        if ranks == 1 or not self.options.draws_ranks or not self.engine.chunked_prefill:
            return []
        drawn: list[int] = np.random.default_rng(self.options.seed).integers(ranks, size=requests).tolist()
        return drawn

    def time_decoding(self) -> Callable[[int, float], float] | None:
        """Return a function that gives the time of an iteration that decodes some sequences with some cached tokens.

        It adds what `iteration_s` adds, in the same order, but without asking again what never changes, as most of the
        time of a simulation would go there. None for pipelines, whose rounds are no such sum.
        """
        times, engine, speculation = self.times, self.engine, self.options.speculation
        if times.pipeline > 1:
            return None
        network_s = _time_decoding(times, speculation.draft_length + 1, engine.overhead_s, engine.sequence_overhead_s)
        if speculation.draft is None:
            return network_s
        passes = [
            (number, _time_decoding(speculation.draft, tokens, engine.draft_pass_s, sampled_per_sequence=sampled))
            for number, tokens, sampled in speculation.draft_passes
        ]

        def drafting_s(sequences: int, cached_tokens: float) -> float:
            """Return the time of an iteration with its drafts."""
            time_s = network_s(sequences, cached_tokens)
            for number, pass_s in passes:
                time_s += number * pass_s(sequences, cached_tokens)
            return time_s

        return drafting_s


def _time_decoding(
    times: IterationTimes,
    tokens_per_sequence: int,
    host_s: float,
    sequence_host_s: float = 0.0,
    *,
    sampled_per_sequence: int = 0,  # 0: all tokens
) -> Callable[[int, float], float]:
    """Return a function that gives the time of an iteration without prompts, with the host."""
    token_s, head_s, experts_s = times.token_s, times.head_s, times.experts_s
    contexts, attention_s, groups = times.contexts, times.decode_attention_s, times.attention_data
    last = len(contexts) - 2
    sampled_per_sequence = sampled_per_sequence or tokens_per_sequence

    def decoding_s(sequences: int, cached_tokens: float) -> float:
        """Return the time of an iteration."""
        own_sequences, tokens = -(-sequences // groups), sequences * tokens_per_sequence
        context = cached_tokens / sequences
        index = bisect_right(contexts, context) - 1
        row = attention_s[own_sequences]
        time_s = token_s[own_sequences * tokens_per_sequence] + head_s[-(-sequences * sampled_per_sequence // groups)]
        if index < 0:
            time_s += row[0]
        else:
            index = min(index, last)
            start, low_s = contexts[index], row[index]
            share = (context - start) / (contexts[index + 1] - start)
            time_s = time_s + low_s + share * (row[index + 1] - low_s)
        if experts_s:
            time_s += experts_s[tokens]
        return host_s + sequence_host_s * own_sequences + time_s

    return decoding_s

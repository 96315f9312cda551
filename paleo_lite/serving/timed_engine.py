"""The time of an iteration of an engine, from the tables of its iterations, with its host and its drafts."""

from __future__ import annotations

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
        time_s += speculation.draft_passes * speculation.draft.iteration_s(drafted)
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
            )
        return undivided_iteration_s(times, engine, speculation, scheduled)

    def draw_ranks(self, requests: int) -> list[int]:
        """Draw the rank that computes each prompt; nothing where ranks share prompts evenly."""
        ranks = self.times.attention_data
        if ranks == 1 or not self.options.draws_ranks or not self.engine.chunked_prefill:
            return []
        drawn: list[int] = np.random.default_rng(0).integers(ranks, size=requests).tolist()
        return drawn

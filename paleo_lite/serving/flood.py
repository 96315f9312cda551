"""Requests that all wait from the beginning: one simulation for all levels of the times of iterations.

Nothing arrives while a replica computes, so that which requests an iteration computes does not depend on how long
iterations take.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from .cache import CacheRoom
from .iteration_times import ScheduledTokens
from .outcomes import Outcome
from .requests import Traffic
from .simulator import Replica
from .timed_engine import TimedEngine


def simulate_flood(traffic: Traffic, levels: Sequence[TimedEngine], room: CacheRoom) -> list[Outcome]:
    """Return when a replica ends its answers with each of some times of iterations."""
    replica = _FloodedReplica(traffic, levels, room)
    replica.run()
    outcome = replica.outcome()
    ends_s, *ends_by_level_s = np.array(replica.ends_s).T
    return [
        msgspec.structs.replace(outcome, finish_s=np.interp(outcome.finish_s, ends_s, level_ends_s))
        for level_ends_s in ends_by_level_s
    ]


class _FloodedReplica(Replica):
    """A replica that takes the times of the first of some levels, and notes when its steps end at each of them."""

    def __init__(self, traffic: Traffic, levels: Sequence[TimedEngine], room: CacheRoom) -> None:
        super().__init__(traffic, levels[0], room)
        self.levels = levels
        self.iteration_by_level_s = [0.0] * len(levels)
        self.ends_s = [[0.0] * (1 + len(levels))]  # of each step: as it was simulated, and at each level

    def _iteration_s(self, scheduled: ScheduledTokens) -> float:
        """Return the time of one iteration, and note that of each level."""
        self.iteration_by_level_s = [level.iteration_s(scheduled, starts_empty=self.is_idle) for level in self.levels]
        return self.iteration_by_level_s[0]

    def _next_iteration_s(self) -> float:
        """Return the time of an iteration that decodes the present sequences."""
        return self._decoding_s(self.batch.cached_tokens)

    def _decoding_s(self, cached_tokens: float) -> float:
        """Return the time of one iteration that decodes the present sequences, and note that of each level."""
        return self._iteration_s(ScheduledTokens(self.batch.sequences, cached_tokens))

    def _pass_time(self, time_s: float, iterations: int, decoding: int, first_tokens: int = 0) -> None:
        """Let time pass at all levels; what is loaded takes as long at each."""
        super()._pass_time(time_s, iterations, decoding, first_tokens)
        loading_s = time_s - iterations * self.iteration_by_level_s[0]
        ends_s = [
            end_s + iterations * iteration_s + loading_s
            for end_s, iteration_s in zip(self.ends_s[-1][1:], self.iteration_by_level_s)
        ]
        self.ends_s.append([self.now_s, *ends_s])

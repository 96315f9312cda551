"""What happened to requests in a simulation, what a replica notes of it while it runs, and latencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

PERCENTILES = (50, 90, 99)

LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "latency_s": "end-to-end latency",
    "queue_s": "waiting for admission",
}
"""Latencies of a request, with their names."""

MOST_NOTES = 2048
"""Times up to which the progress of a replica is kept, so that long simulations take no more memory."""


class ReplicaStep(NamedTuple):
    """Iterations that a replica takes between two events."""

    start_s: float
    time_s: float  # of all of them
    iterations: int
    sequences: int  # that decode
    computed_tokens: int  # of prompts, from the start of the simulation to the end of the step
    waiting: int  # requests that are not admitted
    used_blocks: int  # of the KV cache


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """What happened to the requests of one replica."""

    # Times of each request. In a closed loop the arrival is the time at which the user sends it. Shape (requests,).
    arrival_s: Floats
    admitted_s: Floats
    first_token_s: Floats
    finish_s: Floats
    output_tokens: Ints  # tokens of the answers, shape (requests,)
    iterations: int  # number of iterations
    busy_s: float  # time in iterations
    cached_block_s: float  # integral of the blocks in use over time
    # Integral of the sequences whose answer has begun over the iterations' time, also while they pause for prompts.
    sequence_s: float
    peak_blocks: int  # largest number of blocks in use
    blocks: int  # number of blocks of the cache
    computed_tokens: int  # tokens of prompts that were computed, including those computed again after preemption
    preemptions: int  # number of preemptions
    left_out: Bools | None = None  # requests that latencies leave out, shape (requests,); None: none
    classes: Ints | None = None  # class of each request, shape (requests,); None without classes
    # Tokens of prompts that were found in the prefix cache when they were first admitted; None without hashes.
    found_tokens: int | None = None
    adapter_loads: int = 0  # adapters that were copied to a slot
    adapter_wait_s: float = 0.0  # time in iterations in which requests waited for a slot of an adapter alone
    input_tokens: int = 0  # tokens of the prompts of all requests
    steps: tuple[ReplicaStep, ...] = ()  # what the replica did, where that is recorded
    # Times, with the seconds in iterations, and the integrals over cached blocks and sequences up to them, shape
    # (times, 4).
    progress: Floats = msgspec.field(default_factory=lambda: np.zeros((1, 4)))


class ReplicaLog:
    """What a replica notes while it runs: times of its requests, counters, and its progress.

    The attributes are those of its `Outcome`.
    """

    def __init__(
        self,
        input_tokens: Sequence[int],  # of each request
        output_tokens: Sequence[int],  # of each request
        blocks: int,  # of the cache
        *,
        finds_prefixes: bool,
    ) -> None:
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        self.blocks, self.finds_prefixes = blocks, finds_prefixes
        requests = len(input_tokens)
        self.admitted_s = [math.nan] * requests
        self.first_token_s = [math.nan] * requests
        self.finish_s = [math.nan] * requests
        self.busy_s = self.cached_block_s = self.sequence_s = self.adapter_wait_s = 0.0
        self.iterations = self.peak_blocks = self.computed_tokens = self.preemptions = self.found_tokens = 0
        self.steps: list[ReplicaStep] = []
        self.progress = [(0.0, 0.0, 0.0, 0.0)]
        self.note_interval_s, self.next_note_s = 0.0, 0.0

    def pass_time(self, now_s: float, time_s: float, iterations: int, used_blocks: int, sequences: int) -> None:
        """Count iterations that end now, with the blocks in use and the sequences whose answer has begun."""
        self.iterations += iterations
        self.busy_s += time_s
        self.cached_block_s += used_blocks * time_s
        self.sequence_s += sequences * time_s
        self.peak_blocks = max(self.peak_blocks, used_blocks)
        if now_s >= self.next_note_s:
            self._note_progress(now_s)

    def _note_progress(self, now_s: float) -> None:
        """Note what is done up to now; of long simulations every other note is left out, again and again."""
        self.progress.append(self._done(now_s))
        if len(self.progress) > MOST_NOTES:
            self.note_interval_s = 2 * (now_s - self.progress[0][0]) / MOST_NOTES
            self.progress = [self.progress[0], *self.progress[2::2]]
        self.next_note_s = now_s + self.note_interval_s

    def _done(self, now_s: float) -> tuple[float, float, float, float]:
        return now_s, self.busy_s, self.cached_block_s, self.sequence_s

    def outcome(
        self,
        now_s: float,
        arrival_s: Sequence[float],  # of each request
        adapter_loads: int,
        chosen: Ints | slice,  # requests
    ) -> Outcome:
        """Return what happened up to now, with the times of chosen requests as arrays."""
        return Outcome(
            arrival_s=np.array(arrival_s)[chosen],
            admitted_s=np.array(self.admitted_s)[chosen],
            first_token_s=np.array(self.first_token_s)[chosen],
            finish_s=np.array(self.finish_s)[chosen],
            output_tokens=np.array(self.output_tokens, dtype=np.int64)[chosen],
            iterations=self.iterations,
            busy_s=self.busy_s,
            cached_block_s=self.cached_block_s,
            sequence_s=self.sequence_s,
            peak_blocks=self.peak_blocks,
            blocks=self.blocks,
            computed_tokens=self.computed_tokens,
            preemptions=self.preemptions,
            found_tokens=self.found_tokens if self.finds_prefixes else None,
            adapter_loads=adapter_loads,
            adapter_wait_s=self.adapter_wait_s,
            input_tokens=int(np.array(self.input_tokens)[chosen].sum()),
            steps=tuple(self.steps),
            progress=np.array([*self.progress, self._done(now_s)]),
        )


def request_latencies(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the latencies of all requests that are not left out as arrays, by the names of `LATENCIES`.

    The time per output token is ``(latency - time to first token) / (output tokens - 1)``, as the engines' own
    benchmarks define it; answers of one token have none.
    """
    arrival_s, admitted_s, first_s, finish_s, tokens = (
        np.concatenate([_counted(outcome, getattr(outcome, name)) for outcome in outcomes])
        for name in ("arrival_s", "admitted_s", "first_token_s", "finish_s", "output_tokens")
    )
    several = tokens > 1
    return {
        "ttft_s": first_s - arrival_s,
        "tpot_s": (finish_s - first_s)[several] / (tokens[several] - 1),
        "latency_s": finish_s - arrival_s,
        "queue_s": admitted_s - arrival_s,
    }


def _counted(outcome: Outcome, values: Any) -> Any:
    """Return the values of the requests that latencies do not leave out."""
    return values if outcome.left_out is None else values[~outcome.left_out]


def share_within(outcomes: Sequence[Outcome], limits_s: Sequence[tuple[str, float]]) -> float:
    """Return the share of the requests that are within limits of ``ttft``, ``tpot`` or ``latency``."""
    first_s, finish_s, sent_s, tokens = (
        np.concatenate([getattr(outcome, name) for outcome in outcomes])
        for name in ("first_token_s", "finish_s", "arrival_s", "output_tokens")
    )
    values = {
        "ttft": first_s - sent_s,
        "tpot": (finish_s - first_s) / np.maximum(tokens - 1, 1),
        "latency": finish_s - sent_s,
    }
    is_within = np.ones(len(first_s), dtype=bool)
    for name, limit_s in limits_s:
        is_within &= values[name] <= limit_s
    return float(is_within.mean()) if len(is_within) else 1.0


def summarize(values: Any) -> dict[str, float | None]:
    """Return mean and percentiles of an array; None if it is empty."""
    if not len(values):
        return dict.fromkeys(("mean", *(f"p{percent}" for percent in PERCENTILES)))
    result: dict[str, float | None] = {"mean": float(values.mean())}
    for percent, value in zip(PERCENTILES, np.percentile(values, PERCENTILES)):
        result[f"p{percent}"] = float(value)
    return result

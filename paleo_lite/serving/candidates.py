"""Ranked deployments: candidates, their Pareto front, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from .division import Division


class Ranking(NamedTuple):
    """A way to rank deployments."""

    per_token: str  # figure of a candidate that is smallest for the best one
    # The order and the first of them in words.
    order: str
    best: str


RANKINGS = {
    "cost": Ranking("usd_per_million_output_tokens", "the cheapest per token", "cheapest"),
    "joules": Ranking("joules_per_million_output_tokens", "the least energy per token", "least energy"),
}
"""What deployments are ranked by."""


class Candidate(msgspec.Struct, frozen=True):
    """One replica of a deployment with a batch limit, and the replicas that a rate needs."""

    # Device and formats.
    gpu: str
    precision: str
    weights: str
    # Devices of a stage, pipeline stages of a replica, and requests at the same time.
    tensor: int
    pipeline: int
    batch_limit: int
    # Output tokens per second.
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    requests_per_s: float  # requests per second of one replica
    # Latencies at the percentile of the objectives, else mean.
    ttft_s: float
    tpot_s: float | None
    latency_s: float
    replicas: int  # replicas for the requested rate; 1 without a rate
    # Cost of one million output tokens at full load, and of all replicas per hour; None without a price.
    usd_per_million_output_tokens: float | None
    usd_per_h: float | None
    meets_objectives: bool  # whether the latencies are within the objectives
    is_on_front: bool = False  # whether no other candidate is better in tokens per second both per GPU and per user
    # Groups of the devices of a stage that divide the experts, and that compute attention for sequences of their own.
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    # Energy of the devices per million output tokens at full load; None if their power is unknown.
    joules_per_million_output_tokens: float | None = None

    @property
    def division(self) -> Division:
        """How the devices of a replica share the network."""
        return Division(self.tensor, self.pipeline, self.expert_parallel, self.attention_data_parallel)

    def parallelism(self) -> str:
        """Return the degrees of parallelism as text, such as ``tensor 8, expert-parallel 8``."""
        return self.division.describe()


class Advice(msgspec.Struct, frozen=True):
    """Candidates and the best of them that meets the objectives."""

    candidates: list[Candidate]  # all that fit, the best per token first
    best: Candidate | None  # the best that meets the objectives; None if none does
    refused: dict[str, str]  # deployments that were not simulated, with the reason
    by: str = "cost"  # key of `RANKINGS`


def mark_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates with those marked that are on the Pareto front of tokens/s per GPU and per user."""
    marked = []
    for candidate in candidates:
        is_dominated = any(_dominates(other, candidate) for other in candidates)
        marked.append(msgspec.structs.replace(candidate, is_on_front=not is_dominated))
    return marked


def _dominates(one: Candidate, other: Candidate) -> bool:
    """Return whether a candidate is at least as good in both respects and better in one."""
    pairs = (
        (one.tokens_per_s_per_gpu, other.tokens_per_s_per_gpu),
        (one.tokens_per_s_per_user, other.tokens_per_s_per_user),
    )
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

"""Wide expert parallelism that advice tries: replicas on several nodes, of which the best by estimates are simulated.

Each device computes attention for sequences of its own, and experts are divided among all of them (DeepSeek-AI 2024,
DeepSeek-V3, section 3.4: 32 devices for prompts, 320 that decode; SGLang's blog on large-scale expert parallelism).
As many prompts are computed as answers end, by chance in each iteration: all ranks wait for the one with a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .candidates import Candidate, Criteria, DraftChoice
from .iteration_times import ScheduledTokens
from .requests import Demand
from .slo import Objective
from .splits import ESTIMATE_TOLERANCE, PoolEstimate, may_meet
from .timed_engine import undivided_iteration_s

WIDE_DEGREES = (16, 32, 64)
"""Devices of a replica that are tried."""

SEQUENCES_OF_RANK = (4, 8, 16, 32, 64, 128, 256)
"""Sequences of each rank that are tried."""

SIMULATED = 6
"""Replicas with a batch limit that are simulated at most."""


class WideEstimate(NamedTuple):
    """A replica on several nodes with a batch limit, and what is estimated of it."""

    pool: PoolEstimate
    batch_limit: int
    draft: DraftChoice | None
    requests_per_s: float
    low_requests_per_s: float  # with the slowest iterations
    ttft_s: float
    tpot_s: float


def wide_limits(ranks: int, users: int | None) -> tuple[int, ...]:
    """Return the batch limits of a replica that are tried."""
    return limits_of_users([ranks * sequences for sequences in SEQUENCES_OF_RANK], users)


def limits_of_users(limits: Sequence[int], users: int | None) -> tuple[int, ...]:
    """Return the batch limits that some users can fill, and all of them at most; all limits of an unknown number."""
    if users is None:
        return tuple(limits)
    return (*(limit for limit in limits if limit < min(users, limits[-1])), min(users, limits[-1]))


def estimate_wide(pools: Sequence[PoolEstimate]) -> list[WideEstimate]:
    """Return the estimates of all batch limits."""
    return [estimate for pool in pools for estimate in _estimates_of(pool)]


def _estimates_of(pool: PoolEstimate) -> Iterator[WideEstimate]:
    """Yield the estimates of a deployment at each batch limit that its cache holds."""
    answer_tokens = float(pool.sample.output_tokens.mean())
    for limit in pool.batch_limits:
        if limit > pool.most_sequences:
            return
        draft = pool.best_draft(limit)
        tpot_s, slow_s = (_token_s(pool, limit, level, draft) for level in ("expected", pool.prepared.slowest))
        rate_per_s, low_per_s = (limit / (answer_tokens * token_s) for token_s in (tpot_s, max(tpot_s, slow_s)))
        yield WideEstimate(pool, limit, draft, rate_per_s, low_per_s, pool.prompt_s + tpot_s, tpot_s)


def _token_s(pool: PoolEstimate, limit: int, level: str, draft: DraftChoice | None) -> float:
    """Return the seconds per token of sequences in place of which others begin when they end."""
    tables, engine, options = pool.with_draft(draft).at_level(level)
    speculation = options.speculation
    prompt_tokens, answer_tokens = (
        float(tokens.mean()) for tokens in (pool.sample.input_tokens, pool.sample.output_tokens)
    )
    ended = limit * speculation.tokens_per_iteration / answer_tokens  # answers that end in an iteration
    cached_tokens = limit * (prompt_tokens + answer_tokens / 2)
    decoding_s = undivided_iteration_s(tables, engine, speculation, ScheduledTokens(limit, cached_tokens))
    prompt = (round(options.prefix_hit_rate * prompt_tokens), round(prompt_tokens))
    most = max(int(engine.max_batched_tokens / prompt_tokens), 1)  # prompts that are computed together
    decoded = limit if engine.mixes_phases else 0  # beside prompts
    time_s, chance = 0.0, math.exp(-ended)  # of a number of ended answers (Poisson)
    for prompts in range(math.ceil(ended + 5 * math.sqrt(ended)) + 2):
        together = min(prompts, most)
        iteration_s = decoding_s
        if prompts:
            scheduled = ScheduledTokens(decoded, decoded * cached_tokens / limit, [prompt] * together, together)
            computing_s = engine.overhead_s + tables.iteration_s(scheduled, speculation.draft_length + 1)
            iteration_s = computing_s * prompts / together + (0.0 if decoded else decoding_s)
        time_s += chance * iteration_s
        chance *= ended / (prompts + 1)
    return time_s / speculation.tokens_per_iteration


def choose_wide(
    estimates: Sequence[WideEstimate],
    others: Sequence[Candidate],  # that were simulated
    demand: Demand,
    objectives: Sequence[Objective],
    criteria: Criteria,
) -> list[WideEstimate]:
    """Return the replicas that are simulated: those that may meet the objectives for less than the others do."""
    possible = [
        (_cost(estimate, demand, criteria), estimate)
        for estimate in estimates
        if may_meet(estimate.ttft_s, estimate.tpot_s, estimate.pool, objectives)
    ]
    simulated = [other for other in others if other.meets_objectives] if estimates else []
    costs = [_cost_of(candidate, demand, criteria, estimates[0].pool) for candidate in simulated]
    most = ESTIMATE_TOLERANCE * min(costs, default=math.inf)
    possible = sorted((pair for pair in possible if pair[0] <= most), key=lambda pair: pair[0])
    return [estimate for _, estimate in possible[:SIMULATED]]


def _cost(estimate: WideEstimate, demand: Demand, criteria: Criteria) -> float:
    """Return the price of the rate per hour, or of a request per second; of devices where it is unknown."""
    replica = float(estimate.pool.price_usd_per_h or estimate.pool.devices)
    if demand.finite_rate_per_s is None and criteria.by == "hourly":
        return replica * math.ceil((demand.concurrency or 1) / estimate.batch_limit)
    if demand.finite_rate_per_s is None:
        return replica / estimate.requests_per_s
    needed_per_s = demand.finite_rate_per_s / (1 - criteria.headroom)
    replicas = max(math.ceil(needed_per_s / estimate.low_requests_per_s), 1)
    is_too_large = criteria.devices is not None and replicas * estimate.pool.devices > criteria.devices
    return math.inf if is_too_large else replicas * replica


def _cost_of(candidate: Candidate, demand: Demand, criteria: Criteria, pool: PoolEstimate) -> float:
    """Return the cost of a candidate that was simulated, in the unit of `_cost`."""
    if demand.finite_rate_per_s is None and criteria.by != "hourly":
        tokens_per_s = candidate.tokens_per_s_per_gpu * candidate.devices
        answer_tokens = float(pool.sample.output_tokens.mean())
        return float(candidate.usd_per_h or candidate.devices) / tokens_per_s * answer_tokens
    return float(candidate.usd_per_h or candidate.devices)

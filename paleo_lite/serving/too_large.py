"""Rule out deployments that need more devices for a rate than are allowed, by a bound instead of a simulation.

The bound is the rate of a replica that always decodes as many sequences as its limit, and computes as many prompts
together as an iteration holds. None of 291 simulations of requests of one length (qwen3-235b-a22b on H100 and B200)
exceeds 0.99 of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..engines.records.record import Server
from .candidates import Criteria, DraftChoice, TooLarge
from .iteration_times import IterationTimes, ScheduledTokens
from .requests import Demand
from .splits import PoolEstimate
from .timed_engine import TimedEngine

MARGIN = 1.1
"""Factor on the bound that a simulation is taken not to exceed, where all lengths are equal."""

DEVIATIONS = 2.0
"""Standard deviations of the mean answer of a batch by which a simulation of random lengths may exceed it."""


class MostRequests(NamedTuple):
    """Requests per second that a replica without a pipeline does not exceed."""

    expected_per_s: float
    slowest_per_s: float  # with the slowest iterations of their interval


def most_requests_per_s(pool: PoolEstimate, batch_limit: int, draft: DraftChoice | None) -> MostRequests:
    """Return the requests per second that a replica without a pipeline does not exceed.

    Of the slowest iterations are known their host, and by which factor the others are longer at least.
    """
    drafting = pool.with_draft(draft)
    timed = drafting.at_level("expected")
    prompt_tokens = float(pool.sample.input_tokens.mean())
    answer_tokens = float(pool.sample.output_tokens.mean())
    cached_tokens = batch_limit * (prompt_tokens + answer_tokens / 2)
    decoding_s = timed.iteration_s(ScheduledTokens(batch_limit, cached_tokens))
    iterations = (answer_tokens - 1) / timed.options.speculation.tokens_per_iteration
    prompt_s = _least_prompt_s(timed, batch_limit, cached_tokens, decoding_s, prompt_tokens)
    host_s = _host_s(timed.engine, timed.times, batch_limit)
    slow_host_s = _host_s(drafting.engine_at("high"), timed.times, batch_limit)
    factor = pool.least_slowdown
    slow_decoding_s = factor * (decoding_s - host_s) + slow_host_s if factor > 1 else decoding_s
    return MostRequests(
        1 / (iterations * decoding_s / batch_limit + prompt_s),
        1 / (iterations * slow_decoding_s / batch_limit + factor * prompt_s),
    )


def _host_s(engine: Server, times: IterationTimes, decoding: int) -> float:
    """Return the time of the host in an iteration that decodes some sequences."""
    return engine.overhead_s + engine.sequence_overhead_s * math.ceil(decoding / times.attention_data)


def _least_prompt_s(
    timed: TimedEngine, decoding: int, cached_tokens: float, decoding_s: float, prompt_tokens: float
) -> float:
    """Return what a prompt adds to iterations if as many are computed together as one of them holds."""
    together = max(int(timed.engine.max_batched_tokens / prompt_tokens), 1)
    chunk = (round(timed.options.prefix_hit_rate * prompt_tokens), round(prompt_tokens))
    chunks = [chunk] * together
    if timed.engine.mixes_phases:
        added_s = timed.iteration_s(ScheduledTokens(decoding, cached_tokens, chunks, together)) - decoding_s
    else:
        added_s = timed.iteration_s(ScheduledTokens(0, 0.0, chunks, together))
    return max(added_s, 0.0) / together


def margin_of(pool: PoolEstimate, batch_limit: int) -> float:
    """Return the factor on the bound that a simulation of requests of these lengths does not exceed."""
    answers = pool.sample.output_tokens
    scatter = float(answers.std() / answers.mean()) / math.sqrt(batch_limit)
    return MARGIN * (1 + DEVIATIONS * scatter)


def find_too_large(
    pool: PoolEstimate, batch_limit: int, draft: DraftChoice | None, demand: Demand, criteria: Criteria
) -> TooLarge | None:
    """Return what rules a deployment at a batch limit out; None where it has to be simulated."""
    rate_per_s, placed = demand.finite_rate_per_s, pool.deployment.on_device
    if rate_per_s is None or criteria.devices is None or placed.pipeline.degree > 1:
        return None
    # Replicas are counted by the slowest iterations of their interval.
    most_per_s = margin_of(pool, batch_limit) * most_requests_per_s(pool, batch_limit, draft).slowest_per_s
    devices = math.ceil(rate_per_s / (1 - criteria.headroom) / most_per_s) * pool.devices
    if devices <= criteria.devices:
        return None
    listing = pool.deployment.listing
    return TooLarge(
        gpu=placed.machine.device.id,
        weights=placed.workload.weights or placed.workload.precision,
        parallelism=placed.division.describe(),
        batch_limit=batch_limit,
        devices=devices,
        price_usd_per_h=pool.deployment.price_usd_per_h,
        price_cloud=None if listing is None else listing.cloud or None,
        is_forecast=pool.deployment.timer.is_forecast,
    )

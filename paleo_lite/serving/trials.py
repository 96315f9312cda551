"""Trials of advice: short simulations of a deployment at a batch limit, or of a pair of pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from .candidates import Candidate, Criteria, DraftChoice, within
from .deployment import Deployment
from .figures import measure_figures
from .outcomes import Outcome, request_latencies, summarize
from .pools import Simulated
from .prepared import PreparedDeployment
from .requests import REQUESTS_PER_USER, Demand, Traffic, generate_traffic
from .saturation import in_progress
from .slo import OBJECTIVES, Objective, find_missed, largest_ratio
from .splits import PoolEstimate, Split
from .steady import MeasuredSpan, last_of_middle, middle_span, steady_span, whole_span

ROUNDS = 3
"""Requests per user of a closed loop; the first of each is left out of the figures."""

MOST_USERS = 256
"""Users of the simulation of a pair of pools, which stand for those of more replicas in the same ratio."""

FEWEST_REQUESTS = 300
"""Requests of a simulation at a rate, so that its 90th percentile is known."""


class LimitedPool(NamedTuple):
    """A deployment at a batch limit, perhaps with heads that draft tokens."""

    pool: PoolEstimate
    batch_limit: int
    draft: DraftChoice | None

    def simulate(self, demand: Demand, objectives: Sequence[Objective], criteria: Criteria) -> Candidate:
        """Simulate a replica."""
        candidate = _try_limit(self.pool.with_draft(self.draft), self.batch_limit, demand, objectives, criteria)
        return msgspec.structs.replace(candidate, draft=self.draft)


def try_split(split: Split, demand: Demand, objectives: Sequence[Objective], criteria: Criteria) -> Candidate:
    """Simulate a pair of pools, in the ratio of its replicas, with its share of the asked traffic.

    At a rate a user's speed and the latencies are those of the rate, and throughput and cost, as those of other
    candidates, those of full load. Without a rate there are as many users as are asked for, or as the pair decodes.
    """
    rate_per_s = demand.finite_rate_per_s
    under_way = demand.concurrency or split.decode_replicas * split.batch_limit
    prepared = split.prepare(min(MOST_USERS / under_way, 1.0))
    deployment = prepared.deployment
    share = deployment.replicas / split.decode_replicas
    under_way = max(round(share * under_way), 1)
    if rate_per_s is None:
        traffic = _steady_traffic(demand, under_way, deployment)
    else:
        traffic = _arriving_traffic(demand, rate_per_s * share, under_way)
    span_of = whole_span if rate_per_s is not None else lambda outcomes: _benchmark_span(outcomes, under_way)
    candidate = _simulate(prepared, split.batch_limit, traffic, objectives, span_of)
    candidate = msgspec.structs.replace(
        candidate,
        requests_per_s=candidate.requests_per_s / deployment.replicas,
        replicas=split.decode_replicas,
        prefill=split.prefill_choice(),
        draft=split.draft,
    )
    candidate = msgspec.structs.replace(candidate, usd_per_h=candidate.all_usd_per_h)
    if rate_per_s is not None:
        joules = candidate.joules_per_million_output_tokens if criteria.ranks_energy_at_rate else None
        candidate = _at_full_load(candidate, split)
        candidate = msgspec.structs.replace(candidate, rate_joules_per_million_output_tokens=joules)
    return within(candidate, criteria.devices)


def _at_full_load(candidate: Candidate, split: Split) -> Candidate:
    """Return a pair of pools with the throughput and the price of a token of full load instead of a rate."""
    tokens_per_s = split.requests_per_s * float(split.decoding.sample.output_tokens.mean())
    usd_per_h = candidate.usd_per_h
    return msgspec.structs.replace(
        candidate,
        requests_per_s=split.requests_per_s / candidate.replicas,
        low_requests_per_s=split.low_decoded_per_s,
        tokens_per_s_per_gpu=tokens_per_s / candidate.devices,
        usd_per_million_output_tokens=None if usd_per_h is None else usd_per_h / 3600 / tokens_per_s * 1e6,
    )


def _try_limit(
    prepared: PreparedDeployment,
    limit: int,
    demand: Demand,
    objectives: Sequence[Objective],
    criteria: Criteria,
) -> Candidate:
    """Simulate a replica at a batch limit."""
    steady = _steady_traffic(demand, limit, prepared.deployment)
    rate_per_s = demand.finite_rate_per_s
    spans = middle_span if rate_per_s is not None else _benchmark_span
    candidate = _simulate(prepared, limit, steady, objectives, lambda outcomes: spans(outcomes, limit))
    if rate_per_s is None:
        candidate = _with_users_or_devices(candidate, demand.concurrency, criteria.devices)
    else:
        answers = last_of_middle(len(steady), limit) + 1
        slow = middle_span(prepared.run(steady, prepared.slowest, answers), limit)
        low_per_s = min(candidate.requests_per_s, slow.requests_per_s)
        candidate = msgspec.structs.replace(candidate, low_requests_per_s=low_per_s)
        candidate = with_replicas(candidate, rate_per_s / (1 - criteria.headroom))
        # What is too large misses anyway.
        is_slow = bool(candidate.missed) and within(candidate, criteria.devices) is candidate
        if is_slow or criteria.ranks_energy_at_rate:
            at_rate = _simulate_at_rate(candidate, prepared, demand, rate_per_s / candidate.replicas)
            if is_slow:
                latencies = _latencies(request_latencies(at_rate.simulated.outcomes), objectives)
                candidate = msgspec.structs.replace(candidate, **latencies)
            if criteria.ranks_energy_at_rate:
                joules = at_rate.joules_per_million_output_tokens(prepared.deployment)
                candidate = msgspec.structs.replace(candidate, rate_joules_per_million_output_tokens=joules)
    return within(candidate, criteria.devices)


class _AtRate(NamedTuple):
    """A simulation of requests that arrive at a rate."""

    simulated: Simulated
    traffic: Traffic
    span: MeasuredSpan  # in which replicas are as full as in the long run

    def joules_per_million_output_tokens(self, deployment: Deployment) -> float | None:
        """Return the energy of all devices of a deployment, waiting included; None if their power is unknown."""
        figures = measure_figures(self.simulated, deployment, int(self.traffic.input_tokens.sum()), self.span)
        return figures["joules_per_million_output_tokens"]


def _simulate_at_rate(candidate: Candidate, prepared: PreparedDeployment, demand: Demand, rate_per_s: float) -> _AtRate:
    """Simulate a candidate at a rate per replica, at which fewer prompts disturb its answers, of smaller batches."""
    limit = candidate.batch_limit
    engine = msgspec.structs.replace(prepared.engine, max_sequences=min(limit, prepared.engine.max_sequences))
    limited = msgspec.structs.replace(prepared, engine=engine)
    traffic = _arriving_traffic(demand, rate_per_s, limit)
    simulated = limited.simulate(traffic)
    tokens_per_s = candidate.tokens_per_s_per_gpu * candidate.division.devices
    span = steady_span(simulated.outcomes, rate_per_s, (candidate.requests_per_s, tokens_per_s))
    return _AtRate(simulated, traffic, span)


def _steady_traffic(demand: Demand, users: int, deployment: Deployment) -> Traffic:
    """Return the requests of users who always have one under way, of whom the first round is left out.

    At a rate their first answers are as those that a server has in progress at any time, as in the saturation rate.
    Otherwise they begin as the users of a benchmark do.
    """
    is_sustained = demand.finite_rate_per_s is not None
    traffic = generate_traffic(
        demand.inputs,
        demand.outputs,
        count=max(ROUNDS * users, 8),
        concurrency=users,
        seed=demand.seed,
        drift_apart=deployment.engine.mixes_phases and not is_sustained,
    )
    output_tokens = traffic.output_tokens
    if is_sustained:
        output_tokens = np.concatenate([in_progress(output_tokens[:users], demand.seed), output_tokens[users:]])
    # Only the first round sends all prompts at once.
    left_out = np.arange(len(traffic)) < users
    return msgspec.structs.replace(traffic, output_tokens=output_tokens, left_out=left_out)


def _arriving_traffic(demand: Demand, rate_per_s: float, under_way: int) -> Traffic:
    """Return requests that arrive at a rate; those are left out that arrive while replicas are emptier than later."""
    traffic = generate_traffic(
        demand.inputs,
        demand.outputs,
        count=max(ROUNDS * under_way, FEWEST_REQUESTS),
        rate_per_s=rate_per_s,
        arrivals=demand.arrivals,
        seed=demand.seed,
    )
    return msgspec.structs.replace(traffic, left_out=np.arange(len(traffic)) < len(traffic) // ROUNDS)


def _simulate(
    prepared: PreparedDeployment,
    limit: int,
    traffic: Traffic,
    objectives: Sequence[Objective],
    span_of: Callable[[Sequence[Outcome]], MeasuredSpan],  # the part of the simulation that is measured
) -> Candidate:
    """Return a deployment at a batch limit as a candidate, with what its traffic experiences."""
    simulated = prepared.simulate(traffic)
    span = span_of(simulated.outcomes)
    figures = measure_figures(simulated, prepared.deployment, int(traffic.input_tokens.sum()), span)
    latencies = request_latencies(simulated.outcomes)
    return _candidate(prepared.deployment, prepared.room.memory_bytes, limit, figures, latencies, objectives)


def _benchmark_span(outcomes: Sequence[Outcome], users: int) -> MeasuredSpan:
    """Return the span of a closed loop with the rates of a benchmark, which has more rounds in its middle."""
    whole_run, middle = whole_span(outcomes), middle_span(outcomes, users)
    further = max(REQUESTS_PER_USER - ROUNDS, 0) * users
    further_s = further / middle.requests_per_s
    requests = whole_run.requests_per_s * whole_run.seconds + further
    tokens = sum(float(outcome.output_tokens.sum()) for outcome in outcomes)
    tokens += further_s * (middle.output_tokens_per_s or 0.0)
    seconds = whole_run.seconds + further_s
    return MeasuredSpan(whole_run.start_s, whole_run.end_s, requests / seconds, tokens / seconds)


def with_replicas(candidate: Candidate, rate_per_s: float, factor: float = 1.0) -> Candidate:
    """Return a candidate with as many replicas as a rate needs at the lower end of what each carries.

    Of a pair of pools so has each. A factor is that of what they carry over what the candidate says.
    """
    assert candidate.low_requests_per_s is not None
    low_per_s = candidate.low_requests_per_s * factor
    prefill = candidate.prefill
    if prefill is not None:
        low_prompts_per_s = prefill.low_requests_per_s * factor
        prompt_replicas = max(math.ceil(rate_per_s / low_prompts_per_s), 1)
        prefill = msgspec.structs.replace(prefill, low_requests_per_s=low_prompts_per_s, replicas=prompt_replicas)
    changed = msgspec.structs.replace(
        candidate,
        low_requests_per_s=low_per_s,
        replicas=max(math.ceil(rate_per_s / low_per_s), 1),
        prefill=prefill,
    )
    return msgspec.structs.replace(changed, usd_per_h=changed.all_usd_per_h)


def _with_users_or_devices(candidate: Candidate, users: int | None, devices: int | None) -> Candidate:
    """Return a candidate with the replicas that some users need, or that fill some devices."""
    replicas = 1
    if users is not None:
        replicas = math.ceil(users / candidate.batch_limit)
    elif devices is not None:
        replicas = max(devices // candidate.division.devices, 1)
    changed = msgspec.structs.replace(candidate, replicas=replicas)
    return msgspec.structs.replace(changed, usd_per_h=changed.all_usd_per_h)


def _candidate(
    deployment: Deployment,
    memory_bytes: float,
    concurrency: int,
    figures: dict[str, float | None],
    arrays: dict[str, Any],
    objectives: Sequence[Objective],
) -> Candidate:
    price, listing = deployment.price_usd_per_h, deployment.listing
    workload = deployment.on_device.workload
    return Candidate(
        gpu=deployment.on_device.machine.device.id,
        precision=workload.precision,
        weights=workload.weights or workload.precision,
        tensor=deployment.on_device.tensor,
        pipeline=deployment.on_device.pipeline.degree,
        batch_limit=concurrency,
        tokens_per_s_per_gpu=float(figures["output_tokens_per_s_per_gpu"] or 0.0),
        tokens_per_s_per_user=float(figures["output_tokens_per_s_per_user"] or 0.0),
        requests_per_s=float(figures["requests_per_s"] or 0.0),
        replicas=1,
        usd_per_million_output_tokens=figures["usd_per_million_output_tokens"],
        usd_per_h=None if price is None else price * deployment.on_device.devices,
        expert_parallel=deployment.on_device.division.expert_parallel,
        attention_data_parallel=deployment.on_device.division.attention_data_parallel,
        memory_bytes=memory_bytes,
        power_w=figures["watts_per_gpu"],
        joules_per_million_output_tokens=figures["joules_per_million_output_tokens"],
        price_usd_per_h=price,
        price_cloud=None if listing is None else listing.cloud or None,
        is_forecast=deployment.timer.is_forecast,
        **_latencies(arrays, objectives),
    )


def _latencies(arrays: dict[str, Any], objectives: Sequence[Objective]) -> dict[str, Any]:
    """Return what a candidate says of latencies, at the percentile of the objectives or in the mean."""
    percentiles = {OBJECTIVES[objective.name]: objective.percentile for objective in objectives}
    values = {name: summarize(array)[percentiles.get(name, "mean")] for name, array in arrays.items()}
    missed = find_missed(arrays, objectives)
    return {
        "ttft_s": float(values["ttft_s"] or 0.0),
        "tpot_s": values["tpot_s"],
        "latency_s": float(values["latency_s"] or 0.0),
        "meets_objectives": not missed,
        "missed": tuple(each.describe() for each in missed),
        "objective_ratio": largest_ratio(arrays, objectives),
    }

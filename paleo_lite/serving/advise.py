"""Advice: deployments over devices, degrees of parallelism, weights, batch limits and pools, and the cheapest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import DoesNotFit, PaleoError
from ..progress import report
from .candidates import Candidate, Criteria, DeploymentAdvice, DraftChoice, TooLarge, mark_front, rank, within
from .deployment import Deployment, PreparedDeployment
from .figures import measure_figures
from .outcomes import Outcome, request_latencies, summarize
from .requests import REQUESTS_PER_USER, Demand, Traffic, generate_traffic
from .saturation import in_progress
from .slo import OBJECTIVES, Missed, Objective, find_missed, largest_ratio
from .splits import PoolEstimate, Split, can_split, choose_splits, estimate_splits
from .steady import MeasuredSpan, last_of_middle, middle_span, whole_span
from .too_large import find_too_large
from .wide import SEQUENCES_OF_RANK, choose_wide, estimate_wide, limits_of_users, wide_limits

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Limits of the batch that are tried, where ranks do not have sequences of their own."""

ROUNDS = 3
"""Requests per user of a closed loop; the first of each is left out of the figures."""

MOST_USERS = 256
"""Users of the simulation of a pair of pools, which stand for those of more replicas in the same ratio."""

FEWEST_REQUESTS = 300
"""Requests of a simulation at a rate, so that its 90th percentile is known."""


def rank_deployments(
    deployments: dict[str, Callable[[], Deployment]],
    demand: Demand,
    *,
    variants: Callable[[Deployment], dict[str, Callable[[], Deployment]]] | None = None,
    fallbacks: dict[str, dict[str, Callable[[], Deployment]]] | None = None,
    wide: dict[str, Callable[[], Deployment]] | None = None,
    objectives: Sequence[Objective] = (),
    criteria: Criteria,
    drafts: tuple[DraftChoice, ...] = (),
) -> DeploymentAdvice:
    """Simulate a replica of each deployment at several batch limits, with a request always waiting for a free place.

    Deployments are functions that make one, by its description. `variants` gives further ones on the devices, and in
    the format, of one that fits; `fallbacks`, by the id of a device, those that are tried if none on this device fits.
    Those of `wide`, whose replicas are on several nodes, are estimated, and the best of them simulated.
    Of those that fit, pairs are estimated as the pools of a split deployment, and the best pairs simulated. At each
    batch limit the fastest of the `drafts` is simulated as well.
    """
    candidates: list[Candidate] = []
    ruled_out: list[tuple[_LimitedPool, TooLarge]] = []
    tried_gpus: set[str] = set()  # on which any deployment fits
    pools: list[PoolEstimate] = []
    refused: dict[str, str] = {}
    completed, total = 0, 0

    def try_all(attempts: dict[str, Callable[[], Deployment]]) -> list[Deployment]:
        nonlocal completed, total
        fitting = []
        total += len(attempts)
        for description, make in attempts.items():
            report(completed, total)
            completed += 1
            try:
                deployment = make()
                pool = _prepare_pool(deployment, demand, drafts)
                for trial in _limited_pools(pool):
                    too_large = find_too_large(*trial, demand, criteria)
                    if too_large is None:
                        candidates.append(trial.simulate(demand, objectives, criteria))
                    else:
                        ruled_out.append((trial, too_large))
                fitting.append(deployment)
                tried_gpus.add(deployment.on_device.machine.device.id)
                if can_split(deployment):
                    pools.append(pool)
            except PaleoError as error:
                refused[description] = str(error)
        return fitting

    for deployment in try_all(deployments):
        if variants is not None:
            try_all(variants(deployment))
    for gpu, attempts in (fallbacks or {}).items():
        if gpu not in tried_gpus:
            try_all(attempts)
    wide_pools = []
    for description, make in (wide or {}).items():
        try:
            wide_pools.append(_prepare_pool(make(), demand, drafts, is_wide=True))
        except PaleoError as error:
            refused[description] = str(error)
    for estimate in choose_wide(estimate_wide(wide_pools), candidates, demand, objectives, criteria):
        trial = _LimitedPool(estimate.pool, estimate.batch_limit, estimate.draft)
        candidates.append(trial.simulate(demand, objectives, criteria))
    pools += [pool for pool in wide_pools if can_split(pool.deployment)]
    estimated = estimate_splits(pools, demand, criteria)
    chosen = choose_splits(estimated, objectives, criteria.by)
    for split in chosen:
        report(completed, total + len(chosen))
        completed += 1
        candidates.append(_try_split(split, demand, objectives, criteria))
    if all(within(candidate, criteria.devices) is not candidate for candidate in candidates):
        # Shown is what comes nearest, of all.
        candidates += [trial.simulate(demand, objectives, criteria) for trial, _ in ruled_out]
        ruled_out.clear()
    rate_per_s = demand.finite_rate_per_s
    ranked = rank(mark_front(candidates), criteria.by, has_rate=rate_per_s is not None)
    advice = DeploymentAdvice(
        ranked,
        None,
        refused,
        criteria.by,
        rate_per_s,
        criteria.headroom,
        splits_estimated=len(estimated),
        devices=criteria.devices,
        too_large=tuple(too_large for _, too_large in ruled_out),
    )
    return choose(advice)


def choose(advice: DeploymentAdvice) -> DeploymentAdvice:
    """Return advice whose best candidate is the first one that meets the objectives, and is marked."""
    candidates = [msgspec.structs.replace(candidate, is_chosen=False) for candidate in advice.candidates]
    best = None
    for index, candidate in enumerate(candidates):
        if candidate.meets_objectives:
            best = candidates[index] = msgspec.structs.replace(candidate, is_chosen=True)
            break
    return msgspec.structs.replace(advice, candidates=candidates, best=best)


def widest(advice: DeploymentAdvice, devices: int | None = None) -> Candidate:
    """Return the candidate with the largest batch limit of the same deployment as the best one, within some devices."""
    best = advice.best
    assert best is not None
    same = [candidate for candidate in advice.candidates if candidate.deployment == best.deployment]
    same = [candidate for candidate in same if within(candidate, devices) is candidate]
    return max(same, key=lambda candidate: candidate.batch_limit)


def accept(advice: DeploymentAdvice, candidate: Candidate) -> DeploymentAdvice:
    """Return advice that recommends a candidate, which meets the objectives under the asked traffic."""
    if candidate == advice.best:
        return advice
    best = msgspec.structs.replace(candidate, is_chosen=True, meets_objectives=True, missed=())
    others = [msgspec.structs.replace(other, is_chosen=False) for other in advice.candidates if other != candidate]
    return msgspec.structs.replace(advice, candidates=[best, *others], best=best)


def without_best(advice: DeploymentAdvice) -> DeploymentAdvice:
    """Return advice that recommends no candidate."""
    candidates = [msgspec.structs.replace(candidate, is_chosen=False) for candidate in advice.candidates]
    return msgspec.structs.replace(advice, candidates=candidates, best=None)


def reject(advice: DeploymentAdvice, missed: Sequence[Missed]) -> DeploymentAdvice:
    """Return advice whose best candidate turned out to miss objectives under the asked traffic, ranked anew."""
    rejected = [
        msgspec.structs.replace(
            candidate,
            meets_objectives=False,
            missed=tuple(each.describe() for each in missed),
            objective_ratio=max(each.ratio for each in missed),
        )
        if candidate.is_chosen
        else candidate
        for candidate in advice.candidates
    ]
    ranked = rank(rejected, advice.by, has_rate=advice.rate_per_s is not None)
    return choose(msgspec.structs.replace(advice, candidates=ranked))


def with_saturation(
    advice: DeploymentAdvice, low_per_s: float, devices: int | None = None
) -> tuple[DeploymentAdvice, bool]:
    """Return advice whose best candidate has the replicas that the rate needs at this lower end of its saturation rate.

    The second value is whether it has enough of them already; otherwise the candidates are ranked anew.
    """
    assert advice.best is not None and advice.rate_per_s is not None
    best = advice.best
    # What is measured of all replicas is shared among them as they were estimated; of a pair the slower pool limits.
    factor = low_per_s / best.low_of_all_per_s
    measured = _with_replicas(best, advice.rate_per_s / (1 - advice.headroom), factor)
    if measured.devices <= best.devices:
        pool = best.prefill
        if pool is not None:
            pool = msgspec.structs.replace(pool, low_requests_per_s=low_per_s / pool.replicas)
        measured = msgspec.structs.replace(best, low_requests_per_s=low_per_s / best.replicas, prefill=pool)
    is_kept = measured.devices == best.devices
    measured = within(measured, devices)
    candidates = [measured if candidate.is_chosen else candidate for candidate in advice.candidates]
    if not is_kept:
        candidates = rank(candidates, advice.by, has_rate=True)
    return choose(msgspec.structs.replace(advice, candidates=candidates)), is_kept


def nearest(advice: DeploymentAdvice) -> Candidate:
    """Return the best candidate; if none meets the objectives, the one that comes nearest to them.

    Those that have no more devices than there are come before all others.
    """
    if advice.best is not None:
        return advice.best
    fitting = [
        candidate for candidate in advice.candidates if advice.devices is None or candidate.devices <= advice.devices
    ]
    return min(fitting or advice.candidates, key=lambda candidate: candidate.objective_ratio or math.inf)


def _batch_limits(demand: Demand, ranks: int = 1) -> tuple[int, ...]:
    """Return the batch limits that are tried: of a number of users no more than all of them, and more of more ranks.

    Ranks compute attention for sequences of their own.
    """
    largest = max(SEQUENCES_OF_RANK[-1] * ranks, CONCURRENCIES[-1])
    limits = [*CONCURRENCIES]
    while 2 * limits[-1] <= largest:
        limits.append(2 * limits[-1])
    return limits_of_users(limits, demand.concurrency)


def _prepare_pool(
    deployment: Deployment, demand: Demand, drafts: tuple[DraftChoice, ...], *, is_wide: bool = False
) -> PoolEstimate:
    """Return a deployment with its iteration times, for the requests of the largest batch limit."""
    ranks = deployment.on_device.attention_data
    limits = wide_limits(ranks, demand.concurrency) if is_wide else _batch_limits(demand, ranks)
    largest = min(limits[-1], deployment.replica_engine().max_sequences)
    sample = generate_traffic(
        demand.inputs, demand.outputs, count=ROUNDS * largest, concurrency=largest, seed=demand.seed
    )
    if deployment.on_device.pipeline.degree > 1 or not drafts:
        return PoolEstimate(deployment, deployment.prepare(sample), sample, batch_limits=limits)
    # The tables hold the tokens that the longest draft verifies.
    plain = deployment.prepare(sample, drafted=max(draft.tokens for draft in drafts))
    return PoolEstimate(deployment, plain, sample, drafts, limits)


class _LimitedPool(NamedTuple):
    """A deployment at a batch limit, perhaps with heads that draft tokens."""

    pool: PoolEstimate
    batch_limit: int
    draft: DraftChoice | None

    def simulate(self, demand: Demand, objectives: Sequence[Objective], criteria: Criteria) -> Candidate:
        """Simulate a replica."""
        candidate = _try_limit(self.pool.with_draft(self.draft), self.batch_limit, demand, objectives, criteria)
        return msgspec.structs.replace(candidate, draft=self.draft)


def _limited_pools(pool: PoolEstimate) -> list[_LimitedPool]:
    """Return what is tried of a deployment: the batch limits that its cache holds, without and with drafts."""
    prepared, sample = pool.prepared, pool.traffic
    mean_tokens = float((sample.input_tokens + sample.output_tokens).mean())
    fitting = prepared.room.tokens / mean_tokens
    trials = []
    for limit in pool.batch_limits:
        if limit > min(prepared.deployment.replica_engine().max_sequences, fitting):
            break
        trials.append(_LimitedPool(pool, limit, None))
        draft = pool.best_draft(limit) if pool.drafts else None
        if draft is not None:
            trials.append(_LimitedPool(pool, limit, draft))
    if not trials:
        raise DoesNotFit("the cache does not hold one request")
    return trials


def _try_split(split: Split, demand: Demand, objectives: Sequence[Objective], criteria: Criteria) -> Candidate:
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
        candidate = _at_full_load(candidate, split)
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
        candidate = _with_replicas(candidate, rate_per_s / (1 - criteria.headroom))
        if candidate.missed:
            candidate = _at_rate(candidate, prepared, demand, rate_per_s / candidate.replicas, objectives)
    return within(candidate, criteria.devices)


def _at_rate(
    candidate: Candidate,
    prepared: PreparedDeployment,
    demand: Demand,
    rate_per_s: float,
    objectives: Sequence[Objective],
) -> Candidate:
    """Return a candidate with the latencies of a rate per replica, at which fewer prompts disturb its answers."""
    limit = candidate.batch_limit
    engine = msgspec.structs.replace(prepared.engine, max_sequences=min(limit, prepared.engine.max_sequences))
    limited = msgspec.structs.replace(prepared, engine=engine)
    outcomes = limited.run(_arriving_traffic(demand, rate_per_s, limit))
    return msgspec.structs.replace(candidate, **_latencies(request_latencies(outcomes), objectives))


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
        output_tokens = np.concatenate([in_progress(output_tokens[:users]), output_tokens[users:]])
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


def _with_replicas(candidate: Candidate, rate_per_s: float, factor: float = 1.0) -> Candidate:
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
        expert_parallel=deployment.on_device.experts,
        attention_data_parallel=deployment.on_device.attention_data,
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

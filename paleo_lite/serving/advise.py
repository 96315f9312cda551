"""Advice: deployments over devices, degrees of parallelism, weights and batch limits, and the cheapest of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from ..errors import DoesNotFit, PaleoError
from ..progress import report
from .answers import measure_figures
from .candidates import Candidate, Criteria, DeploymentAdvice, mark_front, rank, within
from .deployment import Deployment, PreparedDeployment
from .outcomes import request_latencies, summarize
from .requests import Demand, Traffic, generate_traffic
from .slo import OBJECTIVES, Missed, Objective, find_missed, largest_ratio

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Limits of the batch that are tried."""

ROUNDS = 3
"""Requests per user of a closed loop; the first of each is left out of the figures."""


def rank_deployments(
    deployments: dict[str, Callable[[], Deployment]],
    demand: Demand,
    *,
    variants: Callable[[Deployment], dict[str, Callable[[], Deployment]]] | None = None,
    fallbacks: dict[str, dict[str, Callable[[], Deployment]]] | None = None,
    objectives: Sequence[Objective] = (),
    criteria: Criteria,
) -> DeploymentAdvice:
    """Simulate a replica of each deployment at several batch limits, with a request always waiting for a free place.

    Deployments are functions that make one, by its description. `variants` gives further ones on the devices, and in
    the format, of one that fits; `fallbacks`, by the id of a device, those that are tried if none on this device fits.
    """
    candidates: list[Candidate] = []
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
                candidates.extend(_try_batch_limits(deployment, demand, objectives, criteria))
                fitting.append(deployment)
            except PaleoError as error:
                refused[description] = str(error)
        return fitting

    for deployment in try_all(deployments):
        if variants is not None:
            try_all(variants(deployment))
    for gpu, attempts in (fallbacks or {}).items():
        if all(candidate.gpu != gpu for candidate in candidates):
            try_all(attempts)
    rate_per_s = _finite_rate(demand)
    ranked = rank(mark_front(candidates), criteria.by, has_rate=rate_per_s is not None)
    return choose(DeploymentAdvice(ranked, None, refused, criteria.by, rate_per_s, criteria.headroom))


def choose(advice: DeploymentAdvice) -> DeploymentAdvice:
    """Return advice whose best candidate is the first one that meets the objectives, and is marked."""
    candidates = [msgspec.structs.replace(one, is_chosen=False) for one in advice.candidates]
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
    deployment = (best.gpu, best.division, best.weights)
    same = [one for one in advice.candidates if (one.gpu, one.division, one.weights) == deployment]
    same = [one for one in same if within(one, devices) is one]
    return max(same, key=lambda one: one.batch_limit)


def accept(advice: DeploymentAdvice, candidate: Candidate) -> DeploymentAdvice:
    """Return advice that recommends a candidate, which meets the objectives under the asked traffic."""
    if candidate == advice.best:
        return advice
    best = msgspec.structs.replace(candidate, is_chosen=True, meets_objectives=True, missed=())
    others = [msgspec.structs.replace(one, is_chosen=False) for one in advice.candidates if one != candidate]
    return msgspec.structs.replace(advice, candidates=[best, *others], best=best)


def without_best(advice: DeploymentAdvice) -> DeploymentAdvice:
    """Return advice that recommends no candidate."""
    candidates = [msgspec.structs.replace(one, is_chosen=False) for one in advice.candidates]
    return msgspec.structs.replace(advice, candidates=candidates, best=None)


def reject(advice: DeploymentAdvice, missed: Sequence[Missed]) -> DeploymentAdvice:
    """Return advice whose best candidate turned out to miss objectives under the asked traffic, ranked anew."""
    rejected = [
        msgspec.structs.replace(
            one,
            meets_objectives=False,
            missed=tuple(each.describe() for each in missed),
            objective_ratio=max(each.ratio for each in missed),
        )
        if one.is_chosen
        else one
        for one in advice.candidates
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
    measured = _with_replicas(best, low_per_s / best.replicas, advice.rate_per_s / (1 - advice.headroom))
    if measured.replicas <= best.replicas:
        measured = msgspec.structs.replace(best, low_requests_per_s=low_per_s / best.replicas)
    is_kept = measured.replicas == best.replicas
    measured = within(measured, devices)
    candidates = [measured if one.is_chosen else one for one in advice.candidates]
    if not is_kept:
        candidates = rank(candidates, advice.by, has_rate=True)
    return choose(msgspec.structs.replace(advice, candidates=candidates)), is_kept


def nearest(advice: DeploymentAdvice) -> Candidate:
    """Return the best candidate; if none meets the objectives, the one that comes nearest to them."""
    if advice.best is not None:
        return advice.best
    return min(advice.candidates, key=lambda one: one.objective_ratio or math.inf)


def _finite_rate(demand: Demand) -> float | None:
    """Return the rate that replicas have to carry; None if there is none, or all requests arrive at once."""
    rate_per_s = demand.rate_per_s
    return rate_per_s if rate_per_s is not None and math.isfinite(rate_per_s) else None


def _try_batch_limits(
    deployment: Deployment, demand: Demand, objectives: Sequence[Objective], criteria: Criteria
) -> list[Candidate]:
    largest = min(CONCURRENCIES[-1], deployment.replica_engine().max_sequences)
    sample = generate_traffic(
        demand.inputs, demand.outputs, count=ROUNDS * largest, concurrency=largest, seed=demand.seed
    )
    prepared = deployment.prepare(sample)
    mean_tokens = float((sample.input_tokens + sample.output_tokens).mean())
    fitting = prepared.room.tokens / mean_tokens
    memory_bytes = prepared.room.memory_bytes
    candidates = []
    for concurrency in CONCURRENCIES:
        if concurrency > min(largest, fitting):
            break
        traffic = generate_traffic(
            demand.inputs,
            demand.outputs,
            count=max(ROUNDS * concurrency, 8),
            concurrency=concurrency,
            seed=demand.seed,
            drift_apart=deployment.engine.mixes_phases,
        )
        # Only the first round sends all prompts at once.
        steady = msgspec.structs.replace(traffic, left_out=np.arange(len(traffic)) < concurrency)
        outcomes = prepared.run(steady)
        figures = measure_figures(outcomes, deployment, int(traffic.input_tokens.sum()))
        candidate = _candidate(deployment, memory_bytes, concurrency, figures, request_latencies(outcomes), objectives)
        rate_per_s = _finite_rate(demand)
        if rate_per_s is not None:
            low_per_s = min(candidate.requests_per_s, _low_rate(prepared, steady))
            candidate = _with_replicas(candidate, low_per_s, rate_per_s / (1 - criteria.headroom))
        candidates.append(within(candidate, criteria.devices))
    if not candidates:
        raise DoesNotFit("the cache does not hold one request")
    return candidates


def _low_rate(prepared: PreparedDeployment, traffic: Traffic) -> float:
    """Return the requests per second of a replica with the iteration times at the upper end of their interval."""
    outcomes = prepared.run(traffic, prepared.slowest)
    start_s = min(float(outcome.arrival_s.min()) for outcome in outcomes)
    duration_s = max(float(outcome.finish_s.max()) for outcome in outcomes) - start_s
    return len(traffic) / duration_s


def _with_replicas(candidate: Candidate, low_per_s: float, rate_per_s: float) -> Candidate:
    """Return a candidate with enough replicas for a rate, at the lower end of the saturation rate of each."""
    replicas = max(math.ceil(rate_per_s / low_per_s), 1)
    price = candidate.price_usd_per_h
    return msgspec.structs.replace(
        candidate,
        low_requests_per_s=low_per_s,
        replicas=replicas,
        usd_per_h=None if price is None else price * candidate.tensor * candidate.pipeline * replicas,
    )


def _candidate(
    deployment: Deployment,
    memory_bytes: float,
    concurrency: int,
    figures: dict[str, float | None],
    arrays: dict[str, Any],
    objectives: Sequence[Objective],
) -> Candidate:
    percentiles = {OBJECTIVES[objective.name]: objective.percentile for objective in objectives}
    values = {name: summarize(array)[percentiles.get(name, "mean")] for name, array in arrays.items()}
    missed = find_missed(arrays, objectives)
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
        ttft_s=float(values["ttft_s"] or 0.0),
        tpot_s=values["tpot_s"],
        latency_s=float(values["latency_s"] or 0.0),
        replicas=1,
        usd_per_million_output_tokens=figures["usd_per_million_output_tokens"],
        usd_per_h=None if price is None else price * deployment.on_device.devices,
        meets_objectives=not missed,
        expert_parallel=deployment.on_device.experts,
        attention_data_parallel=deployment.on_device.attention_data,
        memory_bytes=memory_bytes,
        power_w=figures["watts_per_gpu"],
        joules_per_million_output_tokens=figures["joules_per_million_output_tokens"],
        missed=tuple(each.describe() for each in missed),
        objective_ratio=largest_ratio(arrays, objectives),
        price_usd_per_h=price,
        price_cloud=None if listing is None else listing.cloud or None,
        is_forecast=deployment.timer.is_forecast,
    )

"""Advice: deployments over devices, degrees of parallelism, weights and batch limits, and the cheapest of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..errors import DoesNotFit, PaleoError
from .answers import measure_figures, request_latencies, summarize
from .candidates import RANKINGS, Advice, Candidate, mark_front
from .demand import Demand
from .deployment import Deployment
from .requests import generate_traffic
from .slo import OBJECTIVES, Objective

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
    by: str = "cost",
) -> Advice:
    """Simulate a replica of each deployment at several batch limits, with a request always waiting for a free place.

    Parameters
    ----------
    deployments : dict of str to callable
        Functions that make a deployment of one replica, by its description.
    demand : Demand
        Lengths of the requests and their seed, and the requests per second of all replicas together.
    variants : callable, optional
        Function from a deployment that fits to further ones on the same devices, in the same format of weights.
    fallbacks : dict of str to dict, optional
        By the id of a device, further deployments that are tried if none on this device fits.
    objectives : sequence of Objective
        Service-level objectives.
    by : str
        Key of `paleo_lite.serving.candidates.RANKINGS`.
    """
    candidates: list[Candidate] = []
    refused: dict[str, str] = {}

    def try_all(attempts: dict[str, Callable[[], Deployment]]) -> list[Deployment]:
        fitting = []
        for description, make in attempts.items():
            try:
                deployment = make()
                candidates.extend(_try_batch_limits(deployment, demand, objectives))
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
    candidates = mark_front(candidates)
    candidates.sort(key=lambda one: _sort_key(one, by))
    feasible = [candidate for candidate in candidates if candidate.meets_objectives]
    best = min(feasible, key=lambda one: _fleet_key(one, by), default=None)
    return Advice(candidates, best, refused, by)


def _sort_key(candidate: Candidate, by: str) -> tuple[float, float]:
    per_token = getattr(candidate, RANKINGS[by].per_token)
    return (math.inf if per_token is None else per_token, -candidate.tokens_per_s_per_gpu)


def _fleet_key(candidate: Candidate, by: str) -> tuple[float, ...]:
    """Return what the replicas for the requested rate are compared by: their cost, or the energy of a token."""
    key = _sort_key(candidate, by)
    return (_fleet_cost(candidate), *key) if by == "cost" else key


def _fleet_cost(candidate: Candidate) -> float:
    """Return the price of all replicas per hour, or their number of devices without a price."""
    if candidate.usd_per_h is not None:
        return candidate.usd_per_h
    return candidate.replicas * candidate.tensor * candidate.pipeline


def _try_batch_limits(deployment: Deployment, demand: Demand, objectives: Sequence[Objective]) -> list[Candidate]:
    largest = min(CONCURRENCIES[-1], deployment.engine.max_sequences)
    sample = generate_traffic(
        demand.inputs, demand.outputs, count=ROUNDS * largest, concurrency=largest, seed=demand.seed
    )
    prepared = deployment.prepare(sample)
    mean_tokens = float((sample.input_tokens + sample.output_tokens).mean())
    fitting = prepared.room.tokens / mean_tokens
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
        outcomes = prepared.run(msgspec.structs.replace(traffic, warm_up=concurrency))
        steady = request_latencies(outcomes)
        figures = measure_figures(outcomes, deployment, int(traffic.input_tokens.sum()))
        candidates.append(_candidate(deployment, concurrency, figures, steady, objectives, demand.rate_per_s))
    if not candidates:
        raise DoesNotFit("the cache does not hold one request")
    return candidates


def _candidate(
    deployment: Deployment,
    concurrency: int,
    figures: dict[str, float | None],
    arrays: dict[str, Any],
    objectives: Sequence[Objective],
    rate_per_s: float | None,
) -> Candidate:
    percentiles = {OBJECTIVES[objective.name]: objective.percentile for objective in objectives}
    values = {name: summarize(array)[percentiles.get(name, "mean")] for name, array in arrays.items()}
    is_met = True
    for objective in objectives:
        value = summarize(arrays[OBJECTIVES[objective.name]])[objective.percentile]
        is_met = is_met and (value is None or value <= objective.limit_s)
    requests_per_s = float(figures["requests_per_s"] or 0.0)
    replicas = 1 if rate_per_s is None else max(math.ceil(rate_per_s / requests_per_s), 1)
    price = deployment.price_usd_per_h
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
        requests_per_s=requests_per_s,
        ttft_s=float(values["ttft_s"] or 0.0),
        tpot_s=values["tpot_s"],
        latency_s=float(values["latency_s"] or 0.0),
        replicas=replicas,
        usd_per_million_output_tokens=figures["usd_per_million_output_tokens"],
        usd_per_h=None if price is None else price * deployment.on_device.devices * replicas,
        meets_objectives=is_met,
        expert_parallel=deployment.on_device.experts,
        attention_data_parallel=deployment.on_device.attention_data,
        joules_per_million_output_tokens=figures["joules_per_million_output_tokens"],
    )

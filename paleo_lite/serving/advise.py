"""Advice: deployments over devices, degrees of parallelism, weights, batch limits and pools, and the cheapest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from ..errors import DoesNotFit, PaleoError
from ..progress import report
from .candidates import (
    Candidate,
    Criteria,
    DeploymentAdvice,
    DraftChoice,
    mark_front,
    rank,
    ranked_value,
    within,
)
from .deployment import Deployment
from .prepared import prepare
from .refine import Tried, refine
from .requests import Demand, generate_traffic
from .screening import Screening, left_out_of
from .simulator import check_requests
from .slo import Missed, Objective
from .splits import PoolEstimate, Split, can_split, choose_splits, estimate_splits
from .trials import ROUNDS, LimitedPool, try_split, with_replicas
from .wide import SEQUENCES_OF_RANK, choose_wide, estimate_wide, limits_of_users, wide_limits

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Limits of the batch that are tried, where ranks do not have sequences of their own."""


def rank_deployments(
    deployments: dict[str, Callable[[], Deployment]],
    demand: Demand,
    *,
    variants: Callable[[Deployment], dict[str, Callable[[], Deployment]]] | None,
    fallbacks: dict[str, dict[str, Callable[[], Deployment]]] | None,
    wide: dict[str, Callable[[], Deployment]] | None,
    objectives: Sequence[Objective],
    criteria: Criteria,
    drafts: tuple[DraftChoice, ...],
) -> DeploymentAdvice:
    """Simulate a replica of each deployment at several batch limits, with a request always waiting for a free place.

    Deployments are functions that make one, by its description. `variants` gives further ones on the devices, and in
    the format, of one that fits; `fallbacks`, by the id of a device, those that are tried if none on this device fits.
    Those of `wide`, whose replicas are on several nodes, are estimated, and the best of them simulated.
    Of those that fit, pairs are estimated as the pools of a split deployment, and the best pairs simulated. At each
    batch limit the fastest of the `drafts` is simulated as well. Of the best, limits in between follow. What is of no
    interest by bounds is not simulated (`paleo_lite.serving.screening`).
    """
    preparing = _Preparing(demand, drafts)
    for deployment in preparing.prepare_all(deployments):
        if variants is not None:
            preparing.prepare_all(variants(deployment))
    for gpu, attempts in (fallbacks or {}).items():
        if gpu not in preparing.fitting_gpus:
            preparing.prepare_all(attempts)
    refused = preparing.refused
    wide_pools = _prepare_wide(wide or {}, demand, drafts, refused)
    splittable = [pool for pool in (*preparing.pools, *wide_pools) if can_split(pool.deployment)]
    estimated = estimate_splits(splittable, demand, criteria)
    pairs: list[tuple[Split, Candidate]] = []
    chosen = choose_splits(estimated, objectives, criteria.by)
    for number, split in enumerate(chosen):
        report(preparing.attempts + number, preparing.attempts + len(chosen))
        pairs.append((split, try_split(split, demand, objectives, criteria)))
    screening = Screening(preparing.trials, [pair for _, pair in pairs], demand, objectives, criteria)
    screening.run()
    alone = [candidate for _, candidate in screening.simulated]
    for estimate in choose_wide(estimate_wide(wide_pools), alone, demand, objectives, criteria):
        screening.simulate(LimitedPool(estimate.pool, estimate.batch_limit, estimate.draft))
    if not any(candidate.meets_objectives for candidate in screening.candidates):
        screening.simulate_all()  # shown is what comes nearest
    candidates = screening.candidates
    all_tried = Tried(screening.simulated, screening.too_large, screening.left_out, pairs)
    candidates += _at_further_limits(candidates, all_tried, screening, demand, objectives, criteria)
    rate_per_s = demand.finite_rate_per_s
    advice = DeploymentAdvice(
        rank(mark_front(candidates, criteria.devices), criteria.by, has_rate=rate_per_s is not None),
        None,
        refused | screening.refused,
        criteria.by,
        rate_per_s,
        criteria.headroom,
        splits_estimated=len(estimated),
        devices=criteria.devices,
        too_large=tuple(too_large for _, too_large in screening.too_large),
        left_out=tuple(left_out_of(trial, bound) for trial, bound in screening.left_out),
    )
    return choose(advice)


class _Preparing:
    """Prepares deployments for their trials, and keeps those that fit."""

    def __init__(self, demand: Demand, drafts: tuple[DraftChoice, ...]) -> None:
        self.demand, self.drafts = demand, drafts
        self.pools: list[PoolEstimate] = []  # of those that fit
        self.trials: list[LimitedPool] = []  # of these pools, at every batch limit
        self.fitting_gpus: set[str] = set()  # on which any fits
        self.refused: dict[str, str] = {}  # why the others do not, by their descriptions
        self.attempts = 0

    def prepare_all(self, attempts: dict[str, Callable[[], Deployment]]) -> list[Deployment]:
        """Prepare deployments, and return those that fit."""
        fitting = []
        total = self.attempts + len(attempts)
        for description, make in attempts.items():
            report(self.attempts, total)
            self.attempts += 1
            try:
                deployment = make()
                pool = _prepare_pool(deployment, self.demand, self.drafts)
                self.trials += _limited_pools(pool)
            except PaleoError as error:
                self.refused[description] = str(error)
                continue
            self.pools.append(pool)
            fitting.append(deployment)
            self.fitting_gpus.add(deployment.on_device.machine.device.id)
        return fitting


def _prepare_wide(
    wide: dict[str, Callable[[], Deployment]],
    demand: Demand,
    drafts: tuple[DraftChoice, ...],
    refused: dict[str, str],  # to which those are added that do not fit
) -> list[PoolEstimate]:
    """Return the deployments whose replicas are on several nodes, with their iteration times."""
    pools = []
    for description, make in wide.items():
        try:
            pools.append(_prepare_pool(make(), demand, drafts, is_wide=True))
        except PaleoError as error:
            refused[description] = str(error)
    return pools


def _at_further_limits(
    candidates: Sequence[Candidate],
    tried: Tried,
    screening: Screening,
    demand: Demand,
    objectives: Sequence[Objective],
    criteria: Criteria,
) -> list[Candidate]:
    """Simulate the best deployments at batch limits between those that were tried."""
    value_of = ranked_value(candidates, criteria.by, has_rate=demand.finite_rate_per_s is not None)
    inside = [candidate for candidate in candidates if candidate.meets_objectives]
    best_value = min(map(value_of, inside), default=math.inf)
    return refine(tried, demand, objectives, criteria, best_value, value_of, screening.least_value)


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
    measured = with_replicas(best, advice.rate_per_s / (1 - advice.headroom), factor)
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


def with_energy(advice: DeploymentAdvice, joules_per_million: float | None) -> tuple[DeploymentAdvice, bool]:
    """Return advice whose best candidate takes the energy of its answer per million output tokens, ranked anew.

    What the answer says over the short simulation holds for the same replicas at other batch limits, too. The second
    value is whether the candidate stays the best.
    """
    best = advice.best
    estimate = None if best is None else best.rate_joules_per_million_output_tokens
    if best is None or joules_per_million is None or estimate is None:
        return advice, True
    factor = joules_per_million / estimate
    measured = []
    for candidate in advice.candidates:
        joules = candidate.rate_joules_per_million_output_tokens
        if joules is not None and (candidate.deployment, candidate.replicas) == (best.deployment, best.replicas):
            joules *= factor
        measured.append(msgspec.structs.replace(candidate, rate_joules_per_million_output_tokens=joules))
    answered = next(candidate for candidate in measured if candidate.is_chosen)
    ranked = rank(measured, advice.by, has_rate=True)
    is_kept = ranked[0].deployment == answered.deployment
    if is_kept:  # before its other batch limits, which take nearly the same
        ranked = [answered, *(candidate for candidate in ranked if candidate is not answered)]
    return choose(msgspec.structs.replace(advice, candidates=ranked)), is_kept


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
    ranks = deployment.on_device.division.attention_data_parallel
    limits = wide_limits(ranks, demand.concurrency) if is_wide else _batch_limits(demand, ranks)
    largest = min(limits[-1], deployment.replica_engine().max_sequences)
    sample = generate_traffic(
        demand.inputs, demand.outputs, count=ROUNDS * largest, concurrency=largest, seed=demand.seed
    )
    if deployment.on_device.pipeline.degree > 1 or not drafts:
        return PoolEstimate(deployment, prepare(deployment, sample), sample, batch_limits=limits)
    # The tables hold the tokens that the longest draft verifies.
    plain = prepare(deployment, sample, drafted=max(draft.tokens for draft in drafts))
    return PoolEstimate(deployment, plain, sample, drafts, limits)


def _limited_pools(pool: PoolEstimate) -> list[LimitedPool]:
    """Return what is tried of a deployment: the batch limits that its cache holds, without and with drafts."""
    prepared, sample = pool.prepared, pool.traffic
    check_requests(sample, prepared.room, prepared.deployment.options.prefix_hit_rate)
    mean_tokens = float((sample.input_tokens + sample.output_tokens).mean())
    fitting = prepared.room.tokens / mean_tokens
    trials = []
    for limit in pool.batch_limits:
        if limit > min(prepared.deployment.replica_engine().max_sequences, fitting):
            break
        trials.append(LimitedPool(pool, limit, None))
        draft = pool.best_draft(limit) if pool.drafts else None
        if draft is not None:
            trials.append(LimitedPool(pool, limit, draft))
    if not trials:
        raise DoesNotFit("the cache does not hold one request")
    return trials

"""Batch limits between those that advice tries, of the deployments that may become the best by them.

Limits are tried in powers of two: the largest one that meets the objectives may be half of what would. What is ranked
improves with the limit (more sequences share the weights that an iteration reads, and the replicas that a rate needs
become fewer), so that the largest limit within the objectives is looked for by bisection, as a person would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from .candidates import RANKINGS, Candidate, Criteria, TooLarge, within
from .requests import Demand
from .screening import Bound
from .slo import Objective
from .splits import PoolEstimate, Split, estimate_limits
from .trials import LimitedPool, try_split

REFINED = 4
"""Deployments of which further limits are simulated at most."""

STEPS = 8
"""Steps from a limit to its double in which limits are tried: 36, 40, 44, ... between 32 and 64."""


_AtLimit = Candidate | TooLarge | Bound
"""A deployment at a batch limit, simulated or not."""


class Tried(NamedTuple):
    """What advice has tried."""

    pools: Sequence[tuple[LimitedPool, Candidate]]
    ruled_out: Sequence[tuple[LimitedPool, TooLarge]]  # that were not simulated, as they need too many devices
    left_out: Sequence[tuple[LimitedPool, Bound]]  # that were not simulated, as they are not shown
    pairs: Sequence[tuple[Split, Candidate]]


class _Series(NamedTuple):
    """A deployment, or a pair of pools, at the limits that were tried."""

    pool: PoolEstimate  # that decodes
    tried: list[tuple[int, _AtLimit]]
    simulate: Callable[[int], Candidate | None]  # at a limit; None where it needs too many devices
    is_whole: bool  # whether all limits were tried that the cache holds; of pairs they were not
    least_value: Callable[[int], float]  # what is ranked at a limit, at the least


class _Bracket(NamedTuple):
    """The limits among which the largest within the objectives is."""

    limits: list[int]  # that were not tried, in order
    simulate: Callable[[int], Candidate | None]
    ends_late: bool  # whether all of them may be within the objectives, as the limit above them does not fit
    value: float  # what is ranked, as is expected of the best of them


def refine(
    tried: Tried,
    demand: Demand,
    objectives: Sequence[Objective],
    criteria: Criteria,
    best_value: float,  # of all candidates that meet the objectives
    value_of: Callable[[Candidate], float],  # what is ranked, smallest for the best
    least_value: Callable[[LimitedPool], float],  # the same of what was not simulated, at the least
) -> list[Candidate]:
    """Simulate further batch limits of the deployments that may become the best by them."""
    brackets = []
    for series in _group(tried, demand, objectives, criteria, least_value):
        bracket = _find_bracket(series, demand, criteria, value_of)
        if bracket is not None:
            brackets.append(bracket)
    found: list[Candidate] = []
    for bracket in sorted(brackets, key=lambda each: each.value)[:REFINED]:
        if bracket.value >= best_value:
            break
        further = _bisect(bracket, criteria)
        found += further
        best_value = min([best_value, *(value_of(each) for each in further if each.meets_objectives)])
    return found


def _group(
    tried: Tried,
    demand: Demand,
    objectives: Sequence[Objective],
    criteria: Criteria,
    least_value: Callable[[LimitedPool], float],
) -> Iterator[_Series]:
    """Yield what was tried of each deployment and of each pair of pools."""
    of_pools: dict[Hashable, _Series] = {}
    trials: list[tuple[LimitedPool, _AtLimit]] = [*tried.pools, *tried.ruled_out, *tried.left_out]
    for trial, candidate in trials:
        simulate = partial(_simulate_pool, trial, demand, objectives, criteria)
        at_least = partial(_least_value, trial, least_value)
        new = _Series(trial.pool, [], simulate, is_whole=True, least_value=at_least)
        series = of_pools.setdefault((trial.pool, trial.draft), new)
        series.tried.append((trial.batch_limit, candidate))
    yield from of_pools.values()
    of_pairs: dict[Hashable, _Series] = {}
    for split, candidate in tried.pairs:
        simulate_pair = partial(_simulate_pair, split, demand, objectives, criteria)
        series = _Series(split.decoding, [], simulate_pair, is_whole=False, least_value=lambda _: 0.0)
        of_pairs.setdefault((split.prompts, split.decoding), series).tried.append((split.batch_limit, candidate))
    yield from of_pairs.values()


def _simulate_pool(
    trial: LimitedPool, demand: Demand, objectives: Sequence[Objective], criteria: Criteria, batch_limit: int
) -> Candidate:
    return trial._replace(batch_limit=batch_limit).simulate(demand, objectives, criteria)


def _least_value(trial: LimitedPool, least_value: Callable[[LimitedPool], float], batch_limit: int) -> float:
    return least_value(trial._replace(batch_limit=batch_limit))


def _simulate_pair(
    split: Split, demand: Demand, objectives: Sequence[Objective], criteria: Criteria, batch_limit: int
) -> Candidate | None:
    matched = estimate_limits(split, [batch_limit], demand, criteria)
    return try_split(matched[0], demand, objectives, criteria) if matched else None


def _is_too_slow(candidate: _AtLimit | None, criteria: Criteria) -> bool:
    """Return whether a candidate misses an objective, though not the number of devices.

    What needs too many devices has to be tried at larger limits, however slow it is.
    """
    if isinstance(candidate, Bound):
        return candidate.is_too_slow
    if not isinstance(candidate, Candidate):
        return False
    return bool(candidate.missed) and within(candidate, criteria.devices) is candidate


def _find_bracket(
    series: _Series, demand: Demand, criteria: Criteria, value_of: Callable[[Candidate], float]
) -> _Bracket | None:
    """Return what is looked for between the limits of a deployment; None if nothing is."""
    tried = sorted(series.tried, key=lambda each: each[0])
    inside = [each for each in tried if not _is_too_slow(each[1], criteria)]
    outside = [each for each in tried if _is_too_slow(each[1], criteria)]
    most = series.pool.most_sequences
    if not inside and (series.is_whole or outside[0][0] == 1):
        return None
    low, low_candidate = inside[-1] if inside else (outside[0][0] // 2, None)
    high, high_candidate = outside[0] if outside else (min(2 * low, most + 1), None)
    limits = _limits_between(low, high, series.pool.deployment.limited_ranks, demand.concurrency)
    if not outside and demand.concurrency is None and low < most < 2 * low - 1:
        limits = sorted({*limits, most})  # all that the cache holds
    if not limits:
        return None
    if isinstance(high_candidate, (Candidate, Bound)):
        least_devices: float = high_candidate.devices
        value = _between(low_candidate, high_candidate, value_of)
    else:
        assert low_candidate is not None
        share = low / limits[-1]  # that is left, at the least, of what needs fewer devices or costs less
        least_devices = share * low_candidate.devices
        value = _beyond(low_candidate, share, demand, criteria, value_of)
    if criteria.devices is not None and least_devices > criteria.devices:
        return None
    # The best of them costs no less than the largest does at the least.
    value = max(value, series.least_value(limits[-1]))
    return _Bracket(limits, series.simulate, not outside, value)


def _limits_between(low: int, high: int, ranks: int, users: int | None) -> list[int]:
    """Return the limits between two: in steps, which ranks share, or those that divide some users among replicas."""
    if users is not None:
        numbers = range(max(math.ceil(users / high), 1), math.ceil(users / low) + 1)
        limits = {math.ceil(users / replicas) for replicas in numbers}
        return sorted(limit for limit in limits if low < limit < high)
    step = max(low // STEPS, ranks)
    return list(range(low + step, high, step))


def _between(low: _AtLimit | None, high: Candidate | Bound, value_of: Callable[[Candidate], float]) -> float:
    """Return what is ranked at the limit that just meets the objectives, by those of a smaller and a larger one."""
    if isinstance(high, Bound):
        return high.value
    best = value_of(high)
    if not isinstance(low, Candidate) or not low.objective_ratio or not high.objective_ratio:
        return best
    if not math.isfinite(value_of(low)):
        return best
    share = math.log(1 / low.objective_ratio) / math.log(high.objective_ratio / low.objective_ratio)
    return float(value_of(low) ** (1 - share) * best**share)


def _beyond(
    low: _AtLimit, share: float, demand: Demand, criteria: Criteria, value_of: Callable[[Candidate], float]
) -> float:
    """Return what is ranked at a larger limit than any that was tried, at the least: a share, or whole replicas."""
    if isinstance(low, Bound):
        return share * low.value
    if isinstance(low, TooLarge):
        price = low.price_usd_per_h if RANKINGS[criteria.by].at_rate == "usd_per_h" else None
        return 0.0 if price is None else share * low.devices * price
    if demand.finite_rate_per_s is not None and RANKINGS[criteria.by].at_rate == "usd_per_h":
        share = math.ceil(low.replicas * share) / low.replicas  # whole replicas carry the rate
    return value_of(low) * share


def _bisect(bracket: _Bracket, criteria: Criteria) -> list[Candidate]:
    """Simulate limits until the largest within the objectives is known."""
    found = []
    low, high = -1, len(bracket.limits)
    place = high - 1 if bracket.ends_late else high // 2
    while low < place < high:
        candidate = bracket.simulate(bracket.limits[place])
        if candidate is not None:
            found.append(candidate)
        if _is_too_slow(candidate, criteria):
            high = place
        else:
            low = place
        place = (low + high) // 2
    return found

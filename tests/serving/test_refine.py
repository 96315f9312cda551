"""Batch limits between powers of two: the largest within the objectives is found.

Tests: serving/refine.py.
"""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.advise import _prepare_pool
from paleo_lite.serving.candidates import Candidate, Criteria, TooLarge
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.refine import Tried, _beyond, _bisect, _find_bracket, _limits_between, _Series, refine
from paleo_lite.serving.requests import Demand
from paleo_lite.serving.screening import Bound
from paleo_lite.serving.slo import Objective
from paleo_lite.serving.trials import LimitedPool

ANY_TPOT = (Objective("tpot", "p90", 1e3),)
DEMAND = Demand(Lengths(1000), Lengths(100))
PLAIN = Candidate(
    gpu="t4", precision="fp16", weights="fp16", tensor=1, pipeline=1, batch_limit=8, tokens_per_s_per_gpu=100.0,
    tokens_per_s_per_user=10.0, requests_per_s=1.0, ttft_s=0.1, tpot_s=0.1, latency_s=5.0, replicas=1,
    usd_per_million_output_tokens=1.0, usd_per_h=1.0, meets_objectives=True, price_usd_per_h=1.0,
)  # fmt: skip


def at_limit(limit: int, largest: int) -> Candidate:
    """Return a candidate whose cost falls with its limit, of which one is the largest within the objectives."""
    is_inside = limit <= largest
    return msgspec.structs.replace(
        PLAIN,
        batch_limit=limit,
        usd_per_million_output_tokens=100 / limit,
        meets_objectives=is_inside,
        missed=() if is_inside else ("tpot p90 41 ms",),
        objective_ratio=limit / (largest + 0.5),
    )


def series(limits: list[int], largest: int, most: int = 1000, **changes: Any) -> _Series:
    """Return a deployment whose limits were tried, with a cache for so many sequences at most."""
    pool: Any = SimpleNamespace(most_sequences=most, deployment=SimpleNamespace(limited_ranks=1))
    tried: list[tuple[int, Candidate | TooLarge]] = [(limit, at_limit(limit, largest)) for limit in limits]
    plain = _Series(pool, tried, lambda limit: at_limit(limit, largest), is_whole=True, least_value=lambda _: 0.0)
    return plain._replace(**changes)


def cost_of(candidate: Candidate) -> float:
    assert candidate.usd_per_million_output_tokens is not None
    return candidate.usd_per_million_output_tokens


@pytest.mark.parametrize(("largest", "found"), [(47, 44), (48, 48), (59, 56), (63, 60), (33, 32)])
def test_the_largest_limit_within_the_objectives_is_found_in_steps_of_an_eighth(largest: int, found: int) -> None:
    bracket = _find_bracket(series([16, 32, 64], largest), DEMAND, Criteria(), cost_of)
    assert bracket is not None and bracket.limits == [36, 40, 44, 48, 52, 56, 60]
    candidates = _bisect(bracket, Criteria())
    assert len(candidates) == 3
    assert max([32, *(each.batch_limit for each in candidates if each.meets_objectives)]) == found
    assert bracket.value == pytest.approx(100 / (largest + 0.5))


def test_what_the_cache_holds_is_tried_where_no_limit_is_too_slow() -> None:
    bracket = _find_bracket(series([16, 32], 100, most=50), DEMAND, Criteria(), cost_of)
    assert bracket is not None and bracket.limits == [36, 40, 44, 48, 50]
    assert [each.batch_limit for each in _bisect(bracket, Criteria())] == [50]
    assert bracket.value == pytest.approx(2.0)
    at_rate = msgspec.structs.replace(DEMAND, rate_per_s=1.0)
    assert PLAIN.replicas == 1  # which already carries the rate
    same = _find_bracket(series([16, 32], 100, most=50), at_rate, Criteria(), cost_of)
    assert same is not None and same.value == pytest.approx(100 / 32)


def test_nothing_is_looked_for_where_no_limit_is_fast_enough() -> None:
    assert _find_bracket(series([1, 2], 0), DEMAND, Criteria(), cost_of) is None
    pair = _find_bracket(series([64], 50, is_whole=False), DEMAND, Criteria(), cost_of)
    assert pair is not None and pair.limits == [36, 40, 44, 48, 52, 56, 60]


def test_limits_that_need_too_many_devices_are_below_those_that_are_looked_for() -> None:
    """At twice the limit of what needs 12 devices at least 6 are needed; of 32, 16."""
    few, many = (TooLarge("t4", "fp16", "tensor 1", 32, devices, 1.0, None, is_forecast=True) for devices in (12, 32))
    outside = at_limit(64, 50)

    def find(tried: list[tuple[int, Candidate | TooLarge]]) -> Any:
        return _find_bracket(series([], 50, tried=tried), DEMAND, Criteria(devices=8), cost_of)

    bracket = find([(32, few), (64, outside)])
    assert bracket is not None and bracket.limits[0] == 36 and bracket.value == pytest.approx(100 / 64)
    assert find([(32, few)]) is not None and find([(32, many)]) is None
    slow = msgspec.structs.replace(outside, replicas=9)  # of which at least 5 are needed at twice its limit
    further = find([(32, few), (64, slow)])
    assert further is not None and further.limits[0] == 72
    assert find([(32, few), (64, msgspec.structs.replace(outside, replicas=17))]) is None


def test_users_are_shared_among_replicas() -> None:
    """224 users are 56 on each of four replicas: 52 would need a fifth, which leaves 45 for each."""
    assert _limits_between(32, 64, 1, 224) == [38, 45, 56]
    assert _limits_between(64, 100, 1, 100) == []
    assert _limits_between(32, 64, 8, None) == [40, 48, 56]


def test_the_limit_is_the_largest_that_a_simulation_confirms() -> None:
    """A simulation of the next larger limit misses the objective."""
    demand, question = Demand(Lengths(200), Lengths(20)), pl.Serve("llama-3-8b", gpu="h100-sxm", max_sequences=64)
    pool = _prepare_pool(make_deployment(question), demand, ())
    trials = [LimitedPool(pool, limit, None) for limit in (16, 32, 64)]
    between_s = math.sqrt(math.prod(trial.simulate(demand, ANY_TPOT, Criteria()).tpot_s or 0.0 for trial in trials[1:]))
    objectives = (Objective("tpot", "p90", between_s),)
    tried = [(trial, trial.simulate(demand, objectives, Criteria())) for trial in trials]
    best = cost_of(tried[1][1])
    further = refine(Tried(tried, [], [], []), demand, objectives, Criteria(), best, cost_of, lambda _: 0.0)
    largest = max(each.batch_limit for each in further if each.meets_objectives)
    smallest = min((each.batch_limit for each in further if not each.meets_objectives), default=64)
    assert largest > 32 and smallest - largest == 4
    assert min(map(cost_of, further)) < 0.95 * best
    search = partial(refine, Tried(tried, [], [], []), demand, objectives, Criteria())
    assert search(0.0, cost_of, lambda _: 0.0) == []  # nothing would be cheaper
    assert search(best, cost_of, lambda _: best) == []  # nor would what costs as much at the least


def test_beyond_the_limits_that_were_tried_the_least_is_a_share_or_whole_replicas() -> None:
    """Shares of a bound, of the price of devices, and of five replicas: whole ones where a rate is to be carried."""
    bound = Bound(100.0, 10.0, value=8.0, devices=6, is_forecast=False, is_too_slow=False)
    too_large = TooLarge("t4", "fp16", "tensor 1", 8, 6, price_usd_per_h=2.0, price_cloud=None, is_forecast=True)
    five = msgspec.structs.replace(PLAIN, replicas=5, usd_per_h=10.0)
    at_rate = msgspec.structs.replace(DEMAND, rate_per_s=3.0)
    by_cost, by_joules = Criteria("cost"), Criteria("joules")

    def usd_per_h(candidate: Candidate) -> float:
        return candidate.usd_per_h

    assert _beyond(bound, 0.4, at_rate, by_cost, usd_per_h) == pytest.approx(3.2)
    assert _beyond(too_large, 0.4, at_rate, by_cost, usd_per_h) == pytest.approx(4.8)
    assert _beyond(too_large, 0.4, at_rate, by_joules, usd_per_h) == 0.0
    unpriced = msgspec.structs.replace(too_large, price_usd_per_h=None)
    assert _beyond(unpriced, 0.4, at_rate, by_cost, usd_per_h) == 0.0
    assert _beyond(five, 0.3, at_rate, by_cost, usd_per_h) == pytest.approx(10 * 2 / 5)  # 1.5 replicas are two
    assert _beyond(five, 0.3, DEMAND, by_cost, usd_per_h) == pytest.approx(3.0)
    assert _beyond(five, 0.3, at_rate, by_joules, usd_per_h) == pytest.approx(3.0)

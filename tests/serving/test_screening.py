"""Deployments that bounds leave out of the simulations: no simulation reaches the bounds, and what is shown stays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.reporting.document import Table
from paleo_lite.reporting.serving import serving_page
from paleo_lite.serving import advise, screening
from paleo_lite.serving.candidates import RANKINGS, Candidate, Criteria, DeploymentAdvice
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.requests import Demand
from paleo_lite.serving.screening import Screening
from paleo_lite.serving.slo import Objective
from paleo_lite.serving.trials import LimitedPool

RATE = Demand(Lengths(1000), Lengths(60), rate_per_s=30.0)
USERS = Demand(Lengths(1000), Lengths(60), concurrency=64)


@pytest.mark.parametrize(
    ("demand", "engine", "by"),
    [
        (RATE, "vllm", "cost"),
        (RATE, "vllm", "joules"),
        (RATE, "sglang", "cost"),
        (USERS, "vllm", "cost"),
        (USERS, "vllm", "joules"),
        (USERS, "tensorrt-llm", "hourly"),
    ],
)
def test_no_simulation_exceeds_its_bound(demand: Demand, engine: str, by: str) -> None:
    """Tokens per second and device, those of a user, and what is ranked, of simulations at small and large limits."""
    question = pl.Serve("llama-3-8b", gpu="h100-sxm", rate="1", engine=engine)
    pool = advise._prepare_pool(make_deployment(question), demand, ())
    trials = [LimitedPool(pool, limit, None) for limit in (1, 8, 64)]
    criteria = Criteria(by)
    screened = Screening(trials, [], demand, (), criteria)
    figure = RANKINGS[by].figure(has_rate=demand.rate_per_s is not None)
    for trial, bound in screened.waiting:
        candidate = trial.simulate(demand, (), criteria)
        assert bound is not None and not bound.is_too_slow
        assert 0.5 * bound.tokens_per_s_per_gpu < candidate.tokens_per_s_per_gpu < bound.tokens_per_s_per_gpu
        assert candidate.tokens_per_s_per_user < bound.tokens_per_s_per_user
        assert bound.value <= getattr(candidate, figure) < 2 * bound.value


def test_energy_is_ranked_by_without_a_price() -> None:
    """A device of which no price is known draws power all the same."""
    question = pl.Serve("llama-3-8b", gpu="h100-sxm", rate="1")
    pool = advise._prepare_pool(make_deployment(question), RATE, ())
    priceless = msgspec.structs.replace(pool.deployment, price_usd_per_h=None, listing=None)
    pool = msgspec.structs.replace(pool, deployment=priceless)
    screened = Screening([LimitedPool(pool, 8, None)], [], RATE, (), Criteria("joules"))
    assert screened.is_ranked_by_figure
    assert not Screening([LimitedPool(pool, 8, None)], [], RATE, (), Criteria("cost")).is_ranked_by_figure


def test_what_is_certain_to_miss_its_objectives_does_miss_them() -> None:
    pool = advise._prepare_pool(make_deployment(pl.Serve("llama-3-8b", gpu="h100-sxm", rate="1")), RATE, ())
    trials = [LimitedPool(pool, limit, None) for limit in (4, 64)]
    objectives = (Objective("tpot", "p90", 4e-3),)
    for trial, bound in Screening(trials, [], RATE, objectives, Criteria()).waiting:
        assert bound is not None and bound.is_too_slow
        assert not trial.simulate(RATE, objectives, Criteria()).meets_objectives


def shown(advice: DeploymentAdvice, number: int) -> list[tuple[Any, ...]]:
    """Return the deployments that meet the objectives and come first, and those of the front."""
    best = [one for one in advice.candidates if one.meets_objectives][:number]
    front = [one for one in advice.candidates if one.is_on_front]
    return [_figures_of(one) for one in (*best, *front)]


def _figures_of(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.deployment, candidate.batch_limit, candidate.usd_per_h, candidate.tokens_per_s_per_user


def test_what_is_shown_is_that_of_all_deployments(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 12, "tensor": 1, "advise": "cost", "output_tokens": 16}
    monkeypatch.setattr(screening, "SHOWN_CANDIDATES", 3)
    answer = pl.serve("llama-3.1-8b", **asked)
    quick = answer.advice
    monkeypatch.setattr(Screening, "_is_of_no_interest", lambda *_: False)
    whole = pl.serve("llama-3.1-8b", **asked).advice
    assert quick is not None and whole is not None and quick.left_out and not whole.left_out
    assert quick.best == whole.best and shown(quick, 3) == shown(whole, 3)
    assert not any(one.misses_objectives for one in quick.left_out)
    table = next(one for one in serving_page(answer).content if isinstance(one, Table) and "Deployments" in one.title)
    assert f"without {len(quick.left_out)} others that bounds show to be neither among these" in table.title


def test_all_are_simulated_where_none_meets_the_objectives() -> None:
    """What comes nearest is shown, which only simulations say."""
    advice = pl.serve(
        "llama-3.1-8b", gpu="l40s", rate=1, slo="tpot=1ms", advise="cost", tensor=1, output_tokens=8, num_requests=20
    ).advice
    assert advice is not None and advice.best is None and not advice.left_out

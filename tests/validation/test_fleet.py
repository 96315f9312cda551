"""Split deployments: published settings, and forecasts beside published times."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.serving.options import Speculation
from validation.fleet.disaggregated import ACCEPTED, acceptance_of, forecast
from validation.fleet.recipes import PoolSize, Recipe, recipes


def test_settings_are_those_of_the_published_file() -> None:
    found = recipes()
    assert len(found) == len(set(found)) > 400
    assert (
        Recipe("b200", "tensorrt-llm", "fp4", 1024, 1024, 90, 3, PoolSize(1, 4, 4, 4), PoolSize(5, 8, 8, 1, 32))
        in found
    )


@pytest.mark.parametrize("drafted", [1, 2, 3])
def test_acceptance_yields_the_tokens(drafted: int) -> None:
    acceptance = acceptance_of(ACCEPTED[drafted], drafted)
    assert Speculation(drafted, acceptance).tokens_per_iteration == pytest.approx(ACCEPTED[drafted])


@pytest.mark.slow
def test_a_published_deployment() -> None:
    """InferenceX, B200 with TensorRT-LLM in fp4: 6.40 ms per token and 323 ms to the first one with 90 users."""
    recipe = next(one for one in recipes() if one[:7] == ("b200", "tensorrt-llm", "fp4", 1024, 1024, 90, 3))
    times = forecast(recipe)
    assert times.tpot_s[1] == pytest.approx(6.40e-3, rel=0.15) and times.tpot_s[0] < 6.40e-3 < times.tpot_s[2]
    assert times.ttft_s[1] == pytest.approx(0.323, rel=0.35) and times.ttft_s[0] < 0.323 < times.ttft_s[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tiers", "published"),
    [(None, 0.026), ("host=240GB", 0.238), ("host=240GB,store=760GB", 0.817)],
)
def test_hit_rates_of_a_published_test_of_tiers(tiers: str | None, published: float) -> None:
    """Mooncake's HiCache test: Qwen3 235B on 8 H800, 80 clients and ten rounds with a barrier; tokens of all rounds."""
    answer = pl.serve(
        "qwen3-235b-a22b", gpu="h800-sxm", tensor=8, engine="sglang", concurrency=4, num_requests=800,
        workload="conversation:turns=10,clients=80,question=2048,output=1,barrier=1", cache_tiers=tiers,
    )  # fmt: skip
    assert answer.figures["prefix_hit_rate"].value == pytest.approx(published, abs=0.05)

"""Split deployments: published settings, and forecasts beside published times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.serving.drafts import acceptance_of
from paleo_lite.serving.options import Speculation
from validation.fleet import disaggregated, gains
from validation.fleet.disaggregated import ACCEPTED, forecast
from validation.fleet.recipes import PoolSize, Recipe, recipes
from validation.tables import rows_of


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


def test_rounds_but_the_first_stand_for_the_others_of_the_benchmark() -> None:
    """Ten rounds of two users: the first tokens of the first take 1 s, all others 3 s: (1 + 9 * 3) / 10."""
    ttft_s, tpot_s = np.array([1.0, 1.0, 3.0, 3.0, 3.0, 3.0]), np.array([0.01, 0.01, 0.02, 0.02, 0.02, 0.02])
    assert disaggregated._times_of(ttft_s, tpot_s, users=2) == pytest.approx((2.8, 0.02))


def test_the_ends_are_those_of_the_first_requests() -> None:
    recipe = next(one for one in recipes() if one.concurrency == 90)
    whole, first = (disaggregated._traffic(recipe, rounds) for rounds in (3, 2))
    assert (len(whole), len(first)) == (270, 180)
    assert whole.input_tokens[:180].tolist() == first.input_tokens.tolist()
    assert whole.output_tokens[:180].tolist() == first.output_tokens.tolist()


def test_users_of_one_deployment_share_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two published numbers of users of each of two deployments that may be the measured one."""
    prepared: list[Recipe] = []
    monkeypatch.setattr(disaggregated, "_prepare", prepared.append)
    expected = {8: 0.010, 16: 0.020}
    monkeypatch.setattr(disaggregated.PreparedRecipe, "expected", lambda self: (1.0, expected[self.recipe.concurrency]))
    monkeypatch.setattr(disaggregated.PreparedRecipe, "forecast", lambda self: self.recipe)
    size = PoolSize(1, 4, 1, 1)
    few, many = (
        tuple(Recipe("b200", "sglang", "fp4", 1024, 1024, users, drafted, size, size) for drafted in (0, 2))
        for users in (8, 16)
    )
    rows = [
        disaggregated.MeasuredSplit("b200", "sglang", "fp4", 1.0, 0.01, candidates, is_published=False)
        for candidates in (many, few)
    ]
    pairs, refused = disaggregated.forecast_all(rows, jobs=1)
    assert prepared == list(many) and not refused
    assert [row for row, _ in pairs] == rows


@pytest.mark.thorough
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


def test_direction_and_size_of_a_gain() -> None:
    def row(published: float, forecast: float) -> gains.GainRow:
        """Return a row with a published gain and its forecast."""
        return gains.GainRow(kind="router", name="", figure="", published=published, forecast=forecast)

    assert row(2.0, 1.5).has_direction and row(2.0, 1.5).has_size  # exactly a third more
    assert not row(2.0, 1.4).has_size and not row(2.0, 0.9).has_direction
    assert row(0.5, 0.6).has_direction and row(0.98, 1.05).has_direction and not row(0.98, 1.2).has_direction
    page = gains.gains_page([row(2.0, 1.5), row(2.0, 0.9)])
    assert page.title == "Gains of fleets: 1 of 2 in the right direction, 1 within a third"


def test_the_rate_of_a_stage_is_that_of_its_own_requests() -> None:
    """300 tokens from the first request of the last stage, at 601 s, to the last answer, at 611 s, of both replicas."""
    replicas = [
        SimpleNamespace(
            arrival_s=np.array([1.0, 601.0]), finish_s=np.array([9.0, 605.0]), output_tokens=np.array([70, 100])
        ),
        SimpleNamespace(arrival_s=np.array([603.0]), finish_s=np.array([611.0]), output_tokens=np.array([200])),
    ]
    done: Any = SimpleNamespace(simulated=SimpleNamespace(outcomes=replicas))
    assert gains.STAGE.of(done) == pytest.approx(30.0)


@pytest.mark.thorough
@pytest.mark.needs_data
@pytest.mark.slow
def test_every_gain_has_its_published_rows() -> None:
    """Both figures are found; three drafted tokens are 1.42 times as fast (vLLM's blog, 640 over 450 tokens/s)."""
    table = list(rows_of(DATA / gains.TABLE))
    for gain in gains.GAINS:
        for setting in (gain.without, gain.with_it):
            assert gains._published(table, gain, setting) > 0
    found = next(row for row in gains.compare_gains(DATA, ["draft"]) if "eagle3, 3 tokens, 1 users" in row.name)
    assert found.published == pytest.approx(640 / 450) and found.has_direction and found.has_size

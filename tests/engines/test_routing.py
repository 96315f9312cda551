"""Loads of experts: expectations of probability theory, and simulated routers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.engines.routing import expert_load, parse_expert_load
from paleo_lite.errors import BadValue

SIMULATIONS = 2000


def simulate(tokens: int, active: int, experts: int, ranks: int) -> tuple[float, float]:
    """Return rows and distinct experts of the busiest device: means over routers that choose without preference."""
    generator = np.random.default_rng(12)
    rows, distinct = [], []
    for _ in range(SIMULATIONS // tokens + 40):
        chosen = generator.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)[:, :active]
        counts = np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1)
        busiest = counts.sum(axis=1).argmax()
        rows.append(counts[busiest].sum())
        distinct.append(np.count_nonzero(counts[busiest]))
    return float(np.mean(rows)), float(np.mean(distinct))


@pytest.mark.parametrize(("active", "experts"), [(2, 8), (8, 128), (8, 256), (4, 128), (1, 16)])
@pytest.mark.parametrize("tokens", [1, 2, 7, 32, 256, 4096])
def test_distinct_experts_are_those_that_not_all_tokens_miss(tokens: int, active: int, experts: int) -> None:
    """A token misses an expert with probability 1 - k / E, independently of others: E (1 - (1 - k / E)^N)."""
    load = expert_load(tokens, active=active, experts=experts)
    expected = experts * (1 - (1 - active / experts) ** tokens)
    assert load.distinct[0] == pytest.approx(expected, rel=1e-6)
    assert load.rows[0] == pytest.approx(tokens * active)


@pytest.mark.parametrize(("tokens", "active", "experts"), [(4, 8, 128), (32, 8, 256), (200, 2, 8)])
def test_distinct_experts_are_those_of_a_simulated_router(tokens: int, active: int, experts: int) -> None:
    load = expert_load(tokens, active=active, experts=experts)
    rows, distinct = simulate(tokens, active, experts, 1)
    assert (load.rows[0], load.distinct[0]) == pytest.approx((rows, distinct), rel=0.02)


@pytest.mark.parametrize(
    ("tokens", "active", "experts", "ranks"),
    [(16, 8, 256, 8), (64, 8, 256, 8), (512, 8, 128, 4), (1024, 8, 256, 32), (256, 4, 128, 2)],
)
def test_the_busiest_device_is_that_of_a_simulated_router(tokens: int, active: int, experts: int, ranks: int) -> None:
    load = expert_load(tokens, active=active, experts=experts, ranks=ranks)
    rows, distinct = simulate(tokens, active, experts, ranks)
    assert load.rows[0] == pytest.approx(rows, rel=0.03)
    assert load.distinct[0] == pytest.approx(distinct, rel=0.03)
    assert load.rows[0] > tokens * active / ranks


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_balanced_experts_get_equal_counts(ranks: int) -> None:
    """The published tables' distribution ``balanced``: 64 tokens of 8 experts each are 2 rows for each of 256."""
    load = expert_load(64, active=8, experts=256, ranks=ranks, is_random=False)
    assert load.rows[0] == pytest.approx(64 * 8 / ranks)
    assert load.distinct[0] == pytest.approx(256 / ranks)


def test_fewer_balanced_rows_than_experts_each_have_an_expert_of_their_own() -> None:
    load = expert_load(4, active=8, experts=256, is_random=False)
    assert load.rows[0] == pytest.approx(32) and load.distinct[0] == pytest.approx(32)


def test_a_power_law_makes_the_busiest_device_busier_and_meets_fewer_experts() -> None:
    even = expert_load(256, active=8, experts=256, ranks=8, is_random=False)
    skewed = [expert_load(256, active=8, experts=256, ranks=8, is_random=False, alpha=alpha) for alpha in (0.6, 1.2)]
    assert even.rows[0] < skewed[0].rows[0] < skewed[1].rows[0]
    whole = [expert_load(256, active=8, experts=256, alpha=alpha).distinct[0] for alpha in (0.0, 0.6, 1.2)]
    assert whole == sorted(whole, reverse=True)


@given(
    tokens=st.integers(1, 20_000),
    setting=st.sampled_from([(2, 8), (8, 128), (8, 256), (4, 32), (1, 16), (6, 64)]),
    power=st.integers(0, 3),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 1.01, 1.2]),
    is_random=st.booleans(),
)
def test_loads_stay_within_their_bounds(tokens, setting, power, alpha, is_random) -> None:
    (active, experts), ranks = setting, 2**power
    load = expert_load(tokens, active=active, experts=experts, ranks=ranks, alpha=alpha, is_random=is_random)
    own = experts // ranks
    rows, distinct = float(load.rows[0]), float(load.distinct[0])
    assert rows <= tokens * min(active, own) * (1 + 1e-9)
    assert min(rows, 1.0) * (1 - 1e-9) <= distinct <= min(own, max(rows, 1.0)) * (1 + 1e-9)
    if not alpha:
        assert rows >= tokens * active / ranks * (1 - 1e-9)  # the busiest has no less than the mean


@pytest.mark.parametrize(("text", "alpha"), [("uniform", 0.0), ("power-law:1.2", 1.2), ("power-law:1", 1.0)])
def test_loads_by_name(text: str, alpha: float) -> None:
    assert parse_expert_load(text) == alpha


@pytest.mark.parametrize(
    "text", ["", "power-law", "power-law:", "power-law:0", "power-law:nan", "power-law:9", "zipf:1"]
)
def test_unknown_loads_raise_one_sentence(text: str) -> None:
    with pytest.raises(BadValue, match="`--expert-load` must be uniform or power-law:ALPHA"):
        parse_expert_load(text)


def test_a_lone_device_has_all_rows_whatever_the_popularity() -> None:
    """Every row is computed by some expert, and there is no other device."""
    for alpha in (0.0, 0.6, 1.2):
        load = expert_load([1, 16, 512], active=8, experts=128, alpha=alpha)
        assert load.rows.tolist() == pytest.approx([8, 128, 4096])

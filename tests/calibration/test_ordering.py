"""Isotonic regression on a partial order, against a quadratic program and against pool adjacent violators.

Tests: calibration/choose.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.calibrated import rates_of
from validation.ordering import TOLERANCE, are_comparable, is_better, isotonic

VALUES = st.lists(
    st.tuples(st.floats(-1, 1), st.floats(0.1, 2), st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=7
)


@given(VALUES)
def test_it_is_the_nearest_in_order(drawn) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    values, variance, *figures = np.array(drawn).T
    pairs = [
        (one, other)
        for one, other in itertools.permutations(range(len(values)), 2)
        if all(figure[one] >= figure[other] for figure in figures)
    ]
    found = isotonic(values, variance, pairs)
    if not pairs:
        assert np.array_equal(found, values)
        return
    assert all(found[one] >= found[other] - 1e-4 for one, other in pairs)
    rows = np.array([np.eye(len(values))[one] - np.eye(len(values))[other] for one, other in pairs])
    nearest = optimize.minimize(
        lambda x: float(((x - values) ** 2 / variance).sum()),
        values,
        jac=lambda x: 2 * (x - values) / variance,
        constraints={"type": "ineq", "fun": lambda x: rows @ x, "jac": lambda x: rows},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert ((found - values) ** 2 / variance).sum() <= nearest.fun + 1e-3
    assert found == pytest.approx(nearest.x, abs=5e-3)


def test_in_a_chain_it_is_pool_adjacent_violators() -> None:
    """Barlow et al. (1972): 3, 1 with weights 1 and 3 become their weighted mean 1.5."""
    assert isotonic(np.array([3.0, 1.0, 5.0]), np.array([1.0, 1 / 3, 1.0]), [(1, 0), (2, 1)]) == pytest.approx(
        [1.5, 1.5, 5.0], abs=100 * TOLERANCE
    )


def test_better_is_better_in_every_rate() -> None:
    small, large, wide = (
        rates_of(Machine(find_device(name)), "fp32") for name in ("a100-sxm-40gb", "a100-sxm-80gb", "gtx1080ti")
    )
    assert is_better(large, small) and not is_better(small, large)
    # 11.3 TFLOP/s on 28 multiprocessors: more each than 19.5 on 108.
    assert not is_better(large, wide) and not is_better(wide, large)


def test_kepler_is_compared_with_kepler() -> None:
    k40m, k20, gtx980, mi100 = map(find_device, ("k40m", "k20", "gtx980", "mi100"))
    assert are_comparable(k40m, k20) and not are_comparable(k40m, gtx980) and not are_comparable(gtx980, mi100)

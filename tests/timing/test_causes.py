"""Factors of the causes of a step of training. Tests: timing/causes.py."""

from __future__ import annotations

import math

import pytest

import paleo_lite as pl
from paleo_lite.timing import Prediction, predict
from paleo_lite.timing.causes import ATTENTION, CAUSES, EXCHANGES, EXPERTS, HOST, PRODUCTS, MovedCauses
from paleo_lite.timing.models import RooflineModel

SMALL = {"gpu": "a100-sxm-80gb", "precision": "bf16", "batch_size": 1, "sequence_length": 512}


@pytest.fixture(scope="module")
def shipped() -> Prediction:
    """Return a step of training of a small language model."""
    found = pl.train("qwen2.5-0.5b", **SMALL)
    assert isinstance(found, Prediction)
    return found


def time_with(shipped: Prediction, moved: MovedCauses) -> Prediction:
    """Return the same step with the factors of causes."""
    return predict(shipped.workload, shipped.machine, moved.move(shipped.model))


def test_no_factor_changes_nothing(shipped: Prediction) -> None:
    assert time_with(shipped, MovedCauses({})).time_s == pytest.approx(shipped.time_s, rel=1e-12)


def test_all_causes_together_multiply_the_time(shipped: Prediction) -> None:
    doubled = MovedCauses({cause: math.log(2) for cause in CAUSES})
    # Only arithmetic on vector units, the smallest part of a step, has no parameter.
    assert time_with(shipped, doubled).time_s == pytest.approx(2 * shipped.time_s, rel=0.02)


@pytest.mark.parametrize("cause", [PRODUCTS, ATTENTION, HOST])
def test_a_slower_cause_takes_longer(shipped: Prediction, cause: str) -> None:
    slower = time_with(shipped, MovedCauses({cause: math.log(2)}))
    assert shipped.time_s < slower.time_s < 2 * shipped.time_s


def test_networks_without_experts_do_not_notice_them(shipped: Prediction) -> None:
    assert time_with(shipped, MovedCauses({EXPERTS: 0.5})).time_s == pytest.approx(shipped.time_s, rel=1e-12)


def test_the_width_narrows_the_interval(shipped: Prediction) -> None:
    narrow = time_with(shipped, MovedCauses({}, 0.5))
    before, after = (math.log(high / low) for low, high in (shipped.interval or (), narrow.interval or ()))
    assert after == pytest.approx(before / 2, rel=1e-6)


def test_a_roofline_and_unmoved_causes_stay_unchanged() -> None:
    moved = MovedCauses({EXCHANGES: math.log(3)}, 0.5)
    model = RooflineModel()
    assert moved.move(model) is model
    assert moved.factor_of(EXCHANGES) == pytest.approx(3)
    assert moved.factor_of(HOST) == 1
    assert moved.narrow(4.0, 1.0) == pytest.approx(2.0)

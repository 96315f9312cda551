"""`Terms`: seconds by the name of their pass, and intervals by Student's t."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paleo_lite.timing.intervals import QUANTILES
from paleo_lite.timing.terms import Terms

SECONDS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
STEP = Terms(("forward", "backward_data", "update"), SECONDS, SECONDS, SECONDS, overhead_s=4.0, deviation=0.1)


def test_passes_have_names():
    assert STEP.seconds_of("forward").tolist() == [1, 2]
    assert STEP.seconds_of("update", "backward_data").tolist() == [8, 10]
    assert STEP.seconds_of("recompute").tolist() == [0, 0]
    assert STEP.time_s == 21 + 4


def test_quantiles_are_those_of_students_t():
    stats = pytest.importorskip("scipy.stats", reason="asks scipy: pip install 'paleo-lite[calibrate]'")
    for level, quantile in QUANTILES.items():
        assert quantile == pytest.approx(stats.t(5).ppf((1 + level) / 2), abs=5e-4)


def test_an_interval_is_as_wide_as_the_deviation_says():
    low, high = STEP.interval(0.9)
    assert high / 25 == pytest.approx(math.exp(2.015 * 0.1)) and low * high == pytest.approx(25**2)
    assert Terms(STEP.passes, SECONDS, SECONDS, SECONDS).interval() is None

"""Requests that all wait from the beginning, at all levels of the times of iterations at once.

Tests: serving/timed_engine.py.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.adapters import with_adapters
from paleo_lite.serving.deployment import LEVELS
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.requests import generate_traffic


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "options",
    [
        {"pipeline": 2, "tensor": 2},
        {"engine": "sglang", "max_sequences": 48},
        {"speculation": "tokens=3,acceptance=0.7"},
        {"engine_settings": "adapters=4"},
    ],
)
def test_one_simulation_ends_answers_as_one_of_each_level_does(options: dict[str, Any]) -> None:
    """Requests that all wait from the beginning are computed in the same order however long iterations take."""
    deployment = make_deployment(pl.Serve("llama-3-8b", gpu="h100-sxm", **options))
    engine = msgspec.structs.replace(deployment.engine, request_overhead_s=0.0)  # which lets them come one by one
    deployment = msgspec.structs.replace(deployment, engine=engine)
    traffic = generate_traffic(Lengths(1024, 300), Lengths(128, 60), count=300, rate_per_s=math.inf)
    if deployment.adapters is not None:
        traffic = with_adapters(traffic, deployment.adapters, seed=0)
    prepared = deployment.prepare(traffic)
    for level, outcomes in zip(LEVELS, prepared.flood(traffic, LEVELS)):
        for outcome, expected in zip(outcomes, prepared.run(traffic, level)):
            assert outcome.finish_s == pytest.approx(expected.finish_s, rel=1e-9)

"""Requests that all wait from the beginning, at all levels of the times of iterations at once.

Tests: serving/timed_engine.py.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.engines.records import find_server
from paleo_lite.machines import find_device
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.adapters import with_adapters
from paleo_lite.serving.iteration_times import IterationTimes, ScheduledTokens
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.options import SimulationOptions
from paleo_lite.serving.prepared import LEVELS, prepare
from paleo_lite.serving.requests import generate_traffic
from paleo_lite.serving.timed_engine import TimedEngine


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
    prepared = prepare(deployment, traffic)
    for level, outcomes in zip(LEVELS, prepared.flood(traffic, LEVELS)):
        for outcome, expected in zip(outcomes, prepared.run(traffic, level)):
            assert outcome.finish_s == pytest.approx(expected.finish_s, rel=1e-9)


def test_a_router_of_loads_takes_a_flood_in_turn() -> None:
    """A router that sees only loads finds all replicas equal while requests come at once: each gets every third."""
    deployment = make_deployment(pl.Serve("llama-3-8b", gpu="h100-sxm", replicas=3, router="least-loaded"))
    engine = msgspec.structs.replace(deployment.engine, request_overhead_s=0.0)
    deployment = msgspec.structs.replace(deployment, engine=engine)
    traffic = generate_traffic(Lengths(1024, 300), Lengths(128, 60), count=301, rate_per_s=math.inf)
    prepared = prepare(deployment, traffic)
    (flooded,) = prepared.flood(traffic, ["expected"])
    routed = prepared.run(traffic, "expected")  # hands requests over one by one
    ends_s = [sorted(itertools.chain.from_iterable(outcome.finish_s for outcome in each)) for each in (flooded, routed)]
    assert ends_s[0] == pytest.approx(ends_s[1], rel=1e-9)


def test_decoding_alone_takes_as_long_as_any_iteration() -> None:
    """Before the first tabulated context, between two and after the last one, with experts in tables of their own."""
    times = IterationTimes(
        token_s=[0.0, 0.003, 0.0041],
        head_s=[0.0, 0.0007, 0.0009],
        contexts=[10.0, 100.0, 1000.0],
        decode_attention_s=[[0.0] * 3, [0.001, 0.0017, 0.009], [0.0013, 0.0031, 0.0187]],
        prompt_attention_s=[0.0],
        relative_low=[],
        relative_high=[],
        experts_s=[0.0, 0.0023, 0.0029],
    )
    engine = find_server("vllm", find_device("h100-sxm"), overhead_s=0.0011)
    timed = TimedEngine(times, msgspec.structs.replace(engine, sequence_overhead_s=1e-5), SimulationOptions())
    decoding_s = timed.time_decoding()
    assert decoding_s is not None
    for sequences, cached_tokens in itertools.product((1, 2), (7.0, 10.0, 312.5, 1000.0, 5000.0)):
        assert decoding_s(sequences, cached_tokens) == timed.iteration_s(ScheduledTokens(sequences, cached_tokens))

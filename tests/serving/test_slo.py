"""Highest rates that meet objectives: of drawn lengths, of workloads of sessions, and of traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.serving.requests import Traffic
from paleo_lite.serving.slo import _search_from
from paleo_lite.units import format_number

SERVER: dict[str, Any] = {"gpu": "h100-sxm", "num_requests": 60, "max_sequences": 64}


def highest(answer: Any) -> float:
    """Return the highest rate that meets the objectives."""
    return float(answer.slo["highest_requests_per_s"])


def test_longer_requests_than_those_of_the_asked_traffic_are_simulated() -> None:
    """Of 20 requests the longest has fewer tokens than of the 1,000 whose latencies give the rate."""
    found = pl.serve("llama-3-8b", gpu="h100-sxm", rate=2, num_requests=20, input_tokens="1024:500", slo="ttft=1s")
    assert highest(found) > 2 and found.slo["missed"] == []


@pytest.mark.thorough
def test_the_rate_holds_where_it_is_asked_of_a_longer_run() -> None:
    """At the saturation rate itself 1,000 requests meet the objective, and 5,000 wait longer."""
    asked: dict[str, Any] = {"network": "llama-3.1-8b", "gpu": "l40s"}
    found = pl.serve(**asked, rate=3, slo="ttft=1s")
    rate, saturation = highest(found), found.figures["saturation_requests_per_s"].value
    assert saturation is not None and 0.9 * saturation < rate < saturation
    shown = dict(found.document().facts)["objectives"]
    assert shown.startswith(f"ttft p90 <= 1 s: up to {rate:g} requests/s (") and shown.endswith("with Poisson arrivals")
    longer = pl.serve(**asked, rate=rate, num_requests=5000)
    assert longer.latencies["ttft_s"]["p90"].value <= 1.0
    beyond = pl.serve(**asked, rate=0.999 * saturation, num_requests=5000)
    assert beyond.latencies["ttft_s"]["p90"].value > 1.0


@pytest.mark.thorough
def test_prompts_in_common_raise_the_rate() -> None:
    """Of 2,000 tokens 1,900 are common to all, so that a replica meets the objective at a higher rate."""
    common, alone = (
        pl.serve("llama-3-8b", **SERVER, workload=workload, rate=2, slo="ttft=500ms,tpot=30ms")
        for workload in (
            "shared-prefix:groups=1,prompts=200,system=1900,question=100,output=50",
            "shared-prefix:groups=200,prompts=1,system=1900,question=100,output=50",
        )
    )
    assert highest(common) > 1.3 * highest(alone)


def test_without_a_rate_the_workload_is_sent_at_the_highest() -> None:
    found = pl.serve("llama-3-8b", **SERVER, workload="conversation:turns=3,question=300,output=50", slo="tpot=20ms")
    asked_per_s = float(found.traffic.split()[0])
    assert 0.9 * highest(found) < asked_per_s <= highest(found) and found.slo["missed"] == []


def test_a_trace_comes_faster_or_slower(tmp_path: Path) -> None:
    lines = "".join(f"{0.5 * number},800,40\n" for number in range(80))
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + lines)
    found = pl.serve("llama-3-8b", gpu="h100-sxm", requests=path, slo="ttft=400ms")
    drawn = pl.serve(
        "llama-3-8b", gpu="h100-sxm", rate=2, input_tokens=800, output_tokens=40, slo="ttft=400ms", num_requests=80
    )
    assert 0.7 * highest(drawn) < highest(found) < 3 * highest(drawn)  # equal gaps instead of drawn ones


def test_another_rate_changes_the_gaps_only() -> None:
    tokens = np.full(5, 10)
    traffic = Traffic(np.arange(5) * 2.0, tokens, tokens)
    assert traffic.at_rate(1.0).arrival_s.tolist() == [0, 1, 2, 3, 4]
    assert traffic.at_rate(float("inf")).arrival_s.tolist() == [0] * 5
    with pytest.raises(BadValue, match="all at once"):
        Traffic(np.zeros(3), tokens[:3], tokens[:3]).at_rate(1.0)


def test_advice_takes_no_trace(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="leave `--requests` out"):
        pl.serve("llama-3-8b", gpu="h100-sxm", requests=tmp_path / "trace.csv", advise="cost")


@pytest.mark.parametrize("limit", ["0s", "-1ms"])
def test_an_objective_is_a_time_above_zero(limit: str) -> None:
    with pytest.raises(BadValue, match="--slo"):
        pl.serve("llama-3-8b", gpu="h100-sxm", rate=5, slo=f"ttft={limit}")


def test_an_end_of_the_interval_is_found_within_a_tenth() -> None:
    """The search begins at a rate that is too high, too low, or right, and ends at the rate, or a tenth below it."""
    for right in (0.5, 4.9, 5.0, 5.6, 9.9):
        tried: list[float] = []

        def meets_at(rate: float, right: float = right, tried: list[float] = tried) -> bool:
            tried.append(rate)
            return rate <= right

        found = _search_from(5.0, 0.1, 10.0, meets_at)
        assert right / 1.1 - 1e-9 <= found <= right and max(tried) <= 10.0
    assert _search_from(5.0, 0.1, 10.0, lambda rate: False) == 0.0
    assert _search_from(5.0, 0.1, 10.0, lambda rate: True) > 10.0 / 1.1**2


def test_the_highest_rate_has_an_interval() -> None:
    found = pl.serve("llama-3-8b", **{**SERVER, "rate": 1, "input_tokens": 100, "output_tokens": 8}, slo="ttft=500ms")
    assert found.slo is not None
    low, high = found.slo["highest_interval"]
    assert low < highest(found) < high
    assert f"requests/s ({format_number(low)} to " in dict(found.document().facts)["objectives"]

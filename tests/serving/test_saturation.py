"""The saturation rate where prompts have beginnings in common, with caches that are warm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import Traffic, generate_traffic
from paleo_lite.serving.saturation import _begin_anywhere, _repeat_sessions, in_progress, saturate
from paleo_lite.serving.timed_engine import TimedEngine
from paleo_lite.serving.workloads import parse_workload


def sessions(turns: int, count: int) -> Traffic:
    """Return sessions with a system prompt of 128 tokens."""
    workload = parse_workload(f"conversation:turns={turns},system=128,question=256,output=16")
    return workload.traffic(count, rate_per_s=1.0, concurrency=None, arrivals="fixed", seed=0)


def test_a_fleet_that_keeps_up_is_not_overloaded() -> None:
    """All prompts at once on cold caches would need four times the products."""
    answer = pl.serve(
        "llama-3.2-1b", gpu="h100-sxm", replicas=2, router="prefix", rate=30, num_requests=120, time_model="roofline",
        workload="conversation:turns=3,question=1500,output=10", max_sequences=16,
    )  # fmt: skip
    assert not answer.is_overloaded
    assert (answer.figures["utilisation"].value or 1.0) < 0.9


def test_prompts_of_which_no_two_begin_alike_are_answered_at_the_rate_of_any_others(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(1024), Lengths(32), count=80, rate_per_s=1.0)
    apart = msgspec.structs.replace(traffic, hashes=tuple((2 * number, 2 * number + 1) for number in range(80)))
    deployment = deployment.with_sequences(16)
    expected = saturate(prepare(deployment, traffic), traffic)
    assert saturate(prepare(deployment, apart), apart) == pytest.approx(expected, rel=0.01)


def test_a_few_prompts_have_the_rate_of_as_many_as_wanted(deployment: Deployment) -> None:
    """Three prompts that are equal, and many of which three in a row are: two of three are found."""
    rates = []
    deployment = deployment.with_sequences(16)
    for count in (3, 30, 300):
        traffic = generate_traffic(Lengths(1024), Lengths(32), count=count, rate_per_s=1.0)
        hashes = tuple((2 * (number // 3), 2 * (number // 3) + 1) for number in range(count))
        hashed = msgspec.structs.replace(traffic, hashes=hashes)
        rates.append(saturate(prepare(deployment, hashed), hashed)[0])
    assert rates[:2] == pytest.approx([rates[2]] * 2, rel=0.01)


def test_the_rate_is_that_of_the_long_run() -> None:
    """Equal answers that begin together end together; those of users who come one by one, or of many lengths, do not.

    An iteration that computes the prompt of one rank takes as long as one that computes those of all.
    """
    question = pl.Serve(
        "deepseek-r1", gpu="h200-sxm", tensor=8, expert_parallel=8, attention_data_parallel=8, max_sequences=32
    )
    deployment = make_deployment(question)
    rates = {}
    for deviation in (0.0, 300.0):
        lengths = Lengths(1024, deviation)
        traffic = generate_traffic(lengths, lengths, count=2500, rate_per_s=1.0)
        rates[deviation] = saturate(prepare(deployment, traffic), traffic)[0]
    assert rates[0.0] == pytest.approx(rates[300.0], rel=0.03)
    crowd = generate_traffic(lengths, lengths, count=2500, rate_per_s=1.1 * rates[300.0], seed=1)
    finish_s = np.sort(prepare(deployment, crowd).run(crowd)[0].finish_s)
    answered_per_s = 1000 / (finish_s[2000] - finish_s[1000])
    assert rates[300.0] == pytest.approx(answered_per_s, rel=0.03)


def test_answers_in_progress_have_any_part_left() -> None:
    left = in_progress(np.full(2000, 1000))
    assert left.min() >= 1 and left.max() <= 1000
    shares, _ = np.histogram(left, bins=4, range=(0, 1000))
    assert (abs(shares - 500) < 5 * np.sqrt(500 * 3 / 4)).all()
    assert in_progress(np.array([1])).tolist() == [1]


def test_prompts_that_are_cached_are_answered_at_the_rate_of_cached_ones(deployment: Deployment) -> None:
    """The same prompt again and again: only the engine's last block is computed, as with a prefix that all have."""
    traffic = generate_traffic(Lengths(2048), Lengths(8), count=400, rate_per_s=1.0)
    cached = msgspec.structs.replace(deployment.options, prefix_hit_rate=(2048 - deployment.engine.block_tokens) / 2048)
    deployment = deployment.with_sequences(32)
    known = msgspec.structs.replace(deployment, options=cached)
    hashed = msgspec.structs.replace(traffic, hashes=((1, 2, 3, 4),) * 400)
    expected, _ = saturate(prepare(known, traffic), traffic)
    assert saturate(prepare(deployment, hashed), hashed)[0] == pytest.approx(expected, rel=0.1)


def test_the_last_bit_of_a_time_does_not_decide_who_gets_a_request(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas compute in step, and processors differ in the last bits of exponentials and logarithms."""
    workload = parse_workload("shared-prefix:groups=20,prompts=5,system=3000,question=300,output=100")
    traffic = workload.traffic(300, rate_per_s=20.0, concurrency=None, arrivals="poisson", seed=0)
    fleet = msgspec.structs.replace(deployment, replicas=4, router="prefix")
    exact_s = TimedEngine.iteration_s
    rates = []
    for share in (0.0, 1e-15, -1e-15, 4e-15):

        def inexact_s(*given: Any, share: float = share, **named: Any) -> float:
            return exact_s(*given, **named) * (1 + share)

        monkeypatch.setattr(TimedEngine, "iteration_s", inexact_s)
        rates.append(saturate(prepare(fleet, traffic), traffic)[0])
    assert rates == pytest.approx([rates[0]] * 4, rel=1e-9)


def test_the_first_answers_are_those_of_the_whole_simulation(deployment: Deployment) -> None:
    """A fleet that stops after some answers knows all that end no later, and has not simulated all others."""
    traffic = msgspec.structs.replace(sessions(turns=3, count=240), concurrency=24)
    fleet = prepare(msgspec.structs.replace(deployment, replicas=3, router="prefix"), traffic)
    whole, stopped = (
        np.sort(np.concatenate([outcome.finish_s for outcome in fleet.run(traffic, answers=answers)]))
        for answers in (None, 100)
    )
    assert not np.isnan(whole).any()
    assert (stopped[:100] == whole[:100]).all()
    assert np.isnan(stopped).sum() > 100


def test_copies_of_sessions_share_only_the_system_prompt() -> None:
    traffic = sessions(turns=3, count=6)
    copied = _repeat_sessions(traffic, 2)
    assert copied.hashes is not None and copied.follows is not None and copied.sessions is not None
    assert copied.follows.tolist() == [-1, 0, 1, -1, 3, 4, -1, 6, 7, -1, 9, 10]
    assert copied.sessions.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert set(copied.hashes[2]) & set(copied.hashes[8]) == set(copied.hashes[0][:2])


def test_the_first_users_are_anywhere_in_their_sessions() -> None:
    traffic = sessions(turns=5, count=200)
    begun = _begin_anywhere(traffic, 20)
    assert begun.follows is not None and begun.hashes is not None and begun.sessions is not None
    starts = np.flatnonzero(begun.follows < 0)
    assert len(starts) == 40 and begun.concurrency == 20
    assert len(np.unique(begun.input_tokens[starts[:20]])) == 5
    assert set(begun.input_tokens[starts[20:]].tolist()) == {384}
    following = np.flatnonzero(begun.follows >= 0)
    assert (begun.sessions[begun.follows[following]] == begun.sessions[following]).all()
    assert (begun.input_tokens[begun.follows[following]] < begun.input_tokens[following]).all()


@pytest.mark.spread(1)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_the_rate_is_that_of_the_server_however_many_requests_are_sent(engine: str) -> None:
    answers = [
        pl.serve("llama-3-8b", gpu="h100-sxm", engine=engine, **traffic)
        for traffic in ({"rate": 5, "num_requests": 20}, {"rate": 5, "num_requests": 600}, {"concurrency": 4})
    ]
    rates = [answer.figures["saturation_requests_per_s"] for answer in answers]
    assert {rate.value for rate in rates} == {rates[0].value}
    # Intervals are of the mean context of the requests that are sent.
    assert [(rate.low, rate.high) for rate in rates] == [pytest.approx((rates[0].low, rates[0].high), rel=1e-4)] * 3


@pytest.mark.spread(1)
@pytest.mark.parametrize("places", [512, 4096])
def test_a_server_of_many_places_sustains_its_rate_under_a_crowd(places: int) -> None:
    """Neither the end of answers that all end at once nor that of first ones that are short is a rate."""
    deployment = make_deployment(pl.Serve("llama-3-8b", gpu="h200-sxm", max_sequences=places))
    traffic = generate_traffic(Lengths(64), Lengths(64), count=500, rate_per_s=1.0)
    crowd = generate_traffic(Lengths(64), Lengths(64), count=40_000, rate_per_s=450.0, seed=1)
    finish_s = np.sort(prepare(deployment, crowd).run(crowd)[0].finish_s)
    answered_per_s = 20_000 / (finish_s[35_000] - finish_s[15_000])
    assert saturate(prepare(deployment, traffic), traffic)[0] == pytest.approx(answered_per_s, rel=0.04)


def test_answers_in_step_above_the_saturation_rate_get_a_note() -> None:
    """Ranks of attention data parallelism that compute prompts together answer more than those that take turns."""
    question: dict[str, Any] = {
        "gpu": "h200-sxm", "tensor": 8, "expert_parallel": 8, "attention_data_parallel": 8, "max_sequences": 32,
        "rate": math.inf, "input_tokens": 2048, "output_tokens": 256,
    }  # fmt: skip
    answer = pl.serve("deepseek-r1", num_requests=1024, **question)
    (note,) = [note for note in answer.notes if "were answered from the first request" in note]
    assert "answers of one length that begin together end together" in note
    saturation = answer.figures["saturation_requests_per_s"].value
    assert answer.figures["requests_per_s"].value > 1.1 * saturation


def test_tokens_at_saturation_are_those_of_all_answers() -> None:
    """In the long run, here of 40 rounds at once, no answer is left out because it is long."""
    asked: dict[str, Any] = {"gpu": "l40s", "weights": "fp8", "max_sequences": 64, "output_tokens": "256:200"}
    figures = pl.serve("llama-3-8b", rate=1, **asked).figures
    crowd = pl.serve("llama-3-8b", rate="inf", num_requests=40 * 64, **asked).figures
    saturated = figures["saturation_tokens_per_s"].value
    assert saturated == pytest.approx(crowd["output_tokens_per_s"].value, rel=0.04)


def test_tokens_at_saturation_are_those_of_the_trace(tmp_path: Path) -> None:
    lengths = [(100, 200), (120, 150), (400, 300), (90, 250), (110, 100), (500, 300), (100, 150)]
    rows = [f"{second},{prompt},{answer}" for second, (prompt, answer) in enumerate(lengths)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    figures = pl.serve("llama-3-8b", gpu="l4", weights="int4", requests=trace).figures
    per_answer = figures["saturation_tokens_per_s"].value / figures["saturation_requests_per_s"].value
    assert per_answer == pytest.approx(1450 / 7)

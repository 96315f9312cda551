"""Workloads of sessions: what load generators send, and what a cache without a limit finds of it."""

from __future__ import annotations

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.errors import PaleoError
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prefix_cache import prefix_hit_rate
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import Traffic, generate_traffic
from paleo_lite.serving.workloads import HASHED_TOKENS, parse_workload


def make(text: str, count: int, rate_per_s: float | None = 10.0, concurrency: int | None = None) -> Traffic:
    """Return the requests of a workload."""
    return parse_workload(text).traffic(
        count, rate_per_s=rate_per_s, concurrency=concurrency, arrivals="poisson", seed=0
    )


def test_prompts_of_inference_perf_come_again() -> None:
    """The first 750 prompts share the system prompts of 150 groups; all later ones are repeats, questions included."""
    traffic = make("shared-prefix", 1500)
    assert traffic.hashes is not None and traffic.input_tokens[0] == 7200
    assert len(set(traffic.hashes[:750])) == 750 and traffic.hashes[750:] == traffic.hashes[:750]
    blocks = 7200 // HASHED_TOKENS
    new_blocks = 150 * (6000 // HASHED_TOKENS) + 750 * (blocks - 6000 // HASHED_TOKENS)
    assert prefix_hit_rate(traffic.hashes) == pytest.approx(1 - new_blocks / (1500 * blocks))


@pytest.mark.parametrize(
    ("rate_per_s", "concurrency"),
    [(10.0, None), (None, 8)],
)
def test_prompts_without_anything_in_common_are_those_of_no_workload(
    rate_per_s: float | None, concurrency: int | None
) -> None:
    """The same arrivals, and the same first answers of users who drift apart."""
    workload = make("best-of:samples=1,prompt=1000,output=500", 60, rate_per_s, concurrency)
    plain = generate_traffic(Lengths(1000), Lengths(500), count=60, rate_per_s=rate_per_s, concurrency=concurrency)
    assert workload.arrival_s == pytest.approx(plain.arrival_s)
    assert workload.output_tokens.tolist() == plain.output_tokens.tolist()
    assert workload.counted.tolist() == plain.counted.tolist()
    assert workload.shortened_requests == plain.shortened_requests == (0 if concurrency is None else 8)


def test_users_who_send_a_prompt_several_times_at_once_stay_in_step() -> None:
    assert make("best-of:samples=4", 60, None, 8).left_out is None


def test_every_prompt_of_a_session_begins_with_what_was_said() -> None:
    traffic = make("conversation:turns=4,system=640,question=128,output=64", 8)
    assert traffic.hashes is not None and traffic.follows is not None
    assert traffic.input_tokens.tolist() == [768, 960, 1152, 1344] * 2
    assert traffic.follows.tolist() == [-1, 0, 1, 2, -1, 4, 5, 6]
    for before, after in zip(traffic.hashes[:3], traffic.hashes[1:4]):
        assert after[: len(before)] == before  # prompt and answer
    assert traffic.hashes[0][:10] == traffic.hashes[4][:10] and traffic.hashes[0][10] != traffic.hashes[4][10]


def test_more_clients_than_requests_under_way_take_turns() -> None:
    """SGLang's bench_multiturn: of six open sessions two have a request under way, so that all of them stay open."""
    question = {"gpu": "h100-sxm", "concurrency": 2, "num_requests": 36, "max_sequences": 16}
    answer = pl.serve("llama-3.2-1b", **question, workload="conversation:turns=3,clients=6")  # type: ignore[arg-type]
    assert answer.requests == 36 and (answer.figures["mean_sequences"].value or 0.0) <= 2
    assert make("conversation:turns=3,clients=6", 36, None, 2).clients == 6


def test_after_a_barrier_no_session_is_a_turn_ahead(deployment: Deployment) -> None:
    """SGLang's bench_multiturn with --enable-round-barrier: the second turns begin when all first ones are answered."""
    traffic = make("conversation:turns=3,clients=6,barrier=1,output=8", 18, None, 2)
    outcome = prepare(deployment, traffic).run(traffic)[0]
    turns = np.arange(18) % 3
    for turn in (1, 2):
        assert outcome.arrival_s[turns == turn].min() >= outcome.finish_s[turns == turn - 1].max()
    free = make("conversation:turns=3,clients=6,output=8", 18, None, 2)
    ahead = prepare(deployment, free).run(free)[0]
    assert ahead.arrival_s[turns == 1].min() < ahead.finish_s[turns == 0].max()


def test_agents_wait_for_their_tools() -> None:
    traffic = make("agent:turns=3,tool=1.5s", 6)
    assert traffic.wait_s is not None and traffic.wait_s.tolist() == [0.0, 1.5, 1.5] * 2


def test_samples_of_a_prompt_are_sent_at_once() -> None:
    traffic = make("best-of:samples=4", 12)
    assert traffic.hashes is not None and len(np.unique(traffic.arrival_s)) == 3 == len(set(traffic.hashes))


def test_sessions_start_as_often_as_their_requests_make_the_rate() -> None:
    traffic = make("conversation:turns=5", 5000, rate_per_s=20.0)
    assert traffic.arrival_s.max() == pytest.approx(5000 / 20, rel=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chat", "no workload is called 'chat'"),
        ("agent:turn=3", "turn"),
        ("agent:turns=0", "must be an integer from 1"),
        ("agent:tool=soon", "must be seconds from 0"),
    ],
)
def test_nonsense_gets_a_sentence(text: str, message: str) -> None:
    with pytest.raises(PaleoError, match=message):
        parse_workload(text)


def test_seconds_of_a_workload_are_described_with_their_unit() -> None:
    for text in ("think=0.5", "think=0.5s", "think=500ms"):
        workload = parse_workload(f"conversation:turns=3,{text}")
        assert workload.wait_s == 0.5 and workload.describe().endswith("output 256, think 0.5 s")
    with pytest.raises(PaleoError, match="think: must be seconds from 0"):
        parse_workload("conversation:think=soon")


@pytest.mark.parametrize(
    ("text", "wait_s"), [("best-of:samples=4", 0.0), ("conversation:think=7", 7.0), ("agent:tool=3", 3.0)]
)
def test_sessions_wait_for_their_users_or_tools(text: str, wait_s: float) -> None:
    assert parse_workload(text).wait_s == wait_s

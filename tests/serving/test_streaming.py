"""The process that streams answers: backlog by hand, the rate that it leaves to users, and who waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.engines.records import find_server
from paleo_lite.errors import BadValue
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.notes import streaming_notes
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic
from paleo_lite.serving.streaming import Stream

PLAIN = find_server("tensorrt-llm")


def stream_of(interval: int = 1) -> Stream:
    return Stream(msgspec.structs.replace(PLAIN, response_s=1e-3, stream_interval=interval))


@pytest.mark.parametrize(
    ("interval", "done_s"),
    [
        (1, 0.05 + 10 * 0.1),  # 100 responses take 100 ms, and an iteration 50: the process never rests
        (10, 0.5 + 0.01),  # 10 responses take 10 ms: it has sent all before the next iteration ends
    ],
)
def test_a_backlog_grows_while_iterations_are_faster(interval: int, done_s: float) -> None:
    stream = stream_of(interval)
    stream.send(end_s=0.5, iterations=10, iteration_s=0.05, decoding=100)
    assert stream.is_done_s == pytest.approx(done_s)
    assert stream.seen_s == pytest.approx(done_s - stream.last_s / 2)  # the middle one of the last iteration
    stream.send(end_s=5.0, iterations=1, iteration_s=0.05, decoding=0, first_tokens=2)
    assert stream.is_done_s == pytest.approx(5.002)  # the backlog is gone, and first tokens are sent one by one


def test_a_backlog_is_worked_off_by_slower_iterations() -> None:
    """0.55 s are left at 0.5 s; four iterations of 200 ms with 100 ms of responses each leave 0.15 s."""
    stream = stream_of()
    stream.send(end_s=0.5, iterations=10, iteration_s=0.05, decoding=100)
    stream.send(end_s=1.3, iterations=4, iteration_s=0.2, decoding=100)
    assert stream.is_done_s - 1.3 == pytest.approx(0.55 - 0.8 + 0.4)


def test_users_of_a_closed_loop_get_what_the_process_sends(deployment: Deployment) -> None:
    """64 users whose iterations give more than 1,000 tokens per second get 1,000, and others what is computed."""
    engine = msgspec.structs.replace(PLAIN, overhead_s=0.0)
    rates: dict[str, list[float]] = {}
    users = generate_traffic(Lengths(64), Lengths(100, 20), count=640, concurrency=64, seed=1)
    drawn = generate_traffic(Lengths(64), Lengths(100, 20), count=640, rate_per_s=float("inf"), seed=1)
    for name, traffic in (("users", users), ("drawn", drawn)):
        for response_s in (0.0, 1e-3):
            one = msgspec.structs.replace(engine, response_s=response_s)
            replica = msgspec.structs.replace(deployment, engine=one)
            outcome = prepare(replica, traffic).run(traffic)[0]
            rates.setdefault(name, []).append(float(traffic.output_tokens.sum() / outcome.finish_s.max()))
    assert rates["users"][0] > 1500 and 900 < rates["users"][1] <= 1000
    assert rates["drawn"][0] == rates["drawn"][1]


def test_who_streams_is_told() -> None:
    """One process sends 9,615 tokens per second, ten of them together 96,154."""
    users = generate_traffic(Lengths(100), Lengths(10), count=10, concurrency=1)
    drawn = generate_traffic(Lengths(100), Lengths(10), count=10, rate_per_s=1.0)

    def notes(tokens_per_s: float, traffic: Any = users, interval: int = 1) -> list[str]:
        engine = msgspec.structs.replace(PLAIN, stream_interval=interval)
        prepared: Any = SimpleNamespace(engine=engine, prefill=None, deployment=SimpleNamespace(replicas=1))
        return streaming_notes(prepared, traffic, tokens_per_s)

    (note,) = notes(9000.0)
    assert "9,615 tokens per second" in note and "stream-interval" in note and "users wait" in note
    (note,) = notes(9000.0, drawn)
    assert "leave it out" in note
    assert notes(5000.0) == [] and notes(9000.0, interval=10) == []


def test_the_interval_is_one_of_engines_whose_process_is_known() -> None:
    """`stream_interval` of TensorRT-LLM, 1 by default (tech_blog/blog8_Scaling_Expert_Parallelism_..._part2.md)."""
    served = pl.serve(
        "llama-3.1-8b", gpu="h100-sxm", concurrency=4, num_requests=8, engine="tensorrt-llm",
        engine_settings="stream-interval=20",
    )  # fmt: skip
    assert served.launch_command is not None and "stream_interval: 20" in served.launch_command
    with pytest.raises(BadValue, match="stream-interval` is for tensorrt-llm"):
        find_server("vllm", stream_interval=20)
    with pytest.raises(BadValue, match="stream-interval` must be"):
        find_server("tensorrt-llm", stream_interval=0)

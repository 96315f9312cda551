"""Requests that servers and their gateways refuse, and how the answer counts them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.serving.admission import Admission, parse_admission
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.pools import Simulated
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import Traffic, generate_traffic

SERVER: dict[str, Any] = {
    "gpu": "h100-sxm", "engine": "sglang", "max_sequences": 32, "output_tokens": 256, "num_requests": 400,
}  # fmt: skip


def simulate(deployment: Deployment, traffic: Traffic, replicas: int = 1, **limits: Any) -> Simulated:
    """Return what happens to requests at replicas of four sequences with limits of admission."""
    engine = msgspec.structs.replace(deployment.engine, request_overhead_s=0.0, max_sequences=4)
    limited = msgspec.structs.replace(
        deployment, engine=engine, replicas=replicas, admission=Admission(**limits), router="least-loaded"
    )
    return prepare(limited, traffic).simulate(traffic)


def crowd(count: int = 60) -> Traffic:
    """Return requests that come at the same time."""
    return generate_traffic(Lengths(256), Lengths(64), count=count, rate_per_s=math.inf)


def test_a_server_refuses_what_comes_while_too_many_wait(deployment: Deployment) -> None:
    """All come before the first iteration is scheduled, and only as many as the queue holds are answered."""
    done = simulate(deployment, crowd(), most_queued=10)
    assert len(done.refused) == 50 and len(done.outcomes[0].finish_s) == 10
    assert not np.isnan(done.outcomes[0].finish_s).any()
    assert not simulate(deployment, crowd(), most_queued=60).refused


def test_no_answer_began_to_be_computed_after_the_longest_wait(deployment: Deployment) -> None:
    plain = simulate(deployment, crowd(), queue_size=100)
    waited_s = plain.outcomes[0].admitted_s - plain.outcomes[0].arrival_s
    limit_s = float(np.median(waited_s))
    done = simulate(deployment, crowd(), waiting_timeout_s=limit_s)
    assert 0 < len(done.refused) < 60
    kept = done.outcomes[0].admitted_s - done.outcomes[0].arrival_s
    assert kept.max() <= limit_s + 0.05  # a request is on its way to the scheduler for some milliseconds
    assert len(done.refused) + len(kept) == 60


def test_a_gateway_lets_a_number_of_requests_through(deployment: Deployment) -> None:
    """Those in its queue wait for answers, and those that find it full are refused."""
    done = simulate(deployment, crowd(), replicas=2, most_at_once=6, queue_size=20)
    assert len(done.refused) == 60 - 6 - 20
    finish_s = np.concatenate([outcome.finish_s for outcome in done.outcomes])
    begin_s = np.concatenate([outcome.admitted_s for outcome in done.outcomes])
    under_way = [int(((begin_s <= time_s) & (time_s < finish_s)).sum()) for time_s in begin_s]
    assert max(under_way) == 6
    assert not simulate(deployment, crowd(), replicas=2, most_at_once=6, queue_size=54).refused
    hasty = simulate(deployment, crowd(), replicas=2, most_at_once=6, queue_size=54, queue_timeout_s=0.0)
    assert len(hasty.refused) == 54


def test_busy_replicas_get_nothing(deployment: Deployment) -> None:
    """A prompt has 256 tokens: with more than 500 to compute a replica is busy."""
    done = simulate(deployment, crowd(), replicas=2, busy_prompt_tokens=500)
    assert [len(outcome.finish_s) for outcome in done.outcomes] == [2, 2] and len(done.refused) == 56
    late = msgspec.structs.replace(crowd(3), arrival_s=np.array([0.0, 0.0, 1000.0]))
    assert not simulate(deployment, late, busy_blocks=0.0).outcomes[0].preemptions
    begun = msgspec.structs.replace(crowd(3), arrival_s=np.array([0.0, 0.3, 1000.0]))
    assert simulate(deployment, begun, busy_blocks=0.0).refused == [1]


@pytest.mark.thorough
def test_the_answer_counts_what_is_refused() -> None:
    answer = pl.serve("llama-3-8b", rate=30, admission="max-queued-requests=8", slo="ttft=500ms", **SERVER)
    share, goodput = (answer.figures[name].value for name in ("refused_requests", "goodput_requests_per_s"))
    assert share is not None and goodput is not None
    answered = answer.figures["requests_per_s"].value
    assert 0.4 < share < 0.8 and 0 < goodput <= answered < 30
    assert not answer.is_overloaded and str(answer.document().title).startswith("REFUSES ")
    assert answer.slo["missed"] == ["ttft p90, as too many requests are refused"]
    assert "--max-queued-requests 8" in answer.launch_command
    plain = pl.serve("llama-3-8b", rate=30, **SERVER)
    saturation = "saturation_requests_per_s"
    assert answer.figures[saturation] == plain.figures[saturation] and plain.is_overloaded
    assert answered == pytest.approx(plain.figures[saturation].value, rel=0.1)


def test_a_server_that_keeps_up_refuses_nothing() -> None:
    kept = pl.serve("llama-3-8b", rate=3, admission="max-queued-requests=50,waiting-timeout=10s", **SERVER)
    plain = pl.serve("llama-3-8b", rate=3, **SERVER)
    assert kept.figures["refused_requests"].value == 0 and "goodput_requests_per_s" not in kept.figures
    assert kept.latencies["ttft_s"]["p50"].value == pytest.approx(plain.latencies["ttft_s"]["p50"].value, rel=0.1)
    assert "SGLANG_REQ_WAITING_TIMEOUT=10" in kept.launch_command


def test_refused_requests_are_within_no_limits_of_their_class() -> None:
    workload = "classes:chat.share=1,chat.latency=1000s"
    admission = "max-concurrent-requests=8,queue-size=0"
    answer = pl.serve("llama-3-8b", rate=30, workload=workload, admission=admission, **SERVER)
    refused = answer.figures["refused_requests"].value
    assert answer.classes[0].within == pytest.approx(1 - refused) and refused > 0.5
    assert any("--max-concurrent-requests 8 --queue-size 0" in note for note in answer.notes)


def test_a_queue_needs_a_number_that_is_let_through() -> None:
    assert parse_admission({}) is None
    with pytest.raises(BadValue, match="queue-size` needs max-concurrent-requests=N"):
        parse_admission({"queue-size": 5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "vllm"}, "nothing is known of them under vllm"),
        ({"rate": None, "concurrency": 4}, "give `--rate` instead of `--concurrency`"),
        ({"scaling": "max=2,target=8"}, "leave `--scaling` out"),
        ({"prefill_pool": "replicas=1"}, "leave `--prefill-pool` out"),
        ({"workload": "conversation:turns=2"}, "leave sessions and users out"),
        ({"advise": "cost"}, "leave `--admission` out"),
    ],
)
def test_what_is_not_modelled_with_admission_is_said(options: dict[str, Any], message: str) -> None:
    asked = {"gpu": "h100-sxm", "engine": "sglang", "rate": 2, "num_requests": 20, "admission": "max-queued-requests=8"}
    with pytest.raises(BadValue, match=message):
        pl.serve("llama-3-8b", **{**asked, **options})


def test_a_run_of_few_answers_says_how_many_requests_settle() -> None:
    """The throughput of the first rounds is that of answers that began together."""
    question: dict[str, Any] = {**SERVER, "rate": 100, "admission": {"max_queued_requests": 20}}
    (note,) = [note for note in pl.serve("llama-3.1-8b", **question).notes if note.startswith("requests arrive for")]
    count = int(note.partition("--num-requests ")[2].partition("`")[0])
    longer = pl.serve("llama-3.1-8b", **{**question, "num_requests": count})
    assert not [note for note in longer.notes if note.startswith("requests arrive for")]


def test_throughput_with_refusals_is_what_was_answered_in_the_time_it_took() -> None:
    answer = pl.serve("llama-3-8b", rate=100, admission="max-queued-requests=20", **SERVER)
    answered = SERVER["num_requests"] * (1 - answer.figures["refused_requests"].value)
    assert answer.figures["requests_per_s"].value == pytest.approx(answered / answer.duration_s)


def test_a_short_run_that_refuses_nothing_says_that_the_rate_is_too_high() -> None:
    """120 requests at a server that lets 500 wait are all answered, though more come than it ever answers."""
    question = {**SERVER, "num_requests": 120, "rate": 60}
    answer = pl.serve("llama-3-8b", admission="max-queued-requests=500", **question)
    assert answer.figures["refused_requests"].value == 0 and answer.exceeds_saturation and not answer.is_overloaded
    saturation = answer.figures["saturation_requests_per_s"].value
    title = str(answer.document().title)
    assert title.startswith(
        f"REFUSES 0.0% of the requests, and in the long run what exceeds {saturation:.4g} requests/s"
    )
    kept_up = pl.serve("llama-3-8b", admission="max-queued-requests=500", **{**question, "rate": 1})
    assert not kept_up.exceeds_saturation and str(kept_up.document().title).startswith("llama-3-8b on ")


@pytest.mark.parametrize(
    ("traffic", "of_long_run"),
    [
        ({"rate": 4}, True),
        ({"rate": float("inf")}, False),
        ({"concurrency": 4}, False),
        ({"rate": 4, "admission": "max-queued-requests=500"}, False),
    ],
)
def test_the_rate_of_answers_says_which_time_it_is_of(traffic: dict[str, Any], of_long_run: bool) -> None:
    """The rate of the whole run is the answers over the duration, as `vllm bench serve` counts them."""
    answer = pl.serve("llama-3-8b", **{**SERVER, "num_requests": 60, **traffic})
    (table,) = [table for table in answer.document().tables if table.title == "Throughput, cache and cost"]
    values = {row["figure"]: row["value"] for row in table.rows}
    assert ("requests per second in the long run" in values) is of_long_run
    of_run = float(values["requests per second of the whole run"])
    assert of_run == pytest.approx(60 / answer.duration_s, rel=0.01)


def test_a_gateway_limits_the_saturation_rate_to_what_it_lets_through() -> None:
    """Of two replicas each has half, as if its engine ran no more."""
    question = {"network": "llama-3-8b", **SERVER, "replicas": 2, "rate": 5}
    limited = pl.serve(**{**question, "max_sequences": 256}, admission="max-concurrent-requests=64")
    narrow = pl.serve(**question)
    name = "saturation_requests_per_s"
    assert limited.figures[name].value == pytest.approx(narrow.figures[name].value)

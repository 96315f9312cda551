"""Classes of requests: shares, lengths, priorities and limits.

Tests: serving/classes.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.reporting.serving import serving_page
from paleo_lite.serving.classes import RequestClass, parse_classes, with_classes
from paleo_lite.serving.lengths import DATASETS, Lengths
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic

NETWORK = "llama-3.1-8b"


@pytest.mark.thorough
def test_waits_are_those_of_a_queue_with_priorities() -> None:
    """One request at a time is a server M/D/1 with priorities: Cobham (1954), mean waits R / ((1 - s') (1 - s)).

    R is the rate times the square of the service time over 2, s the load of the class and of those before it, s' that
    of those before it.
    """
    deployment = make_deployment(pl.Serve(NETWORK, gpu="h100-sxm", max_sequences=1))
    alone = generate_traffic(Lengths(200), Lengths(20), count=1, rate_per_s=1.0)
    service_s = float(prepare(deployment, alone).run(alone)[0].busy_s)
    load, share = 0.8, 0.4
    traffic = generate_traffic(Lengths(200), Lengths(20), count=20_000, rate_per_s=load / service_s)
    classes = [RequestClass("first", share=share, priority=0), RequestClass("last", share=1 - share, priority=5)]
    outcome = prepare(deployment, traffic).run(with_classes(traffic, classes, 0))[0]
    assert outcome.classes is not None
    waits_s = outcome.admitted_s - outcome.arrival_s - deployment.engine.request_overhead_s
    rest_s = load * service_s / 2
    expected_s = rest_s / (1 - load * share), rest_s / ((1 - load * share) * (1 - load))
    for number, wait_s in enumerate(expected_s):
        assert waits_s[outcome.classes == number].mean() == pytest.approx(wait_s, rel=0.15)


def test_equal_priorities_change_nothing() -> None:
    traffic = generate_traffic(Lengths(500), Lengths(100), count=300, rate_per_s=20.0)
    prepared = prepare(make_deployment(pl.Serve(NETWORK, gpu="h100-sxm", max_sequences=16)), traffic)
    classes = [RequestClass("a", priority=3), RequestClass("b", priority=3)]
    plain, divided = (prepared.run(one)[0] for one in (traffic, with_classes(traffic, classes, 0)))
    assert np.array_equal(plain.finish_s, divided.finish_s)


def test_lengths_of_a_data_set_are_those_of_its_prompts_and_answers() -> None:
    (chat,) = parse_classes("classes:chat.input=azure-code,chat.output=azure-conversation")
    assert chat.inputs is not None and chat.inputs.quantiles == DATASETS["azure-code"].input_quantiles
    assert chat.outputs is not None and chat.outputs.quantiles == DATASETS["azure-conversation"].output_quantiles


def test_the_least_urgent_request_is_given_up_first() -> None:
    """Where the cache is full, requests of the higher number lose their place, and are computed again."""
    traffic = generate_traffic(Lengths(200), Lengths(3000), count=120, rate_per_s=1000.0)
    classes = [RequestClass("urgent", priority=0), RequestClass("patient", priority=1)]
    deployment = make_deployment(pl.Serve(NETWORK, gpu="rtx4090", memory_fraction=0.85))
    outcome = prepare(deployment, traffic).run(with_classes(traffic, classes, 0))[0]
    assert outcome.preemptions and outcome.classes is not None
    urgent, patient = (outcome.finish_s[outcome.classes == number] for number in (0, 1))
    assert np.median(urgent) < np.median(patient)


def test_classes_have_their_shares_and_lengths() -> None:
    classes = parse_classes(
        "classes:chat.share=3,chat.priority=0,chat.input=100:20,chat.output=50,batch.share=1,batch.priority=1,"
        "batch.input=2k,batch.latency=60s"
    )
    assert classes[1].limits_s == (("latency", 60.0),)
    traffic = generate_traffic(Lengths(500), Lengths(70), count=4000, rate_per_s=5.0)
    divided = with_classes(traffic, classes, 1)
    assert divided.classes is not None and divided.priorities is not None
    chat = divided.classes == 0
    assert chat.mean() == pytest.approx(0.75, abs=0.03)
    assert divided.input_tokens[chat].mean() == pytest.approx(100, rel=0.05)
    assert (divided.input_tokens[~chat] == 2000).all() and (divided.output_tokens[chat] == 50).all()
    assert (divided.output_tokens[~chat] == 70).all() and (divided.priorities[~chat] == 1).all()


def test_answers_have_each_class_and_its_share_within_limits() -> None:
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 9, "max_sequences": 48, "num_requests": 400}
    classes = (
        "classes:chat.input=500,chat.output=200,chat.ttft=1s,chat.tpot=50ms,batch.share=0.4,batch.input=6000,"
        "batch.output=600,batch.latency=120s,batch.priority="
    )
    ranked, equal = (pl.serve(NETWORK, workload=f"{classes}{priority}", **asked) for priority in (1, 0))
    assert ranked.classes is not None and equal.classes is not None
    assert [one.requests for one in ranked.classes] == [one.requests for one in equal.classes]
    assert sum(one.requests for one in ranked.classes) == 400
    assert ranked.classes[0].ttft_p90_s < equal.classes[0].ttft_p90_s / 5
    assert ranked.classes[0].within > equal.classes[0].within
    assert ranked.classes[0].within_low <= ranked.classes[0].within <= ranked.classes[0].within_high
    # vLLM's option is stated where priorities differ (docs.vllm.ai, cli/serve).
    assert "--scheduling-policy priority" in str(ranked.launch_command)
    assert "--scheduling-policy" not in str(equal.launch_command)
    pools = pl.serve(
        NETWORK, gpu="h100-sxm", rate=1, num_requests=20, workload="classes:chat.share=1,batch.priority=1",
        prefill_pool="replicas=1", decode_pool="replicas=1",
    )  # fmt: skip
    assert pools.prefill_pool is not None  # where prompts wait
    assert "--scheduling-policy priority" in str(pools.prefill_pool.launch_command)
    table = next(one for one in serving_page(ranked).content if one.title == "Classes of requests")
    assert [row["name"] for row in table.rows] == ["chat", "batch"]


def test_classes_are_of_every_kind_of_deployment() -> None:
    classes = "classes:a.share=1,b.share=1,b.priority=1"
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 4, "num_requests": 60, "workload": classes}
    for options in (
        {"replicas": 2, "router": "least-loaded"},
        {"prefill_pool": "replicas=1", "decode_pool": "replicas=2"},
        {"scaling": "fail-at=5s,start=5s", "replicas": 2},
    ):
        result = pl.serve(NETWORK, **asked, **options)
        assert result.classes is not None and sum(one.requests for one in result.classes) == 60


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workload": "classes:chat"}, "has settings such as chat.share=0.7"),
        ({"workload": "classes:chat.colour=1"}, "has no setting 'colour'; it has share, priority, input"),
        ({"workload": "classes:chat.share=0"}, "share: must be a number > 0"),
        ({"workload": "classes:chat.ttft=5"}, "class 'chat' of `--workload`, ttft"),
        ({"workload": "classes:chat.priority=1", "engine": "tensorrt-llm"}, "nothing is known of priorities"),
    ],
)
def test_what_is_no_class_gets_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.serve(NETWORK, gpu="h100-sxm", rate=1, num_requests=20, **options)


def test_users_begin_as_without_classes() -> None:
    """One class of equal lengths, whatever those of all were, is the traffic without classes; others are drawn."""
    plain = generate_traffic(Lengths(1000), Lengths(500), count=200, concurrency=8)
    other = generate_traffic(Lengths(1024), Lengths(256), count=200, concurrency=8)
    only = [RequestClass("only", inputs=Lengths(1000), outputs=Lengths(500))]
    for base in (plain, other):
        divided = with_classes(base, only, 0)
        assert np.array_equal(divided.input_tokens, plain.input_tokens)
        assert np.array_equal(divided.output_tokens, plain.output_tokens)
        assert np.array_equal(divided.left_out, plain.left_out) and divided.left_out.sum() == 24
        assert divided.repeats_after == plain.repeats_after == 0
    mixed = with_classes(plain, [*only, RequestClass("short", outputs=Lengths(100))], 0)
    assert set(mixed.output_tokens) == {500, 100}
    assert mixed.left_out is None and mixed.repeats_after == 200

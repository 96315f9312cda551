"""Slots of `llama-server`: several sequences share what is read of the weights.

Tests: own_machines/batches.py, serving/local_timer.py.
"""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.api.local import predict_local
from paleo_lite.architectures import find_network
from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.machines import find_device
from paleo_lite.own_machines.batches import make_local_model, matrices_s, prompt_attention_s, slots_attention_s
from paleo_lite.own_machines.contents import read_contents
from paleo_lite.own_machines.question import LocalQuestion
from paleo_lite.serving.answers import Serving


def serve(users: int, network: str = "llama-3.1-8b", gpu: str = "rtx3090", **options: object) -> Serving:
    settings = {"weights": "q4_k_m", "input_tokens": 128, "output_tokens": 128, "num_requests": 2 * users + 4}
    return pl.serve(network, gpu=gpu, engine="llama.cpp", concurrency=users, **{**settings, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("network", "weights", "gpu"), [("llama-3-8b", "q4_k_m", "rtx3090"), ("gpt-oss-20b", "mxfp4_moe", "apple-m2-ultra")]
)
def test_one_slot_is_one_request(network: str, weights: str, gpu: str) -> None:
    """The same seconds as `predict` gives for a token, and for a prompt of one batch."""
    found = predict_local(network, gpu, LocalQuestion(weights=weights, context=1000, prompt_tokens=512))
    contents = read_contents(find_network(network), weights)
    model = make_local_model(contents, find_device(gpu), LOCAL_ENGINES["llama.cpp"])
    token_s = matrices_s(model, 1) + matrices_s(model, 1, "last") + slots_attention_s(model, 1, 1000)
    prompt_s = matrices_s(model, 512) + matrices_s(model, 1, "last") + prompt_attention_s(model, 512)
    assert token_s == pytest.approx(found.token_s, rel=0.003)
    assert prompt_s == pytest.approx(found.prompt_s, rel=0.03)


def test_slots_share_what_is_read() -> None:
    """Four slots take less than four times as long as one, and more than one."""
    contents = read_contents(find_network("llama-3-8b"), "q4_k_m")
    model = make_local_model(contents, find_device("rtx3090"), LOCAL_ENGINES["llama.cpp"])
    one, four, many = (matrices_s(model, tokens) for tokens in (1, 4, 64))
    assert one < four < 2 * one and four < many < 16 * four


def test_more_users_than_slots_wait() -> None:
    one, four, eight = serve(1), serve(4), serve(8)
    rates = [found.figures["output_tokens_per_s"].value for found in (one, four, eight)]
    assert rates[0] < rates[1] and rates[2] == pytest.approx(rates[1], rel=0.05)
    assert four.latencies["queue_s"]["p50"].value < 0.1 < eight.latencies["queue_s"]["p50"].value
    assert serve(8, max_sequences=8).figures["output_tokens_per_s"].value > 1.2 * rates[2]


def test_memory_is_that_of_predict() -> None:
    found, local = serve(1), predict_local("llama-3.1-8b", "rtx3090", LocalQuestion(weights="q4_k_m"))
    assert found.weights_bytes == local.weight_bytes and found.activations_bytes == local.buffer_bytes
    assert found.cache_bytes == pytest.approx(local.usable_bytes - local.weight_bytes - local.buffer_bytes)
    assert found.cache_tokens == pytest.approx(found.cache_bytes / 131072, rel=0.001)  # 2 x 32 x 8 x 128 x 2 bytes


def test_a_mac_serves() -> None:
    found = serve(2, gpu="apple-m4", network="llama-3.2-3b")
    assert found.is_forecast and found.notes[0].startswith("times of several slots were not compared")


def test_a_power_limit_slows_servers() -> None:
    """No faster, and below the limit, as `predict` says of one user."""
    servers = [serve(1, power_limit=limit) for limit in (None, "350W", "250W", "200W")]
    rates = [found.figures["output_tokens_per_s"].value for found in servers]
    assert rates[0] == rates[1] > rates[2] > rates[3]
    assert servers[2].figures["watts_per_gpu"].value <= 250 and servers[3].figures["watts_per_gpu"].value <= 200


@pytest.mark.parametrize(
    "options", [{"tensor": 2}, {"advise": "cost"}, {"precision": "fp8"}, {"speculation": "tokens=3"}]
)
def test_options_that_are_not_modelled_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadValue, match=r"is not modelled with `--engine llama\.cpp`"):
        serve(1, **options)


def test_a_network_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="leaves no memory for a KV cache on GeForce RTX 3090"):
        serve(1, network="llama-3.1-70b")

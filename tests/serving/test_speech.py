"""Servers of Whisper: requests are windows of sound, each of which the encoder reads once.

Tests: serving/speech.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.architectures.network import DECODER_ALONE
from paleo_lite.cli import main
from paleo_lite.errors import BadValue
from paleo_lite.serving.answers import Serving

WHISPER: dict[str, Any] = {"network": "whisper-large-v3", "gpu": "h100-sxm"}


def serve(**options: Any) -> Serving:
    answer = pl.serve(**{**WHISPER, **options})
    assert isinstance(answer, Serving)
    return answer


def test_a_request_takes_no_less_than_its_encoder_and_its_tokens() -> None:
    """Alone, a request waits for one prefill of `predict`, and then for a step of decoding per token but the first."""
    alone = serve(concurrency=1, num_requests=40)
    asked = {"precision": "bf16", "batch_size": 1}
    prompt = pl.predict(**WHISPER, phase="prefill", sequence_length=4, **asked)
    token = pl.predict(**WHISPER, phase="decode", context=54, **asked)
    ttft_s, tpot_s, latency_s = (alone.latencies[name]["p50"].value for name in ("ttft_s", "tpot_s", "latency_s"))
    assert ttft_s is not None and tpot_s is not None and latency_s is not None
    assert prompt.time_s < ttft_s < prompt.time_s + 0.02  # the way to the scheduler and back
    assert tpot_s == pytest.approx(token.time_s, rel=0.05)
    assert latency_s == pytest.approx(ttft_s + 99 * tpot_s, rel=0.02)


def test_windows_of_sound_have_lengths_of_their_own() -> None:
    usual, stated = serve(rate=5), serve(rate=5, input_tokens=4, output_tokens=100)
    assert usual.traffic == stated.traffic == "5 requests/s (poisson), 4 input and 100 output tokens"
    assert usual.latencies == stated.latencies
    assert any("window of sound" in note for note in usual.notes)
    assert not any("decoder alone" in note for note in usual.notes)
    text = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=5)
    assert isinstance(text, Serving) and text.traffic.endswith("1,024 input and 256 output tokens")


def test_the_cache_has_room_for_the_keys_of_every_encoder() -> None:
    """32 blocks keep keys and values of 1,280 numbers in 16 bits for 1,500 positions and each token."""
    answer = serve(rate=5)
    sequence_bytes = 32 * 2 * 2 * 1280 * (1500 + 104)
    assert answer.cache_tokens / 104 == pytest.approx(answer.cache_bytes / sequence_bytes, rel=0.01)


def test_saturation_is_what_many_users_reach() -> None:
    """No server has more sequences than its cache holds, whose encoders would run again after a preemption."""
    users = serve(concurrency=200, num_requests=3000)
    saturation = users.figures["saturation_requests_per_s"].value
    reached = users.figures["requests_per_s"].value
    assert saturation is not None and reached is not None
    assert reached == pytest.approx(saturation, rel=0.07)


def test_longer_answers_and_more_sound_take_longer() -> None:
    short, long = (serve(concurrency=16, output_tokens=tokens) for tokens in (50, 300))
    assert (short.latencies["latency_s"]["p50"].value or 0) < (long.latencies["latency_s"]["p50"].value or 0)
    low, high = (serve(rate=rate).latencies["ttft_s"]["p50"].value or 0 for rate in (1, 40))
    assert low < high


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_tokens": 600}, r"writes at most 448 tokens of a window of sound.*got 604"),
        ({"tensor": 2}, "`--tensor` is not modelled for networks that read sound"),
        ({"pipeline": 2}, "`--pipeline` is not modelled for networks that read sound"),
        ({"chunked_prefill": 512}, "`--chunked-prefill` is not modelled"),
        ({"prefix_hit_rate": 0.5}, "`--prefix-hit-rate` is not modelled"),
        ({"speculation": "tokens=3"}, "`--speculation` is not modelled"),
        ({"prefill_pool": "replicas=1"}, "`--prefill-pool` is not modelled"),
        ({"engine_settings": "adapters=4"}, "adapters=N of `--engine-settings` is not modelled"),
        ({"engine": "llama.cpp"}, "`--engine llama.cpp` is not modelled for networks that read sound: give vllm"),
        ({"gpu": "v100-sxm2-16gb"}, "a server of whisper-large-v3 needs the kernels of an engine"),
        ({"precision": "fp32"}, "a server of whisper-large-v3 needs the kernels of an engine"),
    ],
)
def test_what_is_not_modelled_gets_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        serve(**{"rate": 5, **options})


def test_advice_ranks_replicas_of_one_device_each() -> None:
    answer = serve(gpu=["h100-sxm", "l40s"], rate=100, advise="cost")
    assert answer.advice is not None and answer.advice.best is not None
    candidates = answer.advice.candidates
    assert {candidate.gpu for candidate in candidates} == {"h100-sxm", "l40s"}
    assert all(candidate.division.devices == 1 and candidate.prefill is None for candidate in candidates)


def test_the_command_line_answers_the_same() -> None:
    words = ["serve", "whisper-large-v3", "--gpu", "h100-sxm", "--rate", "5", "--format", "json"]
    printed = json.loads(CliRunner().invoke(main, words).output)
    assert printed["latencies"]["ttft_s"]["p50"] == serve(rate=5).to_dict()["latencies"]["ttft_s"]["p50"]
    assert printed["launch_command"].startswith("vllm serve openai/whisper-large-v3 ")


def test_an_iteration_computes_the_windows_that_its_tokens_have_positions_for() -> None:
    """Of 20 windows at once 5 are computed in an iteration of 8,192 tokens, one in one of 1,600 tokens."""
    first_tokens = {
        limit: serve(rate="inf", num_requests=20, output_tokens=1, max_batched_tokens=limit).latencies["ttft_s"]
        for limit in (1600, 8192)
    }
    means = {limit: figure["mean"].value or 0.0 for limit, figure in first_tokens.items()}
    last = {limit: figure["p99"].value or 0.0 for limit, figure in first_tokens.items()}
    # One after the other the mean is half of the last; in groups of five the first of each waits for the others.
    assert means[1600] / last[1600] == pytest.approx(21 / 40, abs=0.06)
    assert means[8192] / last[8192] == pytest.approx(5 / 8, abs=0.06)


def test_decoding_has_one_precision_in_predict_and_serve_and_says_what_its_memory_holds() -> None:
    """Whisper large v3 has 1.54 G parameters (its card), of which its engine holds all: 3.1 GB in bf16."""
    under_engine = pl.predict("whisper-large-v3", gpu="h100-sxm", phase="decode")
    layers = pl.predict("whisper-large-v3", gpu="h100-sxm", phase="decode", execution="eager")
    assert under_engine.precision == layers.precision == "bf16"
    assert under_engine.memory.memory.parameters_bytes == pytest.approx(2 * 1.54e9, rel=0.01)
    assert DECODER_ALONE in layers.notes and DECODER_ALONE not in under_engine.notes
    assert layers.memory.memory.parameters_bytes < 0.6 * under_engine.memory.memory.parameters_bytes

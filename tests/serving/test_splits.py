"""Advice that splits: pairs of pools are estimated, matched and simulated, and what is recommended holds.

Tests: serving/splits.py.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.answers import Serving
from paleo_lite.serving.deployment import why_apart
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import Traffic, generate_traffic
from paleo_lite.serving.saturation import saturate
from paleo_lite.serving.splits import PoolEstimate, _fill

yaml = pytest.importorskip("yaml")

LONG: dict[str, Any] = {
    "gpu": "h100-sxm", "tensor": 1, "weights": "fp8", "input_tokens": 8000, "output_tokens": 200, "num_requests": 300,
}  # fmt: skip
ASKED: dict[str, Any] = {**LONG, "rate": 6, "slo": "tpot=8ms,ttft=2s", "advise": "cost"}


@pytest.fixture(scope="module")
def advised() -> Serving:
    result = pl.serve("llama-3.1-8b", **ASKED)
    assert isinstance(result, Serving)
    return result


@pytest.mark.thorough
def test_long_prompts_are_computed_apart(advised: Serving) -> None:
    """A prompt of 8,000 tokens takes longer than 20 tokens may, so that one server does both only at few sequences."""
    assert advised.advice is not None and advised.prefill_pool is not None
    best = advised.advice.best
    assert best is not None and best.prefill is not None
    assert advised.devices == best.devices == best.replicas * best.tensor + best.prefill.replicas * best.prefill.tensor
    single = [one for one in advised.advice.candidates if one.prefill is None and one.meets_objectives]
    assert single and best.usd_per_h < min(one.usd_per_h for one in single)
    assert advised.slo is not None and advised.slo["missed"] == []
    assert best.usd_per_h == pytest.approx(best.price_usd_per_h * best.devices)
    assert 0.9 * best.low_of_all_per_s >= 6  # a tenth of the lower end of saturation is free


def test_the_recommended_command_gives_the_recommended_latencies(advised: Serving) -> None:
    assert advised.advice is not None and advised.advice.command is not None
    words = shlex.split(advised.advice.command)
    assert words[:3] == ["paleo-lite", "serve", "llama-3.1-8b"] and "--prefill-pool" in words
    answer = json.loads(CliRunner().invoke(main, [*words[1:], "--format", "json"]).stdout)
    assert answer["devices"] == advised.devices and answer["weights"] == "fp8"
    for name in ("ttft_s", "tpot_s"):
        expected = advised.latencies[name]["p90"].value
        assert answer["latencies"][name]["p90"]["value"] == pytest.approx(expected, rel=1e-9)


def test_the_page_has_a_command_for_each_pool(advised: Serving) -> None:
    document = advised.document()
    commands = dict(document.commands)
    assert list(commands) == [
        "Ask for the recommended deployment alone",
        f"Launch under vllm, for each of {advised.prefill_workers} replicas of the prefill pool",
        f"Launch under vllm, for each of {advised.replicas} replicas of the decode pool",
    ]
    assert all("NixlConnector" in command for purpose, command in commands.items() if "pool" in purpose)
    assert "prefill pool" in [column.heading for column in document.tables[0].columns]
    assert " for prompts, " in dict(document.facts)["cheapest"]


def test_the_files_start_both_pools(tmp_path: Path, advised: Serving) -> None:
    assert advised.advice is not None and advised.advice.best is not None and advised.advice.best.prefill is not None
    path = tmp_path / "best.dynamo.yaml"
    pl.report(pl.Serve("llama-3.1-8b", **ASKED), path)
    services = yaml.safe_load(path.read_text())["spec"]["services"]
    assert services["prefill"]["replicas"] == advised.advice.best.prefill.replicas
    assert services["decode"]["replicas"] == advised.advice.best.replicas
    decode = services["decode"]["extraPodSpec"]["mainContainer"]["args"]
    assert decode[decode.index("--max-num-seqs") + 1] == str(advised.advice.best.batch_limit)
    assert decode[decode.index("--quantization") + 1] == "fp8"


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_limit_the_devices_of_both_pools(workers: int) -> None:
    result = pl.serve("llama-3.1-8b", **LONG, slo="tpot=9ms", advise="cost", workers=workers)
    assert result.advice is not None and result.advice.best is not None and result.devices <= workers
    assert all(one.devices <= workers for one in result.advice.candidates if one.meets_objectives)
    split = [one for one in result.advice.candidates if one.prefill is not None]
    assert split and all(one.devices <= workers for one in split)


def test_pools_have_devices_of_their_own() -> None:
    """Prompts are computed where arithmetic is cheap; both pools have the same formats."""
    result = pl.serve(
        "llama-3.1-8b", **{**LONG, "gpu": "h100-sxm,l40s"}, concurrency=40, slo="tpot=9ms,ttft=4s", advise="cost"
    )
    assert result.advice is not None
    split = [one for one in result.advice.candidates if one.prefill is not None]
    assert {(one.prefill.gpu, one.gpu) for one in split if one.prefill} >= {("l40s", "h100-sxm")}
    for one in split:
        assert one.prefill is not None and one.replicas * one.batch_limit >= 40
        prices = one.price_usd_per_h * one.replicas + one.prefill.price_usd_per_h * one.prefill.replicas
        assert one.usd_per_h == pytest.approx(prices)
    prices = dict(result.document().facts)["prices"]
    assert prices.startswith("of AWS: ") and "h100-sxm 6.88" in prices and "l40s 1.861" in prices


def test_advice_has_no_pools_of_two_vendors() -> None:
    """RunPod lists the H200 NVL and Vultr the MI300X (hardware/)."""
    advice = pl.serve("llama-3.1-8b", **{**ASKED, "gpu": "h200-nvl,mi300x", "num_requests": 200}).advice
    assert {one.price_cloud for one in advice.candidates} == {"RunPod", "Vultr"}
    split = [one for one in advice.candidates if one.prefill is not None]
    assert split and all(one.prefill.gpu == one.gpu for one in split if one.prefill)


def test_pools_at_the_prices_of_two_clouds_are_no_candidates() -> None:
    asked = pl.Serve("llama-3.1-8b", gpu="l40s", rate=1)
    deployment = make_deployment(asked)
    assert deployment.listing is not None and deployment.listing.cloud
    elsewhere = msgspec.structs.replace(deployment.listing, cloud="elsewhere")
    other = msgspec.structs.replace(deployment, listing=elsewhere)
    assert not why_apart(deployment, deployment)
    assert why_apart(deployment, other).startswith(f"the prices are those of two clouds, {deployment.listing.cloud}")
    assert not why_apart(deployment, msgspec.structs.replace(other, listing=None))


def test_named_pools_of_two_vendors_are_answered_with_a_note() -> None:
    answer = pl.serve("llama-3.1-8b", gpu="mi300x", rate=1, prefill_pool="gpu=h200-nvl", num_requests=100)
    assert answer.time_s > 0
    assert any("from devices of NVIDIA to those of AMD" in note for note in answer.notes)


def test_engines_that_hand_nothing_over_are_not_split() -> None:
    result = pl.serve("llama-3.1-8b", **LONG, rate=1, advise="cost", engine="vllm-0.7")
    assert result.advice is not None and result.advice.splits_estimated == 0
    assert all(one.prefill is None for one in result.advice.candidates)


@pytest.mark.parametrize(
    ("engine", "pools", "lengths"),
    [
        ("vllm", {"prefill_pool": "replicas=3", "decode_pool": "replicas=1,max-sequences=64"}, (4000, 500)),
        ("vllm", {"prefill_pool": "replicas=1", "decode_pool": "replicas=4,max-sequences=64"}, (1000, 300)),
        ("sglang", {"prefill_pool": "replicas=2", "decode_pool": "replicas=2,max-sequences=128"}, (2000, 300)),
    ],
)
def test_the_estimate_of_a_pair_is_what_its_simulation_sustains(
    engine: str, pools: dict[str, str], lengths: tuple[int, int]
) -> None:
    """The first and third pair are limited by decoding, the second by prompts."""
    prepared = prepare(
        make_deployment(pl.Serve("llama-3-8b", gpu="h100-sxm", engine=engine, precision="fp8", **pools)),
        traffic := generate_traffic(*map(Lengths, lengths), count=600, concurrency=200),
    )
    assert prepared.prefill is not None
    prompts = PoolEstimate(prepared.prefill.deployment, prepared.prefill, traffic)
    decoding = PoolEstimate(prepared.deployment, prepared, traffic)
    sequences = prepared.engine.max_sequences
    rates = (
        prepared.prefill.deployment.replicas * prompts.held_prompts_per_s(prepared.transfer.seconds(lengths[0]))[0],
        prepared.deployment.replicas * sequences / (lengths[1] * decoding.token_s(sequences, "expected")),
    )
    assert saturate(prepared, traffic)[0] == pytest.approx(min(rates), rel=0.06)


def test_prompts_are_kept_until_they_are_read() -> None:
    """A cache of 4,816 tokens holds one prompt of 3,000: the next one begins when it has been handed over."""
    asked: dict[str, Any] = {
        "gpu": "h200-sxm", "weights": "fp8", "prefill_pool": "gpu=h100-sxm", "decode_pool": "tensor=4",
    }  # fmt: skip
    traffic = generate_traffic(Lengths(3000), Lengths(20), count=60, rate_per_s=50.0)
    prepared = prepare(make_deployment(pl.Serve("llama-3.3-70b", **asked)), traffic)
    assert prepared.prefill is not None and 3000 < prepared.prefill.room.tokens < 6000
    simulated = prepared.simulate(traffic)
    prompts = simulated.prefill[0]
    order = np.argsort(prompts.finish_s)
    prompt_s = np.diff(prompts.finish_s[order]) - prepared.transfer.seconds(3000)
    alone_s = float(prompts.finish_s.min() - prompts.admitted_s.min())
    # Each begins when the other replica has read the one before, in an iteration that it may wait for.
    assert (prompt_s > 0.98 * alone_s).all() and np.median(prompt_s) < alone_s + 0.05
    estimated = PoolEstimate(prepared.prefill.deployment, prepared.prefill, traffic)
    rate = estimated.held_prompts_per_s(prepared.transfer.seconds(3000))[0]
    assert len(traffic) / float(prompts.finish_s.max()) == pytest.approx(rate, rel=0.1)
    assert rate < 0.8 * estimated.prompts_per_s[0]


def test_saturation_is_of_whole_answers() -> None:
    """Answers of users who drift apart are shorter in the first round only: others have 500 tokens."""
    traffic = generate_traffic(Lengths(100), Lengths(500), count=80, concurrency=40)
    prepared = prepare(make_deployment(pl.Serve("llama-3-8b", gpu="h100-sxm", max_sequences=32)), traffic)
    requests_per_s, tokens_per_s = saturate(prepared, traffic)
    assert tokens_per_s / requests_per_s == pytest.approx(500)
    assert traffic.output_tokens[:40].max() < 500 and set(traffic.counted.tolist()) == set(range(40, 80))
    alone = Traffic(traffic.arrival_s[:2], traffic.input_tokens[:2], traffic.output_tokens[:2])
    assert alone.counted.tolist() == [0, 1]


def test_replicas_of_both_pools_are_matched() -> None:
    """Prompts at 2/s on one device, decoding at 1/s on two: one replica that computes prompts feeds two."""
    assert _fill(16, 1, 2, 2.0, 1.0, is_given=False) == (1, 2)
    assert _fill(10, 1, 2, 2.0, 1.0, is_given=True) == (2, 4)
    assert _fill(2, 1, 2, 2.0, 1.0, is_given=True) == (0, 0)
    assert _fill(4, 2, 2, 1.0, 9.0, is_given=True) == (1, 1)

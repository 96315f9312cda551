"""Split pools: whom requests wait for, what is transferred, and what is refused.

Tests: serving/fleet.py, serving/prefill_pool.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.engines.records import SERVERS
from paleo_lite.errors import PaleoError
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.questions.serve_options import Serve
from paleo_lite.reporting.serving import serving_page
from paleo_lite.serving import pools
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.fleet import Fleet
from paleo_lite.serving.iteration_times import ScheduledTokens
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.pools import run_pool
from paleo_lite.serving.prepared import LEVELS, prepare
from paleo_lite.serving.requests import generate_traffic

COMMON: dict[str, Any] = {"gpu": "h100-sxm", "input_tokens": 1000, "output_tokens": 50, "num_requests": 40}


@pytest.fixture
def split(deployment: Deployment) -> Deployment:
    """A prefill replica and two that decode."""
    return msgspec.structs.replace(deployment, replicas=2, prefill=deployment)


@pytest.mark.parametrize("loop", [{"rate_per_s": 10.0}, {"concurrency": 8}])
def test_every_request_is_answered_in_order(split: Deployment, loop: dict[str, Any]) -> None:
    traffic = generate_traffic(Lengths(1000), Lengths(100), count=100, **loop)
    simulated = prepare(split, traffic).simulate(traffic)
    assert len(simulated.outcomes) == 2 and len(simulated.prefill) == 1
    assert sum(len(outcome.finish_s) for outcome in simulated.outcomes) == 100
    for outcome in simulated.outcomes:
        assert (outcome.arrival_s <= outcome.admitted_s).all()
        assert (outcome.admitted_s < outcome.first_token_s).all()
        assert (outcome.first_token_s <= outcome.finish_s).all()


@pytest.mark.parametrize("loop", [{"rate_per_s": 20.0}, {"concurrency": 8}])
def test_iterations_that_are_taken_at_once_end_where_a_request_may_come(
    split: Deployment, loop: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a replica that decodes alone are taken in one step: the answers are those of one at a time."""
    traffic = generate_traffic(Lengths(1000), Lengths(100), count=60, **loop)
    prepared = prepare(split, traffic)
    monkeypatch.setattr(pools, "keep", lambda traffic, times, conditions, run: run())
    at_once = prepared.simulate(traffic)
    monkeypatch.setattr(Fleet, "_limit_s", lambda *_: 0.0)
    singly = prepared.simulate(traffic)
    for one, other in zip(at_once.outcomes, singly.outcomes, strict=True):
        for name in ("admitted_s", "first_token_s", "finish_s"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4), name


def test_a_closed_loop_never_has_more_requests_than_users(split: Deployment) -> None:
    traffic = generate_traffic(Lengths(500), Lengths(80), count=60, concurrency=6)
    outcomes = prepare(split, traffic).run(traffic)
    sent = np.concatenate([outcome.arrival_s for outcome in outcomes])
    done = np.concatenate([outcome.finish_s for outcome in outcomes])
    at_work = [int(((sent <= time) & (done > time)).sum()) for time in sent]
    assert max(at_work) == 6


def test_a_first_token_waits_for_a_place_in_the_decode_pool() -> None:
    """Two users of one place: each waits for an answer of the other."""
    answer = pl.serve("llama-3-8b", **COMMON, concurrency=2, prefill_pool={}, decode_pool={"max_sequences": 1})
    latencies = answer.latencies
    decoding_s = (latencies["tpot_s"]["p50"].value or 0.0) * 49
    assert latencies["ttft_s"]["p50"].value == pytest.approx(decoding_s, rel=0.25)


@pytest.mark.parametrize(("engine", "waits"), [("sglang", True), ("tensorrt-llm", False)])
def test_sglang_computes_no_prompt_without_a_place_in_the_decode_pool(
    split: Deployment, engine: str, waits: bool
) -> None:
    """One place: the next prompt is computed after the answer before it, not beside it."""
    server = SERVERS[engine]
    one_place = msgspec.structs.replace(server, max_sequences=1)
    prefill = msgspec.structs.replace(split, replicas=1, prefill=None, engine=server)
    pools = msgspec.structs.replace(split, replicas=1, engine=one_place, prefill=prefill)
    traffic = generate_traffic(Lengths(1000), Lengths(50), count=4, rate_per_s=float("inf"))
    outcome = prepare(pools, traffic).run(traffic)[0]
    order = np.argsort(outcome.finish_s)
    computed_after_the_answer_before = outcome.admitted_s[order][1:] >= outcome.finish_s[order][:-1]
    assert computed_after_the_answer_before.all() == waits


def test_ranks_wait_for_the_one_with_most_prompts() -> None:
    """By chance prompts are not spread evenly: fewer of them are computed in the same time."""
    question: dict[str, Any] = {**COMMON, "gpu": "b200", "engine": "sglang", "precision": "fp8", "concurrency": 64}
    pools: dict[str, Any] = {"prefill_pool": "tensor=8,attention-data-parallel=8", "decode_pool": "tensor=8"}
    deployment = make_deployment(Serve("deepseek-r1", **question, **pools))
    traffic = generate_traffic(Lengths(1000), Lengths(2), count=64, rate_per_s=float("inf"))
    prepared = prepare(deployment, traffic)
    assert prepared.prefill is not None
    pool = prepared.prefill.pool("expected")
    even_s, by_chance_s = (
        run_pool(msgspec.structs.replace(traffic, output_tokens=traffic.output_tokens // 2), one).outcomes[0].busy_s
        for one in (pool, pool.that_prefills())
    )
    assert 1.1 * even_s < by_chance_s < 3 * even_s


def test_decoding_is_spared_the_prompts_of_others() -> None:
    """A split lowers the time per token, and with half the devices for prompts raises that to the first token."""
    together = pl.serve("llama-3-8b", **COMMON, rate=20, replicas=2)
    split = pl.serve("llama-3-8b", **COMMON, rate=20, prefill_pool="replicas=1")
    assert split.devices == together.devices == 2
    for name, is_lower in (("tpot_s", True), ("ttft_s", False)):
        before, after = (one.latencies[name]["mean"].value or 0.0 for one in (together, split))
        assert (after < before) is is_lower


@pytest.mark.thorough
def test_pools_differ_in_device_engine_and_number() -> None:
    answer = pl.serve(
        "llama-3-8b", **COMMON, rate=2, prefill_pool="gpu=b200,engine=sglang,tensor=2", decode_pool="replicas=3"
    )
    pool = answer.prefill_pool
    assert pool is not None and (pool.gpu, pool.engine, pool.tensor, pool.replicas) == ("b200", "sglang", 2, 1)
    assert (answer.gpu, answer.engine, answer.replicas, answer.devices) == ("h100-sxm", "vllm", 3, 5)
    assert 0 < pool.utilisation < 1
    assert [
        note
        for note in answer.notes
        if note.startswith("no connector is known that brings keys and values from sglang")
    ]


@pytest.mark.thorough
def test_devices_that_hold_the_same_heads_all_send_them() -> None:
    """Llama 3 8B has 8 heads of keys and values: 16 devices hold each of them twice, so that none sends less."""
    seconds = []
    for tensor in (4, 8, 16):
        asked = COMMON | {"gpu": "gb200", "input_tokens": 50_000}  # 72 devices on one switch
        answer = pl.serve("llama-3.1-8b", **asked, rate=1, prefill_pool=f"tensor={tensor}")
        assert answer.prefill_pool is not None
        seconds.append(answer.prefill_pool.transfer_bytes_s)
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=0.02)
    assert seconds[2] == pytest.approx(seconds[1], rel=0.02)


PUBLISHED_TTFT_S = {
    1024: 67.29e-3,
    2048: 85.31e-3,
    4096: 124.42e-3,
    8192: 212.05e-3,
    16384: 387.52e-3,
    32768: 749.62e-3,
}
"""Mooncake's page on vLLM's connector: Qwen3-8B, one user, two servers of eight H800 with a ConnectX-7 each."""


@pytest.mark.spread(2)
@pytest.mark.parametrize("tokens", PUBLISHED_TTFT_S)
def test_first_tokens_of_two_servers_are_those_that_were_measured(tokens: int) -> None:
    """An H800 computes as an H100 does. Only the prompt of 128 tokens of this table was used for a constant."""
    answer = pl.serve(
        "qwen3-8b", gpu="h100-sxm", concurrency=1, input_tokens=tokens, output_tokens=128, num_requests=10,
        prefill_pool="tensor=8", decode_pool="tensor=8",
    )  # fmt: skip
    assert answer.latencies["ttft_s"]["p50"].value == pytest.approx(PUBLISHED_TTFT_S[tokens], rel=0.12)


def test_pools_that_are_asked_again_are_not_simulated_again(split: Deployment) -> None:
    traffic = generate_traffic(Lengths(1000), Lengths(10), count=8, concurrency=2)
    prepared = prepare(split, traffic)
    for level in LEVELS:
        assert prepared.simulate(traffic, level) is prepared.simulate(traffic, level)
    assert prepared.simulate(traffic, "low") is not prepared.simulate(traffic, "high")


def test_what_a_transfer_consists_of() -> None:
    """NixlConnector reads 4,900 tokens of Qwen3-32B in 105 ms, of which 29 ms are bytes (vLLM, issue 50913)."""
    asked = {"weights": "fp8", "input_tokens": 4896, "output_tokens": 64, "rate": 1, "num_requests": 20}
    pools = {"prefill_pool": "tensor=2", "decode_pool": "tensor=2"}
    pool = pl.serve("qwen3-32b", gpu="l20", **asked, **pools).prefill_pool
    assert pool is not None
    assert pool.transfer_blocks_s == pytest.approx(105e-3 - 29e-3, rel=0.05)
    parts_s = pool.transfer_bytes_s + pool.transfer_blocks_s + pool.transfer_messages_s + pool.transfer_iterations_s
    assert pool.transfer_s == pytest.approx(parts_s)


@pytest.mark.thorough
def test_engines_that_look_for_requests_once_per_iteration_take_as_many_of_them() -> None:
    """A network of a hundredth of the size has shorter iterations, and its prompts wait for less."""
    pools = {"prefill_pool": "tensor=8", "decode_pool": "tensor=8"}
    waits_s = {}
    for network in ("llama-3.2-1b", "llama-3.1-70b"):
        answer = pl.serve(network, gpu="h200-sxm", engine="sglang", rate=2, num_requests=40, **COMMON_LENGTHS, **pools)
        assert answer.prefill_pool is not None
        waits_s[network] = answer.prefill_pool.transfer_iterations_s
        assert waits_s[network] == pytest.approx(
            SERVERS["sglang"].handover.iterations * answer.latencies["tpot_s"]["p50"].value, rel=0.3
        )
    assert 2 * waits_s["llama-3.2-1b"] < waits_s["llama-3.1-70b"]


@pytest.mark.parametrize(
    ("tensor", "link"), [(4, "nvlink4-x18"), (8, "8x infiniband-ndr")]
)  # a DGX H100 has eight devices, and eight ports of InfiniBand NDR
def test_pools_of_two_computers_send_over_their_network(tensor: int, link: str) -> None:
    pools = {"prefill_pool": f"tensor={tensor}", "decode_pool": f"tensor={tensor}"}
    pool = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=1, num_requests=20, **COMMON_LENGTHS, **pools).prefill_pool
    assert pool is not None and pool.transfer_link == link
    assert pool.transferred_bytes == pytest.approx(131_072 * 1000)
    port_bytes_per_s = {4: 450e9, 8: 50e9}[tensor]
    assert 1 < pool.transfer_bytes_s / (pool.transferred_bytes / tensor / port_bytes_per_s) < 2.5


COMMON_LENGTHS = {"input_tokens": 1000, "output_tokens": 64}


def test_bytes_of_a_transfer(split: Deployment) -> None:
    """Llama 3 8B: 32 layers x 2 x 8 heads x 128 x 2 bytes are 131,072 bytes per token."""
    traffic = generate_traffic(Lengths(1000), Lengths(10), count=4, concurrency=2)
    assert prepare(split, traffic).transfer.token_bytes == 131_072


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"prefill_pool": "replicas=0"}, "`--prefill-pool`, replicas"),
        ({"prefill_pool": "colour=red"}, "colour"),
        ({"prefill_pool": "replicas=1", "workers": 4}, "`--workers` is not for pools"),
        ({"prefill_pool": "replicas=1", "advise": "cost"}, "leave `--prefill-pool` out"),
        ({"decode_pool": "replicas=1"}, "needs `--prefill-pool`"),
        # `compute_nixl_compatibility_hash` of vLLM has the format of the cache, SGLang says "KV cache dtype mismatch".
        ({"prefill_pool": "kv-cache=fp8"}, r"must have one format, .* \(prefill fp8, decode bf16\): give `--kv-cache`"),
        ({"prefill_pool": "precision=fp16"}, r"\(prefill fp16, decode bf16\)"),
        ({"prefill_pool": "zzz=red"}, "valid names: attention-data-parallel, .*, kv-cache, .*, replicas, .*, weights"),
        (
            {"prefill_pool": "replicas=1", "link": "nvlink4-x18"},
            "`--prefill-pool`; between pools, keys and values take the link of the devices in one computer",
        ),
        ({"prefill_pool": "tensor=2", "decode_pool": "link=nvlink4-x18"}, "tensor=N of `--decode-pool`; between pools"),
    ],
)
def test_nonsense_gets_a_sentence(question: dict[str, Any], message: str) -> None:
    with pytest.raises(PaleoError, match=message):
        pl.serve("llama-3-8b", **COMMON, rate=1, **question)


def test_pools_of_one_format_send_its_bytes() -> None:
    """Llama 3 8B: 32 layers x 2 x 8 heads x 128 are 65,536 bytes per token in fp8."""
    pool = pl.serve("llama-3-8b", **COMMON, rate=1, kv_cache="fp8", prefill_pool="replicas=1").prefill_pool
    assert pool is not None and pool.kv_cache == "fp8" and pool.transferred_bytes == 65_536 * 1000


def test_reads_of_blocks_are_those_of_a_known_connector() -> None:
    """NixlConnector joins servers of vLLM, and reads 32 layers x 2 tensors of 63 blocks of a prompt of 1,000 tokens."""
    reads_s = {}
    for engine in ("vllm", "sglang"):
        answer = pl.serve("llama-3-8b", **COMMON, rate=1, prefill_pool=f"engine={engine}")
        assert answer.prefill_pool is not None
        reads_s[engine] = answer.prefill_pool.transfer_blocks_s
        assert any(note.endswith("without its reads of blocks") for note in answer.notes) is (engine != "vllm")
    assert reads_s["vllm"] == pytest.approx(32 * 2 * 63 * 1.9e-6, rel=0.01) and not reads_s["sglang"]


def test_a_link_joins_the_devices_of_the_pools_that_have_several() -> None:
    """A slower link delays the prompts of two devices, and not the answers of one."""
    question: dict[str, Any] = {**COMMON, "rate": 1, "prefill_pool": "tensor=2", "decode_pool": "replicas=1"}
    fast, slow = (pl.serve("llama-3-8b", **question, link=link) for link in ("nvlink4-x18", "pcie3-x16"))
    ttft_s, tpot_s = ([one.latencies[name]["p50"].value for one in (fast, slow)] for name in ("ttft_s", "tpot_s"))
    assert ttft_s[1] > 1.2 * ttft_s[0] and tpot_s[1] == pytest.approx(tpot_s[0])


def test_what_arrives_with_its_keys_decodes_as_all_others() -> None:
    """Three requests that arrive together take an iteration of three sequences each time, none with prompts.

    Engines run it as a captured graph: a request that a decode server gets has one new token, as those that decode.
    """
    question = Serve("gpt-oss-20b", gpu="h100-sxm", prefill_pool="replicas=1", rate=1)
    traffic = generate_traffic(Lengths(1000), Lengths(3), count=3, rate_per_s=float("inf"))
    prepared = prepare(make_deployment(question), traffic)
    pool = prepared.pool("expected").that_decodes()
    outcome = run_pool(traffic, pool._replace(tiers=None)).outcomes[0]
    host_s = prepared.engine.overhead_s + 3 * prepared.engine.sequence_overhead_s
    first_s = host_s + prepared.tables.iteration_s(ScheduledTokens(3, 3000.0))
    with_prompts_s = host_s + prepared.tables.iteration_s(ScheduledTokens(0, 0.0, [(999, 1000)] * 3, 3))
    assert outcome.first_token_s == pytest.approx(first_s, rel=1e-6)
    assert with_prompts_s > 1.1 * first_s


def test_pools_of_two_kinds_of_devices_are_named_with_their_memory_and_price() -> None:
    """An H100 has 85 GB, of which 72.7 are weights in fp8; four H200 have a quarter of them each."""
    result = pl.serve(
        "llama-3.3-70b", gpu="h200-sxm", weights="fp8", rate=1, num_requests=20,
        prefill_pool="replicas=4,gpu=h100-sxm", decode_pool="replicas=1,tensor=4",
    )  # fmt: skip
    pool = result.prefill_pool
    assert pool is not None and pool.price_usd_per_h is not None and result.price_usd_per_h is not None
    assert pool.weights_bytes == pytest.approx(4 * result.weights_bytes, rel=0.05)
    assert pool.cache_bytes < result.cache_bytes / 20
    assert 4 * pool.price_usd_per_h < 8 * result.price_usd_per_h
    page = serving_page(result)
    assert "on 4 x H100 SXM5 80GB for prompts and 4 x H200 SXM 141GB" in page.title
    facts = dict(page.facts)
    assert f"for {pool.cache_tokens:,} tokens" in facts["prefill memory"]
    assert f"for {result.cache_tokens:,} tokens" in facts["decode memory"]
    costs = next(note for note in result.notes if note.startswith("costs are at"))
    assert "p5en.48xlarge" in costs and "p5.48xlarge" in costs

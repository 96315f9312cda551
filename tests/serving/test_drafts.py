"""Heads that draft tokens: what is published of them, their time, and advice with them."""

from __future__ import annotations

from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.candidates import published_drafts
from paleo_lite.serving.drafts import HEADS, PUBLISHED, acceptance_of
from paleo_lite.serving.iteration_times import ScheduledTokens
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.options import Speculation
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic

R1: dict[str, Any] = {
    "gpu": "b200", "tensor": 8, "weights": "nvfp4", "kv_cache": "fp8", "engine": "tensorrt-llm",
    "input_tokens": 1024, "output_tokens": 2048, "concurrency": 1, "num_requests": 8,
}  # fmt: skip


def test_acceptance_gives_the_published_tokens_per_iteration() -> None:
    """Leviathan et al. 2023, equation 1: of a = 0.8 and 4 tokens 3.3616."""
    assert acceptance_of(3.3616, 4) == pytest.approx(0.8, abs=1e-6)
    for network, drafts in PUBLISHED.items():
        find_network(network)
        choices = published_drafts(network)
        assert len(choices) == sum(len(draft.tokens) for draft in drafts)
        for draft in drafts:
            assert draft.heads in HEADS and draft.source
            for tokens, yielded in draft.tokens.items():
                assert 1 < yielded < tokens + 1
                choice = next(one for one in choices if (one.heads, one.tokens) == (draft.heads, tokens))
                assert choice.speculation.tokens_per_iteration == pytest.approx(yielded, abs=2e-3)


@pytest.mark.thorough
def test_three_tokens_of_deepseek_r1_are_as_fast_as_published() -> None:
    """2.16 times as fast on 8 B200 at batch size 1 (TensorRT-LLM, blog 2 on DeepSeek-R1's MTP)."""
    published = PUBLISHED["deepseek-r1"][0].tokens[3]
    drafting = {"tokens": 3, "acceptance": acceptance_of(published, 3), "draft": "mtp"}
    alone, drafted = (pl.serve("deepseek-r1", **R1, speculation=one) for one in (None, drafting))
    gain = drafted.figures["output_tokens_per_s"].value / alone.figures["output_tokens_per_s"].value
    assert gain == pytest.approx(2.16, rel=0.15)


def test_heads_take_the_time_of_a_block_once_or_per_token() -> None:
    """A block of 32 and the head: as often as tokens are drafted, or once.

    The first pass computes the five tokens that were verified, and where it gives all four drafted ones, a place for
    each of the other three (vLLM, ``llm_base_proposer.py``: `set_inputs_first_pass`).
    """
    traffic = generate_traffic(Lengths(500), Lengths(100), count=16, concurrency=8)
    prepared = {
        heads: prepare(
            make_deployment(
                pl.Serve("llama-3-8b", gpu="h100-sxm", speculation={"tokens": 4, "acceptance": 0.5, "draft": heads})
            ),
            traffic,
        )
        for heads in ("eagle3", "parallel")
    }
    tables, block = prepared["eagle3"].tables, prepared["eagle3"].draft_tables
    assert block is not None
    whole_s, head_s = tables.decode_s(8, 4000.0), tables.head_s[8]
    assert block.decode_s(8, 4000.0) == pytest.approx((whole_s - head_s) / 32 + head_s)
    passes = [one.at_level("expected")[2].speculation.draft_passes for one in prepared.values()]
    assert passes == [((1, 5, 1), (3, 1, 1)), ((1, 8, 4),)]
    assert Speculation().draft_passes == ()
    timed = prepared["eagle3"].at_level("expected")
    verifying_s = tables.iteration_s(ScheduledTokens(8, 4000.0), 5) + timed.engine.overhead_s
    verifying_s += 8 * timed.engine.sequence_overhead_s
    first_s = (tables.decode_s(8, 4000.0, 40, 8) - head_s) / 32 + head_s
    drafting_s = first_s + 3 * block.decode_s(8, 4000.0) + 4 * timed.engine.draft_pass_s
    for time_s in (timed.iteration_s(ScheduledTokens(8, 4000.0)), (timed.time_decoding() or len)(8, 4000.0)):
        assert time_s == pytest.approx(verifying_s + drafting_s)


def test_the_layer_of_deepseek_that_drafts_takes_memory() -> None:
    """11.5 G parameters of its own (DeepSeek-V3's README_WEIGHTS.md), and keys and values of a 62nd block."""
    traffic = generate_traffic(Lengths(500), Lengths(100), count=16, concurrency=8)
    drafting = {"tokens": 1, "acceptance": 0.8, "draft": "mtp"}
    alone, drafted = (
        make_deployment(pl.Serve("deepseek-r1", gpu="h200-sxm", tensor=8, speculation=one)).measure_room(traffic)
        for one in (None, drafting)
    )
    assert 8 * (drafted.weights_bytes - alone.weights_bytes) == pytest.approx(11.5e9, rel=0.03)  # a byte each
    assert drafted.sequence_bytes / alone.sequence_bytes == pytest.approx(62 / 61)
    assert drafted.memory_bytes == alone.memory_bytes
    expected = alone.tokens * drafted.cache_bytes / alone.cache_bytes * 61 / 62
    assert drafted.tokens == pytest.approx(expected, rel=1e-3)


def test_heads_that_leave_no_room_for_a_cache_get_a_sentence() -> None:
    """A block of Llama 3 8B takes 0.5 GB, where 0.4 GB are left."""
    traffic = generate_traffic(Lengths(500), Lengths(100), count=16, concurrency=8)
    drafting = {"tokens": 1, "acceptance": 0.8, "draft": "mtp"}
    asked: dict[str, Any] = {"gpu": "h100-sxm", "memory_fraction": 0.22}
    assert make_deployment(pl.Serve("llama-3-8b", **asked)).measure_room(traffic).blocks
    with pytest.raises(DoesNotFit, match=r"heads that draft \(mtp\) leave no memory"):
        make_deployment(pl.Serve("llama-3-8b", **asked, speculation=drafting)).measure_room(traffic)


@pytest.mark.thorough
def test_advice_drafts_where_heads_are_published() -> None:
    asked: dict[str, Any] = {"gpu": "b200", "tensor": 1, "rate": 5, "output_tokens": 200, "num_requests": 200}
    result = pl.serve("gpt-oss-20b", **asked, advise="cost", slo="tpot=3ms")
    assert result.advice is not None and result.advice.best is not None
    assert {one.draft.heads for one in result.advice.candidates if one.draft} == {"parallel"}  # faster than eagle3
    best = result.advice.best
    assert best.draft is not None and result.advice.command is not None
    assert f"--speculation tokens={best.draft.tokens},acceptance={best.draft.acceptance}" in result.advice.command
    assert "drafts" in [column.heading for column in result.document().tables[0].columns]
    assert any(note.startswith("drafted tokens are accepted as published") for note in result.notes)
    own = pl.serve("gpt-oss-20b", **asked, advise="cost", speculation="tokens=2,acceptance=0.5")
    assert own.advice is not None and all(one.draft is None for one in own.advice.candidates)


@pytest.mark.thorough
def test_advice_tries_batches_that_fit_without_heads_only() -> None:
    """Four GB200 hold 20 of these sequences beside the weights of DeepSeek-R1, and 4 beside the block that drafts."""
    result = pl.serve(
        "deepseek-r1", gpu="gb200", tensor=4, weights="fp8-block", rate=5, input_tokens=2000, output_tokens=500,
        num_requests=50, advise="cost",
    )  # fmt: skip
    assert result.advice is not None
    assert {one.draft.heads for one in result.advice.candidates if one.draft} == {"mtp"}
    assert any(one.draft is None for one in result.advice.candidates)


def test_heads_need_tokens_and_no_pipeline() -> None:
    with pytest.raises(BadValue, match="needs tokens=N"):
        pl.serve("llama-3-8b", gpu="h100-sxm", rate=1, speculation={"draft": "mtp"})
    with pytest.raises(BadValue, match="not modelled with `--pipeline`"):
        pl.serve("llama-3-8b", gpu="h100-sxm", rate=1, pipeline=2, speculation="tokens=2,draft=eagle3")


@pytest.mark.parametrize(("tokens", "written"), [(1, 1.81), (3, 2.49)])
def test_deepseek_r1_writes_as_many_tokens_as_published(tokens: int, written: float) -> None:
    """vLLM's pull request 12755 accepts 0.81 of one drafted token and 1.49 of three."""
    assert PUBLISHED["deepseek-r1"][0].tokens[tokens] == written


@pytest.mark.parametrize(("network", "is_said"), [("llama-3.1-8b", True), ("glm-4.5-air", False)])
def test_a_network_without_layers_that_draft_is_said(network: str, is_said: bool) -> None:
    answer = pl.serve(network, gpu="h200-sxm", tensor=2, rate=1, num_requests=50, speculation="draft=mtp,tokens=1")
    assert any("has no layers that predict further tokens" in note for note in answer.notes) == is_said

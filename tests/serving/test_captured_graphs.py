"""Iterations that no captured graph replays: the launches of their kernels, and the batches that wait for them."""

from __future__ import annotations

from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.reinforcement.constants import rl_constants
from paleo_lite.serving.captured_graphs import eager_launch_s, with_launches
from paleo_lite.serving.iteration_times import IterationTimes, ScheduledTokens

LEAST_S = 0.02


def tables(attention_data: int = 1) -> IterationTimes:
    """Return tables of iterations of 1 ms for each token of a rank, up to 64 sequences, without attention."""
    return IterationTimes(
        token_s=[1e-3 * tokens for tokens in range(129)],
        head_s=[0.0] * 129,
        contexts=[1.0, 4096.0],
        decode_attention_s=[[0.0, 0.0]] * 65,
        prompt_attention_s=[0.0] * 65,
        relative_low=[],
        relative_high=[],
        attention_data=attention_data,
    )


@pytest.mark.parametrize(("sequences", "time_s"), [(4, 0.004), (8, 0.008), (9, LEAST_S), (19, LEAST_S), (32, 0.032)])
def test_larger_batches_take_no_less_than_their_launches(sequences: int, time_s: float) -> None:
    """Up to 8 sequences are replayed; from 20 on kernels take longer than their launches."""
    launched = with_launches(tables(), LEAST_S, context=100.0, captured=8)
    assert launched.iteration_s(ScheduledTokens(sequences, 100.0 * sequences)) == pytest.approx(time_s)


def test_the_limit_is_that_of_a_rank() -> None:
    launched = with_launches(tables(attention_data=4), LEAST_S, context=100.0, captured=8)
    times = [launched.iteration_s(ScheduledTokens(sequences, 100.0 * sequences)) for sequences in (32, 36)]
    assert times == pytest.approx([0.008, LEAST_S])


def test_sequences_that_draft_have_several_tokens() -> None:
    launched = with_launches(tables(), LEAST_S, context=100.0, captured=8, tokens_per_sequence=2)
    times = [launched.iteration_s(ScheduledTokens(sequences, 100.0 * sequences), 2) for sequences in (8, 9, 16)]
    assert times == pytest.approx([0.016, LEAST_S, 0.032])


@pytest.mark.parametrize("tokens", [1, 2])
def test_the_largest_batch_of_the_tables_waits_for_its_launches(tokens: int) -> None:
    """The tables have 64 sequences, and 128 tokens: with two tokens each, both end together."""
    launched = with_launches(tables(), 1.0, context=100.0, tokens_per_sequence=tokens)
    times = [launched.iteration_s(ScheduledTokens(sequences, 100.0 * sequences), tokens) for sequences in (1, 63, 64)]
    assert times == pytest.approx([1.0, 1.0, 1.0])


def test_a_launch_takes_as_long_as_in_rollouts_without_graphs() -> None:
    assert rl_constants().launch_s == eager_launch_s()


ASKED: dict[str, Any] = {
    "gpu": "h100-sxm", "tensor": 4, "engine": "tensorrt-llm", "precision": "bf16", "weights": "mxfp4",
    "attention_data_parallel": 4, "concurrency": 160, "input_tokens": 4000, "output_tokens": 1000,
}  # fmt: skip


def test_a_published_server_without_graphs() -> None:
    """aiconfigurator's table of servers: gpt-oss-120b on four H100 takes 47.3 ms per token with 160 users."""
    captured = pl.serve("gpt-oss-120b", **ASKED).latencies["tpot_s"]["p50"]
    launched = pl.serve("gpt-oss-120b", engine_settings="captured-sequences=1", **ASKED).latencies["tpot_s"]["p50"]
    assert captured.high is not None and captured.high < 0.0473
    assert launched.low is not None and launched.high is not None and launched.low < 0.0473 < launched.high


def test_a_limit_above_all_batches_changes_nothing() -> None:
    usual, stated = (
        pl.serve("gpt-oss-120b", **ASKED, **settings).latencies["tpot_s"]["p50"]
        for settings in ({}, {"engine_settings": "captured-sequences=160"})
    )
    assert usual == stated

"""Time of a round of a pipeline, by hand on tables of constant times.

Tests: serving/iteration_times.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.serving.iteration_times import IterationTimes, ScheduledTokens, round_time_s


def tables(seconds: float, **pipeline: object) -> IterationTimes:
    """Return tables of a time per new token, without other costs."""
    return IterationTimes(
        token_s=[seconds * tokens for tokens in range(2000)],
        head_s=[0.0] * 2000,
        contexts=[1.0, 1000.0],
        decode_attention_s=[[0.0, 0.0]] * 100,
        prompt_attention_s=[0.0] * 2000,
        relative_low=[],
        relative_high=[],
        **pipeline,  # type: ignore[arg-type]
    )


BALANCED = tables(4.0, stages=(tables(1.0),), pipeline=4)
UNEVEN = tables(5.0, stages=(tables(2.0),), pipeline=4)


def time_s(
    times: IterationTimes, scheduled: ScheduledTokens, overhead_s: float = 0.0, starts_empty: bool = False
) -> float:
    return round_time_s(times, scheduled, overhead_s=overhead_s, batch_tokens=100, starts_empty=starts_empty)


def test_a_single_batch_takes_the_sum_of_the_stages() -> None:
    assert time_s(UNEVEN, ScheduledTokens(1, 10)) == 5.0
    assert time_s(UNEVEN, ScheduledTokens(0, 0, chunks=[(0, 7)], completed=1)) == 35.0


def test_many_batches_take_the_work_of_the_slowest_stage() -> None:
    # 8 sequences in 4 batches of 2: balanced stages are never idle; the slowest of uneven ones takes 4 x 2 x 2 s
    assert time_s(BALANCED, ScheduledTokens(8, 80)) == 8.0
    assert time_s(UNEVEN, ScheduledTokens(8, 80)) == 16.0
    # two batches of one sequence: the latency of one batch is longer than the work of the slowest stage
    assert time_s(UNEVEN, ScheduledTokens(2, 20)) == 5.0


def test_the_host_takes_its_time_for_every_sequence_of_a_batch() -> None:
    # two batches of one sequence, which the host prepares in 1 + 0.5 s; then 4 batches of two, each in 1 + 2 x 1 s
    scheduled = ScheduledTokens(2, 20)
    assert round_time_s(UNEVEN, scheduled, overhead_s=1.0, batch_tokens=100, sequence_overhead_s=0.5) == 5.0 + 1.5
    eight = ScheduledTokens(8, 80)
    assert round_time_s(BALANCED, eight, overhead_s=1.0, batch_tokens=100, sequence_overhead_s=1.0) == 4 * 3.0


def test_filling_an_empty_pipeline_is_that_of_gpipe() -> None:
    # GPipe: (M + P - 1) t with M = 4 micro-batches on P = 4 stages
    four = ScheduledTokens(0, 0, chunks=[(0, 10)] * 4, completed=4)
    assert time_s(BALANCED, four, starts_empty=True) == (4 + 4 - 1) * 10.0
    assert time_s(BALANCED, four) == 40.0
    # one prompt of four times the tokens of a batch is divided as well
    assert time_s(BALANCED, ScheduledTokens(0, 0, chunks=[(0, 400)], completed=1), starts_empty=True) == 7 * 100.0


def test_a_long_batch_delays_the_others() -> None:
    # A prompt of 50 tokens with one of 4 sequences: 51 tokens pass four stages, and other batches cannot overtake it.
    assert time_s(BALANCED, ScheduledTokens(4, 40, chunks=[(0, 50)], completed=1)) == 51 * 4.0


def test_overhead_delays_a_batch_and_limits_how_often_batches_start() -> None:
    assert time_s(UNEVEN, ScheduledTokens(1, 10), overhead_s=0.5) == 5.5
    assert time_s(BALANCED, ScheduledTokens(4, 40), overhead_s=3.0) == pytest.approx(4 * 3.0)

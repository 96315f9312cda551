"""What the interval of a host adds to that of kernels: both are independent, and a simulation ends where they do."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.engines.records import find_server
from paleo_lite.engines.records.record import Server
from paleo_lite.serving.host_intervals import HostWidths, count_running, host_widths
from paleo_lite.serving.iteration_times import IterationTimes, ScheduledTokens
from paleo_lite.serving.requests import Traffic
from paleo_lite.timing.intervals import log_reach

KERNELS_LOG = 0.3


def tables(**changes: Any) -> IterationTimes:
    """Return tables of iterations of 10 ms, up to 64 sequences, whose interval reaches 30% in logarithms."""
    times = IterationTimes(
        token_s=[0.01] * 129,
        head_s=[0.0] * 129,
        contexts=[1.0, 4096.0],
        decode_attention_s=[[0.0, 0.0]] * 65,
        prompt_attention_s=[0.0] * 65,
        relative_low=[math.exp(-KERNELS_LOG)] * 129,
        relative_high=[math.exp(KERNELS_LOG)] * 129,
    )
    return msgspec.structs.replace(times, **changes)


def engine(overhead_s: float, factor: float = 2.5, sequence_overhead_s: float = 0.0) -> Server:
    """Return an engine whose host takes a time that is known to a factor."""
    return msgspec.structs.replace(
        find_server("vllm"),
        overhead_s=overhead_s,
        overhead_range_s=(overhead_s / factor, overhead_s * factor),
        sequence_overhead_s=sequence_overhead_s,
    )


def test_independent_ends_add_up_in_quadrature() -> None:
    assert log_reach(0.3, 1.0, 0.4) == pytest.approx(0.5)
    assert log_reach(0.3, 1.0, 0.0) == 0.3
    assert log_reach(0.0, 0.7, 1.0) == pytest.approx(0.7)


@pytest.mark.parametrize("overhead_s", [0.0001, 0.001, 0.005, 0.02])
@pytest.mark.parametrize("sequence_overhead_s", [0.0, 1e-5])
def test_a_simulated_iteration_ends_where_its_kernels_and_its_host_do(
    overhead_s: float, sequence_overhead_s: float
) -> None:
    """Kernels of 10 ms and a host, at the end of the interval of the sum."""
    server, sequences = engine(overhead_s, sequence_overhead_s=sequence_overhead_s), 32
    widths = host_widths(tables(), server, sequences, 100.0)
    host_s = overhead_s + sequences * sequence_overhead_s
    share = host_s / (0.01 + host_s)
    host_log = (overhead_s * math.log(2.5) + sequences * sequence_overhead_s * math.log(1.6)) / host_s
    wanted = (0.01 + host_s) * math.exp(math.hypot(KERNELS_LOG, share * host_log))
    late = server.at_end("high", widths.high)
    time_s = 0.01 * math.exp(KERNELS_LOG) + late.overhead_s + sequences * late.sequence_overhead_s
    assert time_s == pytest.approx(wanted, rel=0.01)
    assert 0 < widths.high <= 1 and 0 < widths.low <= 1.1  # the whole has the deviation of its kernels


def test_a_host_that_is_everything_keeps_its_interval() -> None:
    assert host_widths(tables(), engine(10.0), 1, 100.0).high == pytest.approx(1.0, abs=0.06)


def test_nothing_changes_without_an_interval_or_a_host() -> None:
    assert host_widths(tables(relative_low=[], relative_high=[]), engine(0.001), 8, 100.0) == HostWidths()
    assert host_widths(tables(), engine(0.0), 8, 100.0) == HostWidths()


def test_sequences_that_run_follow_from_littles_law() -> None:
    """20 requests per second of 100 tokens, each in an iteration of 10 ms, keep 20 sequences busy."""
    arrival_s, tokens = np.arange(200) / 20, np.full(200, 100)
    traffic = Traffic(arrival_s, tokens, tokens)
    assert count_running(tables(), engine(0.0), traffic, replicas=1) == 20
    assert count_running(tables(), engine(0.0), traffic, replicas=2) == 10
    at_once = Traffic(np.zeros(200), tokens, tokens)
    assert count_running(tables(), engine(0.0), at_once, replicas=1) == 64  # as many as the tables have


def test_one_user_has_the_interval_of_a_pass() -> None:
    """`serve` and `predict` ask the same of a batch of one: the ends are those of one iteration."""
    asked = {"gpu": "h100-sxm", "precision": "bf16"}
    served = pl.serve("llama-3.1-8b", concurrency=1, **asked).latencies["tpot_s"]["p50"]
    predicted = pl.predict("llama-3.1-8b", phase="decode", batch_size=1, **asked)
    assert served.value is not None and served.low is not None and served.high is not None
    for end, other in zip((served.low, served.high), predicted.interval):
        assert end / served.value == pytest.approx(other / predicted.time_s, rel=0.01)


def test_the_tables_hold_a_decode_step() -> None:
    assert tables().iteration_s(ScheduledTokens(4, 400.0)) == 0.01


def test_an_independent_deviation_widens_an_interval() -> None:
    widened = tables().widened(0.4)
    assert (widened.relative_low[7], widened.relative_high[7]) == pytest.approx((math.exp(-0.5), math.exp(0.5)))

"""What deployments do in the long run: figures without the beginning and the end of a simulation.

Tests: serving/steady.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.notes import front_end_notes, queue_notes, unsteady_notes
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic
from paleo_lite.serving.steady import MeasuredSpan, steady_span, whole_span, work_in

ALONE: dict[str, Any] = {"gpu": "h100-sxm", "input_tokens": 1024, "output_tokens": 256}
SPLIT: dict[str, Any] = {
    "gpu": "h100-sxm", "input_tokens": 2000, "output_tokens": 300, "prefill_pool": "replicas=1",
    "decode_pool": "replicas=1",
}  # fmt: skip


def test_as_many_requests_are_answered_as_arrive() -> None:
    """In the long run, by conservation of requests, however many of them are simulated."""
    for number in (100, 400):
        result = pl.serve("llama-3.1-8b", rate=8, num_requests=number, **ALONE)
        answered, usd = result.figures["requests_per_s"], result.figures["usd_per_million_output_tokens"]
        assert not result.is_overloaded
        assert answered.low <= 8 <= answered.high * (1 + 1e-9) and answered.value == pytest.approx(8)
        assert usd.value == pytest.approx(result.usd_per_h / 3600 / (8 * 256) * 1e6)
        assert result.offered_requests_per_s == pytest.approx(8)


@pytest.mark.spread(2)
@pytest.mark.parametrize("users", [1, 8])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_as_many_requests_are_under_way_as_there_are_users(engine: str, users: int) -> None:
    """Little's law: the rate of requests times their mean latency; answers have as many tokens as are asked for."""
    answer = pl.serve("llama-3.1-8b", concurrency=users, engine=engine, **ALONE)
    requests_per_s, tokens_per_s, total_per_s = (
        answer.figures[name].value for name in ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
    )
    assert requests_per_s * answer.latencies["latency_s"]["mean"].value == pytest.approx(
        users, rel=0.003 if users == 1 else 0.02
    )  # not all of several users end together
    assert tokens_per_s / requests_per_s == pytest.approx(256)
    assert total_per_s / requests_per_s == pytest.approx(1024 + 256)


def test_a_run_near_saturation_says_how_many_requests_its_long_run_has() -> None:
    """Odoni and Roth (1983): at .98 of the rate it takes 4 / (2.8 (1 - sqrt(.98))^2) = 14,141 servings."""
    prepared: Any = SimpleNamespace(deployment=SimpleNamespace(replicas=1))
    traffic = generate_traffic(Lengths(10), Lengths(10), count=1000, rate_per_s=9.8)
    (note,) = unsteady_notes(prepared, traffic, 10.0)
    assert "at 98.0% of the saturation rate" in note and "`--num-requests 15000`" in note
    assert unsteady_notes(prepared, traffic, 10.9) == []  # at .90 of it 139 servings
    assert unsteady_notes(prepared, traffic, 9.7) == []  # above saturation it has no long run
    assert unsteady_notes(prepared, traffic, None) == []
    even = generate_traffic(Lengths(10), Lengths(10), count=1000, rate_per_s=9.8, arrivals="fixed")
    assert unsteady_notes(prepared, even, 10.0) == []
    assert "not even" in unsteady_notes(prepared, traffic, 9.801)[0]
    recorded = msgspec.structs.replace(traffic, is_trace=True)  # of which there are no more requests
    for saturation_per_s in (10.0, 9.801):
        assert unsteady_notes(prepared, recorded, saturation_per_s)[0].endswith(
            "latencies: the trace is too short for the long run"
        )


def test_a_queue_before_one_replica_alone_is_named() -> None:
    """44.7 s before one of eight replicas are 5.6 of the 9.5 s of a mean first token; queues before all are a load."""

    def replicas(*waits_s: float) -> list[Any]:
        """Return what happened to two requests of each replica, which wait so long in the mean."""
        return [
            SimpleNamespace(arrival_s=np.array([1.0, 2.0]), admitted_s=np.array([1.0, 2.0 + 2 * wait_s]))
            for wait_s in waits_s
        ]

    (note,) = queue_notes(replicas(0.4, 0.3, 44.7, 3.3, 0.9, 0.4, 3.0, 5.0), 9.5)
    assert note.startswith("before one of 8 replicas requests wait 44.7 s in the mean, before the others 0.3 to 5 s")
    assert queue_notes(replicas(12.5, 12.0, 11.9, 12.6, 5.7), 11.9) == []
    assert queue_notes(replicas(0.01, 0.01, 0.2, 0.01), 9.5) == []  # 0.05 s in the mean of all
    assert queue_notes(replicas(0.3, 44.7), 22.0) == []  # which of two is the other one?


def test_users_of_a_closed_loop_are_told_what_they_wait_for_in_front_of_the_engine() -> None:
    """A lone request of llama-3.1-8b has its first token after 24.6 ms at a rate, and after 37 ms as that of a user."""
    engine = SimpleNamespace(request_kernels_s=10e-3, request_token_s=2e-6)
    prepared: Any = SimpleNamespace(engine=engine, prefill=None)
    users = generate_traffic(Lengths(1000), Lengths(10), count=10, concurrency=1)
    (note,) = front_end_notes(prepared, users, 37e-3)
    assert note.startswith("first tokens include 12 ms in front of the engine")
    assert front_end_notes(prepared, users, 0.2) == []
    drawn = generate_traffic(Lengths(1000), Lengths(10), count=10, rate_per_s=1.0)
    assert front_end_notes(prepared, drawn, 37e-3) == []


def test_nothing_decodes_where_answers_have_one_token() -> None:
    result = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=5, num_requests=4, input_tokens=32, output_tokens=1)
    assert result.kernels is None and "Kernels" not in str([table.title for table in result.document().tables])


def test_the_whole_run_is_counted_as_benchmarks_count() -> None:
    """``request_throughput`` of ``vllm bench serve`` is ``completed / dur_s``, from the first request to the last."""
    answer = pl.serve("llama-3.1-8b", rate=8, num_requests=50, **ALONE)
    run = answer.figures["run_requests_per_s"]
    assert run.value == pytest.approx(50 / answer.duration_s) and run.low < run.value < run.high < 8
    other = pl.serve("llama-3.1-8b", num_requests=50, rate="inf", **ALONE)
    assert "run_requests_per_s" not in other.figures
    assert other.figures["requests_per_s"].value == pytest.approx(50 / other.duration_s)


def test_one_request_per_second_is_no_plural() -> None:
    for rate, said in ((1, "1 request/s (poisson)"), (2, "2 requests/s (poisson)")):
        assert pl.serve("llama-3.1-8b", rate=rate, num_requests=10, **ALONE).traffic.startswith(said)


def test_an_overloaded_deployment_answers_what_it_can() -> None:
    """The rate of saturation; that of the run where all answers end after the last arrival."""
    long, short = (pl.serve("llama-3.1-8b", rate=rate, num_requests=400, **ALONE) for rate in (30, 300))
    assert long.is_overloaded and short.is_overloaded
    capacity = long.figures["saturation_requests_per_s"].value
    assert long.figures["requests_per_s"].value == pytest.approx(capacity)
    assert short.figures["saturation_requests_per_s"].value == pytest.approx(capacity)
    assert short.figures["requests_per_s"].value == pytest.approx(400 / short.duration_s)
    assert "run_requests_per_s" in long.figures and "run_requests_per_s" not in short.figures


def test_pools_are_busier_under_more_load() -> None:
    shares = []
    for rate in (2, 4, 6, 8):
        result = pl.serve("llama-3.1-8b", rate=rate, num_requests=300, **SPLIT)
        shares.append((result.prefill_pool.utilisation, result.figures["mean_sequences"].value))
    assert shares == sorted(shares) and shares[-1][0] <= 1
    # A prompt takes the same time whatever the rate is.
    assert shares[1][0] == pytest.approx(2 * shares[0][0], rel=0.1)


def test_work_of_the_whole_simulation_is_that_of_its_counters() -> None:
    traffic = generate_traffic(Lengths(300), Lengths(200), count=3000, rate_per_s=10.0)
    outcome = prepare(make_deployment(pl.Serve("llama-3.1-8b", gpu="h100-sxm")), traffic).run(traffic)[0]
    whole = whole_span([outcome])
    work = work_in([outcome], whole)
    assert (work.busy_s, work.sequence_s) == pytest.approx((outcome.busy_s, outcome.sequence_s))
    middle = (whole.start_s + whole.end_s) / 2
    halves = [
        work_in([outcome], MeasuredSpan(*ends, 1.0)) for ends in ((whole.start_s, middle), (middle, whole.end_s))
    ]  # fmt: skip
    assert sum(half.busy_s for half in halves) == pytest.approx(outcome.busy_s)
    assert all(half.busy_s <= (middle - whole.start_s) * (1 + 1e-9) for half in halves)


def test_without_a_known_capacity_answers_are_counted() -> None:
    """Between the time at which half of the answers have come back, and the last arrival."""
    traffic = generate_traffic(Lengths(300), Lengths(200), count=400, rate_per_s=10.0)
    outcome = prepare(make_deployment(pl.Serve("llama-3.1-8b", gpu="h100-sxm")), traffic).run(traffic)[0]
    span = steady_span([outcome], 10.0, None)
    assert span.end_s == outcome.arrival_s.max()
    assert span.start_s - outcome.arrival_s.min() == pytest.approx(np.median(outcome.finish_s - outcome.arrival_s))
    assert span.requests_per_s == pytest.approx(10, rel=0.05)
    assert steady_span([outcome], None, None) == whole_span([outcome])


def test_arrivals_have_the_rate_that_is_asked_for() -> None:
    for count in (2, 20, 1000):
        traffic = generate_traffic(Lengths(10), Lengths(10), count=count, rate_per_s=7.0)
        assert traffic.rate_per_s == pytest.approx(7.0)
    gaps = np.diff(traffic.arrival_s)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as of exponential intervals


@pytest.mark.thorough
def test_sessions_have_the_rate_of_all_their_requests() -> None:
    result = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=2, workload="conversation:turns=5", num_requests=100)
    assert result.offered_requests_per_s == pytest.approx(2)
    assert result.figures["requests_per_s"].value == pytest.approx(2)


def test_a_run_whose_answers_end_after_the_last_arrival_is_measured_whole() -> None:
    """Its 20 requests are all in flight, by Little's law, and its tokens are those that it answers."""
    answer = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=200, num_requests=20)
    figures = {name: figure.value for name, figure in answer.figures.items()}
    latency_s = answer.latencies["latency_s"]["mean"].value
    sequences, requests_per_s = figures["mean_sequences"], figures["requests_per_s"]
    assert sequences is not None and requests_per_s is not None and latency_s is not None
    assert "run_requests_per_s" not in figures and answer.is_overloaded
    assert requests_per_s == pytest.approx(20 / answer.duration_s)
    assert figures["output_tokens_per_s"] == pytest.approx(20 * 256 / answer.duration_s)
    assert 0.85 * requests_per_s * latency_s < sequences <= requests_per_s * latency_s


def test_an_overloaded_server_answers_what_it_does_at_saturation() -> None:
    """The answers of the run are longer by chance than those of which the saturation rate is."""
    answer = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=25, output_tokens="256:128", num_requests=500)
    figures = {name: figure.value for name, figure in answer.figures.items()}
    assert figures["requests_per_s"] == figures["saturation_requests_per_s"]
    assert figures["output_tokens_per_s"] == figures["saturation_tokens_per_s"]

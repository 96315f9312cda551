"""Intervals of latencies: the causes that they join, of split pools and of users in step.

Tests: serving/intervals.py, serving/latencies.py.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.engines.causes import FIRST_TOKEN, TIME_PER_TOKEN
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.causes import crowd_deviations
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.intervals import Figure, half_width, join_causes, join_latencies, narrow, summarize_latencies
from paleo_lite.serving.latencies import STALL_S, simulate_causes
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic


def test_logarithms_of_causes_add_up_in_quadrature() -> None:
    joint = join_causes([Figure(6.0, 2.0, 12.0), Figure(6.0, 3.0, 18.0)])
    ratio = math.exp(math.hypot(math.log(2), math.log(3)))
    assert joint.value == 6.0
    assert (joint.low, joint.high) == (pytest.approx(6 / ratio), pytest.approx(6 * ratio))


def test_without_logarithms_an_interval_is_no_narrower_than_those_of_its_causes() -> None:
    """Requests that do not wait, and would if iterations were slower."""
    assert join_causes([Figure(0.0, 0.0, 1.0), Figure(0.0, 0.0, 3.0)]) == Figure(0.0, 0.0, 3.0)
    assert join_causes([Figure(2.0, 1.0, 3.0), Figure(2.0, 0.0, 2.5)]) == Figure(2.0, 0.0, 3.0)
    assert join_causes([Figure(None), Figure(None)]) == Figure(None)


def test_a_cause_that_is_known_better_has_a_narrower_interval() -> None:
    assert narrow(Figure(4.0, 1.0, 16.0), 0.5) == Figure(4.0, 2.0, 8.0)
    assert narrow(Figure(0.0, 0.0, 1.0), 0.5) == Figure(0.0, 0.0, 1.0)


@pytest.fixture
def split(deployment: Deployment) -> Deployment:
    """A prefill replica and one that decodes."""
    return msgspec.structs.replace(deployment, prefill=deployment)


def test_first_tokens_are_less_certain_than_if_both_pools_were_off_in_the_same_direction(split: Deployment) -> None:
    """Of N users, a first token comes N prompts after the one before, less the answer between them (Little's law).

    So prompts that take longer make the wait longer in a higher proportion, and answers that take longer make it
    shorter.
    """
    users, answer = 64, 100
    traffic = generate_traffic(Lengths(2000), Lengths(answer), count=10 * users, concurrency=users)
    prepared = prepare(split, traffic)
    at_levels = {level: summarize_latencies(prepared.simulate(traffic, level)) for level in prepared.levels}
    causes = simulate_causes(prepared, traffic, at_levels)
    together, of_answers, of_prompts = (
        [(latencies["ttft_s"]["mean"] or 0.0) for latencies in ends]
        for ends in ((at_levels["low"], at_levels["high"]), causes[0][:2], causes[1][:2])
    )
    assert of_answers[1] < of_answers[0]
    assert of_prompts[1] / of_prompts[0] > 1.2 * together[1] / together[0]
    joint = join_latencies(at_levels["expected"], causes, {})["ttft_s"]["mean"]
    assert joint.low is not None and joint.low < together[0]
    assert joint.high is not None and joint.high > together[1]


def test_the_first_requests_of_split_pools_may_wait_for_kernels(split: Deployment) -> None:
    """Of few requests the mean shows it, of many hardly, and the median never."""
    latencies = {}
    for requests in (20, 2000):
        traffic = generate_traffic(Lengths(500), Lengths(20), count=requests, rate_per_s=0.5)
        prepared = prepare(split, traffic)
        at_levels = {level: summarize_latencies(prepared.simulate(traffic, level)) for level in prepared.levels}
        causes = simulate_causes(prepared, traffic, at_levels)
        latencies[requests] = join_latencies(at_levels["expected"], causes, {})["ttft_s"]
    for part, (few, many) in {
        part: [latencies[count][part] for count in (20, 2000)] for part in ("mean", "p50")
    }.items():
        assert few.value and many.value and few.high and many.high
        is_wider = few.high / few.value > 2 * many.high / many.value
        assert is_wider == (part == "mean"), part
    high = latencies[20]["mean"].high
    assert high is not None and high > STALL_S / 20


class KnowsMore(NamedTuple):
    """Measured servers that leave some of the width of each figure."""

    widths: dict[str, float]

    def variances(self, figure: str, shares: Any) -> tuple[float, float]:
        """Return the variances after and before, so small that the interval of a command narrows as they do."""
        return 1e-9 * self.widths[figure] ** 2, 1e-9


@pytest.mark.parametrize("pools", [{}, {"prefill_pool": "replicas=1", "decode_pool": "replicas=1"}])
@pytest.mark.parametrize("arrivals", [{"rate_per_s": 4.0}, {"concurrency": 32}, {"concurrency": 96}])
def test_widths_are_of_the_interval_that_answers_print(pools: dict[str, str], arrivals: dict[str, Any]) -> None:
    """By hand: the logarithms of iterations, of each pool apart, and of all else add up in quadrature.

    So of 0.6 of the whole, of which iterations keep 0.3 of theirs, the rest is what all else keeps.
    """
    traffic = generate_traffic(Lengths(2000), Lengths(100), count=320, **arrivals)
    learned: Any = KnowsMore({FIRST_TOKEN: 0.6, TIME_PER_TOKEN: 0.3})
    prepared = prepare(make_deployment(pl.Serve("llama-3-8b", gpu="h100-sxm", **pools)), traffic)
    at_levels = {level: summarize_latencies(prepared.simulate(traffic, level)) for level in prepared.levels}
    causes = simulate_causes(prepared, traffic, at_levels)
    if pools:
        del causes[2]  # the stall, of which measured servers say nothing
    of_iterations = causes[: 2 if pools else 1]
    iterations, everything = (
        half_width(join_latencies(at_levels["expected"], chosen, deviations)[FIRST_TOKEN]["mean"])
        for chosen, deviations in ((of_iterations, {}), (causes, prepared.latency_deviations(traffic)))
    )
    left = math.sqrt((0.6 * everything) ** 2 - (0.3 * iterations) ** 2) / math.sqrt(everything**2 - iterations**2)
    narrowed = prepared.narrowed(traffic, learned)
    assert (narrowed.host_width, narrowed.first_token_width) == (pytest.approx(0.3), pytest.approx(left))


@pytest.mark.parametrize(
    ("users", "expected"), [(0, 0.3), (8, 0.3), (64, 0.3), (128, math.hypot(0.3, 0.4)), (512, math.sqrt(0.57))]
)
def test_first_tokens_deviate_more_by_the_doublings_of_64_users(users: float, expected: float) -> None:
    """Each doubling adds a variance of 0.16: three of them to 0.09 are 0.57."""
    assert crowd_deviations({FIRST_TOKEN: 0.3}, users) == {FIRST_TOKEN: pytest.approx(expected)}
    assert crowd_deviations({}, users) == {}


def test_a_crowd_is_that_of_a_replica_in_a_closed_loop() -> None:
    """Requests that come at a rate, however many, have the deviation of few users."""
    deployment = make_deployment(pl.Serve("llama-3-8b", gpu="h100-sxm", replicas=2))
    few = deployment.timer.latency_deviations
    traffic = generate_traffic(Lengths(200), Lengths(20), count=640, concurrency=256)
    assert deployment.latency_deviations(traffic) == crowd_deviations(few, 128)
    assert (
        deployment.latency_deviations(generate_traffic(Lengths(200), Lengths(20), count=640, rate_per_s=500.0)) == few
    )


SPLIT: dict[str, Any] = {"gpu": "h100-sxm", "rate": 4, "input_tokens": 512, "output_tokens": 32}
STALL_NOTE = "contain a stall of 10 s at the first requests, 100 ms of each of 100"


def test_a_note_says_that_upper_ends_of_split_pools_contain_a_stall() -> None:
    """10 s over 100 requests are 0.1 s of each."""
    pools = {"prefill_pool": "replicas=1", "decode_pool": "replicas=1"}
    together, split = (pl.serve("llama-3-8b", **SPLIT, **more, num_requests=100) for more in ({}, pools))
    assert [note for note in split.notes if STALL_NOTE in note]
    assert not any("a stall of" in note for note in together.notes)
    mean = split.latencies["ttft_s"]["mean"]
    assert mean.value is not None and mean.high is not None and mean.high > mean.value + STALL_S / 100


CLOSED: dict[str, Any] = {"gpu": "h100-sxm", "concurrency": 16, "input_tokens": 2048}


def test_users_of_equal_lengths_may_be_in_step(deployment: Deployment) -> None:
    """Then each of 16 prompts waits for half of the others in the mean, and the interval reaches that far."""
    answer = pl.serve("llama-3-8b", **CLOSED, output_tokens=256)
    figure = answer.latencies["ttft_s"]["mean"]
    prompt_s = pl.predict("llama-3-8b", gpu="h100-sxm", phase="prefill", batch_size=1, sequence_length=2048).time_s
    assert figure.value is not None and figure.high is not None and prompt_s is not None
    assert figure.value < 8 * prompt_s < figure.high


def test_users_whose_lengths_differ_are_not_in_step() -> None:
    drawn = generate_traffic(Lengths(2048), Lengths(256, 64), count=64, concurrency=16)
    equal = generate_traffic(Lengths(2048), Lengths(256), count=64, concurrency=16)
    waiting = generate_traffic(Lengths(2048), Lengths(256), count=64, concurrency=16, drift_apart=False)
    assert drawn.synchronised() is None
    assert waiting.synchronised() is None, "an engine that computes all waiting prompts first keeps its users in step"
    in_step = equal.synchronised()
    assert in_step is not None and set(in_step.output_tokens.tolist()) == {256}

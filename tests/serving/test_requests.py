"""Traffic: distributions, seeds, traces, and messages about bad values.

Tests: serving/requests.py, serving/lengths.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paleo_lite.errors import BadFile, BadValue, UnknownName
from paleo_lite.serving.lengths import Lengths, parse_lengths
from paleo_lite.serving.requests import Traffic, generate_traffic, read_trace


def test_lengths_are_numbers_distributions_or_data_sets() -> None:
    assert parse_lengths("1024", "--input-tokens", is_input=True) == Lengths(1024)
    assert parse_lengths("1024:256", "--input-tokens", is_input=True) == Lengths(1024, 256)
    # Patel et al. 2024 (Splitwise), section III: medians of 1,020 and 129 tokens.
    assert parse_lengths("azure-conversation", "--input-tokens", is_input=True).mean == 1020
    assert parse_lengths("azure-conversation", "--output-tokens", is_input=False).mean == 129


@pytest.mark.parametrize("text", ["0", "-5", "1024:-1", "12:abc", "-inf", ""])
def test_bad_lengths_name_the_option(text: str) -> None:
    with pytest.raises(BadValue, match="--input-tokens"):
        parse_lengths(text, "--input-tokens", is_input=True)


def test_unknown_data_set() -> None:
    with pytest.raises(UnknownName, match="azure"):
        parse_lengths("azure", "--input-tokens", is_input=True)


def test_poisson_arrivals_have_the_rate_and_exponential_intervals() -> None:
    traffic = generate_traffic(Lengths(100), Lengths(10), count=20_000, rate_per_s=5.0, seed=3)
    intervals = np.diff(traffic.arrival_s)
    assert intervals.mean() == pytest.approx(1 / 5, rel=0.03)
    assert intervals.std() == pytest.approx(1 / 5, rel=0.03)  # an exponential's deviation is its mean
    assert traffic.rate_per_s == pytest.approx(5, rel=0.03)


def test_fixed_arrivals_and_all_at_once() -> None:
    fixed = generate_traffic(Lengths(100), Lengths(10), count=4, rate_per_s=2.0, arrivals="fixed")
    assert fixed.arrival_s.tolist() == [0, 0.5, 1.0, 1.5]
    flood = generate_traffic(Lengths(100), Lengths(10), count=4, rate_per_s=float("inf"))
    assert flood.arrival_s.tolist() == [0, 0, 0, 0] and flood.rate_per_s is None


def test_contexts_of_decoding_spread_over_the_answers() -> None:
    """Of equal requests they are spread evenly from the prompt to the last token of the answer."""
    equal = generate_traffic(Lengths(8192), Lengths(1024), count=4, rate_per_s=1.0)
    assert equal.context_spread == pytest.approx(512)
    drawn = generate_traffic(Lengths(8192, 2000), Lengths(1024, 500), count=400, rate_per_s=1.0, seed=1)
    pairs = zip(drawn.input_tokens, drawn.output_tokens)
    contexts = np.concatenate([np.arange(first, first + length) for first, length in pairs])
    assert drawn.context_spread == pytest.approx(np.sqrt(3) * contexts.std(), rel=1e-4)


def test_a_seed_reproduces_traffic_and_lengths_do_not_depend_on_the_rate() -> None:
    arguments = {"inputs": Lengths(100, 30), "outputs": Lengths(10, 5), "count": 200}
    first, same, faster = (
        generate_traffic(**arguments, rate_per_s=rate, seed=7)  # type: ignore[arg-type]
        for rate in (1.0, 1.0, 9.0)
    )
    assert (first.arrival_s == same.arrival_s).all() and (first.input_tokens == faster.input_tokens).all()
    other = generate_traffic(**arguments, rate_per_s=1.0, seed=8)  # type: ignore[arg-type]
    assert (first.input_tokens != other.input_tokens).any()
    assert first.output_tokens.min() >= 1


def test_quantiles_of_drawn_lengths() -> None:
    lengths = Lengths(100, quantiles=((0.1, 20.0), (0.5, 100.0), (0.9, 500.0)))
    drawn = lengths.draw(50_000, np.random.default_rng(0))
    assert np.percentile(drawn, [20, 50]) == pytest.approx([35, 100], rel=0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 0},
        {"rate_per_s": 0.0},
        {"rate_per_s": None},
        {"concurrency": 3},
        {"arrivals": "bursts"},
    ],
)
def test_bad_traffic(changes: dict[str, object]) -> None:
    arguments = {"count": 3, "rate_per_s": 1.0, **changes}
    with pytest.raises(BadValue):
        generate_traffic(Lengths(10), Lengths(10), **arguments)  # type: ignore[arg-type]


def test_users_who_keep_step_have_equal_answers_from_the_start() -> None:
    """Those who drift apart begin with answers of half to all of the length."""
    apart, in_step = (
        generate_traffic(Lengths(10), Lengths(100), count=64, concurrency=16, drift_apart=drift)
        for drift in (True, False)
    )
    assert set(in_step.output_tokens.tolist()) == {100}
    assert apart.left_out.tolist() == in_step.left_out.tolist() == [True] * 16 + [False] * 48
    assert len(set(apart.output_tokens[:16].tolist())) > 8 and set(apart.output_tokens[16:].tolist()) == {100}


@pytest.mark.parametrize(("mean", "deviation"), [(217, 250), (1024, 256), (100, 90)])
def test_lengths_have_the_mean_and_the_deviation_that_are_given(mean, deviation) -> None:
    drawn = Lengths(mean, deviation).draw(200_000, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(mean, rel=0.01) and drawn.std() == pytest.approx(deviation, rel=0.02)


def test_long_simulations_of_constant_lengths_do_not_fall_into_step() -> None:
    """Every tenth answer of a user, which latencies leave out, is of another length."""
    traffic = generate_traffic(Lengths(10), Lengths(100), count=400, concurrency=16)
    assert np.flatnonzero(traffic.left_out).tolist() == [*range(16), *range(160, 176), *range(320, 336)]
    assert set(traffic.output_tokens[~traffic.left_out].tolist()) == {100}


def test_users_who_begin_anew_are_spread_as_at_first() -> None:
    """The later one of 1,000 users begins, by up to half of an answer, the shorter is it: ends are spread by a half."""
    users = 1000
    traffic = generate_traffic(Lengths(10), Lengths(1000), count=20 * users, concurrency=users)
    first, second = (traffic.output_tokens[start : start + users] for start in (0, 10 * users))
    begins = 500 * np.arange(users) / users
    for ends in (first, begins + second):
        assert (ends.min(), ends.max()) == pytest.approx((500, 1000), abs=5)
        assert ends.std() == pytest.approx(500 / np.sqrt(12), rel=0.05)


def test_replicas_take_requests_in_turn() -> None:
    traffic = generate_traffic(Lengths(10), Lengths(10), count=10, concurrency=5)
    parts = [traffic.every(2, start) for start in (0, 1)]
    assert [part.concurrency for part in parts] == [3, 2] and sum(map(len, parts)) == 10


def test_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n12.5,100,7\n10,50,3\n")
    traffic = read_trace(path)
    assert traffic.arrival_s.tolist() == [0, 2.5] and traffic.input_tokens.tolist() == [50, 100]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,input_tokens\n1,2\n", "output_tokens is missing"),
        ("arrival_s,input_tokens,output_tokens\n1,two,3\n", "line 2"),
        ("arrival_s,input_tokens,output_tokens\n1,2,0\n", "from 1 to 10,000,000"),
        ("arrival_s,input_tokens,output_tokens\n", "no requests"),
    ],
)
def test_damaged_traces_say_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadFile, match=message):
        read_trace(path)


def test_a_trace_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"none\.csv: there is no such file"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("name", "is_input", "mean", "p99"),
    [
        ("azure-conversation", True, 1155, 4142),
        ("azure-conversation", False, 211, 601),
        ("azure-code", True, 2048, 7436),
        ("azure-code", False, 28, 249),
    ],
)
def test_drawn_lengths_have_the_mean_of_the_published_trace(name: str, is_input: bool, mean: float, p99: float) -> None:
    """The means of the published files were not used: lengths of that mean show that the shape is close."""
    drawn = parse_lengths(name, "--tokens", is_input=is_input).draw(20_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(mean, rel=0.25)
    assert np.percentile(drawn, 99) == pytest.approx(p99, rel=0.05)


@pytest.mark.parametrize("text", ["1024:1e12", "0:10", "1e12"])
def test_either_wrong_mean_or_wrong_deviation_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="must be tokens from 1 to 10,000,000"):
        parse_lengths(text, "--input-tokens", True)


@pytest.mark.parametrize("line", ["inf,5,5", "0,0,5", "0,5,0"])
def test_a_trace_with_one_number_outside_its_range_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{line}\n")
    with pytest.raises(BadFile, match="arrival_s must be finite and both numbers of tokens from 1 to 10,000,000"):
        read_trace(path)


def test_more_users_than_requests_are_simulated_of_get_one_sentence():
    with pytest.raises(BadValue, match="1,000,000 users with 10 requests each send more than 2,000,000: give fewer"):
        generate_traffic(Lengths(10), Lengths(100), count=10_000_000, concurrency=1_000_000)


def test_long_answers_decode_more_often_at_their_contexts() -> None:
    """By hand: 10 iterations from 100 tokens on and 30 from 200 on; 105 and 215 tokens on average."""
    traffic = Traffic(np.zeros(2), np.array([100, 200]), np.array([10, 30]))
    assert traffic.mean_context == pytest.approx((10 * 105 + 30 * 215) / 40)

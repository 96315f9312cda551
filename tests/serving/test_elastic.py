"""Replicas that come and go: failures, autoscaling and the time in which servers start.

Tests: serving/elastic.py, serving/startup.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.errors import BadValue
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.reporting.serving import serving_page
from paleo_lite.serving.elastic import Count, Life, count_lives, paid_seconds
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.pools import Simulated
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import Traffic, generate_traffic
from paleo_lite.serving.startup import CAPTURE_S_PER_LAYER, COMPILE_S_PER_LAYER, PROGRAM_S, START_FACTOR, STARTS
from paleo_lite.serving.workloads import parse_workload

NETWORK = "llama-3.1-8b"


def simulate(traffic: Traffic, **options: Any) -> Simulated:
    deployment = make_deployment(pl.Serve(NETWORK, gpu="h100-sxm", **options))
    return prepare(deployment, traffic).simulate(traffic)


def times_of(simulated: Simulated, name: str) -> Any:
    return np.concatenate([getattr(outcome, name) for outcome in simulated.outcomes])


def at_rate(rate_per_s: float, count: int) -> Traffic:
    return generate_traffic(Lengths(500), Lengths(200), count=count, rate_per_s=rate_per_s)


def test_a_replica_that_fails_loses_what_it_has() -> None:
    """The requests that are under way without the failure are those that are sent again with it."""
    traffic, failed_s = at_rate(20, 600), 10.0
    lasting = simulate(traffic, replicas=2)
    under_way = [
        int(((outcome.arrival_s < failed_s) & (outcome.finish_s > failed_s)).sum()) for outcome in lasting.outcomes
    ]
    failing = simulate(traffic, replicas=2, scaling={"fail-at": "10s", "start": "5s"})
    assert abs(failing.restarted - max(under_way)) <= 1  # one may end in the iteration in which it fails
    assert len(times_of(failing, "finish_s")) == 600 and not np.isnan(times_of(failing, "finish_s")).any()
    assert sum(int(outcome.output_tokens.sum()) for outcome in failing.outcomes) == 600 * 200
    assert count_lives(failing.lives)[:3] == [Count(0.0, 2, 0), Count(10.0, 1, 1), Count(15.0, 2, 0)]


def test_requests_wait_for_the_start_of_the_only_replica() -> None:
    traffic = at_rate(4, 200)
    failing = simulate(traffic, scaling={"fail-at": "20s", "start": "12s"})
    sent_s, first_s = times_of(failing, "arrival_s"), times_of(failing, "first_token_s")
    down = (sent_s > 20) & (sent_s < 32)
    assert down.sum() == pytest.approx(48, abs=15) and (first_s[down] > 32).all()
    assert (first_s[sent_s < 18] < 20).all()


def test_failures_by_chance_have_their_mean_time() -> None:
    """A replica of 2 devices fails every 20 s if each of its devices does every 40 s."""
    failing = simulate(at_rate(2, 2000), tensor=2, scaling={"mtbf": "40s", "start": "1s"})
    assert len(failing.lives) - 1 == pytest.approx(1000 / 21, rel=0.3)
    result = pl.serve(NETWORK, gpu="h100-sxm", tensor=2, rate=1, num_requests=20, scaling="mtbf=50000h,start=90s")
    assert "a replica fails every 1,042 days" in " ".join(result.notes)


def test_the_autoscaler_decides_as_kubernetes_does() -> None:
    """64 users over a target of 16 are 4 replicas: 3 more are started at the first decision, after 15 s."""
    traffic = generate_traffic(Lengths(500), Lengths(200), count=3000, concurrency=64)
    scaling = {"max": 8, "target": 16}
    scaled = simulate(traffic, scaling={**scaling, "start": "10s"})
    assert count_lives(scaled.lives)[:3] == [Count(0.0, 1, 0), Count(15.0, 1, 3), Count(25.0, 4, 0)]
    assert max(count.serving for count in count_lives(scaled.lives)) == 4
    limited = simulate(traffic, scaling={**scaling, "max": 2, "start": "10s"})
    assert max(count.serving for count in count_lives(limited.lives)) == 2
    # 64 over 60 is within a tenth of 1.
    tolerated = simulate(traffic, scaling={"max": 8, "target": 60, "start": "10s"})
    assert max(count.serving for count in count_lives(tolerated.lives)) == 1


def test_replicas_end_after_a_while_without_need() -> None:
    """The highest recommendation of the last 60 s holds, which are over 60 s after the burst was answered."""
    burst = np.concatenate([np.zeros(2000), np.arange(5.0, 300.0, 1.0)])
    traffic = Traffic(burst, np.full(len(burst), 500), np.full(len(burst), 100))
    scaling = {"max": 4, "target": 32, "interval": "5s", "down_after": "60s"}
    scaled = simulate(traffic, scaling={**scaling, "start": "1s"})
    counts = count_lives(scaled.lives)
    assert max(one.serving for one in counts) == 4
    ended_s = next(one.time_s for one in counts if one.serving < 4 and one.time_s > 10)
    burst_s = float(np.sort(times_of(scaled, "finish_s"))[2000])
    assert 60 <= ended_s <= burst_s + 75
    assert counts[-2].serving == 1  # until the last answer
    assert not np.isnan(times_of(scaled, "finish_s")).any()


def test_only_replicas_that_are_there_are_paid_for() -> None:
    lives = [Life(0, 0, 100), Life(20, 30, 60)]
    assert paid_seconds(lives, 0, 100) == 140 and paid_seconds(lives, 50, 80) == 40
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 4, "num_requests": 200}
    lasting = pl.serve(NETWORK, replicas=4, **asked)
    scaled = pl.serve(NETWORK, scaling="max=4,target=64,start=10s", **asked)
    assert scaled.figures["mean_replicas"].value == 1 and scaled.replicas == 4
    usd = "usd_per_million_output_tokens"
    assert scaled.figures[usd].value == pytest.approx(lasting.figures[usd].value / 4)
    assert "up to 4 x H100" in serving_page(scaled).title and "up to" not in serving_page(lasting).title


def test_starts_are_within_their_factor_of_those_published() -> None:
    for start in STARTS:
        parts = {
            "program_s": PROGRAM_S,
            "compile_s": start.layers * COMPILE_S_PER_LAYER,
            "capture_s": start.layers * CAPTURE_S_PER_LAYER,
        }
        known = [name for name in parts if not math.isnan(getattr(start, name))]
        if len(known) > 1:
            ratio = sum(getattr(start, name) for name in known) / sum(parts[name] for name in known)
            assert 1 / START_FACTOR < ratio < START_FACTOR
    result = pl.serve(NETWORK, gpu="l40s", rate=1, num_requests=20, scaling="fail-at=5s")
    note = next(note for note in result.notes if note.startswith("a replica starts in"))
    # 233 s without the download: 94 + 33 + 10 + 42 + 54.
    assert 233 / START_FACTOR < float(note.split()[4]) < 233 * START_FACTOR


def test_the_seed_moves_the_failures_too() -> None:
    """The requests are the same: other replicas fail at other times."""
    requests, scaling = at_rate(8, 800), {"mtbf": "200s", "start": "5s"}
    first, again, other = (
        list(simulate(requests, tensor=2, replicas=4, scaling=scaling, seed=seed).lives) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_failure_after_the_last_request_gets_a_note() -> None:
    asked: dict[str, Any] = {"gpu": "l40s", "rate": 1, "num_requests": 20}
    late, early = (pl.serve(NETWORK, scaling=f"fail-at={time}", **asked).notes for time in ("1h", "5s"))
    assert [note for note in late if "no replica fails in that time" in note]
    assert not [note for note in early if "no replica fails in that time" in note]


def test_saturation_is_that_of_all_replicas() -> None:
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 4, "num_requests": 100}
    name = "saturation_requests_per_s"
    lasting = pl.serve(NETWORK, replicas=3, **asked).figures[name].value
    scaled = pl.serve(NETWORK, scaling="max=3,target=8", **asked)
    assert scaled.figures[name].value == pytest.approx(lasting)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scaling": "start=90s"}, "is for replicas that start"),
        ({"scaling": "max=4"}, "needs max=N, the most replicas, and target=N"),
        ({"scaling": "min=5,max=4,target=8"}, "needs 1 <= min <= max"),
        ({"scaling": "max=4,target=8", "replicas": 5}, "must be from min=1 to max=4"),
        ({"scaling": "max=4,target=8", "workers": 4}, "`--workers` is not for `--scaling`"),
        ({"scaling": "fail-at=5s", "slo": "tpot=50ms"}, "leave `--scaling` out"),
        ({"scaling": "fail-at=5s", "prefill_pool": "replicas=1"}, "replicas that do both"),
        ({"scaling": "fail-at=5s", "advise": "cost"}, "`--advise` ranks replicas alone"),
    ],
)
def test_what_does_not_go_together_gets_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.serve(NETWORK, gpu="h100-sxm", rate=1, num_requests=20, **options)


@pytest.mark.parametrize("router", ["sticky", "scored", "prefix"])
def test_sessions_find_their_prefixes_on_the_replicas_that_are_left(router: str) -> None:
    traffic = parse_workload("conversation:turns=6,question=1000,output=20").traffic(
        120, rate_per_s=2.0, concurrency=None, arrivals="fixed", seed=0
    )
    rates = {}
    for name in (router, "round-robin"):
        deployment = make_deployment(
            pl.Serve(NETWORK, gpu="h100-sxm", replicas=4, router=name, scaling="fail-at=20s,start=10s")
        )
        simulated = prepare(deployment, traffic).simulate(traffic)
        rates[name] = sum(outcome.found_tokens or 0 for outcome in simulated.outcomes) / traffic.input_tokens.sum()
    assert len(simulated.lives) == 5
    assert rates[router] > 1.5 * rates["round-robin"] and rates[router] > 0.5


def test_replicas_that_fail_before_they_answer_are_refused() -> None:
    with pytest.raises(BadValue, match="replicas fail before they answer"):
        pl.serve(NETWORK, gpu="h100-sxm", rate=30, replicas=3, num_requests=200, scaling="mtbf=1s")
    with pytest.raises(BadValue, match="must be a duration such as 36h or 10d"):
        pl.serve(NETWORK, gpu="h100-sxm", rate=30, replicas=3, scaling="mtbf=10m")


def test_published_starts_are_of_networks_with_so_many_layers() -> None:
    """Layers as in the config.json of each, and two bytes per parameter where the weights were read."""
    names = ("llama-3.1-8b", "llama-3.1-70b", "llama-3-8b", "llama-3.2-3b", "llama-3-8b")
    for start, network in zip(STARTS, map(find_network, names), strict=True):
        assert start.layers == network.blocks
        assert math.isnan(start.read_bytes) or start.read_bytes == pytest.approx(2 * network.parameters, rel=0.001)

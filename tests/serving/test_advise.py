"""Advice that can be trusted: order, headroom, objectives under the asked traffic, prices and progress.

Tests: serving/advise.py, serving/trials.py, serving/candidates.py, serving/wide.py, api/serve_advice.py, progress.py.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.cli.answers import progress_of_long_answers
from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device
from paleo_lite.progress import listening, report
from paleo_lite.questions.serve import advised_question
from paleo_lite.questions.serve_deployment import check_link, make_deployment
from paleo_lite.reporting.document import Table
from paleo_lite.reporting.serving import serving_page
from paleo_lite.serving.advise import _batch_limits, choose, nearest, reject, with_energy, with_saturation
from paleo_lite.serving.answers import Serving
from paleo_lite.serving.candidates import (
    Candidate,
    Criteria,
    DeploymentAdvice,
    DraftChoice,
    PrefillChoice,
    equal_to_best,
    rank,
    within,
)
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import Demand, generate_traffic
from paleo_lite.serving.saturation import saturate
from paleo_lite.serving.slo import Missed, Objective
from paleo_lite.serving.splits import PoolEstimate
from paleo_lite.serving.wide import WideEstimate, choose_wide, estimate_wide, wide_limits

SHORT: dict[str, Any] = {"tensor": 1, "num_requests": 60, "output_tokens": 32}

PREFILL = PrefillChoice("l40s", 1, 1, 1, 1, replicas=2, requests_per_s=1.0, low_requests_per_s=1.0)


def candidate(**changes: Any) -> Candidate:
    plain = Candidate(
        gpu="t4", precision="fp16", weights="fp16", tensor=1, pipeline=1, batch_limit=8, tokens_per_s_per_gpu=100.0,
        tokens_per_s_per_user=10.0, requests_per_s=1.0, ttft_s=0.1, tpot_s=0.1, latency_s=5.0, replicas=1,
        usd_per_million_output_tokens=1.0, usd_per_h=1.0, meets_objectives=True, price_usd_per_h=1.0,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


@pytest.fixture(scope="module")
def advised() -> Serving:
    result = pl.serve(
        "llama-3-8b", gpu="h100-sxm,l40s", rate=20, slo="tpot=12ms", advise="cost", tensor=1, output_tokens=64
    )
    assert isinstance(result, Serving)
    return result


def test_deployments_are_in_the_order_of_the_price_of_the_rate(advised: Serving) -> None:
    assert advised.advice is not None
    inside = [one for one in advised.advice.candidates if one.meets_objectives]
    assert [one.usd_per_h for one in inside] == sorted(one.usd_per_h for one in inside)
    assert advised.advice.best is advised.advice.candidates[0] and advised.advice.best.is_chosen
    assert sum(one.is_chosen for one in advised.advice.candidates) == 1
    outside = advised.advice.candidates[len(inside) :]
    assert outside and not any(one.meets_objectives for one in outside) and all(one.missed for one in outside)


def test_the_table_has_memory_power_energy_and_cost_of_a_device(advised: Serving) -> None:
    assert advised.advice is not None and advised.advice.best is not None
    best = advised.advice.best
    assert best.memory_bytes == advised.memory_bytes
    limit_w = find_device(best.gpu).power_w
    assert best.power_w is not None and limit_w is not None and 100 < best.power_w <= limit_w
    headings = {column.heading for column in advised.document().tables[0].columns}
    assert {"memory", "power", "kJ per 1M tokens", "USD per 1M tokens", "USD/h"} <= headings


@pytest.mark.thorough
def test_the_rate_leaves_headroom_below_the_printed_lower_end(advised: Serving) -> None:
    low = advised.figures["saturation_requests_per_s"].low
    assert low is not None and low * (1 - 0.1) >= 20
    roomy = pl.serve("llama-3-8b", gpu="h100-sxm", weights="fp8", rate=20, advise="cost", headroom=0.7, **SHORT)
    usual = pl.serve("llama-3-8b", gpu="h100-sxm", weights="fp8", rate=20, advise="cost", **SHORT)
    assert roomy.figures["saturation_requests_per_s"].low * (1 - 0.7) >= 20
    assert roomy.devices > usual.devices


def test_the_table_says_of_full_load_what_the_answer_says(advised: Serving) -> None:
    """Both are of a server with requests in all stages of their answers, for ever."""
    assert advised.advice is not None and advised.advice.best is not None
    best, tokens_per_s = advised.advice.best, advised.figures["saturation_tokens_per_s"].value
    assert tokens_per_s is not None
    assert best.tokens_per_s_per_gpu == pytest.approx(tokens_per_s / advised.devices, rel=0.03)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_table_says_of_users_what_their_benchmark_says(engine: str) -> None:
    """The table simulates three rounds of requests, and the answer ten."""
    result = pl.serve(
        "llama-3-8b", gpu="h100-sxm", weights="fp8", tensor=1, concurrency=32, engine=engine, advise="cost"
    )
    assert result.advice.best.batch_limit == 32 and result.advice.best.prefill is None
    answered = result.figures["output_tokens_per_s_per_gpu"].value
    assert result.advice.best.tokens_per_s_per_gpu == pytest.approx(answered, rel=0.01)


def test_the_page_marks_the_choice_and_names_whose_prices_it_has(advised: Serving) -> None:
    document = advised.document()
    facts = dict(document.facts)
    assert set(facts["prices"].split(": ")[1].removesuffix(" USD/h").split(", ")) == {"h100-sxm 6.88", "l40s 1.861"}
    assert facts["prices"].startswith("of AWS: ") and "MISSED" not in facts
    assert facts["cheapest"].endswith("% of the lower end of saturation free")
    words = ["serve", "llama-3-8b", "--gpu", "l40s", "--rate", "2", "--tensor", "1", "--advise", "cost"]
    shown = CliRunner().invoke(main, [*words, "--num-requests", "60", "--output-tokens", "32"]).stdout
    assert "Deployments, the cheapest for 2 requests/s first" in shown and shown.count("\n*  l40s") == 1
    document = advised.document(top=2)
    assert len(next(one for one in document.content if isinstance(one, Table) and "Deployments" in one.title).rows) == 2


def test_missed_objectives_are_named_with_the_nearest_deployment() -> None:
    result = pl.serve("llama-3-8b", gpu="l40s", rate=2, slo="tpot=3ms", advise="cost", **SHORT)
    assert result.advice.best is None and not any(one.is_chosen for one in result.advice.candidates)
    assert dict(result.document().facts)["MISSED"].startswith("tpot p90 ")
    assert "no deployment meets the objectives; shown is the one that comes nearest: tpot p90 " in result.notes[0]
    ratios = [one.objective_ratio for one in result.advice.candidates]
    assert nearest(result.advice).objective_ratio == min(ratios) > 1


def test_a_deployment_says_which_objectives_its_traffic_misses() -> None:
    question = {"gpu": "l40s", "rate": 1, "num_requests": 40, "output_tokens": 32}
    result = pl.serve("llama-3-8b", slo="tpot=1ms,ttft=10s", **question)
    assert [text.partition(" p90")[0] for text in result.slo["missed"]] == ["tpot"]
    assert pl.serve("llama-3-8b", slo="ttft=10s", **question).slo["missed"] == []


def test_order_of_candidates() -> None:
    cheap, dear = candidate(usd_per_h=1.0, latency_s=9.0), candidate(usd_per_h=2.0)
    quick = candidate(usd_per_h=1.0, latency_s=3.0)
    outside = candidate(usd_per_h=0.1, meets_objectives=False)
    bound = candidate(usd_per_h=0.1, is_forecast=False)
    unknown = candidate(usd_per_h=None, usd_per_million_output_tokens=None)
    order = rank([outside, dear, unknown, cheap, bound, quick], "cost", has_rate=True)
    assert order == [quick, cheap, dear, unknown, bound, outside]
    pools = candidate(usd_per_h=0.1 + 0.2, prefill=PREFILL, tokens_per_s_per_gpu=500.0)
    drafting = candidate(usd_per_h=0.3, draft=DraftChoice("mtp", 1, 0.8), tokens_per_s_per_gpu=400.0)
    fast, slow = (candidate(usd_per_h=0.3, tokens_per_s_per_gpu=speed, latency_s=speed) for speed in (300.0, 200.0))
    assert rank([pools, drafting, slow, fast], "cost", has_rate=True) == [fast, slow, drafting, pools]
    larger = candidate(usd_per_h=None, replicas=3)
    assert rank([larger, unknown], "cost", has_rate=True) == [unknown, larger]  # without any price, fewer devices
    few = candidate(joules_per_million_output_tokens=1.0, usd_per_h=9.0)
    many = candidate(joules_per_million_output_tokens=2.0)
    assert rank([many, few], "joules", has_rate=False) == [few, many]
    busy, waiting = (
        candidate(joules_per_million_output_tokens=at_full_load, rate_joules_per_million_output_tokens=at_rate)
        for at_full_load, at_rate in ((2.0, 3.0), (1.0, 4.0))
    )
    assert rank([waiting, busy], "joules", has_rate=True) == [busy, waiting]


def test_energy_is_ranked_at_the_rate() -> None:
    """At a rate devices wait, and draw their idle power: what is best at full load is not what is best at the rate."""
    result = pl.serve("llama-3-8b", gpu="l40s", rate=3, weights="fp8", advise="joules", max_sequences=8, **SHORT)
    best = result.advice.best
    energies = [one.rate_joules_per_million_output_tokens for one in result.advice.candidates if one.meets_objectives]
    assert best.rate_joules_per_million_output_tokens == min(energies)
    assert best.rate_joules_per_million_output_tokens == result.figures["joules_per_million_output_tokens"].value
    assert best.rate_joules_per_million_output_tokens > 1.2 * best.joules_per_million_output_tokens
    shown = f"{best.rate_joules_per_million_output_tokens / 1e3:,.0f} kJ per 1M tokens"
    assert shown in dict(result.document().facts)["least energy"]


def test_the_energy_of_an_answer_is_ranked() -> None:
    """What the answer says over the estimate holds for the other batch limits of the same replicas, too."""
    first, same = (
        candidate(rate_joules_per_million_output_tokens=3.0),
        candidate(rate_joules_per_million_output_tokens=3.1, batch_limit=16),
    )
    other = candidate(rate_joules_per_million_output_tokens=3.5, weights="fp8")
    advice = choose(DeploymentAdvice([first, same, other], None, {}, by="joules", rate_per_s=1.0))
    kept, is_kept = with_energy(advice, 3.3)
    assert is_kept and kept.best is not None and kept.best.rate_joules_per_million_output_tokens == pytest.approx(3.3)
    replaced, is_kept = with_energy(advice, 3.9)
    assert not is_kept and replaced.best is not None and replaced.best.weights == "fp8"


def test_a_choice_among_equal_deployments_says_so() -> None:
    plain, larger = candidate(usd_per_h=0.3, is_chosen=True), candidate(usd_per_h=0.3, batch_limit=16)
    pools = candidate(usd_per_h=0.1 + 0.2, prefill=PREFILL)
    advice = choose(DeploymentAdvice([plain, larger, pools, candidate(usd_per_h=0.4)], None, {}, rate_per_s=1.0))
    assert equal_to_best(advice) == [pools.deployment]
    assert equal_to_best(choose(DeploymentAdvice([plain, larger], None, {}, rate_per_s=1.0))) == []
    assert equal_to_best(DeploymentAdvice([plain, pools], None, {}, rate_per_s=1.0)) == []


def test_a_choice_that_misses_under_its_traffic_is_replaced() -> None:
    first, second = candidate(usd_per_h=1.0), candidate(usd_per_h=2.0)
    advice = choose(DeploymentAdvice([first, second], None, {}, rate_per_s=1.0))
    missed = Missed(Objective("ttft", "p90", 0.5), 0.75)
    replaced = reject(advice, [missed])
    assert replaced.best is not None and replaced.best.usd_per_h == 2.0
    assert replaced.candidates[1].missed == ("ttft p90 750 ms",)
    assert replaced.candidates[1].objective_ratio == 1.5 and not replaced.candidates[1].is_chosen


def test_a_lower_saturation_rate_needs_more_replicas() -> None:
    first, second = candidate(usd_per_h=2.0, replicas=2, low_requests_per_s=6.0), candidate(usd_per_h=2.5)
    advice = choose(DeploymentAdvice([first, second], None, {}, rate_per_s=10.0))
    same, is_kept = with_saturation(advice, 11.5)
    assert is_kept
    assert same.best is not None and same.best.replicas == 2 and same.best.low_requests_per_s == 11.5 / 2
    other, is_kept = with_saturation(advice, 9.0)
    assert not is_kept and other.best is not None and other.best.usd_per_h == 2.5
    assert [one.replicas for one in other.candidates] == [1, 3]


@pytest.mark.parametrize(("workers", "is_enough"), [(8, True), (1, False)])
def test_workers_limit_the_devices_of_all_replicas(workers: int, is_enough: bool) -> None:
    """What two replicas are needed for, one device cannot carry: the nearest is shown, and nothing is recommended."""
    result = pl.serve(
        "llama-3-8b", gpu="h100-sxm", weights="bf16", rate=50, advise="cost", workers=workers, max_sequences=16, **SHORT
    )
    assert result.advice is not None
    best = result.advice.best
    if is_enough:
        assert best is not None and 1 < best.replicas * best.tensor <= workers
    else:
        assert best is None and all(one.missed[-1].endswith(" instead of 1") for one in result.advice.candidates)
        assert result.notes[0].startswith("no deployment fits into `--workers 1`")
        document = result.document()
        assert ("MISSED", f"{result.devices} devices, of which `--workers` allows 1") in document.facts
        assert document.title.startswith("DOES NOT FIT into 1 device")
        assert f"the nearest needs {result.devices}: llama-3-8b on {result.devices} x H100" in document.title
    assert result.exceeds_workers is not is_enough


def test_a_lower_saturation_rate_may_need_more_devices_than_there_are() -> None:
    first, second = candidate(usd_per_h=2.0, replicas=2, low_requests_per_s=6.0), candidate(usd_per_h=2.5)
    advice = choose(DeploymentAdvice([first, second], None, {}, rate_per_s=10.0))
    other, is_kept = with_saturation(advice, 9.0, devices=2)
    assert not is_kept and other.best is not None and other.best.usd_per_h == 2.5
    assert other.candidates[1].missed == ("3 devices instead of 2",) and not other.candidates[1].meets_objectives


@pytest.mark.thorough
def test_bounds_are_not_the_cheapest_among_forecasts() -> None:
    result = pl.serve(
        "llama-3.2-1b", gpu="h100-sxm,tpu-v6e", weights="bf16", rate=2, advise="cost", max_sequences=4, **SHORT
    )
    assert result.gpu == "h100-sxm"
    assert {one.gpu: one.is_forecast for one in result.advice.candidates} == {"h100-sxm": True, "tpu-v6e": False}
    assert "bounds from the data sheet are ranked after forecasts: tpu-v6e" in result.notes


@pytest.mark.thorough
def test_a_ranking_over_clouds_says_so() -> None:
    """AWS lists no MI300X, and Vultr no H100."""
    asked: dict[str, Any] = {"gpu": "h100-sxm,mi300x", "advise": "cost", "concurrency": 2, **SHORT}
    mixed = "the ranking compares offers of AWS, Vultr, none of which lists all devices: give `--price AWS`"
    assert any(note.startswith(mixed) for note in pl.serve("llama-3-8b", **asked).notes)
    for options in ({"price": "cheapest"}, {"price": "3 USD/h"}, {"gpu": "h100-sxm,l40s"}, {"advise": "joules"}):
        assert not any("offers of" in note for note in pl.serve("llama-3-8b", **{**asked, **options}).notes)


def test_a_ranking_without_prices_or_a_choice_says_so() -> None:
    asked: dict[str, Any] = {"advise": "cost", "concurrency": 2, **SHORT}
    document = pl.serve("llama-3-8b", gpu="h20", **asked).document()
    assert document.tables[0].title.startswith("Deployments, as no price is known those of the fewest devices first")
    assert "fewest devices" in dict(document.facts) and "cheapest" not in dict(document.facts)
    missed = pl.serve("llama-3-8b", gpu="h100-sxm", slo="tpot=1ms", **asked).document()
    assert "none is chosen: each misses something" in missed.tables[0].title


def test_the_nearest_has_no_more_devices_than_there_are() -> None:
    """One device misses the objective by far, and eight by less."""
    few = candidate(meets_objectives=False, objective_ratio=30.0)
    many = candidate(meets_objectives=False, objective_ratio=8.0, replicas=8)
    assert nearest(DeploymentAdvice([many, few], None, {}, devices=1)) is few
    assert nearest(DeploymentAdvice([many, few], None, {})) is many
    assert nearest(DeploymentAdvice([many], None, {}, devices=1)) is many


def test_reasons_are_said_once() -> None:
    result = pl.serve("llama-3-70b", gpu="l4", rate=1, advise="cost", weights="bf16", num_requests=20, max_sequences=2)
    notes = [note for note in result.document().notes if note.startswith("not simulated")]
    reasons = [note.rpartition(": ")[2] for note in notes]
    assert len(reasons) == len(set(reasons)) and notes


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"rate": 1, "headroom": 0.2}, "`--headroom` is for `--advise` with `--rate`"),
        ({"advise": "cost", "headroom": 0.2}, "`--headroom` is for `--advise` with `--rate`"),
        ({"advise": "cost", "rate": 1, "headroom": 1}, "`--headroom` must be a fraction >= 0 and < 1"),
        ({"advise": "cost", "rate": 1, "price": "Lambda", "gpu": ["mi300x", "k80"]}, "Lambda has no price of"),
    ],
)
def test_impossible_advice_gets_one_sentence(question: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        pl.serve("llama-3-8b", **{"gpu": "h100-sxm", **question})


def test_all_requests_at_once_need_one_replica() -> None:
    result = pl.serve("llama-3-8b", gpu="l40s", rate="inf", advise="cost", weights="fp8", **SHORT)
    assert {one.replicas for one in result.advice.candidates if one.prefill is None} == {1}


@pytest.mark.thorough
def test_progress_is_reported_to_who_listens() -> None:
    heard: list[tuple[int, int]] = []
    with listening(lambda completed, total: heard.append((completed, total))):
        pl.serve("llama-3.2-1b", gpu="h100-sxm,l40s", rate=1, advise="cost", weights="fp8", **SHORT)
    report(1, 2)  # nobody listens any more
    assert heard[0] == (0, 2) and len(heard) >= 2


def test_progress_is_shown_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, int]] = []

    class Bar:
        def __enter__(self) -> Any:
            return lambda completed, total: shown.append((completed, total))

        def __exit__(self, *_: object) -> None:
            shown.append((-1, -1))

    monkeypatch.setattr("paleo_lite.cli.answers.progress", lambda label: Bar())
    times = iter([0.0, 0.4, 1.1])
    with progress_of_long_answers("serve", clock=lambda: next(times)):
        for completed in range(4):  # no time is read once the bar is shown
            report(completed, 4)
    assert shown == [(1, 4), (2, 4), (3, 4), (-1, -1)]


def test_the_answer_is_that_of_the_choice() -> None:
    """Also where the first choice saturates earlier than with a request always waiting, and another is taken."""
    result = pl.serve("llama-3-8b", gpu="h100-sxm", tensor=1, weights="fp8", rate=20, slo="tpot=30ms", advise="cost")
    best = result.advice.best
    assert result.replicas == best.replicas and f"{best.batch_limit:,} sequences" in result.engine_limits
    low = result.figures["saturation_requests_per_s"].low
    assert low == pytest.approx(best.low_requests_per_s * best.replicas) and low * 0.9 >= 20


@pytest.mark.thorough
def test_table_shows_what_is_missed_and_leaves_out_what_has_too_many_devices() -> None:
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 10, "slo": "tpot=20ms", "tensor": 1, "advise": True}
    few = pl.serve("llama-3.1-8b", workers=2, **asked)
    table = next(one for one in serving_page(few).content if isinstance(one, Table) and "Deployments" in one.title)
    assert few.advice is not None
    beyond = [*few.advice.too_large, *(one for one in few.advice.candidates if one.devices > 2)]
    assert few.advice.too_large and f"without {len(beyond)} that need more than 2 devices" in table.title
    assert "tokens at full load, not at the rate" in table.title
    assert all(row["replicas"] <= 2 for row in table.rows)
    none = pl.serve("llama-3.1-70b", workers=1, **{**asked, "tensor": 4})
    table = next(one for one in serving_page(none).content if isinstance(one, Table) and "Deployments" in one.title)
    missed = next(column for column in table.columns if column.key == "missed")
    assert missed.drop_order == 0  # no width leaves it out
    assert table.rows and all("instead of 1" in " ".join(row["missed"]) for row in table.rows)


@pytest.mark.thorough
def test_published_weights_are_the_widest_that_advice_tries() -> None:
    """DeepSeek-R1 is published in blocks of fp8, and B200 computes in fp4; gpt-oss is published in mxfp4."""
    asked: dict[str, Any] = {"concurrency": 8, "output_tokens": 32, "advise": "cost"}
    large = pl.serve("deepseek-r1", gpu="b200", tensor=8, **asked)
    assert large.advice is not None
    assert {one.weights for one in large.advice.candidates} == {"fp8-block", "nvfp4"}
    small = pl.serve("gpt-oss-20b", gpu="h100-sxm", tensor=1, **asked)
    assert small.advice is not None and {one.weights for one in small.advice.candidates} == {"mxfp4"}
    given = pl.serve("gpt-oss-20b", gpu="h100-sxm", tensor=1, precision="bf16", **asked)
    assert given.advice is not None and {one.weights for one in given.advice.candidates} == {"bf16", "fp8"}


@pytest.mark.thorough
def test_experts_over_several_nodes_are_not_tried_with_one_link() -> None:
    asked: dict[str, Any] = {"gpu": "h100-sxm", "concurrency": 4, "output_tokens": 16, "advise": "cost"}
    wide = "experts divided among more than 8 devices were not tried"
    for network, options, is_noted in (
        ("gpt-oss-20b", {"link": "nvlink4"}, True),
        ("gpt-oss-20b", {}, False),
        ("gpt-oss-20b", {"link": "nvlink4", "tensor": 2}, False),
        ("llama-3.1-8b", {"link": "nvlink4"}, False),
    ):
        assert (wide in " ".join(pl.serve(network, **asked, **options).notes)) == is_noted


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("network", "platform", "degree", "engine"),
    [
        ("deepseek-r1", "dgx-h200", 16, "vllm"),
        ("deepseek-r1", "gb200-nvl72", 32, "sglang"),
        ("gpt-oss-120b", "dgx-h100", 16, "vllm"),
    ],
)
def test_the_estimate_of_a_wide_replica_is_what_its_simulation_sustains(
    network: str, platform: str, degree: int, engine: str
) -> None:
    question = pl.Serve(
        network, platform=platform, tensor=degree, expert_parallel=degree, attention_data_parallel=degree, engine=engine
    )
    limits = (8 * degree, 32 * degree)
    traffic = generate_traffic(Lengths(1024), Lengths(512), count=3 * limits[1], concurrency=limits[1])
    prepared = prepare(make_deployment(question), traffic)
    estimates = estimate_wide([PoolEstimate(prepared.deployment, prepared, traffic, batch_limits=limits)])
    assert [estimate.batch_limit for estimate in estimates] == list(limits)
    for estimate in estimates:
        limited = prepare(prepared.deployment.with_sequences(estimate.batch_limit), traffic)
        assert estimate.requests_per_s == pytest.approx(saturate(limited, traffic)[0], rel=0.06)
        assert estimate.low_requests_per_s < estimate.requests_per_s


def test_only_wide_replicas_that_may_be_the_best_are_simulated() -> None:
    degrees = {"tensor": 16, "expert_parallel": 16, "attention_data_parallel": 16}
    lengths = Lengths(1000), Lengths(100)
    traffic = generate_traffic(*lengths, count=30, concurrency=10)
    deployment = make_deployment(pl.Serve("gpt-oss-20b", platform="dgx-h100", **degrees))
    pool = PoolEstimate(deployment, prepare(deployment, traffic), traffic)
    usd_per_h = 16 * 6.88
    assert pool.price_usd_per_h == pytest.approx(usd_per_h)
    quick, slow = (WideEstimate(pool, 64, None, rate, rate / 2, 0.1, 0.02) for rate in (40.0, 20.0))
    demand = Demand(*lengths, rate_per_s=18.0)  # 20 requests per second with the headroom
    other = candidate(usd_per_h=usd_per_h)

    def chosen(
        objectives: tuple[Objective, ...] = (), others: tuple[Candidate, ...] = (), **criteria: Any
    ) -> list[Any]:
        return choose_wide([slow, quick], others, demand, objectives, Criteria(**criteria))

    assert chosen() == [quick, slow]  # one replica, and two
    assert chosen(others=(other,)) == [quick]
    assert chosen(others=(msgspec.structs.replace(other, meets_objectives=False),)) == [quick, slow]
    assert chosen((Objective("tpot", "p90", 0.01),)) == []
    assert wide_limits(16, None) == (64, 128, 256, 512, 1024, 2048, 4096)
    assert wide_limits(16, 100) == (64, 100)


@pytest.mark.thorough
def test_users_who_pay_by_the_hour_get_the_cheapest_hour() -> None:
    """Sixteen users on two devices for 4 USD/h, or on one for 3: the former have cheaper tokens."""
    large = candidate(usd_per_million_output_tokens=1.0, usd_per_h=4.0)
    small = candidate(usd_per_million_output_tokens=1.2, usd_per_h=3.0)
    assert rank([small, large], "cost", has_rate=False) == [large, small]
    assert rank([large, small], "hourly", has_rate=False) == [small, large]
    asked: dict[str, Any] = {"gpu": "h100-sxm", "concurrency": 64, "output_tokens": 64, "slo": "tpot=50ms"}
    prices = {}
    for by in ("cost", "hourly"):
        answer = pl.serve("llama-3.1-8b", advise=by, **asked)
        assert answer.advice is not None and answer.advice.best is not None
        prices[by] = answer.advice.best.usd_per_h
    assert prices["hourly"] <= prices["cost"]
    assert prices["hourly"] == min(one.usd_per_h for one in answer.advice.candidates if one.meets_objectives)
    assert "the cheapest per hour first" in str(serving_page(answer).tables)


def test_wide_replicas_are_compared_by_the_hour() -> None:
    degrees = {"tensor": 16, "expert_parallel": 16, "attention_data_parallel": 16}
    deployment = make_deployment(pl.Serve("gpt-oss-20b", platform="dgx-h100", **degrees))
    traffic = generate_traffic(Lengths(64), Lengths(16), count=64, concurrency=16)
    pool = PoolEstimate(deployment, prepare(deployment, traffic), traffic)
    quick = WideEstimate(pool, 64, None, 20.0, 18.0, 0.1, 0.01)
    roomy = WideEstimate(pool, 128, None, 15.0, 14.0, 0.1, 0.01)
    demand = Demand(Lengths(64), Lengths(16), concurrency=100)
    for by, best in (("cost", quick), ("hourly", roomy)):
        assert choose_wide([quick, roomy], [], demand, (), Criteria(by))[0] is best


def test_more_ranks_have_more_sequences() -> None:
    """256 sequences of each rank: 4,096 users are two replicas of eight ranks, not eight."""
    demand = Demand(Lengths(1000), Lengths(100))
    assert _batch_limits(demand)[-1] == _batch_limits(demand, 2)[-1] == 512
    assert _batch_limits(demand, 8)[-3:] == (512, 1024, 2048)
    users = msgspec.structs.replace(demand, concurrency=700)
    assert _batch_limits(users, 8)[-2:] == (512, 700) and _batch_limits(users)[-2:] == (256, 512)


def test_the_command_leaves_the_computers_of_a_replica_to_its_deployment() -> None:
    """Without a platform a replica of more devices than a node has is on the usual computers, as in the search."""
    degrees = {"tensor": 16, "expert_parallel": 16, "attention_data_parallel": 16}
    best = candidate(gpu="h200-sxm", **degrees)
    alone = advised_question(pl.Serve("deepseek-r1", gpu="h200-sxm", rate=5, advise="cost"), best)
    assert alone.platform is None and alone.tensor == 16
    named = dataclasses.replace(alone, platform="dgx-h200", gpu=None)
    groups = [make_deployment(question).on_device.group for question in (alone, named)]
    assert groups[0] is not None and groups[1] is not None
    assert (groups[0].nodes, groups[0].links) == (groups[1].nodes, groups[1].links) and groups[0].nodes == 2
    given = pl.Serve("deepseek-r1", platform="dgx-h200", rate=5, advise="cost")
    assert advised_question(given, best).platform == "dgx-h200"


@pytest.mark.slow
def test_the_command_of_pools_of_single_devices_has_no_link() -> None:
    """A link joins the devices of a replica: where both pools have one device each, the question is refused with it."""
    question = pl.Serve(network="llama-3.1-8b", gpu="l40s", link="pcie4-x16", rate="1", advise="cost")
    best = candidate(gpu="l40s", precision="bf16", weights="bf16", prefill=PREFILL)
    check_link(advised_question(question, best))
    assert advised_question(question, best).link is None
    both = msgspec.structs.replace(best, tensor=2)
    check_link(advised_question(question, both))
    assert advised_question(question, both).link == "pcie4-x16"


def test_one_of_anything_is_singular() -> None:
    assert Demand(Lengths(10), Lengths(10), rate_per_s=float("inf")).describe(1) == "1 request at once"
    assert within(candidate(replicas=3), 1).missed == ("3 devices instead of 1",)


@pytest.mark.thorough
def test_experts_are_divided_over_the_nodes_of_a_rack() -> None:
    """The command gives the same answer, which meets the objective."""
    asked: dict[str, Any] = {"input_tokens": 2000, "output_tokens": 200, "concurrency": 256, "weights": "nvfp4"}
    result = pl.serve("deepseek-r1", gpu="gb200", slo="tpot=60ms", workers=72, advise="cost", **asked)
    assert result.advice.best is not None and not result.slo["missed"]
    wide = [one for one in result.advice.candidates if one.tensor > 8]
    assert wide and {one.attention_data_parallel for one in wide} <= {16, 32, 64}
    words = shlex.split(result.advice.command)[1:]
    again = json.loads(CliRunner().invoke(main, [*words, "--format", "json"]).stdout)
    assert again["latencies"]["tpot_s"]["p90"]["value"] == result.latencies["tpot_s"]["p90"].value


def test_advice_without_a_value_is_by_the_usual_figure() -> None:
    assert pl.Serve("llama-3-8b", gpu="h100-sxm", advise=True) == pl.Serve("llama-3-8b", gpu="h100-sxm", advise="cost")
    assert pl.Serve("llama-3-8b", gpu="h100-sxm", advise=False).advise is None
    assert pl.Train("llama-3-8b", gpu="h100-sxm", workers=8, advise=True).advise == "time"
    words = "serve llama-3-8b --gpu h100-sxm --tensor 1 --concurrency 2 --output-tokens 16 --advise --format json"
    asked = json.loads(CliRunner().invoke(main, words.split()).output)
    assert asked["advice"]["by"] == "cost"


def test_a_rate_beyond_all_replicas_is_named() -> None:
    with pytest.raises(BadValue, match=r"`--rate` 100,000 needs [0-9,]+ replicas, of which 2,000 can be simulated"):
        pl.serve("llama-3.1-8b", gpu="h100-sxm", tensor=1, rate=100_000, advise="cost")


@pytest.mark.slow
def test_what_nearly_meets_an_objective_is_tried_with_the_asked_users() -> None:
    """All users of the short simulations begin together: none met 3 s, and the one shown as nearest has 2.97 s."""
    advised = pl.serve(
        "deepseek-r1", gpu="h200-sxm", workers=16, concurrency=128, input_tokens=2000, output_tokens=500,
        engine="sglang", slo="ttft=3s", advise="cost",
    )  # fmt: skip
    assert advised.advice is not None and advised.advice.best is not None and advised.slo["missed"] == []
    assert advised.latencies["ttft_s"]["p90"].value <= 3
    assert not any("no deployment meets" in note for note in advised.notes)

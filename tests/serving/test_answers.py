"""Answers, objectives and advice about deployments, through the Python function and the command.

Tests: serving/figures.py, serving/notes.py, serving/slo.py, serving/outcomes.py,
reporting/serving.py, reporting/charts/serving.py,
api/deployments.py, questions/serve.py, questions/serve_deployment.py, serving/requests.py,
serving/placement.py.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.engines.constants import engine_constants
from paleo_lite.errors import BadValue, PaleoError
from paleo_lite.reporting.page.sections import figures_of
from paleo_lite.reporting.serving import serving_page
from paleo_lite.serving import notes as serving_notes
from paleo_lite.serving.answers import Serving
from paleo_lite.serving.candidates import mark_front
from paleo_lite.serving.figures import FIGURES
from paleo_lite.serving.outcomes import LATENCIES, MOST_NOTES, ReplicaLog, share_within
from paleo_lite.serving.slo import Objective, parse_slo
from paleo_lite.units import format_si


@pytest.fixture(scope="module")
def serving() -> Serving:
    return pl.serve("llama-3-8b", gpu="h100-sxm", rate=5, num_requests=300)


def test_users_that_keep_step_are_named_with_what_draws_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.5 computes prompts before it goes on decoding: 64 users with equal answers send theirs together."""
    asked: dict[str, Any] = {
        "gpu": "h100-sxm", "engine": "vllm-0.5", "concurrency": 64, "num_requests": 256, "input_tokens": 2000,
    }  # fmt: skip

    def notes(**more: Any) -> list[str]:
        return [note for note in pl.serve("llama-3-8b", **{**asked, **more}).notes if "keep users in step" in note]

    (note,) = notes(output_tokens=200)
    said = re.search(r"`--output-tokens (\d+):(\d+)` .* after ([\d.]+) (m?s) instead of ([\d.]+) (m?s) \(p90\)", note)
    assert said is not None
    mean, deviation, drawn, drawn_unit, equal, equal_unit = said.groups()
    scale = {"ms": 1e-3, "s": 1.0}
    assert float(equal) * scale[equal_unit] > float(drawn) * scale[drawn_unit]
    assert notes(output_tokens=f"{mean}:{deviation}") == []  # answers are drawn already
    assert notes(output_tokens=1) == []  # nothing decodes
    assert notes(output_tokens=200, concurrency=1, num_requests=20) == []  # nobody else sends a prompt
    lengths: list[int] = []
    find_notes = serving_notes.in_step_notes

    def find_and_count(prepared: Any, traffic: Any, ttft_s: float | None) -> list[str]:
        lengths.append(len(traffic))
        return find_notes(prepared, traffic, ttft_s)

    monkeypatch.setattr("paleo_lite.serving.answers.in_step_notes", find_and_count)
    for below, is_said in ((0, True), (1, False)):  # beside the longest traffic that is simulated again
        notes(output_tokens=200)
        monkeypatch.setattr(serving_notes, "MOST_DRAWN", lengths[-1] - below)
        assert bool(notes(output_tokens=200)) == is_said


def test_figures_and_intervals(serving: Serving) -> None:
    assert set(serving.latencies) == set(LATENCIES) and set(serving.figures) == set(FIGURES)
    for figure in [*serving.figures.values(), *(one for parts in serving.latencies.values() for one in parts.values())]:
        assert figure.value is not None and figure.low is not None and figure.high is not None
        assert figure.low <= figure.value <= figure.high
    latency = serving.latencies["latency_s"]
    assert latency["p50"].value < latency["p90"].value < latency["p99"].value


def test_progress_of_a_long_simulation_is_kept_at_some_times() -> None:
    """The first and the last stay, and sums up to those that are kept are exact."""
    log = ReplicaLog([], [], blocks=9, finds_prefixes=False)
    for second in range(1, 20_001):
        log.pass_time(float(second), 1.0, iterations=2, used_blocks=3, sequences=4)
    outcome = log.outcome(20_000.0, [], adapter_loads=0, chosen=slice(None))
    progress = outcome.progress.tolist()
    assert MOST_NOTES / 2 <= len(progress) <= MOST_NOTES + 1
    assert progress[0] == [0.0, 0.0, 0.0, 0.0]
    assert progress[-1] == [20_000.0, 20_000.0, 60_000.0, 80_000.0]
    assert all(noted == [noted[0], noted[0], 3 * noted[0], 4 * noted[0]] for noted in progress)
    assert outcome.iterations == 40_000 and outcome.peak_blocks == 3 and outcome.found_tokens is None


def test_cost_is_price_over_tokens(serving: Serving) -> None:
    per_s = serving.figures["output_tokens_per_s"].value
    assert per_s is not None
    # 6.88 USD/h in the device's data file
    assert serving.figures["usd_per_million_output_tokens"].value == pytest.approx(6.88 / 3600 / per_s * 1e6)
    answer = serving.to_dict()
    assert answer["usd_per_million"] == pytest.approx(6.88 / 3600 / per_s * 1e6)
    assert answer["usd_per_million_requests"] == pytest.approx(6.88 / 3600 / answer["throughput_per_s"] * 1e6)
    costs = [figure for figure in figures_of(serving) if figure.name == "Cost"]
    assert [figure.detail for figure in costs] == ["per million output tokens"]


def test_an_overloaded_server_says_so_first(serving: Serving) -> None:
    """By hand: 100 prompts of 1,024 tokens a second at 2 x 8.03 G FLOP a token are 1.6 of the H100's 0.989 PFLOP/s.

    The 5 of the fixture are 0.08 PFLOP/s, and reading 16.06 GB of weights for each of 256 tokens at 3.35 TB/s takes
    1.2 s, in which 6 requests arrive and share the reading.
    """
    result = pl.serve("llama-3-8b", gpu="h100-sxm", rate=100, num_requests=300)
    assert "exceed the saturation rate" in result.notes[0]
    assert result.document().title.startswith("OVERLOADED, at most ")
    assert result.is_overloaded and result.offered_requests_per_s == pytest.approx(100, rel=0.2)
    assert not serving.is_overloaded and serving.document().title.startswith("llama-3-8b on ")


def test_requests_that_all_come_at_once_are_no_overload() -> None:
    at_once = pl.serve("llama-3-8b", gpu="h100-sxm", rate=float("inf"), num_requests=20)
    assert at_once.offered_requests_per_s is None and not at_once.is_overloaded


def test_overload_is_said_of_requests_that_arrive_at_a_rate_only() -> None:
    asked: dict[str, Any] = {"gpu": ["h100-sxm", "h200-sxm"], "num_requests": 64}
    closed = pl.serve("llama-3-8b", concurrency=64, **asked).to_dict()["rows"]
    assert [row.get("overloaded") for row in closed] == [None, None]
    opened = pl.serve("llama-3-8b", rate=[1, 1000], **{**asked, "gpu": "h100-sxm"}).to_dict()["rows"]
    assert [row["overloaded"] for row in opened] == ["no", "yes"]


def test_json_and_csv_of_the_command(serving: Serving) -> None:
    words = "serve llama-3-8b --gpu h100-sxm --rate 5 --num-requests 300"
    result = CliRunner().invoke(main, [*words.split(), "--format", "json"])
    assert json.loads(result.output) == json.loads(json.dumps(serving.to_dict()))
    table = CliRunner().invoke(main, [*words.split(), "--format", "csv"]).output
    assert table.startswith("figure,value,low,high\nttft_s_mean,")


def test_objectives_in_seconds_by_name() -> None:
    """In Python a dict says what the words of the command line do: 0.5 is 500 ms."""
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 4, "num_requests": 64}
    named, said = (
        pl.serve("qwen3-8b", slo=slo, **asked).slo
        for slo in ({"ttft": 0.5, "tpot.p99": "50ms"}, "ttft=500ms,tpot.p99=50ms")
    )
    assert named == said
    for slo, message in (
        ({}, "has no limit"),
        ({"ttft": None}, "takes seconds, or times such as 500ms"),
        ({"ttft": -1}, "times > 0"),
        ({"tbt": 1.0}, "limits of ttft, tpot, latency"),
    ):
        with pytest.raises(BadValue, match=message):
            pl.serve("qwen3-8b", slo=slo, **asked)


@pytest.mark.parametrize("traffic", [{"rate": 4, "arrivals": "fixed"}, {"concurrency": 8}])
def test_one_seed_moves_all_that_is_left_to_chance(traffic: dict[str, Any]) -> None:
    """Lengths and times are fixed: delays of requests on their way to the scheduler are drawn, too."""
    asked: dict[str, Any] = {"gpu": "h100-sxm", "num_requests": 64, **traffic}
    first, again, other = (pl.serve("qwen3-8b", seed=seed, **asked).latencies for seed in (1, 1, 2))
    assert first == again != other
    assert first["tpot_s"]["mean"].value == pytest.approx(other["tpot_s"]["mean"].value, rel=0.05)


def test_objectives() -> None:
    assert parse_slo("ttft=500ms,tpot.p99=50 ms") == (Objective("ttft", "p90", 0.5), Objective("tpot", "p99", 0.05))
    for text in ("ttft", "ttft=0", "tbt=1s", "ttft.p42=1s"):
        with pytest.raises(BadValue, match="--slo"):
            parse_slo(text)


def test_the_highest_rate_meets_the_objectives_and_a_higher_one_does_not() -> None:
    arguments = {"gpu": "h100-sxm", "num_requests": 1000, "input_tokens": 500, "output_tokens": 100}
    result = pl.serve("llama-3-8b", rate=1, slo="tpot=12ms", **arguments)  # type: ignore[arg-type]
    assert result.slo is not None
    highest = result.slo["highest_requests_per_s"]
    below, above = (
        pl.serve("llama-3-8b", rate=factor * highest, **arguments).latencies["tpot_s"]["p90"].value
        for factor in (0.95, 1.15)
    )
    assert below < 12e-3 < above
    none = pl.serve("llama-3-8b", rate=1, slo="tpot=1ms", **arguments)  # type: ignore[arg-type]
    assert none.slo is not None and none.slo["highest_requests_per_s"] is None


def test_advice_is_the_cheapest_that_meets_the_objectives() -> None:
    result = pl.serve(
        "llama-3-8b", gpu=["h100-sxm", "l40s"], tensor=1, rate=20, slo="tpot=40ms", advise="cost", output_tokens=64
    )
    advice = result.advice
    assert advice is not None and advice.best is not None
    feasible = [candidate for candidate in advice.candidates if candidate.meets_objectives]
    assert advice.best.usd_per_h == min(candidate.usd_per_h for candidate in feasible)
    assert advice.best.replicas * advice.best.requests_per_s >= 20
    front = [candidate for candidate in advice.candidates if candidate.is_on_front]
    by_user = sorted(front, key=lambda one: one.tokens_per_s_per_user)
    per_gpu = [candidate.tokens_per_s_per_gpu for candidate in by_user]
    assert per_gpu == sorted(per_gpu, reverse=True)
    assert mark_front(advice.candidates) == advice.candidates


def test_bad_combinations() -> None:
    for arguments in (
        {"gpu": "h100-sxm"},
        {"rate": 1},
        {"gpu": "h100-sxm", "rate": 1, "concurrency": 2},
        {"gpu": "h100-sxm", "rate": 1, "workers": 3, "tensor": 2},
        {"gpu": "h100-sxm", "rate": 1, "decode_pool": "replicas=1"},
        {"gpu": "h100-sxm", "rate": 1, "speculation": {"draft": "gpt2"}},
    ):
        with pytest.raises(BadValue, match="--"):
            pl.serve("llama-3-8b", **arguments)  # type: ignore[arg-type]


def test_the_most_likely_token_needs_no_nucleus() -> None:
    """vLLM's time per token falls by the time to find it, 4.2e-11 s per logit (pull request 33538, top-p), or to sort.

    Other engines were measured under greedy clients only.
    """
    arguments = {"gpu": "h100-sxm", "concurrency": 64, "num_requests": 64, "output_tokens": 64}
    tpot_s = {}
    for policy in ("vllm", "vllm-0.13", "sglang"):
        for sampling in ("nucleus", "greedy"):
            found = pl.serve("llama-3-8b", engine=policy, engine_settings={"sampling": sampling}, **arguments)  # type: ignore[arg-type]
            tpot_s[policy, sampling] = found.latencies["tpot_s"]["p50"].value
    seconds = {"vllm": 4.2e-11, "vllm-0.13": engine_constants().hosts["vllm"].nucleus_logit_s}
    for policy, logit_s in seconds.items():
        saved_s = 64 * 128_256 * logit_s
        assert tpot_s[policy, "nucleus"] - tpot_s[policy, "greedy"] == pytest.approx(saved_s, rel=0.1)
    assert tpot_s["sglang", "nucleus"] == tpot_s["sglang", "greedy"]


def test_the_chart_of_a_deployment_and_of_a_front(serving: Serving) -> None:
    pytest.importorskip("altair")
    from paleo_lite.reporting.charts.serving import serving_chart

    assert "90% intervals" in json.dumps(serving_chart(serving).to_dict())
    advised = pl.serve("llama-3-8b", gpu="h100-sxm", tensor=1, rate=5, advise="cost", output_tokens=16)
    text = json.dumps(serving_chart(advised).to_dict())
    assert "Pareto front" in text and "output tokens per second and user" in text
    advice = advised.advice
    assert advice is not None and "ring: the cheapest" in text
    unmet = msgspec.structs.replace(advised, advice=msgspec.structs.replace(advice, best=None, devices=1))
    assert "ring" not in serving_chart(unmet).to_dict()["title"]["subtitle"][1]
    # Labels of a logarithmic axis touch at 90 and 100, so that only 1, 2 and 5 times powers of ten are ticks.
    (encoding, *_) = [layer["encoding"] for layer in serving_chart(advised).to_dict()["layer"]]
    for axis in ("x", "y"):
        assert {f"{tick:e}"[0] for tick in encoding[axis]["axis"]["values"]} <= {"1", "2", "5"}


WAITING = "batch-wait-iterations=20,batch-wait-share=0.9"
TRTLLM: dict[str, Any] = {"rate": 5, "engine": "tensorrt-llm"}


def test_ranks_wait_until_each_of_them_has_a_prompt() -> None:
    """A prompt that comes alone waits for as many iterations as it may, and the server is launched so."""
    asked: dict[str, Any] = {
        "gpu": "h100-sxm", "tensor": 8, "expert_parallel": 8, "attention_data_parallel": 8, "precision": "fp8",
        "engine": "tensorrt-llm", "concurrency": 64, "input_tokens": "512:64", "output_tokens": "1024:64",
    }  # fmt: skip
    usual, waiting = (
        pl.serve("qwen3-235b-a22b", **asked, **settings)
        for settings in ({}, {"engine_settings": "batch-wait-iterations=60"})
    )
    ttft_s, waited_s = (answer.latencies["ttft_s"]["p50"].value or 0.0 for answer in (usual, waiting))
    iteration_s = waiting.latencies["tpot_s"]["p50"].value or 0.0
    assert 5 * iteration_s < waited_s - ttft_s < 60 * iteration_s
    assert "attention_dp_config: {enable_balance: true, timeout_iters: 60}" in (waiting.launch_command or "")
    assert "attention_dp_config" not in (usual.launch_command or "")


@pytest.mark.parametrize(
    ("network", "question", "message"),
    [
        ("resnet50", {"rate": 5}, "needs a language model that writes text; resnet50 is not one"),
        ("bert-base", {"rate": 5}, "needs a language model that writes text; bert-base is not one$"),
        ("llama-3.1-8b", {"rate": "nan"}, "`--rate` must be a number of requests per second or inf"),
        ("llama-3.1-8b", {"rate": 0}, "`--rate` must be > 0"),
        ("llama-3.1-8b", {"rate": 1e-300}, "`--rate` must be at least 1e-30"),
        ("llama-3.1-8b", {"rate": 1e-12}, "`--rate` must be at least 1e-09 requests per second"),
        ("llama-3.1-8b", {"rate": 5, "concurrency": 3}, "exactly one of `--rate` and `--concurrency`"),
        ("llama-3.1-8b", {"rate": 5, "tensor": 3}, "does not divide the 32 attention heads"),
        ("llama-3.1-8b", {"rate": 5, "decode_pool": "replicas=2"}, "`--decode-pool` needs `--prefill-pool`"),
        ("llama-3.1-8b", {"rate": 5, "input_tokens": "10:abc"}, "`--input-tokens` must be"),
        ("llama-3.1-8b", {"rate": 5, "engine_settings": "sampling=beam"}, "no sampling is called 'beam'"),
        (
            "llama-3.1-8b",
            {"rate": 5, "engine_settings": "sampling=greedy,overhead=1ms"},
            "only one of sampling and over",
        ),
        (
            "llama-3.1-8b",
            {"rate": 5, "engine_settings": "sampling=greedy", "pipeline": 2},
            "=greedy` needs the kernels of",
        ),
        ("llama-3.1-8b", {"rate": 5, "engine_settings": "sampling=greedy", "engine": "vllm-0.7"}, "host was measured"),
        ("llama-3.1-8b", {"rate": 5, "engine_settings": WAITING}, "is for tensorrt-llm \\(the engine is vllm\\)"),
        (
            "llama-3.1-8b",
            {"rate": 5, "engine_settings": "batch-wait-share=0.5"},
            "`--engine-settings batch-wait-share` is for tensorrt-llm \\(the engine is vllm\\)",
        ),
        (
            "llama-3.1-8b",
            {**TRTLLM, "engine_settings": "batch-wait-share=0.5", "prefill_pool": {}},
            "batch-wait-share` is for prompts that wait while others decode: leave it out with `--prefill-pool`",
        ),
        ("llama-3.1-8b", {**TRTLLM, "engine_settings": "batch-wait-iterations=20"}, "needs batch-wait-share=FRACTION"),
        ("llama-3.1-8b", {**TRTLLM, "engine_settings": "batch-wait-share=0.5"}, "needs batch-wait-iterations=N"),
        ("llama-3.1-8b", {**TRTLLM, "engine_settings": WAITING, "prefill_pool": {}}, "leave it out with `--prefill-"),
        ("llama-3.1-8b", {"rate": 5, "engine_settings": "captured-sequences=8", "pipeline": 2}, "needs the kernels of"),
        (
            "llama-3.1-8b",
            {"rate": 5, "engine_settings": "captured-sequences=8", "engine": "llama.cpp", "weights": "q4_k_m"},
            "captured-sequences` is for sglang",
        ),
        (
            "llama-3.1-8b",
            {**TRTLLM, "engine_settings": WAITING, "tensor": 2, "attention_data_parallel": 2},
            "`batch-wait-share` is not for `--attention-data-parallel`",
        ),
    ],
)
def test_impossible_questions_get_one_sentence(network: str, question: dict[str, Any], message: str) -> None:
    with pytest.raises(PaleoError, match=message) as caught:
        pl.serve(network, gpu="h100-sxm", precision="bf16", **question)
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_a_pipeline_through_the_command() -> None:
    words = "serve llama-3-8b --gpu h100-sxm --pipeline 2 --replicas 2 --rate 5 --num-requests 50"
    result = CliRunner().invoke(main, [*words.split(), "--format", "json"])
    answer = json.loads(result.output)
    assert (answer["tensor"], answer["pipeline"], answer["replicas"], answer["devices"]) == (1, 2, 2, 4)
    page = CliRunner().invoke(main, words.split()).output
    assert "tensor 1, pipeline 2, 2 replicas" in page and "per device of the fullest stage" in page


def test_impossible_pipelines() -> None:
    for arguments, message in (
        ({"pipeline": 0}, "`--pipeline` must be an integer >= 1"),
        ({"pipeline": 33}, "`--pipeline` must be <= 32, the blocks"),
        ({"pipeline": 2, "workers": 3}, "`--workers` must be a multiple of the devices of a replica"),
        (
            {"pipeline": 2, "speculation": "tokens=3,draft=gpt2"},
            "`--speculation draft` is not modelled with `--pipeline`",
        ),
    ):
        with pytest.raises(BadValue, match=message):
            pl.serve("llama-3-8b", gpu="h100-sxm", rate=1, num_requests=10, **arguments)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_advice_tries_pipelines_only_where_nothing_else_fits() -> None:
    # 16 GB of weights in bf16 on 24 GB: one device is enough. 67 GB are too much for two of them.
    fits = pl.serve("llama-3-8b", gpu="l4", rate=0.1, advise="cost", num_requests=20, weights="bf16", tensor=1)
    assert fits.advice is not None and {one.pipeline for one in fits.advice.candidates} == {1}
    result = pl.serve("codellama-34b", gpu="l4", rate=0.1, advise="cost", num_requests=20, weights="bf16", tensor=2)
    assert result.advice is not None and result.pipeline in (2, 4)
    assert any(name.endswith("tensor 2, weights bf16") for name in result.advice.refused)


@pytest.mark.thorough
def test_experts_are_divided_by_tensor_parallelism_without_kernels_of_an_engine() -> None:
    result = pl.serve("mixtral-8x7b", gpu="mi210", tensor=2, rate=1, num_requests=10)
    assert "expert parallelism is not modelled" in " ".join(result.notes)
    placed = pl.serve("mixtral-8x7b", gpu="h100-sxm", tensor=2, rate=1, num_requests=10)
    assert "expert parallelism" not in " ".join(placed.notes)


@pytest.mark.thorough
def test_advice_divides_experts_and_attention() -> None:
    result = pl.serve("qwen3-30b-a3b", gpu="b200", tensor=8, advise="cost", num_requests=20, output_tokens=32)
    advice = result.advice
    assert advice is not None and not advice.refused
    tried = {(one.expert_parallel, one.attention_data_parallel) for one in advice.candidates}
    assert tried == {(1, 1), (8, 1), (1, 8), (8, 8)}  # 4 heads of keys and values on 8 devices
    assert {one.weights for one in advice.candidates} == {"bf16", "fp8", "nvfp4"}
    chosen = advice.best
    assert chosen is not None
    assert (result.expert_parallel, result.attention_data_parallel) == (
        chosen.expert_parallel,
        chosen.attention_data_parallel,
    )
    assert dict(result.document().facts)["parallelism"] == f"{chosen.parallelism()}, 1 replica"


@pytest.mark.thorough
def test_compressed_cache_holds_a_vector_for_several_tokens() -> None:
    result = pl.serve("deepseek-v4-flash", gpu="b200", tensor=4, precision="fp8", rate=1, num_requests=20)
    assert result.kernels is not None and result.latencies["tpot_s"]["p50"].value > 0


@pytest.mark.thorough
def test_advice_divides_attention_only_where_keys_and_values_would_be_stored_several_times() -> None:
    dense = pl.serve("llama-3-8b", gpu="h100-sxm", tensor=2, advise="cost", num_requests=20, output_tokens=32)
    assert {one.parallelism() for one in dense.advice.candidates} == {"tensor 2"}
    assert {one.weights for one in dense.advice.candidates} == {"bf16", "fp8"}  # the H100 has no peak in fp4
    mixture = pl.serve("qwen3-30b-a3b", gpu="h100-sxm", tensor=4, advise="cost", num_requests=20, output_tokens=32)
    assert {one.parallelism() for one in mixture.advice.candidates} == {"tensor 4", "tensor 4, expert-parallel 4"}
    named = pl.serve(
        "qwen3-30b-a3b", gpu="h100-sxm", tensor=4, attention_data_parallel=2, advise="cost", num_requests=20,
        output_tokens=32,
    )  # fmt: skip
    assert {one.parallelism() for one in named.advice.candidates} == {"tensor 4, attention-data-parallel 2"}


@pytest.mark.parametrize(
    ("network", "question", "message"),
    [
        ("qwen3-30b-a3b", {"tensor": 4, "expert_parallel": 3}, "`--expert-parallel` must divide the 4 devices"),
        # A DGX H200 has eight: 16 are in two, which NVLink does not join.
        ("llama-3.1-70b", {"tensor": 16}, r"must be <= 8, the devices per node \(got 16\): divide the blocks"),
        ("deepseek-v3", {"tensor": 16, "expert_parallel": 16}, "with `--attention-data-parallel 16`"),
        ("mixtral-8x7b", {"tensor": 16, "expert_parallel": 16, "link": "infiniband-ndr"},
         "16` does not divide the 8 experts of mixtral-8x7b"),
        ("llama-3-8b", {"tensor": 2, "expert_parallel": 2}, "needs a mixture of experts; llama-3-8b is not one"),
        ("qwen3-30b-a3b", {"expert_parallel": 0}, "`--expert-parallel` must be an integer >= 1"),
        ("qwen3-30b-a3b", {"tensor": 4, "attention_data_parallel": 3},
         "`--attention-data-parallel` must divide the 4 devices"),
        ("qwen3-30b-a3b", {"tensor": 2, "attention_data_parallel": 2, "pipeline": 2},
         "`--attention-data-parallel` is not modelled with `--pipeline`"),
        ("qwen3-30b-a3b", {"tensor": 2, "expert_parallel": 2, "precision": "fp32"},
         "`--expert-parallel` needs the kernels of an engine"),
    ],
)  # fmt: skip
def test_impossible_divisions_get_one_sentence(network: str, question: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=message) as caught:
        pl.serve(network, gpu="h200", rate=1, num_requests=10, **question)
    assert "\n" not in str(caught.value)


def test_a_link_over_more_devices_than_a_computer_has_is_an_assumption() -> None:
    """A DGX H100 has eight devices, which its NVSwitches join; InfiniBand joins any number."""
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 1, "num_requests": 10}
    models = {
        (tensor, link): pl.serve("llama-3.1-70b", tensor=tensor, link=link, **asked).model
        for tensor, link in ((16, "nvlink4-x18"), (8, "nvlink4-x18"), (16, "infiniband-ndr"))
    }
    assumed = "assumed: nvlink4-x18 joins all 16 devices, of which NVIDIA DGX H100 has 8"
    assert [assumed in model for model in models.values()] == [True, False, False]
    assert not any("joins all" in models[asked] for asked in ((8, "nvlink4-x18"), (16, "infiniband-ndr")))


def test_the_first_line_has_the_lengths_that_were_asked_for() -> None:
    """The first answers of a closed loop are shorter, because its users have begun at different times."""
    server = pl.serve(
        "llama-3.2-1b", gpu="h100-sxm", concurrency=8, input_tokens=64, output_tokens=128, num_requests=24
    )
    assert "8 users, 64 input and 128 output tokens" in str(server)


@pytest.mark.parametrize(
    ("engine", "ranks"),
    # TensorRT-LLM and vLLM schedule each rank by itself; SGLang divides its limits among the ranks.
    [("tensorrt-llm", 8), ("vllm", 8), ("sglang", 1)],
)
def test_limits_of_an_engine_are_those_of_each_rank(engine: str, ranks: int) -> None:
    asked = {"gpu": "h200-sxm", "tensor": 8, "precision": "fp8", "engine": engine, "rate": "inf", "num_requests": 128}
    asked |= {"input_tokens": 512, "output_tokens": 256, "expert_parallel": 8, "attention_data_parallel": 8}
    served = pl.serve("llama-4-maverick", max_sequences=4, **asked)
    assert served.figures["mean_sequences"].value == pytest.approx(4 * ranks, rel=0.2)
    assert ("sequences per iteration of each of 8 ranks" in served.engine_limits) == (ranks == 8)


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "devices", "precision", "prompt_tokens", "answer_tokens", "measured_per_s"),
    [
        ("h200-sxm", 8, "fp8", 8192, 1024, 1276), ("b200", 4, "nvfp4", 8192, 1024, 3279),
        ("b200", 4, "nvfp4", 32768, 1024, 859), ("h200-sxm", 8, "fp8", 1024, 8192, 1157),
    ],
)  # fmt: skip
def test_long_requests_on_ranks_of_their_own(
    gpu: str, devices: int, precision: str, prompt_tokens: int, answer_tokens: int, measured_per_s: float
) -> None:
    """Llama 4 Maverick in TensorRT-LLM's performance overview of 1.2: output tokens per second and GPU."""
    served = pl.serve(
        "llama-4-maverick", gpu=gpu, tensor=devices, expert_parallel=devices, attention_data_parallel=devices,
        precision=precision, kv_cache="fp8", engine="tensorrt-llm", rate="inf", num_requests=1500,
        input_tokens=prompt_tokens, output_tokens=answer_tokens,
    )  # fmt: skip
    figure = served.figures["output_tokens_per_s_per_gpu"]
    assert figure.low < measured_per_s < figure.high
    assert figure.value == pytest.approx(measured_per_s, rel=0.2)


@pytest.mark.thorough
def test_fewer_users_than_replicas_leave_the_others_idle() -> None:
    asked: Any = {"network": "llama-3.2-1b", "gpu": "h200-sxm", "concurrency": 2, "num_requests": 40}
    busy, idle = (pl.serve(**asked, replicas=replicas) for replicas in (2, 8))
    assert idle.latencies == busy.latencies
    assert idle.figures["usd_per_million_output_tokens"].value == pytest.approx(
        4 * busy.figures["usd_per_million_output_tokens"].value
    )


@pytest.mark.thorough
def test_experts_on_several_nodes_exchange_tokens_over_the_network() -> None:
    """Sixteen H200 are in two computers of eight, which InfiniBand joins, not NVLink."""
    division = {"tensor": 16, "expert_parallel": 16, "attention_data_parallel": 16}
    question = {"gpu": "h200", "precision": "fp8", "rate": 1, "num_requests": 10, **division}
    assumed = pl.serve("deepseek-v3", **question)
    assert "assumed: NVIDIA DGX H200" in assumed.model
    assert assumed.figures == pl.serve("deepseek-v3", platform="dgx-h200", workers=16, **question).figures
    joined = pl.serve("deepseek-v3", link="nvlink4-x18", **question)
    assert joined.latencies["tpot_s"]["p50"].value < assumed.latencies["tpot_s"]["p50"].value


def test_an_answer_says_which_pool_and_which_answers_its_figures_are_of() -> None:
    """Eight users of equal answers, of whose first ones each is shorter than 64 tokens."""
    answer = pl.serve(
        "llama-3.2-1b", gpu="h100-sxm", concurrency=8, num_requests=24, output_tokens=64, input_tokens=128,
        prefill_pool="replicas=1", decode_pool="replicas=1",
    )  # fmt: skip
    page = serving_page(answer).markdown()
    assert answer.shortened_requests == 8 and "8 of them with shortened answers" in page
    assert "share of the time in iterations, decode pool" in page


@pytest.mark.parametrize(
    "asked",
    [
        {"network": "qwen3-32b", "gpu": "l40s", "weights": "fp8", "replicas": 3, "concurrency": 50},
        {"network": "llama-3-8b", "gpu": "h100-sxm", "concurrency": 64, "output_tokens": 200, "seed": 5},
    ],
)
def test_users_in_step_are_told_of_drawn_answers(asked: dict[str, Any]) -> None:
    """The time that the note states is that of the question with the option that it names."""
    equal = pl.serve(**asked, engine="sglang")
    (note,) = [note for note in equal.notes if note.startswith("answers of equal length")]
    option, drawn, fixed = re.search(r"`--output-tokens ([\d:]+)` .* after (.*) instead of (.*) \(p90\)", note).groups()
    varied = pl.serve(**{**asked, "output_tokens": option}, engine="sglang")
    assert format_si(varied.latencies["ttft_s"]["p90"].value, "s", 3) == drawn
    assert format_si(equal.latencies["ttft_s"]["p90"].value, "s", 3) == fixed
    assert not any(note.startswith("answers of equal length") for note in varied.notes)


def test_users_whom_equal_answers_do_not_delay_are_told_nothing() -> None:
    """vLLM computes prompts beside decoding, and requests at a rate do not begin together."""
    for options in ({"concurrency": 64}, {"engine": "sglang", "rate": 5}, {"engine": "sglang", "concurrency": 1}):
        notes = pl.serve("llama-3-8b", gpu="h100-sxm", num_requests=300, **options).notes
        assert not any(note.startswith("answers of equal length") for note in notes)


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    """By hand: 0.1 s to the first token in both; the longer answer takes 0.9 s for its other nine tokens."""
    outcome = SimpleNamespace(
        arrival_s=np.array([0.0, 1.0]), first_token_s=np.array([0.1, 1.1]), finish_s=np.array([0.1, 2.0]),
        output_tokens=np.array([1, 10]),
    )  # fmt: skip
    for limit_s, share in ((0.0, 0.5), (0.05, 0.5), (0.2, 1.0)):
        assert share_within([outcome], [("tpot", limit_s)]) == share  # type: ignore[list-item]
    assert share_within([outcome], [("ttft", 0.2), ("latency", 0.5)]) == 0.5  # type: ignore[list-item]
    assert share_within([outcome], [("ttft", 0.05)]) == 0.0  # type: ignore[list-item]

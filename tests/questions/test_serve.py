"""Questions of `serve`: options in the words of engines, and settings that belong together.

Tests: questions/serve_options.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.questions.option import options_of
from paleo_lite.questions.serve_options import Serve

SHORT = {"gpu": "h100-sxm", "rate": 1, "num_requests": 12, "input_tokens": 64, "output_tokens": 8}
WORDS = "serve llama-3.2-1b --gpu h100-sxm --rate 1 --num-requests 12 --input-tokens 64 --output-tokens 8 --format json"


def test_serve_has_at_most_47_options() -> None:
    assert len(options_of(Serve)) <= 47


@pytest.mark.spread(8)
@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("--tensor-parallel-size 2", "--tensor 2"), ("-tp 2", "--tensor 2"), ("--tp 2", "--tensor 2"),
        ("--dp 2", "--replicas 2"), ("--data-parallel-size 2", "--replicas 2"),
        ("--max-num-seqs 4", "--max-sequences 4"),
        ("--max-running-requests 4", "--max-sequences 4"), ("--max-num-batched-tokens 512", "--max-batched-tokens 512"),
        ("--gpu-memory-utilization 0.5", "--memory-fraction 0.5"),
        ("--mem-fraction-static 0.5", "--memory-fraction 0.5"),
        ("--kv-cache-dtype fp8_e4m3", "--kv-cache fp8"), ("--quantization awq_marlin", "--weights awq"),
        ("--dtype bfloat16", "--precision bf16"), ("--dtype half", "--precision fp16"),
        ("--chunked-prefill-size 32", "--chunked-prefill 32"), ("--ep 1", "--expert-parallel 1"),
    ],
)  # fmt: skip
def test_words_of_engines_are_understood(words: str, same: str) -> None:
    said = CliRunner().invoke(main, [*WORDS.split(), *words.split()])
    assert said.exit_code == 0, said.output
    assert said.stdout == CliRunner().invoke(main, [*WORDS.split(), *same.split()]).stdout


def test_the_usual_precision_is_no_name_of_one() -> None:
    said = CliRunner().invoke(main, [*WORDS.split(), "--dtype", "auto"])
    assert said.exit_code == 2 and "where it is left out (got auto)" in said.stderr


def test_settings_are_the_same_in_python_with_objects_and_names() -> None:
    by_name = pl.serve("llama-3.2-1b", speculation="tokens=3,acceptance=0.5,draft=gpt2", **SHORT)
    by_object = pl.serve(
        "llama-3.2-1b", speculation={"tokens": 3, "acceptance": 0.5, "draft": find_network("gpt2")}, **SHORT
    )
    free = pl.serve("llama-3.2-1b", speculation="tokens=3,acceptance=0.5", **SHORT)
    assert by_name.to_dict() == by_object.to_dict() and by_name.latencies != free.latencies


def test_a_draft_needs_its_length() -> None:
    with pytest.raises(BadValue, match="needs tokens=N, the tokens drafted per iteration"):
        pl.serve("llama-3.2-1b", speculation={"draft": "gpt2"}, **SHORT)


@pytest.mark.parametrize("command", ["predict alexnet", "train alexnet --batch-size 8"])
def test_an_option_that_is_given_again_is_compared_in_every_command(command: str) -> None:
    again = CliRunner().invoke(main, [*command.split(), "--gpu", "t4", "--gpu", "k40m", "--format", "csv"])
    with_comma = CliRunner().invoke(main, [*command.split(), "--gpu", "t4,k40m", "--format", "csv"])
    assert again.exit_code == 0 and again.stdout == with_comma.stdout and ",k40m," in again.stdout


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"seed": -1}, "`--seed` must be an integer >= 0 .got -1."),
        ({"arrivals": "x"}, "no arrival process is called 'x': valid names: fixed, poisson"),
        ({"memory_fraction": "90%"}, "`--memory-fraction` must be a number, such as 0.5 .got '90%'."),
        ({"memory_fraction": "x"}, "`--memory-fraction` must be a number, such as 0.5 .got 'x'."),
        ({"slo": []}, "`--slo` has no value"),
    ],
)
def test_a_value_of_another_type_is_refused_in_a_sentence(more, sentence) -> None:
    with pytest.raises((BadValue, UnknownName), match=sentence):
        pl.serve("gpt2", gpu="h100-sxm", rate=1, **more)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"requests": "trace.csv", "input_tokens": 2048}, "`--requests` has lengths of its own"),
        ({"requests": "trace.csv", "arrivals": "fixed"}, "`--arrivals` is for a finite `--rate`"),
        ({"concurrency": 4, "arrivals": "fixed"}, "`--arrivals` is for a finite `--rate`"),
        ({"rate": "inf", "arrivals": "fixed"}, "`--arrivals` is for a finite `--rate`"),
        (
            {"rate": 4, "workload": "best-of", "prefix_hit_rate": 0.5},
            "`--prefix-hit-rate` is for requests of which no prefixes are known",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(more, sentence, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,100,10\n")
    with pytest.raises(BadValue, match=sentence):
        pl.serve("gpt2", gpu="h100-sxm", **more)


@pytest.mark.thorough
def test_weights_have_the_published_format_unless_a_precision_or_a_format_is_given() -> None:
    """OpenAI publishes gpt-oss in mxfp4, DeepSeek V3 in blocks of fp8."""
    asked = {"network": "gpt-oss-20b", "gpu": "h100-sxm", "concurrency": 4, "num_requests": 16}
    assert pl.serve(**asked).to_dict() == pl.serve(**asked, weights="mxfp4").to_dict()
    assert pl.serve(**asked, precision="bf16").latencies != pl.serve(**asked).latencies
    step = pl.predict("deepseek-v3", gpu="h200-sxm", phase="decode", tensor=8)
    assert (
        step.to_dict()
        == pl.predict("deepseek-v3", gpu="h200-sxm", phase="decode", tensor=8, weights="fp8-block").to_dict()
    )


@pytest.mark.thorough
def test_a_recommendation_meets_its_objective_under_the_asked_traffic() -> None:
    """One sequence at a time meets it while a request always waits, and misses it where requests come at a rate."""
    asked = {"network": "llama-3-8b", "gpu": "h100-sxm", "rate": 1}
    serving = pl.serve(**asked, slo="ttft=40ms", advise="cost")
    assert serving.advice.best is not None and serving.advice.best.batch_limit > 1
    assert serving.latencies["ttft_s"]["p90"].value <= 0.04
    impossible = pl.serve(**asked, slo="ttft=5ms", advise="cost")
    assert impossible.advice.best is None and impossible.slo["missed"]


def test_objectives_alone_ask_for_the_rate() -> None:
    """The answer is at the highest rate that meets the limit, which a stated rate of that size confirms."""
    asked = {"network": "llama-3-8b", "gpu": "l40s", "slo": "tpot=60ms"}
    answer = pl.serve(**asked)
    rate = float(answer.traffic.split()[0])
    assert answer.slo["missed"] == []
    assert rate == pytest.approx(answer.slo["highest_requests_per_s"], rel=0.1)
    assert pl.serve(**asked, rate=rate).time_s == pytest.approx(answer.time_s)


def test_objectives_that_no_rate_meets() -> None:
    with pytest.raises(BadValue, match="no rate meets tpot p90 <= 1 ms"):
        pl.serve("llama-3-8b", gpu="l40s", slo="tpot=1ms")


@pytest.mark.thorough
def test_a_replica_over_several_computers_needs_no_number_of_devices() -> None:
    """Eight devices stand in one DGX A100; of one of Amazon's computers the network is not on record."""
    asked: dict[str, Any] = {"network": "llama-3-70b", "tensor": 8, "pipeline": 2, "rate": 1, "num_requests": 20}
    answer = pl.serve(platform="dgx-a100", **asked)
    assert answer.to_dict() == pl.serve(platform="dgx-a100", workers=16, **asked).to_dict()
    assert answer.devices == 16
    with pytest.raises(BadValue, match=r"16 devices need 2 of them: give `--gpu a100-sxm-80gb` with the `--link`"):
        pl.serve(platform="p4de.24xlarge", **asked)

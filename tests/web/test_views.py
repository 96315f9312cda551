"""Cards and charts that appear on the page where a result has them.

Tests: web/cards.py, web/failures.py, web/views.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

from streamlit.testing.v1 import AppTest

import paleo_lite as pl
from paleo_lite.api.charted import memory_ranges
from paleo_lite.reporting.formats import format_time_short
from paleo_lite.web import page as page_module
from paleo_lite.web.cards import cards_of
from paleo_lite.web.failures import Failure, try_call

APP = Path(page_module.__file__).parent / "app.py"


def headings(**query):
    """Return the texts of the page, which contain the title of each chart."""
    page = AppTest.from_file(str(APP), default_timeout=1800)
    for name, value in query.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception and not page.error
    return [element.value.replace("\\", "") for element in page.markdown]


@pytest.mark.slow
@pytest.mark.parametrize(("other", "has_costs"), [("t4", True), ("k40m", False)])  # a K40m has no recorded price
def test_several_devices_with_prices_have_a_chart_of_cost(other, has_costs):
    texts = headings(ask="predict", network="alexnet", gpu=["v100-sxm2", other])
    assert any("the cheapest" in text for text in texts) == has_costs


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "tokens"), [("decode", "context"), ("prefill", "sequence_length")])
def test_a_language_model_has_a_chart_of_memory(phase, tokens):
    question = {"network": "llama-3-8b", "phase": phase}
    texts = headings(ask="predict", gpu=["h100-sxm"], batch_size="2", **{tokens: "1000"}, **question)
    ranges = memory_ranges(
        gpu="h100-sxm", batch_size=2, sequence_length=1000, batch_sizes="1", token_counts="256", **question
    )
    largest = ranges.over_batch[0].fit.largest_batch
    assert any(f"Up to {largest:,} sequences of 1,000 tokens fit" in text for text in texts)


@pytest.mark.slow
def test_the_chart_of_memory_has_the_adapters_and_formats_of_the_question():
    question = {"network": "llama-3.2-1b", "gpu": "rtx4090"}
    texts = headings(ask="train", lora="16", weights="int4", **question)
    largest = pl.train(**question, lora=16, weights="int4").memory.largest_batch
    assert largest > pl.train(**question).memory.largest_batch > 1
    assert any(f"Up to {largest:,} sequences of 2,048 tokens fit" in text for text in texts)


@pytest.mark.slow
def test_steps_of_reinforcement_learning_have_charts_side_by_side_and_of_their_phases():
    texts = headings(ask="rl", network="qwen3-0.6b", gpu=["h100-sxm", "a100-sxm-80gb"], response_tokens="200")
    assert any("Steps side by side" in text for text in texts)
    assert any("a step of grpo takes" in text for text in texts)


@pytest.mark.slow
def test_servers_have_a_chart_side_by_side():
    texts = headings(ask="serve", network="qwen3-0.6b", gpu=["h100-sxm", "l40s"], rate="1")
    assert any("h100-sxm answers fastest" in text for text in texts)


@pytest.mark.slow
def test_a_network_of_images_has_no_chart_of_memory():
    assert not any("sequences of" in text for text in headings(ask="predict", network="alexnet", gpu=["t4"]))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data", "pipeline-1f1b"])
def test_a_pipeline_has_a_chart_of_its_schedule(strategy):
    texts = headings(network="resnet50", gpu=["v100-sxm2"], workers="1,2,4", link="25 GB/s", strategy=strategy)
    assert any("pipeline bubble" in text for text in texts) == (strategy != "data")


@pytest.mark.slow
def test_several_batch_sizes_are_curves():
    texts = headings(ask="predict", network="alexnet", gpu=["t4", "v100-sxm2"], batch_size="1:16:x2")
    assert not any("is the fastest" in text and "cheapest" not in text for text in texts)


def card(**asked):
    kind = asked.pop("ask")
    (found,) = cards_of({"x": getattr(pl, kind)(**asked)})
    return found


def test_a_card_says_the_figures_of_the_answer():
    answer = pl.predict("llama-3-8b", gpu="h100-sxm", phase="decode", batch_size=8)
    (found,) = cards_of({"h100-sxm": answer})
    assert (found.device, found.unit) == ("H100 SXM5 80GB", "per token, batch 8")
    assert found.figure == format_time_short(answer.time_s)
    assert any(line.endswith("tokens/s") for line in found.lines) and not found.problem


def test_a_card_of_a_run_has_hours_and_dollars():
    found = card(ask="train", network="resnet50", gpu="v100-sxm2", samples="1.28M", epochs=90, price=2)
    run = pl.train("resnet50", gpu="v100-sxm2", samples="1.28M", epochs=90, price=2).run
    assert any(f"{run.hours:.4g} hours, {run.cost_usd:.4g} USD" in line for line in found.lines)
    together = card(ask="train", network="resnet50", gpu="v100-sxm2", workers=[1, 4], link="25 GB/s", samples="1.28M")
    assert together.unit == "per step, 4 devices"
    assert any(line.startswith("the whole run: ") for line in together.lines)


def test_a_card_says_what_does_not_fit_and_what_is_a_bound():
    found = card(ask="train", network="vgg16", gpu="gtx780ti", batch_size=512)
    assert found.problem.startswith("DOES NOT FIT")
    bound = card(ask="predict", network="resnet50", gpu="xeon-8380", precision="fp64")
    assert "a bound from the data sheet, not a forecast" in bound.lines
    pictures = card(ask="diffusion", network="flux.1-dev", gpu="rtx3060")
    assert pictures.problem.startswith("DOES NOT FIT") and pictures.unit == "per image"


def test_a_comparison_has_a_card_for_each_answer_and_a_failure_its_reason():
    both = pl.local("llama-3.1-8b", gpu=["rtx3060", "rtx4090"])
    assert [found.device for found in cards_of({"": both})] == [row.device for row in both.rows]
    assert isinstance(try_call(lambda: pl.predict("resnet50", gpu="k40m", precision="fp16")), Failure)
    (failed,) = cards_of({"k40m": Failure("no fp16 peak")})
    assert (failed.device, failed.figure, failed.problem) == ("Tesla K40m", "", "no fp16 peak")


def test_pictures_on_several_devices_say_how_many():
    found = card(ask="diffusion", network="wan-2.1-1.3b", gpu="h100-sxm", workers=[1, 2])
    assert found.unit.endswith(", 2 devices")


def test_an_overloaded_server_is_named():
    asked = {"network": "llama-3-8b", "gpu": "l40s", "num_requests": 200}
    busy, idle = (pl.serve(**asked, rate=rate) for rate in (200, 0.5))
    found, other = cards_of({"a": busy, "b": idle})
    assert found.problem.startswith("OVERLOADED") and not other.problem


def test_advice_that_needs_more_devices_than_there_are_is_named():
    asked = {"network": "llama-3.2-1b", "gpu": "l40s", "rate": 200, "weights": "bf16", "tensor": 1, "max_sequences": 8}
    asked |= {"output_tokens": 64, "num_requests": 50}
    (found,) = cards_of({"": pl.serve(**asked, advise="cost", workers=1)})
    assert found.problem == "DOES NOT FIT into 1 device"

"""Charts that appear on the page where a result has them: cost, memory and the schedule of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

from streamlit.testing.v1 import AppTest

from paleo_lite.api.charted import memory_ranges
from paleo_lite.web import view as view_module

pytestmark = pytest.mark.slow

APP = Path(view_module.__file__).parent / "app.py"


def headings(**query):
    """Return the texts of the page, which contain the title of each chart."""
    page = AppTest.from_file(str(APP), default_timeout=60)
    for name, value in query.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception and not page.error
    return [element.value.replace("\\", "") for element in page.markdown]


def test_several_devices_with_prices_have_a_chart_of_cost():
    assert any("the cheapest" in text for text in headings(gpu=["v100-sxm2", "t4"]))
    for gpus in (["v100-sxm2"], ["v100-sxm2", "k40m"]):  # a K40m has no recorded price
        assert not any("cheapest" in text for text in headings(gpu=gpus))


@pytest.mark.parametrize(("phase", "tokens"), [("decode", "1000"), ("prefill", "1000"), ("training", "512")])
def test_a_language_model_has_a_chart_of_memory(phase, tokens):
    question = {"network": "llama-3-8b", "precision": "bf16", "phase": phase}
    texts = headings(view="batches", gpu=["h100-sxm"], batch="2", tokens=tokens, **question)
    ranges = memory_ranges(
        gpu="h100-sxm",
        batch_size=2,
        sequence_length=int(tokens),
        batch_sizes="1",
        token_counts="256",
        **question,
    )
    largest = ranges.over_batch[0].fit.largest_batch
    assert any(f"Up to {largest:,} sequences of {int(tokens):,} tokens fit" in text for text in texts)


def test_a_network_of_images_has_no_chart_of_memory():
    assert not any("sequences of" in text for text in headings(view="batches", gpu=["t4"]))


@pytest.mark.parametrize("strategy", ["data", "pipeline-gpipe", "pipeline-1f1b"])
def test_a_pipeline_has_a_chart_of_its_schedule(strategy):
    texts = headings(view="scaling", gpu=["v100-sxm2"], workers="1,2,4", strategy=strategy)
    assert any("pipeline bubble" in text for text in texts) == (strategy != "data")

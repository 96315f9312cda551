"""The memory of a language model over batch size and tokens, and its chart.

Tests: timing/memory_ranges.py, api/charted.py, reporting/answers.py, reporting/charts/memory.py,
questions/charts.py.
"""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.api.charted import memory_ranges
from paleo_lite.errors import BadValue
from paleo_lite.timing.memory_ranges import vary_memory


@pytest.fixture(scope="module")
def ranges():
    return memory_ranges(
        "llama-3.1-8b", gpu="h100-sxm", sequence_length=4096, batch_sizes="1,2,64,512", token_counts="512,1024"
    )


def test_the_cache_has_keys_and_values_of_all_tokens_layers_and_heads(ranges):
    """Llama 3.1 8B: 32 layers, 8 key-value heads of 128, 2 bytes each (Grattafiori et al. 2024, table 3)."""
    per_token = 2 * 32 * 8 * 128 * 2
    for point in ranges.over_batch:
        assert point.tokens == 4096
        assert point.fit.memory.cache_bytes == pytest.approx(point.batch_size * 4096 * per_token, rel=1e-3)
    for point in ranges.over_tokens:
        assert point.batch_size == 8
        assert point.fit.memory.cache_bytes == pytest.approx(8 * point.tokens * per_token, rel=3e-3)
    assert [point.tokens for point in ranges.over_tokens] == [512, 1024]


def test_lengths_that_the_network_does_not_support_are_left_out():
    """Llama 3 8B has 8,192 positions."""
    ranges = memory_ranges("llama-3-8b", gpu="h100-sxm", batch_sizes="1", token_counts="1024,65536")
    assert [point.tokens for point in ranges.over_tokens] == [1024]
    assert "8192 positions" in ranges.left_out[0]
    with pytest.raises(BadValue, match="8192 positions"):
        memory_ranges("llama-3-8b", gpu="h100-sxm", batch_sizes="1", token_counts="65536")


def test_a_network_without_sequences_is_refused():
    with pytest.raises(BadValue, match="resnet50 does not read sequences"):
        memory_ranges("resnet50", gpu="h100-sxm")


def test_the_memory_at_the_batch_and_length_of_an_answer_is_its_own():
    """QLoRA, with accumulation: batches are whole numbers of micro-batches."""
    answer = pl.train("llama-3.2-1b", gpu="rtx4090", lora=8, weights="int4", batch_size=4, accumulation=2,
                      sequence_length=1024)  # fmt: skip
    ranges = vary_memory(answer.workload, answer.machine, answer.model, [1, 2, 4, 8], [512, 1024])
    assert [point.batch_size for point in ranges.over_batch] == [2, 4, 8]
    assert "1" in ranges.left_out[0]
    assert ranges.over_batch[1].fit.memory == answer.memory.memory
    assert ranges.over_tokens[1].fit.memory == answer.memory.memory


def test_json_and_document_have_both_ranges(ranges):
    answer = ranges.to_dict()
    assert [point["batch_size"] for point in answer["over_batch"]] == [1, 2, 64, 512]
    assert [point["tokens"] for point in answer["over_tokens"]] == [512, 1024]
    tables = ranges.document().tables
    for table, points in zip(tables, (ranges.over_batch, ranges.over_tokens)):
        assert [row["total_bytes"] for row in table.rows] == [point.fit.memory.total_bytes for point in points]
        assert [row["fits"] for row in table.rows] == [point.fit.fits for point in points]


def test_bars_add_up_to_the_memory_and_large_ones_are_cut_off(ranges):
    pytest.importorskip("altair")
    from paleo_lite.reporting.charts.memory import memory_chart

    spec = memory_chart(ranges).to_dict()
    for panel, points in zip(spec["hconcat"], (ranges.over_batch, ranges.over_tokens)):
        rows = panel["layer"][0]["data"]["values"]
        totals = [sum(row["bytes"] for row in rows if row["value"] == value)
                  for value in dict.fromkeys(row["value"] for row in rows)]  # fmt: skip
        assert totals == pytest.approx([point.fit.memory.total_bytes for point in points], rel=0.01)
        assert [row["unfit"] for row in rows if row["part"] == "KV cache"] == [not point.fit.fits for point in points]
    assert spec["title"]["text"] == f"Up to {ranges.over_batch[0].fit.largest_batch:,} sequences of 4,096 tokens " \
        "fit into memory"  # fmt: skip
    assert "cut off" in " ".join(spec["title"]["subtitle"])


def test_a_title_counts_a_single_sequence_as_one():
    pytest.importorskip("altair")
    from paleo_lite.reporting.charts.memory import memory_chart

    # 16.06 GB of weights, and 5.24 GB of keys and values per sequence, in 24 GB.
    ranges = memory_ranges("llama-3.1-8b", gpu="rtx3090", sequence_length=40_000, batch_sizes="1", token_counts="256")
    assert memory_chart(ranges).to_dict()["title"]["text"] == "Only one sequence of 40,000 tokens fits into memory"

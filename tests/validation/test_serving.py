"""Published serving results: where they come from, and that they are reproduced."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import pytest

import paleo_lite as pl
from measured import DATA
from validation.serving.cache_capacity import PUBLISHED, Line, lines, name_of
from validation.serving.published import FILE, published_points
from validation.serving.reproduce import ReproducedFigure, compare, summarize, write_trace
from validation.tables import rows_of


def test_every_figure_has_its_address() -> None:
    points = published_points()
    assert len(points) >= 60 and len({point.source for point in points}) >= 5
    for point in points:
        assert point.url.startswith("https://")
        assert point.tokens_per_s or point.ttft_s or point.tpot_s
        assert bool(point.rate) != bool(point.concurrency)


def test_lengths_of_sharegpt_are_those_of_the_published_run() -> None:
    """73,671 input tokens and 71,810 output tokens in 320 requests, of which 34 are empty and count as 1 here."""
    rows = np.loadtxt(FILE.parent / "sharegpt_320.csv", delimiter=",", skiprows=1)
    assert len(rows) == 320 and rows[:, 1].sum() == 73_671
    assert rows[:, 2].sum() == 71_810 + 34


def test_lengths_of_the_pipelined_run_are_those_of_its_result_file() -> None:
    """42,659 input tokens and 42,444 output tokens in 200 requests (total_input_tokens and total_output_tokens)."""
    rows = np.loadtxt(FILE.parent / "sharegpt_200.csv", delimiter=",", skiprows=1)
    assert len(rows) == 200 and rows[:, 1].sum() == 42_659 and rows[:, 2].sum() == 42_444


def test_a_trace_has_the_rate_and_the_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    write_trace(FILE.parent / "sharegpt_320.csv", 8.0, 640, path)
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    assert rows[:, 1].sum() == 2 * 73_671 and len(rows) / rows[-1, 0] == pytest.approx(8, rel=0.1)


@pytest.mark.needs_data
def test_weights_in_int4_on_intel_are_multiplied_as_integers() -> None:
    """MLPerf Inference v5.1, Llama 3.1 8B: 778 tokens in the mean, and 128 of 4.75 characters in every answer.

    The board has two devices, each with a copy of the network. In 16 bits one could not make 826 tokens/s.
    """
    rows = [row for row in rows_of(DATA / "accelerators/measured.csv.gz") if row["model"] == "llama3.1-8b-edge"]
    measured = {row["concurrency"]: float(row["value"]) for row in rows}
    asked = {"gpu": "arc-b60", "weights": "int4", "input_tokens": 778, "output_tokens": 128}
    offline = pl.serve("llama-3.1-8b", rate="inf", num_requests=1000, **asked).figures["output_tokens_per_s"]
    single = pl.serve("llama-3.1-8b", concurrency=1, num_requests=20, **asked).latencies["latency_s"]["mean"]
    assert offline.value == pytest.approx(measured["Offline"] / 2, rel=0.1)
    assert single.value == pytest.approx(measured["SingleStream"] / 1e3, rel=0.15)
    assert single.low < measured["SingleStream"] / 1e3 < single.high


@pytest.mark.thorough
@pytest.mark.slow
def test_throughput_of_a_published_table() -> None:
    """TensorRT-LLM 0.17, Llama 3.1 8B in fp16 on A100: within the interval, and within the goal of 15%."""
    points = [
        point
        for point in published_points()
        if point.source == "TensorRT-LLM 0.17" and point.gpu == "a100-sxm-80gb" and point.network == "llama-3.1-8b"
    ]
    comparisons: list[ReproducedFigure] = []
    for point in points[4:8]:
        comparisons += compare(point)
    assert all(one.is_inside and abs(one.error) < 0.15 for one in comparisons)
    group = summarize(comparisons)[0]
    assert (group["source"], group["quantity"], group["points"]) == ("TensorRT-LLM 0.17", "throughput", 4)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_pipeline_over_two_nodes() -> None:
    """llm-k8s, Llama 3.3 70B in bf16 on 8 A100: tensor 4 and pipeline 2 are within 40%, and slower than tensor 8."""
    points = [point for point in published_points() if point.source == "llm-k8s, vLLM 0.8.3" and point.rate == "inf"]
    tensor, pipeline = (compare(point)[0] for point in points)
    assert (tensor.point.pipeline, pipeline.point.pipeline) == (1, 2)
    assert pipeline.predicted < tensor.predicted
    assert pipeline.is_inside and abs(pipeline.error) < 0.4


# Capacity of KV caches: lines that engines print, and constants that other lines gave -------------------------------

ROWS = list(rows_of(PUBLISHED))


@pytest.fixture(scope="module")
def predicted() -> list[Line]:
    return lines()


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[f"{name_of(row)}, {row['tokens']}" for row in ROWS])
def test_the_cache_holds_the_tokens_that_the_engine_prints(predicted: list[Line], index: int) -> None:
    line = predicted[index]
    assert line.predicted == pytest.approx(line.published, rel=0.1), line.url


def test_judged_lines_are_predicted_within_2_percent_in_the_median(predicted: list[Line]) -> None:
    judged = [abs(line.error) for line in predicted if not line.is_fitted]
    assert len(judged) >= 10 and median(judged) < 0.02


def test_no_line_is_fitted_and_judged() -> None:
    fitted = {(name_of(row), row["tokens"]) for row in ROWS if row["role"] == "fitted"}
    assert fitted and not fitted & {(name_of(row), row["tokens"]) for row in ROWS if row["role"] != "fitted"}

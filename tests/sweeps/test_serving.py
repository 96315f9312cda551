"""Sweeps over servers: each row is the answer of `serve`, and `best` ranks the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.errors import PaleoError
from paleo_lite.sweeps.run import Sweep
from paleo_lite.sweeps.serving import FIGURE_COLUMNS, LATENCY_COLUMNS, ServingSpace, number_columns

pytest.importorskip("pyarrow")

TRAFFIC = {"input_tokens": 512, "output_tokens": "64:16", "num_requests": 60, "seed": 3}


def sweep(path: Path, **arguments: object) -> Sweep:
    answer = pl.sweep("qwen2.5-0.5b", "a100-sxm-80gb,t4", path, jobs=1, **TRAFFIC, **arguments)
    assert isinstance(answer, Sweep)
    return answer


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Two devices, of which a T4 has no bf16, with two rates and two tensor-parallel degrees."""
    return sweep(tmp_path_factory.mktemp("servers") / "servers.parquet", rates=[2, 20], tensor="1,2")


def test_every_row_is_the_answer_of_serve(swept: Sweep) -> None:
    rows = swept.to_frame()
    assert (swept.rows, swept.feasible) == (8, 4)
    for row in rows[rows.gpu == "a100-sxm-80gb"].to_dict("records"):
        answer = pl.serve("qwen2.5-0.5b", gpu="a100-sxm-80gb", rate=row["rate_per_s"], tensor=row["tensor"], **TRAFFIC)
        for name, (latency, statistic) in LATENCY_COLUMNS.items():
            assert row[name] == answer.latencies[latency][statistic].value
        for name in FIGURE_COLUMNS:
            assert row[name] == answer.figures[name].value
        assert row["ttft_p50_s_low"] == answer.latencies["ttft_s"]["p50"].low
        assert row["output_tokens_per_s_high"] == answer.figures["output_tokens_per_s"].high
        assert (row["devices"], row["kv_cache"], row["answer"]) == (row["tensor"], "bf16", "forecast")


def test_server_that_cannot_run_is_a_row_with_the_reason(swept: Sweep) -> None:
    rows = swept.to_frame()
    refused = rows[rows.gpu == "t4"]
    assert len(refused) == 4
    assert refused.reason.str.startswith("Tesla T4 has no bf16 peak").all()
    assert refused[number_columns()].drop(columns="rate_per_s").isna().all(axis=None)


def test_best_ranks_servers(swept: Sweep) -> None:
    rows = swept.to_frame().query("gpu == 'a100-sxm-80gb'")
    cheapest = pl.best(swept.path, minimise="usd_per_million_output_tokens", where="ttft_p50_s < 1", top=1).rows[0]
    assert cheapest["usd_per_million_output_tokens"] == rows.usd_per_million_output_tokens.min()
    front = pl.best(swept.path, pareto="output_tokens_per_s_per_gpu,output_tokens_per_s_per_user")
    for row in front.rows:  # larger is better in both
        better = (rows.output_tokens_per_s_per_gpu > row["output_tokens_per_s_per_gpu"]) & (
            rows.output_tokens_per_s_per_user > row["output_tokens_per_s_per_user"]
        )
        assert not better.any()
    assert max(row["output_tokens_per_s_per_gpu"] for row in front.rows) == rows.output_tokens_per_s_per_gpu.max()


def test_users_of_a_closed_loop_in_a_csv_file(tmp_path: Path) -> None:
    swept = sweep(tmp_path / "servers.csv", concurrencies="1:4:x2", weights="fp8,bf16")
    rows = swept.to_frame().query("gpu == 'a100-sxm-80gb'")
    assert rows.concurrency.tolist() == [1, 2, 4] * 2
    assert rows.weights.tolist() == ["fp8"] * 3 + ["bf16"] * 3
    assert rows.rate_per_s.isna().all()
    throughput = rows.output_tokens_per_s.to_numpy().reshape(2, 3)
    assert (throughput[:, 1:] > throughput[:, :-1]).all()  # more users, more tokens
    assert (throughput[0] > throughput[1]).all()  # a small batch reads half as many bytes of weights in fp8


def test_power_limits_and_clocks_of_servers(tmp_path: Path) -> None:
    """Each row is the answer of `serve` under that limit and at that clock."""
    path = tmp_path / "servers.parquet"
    asked = {"input_tokens": 64, "output_tokens": 16, "num_requests": 20}
    swept = pl.sweep(
        "qwen2.5-0.5b", "a100-sxm-80gb", path, rates=2, power_limits="150W,400W", clocks="1.2GHz", jobs=1, **asked
    )
    rows = swept.to_frame()
    assert rows.power_limit_w.tolist() == [150, 400] and rows.clock.tolist() == ["1.2GHz"] * 2
    for row in rows.to_dict("records"):
        served = pl.serve(
            "qwen2.5-0.5b", gpu="a100-sxm-80gb", precision="bf16", rate=2, power_limit=row["power_limit_w"],
            clock=row["clock"], **asked,
        )  # fmt: skip
        assert row["ttft_p50_s"] == served.latencies["ttft_s"]["p50"].value


def test_server_is_one_device_unless_more_are_named() -> None:
    space = ServingSpace(("qwen2.5-0.5b",), ("h100-sxm",), rates=(1.0,))
    assert space.size == 1
    assert (space.tensor, space.pipeline, space.replicas) == ((1,), (1,), (1,))
    named = pl.sweep("qwen2.5-0.5b", "h100-sxm", "x.csv", rates=1, dry_run=True)
    for name in (
        "precisions",
        "weights",
        "tensor",
        "expert_parallel",
        "attention_data_parallel",
        "pipeline",
        "replicas",
        "concurrencies",
    ):
        assert getattr(named, name) == getattr(space, name), name


def test_experts_and_attention_are_axes(tmp_path: Path) -> None:
    answer = pl.sweep(
        "qwen3-30b-a3b", "h200", tmp_path / "servers.csv", jobs=1, concurrencies=8, tensor="2,8", expert_parallel="1,8",
        attention_data_parallel="1,8", **TRAFFIC,
    )  # fmt: skip
    assert isinstance(answer, Sweep)
    rows = answer.to_frame()
    assert len(rows) == 8 and answer.feasible == 5  # on 2 devices only 1 and 1
    refused = rows[rows.reason.notna()]
    assert set(refused.tensor) == {2}
    assert refused.reason.str.contains("must divide the 2 devices of `--tensor` \\(got 8\\)").all()
    chosen = rows[(rows.expert_parallel == 8) & (rows.attention_data_parallel == 8) & (rows.tensor == 8)].iloc[0]
    served = pl.serve(
        "qwen3-30b-a3b", gpu="h200", concurrency=8, tensor=8, expert_parallel=8, attention_data_parallel=8, **TRAFFIC
    )
    assert chosen.tpot_p50_s == pytest.approx(served.latencies["tpot_s"]["p50"].value)
    assert chosen.devices == 8


def test_another_hardware_file_is_another_sweep(tmp_path: Path) -> None:
    """A sweep resumes only with the same content of the files."""
    mine = tmp_path / "mine.toml"
    mine.write_text("one")
    space = ServingSpace(("qwen2.5-0.5b",), ("h100-sxm",), rates=(1.0,), hardware_files=(str(mine),))
    before = space.inputs()
    assert before == space.inputs()
    mine.write_text("two")
    assert {name for name, value in space.inputs().items() if value != before[name]} == {str(mine)}


def test_design_space_of_servers() -> None:
    space = pl.sweep("qwen2.5-0.5b,llama-3-8b", "h100-sxm", "x.csv", rates="1,2,4", replicas="1,2", dry_run=True)
    assert isinstance(space, ServingSpace)
    assert (space.size, space.chunk_count, space.precisions) == (12, 4, ("bf16",))
    assert space.describe() == "2 networks x 2 numbers of replicas x 3 rates"
    assert "12 combinations in 4 chunks" in str(space)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor": 2}, "`--tensor` is for servers: give `--rate` or `--concurrency` as well"),
        ({"expert_parallel": 2}, "`--expert-parallel` is for servers"),
        ({"output_tokens": 5}, "`--output-tokens` is for servers"),
        ({"rates": 1, "phases": "training"}, "`--phase` does not apply to servers"),
        ({"rates": 1, "batch_sizes": 4}, "`--batch-size` does not apply to servers"),
        ({"rates": 1, "concurrencies": 1}, "exactly one of `--rate` and `--concurrency`"),
        ({"rates": 0}, "`--rate` must be above 0 requests per second"),
        ({"rates": "fast"}, "`--rate` must be a number of requests per second or inf"),
        ({"rates": "2,2"}, "duplicate rates: 2.0"),
        ({"rates": 1, "weights": "fp9"}, "no format of weights is called 'fp9'"),
        ({"rates": 1, "kv_cache": "fp9"}, "no format of the KV cache is called 'fp9'"),
        ({"rates": 1, "policy": "orca"}, "orca"),
        ({"rates": 1, "links": "nvlink3,nvlink4"}, "one `--link` for all of them"),
        ({"rates": 1, "input_tokens": -3}, "--input-tokens"),
        ({"rates": 1, "networks": "resnet50"}, "needs language models (got resnet50)"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, object], message: str, tmp_path: Path) -> None:
    question = {"networks": "qwen2.5-0.5b", "gpus": "h100-sxm", "output": tmp_path / "servers.csv", **arguments}
    with pytest.raises(PaleoError) as error:
        pl.sweep(**question)
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())

"""Result files beside the forecasts for their own configurations.

Tests: api/result_forecasts.py, api/link_forecasts.py, result_files/beside.py.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.api.result_forecasts import is_result_file
from paleo_lite.cli import main
from paleo_lite.distributed.clusters import cluster_prior
from paleo_lite.errors import BadValue, PaleoError
from paleo_lite.progress import listening
from paleo_lite.result_files.beside import MeasuredBesideForecast
from result_samples import LLAMA_ROW, NCCL, VLLM_SERVE

pytest.importorskip("pyarrow")


def compare(text: str, folder: Path, **arguments: str) -> MeasuredBesideForecast:
    path = folder / "result.json"
    path.write_text(text)
    result = pl.compare(path, **arguments)  # type: ignore[arg-type]
    assert isinstance(result, MeasuredBesideForecast)
    return result


def test_a_server(tmp_path: Path) -> None:
    """The question is that of the file, so that the forecast is the one which `serve` gives."""
    result = compare(VLLM_SERVE, tmp_path, gpu="h100-sxm")
    asked = pl.serve("llama-3.1-8b", gpu="h100-sxm", tensor=2, input_tokens=1000, output_tokens=201, concurrency=10,
                     num_requests=100).to_dict()  # fmt: skip
    rows = {row.figure: row for row in result.rows}
    assert {"ttft_s", "tpot_s", "output_tokens_per_s"} <= rows.keys() and result.left_out == []
    for figure in ("ttft_s", "tpot_s"):
        forecast = asked["latencies"][figure]["mean"]
        assert (rows[figure].forecast, rows[figure].low) == (forecast["value"], forecast["low"])
    assert rows["tpot_s"].ratio == pytest.approx(0.02 / rows["tpot_s"].forecast)
    assert result.typical_factor >= 1


def run_at(tmp_path: Path, rate: float, requests: int) -> Any:
    """Return the tokens per second of a run at a rate, beside their forecast."""
    facts = json.loads(VLLM_SERVE) | {
        "request_rate": rate, "max_concurrency": None, "num_prompts": requests, "completed": requests,
        "total_input_tokens": 1000 * requests, "total_output_tokens": 201 * requests,
    }  # fmt: skip
    result = compare(json.dumps(facts), tmp_path, gpu="h100-sxm")
    (row,) = (row for row in result.rows if row.figure == "output_tokens_per_s")
    return row


def test_a_benchmark_divides_its_tokens_by_the_time_until_the_last_answer(tmp_path: Path) -> None:
    """300 requests at 20/s arrive for 15 s, 9.5% more or less, and the last one takes the time of a request."""
    row = run_at(tmp_path, 20, 300)
    asked = pl.serve("llama-3.1-8b", gpu="h100-sxm", tensor=2, input_tokens=1000, output_tokens=201, rate=20,
                     num_requests=300).to_dict()  # fmt: skip
    request_s = asked["latencies"]["latency_s"]["mean"]
    assert row.forecast == pytest.approx(300 * 201 / (15 + request_s["value"]))
    reach = math.exp(1.645 / math.sqrt(300))
    assert row.low == pytest.approx(300 * 201 / (15 * reach + request_s["high"]), rel=1e-4)
    assert row.high == pytest.approx(300 * 201 / (15 / reach + request_s["low"]), rel=1e-4)
    # The simulated run is one draw of such arrivals.
    assert row.low < 201 * asked["figures"]["run_requests_per_s"]["value"] < row.high


@pytest.mark.parametrize("rate", [60, 400])
@pytest.mark.parametrize("requests", [300, 5000])
def test_a_run_is_no_faster_than_its_server(tmp_path: Path, rate: float, requests: int) -> None:
    row = run_at(tmp_path, rate, requests)
    asked = pl.serve("llama-3.1-8b", gpu="h100-sxm", tensor=2, input_tokens=1000, output_tokens=201, rate=rate,
                     num_requests=300).to_dict()  # fmt: skip
    saturation = asked["figures"]["saturation_tokens_per_s"]
    assert row.forecast < min(saturation["value"], 201 * rate) and row.high < saturation["high"]
    assert row.low < row.forecast < row.high


def test_a_server_with_quantised_weights_and_cache(tmp_path: Path) -> None:
    """vLLM's `dtype` is that of what is not quantised: its products are those of the weights' format."""
    formats = {"dtype": "bfloat16", "quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"}
    result = compare(json.dumps(json.loads(VLLM_SERVE) | formats), tmp_path, gpu="h100-sxm")
    asked = pl.serve("llama-3.1-8b", gpu="h100-sxm", tensor=2, input_tokens=1000, output_tokens=201, concurrency=10,
                     num_requests=100, weights="fp8", kv_cache="fp8").to_dict()  # fmt: skip
    rows = {row.figure: row for row in result.rows}
    assert rows["tpot_s"].forecast == asked["latencies"]["tpot_s"]["mean"]["value"]


@pytest.mark.parametrize("in_sidecar", [False, True])
@pytest.mark.parametrize("recorded", [{}, {"quantization": "awq"}])
def test_a_stated_format_is_that_of_the_forecast(in_sidecar: bool, recorded: dict[str, str], tmp_path: Path) -> None:
    """A precision such as fp8 names the format of weights too, as that of `serve` does, whatever the file records."""
    stated = {} if in_sidecar else {"precision": "fp8"}
    if in_sidecar:
        (tmp_path / "result.json.toml").write_text('precision = "fp8"')
    result = compare(json.dumps(json.loads(VLLM_SERVE) | recorded), tmp_path, gpu="h100-sxm", **stated)
    asked = pl.serve("llama-3.1-8b", gpu="h100-sxm", tensor=2, input_tokens=1000, output_tokens=201, concurrency=10,
                     num_requests=100, precision="fp8").to_dict()  # fmt: skip
    rows = {row.figure: row for row in result.rows}
    for figure in ("ttft_s", "tpot_s"):
        assert rows[figure].forecast == asked["latencies"][figure]["mean"]["value"]
    assert any("weights in awq" in note for note in result.notes) is bool(recorded)


def test_a_name_that_suggests_another_format_is_said(tmp_path: Path) -> None:
    text = VLLM_SERVE.replace("Llama-3.1-8B", "Llama-3.1-8B-Instruct-AWQ")
    given = {"gpu": "h100-sxm", "precision": "fp8"}
    notes = compare(text, tmp_path, **given).notes
    assert any("the name of the network suggests awq, and precision fp8 was given" in note for note in notes)


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm"])
def test_a_recorded_format_without_products_is_that_of_the_weights(gpu: str, tmp_path: Path) -> None:
    """An A100 has no products in fp8: vLLM converts the weights (its docs, quantization/fp8)."""
    result = compare(json.dumps(json.loads(VLLM_SERVE) | {"precision": "fp8"}), tmp_path, gpu=gpu)
    formats = {"weights": "fp8"} if gpu == "a100-sxm-80gb" else {"precision": "fp8"}
    asked = pl.serve("llama-3.1-8b", gpu=gpu, tensor=2, input_tokens=1000, output_tokens=201, concurrency=10,
                     num_requests=100, **formats).to_dict()  # fmt: skip
    rows = {row.figure: row for row in result.rows}
    assert rows["tpot_s"].forecast == asked["latencies"]["tpot_s"]["mean"]["value"]


def test_a_recorded_pass_without_products_of_its_format_has_weights_in_it(tmp_path: Path) -> None:
    """As that of a server: a V100 has neither products in fp8 nor in bf16, and multiplies in fp16."""
    row = {"model": "vit_b_16", "infer_samples_per_sec": 800.0, "infer_batch_size": 8, "infer_step_time": 10.0,
           "infer_img_size": 224}  # fmt: skip
    (tmp_path / "result.json.toml").write_text('precision = "fp8"')
    (passed,) = compare(json.dumps([row]), tmp_path, gpu="v100-sxm2").rows
    asked: Any = pl.predict("vit_b_16", gpu="v100-sxm2", batch_size=8, precision="fp16", weights="fp8")
    assert passed.forecast == asked.time_s


def test_a_precision_that_the_device_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="fp8"):
        compare(VLLM_SERVE, tmp_path, gpu="a100-sxm-80gb", precision="fp8")


def test_a_printed_report_with_medians_and_its_commands(tmp_path: Path) -> None:
    """The report has no means, and the network is that of the command beside it."""
    text = (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --dtype bfloat16\n"
        "============ Serving Benchmark Result ============\n"
        "Successful requests:                     100\nMaximum request concurrency:             4\n"
        "Benchmark duration (s):                  60.00\nTotal input tokens:                      100000\n"
        "Total generated tokens:                  20000\nMedian TTFT (ms):                        50.00\n"
        "Median TPOT (ms):                        8.00\n"
    )
    result = compare(text, tmp_path, gpu="h100-sxm")
    asked = pl.serve("llama-3.1-8b", gpu="h100-sxm", input_tokens=1000, output_tokens=200, concurrency=4,
                     num_requests=100).to_dict()  # fmt: skip
    rows = {row.figure: row.forecast for row in result.rows}
    assert rows["ttft_median_s"] == asked["latencies"]["ttft_s"]["p50"]["value"]
    assert rows["tpot_median_s"] == asked["latencies"]["tpot_s"]["p50"]["value"]
    assert any("Llama-3.1-8B-Instruct" in note and "a command in the text" in note for note in result.notes)


def test_a_model_on_its_own_machine(tmp_path: Path) -> None:
    rows = [f'{{{LLAMA_ROW}, "n_prompt": {prompt}, "n_gen": {generated}, "n_depth": 0, "avg_ns": 1e9, "avg_ts": 100.0}}'
            for prompt, generated in ((512, 0), (0, 128), (512, 128))]  # fmt: skip
    result = compare(f"[{', '.join(rows)}]", tmp_path, gpu="a100-sxm-40gb")
    assert [(row.kind, row.figure) for row in result.rows] == [("prompt", "time_s"), ("decode", "tpot_s")]
    assert result.rows[1].forecast == pl.local("llama-2-7b", gpu="a100-sxm-40gb", weights="q4_0", context=64).token_s  # type: ignore[union-attr]
    assert result.left_out == ["a rate that mixes prompt and generation has no forecast"]


def test_passes_of_networks(tmp_path: Path) -> None:
    table = [{"model": name, "infer_samples_per_sec": 1000.0, "infer_step_time": 8.0, "infer_batch_size": 8,
              "infer_img_size": 224} for name in ("alexnet", "nothing_of_this_name")]  # fmt: skip
    result = compare(json.dumps(table), tmp_path, gpu="k40m")
    (row,) = result.rows
    assert row.forecast == pl.predict("alexnet", gpu="k40m", batch_size=8).time_s  # type: ignore[union-attr]
    assert "1 network without a shipped network of the name (nothing_of_this_name)" in result.left_out[0]


def test_an_all_reduce_inside_a_node(tmp_path: Path) -> None:
    result = compare(NCCL.replace("node2 device  0", "node1 device  1"), tmp_path, gpu="h100-sxm")
    assert {(row.kind, row.figure) for row in result.rows} == {("collective", "time_s")}
    sizes = [row.forecast for row in result.rows]
    assert sizes == sorted(sizes)


def test_an_all_reduce_over_nodes_has_the_usual_network(tmp_path: Path) -> None:
    usual, slower = compare(NCCL, tmp_path), compare(NCCL + "\n", tmp_path, gpu="h100-sxm")
    assert [row.situation for row in usual.rows] == ["all_reduce, 1,024 bytes", "all_reduce, 1,073,741,824 bytes"]
    # 1 GiB between two nodes of one device: as many bytes over a port of 400 Gbit/s at the share of networks.
    share = cluster_prior().bandwidth_share["network"]
    assert usual.rows[1].forecast == pytest.approx(2**30 / (50e9 * share), rel=0.02)
    assert [row.forecast for row in slower.rows] == [row.forecast for row in usual.rows]
    with pytest.raises(BadValue, match="the network between nodes of rtx3090 is not on record"):
        compare(NCCL.replace("NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090"), tmp_path, gpu="rtx3090")


def test_a_step_of_training(tmp_path: Path) -> None:
    """The log of Megatron-LM on eight devices is compared with what `train` says of them."""
    log = [
        "tensor_model_parallel_size ...................... 2", "world_size ...................................... 8",
        "seq_length ...................................... 1024",
        *(f" iteration {number}/ 100 | consumed samples: {64 * number} | elapsed time per iteration (ms): 900.0 | "
          "learning rate: 1.000E-04 | global batch size: 64 | lm loss: 7.0E+00 |" for number in range(1, 9)),
    ]  # fmt: skip
    result = compare("\n".join(log), tmp_path, gpu="a100-sxm-80gb", predict="llama-3.2-1b", precision="bf16")
    (row,) = result.rows
    asked: Any = pl.train("llama-3.2-1b", gpu="a100-sxm-80gb", precision="bf16", workers=8, tensor=2,
                          global_batch_size=64, sequence_length=1024)  # fmt: skip
    assert (row.figure, row.measured) == ("step_s", pytest.approx(0.9))
    assert row.forecast == asked.answering_row.time_s
    assert row.low < row.forecast < row.high  # type: ignore[operator]


def test_files_without_a_forecast_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="rows of the kind power have no forecast yet"):
        compare(
            "timestamp, power.draw [W]\n2026/11/01 10:00:00.000, 300.00 W\n2026/11/01 10:00:01.000, 310.00 W\n",
            tmp_path,
        )
    with pytest.raises(BadValue, match="the GPU is not in the file: give `--gpu`"):
        compare(VLLM_SERVE.replace(', "gpu": "H100"', ""), tmp_path)


def test_a_profile_is_no_result_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ('{"traceEvents": []}', "", "nothing of the kind"):
        path.write_text(text)
        assert not is_result_file(path)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(VLLM_SERVE)
    arguments = ["compare", str(path), "--gpu", "h100-sxm"]
    printed = CliRunner(env={"COLUMNS": "120"}).invoke(main, arguments).stdout
    assert "vLLM bench serve, beside the forecast" in printed and "concurrency 10, 1,000 in, 201 out" in printed
    answer = json.loads(CliRunner().invoke(main, [*arguments, "--format", "json"]).stdout)
    assert answer["question"]["engine"] == "vllm" and answer["rows"][0]["kind"] == "server"


INFERENCEX = {
    "hw": "h200", "framework": "sglang", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp8", "tp": 8, "ep": 8,
    "dp_attention": True, "conc": 64, "isl": 1024, "osl": 1024, "mean_ttft": 0.9, "median_ttft": 0.8, "mean_tpot": 0.03,
    "median_tpot": 0.03, "tput_per_gpu": 500.0, "output_tput_per_gpu": 250.0,
    "completed": 640, "duration": 330.0, "total_input_tokens": 640 * 1024, "total_output_tokens": 640 * 1024,
}  # fmt: skip


def test_the_division_of_a_server_is_asked(tmp_path: Path) -> None:
    """Eight devices divide the experts, and each computes attention for its own users."""
    result = compare(json.dumps(INFERENCEX), tmp_path, gpu="h200-sxm")
    asked: Any = pl.serve(
        "deepseek-r1", gpu="h200-sxm", engine="sglang", weights="fp8", tensor=8, expert_parallel=8,
        attention_data_parallel=8, input_tokens=1024, output_tokens=1024, concurrency=64, num_requests=400,
    )  # fmt: skip
    row = next(row for row in result.rows if row.figure == "tpot_s")
    assert row.forecast == asked.to_dict()["latencies"]["tpot_s"]["mean"]["value"]


COPIES = """nvbandwidth Version: v0.8
Device 0: NVIDIA A100-SXM4-80GB (00000000:07:00)
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0
 0     26.20
SUM host_to_device_memcpy_ce 26.20
"""

CUDA_COPIES = """ Device 0: Tesla P100-PCIE-16GB
 Host to Device Bandwidth, 1 Device(s)
 PINNED Memory Transfers
   Transfer Size (Bytes)        Bandwidth(GB/s)
   32000000                     12.1
"""

GPU_COPY = "cpu_to_gpu0_by_dma_under_numa0 26.24\ngpu0_to_gpu0_by_dma 657.30\n"


@pytest.mark.parametrize(
    ("text", "gpu", "expected"),
    [(COPIES, {}, 31.5e9), (CUDA_COPIES, {}, 15.75e9), (GPU_COPY, {"gpu": "a100-sxm-80gb"}, 31.5e9)],
)
def test_copies_between_host_and_device(text: str, gpu: dict[str, str], expected: float, tmp_path: Path) -> None:
    """PCIe 4.0 and 3.0 with 16 lanes carry 31.5 and 15.75 GB/s (PCI-SIG), of which a P100 reached 12.15 GB/s."""
    (row,) = compare(text, tmp_path, **gpu).rows
    assert row.figure == "bytes_per_s"
    assert row.forecast == pytest.approx(12.15 / 15.75 * expected, rel=2e-3)


def aggregated(**changes: Any) -> dict[str, Any]:
    """Return a run as `utils/process_result.py` of InferenceX aggregates it: without lengths and requests that came."""
    run = {name: value for name, value in INFERENCEX.items() if name not in AGGREGATED_LACK}
    return {**run, "model": "meta-llama/Llama-3.1-8B-Instruct", "ep": 1, "dp_attention": False, "disagg": False,
            "spec_decoding": "none", **changes}  # fmt: skip


AGGREGATED_LACK = ("completed", "duration", "total_input_tokens", "total_output_tokens")

RUNS = [
    aggregated(hw="h200", framework="vllm", tp=1, conc=4),
    aggregated(hw="b200", framework="trt", tp=2, conc=16, precision="fp4"),
    aggregated(hw="h100", framework="atom", tp=1, conc=16),
]


def test_each_run_of_an_aggregated_file_is_asked_with_its_own_configuration(tmp_path: Path) -> None:
    """InferenceX draws lengths between 0.8 and 1.0 of those asked (1,024), and sends ten requests per user."""
    reported: list[tuple[int, int]] = []
    with listening(lambda completed, total: reported.append((completed, total))):
        result = compare(json.dumps(RUNS), tmp_path)
    asked = [
        {"gpu": "h200-sxm", "engine": "vllm", "weights": "fp8", "tensor": 1, "concurrency": 4, "num_requests": 40},
        {"gpu": "b200-sxm", "engine": "tensorrt-llm", "weights": "nvfp4", "tensor": 2, "concurrency": 16,
         "num_requests": 160},
    ]  # fmt: skip
    rows = [row for row in result.rows if row.figure == "tpot_s"]
    for row, question in zip(rows, asked, strict=True):
        answer: Any = pl.serve("llama-3.1-8b", **question, input_tokens=922, output_tokens=922)
        assert row.forecast == answer.latencies["tpot_s"]["mean"].value
    assert rows[1].situation == "b200, tensorrt-llm, nvfp4, 2 devices, concurrency 16, 922 in, 922 out"
    assert any("no serving engine is called 'atom'" in reason for reason in result.left_out)
    assert reported == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.thorough
def test_long_files_are_compared_in_evenly_spread_rows(tmp_path: Path) -> None:
    """Of a table of 100 networks 60 are looked at, of which one is shipped."""
    runs = [aggregated(hw="h200", framework="vllm", tp=1, model=f"unknown-{number}") for number in range(99)]
    result = compare(json.dumps([*runs, RUNS[0]][::-1]), tmp_path)
    assert {row.row for row in result.rows} == {0}
    assert "of 100 rows, 60 evenly spread ones are used" in result.left_out
    assert any(reason.startswith("59 networks without a shipped network") for reason in result.left_out)


def test_more_users_send_enough_requests(tmp_path: Path) -> None:
    """Of 600 users, 400 requests would never be 600 at once."""
    runs = [aggregated(hw="h200", framework="vllm", tp=1, conc=600, isl=64, osl=16)]
    (row,) = (row for row in compare(json.dumps(runs), tmp_path).rows if row.figure == "tpot_s")
    answer: Any = pl.serve(
        "llama-3.1-8b", gpu="h200-sxm", engine="vllm", weights="fp8", tensor=1, concurrency=600, num_requests=2400,
        input_tokens=58, output_tokens=14,
    )  # fmt: skip
    assert row.forecast == answer.latencies["tpot_s"]["mean"].value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"disagg": True, "num_prefill_gpu": 8, "num_decode_gpu": 8},
            "prompts and answers are on devices of their own",
        ),
        ({"spec_decoding": "mtp"}, r"servers that draft tokens \(mtp\) have no forecast"),
    ],
)
def test_servers_that_are_not_one_engine_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=said):
        compare(json.dumps({**INFERENCEX, **change}), tmp_path, gpu="h200-sxm")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "# OSU MPI-CUDA Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n4194304             24000.00\n",
            r"messages of MPI \(send\) have no forecast: .* nccl-tests and ib_write_bw calibrate a link",
        ),
        (
            "[tuning] Best dispatch (FP8): SMs 24, NVL chunk 20: 300.00 GB/s (NVL), t: 200.00 us\n",
            "dispatch of experts alone has no forecast: .* which a benchmark of the server calibrates",
        ),
    ],
)
def test_files_that_inform_nothing_say_why(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text(text)
    for ask in (pl.calibrate, pl.compare):
        with pytest.raises(BadValue, match=said):
            ask(path, gpu="h100-sxm", devices=8, link="nvlink4")


_GENERATED = f'[{{{LLAMA_ROW}, "n_prompt": 0, "n_gen": 128, "n_depth": 512, "avg_ns": 1280000000, "avg_ts": 100.0}}]'


@pytest.mark.parametrize("text", [_GENERATED, NCCL], ids=["local", "collective"])
def test_a_calibration_moves_the_forecasts(text: str, tmp_path: Path) -> None:
    """A calibration learned from rows forecasts the same rows better, and a file that does not exist is refused."""
    given = {"gpu": "h100-sxm" if text == NCCL else "a100-sxm-40gb"}
    shipped = compare(text, tmp_path, **given)
    calibration: Any = pl.calibrate(tmp_path / "result.json", **given)
    learned = compare(text, tmp_path, calibration=calibration, **given)
    assert learned.question["calibration"] and learned.typical_factor < shipped.typical_factor
    with pytest.raises(PaleoError, match="nosuch"):
        compare(text, tmp_path, calibration="nosuch", **given)


def test_options_of_profiles_are_refused(tmp_path: Path) -> None:
    """The forecasts are for what the file records, so that a clock would change nothing."""
    with pytest.raises(BadValue, match="`--clock` is for profiles, not for a result file"):
        compare(NCCL, tmp_path, clock="boost")


def test_a_time_below_the_data_sheet_is_called_impossible(tmp_path: Path) -> None:
    """At 1 ms per token two H100 would read the 16 GB of the weights at 16 TB/s, of 6.7 in their data sheets."""
    report = json.loads(VLLM_SERVE) | {"mean_tpot_ms": 1.0}
    (note,) = [note for note in compare(json.dumps(report), tmp_path, gpu="h100-sxm").notes if "the least" in note]
    assert "a measured time of 1 ms" in note and "whether tokens are drafted" in note
    assert not [note for note in compare(VLLM_SERVE, tmp_path, gpu="h100-sxm").notes if "the least" in note]

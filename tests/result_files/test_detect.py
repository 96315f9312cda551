"""Recognition of files, reading of many of them, facts from options and sidecars, and published files.

Tests: result_files/detect.py, result_files/configuration.py, result_files/findings.py, result_files/serving_rows.py,
    result_files/archives.py, result_files/quantities.py.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from measured import DATA
from paleo_lite.errors import BadFile, UnknownFormat
from paleo_lite.progress import listening
from paleo_lite.result_files.detect import read_result, read_results
from paleo_lite.result_files.text import number_at_end
from result_samples import LLAMA_COLUMNS, NCCL, VLLM_SERVE


@pytest.fixture
def serve(tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    path.write_text(VLLM_SERVE)
    return path


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ('{"total_token_throughput": 1, "request_throughput": 2, "mean_tpot_ms": 3}', "vLLM bench serve"),
        ("n_gpu_layers and model_type of a model, in t/s\n", "llama"),
    ],
)
def test_another_file_is_refused_with_the_nearest_formats(tmp_path: Path, text: str, nearest: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(UnknownFormat, match=r"not a result file.*the nearest of \d+ formats: ") as refused:
        read_result(path)
    assert nearest in str(refused.value) and str(refused.value).count(";") == 2
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((empty, "it holds nothing: no row, or an empty JSON") for empty in ("{}", " [ ]\n", "null", "\ufeff\n")),
        (VLLM_SERVE[:250], r"not a result file that paleo-lite reads \(its JSON is cut off or damaged\)"),
        (repr(json.loads(VLLM_SERVE)), "printed by Python, with single quotes: write it by json.dump"),
        (f"{LLAMA_COLUMNS}\n".replace(",", ";"), "the columns are divided by semicolons"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, "utf-8")
    with pytest.raises(UnknownFormat, match=said):
        read_result(path)


@pytest.mark.parametrize(
    "text",
    [
        re.sub(r": [\d.]+", ": NaN", VLLM_SERVE),
        NCCL.partition("        1024")[0],
        "".join(f"> {line}\n" for line in json.dumps(json.loads(VLLM_SERVE), indent=2).splitlines()),
        VLLM_SERVE.replace('"completed": 100', f'"completed": {"9" * 5000}'),
        f"{LLAMA_COLUMNS}\n",
    ],
)
def test_a_file_without_rows_says_so(tmp_path: Path, text: str) -> None:
    """Numbers that are none, a table that is cut before its rows, a quoted mail, and an integer of 5,000 digits."""
    path = tmp_path / "file"
    path.write_text(text)
    findings = read_result(path)
    assert findings.readings == [] and "no measurement was found in it" in findings.doubts


@pytest.mark.parametrize(
    "text",
    [
        VLLM_SERVE.strip() * 2,  # concatenated without a line end
        "\ufeff" + VLLM_SERVE + "\ufeff" + VLLM_SERVE,
        json.dumps(json.loads(VLLM_SERVE), indent="\t").replace("\n", "\r\n"),
        json.dumps(json.loads(VLLM_SERVE), indent=2).replace("\n", "\r"),
        re.sub(r": ([\d.]+)", r': "\1"', VLLM_SERVE),  # numbers as texts
        re.sub(r": (\d+)\.(\d+)", r': "\1,\2"', VLLM_SERVE),  # with decimal commas
        VLLM_SERVE.replace('"duration": 50.0', '"duration": "5e1"').strip()[:-1] + ",}",
        f"```json\n{VLLM_SERVE}```\n",
        f"<pre>{VLLM_SERVE}</pre>",
        f"\0\0{VLLM_SERVE}\0",
    ],
)
def test_odd_files_are_read_as_plain_ones(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, "utf-8", newline="")
    findings = read_result(path)
    values = findings.readings[0].values
    assert {name: values[name] for name in ("requests", "ttft_s", "tpot_s", "output_tokens", "duration_s")} == {
        "requests": 100, "ttft_s": 1.0, "tpot_s": 0.02, "output_tokens": 201, "duration_s": 50.0,
    }  # fmt: skip
    assert findings.configuration["network"] == "meta-llama/Llama-3.1-8B"


def test_figures_below_zero_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(NCCL.replace("20.35", "-20.35"))
    findings = read_result(path)
    assert "time_s" not in findings.readings[0].values and findings.readings[1].values["time_s"] == 0.005
    assert "negative values of 'time' are left out: they cannot have been measured" in findings.doubts


def test_names_lose_the_colours_of_terminals(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(VLLM_SERVE.replace('"H100"', '"\\u001b[31mH100\\u001b[0m"'))
    assert read_result(path).configuration["gpu"] == "H100"


def test_what_is_missing_is_asked_for(serve: Path) -> None:
    findings = read_result(serve)
    assert findings.guessed == {"gpu": "`gpu` in the file", "tensor": "`tp` in the file"}
    assert findings.missing == [
        'the precision is not in the file: give `--precision bf16`, or write `precision = "bf16"` to bench.json.toml'
    ]


def test_a_calibration_named_after_the_file_is_no_sidecar(serve: Path) -> None:
    before = read_result(serve).configuration
    serve.with_suffix(".toml").write_text('format = 1\ntime_model = "evidence"\nnotes = ["a row is left out"]\n')
    assert read_result(serve).configuration == before


def test_a_sidecar_and_an_option_give_facts(serve: Path) -> None:
    (serve.parent / "bench.toml").write_text('precision = "fp8"\ngpu = "h200"\n')
    findings = read_result(serve, {"gpu": "h100-sxm"})
    assert findings.missing == [] and findings.guessed.keys() == {"tensor"}
    assert (findings.configuration["precision"], findings.configuration["gpu"]) == ("fp8", "h100-sxm")


def test_a_fact_that_contradicts_the_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(NCCL)
    findings = read_result(path, {"gpu": "a100"})
    assert "the file records NVIDIA H100 80GB HBM3 as gpu, and a100 was given, which is taken" in findings.doubts


@pytest.mark.parametrize("text", ["precision = ", "precision = [1]", "\udcff", "tensr = 2", 'tensor = "two"'])
def test_a_bad_sidecar_is_an_error(serve: Path, text: str) -> None:
    (serve.parent / "bench.json.toml").write_text(text, "utf-8", errors="surrogateescape")
    with pytest.raises(BadFile, match=r"bench\.json\.toml"):
        read_result(serve)


def test_names_suggest_device_and_format(tmp_path: Path) -> None:
    path = tmp_path / "8xH100_fp8.json"
    path.write_text(VLLM_SERVE.replace(', "gpu": "H100"', ""))
    findings = read_result(path)
    assert {name: findings.configuration[name] for name in ("gpu", "devices", "weights")} == {
        "gpu": "H100",
        "devices": 8,
        "weights": "fp8",
    }


def test_a_folder_is_read_with_what_fails(serve: Path) -> None:
    (serve.parent / "deep").mkdir()
    (serve.parent / "deep/nccl.log").write_text(NCCL)
    (serve.parent / "deep/notes.txt").write_text("nothing")
    (serve.parent / ".hidden").write_text("nothing")
    calls: list[tuple[int, int]] = []
    with listening(lambda *done: calls.append(done)):
        result = read_results([serve.parent], jobs=1, keep_going=True)
    assert [findings.tool for findings in result.files] == ["vLLM bench serve", "nccl-tests"]
    assert [Path(failure["file"]).name for failure in result.failed] == ["notes.txt"] and calls[-1] == (3, 3)
    with pytest.raises(UnknownFormat):
        read_results([serve.parent], jobs=1)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("text", [VLLM_SERVE, NCCL], ids=["json", "log"])
def test_encodings_of_windows(tmp_path: Path, text: str, encoding: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(
        ("\ufeff" if encoding == "utf-16-be" else "").encode(encoding) + text.replace("\n", "\r\n").encode(encoding)
    )
    findings = read_result(path)
    assert findings.format in ("vllm-serve", "nccl-tests") and findings.readings


def test_paths_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file"):
        read_results([tmp_path / "none"])
    with pytest.raises(BadFile, match="no files"):
        read_results([tmp_path])


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_is_read(tmp_path: Path, serve: Path, kind: str) -> None:
    archive = tmp_path / f"all.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            file.write(serve, "../../runs/8xH200/bench.json")
            file.write(serve, ".git/bench.json")
    else:
        with tarfile.open(archive, "w:gz") as file:
            file.add(serve, "runs/bench.json")
    result = read_results([archive], jobs=1)
    assert [findings.name.endswith("runs/8xH200/bench.json") or findings.name.endswith("runs/bench.json")
            for findings in result.files] == [True]  # fmt: skip
    assert not list(tmp_path.parent.glob("runs"))


def test_a_damaged_archive(tmp_path: Path, serve: Path) -> None:
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.write(serve, "bench.json")
    data = bytearray(archive.read_bytes())
    data[60:200] = bytes(140)
    archive.write_bytes(data)
    with pytest.raises(BadFile, match="cannot be unpacked"):
        read_results([archive])
    assert "cannot be unpacked" in read_results([archive, serve], jobs=1, keep_going=True).failed[0]["error"]


RESULTS = DATA / "results"
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "aiperf/profile_export_aiperf_qwen3.6-35b-a3b-nvfp4_rtx5090_c16_trimmed.json": (
        "server", {"requests": 96, "ttft_s": 0.11913046, "tpot_s": 0.01305021, "itl_median_s": 0.00876532,
                   "concurrency": 14.101, "concurrency_limit": 16, "output_tokens": 198.802}),
    "codecarbon/vllm_energy_summary_own_csv.csv": ("power", {"energy_j": 0.0055 * 3.6e6}),
    "comfyui/flux_timestamps.txt": ("picture", {"steps": 30, "time_s": 35.18, "step_s": 1 / 1.01}),
    "composer/16gpu_throughput.txt": ("step", {"tokens_per_s": 20082.8418, "devices": 16, "samples_per_s": 2.733}),
    "cutlass/superbench_a100_gemm.csv": ("kernel", {"time_s": 0.481022, "flops_per_s": 1.82874e13}),
    "deepbench/DeepBench_NV_T4.xlsx": ("kernel", {"shape": "5124x700x2048", "time_s": 0.000999,
                                                  "flops_per_s": 14.706239e12}),
    "deepep/intranode_24sm.txt": ("collective", {"time_s": 453.49e-6, "bus_bytes_per_s": 352.43e9}),
    "deepspeed/opt-1.3b_sft_gbs128.log": ("step", {"memory_bytes": 22.95 * 2**30, "micro_batch": 8}),
    "deepspeed/wall_clock_breakdown_aurora.txt": ("step", {"step_s": 108.8932, "global_batch_size": 768,
                                                           "sequence_length": 4096, "flops_per_s": 49.66e12}),
    "demodiffusion/sd1.5_768_50steps_trt9.1.txt": ("picture", {"time_s": 1.97295, "denoiser_s": 1.92351, "steps": 50}),
    "flash-attention/cudnn_attention_benchmark_print.txt": ("kernel", {"flops_per_s": 302.38e12, "phase": "forward"}),
    "guidellm/benchmarks_v0.3_qwen3-0.6b_trimmed.json": (
        "server", {"requests": 586, "tpot_s": 0.010423929, "ttft_s": 1.0062144, "output_tokens_per_s": 1251.554}),
    "hf-trainer/hf_gpt2_52b_deepspeed_64xV100_lines.txt": ("step", {"samples_per_s": 3.663, "duration_s": 273.0148}),
    "hf-trainer/t5_trainer_state_trimmed.json": ("step", {"step_s": 54713.1806 / 215337, "samples_per_s": 15.743}),
    "hipblaslt/mi_fp16_896.txt": ("kernel", {"time_s": 24.54e-6, "flops_per_s": 58624.5e9, "shape": "896x896x896"}),
    "ib/superbench_ib_loopback_all_sizes.log": ("copy", {"bytes": 2, "bytes_per_s": 5.30 * 2**20}),
    "inference-perf/vllm_batch_size_stage_2_lifecycle_metrics.json": (
        "server", {"tpot_s": 0.0117549, "tpot_reported_s": 0.00561806, "ttft_s": 0.0385768, "requests": 4496}),
    "inference-perf/vllm_batch_size_stage_2_prometheus_metrics.json": ("server", {"tpot_s": 0.011998}),
    "inferencex/glm5_fp8_vllm_tp8_isl10240_osl128_conc16.json": (
        "server", {"ttft_median_s": 3.1382447, "tpot_median_s": 0.14105192, "input_tokens": 10240}),
    "litgpt/tutorial_lines.txt": ("step", {"step_s": (0.30007 + 0.26075) / 2}),
    "llama-bench/glm-4.7-flash-bf16_strix-halo_md.log": ("decode", {"tokens_per_s": 23.17, "generated": 128}),
    "llama-bench/qwen3.6-27b-q8_0_strix-halo_rocm_generation.jsonl": (
        "decode", {"tokens_per_s": 7.797445, "time_s": 16.41563756, "weight_bytes": 29036089344}),
    "llama-bench/qwen3.6-35b-a3b-q4_strix-halo_rocm_prefill.jsonl": (
        "prompt", {"tokens_per_s": 1383.798972, "tokens": 2048}),
    "llama-bench/rx7900xtx_llama2-7b-q4_0_vulkan.txt": (
        "prompt", {"tokens_per_s": 3229.07, "gpu": "AMD Radeon RX 7900 XTX (RADV NAVI31)"}),
    "llama-bench/sparecores_a2-highgpu-1g_A100-40GB.jsonl": (
        "prompt", {"tokens_per_s": 1837.345, "gpu": "NVIDIA A100-SXM4-40GB", "tokens": 16}),
    "llama-server/mtp_client_predicted_per_second.json": ("decode", {"tokens_per_s": 12.88, "acceptance": 120 / 140}),
    "llama-server/timings_2023_print_timings.txt": ("decode", {"time_s": 115.22219, "generated": 510}),
    "llama-server/timings_2024_info_keyvalue.txt": ("decode", {"time_s": 3.19422, "generated": 783}),
    "llmperf/anyscale_llama2-70b_550_150_summary.json": (
        "server", {"ttft_s": 0.2489027, "e2e_s": 2.3546668, "output_tokens": 146.94667, "tpot_s": 0.0144283}),
    "lmstudio/rest_v0_chat_stats.json": ("decode", {"tokens_per_s": 51.437095, "ttft_s": 0.111, "generated": 53}),
    "megatron/gpt2-52b_64xV100-32GB_tp4_pp16.out": (
        "step", {"step_s": (129.0288 + 128.8915) / 2, "global_batch_size": 1024, "devices": 64}),
    "membw/superbench_gpu_copy_bw_performance.log": ("copy", {"bytes_per_s": 26.2409e9, "path": "cpu to gpu0"}),
    "membw/superbench_gpu_stream.log": ("copy", {"bytes_per_s": 6711.67e9, "of_peak": 0.8193, "device": "0"}),
    "ml-energy/qwen3-8b_lm-arena-chat.json": (
        "server", {"power_w": 646.33855, "itl_median_s": 0.00497105, "output_tokens_per_s": 1501.733, "gpu": "B200"}),
    "ml-energy/sana1.5_text-to-image.json": ("picture", {"time_s": 0.6445888, "power_w": 530.54344, "steps": 20}),
    "mllog/llama2_70b_lora_8xMI355X_result_0.txt": ("step", {"global_batch_size": 8, "samples_per_s": 1920 / 326.845}),
    "mlperf-inference/mlperf_log_summary.txt": ("server", {"requests_per_s": 0.165037, "e2e_s": 33.431331185}),
    "mlperf-inference/mlperf_log_summary_llama2-70b_8xMI300X_Offline.txt": (
        "server", {"output_tokens_per_s": 27803.9, "requests_per_s": 92.1544}),
    "mlperf-inference/mlperf_log_summary_llama2-70b_8xMI300X_Server.txt": (
        "server", {"ttft_s": 0.918456323, "tpot_s": 0.144594078, "output_tokens_per_s": 24593.77}),
    "mlx/mlx_lm_benchmark_64_32.txt": ("decode", {"tokens_per_s": 267.399, "generated": 32, "memory_bytes": 0.429e9}),
    "nccl-tests/gh200_2x4_slingshot_bw.txt": ("collective", {"bytes": 8, "time_s": 17.93e-6, "nodes": 2, "devices": 8}),
    "nccl-tests/gh200_2x4_slingshot_container_variant.txt": ("collective", {"time_s": 85.47e-6, "devices": 8}),
    "nccl-tests/multi_node_10x8.log": (
        "collective", {"operation": "all_reduce", "nodes": 10, "devices": 80, "bus_bytes_per_s": 82.99e9}),
    "nccl-tests/single_node_4gpu.log": ("collective", {"time_s": 171.88e-6, "bus_bytes_per_s": 292.83e9, "devices": 4}),
    "nccl-tests/superbench_nccl_allreduce.log": ("collective", {"operation": "all_reduce", "time_s": 35.2e-6}),
    "nemo/megatron_bridge_line.txt": ("step", {"step_s": 20.2891, "global_batch_size": 128}),
    "nemo/progress_lines.txt": ("step", {"step_s": 24.0, "global_batch_size": 1024}),
    "nvbandwidth/sparecores_g4dn.12xlarge_4xT4.json": ("copy", {"bytes_per_s": 6.27149e9, "path": "0 to 0"}),
    "nvbandwidth/superbench_nvbandwidth_results.log": ("copy", {"bytes_per_s": 369.36e9}),
    "nvbench/test_ref_gv100_trimmed.json": ("kernel", {"cold_s": 0.00100347, "gpu": "Quadro GV100"}),
    "nvidia-smi/flame_power_draw_50ms.csv": ("power", {"power_low_w": 20.92, "power_high_w": 23.0, "samples": 73}),
    "nvidia-smi/gpu_glasses_8xH100_noheader_units.csv": ("power", {"device": "0", "power_high_w": 74.06}),
    "ollama/verbose_minutes_duration.txt": ("decode", {"generated": 741, "time_s": 59.350293694}),
    "osu/osu_bw_latency_gh200_slingshot.txt": ("copy", {"bytes": 1, "bytes_per_s": 0.90e6, "path": "D D"}),
    "rocm-smi/mi300x_idle.json": ("power", {"power_w": 159.0, "power_limit_w": 750}),
    "sglang/bench_one_batch_excerpt.jsonl": ("decode", {"batch_size": 4, "tpot_s": 0.018887758}),
    "sglang/deepseek_dp_mla_output.jsonl": ("server", {"requests": 10000, "output_tokens": 512, "e2e_s": 381.23682}),
    "sglang/llama_3_3_70b_offline_output.jsonl": (
        "server", {"input_tokens": 508.358, "input_tokens_asked": 1024, "output_tokens_per_s": 4520.6987}),
    "tegrastats/sample_log_head.txt": ("power", {"device": "VDD_IN", "power_low_w": 1.495, "samples": 59}),
    "timm/benchmark-infer-amp-nhwc-pt240-cu124-rtx4090.csv": (
        "step", {"network": "test_vit", "samples_per_s": 193591.5, "step_s": 0.002637, "batch_size": 512}),
    "timm/benchmark-infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo.csv": ("step", {"step_s": 0.001405, "batch_size": 1}),
    "torchtitan/line_h100.txt": ("step", {"tokens_per_s_per_device": 4376, "flops_per_s": 253.41e12, "mfu": 0.2562}),
    "triton/group-gemm-performance-m-8192-k-8192-w-CTA.csv": ("kernel", {"flops_per_s": 1.036288e12, "shape": "128"}),
    "triton/matmul-performance-fp16.csv": ("kernel", {"flops_per_s": 5.461333e12, "shape": "256x256x256"}),
    "trtexec/superbench_tensorrt_inference.1.log": ("step", {"step_s": 0.0005, "batch_size": 32}),
    "trtllm-bench/llama3.1-70b_fp8_8xH100_result_128_2048_3000.txt": (
        "server", {"output_tokens_per_s": 16901.879, "requests_per_s": 8.2529, "input_tokens": 128}),
    "vllm/bench_serve_v0.25.1_opt125m_cpu.json": (
        "server", {"requests": 8, "tpot_s": 0.0112658, "ttft_s": 0.2155359, "concurrency_limit": 2}),
    "vllm/llama3.2-3b_4xL40S_metadata_results.jsonl": (
        "server", {"requests": 300, "output_tokens": 269.817, "output_tokens_asked": 500, "tpot_s": 0.01371097}),
    "vllm/metrics_vllm_0.25.1_loaded.prom": ("server", {"running": 64, "waiting": 64, "output_tokens": 256}),
    "vllm/sweep_serve_summary_v0.25.1.json": ("server", {"max_num_seqs": 4, "e2e_s": 0.34034120, "requests": 8}),
    "zeus/nsdi23_summary_power_v100.csv": (
        "power", {"power_limit_w": 100, "power_w": 86.864608, "time_s": 11.276667, "network": "shufflenetv2"}),
}  # fmt: skip
"""Published files, and what a person reads in the first row of a kind."""
WITHOUT_ROWS = ("inference-perf/config.yaml", "llama-bench/strix-halo_run_metadata.txt")


@pytest.mark.needs_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files(name: str) -> None:
    kind, expected = PUBLISHED[name]
    findings = read_result(RESULTS / name)
    first = next(reading for reading in findings.readings if reading.kind == kind)
    assert {key: first.values.get(key) for key in expected} == {
        key: value if isinstance(value, str) else pytest.approx(value, rel=1e-5) for key, value in expected.items()
    }


@pytest.mark.needs_data
def test_every_published_file_is_recognised() -> None:
    names = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*") if path.is_file()}
    assert names - {"SOURCES.md"} == {*PUBLISHED, *WITHOUT_ROWS}
    assert all(not read_result(RESULTS / name).readings for name in WITHOUT_ROWS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"output_throughput": 500.0, "total_token_throughput": 400.0},
            "500 output tokens/s is above 400 tokens/s: one of them is wrong",
        ),
        (
            {"mean_ttft_ms": 900.0, "p99_ttft_ms": 300.0},
            "first token 900 ms is above p99 first token 300 ms: a few requests took very long, or one of them is "
            "wrong",
        ),
        (
            {"median_tpot_ms": 30.0, "p99_tpot_ms": 20.0},
            "median per token 30 ms is above p99 per token 20 ms: one of them is wrong",
        ),
        (
            {"mean_ttft_ms": 9000.0, "mean_e2el_ms": 3000.0},
            "first token 9 s is above whole request 3 s: one of them is wrong",
        ),
        (
            {"mean_ttft_ms": None, "mean_tpot_ms": 100.0, "mean_e2el_ms": 5000.0},
            "per token as reported 100 ms for 201 tokens is 20 s, which is above whole request 5 s: one of them is "
            "wrong",
        ),
        (
            {"output_throughput": 804.0, "total_token_throughput": 5000.0},
            "2 requests/s with answers of 201 tokens are 402 tokens/s, and 804 output tokens/s: one of them is wrong",
        ),
        (
            {"num_prompts": 60},
            "100 requests were answered, and 60 were to be sent: one of them is wrong",
        ),
        ({"num_prompts": 400}, "300 of 400 requests were not answered"),
        ({"completed": 0}, "no request was answered, so that no figure of the file can have been measured"),
        (
            {"max_concurrency": 8},
            "the mean concurrency is 10, above the 8 asked: the times of requests or their number are wrong",
        ),
        (
            {"duration": -4},
            "the duration is given as -4 s, which no run takes: its times or rates are wrong",
        ),
        (
            {"duration": 0},
            "the duration is given as 0 s: the run was not measured, and rates in the file are wrong",
        ),
    ],
)
def test_figures_that_contradict_each_other_are_doubted(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(json.loads(VLLM_SERVE) | changes))
    (row,) = read_result(path).readings
    assert said in row.doubts
    assert "the server did not stream: times of tokens are not known" not in row.doubts


def test_answers_of_one_token_are_no_answers_at_once(tmp_path: Path) -> None:
    """Of a benchmark of prompts alone, vLLM writes 0 for the times of tokens, and others NaN."""
    path = tmp_path / "bench.json"
    changes = {"total_output_tokens": 100, "mean_itl_ms": 0.0, "mean_tpot_ms": float("nan")}
    path.write_text(json.dumps(json.loads(VLLM_SERVE) | changes))
    (row,) = read_result(path).readings
    assert "answers of one token have no time per token" in row.doubts
    assert not any("did not stream" in doubt for doubt in row.doubts)


def test_figures_that_no_server_has_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(VLLM_SERVE.replace('"mean_ttft_ms": 1000.0', '"mean_ttft_ms": 9e300'))
    findings = read_result(path)
    assert "ttft_s" not in findings.readings[0].values
    assert "values of 'first token' above 1e+30 are left out: they cannot have been measured" in findings.doubts


REPORT = """\
============ Serving Benchmark Result ============
Successful requests:                     50
Benchmark duration (s):                  104.40
Total input tokens:                      55836
Total generated tokens:                  20903
Mean TTFT (ms):                          651.77
"""


@pytest.mark.parametrize(
    ("end", "number"),
    [
        ("", None),
        ("Mean TPOT (ms):                          12", "12"),
        ("Mean TPOT (ms):                          12.3", "12.3"),
        ("Mean TPOT (ms):                          12.34", None),  # as many decimals as the others
        ("Mean TPOT (ms):                          12\n", None),
        ("=====", None),
    ],
)
def test_a_number_at_the_end_of_a_text_may_be_cut(tmp_path: Path, end: str, number: str | None) -> None:
    path = tmp_path / "run.txt"
    path.write_text(REPORT + end)
    doubts = [doubt for doubt in read_result(path).doubts if "may be cut" in doubt]
    expected = [] if number is None else [f"the text ends with {number} and no line break: this number may be cut"]
    assert doubts == expected


def test_bytes_that_are_no_text_end_with_no_number(tmp_path: Path) -> None:
    """The last byte of a gzip is one of a size; UTF-16 has zeros between letters."""
    path = tmp_path / "run.txt.gz"
    path.write_bytes(gzip.compress(b"Mean TPOT (ms): 12\n") + b"\0 1")
    assert number_at_end(path) == ""
    path = tmp_path / "run.txt"
    path.write_bytes(f"\ufeff{REPORT}Mean TPOT (ms): 1".encode("utf-16-be"))
    assert number_at_end(path) == ""


def test_options_that_contradict_a_text_are_said(tmp_path: Path) -> None:
    path = tmp_path / "run-a100.md"
    path.write_text(f"$ vllm serve meta-llama/Llama-3.1-8B -tp 4\nGPU: 4xH100\n{REPORT}")
    findings = read_result(path, {"tensor": 8, "gpu": "h200", "network": "llama-3.1-8b", "engine": "sglang"})
    assert "a command in the text suggests 4 as tensor, and 8 was given, which is taken" in findings.doubts
    assert "a line about the hardware suggests H100 as gpu, and h200 was given, which is taken" in findings.doubts
    assert "the name of the file suggests a100 as gpu, and h200 was given, which is taken" in findings.doubts
    assert "a command in the text suggests vllm as engine, and sglang was given, which is taken" in findings.doubts
    assert not any("network" in doubt for doubt in findings.doubts)


def test_an_option_that_contradicts_a_sidecar_is_said(serve: Path) -> None:
    (serve.parent / "bench.toml").write_text('gpu = "h200"\n')
    findings = read_result(serve, {"gpu": "h100-sxm"})
    assert "the sidecar says h200 as gpu, and h100-sxm was given, which is taken" in findings.doubts


SUMMARIES = """\
## Offline

================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Offline
Mode     : PerformanceOnly
Samples per second: 1.21305
Result is : INVALID
  Min duration satisfied : NO

## Single stream

================================================
MLPerf Results Summary
================================================
SUT name : TFLite
Scenario : Single Stream
90th percentile latency (ns) : 141426994
Result is : VALID
Mean latency (ns)               : 129386553
"""
"""Two summaries of LoadGen in one page; an older version writes Single Stream in two words."""


def test_each_summary_of_mlperf_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    path.write_text(SUMMARIES)
    offline, stream = read_result(path).readings
    assert (offline.values["scenario"], offline.values["requests_per_s"]) == ("Offline", 1.21305)
    assert "the result is INVALID" in offline.doubts and "time_s" not in offline.values
    assert (stream.values["scenario"], stream.values["time_s"]) == ("SingleStream", pytest.approx(0.141426994))
    assert stream.values["e2e_s"] == pytest.approx(0.129386553) and "requests_per_s" not in stream.values
    assert not any("INVALID" in doubt for doubt in stream.doubts)


@pytest.mark.parametrize(("requests", "printed"), [(200, 0.13), (23, 0.01)])
def test_rates_of_two_digits_are_computed(tmp_path: Path, requests: int, printed: float) -> None:
    """200 requests in 1,553.82 s are printed as 0.13 per second, and 23 as 0.01, a third below, which is no error."""
    path = tmp_path / "report.txt"
    path.write_text(
        f"============ Serving Benchmark Result ============\nSuccessful requests:                     {requests}\n"
        f"Benchmark duration (s):                  1553.82\nRequest throughput (req/s):              {printed}\n"
        "Mean E2EL (ms):                          880409.32\n"
    )
    (row,) = read_result(path).readings
    assert row.values["requests_per_s"] == pytest.approx(requests / 1553.82)
    assert row.values["concurrency"] == pytest.approx(requests / 1553.82 * 880.40932)
    assert not any("one of them is wrong" in doubt for doubt in row.doubts)


def test_rows_of_nccl_tests_in_a_page_have_labels_of_srun(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "```\n$ srun --label all_reduce_perf\n"
        " 0: #       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        " 0:   2147483648      33554432     float    none      -1    10822  198.43  186.03    N/A\n```\n"
    )
    (row,) = read_result(path).readings
    assert (row.values["bytes"], row.values["bus_bytes_per_s"]) == (2147483648, 186.03e9)


@pytest.mark.parametrize(("algorithm", "is_wrong"), [("198.43", False), ("23.34", True)])
def test_the_algorithm_bandwidth_of_nccl_tests_is_bytes_over_time(
    tmp_path: Path, algorithm: str, is_wrong: bool
) -> None:
    path = tmp_path / "run.log"
    heading = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    row = f"  2147483648      33554432     float    none      -1    10822  {algorithm}  186.03    N/A\n"
    said = "2.147 GB in 10.82 ms are 198 GB/s, and the algorithm bandwidth is given as 23.3 GB/s: one of them is wrong"
    path.write_text(heading + row)
    assert (said in read_result(path).doubts) == is_wrong
    path.write_text(heading + row + row)
    assert (f"{said} (so in 2 rows)" in read_result(path).doubts) == is_wrong


@pytest.mark.parametrize(("concurrency", "is_at_once"), [(64.0, False), (480.0, True)])
def test_requests_that_a_client_holds_back_do_not_come_at_once(
    tmp_path: Path, concurrency: float, is_at_once: bool
) -> None:
    """trtllm-bench issues all requests at once, and `--concurrency` of them at a time."""
    path = tmp_path / "report.json"
    report = {
        "engine": {"model": "meta-llama/Llama-3.1-8B-Instruct", "backend": "Pytorch", "version": "1.0.0"},
        "world_info": {"tp_size": 1, "pp_size": 1, "world_size": 1, "issue_rate": 9e12},
        "request_info": {"num_requests": 1000, "avg_num_concurrent_requests": concurrency},
        "performance": {"total_latency_ms": 30000.0, "request_throughput_req_s": 33.3},
    }
    path.write_text(json.dumps(report))
    (row,) = read_result(path).readings
    assert any("all requests came at once" in doubt for doubt in row.doubts) == is_at_once


OVERVIEW = """\
= PERFORMANCE OVERVIEW
===========================================================
Request Throughput (req/sec):                 \t  0.2678
Total Output Throughput (tokens/sec):         \t  274.1786
Total Token Throughput (tokens/sec):          \t  2467.6070
Per GPU Output Throughput (tps/gpu):          \t  68.5446
Average request latency (ms):                 \t  3734.7334
Average time-to-first-token [TTFT] (ms):      \t  425.9885
Average time-per-output-token [TPOT] (ms):    \t  3.2344
"""
"""Of TensorRT-LLM's guide to DeepSeek-V3.2 on four GPUs (`--tp 4`)."""


def test_an_overview_alone_says_how_many_devices_there_were(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(OVERVIEW)
    findings = read_result(path)
    assert findings.configuration["devices"] == 4
    assert findings.guessed["devices"] == "the rates of all GPUs and of one"
    assert findings.readings[0].values["ttft_s"] == pytest.approx(0.4259885)
    path.write_text(OVERVIEW.replace("68.5446", "68.9"))
    assert "devices" not in read_result(path).configuration


def test_ranks_of_a_communicator_are_the_devices_of_nccl_tests(tmp_path: Path) -> None:
    """In logs of pods the list of ranks is often missing, and NCCL's own lines have their number."""
    path = tmp_path / "pod.log"
    path.write_text(
        "pod-vf01:15718:15718 [0] NCCL INFO ncclCommInitRank comm 0x576e rank 1 nranks 2 cudaDev 0 busId 2000\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "  1073741824     268435456     float     sum      -1   379615    2.83    2.83      0\n"
    )
    findings = read_result(path)
    assert findings.configuration["devices"] == 2
    assert findings.readings[0].values["devices"] == 2

"""Every format: a small file is recognised, and its first row has the numbers that a person reads in it.

Tests: result_files/aiperf.py, result_files/kernel_tables.py, result_files/links.py, result_files/llama_bench.py,
    result_files/load_clients.py, result_files/local_runs.py, result_files/megatron.py, result_files/mlperf.py,
    result_files/nccl_tests.py, result_files/network_tables.py, result_files/pictures.py, result_files/power.py,
    result_files/published.py, result_files/server_logs.py, result_files/sglang.py,
    result_files/training_logs.py, result_files/trtllm_bench.py, result_files/vllm.py.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from paleo_lite.result_files import detect
from paleo_lite.result_files.detect import FORMATS, read_result
from paleo_lite.result_files.findings import Findings, ResultFormat
from result_samples import CONFIGURATIONS, NCCL, SAMPLES, VLLM_SERVE, Sample


def read(text: str, folder: Path, name: str = "file.txt") -> Findings:
    path = folder / name
    path.write_text(text, "utf-8")
    return read_result(path)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.format}-{sample.kind}")
def test_numbers_of_each_format(sample: Sample, tmp_path: Path) -> None:
    findings = read(sample.text, tmp_path, sample.name)
    assert findings.format == sample.format
    first = next(reading for reading in findings.readings if reading.kind == sample.kind)
    assert {name: first.values.get(name) for name in sample.row} == {
        name: value if isinstance(value, str) else pytest.approx(value) for name, value in sample.row.items()
    }


PREFIXES = (
    "[rank0]: ",
    "[1,0]<stdout>:",
    "0: ",
    " 0: ",
    "> ",
    "2026-11-02T10:11:12.345678Z ",
    "vllm-1  | ",
    "        ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_launchers_write_before_lines_changes_no_number(prefix: str, tmp_path: Path) -> None:
    for sample in SAMPLES:
        if sample.text.startswith(("{", "[")) or sample.text.count("\n") < 3:
            continue
        text = "".join(f"{prefix}{line}\n" for line in sample.text.splitlines())
        findings = read(text, tmp_path, sample.name)
        assert findings.format == sample.format, (sample.format, prefix)
        first = next(reading for reading in findings.readings if reading.kind == sample.kind)
        assert {name: first.values.get(name) for name in sample.row} == {
            name: value if isinstance(value, str) else pytest.approx(value) for name, value in sample.row.items()
        }, sample.format


def test_every_format_has_a_sample() -> None:
    sampled = {sample.format for sample in SAMPLES} | set(CONFIGURATIONS) | {"deepbench"}
    names = {known.name for known in FORMATS}
    assert not names - sampled, f"add a sample of {names - sampled} to SAMPLES in tests/result_samples.py"
    assert not sampled - names, f"no format is called {sampled - names}: correct the samples in tests/result_samples.py"


def test_every_file_of_formats_is_in_the_list() -> None:
    for path in sorted(Path(detect.__file__).parent.glob("*.py")):
        formats = vars(importlib.import_module(f"{detect.__package__}.{path.stem}")).get("FORMATS", ())
        forgotten = [known for known in formats if isinstance(known, ResultFormat) and known not in FORMATS]
        assert not forgotten, f"add *{path.stem}.FORMATS to FORMATS in paleo_lite/result_files/detect.py"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_holds_no_measurement(name: str, tmp_path: Path) -> None:
    findings = read(CONFIGURATIONS[name], tmp_path)
    assert findings.format == name and not findings.readings
    assert "without measurements: give the" in findings.doubts[0]


def doubts_of(findings: Findings) -> str:
    return "; ".join([*findings.doubts, *(doubt for reading in findings.readings for doubt in reading.doubts)])


GGML_OPERATORS = next(sample.text for sample in SAMPLES if sample.format == "ggml-operators")

DOUBTED = {
    "cuda did not start": (
        next(sample.text for sample in SAMPLES if sample.format == "llama-bench").replace("NVIDIA A100", ""),
        "it did not start, and the CPU computed",
    ),
    "a mean over sizes": (
        NCCL,
        "the average bus bandwidth of 107.4 GB/s is a mean over all sizes; the largest is 214.8",
    ),
    "wrong values": (NCCL.replace("214.75      0", "214.75      3"), "3 values were wrong"),
    "a ramp": (VLLM_SERVE.replace('"max_concurrency": 10', '"max_concurrency": 16'), "ramp-up and drain make up 38%"),
    "failed requests": (VLLM_SERVE.replace('"failed": 0', '"failed": 7'), "7 requests failed"),
    "skipped updates": (
        next(sample.text for sample in SAMPLES if sample.format == "megatron").replace(
            "skipped iterations:   0", "skipped iterations:   1"
        ),
        "in all iterations the update was skipped",
    ),
    "two answers": (
        next(sample.text for sample in SAMPLES if sample.format == "inference-perf"),
        "reported as 5 ms, and whole requests and first tokens give 10 ms",
    ),
    "lengths": (
        next(sample.text for sample in SAMPLES if sample.format == "sglang-serving"),
        "the prompts have 509 tokens on average where 1,024 were asked for",
    ),
    "a slow fabric": (
        NCCL.replace("1024           256     float     sum      -1    20.35", "8 2 float sum -1 85.47"),
        "the smallest messages take 85 µs, where 10 to 40 µs are usual",
    ),
    "another transport": (
        "".join(
            f"=== {name}\n# OSU MPI-CUDA Bandwidth Test v7.5\n# Size Bandwidth (MB/s)\n4194304 {rate}\n"
            for name, rate in (("a", 24000.0), ("b", 1800.0))
        ),
        "two tables of the same messages reach 24 and 1.8 GB/s",
    ),
    "an operator is cut": (
        GGML_OPERATORS + "  MUL_MAT(type_a=q4_0,type_b=f32,m=4096,n=8,k=14336,bs=[1,1]):   3317 runs -   30",
        "1 row is incomplete and left out: the file may be cut",
    ),
    "binary GB": (GGML_OPERATORS, "the GB/s of this tool are 2^30 bytes/s, and are shown as 10^9 bytes/s, 7.4% more"),
    "impossible": (
        GGML_OPERATORS.replace("303.79 us/run", "0.30 us/run"),
        "3.132 PFLOP/s are 16.1 times the fastest peak of Radeon RX 9070 XT (194.6 TFLOP/s)",
    ),
    "invalid": (
        next(sample.text for sample in SAMPLES if sample.format == "mlperf-inference"),
        "the result is INVALID",
    ),
}


@pytest.mark.parametrize("case", DOUBTED)
def test_what_is_doubtful_is_said(case: str, tmp_path: Path) -> None:
    text, said = DOUBTED[case]
    assert said in doubts_of(read(text, tmp_path))


def test_operators_that_a_device_lacks_are_no_cut_rows(tmp_path: Path) -> None:
    text = GGML_OPERATORS + "  SOFT_MAX(type=f32,ne=[4096,4096,5,1],mask=0): not supported\n"
    assert "incomplete" not in doubts_of(read(text, tmp_path))


def test_products_of_the_same_sizes_differ_in_format_and_batches(tmp_path: Path) -> None:
    row = (
        "MUL_MAT(type_a={a},type_b={b},m=4096,n=1,k=14336,bs=[{bs},1],nr=[1,1],per=[0,1,2,3],v=0): 9 runs - 4 us/run - "
    )
    rows = [
        row.format(a="f16", b="f32", bs=1),
        row.format(a="q4_0", b="f16", bs=1),
        row.format(a="q4_0", b="f32", bs=12),
    ]
    findings = read(GGML_OPERATORS + "".join(f"  {text}10 MFLOP/run - 2 TFLOPS\n" for text in rows), tmp_path)
    values = [reading.values for reading in findings.readings if reading.values["shape"] == "4096x1x14336"]
    assert [value["precision"] for value in values] == ["f16", "q4_0", "q4_0"]
    assert [value.get("variant") for value in values] == [None, "type_b=f16", "bs=[12,1]"]


def test_a_log_whose_measurements_start_late_is_recognised(tmp_path: Path) -> None:
    noise = "WARNING something else happened here\n" * 4000
    findings = read(noise + NCCL, tmp_path)
    assert findings.format == "nccl-tests" and len(findings.readings) == 2


def test_lines_may_have_prefixes(tmp_path: Path) -> None:
    line = next(sample.text for sample in SAMPLES if sample.format == "torchtitan")
    findings = read(f"2026-01-01T00:00:00Z pod-0 [rank0]:{line}", tmp_path)
    assert findings.readings[0].values["tokens_per_s_per_device"] == 4376


def test_windows_of_a_server_that_also_compute_prompts_are_apart(tmp_path: Path) -> None:
    log = next(sample.text for sample in SAMPLES if sample.format == "server-log")
    later = log.replace("prompt throughput: 0.0", "prompt throughput: 900.0").replace("800.0", "400.0")
    findings = read(log + later, tmp_path)
    rows = {reading.values["phase"]: reading.values["tpot_s"] for reading in findings.readings}
    assert rows == {"decode": pytest.approx(0.02), "decode and prompts": pytest.approx(0.04)}


def test_an_unnamed_collective_is_named_by_its_bandwidths(tmp_path: Path) -> None:
    old = "\n".join(line for line in NCCL.splitlines() if "starting" not in line).replace(
        "214.75  214.75", "214.75  322.12"
    )
    more = "".join(
        f"#  Rank  {rank} Group  0 Pid  2 on node{rank} device  0 [0000:1b:00] NVIDIA H100 80GB HBM3\n"
        for rank in (2, 3)
    )
    findings = read(old.replace("#       size", more + "#       size"), tmp_path)
    assert {reading.values["operation"] for reading in findings.readings} == {"all_reduce"}


def test_a_table_without_its_head_has_rows(tmp_path: Path) -> None:
    pasted = "\n".join(line for line in NCCL.splitlines() if "Rank" not in line and "starting" not in line)
    findings = read(pasted, tmp_path)
    assert [reading.values["bytes"] for reading in findings.readings] == [1024, 1073741824]
    assert "the collective is not named: older versions say it on the command line only" in findings.doubts


def test_figures_of_a_row_that_contradict_each_other_are_doubted(tmp_path: Path) -> None:
    """128 tokens in 914 ms are 140 per second; one rank is tensor parallelism of 1 in one stage."""
    bench = (
        '[{"build_commit": "3f96aeff", "build_number": 5000, "backends": "CUDA", "gpu_info": "NVIDIA L4", '
        '"model_filename": "m.gguf", "n_prompt": 0, "n_gen": 128, "avg_ns": 914285714, "avg_ts": RATE}]'
    )
    (said,) = read(bench.replace("RATE", "400"), tmp_path, "bench.json").row_doubts
    assert said == "128 tokens in 914.3 ms are 140 tokens/s, and 400 tokens/s are stated: one of them is wrong"
    assert not read(bench.replace("RATE", "141.2"), tmp_path, "bench.json").row_doubts
    report = (
        '{"engine": {"model": "m"}, "world_info": {"tp_size": 1, "pp_size": 1, "world_size": RANKS}, '
        '"request_info": {"num_requests": 10}, "performance": {"total_latency_ms": 30000.0}}'
    )
    doubts = [read(report.replace("RANKS", ranks), tmp_path, "trt.json").doubts for ranks in ("2", "1")]
    assert [
        any("world_size of 2 is not tp_size 1 times pp_size 1" in doubt for doubt in found) for found in doubts
    ] == [
        True,
        False,
    ]


def test_devices_of_a_power_log_without_numbers_are_named(tmp_path: Path) -> None:
    heading = "timestamp, index, name, power.draw [W]"
    rows = [f"2026/11/01 12:00:0{second}.000, {index}, NVIDIA L4, {watts}"
            for second in range(3) for index, watts in ((0, "60.00 W"), (1, "[N/A]"))]  # fmt: skip
    findings = read("\n".join((heading, *rows, "")), tmp_path, "power.csv")
    assert len(findings.readings) == 1
    assert "the log has no number for the power of device 1, which is left out" in findings.doubts

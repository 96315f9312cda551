"""``paleo-lite kernels`` as people use it.

Tests: reporting/kernels.py, profile_analysis/counters.py.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from measured import DATA
from paleo_lite.cli import main


def run(*arguments, width=80):
    words = [str(argument) for argument in arguments]
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, words, prog_name="paleo-lite")


@pytest.fixture
def profile(tmp_path):
    """Write a pyprof file: a convolution near the peak, one without a count, and a copy of unknown size."""
    columns = {
        "Kernel": ["cudnn::detail::implicit_convolve_sgemm", "cudnn::detail::dgrad_alg1_engine", "elementwise_kernel"],
        "Sil(ns)": [2_000_000, 3_000_000, 1_000_000],
        "FLOPs": [4.29e9, 0.0, 1e6],
        "Bytes": [1e6, 0.0, 1.44e8],
        "Direction": ["fprop", "bprop", "fprop"],
        "Op": ["conv2d", "conv2d", "relu"],
    }
    path = tmp_path / "run.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_json(profile):
    answer = json.loads(run("kernels", profile, "--gpu", "k40m", "--format", "json").stdout)
    rows = {row["name"]: row for row in answer["kernels"]}
    conv = rows["cudnn::detail::implicit_convolve_sgemm"]
    assert conv["flops_efficiency"] == pytest.approx(0.5) and conv["bound"] == "compute"
    assert conv["class"] == "convolution_implicit_gemm" and conv["share"] == pytest.approx(1 / 3)
    unknown = rows["cudnn::detail::dgrad_alg1_engine"]
    assert unknown["flops"] is None and unknown["bound"] is None and unknown["rank"] is None
    assert rows["elementwise_kernel"]["bound"] == "memory" and {conv["rank"], rows["elementwise_kernel"]["rank"]} == {
        1,
        2,
    }
    assert answer["union_s"] is None and answer["time_s"] == pytest.approx(6e-3)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("style", ["table", "markdown", "csv"])
def test_every_format_at_both_widths(profile, width, style):
    result = run("kernels", profile, "--gpu", "k40m", "--format", style, width=width)
    assert result.exit_code == 0, result.output
    assert "implicit_convolve" in result.stdout
    if style == "table":
        assert max(len(line) for line in result.stdout.splitlines() if not line.startswith(("note:", "/"))) <= width
    if style == "csv":
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        assert len(rows) == 3 and rows[0]["bound"] == "" and float(rows[1]["flops_efficiency"]) == pytest.approx(0.5)


def test_direction_sort_and_top(profile):
    bprop = json.loads(run("kernels", profile, "--gpu", "k40m", "--direction", "bprop", "--format", "json").stdout)
    assert [row["name"] for row in bprop["kernels"]] == ["cudnn::detail::dgrad_alg1_engine"]
    first = run("kernels", profile, "--gpu", "k40m", "--sort", "share", "--top", "1", width=160).stdout
    assert "Kernels, 1 of 3, by share" in first and "50.0%" in first and "elementwise_kernel" not in first


@pytest.mark.parametrize("tool", ["nvprof", "ncu", "nsys"])
def test_next_command_can_be_run(profile, tool):
    result = run("kernels", profile, "--gpu", "k40m", "--next-command", tool, "--program", "python 'my train.py'")
    lines = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    assert shlex.split(lines[0])[0] == tool and shlex.split(lines[0])[-2:] == ["python", "my train.py"]
    assert "dgrad_alg1_engine" in result.stdout
    answer = json.loads(run("kernels", profile, "--gpu", "k40m", "--next-command", tool, "--format", "json").stdout)
    assert answer["next_command"][0].startswith(tool)


@pytest.mark.needs_data
def test_the_numbers_of_the_notebook():
    """SURFBoard's gpu_efficiency.ipynb, the four kernels nearest to the peak."""
    path = DATA / "surfboard/pyprof_kernels/run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"
    answer = json.loads(run("kernels", path, "--gpu", "k40m", "--format", "json").stdout)
    shares = sorted((row["flops_efficiency"] or 0 for row in answer["kernels"]), reverse=True)
    assert [f"{100 * share:.6f}" for share in shares[:4]] == ["34.812331", "32.977376", "30.071315", "14.808427"]
    assert answer["configuration"]["nodes"] == 8


@pytest.mark.spread(3)
@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("path", "gpu", "shown"),
    [
        ("profiles/torch_chrome_trace_resnet50", "v100-sxm2", ["busy", "convolution_wgrad", "est_achieved_occupancy"]),
        ("profiles/nsys_sqlite/h100_2gpu_1s.sqlite", "h100-sxm", ["on device 0", "on device 1", "memcpy HtoD"]),
        ("profiles/nvprof_summary_text/k80_tf2_mnist.txt", "k80-die", ["sgemm_sm35_ldg_nn_64x16x64x16x16", "pooling"]),
        ("profiles/nvprof_gpu_trace_csv/matrixMul_trace.csv", "gtx1080ti", ["matrixMulCUDA", "301"]),
        ("profiles/nvprof_metrics_csv/reduction_metrics.csv", "gtx1080ti", ["gld_efficiency", "100%", "no durations"]),
        ("profiles/ncu_csv/gemm_naive.csv", "rtx5070", ["gemm_naive_kernel", "sm__warps_active", "66.61%"]),
    ],
)
def test_real_profiles_of_every_kind(path, gpu, shown):
    found = DATA / path
    if found.is_dir():
        found = next(found.iterdir())
    result = run("kernels", found, "--gpu", gpu, width=140)
    assert result.exit_code == 0, result.output
    for text in shown:
        assert text in result.stdout


def test_copies_of_a_profile_are_added_up_once(profile, tmp_path):
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(profile.read_bytes())
    answer = json.loads(run("kernels", profile, copy, "--gpu", "k40m", "--format", "json").stdout)
    assert answer["time_s"] == pytest.approx(6e-3)
    assert f"{copy} has the content of {profile}, and counts once" in answer["notes"]


ASCEND = """\
Step Id,Device_id,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Input Shapes
2,0,2,7,aclnnMul_MulAiCore_Mul,Mul,dynamic,AI_VECTOR_CORE,1774670741777420.5\t,18.32,N/A
"""


UNITRACE = """\
=== Device Timing Summary ===
  Kernel,  Calls,  Time (ns),  Time (%),  Average (ns),  Min (ns),  Max (ns)
    GEMM,      4,  172104499,     97.15,      43026124,  42814000,  43484166
"""


def test_the_counters_of_a_vendor_are_those_of_its_profiler(tmp_path, profile):
    path = tmp_path / "kernel_details.csv"
    path.write_text(ASCEND)
    shown = run("kernels", path, width=200).stdout
    assert "`msprof --ai-core=on --aic-metrics=PipeUtilization python train.py` measures them" in shown
    printed = tmp_path / "unitrace.txt"
    printed.write_text(UNITRACE)
    assert "`vtune -collect gpu-hotspots -- python train.py` measures them" in run("kernels", printed, width=200).stdout
    assert "--next-command" not in shown
    refused = run("kernels", path, "--next-command", "ncu")
    assert refused.exit_code == 2
    assert "`--next-command ncu` is for NVIDIA's devices, and the profile is of one of Huawei's" in refused.stderr
    assert run("kernels", profile, "--gpu", "k40m", "--next-command", "nvprof").exit_code == 0
    assert "`rocprof-compute profile" in run("kernels", profile, "--gpu", "mi300x", "--next-command", "ncu").stderr


def test_overlap_is_shown_with_the_sum(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "name": "sgemm_a", "ts": 1000, "dur": 100, "args": {"device": 0, "stream": 7}},
        {"ph": "X", "cat": "kernel", "name": "sgemm_a", "ts": 1050, "dur": 100, "args": {"device": 0, "stream": 8}},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    answer = json.loads(run("kernels", path, "--gpu", "k40m", "--format", "json").stdout)
    assert answer["time_s"] == pytest.approx(200e-6) and answer["union_s"] == pytest.approx(150e-6)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no-such-file", "--gpu", "k40m"], 1, "no-such-file"),
        (["{profile}", "--gpu", "k40n"], 2, "k40m"),
        (["{profile}", "--gpu", "k40m", "--precision", "fp16"], 2, "fp16"),
        (["{profile}", "--gpu", "k40m", "--direction", "update"], 1, "update"),
        (["{profile}", "--gpu", "k40m", "--direction", "sideways"], 2, "sideways"),
        (["{profile}", "--gpu", "k40m", "--top", "few"], 2, "few"),
        (["{profile}", "--gpu", "k40m", "--next-command", "ncu", "--program", "'"], 2, "program"),
        (["{profile}", "--gpu", "k40m", "--name-pattern", "("], 2, "pattern"),
        (["{profile}", "--next-command", "gprof"], 2, "gprof"),
        (["{garbage}", "--gpu", "k40m"], 1, "gzip"),
        (["{cut}", "--gpu", "k40m"], 1, "parquet"),
        (["{empty}", "--gpu", "k40m"], 1, "no rows"),
    ],
)
def test_bad_options_and_profiles_are_one_sentence(profile, tmp_path, arguments, code, message):
    files = {"profile": profile, "garbage": tmp_path / "x.gz", "cut": tmp_path / "cut", "empty": tmp_path / "empty"}
    files["garbage"].write_bytes(gzip.compress(b"")[:10] + b"\xff" * 100)
    files["cut"].write_bytes(profile.read_bytes()[:-30])
    pq.write_table(pq.read_table(profile).slice(0, 0), files["empty"])
    result = run("kernels", *(argument.format(**files) for argument in arguments))
    assert result.exit_code == code, result.output
    assert message in result.stderr and "Traceback" not in result.stderr and "defect" not in result.stderr

"""``paleo-lite compare`` as people use it.

Tests: reporting/compare.py.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from measured import DATA
from paleo_lite.cli import main

SURFBOARD = DATA / "surfboard"
RUN = "run_0_config_{nodes}_2_ib_nvprof_2_resnet50_{loader}_32_fp16_fp32_ret_0_0.gzip"


def run(*arguments, width=80):
    words = [str(argument) for argument in arguments]
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, words, prog_name="paleo-lite")


def write(path, times_ns):
    columns = {"Kernel": list(times_ns), "Sil(ns)": list(times_ns.values()), "Direction": ["fprop"] * len(times_ns)}
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def pair(tmp_path):
    return write(tmp_path / "a", {"both": 2_000_000, "old": 5}), write(tmp_path / "b", {"both": 3_000_000, "new": 7})


def test_json(pair):
    answer = json.loads(run("compare", *pair, "--format", "json").stdout)
    rows = {row["name"]: row for row in answer["kernels"]}
    assert rows["both"]["difference_s"] == pytest.approx(1e-3) and rows["both"]["ratio"] == pytest.approx(1.5)
    assert rows["old"]["b_s"] is None and rows["new"]["a_s"] is None and rows["new"]["ratio"] is None
    assert rows["both"]["verdict"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_table(pair, width):
    shown = run("compare", *pair, width=width).stdout
    for text in ("Only in A", "Only in B", "0.002000", "0.003000", "+0.001000", "1.5000", "one run on each side"):
        assert text in shown


def test_repeats_in_three_ways(tmp_path):
    name = "run_{}_config_{}_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"
    a = [write(tmp_path / name.format(i, 1), {"k": time}) for i, time in enumerate([100, 101, 99])]
    b = [write(tmp_path / name.format(i, 8), {"k": time}) for i, time in enumerate([120, 121, 119])]
    joined = run("compare", ",".join(map(str, a)), ",".join(map(str, b)), "--format", "json")
    further = ["--a", a[1], "--a", a[2], "--b", b[1], "--b", b[2]]
    optioned = run("compare", a[0], b[0], *further, "--format", "json")
    found = run("compare", a[0], b[0], "--repeats", "--format", "json")
    assert joined.stdout == optioned.stdout == found.stdout
    (row,) = json.loads(found.stdout)["kernels"]
    assert row["verdict"] == "beyond spread" and row["a_s"] == pytest.approx(100e-9)


def test_copies_are_no_repeats(pair, tmp_path):
    """The spread between copies is 0, beyond which every difference would be."""
    copy = tmp_path / "copy"
    copy.write_bytes(pair[0].read_bytes())
    answer = json.loads(run("compare", f"{pair[0]},{copy}", pair[1], "--format", "json").stdout)
    assert answer["a"] == [str(pair[0])]
    assert {row["verdict"] for row in answer["kernels"]} == {None}
    assert answer["notes"][0] == f"{copy} has the content of {pair[0]}, and counts once"


def test_profiles_of_different_formats(tmp_path, pair):
    trace = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "kernel", "name": "void both<float>(int)", "ts": 1, "dur": 1000, "args": {"device": 0}}
    trace.write_text(json.dumps({"traceEvents": [event]}))
    answer = json.loads(run("compare", pair[0], trace, "--format", "json").stdout)
    (row,) = [row for row in answer["kernels"] if row["name"] == "both"]
    assert row["b_s"] == pytest.approx(1e-3) and row["ratio"] == pytest.approx(0.5)
    assert any("different formats" in note for note in answer["notes"])


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("loader", "first"), [("dali-cpu-to-gpu", ("6.037096", "5.987010")), ("dali-gpu", ("6.036142", "5.755177"))]
)
def test_the_notebooks_first_kernels(loader, first):
    paths = [SURFBOARD / "pyprof_kernels" / RUN.format(nodes=nodes, loader=loader) for nodes in (1, 8)]
    shown = run("compare", *paths, "--direction", "fprop", "--top", "all", width=120).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("cudnn::detail::implicit_convolve_sgemm")]
    assert all(number in line for number in first)


@pytest.mark.needs_data
@pytest.mark.parametrize("width", [80, 120])
def test_prediction_compared_with_a_profile(width):
    path = SURFBOARD / "pyprof_kernels" / RUN.format(nodes=8, loader="dali-gpu")
    arguments = ["compare", "--predict", "resnet50", "--gpu", "k40m", "--time-model", "roofline", path]
    shown = run(*arguments, width=width)
    assert shown.exit_code == 0, shown.output
    assert "batch 32, training" in shown.stdout and "layer1.2.conv2" in shown.stdout
    answer = json.loads(run(*arguments, "--format", "json").stdout)
    kinds = {(row["kind"], row["pass"]): row for row in answer["kinds"]}
    # surfboard/derived/k40m_resnet50_totals.csv has 176.5 and 432.4 ms for this file
    assert kinds["convolution", "forward"]["measured_s"] == pytest.approx(0.1765, rel=0.01)
    assert kinds["convolution", "backward"]["measured_s"] == pytest.approx(0.4324, rel=0.01)
    assert all(kinds[key]["ratio"] > 1 for key in kinds if kinds[key]["ratio"] is not None)  # the roofline is a bound
    layers = {(row["layer"], row["pass"]): row for row in answer["layers"]}
    assert len([key for key in layers if key[0] == "conv1"]) == 2 and len(layers) > 200


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{a}"], 2, "two profiles"),
        (["{a}", "{b}", "{a}"], 2, "two profiles (got 3)"),
        ([], 2, "two profiles"),
        (["{a}", "nowhere"], 1, "nowhere"),
        (["{a}", "{b}", "--direction", "bprop"], 1, "bprop"),
        (["{a}", "{b}", "--gpu", "k40m"], 2, "--predict"),
        (["{a}", "{b}", "--clock", "base"], 2, "--predict"),
        (["--predict", "resnet50", "{a}"], 2, "--gpu"),
        (["--predict", "resnet50", "--gpu", "k40m", "{a}"], 1, "--batch-size"),
        (["--predict", "resnet51", "--gpu", "k40m", "{a}", "--batch-size", "8"], 2, "resnet50"),
        (["--predict", "resnet50", "--gpu", "k40m", "{a}", "--batch-size", "8"], 1, "no iterations were found"),
        (["--predict", "resnet50", "--gpu", "k40m", "{a}", "{b}"], 2, "one profile"),
    ],
)
def test_bad_pairs_of_profiles_are_one_sentence(pair, arguments, code, message):
    result = run("compare", *(argument.format(a=pair[0], b=pair[1]) for argument in arguments))
    assert result.exit_code == code, result.output
    assert message in result.stderr and "Traceback" not in result.stderr and "defect" not in result.stderr


@pytest.mark.needs_data
def test_the_interval_of_a_prediction_names_its_level():
    path = SURFBOARD / "pyprof_kernels" / RUN.format(nodes=8, loader="dali-gpu")
    title = run("compare", "--predict", "resnet50", "--gpu", "k40m", path).stdout.splitlines()[0]
    assert " at 90%)" in title

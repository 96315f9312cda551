"""``--plot`` and ``paleo-lite plot``: every kind of chart, and errors that are reported before computing.

Tests: api/plotting.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("altair")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from paleo_lite.api.plotting import KINDS
from paleo_lite.cli import main

pytestmark = pytest.mark.slow

MEASURED = """gpu,network,batch_size,phase,precision,time_s
k40m,alexnet,32,inference,fp32,0.030
k40m,resnet18,32,inference,fp32,0.060
k40m,resnet34,32,inference,fp32,0.110
k40m,resnet50,32,inference,fp32,0.230
k40m,resnet50,32,training,fp32,0.760
k40m,alexnet,32,training,fp32,0.090
k40m,resnet18,32,training,fp32,0.180
"""
KERNEL = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}


def run(*arguments, code=0):
    words = [str(argument) for argument in arguments]
    result = CliRunner(env={"COLUMNS": "100"}).invoke(main, words, prog_name="paleo-lite")
    assert result.exit_code == code, result.output
    return result


def profile(path, seconds):
    """A pyprof file of three kernels."""
    columns = {
        "Kernel": ["cudnn::detail::implicit_convolve_sgemm", "cudnn::detail::dgrad_alg1_engine", "elementwise_kernel"],
        "Sil(ns)": [second * 1e9 for second in seconds],
        "FLOPs": [4.29e9, 0.0, 1e6],
        "Bytes": [1e6, 0.0, 1.44e8],
        "Direction": ["fprop", "bprop", "fprop"],
        "Op": ["conv2d", "conv2d", "relu"],
    }
    pq.write_table(pa.table(columns), path)


def iterations(path):
    """A pyprof file of four steps of training: the backward pass has a thread of its own."""
    steps = [("conv2d", "fprop", 1, 5e6), ("linear", "fprop", 1, 2e6), ("linear", "bprop", 2, 4e6),
             ("conv2d", "bprop", 2, 1e7), ("add_", "fprop", 1, 7e6)] * 4  # fmt: skip
    columns = dict(zip(("Op", "Direction", "TId", "Sil(ns)"), map(list, zip(*steps))))
    kernels = [f"kernel_of_{op}" for op in columns["Op"]]
    pq.write_table(pa.table({"Kernel": kernels, **columns}), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the kinds need: two profiles, a trace, measurements, a sweep."""
    path = tmp_path_factory.mktemp("inputs")
    profile(path / "a_32.parquet", (0.002, 0.003, 0.001))
    profile(path / "b_32.parquet", (0.002, 0.004, 0.001))
    iterations(path / "run_32.parquet")
    events = [{**KERNEL, "name": name, "ts": 10 * at, "dur": 5} for at, name in enumerate(["sgemm_nt", "elementwise"])]
    (path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    (path / "measured.csv").write_text(MEASURED)
    run("predict", "alexnet,resnet50", "--gpu", "k80-die,k40m", "--batch-size", "1:64:x2",
        "--price", "1 USD/h", "-o", path / "sweep.parquet", "--jobs", "1")  # fmt: skip
    return path


NETWORK = ["alexnet", "--gpu", "k40m"]
ARGUMENTS = {
    "roofline": NETWORK,
    "layers": NETWORK,
    "kinds": NETWORK,
    "passes": [*NETWORK, "--phase", "training"],
    "batch": [*NETWORK, "--gpu", "v100-sxm2", "--batch-size", "1,2,4"],
    "devices": ["alexnet", "--gpu", "k40m,v100-sxm2"],
    "scaling": [*NETWORK, "--link", "ethernet20", "--workers", "1,2,4"],
    "schedule": [*NETWORK, "--link", "ethernet20", "--workers", "4", "--strategy", "pipeline-1f1b"],
    "serving": ["llama-3-8b", "--gpu", "h100-sxm", "--rate", "5", "--num-requests", "50"],
    "pareto": ["sweep.parquet", "--pareto", "time,cost"],
    "memory": ["llama-3-8b", "--gpu", "h100-sxm", "--batch-sizes", "1,2", "--token-counts", "64,128"],
    "cost": ["alexnet", "--gpu", "v100-sxm2,t4"],
    "local": ["llama-3.1-8b", "--gpu", "rtx3060,apple-m4"],
    "rl": [
        "qwen2.5-0.5b",
        "--gpu",
        "h100-sxm",
        "--workers",
        "4",
        "--prompts",
        "8",
        "--samples-per-prompt",
        "4",
        "--response-tokens",
        "200",
        "--max-tokens",
        "512",
    ],
    "accuracy": ["--data", "measured.csv", "--split", "network"],
    "fit": ["measured.csv", "--gpu", "k40m"],
    "timeline": ["trace.json", "--slices", "10"],
    "classes": ["a_32.parquet", "--gpu", "k40m"],
    "kernels": ["a_32.parquet", "--gpu", "k40m"],
    "efficiency": ["a_32.parquet", "b_32.parquet", "--gpu", "k40m", "--method", "notebook", "--jobs", "1"],
    "compare": ["a_32.parquet", "b_32.parquet"],
    "ppp": ["--predict", "alexnet", "--gpu", "k40m", "--batch-size", "32", "run_32.parquet"],
}
BESIDE_A_TABLE = {kind.command: name for name, kind in reversed(KINDS.items()) if kind.command}
"""Of each command with ``--plot`` the first kind that draws its result."""
DEFAULTS = {**BESIDE_A_TABLE, "kernels": "classes"}


DRAWN = ("roofline", "schedule", "memory", "timeline", "ppp")
"""Kinds that `make test` draws in the dark theme; tests/test_same_answers.py draws all in the light one."""


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in DRAWN else pytest.mark.thorough) for kind in KINDS]
)
def test_every_kind_is_drawn(folder, monkeypatch, kind):
    monkeypatch.chdir(folder)
    result = run("plot", kind, *ARGUMENTS[kind], "-o", f"{kind}.svg", "--theme", "dark")
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith(f"{kind}.svg: ")
    assert "#16191d" in Path(f"{kind}.svg").read_text().lower()


@pytest.mark.spread(4)
@pytest.mark.parametrize("command", DEFAULTS)
def test_chart_in_addition_to_a_table(folder, monkeypatch, command):
    monkeypatch.chdir(folder)
    arguments = [command, *ARGUMENTS[DEFAULTS[command]]]
    alone, both = (run(*arguments, "--format", "json", *more) for more in ((), ("--plot", f"beside_{command}.html")))
    assert json.loads(both.stdout) == json.loads(alone.stdout)
    assert Path(f"beside_{command}.html").read_text().startswith("<!DOCTYPE html>")


def test_chart_below_a_table(folder, monkeypatch):
    monkeypatch.chdir(folder)
    alone, both = (run("predict", *NETWORK, *more) for more in ((), ("--plot", "below.svg")))
    assert both.stdout == alone.stdout != "" and Path("below.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("kind", KINDS)
def test_help_of_every_kind(kind):
    text = run("plot", kind, "--help").stdout
    assert "--output" in text and "--theme" in text
    assert "--format" not in text and "--plot" not in text


def test_several_predictions_have_a_chart_of_their_own(tmp_path, monkeypatch):
    """Several predictions are drawn as a comparison; charts of one prediction name the chart for several."""
    monkeypatch.chdir(tmp_path)
    result = run("predict", "alexnet", "--gpu", "k40m,v100-sxm2", "--batch-size", "1,8", "--plot", "a.svg")
    assert "a.svg: predicted times with intervals" in result.stderr
    refused = run("plot", "layers", "alexnet", "--gpu", "k40m,v100-sxm2", "-o", "b.svg", code=2).stderr
    assert (
        refused == "paleo-lite: the chart layers shows a single prediction; for several use `paleo-lite plot devices`\n"
    )
    assert not Path("b.svg").exists()


def test_kinds_are_listed_and_unknown_kinds_are_an_error():
    listed = run("plot", "--help").stdout
    assert all(kind in listed for kind in KINDS)
    assert "no chart is called 'rooflines': did you mean roofline" in run("plot", "rooflines", code=2).stderr


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("chart.gif", "chart.gif: a chart file must end in .png, .svg, .html"),
        ("chart", "chart: a chart file must end in .png, .svg, .html"),
        ("folder.png", "folder.png is a folder: give a file name inside it"),
        ("file/chart.png", "file/chart.png cannot be written: {here}/file is not a folder"),
    ],
)
def test_invalid_files_are_reported_before_computing(tmp_path, monkeypatch, file, said):
    monkeypatch.chdir(tmp_path)
    Path("folder.png").mkdir()
    Path("file").touch()
    monkeypatch.setattr("paleo_lite.questions.predict._answer_one", lambda *_, **__: pytest.fail("computed"))
    result = CliRunner().invoke(main, ["predict", "alexnet", "--gpu", "k40m", "--plot", file])
    assert result.exit_code != 0
    assert result.stderr.strip() == f"paleo-lite: {said.format(here=tmp_path)}"


def test_a_missing_extra_is_named_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr("paleo_lite.questions.predict._answer_one", lambda *_, **__: pytest.fail("computed"))
    said = run("predict", "alexnet", "--gpu", "k40m", "--plot", tmp_path / "a.png", code=1).stderr
    assert "drawing charts needs the 'plots' extra: pip install 'paleo-lite[plots]'" in said


def test_failed_write_keeps_the_old_chart(tmp_path, monkeypatch):
    old = tmp_path / "old.svg"
    old.write_text("old")

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paleo_lite.files.write_atomically", full)
    said = run("plot", "kinds", *NETWORK, "-o", old, "--force", code=1).stderr
    assert f"{old}: cannot be written (No space left on device)" in said
    assert old.read_text() == "old"


@pytest.mark.parametrize("command", [["plot", "kinds", *NETWORK, "-o"], ["predict", *NETWORK, "--plot"]])
def test_a_chart_is_replaced_only_by_force(tmp_path, command):
    path = tmp_path / "old.svg"
    path.write_text("old")
    assert f"{path} already exists: choose another name, or `--force`" in run(*command, path, code=2).stderr
    assert path.read_text() == "old"
    run(*command, path, "--force")
    assert path.read_text().startswith("<svg")
    assert list(tmp_path.iterdir()) == [path]


def test_empty_chart_is_an_error(tmp_path):
    said = run("predict", "--flops", "15503M", "--gpu", "k80", "--plot", tmp_path / "a.png", code=2)
    assert "nothing to draw" in said.stderr and "Tesla K80" in said.stdout
    assert not (tmp_path / "a.png").exists()


def test_predict_imports_no_chart_library():
    code = (
        "import sys; from paleo_lite.cli import main; main(['predict', 'alexnet', '--gpu', 'k80'], standalone_mode=0); "
        "print([m for m in sys.modules if m.partition('.')[0] in ('altair', 'vl_convert', 'pyarrow') or 'charts' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

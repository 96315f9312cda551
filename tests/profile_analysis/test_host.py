"""Where the host's time went: PyTorch's own self times, VTune's and TAU's figures, and sums by hand."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict

import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from counted import MOST_WHEN_DOUBLED, counted, elements_of
from measured import DATA
from paleo_lite.cli import main
from paleo_lite.errors import BadProfile
from paleo_lite.profile_analysis.host import enclosing_intervals, report_host, self_times
from paleo_lite.profiles.detect import open_profile

HOTSPOTS = """Function,CPU Time,CPU Time:Effective Time,CPU Time:Spin Time,Module,Source File
compress_block,12.504,12.100,0.404,app.exe,compress.c
hash_lookup,3.210,3.210,0.000,app.exe,hash.c
memcpy,1.005,1.005,0.000,ucrtbase.dll,
[Outside any known module],0.120,0.120,0.000,,
"""


@pytest.fixture
def hotspots(tmp_path):
    path = tmp_path / "hotspots.csv"
    path.write_text(HOTSPOTS)
    return path


def kernels(*words: object, width: int = 80):
    words = ["kernels", *map(str, words)]
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, words, prog_name="paleo-lite")


def test_intervals_minus_nested_intervals() -> None:
    #  thread 1: 0..100 holds 10..40 (holds 20..30) and 50..60, and 90..120 overlaps its end; thread 2: 5..15
    start = np.array([50, 0, 20, 5, 10, 90])
    end = np.array([60, 100, 30, 15, 40, 120])
    thread = np.array([1, 1, 1, 2, 1, 1])
    parent = enclosing_intervals(thread, start, end)
    assert parent.tolist() == [1, -1, 4, -1, 1, 1]
    assert self_times(start, end, parent).tolist() == [10, 100 - 30 - 10 - 10, 10, 10, 20, 30]
    assert enclosing_intervals(thread[:0], start[:0], end[:0]).tolist() == []


@pytest.mark.slow
def test_self_times_match_pytorch(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1568, 5))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            with torch.profiler.record_function("train_step"):
                model(torch.rand(2, 3, 16, 16)).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    report = report_host(open_profile(path))
    ours = {spot.name: spot for spot in report.hotspots}
    theirs = {event.key: event for event in profiler.key_averages()}
    assert {"aten::conv2d", "aten::convolution_backward", "train_step"} <= set(ours)
    for name, spot in ours.items():
        assert spot.calls >= theirs[name].count  # PyTorch counts an operator that calls itself once
        assert spot.time_s == pytest.approx(theirs[name].self_cpu_time_total * 1e-6, abs=2e-6 * spot.calls)
        assert spot.total_s == pytest.approx(theirs[name].cpu_time_total * 1e-6, abs=2e-6 * spot.calls)
    assert sum(spot.share for spot in report.hotspots) == pytest.approx(1)


@pytest.mark.needs_data
def test_a_trace_of_gloo() -> None:
    path = DATA / "profiles/torch_chrome_trace/cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    whole = defaultdict(float)
    for event in events:
        if event.get("cat") in ("cpu_op", "user_annotation"):
            whole[event["name"].split("#")[0]] += event["dur"] * 1e-6
    report = report_host(open_profile(path))
    assert {spot.name: spot.total_s for spot in report.hotspots} == pytest.approx(whole)
    assert {spot.name: spot.kind for spot in report.hotspots} == {
        "gloo:all_reduce": "communication", "ProfilerStep": "marker", "aten::empty": "cpu",
    }  # fmt: skip


def test_vtune_by_function_and_module(hotspots) -> None:
    report = pl.kernels(hotspots, gpu="k40m")
    assert [(spot.name, spot.module, spot.time_s) for spot in report.hotspots][:3] == [
        ("compress_block", "app.exe", pytest.approx(12.504)),
        ("hash_lookup", "app.exe", pytest.approx(3.21)),
        ("memcpy", "ucrtbase.dll", pytest.approx(1.005)),
    ]
    assert [(group["module"], group["time_s"]) for group in report.sums("module")] == [
        ("app.exe", pytest.approx(15.714)), ("ucrtbase.dll", pytest.approx(1.005)), (None, pytest.approx(0.12)),
    ]  # fmt: skip
    assert report.to_dict()["on"] == "host" and report.to_dict()["time_s"] == pytest.approx(16.839)


def test_vtunes_hardware_events_stand_in_for_times(tmp_path) -> None:
    path = tmp_path / "events.csv"
    heading = "Function,Module,Hardware Event Count:CPU_CLK_UNHALTED.REF_TSC:Self,"
    path.write_text(
        heading + "Hardware Event Count:CPU_CLK_UNHALTED.THREAD:Self\n"
        "func@0x370780f010,libgomp.so.1.0.0,84000126,92000138\n"
        "bpnn_adjust_weights.omp_fn.0,backprop,80000120,90000135\n"
        "bpnn_layerforward.omp_fn.1,backprop,24000036,28000042\n"
        "[Outside any known module],[Unknown],16000024,20000030\n"
    )  # as PerfExpert's source quotes a report
    report = report_host(open_profile(path))
    assert report.time_s is None and {spot.time_s for spot in report.hotspots} == {None}
    assert report.hotspots[0].name == "func@0x370780f010"
    assert report.hotspots[0].share == pytest.approx(92000138 / 230000345)
    assert report.sums("module")[0] == {
        "module": "backprop", "functions": 2, "time_s": 0.0, "share": pytest.approx(118000177 / 230000345),
    }  # fmt: skip
    shown = kernels(path)
    assert shown.exit_code == 0 and "40% of the cycles in func@0x370780f010" in shown.stdout


@pytest.mark.parametrize("width", [80, 120])
def test_table_states_that_times_are_of_the_host(hotspots, width) -> None:
    result = kernels(hotspots, width=width)
    assert result.exit_code == 0, result.output
    assert "16.839 s on the host, 74% of the time in compress_block" in result.stdout
    assert "no device activity" in " ".join(result.stdout.split()) and "By module" in result.stdout
    assert max(map(len, result.stdout.splitlines()[1:])) <= width
    assert json.loads(kernels(hotspots, "--format", "json").stdout)["hotspots"][0]["share"] == pytest.approx(
        0.7426, abs=1e-4
    )


TAU = """<profile_xml>
<definitions thread="*">
<metric id="0"><name>TIME</name></metric>
<event id="0"><name>.TAU application</name><group>TAU_USER</group></event>
<event id="1"><name>late stop</name><group>TAU_PYTHON</group></event>
<event id="2"><name>MPI_Allreduce()</name><group>MPI</group></event>
</definitions>
<thread id="0.0.0" node="0" context="0" thread="0"></thread>
<profile thread="0.0.0">
<interval_data metrics="0 ">
0 1 2 1000 5000000
1 3 0 20 -4
2 10 0 2500 2500
</interval_data>
</profile>
</profile_xml>
"""


def test_tau_tells_the_time_in_itself(tmp_path) -> None:
    path = tmp_path / "tau.xml"
    path.write_text(TAU)
    report = report_host(open_profile(path))
    assert {spot.name: (spot.time_s, spot.total_s, spot.kind) for spot in report.hotspots} == {
        "MPI_Allreduce()": (pytest.approx(2.5e-3), pytest.approx(2.5e-3), "communication"),
        ".TAU application": (pytest.approx(1e-3), pytest.approx(5.0), "cpu"),
        "late stop": (pytest.approx(20e-6), None, "cpu"),
    }
    assert "MPI_Allreduce()" in kernels(path).stdout  # it ran on no device
    refused = CliRunner().invoke(main, ["efficiency", str(path), "--gpu", "k40m"], prog_name="paleo-lite")
    assert refused.exit_code == 1 and "shows the time of the host" in refused.stderr


def test_options_for_kernels_are_an_error(hotspots) -> None:
    refused = kernels(hotspots, "--next-command", "ncu")
    assert refused.exit_code == 2 and "`--next-command` needs kernels" in refused.stderr
    for command in (["efficiency", hotspots, "--gpu", "k40m"], ["compare", hotspots, hotspots]):
        result = CliRunner().invoke(main, [*map(str, command)], prog_name="paleo-lite")
        assert result.exit_code == 1 and "`paleo-lite kernels` shows the time of the host" in result.stderr


def test_times_without_rows(tmp_path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text(HOTSPOTS.splitlines()[0] + "\nmain,0.0,0.0,0.0,app,a.c\n")
    with pytest.raises(BadProfile, match="no row of this vtune-hotspots profile has a time"):
        report_host(open_profile(path))


def test_deeply_nested_calls_are_read_in_proportion(monkeypatch):
    search = np.searchsorted

    def read(depth):
        start = np.arange(depth)
        parents = []

        def nest():
            parents.extend(enclosing_intervals(np.zeros(depth, np.int64), start, 3 * depth - start).tolist())

        elements = elements_of(nest)
        assert parents == list(range(-1, depth - 1))
        return elements

    monkeypatch.setattr(np, "searchsorted", lambda *arguments, **options: counted(search(*arguments, **options)))
    assert read(400) < MOST_WHEN_DOUBLED * read(200)


def test_a_table_with_inclusive_device_times_names_the_longest_operation(tmp_path):
    # PyTorch 1.4 printed no device time without the operations inside
    path = tmp_path / "table.txt"
    rule = "  ".join(["-" * 14] * 4) + "\n"
    rows = [("Name", "Self CPU total", "CPU total", "CUDA total"), ("conv2d", "11.356us", "252.766us", "2.347ms"),
            ("convolution", "7.250us", "241.410us", "2.336ms")]  # fmt: skip
    lines = ["  ".join(cell.ljust(14) for cell in row) + "\n" for row in rows]
    path.write_text(rule + lines[0] + rule + lines[1] + lines[2] + rule)
    report = report_host(open_profile(path))
    assert [row.device_total_s for row in report.hotspots] == [pytest.approx(2.347e-3), pytest.approx(2.336e-3)]
    assert (
        dict(report.document().facts)["time"].split("; ")[1].startswith("on the device 2.347 ms in conv2d, the longest")
    )

"""Delays and queues of timelines written down here, and HolisticTraceAnalysis' of its own traces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from counted import MOST_WHEN_DOUBLED, counted, elements_of
from measured import DATA
from paleo_lite import efficiency
from paleo_lite.profile_analysis.activity import CALL, COMMUNICATION, COMPUTE, EVENT, ActivityRecorder, Recording
from paleo_lite.profile_analysis.collectives import list_collectives
from paleo_lite.profile_analysis.critical_path import find_critical_path
from paleo_lite.profile_analysis.device_time import (
    Gap,
    TimeBreakdown,
    break_down_time,
    idle_remedies,
    launch_delays_ns,
    launch_statistics,
)
from paleo_lite.profile_analysis.one_file import analyse_file
from paleo_lite.profiles.table import batch_of
from paleo_lite.reporting.terminal import format_table_lines

NAMES = ("category", "kernel", "start_ns", "duration_ns", "device", "stream", "launch_ns")


def recorded_of(*rows: tuple):
    activity = ActivityRecorder()
    activity.add(batch_of(dict(zip(NAMES, map(list, zip(*rows)))), len(rows), NAMES))
    return activity.recording()


def test_launch_delay_and_queue_length():
    found = launch_statistics(
        recorded_of(
            ("api", "cudaLaunchKernel", 0, 10.0, None, None, None),
            ("api", "cudaLaunchKernel", 20, 10.0, None, None, None),
            ("api", "cudaLaunchKernel", 40, 10.0, None, None, None),
            ("kernel", "a", 45, 100.0, 0, 7, 0),  # 35 after its call
            ("kernel", "b", 145, 100.0, 0, 7, 20),  # 115
            ("kernel", "c", 44, 100.0, 0, 8, 40),  # begun before its call ended: 0
            ("kernel", "d", 300, 100.0, 0, 8, None),
        )
    )
    assert (found.launches, found.delay_s, found.longest_delay_s) == (3, pytest.approx(35e-9), pytest.approx(115e-9))
    # Stream 7: 1 at 0, 2 at 20, 1 at 45, 0 at 145. Stream 8: 1 at 40, 0 at 44.
    assert [(queue.stream, queue.mean, queue.longest) for queue in found.queues] == [(7, 1.0, 2), (8, 0.5, 1)]


def marked_trace(path: Path, step_us: int, is_marked: bool) -> Path:
    """Write four steps of two kernels of 30 us; the steps last `step_us` on the host."""
    events = []
    for step in range(4):
        start = 1000 + step * step_us
        if is_marked:
            events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                           "ts": start, "dur": step_us, "args": {}})  # fmt: skip
        for number, name in enumerate(("sgemm", "relu")):
            begin, call = start + 10 + 40 * number, 10 * step + number
            events += [
                {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}", "pid": 1, "tid": 1, "ts": begin, "dur": 9,
                 "args": {"External id": call}},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": begin + 2,
                 "dur": 5, "args": {"correlation": call, "External id": call}},
                {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": begin + 10, "dur": 30,
                 "args": {"device": 0, "stream": 7, "correlation": call, "External id": call}},
            ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_step_lasts_as_long_as_its_mark_or_its_part_of_the_profile(tmp_path):
    marked = analyse_file(marked_trace(tmp_path / "marked.json", 250, True)).device_time
    assert marked.step_s == pytest.approx(250e-6)
    # From the first kernel, 20 us into a step, to the last, 90 us into a step: 3 * 250 + 70, for four iterations.
    plain = analyse_file(marked_trace(tmp_path / "plain.json", 250, False)).device_time
    assert plain.step_s == pytest.approx(820e-6 / 4)
    assert plain.breakdown.window_s == pytest.approx(820e-6)
    assert plain.breakdown.busy_share == pytest.approx(240 / 820)


def test_a_marked_step_begins_when_the_device_ends_the_one_before(tmp_path):
    """The host marks 100 us, in 40 of which the device ends earlier work, and waits for its own end at 130 us."""
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#6", "pid": 1, "tid": 1, "ts": 1000, "dur": 100}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1010, "dur": 5}
    kernel = {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7}
    events = [
        {**step, "args": {}},
        {**kernel, "ts": 990, "dur": 50, "args": {"device": 0, "stream": 7, "correlation": 1}},
        {**launch, "args": {"correlation": 2}},
        {**kernel, "ts": 1045, "dur": 85, "args": {"device": 0, "stream": 7, "correlation": 2}},
    ]
    path = tmp_path / "one_step.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert analyse_file(path).device_time.step_s == pytest.approx(90e-6)  # from 1040 to 1130 us


def test_no_result_without_launches():
    assert launch_statistics(recorded_of(("kernel", "a", 45, 100.0, 0, 7, None))) is None
    without_calls = launch_statistics(recorded_of(("kernel", "a", 45, 100.0, 0, 7, 3)))
    assert without_calls.delay_s is None and without_calls.queues[0].longest == 1


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "launches", "delays_us", "queues"),
    [  # HolisticTraceAnalysis 0.5.0: get_cuda_kernel_launch_stats' number and sum, get_queue_length_summary
        (
            "hta/timeline_analysis__sampled_rank-0.json.gz", 602, 9_880_122,
            {7: (23.619771863117872, 76), 23: (0.5952380952380952, 4), 25: (4.0, 8), 84: (0.5, 1), 203: (0.5, 1)},
        ),
        (
            "torch_chrome_trace/trace_filter__sampled_rank-1.json.gz", 577, 9_761_662,
            {7: (24.66566866267465, 75), 23: (0.5476190476190477, 2), 25: (4.0, 8), 84: (0.5, 1), 203: (0.5, 1)},
        ),
        (
            "param/resnet_kineto.json.gz", 10_113, 440_085_426,
            {7: (147.256997329641, 315), 20: (0.5, 1), 36: (0.5, 1)},
        ),
    ],
)  # fmt: skip
def test_delays_and_queues_are_holistic_trace_analysis(name, launches, delays_us, queues, without_last_step):
    recorded = without_last_step(DATA / "profiles" / name)
    found = launch_statistics(recorded)
    assert found.launches == launches
    assert launch_delays_ns(recorded, recorded.events).sum() / 1e3 == pytest.approx(delays_us, rel=1e-7)
    assert {queue.stream: queue.longest for queue in found.queues} == {s: longest for s, (_, longest) in queues.items()}
    assert {queue.stream: queue.mean for queue in found.queues} == pytest.approx(
        {stream: mean for stream, (mean, _) in queues.items()}, rel=1e-5
    )


MODELS = DATA / "profiles" / "tracelens_models"


@pytest.mark.needs_data
def test_busy_time_and_window_of_tracelens():
    """TraceLens's gpu_timeline.csv of normalization_layer_test: 1.018626953125 ms busy of 1068.7798325195313 ms."""
    (row,) = efficiency(MODELS / "perf_model__normalization__normalization_layer_test.json.gz", jobs=1).rows
    assert row["window_s"] == pytest.approx(1068.7798325195313e-3, rel=1e-8)
    assert row["busy_share"] * row["window_s"] == pytest.approx(1.018626953125e-3, rel=1e-5)


@pytest.mark.needs_data
def test_the_iteration_has_the_kernels_launched_in_the_trace():
    """TraceLens counts device events with a launch in the trace: 31.91 ms. The window here contains all events."""
    (row,) = efficiency(MODELS / "h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", jobs=1).rows
    assert row["kernel_s"] == pytest.approx(31.91e-3, rel=2e-4)
    assert row["window_s"] == pytest.approx(49.65e-3, rel=2e-4)
    assert row["busy_share"] * row["window_s"] == pytest.approx(45.647310e-3, rel=1e-6)  # a union of its intervals


@pytest.mark.spread(3)
@pytest.mark.needs_data
@pytest.mark.parametrize("path", sorted(MODELS.glob("*.json.gz")), ids=lambda path: path.name)
def test_mfu_is_at_most_the_share_of_peak_while_busy_and_tables_fit(path, monkeypatch):
    """The mark of a host that runs ahead is shorter than the device's work, as that of ResNet on the MI300X."""
    monkeypatch.setenv("COLUMNS", "80")
    result = efficiency(path, jobs=1)
    (row,) = result.rows
    if row["mfu"] is not None:
        assert row["mfu"] <= row["flops_efficiency"] * (1 + 1e-12)
    title = result.document().title
    assert ("MFU" in title) == ("of peak FLOP/s" in title)
    for table in result.document().tables:
        assert max(map(len, format_table_lines(table, 80))) <= 80


def test_a_step_lasts_until_the_next_one_where_others_do_not_count(tmp_path) -> None:
    """Three steps of torch_npu, at 0, 2 and 5 ms, of which the second has a further kernel: the first takes 2 ms."""
    heading = "Step Id,Device_id,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us)"
    rows = ["1,0,1,7,a,MatMulV2,dynamic,AI_CORE,0,400", "2,0,2,7,a,MatMulV2,dynamic,AI_CORE,2000,400",
            "2,0,3,7,b,Mul,dynamic,AI_VECTOR_CORE,4000,900",
            "3,0,4,7,a,MatMulV2,dynamic,AI_CORE,5000,400"]  # fmt: skip
    path = tmp_path / "kernel_details.csv"
    path.write_text("\n".join([heading, *rows]) + "\n")
    result = efficiency(path, jobs=1)
    assert result.rows[0]["step_s"] == pytest.approx(2e-3)
    assert "iteration 2 of 3 left out, its kernels differ (autotuning, or cut off)" in result.document().notes


@pytest.mark.parametrize("function", [break_down_time, launch_statistics, list_collectives, find_critical_path])
def test_many_devices_are_read_in_proportion(function):
    def read(devices):
        events = np.zeros(2 * devices, EVENT)
        events["device"] = np.repeat(np.arange(devices), 2)
        events["start"] = np.arange(2 * devices) * 100
        events["end"] = events["start"] + 60
        events["launch"] = events["start"]
        events["lane"] = np.tile([COMPUTE, COMMUNICATION], devices)
        events["message"] = -1
        recording = Recording(counted(events), np.empty(0, CALL), ["kernel"], [], [])
        return elements_of(lambda: function(recording))

    assert read(400) < MOST_WHEN_DOUBLED * read(200)


@pytest.mark.parametrize(
    ("cause", "host", "expected"),
    [
        ("between_steps", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "num_workers"),
        ("between_steps", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "paleo-lite feeding"),
        ("host", None, "CUDA graphs"),
        ("between_steps", "aten::item", ""),
    ],
)
def test_large_idle_times_have_their_remedy(cause: str, host: str | None, expected: str) -> None:
    gap = Gap(0.0, 0.3, cause, "memcpy HtoD", host)
    breakdown = TimeBreakdown(1, 0.7, 1.0, 0.7, 0.0, 0.0, None, 0.0, 0.0, {cause: 0.3}, [gap])
    sentences = idle_remedies(breakdown)
    assert len(sentences) == bool(expected)
    assert all(sentence.startswith("30.0% of the time") and expected in sentence for sentence in sentences)
    seldom = TimeBreakdown(1, 0.95, 1.0, 0.95, 0.0, 0.0, None, 0.0, 0.0, {cause: 0.05}, [gap])
    assert idle_remedies(seldom) == []

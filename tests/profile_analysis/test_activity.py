"""The union of intervals against the plain definition: count the nanoseconds that something covers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted import MOST_WHEN_DOUBLED, counted, elements_of
from paleo_lite.profile_analysis import activity
from paleo_lite.profile_analysis.activity import (
    API,
    COMMUNICATION,
    COMPUTE,
    COPY,
    MARK,
    OPERATION,
    ActivityRecorder,
    BusyTime,
    covered_ns,
    merge_intervals,
)
from paleo_lite.profiles.table import batch_of
from strategies import kernels

INTERVALS = kernels(st.integers(0, 2))


def busy_ns(intervals, device):
    return len({ns for start, length, on in intervals if on == device for ns in range(start, start + length)})


def added(busy, intervals, size):
    for place in range(0, len(intervals), size):
        starts, lengths, devices = (np.array(column) for column in zip(*intervals[place : place + size]))
        busy.add(starts, lengths.astype(float), devices)
    return busy


@given(INTERVALS, st.integers(1, 7))
def test_union_in_memory(intervals, size):
    seconds = added(BusyTime(None), intervals, size).seconds
    assert {d: round(s * 1e9) for d, s in seconds.items()} == {d: busy_ns(intervals, d) for *_, d in intervals}


@given(INTERVALS, st.integers(1, 7), st.integers(2, 5))
def test_union_in_bounded_memory_is_exact_or_marked_as_inexact(intervals, size, kept):
    busy = added(BusyTime(kept), intervals, size)
    if busy.sorted:
        expected = {d: busy_ns(intervals, d) for *_, d in intervals}
        assert {d: round(s * 1e9) for d, s in busy.seconds.items()} == expected


@given(INTERVALS, st.integers(1, 7))
def test_sorted_input_needs_few_open_intervals(intervals, size):
    assert added(BusyTime(2), sorted(intervals), size).sorted


def test_a_late_kernel_is_noticed():
    apart = [(100 * place, 10, 0) for place in range(100)]
    busy = added(BusyTime(4), [*apart, (5, 10, 0)], 10)
    assert not busy.sorted


def test_intervals_that_touch_become_one():
    starts, ends = merge_intervals(np.array([5, 0, 20]), np.array([9, 5, 30]))
    assert starts.tolist() == [0, 20]
    assert ends.tolist() == [9, 30]


# Three kernels of two steps, a collective, a copy and an event without an end; on the host a launch, an operation of
# 20 us, one of 9 us, a mark, and an operation of an unknown thread.
ROWS = [
    # category, kernel, start, duration, device, stream, step, launch, thread, params
    ("kernel", "sgemm", 1_000, 500.0, 0, 7, "step 1", 900, None, None),
    ("kernel", "relu", 1_600, 100.4, 0, 7, "step 1", None, None, None),
    ("kernel", "sgemm", 3_000, 250.0, 1, 8, "step 2", 2_900, None, None),
    ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1_200, 900.0, 0, 9, "step 1", 1_100, None, "4 MB"),
    ("memcpy", "Memcpy HtoD", 100, 50.0, 0, 3, None, 90, None, None),
    ("kernel", "unfinished", 5_000, None, 0, 7, "step 2", 4_900, None, None),
    ("api", "cudaLaunchKernel", 900, 8.0, None, None, None, None, 1, None),
    ("cpu", "aten::conv2d", 700, 20_000.0, None, None, None, None, 1, None),
    ("cpu", "aten::relu", 650, 9_000.0, None, None, None, None, 1, None),
    ("marker", "ProfilerStep#1", 600, 30_000.0, None, None, None, None, 1, None),
    ("cpu", "aten::add", 500, 20_000.0, None, None, None, None, None, None),
]
FIELDS = ("category", "kernel", "start_ns", "duration_ns", "device", "stream", "step", "launch_ns", "thread", "params")


def recorder_of(rows, left_out=()):
    columns = {name: column for name, column in zip(FIELDS, zip(*rows)) if name not in left_out}
    recorder = ActivityRecorder()
    recorder.add(batch_of(columns, len(rows), tuple(columns)))
    return recorder


def test_events_and_calls_of_a_recording():
    recording = recorder_of(ROWS).recording()
    found = [
        (recording.names[event["name"]], *(int(event[name]) for name in ("start", "end", "launch", "device", "stream")))
        for event in recording.events
    ]
    assert found == [
        ("sgemm", 1_000, 1_500, 900, 0, 7),
        ("relu", 1_600, 1_700, -1, 0, 7),
        ("sgemm", 3_000, 3_250, 2_900, 1, 8),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1_200, 2_100, 1_100, 0, 9),
        ("Memcpy HtoD", 100, 150, 90, 0, 3),
    ]
    assert recording.events["lane"].tolist() == [COMPUTE, COMPUTE, COMPUTE, COMMUNICATION, COPY]
    steps = [recording.steps[code] if code >= 0 else None for code in recording.events["step"]]
    assert steps == ["step 1", "step 1", "step 2", "step 1", None]
    messages = [recording.messages[code] if code >= 0 else None for code in recording.events["message"]]
    assert messages == [None, None, None, "4 MB", None]
    calls = [(recording.names[call["name"]], int(call["start"]), int(call["end"])) for call in recording.calls]
    assert calls == [
        ("ProfilerStep#1", 600, 30_600),
        ("aten::conv2d", 700, 20_700),
        ("cudaLaunchKernel", 900, 908),
    ]
    assert recording.calls["kind"].tolist() == [MARK, OPERATION, API]


def test_an_operation_of_ten_microseconds_is_long():
    rows = [ROWS[0], ("cpu", "aten::mm", 0, 10_000.0, None, None, None, None, 1, None)]
    assert len(recorder_of(rows).recording().calls) == 1


def test_steps_select_events():
    recorder = recorder_of(ROWS)
    assert recorder.recording(["step 2"]).events["start"].tolist() == [3_000]
    assert len(recorder.recording(["step 1", "step 2"]).events) == 4
    assert recorder.recording(["step 3"]) is None


def test_seconds_of_kernels_omit_copies_and_collectives():
    found = recorder_of(ROWS).kernel_seconds()
    assert {name: round(seconds * 1e9) for name, seconds in found.items()} == {"sgemm": 750, "relu": 100}


def test_several_batches_share_names():
    recorder = recorder_of(ROWS[:2])
    columns = dict(zip(FIELDS, zip(ROWS[2], ROWS[4])))
    recorder.add(batch_of(columns, 2, FIELDS))
    recording = recorder.recording()
    assert [recording.names[code] for code in recording.events["name"]] == ["sgemm", "relu", "sgemm", "Memcpy HtoD"]
    assert recording.names.count("sgemm") == 1


def test_there_is_no_recording_without_start_times():
    assert recorder_of(ROWS, left_out=("start_ns",)).recording() is None
    unknown_start = ("kernel", "relu", None, 5.0, 0, 7, None, None, None, None)
    recorder = recorder_of([ROWS[0], unknown_start])
    assert recorder.recording() is None
    assert recorder.kernel_seconds() is None


def test_there_is_no_recording_without_device_events():
    assert recorder_of(ROWS[6:]).recording() is None
    assert recorder_of(ROWS[6:]).kernel_seconds() is None


def test_time_covered_by_events_of_several_arrays():
    """[1000, 1500) and [1600, 1700), the collective [1200, 2100), and [3000, 3250): 1,350 ns."""
    events = recorder_of(ROWS).recording().events
    assert covered_ns(events[:3], events[3:4]) == 1_350
    assert covered_ns(events[:0]) == 0


def test_events_that_overlap_on_two_devices_count_once_on_each():
    busy = BusyTime()
    busy.add(np.array([0, 5, 100]), np.array([10.0, 10.0, 7.6]), np.array([0, 0, 3]))
    assert {device: round(seconds * 1e9) for device, seconds in busy.seconds.items()} == {0: 15, 3: 8}


def test_the_busy_time_of_many_devices_takes_one_sort():
    def read(devices):
        starts = np.arange(devices)
        return elements_of(lambda: BusyTime().add(starts, np.ones(devices), counted(starts)))

    assert read(1000) < MOST_WHEN_DOUBLED * read(500)


def test_the_busy_time_of_many_batches_is_merged_in_doubling_steps(monkeypatch):
    merged = []

    def merge(starts, ends):
        merged.append(len(starts))
        return merge_intervals(starts, ends)

    def read(batches):
        merged.clear()
        busy = BusyTime(None)
        for batch in range(batches):
            starts = 20 * np.arange(10) + 200 * (batch * 7 % batches)
            busy.add(starts, np.full(10, 5.0), np.zeros(10, np.int64))
        assert busy.seconds == {0: pytest.approx(batches * 50e-9)}
        return sum(merged)

    monkeypatch.setattr(activity, "merge_intervals", merge)
    assert read(800) < MOST_WHEN_DOUBLED * read(400)

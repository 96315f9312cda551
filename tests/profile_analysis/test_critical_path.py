"""Critical paths of timelines written down here, and HolisticTraceAnalysis' of its own traces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured import DATA
from paleo_lite.profile_analysis.activity import COLUMNS, MARK, ActivityRecorder
from paleo_lite.profile_analysis.critical_path import find_critical_path
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.table import batch_of

NAMES = ("category", "kernel", "start_ns", "duration_ns", "device", "stream", "launch_ns", "step", "thread")


def path_of(*rows: tuple, step: str | None = None) -> dict[str, float]:
    """Return the nonzero nanoseconds of each part."""
    activity = ActivityRecorder()
    activity.add(batch_of(dict(zip(NAMES, map(list, zip(*rows)))), len(rows), NAMES))
    path = find_critical_path(activity.recording(), step)
    assert path.time_s == pytest.approx(sum(path.parts_s.values()))
    return {part: round(seconds * 1e9) for part, seconds in path.parts_s.items() if seconds}


def kernel(start: int, end: int, launch: int | None, stream: int = 7, kind: str = "kernel", step: str | None = None):
    return (
        kind,
        {"communication": "ncclKernel"}.get(kind, "sgemm"),
        start,
        float(end - start),
        0,
        stream,
        launch,
        step,
        1,
    )


def call(name: str, start: int, end: int, kind: str = "api") -> tuple:
    return kind, name, start, float(end - start), None, None, None, None, 1


def test_a_busy_device_is_followed_back_to_its_first_launch():
    rows = (kernel(100, 200, 80), kernel(210, 300, 90), kernel(300, 400, 95))
    assert path_of(*rows) == {"computing": 290, "between": 10, "launch": 20}


def test_a_late_launch_leads_to_the_host():
    rows = (kernel(100, 200, 80), kernel(350, 400, 330))  # launched after the first had ended
    assert path_of(*rows) == {"computing": 50, "launch": 20, "host": 250}


def test_the_three_longest_kernels_of_the_path_are_listed():
    activity = ActivityRecorder()
    rows = [kernel(start, end, 80) for start, end in ((100, 200), (200, 500), (500, 550), (550, 750))]
    names = ("sgemm", "relu_kernel", "fft2d", "pool_kernel")
    rows = [(row[0], name, *row[2:]) for row, name in zip(rows, names)]
    activity.add(batch_of(dict(zip(NAMES, map(list, zip(*rows)))), len(rows), NAMES))
    longest = find_critical_path(activity.recording(), None).longest
    assert [round(entry[-1] * 1e9) for entry in longest] == [300, 200, 100]


def test_the_host_waited_for_the_device():
    rows = (
        kernel(100, 200, 80),
        call("cudaStreamSynchronize", 120, 210),
        kernel(350, 400, 330),
        call("cudaDeviceSynchronize", 320, 325),  # nothing ended while it waited
    )
    assert path_of(*rows) == {"computing": 150, "launch": 40, "host": 130}


def test_another_stream_was_waited_for():
    rows = (
        kernel(10_000, 90_000, 0, stream=8, kind="communication"),
        kernel(5_000, 6_000, 0),
        kernel(90_500, 100_000, 1_000),  # launched long before the communication ended
    )
    assert path_of(*rows) == {"communication": 80_000, "computing": 9_500, "between": 500, "launch": 10_000}


@pytest.mark.parametrize(
    ("launch", "start", "waited"),
    [(79_999, 100_000, True), (80_000, 100_000, False), (79_999, 100_001, False), (0, 90_000, True)],
)
def test_a_wait_begins_at_most_10_us_before_and_is_launched_more_than_10_us_before(launch, start, waited):
    """A communication on another stream ends at 90 us, before the kernel starts."""
    found = path_of(kernel(10_000, 90_000, 0, stream=8, kind="communication"), kernel(start, 120_000, launch))
    computing = {"computing": 120_000 - start}
    if waited:
        between = {"between": start - 90_000} if start > 90_000 else {}
        assert found == {**computing, **between, "communication": 80_000, "launch": 10_000}
    else:
        assert found == {**computing, "launch": start - launch, "host": launch}


def test_a_step_begins_with_its_mark_or_as_the_device_ends_the_one_before():
    first = (call("ProfilerStep#1", 0, 40_000, "marker"), kernel(20_000, 30_000, 15_000, step="ProfilerStep#1"))
    assert path_of(*first, step="ProfilerStep#1") == {"host": 15_000, "launch": 5_000, "computing": 10_000}
    second = kernel(31_000, 35_000, 25_000, step="ProfilerStep#2")
    assert path_of(*first, second, step="ProfilerStep#2") == {"between": 1_000, "computing": 4_000}


def test_events_without_length_at_one_moment_do_not_hold_the_path():
    at_once = [kernel(20_000, 20_000, launch, stream) for launch, stream in ((0, 7), (0, 8), (1_000, 7))]
    assert path_of(kernel(5_000, 6_000, 0), *at_once) == {"computing": 1_000, "between": 14_000, "launch": 5_000}


TIMES, LENGTHS = (st.sampled_from(range(0, most * 6_000, 6_000)) for most in (10, 3))


@given(
    st.lists(st.tuples(TIMES, LENGTHS, TIMES, st.sampled_from((7, 8))), min_size=1),
    st.lists(st.tuples(TIMES, LENGTHS)),
)
def test_every_timeline_has_a_path_no_longer_than_itself(kernels, waits):
    rows = [kernel(start, start + length, max(start - ago, 0), stream) for start, length, ago, stream in kernels]
    rows += [call("cudaStreamSynchronize", start, start + length) for start, length in waits]
    assert 0 <= sum(path_of(*rows).values()) <= max(start + length for start, length, _, _ in kernels)


@pytest.mark.thorough
@pytest.mark.needs_data
def test_a_whole_trace_with_events_without_length_has_a_path():
    activity = ActivityRecorder()
    for batch in open_profile(DATA / "profiles" / "param" / "resnet_kineto.json.gz").batches(COLUMNS):
        activity.add(batch)
    recorded = activity.recording()
    assert (recorded.events["end"] == recorded.events["start"]).any()
    path = find_critical_path(recorded)
    assert path.time_s == pytest.approx(sum(path.parts_s.values()))
    assert path.time_s <= (recorded.events["end"].max() - recorded.events["launch"].min()) * 1e-9


ALEXNET = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "device", "between", "launch"),
    [  # HolisticTraceAnalysis 0.5.0, critical_path_analysis(annotation=ALEXNET, instance_id=1): microseconds of
        # gpu_compute_bound, gpu_kernel_kernel_overhead, gpu_kernel_launch_overhead
        ("critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz", 3712, 50, 30),
        ("critical_path__simple_add__benchmark_result_493459_1694039959_trace.json.gz", 508, 9, 17),
    ],
)
def test_a_forward_pass_is_holistic_trace_analysis(name, device, between, launch):
    activity = ActivityRecorder()
    for batch in open_profile(DATA / "profiles" / "torch_chrome_trace" / name).batches(COLUMNS):
        activity.add(batch)
    recorded = activity.recording()
    marks = recorded.calls[recorded.calls["kind"] == MARK]
    second = marks[marks["name"] == recorded.names.index(ALEXNET)][1]
    launched = recorded.events["launch"]
    inside = (launched >= second["start"]) & (launched < second["end"])
    path = find_critical_path(recorded._replace(events=recorded.events[inside]))
    parts = {part: seconds * 1e6 for part, seconds in path.parts_s.items()}
    assert parts["computing"] + parts["copies"] + parts["fills"] == pytest.approx(device)
    assert (parts["between"], parts["launch"]) == (pytest.approx(between, abs=1.5), pytest.approx(launch, abs=1.5))


@pytest.mark.slow
@pytest.mark.needs_data
def test_a_step_that_the_device_is_busy_in_is_holistic_trace_analysis():
    name = "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
    activity = ActivityRecorder()
    for batch in open_profile(DATA / "profiles" / "hta" / name).batches(COLUMNS):
        activity.add(batch)
    path = find_critical_path(activity.recording(), "ProfilerStep#102")
    # critical_path_analysis(annotation="ProfilerStep", instance_id=1): 93,692 gpu_compute_bound, 2,043
    # gpu_kernel_kernel_overhead, to which it counts copies; nothing else.
    assert path.time_s * 1e6 == pytest.approx(93_692 + 2_043, abs=5)
    assert path.parts_s["computing"] * 1e6 == pytest.approx(93_692, rel=1e-3)
    assert path.parts_s["host"] == path.parts_s["launch"] == 0

"""Idle time on timelines written down here, and HolisticTraceAnalysis' figures of its own traces.

Tests: profile_analysis/device_time.py.
"""

from __future__ import annotations

import pytest

from measured import DATA
from paleo_lite.profile_analysis.activity import ActivityRecorder
from paleo_lite.profile_analysis.device_time import TimeBreakdown, break_down_time
from paleo_lite.profiles.table import batch_of

NAMES = ("category", "kernel", "start_ns", "duration_ns", "device", "step", "launch_ns")


def idle_of(*rows: tuple, steps: list[str] | None = None, names: tuple[str, ...] = NAMES) -> TimeBreakdown | None:
    """Of rows in the order of `NAMES`, in two batches."""
    activity = ActivityRecorder()
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        columns = dict(zip(names, map(list, zip(*part)))) if part else {name: [] for name in names}
        activity.add(batch_of(columns, len(part), names))
    recorded = activity.recording(steps)
    return None if recorded is None else break_down_time(recorded)


def kernel(start: int, end: int, launch: int | None = 0, step: str | None = None, kind="kernel", device=0) -> tuple:
    name = {"communication": "ncclKernel", "kernel": "sgemm"}.get(kind, kind)
    return kind, name, start, float(end - start), device, step, launch


def test_causes_of_idle_time():
    found = idle_of(
        kernel(0, 100, 0, "a"),
        kernel(150, 200, 120, "a"),  # launched at 120, when nothing had run since 100
        kernel(230, 300, 190, "a"),  # launched while the device was busy
        kernel(340, 400, None, "a"),
        kernel(480, 500, 450, "b"),
    )
    assert found.window_s == pytest.approx(500e-9)
    assert found.busy_share == pytest.approx(0.6)
    causes = {"host": 50e-9, "device": 30e-9, "unknown": 40e-9, "between_steps": 80e-9}
    assert found.idle_s == pytest.approx(causes)
    assert [gap.time_s for gap in found.gaps] == pytest.approx([80e-9, 50e-9, 40e-9, 30e-9])
    assert [gap.start_s for gap in found.gaps] == pytest.approx([400e-9, 100e-9, 300e-9, 200e-9])


def test_idle_time_before_the_first_step_is_between_steps_and_after_the_last_is_not():
    found = idle_of(kernel(0, 100), kernel(150, 200, 10, "a"), kernel(230, 300, 10), kernel(310, 320, 10))
    causes = {"between_steps": 50e-9, "device": 40e-9, "host": 0.0, "unknown": 0.0}
    assert found.idle_s == pytest.approx(causes)


def test_concurrent_activities():
    found = idle_of(
        kernel(0, 100),
        kernel(50, 160, kind="communication"),  # 60 beyond the computation
        kernel(150, 200, kind="memcpy"),  # 40 beyond both
        kernel(120, 140, kind="memset"),
        kernel(190, 230, kind="memset"),  # 30 beyond all
    )
    assert found.computing_s == pytest.approx(100e-9) and found.exposed_fill_s == pytest.approx(30e-9)
    assert found.communication_s == pytest.approx(110e-9) and found.exposed_communication_s == pytest.approx(60e-9)
    assert found.communication_overlap == pytest.approx(50 / 110)
    assert found.exposed_copy_s == pytest.approx(40e-9) and found.busy_share == 1


def test_every_device_has_its_own_window():
    found = idle_of(kernel(0, 100), kernel(200, 300), kernel(1000, 1100, device=1), kernel(1050, 1150, device=1))
    assert found.window_s == pytest.approx(450e-9) and found.busy_share == pytest.approx(350 / 450)


def test_host_activity_is_the_innermost_call_over_most_of_the_gap():
    found = idle_of(
        kernel(0, 10_000),
        ("cpu", "aten::outer", 5_000, 90_000, None, None, None),
        ("cpu", "aten::item", 20_000, 60_000, None, None, None),
        ("api", "cudaLaunchKernel", 80_000, 12_000, None, None, None),
        kernel(100_000, 110_000, 95_000),
    )
    assert [(gap.host, gap.before, gap.cause) for gap in found.gaps] == [("aten::item", "sgemm", "host")]


def test_only_some_steps():
    rows = (kernel(0, 100, step="a"), kernel(300, 400, step="b"), kernel(500, 600, step="b"))
    assert idle_of(*rows, steps=["b"]).window_s == pytest.approx(300e-9)
    assert idle_of(*rows, steps=["c"]) is None


def test_no_result_without_start_times():
    rows = (kernel(0, 100), kernel(200, 300))
    without = tuple(name for name in NAMES if name != "start_ns")
    assert idle_of(*((*row[:2], *row[3:]) for row in rows), names=without) is None
    assert idle_of() is None


HTA = {
    "hta/timeline_analysis__sampled_rank-0.json.gz": (106_252, 172_428, 321_378, 11.81),
    "torch_chrome_trace/trace_filter__sampled_rank-1.json.gz": (135_548, 136_455, 328_671, 20.05),
    "param/resnet_kineto.json.gz": (4_103_141, 630_681, 9_789_089, None),
}
"""HolisticTraceAnalysis 0.5.0: get_temporal_breakdown (microseconds of compute, non_compute and idle), and
get_comm_comp_overlap (per cent), of traces whose times are whole microseconds, to which it cuts all."""


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.parametrize("name", HTA)
def test_busy_idle_and_overlap_are_holistic_trace_analysis(name, without_last_step):
    compute, other, idle, overlap = HTA[name]
    found = break_down_time(without_last_step(DATA / "profiles" / name))
    assert found.computing_s * 1e6 == pytest.approx(compute)
    assert (found.busy_share * found.window_s - found.computing_s) * 1e6 == pytest.approx(other)
    assert sum(found.idle_s.values()) * 1e6 == pytest.approx(idle)
    assert overlap is None or found.communication_overlap == pytest.approx(overlap / 100, abs=5e-5)


@pytest.mark.slow
@pytest.mark.needs_data
def test_idle_by_cause_is_holistic_trace_analysis(without_last_step):
    found = break_down_time(without_last_step(DATA / "profiles" / "param" / "resnet_kineto.json.gz"))
    # get_idle_time_breakdown of the one stream that counts: host_wait 9,777,580, kernel_wait 11,515. The others hold
    # one kernel each, within a gap of the first.
    assert found.idle_s["host"] * 1e6 == pytest.approx(9_777_580, abs=10)
    assert found.idle_s["device"] * 1e6 == pytest.approx(11_515)


DLRM = {
    0: (1034, 5556, 6419, 4.5), 1: (1246, 11075, 6428, 2.47), 2: (1068, 3236, 7046, 7.88), 3: (1240, 9468, 8145, 3.31),
    4: (1126, 6576, 8887, 0.56), 5: (1041, 6230, 9121, 0.64), 6: (1051, 3308, 7051, 7.56), 7: (1059, 1600, 8308, 9.51),
}  # fmt: skip
"""The same of the eight ranks of a job, which mark no steps."""


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.parametrize("rank", DLRM)
def test_ranks_are_holistic_trace_analysis(rank, dlrm, without_last_step):
    (path,) = dlrm.glob(f"worker{rank}_*")
    found = break_down_time(without_last_step(path))
    compute, other, idle, overlap = DLRM[rank]
    assert found.computing_s * 1e6 == pytest.approx(compute)
    assert (found.busy_share * found.window_s - found.computing_s) * 1e6 == pytest.approx(other)
    assert sum(found.idle_s.values()) * 1e6 == pytest.approx(idle)
    assert found.communication_overlap == pytest.approx(overlap / 100, abs=5e-5)

"""Collectives of timelines written down here, bus bandwidth by nccl-tests' formulas, and real traces by hand."""

from __future__ import annotations

import json

import pytest

from measured import DATA
from paleo_lite.profile_analysis.activity import COLUMNS, ActivityRecorder
from paleo_lite.profile_analysis.collectives import Message, bus_bandwidth, collective_times, list_collectives
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.table import batch_of


def message(collective: str, inside: int, outside: int, group: int, dtype: str = "Float") -> str:
    return json.dumps({"collective": collective, "dtype": dtype, "in": inside, "out": outside, "group": group})


@pytest.mark.parametrize(
    ("collective", "inside", "outside", "expected"),
    [  # doc/PERFORMANCE.md of NVIDIA/nccl-tests: S / t times the factor, S the whole buffer; 8 devices, 1 s, fp32.
        ("allreduce", 1000, 1000, 4000 * 2 * 7 / 8),
        ("allreduce_coalesced", 1000, 1000, 4000 * 2 * 7 / 8),
        ("_allgather_base", 1000, 8000, 32000 * 7 / 8),
        ("_reduce_scatter_base", 8000, 1000, 32000 * 7 / 8),
        ("all_to_allv", 8000, 8000, 32000 * 7 / 8),
        ("broadcast", 1000, 1000, 4000),
        ("reduce", 1000, 1000, 4000),
        ("send", 1000, 0, 4000),
    ],
)
def test_bus_bandwidth_is_nccl_tests(collective, inside, outside, expected):
    assert bus_bandwidth(Message(collective, "Float", inside, outside, 8), 1, 1.0) == pytest.approx(expected)


def test_unknown_message_size_has_no_bandwidth():
    for known in (Message("barrier", "Float", 8, 8, 8), Message("allreduce"), Message("allreduce", "Tensor", 8, 8, 8)):
        assert bus_bandwidth(known, 1, 1.0) is None
    assert bus_bandwidth(Message("allreduce", "Float", 8, 8, 8), 1, 0.0) is None


def test_collectives_by_message_size_and_exposed_time():
    names = ("category", "kernel", "start_ns", "duration_ns", "device", "params")
    text = message("allreduce", 1000, 1000, 2)
    rows = [
        ("kernel", "sgemm", 0, 100.0, 0, None),
        ("communication", "ncclKernel_AllReduce", 50, 100.0, 0, text),  # 50 of it exposed
        ("communication", "ncclKernel_AllReduce", 200, 100.0, 0, text),  # all of it
        ("communication", "ncclDevKernel_Broadcast_RING_LL(int)", 60, 10.0, 0, None),  # nothing of it
        ("communication", "ncclDevKernel_Generic(int)", 60, 10.0, 1, "[[2]]"),  # on a device where nothing computes
    ]
    activity = ActivityRecorder()
    activity.add(batch_of(dict(zip(names, map(list, zip(*rows)))), len(rows), names))
    found = list_collectives(activity.recording())
    assert [(row.collective, row.calls, row.devices) for row in found] == [
        ("allreduce", 2, 2), ("Broadcast", 1, None), ("Generic", 1, None)
    ]  # fmt: skip
    assert [row.exposed_s for row in found] == pytest.approx([150e-9, 0, 10e-9])
    assert found[0].bytes == 4000 and found[0].bus_bandwidth_bytes_per_s == pytest.approx(8000 / 200e-9)


def test_times_of_each_call_are_in_the_order_of_their_starts():
    names = ("category", "kernel", "start_ns", "duration_ns", "device", "params")
    text = message("allreduce", 1000, 1000, 2)
    rows = [
        ("communication", "ncclDevKernel_Broadcast_RING_LL(int)", 900, 10.0, 0, None),
        ("communication", "ncclKernel_AllReduce", 500, 30.0, 0, text),
        ("communication", "ncclKernel_AllReduce", 100, 50.0, 0, text),
        ("kernel", "sgemm", 200, 100.0, 0, None),
    ]
    activity = ActivityRecorder()
    activity.add(batch_of(dict(zip(names, map(list, zip(*rows)))), len(rows), names))
    assert activity.recording().names[0].startswith("ncclDevKernel_Broadcast")
    assert collective_times(activity.recording()) == {
        Message("allreduce", "Float", 1000, 1000, 2): pytest.approx([50e-9, 30e-9]),
        Message("Broadcast"): pytest.approx([10e-9]),
    }


@pytest.mark.needs_data
def test_collectives_of_real_traces():
    activity = ActivityRecorder()
    for batch in open_profile(DATA / "profiles" / "tracelens" / "b200_eager_trace.json.gz").batches(COLUMNS):
        activity.add(batch)
    reduce, gather = list_collectives(activity.recording())
    assert (reduce.collective, reduce.calls, reduce.bytes) == ("multimem_all_reduce_kernel", 73, None)  # none of NCCL's
    # "Out msg nelems": 201088, "dtype": "BFloat16", "Group size": 8, and the kernel's "dur": 21.953
    assert (gather.collective, gather.devices, gather.bytes, gather.calls) == ("_allgather_base", 8, 402_176, 1)
    assert gather.bus_bandwidth_bytes_per_s == pytest.approx(402_176 * 7 / 8 / 21.953e-6, rel=1e-6)

"""Comparison of the ranks of a job: synthetic ranks, and eight ranks of DLRM."""

from __future__ import annotations

from pathlib import Path

import pytest

from paleo_lite import efficiency
from paleo_lite.profile_analysis.collectives import Message
from paleo_lite.profile_analysis.critical_path import CriticalPath
from paleo_lite.profile_analysis.device_time import DeviceTime, TimeBreakdown
from paleo_lite.profile_analysis.ranks import compare_ranks

REDUCE = Message("allreduce", "Float", 1000, 1000, 2)


def rank(number: int, computing_s: float, exchanges: dict[Message, list[float]]) -> tuple[int, Path, DeviceTime]:
    communication_s = sum(map(sum, exchanges.values()))
    idle = TimeBreakdown(1, 0.5, 10.0, computing_s, communication_s, communication_s, 0.0, 0.0, 0.0, {}, [])
    return number, Path(f"rank{number}"), DeviceTime(1.0, idle, [], None, exchanges, CriticalPath(None, 0.0, {}, []))


def test_who_waits_least_is_waited_for():
    found = compare_ranks(
        [rank(1, 3.0, {REDUCE: [1.0, 4.0]}), rank(0, 1.0, {REDUCE: [2.0, 1.0]}), rank(2, 2.0, {REDUCE: [3.0, 4.0]})]
    )
    assert [row.rank for row in found.rows] == [0, 1, 2]
    # The exchanges took 1 s each, the shortest of 2, 1, 3 and of 1, 4, 4.
    assert [row.waiting_s for row in found.rows] == pytest.approx([1.0, 3.0, 5.0])
    assert found.straggler == 0 and found.matched == 2
    assert found.imbalance == pytest.approx(3.0 / 2.0 - 1)
    (reduce,) = found.collectives
    assert reduce.time_s == pytest.approx(2.0) and reduce.exposed_s is None
    assert reduce.bus_bandwidth_bytes_per_s == pytest.approx(2 * 4000 / 2.0)  # of nccl-tests, 2 (n - 1) / n is 1


def test_collectives_that_one_trace_lacks_are_not_matched():
    found = compare_ranks([rank(0, 1.0, {REDUCE: [2.0, 1.0]}), rank(1, 1.0, {REDUCE: [1.0]})])
    assert found.straggler is None and found.matched == 0 and not found.collectives
    assert [row.waiting_s for row in found.rows] == [0.0, 0.0]


@pytest.mark.needs_data
def test_stragglers_of_eight_ranks_are_holistic_trace_analysis(dlrm):
    """get_potential_stragglers of HolisticTraceAnalysis 0.5.0, which names the two that come last: 2 and 7."""
    found = efficiency(dlrm, gpu="v100-sxm2")
    rows = sorted(found.ranks.rows, key=lambda row: row.waiting_s)
    assert {row.rank for row in rows[:2]} == {2, 7} and found.ranks.straggler == rows[0].rank
    assert [row.rank for row in found.ranks.rows] == list(range(8))
    title = {table.title: table for table in found.document().tables}
    assert len(title["By rank"].rows) == 8
    assert found.to_dict()["ranks"]["rows"][7]["file"].startswith("worker7_")


@pytest.mark.needs_data
def test_profiles_of_one_rank_are_no_job(dlrm):
    (path,) = dlrm.glob("worker3_*")
    assert efficiency(path, gpu="v100-sxm2").ranks is None

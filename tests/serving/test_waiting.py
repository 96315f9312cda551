"""Requests on their way to the scheduler, and the line in which they wait for admission."""

from __future__ import annotations

import math
from heapq import heappop
from typing import Any

import numpy as np
import pytest

from paleo_lite.engines.records import find_server
from paleo_lite.serving.adapters import AdapterSlots
from paleo_lite.serving.options import SimulationOptions
from paleo_lite.serving.requests import Traffic
from paleo_lite.serving.waiting import Arrivals, WaitingLine


def requests(count: int, **others: Any) -> Traffic:
    ones = np.ones(count, dtype=np.int64)
    return Traffic(np.arange(count, dtype=np.float64), ones, ones, **others)


def test_a_request_waits_behind_all_that_are_as_urgent() -> None:
    """What was preempted has waited before, and goes before those that are as urgent."""
    line = WaitingLine(requests(6, priorities=np.array([1, 0, 1, 0, 0, 1])), SimulationOptions())
    for request in range(4):
        line.join(request, 0.0)
    assert list(line) == [1, 3, 0, 2]
    line.join_again(4)
    line.join_again(5)
    assert list(line) == [4, 1, 3, 5, 0, 2]


def test_without_priorities_the_first_to_come_is_the_first_to_be_served() -> None:
    line = WaitingLine(requests(3), SimulationOptions())
    line.join(0, 0.0)
    line.join(1, 0.0)
    line.join_again(2)
    assert list(line) == [2, 0, 1]


def test_a_request_leaves_after_the_longest_wait_unless_it_was_admitted_before() -> None:
    line = WaitingLine(requests(4), SimulationOptions(waiting_timeout_s=5.0))
    for request in range(3):
        line.join(request, float(request))
    line.leave_admitted()  # request 0, which is preempted
    line.join_again(0)
    assert line.leave_late(6.0) == []
    assert line.leave_late(6.5) == [1]
    assert list(line) == [0, 2]
    assert line.leave_late(math.inf) == [2]
    assert line.leave_late(math.inf) == [] and list(line) == [0]


def test_a_line_is_full_from_the_most_requests_on() -> None:
    line = WaitingLine(requests(3), SimulationOptions(most_queued=1))
    assert not line.is_full
    line.join(0, 0.0)
    assert line.is_full
    assert not WaitingLine(requests(3), SimulationOptions()).is_full


def test_requests_of_adapters_in_the_batch_pass_those_that_wait_for_a_slot() -> None:
    traffic = requests(4, adapters=np.array([0, 1, 1, 0]))
    slots = AdapterSlots(traffic, 1, 0.0)
    line = WaitingLine(traffic, SimulationOptions())
    for request in (1, 2, 3):
        line.join(request, 0.0)
    slots.admit(0)
    line.let_pass(slots)
    assert list(line) == [3, 1, 2]


@pytest.mark.parametrize(("repeats_after", "sent"), [(0, [[0, 1], [2], [3], [4], [5], []]), (2, [[0, 1], [], [2, 3]])])
def test_users_send_the_next_request_when_one_is_answered(repeats_after: int, sent: list[list[int]]) -> None:
    """Where users begin again together, all wait until the requests of all are answered."""
    engine = find_server("vllm", request_overhead_s=0.0)
    traffic = requests(6, concurrency=2, repeats_after=repeats_after)
    arriving = Arrivals(traffic, engine, SimulationOptions(prompts_are_cached=True), is_fed=False)
    for answered, expected in enumerate(sent):
        if answered:
            arriving.send_next(answered, 10.0 * answered)
            assert [arriving.sent_s[request] for request in expected] == [10.0 * answered] * len(expected)
        assert [heappop(arriving)[1] for _ in range(len(arriving))] == expected


def test_a_fleet_hands_requests_over_itself() -> None:
    engine = find_server("vllm")
    arriving = Arrivals(requests(2), engine, SimulationOptions(), is_fed=True)
    assert not arriving
    arriving.send(1, 7.0)
    time_s, request, is_seen = arriving[0]
    assert time_s == 7.0 + arriving.delay_s[1] and request == 1 and not is_seen

"""The union of intervals against the plain definition: count the nanoseconds that something covers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.profile_analysis.activity import BusyTime, merge_intervals
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

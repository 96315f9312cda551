"""Innermost intervals, compared with exhaustive search, and directions in a small synthetic training step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from paleo_lite.profiles.launches import (
    BPROP,
    FPROP,
    LONGEST_PATH,
    OPERATION,
    UPDATE,
    HostRange,
    Links,
    MarkedSteps,
    Nest,
    ProgramPaths,
)
from strategies import nested_calls


@pytest.mark.thorough
@given(nested_calls())
def test_innermost_is_that_of_looking_at_every_interval(calls):
    thread, start, end = np.array(calls, dtype=np.int64).reshape(-1, 3).T
    times = np.array([(t, time) for t in range(3) for time in range(-1, max(end, default=0) + 2)])
    found = Nest(thread.astype(np.int32), start, end).innermost(times[:, 0], times[:, 1])
    for (of, time), index in zip(times, found):
        around = [i for i in range(len(start)) if thread[i] == of and start[i] <= time < end[i]]
        assert index == max(around, key=lambda i: (start[i], -end[i]), default=-1)


def operations(*rows) -> np.ndarray:
    return np.array(
        [(-1, thread, start, end, 0, -1, sequence, own) for thread, start, end, sequence, own in rows], OPERATION
    )


def test_directions():
    """The number of a forward operation is that of the last one to begin with it: earlier ones only bear it."""
    table = operations(
        (0, 0, 5, 7, -1),  # before the graph grew: no direction
        (0, 10, 20, 7, -1),  # forward
        (0, 12, 15, -1, -1),  # inside of it
        (1, 30, 40, 7, BPROP),
        (1, 31, 35, -1, -1),
        (0, 50, 60, -1, UPDATE),
        (0, 51, 52, 99, -1),
        (0, 70, 80, 7, -1),  # begins after the backward
    )
    expected = [-1, FPROP, FPROP, BPROP, BPROP, UPDATE, UPDATE, -1]
    assert Links(
        table, np.empty(0, [("correlation", "i8"), ("thread", "i4"), ("start", "i8")]), True
    ).direction.tolist() == (expected)


def test_the_paths_of_ranges_within_each_other_have_a_longest():
    """They once had the square of the number of ranges: 20,000 of them took 2 GB."""

    def characters(depth):
        ranges = [HostRange(f"range {number}", 1, number, 3 * depth - number) for number in range(depth)]
        none = np.empty(0, np.int64)
        paths = ProgramPaths(ranges, MarkedSteps([], none, none))
        deepest = paths.names[paths.find(np.array([1]), np.array([depth]))[0]]
        assert deepest.startswith("range 0/range 1/") and LONGEST_PATH - 20 < len(deepest) <= LONGEST_PATH
        return sum(map(len, paths.names))

    assert characters(800) <= 2 * characters(400)

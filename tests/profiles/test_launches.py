"""Innermost intervals against looking at every one, and directions of a small made-up training step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.profiles.launches import BPROP, FPROP, OPERATION, UPDATE, Links, Nest

# A tree of lengths: each interval holds its children one after another, with a gap of 1 before each.
TREES = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=25)


def laid_out(tree: list, start: int, found: list[tuple[int, int]]) -> int:
    """Append the intervals of a tree, parents first; returns the end."""
    place = len(found)
    found.append((start, 0))
    end = start
    for child in tree:
        end = laid_out(child, end + 1, found)
    found[place] = (start, end + 1)
    return end + 1


@given(st.lists(st.tuples(st.integers(0, 2), TREES), max_size=6), st.integers(0, 2**32 - 1))
def test_innermost_is_that_of_looking_at_every_interval(trees, seed):
    threads, intervals, last = [], [], {}
    for thread, tree in trees:
        found = []
        last[thread] = laid_out(tree, last.get(thread, 0), found)  # may touch the one before
        threads += [thread] * len(found)
        intervals += found
    shuffle = np.random.default_rng(seed).permutation(len(intervals))
    thread = np.array(threads, dtype=np.int32)[shuffle] if threads else np.empty(0, np.int32)
    start, end = np.array(intervals, dtype=np.int64).reshape(-1, 2)[shuffle].T
    times = np.array([(t, time) for t in range(3) for time in range(-1, max(last.values(), default=0) + 2)])
    found = Nest(thread, start, end).innermost(times[:, 0], times[:, 1])
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

"""Which ranges are iterations, on ranges written down here.

Tests: profiles/launches.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.profiles.launches import find_steps

LAUNCHES = np.arange(0, 100)


def steps(*ranges: tuple[str, int, int], launches=LAUNCHES) -> list[str]:
    names, starts, ends = zip(*ranges)
    return find_steps(names, np.array(starts), np.array(ends), launches).names


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([("ProfilerStep#7", 0, 10), ("train 1", 0, 50), ("train 2", 50, 100)], ["ProfilerStep#7"]),
        ([("train 2", 50, 100), ("train 1", 0, 50)], ["train 1", "train 2"]),
        ([("step", 0, 50), ("step", 50, 100)], ["step 1", "step 2"]),
        # Blocks within a step, and one epoch around all of them.
        ([("epoch", 0, 100), ("step", 0, 50), ("step", 50, 100), *[("block", i, i + 10) for i in range(0, 100, 10)]],
         ["step 1", "step 2"]),
        ([("step", 0, 60), ("step", 40, 100)], []),  # they overlap
        ([("optimizer", 40, 50), ("optimizer", 90, 100)], []),  # around little of what was launched
        ([("all", 0, 100)], []),
        ([("batch", 0, 0), ("batch", 50, 50), ("end", 99, 99)], ["batch 1", "batch 2"]),  # marks without a length
    ],
)  # fmt: skip
def test_marks_that_are_iterations(ranges, expected):
    assert steps(*ranges) == expected


def test_no_marks_without_launches():
    assert steps(("step", 0, 50), ("step", 50, 100), launches=np.empty(0, np.int64)) == []


def test_an_iteration_holds_its_start_and_not_its_end():
    found = find_steps(["a 1", "a 2"], np.array([10, 40]), np.array([20, 50]), np.array([10, 45]))
    assert found.find(np.array([9, 10, 19, 20, 39, 40, 49, 50])).tolist() == [-1, 0, 0, -1, -1, 1, 1, -1]

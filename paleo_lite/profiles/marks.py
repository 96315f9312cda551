"""Which ranges that a program marked are its iterations.

PyTorch's profiler marks each call of its ``step`` (``ProfilerStep#3``); those win. Else what a program marks itself
(``record_function("train_step")``, NVTX) is taken for iterations where it comes at least twice under one name but for
its digits, one after the other, and around almost everything that was launched. Of several such, one in the other, the
outermost: a network's blocks come within its steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

PROFILER_STEP = "ProfilerStep"
"""What PyTorch calls a step begins like this."""

COVERED = 0.9
"""Share of the launches that marks must be around to be iterations."""

_DIGITS = re.compile(r"\d+")


class Steps(NamedTuple):
    """Iterations that a program marked, in the order of time.

    Attributes
    ----------
    names : list of str
        Each once: marks that are called alike are numbered from 1.
    starts, ends : ndarray of int64, shape (iterations,)
        In nanoseconds.
    """

    names: list[str]
    starts: Integers
    ends: Integers

    def find(self, times: Integers) -> Integers:
        """The iteration that each time is in, -1 for none."""
        if not self.names:
            return np.full(len(times), -1, dtype=np.int64)
        place = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((place >= 0) & (times < self.ends[place]), place, -1)


def find_steps(names: Sequence[str], starts: Integers, ends: Integers, launches: Integers) -> Steps:
    """The iterations among ranges.

    Parameters
    ----------
    names : sequence of str, length n
    starts, ends : ndarray of int64, shape (n,)
    launches : ndarray of int64
        When work was given to the device.
    """
    families: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        families.setdefault(_DIGITS.sub("#", name), []).append(place)
    times = np.sort(launches)
    best, longest = Steps([], np.empty(0, np.int64), np.empty(0, np.int64)), 0.0
    for family, members in families.items():
        order = np.array(sorted(members, key=lambda place: (starts[place], ends[place])))
        begin, end = starts[order], ends[order]
        if (begin[1:] < end[:-1]).any():
            continue
        found = Steps(_numbered([names[place] for place in order]), begin, end)
        if family.startswith(PROFILER_STEP):
            return found
        inside = int((np.searchsorted(times, end) - np.searchsorted(times, begin)).sum())
        length = float(np.median(end - begin))
        if len(order) > 1 and inside >= COVERED * len(times) > 0 and length > longest:
            best, longest = found, length
    return best


def _numbered(names: list[str]) -> list[str]:
    if len({*names}) == len(names):
        return names
    return [f"{name} {number}" for number, name in enumerate(names, 1)]

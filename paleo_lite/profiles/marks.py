"""Which ranges that a program marked are its iterations.

PyTorch's profiler marks each call of its ``step`` (``ProfilerStep#3``); those win. Else what a program marks itself
(``record_function("train_step")``, NVTX) is taken for iterations where it comes at least twice under one name but for
its digits, one after the other, and around almost everything that was launched. Of several such, one in the other, the
outermost: a network's blocks come within its steps. A mark without a length lasts to the next of its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from .table import coded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

PROFILER_STEP = "ProfilerStep"
"""What PyTorch calls a step begins like this."""

COVERED = 0.9
"""Share of the launches that marks must be around to be iterations."""

_DIGITS = re.compile(r"\d+")


class MarkedSteps(NamedTuple):
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
        step = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((step >= 0) & (times < self.ends[step]), step, -1)


class Launched:
    """In which iteration events on a device were launched.

    Parameters
    ----------
    steps : MarkedSteps
        When the host was in each.
    ran : MarkedSteps
        When the device was, where the profiler says so; else the same.
    launches : structured ndarray
        All launches, see `launches.LAUNCH`.

    Attributes
    ----------
    steps : MarkedSteps
    launches : structured ndarray
        By correlation.
    """

    def __init__(self, steps: MarkedSteps, ran: MarkedSteps, launches: NDArray[Any]) -> None:
        self.steps, self._ran = steps, ran
        self.launches = launches[np.argsort(launches["correlation"], kind="stable")]

    def find(self, correlation: Integers) -> Integers:
        """The place in `launches` of what launched each event, by its correlation; -1 where none is known."""
        keys = self.launches["correlation"]
        if not len(keys):
            return np.full(len(correlation), -1, dtype=np.int64)
        launch = np.minimum(np.searchsorted(keys, correlation), len(keys) - 1)
        return np.where((keys[launch] == correlation) & (correlation >= 0), launch, -1)

    def columns(self, correlation: Integers, start: Integers, base_ns: int = 0) -> dict[str, pa.Array]:
        """`launch_ns` and `step` of events.

        What no known call launched is of the step in which it began: at a trace's begin that is often the last step
        before it, whose launches were not traced.
        """
        launch = self.find(correlation)
        time = start.copy()
        time[launch >= 0] = self.launches["start"][launch[launch >= 0]]
        step = np.where(launch >= 0, self.steps.find(time), self._ran.find(start))
        return {"launch_ns": pa.array(time + base_ns, mask=launch < 0), "step": coded(step, self.steps.names)}


def find_steps(names: Sequence[str], starts: Integers, ends: Integers, launches: Integers) -> MarkedSteps:
    """The iterations among ranges.

    Parameters
    ----------
    names : sequence of str, length n
    starts, ends : ndarray of int64, shape (n,)
    launches : ndarray of int64
        When work was given to the device.
    """
    families: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        families.setdefault(_DIGITS.sub("#", name), []).append(index)
    times = np.sort(launches)
    best, longest = MarkedSteps([], np.empty(0, np.int64), np.empty(0, np.int64)), 0.0
    for family, members in families.items():
        order = np.array(sorted(members, key=lambda index: (starts[index], ends[index])))
        begin, end = starts[order], ends[order].copy()
        if len(times) and (begin == end).all():
            end = np.append(begin[1:], max(times[-1] + 1, begin[-1] + 1))
        if (begin[1:] < end[:-1]).any():
            continue
        steps = MarkedSteps(_numbered([names[index] for index in order]), begin, end)
        if family.startswith(PROFILER_STEP):
            return steps
        inside = int((np.searchsorted(times, end) - np.searchsorted(times, begin)).sum())
        length = float(np.median(end - begin))
        if len(order) > 1 and inside >= COVERED * len(times) > 0 and length > longest:
            best, longest = steps, length
    return best


def _numbered(names: list[str]) -> list[str]:
    if len({*names}) == len(names):
        return names
    return [f"{name} {number}" for number, name in enumerate(names, 1)]

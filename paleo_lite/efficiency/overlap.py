"""How long a device was busy: the union of the intervals of its kernels, so that overlapping ones count once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

KEPT = 2**20
"""Busy intervals that are kept open for a late kernel; traces of several streams are sorted but for a little."""


class BusyTime:
    """The union of intervals, per device, in bounded memory as long as they come nearly sorted.

    Parameters
    ----------
    kept : int or None
        How many disjoint intervals per device stay open. An interval that starts before those that are closed cannot
        be counted any more: `sorted` becomes False, and the caller adds everything to a ``BusyTime(None)``, which
        keeps them all.
    """

    def __init__(self, kept: int | None = KEPT) -> None:
        self.sorted = True
        self._kept = kept
        self._open: dict[int, tuple[Integers, Integers]] = {}
        self._closed_ns: dict[int, int] = {}
        self._horizon: dict[int, int] = {}

    def add(self, starts_ns: Integers, durations_ns: NDArray[np.float64], devices: Integers) -> None:
        """Add kernels.

        Parameters
        ----------
        starts_ns : ndarray of int64, shape (kernels,)
        durations_ns : ndarray of float64, shape (kernels,)
            Without NaN and not negative.
        devices : ndarray of int64, shape (kernels,)
        """
        for device in np.unique(devices):
            chosen = devices == device
            starts = starts_ns[chosen]
            ends = starts + np.rint(durations_ns[chosen]).astype(np.int64)
            self._add(int(device), starts, ends)

    def _add(self, device: int, starts: Integers, ends: Integers) -> None:
        if device in self._horizon and starts.min() < self._horizon[device]:
            self.sorted = False
        if device in self._open:
            before_starts, before_ends = self._open[device]
            starts, ends = np.concatenate([before_starts, starts]), np.concatenate([before_ends, ends])
        starts, ends = merge(starts, ends)
        if self._kept is not None and len(starts) > self._kept:
            closed = len(starts) - self._kept // 2
            self._closed_ns[device] = self._closed_ns.get(device, 0) + int((ends[:closed] - starts[:closed]).sum())
            self._horizon[device] = int(ends[closed - 1])
            starts, ends = starts[closed:], ends[closed:]
        self._open[device] = starts, ends

    @property
    def seconds(self) -> dict[int, float]:
        """Busy seconds of each device."""
        return {
            device: (self._closed_ns.get(device, 0) + int((ends - starts).sum())) * 1e-9
            for device, (starts, ends) in sorted(self._open.items())
        }


def merge(starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Disjoint, sorted intervals that cover the same time; intervals that touch become one.

    Parameters
    ----------
    starts, ends : ndarray of int64, shape (intervals,)
        At least one; no end before its start.
    """
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reach = np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return starts[first], reach[last]

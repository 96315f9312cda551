"""What ran when on the devices of a profile, what the host called meanwhile, and how long anything ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..profiles.names import classify
from ..profiles.table import device_rows, numbers, places, values_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

COLUMNS = (
    "category", "kernel", "start_ns", "duration_ns", "device", "stream", "step", "launch_ns", "thread", "params",
)  # fmt: skip
"""What is read of a profile."""

KEPT = 2**20
"""Busy intervals that are kept open for a late kernel; traces of several streams are sorted but for a little."""

COMPUTE, COMMUNICATION, COPY = range(3)
"""What an event on a device is: computation is every kernel but collectives, copies and fills."""

_LANES = {"communication": COMMUNICATION, "memcpy": COPY, "memset": COPY}
_HOST_KEPT_NS = 10_000  # operations of the host shorter than this explain no gap that is listed

EVENT = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("launch", "i8"),  # when the call that launched it began, -1 where the profile does not say
        ("device", "i8"),
        ("stream", "i8"),
        ("name", "i4"),  # place in `names`
        ("step", "i4"),  # place in the steps, -1 outside of all
        ("message", "i4"),  # of a collective, place in `messages`, -1 without
        ("lane", "i1"),
    ]
)
CALL = np.dtype([("start", "i8"), ("end", "i8"), ("name", "i4"), ("kind", "i1")])

API, OPERATION, MARK = range(3)
"""What a call is: one of the runtime, an operation of the framework, a range that the program marked."""

_KINDS = {"api": API, "cpu": OPERATION, "marker": MARK}


class Recorded(NamedTuple):
    """Events on devices and calls on the host, in nanoseconds.

    Attributes
    ----------
    events : structured ndarray
        See `EVENT`; at least one.
    calls : structured ndarray
        See `CALL`: calls of the runtime, and operations and ranges that took long, in the order of time.
    names : list of str
        Of kernels, calls and operations.
    steps : list of str
        Iterations that the program marked.
    messages : list of str
        What collectives carried, as the profiler printed it.
    """

    events: NDArray[Any]
    calls: NDArray[Any]
    names: list[str]
    steps: list[str]
    messages: list[str]


class Activity:
    """The device's rows of a profile, and what on the host took long, gathered batch by batch."""

    def __init__(self) -> None:
        self._known = True
        self._device: list[NDArray[Any]] = []
        self._host: list[NDArray[Any]] = []
        self._names: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._messages: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns `COLUMNS`."""
        if not self._known or "start_ns" not in batch.schema.names:
            self._known = False
            return
        rows = device_rows(batch)
        if rows.column("start_ns").null_count:
            self._known = False
            return
        if rows.num_rows:
            self._device.append(self._of_device(rows))
        if "category" in batch.schema.names:
            self._add_host(batch)

    def recorded(self, steps: list[str] | None = None) -> Recorded | None:
        """What ran; None where the profile has no start times, or nothing ran.

        Parameters
        ----------
        steps : list of str, optional
            Only what was launched in iterations that are marked so.
        """
        if not self._known or not self._device:
            return None
        events = np.concatenate(self._device)
        if steps is not None:
            events = events[np.isin(events["step"], [self._steps.get(name, -2) for name in steps])]
        calls = np.concatenate(self._host) if self._host else np.empty(0, CALL)
        calls = calls[np.argsort(calls["start"], kind="stable")]
        return (
            Recorded(events, calls, list(self._names), list(self._steps), list(self._messages)) if len(events) else None
        )

    def seconds(self) -> dict[str, float] | None:
        """The time of every kernel that is no copy and no collective; None where `recorded` is."""
        if not self._known or not self._device:
            return None
        sums = np.zeros(len(self._names))
        for events in self._device:
            lasted = (events["end"] - events["start"]) * (events["lane"] == COMPUTE)
            sums += np.bincount(events["name"], lasted * 1e-9, len(sums))
        return {name: sums[number] for name, number in self._names.items() if sums[number]}

    def _of_device(self, rows: pa.RecordBatch) -> NDArray[Any]:
        events = np.empty(rows.num_rows, EVENT)
        events["start"] = rows.column("start_ns").to_numpy()
        events["end"] = events["start"] + np.rint(numbers(rows, "duration_ns")).astype(np.int64)
        for name in ("device", "stream"):
            events[name] = places(rows, name)
        events["launch"] = -1
        if "launch_ns" in rows.schema.names:
            events["launch"] = rows.column("launch_ns").fill_null(-1).to_numpy()
        events["name"] = _codes(rows, "kernel", self._names)
        events["step"] = _codes(rows, "step", self._steps)
        events["lane"] = _lanes(rows)
        events["message"] = -1
        collective = events["lane"] == COMMUNICATION
        if collective.any():
            events["message"][collective] = _codes(rows.filter(pa.array(collective)), "params", self._messages)
        return events

    def _add_host(self, batch: pa.RecordBatch) -> None:
        category, words = values_of(batch, "category")
        kind = np.array([_KINDS.get(word, -1) for word in words])[category]
        duration = numbers(batch, "duration_ns", 0.0)
        lasting = (kind == API) | ((kind >= 0) & (duration >= _HOST_KEPT_NS))
        if "thread" in batch.schema.names:
            lasting &= batch.column("thread").is_valid().to_numpy(zero_copy_only=False)
        chosen = np.flatnonzero(lasting)
        if len(chosen) and not batch.column("start_ns").null_count:
            calls = np.empty(len(chosen), CALL)
            calls["start"] = batch.column("start_ns").to_numpy()[chosen]
            calls["end"] = calls["start"] + np.rint(duration[chosen]).astype(np.int64)
            calls["name"] = _codes(batch, "kernel", self._names)[chosen]
            calls["kind"] = kind[chosen]
            self._host.append(calls)


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


def length(*several: NDArray[Any]) -> int:
    """Nanoseconds in which any of some events ran."""
    events = np.concatenate(several)
    if not len(events):
        return 0
    starts, ends = merge(events["start"], events["end"])
    return int((ends - starts).sum())


def _codes(rows: pa.RecordBatch, column: str, known: dict[str, int]) -> NDArray[np.int64]:
    """Places of a column's texts in what is `known`, which grows by those that are used; -1 for none."""
    code, words = values_of(rows, column)
    used = np.unique(code[code > 0])
    of_word = np.full(len(words), -1)
    of_word[used] = [known.setdefault(words[place] or "", len(known)) for place in used.tolist()]
    return of_word[code]


def _lanes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """Computation, communication or copy, by category and, of profilers that have none for collectives, by name."""
    category, words = values_of(rows, "category")
    kernel, names = values_of(rows, "kernel")
    pairs, which = np.unique(kernel * len(words) + category, return_inverse=True)
    labels = [
        classify(names[pair // len(words)] or "", words[pair % len(words)] or "kernel").label for pair in pairs.tolist()
    ]
    return np.array([_LANES.get(label, COMPUTE) for label in labels])[which]

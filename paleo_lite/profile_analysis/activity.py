"""Device events and host calls of a profile as arrays, and the time covered by intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..profiles.names import classify
from ..profiles.table import Records, device_rows, float_column, integer_column, values_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

COLUMNS = (
    "category",
    "kernel",
    "start_ns",
    "duration_ns",
    "device",
    "stream",
    "step",
    "launch_ns",
    "thread",
    "params",
)
"""Columns of a profile that are read."""

OPEN_INTERVALS = 2**20
"""Busy intervals per device that stay open for late kernels: traces of several streams are only nearly sorted."""

COMPUTE, COMMUNICATION, COPY, FILL = range(4)
"""Classes of device events. Computation is every kernel except collectives, copies and fills."""

_LANES = {"communication": COMMUNICATION, "memcpy": COPY, "memset": FILL}
_MIN_HOST_CALL_NS = 10_000  # shorter operations of the host cannot explain a gap that is long enough to be listed

EVENT = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("launch", "i8"),  # start of the call that launched the event; -1 if the profile does not record it
        ("device", "i8"),
        ("stream", "i8"),
        ("name", "i4"),  # index into `Recording.names`
        ("step", "i4"),  # index into `Recording.steps`; -1 outside all steps
        ("message", "i4"),  # of a collective: index into `Recording.messages`, -1 without a message
        ("lane", "i1"),  # COMPUTE, COMMUNICATION, COPY or FILL
    ]
)
CALL = np.dtype([("start", "i8"), ("end", "i8"), ("name", "i4"), ("kind", "i1")])

API, OPERATION, MARK = range(3)
"""Kinds of host calls: a call of the runtime, an operation of the framework, a range marked by the program."""

_KINDS = {"api": API, "cpu": OPERATION, "marker": MARK}


class Recording(NamedTuple):
    """Device events and host calls of a profile, with times in nanoseconds."""

    events: Records  # device events of type `EVENT`; at least one
    # Host calls of type `CALL`, sorted by start: all calls of the runtime, and long operations and ranges.
    calls: Records
    names: list[str]  # names of kernels, calls and operations
    steps: list[str]  # iterations marked by the program
    messages: list[str]  # messages of collectives, as the profiler printed them


class ActivityRecorder:
    """Collector of the device events and the long host calls of a profile, batch by batch."""

    def __init__(self) -> None:
        self._has_starts = True
        self._device_events: list[Records] = []
        self._host_calls: list[Records] = []
        self._names: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._messages: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns `COLUMNS`."""
        if not self._has_starts or "start_ns" not in batch.schema.names:
            self._has_starts = False
            return
        rows = device_rows(batch)
        if rows.column("start_ns").null_count:
            self._has_starts = False
            return
        if rows.num_rows:
            self._device_events.append(self._read_device_events(rows))
        if "category" in batch.schema.names:
            self._add_host_calls(batch)

    def recording(self, steps: list[str] | None = None) -> Recording | None:
        """Return the collected events and calls; None if the profile has no start times or no device events.

        With `steps`, only events that were launched in these marked iterations are kept.
        """
        if not self._has_starts or not self._device_events:
            return None
        events = np.concatenate(self._device_events)
        if steps is not None:
            step_codes = [self._steps.get(name, -2) for name in steps]
            events = events[np.isin(events["step"], step_codes)]
        if not len(events):
            return None
        calls = np.concatenate(self._host_calls) if self._host_calls else np.empty(0, CALL)
        calls = calls[np.argsort(calls["start"], kind="stable")]
        return Recording(events, calls, list(self._names), list(self._steps), list(self._messages))

    def kernel_seconds(self) -> dict[str, float] | None:
        """Return the summed time of each kernel, without copies and collectives; None where `recording` is None."""
        if not self._has_starts or not self._device_events:
            return None
        sums = np.zeros(len(self._names))
        for events in self._device_events:
            computing = events[(events["lane"] == COMPUTE) & (events["name"] >= 0)]  # -1 for an event without a name
            sums += np.bincount(computing["name"], (computing["end"] - computing["start"]) * 1e-9, len(sums))
        return {name: sums[code] for name, code in self._names.items() if sums[code]}

    def _read_device_events(self, rows: pa.RecordBatch) -> Records:
        events: Records = np.empty(rows.num_rows, EVENT)
        events["start"] = rows.column("start_ns").to_numpy()
        events["end"] = events["start"] + np.rint(float_column(rows, "duration_ns")).astype(np.int64)
        for name in ("device", "stream"):
            events[name] = integer_column(rows, name)
        events["launch"] = -1
        if "launch_ns" in rows.schema.names:
            events["launch"] = rows.column("launch_ns").fill_null(-1).to_numpy()
        events["name"] = _encode(rows, "kernel", self._names)
        events["step"] = _encode(rows, "step", self._steps)
        events["lane"] = _lanes(rows)
        events["message"] = -1
        is_collective = events["lane"] == COMMUNICATION
        if is_collective.any():
            collectives = rows.filter(pa.array(is_collective))
            events["message"][is_collective] = _encode(collectives, "params", self._messages)
        return events

    def _add_host_calls(self, batch: pa.RecordBatch) -> None:
        category_codes, categories = values_of(batch, "category")
        kind_of_category = np.array([_KINDS.get(category, -1) for category in categories])
        kind = kind_of_category[category_codes]
        duration = float_column(batch, "duration_ns", 0.0)
        is_kept = (kind == API) | ((kind >= 0) & (duration >= _MIN_HOST_CALL_NS))
        if "thread" in batch.schema.names:
            is_kept &= batch.column("thread").is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(is_kept)
        if len(rows) and not batch.column("start_ns").null_count:
            calls: Records = np.empty(len(rows), CALL)
            calls["start"] = batch.column("start_ns").to_numpy()[rows]
            calls["end"] = calls["start"] + np.rint(duration[rows]).astype(np.int64)
            calls["name"] = _encode(batch, "kernel", self._names)[rows]
            calls["kind"] = kind[rows]
            self._host_calls.append(calls)


class BusyTime:
    """The union of intervals per device, in bounded memory if the intervals come nearly sorted.

    Of each device `max_open` disjoint intervals stay open. An interval that starts before the closed ones can no longer
    be counted: `sorted` becomes False, and the caller must start again with ``BusyTime(None)``, which keeps all
    intervals open.
    """

    def __init__(self, max_open: int | None = OPEN_INTERVALS) -> None:
        self.sorted = True
        self._max_open = max_open
        self._open: dict[int, tuple[Integers, Integers]] = {}
        self._waiting: dict[int, list[tuple[Integers, Integers]]] = {}
        self._waits: dict[int, int] = {}  # number of waiting intervals
        self._closed_ns: dict[int, int] = {}
        self._horizon: dict[int, int] = {}

    def add(self, starts_ns: Integers, durations_ns: NDArray[np.float64], devices: Integers) -> None:
        """Add kernels, with arrays of shape (kernels,); durations are not negative and without NaN."""
        for device, on_device in positions_by_value(devices):
            starts = starts_ns[on_device]
            ends = starts + np.rint(durations_ns[on_device]).astype(np.int64)
            self._add_to_device(device, starts, ends)

    def _add_to_device(self, device: int, starts: Integers, ends: Integers) -> None:
        if device in self._horizon and starts.min() < self._horizon[device]:
            self.sorted = False
        self._waiting.setdefault(device, []).append((starts, ends))
        self._waits[device] = self._waits.get(device, 0) + len(starts)
        # Merged when they are as many as the open ones: each merge then doubles what it reads, so that the sum of all
        # merges grows with the number of intervals and not with its square.
        if device not in self._open or self._waits[device] >= len(self._open[device][0]):
            self._merge(device)

    def _merge(self, device: int) -> None:
        waiting = self._waiting.pop(device, [])
        self._waits[device] = 0
        if not waiting:
            return
        parts = [self._open[device], *waiting] if device in self._open else waiting
        starts, ends = merge_intervals(*(np.concatenate(times) for times in zip(*parts)))
        if self._max_open is not None and len(starts) > self._max_open:
            closed = len(starts) - self._max_open // 2
            newly_closed_ns = int((ends[:closed] - starts[:closed]).sum())
            self._closed_ns[device] = self._closed_ns.get(device, 0) + newly_closed_ns
            self._horizon[device] = int(ends[closed - 1])
            starts = starts[closed:]
            ends = ends[closed:]
        self._open[device] = starts, ends

    @property
    def seconds(self) -> dict[int, float]:
        """Busy seconds of each device."""
        for device in list(self._waiting):
            self._merge(device)
        busy = {}
        for device, (starts, ends) in sorted(self._open.items()):
            open_ns = int((ends - starts).sum())
            busy[device] = (self._closed_ns.get(device, 0) + open_ns) * 1e-9
        return busy


def positions_by_value(values: NDArray[Any]) -> Iterator[tuple[int, Integers]]:
    """Yield each distinct integer in ascending order, and its positions, sorted once for all of them."""
    if not len(values):
        return
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
    for start, end in zip(first.tolist(), [*first[1:].tolist(), len(order)]):
        yield int(ordered[start]), order[start:end]


def merge_intervals(starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Return disjoint, sorted intervals that cover the same time; intervals that touch become one.

    There is at least one interval, and no end before its start.
    """
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    latest_end = np.maximum.accumulate(ends[order])
    is_first = np.concatenate([[True], starts[1:] > latest_end[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    return starts[is_first], latest_end[is_last]


def covered_ns(*event_arrays: Records) -> int:
    """Return the nanoseconds during which at least one event of the arrays ran."""
    events: Records = np.concatenate(event_arrays)
    if not len(events):
        return 0
    starts, ends = merge_intervals(events["start"], events["end"])
    return int((ends - starts).sum())


def _encode(rows: pa.RecordBatch, column: str, code_of: dict[str, int]) -> NDArray[np.int64]:
    """Return the code of each row's text, -1 where it is null; new texts are added to `code_of`."""
    indices, texts = values_of(rows, column)
    occurring = np.unique(indices[indices > 0])
    code_of_index = np.full(len(texts), -1)
    for index in occurring.tolist():
        code_of_index[index] = code_of.setdefault(texts[index] or "", len(code_of))
    return code_of_index[indices]


def _lanes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the class of each event, by category, or by name where the profiler has no category for collectives."""
    category_codes, categories = values_of(rows, "category")
    name_codes, names = values_of(rows, "kernel")
    pairs, pair_of_row = np.unique(name_codes * len(categories) + category_codes, return_inverse=True)
    lanes = []
    for pair in pairs.tolist():
        name_code, category_code = divmod(pair, len(categories))
        label = classify(names[name_code] or "", categories[category_code] or "kernel").label
        lanes.append(_LANES.get(label, COMPUTE))
    return np.array(lanes)[pair_of_row]

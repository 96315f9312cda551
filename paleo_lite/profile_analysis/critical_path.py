"""The critical path of a step, walked from its end back to its beginning.

The rules are those of HolisticTraceAnalysis, without its graph. The last event on the device is on the path. An event
could begin when its predecessor on the stream had ended or, if it was launched after that, when the host launched it.
On the host, the path continues at the last call that waited for the device, and from there at the event that it waited
for. Not every trace records that one stream waits for another. An event is assumed to follow an event of another stream
if that event ended last before it, it began right at that end, and it had been launched earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..profiles.names import classify
from ..profiles.table import Records
from .activity import API, COMMUNICATION, COMPUTE, COPY, FILL, MARK, Recording, positions_by_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTS = {
    "computing": "kernels",
    "communication": "communication",
    "copies": "copies",
    "fills": "fills of memory",
    "between": "between kernels",
    "launch": "launching",
    "host": "the host",
}
"""Parts of the path, and their labels."""

_PART_OF_LANE = {COMPUTE: "computing", COMMUNICATION: "communication", COPY: "copies", FILL: "fills"}
_BLOCKING_CALLS = (
    "DeviceSynchronize",
    "StreamSynchronize",
    "EventSynchronize",
    "Memcpy",
    "MemcpyAsync",
    "MemcpyWithStream",
)
"""Calls of the CUDA and HIP runtime that may wait for the device, without the prefix."""

_MAX_DELAY_NS = 10_000
"""Longest delay between the end of an event and the begin of an event on another stream that waited for it. An event
that waited was also launched longer than this before that end."""


class CriticalPath(msgspec.Struct, frozen=True):
    """Critical path of a step."""

    step: str | None  # the program's mark of the step; None for a path of the whole profile
    time_s: float  # length of the path in seconds
    parts_s: dict[str, float]  # seconds by part (`PARTS`); they sum to `time_s`
    longest: list[tuple[str, float]]  # the kernels, copies and collectives with the most time on the path, in seconds


def find_critical_path(recording: Recording, step: str | None = None) -> CriticalPath:
    """Find the critical path of a step.

    `step` is the program's mark of it: the path begins where the mark begins, or where the device ends the step before.
    None asks for the path of the whole profile, which begins with the first launch.
    """
    events = recording.events
    in_step = np.ones(len(events), bool)
    if step is not None:
        in_step = events["step"] == recording.steps.index(step)
    path = _BackwardPath(_step_begin_ns(recording, in_step, step))
    predecessor, waited_for_predecessor = _predecessors(events)
    wait_ends, awaited_events = _host_waits(recording)
    event_index = int(np.flatnonzero(in_step)[np.argmax(events["end"][in_step])])
    end = int(events["end"][event_index])
    path.time = end
    visited: set[int] = set()  # events of length zero can follow each other in a circle
    while event_index >= 0 and in_step[event_index] and path.time > path.begin:
        visited.add(event_index)
        event = events[event_index]
        path.go_back(_PART_OF_LANE[int(event["lane"])], event["start"], int(event["name"]))
        previous = int(predecessor[event_index])
        if waited_for_predecessor[event_index] and previous not in visited:
            event_index = previous
            path.go_back("between", events["end"][event_index])
            continue
        path.go_back("launch", event["launch"] if event["launch"] >= 0 else path.begin)
        wait = int(np.searchsorted(wait_ends, path.time, side="right")) - 1
        while wait >= 0 and int(awaited_events[wait]) in visited:
            wait -= 1
        event_index = int(awaited_events[wait]) if wait >= 0 else -1
        path.go_back("host", events["end"][event_index] if event_index >= 0 else path.begin)
    return CriticalPath(
        step,
        (end - path.time) * 1e-9,
        {part: time_ns * 1e-9 for part, time_ns in path.parts.items()},
        [(classify(recording.names[name]).name, time_ns * 1e-9) for name, time_ns in path.longest()],
    )


class _BackwardPath:
    """A position that moves back in time, and the nanoseconds of each part that it passed."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.time = begin
        self.parts = dict.fromkeys(PARTS, 0)
        self._time_of_name: dict[int, int] = {}

    def go_back(self, part: str, target: int, name: int = -1) -> None:
        """Move back to a time, no further than the beginning and never forward."""
        target = min(max(int(target), self.begin), self.time)
        passed = self.time - target
        self.parts[part] += passed
        if name >= 0:
            self._time_of_name[name] = self._time_of_name.get(name, 0) + passed
        self.time = target

    def longest(self) -> list[tuple[int, int]]:
        return sorted(self._time_of_name.items(), key=lambda item: -item[1])[:3]


def _step_begin_ns(recording: Recording, in_step: NDArray[np.bool_], step: str | None) -> int:
    """Return the begin of the step's mark, else of the first launch."""
    marks = recording.calls[recording.calls["kind"] == MARK]
    if step in recording.names:
        starts = marks["start"][marks["name"] == recording.names.index(step)]
        if len(starts):
            return int(starts.min())
    events = recording.events[in_step]
    launches = events["launch"][events["launch"] >= 0]
    return int(np.concatenate([events["start"], launches]).min())


def _predecessors(events: Records) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return each event's predecessor (-1 without one), and whether it waited for that rather than for its launch."""
    predecessor = np.full(len(events), -1)
    order = np.lexsort((events["start"], events["stream"], events["device"]))
    streams = events[["device", "stream"]][order]
    predecessor[order[1:]] = np.where(streams[1:] == streams[:-1], order[:-1], -1)
    predecessor_end = np.where(predecessor >= 0, events["end"][predecessor], -1)
    waited = (predecessor >= 0) & (predecessor_end >= events["launch"])
    for _, on_device in positions_by_value(events["device"]):
        starts = events["start"][on_device]
        ends = events["end"][on_device]
        launches = events["launch"][on_device]
        by_end = on_device[np.argsort(ends, kind="stable")]
        # Searched before its own end, because an event of length zero would otherwise precede itself.
        latest = np.searchsorted(events["end"][by_end], np.minimum(starts, ends - 1), side="right") - 1
        other = np.where(latest >= 0, by_end[np.maximum(latest, 0)], -1)
        other_end = np.where(other >= 0, events["end"][other], -1)
        waited_for_other = (
            (other >= 0)
            & (other_end > predecessor_end[on_device])
            & (starts - other_end <= _MAX_DELAY_NS)
            & (other_end - launches > _MAX_DELAY_NS)
            & (launches >= 0)
        )
        predecessor[on_device[waited_for_other]] = other[waited_for_other]
        waited[on_device[waited_for_other]] = True
    return predecessor, waited


def _host_waits(recording: Recording) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted ends of the calls that waited for the device, and the event that each waited for.

    A call waited for the event that ended last before the call did, provided that it ended during the call.
    """
    is_blocking = [_is_blocking_call(name) for name in recording.names]
    calls = recording.calls
    calls = calls[(calls["kind"] == API) & np.array([*is_blocking, False])[calls["name"]]]
    calls = calls[np.argsort(calls["end"], kind="stable")]
    events = recording.events
    by_end = np.argsort(events["end"], kind="stable")
    latest = np.searchsorted(events["end"][by_end], calls["end"], side="right") - 1
    last_event = by_end[np.maximum(latest, 0)]
    waited = (latest >= 0) & (events["end"][last_event] > calls["start"])
    return calls["end"][waited], last_event[waited]


def _is_blocking_call(name: str) -> bool:
    if not name.startswith(("cuda", "hip")):
        return False
    return name.removeprefix("cuda").removeprefix("hip") in _BLOCKING_CALLS

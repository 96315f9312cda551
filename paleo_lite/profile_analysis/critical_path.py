"""What a step waited for, from its end back to its beginning: its critical path.

HolisticTraceAnalysis' rules, walked backwards and without its graph. What ran last on the device is on the path. It
could begin when what was before it on its stream had ended, or, where it had been launched only after that, when the
host had launched it. On the host the path goes back to the last call that waited for the device, and from there to what
it waited for. Where one stream waits for another is not in every trace: an event that waited longest for another
stream's, and began as it ended, follows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..profiles.names import classify
from .activity import API, COMMUNICATION, COMPUTE, COPY, MARK, Recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTS = {
    "computing": "kernels",
    "communication": "communication",
    "copies": "copies",
    "between": "between kernels",
    "launch": "launching",
    "host": "the host",
}
"""What the path is made of."""

_OF_LANE = {COMPUTE: "computing", COMMUNICATION: "communication", COPY: "copies"}
_WAITS = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize", "Memcpy", "MemcpyAsync", "MemcpyWithStream")
"""Calls of CUDA's and HIP's runtime that may return only when something on the device has ended."""

_AT_ONCE_NS = 10_000
"""What begins within this of another stream's end, and was launched longer before, waited for it."""


class CriticalPath(msgspec.Struct, frozen=True):
    """What a step waited for.

    Attributes
    ----------
    step : str or None
        As the program marked it; None where the path is of the whole profile.
    parts_s : dict of str to float
        By what it is made of (`PARTS`); they add up to the whole.
    longest : list of (str, float)
        The kernels, copies and collectives with the most time on it, in seconds.
    """

    step: str | None
    time_s: float
    parts_s: dict[str, float]
    longest: list[tuple[str, float]]


def find_path(recorded: Recorded, step: str | None = None) -> CriticalPath:
    """The critical path of a step.

    Parameters
    ----------
    step : str, optional
        As the program marked it: the path begins where its mark does, or as the device ends the step before. Without,
        with the first launch of the profile.
    """
    events = recorded.events
    mine = np.ones(len(events), bool) if step is None else events["step"] == recorded.steps.index(step)
    path = _Walk(_begin(recorded, mine, step))
    before, follows = _predecessors(events)
    ends, ended = _waits(recorded)
    at = int(np.flatnonzero(mine)[np.argmax(events["end"][mine])])
    end = path.time = int(events["end"][at])
    passed: set[int] = set()  # events without length can follow each other in a circle
    while at >= 0 and mine[at] and path.time > path.begin:
        passed.add(at)
        event = events[at]
        path.go(_OF_LANE[int(event["lane"])], event["start"], int(event["name"]))
        if follows[at] and int(before[at]) not in passed:
            at = int(before[at])
            path.go("between", events["end"][at])
            continue
        path.go("launch", event["launch"] if event["launch"] >= 0 else path.begin)
        latest = int(np.searchsorted(ends, path.time, side="right")) - 1
        while latest >= 0 and int(ended[latest]) in passed:
            latest -= 1
        at = int(ended[latest]) if latest >= 0 else -1
        path.go("host", events["end"][at] if at >= 0 else path.begin)
    return CriticalPath(
        step,
        (end - path.time) * 1e-9,
        {part: spent * 1e-9 for part, spent in path.parts.items()},
        [(classify(recorded.names[name]).name, spent * 1e-9) for name, spent in path.longest()],
    )


class _Walk:
    """Goes back in time, and remembers by what."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.time = begin
        self.parts = dict.fromkeys(PARTS, 0)
        self._by_name: dict[int, int] = {}

    def go(self, part: str, to: int, name: int = -1) -> None:
        """Go back to a time, no further than the beginning and never forward."""
        to = min(max(int(to), self.begin), self.time)
        self.parts[part] += self.time - to
        if name >= 0:
            self._by_name[name] = self._by_name.get(name, 0) + self.time - to
        self.time = to

    def longest(self) -> list[tuple[int, int]]:
        return sorted(self._by_name.items(), key=lambda item: -item[1])[:3]


def _begin(recorded: Recorded, mine: NDArray[np.bool_], step: str | None) -> int:
    """When the step's mark does, else with the first launch."""
    marks = recorded.calls[recorded.calls["kind"] == MARK]
    if step in recorded.names:
        starts = marks["start"][marks["name"] == recorded.names.index(step)]
        if len(starts):
            return int(starts.min())
    events = recorded.events[mine]
    launches = events["launch"][events["launch"] >= 0]
    return int(np.concatenate([events["start"], launches]).min())


def _predecessors(events: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each event the one that it follows, and whether that, and not its launch, is what it waited for."""
    before = np.full(len(events), -1)
    order = np.lexsort((events["start"], events["stream"], events["device"]))
    same = events[["device", "stream"]][order]
    before[order[1:]] = np.where(same[1:] == same[:-1], order[:-1], -1)
    end = np.where(before >= 0, events["end"][before], -1)
    follows = (before >= 0) & (end >= events["launch"])
    for device in np.unique(events["device"]):
        mine = np.flatnonzero(events["device"] == device)
        by_end = mine[np.argsort(events["end"][mine], kind="stable")]
        # Before its own end, as an event without length would follow itself.
        until = np.minimum(events["start"][mine], events["end"][mine] - 1)
        latest = np.searchsorted(events["end"][by_end], until, side="right") - 1
        other = np.where(latest >= 0, by_end[np.maximum(latest, 0)], -1)
        finished = np.where(other >= 0, events["end"][other], -1)
        waited = (
            (other >= 0)
            & (finished > end[mine])
            & (events["start"][mine] - finished <= _AT_ONCE_NS)
            & (finished - events["launch"][mine] > _AT_ONCE_NS)
            & (events["launch"][mine] >= 0)
        )
        before[mine[waited]] = other[waited]
        follows[mine[waited]] = True
    return before, follows


def _waits(recorded: Recorded) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When calls that waited for the device ended, in order, and the event that each waited for.

    It waited for what ended last before it did, if that was while it waited.
    """
    waiting = [
        name.removeprefix("cuda").removeprefix("hip") in _WAITS if name.startswith(("cuda", "hip")) else False
        for name in recorded.names
    ]
    calls = recorded.calls
    calls = calls[(calls["kind"] == API) & np.array([*waiting, False])[calls["name"]]]
    calls = calls[np.argsort(calls["end"], kind="stable")]
    events = recorded.events
    by_end = np.argsort(events["end"], kind="stable")
    latest = np.searchsorted(events["end"][by_end], calls["end"], side="right") - 1
    last = by_end[np.maximum(latest, 0)]
    waited = (latest >= 0) & (events["end"][last] > calls["start"])
    return calls["end"][waited], last[waited]

"""How long what the host launched waited for the device, and how much of it waited at once.

HolisticTraceAnalysis' definitions: the delay is from the end of the call that launched something to its begin, 0 where
it began before; a stream's queue is what was launched and has not begun, its mean that over all changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .activity import API, Recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Queue(msgspec.Struct, frozen=True):
    """What waited on a stream: over all changes the mean, and the most at once."""

    device: int
    stream: int
    mean: float
    longest: int


class Launching(msgspec.Struct, frozen=True):
    """What was launched and when it began.

    Attributes
    ----------
    launches : int
        Kernels, copies and collectives whose launch the profile has.
    delay_s : float or None
        Median of their delays; None where the profile has launches without the calls.
    longest_delay_s : float or None
    queues : list of Queue
        By device and stream.
    """

    launches: int
    delay_s: float | None
    longest_delay_s: float | None
    queues: list[Queue]


def describe_launches(recorded: Recorded) -> Launching | None:
    """Delays and queues; None where the profile has no launches."""
    events = recorded.events[recorded.events["launch"] >= 0]
    if not len(events):
        return None
    delays = delays_ns(recorded, events)
    delays = delays[delays >= 0]
    queues = []
    key = (events["device"].astype(np.int64) << 32) + events["stream"]
    for one in np.unique(key).tolist():
        mine = events[key == one]
        device, stream = int(mine["device"][0]), int(mine["stream"][0])
        times = np.concatenate([mine["launch"], mine["start"]])
        change = np.repeat([1, -1], len(mine))
        waiting = np.cumsum(change[np.argsort(times, kind="stable")])
        queues.append(Queue(device, stream, float(waiting.mean()), int(waiting.max())))
    return Launching(
        len(events),
        float(np.median(delays)) * 1e-9 if len(delays) else None,
        float(delays.max()) * 1e-9 if len(delays) else None,
        queues,
    )


def delays_ns(recorded: Recorded, events: NDArray[Any]) -> NDArray[np.int64]:
    """From the end of its call to the begin of each of some events, 0 where it began before; -1 without the call."""
    calls = recorded.calls[recorded.calls["kind"] == API]
    if not len(calls):
        return np.full(len(events), -1)
    place = np.minimum(np.searchsorted(calls["start"], events["launch"]), len(calls) - 1)
    known = calls["start"][place] == events["launch"]
    return np.where(known, np.maximum(events["start"] - calls["end"][place], 0), -1)

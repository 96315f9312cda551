"""What the devices of a profile did with their time: busy and idle, collectives, launches, the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .activity import API, MARK, Activity, Recorded
from .collectives import CollectiveCalls, Message, list_collectives, list_exchanges
from .critical_path import CriticalPath, find_path
from .idle import Idle, describe_idle
from .steady import Steady

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DeviceTime(msgspec.Struct, frozen=True):
    """What the devices of a profile did with their time.

    Attributes
    ----------
    step_s : float
        An iteration on the clock: the median of the marks that count, else the window over the iterations.
    launching : Launching or None
        None where the profile has no launches.
    exchanges : dict of Message to list of float
        Seconds of each collective in the order of time, to be laid beside other ranks'.
    critical_path : CriticalPath
        Of the first step that counts; of the whole profile where no steps are marked.
    """

    step_s: float
    idle: Idle
    collectives: list[CollectiveCalls]
    launching: Launching | None
    exchanges: dict[Message, list[float]]
    critical_path: CriticalPath

    def to_dict(self) -> dict[str, Any]:
        """As the rows of an efficiency have it."""
        return {**self.idle.to_dict(), **{name: msgspec.to_builtins(getattr(self, name)) for name in _BESIDE}}


_BESIDE = ("step_s", "collectives", "launching", "critical_path")


def describe_time(activity: Activity, steady: Steady, chosen: bool) -> DeviceTime | None:
    """What the devices did; None where the profile has no start times.

    Parameters
    ----------
    steady : Steady
        The iterations that were found.
    chosen : bool
        Whether only those that count were asked for.
    """
    counting = [step.name for step in steady.steps if step.counts]
    recorded, whole = activity.recorded(counting if chosen else None), activity.recorded()
    if recorded is None or whole is None:
        return None
    step = next((name for name in counting if name in whole.steps), None)
    idle = describe_idle(recorded)
    return DeviceTime(
        _step_s(recorded, counting) or idle.window_s / max(len(counting) if chosen else steady.iterations, 1),
        idle,
        list_collectives(recorded),
        describe_launches(recorded),
        list_exchanges(recorded),
        find_path(whole, step),
    )


def _step_s(recorded: Recorded, steps: list[str]) -> float | None:
    marks = recorded.calls[recorded.calls["kind"] == MARK]
    wanted = [number for number, name in enumerate(recorded.names) if name in steps]
    lengths = (marks["end"] - marks["start"])[np.isin(marks["name"], wanted)]
    return float(np.median(lengths)) * 1e-9 if len(lengths) else None


def no_times() -> dict[str, None]:
    """The keys of a profile without start times."""
    nothing = Idle(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, [])
    return dict.fromkeys([*nothing.to_dict(), *_BESIDE])


# How long what the host launched waited for the device, and how much at once ------------------------------------------
#
# HolisticTraceAnalysis' definitions: the delay is from the end of the call that launched something to its begin, 0
# where it began before; a stream's queue is what was launched and has not begun, its mean that over all changes.


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
    call = np.minimum(np.searchsorted(calls["start"], events["launch"]), len(calls) - 1)
    known = calls["start"][call] == events["launch"]
    return np.where(known, np.maximum(events["start"] - calls["end"][call], 0), -1)

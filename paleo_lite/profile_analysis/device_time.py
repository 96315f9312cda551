"""What the devices of a profile did with their time: busy and idle, collectives, launches, the critical path.

Definitions of HolisticTraceAnalysis, where it has them: computation is every kernel but collectives, copies and fills;
a device is busy while anything runs on it; the overlap of communication is the share of its time in which something
computes; a device waits for the host where what comes next was launched after it had become idle (its idle breakdown
asks this of each stream; here a device is idle when all of its streams are).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..profiles.names import classify
from .activity import API, COMMUNICATION, COMPUTE, COPY, MARK, Activity, Recorded, length
from .collectives import CollectiveCalls, Message, list_collectives, list_exchanges
from .critical_path import CriticalPath, find_path
from .steady import Steady

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAUSES = {
    "between_steps": "between steps",
    "host": "the host was late",
    "device": "launched in time, and not begun",
    "unknown": "the profile does not say when it was launched",
}
"""Why a device was idle, by what came next."""

LISTED = 5
"""Gaps that are described."""


class Gap(msgspec.Struct, frozen=True):
    """A time in which a device did nothing.

    Attributes
    ----------
    start_s : float
        Since the profile's first kernel, copy or collective.
    cause : str
        Of `CAUSES`.
    before : str
        What ended it: the kernel that came next.
    host : str or None
        What the host did for most of it; None where the profile shows nothing that took long.
    """

    start_s: float
    time_s: float
    cause: str
    before: str
    host: str | None


class Idle(msgspec.Struct, frozen=True):
    """What the devices of a profile did with their time, summed over devices.

    Attributes
    ----------
    busy_share : float
        Of the window, in which anything ran.
    window_s : float
        From the first beginning to the last end on each device.
    computing_s : float
        In which a kernel computed.
    communication_s, exposed_communication_s : float
        Of collectives, overlaps counted once; and what of it nothing computed beside.
    communication_overlap : float or None
        Share of the communication beside which something computed.
    exposed_copy_s : float
        Copies and fills beside which nothing computed or communicated.
    idle_s : dict of str to float
        By cause (`CAUSES`).
    gaps : list of Gap
        The longest.
    """

    busy_share: float
    window_s: float
    computing_s: float
    communication_s: float
    exposed_communication_s: float
    communication_overlap: float | None
    exposed_copy_s: float
    idle_s: dict[str, float]
    gaps: list[Gap]


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
        """As the rows of an efficiency have it, by `TIMES`."""
        beside = {name: getattr(self, name) for name in _BESIDE}
        return {**msgspec.to_builtins(self.idle), **msgspec.to_builtins(beside)}


_BESIDE = ("step_s", "collectives", "launching", "critical_path")

TIMES = (*Idle.__struct_fields__, *_BESIDE)
"""What a row of an efficiency has of this; all None of a profile without start times."""


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
    marks = recorded.calls[recorded.calls["kind"] == MARK]
    wanted = [number for number, name in enumerate(recorded.names) if name in counting]
    lengths = (marks["end"] - marks["start"])[np.isin(marks["name"], wanted)]
    step_s = float(np.median(lengths)) * 1e-9 if len(lengths) else 0.0
    return DeviceTime(
        step_s or idle.window_s / max(len(counting) if chosen else steady.iterations, 1),
        idle,
        list_collectives(recorded),
        describe_launches(recorded),
        list_exchanges(recorded),
        find_path(whole, step),
    )


def describe_idle(recorded: Recorded) -> Idle:
    """What the devices of a profile did with their time."""
    events = recorded.events
    sums = dict.fromkeys(("window", "any", "compute", "communication", "exposed", "copy"), 0)
    causes = dict.fromkeys(CAUSES, 0)
    gaps = []
    for device in np.unique(events["device"]):
        mine = events[events["device"] == device]
        lanes = [mine[mine["lane"] == lane] for lane in (COMPUTE, COMMUNICATION, COPY)]
        compute, communication = length(*lanes[:1]), length(lanes[1])
        both, whole = length(*lanes[:2]), length(*lanes)
        sums["window"] += int(mine["end"].max() - mine["start"].min())
        for name, value in (
            ("any", whole), ("compute", compute), ("communication", communication), ("exposed", both - compute),
            ("copy", whole - both),
        ):  # fmt: skip
            sums[name] += value
        own = _gaps(mine)
        for cause, lasted in zip(own["cause"], own["end"] - own["start"]):
            causes[cause] += int(lasted)
        gaps.append(own)
    longest = np.concatenate(gaps)
    longest = longest[np.argsort(longest["start"] - longest["end"], kind="stable")][:LISTED]
    seconds = {name: value * 1e-9 for name, value in sums.items()}
    window_s, communication_s, exposed_s = (seconds[name] for name in ("window", "communication", "exposed"))
    return Idle(
        busy_share=seconds["any"] / window_s if window_s else 1.0,
        window_s=window_s,
        computing_s=seconds["compute"],
        communication_s=communication_s,
        exposed_communication_s=exposed_s,
        communication_overlap=1 - exposed_s / communication_s if communication_s else None,
        exposed_copy_s=seconds["copy"],
        idle_s={cause: value * 1e-9 for cause, value in causes.items()},
        gaps=[_gap(gap, recorded) for gap in longest],
    )


def _gap(gap: Any, recorded: Recorded) -> Gap:
    names, calls = recorded.names, recorded.calls
    inside = np.minimum(calls["end"], gap["end"]) - np.maximum(calls["start"], gap["start"])
    most = np.flatnonzero(2 * inside > gap["end"] - gap["start"])
    # Of calls within each other the innermost says most: the shortest.
    shortest = most[np.argmin((calls["end"] - calls["start"])[most])] if len(most) else -1
    return Gap(
        start_s=int(gap["start"] - recorded.events["start"].min()) * 1e-9,
        time_s=int(gap["end"] - gap["start"]) * 1e-9,
        cause=str(gap["cause"]),
        before=classify(names[gap["name"]]).name if gap["name"] >= 0 else "",
        host=names[calls["name"][shortest]] if shortest >= 0 else None,
    )


_GAP = np.dtype([("start", "i8"), ("end", "i8"), ("name", "i4"), ("cause", "U13")])


def _gaps(events: NDArray[Any]) -> NDArray[Any]:
    """The times in which nothing ran, with what ended them and why it came no sooner."""
    events = events[np.argsort(events["start"], kind="stable")]
    reach = np.maximum.accumulate(events["end"])
    after = np.flatnonzero(events["start"][1:] > reach[:-1]) + 1
    last = np.maximum.accumulate(np.where(events["end"] == reach, np.arange(len(events)), 0))[after - 1]
    following = events[after]
    gaps = np.empty(len(after), _GAP)
    gaps["start"], gaps["end"], gaps["name"] = reach[after - 1], following["start"], following["name"]
    crosses = (following["step"] != events["step"][last]) & (following["step"] >= 0)
    gaps["cause"] = np.select(
        [crosses, following["launch"] < 0, following["launch"] >= gaps["start"]],
        ["between_steps", "unknown", "host"],
        "device",
    )
    return gaps


# How long what the host launched waited for the device, and how much at once ------------------------------------------
#
# HolisticTraceAnalysis' definitions: the delay is from the end of the call that launched something to its begin, 0
# where it began before; a stream's queue is what was launched and has not begun, its mean that over all changes.


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

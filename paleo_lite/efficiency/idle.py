"""When a device did nothing, and why: busy time by what ran, idle time by what it waited for, the longest gaps.

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
from .activity import COMMUNICATION, COMPUTE, COPY, Recorded, length

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
    window_s : float
        From the first beginning to the last end on each device.
    any_s : float
        In which anything ran.
    computing_s : float
        In which a kernel computed.
    communication_s, exposed_communication_s : float
        Of collectives, overlaps counted once; and what of it nothing computed beside.
    exposed_copy_s : float
        Copies and fills beside which nothing computed or communicated.
    idle_s : dict of str to float
        By cause (`CAUSES`).
    gaps : list of Gap
        The longest.
    """

    window_s: float
    any_s: float
    computing_s: float
    communication_s: float
    exposed_communication_s: float
    exposed_copy_s: float
    idle_s: dict[str, float]
    gaps: list[Gap]

    @property
    def busy_share(self) -> float:
        """Share of the time in which anything ran."""
        return self.any_s / self.window_s if self.window_s else 1.0

    @property
    def overlap(self) -> float | None:
        """Share of the communication beside which something computed."""
        return 1 - self.exposed_communication_s / self.communication_s if self.communication_s else None

    def to_dict(self) -> dict[str, Any]:
        """As the rows of an efficiency have it."""
        return {
            "busy_share": self.busy_share,
            "window_s": self.window_s,
            "computing_s": self.computing_s,
            "communication_s": self.communication_s,
            "exposed_communication_s": self.exposed_communication_s,
            "communication_overlap": self.overlap,
            "exposed_copy_s": self.exposed_copy_s,
            "idle_s": self.idle_s,
            "gaps": msgspec.to_builtins(self.gaps),
        }


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
    return Idle(
        seconds["window"], seconds["any"], seconds["compute"], seconds["communication"], seconds["exposed"],
        seconds["copy"], {cause: value * 1e-9 for cause, value in causes.items()},
        [_gap(gap, recorded) for gap in longest],
    )  # fmt: skip


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

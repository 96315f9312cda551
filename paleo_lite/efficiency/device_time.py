"""What the devices of a profile did with their time: busy and idle, collectives, launches, the critical path."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from .activity import MARK, Activity, Recorded
from .collectives import Collective, Message, list_collectives, list_exchanges
from .critical_path import CriticalPath, find_path
from .idle import Idle, describe_idle
from .launching import Launching, describe_launches
from .steady import Steady


class DeviceTime(msgspec.Struct, frozen=True):
    """What the devices of a profile did with their time.

    Attributes
    ----------
    step_s : float
        An iteration on the clock: the median of the marks that count, else the window over the iterations.
    idle : Idle
    collectives : list of Collective
    launching : Launching or None
        None where the profile has no launches.
    exchanges : dict of Message to list of float
        Seconds of each collective in the order of time, to be laid beside other ranks'.
    critical_path : CriticalPath
        Of the first step that counts; of the whole profile where no steps are marked.
    """

    step_s: float
    idle: Idle
    collectives: list[Collective]
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
    activity : Activity
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
    wanted = [place for place, name in enumerate(recorded.names) if name in steps]
    lengths = (marks["end"] - marks["start"])[np.isin(marks["name"], wanted)]
    return float(np.median(lengths)) * 1e-9 if len(lengths) else None


def no_times() -> dict[str, None]:
    """The keys of a profile without start times."""
    nothing = Idle(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, [])
    return dict.fromkeys([*nothing.to_dict(), *_BESIDE])

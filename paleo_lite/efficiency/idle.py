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
import pyarrow as pa

from ..profiles.names import classify
from .overlap import merge
from .partial import codes, device_rows, numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

COLUMNS = ("category", "kernel", "start_ns", "duration_ns", "device", "step", "launch_ns")
"""What is read of a profile."""

CAUSES = {
    "between_steps": "between steps",
    "host": "the host was late",
    "device": "launched in time, and not begun",
    "unknown": "the profile does not say when it was launched",
}
"""Why a device was idle, by what came next."""

LISTED = 5
"""Gaps that are described."""

_HOST_KEPT_NS = 10_000  # calls and operations of the host shorter than this explain no gap that is listed
_COMPUTE, _COMMUNICATION, _COPY = range(3)
_LANES = {"communication": _COMMUNICATION, "memcpy": _COPY, "memset": _COPY}


class Gap(msgspec.Struct, frozen=True):
    """A time in which a device did nothing.

    Attributes
    ----------
    start_s : float
        Since the profile's first kernel, copy or collective.
    time_s : float
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


class Activity:
    """The device's rows of a profile, and what on the host took long, gathered batch by batch."""

    def __init__(self) -> None:
        self._known = True
        self._device: list[NDArray[Any]] = []
        self._host: list[NDArray[Any]] = []
        self._names: dict[str, int] = {}
        self._steps: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns `COLUMNS`.

        Raises
        ------
        BadProfile
            If a duration is negative or no number.
        """
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

    def _of_device(self, rows: pa.RecordBatch) -> NDArray[Any]:
        found = np.empty(rows.num_rows, _EVENT)
        found["start"] = rows.column("start_ns").to_numpy()
        found["end"] = found["start"] + np.rint(numbers(rows, "duration_ns")).astype(np.int64)
        found["device"] = numbers(rows, "device", -1.0)
        found["launch"] = -1
        if "launch_ns" in rows.schema.names:
            found["launch"] = rows.column("launch_ns").fill_null(-1).to_numpy()
        found["name"] = self._codes(rows, "kernel", self._names)
        found["step"] = self._codes(rows, "step", self._steps)
        found["lane"] = _lanes(rows)
        return found

    @staticmethod
    def _codes(rows: pa.RecordBatch, column: str, known: dict[str, int]) -> NDArray[np.int64]:
        if column not in rows.schema.names:
            return np.full(rows.num_rows, -1)
        words = rows.column(column).dictionary.to_pylist()
        return np.array([-1, *(known.setdefault(word or "", len(known)) for word in words)])[codes(rows.column(column))]

    def _add_host(self, batch: pa.RecordBatch) -> None:
        category = batch.column("category")
        on_host = np.array([False, *(word in ("api", "cpu") for word in category.dictionary.to_pylist())])
        duration = numbers(batch, "duration_ns", 0.0)
        chosen = np.flatnonzero(on_host[codes(category)] & (duration >= _HOST_KEPT_NS))
        if len(chosen) and not batch.column("start_ns").null_count:
            found = np.empty(len(chosen), _CALL)
            found["start"] = batch.column("start_ns").to_numpy()[chosen]
            found["end"] = found["start"] + duration[chosen].astype(np.int64)
            found["name"] = self._codes(batch, "kernel", self._names)[chosen]
            self._host.append(found)

    def summary(self, steps: list[str] | None = None) -> Idle | None:
        """What the devices did; None where the profile has no start times, or nothing ran.

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
            if not len(events):
                return None
        calls = np.concatenate(self._host) if self._host else np.empty(0, _CALL)
        sums = dict.fromkeys(("window", "any", "compute", "communication", "exposed", "copy"), 0)
        causes = dict.fromkeys(CAUSES, 0)
        gaps = []
        for device in np.unique(events["device"]):
            mine = events[events["device"] == device]
            lanes = [mine[mine["lane"] == lane] for lane in (_COMPUTE, _COMMUNICATION, _COPY)]
            compute, communication = _length(*lanes[:1]), _length(lanes[1])
            both, whole = _length(*lanes[:2]), _length(*lanes)
            sums["window"] += int(mine["end"].max() - mine["start"].min())
            for name, value in (
                ("any", whole), ("compute", compute), ("communication", communication), ("exposed", both - compute),
                ("copy", whole - both),
            ):  # fmt: skip
                sums[name] += value
            found = _gaps(mine)
            for cause, length in zip(found["cause"], found["end"] - found["start"]):
                causes[cause] += int(length)
            gaps.append(found)
        longest = np.concatenate(gaps)
        longest = longest[np.argsort(longest["start"] - longest["end"], kind="stable")][:LISTED]
        seconds = {name: value * 1e-9 for name, value in sums.items()}
        return Idle(
            seconds["window"], seconds["any"], seconds["compute"], seconds["communication"], seconds["exposed"],
            seconds["copy"], {cause: value * 1e-9 for cause, value in causes.items()},
            [self._gap(gap, calls, int(events["start"].min())) for gap in longest],
        )  # fmt: skip

    def _gap(self, gap: Any, calls: NDArray[Any], begin: int) -> Gap:
        names = list(self._names)
        inside = np.minimum(calls["end"], gap["end"]) - np.maximum(calls["start"], gap["start"])
        most = np.flatnonzero(2 * inside > gap["end"] - gap["start"])
        # Of calls within each other the innermost says most: the shortest.
        shortest = most[np.argmin((calls["end"] - calls["start"])[most])] if len(most) else -1
        return Gap(
            start_s=int(gap["start"] - begin) * 1e-9,
            time_s=int(gap["end"] - gap["start"]) * 1e-9,
            cause=str(gap["cause"]),
            before=classify(names[gap["name"]]).name if gap["name"] >= 0 else "",
            host=names[calls["name"][shortest]] if shortest >= 0 else None,
        )


_EVENT = np.dtype(
    [("start", "i8"), ("end", "i8"), ("launch", "i8"), ("device", "i8"), ("name", "i4"), ("step", "i4"), ("lane", "i1")]
)
_CALL = np.dtype([("start", "i8"), ("end", "i8"), ("name", "i4")])
_GAP = np.dtype([("start", "i8"), ("end", "i8"), ("name", "i4"), ("cause", "U13")])


def _lanes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """Computation, communication or copy, by category and, of profilers that have none for collectives, by name."""
    words = [None, *rows.column("category").dictionary.to_pylist()] if "category" in rows.schema.names else [None]
    category = codes(rows.column("category")) if "category" in rows.schema.names else np.zeros(rows.num_rows, np.int64)
    names = [None, *rows.column("kernel").dictionary.to_pylist()]
    pairs, place = np.unique(codes(rows.column("kernel")) * len(words) + category, return_inverse=True)
    labels = [
        classify(names[pair // len(words)] or "", words[pair % len(words)] or "kernel").label for pair in pairs.tolist()
    ]
    return np.array([_LANES.get(label, _COMPUTE) for label in labels])[place]


def _length(*parts: NDArray[Any]) -> int:
    """Nanoseconds in which any of some events ran."""
    events = np.concatenate(parts)
    if not len(events):
        return 0
    starts, ends = merge(events["start"], events["end"])
    return int((ends - starts).sum())


def _gaps(events: NDArray[Any]) -> NDArray[Any]:
    """The times in which nothing ran, with what ended them and why it came no sooner."""
    events = events[np.argsort(events["start"], kind="stable")]
    reach = np.maximum.accumulate(events["end"])
    after = np.flatnonzero(events["start"][1:] > reach[:-1]) + 1
    last = np.maximum.accumulate(np.where(events["end"] == reach, np.arange(len(events)), 0))[after - 1]
    following = events[after]
    found = np.empty(len(after), _GAP)
    found["start"], found["end"], found["name"] = reach[after - 1], following["start"], following["name"]
    crosses = (following["step"] != events["step"][last]) & (following["step"] >= 0)
    found["cause"] = np.select(
        [crosses, following["launch"] < 0, following["launch"] >= found["start"]],
        ["between_steps", "unknown", "host"],
        "device",
    )
    return found

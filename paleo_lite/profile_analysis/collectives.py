"""What collectives took, what of it nothing computed beside, and how fast the links carried their messages.

A collective's time holds its wait for the slowest device: only where all ranks of a job are known is the rest told
apart (`ranks`). Bus bandwidth is that of nccl-tests (NVIDIA/nccl-tests, doc/PERFORMANCE.md): bytes over time, times a
factor by which it can be held against the link, however many devices take part.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..profiles.names import classify
from .activity import COMMUNICATION, COMPUTE, Recorded, merge

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_BYTES = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Of one number, by the names of PyTorch's scalar types; those of 8 bits are called Float8_..."""


class _Bus(NamedTuple):
    """Which message the bytes are of, and the factor of nccl-tests for n devices."""

    size: str
    factor: Callable[[int], float]


_BUS = {
    "allreduce": _Bus("in", lambda n: 2 * (n - 1) / n),
    "allgather": _Bus("out", lambda n: (n - 1) / n),
    "reducescatter": _Bus("in", lambda n: (n - 1) / n),
    "alltoall": _Bus("in", lambda n: (n - 1) / n),
    "broadcast": _Bus("in", lambda n: 1.0),
    "reduce": _Bus("in", lambda n: 1.0),
    "send": _Bus("in", lambda n: 1.0),
    "recv": _Bus("out", lambda n: 1.0),
}
"""By what stands in a collective's name, the longer before what is a part of it."""

_KERNEL = re.compile(r"ccl\w*?Kernel_([A-Za-z]+)")


class Message(msgspec.Struct, frozen=True):
    """What a collective carries; None where the profile does not say."""

    collective: str
    dtype: str | None = None
    numbers_in: int | None = msgspec.field(name="in", default=None)
    numbers_out: int | None = msgspec.field(name="out", default=None)
    group: int | None = None

    @property
    def bytes(self) -> int | None:
        """The size that bandwidth is of: all of a tensor that is reduced, gathered or scattered."""
        bus, width = self._bus(), _width(self.dtype)
        numbers = None if bus is None else (self.numbers_in if bus.size == "in" else self.numbers_out)
        return None if numbers is None or width is None else numbers * width

    @property
    def factor(self) -> float | None:
        """From bytes over time to bus bandwidth."""
        bus = self._bus()
        return None if bus is None or not self.group else bus.factor(self.group)

    def _bus(self) -> _Bus | None:
        name = re.sub(r"[^a-z]", "", self.collective.lower())
        return next((bus for known, bus in _BUS.items() if known in name), None)


class CollectiveCalls(msgspec.Struct, frozen=True):
    """All calls of a collective with one message.

    Attributes
    ----------
    collective : str
        As the framework calls it, or its kernel.
    bytes : int or None
        Of one message.
    time_s, exposed_s : float
        Summed; and what of it nothing computed beside, None of several ranks.
    bus_bandwidth_bytes_per_s : float or None
        Over all of their time, waiting included; of several ranks over what the exchange took.
    """

    collective: str
    dtype: str | None
    devices: int | None
    bytes: int | None
    calls: int
    time_s: float
    exposed_s: float | None
    bus_bandwidth_bytes_per_s: float | None


def list_collectives(recorded: Recorded) -> list[CollectiveCalls]:
    """The collectives of a profile by message, longest first."""
    events = recorded.events[recorded.events["lane"] == COMMUNICATION]
    exposed = _exposed_ns(recorded.events, events)
    groups: dict[Message, list[int]] = {}
    for number, message in enumerate(messages_of(recorded, events)):
        groups.setdefault(message, []).append(number)
    rows = []
    for message, numbers in groups.items():
        time_s = float((events["end"] - events["start"])[numbers].sum()) * 1e-9
        rows.append(
            CollectiveCalls(
                message.collective,
                message.dtype,
                message.group,
                message.bytes,
                len(numbers),
                time_s,
                float(exposed[numbers].sum()) * 1e-9,
                bus_bandwidth(message, len(numbers), time_s),
            )
        )
    return sorted(rows, key=lambda row: (-row.time_s, row.collective, row.bytes or 0))


def list_exchanges(recorded: Recorded) -> dict[Message, list[float]]:
    """Seconds of each collective, by message in the order of time: what ranks of a job have in common."""
    events = recorded.events[recorded.events["lane"] == COMMUNICATION]
    events = events[np.argsort(events["start"], kind="stable")]
    times: dict[Message, list[float]] = {}
    for message, time_ns in zip(messages_of(recorded, events), (events["end"] - events["start"]).tolist()):
        times.setdefault(message, []).append(time_ns * 1e-9)
    return times


def bus_bandwidth(message: Message, calls: int, time_s: float) -> float | None:
    """Bytes per second of nccl-tests' bus bandwidth; None where the message, or its time, is unknown."""
    moved, factor = message.bytes, message.factor
    return calls * moved * factor / time_s if time_s and moved is not None and factor is not None else None


def messages_of(recorded: Recorded, events: NDArray[Any]) -> list[Message]:
    """What each of some collectives carried."""
    told = [_read(text) for text in recorded.messages]
    by_name: dict[int, Message] = {}
    messages = []
    for message, name in zip(events["message"].tolist(), events["name"].tolist()):
        known = told[message] if message >= 0 else None
        if known is None:
            known = by_name.setdefault(name, Message(_kernel(recorded.names[name] if name >= 0 else "")))
        messages.append(known)
    return messages


def _read(text: str) -> Message | None:
    try:
        return msgspec.json.decode(text, type=Message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _kernel(name: str) -> str:
    """The collective that a kernel's name tells: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`` is AllReduce."""
    told = _KERNEL.search(name)
    return told[1] if told else classify(name).name


def _width(dtype: str | None) -> int | None:
    name = (dtype or "").lower()
    return 1 if name.startswith("float8") else _BYTES.get(name)


def _exposed_ns(everything: NDArray[Any], events: NDArray[Any]) -> NDArray[np.int64]:
    """Of each of some events the time in which nothing computed on its device."""
    exposed = np.zeros(len(events), np.int64)
    for device in np.unique(events["device"]):
        mine = events["device"] == device
        compute = everything[(everything["lane"] == COMPUTE) & (everything["device"] == device)]
        exposed[mine] = (events["end"] - events["start"])[mine]
        if len(compute):
            starts, ends = merge(compute["start"], compute["end"])
            exposed[mine] -= _before(starts, ends, events["end"][mine]) - _before(starts, ends, events["start"][mine])
    return exposed


def _before(starts: NDArray[np.int64], ends: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of some disjoint intervals lies before each time."""
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    passed = np.searchsorted(starts, times, side="right")
    last_end = ends[np.maximum(passed - 1, 0)]
    inside = np.where(passed > 0, np.minimum(times, last_end) - last_end, 0)
    busy: NDArray[np.int64] = total[passed] + inside
    return busy

"""Time, exposed time and bus bandwidth of collectives.

The time of a collective includes its wait for the slowest device; only a comparison of all ranks of a job separates the
two (`ranks`). Bus bandwidth is defined as in nccl-tests (NVIDIA/nccl-tests, doc/PERFORMANCE.md): bytes over time, times
a factor that makes it comparable with the bandwidth of the link for any number of devices.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..profiles.names import classify
from ..profiles.table import Records
from .activity import COMMUNICATION, COMPUTE, Recording, merge_intervals, positions_by_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_ELEMENT_BYTES = {
    "double": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "char": 1,
    "byte": 1,
    "bool": 1,
    "complexfloat": 8,
    "complexdouble": 16,
}
"""Bytes per element by PyTorch's scalar type. The 8-bit types Float8_... are not listed."""


class _BusRule(NamedTuple):
    """Buffer that defines the size (``in`` or ``out``), and nccl-tests' factor for n devices."""

    size: str
    factor: Callable[[int], float]


_BUS_RULES = {
    "allreduce": _BusRule("in", lambda n: 2 * (n - 1) / n),
    "allgather": _BusRule("out", lambda n: (n - 1) / n),
    "reducescatter": _BusRule("in", lambda n: (n - 1) / n),
    "alltoall": _BusRule("in", lambda n: (n - 1) / n),
    "broadcast": _BusRule("in", lambda n: 1.0),
    "reduce": _BusRule("in", lambda n: 1.0),
    "send": _BusRule("in", lambda n: 1.0),
    "recv": _BusRule("out", lambda n: 1.0),
}
"""Bus bandwidth rules by a part of the collective's name; the first match counts, so ``reduce`` follows the longer
names that contain it."""

_KERNEL = re.compile(r"ccl\w*?Kernel_([A-Za-z]+)")


class Message(msgspec.Struct, frozen=True):
    """The message of a collective; fields that the profile does not record are None."""

    collective: str  # name of the collective
    dtype: str | None = None  # PyTorch's name of the scalar type
    # Elements of the input and the output buffer.
    numbers_in: int | None = msgspec.field(name="in", default=None)
    numbers_out: int | None = msgspec.field(name="out", default=None)
    group: int | None = None  # devices that take part

    @property
    def bytes(self) -> int | None:
        """Bytes that the bandwidth refers to: the whole tensor that is reduced, gathered or scattered."""
        rule = self._bus_rule()
        element_bytes = _element_bytes(self.dtype)
        if rule is None or element_bytes is None:
            return None
        elements = self.numbers_in if rule.size == "in" else self.numbers_out
        return None if elements is None else elements * element_bytes

    @property
    def factor(self) -> float | None:
        """Factor from bytes over time to bus bandwidth."""
        rule = self._bus_rule()
        return None if rule is None or not self.group else rule.factor(self.group)

    def _bus_rule(self) -> _BusRule | None:
        letters = re.sub(r"[^a-z]", "", self.collective.lower())
        for name, rule in _BUS_RULES.items():
            if name in letters:
                return rule
        return None


class CollectiveCalls(msgspec.Struct, frozen=True):
    """All calls of a collective with the same message."""

    collective: str  # the framework's name of the collective, or the name of its kernel
    dtype: str | None
    devices: int | None
    bytes: int | None  # bytes of one message
    calls: int
    # Summed time, and the part of it during which nothing computed on the device; exposed time is None for
    # several ranks.
    time_s: float
    exposed_s: float | None
    # Bus bandwidth over the whole time including waits; for several ranks over the time of the exchange alone.
    bus_bandwidth_bytes_per_s: float | None


def list_collectives(recording: Recording) -> list[CollectiveCalls]:
    """Return the collectives of a profile grouped by message, longest first."""
    events = recording.events[recording.events["lane"] == COMMUNICATION]
    exposed_ns = _exposed_ns(recording.events, events)
    groups: dict[Message, list[int]] = {}
    for index, message in enumerate(describe_messages(recording, events)):
        groups.setdefault(message, []).append(index)
    rows = []
    for message, indices in groups.items():
        time_s = float((events["end"] - events["start"])[indices].sum()) * 1e-9
        rows.append(
            CollectiveCalls(
                message.collective,
                message.dtype,
                message.group,
                message.bytes,
                len(indices),
                time_s,
                float(exposed_ns[indices].sum()) * 1e-9,
                bus_bandwidth(message, len(indices), time_s),
            )
        )
    return sorted(rows, key=lambda row: (-row.time_s, row.collective, row.bytes or 0))


def collective_times(recording: Recording) -> dict[Message, list[float]]:
    """Return the seconds of each call of a collective in time order, by message, for comparison between ranks."""
    events = recording.events[recording.events["lane"] == COMMUNICATION]
    events = events[np.argsort(events["start"], kind="stable")]
    durations_ns = (events["end"] - events["start"]).tolist()
    times: dict[Message, list[float]] = {}
    for message, time_ns in zip(describe_messages(recording, events), durations_ns):
        times.setdefault(message, []).append(time_ns * 1e-9)
    return times


def bus_bandwidth(message: Message, calls: int, time_s: float) -> float | None:
    """Return nccl-tests' bus bandwidth in bytes per second; None if the message or its time is unknown."""
    moved_bytes = message.bytes
    factor = message.factor
    if not time_s or moved_bytes is None or factor is None:
        return None
    return calls * moved_bytes * factor / time_s


def describe_messages(recording: Recording, events: Records) -> list[Message]:
    """Return the message of each collective; only its name where the profile records no message."""
    recorded_messages = [_decode_message(text) for text in recording.messages]
    message_of_kernel: dict[int, Message] = {}
    messages = []
    for message_index, name_index in zip(events["message"].tolist(), events["name"].tolist()):
        message = recorded_messages[message_index] if message_index >= 0 else None
        if message is None:
            if name_index not in message_of_kernel:
                kernel = recording.names[name_index] if name_index >= 0 else ""
                message_of_kernel[name_index] = Message(_collective_of_kernel(kernel))
            message = message_of_kernel[name_index]
        messages.append(message)
    return messages


def _decode_message(text: str) -> Message | None:
    try:
        return msgspec.json.decode(text, type=Message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _collective_of_kernel(name: str) -> str:
    """Return the collective in a kernel's name, without the namespaces of other libraries than NCCL.

    It is AllReduce in ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)``, and dispatch in
    ``deep_ep::internode::dispatch<...>``.
    """
    match = _KERNEL.search(name)
    return match[1] if match else classify(name).name.rpartition("::")[2]


def _element_bytes(dtype: str | None) -> int | None:
    name = (dtype or "").lower()
    return 1 if name.startswith("float8") else _ELEMENT_BYTES.get(name)


def _exposed_ns(all_events: Records, events: Records) -> NDArray[np.int64]:
    """Return the part of each event during which nothing computed on its device, in nanoseconds."""
    exposed = np.zeros(len(events), np.int64)
    computing = all_events[all_events["lane"] == COMPUTE]
    compute_of = dict(positions_by_value(computing["device"]))
    nothing = np.empty(0, np.int64)
    for device, on_device in positions_by_value(events["device"]):
        compute = computing[compute_of.get(device, nothing)]
        event_starts = events["start"][on_device]
        event_ends = events["end"][on_device]
        exposed[on_device] = event_ends - event_starts
        if len(compute):
            starts, ends = merge_intervals(compute["start"], compute["end"])
            overlap = _covered_before(starts, ends, event_ends) - _covered_before(starts, ends, event_starts)
            exposed[on_device] -= overlap
    return exposed


def _covered_before(starts: NDArray[np.int64], ends: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length of disjoint, sorted intervals that lies before each time."""
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    begun = np.searchsorted(starts, times, side="right")
    last_end = ends[np.maximum(begun - 1, 0)]
    remainder = np.where(begun > 0, np.minimum(times, last_end) - last_end, 0)  # of an interval that contains the time
    covered: NDArray[np.int64] = total[begun] + remainder
    return covered

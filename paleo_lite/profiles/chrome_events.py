"""Decoding of the events of a PyTorch trace: selected categories, selected fields, exact times."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import BadProfile
from .json_stream import Elements, bad_at
from .launches import MODULE, Integers

CATEGORIES = {
    "kernel": "kernel", "Kernel": "kernel", "gpu_memcpy": "memcpy", "Memcpy": "memcpy",
    "gpu_memset": "memset", "Memset": "memset", "cpu_op": "cpu", "Operator": "cpu",
    "cuda_runtime": "api", "cuda_driver": "api", "Runtime": "api", "xpu_runtime": "api", "mtia_runtime": "api",
    "privateuse1_runtime": "api", "privateuse1_driver": "api",
    "user_annotation": "marker", "gpu_user_annotation": "marker", "python_function": "marker",
    "mtia_ccp_events": "kernel", "cuda_profiler_range": "kernel",
}  # fmt: skip
"""Category in `SCHEMA` by the event's `cat`, in all spellings of Kineto since 2021; other events are skipped."""


COUNTED = "cuda_profiler_range"
"""Category of kernels with counters instead of times: the profiler shows them in sequence with equal lengths."""

MTIA, DMA = "mtia_ccp_events", "dma_request"
"""Category of the events of an MTIA device, and the name of its copies."""

_PYTHON = "python_function"
_MTIA_WAITS = ("event_wait", "event_record")  # the device does no work in these
_PARTLY = (_PYTHON, MTIA)  # categories of which only some events are read
_EXACT_BELOW = 2.0**43  # microseconds as float64 below this resolve single nanoseconds
LARGEST = 2**53  # bytes: more than any memory; the largest range of exact integers in float64
LATEST_US = 4 * 10**15  # the year 2096: the range of int64 nanoseconds

Whole = int | float | str | None


class Args(msgspec.Struct, gc=False):
    external: Whole = msgspec.field(name="External id", default=None)
    external_2021: Whole = msgspec.field(name="external id", default=None)
    correlation: Whole = None
    stream: Whole = None
    device: Whole = None
    bytes: Whole = None
    size: Whole = None
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    kernel: msgspec.Raw = msgspec.Raw()
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    numbers: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw())
    occupancy: float | None = msgspec.field(name="est. achieved occupancy %", default=None)
    sequence: Whole = msgspec.field(name="Sequence number", default=None)
    forward_thread: Whole = msgspec.field(name="Fwd thread id", default=None)
    collective: msgspec.Raw = msgspec.field(name="Collective name", default=msgspec.Raw())
    message_type: msgspec.Raw = msgspec.field(name="dtype", default=msgspec.Raw())
    numbers_in: msgspec.Raw = msgspec.field(name="In msg nelems", default=msgspec.Raw())
    numbers_out: msgspec.Raw = msgspec.field(name="Out msg nelems", default=msgspec.Raw())
    group_size: msgspec.Raw = msgspec.field(name="Group size", default=msgspec.Raw())


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Whole = None
    tid: Whole = None
    ts: Whole = None
    dur: Whole = None
    args: Args | None = None


class _Kind(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = None
    name: Any = None


class _Times(_Kind, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = None


class _Counters(_Kind, gc=False):
    args: Any = None


class Decoded(msgspec.Struct, gc=False):
    wanted: list[Event]
    count: int
    fault: tuple[int, str] | None = None  # index of the element, and the problem


_EVENTS = msgspec.json.Decoder(list[Event])
_RAW = msgspec.json.Decoder(list[msgspec.Raw])


def decode_events(text: bytes) -> Decoded:
    """Decode the events of a JSON array that have a category of `CATEGORIES`.

    Events of other categories are not checked. An event of these categories with a field of an unexpected type is
    reported as the fault of the result. Raise msgspec.DecodeError if the text is not a JSON array.
    """
    try:
        events = _EVENTS.decode(text)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return _decode_one_by_one(text)
    selected = [event for event in events if event.cat in CATEGORIES and event.ph == "X"]  # fast path for most events
    return Decoded([event for event in selected if event.cat not in _PARTLY or _is_selected(event)], len(events))


def _is_selected(event: Event | _Kind) -> bool:
    if event.ph != "X" or not isinstance(event.cat, str) or event.cat not in CATEGORIES:
        return False
    if event.cat == _PYTHON:
        return str(event.name).startswith(MODULE)
    return event.cat != MTIA or event.name not in _MTIA_WAITS


def _decode_one_by_one(text: bytes) -> Decoded:
    raws = _RAW.decode(text)
    selected: list[Event] = []
    for index, raw in enumerate(raws):
        try:
            event = msgspec.json.decode(raw, type=Event)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            try:
                kind = msgspec.json.decode(raw, type=_Kind)
            except (msgspec.ValidationError, UnicodeDecodeError):
                return Decoded(selected, len(raws), (index, f"no event ({error})"))
            if _is_selected(kind):
                return Decoded(selected, len(raws), (index, f"an event with a field that cannot be read ({error})"))
            continue
        if _is_selected(event):
            selected.append(event)
    return Decoded(selected, len(raws))


def counters_of(text: bytes) -> list[dict[str, float]]:
    """Return the hardware counters of the events of category `COUNTED`, in file order."""
    counters = []
    for raw in _RAW.decode(text):
        if COUNTED.encode() in bytes(raw):
            event = msgspec.json.decode(raw, type=_Counters)
            if event.cat == COUNTED and event.ph == "X":
                args = event.args if isinstance(event.args, dict) else {}
                numbers = {name: value for name, value in args.items() if type(value) in (int, float)}
                counters.append({name: float(value) for name, value in numbers.items() if 0 <= value < 2**63})
    return counters


def bad_event(path: Path, piece: Elements[Decoded], position: int, problem: str) -> BadProfile:
    """Return the error for the decoded event at a position of a piece."""
    kinds = (msgspec.json.decode(raw, type=_Kind) for raw in _RAW.decode(piece.text))
    selected_indices = [index for index, kind in enumerate(kinds) if _is_selected(kind)]
    return bad_element(path, piece, selected_indices[position], problem)


def bad_element(path: Path, piece: Elements[Decoded], index: int, problem: str) -> BadProfile:
    """Return the error for the element at an index of a piece, with its byte offset."""
    end = 0
    for raw in _RAW.decode(piece.text)[: index + 1]:
        text = bytes(raw)
        start = piece.text.index(text, end)
        end = start + len(text)
    return bad_at(path, piece.start + start, problem)


def times_ns(path: Path, piece: Elements[Decoded]) -> tuple[Integers, NDArray[np.float64]]:
    """Return start and duration of the decoded events in ns; NaN for an absent duration."""
    events = piece.decoded.wanted
    starts, durations = [event.ts for event in events], [event.dur for event in events]
    kinds = {*map(type, starts)}
    if kinds | {*map(type, durations)} <= {int, float}:
        try:
            start_us = np.array(starts, dtype=np.int64 if kinds == {int} else np.float64)
            duration_us = np.array(durations, dtype=np.float64)
        except OverflowError:
            return _exact_times(path, piece)
        if kinds == {int} or np.all(np.abs(start_us) < _EXACT_BELOW):
            bad = ~(np.abs(start_us) < LATEST_US) | ~(duration_us >= 0) | ~(duration_us < LATEST_US)
            if not bad.any():
                whole_us = np.floor(start_us)
                start_ns = whole_us.astype(np.int64) * 1000 + np.rint((start_us - whole_us) * 1000).astype(np.int64)
                return start_ns, np.round(duration_us * 1000, 3)
    return _exact_times(path, piece)


def _exact_times(path: Path, piece: Elements[Decoded]) -> tuple[Integers, NDArray[np.float64]]:
    """Return the same from the decimal digits, event by event: slower, but it locates a bad event."""
    start_ns, duration_ns = [], []
    for index, raw in enumerate(_RAW.decode(piece.text)):
        kind = msgspec.json.decode(raw, type=_Kind)
        if not _is_selected(kind):
            continue
        try:
            times = msgspec.json.decode(raw, type=_Times)
        except msgspec.ValidationError as error:
            raise bad_element(path, piece, index, f"a time that is not a number ({error})") from None
        if times.ts is None or not times.ts.is_finite() or not -LATEST_US < times.ts < LATEST_US:
            raise bad_element(
                path, piece, index, f"an event whose ts is {_short(times.ts)}, not a time in microseconds"
            )
        if times.dur is not None and not (times.dur.is_finite() and 0 <= times.dur < LATEST_US):
            raise bad_element(
                path, piece, index, f"an event whose dur is {_short(times.dur)}, not a duration in microseconds"
            )
        start_ns.append(int((times.ts * 1000).to_integral_value(ROUND_HALF_EVEN)))
        duration_ns.append(np.nan if times.dur is None else float(times.dur * 1000))
    return np.array(start_ns, dtype=np.int64), np.array(duration_ns)


def _short(value: Decimal | None) -> str:
    return "absent" if value is None else str(value)[:40]

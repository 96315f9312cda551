"""One trace of all ranks of a job for Perfetto and chrome://tracing, with counters of queues and copies.

Every rank is a process and every stream of its device a thread. The queue of a stream holds what the host has launched
and the device has not started yet, as HolisticTraceAnalysis counts it; a copy has its bytes per second while it runs.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow.compute as pc

from ..errors import BadProfile, BadValue
from ..files import check_outputs, save
from ..profiles.detect import Profile, find_files, open_profile
from ..profiles.table import device_rows
from .contradictions import find_rank

SUFFIXES = (".json", ".json.gz")
MOST_EVENTS = 4_000_000
"""Most events of a merged trace: more would take over a gigabyte, and viewers hardly open them."""

_COLUMNS = (
    "category", "kernel", "op", "layer", "start_ns", "duration_ns", "bytes", "flops", "grid", "block", "stream",
    "device", "launch_ns",
)  # fmt: skip
_DETAILS = ("op", "layer", "bytes", "flops", "grid", "block")


class RankOfTrace(NamedTuple):
    """A rank in a merged trace."""

    rank: int
    file: str  # name of its profile
    events: int  # on its devices


class MergedTrace(NamedTuple):
    """A written trace."""

    path: Path  # the file
    ranks: list[RankOfTrace]
    size: int  # of the file in bytes


def check_trace_file(path: Path, *, force: bool) -> None:
    """Check the name of a trace before it is computed; raise BadValue if it is wrong or exists."""
    if not path.name.lower().endswith(SUFFIXES):
        raise BadValue(f"{path}: the file name of a trace must end in .json or .json.gz")
    check_outputs(path, force=force)


def merge_traces(paths: Iterable[Path], output: Path, *, force: bool = False) -> MergedTrace:
    """Write the device activity of profiles into one trace, with a process for each; times begin at the first event.

    Ranks are those that the profiles record, and otherwise count from 0. Raise BadProfile if a profile has no start
    times, and BadValue if the output exists and `force` is not set.
    """
    check_trace_file(output, force=force)
    profiles = [open_profile(path) for path in find_files(paths)]
    ranks = _ranks_of(profiles)
    origin_ns = min(_first_ns(profile) for profile in profiles)
    numbers = []
    written = io.BytesIO()
    written.write(b'{"displayTimeUnit": "ns", "traceEvents": [\n')
    writer = _Writer(written)
    for rank, profile in sorted(zip(ranks, profiles), key=lambda pair: pair[0]):
        numbers.append(RankOfTrace(rank, profile.path.name, _write_rank(writer, rank, profile, origin_ns)))
    written.write(b"\n]}\n")
    content = written.getvalue()
    if output.name.lower().endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    save(output, content)
    return MergedTrace(output, numbers, len(content))


class _Writer:
    """Writes events, separated by commas."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._written = out, 0

    def write(self, event: dict[str, Any]) -> None:
        """Write an event."""
        if self._written >= MOST_EVENTS:
            raise BadValue(f"the merged trace would have more than {MOST_EVENTS:,} events: give fewer profiles")
        self._out.write((b",\n" if self._written else b"") + json.dumps(event).encode())
        self._written += 1


def _ranks_of(profiles: list[Profile]) -> list[int]:
    """Return the rank of each profile: those recorded if they all differ, otherwise their places."""
    recorded = [find_rank(profile) for profile in profiles]
    ranks = [rank for rank in recorded if rank is not None]
    if len(set(ranks)) == len(profiles):
        return ranks
    return list(range(len(profiles)))


def _first_ns(profile: Profile) -> int:
    """Return the earliest start of a launch or of device activity."""
    earliest: list[int] = []
    for batch in profile.batches(("category", "start_ns", "duration_ns", "launch_ns")):
        rows = device_rows(batch)
        for name in ("start_ns", "launch_ns"):
            values = rows.column(name).drop_null()
            if len(values):
                earliest.append(pc.min(values).as_py())
    if not earliest:
        raise BadProfile(f"{profile.path}: a {profile.format} profile without start times cannot be part of a trace")
    return min(earliest)


def _write_rank(writer: _Writer, rank: int, profile: Profile, origin_ns: int) -> int:
    """Write the events and counters of a profile; return the number of its events."""
    writer.write(_metadata("process_name", rank, f"rank {rank}: {profile.path.name}"))
    writer.write({"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}})
    threads: dict[tuple[int, int], int] = {}
    changes: dict[int, list[tuple[int, int]]] = {}  # of each thread's queue
    events = 0
    for row in _rows_of(profile):
        place = (row["device"] or 0, row["stream"] or 0)
        if place not in threads:
            threads[place] = len(threads) + 1
            writer.write(_metadata("thread_name", rank, f"device {place[0]}, stream {place[1]}", threads[place]))
        thread, start_ns, duration_ns = threads[place], row["start_ns"] - origin_ns, row["duration_ns"] or 0.0
        details = {name: row[name] for name in _DETAILS if row[name] is not None}
        event = {
            "name": row["kernel"] or row["category"],
            "cat": row["category"],
            "ph": "X",
            "pid": rank,
            "tid": thread,
        }
        writer.write({**event, "ts": start_ns / 1e3, "dur": duration_ns / 1e3, "args": details})
        events += 1
        if row["launch_ns"] is not None:
            changes.setdefault(thread, []).extend([(row["launch_ns"] - origin_ns, 1), (start_ns, -1)])
        if row["category"] == "memcpy" and row["bytes"] and duration_ns:
            rate = row["bytes"] / duration_ns
            for at_ns, value in ((start_ns, rate), (start_ns + duration_ns, 0.0)):
                writer.write(_counter(f"copies on stream {place[1]} (GB/s)", rank, at_ns, value))
    streams = {thread: stream for (_, stream), thread in threads.items()}
    for thread, queue in changes.items():
        length = 0
        for at_ns, change in sorted(queue, key=lambda item: (item[0], -item[1])):
            length += change
            writer.write(_counter(f"queue of stream {streams[thread]}", rank, at_ns, length))
    return events


def _rows_of(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yield the rows of device activity that have a start."""
    for batch in profile.batches(_COLUMNS):
        rows = device_rows(batch)
        for row in rows.to_pylist():
            full = {**dict.fromkeys(_COLUMNS), **row}
            if full["start_ns"] is not None:
                yield full


def _metadata(kind: str, rank: int, name: str, thread: int | None = None) -> dict[str, Any]:
    place = {} if thread is None else {"tid": thread}
    return {"name": kind, "ph": "M", "pid": rank, **place, "args": {"name": name}}


def _counter(name: str, rank: int, at_ns: float, value: float) -> dict[str, Any]:
    return {"name": name, "ph": "C", "pid": rank, "ts": at_ns / 1e3, "args": {"value": value}}

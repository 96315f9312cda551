"""TAU's own ``profile.NODE.CONTEXT.THREAD``: timers and message sizes of one thread, as text.

Format as TAU's writers and readers have it (``TauCollate.cpp``, ParaProf's ``TauDataSource``): a line with the number
of functions and the metric, a heading with the program's metadata behind it, a line per function

    "main() [{a.c}{3}]" Calls Subrs Excl Incl ProfileCalls GROUP="TAU_DEFAULT"

then ``N aggregates``, ``N userevents``, a heading, and ``"Message size" Numevents Max Min Mean Sumsqr`` per event. What
the numbers mean: see `tau`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadProfile
from .lines import decoded_head, number_of, numbered_lines, shown
from .table import batches_of
from .tau import category_of

_FIRST = re.compile(r"(\d{1,9}) templated_functions(?:_MULTI)?(?:_(\w+))?$")
_EVENTS = re.compile(r"(\d{1,9}) (aggregates|userevents)$")
_NAMED = re.compile(r'"(.*)" ([^"]+?)(?: GROUP="([^"]*)"\s*)?$')
_PLACE = re.compile(r"profile\.(\d{1,9})\.\d{1,9}\.(\d{1,9})$")
_COLUMNS = (
    "category", "kernel", "duration_ns", "calls", "bytes", "device", "thread", "metric.exclusive_ns",
    "metric.message_min_bytes", "metric.message_max_bytes",
)  # fmt: skip


class TauProfile:
    """The reader; see `table.Reader`. `device` is the number of the process (node), both from the file's name."""

    name = "tau-profile"
    what = "TAU profile.0.0.0"

    def recognises(self, path: Path, head: bytes) -> bool:
        lines = decoded_head(head)
        return bool(lines) and _FIRST.match(lines[0]) is not None

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """A row per function and event, 16,384 at a time."""
        yield from batches_of(_rows(path), _COLUMNS, columns)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    place = _PLACE.search(path.name)
    where = {"device": int(place[1]), "thread": int(place[2])} if place else {}
    left, section, number = 0, "", 0
    for number, line in numbered_lines(path):
        if line.startswith("#"):
            continue
        begins = _FIRST.match(line) or _EVENTS.match(line)
        if begins is not None and left == 0:
            left, section = int(begins[1]), begins[2] or "TIME"
            if not section.islower() and "TIME" not in section.upper():
                raise BadProfile(f"{path}: it counts {shown(section)}, not time: take the profile of MULTI__TIME")
            continue
        left -= 1
        if left < 0:
            raise BadProfile(f"{path}: line {number}: {shown(line)}, expected the end of the {section or 'functions'}")
        if section != "aggregates":
            yield where | _row(path, number, line, section == "userevents")
    if left:
        raise BadProfile(f"{path}: the file ends at line {number}, {left} lines before the end of a section")


def _row(path: Path, number: int, line: str, is_event: bool) -> dict[str, Any]:
    match = _NAMED.match(line)
    try:
        values = [number_of(word) for word in match[2].split()] if match else []
    except ValueError as error:
        raise BadProfile(f"{path}: line {number}: {shown(str(error))} is not a number") from None
    if match is None or len(values) != 5:
        raise BadProfile(f"{path}: line {number}: {shown(line)}, expected a quoted name and 5 numbers")
    if not 0 <= values[0] < 2**53 or not max(map(abs, values[1:4])) < 2**53:
        raise BadProfile(f"{path}: line {number}: a number out of range")
    name = match[1].strip()
    row: dict[str, Any] = {"kernel": name, "calls": int(values[0])}
    row["category"] = "message" if "MPI" in re.split(r"\W+", match[3] or "") else category_of(name)
    if not is_event:
        exclusive, inclusive = values[2:4]
        return row | {
            "duration_ns": inclusive * 1e3 if inclusive >= 0 else None,
            "metric.exclusive_ns": exclusive * 1e3,
        }
    count, most, least, mean = values[:4]
    if not count:
        return row | {"bytes": 0.0}
    if not (0 <= least <= most and mean >= 0):
        raise BadProfile(f"{path}: line {number}: a message size is negative or out of range")
    sizes = {"metric.message_min_bytes": least, "metric.message_max_bytes": most}
    return row | sizes | {"bytes": float(round(count * mean))}

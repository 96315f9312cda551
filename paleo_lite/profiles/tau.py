"""Readers of TAU profiles (timers and message sizes per process and thread): parquet tables and TAU's text format.

TAU's XML is read by `tau_xml`. TAU's unit is the microsecond. A timer has calls, an inclusive time (`duration_ns`)
and an exclusive time without nested timers (``metric.exclusive_ns``). TAU stops the timer of a thread late, so the
exclusive time of ``.TAU application`` can be negative; it is kept. The few negative inclusive times (down to -182 us
in pthread_join) are not durations and are null. Message sizes are events without a time: `calls` is the number of
messages, `bytes` their sum.

The text format, ``profile.NODE.CONTEXT.THREAD``, follows TAU's writer (``TauCollate.cpp``) and reader (ParaProf's
``TauDataSource``): a line with the number of functions and the metric, a heading with the program's metadata, a line
per function

    "main() [{a.c}{3}]" Calls Subrs Excl Incl ProfileCalls GROUP="TAU_DEFAULT"

then ``N aggregates``, ``N userevents``, a heading, and ``"Message size" Numevents Max Min Mean Sumsqr`` per event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BadProfile
from .lines import decoded_head, number_of, numbered_lines, quoted
from .pyprof import PROBLEMS, first_line, open_parquet
from .table import batch_of, batches_of

_INTERVAL = ("calls", "inc_time", "exc_time")
_ATOMIC = ("num_samples", "mean", "min", "max")
_CONFIGURATION = {
    "run": "repetition", "nodes": "nodes", "gpus_per_node": "gpus_per_node", "network_backend": "fabric",
    "profile_level": "profiler", "workers": "workers", "neural_network": "network", "data_loader": "data_loader",
    "batch_size_per_gpu": "batch_size", "grad_precision": "gradient_precision",
    "compute_precision": "compute_precision",
}  # fmt: skip
"""Columns of a run's configuration in SURFBoard's tables, and their names in `detect.SURFBOARD`."""

_WORDS = pa.dictionary(pa.int32(), pa.string())
_ROWS = 2**16

_FIRST = re.compile(r"(\d{1,9}) templated_functions(?:_MULTI)?(?:_(\w+))?$")
_EVENTS = re.compile(r"(\d{1,9}) (aggregates|userevents)$")
_NAMED = re.compile(r'"(.*)" ([^"]+?)(?: GROUP="([^"]*)"\s*)?$')
_FILE_NAME = re.compile(r"profile\.(\d{1,9})\.\d{1,9}\.(\d{1,9})$")
_OF_TEXT = (
    "category", "kernel", "duration_ns", "calls", "bytes", "device", "thread", "metric.exclusive_ns",
    "metric.message_min_bytes", "metric.message_max_bytes",
)  # fmt: skip


class TauParquet:
    """Reader of parquet tables with TAU's timers or message sizes of many runs, as in SURFBoard.

    A table holds many runs, so every row contains the run's configuration: columns `repetition`, `nodes`,
    `gpus_per_node`, ... follow those of `SCHEMA`, and ``metric.*`` follow them. `device` is the process's number.
    """

    name = "tau-parquet"
    description = "TAU timers and message sizes in parquet"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a parquet file has functions with TAU's times or message sizes."""
        if not head.startswith(b"PAR1"):
            return False
        with open_parquet(path) as file:
            names = set(file.schema_arrow.names)
        return "function" in names and any(set(required[:2]) <= names for required in (_INTERVAL, _ATOMIC))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, 65,536 at a time; memory holds one row group of the selected columns.

        Raise BadProfile if the file is truncated or corrupted, lacks a column, or a count or size is negative or
        absent.
        """
        with open_parquet(path) as file:
            words = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        with open_parquet(path, words) as file:
            names = file.schema_arrow.names
            required = _INTERVAL if "inc_time" in names else _ATOMIC
            missing = [name for name in ("function", *required) if name not in names]
            if missing:
                raise BadProfile(f"{path}: no column {missing[0]!r}: it has {', '.join(names) or 'none'}")
            readable = ("function", *required, "gpu", "thread", *_CONFIGURATION)
            read_columns = [name for name in names if name in readable]
            row = 0
            try:
                for piece in file.iter_batches(_ROWS, columns=read_columns, use_threads=False):
                    yield _with_configuration(piece, _tidy(path, row, piece, columns))
                    row += piece.num_rows
            except PROBLEMS as error:
                raise BadProfile(f"{path}: row {row} and after cannot be read ({first_line(error)})") from None


def category_of(function: str) -> str:
    """Return ``message`` for MPI and NCCL calls and message counters, else ``cpu``."""
    lowered = function[:200].lower()
    return "message" if lowered.startswith(("mpi_", "message size", "nccl")) else "cpu"


def _tidy(path: Path, row: int, piece: pa.RecordBatch, columns: tuple[str, ...] | None) -> pa.RecordBatch:
    """Convert a batch of TAU's columns to `SCHEMA`; `row` is the number of rows before it."""
    function = piece.column("function").cast(_WORDS)
    words = [category_of(word or "") for word in function.dictionary.to_pylist()]
    table: dict[str, Any] = {
        "category": pa.array(words, pa.string()).take(function.indices),
        "kernel": function,
    }
    for ours, theirs in (("device", "gpu"), ("thread", "thread")):
        if theirs in piece.schema.names:
            table[ours] = piece.column(theirs).cast(pa.int64())
    if "inc_time" in piece.schema.names:
        table["calls"] = _non_negative_column(path, row, piece, "calls").cast(pa.int64())
        inclusive = _complete_column(path, row, piece, "inc_time")
        table["duration_ns"] = pc.if_else(pc.less(inclusive, 0), None, pc.multiply(inclusive, 1e3))
        table["metric.exclusive_ns"] = pc.multiply(_complete_column(path, row, piece, "exc_time"), 1e3)
    else:
        messages = _non_negative_column(path, row, piece, "num_samples")
        table["calls"] = messages.cast(pa.int64())
        # TAU writes 0 as mean, minimum and maximum if there are no messages
        none = pc.equal(messages, 0)
        table["bytes"] = pc.round(pc.multiply(_non_negative_column(path, row, piece, "mean"), messages))
        for ours, theirs in (("metric.message_min_bytes", "min"), ("metric.message_max_bytes", "max")):
            table[ours] = pc.if_else(none, None, _non_negative_column(path, row, piece, theirs))
    return batch_of(table, piece.num_rows, columns)


def _with_configuration(piece: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Insert the columns of the configuration before the metrics."""
    fields = list(zip(batch.schema.names, batch.columns))
    metrics = [field for field in fields if field[0].startswith("metric.")]
    added = []
    for theirs, ours in _CONFIGURATION.items():
        if theirs in piece.schema.names:
            values = piece.column(theirs)
            added.append((ours, values.cast(pa.int64() if pa.types.is_integer(values.type) else _WORDS)))
    ordered = [*fields[: len(fields) - len(metrics)], *added, *metrics]
    return pa.RecordBatch.from_arrays([array for _, array in ordered], names=[name for name, _ in ordered])


def _complete_column(path: Path, row: int, piece: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as float64; raise for nulls, NaN and infinities."""
    values = piece.column(name).cast(pa.float64())
    raw = values.to_numpy(zero_copy_only=False)
    _refuse(path, row, name, raw, ~np.isfinite(raw))
    return values


def _non_negative_column(path: Path, row: int, piece: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as float64; also raise for negative values."""
    values = _complete_column(path, row, piece, name)
    raw = values.to_numpy(zero_copy_only=False)
    _refuse(path, row, name, raw, raw < 0)
    return values


def _refuse(path: Path, row: int, name: str, raw: Any, wrong: Any) -> None:
    if wrong.any():
        index = int(wrong.argmax())
        raise BadProfile(f"{path}: row {row + index}: {name} is {raw[index]:g}, expected a number of 0 or more")


# Text format
# -----------------------------------------------------------------------------------------------------------


class TauProfile:
    """Reader of TAU's text. `device` (the process, TAU's node) and `thread` are taken from the file name."""

    name = "tau-profile"
    description = "TAU profile.0.0.0"

    def recognises(self, path: Path, head: bytes) -> bool:
        lines = decoded_head(head)
        return bool(lines) and _FIRST.match(lines[0]) is not None

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield a row per function and event, 16,384 at a time."""
        yield from batches_of(_rows(path), _OF_TEXT, columns)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    match = _FILE_NAME.search(path.name)
    where = {"device": int(match[1]), "thread": int(match[2])} if match else {}
    remaining, section, number = 0, "", 0
    for number, line in numbered_lines(path):
        if line.startswith("#"):
            continue
        begins = _FIRST.match(line) or _EVENTS.match(line)
        if begins is not None and remaining == 0:
            remaining, section = int(begins[1]), begins[2] or "TIME"
            if not section.islower() and "TIME" not in section.upper():
                raise BadProfile(
                    f"{path}: the metric is {quoted(section)}, expected time: use the profile of MULTI__TIME"
                )
            continue
        remaining -= 1
        if remaining < 0:
            raise BadProfile(f"{path}: line {number}: {quoted(line)}, expected the end of the {section or 'functions'}")
        if section != "aggregates":
            yield where | _row(path, number, line, section == "userevents")
    if remaining:
        raise BadProfile(f"{path}: the file ends at line {number}, {remaining} lines before the end of a section")


def _row(path: Path, number: int, line: str, is_event: bool) -> dict[str, Any]:
    match = _NAMED.match(line)
    try:
        values = [number_of(word) for word in match[2].split()] if match else []
    except ValueError as error:
        raise BadProfile(f"{path}: line {number}: {quoted(str(error))} is not a number") from None
    if match is None or len(values) != 5:
        raise BadProfile(f"{path}: line {number}: {quoted(line)}, expected a quoted name and 5 numbers")
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

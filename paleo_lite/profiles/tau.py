"""TAU: MPI calls and messages by process and thread, as tables in parquet; and TAU's own XML.

TAU counts in microseconds. A timer has calls and two times, inclusive and exclusive of the timers called within: the
inclusive is `duration_ns`, the exclusive ``metric.exclusive_ns``. TAU stops the timer of a thread late, which makes
the exclusive time of its ``.TAU application`` negative, so it is given as it stands; the few inclusive times that are
negative (down to -182 us in pthread_join) are not durations and are null. Message sizes are events without a time:
`calls` is the number of messages, `bytes` all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BadProfile
from .pyprof import PROBLEMS, first_line, open_parquet
from .table import batch_of

_INTERVAL = ("calls", "inc_time", "exc_time")
_ATOMIC = ("num_samples", "mean", "min", "max")
_CONFIGURATION = {
    "run": "repetition", "nodes": "nodes", "gpus_per_node": "gpus_per_node", "network_backend": "fabric",
    "profile_level": "profiler", "workers": "workers", "neural_network": "network", "data_loader": "data_loader",
    "batch_size_per_gpu": "batch_size", "grad_precision": "gradient_precision",
    "compute_precision": "compute_precision",
}  # fmt: skip
"""What SURFBoard's tables call a run's configuration, and what `detect.SURFBOARD` calls it."""

_WORDS = pa.dictionary(pa.int32(), pa.string())
_ROWS = 2**16


class TauParquet:
    """TAU's timers or message sizes of many runs in one parquet table, as SURFBoard keeps them.

    A table holds many runs, so the run's configuration stands in every row: columns `repetition`, `nodes`,
    `gpus_per_node`, ... follow those of `SCHEMA`, and ``metric.*`` follow them. `device` is the process's number.
    """

    name = "tau-parquet"
    what = "TAU timers and message sizes in parquet"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Parquet with a function and TAU's times or message sizes."""
        if not head.startswith(b"PAR1"):
            return False
        with open_parquet(path) as file:
            names = set(file.schema_arrow.names)
        return "function" in names and any(set(needed[:2]) <= names for needed in (_INTERVAL, _ATOMIC))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """The rows, 65,536 at a time; memory holds one row group of the wanted columns.

        Raises
        ------
        BadProfile
            If the file is truncated or corrupted, lacks a column, or a count or size is negative or absent.
        """
        with open_parquet(path) as file:
            words = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        with open_parquet(path, words) as file:
            names = file.schema_arrow.names
            needed = _INTERVAL if "inc_time" in names else _ATOMIC
            missing = [name for name in ("function", *needed) if name not in names]
            if missing:
                raise BadProfile(f"{path}: no column {missing[0]!r}: it has {', '.join(names) or 'none'}")
            known = ("function", *needed, "gpu", "thread", *_CONFIGURATION)
            wanted = [name for name in names if name in known]
            row = 0
            try:
                for piece in file.iter_batches(_ROWS, columns=wanted, use_threads=False):
                    yield _with_configuration(piece, _tidy(path, row, piece, columns))
                    row += piece.num_rows
            except PROBLEMS as error:
                raise BadProfile(f"{path}: row {row} and after cannot be read ({first_line(error)})") from None


def category_of(function: str) -> str:
    """Whether a function of the host's sends messages, as MPI's calls do, or counts them; the rest is ``cpu``."""
    lowered = function[:200].lower()
    return "message" if lowered.startswith(("mpi_", "message size", "nccl")) else "cpu"


def _tidy(path: Path, row: int, piece: pa.RecordBatch, columns: tuple[str, ...] | None) -> pa.RecordBatch:
    """A batch of TAU's rows as one of ours; `row` is the number of rows before it."""
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
        table["calls"] = _counted(path, row, piece, "calls").cast(pa.int64())
        inclusive = _present(path, row, piece, "inc_time")
        table["duration_ns"] = pc.if_else(pc.less(inclusive, 0), None, pc.multiply(inclusive, 1e3))
        table["metric.exclusive_ns"] = pc.multiply(_present(path, row, piece, "exc_time"), 1e3)
    else:
        messages = _counted(path, row, piece, "num_samples")
        table["calls"] = messages.cast(pa.int64())
        # TAU writes 0 as mean, least and most of no messages
        none = pc.equal(messages, 0)
        table["bytes"] = pc.round(pc.multiply(_counted(path, row, piece, "mean"), messages))
        for ours, theirs in (("metric.message_min_bytes", "min"), ("metric.message_max_bytes", "max")):
            table[ours] = pc.if_else(none, None, _counted(path, row, piece, theirs))
    return batch_of(table, piece.num_rows, columns)


def _with_configuration(piece: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of ours with the configuration between its columns and its metrics."""
    fields = list(zip(batch.schema.names, batch.columns))
    metrics = [field for field in fields if field[0].startswith("metric.")]
    added = []
    for theirs, ours in _CONFIGURATION.items():
        if theirs in piece.schema.names:
            values = piece.column(theirs)
            added.append((ours, values.cast(pa.int64() if pa.types.is_integer(values.type) else _WORDS)))
    ordered = [*fields[: len(fields) - len(metrics)], *added, *metrics]
    return pa.RecordBatch.from_arrays([array for _, array in ordered], names=[name for name, _ in ordered])


def _present(path: Path, row: int, piece: pa.RecordBatch, name: str) -> pa.Array:
    """A column as float64 without nulls, NaN and infinities."""
    values = piece.column(name).cast(pa.float64())
    raw = values.to_numpy(zero_copy_only=False)
    _refuse(path, row, name, raw, ~np.isfinite(raw))
    return values


def _counted(path: Path, row: int, piece: pa.RecordBatch, name: str) -> pa.Array:
    """The same, of 0 or more."""
    values = _present(path, row, piece, name)
    raw = values.to_numpy(zero_copy_only=False)
    _refuse(path, row, name, raw, raw < 0)
    return values


def _refuse(path: Path, row: int, name: str, raw: Any, wrong: Any) -> None:
    if wrong.any():
        place = int(wrong.argmax())
        raise BadProfile(f"{path}: row {row + place}: {name} is {raw[place]:g}, expected a number of 0 or more")

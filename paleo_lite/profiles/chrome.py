"""PyTorch profiler's Chrome traces, plain or gzip, streamed.

The trace is decoded a piece at a time; only the fields named here are built, of events of all kinds. Rows wait in a
temporary file, in Arrow's own form, until the trace is read to its end: only then are all operations known, and the
time that the trace counts from (``baseTimeNanoseconds`` often stands last). Memory is a piece,
the distinct names and, to link kernels by, some 200 bytes for each CPU operation (a sixth of the trace's own size);
without the columns op, params, direction, execution, step, launch_ns and layer not even that.

Left out: Python functions but for the calls of modules, flow arrows, synchronisation and overheads.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute

from ..errors import BadFile, BadProfile
from .chrome_events import CATEGORIES, LATEST_US, bad_element, decode_events
from .chrome_rows import Rows
from .json_stream import JsonArray, decode_around
from .table import batch_of, coded
from .xla import SIGN

_KEY = re.compile(rb'"(traceEvents|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:')
_LINKED = ("op", "params", "direction", "execution", "step", "launch_ns")


class _Around(msgspec.Struct):
    base: int | str = msgspec.field(name="baseTimeNanoseconds", default=0)


class ChromeTrace:
    """The reader; see `table.Reader`."""

    name = "chrome-trace"
    what = "Chrome traces of the PyTorch profiler (.json, .json.gz)"

    def recognises(self, path: Path, head: bytes) -> bool:
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if start[:1] == b"{":
            return _KEY.search(head) is not None and SIGN.search(head) is None and b'"BeginNs"' not in head
        return re.match(rb"\[\s*\{", start) is not None and re.search(rb'"ph"\s*:', head) is not None

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """The events of `CATEGORIES` in the order of the file.

        `op`, `params`, `direction` and `execution` of a kernel, copy or call of the runtime are those of the operation
        that launched it (see `launches`). `params` are its ``Input Dims``, ``Input type`` and, where they decide its
        work, ``Concrete Inputs``, as JSON; of a collective its message. `layer` is the path of the modules and ranges
        that it ran in (see `modules`). `step` is the iteration that launched it (see `marks`),
        `launch_ns` the start of the call that did.
        ``metric.est_achieved_occupancy`` is a share of 1. Kernels that CUPTI's range profiler counted have no duration,
        and FLOPs where the counters tell them (see `ncu`).
        """
        with tempfile.TemporaryFile() as spool:
            wanted = columns is None or "layer" in columns
            rows = Rows(linked=wanted or not set(_LINKED).isdisjoint(columns or ()), placed=wanted)
            try:
                base_ns = _spool(path, rows, spool)
            except OSError as error:  # of the spool: those of the trace have become BadProfile
                raise BadFile(f"{tempfile.gettempdir()}: cannot hold the rows of {path} ({error.strerror})") from None
            launched = rows.steps() if rows.linked else None
            links = rows.links() if rows.linked else None
            places = None if launched is None else rows.places(launched.steps)
            placed = None if places is None or links is None else places.of(links)
            names, params = pa.array(rows.names, pa.string()), pa.array(rows.params, pa.string())
            spool.seek(0)
            for batch in pa.ipc.open_stream(spool):
                values = {name: batch.column(name) for name in batch.schema.names}
                external, correlation, own = (np.asarray(values.pop(key)) for key in ("external", "correlation", "own"))
                if launched is not None:
                    values |= launched.columns(correlation, np.asarray(values["start_ns"]), base_ns)
                values["start_ns"] = pa.compute.add(values["start_ns"], base_ns)
                if links is not None:
                    at = np.where(own >= 0, own, links.find(external, correlation))
                    values |= links.columns(at, names, params)
                if places is not None and placed is not None:
                    values["layer"] = coded(np.where(at >= 0, placed[at], -1), places.names)
                yield batch_of(values, batch.num_rows, columns)


def _spool(path: Path, rows: Rows, spool: IO[bytes]) -> int:
    """Write the rows of the whole trace aside; returns the nanoseconds that its times count from."""
    array = JsonArray(path, "traceEvents", decode_events)
    writer, count = None, 0
    for piece in array.pieces():
        count += piece.decoded.count
        if piece.decoded.fault:
            index, what = piece.decoded.fault
            raise bad_element(path, piece, index, what)
        if piece.decoded.wanted:
            batch = rows.batch(path, piece)
            writer = writer or pa.ipc.new_stream(spool, batch.schema)
            writer.write_batch(batch)
    if writer is None:
        raise BadProfile(
            f"{path}: a trace of {count} events, none of them from the PyTorch profiler ({', '.join(CATEGORIES)})"
        )
    writer.close()
    around = decode_around(array, _Around)
    base = 0 if around is None else around.base
    try:
        base_ns = int(base)
    except ValueError:
        raise BadProfile(f"{path}: baseTimeNanoseconds is {str(base)[:80]!r}, not a whole number") from None
    if not 0 <= base_ns <= LATEST_US * 1000:
        raise BadProfile(f"{path}: baseTimeNanoseconds is {base_ns}, outside the years 1970 to 2096")
    return base_ns

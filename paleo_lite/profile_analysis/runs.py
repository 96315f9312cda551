"""`Runs`: the rows of a profile grouped by operation, which is many times shorter than the rows.

A run is a sequence of rows on one thread with the same operation, shapes and direction. Rows of other threads in
between do not end it. If the profiler records executions of operations, each execution is a run. A row without shapes
is a run by itself, because it may be a different operation than the next row.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from ..profiles.table import device_rows, float_column, from_numpy, to_numpy, values_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = (
    "category", "kernel", "op", "direction", "start_ns", "duration_ns", "calls", "flops", "bytes", "thread", "params",
    "execution", "step",
)  # fmt: skip
"""Columns of a profile that are read."""

MAX_RUNS = 2**22
"""Maximum number of runs of a profile, about 100 bytes each."""

FIELDS: dict[str, type] = {
    "signature": np.int32,  # index in `signatures`
    "row": np.int64,  # first row, among those of the device
    "last": np.int64,  # last row
    "rows": np.int64,
    "duration_ns": np.float64,
    "flops": np.float64,  # from the profiler
    "bytes": np.float64,
    "flops_rows": np.int64,  # rows with FLOPs from the profiler
    "bytes_rows": np.int64,
    "mix": np.uint64,  # combination of kernels: sum of the hashes of their names
    "execution": np.int64,  # -1 if not recorded
    "step": np.int32,  # index in `steps`, -1 outside of all
    "layer": np.int32,  # index in `layers` of its first row, -1 outside of all
}
"""Columns of a table of runs, each with its own array: a structured array takes a tenth longer to read."""


class Signature(NamedTuple):
    """Common attributes of the rows of a run; None if the profiler does not record them."""

    thread: int | None
    direction: str | None
    op: str | None
    params: str | None
    kernel: str | None


class Runs(msgspec.Struct, frozen=True, eq=False):
    """Runs of the device rows of a profile, ordered by thread and row."""

    # Distinct signatures; the column ``signature`` of the table is an index in this list.
    signatures: list[Signature] = []
    table: dict[str, NDArray[Any]] = {}  # columns of `FIELDS`; empty without rows; shape (runs,)
    # For each value of ``mix``, the names of the kernels in the run and the number of times that each occurs.
    mixes: dict[int, dict[str, int]] = {}
    length: int = 0  # number of rows
    # Start and end of each row, in the order of the runs; None if the profile has no start times; shape (rows,
    # 2), or None.
    spans_ns: NDArray[np.int64] | None = None
    steps: list[str] = []  # names of the iterations that the program marked, in order of time
    layers: list[str] = []  # paths of modules and ranges of the program; empty if the column was not read


def find_runs(batch: pa.RecordBatch) -> Runs:
    """Return the runs of a batch with the columns `COLUMNS`; columns that a format lacks are unknown."""
    batch = device_rows(batch)
    if not batch.num_rows:
        return Runs()
    codes, texts = _encode(batch)
    order, label, first = _order_by_thread(codes, [len(texts[name]) for name in Signature._fields])
    _, signature, examples = _distinct(label[first])
    ends = np.append(first[1:], batch.num_rows)
    row = order[first]
    table = {
        "signature": signature,
        "row": row,
        "last": order[ends - 1],
        "rows": ends - first,
        "execution": codes["execution"][row],
        "step": codes["step"][row] - 1,
        "layer": codes["layer"][row] - 1,
    }
    run_of_row = np.empty(batch.num_rows, np.int64)
    run_of_row[order] = np.repeat(np.arange(len(first)), table["rows"])
    table |= _sum_by_run(batch, run_of_row, len(first))
    calls = np.maximum(float_column(batch, "calls", 1.0), 1.0).astype(np.int64)[order]
    table["mix"], mixes = _mix_kernels(codes["kernel"][order], calls, texts["kernel"], first, ends)
    return Runs(
        signatures=_signatures_of(row[examples], codes, texts),
        table={name: np.asarray(table[name], kind) for name, kind in FIELDS.items()},
        mixes=mixes,
        length=batch.num_rows,
        spans_ns=_spans_of(batch, order),
        steps=[str(name) for name in texts["step"][1:]],
        layers=[str(name) for name in texts["layer"][1:]],
    )


def _encode(batch: pa.RecordBatch) -> tuple[dict[str, NDArray[np.int64]], dict[str, list[Any]]]:
    """Return each column of texts as codes of its rows and the text of each code; code 0 is an unknown text."""
    codes: dict[str, NDArray[np.int64]] = {}
    texts: dict[str, list[Any]] = {}
    for name in (*Signature._fields, "step", "layer"):
        codes[name], texts[name] = values_of(batch, name)
    codes["execution"] = float_column(batch, "execution", -1.0).astype(np.int64)
    return codes, texts


def _sum_by_run(batch: pa.RecordBatch, run_of_row: NDArray[np.int64], runs: int) -> dict[str, NDArray[Any]]:
    """Return the seconds, FLOPs and bytes of each run, and its numbers of rows with known FLOPs and bytes."""
    sums = {"duration_ns": np.bincount(run_of_row, float_column(batch, "duration_ns"))}
    for name in ("flops", "bytes"):
        values = float_column(batch, name)
        is_known = ~np.isnan(values)
        sums[name] = np.bincount(run_of_row[is_known], values[is_known], runs)
        sums[f"{name}_rows"] = np.bincount(run_of_row[is_known], minlength=runs)
    return sums


def _mix_kernels(
    kernel: NDArray[np.int64],
    calls: NDArray[np.int64],
    names: Sequence[str | None],
    first: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> tuple[NDArray[np.uint64], dict[int, dict[str, int]]]:
    """Return the combination of kernels of each run, and how often each kernel occurs in each combination.

    `kernel` are the codes of the rows in the order of runs, which begin at `first` and end before `ends`, and `calls`
    how often each was launched: a row of a table stands for several launches.
    """
    hashes = np.array([_name_hash(name) for name in names], np.uint64)
    mix = np.add.reduceat(hashes[kernel] * calls.astype(np.uint64), first)
    distinct, _, examples = _distinct(mix)
    kernels_of: dict[int, dict[str, int]] = {}
    for key, example in zip(distinct.tolist(), examples.tolist()):
        rows = slice(first[example], ends[example])
        launches: Counter[str] = Counter()
        for code, count in zip(kernel[rows].tolist(), calls[rows].tolist()):
            launches[str(names[code])] += count
        kernels_of[key] = launches
    return mix, kernels_of


def _spans_of(batch: pa.RecordBatch, order: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return start and end of each row in an order; None where a start is unknown."""
    if "start_ns" not in batch.schema.names or batch.column("start_ns").null_count:
        return None
    start = to_numpy(batch.column("start_ns"))
    duration = float_column(batch, "duration_ns").astype(np.int64)
    return np.stack([start, start + duration], axis=1)[order]


def _signatures_of(
    rows: NDArray[np.int64], codes: dict[str, NDArray[np.int64]], texts: dict[str, list[Any]]
) -> list[Signature]:
    """Return the signatures of some rows; only rows without an operation have their kernel in it."""
    signatures = []
    for row in rows.tolist():
        signature = Signature(*(texts[name][codes[name][row]] for name in Signature._fields))
        signatures.append(signature if codes["op"][row] == 0 else signature._replace(kernel=None))
    return signatures


def _order_by_thread(
    codes: dict[str, NDArray[np.int64]], sizes: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows ordered by thread, a number for each row's signature, and the starts of runs."""
    thread = codes["thread"]
    order = np.argsort(thread.astype(np.uint16), kind="stable") if sizes[0] > 1 else np.arange(len(thread))
    label, bound = thread.copy(), sizes[0]
    for name, size in zip(Signature._fields[1:], sizes[1:]):
        if bound * size >= 2**63:  # a mixed-radix number of four columns of 2^16 distinct texts has 64 bits
            distinct, label, _ = _distinct(label)
            label, bound = label.astype(np.int64), len(distinct)
        bound *= size
        label *= size
        if name == "kernel":  # kernels separate only the rows without an operation
            label += codes[name] * (codes["op"] == 0)
        else:
            label += codes[name]
    label = label[order]
    begins = (codes["params"] == 0)[order]
    begins[0] = True
    begins[1:] |= label[1:] != label[:-1]
    for name in ("execution", "step"):
        values = codes[name][order]
        begins[1:] |= values[1:] != values[:-1]
    return order, label, np.flatnonzero(begins)


def _distinct(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Find the distinct values, by hashing, which takes a fifth of the time of numpy.unique.

    Return the values in order of their first occurrence, the index of each given value in them, shape (values,), and
    the position of the first occurrence of each distinct value.
    """
    encoded = from_numpy(values, pa.uint64() if values.dtype == np.uint64 else pa.int64()).dictionary_encode()
    index = to_numpy(encoded.indices)
    first = np.empty(len(encoded.dictionary), np.int64)
    first[index[::-1]] = np.arange(len(values))[::-1]
    return to_numpy(encoded.dictionary), index, first


@lru_cache(2**14)
def _name_hash(name: str | None) -> int:
    return int.from_bytes(hashlib.blake2b((name or "").encode(), digest_size=8).digest(), "little")


def concatenate_runs(batches: Sequence[Runs]) -> Runs:
    """Concatenate the parts of a profile, and join the runs that were split between two parts."""
    batches = [batch for batch in batches if batch.length]
    if len(batches) < 2:
        return batches[0] if batches else Runs()
    numbers: dict[Signature, int] = {}
    steps: dict[str, int] = {}
    layers: dict[str, int] = {}
    mixes: dict[int, dict[str, int]] = {}
    tables, length = [], 0
    for batch in batches:
        moved = np.array([numbers.setdefault(signature, len(numbers)) for signature in batch.signatures], np.int32)
        table = batch.table
        marked = np.array([*(steps.setdefault(step, len(steps)) for step in batch.steps), -1], np.int32)
        placed = np.array([*(layers.setdefault(layer, len(layers)) for layer in batch.layers), -1], np.int32)
        tables.append(
            table
            | {"signature": moved[table["signature"]], "row": table["row"] + length, "last": table["last"] + length}
            | {"step": marked[table["step"]], "layer": placed[table["layer"]]}  # -1 is the last
        )
        mixes |= batch.mixes
        length += batch.length
    spans = [batch.spans_ns for batch in batches if batch.spans_ns is not None]
    spans_ns = np.concatenate(spans) if len(spans) == len(batches) else None
    table = {name: np.concatenate([table[name] for table in tables]) for name in FIELDS}
    return _join_split_runs(Runs(list(numbers), table, mixes, length, spans_ns, list(steps), list(layers)))


def order_by_start(runs: Runs) -> Runs:
    """Return the runs with rows numbered by the start of their kernels; unchanged without start times.

    Profilers that collect records per thread of the host write all kernels of one thread before those of the next:
    PyTorch's with CUPTI of CUDA 13, for example. The order of the file then says nothing about the order of the
    passes.
    """
    if runs.spans_ns is None:
        return runs
    start = runs.spans_ns[:, 0]
    rank = np.empty(len(start), np.int64)
    rank[np.argsort(start, kind="stable")] = np.arange(len(start))
    first = np.cumsum(runs.table["rows"]) - runs.table["rows"]
    bounds = {"row": np.minimum.reduceat(rank, first), "last": np.maximum.reduceat(rank, first)}
    if all((bounds[name] == runs.table[name]).all() for name in bounds):
        return runs
    return _join_split_runs(msgspec.structs.replace(runs, table=runs.table | bounds))


def _join_split_runs(runs: Runs) -> Runs:
    """Sort runs by thread and row, and join the runs that were split between two parts."""
    threads: dict[int | None, int] = {}
    thread_of = np.array([threads.setdefault(signature.thread, len(threads)) for signature in runs.signatures])
    order = np.lexsort((runs.table["row"], thread_of[runs.table["signature"]]))
    spans = runs.spans_ns
    if spans is not None:
        counts = runs.table["rows"]
        starts = np.cumsum(counts) - counts
        spans = spans[np.concatenate([np.arange(starts[i], starts[i] + counts[i]) for i in order])]
    table = {name: column[order] for name, column in runs.table.items()}
    has_no_shapes = np.array([signature.params is None for signature in runs.signatures])[table["signature"][1:]]
    begins = np.ones(len(order), bool)
    is_unchanged = [table[name][1:] == table[name][:-1] for name in ("signature", "execution", "step")]
    begins[1:] = has_no_shapes | ~np.logical_and.reduce(is_unchanged)  # the thread is part of the signature
    mixes = dict(runs.mixes)
    if not begins.all():
        first = np.flatnonzero(begins)
        stops = np.append(first[1:], len(order))
        summed = ("rows", "duration_ns", "flops", "bytes", "flops_rows", "bytes_rows", "mix")
        joined = {name: column[first] for name, column in table.items()} | {"last": table["last"][stops - 1]}
        joined |= {name: np.add.reduceat(table[name], first) for name in summed}
        for run in np.flatnonzero(stops - first > 1):
            joined_mix: Counter[str] = Counter()
            for mix in table["mix"][first[run] : stops[run]].tolist():
                joined_mix.update(mixes[mix])
            mixes[int(joined["mix"][run])] = joined_mix
        table = joined
    return msgspec.structs.replace(runs, table=table, mixes=mixes, spans_ns=spans)


def split_at_iterations(runs: Runs, starts: NDArray[np.int64]) -> Runs:
    """Split the runs that extend over the start of an iteration; `starts` are the first rows, shape (iterations,).

    A thread with only one operation has a single run through all iterations: each iteration gets an equal share.
    """
    table = runs.table
    inside = np.searchsorted(starts, table["last"], "right") - np.searchsorted(starts, table["row"], "right")
    if not inside.any():
        return runs
    pieces = inside + 1
    divided = {name: np.repeat(column, pieces) for name, column in table.items()}
    piece = np.arange(len(divided["row"])) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    piece_count = np.repeat(pieces, pieces)
    length = divided["last"] - divided["row"]
    divided["row"][:] += length * piece // np.maximum(piece_count - 1, 1)
    for name in ("rows", "flops_rows", "bytes_rows"):
        undivided = divided[name].copy()
        divided[name][:] = undivided * (piece + 1) // piece_count - undivided * piece // piece_count  # they add up
    for name in ("duration_ns", "flops", "bytes"):
        divided[name][:] /= piece_count
    mixes = dict(runs.mixes)
    for run in np.flatnonzero(piece_count > 1):
        share = {
            name: -(-count // int(piece_count[run])) for name, count in runs.mixes[int(divided["mix"][run])].items()
        }
        mix = sum(count * _name_hash(name) for name, count in share.items()) % 2**64
        mixes[mix] = share
        divided["mix"][run] = mix
    return msgspec.structs.replace(runs, table=divided, mixes=mixes)

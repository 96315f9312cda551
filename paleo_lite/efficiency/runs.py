"""`Runs`: a profile as the operations that its rows belong to, many times shorter than the rows.

A run is what follows each other on one thread with the same operation, shapes and direction; rows of other threads in
between do not end it, and where the profiler tells executions of an operation apart, each is a run. A row without
shapes is a run by itself: nothing says that it is one operation with the next.
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

from ..profiles.table import codes, device_rows, from_numpy, known_in, numbers, to_numpy
from .run_table import RunTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = (
    "category", "kernel", "op", "direction", "start_ns", "duration_ns", "flops", "bytes", "thread", "params",
    "execution", "step",
)  # fmt: skip
"""What is read of a profile."""

MOST = 2**22
"""Runs of a profile that are held, some 100 bytes each."""


class Signature(NamedTuple):
    """What the rows of a run have in common; None where the profiler says nothing."""

    thread: int | None
    direction: str | None
    op: str | None
    params: str | None
    kernel: str | None


class Runs(msgspec.Struct, frozen=True, eq=False):
    """Runs of some rows, in the order thread by thread of each batch.

    Attributes
    ----------
    mixes : dict of int to dict
        For each value of ``mix`` the kernels' names and how often each is in the run.
    length : int
        Rows altogether.
    spans_ns : ndarray of int64, shape (rows, 2), or None
        Start and end of every row, run by run; None where the profile has no start times.
    steps : list of str
        Iterations that the program marked, in the order of time.
    layers : list of str
        Modules and ranges of the program; empty where the column was not read.
    settled : bool
        Whether the runs are by thread and row, and none is cut in two: those of one batch are.
    """

    signatures: list[Signature] = []
    table: RunTable = RunTable()
    mixes: dict[int, dict[str, int]] = {}
    length: int = 0
    spans_ns: NDArray[np.int64] | None = None
    settled: bool = False
    steps: list[str] = []
    layers: list[str] = []


def together(batches: Sequence[Runs]) -> Runs:
    """Parts of a profile in their order as one; what is one run across a seam becomes one in `settle`."""
    batches = [batch for batch in batches if batch.length]
    if len(batches) == 1:
        return batches[0]
    numbers: dict[Signature, int] = {}
    tables: list[RunTable] = []
    steps: dict[str, int] = {}
    layers: dict[str, int] = {}
    mixes: dict[int, dict[str, int]] = {}
    length = 0
    for batch in batches:
        moved = np.array([numbers.setdefault(signature, len(numbers)) for signature in batch.signatures], np.int32)
        table = batch.table
        marked = np.array([*(steps.setdefault(step, len(steps)) for step in batch.steps), -1], np.int32)
        placed = np.array([*(layers.setdefault(layer, len(layers)) for layer in batch.layers), -1], np.int32)
        moves = {
            "signature": moved[table["signature"]],
            "step": marked[table["step"]],  # -1 is the last
            "layer": placed[table["layer"]],
        }
        tables.append(table.but(**moves, row=table["row"] + length, last=table["last"] + length))
        mixes |= batch.mixes
        length += batch.length
    spans = [batch.spans_ns for batch in batches if batch.spans_ns is not None]
    return Runs(
        list(numbers),
        RunTable.concatenate(tables),
        mixes,
        length,
        np.concatenate(spans) if spans and len(spans) == len(batches) else None,
        steps=list(steps),
        layers=list(layers),
    )


def settle(runs: Runs) -> Runs:
    """Runs by thread and row, with those that a seam between batches cut in two put together again."""
    if not runs.length or runs.settled:
        return runs
    threads: dict[int | None, int] = {}
    thread_of = np.array([threads.setdefault(signature.thread, len(threads)) for signature in runs.signatures])
    thread = thread_of[runs.table["signature"]]
    order = np.lexsort((runs.table["row"], thread))
    table = runs.table[order]
    alone = np.array([signature.params is None for signature in runs.signatures])[table["signature"][1:]]
    begins = np.ones(len(table), bool)
    same = [table[name][1:] == table[name][:-1] for name in ("signature", "execution", "step")]
    begins[1:] = alone | ~np.logical_and.reduce(same)  # the thread is part of the signature
    mixes = dict(runs.mixes)
    if not begins.all():
        first = np.flatnonzero(begins)
        stops = np.append(first[1:], len(table))
        sums = {name: np.add.reduceat(table[name], first) for name in _SUMMED}
        joined = table[first].but(**sums, last=table["last"][stops - 1])
        for run in np.flatnonzero(stops - first > 1):
            of_run = table["mix"][first[run] : stops[run]].tolist()
            mixes[int(joined["mix"][run])] = _combined([mixes[mix] for mix in of_run])
        table = joined
    return Runs(runs.signatures, table, mixes, runs.length, _in_order(runs, order), True, runs.steps, runs.layers)


_SUMMED = ("rows", "duration_ns", "flops", "bytes", "flops_rows", "bytes_rows", "mix")


def divide(runs: Runs, starts: NDArray[np.int64]) -> Runs:
    """Runs with none across the beginning of an iteration.

    A thread that does nothing but one operation has a single run through all iterations: each gets an equal share.

    Parameters
    ----------
    runs : Runs
        Settled.
    starts : ndarray of int64, shape (iterations,)
        The first row of each iteration.
    """
    table = runs.table
    inside = np.searchsorted(starts, table["last"], "right") - np.searchsorted(starts, table["row"], "right")
    if not inside.any():
        return runs
    pieces = inside + 1
    divided = table.repeat(pieces)
    piece = np.arange(len(divided)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    many = np.repeat(pieces, pieces)
    length = divided["last"] - divided["row"]
    divided["row"][:] += length * piece // np.maximum(many - 1, 1)
    for name in ("rows", "flops_rows", "bytes_rows"):
        whole = divided[name].copy()
        divided[name][:] = whole * (piece + 1) // many - whole * piece // many  # they add up
    for name in ("duration_ns", "flops", "bytes"):
        divided[name][:] /= many
    mixes = dict(runs.mixes)
    for run in np.flatnonzero(many > 1):
        share = {name: -(-count // int(many[run])) for name, count in runs.mixes[int(divided["mix"][run])].items()}
        mix = sum(count * _name_hash(name) for name, count in share.items()) % 2**64
        mixes[mix] = share
        divided["mix"][run] = mix
    return Runs(runs.signatures, divided, mixes, runs.length, runs.spans_ns, True, runs.steps, runs.layers)


def _in_order(runs: Runs, order: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if runs.spans_ns is None:
        return None
    counts = runs.table["rows"]
    starts = np.cumsum(counts) - counts
    rows = np.concatenate([np.arange(starts[i], starts[i] + counts[i]) for i in order])
    spans: NDArray[np.int64] = runs.spans_ns[rows]
    return spans


def find_runs(batch: pa.RecordBatch) -> Runs:
    """The runs of a batch with the columns `COLUMNS` (those that the format has)."""
    batch = device_rows(batch)
    length = batch.num_rows
    if not length:
        return Runs()
    thread, threads = _threads(batch)
    direction, directions = _words(batch, "direction")
    op, ops = _words(batch, "op")
    params, shapes = _words(batch, "params")
    kernel, kernels = _words(batch, "kernel")
    label = thread.copy()
    for code, size in ((direction, directions), (op, ops), (params, shapes), (kernel * (op == 0), kernels)):
        label *= len(size)
        label += code
    order = np.argsort(thread.astype(np.uint16), kind="stable") if len(threads) > 1 else np.arange(length)
    label = label[order]
    begins = (params == 0)[order]
    begins[0] = True
    begins[1:] |= label[1:] != label[:-1]
    execution = step = np.broadcast_to(-1, length)
    if not _absent(batch, "execution"):
        execution = numbers(batch, "execution", -1.0).astype(np.int64)[order]
        begins[1:] |= execution[1:] != execution[:-1]
    steps: list[str | None] = [None]
    if not _absent(batch, "step"):
        step, steps = _words(batch, "step")
        step = step[order] - 1
        begins[1:] |= step[1:] != step[:-1]
    first = np.flatnonzero(begins)
    ends = np.append(first[1:], length)

    table: dict[str, NDArray[Any]] = {}
    labels, table["signature"], _ = _distinct(label[first])
    layer, layers = _words(batch, "layer")
    row = order[first]
    table |= {"row": row, "last": order[ends - 1], "rows": ends - first, "layer": layer[row] - 1}
    table |= {"execution": execution[first], "step": step[first]}
    run = np.empty(length, np.int64)  # of each row
    run[order] = np.repeat(np.arange(len(first)), table["rows"])
    table["duration_ns"] = np.bincount(run, numbers(batch, "duration_ns"))
    for name in ("flops", "bytes"):
        there = np.zeros(0, np.int64) if _absent(batch, name) else np.flatnonzero(known_in(batch.column(name)))
        values = numbers(batch, name, 0.0)[there]
        table[name] = np.bincount(run[there], values, len(first))
        table[f"{name}_rows"] = np.bincount(run[there], minlength=len(first))
    ordered = kernel[order]
    hashes = np.array([_name_hash(name) for name in kernels], np.uint64)
    table["mix"] = np.add.reduceat(hashes[ordered], first)

    sizes = (len(threads), len(directions), len(ops), len(shapes), len(kernels))
    signatures = [
        Signature(threads[t], directions[d], ops[o], shapes[p], kernels[k])
        for t, d, o, p, k in zip(*np.unravel_index(labels, sizes))
    ]
    mixes: dict[int, dict[str, int]] = {}
    distinct, _, places = _distinct(table["mix"])
    for mix, begin, end in zip(distinct.tolist(), first[places].tolist(), ends[places].tolist()):
        mixes[mix] = Counter(str(kernels[i]) for i in ordered[begin:end].tolist())
    return Runs(
        signatures,
        RunTable(table),
        mixes,
        length,
        _spans(batch, order),
        True,
        *(list(map(str, names[1:])) for names in (steps, layers)),
    )


def _distinct(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """The distinct values as they first come, for each value its place among them, and where each comes first.

    Hashed, which takes a fifth of the time of numpy.unique, which sorts.
    """
    encoded = from_numpy(values, pa.uint64() if values.dtype == np.uint64 else pa.int64()).dictionary_encode()
    places = to_numpy(encoded.indices)
    first = np.empty(len(encoded.dictionary), np.int64)
    first[places[::-1]] = np.arange(len(values))[::-1]
    return to_numpy(encoded.dictionary), places, first


def _threads(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], list[int | None]]:
    if "thread" not in batch.schema.names or batch.column("thread").null_count == batch.num_rows:
        return np.zeros(batch.num_rows, np.int64), [None]
    column = batch.column("thread").dictionary_encode()
    return codes(column), [None, *column.dictionary.to_pylist()]


def _absent(batch: pa.RecordBatch, name: str) -> bool:
    return name not in batch.schema.names or batch.column(name).null_count == batch.num_rows


def _words(batch: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], list[str | None]]:
    if _absent(batch, name):
        return np.zeros(batch.num_rows, np.int64), [None]
    column = batch.column(name)
    return codes(column), [None, *column.dictionary.to_pylist()]


def _spans(batch: pa.RecordBatch, order: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if "start_ns" not in batch.schema.names or batch.column("start_ns").null_count:
        return None
    start = to_numpy(batch.column("start_ns"))[order]
    return np.stack([start, start + numbers(batch, "duration_ns")[order].astype(np.int64)], axis=1)


@lru_cache(2**14)
def _name_hash(name: str | None) -> int:
    return int.from_bytes(hashlib.blake2b((name or "").encode(), digest_size=8).digest(), "little")


def _combined(mixes: Sequence[dict[str, int]]) -> dict[str, int]:
    whole: dict[str, int] = {}
    for mix in mixes:
        for name, count in mix.items():
            whole[name] = whole.get(name, 0) + count
    return whole

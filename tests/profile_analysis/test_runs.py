"""Runs of a profile, against itertools.groupby over its rows, thread by thread."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from paleo_lite.profile_analysis.runs import (
    COLUMNS,
    Runs,
    concatenate_runs,
    find_runs,
    order_by_start,
    split_at_iterations,
)
from paleo_lite.profiles.table import batch_of

NAMES = ("category", "kernel", "op", "params", "direction", "thread", "start_ns", "duration_ns", "flops", "bytes")


def rows_at_random(number: int, seed: int) -> list[dict]:
    pick = random.Random(seed)
    rows = []
    for start in range(number):
        op = pick.choice([None, "conv2d", "conv2d", "linear"])
        values = (
            pick.choice(["kernel", "kernel", "memcpy", "api"]),
            pick.choice("abc"),
            op,
            op and pick.choice([None, "N=1", "N=1", "N=2"]),
            pick.choice(["fprop", "fprop", "bprop", None]),
            pick.choice([None, 7, 7, 9]),
            start,
            pick.choice([None, 0.0, 1.0, 2.5]),
            pick.choice([None, 10.0]),
            pick.choice([None, 4.0, 0.0]),
        )
        rows.append(dict(zip(NAMES, values)))
    return rows


def batch(rows: list[dict]):
    return batch_of({name: [row[name] for row in rows] for name in NAMES}, len(rows), COLUMNS)


def runs_of(rows: list[dict]) -> list[tuple]:
    """Reference implementation: a run is a sequence of equal rows on a thread; rows without shapes are separate."""
    there = [row for row in rows if row["category"] != "api" and row["duration_ns"] is not None]
    for number, row in enumerate(there):
        row["row"] = number
    found = []
    for thread in sorted({row["thread"] for row in there}, key=lambda one: -1 if one is None else one):

        def alike(row: dict) -> tuple:
            alone = None if row["params"] else row["row"]
            return row["direction"], row["op"], row["params"], None if row["op"] else row["kernel"], alone

        for _, members in groupby((row for row in there if row["thread"] == thread), alike):
            run = list(members)
            first = run[0]
            kernel = None if first["op"] else first["kernel"]
            known = {name: [row[name] for row in run if row[name] is not None] for name in ("flops", "bytes")}
            found.append(
                (
                    (thread, first["direction"], first["op"], first["params"], kernel),
                    (first["row"], run[-1]["row"], len(run)),
                    sum(row["duration_ns"] for row in run),
                    *((sum(known[name]), len(known[name])) for name in ("flops", "bytes")),
                    dict(Counter(row["kernel"] for row in run)),
                )
            )
    return found


def as_tuples(runs: Runs) -> list[tuple]:
    return [
        (
            tuple(runs.signatures[entry["signature"]]),
            (entry["row"], entry["last"], entry["rows"]),
            entry["duration_ns"],
            (entry["flops"], entry["flops_rows"]),
            (entry["bytes"], entry["bytes_rows"]),
            runs.mixes[int(entry["mix"])],
        )
        for entry in (dict(zip(runs.table, values)) for values in zip(*runs.table.values()))
    ]


@pytest.mark.spread(5)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows_of_a_batch", [200, 1, 7])
def test_runs_are_neighbours_that_are_alike(seed, rows_of_a_batch) -> None:
    rows = rows_at_random(200, seed)
    rows.sort(key=lambda row: -1 if row["thread"] is None else row["thread"])  # threads as they first come
    parts = [batch(rows[at : at + rows_of_a_batch]) for at in range(0, len(rows), rows_of_a_batch)]
    found = concatenate_runs([find_runs(part) for part in parts])
    assert as_tuples(found) == runs_of(rows)
    kept = [row for row in rows if row["category"] != "api" and row["duration_ns"] is not None]
    assert found.length == len(kept)
    assert found.spans_ns.tolist() == [[row["start_ns"], row["start_ns"] + int(row["duration_ns"])] for row in kept]


def test_rows_of_other_threads_do_not_end_a_run() -> None:
    row = {"category": "kernel", "kernel": "a", "op": "conv2d", "params": "N=1", "duration_ns": 1.0}
    rows = [dict.fromkeys(NAMES) | row | {"thread": thread} for thread in (1, 2, 1, 1, 2)]
    assert [run[1] for run in as_tuples(find_runs(batch(rows)))] == [(0, 3, 3), (1, 4, 2)]


def test_kernels_across_iterations_are_divided_among_them() -> None:
    row = {"category": "kernel", "kernel": "a", "op": "conv2d", "params": "N=1", "duration_ns": 3.0, "flops": 10.0}
    runs = find_runs(batch([dict.fromkeys(NAMES) | row for _ in range(7)]))
    found = as_tuples(split_at_iterations(runs, np.array([0, 3, 5])))
    assert [run[1][2] for run in found] == [2, 2, 3]
    assert [run[2] for run in found] == [7.0, 7.0, 7.0]
    assert [run[3] for run in found] == [
        (pytest.approx(70 / 3), 2),
        (pytest.approx(70 / 3), 2),
        (pytest.approx(70 / 3), 3),
    ]
    assert split_at_iterations(runs, np.array([0])) is runs


def test_without_rows_there_are_no_runs() -> None:
    assert find_runs(batch([])).length == 0
    assert concatenate_runs([]).length == 0


def test_spans_of_batches_are_joined_if_all_batches_have_them() -> None:
    rows = [row for row in rows_at_random(40, 3) if row["thread"] is not None]
    halves = [find_runs(batch(rows[:20])), find_runs(batch(rows[20:]))]
    whole = find_runs(batch(rows))
    joined = concatenate_runs(halves)
    assert whole.spans_ns is not None and joined.spans_ns is not None
    assert joined.spans_ns.tolist() == whole.spans_ns.tolist()
    without_starts = [{**row, "start_ns": None} for row in rows[20:]]
    assert concatenate_runs([halves[0], find_runs(batch(without_starts))]).spans_ns is None


def test_rows_written_thread_by_thread_are_ordered_by_their_starts() -> None:
    rows = [row for row in rows_at_random(200, 3) if row["duration_ns"] is not None and row["category"] != "api"]
    threads = sorted({row["thread"] for row in rows}, key=lambda thread: -1 if thread is None else thread)
    in_time = find_runs(batch(rows))
    by_thread = find_runs(batch([row for thread in threads for row in rows if row["thread"] == thread]))
    ordered = order_by_start(by_thread)
    assert order_by_start(in_time) is in_time
    assert sorted(map(repr, as_tuples(ordered))) == sorted(map(repr, as_tuples(in_time)))
    assert order_by_start(ordered) is ordered
    assert order_by_start(Runs()).length == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_signatures_of_many_distinct_columns_do_not_overflow():
    """Four columns of 65,536 distinct texts have more combinations than 64 bits: they were an internal error."""
    texts = pa.array([str(number) for number in range(2**16)])
    codes = pa.array(np.arange(2**16), pa.int32())
    column = pa.DictionaryArray.from_arrays(codes, texts)
    rows = {"category": pa.array(["kernel"] * 2**16).dictionary_encode(), "kernel": column, "op": column}
    rows |= {"params": column, "thread": codes.cast(pa.int64()), "duration_ns": pa.array(np.ones(2**16))}
    runs = find_runs(pa.RecordBatch.from_pydict(rows))
    assert len({*runs.signatures}) == len(runs.signatures) == 2**16
    assert all(item.thread == int(item.op) and item.params == item.op for item in runs.signatures)
    assert np.bincount(runs.table["signature"]).tolist() == [1] * 2**16

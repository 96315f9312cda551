"""Timelines as Chrome traces, which Perfetto opens: what replicas of servers and stages of pipelines do, and when.

Times are in microseconds, as the Trace Event Format wants them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ..distributed.pipeline_schedule import simulate_schedule
from ..distributed.table import ScaleTable
from ..errors import BadValue
from ..serving.outcomes import Outcome

MICROSECONDS = 1e6

Event = dict[str, Any]


def encode_trace(events: Sequence[Event]) -> bytes:
    """Return the file of some events."""
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})


def fleet_events(pools: Mapping[str, Sequence[Outcome]]) -> list[Event]:
    """Return the iterations, the queue, the cache and the requests of the replicas of pools, a process per replica."""
    events: list[Event] = []
    for number, (name, outcome) in enumerate(_replicas(pools)):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        events += _step_events(outcome, number)
        events += _request_events(outcome, number)
    return events


def _replicas(pools: Mapping[str, Sequence[Outcome]]) -> Iterator[tuple[str, Outcome]]:
    """Yield the replicas of all pools with their names."""
    for pool, outcomes in pools.items():
        for replica, outcome in enumerate(outcomes):
            yield f"{pool} {replica}", outcome


def _step_events(outcome: Outcome, process: int) -> Iterator[Event]:
    """Yield the iterations of a replica, and its counters when they begin."""
    computed_before = 0
    for step in outcome.steps:
        new_tokens, computed_before = step.computed_tokens - computed_before, step.computed_tokens
        start_us = step.start_s * MICROSECONDS
        arguments = {"iterations": step.iterations, "sequences": step.sequences, "prompt tokens": new_tokens}
        kind = "decode" if not new_tokens else "prompts and decode" if step.sequences else "prompts"
        yield {
            "ph": "X", "name": kind, "pid": process, "tid": 0, "ts": start_us, "dur": step.time_s * MICROSECONDS,
            "args": arguments,
        }  # fmt: skip
        counters = {"waiting requests": step.waiting, "decoding sequences": step.sequences}
        yield {"ph": "C", "name": "requests", "pid": process, "ts": start_us, "args": counters}
        share = step.used_blocks / outcome.blocks
        yield {"ph": "C", "name": "cache in use", "pid": process, "ts": start_us, "args": {"share": share}}


def _request_events(outcome: Outcome, process: int) -> Iterator[Event]:
    """Yield the parts of each request: until it is admitted, until its first token, and until its end."""
    columns = (outcome.arrival_s, outcome.admitted_s, outcome.first_token_s, outcome.finish_s)
    times_us = (np.stack(columns, axis=1) * MICROSECONDS).tolist()
    for number, times in enumerate(times_us):
        for part, start_us, end_us in zip(("waiting", "to the first token", "answering"), times[:-1], times[1:]):
            common = {"cat": "request", "name": part, "id": f"{process}.{number}", "pid": process, "tid": 1}
            yield {**common, "ph": "b", "ts": start_us}
            yield {**common, "ph": "e", "ts": end_us}


SERIES_COLUMNS = (
    "replica", "start_s", "time_s", "iterations", "sequences", "prompt_tokens", "waiting_requests", "cache_share",
)  # fmt: skip
"""Columns of the time series of a fleet, a row per step of a replica."""


def fleet_series(pools: Mapping[str, Sequence[Outcome]]) -> str:
    """Return what the replicas of pools do over time, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SERIES_COLUMNS)
    for name, outcome in _replicas(pools):
        computed_before = 0
        for step in outcome.steps:
            share = f"{step.used_blocks / outcome.blocks:.6f}"
            new_tokens, computed_before = step.computed_tokens - computed_before, step.computed_tokens
            row = (name, f"{step.start_s:.6f}", f"{step.time_s:.6f}", step.iterations, step.sequences, new_tokens)
            writer.writerow((*row, step.waiting, share))
    return text.getvalue()


def schedule_events(table: ScaleTable) -> list[Event]:
    """Return the schedule of the largest pipeline among the rows of a training answer, a thread per stage."""
    rows = [row for row in table.rows if row.pipeline is not None]
    if not rows:
        raise BadValue("a timeline of training needs a pipeline, whose stages it shows: give `--pipeline`")
    row = max(rows, key=lambda row: row.workers)
    assert row.pipeline is not None
    name = f"{table.network}, {row.workers} x {table.gpu_name}"
    events: list[Event] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": name}}]
    for stage in range(row.pipeline.stages):
        arguments = {"name": f"stage {stage + 1}"}
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": stage, "args": arguments})
    for span in simulate_schedule(row.pipeline):
        of_span = {} if span.micro_batch is None else {"micro-batch": span.micro_batch + 1}
        if row.pipeline.virtual_stages > 1 and span.micro_batch is not None:
            of_span["virtual stage"] = span.virtual_stage + 1
        start_us, end_us = span.start_s * MICROSECONDS, span.end_s * MICROSECONDS
        common = {"ph": "X", "name": span.kind, "pid": 0, "tid": span.stage}
        events.append({**common, "ts": start_us, "dur": end_us - start_us, "args": of_span})
    return events

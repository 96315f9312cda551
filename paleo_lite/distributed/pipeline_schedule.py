"""Schedules of pipelines in detail: when each stage computes which micro-batch, exchanges data, or waits.

GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2021, section 2.2) and its interleaved form with several virtual
stages per device (the same, section 2.3; the order of Megatron-LM, ``forward_backward_pipelining_with_interleaving``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from ..errors import BadValue

FORWARD, BACKWARD, EXCHANGE, BUBBLE, UPDATE = "forward", "backward", "exchange", "bubble", "update"


class StageTimes(msgspec.Struct, frozen=True):
    """Times of one micro-batch on the stages of a pipeline, from which its schedule follows."""

    forward_s: tuple[float, ...]  # computation time on each stage, of all its virtual stages together; as `backward_s`
    backward_s: tuple[float, ...]
    # Exposed communication within each stage in both passes, in which it does not compute.
    exchange_s: tuple[float, ...]
    # Of a transfer to the next stage, and of one back, during which both may compute; length stages - 1.
    transfer_s: tuple[float, ...]
    micro_batches: int
    schedule: str = "1f1b"  # "gpipe" or "1f1b"
    virtual_stages: int = 1  # per device
    gradients_s: float = 0.0  # exposed exchange of gradients after the last micro-batch
    update_s: float = 0.0  # optimizer update and overhead of the step

    @property
    def stages(self) -> int:
        """Number of stages, one per device."""
        return len(self.forward_s)


class Span(NamedTuple):
    """Interval of time of one stage, in seconds from the start of the step."""

    stage: int  # from 0
    kind: str  # "forward", "backward", "exchange", "bubble" or "update"
    start_s: float
    end_s: float
    micro_batch: int | None = None  # from 0; None for waiting, the exchange of gradients and the update
    virtual_stage: int = 0  # on the device, from 0


class _Task(NamedTuple):
    """Pass of a micro-batch through a virtual stage of a device."""

    kind: str
    virtual_stage: int
    micro_batch: int


def simulate_schedule(times: StageTimes) -> list[Span]:
    """Return what every stage does from the start to the end of a step, in the order of stages and time.

    Raise BadValue if the schedule is interleaved and the stages do not divide the micro-batches.
    """
    if times.virtual_stages > 1 and times.micro_batches % times.stages:
        raise BadValue(
            f"an interleaved schedule needs micro-batches divisible by the {times.stages} stages "
            f"(got {times.micro_batches})"
        )
    orders = [list(_task_order(times, stage)) for stage in range(times.stages)]
    end_s_by_task: dict[tuple[int, _Task], float] = {}
    clock_s = [0.0] * times.stages
    position = [0] * times.stages
    spans: list[list[Span]] = [[] for _ in range(times.stages)]
    remaining = sum(map(len, orders))
    while remaining:
        before = remaining
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                task = order[position[stage]]
                source = _input_of(times, stage, task)
                if source is not None and source not in end_s_by_task:
                    break
                clock_s[stage] = _run_task(times, stage, task, clock_s[stage], source, end_s_by_task, spans[stage])
                position[stage] += 1
                remaining -= 1
        assert remaining < before, "the order of the tasks is a deadlock"
    end_s = max(clock_s)
    for stage in range(times.stages):
        spans[stage] += _finish(times, stage, clock_s[stage], end_s)
    return [span for row in spans for span in row]


def step_end_s(spans: Sequence[Span]) -> float:
    """Return the end of the step."""
    return max(span.end_s for span in spans)


def fraction_of(spans: Sequence[Span], kind: str) -> float:
    """Return the fraction of the time of all stages that is of a kind."""
    total_s = sum(span.end_s - span.start_s for span in spans)
    return sum(span.end_s - span.start_s for span in spans if span.kind == kind) / total_s


def _task_order(times: StageTimes, stage: int) -> Iterator[_Task]:
    """Yield the tasks of a stage in their order."""
    count, stages, parts = times.micro_batches, times.stages, times.virtual_stages
    total = count * parts
    if times.schedule == "gpipe":
        for number in range(total):
            yield _Task(FORWARD, 0, number)
        for number in reversed(range(total)):
            yield _Task(BACKWARD, 0, number)
        return
    warm_up = stages - 1 - stage
    if parts > 1:
        warm_up = 2 * warm_up + (parts - 1) * stages
    warm_up = min(warm_up, total)
    for number in range(warm_up):
        yield _numbered_task(times, FORWARD, number)
    for number in range(total - warm_up):
        yield _numbered_task(times, FORWARD, warm_up + number)
        yield _numbered_task(times, BACKWARD, number)
    for number in range(total - warm_up, total):
        yield _numbered_task(times, BACKWARD, number)


def _numbered_task(times: StageTimes, kind: str, number: int) -> _Task:
    """Return the forward or backward task with a number: as many micro-batches as stages take turns."""
    stages, parts = times.stages, times.virtual_stages
    if parts == 1:
        return _Task(kind, 0, number)
    round_, within = divmod(number, stages * parts)
    part, offset = divmod(within, stages)
    return _Task(kind, part if kind == FORWARD else parts - 1 - part, round_ * stages + offset)


def _input_of(times: StageTimes, stage: int, task: _Task) -> tuple[int, _Task] | None:
    """Return the stage and task whose result a task needs; None for the first virtual stage of the forward pass."""
    last = times.stages - 1
    if task.kind == FORWARD:
        if stage > 0:
            return stage - 1, task
        return (last, task._replace(virtual_stage=task.virtual_stage - 1)) if task.virtual_stage else None
    if stage < last:
        return stage + 1, task
    if task.virtual_stage < times.virtual_stages - 1:
        return 0, task._replace(virtual_stage=task.virtual_stage + 1)
    return stage, task._replace(kind=FORWARD)


def _run_task(
    times: StageTimes,
    stage: int,
    task: _Task,
    clock_s: float,
    source: tuple[int, _Task] | None,
    end_s_by_task: dict[tuple[int, _Task], float],
    spans: list[Span],
) -> float:
    """Append the spans of a task and of the wait before it, and return when it ends."""
    start_s = clock_s
    if source is not None:
        sent_s = end_s_by_task[source]
        arrival_s = sent_s + _transfer_s(times, source[0], stage)
        if arrival_s > clock_s:  # idle: first for the computation of the other stage, then for the transfer
            transfer_start_s = max(clock_s, sent_s)
            _append(spans, Span(stage, BUBBLE, clock_s, transfer_start_s))
            _append(spans, Span(stage, EXCHANGE, transfer_start_s, arrival_s))
            start_s = arrival_s
    compute_s = (times.forward_s if task.kind == FORWARD else times.backward_s)[stage] / times.virtual_stages
    exchange_s = times.exchange_s[stage] / 2 / times.virtual_stages  # divided evenly between the passes
    computed_s = start_s + compute_s
    end_s = computed_s + exchange_s
    _append(spans, Span(stage, task.kind, start_s, computed_s, task.micro_batch, task.virtual_stage))
    _append(spans, Span(stage, EXCHANGE, computed_s, end_s, task.micro_batch, task.virtual_stage))
    end_s_by_task[stage, task] = end_s
    return end_s


def _transfer_s(times: StageTimes, source: int, stage: int) -> float:
    """Return the time of a transfer between neighbours; between the last and the first stage, that of the slowest."""
    if source == stage:
        return 0.0
    if abs(source - stage) == 1:
        return times.transfer_s[min(source, stage)]
    return max(times.transfer_s)


def _finish(times: StageTimes, stage: int, clock_s: float, end_s: float) -> Iterator[Span]:
    """Yield the end of the step on a stage: gradients and update, and the wait for the slowest stage."""
    gradients_s, update_s = times.gradients_s, times.update_s
    for kind, seconds in ((EXCHANGE, gradients_s), (UPDATE, update_s), (BUBBLE, end_s - clock_s)):
        if seconds > 0:
            yield Span(stage, kind, clock_s, clock_s + seconds)
            clock_s += seconds


def _append(spans: list[Span], span: Span) -> None:
    if span.end_s > span.start_s:
        spans.append(span)

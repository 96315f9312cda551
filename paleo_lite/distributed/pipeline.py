"""Pipeline parallelism: partition of layers into stages of about equal time, and schedules of micro-batches.

GPipe (Huang et al. 2019) runs all m micro-batches forward, then all backward. 1F1B (PipeDream, Narayanan et al. 2019;
with a flush, Narayanan et al. 2021, section 2.2) runs the backward pass of a micro-batch as early as possible. With p
equal stages both have a bubble of (p - 1) / (m + p - 1) of the step. They differ in memory: GPipe keeps m micro-batches
in flight on every stage, 1F1B at most p - i on stage i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer
from ..errors import BadValue
from ..timing.liveness import find_buffers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

SCHEDULES = ("gpipe", "1f1b")


def waiting_slots(micro_batches: Any, stages: int, virtual_stages: int = 1) -> Any:
    """Return the time that the stages wait for each other in a step, in micro-batches of a stage.

    It is ``(p - 1) / v`` with as many micro-batches as stages or more (Narayanan et al. 2021, section 2.2). Fewer leave
    a stage idle each time that the last one has gone around the virtual stages: a micro-batch passes all ``p v`` of
    them in turn, whatever their number, and the other ones follow it, ``p + (m - 1) / v`` in all.
    """
    behind = np.minimum(micro_batches, stages)
    return np.maximum(micro_batches, stages) + (behind - 1) / virtual_stages - micro_batches


_TOLERANCE = 2.5e-13  # bounds on a stage's time with a smaller relative difference give the same partition
_SAMPLE_STRIDE = 16  # of this many neighbouring batch sizes one is partitioned from scratch


class Schedule(msgspec.Struct, frozen=True):
    """Timing of one step of a pipeline."""

    time_s: Any  # step time
    busy_s: Any  # computation time of the busiest stage
    transfer_s: Any  # increase of the step time due to transfers between stages
    in_flight: Any  # maximum number of micro-batches in flight on each stage, shape (stages,) or (stages, batch sizes)


def partition_layers(times_s: Any, stages: int) -> Any:
    """Partition layers into consecutive stages so that the slowest stage takes as little time as possible.

    The result is the exact minimum of the linear partition problem: the smallest bound on a stage's time under which
    filling one stage after another needs no more than `stages`. Bisection finds it for a sample of the batch sizes.
    Their partitions are mostly optimal for neighbouring batch sizes, too, which a single filling verifies; where they
    are not, bisection continues.

    The times of the layers have the shape (layers,) or (layers, batch sizes). Return the index of the first layer of
    each stage, as a list or an array of shape (stages, batch sizes). Raise BadValue if there are more stages than
    layers.
    """
    times = np.asarray(times_s, dtype=np.float64)
    if not 1 <= stages <= len(times):
        raise BadValue(f"the number of stages must be between 1 and the {len(times)} layers (got {stages})")
    rows = np.atleast_2d(times.T)
    ends = np.zeros((len(rows), len(times) + 1))
    np.cumsum(rows, axis=1, out=ends[:, 1:])
    longest_layer, mean_stage = rows.max(axis=1), ends[:, -1] / stages
    low = np.maximum(longest_layer, mean_stage)
    high = longest_layer + mean_stage  # a stage exceeds the mean by less than one layer

    sample = slice(None, None, _SAMPLE_STRIDE)
    sample_bounds = _minimal_bounds(ends[sample], low[sample], high[sample], stages)
    cuts = _fill_stages(ends[sample], sample_bounds * (1 + 4 * _TOLERANCE), stages)
    neighbour_cuts = cuts.repeat(_SAMPLE_STRIDE, axis=0)[: len(ends)]
    neighbour_bounds = np.diff(np.take_along_axis(ends, neighbour_cuts, axis=1)).max(axis=1)

    high = np.minimum(neighbour_bounds, high)
    can_improve = _fill_stages(ends, high * (1 - 2 * _TOLERANCE), stages)[:, -1] == len(times)
    low = np.where(can_improve, low, high)
    bounds = _minimal_bounds(ends, low, high, stages)
    starts = _fill_stages(ends, bounds * (1 + 4 * _TOLERANCE), stages)[:, :-1]
    _use_spare_stages(ends, starts)
    return starts.T if times.ndim == 2 else starts[0].tolist()


def _minimal_bounds(ends: Floats, low: Floats, high: Floats, stages: int) -> Floats:
    """Return the smallest feasible bound on a stage's time per row, by bisection between `low` and a feasible `high`.

    A feasible bound is lowered to the longest stage that it gives; an infeasible one is raised to the smallest time at
    which one of its stages takes a further layer.
    """
    low, high, layers = low.copy(), high.copy(), ends.shape[1] - 1
    while True:
        rows = np.flatnonzero(high - low > _TOLERANCE * high)
        if not len(rows):
            return high
        row_ends = ends[rows]
        starts = _fill_stages(row_ends, (low[rows] + high[rows]) / 2, stages)
        is_feasible = starts[:, -1] == layers
        start_times = np.take_along_axis(row_ends, starts, axis=1)
        longest_stage = np.diff(start_times).max(axis=1)
        next_ends = np.take_along_axis(row_ends, np.minimum(starts[:, 1:] + 1, layers), axis=1)
        with_further_layer = next_ends - start_times[:, :-1]
        low[rows] = np.where(is_feasible, low[rows], with_further_layer.min(axis=1))
        high[rows] = np.where(is_feasible, longest_stage, high[rows])


def _fill_stages(ends: Floats, bounds: Floats, stages: int) -> Ints:
    """Fill stage after stage with as many layers as the row's bound allows.

    `ends` are the cumulative times of the layers, shape (rows, layers + 1), and `bounds` the maximum time of a stage,
    shape (rows,). Return the first layer of each stage, and the layer after the last stage, shape (rows, stages + 1).
    """
    rows, layers = np.arange(len(ends)), ends.shape[1] - 1
    ends_by_layer = np.ascontiguousarray(ends.T)
    starts = [np.zeros(len(ends), dtype=np.int64)]
    for _ in range(stages):
        limit = ends_by_layer[starts[-1], rows] + bounds
        # Counting the layers up to the limit is faster than searching for it.
        reached = (ends_by_layer <= limit).view(np.int8).sum(axis=0, dtype=np.int32) - 1
        starts.append(np.clip(reached, np.minimum(starts[-1] + 1, layers), layers))
    return np.stack(starts, axis=1)


def _use_spare_stages(ends: Floats, starts: Ints) -> None:
    """Give each empty stage a part of its row's longest stage that has at least two layers; changes `starts`."""
    layers, stages = ends.shape[1] - 1, starts.shape[1]
    layer_indices = np.arange(layers + 1)
    while True:
        rows = np.flatnonzero(starts[:, -1] >= layers)
        if not len(rows):
            return
        bounds = np.append(starts[rows], np.full((len(rows), 1), layers), axis=1)
        stage_times = np.diff(np.take_along_axis(ends[rows], bounds, axis=1))
        divisible_times = np.where(np.diff(bounds) > 1, stage_times, -1.0)
        longest = stages - 1 - divisible_times[:, ::-1].argmax(axis=1)[:, None]
        first = np.take_along_axis(bounds, longest, axis=1)
        last = np.take_along_axis(bounds, longest + 1, axis=1)
        is_inside = (first < layer_indices) & (layer_indices < last)
        middle = (np.take_along_axis(ends[rows], first, axis=1) + np.take_along_axis(ends[rows], last, axis=1)) / 2
        distance = np.abs(ends[rows] - middle)
        starts[rows, -1] = np.where(is_inside, distance, np.inf).argmin(axis=1)
        starts[rows] = np.sort(starts[rows], axis=1)


def crossing_bytes(layers: Sequence[Layer], starts: Sequence[int], element_bytes: int) -> Floats:
    """Return the bytes per sample that cross each stage boundary: buffers written before it and read after it.

    `starts` are the first layers of the stages. The result has the shape (stages - 1,).
    """
    graph = find_buffers(layers, element_bytes)
    first_write: dict[int, int] = {}
    last_read: dict[int, int] = {}
    for index, (reads, writes) in enumerate(zip(graph.reads, graph.writes)):
        for written in writes:
            first_write.setdefault(written, index)
        for read in reads:
            last_read[read] = index
    lifetimes = []  # bytes, writing layer and last reading layer of each activation
    for index, buffer in enumerate(graph.buffers):
        if buffer.activation and index in first_write:
            lifetimes.append((float(buffer.size), first_write[index], last_read.get(index, -1)))
    crossing = [sum(size for size, first, last in lifetimes if first < cut <= last) for cut in starts[1:]]
    return np.array(crossing)


def schedule_step(
    forward_s: Any, backward_s: Any, send_s: Any, return_s: Any, micro_batches: Any, kind: str
) -> Schedule:
    """Return the timing of a step of m micro-batches through stages and the links between them.

    The model is a permutation flow shop: m equal jobs through stations in a row take the sum of the stations' times
    plus m - 1 times the longest. Links are stations of their own, since transfers overlap with computation. GPipe is
    two such rows, forward and backward; 1F1B, where a stage alternates between forward and backward, is one row with
    both.

    The times are those of one micro-batch on each stage, shape (stages,) or (stages, batch sizes), and of sending its
    activations to the next stage, and their gradients back, shape (stages - 1,) or (stages - 1, batch sizes). `kind` is
    ``gpipe`` or ``1f1b``.
    """
    if kind not in SCHEDULES:
        raise BadValue(f"the schedule must be {' or '.join(SCHEDULES)} (got {kind!r})")
    forward, backward, send, send_back = (
        np.asarray(part, dtype=np.float64) for part in (forward_s, backward_s, send_s, return_s)
    )
    stages, repeats = len(forward), micro_batches - 1

    def flow_shop_s(*stations: Floats) -> Any:
        station_times = np.concatenate(stations)
        return station_times.sum(axis=0) + repeats * station_times.max(axis=0)

    in_flight = np.broadcast_to(micro_batches, forward.shape)
    if kind == "gpipe":
        time_s = flow_shop_s(forward, send) + flow_shop_s(backward, send_back)
        without_transfers_s = flow_shop_s(forward) + flow_shop_s(backward)
    else:
        time_s = flow_shop_s(forward + backward, send + send_back)
        without_transfers_s = flow_shop_s(forward + backward)
        remaining_stages = np.arange(stages, 0, -1).reshape(-1, *(1,) * (forward.ndim - 1))
        in_flight = np.minimum(in_flight, remaining_stages)
    busy_s = (forward + backward).max(axis=0) * micro_batches
    return Schedule(time_s, busy_s, time_s - without_transfers_s, in_flight)

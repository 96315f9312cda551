"""Pipelines: layers cut into stages of about equal time, and what a step of micro-batches through them takes.

GPipe (Huang et al. 2019) sends all m micro-batches forward, then all backward; 1F1B (PipeDream, Narayanan et al. 2019;
with a flush, Narayanan et al. 2021, section 2.2) lets a stage go backward as soon as it can. With p equal stages both
idle for the share (p - 1) / (m + p - 1) of a step, the bubble; they differ in memory: GPipe keeps m micro-batches on
every stage, 1F1B at most p - i on stage i.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer
from ..errors import BadValue
from ..timing.buffers import find_buffers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

SCHEDULES = ("gpipe", "1f1b")
_APART = 2.5e-13  # bounds of a stage's time that are nearer, relatively, cut alike


class Schedule(msgspec.Struct, frozen=True):
    """A step of a pipeline.

    Attributes
    ----------
    time_s : float
    busy_s : float
        Seconds that the busiest stage computes.
    transfer_s : float
        The part of the time by which sending makes it longer.
    in_flight : ndarray of int, shape (stages,) or (stages, batch sizes)
        Micro-batches that each stage keeps at most.
    """

    time_s: Any
    busy_s: Any
    transfer_s: Any
    in_flight: Any


def bubble_share(stages: int, micro_batches: int) -> float:
    """Share of a step that equal stages idle: (p - 1) / (m + p - 1) (Huang et al. 2019, section 2.3)."""
    return (stages - 1) / (micro_batches + stages - 1)


def partition(times_s: Any, stages: int) -> Any:
    """Cut layers into consecutive stages so that the slowest takes as little as it can.

    The exact minimum: the smallest bound under which filling stage after stage needs no more of them, found among the
    sums of consecutive layers by bisection (the "linear partition" problem).

    Parameters
    ----------
    times_s : array, shape (layers,) or (layers, batch sizes)
    stages : int

    Returns
    -------
    list of int, or ndarray of shape (stages, batch sizes)
        Index of the first layer of each stage.

    Raises
    ------
    BadValue
        If there are more stages than layers.
    """
    times = np.asarray(times_s, dtype=np.float64)
    if not 1 <= stages <= len(times):
        raise BadValue(f"{len(times)} layers cannot be cut into {stages} stages")
    columns = times if times.ndim == 2 else times[:, None]
    ends = np.concatenate([np.zeros((1, columns.shape[1])), np.cumsum(columns, axis=0)])
    scale = 2 * np.where(ends[-1] > 0, ends[-1], 1.0)
    rising = scale, (ends / scale + np.arange(len(scale))).T.ravel()
    longest, even = columns.max(axis=0), ends[-1] / stages
    low, high = np.maximum(longest, even), longest + even  # a stage that goes past its even share does by one layer
    while np.any(high - low > _APART * high):
        middle = (low + high) / 2
        enough = _fill(ends, rising, middle, stages)[-1] >= len(times)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    starts = _fill(ends, rising, high * (1 + 4 * _APART), stages)[:-1]
    for column in np.flatnonzero(starts[-1] >= len(times)):
        few = [start for start in starts[:, column].tolist() if start < len(times)]
        starts[:, column] = _spread(ends[:, column], few, stages)
    return starts if times.ndim == 2 else starts[:, 0].tolist()


def _fill(ends: Floats, rising: tuple[Floats, Floats], bounds: Floats, stages: int) -> Ints:
    """First layers of stages that each take as many layers as their column's bound allows, and where the last ends.

    All columns are searched at once, as one that rises: each, over its scale, between its number and a half more. What
    that rounds is put right.
    """
    layers, columns = len(ends) - 1, np.arange(ends.shape[1])
    scale, joined = rising
    at = np.zeros(ends.shape[1], dtype=np.int64)
    starts = [at]
    for _ in range(stages):
        until = ends[at, columns] + bounds
        sought = columns + np.minimum(until / scale, 0.75)
        reached = np.searchsorted(joined, sought, side="right") - 1 - columns * (layers + 1)
        while np.any(less := ends[reached, columns] > until):
            reached = reached - less
        while np.any(more := (reached < layers) & (ends[np.minimum(reached + 1, layers), columns] <= until)):
            reached = reached + more
        at = np.minimum(np.maximum(reached, at + 1), layers)
        starts.append(at)
    return np.array(starts)


def _spread(ends: Floats, starts: list[int], stages: int) -> list[int]:
    """Spare stages take over part of the longest one that has two layers or more."""
    layers = len(ends) - 1
    while len(starts) < stages:
        bounds = [*starts, layers]
        spans = [(float(ends[b] - ends[a]), place) for place, (a, b) in enumerate(pairwise(bounds)) if b - a > 1]
        place = max(spans)[1]
        first, last = bounds[place], bounds[place + 1]
        half = (ends[first] + ends[last]) / 2
        cut = int(np.argmin(np.abs(ends[first + 1 : last] - half))) + first + 1
        starts.insert(place + 1, cut)
    return starts


def crossing_bytes(layers: Sequence[Layer], starts: Sequence[int], element_bytes: int) -> Floats:
    """Bytes per sample that cross each cut: buffers written before it that a layer behind it reads.

    Parameters
    ----------
    layers : sequence of Layer
    starts : sequence of int
        First layers of the stages.
    element_bytes : int
        Of a number of the network's precision.

    Returns
    -------
    ndarray, shape (stages - 1,)
    """
    graph = find_buffers(layers)
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    for index, (reads, writes) in enumerate(zip(graph.reads, graph.writes)):
        for buffer in writes:
            written.setdefault(buffer, index)
        for buffer in reads:
            read[buffer] = index
    sizes = {at: buffer.bytes_(element_bytes) for at, buffer in enumerate(graph.buffers) if buffer.activation}
    return np.array(
        [
            sum(float(size) for at, size in sizes.items() if at in written and written[at] < cut <= read.get(at, -1))
            for cut in starts[1:]
        ]
    )


def schedule(
    forward_s: Any, backward_s: Any, send_s: Any, return_s: Any, micro_batches: Any, kind: str = "1f1b"
) -> Schedule:
    """A step of m micro-batches through stages and the links between them.

    m equal jobs through stations in a row take the sum of the stations' times plus m - 1 times the longest (a
    permutation flow shop); links are stations of their own, as sending goes on beside computing. GPipe is two such
    rows, forward and backward; 1F1B, where a stage's forward and backward alternate, one row with both.

    Parameters
    ----------
    forward_s, backward_s : array, shape (stages,) or (stages, batch sizes)
        Of one micro-batch.
    send_s, return_s : array, shape (stages - 1,) or (stages - 1, batch sizes)
        Sending one micro-batch's activations on and their gradients back.
    micro_batches : int
    kind : {"gpipe", "1f1b"}
    """
    if kind not in SCHEDULES:
        raise BadValue(f"the schedule is {' or '.join(SCHEDULES)}, not {kind!r}")
    forward, backward, send, back = (
        np.asarray(part, dtype=np.float64) for part in (forward_s, backward_s, send_s, return_s)
    )
    stages, repeats = len(forward), micro_batches - 1

    def through(*stations: Floats) -> Any:
        joined = np.concatenate(stations)
        return joined.sum(axis=0) + repeats * joined.max(axis=0)

    kept = np.broadcast_to(micro_batches, forward.shape)
    if kind == "gpipe":
        time = through(forward, send) + through(backward, back)
        alone = through(forward) + through(backward)
    else:
        time = through(forward + backward, send + back)
        alone = through(forward + backward)
        left = np.arange(stages, 0, -1).reshape(-1, *(1,) * (forward.ndim - 1))
        kept = np.minimum(kept, left)
    busy = (forward + backward).max(axis=0) * micro_batches
    return Schedule(time, busy, time - alone, kept)

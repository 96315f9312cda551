"""Pipelines: layers cut into stages of about equal time, and what a step of micro-batches through them takes.

GPipe (Huang et al. 2019) sends all m micro-batches forward, then all backward; 1F1B (PipeDream, Narayanan et al. 2019;
with a flush, Narayanan et al. 2021, section 2.2) lets a stage go backward as soon as it can. With p equal stages both
idle for the share (p - 1) / (m + p - 1) of a step, the bubble; they differ in memory: GPipe keeps m micro-batches on
every stage, 1F1B at most p - i on stage i.
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
_APART = 2.5e-13  # bounds of a stage's time that are nearer, relatively, cut alike
_FEW = 16  # one of so many neighbouring batch sizes is cut without looking at others


class Schedule(msgspec.Struct, frozen=True):
    """A step of a pipeline.

    Attributes
    ----------
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


def partition(times_s: Any, stages: int) -> Any:
    """Cut layers into consecutive stages so that the slowest takes as little as it can.

    The exact minimum: the smallest bound under which filling stage after stage needs no more of them, found by
    bisection for a few batch sizes (the "linear partition" problem). Their cuts are mostly the best of their
    neighbours, too, which one filling tells; where not, bisection goes on.

    Parameters
    ----------
    times_s : array, shape (layers,) or (layers, batch sizes)

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
    rows = np.atleast_2d(times.T)
    ends = np.zeros((len(rows), len(times) + 1))
    np.cumsum(rows, axis=1, out=ends[:, 1:])
    longest, even = rows.max(axis=1), ends[:, -1] / stages
    low, high = np.maximum(longest, even), longest + even  # a stage that goes past its even share does by one layer
    few = slice(None, None, _FEW)
    cuts = _fill(ends[few], _least(ends[few], low[few], high[few], stages) * (1 + 4 * _APART), stages)
    guess = np.diff(np.take_along_axis(ends, cuts.repeat(_FEW, axis=0)[: len(ends)], axis=1)).max(axis=1)
    high = np.minimum(guess, high)
    enough = _fill(ends, high * (1 - 2 * _APART), stages)[:, -1] == len(times)
    low = np.where(enough, low, high)
    starts = _fill(ends, _least(ends, low, high, stages) * (1 + 4 * _APART), stages)[:, :-1]
    _spread(ends, starts)
    return starts.T if times.ndim == 2 else starts[0].tolist()


def _least(ends: Floats, low: Floats, high: Floats, stages: int) -> Floats:
    """The least bound of a stage's time between two of each row, the higher of which is enough.

    What is enough is more than the longest stage takes; what is not is less than what a further layer would.
    """
    low, high, layers = low.copy(), high.copy(), ends.shape[1] - 1
    while len(rows := np.flatnonzero(high - low > _APART * high)):
        left = ends[rows]
        starts = _fill(left, (low[rows] + high[rows]) / 2, stages)
        enough, begun = starts[:, -1] == layers, np.take_along_axis(left, starts, axis=1)
        taken = np.diff(begun).max(axis=1)
        more = np.take_along_axis(left, np.minimum(starts[:, 1:] + 1, layers), axis=1) - begun[:, :-1]
        low[rows], high[rows] = np.where(enough, low[rows], more.min(axis=1)), np.where(enough, taken, high[rows])
    return high


def _fill(ends: Floats, bounds: Floats, stages: int) -> Ints:
    """First layers of stages that each take as many layers as their row's bound allows, and where the last ends."""
    rows, layers, beside = np.arange(len(ends)), ends.shape[1] - 1, np.ascontiguousarray(ends.T)
    starts = [np.zeros(len(ends), dtype=np.int64)]
    for _ in range(stages):
        until = beside[starts[-1], rows] + bounds
        reached = (beside <= until).view(np.int8).sum(axis=0, dtype=np.int32) - 1  # counted faster than searched for
        starts.append(np.clip(reached, np.minimum(starts[-1] + 1, layers), layers))
    return np.stack(starts, axis=1)


def _spread(ends: Floats, starts: Ints) -> None:
    """Spare stages take over part of their row's longest one that has two layers or more."""
    layers, stages = ends.shape[1] - 1, starts.shape[1]
    places = np.arange(layers + 1)
    while len(rows := np.flatnonzero(starts[:, -1] >= layers)):
        bounds = np.append(starts[rows], np.full((len(rows), 1), layers), axis=1)
        spans = np.where(np.diff(bounds) > 1, np.diff(np.take_along_axis(ends[rows], bounds, axis=1)), -1.0)
        place = stages - 1 - spans[:, ::-1].argmax(axis=1)[:, None]
        first, last = (np.take_along_axis(bounds, at, axis=1) for at in (place, place + 1))
        inside = (first < places) & (places < last)
        half = (np.take_along_axis(ends[rows], first, axis=1) + np.take_along_axis(ends[rows], last, axis=1)) / 2
        starts[rows, -1] = np.where(inside, np.abs(ends[rows] - half), np.inf).argmin(axis=1)
        starts[rows] = np.sort(starts[rows], axis=1)


def crossing_bytes(layers: Sequence[Layer], starts: Sequence[int], element_bytes: int) -> Floats:
    """Bytes per sample that cross each cut: buffers written before it that a layer behind it reads.

    Parameters
    ----------
    starts : sequence of int
        First layers of the stages.
    element_bytes : int
        Of a number of the network's precision.

    Returns
    -------
    ndarray, shape (stages - 1,)
    """
    graph = find_buffers(layers, element_bytes)
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    for index, (reads, writes) in enumerate(zip(graph.reads, graph.writes)):
        for buffer in writes:
            written.setdefault(buffer, index)
        for buffer in reads:
            read[buffer] = index
    sizes = {at: buffer.size for at, buffer in enumerate(graph.buffers) if buffer.activation}
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

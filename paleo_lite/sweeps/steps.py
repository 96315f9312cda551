"""The steps of one worker in a chunk: all cases at all batch sizes on all devices, block by block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..hardware import Machine
from ..timing.broadcast import Passes
from ..timing.calibrated import sums_by
from ..timing.models import RooflineModel, Want
from ..units import PRECISION_BYTES
from .grid import Grid
from .inputs import network_of, passes, stack_of
from .space import Sized

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

AT_LEAST = RooflineModel()
"""The bound that stands beside every forecast."""

_BLOCK = 2**15
"""Layers times batch sizes that are computed at once: their arrays stay in a core's cache."""


class Single(NamedTuple):
    """Times of one worker, axes (case, device, model, batch per worker), and by pass where workers exchange.

    `sizes` are the batches per worker, in rising order; `passes` has (case, device, model), `bound_s` no model: what
    the data sheet allows.
    """

    sizes: Ints
    time_s: Floats
    low_s: Floats
    high_s: Floats
    bound_s: Floats
    flops: Floats
    passes: dict[tuple[int, int, int], Passes]

    def places(self, per_worker: Ints) -> Ints:
        """Where batches per worker stand among the sizes; 0 for those that there are none of."""
        return np.where(per_worker < 0, 0, np.searchsorted(self.sizes, per_worker))


def one_worker(grid: Grid) -> Single:
    """Times of every case on every device by every model, at all batches per worker that occur.

    Cases stand in one stack as far as a block of it stays in cache with the batch sizes at hand.
    """
    space, chunk, several = grid.space, grid.chunk, max(grid.space.workers) > 1
    wanted = grid.per_worker[grid.per_worker > 0]
    sizes = np.unique(np.concatenate([wanted, grid.batches]) if several else wanted)
    if not len(sizes):
        sizes = grid.batches
    shape = (*grid.shape[:3], len(sizes))
    time, low, high = (np.full(shape, np.nan) for _ in range(3))
    flops = np.empty((len(chunk.cases), len(sizes)))
    bound = np.full((len(chunk.cases), len(grid.devices), len(sizes)), np.nan)
    passes: dict[tuple[int, int, int], list[Passes]] = defaultdict(list)
    width = min(len(sizes), 256)
    for first, last in _groups(chunk.cases, _BLOCK // width):
        stacked = stack_of(
            chunk.cases[first:last],
            PRECISION_BYTES[chunk.precision],
            space.optimizer,
            several,
        )
        for start in range(0, len(sizes), width):
            block = slice(start, min(start + width, len(sizes)))
            laid = stacked.at(sizes[block])
            flops[first:last, block] = sums_by(laid.run, laid.features.flops, laid.cases)
            for device in {device for device, _ in grid.models}:
                machine = Machine(grid.devices[device])
                least = AT_LEAST.evaluate_many(laid, machine, chunk.precision, Want(interval=False))
                bound[first:last, device, block] = least.time_s
            for (device, number), model in grid.models.items():
                times = model.evaluate_many(laid, Machine(grid.devices[device]), chunk.precision, Want(pieces=several))
                here = (slice(first, last), device, number, block)
                time[here] = times.time_s
                if times.low_s is not None and times.high_s is not None:
                    low[here], high[here] = times.low_s, times.high_s
                if times.pieces_s is not None:
                    for case in range(first, last):
                        passes[case, device, number].append(stacked.passes_of(case - first, times.pieces_s))
    whole = {
        key: Passes(*(np.concatenate(seconds, axis=-1) for seconds in zip(*blocks))) for key, blocks in passes.items()
    }
    return Single(sizes, time, low, high, bound, flops, whole)


def _groups(cases: Sequence[tuple[Sized, str]], entries: int) -> list[tuple[int, int]]:
    """Neighbouring cases that have about so many entries together; alike layers make a third of all."""
    groups, first, held = [], 0, 0
    for place, (name, phase) in enumerate(cases):
        held += len(network_of(name).layers) * passes(phase) // 3 + 1
        if held >= entries:
            groups.append((first, place + 1))
            first, held = place + 1, 0
    return [*groups, (first, len(cases))] if first < len(cases) else groups

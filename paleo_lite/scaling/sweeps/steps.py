"""The steps of one worker in a chunk: all cases at all batch sizes on all devices, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...hardware import Device, Machine
from ...timing.calibrated import sums_by
from ...timing.models import TimeModel, Want
from ...units import PRECISION_BYTES
from ..overlap import BUCKET_BYTES
from .inputs import network_of, passes, stack_of
from .space import Chunk, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_BLOCK = 2**15
"""Layers times batch sizes that are computed at once: their arrays stay in a core's cache."""


class Single(NamedTuple):
    """Times of one worker, axes (case, device, model, batch per worker), and of pieces where workers exchange."""

    sizes: Ints
    time_s: Floats
    low_s: Floats
    high_s: Floats
    flops: Floats
    pieces_s: dict[tuple[int, int, int], Floats]

    def places(self, each: Ints) -> Ints:
        """Where batches per worker stand among the sizes; 0 for those that there are none of."""
        return np.where(each < 0, 0, np.searchsorted(self.sizes, each))


def one_worker(
    space: Space, chunk: Chunk, devices: Sequence[Device], models: Sequence[Sequence[TimeModel | str]], each: Ints
) -> Single:
    """Times of every case on every device by every model, at all batches per worker that occur.

    Cases stand in one stack as far as a block of it stays in cache with the batch sizes at hand.
    """
    several = max(space.workers) > 1
    wanted = each[each > 0]
    sizes = np.unique(np.concatenate([wanted, chunk.batch_sizes]) if several else wanted)
    if not len(sizes):
        sizes = np.array(chunk.batch_sizes, dtype=np.int64)
    shape = (len(chunk.cases), len(devices), len(space.time_models), len(sizes))
    time, low, high = (np.full(shape, np.nan) for _ in range(3))
    flops = np.empty((len(chunk.cases), len(sizes)))
    pieces: dict[tuple[int, int, int], Floats] = {}
    width = min(len(sizes), 256)
    for first, last in _groups(chunk.cases, _BLOCK // width):
        stacked = stack_of(
            chunk.cases[first:last],
            PRECISION_BYTES[chunk.precision],
            space.optimizer,
            BUCKET_BYTES if several else None,
        )
        for start in range(0, len(sizes), width):
            block = slice(start, min(start + width, len(sizes)))
            laid = stacked.at(sizes[block])
            flops[first:last, block] = sums_by(laid.run, laid.features.flops, laid.cases)
            for place, device in enumerate(devices):
                for number, model in enumerate(models[place]):
                    if isinstance(model, str):
                        continue
                    found = model.evaluate_many(laid, Machine(device), chunk.precision, Want(pieces=several))
                    at = (slice(first, last), place, number, block)
                    time[at] = found.time_s
                    if found.low_s is not None and found.high_s is not None:
                        low[at], high[at] = found.low_s, found.high_s
                    if found.pieces_s is not None:
                        for case in range(first, last):
                            own = slice(*stacked.first_piece[case - first : case - first + 2])
                            kept = pieces.setdefault(
                                (case, place, number), np.empty((own.stop - own.start, len(sizes)))
                            )
                            kept[:, block] = found.pieces_s[own]
    return Single(sizes, time, low, high, flops, pieces)


def _groups(cases: Sequence[tuple[str, str]], entries: int) -> list[tuple[int, int]]:
    """Neighbouring cases that have about so many entries together; alike layers make a third of all."""
    groups, first, held = [], 0, 0
    for place, (name, phase) in enumerate(cases):
        held += len(network_of(name).layers) * passes(phase) // 3 + 1
        if held >= entries:
            groups.append((first, place + 1))
            first, held = place + 1, 0
    return [*groups, (first, len(cases))] if first < len(cases) else groups

"""`Grid`: the rows of a chunk while they are computed, as arrays over named axes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..counting.work import passes_of
from ..distributed.strategies import STRATEGIES
from ..hardware import Device, Machine
from ..timing.broadcast import Passes
from ..timing.calibrated import sums_by
from ..timing.models import RooflineModel, TimeModel, Want
from ..units import PRECISION_BYTES
from .inputs import ModelOf, device_of, model_or_reason, network_of, stack_of, work_of
from .space import Chunk, Sized, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

AXES = ("case", "device", "model", "scaling", "strategy", "link", "collective", "workers", "batch")
"""The axes of all rows, from the slowest. A case is a network in a phase; the batch is the one that was asked for."""


def along(values: Any, *axes: str) -> NDArray[Any]:
    """An array over some axes, in the order of `AXES`, made to broadcast against all rows."""
    array = np.asarray(values)
    lengths = dict(zip(axes, array.shape))
    return array.reshape([lengths.get(axis, 1) for axis in AXES])


def at(**chosen: int) -> tuple[slice, ...]:
    """An index of the rows that stand at these places of these axes; no axis is dropped."""
    return tuple(slice(chosen[axis], chosen[axis] + 1) if axis in chosen else slice(None) for axis in AXES)


class Words:
    """A column of words: which of `values` each row has; -1 none."""

    def __init__(self, codes: NDArray[np.int32], values: Sequence[str] = ()) -> None:
        self.codes = codes
        self.values = {word: code for code, word in enumerate(values)}

    def code(self, word: str) -> int:
        """What stands for a word; a new one is added."""
        return self.values.setdefault(word, len(self.values))

    @classmethod
    def of(cls, words: NDArray[Any]) -> Words:
        """A column of an array of words; the empty one is none."""
        column = cls(np.empty(words.shape, dtype=np.int32))
        column.codes[...] = np.reshape([column.code(word) if word else -1 for word in words.flat], words.shape)
        return column

    def over(self, shape: tuple[int, ...]) -> Words:
        """The same repeated over all rows, flat."""
        return Words(np.broadcast_to(self.codes, shape).ravel(), tuple(self.values))


class Grid:
    """All rows of a chunk.

    Parameters
    ----------
    model_of : callable
        See `inputs.ModelOf`.

    Attributes
    ----------
    devices : list of Device
    models : dict of (int, int) to TimeModel
        By the places of device and model; of those that there are.
    shape : tuple of int
        Over `AXES`.
    per_worker : ndarray of int, axes (scaling, workers, batch)
        Samples of one worker; -1 where they cannot be shared out evenly.
    columns : dict of str to ndarray
        Numbers by name, over `AXES`.
    collective, reason : Words
        How gradients are exchanged; why a row is infeasible.
    """

    def __init__(self, space: Space, chunk: Chunk, model_of: ModelOf) -> None:
        self.space, self.chunk = space, chunk
        self.devices: list[Device] = [device_of(gpu, space.hardware_files) for gpu in chunk.gpus]
        self.shape = (len(chunk.cases), len(self.devices), *space.spread, len(chunk.batch_sizes))
        self.columns: dict[str, Floats] = {}
        self.collective, self.reason = (Words(np.full(self.shape, -1, dtype=np.int32)) for _ in range(2))
        self.batches, self.workers = (np.array(sizes, dtype=np.int64) for sizes in (chunk.batch_sizes, space.workers))
        strong = np.where(self.batches % self.workers[:, None], -1, self.batches // self.workers[:, None])
        weak = np.broadcast_to(self.batches, strong.shape)
        self.per_worker: Ints = np.array([weak if scaling == "weak" else strong for scaling in space.scalings])
        self.models: dict[tuple[int, int], TimeModel] = {}
        for device, model in np.ndindex(len(self.devices), len(space.time_models)):
            answer = model_or_reason(
                space.time_models[model], self.devices[device], chunk.precision, space.ppp, model_of, chunk.execution
            )
            if isinstance(answer, str):
                self.refuse(answer, device=device, model=model)
            else:
                self.models[device, model] = answer

    @property
    def by_layer(self) -> bool:
        """Whether a strategy asks for more than sums of the layers whose gradients are exchanged together."""
        return any(STRATEGIES[name].timed for name in self.space.strategies)

    def refuse(self, reason: str, where: Any = True, **chosen: int) -> None:
        """Give rows their reason; of several the first stays.

        Parameters
        ----------
        where : array of bool
            Broadcasts against the rows that are chosen.
        **chosen : int
            Places on axes.
        """
        codes = self.reason.codes[at(**chosen)]  # a view
        refused = np.broadcast_to(where, codes.shape) & (codes < 0)
        if refused.any():
            codes[refused] = self.reason.code(reason)

    def of_devices(self, values: Sequence[float | None]) -> NDArray[Any]:
        """A number of each device; where it is absent, so is what follows from it."""
        return along([np.nan if value is None else value for value in values], "device")


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
    sizes = _sizes(grid)
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
            grid.by_layer if several else None,
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


def _sizes(grid: Grid) -> Ints:
    """Every batch of one device that a row asks for, in rising order."""
    space, chunk, sizes, further = grid.space, grid.chunk, [grid.batches], []
    for scaling, workers in product(space.scalings, space.workers):
        total = grid.batches * workers if scaling == "weak" else grid.batches
        sizes.append(total // workers)
        for timed in {STRATEGIES[strategy].timed for strategy in space.strategies if workers > 1}:
            further += timed(total, workers) if timed else []
    for network, phase in chunk.cases if further else ():
        if phase == "training":
            per_sample = work_of(network, PRECISION_BYTES[chunk.precision], space.optimizer).per_sample
            most = 2**62 // max(int(per_sample.sum()), 1)
            sizes += [batch[batch <= most] for batch in further]
    wanted = np.unique(np.concatenate(sizes))
    return wanted[wanted > 0]


def _groups(cases: Sequence[tuple[Sized, str]], entries: int) -> list[tuple[int, int]]:
    """Neighbouring cases that have about so many entries together; alike layers make a third of all."""
    groups, first, held = [], 0, 0
    for place, (name, phase) in enumerate(cases):
        held += len(network_of(name).layers) * len(passes_of(phase)) // 3 + 1
        if held >= entries:
            groups.append((first, place + 1))
            first, held = place + 1, 0
    return [*groups, (first, len(cases))] if first < len(cases) else groups

"""`Grid`: the rows of a chunk while they are computed, as arrays over named axes, and the times of one worker in them.

What chunks have in common, networks, devices and their counts, is looked up once in each process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..counting import Work, count
from ..counting.fusion import fuse
from ..counting.work import ENGINE, passes_of, trains
from ..distributed.data_parallel import gradient_bytes, make_buckets
from ..distributed.job import BUCKET_BYTES
from ..distributed.strategies import STRATEGIES
from ..errors import PaleoError
from ..hardware import Device, Machine, find_device
from ..networks import Network, find_network
from ..timing.broadcast import Case, Passes, Stack, alike, stack
from ..timing.memory import memory_coefficients, model_bytes
from ..timing.models import LEARNT, RooflineModel, TimeModel, Want, find_model
from ..timing.workload import TrainingOptions, Workload, with_update
from ..units import PRECISION_BYTES
from .contexts import at_context
from .space import AUTOMATIC, Chunk, Sized, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ModelOf = Callable[[Device, str, "str | None", str], TimeModel]
"""From device, precision, None or ``calibrated``, and execution to the best model there is, or a `PaleoError`."""

AXES = ("case", "device", "model", "scaling", "strategy", "link", "collective", "workers", "batch")
"""The axes of all rows, from the slowest. A case is a network in a phase; the batch is the one that was asked for."""


def along(values: Any, *axes: str) -> NDArray[Any]:
    """An array over some axes, in the order of `AXES`, made to broadcast against all rows."""
    array = np.asarray(values)
    lengths = dict(zip(axes, array.shape))
    return array.reshape([lengths.get(axis, 1) for axis in AXES])


class Words:
    """A column of words: which of `values` each row has; -1 none."""

    def __init__(self, codes: NDArray[np.int32], values: Sequence[str] = ()) -> None:
        self.codes = codes
        self.values = {word: code for code, word in enumerate(values)}

    def code(self, word: str) -> int:
        """What stands for a word; a new one is added."""
        return self.values.setdefault(word, len(self.values))

    @classmethod
    def of(cls, words: NDArray[Any], shape: tuple[int, ...]) -> Words:
        """A column of an array of words, repeated over all rows, flat; the empty word is none."""
        column = cls(np.empty(0, dtype=np.int32))
        codes = np.array([column.code(word) if word else -1 for word in words.flat], dtype=np.int32)
        column.codes = np.broadcast_to(codes.reshape(words.shape), shape).ravel()
        return column


class Grid:
    """All rows of a chunk.

    Parameters
    ----------
    model_of : callable
        See `ModelOf`.

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
    by_layer : bool
        Whether a strategy asks for more than sums of the layers whose gradients are exchanged together.
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
        self.by_layer = any(STRATEGIES[name].timed for name in space.strategies)
        self.models: dict[tuple[int, int], TimeModel] = {}
        execution = ENGINE if chunk.cases[0][0].phase else "eager"  # text is written by an engine
        for device, model in np.ndindex(len(self.devices), len(space.time_models)):
            name, machine = space.time_models[model], Machine(self.devices[device])
            try:
                machine.peak(chunk.precision)
                machine.vector_peak(chunk.precision)
                if name in (AUTOMATIC, LEARNT):
                    kind = None if name == AUTOMATIC else name
                    self.models[device, model] = model_of(machine.device, chunk.precision, kind, execution)
                else:
                    self.models[device, model] = find_model(name, space.ppp)
            except PaleoError as error:
                self.refuse(str(error), device=device, model=model)

    def refuse(self, reason: str, where: Any = True, **chosen: int) -> None:
        """Give rows their reason; of several the first stays.

        Parameters
        ----------
        where : array of bool
            Broadcasts against the rows that are chosen.
        **chosen : int
            Places on axes.
        """
        places = (slice(chosen[axis], chosen[axis] + 1) if axis in chosen else slice(None) for axis in AXES)
        codes = self.reason.codes[tuple(places)]  # a view
        refused = np.broadcast_to(where, codes.shape) & (codes < 0)
        if refused.any():
            codes[refused] = self.reason.code(reason)


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
            flops[first:last, block] = laid.by_case(laid.features.flops)
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


@lru_cache(256)
def network_of(name: Sized) -> Network:
    """A network by name and length."""
    if name.phase == "decode" and name.length is not None:
        return at_context(name.name, name.length, _of_size(2)).network
    return find_network(name.name, tokens=name.tokens)


@lru_cache(512)
def device_of(name: str, files: tuple[str, ...]) -> Device:
    """A device by name."""
    return find_device(name, [Path(file) for file in files])


@lru_cache(512)
def counted(name: Sized, number_bytes: int) -> Work:
    """A network's work with numbers of that size: what precisions of one size have in common."""
    if name.phase == "decode" and name.length is not None:
        return at_context(name.name, name.length, _of_size(number_bytes)).work
    layers = network_of(name).layers
    work = count(layers, _of_size(number_bytes))
    if not name.phase:
        return work
    return fuse(layers, work, ENGINE)


def _of_size(number_bytes: int) -> str:
    """A precision with numbers of that size: memory and traffic are alike for all of them."""
    return next(precision for precision, size in PRECISION_BYTES.items() if size == number_bytes)


def work_of(name: Sized, precision_bytes: int, optimizer: str) -> Work:
    """A network's work with the update of an optimizer."""
    return with_update(counted(name, precision_bytes), _of_size(precision_bytes), TrainingOptions(optimizer))


@lru_cache(2048)
def memory_parts(
    name: Sized, precision_bytes: int, phase: str, optimizer: str
) -> tuple[tuple[int, int, int], int, int]:
    """Bytes of parameters, gradients and optimizer state, other fixed bytes, and bytes per sample of a case."""
    training = trains(phase)  # memory is that of a step or of a forward pass, nothing between
    workload = Workload(
        network_of(name), _of_size(precision_bytes), phase="training" if training else phase,
        training=TrainingOptions(optimizer) if training else None,
    ).doing(counted(name, precision_bytes))  # fmt: skip
    fixed, per_sample = memory_coefficients(workload)
    model = model_bytes(workload)
    return model, fixed - sum(model), per_sample


@lru_cache(512)
def exchanges_of(name: Sized, number_bytes: int, optimizer: str) -> dict[tuple[Any, ...], Any]:
    """Where what no device and no batch changes is kept once it is known: exchanges of gradients, memory."""
    return {}


@lru_cache(64)
def groups_of(name: Sized, precision_bytes: int, optimizer: str, by_layer: bool) -> list[int]:
    """Of each layer the group of those that are alike; or, if not by layer, of those that share all their buckets."""
    layers, work = network_of(name).layers, work_of(name, precision_bytes, optimizer)
    if by_layer:
        return alike(layers, work)
    gradients = gradient_bytes(Workload(network_of(name), _of_size(precision_bytes), phase="training").doing(work))
    ahead = make_buckets(gradients[::-1], BUCKET_BYTES, BUCKET_BYTES).of_layer[::-1]
    buckets = zip(make_buckets(gradients).of_layer.tolist(), ahead.tolist())
    numbers: dict[tuple[int, int], int] = {}
    return [numbers.setdefault(both, len(numbers)) for both in buckets]


@lru_cache(64)
def stack_of(
    cases: tuple[tuple[Sized, str], ...], precision_bytes: int, optimizer: str, by_layer: bool | None = None
) -> Stack:
    """The entries of several networks and phases; those of training in the pieces of `groups_of`, unless it is None."""
    return stack(
        [
            Case(
                network_of(name).layers,
                work_of(name, precision_bytes, optimizer),
                phase,
                ()
                if by_layer is None or phase != "training"
                else groups_of(name, precision_bytes, optimizer, by_layer),
            )
            for name, phase in cases
        ]
    )

"""Several workers in a sweep: every row that trains is a step of `scale`, at all batch sizes at once where it can be.

Data parallelism is given a `SweptJob`, whose steps come from the sweep's broadcast; strategies that divide or cut the
network a `LayeredJob`, which knows every layer's times.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..distributed.clusters import cluster_prior
from ..distributed.job import Job, Settings
from ..distributed.links import link_rate
from ..distributed.overlap import Buckets
from ..distributed.scale import step_of
from ..distributed.step import DeviceStep
from ..distributed.strategies import STRATEGIES
from ..distributed.topology import Topology, flat
from ..errors import PaleoError
from ..hardware import Machine
from ..timing.models import Want
from ..timing.options import TrainingOptions
from ..timing.workload import Workload
from ..units import PRECISION_BYTES
from .grid import AXES, Grid, Single
from .inputs import counted, exchanges_of, layers_of, network_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class SweptJob(Job):
    """A job whose steps the sweep has predicted, layers of a bucket of gradients as one.

    Parameters
    ----------
    place : tuple of int
        Of case, device and model.
    """

    def __init__(self, grid: Grid, single: Single, place: tuple[int, int, int]) -> None:
        case, device, _ = place
        network, number_bytes = grid.chunk.cases[case][0], PRECISION_BYTES[grid.chunk.precision]
        options = TrainingOptions(grid.space.optimizer)
        asked = Workload(network_of(network), grid.chunk.precision, phase="training", training=options)
        workload = asked.doing(counted(network, number_bytes))
        super().__init__(workload, Machine(grid.devices[device]), grid.models[place[1:]])
        self.single, self.place = single, place
        self._counted = exchanges_of(network, number_bytes)  # the same on every device

    def buckets(self, settings: Settings, layers: int | None = None) -> Buckets:
        """The messages of gradients, their layers merged."""
        return self.counted(_merged, super().buckets(settings, layers))

    def at(self, batch_size: Any) -> DeviceStep:
        """The step of one device at some batch sizes; put together once, as all strategies and links start from it."""
        key, single = batch_size.tobytes(), self.single
        if key in self._steps:
            return self._steps[key]
        sizes = np.searchsorted(single.sizes, batch_size)
        time_s, low_s, high_s = (times[self.place][sizes] for times in (single.time_s, single.low_s, single.high_s))
        passes = single.passes[self.place]
        backward_s, update_s = passes.backward_s[:, sizes], passes.update_s[sizes]
        # All else is the forward pass, and the overhead that lies with it.
        forward_s = (time_s - update_s - backward_s.sum(axis=0))[None]
        self._steps[key] = DeviceStep.of(forward_s, backward_s, update_s, interval=(low_s, high_s))
        return self._steps[key]

    def memory_bytes(self, batch_size: Any, zero_stage: int, shards: int) -> float | None:
        """Left to the chunk, which knows it of rows without a time, too."""
        return None


def _merged(_: Job, buckets: Buckets) -> Buckets:
    return buckets.merged


class LayeredJob(SweptJob):
    """The same with the times of every layer, at any batch sizes: shares of a batch, and the batch of all workers."""

    def __init__(self, grid: Grid, single: Single, place: tuple[int, int, int]) -> None:
        super().__init__(grid, single, place)
        of = (grid.chunk.cases[place[0]][0], PRECISION_BYTES[grid.chunk.precision], grid.space.optimizer)
        self._counted = exchanges_of(*of)
        self._stack, groups = layers_of(*of)
        self._group, self._sizes, self._known = np.array(groups), np.empty(0, dtype=np.int64), np.empty((0, 0))

    def buckets(self, settings: Settings, layers: int | None = None) -> Buckets:
        """The messages of gradients."""
        return Job.buckets(self, settings, layers)

    def memory_bytes(self, batch_size: Any, zero_stage: int, shards: int) -> Any:
        """Of all parts."""
        return Job.memory_bytes(self, batch_size, zero_stage, shards)

    def at(self, batch_size: Any) -> DeviceStep:
        """The step of one device at some batch sizes; each is computed once."""
        key = batch_size.tobytes()
        if key not in self._steps:
            if len(new := np.setdiff1d(batch_size, self._sizes)):
                sizes, known = np.append(self._sizes, new), [self._known] if len(self._sizes) else []
                order = np.argsort(sizes)
                self._known = np.concatenate([*known, self._evaluate(new)], axis=1)[:, order]
                self._sizes = sizes[order]
            self._steps[key] = self._laid(np.searchsorted(self._sizes, batch_size))
        return self._steps[key]

    def _evaluate(self, sizes: Ints) -> Floats:
        """Seconds at batch sizes: of a layer of each group forward, and backward, of the update, and the interval."""
        times = self.model.evaluate_many(
            self._stack.at(sizes), self.machine, self.workload.precision, Want(pieces=True)
        )
        assert times.pieces_s is not None
        passes, members = self._stack.passes_of(0, times.pieces_s), np.bincount(self._group)[:, None]
        forward_s = passes.forward_s.sum(axis=0)
        rest_s = times.time_s[0] - times.pieces_s.sum(axis=0)  # the overhead lies with the forward pass
        with np.errstate(invalid="ignore"):
            shared = np.where(forward_s, passes.forward_s / forward_s, members / members.sum())
        forward = (passes.forward_s + rest_s * shared) / members
        unknown = np.full((2, len(sizes)), np.nan)
        ends = unknown if times.low_s is None or times.high_s is None else np.concatenate([times.low_s, times.high_s])
        return np.concatenate([forward, passes.backward_s / members, passes.update_s[None], ends])

    def _laid(self, places: Ints) -> DeviceStep:
        groups = self._group.max() + 1
        known = self._known[:, places]
        update_s, *ends = known[2 * groups :]
        interval = None if np.isnan(ends[0]).any() else (ends[0], ends[1])
        forward_s, backward_s = known[self._group], known[groups + self._group]
        return DeviceStep.of(forward_s, backward_s, update_s, interval=interval)


@lru_cache(1024)
def _joined(link: str, workers: int) -> Topology:
    return flat(link_rate(link), workers)


def add_workers(grid: Grid, single: Single) -> None:
    """What exchanges change about the rows of several workers that train."""
    space, chunk = grid.space, grid.chunk
    for (case, (_, phase)), (device, model) in product(enumerate(chunk.cases), grid.models):
        if phase != "training" or max(space.workers) == 1:
            continue
        swept = SweptJob(grid, single, (case, device, model))
        layered = LayeredJob(grid, single, (case, device, model))
        for place in np.ndindex(*space.spread[1:]):
            scaling, strategy, _, _, count = place
            if space.workers[count] == 1:
                continue
            row = (case, device, model, *place)
            feasible = np.flatnonzero(grid.reason.codes[row] < 0)
            if not len(feasible):
                continue
            totals = grid.batches * (space.workers[count] if space.scalings[scaling] == "weak" else 1)
            job = layered if STRATEGIES[space.strategies[strategy]].by_layer else swept
            _put_step(grid, row, job, feasible, totals[feasible])


def _put_step(grid: Grid, row: tuple[int, ...], job: Job, batch: Ints, batch_size: Ints) -> None:
    """Fill a row, at some batches, with the steps that its strategy makes of it, or with why it makes none."""
    _, _, _, _, strategy, link, collective, count = row
    space, columns = grid.space, grid.columns
    here: Any = (*row, batch)
    settings = Settings(collective=space.collectives[collective] or None)
    topology = _joined(space.links[link], space.workers[count])
    try:
        prior = cluster_prior() if job.model.is_forecast else None
        step = step_of(job, topology, settings, batch_size, space.strategies[strategy], prior)
    except PaleoError as error:
        if len(batch) > 1:  # some of them may do
            for place in range(len(batch)):
                _put_step(grid, row, job, batch[place : place + 1], batch_size[place : place + 1])
            return
        grid.refuse(_of_one(str(error), batch_size), **dict(zip(AXES, row)), batch=int(batch[0]))
        return
    columns["time_s"][here], columns["exposed_s"][here] = step.time_s, step.exposed_s
    columns["low_s"][here], columns["high_s"][here] = step.interval or (np.nan, np.nan)
    if isinstance(job, LayeredJob):
        memory = columns.setdefault("own_memory_bytes", np.full(grid.shape, np.nan))
        memory[here] = np.inf if step.memory_bytes is None else step.memory_bytes
    names = np.asarray(step.collective, dtype=object)
    codes = {name: grid.collective.code(name) if name else -1 for name in dict.fromkeys(names.ravel().tolist())}
    grid.collective.codes[here] = np.reshape([codes[name] for name in names.ravel().tolist()], names.shape)


def _of_one(reason: str, batch_size: Ints) -> str:
    """A reason that names the one batch size as a number."""
    return reason.replace(str(batch_size), str(int(batch_size[0])))

"""Several workers in a sweep: every row that trains is a step of `scale`, at all batch sizes at once where it can be.

Strategies are given a `SweptJob`, whose steps come from the sweep's broadcast.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..distributed.clusters import cluster_prior
from ..distributed.job import DeviceStep, Job, Settings, plain
from ..distributed.links import link_rate
from ..distributed.scale import step_of
from ..distributed.topology import Topology, flat
from ..errors import BadValue, PaleoError
from ..hardware import Machine
from ..timing.options import TrainingOptions
from ..timing.workload import Workload
from ..units import PRECISION_BYTES
from .grid import AXES, Grid, Single
from .inputs import counted, exchanges_of, groups_of, network_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class SweptJob(Job):
    """A job whose steps the sweep has predicted, a layer standing for its group.

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
        self._counted = exchanges_of(network, number_bytes, grid.space.optimizer)
        self._group = np.array(groups_of(network, number_bytes, grid.space.optimizer, grid.by_layer))

    def _step(self, batch_size: Any) -> DeviceStep:
        single, members = self.single, np.bincount(self._group)[:, None]
        sizes = np.searchsorted(single.sizes, batch_size)
        if not np.array_equal(single.sizes.take(sizes, mode="clip"), batch_size):
            raise BadValue(f"a batch of {batch_size} overflows the counts")
        time_s, low_s, high_s = (times[self.place][sizes] for times in (single.time_s, single.low_s, single.high_s))
        forward_s, update_s, backward_s = (seconds[..., sizes] for seconds in single.passes[self.place])
        passed_s = forward_s.sum(axis=0)
        # All else is the overhead, which lies with the forward pass.
        rest_s = time_s - passed_s - update_s - backward_s.sum(axis=0)
        with np.errstate(invalid="ignore"):
            shared = np.where(passed_s, forward_s / passed_s, members / members.sum())
        return DeviceStep.of(
            (forward_s + rest_s * shared) / members,
            backward_s / members,
            update_s,
            self._group,
            memory_bytes=plain(self.memory(batch_size).total_bytes),
            interval=None if np.isnan(low_s).any() else (low_s, high_s),
        )


@lru_cache(1024)
def _joined(link: str, workers: int) -> Topology:
    return flat(link_rate(link), workers)


def add_workers(grid: Grid, single: Single) -> None:
    """What exchanges change about the rows of several workers that train."""
    space, chunk = grid.space, grid.chunk
    for (case, (_, phase)), (device, model) in product(enumerate(chunk.cases), grid.models):
        if phase != "training" or max(space.workers) == 1:
            continue
        job = SweptJob(grid, single, (case, device, model))
        for place in np.ndindex(*space.spread[1:]):
            scaling, _, _, _, count = place
            if space.workers[count] == 1:
                continue
            row = (case, device, model, *place)
            feasible = np.flatnonzero(grid.reason.codes[row] < 0)
            if not len(feasible):
                continue
            totals = grid.batches * (space.workers[count] if space.scalings[scaling] == "weak" else 1)
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
        if len(batch) > 1 and str(batch_size) in str(error):  # some of them may do
            for place in range(len(batch)):
                _put_step(grid, row, job, batch[place : place + 1], batch_size[place : place + 1])
            return
        reason = str(error).replace(str(batch_size), str(batch_size[0]))  # of one batch size as a number
        grid.refuse(reason, np.isin(np.arange(len(grid.batches)), batch), **dict(zip(AXES, row)))
        return
    columns["time_s"][here], columns["exposed_s"][here] = step.time_s, step.exposed_s
    columns["low_s"][here], columns["high_s"][here] = step.interval or (np.nan, np.nan)
    memory = columns.setdefault("own_memory_bytes", np.full(grid.shape, np.nan))
    memory[here] = np.inf if step.memory_bytes is None else step.memory_bytes
    names = np.asarray(step.collective, dtype=object)
    codes = {name: grid.collective.code(name) if name else -1 for name in dict.fromkeys(names.ravel().tolist())}
    grid.collective.codes[here] = np.reshape([codes[name] for name in names.ravel().tolist()], names.shape)

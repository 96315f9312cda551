"""Rows of several workers that train: steps of `scale`, predicted for all batch sizes at once where possible.

The strategies work on a `SweptJob`, whose device steps come from the arrays of a single worker.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..distributed.clusters import cluster_prior
from ..distributed.job import DeviceStep, Job, as_scalar
from ..distributed.links import Topology, flat_topology, link_inside_nodes, link_rate
from ..distributed.scale import predict_step
from ..distributed.settings import Settings
from ..errors import BadValue, PaleoError
from ..timing.training_options import TrainingOptions
from ..timing.workload import Workload
from .cases import count_work, counted_precision, layer_groups, optimizer_of, resolve_network, shared_cache
from .grid import AXES, Grid
from .single_worker import SingleWorkerTimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def fill_several_workers(grid: Grid, single: SingleWorkerTimes) -> None:
    """Predict the rows of several workers that train."""
    space, chunk = grid.space, grid.chunk
    if max(space.workers) == 1:
        return
    for (case, (_, phase)), (device, model) in product(enumerate(chunk.cases), grid.models):
        if phase != "training":
            continue
        job = SweptJob(grid, single, (case, device, model))
        names = [link_inside_nodes(link, job.machine.device)[0] for link in space.links]
        topologies = [[flat_topology(link_rate(name), workers) for workers in space.workers] for name in names]
        for inner_index in np.ndindex(*space.inner_shape[1:]):
            scaling, _, link_index, _, workers_index = inner_index
            workers = space.workers[workers_index]
            if workers == 1:
                continue
            row = (case, device, model, *inner_index)
            feasible = np.flatnonzero(grid.reason.codes[row] < 0)
            if not len(feasible):
                continue
            global_batches = grid.batches * (workers if space.scalings[scaling] == "weak" else 1)
            topology = topologies[link_index][workers_index]
            _fill_row(grid, row, job, topology, feasible, global_batches[feasible])


def _fill_row(
    grid: Grid, row: tuple[int, ...], job: Job, topology: Topology, batch_indices: Ints, batch_sizes: Ints
) -> None:
    """Fill a row at some batch sizes with the steps of its strategy, or with the reason why they are impossible.

    `row` has the indices over all axes but the last, the batch sizes; `batch_sizes` are global.
    """
    index_of = dict(zip(AXES, row))
    space, columns = grid.space, grid.columns
    strategy, collective = space.strategies[index_of["strategy"]], space.collectives[index_of["collective"]]
    selection: Any = (*row, batch_indices)
    settings = Settings(collective=collective or None)
    try:
        prior = cluster_prior() if job.model.is_forecast else None
        step = predict_step(job, topology, settings, batch_sizes, strategy, prior)
    except PaleoError as error:
        if len(batch_indices) > 1 and str(batch_sizes) in str(error):  # some of the batch sizes may be possible
            for index in range(len(batch_indices)):
                single_batch = slice(index, index + 1)
                _fill_row(grid, row, job, topology, batch_indices[single_batch], batch_sizes[single_batch])
            return
        reason = str(error).replace(str(batch_sizes), str(batch_sizes[0]))  # a number instead of an array of one
        is_selected = np.isin(np.arange(len(grid.batches)), batch_indices)
        grid.refuse(reason, is_selected, **index_of)
        return
    columns["time_s"][selection] = step.time_s
    columns["exposed_s"][selection] = step.exposed_s
    columns["low_s"][selection], columns["high_s"][selection] = step.interval or (np.nan, np.nan)
    memory = columns.setdefault("own_memory_bytes", np.full(grid.shape, np.nan))
    memory[selection] = np.inf if step.memory_bytes is None else step.memory_bytes
    names = np.asarray(step.collective, dtype=object)
    codes = [grid.collective.code(name) if name else -1 for name in names.ravel().tolist()]
    grid.collective.codes[selection] = np.reshape(codes, names.shape)


class SweptJob(Job):
    """A job whose device steps come from the arrays of a sweep; a group of layers counts as equal layers.

    `key` has the indices of case, device and model.
    """

    def __init__(self, grid: Grid, single: SingleWorkerTimes, key: tuple[int, int, int]) -> None:
        case, device, model = key
        network, precision = grid.chunk.cases[case][0], counted_precision(grid.chunk.precision, grid.chunk.weights)
        options = TrainingOptions(optimizer_of(network, grid.space.optimizer))
        uncounted = Workload(resolve_network(network), grid.chunk.precision, phase="training", training=options)
        workload = uncounted.with_work(count_work(network, precision))
        super().__init__(workload, grid.machines[device], grid.models[device, model])
        self.single = single
        self.key = key
        self._cache_across_models = shared_cache(network, precision, grid.space.optimizer)
        self._layer_group = np.array(layer_groups(network, precision, grid.space.optimizer, grid.by_layer))

    def _predict_device_step(self, batch_size: Any) -> DeviceStep:
        single = self.single
        layers_per_group = np.bincount(self._layer_group)[:, None]
        indices = np.searchsorted(single.sizes, batch_size)
        if not np.array_equal(single.sizes.take(indices, mode="clip"), batch_size):
            raise BadValue(f"the counts overflow at a batch size of {batch_size}")
        time_s, low_s, high_s = (times[self.key][indices] for times in (single.time_s, single.low_s, single.high_s))
        forward_s, update_s, backward_s = (seconds[..., indices] for seconds in single.passes[self.key])
        total_forward_s = forward_s.sum(axis=0)
        # The remainder is the overhead of the step, which is spread over the forward pass.
        overhead_s = time_s - total_forward_s - update_s - backward_s.sum(axis=0)
        with np.errstate(invalid="ignore"):
            shares = np.where(total_forward_s, forward_s / total_forward_s, layers_per_group / layers_per_group.sum())
        return DeviceStep.from_passes(
            (forward_s + overhead_s * shares) / layers_per_group,
            backward_s / layers_per_group,
            update_s,
            self._layer_group,
            memory_bytes=as_scalar(self.device_memory(batch_size).total_bytes),
            interval=None if np.isnan(low_s).any() else (low_s, high_s),
        )

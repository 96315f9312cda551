"""Times of a single worker, at all batch sizes per worker that the rows of a chunk need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import structs

from ..counting.kinds import is_expert_layer
from ..counting.work import ENGINE, passes_of
from ..distributed.strategies import STRATEGIES
from ..errors import PaleoError
from ..serving.iteration import iteration_of
from ..timing.activity import Activity, narrow_factor
from ..timing.broadcast import BatchedStack, CaseStack, Passes
from ..timing.intervals import not_below
from ..timing.models import BoundModel, TimeModel, TrafficModel
from ..timing.terms import RequestedOutputs
from ..timing.workload import Workload
from .cases import build_stack, count_work_with_update, counted_precision, resolve_network
from .grid import Grid, broadcast_along
from .space import SizedNetwork

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

BOUND = BoundModel()
"""Time model of the lower bound of every forecast."""

TRAFFIC = TrafficModel()
"""Time model of what no interval of layers extends below."""

_BLOCK_ENTRIES = 2**15
"""Layers times batch sizes that are predicted at once, so that the arrays stay in the cache of a core."""


class SingleWorkerTimes(NamedTuple):
    """Times of a single worker, over the axes (case, device, model, batch size per worker)."""

    sizes: Ints  # batch sizes per worker, in rising order
    # Step time and the ends of its 90% interval.
    time_s: Floats
    low_s: Floats
    high_s: Floats
    bound_s: Floats  # lower bound by data sheets
    flops: Floats  # of layers, or of the kernels of an engine
    activity: Activity  # what the device does, arrays over the axes of `time_s`
    # Times by pass, by the indices of case, device and model; filled only if there are several workers.
    passes: dict[tuple[int, int, int], Passes]

    def index_of(self, per_worker: Ints) -> Ints:
        """Return the index of each per-worker batch size in `sizes`; 0 for -1, which is absent."""
        return np.where(per_worker < 0, 0, np.searchsorted(self.sizes, per_worker))


def single_worker_times(grid: Grid) -> SingleWorkerTimes:
    """Predict every case on every device by every model of layers, at all per-worker batch sizes of the grid.

    As many cases are stacked as fit into a block together with the batch sizes.
    """
    space, chunk = grid.space, grid.chunk
    sizes = _per_worker_sizes(grid)
    filled = _FilledTimes(grid, sizes)
    width = min(len(sizes), 256)
    for first, last in _group_cases(chunk.cases, _BLOCK_ENTRIES // width):
        stack = build_stack(
            chunk.cases[first:last],
            counted_precision(chunk.precision, chunk.weights),
            space.optimizer,
            grid.by_layer if filled.has_several_workers else None,
        )
        for start in range(0, len(sizes), width):
            filled.fill_block(stack, slice(first, last), slice(start, min(start + width, len(sizes))))
    return filled.times()


class _FilledTimes:
    """Arrays over case, device, model and per-worker batch size, filled in blocks of cases and batch sizes."""

    def __init__(self, grid: Grid, sizes: Ints) -> None:
        self.grid = grid
        self.sizes = sizes
        self.has_several_workers = max(grid.space.workers) > 1
        self.models = {key: model for key, model in grid.models.items() if key not in grid.engines}
        shape = (*grid.shape[:3], len(sizes))
        self.time_s, self.low_s, self.high_s, self.bound_s = (np.full(shape, np.nan) for _ in range(4))
        self.traffic_s = np.full((shape[0], shape[1], shape[3]), np.nan)
        self.arithmetic_s, self.memory_s, self.peak_s = (np.full(shape, np.nan) for _ in range(3))
        self.flops = np.full(shape, np.nan)
        self._blocks_of_passes: dict[tuple[int, int, int], list[Passes]] = defaultdict(list)

    def fill_block(self, stack: CaseStack, cases: slice, block: slice) -> None:
        """Fill the times of a stack of cases at a block of batch sizes."""
        batched = stack.at_batch_sizes(self.sizes[block])
        self.flops[cases, :, :, block] = batched.sum_by_case(batched.features.flops)[:, np.newaxis, np.newaxis]
        for device in {device for device, _ in self.models}:
            self._fill_bound(batched, device, cases, block)
        for key, model in self.models.items():
            self._fill_model(stack, batched, key, model, cases, block)

    def _fill_bound(self, batched: BatchedStack, device: int, cases: slice, block: slice) -> None:
        """Fill the bound of a device, and the times of the arithmetic at its peak and of the traffic."""
        chunk = self.grid.chunk
        outputs = RequestedOutputs(interval=False, activity=True)
        bound = BOUND.evaluate_many(batched, self.grid.machines[device], chunk.precision, outputs)
        assert bound.activity is not None
        factor = narrow_factor(self.grid.devices[device], chunk.precision)
        traffic = TRAFFIC.evaluate_many(batched, self.grid.machines[device], chunk.precision, RequestedOutputs())
        self.bound_s[cases, device, :, block] = bound.time_s[:, None]
        self.traffic_s[cases, device, block] = traffic.time_s
        self.peak_s[cases, device, :, block] = factor * bound.activity.peak_s[:, None]

    def _fill_model(
        self,
        stack: CaseStack,
        batched: BatchedStack,
        key: tuple[int, int],
        model: TimeModel,
        cases: slice,
        block: slice,
    ) -> None:
        """Fill the times of a model, by the indices of device and model."""
        device, number = key
        outputs = RequestedOutputs(pieces=self.has_several_workers, activity=True)
        times = model.evaluate_many(batched, self.grid.machines[device], self.grid.chunk.precision, outputs)
        assert times.activity is not None
        selection = (cases, device, number, block)
        self.time_s[selection] = times.time_s
        self.arithmetic_s[selection] = times.activity.arithmetic_s
        self.memory_s[selection] = times.activity.memory_s
        if times.low_s is not None and times.high_s is not None:
            self.low_s[selection] = not_below(times.low_s, self.traffic_s[cases, device, block], times.time_s)
            self.high_s[selection] = times.high_s
        if times.pieces_s is not None:
            for index, case in enumerate(range(cases.start, cases.stop)):
                self._blocks_of_passes[case, device, number].append(stack.passes_of(index, times.pieces_s))

    def times(self) -> SingleWorkerTimes:
        """Return the times that were filled in."""
        passes = {
            key: Passes(*(np.concatenate(seconds, axis=-1) for seconds in zip(*blocks)))
            for key, blocks in self._blocks_of_passes.items()
        }
        activity = Activity(self.arithmetic_s, self.memory_s, peak_s=self.peak_s)
        return SingleWorkerTimes(
            self.sizes, self.time_s, self.low_s, self.high_s, self.bound_s, self.flops, activity, passes
        )


def _per_worker_sizes(grid: Grid) -> Ints:
    """Return all batch sizes of a single device that the rows need, in rising order."""
    space, chunk = grid.space, grid.chunk
    sizes, extra_sizes = [grid.batches], []
    for scaling, workers in product(space.scalings, space.workers):
        global_batches = grid.batches * workers if scaling == "weak" else grid.batches
        sizes.append(global_batches // workers)
        if workers > 1:
            for list_sizes in {STRATEGIES[strategy].extra_batch_sizes for strategy in space.strategies}:
                if list_sizes is not None:
                    extra_sizes += list_sizes(global_batches, workers)
    if extra_sizes:
        for network, phase in chunk.cases:
            if phase == "training":
                work = count_work_with_update(
                    network, counted_precision(chunk.precision, chunk.weights), space.optimizer
                )
                largest = 2**62 // max(int(work.per_sample.sum()), 1)
                sizes += [batches[batches <= largest] for batches in extra_sizes]
    unique_sizes = np.unique(np.concatenate(sizes))
    return unique_sizes[unique_sizes > 0]


def _group_cases(cases: Sequence[tuple[SizedNetwork, str]], max_entries: int) -> list[tuple[int, int]]:
    """Divide the cases into neighbouring groups of about `max_entries` entries.

    A stack merges equal layers, which leaves about a third of all entries.
    """
    groups, first, entries = [], 0, 0
    for index, (network, phase) in enumerate(cases):
        entries += len(resolve_network(network).layers) * len(passes_of(phase)) // 3 + 1
        if entries >= max_entries:
            groups.append((first, index + 1))
            first, entries = index + 1, 0
    if first < len(cases):
        groups.append((first, len(cases)))
    return groups


def fill_engine_times(grid: Grid, single: SingleWorkerTimes) -> None:
    """Fill the times, the activity and the memory of a single device under an engine."""
    if not grid.engines:
        return  # all cases of a grid are either text generation or not
    sizes = single.sizes.astype(np.float64)
    indices = single.index_of(grid.per_worker)
    for case, (sized, phase) in enumerate(grid.chunk.cases):
        by_layers = Workload(
            resolve_network(sized), grid.chunk.precision, phase=phase, execution=ENGINE, weights=grid.chunk.weights
        )
        for key, engine in grid.engines.items():
            workload = by_layers.with_changes(engine=engine)
            device = grid.machines[key[0]].with_locked_clock(grid.chunk.precision).device
            row = (case, *key)
            try:
                iteration = iteration_of(workload, device, sequences=sizes)
                bound = iteration_of(workload, device, sequences=sizes, is_bound=True)
            except PaleoError as error:
                grid.refuse(str(error), case=case, device=key[0], model=key[1])
                continue
            single.time_s[row] = iteration.kernels_s + iteration.host_s
            single.low_s[row], single.high_s[row] = iteration.interval(iteration.kernels_s)
            single.bound_s[row] = bound.kernels_s
            for target, seconds in zip(single.activity, iteration.activity, strict=True):
                if np.ndim(target):
                    target[row] = seconds
            iterations = [structs.replace(iteration, sequences=int(size)) for size in single.sizes]
            single.flops[row] = [of_size.flops for of_size in iterations]
            totals = [of_size.memory().total_bytes for of_size in iterations]
            needed_bytes = np.where(grid.per_worker > 0, np.array(totals, dtype=np.float64)[indices], np.nan)
            memory = grid.columns.setdefault("own_memory_bytes", np.full(grid.shape, np.nan))
            memory[row] = broadcast_along(needed_bytes, "scaling", "workers", "batch")[0, 0, 0]


def refuse_experts_of_layers(grid: Grid) -> None:
    """Refuse text generation by layers with networks that use more experts for larger batches."""
    for case, (sized, phase) in enumerate(grid.chunk.cases):
        if not sized.phase or not any(is_expert_layer(layer) for layer in resolve_network(sized).layers):
            continue
        reason = (
            f"sweeps do not support {phase} with {sized.name} on this device, where the number of experts in use "
            "depends on the batch size: use `paleo-lite predict`"
        )
        for device, model in grid.models:
            if (device, model) not in grid.engines:
                grid.refuse(reason, case=case, device=device, model=model)

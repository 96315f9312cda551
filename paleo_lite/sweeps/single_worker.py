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
from ..timing.broadcast import Passes
from ..timing.models import RequestedOutputs, RooflineModel
from ..timing.workload import Workload
from .cases import build_stack, count_work_with_update, counted_precision, resolve_network
from .grid import Grid, broadcast_along
from .space import SizedNetwork

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ROOFLINE = RooflineModel()
"""Time model of the lower bound of every forecast."""

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
    flops: Floats  # FLOPs; (case, batch size per worker)
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
    has_several_workers = max(space.workers) > 1
    sizes = _per_worker_sizes(grid)
    shape = (*grid.shape[:3], len(sizes))
    time_s, low_s, high_s, bound_s, arithmetic_s, memory_s, peak_s = (np.full(shape, np.nan) for _ in range(7))
    flops = np.empty((len(chunk.cases), len(sizes)))
    blocks_of_passes: dict[tuple[int, int, int], list[Passes]] = defaultdict(list)
    width = min(len(sizes), 256)
    bound_outputs = RequestedOutputs(interval=False, activity=True)
    layer_models = {key: model for key, model in grid.models.items() if key not in grid.engines}
    devices_with_model = {device for device, _ in layer_models}
    for first, last in _group_cases(chunk.cases, _BLOCK_ENTRIES // width):
        stack = build_stack(
            chunk.cases[first:last],
            counted_precision(chunk.precision, chunk.weights),
            space.optimizer,
            grid.by_layer if has_several_workers else None,
        )
        for start in range(0, len(sizes), width):
            block = slice(start, min(start + width, len(sizes)))
            batched = stack.at_batch_sizes(sizes[block])
            flops[first:last, block] = batched.sum_by_case(batched.features.flops)
            for device in devices_with_model:
                machine = grid.machines[device]
                bound = ROOFLINE.evaluate_many(batched, machine, chunk.precision, bound_outputs)
                bound_s[first:last, device, :, block] = bound.time_s[:, None]
                assert bound.activity is not None
                factor = narrow_factor(grid.devices[device], chunk.precision)
                peak_s[first:last, device, :, block] = factor * bound.activity.peak_s[:, None]
            outputs = RequestedOutputs(pieces=has_several_workers, activity=True)
            for (device, number), model in layer_models.items():
                times = model.evaluate_many(batched, grid.machines[device], chunk.precision, outputs)
                selection = (slice(first, last), device, number, block)
                time_s[selection] = times.time_s
                assert times.activity is not None
                arithmetic_s[selection], memory_s[selection] = times.activity.arithmetic_s, times.activity.memory_s
                if times.low_s is not None and times.high_s is not None:
                    low_s[selection], high_s[selection] = times.low_s, times.high_s
                if times.pieces_s is not None:
                    for case in range(first, last):
                        case_passes = stack.passes_of(case - first, times.pieces_s)
                        blocks_of_passes[case, device, number].append(case_passes)
    passes = {}
    for key, blocks in blocks_of_passes.items():
        passes[key] = Passes(*(np.concatenate(seconds, axis=-1) for seconds in zip(*blocks)))
    activity = Activity(arithmetic_s, memory_s, peak_s=peak_s)
    return SingleWorkerTimes(sizes, time_s, low_s, high_s, bound_s, flops, activity, passes)


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
        single.flops[case] = [by_layers.work.column("flops", phase, int(size)).sum() for size in single.sizes]
        for key, engine in grid.engines.items():
            workload = by_layers.with_changes(engine=engine)
            device, row = grid.machines[key[0]].device, (case, *key)
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
            totals = [structs.replace(iteration, sequences=int(size)).memory().total_bytes for size in single.sizes]
            needed = np.where(grid.per_worker > 0, np.array(totals, dtype=np.float64)[indices], np.nan)
            memory = grid.columns.setdefault("own_memory_bytes", np.full(grid.shape, np.nan))
            memory[row] = broadcast_along(needed, "scaling", "workers", "batch")[0, 0, 0]


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

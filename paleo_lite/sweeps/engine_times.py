"""Times of text generation in a sweep where the kernels of an engine are timed, at many batch sizes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from ..counting.kinds import is_expert_layer
from ..counting.work import ENGINE
from ..errors import PaleoError
from ..serving.iteration import iteration_of
from ..timing.workload import Workload
from .cases import resolve_network
from .grid import Grid, broadcast_along

if TYPE_CHECKING:
    from .single_worker import SingleWorkerTimes


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

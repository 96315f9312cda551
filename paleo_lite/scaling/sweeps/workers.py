"""Several workers in a sweep: what exchanges add to a step, broadcast over workers and batch sizes.

Data parallelism and the first two stages of ZeRO, whose exchanges depend on the network and not on the batch; the
formulas are those of `strategies` and `overlap`. Other strategies are predicted one at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import PaleoError
from ...hardware import Machine
from ...timing.options import TrainingOptions
from ...timing.workload import Workload
from ...units import PRECISION_BYTES
from ..exchange import exchange_time_s
from ..job import Job, Settings
from ..links import link_rate
from ..overlap import BUCKET_BYTES, exposed_s
from ..parts import fastest, half_collective, messages_of
from ..scale import scale
from ..topology import flat
from .grid import AXES, Grid
from .inputs import buckets_of, gradient_bytes, network_of
from .steps import Single

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BROADCAST = ("data", "zero-1", "zero-2")
"""Strategies that are computed for all batch sizes at once."""

DIVIDE = ("data", "zero-1", "zero-2", "zero-3", "hybrid")
"""Strategies that divide the batch among the workers."""


class Exchange(NamedTuple):
    """What one number of workers exchanges in a step: seconds of each bucket, of what nothing hides, by what."""

    bucket_s: Floats
    behind_s: float
    collective: str


@lru_cache(4096)
def exchange_of(
    network: str, precision_bytes: int, strategy: str, link: str, collective: str, workers: int
) -> Exchange | str:
    """The exchanges of a network's gradients among so many workers, or why there are none."""
    buckets, _ = buckets_of(network, precision_bytes, BUCKET_BYTES)
    gradients = np.array(gradient_bytes(network, precision_bytes))
    topology = flat(link_rate(link), workers)
    try:
        if strategy == "data":
            chosen = collective or fastest(topology, messages_of(gradients, BUCKET_BYTES))
            seconds = np.asarray(exchange_time_s(topology, buckets.message_bytes, chosen), dtype=np.float64)
            return Exchange(seconds, 0.0, chosen)
        chosen = half_collective(topology, collective or None, strategy)
        seconds = np.asarray(exchange_time_s(topology, buckets.message_bytes, chosen), dtype=np.float64) / 2
        weights = exchange_time_s(topology, messages_of(gradients, BUCKET_BYTES), chosen)
        return Exchange(seconds, float(np.sum(weights)) / 2, chosen)
    except PaleoError as error:
        return str(error)


def exposed_of(exchange: Exchange, backward_s: Floats) -> Floats:
    """Seconds of an exchange that no computation hides, shape (batch sizes,).

    Parameters
    ----------
    exchange : Exchange
    backward_s : ndarray, shape (pieces, batch sizes)
        Seconds of the backward pass until each bucket is full, and of what comes behind the last.
    """
    ready = np.cumsum(backward_s, axis=0)
    hidden = exposed_s(ready[: len(exchange.bucket_s)].T, exchange.bucket_s, ready[-1])
    return np.asarray(hidden + exchange.behind_s)


def add_workers(grid: Grid, single: Single) -> None:
    """What exchanges change about the rows of several workers that train."""
    space, chunk = grid.space, grid.chunk
    jobs: dict[tuple[int, int, int], Job] = {}
    for scaling, strategy, link, collective, count in np.ndindex(*space.spread[1:]):
        workers = space.workers[count]
        if workers == 1:
            continue
        feasible = np.flatnonzero(grid.per_worker[scaling, count] > 0)
        sizes = np.searchsorted(single.sizes, grid.per_worker[scaling, count, feasible])
        for case, (network, phase) in enumerate(chunk.cases):
            if phase != "training":
                continue
            for (device, number), model in grid.models.items():
                row = (case, device, number, scaling, strategy, link, collective, count)
                if space.strategies[strategy] not in BROADCAST:
                    if (case, device, number) not in jobs:
                        asked = Workload(
                            network_of(network), chunk.precision, phase=phase, training=TrainingOptions(space.optimizer)
                        )
                        jobs[case, device, number] = Job(asked, Machine(grid.devices[device]), model)
                    _by_scale(grid, row, jobs[case, device, number])
                    continue
                exchange = exchange_of(
                    network, PRECISION_BYTES[chunk.precision], space.strategies[strategy], space.links[link],
                    space.collectives[collective], workers,
                )  # fmt: skip
                if isinstance(exchange, str):
                    grid.refuse(exchange, **dict(zip(AXES, row)))
                    continue
                parts = single.pieces_s[case, device, number]
                exposed = exposed_of(exchange, parts[2:])[sizes]
                before = single.time_s[case, device, number, sizes]
                step = before - (parts[1, sizes] * (1 - 1 / workers) if space.strategies[strategy] != "data" else 0.0)
                rows, columns = (*row, feasible), grid.columns
                for name in ("low_s", "high_s"):
                    columns[name][rows] = columns[name][rows] * (step / before) + exposed
                columns["time_s"][rows] = step + exposed
                columns["exposed_s"][rows] = exposed
                grid.collective.codes[row] = grid.collective.code(exchange.collective)


def _by_scale(grid: Grid, row: tuple[int, ...], job: Job) -> None:
    """Rows of strategies that do not broadcast, one at a time; their memory is that of the strategy."""
    *_, scaling, strategy, link, collective, count = row
    space, columns = grid.space, grid.columns
    machine = flat(link_rate(space.links[link]), space.workers[count])
    settings = Settings(collective=space.collectives[collective] or None)
    memory = columns.setdefault("own_memory_bytes", np.full(grid.shape, np.nan))
    for place, batch in enumerate(grid.chunk.batch_sizes):
        here = (*row, place)
        if grid.reason.codes[here] >= 0:
            continue
        try:
            (answer,) = scale(
                job, machine, [space.workers[count]], batch,
                scaling=space.scalings[scaling], strategy=space.strategies[strategy], settings=settings,
            )  # fmt: skip
        except PaleoError as error:
            grid.refuse(str(error), **dict(zip(AXES, here)))
            continue
        columns["time_s"][here], columns["exposed_s"][here] = answer.time_s, answer.exposed_s
        columns["low_s"][here], columns["high_s"][here] = answer.interval or (np.nan, np.nan)
        memory[here] = np.inf if answer.memory_bytes is None else answer.memory_bytes
        if answer.collective:
            grid.collective.codes[here] = grid.collective.code(answer.collective)

"""Several workers in a sweep: what exchanges add to a step, broadcast over workers and batch sizes.

Data parallelism and the first two stages of ZeRO, whose exchanges depend on the network and not on the batch; the
formulas are those of `strategies` and `overlap`. Other strategies are predicted one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import PaleoError
from ...hardware import Device, Machine
from ...timing.models import TimeModel
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
from .inputs import buckets_of, gradient_bytes, network_of
from .rows import Reasons, each_of
from .space import Chunk, Space
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


def add_workers(
    space: Space,
    chunk: Chunk,
    devices: Sequence[Device],
    models: Sequence[Sequence[TimeModel | str]],
    single: Single,
    columns: dict[str, Floats],
    collective: tuple[NDArray[np.int32], dict[str, int]],
    reasons: Reasons,
) -> None:
    """What exchanges change about the rows of several workers that train."""
    if max(space.workers) == 1:
        return
    sizes, alone = single.sizes, np.searchsorted(single.sizes, chunk.batch_sizes)
    columns["alone_s"] = single.time_s[..., alone]
    each = each_of(space, chunk)
    jobs: dict[tuple[int, int, int], Job] = {}
    grid = np.ndindex(*space.spread[1:])
    for scaling, strategy, link, chosen, count in grid:
        workers = space.workers[count]
        if workers == 1:
            continue
        feasible = np.flatnonzero(each[scaling, count] > 0)
        at = np.searchsorted(sizes, each[scaling, count, feasible])
        for case, (network, phase) in enumerate(chunk.cases):
            if phase != "training":
                continue
            for place, device in enumerate(devices):
                for number, model in enumerate(models[place]):
                    if isinstance(model, str):
                        continue
                    row = (case, place, number, scaling, strategy, link, chosen, count)
                    if space.strategies[strategy] not in BROADCAST:
                        if (case, place, number) not in jobs:
                            options = TrainingOptions(space.optimizer)
                            asked = Workload(network_of(network), chunk.precision, phase=phase, training=options)
                            jobs[case, place, number] = Job(asked, Machine(device), model)
                        _by_scale(space, chunk, row, jobs[case, place, number], columns, collective, reasons)
                        continue
                    exchange = exchange_of(
                        network, PRECISION_BYTES[chunk.precision], space.strategies[strategy], space.links[link],
                        space.collectives[chosen], workers,
                    )  # fmt: skip
                    if isinstance(exchange, str):
                        reasons.give_at(exchange, row)
                        continue
                    parts = single.pieces_s[case, place, number]
                    exposed = exposed_of(exchange, parts[2:])[at]
                    before = single.time_s[case, place, number, at]
                    step = before - (parts[1, at] * (1 - 1 / workers) if space.strategies[strategy] != "data" else 0.0)
                    rows = (*row, feasible)
                    for name in ("low_s", "high_s"):
                        columns[name][rows] = columns[name][rows] * (step / before) + exposed
                    columns["time_s"][rows] = step + exposed
                    columns["exposed_s"][rows] = exposed
                    collective[0][row] = collective[1].setdefault(exchange.collective, len(collective[1]))


def _by_scale(
    space: Space,
    chunk: Chunk,
    row: tuple[int, ...],
    job: Job,
    columns: dict[str, Floats],
    collective: tuple[NDArray[np.int32], dict[str, int]],
    reasons: Reasons,
) -> None:
    """Rows of strategies that do not broadcast, one at a time; their memory is that of the strategy."""
    *_, scaling, strategy, link, chosen, count = row
    machine = flat(link_rate(space.links[link]), space.workers[count])
    settings = Settings(collective=space.collectives[chosen] or None)
    for place, batch in enumerate(chunk.batch_sizes):
        at = (*row, place)
        if reasons.codes[at] >= 0:
            continue
        try:
            (found,) = scale(
                job, machine, [space.workers[count]], batch,
                scaling=space.scalings[scaling], strategy=space.strategies[strategy], settings=settings,
            )  # fmt: skip
        except PaleoError as error:
            reasons.give_at(str(error), at)
            continue
        columns["time_s"][at], columns["exposed_s"][at] = found.time_s, found.exposed_s
        columns["low_s"][at], columns["high_s"][at] = found.interval or (np.nan, np.nan)
        columns.setdefault("own_memory_bytes", np.full(reasons.codes.shape, np.nan))[at] = (
            np.inf if found.memory_bytes is None else found.memory_bytes
        )
        if found.collective:
            collective[0][at] = collective[1].setdefault(found.collective, len(collective[1]))

"""From a job and numbers of workers to rows: what a step takes, how it compares with one worker, what limits it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BadValue
from ..timing.memory import RESERVE_BYTES
from .cost import Budget, priced
from .job import Job, Settings
from .parts import Parts
from .rows import ScaleRow
from .strategies import find_strategy
from .topology import Topology

SCALINGS = {
    "weak": "the batch per worker stays",
    "strong": "the batch of all workers together stays",
}
NEARLY = 0.02
"""Losses below this share of a step are not worth a name."""


def scale(
    job: Job,
    topology: Topology,
    workers: Sequence[int],
    batch_size: int,
    *,
    scaling: str = "weak",
    strategy: str = "data",
    settings: Settings | None = None,
    budget: Budget | None = None,
) -> list[ScaleRow]:
    """Predict training on several numbers of workers.

    Parameters
    ----------
    job : Job
    topology : Topology
        The machine; of it as many devices as there are workers are used, nodes filled first.
    workers : sequence of int
    batch_size : int
        Samples per worker for weak scaling, of all workers together for strong scaling.
    scaling : {"weak", "strong"}
    strategy : str
        One of `strategies.STRATEGIES`.
    settings : Settings, optional
    budget : Budget, optional
        Images, epochs and price for hours and cost.

    Returns
    -------
    list of ScaleRow
        One for each number of workers, in their order.

    Raises
    ------
    UnknownName
        If scaling, strategy or collective are unknown.
    BadValue
        If workers are below 1, do not divide the batch or the nodes, or are more than the batch has samples.
    """
    settings, budget = settings or Settings(), budget or Budget()
    if scaling not in SCALINGS:
        raise BadValue(f"scaling must be weak or strong, not {scaling!r}")
    if not workers:
        raise BadValue("at least one number of workers is needed")
    for number in workers:
        if number < 1:
            raise BadValue(f"workers must be whole numbers of 1 or more, not {number}")
    run = find_strategy(strategy)
    alone = run(job, topology.with_workers(1), batch_size, settings)
    rows = []
    for number in workers:
        machine = topology.with_workers(number)
        total = batch_size * number if scaling == "weak" else batch_size
        if total < number:
            raise BadValue(f"a batch of {total} is smaller than {number} workers: each needs a sample")
        parts = run(job, machine, total, settings) if number > 1 else alone
        rows.append(_row(job, machine, total, parts, batch_size / alone.time_s, strategy))
    return priced(rows, budget)


def _row(job: Job, machine: Topology, total: int, parts: Parts, alone_per_s: float, strategy: str) -> ScaleRow:
    workers, time = machine.workers, parts.time_s
    throughput = total / time
    speedup = throughput / alone_per_s
    step = job.at(total // workers)
    fits = None if parts.memory_bytes is None else parts.memory_bytes <= job.machine.device.memory_bytes - RESERVE_BYTES
    interval = None
    if step.interval is not None:
        # What is computed lies as far off as one device's step of its samples does; exchanges are taken as they are.
        low, high = (parts.exposed_s + (time - parts.exposed_s) * end / step.time_s for end in step.interval)
        interval = (low, high)
    return ScaleRow(
        workers=workers,
        batch_size=total,
        compute_s=parts.compute_s,
        communication_s=parts.communication_s,
        exposed_s=parts.exposed_s,
        update_s=parts.update_s,
        time_s=time,
        throughput_per_s=throughput,
        speedup=speedup,
        efficiency=speedup / workers,
        memory_bytes=parts.memory_bytes,
        limited_by=_limit(machine, parts, total / alone_per_s / workers, fits),
        interval=interval,
        notes=parts.notes,
        strategy=strategy,
        collective=parts.collective,
        fits=fits,
    )


def _limit(machine: Topology, parts: Parts, ideal_s: float, fits: bool | None) -> str:
    """In words what most stands between a step and its ideal, the n-th part of one worker's time for the samples."""
    if fits is False:
        return "memory: it does not fit"
    losses = dict(parts.losses)
    if parts.exposed_s:
        losses[f"communication over {_paced_by(machine)}"] = parts.exposed_s
    rest = parts.time_s - ideal_s - sum(losses.values())
    losses["small batches per worker"] = rest
    worst = max(losses, key=lambda name: losses[name])
    return worst if losses[worst] > NEARLY * parts.time_s else "compute"


def _paced_by(machine: Topology) -> str:
    links = [
        link
        for link, used in ((machine.between, machine.nodes > 1), (machine.inside, machine.devices_per_node > 1))
        if link is not None and used
    ]
    return min(links, key=lambda link: link.bandwidth_bytes_per_s * link.ppp).name if links else "no link"

"""From a job and numbers of workers to rows: what a step takes, how it compares with one worker, what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ..counting import GENERATING
from ..errors import BadValue, UnknownName
from ..input_pipeline.feeding import Feeding, feed
from ..timing.memory import largest_batch, usable_bytes
from ..units import element_bytes
from .clusters import Cluster, Conditioned, best_case
from .job import Inputs, Job, Settings, Step, plain
from .links import Topology
from .strategies import STRATEGIES
from .table import Budget, ScaleRow

PHASES = ("training", *GENERATING)
"""What several devices do together."""

SCALINGS = {
    "weak": "the batch per worker stays",
    "strong": "the batch of all workers together stays",
}
NO_WORKER = "no one worker holds the network: speed-up is over a worker's share of"
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
    cluster: Cluster | None = None,
) -> list[ScaleRow]:
    """Predict training on several numbers of workers.

    Parameters
    ----------
    topology : Topology
        The machine; of it as many devices as there are workers are used, nodes filled first.
    batch_size : int
        Samples per worker for weak scaling, of all workers together for strong scaling.
    scaling : {"weak", "strong"}
    strategy : str
        One of `strategies.STRATEGIES`.
    budget : Budget, optional
        Images, epochs and price for hours and cost.
    cluster : Cluster, optional
        What is known of such machines; without it links and overlap do what `topology` and `settings` say.

    Returns
    -------
    list of ScaleRow
        One for each number of workers, in their order.

    Raises
    ------
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
    alone = step_of(job, topology.with_workers(1), settings, batch_size, strategy, cluster)
    workload, device, tokens = job.workload, job.machine.device, job.workload.network.tokens
    room, power_w = usable_bytes(device), device.power_w
    held_per_s, note = _one_worker(job, alone, batch_size, settings, room)
    alone_per_s = held_per_s or batch_size / alone.time_s
    # With a fraction: the whole number of many samples of a large network fits into no 64 bits.
    one, two = (float(workload.work.column("flops", workload.phase, number).sum()) for number in (1, 2))
    rows = []
    for number in workers:
        machine = topology.with_workers(number)
        total = batch_size * number if scaling == "weak" else batch_size
        step = step_of(job, machine, settings, total, strategy, cluster) if number > 1 else alone
        bound = step_of(job.bound, *best_case(machine, settings), total, strategy)
        fits = None if step.memory_bytes is None else step.memory_bytes <= room
        described = {name: getattr(step, name) for name in Step.__struct_fields__ if name != "notes"}
        row = ScaleRow(
            **described,
            **msgspec.structs.asdict(budget),
            notes=(*step.notes, *note),
            workers=number,
            batch_size=total,
            alone_per_s=alone_per_s,
            limited_by=_limit(machine, step, total / alone_per_s / number, fits, STRATEGIES[strategy].in_blocks),
            strategy=strategy,
            fits=fits,
            bound_s=float(bound.time_s),
            flops=one + (total - 1) * (two - one),
            tokens=tokens * total if tokens else None,
            peak_per_s=job.machine.peak(workload.options.products or workload.precision).per_s,
            power_w=power_w,
        )
        rows.append(row)
    return rows if held_per_s else over_what_runs(rows)


def _one_worker(
    job: Job, alone: Step, batch_size: int, settings: Settings, room: float
) -> tuple[float | None, tuple[str, ...]]:
    """Samples per second of one worker that can run: with as large a batch as it holds; None where it holds none."""
    if alone.memory_bytes is None or alone.memory_bytes <= room:
        return batch_size / alone.time_s, ()
    held = largest_batch(job.workload, memory_bytes=room)
    if held is None:
        return None, ()
    samples = min(held, batch_size)
    paced = step_of(
        job,
        Topology(None, 1, None, 1, None),
        settings,
        samples,
        "together" if job.workload.phase in GENERATING else "data",
    )
    says = f"one worker, which the speed-up is over, has a batch of {samples}: it does not hold {batch_size}"
    return samples / float(paced.time_s), (says,)


def over_what_runs(rows: list[ScaleRow]) -> list[ScaleRow]:
    """Speed-ups over the first row that fits, where no one worker can run."""
    first = next((row for row in rows if row.fits), None)
    if first is None:
        return rows
    share = first.throughput_per_s / first.workers
    says = f"{NO_WORKER} {first.workers} with {first.strategy}"
    return [
        msgspec.structs.replace(
            row,
            alone_per_s=share,
            over=first.workers,
            notes=(*(note for note in row.notes if not note.startswith(NO_WORKER)), says),
        )
        for row in rows
    ]


def step_of(
    job: Job,
    machine: Topology,
    settings: Settings,
    batch_size: Any,
    strategy: str,
    cluster: Cluster | None = None,
) -> Step:
    """A step by a strategy on all devices of a machine.

    Parameters
    ----------
    batch_size : int, or ndarray where the strategy takes one
        Of all devices together.
    cluster : Cluster, optional
        What is known of such machines.

    Raises
    ------
    UnknownName, BadValue
        If there is no such strategy, or it cannot share this batch out on this machine.
    """
    if strategy not in STRATEGIES:
        raise UnknownName("strategy", strategy, STRATEGIES)
    workers, in_blocks = machine.workers, STRATEGIES[strategy].in_blocks
    if np.any(batch_size < workers) and not in_blocks:
        raise BadValue(f"a batch of {batch_size} is smaller than {workers} workers: each needs a sample")

    def run_on(machine: Topology, settings: Settings, pace: float) -> Step:
        of_all = settings if in_blocks else settings.among(workers)  # of replicas that wait for each other
        step = STRATEGIES[strategy].run(job.paced(pace), machine, batch_size, of_all)
        return step if settings.inputs is None else fed(step, job, machine, batch_size, settings.inputs)

    if cluster is None or (workers == 1 and not isinstance(cluster, Conditioned)):
        computed = step = run_on(machine, settings, 1.0)
        best_s = worst_s = step.time_s
    else:
        step, best_s, worst_s, interval = cluster.around(run_on, machine, settings)
        computed = step
        several = (best_s, worst_s) if workers > 1 else None
        step = msgspec.structs.replace(step, cluster_interval=several, interval=interval)
        if interval is not None:
            return step
    alone: Step = computed if in_blocks else job.at(batch_size // workers)
    if alone.interval is None:
        return step
    # What is computed lies as far off as one device's step of its samples does. Exchanges and waiting have causes of
    # their own: logarithms of the two, which are independent, add up by their squares.
    own_s = step.time_s - step.exposed_s
    ends = []
    for end_s, cluster_s in zip(alone.interval, (best_s, worst_s)):
        computing = np.log((step.exposed_s + own_s * end_s / alone.time_s) / step.time_s)
        off = np.hypot(computing, np.log(cluster_s / step.time_s))
        ends.append(plain(step.time_s * np.exp(np.copysign(off, computing))))
    return msgspec.structs.replace(step, interval=(ends[0], ends[1]))


def _limit(machine: Topology, step: Step, ideal_s: float, fits: bool | None, in_blocks: bool) -> str:
    """In words what most stands between a step and its ideal, the n-th part of one worker's time for the samples."""
    if fits is False:
        return "memory: it does not fit"
    losses = dict(step.losses)
    if step.exposed_s:
        slowest = min(machine.links.values(), key=lambda link: link.bandwidth_bytes_per_s * link.ppp)
        losses[f"communication over {slowest.name}"] = step.exposed_s
    rest = "undivided work and smaller matrices" if in_blocks else "small batches per worker"
    losses[rest] = step.time_s - ideal_s - sum(losses.values())
    worst = max(losses, key=lambda name: float(losses[name]))
    return worst if losses[worst] > NEARLY * step.time_s else "compute"


def fed(step: Step, job: Job, machine: Topology, batch_size: Any, inputs: Inputs) -> Step:
    """The same step, with what it waits for its samples.

    Every node reads and decodes its part of the batch itself; where a strategy does not divide the batch, all of it.

    Raises
    ------
    BadValue
        If it is asked of many batch sizes at once.
    """
    if np.ndim(batch_size):
        raise BadValue("input feeding is predicted for one batch size at a time")
    samples = max(batch_size // machine.nodes // machine.devices_per_node, 1)
    network = job.workload.network
    feeding = Feeding(
        device_per_s=samples / step.time_s,
        batch_size=samples,
        sample_bytes=inputs.sample_bytes,
        decoded_bytes=network.input_elements * element_bytes(job.workload.precision),
        store=inputs.store,
        access="sequential",
        workers=1,
        decode_per_worker_s=inputs.decode_per_s,
        link=inputs.link,
        link_bytes_per_s=inputs.link_bytes_per_s,
        pinned=not inputs.pageable,
        devices=machine.devices_per_node,
    )
    result = feed(feeding)
    waiting_s = max(result.waiting_s, 0.0)
    if not waiting_s:
        return step
    slowest = min(result.stages[:-1], key=lambda stage: stage.per_s)
    losses = {**step.losses, f"input: {slowest.name}": waiting_s}
    return msgspec.structs.replace(step, input_s=waiting_s, losses=losses)

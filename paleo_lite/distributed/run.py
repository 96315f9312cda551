"""From what a user asks to a `ScaleTable`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..counting import GENERATING
from ..counting.work import check_batch_size
from ..errors import BadValue
from ..machines import Machine
from ..timing import TimeModel, Workload, describe
from ..timing.memory import largest_batch, usable_bytes
from ..units import parse_range
from .advise import Advice
from .advise import advise as give_advice
from .blocks import notes_of
from .clusters import (
    EXPECTED,
    WORST,
    Cluster,
    ClusterPrior,
    Conditioned,
    Scores,
    cluster_prior,
    condition,
    parse_measured,
)  # fmt: skip
from .job import Job, Settings
from .links import Topology, flat, link_rate
from .platforms import Computer, Platform, find_platform, parse_topology
from .scale import scale, step_of
from .strategies import STRATEGIES
from .table import Budget, ScaleRow, ScaleTable, make_budget

BATCH = 32
"""Samples per worker where none are given."""

UNKNOWN = 0.3
"""How far (as a logarithm) computing may lie from a time model that does not say."""


class Request(msgspec.Struct, frozen=True):
    """What was asked: see `paleo_lite.scale`."""

    workers: int | str | Sequence[int] | None = None
    link: str | None = None
    topology: str | None = None
    batch_size: int | None = None
    scaling: str = "weak"
    strategy: str = "data"
    ppp_comm: float | None = None
    images: float | str | None = None
    epochs: float | None = None
    price: float | str | None = None
    cost_asked: bool = False
    platform: str | None = None
    measured: Sequence[str] = ()

    def counts(self) -> list[int]:
        """Numbers of workers; empty where none are given, which means all of the topology.

        Raises
        ------
        BadValue
            If they are below 1.
        """
        return [] if self.workers is None else parse_range(self.workers, "workers")

    def samples(self, most: int) -> int:
        """The batch size, or what stands for it; `most` workers."""
        if self.batch_size is None:
            return BATCH if self.scaling == "weak" else BATCH * most
        check_batch_size(self.batch_size)
        return self.batch_size

    def machine(self, hardware_files: Sequence[Path] = ()) -> Topology:
        """The machine that link or topology describe.

        Raises
        ------
        BadValue
            If both or, for several workers, neither is given, or there are more workers than the topology has.
        """
        counts = self.counts()
        if sum(way is not None for way in (self.link, self.topology, self.platform)) > 1:
            raise BadValue("give a link for all workers, a topology or a platform: one of them")
        named = None if self.platform is None else find_platform(self.platform)
        if isinstance(named, Platform) and self.ppp_comm is not None:
            raise BadValue("this platform's links were measured: leave --ppp-comm or --platform out")
        if self.topology is not None or named is not None:
            machine = (
                named.topology(max(counts, default=0), self.ppp_comm)
                if named is not None
                else parse_topology(self.topology or "", ppp=self.ppp_comm, hardware_files=hardware_files)
            )
            if counts and max(counts) > machine.workers:
                raise BadValue(f"{max(counts)} workers are more than the topology has, {machine.describe()}")
            return machine
        if not counts:
            raise BadValue("how many workers? --workers 8, --workers 1,2,4,...,128, or all of a --topology")
        if self.link is not None:
            return flat(link_rate(self.link, self.ppp_comm), max(counts))
        if max(counts) > 1:
            raise BadValue(
                "how are the workers linked? --link ethernet20, or --topology '2x k40m @ pcie3, 16 nodes @ infiniband'"
            )
        return Topology(None, 1, None, 1, None)


def run(
    request: Request,
    topology: Topology,
    workload: Workload,
    machine: Machine,
    model: TimeModel,
    settings: Settings | None = None,
    *,
    advise: bool = False,
) -> ScaleTable:
    """Answer a request.

    Raises
    ------
    BadValue
        If the topology is of another device, or advice is asked for several numbers of workers.
    """
    if topology.device is not None and topology.device != machine.device.id:
        raise BadValue(f"the topology is of {topology.device}, not of {machine.device.id}: name one of them")
    counts = request.counts() or [topology.workers]
    samples = request.samples(max(counts))
    named = find_platform(request.platform) if request.platform is not None else None
    price = named.price_usd_per_h if isinstance(named, Computer) and request.price is None else request.price
    budget = make_budget(
        machine.device, request.images, request.epochs, price, cost_asked=request.cost_asked,
        tokens=workload.network.tokens,
    )  # fmt: skip
    platform = named if isinstance(named, Platform) else None
    settings, computing = settings or Settings(), 1.0
    if platform is not None:
        settings, computing = platform.settings(settings), platform.computing
    # A bound of computing asks for one of exchanging: no prior speaks of it.
    cluster: Cluster | None = platform or (cluster_prior() if model.is_forecast else None)
    job = Job(workload, machine, model, computing)
    if request.measured:
        if not isinstance(cluster, ClusterPrior):
            raise BadValue(
                "--measured says more about a forecast of a cluster that nobody measured: leave it out, or "
                + (f"--platform {request.platform}" if platform else f"--time-model {model.name}")
            )
        job, cluster = _learnt(request, topology, job, settings, samples, cluster)
    if advise:
        if len(counts) != 1:
            raise BadValue(
                f"advice is for one number of workers, not for {len(counts)}: use --workers {counts[-1]}, for example"
            )
        answer = give_advice(
            job, topology, counts[0], samples, scaling=request.scaling, settings=settings, budget=budget,
            cluster=cluster,
        )  # fmt: skip
    else:
        rows = scale(
            job, topology, counts, samples, scaling=request.scaling, strategy=request.strategy, settings=settings,
            budget=budget, cluster=cluster,
        )  # fmt: skip
        answer = Advice(rows, "", {})
    used = topology.with_workers(max(counts))
    if cluster is not None and platform is None:
        centre = cluster.scores if isinstance(cluster, Conditioned) else Scores(*[EXPECTED] * 4)
        used, _ = cluster_prior().at(centre, used, settings)
    return _table(request, used, job, answer, budget, samples)


def _learnt(
    request: Request, topology: Topology, job: Job, settings: Settings, samples: int, prior: ClusterPrior
) -> tuple[Job, Conditioned]:
    """The job at the pace, and the clusters, that agree with what was measured."""
    points = [parse_measured(text) for text in request.measured]
    totals = [samples * point.workers if request.scaling == "weak" else samples for point in points]

    def seconds(scores: Scores, pace: float) -> list[float]:
        paced, times = job.paced(pace), []
        for point, total in zip(points, totals):
            machine, how = prior.at(scores, topology.with_workers(point.workers), settings)
            times.append(float(step_of(paced, machine, how, total, request.strategy).time_s))
        return times

    alone = job.at(samples)
    apart = UNKNOWN if alone.interval is None else math.log(alone.interval[1] / alone.interval[0]) / (2 * WORST)
    known = condition(prior, seconds, [point.seconds(total) for point, total in zip(points, totals)], apart)
    return job.paced(known.pace), known.relative()


def _table(request: Request, machine: Topology, job: Job, answer: Advice, budget: Budget, samples: int) -> ScaleTable:
    device, notes = job.machine.device, _notes(request, machine, job, answer.rows, budget, samples)
    return ScaleTable(
        network=job.workload.network.name,
        gpu=device.id,
        gpu_name=device.name,
        precision=job.workload.options.products or job.workload.precision,
        scaling=request.scaling,
        batch_size=samples,
        topology=machine.describe(),
        links=tuple(link.describe() for link in machine.links.values()),
        model=describe(job.model),
        is_forecast=job.model.is_forecast,
        memory_bytes=device.memory_bytes,
        rows=answer.rows,
        images=budget.images,
        epochs=None if budget.images is None else budget.epochs,
        price_usd_per_h=budget.price_usd_per_h if budget.images is not None else None,
        why=answer.why,
        refused=answer.refused,
        notes=tuple(dict.fromkeys(notes)),
        phase=job.workload.phase,
    )


def _notes(
    request: Request, machine: Topology, job: Job, rows: list[ScaleRow], budget: Budget, samples: int
) -> list[str]:
    """What to know of the answer: what is missing of it, what it was learnt from, and what would fit."""
    device, options, notes = job.machine.device, job.workload.options, list(job.workload.network.notes)
    if budget.images is not None and budget.price_usd_per_h is None:
        notes.append(
            f"no price of {device.name} is on record, so the cost is unknown: give --price, such as '0.90 USD/h'"
        )
    for link in machine.links.values():
        whole = [attached.link for attached in device.links if attached.link.startswith(f"{link.name}-x")]
        if link.per == "lane" and whole:
            lanes = f"{link.name} is one lane of the {whole[0].removeprefix(f'{link.name}-x')} that {device.name} has"
            notes.append(f"{lanes}: --link {whole[0]} is all of them")
    named = None if request.platform is None else find_platform(request.platform)
    if named is not None:
        notes.append(f"{'fitted: ' if isinstance(named, Platform) else ''}{named.describe()}")
        notes += named.notes if isinstance(named, Computer) else []
    if request.measured or (not isinstance(named, Platform) and job.model.is_forecast and machine.workers > 1):
        prior = cluster_prior()
        others = (
            f"as of {prior.clusters} clusters that were measured ({prior.measurements} measurements; {prior.held_out})"
        )
        notes.append(
            f"computing, links, overlap and waiting are as measured here ({'; '.join(request.measured)}) and {others}"
            if request.measured
            else f"this cluster was not measured: links, overlap and waiting are {others}"
        )
    if options.products:
        notes.append(
            f"matrices are multiplied in {options.products}, but for the logits'; all else is in "
            f"{job.workload.precision}, and so is what is saved"
        )
    refused = [row.batch_size // row.workers for row in rows if row.fits is False and row.strategy == "data"]
    if refused:
        largest = largest_batch(job.workload, memory_bytes=usable_bytes(device))
        would = "not even one sample would" if largest is None else f"the largest batch that does is {largest}"
        notes.append(f"a batch of {max(refused)} per worker does not fit into {device.name}: {would}")
    if job.workload.phase in GENERATING:
        return [*notes, *notes_of(job)]
    return [*notes, *job.at(1 if STRATEGIES[request.strategy].in_blocks else samples).model_notes]

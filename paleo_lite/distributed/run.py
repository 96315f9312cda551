"""Scaling predictions: from what is asked of a cluster to a `ScaleTable`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..counting import GENERATION_PHASES
from ..counting.work import check_batch_size
from ..errors import BadValue
from ..machines import Device, Machine
from ..timing import TimeModel, Workload, describe_model
from ..timing.blocks import KERNEL_NOTE
from ..timing.budget import Amount, Budget, make_budget
from ..timing.facility import Facility
from ..timing.notes import setting_notes
from ..timing.training import precision_notes
from ..timing.training_stack import stack_constants
from ..units import parse_range
from .advise import StrategyAdvice, rank_by_energy
from .advise import advise as compare_strategies
from .blocks import uses_tuned_stack
from .clusters import (
    EXPECTED,
    WORST,
    Cluster,
    ClusterPrior,
    ClusterScores,
    ConditionedPrior,
    cluster_prior,
    condition_on_measurements,
    parse_measured,
)
from .generation import generation_notes
from .job import Job
from .links import Topology, device_link, flat_topology, link_inside_nodes, link_rate
from .parallel_config import ParallelConfig
from .platforms import Computer, Platform, find_platform, parse_topology, usual_computer
from .remedies import fitting_note
from .scale import predict_step, scale
from .settings import Settings
from .strategies import STRATEGIES, resolve_strategy
from .table import ScaleRow, ScaleTable

DEFAULT_BATCH_PER_WORKER = 32
"""Samples per worker if no batch size is given."""

DEFAULT_COMPUTE_DEVIATION = 0.3
"""Standard deviation of the logarithm of computation time for a time model that gives no interval."""


class Feed(NamedTuple):
    """How the samples of training reach the devices of a node."""

    storage: str = "memory"
    decode: float | str | None = None  # samples per second that a node decodes, such as "3,000/s"
    pageable: bool = False  # whether one process copies the samples from pageable memory


class ClusterRequest(msgspec.Struct, frozen=True):
    """What is asked of many devices: what records of options say about them, in single values."""

    # Numbers of devices: 8, [1, 2, 4] or a range as text; None for all devices of the topology.
    workers: int | str | Sequence[int] | None = None
    # One of the three says how devices are joined: a link between all of them, a topology, or a computer.
    link: str | None = None
    topology: str | None = None
    platform: str | None = None
    batch_size: int | None = None  # samples per step: per device in weak scaling, of all devices in strong scaling
    scaling: str = "weak"
    strategy: str = "data"
    advise: str | None = None  # what strategies are ranked by; None for the times of one strategy
    ppp_comm: float | None = None  # fraction of the bandwidth of links that is reached
    feed: Feed | None = None
    measured: Sequence[str] = ()  # the user's own measurements, such as "16 workers: 5,900 samples/s"
    amount: Amount = Amount()
    price: float | str | None = None
    price_of: str | None = None
    facility: Facility | None = None

    def worker_counts(self) -> list[int]:
        """Return the numbers of workers; an empty list stands for all devices of the topology.

        Raise BadValue if one is < 1.
        """
        if self.workers is None:
            return []
        return parse_range(self.workers, "workers")

    def resolve_batch_size(self, max_workers: int) -> int:
        """Return the batch size, or its default, which may depend on the largest number of workers."""
        if self.batch_size is not None:
            check_batch_size(self.batch_size)
            return self.batch_size
        if self.scaling == "weak":
            return DEFAULT_BATCH_PER_WORKER
        return DEFAULT_BATCH_PER_WORKER * max_workers

    def global_batch_size(self, batch_size: int, workers: int) -> int:
        """Return the samples per step of all workers for a resolved batch size."""
        return batch_size * workers if self.scaling == "weak" else batch_size

    def build_topology(
        self,
        hardware_files: Sequence[Path] = (),
        device: Device | None = None,  # unless the topology or platform names it
        *,
        # Whether a device without a usual computer is joined to others by its fastest link, as under an engine.
        uses_own_link: bool = False,
    ) -> Topology:
        """Return the topology that a link, a topology or a platform describes, or that is usual for the device.

        Raise BadValue if more than one of them is given, or none for several workers of a device without a usual
        computer, or if there are more workers than devices.
        """
        counts = self.worker_counts()
        if sum(source is not None for source in (self.link, self.topology, self.platform)) > 1:
            raise BadValue("give only one of `--link`, `--topology` and `--platform`")
        platform = None if self.platform is None else find_platform(self.platform)
        if isinstance(platform, Platform) and self.ppp_comm is not None:
            raise BadValue("the links of this platform were measured: leave out `--communication ppp` or `--platform`")
        if platform is not None or self.topology is not None:
            if platform is not None:
                topology = platform.topology(max(counts, default=0), self.ppp_comm)
            else:
                topology = parse_topology(
                    self.topology or "", ppp=self.ppp_comm, hardware_files=hardware_files, device=device
                )
            if counts and max(counts) > topology.workers:
                raise BadValue(
                    f"`--workers` must be <= {topology.workers}, the devices of {topology.describe()} "
                    f"(got {max(counts)})"
                )
            return topology
        if not counts:
            raise BadValue(
                "several devices need their number: `--workers`, such as 8 or 1,2,4,...,128, or a `--topology`"
            )
        if self.link is not None:
            name, assumed = link_inside_nodes(self.link, device)
            topology = flat_topology(link_rate(name, self.ppp_comm), max(counts))
            return msgspec.structs.replace(topology, assumptions=(assumed,) if assumed else ())
        if max(counts) == 1:
            return Topology(None, 1, None, 1, None)
        usual = None if device is None else usual_computer(device.id)
        if usual is None and uses_own_link and device is not None and device.links:
            return flat_topology(link_rate(device_link(device), self.ppp_comm), max(counts))
        if usual is None:
            raise BadValue(
                "several workers need a link: give `--link ethernet20`, "
                "`--topology '2x k40m @ pcie3, 16 nodes @ infiniband'` or `--platform NAME`"
            )
        topology = usual.topology(max(counts), self.ppp_comm)
        return msgspec.structs.replace(topology, assumptions=(usual.name, *topology.assumptions))


def predict_scaling(
    request: ClusterRequest,
    topology: Topology,
    workload: Workload,
    machine: Machine,
    model: TimeModel,
    settings: Settings,
) -> ScaleTable:
    """Predict all rows of a request, or compare all strategies if they are to be ranked.

    Raise BadValue if the topology names another device, or advice is requested for several numbers of workers.
    """
    if topology.device is not None and topology.device != machine.device.id:
        raise BadValue(
            f"`--gpu` must be {topology.device}, the device of the topology, or be left out (got {machine.device.id})"
        )
    request = msgspec.structs.replace(request, strategy=resolve_strategy(request.strategy))
    counts = request.worker_counts() or [topology.workers]
    batch_size = request.resolve_batch_size(max(counts))
    found_platform = find_platform(request.platform) if request.platform is not None else None
    budget = make_budget(
        machine.device,
        request.amount,
        request.price,
        price_of=request.price_of,
        platform_price=found_platform.price_of_device if isinstance(found_platform, Computer) else None,
        sequence_tokens=workload.network.tokens,
    )
    platform = found_platform if isinstance(found_platform, Platform) else None
    compute_ratio = 1.0
    if platform is not None:
        settings, compute_ratio = platform.apply_to_settings(settings), platform.compute_ratio
    cluster: Cluster | None = platform
    if platform is None and model.is_forecast:  # a bound of computation comes with a bound of communication
        cluster = cluster_prior()
    strategy = STRATEGIES[request.strategy]
    is_training = workload.phase not in GENERATION_PHASES
    if (
        settings.micro_batches is not None
        and is_training
        and request.advise is None
        and not strategy.uses_micro_batches
    ):
        remedy = "`--micro-batch` sets the samples of each" if strategy.divides_blocks else "leave it out"
        raise BadValue(
            "`--schedule micro-batches` is for `--strategy pipeline-gpipe` and `pipeline-1f1b`, "
            f"not {request.strategy}: {remedy}"
        )
    job = Job(workload, machine, model, compute_ratio)
    if request.measured:
        if not isinstance(cluster, ClusterPrior):
            option = f"--platform {request.platform}" if platform else f"--time-model {model.name}"
            raise BadValue(
                "`--measured` refines the forecast of a cluster without measurements: leave it out, or leave out "
                f"`{option}`"
            )
        job, cluster = _condition_job(request, topology, job, settings, batch_size, cluster)
    if request.advise is not None:
        if len(counts) != 1:
            raise BadValue(
                f"`--advise` needs a single number of workers, such as `--workers {counts[-1]}` "
                f"(got {', '.join(map(str, counts)) or 'none'})"
            )
        advice = compare_strategies(
            job,
            topology,
            counts[0],
            batch_size,
            scaling=request.scaling,
            settings=settings,
            budget=budget,
            cluster=cluster,
        )
        if request.advise == "joules":
            advice = rank_by_energy(advice)
    else:
        rows = scale(
            job,
            topology,
            counts,
            batch_size,
            scaling=request.scaling,
            strategy=request.strategy,
            settings=settings,
            budget=budget,
            cluster=cluster,
        )
        if is_training and strategy.divides_blocks and all(row.fits is False for row in rows):
            most = rows[-1]
            note = fitting_note(job, topology.with_workers(most.workers), settings, most.batch_size)
            rows[-1] = msgspec.structs.replace(most, notes=(note, *most.notes))
        advice = StrategyAdvice(rows, "", {})
    used_topology = topology.with_workers(max(counts))
    if cluster is not None and platform is None and workload.engine is None:
        scores = ClusterScores.uniform(EXPECTED)
        if isinstance(cluster, ConditionedPrior):
            scores = cluster.mean_scores
        used_topology, _ = cluster_prior().cluster_at(scores, used_topology, settings)
    return _make_table(request, used_topology, job, advice, budget, batch_size, settings)


def _condition_job(
    request: ClusterRequest, topology: Topology, job: Job, settings: Settings, batch_size: int, prior: ClusterPrior
) -> tuple[Job, ConditionedPrior]:
    """Return the job and the clusters that agree with the measured steps."""
    points = [parse_measured(text) for text in request.measured]
    global_batch_sizes = [request.global_batch_size(batch_size, point.workers) for point in points]
    measured_s = [point.step_time_s(size) for point, size in zip(points, global_batch_sizes)]

    def predict_times(scores: ClusterScores, compute_scale: float) -> list[float]:
        scaled_job = job.with_compute_scale(compute_scale)
        times = []
        for point, global_batch_size in zip(points, global_batch_sizes):
            machines, drawn_settings = prior.cluster_at(scores, topology.with_workers(point.workers), settings)
            step = predict_step(scaled_job, machines, drawn_settings, global_batch_size, request.strategy)
            times.append(float(step.time_s))
        return times

    interval = job.device_step(batch_size).interval
    compute_deviation = DEFAULT_COMPUTE_DEVIATION
    if interval is not None:
        compute_deviation = math.log(interval[1] / interval[0]) / (2 * WORST)
    conditioned = condition_on_measurements(prior, predict_times, measured_s, compute_deviation)
    return job.with_compute_scale(conditioned.compute_scale), conditioned.relative_to_compute_scale()


def _make_table(
    request: ClusterRequest,
    topology: Topology,
    job: Job,
    advice: StrategyAdvice,
    budget: Budget,
    batch_size: int,
    settings: Settings,
) -> ScaleTable:
    device, options = job.machine.device, job.workload.options
    notes = _collect_notes(request, topology, job, advice, budget, batch_size, settings)
    if job.model.is_forecast and not any(note.startswith(FASTER_THAN_BOUND) for note in notes):
        notes += _notes_below_bound(advice.rows)
    of_all_rows = {"facility": request.facility, "is_forecast": job.model.is_forecast}
    return ScaleTable(
        network=job.workload.network.name,
        gpu=device.id,
        gpu_name=device.name,
        precision=options.recipe or options.products or job.workload.precision,
        scaling=request.scaling,
        batch_size=batch_size,
        topology=topology.describe(),
        links=tuple(link.describe() for link in topology.links.values()),
        assumptions=topology.assumptions if topology.workers > 1 else (),
        model=describe_model(job.model),
        is_forecast=job.model.is_forecast,
        memory_bytes=device.reported_memory_bytes,
        rows=[msgspec.structs.replace(row, **of_all_rows) for row in advice.rows],
        images=budget.images,
        epochs=None if budget.images is None else budget.epochs,
        price_usd_per_h=budget.price_usd_per_h if budget.images is not None else None,
        price=budget.describe_price() if budget.images is not None else None,
        why=advice.why,
        refused=advice.refused,
        notes=tuple(dict.fromkeys(notes)),
        phase=job.workload.phase,
        trainable_parameters=job.workload.trainable_parameters if job.workload.phase == "training" else None,
        facility=request.facility,
        execution=job.workload.execution_or_engine,
        calibration=job.model.label or None,
    )


FASTER_THAN_BOUND = "faster than the bound"


def _notes_below_bound(rows: Sequence[ScaleRow]) -> list[str]:
    """Return the note on forecasts below their bound, for which no layer of a device gives a reason."""
    below = dict.fromkeys(f"{row.workers:,}" for row in rows if row.bound_s is not None and row.time_s < row.bound_s)
    if not below:
        return []
    return [f"{FASTER_THAN_BOUND} with {', '.join(below)} workers: the time model exceeds the rates of data sheets"]


def _collect_notes(
    request: ClusterRequest,
    topology: Topology,
    job: Job,
    advice: StrategyAdvice,
    budget: Budget,
    batch_size: int,
    settings: Settings,
) -> list[str]:
    """Return the notes of a table: missing prices, origin of the figures, and the largest batch that fits."""
    rows, compares_configs = advice.rows, bool(advice.why) and bool(job.workload.network.blocks)
    device = job.machine.device
    notes = [*job.workload.network.notes, *setting_notes(job.machine, job.model)]
    if budget.images is not None and budget.price_usd_per_h is None:
        notes.append(f"the price of {device.name} is unknown, and so is the cost: give `--price`, such as '0.90 USD/h'")
    if budget.images is not None:
        notes += budget.price_notes(date.today())
    platform = None if request.platform is None else find_platform(request.platform)
    if isinstance(platform, Platform):
        notes.append(f"fitted: {platform.describe()}")
    elif platform is not None:
        notes.append(platform.describe())
        notes += platform.notes
    is_unmeasured_forecast = not isinstance(platform, Platform) and job.model.is_forecast and topology.workers > 1
    is_unmeasured_forecast = is_unmeasured_forecast and job.workload.engine is None
    if request.measured or is_unmeasured_forecast:
        prior = cluster_prior()
        origin = f"{prior.clusters} measured clusters ({prior.measurements} measurements; {prior.held_out})"
        if request.measured:
            notes.append(
                "computation, links, overlap and stragglers are fitted to your measurements "
                f"({'; '.join(request.measured)}) and {origin}"
            )
        else:
            notes.append(f"this cluster was not measured: links, overlap and stragglers are those of {origin}")
    notes += precision_notes(job.workload)
    too_large = [row.batch_size // row.workers for row in rows if row.fits is False and row.strategy == "data"]
    if too_large:
        largest = job.model.largest_batch(job.workload, job.machine)
        remedy = "not even one sample fits" if largest is None else f"the largest batch that fits is {largest}"
        notes.append(f"a batch of {max(too_large)} per worker does not fit into {device.name}: {remedy}")
    if job.workload.phase in GENERATION_PHASES:
        if request.scaling == "weak" and any(row.efficiency > 1 for row in rows):
            notes.append(
                "efficiencies above 100%: in weak scaling a step of more devices has more sequences, and reads each "
                "weight once for all of them"
            )
        return [*notes, *generation_notes(job)]
    divides_blocks = STRATEGIES[request.strategy].divides_blocks or compares_configs
    model_notes = job.device_step(1 if divides_blocks else batch_size).model_notes
    config = settings.parallel or ParallelConfig()
    if divides_blocks and job.model.is_forecast and uses_tuned_stack(job, config):
        points = stack_constants().kernels.points
        model_notes = tuple(note for note in model_notes if not note.startswith(KERNEL_NOTE))
        notes.append(
            f"{KERNEL_NOTE} a tuned stack (Megatron-LM with Transformer Engine), fitted to {points} steps of published "
            "pre-training"
        )
    return [*notes, *model_notes]

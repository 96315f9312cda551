"""Scaling predictions: from what is asked of a cluster to a `ScaleTable`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

import msgspec

from ..counting import GENERATION_PHASES
from ..errors import BadValue
from ..machines import Machine
from ..timing import TimeModel, Workload, describe_model
from ..timing.blocks import KERNEL_NOTE
from ..timing.budget import Budget, make_budget
from ..timing.notes import FASTER_THAN_BOUND, WIDE_INTERVAL, range_notes, setting_notes
from ..timing.offload import OFFLOADED
from ..timing.training import execution_notes, precision_notes
from ..units import format_si
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
    data_sheet_case,
    parse_measured,
)
from .fitting import fitting_note
from .job import Job
from .links import Topology
from .one_device import stack_note
from .parallel_config import ParallelConfig
from .platforms import Computer, Platform, find_platform
from .remedies import balance_note, larger_micro_batch_note
from .request import ClusterRequest
from .scale import predict_step, relative_to_first_row, scale
from .settings import ScaledBatch, Settings
from .strategies import STRATEGIES, resolve_strategy
from .table import ScaleRow, ScaleTable

if TYPE_CHECKING:
    from ..calibration.evidence_file import EvidenceCalibration

DEFAULT_COMPUTE_DEVIATION = 0.3
"""Standard deviation of the logarithm of computation time for a time model that gives no interval."""


def predict_scaling(
    request: ClusterRequest,
    topology: Topology,
    workload: Workload,
    machine: Machine,
    model: TimeModel,
    settings: Settings,
    evidence: EvidenceCalibration | None = None,
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
    batch = request.resolve_batch(max(counts))
    place = None if request.platform is None else find_platform(request.platform)
    budget = make_budget(
        machine.device,
        request.amount,
        request.price,
        price_of=request.price_of,
        platform_price=place.price_of_device if isinstance(place, Computer) else None,
        sequence_tokens=workload.network.tokens,
    )
    # A platform has measured scaling; without it a forecast expects clusters as they were measured elsewhere. A bound
    # of computation comes with a bound of communication.
    platform = place if isinstance(place, Platform) else None
    compute_ratio = 1.0
    cluster: Cluster | None = platform
    if platform is not None:
        settings, compute_ratio = platform.apply_to_settings(settings), platform.compute_ratio
    elif model.is_forecast:
        cluster = cluster_prior()
    _check_micro_batches(request, workload, settings)
    job = Job(workload, machine, model, compute_ratio)
    if evidence is not None:
        if request.measured:
            raise BadValue("give only one of `--measured` and a `--calibration` from result files")
        from .step_causes import learned_job

        largest_topology = topology.with_workers(max(counts))
        job = learned_job(job, evidence, largest_topology, settings, batch.of_all(max(counts)), request.strategy)
    if request.measured:
        if not isinstance(cluster, ClusterPrior):
            option = f"--platform {request.platform}" if platform else f"--time-model {model.name}"
            raise BadValue(
                "`--measured` refines the forecast of a cluster without measurements: leave it out, or leave out "
                f"`{option}`"
            )
        job, cluster = _condition_job(request, topology, job, settings, batch, cluster)
    if request.advise is not None:
        advice = _rank_strategies(request, topology, job, settings, batch, budget, cluster)
    else:
        rows = _predict_rows(request, topology, job, settings, batch, budget, cluster)
        advice = StrategyAdvice(rows, "", {})
    used_topology = topology.with_workers(max(counts))
    if cluster is not None and platform is None and workload.engine is None:
        scores = ClusterScores.uniform(EXPECTED)
        if isinstance(cluster, ConditionedPrior):
            scores = cluster.mean_scores
        used_topology, _ = cluster_prior().cluster_at(scores, used_topology, settings)
    table = _make_table(request, used_topology, job, advice, budget, batch, settings)
    if not request.names_micro_batch:
        return table
    last_row = table.rows[-1]
    faster = larger_micro_batch_note(
        job,
        topology.with_workers(last_row.workers),
        settings,
        last_row,
        states_size=request.states_micro_batch,
        fixes_batch=request.scaling == "strong",
        cluster=cluster,
    )
    return table if faster is None else msgspec.structs.replace(table, notes=(faster, *table.notes))


def _check_micro_batches(request: ClusterRequest, workload: Workload, settings: Settings) -> None:
    """Raise BadValue for a number of micro-batches under a strategy of training that has none."""
    strategy = STRATEGIES[request.strategy]
    if settings.micro_batches is None or strategy.uses_micro_batches or request.advise is not None:
        return
    if workload.phase in GENERATION_PHASES:
        return
    remedy = "`--micro-batch` sets the samples of each" if strategy.divides_blocks else "leave it out"
    raise BadValue(
        "`--schedule micro-batches` is for `--strategy pipeline-gpipe` and `pipeline-1f1b`, "
        f"not {request.strategy}: {remedy}"
    )


def _rank_strategies(
    request: ClusterRequest,
    topology: Topology,
    job: Job,
    settings: Settings,
    batch: ScaledBatch,
    budget: Budget,
    cluster: Cluster | None,
) -> StrategyAdvice:
    """Return all strategies and collectives for one number of devices, the best first."""
    counts = request.worker_counts() or [topology.workers]
    if len(counts) != 1:
        raise BadValue(
            f"`--advise` needs a single number of workers, such as `--workers {counts[-1]}` "
            f"(got {', '.join(map(str, counts))})"
        )
    advice = compare_strategies(
        job,
        topology,
        counts[0],
        batch,
        settings=settings,
        budget=budget,
        cluster=cluster,
    )
    if request.advise == "joules":
        advice = rank_by_energy(advice)
    return advice._replace(rows=relative_to_first_row(advice.rows))


def _predict_rows(
    request: ClusterRequest,
    topology: Topology,
    job: Job,
    settings: Settings,
    batch: ScaledBatch,
    budget: Budget,
    cluster: Cluster | None,
) -> list[ScaleRow]:
    """Return one row per number of devices; if none fits into memory, the last row names remedies."""
    strategy = STRATEGIES[request.strategy]
    rows = scale(
        job,
        topology,
        request.worker_counts() or [topology.workers],
        batch,
        strategy=request.strategy,
        settings=settings,
        budget=budget,
        cluster=cluster,
    )
    if job.workload.phase in GENERATION_PHASES:
        return rows
    last_row = rows[-1]
    machines = topology.with_workers(last_row.workers)
    if request.names_remedies and all(row.fits is False for row in rows):
        note = fitting_note(
            job,
            machines,
            settings,
            last_row.batch_size,
            request.strategy,
            cluster,
            states_size=request.states_micro_batch,
            fixes_batch=request.scaling == "strong",
        )
        if note.startswith("fits") and settings.tensor == 1:
            note += "; `--advise time` compares more divisions"
        rows[-1] = last_row = msgspec.structs.replace(last_row, notes=(note, *last_row.notes))
    if not strategy.divides_blocks:
        return rows
    faster = balance_note(job, machines, settings, last_row, cluster)
    if faster is not None:
        rows[-1] = msgspec.structs.replace(last_row, notes=(*last_row.notes, faster))
    return rows


FASTEST_MEASURED = 0.5
"""Fraction of the bound by data sheets below which no step was measured: higher clocks, and convolutions by algorithms
with fewer multiplications, leave more than half of it."""


_NOTABLE_EFFICIENCY = 1.005
"""Efficiency that is printed as more than 100%."""


def _condition_job(
    request: ClusterRequest, topology: Topology, job: Job, settings: Settings, batch: ScaledBatch, prior: ClusterPrior
) -> tuple[Job, ConditionedPrior]:
    """Return the job and the clusters that agree with the measured steps."""
    points = [parse_measured(text) for text in request.measured]
    global_batch_sizes = [batch.of_all(point.workers) for point in points]
    tokens = job.workload.network.tokens
    measured_s = [point.step_time_s(size, tokens) for point, size in zip(points, global_batch_sizes)]
    for text, point, size, step_s in zip(request.measured, points, global_batch_sizes, measured_s):
        machines, best_settings = data_sheet_case(topology.with_workers(point.workers), settings)
        bound_s = float(predict_step(job.roofline_job, machines, best_settings, size, request.strategy).time_s)
        if step_s < FASTEST_MEASURED * bound_s:
            raise BadValue(
                f"`--measured '{text}'` is not of this question: by the data sheets a step takes at least "
                f"{format_si(bound_s, 's', 3)}; check the precision, the batch size, the lengths and the unit"
            )

    def predict_times(scores: ClusterScores, compute_scale: float) -> list[float]:
        scaled_job = job.with_compute_scale(compute_scale)
        times = []
        for point, global_batch_size in zip(points, global_batch_sizes):
            machines, drawn_settings = prior.cluster_at(scores, topology.with_workers(point.workers), settings)
            step = predict_step(scaled_job, machines, drawn_settings, global_batch_size, request.strategy)
            times.append(float(step.time_s))
        return times

    interval = job.device_step(batch.size).interval
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
    batch: ScaledBatch,
    settings: Settings,
) -> ScaleTable:
    device, options = job.machine.device, job.workload.options
    notes = _collect_notes(request, topology, job, advice, budget, batch, settings)
    if job.model.is_forecast and not any(note.startswith(FASTER_THAN_BOUND) for note in notes):
        notes += _notes_below_bound(advice.rows)
    if job.model.is_forecast and advice.rows:
        notes += range_notes(advice.rows[-1], device, notes, [job.workload])
    of_all_rows = {"facility": request.facility, "is_forecast": job.model.is_forecast}
    return ScaleTable(
        network=job.workload.network.name,
        gpu=device.id,
        gpu_name=device.name,
        precision=options.recipe or options.products or job.workload.precision,
        scaling=request.scaling,
        batch_size=batch.size,
        topology=topology.describe(),
        links=tuple(link.describe() for link in topology.links.values()),
        assumptions=topology.assumptions if topology.workers > 1 else (),
        model=describe_model(job.model),
        is_forecast=job.model.is_forecast,
        device_memory_bytes=device.reported_memory_bytes,
        rows=[msgspec.structs.replace(row, **of_all_rows) for row in advice.rows],
        images=budget.images,
        epochs=None if budget.images is None else budget.epochs,
        price_usd_per_h=budget.price_usd_per_h if budget.images is not None else None,
        price=budget.describe_price() if budget.images is not None else None,
        why=advice.why,
        ranked_by=request.advise,
        refused=advice.refused,
        notes=tuple(dict.fromkeys(notes)),
        phase=job.workload.phase,
        trainable_parameters=job.workload.trainable_parameters if job.workload.phase == "training" else None,
        facility=request.facility,
        execution=_execution(job, settings, advice.rows),
        calibration=job.model.label or None,
    )


def _execution(job: Job, settings: Settings, rows: Sequence[ScaleRow]) -> str:
    """Return how kernels are executed: as the division of a network in blocks says, the first one of ranked rows."""
    config = next((row.parallel for row in rows if row.parallel is not None), settings.parallel)
    if config is None or job.workload.phase != "training":
        return job.workload.execution_or_engine
    return config.execution


def _notes_below_bound(rows: Sequence[ScaleRow]) -> list[str]:
    """Return the note on forecasts below their bound, for which no layer of a device gives a reason."""
    below = dict.fromkeys(f"{row.workers:,}" for row in rows if row.bound_s is not None and row.time_s < row.bound_s)
    if not below:
        return []
    return [f"{FASTER_THAN_BOUND} with {', '.join(below)} workers: the time model exceeds the rates of data sheets"]


def notes_outside(
    request: ClusterRequest, rows: Sequence[ScaleRow], batch: ScaledBatch, sample_tokens: int | None = None
) -> list[str]:
    """Return a note on every measured step outside the interval of its forecast, which no measured cluster explains."""
    intervals = {row.workers: row.interval for row in rows}
    notes = []
    for text in request.measured:
        point = parse_measured(text)
        interval = intervals.get(point.workers)
        measured_s = point.step_time_s(batch.of_all(point.workers), sample_tokens)
        if interval is None or interval[0] <= measured_s <= interval[1]:
            continue
        low, high = (format_si(end_s, "s", 3) for end_s in interval)
        notes.append(
            f"the forecast follows {text!r} in part only: a step of {format_si(measured_s, 's', 3)} is outside its "
            f"interval, {low} to {high}, and neither clusters that were measured elsewhere nor the range of "
            "computation explain it; check the precision, the batch size, the lengths and the unit"
        )
    return notes


def _notes_on_measured(
    request: ClusterRequest, rows: Sequence[ScaleRow], batch: ScaledBatch, job: Job, origin: str
) -> list[str]:
    """Return what is fitted to measured steps, which of them lie outside, and of which strategy advice takes them."""
    notes = [
        "computation, links, overlap and stragglers are fitted to your measurements "
        f"({'; '.join(request.measured)}) and {origin}"
    ]
    notes += notes_outside(request, rows, batch, job.workload.network.tokens)
    if request.advise is not None:
        notes.append(f"what was measured is taken to be a step of the strategy {request.strategy}")
    return notes


def _collect_notes(
    request: ClusterRequest,
    topology: Topology,
    job: Job,
    advice: StrategyAdvice,
    budget: Budget,
    batch: ScaledBatch,
    settings: Settings,
) -> list[str]:
    """Return the notes of a table: missing prices, origin of the figures, and the largest batch that fits."""
    rows = advice.rows
    notes = [
        *job.workload.network.notes,
        *setting_notes(job.machine, job.model),
        *_notes_on_cost(budget, job),
        *_notes_on_cluster(request, topology, job, rows, batch),
        *precision_notes(job.workload),
        *execution_notes(job.workload),
        *_notes_on_memory(rows, job, settings),
        *_notes_on_efficiency(request, rows, job, settings),
    ]
    if job.workload.phase in GENERATION_PHASES:
        from .generation import generation_notes

        return [*notes, *generation_notes(job)]
    compares_configs = bool(advice.why) and bool(job.workload.network.blocks)
    divides_blocks = STRATEGIES[request.strategy].divides_blocks or compares_configs
    model_notes = job.device_step(1 if divides_blocks else batch.size).model_notes
    config = settings.parallel or ParallelConfig()
    if divides_blocks and job.model.is_forecast and uses_tuned_stack(job, config):
        model_notes = tuple(note for note in model_notes if not note.startswith(KERNEL_NOTE))
        notes.append(stack_note())
    if divides_blocks and all(row.workers > 1 for row in rows):  # each row says what the host of a node keeps
        model_notes = tuple(note for note in model_notes if not note.startswith(OFFLOADED))
    if request.measured:
        model_notes = tuple(note for note in model_notes if WIDE_INTERVAL not in note)
    return [*notes, *model_notes]


def _notes_on_cost(budget: Budget, job: Job) -> list[str]:
    """Return that a run has no price, or how old the price is."""
    if budget.images is None:
        return []
    notes = []
    if budget.price_usd_per_h is None:
        device = job.machine.device
        notes.append(f"the price of {device.name} is unknown, and so is the cost: give `--price`, such as '0.90 USD/h'")
    return [*notes, *budget.price_notes(date.today())]


def _notes_on_cluster(
    request: ClusterRequest, topology: Topology, job: Job, rows: Sequence[ScaleRow], batch: ScaledBatch
) -> list[str]:
    """Return which computers a table is of, and of which clusters its links, overlap and stragglers are."""
    notes = []
    platform = None if request.platform is None else find_platform(request.platform)
    if isinstance(platform, Platform):
        notes.append(f"fitted: {platform.describe()}")
    elif platform is not None:
        notes += [platform.describe(), *platform.notes]
    is_forecast = job.model.is_forecast and job.workload.engine is None and topology.workers > 1
    if not request.measured and (isinstance(platform, Platform) or not is_forecast):
        return notes
    prior = cluster_prior()
    origin = f"{prior.clusters} measured clusters ({prior.measurements} measurements; {prior.held_out})"
    if request.measured:
        return [*notes, *_notes_on_measured(request, rows, batch, job, origin)]
    return [*notes, f"this cluster was not measured: links, overlap and stragglers are those of {origin}"]


def _notes_on_memory(rows: Sequence[ScaleRow], job: Job, settings: Settings) -> list[str]:
    """Return the largest batch that fits, where replicas of data parallelism do not."""
    too_large = [row.batch_size // row.workers for row in rows if row.fits is False and row.strategy == "data"]
    if not too_large or settings.tensor > 1:  # no device has a whole replica
        return []
    largest = job.model.largest_batch(job.workload, job.machine)
    remedy = f"the largest batch that fits is {largest}"
    if largest is None:
        remedy = "not even one sample fits where every device has the whole state"
    return [f"a batch of {max(too_large)} per worker does not fit into {job.machine.device.name}: {remedy}"]


def _notes_on_efficiency(request: ClusterRequest, rows: Sequence[ScaleRow], job: Job, settings: Settings) -> list[str]:
    """Return why efficiencies exceed 100%, where they do."""
    if job.workload.phase in GENERATION_PHASES:
        if request.scaling != "weak" or all(row.efficiency <= 1 for row in rows):
            return []
        return [
            "efficiencies above 100%: in weak scaling a step of more devices has more sequences, and reads each "
            "weight once for all of them"
        ]
    configs = [row.parallel or settings.parallel for row in rows if row.efficiency > _NOTABLE_EFFICIENCY]
    if all(config is None or config.expert == 1 for config in configs):
        return []
    return [
        "efficiencies above 100%: a device multiplies its own experts alone by the tokens of all devices, in fewer "
        "and larger products than a single worker, which reads all experts for its own tokens"
    ]

"""Scaling of a job over numbers of workers: step times, speed-up and limiting factor of each row."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import msgspec
import numpy as np

from ..counting import GENERATION_PHASES
from ..errors import BadValue
from ..input_pipeline.feeding import InputPipeline, predict_throughput
from ..timing.activity import Activity
from ..timing.budget import Budget
from ..timing.causes import EXCHANGES
from ..timing.energy import Power, power_of
from ..timing.memory import usable_bytes
from ..timing.optimizers import OPTIMIZERS, resident_optimizer
from ..timing.training import recomputed_fraction
from ..units import check_integer, element_bytes
from .clusters import Cluster, ConditionedPrior, data_sheet_case
from .job import Job, Step, as_scalar
from .links import Topology
from .model_parallel import check_tensor_groups, train_in_tensor_groups
from .parallel_config import ParallelConfig
from .settings import InputSettings, ScaledBatch, Settings
from .strategies import STRATEGIES, resolve_strategy
from .table import ScaleRow

PHASES = ("training", *GENERATION_PHASES)
"""Phases that are predicted on several devices."""

NO_SINGLE_WORKER = "the network fits on no single worker: speed-up is relative to the throughput per worker of"
"""Beginning of the note on a network that fits on no single worker."""

SMALLER_SINGLE_WORKER = "the single worker of the speed-up"
"""Beginning of the note on a single worker that cannot compute the batch of the question at once."""

_RECOMPUTES = (
    f"{SMALLER_SINGLE_WORKER} recomputes activations, since it has the whole state in its memory: an efficiency above "
    "100% is that of less recomputation"
)

NEGLIGIBLE_SHARE = 0.02
"""Overheads below this fraction of a step are not reported as its limiting factor."""


def scale(
    job: Job,
    topology: Topology,
    workers: Sequence[int],
    batch: ScaledBatch,
    *,
    strategy: str = "data",  # name or alias of one of `strategies.STRATEGIES`
    settings: Settings | None = None,
    budget: Budget | None = None,  # images, epochs and price, for hours and cost
    # Knowledge of similar clusters; without it links and overlap follow `topology` and `settings` exactly.
    cluster: Cluster | None = None,
) -> list[ScaleRow]:
    """Predict training on several numbers of workers, with one row for each, in their order.

    Rows use as many devices of the topology as workers, and fill nodes first. Raise BadValue if a number of workers is
    < 1, does not divide the batch or the nodes, or exceeds the number of samples.
    """
    settings, budget = settings or Settings(), budget or Budget()
    strategy = resolve_strategy(strategy)
    if not workers:
        raise BadValue("give at least one number of workers")
    for number in workers:
        check_integer("the number of workers", number, 1)
    workload, device, tokens = job.workload, job.machine.device, job.workload.network.tokens
    available_bytes = usable_bytes(device)
    constants, has_experts = job.model.power_constants, workload.has_experts
    power = power_of(device, _relative_clock(job), constants=constants, has_experts=has_experts)
    flops_of_one, flops_of_two = (_flops_of_samples(job, samples) for samples in (1, 2))
    single_worker_step = predict_step(job, topology.with_workers(1), settings, batch.size, strategy, cluster)
    single_worker_per_s, baseline_notes = _single_worker_rate(
        job, single_worker_step, batch.size, settings, available_bytes
    )
    is_single_worker_feasible = single_worker_per_s is not None
    if single_worker_per_s is None:
        single_worker_per_s = batch.size / single_worker_step.time_s
    recomputed = recomputed_fraction(workload)  # of strategies that take the passes of one device
    rows = []
    for number in workers:
        machines = topology.with_workers(number)
        check_tensor_groups(machines, settings.tensor)
        global_batch = batch.of_all(number)
        step = single_worker_step
        if number > 1:
            step = predict_step(job, machines, settings, global_batch, strategy, cluster)
        best_topology, best_settings = data_sheet_case(machines, settings)
        bound_job = job.roofline_job if job.model.is_forecast else job
        bound = predict_step(bound_job, best_topology, best_settings, global_batch, strategy)
        fits = None if step.memory_bytes is None else step.memory_bytes <= available_bytes
        ideal_s = global_batch / single_worker_per_s / number
        activity = _activity(job, step, global_batch // number)
        power_w, power_interval_w = _power_in_step(job, power, step, activity)
        notes = (*step.notes, *baseline_notes)
        recomputes_less = step.recomputed_fraction < single_worker_step.recomputed_fraction
        if is_single_worker_feasible and recomputes_less and step.time_s < ideal_s:
            notes += (_RECOMPUTES,)
        step = msgspec.structs.replace(
            step, activity=activity, recomputed_fraction=step.recomputed_fraction or recomputed
        )
        step_fields = {name: getattr(step, name) for name in Step.__struct_fields__ if name != "notes"}
        row = ScaleRow(
            **step_fields,
            **budget.row_fields,
            notes=notes,
            workers=number,
            batch_size=global_batch,
            single_worker_per_s=single_worker_per_s,
            limited_by=_limiting_factor(machines, step, ideal_s, fits, _remaining_cause(job, settings, strategy)),
            strategy=strategy,
            fits=fits,
            bound_s=float(bound.time_s),
            flops=flops_of_one + (global_batch - 1) * (flops_of_two - flops_of_one),
            tokens=tokens * global_batch if tokens else None,
            peak_per_s=job.machine.peak(workload.options.products or workload.precision).per_s,
            power_w=power_w,
            power_interval_w=power_interval_w,
        )
        rows.append(row)
    return rows if is_single_worker_feasible else relative_to_smallest_fitting(rows)


def _flops_of_samples(job: Job, samples: int) -> float:
    """Return the FLOPs of a pass of some samples on one device: of the kernels of an engine, else of the layers.

    They are floats: those of many samples of a large network exceed 64-bit integers.
    """
    workload = job.workload
    if workload.engine is None:
        return float(workload.work.column("flops", workload.phase, samples).sum())
    from .generation import flops_of_kernels  # of engines only, to keep the cold start of training fast

    return flops_of_kernels(job, samples)


def _power_in_step(
    job: Job, power: Power | None, step: Step, activity: Activity
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the average power of a device in a step and its interval; the rated power alone without a model of it."""
    if power is None:
        return job.machine.device.power_w, None
    shares = activity.shares_of(step.time_s)
    low_w, high_w = power.interval_w(shares)
    return float(power.watts(shares)), (float(low_w), float(high_w))


def _activity(job: Job, step: Step, samples: int) -> Activity:
    """Return the activity of one device in a step: that of a single-device step with its share of the batch."""
    if step.activity is not None:
        return step.activity
    activity, time_s = job.activity_alone(max(samples, 1))
    return activity.in_larger_step(time_s, step.time_s, step.exposed_s, step.input_s)


def _relative_clock(job: Job) -> float:
    """Return the locked clock relative to the default one."""
    machine, precision = job.machine, job.workload.precision
    if machine.clock is None:
        return 1.0
    return machine.peak(precision).per_s / msgspec.structs.replace(machine, clock=None).peak(precision).per_s


def _single_worker_rate(
    job: Job, step: Step, batch_size: int, settings: Settings, available_bytes: float
) -> tuple[float | None, tuple[str, ...]]:
    """Return samples per second of a single worker, with the largest batch that fits, and notes.

    In training it computes the whole batch in micro-batches of at most that size before its update. The rate is None if
    not even one sample fits.
    """
    if step.memory_bytes is None or step.memory_bytes <= available_bytes:
        return batch_size / step.time_s, ()
    largest = job.cached(_largest_batch)
    if largest is None:
        return None, ()
    alone = Topology(None, 1, None, 1, None)
    if job.workload.phase in GENERATION_PHASES:
        samples = min(largest, batch_size)
        step = predict_step(job, alone, settings, samples, "3d")
        note = (
            f"{SMALLER_SINGLE_WORKER} has a batch of {samples}, as a batch of {batch_size} does not fit: an efficiency "
            "above 100% is that of the larger batch"
        )
        return samples / float(step.time_s), (note,)
    micro_batches = ceil(batch_size / (largest // job.workload.options.accumulation))
    samples = micro_batches * ceil(batch_size / micro_batches)
    step = predict_step(job.with_accumulation(micro_batches), alone, settings, samples, "data")
    note = (
        f"{SMALLER_SINGLE_WORKER} computes its batch in {micro_batches} micro-batches, as {batch_size} samples at once "
        "do not fit"
    )
    return samples / float(step.time_s), (note,)


def _largest_batch(job: Job) -> int | None:
    """Return the largest batch size of a step that fits a single device; None if not even one sample does."""
    return job.model.largest_batch(job.workload, job.machine)


def relative_to_smallest_fitting(rows: list[ScaleRow]) -> list[ScaleRow]:
    """Return the rows with speed-ups relative to the first row that fits, for networks that fit on no single worker."""
    baseline = next((row for row in rows if row.fits), None)
    if baseline is None:
        return rows
    per_worker_per_s = baseline.throughput_per_s / baseline.workers
    baseline_note = f"{NO_SINGLE_WORKER} {baseline.workers} workers"
    if not STRATEGIES[baseline.strategy].divides_blocks:  # which all rows divide alike
        baseline_note += f" with strategy {baseline.strategy}"
    relative_rows = []
    for row in rows:
        notes = [note for note in row.notes if not note.startswith(NO_SINGLE_WORKER)]
        relative_rows.append(
            msgspec.structs.replace(
                row,
                single_worker_per_s=per_worker_per_s,
                baseline_workers=baseline.workers,
                notes=(*notes, baseline_note),
            )
        )
    return relative_rows


def relative_to_first_row(rows: list[ScaleRow]) -> list[ScaleRow]:
    """Return rows of one question, the best first, with the baseline of the first row, which it has alone, too.

    The first row has the notes on a single worker that cannot compute the batch of the question at once.
    """
    of_baseline = (NO_SINGLE_WORKER, SMALLER_SINGLE_WORKER)
    first = rows[0]
    relative_rows = []
    for row in rows:
        notes = tuple(note for note in row.notes if not note.startswith(of_baseline))
        if row is first:
            notes += tuple(note for note in row.notes if note.startswith(SMALLER_SINGLE_WORKER))
        relative_rows.append(
            msgspec.structs.replace(
                row,
                single_worker_per_s=first.single_worker_per_s,
                baseline_workers=first.baseline_workers,
                notes=notes,
            )
        )
    return relative_rows


def predict_step(
    job: Job,
    topology: Topology,
    settings: Settings,
    batch_size: Any,  # global; an array where the strategy supports it
    strategy: str,  # name or alias of one of `strategies.STRATEGIES`
    cluster: Cluster | None = None,  # knowledge of similar clusters
) -> Step:
    """Predict the step of a strategy on all devices of a topology.

    Raise UnknownName or BadValue if there is no such strategy, or it cannot divide this batch on this topology.
    """
    strategy = resolve_strategy(strategy)
    workers, divides_blocks = topology.workers, STRATEGIES[strategy].divides_blocks
    optimizer = job.workload.options.optimizer
    if workers > 1 and OPTIMIZERS[optimizer].is_paged:
        raise BadValue(
            f"`--optimizer {optimizer}` moves its state between one device and its host: for {workers} devices give "
            f"`--optimizer {resident_optimizer(optimizer)}`, whose state `--sharding zero-1` divides among them"
        )
    ranks = max(workers // settings.tensor, 1)
    if np.any(batch_size < ranks) and not divides_blocks:
        raise BadValue(f"the batch size must be >= {ranks}, one sample per worker (got {batch_size})")
    if settings.tensor > 1 and not STRATEGIES[strategy].allows_tensor_groups:
        names = ", ".join(name for name, other in STRATEGIES.items() if other.allows_tensor_groups)
        raise BadValue(f"`--tensor` of a network without blocks goes with a strategy of {names} (got {strategy})")

    def predict_on(machines: Topology, machine_settings: Settings, compute_scale: float) -> Step:
        if not divides_blocks:  # otherwise only replicas wait for each other, which the strategy takes into account
            machine_settings = machine_settings.with_straggler_slowdown(workers)
        scaled_job = job.with_compute_scale(compute_scale)
        run = STRATEGIES[strategy].run
        if settings.tensor > 1 and workers > 1:  # one device alone has the whole network
            step = train_in_tensor_groups(run, scaled_job, machines, batch_size, machine_settings)
        else:
            step = run(scaled_job, machines, batch_size, machine_settings)
        if job.moved is not None:
            step = step.with_slower_exchanges(job.factor_of(EXCHANGES))
        if machine_settings.inputs is None:
            return step
        return add_input_wait(step, job, machines, batch_size, machine_settings.inputs)

    # The kernels of an engine include what links reach; only measurements of this cluster say more.
    is_known = workers == 1 or job.workload.engine is not None
    if cluster is None or (is_known and not isinstance(cluster, ConditionedPrior)):
        computed = step = predict_on(topology, settings, 1.0)
        best_s = worst_s = step.time_s
    else:
        computed, best_s, worst_s, interval = cluster.forecast_step(predict_on, topology, settings)
        if job.moved is not None:
            best_s, worst_s = (job.moved.narrow(end_s, computed.time_s) for end_s in (best_s, worst_s))
        cluster_interval = (best_s, worst_s) if workers > 1 else None
        step = msgspec.structs.replace(computed, cluster_interval=cluster_interval, interval=interval)
        if interval is not None:
            return step
    device_step: Step = computed if divides_blocks else job.device_step(batch_size // ranks)
    if device_step.interval is None or job.workload.engine is not None:
        return step
    # Computation is as uncertain as the step of one device. Communication and stragglers have independent causes, so
    # the logarithms of both deviations add up in quadrature.
    computation_s = step.time_s - step.exposed_s
    ends = []
    for device_end_s, cluster_end_s in zip(device_step.interval, (best_s, worst_s)):
        computed_end_s = step.exposed_s + computation_s * device_end_s / device_step.time_s
        log_computation = np.log(computed_end_s / step.time_s)
        log_cluster = np.log(cluster_end_s / step.time_s)
        log_total = np.copysign(np.hypot(log_computation, log_cluster), log_computation)
        ends.append(as_scalar(step.time_s * np.exp(log_total)))
    return msgspec.structs.replace(step, interval=(ends[0], ends[1]))


def _remaining_cause(job: Job, settings: Settings, strategy: str) -> str:
    """Return the cause of what neither communication nor a step's overheads explain.

    Frameworks of many devices take more time of the host per kernel than one device alone.
    """
    if not STRATEGIES[strategy].divides_blocks:
        return "small batches per worker"
    config = settings.parallel or ParallelConfig()
    is_undivided = config.tensor * config.pipeline * config.context * config.expert == 1
    if is_undivided and job.workload.phase not in GENERATION_PHASES:
        return "the host of the framework"
    return "replicated work and smaller matrices"


def _limiting_factor(topology: Topology, step: Step, ideal_s: float, fits: bool | None, remainder: str) -> str:
    """Return the largest cause of the difference between a step and its ideal time.

    That is the time of a single worker for the same samples, divided by the number of workers. `remainder` names the
    cause of what the others do not explain.
    """
    if fits is False:
        return "memory: it does not fit"
    causes = dict(step.overheads_s)
    if step.exposed_s:
        slowest = min(topology.links.values(), key=lambda link: link.bandwidth_bytes_per_s * link.ppp)
        causes[f"communication over {slowest.name}"] = step.exposed_s
    causes[remainder] = step.time_s - ideal_s - sum(causes.values())
    largest = max(causes, key=lambda cause: float(causes[cause]))
    return largest if causes[largest] > NEGLIGIBLE_SHARE * step.time_s else "compute"


def add_input_wait(step: Step, job: Job, topology: Topology, batch_size: Any, inputs: InputSettings) -> Step:
    """Return the step with the time that the devices wait for their samples.

    Every node reads and decodes its own part of the batch, or all of it where the strategy does not divide the batch.
    Raise BadValue if `batch_size` is an array.
    """
    if np.ndim(batch_size):
        raise BadValue("the input pipeline can be predicted for a single batch size only, not for an array")
    samples = max(batch_size // topology.nodes // topology.devices_per_node, 1)
    network = job.workload.network
    pipeline = InputPipeline(
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
        devices=topology.devices_per_node,
    )
    result = predict_throughput(pipeline)
    waiting_s = max(result.waiting_s, 0.0)
    if not waiting_s:
        return step
    slowest = min(result.stages[:-1], key=lambda stage: stage.per_s)
    overheads_s = {**step.overheads_s, f"input: {slowest.name}": waiting_s}
    return msgspec.structs.replace(step, input_s=waiting_s, overheads_s=overheads_s)

"""Layouts of stages and micro-batches that make a training run faster, and the memory of one device as one of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from ..errors import BadValue, PaleoError
from ..timing.capacity import SHARDS, CandidateRemedy, ShardedStep
from ..timing.memory import usable_bytes
from ..units import format_number, format_si
from .clusters import Cluster
from .job import Job
from .links import Topology, flat_topology, link_rate
from .parallel_config import ParallelConfig
from .pipeline_layout import balanced_layout
from .platforms import usual_computer
from .scale import predict_step
from .settings import Settings
from .step_plan import plan_step
from .table import ScaleRow

NOTABLE_GAIN = 0.02
"""Smallest gain of another layout of stages that is reported, as a share of the step."""

MICRO_BATCHES_TRIED = (64, 32, 16, 8, 4, 2)
"""Sizes of micro-batches of which the largest that fits is compared with a single sample."""

_WORTH_SAYING = 1.05
"""Gain in speed from which a note names it."""


def step_of_shards(
    job: Job, attention: str | None, execution: str | None, candidate: CandidateRemedy
) -> ShardedStep | None:
    """Return the memory of a candidate on several devices, as `train` predicts it with the options of the candidate.

    None if `train` refuses them.

    `attention` and `execution` are those that were asked for; the usual ones depend on how the state is sharded.
    """
    device, options = job.machine.device, candidate.workload.options
    training = msgspec.structs.replace(job.workload.options, optimizer=options.optimizer)
    sharded = Job(job.workload.with_changes(training=training), job.machine, job.model)
    config = ParallelConfig(sharding=f"zero-{candidate.zero_stage}", attention=attention)
    if execution is not None:
        config = msgspec.structs.replace(config, execution=execution)
    if options.checkpointing == "block":
        config = msgspec.structs.replace(config, recompute="full")
    computer = usual_computer(device.id)
    if computer is not None and computer.devices_per_node >= SHARDS:
        topology = computer.topology(SHARDS).with_workers(SHARDS)
    else:
        topology = flat_topology(link_rate(_ANY_LINK), SHARDS)

    def bytes_of(size: int) -> float:
        micro = msgspec.structs.replace(config, micro_batch_size=size)
        batch_size = size * options.accumulation * SHARDS
        step = predict_step(sharded, topology, Settings(parallel=micro), batch_size, "3d")
        return float(step.memory_bytes or 0.0)

    try:
        total_bytes = bytes_of(options.micro_batch(candidate.workload.batch_size))
    except PaleoError:
        return None
    largest = _largest_by_line(bytes_of, usable_bytes(device))
    return ShardedStep(int(total_bytes), None if largest is None else largest * options.accumulation)


_ANY_LINK = "pcie4-x16"
"""Link of devices without a usual computer, of which only the memory is asked."""


def _largest_by_line(bytes_of: Callable[[int], float], available_bytes: float) -> int | None:
    """Return the largest micro-batch whose memory, which grows by the same bytes with each sample, is available."""
    least, more = bytes_of(1), bytes_of(2)
    if least > available_bytes:
        return None
    return max(int((available_bytes - least) / (more - least)) + 1, 1)


def balance_note(
    job: Job, topology: Topology, settings: Settings, row: ScaleRow, cluster: Cluster | None
) -> str | None:
    """Return the note that names a layout with which a pipeline is faster, and its step; None if none gains enough.

    A layout that does not fit into memory although the one of the row does is not named.
    """
    config = settings.parallel
    if config is None or config.pipeline == 1 or topology.workers == 1:
        return None
    if "m" in config.layout:  # layers that predict further tokens, which are placed with the loss
        return None
    plan = plan_step(job, topology, row.batch_size, settings)
    block, stages, costs = plan.costs.block, plan.layout.stages, plan.costs
    block_s = block.forward_s + block.backward_s
    first_s = costs.embedding.forward_s + costs.embedding.backward_s
    last_s = costs.outer.forward_s + costs.outer.backward_s - first_s
    counts = balanced_layout(
        sum(len(stage.blocks) for stage in stages),
        config.pipeline,
        config.virtual_stages,
        first_s / block_s,
        last_s / block_s,
    )
    by_device = [stage.counts for stage in stages]
    own_counts = tuple(count for part in zip(*by_device) for count in part)
    if counts == own_counts or 0 in counts[1:-1]:
        return None
    text = ",".join(map(str, counts))
    changed = msgspec.structs.replace(settings, parallel=msgspec.structs.replace(config, layout=text))
    step = predict_step(job, topology, changed, row.batch_size, row.strategy, cluster)
    gain = 1 - float(step.time_s) / float(row.time_s)
    is_too_large = step.memory_bytes is not None and step.memory_bytes > usable_bytes(job.machine.device)
    if gain < NOTABLE_GAIN or (row.fits and is_too_large):
        return None
    times_s = [stage.passes_s for stage in plan.stages]
    slowest = times_s.index(max(times_s)) + 1
    name = f"number {slowest}"
    if slowest == config.pipeline:
        name = f"the last, whose output head and loss take as long as {last_s / block_s:.1f} blocks"
    return (
        f"the slowest of the {config.pipeline} stages is {name}: `--schedule layout={text}` takes "
        f"{format_si(float(step.time_s), 's', 4)} per step instead of {format_si(float(row.time_s), 's', 4)}, "
        f"{100 * gain:.0f}% less"
    )


class Trial(NamedTuple):
    """A step with another micro-batch."""

    fits: bool | None  # None if the memory is not known
    throughput_per_s: float  # samples


def find_faster_micro_batch(
    option: str,  # with which the command line sets it
    throughput_per_s: float,  # with one sample
    values: Iterable[int],  # of the option, the largest first
    attempt: Callable[[int], Trial],
) -> str | None:
    """Return the note on the largest micro-batch that fits and is faster than a single sample; None without one."""
    for value in values:
        try:
            trial = attempt(value)
        except BadValue:
            continue  # the batch is not divisible by such micro-batches
        ratio = trial.throughput_per_s / throughput_per_s
        if trial.fits is not False and ratio >= _WORTH_SAYING:
            return (
                f"a larger micro-batch also fits and is {ratio:.2f} times as fast: "
                f"{format_number(trial.throughput_per_s)} instead of {format_number(throughput_per_s)} samples/s with "
                f"`{option} {value}`"
            )
    return None


def larger_micro_batch_note(
    job: Job,
    topology: Topology,  # of as many devices as the row has
    settings: Settings,
    row: ScaleRow,
    *,
    states_size: bool,  # whether the size of micro-batches is asked for, and not their number
    fixes_batch: bool,  # whether the batch of all devices is asked for
    cluster: Cluster | None,  # knowledge of similar clusters
) -> str | None:
    """Return the note on micro-batches of a row that has one sample in each; None if there is nothing to say."""
    parallel = settings.parallel
    if row.fits is False or parallel is None:
        return None
    if parallel.of_batch(row.batch_size, row.workers).micro_batch_size > 1:
        return None
    changes_size = states_size or not parallel.micro_batches

    def attempt(size: int, batch_size: int) -> Trial:
        changed = settings
        if changes_size:
            larger = msgspec.structs.replace(parallel, micro_batch_size=size, micro_batches=0)
            changed = msgspec.structs.replace(settings, parallel=larger)
        step = predict_step(job, topology, changed, batch_size, row.strategy, cluster)
        fits = None if step.memory_bytes is None else step.memory_bytes <= usable_bytes(job.machine.device)
        return Trial(fits, batch_size / float(step.time_s))

    if changes_size:
        samples_per_replica = row.batch_size // max(row.workers // parallel.devices_per_replica, 1)
        sizes = (size for size in MICRO_BATCHES_TRIED if samples_per_replica % size == 0)
        return find_faster_micro_batch(
            "--micro-batch", row.throughput_per_s, sizes, lambda size: attempt(size, row.batch_size)
        )
    if fixes_batch:
        return None
    number = parallel.micro_batches
    return find_faster_micro_batch(
        "--batch-size",
        row.throughput_per_s,
        (size * number for size in MICRO_BATCHES_TRIED),
        lambda per_device: attempt(per_device // number, per_device * row.workers),
    )

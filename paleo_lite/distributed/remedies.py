"""Changes of a training run with which it fits into memory, or its pipeline or larger micro-batches are faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

_MOST_SHOWN = 3

_SHARDING_OF_TENSOR = "zero-1"
"""How `train` divides the state of the optimizer among tensor-parallel groups unless it is told otherwise."""

MICRO_BATCHES_TRIED = (64, 32, 16, 8, 4, 2)
"""Sizes of micro-batches of which the largest that fits is compared with a single sample."""

_WORTH_SAYING = 1.05
"""Gain in speed from which a note names it."""


class _Change(NamedTuple):
    """A change of a run, as the command line writes it."""

    option: str
    parallel: dict[str, object]  # fields of `ParallelConfig`
    training: dict[str, object]  # fields of the options of training


def fitting_note(
    job: Job,
    topology: Topology,
    settings: Settings,
    global_batch: int,
    cluster: Cluster | None = None,  # knowledge of similar clusters
) -> str:
    """Return the note that says which changes of a step, alone or two together, make it fit, the fastest first."""
    available_bytes = usable_bytes(job.machine.device)
    config = settings.parallel or ParallelConfig()
    changes = list(_possible_changes(job, config, topology, global_batch))
    pairs = [(change, other) for index, change in enumerate(changes) for other in changes[index + 1 :]]
    pairs = [(change, other) for change, other in pairs if not change.parallel.keys() & other.parallel.keys()]
    fitting: list[tuple[float, float, str]] = []
    too_large_bytes: list[float] = []
    enough: set[str] = set()  # options that need no other one
    for together in [*((change,) for change in changes), *pairs]:
        if any(change.option in enough for change in together):
            continue
        parallel = {name: value for change in together for name, value in change.parallel.items()}
        name = " ".join(change.option for change in together)
        if "tensor" in parallel and "sharding" not in parallel and config.zero_stage == 0:
            parallel["sharding"] = _SHARDING_OF_TENSOR
            name += f" --strategy {_SHARDING_OF_TENSOR}"
        options = {name: value for change in together for name, value in change.training.items()}
        try:
            changed = job
            if options:
                training = msgspec.structs.replace(job.workload.options, **options)
                changed = Job(job.workload.with_changes(training=training), job.machine, job.model)
            changed_settings = msgspec.structs.replace(settings, parallel=msgspec.structs.replace(config, **parallel))
            memory_bytes = predict_step(changed, topology, changed_settings, global_batch, "3d").memory_bytes
        except PaleoError:  # the change is incompatible with the network, the batch or the other options
            continue
        if memory_bytes is None:
            continue
        if memory_bytes > available_bytes:
            too_large_bytes.append(float(memory_bytes))
            continue
        step = predict_step(changed, topology, changed_settings, global_batch, "3d", cluster)
        fitting.append((float(step.time_s), float(memory_bytes), name))
        enough.update(change.option for change in together if len(together) == 1)
    if fitting:
        shown = [
            f"`{name}` ({format_si(memory, 'B', 3)} and {format_si(time_s, 's', 3)} per step)"
            for time_s, memory, name in sorted(fitting)[:_MOST_SHOWN]
        ]
        return f"fits with {', or '.join(shown)}; `--advise time` compares more divisions"
    least = ""
    if too_large_bytes:
        least = f" (the least is {format_si(min(too_large_bytes), 'B', 3)})"
    return (
        "it does not fit with any two of smaller micro-batches, recomputation, sharding, tensor parallelism and "
        f"offloading: use more devices{least}"
    )


def _possible_changes(job: Job, config: ParallelConfig, topology: Topology, global_batch: int) -> Iterator[_Change]:
    """Yield the changes that a run does not have yet."""
    workers, node = topology.workers, topology.devices_per_node
    if config.recompute not in ("full", "offload"):
        yield _Change("--recompute full", {"recompute": "full", "recompute_modules": ()}, {})
    # Sharding and tensor parallelism have other defaults than plain replicas: the note states the stack, and their
    # micro-batches have one sample.
    execution = "" if config.execution == ParallelConfig().execution else f" --execution {config.execution}"
    defaults: dict[str, object] = {"micro_batches": 0, "micro_batch_size": 1} if config.micro_batches == 1 else {}
    if config.zero_stage < 3 and workers > config.tensor * config.pipeline * config.context:
        yield _Change(f"--strategy full-shard{execution}", {"sharding": "full-shard", **defaults}, {})
    tensor = min(node, workers)
    if config.tensor < tensor:
        yield _Change(
            f"--tensor {tensor} --communication sequence-parallel=yes{execution}",
            {"tensor": tensor, "sequence_parallel": True, **defaults},
            {},
        )
    micro_batch = config.micro_batch_size
    replicas = max(workers // (config.tensor * config.pipeline * config.context), 1)
    if config.micro_batches:  # their number is given, and not their size
        micro_batch = global_batch // (replicas * config.micro_batches)
    while micro_batch > 1:
        micro_batch //= 2
        if config.micro_batches > 1:
            number = global_batch // (replicas * micro_batch)
            yield _Change(f"--accumulation {number}", {"micro_batch_size": 1, "micro_batches": number}, {})
        else:
            yield _Change(f"--micro-batch {micro_batch}", {"micro_batch_size": micro_batch, "micro_batches": 0}, {})
    if job.workload.options.offload == "none":
        yield _Change("--offload cpu", {}, {"offload": "cpu"})


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

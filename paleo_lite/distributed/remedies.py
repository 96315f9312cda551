"""Changes of a training run of a network in blocks with which it fits into memory, or its pipeline is faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..errors import PaleoError
from ..timing.memory import usable_bytes
from ..units import format_si
from .clusters import Cluster
from .job import Job
from .links import Topology
from .parallel_config import ParallelConfig
from .pipeline_layout import balanced_layout
from .scale import predict_step
from .settings import Settings
from .step_plan import plan_step
from .table import ScaleRow

NOTABLE_GAIN = 0.02
"""Smallest gain of another layout of stages that is reported, as a share of the step."""

_MOST_SHOWN = 3


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
        name = " ".join(change.option for change in together)
        fitting.append((float(step.time_s), float(memory_bytes), name))
        enough.add(name)
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
    if config.micro_batches:  # their number is given, and not their size
        replicas = max(workers // (config.tensor * config.pipeline * config.context), 1)
        micro_batch = global_batch // (replicas * config.micro_batches)
    while micro_batch > 1:
        micro_batch //= 2
        yield _Change(f"--micro-batch {micro_batch}", {"micro_batch_size": micro_batch, "micro_batches": 0}, {})
    if job.workload.options.offload == "none":
        yield _Change("--offload cpu", {}, {"offload": "cpu"})


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

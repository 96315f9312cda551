"""What a pipeline gains if its stages are divided by their time, with embedding and output head."""

from __future__ import annotations

import msgspec

from ..timing.memory import usable_bytes
from ..units import format_si
from .clusters import Cluster
from .job import Job
from .links import Topology
from .pipeline_layout import balanced_layout
from .scale import predict_step
from .settings import Settings
from .step_plan import plan_step
from .table import ScaleRow

NOTABLE_GAIN = 0.02
"""Smallest gain that is reported, as a share of the step."""


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

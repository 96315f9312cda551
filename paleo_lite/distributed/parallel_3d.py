"""3D parallelism: tensor, pipeline and data parallelism, with sequence, context and expert parallelism and ZeRO.

The model follows Megatron-LM. Narayanan et al. 2021 (section 3): with m micro-batches, p stages and v virtual stages
per device, a step takes the time of ``m + (p - 1) / v`` micro-batches. Korthikanti et al. 2022: saved activations and
activation recomputation. Devices are numbered as in Megatron-LM: tensor-parallel devices are adjacent, followed by
context-parallel devices, then data-parallel replicas; expert-parallel devices are adjacent, too.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..counting import GENERATION_PHASES
from ..timing.offload import HostTransfers, host_transfers, offload_note
from .blocks import StageCost, uses_tuned_stack
from .job import Job, Step
from .links import Topology
from .one_device import predict_alone
from .parallel_config import ParallelConfig
from .parallel_layout import Layout
from .pipeline_schedule import StageTimes
from .settings import STRAGGLERS, Settings
from .stage_communication import (
    activation_communication_s,
    dispatcher_of,
    exchange_of,
    gradient_communication_s,
    matrix_gather_s,
    stage_transfer_s,
)
from .stage_memory import (
    copied_bytes,
    peak_memory_bytes,
    recomputed_s,
    stage_memories,
)
from .step_plan import Plan, exchange_ratio_of, exposed_copies_s, plan_step


class _Exchanges(NamedTuple):
    """Communication of a step by cause, in seconds; exposed is what the passes do not hide."""

    activations_s: float  # between the devices of a stage
    exposed_activations_s: float
    transfers_s: float  # between stages
    exposed_transfers_s: float
    gradients_s: float  # of gradients and gathered parameters
    hidden_gradients_s: float

    @property
    def total_s(self) -> float:
        """All communication."""
        return self.activations_s + self.transfers_s + self.gradients_s

    @property
    def exposed_s(self) -> float:
        """Communication that the devices wait for."""
        return self.exposed_activations_s + self.exposed_transfers_s + self.gradients_s - self.hidden_gradients_s


def train_3d_parallel(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """Predict a step of 3D parallelism with the degrees in `Settings.parallel`.

    Raise BadValue if the network was not built from a config, or devices, blocks or batch cannot be divided as
    configured.
    """
    if job.workload.phase in GENERATION_PHASES:
        from .generation import predict_generation_step  # with engines, which training does not need

        return predict_generation_step(job, topology, batch_size, settings)
    if topology.workers == 1:
        factor = job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
        return predict_alone(job, batch_size, settings).as_step(factor)
    plan = plan_step(job, topology, batch_size, settings)
    config, layout, costs, _, notes = plan
    settings = settings.with_straggler_slowdown(layout.data)
    longest, slots = plan.longest, plan.slots
    compute_factor = job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
    # Passes and recomputation are of one micro-batch.
    passes_s = longest.passes_s * compute_factor
    recompute_s = recomputed_s(longest.block, config) * longest.blocks * compute_factor
    compute_s = slots * (passes_s + recompute_s) + costs.overhead_s * compute_factor
    copied = copied_bytes(longest, config, costs.hidden_state_bytes) * layout.micro_batches
    offloaded_s = exposed_copies_s(job, copied, compute_s)
    compute_s += offloaded_s
    exchanges = _exchanges(job, topology, settings, plan, compute_factor, compute_s)
    interference_s = settings.interference * exchanges.hidden_gradients_s
    compute_s += interference_s

    updated_share = sum(group.share / group.replicas for group in plan.groups) if config.zero_stage else 1.0
    runs_on_host = job.workload.options.offload != "none"
    if runs_on_host:
        update_s, note = _update_on_host(job, longest, updated_share, topology.devices_per_node, compute_s)
        notes.append(note)
    else:
        update_s = (longest.block.update_s * longest.blocks + longest.outer.update_s) * updated_share

    without_slowdown = 1 / (1 + settings.slowdown)
    overheads_s = {
        "pipeline bubble": (slots - layout.micro_batches) * (passes_s + recompute_s) * without_slowdown,
        "activation recomputation": slots * recompute_s * without_slowdown,
        STRAGGLERS: compute_s * settings.slowdown * without_slowdown,
        "offload of activations": offloaded_s,
        "interference": interference_s,
        "update on the host": update_s if runs_on_host else 0.0,
    }
    step = Step(
        compute_s=compute_s,
        communication_s=exchanges.total_s,
        exposed_s=exchanges.exposed_s,
        update_s=update_s,
        memory_bytes=_peak_memory_bytes(job, topology, settings, plan),
        collective=config.describe_degrees(layout.data),
        overheads_s={name: seconds for name, seconds in overheads_s.items() if seconds},
        notes=tuple(notes),
        recomputed_fraction=recompute_s / passes_s,
        pipeline=_stage_times(
            config,
            layout,
            forward_s=(longest.block.forward_s * longest.blocks + longest.outer.forward_s) * compute_factor,
            passes_s=passes_s + recompute_s,
            exchange_s=exchanges.exposed_activations_s / slots + exchanges.exposed_transfers_s / layout.micro_batches,
            gradients_s=exchanges.gradients_s - exchanges.hidden_gradients_s,
            update_s=update_s + costs.overhead_s * compute_factor + offloaded_s,
        ),
    )
    if costs.relative_interval is None:
        return step
    low, high = costs.relative_interval
    return msgspec.structs.replace(step, interval=(step.time_s * low, step.time_s * high))


def _exchanges(
    job: Job,
    topology: Topology,
    settings: Settings,
    plan: Plan,
    compute_factor: float,
    compute_s: float,  # of the step, behind which gradients are exchanged
) -> _Exchanges:
    """Return the communication of a step, as the devices of the longest stage see it."""
    config, layout, costs, longest, groups = plan.config, plan.layout, plan.costs, plan.longest, plan.groups
    exchange = exchange_of(job, config, settings, costs.experts_per_token)
    of_activations = [
        (count * plan.slots, *activation_communication_s(cost, topology, config, compute_factor, exchange))
        for cost, count in ((longest.block, longest.blocks), (longest.outer, 1))
    ]
    transfers = 2 * config.virtual_stages * layout.micro_batches
    transfer_s = stage_transfer_s(topology, config, layout, costs.hidden_state_bytes)
    hides_transfers = config.virtual_stages > 1 and settings.overlap and uses_tuned_stack(job, config)
    parameter_bytes, gradient_bytes, _ = longest.model_state_bytes
    # ZeRO stages 1 and 2 gather what the update has changed: of frozen parameters, which have no gradients, nothing.
    gathered_bytes = parameter_bytes if config.sharding_rules.gathers_per_micro_batch else gradient_bytes
    gradients_s, hidden_s = gradient_communication_s(
        topology,
        groups,
        layout.micro_batches,
        gathered_bytes,
        gradient_bytes * exchange_ratio_of(job, settings),
        compute_s,
        msgspec.structs.replace(settings, parallel=config),
        costs.exposed_sharding,
    )
    matrices_s = matrix_gather_s(job, topology, groups, config, longest.block.parameter_bytes * longest.blocks)
    return _Exchanges(
        activations_s=sum(times * sent_s for times, sent_s, _ in of_activations),
        exposed_activations_s=sum(times * waited_s for times, _, waited_s in of_activations),
        transfers_s=transfer_s * transfers,
        # Interleaved stages compute one part while they send another; the first and the last micro-batch wait.
        exposed_transfers_s=transfer_s * (2 * (config.pipeline - 1) if hides_transfers else transfers),
        gradients_s=gradients_s + matrices_s,
        hidden_gradients_s=hidden_s,
    )


def _stage_times(
    config: ParallelConfig,
    layout: Layout,
    *,
    forward_s: float,
    passes_s: float,
    exchange_s: float,
    gradients_s: float,
    update_s: float,
) -> StageTimes | None:
    """Return the times of the stages, each as long as the longest; None without pipeline parallelism.

    They are made of the forward pass, both passes with recomputation, and the exposed communication of one micro-batch
    on a stage. Transfers between stages count as exposed.
    """
    stages = config.pipeline
    if stages == 1:
        return None
    return StageTimes(
        forward_s=(float(forward_s),) * stages,
        backward_s=(float(passes_s - forward_s),) * stages,
        exchange_s=(float(exchange_s),) * stages,
        transfer_s=(0.0,) * (stages - 1),
        micro_batches=layout.micro_batches,
        virtual_stages=config.virtual_stages,
        gradients_s=float(gradients_s),
        update_s=float(update_s),
    )


def _peak_memory_bytes(job: Job, topology: Topology, settings: Settings, plan: Plan) -> float:
    """Return the peak memory of the device of a pipeline that needs most."""
    hidden_state_bytes = plan.costs.hidden_state_bytes
    memories = stage_memories(
        plan.stages,
        topology,
        plan.config,
        plan.layout,
        hidden_state_bytes,
        exchange_ratio_of(job, settings),
        dispatcher_of(job, plan.config),
        offloads=job.workload.options.offload != "none",
    )
    return peak_memory_bytes(memories, plan.config, hidden_state_bytes)


def _update_on_host(
    job: Job, stage: StageCost, share: float, devices_per_node: int, compute_s: float
) -> tuple[float, str]:
    """Return the time by which an update on the host lengthens a step, and the note on it."""
    transfers = _host_transfers(job, stage, share, devices_per_node)
    state_bytes = sum(stage.model_state_bytes[1:]) * share * devices_per_node
    note = f"{offload_note(job.workload.options.offload, state_bytes)} per node"
    return transfers.exposed_s(compute_s * 2 / 3), note


def _host_transfers(job: Job, stage: StageCost, share: float, devices_per_node: int) -> HostTransfers:
    """Return the times of an update on the host of the share of the state that a device of a stage updates."""
    _, gradient_bytes, optimizer_bytes = stage.model_state_bytes
    stored_bytes = 4 if job.workload.options.fp32_gradients else job.element_bytes
    return host_transfers(
        job.machine.device,
        job.workload.options.offload,
        gradient_bytes=gradient_bytes * share,
        parameter_bytes=gradient_bytes * share * job.element_bytes / stored_bytes,
        update_bytes=(stage.block.update_bytes * stage.blocks + stage.outer.update_bytes) * share,
        state_bytes=optimizer_bytes * share,
        devices_per_host=devices_per_node,
    )

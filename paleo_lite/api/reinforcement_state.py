"""State between trainer and engines of a step: new weights, and what goes to the memory of the host and comes back.

A question is a record `Rl` whose options have single values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..architectures import Network
from ..calibration.store import evidence_of
from ..counting.kinds import is_grouped_product
from ..distributed.job import Job
from ..distributed.link_causes import learned_topology
from ..distributed.step_causes import KIND as TRAINING
from ..formats import bytes_per_number
from ..questions.records import settings_of
from ..reinforcement.constants import RlConstants
from ..reinforcement.frameworks import Framework
from ..reinforcement.rollouts import Rollouts
from ..reinforcement.step import keeps_weights_on_host
from ..reinforcement.trainer import TrainerTimes
from ..reinforcement.weights import (
    MASTER_BYTES,
    OffloadedState,
    TransferRoute,
    WeightTransfer,
    gather_blocks,
    has_host_link,
    swap_s,
    transfer_weights,
)
from ..timing.fine_tuning import adapter_products
from ..timing.offload import host_bandwidth_bytes_per_s
from .reinforcement_devices import Devices

if TYPE_CHECKING:
    from ..questions.rl_options import Rl


MOMENTS_SHARE = 8 / 12
"""Share of the moments of AdamW in its state with master weights: two numbers in fp32 of three."""


def has_adapter_units(question: Rl) -> bool:
    """Return whether FSDP shards every matrix of an adapter apart."""
    return question.framework_rules.has_adapter_units and not question.uses_megatron


def transfer_of(question: Rl, devices: Devices, job: Job, constants: RlConstants) -> WeightTransfer:
    """Return the way of the weights, or of the adapters where they alone are trained and are not merged."""
    framework, network = question.framework_rules, job.workload.network
    state_s = offloaded_state(question, devices, network).parameters_s
    usual = framework.transfer if devices.is_colocated else framework.transfer_apart
    asked = settings_of(question.engine_settings).get("transfer")
    adapters = () if framework.merges_adapters else adapter_products(job.workload.trained_layers)
    if adapters and has_adapter_units(question) and devices.is_colocated and asked is None:
        wake_s = _kept_weights_s(question, devices, network)
        return _with_state(gather_blocks(network, adapters, constants, wake_s), state_s)
    evidence = evidence_of(question.calibration)
    transfer = transfer_weights(
        network,
        question.used_rollout_precision,
        learned_topology(devices.topology, devices.device, evidence, TRAINING),
        TransferRoute(
            asked or usual,
            devices.trainer,
            question.rollout_tensor,
            0 if question.uses_megatron else framework.master_gathers,
            framework.stacks_experts,
        ),
        constants,
        adapters=adapters,
    )
    return _with_state(transfer, state_s)


def _with_state(transfer: WeightTransfer, state_s: float) -> WeightTransfer:
    """Return a transfer for which the parameters of the trainer come to its devices, and leave them again."""
    return transfer._replace(time_s=transfer.time_s + state_s)


def _kept_weights_s(question: Rl, devices: Devices, network: Network) -> float:
    """Return the time in which an engine takes its weights back from pinned memory of the host."""
    if not has_host_link(devices.device):
        return 0.0
    kept_bytes = network.parameters * bytes_per_number(question.used_rollout_precision) / question.rollout_tensor
    return float(kept_bytes / host_bandwidth_bytes_per_s(devices.device))


def offloaded_state(question: Rl, devices: Devices, network: Network, optimizer_bytes: float = 0.0) -> OffloadedState:
    """Return the time of state that comes to the devices of the trainer for every phase, as a framework may do.

    FSDP has parameters in fp32, which are the master weights, too; Megatron-LM has them in 16 bits.
    """
    framework = question.framework_rules
    if not framework.offloads_by_phase or not has_host_link(devices.device):
        return OffloadedState()
    rate = host_bandwidth_bytes_per_s(devices.device)
    if question.uses_megatron:
        experts = sum(layer.parameters for layer in network.layers if is_grouped_product(layer))
        per_stage = (network.parameters - experts) / question.tensor + experts / question.expert_parallel
        parameter_bytes = per_stage * bytes_per_number(question.precision) / question.pipeline
    else:
        parameter_bytes = MASTER_BYTES * network.parameters / devices.trainer
        optimizer_bytes *= MOMENTS_SHARE
    return OffloadedState(
        2 * parameter_bytes / rate if framework.offloads_parameters else 0.0,
        2 * optimizer_bytes / rate if framework.offloads_optimizer else 0.0,
    )


def with_critic(times: TrainerTimes, framework: Framework) -> TrainerTimes:
    """Return the times with the state of a critic of the same shape on the devices, while the policy is trained."""
    memory_bytes = times.memory_bytes
    if memory_bytes is not None:
        resting = framework if framework.offloads_by_phase else None
        staying_share = 1 - MOMENTS_SHARE if framework.moves_moments else 1.0
        memory_bytes += 0.0 if resting and resting.offloads_optimizer else staying_share * times.optimizer_bytes
        memory_bytes += 0.0 if resting and resting.offloads_parameters else times.parameter_bytes
    return msgspec.structs.replace(times, memory_bytes=memory_bytes, networks=2)


def with_moved_moments(times: TrainerTimes, updates: int, devices: Devices, constants: RlConstants) -> TrainerTimes:
    """Return the times with the moments of the optimizer on the devices for the update of the weights alone."""
    moments_bytes = MOMENTS_SHARE * times.optimizer_bytes
    memory_bytes = times.memory_bytes
    if memory_bytes is not None:  # beside the activations, or beside weights and gradients
        memory_bytes = max(memory_bytes - moments_bytes, times.optimizer_bytes + 2 * times.parameter_bytes)
    update_s = times.update_s + updates * _moved_s(devices, moments_bytes, constants)
    return msgspec.structs.replace(times, update_s=update_s, memory_bytes=memory_bytes)


def swapped_s(
    question: Rl,
    devices: Devices,
    trainer: TrainerTimes,
    rollouts: Rollouts | None,
    constants: RlConstants,
    *,
    has_reference: bool,
) -> float:
    """Return the time of state that goes to the host and back in a step."""
    framework = question.framework_rules
    swapped_bytes = 0.0
    if devices.is_colocated and rollouts is not None:
        if framework.offloads_by_phase:
            framework = framework._replace(offloads_optimizer=False, offloads_parameters=False)  # which phases have
        if framework.offloads_optimizer:
            swapped_bytes += trainer.networks * trainer.optimizer_bytes
        if framework.offloads_parameters:
            swapped_bytes += trainer.networks * trainer.parameter_bytes
        if keeps_weights_on_host(framework):
            swapped_bytes += rollouts.weights_bytes / 2  # only on the way out are they needed
    is_reference_on_host = rollouts is not None or framework.swaps_reference
    if has_reference and question.lora is None and is_reference_on_host:
        swapped_bytes += trainer.parameter_bytes
    return _moved_s(devices, swapped_bytes, constants)


def _moved_s(devices: Devices, state_bytes: float, constants: RlConstants) -> float:
    """Return the time in which state of every device goes to the host and comes back; 0 if no link is on record."""
    if not has_host_link(devices.device):
        return 0.0
    return swap_s(devices.device, state_bytes, constants, devices.topology.devices_per_node)

"""Memory of a device of a pipeline: model state, saved activations, and what recomputation frees and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..counting.work import MEGATRON
from ..timing.memory import shard_model_state
from .blocks import StageCost
from .device_cost import DeviceCost
from .expert_exchange import Dispatcher
from .links import Topology
from .parallel_config import ParallelConfig
from .parallel_layout import Layout
from .saved_activations import RECOMPUTE_MODULES


class ReplicaGroup(NamedTuple):
    """Devices that hold the same part of the model."""

    share: float  # that part, as a fraction of the model state of a device
    replicas: int  # number of devices
    stride: int  # distance between neighbours, in device numbers


def replica_groups(config: ParallelConfig, layout: Layout, expert_share: float) -> list[ReplicaGroup]:
    """Return the groups of dense layers, replicated over data and context ranks, and of experts, if there are any."""
    dense = ReplicaGroup(1 - expert_share, layout.data * config.context, config.tensor)
    if not expert_share:
        return [dense]
    devices_per_stage = layout.data * config.context * config.tensor
    holders = config.expert * config.expert_tensor  # devices with all experts of the stage
    return [dense, ReplicaGroup(expert_share, devices_per_stage // holders, holders)]


class StageMemory(NamedTuple):
    """Memory of a device of a pipeline: what recomputation does not change, and what its activations depend on."""

    stage: StageCost
    fixed_bytes: float  # model state and buffers
    in_flight: float  # micro-batches of which the activations are held


def stage_memories(
    stages: Sequence[StageCost],
    topology: Topology,
    config: ParallelConfig,
    layout: Layout,
    hidden_state_bytes: float,
    exchange_ratio: float,
    dispatcher: Dispatcher,
    offloads: bool,  # whether gradients and optimizer state are in the memory of the host
) -> list[StageMemory]:
    """Return the memory of the devices of a pipeline.

    Offloaded gradients leave the device block by block. Of devices with the same cost only the first is in the result:
    later ones hold fewer micro-batches.
    """
    first_of: dict[int, StageMemory] = {}
    for position, stage in enumerate(stages):
        if id(stage) in first_of:
            continue
        groups = replica_groups(config, layout, stage.expert_share)
        parameters, gradients, optimizer = stage.model_state_bytes
        if offloads:
            gradients, optimizer = max(stage.block.gradient_bytes, stage.outer.gradient_bytes), 0.0
        fixed_bytes = (
            _model_state_bytes((parameters, gradients, optimizer), groups, topology, config)
            + _gathered_bytes(stage, config, exchange_ratio)
            + _exchange_buffer_bytes(stage.block, config, hidden_state_bytes, dispatcher)
        )
        in_flight = micro_batches_in_flight(config, layout.micro_batches, position)
        first_of[id(stage)] = StageMemory(stage, fixed_bytes, in_flight)
    return list(first_of.values())


def peak_memory_bytes(memories: Sequence[StageMemory], config: ParallelConfig, hidden_state_bytes: float) -> float:
    """Return the peak memory of the device of a pipeline that needs most."""
    return max(
        memory.fixed_bytes + saved_activation_bytes(memory.stage, config, memory.in_flight, hidden_state_bytes)
        for memory in memories
    )


def _exchange_buffer_bytes(
    block: DeviceCost, config: ParallelConfig, hidden_state_bytes: float, dispatcher: Dispatcher
) -> float:
    """Return the bytes of the buffers through which tokens are sent to their experts."""
    if config.expert == 1 or not block.routings:
        return 0.0
    row_bytes = block.routed_bytes / block.routings
    return dispatcher.buffers_per_device * config.expert * hidden_state_bytes + dispatcher.buffers_per_row * row_bytes


def _model_state_bytes(
    model_state: tuple[float, float, float], groups: list[ReplicaGroup], topology: Topology, config: ParallelConfig
) -> float:
    """Return the bytes of parameters, gradients and optimizer state on a device, given those without sharding."""
    total_bytes = 0.0
    for group in groups:
        parts = [int(part * group.share) for part in model_state]
        shards = group.replicas
        if config.sharding_rules.within_node:
            shards = min(shards, topology.devices_per_node)
        total_bytes += sum(shard_model_state(parts, config.zero_stage, shards))
    return total_bytes


def _gathered_bytes(stage: StageCost, config: ParallelConfig, exchange_ratio: float) -> float:
    """Return the bytes that sharding by blocks needs for whole parameters and gradients.

    Those of two blocks and of the layers outside blocks are on the device at a time: one in use, one in transfer. An
    exchange in another precision needs a copy of the gradients.
    """
    if config.zero_stage < 3:
        return 0.0
    parameters = 2 * stage.block.parameter_bytes + stage.outer.parameter_bytes
    gradients = 2 * stage.block.gradient_bytes + stage.outer.gradient_bytes
    copy = exchange_ratio if exchange_ratio != 1 else 0.0
    return parameters + gradients * (1 + copy)


def micro_batches_in_flight(config: ParallelConfig, micro_batches: int, position: int) -> float:
    """Return the micro-batches of which a device of a pipeline holds the activations at most.

    Narayanan et al. 2021, section 2.2: the first stage holds as many as there are stages. With virtual stages a device
    holds parts of its blocks, of Megatron-LM's warm-up and one more (Korthikanti et al. 2022, section 4.2.3).
    """
    stages, virtual = config.pipeline, config.virtual_stages
    if virtual == 1:
        return min(stages - position, micro_batches)
    parts = 2 * (stages - position - 1) + (virtual - 1) * stages + 1
    return min(parts, micro_batches * virtual) / virtual


def saved_activation_bytes(
    stage: StageCost, config: ParallelConfig, in_flight: float, hidden_state_bytes: float
) -> float:
    """Return the activation memory of a device of a pipeline that holds the activations of `in_flight` micro-batches.

    The peak is in the backward pass of the loss, or in that of a block, after the block is computed again.
    """
    freed_bytes = sum_of_modules(stage.block.freed_bytes, config)
    block_bytes = stage.block.activation_bytes - freed_bytes
    saved_bytes, recomputed_bytes = hidden_state_bytes, block_bytes  # of each block, and of the one computed again
    if config.recompute == "selective" and config.execution != MEGATRON:
        saved_bytes += stage.block.saved_bytes
    elif config.recompute in ("full", "offload"):
        share = 1 / config.recompute_every
        saved_bytes = hidden_state_bytes * share + block_bytes * (1 - share)
    else:
        saved_bytes, recomputed_bytes = block_bytes, freed_bytes
    all_saved_bytes = saved_bytes * stage.blocks * in_flight * (1 - config.offloaded_share)
    if config.recompute == "offload":  # inputs of two blocks are on the device: one in use, one in transfer
        all_saved_bytes -= hidden_state_bytes * max(stage.blocks * in_flight / config.recompute_every - 2, 0.0)
    peak_bytes = max(recomputed_bytes, stage.outer.logits_bytes) + stage.outer.workspace_bytes
    return all_saved_bytes + stage.outer.activation_bytes + peak_bytes


def copied_bytes(stage: StageCost, config: ParallelConfig, hidden_state_bytes: float) -> float:
    """Return the activations of a micro-batch that are copied to the host."""
    if config.recompute == "offload":
        return hidden_state_bytes / config.recompute_every * stage.blocks
    return stage.block.activation_bytes * config.offloaded_share * stage.blocks


def recomputed_s(block: DeviceCost, config: ParallelConfig) -> float:
    """Return the time of activation recomputation for one block and micro-batch."""
    if config.recompute in ("full", "offload"):
        unneeded_s = 0.0 if config.execution == MEGATRON else block.unneeded_s
        return (block.forward_s - unneeded_s) / config.recompute_every
    if config.recompute_modules:
        return sum_of_modules(block.repeated_s, config)
    if config.recompute == "selective":
        return block.attention_scores_s if config.execution == MEGATRON else block.unsaved_s
    return 0.0


def sum_of_modules(values: Any, config: ParallelConfig) -> float:
    """Return the sum over the modules that are computed again, of values by module or of zero."""
    if not config.recompute_modules:
        return 0.0
    chosen = np.array([name in config.recompute_modules for name in RECOMPUTE_MODULES])
    return float(np.sum(values * chosen))

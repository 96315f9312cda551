"""Communication within a stage, between stages, and between replicas of a stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..timing.blocks import stack_constants
from ..timing.optimizers import uses_products
from .blocks import uses_tuned_stack
from .collectives import choose_reduce_scatter, point_to_point_time_s, subgroup_topology, topology_all_reduce_s
from .device_cost import DeviceCost
from .expert_exchange import DISPATCHERS, Dispatcher, expert_exchange_s
from .job import Job
from .links import Topology
from .parallel_config import STACK_DISPATCHER, ParallelConfig
from .parallel_layout import Layout
from .settings import Settings
from .stage_memory import ReplicaGroup


class StageExchange(NamedTuple):
    """How activations are exchanged within a stage, and the shares that computation hides."""

    dispatcher: Dispatcher = DISPATCHERS["alltoall"]  # library that sends tokens to their experts
    experts_per_token: int = 1  # active experts of a token
    # Hidden share of the collectives between tensor-parallel devices, and of the exchange of tokens.
    tensor_overlap: float = 0.0
    expert_overlap: float = 0.0
    # Time in which a kernel that brings rows into order reads or writes a byte; 0 where it is a layer of its own.
    byte_s: float = 0.0


def dispatcher_of(job: Job, config: ParallelConfig) -> Dispatcher:
    """Return the library that sends tokens to their experts, by default that of the stack."""
    return DISPATCHERS[config.dispatch or (STACK_DISPATCHER if uses_tuned_stack(job, config) else "alltoall")]


def exchange_of(job: Job, config: ParallelConfig, settings: Settings, experts_per_token: int) -> StageExchange:
    """Return how the stack of a configuration exchanges activations."""
    tuned = uses_tuned_stack(job, config)
    dispatcher = dispatcher_of(job, config)
    if not tuned or not settings.overlap or not job.model.is_forecast:
        return StageExchange(dispatcher, experts_per_token, expert_overlap=config.expert_overlap or 0.0)
    constants = job.stack_constants or stack_constants()
    expert_overlap = config.expert_overlap
    if expert_overlap is None:  # NCCL's kernels wait for the permutation, and the products for them
        expert_overlap = constants.expert_overlap if dispatcher.merges_copies else 0.0
    bandwidth = job.machine.device.bandwidth_bytes_per_s * constants.kernels.constants["share_other"]
    return StageExchange(dispatcher, experts_per_token, constants.tensor_overlap, expert_overlap, 1 / bandwidth)


def activation_communication_s(
    cost: DeviceCost,
    topology: Topology,
    config: ParallelConfig,
    compute_factor: float,
    exchange: StageExchange,
) -> tuple[float, float]:
    """Return the communication time of one micro-batch within a stage, and its exposed part.

    Nothing hides the collectives of tensor-parallel devices (Shoeybi et al. 2019), nor the all-to-all that sends tokens
    to their experts and back, and their gradients in the backward pass (Lepikhin et al. 2021, GShard). In context
    parallelism keys and values go around a ring, in the backward pass with their gradients (Liu et al. 2023, Ring
    Attention, section 3): each of n devices computes n parts of its attention, and during the first n - 1 of them
    receives the keys and values of the next part. `compute_factor` is a factor on the computation time of attention.
    """
    forward_passes = 2 if config.recompute == "full" else 1
    expert_passes = 2 if "moe" in config.recompute_modules else forward_passes
    tensor_group = subgroup_topology(topology, 1, config.tensor)
    share_by_size: dict[float, float] = {}  # there are many messages of few sizes
    for share, size in (*cost.forward_messages * forward_passes, *cost.backward_messages):
        share_by_size[size] = share_by_size.get(size, 0.0) + share
    communication_s = 0.0
    if share_by_size:
        sizes, shares = np.array([*share_by_size.items()]).T
        communication_s = float(shares @ topology_all_reduce_s(tensor_group, sizes))
    exposed_s = communication_s * (1 - exchange.tensor_overlap)
    if config.expert > 1 and cost.routings:
        row_bytes = cost.routed_bytes / cost.routings
        one_way_s = expert_exchange_s(
            topology, config.expert, row_bytes, exchange.experts_per_token, exchange.dispatcher, config.expert_tensor
        )
        routed_s = (expert_passes + 1) * cost.routings * one_way_s
        ordered_bytes = (expert_passes + 1) * cost.routed_bytes * exchange.dispatcher.passes_over_rows
        communication_s += routed_s + ordered_bytes * exchange.byte_s
        exposed_s += routed_s * (1 - exchange.expert_overlap) + ordered_bytes * exchange.byte_s
    if config.expert_tensor > 1:
        divided = subgroup_topology(topology, 1, config.expert_tensor)
        gathered_s = (expert_passes + 1) * float(topology_all_reduce_s(divided, cost.expert_gathered_bytes)) / 2
        communication_s += gathered_s
        exposed_s += gathered_s * (1 - exchange.tensor_overlap)
    devices = config.context
    if devices > 1:
        ring_passes = [(cost.ring_bytes, cost.attention_s)] * forward_passes
        ring_passes.append((2 * cost.ring_bytes, cost.attention_backward_s))
        for size, attention_s in ring_passes:
            step_s = _ring_step_s(topology, config.tensor, devices, size)
            communication_s += (devices - 1) * step_s
            exposed_s += (devices - 1) * max(step_s - attention_s * compute_factor / devices, 0.0)
    return communication_s, exposed_s


def _ring_step_s(topology: Topology, stride: int, devices: int, size: float) -> float:
    """Return the time in which every device of a ring sends `size` bytes to the next one.

    Neighbours in a ring are `stride` devices apart. Where a ring leaves the node, so do the rings of all `stride`
    devices, which share the link between nodes.
    """
    inside_s = 0.0
    if topology.inside and topology.devices_per_node > stride:
        inside_s = float(point_to_point_time_s(size, topology.inside))
    if stride * devices <= topology.devices_per_node or topology.between is None:
        return inside_s
    return max(inside_s, float(point_to_point_time_s(size * stride, topology.between)))


class ReplicaExchange(NamedTuple):
    """Times of one exchange of parameters and of gradients between the replicas of all groups."""

    gather_s: float  # of the parameters
    reduce_s: float  # of the gradients
    # The same where the replicas of a node alone exchange them, with FSDP or ZeRO stage 3.
    inside_gather_s: float
    inside_reduce_s: float
    between_nodes_s: float  # sums of gradients between nodes, where sharding stays within them


def _exchange_between_replicas(
    topology: Topology,
    groups: list[ReplicaGroup],
    parameter_bytes: float,
    gradient_bytes: float,
    config: ParallelConfig,
    collective: str | None,
) -> ReplicaExchange:
    """Return the times of an exchange; an all-gather and a reduce-scatter each take half as long as an all-reduce."""
    sharding = config.sharding_rules
    between_nodes_s = 0.0
    exchange_s, inside_s = np.zeros(2), np.zeros(2)  # of parameters and gradients
    for group in groups:
        if group.replicas == 1:
            continue
        replicas = subgroup_topology(topology, group.stride, group.replicas)
        if sharding.within_node and replicas.nodes > 1 and replicas.devices_per_node > 1:
            own_bytes = gradient_bytes * group.share / replicas.devices_per_node
            nodes = subgroup_topology(topology, group.stride * replicas.devices_per_node, replicas.nodes)
            between_nodes_s += float(topology_all_reduce_s(nodes, own_bytes, collective))
            replicas = subgroup_topology(topology, group.stride, replicas.devices_per_node)
        messages = np.array([parameter_bytes, gradient_bytes]) * group.share
        exchange_s += np.asarray(topology_all_reduce_s(replicas, messages, collective)) / 2
        if sharding.gathers_per_micro_batch and replicas.devices_per_node > 1:
            node = subgroup_topology(topology, group.stride, replicas.devices_per_node)
            inside_s += np.asarray(topology_all_reduce_s(node, messages, collective)) / 2
    gather_s, reduce_s = map(float, exchange_s)
    inside_gather_s, inside_reduce_s = map(float, inside_s)
    return ReplicaExchange(gather_s, reduce_s, inside_gather_s, inside_reduce_s, between_nodes_s)


def exposed_gather_s(
    topology: Topology,
    groups: list[ReplicaGroup],
    parameter_bytes: float,  # of a device without sharding
    compute_s: float,  # of the forward pass that gathers them, block by block
    settings: Settings,
    exposed_sharding: float,  # as of `_hidden_sharding_s`
) -> float:
    """Return the time of a forward pass that computation does not hide, in which sharded parameters are gathered."""
    config = settings.parallel or ParallelConfig()
    exchange = _exchange_between_replicas(topology, groups, parameter_bytes, 0.0, config, None)
    hidden_s = _hidden_sharding_s(exchange.gather_s, exchange.inside_gather_s, compute_s, settings, exposed_sharding)
    return exchange.gather_s - hidden_s


def _hidden_sharding_s(
    communication_s: float,
    inside_s: float,  # of which inside a node, were it not for other nodes
    compute_s: float,
    settings: Settings,
    exposed_sharding: float,
) -> float:
    """Return the part of the exchange of sharded parameters and their gradients that computation hides.

    Its kernels take multiprocessors from the computation that should hide them, so that a share of the time that they
    take inside a node is not hidden (`TrainingConstants.exposed_sharding`); waiting for other nodes takes none.
    """
    overlappable_s = min(communication_s - exposed_sharding * min(inside_s, communication_s), compute_s)
    return _hidden_s(overlappable_s, settings)


def _hidden_s(overlappable_s: float, settings: Settings) -> float:
    """Return what is hidden of the communication that computation could hide."""
    return settings.overlap_efficiency * overlappable_s if settings.overlap else 0.0


def gradient_communication_s(
    topology: Topology,
    groups: list[ReplicaGroup],
    micro_batches: int,  # of a replica and step
    parameter_bytes: float,
    gradient_bytes: float,
    compute_s: float,
    settings: Settings,
    exposed_sharding: float,
) -> tuple[float, float]:
    """Return the time of gradient and parameter communication between replicas, and the part hidden by computation.

    FSDP and ZeRO stage 3 gather the parameters of each block for the forward and for the backward pass of every
    micro-batch. Other gradients are exchanged during the backward pass of the last micro-batch.

    The bytes are those of the parameters and, in the precision of their exchange, of the gradients of a device without
    sharding.
    """
    config = settings.parallel or ParallelConfig()
    sharding, collective = config.sharding_rules, settings.collective
    if collective is not None and sharding.zero_stage:
        collective = choose_reduce_scatter(topology, collective, config.sharding or f"zero-{sharding.zero_stage}")
    exchange = _exchange_between_replicas(topology, groups, parameter_bytes, gradient_bytes, config, collective)
    gathers = sharding.gathers_per_micro_batch
    if gathers:
        per_micro_batch_s = gathers * exchange.gather_s + exchange.reduce_s
        communication_s = per_micro_batch_s * micro_batches + exchange.between_nodes_s
        inside_s = (gathers * exchange.inside_gather_s + exchange.inside_reduce_s) * micro_batches
        hidden_s = _hidden_sharding_s(communication_s, inside_s, compute_s, settings, exposed_sharding)
    else:
        reductions = micro_batches if sharding.reduces_every_micro_batch else 1
        exchanged_s = exchange.reduce_s * reductions
        gathered_s = exchange.reduce_s
        if sharding.gathers_per_step:
            gathered_s = exchange.gather_s * sharding.gathers_per_step
        communication_s = exchanged_s + gathered_s
        # The exchange overlaps with the backward pass (two thirds of the computation) of its micro-batches.
        hidden_s = _hidden_s(min(exchanged_s, compute_s * 2 / 3 * reductions / micro_batches), settings)
    return communication_s, hidden_s


def matrix_gather_s(
    job: Job, topology: Topology, groups: list[ReplicaGroup], config: ParallelConfig, matrix_bytes: float
) -> float:
    """Return the time in which replicas gather whole matrices for an update that multiplies them, such as Muon's.

    Where the optimizer state is sharded, no device has a whole matrix. Distributed Muon (Liu et al. 2025, Muon is
    scalable for LLM training, section 2.3) gathers the momentum of the matrices that it orthogonalizes in bf16.
    Megatron-LM's layer-wise optimizer gives whole layers to devices, and reduces their gradients to all devices: the
    same number of bytes. Both come before the update, and divide its products among the replicas. `matrix_bytes` are
    those of the parameters of the blocks of a device, in 16 bits.
    """
    if not uses_products(job.workload.options.optimizer) or config.zero_stage == 0:
        return 0.0
    gather_s = 0.0
    for group in groups:
        if group.replicas > 1:
            replicas = subgroup_topology(topology, group.stride, group.replicas)
            gather_s += float(topology_all_reduce_s(replicas, matrix_bytes * group.share)) / 2
    return gather_s


def stage_transfer_s(topology: Topology, config: ParallelConfig, layout: Layout, hidden_state_bytes: float) -> float:
    """Return the time in which one micro-batch goes from a stage to the next; each device of a node sends its share."""
    if config.pipeline == 1:
        return 0.0
    size = hidden_state_bytes
    if not config.sequence_parallel:
        size = hidden_state_bytes / config.tensor
    devices_per_stage = config.tensor * config.context * layout.data
    crosses_nodes = devices_per_stage >= topology.devices_per_node and topology.nodes > 1
    if crosses_nodes:
        assert topology.between is not None
        return float(point_to_point_time_s(size * topology.devices_per_node, topology.between))
    assert topology.inside is not None
    return float(point_to_point_time_s(size, topology.inside))

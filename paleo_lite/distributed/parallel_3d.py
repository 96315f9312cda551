"""3D parallelism: tensor, pipeline and data parallelism, with sequence, context and expert parallelism and ZeRO.

The model follows Megatron-LM. Narayanan et al. 2021 (section 3): with m micro-batches, p stages and v virtual stages
per device, a step takes the time of ``m + (p - 1) / v`` micro-batches. Korthikanti et al. 2022: saved activations and
activation recomputation. Devices are numbered as in Megatron-LM: tensor-parallel devices are adjacent, followed by
context-parallel devices, then data-parallel replicas; expert-parallel devices are adjacent, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..architectures.network import Network
from ..counting import GENERATION_PHASES
from ..counting.kinds import is_attention, is_grouped_product
from ..counting.work import MEGATRON
from ..errors import BadValue
from ..machines import read_links
from ..timing.memory import shard_model_state, usable_bytes
from ..timing.offload import host_bandwidth_bytes_per_s
from ..timing.optimizers import uses_products
from ..timing.training_stack import stack_constants
from ..units import element_bytes
from .blocks import BlockCosts, StageCost, block_costs, uses_tuned_stack
from .collectives import (
    point_to_point_time_s,
    subgroup_topology,
    topology_all_reduce_s,
)
from .device_cost import DeviceCost
from .expert_exchange import DISPATCHERS, Dispatcher, expert_exchange_s
from .generation import predict_generation_step
from .job import Job
from .links import Topology
from .parallel_config import STACK_DISPATCHER, ParallelConfig
from .pipeline_layout import DeviceStages, even_layout, place_stages
from .pipeline_schedule import StageTimes
from .saved_activations import RECOMPUTE_MODULES
from .settings import Settings
from .step import Step

COHERENT_BYTES_PER_S = 100e9
"""Bandwidth of a link to the host from which recipes copy activations to it: that of NVLink-C2C, not of PCIe."""

MIN_TOKENS_PER_CONTEXT_DEVICE = 4096
"""Context parallelism is tried only where every device keeps at least this many tokens of a sequence."""


class Layout(NamedTuple):
    """Number of replicas and micro-batches, and what each device of a pipeline has.

    Attributes
    ----------
    data : int
        Data-parallel replicas.
    micro_batches : int
        Micro-batches per replica and step.
    stages : tuple of DeviceStages, length pipeline
        Blocks, embedding and loss of each device of a pipeline.
    """

    data: int
    micro_batches: int
    stages: tuple[DeviceStages, ...] = ()


class Plan(NamedTuple):
    """What a configuration means for a network.

    Attributes
    ----------
    config : ParallelConfig
        Configuration with the defaults of its stack.
    layout : Layout
    costs : BlockCosts
    stages : list of StageCost
        Cost of each device of the pipeline.
    notes : list of str
        Description of the configuration first.
    """

    config: ParallelConfig
    layout: Layout
    costs: BlockCosts
    stages: list[StageCost]
    notes: list[str]


def plan_step(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Plan:
    """Divide a network among devices, with the defaults of the stack.

    Raises
    ------
    BadValue
        As `plan_layout`.
    """
    network = job.workload.network
    config = settings.parallel or ParallelConfig()
    if topology.workers == 1:
        config = _single_device_config(config, batch_size)
    layout = plan_layout(network, topology, batch_size, config)
    config, notes = _with_defaults(job, config, layout)
    costs = block_costs(job, config)
    stages = [costs.of_stage(network, stage) for stage in layout.stages]
    if uses_tuned_stack(job, config) and not config.recompute:
        config = _fit_memory(job, config, topology, layout, stages, costs.hidden_state_bytes, settings)
        notes[0] = config.describe(layout.data, layout.micro_batches)
    return Plan(config, layout, costs, stages, notes)


def train_3d_parallel(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """Predict a step of 3D parallelism with the degrees in `Settings.parallel`.

    Raises
    ------
    BadValue
        If the network was not built from a config, or devices, blocks or batch cannot be divided as configured.
    """
    if job.workload.phase in GENERATION_PHASES:
        return predict_generation_step(job, topology, batch_size, settings)
    config, layout, costs, stages, notes = plan_step(job, topology, batch_size, settings)
    settings = settings.with_straggler_slowdown(layout.data)
    longest = max(stages, key=lambda stage: stage.passes_s)

    # The pipeline bubble adds (p - 1) / v micro-batches to the m micro-batches of a step.
    slots = layout.micro_batches + (config.pipeline - 1) / config.virtual_stages
    compute_factor = job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
    exchange = _exchange_of(job, config, settings, costs.experts_per_token)
    parts = ((longest.block, longest.blocks), (longest.outer, 1))
    # Passes and recomputation are of one micro-batch.
    passes_s = longest.passes_s * compute_factor
    recompute_s = _recomputed_s(longest.block, config) * longest.blocks * compute_factor
    exchanges = [
        (count * slots, *_activation_communication_s(cost, topology, config, compute_factor, exchange))
        for cost, count in parts
    ]
    communication_s = sum(times * sent_s for times, sent_s, _ in exchanges)
    exposed_s = sum(times * waited_s for times, _, waited_s in exchanges)
    compute_s = slots * (passes_s + recompute_s) + costs.overhead_s * compute_factor

    copied_bytes = _copied_bytes(longest, config, costs.hidden_state_bytes) * layout.micro_batches
    offloaded_s = _offload_exposed_s(job, copied_bytes, compute_s)
    compute_s += offloaded_s
    transfers = 2 * config.virtual_stages * layout.micro_batches
    transfers_s = transfers * _stage_transfer_s(topology, config, layout, costs.hidden_state_bytes)
    parameter_bytes, gradient_bytes, _ = longest.model_state_bytes
    exchange_ratio = _exchange_ratio(job, settings)
    groups = _replica_groups(config, layout, longest.expert_share)
    gradients_s, hidden_s = _gradient_communication_s(
        topology,
        groups,
        layout,
        parameter_bytes,
        gradient_bytes * exchange_ratio,
        compute_s,
        config,
        settings,
        costs.exposed_sharding,
    )
    matrices_s = _matrix_gather_s(job, topology, groups, config, longest.block.parameter_bytes * longest.blocks)
    gradients_s += matrices_s
    communication_s = communication_s + transfers_s + gradients_s
    exposed_s = exposed_s + transfers_s + gradients_s - hidden_s

    update_s = longest.block.update_s * longest.blocks + longest.outer.update_s
    if config.zero_stage:
        update_s *= sum(group.share / group.replicas for group in groups)
    memory_bytes = max(
        _stage_memory_bytes(stage, position, topology, config, layout, costs.hidden_state_bytes, exchange_ratio)
        for position, stage in enumerate(stages)
    )

    without_slowdown = 1 / (1 + settings.slowdown)
    overheads_s = {
        "pipeline bubble": (slots - layout.micro_batches) * (passes_s + recompute_s) * without_slowdown,
        "activation recomputation": slots * recompute_s * without_slowdown,
        "slowdown": compute_s * settings.slowdown * without_slowdown,
        "offload of activations": offloaded_s,
    }
    step = Step(
        compute_s=compute_s,
        communication_s=communication_s,
        exposed_s=exposed_s,
        update_s=update_s,
        memory_bytes=memory_bytes,
        collective=config.describe_degrees(layout.data),
        overheads_s={name: seconds for name, seconds in overheads_s.items() if seconds},
        notes=tuple(notes),
        recomputed_fraction=recompute_s / passes_s,
        pipeline=_stage_times(
            config,
            layout,
            forward_s=(longest.block.forward_s * longest.blocks + longest.outer.forward_s) * compute_factor,
            passes_s=passes_s + recompute_s,
            exchange_s=(exposed_s - transfers_s - gradients_s + hidden_s) / slots + transfers_s / layout.micro_batches,
            gradients_s=gradients_s - hidden_s,
            update_s=update_s + costs.overhead_s * compute_factor + offloaded_s,
        ),
    )
    if costs.relative_interval is None:
        return step
    low, high = costs.relative_interval
    return msgspec.structs.replace(step, interval=(step.time_s * low, step.time_s * high))


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

    Parameters
    ----------
    forward_s, passes_s, exchange_s : float
        Forward pass, both passes with recomputation, and exposed communication of one micro-batch on a stage.
        Transfers between stages count as exposed.
    gradients_s, update_s : float
        See `StageTimes`.
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


def _single_device_config(config: ParallelConfig, batch_size: int) -> ParallelConfig:
    """Return the configuration for one device, which may have fewer samples than a micro-batch."""
    return msgspec.structs.replace(
        config,
        tensor=1,
        pipeline=1,
        virtual_stages=1,
        sequence_parallel=False,
        context=1,
        expert=1,
        expert_tensor=1,
        expert_imbalance=1.0,
        layout="",
        micro_batch_size=math.gcd(config.micro_batch_size, batch_size),
    )


def _exchange_ratio(job: Job, settings: Settings) -> float:
    """Return the bytes of an exchanged gradient over those of a computed one."""
    if settings.gradient_precision is None:
        return 1.0
    computed_bytes = 4 if job.workload.options.fp32_gradients else job.element_bytes
    return element_bytes(settings.gradient_precision) / computed_bytes


def _with_defaults(job: Job, config: ParallelConfig, layout: Layout) -> tuple[ParallelConfig, list[str]]:
    """Return the configuration with what its stack does unless told otherwise, and notes that describe it."""
    notes = []
    if config.tensor > 1 and not config.sequence_parallel:
        has_experts = any("active" in layer.attributes for layer in job.workload.network.layers)
        if has_experts or uses_tuned_stack(job, config):
            config = msgspec.structs.replace(config, sequence_parallel=True)
        if has_experts:
            notes.append("`--tensor` for a mixture of experts implies `--sequence-parallel`: experts are not sharded")
    if config.expert_capacity is not None and config.expert_capacity < config.expert_imbalance:
        notes.append(f"tokens beyond {config.expert_capacity:g} times the mean of an expert are dropped: they skip it")
    return config, [config.describe(layout.data, layout.micro_batches), *notes]


def _copied_bytes(stage: StageCost, config: ParallelConfig, hidden_state_bytes: float) -> float:
    """Return the activations of a micro-batch that are copied to the host."""
    if config.recompute == "offload":
        return hidden_state_bytes / config.recompute_every * stage.blocks
    return stage.block.activation_bytes * config.offloaded_share * stage.blocks


def _offload_exposed_s(job: Job, copied_bytes: float, compute_s: float) -> float:
    """Return the time by which copies of activations to the host and back exceed the computation that hides them.

    Parameters
    ----------
    copied_bytes : float
        Activations of all micro-batches that are copied.

    Raises
    ------
    BadValue
        If the device has no host with memory of its own.
    """
    if not copied_bytes:
        return 0.0
    copies_s = copied_bytes / host_bandwidth_bytes_per_s(job.machine.device)
    forward_s, backward_s = compute_s / 4, compute_s * 3 / 4  # the backward pass computes the forward pass again
    return max(copies_s - forward_s, 0.0) + max(copies_s - backward_s, 0.0)


def _recomputations(job: Job, stages: list[StageCost]) -> Iterator[dict[str, Any]]:
    """Yield what recipes do to save memory, the cheapest first: nothing, modules, offloading, whole blocks."""
    yield {"recompute": "none"}
    modules: dict[str, Any] = {}
    for names in (("layernorm",), ("layernorm", "moe_act"), ("layernorm", "moe_act", "mla_up_proj")):
        tried = ParallelConfig(recompute="selective", recompute_modules=names[-1:])
        if any(_sum_of_modules(stage.block.freed_bytes, tried) for stage in stages):
            modules = {"recompute": "selective", "recompute_modules": names}
            yield modules
    links = [read_links().link[attached.link] for attached in job.machine.device.links]
    if any(link.kind == "host" and link.bandwidth_bytes_per_s >= COHERENT_BYTES_PER_S for link in links):
        for twentieths in range(1, 17):
            yield {**modules, "offloaded_share": twentieths / 20}
    for every in (4, 3, 2, 1):
        yield {"recompute": "full", "recompute_every": every}


def _fit_memory(
    job: Job,
    config: ParallelConfig,
    topology: Topology,
    layout: Layout,
    stages: list[StageCost],
    hidden_state_bytes: float,
    settings: Settings,
) -> ParallelConfig:
    """Return the configuration with as much recomputation as the memory of the device requires."""
    available_bytes = usable_bytes(job.machine.device)
    for changes in _recomputations(job, stages):
        tried = msgspec.structs.replace(config, **changes)
        needed_bytes = max(
            _stage_memory_bytes(
                stage, position, topology, tried, layout, hidden_state_bytes, _exchange_ratio(job, settings)
            )
            for position, stage in enumerate(stages)
        )
        if needed_bytes <= available_bytes:
            return tried
    return tried


def _stage_memory_bytes(
    stage: StageCost,
    position: int,
    topology: Topology,
    config: ParallelConfig,
    layout: Layout,
    hidden_state_bytes: float,
    exchange_ratio: float,
) -> float:
    """Return the peak memory of a device at a position of the pipeline, from 0."""
    groups = _replica_groups(config, layout, stage.expert_share)
    state_bytes = _model_state_bytes(stage.model_state_bytes, groups, topology, config)
    gathered_bytes = _gathered_bytes(stage, config, exchange_ratio)
    in_flight = micro_batches_in_flight(config, layout.micro_batches, position)
    return state_bytes + gathered_bytes + _saved_activation_bytes(stage, config, in_flight, hidden_state_bytes)


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


def _recomputed_s(block: DeviceCost, config: ParallelConfig) -> float:
    """Return the time of activation recomputation for one block and micro-batch."""
    if config.recompute in ("full", "offload"):
        return block.forward_s / config.recompute_every
    if config.recompute_modules:
        return _sum_of_modules(block.repeated_s, config)
    if config.recompute == "selective":
        return block.attention_scores_s if config.execution == MEGATRON else block.unsaved_s
    return 0.0


def _sum_of_modules(values: Any, config: ParallelConfig) -> float:
    """Return the sum over the modules that are computed again, of values by module or of zero."""
    chosen = np.array([name in config.recompute_modules for name in RECOMPUTE_MODULES])
    return float(np.sum(values * chosen))


def candidate_configs(network: Network, topology: Topology, fits_memory: bool = False) -> Iterator[ParallelConfig]:
    """Iterate over the configurations worth trying for a network of blocks, independent of the batch size.

    Parameters
    ----------
    fits_memory : bool
        Whether the stack recomputes as much as the memory requires, so that recomputation needs no search.
    """
    if network.lengths and network.lengths.uses_cache:
        for power in range(topology.devices_per_node.bit_length()):
            yield ParallelConfig(tensor=2**power)
        return
    has_unfused_attention = not any(map(is_attention, network.layers))
    recomputations: tuple[str, ...] = ("none", "selective", "full") if has_unfused_attention else ("none", "full")
    if fits_memory:
        recomputations = ("",)
    tokens = network.tokens or 1
    expert_counts = [layer.weights[0][0] for layer in network.layers if is_grouped_product(layer)]
    experts = max(expert_counts, default=1)
    degrees = [2**power for power in range(topology.workers.bit_length())]
    context_degrees = [1]
    if not has_unfused_attention:
        context_degrees += [n for n in degrees[1:] if tokens // n >= MIN_TOKENS_PER_CONTEXT_DEVICE]
    for tensor, context, pipeline, micro_batch_size in product(degrees, context_degrees, degrees, (1, 2, 4, 8)):
        if topology.workers % (tensor * context * pipeline) or tensor > topology.devices_per_node:
            continue
        devices_per_stage = topology.workers // pipeline
        expert_degrees = [n for n in degrees if experts % n == 0 and n <= devices_per_stage]
        virtual_stage_counts = (1, 2, 4) if pipeline > 1 else (1,)
        zero_stages = (1, 3) if pipeline == 1 else (1,)
        for virtual_stages in virtual_stage_counts:
            if even_layout(network.blocks, pipeline * virtual_stages) is None:
                continue
            for expert, recompute, zero_stage in product(expert_degrees, recomputations, zero_stages):
                yield ParallelConfig(
                    tensor=tensor,
                    pipeline=pipeline,
                    virtual_stages=virtual_stages,
                    sequence_parallel=tensor > 1,
                    micro_batch_size=micro_batch_size,
                    recompute=recompute,
                    zero_stage=zero_stage,
                    context=context,
                    expert=expert,
                )


def plan_layout(network: Network, topology: Topology, batch_size: int, config: ParallelConfig) -> Layout:
    """Return the number of replicas and of micro-batches per replica, and the blocks per stage.

    Raises
    ------
    BadValue
        If the network was not built from a config, or devices, blocks or batch cannot be divided as configured.
    """
    workers = topology.workers
    if not network.blocks or network.lengths is None:
        raise BadValue(f"`--tensor` and `--pipeline` need a network from a config: not {network.name}")
    if workers % config.devices_per_replica:
        context = f" times `--context-parallel {config.context}`" if config.context > 1 else ""
        raise BadValue(
            f"`--tensor {config.tensor}` times `--pipeline {config.pipeline}`{context} must divide "
            f"the number of workers (got {workers})"
        )
    devices_per_stage = workers // config.pipeline
    if devices_per_stage % config.expert:
        raise BadValue(
            f"`--expert-parallel` must divide the {devices_per_stage} devices of a stage (got {config.expert})"
        )
    if devices_per_stage % (config.expert * config.expert_tensor):
        raise BadValue(
            f"`--expert-parallel {config.expert}` times `--expert-tensor-parallel` must divide the {devices_per_stage} "
            f"devices of a stage (got {config.expert_tensor})"
        )
    if config.tensor > topology.devices_per_node:
        raise BadValue(f"`--tensor` must be <= {topology.devices_per_node}, the devices per node (got {config.tensor})")
    stages = place_stages(network.blocks, config.pipeline, config.virtual_stages, config.layout, network.name)
    data = workers // config.devices_per_replica
    if batch_size % (data * config.micro_batch_size):
        raise BadValue(
            f"the batch size must be divisible by {data} replicas times micro-batches of {config.micro_batch_size} "
            f"(got {batch_size})"
        )
    micro_batches = batch_size // (data * config.micro_batch_size)
    return Layout(data, micro_batches, tuple(stages))


# Communication of activations within a stage, for one micro-batch.


class Exchange(NamedTuple):
    """How activations are exchanged within a stage, and the shares that computation hides.

    Attributes
    ----------
    dispatcher : Dispatcher
        Library that sends tokens to their experts.
    experts_per_token : int
        Active experts of a token.
    tensor_overlap, expert_overlap : float
        Hidden share of the collectives between tensor-parallel devices, and of the exchange of tokens.
    """

    dispatcher: Dispatcher = DISPATCHERS["alltoall"]
    experts_per_token: int = 1
    tensor_overlap: float = 0.0
    expert_overlap: float = 0.0


def _exchange_of(job: Job, config: ParallelConfig, settings: Settings, experts_per_token: int) -> Exchange:
    """Return how the stack of a configuration exchanges activations."""
    tuned = uses_tuned_stack(job, config)
    dispatcher = DISPATCHERS[config.dispatch or (STACK_DISPATCHER if tuned else "alltoall")]
    if not tuned or not settings.overlap or not job.model.is_forecast:
        return Exchange(dispatcher, experts_per_token, expert_overlap=config.expert_overlap or 0.0)
    constants = job.stack_constants or stack_constants()
    expert_overlap = constants.expert_overlap if config.expert_overlap is None else config.expert_overlap
    return Exchange(dispatcher, experts_per_token, constants.tensor_overlap, expert_overlap)


def _activation_communication_s(
    cost: DeviceCost,
    topology: Topology,
    config: ParallelConfig,
    compute_factor: float,
    exchange: Exchange = Exchange(),  # noqa: B008  an immutable tuple
) -> tuple[float, float]:
    """Return the communication time of one micro-batch within a stage, and its exposed part.

    Nothing hides the collectives of tensor-parallel devices (Shoeybi et al. 2019), nor the all-to-all that sends tokens
    to their experts and back, and their gradients in the backward pass (Lepikhin et al. 2021, GShard). In context
    parallelism keys and values go around a ring, in the backward pass with their gradients (Liu et al. 2023, Ring
    Attention, section 3): each of n devices computes n parts of its attention, and during the first n - 1 of them
    receives the keys and values of the next part.

    Parameters
    ----------
    compute_factor : float
        Factor on the computation time of attention.
    """
    forward_passes = 2 if config.recompute == "full" else 1
    expert_passes = 2 if "moe" in config.recompute_modules else forward_passes
    tensor_group = subgroup_topology(topology, 1, config.tensor)
    share_by_size: dict[float, float] = {}  # there are many messages of few sizes
    for share, size in (*cost.forward_messages * forward_passes, *cost.backward_messages):
        share_by_size[size] = share_by_size.get(size, 0.0) + share
    communication_s = sum(
        share * float(topology_all_reduce_s(tensor_group, size)) for size, share in share_by_size.items()
    )
    exposed_s = communication_s * (1 - exchange.tensor_overlap)
    if config.expert > 1 and cost.routings:
        row_bytes = cost.routed_bytes / cost.routings
        one_way_s = expert_exchange_s(
            topology, config.expert, row_bytes, exchange.experts_per_token, exchange.dispatcher, config.expert_tensor
        )
        routed_s = (expert_passes + 1) * cost.routings * one_way_s
        communication_s += routed_s
        exposed_s += routed_s * (1 - exchange.expert_overlap)
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


# Communication between replicas and between stages, and saved activations.


class ReplicaGroup(NamedTuple):
    """Devices that hold the same part of the model.

    Attributes
    ----------
    share : float
        That part, as a fraction of the model state of a device.
    replicas : int
        Number of devices.
    stride : int
        Distance between neighbours, in device numbers.
    """

    share: float
    replicas: int
    stride: int


def _replica_groups(config: ParallelConfig, layout: Layout, expert_share: float) -> list[ReplicaGroup]:
    """Return the groups of dense layers, replicated over data and context ranks, and of experts, if there are any."""
    dense = ReplicaGroup(1 - expert_share, layout.data * config.context, config.tensor)
    if not expert_share:
        return [dense]
    devices_per_stage = layout.data * config.context * config.tensor
    holders = config.expert * config.expert_tensor  # devices with all experts of the stage
    return [dense, ReplicaGroup(expert_share, devices_per_stage // holders, holders)]


def _gradient_communication_s(
    topology: Topology,
    groups: list[ReplicaGroup],
    layout: Layout,
    parameter_bytes: float,
    gradient_bytes: float,
    compute_s: float,
    config: ParallelConfig,
    settings: Settings,
    exposed_sharding: float,
) -> tuple[float, float]:
    """Return the time of gradient and parameter communication between replicas, and the part hidden by computation.

    An all-gather of the parameters and a reduce-scatter of the gradients take half as long as an all-reduce of as many
    bytes. FSDP and ZeRO stage 3 gather the parameters of each block for the forward and for the backward pass of every
    micro-batch. Its kernels take multiprocessors from the computation that should hide them, so that a share of the
    time that they take inside a node is not hidden (`TrainingConstants.exposed_sharding`); waiting for other nodes
    takes none. Other gradients are exchanged during the backward pass of the last micro-batch.

    Parameters
    ----------
    parameter_bytes, gradient_bytes : float
        Bytes of the parameters and, in the precision of their exchange, of the gradients of a device without sharding.
    """
    sharding = config.sharding_rules
    gather_s = reduce_s = between_nodes_s = 0.0
    inside_gather_s = inside_reduce_s = 0.0  # of the same bytes inside a node
    for group in groups:
        if group.replicas == 1:
            continue
        replicas = subgroup_topology(topology, group.stride, group.replicas)
        if sharding.within_node and replicas.nodes > 1 and replicas.devices_per_node > 1:
            own_bytes = gradient_bytes * group.share / replicas.devices_per_node
            nodes = subgroup_topology(topology, group.stride * replicas.devices_per_node, replicas.nodes)
            between_nodes_s += float(topology_all_reduce_s(nodes, own_bytes))
            replicas = subgroup_topology(topology, group.stride, replicas.devices_per_node)
        gather_s += float(topology_all_reduce_s(replicas, parameter_bytes * group.share)) / 2
        reduce_s += float(topology_all_reduce_s(replicas, gradient_bytes * group.share)) / 2
        if replicas.devices_per_node > 1:
            node = subgroup_topology(topology, group.stride, replicas.devices_per_node)
            inside_gather_s += float(topology_all_reduce_s(node, parameter_bytes * group.share)) / 2
            inside_reduce_s += float(topology_all_reduce_s(node, gradient_bytes * group.share)) / 2
    if sharding.gathers_per_micro_batch:
        per_micro_batch_s = sharding.gathers_per_micro_batch * gather_s + reduce_s
        communication_s = per_micro_batch_s * layout.micro_batches + between_nodes_s
        inside_s = (sharding.gathers_per_micro_batch * inside_gather_s + inside_reduce_s) * layout.micro_batches
        overlappable_s = min(communication_s - exposed_sharding * min(inside_s, communication_s), compute_s)
    else:
        reductions = layout.micro_batches if sharding.reduces_every_micro_batch else 1
        exchanged_s = reduce_s * reductions
        gathered_s = gather_s * sharding.gathers_per_step if sharding.gathers_per_step else reduce_s
        communication_s = exchanged_s + gathered_s
        # The exchange overlaps with the backward pass (two thirds of the computation) of its micro-batches.
        overlappable_s = min(exchanged_s, compute_s * 2 / 3 * reductions / layout.micro_batches)
    hidden_s = settings.overlap_efficiency * overlappable_s if settings.overlap else 0.0
    return communication_s, hidden_s


def _matrix_gather_s(
    job: Job, topology: Topology, groups: list[ReplicaGroup], config: ParallelConfig, matrix_bytes: float
) -> float:
    """Return the time in which replicas gather whole matrices for an update that multiplies them, such as Muon's.

    Where the optimizer state is sharded, no device has a whole matrix. Distributed Muon (Liu et al. 2025, Muon is
    scalable for LLM training, section 2.3) gathers the momentum of the matrices that it orthogonalizes in bf16.
    Megatron-LM's layer-wise optimizer gives whole layers to devices, and reduces their gradients to all devices: the
    same number of bytes. Both come before the update, and divide its products among the replicas.

    Parameters
    ----------
    matrix_bytes : float
        Bytes of the parameters of the blocks of a device, in 16 bits.
    """
    if not uses_products(job.workload.options.optimizer) or config.zero_stage == 0:
        return 0.0
    gather_s = 0.0
    for group in groups:
        if group.replicas > 1:
            replicas = subgroup_topology(topology, group.stride, group.replicas)
            gather_s += float(topology_all_reduce_s(replicas, matrix_bytes * group.share)) / 2
    return gather_s


def _stage_transfer_s(topology: Topology, config: ParallelConfig, layout: Layout, hidden_state_bytes: float) -> float:
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


def _saved_activation_bytes(
    stage: StageCost, config: ParallelConfig, in_flight: float, hidden_state_bytes: float
) -> float:
    """Return the activation memory of a device of a pipeline.

    The peak is in the backward pass of the loss, or in that of a block, after the block is computed again.

    Parameters
    ----------
    in_flight : float
        Micro-batches of which the activations are held.
    """
    freed_bytes = _sum_of_modules(stage.block.freed_bytes, config)
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

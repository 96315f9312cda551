"""Costs of networks of transformer blocks on one device, extrapolated from networks of one and of two blocks.

The layers of one device come from the config (`paleo_lite.architectures.tape`): its columns and rows of every weight
matrix, and the communication between devices. `block_costs` returns the cost of a block and of the layers outside
blocks for one micro-batch of training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ..architectures.network import Network, SequenceOptions
from ..counting import Layer
from ..counting.kinds import is_attention, is_embedding
from ..counting.work import MEGATRON
from ..timing import Workload
from ..timing.attention import is_fused_attention
from ..timing.blocks import (
    TrainingModel,
    stack_attention,
    supports_stack,
    use_recipe_efficiency,
    use_stack_constants,
    use_training_constants,
)
from ..timing.expert_kernels import (
    EXPERT_KERNELS,
    available_expert_kernels,
    check_expert_kernels,
    launches_per_expert,
    rows_of_all_tokens,
)
from ..timing.fine_tuning import find_logits
from ..timing.intervals import INTERVAL_LEVEL, QUANTILES, interval_of
from ..timing.memory import Memory, memory_by_micro_batch
from ..timing.models import TimeModel
from ..timing.terms import Terms
from ..timing.training import micro_batch
from ..timing.training_options import TRAINING_RECIPES
from .device_cost import (
    NO_COST,
    STATE_FIELDS,
    DeviceCost,
    MicroBatchCounts,
    StackKernels,
    average_costs,
    count_network,
    is_addition,
    subtract_costs,
    with_stack,
)
from .job import Job
from .parallel_config import ParallelConfig
from .pipeline_layout import DeviceStages
from .saved_activations import NUMBER_BYTES

MemoryFunction = Callable[[int], Memory]
"""Function from the micro-batch size to the peak memory of one device."""


class BlockCosts(NamedTuple):
    """Costs of a network of blocks on one device."""

    block: DeviceCost  # mean cost of a block, over all types of blocks
    outer: DeviceCost  # cost of the layers outside blocks: embedding and head
    embedding: DeviceCost  # part of `outer` that belongs to the embedding; the rest is output head and loss
    is_tied: bool  # whether the output head shares its parameters with the embedding
    blocks_by_type: dict[int, DeviceCost]  # cost of a block of each type
    experts_per_token: int  # active experts of a token; 1 without a mixture
    overhead_s: float  # fixed overhead per step
    hidden_state_bytes: float  # bytes that a block passes to the next one
    exposed_sharding: float  # share of the communication of sharded parameters that computation does not hide
    # 90% interval of the time, divided by the time; None if the time model gives none.
    relative_interval: tuple[float, float] | None

    def of_stages(self, network: Network, stages: Sequence[DeviceStages]) -> list[StageCost]:
        """Return the cost of each device of a pipeline; devices with equal parts of the network share one object."""
        types = network.block_types or (0,) * network.blocks
        known_costs: dict[tuple[object, ...], StageCost] = {}
        costs = []
        for stage in stages:
            content = (tuple(sorted(types[block] for block in stage.blocks)), stage.has_embedding, stage.has_loss)
            if content not in known_costs:
                known_costs[content] = self.of_stage(network, stage)
            costs.append(known_costs[content])
        return costs

    def of_stage(self, network: Network, stage: DeviceStages) -> StageCost:
        """Return the cost of a part of the network.

        A table of embeddings that is also the output head is on the first and on the last stage (Megatron-LM).
        """
        types = network.block_types or (0,) * network.blocks
        numbers = Counter(types[block] for block in stage.blocks)
        weighted = [(number / len(stage.blocks), self.blocks_by_type[name]) for name, number in numbers.items()]
        block = average_costs(weighted) if weighted else NO_COST
        outer = NO_COST
        if stage.has_embedding and stage.has_loss:
            outer = self.outer
        elif stage.has_embedding:
            outer = self.embedding
        elif stage.has_loss:
            outer = subtract_costs(self.outer, self.embedding)
            if self.is_tied:
                state = {name: getattr(outer, name) + getattr(self.embedding, name) for name in STATE_FIELDS}
                outer = outer._replace(**state)
        return StageCost(len(stage.blocks), block, outer)


class StageCost(NamedTuple):
    """Cost of one micro-batch on a device of a pipeline: its blocks, and the layers outside blocks that it has."""

    blocks: int  # number of blocks
    block: DeviceCost  # mean cost of one of them
    outer: DeviceCost  # cost of embedding, head and loss, as far as the device has them

    @property
    def model_state_bytes(self) -> tuple[float, float, float]:
        """Bytes of parameters, gradients and optimizer state, without sharding."""
        parameters, gradients, optimizer = (
            getattr(self.block, name) * self.blocks + getattr(self.outer, name)
            for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
        )
        return parameters, gradients, optimizer

    @property
    def expert_share(self) -> float:
        """Share of the gradients that belongs to experts."""
        _, gradient_bytes, _ = self.model_state_bytes
        expert_bytes = self.block.expert_gradient_bytes * self.blocks + self.outer.expert_gradient_bytes
        return expert_bytes / gradient_bytes if gradient_bytes else 0.0

    @property
    def passes_s(self) -> float:
        """Time of both passes."""
        block_s = self.block.forward_s + self.block.backward_s
        return block_s * self.blocks + self.outer.forward_s + self.outer.backward_s


class BlockShape(NamedTuple):
    """How a block is divided among devices, and how its micro-batches run."""

    tensor: int  # tensor-parallel devices
    context: int  # context-parallel devices
    sequence_parallel: bool
    experts: int  # devices that share the experts
    expert_tensor: int  # devices that divide the matrices of every expert
    expert_load: float  # rows of the busiest device over the mean
    execution: str
    attention: str | None
    micro_batch_size: int
    recomputes_scores: bool  # whether the scores of attention are computed again, and so not saved
    fuses_loss: bool  # whether the loss is one kernel
    loops_over_experts: bool = False  # whether each expert has kernels of its own


def block_costs(job: Job, config: ParallelConfig) -> BlockCosts:
    """Return the cached block costs; configurations that differ only in other fields share them."""
    return job.cached(_compute_block_costs, block_shape(job, config), stack_kernels(job, config))


def block_shape(job: Job, config: ParallelConfig) -> BlockShape:
    """Return how a configuration divides a block, and how its micro-batches run."""
    experts = EXPERT_KERNELS.get(config.expert_kernels)
    load, is_loop = config.expert_load, False
    if experts is not None and experts.is_of_pytorch:
        all_tokens = rows_of_all_tokens(job.workload.network.layers)
        load, is_loop = load * (all_tokens if experts.on_all_tokens else 1.0), experts.is_per_expert
    return BlockShape(
        config.tensor,
        config.context,
        config.sequence_parallel,
        config.expert,
        config.expert_tensor,
        load,
        config.execution,
        config.attention or (stack_attention(job.machine.device) if uses_tuned_stack(job, config) else None),
        config.micro_batch_size,
        config.recompute == "selective",
        fuses_loss(job, config),
        is_loop,
    )


def fuses_loss(job: Job, config: ParallelConfig) -> bool:
    """Return whether the loss is one kernel: as requested, or by default in a tuned stack."""
    requested = job.workload.options.fused_loss
    return uses_tuned_stack(job, config) if requested is None else requested


def uses_tuned_stack(job: Job, config: ParallelConfig) -> bool:
    """Return whether a job runs with the kernels of a tuned stack (`paleo_lite.timing.blocks`).

    A model with given constants of training keeps them.
    """
    if isinstance(job.model, TrainingModel) and job.model.has_host_constants:
        return False
    return config.execution == MEGATRON and supports_stack(job.machine.device, config.zero_stage == 3)


def _compute_block_costs(job: Job, shape: BlockShape, stacks: tuple[StackKernels | None, ...]) -> BlockCosts:
    """Return the costs with the kernels of a stack, or the mean over those of several possible ones."""
    alternatives = [_costs_with_kernels(job, shape, kernels) for kernels in stacks]
    return _mean_costs(alternatives) if len(alternatives) > 1 else alternatives[0]


def stack_kernels(job: Job, config: ParallelConfig) -> tuple[StackKernels | None, ...]:
    """Return the kernels of a tuned stack, one for each possible choice of expert kernels; otherwise None alone."""
    if not uses_tuned_stack(job, config):
        return (None,)
    names = job.cached_across_models(_possible_expert_kernels, config.expert_kernels)
    recipe = job.workload.options.recipe
    frozen_bytes = NUMBER_BYTES if recipe is None else TRAINING_RECIPES[recipe].frozen_bytes(job.machine.device)
    return tuple(StackKernels(recipe, name, frozen_bytes) for name in names)


def model_of_kernels(job: Job, kernels: StackKernels | None, base: TimeModel) -> TimeModel:
    """Return the time model of the kernels of a stack; `base` is that of kernels without a tuned one."""
    if kernels is None:
        return job.move(use_recipe_efficiency(base, job.workload.options.recipe, job.machine.device))
    tuned = use_stack_constants(job.model, kernels.recipe, job.stack_constants, kernels.experts or "separate")
    return job.move(tuned)


def _possible_expert_kernels(job: Job, name: str) -> tuple[str, ...]:
    """Return the chosen kernels of experts, or all that are possible; an empty name without experts."""
    layers, recipe, device = job.workload.network.layers, job.workload.options.recipe, job.machine.device
    if not name:
        return available_expert_kernels(layers, recipe, device) or ("",)
    check_expert_kernels(name, layers, recipe, device)
    return (name,)


def _experts_per_token(job: Job) -> int:
    return max((layer.attributes.get("active", 1) for layer in job.workload.network.layers), default=1)


def _mean_costs(alternatives: Sequence[BlockCosts]) -> BlockCosts:
    """Return the mean of alternative costs; the scatter between the alternatives widens the interval."""

    def mean_of(costs: Iterable[DeviceCost]) -> DeviceCost:
        return average_costs([(1 / len(alternatives), cost) for cost in costs])

    first = alternatives[0]
    interval = first.relative_interval
    if interval is not None:
        passes_s = [costs.block.forward_s + costs.block.backward_s for costs in alternatives]
        deviation = math.hypot(math.log(interval[1]) / QUANTILES[INTERVAL_LEVEL], float(np.std(np.log(passes_s))))
        interval = interval_of(1.0, deviation)
    return first._replace(
        block=mean_of(costs.block for costs in alternatives),
        blocks_by_type={
            name: mean_of(costs.blocks_by_type[name] for costs in alternatives) for name in first.blocks_by_type
        },
        relative_interval=interval,
    )


def _costs_with_kernels(job: Job, shape: BlockShape, kernels: StackKernels | None) -> BlockCosts:
    """Return the costs with the kernels of a tuned stack, or of another one."""
    network = job.workload.network
    model = model_of_kernels(job, kernels, use_training_constants(job.model))
    weighted_blocks = []
    blocks_by_type: dict[int, DeviceCost] = {}
    for block_type, number in Counter(network.block_types or (0,) * network.blocks).most_common():
        type_counted = job.cached_across_models(_count_blocks, block_type, shape, kernels)
        type_terms = [model.evaluate(counted.workload, job.machine) for counted in type_counted]
        one_block_cost, two_blocks_cost = (counted.cost(term, job) for counted, term in zip(type_counted, type_terms))
        block_cost = subtract_costs(two_blocks_cost, one_block_cost)
        weighted_blocks.append((number / network.blocks, block_cost))
        blocks_by_type[block_type] = block_cost
        if len(weighted_blocks) == 1:  # the most frequent type also gives the costs outside blocks
            counted, terms, one_block = type_counted, type_terms, one_block_cost
    outer = subtract_costs(one_block, weighted_blocks[0][1])
    interval = terms[1].interval()
    relative_interval = None
    if interval is not None:
        relative_interval = (interval[0] / terms[1].time_s, interval[1] / terms[1].time_s)
    # A block passes on the result of its last residual addition; norms add smaller tensors.
    workload = counted[1].workload
    added = [layer.outputs[0] for layer in workload.layers if is_addition(layer) and len(layer.outputs[0]) == 3]
    hidden_elements = max(float(np.prod(shape)) for shape in added)
    hidden_state_bytes = hidden_elements * workload.batch_size * job.element_bytes
    return BlockCosts(
        block=average_costs(weighted_blocks),
        outer=outer,
        embedding=_embedding_cost(terms[0], counted[0].workload, one_block, outer),
        is_tied=_shares_embedding(network.layers),
        blocks_by_type=blocks_by_type,
        experts_per_token=job.cached_across_models(_experts_per_token),
        overhead_s=terms[0].overhead_s,
        hidden_state_bytes=hidden_state_bytes,
        exposed_sharding=model.exposed_sharding if isinstance(model, TrainingModel) else 0.0,
        relative_interval=relative_interval,
    )


def _count_blocks(
    job: Job, block_type: int, shape: BlockShape, kernels: StackKernels | None
) -> tuple[MicroBatchCounts, ...]:
    """Count a micro-batch of networks of one and of two blocks of a type."""
    of_samples = job.cached_across_models(_count_samples, block_type, _shape_of_sample(shape), kernels)
    micro_batches = job.cached_across_models(_micro_batches, block_type, shape)
    return tuple(
        of_sample.of_micro_batch(workload, memory, recomputes_scores=shape.recomputes_scores)
        for of_sample, (workload, memory) in zip(of_samples, micro_batches)
    )


def _shape_of_sample(shape: BlockShape) -> BlockShape:
    """Return the fields of a shape on which the small networks for extrapolation depend."""
    return shape._replace(micro_batch_size=1, recomputes_scores=False)


def _count_samples(
    job: Job, block_type: int, shape: BlockShape, kernels: StackKernels | None
) -> tuple[MicroBatchCounts, ...]:
    """Count a sample of networks of one and of two blocks of a type."""
    if kernels is not None:
        plain = job.cached_across_models(_count_samples, block_type, shape, None)
        return tuple(with_stack(network, kernels) for network in plain)
    small_networks = job.cached_across_models(_build_small_networks, block_type, shape)
    return tuple(count_network(network.workload, network.memory(1), job.element_bytes) for network in small_networks)


def _micro_batches(job: Job, block_type: int, shape: BlockShape) -> list[tuple[Workload, Memory]]:
    """Return a micro-batch of networks of one and of two blocks of a type, with its memory."""
    batches = []
    for network in job.cached_across_models(_build_small_networks, block_type, _shape_of_sample(shape)):
        workload = micro_batch(network.workload.with_changes(batch_size=shape.micro_batch_size), job.machine)
        memory_function = network.memory_with_fused_attention if shape.recomputes_scores else network.memory
        batches.append((workload, memory_function(shape.micro_batch_size)))
    return batches


class _SmallNetwork(NamedTuple):
    """A network of few blocks, and its memory as it is and with fused attention."""

    workload: Workload
    memory: MemoryFunction
    memory_with_fused_attention: MemoryFunction


def _build_small_networks(job: Job, block_type: int, shape: BlockShape) -> list[_SmallNetwork]:
    """Build the networks of one and of two blocks of a type, given by the index of a block."""
    network = job.workload.network
    training = msgspec.structs.replace(
        job.workload.options, accumulation=1, checkpointing="none", offload="none", fused_loss=shape.fuses_loss
    )
    small_networks = []
    for number in (1, 2):
        blocks = (block_type,) * number
        workload = job.workload.with_changes(
            network=build_network(network, shape, blocks, is_fused_attention(shape.attention)),
            training=training,
            batch_size=1,
            execution=shape.execution,
            attention=shape.attention,
        )
        memory = memory_by_micro_batch(workload)
        fused_memory = memory
        if not any(map(is_attention, workload.layers)):
            # Fused attention saves neither the scores nor their softmax.
            fused_network = build_network(network, shape, blocks, fused_attention=True)
            fused_memory = memory_by_micro_batch(workload.with_changes(network=fused_network))
        small_networks.append(_SmallNetwork(workload, memory, fused_memory))
    return small_networks


def build_network(
    network: Network, shape: BlockShape, blocks: tuple[int, ...] | None, fused_attention: bool | None
) -> Network:
    """Build some blocks of a network, or all, as one device has them."""
    assert network.rebuild is not None and network.lengths is not None
    options = SequenceOptions(
        length=network.lengths.queries,
        phase="training",
        tensor_parallel=shape.tensor,
        sequence_parallel=shape.sequence_parallel,
        context_parallel=shape.context,
        expert_parallel=shape.experts,
        expert_tensor_parallel=shape.expert_tensor,
        expert_load=shape.expert_load,
        blocks=blocks,
        fused_attention=fused_attention,
    )
    built = network.rebuild(options)
    return built._replace(layers=launches_per_expert(built.layers)) if shape.loops_over_experts else built


def _embedding_cost(terms: Terms, workload: Workload, one_block: DeviceCost, outer: DeviceCost) -> DeviceCost:
    """Return the part of the cost outside blocks that belongs to the tables of embeddings.

    Terms, workload and `one_block` are those of a network of one block.
    """
    is_table = np.array([is_embedding(layer) for layer in workload.layers])
    parameters = np.array([float(layer.parameters) for layer in workload.layers])
    share = 0.0
    if outer.parameter_bytes:
        table_bytes = one_block.parameter_bytes * parameters[is_table].sum() / parameters.sum()
        share = min(float(table_bytes) / outer.parameter_bytes, 1.0)
    state = {name: getattr(outer, name) * share for name in STATE_FIELDS}
    return NO_COST._replace(
        forward_s=float(terms.seconds_of("forward")[is_table].sum()),
        backward_s=float(terms.seconds_of("backward_data", "backward_weight")[is_table].sum()),
        **state,
    )


def _shares_embedding(layers: Sequence[Layer]) -> bool:
    """Return whether the layer that computes the logits has no parameters of its own."""
    head = find_logits(layers)
    return head is not None and not layers[head].parameters

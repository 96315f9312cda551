"""Costs of networks of transformer blocks on one device, extrapolated from networks of one, two and three blocks.

The layers of one device come from the config (`paleo_lite.architectures.tape`): its columns and rows of every weight
matrix, and the communication between devices. `block_costs` returns the cost of a block and of the layers outside
blocks for one micro-batch of training. `predict_generation_step` predicts a pass of prefill or decode with tensor
parallelism (Shoeybi et al. 2019, Megatron-LM, section 3): two all-reduces per block. Pope et al. 2023 (section 3.2) use
the same layout for text generation; the logits of the last token are gathered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..architectures.network import Network, SequenceOptions
from ..counting import Layer
from ..counting.kinds import class_of, is_attention, is_embedding, is_grouped_product
from ..counting.work import MEGATRON
from ..errors import BadValue
from ..timing import Prediction, Workload, predict
from ..timing.attention import is_fused_attention
from ..timing.blocks import TrainingModel, use_training_constants
from ..timing.expert_kernels import EXPERT_KERNELS, available_expert_kernels, check_expert_kernels, expert_layers
from ..timing.fine_tuning import find_logits
from ..timing.memory import Memory, memory_by_micro_batch, peak_memory
from ..timing.models import INTERVAL_LEVEL, QUANTILES, Terms, interval_of
from ..timing.training import micro_batch
from ..timing.training_recipes import QUANTIZATION_BANDWIDTH_SHARE, TRAINING_RECIPES
from ..timing.training_stack import (
    FUSED_KINDS,
    STACK_ATTENTION,
    stack_constants,
    supports_stack,
    use_stack_constants,
)
from .collectives import subgroup_topology, topology_all_reduce_s
from .job import Job, ParallelConfig, Settings, Step
from .links import Topology
from .pipeline_layout import DeviceStages
from .saved_activations import saved_activations

MemoryFunction = Callable[[int], Memory]
"""Function from the micro-batch size to the peak memory of one device."""

Messages = tuple[tuple[float, float], ...]
"""Pairs of a share of an all-reduce and its bytes; an all-gather or a reduce-scatter is half an all-reduce."""


class DeviceCost(NamedTuple):
    """Cost of one micro-batch on one device, for a block or for the layers outside blocks (embedding, head).

    Attributes
    ----------
    forward_s, backward_s, update_s : float
        Time of the passes.
    attention_scores_s : float
        Part of the forward pass that Megatron-LM's selective recomputation repeats: the attention scores and their
        softmax.
    unsaved_s, saved_bytes : float
        Part of the forward pass that PyTorch's selective checkpointing repeats, and bytes of the results that it saves:
        those of attention and of every second product.
    forward_messages, backward_messages : tuple of (float, float)
        Communication between tensor-parallel devices, see `Messages`.
    parameter_bytes, gradient_bytes, optimizer_bytes, activation_bytes, logits_bytes, workspace_bytes : float
        Memory by part.
    attention_s, attention_backward_s : float
        Part of the forward and of the backward pass that attention takes.
    ring_bytes : float
        Keys and values of one device, which context parallelism passes around the ring.
    routed_bytes : float
        Bytes of the rows sent to experts and back in a forward pass, a row per token and expert.
    routings : float
        Number of these exchanges.
    expert_gathered_bytes : float
        Bytes that devices which divide the same experts have together, of all gathers and scatters of a forward pass.
    expert_gradient_bytes : float
        Part of `gradient_bytes` that belongs to experts.
    freed_bytes : float or array, shape (modules,)
        Part of `activation_bytes` that recomputation of each of `RECOMPUTE_MODULES` frees, in a tuned stack.
    repeated_s : float or array, shape (modules,)
        Part of the forward pass that it repeats.
    """

    forward_s: float
    backward_s: float
    attention_scores_s: float
    unsaved_s: float
    saved_bytes: float
    update_s: float
    forward_messages: Messages
    backward_messages: Messages
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    logits_bytes: float
    workspace_bytes: float
    attention_s: float
    attention_backward_s: float
    ring_bytes: float
    routed_bytes: float
    routings: float
    expert_gathered_bytes: float
    expert_gradient_bytes: float
    freed_bytes: Any = 0.0
    repeated_s: Any = 0.0


NO_COST = DeviceCost(
    **{name: () if name.endswith("_messages") else 0.0 for name in DeviceCost._fields}  # type: ignore[arg-type]
)

_STATE_FIELDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "update_s")
"""Fields of a cost that its parameters determine."""


class BlockCosts(NamedTuple):
    """Costs of a network of blocks on one device.

    Attributes
    ----------
    block : DeviceCost
        Mean cost of a block, over all types of blocks.
    outer : DeviceCost
        Cost of the layers outside blocks: embedding and head.
    embedding : DeviceCost
        Part of `outer` that belongs to the embedding; the rest is output head and loss.
    is_tied : bool
        Whether the output head shares its parameters with the embedding.
    blocks_by_type : dict of int to DeviceCost
        Cost of a block of each type.
    experts_per_token : int
        Active experts of a token; 1 without a mixture.
    overhead_s : float
        Fixed overhead per step.
    hidden_state_bytes : float
        Bytes that a block passes to the next one.
    exposed_sharding : float
        Share of the communication of sharded parameters that computation does not hide.
    relative_interval : tuple of float or None
        90% interval of the time, divided by the time; None if the time model gives none.
    """

    block: DeviceCost
    outer: DeviceCost
    embedding: DeviceCost
    is_tied: bool
    blocks_by_type: dict[int, DeviceCost]
    experts_per_token: int
    overhead_s: float
    hidden_state_bytes: float
    exposed_sharding: float
    relative_interval: tuple[float, float] | None

    def of_stage(self, network: Network, stage: DeviceStages) -> StageCost:
        """Return the cost of a part of the network.

        A table of embeddings that is also the output head is on the first and on the last stage (Megatron-LM).
        """
        types = network.block_types or (0,) * network.blocks
        numbers = Counter(types[block] for block in stage.blocks)
        weighted = [(number / len(stage.blocks), self.blocks_by_type[name]) for name, number in numbers.items()]
        block = _average_cost(weighted) if weighted else NO_COST
        outer = NO_COST
        if stage.has_embedding and stage.has_loss:
            outer = self.outer
        elif stage.has_embedding:
            outer = self.embedding
        elif stage.has_loss:
            outer = _subtract_costs(self.outer, self.embedding)
            if self.is_tied:
                state = {name: getattr(outer, name) + getattr(self.embedding, name) for name in _STATE_FIELDS}
                outer = outer._replace(**state)
        return StageCost(len(stage.blocks), block, outer)


class StageCost(NamedTuple):
    """Cost of one micro-batch on a device of a pipeline: its blocks, and the layers outside blocks that it has.

    Attributes
    ----------
    blocks : int
        Number of blocks.
    block : DeviceCost
        Mean cost of one of them.
    outer : DeviceCost
        Cost of embedding, head and loss, as far as the device has them.
    """

    blocks: int
    block: DeviceCost
    outer: DeviceCost

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


class ExpertLayout(NamedTuple):
    """How experts are divided among devices.

    Attributes
    ----------
    devices : int
        Devices that share the experts.
    tensor : int
        Devices that divide the matrices of every expert.
    load : float
        Rows of the busiest device over the mean.
    """

    devices: int
    tensor: int
    load: float


def block_costs(job: Job, config: ParallelConfig) -> BlockCosts:
    """Return the cached block costs; configurations that differ only in other fields share them."""
    return job.cached(
        _compute_block_costs,
        config.tensor,
        config.sequence_parallel,
        config.context,
        ExpertLayout(config.expert, config.expert_tensor, config.expert_load),
        config.micro_batch_size,
        config.recompute == "selective",
        config.execution,
        config.attention,
        uses_tuned_stack(job, config),
        config.expert_kernels,
    )


def uses_tuned_stack(job: Job, config: ParallelConfig) -> bool:
    """Return whether a job runs with the kernels of `paleo_lite.timing.training_stack`.

    A model with given constants of training keeps them.
    """
    if isinstance(job.model, TrainingModel) and job.model.has_host_constants:
        return False
    return config.execution == MEGATRON and supports_stack(job.machine.device, config.zero_stage == 3)


def _compute_block_costs(
    job: Job,
    tensor: int,
    sequence_parallel: bool,
    context: int,
    expert: ExpertLayout,
    micro_batch_size: int,
    selective: bool,
    execution: str,
    attention: str | None,
    tuned: bool,
    expert_kernels: str,
) -> BlockCosts:
    """Return the costs with the chosen kernels of experts; by default the mean over all possible ones."""
    names: Sequence[str] = (expert_kernels,)
    if tuned:
        layers, recipe, device = job.workload.network.layers, job.workload.options.recipe, job.machine.device
        if expert_kernels:
            check_expert_kernels(expert_kernels, layers, recipe, device)
        else:
            names = available_expert_kernels(layers, recipe, device) or names
    alternatives = [
        _costs_with_kernels(
            job, tensor, sequence_parallel, context, expert, micro_batch_size, selective, execution, attention, tuned,
            name,
        )
        for name in names
    ]  # fmt: skip
    return _mean_costs(alternatives) if len(alternatives) > 1 else alternatives[0]


def _mean_costs(alternatives: Sequence[BlockCosts]) -> BlockCosts:
    """Return the mean of costs of which one applies; the interval is as much wider as they are apart."""

    def mean_of(costs: Iterable[DeviceCost]) -> DeviceCost:
        return _average_cost([(1 / len(alternatives), cost) for cost in costs])

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


def _costs_with_kernels(
    job: Job,
    tensor: int,
    sequence_parallel: bool,
    context: int,
    expert: ExpertLayout,
    micro_batch_size: int,
    selective: bool,
    execution: str,
    attention: str | None,
    tuned: bool,
    expert_kernels: str,
) -> BlockCosts:
    network, recipe = job.workload.network, job.workload.options.recipe
    attention = attention or (STACK_ATTENTION if tuned else None)
    block_counts = Counter(network.block_types or (0,) * network.blocks)
    model = use_training_constants(job.model)
    if tuned:
        model = use_stack_constants(job.model, recipe, job.stack_constants, expert_kernels or "separate")
    weighted_blocks = []
    blocks_by_type: dict[int, DeviceCost] = {}
    for block_type, number in block_counts.most_common():
        type_counted = job.cached_across_models(
            _count_micro_batch,
            block_type,
            tensor,
            sequence_parallel,
            context,
            expert,
            micro_batch_size,
            selective,
            execution,
            attention,
        )
        type_terms = [model.evaluate(workload, job.machine) for workload, _ in type_counted]
        one_block_cost, two_blocks_cost = (
            _device_cost(term, workload, memory, job, tuned, recipe if tuned else None, expert_kernels)
            for term, (workload, memory) in zip(type_terms, type_counted)
        )
        block_cost = _subtract_costs(two_blocks_cost, one_block_cost)
        weighted_blocks.append((number / network.blocks, block_cost))
        blocks_by_type[block_type] = block_cost
        if len(weighted_blocks) == 1:  # the most frequent type also gives the costs outside blocks
            counted, terms, one_block = type_counted, type_terms, one_block_cost
    outer = _subtract_costs(one_block, weighted_blocks[0][1])
    interval = terms[1].interval()
    relative_interval = None
    if interval is not None:
        relative_interval = (interval[0] / terms[1].time_s, interval[1] / terms[1].time_s)
    # A block passes on the result of its last residual addition; norms add smaller tensors.
    workload, _ = counted[1]
    added = [layer.outputs[0] for layer in workload.layers if layer.kind == "add" and len(layer.outputs[0]) == 3]
    hidden_elements = max(float(np.prod(shape)) for shape in added)
    hidden_state_bytes = hidden_elements * workload.batch_size * job.element_bytes
    return BlockCosts(
        block=_average_cost(weighted_blocks),
        outer=outer,
        embedding=_embedding_cost(terms[0], counted[0][0], one_block, outer),
        is_tied=_shares_embedding(network.layers),
        blocks_by_type=blocks_by_type,
        experts_per_token=max((layer.attributes.get("active", 1) for layer in network.layers), default=1),
        overhead_s=terms[0].overhead_s,
        hidden_state_bytes=hidden_state_bytes,
        exposed_sharding=model.exposed_sharding if isinstance(model, TrainingModel) else 0.0,
        relative_interval=relative_interval,
    )


def _count_micro_batch(
    job: Job,
    block_type: int,
    tensor: int,
    sequence_parallel: bool,
    context: int,
    expert: ExpertLayout,
    micro_batch_size: int,
    selective: bool,
    execution: str,
    attention: str | None,
) -> tuple[tuple[Workload, Memory], ...]:
    """Return workload and memory of one micro-batch for networks of one and of two blocks of a type."""
    networks = job.cached_across_models(
        _build_small_networks, block_type, tensor, sequence_parallel, context, expert, execution, attention
    )
    counted = []
    for network in networks:
        workload = micro_batch(network.workload.with_changes(batch_size=micro_batch_size), job.machine)
        memory_function = network.memory_with_fused_attention if selective else network.memory
        counted.append((workload, memory_function(micro_batch_size)))
    return tuple(counted)


class _SmallNetwork(NamedTuple):
    """A network of few blocks, and its memory as it is and with fused attention."""

    workload: Workload
    memory: MemoryFunction
    memory_with_fused_attention: MemoryFunction


def _build_small_networks(
    job: Job,
    block_type: int,
    tensor: int,
    sequence_parallel: bool,
    context: int,
    expert: ExpertLayout,
    execution: str,
    attention: str | None,
) -> list[_SmallNetwork]:
    """Build the networks of one and of two blocks of a type, given by the index of a block."""
    network = job.workload.network
    assert network.rebuild is not None and network.lengths is not None
    training = msgspec.structs.replace(job.workload.options, accumulation=1, checkpointing="none")
    small_networks = []
    for number in (1, 2):
        options = SequenceOptions(
            length=network.lengths.queries,
            phase="training",
            tensor_parallel=tensor,
            sequence_parallel=sequence_parallel,
            context_parallel=context,
            expert_parallel=expert.devices,
            expert_tensor_parallel=expert.tensor,
            expert_load=expert.load,
            blocks=(block_type,) * number,
            fused_attention=is_fused_attention(attention),
        )
        workload = job.workload.with_changes(
            network=network.rebuild(options), training=training, batch_size=1, execution=execution, attention=attention
        )
        memory = memory_by_micro_batch(workload)
        fused_memory = memory
        if not any(map(is_attention, workload.layers)):
            # Fused attention saves neither the scores nor their softmax.
            fused_network = network.rebuild(options._replace(fused_attention=True))
            fused_memory = memory_by_micro_batch(workload.with_changes(network=fused_network))
        small_networks.append(_SmallNetwork(workload, memory, fused_memory))
    return small_networks


_ALL_REDUCE_SHARES = {
    "copy": {"backward": 1.0},
    "sum": {"forward": 1.0},
    "gather": {"forward": 0.5, "backward": 0.5},
    "scatter": {"forward": 0.5, "backward": 0.5},
}
"""Communication of a tensor-parallel exchange layer per pass, as shares of an all-reduce."""


def _device_cost(
    terms: Terms, workload: Workload, memory: Memory, job: Job, tuned: bool, recipe: str | None, expert_kernels: str
) -> DeviceCost:
    """Return the cost of a whole small network.

    Parameters
    ----------
    tuned : bool
        Whether `FUSED_KINDS` have no kernels of their own.
    recipe : str or None
        Recipe of products whose tensors are quantized by kernels of their own.
    expert_kernels : str
        Implementation of grouped products in a tuned stack, one of `EXPERT_KERNELS`.
    """
    element_bytes = job.element_bytes
    keys = workload.network.lengths.keys if workload.network.lengths else 0
    is_score_layer = np.array([_is_score_layer(layer, keys) for layer in workload.layers])
    is_attention_layer = np.array([is_attention(layer) for layer in workload.layers])
    messages: dict[str, list[tuple[float, float]]] = {"forward": [], "backward": []}
    routed_bytes = routings = ring_bytes = expert_gradient_bytes = expert_gathered_bytes = 0.0
    bytes_per_element = workload.batch_size * element_bytes
    for layer in workload.layers:
        if layer.kind == "exchange":
            function = layer.attributes["function"]
            size = float(max(np.prod(layer.inputs[0]), np.prod(layer.outputs[0]))) * bytes_per_element
            if function == "all_to_all":
                routed_bytes += size
                routings += 1
            elif function in ("expert_gather", "expert_scatter"):
                expert_gathered_bytes += size
            for direction, share in _ALL_REDUCE_SHARES.get(function, {}).items():
                messages[direction].append((share, size))
        elif is_attention(layer):
            ring_bytes += float(np.prod(layer.inputs[1]) + np.prod(layer.inputs[2])) * bytes_per_element
        elif is_grouped_product(layer):
            expert_gradient_bytes += float(layer.parameters) * element_bytes
    forward = terms.seconds_of("forward")
    backward = terms.seconds_of("backward_data", "backward_weight")
    if tuned:
        has_kernel = np.array([layer.kind not in FUSED_KINDS for layer in workload.layers])
        if expert_kernels and EXPERT_KERNELS[expert_kernels].fuses_activation:
            for first, last in expert_layers(workload.layers):
                has_kernel[first + 1 : last] = False
        forward, backward = forward * has_kernel, backward * has_kernel
        launches_s = _expert_launches_s(workload, job, recipe, expert_kernels)
        forward, backward = forward + launches_s, backward + 2 * launches_s
    saved_shares = _saved_shares(workload.layers)
    output_elements = np.array([float(np.prod(layer.outputs[0])) for layer in workload.layers])
    saved_elements = float(saved_shares @ output_elements)
    inputs_s = gradients_s = 0.0
    if recipe is not None:
        is_fused = bool(expert_kernels) and EXPERT_KERNELS[expert_kernels].fuses_activation
        inputs, gradients = _quantized_elements(workload, is_fused)
        rule, bandwidth = TRAINING_RECIPES[recipe], job.machine.device.bandwidth_bytes_per_s
        share = QUANTIZATION_BANDWIDTH_SHARE if job.model.is_forecast else 1.0
        element_s = rule.quantized_bytes / (bandwidth * share)
        inputs_s, gradients_s = inputs * element_s, gradients * element_s
    activation_bytes = float(memory.activations_bytes)
    freed_bytes: Any = 0.0
    repeated_s: Any = 0.0
    if tuned:
        saved = saved_activations(workload, terms, recipe)
        activation_bytes = saved.total_bytes
        freed_bytes, repeated_s = np.array(saved.freed_bytes), np.array(saved.recomputed_s)
    return DeviceCost(
        forward_s=float(forward.sum()) + inputs_s,
        backward_s=float(backward.sum()) + gradients_s,
        attention_scores_s=float(forward[is_score_layer].sum()),
        unsaved_s=float((1 - saved_shares) @ forward),
        saved_bytes=saved_elements * bytes_per_element,
        update_s=float(terms.seconds_of("update").sum()),
        forward_messages=tuple(messages["forward"]),
        backward_messages=tuple(messages["backward"]),
        parameter_bytes=memory.parameters_bytes,
        gradient_bytes=memory.gradients_bytes,
        optimizer_bytes=memory.optimizer_bytes,
        activation_bytes=activation_bytes,
        logits_bytes=memory.logits_bytes,
        workspace_bytes=memory.workspace_bytes,
        attention_s=float(forward[is_attention_layer].sum()),
        attention_backward_s=float(backward[is_attention_layer].sum()),
        ring_bytes=ring_bytes,
        routed_bytes=routed_bytes,
        routings=routings,
        expert_gathered_bytes=expert_gathered_bytes,
        expert_gradient_bytes=expert_gradient_bytes,
        freed_bytes=freed_bytes,
        repeated_s=repeated_s,
    )


def _expert_launches_s(workload: Workload, job: Job, recipe: str | None, expert_kernels: str) -> np.ndarray:
    """Return the time that kernels of single experts take beside their work in one pass, shape (layers,)."""
    launches = np.zeros(len(workload.layers))
    if not expert_kernels or not EXPERT_KERNELS[expert_kernels].is_per_expert or not job.model.is_forecast:
        return launches
    kernels = TRAINING_RECIPES[recipe].expert_kernels if recipe is not None else 1
    for index, layer in enumerate(workload.layers):
        if is_grouped_product(layer):
            launches[index] = layer.weights[0][0] * kernels
    return launches * (job.stack_constants or stack_constants()).expert_launch_s


def _quantized_elements(workload: Workload, fuses_experts: bool) -> tuple[float, float]:
    """Return the elements of a micro-batch that products quantize: distinct inputs, and gradients of results.

    Parameters
    ----------
    fuses_experts : bool
        Whether the products of experts write the input of the second one, and the gradient of the result of the first
        one, as narrow numbers.
    """
    experts = expert_layers(workload.layers) if fuses_experts else []
    first_products, second_products = {first for first, _ in experts}, {second for _, second in experts}
    inputs: dict[tuple[int, ...], float] = {}
    gradients = 0.0
    for index, (layer, is_narrow) in enumerate(zip(workload.layers, workload.uses_narrow_products)):
        if is_narrow and index not in second_products:
            inputs[layer.parents[:1] + layer.inputs[0]] = float(np.prod(layer.inputs[0]))
        if is_narrow and index not in first_products:
            gradients += float(np.prod(layer.outputs[0]))
    return sum(inputs.values()) * workload.batch_size, gradients * workload.batch_size


def _embedding_cost(terms: Terms, workload: Workload, one_block: DeviceCost, outer: DeviceCost) -> DeviceCost:
    """Return the part of the cost outside blocks that belongs to the tables of embeddings.

    Parameters
    ----------
    terms, workload, one_block
        Of a network of one block.
    """
    is_table = np.array([is_embedding(layer) for layer in workload.layers])
    parameters = np.array([float(layer.parameters) for layer in workload.layers])
    share = 0.0
    if outer.parameter_bytes:
        table_bytes = one_block.parameter_bytes * parameters[is_table].sum() / parameters.sum()
        share = min(float(table_bytes) / outer.parameter_bytes, 1.0)
    state = {name: getattr(outer, name) * share for name in _STATE_FIELDS}
    return NO_COST._replace(
        forward_s=float(terms.seconds_of("forward")[is_table].sum()),
        backward_s=float(terms.seconds_of("backward_data", "backward_weight")[is_table].sum()),
        **state,
    )


def _subtract_costs(total: DeviceCost, part: DeviceCost) -> DeviceCost:
    """Return the cost of `total` minus that of `part`.

    Of the messages, the first one and those at the end belong to `part`.
    """
    difference = {}
    for name in DeviceCost._fields:
        in_total, in_part = getattr(total, name), getattr(part, name)
        if name in ("forward_messages", "backward_messages"):
            difference[name] = in_total[1 : 1 + len(in_total) - len(in_part)]
        else:
            difference[name] = in_total - in_part
    return DeviceCost(**difference)


def _average_cost(weighted_costs: Sequence[tuple[float, DeviceCost]]) -> DeviceCost:
    """Return the weighted mean of costs; weights scale the number of messages, not their size."""
    if len(weighted_costs) == 1:
        return weighted_costs[0][1]
    mean: dict[str, Any] = {}
    for name in DeviceCost._fields:
        if name in ("forward_messages", "backward_messages"):
            mean[name] = tuple(
                (weight * share, size) for weight, cost in weighted_costs for share, size in getattr(cost, name)
            )
        else:
            mean[name] = sum(weight * getattr(cost, name) for weight, cost in weighted_costs)
    return DeviceCost(**mean)


def _shares_embedding(layers: Sequence[Layer]) -> bool:
    """Return whether the layer that computes the logits has no parameters of its own."""
    head = find_logits(layers)
    return head is not None and not layers[head].parameters


def _saved_shares(layers: Sequence[Layer]) -> np.ndarray:
    """Return the share of each layer's results that PyTorch's selective checkpointing saves, shape (layers,).

    torchtitan saves the results of attention and of every second matrix product. As the blocks of a network have an odd
    number of products in general, this is half of the products on average; the output head is outside the checkpoints.
    """
    head = find_logits(layers)
    shares = np.zeros(len(layers))
    for index, layer in enumerate(layers):
        if is_attention(layer):
            shares[index] = 1.0
        elif class_of(layer) == "gemm" and layer.weights:
            shares[index] = 0.0 if index == head else 0.5
    return shares


def _is_score_layer(layer: Layer, keys: int) -> bool:
    """Return whether a layer reads or writes the attention scores, of shape (..., keys, keys)."""
    shapes = (*layer.inputs, *layer.outputs)
    return any(len(shape) == 4 and shape[-2:] == (keys, keys) for shape in shapes)


def predict_generation_step(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """Predict a pass of prefill or decode with tensor parallelism.

    ``settings.parallel.tensor`` sets the number of tensor-parallel devices, by default all. There is no scheduler, no
    communication is hidden, and replicas are independent.

    Raises
    ------
    BadValue
        If the network was not built from a config, if devices, heads or batch cannot be divided, or if a setting is
        for training only.
    """
    if settings.gradient_precision or not settings.overlap or settings.micro_batches or settings.inputs:
        raise BadValue(
            "`--gradient-precision`, `--no-overlap`, `--micro-batches`, `--storage`, `--decode` and `--pageable` "
            "are for `--phase training`"
        )
    tensor = _tensor_parallel_degree(topology, settings.parallel)
    replicas = topology.workers // tensor
    if batch_size % replicas:
        raise BadValue(
            f"the batch size must be divisible by the {replicas} replicas of `--tensor {tensor}` (got {batch_size})"
        )
    samples = batch_size // replicas
    cost = job.cached(_generation_cost, tensor, samples)
    compute_factor = job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
    compute_s = cost.time_s * compute_factor
    tensor_group = subgroup_topology(topology, 1, tensor)
    communication_s = 0.0
    for message_bytes, share in cost.messages.items():
        communication_s += share * float(topology_all_reduce_s(tensor_group, message_bytes, settings.collective))
    interval = None
    if cost.deviation is not None:
        low_s, high_s = interval_of(compute_s, cost.deviation)
        interval = (low_s + communication_s, high_s + communication_s)
    data = f", data {replicas}" if replicas > 1 else ""
    sequences = "1 sequence" if samples == 1 else f"{samples} sequences"
    return Step(
        compute_s=compute_s,
        communication_s=communication_s,
        exposed_s=communication_s,
        memory_bytes=cost.memory_bytes,
        interval=interval,
        overheads_s={"slowdown": compute_s * settings.slowdown / (1 + settings.slowdown)},
        notes=(f"tensor {tensor}{data}, {sequences} per batch",),
    )


def generation_notes(job: Job) -> tuple[str, ...]:
    """Return the notes of the time model's prediction of prefill or decode."""
    return job.cached(_predict_few_blocks, 1, 1, 1).notes


def _tensor_parallel_degree(topology: Topology, config: ParallelConfig | None) -> int:
    """Return the number of tensor-parallel devices, and refuse other forms of parallelism."""
    config = config or ParallelConfig(tensor=topology.workers)
    if config != ParallelConfig(tensor=config.tensor):
        raise BadValue(
            "prefill and decode support tensor parallelism only: use `--tensor` alone, or `paleo-lite serve`, which "
            "simulates pipelines, `--expert-parallel` and `--attention-data-parallel`"
        )
    tensor = min(config.tensor, topology.workers)
    if tensor > topology.devices_per_node > 1:
        raise BadValue(f"`--tensor` must be <= {topology.devices_per_node}, the devices per node (got {tensor})")
    if topology.workers % tensor:
        raise BadValue(f"`--tensor` must divide the {topology.workers} workers (got {tensor})")
    return tensor


class _GenerationCost(NamedTuple):
    """Cost of a pass of prefill or decode on one tensor-parallel device.

    Attributes
    ----------
    time_s : float
        Computation time.
    deviation : float or None
        Standard deviation of its logarithm; None if the time model gives none.
    memory_bytes : float
        Peak memory.
    messages : dict of float to float
        Shares of an all-reduce by message size in bytes.
    """

    time_s: float
    deviation: float | None
    memory_bytes: float
    messages: dict[float, float]


def _generation_cost(job: Job, tensor: int, samples: int) -> _GenerationCost:
    """Extrapolate the cost from networks of one, two and three blocks; compute it in full where blocks differ.

    Times and bytes grow linearly with the number of blocks, variances quadratically.
    """
    blocks = job.workload.network.blocks
    has_equal_blocks = not job.workload.network.block_types
    block_counts = [1, 2, 3] if blocks > 3 and has_equal_blocks else [blocks]
    predictions = [job.cached(_predict_few_blocks, tensor, samples, count) for count in block_counts]

    def extrapolate(values: Sequence[float]) -> float:
        """Return the value at `blocks` of the parabola through the values at 1, 2 and 3 blocks."""
        if len(values) == 1:
            return values[0]
        first, second, third = values
        steps = blocks - 1
        return first + steps * (second - first) + steps * (steps - 1) / 2 * (third - 2 * second + first)

    time_s = extrapolate([prediction.time_s for prediction in predictions])
    deviation = None
    if predictions[0].terms.deviation is not None:
        variances = [(one.time_s * float(one.terms.deviation or 0.0)) ** 2 for one in predictions]
        deviation = math.sqrt(extrapolate(variances)) / time_s
    messages_by_count = [_all_reduce_messages(prediction, tensor, job.element_bytes) for prediction in predictions]
    messages = {}
    for size in messages_by_count[-1]:
        messages[size] = extrapolate([shares.get(size, 0.0) for shares in messages_by_count])
    # The memory peak of a single block may be at another layer than that of several: extrapolate from the last two.
    peak_bytes = [float(peak_memory(prediction.workload).total_bytes) for prediction in predictions[-2:]]
    memory_bytes = peak_bytes[-1] + (blocks - block_counts[-1]) * (peak_bytes[-1] - peak_bytes[0])
    return _GenerationCost(time_s, deviation, memory_bytes, messages)


def _predict_few_blocks(job: Job, tensor: int, samples: int, blocks: int) -> Prediction:
    """Predict a network of so many blocks on one device; a network without equal blocks is predicted as a whole."""
    workload = job.cached_across_models(_sharded_workload, tensor, blocks)
    return predict(workload.with_changes(batch_size=samples), job.machine, job.model)


def _sharded_workload(job: Job, tensor: int, blocks: int) -> Workload:
    """Return the workload of one of the tensor-parallel devices."""
    network, phase = job.workload.network, job.workload.phase
    if network.rebuild is None or network.lengths is None:
        if tensor > 1:
            raise BadValue(
                f"`--tensor` must be 1 for {network.name}: tensor parallelism in {phase} needs a network from a config "
                f"(got {tensor})"
            )
        return job.workload
    keys = network.lengths.keys
    options = SequenceOptions(
        length=None if phase == "decode" else keys,
        context=keys - 1 if phase == "decode" else None,
        phase=phase,
        tensor_parallel=tensor,
        blocks=blocks or None,
    )
    return job.workload.with_changes(network=network.rebuild(options))


def _all_reduce_messages(prediction: Prediction, tensor: int, element_bytes: int) -> dict[float, float]:
    """Return shares of an all-reduce by message size: the sums of each block, and the all-gather of the logits."""
    layers = prediction.workload.layers
    # Sums are exchanged in 16 bits at least.
    bytes_per_element = prediction.workload.batch_size * max(element_bytes, 2)
    shares: dict[float, float] = {}
    for layer in layers:
        if layer.kind == "exchange" and layer.attributes["function"] == "sum":
            size = float(np.prod(layer.outputs[0])) * bytes_per_element
            shares[size] = shares.get(size, 0.0) + 1.0
    if shares:
        shares[float(np.prod(layers[-1].outputs[0])) * bytes_per_element * tensor] = 0.5
    return shares

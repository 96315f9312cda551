"""Cost of one micro-batch of training on one device, from the layers of a network of few blocks.

What a device computes, saves and sends is counted once (`count_network`); its times follow from a time model
(`MicroBatchCounts.cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..counting import Layer
from ..counting.kinds import class_of, is_attention, is_grouped_product, is_score_layer
from ..counting.work import COMPILED
from ..timing import Workload
from ..timing.blocks import FUSED_KINDS, stack_constants
from ..timing.causes import HOST
from ..timing.expert_kernels import EXPERT_KERNELS, expert_layers
from ..timing.fine_tuning import find_logits
from ..timing.memory import Memory
from ..timing.terms import Terms
from ..timing.training_options import QUANTIZATION_BANDWIDTH_SHARE, TRAINING_RECIPES, with_update
from .job import Job
from .saved_activations import NUMBER_BYTES, SavedActivations, saved_activations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Booleans = NDArray[np.bool_]

Messages = tuple[tuple[float, float], ...]
"""Pairs of a share of an all-reduce and its bytes; an all-gather or a reduce-scatter is half an all-reduce."""


class DeviceCost(NamedTuple):
    """Cost of one micro-batch on one device, for a block or for the layers outside blocks (embedding, head)."""

    # Time of the forward and the backward pass.
    forward_s: float
    backward_s: float
    # Part of the forward pass that Megatron-LM's selective recomputation repeats: the attention scores and their
    # softmax.
    attention_scores_s: float
    # Part of the forward pass that PyTorch's selective checkpointing repeats, and bytes of the results that it saves:
    # those of attention and of every second product.
    unsaved_s: float
    saved_bytes: float
    # Part of the forward pass that PyTorch's checkpointing of whole blocks does not repeat, see `_unneeded_layers`.
    unneeded_s: float
    update_s: float  # time of the update
    update_bytes: float  # that the update reads and writes
    # Communication between tensor-parallel devices, see `Messages`.
    forward_messages: Messages
    backward_messages: Messages
    # Memory by part.
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    logits_bytes: float
    workspace_bytes: float
    # Part of the forward and of the backward pass that attention takes.
    attention_s: float
    attention_backward_s: float
    products_s: float  # the same of matrix products
    products_backward_s: float
    ring_bytes: float  # keys and values of one device, which context parallelism passes around the ring
    routed_bytes: float  # bytes of the rows sent to experts and back in a forward pass, a row per token and expert
    routings: float  # number of these exchanges
    # Bytes that devices which divide the same experts have together, of all gathers and scatters of a forward pass.
    expert_gathered_bytes: float
    expert_gradient_bytes: float  # part of `gradient_bytes` that belongs to experts
    # Part of `activation_bytes` that recomputation of each of `RECOMPUTE_MODULES` frees, in a tuned stack, shape
    # (modules,)
    freed_bytes: Any = 0.0
    repeated_s: Any = 0.0  # part of the forward pass that it repeats, shape (modules,)


_MESSAGES = ("forward_messages", "backward_messages")

NO_COST = DeviceCost(**{name: () if name in _MESSAGES else 0.0 for name in DeviceCost._fields})  # type: ignore[arg-type]

STATE_FIELDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "update_s", "update_bytes")
"""Fields of a cost that its parameters determine."""


def subtract_costs(total: DeviceCost, part: DeviceCost) -> DeviceCost:
    """Return the cost of `total` minus that of `part`.

    Of the messages, the first one and those at the end belong to `part`.
    """
    difference = {}
    for name in DeviceCost._fields:
        in_total, in_part = getattr(total, name), getattr(part, name)
        if name in _MESSAGES:
            difference[name] = in_total[1 : 1 + len(in_total) - len(in_part)]
        else:
            difference[name] = in_total - in_part
    return DeviceCost(**difference)


def average_costs(weighted_costs: Sequence[tuple[float, DeviceCost]]) -> DeviceCost:
    """Return the weighted mean of costs; weights scale the number of messages, not their size."""
    if len(weighted_costs) == 1:
        return weighted_costs[0][1]
    mean: dict[str, Any] = {}
    for name in DeviceCost._fields:
        if name in _MESSAGES:
            mean[name] = tuple(
                (weight * share, size) for weight, cost in weighted_costs for share, size in getattr(cost, name)
            )
        else:
            mean[name] = sum(weight * getattr(cost, name) for weight, cost in weighted_costs)
    return DeviceCost(**mean)


# What a micro-batch does, apart from its times ------------------------------------------------------------------------


STACK_LOGIT_BYTES = 8
"""Most bytes per logit: itself and its gradient in bf16, and its exponential, in place of a copy in fp32
(``VocabParallelCrossEntropy`` in Megatron-LM). A fused loss needs fewer."""

SEPARATE_BIAS = np.array([20 / 4.5, 24 / 2.5])
"""Bytes that Megatron-LM moves for the bias of the second product of experts, forward and backward, over the counted
ones. Probabilities in fp32 multiply the bias, so that the sum, its concatenation over experts and the cast back move 20
bytes per number, and their gradients 24 (``_apply_bias`` in ``megatron/core/transformer/moe/experts.py``)."""


class StackKernels(NamedTuple):
    """Kernels of a tuned stack."""

    recipe: str | None  # recipe of products whose tensors are quantized by kernels of their own; None for bf16
    experts: str  # implementation of grouped products, one of `EXPERT_KERNELS`; empty without experts
    frozen_bytes: float = NUMBER_BYTES  # bytes per number of the frozen weights of narrow products

    @property
    def fuse_activation(self) -> bool:
        """Whether products of experts contain their activation function and the quantization of its result."""
        return bool(self.experts) and EXPERT_KERNELS[self.experts].fuses_activation

    @property
    def launches_per_expert(self) -> int:
        """Kernels that one product of one expert launches; 0 if a kernel serves all experts."""
        if not self.experts or not EXPERT_KERNELS[self.experts].is_per_expert:
            return 0
        return 1 if self.recipe is None else TRAINING_RECIPES[self.recipe].expert_kernels


class _StackCounts(NamedTuple):
    """What a tuned stack changes."""

    kernels: StackKernels
    # Time of the kernels of a layer in the forward and in the backward pass, shape (2, layers), over those of the layer
    # alone: 0 where other kernels do its work.
    kernels_of: Floats
    launches: Floats  # for single experts, in the forward and in the backward pass, shape (2, layers)
    saved: SavedActivations
    narrowed_bytes: float  # bytes that frozen weights take less than in 16 bits


class MicroBatchCounts(NamedTuple):
    """What a sample or a micro-batch of a network of few blocks computes, saves and sends on one device."""

    workload: Workload
    counted: DeviceCost  # its cost, without times and without what a tuned stack changes
    is_attention: Booleans  # by layer, whether it is attention
    is_product: Booleans  # by layer, whether it is a matrix product
    is_score: Booleans  # by layer, whether it reads or writes attention scores
    unsaved_shares: Floats  # by layer, the share of the results that PyTorch's selective checkpointing computes again
    is_unneeded: Booleans  # by layer, whether PyTorch's checkpointing never computes it again
    quantized_inputs: Floats  # by layer, the numbers that kernels of their own quantize for it
    quantized_gradients: Floats  # the same of gradients
    stack: _StackCounts | None = None  # None without a tuned stack

    def pass_times(self, terms: Terms, job: Job) -> tuple[Floats, Floats]:
        """Return the seconds of the kernels that the stack launches for each layer, forward and backward.

        They are the times of a time model, with those of the kernels that quantize; in a tuned stack without those of
        kernels that others replace.
        """
        forward = terms.seconds_of("forward")
        backward = terms.seconds_of("backward_data", "backward_weight")
        if self.stack is not None:
            launch_s, host_s = _launch_s(job)
            launches_s, hosts_s = self.stack.launches * launch_s, self.stack.launches * host_s
            forward = np.maximum(forward * self.stack.kernels_of[0] + launches_s[0], hosts_s[0])
            backward = np.maximum(backward * self.stack.kernels_of[1] + launches_s[1], hosts_s[1])
        quantize_s = _quantize_s(self.workload, job)
        return forward + self.quantized_inputs * quantize_s, backward + self.quantized_gradients * quantize_s

    def cost(self, terms: Terms, job: Job) -> DeviceCost:
        """Return the cost with the times of a time model."""
        forward, backward = self.pass_times(terms, job)
        cost = self.counted
        if self.stack is not None:
            saved = self.stack.saved
            cost = cost._replace(
                activation_bytes=saved.total_bytes,
                freed_bytes=np.array(saved.freed_bytes),
                repeated_s=saved.repeated_layers @ forward,
            )
        return cost._replace(
            forward_s=float(forward.sum()),
            backward_s=float(backward.sum()),
            update_s=float(terms.seconds_of("update").sum()),
            attention_scores_s=float(forward[self.is_score].sum()),
            unsaved_s=float(self.unsaved_shares @ forward),
            unneeded_s=float(forward[self.is_unneeded].sum()),
            attention_s=float(forward[self.is_attention].sum()),
            attention_backward_s=float(backward[self.is_attention].sum()),
            products_s=float(forward[self.is_product].sum()),
            products_backward_s=float(backward[self.is_product].sum()),
        )

    def of_micro_batch(
        self, workload: Workload, memory: Memory, *, recomputes_scores: bool = False
    ) -> MicroBatchCounts:
        """Return what a micro-batch, with its peak memory, computes, saves and sends, given that of one sample."""
        samples, stack, counted = workload.batch_size, self.stack, self.counted
        parts = _memory_fields(memory)
        if stack is not None:
            parts["logits_bytes"] = min(memory.logits_bytes, samples * counted.logits_bytes)
            parts["parameter_bytes"] -= stack.narrowed_bytes
            saved = stack.saved.without_weights() if recomputes_scores else stack.saved
            stack = stack._replace(saved=saved.times(samples))
        counted = counted._replace(
            saved_bytes=samples * counted.saved_bytes,
            forward_messages=_scale_messages(counted.forward_messages, samples),
            backward_messages=_scale_messages(counted.backward_messages, samples),
            ring_bytes=samples * counted.ring_bytes,
            routed_bytes=samples * counted.routed_bytes,
            expert_gathered_bytes=samples * counted.expert_gathered_bytes,
            **parts,
        )
        return self._replace(
            workload=workload,
            counted=counted,
            quantized_inputs=samples * self.quantized_inputs,
            quantized_gradients=samples * self.quantized_gradients,
            stack=stack,
        )


def _scale_messages(messages: Messages, factor: float) -> Messages:
    return tuple((share, factor * size) for share, size in messages)


def _memory_fields(memory: Memory) -> dict[str, Any]:
    """Return the fields of a cost that the peak memory gives."""
    return {
        "parameter_bytes": memory.parameters_bytes,
        "gradient_bytes": memory.gradients_bytes,
        "optimizer_bytes": memory.optimizer_bytes,
        "activation_bytes": float(memory.activations_bytes),
        "logits_bytes": memory.logits_bytes,
        "workspace_bytes": memory.workspace_bytes,
    }


def _launch_s(job: Job) -> tuple[float, float]:
    """Return the time that a kernel of one expert takes beside its work, and that of its host; a bound has none."""
    if not job.model.is_forecast:
        return 0.0, 0.0
    constants = job.stack_constants or stack_constants()
    factor = job.factor_of(HOST)
    return constants.expert_launch_s * factor, constants.expert_host_s * factor


def _quantize_s(workload: Workload, job: Job) -> float:
    """Return the time in which one number is quantized for all its uses.

    A compiler finds the largest number in the kernel that writes it.
    """
    if workload.options.recipe is None or not job.model.uses_memory:
        return 0.0
    recipe = TRAINING_RECIPES[workload.options.recipe]
    share = QUANTIZATION_BANDWIDTH_SHARE if job.model.is_forecast else 1.0
    moved_bytes = recipe.quantized_bytes - (recipe.maximum_bytes if workload.execution == COMPILED else 0)
    return moved_bytes / (job.machine.device.bandwidth_bytes_per_s * share)


_ALL_REDUCE_SHARES = {
    "copy": {"backward": 1.0},
    "sum": {"forward": 1.0},
    "gather": {"forward": 0.5, "backward": 0.5},
    "scatter": {"forward": 0.5, "backward": 0.5},
}
"""Communication of a tensor-parallel exchange layer per pass, as shares of an all-reduce."""


def count_network(workload: Workload, memory: Memory, element_bytes: int) -> MicroBatchCounts:
    """Count what a network of blocks does in a sample; see `MicroBatchCounts.of_micro_batch`.

    The workload is one sample, with its peak memory; `element_bytes` are those of an element of an activation.
    """
    layers = workload.layers
    keys = workload.network.lengths.keys if workload.network.lengths else 0
    messages: dict[str, list[tuple[float, float]]] = {"forward": [], "backward": []}
    routed_bytes = routings = ring_bytes = expert_gradient_bytes = expert_gathered_bytes = 0.0
    for layer in layers:
        if layer.kind == "exchange":
            function = layer.attributes["function"]
            size = float(max(np.prod(layer.inputs[0]), np.prod(layer.outputs[0]))) * element_bytes
            if function == "all_to_all":
                routed_bytes += size
                routings += 1
            elif function in ("expert_gather", "expert_scatter"):
                expert_gathered_bytes += size
            for direction, share in _ALL_REDUCE_SHARES.get(function, {}).items():
                messages[direction].append((share, size))
        elif is_attention(layer):
            ring_bytes += float(np.prod(layer.inputs[1]) + np.prod(layer.inputs[2])) * element_bytes
        elif is_grouped_product(layer) and not layer.is_frozen:
            expert_gradient_bytes += float(layer.parameters) * element_bytes
    saved_shares = _saved_shares(layers)
    is_unneeded = _unneeded_layers(layers)
    inputs, gradients = _quantized_elements(workload)
    output_elements = np.array([float(np.prod(layer.outputs[0])) for layer in layers])
    updated = with_update(workload.work, layers, workload.precision, workload.options)
    counted = NO_COST._replace(
        update_bytes=float(updated.column("bytes", "update")[0].sum()),
        saved_bytes=float(saved_shares @ output_elements) * element_bytes,
        forward_messages=tuple(messages["forward"]),
        backward_messages=tuple(messages["backward"]),
        **_memory_fields(memory),
        ring_bytes=ring_bytes,
        routed_bytes=routed_bytes,
        routings=routings,
        expert_gathered_bytes=expert_gathered_bytes,
        expert_gradient_bytes=expert_gradient_bytes,
    )
    return MicroBatchCounts(
        workload,
        counted,
        is_attention=np.array([is_attention(layer) for layer in layers]),
        is_product=np.array([class_of(layer) == "gemm" for layer in layers]),
        is_score=np.array([is_score_layer(layer, keys) for layer in layers]),
        unsaved_shares=np.where(is_unneeded, 0.0, 1 - saved_shares),
        is_unneeded=is_unneeded,
        quantized_inputs=inputs,
        quantized_gradients=gradients,
    )


def is_addition(layer: Layer) -> bool:
    """Return whether a layer adds two tensors, such as a residual or a bias."""
    return layer.kind == "add"


def with_stack(network: MicroBatchCounts, kernels: StackKernels) -> MicroBatchCounts:
    """Return a sample of a network with the kernels and the saved tensors of a tuned stack."""
    workload = network.workload
    kernels_of = np.tile([0.0 if layer.kind in FUSED_KINDS else 1.0 for layer in workload.layers], (2, 1))
    launches = np.zeros((2, len(workload.layers)))
    for first, last in expert_layers(workload.layers):
        # The bias of the first product belongs to it; the last layer of the activation function stands for its kernel.
        kernels_of[:, first + 1 : last if kernels.fuse_activation else last - 1] = 0
        for index in range(last + 1, len(workload.layers)):
            if is_addition(workload.layers[index]) and last in workload.layers[index].parents:
                kernels_of[:, index] = 0 if kernels.fuse_activation else SEPARATE_BIAS
    for index, layer in enumerate(workload.layers):
        if is_grouped_product(layer):
            backward_products = 1 if layer.is_frozen else 2  # gradients of data, and of weights that are trained
            launches[:, index] = layer.weights[0][0] * kernels.launches_per_expert * np.array([1, backward_products])
    if kernels.recipe is not None and kernels.fuse_activation:
        inputs, gradients = _quantized_elements(workload, fuses_experts=True)
        network = network._replace(quantized_inputs=inputs, quantized_gradients=gradients)
    saved = saved_activations(workload, kernels.recipe)
    logits = find_logits(workload.network.layers)
    if logits is not None:
        elements = float(np.prod(workload.network.layers[logits].outputs[0]))
        logits_bytes = min(network.counted.logits_bytes, elements * STACK_LOGIT_BYTES)
        network = network._replace(counted=network.counted._replace(logits_bytes=logits_bytes))
    narrowed_bytes = (NUMBER_BYTES - kernels.frozen_bytes) * sum(
        layer.parameters
        for layer, is_narrow in zip(workload.layers, workload.uses_narrow_products, strict=True)
        if is_narrow and layer.is_frozen
    )
    counted = network.counted._replace(parameter_bytes=network.counted.parameter_bytes - narrowed_bytes)
    return network._replace(counted=counted, stack=_StackCounts(kernels, kernels_of, launches, saved, narrowed_bytes))


def _quantized_elements(workload: Workload, fuses_experts: bool = False) -> tuple[Floats, Floats]:
    """Return the elements of a sample that products quantize: inputs and gradients of results, shape (layers,).

    Products that read the same input quantize it once. A product with a frozen weight has no weight gradient, for which
    tensors are quantized a second time along their columns: its tensors count as the part that is left.
    `fuses_experts` says whether the products of experts write the input of the second one, and the gradient of the
    result of the first one, as narrow numbers.
    """
    inputs, gradients = np.zeros((2, len(workload.layers)))
    if workload.options.recipe is None:
        return inputs, gradients
    experts = expert_layers(workload.layers) if fuses_experts else []
    first_products, second_products = {first for first, _ in experts}, {second for _, second in experts}
    once_quantized = TRAINING_RECIPES[workload.options.recipe].once_quantized_share
    reader_of: dict[tuple[int, ...], int] = {}  # the layer that quantizes an input, by its source and shape
    for index, (layer, is_narrow) in enumerate(zip(workload.layers, workload.uses_narrow_products)):
        share = once_quantized if layer.is_frozen else 1.0
        if is_narrow and index not in second_products:
            reader = reader_of.setdefault(layer.parents[:1] + layer.inputs[0], index)
            inputs[reader] = share * float(np.prod(layer.inputs[0]))
        if is_narrow and index not in first_products:
            gradients[index] = share * float(np.prod(layer.outputs[0]))
    return inputs, gradients


def _saved_shares(layers: Sequence[Layer]) -> Floats:
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


_SAVES_NOTHING = ("add", "copy", "dropout", "exchange", "slice", "view")
"""Kinds of layers between the last product of a block and its result that save nothing for their gradients."""


def _unneeded_layers(layers: Sequence[Layer]) -> Booleans:
    """Return the layers of blocks that checkpointing need not compute again, shape (layers,).

    PyTorch stops when all saved tensors of a block exist again (``early_stop`` of ``torch.utils.checkpoint``): before
    the last product, if everything after it saves nothing. Results of experts are saved, to weight them.
    """
    products = [index for index, layer in enumerate(layers) if class_of(layer) == "gemm" and layer.weights]
    is_unneeded = np.zeros(len(layers), dtype=bool)
    last_of_block = {layers[index].place.block: index for index in products if layers[index].place.is_in_block}
    for first in last_of_block.values():
        end = first + 1
        while end < len(layers) and layers[end].kind in _SAVES_NOTHING:
            end += 1
        hidden_size = layers[products[0]].inputs[0][-1]
        is_residual = [is_addition(layer) and layer.outputs[0][-1] == hidden_size for layer in layers[first:end]]
        if any(is_residual):
            is_unneeded[first : first + is_residual.index(True) + 1] = True
    return is_unneeded

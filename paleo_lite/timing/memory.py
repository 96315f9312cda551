"""Peak memory of a training step or of inference, by part; and the largest batch that fits.

Every part is affine in the batch size: activations grow with it, parameters do not. ``docs/training.md`` gives the
formulas and compares them with the memory that frameworks allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..counting import KINDS, MATRIX_KINDS, Layer
from ..counting.kinds import cached_elements
from ..counting.work import PHASES_WITH_GRADIENTS
from ..errors import BadValue
from ..formats import bytes_per_number
from ..machines import Device
from ..units import check_integer, element_bytes
from .liveness import (
    ZERO_BYTES,
    MemoryPlan,
    make_plan,
    peak_backward,
    peak_forward,
    plan_before,
    saved_bytes,
)
from .optimizers import MASTER_BYTES, OPTIMIZERS, embedding_shapes, update_cost
from .quantization import parameter_bytes
from .segments import find_segments
from .training_options import bytes_per_state
from .workload import Workload, cached_for_layers

if TYPE_CHECKING:
    from .liveness import Buffers, Bytes

ZERO_FROM_STAGE = (3, 2, 1)
"""The ZeRO stage from which parameters, gradients and optimizer state are sharded."""

CONTEXT_BYTES = 5 * 10**8
"""Memory of the CUDA context and its kernels."""

FRAGMENTATION_BYTES = 5 * 10**8
"""Allowance for the memory that the allocator rounds up or cannot reuse."""

RESERVE_BYTES = CONTEXT_BYTES + FRAGMENTATION_BYTES
"""Memory of a device that is left free."""

SCRATCH_SHARE = 0.06
"""Scratch memory of convolutions, with what the allocator cannot use again because of it, per byte of the tensors of a
training step: the largest batches of 26 networks that were found by trial on an RTX 3090 allow 0.056 to 0.069 for 25 of
them."""


def usable_bytes(device: Device) -> float:
    """Return the memory of a device that a network may use: all that its driver reports but `RESERVE_BYTES`."""
    return device.reported_memory_bytes - RESERVE_BYTES


def shard_model_state(amounts: Sequence[int], stage: int, shards: Any) -> list[Any]:
    """Return the bytes of parameters, gradients and optimizer state on each device under a ZeRO stage.

    Rajbhandari et al. 2020, section 3 and figure 1: a stage divides its parts by the number of devices, which may be an
    array.
    """
    return [
        -(-amount // shards) if stage >= first_stage else amount
        for amount, first_stage in zip(amounts, ZERO_FROM_STAGE)
    ]


class Memory(msgspec.Struct, frozen=True):
    """Peak memory by part, in bytes."""

    parameters_bytes: int  # parameters, trained and frozen, and the running statistics of batch norms
    gradients_bytes: int  # gradients of the trained parameters
    optimizer_bytes: int  # optimizer state; in mixed precision with the master weights
    # Tensors that the forward pass saves for the backward pass; at inference the largest set of tensors alive at once.
    activations_bytes: int
    inputs_bytes: int  # inputs of the network
    # Further tensors alive at the peak: results that are not saved, gradients of activations, a dequantized weight.
    workspace_bytes: int
    cache_bytes: int = 0  # keys and values of all tokens, of networks that generate text
    # Logits of a language model in training, with their copies and gradients in the loss that are alive at the peak.
    logits_bytes: int = 0
    scratch_bytes: int = 0  # what libraries of convolutions take beside the tensors when a network is trained
    frozen_parameters_bytes: int = 0  # part of `parameters_bytes` that belongs to parameters that are not trained

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        total: int = sum(msgspec.structs.astuple(self)) - self.frozen_parameters_bytes
        return total

    def sharded_bytes(self, parameters: Any, activations: Any = 1.0) -> Any:
        """Return the bytes of a device that holds only fractions of the parameters and activations, and all inputs."""
        model = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        computed = self.activations_bytes + self.workspace_bytes + self.logits_bytes + self.scratch_bytes
        return model * parameters + computed * activations + self.inputs_bytes

    def rows(self) -> list[tuple[str, int]]:
        """Return name and bytes of each part, whose sum is the total."""
        amounts = msgspec.structs.asdict(self)
        frozen = amounts.pop("frozen_parameters_bytes")
        amounts["parameters_bytes"] -= frozen
        rows = [(name.removesuffix("_bytes"), amount) for name, amount in amounts.items()]
        if frozen:
            rows.insert(1, ("frozen parameters", frozen))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {"total_bytes": self.total_bytes, **msgspec.structs.asdict(self)}


class MemoryRemedy(msgspec.Struct, frozen=True):
    """A change with which the same step needs less memory."""

    name: str  # description of the change
    total_bytes: int  # peak memory with the change, at the requested batch size
    fits: bool  # whether it fits then
    largest_batch: int | None  # that fits with the change, in as many micro-batches
    # Step time with the change over the step time without it; None if it was not predicted.
    time_ratio: float | None = None
    options: str = ""  # of `train`, at inference of `predict`, that ask for the change
    largest_micro_batch: int | None = None  # that fits with the change, in any number


class MemoryFit(msgspec.Struct, frozen=True):
    """Comparison of the peak memory with the memory of a device."""

    memory: Memory
    capacity_bytes: float  # memory of the device
    reserve_bytes: float  # part of the device's memory that is left free
    largest_batch: int | None  # None if not even one sample fits
    optimizer: str | None = None  # that `Memory.optimizer_bytes` belongs to; None without training
    micro_batches: int = 1  # micro-batches of a step, of which the largest batch has as many
    remedies: tuple[MemoryRemedy, ...] = ()  # changes that would help, best first; empty if the workload fits

    @property
    def total_bytes(self) -> int:
        """Peak memory in bytes."""
        return self.memory.total_bytes

    @property
    def usable_bytes(self) -> float:
        """Memory of the device without the reserve."""
        return self.capacity_bytes - self.reserve_bytes

    @property
    def largest_micro_batch(self) -> int | None:
        """Largest micro-batch that fits, which limits no batch; None if not even one sample does."""
        return None if self.largest_batch is None else self.largest_batch // self.micro_batches

    @property
    def fits(self) -> bool:
        """Whether the peak memory is at most the usable memory."""
        return self.memory.total_bytes <= self.usable_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            **self.memory.to_dict(),
            "optimizer": self.optimizer,
            "capacity_bytes": self.capacity_bytes,
            "reserve_bytes": self.reserve_bytes,
            "fragmentation_bytes": min(FRAGMENTATION_BYTES, self.reserve_bytes),
            "fits": self.fits,
            "largest_batch": self.largest_batch,
            "largest_micro_batch": self.largest_micro_batch,
            "remedies": [msgspec.structs.asdict(remedy) for remedy in self.remedies],
        }


def peak_memory(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> Memory:
    """Return the peak memory on one device.

    The workload has the batch size of a step on this device, all micro-batches together. The phases ``inference`` and
    ``forward`` save nothing; every other phase is a training step. The ZeRO stage says which state is sharded across
    `shards` devices: none, the optimizer's, gradients too, parameters too (Rajbhandari et al. 2020, ZeRO).
    """
    batch_size = workload.batch_size
    micro_batch_size = batch_size
    if workload.phase in PHASES_WITH_GRADIENTS:
        micro_batch_size = workload.options.micro_batch(batch_size)
    return memory_by_micro_batch(workload, zero_stage=zero_stage, shards=shards)(micro_batch_size)


def paged_out_bytes(workload: Workload, device: Device) -> int:
    """Return the bytes of optimizer state for which a device has no room at the peak, and which may leave it."""
    if workload.phase not in PHASES_WITH_GRADIENTS or not OPTIMIZERS[workload.options.optimizer].is_paged:
        return 0
    memory = peak_memory(workload)
    return min(memory.optimizer_bytes, max(ceil(memory.total_bytes - usable_bytes(device)), 0))


def memory_by_micro_batch(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> Callable[[Any], Memory]:
    """Return a function from the size of a micro-batch, or an array of sizes, to the peak memory."""
    parts = _memory_parts(workload, zero_stage, shards)

    def memory_at(micro_batch_size: Any) -> Memory:
        amounts = {}
        for name, part in parts.items():
            amount: Any = part.fixed
            if part.per_sample:
                amount = part.fixed + micro_batch_size * part.per_sample
            amounts[name] = amount
        return Memory(**amounts)

    return memory_at


def memory_coefficients(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> tuple[int, int]:
    """Return the bytes that do not depend on the batch size, and the bytes per sample of a micro-batch.

    Paged optimizer state is not counted, as all of it may leave the device.
    """
    parts = _memory_parts(workload, zero_stage, shards)
    del parts["frozen_parameters_bytes"]  # is part of the parameters
    if OPTIMIZERS[workload.options.optimizer].is_paged:
        del parts["optimizer_bytes"]
    return sum(part.fixed for part in parts.values()), sum(part.per_sample for part in parts.values())


def largest_batch(workload: Workload, *, memory_bytes: float, zero_stage: int = 0, shards: int = 1) -> int | None:
    """Return the largest batch size with a peak memory of at most `memory_bytes`; None if not even one sample fits.

    With gradient accumulation it is the largest micro-batch times the number of micro-batches.
    """
    fixed, per_sample = memory_coefficients(workload, zero_stage=zero_stage, shards=shards)
    if not per_sample:
        raise BadValue("the memory of this network does not depend on the batch size, so that there is no largest one")
    micro_batch_size = int((memory_bytes - fixed) // per_sample)
    if micro_batch_size < 1:
        return None
    if workload.phase in PHASES_WITH_GRADIENTS:
        return micro_batch_size * workload.options.accumulation
    return micro_batch_size


class AffineBytes(NamedTuple):
    """Bytes as a function of the micro-batch size: ``fixed + per_sample * size``."""

    per_sample: int
    fixed: int


def _memory_parts(workload: Workload, stage: int, shards: int) -> dict[str, AffineBytes]:
    """Return the parts of `Memory` by name."""
    if stage not in (0, 1, 2, 3):
        raise BadValue(f"the ZeRO stage must be 0, 1, 2 or 3 (got {stage!r})")
    check_integer("the number of shards", shards, 1)
    layers, number_bytes = workload.saving_layers, element_bytes(workload.precision)
    if workload.phase not in PHASES_WITH_GRADIENTS:
        tensors = cached_for_layers(_inference_tensors, layers, number_bytes)
        return {**_model_parts(workload, 0, shards), **tensors}
    return {**_model_parts(workload, stage, shards), **_step_parts(workload)}


def _model_parts(workload: Workload, stage: int, shards: int) -> dict[str, AffineBytes]:
    """Return the parts of the memory that do not depend on the batch: parameters, gradients and optimizer state."""
    parameters, gradients, optimizer = shard_model_state(device_state_bytes(workload), stage, shards)
    frozen = 0
    if workload.phase in PHASES_WITH_GRADIENTS:
        frozen = shard_model_state((_frozen_bytes(workload), 0, 0), stage, shards)[0]
    return {
        "parameters_bytes": AffineBytes(0, parameters + _statistics_bytes(workload)),
        "gradients_bytes": AffineBytes(0, gradients),
        "optimizer_bytes": AffineBytes(0, optimizer),
        "frozen_parameters_bytes": AffineBytes(0, frozen),
    }


def _statistics_bytes(workload: Workload) -> int:
    """Return the bytes of the running mean and the running variance that a batch norm keeps per channel."""
    number_bytes = element_bytes(workload.precision)
    if workload.options.mixed_precision:
        number_bytes = max(number_bytes, 4)
    return cached_for_layers(_running_statistics, workload.saving_layers) * number_bytes


def _running_statistics(layers: Sequence[Layer]) -> int:
    """Return how many running means and running variances the batch norms of layers keep."""
    return sum(
        2 * layer.inputs[0][1] for layer in layers if layer.kind in KINDS and KINDS[layer.kind].has_running_statistics
    )


def _step_parts(workload: Workload) -> dict[str, AffineBytes]:
    """Return the parts of the memory of a training step that grow with the batch, and what is alive beside them."""
    layers, number_bytes, options = workload.saving_layers, element_bytes(workload.precision), workload.options
    tensors = cached_for_layers(
        _training_tensors,
        layers,
        number_bytes,
        options.checkpointing,
        workload.network.lengths is not None,
        bool(options.fused_loss),
    )
    parts = dict(tensors)  # what is cached stays as it is
    logits = parts["logits_bytes"]
    parts["logits_bytes"] = AffineBytes(logits.per_sample // options.loss_chunks, logits.fixed // options.loss_chunks)
    extra_bytes = 0
    if options.accumulation > 1:  # the new gradient of a weight is alive until it is added to the old one
        trained = [prod(weight) for layer in layers if not layer.is_frozen for weight in layer.weights]
        extra_bytes += max(trained, default=0) * number_bytes
    if workload.weights is not None:  # a dequantized weight is alive during its product
        extra_bytes += cached_for_layers(_frozen_weights, layers).largest_quantized * number_bytes
    workspace = parts["workspace_bytes"]
    parts["workspace_bytes"] = workspace._replace(fixed=workspace.fixed + extra_bytes)
    if cached_for_layers(_is_convolutional, layers):
        of_step = [parts[name] for name in ("activations_bytes", "inputs_bytes", "workspace_bytes")]
        parts["scratch_bytes"] = AffineBytes(*(int(SCRATCH_SHARE * sum(amounts)) for amounts in zip(*of_step)))
    return parts


def _is_convolutional(layers: tuple[Layer, ...]) -> bool:
    """Return whether convolutions write more than half of what the products of a network write."""
    written = [(layer.kind, prod(layer.outputs[0])) for layer in layers if layer.kind in MATRIX_KINDS and layer.outputs]
    of_convolutions = sum(size for kind, size in written if KINDS[kind].group == "convolution")
    return 2 * of_convolutions > sum(size for _, size in written)


def _inference_tensors(layers: tuple[Layer, ...], number_bytes: int) -> dict[str, AffineBytes]:
    """Return the parts of the memory of inference that are not the model's."""
    plan = cached_for_layers(make_plan, layers, number_bytes, False)
    cached = cached_elements(layers)
    return {
        "activations_bytes": AffineBytes(*peak_forward(plan)),
        "inputs_bytes": _input_bytes(plan.graph),
        "workspace_bytes": AffineBytes(0, 0),
        "cache_bytes": AffineBytes(cached * number_bytes, 0),
    }


def _training_tensors(
    layers: tuple[Layer, ...], number_bytes: int, checkpointing: str, reads_tokens: bool, fused_loss: bool
) -> dict[str, AffineBytes]:
    """Return the parts of the memory of a training step that are not the model's.

    The logits are the difference between the peak of a language model with its head and loss, and without them.
    """
    head = None
    if reads_tokens:
        from .fine_tuning import find_logits

        head = find_logits(layers)
    if head is None:
        plan = cached_for_layers(make_plan, layers, number_bytes)
        graph, logits = plan.graph, ZERO_BYTES
        peak, saved = _peak_of_step(layers, plan, checkpointing)
    else:
        with_loss, body = cached_for_layers(_plans_with_loss, layers, number_bytes, head, fused_loss)
        peak_with_loss, _ = _peak_of_step(*with_loss, checkpointing)
        peak, saved = _peak_of_step(*body, checkpointing)
        graph, logits = with_loss[1].graph, peak_with_loss - peak  # the loss reads no input of the network
    return {
        "activations_bytes": AffineBytes(*saved),
        "inputs_bytes": _input_bytes(graph),
        "workspace_bytes": AffineBytes(*(peak - saved)),
        "logits_bytes": AffineBytes(*logits),
    }


def _plans_with_loss(
    layers: tuple[Layer, ...], number_bytes: int, head: int, fused_loss: bool
) -> tuple[tuple[tuple[Layer, ...], MemoryPlan], tuple[tuple[Layer, ...], MemoryPlan]]:
    """Return the layers of a language model with its loss, and those before its head, each with their plan."""
    from .fine_tuning import append_loss

    with_loss = append_loss(layers, number_bytes, fused=fused_loss)
    plan = make_plan(with_loss, number_bytes)
    return (with_loss, plan), (layers[:head], plan_before(plan, head))


def _peak_of_step(layers: Sequence[Layer], plan: MemoryPlan, checkpointing: str) -> tuple[Bytes, Bytes]:
    """Return the peak bytes of forward and backward pass, and the bytes of saved tensors at that time."""
    peak, saved = ZERO_BYTES, ZERO_BYTES
    for start, end, kept_buffers, kept_bytes in find_segments(layers, plan, checkpointing):
        forward = peak_forward(plan, start, end, kept_buffers, keep_saved=True)
        highest = kept_bytes + max(forward, peak_backward(plan, start, end, kept_buffers), key=tuple)
        if tuple(highest) >= tuple(peak):
            peak, saved = highest, kept_bytes + saved_bytes(plan, start, end, kept_buffers)
    return peak, saved


def _input_bytes(graph: Buffers) -> AffineBytes:
    return AffineBytes(sum(graph.buffers[index].size for index in graph.inputs), 0)


class FrozenWeights(NamedTuple):
    """Numbers of parameters that a training step does not train."""

    parameters: int  # of all frozen layers
    quantized_elements: int  # of the weights among them that are stored in a narrower format, if any is
    largest_quantized: int  # elements of the largest of these weights


def _frozen_weights(layers: tuple[Layer, ...]) -> FrozenWeights:
    """Return the numbers of parameters that a training step of these layers does not train."""
    from .fine_tuning import is_quantized

    frozen = sum(layer.parameters for layer in layers if layer.is_frozen)
    quantized = [layer for layer, narrow in zip(layers, is_quantized(layers)) if narrow]
    elements = sum(prod(layer.weights[0]) for layer in quantized if layer.parameters)
    largest = max((prod(layer.weights[0]) for layer in quantized), default=0)
    return FrozenWeights(frozen, elements, largest)


def _frozen_bytes(workload: Workload) -> int:
    """Return the bytes of the parameters that are not trained, in their storage format."""
    number_bytes = element_bytes(workload.precision)
    frozen = cached_for_layers(_frozen_weights, workload.trained_layers)
    frozen_bytes = frozen.parameters * number_bytes
    if workload.weights is not None and frozen.parameters:
        frozen_bytes -= int(frozen.quantized_elements * (number_bytes - bytes_per_number(workload.weights)))
    return frozen_bytes


def model_bytes(workload: Workload) -> tuple[int, int, int]:
    """Return the bytes of parameters, gradients and optimizer state on one device.

    Rajbhandari et al. 2020, section 3: in mixed precision 2 + 2 + K bytes per parameter with K = 12 for Adam (fp32
    master weight, momentum, variance).
    """
    number_bytes, options = element_bytes(workload.precision), workload.options
    if workload.phase not in PHASES_WITH_GRADIENTS:
        layers, stored = workload.layers, workload.stored_format
        arguments = workload.precision, stored, workload.reads_tokens
        return cached_for_layers(parameter_bytes, layers, *arguments), 0, 0
    trained_layers = [layer for layer in workload.trained_layers if layer.parameters and not layer.is_frozen]
    trained = sum(layer.parameters for layer in trained_layers)
    optimizer = OPTIMIZERS[options.optimizer]
    state_elements = trained * optimizer.state_per_parameter
    if optimizer.matrix_rule:
        tables = embedding_shapes(workload.layers)
        state_elements = sum(update_cost(optimizer, layer, tables).state_elements for layer in trained_layers)
    state_bytes = ceil(state_elements * bytes_per_state(options, workload.precision))
    if options.mixed_precision:
        state_bytes += trained * MASTER_BYTES
    gradient_bytes = MASTER_BYTES if options.fp32_gradients else number_bytes
    return trained * number_bytes + _frozen_bytes(workload), trained * gradient_bytes, state_bytes


def device_state_bytes(workload: Workload) -> tuple[int, int, int]:
    """Return the bytes of parameters, gradients and optimizer state that are in the memory of the device.

    With offloading gradients leave the device layer by layer, and with their release they are freed layer by layer, so
    that only those of the largest layer stay.
    """
    parameters, gradients, optimizer = model_bytes(workload)
    is_offloaded = workload.options.offload != "none"
    if workload.phase not in PHASES_WITH_GRADIENTS or not (is_offloaded or workload.options.gradient_release):
        return parameters, gradients, optimizer
    sizes = [layer.parameters for layer in workload.trained_layers if not layer.is_frozen]
    gradients_of_layer = gradients * max(sizes, default=0) // max(sum(sizes), 1)
    return parameters, gradients_of_layer, 0 if is_offloaded else optimizer

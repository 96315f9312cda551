"""A training step of a network in blocks on one device, layer by layer: what `train` answers for one device.

The layers are those of the whole network, and the kernels those of its software stack. Outside of tuned stacks the host
is that of PyTorch on a single device: the hosts in `paleo_lite.timing.blocks` are those of frameworks for many devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..counting.kinds import is_attention
from ..counting.work import MEGATRON
from ..errors import BadValue, DoesNotFit
from ..machines import Machine
from ..timing import Prediction, TimeModel, Workload, predict
from ..timing.attention import is_fused_attention
from ..timing.blocks import KERNEL_NOTE, stack_constants
from ..timing.capacity import (
    CandidateRemedy,
    RemedyAnswers,
    ShardedStep,
    compare_memory,
    fit_memory,
    too_large_message,
)
from ..timing.memory import RESERVE_BYTES, Memory, MemoryFit, memory_by_micro_batch, usable_bytes
from ..timing.optimizers import OPTIMIZERS
from ..timing.predicting import StackOfStep
from ..timing.terms import RECOMPUTE, Terms
from ..timing.training import micro_batch
from .blocks import block_shape, build_network, model_of_kernels, stack_kernels
from .device_cost import MicroBatchCounts, StackKernels, count_network, with_stack
from .job import Job, Step
from .links import Topology
from .parallel_config import STACKS, ParallelConfig
from .saved_activations import RECOMPUTE_MODULES
from .settings import Settings
from .stage_communication import dispatcher_of
from .stage_memory import copied_bytes, peak_memory_bytes, stage_memories
from .step_plan import Plan, exposed_copies_s, plan_step

Floats = NDArray[np.float64]

ALONE = Topology(None, 1, None, 1, None)
"""One device, which sends nothing."""

_OF_SEGMENTS = ("sqrt", "all")
"""Checkpointing whose segments are not blocks."""


def runs_in_blocks(workload: Workload) -> bool:
    """Return whether a workload is a training step of a language model in blocks under one of `STACKS`."""
    network = workload.network
    if workload.phase != "training" or workload.execution not in STACKS or not network.is_language_model:
        return False
    return network.rebuild is not None and network.blocks > 0


class StepAlone(NamedTuple):
    """A step on one device, with its memory."""

    prediction: Prediction
    plan: Plan
    copies_s: float  # time in which it waits for copies of activations
    is_saved_by_layers: bool  # whether the tensors of layers, or of their segments, are all that it saves

    def with_remedies(
        self,
        answers: RemedyAnswers | None = None,
        shard: Callable[[CandidateRemedy], ShardedStep | None] | None = None,
    ) -> Prediction:
        """Return the prediction, with what would make it fit if it does not, as `fit_memory` does."""
        prediction = self.prediction
        if not self.is_saved_by_layers:
            return prediction
        fit = fit_memory(prediction.workload, prediction.machine, prediction.model, prediction, answers, shard)
        return msgspec.structs.replace(prediction, memory=fit)

    def as_step(self, factor: float) -> Step:
        """Return the step in the terms of many devices, with its passes longer by a factor."""
        prediction, terms = self.prediction, self.prediction.terms
        update_s, recompute_s = (float(terms.seconds_of(name).sum()) for name in ("update", RECOMPUTE))
        is_offloaded = prediction.workload.options.offload != "none"
        overheads_s = {
            "activation recomputation": recompute_s * factor,
            "offload of activations": self.copies_s * factor,
            "update on the host": update_s if is_offloaded else 0.0,
        }
        assert prediction.memory is not None
        step = Step(
            compute_s=(prediction.time_s - update_s) * factor,
            update_s=update_s,
            memory_bytes=float(prediction.memory.total_bytes),
            collective=self.plan.config.describe_degrees(1),
            notes=tuple(self.plan.notes),
            recomputed_fraction=prediction.recomputed_fraction,
            overheads_s={name: seconds for name, seconds in overheads_s.items() if seconds},
            activity=prediction.activity,
        )
        if prediction.interval is None:
            return step
        low_s, high_s = prediction.interval
        relative = step.time_s / prediction.time_s
        return msgspec.structs.replace(step, interval=(low_s * relative, high_s * relative))


def predict_alone(job: Job, batch_size: int, settings: Settings) -> StepAlone:
    """Predict a step on one device, with its memory.

    Raise BadValue if the batch cannot be divided into the micro-batches of the settings.
    """
    return job.cached(_predict_alone, batch_size, settings.parallel or ParallelConfig())


def predict_largest(job: Job, settings: Settings) -> StepAlone:
    """Predict the step of the largest batch that fits; raise DoesNotFit if not even one sample per micro-batch does."""
    number = (settings.parallel or ParallelConfig()).micro_batches or 1
    least = predict_alone(job, number, settings)
    memory = least.prediction.memory
    assert memory is not None
    if memory.largest_batch is None:
        with_remedies = least.with_remedies()
        assert with_remedies.memory is not None
        raise DoesNotFit(too_large_message(with_remedies.workload, job.machine, with_remedies.memory))
    return predict_alone(job, memory.largest_batch, settings)


def _predict_alone(job: Job, batch_size: int, parallel: ParallelConfig) -> StepAlone:
    """Return the step, and its plan."""
    plan = plan_step(job, ALONE, batch_size, Settings(parallel=parallel))
    workload, kernels = _whole_workload(job, plan, batch_size), stack_kernels(job, plan.config)
    optimizer = workload.options.optimizer
    if kernels[0] is not None and OPTIMIZERS[optimizer].is_paged:
        raise BadValue(
            f"Megatron-LM has no paged optimizers: give `--execution eager` or compiled for `--optimizer {optimizer}`"
        )
    counted = _count_micro_batch(job, workload, kernels)

    def evaluate(micro: Workload, machine: Machine, model: TimeModel) -> Terms:
        timed = job if model.is_forecast == job.model.is_forecast else job.with_time_model(model)
        return _mean_terms([_terms(timed, *pair, micro, machine) for pair in zip(kernels, counted)])

    shares = _recomputed_shares(workload, plan.config, counted[0])
    model = model_of_kernels(job, kernels[0], job.model)
    prediction = predict(workload, job.machine, model, StackOfStep(evaluate, shares))
    copied = copied_bytes(plan.stages[0], plan.config, plan.costs.hidden_state_bytes) * plan.layout.micro_batches
    copies_s = exposed_copies_s(job, copied, prediction.time_s)
    if copies_s:
        terms = msgspec.structs.replace(prediction.terms, overhead_s=prediction.terms.overhead_s + copies_s)
        prediction = msgspec.structs.replace(prediction, terms=terms)
    if kernels[0] is not None:
        prediction = _with_stack_notes(prediction)
    is_saved_by_layers = _is_saved_by_layers(workload, plan.config, kernels)
    if is_saved_by_layers:
        fit = compare_memory(workload, job.machine, prediction.model)
    else:
        fit = _planned_fit(job, plan, workload, parallel)
    return StepAlone(msgspec.structs.replace(prediction, memory=fit), plan, copies_s, is_saved_by_layers)


# What a micro-batch does ----------------------------------------------------------------------------------------------


def _whole_workload(job: Job, plan: Plan, batch_size: int) -> Workload:
    """Return the workload of the step, with what its plan says of kernels, micro-batches and recomputation."""
    config, shape = plan.config, block_shape(job, plan.config)
    network, options = job.workload.network, job.workload.options
    is_fused = is_fused_attention(shape.attention)
    has_other_attention = bool(is_fused) and not any(map(is_attention, network.layers))
    if has_other_attention or shape.loops_over_experts or shape.expert_load != 1:
        network = build_network(network, shape, None, is_fused)
    checkpointing = options.checkpointing
    if config.recompute == "full" and config.recompute_every == 1:
        checkpointing = "block"
    training = msgspec.structs.replace(
        options,
        accumulation=plan.layout.micro_batches,
        checkpointing=checkpointing,
        fused_loss=shape.fuses_loss,
    )
    return job.workload.with_changes(
        network=network,
        training=training,
        batch_size=batch_size,
        execution=shape.execution,
        attention=shape.attention,
    )


def _count_micro_batch(job: Job, workload: Workload, kernels: Sequence[StackKernels | None]) -> list[MicroBatchCounts]:
    """Count a micro-batch of the whole network, with each of the possible kernels of the stack."""
    size = workload.options.micro_batch(workload.batch_size)
    memory = memory_by_micro_batch(workload)
    sample = count_network(workload.with_changes(batch_size=1), memory(1), job.element_bytes)
    of_samples = [sample if stack is None else with_stack(sample, stack) for stack in kernels]
    micro = micro_batch(workload, job.machine)
    return [of_sample.of_micro_batch(micro, memory(size)) for of_sample in of_samples]


def _terms(
    job: Job, kernels: StackKernels | None, counted: MicroBatchCounts, workload: Workload, machine: Machine
) -> Terms:
    """Return the times of a micro-batch with the kernels of a stack."""
    terms = model_of_kernels(job, kernels, job.model).evaluate(workload, machine)
    forward_s, backward_s = counted.pass_times(terms, job)
    seconds = terms.layers_s.copy()
    first, *gradients = (terms.passes.index(name) for name in ("forward", "backward_data", "backward_weight"))
    seconds[first] = forward_s
    of_gradients = seconds[gradients]
    total_s = of_gradients.sum(axis=0)
    is_timed = total_s > 0
    seconds[gradients] = of_gradients * np.where(is_timed, backward_s / np.where(is_timed, total_s, 1.0), 0.0)
    seconds[gradients[0]] += np.where(is_timed, 0.0, backward_s)
    return msgspec.structs.replace(terms, layers_s=seconds)


def _mean_terms(alternatives: Sequence[Terms]) -> Terms:
    """Return the mean of alternative times; the scatter between the alternatives increases their deviation."""
    first = alternatives[0]
    if len(alternatives) == 1:
        return first
    mean = np.mean([terms.layers_s for terms in alternatives], axis=0)
    deviation = first.deviation
    if deviation is not None:
        scatter = float(np.std([math.log(terms.time_s) for terms in alternatives]))
        deviation = math.hypot(deviation, scatter)
    return msgspec.structs.replace(first, layers_s=mean, deviation=deviation)


def _recomputed_shares(workload: Workload, config: ParallelConfig, counted: MicroBatchCounts) -> Floats | None:
    """Return the share of each layer's forward pass that recomputation repeats; None for that of segments."""
    if workload.options.checkpointing in _OF_SEGMENTS:
        return None
    if config.recompute in ("full", "offload"):
        in_block = np.array([layer.place.is_in_block for layer in workload.layers])
        if config.execution != MEGATRON:
            in_block &= ~counted.is_unneeded
        return in_block / config.recompute_every
    if config.recompute_modules and counted.stack is not None:
        chosen = np.array([name in config.recompute_modules for name in RECOMPUTE_MODULES])
        return (chosen @ counted.stack.saved.repeated_layers).astype(np.float64)
    if config.recompute == "selective":
        return counted.is_score.astype(np.float64) if config.execution == MEGATRON else counted.unsaved_shares
    return np.zeros(len(workload.layers))


def _with_stack_notes(prediction: Prediction) -> Prediction:
    """Return a prediction that names the tuned stack as the origin of its kernels."""
    notes = tuple(note for note in prediction.notes if not note.startswith(KERNEL_NOTE))
    if prediction.is_forecast:
        notes = (*notes, stack_note())
    return msgspec.structs.replace(prediction, notes=notes)


def stack_note() -> str:
    """Return the note on the kernels of a tuned stack."""
    return (
        f"{KERNEL_NOTE} a tuned stack (Megatron-LM with Transformer Engine), fitted to "
        f"{stack_constants().kernels.points} steps of published pre-training"
    )


# Memory ---------------------------------------------------------------------------------------------------------------


def _is_saved_by_layers(workload: Workload, config: ParallelConfig, kernels: Sequence[StackKernels | None]) -> bool:
    """Return whether the tensors of the layers, or of their segments, are all that a step saves."""
    if workload.options.checkpointing in _OF_SEGMENTS:
        return True
    is_whole = config.recompute in ("", "none") or (config.recompute == "full" and config.recompute_every == 1)
    return kernels[0] is None and is_whole and not config.offloaded_share


def _planned_fit(job: Job, plan: Plan, workload: Workload, parallel: ParallelConfig) -> MemoryFit:
    """Return the memory of a plan compared with that of the device."""
    return MemoryFit(
        _planned_memory(job, plan, workload),
        job.machine.device.reported_memory_bytes,
        RESERVE_BYTES,
        _largest_batch(job, plan, parallel),
        workload.options.optimizer,
        plan.layout.micro_batches,
    )


def _planned_memory(job: Job, plan: Plan, workload: Workload) -> Memory:
    """Return the memory of a plan by part."""
    stage, hidden_bytes = plan.stages[0], plan.costs.hidden_state_bytes
    offloads = workload.options.offload != "none"
    memory, *_ = memories = stage_memories(
        plan.stages, ALONE, plan.config, plan.layout, hidden_bytes, 1.0, dispatcher_of(job, plan.config), offloads
    )
    parameters, gradients, optimizer = map(int, stage.model_state_bytes)
    if offloads:
        gradients, optimizer = int(memory.fixed_bytes) - parameters, 0
    total = int(peak_memory_bytes(memories, plan.config, hidden_bytes))
    logits, workspace = int(stage.outer.logits_bytes), int(stage.outer.workspace_bytes)
    frozen_share = 1 - job.workload.trainable_parameters / max(job.workload.network.parameters, 1)
    return Memory(
        parameters_bytes=parameters,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=total - parameters - gradients - optimizer - logits - workspace,
        inputs_bytes=0,
        workspace_bytes=workspace,
        logits_bytes=logits,
        frozen_parameters_bytes=int(parameters * max(frozen_share, 0.0)),
    )


def _largest_batch(job: Job, plan: Plan, parallel: ParallelConfig) -> int | None:
    """Return the largest batch whose plan fits; None if not even one sample per micro-batch does."""
    number, available_bytes = plan.layout.micro_batches, usable_bytes(job.machine.device)

    def fits(size: int) -> bool:
        changed = msgspec.structs.replace(parallel, micro_batches=number, micro_batch_size=1)
        sized = plan_step(job, ALONE, size * number, Settings(parallel=changed))
        return _planned_memory(job, sized, job.workload).total_bytes <= available_bytes

    if not fits(1):
        return None
    largest, beyond = 1, 2
    while fits(beyond):
        largest, beyond = beyond, 2 * beyond
    while beyond - largest > 1:
        middle = (largest + beyond) // 2
        largest, beyond = (middle, beyond) if fits(middle) else (largest, middle)
    return largest * number

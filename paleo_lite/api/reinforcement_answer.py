"""From a step of reinforcement learning to its answer: memory, cost, energy, notes, settings of the framework."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from ..calibration.power_causes import learned_device
from ..calibration.store import evidence_of
from ..errors import BadValue
from ..machines.prices import choose_price
from ..reinforcement.answer import RlAnswer, RlTotals
from ..reinforcement.settings import Described, settings_notes, settings_text
from ..reinforcement.step import OF_TRAINER
from ..reinforcement.weights import has_host_link
from ..serving.launch import why_not_run
from ..timing import describe_model
from ..timing.activity import Activity
from ..timing.energy import power_of
from ..timing.memory import usable_bytes
from ..timing.notes import range_notes
from ..timing.predicting import predict
from ..units import format_si
from .reinforcement import Predicted, describe_evidence, packed_tokens, samples_of_rank

if TYPE_CHECKING:
    from ..questions.rl_options import Rl
    from ..reinforcement.frameworks import Framework
    from ..reinforcement.trainer import TrainerTimes


FORWARD_SHARE = 1 / 3
"""A forward pass relative to a training pass: 2 of 6 FLOPs per parameter and token (Kaplan et al. 2020)."""


def make_answer(predicted: Predicted) -> RlAnswer:
    """Return a step as an answer."""
    question, devices, parts, step = predicted.question, predicted.devices, predicted.parts, predicted.step
    trainer, rollouts, network = parts.trainer, parts.rollouts, predicted.job.workload.network
    device = devices.device
    price = question.price_usd_per_h
    if price is None:
        listing = choose_price(device, question.price_of, devices.price)
        price = None if listing is None else listing.usd_per_h
    rollout_bytes = rollout_bytes_of(predicted)
    described = _describe(predicted)
    sentences = describe_evidence(question, devices, predicted.job, predicted.deployment)
    learned = learned_device(device, network.name, evidence_of(question.calibration))
    answer = RlAnswer(
        network=network.name,
        gpu=device.id,
        gpu_name=device.name,
        precision=question.precision,
        rollout_precision=question.used_rollout_precision,
        algorithm=question.algorithm,
        framework=question.framework,
        execution=question.execution,
        devices=devices.total,
        trainer_devices=devices.trainer,
        rollout_devices=devices.rollouts,
        is_colocated=devices.is_colocated,
        steps_off=question.used_steps_off,
        time_s=step.time_s,
        interval=step.interval,
        bound_s=_bound_s(predicted),
        phases=step.phases,
        exposed=step.exposed_s,
        trainer_s=step.trainer_s,
        rollouts_s=step.rollouts_s,
        limited_by=step.bounded_by,
        samples=question.samples,
        mean_tokens=predicted.mean_tokens,
        updates=question.updates_per_step,
        rollouts=rollouts,
        trainer=trainer.description,
        bubble=trainer.bubble_share,
        imbalance=trainer.imbalance,
        trainer_bytes=trainer.memory_bytes,
        rollout_bytes=rollout_bytes,
        usable_bytes=usable_bytes(device),
        transferred_bytes=0.0 if parts.transfer is None else parts.transfer.bytes,
        gathered_bytes=0.0 if parts.transfer is None else parts.transfer.gathered_bytes,
        tensors=0 if parts.transfer is None else parts.transfer.tensors,
        price_usd_per_h=price,
        totals=None,
        divisions=[],
        settings=settings_text(question.framework, described),
        model="; ".join((describe_model(predicted.job.model), *sentences)),
        notes=(*_notes(predicted), *settings_notes(question.framework, described)),
        calibration="; ".join(sentences) or predicted.job.model.label or None,
        activity=_activity(predicted),
        power=power_of(learned, has_experts=predicted.job.workload.has_experts),
        facility=question.facility,
    )
    answer = msgspec.structs.replace(answer, notes=(*answer.notes, *range_notes(answer, device)))
    steps = _steps(question)
    if steps is None:
        return answer
    hours = steps * answer.time_s / 3600
    totals = RlTotals(
        steps,
        hours,
        None if price is None else hours * answer.devices * price,
        None if answer.energy_j is None else steps * answer.energy_j / 3.6e6,
    )
    return msgspec.structs.replace(answer, totals=totals)


def _describe(predicted: Predicted) -> Described:
    """Return a step as the settings of a framework describe it."""
    question, devices, setup = predicted.question, predicted.devices, predicted.setup
    return Described(
        algorithm=question.algorithm,
        prompts=question.prompts,
        samples_per_prompt=question.used_samples_per_prompt,
        updates=question.updates_per_step,
        prompt_tokens=question.prompt_tokens,
        max_tokens=question.prompt_tokens + question.longest_response,
        micro_batch=predicted.parts.trainer.samples_per_micro_batch,
        micro_batch_tokens=packed_tokens(question),
        samples_of_rank=samples_of_rank(question, devices),
        tensor=question.tensor,
        pipeline=question.pipeline,
        context_parallel=question.context_parallel,
        expert_parallel=question.expert_parallel,
        is_megatron=question.uses_megatron,
        precision=question.precision,
        rollout_tensor=question.rollout_tensor,
        rollout_precision=question.used_rollout_precision,
        rollout_devices=devices.rollouts,
        trainer_devices=devices.trainer,
        devices=devices.total,
        devices_per_node=devices.topology.devices_per_node,
        is_colocated=devices.is_colocated,
        steps_off=question.used_steps_off,
        is_eager=question.is_eager,
        memory_fraction=question.memory_fraction(is_colocated=devices.is_colocated),
        has_reference=setup.has_reference,
        offload=question.offload,
        lora=question.lora,
    )


def rollout_bytes_of(predicted: Predicted) -> float:
    """Return the memory of a device in the rollouts, with the state of the trainer that stays beside the engine."""
    rollouts = predicted.parts.rollouts
    if rollouts is None:
        return 0.0
    if not predicted.devices.is_colocated:
        return rollouts.memory_bytes
    return rollouts.memory_bytes + staying_bytes_of(predicted.question.framework_rules, predicted.parts.trainer)


def staying_bytes_of(framework: Framework, trainer: TrainerTimes) -> float:
    """Return the state of the trainer on a device that stays beside an engine on the same device."""
    staying_bytes = 0.0 if framework.offloads_optimizer else trainer.optimizer_bytes
    staying_bytes += 0.0 if framework.offloads_parameters else trainer.parameter_bytes
    return trainer.networks * staying_bytes


def _steps(question: Rl) -> int | None:
    """Return the number of steps that are asked for; None for a single one."""
    steps: int | None = question.steps
    if question.dataset_prompts is None:
        if question.epochs is not None:
            raise BadValue("`--epochs` needs the prompts of the data set: give `--dataset-prompts`")
        return steps
    if steps is not None:
        raise BadValue("give only one of `--steps` and `--dataset-prompts`, which says the number of steps, too")
    number: float = (question.epochs or 1) * float(question.dataset_prompts) / question.prompts
    return math.ceil(number)


def _bound_s(predicted: Predicted) -> float:
    """Return the time in which all devices do the arithmetic of a step at the peak of the data sheet."""
    work = predicted.job.workload.work
    training = float(work.column("flops", "training", 1).sum())
    forward = float(work.column("flops", "forward", 1).sum())
    setup, samples = predicted.setup, float(predicted.question.samples)
    sequences = samples * setup.algorithm.samples_trained
    passes = setup.has_old_log_probs + setup.has_reference + setup.algorithm.has_critic
    flops = sequences * (training * (1 + setup.algorithm.has_critic) + passes * forward)
    if setup.algorithm.rolls_out:
        flops += samples * forward
    peak = predicted.job.machine.peak(predicted.job.workload.options.products or predicted.job.workload.precision)
    return flops / (predicted.devices.total * peak.per_s)


def _activity(predicted: Predicted) -> Activity:
    """Return what a device does in a step on average: decoding, the passes over its part of the samples, and waiting.

    The passes fill the time of their phases at most. In what is left of the step the device waits, for the other side
    or for the host.
    """
    setup, devices, job, phases = predicted.setup, predicted.devices, predicted.job, predicted.step.phases
    alone = predict(job.workload.with_changes(batch_size=1), job.machine, job.model)
    forwards = setup.has_old_log_probs + setup.has_reference
    passes = (1 + setup.algorithm.has_critic) * (1 + forwards * FORWARD_SHARE)
    training_s = sum(phases.get(name, 0.0) for name in OF_TRAINER) * devices.trainer / devices.total
    sequences = predicted.question.samples * setup.algorithm.samples_trained
    activity = _within(alone.activity.times(passes * sequences / devices.total), training_s)
    generation_s = 0.0
    if predicted.parts.rollouts is not None:
        share = devices.rollouts / devices.total
        generation_s = share * phases["generation"]
        # Rollouts of several steps at a time share the iterations that those of one step have for themselves.
        activity = activity.plus(_within(predicted.parts.rollouts.activity.times(share), generation_s))
    waiting_s = max(predicted.step.time_s - training_s - generation_s, 0.0)
    return activity.plus(Activity(offloaded_s=waiting_s))


def _within(activity: Activity, time_s: float) -> Activity:
    """Return an activity that takes a time at most."""
    active_s = float(activity.arithmetic_s + activity.memory_s + activity.links_s)
    return activity.times(min(1.0, time_s / active_s)) if active_s else activity


def _notes(predicted: Predicted) -> tuple[str, ...]:
    """Return remarks for the user."""
    notes = list(predicted.job.workload.network.notes)
    notes += [f"assumed: {assumption}" for assumption in predicted.devices.topology.assumptions]
    rollouts, trainer, setup = predicted.parts.rollouts, predicted.parts.trainer, predicted.setup
    lacking = "" if predicted.deployment is None else why_not_run(predicted.deployment)
    if lacking:
        notes.append(f"rollouts do not run: {lacking}")
    if rollouts is not None and rollouts.waits_for_memory:
        assert predicted.deployment is not None
        most_live = min(rollouts.samples_per_engine, predicted.deployment.replica_engine().max_sequences)
        held = (
            f"the cache of an engine holds {rollouts.most_live:,.0f} of its {rollouts.samples_per_engine:,} samples at "
            "a time: others wait"
        )
        if rollouts.most_live >= most_live:
            held = (
                f"the cache of an engine is too small for the full lengths of {most_live:,} samples at a time: some "
                "are preempted and computed again"
            )
        notes.append(f"{held}; a larger `--rollout-tensor`, or kv-cache=fp8 of `--engine-settings`, holds more")
    per_node = predicted.devices.topology.devices_per_node
    if rollouts is not None and predicted.question.rollout_tensor > per_node:
        notes.append(
            f"an engine is on several nodes of {per_node} devices: every block waits for their network, which "
            f"`--rollout-tensor {per_node}` avoids"
        )
    can_divide = predicted.devices.total > 1  # into those of rollouts and those of the trainer
    if rollouts is not None and not setup.steps_off and can_divide and rollouts.tail_share > 0.25:
        notes.append(
            f"in {rollouts.tail_share:.0%} of the generation fewer than half of the samples are live: `--steps-off` "
            "with `--rollout-workers` hides this tail"
        )
    if trainer.bubble_share > 0.2:
        notes.append(
            f"stages wait for {trainer.bubble_share:.0%} of an update, of {trainer.micro_batches} micro-batches: fewer "
            "`--updates-per-step` or a smaller `--pipeline` shortens it"
        )
    if trainer.waits_for_host:
        notes.append(
            f"updates wait for the host, which gathers {trainer.adapter_units:,} matrices of adapters one by one in "
            "every pass: a larger `--micro-batch` has fewer passes, and strategy=fsdp2 of verl shards whole blocks"
        )
    available = usable_bytes(predicted.devices.device)
    if trainer.memory_bytes is not None and trainer.memory_bytes > available:
        notes.append(
            f"the trainer does not fit: it needs {format_si(trainer.memory_bytes, 'B', 3)} per device of "
            f"{format_si(available, 'B', 3)}"
        )
    if not has_host_link(predicted.devices.device):
        notes.append(
            f"the link of {predicted.devices.device.name} to its host is not on record: state that goes to the host "
            "takes no time here"
        )
    if rollout_bytes_of(predicted) > available:
        notes.append(
            "engine and trainer do not fit beside each other: rollouts need "
            f"{format_si(rollout_bytes_of(predicted), 'B', 3)} per device of {format_si(available, 'B', 3)}"
        )
    if predicted.deployment is not None and predicted.deployment.on_device.kernels is None:
        notes.append("no kernels of the engine are known on this device: its layers are timed one by one")
    return tuple(notes)

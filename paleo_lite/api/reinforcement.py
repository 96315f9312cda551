"""A step of reinforcement learning: its trainer, its engines, and what is between them.

A question is a record `Rl` whose options have single values.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..architectures import Network
from ..calibration.store import evidence_of
from ..distributed.job import Job
from ..distributed.link_causes import learned_topology, link_notes
from ..distributed.links import device_link
from ..distributed.parallel_config import ParallelConfig
from ..distributed.settings import Settings
from ..distributed.step_causes import KIND as TRAINING
from ..distributed.step_causes import learned_job, training_traits
from ..engines.division import Division
from ..engines.records.record import GREEDY
from ..errors import BadDegree, BadValue, DoesNotFit
from ..machines import Device
from ..questions.records import settings_of
from ..reinforcement.constants import RlConstants, rl_constants
from ..reinforcement.lengths import read_lengths, response_lengths
from ..reinforcement.rollouts import Rollouts, Samples, roll_out
from ..reinforcement.step import Parts, RlStep, StepSetup, compose
from ..reinforcement.trainer import Batching, LargestMicroBatch, TrainerTimes, time_trainer
from ..reinforcement.weights import WeightTransfer
from ..serving.cache import NoCacheRoom
from ..serving.deployment import Deployment
from ..serving.drafts import heads_of
from ..serving.options import SimulationOptions, make_speculation
from ..timing.blocks import supports_stack
from ..timing.fine_tuning import adapter_products
from ..timing.training_options import TrainingOptions
from .deployments import Deployments, find_decoder, find_draft
from .question import Question, resolve_question
from .reinforcement_devices import Devices, find_devices, part_of
from .reinforcement_state import (
    has_adapter_units,
    offloaded_state,
    swapped_s,
    transfer_of,
    with_critic,
    with_moved_moments,
)
from .scaling import PARALLEL_3D

if TYPE_CHECKING:
    from ..questions.rl_options import Rl
    from ..reinforcement.lengths import Floats, Ints


class Predicted(NamedTuple):
    """A step with everything that it was made of."""

    question: Rl  # the record `Rl`, with single values
    devices: Devices
    setup: StepSetup
    parts: Parts
    step: RlStep
    job: Job
    deployment: Deployment | None
    mean_tokens: float  # of a sample, prompt and response


class NoRolloutRoom(DoesNotFit):
    """Rollouts that do not fit, with the fraction of the memory with which their engines would, if there is one."""

    def __init__(self, reason: str, sufficient_fraction: float | None = None) -> None:
        super().__init__(reason, sufficient_fraction)
        self.reason, self.sufficient_fraction = reason, sufficient_fraction

    def __str__(self) -> str:
        return self.reason


def predict_rl(question: Rl, constants: RlConstants | None = None) -> Predicted:
    """Return the step that a question asks for; raise PaleoError if its devices cannot be divided so."""
    constants = constants or rl_constants()
    devices = find_devices(question)
    lengths = response_lengths_of(question)
    _check(question, devices)
    jobs = make_jobs(question, devices.device, lengths)
    trainer = time_trainer_of(question, devices, jobs, lengths, constants)
    rollouts, deployment = None, None
    if question.rules.rolls_out:
        deployment = make_deployment(question, devices)
        rollouts = roll_out_samples(question, devices, deployment, lengths, constants)
    return complete(question, devices, jobs.mean, lengths, trainer, rollouts, deployment, constants)


def predict_trainer(question: Rl, constants: RlConstants | None = None) -> TrainerTimes:
    """Return the passes of the trainer alone."""
    devices, lengths = find_devices(question), response_lengths_of(question)
    jobs = make_jobs(question, devices.device, lengths)
    return time_trainer_of(question, devices, jobs, lengths, constants or rl_constants())


def predict_transfer(question: Rl, constants: RlConstants | None = None) -> WeightTransfer:
    """Return the transfer of weights alone."""
    devices = find_devices(question)
    job = make_job(question, devices.device, question.response_tokens)
    return transfer_of(question, devices, job, constants or rl_constants())


def make_setup(question: Rl, devices: Devices) -> StepSetup:
    """Return what the step consists of."""
    algorithm = question.rules
    is_narrow = question.used_rollout_precision != question.precision
    computes_again = question.updates_per_step > 1 or is_narrow or question.framework_rules.recomputes_log_probs
    return StepSetup(
        algorithm,
        question.framework_rules,
        question.samples,
        has_reference=has_reference(question),
        has_old_log_probs=algorithm.has_old_log_probs and computes_again,
        is_colocated=devices.is_colocated,
        steps_off=question.used_steps_off,
        reward_s=settings_of(question.reward).get("seconds"),
    )


def has_reference(question: Rl) -> bool:
    """Return whether probabilities under frozen weights keep the policy near them."""
    wanted = question.rules.has_reference and question.framework_rules.has_reference
    if question.reference is not None:
        wanted = bool(question.reference)
    return wanted and question.rules.can_have_reference


def complete(
    question: Rl,
    devices: Devices,
    job: Job,
    lengths: Ints,  # tokens of every response
    trainer: TrainerTimes,
    rollouts: Rollouts | None,
    deployment: Deployment | None,
    constants: RlConstants | None = None,
) -> Predicted:
    """Return the step of a trainer and of engines, with what is between them."""
    constants = constants or rl_constants()
    setup = make_setup(question, devices)
    transfer = None
    if rollouts is not None:
        transfer = transfer_of(question, devices, job, constants)
    elif setup.has_reference and question.lora is None and not question.framework_rules.swaps_reference:
        memory_bytes = None if trainer.memory_bytes is None else trainer.memory_bytes + trainer.parameter_bytes
        trainer = msgspec.structs.replace(trainer, memory_bytes=memory_bytes)  # the reference stays beside the policy
    parts = Parts(
        rollouts,
        trainer,
        trainer if setup.algorithm.has_critic else None,
        _reward_model_s(question, devices, lengths, constants),
        transfer,
        swapped_s(question, devices, trainer, rollouts, constants, has_reference=setup.has_reference),
    )
    mean_tokens = float(lengths.mean()) + question.prompt_tokens
    step = compose(setup, parts, constants)
    return Predicted(question, devices, setup, parts, step, job, deployment, mean_tokens)


def _check(question: Rl, devices: Devices) -> None:
    """Raise BadValue if the devices of the engines, or the samples of a step, cannot be divided."""
    per_engine = question.rollout_tensor
    if question.rules.rolls_out and devices.rollouts % per_engine:
        raise BadValue(
            f"`--rollout-tensor` must divide the {devices.rollouts} devices of rollouts (got {per_engine} per engine)"
        )
    experts = settings_of(question.engine_settings).get("experts", 1)
    if per_engine % experts:
        raise BadValue(
            f"`--engine-settings experts` must divide the {per_engine} devices of `--rollout-tensor` (got {experts})"
        )
    framework = question.framework_rules
    takes_turns = devices.is_colocated and question.rules.rolls_out
    if question.offload is not None and not (takes_turns or framework.offloads_by_phase):
        raise BadValue(
            f"`--offload` makes room for engines on the devices of the trainer, which no engine shares here: leave it "
            f"out with `--framework {question.framework}`"
        )
    divided = [name for name in ("tensor", "pipeline", "expert_parallel") if getattr(question, name) > 1]
    if divided and not framework.has_megatron:
        raise BadValue(
            f"`--{divided[0].replace('_', '-')}` needs a trainer that divides blocks, which `--framework "
            f"{question.framework}` does not have: leave it out, or give another framework"
        )
    if question.samples % question.updates_per_step:
        raise BadValue(
            f"`--updates-per-step` must divide the {question.samples:,} samples of a step "
            f"(got {question.updates_per_step})"
        )


def response_lengths_of(question: Rl) -> Ints:
    """Return the tokens of every response, in rising order."""
    longest = question.longest_response
    if question.lengths is not None:
        return read_lengths(Path(question.lengths), question.samples, longest)
    return response_lengths(question.samples, question.response_tokens, longest, question.clipped_share)


def length_unit(question: Rl) -> int:
    """Return the tokens of which the length of a trained sample is a multiple, so that its trainer can divide it."""
    return int(2 * question.tensor * question.context_parallel)


def make_job(question: Rl, device: Device, mean_tokens: float) -> Job:
    """Return the training of a sample of the mean length, in units that can be divided, on one device."""
    unit = length_unit(question)
    length = max(round(mean_tokens / unit), 1) * unit
    training = TrainingOptions("adamw", mixed_precision=True)
    if question.lora is not None:
        training = TrainingOptions("adamw", mixed_precision=True, lora_rank=question.lora)
    network: Any = question.network  # a single one
    # What measured steps say is of a division: it moves the job where the trainer is timed.
    calibration: Any = question.calibration if evidence_of(question.calibration) is None else None
    workload, machine, model = resolve_question(
        Question(
            network,
            device,
            precision=question.precision,
            phase="training",
            sequence_length=length,
            training=training,
            time_model=question.time_model,
            calibration=calibration,
            clock=question.clock,
            unit=question.unit,
            attention=question.attention,
        )
    )
    return Job(workload, machine, model)


class TrainerJobs(NamedTuple):
    """The training of a sample."""

    mean: Job  # of the mean length of all samples, of which times are
    longest: Job  # of the longest possible one, of which memory is


def make_jobs(question: Rl, device: Device, lengths: Ints) -> TrainerJobs:
    """Return the training of the samples of a question."""
    mean_tokens = float(trained_tokens(question, lengths).mean())
    return TrainerJobs(make_job(question, device, mean_tokens), make_job(question, device, longest_tokens(question)))


def longest_tokens(question: Rl) -> int:
    """Return the tokens of the longest possible sample, prompt and response."""
    return int(question.prompt_tokens + question.longest_response)


def trained_tokens(question: Rl, lengths: Ints) -> Floats:
    """Return the tokens that the trainer computes for every sample: with padding those of the longest possible one."""
    if question.framework_rules.pads:
        return np.full(len(lengths), float(longest_tokens(question)))
    return lengths.astype(float) + question.prompt_tokens


def packed_tokens(question: Rl) -> int | None:
    """Return the tokens per device up to which micro-batches are packed; None if they have some samples each."""
    framework = question.framework_rules
    if question.micro_batch is not None or (not framework.is_packed and question.micro_batch_tokens is None):
        return None
    tokens = int(question.micro_batch_tokens or framework.micro_batch_tokens)
    if not framework.packs_longest:
        return tokens
    least = math.ceil(longest_tokens(question) / question.context_parallel)
    if question.micro_batch_tokens is not None and tokens < least:
        raise BadValue(
            f"`--micro-batch-tokens` must have room for the longest sample with `--framework {question.framework}`: at "
            f"least {least:,} tokens per device (got {tokens:,})"
        )
    return max(tokens, least)


def samples_of_rank(question: Rl, devices: Devices) -> int:
    """Return the samples of a data-parallel rank of the trainer and update."""
    replicas = devices.trainer // (question.tensor * question.pipeline * question.context_parallel)
    samples = question.samples * question.rules.samples_trained
    return max(samples // question.updates_per_step // replicas, 1)


def samples_per_micro_batch(question: Rl, sample_tokens: float) -> int:
    """Return the samples of a micro-batch: those asked for, or as many of some tokens each as fill it."""
    if question.micro_batch is not None:
        return int(question.micro_batch)
    tokens = packed_tokens(question)
    if tokens is None:
        return 1
    return max(int(tokens * question.context_parallel / sample_tokens), 1)


def time_trainer_of(
    question: Rl, devices: Devices, jobs: TrainerJobs, lengths: Ints, constants: RlConstants
) -> TrainerTimes:
    """Return the times of the trainer."""
    framework = question.framework_rules
    tokens = np.random.default_rng(1).permutation(trained_tokens(question, lengths))
    if question.rules.samples_trained > 1:
        tokens = np.tile(tokens, question.rules.samples_trained)
    replicas = devices.trainer // (question.tensor * question.pipeline * question.context_parallel)
    if not replicas:
        raise BadValue(
            f"`--tensor` times `--pipeline` times `--context-parallel` must be at most the {devices.trainer} devices "
            f"of the trainer (got {question.tensor * question.pipeline * question.context_parallel})"
        )
    size = samples_per_micro_batch(question, float(tokens.mean()))
    most = samples_of_rank(question, devices)
    size = min(size, most)
    longest_size = min(samples_per_micro_batch(question, longest_tokens(question)), most)
    is_tuned = question.uses_megatron and supports_stack(devices.device)
    parallel = ParallelConfig(
        tensor=question.tensor,
        pipeline=question.pipeline,
        context=question.context_parallel,
        expert=question.expert_parallel,
        micro_batch_size=size,
        sharding=question.used_sharding,
        execution=question.execution,
        attention=question.attention,
        recompute=question.recompute or ("" if is_tuned else "full"),
    )
    batching = Batching(tokens, size, question.updates_per_step, framework.is_balanced)
    job, evidence = jobs.mean, evidence_of(question.calibration)
    topology = learned_topology(part_of(devices.topology, devices.trainer), devices.device, evidence, TRAINING)
    if evidence is not None and TRAINING in evidence.kinds:
        micro_batches = max(len(tokens) // (question.updates_per_step * replicas * size), 1)
        settings = Settings(parallel=parallel)
        job = learned_job(job, evidence, topology, settings, replicas * micro_batches * size, PARALLEL_3D)
    largest = LargestMicroBatch(jobs.longest, longest_size)
    if size * tokens.mean() > longest_size * longest_tokens(question):  # short samples may fill more of a micro-batch
        largest = LargestMicroBatch(jobs.mean, size)
    adapters = adapter_products(job.workload.trained_layers) if has_adapter_units(question) else ()
    times = time_trainer(job, topology, parallel, batching, largest, constants, adapter_units=len(adapters))
    if framework.moves_moments:
        times = with_moved_moments(times, question.updates_per_step, devices, constants)
    if question.rules.has_critic:
        times = with_critic(times, framework)
    state = offloaded_state(question, devices, job.workload.network, times.optimizer_bytes)
    times = msgspec.structs.replace(
        times,
        forward_s=times.forward_s + state.parameters_s,
        update_s=times.update_s + state.parameters_s + state.optimizer_s,
        offloaded=state,
    )
    if question.lora is None or not has_reference(question):
        return times
    frozen = replace(question, lora=None)
    frozen_jobs = make_jobs(frozen, devices.device, lengths)
    frozen_s = time_trainer_of(frozen, devices, frozen_jobs, lengths, constants).forward_s
    return msgspec.structs.replace(times, frozen_forward_s=frozen_s)


ENGINE_DEGREES = {"--tensor": "--rollout-tensor", "--expert-parallel": "--engine-settings experts"}
"""Options of the engines of rollouts, by what `serve` calls them."""

_OF_ROLLOUTS = ("server", "link", "power")
"""Kinds of measured figures that inform rollouts."""


def describe_evidence(question: Rl, devices: Devices, job: Job, deployment: Deployment | None) -> list[str]:
    """Return what a calibration from result files says of the trainer and of the rollouts; nothing without one."""
    evidence = evidence_of(question.calibration)
    if evidence is None:
        return []
    settings = Settings(parallel=ParallelConfig(execution=question.execution))
    sentences = [f"trainer: {evidence.describe_distance(TRAINING, training_traits(job, settings))}"]
    trainer_part = part_of(devices.topology, devices.trainer)
    topology = learned_topology(trainer_part, devices.device, evidence, TRAINING)
    sentences += [f"trainer: {note}" for note in link_notes(topology, devices.device, evidence)]
    if deployment is not None:
        sentences += [f"rollouts: {note}" for note in deployment.on_device.notes]
    return [*sentences, *evidence.notes_on_unused({TRAINING, *_OF_ROLLOUTS}, "rl")]


def make_deployment(question: Rl, devices: Devices) -> Deployment:
    """Return one engine of the rollouts."""
    framework, device = question.framework_rules, devices.device
    network: Any = question.network  # a single one
    decoder = find_decoder(network)
    engine, speculation = settings_of(question.engine_settings), settings_of(question.speculation)
    evidence = evidence_of(question.calibration)
    draft_length, kv_cache = speculation.get("tokens", 0), engine.get("kv-cache")
    draft: Network | None = find_draft(speculation.get("draft"), draft_length)
    precision = question.rollout_precision
    is_weights_only = precision not in (None, "bf16", "fp16", "fp32")
    tensor, link, topology = question.rollout_tensor, None, devices.topology
    if tensor > topology.devices_per_node and topology.between is not None:
        link = topology.between.name  # a group over several nodes is joined by the network
    deployments = Deployments(
        decoder=decoder,
        draft=draft,
        precision=None if is_weights_only else precision or question.precision,
        kv_cache=kv_cache,
        policy=question.engine or framework.engine,
        usual_sampling=GREEDY,
        settings={
            "max_batched_tokens": None,
            "max_sequences": engine.get("max-sequences", framework.max_sequences),
            "chunked_prefill": None,
            "block_tokens": None,
            "memory_fraction": question.memory_fraction(is_colocated=devices.is_colocated),
            "receive_interval": None,
            "overhead_s": None,
        },
        options=SimulationOptions(
            1 - 1 / question.used_samples_per_prompt,
            make_speculation(draft_length, speculation.get("acceptance", 0.0), heads_of(speculation.get("draft"))),
        ),
        link=link or (None if tensor == 1 else device_link(device)),
        platform_price=devices.price,
        time_model=question.time_model,
        calibration=question.calibration if evidence is None else evidence.of_kinds(_OF_ROLLOUTS),
        clock=question.clock,
        unit=question.unit,
        hardware_files=question.hardware_files,
    )
    division = Division(tensor, expert_parallel=engine.get("experts", 1))
    try:
        return deployments.make(device, division, precision if is_weights_only else None)
    except BadDegree as error:
        raise error.with_options(ENGINE_DEGREES) from None


def roll_out_samples(
    question: Rl, devices: Devices, deployment: Deployment, lengths: Ints, constants: RlConstants
) -> Rollouts:
    """Return the rollouts."""
    tools = settings_of(question.tools)
    try:
        return roll_out(
            deployment,
            devices.rollouts // question.rollout_tensor,
            Samples(question.prompt_tokens, lengths, tools.get("turns", 1), tools.get("seconds", 0.0)),
            constants,
            is_eager=question.is_eager,
            has_adapters=question.lora is not None and not question.framework_rules.merges_adapters,
            nodes=-(-question.rollout_tensor // devices.topology.devices_per_node),
            steps_ahead=question.used_steps_off if question.framework_rules.fills_ahead else 0,
        )
    except DoesNotFit as error:
        reason, fraction = str(error), None
        if isinstance(error, NoCacheRoom):
            reason, fraction = error.describe("--engine-settings memory-fraction"), error.sufficient_fraction
        raise NoRolloutRoom(
            f"rollouts do not fit with `--rollout-tensor {question.rollout_tensor}`: {reason}", fraction
        ) from None


def _reward_model_s(question: Rl, devices: Devices, lengths: Ints, constants: RlConstants) -> float:
    """Return the time of a forward pass of a reward model over all samples; 0 without one."""
    network = settings_of(question.reward).get("model")
    if network is None:
        return 0.0
    reward_question = replace(question, network=network, pipeline=1, expert_parallel=1, lora=None)
    jobs = make_jobs(reward_question, devices.device, lengths)
    return time_trainer_of(reward_question, devices, jobs, lengths, constants).forward_s

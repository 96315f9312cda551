"""`rl`: the time of a step of reinforcement learning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..architectures import Network
from ..counting.work import MEGATRON
from ..distributed.job import Job
from ..distributed.links import Topology, device_link
from ..distributed.parallel_config import ParallelConfig
from ..distributed.platforms import Computer, find_platform, is_topology, usual_computer
from ..distributed.run import ClusterRequest
from ..errors import BadValue, DoesNotFit
from ..machines import Device, Price, find_device
from ..reinforcement.algorithms import ALGORITHMS, RlAlgorithm
from ..reinforcement.constants import RlConstants, rl_constants
from ..reinforcement.frameworks import FRAMEWORKS, Framework
from ..reinforcement.lengths import read_lengths, response_lengths
from ..reinforcement.rollouts import Rollouts, roll_out
from ..reinforcement.step import Parts, RlStep, StepSetup, compose, keeps_weights_on_host
from ..reinforcement.trainer import Batching, TrainerTimes, time_trainer
from ..reinforcement.weights import Transfer, has_host_link, swap_s, transfer_weights
from ..serving.deployment import Deployment
from ..serving.placement import Division
from ..serving.simulator import SimulationOptions, Speculation
from ..timing.energy import with_power_limit
from ..timing.facility import Facility
from ..timing.training_stack import supports_stack
from ..timing.workload import TrainingOptions
from .arguments import Paths, to_paths
from .deployments import Deployments, find_decoder, find_draft
from .question import Question
from .resolve import resolve_question

if TYPE_CHECKING:
    from ..calibration.store import Calibration


MEGATRON_SHARDING = "distributed-optimizer"
"""How Megatron-LM shards its state."""


class RlQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a step; the fields are the options of `paleo_lite.rl`."""

    network: Any
    gpu: Any = None
    platform: str | None = None
    link: str | None = None
    workers: int | None = None
    algorithm: str = "grpo"
    framework: str = "generic"
    prompts: int = 64
    samples_per_prompt: int | None = None
    prompt_tokens: int = 256
    response_tokens: float = 1024.0
    max_tokens: int | None = None
    clipped_share: float | None = None
    lengths: Path | None = None
    updates_per_step: int = 1
    micro_batch: int | None = None
    micro_batch_tokens: int | None = None
    precision: str = "bf16"
    tensor: int = 1
    pipeline: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    virtual_stages: int = 1
    sharding: str | None = None
    recompute: str | None = None
    lora: int | None = None
    rollout_precision: str | None = None
    rollout_tensor: int = 1
    rollout_pipeline: int = 1
    rollout_expert_parallel: int = 1
    rollout_workers: int | None = None
    steps_off: int = 0
    engine: str | None = None
    engine_eager: bool | None = None
    max_sequences: int | None = None
    memory_fraction: float | None = None
    kv_cache: str | None = None
    draft_length: int = 0
    acceptance: float = 0.0
    draft: Any = None
    reference: bool | None = None
    reward_model: Any = None
    reward_s: float | None = None
    turns: int = 1
    tool_s: float = 0.0
    time_model: str | None = None
    calibration: str | Calibration | None = None
    power_limit: float | str | None = None
    hardware_files: Paths = ()
    clock: str | None = None
    unit: str | None = None
    price_usd_per_h: float | None = None
    price_of: str | None = None
    facility: Facility | None = None
    steps: int | None = None
    epochs: float | None = None
    dataset_prompts: float | None = None

    @property
    def rules(self) -> RlAlgorithm:
        """The record of the algorithm."""
        return ALGORITHMS[self.algorithm]

    @property
    def framework_rules(self) -> Framework:
        """The record of the framework."""
        return FRAMEWORKS[self.framework]

    @property
    def uses_megatron(self) -> bool:
        """Whether the trainer is Megatron-LM: where its divisions are asked for, or the framework has no other."""
        divides = self.tensor * self.pipeline * self.expert_parallel > 1
        if self.sharding is not None:
            return self.sharding == MEGATRON_SHARDING
        return divides or self.framework_rules.execution == MEGATRON

    @property
    def execution(self) -> str:
        """The stack of the trainer."""
        return MEGATRON if self.uses_megatron else "eager"

    @property
    def used_sharding(self) -> str:
        """How the trainer shards its state."""
        if self.sharding is not None:
            return self.sharding
        return MEGATRON_SHARDING if self.uses_megatron else self.framework_rules.sharding

    @property
    def used_rollout_precision(self) -> str:
        """Precision of the rollouts."""
        return self.rollout_precision or self.precision

    @property
    def is_eager(self) -> bool:
        """Whether the engine launches its kernels one by one."""
        return self.framework_rules.is_eager if self.engine_eager is None else self.engine_eager

    def memory_fraction_of(self, devices: Devices) -> float | None:
        """Return the fraction of the memory that the engine takes; None for its own default."""
        if self.memory_fraction is not None:
            return self.memory_fraction
        return self.framework_rules.memory_fraction if devices.is_colocated else None

    @property
    def used_samples_per_prompt(self) -> int:
        """Responses to a prompt."""
        return self.samples_per_prompt or self.rules.samples_per_prompt

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return self.prompts * self.used_samples_per_prompt

    @property
    def longest_response(self) -> int:
        """Most tokens of a response."""
        longest = self.max_tokens or self.prompt_tokens + round(4 * self.response_tokens)
        if longest <= self.prompt_tokens:
            raise BadValue(
                f"`--max-tokens` counts prompt and response, and must exceed the {self.prompt_tokens:,} tokens of "
                f"`--prompt-tokens` (got {longest:,})"
            )
        return longest - self.prompt_tokens


class Devices(NamedTuple):
    """The devices of a step."""

    device: Device
    topology: Topology  # of all devices
    trainer: int  # number of devices of the trainer
    rollouts: int  # number of devices of the engines; those of the trainer where they share them
    price: Price | None

    @property
    def is_colocated(self) -> bool:
        """Whether trainer and engines share all devices."""
        return self.trainer == self.rollouts == self.topology.workers

    @property
    def total(self) -> int:
        """Number of all devices."""
        return self.topology.workers


class Predicted(NamedTuple):
    """A step with everything that it was made of."""

    question: RlQuestion
    devices: Devices
    setup: StepSetup
    parts: Parts
    step: RlStep
    job: Job
    deployment: Deployment | None
    mean_tokens: float  # of a sample, prompt and response


def predict_rl(question: RlQuestion, constants: RlConstants | None = None) -> Predicted:
    """Return the step that a question asks for; raise PaleoError if its devices cannot be divided so."""
    constants = constants or rl_constants()
    devices = find_devices(question)
    lengths = response_lengths_of(question)
    _check(question, devices)
    job = make_job(question, devices.device, float(trained_tokens(question, lengths).mean()))
    trainer = time_trainer_of(question, devices, job, lengths, constants)
    rollouts, deployment = None, None
    if question.rules.rolls_out:
        deployment = make_deployment(question, devices)
        rollouts = roll_out_samples(question, devices, deployment, lengths, constants)
    setup = make_setup(question, devices)
    return complete(question, devices, setup, job, lengths, trainer, rollouts, deployment, constants)


def make_setup(question: RlQuestion, devices: Devices) -> StepSetup:
    """Return what the step consists of."""
    algorithm = question.rules
    has_reference = algorithm.has_reference if question.reference is None else question.reference
    is_narrow = question.used_rollout_precision != question.precision
    computes_again = question.updates_per_step > 1 or is_narrow or question.framework_rules.recomputes_log_probs
    return StepSetup(
        algorithm,
        question.framework_rules,
        question.samples,
        has_reference=has_reference and algorithm.can_have_reference,
        has_old_log_probs=algorithm.has_old_log_probs and computes_again,
        is_colocated=devices.is_colocated,
        steps_off=question.steps_off,
        reward_s=question.reward_s,
    )


def complete(
    question: RlQuestion,
    devices: Devices,
    setup: StepSetup,
    job: Job,
    lengths: Any,  # tokens of every response
    trainer: TrainerTimes,
    rollouts: Rollouts | None,
    deployment: Deployment | None,
    constants: RlConstants | None = None,
) -> Predicted:
    """Return the step of a trainer and of engines, with what is between them."""
    constants = constants or rl_constants()
    transfer = None
    if rollouts is not None:
        transfer = _transfer(question, devices, job, constants)
    parts = Parts(
        rollouts,
        trainer,
        trainer if setup.algorithm.has_critic else None,
        _reward_model_s(question, devices, lengths, constants),
        transfer,
        _swapped_s(question, devices, trainer, rollouts, constants, has_reference=setup.has_reference),
    )
    mean_tokens = float(lengths.mean()) + question.prompt_tokens
    step = compose(setup, parts, constants)
    return Predicted(question, devices, setup, parts, step, job, deployment, mean_tokens)


def find_devices(question: RlQuestion) -> Devices:
    """Return the devices of trainer and engines; raise BadValue if there are fewer than asked for."""
    files = to_paths(question.hardware_files)
    if question.gpu is None and question.platform is None:
        raise BadValue("give the device with `--gpu`, such as `--gpu h100-sxm`, or the computer with `--platform`")
    given = None if question.gpu is None else find_device(question.gpu, files)
    platform, described = question.platform, None
    if platform is not None and is_topology(platform):
        platform, described = None, platform
    elif platform is None and question.link is None and given is not None and usual_computer(given.id) is None:
        described = assumed_nodes(given, question.workers or 1)
    request = ClusterRequest(question.workers, link=question.link, platform=platform, topology=described)
    topology = request.build_topology(files, given, uses_own_link=True)
    if described is not None and question.platform is None:
        topology = msgspec.structs.replace(topology, assumptions=(described,))
    named = given or (None if topology.device is None else find_device(topology.device, files))
    if named is None:
        raise BadValue(f"`--platform {question.platform}` names no device: give it with `--gpu`, too")
    if topology.device is not None and topology.device != named.id:
        raise BadValue(
            f"`--gpu` must be {topology.device}, the device of the platform, or be left out (got {named.id})"
        )
    if question.power_limit is not None:
        named = with_power_limit(named, question.power_limit)
    count = question.workers or topology.workers
    topology = topology.with_workers(count)
    price = None
    if platform is not None:
        computer = find_platform(platform)
        price = computer.price_of_device if isinstance(computer, Computer) else None
    apart = question.rollout_workers
    if apart is None:
        if question.steps_off:
            raise BadValue("`--steps-off` needs devices of their own for rollouts: give `--rollout-workers`")
        return Devices(named, topology, count, count, price)
    if apart >= count:
        raise BadValue(
            f"`--rollout-workers` must leave devices of the {count} of `--workers` to the trainer (got {apart})"
        )
    return Devices(named, topology, count - apart, apart, price)


USUAL_NODE = 8
"""Devices of a node where no computer of a device is on record."""

USUAL_NETWORK = "8x infiniband-ndr"
"""Network of such nodes: a port for every device."""


def assumed_nodes(device: Device, workers: int) -> str:
    """Return nodes of devices without a usual computer, as a description of a topology."""
    per_node = math.gcd(workers, USUAL_NODE)
    inside = f"{per_node}x {device.id} @ {device_link(device)}" if per_node > 1 else device.id
    if workers == per_node:
        return inside
    return f"{inside}, {workers // per_node} nodes @ {USUAL_NETWORK}"


def _check(question: RlQuestion, devices: Devices) -> None:
    """Raise BadValue if the devices of the engines, or the samples of a step, cannot be divided."""
    per_engine = question.rollout_tensor * question.rollout_pipeline
    if question.rules.rolls_out and devices.rollouts % per_engine:
        raise BadValue(
            f"`--rollout-tensor` must divide the {devices.rollouts} devices of rollouts (got {per_engine} per engine)"
        )
    divided = [name for name in ("tensor", "pipeline", "expert_parallel") if getattr(question, name) > 1]
    if divided and not question.framework_rules.has_megatron:
        raise BadValue(
            f"`--{divided[0].replace('_', '-')}` needs a trainer that divides blocks, which `--framework "
            f"{question.framework}` does not have: leave it out, or give another framework"
        )
    if question.samples % question.updates_per_step:
        raise BadValue(
            f"`--updates-per-step` must divide the {question.samples:,} samples of a step "
            f"(got {question.updates_per_step})"
        )


def response_lengths_of(question: RlQuestion) -> Any:
    """Return the tokens of every response, in rising order."""
    longest = question.longest_response
    if question.lengths is not None:
        return read_lengths(question.lengths, question.samples, longest)
    return response_lengths(question.samples, question.response_tokens, longest, question.clipped_share)


def make_job(question: RlQuestion, device: Device, mean_tokens: float, unit: int = 0) -> Job:
    """Return the training of a sample of the mean length, in units that can be divided, on one device."""
    unit = unit or 2 * question.tensor * question.context_parallel
    length = max(round(mean_tokens / unit), 1) * unit
    training = TrainingOptions("adamw", mixed_precision=True)
    if question.lora is not None:
        training = TrainingOptions("adamw", mixed_precision=True, lora_rank=question.lora)
    workload, machine, model = resolve_question(
        Question(
            question.network,
            device,
            precision=question.precision,
            phase="training",
            sequence_length=length,
            training=training,
            time_model=question.time_model,
            calibration=question.calibration,
            clock=question.clock,
            unit=question.unit,
        )
    )
    return Job(workload, machine, model)


def trained_tokens(question: RlQuestion, lengths: Any) -> Any:
    """Return the tokens that the trainer computes for every sample: with padding those of the longest possible one."""
    if question.framework_rules.pads:
        return np.full(len(lengths), float(question.prompt_tokens + question.longest_response))
    return lengths.astype(float) + question.prompt_tokens


def _samples_per_micro_batch(question: RlQuestion, mean_tokens: float) -> int:
    """Return the samples of a micro-batch: those asked for, or as many as have its tokens."""
    if question.micro_batch is not None:
        return question.micro_batch
    framework = question.framework_rules
    if not framework.is_packed and question.micro_batch_tokens is None:
        return 1
    tokens = question.micro_batch_tokens or framework.micro_batch_tokens
    return max(int(tokens * question.context_parallel / mean_tokens), 1)


def time_trainer_of(
    question: RlQuestion, devices: Devices, job: Job, lengths: Any, constants: RlConstants
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
    size = _samples_per_micro_batch(question, float(tokens.mean()))
    size = max(min(size, len(tokens) // question.updates_per_step // replicas), 1)
    is_tuned = question.uses_megatron and supports_stack(devices.device)
    parallel = ParallelConfig(
        tensor=question.tensor,
        pipeline=question.pipeline,
        context=question.context_parallel,
        expert=question.expert_parallel,
        virtual_stages=question.virtual_stages,
        micro_batch_size=size,
        sharding=question.used_sharding,
        execution=question.execution,
        recompute=question.recompute or ("" if is_tuned else "full"),
    )
    batching = Batching(tokens, size, question.updates_per_step, framework.is_balanced)
    return time_trainer(job, part_of(devices.topology, devices.trainer), parallel, batching, constants)


def part_of(topology: Topology, workers: int) -> Topology:
    """Return some of the devices of a topology, in equal parts of its nodes where they fill no whole ones."""
    per_node = topology.devices_per_node
    if workers <= per_node or workers % per_node == 0:
        return topology.with_workers(workers)
    equal = math.gcd(workers, per_node)
    return msgspec.structs.replace(topology, devices_per_node=equal, nodes=workers // equal)


def make_deployment(question: RlQuestion, devices: Devices) -> Deployment:
    """Return one engine of the rollouts."""
    framework, device = question.framework_rules, devices.device
    decoder = find_decoder(question.network)
    draft: Network | None = find_draft(question.draft, question.draft_length)
    precision = question.rollout_precision
    is_weights_only = precision not in (None, "bf16", "fp16", "fp32")
    tensor, link, topology = question.rollout_tensor, None, devices.topology
    if tensor > topology.devices_per_node and topology.between is not None:
        link = topology.between.name  # a group over several nodes is joined by the network
    deployments = Deployments(
        decoder=decoder,
        draft=draft,
        precision=None if is_weights_only else precision or question.precision,
        cache_format=question.kv_cache or "bf16",
        kv_cache=question.kv_cache,
        policy=question.engine or framework.engine,
        sampling="greedy",
        settings={
            "max_batched_tokens": None,
            "max_sequences": question.max_sequences,
            "chunked_prefill": None,
            "block_tokens": None,
            "memory_fraction": question.memory_fraction_of(devices),
            "receive_interval": None,
            "overhead_s": None,
        },
        options=SimulationOptions(
            1 - 1 / question.used_samples_per_prompt, Speculation(question.draft_length, question.acceptance)
        ),
        link=link or (None if question.rollout_pipeline > 1 or tensor == 1 else device_link(device)),
        platform_price=devices.price,
        time_model=question.time_model,
        calibration=question.calibration,
        clock=question.clock,
        unit=question.unit,
        hardware_files=question.hardware_files,
    )
    division = Division(tensor, question.rollout_pipeline, question.rollout_expert_parallel)
    return deployments.make(device, division, precision if is_weights_only else None)


def roll_out_samples(
    question: RlQuestion, devices: Devices, deployment: Deployment, lengths: Any, constants: RlConstants
) -> Rollouts:
    """Return the rollouts."""
    engines = devices.rollouts // (question.rollout_tensor * question.rollout_pipeline)
    try:
        return roll_out(
            deployment,
            engines,
            question.prompt_tokens,
            lengths,
            constants,
            is_eager=question.is_eager,
            nodes=-(-question.rollout_tensor // devices.topology.devices_per_node),
            steps_ahead=question.steps_off,
            turns=question.turns,
            tool_s=question.tool_s,
        )
    except DoesNotFit as error:
        reason = str(error).partition("; use a larger")[0]
        raise DoesNotFit(
            f"rollouts do not fit with `--rollout-tensor {question.rollout_tensor}`, give a larger one or a narrower "
            f"`--rollout-precision`: {reason}"
        ) from None


def _transfer(question: RlQuestion, devices: Devices, job: Job, constants: RlConstants) -> Transfer:
    """Return the way of the weights, or of the adapters where they alone are trained."""
    framework, network = question.framework_rules, job.workload.network
    path = framework.transfer if devices.is_colocated else framework.transfer_apart
    share = 1.0
    if question.lora is not None:
        share = min(job.workload.trainable_parameters / network.parameters, 1.0)
    return transfer_weights(
        network,
        question.used_rollout_precision,
        devices.topology,
        path,
        question.rollout_tensor,
        constants,
        senders=devices.trainer,
        share=share,
    )


def _swapped_s(
    question: RlQuestion,
    devices: Devices,
    trainer: TrainerTimes,
    rollouts: Rollouts | None,
    constants: RlConstants,
    *,
    has_reference: bool,
) -> float:
    """Return the time of state that goes to the host and back in a step."""
    framework = question.framework_rules
    swapped_bytes = 0.0
    if devices.is_colocated and rollouts is not None:
        if framework.offloads_optimizer:
            swapped_bytes += trainer.optimizer_bytes
        if framework.offloads_parameters:
            swapped_bytes += trainer.parameter_bytes
        if keeps_weights_on_host(framework):
            swapped_bytes += rollouts.weights_bytes / 2  # only on the way out are they needed
    if has_reference and question.lora is None:
        swapped_bytes += trainer.parameter_bytes
    return swap_s(devices.device, swapped_bytes, constants) if has_host_link(devices.device) else 0.0


def _reward_model_s(question: RlQuestion, devices: Devices, lengths: Any, constants: RlConstants) -> float:
    """Return the time of a forward pass of a reward model over all samples; 0 without one."""
    if question.reward_model is None:
        return 0.0
    asked = msgspec.structs.replace(question, network=question.reward_model, pipeline=1, expert_parallel=1)
    job = make_job(asked, devices.device, float(trained_tokens(question, lengths).mean()))
    return time_trainer_of(asked, devices, job, lengths, constants).forward_s

"""Advice of `rl`: how a number of devices is divided between trainer and engines, and each of them in itself.

Trainer and engines do not know each other, so that each is timed alone, for some numbers of devices and degrees, and
all pairs are put together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..architectures import Network
from ..counting.kinds import count_experts, is_grouped_product
from ..distributed.job import Job
from ..errors import BadValue, PaleoError
from ..reinforcement.answer import RlAnswer, RlRow
from ..reinforcement.constants import RlConstants, rl_constants
from ..reinforcement.rollouts import Rollouts
from ..reinforcement.trainer import TrainerTimes
from ..serving.deployment import Deployment
from ..serving.placement import TENSOR_DEGREES
from ..timing.memory import usable_bytes
from .question import resolve_network
from .reinforcement import (
    Predicted,
    TrainerJobs,
    complete,
    length_unit,
    longest_tokens,
    make_deployment,
    make_jobs,
    response_lengths_of,
    roll_out_samples,
    time_trainer_of,
)
from .reinforcement_answer import make_answer, rollout_bytes_of
from .reinforcement_devices import Devices, find_devices

if TYPE_CHECKING:
    from ..questions.rl_options import Rl
    from ..reinforcement.lengths import Ints

MOST_SHAPES = 6
"""Divisions of matrices and experts that are counted; pipelines of any length share those of a shape."""

MOST_DIVISIONS = 24
"""Divisions of the trainer that are timed."""

WIDE_TENSOR_DEGREES = (16, 32, 64)
"""Tensor-parallel degrees of engines over several nodes, the narrowest of which is tried if no node holds the network,
as in NeMo-RL's recipes of DeepSeek-V3 (16 and 32)."""

SHARES = (0.25, 0.5, 0.75)
"""Shares of the devices that engines of their own get."""

BYTES_PER_PARAMETER = 6.0
"""Bytes of a parameter and its gradient on a device, below which no division of the trainer is tried."""

BYTES_PER_FROZEN_PARAMETER = 2.0
"""The same of a parameter that is frozen beside adapters, which has no gradient."""

USUAL_DEGREES = (1, 2, 4, 8, 16)
"""Degrees of parallelism that are tried first: if nothing fits with them, all that divide the devices are tried."""

USUAL_EXPERTS = (4, 8, 16, 32)
"""Degrees of expert parallelism of a mixture that are tried first."""

LONG_TOKENS = 8192
"""Tokens of the longest possible sample from which context parallelism is tried: the trainer has to hold it."""


class Trained(NamedTuple):
    """A trainer on some devices."""

    degrees: dict[str, Any]  # of parallelism, by the options that state them
    devices: int
    job: Job  # the training of a sample of the mean length
    times: TrainerTimes


class Generated(NamedTuple):
    """Engines on some devices."""

    tensor: int
    devices: int
    deployment: Deployment
    rollouts: Rollouts


class NoDivision(BadValue):
    """Devices of which no division holds a step."""


def advise_rl(question: Rl) -> RlAnswer:
    """Return the fastest division of the devices that fits, with all that were compared."""
    constants = rl_constants()
    base = replace(question, steps_off=0)
    devices = find_devices(base)
    lengths = response_lengths_of(base)
    steps_off = _steps_off_apart(question)
    apart = [round(share * devices.total) for share in SHARES] if devices.total >= 4 else []
    trainer_counts = [devices.total, *(devices.total - count for count in apart)]
    engines = _engines(question, devices, lengths, [devices.total, *apart], steps_off, constants)
    if not engines:
        raise NoDivision(describe_no_division(base, devices))
    for is_exhaustive in (False, True):
        trainers = fitting_trainers(base, devices, lengths, trainer_counts, constants, is_exhaustive=is_exhaustive)
        fitting = _fitting_pairs(question, devices, lengths, list(trainers), engines)
        if fitting:
            break
    else:
        raise NoDivision(describe_no_division(base, devices))
    fitting.sort(key=lambda predicted: predicted.step.time_s)
    return msgspec.structs.replace(make_answer(fitting[0]), divisions=[_row(predicted) for predicted in fitting])


def _steps_off_apart(question: Rl) -> int:
    """Return by how many steps rollouts on devices of their own are off: as asked, else the framework's or one."""
    if question.steps_off is not None:
        return int(question.steps_off)
    return max(question.framework_rules.steps_off, 1)


def _fitting_pairs(
    question: Rl, devices: Devices, lengths: Ints, trainers: list[Trained], engines: list[Generated]
) -> list[Predicted]:
    """Return the steps of trainers with engines on the devices of a question that fit."""
    base, steps_off = replace(question, steps_off=0), _steps_off_apart(question)
    fitting = []
    for trained in trainers:
        for generated in engines:
            is_colocated = trained.devices == generated.devices == devices.total
            if not is_colocated and trained.devices + generated.devices != devices.total:
                continue
            if is_colocated and (question.steps_off or not question.framework_rules.takes_turns):
                continue  # rollouts that are off need devices of their own, as those of some frameworks do
            asked = base
            if not is_colocated:
                asked = replace(base, rollout_workers=generated.devices, steps_off=steps_off)
            predicted = _together(asked, devices, trained, generated, lengths)
            if fits(predicted):
                fitting.append(predicted)
    return fitting


def fits(predicted: Predicted) -> bool:
    """Return whether the trainer and the rollouts of a step fit, with what stays beside the engine."""
    available = usable_bytes(predicted.devices.device)
    return (predicted.parts.trainer.memory_bytes or 0.0) <= available and rollout_bytes_of(predicted) <= available


def describe_no_division(question: Rl, devices: Devices) -> str:
    """Return that no division of the devices holds a step, as a sentence."""
    network: Any = question.network  # a single one
    name = resolve_network(network, None, ()).name
    return f"no division of {devices.total} x {devices.device.name} holds {name}: give more `--workers`"


def _together(asked: Rl, devices: Devices, trained: Trained, generated: Generated, lengths: Ints) -> Predicted:
    """Return the step of a trainer with engines."""
    question = replace(asked, **trained.degrees, rollout_tensor=generated.tensor)
    placed = devices._replace(trainer=trained.devices, rollouts=generated.devices)
    return complete(question, placed, trained.job, lengths, trained.times, generated.rollouts, generated.deployment)


def fitting_trainers(
    question: Rl,
    devices: Devices,
    lengths: Ints,
    counts: list[int],  # numbers of devices of the trainer
    constants: RlConstants,
    *,
    is_exhaustive: bool = False,
) -> Iterator[Trained]:
    """Yield the trainers that fit into the memory of their devices, those with the fewest devices per replica first.

    An exhaustive search tries all divisions until as many fit as are timed otherwise.
    """
    available = usable_bytes(devices.device)
    shapes: set[tuple[int, int, int]] = set()
    jobs: dict[int, TrainerJobs] = {}  # by the unit of the length of a sample
    network: Any = question.network  # a single one
    decoder = resolve_network(network, None, ())
    divisions = _degrees(question, devices, decoder, counts if is_exhaustive else [])
    number = 0
    for degrees in divisions if is_exhaustive else islice(divisions, MOST_DIVISIONS):
        shape = (degrees["tensor"], degrees["context_parallel"], degrees["expert_parallel"])
        if shape not in shapes and len(shapes) == MOST_SHAPES and not is_exhaustive:
            continue
        if number >= MOST_DIVISIONS and is_exhaustive:
            return
        variant = replace(question, **degrees)
        unit = length_unit(variant)
        per_replica = degrees["tensor"] * degrees["pipeline"] * degrees["context_parallel"]
        for count in dict.fromkeys(counts):
            if count < per_replica:
                continue
            placed = devices._replace(trainer=count)
            try:
                if unit not in jobs:
                    jobs[unit] = make_jobs(variant, devices.device, lengths)
                times = time_trainer_of(variant, placed, jobs[unit], lengths, constants)
            except PaleoError:
                continue  # these devices cannot be divided so
            shapes.add(shape)
            if times.memory_bytes is None or times.memory_bytes <= available:
                number += 1
                yield Trained(degrees, count, jobs[unit].mean, times)


def _degrees(question: Rl, devices: Devices, network: Network, counts: list[int]) -> Iterator[dict[str, Any]]:
    """Yield degrees of parallelism of the trainer, those with the fewest devices per replica first.

    They are the usual ones, or all that divide one of some numbers of devices.
    """
    divisors = sorted({n for count in counts for n in range(1, count + 1) if count % n == 0})
    degrees = divisors or USUAL_DEGREES
    experts = count_experts(network.layers)
    tensors = [n for n in degrees if n <= devices.topology.devices_per_node]
    contexts = [n for n in degrees if n == 1 or longest_tokens(question) / n >= LONG_TOKENS / 2]
    expert_degrees = [n for n in divisors or USUAL_EXPERTS if experts % n == 0] if experts > 1 else [1]
    pipelines = degrees
    if not question.framework_rules.has_megatron:
        tensors, pipelines, expert_degrees = [1], [1], [1]
    elif not question.uses_megatron:
        expert_degrees = sorted({1, *expert_degrees})  # sharded by blocks, or by Megatron-LM
    expert_parameters = _expert_parameters(network)
    divisions = []
    available = usable_bytes(devices.device)
    parameter_bytes = BYTES_PER_PARAMETER if question.lora is None else BYTES_PER_FROZEN_PARAMETER
    for tensor, pipeline, context, expert in product(tensors, pipelines, contexts, expert_degrees):
        dense = (network.parameters - expert_parameters) / tensor
        held_bytes = (dense + expert_parameters / expert) / pipeline * parameter_bytes
        is_sharded = tensor * pipeline * expert == 1 and not question.uses_megatron
        if held_bytes <= available or is_sharded:
            divisions.append((tensor * pipeline * context, expert, tensor, pipeline, context))
    for _, expert, tensor, pipeline, context in sorted(divisions):
        yield {"tensor": tensor, "pipeline": pipeline, "context_parallel": context, "expert_parallel": expert}


def _expert_parameters(network: Network) -> float:
    """Return the parameters of all experts."""
    experts = [layer for layer in network.layers if is_grouped_product(layer)]
    return float(sum(prod(shape) for layer in experts for shape in layer.weights))


def _engines(
    question: Rl, devices: Devices, lengths: Ints, counts: list[int], steps_off: int, constants: RlConstants
) -> list[Generated]:
    """Return the engines into which the network and a cache fit: in one node, or else over the fewest nodes."""
    degrees = [[tensor for tensor in TENSOR_DEGREES if tensor <= devices.topology.devices_per_node]]
    degrees += [[tensor] for tensor in WIDE_TENSOR_DEGREES]
    for tensors in degrees:
        engines = [
            generated
            for tensor in tensors
            for count in dict.fromkeys(counts)
            for generated in _engines_of(question, devices, lengths, tensor, count, steps_off, constants)
        ]
        if engines:
            return engines
    return []


def _engines_of(
    question: Rl, devices: Devices, lengths: Ints, tensor: int, count: int, steps_off: int, constants: RlConstants
) -> Iterator[Generated]:
    """Yield the engines of a degree on a number of devices, if the network and a cache fit."""
    if count % tensor:
        return
    off = 0 if count == devices.total else steps_off
    variant = replace(question, rollout_tensor=tensor, steps_off=off)
    placed = devices._replace(rollouts=count, trainer=devices.total if not off else devices.total - count)
    try:
        deployment = make_deployment(variant, placed)
        rollouts = roll_out_samples(variant, placed, deployment, lengths, constants)
    except PaleoError:
        return  # the network does not fit so, or there are fewer samples than engines
    yield Generated(tensor, count, deployment, rollouts)


def _row(predicted: Predicted) -> RlRow:
    """Return a division as a row."""
    question, parts, step = predicted.question, predicted.parts, predicted.step
    return RlRow(
        rollout_workers=question.rollout_workers,
        rollout_tensor=question.rollout_tensor,
        tensor=question.tensor,
        pipeline=question.pipeline,
        context_parallel=question.context_parallel,
        expert_parallel=question.expert_parallel,
        steps_off=question.used_steps_off,
        time_s=step.time_s,
        trainer_s=step.trainer_s,
        rollouts_s=step.rollouts_s,
        trainer_bytes=parts.trainer.memory_bytes,
        rollout_bytes=rollout_bytes_of(predicted),
    )

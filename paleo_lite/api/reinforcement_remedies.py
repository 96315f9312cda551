"""What makes a step of reinforcement learning fit: the nearest engines and divisions of the trainer that do.

A remedy is named only if the whole step fits with it, the trainer and the engine beside what stays of the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..errors import DoesNotFit, PaleoError
from ..questions.records import settings_of
from ..reinforcement.answer import RlAnswer
from ..reinforcement.constants import rl_constants
from ..reinforcement.rollouts import Rollouts
from ..serving.deployment import Deployment
from ..serving.placement import doubled_degrees
from ..timing.memory import usable_bytes
from ..units import format_si
from .reinforcement import (
    NoRolloutRoom,
    Predicted,
    complete,
    longest_tokens,
    make_deployment,
    make_jobs,
    predict_rl,
    response_lengths_of,
    roll_out_samples,
    samples_per_micro_batch,
    time_trainer_of,
)
from .reinforcement_advice import (
    SHARES,
    WIDE_TENSOR_DEGREES,
    NoDivision,
    Trained,
    advise_rl,
    describe_no_division,
    fits,
    fitting_trainers,
)
from .reinforcement_answer import make_answer, rollout_bytes_of, staying_bytes_of
from .reinforcement_devices import Devices, find_devices

if TYPE_CHECKING:
    from ..questions.rl_options import Rl
    from ..reinforcement.lengths import Ints

COMPARED = 4
"""Divisions of the trainer with which a step fits, of which the fastest is named; fewest devices per replica first."""

LORA_RANK = 16
"""Rank of the adapters that are tried where no division holds the whole network."""

DEGREES = ("tensor", "pipeline", "context_parallel", "expert_parallel", "rollout_tensor")
"""Options of parallelism that a remedy may change, as `--advise` does."""

CHANGED = (*DEGREES, "micro_batch", "rollout_workers", "rollout_precision", "lora", "engine_settings")
"""Options that a remedy may change."""

NARROW = "fp8"
"""Format of the weights of engines that is tried last, where none is asked for."""


class Engines(NamedTuple):
    """Engines into which the network and a cache fit."""

    question: Rl  # with the options of these engines
    deployment: Deployment | None  # None for an algorithm without rollouts
    rollouts: Rollouts | None


def answer_rl(question: Rl) -> RlAnswer:
    """Return the answer to a question about a step, with what makes it fit if it does not.

    Raise DoesNotFit if its rollouts do not fit, with the same.
    """
    try:
        predicted = predict_rl(question)
    except DoesNotFit as error:
        raise DoesNotFit(f"{error}; {_describe_remedy(question)}") from None
    answer = make_answer(predicted)
    if fits(predicted):
        return answer
    return msgspec.structs.replace(answer, notes=(*answer.notes, _describe_remedy(question, predicted)))


def advise(question: Rl) -> RlAnswer:
    """Return the fastest division of the devices that fits; raise NoDivision if none does, with what else does."""
    try:
        return advise_rl(question)
    except NoDivision as error:
        if question.used_steps_off:  # rollouts that are off need devices of their own
            raise
        raise NoDivision(f"{error}{_describe_other_remedy(question, find_devices(question))}") from None


def _describe_remedy(question: Rl, predicted: Predicted | None = None) -> str:
    """Return the nearest change of the options with which the whole step fits, as a sentence.

    The step without the change is given where it could be predicted.
    """
    devices = find_devices(question)
    remedy = _find_remedy(question, devices, predicted)
    if remedy is None:
        return f"{describe_no_division(question, devices)}{_describe_adapters(question, devices)}"
    more = "; `--advise` compares more divisions" if set(_changes(question, remedy.question)) <= set(DEGREES) else ""
    return f"{_describe(question, remedy)}{more}"


def _describe_other_remedy(question: Rl, devices: Devices) -> str:
    """Return the change beyond divisions with which a step fits that no division holds, as a clause; empty if none."""
    remedy = _find_remedy(question, devices)
    if remedy is None:
        return _describe_adapters(question, devices)
    return f", or another share of the memory to engines: {_describe(question, remedy)}"


def _describe_adapters(question: Rl, devices: Devices) -> str:
    """Return the adapters and the division with which a step fits that no division holds, as a clause."""
    adapted = None if question.lora is not None else _find_remedy(replace(question, lora=LORA_RANK), devices)
    return "" if adapted is None else f", or train adapters: {_describe(question, adapted)}"


def _describe(question: Rl, remedy: Predicted) -> str:
    """Return the options of a step that fits, with its memory and times, as a clause."""
    trainer, available = remedy.parts.trainer, usable_bytes(remedy.devices.device)
    sizes = [f"{format_si(trainer.memory_bytes or 0.0, 'B', 3)} in the update"]
    if remedy.parts.rollouts is not None:
        sizes.append(f"{format_si(rollout_bytes_of(remedy), 'B', 3)} in the rollouts")
    changes = _changes(question, remedy.question)
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
    return (
        f"the step fits with `{options}`: {' and '.join(sizes)} of {format_si(available, 'B', 3)} per device, "
        f"{format_si(trainer.update_s, 's', 3)} for the update and {format_si(remedy.step.time_s, 's', 3)} in all"
    )


def _changes(question: Rl, fitting: Rl) -> dict[str, str]:
    """Return the options in which a question differs from that which was asked, with their values as they are typed."""
    changes = {}
    for name in CHANGED:
        value = getattr(fitting, name)
        if value != getattr(question, name):
            changes[name] = _typed(value)
    return changes


def _typed(value: Any) -> str:
    """Return the value of an option as it is typed."""
    if not isinstance(value, dict):
        return str(value)
    return ",".join(f"{name}={_setting_text(part)}" for name, part in value.items())


def _setting_text(value: Any) -> str:
    """Return the value of a setting as it is typed, such as `yes`."""
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value}"


def _find_remedy(question: Rl, devices: Devices, predicted: Predicted | None = None) -> Predicted | None:
    """Return the step that fits with the nearest engines, and of these with the fastest trainer; None if none does.

    The trainer of the question is kept where it fits beside the engines. Before None is returned, all divisions are
    tried, then those with micro-batches of one sample, and with other devices of their own for the engines.
    """
    lengths = response_lengths_of(question)
    asked = _asked_trainer(question, devices, lengths) if predicted is None else _trainer_of(predicted)
    for is_exhaustive in (False, True):
        remedy = _fastest_nearby(question, devices, lengths, asked, is_exhaustive=is_exhaustive)
        if remedy is not None:
            return remedy
    for changed in _other_batches_and_devices(question, devices):
        remedy = _fastest_nearby(changed, find_devices(changed), lengths, [], is_exhaustive=True)
        if remedy is not None:
            return remedy
    return None


def _other_batches_and_devices(question: Rl, devices: Devices) -> Iterator[Rl]:
    """Yield a question with smaller micro-batches, and with fewer or more devices of the engines, and with both."""
    single = replace(question, micro_batch=1)
    holds_several = samples_per_micro_batch(question, longest_tokens(question)) > 1
    if holds_several:
        yield single
    if devices.is_colocated or not question.rules.rolls_out:
        return
    for apart in (round(share * devices.total) for share in SHARES):
        if 0 < apart != devices.rollouts:
            yield replace(question, rollout_workers=apart)
            if holds_several:
                yield replace(single, rollout_workers=apart)


def _fastest_nearby(
    question: Rl, devices: Devices, lengths: Ints, asked: list[Trained], *, is_exhaustive: bool
) -> Predicted | None:
    """Return the step that fits with the nearest engines, and of these with the fastest trainer; None if none does."""
    counts = [devices.trainer]
    others = list(fitting_trainers(question, devices, lengths, counts, rl_constants(), is_exhaustive=is_exhaustive))
    groups = [group for group in (asked, others) if group]
    if not groups:
        return None
    framework = question.framework_rules
    staying = [min(staying_bytes_of(framework, trained.times) for trained in group) for group in groups]
    for engines in _nearby_engines(question, devices, lengths, staying if devices.is_colocated else []):
        for group in groups:
            steps = (_together(engines, devices, trained, lengths) for trained in group)
            fitting = list(islice(filter(fits, steps), COMPARED))
            if fitting:
                return min(fitting, key=lambda predicted: predicted.step.time_s)
    return None


def _asked_trainer(question: Rl, devices: Devices, lengths: Ints) -> list[Trained]:
    """Return the trainer of a question, if it can be divided so and fits."""
    try:
        jobs = make_jobs(question, devices.device, lengths)
        times = time_trainer_of(question, devices, jobs, lengths, rl_constants())
    except PaleoError:
        return []  # not a trainer of this network, such as one of adapters
    trained = Trained({}, devices.trainer, jobs.mean, times)
    return [trained] if (times.memory_bytes or 0.0) <= usable_bytes(devices.device) else []


def _trainer_of(predicted: Predicted) -> list[Trained]:
    """Return the trainer of a step, if it fits."""
    trained = Trained({}, predicted.devices.trainer, predicted.job, predicted.parts.trainer)
    return [trained] if (trained.times.memory_bytes or 0.0) <= usable_bytes(predicted.devices.device) else []


def _together(engines: Engines, devices: Devices, trained: Trained, lengths: Ints) -> Predicted:
    """Return the step of engines with a trainer, as the question with the options of both has it."""
    question = replace(engines.question, **trained.degrees)
    return complete(question, devices, trained.job, lengths, trained.times, engines.rollouts, engines.deployment)


def _nearby_engines(question: Rl, devices: Devices, lengths: Ints, staying: list[float]) -> Iterator[Engines]:
    """Yield engines that hold the samples: those of a question first, then larger ones, then with more memory.

    After each engine come those that leave more room beside states of the trainer of some bytes per device.
    """
    if not question.rules.rolls_out:
        yield Engines(question, None, None)
        return
    sufficient = []
    # An engine is in one node, unless a question wants it over several, or no node holds the network.
    most = max(devices.topology.devices_per_node, question.rollout_tensor)
    is_held = False
    for tensor in doubled_degrees(question.rollout_tensor, WIDE_TENSOR_DEGREES[-1]):
        if (tensor > most and is_held) or devices.rollouts % tensor:
            break
        larger = replace(question, rollout_tensor=tensor)
        try:
            engines = _make_engines(larger, devices, lengths)
        except NoRolloutRoom as error:
            if error.sufficient_fraction is not None:
                sufficient.append(_with_fraction(larger, error.sufficient_fraction))
                is_held = True
            continue
        except PaleoError:
            continue  # heads cannot be divided so
        is_held = True
        yield engines
        for staying_bytes in staying:
            yield from _with_less_memory(engines, devices, lengths, staying_bytes)
    for changed in sufficient:
        yield from _engines_that_fit(changed, devices, lengths)
    if question.rollout_precision is None:
        yield from _nearby_engines(replace(question, rollout_precision=NARROW), devices, lengths, staying)


def _make_engines(question: Rl, devices: Devices, lengths: Ints) -> Engines:
    """Return the engines of a question; raise NoRolloutRoom if the samples do not fit."""
    deployment = make_deployment(question, devices)
    return Engines(question, deployment, roll_out_samples(question, devices, deployment, lengths, rl_constants()))


def _with_less_memory(engines: Engines, devices: Devices, lengths: Ints, staying_bytes: float) -> Iterator[Engines]:
    """Yield engines with as small a fraction of the memory as some bytes beside them need, if they need it."""
    assert engines.deployment is not None and engines.rollouts is not None
    excess_bytes = engines.rollouts.memory_bytes + staying_bytes - usable_bytes(devices.device)
    if excess_bytes <= 0:
        return
    excess_share = excess_bytes / devices.device.reported_memory_bytes
    fraction = math.floor(100 * (engines.deployment.engine.memory_fraction - excess_share)) / 100
    if fraction <= 0:
        return
    yield from _engines_that_fit(_with_fraction(engines.question, fraction), devices, lengths)


def _engines_that_fit(question: Rl, devices: Devices, lengths: Ints) -> Iterator[Engines]:
    """Yield the engines of a question, if the samples fit."""
    try:
        engines = _make_engines(question, devices, lengths)
    except DoesNotFit:
        return
    yield engines


def _with_fraction(question: Rl, fraction: float) -> Rl:
    """Return a question whose engines take a fraction of the memory."""
    settings = {**settings_of(question.engine_settings), "memory-fraction": fraction}
    return replace(question, engine_settings=settings)

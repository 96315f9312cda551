"""What makes a step of reinforcement learning fit: the nearest engines and divisions of the trainer that do."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from ..errors import DoesNotFit, PaleoError
from ..reinforcement.answer import RlAnswer
from ..reinforcement.constants import rl_constants
from ..timing.memory import usable_bytes
from ..units import format_si
from .reinforcement import (
    Predicted,
    make_deployment,
    make_jobs,
    predict_rl,
    response_lengths_of,
    roll_out_samples,
)
from .reinforcement_advice import Trained, fitting_trainers
from .reinforcement_answer import make_answer
from .reinforcement_devices import find_devices

if TYPE_CHECKING:
    from ..questions.rl_options import Rl

MOST_TENSOR = 16
"""Largest tensor parallelism of engines that a refusal looks for."""

COMPARED = 4
"""Divisions of the trainer that fit, of which the fastest is named; those with the fewest devices per replica."""


def answer_rl(question: Rl) -> RlAnswer:
    """Return the answer to a question about a step, with what makes a trainer fit that does not.

    Raise DoesNotFit if its rollouts do not fit, with the smallest engine that does.
    """
    try:
        predicted = predict_rl(question)
    except DoesNotFit as error:
        tensor = _smallest_rollout_tensor(question)
        smallest = "" if tensor is None else f"; `--rollout-tensor {tensor}` is the smallest that fits"
        raise DoesNotFit(f"{error}{smallest}") from None
    answer = make_answer(predicted)
    if predicted.parts.trainer.memory_bytes is None or predicted.parts.trainer.memory_bytes <= answer.usable_bytes:
        return answer
    return msgspec.structs.replace(answer, notes=(*answer.notes, _describe_remedy(predicted)))


def _smallest_rollout_tensor(question: Rl) -> int | None:
    """Return the smallest tensor parallelism of engines that hold the samples; None if there is none."""
    constants, lengths = rl_constants(), response_lengths_of(question)
    tensor = 2 * question.rollout_tensor
    while tensor <= MOST_TENSOR:
        larger = replace(question, rollout_tensor=tensor)
        devices = find_devices(larger)
        if devices.rollouts % tensor:
            return None
        try:
            roll_out_samples(larger, devices, make_deployment(larger, devices), lengths, constants)
        except PaleoError:
            tensor *= 2  # the samples do not fit so either, or heads cannot be divided so
        else:
            return tensor
    return None


def _describe_remedy(predicted: Predicted) -> str:
    """Return the fastest of the nearest divisions of the trainer that fit, as a sentence."""
    question, devices = predicted.question, predicted.devices
    jobs = make_jobs(question, devices.device, lengths := response_lengths_of(question), unit=64)
    trainers = fitting_trainers(question, devices, jobs, lengths, [devices.trainer], rl_constants())
    fitting = list(islice(trainers, COMPARED))
    if not fitting:
        with_adapters = "" if question.lora is not None else ", or train adapters with `--lora`"
        return (
            f"no division of {devices.trainer} x {devices.device.name} holds the trainer: give more `--workers`"
            f"{with_adapters}"
        )
    fastest = min(fitting, key=lambda trained: trained.times.update_s)
    peak, available = (
        format_si(size, "B", 3) for size in (fastest.times.memory_bytes or 0.0, usable_bytes(devices.device))
    )
    return (
        f"the trainer fits with {_changed_options(question, fastest)}: {peak} of {available} per device, and "
        f"{format_si(fastest.times.update_s, 's', 3)} for the update; `--advise` compares more divisions"
    )


def _changed_options(question: Rl, trained: Trained) -> str:
    """Return the degrees of a trainer that differ from those of a question, as options."""
    changed = [(name, degree) for name, degree in trained.degrees.items() if degree != getattr(question, name)]
    return " ".join(f"`--{name.replace('_', '-')} {degree}`" for name, degree in changed)

"""A step of reinforcement learning: its phases, in what order they run, and which of them wait for each other.

Trainer and engines on the same devices take turns, and their state goes to the host and back. On devices of their own
they work at the same time if rollouts may be some steps old: the slower side sets the pace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ..timing.intervals import Z_90
from .algorithms import RlAlgorithm
from .constants import RlConstants
from .frameworks import SLEEP, Framework
from .rollouts import Rollouts
from .trainer import TrainerTimes
from .weights import WeightTransfer

PHASES = {
    "generation": "generation of samples",
    "rewards": "rewards",
    "old_log_probs": "log-probabilities under the weights of the rollouts",
    "reference_log_probs": "log-probabilities under the reference",
    "values": "values of the critic",
    "critic_update": "update of the critic",
    "update": "update of the policy",
    "transfer": "transfer of weights to the engines",
    "state": "state to the host and back",
    "host": "host: data, advantages, messages",
}
"""Phases of a step, in their order, with their names."""

OF_ROLLOUTS = ("generation", "rewards")
"""Phases that run on the devices of the engines."""

OF_TRAINER = ("old_log_probs", "reference_log_probs", "values", "critic_update", "update")
"""Phases that run on the devices of the trainer."""


class StepSetup(msgspec.Struct, frozen=True):
    """What a step consists of."""

    algorithm: RlAlgorithm
    framework: Framework
    samples: int  # samples that are trained on
    has_reference: bool
    has_old_log_probs: bool
    is_colocated: bool  # whether trainer and engines share devices
    steps_off: int  # steps by which rollouts may be older than the weights; 0 in turns
    reward_s: float | None = None  # time of the rewards of a step; None for a rule


class Parts(NamedTuple):
    """What was timed."""

    rollouts: Rollouts | None  # None without generation
    trainer: TrainerTimes
    critic: TrainerTimes | None
    reward_s: float  # time of a reward model
    transfer: WeightTransfer | None
    swap_s: float  # time of state to the host and back


class RlStep(msgspec.Struct, frozen=True):
    """Times of a step."""

    time_s: float
    interval: tuple[float, float]
    phases: dict[str, float]  # seconds by `PHASES`, each alone
    trainer_s: float  # all phases of the trainer
    rollouts_s: float  # all phases of the engines
    exposed_s: dict[str, float]  # seconds by which each phase makes the step longer
    bounded_by: str  # what the step waits for


def phase_times(setup: StepSetup, parts: Parts, constants: RlConstants) -> dict[str, float]:
    """Return the seconds of each phase alone; phases that do not exist are left out."""
    trainer, critic = parts.trainer, parts.critic
    reference_s = trainer.forward_s if trainer.frozen_forward_s is None else trainer.frozen_forward_s
    # Timers of frameworks have the waking of the engine in that of the weights.
    wakes = setup.is_colocated and parts.transfer is not None and parts.transfer.wakes_engine
    wake_s = constants.wake_s if wakes else 0.0
    times = {
        "generation": 0.0 if parts.rollouts is None else _generation_s(setup, parts.rollouts),
        "rewards": parts.reward_s if setup.reward_s is None else setup.reward_s,
        "old_log_probs": trainer.forward_s if setup.has_old_log_probs else 0.0,
        "reference_log_probs": reference_s if setup.has_reference else 0.0,
        "values": 0.0 if critic is None else critic.forward_s,
        "critic_update": 0.0 if critic is None else critic.update_s,
        "update": trainer.update_s,
        "transfer": 0.0 if parts.transfer is None else parts.transfer.time_s + wake_s,
        "state": parts.swap_s,
        "host": constants.step_s + constants.sample_s * setup.samples * setup.algorithm.generated_per_trained,
    }
    return {name: seconds for name, seconds in times.items() if seconds > 0}


def _generation_s(setup: StepSetup, rollouts: Rollouts) -> float:
    """Return the time of all samples, those without use among them.

    Rollouts that may be several steps old fill engines with samples of the next steps: no tail remains.
    """
    once_s = rollouts.steady_s if setup.steps_off > 1 else rollouts.time_s
    return once_s * setup.algorithm.generated_per_trained


def compose(setup: StepSetup, parts: Parts, constants: RlConstants) -> RlStep:
    """Return the times of a step."""
    phases = phase_times(setup, parts, constants)
    of_rollouts = sum(phases.get(name, 0.0) for name in OF_ROLLOUTS)
    of_trainer = sum(phases.get(name, 0.0) for name in OF_TRAINER)
    if setup.steps_off:
        hidden = OF_TRAINER if of_rollouts >= of_trainer else OF_ROLLOUTS
        exposed = {name: 0.0 if name in hidden else seconds for name, seconds in phases.items()}
    else:
        exposed = dict(phases)
    time_s = sum(exposed.values())
    return RlStep(
        time_s=time_s,
        interval=_interval(time_s, exposed, setup, parts, constants),
        phases=phases,
        trainer_s=of_trainer,
        rollouts_s=of_rollouts,
        exposed_s=exposed,
        bounded_by=PHASES[max(exposed, key=exposed.__getitem__)],
    )


def _interval(
    time_s: float, exposed: Mapping[str, float], setup: StepSetup, parts: Parts, constants: RlConstants
) -> tuple[float, float]:
    """Return the 90% interval of a step; errors of its phases are independent, except those of the trainer's passes.

    Those of a framework to which no constant was fitted are of the engine and of the trainer, each for itself.
    """
    passes_s = sum(exposed.get(name, 0.0) for name in OF_TRAINER)
    generation_s = sum(exposed.get(name, 0.0) for name in OF_ROLLOUTS)
    of_framework = 0.0 if setup.framework.is_measured else constants.framework_deviation
    variance = (passes_s * math.hypot(constants.update_deviation, of_framework)) ** 2
    if parts.rollouts is not None:
        width = 0.0
        if 0 < parts.rollouts.low_s < parts.rollouts.high_s:
            width = math.log(parts.rollouts.high_s / parts.rollouts.low_s) / (2 * Z_90)
        variance += (generation_s * math.hypot(constants.generation_deviation, width, of_framework)) ** 2
    variance += (exposed.get("transfer", 0.0) * constants.transfer_deviation) ** 2
    for name in ("state", "host"):
        variance += (exposed.get(name, 0.0) * constants.other_deviation) ** 2
    factor = math.exp(Z_90 * math.sqrt(variance) / time_s)
    return time_s / factor, time_s * factor


def keeps_weights_on_host(framework: Framework) -> bool:
    """Return whether an engine copies its weights to the host while it sleeps."""
    return framework.keeps == SLEEP

"""Phases of a step: which exist, and which of them make it longer.

Tests: reinforcement/step.py, reinforcement/algorithms.py, reinforcement/frameworks.py, reinforcement/constants.py.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from paleo_lite.reinforcement.algorithms import ALGORITHMS
from paleo_lite.reinforcement.constants import RlConstants, rl_constants
from paleo_lite.reinforcement.frameworks import FRAMEWORKS, TRANSFERS
from paleo_lite.reinforcement.rollouts import Rollouts
from paleo_lite.reinforcement.step import PHASES, Parts, StepSetup, compose
from paleo_lite.reinforcement.trainer import TrainerTimes
from paleo_lite.reinforcement.weights import WeightTransfer
from paleo_lite.timing.activity import Activity
from paleo_lite.timing.intervals import Z_90

TRAINER = TrainerTimes(
    forward_s=10.0, update_s=30.0, imbalance=1.1, bubble_share=0.1, memory_bytes=1e9,
    parameter_bytes=1e9, optimizer_bytes=1e9, micro_batches=8, samples_per_micro_batch=1, description="",
)  # fmt: skip
ROLLOUTS = Rollouts(
    time_s=100.0, low_s=90.0, high_s=110.0, steady_s=60.0, engines=2, samples_per_engine=8, most_live=8, mean_live=5,
    tail_share=0.3, iterations=100, waits_for_memory=False, weights_bytes=1e9, cache_bytes=1e9, activations_bytes=0,
    live=(), activity=Activity(),
)  # fmt: skip


def step_of(
    name: str = "grpo", rollouts: Rollouts | None = ROLLOUTS, constants: RlConstants | None = None, **changes: Any
) -> Any:
    setup = StepSetup(
        ALGORITHMS[name], FRAMEWORKS["generic"], 16, has_reference=ALGORITHMS[name].has_reference,
        has_old_log_probs=ALGORITHMS[name].has_old_log_probs, is_colocated=True, steps_off=0,
    )  # fmt: skip
    setup = msgspec.structs.replace(setup, **changes)
    critic = TRAINER if ALGORITHMS[name].has_critic else None
    return compose(
        setup,
        Parts(rollouts, TRAINER, critic, 0.0, WeightTransfer(5.0, 1e9, 100, 1e9), 4.0),
        constants or rl_constants(),
    )


def test_phases_in_turns_add_up() -> None:
    step = step_of()
    assert step.time_s == pytest.approx(sum(step.phases.values()))
    assert step.phases["update"] == 30 and step.phases["old_log_probs"] == step.phases["reference_log_probs"] == 10
    assert list(step.phases) == [name for name in PHASES if name in step.phases]
    assert step.interval[0] < step.time_s < step.interval[1]
    assert step.bounded_by == PHASES["generation"]


def test_an_engine_that_keeps_its_weights_does_not_wake() -> None:
    setup = StepSetup(
        ALGORITHMS["grpo"],
        FRAMEWORKS["verl"],
        16,
        has_reference=False,
        has_old_log_probs=True,
        is_colocated=True,
        steps_off=0,
    )
    times = []
    for wakes in (True, False):
        transfer = WeightTransfer(5.0, 1e9, 100, 1e9, wakes_engine=wakes)
        step = compose(setup, Parts(ROLLOUTS, TRAINER, None, 0.0, transfer, 4.0), rl_constants())
        times.append(step.phases["transfer"])
    assert times == [pytest.approx(5 + rl_constants().wake_s), 5]


def test_a_critic_is_updated_and_asked_for_values() -> None:
    grpo, ppo = step_of("grpo"), step_of("ppo")
    assert ppo.time_s - grpo.time_s == pytest.approx(40)
    assert "values" not in grpo.phases and ppo.phases["critic_update"] == 30


def test_the_slower_side_sets_the_pace_one_step_off() -> None:
    step = step_of(steps_off=1, is_colocated=False)
    assert step.exposed_s["update"] == 0 and step.exposed_s["generation"] == 100
    quick = msgspec.structs.replace(ROLLOUTS, time_s=20.0)
    step = step_of(rollouts=quick, steps_off=1, is_colocated=False)
    assert step.exposed_s["generation"] == 0 and step.exposed_s["update"] == 30


def test_several_steps_off_have_no_tail() -> None:
    assert step_of(steps_off=4, is_colocated=False).phases["generation"] == ROLLOUTS.steady_s


def test_given_rewards_replace_those_of_a_rule() -> None:
    assert "rewards" not in step_of().phases
    assert step_of(reward_s=7.0).phases["rewards"] == 7


def test_samples_without_use_are_generated_too() -> None:
    assert step_of("dapo").phases["generation"] == ROLLOUTS.time_s * ALGORITHMS["dapo"].generated_per_trained


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_move_weights_in_known_ways(name: str) -> None:
    framework = FRAMEWORKS[name]
    assert {framework.transfer, framework.transfer_apart} <= set(TRANSFERS)
    assert framework.micro_batch_tokens > 0 and framework.description


@pytest.mark.parametrize(
    ("name", "seconds"), [("framework", math.hypot(100, 10 + 10 + 30)), ("transfer", 5.0), ("update", 10 + 10 + 30)]
)
def test_engine_trainer_and_transfer_err_each_for_itself(name: str, seconds: float) -> None:
    """With one deviation alone, of the root of the sum of squares of the parts that have it."""
    names = ("generation", "update", "transfer", "other", "framework")
    constants = msgspec.structs.replace(rl_constants(), wake_s=0.0, **{f"{each}_deviation": 0.0 for each in names})
    constants = msgspec.structs.replace(constants, **{f"{name}_deviation": 0.2})
    certain = msgspec.structs.replace(ROLLOUTS, low_s=100.0, high_s=100.0)
    step = step_of(rollouts=certain, constants=constants)
    assert math.log(step.interval[1] / step.time_s) == pytest.approx(Z_90 * 0.2 * seconds / step.time_s)


def test_uncertain_rollouts_widen_the_interval() -> None:
    """The narrower of two intervals is within the wider one, also of rollouts of less than a second."""
    for scale in (1.0, 0.001):
        certain, uncertain = (
            step_of(
                rollouts=msgspec.structs.replace(ROLLOUTS, time_s=100 * scale, low_s=low * scale, high_s=high * scale)
            )
            for low, high in ((99.0, 101.0), (30.0, 300.0))
        )
        assert uncertain.interval[0] < certain.interval[0] < certain.interval[1] < uncertain.interval[1]

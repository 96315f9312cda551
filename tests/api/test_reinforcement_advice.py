"""Advice about steps of reinforcement learning, and the settings of frameworks.

Tests: api/reinforcement_advice.py, reinforcement/settings.py.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, DoesNotFit

SMALL = {
    "network": "qwen3-0.6b", "gpu": "h100-sxm", "workers": 8, "prompts": 16, "samples_per_prompt": 8,
    "response_tokens": 200, "framework": "verl",
}  # fmt: skip


def ask(**changes: Any) -> Any:
    return pl.rl(**{**SMALL, **changes})


def degrees_of(row: Any) -> dict[str, int]:
    names = ("rollout_tensor", "tensor", "pipeline", "context_parallel", "expert_parallel")
    return {name: getattr(row, name) for name in names}


@pytest.mark.parametrize(("options", "off"), [({}, 8), ({"steps_off": 0}, 0), ({"steps_off": 2}, 2)])
def test_rollouts_of_advice_are_as_far_off_as_asked_or_as_the_framework_lets_them_be(options: Any, off: int) -> None:
    """prime-rl's rollouts are up to eight steps off (`max_off_policy_steps`), on devices of their own."""
    answer = ask(framework="prime-rl", advise=True, **options)
    assert {row.steps_off for row in answer.divisions} == {off}
    best = answer.divisions[0]
    again = ask(framework="prime-rl", rollout_workers=best.rollout_workers, **degrees_of(best), **options)
    assert again.time_s == pytest.approx(answer.time_s, rel=1e-12)


@pytest.mark.thorough
@pytest.mark.slow
def test_advice_ranks_turns_and_devices_apart() -> None:
    answer = ask(advise=True)
    times = [row.time_s for row in answer.divisions]
    assert times == sorted(times) and answer.time_s == times[0]
    assert {row.steps_off for row in answer.divisions} == {0, 1}
    best = answer.divisions[0]
    again = ask(rollout_workers=best.rollout_workers, steps_off=best.steps_off, **degrees_of(best))
    assert again.time_s == pytest.approx(best.time_s, rel=1e-12)


@pytest.mark.thorough
@pytest.mark.slow
def test_advice_divides_mixtures_among_experts() -> None:
    answer = ask(network="olmoe-1b-7b", framework="nemo-rl", advise=True)
    assert {row.expert_parallel for row in answer.divisions} <= {4, 8}


@pytest.mark.slow
def test_advice_shards_or_divides_where_the_framework_can_do_both() -> None:
    verl = ask(network="olmoe-1b-7b", advise=True)
    assert {1, 8} <= {row.expert_parallel for row in verl.divisions}
    trl = ask(network="olmoe-1b-7b", framework="trl", advise=True)
    assert {(row.tensor, row.pipeline, row.expert_parallel) for row in trl.divisions} == {(1, 1, 1)}


def test_engines_span_nodes_where_no_node_holds_the_network() -> None:
    """NeMo-RL's recipe of DeepSeek-V3 on 256 H100 has engines of 32 devices: 1.34 TB in bf16, 60% of 680 GB a node."""
    asked: dict[str, Any] = {
        "gpu": "h100-sxm", "workers": 256, "prompts": 32, "samples_per_prompt": 16, "prompt_tokens": 105,
        "response_tokens": 640, "max_tokens": 1536, "framework": "nemo-rl",
    }  # fmt: skip
    answer = pl.rl("deepseek-v3", **asked, advise=True)
    assert {row.rollout_tensor for row in answer.divisions} == {32}
    with pytest.raises(DoesNotFit, match=r"the step fits with `.*--rollout-tensor 32`"):
        pl.rl("deepseek-v3", **asked)


def test_advice_chooses_the_degrees_itself() -> None:
    with pytest.raises(BadValue, match="`--advise` chooses `--tensor` itself: leave it out"):
        ask(advise=True, tensor=2)


def test_what_fits_nowhere_is_one_sentence() -> None:
    with pytest.raises(BadValue, match="no division of 1 x H100 SXM5 80GB holds"):
        ask(network="llama-3.1-70b", workers=1, framework="generic", advise=True)


def test_settings_are_in_the_words_of_the_framework() -> None:
    verl = dict(line.split("=") for line in ask(updates_per_step=4, rollout_tensor=2).settings.splitlines())
    assert verl["data.train_batch_size"] == "16" and verl["actor_rollout_ref.actor.ppo_mini_batch_size"] == "4"
    assert verl["actor_rollout_ref.actor.strategy"] == "fsdp"
    assert verl["actor_rollout_ref.rollout.tensor_model_parallel_size"] == "2"
    apart = ask(framework="nemo-rl", rollout_workers=4, steps_off=1, rollout_precision="fp8")
    nemo = dict(line.split("=") for line in apart.settings.splitlines())
    assert nemo["policy.train_global_batch_size"] == "128"
    assert nemo["policy.generation.colocated.enabled"] == "false" and nemo["grpo.async_grpo.enabled"] == "true"
    assert nemo["policy.generation.vllm_cfg.precision"] == "fp8"
    assert ask(framework="generic").settings == ""


@pytest.mark.parametrize("framework", ["generic", "prime-rl"])
def test_the_command_of_advice_asks_for_what_it_recommends(framework: str) -> None:
    advised = pl.rl(**{**SMALL, "framework": framework}, advise=True)
    words = shlex.split(advised.command)
    assert words[:3] == ["paleo-lite", "rl", "qwen3-0.6b"] and "--advise" not in words
    alone = json.loads(CliRunner().invoke(main, [*words[1:], "--format", "json"]).stdout)
    assert alone["time_s"] == pytest.approx(advised.time_s)
    assert pl.rl(**SMALL).command is None

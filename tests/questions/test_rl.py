"""Questions of `rl`: what its options change, and what is refused.

Tests: questions/rl.py, questions/rl_options.py, api/reinforcement.py, api/reinforcement_devices.py,
api/reinforcement_answer.py, reinforcement/trainer.py, reinforcement/rollouts.py,
reinforcement/answer.py, reporting/reinforcement.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, DoesNotFit, UnknownName
from paleo_lite.questions.option import options_of
from paleo_lite.questions.rl_options import Rl
from paleo_lite.reinforcement.algorithms import ALGORITHMS
from paleo_lite.reinforcement.frameworks import FRAMEWORKS
from paleo_lite.reinforcement.step import OF_TRAINER

SMALL = {
    "network": "qwen3-0.6b", "gpu": "h100-sxm", "workers": 8, "prompts": 16, "samples_per_prompt": 8,
    "prompt_tokens": 100, "response_tokens": 400, "max_tokens": 1124,
}  # fmt: skip


def ask(**changes: Any) -> Any:
    return pl.rl(**{**SMALL, **changes})


def test_rl_has_at_most_47_options() -> None:
    assert len(options_of(Rl)) <= 47


def test_only_language_models_are_trained_so() -> None:
    with pytest.raises(BadValue, match="`rl` needs a language model that writes text; resnet50 is not one"):
        pl.rl("resnet50", gpu="h100-sxm", workers=8)


@pytest.mark.parametrize(("engine", "least_s"), [("vllm-0.7", 4e-3), ("sglang-0.3", 0.0), ("vllm-0.5", 11e-3)])
def test_rollouts_run_under_older_engines(engine: str, least_s: float) -> None:
    """Their hosts take 5 and 12 ms instead of 0.8 (records of vLLM), in every iteration of the longest response."""
    newest, older = ask(engine=engine.partition("-")[0]), ask(engine=engine)
    iterations = SMALL["max_tokens"] - SMALL["prompt_tokens"]
    assert older.phases["generation"] > newest.phases["generation"] + 0.9 * iterations * least_s


def test_a_step_is_made_of_its_phases() -> None:
    answer = ask()
    assert answer.time_s == pytest.approx(sum(answer.exposed.values()))
    assert answer.interval[0] < answer.time_s < answer.interval[1] and answer.bound_s < answer.time_s
    assert answer.samples == 128 and answer.mean_tokens == pytest.approx(500, rel=0.02)
    assert answer.tokens_per_s_per_device == pytest.approx(answer.samples * answer.mean_tokens / answer.time_s / 8)
    assert answer.power_w > 0 and answer.usd_per_step > 0
    assert json.loads(json.dumps(answer.to_dict()))["phases"] == answer.phases


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"response_tokens": 800}, "generation"),
        ({"engine_settings": "eager=yes"}, "generation"),
        ({"tools": "turns=3,seconds=2s"}, "generation"),
        ({"engine_settings": "max-sequences=4"}, "generation"),
        ({"updates_per_step": 8}, "update"),
        ({"recompute": "full"}, "update"),
        ({"network": "qwen3-1.7b"}, "transfer"),
        ({"reward": "seconds=9s"}, "rewards"),
        ({"reward": "model=qwen3-0.6b"}, "rewards"),
        ({"algorithm": "ppo"}, "values"),
        ({"framework": "nemo-rl"}, "state"),
    ],
)
def test_what_makes_a_phase_longer(changes: dict[str, Any], phase: str) -> None:
    assert ask(**changes).phases[phase] > ask().phases.get(phase, 0.0)


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"speculation": "tokens=3,acceptance=0.8"}, "generation"),
        ({"workers": 16}, "update"),
        ({"precision": "fp8"}, "update"),
        ({"attention": "flash3"}, "update"),
    ],
)
def test_what_makes_a_phase_shorter(changes: dict[str, Any], phase: str) -> None:
    base = {"network": "qwen3-8b"}
    assert ask(**base, **changes).phases[phase] < ask(**base).phases[phase]


def test_adapters_travel_alone() -> None:
    base = {"network": "qwen3-8b", "workers": 16}
    assert ask(lora=16, **base).phases["transfer"] < ask(**base).phases["transfer"]


def test_a_reference_can_be_left_out() -> None:
    assert "reference_log_probs" in ask().phases
    assert "reference_log_probs" not in ask(reference="no").phases
    assert "reference_log_probs" in ask(algorithm="dapo", reference="yes").phases


def test_pairs_that_are_given_need_no_rollouts() -> None:
    answer = ask(algorithm="dpo")
    assert answer.rollouts is None and "generation" not in answer.phases and "transfer" not in answer.phases


def test_given_pairs_leave_the_reference_on_the_devices() -> None:
    """Without engines nothing makes room; NeMo-RL swaps the reference with the policy all the same."""
    answer, alone = ask(algorithm="dpo"), ask(algorithm="dpo", reference="no")
    assert "state" not in answer.phases and "state" in ask(algorithm="dpo", framework="nemo-rl").phases
    assert answer.trainer_bytes > alone.trainer_bytes
    assert answer.sequences == 2 * answer.samples
    facts = dict(answer.document().facts)
    assert facts["devices"] == "all train, on given responses" and "rollouts" not in facts["memory"]
    assert f"{answer.samples} pairs, {2 * answer.samples} sequences" in facts["step"]


def test_a_critic_moves_its_state_to_the_host_too() -> None:
    """Of state that goes to the host and back for the rollouts; the reference, which both have, is left out."""
    states = {name: ask(algorithm=name, reference="no").phases["state"] for name in ("grpo", "ppo")}
    assert states["ppo"] == pytest.approx(2 * states["grpo"])
    beside = {name: ask(algorithm=name, framework="trl").rollout_bytes for name in ("grpo", "ppo")}
    assert beside["ppo"] > beside["grpo"]


def test_a_reward_model_has_no_adapters() -> None:
    """It takes no longer where the policy has adapters that FSDP shards one by one."""
    scored = {
        rank: ask(framework="verl", lora=rank, reward="model=qwen3-0.6b").phases["rewards"] for rank in (None, 16)
    }
    assert scored[16] == scored[None]


def test_adapters_are_off_under_the_reference() -> None:
    """The reference of adapters is the network without them, and TRL merges them into the weights that it sends."""
    adapters, full = ask(framework="trl", lora=16), ask(framework="trl")
    assert adapters.phases["reference_log_probs"] == pytest.approx(full.phases["reference_log_probs"])
    assert adapters.transferred_bytes == full.transferred_bytes
    assert ask(framework="verl", lora=16).transferred_bytes < full.transferred_bytes / 20


def test_rollouts_that_are_off_hide_the_shorter_side() -> None:
    apart = ask(rollout_workers=4)
    off = ask(rollout_workers=4, steps_off=1)
    assert off.time_s < apart.time_s
    assert off.time_s == pytest.approx(apart.time_s - min(apart.trainer_s, apart.rollouts_s))


def test_padding_costs_the_longest_sample() -> None:
    packed, padded = ask(framework="verl"), ask(framework="trl")
    assert padded.phases["update"] > packed.phases["update"]


def test_state_that_stays_takes_the_memory_of_rollouts() -> None:
    base = {"network": "qwen3-8b", "engine_settings": "memory-fraction=0.5"}
    moved, kept = ask(framework="generic", **base), ask(framework="verl", **base)
    assert kept.rollout_bytes > moved.rollout_bytes and moved.fits
    crowded = ask(framework="verl", network="qwen3-8b", engine_settings="memory-fraction=0.95")
    assert crowded.fits is False
    assert any("engine and trainer do not fit beside each other" in note for note in crowded.notes)


def test_prime_rl_trains_and_generates_on_devices_of_their_own_without_a_reference() -> None:
    """Its rl.py has one device for each by default, and its loss of GRPO has no reference."""
    usual = ask(framework="prime-rl", workers=8)
    assert (usual.is_colocated, usual.trainer_devices, usual.rollout_devices) == (False, 4, 4)
    assert "reference_log_probs" not in usual.phases
    assert "reference_log_probs" in ask(framework="prime-rl", workers=8, reference="yes").phases
    assert ask(framework="prime-rl", workers=8, rollout_workers=6).trainer_devices == 2
    with pytest.raises(BadValue, match="`--framework prime-rl` generates on devices of their own: give 2 `--workers`"):
        ask(framework="prime-rl", workers=1)
    ranked = ask(framework="prime-rl", workers=8, advise=True)
    assert ranked.divisions and all(row.rollout_workers for row in ranked.divisions)


def test_rollouts_of_prime_rl_are_eight_steps_off_unless_stated() -> None:
    """max_off_policy_steps is 8, and no more samples are in flight than a step has (orchestrator.py at 004274e)."""
    usual, stated, in_turns = (ask(framework="prime-rl", **off) for off in ({}, {"steps_off": 8}, {"steps_off": 0}))
    assert (usual.steps_off, in_turns.steps_off) == (8, 0)
    assert usual.time_s == stated.time_s < in_turns.time_s
    assert usual.time_s >= max(usual.trainer_s, usual.rollouts_s)
    assert usual.time_s == pytest.approx(ask(framework="prime-rl", steps_off=2).time_s)
    assert ask(framework="prime-rl", algorithm="dpo").steps_off == 0


@pytest.mark.parametrize("framework", ["verl", "nemo-rl"])
def test_packed_micro_batches_hold_the_longest_sample(framework: str) -> None:
    """Both refuse fewer tokens, which context parallelism shares (test_settings.py)."""
    asked = {"framework": framework, "max_tokens": 40_001, "context_parallel": 2, "workers": 16}
    with pytest.raises(
        BadValue, match=r"longest sample with `--framework .*`: at least 20,001 tokens per device \(got"
    ):
        ask(**asked, micro_batch_tokens=20_000)
    assert ask(**asked, micro_batch_tokens=20_001).time_s > 0
    assert ask(**{**asked, "framework": "slime"}, micro_batch_tokens=20_000).time_s > 0


def test_verl_packs_the_longest_sample_by_default() -> None:
    asked = {"framework": "verl", "max_tokens": 40_001, "context_parallel": 2, "workers": 16}
    usual, stated = ask(**asked), ask(**asked, micro_batch_tokens=20_001)
    assert usual.to_dict() == stated.to_dict()
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20001" in usual.settings
    assert "ppo_max_token_len_per_gpu=16384" in ask(framework="verl").settings


def test_steps_and_epochs_cost_hours() -> None:
    answer = ask(steps=10)
    assert answer.totals.hours == pytest.approx(10 * answer.time_s / 3600)
    assert ask(epochs=2, dataset_prompts=160).totals.steps == 20
    with pytest.raises(BadValue, match="`--epochs` needs the prompts of the data set"):
        ask(epochs=2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rollout_workers": 8}, "must leave devices of the 8 of `--workers` to the trainer"),
        ({"steps_off": 1}, "`--steps-off` needs devices of their own for rollouts: give `--rollout-workers`"),
        ({"steps_off": -1}, "`--steps-off` must be an integer >= 0"),
        ({"rollout_tensor": 3}, "`--rollout-tensor` must divide the 8 devices of rollouts"),
        ({"updates_per_step": 3}, "`--updates-per-step` must divide the 128 samples of a step"),
        ({"max_tokens": 90}, "`--max-tokens` counts prompt and response, and must exceed the 100 tokens"),
        ({"response_tokens": 2000}, "`--response-tokens` must be between 1 and 1,024"),
        ({"tensor": 16}, "must be at most the 8 devices of the trainer"),
        ({"framework": "trl", "tensor": 2}, "`--tensor` needs a trainer that divides blocks, which `--framework trl`"),
        ({"speculation": "acceptance=0.5"}, "`--speculation` needs tokens=N"),
        ({"tools": "turns=3"}, "`--tools` needs turns=N of at least 2, and seconds=TIME"),
        ({"tools": "seconds=3s"}, "`--tools` needs turns=N of at least 2, and seconds=TIME"),
        ({"reward": "model=resnet50"}, r"`--reward` model=NETWORK must be a language model \(got resnet50\)"),
        ({"reward": "model=qwen3-0.6b,seconds=3s"}, "give only one of model and seconds of `--reward`"),
        ({"algorithm": "dpo", "rollout_tensor": 2}, "`--rollout-tensor` is for rollouts, and `--algorithm dpo` learns"),
        ({"algorithm": "dpo", "reward": "seconds=3s"}, "`--reward` is for rollouts"),
        ({"algorithm": "dpo", "advise": True}, "`--advise` is for rollouts"),
        ({"algorithm": "sft", "reference": "yes"}, "`--reference yes` is not for `--algorithm sft`"),
        ({"gpu": "a100-sxm-80gb", "attention": "flash3"}, "`--attention flash3` has kernels for compute capability 9"),
        ({"network": None}, "`rl` needs a language model"),
        ({"gpu": None}, "give the device with `--gpu`"),
        ({"prompts": 1, "samples_per_prompt": 4}, "a step of 4 samples is for fewer engines than 8: give more"),
    ],
)
def test_impossible_questions_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        ask(**changes)


def test_steps_off_is_not_advised_where_no_devices_can_be_divided() -> None:
    advised = {workers: any("--steps-off" in note for note in ask(workers=workers).notes) for workers in (1, 8)}
    assert advised == {1: False, 8: True}


def test_rollouts_that_do_not_fit_are_one_sentence() -> None:
    """The sentence of a server, with the option that this command has, and without the remedies of `serve`."""
    with pytest.raises(DoesNotFit, match=r"rollouts do not fit with `--rollout-tensor 1`: llama") as raised:
        ask(network="llama-3.1-70b", tensor=8)
    assert "(`--engine-settings memory-fraction`): " in str(raised.value) and "--pipeline" not in str(raised.value)


def test_devices_without_a_usual_computer_are_assumed_in_nodes() -> None:
    answer = ask(gpu="h20", workers=16, network="qwen3-8b", tensor=8)
    assert "assumed: 8x h20 @ nvlink4-x18, 2 nodes @ 8x infiniband-ndr" in answer.notes


def test_several_values_are_compared() -> None:
    compared = ask(rollout_workers=[2, 4, 6], steps_off=1)
    assert [row["rollout_workers"] for row in compared.rows] == [2, 4, 6]
    assert all(row["generation_s"] > 0 for row in compared.rows)


def test_devices_into_which_a_step_does_not_fit_are_marked_beside_others() -> None:
    question = {**SMALL, "network": "qwen3-8b"}
    (table,) = pl.rl(**{**question, "gpu": ["h100-sxm", "l40s"]}).document().tables
    fits = next(column for column in table.columns if column.key == "fits")
    assert [fits.text(row) for row in table.rows] == ["yes", "no"]
    (table,) = ask(gpu=["h100-sxm", "l40s"]).document().tables
    assert not [column for column in table.columns if column.key == "fits"]


def test_the_command_prints_a_step() -> None:
    words = "rl qwen3-0.6b --gpu h100-sxm --prompts 16 --samples-per-prompt 8 --response-tokens 400 --steps 5"
    said = CliRunner().invoke(main, words.split())
    assert said.exit_code == 0, said.output
    assert "generation of samples" in said.stdout and "live sequences of an engine" in said.stdout
    (trainer,) = re.findall(r"^ +trainer +(.+)$", said.stdout, re.MULTILINE)
    names = trainer.split(", ")
    assert len(names) == len(set(names))
    data = json.loads(CliRunner().invoke(main, [*words.split(), "--format", "json"]).stdout)
    assert data["time_s"] > 0 and data["totals"]["steps"] == 5 and data["rollouts"]["engines"] == 8


def test_tools_are_waited_for_between_the_turns() -> None:
    """Three turns wait twice, in the fastest and in the slowest rollouts, too."""
    plain, with_tools = ask().rollouts, ask(tools="turns=3,seconds=2s").rollouts
    for end in ("time_s", "low_s", "high_s"):
        assert getattr(with_tools, end) - getattr(plain, end) == pytest.approx(4.0)


def test_tools_that_take_long_set_the_pace_of_rollouts_that_are_off() -> None:
    """By Little's law: 32 samples of an engine wait 100 times as long as they decode, with 64 others in flight.

    Where most of the three steps are live a tool takes no time of them.
    """
    off = {"rollout_workers": 4, "steps_off": 2}
    long, longer = (ask(**off, tools=f"turns=2,seconds={seconds}s").phases["generation"] for seconds in (600, 1200))
    assert long == pytest.approx(600 * 32 / 96, rel=0.01) and longer == pytest.approx(2 * long, rel=0.01)
    full = {**off, "engine_settings": "max-sequences=8"}
    assert ask(**full, tools="turns=2,seconds=1s").phases["generation"] == ask(**full).phases["generation"]


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_a_rank_computes_its_samples_in_micro_batches(micro_batch: int) -> None:
    said = ask(micro_batch=micro_batch, updates_per_step=2).trainer
    count = 128 // 2 // 8 // micro_batch
    assert f": {count} micro-batch{'es' if count > 1 else ''} of {micro_batch}" in said


def test_rollouts_wait_for_memory_where_samples_do_not_fit_at_once() -> None:
    assert not ask().rollouts.waits_for_memory
    short = ask(network="qwen3-8b", gpu="rtx-4090", samples_per_prompt=64, response_tokens=4000, max_tokens=8192)
    assert short.rollouts.waits_for_memory


@pytest.mark.parametrize(
    ("samples_per_prompt", "said"),
    [(64, "samples at a time: others wait"), (16, "samples at a time: some are preempted and computed again")],
)
def test_a_full_cache_says_whether_others_wait_or_are_preempted(samples_per_prompt: int, said: str) -> None:
    """Of 16.4 GB of weights in 24 GB, a cache is left for a few samples: all of few start, but cannot end together."""
    answer = ask(
        network="qwen3-8b", gpu="rtx-4090", samples_per_prompt=samples_per_prompt, response_tokens=4000, max_tokens=8192
    )
    (note,) = [note for note in answer.notes if note.startswith("the cache of an engine")]
    assert said in note
    assert (answer.rollouts.most_live < answer.rollouts.samples_per_engine) == ("others wait" in note)


def test_help_names_every_framework_and_algorithm() -> None:
    options = options_of(Rl)
    assert all(name in options["framework"].help for name in FRAMEWORKS)
    assert all(name in options["algorithm"].help for name in ALGORITHMS)


def test_without_a_price_a_step_has_no_cost() -> None:
    answer = ask(gpu="h100-sxm", price="2.5")
    assert answer.usd_per_step == pytest.approx(8 * 2.5 * answer.time_s / 3600)


def test_micro_batches_that_are_not_full_are_counted_by_their_mean() -> None:
    """16 samples of a rank in micro-batches of at most 3, as verl splits them: five of 3, and one of 1."""
    assert ask(micro_batch=3).trainer.endswith("6 micro-batches of 2.67 on average")
    assert ask(micro_batch=4).trainer.endswith("4 micro-batches of 4")


def test_the_trainer_needs_the_memory_of_its_longest_micro_batch() -> None:
    """Two samples of 4,196 tokens may meet in a micro-batch, however long samples are on average."""
    asked = {"max_tokens": 4196, "micro_batch": 2, "recompute": "none"}
    short, long, shorter = (
        ask(**{**asked, **changes}).trainer_bytes
        for changes in ({"response_tokens": 400}, {"response_tokens": 3500}, {"max_tokens": 2148})
    )
    assert short == pytest.approx(long) and short > 1.2 * shorter


def test_eager_attention_needs_the_weights_of_the_longest_sample() -> None:
    """28 blocks of Qwen3 0.6B save 16 heads of 4,196 by 4,196 weights in 16 bits, in place of a result of 2,048."""
    asked = {"max_tokens": 4196, "micro_batch": 1, "recompute": "none"}
    eager, fused = (ask(attention=name, **asked).trainer_bytes for name in ("eager", "flash2"))
    assert eager - fused == pytest.approx(28 * 2 * (16 * 4196**2 - 2048 * 4196), rel=0.03)


def test_devices_draw_no_more_than_their_limit_while_they_work() -> None:
    """In asynchronous steps trainers and engines work a part of the time, and wait at a few watts in the rest."""
    asked: dict[str, Any] = {"gpu": "h100-sxm", "workers": 16, "rollout_workers": 8, "steps_off": 2}
    found = pl.rl("qwen3-8b", **asked, prompts=32, samples_per_prompt=8, response_tokens=2000, max_tokens=8192)
    trainer_s = sum(found.phases.get(name, 0.0) for name in OF_TRAINER)
    working_s = 8 * trainer_s + 8 * found.phases["generation"]
    waiting_s = 16 * found.time_s - working_s
    assert found.power is not None and found.energy_j is not None and waiting_s > 0
    assert found.energy_j <= 700 * working_s + found.power.idle_w * waiting_s


def test_a_trainer_recomputes_what_its_largest_micro_batch_requires() -> None:
    """12 samples of the mean length have more tokens than the 3 longest ones that a micro-batch takes."""
    found = pl.rl("qwen3-8b", gpu="h100-sxm", workers=16, framework="slime")
    assert found.trainer_bytes is not None and found.trainer_bytes <= found.usable_bytes


def test_engines_that_do_not_run_on_the_devices_get_a_note() -> None:
    """SGLang and vLLM from 0.17 on need compute capability 7.5, of which a V100 has 7.0."""
    asked = {"gpu": "v100-sxm2-32gb", "workers": 8, "response_tokens": 200, "precision": "fp16"}
    notes = pl.rl("qwen3-0.6b", **asked).notes
    assert any(note.startswith("rollouts do not run: vllm (0.17 and later) needs") for note in notes)
    assert not any("do not run" in note for note in pl.rl("qwen3-0.6b", **{**asked, "gpu": "a100-sxm-80gb"}).notes)


def test_offload_is_refused_where_no_engine_needs_the_room() -> None:
    with pytest.raises(BadValue, match="`--offload` makes room for engines on the devices of the trainer"):
        ask(offload="optimizer", rollout_workers=4)
    with pytest.raises(BadValue, match="`--offload` makes room"):
        ask(offload="optimizer", algorithm="dpo")
    assert ask(offload="optimizer", algorithm="dpo", framework="verl").time_s > 0


def test_an_unknown_state_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnknownName, match=r"valid names: none, optimizer"):
        ask(offload="cpu")
    with pytest.raises(UnknownName, match=r"did you mean optimizer"):
        ask(offload="optimizer+optimizer")


def test_states_are_given_in_any_order() -> None:
    changes = {"framework": "verl", "network": "qwen3-4b"}
    asked, stated = ask(offload="parameters+optimizer", **changes), ask(offload="optimizer+parameters", **changes)
    assert asked.time_s == stated.time_s > ask(offload="optimizer", **changes).time_s


@pytest.mark.parametrize("tensor", [3, 32])
def test_engines_divide_heads_as_servers_do(tensor: int) -> None:
    """Qwen3 0.6B has 16 heads of attention; the message names the option of rollouts."""
    with pytest.raises(BadValue, match=f"`--rollout-tensor {tensor}` does not divide the 16 attention heads"):
        ask(workers=96, rollout_tensor=tensor)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rollout_tensor": 2, "engine_settings": "experts=4"},
         r"`--engine-settings experts` must divide the 2 devices of `--rollout-tensor` \(got 4\)"),
        ({"rollout_tensor": 2, "engine_settings": "experts=2"}, "`--engine-settings experts` needs a mixture"),
        ({"network": "mixtral-8x7b", "workers": 16, "rollout_tensor": 16, "engine_settings": "experts=16"},
         "`--engine-settings experts=16` does not divide the 8 experts of mixtral-8x7b"),
    ],
)  # fmt: skip
def test_experts_of_engines_are_refused_in_the_words_of_rollouts(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        ask(**changes)


def test_engines_over_several_nodes_wait_for_their_network() -> None:
    over_nodes, inside = ask(workers=16, rollout_tensor=16), ask(workers=16, rollout_tensor=8)
    assert any("an engine is on several nodes of 8 devices" in note for note in over_nodes.notes)
    assert not any("several nodes" in note for note in inside.notes)

"""Settings in the words of frameworks: every key is one of the configuration of its algorithm."""

from __future__ import annotations

from typing import Any

import pytest

from paleo_lite.reinforcement.algorithms import ALGORITHMS
from paleo_lite.reinforcement.settings import Described, settings_notes, settings_text

NEMO_TRAINER = [
    "train_global_batch_size",
    "train_micro_batch_size",
    "max_total_sequence_length",
    "dtensor_cfg.enabled",
    "dtensor_cfg.tensor_parallel_size",
    "dtensor_cfg.context_parallel_size",
    "megatron_cfg.enabled",
    "megatron_cfg.tensor_model_parallel_size",
    "megatron_cfg.pipeline_model_parallel_size",
    "megatron_cfg.context_parallel_size",
    "megatron_cfg.expert_model_parallel_size",
    "dynamic_batching.enabled",
    "sequence_packing.enabled",
]

PACKING = ["train_mb_tokens", "logprob_mb_tokens"]

NEMO_GENERATION = [
    "vllm_cfg.tensor_parallel_size",
    "vllm_cfg.enforce_eager",
    "vllm_cfg.precision",
    "vllm_cfg.gpu_memory_utilization",
    "vllm_cfg.async_engine",
    "colocated.enabled",
    "colocated.resources.num_nodes",
    "colocated.resources.gpus_per_node",
]

GROUPS = ("num_prompts_per_step", "num_generations_per_prompt")

# examples/configs of NVIDIA-NeMo/RL: grpo_math_1B.yaml, ppo_math_1B.yaml, dpo.yaml, sft.yaml, distillation_math.yaml
CORRECTION = {"loss_fn": ["use_importance_sampling_correction"]}
POLICY = {"policy": ["logprob_batch_size"], "policy.sequence_packing": PACKING}
NEMO = {
    "grpo": {**CORRECTION, **POLICY, "grpo": [*GROUPS, "async_grpo.enabled", "async_grpo.max_trajectory_age_steps"]},
    "ppo": {
        **CORRECTION,
        **POLICY,
        "value.sequence_packing": PACKING,
        "ppo": [*GROUPS, "async_ppo.enabled", "async_ppo.max_trajectory_age_steps"],
        "value": NEMO_TRAINER,
    },
    "dpo": {},
    "sft": {"policy.sequence_packing": ["train_mb_tokens"]},
    "distillation": {
        **POLICY,
        "distillation": [*GROUPS],
        "teacher": [*NEMO_TRAINER, "logprob_batch_size"],  # which takes over the section of the policy
        "teacher.sequence_packing": PACKING,
    },
}  # fmt: skip

# verl/trainer/config of volcengine/verl: _generated_ppo_trainer.yaml, its twin of Megatron-LM, sft_trainer_engine.yaml
VERL = {
    "rollouts": {
        "algorithm": ["adv_estimator"],
        "data": ["train_batch_size", "max_prompt_length", "max_response_length"],
        "trainer": ["nnodes", "n_gpus_per_node"],
        "rollout": ["nnodes", "n_gpus_per_node"],  # one_step_off_ppo_trainer.yaml
        "actor_rollout_ref.actor": [
            "ppo_mini_batch_size", "use_kl_loss", "strategy", "ulysses_sequence_parallel_size",
            "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu",
            "megatron.tensor_model_parallel_size", "megatron.pipeline_model_parallel_size",
            "megatron.context_parallel_size", "megatron.expert_model_parallel_size",
        ],
        "actor_rollout_ref.rollout": [
            "n", "tensor_model_parallel_size", "enforce_eager", "gpu_memory_utilization",
            "log_prob_micro_batch_size_per_gpu",
        ],
        "actor_rollout_ref.ref": ["log_prob_micro_batch_size_per_gpu"],
        "actor_rollout_ref": ["hybrid_engine"],
        "critic": ["ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu"],
    },
    "sft": {
        "": ["engine"],
        "trainer": ["nnodes", "n_gpus_per_node"],
        "data": [
            "train_batch_size", "use_dynamic_bsz", "micro_batch_size_per_gpu", "max_token_len_per_gpu", "max_length",
        ],
        "engine": [
            "ulysses_sequence_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
            "context_parallel_size", "expert_model_parallel_size",
        ],
    },
}  # fmt: skip

SECTIONS = {"dapo": "grpo", "rloo": "grpo", "reinforce++": "grpo"}


def keys_of(sections: dict[str, list[str]]) -> set[str]:
    """Return the keys of a configuration."""
    return {f"{section}.{name}".lstrip(".") for section, names in sections.items() for name in names}


def described(algorithm: str, **changes: Any) -> Described:
    """Return a step of 32 prompts with 4 samples each."""
    step = Described(
        algorithm=algorithm, prompts=32, samples_per_prompt=4, updates=2, prompt_tokens=100, max_tokens=1124,
        micro_batch=4, micro_batch_tokens=None, samples_of_rank=4, trainer_devices=24,
        tensor=1, pipeline=1, context_parallel=2, expert_parallel=1, is_megatron=False, precision="bf16",
        rollout_tensor=2, rollout_precision="fp8", rollout_devices=8, devices=32, devices_per_node=8,
        is_colocated=False, steps_off=1, is_eager=False, memory_fraction=0.6, has_reference=True,
        offload=None, lora=None,
    )  # fmt: skip
    return step._replace(**changes)


def settings_of(framework: str, step: Described) -> dict[str, str]:
    """Return the settings by key."""
    return dict(line.split("=", maxsplit=1) for line in settings_text(framework, step).splitlines())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("is_megatron", [False, True])
@pytest.mark.parametrize("tokens", [None, 16_384])
def test_every_key_exists_in_the_configuration_of_the_algorithm(
    algorithm: str, is_megatron: bool, tokens: int | None
) -> None:
    step = described(algorithm, is_megatron=is_megatron, micro_batch_tokens=tokens)
    section = SECTIONS.get(algorithm, algorithm)
    common = {"cluster": ["num_nodes", "gpus_per_node"], "policy": NEMO_TRAINER}
    known = keys_of(common) | keys_of(NEMO[section])
    if ALGORITHMS[algorithm].rolls_out and section != "sft":
        known |= keys_of({"policy.generation": NEMO_GENERATION})
    found = set(settings_of("nemo-rl", step))
    assert found and found <= known
    found = set(settings_of("verl", step))
    assert found <= keys_of(VERL["sft" if section == "sft" else "rollouts"])
    assert bool(found) == (algorithm not in ("dpo", "distillation"))


@pytest.mark.parametrize(
    ("framework", "algorithm", "is_megatron", "keys"),
    [  # of the same files, of grpo_math_1B_lora_megatron.yaml and of hf_model.yaml
        ("nemo-rl", "grpo", False, ["policy.dtensor_cfg.lora_cfg.enabled", "policy.dtensor_cfg.lora_cfg.dim"]),
        ("nemo-rl", "grpo", True, ["policy.megatron_cfg.peft.enabled", "policy.megatron_cfg.peft.dim"]),
        ("nemo-rl", "dpo", True, []),
        ("nemo-rl", "distillation", False, []),
        ("verl", "grpo", False, ["actor_rollout_ref.model.lora_rank"]),
        ("verl", "grpo", True, []),
        ("verl", "sft", False, ["model.lora_rank"]),
    ],
)
def test_adapters_have_the_keys_of_their_stack(
    framework: str, algorithm: str, is_megatron: bool, keys: list[str]
) -> None:
    whole, adapted = (
        settings_of(framework, described(algorithm, is_megatron=is_megatron, lora=rank)) for rank in (None, 32)
    )
    assert {key: value for key, value in adapted.items() if key not in whole} == {
        key: "true" if key.endswith("enabled") else "32" for key in keys
    }


def test_preference_pairs_are_the_samples_of_nemo_rl() -> None:
    """Its trainer doubles both batch sizes, for the chosen and the rejected response of a pair."""
    pairs = settings_of("nemo-rl", described("dpo", samples_per_prompt=1))
    assert pairs["policy.train_global_batch_size"] == "16" and pairs["policy.train_micro_batch_size"] == "2"
    assert not any(key.startswith(("grpo", "policy.generation")) for key in pairs)


def test_one_of_two_trainers_of_nemo_rl_is_enabled() -> None:
    settings = settings_of("nemo-rl", described("grpo", is_megatron=True))
    assert settings["policy.dtensor_cfg.enabled"] == "false" and settings["policy.megatron_cfg.enabled"] == "true"


def test_a_framework_without_words_has_no_settings() -> None:
    assert settings_text("slime", described("grpo")) == ""


@pytest.mark.parametrize(
    ("trainer", "rollouts", "pools"),
    [(8, 8, ("1", "8", "1", "8")), (4, 12, ("1", "4", "3", "4")), (16, 16, ("2", "8", "2", "8")), (6, 2, "1612")],
)
def test_pools_of_verl_share_no_devices(trainer: int, rollouts: int, pools: tuple[str, ...]) -> None:
    """verl refuses pools that have more devices than the cluster; recipe/one_step_off_policy has them so."""
    total = trainer + rollouts
    step = described("grpo", trainer_devices=trainer, rollout_devices=rollouts, devices=total, rollout_tensor=1)
    settings = settings_of("verl", step)
    keys = ("trainer.nnodes", "trainer.n_gpus_per_node", "rollout.nnodes", "rollout.n_gpus_per_node")
    assert tuple(settings[key] for key in keys) == tuple(pools)
    assert settings["actor_rollout_ref.hybrid_engine"] == "false"
    assert settings["actor_rollout_ref.actor.strategy"] == "fsdp2"  # its README: FSDP2 and Megatron


def test_one_pool_of_verl_has_all_devices_that_train_and_generate() -> None:
    step = described("grpo", trainer_devices=32, rollout_devices=32, is_colocated=True)
    settings = settings_of("verl", step)
    assert (settings["trainer.nnodes"], settings["trainer.n_gpus_per_node"]) == ("4", "8")
    assert not any(key.startswith("rollout.") or key.endswith("hybrid_engine") for key in settings)


@pytest.mark.parametrize(
    ("devices", "rollouts", "resources"), [(16, 8, ("1", "8")), (8, 3, ("1", "3")), (16, 12, None)]
)
def test_engines_of_nemo_rl_have_whole_nodes_of_several(
    devices: int, rollouts: int, resources: tuple[str, str] | None
) -> None:
    """`setup` of nemo_rl/algorithms/grpo.py asserts gpus_per_node == cluster.gpus_per_node if num_nodes > 1."""
    step = described("grpo", devices=devices, rollout_devices=rollouts, trainer_devices=devices - rollouts)
    settings, section = settings_of("nemo-rl", step), "policy.generation.colocated.resources"
    found = (settings.get(f"{section}.num_nodes"), settings.get(f"{section}.gpus_per_node"))
    assert found == (resources or (None, None))
    notes = settings_notes("nemo-rl", step)
    is_noted = any("NeMo-RL gives engines whole nodes of 8 devices, not 12 of 16" in note for note in notes)
    assert is_noted == (resources is None)


def test_rollouts_of_nemo_rl_that_are_off_have_what_it_asserts() -> None:
    """docs/guides/async-grpo.md: an asynchronous engine, and the correction by importance sampling."""
    keys = ("policy.generation.vllm_cfg.async_engine", "loss_fn.use_importance_sampling_correction")
    for steps_off, expected in ((1, "true"), (0, None)):
        settings = settings_of("nemo-rl", described("grpo", steps_off=steps_off))
        assert [settings.get(key) for key in keys] == [expected] * 2


def test_verl_packs_where_the_forecast_does() -> None:
    """`rearrange_micro_batches` of verl refuses fewer tokens than the longest sample, which a context shares."""
    actor = "actor_rollout_ref.actor"
    packed = settings_of("verl", described("grpo", micro_batch_tokens=16_384))
    assert packed[f"{actor}.use_dynamic_bsz"] == "true" and packed[f"{actor}.ppo_max_token_len_per_gpu"] == "16384"
    assert not any("micro_batch_size" in key for key in packed)
    assert not settings_notes("verl", described("grpo", micro_batch_tokens=16_384, micro_batch=3, samples_of_rank=64))


PACKING_KEYS = [
    "dynamic_batching.enabled", "sequence_packing.enabled", "sequence_packing.train_mb_tokens",
    "sequence_packing.logprob_mb_tokens",
]  # fmt: skip


@pytest.mark.parametrize(
    ("network", "algorithm", "changes", "expected"),
    [  # a bin has the tokens of all devices that divide a sequence (BatchedDataDict.shard_by_batch_size)
        ("policy", "grpo", {"context_parallel": 1}, ["false", "false", None, None]),
        ("policy", "grpo", {"context_parallel": 1, "micro_batch_tokens": 8192}, ["false", "true", "8192", "8192"]),
        (
            "policy", "grpo", {"is_megatron": True, "micro_batch_tokens": 8192, "context_parallel": 2},
            ["false", "true", "16384", "16384"],
        ),
        ("policy", "grpo", {"is_megatron": True, "micro_batch": 2}, ["false", "true", "2248", "2248"]),
        ("policy", "grpo", {"micro_batch_tokens": 8192}, ["false", "false", None, None]),
        ("value", "ppo", {"context_parallel": 1, "micro_batch_tokens": 8192}, ["false", "true", "8192", "8192"]),
        ("policy", "sft", {"context_parallel": 1, "micro_batch_tokens": 8192}, ["false", "true", "8192", None]),
        ("policy", "dpo", {"context_parallel": 1, "micro_batch_tokens": 8192}, ["false", "false", None, None]),
    ],
)  # fmt: skip
def test_nemo_rl_packs_where_the_forecast_does(
    network: str, algorithm: str, changes: dict[str, Any], expected: list[str | None]
) -> None:
    """docs/design-docs/sequence-packing-and-dynamic-batching.md: Megatron-LM divides packed sequences, FSDP others."""
    settings = settings_of("nemo-rl", described(algorithm, **changes))
    assert [settings.get(f"{network}.{key}") for key in PACKING_KEYS] == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"micro_batch_tokens": 8192},
            "does not pack sequences that FSDP divides: its settings have micro-batches of 4",
        ),
        ({"is_megatron": True, "micro_batch": 2}, "`--micro-batch-tokens 1124` predicts it"),
        ({"is_megatron": True, "micro_batch_tokens": 8192}, None),
        ({"context_parallel": 1}, None),
    ],
)
def test_nemo_rl_says_where_it_packs_otherwise(changes: dict[str, Any], words: str | None) -> None:
    notes = settings_notes("nemo-rl", described("grpo", rollout_devices=8, **changes))
    assert (words is None and not notes) or any(words is not None and words in note for note in notes)


@pytest.mark.parametrize(
    ("framework", "key"),
    [("verl", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"), ("nemo-rl", "policy.train_micro_batch_size")],
)
def test_micro_batches_divide_the_samples_of_a_rank(framework: str, key: str) -> None:
    """Both assert it: verl/workers/fsdp_workers.py, and nemo_rl/distributed/batched_data_dict.py."""
    step = described("grpo", micro_batch=3, samples_of_rank=64)
    assert settings_of(framework, step)[key] == "2"
    assert any("settings have 2 samples each, the forecast 3" in note for note in settings_notes(framework, step))
    assert not settings_notes(framework, described("grpo", micro_batch=4, samples_of_rank=64))


@pytest.mark.parametrize(("steps_off", "is_noted"), [(0, True), (1, False), (3, True)])
def test_verl_with_two_pools_is_one_step_off(steps_off: int, is_noted: bool) -> None:
    """recipe/one_step_off_policy/README.md: generation of the next batch goes on beside the training on this one."""
    notes = settings_notes("verl", described("grpo", steps_off=steps_off))
    assert any("`--steps-off 1` predicts it" in note for note in notes) == is_noted
    assert not settings_notes("verl", described("grpo", steps_off=0, is_colocated=True))


@pytest.mark.parametrize(("is_megatron", "section"), [(False, "fsdp_config"), (True, "megatron")])
def test_verl_is_told_which_state_is_offloaded(is_megatron: bool, section: str) -> None:
    """Keys of actor/dp_actor.yaml and actor/megatron_actor.yaml; without the option they keep their defaults."""
    keys = [f"actor_rollout_ref.actor.{section}.{name}" for name in ("param_offload", "optimizer_offload")]
    asked = settings_of("verl", described("grpo", is_megatron=is_megatron, offload="optimizer"))
    assert [asked[key] for key in keys] == ["false", "true"]
    usual = settings_of("verl", described("grpo", is_megatron=is_megatron))
    assert not usual.keys() & set(keys)

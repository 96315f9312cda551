"""The settings of a step in the words of a framework: Hydra overrides of NeMo-RL and of verl.

Names are those of `examples/configs` of NVIDIA-NeMo/RL 7ea279a, and of `verl/trainer/config` of volcengine/verl
b178a3c.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Described(NamedTuple):
    """A step as settings describe it."""

    algorithm: str
    prompts: int
    samples_per_prompt: int
    updates: int
    prompt_tokens: int
    max_tokens: int
    micro_batch: int
    tensor: int
    pipeline: int
    context_parallel: int
    expert_parallel: int
    is_megatron: bool
    precision: str
    rollout_tensor: int
    rollout_precision: str
    rollout_devices: int
    devices: int
    devices_per_node: int
    is_colocated: bool
    steps_off: int
    is_eager: bool
    memory_fraction: float | None
    has_reference: bool


def settings_text(framework: str, step: Described) -> str:
    """Return the settings, one per line; empty where the words of the framework are not known."""
    write = _WRITERS.get(framework)
    return "" if write is None else "\n".join(f"{name}={_text(value)}" for name, value in write(step).items())


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nemo_settings(step: Described) -> dict[str, Any]:
    """Return the overrides of NeMo-RL, whose batches are counted in samples."""
    samples = step.prompts * step.samples_per_prompt
    megatron = "policy.megatron_cfg"
    generation = "policy.generation"
    settings: dict[str, Any] = {
        "cluster.num_nodes": max(step.devices // step.devices_per_node, 1),
        "cluster.gpus_per_node": min(step.devices, step.devices_per_node),
        "grpo.num_prompts_per_step": step.prompts,
        "grpo.num_generations_per_prompt": step.samples_per_prompt,
        "policy.train_global_batch_size": samples // step.updates,
        "policy.train_micro_batch_size": step.micro_batch,
        "policy.max_total_sequence_length": step.max_tokens,
        f"{megatron}.enabled": step.is_megatron,
    }
    if step.is_megatron:
        settings[f"{megatron}.tensor_model_parallel_size"] = step.tensor
        settings[f"{megatron}.pipeline_model_parallel_size"] = step.pipeline
        settings[f"{megatron}.context_parallel_size"] = step.context_parallel
        settings[f"{megatron}.expert_model_parallel_size"] = step.expert_parallel
    else:
        settings["policy.dtensor_cfg.tensor_parallel_size"] = step.tensor
        settings["policy.dtensor_cfg.context_parallel_size"] = step.context_parallel
    settings[f"{generation}.vllm_cfg.tensor_parallel_size"] = step.rollout_tensor
    settings[f"{generation}.vllm_cfg.enforce_eager"] = step.is_eager
    if step.rollout_precision != step.precision:
        settings[f"{generation}.vllm_cfg.precision"] = step.rollout_precision
    if step.memory_fraction is not None:
        settings[f"{generation}.vllm_cfg.gpu_memory_utilization"] = step.memory_fraction
    settings[f"{generation}.colocated.enabled"] = step.is_colocated
    if not step.is_colocated:
        resources = f"{generation}.colocated.resources"
        settings[f"{resources}.num_nodes"] = max(step.rollout_devices // step.devices_per_node, 1)
        settings[f"{resources}.gpus_per_node"] = min(step.rollout_devices, step.devices_per_node)
    settings["grpo.async_grpo.enabled"] = step.steps_off > 0
    if step.steps_off:
        settings["grpo.async_grpo.max_trajectory_age_steps"] = step.steps_off
    return settings


ESTIMATORS = {"grpo": "grpo", "dapo": "grpo", "ppo": "gae", "rloo": "rloo", "reinforce++": "reinforce_plus_plus"}
"""Estimators of advantages in verl, by algorithm."""


def _verl_settings(step: Described) -> dict[str, Any]:
    """Return the overrides of verl, whose batches are counted in prompts."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    settings: dict[str, Any] = {
        "trainer.nnodes": max(step.devices // step.devices_per_node, 1),
        "trainer.n_gpus_per_node": min(step.devices, step.devices_per_node),
        "algorithm.adv_estimator": ESTIMATORS.get(step.algorithm, step.algorithm),
        "data.train_batch_size": step.prompts,
        "data.max_prompt_length": step.prompt_tokens,
        "data.max_response_length": step.max_tokens - step.prompt_tokens,
        f"{rollout}.n": step.samples_per_prompt,
        f"{actor}.ppo_mini_batch_size": max(step.prompts // step.updates, 1),
        f"{actor}.use_kl_loss": step.has_reference,
        f"{actor}.strategy": "megatron" if step.is_megatron else "fsdp2",
    }
    if step.is_megatron:
        settings[f"{actor}.megatron.tensor_model_parallel_size"] = step.tensor
        settings[f"{actor}.megatron.pipeline_model_parallel_size"] = step.pipeline
        settings[f"{actor}.megatron.context_parallel_size"] = step.context_parallel
        settings[f"{actor}.megatron.expert_model_parallel_size"] = step.expert_parallel
    else:
        settings[f"{actor}.ulysses_sequence_parallel_size"] = step.context_parallel
    settings[f"{actor}.ppo_micro_batch_size_per_gpu"] = step.micro_batch
    settings[f"{rollout}.tensor_model_parallel_size"] = step.rollout_tensor
    settings[f"{rollout}.enforce_eager"] = step.is_eager
    if step.memory_fraction is not None:
        settings[f"{rollout}.gpu_memory_utilization"] = step.memory_fraction
    if not step.is_colocated:
        settings["rollout.nnodes"] = max(step.rollout_devices // step.devices_per_node, 1)
        settings["rollout.n_gpus_per_node"] = min(step.rollout_devices, step.devices_per_node)
    return settings


_WRITERS = {"nemo-rl": _nemo_settings, "verl": _verl_settings}
"""Functions that write the settings, by framework."""

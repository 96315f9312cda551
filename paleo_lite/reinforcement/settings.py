"""The settings of a step in the words of a framework: Hydra overrides of NeMo-RL and of verl.

Names are those of `examples/configs` of NVIDIA-NeMo/RL 7ea279a, and of `verl/trainer/config` of volcengine/verl
b178a3c.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..text import format_plural
from .frameworks import OPTIMIZER, PARAMETERS


class Described(NamedTuple):
    """A step as settings describe it."""

    algorithm: str
    prompts: int
    samples_per_prompt: int
    updates: int
    prompt_tokens: int
    max_tokens: int
    micro_batch: int  # samples
    micro_batch_tokens: int | None  # tokens up to which a micro-batch is packed per device; None for some samples each
    samples_of_rank: int  # samples of a data-parallel rank and update
    tensor: int
    pipeline: int
    context_parallel: int
    expert_parallel: int
    is_megatron: bool
    precision: str
    rollout_tensor: int
    rollout_precision: str
    rollout_devices: int
    trainer_devices: int
    devices: int
    devices_per_node: int
    is_colocated: bool
    steps_off: int
    is_eager: bool
    memory_fraction: float | None
    has_reference: bool
    offload: str | None  # state of the trainer that was asked to be in the memory of the host; None for the usual
    lora: int | None  # rank of adapters; None without them


def settings_text(framework: str, step: Described) -> str:
    """Return the settings, one per line; empty where the words of the framework are not known."""
    write = _WRITERS.get(framework)
    return "" if write is None else "\n".join(f"{name}={_text(value)}" for name, value in write(step).items())


def settings_notes(framework: str, step: Described) -> list[str]:
    """Return where the settings cannot say what was predicted, as sentences."""
    find = _NOTES.get(framework)
    return [] if find is None else find(step)


def _pool(devices: int, per_node: int) -> tuple[int, int]:
    """Return nodes and devices per node of some devices: in equal parts of nodes where they fill no whole ones."""
    equal = devices if devices <= per_node else math.gcd(devices, per_node)
    return devices // equal, equal


def _dividing(step: Described) -> int:
    """Return the largest number of samples up to those of a micro-batch that divides the samples of a rank.

    verl/workers/fsdp_workers.py and nemo_rl/distributed/batched_data_dict.py assert that it does.
    """
    return next(size for size in range(step.micro_batch, 0, -1) if step.samples_of_rank % size == 0)


def _notes_on_micro_batches(name: str, step: Described) -> list[str]:
    """Return that a framework has micro-batches of fewer samples than were asked for, if it has."""
    dividing = _dividing(step)
    if dividing == step.micro_batch:
        return []
    return [
        f"micro-batches of {name} divide the {step.samples_of_rank} samples of a rank: its settings have {dividing} "
        f"samples each, the forecast {step.micro_batch}"
    ]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


NEMO_SECTIONS = {
    "grpo": "grpo", "dapo": "grpo", "rloo": "grpo", "reinforce++": "grpo", "ppo": "ppo", "dpo": "dpo", "sft": "sft",
    "distillation": "distillation",
}  # fmt: skip
"""Sections of NeMo-RL's configurations by algorithm.

They are those of `grpo_math_1B.yaml`, `ppo_math_1B.yaml`, `dpo.yaml`, `sft.yaml` and `distillation_math.yaml`.
"""

NEMO_WITHOUT_ROLLOUTS = ("dpo", "sft")
"""Sections whose responses are given, so that nothing is generated."""

NEMO_ADAPTERS = {"dtensor_cfg.lora_cfg": ("grpo", "ppo", "dpo", "sft"), "megatron_cfg.peft": ("grpo", "sft")}
"""Keys of adapters of each stack, with the sections whose configurations have them."""

NEMO_NETWORKS = {"ppo": ("policy", "value"), "distillation": ("policy", "teacher")}
"""Sections of networks by that of the algorithm; otherwise the policy alone."""

NEMO_WITHOUT_PACKING = ("dpo",)
"""Sections whose loss is of pairs, which are not packed (docs/design-docs/sequence-packing-and-dynamic-batching.md)."""

NEMO_ASYNCHRONOUS = {"grpo": "grpo.async_grpo", "ppo": "ppo.async_ppo"}
"""Keys of rollouts some steps off, by section."""


def _nemo_settings(step: Described) -> dict[str, Any]:
    """Return the overrides of NeMo-RL, whose batches are counted in samples, or in pairs of them by `dpo`."""
    section = NEMO_SECTIONS[step.algorithm]
    nodes, per_node = _pool(step.devices, step.devices_per_node)
    settings: dict[str, Any] = {"cluster.num_nodes": nodes, "cluster.gpus_per_node": per_node}
    if section not in NEMO_WITHOUT_ROLLOUTS:
        settings[f"{section}.num_prompts_per_step"] = step.prompts
        settings[f"{section}.num_generations_per_prompt"] = step.samples_per_prompt
    # Both responses of a pair are in one micro-batch (nemo_rl/algorithms/dpo.py).
    micro_batch = max(_dividing(step) // 2, 1) if section == "dpo" else _dividing(step)
    settings["policy.train_global_batch_size"] = step.prompts * step.samples_per_prompt // step.updates
    settings["policy.train_micro_batch_size"] = micro_batch if _nemo_packed_tokens(step) is None else 1
    settings["policy.max_total_sequence_length"] = step.max_tokens
    for network in NEMO_NETWORKS.get(section, ("policy",)):
        settings |= _nemo_trainer(network, step) | _nemo_micro_batches(network, step)
    if section not in NEMO_WITHOUT_ROLLOUTS:
        settings |= _nemo_generation(step)
    asynchronous = NEMO_ASYNCHRONOUS.get(section)
    if asynchronous is not None:
        settings[f"{asynchronous}.enabled"] = step.steps_off > 0
        if step.steps_off:  # both are asserted (async_grpo_train, nemo_rl/algorithms/grpo.py)
            settings[f"{asynchronous}.max_trajectory_age_steps"] = step.steps_off
            settings["policy.generation.vllm_cfg.async_engine"] = True
            settings["loss_fn.use_importance_sampling_correction"] = True
    return settings


def _nemo_trainer(network: str, step: Described) -> dict[str, Any]:
    """Return the overrides of the trainer of a network, `policy` or `value`; one of both stacks is enabled."""
    dtensor, megatron = f"{network}.dtensor_cfg", f"{network}.megatron_cfg"
    settings: dict[str, Any] = {f"{dtensor}.enabled": not step.is_megatron, f"{megatron}.enabled": step.is_megatron}
    if step.is_megatron:
        settings[f"{megatron}.tensor_model_parallel_size"] = step.tensor
        settings[f"{megatron}.pipeline_model_parallel_size"] = step.pipeline
        settings[f"{megatron}.context_parallel_size"] = step.context_parallel
        settings[f"{megatron}.expert_model_parallel_size"] = step.expert_parallel
    else:
        settings[f"{dtensor}.tensor_parallel_size"] = step.tensor
        settings[f"{dtensor}.context_parallel_size"] = step.context_parallel
    adapters = "megatron_cfg.peft" if step.is_megatron else "dtensor_cfg.lora_cfg"
    if step.lora is not None and NEMO_SECTIONS[step.algorithm] in NEMO_ADAPTERS[adapters]:
        settings[f"{network}.{adapters}.enabled"] = True
        settings[f"{network}.{adapters}.dim"] = step.lora
    return settings


def _nemo_packed_tokens(step: Described) -> int | None:
    """Return the tokens of a packed micro-batch of a data-parallel rank; None if it has some samples.

    Context parallelism of Megatron-LM needs packing, and that of DTensor has none
    (docs/design-docs/sequence-packing-and-dynamic-batching.md).
    """
    is_divided = step.context_parallel > 1
    if NEMO_SECTIONS[step.algorithm] in NEMO_WITHOUT_PACKING or (is_divided and not step.is_megatron):
        return None
    if step.micro_batch_tokens is not None:
        return step.micro_batch_tokens * step.context_parallel
    return step.max_tokens * step.micro_batch if is_divided else None


def _nemo_micro_batches(network: str, step: Described) -> dict[str, Any]:
    """Return the overrides of packing of a network: both ways are stated, since defaults differ by algorithm."""
    section, tokens = NEMO_SECTIONS[step.algorithm], _nemo_packed_tokens(step)
    packing = f"{network}.sequence_packing"
    settings: dict[str, Any] = {f"{network}.dynamic_batching.enabled": False, f"{packing}.enabled": tokens is not None}
    if tokens is not None:
        settings[f"{packing}.train_mb_tokens"] = tokens
        if section not in NEMO_WITHOUT_ROLLOUTS:
            settings[f"{packing}.logprob_mb_tokens"] = tokens
    elif section not in NEMO_WITHOUT_ROLLOUTS and network != "value":
        settings[f"{network}.logprob_batch_size"] = _dividing(step)
    return settings


def _nemo_generation(step: Described) -> dict[str, Any]:
    """Return the overrides of the engines."""
    generation = "policy.generation"
    settings: dict[str, Any] = {
        f"{generation}.vllm_cfg.tensor_parallel_size": step.rollout_tensor,
        f"{generation}.vllm_cfg.enforce_eager": step.is_eager,
    }
    if step.rollout_precision != step.precision:
        settings[f"{generation}.vllm_cfg.precision"] = step.rollout_precision
    if step.memory_fraction is not None:
        settings[f"{generation}.vllm_cfg.gpu_memory_utilization"] = step.memory_fraction
    settings[f"{generation}.colocated.enabled"] = step.is_colocated
    if not step.is_colocated and _nemo_divides(step):
        resources = f"{generation}.colocated.resources"
        nodes, per_node = _pool(step.rollout_devices, step.devices_per_node)
        settings[f"{resources}.num_nodes"], settings[f"{resources}.gpus_per_node"] = nodes, per_node
    return settings


def _nemo_divides(step: Described) -> bool:
    """Return whether NeMo-RL can give the engines their devices: of several nodes they get whole ones.

    Its `setup` (nemo_rl/algorithms/grpo.py) asserts that the engines have all devices of their nodes, but for a cluster
    of one node, which is divided.
    """
    return step.devices <= step.devices_per_node or step.rollout_devices % step.devices_per_node == 0


def _nemo_notes_on_micro_batches(step: Described) -> list[str]:
    """Return where the micro-batches of NeMo-RL are others than those of the forecast."""
    tokens = _nemo_packed_tokens(step)
    if tokens is None:
        notes = _notes_on_micro_batches("NeMo-RL", step)
        if step.micro_batch_tokens is None:
            return notes
        reason = (
            "pairs of `dpo`" if NEMO_SECTIONS[step.algorithm] in NEMO_WITHOUT_PACKING else "sequences that FSDP divides"
        )
        samples = format_plural(_dividing(step), "sample")
        return [*notes, f"NeMo-RL does not pack {reason}: its settings have micro-batches of {samples}"]
    if step.micro_batch_tokens is not None:
        return []
    per_device = math.ceil(tokens / step.context_parallel)
    return [
        f"NeMo-RL packs sequences that Megatron-LM divides: its settings pack up to {per_device:,} tokens per device, "
        f"the forecast has {format_plural(step.micro_batch, 'sample')}; `--micro-batch-tokens {per_device}` predicts it"
    ]


def _nemo_notes(step: Described) -> list[str]:
    """Return where the settings of NeMo-RL cannot say what was predicted."""
    notes = _nemo_notes_on_micro_batches(step)
    if NEMO_SECTIONS[step.algorithm] in NEMO_WITHOUT_ROLLOUTS or step.is_colocated or _nemo_divides(step):
        return notes
    return [
        *notes,
        f"NeMo-RL gives engines whole nodes of {step.devices_per_node} devices, not {step.rollout_devices} of "
        f"{step.devices}: its settings leave out their resources",
    ]


ESTIMATORS = {"grpo": "grpo", "dapo": "grpo", "ppo": "gae", "rloo": "rloo", "reinforce++": "reinforce_plus_plus"}
"""Estimators of advantages in verl, by algorithm."""


def _verl_settings(step: Described) -> dict[str, Any]:
    """Return the overrides of verl; empty for what it does not train."""
    if step.algorithm in ESTIMATORS:
        return _verl_rollout_settings(step)
    return _verl_sft_settings(step) if step.algorithm == "sft" else {}


def _verl_devices(section: str, devices: int, step: Described) -> dict[str, Any]:
    """Return the overrides of a pool of devices, which shares no device with another.

    A pool is a placement group of Ray per node, and several of them may lie on one node (RayResourcePool,
    verl/single_controller/ray/base.py).
    """
    nodes, per_node = _pool(devices, step.devices_per_node)
    return {f"{section}.nnodes": nodes, f"{section}.n_gpus_per_node": per_node}


def _verl_degrees(section: str, step: Described) -> dict[str, Any]:
    """Return the overrides of the degrees of Megatron-LM, of a section of the configuration."""
    return {
        f"{section}.tensor_model_parallel_size": step.tensor,
        f"{section}.pipeline_model_parallel_size": step.pipeline,
        f"{section}.context_parallel_size": step.context_parallel,
        f"{section}.expert_model_parallel_size": step.expert_parallel,
    }


def _verl_rollout_settings(step: Described) -> dict[str, Any]:
    """Return the overrides of `ppo_trainer.yaml`, whose batches are counted in prompts."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    sharding = "fsdp" if step.is_colocated else "fsdp2"  # recipe/one_step_off_policy has no other
    settings = _verl_devices("trainer", step.trainer_devices, step)
    settings |= {
        "algorithm.adv_estimator": ESTIMATORS[step.algorithm],
        "data.train_batch_size": step.prompts,
        "data.max_prompt_length": step.prompt_tokens,
        "data.max_response_length": step.max_tokens - step.prompt_tokens,
        f"{rollout}.n": step.samples_per_prompt,
        f"{actor}.ppo_mini_batch_size": max(step.prompts // step.updates, 1),
        f"{actor}.use_kl_loss": step.has_reference,
        f"{actor}.strategy": "megatron" if step.is_megatron else sharding,
    }
    if step.is_megatron:
        settings |= _verl_degrees(f"{actor}.megatron", step)
    else:
        settings[f"{actor}.ulysses_sequence_parallel_size"] = step.context_parallel
        if step.lora is not None:
            settings["actor_rollout_ref.model.lora_rank"] = step.lora
    if step.offload is not None:
        section = f"{actor}.megatron" if step.is_megatron else f"{actor}.fsdp_config"
        settings[f"{section}.param_offload"] = PARAMETERS in step.offload
        settings[f"{section}.optimizer_offload"] = OPTIMIZER in step.offload
    settings |= _verl_micro_batches(step)
    settings[f"{rollout}.tensor_model_parallel_size"] = step.rollout_tensor
    settings[f"{rollout}.enforce_eager"] = step.is_eager
    if step.memory_fraction is not None:
        settings[f"{rollout}.gpu_memory_utilization"] = step.memory_fraction
    if not step.is_colocated:  # as recipe/one_step_off_policy starts it
        settings["actor_rollout_ref.hybrid_engine"] = False
        settings |= _verl_devices("rollout", step.rollout_devices, step)
    return settings


def _verl_micro_batches(step: Described) -> dict[str, Any]:
    """Return the overrides of the micro-batches of all passes.

    Packed ones are stated once, and the passes that compute log-probabilities follow. Those of some samples each are
    stated for each pass.
    """
    actor, passes = "actor_rollout_ref.actor", ["actor_rollout_ref.rollout"]
    tokens = step.micro_batch_tokens
    if tokens is not None:
        settings: dict[str, Any] = {f"{actor}.use_dynamic_bsz": True, f"{actor}.ppo_max_token_len_per_gpu": tokens}
        return settings | ({"critic.ppo_max_token_len_per_gpu": tokens} if step.algorithm == "ppo" else {})
    if step.has_reference:
        passes.append("actor_rollout_ref.ref")
    settings = {f"{actor}.use_dynamic_bsz": False, f"{actor}.ppo_micro_batch_size_per_gpu": _dividing(step)}
    settings |= {f"{section}.log_prob_micro_batch_size_per_gpu": _dividing(step) for section in passes}
    return settings | ({"critic.ppo_micro_batch_size_per_gpu": _dividing(step)} if step.algorithm == "ppo" else {})


def _verl_notes(step: Described) -> list[str]:
    """Return where the settings of verl cannot say what was predicted."""
    notes = []
    if step.algorithm in ESTIMATORS and not step.is_colocated and step.steps_off != 1:
        notes.append(
            "the settings of verl are those of its one_step_off_policy, whose rollouts are one step older than the "
            "weights: `--steps-off 1` predicts it"
        )
    return notes if step.micro_batch_tokens is not None else [*notes, *_notes_on_micro_batches("verl", step)]


def _verl_sft_settings(step: Described) -> dict[str, Any]:
    """Return the overrides of `sft_trainer_engine.yaml`, which trains on responses that are given."""
    tokens = step.micro_batch_tokens
    settings = _verl_devices("trainer", step.trainer_devices, step)
    settings |= {
        "data.train_batch_size": step.prompts * step.samples_per_prompt // step.updates,
        "data.max_length": step.max_tokens,
        "engine": "megatron" if step.is_megatron else "fsdp",
    }
    if tokens is None:
        settings |= {"data.use_dynamic_bsz": False, "data.micro_batch_size_per_gpu": _dividing(step)}
    else:
        settings |= {"data.use_dynamic_bsz": True, "data.max_token_len_per_gpu": tokens}
    if step.lora is not None:
        settings["model.lora_rank"] = step.lora
    if step.is_megatron:
        return settings | _verl_degrees("engine", step)
    return settings | {"engine.ulysses_sequence_parallel_size": step.context_parallel}


_WRITERS = {"nemo-rl": _nemo_settings, "verl": _verl_settings}
"""Functions that write the settings, by framework."""

_NOTES = {"nemo-rl": _nemo_notes, "verl": _verl_notes}
"""Functions that say where the settings cannot, by framework."""

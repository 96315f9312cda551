"""Commands that launch a deployment under an engine: the names of its options, one record per engine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from ..architectures import Network
from ..formats import FORMATS
from .engines import ENGINES, SGLANG
from .products import converts_weights

if TYPE_CHECKING:
    from .deployment import Deployment

Value = str | int | float | bool | None

HUGGING_FACE = "https://huggingface.co/"

CONFIGURATION = "options.yaml"
"""File of the options that a command reads from a file."""


class Launcher(msgspec.Struct, frozen=True):
    """Options of an engine's server."""

    command: str  # the command; the repository of the network follows
    # Options, and the setting of `launch_settings` that each of them states. A setting that is None or False is left
    # out; True is an option without a value.
    options: tuple[tuple[str, str], ...]
    # Names of the formats that the engine makes from weights in 16 bits when it loads them. It finds out by itself in
    # which format a quantized checkpoint is.
    weights: dict[str, str]
    kv_cache: dict[str, str]  # names of the formats of the KV cache
    # Whether experts, and attention, can be divided into fewer groups than there are devices.
    partial_experts: bool
    partial_groups: bool
    sources: tuple[str, ...]  # documentation of the options
    # Variable that makes the engine convert 8-bit weights to 16 bits where it would multiply them; empty if none does.
    converts_weights: str = ""
    file_option: str = ""  # option that names a YAML file with further options; empty if there is none
    # Keys of this file with their settings; a dot separates a key from the key of the mapping that contains it. A
    # mapping is written only if one of its settings is none of `options`.
    file_options: tuple[tuple[str, str], ...] = ()


LAUNCHERS: dict[str, Launcher] = {
    "vllm": Launcher(
        command="vllm serve",
        options=(
            ("--tensor-parallel-size", "group_devices"),
            ("--data-parallel-size", "groups"),
            ("--enable-expert-parallel", "divides_experts"),
            ("--pipeline-parallel-size", "stages"),
            ("--max-num-seqs", "group_sequences"),  # limits hold for each data-parallel rank
            ("--max-num-batched-tokens", "group_tokens"),
            ("--no-enable-chunked-prefill", "has_whole_prompts"),
            ("--block-size", "given_block_tokens"),
            ("--gpu-memory-utilization", "memory_fraction"),
            ("--dtype", "dtype"),
            ("--quantization", "weights"),
            ("--kv-cache-dtype", "kv_cache"),
        ),
        weights={"fp8": "fp8", "nf4": "bitsandbytes"},
        kv_cache={"fp8": "fp8"},
        partial_experts=False,  # experts are divided among all devices of all data-parallel ranks
        partial_groups=True,
        sources=(
            "https://docs.vllm.ai/en/latest/cli/serve/",
            "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/",
            "https://docs.vllm.ai/en/latest/configuration/env_vars/",
        ),
        converts_weights="VLLM_TEST_FORCE_FP8_MARLIN=1",
    ),
    "tensorrt-llm": Launcher(
        command="trtllm-serve",
        options=(
            ("--tp_size", "devices"),
            ("--ep_size", "experts"),
            ("--pp_size", "stages"),
            ("--max_batch_size", "group_sequences"),  # limits hold for each rank with attention data parallelism
            ("--max_num_tokens", "group_tokens"),
            ("--enable_chunked_prefill", "has_chunks"),
            ("--kv_cache_free_gpu_memory_fraction", "memory_fraction"),
        ),
        weights={},
        kv_cache={"fp8": "fp8", "nvfp4": "nvfp4"},
        partial_experts=True,
        partial_groups=False,
        sources=(
            "https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html",
            "https://nvidia.github.io/TensorRT-LLM/features/parallel-strategy.html",
        ),
        file_option="--extra_llm_api_options",
        file_options=(
            ("enable_attention_dp", "has_groups"),
            ("kv_cache_config.dtype", "kv_cache"),
            ("kv_cache_config.free_gpu_memory_fraction", "memory_fraction"),
        ),
    ),
    "sglang": Launcher(
        command="python -m sglang.launch_server --model-path",
        options=(
            ("--tp-size", "devices"),
            ("--dp-size", "groups"),
            ("--enable-dp-attention", "has_groups"),
            ("--ep-size", "experts"),
            ("--pp-size", "stages"),
            ("--max-running-requests", "sequences"),  # limits are divided among the data-parallel ranks
            ("--max-prefill-tokens", "tokens"),
            ("--chunked-prefill-size", "chunk_or_none"),
            ("--page-size", "given_block_tokens"),
            ("--mem-fraction-static", "memory_fraction"),
            (SGLANG.receive_option, "receive_interval"),
            ("--dtype", "dtype"),
            ("--quantization", "weights"),
            ("--kv-cache-dtype", "kv_cache"),
        ),
        weights={"fp8": "fp8"},
        kv_cache={"fp8": "fp8_e4m3", "nvfp4": "fp4_e2m1"},
        partial_experts=True,
        partial_groups=True,
        sources=(
            "https://docs.sglang.io/advanced_features/server_arguments.html",
            "https://docs.sglang.io/references/environment_variables.html",
        ),
        converts_weights="SGLANG_FORCE_FP8_MARLIN=1",
    ),
}
"""Options by the name of the engine, for vLLM from 0.11, TensorRT-LLM from 1.0 and SGLang from 0.5."""

DTYPES = {"fp16": "float16", "fp32": "float32"}
"""Names of precisions besides bf16, which checkpoints state themselves."""


class Launch(msgspec.Struct, frozen=True):
    """The command that launches a replica of a deployment."""

    command: str | None  # the command in a shell; None if the engine cannot be launched like this
    notes: tuple[str, ...] = ()  # what the command does not state, or why there is none


def find_repository(network: Network) -> str:
    """Return the repository of a network on Hugging Face, or the name of the network if its publisher is not known."""
    if network.publication is not None and network.publication.card.startswith(HUGGING_FACE):
        return network.publication.card.removeprefix(HUGGING_FACE)
    return network.name


def launch(deployment: Deployment) -> Launch:
    """Return the command that launches a replica of a deployment, with the limits of its engine."""
    engine, on_device = deployment.engine, deployment.on_device
    launcher = LAUNCHERS.get(engine.name)
    if launcher is None:
        return Launch(None)
    reason = _why_not(launcher, deployment)
    if reason is not None:
        return Launch(None, (f"no launch command: {reason}",))
    settings = launch_settings(launcher, deployment)
    words = [*launcher.command.split(), find_repository(on_device.workload.network)]
    for option, setting in launcher.options:
        value = settings[setting]
        if value is not None and value is not False:
            words += [option] if value is True else [option, str(value)]
    command = shlex.join(words)
    if _converts_weights(deployment):
        command = f"{launcher.converts_weights} {command}"
    lines = _file_lines(launcher, settings)
    if lines:
        written = f"printf '%s\\n' {shlex.join(lines)} > {CONFIGURATION}"
        command = f"{written} && {command} {launcher.file_option} {CONFIGURATION}"
    return Launch(command, tuple(_launch_notes(launcher, deployment)))


def launch_settings(launcher: Launcher, deployment: Deployment) -> dict[str, Value]:
    """Return all settings of a deployment by name; None where an engine needs no option.

    The names with ``group`` are those of one attention group, which engines launch as a data-parallel rank.
    """
    engine, on_device = deployment.engine, deployment.on_device
    groups, experts, stages = on_device.attention_data, on_device.experts, on_device.pipeline.degree
    workload = on_device.workload
    chunk = engine.chunked_prefill
    return {
        "devices": _above_one(on_device.tensor),
        "group_devices": _above_one(on_device.tensor // groups),
        "groups": _above_one(groups),
        "has_groups": groups > 1,
        "experts": _above_one(experts),
        "divides_experts": experts > 1,
        "stages": _above_one(stages),
        "sequences": engine.max_sequences,
        "group_sequences": -(-engine.max_sequences // groups),
        "tokens": engine.max_batched_tokens,
        "group_tokens": -(-engine.max_batched_tokens // groups),
        "has_chunks": bool(chunk),
        "has_whole_prompts": not chunk,
        "chunk_or_none": chunk or -1,
        "given_block_tokens": _given_block_tokens(deployment),
        "memory_fraction": engine.memory_fraction,
        "receive_interval": _above_one(engine.receive_interval),
        "dtype": DTYPES.get(workload.precision),
        "weights": launcher.weights.get(workload.weights or workload.precision),
        "kv_cache": launcher.kv_cache.get(_plain_name(on_device.kv_cache)),
    }


def _converts_weights(deployment: Deployment) -> bool:
    """Return whether the engine converts 8-bit weights to 16 bits where it would compute in 8 bits by itself."""
    workload, device = deployment.on_device.workload, deployment.on_device.machine.device
    return converts_weights(workload.weights, workload.precision, device)


def _above_one(degree: int) -> int | None:
    return degree if degree > 1 else None


def _plain_name(form: str) -> str:
    return "nvfp4" if form == "fp4" else form


def _given_block_tokens(deployment: Deployment) -> int | None:
    """Return the tokens per block of the cache if they are not those of the engine."""
    tokens = deployment.engine.block_tokens
    return None if tokens == ENGINES[deployment.engine.name].block_tokens else tokens


def _why_not(launcher: Launcher, deployment: Deployment) -> str | None:
    """Return why an engine cannot be launched as a deployment; None if it can."""
    on_device, engine = deployment.on_device, deployment.engine.name
    if deployment.prefill_workers:
        return "disaggregated serving needs a router and a command for each kind of worker"
    devices, experts, groups = on_device.tensor, on_device.experts, on_device.attention_data
    if not launcher.partial_experts and experts not in (1, devices):
        return f"{engine} divides experts among all {devices} devices or none (got {experts})"
    if not launcher.partial_groups and groups not in (1, devices):
        return f"{engine} divides attention into as many groups as devices, {devices}, or one (got {groups})"
    device = on_device.machine.device
    if _converts_weights(deployment) and not (launcher.converts_weights and device.vendor == "NVIDIA"):
        return (
            f"{engine} computes products with weights in {on_device.workload.weights} in fp8 on {device.name}, which "
            "`serve` predicts without `--precision`"
        )
    cache = FORMATS[on_device.kv_cache]
    if cache.is_quantized and _plain_name(cache.name) not in launcher.kv_cache:
        return f"{engine} has no KV cache in {cache.name}; it has {', '.join(launcher.kv_cache)}"
    return None


def _file_lines(launcher: Launcher, settings: dict[str, Value]) -> list[str]:
    """Return the lines of the YAML file with further options; empty if the command states all of them."""
    stated = {setting for _, setting in launcher.options}
    given = [(key, setting) for key, setting in launcher.file_options if settings[setting] not in (None, False)]
    needed = {key.rpartition(".")[0] for key, setting in given if setting not in stated}
    mappings: dict[str, dict[str, str]] = {}
    for key, setting in given:
        mapping, _, name = key.rpartition(".")
        if mapping in needed:
            mappings.setdefault(mapping, {})[name] = str(settings[setting]).lower()
    lines = []
    for mapping, entries in mappings.items():
        texts = [f"{name}: {value}" for name, value in entries.items()]
        lines += [f"{mapping}: {{{', '.join(texts)}}}"] if mapping else texts
    return lines


def _launch_notes(launcher: Launcher, deployment: Deployment) -> list[str]:
    """Return what a launch command does not state."""
    workload = deployment.on_device.workload
    form = FORMATS[workload.weights or workload.precision]
    notes = []
    if form.is_quantized and form.name not in launcher.weights:
        repository = find_repository(workload.network)
        notes.append(
            f"the launch command needs a checkpoint with weights in {form.name}: name it instead of {repository} "
            "if that has other weights"
        )
    if deployment.options.speculation.draft_length:
        notes.append("the launch command leaves speculative decoding out")
    return notes

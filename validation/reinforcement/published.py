"""Readers of published steps: NeMo-RL's performance summaries, and steps of other frameworks with their phases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.errors import BadFile, PaleoError
from paleo_lite.machines import find_device

from ..tables import rows_of

NEMO_MODELS = {
    "LLAMA3.1_8B": "llama-3.1-8b",
    "DeepSeek V3": "deepseek-v3",
    "Qwen3-235B": "qwen3-235b-a22b",
    "Qwen3-30B3A": "qwen3-30b-a3b",
    "Qwen3-32B": "qwen3-32b",
    "Nemotron-3-Nano-30B-A3B": "nemotron-3-nano-30b-a3b",
}
"""Networks by the names of the summaries."""

NEMO_DEVICES = {"H100": "h100-sxm", "GB200": "gb200"}
PROMPT_TOKENS = 105
"""Mean tokens of a prompt of the data set of the summaries."""

SAMPLES_PER_PROMPT = {2048: 32, 512: 16}
"""Responses to a prompt by the samples of a step, as the recipes say."""


class Row(NamedTuple):
    """A published step."""

    source: str
    framework: str
    version: str
    question: Any  # a record `Rl` with single values
    time_s: float
    phases: dict[str, float]  # seconds of the phases that are published, by their names in `PHASES`

    @property
    def network(self) -> str:
        """Name of the network."""
        return str(self.question.network)

    @property
    def gpu(self) -> str:
        """ID of the device."""
        return str(self.question.gpu)


def nemo_rows(data: Path) -> Iterator[Row]:
    """Iterate over the steps of NeMo-RL's summaries of which the division is published."""
    for row in rows_of(data / "rl" / "nemo_rl.csv"):
        off = 0 if row["policy"].startswith("On") else int(row["policy"].split("-")[0])
        if off and not row["rollout_gpus"]:
            continue  # which devices generate is not known
        yield Row(
            "NeMo-RL's performance summaries",
            "nemo-rl",
            row["version"],
            _nemo_question(row, off),
            float(row["step_s"]),
            {},
        )


def _nemo_question(row: dict[str, str], off: int) -> pl.Rl:
    """Return the question about a row of the summaries."""
    degrees = [part.strip() for part in row["training"].strip("[]").split(",")]
    if len(degrees) == 7:  # of the first recipes: degrees by another order, without experts
        tensor, context, expert, pipeline = int(degrees[0]), int(degrees[1]), 1, int(degrees[5])
    else:
        tensor, context, expert, pipeline = (int(part) for part in degrees[:4])
    workers, samples = int(row["gpus"]), int(row["rollout_batch"])
    rollout_workers = int(row["rollout_gpus"]) if row["rollout_gpus"] else None
    per_prompt = SAMPLES_PER_PROMPT[samples]
    return pl.Rl(
        network=NEMO_MODELS[row["model"]],
        gpu=NEMO_DEVICES[row["system"]],
        workers=workers,
        algorithm=row["algorithm"].lower(),
        framework="nemo-rl",
        prompts=samples // per_prompt,
        samples_per_prompt=per_prompt,
        prompt_tokens=PROMPT_TOKENS,
        response_tokens=float(row["mean_sequence"]),
        max_tokens=int(row["max_sequence"]),
        updates_per_step=samples // int(row["train_batch"]),
        tensor=tensor,
        context_parallel=context,
        expert_parallel=min(expert, workers - (rollout_workers or 0)),
        pipeline=pipeline,
        rollout_tensor=json.loads(row["generation"])[0],
        rollout_workers=rollout_workers,
        steps_off=off,
        precision="fp8" if "Training FP8" in row["precision"] else "bf16",
        rollout_precision="fp8" if "Generation FP8" in row["precision"] else None,
    )


DEVICES = {
    "H20-96GB": "h20",
    "H20": "h20",
    "H100-80GB": "h100-sxm",
    "A100/A800-80GB": "a100-sxm-80gb",
    "H800": "h800-sxm",
    "H800-80GB": "h800-sxm",
    "H200-141GB": "h200-sxm",
    "H200": "h200-sxm",
    "GH200": "gh200",
    "MI300X": "mi300x",
    "H100": "h100-sxm",
}
"""Devices by the first word of what the sources call them."""

FRAMEWORKS = {"verl": "verl", "NeMo-RL": "nemo-rl", "OpenRLHF": "openrlhf", "TRL": "trl", "slime": "slime"}
ALGORITHMS = {"GRPO": "grpo", "GPG": "rloo", "DAPO": "dapo", "PPO": "ppo", "GSPO": "grpo"}
PACKED_TOKENS = 8192
"""Tokens of a packed micro-batch where their number is not published."""

PHASES = {
    "generation_s": "generation",
    "logprob_old_s": "old_log_probs",
    "logprob_ref_s": "reference_log_probs",
    "values_s": "values",
    "update_actor_s": "update",
    "update_critic_s": "critic_update",
    "weight_sync_s": "transfer",
}
"""Phases by the columns of the file."""


def phase_rows(data: Path) -> Iterator[Row]:
    """Iterate over steps in turns whose batch, lengths, device and phases are published."""
    for row in rows_of(data / "rl" / "steps.csv"):
        question = _question_of(row)
        if question is None:
            continue
        phases = {name: float(row[column]) for column, name in PHASES.items() if row[column]}
        if question.framework == "nemo-rl":  # whose timer has both passes, and whose transfer moves state, too
            phases["old_log_probs"] /= 2
            phases.pop("transfer", None)
        step_s = float(row["step_time_s"])
        yield Row(row["source"], row["framework"], row["framework_version"], question, step_s, phases)


def _question_of(row: dict[str, str]) -> pl.Rl | None:
    """Return the question about a row; None if what it depends on is not published."""
    needed = ("step_time_s", "generation_s", "gpus", "prompts_per_step", "response_tokens_mean", "response_tokens_max")
    if any(not row[name] for name in needed) or row["on_policy_or_async"] != "sync" or row["lora"] not in ("no", ""):
        return None
    if "outlier" in row["notes"]:
        return None
    gpu, network = _device_of(row["device"]), _network_of(row["model"])
    framework = FRAMEWORKS.get(row["framework"])
    algorithm = ALGORITHMS.get(row["algorithm"].split()[0] if row["algorithm"] else "")
    if gpu is None or network is None or framework is None or algorithm is None:
        return None
    prompt_tokens = round(float(row["prompt_tokens_mean"] or 105))
    backend = row["train_backend"]
    is_megatron = "megatron" in backend
    updates = _updates_of(row)
    return pl.Rl(
        network=network,
        gpu=gpu,
        workers=int(row["gpus"]),
        algorithm=algorithm,
        framework=framework,
        prompts=int(row["prompts_per_step"]),
        samples_per_prompt=int(row["generations_per_prompt"] or 1),
        prompt_tokens=prompt_tokens,
        response_tokens=float(row["response_tokens_mean"]),
        max_tokens=prompt_tokens + int(float(row["response_tokens_max"])),
        updates_per_step=updates,
        micro_batch=_micro_batch_of(row["micro_batch"]),
        micro_batch_tokens=PACKED_TOKENS if row["micro_batch"].startswith("packed") else None,
        recompute="none" if "checkpointing OFF" in row["notes"] else None,
        tensor=_number(row["train_tp"]),
        pipeline=_number(row["train_pp"]),
        expert_parallel=_number(row["train_ep"]),
        sharding="distributed-optimizer" if is_megatron else "full-shard",
        rollout_tensor=_number(row["rollout_tp"]),
        reference=row["reference_model"].startswith("yes") if row["reference_model"] else None,
    )


def _device_of(text: str) -> str | None:
    """Return the ID of a device; None if the source does not say which it is."""
    words = text.split()
    name = DEVICES.get(words[0]) if words else None
    if name is None:
        return None
    return find_device(name).id


def _network_of(text: str) -> str | None:
    """Return the name of a shipped network; None if the network is not shipped."""
    name = re.sub(r"-(instruct|base|math|it|chat)\b", "", text.split(" ", maxsplit=1)[0].lower())
    name = name.replace("qwen2-", "qwen2.5-").replace("qwen2.5-math-", "qwen2.5-")
    try:
        return find_network(name).name
    except (PaleoError, BadFile):
        return None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 1


def _micro_batch_of(text: str) -> int | None:
    """Return the samples of a micro-batch; None where they are packed."""
    match = re.match(r"(\d+)(/gpu|$|\?)", text)
    return int(match[1]) if match else None


def _updates_of(row: dict[str, str]) -> int:
    """Return the updates per step, which notes say, or the samples of an update."""
    stated = re.search(r"(\d+) (?:optimizer )?updates", row["notes"])
    return int(stated[1]) if stated else 1

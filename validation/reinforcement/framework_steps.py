"""Reader of published steps, passes of trainers and transfers of weights of all frameworks.

Every row of `rl/steps.csv` is asked for what it gives enough for, a whole step, the passes of the trainer alone or the
transfer of weights; `Refused` says why a row is not asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.errors import BadFile, PaleoError
from paleo_lite.machines import find_device
from paleo_lite.reinforcement.frameworks import BROADCAST, GATHERED, PAIRED, RESHARDED

from ..tables import rows_of
from .published import STEP, TRAINER, TRANSFER, RlMeasurement

FILE = "steps.csv"

DEVICES = {
    "H20-96GB": "h20",
    "H20": "h20",
    "H100-80GB": "h100-sxm",
    "H100-80GB?": "h100-sxm",
    "A100/A800-80GB": "a100-sxm-80gb",
    "A6000-48GB": "rtx-a6000",
    "B200": "b200",
    "H100/H200-class": "h100-sxm",
    "H800": "h800-sxm",
    "H800-80GB": "h800-sxm",
    "H200-141GB": "h200-sxm",
    "H200": "h200-sxm",
    "GH200": "gh200",
    "MI300X": "mi300x",
    "H100": "h100-sxm",
}
"""Devices by the first word of what the sources call them."""

NETWORKS = {
    "4b": "qwen3-4b",
    "intellect-3": "glm-4.5-air",
    "nemotron nano v3 30b": "nemotron-3-nano-30b-a3b",
    "nemotron nano 3 30b-a3b": "nemotron-3-nano-30b-a3b",
    "nemotron super v3": "nemotron-3-super-120b-a12b",
    "glm-4.5-air-106b": "glm-4.5-air",
    "deepseek-v3-671b": "deepseek-v3",
    "deepseek-v3.1 (fp8)": "deepseek-v3.1",
    "kimi-k2 (fp8)": "kimi-k2",
}
"""Shipped networks by what the sources call them; INTELLECT-3 was trained from GLM-4.5-Air."""

FRAMEWORKS = {
    "verl": "verl",
    "NeMo-RL": "nemo-rl",
    "OpenRLHF": "openrlhf",
    "TRL": "trl",
    "slime": "slime",
    "miles (slime fork)": "slime",
    "SkyRL": "generic",
    "prime-rl": "prime-rl",
    "checkpoint-engine": "generic",
    "siiRL (verl derivative)": "verl",
    "vime": "slime",
}
"""Records of the frameworks of the sources."""

ALGORITHMS = {"GRPO": "grpo", "GPG": "rloo", "DAPO": "dapo", "PPO": "ppo", "GSPO": "grpo", "GRPO-like": "grpo"}
PACKED_TOKENS = 8192
"""Tokens of a packed micro-batch where their number is not published."""

ASSUMED_ROLLOUT_TENSOR = 2
"""Tensor-parallel size of an engine where a log does not say it, as in the other logs of the same author."""

ROLLOUT_TENSORS = {"prime-rl PR 3341 NIXL": 16}
"""Devices among which an engine divides the weights, by the bytes that each of them receives."""

OFFLOADED_S = 20.0
"""Time of state to the host in the transfers of DeepSeek-V3 of NeMo-RL, as the notes say."""

ASSUMED_PROMPT_TOKENS = 105
"""Mean tokens of a prompt where they are not published: of questions of mathematics."""

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

UNFIT = {
    "UPPER BOUND": "a threshold of a nightly test is an upper bound, not a time",
    "outlier": "the source has a cause of its own, and is an outlier",
    "low quality": "the source is rounded, or a single step at the start",
    "pathological": "the source has a cause of its own, and is an outlier",
    "Geo3K images": "the prompts have images",
    "DeepSpeed-Chat": "its engine shares the trainer's matrices, and its critic is a smaller network",
    "likely mislabelled": "the source contradicts itself",
    "implausible as full": "the time is that of a launch, not of a transfer",
    "excludes background": "the time is without a part of the transfer",
    "metadata sent each refit": "an earlier state of the same software",
    "metadata prepared ahead": "an earlier state of the same software",
    "fixed 5 s sleep": "an earlier state of the same software, with a fixed pause",
    "offload only": "only state moves, in bytes that are not published",
    "no pipelining": "the number of devices is not published",
    "TOTAL refit before": "an earlier state of the same software",
    "full experts": "every engine reads whole experts, which no way of weights here does",
}
"""Why rows are not asked whose source or notes have a text."""


HOST_OPTIMIZER = "CPU Adam"
"""Text of rows whose trainer updates the weights on the host, which no option of `rl` states."""

SKYRL_MICRO_BATCH = 1
"""Samples of a micro-batch of Qwen3-30B-A3B: examples/train/megatron/run_search_megatron.sh of SkyRL at 844019e."""

CONVERTED_BEFORE = ("after prequantization", "weights start in pinned host memory")
"""Texts of transfers of weights that were converted before, or lie in the format of the engine."""


class Refused(NamedTuple):
    """A row that is not asked."""

    source: str
    reason: str


class _Missing(Exception):
    """A reason for which a row cannot be asked."""


def framework_rows(data: Path) -> Iterator[RlMeasurement | Refused]:
    """Iterate over all rows, as questions with what was measured, or with the reason for which they are not asked."""
    for row in rows_of(data / "rl" / FILE):
        try:
            measured = _read(row)
        except _Missing as missing:
            yield Refused(row["source"], str(missing))
            continue
        if HOST_OPTIMIZER in row["offload"]:
            yield Refused(row["source"], "its optimizer computes on the host: its update and step are not asked")
            phases = {name: seconds for name, seconds in measured.phases.items() if name != "update"}
            measured = measured._replace(time_s=None, phases=phases)
        yield measured


def _read(row: dict[str, str]) -> RlMeasurement:
    """Return a row as a question about what it gives enough for."""
    described = " ".join((row["source"], row["framework"], row["algorithm"], row["notes"]))
    for text, reason in UNFIT.items():
        if text in described and not _is_bucketed_transfer(row):
            raise _Missing(reason)
    if row["algorithm"].startswith("weight sync"):
        return _transfer_row(row)
    if "micro-step" in row["source"]:
        return _micro_step_row(row)
    if not row["generation_s"] and row["update_actor_s"] and row["response_tokens_mean"]:
        return _trainer_row(row)
    return _step_row(row)


def _is_bucketed_transfer(row: dict[str, str]) -> bool:
    """Return whether a transfer is that of a mixture through buckets, which is a time although its notes warn."""
    return "bucketed, pipelined" in row["notes"] and "30B" in row["model"]


def _step_row(row: dict[str, str]) -> RlMeasurement:
    """Return a whole step."""
    for name, meaning in (
        ("gpus", "number of devices"),
        ("prompts_per_step", "number of prompts"),
        ("response_tokens_mean", "mean length of a response"),
        ("response_tokens_max", "longest response"),
        ("step_time_s", "time of a step"),
        ("generation_s", "time of the generation"),
    ):
        if not row[name]:
            raise _Missing(f"the {meaning} is not published")
    if row["on_policy_or_async"] != "sync":
        raise _Missing("the time of generation is a wait, and which devices generate is not published")
    phases = {name: float(row[column]) for column, name in PHASES.items() if row[column]}
    question = _question(
        row,
        rollout_tensor=ASSUMED_ROLLOUT_TENSOR if row["rollout_tp"] == "?" else _number(row["rollout_tp"]),
        engine=_engine_of(row),
        engine_settings={"eager": True} if _is_eager(row) else None,
    )
    resharded = re.search(r"reshard[ =]([\d.]+)", row["notes"])
    if resharded is not None:  # the timer of generation has the transfer of weights
        phases["transfer"] = float(resharded[1])
        phases["generation"] -= phases["transfer"]
    if question.framework == "nemo-rl":  # whose timer has both passes, and whose transfer moves state, too
        phases["old_log_probs"] /= 2
        phases.pop("transfer", None)
    return _row(row, STEP, question, float(row["step_time_s"]), phases)


def _is_eager(row: dict[str, str]) -> bool:
    """Return whether the engine of a row launches every kernel: by its notes, or by what verl did until 0.5."""
    if "enforce_eager False" in row["notes"]:
        return False
    stated = re.match(r"~?0\.([0-5])\b", row["framework_version"])
    return "enforce_eager" in row["notes"] + row["framework_version"] or (
        row["framework"] == "verl" and stated is not None
    )


def _engine_of(row: dict[str, str]) -> str | None:
    """Return the engine of a row, where its attention tells that it is older than those of today.

    vLLM from 0.8 on starts its former engine for xFormers, which the new one had only later
    (https://github.com/vllm-project/vllm/pull/21342).
    """
    return "vllm-0.7" if "XFORMERS" in row["framework_version"] else None


def _longest_response(row: dict[str, str]) -> int:
    """Return the tokens of the longest response: the limit, or what notes say was reached below it."""
    reached = re.search(r"max length reached (\d+)", row["notes"])
    return int(reached[1]) if reached else int(float(row["response_tokens_max"] or 1))


def _trainer_row(row: dict[str, str]) -> RlMeasurement:
    """Return the passes of a trainer, of which log-probabilities are those of policy and reference together."""
    phases = {"update": float(row["update_actor_s"])}
    if row["logprob_old_s"]:
        phases["old_log_probs"] = float(row["logprob_old_s"]) / 2
    question = _question(row, max_tokens=4096 + int(float(row["response_tokens_max"] or 0)), updates_per_step=2)
    return _row(row, TRAINER, question, None, phases)


def _micro_step_row(row: dict[str, str]) -> RlMeasurement:
    """Return an update on one packed sequence of every device."""
    stated = re.search(r"seq of (\d+) tokens", row["micro_batch"])
    if stated is None:
        raise _Missing("the tokens of a micro-batch are not published")
    if "FA2" in row["notes"] and row["device"] == "B200":
        raise _Missing("attention kernels of an earlier generation run on the device")
    tokens, workers = int(stated[1]), int(row["gpus"])
    question = _question(
        row, prompts=workers, samples_per_prompt=1, prompt_tokens=1, response_tokens=tokens - 1.0, max_tokens=tokens,
        micro_batch=1, micro_batch_tokens=None, sharding="full-shard", recompute="full",
        attention="flash3" if "attention FA3" in row["notes"] else None,
    )  # fmt: skip
    return _row(row, TRAINER, question, None, {"update": float(row["update_actor_s"])})


def _transfer_row(row: dict[str, str]) -> RlMeasurement:
    """Return a transfer of weights, whose engines have the size that the mapping of the notes says."""
    part = re.search(r"transfer\+update part ([\d.]+) s|\+ update ([\d.]+) s", row["notes"])
    seconds = float((part[1] or part[2]) if part else row["weight_sync_s"])
    if "refit DeepSeek-V3" in row["source"]:
        seconds -= OFFLOADED_S
    if not row["gpus"] and part is None:
        raise _Missing("the number of devices is not published")
    mapped = re.search(r"-> (?:gen )?\S*?TP(\d+)", row["notes"].replace("train -> gen", "mapping"))
    tensor = int(mapped[1]) if mapped else _number(row["rollout_tp"], ROLLOUT_TENSORS.get(row["source"], 1))
    workers = int(row["gpus"] or 8)
    is_apart = row["colocated_or_disaggregated"].startswith("disaggregated")
    stated = re.search(r"(\d+) trainer \+ (\d+) inference|(\d+) train \+ (\d+) rollout", row["notes"])
    rollout_workers = int(stated[2] or stated[4]) if stated else workers // 2
    question = _question(
        row, algorithm="grpo", prompts=workers, samples_per_prompt=1,
        rollout_tensor=tensor, rollout_workers=rollout_workers if is_apart else None,
        engine_settings={"transfer": _path_of(row, is_apart=is_apart)},
        tensor=1, pipeline=1, expert_parallel=1, response_tokens=256.0, max_tokens=1024,
    )  # fmt: skip
    described = row["notes"] + row["colocated_or_disaggregated"]
    has_conversion = not any(text in described for text in CONVERTED_BEFORE)
    return _row(row, TRANSFER, question, None, {"transfer": seconds})._replace(has_conversion=has_conversion)


def _path_of(row: dict[str, str], *, is_apart: bool) -> str:
    """Return the way of the weights."""
    if row["framework"] == "checkpoint-engine":
        return BROADCAST
    if "checkpoint-engine-refit" in row["source"] and "NIXL" in row["notes"]:
        return PAIRED
    if re.search(r"P2P|reshard|NIXL|destination-local", row["notes"] + row["source"]):
        return RESHARDED
    return BROADCAST if is_apart else GATHERED


def _row(
    row: dict[str, str], part: str, question: pl.Rl, time_s: float | None, phases: dict[str, float]
) -> RlMeasurement:
    """Return a row of the published measurements."""
    return RlMeasurement(row["source"], row["framework"], row["framework_version"], question, time_s, phases, part)


def _question(row: dict[str, str], **changes: Any) -> pl.Rl:
    """Return the question about a row, of which the reader of its kind changes some options."""
    framework = FRAMEWORKS.get(row["framework"])
    if framework is None:
        raise _Missing(f"the framework {row['framework']} has no record")
    algorithm = changes.pop("algorithm", ALGORITHMS.get(row["algorithm"].split()[0] if row["algorithm"] else ""))
    if algorithm is None:
        raise _Missing(f"the algorithm {row['algorithm']} has no record")
    prompt_tokens = round(float(row["prompt_tokens_mean"] or ASSUMED_PROMPT_TOKENS))
    options: dict[str, Any] = {
        "network": _network_of(row["model"]),
        "gpu": _device_of(row["device"]),
        "workers": int(row["gpus"] or 8),
        "algorithm": algorithm,
        "framework": framework,
        "prompts": int(row["prompts_per_step"] or 1),
        "samples_per_prompt": int(row["generations_per_prompt"] or 1),
        "prompt_tokens": prompt_tokens,
        "response_tokens": float(row["response_tokens_mean"] or 1),
        "max_tokens": prompt_tokens + _longest_response(row),
        "clipped_share": _clipped_share_of(row["notes"]),
        "updates_per_step": _updates_of(row),
        "micro_batch": _micro_batch_of(row),
        "micro_batch_tokens": PACKED_TOKENS if row["micro_batch"].startswith("packed") else None,
        "recompute": _recomputation_of(row["notes"]),
        "lora": _lora_of(row["lora"]),
        "offload": "optimizer+parameters" if row["offload"].startswith("param+optimizer") else None,
        "tensor": _number(row["train_tp"]),
        "pipeline": _number(row["train_pp"]),
        "expert_parallel": _number(row["train_ep"]),
        "sharding": "distributed-optimizer" if "megatron" in row["train_backend"] else "full-shard",
        "rollout_precision": "fp8" if row["precision_rollout"] in ("fp8", "mxfp8") else None,
        "reference": row["reference_model"].startswith("yes") if row["reference_model"] else None,
    }
    return pl.Rl(**{**options, **changes})


def _recomputation_of(notes: str) -> str | None:
    """Return the recomputation that notes state; None if they do not."""
    if "checkpointing OFF" in notes:
        return "none"
    return "full" if "full recompute" in notes else None


def _device_of(text: str) -> str:
    """Return the ID of a device."""
    words = text.split()
    name = DEVICES.get(words[0]) if words else None
    if name is None and text.startswith("not stated in the excerpt (GB200"):
        return "gb200"
    if name is None:
        raise _Missing("the device is not published, or has no hardware file")
    return find_device(name).id


def _network_of(text: str) -> str:
    """Return the name of a shipped network."""
    named = NETWORKS.get(text.lower())
    if named is not None:
        return named
    name = re.sub(r"-(instruct|base|math|it|chat)\b", "", text.split(" ", maxsplit=1)[0].lower())
    name = name.replace("qwen2-", "qwen2.5-").replace("qwen2.5-math-", "qwen2.5-")
    try:
        return find_network(name).name
    except (PaleoError, BadFile):
        raise _Missing(f"the network {text or '(not published)'} is not shipped") from None


def _number(text: str, other: int = 1) -> int:
    return int(text) if text.isdecimal() else other


def _lora_of(text: str) -> int | None:
    """Return the rank of adapters; None without them."""
    stated = re.match(r"r=(\d+)", text)
    return int(stated[1]) if stated else None


def _clipped_share_of(notes: str) -> float | None:
    """Return the share of the responses that are cut off; None where it is not published."""
    stated = re.search(r"(\d+)% truncated|clip ratio ([\d.]+)", notes)
    if stated is None:
        return None
    return int(stated[1]) / 100 if stated[1] else float(stated[2])


def _micro_batch_of(row: dict[str, str]) -> int | None:
    """Return the samples of a micro-batch of one device; None where they are packed.

    verl divides ``ppo_micro_batch_size`` by the devices (verl/workers/fsdp_workers.py).
    """
    if row["framework"] == "SkyRL" and row["train_backend"] == "megatron" and row["train_ep"]:
        return SKYRL_MICRO_BATCH
    match = re.match(r"(\d+)(/gpu|$|\?| global)", row["micro_batch"])
    if match is None:
        return None
    return max(int(match[1]) // int(row["gpus"] or 8), 1) if match[2] == " global" else int(match[1])


def _updates_of(row: dict[str, str]) -> int:
    """Return the updates per step, which notes say, or the samples of an update."""
    stated = re.search(r"(\d+) (?:optimizer )?updates", row["notes"])
    return int(stated[1]) if stated else 1

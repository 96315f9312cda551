"""What DeepSpeed, Composer, litgpt and the Trainer of Hugging Face print of a run before its first step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .findings import Findings
from .log_heads import facts_by_name, read_arguments, value_of
from .text import product, ratio, to_number

# A name of 30 characters leaves no room for dots.
_NAME_AND_DOTS = re.compile(r"print\]\s+(\w+) \.* (\S+)")
_DEEPSPEED = {
    "train_batch_size": "global_batch_size", "train_micro_batch_size_per_gpu": "micro_batch", "world_size": "devices",
    "gradient_accumulation_steps": "accumulation", "zero_optimization_stage": "zero_stage",
}  # fmt: skip
_DEEPSPEED_PRECISIONS = {"bfloat16_enabled": "bf16", "fp16_enabled": "fp16", "float16_enabled": "fp16"}


def record_deepspeed(path: Path, findings: Findings) -> None:
    """Record the configuration that DeepSpeed's `config.py` prints of its engine."""
    arguments = read_arguments(path, _NAME_AND_DOTS, (*_DEEPSPEED, *_DEEPSPEED_PRECISIONS))
    findings.record(**facts_by_name(arguments, _DEEPSPEED), precision=_first_true(arguments, _DEEPSPEED_PRECISIONS))


_NAME_AND_COLON = re.compile(r"(?:^|\s)(\w+): (\S+)")
_COMPOSER = {
    "global_train_batch_size": "global_batch_size", "device_train_microbatch_size": "micro_batch",
    "max_seq_len": "sequence_length", "num_nodes": "nodes", "n_gpus": "devices",
}  # fmt: skip
_COMPOSER_OTHER = (
    "num_gpus_per_node", "precision", "sharding_strategy", "activation_checkpointing", "compile_config",
)  # fmt: skip
_FSDP = {"full_shard": "full-shard", "shard_grad_op": "shard-grad-op", "hybrid_shard": "hybrid-shard"}


def record_composer(path: Path, findings: Findings) -> None:
    """Record the configuration that LLM Foundry logs, and the nodes that Composer's console logger names."""
    arguments = read_arguments(path, _NAME_AND_COLON, (*_COMPOSER, *_COMPOSER_OTHER))
    precision = str(value_of(arguments.get("precision")) or "").removeprefix("amp_")
    checkpointing = value_of(arguments.get("activation_checkpointing"))
    findings.record(
        **facts_by_name(arguments, _COMPOSER),
        devices=product(
            *(to_number(value_of(arguments.get(name))) for name in ("num_nodes", "num_gpus_per_node"))
        ) if "n_gpus" not in arguments else None,
        precision=precision or None,
        strategy=_FSDP.get(arguments.get("sharding_strategy", "").lower()),
        recompute=None if checkpointing is None else "full" if checkpointing is True else "none",
        execution="compiled" if "compile_config" in arguments else None,
    )  # fmt: skip


# litgpt prints its arguments with `pprint`, those of the training as `TrainArgs(global_batch_size=16, ...`.
_QUOTED_NAME = re.compile(r"(?:\b|')(\w+)'?(?:: |=)(?:PosixPath\()?('[^']*'|[^\s,()]+)")
_LITGPT = {
    "global_batch_size": "global_batch_size", "micro_batch_size": "micro_batch", "max_seq_length": "sequence_length",
    "num_nodes": "nodes", "lora_r": "lora",
}  # fmt: skip
_LITGPT_OTHER = ("devices", "precision", "checkpoint_dir", "model_name")


def record_litgpt(path: Path, findings: Findings) -> None:
    """Record the arguments that litgpt prints."""
    arguments = read_arguments(path, _QUOTED_NAME, (*_LITGPT, *_LITGPT_OTHER))
    precision = str(value_of(arguments.get("precision")) or "")
    mixed = {"16": "fp16", "32": "fp32", "bf16": "bf16"}.get(precision.partition("-")[0])
    per_node = to_number(value_of(arguments.get("devices")))
    network = value_of(arguments.get("model_name")) or value_of(arguments.get("checkpoint_dir"))
    findings.record(
        **facts_by_name(arguments, _LITGPT),
        devices=product(per_node, to_number(value_of(arguments.get("num_nodes"))) or 1.0),
        precision=mixed,
        network=None if network is None else str(network).rpartition("/")[2],
    )


_ASSIGNED = re.compile(r"^\s*(\w+)=(.*?),?$")
_TRAINER_LINES = {
    "Total train batch size (w. parallel, distributed & accumulation)": "global_batch_size",
    "Instantaneous batch size per device": "micro_batch", "Gradient Accumulation steps": "accumulation",
    "Total optimization steps": "steps",
}  # fmt: skip
_TRAINER_LINE = re.compile(rf"({'|'.join(map(re.escape, _TRAINER_LINES))}) = ([\d,]{{1,20}})")
_TRAINER_ARGUMENTS = (
    "bf16", "fp16", "gradient_checkpointing", "torch_compile", "fsdp", "max_seq_length", "max_length",
    "per_device_train_batch_size", "gradient_accumulation_steps",
)  # fmt: skip


def record_trainer(path: Path, findings: Findings) -> None:
    """Record the lines before a training and the `TrainingArguments`, where a script prints them."""
    lines = read_arguments(path, _TRAINER_LINE, tuple(_TRAINER_LINES))
    facts: dict[str, Any] = facts_by_name(lines, _TRAINER_LINES)
    devices = ratio(facts.get("global_batch_size"), product(facts.get("micro_batch"), facts.get("accumulation", 1.0)))
    findings.record(**facts, devices=devices if devices is not None and devices.is_integer() else None)
    arguments = read_arguments(path, _ASSIGNED, _TRAINER_ARGUMENTS)
    if "gradient_checkpointing" not in arguments:
        return
    checkpointing = value_of(arguments["gradient_checkpointing"]) is True
    sharded = [strategy for name, strategy in _FSDP.items() if name in arguments.get("fsdp", "").lower()]
    findings.record(
        precision=_first_true(arguments, {"bf16": "bf16", "fp16": "fp16"}) or "fp32",
        recompute="full" if checkpointing else "none",
        execution="compiled" if value_of(arguments.get("torch_compile")) is True else "eager",
        strategy=sharded[0] if sharded else None,
        micro_batch=to_number(arguments.get("per_device_train_batch_size")),
        accumulation=to_number(arguments.get("gradient_accumulation_steps")),
    )
    length = value_of(arguments.get("max_seq_length")) or value_of(arguments.get("max_length"))
    if to_number(length):
        findings.guess("the longest sequence", sequence_length=length)


def _first_true(arguments: dict[str, str], precisions: dict[str, str]) -> str | None:
    """Return the precision of the first argument that is true."""
    return next((name for argument, name in precisions.items() if value_of(arguments.get(argument)) is True), None)

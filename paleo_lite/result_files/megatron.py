"""Logs of Megatron-LM and its relatives: Megatron-DeepSpeed, Megatron-Bridge and NeMo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..text import format_plural
from .findings import Findings, ResultFormat
from .log_heads import facts_by_name, read_arguments, value_of
from .text import find_lines, mean, ratio, to_number
from .training_logs import add_microsteps, microstep_seconds

_WARM_UP = 3  # iterations that initialise, allocate and tune

_ITERATION = re.compile(r"\biteration[ =]\s*(\d{1,15})\s*/\s*\d+ \|(.*)")
_NEMO = re.compile(r"train_step_timing in s[=:]\s*(\d+(?:\.\d*)?)")
_NEMO_LIST = re.compile(r"train_step_timing in s[=:]\s*\[([\d., ]+)\]")
_BRIDGE = re.compile(r"GPU utilization: (\d+(?:\.\d*)?) ?MODEL_TFLOP/s/GPU")
_NEMO_STEP = re.compile(r"global_step[=:]\s*(\d{1,15}\.?\d{0,15})")
_NEMO_SAMPLES = re.compile(r"consumed_samples[=:]\s*(\d{1,15}\.?\d{0,15})")
_NEMO_BATCH = re.compile(r"global_batch_size[=:]\s*(\d{1,15}\.?\d{0,15})")
# Megatron-LM prints ``  seq_length ........ 4096``, NeMo and Megatron-Bridge YAML: ``    seq_length: 4096``.
_ARGUMENT = re.compile(r"^(?:\S+: ?)?\s*(\w+)(?: \.{2,} |: )(\S.*)$")
_WORLD = re.compile(r"using world size: (\d{1,15})")
_PASSES = re.compile(r"forward-compute:? ?\.*:? ?\(?(\d+(?:\.\d*)?).*?backward-compute:? ?\.*:? ?\(?(\d+(?:\.\d*)?)")

_FACTS = {
    "world_size": "devices", "tensor_model_parallel_size": "tensor", "pipeline_model_parallel_size": "pipeline",
    "data_parallel_size": "data", "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel", "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch_size", "seq_length": "sequence_length",
    "virtual_pipeline_model_parallel_size": "virtual_stages", "num_nodes": "nodes",
    "num_layers": "blocks", "hidden_size": "hidden_size", "ffn_hidden_size": "feed_forward_size",
    "num_attention_heads": "heads", "padded_vocab_size": "vocabulary", "num_experts": "experts",
    "num_moe_experts": "experts", "zero_stage": "zero_stage",
    "num_layers_per_virtual_pipeline_stage": "blocks_of_virtual_stage",
}  # fmt: skip
"""Arguments that Megatron-LM prints at the head of a log, or NeMo as YAML, and the facts that they are."""

_OTHER = (
    "params_dtype", "bf16", "fp16", "fp8", "fp8_recipe", "fp4", "checkpoint_activations", "recompute_granularity",
    "recompute_method", "recompute_num_layers", "recompute_modules", "activations_checkpoint_granularity",
    "activations_checkpoint_method", "activations_checkpoint_num_layers", "use_distributed_optimizer", "precision",
    "encoder_seq_length", "use_torch_fsdp2", "use_megatron_fsdp",
)  # fmt: skip
"""Arguments of which several make a fact: precision, recomputation, sharding."""

_RECIPES = {"mxfp8": "mxfp8", "blockwise": "fp8-block"}
"""Recipes of fp8 of Megatron-LM that have a name of their own as a precision; the others scale tensors."""

_KEYS = {
    "elapsed time per iteration": "step_ms", "elapsed_time_per_iteration_ms": "step_ms",
    "global batch size": "batch", "global_batch_size": "batch",
    "throughput per GPU": "tflops", "TFLOPs": "tflops", "[LM]-TFLOPs": "tflops",
    "number of skipped iterations": "skipped", "number_of_skipped_iterations": "skipped",
    "actual_seqlen": "sequence", "actual seqlen": "sequence", "actual sequence length": "sequence",
    "power per GPU": "power_w", "energy per GPU": "energy_j",
}  # fmt: skip


# A fork writes the last time and a running mean behind a slash: the first counts.
_FIELD = re.compile(rf"({'|'.join(map(re.escape, _KEYS))})\s*(?:\([^()|]*\)\s*)?[:=]\s*([-+\d.eE]+)")


class _Step(NamedTuple):
    """One iteration as it was logged."""

    number: int
    seconds: float
    batch: float | None = None
    flops_per_s: float | None = None
    sequence: float | None = None
    power_w: float | None = None
    is_skipped: bool = False


def read_log(path: Path, findings: Findings) -> None:
    """Read iterations, the arguments at the head of the log, and timers of the passes."""
    steps: list[_Step] = []
    passes: list[tuple[float, float]] = []
    micro: list[tuple[float | None, ...]] = []
    bridge: list[float] = []
    findings.record(**facts_of_arguments(read_arguments(path, _ARGUMENT, (*_FACTS, *_OTHER))))
    markers = (
        "MODEL_TFLOP/s/GPU",
        "iteration",
        "using world size",
        "forward-compute",
        "train_step_timing",
        "_microstep: ",
    )
    for line in find_lines(path, markers, findings):
        if match := _NEMO.search(line):
            steps.append(_nemo_step(line, float(match[1])))
        elif match := _NEMO_LIST.search(line):
            steps += [_Step(number, float(text)) for number, text in enumerate(match[1].split(",")) if to_number(text)]
        elif match := _ITERATION.search(line):
            step = _step(int(match[1]), match[2])
            if step is not None:
                steps.append(step)
        elif match := _BRIDGE.search(line):
            bridge.append(float(match[1]) * 1e12)
        elif match := _WORLD.search(line):
            findings.record(devices=int(match[1]))
        elif match := _PASSES.search(line):
            passes.append((float(match[1]) / 1000, float(match[2]) / 1000))
        elif seconds := microstep_seconds(line):
            micro.append(seconds)
    _add_steps(steps, passes, mean(bridge[_WARM_UP:]) or mean(bridge), findings)
    add_microsteps(micro, findings)


def _step(number: int, rest: str) -> _Step | None:
    """Return an iteration of Megatron's line, whose fields vary by version and fork."""
    values: dict[str, float] = {}
    for name, text in _FIELD.findall(rest):
        logged = to_number(text)
        if logged is not None:
            values.setdefault(_KEYS[name], logged)
    if "step_ms" not in values:
        return None
    return _Step(
        number,
        values["step_ms"] / 1000,
        values.get("batch"),
        values["tflops"] * 1e12 if "tflops" in values else None,
        values.get("sequence"),
        values.get("power_w"),
        values.get("skipped", 0) > 0,
    )


def _nemo_step(line: str, seconds: float) -> _Step:
    """Return an iteration of NeMo's progress bar or log line."""
    step, samples, batch = (pattern.search(line) for pattern in (_NEMO_STEP, _NEMO_SAMPLES, _NEMO_BATCH))
    number = int(float(step[1])) if step else 0
    batch_size = float(batch[1]) if batch else None
    if batch_size is None and samples and step:
        batch_size = ratio(float(samples[1]), number + 1)
        batch_size = batch_size if batch_size and batch_size == int(batch_size) else None
    return _Step(number, seconds, batch_size)


def facts_of_arguments(arguments: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of a run from the arguments that Megatron-LM or NeMo print."""
    values = {name: value_of(text) for name, text in arguments.items()}
    facts = facts_by_name(arguments, _FACTS)
    facts.setdefault("sequence_length", values.get("encoder_seq_length"))
    if "virtual_stages" not in facts and facts.get("blocks_of_virtual_stage"):
        stage = ratio(to_number(facts.get("blocks")), to_number(facts.get("pipeline")))
        facts["virtual_stages"] = ratio(stage, to_number(facts["blocks_of_virtual_stage"]))
    facts["precision"] = _precision(values)
    facts["recompute"] = _recomputation(values, facts)
    facts["strategy"] = _strategy(values)
    return facts


def _precision(values: Mapping[str, Any]) -> str | None:
    """Return the precision of the arithmetic, or the recipe of products in 8 or 4 bits."""
    if values.get("fp4"):
        return "nvfp4"
    if values.get("fp8"):
        return _RECIPES.get(str(values.get("fp8_recipe")), "fp8")
    for name in ("bf16", "fp16"):
        if values.get(name) is True:
            return name
    if values.get("params_dtype"):
        return str(values["params_dtype"])
    lightning = str(values.get("precision") or "").partition("-")[0]  # ``bf16-mixed``
    return {"16": "fp16", "32": "fp32", "bf16": "bf16"}.get(lightning)


def _recomputation(values: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Return which activations are computed again, as `train` names it; None where the log does not say it."""
    checkpoint_activations = values.get("checkpoint_activations")
    names = ("recompute_{}", "activations_checkpoint_{}")
    granularity, method, number = (
        next((values[name.format(part)] for name in names if values.get(name.format(part)) is not None), None)
        for part in ("granularity", "method", "num_layers")
    )
    if granularity == "selective":
        modules = re.findall(r"[a-z_]+", str(values.get("recompute_modules") or ""))
        return f"selective:{'+'.join(modules)}" if modules else "selective"
    if granularity == "full" or checkpoint_activations is True:
        stage = ratio(to_number(facts.get("blocks")), to_number(facts.get("pipeline")) or 1.0)
        interval = ratio(stage, to_number(number)) if method == "block" else None
        return f"full:{round(interval)}" if interval is not None and round(interval) > 1 else "full"
    is_said = checkpoint_activations is not None or any(name.format("granularity") in values for name in names)
    return "none" if is_said else None


def _strategy(values: Mapping[str, Any]) -> str | None:
    """Return how parameters and their state are divided; None where the log does not say it."""
    if values.get("use_torch_fsdp2") is True or values.get("use_megatron_fsdp") is True:
        return "full-shard"
    distributed = values.get("use_distributed_optimizer")
    return None if distributed is None else "distributed-optimizer" if distributed is True else "ddp"


def _add_steps(
    steps: list[_Step], passes: list[tuple[float, float]], flops_per_s: float | None, findings: Findings
) -> None:
    """Add a row for each global batch size, without the first iterations where there are enough."""
    by_batch: dict[float | None, list[_Step]] = {}
    for step in steps:
        by_batch.setdefault(step.batch, []).append(step)
    sequence = to_number(findings.configuration.get("sequence_length"))
    devices = to_number(findings.configuration.get("devices"))
    forward, backward = mean(pair[0] for pair in passes[1:]), mean(pair[1] for pair in passes[1:])
    for batch, logged in by_batch.items():
        counted, doubts = _without_warm_up(logged)
        step_s = mean(step.seconds for step in counted)
        length = mean(step.sequence for step in counted) or sequence
        size = batch if batch is not None else to_number(findings.configuration.get("global_batch_size"))
        tokens = None if size is None or length is None else size * length
        findings.add(
            "step",
            tuple(doubts),
            phase="training",
            global_batch_size=size,
            sequence_length=length,
            devices=devices,
            micro_batch=to_number(findings.configuration.get("micro_batch")),
            samples=len(counted),
            step_s=step_s,
            forward_s=forward if len(by_batch) == 1 else None,
            backward_s=backward if len(by_batch) == 1 else None,
            time_low_s=min(step.seconds for step in counted),
            time_high_s=max(step.seconds for step in counted),
            samples_per_s=ratio(size, step_s),
            tokens_per_s=ratio(tokens, step_s),
            tokens_per_s_per_device=ratio(ratio(tokens, step_s), devices),
            flops_per_s=mean(step.flops_per_s for step in counted) or flops_per_s,
            power_w=mean(step.power_w for step in counted),
        )


def _without_warm_up(logged: list[_Step]) -> tuple[list[_Step], list[str]]:
    """Return the iterations that count, and what is doubtful about them."""
    doubts: list[str] = []
    counted = [step for step in logged if not step.is_skipped]
    if not counted:
        doubts.append("in all iterations the update was skipped (the loss overflowed): the step lacks it")
        counted = logged
    elif len(counted) < len(logged):
        skipped = len(logged) - len(counted)
        lines = f"{format_plural(skipped, 'line')} of iterations without an update"
        doubts.append(f"{lines} {'is' if skipped == 1 else 'are'} left out")
    first = counted[0].number
    later = [step for step in counted if step.number >= first + _WARM_UP] if first <= 1 else counted
    if later:
        return later, doubts
    after_first = [step for step in counted if step.number > first] if first <= 1 else counted
    if after_first:
        doubts.append(f"{len(after_first)} iterations after the first are few: the first ones warm up")
        return after_first, doubts
    doubts.append("only the first iteration was logged, which also initializes")
    return counted, doubts


FORMATS = (
    ResultFormat(
        "megatron", "Megatron-LM", "logs of Megatron-LM, Megatron-Bridge and NeMo", read_log,
        sign=re.compile(
            r"\biteration[ =]\s*\d+\s*/\s*\d+ \|.*elapsed[ _]time[ _]per[ _]iteration|train_step_timing in s[=:]"
        ),
        markers=("elapsed time per iteration", "elapsed_time_per_iteration", "train_step_timing in s"),
    ),
)  # fmt: skip

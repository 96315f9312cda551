"""Logs of torchtitan: tokens per second of one device, and how the run is divided, compiled and recomputed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..text import format_plural
from .findings import Findings, ResultFormat
from .log_heads import head_lines
from .text import find_lines, mean, ratio, to_number

_STEP = re.compile(
    r"step:\s*(\d{1,15})\s+loss:\s*\S+(?:\s+grad_norm:\s*\S+)?\s+memory:\s*(\d+(?:\.\d*)?)GiB\s*\((\d+(?:\.\d*)?)%\)"
    r"\s+(?:tps|wps):\s*([\d,.]+)(?:\s+tflops:\s*([\d,.]+))?(?:\s+mfu:\s*(\d+(?:\.\d*)?)%)?"
)

SAME_PEAK = 1.05
"""Largest plausible ratio of the peaks that FLOP/s and MFU of two lines imply, which are rounded."""

LEAST_MFU = 1.0
"""MFU in percent below which its two digits after the point say too little of the peak."""

# Messages of `torchtitan/train.py`, `distributed/parallel_dims.py`, `distributed/activation_checkpoint.py`,
# `components/metrics.py`, `components/quantization` and the `parallelize.py` of its models, 2024 to 2026.
_COLOUR = r"(?:\x1b?\[\d+m)?"
_VERSION = re.compile(r"torchtitan version: (\d\S*)")
_DEVICE = re.compile(r"\b(?:CUDA|GPU|XPU|HIP|NPU) capacity: (.+?)(?: \(\d+\))? with [\d.]+GiB memory")
_MESH = re.compile(r"Building \d+-D device mesh with (\[[^\]]*\]|\([^)]*\)), (\[[\d, ]*\])")
_WORD, _INTEGER = re.compile(r"\w+"), re.compile(r"\d{1,7}")
_DEGREES = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep)=(\d{1,7})")
_MODEL = re.compile(rf"Model (\S+) (\S+) {_COLOUR}size: ([\d,]{{1,24}}) total parameters")
_LOCAL_BATCH = re.compile(r"local batch size (\d{1,9})")
_GLOBAL_BATCH = re.compile(r"global batch size (\d{1,9})")
_LENGTH = re.compile(r"(?:sequence length|maximum context length) (\d{1,9})")
_TOKENS = re.compile(r"(\d{1,15}) tokens per train step")
_CHECKPOINTING = re.compile(r"Applied (\w+) activation checkpointing")
_SELECTIVE_OPTION = re.compile(r"'selective_ac_option': '(\w+)'")
_DATA_PARALLEL = re.compile(r"Applied (FSDP|HSDP|DDP|fully_shard)\b")
_COMPILED = re.compile(r"Compil(?:ing|ed) each \w+")
_RECIPE = re.compile(r"(?:Float8|MX) training active(?: with recipe (\w+))?")
_PARAMETER_TYPE = re.compile(r"'mixed_precision_param': '(\w+)'")
_SCHEDULE = re.compile(r"Using pipeline schedule \S+ with (\d{1,6}) microbatches and (\d{1,6}) stages")
_MARKERS = (
    "torchtitan version", " capacity: ", "device mesh with ", "total parameters", "Trainer is initialized with",
    "Training starts at step", "activation checkpointing", "Running with ", "Applied ", "Compil", "training active",
    "Mixed precision training", "Using pipeline schedule",
)  # fmt: skip

_NAMES = {"deepseek_v3 671b": "deepseek-v3", "llama4 17bx16e": "llama-4-scout", "llama4 17bx128e": "llama-4-maverick"}
"""Networks that torchtitan calls by another name than their publishers."""

_STRATEGIES = {"FSDP": "full-shard", "fully_shard": "full-shard", "HSDP": "hybrid-shard", "DDP": "ddp"}


class _StepLine(NamedTuple):
    """The figures of a line; None where it has none."""

    number: float | None
    memory_gib: float | None
    memory_percent: float | None
    tokens_per_s: float | None  # of one device
    tflops: float | None  # per second
    mfu: float | None  # in percent


def read_torchtitan(path: Path, findings: Findings) -> None:
    """Read the lines of torchtitan, whose tokens per second are those of one device."""
    _read_head(path, findings)
    steps: list[_StepLine] = []
    for line in find_lines(path, ("tps:", "wps:"), findings):
        match = _STEP.search(line)
        if match:
            steps.append(_StepLine(*(to_number(text) for text in match.groups())))
    later = [step for step in steps if (step.number or 0) > 1]
    counted = later[1:] if len(later) > 2 else later or steps
    doubts: tuple[str, ...] = (
        () if len(later) > 1 else ("one line is a short run: the first lines contain the compilation",)
    )
    doubts += tuple(_doubts_of_lines(steps))
    tflops = mean(step.tflops for step in counted)
    mfu = mean(step.mfu for step in counted)
    memory_gib = counted[-1].memory_gib if counted else None
    facts = {
        name: to_number(findings.configuration.get(name))
        for name in ("devices", "global_batch_size", "sequence_length", "micro_batch")
    }
    findings.add(
        "step",
        doubts,
        phase="training",
        samples=len(counted),
        **facts,
        tokens_per_s_per_device=mean(step.tokens_per_s for step in counted),
        flops_per_s=None if tflops is None else tflops * 1e12,
        mfu=None if mfu is None else mfu / 100,
        memory_bytes=None if memory_gib is None else memory_gib * 2.0**30,
    )
    findings.doubt("tokens per second are those of one device")
    if None in facts.values():
        findings.doubt("the head of the log, which says how the run is divided, is not in the file, or only partly")


def _doubts_of_lines(steps: Sequence[_StepLine]) -> Iterator[str]:
    """Yield what no device does in the lines, and where they contradict each other."""
    for figure, percents in (
        ("an MFU", [step.mfu for step in steps]),
        ("memory in use", [step.memory_percent for step in steps]),
    ):
        above = [percent for percent in percents if percent is not None and percent > 100]
        if above:
            yield (
                f"{len(above)} of {format_plural(len(steps), 'line')} have {figure} of up to {max(above):g}%, above "
                "100%: the lines, or what they relate to, are wrong"
            )
    peaks = [step.tflops / step.mfu for step in steps if step.tflops and step.mfu and step.mfu >= LEAST_MFU]
    if peaks and max(peaks) > SAME_PEAK * min(peaks):
        yield (
            f"FLOP/s over MFU are a peak of {100 * min(peaks):,.3g} TFLOP/s in one line and of {100 * max(peaks):,.3g} "
            "in another: one of the figures is wrong"
        )


def _read_head(path: Path, findings: Findings) -> None:
    """Record what the log says before the first step."""
    lines = list(head_lines(path, _MARKERS))
    text = "\n".join(lines)
    if match := _VERSION.search(text):
        findings.version = match[1]
    if match := _DEVICE.search(text):
        findings.record(gpu=match[1])
    if match := _MODEL.search(text):
        findings.record(network=_network(match[1], match[2]), parameters=to_number(match[3]))
    degrees = _degrees(text)
    _record_batch(text, degrees, findings)
    if not degrees:
        return
    devices = math.prod(degrees.get(name, 1) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp"))
    findings.record(
        devices=devices,
        tensor=degrees.get("tp", 1),
        pipeline=degrees.get("pp", 1),
        context_parallel=degrees.get("cp", 1),
        expert_parallel=degrees.get("ep"),
        strategy=_strategy(text, degrees) if devices > 1 else None,
        execution="compiled" if _COMPILED.search(text) else "eager",
    )
    _record_recomputation(text, findings)
    _record_precision(text, findings)


def _network(family: str, flavour: str) -> str:
    """Return the name of a network from that of its model type and its size: ``llama3 8B``, ``llama3 llama3_8b``."""
    if flavour.lower().startswith(family.lower()):
        return flavour
    name = f"{family} {flavour}"
    return _NAMES.get(name.lower(), name)


def _degrees(text: str) -> dict[str, int]:
    """Return the degrees of parallelism of the device mesh; empty without one."""
    for line in text.split("\n"):
        if "Building device mesh with parallelism" in line:
            return {name: int(number) for name, number in _DEGREES.findall(line)}
        match = _MESH.search(line)
        if match is None:
            continue
        sizes = dict(zip(_WORD.findall(match[1]), map(int, _INTEGER.findall(match[2])), strict=False))
        shard = math.prod(sizes.get(name, 1) for name in ("dp", "dp_shard", "dp_shard_mod_ep", "dp_shard_in_ep"))
        degrees = {name: sizes[name] for name in ("pp", "dp_replicate", "cp", "tp", "ep") if name in sizes}
        if "dp_shard_in_ep" in sizes and "tp" not in sizes:
            # Experts take this part of the sharded dimension, and that of the context.
            degrees["ep"] = sizes["dp_shard_in_ep"] * sizes.get("cp", 1)
        return {"dp_shard": shard, **degrees}
    return {}


def _record_batch(text: str, degrees: dict[str, int], findings: Findings) -> None:
    """Record batch and sequence length; of a pipeline, the batch of a micro-batch and the virtual stages."""
    head = "\n".join(
        line for line in text.split("\n") if "Trainer is initialized" in line or "Training starts at step" in line
    )
    numbers = {}
    for name, pattern in (("local", _LOCAL_BATCH), ("whole", _GLOBAL_BATCH), ("length", _LENGTH), ("tokens", _TOKENS)):
        match = pattern.search(head)
        numbers[name] = float(match[1]) if match else None
    length, global_batch = numbers["length"], numbers["whole"]
    sequences = ratio(numbers["tokens"], length)
    global_batch = (
        sequences if global_batch is None and sequences is not None and sequences.is_integer() else global_batch
    )
    micro_batch, schedule = numbers["local"], _SCHEDULE.search(text)
    if schedule is not None and degrees.get("pp"):
        micro_batch = ratio(micro_batch, float(schedule[1]))
        findings.record(virtual_stages=max(int(schedule[2]) // degrees["pp"], 1))
    findings.record(global_batch_size=global_batch, sequence_length=length, micro_batch=micro_batch)


def _strategy(text: str, degrees: dict[str, int]) -> str | None:
    """Return how parameters are divided; with a pipeline, FSDP keeps them whole after the forward pass."""
    match = _DATA_PARALLEL.search(text)
    default = "full-shard" if degrees.get("dp_shard", 1) > 1 else "ddp"
    name = default if match is None else _STRATEGIES[match[1]]
    return "shard-grad-op" if name == "full-shard" and degrees.get("pp", 1) > 1 else name


def _record_recomputation(text: str, findings: Findings) -> None:
    match = _CHECKPOINTING.search(text)
    if match is None:
        findings.record(recompute="none")
        return
    mode = match[1].lower()
    option = _SELECTIVE_OPTION.search(text)
    if mode.startswith("full"):
        findings.record(recompute="full")
    elif not mode.startswith("selective"):
        findings.doubt(f"the activation checkpointing {match[1]} has no option of `train`")
    elif option is not None and option[1].isdigit():
        findings.record(recompute=f"full:{option[1]}")
    else:
        findings.record(recompute="selective")


def _record_precision(text: str, findings: Findings) -> None:
    """Record the recipe of products, or the type of parameters in mixed precision."""
    if match := _RECIPE.search(text):
        findings.record(precision="mxfp8" if str(match[1]).startswith("mxfp8") else "fp8")
    elif match := _PARAMETER_TYPE.search(text):
        findings.record(precision=match[1])
    elif "Mixed precision training is disabled" in text:
        findings.record(precision="fp32")
    else:
        findings.guess("the default of torchtitan", precision="bf16")


FORMATS = (
    ResultFormat(
        "torchtitan", "torchtitan", "logs of torchtitan", read_torchtitan, sign=_STEP, markers=("tps:", "wps:"),
    ),
)  # fmt: skip

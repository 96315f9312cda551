"""Logs of training: DeepSpeed, Composer, litgpt and the Trainer of Hugging Face."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import read_documents
from .text import UNITS, find_lines, mean, product, ratio, scaled, to_number, to_seconds
from .training_heads import record_composer, record_deepspeed, record_litgpt, record_trainer

_MS = 1e-3
_WARM_UP = 2

_NUMBER = r"(\d+(?:\.\d*)?)"
_SPEED = re.compile(
    rf"global_step=(\d{{1,15}}).*?RunningAvgSamplesPerSec={_NUMBER}, CurrSamplesPerSec={_NUMBER}"
    rf"(?:, MemAllocated={_NUMBER}GB, MaxMemAllocated={_NUMBER}GB)?"
)
_MICRO = re.compile(
    rf"(?:fwd|forward)_microstep: {_NUMBER}.*?(?:bwd|backward)_microstep: {_NUMBER}"
    rf"(?:.*?(?:bwd|backward)_allreduce_microstep: {_NUMBER})?(?:.*?step_microstep: {_NUMBER})?"
)
_RLHF = re.compile(
    rf"\|E2E latency={_NUMBER}s \|Gather latency={_NUMBER}s.*?\|Generate time={_NUMBER}s.*?"
    rf"\|Training time={_NUMBER}s.*?CurSamplesPerSec={_NUMBER}"
)
_OPTION = re.compile(r"--(\w+)[ =](\S+)")
_OPTION_FACTS = {
    "model_name_or_path": "network", "actor_model_name_or_path": "network", "zero_stage": "zero_stage",
    "per_device_train_batch_size": "micro_batch", "max_seq_len": "sequence_length", "dtype": "precision",
    "gradient_accumulation_steps": "accumulation",
}  # fmt: skip


def read_deepspeed(path: Path, findings: Findings) -> None:
    """Read the speeds, the breakdown of steps and the RLHF times that DeepSpeed logs."""
    record_deepspeed(path, findings)
    speeds: list[tuple[int, float, float]] = []
    micro: list[tuple[float | None, ...]] = []
    rlhf: list[tuple[float, ...]] = []
    memory_gb = None
    for line in find_lines(path, ("SamplesPerSec=", "_microstep: ", "cmd = ", "E2E latency="), findings):
        if match := _SPEED.search(line):
            speeds.append((int(match[1]), float(match[2]), float(match[3])))
            memory_gb = to_number(match[5]) or memory_gb
        elif match := _RLHF.search(line):
            rlhf.append(tuple(float(text) for text in match.groups()))
        elif seconds := microstep_seconds(line):
            micro.append(seconds)
        elif "cmd = " in line:
            options = {name: value for name, value in _OPTION.findall(line) if name in _OPTION_FACTS}
            for name, value in options.items():
                number = to_number(value)
                findings.guess("the command line", **{_OPTION_FACTS[name]: value if number is None else number})
    if rlhf:
        step_s, gather, generate, training, per_s = (mean(column) for column in zip(*(rlhf[1:] or rlhf), strict=True))
        findings.add("step", phase="rlhf", samples=len(rlhf), step_s=step_s, communication_s=gather, forward_s=generate,
                     update_s=training, samples_per_s=per_s)  # fmt: skip
    later = [speed for speed in speeds if speed[0] > _WARM_UP] or speeds
    if later:
        rate = mean(speed[2] for speed in later)
        findings.add(
            "step",
            phase="training",
            samples=len(later),
            samples_per_s=rate,
            memory_bytes=None if memory_gb is None else memory_gb * 2.0**30,
            **numbers_of(findings, "sequence_length", "micro_batch", "global_batch_size", "devices"),
        )
        findings.doubt(
            "samples per second are those of the engine's forward, backward and step, of all GPUs; the loading of data "
            "is outside"
        )
    add_microsteps(micro, findings)


def numbers_of(findings: Findings, *names: str) -> dict[str, Any]:
    """Return facts that the log records as numbers; None for those that it lacks."""
    return {name: to_number(findings.configuration.get(name)) for name in names}


def microstep_seconds(line: str) -> tuple[float | None, ...]:
    """Return forward, backward, all-reduce and update of a line of DeepSpeed's breakdown; empty for another line."""
    match = _MICRO.search(line)
    return tuple(None if text is None else float(text) * _MS for text in match.groups()) if match else ()


def add_microsteps(micro: list[tuple[float | None, ...]], findings: Findings) -> None:
    """Add the mean of the micro-batches that DeepSpeed broke down."""
    if not micro:
        return
    forward_s, backward_s, all_reduce_s, update_s = (mean(column) for column in zip(*(micro[1:] or micro), strict=True))
    findings.add(
        "step",
        ("the timers wait for the GPU: slower than without them, and the overlap is partly lost",),
        phase="training",
        variant="one micro-batch",
        samples=len(micro),
        forward_s=forward_s,
        backward_s=backward_s,
        communication_s=all_reduce_s,
        update_s=update_s,
    )


_PROFILER = re.compile(
    r"^(fwd latency|bwd latency|step latency|iter latency|samples/second)(?: of.*?)?:\s+([\d.,]+) ?(\S*)"
)
_PROFILED = {
    "fwd latency": "forward_s", "bwd latency": "backward_s", "step latency": "update_s", "iter latency": "step_s",
    "samples/second": "samples_per_s",
}  # fmt: skip


def read_flops_profiler(path: Path, findings: Findings) -> None:
    """Read the summary of DeepSpeed's FLOPs profiler."""
    values: dict[str, Any] = {}
    for line in find_lines(path, (" latency", "samples/second")):
        match = _PROFILER.match(line)
        if match:
            values.setdefault(_PROFILED[match[1]], scaled(match[2], UNITS.get(match[3], 1.0)))
    findings.add("step", ("a profiled step: the hooks of its modules slow it",), phase="training", **values)


_COMPOSER = re.compile(r"\bTrain ((?:throughput|time)/\S+): ([\d.eE+-]+)")
_COMPOSER_FIGURES = {
    "throughput/batches_per_sec": "steps_per_s", "throughput/samples_per_sec": "samples_per_s",
    "throughput/tokens_per_sec": "tokens_per_s",
    "throughput/device/samples_per_sec": "samples_per_s_per_device",
    "throughput/device/tokens_per_sec": "tokens_per_s_per_device",
    "throughput/device/flops_per_sec": "flops_per_s", "throughput/device/mfu": "mfu",
}  # fmt: skip


def read_composer(path: Path, findings: Findings) -> None:
    """Read the figures of Composer's SpeedMonitor; its first lines warm up."""
    record_composer(path, findings)
    logged: dict[str, list[float]] = {}
    for line in find_lines(path, ("Train throughput/",), findings):
        match = _COMPOSER.search(line)
        number = to_number(match[2]) if match else None
        if match and match[1] in _COMPOSER_FIGURES and number is not None:
            logged.setdefault(_COMPOSER_FIGURES[match[1]], []).append(number)
    means = {name: mean(values[len(values) // 2 :]) for name, values in logged.items()}
    devices = ratio(means.get("tokens_per_s"), means.get("tokens_per_s_per_device"))
    devices = devices or ratio(means.get("samples_per_s"), means.get("samples_per_s_per_device"))
    if devices:
        findings.record(devices=round(devices))
    count = max((len(values) for values in logged.values()), default=0)
    doubts = ("one line is a short run: the first lines warm up",) if count == 1 else ()
    findings.add(
        "step", doubts, phase="training", devices=round(devices) if devices else None, samples=count or None,
        global_batch_size=_nearly_whole(ratio(means.get("samples_per_s"), means.get("steps_per_s"))),
        step_s=ratio(1.0, means.pop("steps_per_s", None)), **means,
    )  # fmt: skip


def _nearly_whole(number: float | None) -> float | None:
    """Return a number where it is almost whole: a rounded rate gives none."""
    return round(number) if number is not None and abs(number - round(number)) < 0.005 * number else None


_LITGPT = re.compile(r"iter (\d{1,15}) step \d+ \|.*iter time: (\d+(?:\.\d*)?) ms( \(step\))?")


def read_litgpt(path: Path, findings: Findings) -> None:
    """Read litgpt's iterations: those marked `(step)` contain the update, the others accumulate."""
    record_litgpt(path, findings)
    plain: list[float] = []
    updating: list[float] = []
    for line in find_lines(path, ("iter time:",), findings):
        match = _LITGPT.search(line)
        if match and int(match[1]) > 1:
            (updating if match[3] else plain).append(float(match[2]) * _MS)
    accumulated, with_update = mean(plain), mean(updating)
    update_s = None if accumulated is None or with_update is None else max(with_update - accumulated, 0.0)
    findings.add("step", phase="training", variant="an iteration that accumulates", samples=len(plain) or None,
                 step_s=accumulated)  # fmt: skip
    findings.add("step", phase="training", variant="an iteration with the update", samples=len(updating) or None,
                 step_s=with_update, update_s=update_s)  # fmt: skip
    facts = numbers_of(findings, "devices", "global_batch_size", "micro_batch", "sequence_length")
    iterations = ratio(facts["global_batch_size"], product(facts["micro_batch"], facts["devices"]))
    if iterations is None or not iterations.is_integer():
        findings.doubt("an iteration is one micro-batch; how many make a step is not in the log")
    elif with_update is not None and (accumulated is not None or iterations == 1):
        step_s = with_update + (iterations - 1) * (accumulated or 0.0)
        findings.add("step", phase="training", samples=len(updating), step_s=step_s, update_s=update_s, **facts)


_TRAINED = re.compile(r"['\"]?(train_\w+|total_flos|epoch)['\"]?\s*[:=]\s*([^,}\n]+)")


def read_trainer(path: Path, findings: Findings) -> None:
    """Read `train_results.json`, `all_results.json` or `trainer_state.json` of Hugging Face's Trainer."""
    for document in read_documents(path, findings):
        history = document.get("log_history")
        entries = history if isinstance(history, list) else [document]
        finished = [entry for entry in entries if isinstance(entry, dict) and "train_runtime" in entry]
        for entry in finished:
            steps = to_number(document.get("global_step"))
            _add_trained(entry, to_number(document.get("train_batch_size")), steps, findings)
        if not finished:
            findings.doubt("the run did not finish, so the file contains no times")


def read_trainer_lines(path: Path, findings: Findings) -> None:
    """Read the line or the table that the Trainer prints at the end of a training."""
    record_trainer(path, findings)
    entries: list[dict[str, Any]] = []
    for line in find_lines(path, ("train_runtime", "train_samples_per_second", "train_steps_per_second")):
        for name, text in _TRAINED.findall(line):
            value = to_number(text)
            value = to_seconds(text.strip()) if value is None else value
            if not entries or name in entries[-1]:
                entries.append({})
            entries[-1][name] = value
    facts = numbers_of(findings, "micro_batch", "steps")
    seen_keys = set()
    for entry in entries:
        key = (entry.get("train_samples_per_second"), round(to_number(entry.get("train_runtime")) or 0))
        if key not in seen_keys:  # every process prints the line
            _add_trained(entry, facts["micro_batch"], facts["steps"], findings)
        seen_keys.add(key)


def _add_trained(entry: dict[str, Any], batch_size: float | None, steps: float | None, findings: Findings) -> None:
    samples_per_s, steps_per_s = (to_number(entry.get(f"train_{of}_per_second")) for of in ("samples", "steps"))
    duration_s = to_number(entry.get("train_runtime"))
    steps = steps or to_number(entry.get("step"))
    step_s = ratio(duration_s, steps) or ratio(1.0, steps_per_s)
    global_batch = ratio(samples_per_s, ratio(1.0, step_s))
    logged = numbers_of(findings, "global_batch_size")["global_batch_size"]
    findings.add(
        "step",
        phase="training",
        micro_batch=batch_size,
        global_batch_size=_nearly_whole(global_batch) if logged is None else logged,
        steps=steps,
        step_s=step_s,
        duration_s=duration_s,
        samples_per_s=samples_per_s,
        tokens_per_s=to_number(entry.get("train_tokens_per_second")),
        flops=to_number(entry.get("total_flos")),
    )
    findings.doubt(
        "the time is that of the whole training, with evaluation, checkpoints, the loading of data and the compilation "
        "of the first step: an upper bound of the step"
    )


FORMATS = (
    ResultFormat(
        "deepspeed-profiler", "DeepSpeed's FLOPs profiler", "the summary of DeepSpeed's FLOPs profiler",
        read_flops_profiler, sign=re.compile("DeepSpeed Flops Profiler -"), markers=("DeepSpeed Flops Profiler -",),
    ),
    ResultFormat(
        "deepspeed", "DeepSpeed", "logs of DeepSpeed", read_deepspeed,
        sign=re.compile(r"SamplesPerSec=\d+(?:\.\d*)?|(?:fwd|forward)_microstep: \d+(?:\.\d*)?"),
        markers=("SamplesPerSec=", "_microstep: "),
    ),
    ResultFormat(
        "composer", "Composer", "logs of Composer and LLM Foundry", read_composer,
        sign=re.compile(r"Train throughput/\S+: \d+(?:\.\d*)?"), markers=("Train throughput/",),
    ),
    ResultFormat("litgpt", "litgpt", "logs of litgpt", read_litgpt, sign=_LITGPT, markers=("iter time:",)),
    ResultFormat(
        "hf-trainer-state", "Hugging Face's Trainer", "", read_trainer, keys=("log_history", "global_step"),
    ),
    ResultFormat(
        "hf-trainer", "Hugging Face's Trainer", "the results of Hugging Face's Trainer", read_trainer,
        keys=("train_runtime", "train_samples_per_second", "train_steps_per_second"),
    ),
    ResultFormat(
        "hf-trainer-lines", "Hugging Face's Trainer", "", read_trainer_lines,
        sign=re.compile(r"['\"]?train_runtime['\"]?\s*[:=]\s*\d+(?:\.\d*)?"), markers=("train_runtime",),
    ),
)  # fmt: skip

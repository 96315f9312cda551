"""Rows of training in result files: the options of `train` that they answer, and what they are evidence of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..calibration.evidence_file import is_plausible, rounded_shares
from ..calibration.posterior import Observation
from ..errors import BadValue
from ..result_files.configuration import count_of, precision_of
from ..result_files.text import to_number
from ..timing.training_options import find_recipe

OPTIONS = {
    "devices": "workers", "global_batch_size": "global_batch_size", "batch_size": "batch_size",
    "sequence_length": "sequence_length", "tensor": "tensor", "pipeline": "pipeline", "micro_batch": "micro_batch",
    "context_parallel": "context_parallel", "expert_parallel": "expert_parallel", "accumulation": "accumulation",
    "lora": "lora",
}  # fmt: skip
"""Facts of a row of training that are counts, with the options of `train` that they answer."""

CHOSEN = ("strategy", "execution", "recompute")
"""Facts of a row of training that are names, and the options of `train` that they answer."""

STACKS: dict[str, dict[str, str]] = {
    "torchtitan": {"strategy": "full-shard", "execution": "compiled"},
    "Composer": {"strategy": "full-shard", "execution": "eager"},
    "litgpt": {"strategy": "full-shard", "execution": "eager"},
    "DeepSpeed": {"execution": "eager"},
    "Hugging Face's Trainer": {"execution": "eager"},
    "Megatron-LM": {"execution": "megatron"},
}
"""How tools run language models unless they are told otherwise, for logs that do not record it."""

ZERO_STAGES = {0: "ddp", 1: "zero-1", 2: "zero-2", 3: "zero-3"}


def is_training(facts: dict[str, Any]) -> bool:
    """Return whether a row is of steps of training."""
    return facts.get("phase") == "training"


def training_options(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `train` for a row of training; raise BadValue without a batch size."""
    if facts.get("variant"):
        raise BadValue(f"{facts['variant']} is a part of a step, which has no forecast")
    counts = {name: count_of(facts, name) for name in OPTIONS}
    settings: dict[str, Any] = {OPTIONS[name]: count for name, count in counts.items() if count is not None}
    if not settings.get("batch_size") and not settings.get("global_batch_size"):
        raise BadValue(
            "the batch size is not in the file: give `--global-batch-size 256`, or write `global_batch_size = 256` to "
            "a sidecar"
        )
    if settings.get("global_batch_size"):
        settings.pop("batch_size", None)
    if settings.get("workers") == 1:
        settings |= _of_one_device(settings)
        del settings["workers"]
    elif settings.get("micro_batch"):
        settings.pop("accumulation", None)  # follows from the batch of a device
    stages = count_of(facts, "virtual_stages")
    return {
        "gpu": facts["gpu"],
        "precision": training_precision(facts) or "bf16",
        **settings,
        **chosen_options(facts),
        **({"schedule": f"interleaved={stages}"} if stages is not None and stages > 1 else {}),
    }


def _of_one_device(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the batch of one device and the number of its micro-batches."""
    batch_size = settings.pop("global_batch_size", None) or settings["batch_size"]
    micro_batch = settings.pop("micro_batch", None)
    if micro_batch and batch_size % micro_batch == 0 and batch_size > micro_batch:
        return {"batch_size": batch_size, "accumulation": batch_size // micro_batch}
    return {"batch_size": batch_size}


def training_precision(facts: dict[str, Any]) -> str | None:
    """Return the precision of a row of training, also a recipe of 8 or 4 bits; None where it is not known."""
    name = str(facts.get("precision") or "").lower()
    return name if find_recipe(name) is not None else precision_of(facts)


def chosen_options(facts: dict[str, Any]) -> dict[str, str]:
    """Return strategy, execution and recomputation: what is recorded or given, otherwise the usual ones of the tool."""
    chosen = dict(STACKS.get(str(facts.get("tool")), {}))
    stage = to_number(facts.get("zero_stage"))
    if stage in ZERO_STAGES:
        chosen["strategy"] = ZERO_STAGES[int(stage)]
    chosen |= {name: str(facts[name]) for name in CHOSEN if facts.get(name)}
    if chosen.get("recompute") == "True":  # a sidecar may say no more
        chosen["recompute"] = "full"
    if count_of(facts, "devices") == 1:
        chosen.pop("strategy", None)
    return chosen


def describe_assumptions(facts: dict[str, Any]) -> str:
    """Return a sentence about what is assumed of a row of training that neither the file nor the user says.

    It is empty if nothing is.
    """
    chosen = chosen_options(facts)
    chosen.setdefault("recompute", "none")
    words = {"recompute": "recomputation"}
    assumed = [
        f"{words.get(name, name)} {value} (`--{name}`)"
        for name, value in chosen.items()
        if not facts.get(name) and not (name == "strategy" and facts.get("zero_stage") is not None)
    ]
    return f"assumed, since it is not in the file: {', '.join(assumed)}" if assumed else ""


def measured_step_s(facts: dict[str, Any]) -> float | None:
    """Return the seconds of a step of training that a row says, also those that follow from its rates and its batch."""
    step_s, samples = to_number(facts.get("step_s")), to_number(facts.get("global_batch_size"))
    if step_s is not None or samples is None:
        return step_s
    rates = {}
    for unit in ("samples", "tokens"):
        per_device = to_number(facts.get(f"{unit}_per_s_per_device"))
        of_all = None if per_device is None else per_device * (to_number(facts.get("devices")) or 1.0)
        rates[unit] = to_number(facts.get(f"{unit}_per_s")) or of_all
    if rates["samples"]:
        return samples / rates["samples"]
    length = to_number(facts.get("sequence_length"))
    return samples * length / rates["tokens"] if length and rates["tokens"] else None


def observe_training(
    facts: dict[str, Any], situation: str, answer: Any, hardware_files: list[Path]
) -> list[Observation]:
    """Return a measured step of training as evidence, beside that of an answer."""
    from ..distributed.job import Job
    from ..distributed.step_causes import KIND, STEP_TIME, step_shares, training_traits
    from ..questions.train import Train
    from ..questions.train_cluster import asked_of_cluster
    from .scaling import resolve_cluster

    measured_s = measured_step_s(facts)
    if measured_s is None:
        raise BadValue("neither the time of a step nor a rate with the global batch is in the file")
    options = {"workers": 1, **training_options(facts)}
    case = resolve_cluster(*asked_of_cluster(Train(facts["network"], hardware_files=hardware_files, **options)))
    workers = case.request.worker_counts()[0]
    job, topology = Job(case.workload, case.machine, case.model), case.topology.with_workers(workers)
    samples = case.request.resolve_batch(workers).of_all(workers)
    shares = step_shares(job, topology, case.settings, samples, case.request.strategy)
    if not is_plausible(measured_s):
        return []
    named = f"{situation}, {workers:,} devices" if situation else f"{workers:,} devices"
    traits, time_s = training_traits(job, case.settings), float(answer.time_s)
    return [Observation(KIND, STEP_TIME, named, traits, measured_s, time_s, rounded_shares(shares))]

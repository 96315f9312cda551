"""Rows of training in result files: the options of `train` that they answer, and what they are evidence of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..calibration.evidence import Observation
from ..calibration.evidence_file import is_plausible, rounded_shares
from ..errors import BadValue
from ..result_files.configuration import count_of, precision_of
from ..result_files.text import to_number

OPTIONS = {
    "devices": "workers", "global_batch_size": "global_batch_size", "batch_size": "batch_size",
    "sequence_length": "sequence_length", "tensor": "tensor", "pipeline": "pipeline", "micro_batch": "micro_batch",
    "context_parallel": "context_parallel", "expert": "expert_parallel",
}  # fmt: skip
"""Facts of a row of training, with the options of `train` that they answer."""

STACKS: dict[str, dict[str, str]] = {
    "torchtitan": {"strategy": "full-shard", "execution": "compiled"},
    "Composer": {"strategy": "full-shard", "execution": "eager"},
}
"""How tools divide language models among devices unless they are told otherwise, which their logs do not record."""

ZERO_STAGES = {1: "zero-1", 2: "zero-2", 3: "zero-3"}


def training_options(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `train` for a row of training; raise BadValue without a batch size."""
    counts = {name: count_of(facts, name) for name in OPTIONS}
    settings: dict[str, Any] = {OPTIONS[name]: count for name, count in counts.items() if count is not None}
    if settings.get("workers") == 1:
        settings["batch_size"] = settings.pop("global_batch_size", None) or settings.get("batch_size")
        del settings["workers"]
    elif "tensor" not in settings and "pipeline" not in settings:
        settings |= STACKS.get(str(facts.get("tool")), {})
        stage = count_of(facts, "zero_stage")
        settings |= {"strategy": ZERO_STAGES[stage]} if stage in ZERO_STAGES else {}
    if not settings.get("batch_size") and not settings.get("global_batch_size"):
        raise BadValue("the batch size is not in the file: write `global_batch_size = 256` to a sidecar")
    if settings.get("global_batch_size"):
        settings.pop("batch_size", None)
    return {
        "gpu": facts["gpu"],
        "precision": precision_of(facts) or "bf16",
        "recompute": "block" if facts.get("recompute") is True else None,
        **settings,
    }


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
    from ..distributed.evidence import KIND, STEP_TIME, step_shares, training_traits
    from ..distributed.job import Job
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
    samples = case.request.global_batch_size(case.request.resolve_batch_size(workers), workers)
    shares = step_shares(job, topology, case.settings, samples, case.request.strategy)
    if not is_plausible(measured_s):
        return []
    named = f"{situation}, {workers:,} devices" if situation else f"{workers:,} devices"
    traits, time_s = training_traits(job, case.settings), float(answer.time_s)
    return [Observation(KIND, STEP_TIME, named, traits, measured_s, time_s, rounded_shares(shares))]

"""Rules of thumb and remedies for input pipelines, from the course slides "Performance and Profiling".

A remedy is the same pipeline with one change, predicted again; its gain is the ratio of both throughputs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..units import format_rate
from .feeding import PipelineThroughput, Store, predict_throughput

TARGET_UTILISATION = 0.9
MAX_WAITING_SHARE = 0.1
"""Largest share of the time spent waiting that still counts as "much shorter": 1 - `TARGET_UTILISATION`."""


class RuleOfThumb(msgspec.Struct, frozen=True):
    """A rule of thumb applied to a pipeline."""

    rule: str
    observed: str  # the value of this pipeline
    holds: bool  # whether the rule holds


def check_rules(result: PipelineThroughput) -> tuple[RuleOfThumb, ...]:
    """Check the course's rules of thumb."""
    pipeline = result.pipeline
    rules = [
        RuleOfThumb(
            "GPU utilisation of 90% or more",
            f"{result.utilisation:.1%}",
            result.utilisation >= TARGET_UTILISATION,
        )
    ]
    for stage in result.stages:
        store = pipeline.store
        if stage.name == "storage" and store is not None and store.expected_bytes_per_s and stage.bytes_per_s:
            rules.append(
                RuleOfThumb(
                    f"I/O at about {store.expected_bytes_per_s / 1e6:,.0f} MB/s, as expected of {store.name}",
                    f"{stage.bytes_per_s / 1e6:,.1f} MB/s with {pipeline.access} reads of "
                    f"{pipeline.sample_bytes / 1e3:,.0f} kB",
                    stage.bytes_per_s >= 0.8 * store.expected_bytes_per_s,
                )
            )
    waiting_ratio = result.waiting_s / result.compute_s
    rules.append(
        RuleOfThumb(
            "loading (t2 - t1) much shorter than training (t3 - t2)",
            f"{format_rate(result.waiting_s * 1e3)} ms loading, "
            f"{format_rate(result.compute_s * 1e3)} ms training per batch",
            waiting_ratio <= MAX_WAITING_SHARE / (1 - MAX_WAITING_SHARE) + 1e-12,
        )
    )
    rules.append(
        RuleOfThumb(
            "I/O sample rate higher than the training sample rate",
            f"{format_rate(result.loading_per_s)} samples/s loading, "
            f"{format_rate(pipeline.demand_per_s)} samples/s training",
            result.loading_per_s > pipeline.demand_per_s,
        )
    )
    return tuple(rules)


class Remedy(msgspec.Struct, frozen=True):
    """A remedy of the course, applied alone."""

    name: str
    description: str  # the change in detail
    after: PipelineThroughput  # throughput with the change
    gain: float  # throughput after the change divided by the throughput before
    # Whether the remedy needs further nodes or another precision, and so is not part of a plan for this node.
    needs_other_nodes: bool = False


class Upgrades(msgspec.Struct, frozen=True):
    """Replacements that the remedies use."""

    nvme: Store  # NVMe storage
    # Networks to a separate node: plain Ethernet, and with RDMA; (name, bytes per second).
    networks: tuple[tuple[str, float], tuple[str, float]]
    raw_bytes: float  # bytes of a decoded and augmented sample in storage, one byte per element
    # Samples per second of the device in fp16, and bytes of a decoded sample in fp16; None if not supported.
    fp16: tuple[float, float] | None = None


def evaluate_remedies(result: PipelineThroughput, upgrades: Upgrades) -> tuple[Remedy, ...]:
    """Return the remedies that apply to a pipeline, each evaluated alone, largest gain first."""
    pipeline = result.pipeline
    loads_here = pipeline.network is None
    remedies: list[Remedy] = []

    def add(name: str, description: str, needs_other_nodes: bool = False, **changes: Any) -> None:
        after = predict_throughput(msgspec.structs.replace(pipeline, **changes))
        gain = after.throughput_per_s / result.throughput_per_s
        remedies.append(Remedy(name, description, after, gain, needs_other_nodes))

    if result.needed_workers is not None:
        workers = max(result.needed_workers, pipeline.workers)
        description = f"{workers} are enough"
        if workers > pipeline.workers:
            description = f"{workers} instead of {pipeline.workers}"
        add("more workers, a core each", description, workers=workers)
    if loads_here and pipeline.decode_per_worker_s is not None:
        description = f"{upgrades.raw_bytes / 1e3:,.0f} kB per sample, decoded once in advance"
        add("pre-augmented data", description, decode_per_worker_s=None, sample_bytes=upgrades.raw_bytes)
    if not pipeline.pinned:
        add("pinned memory", "copies at the rate of the link, concurrent with the device's computation", pinned=True)
    if not pipeline.prefetch:
        add("prefetching", "load and copy ahead while the device computes", prefetch=True)
    if loads_here and pipeline.store is not None:
        if pipeline.access == "random":
            add("sequential reads", f"from {pipeline.store.name}", access="sequential")
        if pipeline.store.bandwidth_bytes_per_s < upgrades.nvme.bandwidth_bytes_per_s:
            add("NVMe", f"instead of {pipeline.store.name}", store=upgrades.nvme)
        add("dataset in memory", "no storage", store=None)
    if loads_here:
        ethernet, rdma = upgrades.networks
        add("loading and augmentation on separate nodes", f"over {ethernet[0]}", True, network=ethernet)
        add("the same with RDMA", f"over {rdma[0]}, into pinned memory", True, network=rdma, pinned=True)
    if upgrades.fp16 is not None:
        per_s, decoded_bytes = upgrades.fp16
        description = f"the device alone: {format_rate(per_s)} samples/s"
        add("FP16", description, True, device_per_s=per_s, decoded_bytes=decoded_bytes)
    return tuple(sorted(remedies, key=lambda remedy: -remedy.gain))


def plan_remedies(result: PipelineThroughput, upgrades: Upgrades) -> tuple[Remedy, ...]:
    """Return remedies for this node, applied one after another, until the utilisation reaches 90%.

    Each round applies the remedy with the largest gain.
    """
    steps: list[Remedy] = []
    while result.utilisation < TARGET_UTILISATION:
        candidates = [remedy for remedy in evaluate_remedies(result, upgrades) if not remedy.needs_other_nodes]
        if not candidates or candidates[0].gain < 1.001:
            break
        steps.append(candidates[0])
        result = candidates[0].after
    return tuple(steps)

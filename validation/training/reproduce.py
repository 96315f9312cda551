"""Published training steps on H100 that no constant was fitted to, beside their predictions.

``python -m validation compare training`` prints the errors. `h100.csv` contains the runs of mosaicml/llm-foundry
(Apache-2.0) that are not in the pool of measurements, and those of pytorch/torchtitan (BSD-3-Clause) with data and
tensor parallelism. torchtitan's H100 have HBM2e of 2.4 TB/s and a power limit of 500 W, as its reports say; its loss
is not fused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.calibration.choose import choose_model
from paleo_lite.distributed.clusters import cluster_prior
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.scale import predict_step
from paleo_lite.distributed.settings import Settings
from paleo_lite.machines import Machine, SourcedFigure, find_device
from paleo_lite.machines.registry import limit_power
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_count
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

from ..comparisons import GROUPED, describe_errors, group_errors
from ..tables import rows_of

FILE = Path(__file__).parent / "h100.csv"

DEVICES_PER_NODE = 8

LONG = 16_384
"""Tokens per sequence from which a sequence counts as long."""


class PublishedStep(msgspec.Struct, frozen=True):
    """A published step."""

    # Origin and network.
    source: str
    url: str
    model: str
    # Device, and its power limit and memory bandwidth if they are not the rated ones.
    gpu: str
    power_limit: str
    bandwidth: str
    # Sizes of the network, and tokens per sequence.
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    length: int
    # Devices, sequences per step and per micro-batch, and tensor-parallel degree.
    workers: int
    batch_size: int
    micro_batch_size: int
    tensor: int
    # As in `paleo_lite.distributed.parallel_config.ParallelConfig`; an empty `attention` is that of the stack.
    precision: str
    recompute: str
    recompute_every: int  # with full recomputation, every n-th block is recomputed
    execution: str
    attention: str
    tokens_per_s_per_gpu: float  # measured throughput
    memory_gib: float | None  # measured peak memory of a device in GiB

    @property
    def time_s(self) -> float:
        """Measured seconds per step."""
        return self.batch_size * self.length / (self.tokens_per_s_per_gpu * self.workers)

    @property
    def config(self) -> bytes:
        """Config of the network, as Hugging Face writes it."""
        if self.source == "torchtitan":
            fields = {
                "model_type": "llama",
                "vocab_size": self.vocabulary,
                "hidden_size": self.hidden,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "intermediate_size": self.inner,
                "max_position_embeddings": self.length,
            }
        else:
            fields = {
                "model_type": "gpt2",
                "vocab_size": self.vocabulary,
                "n_embd": self.hidden,
                "n_layer": self.layers,
                "n_head": self.heads,
                "n_inner": self.inner,
                "n_positions": self.length,
                "activation_function": "gelu_pytorch_tanh",
            }
        return json.dumps(fields).encode()


class ReproducedStep(msgspec.Struct, frozen=True):
    """A published step and its prediction, in seconds and bytes."""

    point: PublishedStep
    predicted_s: float
    low_s: float
    high_s: float
    memory_bytes: float

    @property
    def error(self) -> float:
        """Predicted over measured time, minus 1."""
        return self.predicted_s / self.point.time_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured time is in the 90% interval."""
        return self.low_s <= self.point.time_s <= self.high_s


def published_steps(path: Path = FILE) -> list[PublishedStep]:
    """Return all published steps."""
    rows = [
        {name: None if name == "memory_gib" and not value else value for name, value in row.items()}
        for row in rows_of(path)
    ]
    return [msgspec.convert(row, PublishedStep, strict=False) for row in rows]


def compare(point: PublishedStep) -> ReproducedStep:
    """Predict a published step with the shipped constants."""
    parallel = ParallelConfig(
        tensor=point.tensor,
        sequence_parallel=point.tensor > 1,
        micro_batch_size=point.micro_batch_size,
        zero_stage=3,
        recompute=point.recompute,
        recompute_every=point.recompute_every,
        execution=point.execution,
        attention=point.attention or None,
    )
    nodes = max(point.workers // DEVICES_PER_NODE, 1)
    inside = min(point.workers, DEVICES_PER_NODE)
    topology = parse_topology(f"{inside}x {point.gpu} @ nvlink4-x18, {nodes} nodes @ 3200 Gbit/s")
    has_fused_loss = point.source == "llm-foundry"
    job = _job(
        point.config, point.model, point.length, point.gpu, point.power_limit, point.bandwidth, point.precision,
        has_fused_loss,
    )  # fmt: skip
    step = predict_step(
        job,
        topology.with_workers(point.workers),
        Settings(parallel=parallel),
        point.batch_size,
        "3d",
        cluster_prior(),
    )
    assert step.interval is not None and step.memory_bytes is not None
    return ReproducedStep(point, float(step.time_s), *step.interval, float(step.memory_bytes))


@cache
def _job(
    config: bytes, model: str, length: int, gpu: str, power_limit: str, bandwidth: str, precision: str,
    has_fused_loss: bool,
) -> Job:  # fmt: skip
    options = TrainingOptions("adam", mixed_precision=True, fused_loss=has_fused_loss)
    precision, options = options.split_precision(precision)
    device = find_device(gpu)
    if power_limit:
        device = limit_power(device, power_limit)
    if bandwidth:
        memory = msgspec.structs.replace(device.memory, bandwidth=SourcedFigure(bandwidth, "published"))
        device = msgspec.structs.replace(device, memory=memory)
    network = read_config(config, f"{model}.json", None, SequenceOptions(length, phase="training"))
    workload = Workload(network, precision, phase="training", training=options)
    return Job(workload, Machine(device), choose_model(device, precision, products=options.products))


def summarize(comparisons: Sequence[ReproducedStep]) -> list[dict[str, Any]]:
    """Return the errors by source and kind of run."""
    groups: dict[tuple[str, str], list[ReproducedStep]] = {}
    for comparison in comparisons:
        point = comparison.point
        kind = f"{point.precision}, {'long' if point.length >= LONG else 'short'} sequences"
        groups.setdefault((point.source, kind), []).append(comparison)
    for source in dict.fromkeys(comparison.point.source for comparison in comparisons):
        groups[source, "all"] = [comparison for comparison in comparisons if comparison.point.source == source]
    groups["all", "all"] = list(comparisons)
    return [{"source": source, "kind": kind, **group_errors(members)} for (source, kind), members in groups.items()]


def list_memory(comparisons: Sequence[ReproducedStep]) -> list[dict[str, Any]]:
    """Return the peak memory of the steps that have a published one, in GiB."""
    rows = []
    for comparison in comparisons:
        point = comparison.point
        if point.memory_gib is None:
            continue
        predicted_gib = comparison.memory_bytes / 2**30
        rows.append(
            {
                **msgspec.structs.asdict(point),
                "recomputed": "per operation" if point.recompute == "selective" else "all blocks",
                "predicted_gib": predicted_gib,
                "error": predicted_gib / point.memory_gib - 1,
            }
        )
    return rows


def compare_page(data: Path | None) -> Document:
    """Return the page of the errors of times, and of the peak memory."""
    comparisons = [compare(point) for point in published_steps()]
    runs = [Column("source", "source", left=True), Column("kind", "runs", left=True), *GROUPED]
    memory = [
        Column("model", "network", left=True),
        Column("workers", "devices"),
        Column("execution", "execution", left=True),
        Column("precision", "precision", left=True),
        Column("length", "tokens", format_count),
        Column("recomputed", "recomputed", left=True),
        Column("memory_gib", "measured", "{:.1f} GiB".format),
        Column("predicted_gib", "predicted", "{:.1f} GiB".format),
        Column("error", "off by", "{:+.0%}".format),
    ]
    return Document(
        f"Published steps on H100 and H200: {describe_errors(comparisons)}",
        (),
        [
            Table("Times by source", runs, summarize(comparisons)),
            Table("Peak memory of a device", memory, list_memory(comparisons)),
        ],
    )

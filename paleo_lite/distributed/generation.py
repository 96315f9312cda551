"""Prefill and decode of a network of blocks with tensor parallelism.

Shoeybi et al. 2019 (Megatron-LM, section 3): two all-reduces per block. Pope et al. 2023 (section 3.2) use the same
layout for text generation; the logits of the last token are gathered. Costs are extrapolated from networks of one, two
and three blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..architectures.network import SequenceOptions
from ..errors import BadValue
from ..timing import Prediction, Workload, predict
from ..timing.intervals import interval_of
from ..timing.memory import peak_memory
from .collectives import subgroup_topology, topology_all_reduce_s
from .job import Job
from .links import Topology
from .parallel_config import ParallelConfig
from .settings import Settings
from .step import Step


def predict_generation_step(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """Predict a pass of prefill or decode with tensor parallelism.

    ``settings.parallel.tensor`` sets the number of tensor-parallel devices, by default all. There is no scheduler, no
    communication is hidden, and replicas are independent.

    Raises
    ------
    BadValue
        If the network was not built from a config, if devices, heads or batch cannot be divided, or if a setting is
        for training only.
    """
    if settings.gradient_precision or not settings.overlap or settings.micro_batches or settings.inputs:
        raise BadValue(
            "`--gradient-precision`, `--no-overlap`, `--micro-batches`, `--storage`, `--decode` and `--pageable` "
            "are for `--phase training`"
        )
    tensor = _tensor_parallel_degree(topology, settings.parallel)
    replicas = topology.workers // tensor
    if batch_size % replicas:
        raise BadValue(
            f"the batch size must be divisible by the {replicas} replicas of `--tensor {tensor}` (got {batch_size})"
        )
    samples = batch_size // replicas
    cost = job.cached(_generation_cost, tensor, samples)
    compute_factor = job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
    compute_s = cost.time_s * compute_factor
    tensor_group = subgroup_topology(topology, 1, tensor)
    communication_s = 0.0
    for message_bytes, share in cost.messages.items():
        communication_s += share * float(topology_all_reduce_s(tensor_group, message_bytes, settings.collective))
    interval = None
    if cost.deviation is not None:
        low_s, high_s = interval_of(compute_s, cost.deviation)
        interval = (low_s + communication_s, high_s + communication_s)
    data = f", data {replicas}" if replicas > 1 else ""
    sequences = "1 sequence" if samples == 1 else f"{samples} sequences"
    return Step(
        compute_s=compute_s,
        communication_s=communication_s,
        exposed_s=communication_s,
        memory_bytes=cost.memory_bytes,
        interval=interval,
        overheads_s={"slowdown": compute_s * settings.slowdown / (1 + settings.slowdown)},
        notes=(f"tensor {tensor}{data}, {sequences} per batch",),
    )


def generation_notes(job: Job) -> tuple[str, ...]:
    """Return the notes of the time model's prediction of prefill or decode."""
    return job.cached(_predict_few_blocks, 1, 1, 1).notes


def _tensor_parallel_degree(topology: Topology, config: ParallelConfig | None) -> int:
    """Return the number of tensor-parallel devices, and refuse other forms of parallelism."""
    config = config or ParallelConfig(tensor=topology.workers)
    if config != ParallelConfig(tensor=config.tensor):
        raise BadValue(
            "prefill and decode support tensor parallelism only: use `--tensor` alone, or `paleo-lite serve`, which "
            "simulates pipelines, `--expert-parallel` and `--attention-data-parallel`"
        )
    tensor = min(config.tensor, topology.workers)
    if tensor > topology.devices_per_node > 1:
        raise BadValue(f"`--tensor` must be <= {topology.devices_per_node}, the devices per node (got {tensor})")
    if topology.workers % tensor:
        raise BadValue(f"`--tensor` must divide the {topology.workers} workers (got {tensor})")
    return tensor


class _GenerationCost(NamedTuple):
    """Cost of a pass of prefill or decode on one tensor-parallel device.

    Attributes
    ----------
    time_s : float
        Computation time.
    deviation : float or None
        Standard deviation of its logarithm; None if the time model gives none.
    memory_bytes : float
        Peak memory.
    messages : dict of float to float
        Shares of an all-reduce by message size in bytes.
    """

    time_s: float
    deviation: float | None
    memory_bytes: float
    messages: dict[float, float]


def _generation_cost(job: Job, tensor: int, samples: int) -> _GenerationCost:
    """Extrapolate the cost from networks of one, two and three blocks; compute it in full where blocks differ.

    Times and bytes grow linearly with the number of blocks, variances quadratically.
    """
    blocks = job.workload.network.blocks
    has_equal_blocks = not job.workload.network.block_types
    block_counts = [1, 2, 3] if blocks > 3 and has_equal_blocks else [blocks]
    predictions = [job.cached(_predict_few_blocks, tensor, samples, count) for count in block_counts]

    def extrapolate(values: Sequence[float]) -> float:
        """Return the value at `blocks` of the parabola through the values at 1, 2 and 3 blocks."""
        if len(values) == 1:
            return values[0]
        first, second, third = values
        steps = blocks - 1
        return first + steps * (second - first) + steps * (steps - 1) / 2 * (third - 2 * second + first)

    time_s = extrapolate([prediction.time_s for prediction in predictions])
    deviation = None
    if predictions[0].terms.deviation is not None:
        variances = [(one.time_s * float(one.terms.deviation or 0.0)) ** 2 for one in predictions]
        deviation = math.sqrt(extrapolate(variances)) / time_s
    messages_by_count = [_all_reduce_messages(prediction, tensor, job.element_bytes) for prediction in predictions]
    messages = {}
    for size in messages_by_count[-1]:
        messages[size] = extrapolate([shares.get(size, 0.0) for shares in messages_by_count])
    # The memory peak of a single block may be at another layer than that of several: extrapolate from the last two.
    peak_bytes = [float(peak_memory(prediction.workload).total_bytes) for prediction in predictions[-2:]]
    memory_bytes = peak_bytes[-1] + (blocks - block_counts[-1]) * (peak_bytes[-1] - peak_bytes[0])
    return _GenerationCost(time_s, deviation, memory_bytes, messages)


def _predict_few_blocks(job: Job, tensor: int, samples: int, blocks: int) -> Prediction:
    """Predict a network of so many blocks on one device; a network without equal blocks is predicted as a whole."""
    workload = job.cached_across_models(_sharded_workload, tensor, blocks)
    return predict(workload.with_changes(batch_size=samples), job.machine, job.model)


def _sharded_workload(job: Job, tensor: int, blocks: int) -> Workload:
    """Return the workload of one of the tensor-parallel devices."""
    network, phase = job.workload.network, job.workload.phase
    if network.rebuild is None or network.lengths is None:
        if tensor > 1:
            raise BadValue(
                f"`--tensor` must be 1 for {network.name}: tensor parallelism in {phase} needs a network from a config "
                f"(got {tensor})"
            )
        return job.workload
    keys = network.lengths.keys
    options = SequenceOptions(
        length=None if phase == "decode" else keys,
        context=keys - 1 if phase == "decode" else None,
        phase=phase,
        tensor_parallel=tensor,
        blocks=blocks or None,
    )
    return job.workload.with_changes(network=network.rebuild(options))


def _all_reduce_messages(prediction: Prediction, tensor: int, element_bytes: int) -> dict[float, float]:
    """Return shares of an all-reduce by message size: the sums of each block, and the all-gather of the logits."""
    layers = prediction.workload.layers
    # Sums are exchanged in 16 bits at least.
    bytes_per_element = prediction.workload.batch_size * max(element_bytes, 2)
    shares: dict[float, float] = {}
    for layer in layers:
        if layer.kind == "exchange" and layer.attributes["function"] == "sum":
            size = float(np.prod(layer.outputs[0])) * bytes_per_element
            shares[size] = shares.get(size, 0.0) + 1.0
    if shares:
        shares[float(np.prod(layers[-1].outputs[0])) * bytes_per_element * tensor] = 0.5
    return shares

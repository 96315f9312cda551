"""A pass of prefill or decode on several devices: by the kernels of an engine where they are known, else by layers.

Layers are divided by tensor parallelism (Shoeybi et al. 2019, Megatron-LM, section 3): two all-reduces per block. Pope
et al. 2023 (section 3.2) use the same layout for text generation; the logits of the last token are gathered. Kernels
also know expert parallelism and attention groups, and are those of `paleo_lite.serve`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from ..architectures.network import SequenceOptions
from ..counting.kinds import is_all_reduce
from ..engines.division import ONE_DEVICE, Division, LinkedDevices
from ..engines.placed import NEEDS_KERNELS
from ..errors import BadValue
from ..serving.engine_model import EngineModel
from ..serving.iteration import Iteration, iteration_of
from ..text import near_multiples
from ..timing import Prediction, Workload, predict
from ..timing.intervals import interval_of, not_below
from ..timing.memory import peak_memory
from ..timing.workload import UnderEngine
from .collectives import subgroup_topology, topology_all_reduce_s
from .job import Job, Step
from .links import Topology
from .parallel_config import ParallelConfig
from .replica import check_nodes, link_devices
from .settings import STRAGGLERS, Settings


def predict_generation_step(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """Predict a pass of prefill or decode.

    ``settings.parallel.tensor`` sets the number of devices of a replica, by default all. No communication is hidden,
    and replicas are independent. Raise BadValue if the network was not built from a config, if devices, heads, experts
    or batch cannot be divided, or if a setting is for training only.
    """
    if settings.gradient_precision or not settings.overlap or settings.micro_batches or settings.inputs:
        raise BadValue(
            "`--communication precision`, `--communication overlap`, `--schedule micro-batches`, `--feed` "
            "are for `--phase training`"
        )
    config = _replica_config(topology, settings.parallel, has_kernels=job.workload.engine is not None)
    replicas = topology.workers // config.tensor
    if batch_size % replicas:
        raise BadValue(
            f"the batch of all devices must be divisible by the {replicas} replicas of `--tensor {config.tensor}`: "
            f"give {near_multiples('--batch-size', batch_size, replicas)} (got {batch_size})"
        )
    samples = batch_size // replicas
    group = subgroup_topology(topology, 1, config.tensor)
    if job.workload.engine is None:
        step = _predict_layers(job, group, samples, settings)
    else:
        step = _predict_kernels(job, job.workload.engine, group, samples, config, settings)
    degrees = [f"tensor {config.tensor}"]
    if config.expert > 1:
        degrees.append(f"expert-parallel {config.expert}")
    if config.attention_data > 1:
        degrees.append(f"attention-data-parallel {config.attention_data}")
    if replicas > 1:
        degrees.append(f"data {replicas}")
    sequences = "1 sequence" if samples == 1 else f"{samples} sequences"
    return structs.replace(step, notes=(f"{', '.join(degrees)}, {sequences} per batch",))


def flops_of_kernels(job: Job, samples: int) -> float:
    """Return the FLOPs of a pass of some samples on one device under an engine."""
    return job.cached(_iteration, ONE_DEVICE, samples).flops


def _replica_config(topology: Topology, config: ParallelConfig | None, *, has_kernels: bool) -> ParallelConfig:
    """Return how one replica is divided, and refuse other forms of parallelism."""
    config = config or ParallelConfig(tensor=topology.workers)
    divides_parts = config.expert > 1 or config.attention_data > 1
    allowed = ParallelConfig(tensor=config.tensor, expert=config.expert, attention_data=config.attention_data)
    if config != allowed:
        raise BadValue(
            "prefill and decode are divided by `--tensor`, `--expert-parallel` and `--attention-data-parallel` alone: "
            "`paleo-lite serve` simulates pipelines"
        )
    for option, degree in (("--expert-parallel", config.expert), ("--attention-data-parallel", config.attention_data)):
        if degree > 1 and not has_kernels:
            raise BadValue(f"`{option}` {NEEDS_KERNELS} and without `--execution`")
    workers = topology.workers
    devices = workers if divides_parts and config.tensor == 1 else min(config.tensor, workers)
    if workers == 1:  # the single device that others are compared with
        return ParallelConfig()
    division = _division(devices, config)
    if topology.devices_per_node > 1:
        check_nodes(topology, division)
    if workers % devices:
        raise BadValue(f"`--tensor` must divide the {workers} workers (got {devices})")
    division.check()
    return structs.replace(allowed, tensor=devices)


def _division(devices: int, config: ParallelConfig) -> Division:
    """Return how the devices of a replica share the network."""
    return Division(devices, expert_parallel=config.expert, attention_data_parallel=config.attention_data)


def _predict_kernels(
    job: Job, engine: UnderEngine, group: Topology, samples: int, config: ParallelConfig, settings: Settings
) -> Step:
    """Predict a pass from the kernels of an engine, with the time of its host."""
    if settings.collective is not None:
        raise BadValue(
            f"`--communication collective` is not for the kernels of {engine.name}, which has an all-reduce of its "
            "own: leave it out, or give `--execution engine`, with which layers are timed one by one"
        )
    # What links reach does not change the devices: clusters that differ in it share the times of the kernels.
    devices = link_devices(group, _division(group.workers, config), engine.expert_load)
    iteration = job.cached(_iteration, devices, samples)
    exchange_s, host_s = float(iteration.exchange_s), float(iteration.host_s)
    compute_s = float(iteration.compute_s) * job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
    interval = None
    if job.model.is_forecast:
        low_s, high_s = iteration.interval(compute_s + exchange_s)
        interval = (float(low_s), float(high_s))
    return Step(
        compute_s=compute_s + host_s,
        communication_s=exchange_s,
        exposed_s=exchange_s,
        memory_bytes=iteration.memory().total_bytes,
        interval=interval,
        overheads_s={
            "host of the engine": host_s * (1 - 1 / group.workers),  # more devices do not shorten it
            STRAGGLERS: compute_s * settings.slowdown / (1 + settings.slowdown),
        },
        activity=iteration.activity,
    )


def _iteration(job: Job, devices: LinkedDevices, samples: int) -> Iteration:
    """Return a pass of some samples on one device of a replica."""
    return structs.replace(job.cached(_place, devices), sequences=samples)


def _place(job: Job, devices: LinkedDevices) -> Iteration:
    """Return a pass on one device of a replica."""
    device, is_bound = job.machine.device, not job.model.is_forecast
    constants = job.model.constants_of(job.workload, device, devices) if isinstance(job.model, EngineModel) else None
    return iteration_of(job.workload, device, devices, constants=constants, is_bound=is_bound)


def _predict_layers(job: Job, group: Topology, samples: int, settings: Settings) -> Step:
    """Predict a pass with tensor parallelism from the layers, one by one."""
    cost = job.cached(_generation_cost, group.workers, samples)
    compute_factor = job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
    compute_s = cost.time_s * compute_factor
    communication_s = 0.0
    for message_bytes, share in cost.messages.items():
        communication_s += share * float(topology_all_reduce_s(group, message_bytes, settings.collective))
    interval = None
    if cost.deviation is not None:
        low_s, high_s = interval_of(compute_s, cost.deviation)
        low_s = float(not_below(low_s, cost.traffic_s, compute_s))
        interval = (low_s + communication_s, high_s + communication_s)
    return Step(
        compute_s=compute_s,
        communication_s=communication_s,
        exposed_s=communication_s,
        memory_bytes=cost.memory_bytes,
        interval=interval,
        overheads_s={STRAGGLERS: compute_s * settings.slowdown / (1 + settings.slowdown)},
    )


def generation_notes(job: Job) -> tuple[str, ...]:
    """Return the notes of the time model's prediction of prefill or decode."""
    return () if job.workload.engine is not None else job.cached(_predict_few_blocks, 1, 1, 1).notes


class _GenerationCost(NamedTuple):
    """Cost of a pass of prefill or decode on one tensor-parallel device."""

    time_s: float  # computation time
    traffic_s: float  # of the bytes that must move, below which no interval extends
    deviation: float | None  # standard deviation of its logarithm; None if the time model gives none
    memory_bytes: float  # peak memory
    messages: dict[float, float]  # shares of an all-reduce by message size in bytes


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
    traffic_s = extrapolate([prediction.traffic_s for prediction in predictions])
    deviation = None
    if predictions[0].terms.deviation is not None:
        variances = [(prediction.time_s * float(prediction.terms.deviation or 0.0)) ** 2 for prediction in predictions]
        deviation = math.sqrt(extrapolate(variances)) / time_s
    messages_by_count = [_all_reduce_messages(prediction, tensor, job.element_bytes) for prediction in predictions]
    messages = {}
    for size in messages_by_count[-1]:
        messages[size] = extrapolate([shares.get(size, 0.0) for shares in messages_by_count])
    # The memory peak of a single block may be at another layer than that of several: extrapolate from the last two.
    peak_bytes = [float(peak_memory(prediction.workload).total_bytes) for prediction in predictions[-2:]]
    memory_bytes = peak_bytes[-1] + (blocks - block_counts[-1]) * (peak_bytes[-1] - peak_bytes[0])
    return _GenerationCost(time_s, traffic_s, deviation, memory_bytes, messages)


def _predict_few_blocks(job: Job, tensor: int, samples: int, blocks: int) -> Prediction:
    """Predict the first `blocks` blocks on one device, or the whole network if its blocks differ."""
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
        if is_all_reduce(layer):
            size = float(np.prod(layer.outputs[0])) * bytes_per_element
            shares[size] = shares.get(size, 0.0) + 1.0
    if shares:
        shares[float(np.prod(layers[-1].outputs[0])) * bytes_per_element * tensor] = 0.5
    return shares

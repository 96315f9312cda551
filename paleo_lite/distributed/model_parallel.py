"""Model-parallel strategies: tensor parallelism, hybrid parallelism, pipeline parallelism, and PALEO's bounds.

Sources: Krizhevsky 2014 ("one weird trick") for hybrid, Shoeybi et al. 2019 (Megatron-LM) for tensor parallelism, Huang
et al. 2019 (GPipe) and Narayanan et al. 2021 (1F1B) for pipelines, Qi et al. 2017 (PALEO) for the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.kinds import is_convolution, is_linear
from ..errors import BadValue
from ..timing.activity import Activity
from .collectives import (
    choose_all_reduce,
    choose_reduce_scatter,
    point_to_point_time_s,
    subgroup_topology,
    topology_all_reduce_s,
)
from .data_parallel import all_reduce_exchange, overlap_with_backward, samples_per_worker
from .job import Job, Step, as_scalar
from .links import Topology
from .pipeline import crossing_bytes, partition_layers, schedule_step
from .pipeline_schedule import StageTimes
from .settings import Settings
from .tensor_split import find_tensor_split, shard_layers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def train_tensor_parallel(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Predict a step of tensor parallelism: pairs of column-parallel and row-parallel layers (Megatron-LM).

    All devices work on the global batch, each on its share of the layers that can be split and on all others, whose
    kernels its host launches. Each pair costs two all-reduces of activations, which nothing hides. Raise BadValue if
    the network has no such pair.
    """
    workers = topology.workers
    whole = job.device_step(batch_size)
    if workers == 1:
        return whole
    forward, backward = job.cached_across_models(_exchanged_bytes)
    if not forward.size:
        network = job.workload.network
        remedy = "use another strategy"
        if network.rebuild is not None:
            remedy = "use `--tensor` without `--strategy`, which shards the blocks of the network"
        raise BadValue(f"{network.name} has no column-parallel and row-parallel pair of layers: {remedy}")
    shared = job.cached(_job_of_group, workers).with_compute_scale(job.compute_scale)
    step = _step_of_rank(shared, batch_size)
    communication_s, collective = _choose_all_reduce(
        topology, (*forward, *backward), BatchSizes.of(batch_size), settings.collective
    )
    compute_s = step.compute_s * (1 + settings.slowdown)
    return Step(
        compute_s=compute_s,
        communication_s=communication_s,
        exposed_s=communication_s,
        update_s=step.update_s,
        memory_bytes=step.memory_bytes,
        collective=collective,
        overheads_s={"replicated layers and launches": compute_s - whole.compute_s / workers},
        activity=_activity_of_rank(shared, batch_size, compute_s + communication_s + step.update_s, communication_s),
    )


class _RankStep(NamedTuple):
    """Passes and update of one of several tensor-parallel devices, and its memory; arrays over batch sizes."""

    compute_s: Any
    update_s: Any
    memory_bytes: Any


def _step_of_rank(shared: Job, batch_size: Any) -> _RankStep:
    """Return the step of one of several tensor-parallel devices, by itself."""
    sizes = np.atleast_1d(batch_size).tolist()
    steps = [shared.device_step(size) for size in sizes]
    fields = [[getattr(step, name) for step in steps] for name in _RankStep._fields]
    return _RankStep(*(np.array(values) if np.ndim(batch_size) else values[0] for values in fields))


def _activity_of_rank(shared: Job, samples: Any, time_s: Any, exchanging_s: Any) -> Activity | None:
    """Return what one of several tensor-parallel devices does in a step; None for an array of batch sizes."""
    if np.ndim(samples):
        return None
    activity, alone_s = shared.activity_alone(samples)
    return activity.in_larger_step(alone_s, time_s, exchanging_s)


def check_tensor_groups(topology: Topology, devices: int) -> None:
    """Raise BadValue unless groups of tensor-parallel devices divide those of a topology, and each is in a node."""
    if devices > 1 and (devices > topology.devices_per_node or topology.workers % devices):
        raise BadValue(
            f"`--tensor {devices}` must divide the number of workers, {topology.workers:,}, and be at most the number "
            f"of devices of a node, {topology.devices_per_node}"
        )


def train_in_tensor_groups(
    run: Callable[[Job, Topology, Any, Settings], Step],
    job: Job,
    topology: Topology,
    batch_size: Any,
    settings: Settings,
) -> Step:
    """Predict a step of a data-parallel strategy whose ranks are groups of tensor-parallel devices (Megatron-LM).

    The devices of a group must divide those of the topology (`check_tensor_groups`).

    Each device has its share of the layers that can be split, and all others whole. Nothing hides the all-reduces of
    activations and their gradients, which groups of one node compute.
    """
    devices, workers = settings.tensor, topology.workers
    shared = job.cached(_job_of_group, devices).with_compute_scale(job.compute_scale)
    ranks = subgroup_topology(topology, devices, workers // devices)
    step = run(shared, ranks, batch_size, settings)
    options = job.workload.options
    micro_batch = batch_size // ranks.workers // options.accumulation
    forward, backward = job.cached_across_models(_exchanged_bytes)
    passes = 1 if options.checkpointing == "none" else 2  # recomputation exchanges again
    group = subgroup_topology(topology, 1, devices)
    exchange_s = options.accumulation * float(
        passes * np.sum(topology_all_reduce_s(group, forward * micro_batch))
        + np.sum(topology_all_reduce_s(group, backward * micro_batch))
    )
    own, whole = (sum(layer.parameters for layer in of.workload.network.layers) for of in (shared, job))
    note = (
        f"{devices} devices share the layers of a replica: each has {own / whole:.0%} of the parameters, as layers "
        "that need whole tensors are on all of them"
    )
    exposed_s = step.exposed_s + exchange_s
    return msgspec.structs.replace(
        step,
        notes=(*step.notes, note),
        communication_s=step.communication_s + exchange_s,
        exposed_s=exposed_s,
        activity=_activity_of_rank(shared, batch_size // ranks.workers, step.time_s + exchange_s, exposed_s),
    )


def _job_of_group(job: Job, devices: int) -> Job:
    """Return the job of one of several tensor-parallel devices."""
    network = job.workload.network
    layers = shard_layers(network.layers, devices)
    other = Job(
        job.workload.with_changes(network=network._replace(layers=layers)), job.machine, job.model, job.compute_ratio
    )
    other.stack_constants, other.moved = job.stack_constants, job.moved
    return other


_LEAST_ACTIVATION_BYTES = 2
"""Bytes per element of activations that are exchanged: those of products in 8 bits or less have 16 bits."""


def _exchanged_bytes(job: Job) -> tuple[Floats, Floats]:
    """Return the bytes per sample of the all-reduces of the forward and of the backward pass."""
    layers, size = job.workload.network.layers, max(job.element_bytes, _LEAST_ACTIVATION_BYTES)
    split = find_tensor_split(layers)
    forward, backward = split.forward_elements(layers), split.backward_elements(layers)
    return np.array(forward, dtype=np.float64) * size, np.array(backward, dtype=np.float64) * size


@lru_cache(1024)
def _choose_all_reduce(
    topology: Topology, bytes_per_sample: tuple[float, ...], batch_sizes: BatchSizes, collective: str | None
) -> Any:
    """Return the time of the all-reduces, and the collective; cached since all devices of a sweep share the result."""
    messages = np.multiply.outer(np.array(bytes_per_sample, dtype=np.float64), batch_sizes.batch_size)
    return choose_all_reduce(topology, messages, collective)


class BatchSizes(NamedTuple):
    """A batch size, or an array of batch sizes as bytes: a hashable key for caches."""

    size: int | None
    array_bytes: bytes = b""

    @classmethod
    def of(cls, batch_size: Any) -> BatchSizes:
        """Return the key of an int or an array of int64."""
        if np.ndim(batch_size):
            return cls(None, batch_size.tobytes())
        return cls(batch_size)

    @property
    def batch_size(self) -> Any:
        """Batch size: an int, or an array of shape (batch sizes,)."""
        if self.size is None:
            return np.frombuffer(self.array_bytes, dtype=np.int64)
        return self.size


def layer_shares(amounts: NDArray[np.int64]) -> Floats:
    """Return each layer's share of the sum over all layers; 0 if the sum is 0."""
    return amounts / max(float(amounts.sum()), 1.0)


def train_hybrid(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Predict data-parallel convolutions with sharded fully connected layers (Krizhevsky 2014, "one weird trick").

    Every device has 1 / n of each fully connected layer and runs the global batch through it: an all-gather of each
    layer's input forward, a reduce-scatter of its gradient backward. Only the convolutions' gradients are exchanged.
    """
    workers, layers = topology.workers, job.workload.layers
    samples = samples_per_worker(batch_size, workers)
    step = job.device_step(samples)
    if workers == 1:
        return step
    first_dense = first_dense_layer(layers)
    exchange = job.cached_across_models(all_reduce_exchange, topology, settings, first_dense)
    convolution_step = overlap_with_backward(step.without_layers_from(first_dense), exchange, settings)

    is_dense = np.where(np.arange(len(layers)) < first_dense, 0.0, 1.0)
    global_batch_step = job.device_step(batch_size)
    dense_s = global_batch_step.time_of_layer_shares(is_dense) / workers * (1 + settings.slowdown)
    linear_layers = [layer for layer in layers[first_dense:] if is_linear(layer)]
    gathered_elements = [prod(layer.inputs[0]) for layer in linear_layers]
    gathered_elements.append(prod(linear_layers[-1].outputs[0]))
    bytes_per_sample = tuple(elements * job.element_bytes for elements in gathered_elements)
    # An all-gather forward and a reduce-scatter backward of the same size take the time of an all-reduce.
    collective = choose_reduce_scatter(topology, None, "hybrid")
    activations_s, _ = _choose_all_reduce(topology, bytes_per_sample, BatchSizes.of(batch_size), collective)

    parameters = layer_shares(job.workload.work.parameters)
    parameter_share = float(parameters[:first_dense].sum()) + float(parameters[first_dense:].sum()) / workers
    gathered_bytes = float(sum(bytes_per_sample)) * batch_size
    return Step(
        compute_s=convolution_step.compute_s + dense_s,
        communication_s=convolution_step.communication_s + activations_s,
        exposed_s=convolution_step.exposed_s + activations_s,
        update_s=step.update_s * parameter_share,
        memory_bytes=job.device_memory(samples).sharded_bytes(parameter_share) + gathered_bytes,
        collective=exchange.collective,
        overheads_s=convolution_step.overheads_s,
    )


def model_parallel_bound(bound: str, job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Return PALEO's bound of model parallelism without communication.

    In the ``lower`` one, branches run in parallel, so that the time is that of the critical path, and at least 1 / n of
    all work; in the ``upper`` one, layers run one after another.
    """
    step, workers = job.device_step(batch_size), topology.workers
    if workers == 1:
        return step
    compute_s = step.compute_s
    if bound == "lower":
        path_s = critical_path_s(job.workload.layers, step.layer_times_s)
        compute_s = as_scalar(np.maximum(path_s, step.compute_s / workers))
    waiting_s = compute_s - step.compute_s / workers
    overheads_s = {"dependencies between layers": waiting_s} if np.any(waiting_s) else {}
    note = "a bound: the placement of layers is left open, and with it communication and memory"
    return Step(compute_s, update_s=step.update_s, overheads_s=overheads_s, notes=(note,))


def train_pipeline_parallel(schedule: str, job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Predict a step of pipeline parallelism: a stage of layers per device.

    The schedule of the micro-batches is ``gpipe`` or ``1f1b``, see `pipeline`; the batch size is the global one.
    """
    stages = topology.workers
    if stages == 1:
        return job.device_step(batch_size)
    if job.workload.options.accumulation > 1:
        raise BadValue(
            "a pipeline accumulates gradients over its micro-batches: use `--schedule micro-batches=N`, not "
            "`--accumulation`"
        )
    plan = job.cached(_partition_network, BatchSizes.of(batch_size), stages, settings.micro_batches)
    compute_factor = job.compute_scale * (1 + settings.slowdown)
    forward_s, backward_s = plan.forward_s * compute_factor, plan.backward_s * compute_factor
    transfers_s = _stage_transfers_s(topology, plan.boundary_bytes)
    timing = schedule_step(forward_s, backward_s, transfers_s, transfers_s, plan.micro_batches, schedule)
    memory = job.device_memory(plan.micro_batch_size * timing.in_flight)
    memory_bytes = memory.sharded_bytes(plan.parameter_shares, plan.activation_shares).max(axis=0)
    compute_s = timing.time_s - timing.transfer_s
    total_busy_s = (forward_s.sum(axis=0) + backward_s.sum(axis=0)) * plan.micro_batches
    micro_batch_step = job.device_step(plan.micro_batch_size)
    inefficiency_s = plan.micro_batches * micro_batch_step.compute_s - job.device_step(batch_size).compute_s
    update_s = micro_batch_step.update_s * as_scalar(plan.parameter_shares.max(axis=0))
    notes: tuple[str, ...] = ()
    stage_times = None
    if not np.ndim(plan.micro_batch_size):
        notes = (f"{stages} stages, {plan.micro_batches} micro-batches of {plan.micro_batch_size}",)
        stage_times = StageTimes(
            forward_s=tuple(forward_s.tolist()),
            backward_s=tuple(backward_s.tolist()),
            exchange_s=(0.0,) * stages,
            transfer_s=tuple(transfers_s.tolist()),
            micro_batches=int(plan.micro_batches),
            schedule=schedule,
            update_s=float(update_s),
        )
    return Step(
        compute_s=as_scalar(compute_s),
        communication_s=as_scalar(2 * transfers_s.sum(axis=0) * plan.micro_batches),
        exposed_s=as_scalar(timing.transfer_s),
        update_s=update_s,
        memory_bytes=as_scalar(memory_bytes),
        collective="point-to-point",
        overheads_s={
            "pipeline bubble": compute_s - timing.busy_s,
            "small micro-batches": inefficiency_s / stages,
            "unbalanced stages": timing.busy_s - total_busy_s / stages,
        },
        notes=notes,
        pipeline=stage_times,
    )


class _StagePlan(NamedTuple):
    """Partition of a network into stages; arrays have the shape (stages,) or (stages, batch sizes)."""

    # Number of micro-batches, and samples per micro-batch.
    micro_batches: Any
    micro_batch_size: Any
    # Time of one micro-batch on each stage, with a compute scale of 1.
    forward_s: Floats
    backward_s: Floats
    # Each stage's share of the parameters and of the activations.
    parameter_shares: Floats
    activation_shares: Floats
    boundary_bytes: Floats  # bytes of one micro-batch that each stage but the last sends to the next


def _partition_network(job: Job, batch_sizes: BatchSizes, stages: int, micro_batches: int | None) -> _StagePlan:
    batch_size = batch_sizes.batch_size
    micro_batches = micro_batches or default_micro_batches(batch_size, stages)
    if np.any(batch_size % micro_batches):
        raise BadValue(f"the batch size must be divisible by the {micro_batches} micro-batches (got {batch_size})")
    micro_batch_size = batch_size // micro_batches
    step, work = job.device_step(micro_batch_size), job.workload.work
    starts = np.array(partition_layers(step.layer_times_s, stages))
    cuts = np.concatenate([starts, np.full_like(starts[:1], len(step.layer_group))])
    return _StagePlan(
        micro_batches=micro_batches,
        micro_batch_size=micro_batch_size,
        forward_s=_sum_by_stage(step.forward_s[step.layer_group], cuts) / job.compute_scale,
        backward_s=_sum_by_stage(step.backward_s[step.layer_group], cuts) / job.compute_scale,
        parameter_shares=_sum_by_stage(layer_shares(work.parameters), cuts),
        activation_shares=_sum_by_stage(layer_shares(work.activations_per_sample), cuts),
        boundary_bytes=job.cached_across_models(_boundary_bytes)[cuts[1:-1]] * micro_batch_size,
    )


def _boundary_bytes(job: Job) -> Floats:
    """Return the bytes per sample that cross a stage boundary in front of each layer, shape (layers,)."""
    layers = job.workload.layers
    return np.concatenate([[0.0], crossing_bytes(layers, range(len(layers)), job.element_bytes)])


def _sum_by_stage(amounts: Floats, cuts: Ints) -> Floats:
    """Return the sum of a per-layer amount over the layers of each stage."""
    cumulative = np.concatenate([np.zeros((1, *amounts.shape[1:])), np.cumsum(amounts, axis=0)])
    if amounts.ndim < cuts.ndim:
        cumulative = cumulative[:, None]
    at_cuts = np.take_along_axis(np.broadcast_to(cumulative, (len(cumulative), *cuts.shape[1:])), cuts, axis=0)
    return np.diff(at_cuts, axis=0)


def default_micro_batches(batch_size: Any, stages: int) -> Any:
    """Return the smallest number of micro-batches >= 4 per stage that divides the batch, else one per sample.

    With four per stage the pipeline bubble is negligible (GPipe).
    """
    if np.ndim(batch_size):
        return np.array([_default_micro_batches(size, stages) for size in batch_size.tolist()])
    return _default_micro_batches(batch_size, stages)


@lru_cache(2**16)
def _default_micro_batches(batch_size: int, stages: int) -> int:
    for micro_batches in range(4 * stages, batch_size + 1):
        if batch_size % micro_batches == 0:
            return micro_batches
    return batch_size


def _stage_transfers_s(topology: Topology, boundary_bytes: Floats) -> Floats:
    """Return the time in which each stage sends one micro-batch to the next."""
    seconds = np.empty_like(boundary_bytes)
    if topology.nodes == 1:
        is_inside = np.ones(len(boundary_bytes), dtype=bool)
    else:
        is_inside = np.arange(1, len(boundary_bytes) + 1) % topology.devices_per_node != 0
    for uses_link, link in ((is_inside, topology.inside), (~is_inside, topology.between)):
        if uses_link.any():
            if link is None:
                raise BadValue("pipeline parallelism needs a link between its stages")
            seconds[uses_link] = point_to_point_time_s(boundary_bytes[uses_link], link)
    return seconds


def first_dense_layer(layers: Sequence[Layer]) -> int:
    """Return the index of the first fully connected layer after the last convolution.

    Raise BadValue if there is no convolution, or no fully connected layer after the last one.
    """
    convolutions = [index for index, layer in enumerate(layers) if is_convolution(layer)]
    if convolutions:
        for index in range(convolutions[-1] + 1, len(layers)):
            if is_linear(layers[index]):
                return index
    raise BadValue("strategy hybrid needs convolutions followed by fully connected layers, as in AlexNet and VGG")


def critical_path_s(layers: Sequence[Layer], times_s: Any) -> Any:
    """Return the time of the longest path through the graph: a lower bound for any number of devices.

    The times of the layers have the shape (layers,) or (layers, batch sizes).
    """
    times = np.asarray(times_s, dtype=np.float64)
    finish_times: list[Any] = []
    for layer, time_s in zip(layers, times):
        parent_times = [finish_times[parent] for parent in layer.parents if parent >= 0]
        start_s = np.max(parent_times, axis=0) if parent_times else 0.0
        finish_times.append(start_s + time_s)
    return np.max(finish_times, axis=0) if finish_times else 0.0

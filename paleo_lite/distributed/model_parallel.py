"""Model parallelism: layers divided, or shared out, among devices.

Krizhevsky 2014 ("one weird trick") for hybrid, Shoeybi et al. 2019 (Megatron-LM) for tensor, Huang et al. 2019 (GPipe)
and Narayanan et al. 2021 (1F1B) for pipelines, Qi et al. 2017 (PALEO) for the bounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counting.kinds import is_linear
from ..errors import BadValue
from .collectives import LinkRate, point_to_point_time_s
from .data_parallel import Run, all_reduced, beside_backward, samples_each
from .exchange import exchanged, half_collective
from .job import Job, Settings, shares
from .pipeline import crossing_bytes, partition, schedule
from .split import SplitPair, critical_path_s, dense_tail, tensor_pairs
from .step import Step, plain
from .topology import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def tensor(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Pairs of matrix products divided by columns and rows (Megatron-LM); all devices work on the whole batch.

    Divided layers take the n-th part of their time, all others the whole on every device; each pair costs two
    all-reduces of activations that nothing hides.
    """
    workers, layers = topology.workers, job.workload.layers
    step = job.at(batch_size)
    if workers == 1:
        return step
    pairs = job.counted(_pairs)
    if not pairs:
        raise BadValue(
            f"{job.workload.network.name} has no pair of matrix products that can be divided: use another strategy"
        )
    share = np.ones(len(layers))
    share[[index for pair in pairs for index in pair.layers]] = 1 / workers
    elements = np.array([pair.elements(layers) for pair in pairs], dtype=np.float64).ravel()
    messages = np.multiply.outer(elements[elements > 0] * job.element_bytes, batch_size)
    exposed, collective = exchanged(topology, messages, settings.collective)
    compute = plain(share @ (step.forward_s + step.backward_s)) * (1 + settings.slowdown)
    whole = compute - (step.compute_s / workers)
    work = job.workload.work
    parameters, activations = (
        float(shares(amounts) @ share) for amounts in (work.parameters, work.activations_per_sample)
    )
    memory = job.memory(batch_size).of_share(parameters, activations)
    return Step(
        compute, exposed, exposed, step.update_s * parameters, memory, collective,
        {"layers that every device computes whole": whole},
    )  # fmt: skip


def _pairs(job: Job) -> list[SplitPair]:
    return tensor_pairs(job.workload.layers)


def hybrid(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Convolutions data parallel, fully connected layers divided (Krizhevsky 2014, "one weird trick").

    Every device has the n-th part of each fully connected layer and runs the whole batch through it: the layers'
    inputs are gathered before, their gradients scattered behind. Only the convolutions' gradients are exchanged.
    """
    workers, layers = topology.workers, job.workload.layers
    samples = samples_each(batch_size, workers, "the hybrid strategy")
    step = job.at(samples)
    if workers == 1:
        return step
    tail = dense_tail(layers)
    exchange = job.counted(all_reduced, topology, settings, tail)
    front = beside_backward(step.until(tail), exchange, settings)
    whole = job.at(batch_size)  # its tail alone is used
    rest = whole.forward_s[tail:].sum(axis=0) + whole.backward_s[tail:].sum(axis=0)
    dense = plain(rest) / workers * (1 + settings.slowdown)
    linear = [layer for layer in layers[tail:] if is_linear(layer)]
    gathered = [_elements(layer.inputs[0]) for layer in linear] + [_elements(linear[-1].outputs[0])]
    messages = np.multiply.outer(np.array(gathered, dtype=np.float64) * job.element_bytes, batch_size)
    # Forward an all-gather, backward a reduce-scatter of as much: together the time of a ring's all-reduce.
    fetching, _ = exchanged(topology, messages, half_collective(topology, None, "hybrid"))
    parameters = shares(job.workload.work.parameters)
    share = float(parameters[:tail].sum()) + float(parameters[tail:].sum()) / workers
    memory = job.memory(samples).of_share(share) + plain(messages.sum(axis=0))
    return Step(
        front.compute_s + dense, front.communication_s + fetching, front.exposed_s + fetching,
        step.update_s * share, memory, exchange.collective, front.losses,
    )  # fmt: skip


def _elements(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def model_bound(which: str) -> Run:
    """PALEO's bounds of model parallelism: branches side by side (lower) or one after another (upper).

    The lower bound is the longest way through the graph, and no less than the n-th part of all work.
    """

    def run(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
        step, workers = job.at(batch_size), topology.workers
        if workers == 1:
            return step
        compute = step.compute_s
        if which == "lower":
            path = critical_path_s(job.workload.layers, step.forward_s + step.backward_s)
            compute = plain(np.maximum(path, step.compute_s / workers))
        lost = compute - step.compute_s / workers
        note = "a bound: which layers go where, and so what is sent and what each device holds, is left open"
        losses = {"layers that wait for each other": lost} if np.any(lost) else {}
        return Step(compute, update_s=step.update_s, losses=losses, notes=(note,))

    return run


def pipelined(kind: str) -> Run:
    """A stage of layers on each device, micro-batches sent through; see `pipeline`."""

    def run(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
        stages = topology.workers
        if stages == 1:
            return job.at(batch_size)
        if job.workload.options.accumulation > 1:
            raise BadValue("a pipeline's micro-batches are its accumulation: --micro-batches, not --accumulation")
        count = settings.micro_batches or micro_batches(batch_size, stages)
        if np.any(batch_size % count):
            raise BadValue(f"a batch of {batch_size} cannot be divided into {count} micro-batches")
        micro = batch_size // count
        step = job.at(micro)
        cuts, *staged = job.once(_cut, micro.tobytes() if np.ndim(micro) else micro, stages)
        forward, backward = (seconds * (job.pace * (1 + settings.slowdown)) for seconds in staged)
        sizes = job.counted(_crossings)[cuts[1:-1]] * micro
        hops = np.array([point_to_point_time_s(size, _hop(topology, place)) for place, size in enumerate(sizes)])
        plan = schedule(forward, backward, hops, hops, count, kind)
        work = job.workload.work
        parameters, activations = (
            _by_stage(shares(amounts), cuts) for amounts in (work.parameters, work.activations_per_sample)
        )
        once, twice = (job.memory(size).of_share(parameters, activations) for size in (micro, 2 * micro))
        memory = (once + (plan.in_flight - 1) * (twice - once)).max(axis=0)  # affine in the samples
        compute = plan.time_s - plan.transfer_s
        busy = (forward.sum(axis=0) + backward.sum(axis=0)) * count
        losses = {
            "the bubble of the pipeline": compute - plan.busy_s,
            "small micro-batches": (count * step.compute_s - job.at(batch_size).compute_s) / stages,
            "stages that differ in length": plan.busy_s - busy / stages,
        }
        notes = () if np.ndim(micro) else (f"{stages} stages, {count} micro-batches of {micro}",)
        return Step(
            plain(compute), plain(2 * hops.sum(axis=0) * count), plain(plan.transfer_s),
            step.update_s * plain(parameters.max(axis=0)), plain(memory), "point-to-point", losses, notes,
        )  # fmt: skip

    return run


def _cut(job: Job, micro: Any, stages: int) -> tuple[Ints, Floats, Floats]:
    """Where stages begin, and the end: shape (stages + 1,) or (stages + 1, batch sizes); seconds of each, both ways.

    No pace changes the first; the seconds are those of no pace.
    """
    step = job.at(np.frombuffer(micro, dtype=np.int64) if isinstance(micro, bytes) else micro)
    seconds = step.forward_s + step.backward_s
    starts = np.array(partition(seconds, stages))
    cuts = np.concatenate([starts, np.full_like(starts[:1], len(seconds))])
    return cuts, _by_stage(step.forward_s, cuts) / job.pace, _by_stage(step.backward_s, cuts) / job.pace


def _crossings(job: Job) -> Floats:
    """Bytes per sample that cross a cut in front of each layer."""
    layers = job.workload.layers
    return np.concatenate([[0.0], crossing_bytes(layers, range(len(layers)), job.element_bytes)])


def _by_stage(amounts: Floats, cuts: Ints) -> Floats:
    """Sums of the layers of each stage."""
    until = np.concatenate([np.zeros((1, *amounts.shape[1:])), np.cumsum(amounts, axis=0)])
    if amounts.ndim < cuts.ndim:
        until = until[:, None]
    at_cuts = np.take_along_axis(np.broadcast_to(until, (len(until), *cuts.shape[1:])), cuts, axis=0)
    return np.diff(at_cuts, axis=0)


def micro_batches(batch_size: Any, stages: int) -> Any:
    """The fewest of at least four per stage (GPipe: the bubble is then negligible) that divide the batch, or all."""
    if np.ndim(batch_size):
        return np.array([_micro_batches(size, stages) for size in batch_size.tolist()])
    return _micro_batches(batch_size, stages)


@lru_cache(2**16)
def _micro_batches(batch_size: int, stages: int) -> int:
    """The fewest of at least four per stage (GPipe: the bubble is then negligible) that divide the batch, or all."""
    return next((n for n in range(4 * stages, batch_size + 1) if batch_size % n == 0), batch_size)


def _hop(topology: Topology, place: int) -> LinkRate:
    """The link between the devices of a stage and of the next."""
    inside = topology.nodes == 1 or (place + 1) % topology.devices_per_node != 0
    link = topology.inside if inside else topology.between
    if link is None:
        raise BadValue("a pipeline needs a link between its stages")
    return link

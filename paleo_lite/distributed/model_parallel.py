"""Model parallelism: layers divided, or shared out, among devices.

Krizhevsky 2014 ("one weird trick") for hybrid, Shoeybi et al. 2019 (Megatron-LM) for tensor, Huang et al. 2019 (GPipe)
and Narayanan et al. 2021 (1F1B) for pipelines, Qi et al. 2017 (PALEO) for the bounds.
"""

from __future__ import annotations

import numpy as np

from ..errors import BadValue
from .collectives import LinkRate, point_to_point_time_s
from .data_parallel import Run, all_reduced, beside_backward, samples_each
from .exchange import exchange_time_s, fastest, half_collective
from .job import Job, Settings, shares
from .pipeline import crossing_bytes, partition, schedule
from .split import critical_path_s, dense_tail, tensor_pairs
from .step import Step
from .topology import Topology


def tensor(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """Pairs of matrix products divided by columns and rows (Megatron-LM); all devices work on the whole batch.

    Divided layers take the n-th part of their time, all others the whole on every device; each pair costs two
    all-reduces of activations that nothing hides.
    """
    workers, layers = topology.workers, job.workload.layers
    step = job.at(batch_size)
    if workers == 1:
        return step
    pairs = tensor_pairs(layers)
    if not pairs:
        raise BadValue(
            f"{job.workload.network.name} has no pair of matrix products that can be divided: use another strategy"
        )
    share = np.ones(len(layers))
    share[[index for pair in pairs for index in pair.layers]] = 1 / workers
    elements = np.array([pair.elements(layers) for pair in pairs], dtype=np.float64).ravel()
    messages = elements[elements > 0] * batch_size * job.element_bytes
    collective = settings.collective or fastest(topology, messages)
    exposed = float(np.sum(exchange_time_s(topology, messages, collective)))
    compute = float((step.forward_s + step.backward_s) @ share) * (1 + settings.slowdown)
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


def hybrid(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
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
    exchange = job.once(all_reduced, topology, settings, tail)
    front = beside_backward(step.until(tail), exchange, settings)
    whole = job.at(batch_size)  # its tail alone is used
    dense = float(whole.forward_s[tail:].sum() + whole.backward_s[tail:].sum()) / workers * (1 + settings.slowdown)
    linear = [layer for layer in layers[tail:] if layer.kind == "linear"]
    gathered = [_elements(layer.inputs[0]) for layer in linear] + [_elements(linear[-1].outputs[0])]
    messages = np.array(gathered, dtype=np.float64) * batch_size * job.element_bytes
    # Forward an all-gather, backward a reduce-scatter of as much: together the time of a ring's all-reduce.
    fetching = float(np.sum(exchange_time_s(topology, messages, half_collective(topology, None, "hybrid"))))
    parameters = shares(job.workload.work.parameters)
    share = float(parameters[:tail].sum()) + float(parameters[tail:].sum()) / workers
    memory = job.memory(samples).of_share(share) + float(messages.sum())
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

    def run(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
        step, workers = job.at(batch_size), topology.workers
        if workers == 1:
            return step
        compute = step.compute_s
        if which == "lower":
            path = critical_path_s(job.workload.layers, step.forward_s + step.backward_s)
            compute = max(path, step.compute_s / workers)
        lost = compute - step.compute_s / workers
        note = "a bound: which layers go where, and so what is sent and what each device holds, is left open"
        losses = {"layers that wait for each other": lost} if lost else {}
        return Step(compute, update_s=step.update_s, losses=losses, notes=(note,))

    return run


def pipelined(kind: str) -> Run:
    """A stage of layers on each device, micro-batches sent through; see `pipeline`."""

    def run(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
        stages = topology.workers
        if stages == 1:
            return job.at(batch_size)
        if job.workload.options.accumulation > 1:
            raise BadValue("a pipeline's micro-batches are its accumulation: --micro-batches, not --accumulation")
        count = settings.micro_batches or _micro_batches(batch_size, stages)
        if batch_size % count:
            raise BadValue(f"a batch of {batch_size} cannot be divided into {count} micro-batches")
        micro = batch_size // count
        step = job.at(micro)
        starts = partition(step.forward_s + step.backward_s, stages)
        ends = [*starts[1:], len(step.forward_s)]
        longer = 1 + settings.slowdown
        forward = np.add.reduceat(step.forward_s, starts) * longer
        backward = np.add.reduceat(step.backward_s, starts) * longer
        sizes = crossing_bytes(job.workload.layers, starts, job.element_bytes) * micro
        hops = np.array(
            [point_to_point_time_s(size, _hop(topology, place)) for place, size in enumerate(sizes.tolist())]
        )
        plan = schedule(forward, backward, hops, hops, count, kind)
        parameters = shares(job.workload.work.parameters)
        of_stages = np.add.reduceat(parameters, starts)
        memory = max(
            _stage_memory(job, micro, first, last, in_flight)
            for first, last, in_flight in zip(starts, ends, plan.in_flight)
        )
        compute = plan.time_s - plan.transfer_s
        work = float(forward.sum() + backward.sum()) * count
        losses = {
            "the bubble of the pipeline": compute - plan.busy_s,
            "small micro-batches": (count * step.compute_s - job.at(batch_size).compute_s) / stages,
            "stages that differ in length": plan.busy_s - work / stages,
        }
        note = f"{stages} stages, {count} micro-batches of {micro}"
        return Step(
            compute, 2 * float(hops.sum()) * count, plan.transfer_s, step.update_s * float(of_stages.max()), memory,
            "point-to-point", losses, (note,),
        )  # fmt: skip

    return run


def _micro_batches(batch_size: int, stages: int) -> int:
    """The fewest of at least four per stage (GPipe: the bubble is then negligible) that divide the batch, or all."""
    return next((n for n in range(4 * stages, batch_size + 1) if batch_size % n == 0), batch_size)


def _stage_memory(job: Job, micro: int, first: int, last: int, in_flight: int) -> float:
    once, twice = (job.part_memory(size, first, last) for size in (micro, 2 * micro))
    return once + (in_flight - 1) * (twice - once)  # memory is affine in the samples


def _hop(topology: Topology, place: int) -> LinkRate:
    """The link between the devices of a stage and of the next."""
    inside = topology.nodes == 1 or (place + 1) % topology.devices_per_node != 0
    link = topology.inside if inside else topology.between
    if link is None:
        raise BadValue("a pipeline needs a link between its stages")
    return link

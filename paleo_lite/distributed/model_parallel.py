"""Model parallelism: layers divided, or shared out, among devices.

Krizhevsky 2014 ("one weird trick") for hybrid, Shoeybi et al. 2019 (Megatron-LM) for tensor, Huang et al. 2019 (GPipe)
and Narayanan et al. 2021 (1F1B) for pipelines, Qi et al. 2017 (PALEO) for the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.kinds import is_linear, splits
from ..errors import BadValue
from .collectives import exchanged, half_collective, point_to_point_time_s
from .data_parallel import all_reduced, beside_backward, samples_each
from .job import Job, Settings, Step, plain
from .links import Topology
from .pipeline import crossing_bytes, partition, schedule

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
    divided, sent = job.counted(_pairs)
    if not len(divided):
        network = job.workload.network
        divides = "use another strategy" if network.remade is None else "--tensor, without a strategy, divides blocks"
        raise BadValue(f"{network.name} has no pair of matrix products that can be divided: {divides}")
    share = np.ones(len(layers))
    share[divided] = 1 / workers
    exposed, collective = _exchanged(topology, sent, Sizes.of(batch_size), settings.collective)
    compute = step.of_shares(share) * (1 + settings.slowdown)
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


def _pairs(job: Job) -> tuple[list[int], tuple[float, ...]]:
    """The layers that are divided, and the bytes per sample of each all-reduce."""
    layers = job.workload.layers
    pairs = tensor_pairs(layers)
    elements = [number for pair in pairs for number in pair.elements(layers) if number]
    return [index for pair in pairs for index in pair.layers], tuple(number * job.element_bytes for number in elements)


@lru_cache(1024)
def _exchanged(topology: Topology, sent: tuple[float, ...], batch_sizes: Sizes, collective: str | None) -> Any:
    """Seconds of messages of so many bytes per sample, and the collective: the same on every device of a sweep."""
    return exchanged(topology, np.multiply.outer(np.array(sent, dtype=np.float64), batch_sizes.batch_size), collective)


class Sizes(NamedTuple):
    """A batch size, or many of them, as what something is kept by."""

    size: int | None
    many: bytes = b""

    @classmethod
    def of(cls, batch_size: Any) -> Sizes:
        """Of a number or an array of them."""
        return cls(None, batch_size.tobytes()) if np.ndim(batch_size) else cls(batch_size)

    @property
    def batch_size(self) -> Any:
        """The number or the array."""
        return np.frombuffer(self.many, dtype=np.int64) if self.size is None else self.size


def shares(amounts: NDArray[np.int64]) -> Floats:
    """Each layer's share of what all layers have together; none where that is nothing."""
    return amounts / max(float(amounts.sum()), 1.0)


def hybrid(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Convolutions data parallel, fully connected layers divided (Krizhevsky 2014, "one weird trick").

    Every device has the n-th part of each fully connected layer and runs the whole batch through it: the layers'
    inputs are gathered before, their gradients scattered behind. Only the convolutions' gradients are exchanged.
    """
    workers, layers = topology.workers, job.workload.layers
    samples = samples_each(batch_size, workers)
    step = job.at(samples)
    if workers == 1:
        return step
    tail = dense_tail(layers)
    exchange = job.counted(all_reduced, topology, settings, tail)
    front = beside_backward(step.until(tail), exchange, settings)
    whole = job.at(batch_size)  # its tail alone is used
    dense = whole.of_shares(np.where(np.arange(len(layers)) < tail, 0.0, 1.0)) / workers * (1 + settings.slowdown)
    linear = [layer for layer in layers[tail:] if is_linear(layer)]
    gathered = [prod(layer.inputs[0]) for layer in linear] + [prod(linear[-1].outputs[0])]
    sent = tuple(number * job.element_bytes for number in gathered)
    # Forward an all-gather, backward a reduce-scatter of as much: together the time of a ring's all-reduce.
    collective = half_collective(topology, None, "hybrid")
    fetching, _ = _exchanged(topology, sent, Sizes.of(batch_size), collective)
    parameters = shares(job.workload.work.parameters)
    share = float(parameters[:tail].sum()) + float(parameters[tail:].sum()) / workers
    memory = job.memory(samples).of_share(share) + float(sum(sent)) * batch_size
    return Step(
        front.compute_s + dense, front.communication_s + fetching, front.exposed_s + fetching,
        step.update_s * share, memory, exchange.collective, front.losses,
    )  # fmt: skip


def model_bound(which: str, job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """PALEO's bounds of model parallelism: branches side by side (lower) or one after another (upper).

    The lower bound is the longest way through the graph, and no less than the n-th part of all work.
    """
    step, workers = job.at(batch_size), topology.workers
    if workers == 1:
        return step
    compute = step.compute_s
    if which == "lower":
        path = critical_path_s(job.workload.layers, step.layers_s)
        compute = plain(np.maximum(path, step.compute_s / workers))
    lost = compute - step.compute_s / workers
    note = "a bound: which layers go where, and so what is sent and what each device holds, is left open"
    losses = {"layers that wait for each other": lost} if np.any(lost) else {}
    return Step(compute, update_s=step.update_s, losses=losses, notes=(note,))


def pipelined(kind: str, job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """A stage of layers on each device, micro-batches sent through; see `pipeline`."""
    stages = topology.workers
    if stages == 1:
        return job.at(batch_size)
    if job.workload.options.accumulation > 1:
        raise BadValue("a pipeline's micro-batches are its accumulation: --micro-batches, not --accumulation")
    cut = job.once(_cut, Sizes.of(batch_size), stages, settings.micro_batches)
    count, micro, step = cut.count, cut.micro, job.at(cut.micro)
    forward, backward = (seconds * (job.pace * (1 + settings.slowdown)) for seconds in cut.passes)
    hops = _hops_s(topology, cut.crossing)
    plan = schedule(forward, backward, hops, hops, count, kind)
    memory = job.memory(micro * plan.in_flight).of_share(cut.parameters, cut.activations).max(axis=0)
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
        step.update_s * plain(cut.parameters.max(axis=0)), plain(memory), "point-to-point", losses, notes,
    )  # fmt: skip


class _Cut(NamedTuple):
    """A network in stages, which no pace changes: micro-batches, how many there are, and what of each stage.

    Arrays have the shape (stages,) or (stages, batch sizes).
    """

    count: Any
    micro: Any
    passes: list[Floats]
    """Seconds of forward and backward pass, at no pace."""
    parameters: Floats
    activations: Floats
    """Shares of the network's."""
    crossing: Floats
    """Bytes that go on to the next: one less than stages."""


def _cut(job: Job, batch_sizes: Sizes, stages: int, count: int | None) -> _Cut:
    batch_size = batch_sizes.batch_size
    count = count or micro_batches(batch_size, stages)
    if np.any(batch_size % count):
        raise BadValue(f"a batch of {batch_size} cannot be divided into {count} micro-batches")
    micro = batch_size // count
    step, work = job.at(micro), job.workload.work
    starts = np.array(partition(step.layers_s, stages))
    cuts = np.concatenate([starts, np.full_like(starts[:1], len(step.group))])
    passes = [_by_stage(seconds[step.group], cuts) / job.pace for seconds in (step.forward_s, step.backward_s)]
    parameters, activations = (
        _by_stage(shares(amounts), cuts) for amounts in (work.parameters, work.activations_per_sample)
    )
    return _Cut(count, micro, passes, parameters, activations, job.counted(_crossings)[cuts[1:-1]] * micro)


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
    return next((n for n in range(4 * stages, batch_size + 1) if batch_size % n == 0), batch_size)


def _hops_s(topology: Topology, crossing: Floats) -> Floats:
    """Seconds from the devices of each stage to those of the next."""
    seconds = np.empty_like(crossing)
    inside = topology.nodes == 1 or np.arange(1, len(crossing) + 1) % topology.devices_per_node != 0
    for here, link in ((inside, topology.inside), (~np.asarray(inside), topology.between)):
        hops = np.broadcast_to(here, len(crossing))
        if hops.any():
            if link is None:
                raise BadValue("a pipeline needs a link between its stages")
            seconds[hops] = point_to_point_time_s(crossing[hops], link)
    return seconds


class SplitPair(msgspec.Struct, frozen=True):
    """Layers that are divided together (Shoeybi et al. 2019, Megatron-LM, section 3).

    The first ones by columns of their weight, so that each device has some of the outputs; the last by rows, so that
    its partial sums are added up: one all-reduce of its output in the forward pass, one of the gradient of the first
    ones' input in the backward pass.

    Attributes
    ----------
    layers : tuple of int
        All of them, with what lies between.
    """

    layers: tuple[int, ...]
    first: int
    last: int

    def elements(self, network: Sequence[Layer]) -> tuple[int, int]:
        """Elements per sample of the two all-reduces, forward and backward; 0 where no gradient is wanted."""
        into = network[self.first]
        backward = prod(into.inputs[0]) if into.parents[0] >= 0 else 0
        return prod(network[self.last].outputs[0]), backward


def tensor_pairs(layers: Sequence[Layer]) -> list[SplitPair]:
    """Pairs that can be divided, in order; no layer is in two.

    Layers that read the same tensor (queries, keys and values) begin a pair together.
    """
    readers: dict[int, list[int]] = {}
    for index, layer in enumerate(layers):
        for parent in layer.parents:
            readers.setdefault(parent, []).append(index)
    pairs: list[SplitPair] = []
    taken = -1
    for index, layer in enumerate(layers):
        if index <= taken or not _divisible(layer):
            continue
        siblings = [other for other in readers[layer.parents[0]] if other >= index and _divisible(layers[other])]
        pair = _follow(layers, readers, siblings) or _follow(layers, readers, [index])
        if pair is not None:
            pairs.append(pair)
            taken = max(pair.layers)
    return pairs


def _divisible(layer: Layer) -> bool:
    is_product = is_linear(layer) or layer.kind == "conv2d"
    return is_product and layer.attributes.get("groups", 1) == 1 and bool(layer.weights)


def _follow(layers: Sequence[Layer], readers: dict[int, list[int]], start: list[int]) -> SplitPair | None:
    """From layers divided by columns to the one layer that takes the parts together, if that is all that reads them."""
    inside, last = set(start), None
    for index in range(min(start) + 1, len(layers)):
        layer = layers[index]
        if index in inside or not inside.intersection(layer.parents):
            continue
        if last is not None:
            return None  # two layers want the whole of it
        if _divisible(layer):
            last = index
        elif _passes(layer, inside):
            inside.add(index)
        else:
            return None
    if last is None or any(index not in readers for index in inside):
        return None
    return SplitPair((*sorted(inside), last), min(start), last)


def _passes(layer: Layer, inside: set[int]) -> bool:
    if any(parent >= 0 and parent not in inside for parent in layer.parents):
        return False
    return splits(layer)


def dense_tail(layers: Sequence[Layer]) -> int:
    """Where the fully connected layers begin: the first one behind the last convolution.

    Raises
    ------
    BadValue
        If there is no convolution or no fully connected layer behind the last.
    """
    convolutions = [index for index, layer in enumerate(layers) if layer.kind.startswith("conv")]
    after = convolutions[-1] + 1 if convolutions else 0
    for index in range(after, len(layers)):
        if convolutions and is_linear(layers[index]):
            return index
    raise BadValue(
        "the hybrid strategy needs convolutions and fully connected layers behind them, as AlexNet and VGG have"
    )


def critical_path_s(layers: Sequence[Layer], times_s: Any) -> Any:
    """Seconds of the longest way through the graph: what no number of devices gets below, branches side by side.

    Of times of shape (layers, batch sizes) an array.
    """
    times = np.asarray(times_s, dtype=np.float64)
    ends: list[Any] = []
    for layer, time in zip(layers, times):
        before = [ends[parent] for parent in layer.parents if parent >= 0]
        ends.append(time + np.max(before, axis=0) if before else time)
    return np.max(ends, axis=0) if ends else 0.0

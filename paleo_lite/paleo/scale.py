"""PALEO on many workers: ``--compat paleo``.

Weak scaling keeps the batch per worker; strong scaling gives each worker ``ceil(batch / n)``. Model parallelism has two
bounds and runs parallel branches on different workers. Hybrid parallelism is Krizhevsky's "one weird trick for
parallelizing convolutional neural networks" (2014): data-parallel convolutions and split fully connected layers.

Source: ``simulation.py`` and ``graph.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..architectures import Network, find_network
from ..counting.layer import Layer, Shape
from ..counting.work import check_batch_size
from ..distributed.collectives import check_workers
from ..distributed.run import Request
from ..distributed.scale import SCALINGS
from ..distributed.table import ScaleRow, ScaleTable
from ..errors import BadValue
from ..timing.budget import make_budget
from .layers import FLOAT_BYTES, is_product, parameter_bytes
from .simulator import COLLECTIVES, Simulator, check_name, make_simulator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


STRATEGIES = ("data", "hybrid", "model-lower", "model-upper")
PLATFORMS = {"caffe": (0.21, 0.56), "mxnet": (0.49, 0.72), "tensorflow": (0.62, 0.72)}
"""The PPP of arithmetic and of communication that PALEO's web demo gives to each framework."""


class PaleoStep(NamedTuple):
    """A training step and its parts; `batch_size` is the global batch size."""

    workers: int
    batch_size: int
    compute_ms: float
    communication_ms: float = 0.0
    update_ms: float = 0.0

    @property
    def time_s(self) -> float:
        """Sum of all parts: PALEO overlaps none of them."""
        return sum(self[2:]) / 1e3

    def row(self, alone: PaleoStep, strategy: str, collective: str, notes: tuple[str, ...] = ()) -> ScaleRow:
        """Return the row of the table, relative to the step of one worker, `alone`."""
        compute_s, communication_s, update_s = (ms / 1e3 for ms in self[2:])
        return ScaleRow(
            workers=self.workers,
            batch_size=self.batch_size,
            compute_s=compute_s,
            communication_s=communication_s,
            exposed_s=communication_s,
            update_s=update_s,
            single_worker_per_s=alone.batch_size / alone.time_s,
            limited_by=max(self._fields[2:], key=lambda name: float(getattr(self, name))).removesuffix("_ms"),
            notes=notes,
            strategy=strategy,
            collective=collective,
        )


def paleo_scale(
    network: str | Network,
    simulator: Simulator,
    *,
    workers: Sequence[int],
    batch_size: int,
    scaling: str = "weak",
    collective: str = "tree",
    strategy: str = "data",
) -> list[ScaleRow]:
    """Return PALEO's predictions of a training step for some numbers of workers.

    Parameters
    ----------
    network : str or Network
        ``paleo_alex_v2``, or any network with layers that PALEO supports.
    simulator : Simulator
        Of `make_simulator`.
    batch_size : int
        Weak scaling: per worker. Strong: over all workers.
    scaling : {"weak", "strong"}
    collective : {"one-to-all", "tree", "butterfly", "butterfly-mixing"}
    strategy : {"data", "hybrid", "model-lower", "model-upper"}
        The model-parallel bounds are of forward and backward pass alone, one term after the other, on as many
        workers as there are branches side by side: one row, whatever `workers` says.

    Returns
    -------
    list of ScaleRow
        One for each number of workers.

    Raises
    ------
    UnknownName, BadValue
        If a name or number is none, or options do not go together.
    """
    check_name("collective", collective, COLLECTIVES)
    check_name("strategy", strategy, STRATEGIES)
    check_name("scaling", scaling, SCALINGS)
    check_batch_size(batch_size)
    check_workers(workers)
    if isinstance(network, str):
        network = find_network(network)
    if strategy.startswith("model"):
        return [_bound(network, simulator, batch_size, strategy)]
    if strategy == "hybrid":
        if scaling != "weak" or collective != "tree" or simulator.concurrent:
            raise BadValue("PALEO's hybrid scheme has weak scaling, exchanges by a tree and no `concurrent`")
        alone, *steps = (_hybrid_step(network, simulator, n, batch_size) for n in (1, *workers))
    else:
        alone, *steps = _data_steps(network, simulator, (1, *workers), batch_size, scaling, collective)
    return [step.row(alone, strategy, collective) for step in steps]


def _data_steps(
    network: Network, simulator: Simulator, workers: Sequence[int], batch_size: int, scaling: str, collective: str
) -> list[PaleoStep]:
    weak = scaling == "weak"
    own = [batch_size if weak else ceil(batch_size / n) for n in workers]
    compute = simulator.times(network.layers, own).total_ms(simulator.concurrent)
    size_bytes = parameter_bytes(network.layers)
    update = simulator.device.update_ms(size_bytes, simulator.concurrent)
    return [
        PaleoStep(
            n, batch_size * n if weak else batch_size, ms, simulator.exchange_ms(collective, size_bytes, n), update
        )
        for n, ms in zip(workers, compute.tolist())
    ]


def _hybrid_step(network: Network, simulator: Simulator, workers: int, batch_size: int) -> PaleoStep:
    """Return a hybrid step: unsplit layers are data-parallel; each worker computes its split layers for all batches.

    An error of the release: a worker updates all parameters of the split layers.
    """
    whole, split = divide(network, workers)
    compute_whole, compute_split = (float(simulator.times(part, [batch_size]).total_ms()[0]) for part in (whole, split))
    whole_bytes, split_bytes = parameter_bytes(whole), workers * parameter_bytes(split)
    return PaleoStep(
        workers,
        workers * batch_size,
        compute_whole + workers * compute_split,
        activations_ms(simulator, split, workers, batch_size) + simulator.exchange_ms("tree", whole_bytes, workers),
        simulator.device.update_ms(whole_bytes) + simulator.device.update_ms(split_bytes),
    )


def _bound(network: Network, simulator: Simulator, batch_size: int, strategy: str) -> ScaleRow:
    """Return a bound of model parallelism, compared with the upper bound, which is the time of one worker."""
    times = simulator.times(network.layers, [batch_size])
    alone = PaleoStep(1, batch_size, float(times.total_ms()[0]))
    lower_ms, width = slowest_branches(network, times.layer_ms()[..., 0])
    step = PaleoStep(width, batch_size, float(lower_ms.sum()) if strategy == "model-lower" else alone.compute_ms)
    note = "PALEO's bound of forward and backward pass, for any number of workers, without communication or update"
    return step.row(alone, strategy, "", (note,))


def paleo_table(
    request: Request,
    network: str,
    gpu: str | None,
    *,
    collective: str,
    revision: str,
    ppp: float = 1.0,
    concurrent: bool = False,
) -> ScaleTable:
    """Return the result of `paleo_scale` as a table of `paleo_lite.scale`.

    Raises
    ------
    UnknownName, BadValue
        If a name or number is invalid, options contradict each other, or there is no device or link.
    """
    if gpu is None or request.link is None:
        raise BadValue("PALEO needs a device and a link: --gpu TITAN_X --link ethernet20")
    budget = make_budget(None, request.amount, request.price, require_cost=request.require_cost)
    counts = request.worker_counts() or [1]
    samples = request.resolve_batch_size(max(counts))
    ppp_comm = request.ppp_comm or 1.0
    simulator = make_simulator(gpu, request.link, ppp=ppp, ppp_comm=ppp_comm, revision=revision, concurrent=concurrent)
    rows = paleo_scale(
        network, simulator, workers=counts, batch_size=samples, scaling=request.scaling, collective=collective,
        strategy=request.strategy,
    )  # fmt: skip
    return ScaleTable(
        network=network,
        gpu=gpu,
        gpu_name=gpu,
        precision="fp32",
        scaling=request.scaling,
        batch_size=samples,
        topology=f"as PALEO has it: {request.link} between all workers",
        links=(),
        model=f"PALEO, {revision} release, PPP {ppp:g}, of the link {ppp_comm:g}",
        memory_bytes=None,
        rows=[msgspec.structs.replace(row, **msgspec.structs.asdict(budget)) for row in rows],
        images=budget.images,
        epochs=budget.epochs,
        price_usd_per_h=budget.price_usd_per_h,
    )


# How a network is divided over workers --------------------------------------------------------------------------------


_SWITCH = 4  # GPUs behind one switch


def slowest_branches(network: Network, layer_ms: Array) -> tuple[Array, int]:
    """Return PALEO's lower bound of model parallelism: the time of the chain with the slowest of parallel branches.

    Chains fork, and join at layers with several parents. (PALEO itself fails at a fork inside a branch.)

    Parameters
    ----------
    layer_ms : ndarray, shape (directions, layers)
        The slowest branch is determined for each direction.

    Returns
    -------
    bound : ndarray, shape (directions,)
    width : int
        Largest number of parallel branches.

    Raises
    ------
    BadValue
        If branches do not all join in one layer, so that the walk does not reach all layers; PALEO omits those.
    """
    parents = [[parent for parent in layer.parents if parent >= 0] for layer in network.layers]
    children: list[list[int]] = [[] for _ in parents]
    for index, mine in enumerate(parents):
        for parent in mine:
            children[parent].append(index)
    waiting = [len(mine) for mine in parents]
    joints = {index for index, mine in enumerate(parents) if len(mine) > 1}
    reached = 0

    def walk(frontier: list[int]) -> tuple[Array, int, list[int]]:
        """Return the time and width of a chain, and the joins that it reaches."""
        nonlocal reached
        total, width = np.zeros(len(layer_ms)), 0
        while frontier and not all(index in joints for index in frontier):
            if len(frontier) == 1:
                (index,) = frontier
                reached += 1
                total, width = total + layer_ms[:, index], max(width, 1)
                for child in children[index]:
                    waiting[child] -= 1
                frontier = list(dict.fromkeys(children[index]))
                continue
            times, widths, ends = zip(*(walk([index]) for index in frontier))
            total, width = total + np.max(times, axis=0), max(width, sum(widths))
            # On from the joints that all branches have come to.
            frontier = list(dict.fromkeys(joint for end in ends for joint in end if not waiting[joint]))
            joints.difference_update(frontier)
        return total, width, frontier

    bound, width, _ = walk([index for index, mine in enumerate(parents) if not mine])
    if reached < len(parents):
        raise BadValue(
            f"{network.name}: PALEO's walk through the graph reaches {reached} of {len(parents)} layers; its bounds "
            "are for branches that all meet again in one place"
        )
    return bound, width


def divide(network: Network, workers: int) -> tuple[list[Layer], list[Layer]]:
    """Return the unsplit layers, and one worker's part of the split layers.

    The split layers are those marked ``model_parallel`` in the file, else those from the first fully connected layer up
    to but excluding the last one; a single worker splits none. A worker computes its share of the outputs of a fully
    connected layer, and the same share of the layers after it.

    Raises
    ------
    BadValue
        If there is no layer to split, or the layers are not a chain or not divisible by the number of workers.
    """
    layers, name = network.layers, network.name
    if workers == 1:
        return [*layers], []
    split = [index for index, layer in enumerate(layers) if layer.attributes.get("model_parallel")]
    if not split:
        dense = [index for index, layer in enumerate(layers) if _is_dense(layer)]
        split = list(range(dense[0], dense[-1])) if dense else []
    if not split or not _is_dense(layers[split[0]]):
        raise BadValue(f"{name} has no fully connected layers before its last one: there is nothing to split")
    start, stop = split[0], split[-1] + 1
    if any(layers[index].parents != (index - 1,) for index in range(start + 1, stop)):
        raise BadValue(f"{name}: the fully connected layers are not a chain, so PALEO cannot split them")
    shares = []
    for layer in layers[start:stop]:
        channels = layer.outputs[0][1]
        if channels % workers:
            raise BadValue(f"{name}: the {channels} channels of {layer.name} do not divide by {workers}")
        weights = tuple((shape[0] // workers, *shape[1:]) for shape in layer.weights)
        inputs = layer.inputs if _is_dense(layer) else _share(layer.inputs, workers)
        shares.append(layer._replace(inputs=inputs, outputs=_share(layer.outputs, workers), weights=weights))
    return [*layers[:start], *layers[stop:]], shares


def _is_dense(layer: Layer) -> bool:
    """Return whether a layer is an inner product, or a convolution with a single output position."""
    return is_product(layer) and layer.outputs[0][2:] in ((), (1, 1))


def _share(shapes: Sequence[Shape], workers: int) -> tuple[Shape, ...]:
    return tuple((shape[0], shape[1] // workers, *shape[2:]) for shape in shapes)


def activations_ms(simulator: Simulator, split: Sequence[Layer], workers: int, batch_size: int) -> float:
    """Return the time to fetch the inputs of split layers from other workers, forward and backward.

    Every worker computes its part of the split layers for the batches of all workers in turn; fetching the next batch
    overlaps with this. Errors of the release: the overlapped fetch is in elements instead of bytes and ignores the PPP,
    worker 0 fetches from itself, and every fetch across a switch halves the remaining bandwidth.

    Parameters
    ----------
    split : sequence of Layer
        One worker's part of the split layers; if it is empty, the time is 0.
    workers, batch_size : int
        Number of workers, and batch size of one worker.
    """
    if not split:
        return 0.0
    link_gb_per_s = simulator.link.bandwidth_bytes_per_s / 1e9

    def fetched(elements: int, bandwidth_gb_per_s: float) -> float:
        size_bytes = FLOAT_BYTES * batch_size * elements
        return float(simulator.device.transfer_ms(size_bytes, simulator.ppp_comm, bandwidth_gb_per_s))

    def gathered(elements: int, worker: int, itself: bool) -> float:
        bandwidth_gb_per_s, total = link_gb_per_s, 0.0
        for other in range(workers):
            if other != worker or itself:
                bandwidth_gb_per_s /= 2 if other // _SWITCH != worker // _SWITCH else 1
                total += fetched(elements, bandwidth_gb_per_s)
        return total

    first, *rest = (prod(layer.inputs[0]) for layer in split if _is_dense(layer))
    once = fetched(first, link_gb_per_s)
    for elements in rest:
        once += max(gathered(elements // workers, worker, itself=False) for worker in range(workers))
    hidden = batch_size * first / 2**30 / link_gb_per_s * 1e3 * (workers - 1)
    # In both directions, and the last output comes together on worker 0.
    return 2 * (workers * (once - hidden) + hidden + gathered(prod(split[-1].outputs[0]), 0, itself=True))

"""Scaling to several workers as in PALEO: ``--compat paleo``.

Weak scaling keeps the batch size per worker; strong scaling gives each worker ``ceil(batch / n)`` samples. Model
parallelism has two bounds: parallel branches run concurrently (lower) or one after the other (upper). The hybrid
strategy is from Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014): convolutions are
data-parallel, and fully connected layers are split over the workers.

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
from ..distributed.request import ClusterRequest
from ..distributed.settings import SCALINGS
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
"""PPP of computation and of communication of each framework in the web demo of PALEO."""


class PaleoStep(NamedTuple):
    """Parts of a training step, in milliseconds; `batch_size` is the global batch size."""

    workers: int
    batch_size: int
    compute_ms: float
    communication_ms: float = 0.0
    update_ms: float = 0.0

    @property
    def time_s(self) -> float:
        """Sum of the parts in seconds: PALEO does not overlap communication with computation."""
        return (self.compute_ms + self.communication_ms + self.update_ms) / 1e3

    def make_row(self, single: PaleoStep, strategy: str, collective: str, notes: tuple[str, ...] = ()) -> ScaleRow:
        """Return the row of the step in a scaling table; `single` is the step of a single worker."""
        parts_ms = {"compute": self.compute_ms, "communication": self.communication_ms, "update": self.update_ms}
        communication_s = self.communication_ms / 1e3
        return ScaleRow(
            workers=self.workers,
            batch_size=self.batch_size,
            compute_s=self.compute_ms / 1e3,
            communication_s=communication_s,
            exposed_s=communication_s,
            update_s=self.update_ms / 1e3,
            single_worker_per_s=single.batch_size / single.time_s,
            limited_by=max(parts_ms, key=lambda name: parts_ms[name]),
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
    """Predict the training step of PALEO for several numbers of workers.

    Parameters
    ----------
    network : str or Network
        ``paleo_alex_v2``, or any network with layers that PALEO supports.
    simulator : Simulator
        Result of `make_simulator`.
    workers : sequence of int
        Numbers of workers.
    batch_size : int
        Batch size per worker for weak scaling, global batch size for strong scaling.
    scaling : {"weak", "strong"}
    collective : {"one-to-all", "tree", "butterfly", "butterfly-mixing"}
    strategy : {"data", "hybrid", "model-lower", "model-upper"}
        The model-parallel bounds include only the forward and backward pass, without overlap, on as many workers as
        there are parallel branches. They return one row, independent of `workers`.

    Returns
    -------
    list of ScaleRow
        One row per number of workers.

    Raises
    ------
    UnknownName, BadValue
        If a name is unknown, a number is invalid, or options are incompatible.
    """
    check_name("collective", collective, COLLECTIVES)
    check_name("strategy", strategy, STRATEGIES)
    check_name("scaling", scaling, SCALINGS)
    check_batch_size(batch_size)
    check_workers(workers)
    if isinstance(network, str):
        network = find_network(network)
    if strategy.startswith("model"):
        return [_model_parallel_bound(network, simulator, batch_size, strategy)]
    if strategy == "hybrid":
        if scaling != "weak" or collective != "tree" or simulator.concurrent:
            raise BadValue(
                "the hybrid strategy of PALEO requires weak scaling and the tree collective, without `concurrent`"
            )
        single, *steps = [_hybrid_step(network, simulator, n, batch_size) for n in (1, *workers)]
    else:
        single, *steps = _data_steps(network, simulator, (1, *workers), batch_size, scaling, collective)
    return [step.make_row(single, strategy, collective) for step in steps]


def _data_steps(
    network: Network, simulator: Simulator, workers: Sequence[int], batch_size: int, scaling: str, collective: str
) -> list[PaleoStep]:
    is_weak = scaling == "weak"
    batch_sizes = [batch_size if is_weak else ceil(batch_size / n) for n in workers]
    compute_ms = simulator.times(network.layers, batch_sizes).total_ms(simulator.concurrent)
    size_bytes = parameter_bytes(network.layers)
    update_ms = simulator.device.update_ms(size_bytes, simulator.concurrent)
    steps = []
    for n, time_ms in zip(workers, compute_ms.tolist()):
        global_batch_size = batch_size * n if is_weak else batch_size
        exchange_ms = simulator.exchange_ms(collective, size_bytes, n)
        steps.append(PaleoStep(n, global_batch_size, time_ms, exchange_ms, update_ms))
    return steps


def _hybrid_step(network: Network, simulator: Simulator, workers: int, batch_size: int) -> PaleoStep:
    """Return the step of the hybrid strategy.

    Whole layers are data-parallel; each worker computes its part of the split layers for the batches of all workers.
    As in the release, a worker updates all parameters of the split layers, which is an error.
    """
    whole, split = divide(network, workers)
    whole_ms = float(simulator.times(whole, [batch_size]).total_ms()[0])
    split_ms = float(simulator.times(split, [batch_size]).total_ms()[0])
    whole_bytes = parameter_bytes(whole)
    split_bytes = workers * parameter_bytes(split)
    fetch_ms = activations_ms(simulator, split, workers, batch_size)
    exchange_ms = simulator.exchange_ms("tree", whole_bytes, workers)
    return PaleoStep(
        workers=workers,
        batch_size=workers * batch_size,
        compute_ms=whole_ms + workers * split_ms,
        communication_ms=fetch_ms + exchange_ms,
        update_ms=simulator.device.update_ms(whole_bytes) + simulator.device.update_ms(split_bytes),
    )


def _model_parallel_bound(network: Network, simulator: Simulator, batch_size: int, strategy: str) -> ScaleRow:
    """Return the row of a bound of model parallelism; the upper bound is the time of one worker."""
    times = simulator.times(network.layers, [batch_size])
    single = PaleoStep(1, batch_size, float(times.total_ms()[0]))
    lower_ms, width = slowest_branches(network, times.layer_ms()[..., 0])
    compute_ms = float(lower_ms.sum()) if strategy == "model-lower" else single.compute_ms
    step = PaleoStep(width, batch_size, compute_ms)
    note = "PALEO's bound, for any number of workers, excludes communication and the update"
    return step.make_row(single, strategy, "", (note,))


def paleo_table(
    request: ClusterRequest,
    network: str,
    gpu: str | None,
    *,
    collective: str,
    revision: str,
    ppp: float,
) -> ScaleTable:
    """Return the rows of `paleo_scale` for a request, in the table of `distributed.table`.

    Raises
    ------
    UnknownName, BadValue
        If a name is unknown, a number is invalid, options are incompatible, or the device or link is missing.
    """
    if gpu is None or request.link is None:
        raise BadValue("PALEO needs a device and a link, such as `--gpu TITAN_X --link ethernet20`")
    budget = make_budget(None, request.amount, request.price)
    counts = request.worker_counts() or [1]
    samples = request.resolve_batch(max(counts)).size
    ppp_comm = request.ppp_comm or 1.0
    simulator = make_simulator(gpu, request.link, ppp=ppp, ppp_comm=ppp_comm, revision=revision)
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
        topology=f"{request.link} between all workers, as in PALEO",
        links=(),
        model=f"PALEO, {revision} release, PPP {ppp:g}, of the link {ppp_comm:g}",
        device_memory_bytes=None,
        rows=[msgspec.structs.replace(row, **budget.row_fields) for row in rows],
        images=budget.images,
        epochs=budget.epochs,
        price_usd_per_h=budget.price_usd_per_h,
    )


# Division of a network over workers ----------------------------------------------------------------------------------


_SWITCH = 4  # GPUs behind one switch


def slowest_branches(network: Network, layer_ms: Array) -> tuple[Array, int]:
    """Return PALEO's lower bound of model parallelism, in which only the slowest of parallel branches counts.

    Branches begin at a layer with several children and join at a layer with several parents. (PALEO itself fails if a
    branch divides again.)

    Parameters
    ----------
    layer_ms : ndarray, shape (directions, layers)
        Milliseconds; each direction has its own slowest branch.

    Returns
    -------
    bound : ndarray, shape (directions,)
    width : int
        Maximum number of parallel branches.

    Raises
    ------
    BadValue
        If the branches do not all join at one layer; PALEO omits the layers after them.
    """
    parents = [[parent for parent in layer.parents if parent >= 0] for layer in network.layers]
    children: list[list[int]] = [[] for _ in parents]
    for index, mine in enumerate(parents):
        for parent in mine:
            children[parent].append(index)
    waiting = [len(mine) for mine in parents]
    joins = {index for index, mine in enumerate(parents) if len(mine) > 1}
    reached = 0

    def walk(frontier: list[int]) -> tuple[Array, int, list[int]]:
        """Return the time and width of a chain, and the joins at which it ends."""
        nonlocal reached
        total, width = np.zeros(len(layer_ms)), 0
        while frontier and not all(index in joins for index in frontier):
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
            # Continue at the joins that all branches have reached.
            reached_joins = [join for end in ends for join in end if not waiting[join]]
            frontier = list(dict.fromkeys(reached_joins))
            joins.difference_update(frontier)
        return total, width, frontier

    bound, width, _ = walk([index for index, mine in enumerate(parents) if not mine])
    if reached < len(parents):
        raise BadValue(
            f"{network.name}: PALEO reaches {reached} of {len(parents)} layers of the graph; its bounds require "
            "branches that all join at one layer"
        )
    return bound, width


def divide(network: Network, workers: int) -> tuple[list[Layer], list[Layer]]:
    """Return the layers that every worker computes whole, and one worker's part of the split layers.

    The split layers are those marked ``model_parallel`` in the file, otherwise all layers from the first fully
    connected layer to the one before the last; a single worker splits nothing. Each worker computes an equal part of
    the outputs of a fully connected layer, and the same part of the following layers.

    Raises
    ------
    BadValue
        If there is no layer to split, the split layers are not a chain, or a number of channels is not divisible by
        the number of workers.
    """
    layers, name = network.layers, network.name
    if workers == 1:
        return [*layers], []
    split = [index for index, layer in enumerate(layers) if layer.attributes.get("model_parallel")]
    if not split:
        dense = [index for index, layer in enumerate(layers) if _is_dense(layer)]
        split = list(range(dense[0], dense[-1])) if dense else []
    if not split or not _is_dense(layers[split[0]]):
        raise BadValue(f"{name} has no fully connected layers before its last one, so there is no layer to split")
    start, stop = split[0], split[-1] + 1
    if any(layers[index].parents != (index - 1,) for index in range(start + 1, stop)):
        raise BadValue(f"{name}: the fully connected layers are not a chain, so PALEO cannot split them")
    shares = []
    for layer in layers[start:stop]:
        channels = layer.outputs[0][1]
        if channels % workers:
            raise BadValue(f"{name}: the {channels} channels of {layer.name} are not divisible by {workers} workers")
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
    """Return the milliseconds in which workers fetch activations of the split layers, forward and backward.

    Every worker computes its part of the split layers for the batches of all workers, one batch after the other, while
    the next batch is fetched. Three errors of the release are reproduced: the overlapped fetch is computed from
    elements instead of bytes, and without the PPP; worker 0 fetches from itself; and every fetch across a switch halves
    the remaining bandwidth.

    Parameters
    ----------
    split : sequence of Layer
        One worker's part of the split layers; may be empty.
    workers : int
        Number of workers.
    batch_size : int
        Batch size of one worker.
    """
    if not split:
        return 0.0
    link_gb_per_s = simulator.link.bandwidth_bytes_per_s / 1e9

    def fetch_ms(elements: int, bandwidth_gb_per_s: float) -> float:
        size_bytes = FLOAT_BYTES * batch_size * elements
        return float(simulator.device.transfer_ms(size_bytes, simulator.ppp_comm, bandwidth_gb_per_s))

    def gather_ms(elements: int, worker: int, itself: bool) -> float:
        bandwidth_gb_per_s, total = link_gb_per_s, 0.0
        for other in range(workers):
            if other != worker or itself:
                bandwidth_gb_per_s /= 2 if other // _SWITCH != worker // _SWITCH else 1
                total += fetch_ms(elements, bandwidth_gb_per_s)
        return total

    first, *rest = (prod(layer.inputs[0]) for layer in split if _is_dense(layer))
    once_ms = fetch_ms(first, link_gb_per_s)
    for elements in rest:
        once_ms += max(gather_ms(elements // workers, worker, itself=False) for worker in range(workers))
    overlapped_ms = batch_size * first / 2**30 / link_gb_per_s * 1e3 * (workers - 1)
    last_output_ms = gather_ms(prod(split[-1].outputs[0]), 0, itself=True)  # gathered on worker 0
    # The backward pass takes as long as the forward pass.
    return 2 * (workers * (once_ms - overlapped_ms) + overlapped_ms + last_output_ms)

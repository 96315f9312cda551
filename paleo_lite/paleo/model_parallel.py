"""How PALEO divides a network over workers: branches side by side, and fully connected layers in parts.

Source: ``graph.py`` and ``simulation.py``; Krizhevsky, "One weird trick for parallelizing convolutional neural
networks", 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..counting.layer import Layer, Shape
from ..errors import BadValue
from ..networks import Network
from .convolution import FLOAT_BYTES
from .layers import is_product
from .simulator import Simulator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_SWITCH = 4  # GPUs behind one switch


def slowest_branches(network: Network, layer_ms: Array) -> tuple[Array, int]:
    """PALEO's lower bound of model parallelism: the sum over a chain, with the slowest of branches side by side.

    Chains fork, and meet again at layers with several parents. (PALEO itself fails at a fork in a branch.)

    Parameters
    ----------
    layer_ms : ndarray, shape (directions, layers)
        Each direction has a slowest branch of its own.

    Returns
    -------
    bound : ndarray, shape (directions,)
    width : int
        Branches side by side where there are most.

    Raises
    ------
    BadValue
        If the walk does not reach all layers, where branches do not all meet in one place: PALEO loses those.
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
        """A chain's time and width, and the joints that it comes to."""
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
    """The layers that every worker computes whole, and one worker's part of those that are split.

    Split are the layers that the file marks ``model_parallel``, else those from the first fully connected layer up to
    the last one, which stays whole; a single worker splits nothing. A worker has its share of the outputs of a fully
    connected layer, and the same share of what follows.

    Raises
    ------
    BadValue
        If there is nothing to split, it is not a chain, or does not divide by the workers.
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
    """An inner product, or a convolution that is one: its output has a single position."""
    return is_product(layer) and layer.outputs[0][2:] in ((), (1, 1))


def _share(shapes: Sequence[Shape], workers: int) -> tuple[Shape, ...]:
    return tuple((shape[0], shape[1] // workers, *shape[2:]) for shape in shapes)


def activations_ms(simulator: Simulator, split: Sequence[Layer], workers: int, batch_size: int) -> float:
    """Fetching what the split layers take from other workers, forward and backward.

    Every worker puts its part of the split layers through everybody's batch, one batch after the other; fetching the
    next batch hides behind that. Slips of the release: the hidden fetch is in elements where the fetch is in bytes, and
    knows no PPP; worker 0 fetches from itself; every fetch across a switch halves what bandwidth was left.

    Parameters
    ----------
    split : sequence of Layer
        One worker's part of the split layers; without any there is nothing to fetch.
    workers, batch_size : int
        The batch is that of one worker.
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

"""How PALEO divides a network over workers: branches side by side, and fully connected layers in parts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Union

from ..counting.layer import Layer, Shape
from ..errors import BadValue
from ..networks import Network
from .layers import parameter_bytes
from .simulator import PaleoDevice, paleo_times, transfer_ms, update_ms

if TYPE_CHECKING:
    from numpy.typing import NDArray

Chain = list[Union[int, "list[Chain]"]]
"""Layers one after the other; a list stands for branches side by side, each a chain."""

_SWITCH = 4  # GPUs behind one switch


class Hybrid(NamedTuple):
    """A hybrid step: milliseconds of computing, of fetching activations and of the update, and what is exchanged."""

    compute_ms: float
    fetch_ms: float
    update_ms: float
    shared_bytes: int


def branches(network: Network) -> Chain:
    """The network as PALEO's graph walker sees it: chains that fork, and meet again at layers with several parents.

    Raises
    ------
    BadValue
        If the walk does not reach all layers, where branches do not all meet in one place: PALEO loses those.
    """
    parents = [[p for p in layer.parents if p >= 0] for layer in network.layers]
    children: list[list[int]] = [[] for _ in parents]
    for index, mine in enumerate(parents):
        for parent in mine:
            children[parent].append(index)
    waiting = [len(mine) for mine in parents]
    joints = {index for index, mine in enumerate(parents) if len(mine) > 1}
    reached = 0

    def walk(frontier: list[int]) -> tuple[Chain, list[int]]:
        nonlocal reached
        chain: Chain = []
        while frontier and not all(index in joints for index in frontier):
            if len(frontier) == 1:
                reached += 1
                chain.append(frontier[0])
                for child in children[frontier[0]]:
                    waiting[child] -= 1
                frontier = list(dict.fromkeys(children[frontier[0]]))
                continue
            ends = [walk([index]) for index in frontier]
            beside = [part for part, _ in ends if part]
            if beside:
                chain.append(beside)
            frontier = list(dict.fromkeys(joint for _, found in ends for joint in found if not waiting[joint]))
            joints.difference_update(frontier)
        return chain, frontier

    whole, _ = walk([index for index, mine in enumerate(parents) if not mine])
    if reached < len(parents):
        raise BadValue(
            f"{network.name}: PALEO's walk through the graph reaches {reached} of {len(parents)} layers; its bounds "
            "are for branches that all meet again in one place"
        )
    return whole


def lower_bound(chain: Chain, per_layer: NDArray) -> float:  # type: ignore[type-arg]
    """The sum over a chain, with the slowest of branches side by side. (PALEO itself fails at a fork in a branch.)"""
    total = 0.0
    for item in chain:
        total += float(per_layer[item]) if isinstance(item, int) else max(lower_bound(one, per_layer) for one in item)
    return total


def width(chain: Chain) -> int:
    """Branches side by side where there are most."""
    return max((1 if isinstance(item, int) else sum(width(one) for one in item) for item in chain), default=1)


def hybrid_ms(
    network: Network,
    device: PaleoDevice,
    workers: int,
    batch_size: int,
    link_gb_per_s: float,
    ppp: float,
    ppp_comm: float,
    revision: str,
    algorithm: str = "gemm",
) -> Hybrid:
    """A step of "one weird trick" (Krizhevsky 2014) as PALEO's ``simulate_hybrid_parallel`` has it.

    Every worker computes the data-parallel layers on its own batch, and its part of the split layers on everybody's
    batch, one batch after the other; fetching the next batch hides behind that. Defects kept: the hidden fetch is in
    elements where the fetch is in bytes, and knows no PPP; a worker updates all parameters of the split layers; worker
    0 fetches from itself; with every fetch across a switch the link loses half of what it had left.

    Parameters
    ----------
    batch_size : int
        Per worker.
    link_gb_per_s : float
        Of one direction.

    Raises
    ------
    BadValue
        If the network has nothing to split, or its layers do not divide by the workers.
    """
    layers = network.layers
    start, stop = split_range(network) if workers > 1 else (len(layers), len(layers))
    shared = [*layers[:start], *layers[stop:]]
    times = paleo_times(shared, device, [batch_size], ppp, revision=revision, algorithm=algorithm)
    compute = sum(float(times.total_ms(direction)[0]) for direction in ("forward", "backward"))
    update, fetch, size = update_ms(parameter_bytes(shared), device), 0.0, parameter_bytes(shared)
    if workers > 1:
        parts = _split(network, start, stop, workers)
        mine = paleo_times(parts, device, [batch_size], ppp, revision=revision, algorithm=algorithm)
        compute += workers * sum(float(mine.total_ms(direction)[0]) for direction in ("forward", "backward"))
        update += update_ms(workers * parameter_bytes(parts), device)

        def moved(elements: int, bandwidth: float) -> float:
            return transfer_ms(4 * batch_size * elements, bandwidth, device.tick_ms, ppp_comm)

        def gathered(elements: int, worker: int, itself: bool) -> float:
            bandwidth, total = link_gb_per_s, 0.0
            for other in range(workers):
                if other != worker or itself:
                    bandwidth /= 2 if other // _SWITCH != worker // _SWITCH else 1
                    total += moved(elements, bandwidth)
            return total

        dense = [layer for layer in parts if _is_dense(layer)]
        first = prod(dense[0].inputs[0])
        once = moved(first, link_gb_per_s)
        for layer in dense[1:]:
            part = prod(layer.inputs[0]) // workers
            once += max(gathered(part, worker, itself=False) for worker in range(workers))
        hidden = batch_size * first / 2**30 / link_gb_per_s * 1e3 * (workers - 1)
        # In both directions, and the last output comes together on worker 0.
        fetch = 2 * (workers * (once - hidden) + hidden + gathered(prod(parts[-1].outputs[0]), 0, itself=True))
    return Hybrid(compute, fetch, update, size)


def split_range(network: Network) -> tuple[int, int]:
    """The layers that the hybrid scheme splits: those that the file marks ``model_parallel``, else from the first fully
    connected layer up to the last one, which stays whole.

    Raises
    ------
    BadValue
        If there are none, or they are no chain.
    """
    layers = network.layers
    marked = [index for index, layer in enumerate(layers) if layer.attributes.get("model_parallel")]
    if not marked:
        dense = [index for index, layer in enumerate(layers) if _is_dense(layer)]
        marked = list(range(dense[0], dense[-1])) if dense else []
    if not marked or not _is_dense(layers[marked[0]]):
        raise BadValue(f"{network.name} has no fully connected layers before its last one: there is nothing to split")
    if any(layers[index].parents != (index - 1,) for index in range(marked[0] + 1, marked[-1] + 1)):
        raise BadValue(f"{network.name}: the fully connected layers are no chain, so that PALEO cannot split them")
    return marked[0], marked[-1] + 1


def _is_dense(layer: Layer) -> bool:
    """An inner product, or a convolution that is one: its output has a single position."""
    return layer.kind == "linear" or (layer.kind == "conv2d" and layer.outputs[0][2:] == (1, 1))


def _split(network: Network, start: int, stop: int, workers: int) -> list[Layer]:
    """One worker's part: of a fully connected layer its share of the outputs, of what follows the same share."""
    parts = []
    for layer in network.layers[start:stop]:
        if layer.outputs[0][1] % workers:
            raise BadValue(
                f"{network.name}: the {layer.outputs[0][1]} channels of {layer.name} do not divide by {workers}"
            )
        weights = tuple((shape[0] // workers, *shape[1:]) for shape in layer.weights)
        inputs = layer.inputs if _is_dense(layer) else _share(layer.inputs, workers)
        parts.append(layer._replace(inputs=inputs, outputs=_share(layer.outputs, workers), weights=weights))
    return parts


def _share(shapes: Sequence[Shape], workers: int) -> tuple[Shape, ...]:
    return tuple((shape[0], shape[1] // workers, *shape[2:]) for shape in shapes)


__all__ = ["Chain", "Hybrid", "branches", "hybrid_ms", "lower_bound", "split_range", "width"]

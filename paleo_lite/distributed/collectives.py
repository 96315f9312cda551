"""What an exchange between many devices takes, over a `Topology` or one kind of link: models of the collectives.

A collective is a number of steps, each of which costs a latency, and the bytes that a device sends over its link, which
carries both directions at once (alpha-beta models, Hockney 1994). What the reductions compute is left out: it runs at
memory bandwidth. D bytes, n workers; every formula stands with its source.

Sources: PALEO (Qi, Sparks, Talwalkar, ICLR 2017) for one-to-all, tree, butterfly and butterfly mixing (Zhao, Canny, SDM
2013), which have no latency there; Thakur, Rabenseifner, Gropp, IJHPCA 2005, for the latencies and for numbers of
workers that are not a power of two; Patarasuk, Yuan, JPDC 2009, for the ring and the fewest bytes, 2 (n - 1) / n D;
Sanders, Speck, Traeff, Parallel Computing 2009, for the two trees, which NCCL has had since 2.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import msgspec
import numpy as np

from ..errors import BadValue, UnknownName
from .links import Cost, LinkRate, Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Seconds = Union[float, "Floats"]


def exchange_time_s(topology: Topology, message_bytes: Any, collective: str | None = None) -> Seconds:
    """Seconds of an all-reduce over the whole topology.

    Parameters
    ----------
    message_bytes : float or array
        Bytes that each device contributes.
    collective : str, optional
        One of `COLLECTIVES`; without one the fastest for each message, which `exchanged` names.

    Returns
    -------
    float, or ndarray of the shape of `message_bytes`

    Raises
    ------
    UnknownName
        If there is no such collective.
    """
    seconds = np.min(np.stack(list(_ways(topology, message_bytes, collective).values())), axis=0)
    return float(seconds) if seconds.ndim == 0 else seconds


def exchanged(topology: Topology, messages: Floats, collective: str | None) -> tuple[Any, Any]:
    """Seconds of several messages together, and the collective: the one asked for, else the fastest for them.

    Messages have the shape (messages,), or (messages, batch sizes): then both answers are arrays over batch sizes.
    """
    ways = _ways(topology, messages, collective)
    seconds = np.stack([np.sum(each, axis=0) for each in ways.values()])
    best, names = seconds.argmin(axis=0), tuple(ways)
    if messages.ndim == 1:
        return float(seconds[best]), names[best]
    return np.take_along_axis(seconds, best[None], axis=0)[0], np.array(names)[best]


def _ways(topology: Topology, message_bytes: Any, collective: str | None) -> dict[str, Seconds]:
    """Seconds of each message by the collective that was asked for, or by those to choose from, the simpler first."""
    size, links = check_bytes(message_bytes), topology.links.values()
    if collective is not None and collective not in COLLECTIVES:
        raise UnknownName("collective", collective, COLLECTIVES)
    names = AS_MEASURED if any(link.ppp_at for link in links) else EXACT
    if len(links) < 2:  # with one kind of link hierarchical is the ring under another name
        names = tuple(name for name in names if name != "hierarchical")
    here, nodes, inside, between = topology.devices_per_node, topology.nodes, topology.inside, topology.between
    ways: dict[str, Seconds] = {}
    for name in names if collective is None else (collective,):
        known = COLLECTIVES[name]
        if nodes == 1 or between is None:
            ways[name] = _seconds(known.cost, size, here, inside) if inside else np.zeros_like(size)
        elif here == 1 or inside is None:
            ways[name] = _seconds(known.cost, size, nodes, between)
        else:  # the devices of a node share its link to other nodes
            ways[name] = known.over_two_s(known.cost, size, here, nodes, inside, between)
    return ways


def half_collective(topology: Topology, collective: str | None, strategy: str) -> str:
    """The collective whose halves are a reduce-scatter and an all-gather."""
    if collective is None:
        return min(HALVES, key=lambda name: float(np.sum(exchange_time_s(topology, 1e8, name))))
    if collective not in HALVES:
        raise BadValue(f"{strategy} scatters and gathers, by {' or '.join(HALVES)}, not by {collective}")
    return collective


def all_reduce_time_s(collective: str, message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until every worker has the sum of all workers' messages, over one kind of link.

    Parameters
    ----------
    collective : str
        One of `COLLECTIVES`. On one kind of link ``hierarchical`` is the ring, which is what its parts add up to.
    message_bytes, workers : float and int, or arrays that broadcast
        Bytes that each worker contributes, 0 or more; workers, 1 or more. One worker needs no exchange: 0.

    Returns
    -------
    float, or ndarray of the broadcast shape

    Raises
    ------
    UnknownName
        If there is no such collective.
    """
    if collective not in COLLECTIVES:
        raise UnknownName("collective", collective, COLLECTIVES)
    return _timed(COLLECTIVES[collective].cost, message_bytes, workers, link)


def reduce_scatter_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until each worker has its n-th of the sum of all D: n - 1 steps of D / n (Thakur et al. 2005)."""
    return _timed(_ring_once, message_bytes, workers, link)


def all_gather_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until all workers have the D bytes of which each held an n-th: n - 1 steps of D / n (Thakur et al.)."""
    return _timed(_ring_once, message_bytes, workers, link)


def all_to_all_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until each worker has sent an n-th of its D bytes to each: n - 1 exchanges of D / n (Thakur et al.)."""
    return _timed(_ring_once, message_bytes, workers, link)


def all_to_all_s(topology: Topology, message_bytes: float) -> float:
    """Seconds until each device has sent an equal part of its bytes to each: inside a node and out of it at once."""
    here, nodes = topology.devices_per_node, topology.nodes
    everybody, inside, between = here * nodes, topology.inside, topology.between
    near = 0.0
    if here > 1 and inside is not None:
        near = float(all_to_all_time_s(message_bytes * here / everybody, here, inside))
    if nodes == 1 or between is None:
        return near
    return max(near, float(all_to_all_time_s(message_bytes * here, nodes, between)))


def apart(topology: Topology, stride: int, devices: int) -> Topology:
    """Some devices, every so many of them one, at their share of what links the nodes."""
    inside = max(min(devices, topology.devices_per_node // stride), 1)
    if devices == inside:
        return Topology(topology.device, devices, topology.inside, 1, None)
    between = topology.between
    assert between is not None
    share = inside / topology.devices_per_node
    shared = msgspec.structs.replace(between, bandwidth_bytes_per_s=between.bandwidth_bytes_per_s * share)
    return Topology(topology.device, inside, topology.inside, devices // inside, shared)


def broadcast_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until D bytes of one worker are everywhere: the faster of binomial tree and two trees.

    The tree takes ceil(log2 n) steps of D (Thakur et al. 2005).
    """
    one, two = (_timed(formula, message_bytes, workers, link) for formula in (_binomial, _two_trees))
    return np.minimum(one, two) if isinstance(one, np.ndarray) else min(one, float(two))


def point_to_point_time_s(message_bytes: Any, link: LinkRate) -> Seconds:
    """Seconds of one message between two devices: one step of D (Hockney 1994)."""
    return _timed(lambda size, n, link: (1, size), message_bytes, 2, link)


def _timed(formula: Formula, message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    return _seconds(formula, check_bytes(message_bytes), check_workers(workers), link)


def _seconds(formula: Formula, size: Any, n: Any, link: LinkRate) -> Seconds:
    """Of messages and workers that are known to be possible."""
    several = np.maximum(n, 2)
    seconds = np.where(n == 1, 0.0, link.time_s(formula(size, several, link), several))
    return float(seconds) if seconds.ndim == 0 else seconds


def check_workers(workers: Any) -> Floats:
    """Numbers of workers as floats.

    Raises
    ------
    BadValue
        If one is below 1 or not whole.
    """
    n = np.asarray(workers)
    if n.dtype.kind not in "iuf" or not ((n >= 1) & (n == np.floor(n)) & np.isfinite(n)).all():
        raise BadValue(f"workers must be whole numbers of 1 or more, not {workers!r}")
    return n.astype(np.float64)


def check_bytes(message_bytes: Any) -> Floats:
    """Sizes of messages as floats.

    Raises
    ------
    BadValue
        If one is negative or not finite.
    """
    size = np.asarray(message_bytes)
    if size.dtype.kind not in "iuf" or not ((size >= 0) & np.isfinite(size)).all():
        raise BadValue(f"a message must have 0 or more bytes, not {message_bytes!r}")
    return size.astype(np.float64)


def _log2(n: Any) -> Any:
    """ceil(log2 n), exact for whole n: frexp gives n = m 2^e with 1/2 <= m < 1."""
    mantissa, exponent = np.frexp(n)
    return exponent - (mantissa == 0.5)


def butterfly_steps(n: Any) -> Any:
    """Exchanges of recursive doubling: log2 n, or floor(log2 n) + 2 where n is not a power of two.

    The workers beyond the power of two hand their message to a partner first and get the sum last (Thakur et al. 2005).
    """
    ceiling = _log2(n)
    return ceiling + (np.exp2(ceiling) != n)


def _one_to_all(size: Any, n: Any, link: LinkRate) -> Cost:
    """PALEO: 2 (n - 1) messages of D, all over the server's one link."""
    return 2 * (n - 1), 2 * (n - 1) * size


def _tree(size: Any, n: Any, link: LinkRate) -> Cost:
    """PALEO: 2 ceil(log2 n) messages of D."""
    return 2 * _log2(n), 2 * _log2(n) * size


def _binomial(size: Any, n: Any, link: LinkRate) -> Cost:
    return _log2(n), _log2(n) * size


def _butterfly(size: Any, n: Any, link: LinkRate) -> Cost:
    """PALEO, where n is a power of two: log2 n messages of D."""
    return butterfly_steps(n), butterfly_steps(n) * size


def _butterfly_mixing(size: Any, n: Any, link: LinkRate) -> Cost:
    """PALEO: one message of D."""
    return np.ones_like(n), size + 0 * n


def _ring_once(size: Any, n: Any, link: LinkRate) -> Cost:
    return n - 1, (n - 1) / n * size


def _ring(size: Any, n: Any, link: LinkRate) -> Cost:
    """Patarasuk, Yuan 2009: 2 (n - 1) messages of D / n."""
    return 2 * (n - 1), 2 * (n - 1) / n * size


def _two_trees(size: Any, n: Any, link: LinkRate) -> Cost:
    """A broadcast, or a reduction, over two trees of height h = ceil(log2 n) with k pieces of D / 2k on each.

    A worker feeds its two children in turn: 2 (h + k - 1) steps of one piece. The best k is sqrt((h - 1) wire / (2
    latency)), which gives the D / bandwidth + 2 h latency + O(sqrt) of Sanders et al. 2009.
    """
    height = _log2(n)
    wire = size / (link.bandwidth_bytes_per_s * link.ppp_of(n))
    latency_s = max(link.latency_s, 1e-200)  # without any, as many pieces as one likes
    pieces = np.maximum(1.0, np.sqrt((height - 1) * wire / (2 * latency_s)))
    return 2 * (height + pieces - 1), (height + pieces - 1) / pieces * size


def _double_tree(size: Any, n: Any, link: LinkRate) -> Cost:
    """A reduction and then a broadcast over the two trees."""
    steps, sent_bytes = _two_trees(size, n, link)
    return 2 * steps, 2 * sent_bytes


def _in_turn(cost: Formula, size: Any, here: int, nodes: int, inside: LinkRate, between: LinkRate) -> Seconds:
    """In every node, then between nodes: of rings the hierarchical all-reduce.

    A node's link carries D: the node's sum, or after a reduce-scatter D / here of each of its devices at once.
    """
    return _seconds(cost, size, here, inside) + _seconds(cost, size, nodes, between)


def _paced(cost: Formula, size: Any, here: int, nodes: int, inside: LinkRate, between: LinkRate) -> Seconds:
    """One pipeline through all devices, which enters and leaves each node once: the slower link paces all.

    It has the lower bandwidth of both links, and the longer costs.
    """
    workers, both = here * nodes, (inside, between)
    narrow = min(both, key=lambda link: float(link.bandwidth_bytes_per_s * link.ppp_of(workers)))
    names = ("latency_s", "start_s", "ramp_s", "switch_s")
    longest = {name: max(getattr(link, name) for link in both) for name in names}
    return _seconds(cost, size, workers, msgspec.structs.replace(narrow, **longest))


def _every_sum(cost: Formula, size: Any, here: int, nodes: int, inside: LinkRate, between: LinkRate) -> Seconds:
    """A butterfly: each device sends its own sum out of the node, over the link that they share."""
    first, second = butterfly_steps(here), butterfly_steps(nodes)
    near_s = inside.time_s((first, first * size), here)
    return np.asarray(near_s + between.time_s((second, second * here * size), here * nodes))


def _one_of_every_sum(cost: Formula, size: Any, here: int, nodes: int, inside: LinkRate, between: LinkRate) -> Seconds:
    """One of the butterfly's exchanges a step, over one link or the other in turn: their mean."""
    exchanges = butterfly_steps(here) + butterfly_steps(nodes)
    return np.asarray(_every_sum(cost, size, here, nodes, inside, between) / exchanges)


def _near_and_far(cost: Formula, size: Any, here: int, nodes: int, inside: LinkRate, between: LinkRate) -> Seconds:
    """A parameter server: the messages of its own node come over the inner link."""
    near, far = 2 * (here - 1), 2 * (nodes - 1) * here
    return np.asarray(inside.time_s((near, near * size), here) + between.time_s((far, far * size), here * nodes))


Formula = Callable[[Any, Any, LinkRate], Cost]
OverTwo = Callable[[Formula, Any, int, int, LinkRate, LinkRate], Seconds]


class Collective(NamedTuple):
    """An all-reduce.

    Attributes
    ----------
    what : str
        In a line.
    cost : callable
        Over one kind of link: from bytes, workers and link to steps and bytes of the busiest device.
    over_two_s : callable
        Over two kinds: from `cost`, bytes, devices in a node, nodes, the link inside and the one between to seconds.
    is_exact : bool
        Whether it leaves the whole sum with every worker.
    has_halves : bool
        Whether it is a reduce-scatter and an all-gather.
    """

    what: str
    cost: Formula
    over_two_s: OverTwo
    is_exact: bool = True
    has_halves: bool = False


COLLECTIVES = {
    "ring": Collective(
        "reduce-scatter and all-gather around a ring: fewest bytes, 2 (n - 1) latencies", _ring, _paced,
        has_halves=True,
    ),
    "hierarchical": Collective(
        "reduce-scatter in the node, all-reduce between nodes, all-gather in the node", _ring, _in_turn,
        has_halves=True,
    ),
    "double-tree": Collective(
        "two pipelined binary trees, half of the message on each: 2 D bytes, of order log2(n) latencies",
        _double_tree, _paced,
    ),
    "butterfly": Collective(
        "recursive doubling: pairs exchange the whole message, log2(n) times", _butterfly, _every_sum
    ),
    "tree": Collective(
        "reduction up a binomial tree and broadcast down it, the whole message at every step", _tree, _in_turn
    ),
    "one-to-all": Collective(
        "a parameter server takes every worker's gradient and sends every worker the sum", _one_to_all, _near_and_far
    ),
    "butterfly-mixing": Collective(
        "one of the butterfly's exchanges per step: sums mix over log2(n) steps, no full all-reduce",
        _butterfly_mixing, _one_of_every_sum, is_exact=False,
    ),
}  # fmt: skip
"""All-reduce algorithms by name: of equally fast ones the first is chosen."""

EXACT = tuple(name for name, collective in COLLECTIVES.items() if collective.is_exact)
"""Collectives that leave the whole sum with every worker."""

HALVES = tuple(name for name, collective in COLLECTIVES.items() if collective.has_halves)
"""Collectives that are a reduce-scatter and an all-gather."""

AS_MEASURED = ("ring", "hierarchical")
"""What is chosen from where a link was measured: its figures were fitted to a ring, whatever the library ran."""

"""Alpha-beta models of collectives over a `Topology` or a single kind of link.

A collective costs a latency per step, plus the bytes that the busiest device sends divided by the bandwidth of its
link, which carries both directions at once (Hockney 1994). The arithmetic of reductions is left out, since it runs at
memory bandwidth. In the formulas D is the message size in bytes and n the number of workers.

Sources: PALEO (Qi, Sparks, Talwalkar, ICLR 2017) for one-to-all, tree, butterfly and butterfly mixing (Zhao, Canny, SDM
2013), all without latency there; Thakur, Rabenseifner, Gropp, IJHPCA 2005, for the latencies and for numbers of workers
that are not a power of two; Patarasuk, Yuan, JPDC 2009, for the ring and the lower bound of 2 (n - 1) / n D bytes;
Sanders, Speck, Traeff, Parallel Computing 2009, for the double binary tree, part of NCCL since version 2.4.
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


def topology_all_reduce_s(topology: Topology, message_bytes: Any, collective: str | None = None) -> Seconds:
    """Return the time of an all-reduce over a whole topology, for each message of so many bytes per device.

    Without a collective of `COLLECTIVES` it is the fastest for each message; raise UnknownName for another name.
    """
    times = _times_by_collective(topology, message_bytes, collective)
    seconds = np.min(np.stack(list(times.values())), axis=0)
    return float(seconds) if seconds.ndim == 0 else seconds


def choose_all_reduce(topology: Topology, messages: Floats, collective: str | None) -> tuple[Any, Any]:
    """Return the total time of several all-reduces, and the collective that is fastest for their sum, or the given one.

    `messages` are the bytes that each device contributes, shape (messages,) or (messages, batch sizes); with batch
    sizes both results have the shape (batch sizes,).
    """
    times = _times_by_collective(topology, messages, collective)
    totals = np.stack([np.sum(seconds, axis=0) for seconds in times.values()])
    fastest = totals.argmin(axis=0)
    names = tuple(times)
    if messages.ndim == 1:
        return float(totals[fastest]), names[fastest]
    return np.take_along_axis(totals, fastest[None], axis=0)[0], np.array(names)[fastest]


def _times_by_collective(topology: Topology, message_bytes: Any, collective: str | None) -> dict[str, Seconds]:
    """Return the time of each message by collective: the requested one, or all candidates, simplest first."""
    size = check_bytes(message_bytes)
    if collective is not None and collective not in COLLECTIVES:
        raise UnknownName("collective", collective, COLLECTIVES)
    names: tuple[str, ...]
    if collective is not None:
        names = (collective,)
    else:
        links = topology.links.values()
        names = RING_COLLECTIVES if any(link.ppp_at for link in links) else EXACT_COLLECTIVES
        if len(links) < 2:  # over a single kind of link the hierarchical all-reduce is the ring
            names = tuple(name for name in names if name != "hierarchical")
    per_node, nodes = topology.devices_per_node, topology.nodes
    inside, between = topology.inside, topology.between
    times: dict[str, Seconds] = {}
    for name in names:
        algorithm = COLLECTIVES[name]
        if nodes == 1 or between is None:
            times[name] = _time_s(algorithm.cost, size, per_node, inside) if inside else np.zeros_like(size)
        elif per_node == 1 or inside is None:
            times[name] = _time_s(algorithm.cost, size, nodes, between)
        else:  # the devices of a node share its link to other nodes
            times[name] = algorithm.two_level_time_s(algorithm.cost, size, per_node, nodes, inside, between)
    return times


def choose_reduce_scatter(topology: Topology, collective: str | None, strategy: str) -> str:
    """Return the collective that consists of a reduce-scatter and an all-gather: the requested one or the fastest.

    Raise BadValue if the requested collective is another algorithm; `strategy` is named in the message.
    """
    if collective is None:
        message_bytes = 1e8  # large enough for the bandwidth to matter more than the latency
        times = {name: topology_all_reduce_s(topology, message_bytes, name) for name in REDUCE_SCATTER_COLLECTIVES}
        return min(times, key=lambda name: float(times[name]))
    if collective not in REDUCE_SCATTER_COLLECTIVES:
        raise BadValue(
            f"{strategy} needs a reduce-scatter and an all-gather: use {' or '.join(REDUCE_SCATTER_COLLECTIVES)} "
            f"(got {collective})"
        )
    return collective


def all_reduce_time_s(
    collective: str,  # one of `COLLECTIVES`; over a single kind of link `hierarchical` takes as long as the ring
    message_bytes: Any,  # bytes that each worker contributes, >= 0
    workers: Any,  # number of workers, >= 1; a single one takes 0 seconds
    link: LinkRate,  # of each worker
) -> Seconds:
    """Return the time of an all-reduce over a single kind of link, in seconds; the arrays broadcast.

    Raise UnknownName for an unknown collective.
    """
    if collective not in COLLECTIVES:
        raise UnknownName("collective", collective, COLLECTIVES)
    return _checked_time_s(COLLECTIVES[collective].cost, message_bytes, workers, link)


def reduce_scatter_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Return the time of a reduce-scatter of D bytes: n - 1 steps of D / n (Thakur et al. 2005)."""
    return _checked_time_s(_half_ring, message_bytes, workers, link)


def all_gather_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Return the time of an all-gather of D bytes in total: n - 1 steps of D / n (Thakur et al. 2005)."""
    return _checked_time_s(_half_ring, message_bytes, workers, link)


def all_to_all_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Return the time of an all-to-all of D bytes per worker: n - 1 exchanges of D / n (Thakur et al. 2005)."""
    return _checked_time_s(_half_ring, message_bytes, workers, link.in_all_to_all or link)


def subgroup_topology(topology: Topology, stride: int, devices: int) -> Topology:
    """Return the topology of a communication group: every `stride`-th device, `devices` in total.

    A group that spans several nodes gets its share of the link between nodes, in proportion to its devices per node.
    """
    per_node = max(min(devices, topology.devices_per_node // stride), 1)
    if devices == per_node:
        return Topology(topology.device, devices, topology.inside, 1, None)
    between = topology.between
    assert between is not None
    share = per_node / topology.devices_per_node
    group_link = between.with_factors(bandwidth=share)
    return Topology(topology.device, per_node, topology.inside, devices // per_node, group_link)


def point_to_point_time_s(message_bytes: Any, link: LinkRate) -> Seconds:
    """Return the time of one message of D bytes between two devices: one step of D (Hockney 1994)."""
    return _checked_time_s(_single_message, message_bytes, 2, link)


def _checked_time_s(cost: CostFunction, message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    return _time_s(cost, check_bytes(message_bytes), check_workers(workers), link)


def _time_s(cost: CostFunction, size: Any, n: Any, link: LinkRate) -> Seconds:
    """Return the time for message sizes and numbers of workers that have been checked."""
    at_least_two = np.maximum(n, 2)
    seconds = np.where(n == 1, 0.0, link.time_s(cost(size, at_least_two, link), at_least_two))
    return float(seconds) if seconds.ndim == 0 else seconds


def check_workers(workers: Any) -> Floats:
    """Return numbers of workers as floats; raise BadValue if one is not an integer >= 1."""
    n = np.asarray(workers)
    if n.dtype.kind not in "iuf" or not ((n >= 1) & (n == np.floor(n)) & np.isfinite(n)).all():
        raise BadValue(f"the number of workers must be an integer >= 1 (got {workers!r})")
    return n.astype(np.float64)


def check_bytes(message_bytes: Any) -> Floats:
    """Return message sizes as floats; raise BadValue if one is negative or not finite."""
    size = np.asarray(message_bytes)
    if size.dtype.kind not in "iuf" or not ((size >= 0) & np.isfinite(size)).all():
        raise BadValue(f"the message size must be >= 0 bytes (got {message_bytes!r})")
    return size.astype(np.float64)


# Cost functions over a single kind of link: from message size, number of workers and link to steps and bytes sent.


def _ceil_log2(n: Any) -> Any:
    """Return ceil(log2 n), exact for integers: frexp gives n = m 2^e with 1/2 <= m < 1."""
    mantissa, exponent = np.frexp(n)
    return exponent - (mantissa == 0.5)


def butterfly_steps(n: Any) -> Any:
    """Return the number of steps of recursive doubling: log2 n, or floor(log2 n) + 2 unless n is a power of two.

    The workers beyond the power of two send their message to a partner first and receive the sum last (Thakur et al.
    2005).
    """
    ceiling = _ceil_log2(n)
    return ceiling + (np.exp2(ceiling) != n)


def _single_message(size: Any, n: Any, link: LinkRate) -> Cost:
    return 1, size


def _parameter_server(size: Any, n: Any, link: LinkRate) -> Cost:
    """Return the cost of PALEO's one-to-all: 2 (n - 1) messages of D, all over the server's link."""
    return 2 * (n - 1), 2 * (n - 1) * size


def _tree(size: Any, n: Any, link: LinkRate) -> Cost:
    """Return the cost of PALEO's tree: 2 ceil(log2 n) messages of D."""
    return 2 * _ceil_log2(n), 2 * _ceil_log2(n) * size


def _butterfly(size: Any, n: Any, link: LinkRate) -> Cost:
    """Recursive doubling: log2 n messages of D; PALEO's formula where n is a power of two."""
    return butterfly_steps(n), butterfly_steps(n) * size


def _butterfly_mixing(size: Any, n: Any, link: LinkRate) -> Cost:
    """Return the cost of PALEO's butterfly mixing: one message of D."""
    return np.ones_like(n), size + 0 * n


def _half_ring(size: Any, n: Any, link: LinkRate) -> Cost:
    """Reduce-scatter or all-gather around a ring."""
    return n - 1, (n - 1) / n * size


def _ring(size: Any, n: Any, link: LinkRate) -> Cost:
    """Ring all-reduce: 2 (n - 1) messages of D / n (Patarasuk, Yuan 2009)."""
    return 2 * (n - 1), 2 * (n - 1) / n * size


def _half_double_tree(size: Any, n: Any, link: LinkRate) -> Cost:
    """Broadcast or reduction over two trees of height h = ceil(log2 n), with k pieces of D / 2k on each.

    A worker feeds its two children in turn: 2 (h + k - 1) steps of one piece. The best k is sqrt((h - 1) wire / (2
    latency)), which gives the D / bandwidth + 2 h latency + O(sqrt) of Sanders et al. 2009.
    """
    height = _ceil_log2(n)
    wire_s = size / (link.bandwidth_bytes_per_s * link.ppp_for(n))
    latency_s = max(link.latency_s, 1e-200)  # without latency the number of pieces is unlimited
    pieces = np.maximum(1.0, np.sqrt((height - 1) * wire_s / (2 * latency_s)))
    return 2 * (height + pieces - 1), (height + pieces - 1) / pieces * size


def _double_tree(size: Any, n: Any, link: LinkRate) -> Cost:
    """Double binary tree all-reduce: a reduction, then a broadcast over the two trees."""
    steps, sent_bytes = _half_double_tree(size, n, link)
    return 2 * steps, 2 * sent_bytes


# Times over two kinds of link, in nodes and between nodes.


def _level_by_level_s(
    cost: CostFunction, size: Any, per_node: int, nodes: int, inside: LinkRate, between: LinkRate
) -> Seconds:
    """Time the collective inside nodes, then between nodes; with a ring this is the hierarchical all-reduce.

    The link of a node carries D bytes: the node's sum, or after a reduce-scatter D / per_node of each device at once.
    """
    return _time_s(cost, size, per_node, inside) + _time_s(cost, size, nodes, between)


def _pipelined_s(
    cost: CostFunction, size: Any, per_node: int, nodes: int, inside: LinkRate, between: LinkRate
) -> Seconds:
    """Time a pipeline through all devices that enters and leaves each node once; the slower link limits all of it.

    It has the lower bandwidth and the higher latencies of the two links.
    """
    workers = per_node * nodes
    slower = min((inside, between), key=lambda link: float(link.bandwidth_bytes_per_s * link.ppp_for(workers)))
    link = msgspec.structs.replace(
        slower,
        latency_s=max(inside.latency_s, between.latency_s),
        start_s=max(inside.start_s, between.start_s),
        ramp_s=max(inside.ramp_s, between.ramp_s),
        switch_s=max(inside.switch_s, between.switch_s),
    )
    return _time_s(cost, size, workers, link)


def _recursive_doubling_s(
    cost: CostFunction, size: Any, per_node: int, nodes: int, inside: LinkRate, between: LinkRate
) -> Seconds:
    """Time a recursive-doubling all-reduce in which every device crosses the shared inter-node link."""
    inside_steps, between_steps = butterfly_steps(per_node), butterfly_steps(nodes)
    inside_s = inside.time_s((inside_steps, inside_steps * size), per_node)
    between_s = between.time_s((between_steps, between_steps * per_node * size), per_node * nodes)
    return np.asarray(inside_s + between_s)


def _butterfly_mixing_s(
    cost: CostFunction, size: Any, per_node: int, nodes: int, inside: LinkRate, between: LinkRate
) -> Seconds:
    """Time one of the steps of recursive doubling, on average over the steps on both links."""
    steps = butterfly_steps(per_node) + butterfly_steps(nodes)
    return np.asarray(_recursive_doubling_s(cost, size, per_node, nodes, inside, between) / steps)


def _parameter_server_s(
    cost: CostFunction, size: Any, per_node: int, nodes: int, inside: LinkRate, between: LinkRate
) -> Seconds:
    """Time a parameter server; messages of its own node use the link inside the node."""
    inside_messages = 2 * (per_node - 1)
    between_messages = 2 * (nodes - 1) * per_node
    inside_s = inside.time_s((inside_messages, inside_messages * size), per_node)
    between_s = between.time_s((between_messages, between_messages * size), per_node * nodes)
    return np.asarray(inside_s + between_s)


CostFunction = Callable[[Any, Any, LinkRate], Cost]
TwoLevelTime = Callable[[CostFunction, Any, int, int, LinkRate, LinkRate], Seconds]


class Collective(NamedTuple):
    """An all-reduce algorithm."""

    description: str  # one line
    # Over a single kind of link: from message bytes, workers and link to the number of steps and the bytes of the
    # busiest device.
    cost: CostFunction
    # Over two kinds of link: from `cost`, message bytes, devices per node, nodes, the link inside nodes and the link
    # between nodes to seconds.
    two_level_time_s: TwoLevelTime
    is_exact: bool = True  # whether every worker gets the complete sum
    has_reduce_scatter: bool = False  # whether it is a reduce-scatter followed by an all-gather


COLLECTIVES = {
    "ring": Collective(
        description="reduce-scatter and all-gather around a ring: fewest bytes, 2 (n - 1) latencies",
        cost=_ring,
        two_level_time_s=_pipelined_s,
        has_reduce_scatter=True,
    ),
    "hierarchical": Collective(
        description="reduce-scatter in the node, all-reduce between nodes, all-gather in the node",
        cost=_ring,
        two_level_time_s=_level_by_level_s,
        has_reduce_scatter=True,
    ),
    "double-tree": Collective(
        description="two pipelined binary trees, half of the message on each: 2 D bytes, O(log2 n) latencies",
        cost=_double_tree,
        two_level_time_s=_pipelined_s,
    ),
    "butterfly": Collective(
        description="recursive doubling: pairs exchange the whole message, log2(n) times",
        cost=_butterfly,
        two_level_time_s=_recursive_doubling_s,
    ),
    "tree": Collective(
        description="reduction up a binomial tree and broadcast down it, the whole message at every step",
        cost=_tree,
        two_level_time_s=_level_by_level_s,
    ),
    "one-to-all": Collective(
        description="parameter server: receives the gradient of every worker and sends the sum to every worker",
        cost=_parameter_server,
        two_level_time_s=_parameter_server_s,
    ),
    "butterfly-mixing": Collective(
        description="one butterfly exchange per training step: sums mix over log2(n) steps, no full all-reduce",
        cost=_butterfly_mixing,
        two_level_time_s=_butterfly_mixing_s,
        is_exact=False,
    ),
}
"""All-reduce algorithms by name; among equally fast ones the first is chosen."""

EXACT_COLLECTIVES = tuple(name for name, collective in COLLECTIVES.items() if collective.is_exact)
"""Collectives that give every worker the complete sum."""

REDUCE_SCATTER_COLLECTIVES = tuple(name for name, collective in COLLECTIVES.items() if collective.has_reduce_scatter)
"""Collectives that are a reduce-scatter followed by an all-gather."""

RING_COLLECTIVES = ("ring", "hierarchical")
"""Candidates over a measured link: the link's parameters were fitted as those of a ring, whatever the library used."""

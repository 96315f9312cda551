"""What an all-reduce over a `Topology` takes, and which collective is the fastest there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadValue, UnknownName
from .collectives import COLLECTIVES, LinkRate, Seconds, all_reduce_time_s, butterfly_steps, check_bytes
from .topology import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

EXACT = ("ring", "hierarchical", "double-tree", "butterfly", "tree", "one-to-all")
"""Collectives that leave the whole sum with every worker."""

HALVES = ("ring", "hierarchical")
"""Collectives that are a reduce-scatter and an all-gather."""

AS_MEASURED = ("ring", "hierarchical")
"""What is chosen from where a link was measured: its figures were fitted to a ring, whatever the library ran."""


def exchange_time_s(topology: Topology, message_bytes: Any, collective: str | None = None) -> Seconds:
    """Seconds of an all-reduce over the whole topology.

    Parameters
    ----------
    topology : Topology
    message_bytes : float or array
        Bytes that each device contributes.
    collective : str, optional
        One of `COLLECTIVES`; without one the fastest for each message, which `choose_collective` names.

    Returns
    -------
    float, or ndarray of the shape of `message_bytes`

    Raises
    ------
    UnknownName
        If there is no such collective.
    BadValue
        If bytes are negative or not finite.
    """
    size = check_bytes(message_bytes)
    if collective is not None and collective not in COLLECTIVES:
        raise UnknownName("collective", collective, COLLECTIVES)
    names = candidates(topology) if collective is None else (collective,)
    seconds = np.min(np.stack([np.asarray(_seconds(topology, size, name)) for name in names]), axis=0)
    return float(seconds) if seconds.ndim == 0 else seconds


def choose_collective(topology: Topology, message_bytes: float) -> str:
    """The fastest collective for a message: of `AS_MEASURED` where a link in use was measured, else of `EXACT`."""
    return min(candidates(topology), key=lambda name: float(exchange_time_s(topology, message_bytes, name)))


def fastest(topology: Topology, messages: Floats) -> str:
    """The collective that takes least for all messages together; of equals the first."""
    return min(candidates(topology), key=lambda name: float(np.sum(exchange_time_s(topology, messages, name))))


def half_collective(topology: Topology, collective: str | None, strategy: str) -> str:
    """The collective whose halves are a reduce-scatter and an all-gather."""
    if collective is None:
        return min(HALVES, key=lambda name: float(np.sum(exchange_time_s(topology, 1e8, name))))
    if collective not in HALVES:
        raise BadValue(f"{strategy} scatters and gathers, by {' or '.join(HALVES)}, not by {collective}")
    return collective


def candidates(topology: Topology) -> tuple[str, ...]:
    """The collectives that are chosen from; of equally fast ones the first is taken."""
    used = [(topology.inside, topology.devices_per_node), (topology.between, topology.nodes)]
    measured = any(link.measured for link, count in used if link is not None and count > 1)
    names = AS_MEASURED if measured else EXACT
    # With one kind of link hierarchical is the ring under another name.
    two_levels = topology.devices_per_node > 1 and topology.nodes > 1
    return names if two_levels else tuple(name for name in names if name != "hierarchical")


def _seconds(topology: Topology, size: Floats, collective: str) -> Seconds:
    """One collective over two kinds of link, the node's devices sharing its link to other nodes.

    Tree and hierarchical send the node's sum out once, or each device its part of it: the node's link carries D. The
    butterfly sends every device's sum. The ring enters and leaves each node once; there and in the two trees the slower
    link paces all. The parameter server takes the messages of its own node over the inner link.
    """
    here, nodes, inside, between = topology.devices_per_node, topology.nodes, topology.inside, topology.between
    if nodes == 1 or between is None:
        return all_reduce_time_s(collective, size, here, inside) if inside else np.zeros_like(size)
    if here == 1 or inside is None:
        return all_reduce_time_s(collective, size, nodes, between)
    if collective in ("hierarchical", "tree"):
        name = "ring" if collective == "hierarchical" else "tree"
        return all_reduce_time_s(name, size, here, inside) + all_reduce_time_s(name, size, nodes, between)
    if collective in ("butterfly", "butterfly-mixing"):
        first, second = butterfly_steps(here), butterfly_steps(nodes)
        total = inside.time_s((first, first * size), here)
        total = total + between.time_s((second, second * here * size), topology.workers)
        return np.asarray(total if collective == "butterfly" else total / (first + second))
    if collective == "one-to-all":
        near, far = 2 * (here - 1), 2 * (nodes - 1) * here
        return np.asarray(
            inside.time_s((near, near * size), here) + between.time_s((far, far * size), topology.workers)
        )
    return all_reduce_time_s(collective, size, topology.workers, _slower(inside, between, topology.workers))


def _slower(one: LinkRate, other: LinkRate, workers: int) -> LinkRate:
    """What paces a pipeline over both links: the lower bandwidth, the longer costs."""
    narrow = min(one, other, key=lambda link: float(link.bandwidth_bytes_per_s * link.ppp_of(workers)))
    return msgspec.structs.replace(
        narrow,
        latency_s=max(one.latency_s, other.latency_s),
        start_s=max(one.start_s, other.start_s),
        ramp_s=max(one.ramp_s, other.ramp_s),
        switch_s=max(one.switch_s, other.switch_s),
    )

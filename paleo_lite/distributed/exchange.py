"""What an all-reduce over a `Topology` takes, and which collective is the fastest there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadValue, UnknownName
from .collectives import COLLECTIVES, Seconds, all_reduce_time_s, check_bytes
from .topology import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

EXACT = tuple(name for name, collective in COLLECTIVES.items() if collective.is_exact)
"""Collectives that leave the whole sum with every worker."""

HALVES = tuple(name for name, collective in COLLECTIVES.items() if collective.has_halves)
"""Collectives that are a reduce-scatter and an all-gather."""

AS_MEASURED = ("ring", "hierarchical")
"""What is chosen from where a link was measured: its figures were fitted to a ring, whatever the library ran."""


def exchange_time_s(topology: Topology, message_bytes: Any, collective: str | None = None) -> Seconds:
    """Seconds of an all-reduce over the whole topology.

    Parameters
    ----------
    message_bytes : float or array
        Bytes that each device contributes.
    collective : str, optional
        One of `COLLECTIVES`; without one the fastest for each message, which `fastest` names.

    Returns
    -------
    float, or ndarray of the shape of `message_bytes`

    Raises
    ------
    UnknownName
        If there is no such collective.
    """
    size = check_bytes(message_bytes)
    if collective is not None and collective not in COLLECTIVES:
        raise UnknownName("collective", collective, COLLECTIVES)
    names = candidates(topology) if collective is None else (collective,)
    seconds = np.min(np.stack([np.asarray(_seconds(topology, size, name)) for name in names]), axis=0)
    return float(seconds) if seconds.ndim == 0 else seconds


def fastest(topology: Topology, messages: Floats) -> str:
    """The collective of `candidates` that takes least for all messages together; of equals the first."""
    return min(candidates(topology), key=lambda name: float(np.sum(exchange_time_s(topology, messages, name))))


def exchanged(topology: Topology, messages: Floats, collective: str | None) -> tuple[Any, Any]:
    """Seconds of several messages together, and the collective: the one asked for, else the fastest for them.

    Messages have the shape (messages,), or (messages, batch sizes): then both answers are arrays over batch sizes.
    """
    names = candidates(topology) if collective is None else (collective,)
    seconds = np.stack([np.sum(exchange_time_s(topology, messages, name), axis=0) for name in names])
    best = seconds.argmin(axis=0)
    if messages.ndim == 1:
        return float(seconds[best]), names[best]
    return np.take_along_axis(seconds, best[None], axis=0)[0], np.array(names)[best]


def half_collective(topology: Topology, collective: str | None, strategy: str) -> str:
    """The collective whose halves are a reduce-scatter and an all-gather."""
    if collective is None:
        return min(HALVES, key=lambda name: float(np.sum(exchange_time_s(topology, 1e8, name))))
    if collective not in HALVES:
        raise BadValue(f"{strategy} scatters and gathers, by {' or '.join(HALVES)}, not by {collective}")
    return collective


def candidates(topology: Topology) -> tuple[str, ...]:
    """The collectives that are chosen from; of equally fast ones the first is taken."""
    links = topology.links.values()
    names = AS_MEASURED if any(link.measured for link in links) else EXACT
    # With one kind of link hierarchical is the ring under another name.
    return names if len(links) > 1 else tuple(name for name in names if name != "hierarchical")


def _seconds(topology: Topology, size: Floats, collective: str) -> Seconds:
    """One collective over a topology's one or two kinds of link, a node's devices sharing its link to other nodes."""
    here, nodes, inside, between = topology.devices_per_node, topology.nodes, topology.inside, topology.between
    if nodes == 1 or between is None:
        return all_reduce_time_s(collective, size, here, inside) if inside else np.zeros_like(size)
    if here == 1 or inside is None:
        return all_reduce_time_s(collective, size, nodes, between)
    return COLLECTIVES[collective].over_two_s(size, here, nodes, inside, between)

"""What an exchange between many devices takes: alpha-beta models of the collectives.

A collective is a number of steps, each of which costs a latency, and the bytes that a device sends over its link, which
carries both directions at once (Hockney 1994). What the reductions compute is left out: it runs at memory bandwidth.
D bytes, n workers; every formula stands with its source.

Sources: PALEO (Qi, Sparks, Talwalkar, ICLR 2017) for one-to-all, tree, butterfly and butterfly mixing (Zhao, Canny, SDM
2013), which have no latency there; Thakur, Rabenseifner, Gropp, IJHPCA 2005, for the latencies and for numbers of
workers that are not a power of two; Patarasuk, Yuan, JPDC 2009, for the ring and the fewest bytes, 2 (n - 1) / n D;
Sanders, Speck, Traeff, Parallel Computing 2009, for the two trees, which NCCL has had since 2.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ..errors import BadValue, UnknownName
from .link_terms import Cost, LinkRate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Seconds = Union[float, "Floats"]

COLLECTIVES = {
    "one-to-all": "a parameter server takes every worker's gradient and sends every worker the sum",
    "tree": "reduction up a binomial tree and broadcast down it, the whole message at every step",
    "butterfly": "recursive doubling: pairs exchange the whole message, log2(n) times",
    "butterfly-mixing": "one of the butterfly's exchanges per step: sums mix over log2(n) steps, no full all-reduce",
    "ring": "reduce-scatter and all-gather around a ring: fewest bytes, 2 (n - 1) latencies",
    "double-tree": "two pipelined binary trees, half of the message on each: 2 D bytes, of order log2(n) latencies",
    "hierarchical": "reduce-scatter in the node, all-reduce between nodes, all-gather in the node",
}
"""All-reduce algorithms by name."""


def all_reduce_time_s(collective: str, message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until every worker has the sum of all workers' messages, over one kind of link.

    Parameters
    ----------
    collective : str
        One of `COLLECTIVES`. On one kind of link ``hierarchical`` is the ring, which is what its parts add up to.
    message_bytes, workers : float and int, or arrays that broadcast
        Bytes that each worker contributes, 0 or more; workers, 1 or more. One worker needs no exchange: 0.
    link : LinkRate

    Returns
    -------
    float, or ndarray of the broadcast shape

    Raises
    ------
    UnknownName
        If there is no such collective.
    BadValue
        If workers are below 1 or not whole, or bytes are negative or not finite.
    """
    if collective not in COLLECTIVES:
        raise UnknownName("collective", collective, COLLECTIVES)
    return _timed(_ALL_REDUCE[collective], message_bytes, workers, link)


def reduce_scatter_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until each worker has its n-th of the sum of all D: n - 1 steps of D / n (Thakur et al. 2005)."""
    return _timed(_ring_once, message_bytes, workers, link)


def all_gather_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until all workers have the D bytes of which each held an n-th: n - 1 steps of D / n (Thakur et al.)."""
    return _timed(_ring_once, message_bytes, workers, link)


def all_to_all_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until each worker has sent an n-th of its D bytes to each: n - 1 exchanges of D / n (Thakur et al.)."""
    return _timed(_ring_once, message_bytes, workers, link)


def broadcast_time_s(message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    """Seconds until D bytes of one worker are everywhere: the faster of binomial tree and two trees.

    The tree takes ceil(log2 n) steps of D (Thakur et al. 2005).
    """

    one, two = (_timed(formula, message_bytes, workers, link) for formula in (_binomial, _two_trees))
    return np.minimum(one, two) if isinstance(one, np.ndarray) else min(one, float(two))


def point_to_point_time_s(message_bytes: Any, link: LinkRate) -> Seconds:
    """Seconds of one message between two devices: one step of D (Hockney 1994)."""
    return _timed(lambda size, n, link: (1, size), message_bytes, 2, link)


def least_bytes(message_bytes: Any, workers: Any) -> Any:
    """Bytes that each worker sends in an all-reduce at least, and with the ring: 2 (n - 1) / n D (Patarasuk, Yuan)."""
    n = check_workers(workers)
    return 2 * (n - 1) / n * check_bytes(message_bytes)


Formula = Callable[[Any, Any, LinkRate], Cost]


def _timed(formula: Formula, message_bytes: Any, workers: Any, link: LinkRate) -> Seconds:
    size, n = check_bytes(message_bytes), check_workers(workers)
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
    if n.dtype.kind not in "iuf" or not np.all((n >= 1) & (n == np.floor(n)) & np.isfinite(n)):
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
    if size.dtype.kind not in "iuf" or not np.all((size >= 0) & np.isfinite(size)):
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


_ALL_REDUCE: dict[str, Formula] = {
    "one-to-all": _one_to_all,
    "tree": _tree,
    "butterfly": _butterfly,
    "butterfly-mixing": _butterfly_mixing,
    "ring": _ring,
    "double-tree": _double_tree,
    "hierarchical": _ring,
}

__all__ = [
    "COLLECTIVES",
    "LinkRate",
    "Seconds",
    "all_gather_time_s",
    "all_reduce_time_s",
    "all_to_all_time_s",
    "broadcast_time_s",
    "butterfly_steps",
    "check_bytes",
    "check_workers",
    "least_bytes",
    "point_to_point_time_s",
    "reduce_scatter_time_s",
]

"""Exchange of tokens between attention groups and the devices of their experts, in the modes of DeepEP's kernels.

Normal kernels send a token once to each other node that holds one of its experts, to the device with the same number
there, which passes it on within the node, once to each device (``csrc/kernels/internode.cu``). Low-latency kernels send
a copy for each expert to its device directly, within nodes over NVLink and between them over the network
(``csrc/kernels/internode_ll.cu``). Results take the same ways back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Mode = Literal["normal", "low-latency"]


class Copies(NamedTuple):
    """Copies of a token that a device sends, on average over devices and tokens."""

    inside: Any  # to other devices of its node
    between: Any  # to other nodes


def normal_copies(active: Any, ranks: Any, nodes: Any) -> Copies:
    """Return the copies of normal kernels: one to each other node, and one to each device."""
    per_node = ranks / nodes
    # A token's own node, and the device at which it arrives, are chosen as often as any other.
    inside = distinct_places(active, ranks) * (per_node - 1) / per_node
    return Copies(inside, distinct_places(active, nodes) * (nodes - 1) / nodes)


def low_latency_copies(active: Any, ranks: Any, nodes: Any) -> Copies:
    """Return the copies of low-latency kernels: one for each expert on another device."""
    per_node = ranks / nodes
    return Copies(active * (per_node - 1) / ranks, active * (nodes - 1) / nodes)


def distinct_places(active: Any, places: Any) -> Any:
    """Return the expected number of distinct places of a token's experts, which are assumed to be balanced.

    The chance that none of k experts is in one of n places is (1 - 1/n)^k.
    """
    return places * (1 - (1 - 1 / places) ** active)


class ExchangeMode(NamedTuple):
    """A mode of the kernels that exchange tokens."""

    copies: Callable[[Any, Any, Any], Copies]  # of active experts, devices and nodes
    prefix: str  # before the name of the exchange, as in the names of tables of its kernels


EXCHANGE_MODES: dict[str, ExchangeMode] = {
    "normal": ExchangeMode(normal_copies, ""),
    "low-latency": ExchangeMode(low_latency_copies, "low-latency "),
}
"""Modes by name."""

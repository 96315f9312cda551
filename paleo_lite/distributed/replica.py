"""Placement of a replica of a network under an engine on the devices of a topology."""

from __future__ import annotations

from ..engines.routing import UNIFORM
from ..engines.step import Placement
from .links import Topology


def place_replica(
    group: Topology | None, devices: int, experts: int = 1, attention_data: int = 1, alpha: float = UNIFORM
) -> Placement:
    """Return how a replica is divided among the devices of a group.

    Parameters
    ----------
    group : Topology or None
        The devices and their links; None for a single device.
    devices : int
        Number of devices.
    experts, attention_data : int
        Expert-parallel degree, and groups that compute attention for sequences of their own.
    alpha : float
        Exponent of the popularity of experts (`paleo_lite.engines.routing`).
    """
    if group is None or devices == 1:
        return Placement(alpha=alpha)
    inside = group.inside if group.inside is not None else group.between
    assert inside is not None
    nodes = max(-(-devices // max(group.devices_per_node, 1)), 1) if group.between is not None else 1
    between = group.between.bandwidth_bytes_per_s if group.between is not None else 0.0
    return Placement(
        tensor=devices // attention_data,
        attention_data=attention_data,
        experts=experts,
        link_bytes_per_s=inside.bandwidth_bytes_per_s,
        nodes=nodes,
        node_link_bytes_per_s=between,
        alpha=alpha,
    )

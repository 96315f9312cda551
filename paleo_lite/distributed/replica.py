"""Placement of a replica of a network under an engine on the devices of a topology."""

from __future__ import annotations

from ..engines.routing import UNIFORM
from ..engines.step import ReplicaDivision
from ..errors import BadValue
from .links import Topology


def check_nodes(topology: Topology, devices: int, attention_data: int, experts: int = 1) -> None:
    """Raise BadValue if an attention group of a replica does not lie within a node."""
    if devices // attention_data > topology.devices_per_node:
        groups = f", in {attention_data} groups of `--attention-data-parallel`" if attention_data > 1 else ""
        remedy = "divide the blocks into stages with `--pipeline`"
        if experts > 1:
            remedy = f"divide attention by sequences with `--attention-data-parallel {devices}`"
        raise BadValue(
            f"`--tensor` must be <= {topology.devices_per_node}, the devices per node (got {devices}{groups}): "
            f"{remedy}, or give the `--link` that joins all of them, if their computers have one"
        )


def place_replica(
    group: Topology | None,
    devices: int,
    experts: int = 1,  # expert-parallel degree
    attention_data: int = 1,  # groups that compute attention for sequences of their own
    alpha: float = UNIFORM,  # exponent of the popularity of experts (`paleo_lite.engines.routing`)
) -> ReplicaDivision:
    """Return how a replica is divided among the devices of a group, which is None for a single device."""
    if group is None or devices == 1:
        return ReplicaDivision(alpha=alpha)
    between, inside = group.between, group.inside or group.between
    assert inside is not None
    # Of nodes with one device each, only a network joins nodes: NVLink or PCIe joins the devices of one.
    is_one_node = between is None or (group.devices_per_node == 1 and between.per != "port")
    between_bytes_per_s = 0.0
    if between is not None and not is_one_node:  # the devices of a node share it
        between_bytes_per_s = between.bandwidth_bytes_per_s * between.moved / group.devices_per_node
    return ReplicaDivision(
        tensor=devices // attention_data,
        attention_data=attention_data,
        experts=experts,
        link_bytes_per_s=inside.bandwidth_bytes_per_s * inside.moved,
        sums_in_switch=inside.sums_in_switch,
        nodes=1 if is_one_node else -(-devices // group.devices_per_node),
        node_link_bytes_per_s=between_bytes_per_s,
        alpha=alpha,
    )

"""The devices of a stage of a replica under an engine, in a topology."""

from __future__ import annotations

from ..engines.division import Division, LinkedDevices
from ..engines.routing import UNIFORM
from ..errors import BadValue
from .links import Topology


def check_nodes(topology: Topology, division: Division) -> None:
    """Raise BadValue if an attention group of a replica does not lie within a node."""
    if division.attention_tensor > topology.devices_per_node:
        devices, attention_groups = division.tensor, division.attention_data_parallel
        groups = f", in {attention_groups} groups of `--attention-data-parallel`" if attention_groups > 1 else ""
        remedy = "divide the blocks into stages with `--pipeline`"
        if division.expert_parallel > 1:
            remedy = f"divide attention by sequences with `--attention-data-parallel {devices}`"
        raise BadValue(
            f"`--tensor` must be <= {topology.devices_per_node}, the devices per node (got {devices}{groups}): "
            f"{remedy}, or give the `--link` that joins all of them, if their computers have one"
        )


def link_devices(
    group: Topology | None,
    division: Division,
    alpha: float = UNIFORM,  # exponent of the popularity of experts (`paleo_lite.engines.routing`)
) -> LinkedDevices:
    """Return the devices of a stage with the links of their group, which is None for a single device."""
    if group is None or division.tensor == 1:
        return LinkedDevices(alpha=alpha)
    between, inside = group.between, group.inside or group.between
    assert inside is not None
    # Of nodes with one device each, only a network joins nodes: NVLink or PCIe joins the devices of one.
    is_one_node = between is None or (group.devices_per_node == 1 and between.per != "port")
    between_bytes_per_s = 0.0
    if between is not None and not is_one_node:  # the devices of a node share it
        between_bytes_per_s = between.bandwidth_bytes_per_s * between.moved / group.devices_per_node
    return LinkedDevices(
        division,
        link_bytes_per_s=inside.bandwidth_bytes_per_s * inside.moved,
        sums_in_switch=inside.sums_in_switch,
        nodes=1 if is_one_node else -(-division.tensor // group.devices_per_node),
        node_link_bytes_per_s=between_bytes_per_s,
        alpha=alpha,
    )

"""How new weights get from the trainer to the engines, and how state makes room on devices that both share.

Every path is bytes over the slowest link on it, plus a time per tensor: engines load the matrices of every expert one
by one. Copies to the host are of memory that is not pinned, which reach a small share of the link.
"""

from __future__ import annotations

from typing import NamedTuple

from ..architectures import Network
from ..counting.kinds import is_grouped_product
from ..distributed.links import Topology
from ..formats import bytes_per_number
from ..machines import Device
from ..timing.offload import host_bandwidth_bytes_per_s
from .frameworks import BROADCAST, GATHERED

TENSOR_S = 0.21e-3
"""Time in which a tensor is gathered, named, handed over and loaded, beside its bytes."""

PORT_SHARE = 0.65
"""Share of the rate of a network port, or of the link inside a node, that a broadcast of whole tensors reaches."""

BROADCAST_SHARE = 0.2
"""Share of the rate of all ports of a node that a broadcast of whole tensors from one of its devices reaches."""

CONVERTED_S = 0.35e-3
"""Time in which a tensor is converted to a narrower format."""

UNPINNED_SHARE = 0.1
"""Share of a link to the host that copies of memory that is not pinned reach: 6 GB/s of PCIe 5.0."""

WAKE_S = 1.5
"""Time in which an engine gives up and takes back its memory, and starts again."""


class Transfer(NamedTuple):
    """The way of the weights of one step."""

    time_s: float
    bytes: float  # that the busiest device receives or sends
    tensors: int
    bytes_per_s: float  # rate of the slowest link on the way


def count_tensors(network: Network) -> int:
    """Return the tensors of a checkpoint: the matrices of every expert are tensors of their own."""
    return sum(shape[0] if is_grouped_product(layer) else 1 for layer in network.layers for shape in layer.weights)


def transfer_weights(
    network: Network,
    precision: str,  # of the rollouts, in which weights travel
    topology: Topology,  # all devices of trainer and engines
    path: str,  # one of `frameworks.TRANSFERS`
    rollout_tensor: int,
    *,
    senders: int,  # devices of the trainer
    lora_share: float = 1.0,  # share of the parameters that travels
) -> Transfer:
    """Return how new weights reach the engines."""
    tensors = max(round(count_tensors(network) * min(lora_share * 20, 1.0)), 1)
    number_bytes = max(bytes_per_number(precision), 1.0)
    total_bytes = network.parameters * number_bytes * lora_share
    inside, between = topology.inside, topology.between
    inside_rate = None if inside is None else inside.bandwidth_bytes_per_s
    port_rate = None
    if between is not None and topology.nodes > 1:
        port_rate = between.bandwidth_bytes_per_s / topology.devices_per_node
    if path == GATHERED:
        # Every device needs all tensors, of which those of other nodes come over its port.
        rate = port_rate or inside_rate
        moved = total_bytes * (1 - 1 / max(senders, 1))
    elif path == BROADCAST:
        node_rate = None if port_rate is None else port_rate * topology.devices_per_node
        rate, moved = (inside_rate if node_rate is None else node_rate * BROADCAST_SHARE / PORT_SHARE), total_bytes
    else:  # parts of all senders to all engines at once
        rate, moved = port_rate or inside_rate, total_bytes / min(senders, max(rollout_tensor, 1))
    seconds = 0.0 if rate is None else moved / (PORT_SHARE * rate)
    tensor_s = TENSOR_S + (CONVERTED_S if number_bytes < 2 else 0.0)
    return Transfer(seconds + tensors * tensor_s, moved, tensors, rate or 0.0)


def swap_s(device: Device, state_bytes: float) -> float:
    """Return the time in which state of one device goes to the host and comes back."""
    if not state_bytes:
        return 0.0
    return 2 * state_bytes / (UNPINNED_SHARE * host_bandwidth_bytes_per_s(device))

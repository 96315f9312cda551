"""What the devices that share a block send each other for one micro-batch, beside the replicas' gradients.

Devices are numbered as Megatron-LM does it: those that share matrices next to each other, then those of a ring, then
replicas; those that share experts stand side by side, too.
"""

from __future__ import annotations

import msgspec

from .collectives import LinkRate, all_to_all_time_s, point_to_point_time_s
from .exchange import exchange_time_s
from .job import Split
from .pieces import Piece
from .topology import Topology


def exchanges_s(piece: Piece, topology: Topology, split: Split, longer: float) -> list[tuple[float, float]]:
    """Seconds of each kind of exchange, and what of them is waited for; attention takes `longer` than it is said to."""
    forwards = 2 if split.recompute == "full" else 1
    return [
        _of_matrices(piece, topology, split, forwards),
        *(_of_ring(piece, topology, split.tensor, split.context, longer, forwards) if split.context > 1 else ()),
        *(_of_experts(piece, topology, split.experts, forwards) if split.experts > 1 else ()),
    ]


def _of_matrices(piece: Piece, topology: Topology, split: Split, forwards: int) -> tuple[float, float]:
    """Sums and gathers among devices that share matrices (Shoeybi et al. 2019): nothing hides them."""
    group = apart(topology, 1, split.tensor)
    sent: dict[float, float] = {}
    for share, size in (*piece.forward_sent * forwards, *piece.backward_sent):
        sent[size] = sent.get(size, 0.0) + share  # few sizes, many times each
    seconds = sum(share * float(exchange_time_s(group, size)) for size, share in sent.items())
    return seconds, seconds


def _of_ring(
    piece: Piece, topology: Topology, stride: int, devices: int, longer: float, forwards: int
) -> list[tuple[float, float]]:
    """Keys and values go around a ring, backward with their gradients (Liu et al. 2023, Ring Attention, section 3).

    Of n devices each computes n parts of its attention, and the next part comes meanwhile, n - 1 times.
    """
    hops = devices - 1
    ways = [(piece.ring_bytes, piece.attention_s)] * forwards + [(2 * piece.ring_bytes, piece.attention_backward_s)]
    exchanges = []
    for size, attention_s in ways:
        hop = _ring_hop_s(topology, stride, devices, size)
        exchanges.append((hops * hop, hops * max(hop - attention_s * longer / devices, 0.0)))
    return exchanges


def _ring_hop_s(topology: Topology, stride: int, devices: int, size: float) -> float:
    """A message from every device of a ring to the next; where a ring leaves the node, as many do as it holds."""
    inside = topology.inside
    near = float(point_to_point_time_s(size, inside)) if inside and topology.devices_per_node > stride else 0.0
    if stride * devices <= topology.devices_per_node or topology.between is None:
        return near
    return max(near, float(point_to_point_time_s(size * stride, topology.between)))


def _of_experts(piece: Piece, topology: Topology, devices: int, forwards: int) -> list[tuple[float, float]]:
    """Rows to their experts and back, in the backward pass their gradients (Lepikhin et al. 2021, GShard)."""
    if not piece.routed_bytes:
        return []
    seconds = (forwards + 1) * all_to_all_s(apart(topology, 1, devices), piece.routed_bytes)
    return [(seconds, seconds)]


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
    between: LinkRate | None = topology.between
    assert between is not None
    share = inside / topology.devices_per_node
    shared = msgspec.structs.replace(between, bandwidth_bytes_per_s=between.bandwidth_bytes_per_s * share)
    return Topology(topology.device, inside, topology.inside, devices // inside, shared)


__all__ = ["all_to_all_s", "apart", "exchanges_s"]

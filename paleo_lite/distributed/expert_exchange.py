"""Exchange of tokens between expert-parallel devices: an all-to-all in two levels, by the library that performs it.

A token has a row for each of its experts. NCCL's all-to-all sends every row. Libraries for mixtures send a token once
to each node and once to each device that has some of its experts, and sum the results on the way back (DeepEP,
DeepSeek-AI 2025; HybridEP, NVIDIA 2025).
"""

from __future__ import annotations

from typing import NamedTuple

from ..engines.exchanges import distinct_places
from .collectives import all_to_all_time_s, subgroup_topology
from .links import Topology


class Dispatcher(NamedTuple):
    """A library that sends tokens to their experts and back."""

    merges_copies: bool  # whether a token is sent once to each node and device, instead of once for each of its experts
    # Reads and writes of all rows by kernels that bring them into order before or after an exchange.
    passes_over_rows: float
    # Buffers with room for the tokens of every expert-parallel device, which are allocated once: HybridEP's for
    # dispatch and combination (`csrc/hybrid_ep`, `max_num_of_tokens`).
    buffers_per_device: int
    buffers_per_row: int  # buffers with room for the rows of a device, of which it has one more while it exchanges them
    megatron_options: str  # options of Megatron-LM that choose it
    description: str


DISPATCHERS = {
    "alltoall": Dispatcher(
        merges_copies=False,
        # There by device (1 written) and by expert (2); back by device (2) and by token, which their sum contains.
        passes_over_rows=2.5,
        buffers_per_device=0,
        buffers_per_row=1,
        megatron_options="--moe-token-dispatcher-type alltoall",
        description="NCCL's all-to-all: a row per expert",
    ),
    "deepep": Dispatcher(
        merges_copies=True,
        passes_over_rows=0.0,
        buffers_per_device=0,
        buffers_per_row=1,
        megatron_options="--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep",
        description="DeepEP: a token once per node and device",
    ),
    "hybridep": Dispatcher(
        merges_copies=True,
        passes_over_rows=0.0,
        buffers_per_device=2,
        buffers_per_row=0,
        megatron_options="--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
        description="HybridEP: as DeepEP, within and between racks",
    ),
}
"""Libraries by the name that ``--experts dispatch`` takes."""


def distinct_fraction(experts_per_token: float, places: int) -> float:
    """Return the expected number of distinct places of a token's experts, over the number of experts."""
    return float(distinct_places(experts_per_token, places) / experts_per_token)


def expert_exchange_s(
    topology: Topology,
    devices: int,  # expert-parallel devices, which are adjacent, or `expert_tensor` devices apart
    row_bytes: float,  # of all rows of a device: tokens times experts per token times hidden size
    experts_per_token: float,  # active experts of a token
    dispatcher: Dispatcher,
    # Devices that divide every expert: each exchanges rows of its own over its share of the links of the node.
    expert_tensor: int = 1,
) -> float:
    """Return the time in which every device sends its tokens to their experts, or back.

    Transfers inside nodes and between them take place at the same time. What arrives from other nodes is passed on
    inside the node.
    """
    group = subgroup_topology(topology, expert_tensor, devices)
    inside_bytes = between_bytes = row_bytes
    if dispatcher.merges_copies:
        inside_bytes *= distinct_fraction(experts_per_token, devices)
        between_bytes *= distinct_fraction(experts_per_token, group.nodes)
    elif group.nodes > 1:
        inside_bytes /= group.nodes  # rows for other nodes go to their devices directly
    inside_s = between_s = 0.0
    if group.inside is not None and group.devices_per_node > 1:
        inside_s = float(all_to_all_time_s(inside_bytes, group.devices_per_node, group.inside))
    if group.between is not None and group.nodes > 1:
        node_bytes = between_bytes * group.devices_per_node
        between_s = float(all_to_all_time_s(node_bytes, group.nodes, group.between))
    return max(inside_s, between_s)

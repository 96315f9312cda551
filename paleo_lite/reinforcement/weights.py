"""How new weights get from the trainer to the engines, and how state makes room on devices that both share.

Every path is bytes over the slowest link on it, plus a time per tensor: engines load the matrices of every expert one
by one. Copies to the host are of memory that is not pinned, which reach a small share of the link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..architectures import Network
from ..counting.kinds import is_grouped_product
from ..counting.layer import Layer
from ..distributed.links import Topology
from ..distributed.step_plan import COHERENT_BYTES_PER_S
from ..formats import bytes_per_number
from ..machines import Device, read_links
from ..timing.offload import host_bandwidth_bytes_per_s
from .constants import RlConstants
from .frameworks import BROADCAST, GATHERED, PAIRED, RESHARDED


class WeightTransfer(NamedTuple):
    """The way of the weights of one step."""

    time_s: float
    bytes: float  # that are handed over to the busiest device, or by it
    tensors: int
    bytes_per_s: float  # rate of the slowest link on the way
    gathered_bytes: float = 0.0  # in fp32 that a device of the trainer gathers before, of all times together
    wakes_engine: bool = True  # whether an engine on the same devices gets new weights, for which it wakes anew


class TransferRoute(NamedTuple):
    """What a framework and its engines make of a transfer."""

    path: str  # one of `frameworks.TRANSFERS`
    senders: int  # devices of the trainer
    rollout_tensor: int
    master_gathers: int = 0  # times that a trainer gathers its weights in fp32 beforehand; 0 if it sends those it has
    stacks_experts: bool = False  # whether the matrices of all experts of a block are one tensor where parts are sent


def count_tensors(layers: Iterable[Layer]) -> int:
    """Return the tensors of a checkpoint: the matrices of every expert are tensors of their own."""
    return sum(shape[0] if is_grouped_product(layer) else 1 for layer in layers for shape in layer.weights)


def transfer_weights(
    network: Network,
    precision: str,  # of the rollouts, in which weights travel
    topology: Topology,  # all devices of trainer and engines
    route: TransferRoute,
    constants: RlConstants,
    *,
    adapters: Sequence[Layer] = (),  # layers of the adapters where they alone are transferred
) -> WeightTransfer:
    """Return how new weights reach the engines.

    What a trainer gathers in fp32 goes over the link, and into memory which it reserves and frees. Engines on the same
    devices then take the weights without the link.
    """
    tensors = count_tensors(adapters or network.layers)
    if route.path == RESHARDED and route.stacks_experts and not adapters:
        tensors = sum(len(layer.weights) for layer in network.layers)
    parameters = sum(layer.parameters for layer in adapters) if adapters else network.parameters
    number_bytes = max(bytes_per_number(precision), 1.0)
    received_bytes = parameters * number_bytes
    if route.path == RESHARDED:
        received_bytes /= min(route.senders, max(route.rollout_tensor, 1))
    elif route.path == PAIRED and not adapters:
        received_bytes = _paired_parameters(network, route.rollout_tensor) * number_bytes
    rate = _transfer_rate(topology, route.path, constants)
    # A single device has all weights.
    gathered_bytes = float(route.master_gathers * MASTER_BYTES * parameters) if rate else 0.0
    linked_bytes = gathered_bytes if route.path == GATHERED and gathered_bytes else received_bytes
    seconds = linked_bytes / rate + gathered_bytes / constants.gathered_master_bytes_per_s if rate else 0.0
    # Slices of tensors that go straight to their places are neither gathered nor named, but matched beforehand.
    tensor_s = constants.resharded_tensor_s if route.path == RESHARDED else constants.tensor_s
    if number_bytes < 2:
        tensor_s += constants.converted_s
    time_s = constants.handover_s + seconds + tensors * tensor_s
    return WeightTransfer(time_s, received_bytes, tensors, rate, gathered_bytes)


def _paired_parameters(network: Network, rollout_tensor: int) -> float:
    """Return the parameters that a device of an engine gets: its part of the experts, and all others.

    vLLM cuts the others itself when it loads them. NeMo-RL publishes 69.95 GiB for each of 32 devices of DeepSeek-V3
    (docs/guides/checkpoint-engine-refit.md at 7ea279a).
    """
    experts = sum(layer.parameters for layer in network.layers if is_grouped_product(layer))
    return network.parameters - experts + experts / max(rollout_tensor, 1)


class OffloadedState(NamedTuple):
    """Seconds in which state of the trainer comes to its device for a phase and leaves it again."""

    parameters_s: float = 0.0
    optimizer_s: float = 0.0


UNIT_PASSES_OF_GATHERED_BLOCKS = 2
"""Forward passes whose time the host takes to gather an adapter, read it and free it again."""

MASTER_BYTES = 4
"""Bytes of a number of the weights of a trainer in fp32."""


def gather_blocks(
    network: Network,
    adapters: Sequence[Layer],
    constants: RlConstants,
    wake_s: float,  # time in which an engine takes the weights that it keeps back from the host
) -> WeightTransfer:
    """Return how adapters that are units of FSDP reach an engine on the same devices, which keeps the other weights.

    verl gathers whole blocks, of which it takes the adapters (`layered_summon_lora_params`, verl/utils/fsdp_utils.py).
    The engine sleeps with its weights in the memory of the host, and takes them back before it gets the adapters.
    """
    gathered_bytes = float(MASTER_BYTES * network.parameters)
    gathered_s = gathered_bytes / constants.gathered_blocks_bytes_per_s
    units_s = UNIT_PASSES_OF_GATHERED_BLOCKS * constants.unit_s * len(adapters)
    sent_bytes = MASTER_BYTES * float(sum(layer.parameters for layer in adapters))
    return WeightTransfer(
        constants.handover_s + wake_s + gathered_s + units_s,
        sent_bytes,
        count_tensors(adapters),
        constants.gathered_blocks_bytes_per_s,
        gathered_bytes,
        wakes_engine=False,
    )


def _transfer_rate(topology: Topology, path: str, constants: RlConstants) -> float:
    """Return the bytes per second of a way, of its slowest link; 0 on a single device.

    Inside a node devices exchange at the rate of their own link. From other nodes each receives over its port, but a
    broadcast from one device uses the ports of its whole node.
    """
    inside, between = topology.inside, topology.between
    if between is None or topology.nodes == 1:
        return 0.0 if inside is None else constants.port_share * inside.bandwidth_bytes_per_s
    node_rate = between.bandwidth_bytes_per_s
    if path == BROADCAST:
        return constants.broadcast_share * node_rate
    share = constants.port_share if path == GATHERED else constants.resharding_share
    return share * node_rate / topology.devices_per_node


def has_host_link(device: Device) -> bool:
    """Return whether the link of a device to its host is on record."""
    return any(read_links().link[attached.link].kind == "host" for attached in device.links)


COPYING_DEVICES = 8
"""Devices of a node that copy at the same time where `RlConstants.unpinned_share` holds."""


def has_coherent_host(device: Device) -> bool:
    """Return whether a device shares the memory of its host over NVLink-C2C or a link as fast."""
    links = [read_links().link[attached.link] for attached in device.links]
    return any(link.kind == "host" and link.bandwidth_bytes_per_s >= COHERENT_BYTES_PER_S for link in links)


def swap_s(device: Device, state_bytes: float, constants: RlConstants, devices: int = COPYING_DEVICES) -> float:
    """Return the time in which state of one device goes to the host and comes back, as that of its node's devices does.

    A host copies what is not pinned at a rate of its own, which fewer devices share; coherent ones have no such limit.
    """
    if not state_bytes:
        return 0.0
    share = constants.unpinned_share
    if not has_coherent_host(device):
        share = min(share * COPYING_DEVICES / min(devices, COPYING_DEVICES), 1.0)
    return 2 * state_bytes / (share * host_bandwidth_bytes_per_s(device))

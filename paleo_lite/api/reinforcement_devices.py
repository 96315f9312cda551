"""The devices of a step of reinforcement learning: which they are, and which of them train and generate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..distributed.links import Topology, device_link
from ..distributed.platforms import Computer, find_platform, is_topology, usual_computer
from ..distributed.request import ClusterRequest
from ..errors import BadValue
from ..files import to_paths
from ..machines import Device, Price, find_device
from ..timing.energy import with_power_limit

if TYPE_CHECKING:
    from ..questions.rl_options import Rl


class Devices(NamedTuple):
    """The devices of a step."""

    device: Device
    topology: Topology  # of all devices
    trainer: int  # number of devices of the trainer
    rollouts: int  # number of devices of the engines; those of the trainer where they share them
    price: Price | None

    @property
    def is_colocated(self) -> bool:
        """Whether trainer and engines share all devices."""
        return self.trainer == self.rollouts == self.topology.workers

    @property
    def total(self) -> int:
        """Number of all devices."""
        return self.topology.workers


def find_devices(question: Rl) -> Devices:
    """Return the devices of trainer and engines; raise BadValue if there are fewer than asked for."""
    files = to_paths(question.hardware_files)
    if question.gpu is None and question.platform is None:
        raise BadValue("give the device with `--gpu`, such as `--gpu h100-sxm`, or the computer with `--platform`")
    gpu: Any = question.gpu  # a single one
    device = None if gpu is None else find_device(gpu, files)
    platform, described = question.platform, None
    if platform is not None and is_topology(platform):
        platform, described = None, platform
    elif platform is None and device is not None and usual_computer(device.id) is None:
        described = assumed_nodes(device, question.workers or 1)
    request = ClusterRequest(question.workers, platform=platform, topology=described)
    topology = request.build_topology(files, device, uses_suggested_link=True)
    if described is not None and question.platform is None:
        topology = msgspec.structs.replace(topology, assumptions=(described,))
    if device is None and topology.device is not None:
        device = find_device(topology.device, files)
    if device is None:
        raise BadValue(f"`--platform {question.platform}` names no device: give it with `--gpu`, too")
    if topology.device is not None and topology.device != device.id:
        raise BadValue(
            f"`--gpu` must be {topology.device}, the device of the platform, or be left out (got {device.id})"
        )
    if question.power_limit is not None:
        device = with_power_limit(device, question.power_limit)
    count = question.workers or topology.workers
    topology = topology.with_workers(count)
    price = None
    if platform is not None:
        computer = find_platform(platform)
        price = computer.price_of_device if isinstance(computer, Computer) else None
    apart = question.rollout_workers
    if apart is None:
        if question.used_steps_off:
            raise BadValue("`--steps-off` needs devices of their own for rollouts: give `--rollout-workers`")
        return Devices(device, topology, count, count, price)
    if apart >= count:
        raise BadValue(
            f"`--rollout-workers` must leave devices of the {count} of `--workers` to the trainer (got {apart})"
        )
    return Devices(device, topology, count - apart, apart, price)


USUAL_NODE = 8
"""Devices of a node where no computer of a device is on record."""

USUAL_NETWORK = "8x infiniband-ndr"
"""Network of such nodes: a port for every device."""


def assumed_nodes(device: Device, workers: int) -> str:
    """Return nodes of devices without a usual computer, as a description of a topology."""
    per_node = math.gcd(workers, USUAL_NODE)
    inside = f"{per_node}x {device.id} @ {device_link(device)}" if per_node > 1 else device.id
    if workers == per_node:
        return inside
    return f"{inside}, {workers // per_node} nodes @ {USUAL_NETWORK}"


def part_of(topology: Topology, workers: int) -> Topology:
    """Return some of the devices of a topology, in equal parts of its nodes where they fill no whole ones."""
    per_node = topology.devices_per_node
    if workers <= per_node or workers % per_node == 0:
        return topology.with_workers(workers)
    equal = math.gcd(workers, per_node)
    return msgspec.structs.replace(topology, devices_per_node=equal, nodes=workers // equal)

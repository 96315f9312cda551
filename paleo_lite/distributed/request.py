"""What is asked of many devices: their number, how they are joined, their batch, and how they divide a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..counting.work import check_batch_size
from ..errors import BadValue
from ..machines import Device, read_links
from ..timing.budget import Amount
from ..timing.facility import Facility
from ..units import parse_range
from .links import Topology, device_link, flat_topology, link_inside_nodes, link_rate
from .platforms import Platform, computers_with, find_platform, parse_topology, usual_computer
from .settings import ScaledBatch

DEFAULT_BATCH_PER_WORKER = 32
"""Samples per worker if no batch size is given."""


class Feed(NamedTuple):
    """How the samples of training reach the devices of a node."""

    storage: str = "memory"
    decode: float | str | None = None  # samples per second that a node decodes, such as "3,000/s"
    pageable: bool = False  # whether one process copies the samples from pageable memory


class ClusterRequest(msgspec.Struct, frozen=True):
    """What is asked of many devices: the options of several records that concern them, each as a single value."""

    # Numbers of devices: 8, [1, 2, 4] or a range as text; None for all devices of the topology.
    workers: int | str | Sequence[int] | None = None
    # One of the three says how devices are joined: a link between all of them, a topology, or a computer.
    link: str | None = None
    topology: str | None = None
    platform: str | None = None
    batch_size: int | None = None  # samples per step: per device in weak scaling, of all devices in strong scaling
    scaling: str = "weak"
    strategy: str = "data"
    advise: str | None = None  # what strategies are ranked by; None for the times of one strategy
    ppp_comm: float | None = None  # fraction of the bandwidth of links that is reached
    feed: Feed | None = None
    measured: Sequence[str] = ()  # the user's own measurements, such as "16 workers: 5,900 samples/s"
    amount: Amount = Amount()
    price: float | str | None = None
    price_of: str | None = None
    facility: Facility | None = None
    names_micro_batch: bool = False  # whether a note names a larger micro-batch that fits and is faster
    states_micro_batch: bool = False  # whether the size of micro-batches is asked for
    names_remedies: bool = True  # whether a note says what makes a run fit that does not

    def worker_counts(self) -> list[int]:
        """Return the numbers of workers; an empty list stands for all devices of the topology.

        Raise BadValue if one is < 1.
        """
        if self.workers is None:
            return []
        return parse_range(self.workers, "workers")

    def resolve_batch(self, max_workers: int) -> ScaledBatch:
        """Return the batch, or its default, which may depend on the largest number of workers."""
        size = self.batch_size
        if size is not None:
            check_batch_size(size)
        else:
            size = DEFAULT_BATCH_PER_WORKER if self.scaling == "weak" else DEFAULT_BATCH_PER_WORKER * max_workers
        return ScaledBatch(size, self.scaling)

    def build_topology(
        self,
        hardware_files: Sequence[Path] = (),
        device: Device | None = None,  # unless the topology or platform names it
        *,
        # Whether a device without a usual computer is joined to others by its fastest link, as under an engine.
        uses_suggested_link: bool = False,
    ) -> Topology:
        """Return the topology that a link, a topology or a platform describes, or that is usual for the device.

        Raise BadValue if more than one of them is given, or none for several workers of a device without a usual
        computer, or if there are more workers than devices.
        """
        counts = self.worker_counts()
        if sum(source is not None for source in (self.link, self.topology, self.platform)) > 1:
            raise BadValue("give only one of `--link` and `--platform`")
        platform = None if self.platform is None else find_platform(self.platform)
        if isinstance(platform, Platform) and self.ppp_comm is not None:
            raise BadValue("the links of this platform were measured: leave out `--communication ppp` or `--platform`")
        if platform is not None or self.topology is not None:
            if platform is not None:
                topology = platform.topology(max(counts, default=0), self.ppp_comm)
            else:
                topology = parse_topology(
                    self.topology or "", ppp=self.ppp_comm, hardware_files=hardware_files, device=device
                )
            if counts and max(counts) > topology.workers:
                raise BadValue(
                    f"`--workers` must be <= {topology.workers}, the devices of {topology.describe()} "
                    f"(got {max(counts)})"
                )
            return topology
        if not counts:
            raise BadValue(
                "options of several devices need their number: give `--workers`, such as 1, 8 or 1,2,4,...,128, or a "
                "topology as `--platform`"
            )
        if self.link is not None:
            name, assumed = link_inside_nodes(self.link, device)
            topology = flat_topology(link_rate(name, self.ppp_comm), max(counts))
            return msgspec.structs.replace(topology, assumptions=(assumed,) if assumed else ())
        if max(counts) == 1:
            return Topology(None, 1, None, 1, None)
        computer = None if device is None else usual_computer(device.id)
        if computer is None and uses_suggested_link and device is not None and device.links:
            return flat_topology(link_rate(device_link(device), self.ppp_comm), max(counts))
        if computer is None:
            link = _suggested_link(device)
            example = _suggested_topology(_single_device(device), link, max(counts))
            known = "" if device is None else f", and no usual computer of {device.name} is on record"
            named = [] if device is None else computers_with(device.id, max(counts))
            platforms = named[:_SUGGESTED_PLATFORMS] or ["NAME"]
            choices = [f"`--link {link}`", f"`--platform '{example}'`", *(f"`--platform {name}`" for name in platforms)]
            raise BadValue(f"several workers need a link{known}: give {', '.join(choices[:-1])} or {choices[-1]}")
        topology = computer.topology(max(counts), self.ppp_comm)
        return msgspec.structs.replace(topology, assumptions=(computer.name, *topology.assumptions))


_DEVICES_OF_A_NODE = 8

_SUGGESTED_PLATFORMS = 3


def _single_device(device: Device | None) -> str:
    """Return the ID of what a topology counts: a die of a board that has several."""
    if device is None:
        return "k40m"
    return device.id if device.parts is None else device.parts.device


def _suggested_topology(name: str, link: str, workers: int) -> str:
    """Return the text of a topology of a number of workers, as an example: one node of few, several of many."""
    if workers <= _DEVICES_OF_A_NODE:
        return f"{workers}x {name} @ {link}"
    per_node = math.gcd(workers, _DEVICES_OF_A_NODE)
    return f"{per_node}x {name} @ {link}, {workers // per_node} nodes @ infiniband"


def link_to_give(device: Device) -> str | None:
    """Return the link that several devices need to be given; None where a usual computer joins them."""
    return None if usual_computer(device.id) is not None else _suggested_link(device)


def _suggested_link(device: Device | None) -> str:
    """Return the name of a device's link to other devices, else to its host; without links, that of Ethernet."""
    if device is None or not device.links:
        return "ethernet20"
    links = read_links().link
    to_devices = [attached.link for attached in device.links if links[attached.link].kind == "device"]
    return to_devices[0] if to_devices else device.links[0].link

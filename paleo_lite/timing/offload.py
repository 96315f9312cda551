"""Offloading of optimizer state to the memory of the host or to NVMe drives: transfers, and the update on the host.

In ZeRO-Offload (Ren et al. 2021) gradients go to the host during the backward pass, the processor updates fp32 weights
and state there, and the new 16-bit weights come back. ZeRO-Infinity (Rajbhandari et al. 2021) keeps the state on NVMe
drives, from which every update reads it and to which it writes it.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import BadValue
from ..machines import Device, read_links
from ..units import format_si

LINK_SHARE = 0.771
"""Share of a host link's data-sheet bandwidth that copies from pinned memory reach: 12.15 of 15.75 GB/s on a P100 PCIe
(bandwidthTest, mpicbg-scicomp/gearshifft pull request 82). That is one large copy; blocks of a cache, which a server
reads, reach less (`paleo_lite.serving.stores.HOST_SHARE`)."""

HOST_UPDATE_BYTES_PER_S = 112e9
"""Bytes of weights, gradients and state per second that the processors of a host update: the CPU-Adam of ZeRO-Offload
takes 0.25 s for 10^9 parameters of 28 bytes each on two Xeon Platinum 8168 (Ren et al. 2021, table 4)."""

NVME_LINK = "nvme-pcie4-x4"
"""Link of the NVMe drive of a host, in ``hardware/links.toml``."""


class HostTransfers(NamedTuple):
    """Times of a step with offloaded optimizer state, in seconds."""

    gradients_s: float  # copy of the gradients to the host, which the backward pass hides
    update_s: float  # update on the host, or the traffic of the NVMe drive if that takes longer
    parameters_s: float  # copy of the new parameters to the device

    def exposed_s(self, backward_s: float) -> float:
        """Return the time that a step takes longer, given the time of its backward pass."""
        return max(self.gradients_s - backward_s, 0.0) + self.update_s + self.parameters_s


def host_bandwidth_bytes_per_s(device: Device) -> float:
    """Return the bandwidth that copies between a device and its host reach, in one direction.

    Raise BadValue if the device shares its memory with the host, or its hardware file names no host link.
    """
    bandwidth = _link_bandwidth(device, "host")
    if bandwidth is not None:
        return LINK_SHARE * bandwidth
    if device.shares_host_memory:
        raise BadValue(
            f"`--offload` needs a host with memory of its own: {device.name} shares its memory with the host"
        )
    raise BadValue(f"`--offload` needs a link to a host, and the hardware file of {device.name} names none")


def peer_bandwidth_bytes_per_s(device: Device) -> float | None:
    """Return the data-sheet bandwidth between devices of a node, in one direction; None if it is unknown.

    Without a link between devices they communicate over their host links.
    """
    return _link_bandwidth(device, "device") or _link_bandwidth(device, "host")


def _link_bandwidth(device: Device, kind: str) -> float | None:
    """Return the bandwidth of the first link of a kind; None without any."""
    links = read_links().link
    for attached in device.links:
        if attached.link in links and links[attached.link].kind == kind:
            return links[attached.link].bandwidth_bytes_per_s
    return None


def host_transfers(
    device: Device,
    offload: str,  # where the state is kept: "cpu" or "nvme"
    *,
    gradient_bytes: float,  # of gradients that go to the host
    parameter_bytes: float,  # of parameters that come back
    update_bytes: float,  # that the update reads and writes in the memory of the host
    state_bytes: float,  # of the state and master weights
    devices_per_host: int = 1,  # which share the processors and the drive of a host
) -> HostTransfers:
    """Return the times of the transfers and of the update on the host."""
    bandwidth = host_bandwidth_bytes_per_s(device)
    update_s = update_bytes * devices_per_host / HOST_UPDATE_BYTES_PER_S
    if offload == "nvme":
        drive_bytes_per_s = LINK_SHARE * read_links().link[NVME_LINK].bandwidth_bytes_per_s
        update_s = max(update_s, 2 * state_bytes * devices_per_host / drive_bytes_per_s)
    return HostTransfers(gradient_bytes / bandwidth, update_s, parameter_bytes / bandwidth)


OFFLOADED = "offload: "
"""Beginning of the note about what is kept in the memory of the host."""


def offload_note(offload: str, state_bytes: float) -> str:
    """Return the note about the memory that the host needs."""
    destination = "the memory of the host" if offload == "cpu" else "NVMe drives"
    return f"{OFFLOADED}{format_si(state_bytes, 'B')} of gradients and optimizer state are in {destination}"

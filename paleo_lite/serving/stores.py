"""Stores below the memory of the devices, which tiers of the prefix cache are in, and how fast they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import BadValue
from ..machines import Device, read_links
from ..units import format_si

HOST_SHARE = 43 / 63
"""Share of the bandwidth of its host link at which a device reads the host's memory.

vLLM 0.14 on an H100 over PCIe 5: 3.0 ms per 1,000 tokens of Llama 3.1 8B, of 131,072 bytes, are 43 of 63 GB/s. These
are many blocks of a cache, which a server reads; `paleo_lite.timing.offload.LINK_SHARE`, of one large copy from pinned
memory by itself, is larger.
"""

USUAL_HOST_LINK = "pcie5-x16"
"""Host link of devices whose hardware file names none."""


def host_bytes_per_s(device: Device) -> float:
    """Return the bytes that a device reads from the host's memory per second.

    A device that shares that memory copies over no link: its memory reads and writes every byte.
    """
    if device.shares_host_memory:
        return device.bandwidth_bytes_per_s / 2
    return HOST_SHARE * read_links().link[_host_link(device) or USUAL_HOST_LINK].bandwidth_bytes_per_s


def _host_link(device: Device) -> str | None:
    """Return the link between a device and its host; None where none is on record."""
    links = read_links().link
    named = (attached.link for attached in device.links if attached.link in links)
    return next((name for name in named if links[name].kind == "host"), None)


def host_link_notes(device: Device) -> list[str]:
    """Return a note where a device reads its host's memory over a link that is only assumed."""
    if device.shares_host_memory or _host_link(device) is not None:
        return []
    return [
        f"no link between {device.name} and its host is on record: it is taken to read the memory of the host at "
        f"{format_si(host_bytes_per_s(device), 'B/s', 3)}, as over {USUAL_HOST_LINK}"
    ]


class StoreKind(NamedTuple):
    """A kind of store."""

    bytes_per_s: float | None  # at which a replica reads; None where each device does, over its host link
    is_shared: bool  # whether all replicas have one of it
    source: str


STORES = {
    "host": StoreKind(None, False, "`HOST_SHARE` of the link of each device"),
    "disk": StoreKind(7e9, False, "data sheets of NVMe drives over four lanes of PCIe 4"),
    "store": StoreKind(11.1e9, True, "llm-d: 4 GB in 360 ms over 200 Gb/s"),
}
"""Kinds of stores by name, from the fastest to the slowest."""


class CacheStore(NamedTuple):
    """A store of a deployment."""

    name: str
    size_bytes: float  # of a replica, or of all if it is shared
    bytes_per_s: float  # at which a replica reads
    is_shared: bool
    is_read_by_devices: bool  # whether each device reads for itself
    has_own_bandwidth: bool  # whether the question states it


def make_stores(settings: Mapping[str, float], device: Device, devices: int) -> tuple[CacheStore, ...]:
    """Return the stores of replicas of some devices.

    Raise BadValue for a bandwidth of none, or the memory of a host that is that of the devices.
    """
    stores = []
    for name, kind in STORES.items():
        bandwidth = settings.get(f"{name}-bandwidth")
        if name not in settings:
            if bandwidth is not None:
                raise BadValue(f"`--cache-tiers {name}-bandwidth` needs {name}=SIZE")
            continue
        if name == "host" and device.shares_host_memory:
            raise BadValue(
                f"`--cache-tiers host=SIZE` needs a host with memory of its own: {device.name} shares its memory with "
                "the host, where `--memory-fraction` says how much the cache has"
            )
        bytes_per_s = kind.bytes_per_s or devices * host_bytes_per_s(device)
        is_read_by_devices = kind.bytes_per_s is None
        is_given = bandwidth is not None
        stores.append(
            CacheStore(name, settings[name], bandwidth or bytes_per_s, kind.is_shared, is_read_by_devices, is_given)
        )
    return tuple(stores)

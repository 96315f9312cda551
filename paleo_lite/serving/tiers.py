"""Tiers of the prefix cache below the memory of the devices: host memory, disk, and a store of all replicas.

Computed blocks are written through to the first tier, and evicted from each tier to the next
(SGLang's HiCache, LMCache, vLLM's offloading connector). What is found there is read before the iteration that needs
it: reading and computing do not overlap usefully (vLLM, blog of 2026-01-08: its rates at several shares of hits are
those of both one after the other within 3%).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import BadValue


class StoreKind(NamedTuple):
    """A kind of store."""

    bytes_per_s: float  # at which a replica reads, of host memory at which each device does
    is_shared: bool  # whether all replicas have one of it
    source: str


STORES = {
    "host": StoreKind(43e9, False, "vLLM 0.14 on H100 over PCIe 5: 3.0 ms per 1,000 tokens of Llama 3.1 8B"),
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


def make_stores(settings: Mapping[str, float], devices: int) -> tuple[CacheStore, ...]:
    """Return the stores of replicas of some devices; raise BadValue for a bandwidth of none."""
    stores = []
    for name, kind in STORES.items():
        bandwidth = settings.get(f"{name}-bandwidth")
        if name not in settings:
            if bandwidth is not None:
                raise BadValue(f"`--cache-tiers {name}-bandwidth` needs {name}=SIZE")
            continue
        bytes_per_s = bandwidth or kind.bytes_per_s * (devices if name == "host" else 1)
        stores.append(CacheStore(name, settings[name], bytes_per_s, kind.is_shared))
    return tuple(stores)

"""Tiers of the prefix cache: what goes where, what is found there, and what reading costs.

Tests: serving/prefix_cache.py.
"""

from __future__ import annotations

from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.errors import PaleoError
from paleo_lite.serving.prefix_cache import STORES, Tier, make_stores

# 20 users x 27 rounds would be too slow: the cache of one H100 with little memory for it overflows in the same way.
OVERFLOWING: dict[str, Any] = {
    "gpu": "h100-sxm", "memory_fraction": 0.28, "concurrency": 8, "num_requests": 160,
    "workload": "conversation:turns=10,question=1024,output=1",
}  # fmt: skip


def test_what_has_no_room_goes_to_the_next_tier() -> None:
    host, disk = Tier(3, 1.0), Tier(2, 5.0)
    assert host.add([1, 2, 3]) == [] and host.has(1)
    assert disk.add(host.add([4, 5])) == [] and not host.has(2) and disk.has(2) and disk.has(3)
    assert host.has(1)  # its use made it the most recent one


@pytest.mark.thorough
def test_a_tier_restores_the_hits_of_a_cache_that_overflows() -> None:
    """Without limits ten rounds find (10 - 1) / (10 + 1) of their prompts."""
    rates, seconds = [], []
    for tiers in (None, "host=100GB"):
        answer = pl.serve("llama-3.1-8b", **OVERFLOWING, cache_tiers=tiers)
        rates.append(answer.figures["prefix_hit_rate"].value or 0.0)
        seconds.append(answer.latencies["ttft_s"]["mean"].value or 0.0)
    assert rates[1] == pytest.approx(9 / 11, abs=0.05) and rates[0] < rates[1] - 0.2
    assert seconds[1] < seconds[0]


@pytest.mark.thorough
def test_hits_fall_when_the_sessions_no_longer_fit_into_host_memory() -> None:
    rates = []
    for size in ("2GB", "5GB", "30GB"):
        answer = pl.serve("llama-3.1-8b", **OVERFLOWING, cache_tiers={"host": size})
        rates.append(answer.figures["prefix_hit_rate"].value or 0.0)
    assert rates == sorted(rates) and rates[2] > rates[0] + 0.1


def test_replicas_share_a_store_and_each_device_reads_host_memory() -> None:
    host, store = make_stores({"host": 1e9, "store": 2e9, "store-bandwidth": 5e9}, 4)
    assert host.bytes_per_s == 4 * STORES["host"].bytes_per_s and not host.is_shared
    assert store.bytes_per_s == 5e9 and store.is_shared


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ("host=64GB", "needs prompts with beginnings in common"),
        ("tape=1TB", "tape"),
        ("host=64", "host"),
        ("disk-bandwidth=5GB/s", "needs disk=SIZE"),
    ],
)
def test_nonsense_gets_a_sentence(tiers: str, message: str) -> None:
    with pytest.raises(PaleoError, match=message):
        pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=1, num_requests=10, cache_tiers=tiers)

"""Tiers of the prefix cache: what goes where, what is found there, and what reading costs.

Tests: serving/prefix_cache.py, serving/stores.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue, PaleoError
from paleo_lite.machines import find_device
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.iteration_times import ScheduledTokens
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prefix_cache import Tier
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import Traffic, generate_traffic
from paleo_lite.serving.simulator import Replica
from paleo_lite.serving.stores import host_bytes_per_s, make_stores

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
    host, store = make_stores({"host": 1e9, "store": 2e9, "store-bandwidth": 5e9}, find_device("h100-sxm"), 4)
    assert host.bytes_per_s == pytest.approx(4 * 43e9) and not host.is_shared
    assert store.bytes_per_s == 5e9 and store.is_shared


@pytest.mark.parametrize(("device", "line_bytes_per_s"), [("a10", 31.5e9), ("gh200", 450e9), ("h20", 63e9)])
def test_host_memory_is_read_over_the_host_link(device: str, line_bytes_per_s: float) -> None:
    """PCIe 4 has 31.5 GB/s in one direction, NVLink-C2C 450; of 63 GB/s of PCIe 5 an H100 reaches 43 (vLLM's blog)."""
    (host,) = make_stores({"host": 1e9}, find_device(device), 1)
    assert host.bytes_per_s == pytest.approx(43 / 63 * line_bytes_per_s)


@pytest.mark.parametrize(("gpu", "memory_bytes_per_s"), [("dgx-spark", 273e9), ("mi300a", 5.3e12)])
def test_what_shares_the_memory_of_its_host_copies_over_no_link(gpu: str, memory_bytes_per_s: float) -> None:
    """One memory of 273 GB/s, or 5.3 TB/s (data sheets), reads and writes every byte that is copied within it."""
    device = find_device(gpu)
    assert host_bytes_per_s(device) == pytest.approx(memory_bytes_per_s / 2, rel=0.01)
    with pytest.raises(BadValue, match="`--cache-tiers host=SIZE` needs a host with memory of its own"):
        make_stores({"host": 1e9}, device, 1)


@pytest.mark.parametrize(
    ("gpu", "tiers", "is_assumed"),
    [("h20", "host=64GB", True), ("h20", "host=64GB,host-bandwidth=40GB/s", False), ("h100-sxm", "host=64GB", False)],
)
def test_an_assumed_link_to_the_host_is_named(gpu: str, tiers: str, is_assumed: bool) -> None:
    answer = pl.serve(
        "llama-3.1-8b", gpu=gpu, cache_tiers=tiers, concurrency=2, num_requests=8, workload="conversation:turns=2"
    )
    assert any("and its host is on record" in note for note in answer.notes) == is_assumed


@pytest.mark.parametrize(("engine", "is_overlapped"), [("sglang", True), ("vllm", False)])
def test_sglang_computes_a_block_while_the_next_one_is_read(engine: str, is_overlapped: bool) -> None:
    """SGLang's `MHATokenToKVPool.get_key_buffer` waits for its layer only; vLLM reads before an iteration.

    Of a prompt of 1,024 tokens the host has two blocks of 512, of which each is read in a time or in none.
    """
    prepared = prepare(
        make_deployment(pl.Serve("llama-3.1-8b", gpu="h100-sxm", engine=engine, concurrency=1)),
        generate_traffic(Lengths(1024), Lengths(1), count=1, concurrency=1),
    )
    assert prepared.engine.overlaps_host_reads == is_overlapped
    traffic = Traffic(np.zeros(1), np.array([1024]), np.array([1]), hashes=((1, 2),), hashed_tokens=512)

    def first_token_s(block_s: float) -> float:
        """Return the time to the first token where a block is read in so many seconds."""
        host = Tier(2, block_s, is_overlapped=prepared.engine.overlaps_host_reads)
        host.add((1, 2))
        replica = Replica(traffic, prepared.at_level("expected"), prepared.room, tiers=[host])
        replica.run()
        return float(replica.outcome().first_token_s[0])

    computed_s = first_token_s(0.0)
    assert first_token_s(1e-3) - computed_s == pytest.approx(0.0 if is_overlapped else 2e-3)
    iteration_s = prepared.at_level("expected").iteration_s(
        ScheduledTokens(0, 0, [(1024 - (1 if is_overlapped else 16), 1024)], 1), starts_empty=True
    )
    added_s = 2.0 - iteration_s if is_overlapped else 2.0
    assert first_token_s(1.0) - computed_s == pytest.approx(added_s)


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

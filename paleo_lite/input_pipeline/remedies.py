"""The course slides "Performance and Profiling" on feeding a device: their rules checked, their remedies computed.

A remedy is the same pipeline with one thing changed, run anew; what it gains is the ratio of the two throughputs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .feeding import Fed, Store, feed

UTILISATION_WANTED = 0.9
WAITING_AT_MOST = 0.1
"""How much of the device's time waiting may take and still be "much shorter": what 90% utilisation leaves."""


class Rule(msgspec.Struct, frozen=True):
    """A rule of thumb of the course, held against this pipeline."""

    rule: str
    found: str
    holds: bool


def rules(fed: Fed) -> tuple[Rule, ...]:
    """The rules of thumb of the course."""
    feeding = fed.feeding
    checked = [Rule("GPU utilisation of 90% or more", f"{fed.utilisation:.1%}", fed.utilisation >= UTILISATION_WANTED)]
    store = next((stage for stage in fed.stages if stage.name == "storage"), None)
    if store is not None and feeding.store is not None and feeding.store.expected_bytes_per_s and store.bytes_per_s:
        expected, rate = feeding.store.expected_bytes_per_s, store.bytes_per_s
        checked.append(
            Rule(
                f"I/O at about {expected / 1e6:,.0f} MB/s, as {feeding.store.name} should have",
                f"{rate / 1e6:,.1f} MB/s with {feeding.access} reads of {feeding.sample_bytes / 1e3:,.0f} kB",
                rate >= 0.8 * expected,
            )
        )
    share = fed.waiting_s / fed.compute_s
    checked.append(
        Rule(
            "loading (t2 - t1) much shorter than training (t3 - t2)",
            f"{fed.waiting_s * 1e3:,.3g} ms beside {fed.compute_s * 1e3:,.3g} ms a batch",
            share <= WAITING_AT_MOST / (1 - WAITING_AT_MOST) + 1e-12,
        )
    )
    checked.append(
        Rule(
            "I/O sample rate higher than the training sample rate",
            f"{fed.loading_per_s:,.0f} beside {feeding.wanted_per_s:,.0f} samples/s",
            fed.loading_per_s > feeding.wanted_per_s,
        )
    )
    return tuple(checked)


class Remedy(msgspec.Struct, frozen=True):
    """A remedy of the course, applied alone.

    Attributes
    ----------
    gain : float
        Throughput after over before.
    elsewhere : bool
        Needs further nodes or other numbers: not part of a plan for this one.
    """

    name: str
    what: str
    after: Fed
    gain: float
    elsewhere: bool = False


class Upgrades(msgspec.Struct, frozen=True):
    """What remedies put in the place of what there is.

    Attributes
    ----------
    networks : tuple of (name, bytes per second)
        To a separate node: over plain Ethernet, and with RDMA.
    raw_bytes : float
        Bytes of a decoded and augmented sample as it would be stored: one for each number.
    fp16 : tuple of float, or None
        Samples per second of the device in fp16 and bytes of a decoded sample in it; None where it has none.
    """

    nvme: Store
    networks: tuple[tuple[str, float], tuple[str, float]]
    raw_bytes: float
    fp16: tuple[float, float] | None = None


def remedies(fed: Fed, upgrades: Upgrades) -> tuple[Remedy, ...]:
    """Each remedy that can be applied, alone, largest gain first."""
    feeding, offered = fed.feeding, []

    def add(name: str, what: str, elsewhere: bool = False, **changes: Any) -> None:
        after = feed(msgspec.structs.replace(feeding, **changes))
        offered.append(Remedy(name, what, after, after.throughput_per_s / fed.throughput_per_s, elsewhere))

    needed = fed.needed_workers
    if needed is not None:
        workers = max(needed, feeding.workers)
        what = f"{workers} instead of {feeding.workers}" if workers > feeding.workers else f"{workers} are enough"
        add("more workers, a core each", what, workers=workers)
    if feeding.network is None and feeding.decode_per_worker_s is not None:
        what = f"{upgrades.raw_bytes / 1e3:,.0f} kB a sample, decoded once and for all"
        add("pre-augmented data", what, decode_per_worker_s=None, sample_bytes=upgrades.raw_bytes)
    if not feeding.pinned:
        add("pinned memory", "copies at the link's rate, beside the device's work", pinned=True)
    if not feeding.prefetch:
        add("prefetching", "load and copy ahead while the device computes", prefetch=True)
    if feeding.network is None and feeding.store is not None:
        if feeding.access == "random":
            add("sequential reads", f"from {feeding.store.name}", access="sequential")
        if feeding.store.bandwidth_bytes_per_s < upgrades.nvme.bandwidth_bytes_per_s:
            add("NVMe", f"instead of {feeding.store.name}", store=upgrades.nvme)
        add("dataset in memory", "no storage", store=None)
    if feeding.network is None:
        plain, direct = upgrades.networks
        add("loading and augmentation on separate nodes", f"over {plain[0]}", True, network=plain)
        add("the same with RDMA", f"over {direct[0]}, into pinned memory", True, network=direct, pinned=True)
    if upgrades.fp16 is not None:
        rate, decoded = upgrades.fp16
        add("FP16", f"the device alone: {rate:,.0f} samples/s", True, device_per_s=rate, decoded_bytes=decoded)
    return tuple(sorted(offered, key=lambda remedy: -remedy.gain))


def plan(fed: Fed, upgrades: Upgrades) -> tuple[Remedy, ...]:
    """Remedies of this node, one on top of the other, the best of each round first, until 90% are reached."""
    steps: list[Remedy] = []
    while fed.utilisation < UTILISATION_WANTED:
        best = next((remedy for remedy in remedies(fed, upgrades) if not remedy.elsewhere), None)
        if best is None or best.gain < 1.001:
            break
        steps.append(best)
        fed = best.after
    return tuple(steps)

"""Shares of a device's peaks that Nsight Compute measured, of kernels and of the operations that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ..profiles.detect import Profile
from .metrics import device_throughputs, measured_bound
from .totals import SUMS, total_kernels

_DURATION = SUMS.index("duration_ns")


class MeasuredShare(msgspec.Struct, frozen=True):
    """Shares of peak of the device memory and of the multiprocessors, weighted by time."""

    memory: float
    compute: float | None  # None if it was not measured
    time_s: float  # time of the kernels

    def bound(self) -> tuple[str | None, float]:
        """Return what bounds the kernels, None if it is latency, and the larger share."""
        shares = {"DRAM Throughput": 100 * self.memory}
        if self.compute is not None:
            shares["Compute (SM) Throughput"] = 100 * self.compute
        bound, _ = measured_bound(shares)
        return bound, max(self.memory, self.compute or 0.0)


def measure_shares(profile: Profile) -> dict[str, MeasuredShare]:
    """Return the measured shares by the printed name of each kernel; kernels without them are absent."""
    totals, _ = total_kernels(profile, with_busy=False)
    shares: dict[str, list[MeasuredShare]] = {}
    for (name, category), metrics in totals.metrics.items():
        means = {metric: float(total / weight) for metric, (total, weight) in metrics.items()}
        memory, compute = device_throughputs(means)
        time_s = float(totals.sums[name, category][_DURATION]) * 1e-9
        if memory is not None and time_s:
            shares.setdefault(name, []).append(MeasuredShare(memory, compute, time_s))
    return {name: mean for name, parts in shares.items() if (mean := _mean(parts)) is not None}


def share_of_kernels(shares: Mapping[str, MeasuredShare], kernels: Iterable[str]) -> MeasuredShare | None:
    """Return the mean over kernels; None unless all of them were measured."""
    names = list(kernels)
    return _mean([shares[name] for name in names]) if all(name in shares for name in names) else None


def _mean(shares: list[MeasuredShare]) -> MeasuredShare | None:
    """Return the mean weighted by time; None without shares."""
    time_s = sum(share.time_s for share in shares)
    if not time_s:
        return None
    computes = [share.compute for share in shares]
    return MeasuredShare(
        sum(share.memory * share.time_s for share in shares) / time_s,
        None if None in computes else sum((share.compute or 0.0) * share.time_s for share in shares) / time_s,
        time_s,
    )

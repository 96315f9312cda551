"""Comparison of the ranks of one job: time spent waiting for other ranks, and load imbalance.

All devices of a collective end it together. Hence the shortest of their times is the time of the exchange, and the rest
of each device's time is its wait for the last one to arrive. All ranks issue their collectives in the same order (NCCL
requires it), which matches the calls of different traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from .collectives import CollectiveCalls, Message, bus_bandwidth
from .device_time import DeviceTime


class Rank(msgspec.Struct, frozen=True):
    """Use of time by one rank."""

    rank: int
    file: str
    # See `device_time.TimeBreakdown`
    busy_share: float
    window_s: float
    computing_s: float
    communication_s: float
    exposed_communication_s: float
    waiting_s: float  # time in collectives spent waiting for ranks that arrived later


class Ranks(msgspec.Struct, frozen=True):
    """Comparison of the ranks of one job."""

    rows: list[Rank]
    imbalance: float  # relative excess of the longest compute time over the mean
    # The rank that the others wait for, which waits least itself. None without matched collectives.
    straggler: int | None
    matched: int  # collective calls that were found in all traces
    # The matched collectives with the time of the exchange, the shortest over the ranks.
    collectives: list[CollectiveCalls]


def compare_ranks(ranked: Sequence[tuple[int, Path, DeviceTime]]) -> Ranks:
    """Compare the ranks of one job, at least two."""
    ranked = sorted(ranked, key=lambda item: item[0])
    times_of_ranks = [device_time.collective_times_s for _, _, device_time in ranked]
    waiting_s = [0.0] * len(ranked)
    collectives = []
    for message in times_of_ranks[0]:
        times = [times_of_rank.get(message, []) for times_of_rank in times_of_ranks]
        call_counts = {len(times_of_rank) for times_of_rank in times}
        if len(call_counts) > 1:  # a trace is incomplete, so the calls cannot be matched
            continue
        exchange_times = [min(times_of_call) for times_of_call in zip(*times)]
        for index, times_of_rank in enumerate(times):
            waiting_s[index] += sum(times_of_rank) - sum(exchange_times)
        collectives.append(_exchange(message, exchange_times))
    rows = []
    for (rank, path, device_time), rank_waiting_s in zip(ranked, waiting_s):
        breakdown = device_time.breakdown
        rows.append(
            Rank(
                rank=rank,
                file=path.name,
                busy_share=breakdown.busy_share,
                window_s=breakdown.window_s,
                computing_s=breakdown.computing_s,
                communication_s=breakdown.communication_s,
                exposed_communication_s=breakdown.exposed_communication_s,
                waiting_s=rank_waiting_s,
            )
        )
    mean_s = sum(row.computing_s for row in rows) / len(rows)
    longest_s = max(row.computing_s for row in rows)
    return Ranks(
        rows,
        longest_s / mean_s - 1 if mean_s else 0.0,
        min(rows, key=lambda row: row.waiting_s).rank if collectives else None,
        sum(row.calls for row in collectives),
        sorted(collectives, key=lambda row: -row.time_s),
    )


def _exchange(message: Message, times: list[float]) -> CollectiveCalls:
    """Return all calls of a collective with the time of the exchange alone."""
    time_s = sum(times)
    return CollectiveCalls(
        collective=message.collective,
        dtype=message.dtype,
        devices=message.group,
        bytes=message.bytes,
        calls=len(times),
        time_s=time_s,
        exposed_s=None,
        bus_bandwidth_bytes_per_s=bus_bandwidth(message, len(times), time_s),
    )

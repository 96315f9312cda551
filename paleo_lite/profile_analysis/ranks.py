"""The ranks of one job beside each other: which waits for which, and how unevenly they compute.

All devices of a collective end together, so that the shortest of their times is what the exchange took, and the rest of
each is its wait for the one that came last. Ranks enter their collectives in one order (NCCL requires it), by which the
calls of different traces are found to be one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from .collectives import CollectiveCalls, Message, bus_bandwidth
from .device_time import DeviceTime


class Rank(msgspec.Struct, frozen=True):
    """What one rank did with its time.

    Attributes
    ----------
    busy_share, window_s, computing_s, communication_s, exposed_communication_s : float
        See `device_time.Idle`.
    waiting_s : float
        Of its collectives, for ranks that came later.
    """

    rank: int
    file: str
    busy_share: float
    window_s: float
    computing_s: float
    communication_s: float
    exposed_communication_s: float
    waiting_s: float


class Ranks(msgspec.Struct, frozen=True):
    """Ranks of one job.

    Attributes
    ----------
    imbalance : float
        How much longer the rank computes that computes longest than the mean, as a share of it.
    straggler : int or None
        The rank that the others wait for: the one that waits least. None without collectives that all of them have.
    matched : int
        Collectives that were found in all traces.
    collectives : list of CollectiveCalls
        Those, with the time that the exchange took: the shortest over the ranks.
    """

    rows: list[Rank]
    imbalance: float
    straggler: int | None
    matched: int
    collectives: list[CollectiveCalls]


def compare_ranks(ranked: Sequence[tuple[int, Path, DeviceTime]]) -> Ranks:
    """Lay ranks of one job beside each other.

    Parameters
    ----------
    ranked : sequence of (rank, path, DeviceTime)
        At least two.
    """
    ranked = sorted(ranked, key=lambda known: known[0])
    calls = [known.exchanges for _, _, known in ranked]
    waiting = [0.0] * len(ranked)
    collectives = []
    for message in calls[0]:
        times = [of_rank.get(message, []) for of_rank in calls]
        if len({len(of_rank) for of_rank in times}) > 1:  # one of the traces is cut off: which is which is unknown
            continue
        shortest = [min(together) for together in zip(*times)]
        for place, of_rank in enumerate(times):
            waiting[place] += sum(of_rank) - sum(shortest)
        collectives.append(_collective(message, shortest))
    rows = [
        Rank(rank, path.name, known.idle.busy_share, known.idle.window_s, known.idle.computing_s,
             known.idle.communication_s, known.idle.exposed_communication_s, waited)
        for (rank, path, known), waited in zip(ranked, waiting)
    ]  # fmt: skip
    mean_s = sum(row.computing_s for row in rows) / len(rows)
    return Ranks(
        rows,
        max(row.computing_s for row in rows) / mean_s - 1 if mean_s else 0.0,
        min(rows, key=lambda row: row.waiting_s).rank if collectives else None,
        sum(row.calls for row in collectives),
        sorted(collectives, key=lambda row: -row.time_s),
    )


def _collective(message: Message, times: list[float]) -> CollectiveCalls:
    time_s = sum(times)
    return CollectiveCalls(
        message.collective, message.dtype, message.group, message.bytes, len(times), time_s, None,
        bus_bandwidth(message, len(times), time_s),
    )  # fmt: skip

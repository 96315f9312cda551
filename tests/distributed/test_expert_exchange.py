"""Exchange of tokens between experts, by hand: rows, copies per node and device, and two levels of links."""

from __future__ import annotations

import pytest

from paleo_lite.distributed.expert_exchange import DISPATCHERS, distinct_fraction, expert_exchange_s
from paleo_lite.distributed.platforms import parse_topology

ROWS_BYTES = 1e9


def exchange(topology: str, devices: int, experts: int, name: str) -> float:
    return expert_exchange_s(parse_topology(topology), devices, ROWS_BYTES, experts, DISPATCHERS[name])


def test_distinct_places_of_experts() -> None:
    """Two experts in two places: both in one of them in half of the cases, 1.5 places in the mean, of 2 experts."""
    assert distinct_fraction(2, 2) == pytest.approx(1.5 / 2)
    assert distinct_fraction(1, 8) == pytest.approx(1.0)
    assert distinct_fraction(8, 1) == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("name", "experts", "bytes_between"),
    [
        # 8 devices of a node send 3/4 of their rows to the three other nodes over 400 GB/s.
        ("alltoall", 8, 8 * ROWS_BYTES * 3 / 4),
        # Of 8 experts in 4 nodes, 4 (1 - (3/4)^8) = 3.6 nodes have one: a token is sent to so many, instead of 8 times.
        ("deepep", 8, 8 * ROWS_BYTES * 3 / 4 * 4 * (1 - 0.75**8) / 8),
        ("hybridep", 1, 8 * ROWS_BYTES * 3 / 4),
    ],
)
def test_exchange_between_nodes(name: str, experts: int, bytes_between: float) -> None:
    time_s = exchange("8x @ 900 GB/s, 4 nodes @ 400 GB/s", 32, experts, name)
    assert time_s == pytest.approx(bytes_between / 400e9, rel=1e-3)


def test_nvlink_reaches_less_in_all_to_alls_than_in_sums() -> None:
    """NCCL's all-to-all of 512 MiB among eight H100 takes 1.49 ms, of eight B200 0.83 ms (aiconfigurator)."""
    for node, measured_s in (("8x h100-sxm @ nvlink4-x18", 1.49042e-3), ("8x b200 @ nvlink5-x18", 0.83417e-3)):
        assert expert_exchange_s(parse_topology(node), 8, 2.0**29, 8, DISPATCHERS["alltoall"]) == pytest.approx(
            measured_s, rel=0.1
        )


def test_exchange_within_a_rack() -> None:
    """A device sends 63/64 of its rows over its own link; HybridEP sends a token once to each device."""
    plain, merged = (exchange("64x @ 900 GB/s", 64, 8, name) for name in ("alltoall", "hybridep"))
    assert plain == pytest.approx(ROWS_BYTES * 63 / 64 / 900e9)
    assert merged / plain == pytest.approx(64 * (1 - (63 / 64) ** 8) / 8)

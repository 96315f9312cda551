"""Collectives: PALEO's and the literature's formulas by hand, simulated algorithms, and bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from paleo_lite.distributed.collectives import (
    COLLECTIVES,
    EXACT_COLLECTIVES,
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    choose_reduce_scatter,
    point_to_point_time_s,
    reduce_scatter_time_s,
    subgroup_topology,
)
from paleo_lite.distributed.links import LinkRate, Topology
from paleo_lite.errors import BadValue, UnknownName
from strategies import COLLECTIVE_NAMES, LINKS, MESSAGE_BYTES, MORE, PLAIN_LINKS, SEVERAL_WORKERS, WORKERS

PLAIN = LinkRate("plain", 2.5e9)  # PALEO's ethernet20: 20 Gbit/s
SLOW = LinkRate("slow", 1e9, latency_s=1e-5, ppp=0.5)
GRADIENTS = 250e6  # 0.1 s over PLAIN


# Without latency, in units of one message's 0.1 s. PALEO: 2 (n - 1), 2 ceil(log2 n), ceil(log2 n), 1. Thakur et al.
# add two steps to the butterfly unless n is a power of two. Patarasuk and Yuan: 2 (n - 1) / n. Double tree: twice a
# broadcast at full bandwidth.
@pytest.mark.parametrize(
    ("collective", "two", "six", "eight"),
    [
        ("one-to-all", 2, 10, 14),
        ("tree", 2, 6, 6),
        ("butterfly", 1, 4, 3),
        ("butterfly-mixing", 1, 1, 1),
        ("ring", 1, 10 / 6, 14 / 8),
        ("double-tree", 2, 2, 2),
        ("hierarchical", 1, 10 / 6, 14 / 8),
    ],
)
def test_bytes_by_hand(collective: str, two: float, six: float, eight: float) -> None:
    found = all_reduce_time_s(collective, GRADIENTS, [1, 2, 6, 8], PLAIN)
    assert found == pytest.approx([0, 0.1 * two, 0.1 * six, 0.1 * eight])


@pytest.mark.parametrize(
    ("collective", "steps"),
    [("one-to-all", 10), ("tree", 6), ("butterfly", 4), ("butterfly-mixing", 1), ("ring", 10), ("double-tree", 12)],
)
def test_latencies_of_an_empty_message_among_six(collective: str, steps: int) -> None:
    """Double tree of height 3: 2 h steps down, as many up (Sanders et al. 2009)."""
    assert all_reduce_time_s(collective, 0, 6, SLOW) == pytest.approx(steps * 1e-5)


def test_other_operations_by_hand() -> None:
    # 1 GB at 0.5 GB/s takes 2 s; an eighth of it 0.25 s, seven times.
    for operation in (reduce_scatter_time_s, all_gather_time_s, all_to_all_time_s):
        assert operation(1e9, 8, SLOW) == pytest.approx(7 * (1e-5 + 0.25))


def test_an_all_to_all_takes_its_own_share_of_a_link() -> None:
    """An all-to-all of 8 GB among eight sends 7 GB of each; it has half of 1 GB/s, other collectives all of it."""
    link = LinkRate("link", 1e9, in_all_to_all=LinkRate("link", 1e9, ppp=0.5))
    assert all_to_all_time_s(8e9, 8, link) == pytest.approx(14)
    assert all_gather_time_s(8e9, 8, link) == pytest.approx(7)
    twice = Topology("h100-sxm", 8, link, 2, link)
    half = subgroup_topology(twice, 2, 8)  # four devices of each of two nodes have half of the link between these
    assert half.between is not None
    assert all_to_all_time_s(8e9, 2, half.between) == pytest.approx(16)


def test_factors_of_a_link_are_those_of_its_all_to_alls() -> None:
    link = LinkRate("link", 1e9, latency_s=1e-3, ppp_at=((2, 0.8),), in_all_to_all=LinkRate("link", 1e9, 2e-3, 0.4))
    moved = link.with_factors(bandwidth=2, share=0.5, latency=3)
    assert all_gather_time_s(1e9, 2, moved) == pytest.approx(3e-3 + 0.5 / 0.8)
    assert all_to_all_time_s(1e9, 2, moved) == pytest.approx(6e-3 + 0.5 / 0.4)
    assert point_to_point_time_s(1e9, SLOW) == pytest.approx(1e-5 + 2)


def test_start_and_ramp_by_hand() -> None:
    """Start of 10 us, 2 steps of 1 us, 4 ms on the wire, and 2 sqrt(1 us x 4 ms) for the pipeline."""
    link = LinkRate("measured", 1e9, 1e-6, start_s=1e-5, ramp_s=1e-6, ppp_at=((2, 0.25), (8, 0.5)))
    assert all_reduce_time_s("ring", 1e6, 2, link) == pytest.approx(1e-5 + 2e-6 + 4e-3 + 2 * np.sqrt(4e-9))
    assert link.ppp_for(4) == pytest.approx(0.25 * np.sqrt(2))  # half-way between 2 and 8 on both logarithms
    assert link.ppp_for([1, 100]) == pytest.approx([0.25, 0.5])


def test_two_protocols_by_hand() -> None:
    """1 kB takes 4 us at a quarter of 1 GB/s rather than 9 + 1 us at full bandwidth; 1 MB takes the full bandwidth."""
    link = LinkRate("measured", 1e9, switch_s=9e-6, small_share=0.25)
    assert point_to_point_time_s([1e3, 1e6], link) == pytest.approx([4e-6, 1.009e-3])


class Network:
    """Simulated network: each worker has a vector; all messages of a round are concurrent."""

    def __init__(self, workers: int, length: int) -> None:
        self.data = [np.random.default_rng(worker).integers(0, 100, length) for worker in range(workers)]
        self.total = np.sum(self.data, axis=0)
        self.rounds = 0
        self.sent = 0

    def round(self, messages: list[tuple[int, int, slice, bool]]) -> None:
        """Exchange messages (source, target, slice, is added) and count the bytes of the busiest link direction."""
        parts = [(to, part, self.data[source][part].copy(), added) for source, to, part, added in messages]
        for to, part, values, added in parts:
            self.data[to][part] = self.data[to][part] + values if added else values
        leaving = np.zeros(len(self.data))
        arriving = np.zeros(len(self.data))
        for (source, *_), (to, _, values, _) in zip(messages, parts):
            leaving[source] += len(values)
            arriving[to] += len(values)
        self.rounds += 1
        self.sent += int(max(leaving.max(), arriving.max()))

    def time_s(self, link: LinkRate) -> float:
        """Check that every worker has the sum, and return the time."""
        assert all(np.array_equal(values, self.total) for values in self.data)
        return self.rounds * link.latency_s + self.sent / (link.bandwidth_bytes_per_s * link.ppp)


def run_ring(workers: int, length: int) -> Network:
    net, part = Network(workers, length), length // workers
    for shift, added in ((0, True), (1, False)):
        for step in range(workers - 1):
            chunks = [(w, (w + 1) % workers, (w - step + shift) % workers) for w in range(workers)]
            net.round([(a, b, slice(c * part, (c + 1) * part), added) for a, b, c in chunks])
    return net


def run_butterfly(workers: int, length: int) -> Network:
    """Thakur et al. 2005, section 4.5: with r workers beyond the power of two, the even ones of the first 2 r wait."""
    net, whole = Network(workers, length), slice(None)
    power = 1 << (workers.bit_length() - 1)
    extra = workers - power
    active = [2 * i + 1 for i in range(extra)] + list(range(2 * extra, workers))
    if extra:
        net.round([(2 * i, 2 * i + 1, whole, True) for i in range(extra)])
    distance = 1
    while distance < power:
        net.round([(active[i], active[i ^ distance], whole, True) for i in range(power)])
        distance *= 2
    if extra:
        net.round([(2 * i + 1, 2 * i, whole, False) for i in range(extra)])
    return net


def run_tree(workers: int, length: int) -> Network:
    net, whole = Network(workers, length), slice(None)
    distances = [1 << i for i in range((workers - 1).bit_length())]
    for d in distances:
        net.round([(w, w - d, whole, True) for w in range(d, workers, 2 * d)])
    for d in reversed(distances):
        net.round([(w - d, w, whole, False) for w in range(d, workers, 2 * d)])
    return net


def run_server(workers: int, length: int) -> Network:
    """Parameter server that is one of the workers: PALEO's n - 1 messages each way."""
    net, whole = Network(workers, length), slice(None)
    for worker in range(1, workers):
        net.round([(worker, 0, whole, True)])
    for worker in range(1, workers):
        net.round([(0, worker, whole, False)])
    return net


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 32])
@pytest.mark.parametrize(
    ("collective", "run"),
    [("ring", run_ring), ("butterfly", run_butterfly), ("tree", run_tree), ("one-to-all", run_server)],
)
def test_formulas_agree_with_simulated_algorithms(collective: str, run, workers: int) -> None:  # type: ignore[no-untyped-def]
    length = 10 * workers
    net = run(workers, length)
    assert all_reduce_time_s(collective, length, workers, SLOW) == pytest.approx(net.time_s(SLOW))


@given(MESSAGE_BYTES, SEVERAL_WORKERS, PLAIN_LINKS)
def test_double_tree_uses_the_best_number_of_pieces(size: int, workers: int, link: LinkRate) -> None:
    """No number of pieces beats the one in the formula, by the steps and bytes of Sanders et al."""
    height = (workers - 1).bit_length()
    pieces = np.geomspace(1, 1e9, 2000)
    wire = size / (link.bandwidth_bytes_per_s * link.ppp)
    either_way = 2 * (height + pieces - 1) * (link.latency_s + wire / (2 * pieces))
    assert all_reduce_time_s("double-tree", size, workers, link) <= 2 * either_way.min() * (1 + 1e-6)


@given(MESSAGE_BYTES, WORKERS, LINKS)
def test_no_collective_beats_the_lower_bound(size: int, workers: int, link: LinkRate) -> None:
    # Patarasuk and Yuan 2009
    bound = 2 * (workers - 1) / workers * size / (link.bandwidth_bytes_per_s * link.ppp_for(workers))
    for collective in EXACT_COLLECTIVES:
        assert all_reduce_time_s(collective, size, workers, link) >= bound * (1 - 1e-9)


@given(MESSAGE_BYTES, MORE, WORKERS, LINKS, COLLECTIVE_NAMES)
def test_time_increases_with_the_message_size(
    size: int, factor: float, workers: int, link: LinkRate, collective: str
) -> None:
    less, more = all_reduce_time_s(collective, [size, size * factor], workers, link)
    assert less <= more * (1 + 1e-9)
    assert all_reduce_time_s(collective, size, 1, link) == 0
    assert np.isfinite(more)


@given(MESSAGE_BYTES, SEVERAL_WORKERS, PLAIN_LINKS)
def test_ring_is_reduce_scatter_plus_all_gather(size: int, workers: int, link: LinkRate) -> None:
    halves = reduce_scatter_time_s(size, workers, link) + all_gather_time_s(size, workers, link)
    assert halves == pytest.approx(all_reduce_time_s("ring", size, workers, link))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_arrays_agree_with_scalars(collective: str) -> None:
    link = LinkRate("any", 1e9, 1e-5, start_s=1e-5, ramp_s=1e-6, ppp_at=((2, 0.5), (8, 0.4)))
    messages, workers = np.array([0.0, 1.0, 1e5, 1e9])[:, None], np.array([1, 2, 3, 8, 100])
    found = all_reduce_time_s(collective, messages, workers, link)
    assert found.shape == (4, 5)
    for (i, j), value in np.ndenumerate(found):
        scalar = all_reduce_time_s(collective, float(messages[i, 0]), int(workers[j]), link)
        assert isinstance(scalar, float)
        assert scalar == pytest.approx(value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: all_reduce_time_s("ring", 1, 0, PLAIN), r"workers must be an integer >= 1 \(got 0\)"),
        (lambda: all_reduce_time_s("ring", 1, [2, -1], PLAIN), r"workers must be an integer >= 1 \(got \[2, -1\]\)"),
        (lambda: all_reduce_time_s("ring", 1, 2.5, PLAIN), r"must be an integer >= 1 \(got 2\.5\)"),
        (lambda: all_reduce_time_s("ring", 1, float("nan"), PLAIN), "got nan"),
        (lambda: all_reduce_time_s("ring", 1, True, PLAIN), "got True"),
        (lambda: all_reduce_time_s("ring", 1, "8", PLAIN), "got '8'"),
        (lambda: all_reduce_time_s("ring", -1, 2, PLAIN), r"the message size must be >= 0 bytes \(got -1\)"),
        (lambda: all_reduce_time_s("ring", float("inf"), 2, PLAIN), r"the message size must be >= 0 bytes \(got inf\)"),
        (lambda: LinkRate("x", 0), r"the bandwidth must be > 0 B/s \(got 0\)"),
        (lambda: LinkRate("x", 1e-300), r"the bandwidth must be from 1 to 1e\+18 B/s \(got 1e-300\)"),
        (lambda: LinkRate("x", 1e300), r"the bandwidth must be from 1 to 1e\+18 B/s \(got 1e\+300\)"),
        (lambda: LinkRate("x", 1e9, latency_s=1e300), r"a latency must be at most 3600 s \(got 1e\+300\)"),
        (lambda: LinkRate("x", 1e9, latency_s=-1), r"a latency must be >= 0 s \(got -1\)"),
        (lambda: LinkRate("x", 1e9, ppp=0), r"the PPP must be > 0 \(got 0\)"),
    ],
)
def test_invalid_arguments(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadValue, match=message):
        call()


def test_an_unknown_collective() -> None:
    with pytest.raises(UnknownName, match="no collective is called 'rings': did you mean ring"):
        all_reduce_time_s("rings", 1, 2, PLAIN)


def test_a_link_describes_its_bandwidth_shares() -> None:
    """Smallest to largest share if it depends on the workers; none for the full bandwidth."""
    measured = LinkRate("pcie", 16e9, ppp=0.1, label="fitted", ppp_at=((2, 0.5), (8, 0.1)))
    assert measured.describe() == "pcie: 16 GB/s per direction at PPP 0.1 to 0.5 (fitted)"
    assert SLOW.describe().startswith("slow: 1 GB/s per direction at PPP 0.5, latency 10 µs (")
    assert PLAIN.describe().startswith("plain: 2.5 GB/s per direction (")


def test_a_group_of_every_third_device_spans_nodes() -> None:
    """Two of eight devices of each node: two eighths of the node's link for each group."""
    topology = Topology("v100-sxm2", 8, PLAIN, 4, SLOW)
    group = subgroup_topology(topology, 3, 8)
    assert (group.devices_per_node, group.nodes) == (2, 4)
    assert group.between is not None
    assert group.between.bandwidth_bytes_per_s == SLOW.bandwidth_bytes_per_s * 2 / 8
    inside = subgroup_topology(topology, 1, 8)
    assert (inside.devices_per_node, inside.nodes, inside.between) == (8, 1, None)


@pytest.mark.parametrize(("inside_bytes_per_s", "fastest"), [(10e9, "ring"), (300e9, "hierarchical")])
def test_gradients_are_scattered_by_the_collective_with_more_bandwidth(inside_bytes_per_s, fastest) -> None:
    """Four nodes of eight devices, whose network has 10 GB/s and a latency of 10 us.

    A ring over all devices sends 2 x 31/32 of the message over it. Rings inside the nodes and then between them send
    2 x 7/8 over the links inside and 2 x 3/4 over the network, with 20 instead of 62 steps, which small messages gain.
    """
    inside = LinkRate("inside", inside_bytes_per_s, latency_s=1e-5)
    topology = Topology("v100-sxm2", 8, inside, 4, LinkRate("network", 10e9, latency_s=1e-5))
    assert choose_reduce_scatter(topology, None, "zero-3") == fastest
    assert choose_reduce_scatter(topology, "ring", "zero-3") == "ring"
    with pytest.raises(BadValue, match=r"zero-3 needs a reduce-scatter and an all-gather: use .*ring.* \(got tree\)"):
        choose_reduce_scatter(topology, "tree", "zero-3")

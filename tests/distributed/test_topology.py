"""Topologies: parsing, invalid texts, and collectives over two kinds of link by hand.

Tests: distributed/platforms.py, distributed/collectives.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.distributed.collectives import (
    COLLECTIVES,
    EXACT_COLLECTIVES,
    all_reduce_time_s,
    choose_all_reduce,
    topology_all_reduce_s,
)
from paleo_lite.distributed.links import LinkRate, Topology, flat_topology, link_rate
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.errors import AmbiguousName, BadFile, BadValue, PaleoError, UnknownName
from strategies import MESSAGE_BYTES

ISSUE = "2x k40m @ pcie3, 16 nodes @ infiniband"
INSIDE, BETWEEN = LinkRate("inside", 10e9), LinkRate("between", 1e9)
TWO_BY_FOUR = Topology(None, 2, INSIDE, 4, BETWEEN)


@pytest.mark.parametrize(
    ("text", "device", "per_node", "inside", "nodes", "between"),
    [
        (ISSUE, "k40m", 2, "pcie3-x16", 16, "infiniband-fdr"),
        ("2 X Tesla K40m@pcie3 ,16 Nodes@infiniband", "k40m", 2, "pcie3-x16", 16, "infiniband-fdr"),
        ("8× v100-sxm2 @ nvlink2-x6", "v100-sxm2", 8, "nvlink2-x6", 1, None),
        ("8x @ nvlink3-x12, 4 nodes @ 8x infiniband-hdr", None, 8, "nvlink3-x12", 4, "8x infiniband-hdr"),
        ("k20x, 32 nodes @ 20 Gbit/s", "k20x", 1, None, 32, "20 Gbit/s"),
        ("128 nodes @ ethernet20", None, 1, None, 128, "ethernet-20"),
        ("h100-sxm", "h100-sxm", 1, None, 1, None),
        ("1 node", None, 1, None, 1, None),
    ],
)
def test_topologies_are_parsed(text, device, per_node, inside, nodes, between) -> None:  # type: ignore[no-untyped-def]
    found = parse_topology(text)
    names = [None if link is None else link.name for link in (found.inside, found.between)]
    assert (found.device, found.devices_per_node, names[0], found.nodes, names[1]) == (
        device, per_node, inside, nodes, between,
    )  # fmt: skip
    assert found.workers == per_node * nodes


BAD = [
    ("", BadValue, "a topology must have a form such as '2x k40m @ pcie3, 16 nodes @ infiniband'"),
    ("2x k40m @ pcie3,", BadValue, "must have a form such as"),
    ("2x k40m @ pcie3, 2x k40m @ pcie3", BadValue, "must have a form such as"),
    ("16 nodes @ infiniband, 2x k40m @ pcie3", BadValue, "must have a form such as"),
    ("2x k40m @ pcie3 16 nodes @ infiniband", BadValue, "must have a form such as"),
    ("2x k40m @", BadValue, "@ must be followed by a link or its rate, such as @ pcie3 or @ 25 GB/s"),
    ("k40m, 16 nodes @ ", BadValue, "@ must be followed by a link or its rate"),
    ("2x k40m", BadValue, "the 2 devices of a node need a link"),
    ("2x k40m, 16 nodes @ infiniband", BadValue, "the 2 devices of a node need a link"),
    ("2x k40m @ pcie3, 16 nodes", BadValue, "the 16 nodes need a link"),
    ("0x k40m @ pcie3", BadValue, r"a topology must have 1 to 1000000 devices per node \(got 0\)"),
    ("2x k40m @ pcie3, 0 nodes @ infiniband", BadValue, r"a topology must have 1 to 1000000 nodes \(got 0\)"),
    ("2x k40m @ pcie3, 99999999 nodes @ infiniband", BadValue, r"1 to 1000000 nodes \(got 99999999\)"),
    ("2x k40m @ 0 GB/s", BadValue, "the rate of a link must be > 0"),
    ("2x k40m @ 15", PaleoError, r"the rate of a link must have a unit, .* \(got '15'\)"),
    ("2x k41m @ pcie3", UnknownName, "no GPU is called 'k41m': did you mean k40m"),
    ("-2x k40m @ pcie3", UnknownName, "no GPU is called '-2x k40m'"),
    ("9" * 5000 + "x k40m @ pcie3", UnknownName, "no GPU is called"),
    ("2x k40m @ pcie9", UnknownName, "no link is called 'pcie9'"),
    ("8x v100-sxm2 @ nvlink2-x6, 4 nodes @ infinib", AmbiguousName, "use infiniband-sdr, "),
    ("absent.toml", BadFile, "absent.toml: cannot be read"),
    ("nul\0.toml", BadFile, "null byte"),
]


@pytest.mark.parametrize(("text", "error", "message"), BAD)
def test_invalid_texts(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_topology(text)


@pytest.mark.thorough
@pytest.mark.slow
@given(st.one_of(st.text(max_size=40), st.text("0123456789x @,nodespcie3 GB/k40m.", max_size=40)))
def test_any_text_gives_a_topology_or_a_one_line_error(text: str) -> None:
    try:
        assert parse_topology(text).workers >= 1
    except PaleoError as error:
        assert "\n" not in str(error) or "\n" in text


TOML = """
device = "k40m"
devices_per_node = 2
inside = "pcie3"
nodes = 16
between = { link = "infiniband", ppp = 0.5, latency = "5 us" }
"""


def test_toml_topologies(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TOML)
    found = parse_topology(str(path))
    written = parse_topology(ISSUE)
    assert (found.device, found.devices_per_node, found.nodes, found.inside) == ("k40m", 2, 16, written.inside)
    assert found.between == LinkRate(
        "infiniband-fdr", 6.82e9, 5e-6, 0.5, "data sheet, PPP as given, latency as given", per="port"
    )
    assert parse_topology(str(path), ppp=0.7).inside == parse_topology(ISSUE, ppp=0.7).inside


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nodes = 16", "nodes = 0", r"a topology must have 1 to 1000000 nodes \(got 0\)"),
        ("nodes = 16", "nodes = 1.5", r"Expected `int`, got `float` - at `\$.nodes`"),
        ("nodes = 16", "node = 16", "unknown field `node`"),
        ('inside = "pcie3"', "", "the 2 devices of a node need a link"),
        ('"pcie3"', '"pcie9"', "no link is called 'pcie9'"),
        ('"k40m"', '"k41m"', "no GPU is called 'k41m'"),
        ("ppp = 0.5", "ppp = 0.0", "PPP must be > 0"),
        ('"5 us"', '"5 GB"', "not in s"),
        ("device =", "device", "cluster.toml"),
    ],
)
def test_invalid_toml_topologies(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TOML.replace(old, new))
    with pytest.raises(BadFile, match=message) as raised:
        parse_topology(str(path))
    assert str(raised.value).startswith(str(path))


def test_nodes_are_filled_first() -> None:
    machine = parse_topology(ISSUE)
    shapes = {n: machine.with_workers(n) for n in (1, 2, 4, 32, 64)}
    assert {n: (t.nodes, t.devices_per_node) for n, t in shapes.items()} == {
        1: (1, 1), 2: (1, 2), 4: (2, 2), 32: (16, 2), 64: (32, 2),
    }  # fmt: skip
    assert all(topology.workers == n for n, topology in shapes.items())
    node = parse_topology("8x @ nvlink3-x12")  # without a link between nodes
    assert node.with_workers(8) == node and node.with_workers(3).devices_per_node == 3
    with pytest.raises(BadValue, match=r"must be a multiple of 2, the devices per node, such as 4 or 6 \(got 5\)"):
        machine.with_workers(5)
    with pytest.raises(BadValue, match=r"must be an integer >= 1 \(got 0\)"):
        machine.with_workers(0)
    with pytest.raises(
        BadValue, match="must be <= 8, the devices of the single node, or the topology needs a link between nodes"
    ):
        parse_topology("8x @ nvlink3-x12").with_workers(16)


# 1 GB: 0.1 s inside, 1 s between; 2 devices in each of 4 nodes.
@pytest.mark.parametrize(
    ("collective", "seconds"),
    [
        ("hierarchical", 2 / 2 * 0.1 + 2 * 3 / 4 * 1),  # ring in the node, then D through every node's link
        ("ring", 2 * 7 / 8 * 1),  # around all eight, limited by the slower link
        ("double-tree", 2),
        ("tree", 2 * 0.1 + 2 * 2 * 1),  # one step in the node, two between nodes, each up and down
        ("butterfly", 0.1 + 2 * 2 * 1),  # both devices of a node share its link
        ("butterfly-mixing", (0.1 + 2 * 2 * 1) / 3),  # the mean of the butterfly's three rounds
        ("one-to-all", 2 * (1 * 0.1 + 6 * 1)),  # one neighbour in the node, six devices in other nodes
    ],
)
def test_two_kinds_of_link_by_hand(collective: str, seconds: float) -> None:
    assert topology_all_reduce_s(TWO_BY_FOUR, 1e9, collective) == pytest.approx(seconds)


def test_the_fastest_collective_is_chosen() -> None:
    assert choose_all_reduce(TWO_BY_FOUR, np.array([1e9]), None)[1] == "hierarchical"
    assert topology_all_reduce_s(TWO_BY_FOUR, 1e9) == pytest.approx(1.6)
    # 10 us per step: an empty message takes 4 steps of the butterfly among 6 workers, 10 of the ring.
    late = flat_topology(LinkRate("late", 1e9, 1e-5), 6)
    assert choose_all_reduce(late, np.array([0]), None)[1] == "butterfly"
    assert topology_all_reduce_s(late, 0) == pytest.approx(4e-5)
    assert choose_all_reduce(late, np.array([1e9]), None)[1] == "ring"
    # Among 4,000 workers the 7,998 latencies of the ring take longer than the double tree.
    assert (
        choose_all_reduce(flat_topology(LinkRate("late", 1e9, 1e-5), 4000), np.array([1e7]), None)[1] == "double-tree"
    )
    sizes = np.array([0, 1e5, 1e9])
    assert topology_all_reduce_s(late, sizes) == pytest.approx([topology_all_reduce_s(late, size) for size in sizes])


def test_a_measured_link_uses_ring_collectives() -> None:
    """Its latency was fitted to a ring, and does not apply to the steps of another collective."""
    measured = flat_topology(parse_topology("8x @ nvlink3-x12").inside, 8)
    assert choose_all_reduce(measured, np.array([0]), None)[1] == "ring"
    assert choose_all_reduce(parse_topology(ISSUE), np.array([1e6]), None)[1] in ("ring", "hierarchical")


@given(MESSAGE_BYTES, st.integers(1, 64), st.integers(1, 64), st.sampled_from(EXACT_COLLECTIVES))
def test_no_collective_beats_the_link_between_nodes(size: int, per_node: int, nodes: int, collective: str) -> None:
    topology = Topology(None, per_node, INSIDE, nodes, BETWEEN)
    seconds = topology_all_reduce_s(topology, size, collective)
    assert seconds >= 2 * (nodes - 1) / nodes * size / BETWEEN.bandwidth_bytes_per_s * (1 - 1e-9)
    assert topology_all_reduce_s(topology, size) <= seconds * (1 + 1e-9)
    assert topology_all_reduce_s(topology, 2 * size, collective) >= seconds * (1 - 1e-9)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_kind_of_link_agrees_with_all_reduce_time_s(collective: str) -> None:
    for topology in (flat_topology(BETWEEN, 6), Topology(None, 6, BETWEEN, 1, None)):
        assert topology_all_reduce_s(topology, 1e9, collective) == all_reduce_time_s(collective, 1e9, 6, BETWEEN)
    assert topology_all_reduce_s(flat_topology(BETWEEN, 1), np.ones(3), collective).tolist() == [0, 0, 0]


def test_invalid_collectives_and_messages() -> None:
    with pytest.raises(UnknownName, match="no collective is called 'star'"):
        topology_all_reduce_s(TWO_BY_FOUR, 1, "star")
    with pytest.raises(BadValue, match="must be >= 0 bytes"):
        topology_all_reduce_s(TWO_BY_FOUR, -1)


def test_descriptions() -> None:
    assert parse_topology(ISSUE).describe() == "16 nodes of 2 k40m: pcie3-x16 inside, infiniband-fdr between"
    assert flat_topology(BETWEEN, 4).describe() == "4 nodes of 1 device: between between"
    assert flat_topology(BETWEEN, 1).describe() == "1 node of 1 device"  # no link is in use
    inside, network = link_rate("pcie4-x16"), link_rate("infiniband-hdr")
    assert flat_topology(inside, 4).describe() == "1 node of 4 devices: pcie4-x16 inside"  # of one computer
    assert flat_topology(network, 4).describe() == "4 nodes of 1 device: infiniband-hdr between"

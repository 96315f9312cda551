"""Measured collectives as evidence of links, and the links that they lead to.

Tests: calibration/evidence_notes.py.
"""

from __future__ import annotations

import math

import pytest

from paleo_lite.calibration.evidence_file import EvidenceCalibration
from paleo_lite.calibration.evidence_notes import notes_on_calibration
from paleo_lite.calibration.posterior import Observation
from paleo_lite.distributed.clusters import BEST, EXPECTED, WORST, ClusterScores, cluster_prior
from paleo_lite.distributed.link_causes import (
    KIND,
    TIME,
    collective_s,
    collective_shares,
    expected_rate,
    learned_topology,
    link_notes,
    link_traits,
    measured_topology,
    move_link,
    move_topology,
    why_links_are_unused,
)
from paleo_lite.distributed.links import LinkRate, Topology, link_rate
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.replica import link_devices
from paleo_lite.distributed.settings import Settings
from paleo_lite.engines.division import Division
from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device

# 100 GB/s, and 10 us of a call: 1 GB between two devices takes 10 ms of transfer, and as many bytes are sent.
LINK = LinkRate("a link", 1e11, start_s=1e-5)
PAIR = Topology(None, 2, LINK, 1, None)
H100 = find_device("h100-sxm")


def rows_of(topology: Topology, factor: float, kind: str = KIND) -> EvidenceCalibration:
    """Return a calibration by collectives of all sizes that take `factor` times their forecasts."""
    assert topology.inside is not None
    traits = link_traits(topology.inside, H100.id, "all-reduce", topology.devices_per_node)
    rows = []
    for size in (1e3, 1e5, 1e7, 1e9):
        shares = collective_shares(topology, "all-reduce", size)
        rows.append(Observation(kind, TIME, f"{size:g}", traits, factor, 1.0, shares))
    return EvidenceCalibration(1, "evidence", rows)


@pytest.mark.parametrize("operation, sent", [("all-reduce", 1e9), ("all-gather", 5e8), ("reduce-scatter", 5e8)])
def test_shares_are_those_of_latency_and_transfer(operation: str, sent: float) -> None:
    # Of two devices a ring sends 2 (n - 1) / n = 1 times the message, and half of it one half of a ring.
    transfer_s = sent / 1e11
    assert collective_s(PAIR, operation, 1e9) == pytest.approx(transfer_s + 1e-5)
    shares = collective_shares(PAIR, operation, 1e9)
    assert shares == pytest.approx(
        {"latency": 1e-5 / (transfer_s + 1e-5), "transfer": transfer_s / (transfer_s + 1e-5)}, rel=1e-3
    )


def test_factors_multiply_the_seconds_of_their_cause() -> None:
    slower = move_topology(PAIR, {"latency": math.log(3), "transfer": math.log(2)})
    assert collective_s(slower, "all-reduce", 1e9) == pytest.approx(3e-5 + 2e-2)
    measured = link_rate("nvlink4-x18")
    moved = move_link(measured, {"transfer": math.log(2)})
    assert moved.ppp_for(8) == pytest.approx(measured.ppp_for(8) / 2)
    assert moved.moved == pytest.approx(0.5)


def test_a_link_without_measurements_has_the_latencies_of_others() -> None:
    name = "pcie4-x16"
    assert link_rate(name).start_s == 0
    link = expected_rate(name)
    assert link.ppp == cluster_prior().bandwidth_share["host"]
    assert 1e-6 < link.start_s < 1e-4  # NCCL's smallest messages take some 10 us between a few devices
    assert expected_rate("nvlink4-x18") == link_rate("nvlink4-x18")


def test_measured_devices_have_their_usual_links() -> None:
    alone = measured_topology(H100, 4, 1, None, "all-reduce")
    assert alone.describe() == "1 node of 4 h100-sxm: nvlink4-x18 inside"
    several = measured_topology(H100, 16, 2, None, "all-reduce")
    assert several.describe() == "2 nodes of 8 h100-sxm: nvlink4-x18 inside, 8x infiniband-ndr between"
    given = measured_topology(H100, 16, 2, "infiniband-hdr", "all-reduce")
    assert given.describe() == "2 nodes of 8 h100-sxm: nvlink4-x18 inside, 8x infiniband-hdr between"
    with pytest.raises(BadValue, match="nodes of different sizes have no forecast"):
        measured_topology(H100, 15, 2, None, "all-reduce")
    with pytest.raises(BadValue, match="all-gather over several nodes has no forecast: only all-reduces have"):
        collective_s(several, "all-gather", 1e9)
    with pytest.raises(BadValue, match="the network between nodes of k80 is not on record: give `--link`"):
        measured_topology(find_device("k80"), 4, 2, None, "all-reduce")


def test_slow_collectives_make_their_own_link_slower() -> None:
    topology = parse_topology("8x h100-sxm @ nvlink4-x18, 2 nodes @ 3200 Gbit/s")
    evidence = rows_of(topology, 2.0)
    learned = learned_topology(topology, H100, evidence, "train")
    assert learned.inside is not None and topology.inside is not None
    assert topology.inside.ppp / 2 < learned.inside.ppp < 0.7 * topology.inside.ppp
    assert learned.between == topology.between
    assert "calibrated by 4 measured figures" in learned.inside.label
    assert link_notes(learned, H100, evidence)
    assert learned_topology(topology, find_device("h200-sxm"), evidence, "train") == topology
    assert link_devices(learned.with_workers(8), Division(8)).link_bytes_per_s == pytest.approx(
        topology.inside.bandwidth_bytes_per_s * learned.inside.moved
    )


def test_an_answer_says_why_measured_collectives_change_nothing() -> None:
    topology = parse_topology("8x h100-sxm @ nvlink4-x18, 2 nodes @ 3200 Gbit/s")
    evidence = rows_of(topology, 2.0)
    learned = learned_topology(topology, H100, evidence, "train")
    assert link_notes(learned, H100, evidence) == ("links calibrated by 4 measured figures",)
    others = parse_topology("8x v100-sxm2 @ nvlink2-x6")
    reason = "those of nvlink4-x18 have nothing in common with nvlink2-x6"
    assert why_links_are_unused(others, evidence) == reason
    assert why_links_are_unused(None, evidence) == "one device has no links"
    (note,) = notes_on_calibration(evidence, "train", H100, "resnet50", {"train"}, others)
    assert note == f"4 measured figures of collectives in the calibration change nothing here: {reason}"
    (note,) = notes_on_calibration(evidence, "diffusion", H100, "sdxl", {"picture"}, learns_links=False)
    assert note.endswith("change nothing here: `diffusion` does not learn from them")


def test_measured_links_narrow_the_spread_between_clusters() -> None:
    topology = parse_topology("8x h100-sxm @ pcie5-x16")
    learned = learned_topology(topology, H100, rows_of(topology, 1.0), "train")

    def ends(own: Topology) -> float:
        ppp = []
        for score in (BEST, EXPECTED, WORST):
            moved, _ = cluster_prior().cluster_at(ClusterScores.uniform(score), own, Settings())
            assert moved.inside is not None
            ppp.append(moved.inside.ppp)
        assert own.inside is not None
        assert ppp[1] == own.inside.ppp
        return ppp[0] / ppp[2]

    assert ends(topology) == pytest.approx(cluster_prior().bandwidth.best / cluster_prior().bandwidth.worst)
    assert 1 < ends(learned) < 0.9 * ends(topology)


def test_measured_steps_say_more_of_exchanges_than_links() -> None:
    topology = parse_topology("8x h100-sxm @ nvlink4-x18")
    links = rows_of(topology, 2.0)
    traits = {"source": "", "engine": "eager", "device": H100.id, "format": "bf16", "network": "resnet50"}

    def with_step(exchanges: float) -> EvidenceCalibration:
        shares = {"products": 1 - exchanges, "exchanges": exchanges}
        step = Observation("train", "step_s", "a step", traits, 1.0, 1.0, shares)
        return EvidenceCalibration(1, "evidence", [*links.observations, step])

    assert learned_topology(topology, H100, with_step(0.2), "train") == topology
    assert learned_topology(topology, H100, with_step(0.0), "train") != topology
    assert learned_topology(topology, H100, with_step(0.2), "server") != topology
    assert learned_topology(topology, H100, None, "train") == topology

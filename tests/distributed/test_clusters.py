"""What is expected of clusters that nobody measured: by hand, from the shipped file, and in what `scale` answers."""

from __future__ import annotations

import math

import msgspec
import pytest

import paleo_lite
from paleo_lite.distributed.advise import _why
from paleo_lite.distributed.clusters import (
    BEST,
    EXPECTED,
    WORST,
    ClusterPrior,
    Range,
    Scores,
    best_case,
    cluster_prior,
)
from paleo_lite.distributed.job import Settings
from paleo_lite.distributed.links import LinkRate, flat, link_rate
from paleo_lite.distributed.platforms import find_platform
from paleo_lite.distributed.table import ScaleRow
from paleo_lite.errors import BadValue
from paleo_lite.reporting.scale import scale_page

PRIOR = ClusterPrior(
    1, Range(0.2, 0.1, 0.0), Range(0.0, 0.5, 1.0), Range(0.5, 1.0, 1.5), {"network": 0.6}, 3, 2, "nothing", []
)
GRADIENTS = 138_357_544 * 4  # bytes of VGG16's, Simonyan and Zisserman 2014, table 2


def test_every_doubling_of_the_workers_costs_as_much() -> None:
    """Three of them to 8 workers."""
    assert Settings(stragglers=0.1).among(8).slowdown == pytest.approx(0.3)
    assert Settings(slowdown=0.3).among(8) == Settings(slowdown=0.3)
    assert Settings(stragglers=0.1).among(1).slowdown == 0
    for wrong in ({"hiding": 1.1}, {"hiding": -0.1}, {"stragglers": -1.0}):
        with pytest.raises(BadValue, match="hiding must be"):
            Settings(**wrong)


def test_what_does_not_hide_is_exposed() -> None:
    """Between what overlap leaves and everything: a ring of 8 over 1 GB/s takes 2 * 7 / 8 D / (1 GB/s)."""
    asked = {"gpu": "k80-die", "link": "1 GB/s", "time_model": "roofline", "batch_size": 64, "workers": [8]}
    least, half, most = (
        paleo_lite.scale("vgg16", settings=Settings("ring", hiding=share), **asked)[0] for share in (1, 0.5, 0)
    )
    assert most.exposed_s == pytest.approx(2 * 7 / 8 * GRADIENTS / 1e9)
    assert 0 < least.exposed_s < 0.9 * most.exposed_s
    assert half.exposed_s == pytest.approx((least.exposed_s + most.exposed_s) / 2)


@pytest.mark.parametrize(
    ("score", "share", "hiding", "stragglers"),
    [(WORST, 0.3, 0, 0.2), (BEST, 0.9, 1, 0), (EXPECTED, 0.6, 0.5, 0.1), (WORST / 2, 0.6 * 0.5**0.5, 0.25, 0.15)],
)
def test_ends_of_the_population(score, share, hiding, stragglers) -> None:
    """Linear between what is expected and an end; of the bandwidth the logarithm."""
    machine, settings = PRIOR.at(Scores(*[score] * 4), flat(link_rate("ethernet20"), 8), Settings())
    assert machine.between.ppp == pytest.approx(share)
    assert (settings.hiding, settings.stragglers) == (pytest.approx(hiding), pytest.approx(stragglers))


def test_what_was_asked_stays() -> None:
    asked = Settings(overlap=False, slowdown=0.3)
    machine, settings = PRIOR.at(Scores(*[WORST] * 4), flat(link_rate("ethernet20", 0.8), 8), asked)
    assert settings == asked
    assert machine.between == link_rate("ethernet20", 0.8)


def test_a_link_that_was_measured_elsewhere_is_another_s() -> None:
    link = link_rate("pcie3-x16")
    machine, _ = PRIOR.at(Scores(*[WORST] * 4), flat(link, 8), Settings())
    assert float(machine.between.ppp_of(4)) == pytest.approx(float(link.ppp_of(4)) / 2)
    assert PRIOR.at(Scores(*[EXPECTED] * 4), flat(link, 8), Settings())[0].between.ppp_at == link.ppp_at


def test_the_best_case_knows_no_shares() -> None:
    link = link_rate("pcie3-x16")
    machine, settings = best_case(flat(link, 8), Settings(slowdown=0.2, hiding=0.1, interference=1))
    assert machine.between == LinkRate("pcie3-x16", link.bandwidth_bytes_per_s)
    assert settings == Settings()


def test_every_row_has_an_interval_and_a_bound() -> None:
    table = paleo_lite.scale("resnet50", gpu="k80-die", link="ethernet20", workers="1,2,8,64")
    for row in table:
        low, high = row.interval
        assert row.bound_s < low < row.time_s < high
    for row in list(table)[1:]:
        low, high = row.efficiency_interval
        assert low < row.efficiency < high <= 1
        # What computing leaves open comes on top of what the cluster does.
        assert row.interval[1] > row.cluster_interval[1]
    assert table[0].efficiency_interval is None
    page = scale_page(table)
    assert "at 90%" in page.title
    assert any(cluster_prior().held_out in note for note in page.notes)


def test_a_best_case_says_so_first() -> None:
    table = paleo_lite.scale("resnet50", gpu="k80-die", link="ethernet20", workers=[1, 8], time_model="roofline")
    assert "the best case of the data sheets, at least" in scale_page(table).title
    assert not table.to_dict()["is_forecast"]
    assert table[1].efficiency_interval is None


def test_platforms_leave_open_what_their_fit_did(tmp_path) -> None:
    """1.645 deviations of the platform's file, computing aside."""
    row = paleo_lite.scale("vgg16", platform="dgx1-p100", gpu="p100-sxm2", workers=[8])[0]
    assert row.cluster_interval[1] / row.time_s == pytest.approx(math.exp(1.645 * find_platform("dgx1-p100").scatter))
    assert row.cluster_interval[0] < row.time_s


def test_advice_says_when_it_depends_on_the_cluster() -> None:
    """Steps of 10 and 11 s, the second less sensitive: on a bad cluster it is the faster one, on a good one not."""
    first = ScaleRow(compute_s=10.0, workers=8, batch_size=8, alone_per_s=1.0, cluster_interval=(9.0, 20.0), fits=True)
    second = ScaleRow(
        compute_s=11.0, workers=8, batch_size=8, alone_per_s=1.0, cluster_interval=(10.5, 12.0), fits=True,
        strategy="hybrid",
    )  # fmt: skip
    assert _why([first, second], None).endswith(
        "; on a worse cluster hybrid is faster: data and hybrid cannot be told apart"
    )
    steady = msgspec.structs.replace(second, cluster_interval=(9.5, 21.0))
    assert "cluster" not in _why([first, steady], None)


def test_the_shipped_prior_is_in_order() -> None:
    prior = cluster_prior()
    assert prior.stragglers.worst > prior.stragglers.expected >= prior.stragglers.best >= 0
    assert 0 <= prior.hiding.worst <= prior.hiding.expected <= prior.hiding.best <= 1
    assert prior.bandwidth.worst < 1 < prior.bandwidth.best
    assert msgspec.structs.asdict(prior)["share"].keys() == {"host", "device", "network"}

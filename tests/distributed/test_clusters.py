"""Expected behaviour of unmeasured clusters: by hand, the shipped prior, and its use by `scale`."""

from __future__ import annotations

import math

import msgspec
import pytest

from asked import scaling
from paleo_lite.distributed.advise import _explain
from paleo_lite.distributed.clusters import (
    BEST,
    EXPECTED,
    WORST,
    ClusterPrior,
    ClusterScores,
    Range,
    cluster_prior,
    data_sheet_case,
)
from paleo_lite.distributed.links import LinkRate, flat_topology, link_rate
from paleo_lite.distributed.platforms import find_platform
from paleo_lite.distributed.settings import Settings
from paleo_lite.distributed.table import ScaleRow
from paleo_lite.errors import BadValue
from paleo_lite.reporting.scale import scale_page

PRIOR = ClusterPrior(
    1, Range(0.2, 0.1, 0.0), Range(0.0, 0.5, 1.0), Range(0.5, 1.0, 1.5), {"network": 0.6}, 3, 2, "nothing", []
)
GRADIENTS = 138_357_544 * 4  # bytes of VGG16's, Simonyan and Zisserman 2014, table 2


def test_every_doubling_of_the_workers_adds_the_straggler_penalty() -> None:
    """There are three doublings up to 8 workers."""
    assert Settings(straggler_penalty=0.1).with_straggler_slowdown(8).slowdown == pytest.approx(0.3)
    assert Settings(slowdown=0.3).with_straggler_slowdown(8) == Settings(slowdown=0.3)
    assert Settings(straggler_penalty=0.1).with_straggler_slowdown(1).slowdown == 0
    for wrong in ({"overlap_efficiency": 1.1}, {"overlap_efficiency": -0.1}, {"straggler_penalty": -1.0}):
        with pytest.raises(
            BadValue, match=r"overlap_efficiency must be between 0 and 1|straggler_penalty must be a fraction >= 0"
        ):
            Settings(**wrong)
    for name in ("slowdown", "interference", "straggler_penalty"):
        with pytest.raises(BadValue, match=rf"{name} must be at most 1e\+06 \(got 1e\+300\)"):
            Settings(**{name: 1e300})


def test_overlap_efficiency_interpolates_exposed_communication() -> None:
    """Between complete overlap and none: a ring of 8 over 1 GB/s takes 2 * 7 / 8 D / (1 GB/s)."""
    asked = {"gpu": "k80-die", "link": "1 GB/s", "time_model": "roofline", "batch_size": 64, "workers": [8]}
    least, half, most = (
        scaling("vgg16", settings=Settings("ring", overlap_efficiency=share), **asked)[0] for share in (1, 0.5, 0)
    )
    assert most.exposed_s == pytest.approx(2 * 7 / 8 * GRADIENTS / 1e9)
    assert 0 < least.exposed_s < 0.9 * most.exposed_s
    assert half.exposed_s == pytest.approx((least.exposed_s + most.exposed_s) / 2)


@pytest.mark.parametrize(
    ("score", "share", "overlap", "stragglers"),
    [(WORST, 0.3, 0, 0.2), (BEST, 0.9, 1, 0), (EXPECTED, 0.6, 0.5, 0.1), (WORST / 2, 0.6 * 0.5**0.5, 0.25, 0.15)],
)
def test_ends_of_the_population(score, share, overlap, stragglers) -> None:
    """Linear between the expected value and an end, for the bandwidth on a logarithmic scale."""
    machine, settings = PRIOR.cluster_at(
        ClusterScores(*[score] * 4), flat_topology(link_rate("ethernet20"), 8), Settings()
    )
    assert machine.between.ppp == pytest.approx(share)
    assert (settings.overlap_efficiency, settings.straggler_penalty) == (
        pytest.approx(overlap),
        pytest.approx(stragglers),
    )


def test_user_settings_stay() -> None:
    asked = Settings(overlap=False, slowdown=0.3)
    machine, settings = PRIOR.cluster_at(
        ClusterScores(*[WORST] * 4), flat_topology(link_rate("ethernet20", 0.8), 8), asked
    )
    assert settings == asked
    assert machine.between == link_rate("ethernet20", 0.8)


def test_links_measured_elsewhere_vary_between_clusters() -> None:
    link = link_rate("pcie3-x16")
    machine, _ = PRIOR.cluster_at(ClusterScores(*[WORST] * 4), flat_topology(link, 8), Settings())
    assert float(machine.inside.ppp_for(4)) == pytest.approx(float(link.ppp_for(4)) / 2)
    assert (
        PRIOR.cluster_at(ClusterScores(*[EXPECTED] * 4), flat_topology(link, 8), Settings())[0].inside.ppp_at
        == link.ppp_at
    )


def test_the_data_sheet_case_has_full_bandwidth() -> None:
    link = link_rate("pcie3-x16")
    machine, settings = data_sheet_case(
        flat_topology(link, 8), Settings(slowdown=0.2, overlap_efficiency=0.1, interference=1)
    )
    assert machine.inside == LinkRate("pcie3-x16", link.bandwidth_bytes_per_s)
    assert settings == Settings()


def test_every_row_has_an_interval_and_a_bound() -> None:
    table = scaling("resnet50", gpu="k80-die", link="ethernet20", workers="1,2,8,64")
    for row in table:
        low, high = row.interval
        assert row.bound_s < low < row.time_s < high
    for row in list(table)[1:]:
        low, high = row.efficiency_interval
        assert low < row.efficiency < high <= 1
        # The uncertainty of computation comes on top of that of the cluster.
        assert row.interval[1] > row.cluster_interval[1]
    assert table[0].efficiency_interval is None
    page = scale_page(table)
    assert "at 90%" in page.title
    assert any(cluster_prior().held_out in note for note in page.notes)


def test_bounds_are_labelled_in_the_headline() -> None:
    table = scaling("resnet50", gpu="k80-die", link="ethernet20", workers=[1, 8], time_model="roofline")
    title = scale_page(table).title
    assert "workers: at least " in title and "(bound from the data sheets)" in title
    assert not table.to_dict()["is_forecast"]
    assert table[1].efficiency_interval is None


def test_platform_intervals_follow_the_scatter_of_the_fit(tmp_path) -> None:
    """1.645 times the scatter in the platform's file, without the uncertainty of computation."""
    row = scaling("vgg16", platform="dgx1-p100", gpu="p100-sxm2", workers=[8])[0]
    assert row.cluster_interval[1] / row.time_s == pytest.approx(math.exp(1.645 * find_platform("dgx1-p100").scatter))
    assert row.cluster_interval[0] < row.time_s


def test_advice_explains_when_it_depends_on_the_cluster() -> None:
    """Steps of 10 and 11 s, the second less sensitive: it is faster on a bad cluster, not on a good one."""
    first = ScaleRow(
        compute_s=10.0, workers=8, batch_size=8, single_worker_per_s=1.0, cluster_interval=(9.0, 20.0), fits=True
    )
    second = ScaleRow(
        compute_s=11.0, workers=8, batch_size=8, single_worker_per_s=1.0, cluster_interval=(10.5, 12.0), fits=True,
        strategy="hybrid",
    )  # fmt: skip
    assert _explain([first, second]).endswith(
        "; on a worse cluster hybrid is faster: data and hybrid are equal within the uncertainty"
    )
    steady = msgspec.structs.replace(second, cluster_interval=(9.5, 21.0))
    assert "cluster" not in _explain([first, steady])


def test_the_shipped_prior_is_plausible() -> None:
    prior = cluster_prior()
    assert prior.straggler_penalty.worst > prior.straggler_penalty.expected >= prior.straggler_penalty.best >= 0
    assert (
        0 <= prior.overlap_efficiency.worst <= prior.overlap_efficiency.expected <= prior.overlap_efficiency.best <= 1
    )
    assert prior.bandwidth.worst < 1 < prior.bandwidth.best
    assert prior.bandwidth_share.keys() == {"host", "device", "network"}

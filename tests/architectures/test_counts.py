"""Counts per layer: totals, shares and ignored layers."""

from __future__ import annotations

import pytest

from paleo_lite.architectures import Network, count_network, find_network
from paleo_lite.counting import INPUT, Layer
from paleo_lite.errors import BadValue, UnknownName, UnsupportedPhase

UNKNOWN = Network(
    "odd",
    ((1, 3),),
    (
        Layer("a", "linear", ((1, 3),), ((1, 4),), ((4, 3),), (INPUT,), 12),
        Layer("b", "aten.sort", ((1, 4),), ((1, 4),), (), (0,)),
    ),
    12,
)


def test_layers_without_a_rule_are_listed_and_not_zero():
    counts = count_network(UNKNOWN)
    assert counts.unknown == ("b (aten.sort)",)
    assert [row["count"] for row in counts.rows()] == [24, None]
    assert counts.by_kind()["aten.sort"] == {"layers": 1, "count": None, "share": None}
    assert "b (aten.sort)" in counts.notes[-1]
    assert counts.to_dict()["unknown"] == ["b (aten.sort)"]


def test_shares_add_up():
    counts = count_network(find_network("resnet50"), batch_size=3)
    assert sum(kind["share"] for kind in counts.by_kind().values()) == pytest.approx(1)
    assert sum(kind["count"] for kind in counts.by_kind().values()) == counts.total
    by_kind = [(kind["count"], name) for name, kind in counts.by_kind().items()]
    assert by_kind == sorted(by_kind, key=lambda pair: (-pair[0], pair[1]))
    assert by_kind[0][1] == "conv2d"  # the most of a ResNet, first
    assert sum(row["count"] for row in counts.rows()) == counts.total
    pytest.importorskip("pandas")
    assert len(counts.to_frame()) == len(list(counts.rows()))


@pytest.mark.parametrize("pattern", ["features.0", "features_0", "features.*", "classifier_[06]"])
def test_names_and_globs_to_ignore(pattern):
    network = find_network("vgg16")
    left = count_network(network, ignore=[pattern])
    assert 0 < left.total < count_network(network).total
    assert len(left.reported) < len(network.layers)


def test_pattern_without_match_is_an_error():
    with pytest.raises(UnknownName, match=r"features\.0"):
        count_network(find_network("vgg16"), ignore=["feature.0"])


def test_invalid_arguments():
    network = find_network("alexnet")
    with pytest.raises(UnsupportedPhase, match="forward pass only"):
        count_network(network, "pthflops", phase="training")
    with pytest.raises(UnknownName, match="training"):
        count_network(network, phase="trainig")
    for batch_size in (0, -1, True, 1.5, "2"):
        with pytest.raises(BadValue):
            count_network(network, batch_size=batch_size)
    with pytest.raises(BadValue, match="overflow 64 bits"):
        count_network(network, batch_size=2**60)

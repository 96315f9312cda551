"""Counting conventions, compared with published counts."""

from __future__ import annotations

import pytest

from paleo_lite.architectures import count_network, find_network
from paleo_lite.counting import CONVENTIONS, INPUT, Layer, count, find_convention
from paleo_lite.errors import UnknownName, UnsupportedPhase

# Printed by pthflops for VGG16 at 224 x 224, row for row, with its own spelling of the names.
PTHFLOPS_VGG16 = {
    "features_0": 89915392, "features_1": 6422528, "features_2": 1852899328, "features_3": 6422528,
    "features_4": 2408448, "features_5": 926449664, "features_6": 3211264, "features_7": 1851293696,
    "features_8": 3211264, "features_9": 1204224, "features_10": 925646848, "features_11": 1605632,
    "features_12": 1850490880, "features_13": 1605632, "features_14": 1850490880, "features_15": 1605632,
    "features_16": 602112, "features_17": 925245440, "features_18": 802816, "features_19": 1850089472,
    "features_20": 802816, "features_21": 1850089472, "features_22": 802816, "features_23": 301056,
    "features_24": 462522368, "features_25": 200704, "features_26": 462522368, "features_27": 200704,
    "features_28": 462522368, "features_29": 200704, "features_30": 75264, "avgpool": 1229312,
    "classifier_0": 102764544, "classifier_1": 8192, "classifier_3": 16781312, "classifier_4": 8192,
    "classifier_6": 4097000,
}  # fmt: skip
IGNORED = [
    *(f"features_{i}" for i in (1, 3, 4, 6, 8, 9, 11, 13, 15, 16, 18, 20, 22, 23, 25, 27, 29, 30)),
    *(f"classifier_{i}" for i in range(7)),
]


def test_the_37_rows_that_pthflops_printed():
    counts = count_network(find_network("vgg16"), "pthflops")
    rows = {row["name"].replace(".", "_"): row["count"] for row in counts.rows() if row["count"]}
    assert len(rows) == 37
    assert rows == PTHFLOPS_VGG16
    assert counts.total == 15_516_752_872


@pytest.mark.parametrize(
    ("origin", "kind", "attributes", "counted"),
    [  # ops/op.py and flops/*.py of pthflops 0.4: two operands count twice, a convolution's bias once per output
        ("function", "add", {}, 2 * 24), ("operator", "mul", {}, 2 * 24), ("function", "matmul", {}, 24 * 6),
        ("function", "relu", {}, 0), ("function", "conv2d", {}, 0), ("function", "softmax", {}, 0),
        ("method", "add", {}, 0), ("opaque:Block", "relu", {}, 0),
        ("module:ReLU", "relu", {}, 2 * 24), ("module:GELU", "gelu", {}, 0),
        ("module:MaxPool1d", "max_pool", {"kernel": [3]}, 2 * 24),
        ("module:AvgPool1d", "avg_pool", {"kernel": [3]}, 3 * 24),
    ],
)  # fmt: skip
def test_pthflops_by_hand(origin, kind, attributes, counted):
    shape = (1, 4, 6)
    layer = Layer("it", kind, (shape,), (shape,), parents=(INPUT,), attributes=attributes, origin=origin)
    if kind == "conv2d":
        layer = layer._replace(inputs=((1, 4, 6, 6),), outputs=((1, 4, 6, 6),), weights=((4, 4, 1, 1),))
    if kind in ("add", "mul", "matmul"):
        other = (1, 6, 6) if kind == "matmul" else shape
        layer = layer._replace(inputs=(shape, other), parents=(INPUT, INPUT))
    assert count([layer], convention="pthflops").counts("forward").tolist() == [counted]


def test_the_99_percent_that_was_printed():
    network = find_network("vgg16")
    left = count_network(network, "pthflops", ignore=IGNORED)
    assert left.total == 15_361_407_488
    assert f"{100 * left.total / count_network(network, 'pthflops').total:.2f}" == "99.00"


def test_the_share_of_vgg19s_convolutions():
    """By hand: 19,508,428,800 MACs in 16 convolutions, 123,633,664 in 3 linear layers."""
    kinds = count_network(find_network("vgg19"), "macs").by_kind()
    assert kinds["conv2d"]["count"] == 19_508_428_800
    assert kinds["linear"]["count"] == 123_633_664
    assert f"{100 * kinds['conv2d']['share']:.2f}" == "99.37"


@pytest.mark.parametrize(
    ("name", "printed"), [("vgg16", "15503M"), ("googlenet-caffe", "1606M"), ("resnet50-caffe", "3922M")]
)
def test_the_totals_of_lu_et_al(name, printed):
    counts = count_network(find_network(name), "lu2017")
    assert f"{round(counts.total / 1e6)}M" == printed
    assert counts.unknown == ()


@pytest.mark.parametrize(
    ("name", "convolution", "linear"),
    [
        ("vgg16", 15_346.631, 123.634),
        ("googlenet-caffe", 1_581.648, 1.024),
        ("resnet50-caffe", 3_855.925, 2.048),
    ],
)
def test_the_multiply_accumulates_of_the_caffe_networks(name, convolution, linear):
    kinds = count_network(find_network(name), "macs").by_kind()
    assert kinds["conv2d"]["count"] / 1e6 == pytest.approx(convolution, abs=0.0006)
    assert kinds["linear"]["count"] / 1e6 == pytest.approx(linear, abs=0.0006)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_only_flops_and_macs_count_backward(convention):
    work = count(find_network("alexnet").layers, convention=convention)
    assert work.counts("forward").sum() > 0
    if find_convention(convention).count is None:
        assert work.counts("backward").sum() > work.counts("forward").sum()
        assert work.counts_by_pass("training").shape[0] == 4
    else:
        with pytest.raises(UnsupportedPhase, match=convention):
            work.counts("training")


def test_an_unknown_convention_names_the_known_ones():
    with pytest.raises(UnknownName, match="flops"):
        find_convention("flop")

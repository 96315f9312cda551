"""Classes of work: those of real networks, counted in the tables of their papers.

Tests: timing/features.py.
"""

from __future__ import annotations

from collections import Counter

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.counting import Layer
from paleo_lite.counting.kinds import class_of
from paleo_lite.counting.kinds.products import MATRIX_CLASSES
from paleo_lite.timing.features import CLASSES

PUBLISHED = {
    # He et al. 2016, table 1: 16 blocks of 1x1, 3x3, 1x1; four shortcuts are projected. Three of the 3x3 have
    # stride 2 (torchvision: "V1.5"), the first layer is 7x7.
    "resnet50": {"conv_1x1": 2 * 16 + 4, "conv_3x3": 13, "conv_direct": 4, "gemm": 1},
    # Xie et al. 2017, table 1: the 3x3 of all blocks in 32 groups.
    "resnext50_32x4d": {"conv_1x1": 2 * 16 + 4, "conv_grouped": 16, "conv_direct": 1, "gemm": 1},
    # Sandler et al. 2018, table 2: 17 bottlenecks, the first without expansion; a 3x3 of stride 2 before, a 1x1 behind.
    "mobilenet_v2": {"conv_depthwise": 17, "conv_1x1": 16 + 17 + 1, "conv_direct": 1, "gemm": 1},
    # Simonyan and Zisserman 2015, table 1, column D.
    "vgg16": {"conv_3x3": 13, "gemm": 3},
    # Dosovitskiy et al. 2021, table 1: 12 layers of attention (in, out) and an MLP of two; patches are a convolution.
    "vit_b_16": {"attention": 12, "gemm": 12 * 4 + 1, "conv_direct": 1},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_as_published(name: str) -> None:
    found = Counter(class_of(layer) for layer in find_network(name).layers)
    assert {work: number for work, number in found.items() if work in MATRIX_CLASSES} == PUBLISHED[name]


def conv(weight=(8, 8, 3, 3), kind="conv2d", **attributes):
    return Layer("it", kind, ((1, 8, 9, 9),), ((1, 8, 9, 9),), (weight,), (0,), 0, attributes)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        # Lavin and Gray 2016 is for stride 1: any other step, and holes between taps, are direct.
        (conv(stride=[1, 1]), "conv_3x3"),
        (conv(stride=[2, 1]), "conv_direct"),
        (conv(stride=[1, 1], dilation=[2, 2]), "conv_direct"),
        (conv(stride=[1, 1], transposed=True, kind="conv_transpose2d"), "conv_direct"),
        (conv((8, 8, 1, 3)), "conv_direct"),
        (conv((8, 8, 3), kind="conv1d"), "conv_direct"),
        (conv((8, 8, 1, 1), stride=[2, 2]), "conv_1x1"),
        (conv((8, 1, 3, 3), groups=8), "conv_depthwise"),
        (conv((16, 1, 3, 3), groups=8), "conv_depthwise"),
        (conv((8, 4, 3, 3), groups=2), "conv_grouped"),
        (Layer("it", "local_response_norm", (), ()), "norm"),
        (Layer("it", "adaptive_avg_pool", (), ()), "pool"),
        (Layer("it", "embedding", (), ()), "copy"),
        (Layer("it", "softmax", (), ()), "elementwise"),
        (Layer("it", "aten.sort", (), ()), None),
    ],
)
def test_a_layer_has_the_class_of_how_libraries_run_it(layer: Layer, expected: str) -> None:
    assert class_of(layer) == expected
    assert expected is None or expected in CLASSES

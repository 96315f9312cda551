"""What Fourier transforms spare a convolution, and where no library offers them.

Tests: timing/features.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paleo_lite.counting import Layer
from paleo_lite.timing.features import FFT_PRODUCT_FACTOR, FFT_TRANSFORM_FACTOR, fft_work_ratio, padding_and_tiles


def conv(kernel: tuple[int, int], side: int = 26, channels: tuple[int, int] = (64, 64), **attributes: Any) -> Layer:
    shapes = (channels[0], side, side), (channels[1], side, side)
    weight = (channels[1], channels[0], *kernel)
    return Layer("conv", "conv2d", (shapes[0],), (shapes[1],), (weight,), attributes={"stride": [1, 1], **attributes})


def test_work_of_transforms_by_hand() -> None:
    """7x7 over 26x26, 64 to 64 channels, batch 32: tiles of 32 x 32, of which 26 x 26 are output; one per image.

    Transforms: 2.5 * 1024 * 10 = 25,600 operations each, of 32 * 128 tiles and 64 * 64 filters: 8,192 of them.
    Products: 32 * 17 frequencies of 64 x 64 by 32, 8 operations each. Direct: 2 * 32 * 64 * 64 * 49 * 26 * 26.
    """
    transforms, products = 25_600 * 8_192, 8 * 32 * 17 * 64 * 64 * 32
    direct = 2 * 32 * 64 * 64 * 49 * 26 * 26
    expected = (FFT_TRANSFORM_FACTOR * transforms + FFT_PRODUCT_FACTOR * products) / direct
    assert fft_work_ratio(conv((7, 7)), 32) == pytest.approx(expected)


def test_small_and_several_tiles_by_hand() -> None:
    """12 + 5 - 1 fits a tile of 16 x 16; a kernel of 7 leaves 26 of a tile of 32, and 60 take three along each axis.

    Products are padded: 33 outputs to 64, 40 inputs to 40, three tiles to 32; 3 inputs to 8, 90 tiles to 96.
    """
    transforms = 2.5 * 256 * 8 * (3 * (40 + 33) + 40 * 33)  # the logarithm of 16 * 16 to base 2 is 8
    products = 8 * 16 * 9 * 64 * 40 * 32
    expected = (FFT_TRANSFORM_FACTOR * transforms + FFT_PRODUCT_FACTOR * products) / (2 * 3 * 33 * 40 * 25 * 144)
    assert fft_work_ratio(conv((5, 5), 12, (40, 33)), 3) == pytest.approx(expected)
    transforms = 25_600 * (90 * (3 + 32) + 3 * 32)
    products = 8 * 32 * 17 * 32 * 8 * 96
    expected = (FFT_TRANSFORM_FACTOR * transforms + FFT_PRODUCT_FACTOR * products) / (2 * 10 * 32 * 3 * 49 * 3600)
    assert fft_work_ratio(conv((7, 7), 60, (3, 32)), 10) == pytest.approx(expected)


def test_a_wide_image_costs_what_a_tall_one_does() -> None:
    """5x5 over 8x16 and over 16x8: 16 + 5 - 1 need a tile of 32 x 32, 8 + 5 - 1 one of 16 x 16; the longer rules."""

    def over(height: int, width: int) -> Layer:
        return conv((5, 5))._replace(inputs=((64, height, width),), outputs=((64, height, width),))

    transforms, products = 25_600 * 8_192, 8 * 32 * 17 * 64 * 64 * 32
    expected = (FFT_TRANSFORM_FACTOR * transforms + FFT_PRODUCT_FACTOR * products) / (2 * 32 * 64 * 64 * 25 * 16 * 8)
    assert fft_work_ratio(over(8, 16), 32) == pytest.approx(expected)
    assert fft_work_ratio(over(16, 8), 32) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layer", "offered"),
    [
        (conv((7, 7)), True),
        (conv((1, 7)), False),
        (conv((7, 7), stride=[2, 2]), False),
        (conv((7, 7), stride=[1, 2]), False),
        (conv((7, 7), transposed=True), False),
        (conv((5, 5), dilation=[2, 2]), False),
        (conv((5, 5), channels=(1, 64), groups=64), False),
    ],
)
def test_libraries_offer_transforms_for_dense_wide_kernels_of_stride_1(layer: Layer, offered: bool) -> None:
    assert (fft_work_ratio(layer, 1) < math.inf) is offered


def test_many_channels_and_a_wide_kernel_are_spared_most() -> None:
    """V100, TensorFlow 1.10: 105 to 77 channels, 7x7 over 95x95, batch 45, ran 4.3 times faster than peak allows."""
    wide = conv((7, 7), side=95, channels=(105, 77))
    assert padding_and_tiles(wide, "inference", 45)[0] < 0.5
    # Few channels: the transforms alone take longer than the convolution (measured: direct).
    assert padding_and_tiles(conv((7, 7), side=400, channels=(11, 7)), "inference", 7)[0] > 1
    assert fft_work_ratio(conv((40, 40), side=64), 1) == math.inf


def test_many_batch_sizes_at_once_are_each_alone() -> None:
    layer, sizes = conv((5, 5), side=56), np.array([1, 7, 32, 512])
    together = padding_and_tiles(layer, "inference", sizes)
    for place, size in enumerate(sizes):
        alone = padding_and_tiles(layer, "inference", int(size))
        assert (together[0][place], together[1][place]) == pytest.approx(alone)


def test_the_gradient_of_an_image_is_not_padded_to_a_whole_tile() -> None:
    """Three columns count as four, not as 32; the rows are 224 * 224, whole tiles; the sum is 64 * 49 = 196 * 16."""
    shapes = (3, 224, 224), (64, 112, 112), (64, 3, 7, 7)
    layer = Layer("conv", "conv2d", shapes[:1], shapes[1:2], shapes[2:], attributes={"stride": [2, 2]})
    assert padding_and_tiles(layer, "backward_data", 1)[0] == pytest.approx(4 / 3)

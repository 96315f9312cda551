"""The algorithms' own counts, against the papers' figures and arithmetic by hand."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.counting import Layer
from paleo_lite.counting.algorithms import WINOGRAD, algorithms_of, fourier, winograd
from paleo_lite.reporting.explanations import explain_layer


def conv(size: int, channels: int, filters: int, kernel: int = 3, **attributes: object) -> Layer:
    """A convolution that keeps the size."""
    return Layer(
        "conv", "conv2d", ((1, channels, size, size),), ((1, filters, size, size),),
        ((filters, channels, kernel, kernel),), (-1,), attributes={"padding": [kernel // 2] * 2, **attributes},
    )  # fmt: skip


def test_multiplications_of_winograd_match_the_paper() -> None:
    """Lavin and Gray 2016: F(2x2, 3x3) reduces them by 36 / 16 = 2.25, F(4x4, 3x3) by 144 / 36 = 4."""
    layer = conv(56, 64, 128)
    direct = algorithms_of(layer, 2)[0]
    assert direct.multiplications == 2 * 56 * 56 * 64 * 128 * 9
    two, four = (winograd(layer, 2, transform) for transform in WINOGRAD)
    assert direct.multiplications / two.multiplications == 2.25
    assert direct.multiplications / four.multiplications == 4


def test_winograd_s_transforms_by_hand() -> None:
    """Section 4: 32, 28 and 24 instructions a tile for F(2x2, 3x3); 156, 72 and 100 for F(4x4, 3x3)."""
    two, four = WINOGRAD
    assert (two.data, two.filter, two.inverse) == (4 * (4 + 4), 4 * (3 + 4), 4 * (2 + 4))
    assert (four.data, four.filter, four.inverse) == (13 * (6 + 6), 8 * (3 + 6), 10 * (6 + 4))
    # 8 x 8 outputs are 16 tiles of 2 x 2: 16 multiplications each for 3 channels and 5 filters.
    found = winograd(conv(8, 3, 5), 1, two)
    assert found.multiplications == 16 * 16 * 3 * 5
    assert found.flops == 2 * 16 * 16 * 15 + 32 * 16 * 3 + 28 * 15 + 24 * 16 * 5


def test_tiles_that_do_not_divide_the_output_are_computed_whole() -> None:
    """7 x 7 outputs take 2 x 2 tiles of 4 x 4: 64 computed for 49, so 36 * 4 multiplications instead of 441."""
    layer = conv(7, 1, 1)
    assert winograd(layer, 1, WINOGRAD[1]).multiplications == 36 * 4
    assert algorithms_of(layer, 1)[0].multiplications == 9 * 49


def test_fourier_by_paleo_s_formula() -> None:
    """By hand for 27 x 27, 5x5, padding 2, one image, 2 channels, 3 filters.

    Untiled: 31 * 31 = 961 elements, T = 32; a transform 2 * 32 * 5 * 32 * 5 / 2 = 25,600; 2 + 6 + 3 = 11 of them;
    products 4 * 2 * 3 * 961. Tiled: one tile of 1,024.
    """
    layer = conv(27, 2, 3, kernel=5)
    assert fourier(layer, 1, tiled=False).flops == 11 * 25_600 + 24 * 961
    assert fourier(layer, 1, tiled=True).flops == 11 * 25_600 + 24 * 1024


def test_filters_are_transformed_once_for_a_batch() -> None:
    """Two images of the case above: twice the transforms of 2 channels and of 3 filters' outputs, and 6 of filters."""
    layer = conv(27, 2, 3, kernel=5)
    assert fourier(layer, 2, tiled=False).flops == (2 * (2 + 3) + 6) * 25_600 + 2 * 24 * 961


@pytest.mark.parametrize(
    ("layer", "options", "names"),
    [
        (conv(56, 64, 64), {}, ["direct", "Winograd", "Winograd", "FFT", "FFT"]),
        (conv(56, 64, 64), {"precision": "fp64"}, ["direct"]),
        (conv(56, 64, 64), {"precision": "fp16", "unit": "tensor"}, ["direct"]),
        (conv(56, 64, 64, stride=[2, 2]), {}, ["direct"]),
        (conv(56, 64, 64, dilation=[2, 2]), {}, ["direct"]),
        (conv(56, 64, 64, groups=2), {}, ["direct"]),
        (conv(56, 64, 64, kernel=1), {}, ["direct"]),
        (conv(56, 64, 64, kernel=2), {}, ["direct", "FFT", "FFT"]),
        # cuDNN's reference, CUDNN_CONVOLUTION_FWD_ALGO_FFT: height and width with both paddings are 256 or less.
        (conv(252, 3, 8, kernel=5), {}, ["direct", "FFT", "FFT"]),
        (conv(253, 3, 8, kernel=5), {}, ["direct", "FFT"]),
        (conv(300, 3, 8, kernel=5), {}, ["direct", "FFT"]),
        (Layer("x", "relu", ((1, 3),), ((1, 3),)), {}, []),
    ],
)
def test_which_algorithms_a_library_may_take(layer: Layer, options: dict[str, object], names: list[str]) -> None:
    found = algorithms_of(layer, 1, **options)  # type: ignore[arg-type]
    assert [each.name.replace(",", " ").split()[0] for each in found] == names


def test_explain_covers_efficiencies_above_one() -> None:
    prediction = pl.predict("vgg16", gpu="titan-rtx", batch_size=12)
    facts = dict(explain_layer(prediction, "features.2").facts)
    value, as_two = (
        float(facts["efficiency_conv_3x3"].split(mark)[0].split()[-1]) for mark in (" of peak with", " of peak if")
    )
    assert value > 1  # Winograd, as on every card without tensor cores in the fit
    layer = find_network("vgg16").layer("features.2")
    direct, two = algorithms_of(layer, 1)[:2]
    assert as_two == pytest.approx(value * two.flops / direct.flops, abs=0.01)
    # 224 x 224 outputs, 64 channels and filters, 12 images: 12,544 tiles each of 16 multiplications.
    assert facts["as Winograd F(2x2, 3x3)"].startswith("20.27 GFLOP, 0.457 of direct; 1.243 ms at peak")

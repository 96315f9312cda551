"""What the calibrated model knows of a layer: padding and tiles by hand, entries as the passes launch them."""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.architectures import Network
from paleo_lite.counting import INPUT, Layer
from paleo_lite.timing.calibrated import NAMES, Rates, evaluate
from paleo_lite.timing.features import CLASSES, features_of, merge_identical_entries, tilings_of
from paleo_lite.timing.workload import Workload


def linear(rows, inputs, outputs):
    return Layer(
        "fc", "linear", ((rows, inputs),), ((rows, outputs),), ((outputs, inputs),), (INPUT,), inputs * outputs
    )


def conv(channels, kernel, side, groups=1, **attributes):
    weight = (channels[1], channels[0] // groups, kernel, kernel)
    attributes = {"stride": [1, 1], "groups": groups} | attributes
    shapes = ((1, channels[0], side, side),), ((1, channels[1], side, side),)
    return Layer("conv", "conv2d", *shapes, (weight,), (INPUT,), int(np.prod(weight)), attributes)


# Convolutions are padded to 32 rows, 32 columns, 16 in between; a multiprocessor takes 64 x 64 of the output at a time.
@pytest.mark.parametrize(
    ("layer", "part", "batch_size", "padding", "tiles"),
    [
        # over 32 x 56 x 56 = 100,352 positions: 13 pieces of 8192
        (conv((64, 64), 3, 56), "backward_weight", 32, 1, 1 * 9 * 13),
        (conv((64, 128), 1, 28), "forward", 4, 1, 49 * 2),
        (conv((64, 128), 3, 28, groups=2), "forward", 4, 1, 49 * 1 * 2),
        (conv((32, 32), 3, 28, groups=32), "forward", 4, 1, 49 * 32),  # depthwise: no matrix product, nothing padded
        # the gradient of a picture has 3 columns, padded to 4 and not to 32
        (conv((3, 64), 3, 32), "backward_data", 1, 4 / 3, 16 * 1),
        (linear(1, 100, 10), "update", 40, 1, np.inf),
        (Layer("act", "relu", ((1, 8),), ((1, 8),)), "forward", 40, 1, np.inf),
    ],
)
def test_padding_and_tiles_by_hand(layer, part, batch_size, padding, tiles) -> None:
    found = tilings_of(layer, part, batch_size)
    assert tuple(map(float, found)) == (pytest.approx(padding), tiles, pytest.approx(padding), tiles)


# Large tiles are 128 x 128 and split the sum into parts of 8192. Small ones are 32 x 32, compute at 0.9 of the rate,
# and split it into parts of 4096. The sum is padded to 16, and each of its parts takes 64 steps more.
@pytest.mark.parametrize(
    ("layer", "part", "batch_size", "large", "small"),
    [
        (
            linear(1, 100, 10), "forward", 40,
            (128 / 40 * 128 / 10 * (112 + 64) / 100, 1),
            (64 / 40 * 32 / 10 * (112 + 64) / 100 / 0.9, 2),
        ),
        (  # a matrix-vector product pads no rows
            linear(1, 96, 32), "forward", 1, (128 / 32 * 160 / 96, 1), (160 / 96 / 0.9, 1)
        ),
        (  # a few rows are padded to a power of two
            linear(1, 96, 32), "forward", 5, (8 / 5 * 128 / 32 * 160 / 96, 1), (8 / 5 * 160 / 96 / 0.9, 1)
        ),
        (  # a sum over 8192 has 1 part with large tiles, 2 with small ones
            linear(1, 8192, 1000), "forward", 65,
            (128 / 65 * 1024 / 1000 * (8192 + 64) / 8192, 1 * 8),
            (96 / 65 * 1024 / 1000 * (8192 + 2 * 64) / 8192 / 0.9, 3 * 32 * 2),
        ),
        (  # rows 1000, columns 64, summed over 10,000 samples: 2 parts, and 3
            linear(1, 64, 1000), "backward_weight", 10_000,
            (1024 / 1000 * 128 / 64 * (10_000 + 2 * 64) / 10_000, 8 * 1 * 2),
            (1024 / 1000 * (10_000 + 3 * 64) / 10_000 / 0.9, 32 * 2 * 3),
        ),
    ],
)  # fmt: skip
def test_tiles_of_two_sizes_by_hand(layer, part, batch_size, large, small) -> None:
    found = tilings_of(layer, part, batch_size)
    assert tuple(map(float, found)) == pytest.approx((*large, *small))


@pytest.mark.parametrize("rows", [1, 3, 31, 33, 100, 128, 129, 1000])
@pytest.mark.parametrize("half_tiles", [1.0, 54.0])
def test_a_product_takes_no_longer_than_its_two_halves_and_no_less_than_a_smaller_one(rows, half_tiles) -> None:
    def time_of(rows: int) -> float:
        found = tilings_of(linear(1, 300, 200), "forward", rows)
        large = found.padding * (1 + half_tiles / found.tiles)
        return float(rows * min(large, found.small_padding * (1 + half_tiles / found.small_tiles)))

    assert time_of(rows) <= time_of(rows + 1) * (1 + 1e-12)
    assert time_of(2 * rows) <= 2 * time_of(rows) * (1 + 1e-12)


def test_an_entry_for_every_pass_that_launches_something() -> None:
    layers = (
        conv((3, 64), 3, 32),
        Layer("act", "relu", ((1, 64, 32, 32),), ((1, 64, 32, 32),), (), (0,)),
        Layer("view", "view", ((1, 64, 32, 32),), ((1, 65536),), (), (1,)),
        linear(1, 65536, 10)._replace(parents=(2,)),
    )
    asked = Workload(Network("four", (), layers, 0), batch_size=2, phase="training")
    found = features_of(asked)
    # Forward of all but the view; data gradients of those behind the first, whose input nobody asks; weights, update.
    assert found.position.tolist() == [[0, 0], [0, 1], [0, 3], [1, 1], [1, 3], [2, 0], [2, 3], [3, 0], [3, 3]]
    assert found.pass_number.tolist() == [part for part, _ in found.position.tolist()]
    assert [CLASSES[number] for number in found.work_class] == [
        ["conv_3x3", "elementwise", "", "gemm"][layer] for _, layer in found.position.tolist()
    ]
    assert found.position[found.matrix].tolist() == [
        [0, 0],
        [0, 3],
        [1, 3],
        [2, 0],
        [2, 3],
    ]  # an update multiplies nothing
    assert found.gradients.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0]  # both layers have a weight and no bias
    for name in ("flops", "bytes", "kernels"):
        assert getattr(found, name).sum() == asked.work.column(name, "training", 2).sum()
    assert features_of(asked.with_changes(phase="inference")).position.tolist() == [[0, 0], [0, 1], [0, 3]]


def test_alike_entries_become_one_with_their_sums() -> None:
    one = linear(1, 64, 64)
    layers = tuple(one._replace(name=str(number), parents=(number - 1,)) for number in range(5))
    features = features_of(Workload(Network("five", (), layers, 0), batch_size=8))
    merged = merge_identical_entries(features)
    assert merged.position.tolist() == [[0, 0]]
    assert merged.flops.tolist() == [features.flops.sum()]
    assert merged.kernels.tolist() == [5]
    assert merged.tiles.tolist() == [features.tiles[0]]
    assert merged.small_tiles.tolist() == [features.small_tiles[0]]
    assert merged.small_padding.tolist() == [features.small_padding[0]]


@pytest.mark.parametrize("rows", [8, 4096])
def test_a_factor_of_the_compute_time_holds_for_tiles_of_both_sizes(rows) -> None:
    """8 rows of 4096 x 4096 take small tiles on 108 multiprocessors, 4096 rows large ones."""
    one = features_of(Workload(Network("one", (), (linear(1, 4096, 4096),), 0), batch_size=rows))
    rates = Rates(matrix_per_s=312e12, vector_per_s=19.5e12, bandwidth_bytes_per_s=2e12, multiprocessors=108.0)
    values = np.ones(len(NAMES))
    compute_s = evaluate(one, rates, values).compute_s
    assert evaluate(one.with_compute_times(np.array([3.0])), rates, values).compute_s == pytest.approx(3 * compute_s)
    is_small = one.small_padding * (1 + 108 / one.small_tiles) < one.padding * (1 + 108 / one.tiles)
    assert is_small.tolist() == [rows == 8]

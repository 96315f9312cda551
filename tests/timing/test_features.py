"""What the calibrated model knows of a layer: padding and tiles by hand, entries as the passes launch them."""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.architectures import Network
from paleo_lite.counting import INPUT, Layer
from paleo_lite.timing.features import (
    CLASSES,
    features_of,
    inverse_keys,
    merge_identical_entries,
    padding_and_tiles,
)
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


# Products are padded to 32 rows, 32 columns, 16 in between; a multiprocessor takes 64 x 64 of the output at a time.
@pytest.mark.parametrize(
    ("layer", "part", "batch_size", "padding", "tiles"),
    [
        (linear(1, 100, 10), "forward", 40, 64 / 40 * 32 / 10 * 112 / 100, 1),
        (linear(1, 100, 10), "forward", 1, 1 * 32 / 10 * 112 / 100, 1),  # a matrix-vector product pads no rows
        (linear(1, 96, 32), "forward", 2, 1, 1),  # a few rows are padded to a power of two
        (linear(1, 96, 32), "forward", 5, 8 / 5, 1),
        (linear(1, 96, 32), "forward", 33, 64 / 33, 1),
        (linear(1, 4096, 1000), "forward", 65, 96 / 65 * 1024 / 1000, 2 * 16),
        (linear(1, 4096, 1000), "backward_data", 65, 96 / 65 * 1008 / 1000, 2 * 64),
        # rows 1000, columns 4096, summed over 65
        (linear(1, 4096, 1000), "backward_weight", 65, 1024 / 1000 * 80 / 65, 16 * 64),
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
    found = padding_and_tiles(layer, part, batch_size)
    assert tuple(map(float, found)) == (pytest.approx(padding), tiles)


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


@pytest.mark.parametrize(
    ("attributes", "keys"),
    [({}, 1000), ({"causal": True}, 1001 / 2), ({"causal": True, "window": 100}, (900 * 100 + 100 * 101 / 2) / 1000)],
)
def test_queries_attend_to_the_keys_that_a_mask_leaves(attributes: dict[str, object], keys: float) -> None:
    """The first query of a causal mask attends to itself, the last to all, and none to more than a window has."""
    heads = (8, 1000, 64)
    layer = Layer("a", "attention", (heads, heads, heads), (heads,), (), (INPUT,) * 3, 0, attributes)
    assert inverse_keys(layer) == pytest.approx(1 / keys)
    assert inverse_keys(linear(1, 64, 64)) == 0

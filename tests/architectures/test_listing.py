"""One row per network: parameters and multiply-accumulates as in torchvision's documentation.

Tests: architectures/network.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.catalog import network_rows
from paleo_lite.architectures.network import Network
from paleo_lite.errors import UnknownName

# ``num_params`` and ``_ops`` (10^9 multiply-accumulates) of the weights' metadata, and the size they are given for.
DOCUMENTED = {
    "alexnet": (61_100_840, 0.714, 224),
    "resnet50": (25_557_032, 4.089, 224),
    "vgg16": (138_357_544, 15.47, 224),
    "inception_v3": (27_161_264, 5.713, 299),
}


def test_rows_have_the_documented_figures_in_the_given_order() -> None:
    rows = network_rows(iter(DOCUMENTED))
    assert [row["name"] for row in rows] == list(DOCUMENTED)
    for row, (parameters, giga, size) in zip(rows, DOCUMENTED.values(), strict=True):
        assert row["parameters"] == parameters
        assert row["macs"] / 1e9 == pytest.approx(giga, rel=2e-3)
        assert row["flops"] > 2 * row["macs"]  # biases and elementwise work come on top
        assert row["input_shape"] == [3, size, size]
        assert row["source"].startswith("torchvision ")
    assert rows[0]["layers"] == len(find_network("alexnet").layers)


def test_input_elements_are_summed_over_inputs() -> None:
    assert Network("two", ((1, 3, 4), (1, 5)), (), 0).input_elements == 3 * 4 + 5
    assert find_network("alexnet").input_elements == 3 * 224 * 224


def test_layer_by_name() -> None:
    network = find_network("alexnet")
    assert network.layer("features.0").weights == ((64, 3, 11, 11), (64,))
    with pytest.raises(UnknownName, match=r"no layer of alexnet is called 'feature\.0': did you mean features\.0"):
        network.layer("feature.0")

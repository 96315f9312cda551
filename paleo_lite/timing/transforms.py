"""What a convolution by Fourier transforms takes instead of the direct one, where libraries may choose it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..counting import Layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

TILE = 32
"""Images are cut into tiles of at most this side (cuDNN's FFT_TILING)."""

TRANSFORM = 16.0
"""How many times its arithmetic a transform takes: it is bound by memory."""

COMPLEX = 2.0
"""The same of the products in between, of complex numbers."""


def may_transform(layer: Layer) -> bool:
    """Whether libraries offer it: dense, two-dimensional, stride 1, a kernel wider than 1 both ways."""
    weight, attributes = layer.weights[0], layer.attributes
    plain = attributes.get("groups", 1) == 1 and "dilation" not in attributes and not attributes.get("transposed")
    return plain and len(weight) == 4 and min(weight[2:]) > 1 and set(attributes.get("stride", [1])) == {1}


def transformed(layer: Layer, batch_size: int | NDArray[Any]) -> Any:
    """Work of a convolution by tiled FFT over that of the direct one; infinite where the kernel exceeds a tile.

    A real transform of m x m takes 2.5 m^2 log2(m^2) operations, of every tile of every input and output channel and of
    every filter; between them m (m/2 + 1) frequencies multiply a matrix each, 8 operations per complex product
    (Mathieu, Henaff and LeCun 2014; the two factors above are fitted to single convolutions of five GPUs).

    Parameters
    ----------
    layer : Layer
        One that `may_transform`.
    batch_size : int or ndarray of int
    """
    outputs, inputs, *kernel = layer.weights[0]
    height, width = layer.outputs[0][-2:]
    side = min(TILE, max(8, 2 ** math.ceil(math.log2(max(height + kernel[0], width + kernel[1]) - 1))))
    steps = [side - taps + 1 for taps in kernel]
    if min(steps) < 1:
        return math.inf
    tiles = batch_size * (-(-height // steps[0]) * -(-width // steps[1]))
    transforms = 2.5 * side**2 * math.log2(side**2) * (tiles * (inputs + outputs) + inputs * outputs)
    products = 8 * side * (side // 2 + 1) * _padded(outputs, 32) * _padded(inputs, 8) * _padded(tiles, 32)
    direct = 2.0 * batch_size * outputs * inputs * kernel[0] * kernel[1] * height * width
    return (TRANSFORM * transforms + COMPLEX * products) / direct


def _padded(size: Any, tile: int) -> Any:
    return -(-size // tile) * tile

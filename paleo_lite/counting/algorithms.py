"""The FLOPs that each convolution algorithm computes itself: direct, Winograd's, by Fourier transform.

A time at peak and a share of peak refer to a count. Held against the direct count, Winograd's algorithm may run above
peak; held against its own count it does not.
"""

from __future__ import annotations

from math import ceil, log2, prod, sqrt
from typing import NamedTuple

from .layer import Layer


class Algorithm(NamedTuple):
    """One way to compute a convolution.

    Attributes
    ----------
    flops : int
        Multiply-accumulates as 2, transforms included, biases not.
    multiplications : int
        Of elements with weights.
    taken : str
        When libraries take it; empty for the algorithm that works always.
    """

    name: str
    flops: int
    multiplications: int
    taken: str = ""


class Transform(NamedTuple):
    """F(m x m, r x r): floating-point instructions of its three transforms, for one tile of one channel (or filter)."""

    outputs: int
    taps: int
    data: int
    filter: int
    inverse: int


WINOGRAD = (Transform(2, 3, 32, 28, 24), Transform(4, 3, 156, 72, 100))
"""F(2x2, 3x3) and F(4x4, 3x3): Lavin and Gray 2016, "Fast Algorithms for Convolutional Neural Networks", section 4."""

FFT_TILE = 32
_FFT_LARGEST = 256
"""cuDNN transforms inputs of at most this height and width whole."""

PRECISIONS = ("fp32", "fp16", "bf16")
"""Those that cuDNN's Winograd and Fourier algorithms compute in."""


def algorithms_of(
    layer: Layer, batch_size: int, precision: str = "fp32", unit: str = "vector", year: int = 2016
) -> list[Algorithm]:
    """The algorithms by which a library may compute a convolution's forward pass, direct first.

    Winograd's and the Fourier transform's need stride 1, no dilation and no groups, and vector units: on tensor cores
    libraries take implicit matrix products, which compute the direct count. Winograd's came with cuDNN 5 (2016), to
    Kepler as well; no library has it in fp64.

    Parameters
    ----------
    unit : {"vector", "tensor"}
    year : int
        Of the software.

    Returns
    -------
    list of Algorithm
        Empty for layers other than dense or grouped 2-D convolutions.
    """
    if layer.kind != "conv2d" or layer.attributes.get("transposed"):
        return []
    weight = layer.weights[0]
    macs = batch_size * prod(layer.outputs[0]) * prod(weight[1:])
    algorithms = [Algorithm("direct, or implicit matrix product", 2 * macs, macs)]
    if unit == "tensor" or precision not in PRECISIONS or not _plain(layer):
        return algorithms
    if set(weight[2:]) == {3} and year >= 2016:
        algorithms += [winograd(layer, batch_size, transform) for transform in WINOGRAD]
    if max(weight[2:]) > 1:
        if max(_padded(layer)) <= _FFT_LARGEST:
            algorithms.append(fourier(layer, batch_size, tiled=False))
        if max(weight[2:]) <= FFT_TILE:
            algorithms.append(fourier(layer, batch_size, tiled=True))
    return algorithms


def winograd(layer: Layer, batch_size: int, transform: Transform) -> Algorithm:
    """F(m x m, r x r): (m + r - 1)^2 multiplications for each tile of m x m outputs, channel and filter.

    Tiles cover the output, so that one which m does not divide computes more than is kept. Sums over channels are
    additions, one for each multiplication, as in the direct algorithm.
    """
    outputs, inputs = layer.weights[0][:2]
    height, width = layer.outputs[0][-2:]
    m, r = transform.outputs, transform.taps
    tiles = batch_size * ceil(height / m) * ceil(width / m)
    multiplications = (m + r - 1) ** 2 * tiles * inputs * outputs
    transforms = (
        transform.data * tiles * inputs + transform.filter * inputs * outputs + transform.inverse * tiles * outputs
    )
    return Algorithm(
        f"Winograd F({m}x{m}, {r}x{r})",
        2 * multiplications + transforms,
        multiplications,
        "3x3, stride 1, dense, on vector units since cuDNN 5",
    )


def fourier(layer: Layer, batch_size: int, tiled: bool) -> Algorithm:
    """By Fourier transform, as PALEO counts it (Qi et al. 2017, from their release).

    T is the side of the transform, a power of 2; a transform takes 2 T * 5 T log2(T) FLOPs, half of that for real
    numbers, and half again where the filter is one element wide. Products of complex numbers take 4 multiplications.
    Untiled, one transform covers the padded input; tiled, transforms of 32 x 32 do.
    """
    outputs, inputs, *kernel = layer.weights[0]
    sides = [max(size, taps) for size, taps in zip(_padded(layer), kernel)]
    elements = FFT_TILE**2 if tiled else prod(sides)
    tiles = prod(ceil(size / FFT_TILE) for size in layer.inputs[0][-2:]) if tiled else 1
    side = 2 ** ceil(log2(sqrt(elements)))
    transform = 2 * side * 5 * side * log2(side) / 2 / (2 if 1 in kernel else 1)
    multiplications = tiles * 4 * batch_size * inputs * outputs * elements
    transforms = transform * (tiles * batch_size * (inputs + outputs) + inputs * outputs)
    return Algorithm(
        "FFT, 32x32 tiles" if tiled else "FFT",
        int(multiplications + transforms),
        multiplications,
        "stride 1, dense, on vector units" + ("" if tiled else f", inputs up to {_FFT_LARGEST}"),
    )


def _plain(layer: Layer) -> bool:
    attributes = layer.attributes
    return (
        set(attributes.get("stride", [1])) == {1} and "dilation" not in attributes and attributes.get("groups", 1) == 1
    )


def _padded(layer: Layer) -> list[int]:
    sizes = layer.inputs[0][-2:]
    padding = layer.attributes.get("padding", [0, 0])
    pads = padding if isinstance(padding, (list, tuple)) else [0, 0]
    return [size + 2 * int(pad) for size, pad in zip(sizes, pads)]

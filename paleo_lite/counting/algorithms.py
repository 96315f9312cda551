"""FLOPs that convolution algorithms actually execute: direct, Winograd and Fourier transform.

The time at peak and the fraction of peak depend on the count. Relative to the direct count, Winograd's algorithm may
run above peak; relative to its own count it does not.
"""

from __future__ import annotations

from math import ceil, log2, prod, sqrt
from typing import NamedTuple

from .layer import Layer


class Algorithm(NamedTuple):
    """A convolution algorithm and its operations."""

    name: str
    flops: int  # FLOPs with a multiply-accumulate as 2, including transforms, without biases
    multiplications: int  # multiplications of inputs with weights
    condition: str = ""  # condition under which libraries use the algorithm; empty if it is always available


class Transform(NamedTuple):
    """Winograd transform F(m x m, r x r)."""

    # The sizes m and r.
    outputs: int
    taps: int
    # Floating-point instructions of the three transforms for one tile of one channel or filter.
    data: int
    filter: int
    inverse: int


WINOGRAD = (Transform(2, 3, 32, 28, 24), Transform(4, 3, 156, 72, 100))
"""F(2x2, 3x3) and F(4x4, 3x3): Lavin and Gray 2016, "Fast Algorithms for Convolutional Neural Networks", section 4."""

FFT_TILE = 32
"""Side of the tiles of cuDNN's tiled FFT (FFT_TILING)."""

_FFT_LARGEST = 256
"""Largest padded height and width that cuDNN transforms without tiles."""

PRECISIONS = ("fp32", "fp16", "bf16")
"""Precisions of cuDNN's Winograd and Fourier algorithms."""


def algorithms_of(
    layer: Layer,
    batch_size: int,
    precision: str = "fp32",  # of the operands
    unit: str = "vector",  # "vector" or "tensor"
) -> list[Algorithm]:
    """Return the algorithms that a library may use for the forward pass of a convolution, the direct one first.

    Winograd's algorithm and the Fourier transform require stride 1, no dilation, no groups, and vector units: on tensor
    cores libraries use implicit matrix products, which execute the direct count. Winograd's algorithm is available
    since cuDNN 5 (2016), on Kepler as well, but in no library in fp64. The list is empty for layers other than dense or
    grouped 2-D convolutions.
    """
    if layer.kind != "conv2d" or layer.attributes.get("transposed"):
        return []
    weight = layer.weights[0]
    kernel = weight[2:]
    macs = batch_size * prod(layer.outputs[0]) * prod(weight[1:])
    algorithms = [Algorithm("direct, or implicit matrix product", 2 * macs, macs)]
    if unit == "tensor" or precision not in PRECISIONS or not _is_dense_with_stride_1(layer):
        return algorithms
    if set(kernel) == {3}:
        algorithms += [winograd(layer, batch_size, transform) for transform in WINOGRAD]
    if max(kernel) > 1:
        if max(_padded_sizes(layer)) <= _FFT_LARGEST:
            algorithms.append(fourier(layer, batch_size, tiled=False))
        if max(kernel) <= FFT_TILE:
            algorithms.append(fourier(layer, batch_size, tiled=True))
    return algorithms


def winograd(layer: Layer, batch_size: int, transform: Transform) -> Algorithm:
    """Count Winograd's algorithm F(m x m, r x r): (m + r - 1)^2 multiplications per tile, input and output channel.

    Tiles of m x m outputs cover the output, so that partial tiles at the edges are computed in full. Sums over channels
    take one addition per multiplication, as in the direct algorithm.
    """
    outputs, inputs = layer.weights[0][:2]
    height, width = layer.outputs[0][-2:]
    m, r = transform.outputs, transform.taps
    tiles = batch_size * ceil(height / m) * ceil(width / m)
    multiplications = (m + r - 1) ** 2 * tiles * inputs * outputs
    data_flops = transform.data * tiles * inputs
    filter_flops = transform.filter * inputs * outputs
    inverse_flops = transform.inverse * tiles * outputs
    return Algorithm(
        name=f"Winograd F({m}x{m}, {r}x{r})",
        flops=2 * multiplications + data_flops + filter_flops + inverse_flops,
        multiplications=multiplications,
        condition="3x3, stride 1, dense, on vector units since cuDNN 5",
    )


def fourier(layer: Layer, batch_size: int, tiled: bool) -> Algorithm:
    """Count a convolution by Fourier transform as PALEO does (Qi et al. 2017, from the released source).

    With T the side of the transform, a power of 2, a transform takes 2 T * 5 T log2(T) FLOPs, half of that for real
    numbers, and half again if the filter is one element wide. A product of complex numbers takes 4 multiplications. One
    transform covers the padded input, or, if `tiled`, a tile of 32 x 32.
    """
    outputs, inputs, *kernel = layer.weights[0]
    if tiled:
        elements = FFT_TILE**2
        tiles = prod(ceil(size / FFT_TILE) for size in layer.inputs[0][-2:])
        name, condition = "FFT, 32x32 tiles", "stride 1, dense, on vector units"
    else:
        elements = prod(max(size, taps) for size, taps in zip(_padded_sizes(layer), kernel))
        tiles = 1
        name, condition = "FFT", f"stride 1, dense, on vector units, inputs up to {_FFT_LARGEST}"
    side = 2 ** ceil(log2(sqrt(elements)))
    flops_per_transform = 2 * side * 5 * side * log2(side) / 2
    if 1 in kernel:
        flops_per_transform /= 2
    multiplications = tiles * 4 * batch_size * inputs * outputs * elements
    transforms = flops_per_transform * (tiles * batch_size * (inputs + outputs) + inputs * outputs)
    return Algorithm(name, int(multiplications + transforms), multiplications, condition)


def _is_dense_with_stride_1(layer: Layer) -> bool:
    """Return whether a convolution has stride 1, no dilation and no groups."""
    attributes = layer.attributes
    has_stride_1 = set(attributes.get("stride", [1])) == {1}
    return has_stride_1 and "dilation" not in attributes and attributes.get("groups", 1) == 1


def _padded_sizes(layer: Layer) -> list[int]:
    """Return height and width of the padded input."""
    sizes = layer.inputs[0][-2:]
    padding = layer.attributes.get("padding", [0, 0])
    pads = padding if isinstance(padding, (list, tuple)) else [0, 0]
    return [size + 2 * int(pad) for size, pad in zip(sizes, pads)]

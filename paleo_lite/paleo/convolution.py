"""PALEO's convolutions: what they and their gradients are taken to be, as matrix products and by Fourier transform.

Source: ``layers/conv.py`` and ``profilers/flops_profiler.py``, both revisions.
"""

from __future__ import annotations

from math import ceil, log, log2, prod, sqrt
from typing import Any, NamedTuple

from ..counting.layer import INPUT, Layer
from ..errors import CountFailed

FLOAT_BYTES = 4
"""PALEO knows one precision."""

_COMPLEX_BYTES = 8
_TILE = 32

Pair = tuple[int, int]


class Term(NamedTuple):
    """One piece of work: it is timed on its own, and takes a tick of the clock at least.

    Attributes
    ----------
    compute : bool
        FLOPs, or else bytes of a transfer.
    amount : number or ndarray
        For each batch size that was asked for.
    repeats : int
        How many times over.
    """

    compute: bool
    amount: Any
    repeats: int = 1


def terms_of(flops: Any, *operands: Any) -> list[Term]:
    """A piece of arithmetic, and one transfer for each operand (in elements)."""
    return [Term(True, flops), *(Term(False, FLOAT_BYTES * elements) for elements in operands)]


class Convolution(NamedTuple):
    """A convolution of stride 1 as PALEO times it, forward or standing in for a gradient.

    Attributes
    ----------
    images, channels : int or ndarray
        Of the input; for the filter's gradient they change places.
    size, kernel, out : tuple of int
        Height and width of input, filter and output.
    pads : tuple of int
        Rows and columns of zeros around the input, on either side.
    taps : int
        Elements of a filter that are not inserted zeros.
    spread : int or ndarray
        Further multiply-accumulates: input elements set among zeros.
    """

    images: Any
    channels: Any
    size: Pair
    kernel: Pair
    filters: int
    out: Pair
    pads: Pair
    taps: int
    spread: Any = 0


def convolution_terms(layer: Layer, pass_name: str, batch_size: Any, revision: str, algorithm: str) -> list[Term]:
    """What a pass over a convolution takes; see `paleo_lite.paleo.layers.layer_terms`."""
    if pass_name == "forward":
        convolution = _forward(layer, batch_size, revision)
    else:
        convolution = gradient_of(layer, pass_name, batch_size, revision)
        if pass_name == "backward_data" and INPUT in layer.parents:
            return []  # PALEO checks the gradient's shape even where it skips it
    if algorithm == "gemm" or not _supports(algorithm, layer, pass_name):
        return _by_gemm(convolution, padded=revision == "last")
    return [] if algorithm == "winograd" else _by_fft(convolution, tiled=algorithm == "fft-tiled")


def _supports(algorithm: str, layer: Layer, pass_name: str) -> bool:
    """Whether cuDNN computes the layer so, as its documentation (versions 4 and 5) has it; PALEO adds: never for 1x1.

    Stride 1 and filters larger than the padding; FFT for padded inputs up to 256, tiled for filters up to 32, Winograd
    for 3x3. The filter gradient has neither tiles nor Winograd.
    """
    kernel, pads = _pair(layer.weights[0]), _given_pads(layer)
    if kernel == (1, 1) or set(layer.attributes["stride"]) != {1} or any(k <= p for k, p in zip(kernel, pads)):
        return False
    if algorithm == "fft":
        return all(size + 2 * pad <= 256 for size, pad in zip(_pair(layer.inputs[0]), pads))
    if pass_name == "backward_weight":
        return False
    return kernel == (3, 3) if algorithm == "winograd" else max(kernel) <= 32


def _pair(shape: tuple[int, ...]) -> Pair:
    """Height and width of an NCHW shape."""
    return shape[2], shape[3]


def _given_pads(layer: Layer) -> Pair:
    pad_h, pad_w = layer.attributes.get("padding", (0, 0))
    return pad_h, pad_w


def _pads(layer: Layer, revision: str) -> Pair:
    """The padding on either side.

    The first revision takes a SAME convolution's from the size of its input instead of its output: with a stride that
    is too large by about ``(stride - 1) / 2`` of the input.
    """
    if revision == "last" or not layer.attributes.get("same"):
        return _given_pads(layer)
    sizes = zip(_pair(layer.inputs[0]), layer.attributes["stride"], _pair(layer.weights[0]))
    pad_h, pad_w = (((size - 1) * stride + kernel - size) // 2 for size, stride, kernel in sizes)
    return pad_h, pad_w


def _forward(layer: Layer, batch_size: Any, revision: str) -> Convolution:
    inputs, outputs, kernel = layer.inputs[0], layer.outputs[0], _pair(layer.weights[0])
    pads = _pads(layer, revision)
    return Convolution(batch_size, inputs[1], _pair(inputs), kernel, outputs[1], _pair(outputs), pads, prod(kernel))


def gradient_of(layer: Layer, pass_name: str, batch_size: Any, revision: str) -> Convolution:
    """The convolution of stride 1 that PALEO puts in the place of a gradient.

    The gradient of the output is expanded to ``(out - 1) stride + 1``, zeros between its elements. ``backward_data``
    convolves it with the filters, and all those zeros count as work: too much by about the square of the stride, and of
    the kernel where the output is a single element. In ``backward_weight`` it is the filter, and they do not count.

    Raises
    ------
    CountFailed
        If the stand-in does not have the gradient's shape, where PALEO stops with an assertion.
    """
    channels, filters, own_pads = layer.inputs[0][1], layer.outputs[0][1], _pads(layer, revision)
    size, out, kernel = _pair(layer.inputs[0]), _pair(layer.outputs[0]), _pair(layer.weights[0])
    strides = layer.attributes["stride"]
    (high, pad_h), (wide, pad_w) = (_expanded(*axis, revision) for axis in zip(size, out, kernel, strides, own_pads))
    expanded, pads = (high, wide), (pad_h, pad_w)
    if pass_name == "backward_data":
        zeros = revision == "last" and out != expanded
        spread = batch_size * prod(out) * filters if zeros else 0
        gradient = Convolution(batch_size, filters, expanded, kernel, channels, size, pads, prod(kernel), spread)
    else:
        if revision == "first":
            pads = own_pads
        elif not any(own_pads) and not layer.attributes.get("same"):
            pads = (0, 0)
        gradient = Convolution(channels, batch_size, size, expanded, filters, kernel, pads, prod(out))
    shape = tuple(n + 2 * p - k + 1 for n, p, k in zip(gradient.size, gradient.pads, gradient.kernel))
    if shape != gradient.out:
        raise CountFailed(
            f"layer {layer.name!r}: PALEO (its {revision} revision) stops here, its "
            f"{pass_name.removeprefix('backward_')} gradient comes out as {shape[0]}x{shape[1]} instead of "
            f"{gradient.out[0]}x{gradient.out[1]}"
        )
    return gradient


def _expanded(size: int, out: int, kernel: int, stride: int, pad: int, revision: str) -> Pair:
    """Along one axis: length of the output's gradient with zeros inserted, and the padding around it."""
    length = (out - 1) * stride + 1
    before = kernel - 1 - pad
    after = size + kernel - 1 - length - before
    if revision == "first":
        return length + (before == after - 1), before
    return length + (abs(before - after) == 1), min(before, after)


def _by_gemm(c: Convolution, padded: bool) -> list[Term]:
    """2 FLOPs per multiply-accumulate; input, filter and output moved once, in the last revision with the padding."""
    around = c.pads if padded else (0, 0)
    source = c.images * prod(n + 2 * pad for n, pad in zip(c.size, around)) * c.channels
    flops = 2 * (c.taps * c.channels * prod(c.out) * c.filters * c.images + c.spread)
    return terms_of(flops, source, c.taps * c.channels * c.filters, c.images * prod(c.out) * c.filters)


def _by_fft(c: Convolution, tiled: bool) -> list[Term]:
    """Transform inputs and filters, multiply, transform back. A 2-D transform of size T takes ``2 T 5 T log2 T`` FLOPs,
    half of that where the filter has one dimension, half again from real to complex."""
    if tiled:
        side, size, tiles = _TILE, _TILE**2, prod(-(-n // _TILE) for n in c.size)
    else:
        sides = [max(n + 2 * pad, k) for n, pad, k in zip(c.size, c.pads, c.kernel)]
        side, size, tiles = max(sides), prod(sides), 1
    flat = 1 in c.kernel
    length = 2.0 ** ceil(log(sqrt(size)) / log(2))
    inverse = 10 * length * length * log2(length) / (2 if flat else 1)
    inputs, filters, outputs = c.images * c.channels, c.channels * c.filters, c.images * c.filters
    transformed_filters = filters * (side if flat else size) * _COMPLEX_BYTES
    return [
        Term(True, inputs * inverse / 2, tiles),
        Term(True, filters * inverse / 2),
        Term(True, 4 * inputs * c.filters * size, tiles),
        Term(True, outputs * inverse, tiles),
        Term(False, inputs * size * FLOAT_BYTES, tiles),
        Term(False, inputs * size * _COMPLEX_BYTES, 2 * tiles),  # written, and read again
        Term(False, filters * size * FLOAT_BYTES),
        Term(False, transformed_filters, 1 + tiles),
        Term(False, outputs * size * _COMPLEX_BYTES, tiles),
        Term(False, outputs * size * _COMPLEX_BYTES),  # read back once, however many tiles
        Term(False, outputs * prod(c.out) * FLOAT_BYTES),
    ]

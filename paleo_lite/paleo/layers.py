"""PALEO's counts of each layer: the ``paleo`` convention, and the terms of the time of each pass.

Each pass over a layer is a list of `Term` records, computation or memory transfers, timed separately (`simulator`).
Convolutions and their gradients are computed as matrix products or by Fourier transform.

Source: ``layers/*.py`` and ``profilers/flops_profiler.py``, both revisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log, log2, prod, sqrt
from typing import Any, NamedTuple

from ..counting.kinds import KINDS, class_of, is_uncounted
from ..counting.kinds.pooling import window_elements
from ..counting.layer import INPUT, Layer, Op
from ..errors import CountFailed

PASSES = ("forward", "backward_data", "backward_weight")
"""The passes over a layer that PALEO times; it times the update of all layers at once."""

ALGORITHMS = ("gemm", "fft", "fft-tiled", "winograd")
"""Convolution algorithms of PALEO; it has no time model of winograd, which therefore takes no time."""


def is_product(layer: Layer) -> bool:
    """Return whether a layer is a convolution or an inner product, the only layers with weights in PALEO."""
    return layer.kind in ("conv2d", "linear")


def count_paleo(op: Op) -> int | None:
    """Count forward FLOPs by the ``paleo`` convention; None for layers that PALEO does not support.

    Convolution and inner product: 2 per multiply-accumulate, without biases; pooling: 2 per window element; dropout: 1
    per element, also in inference; batch norm, activations, softmax, concat, sums and reshapes: 0. Convolutions have
    neither groups nor dilation, and images have two dimensions.
    """
    kind, attributes, weights = op.layer.kind, op.layer.attributes, op.layer.weights
    if kind == "conv2d" and attributes.get("groups", 1) == 1 and set(attributes.get("dilation", [1])) == {1}:
        return 2 * op.y * prod(weights[0][1:])
    if kind == "linear":
        return 2 * op.y * weights[0][-1]
    if class_of(op.layer) == "pool" and op.attributes.get("dims", len(op.layer.inputs[0]) - 2) == 2:
        return 2 * window_elements(op)
    if kind in KINDS and KINDS[kind].paleo == "Dropout":
        return op.x
    return 0 if is_uncounted(kind, "paleo") else None


def layer_terms(
    layer: Layer,
    pass_name: str,  # one of `PASSES`
    batch_size: Any,  # with an array, the amount of each term is an array
    revision: str,  # one of `REVISIONS`
    # One of `ALGORITHMS`, for convolutions in which cuDNN supports it; all others use GEMM. PALEO itself queries cuDNN
    # 4 on a GPU.
    algorithm: str = "gemm",
) -> list[Term]:
    """Return the terms of the time of a pass over a layer.

    The list is empty for layers without a cost in PALEO.

    Raise CountFailed if PALEO does not support the layer, or fails on it.
    """
    kind, inputs = layer.kind, layer.inputs
    if is_uncounted(kind, "paleo"):
        return []
    op = Op(layer, 1, [True] * len(inputs), True, [True] * len(inputs))
    flops = count_paleo(op)
    if flops is None or (kind == "linear" and len(inputs[0]) != 2):
        special = {name: layer.attributes[name] for name in ("groups", "dilation") if name in layer.attributes}
        raise CountFailed(f"layer {layer.name!r}: PALEO has no rule for this {kind}: {special or inputs}")
    if kind == "conv2d":
        return convolution_terms(layer, pass_name, batch_size, revision, algorithm)
    if pass_name == "backward_weight" and kind != "linear":
        return []  # pooling and dropout have no weights
    return make_terms(batch_size * flops, batch_size * op.x, *op.weights[:1], batch_size * op.y)


def parameter_bytes(layers: Sequence[Layer]) -> int:
    """Return the bytes of weights and biases; PALEO adds a bias to every convolution and inner product."""
    matrices = [layer.weights[0] for layer in layers if is_product(layer)]
    return sum(FLOAT_BYTES * (prod(shape) + shape[0]) for shape in matrices)


# Convolutions ---------------------------------------------------------------------------------------------------------


FLOAT_BYTES = 4
"""Bytes per element; PALEO supports only fp32."""

_COMPLEX_BYTES = 8
_TILE = 32

Pair = tuple[int, int]


class Term(NamedTuple):
    """A part of a layer's computation or memory traffic, which takes at least one clock cycle."""

    compute: bool  # whether the amount is FLOPs; otherwise it is the bytes of a transfer
    amount: Any  # FLOPs or bytes; an array has one amount per batch size
    repeats: int = 1  # number of repetitions


def make_terms(flops: Any, *operands: Any) -> list[Term]:
    """Return a term of computation, and a transfer term for each operand (in elements)."""
    return [Term(True, flops), *(Term(False, FLOAT_BYTES * elements) for elements in operands)]


class Convolution(NamedTuple):
    """A convolution of stride 1, with which PALEO represents a forward pass or a gradient."""

    # Images and channels of the input; exchanged for the gradient of the filter.
    images: Any
    channels: Any
    size: Pair  # height and width of the input
    kernel: Pair  # and of the filter
    filters: int
    out: Pair  # and of the output
    pads: Pair  # rows and columns of zeros on each side of the input
    taps: int  # elements of a filter without inserted zeros
    spread: Any = 0  # additional multiply-accumulates, for input elements between inserted zeros


def convolution_terms(layer: Layer, pass_name: str, batch_size: Any, revision: str, algorithm: str) -> list[Term]:
    """Return the terms of a pass over a convolution; see `layer_terms`."""
    if pass_name == "forward":
        convolution = _forward(layer, batch_size, revision)
    else:
        convolution = make_gradient(layer, pass_name, batch_size, revision)
        if pass_name == "backward_data" and INPUT in layer.parents:
            return []  # PALEO checks the shape of the gradient even if it skips the gradient
    if algorithm == "gemm" or not _supports(algorithm, layer, pass_name):
        return _by_gemm(convolution, padded=revision == "last")
    return [] if algorithm == "winograd" else _by_fft(convolution, tiled=algorithm == "fft-tiled")


def _supports(algorithm: str, layer: Layer, pass_name: str) -> bool:
    """Return whether cuDNN supports an algorithm for a layer, according to its documentation (versions 4 and 5).

    Requirements are stride 1 and filters larger than the padding; FFT: padded inputs up to 256; tiled FFT: filters
    up to 32; Winograd: 3x3 filters. The filter gradient supports neither tiles nor Winograd. PALEO also excludes
    1x1 filters.
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
    """Return height and width of an NCHW shape."""
    return shape[2], shape[3]


def _given_pads(layer: Layer) -> Pair:
    pad_h, pad_w = layer.attributes.get("padding", (0, 0))
    return pad_h, pad_w


def _pads(layer: Layer, revision: str) -> Pair:
    """Return the padding on each side.

    The first revision computes the padding of a SAME convolution from its input size instead of its output size; with a
    stride, it is too large by about ``(stride - 1) / 2`` of the input.
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


def make_gradient(layer: Layer, pass_name: str, batch_size: Any, revision: str) -> Convolution:
    """Return the convolution of stride 1 with which PALEO represents a gradient.

    The gradient of the output is expanded to ``(out - 1) stride + 1`` by inserting zeros between its elements.
    ``backward_data`` convolves it with the filters and counts the zeros, which overestimates the work by about the
    square of the stride, and of the kernel size if the output is a single element. In ``backward_weight`` it is the
    filter, and the zeros are not counted.

    Raise CountFailed if the convolution does not have the shape of the gradient; PALEO then fails with an assertion.
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
            f"layer {layer.name!r}: PALEO ({revision} revision) fails here, because its "
            f"{pass_name.removeprefix('backward_')} gradient has the shape {shape[0]}x{shape[1]} instead of "
            f"{gradient.out[0]}x{gradient.out[1]}"
        )
    return gradient


def _expanded(size: int, out: int, kernel: int, stride: int, pad: int, revision: str) -> Pair:
    """Return, along one axis, the length of the output gradient with inserted zeros, and its padding."""
    length = (out - 1) * stride + 1
    before = kernel - 1 - pad
    after = size + kernel - 1 - length - before
    if revision == "first":
        return length + (before == after - 1), before
    return length + (abs(before - after) == 1), min(before, after)


def _by_gemm(c: Convolution, padded: bool) -> list[Term]:
    """Return the terms of a GEMM: input, filter and output are moved once, in the last revision with the padding."""
    around = c.pads if padded else (0, 0)
    source = c.images * prod(n + 2 * pad for n, pad in zip(c.size, around)) * c.channels
    flops = 2 * (c.taps * c.channels * prod(c.out) * c.filters * c.images + c.spread)
    return make_terms(flops, source, c.taps * c.channels * c.filters, c.images * prod(c.out) * c.filters)


def _by_fft(c: Convolution, tiled: bool) -> list[Term]:
    """Return the terms of a convolution by FFT: transform inputs and filters, multiply, and transform back.

    A 2-D transform of size T takes ``2 T 5 T log2 T`` FLOPs, half of that for a filter with one dimension, and half
    again from real to complex.
    """
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

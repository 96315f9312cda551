"""PALEO's convolutions: what they and their gradients are taken to be, as matrix products and by Fourier transform.

Formulas read from ``layers/conv.py`` and ``profilers/flops_profiler.py`` of TalwalkarLab/paleo, both revisions.
"""

from __future__ import annotations

from math import ceil, log, log2, prod, sqrt
from typing import NamedTuple

from ..counting.layer import INPUT, Layer
from ..errors import CountFailed

FLOAT = 4
"""Bytes of a number: PALEO knows one precision."""

_COMPLEX = 8
_TILE = 32


class Term(NamedTuple):
    """One piece of work: it is timed on its own, and takes a tick of the clock at least.

    Attributes
    ----------
    compute : bool
        FLOPs, or else bytes of a transfer.
    amount : float
    repeats : int
        How many times over.
    """

    compute: bool
    amount: float
    repeats: int = 1


class Product(NamedTuple):
    """A convolution as PALEO times it, forward or standing in for a gradient; NHWC sizes of input, filter, output.

    Attributes
    ----------
    images, height, width, channels : int
        The input.
    kernel : tuple of int
        Filter height and width.
    maps : int
        Filters.
    out : tuple of int
        Output height and width.
    pads : tuple of int
        Rows and columns of zeros around the input, on either side.
    taps : int
        Elements of a filter that are not inserted zeros.
    spread : int
        Further multiply-accumulates: input elements set among zeros.
    """

    images: int
    height: int
    width: int
    channels: int
    kernel: tuple[int, int]
    maps: int
    out: tuple[int, int]
    pads: tuple[int, int]
    taps: int
    spread: int = 0


def convolution_terms(layer: Layer, part: str, batch_size: int, revision: str, algorithm: str) -> list[Term]:
    """What a pass over a convolution takes; see `paleo_lite.paleo.layers.paleo_terms`."""
    if part == "backward_data":
        product = gradient_of(layer, batch_size, revision, "data")  # PALEO checks its shape even where it skips it
        if INPUT in layer.parents:
            return []
    elif part == "backward_weight":
        product = gradient_of(layer, batch_size, revision, "weight")
    else:
        product = _forward(layer, batch_size, revision)
    if algorithm == "gemm" or not _able(layer, part, algorithm):
        return _gemm(product, padded=revision == "last")
    return [] if algorithm == "winograd" else _fft(product, tiled=algorithm == "fft-tiled")


def _able(layer: Layer, part: str, algorithm: str) -> bool:
    """Whether cuDNN computes the layer so, as its documentation (versions 4 and 5) has it; PALEO adds: never for 1x1.

    Stride 1 and filters larger than the padding; FFT for padded inputs up to 256, tiled for filters up to 32, Winograd
    for 3x3. The filter gradient has neither tiles nor Winograd.
    """
    kernel, pads = layer.weights[0][2:], layer.attributes.get("padding", (0, 0))
    if kernel == (1, 1) or set(layer.attributes["stride"]) != {1} or any(k <= p for k, p in zip(kernel, pads)):
        return False
    if algorithm == "fft":
        return all(size + 2 * pad <= 256 for size, pad in zip(layer.inputs[0][2:], pads))
    if part == "backward_weight":
        return False
    return kernel == (3, 3) if algorithm == "winograd" else max(kernel) <= 32


def _forward(layer: Layer, batch_size: int, revision: str) -> Product:
    _, channels, height, width = layer.inputs[0]
    _, maps, out_h, out_w = layer.outputs[0]
    kernel_h, kernel_w = layer.weights[0][2:]
    return Product(
        batch_size, height, width, channels, (kernel_h, kernel_w), maps, (out_h, out_w), _pads(layer, revision),
        kernel_h * kernel_w,
    )  # fmt: skip


def _pads(layer: Layer, revision: str) -> tuple[int, int]:
    """The padding on either side.

    The first revision takes a SAME convolution's from the size of its input instead of its output: with a stride that
    is too large by about ``(stride - 1) / 2`` of the input.
    """
    if revision == "first" and layer.attributes.get("same"):
        sizes = zip(layer.inputs[0][2:], layer.attributes["stride"], layer.weights[0][2:])
        pad_h, pad_w = (((size - 1) * stride + kernel - size) // 2 for size, stride, kernel in sizes)
    else:
        pad_h, pad_w = layer.attributes.get("padding", (0, 0))
    return pad_h, pad_w


def gradient_of(layer: Layer, batch_size: int, revision: str, wrt: str) -> Product:
    """The convolution of stride 1 that PALEO puts in the place of a gradient.

    The gradient of the output is expanded to ``(out - 1) stride + 1``, zeros between its elements. For the ``data`` it
    is convolved with the filters, and all those zeros count as work: too much by about the square of the stride, and of
    the kernel where the output is a single element. For the ``weight`` it is the filter, and they do not count.

    Raises
    ------
    CountFailed
        If the stand-in does not have the gradient's shape, where PALEO stops with an assertion.
    """
    _, channels, *size = layer.inputs[0]
    _, maps, *out = layer.outputs[0]
    kernel = list(layer.weights[0][2:])
    own = _pads(layer, revision)
    before = [k - 1 - p for k, p in zip(kernel, own)]
    expanded = [(o - 1) * s + 1 for o, s in zip(out, layer.attributes["stride"])]
    after = [n + k - 1 - e - b for n, k, e, b in zip(size, kernel, expanded, before)]
    if revision == "first":
        expanded = [e + (b == a - 1) for e, a, b in zip(expanded, after, before)]
        pads, weight_pads = before, list(own)
    else:
        expanded = [e + (abs(b - a) == 1) for e, a, b in zip(expanded, after, before)]
        pads = [min(a, b) for a, b in zip(after, before)]
        weight_pads = pads if any(own) or layer.attributes.get("same") else [0, 0]
    if wrt == "data":
        got, wanted = [e + 2 * p - k + 1 for e, p, k in zip(expanded, pads, kernel)], size
    else:
        got, wanted = [n + 2 * p - e + 1 for n, p, e in zip(size, weight_pads, expanded)], kernel
    if got != wanted:
        raise CountFailed(
            f"layer {layer.name!r}: PALEO (its {revision} revision) stops here, its {wrt} gradient comes out as "
            f"{got[0]}x{got[1]} instead of {wanted[0]}x{wanted[1]}"
        )
    outputs = prod(out)
    if wrt == "data":
        spread = batch_size * outputs * maps if revision == "last" and outputs < prod(expanded) else 0
        return Product(
            batch_size, expanded[0], expanded[1], maps, (kernel[0], kernel[1]), channels, (size[0], size[1]),
            (pads[0], pads[1]), prod(kernel), spread,
        )  # fmt: skip
    return Product(
        channels, size[0], size[1], batch_size, (expanded[0], expanded[1]), maps, (kernel[0], kernel[1]),
        (weight_pads[0], weight_pads[1]), outputs,
    )  # fmt: skip


def _gemm(p: Product, padded: bool) -> list[Term]:
    """2 FLOPs per multiply-accumulate; input, filter and output moved once, in the last revision with the padding."""
    flops = 2 * (p.taps * p.channels * prod(p.out) * p.maps * p.images + p.spread)
    around = p.pads if padded else (0, 0)
    source = p.images * (p.height + 2 * around[0]) * (p.width + 2 * around[1]) * p.channels
    moved = [source, p.taps * p.channels * p.maps, p.images * prod(p.out) * p.maps]
    return [Term(True, flops), *(Term(False, FLOAT * size) for size in moved)]


def _fft(p: Product, tiled: bool) -> list[Term]:
    """Transform inputs and filters, multiply, transform back. A 2-D transform of size T takes ``2 T 5 T log2 T`` FLOPs,
    half of that where the filter has one dimension, half again from real to complex."""
    if tiled:
        side, size, tiles = _TILE, _TILE**2, prod(-(-n // _TILE) for n in (p.height, p.width))
    else:
        sides = [max(n + 2 * pad, k) for n, pad, k in zip((p.height, p.width), p.pads, p.kernel)]
        side, size, tiles = max(sides), prod(sides), 1
    flat = 1 in p.kernel
    length = 2.0 ** ceil(log(sqrt(size)) / log(2))
    inverse = 10 * length * length * log2(length) / (2 if flat else 1)
    inputs, filters, outputs = p.images * p.channels, p.channels * p.maps, p.images * p.maps
    kept = filters * (side if flat else size) * _COMPLEX
    return [
        Term(True, inputs * inverse / 2, tiles),
        Term(True, filters * inverse / 2),
        Term(True, 4 * inputs * p.maps * size, tiles),
        Term(True, outputs * inverse, tiles),
        Term(False, inputs * size * FLOAT, tiles),
        Term(False, inputs * size * _COMPLEX, 2 * tiles),  # written, and read again
        Term(False, filters * size * FLOAT),
        Term(False, kept, 1 + tiles),
        Term(False, outputs * size * _COMPLEX, tiles),
        Term(False, outputs * size * _COMPLEX),  # read back once, however many tiles
        Term(False, outputs * prod(p.out) * FLOAT),
    ]


__all__ = ["FLOAT", "Product", "Term", "convolution_terms", "gradient_of"]

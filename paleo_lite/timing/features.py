"""What the calibrated model needs to know of each layer in each pass, as flat arrays; and sums over them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.kinds import class_of, gemm_of
from ..counting.kinds.products import MATRIX_CLASSES, computed_scores
from ..counting.work import passes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .workload import Workload

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    from numpy.typing import NDArray

TILE_ROWS, TILE_COLUMNS, TILE_INNER = 32, 32, 16
"""Sizes that matrix products are padded to. Libraries use tiles of 32 to 256; what counts is the waste at the edges."""
FEW_COLUMNS, LEAST_COLUMNS = 8, 4
"""Data gradients of convolutions with so few input channels are padded to so many columns only."""
WORK_ROWS, WORK_COLUMNS = 64, 64
"""The tile of output that one multiprocessor takes at a time."""
WORK_INNER = 8192
"""Weight gradients are small and sum over many positions: libraries share the sum out in pieces of about this size."""


class Features(msgspec.Struct, frozen=True, eq=False):
    """One entry for every layer in every pass that launches something.

    Attributes
    ----------
    flops, bytes, kernels : ndarray
        Canonical FLOPs, bytes moved, kernels launched.
    gradients : ndarray
        Parameter tensors whose gradient the host hands over: added to what is there, set to zero before.
    padding : ndarray
        Multiply-accumulates of the padded matrix product over those of the product itself; 1 for other layers. Below 1
        where a convolution by Fourier transforms takes less (`transforms`), or a mask hides scores of attention.
    tiles : ndarray
        Tiles of output that can be computed side by side; infinite for layers that are not matrix
        products: those never have too few.
    work_class : ndarray of int
        Index into `CLASSES`.
    part : ndarray of int
        0 forward (or inference), 1 data gradient, 2 weight gradient, 3 update.
    place : ndarray of int, shape (entries, 2)
        Pass and layer of each entry.

    For many batch sizes at once (`broadcast`) the first six have the shape (entries, batch sizes), class and part
    (entries, 1).
    """

    flops: Floats
    bytes: Floats
    kernels: Floats
    gradients: Floats
    padding: Floats
    tiles: Floats
    work_class: Ints
    part: Ints
    place: Ints

    @property
    def matrix(self) -> NDArray[np.bool_]:
        """Entries that multiply and accumulate (an update of such a layer does not)."""
        return (self.work_class < len(MATRIX_CLASSES)) & (self.part < 3)


PARTS = {"inference": 0, "forward": 0, "backward_data": 1, "backward_weight": 2, "update": 3}


def features_of(workload: Workload) -> Features:
    """Features of a workload: an entry for every layer in every pass that launches something; made once."""
    made: Features | None = workload.__dict__.get("features")
    if made is not None:
        return made
    layers, work, phase, batch_size = workload.layers, workload.work, workload.phase, workload.batch_size
    passes = passes_of(phase)
    kernels = work.column("kernels", phase, batch_size)
    place = np.argwhere(kernels > 0)
    classes = np.array([CLASS_PLACES[class_of(layer)] for layer in layers], dtype=np.int64)
    sizes = np.array([sizes_of(layers[layer], passes[part], batch_size) for part, layer in place], dtype=np.float64)
    sizes = sizes.reshape(len(place), 2)
    at = tuple(place.T)
    part = np.array([PARTS[name] for name in passes], dtype=np.int64)[place[:, 0]]
    tensors = np.array([len(layer.weights) for layer in layers], dtype=np.float64)[place[:, 1]]
    made = workload.__dict__["features"] = Features(
        flops=work.column("flops", phase, batch_size)[at].astype(np.float64),
        bytes=work.column("bytes", phase, batch_size)[at].astype(np.float64),
        kernels=kernels[at].astype(np.float64),
        gradients=np.where(part == 2, tensors, 0.0),
        padding=sizes[:, 0],
        tiles=sizes[:, 1],
        work_class=classes[place[:, 1]],
        part=part,
        place=place,
    )
    return made


def merge_alike(features: Features) -> Features:
    """Entries that differ in nothing become one with their sums: the same time, as every term grows with all of them.

    For fitting only: `place` is that of the first.
    """
    columns = [getattr(features, name) for name in ("flops", "bytes", "kernels", "gradients", "padding", "tiles")]
    rows = np.column_stack([*columns, features.work_class, features.part])
    _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    kept = {name: getattr(features, name)[first] for name in Features.__struct_fields__}
    for name in ("flops", "bytes", "kernels", "gradients"):
        kept[name] = kept[name] * counts
    return Features(**kept)


def sizes_of(layer: Layer, part: str, batch_size: int | Ints) -> tuple[Any, Any]:
    """Padding and tiles of a layer's matrix product; of many batch sizes at once where they come as an array."""
    gemm = None if part == "update" else gemm_of(layer, part)
    if gemm is None or 0 in gemm[:4]:
        return 1.0, np.inf
    rows, columns, inner, groups = (
        size * (batch_size if gemm.grows == name else 1)
        for name, size in zip(("rows", "columns", "inner", "groups"), gemm[:4])
    )
    # Only what grows with the batch is an array, and of one thing each: the brackets keep the rest plain numbers.
    tiles = -(-rows // WORK_ROWS) * (-(-columns // WORK_COLUMNS) * groups)
    if part == "backward_weight":
        tiles = tiles * np.where(groups == 1, -(-inner // WORK_INNER), 1)
    work_class = class_of(layer)
    if work_class == "conv_depthwise":
        return 1.0, tiles
    # The gradient of an image has a handful of columns, which libraries do not pad to a whole tile.
    image = part == "backward_data" and layer.kind.startswith("conv") and gemm.groups == 1 and columns <= FEW_COLUMNS
    wide = max(columns, LEAST_COLUMNS) if image else -(-columns // TILE_COLUMNS) * TILE_COLUMNS
    tall = -(-rows // TILE_ROWS) * TILE_ROWS
    if not str(work_class).startswith("conv"):  # matrix times vector: libraries have kernels that pad nothing
        tall = np.where(np.asarray(rows) == 1, 1, tall)
    padding = tall / rows * (wide / columns * (-(-inner // TILE_INNER) * TILE_INNER / inner))
    if work_class == "conv_direct":
        padding = np.minimum(padding, transformed(layer, batch_size))
    if layer.attributes.keys() & {"causal", "window"}:  # attention whose mask hides scores
        padding = padding * computed_scores(layer)
    if gemm.columns == gemm.groups == 1:
        padding = np.where(groups > 1, 1.0, padding)
    return padding, tiles


MEMORY_CLASSES = ("norm", "elementwise", "pool", "copy")
"""Classes that memory bounds."""

CLASSES = (*MATRIX_CLASSES, *MEMORY_CLASSES)


CLASS_PLACES: dict[str | None, int] = {name: place for place, name in enumerate(CLASSES)}
CLASS_PLACES[None] = CLASS_PLACES["elementwise"]
"""The place of each class in `CLASSES`; a layer of a kind without a record, which has none, takes no time but that of
its update, which is elementwise work on its weights."""

TILE = 32
"""Images are cut into tiles of at most this side (cuDNN's FFT_TILING)."""

TRANSFORM = 16.0
"""How many times its arithmetic a transform takes: it is bound by memory."""

COMPLEX = 2.0
"""The same of the products in between, of complex numbers."""


def transformed(layer: Layer, batch_size: int | NDArray[Any]) -> Any:
    """Work of a convolution by tiled FFT over that of the direct one; infinite where libraries do not offer it.

    They do where it is dense, two-dimensional, stride 1, of a kernel wider than 1 both ways and no wider than a tile.

    A real transform of m x m takes 2.5 m^2 log2(m^2) operations, of every tile of every input and output channel and of
    every filter; between them m (m/2 + 1) frequencies multiply a matrix each, 8 operations per complex product
    (Mathieu, Henaff and LeCun 2014; the two factors above are fitted to single convolutions of five GPUs).
    """
    weight, attributes = layer.weights[0], layer.attributes
    plain = attributes.get("groups", 1) == 1 and "dilation" not in attributes and not attributes.get("transposed")
    if not plain or len(weight) != 4 or min(weight[2:]) == 1 or set(attributes.get("stride", [1])) != {1}:
        return math.inf
    outputs, inputs, *kernel = weight
    height, width = layer.outputs[0][-2:]
    side = min(TILE, max(8, 2 ** math.ceil(math.log2(max(height + kernel[0], width + kernel[1]) - 1))))
    steps = [side - taps + 1 for taps in kernel]
    if min(steps) < 1:
        return math.inf
    tiles = batch_size * (-(-height // steps[0]) * -(-width // steps[1]))
    transforms = 2.5 * side**2 * math.log2(side**2) * (tiles * (inputs + outputs) + inputs * outputs)
    products = 8 * side * (side // 2 + 1) * 32 * -(-outputs // 32) * 8 * -(-inputs // 8) * 32 * -(-tiles // 32)
    direct = 2.0 * batch_size * outputs * inputs * kernel[0] * kernel[1] * height * width
    return (TRANSFORM * transforms + COMPLEX * products) / direct


_PRODUCT = 2**10
"""Groups times entries of one matrix product in `Sums`. With a block's batch sizes it is too small for BLAS to start
threads, which in a pool of processes would wait for each other's."""


class Sums:
    """Sums of entries by group, prepared once and taken of many arrays.

    Parameters
    ----------
    group : ndarray of int, shape (entries,) or (entries, 1)
        Of every entry, with one column for arrays (entries, batch sizes); an entry may belong to several groups.
    """

    def __init__(self, groups: int, *group: Ints) -> None:
        self.groups, self.group = groups, group
        self.parts = list(self._split(0, len(group[0]))) if group[0].ndim > 1 else []

    def _split(self, first: int, last: int) -> Iterator[tuple[slice, Ints, Floats]]:
        """Stretches of entries; of each the groups that occur, and for each of them how often every entry counts."""
        members = np.stack([column[first:last, 0] for column in self.group])
        distinct = np.unique(members)
        if len(distinct) * (last - first) > _PRODUCT:
            yield from self._split(first, (first + last) // 2)
            yield from self._split((first + last) // 2, last)
        else:
            counts = (distinct[:, None, None] == members).sum(axis=1, dtype=np.float64)
            yield slice(first, last), distinct, counts

    def of(self, weights: Floats, sums: Floats | None = None) -> Floats:
        """The sums, shape (groups,) or (groups, batch sizes), added to others where there are any."""
        if sums is None:
            sums = np.zeros((self.groups, *weights.shape[1:]))
        if weights.ndim == 1:
            for column in self.group:
                sums += np.bincount(column, weights, self.groups)
        for stretch, distinct, counts in self.parts:
            sums[distinct] += counts @ weights[stretch]  # a third of what np.add.reduceat takes
        return sums

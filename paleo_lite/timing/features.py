"""Features of every layer and pass that the calibrated model times, as flat arrays, and sums of entries by group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.kinds import class_of, gemm_of, is_attention, is_convolution
from ..counting.kinds.products import MATRIX_CLASSES, computed_score_fraction
from ..counting.recurrent import count_gradients, is_looped
from ..counting.work import passes_of
from .workload import Workload, cached_for_layers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

TILE_ROWS, TILE_COLUMNS, TILE_INNER = 32, 32, 16
"""Multiples to which the sizes of matrix products are padded. Libraries use tiles of 32 to 256, so that this
approximates the waste at the edges."""
FEW_COLUMNS, LEAST_COLUMNS = 8, 4
"""Data gradients of convolutions with at most `FEW_COLUMNS` input channels are padded to at least `LEAST_COLUMNS`
columns only."""
WORK_ROWS, WORK_COLUMNS = 64, 64
"""Output tile that one multiprocessor computes at a time."""
WORK_INNER = 8192
"""Length of the parts into which libraries split the inner dimension of weight gradients (split-K), which have small
outputs and sum over many positions."""


class Features(msgspec.Struct, frozen=True, eq=False):
    """Features of a workload, with one entry for every layer in every pass that launches a kernel.

    For many batch sizes at once (`broadcast`), `flops`, `bytes`, `kernels`, `calls`, `gradients`, `padding` and `tiles`
    have the shape (entries, batch sizes), and `work_class`, `pass_number`, `wide`, `inverse_keys` and
    `update_products` the shape (entries, 1).
    """

    # Canonical FLOPs, bytes moved, kernels launched; shape (entries,).
    flops: Floats
    bytes: Floats
    kernels: Floats
    # Parameter tensors for which the host handles a gradient: it sets the gradient to zero and accumulates into
    # it; shape (entries,).
    gradients: Floats
    # Multiply-accumulates of the padded matrix product over those of the product itself; 1 for other layers. It
    # is below 1 if a convolution by Fourier transform takes fewer (`fft_work_ratio`), or if a mask hides
    # attention scores; shape (entries,).
    padding: Floats
    # Output tiles that can be computed concurrently; infinite for layers that are not matrix products; shape
    # (entries,).
    tiles: Floats
    work_class: Ints  # index into `CLASSES`; shape (entries,)
    # 0 for the forward pass or inference, 1 for the data gradient, 2 for the weight gradient, 3 for the update;
    # shape (entries,).
    pass_number: Ints
    position: Ints  # index of the pass and of the layer of each entry; shape (entries, 2)
    wide: NDArray[np.bool_]  # products in 16 bits in a narrower precision, as in `Work.wide`; shape (entries,)
    # Part of the FLOPs of an update that matrix products take, as in Muon; 0 in other passes; shape (entries,).
    update_products: Floats
    # Kernels that the framework launches: all of them, except those that a library launches in a loop of its own;
    # shape (entries,).
    calls: Floats
    # 1 over the mean number of keys that a query of attention in one kernel computes; 0 of other layers; shape
    # (entries,).
    inverse_keys: Floats

    @property
    def matrix(self) -> NDArray[np.bool_]:
        """Entries that consist of multiply-accumulates; the update of such a layer does not."""
        return are_products(self.work_class, self.pass_number)


PASS_NUMBERS = {"inference": 0, "forward": 0, "backward_data": 1, "backward_weight": 2, "update": 3}
"""`Features.pass_number` of each pass."""

UPDATE = PASS_NUMBERS["update"]
"""`Features.pass_number` of the update, which is larger than those of other passes."""


def are_products(work_class: Ints, pass_number: Ints) -> NDArray[np.bool_]:
    """Return which entries consist of multiply-accumulates; arrays as in `Features`."""
    return (work_class < len(MATRIX_CLASSES)) & (pass_number < UPDATE)


class LayerFacts(msgspec.Struct, frozen=True, eq=False):
    """Features of layers that depend neither on the pass nor on the batch size, each with the shape (layers,)."""

    work_class: Ints  # index into `CLASSES`
    num_weights: Floats  # parameter tensors with a gradient
    is_called: Floats  # 1 for kernels that the framework launches, 0 for those of a library's loop
    first_alike: Ints  # index of the first layer with the same matrix products; of other layers their own
    inverse_keys: Floats  # as in `Features`


def describe_layers(layers: Sequence[Layer]) -> LayerFacts:
    """Return what features of layers depend on them alone: networks repeat their blocks."""
    work_class = np.array([CLASS_INDEX[class_of(layer)] for layer in layers], dtype=np.int64)
    first_alike = np.arange(len(layers))
    first_of_form: dict[tuple[object, ...], int] = {}
    for index in np.flatnonzero(work_class < len(MATRIX_CLASSES)).tolist():
        first_alike[index] = first_of_form.setdefault(form_of(layers[index]), index)
    return LayerFacts(
        work_class=work_class,
        num_weights=np.array([count_gradients(layer) for layer in layers], dtype=np.float64),
        is_called=np.array([not is_looped(layer) for layer in layers], dtype=np.float64),
        first_alike=first_alike,
        inverse_keys=np.array([inverse_keys(layer) for layer in layers], dtype=np.float64),
    )


def inverse_keys(layer: Layer) -> float:
    """Return 1 over the mean number of keys that a query of attention in one kernel computes; 0 of other layers."""
    if not is_attention(layer):
        return 0.0
    return 1 / max(computed_score_fraction(layer) * layer.inputs[1][-2], 1.0)


def form_of(layer: Layer) -> tuple[object, ...]:
    """Return everything that describes a layer except its name and its position in the network."""
    return layer.kind, layer.inputs, layer.outputs, layer.weights, repr(sorted(layer.attributes.items()))


def features_of(workload: Workload) -> Features:
    """Return the features of a workload, computed once per workload."""
    cached: Features | None = workload.__dict__.get("features")
    if cached is not None:
        return cached
    layers, work, phase, batch_size = workload.layers, workload.work, workload.phase, workload.batch_size
    facts = cached_for_layers(describe_layers, layers)
    passes = passes_of(phase)
    kernels = work.column("kernels", phase, batch_size)
    position = np.argwhere(kernels > 0)
    entries = tuple(position.T)
    pass_index, layer_index = position[:, 0], position[:, 1]
    work_class, num_weights = facts.work_class[layer_index], facts.num_weights[layer_index]
    pass_number = np.array([PASS_NUMBERS[name] for name in passes], dtype=np.int64)[pass_index]
    padding, tiles = np.ones(len(position)), np.full(len(position), np.inf)
    of_product: dict[tuple[int, int], tuple[Any, Any]] = {}
    for entry in np.flatnonzero(are_products(work_class, pass_number)):
        index, first = int(pass_index[entry]), int(facts.first_alike[layer_index[entry]])
        if (index, first) not in of_product:
            of_product[index, first] = padding_and_tiles(layers[first], passes[index], batch_size)
        padding[entry], tiles[entry] = of_product[index, first]
    wide = np.zeros(len(layers), dtype=bool)
    if work.wide is not None and passes == ("inference",):
        wide = work.wide
    calls = facts.is_called[layer_index] * kernels[entries]
    features = Features(
        flops=work.column("flops", phase, batch_size)[entries].astype(np.float64),
        bytes=work.column("bytes", phase, batch_size)[entries].astype(np.float64),
        kernels=kernels[entries].astype(np.float64),
        calls=calls,
        gradients=np.where(pass_number == PASS_NUMBERS["backward_weight"], num_weights, 0.0),
        padding=padding,
        tiles=tiles,
        work_class=work_class,
        pass_number=pass_number,
        position=position,
        wide=wide[layer_index],
        update_products=np.where(pass_number == UPDATE, 2.0 * work.column("macs", phase, batch_size)[entries], 0.0),
        inverse_keys=facts.inverse_keys[layer_index],
    )
    workload.__dict__["features"] = features
    return features


def merge_identical_entries(features: Features) -> Features:
    """Merge identical entries into one with the sums of their counts.

    The time is unchanged, because every term of the model is proportional to the counts. Used for fitting only: the
    `position` of a merged entry is that of the first.
    """
    columns = [
        features.flops,
        features.bytes,
        features.kernels,
        features.calls,
        features.gradients,
        features.padding,
        features.tiles,
        features.work_class,
        features.pass_number,
        features.wide,
        features.update_products,
        features.inverse_keys,
    ]
    _, first, multiplicity = np.unique(np.column_stack(columns), axis=0, return_index=True, return_counts=True)
    return Features(
        flops=features.flops[first] * multiplicity,
        bytes=features.bytes[first] * multiplicity,
        kernels=features.kernels[first] * multiplicity,
        calls=features.calls[first] * multiplicity,
        gradients=features.gradients[first] * multiplicity,
        padding=features.padding[first],
        tiles=features.tiles[first],
        work_class=features.work_class[first],
        pass_number=features.pass_number[first],
        position=features.position[first],
        wide=features.wide[first],
        update_products=features.update_products[first] * multiplicity,
        inverse_keys=features.inverse_keys[first],
    )


def padding_and_tiles(layer: Layer, pass_name: str, batch_size: int | Ints) -> tuple[Any, Any]:
    """Return the padding and the number of output tiles of a layer's matrix product in a pass, as in `Features`.

    They are 1 and infinity for layers without a matrix product, and arrays for an array of batch sizes. The pass is one
    of `paleo_lite.counting.PASSES`.
    """
    gemm = None if pass_name == "update" else gemm_of(layer, pass_name)
    if gemm is None or 0 in gemm[:4]:
        return 1.0, np.inf
    rows, columns, inner, groups = (
        size * (batch_size if gemm.grows == name else 1)
        for name, size in zip(("rows", "columns", "inner", "groups"), gemm[:4])
    )
    # Only the size that grows with the batch is an array: the brackets keep the other factors plain numbers.
    tiles = -(-rows // WORK_ROWS) * (-(-columns // WORK_COLUMNS) * groups)
    if pass_name == "backward_weight":
        tiles = tiles * np.where(groups == 1, -(-inner // WORK_INNER), 1)
    work_class = class_of(layer)
    if work_class == "conv_depthwise":
        return 1.0, tiles
    if pass_name == "backward_data" and is_convolution(layer) and gemm.groups == 1 and columns <= FEW_COLUMNS:
        # The gradient of an image has a few columns, which libraries do not pad to a full tile.
        padded_columns = max(columns, LEAST_COLUMNS)
    else:
        padded_columns = -(-columns // TILE_COLUMNS) * TILE_COLUMNS
    padded_rows = -(-rows // TILE_ROWS) * TILE_ROWS
    least_rows = rows if isinstance(rows, int) else rows.min()
    if not str(work_class).startswith("conv") and least_rows < TILE_ROWS:
        # Libraries multiply a matrix by one vector without padding, and by a few with narrow tiles (1, 2, 4, 8, 16), so
        # that doubling the number of rows at most doubles the arithmetic.
        padded_rows = np.where(np.asarray(rows) < TILE_ROWS, _next_power_of_two(rows), padded_rows)
    padded_inner = -(-inner // TILE_INNER) * TILE_INNER
    padding = padded_rows / rows * (padded_columns / columns * (padded_inner / inner))
    if work_class == "conv_direct":
        padding = np.minimum(padding, fft_work_ratio(layer, batch_size))
    has_mask = not layer.attributes.keys().isdisjoint(("causal", "window", "attention_chunk"))
    if has_mask:
        padding = padding * computed_score_fraction(layer)
    if gemm.columns == gemm.groups == 1:
        padding = np.where(groups > 1, 1.0, padding)
    return padding, tiles


def _next_power_of_two(size: int | Ints) -> Ints:
    """Return the smallest powers of two that are at least `size`, an integer or an array of integers >= 0."""
    powers: Ints = 2 ** np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64)
    return powers


MEMORY_CLASSES = ("norm", "elementwise", "pool", "copy")
"""Memory-bound classes of work."""

CLASSES = (*MATRIX_CLASSES, *MEMORY_CLASSES)
"""All classes of work."""

CLASS_INDEX: dict[str | None, int] = {name: index for index, name in enumerate(CLASSES)}
CLASS_INDEX[None] = CLASS_INDEX["elementwise"]
"""The index of each class in `CLASSES`. A layer of a kind without a record has no class; it takes only the time of its
update, which is elementwise work on its weights."""

FFT_TILE = 32
"""Largest side of the tiles into which cuDNN cuts images (FFT_TILING)."""

FFT_TRANSFORM_FACTOR = 16.0
"""Time of a transform, which is memory-bound, over the time of its arithmetic; fitted (`fft_work_ratio`)."""

FFT_PRODUCT_FACTOR = 2.0
"""Time of the products of complex numbers over the time of their arithmetic; fitted (`fft_work_ratio`)."""


def fft_work_ratio(layer: Layer, batch_size: int | NDArray[Any]) -> Any:
    """Return the work of a convolution by tiled FFT over that of the direct convolution.

    A real transform of m x m takes 2.5 m^2 log2(m^2) operations, for every tile of every input and output channel and
    for every filter. In between, a matrix product is computed for each of m (m/2 + 1) frequencies, with 8 operations
    per complex multiply-accumulate (Mathieu, Henaff and LeCun 2014). `FFT_TRANSFORM_FACTOR` and `FFT_PRODUCT_FACTOR`
    are fitted to single convolutions on five GPUs.

    The ratio is infinite if libraries offer no FFT: they require a dense 2-D convolution of stride 1 whose kernel is
    wider than 1 in both directions and no wider than a tile.
    """
    weight, attributes = layer.weights[0], layer.attributes
    is_dense = attributes.get("groups", 1) == 1 and "dilation" not in attributes and not attributes.get("transposed")
    has_stride_1 = set(attributes.get("stride", [1])) == {1}
    if not is_dense or not has_stride_1 or len(weight) != 4 or min(weight[2:]) == 1:
        return math.inf
    outputs, inputs, *kernel = weight
    height, width = layer.outputs[0][-2:]
    largest_size = max(height + kernel[0], width + kernel[1]) - 1
    side = min(FFT_TILE, max(8, 2 ** math.ceil(math.log2(largest_size))))
    outputs_per_tile = [side - taps + 1 for taps in kernel]
    if min(outputs_per_tile) < 1:
        return math.inf
    tiles = batch_size * (-(-height // outputs_per_tile[0]) * -(-width // outputs_per_tile[1]))
    transforms = 2.5 * side**2 * math.log2(side**2) * (tiles * (inputs + outputs) + inputs * outputs)
    frequencies = side * (side // 2 + 1)
    # Matrix products pad their sizes to multiples of 32, 8 and 32.
    products = 8 * frequencies * 32 * -(-outputs // 32) * 8 * -(-inputs // 8) * 32 * -(-tiles // 32)
    direct = 2.0 * batch_size * outputs * inputs * kernel[0] * kernel[1] * height * width
    return (FFT_TRANSFORM_FACTOR * transforms + FFT_PRODUCT_FACTOR * products) / direct


_MAX_PRODUCT = 2**10
"""Largest number of groups times entries in one matrix product of `GroupSums`. With a block's batch sizes this is too
small for BLAS to start threads, which would compete with each other in a pool of processes."""


class GroupSums:
    """Sums of entries by group, prepared once and computed for many arrays.

    Every entry has a group, in an array of shape (entries,), or (entries, 1) if the summed arrays have the shape
    (entries, batch sizes); there are several arrays if an entry belongs to several groups. `groups` is the number of
    groups.
    """

    def __init__(self, groups: int, *group: Ints) -> None:
        self.groups, self.group = groups, group
        self.parts = list(self._split(0, len(group[0]))) if group[0].ndim > 1 else []

    def _split(self, first: int, last: int) -> Iterator[tuple[slice, Ints, Floats]]:
        """Split the entries from `first` to `last` into parts with small matrix products.

        Yield the entries of a part, the groups that occur in it, and how many times each entry belongs to each group,
        shape (groups in the part, entries in the part).
        """
        members = np.stack([column[first:last, 0] for column in self.group])
        distinct = np.unique(members)
        if len(distinct) * (last - first) > _MAX_PRODUCT:
            yield from self._split(first, (first + last) // 2)
            yield from self._split((first + last) // 2, last)
        else:
            counts = (distinct[:, None, None] == members).sum(axis=1, dtype=np.float64)
            yield slice(first, last), distinct, counts

    def sum(self, values: Floats, out: Floats | None = None) -> Floats:
        """Return the sums of the values of each group, shape (groups,) or (groups, batch sizes).

        There is a value for every entry, shape (entries,) or (entries, batch sizes). They are added to `out`, if given.
        """
        if out is None:
            out = np.zeros((self.groups, *values.shape[1:]))
        if values.ndim == 1:
            for column in self.group:
                out += np.bincount(column, values, self.groups)
        for entries, distinct, counts in self.parts:
            out[distinct] += counts @ values[entries]  # takes a third of the time of np.add.reduceat
        return out

"""Column-parallel and row-parallel products of any network, and the network of one of several devices.

Shoeybi et al. 2019 (Megatron-LM, section 3): each device computes some of the outputs of column-parallel layers, and
what follows on its shard of them, up to a row-parallel layer, of whose output it has a partial sum. This needs an
all-reduce of that output in the forward pass, and one of the gradient of what column-parallel layers read in the
backward pass. Layers that read the same tensor, such as the projections to queries, keys and values, share the latter;
streams that meet in one attention, such as those of pictures and of texts in a denoiser, are sharded by the same heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from ..counting import Layer
from ..counting.kinds import is_linear, preserves_sharding
from ..errors import BadValue


class TensorSplit(NamedTuple):
    """Which layers of a network tensor-parallel devices share."""

    columns: tuple[int, ...]  # indices of column-parallel layers
    rows: tuple[int, ...]  # indices of row-parallel layers
    between: tuple[int, ...]  # indices of the other layers that work on a shard
    axes: dict[int, int]  # sharded axis of the output of each layer but the row-parallel ones, by its index

    @property
    def sharded(self) -> tuple[int, ...]:
        """Indices of all layers of which a device computes a share."""
        return tuple(sorted((*self.columns, *self.rows, *self.between)))

    def forward_elements(self, layers: Sequence[Layer]) -> list[int]:
        """Return the elements per sample of each all-reduce of the forward pass."""
        return [prod(layers[index].outputs[0]) for index in self.rows]

    def backward_elements(self, layers: Sequence[Layer]) -> list[int]:
        """Return the elements per sample of each all-reduce of the backward pass: of inputs that need a gradient."""
        read = {layers[index].parents[0]: prod(layers[index].inputs[0]) for index in self.columns}
        return [elements for parent, elements in read.items() if parent >= 0]


def find_tensor_split(layers: Sequence[Layer]) -> TensorSplit:
    """Return the split of a network.

    Every product that reads a whole tensor is column-parallel at first. Those whose shards reach a layer that needs the
    whole tensor, or the end of the network, are replicated instead, until all shards end in row-parallel layers.
    """
    replicated: set[int] = set()
    while True:
        split, conflicting = _propagate(layers, replicated)
        if not conflicting:
            return split
        replicated |= conflicting


def _propagate(layers: Sequence[Layer], replicated: set[int]) -> tuple[TensorSplit, set[int]]:
    """Return the split with some products replicated, and the products whose shards reach what cannot use them."""
    origins: dict[int, frozenset[int]] = {}  # column-parallel layers that the shard of a layer's output comes from
    axes: dict[int, int] = {}
    columns: list[int] = []
    rows: list[int] = []
    between: list[int] = []
    conflicting: set[int] = set()
    unread: set[int] = set()  # layers with a shard that no layer has read yet
    for index, layer in enumerate(layers):
        shards = [origins[parent] for parent in layer.parents if parent in origins]
        unread.difference_update(layer.parents)
        if not shards:
            if _is_shardable(layer) and index not in replicated:
                columns.append(index)
                origins[index], axes[index] = frozenset((index,)), _channel_axis(layer)
                unread.add(index)
            continue
        if _is_shardable(layer):
            rows.append(index)
            continue
        together = frozenset().union(*shards)
        sharded_parent = next(parent for parent in layer.parents if parent in origins)
        axis = _followed(layers[sharded_parent].outputs[0], axes[sharded_parent], layer.outputs[0])
        if axis is None or not _works_on_shards(layer, [parent in origins for parent in layer.parents]):
            conflicting |= together
            continue
        between.append(index)
        origins[index], axes[index] = together, axis
        unread.add(index)
    for index in unread:
        conflicting |= origins[index]
    return TensorSplit(tuple(columns), tuple(rows), tuple(between), axes), conflicting


def _is_shardable(layer: Layer) -> bool:
    """Return whether the weight of a layer can be sharded by columns or rows."""
    is_product = is_linear(layer) or layer.kind == "conv2d"
    return is_product and layer.attributes.get("groups", 1) == 1 and bool(layer.weights)


def _works_on_shards(layer: Layer, is_sharded: Sequence[bool]) -> bool:
    """Return whether a layer computes the shard of its output from shards of its inputs, with whole ones beside them.

    A whole tensor may be broadcast along what is sharded, as the rotary embedding is along heads. A norm over the
    elements of each head works on the heads of a shard.
    """
    if not (preserves_sharding(layer) or _is_norm_of_heads(layer)):
        return False
    if all(is_sharded):
        return True
    if len(layer.inputs) != len(is_sharded) or layer.kind == "concat":
        return False
    sharded_shapes = [shape for shape, sharded in zip(layer.inputs, is_sharded) if sharded]
    whole_shapes = [shape for shape, sharded in zip(layer.inputs, is_sharded) if not sharded]
    heads = [_head_axis(shape) for shape in sharded_shapes]
    return all(
        axis is not None and (len(shape) < len(sharded) - axis or shape[axis - len(sharded)] == 1)
        for sharded, axis in zip(sharded_shapes, heads)
        for shape in whole_shapes
    )


def _is_norm_of_heads(layer: Layer) -> bool:
    """Return whether a layer normalises the elements of each head, whose heads are an axis of their own."""
    is_norm = layer.kind in ("rms_norm", "layer_norm")
    return is_norm and len(layer.inputs[0]) >= _AXES_WITH_HEADS


_AXES_WITH_HEADS = 4
"""Axes of a tensor with heads beside samples, tokens and the elements of a head."""


def _head_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of the heads in a tensor of samples, tokens, heads and elements; None in one without."""
    return len(shape) - 2 if len(shape) >= _AXES_WITH_HEADS else None


def shard_layers(layers: Sequence[Layer], devices: int) -> tuple[Layer, ...]:
    """Return the layers of one of several tensor-parallel devices: those of a split have its share of their tensors.

    Raise BadValue if no layers can be split, or the devices do not divide the features, channels or heads of a shard.
    """
    split = find_tensor_split(layers)
    if not split.rows:
        raise BadValue("the network has no column-parallel and row-parallel layers for `--tensor`")
    sharded, axes = list(layers), split.axes
    columns, rows = set(split.columns), set(split.rows)
    for index in split.sharded:
        layer = layers[index]
        inputs = tuple(
            _share(shape, _axis_of(shape, layers[parent], axes[parent]), devices, layer) if parent in axes else shape
            for shape, parent in zip(layer.inputs, layer.parents)
        )
        changes: dict[str, Any] = {"inputs": (*inputs, *layer.inputs[len(inputs) :])}
        if index in columns or index in rows:
            weights = _share_of_weights(layer, devices, is_column=index in columns)
            parameters = sum(prod(shape) for shape in weights) if layer.parameters else 0
            changes |= {"weights": weights, "parameters": parameters}
        if index not in rows:
            changes["outputs"] = tuple(
                _share(shape, _axis_of(shape, layer, axes[index]), devices, layer) for shape in layer.outputs
            )
        sharded[index] = layer._replace(**changes)
    return tuple(sharded)


def _axis_of(shape: tuple[int, ...], layer: Layer, axis: int) -> int:
    """Return the sharded axis of a shape that a layer makes or that another one reads of it; its own by default."""
    followed = _followed(layer.outputs[0], axis, shape)
    return min(axis, len(shape) - 1) if followed is None else followed


def _channel_axis(layer: Layer) -> int:
    """Return the axis of the features or channels of the output of a product."""
    return len(layer.outputs[0]) - (3 if layer.kind == "conv2d" else 1)


_FUSED = 3
"""Queries, keys and values that one product projects to."""


def _followed(shape: tuple[int, ...], axis: int, other: tuple[int, ...]) -> int | None:
    """Return the axis of another shape of the same or a following tensor that an axis became; None if it is gone.

    It keeps its place where its size is there, as in sums; else it goes where its size is, as in permutations; else it
    is split or joined, behind as many elements as before, as in those of heads. Queries, keys and values of one product
    are split first, and a shard is one of each of them. Parts of an axis, and axes that are concatenated, stay at their
    place. A mean over the axis leaves nothing of it.
    """
    size = shape[axis]
    if axis < len(other) and other[axis] == size:
        return axis
    if size in other:
        return other.index(size)
    if prod(shape) == prod(other):
        before = prod(shape[:axis])
        places = [place for place, length in enumerate(other) if length > 1 and prod(other[:place]) == before]
        place = places[0] if places else min(axis, len(other) - 1)
        is_fused = other[place] == _FUSED and place + 1 < len(other)
        return place + 1 if is_fused else place
    return axis if len(other) == len(shape) and other[axis] > 1 else None


def _share(shape: tuple[int, ...], axis: int, devices: int, layer: Layer) -> tuple[int, ...]:
    """Return a shape of which one axis is divided among devices."""
    if shape[axis] % devices:
        raise BadValue(
            f"{devices} tensor-parallel devices do not divide the {shape[axis]:,} channels or heads of {layer.name}: "
            "use as many as divide them"
        )
    return (*shape[:axis], shape[axis] // devices, *shape[axis + 1 :])


def _share_of_weights(layer: Layer, devices: int, *, is_column: bool) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the weights of a column-parallel or row-parallel product; only columns share a bias."""
    matrix, *others = layer.weights
    outputs = layer.outputs[0][_channel_axis(layer)]
    rows_first = matrix[0] == outputs  # a matrix of outputs by inputs, as in a linear layer
    axis = int(rows_first != is_column)
    biases = [_share(shape, 0, devices, layer) if is_column else shape for shape in others]
    return (_share(matrix, axis, devices, layer), *biases)

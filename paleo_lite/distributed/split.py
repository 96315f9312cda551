"""Which layers model parallelism can divide: pairs for tensor splits, the tail for hybrid, branches for bounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.kinds import is_linear, splits
from ..errors import BadValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class SplitPair(msgspec.Struct, frozen=True):
    """Layers that are divided together (Shoeybi et al. 2019, Megatron-LM, section 3).

    The first ones by columns of their weight, so that each device has some of the outputs; the last by rows, so that
    its partial sums are added up: one all-reduce of its output in the forward pass, one of the gradient of the first
    ones' input in the backward pass.

    Attributes
    ----------
    layers : tuple of int
        All of them, with what lies between.
    """

    layers: tuple[int, ...]
    first: int
    last: int

    def elements(self, network: Sequence[Layer]) -> tuple[int, int]:
        """Elements per sample of the two all-reduces, forward and backward; 0 where no gradient is wanted."""
        into = network[self.first]
        backward = prod(into.inputs[0]) if into.parents[0] >= 0 else 0
        return prod(network[self.last].outputs[0]), backward


def tensor_pairs(layers: Sequence[Layer]) -> list[SplitPair]:
    """Pairs that can be divided, in order; no layer is in two.

    Layers that read the same tensor (queries, keys and values) begin a pair together.
    """
    readers: dict[int, list[int]] = {}
    for index, layer in enumerate(layers):
        for parent in layer.parents:
            readers.setdefault(parent, []).append(index)
    pairs: list[SplitPair] = []
    taken = -1
    for index, layer in enumerate(layers):
        if index <= taken or not _divisible(layer):
            continue
        siblings = [other for other in readers[layer.parents[0]] if other >= index and _divisible(layers[other])]
        pair = _follow(layers, readers, siblings) or _follow(layers, readers, [index])
        if pair is not None:
            pairs.append(pair)
            taken = max(pair.layers)
    return pairs


def _divisible(layer: Layer) -> bool:
    is_product = is_linear(layer) or layer.kind == "conv2d"
    return is_product and layer.attributes.get("groups", 1) == 1 and bool(layer.weights)


def _follow(layers: Sequence[Layer], readers: dict[int, list[int]], start: list[int]) -> SplitPair | None:
    """From layers divided by columns to the one layer that takes the parts together, if that is all that reads them."""
    inside, last = set(start), None
    for index in range(min(start) + 1, len(layers)):
        layer = layers[index]
        if index in inside or not inside.intersection(layer.parents):
            continue
        if last is not None:
            return None  # two layers want the whole of it
        if _divisible(layer):
            last = index
        elif _passes(layer, inside):
            inside.add(index)
        else:
            return None
    if last is None or any(index not in readers for index in inside):
        return None
    return SplitPair((*sorted(inside), last), min(start), last)


def _passes(layer: Layer, inside: set[int]) -> bool:
    if any(parent >= 0 and parent not in inside for parent in layer.parents):
        return False
    return splits(layer)


def dense_tail(layers: Sequence[Layer]) -> int:
    """Where the fully connected layers begin: the first one behind the last convolution.

    Raises
    ------
    BadValue
        If there is no convolution or no fully connected layer behind the last.
    """
    convolutions = [index for index, layer in enumerate(layers) if layer.kind.startswith("conv")]
    after = convolutions[-1] + 1 if convolutions else 0
    for index in range(after, len(layers)):
        if convolutions and is_linear(layers[index]):
            return index
    raise BadValue(
        "the hybrid strategy needs convolutions and fully connected layers behind them, as AlexNet and VGG have"
    )


def critical_path_s(layers: Sequence[Layer], times_s: Any) -> Any:
    """Seconds of the longest way through the graph: what no number of devices gets below, branches side by side.

    Of times of shape (layers, batch sizes) an array.
    """
    times = np.asarray(times_s, dtype=np.float64)
    ends: list[Any] = []
    for layer, time in zip(layers, times):
        before = [ends[parent] for parent in layer.parents if parent >= 0]
        ends.append(time + np.max(before, axis=0) if before else time)
    return np.max(ends, axis=0) if ends else 0.0

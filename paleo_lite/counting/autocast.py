"""Mixed precision as PyTorch's autocast applies it: casts, which are kernels, and layers that compute in fp32.

Weights and inputs are kept in fp32. Matrix products compute in 16 bits: wider operands are cast before each product,
weights in every step. Normalisations of samples, softmax, powers and logarithms compute in fp32. Other operations use
the widest type of their operands (PyTorch, "Automatic Mixed Precision package", CUDA ops).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .kinds import KINDS, MATRIX_KINDS
from .layer import Layer, Shape
from .recurrent import is_looped
from .work import CAST_BYTES

NARROW, WIDE = CAST_BYTES, 4
"""Bytes per element of the 16-bit type and of fp32."""

ORIGIN = "opaque:autocast"
"""Origin of an inserted cast, as in `Layer.origin`."""


def insert_casts(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers, in the order of execution, with casts inserted.

    The attribute ``widths`` of each returned layer holds the bytes per element that it reads and writes.
    """
    return _CastInserter(layers).result()


class _CastInserter:
    """Builds the list of layers with casts."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.inserted: list[Layer] = []  # layers and casts so far
        self.new_indices: list[int] = []  # index in `inserted` of each original layer

    def result(self) -> tuple[Layer, ...]:
        for layer in self.layers:
            self._add(layer)
        return tuple(self.inserted)

    def _add(self, layer: Layer) -> None:
        parents = [self.new_indices[parent] if parent >= 0 else parent for parent in layer.parents]
        autocast = KINDS[layer.kind].autocast if layer.kind in KINDS else ""
        widths: tuple[float, int]
        if layer.kind in MATRIX_KINDS:
            if layer.parameters or not is_looped(layer):  # a library casts weights and inputs of all steps at once
                parents = self._cast_inputs(layer, parents, NARROW)
                self._cast_weights(layer)
            widths = (NARROW, NARROW)
        elif autocast == "fp32":
            parents = self._cast_inputs(layer, parents, WIDE)
            widths = (WIDE, WIDE)
        else:
            widths = self._uncast_widths(layer, parents, ignore_weights=autocast == "input")
        self.new_indices.append(len(self.inserted))
        attributes = {**layer.attributes, "widths": widths}
        self.inserted.append(layer._replace(parents=tuple(parents), attributes=attributes))

    def _width(self, parent: int) -> int:
        """Return the bytes per element of a parent's output."""
        if parent < 0:
            return WIDE
        width: int = self.inserted[parent].attributes["widths"][1]
        return width

    def _cast_inputs(self, layer: Layer, parents: Sequence[int], width: int) -> list[int]:
        """Insert a cast of every input of another width, and return the new parents."""
        new_parents = []
        for number, (parent, shape) in enumerate(zip(parents, layer.inputs), 1):
            if self._width(parent) == width:
                new_parents.append(parent)
            else:
                name = _numbered("to", number)
                new_parents.append(len(self.inserted))
                self.inserted.append(_cast(layer, name, shape, (self._width(parent), width), parents=(parent,)))
        return new_parents

    def _cast_weights(self, layer: Layer) -> None:
        for number, shape in enumerate(layer.weights, 1):
            name = _numbered("weight.to", number)
            self.inserted.append(_cast(layer, name, shape, (WIDE, NARROW), weights=(shape,)))

    def _uncast_widths(self, layer: Layer, parents: Sequence[int], ignore_weights: bool) -> tuple[float, int]:
        """Return the mean bytes per element read, and those written: the widest of the operands."""
        input_widths = [self._width(parent) for parent in parents]
        operand_widths = list(input_widths)
        if layer.weights and not ignore_weights:
            operand_widths.append(WIDE)
        widest = max(operand_widths, default=WIDE)
        sizes = [prod(shape) for shape in layer.inputs]
        if not sum(sizes):
            return widest, widest
        total_bytes = sum(width * size for width, size in zip(input_widths, sizes))
        return total_bytes / sum(sizes), widest


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


def _cast(
    layer: Layer,
    name: str,
    shape: Shape,
    widths: tuple[int, int],
    parents: tuple[int, ...] = (),
    weights: tuple[Shape, ...] = (),
) -> Layer:
    """Return the cast of an operand of a layer."""
    inputs, attributes = () if weights else (shape,), {"widths": widths}
    name, module = f"{layer.name}.{name}", f"{layer.name}.weight" if weights else layer.name
    place = layer.place.of_addition(module)
    return Layer(name, "copy", inputs, (shape,), weights, parents, 0, attributes, ORIGIN, place)

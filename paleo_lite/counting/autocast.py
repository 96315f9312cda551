"""What PyTorch's autocast adds to a network: casts, which are kernels, and layers that compute in fp32.

Weights and inputs stay in fp32. Products take 16 bits: what is wider is cast before each, weights at every step.
Normalisations of samples, softmax, powers and logarithms take fp32. Everything else takes the widest of what it reads
(PyTorch, "Automatic Mixed Precision package", ops that autocast on CUDA).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .kinds import KINDS, MATRIX_KINDS
from .layer import Layer, Shape
from .work import CAST_BYTES

NARROW, WIDE = CAST_BYTES, 4
"""Bytes of a number."""

ORIGIN = "opaque:autocast"
"""Who calls a cast."""


def autocast(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers with the casts before them.

    Each says in its attribute ``widths`` how many bytes the numbers have that it reads, and that it writes.

    Parameters
    ----------
    layers : sequence of Layer
        In the order of execution.
    """
    made: list[Layer] = []
    places: list[int] = []  # of each layer among those made

    def width(parent: int) -> int:
        return WIDE if parent < 0 else made[parent].attributes["widths"][1]

    def cast(name: str, shape: Shape, parent: int, wanted: int) -> int:
        made.append(_cast(name, shape, (parent,), (width(parent), wanted)))
        return len(made) - 1

    for layer in layers:
        parents = [places[parent] if parent >= 0 else parent for parent in layer.parents]
        computed_in = KINDS[layer.kind].autocast if layer.kind in KINDS else ""
        wanted = NARROW if layer.kind in MATRIX_KINDS else WIDE if computed_in == "fp32" else None
        if wanted is not None:
            parents = [
                parent
                if width(parent) == wanted
                else cast(_numbered(f"{layer.name}.to", number), shape, parent, wanted)
                for number, (parent, shape) in enumerate(zip(parents, layer.inputs), 1)
            ]
            widths: tuple[float, int] = (wanted, wanted)
            if wanted == NARROW:
                made += [
                    _cast(_numbered(f"{layer.name}.weight.to", number), shape, (), (WIDE, NARROW), (shape,))
                    for number, shape in enumerate(layer.weights, 1)
                ]
        else:
            read = [width(parent) for parent in parents]
            own = [WIDE] if layer.weights and computed_in != "input" else []
            sizes = [prod(shape) for shape in layer.inputs]
            widest = max([*read, *own], default=WIDE)
            mean = sum(map(prod, zip(read, sizes))) / sum(sizes) if sum(sizes) else widest
            widths = (mean, widest)
        places.append(len(made))
        made.append(layer._replace(parents=tuple(parents), attributes={**layer.attributes, "widths": widths}))
    return tuple(made)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


def _cast(
    name: str, shape: Shape, parents: tuple[int, ...], widths: tuple[int, int], weights: tuple[Shape, ...] = ()
) -> Layer:
    inputs = () if weights else (shape,)
    return Layer(name, "copy", inputs, (shape,), weights, parents, attributes={"widths": widths}, origin=ORIGIN)

"""`Builder`: assembles a network from the layers of a file, computing output shapes for all file formats.

A convolution has ``floor((size + 2 padding - reach) / stride) + 1`` output positions with ``reach = dilation (kernel -
1) + 1`` (Caffe and PyTorch); TensorFlow's SAME padding gives ``ceil(size / stride)`` and puts the smaller half of the
padding first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, NamedTuple

from ..counting import INPUT, KINDS, Layer, Shape
from ..counting.layer import NOWHERE
from ..counting.places import last_part, matrix_of, module_of, place_layers
from ..errors import BadDescriptor
from ..units import is_integer
from .network import Network

_MAX_LAYERS = 100_000
_MAX_ELEMENTS = 2**40
_ORIGINS = {kind.name: f"module:{kind.module}" for kind in KINDS.values() if kind.module}
"""Class of ``torch.nn`` for each kind, for conventions that depend on it."""

Pair = tuple[int, int]


class Blob(NamedTuple):
    """A tensor between layers: its shape at batch size 1 and the index of the layer that produces it."""

    shape: Shape
    parent: int = INPUT


class Window(NamedTuple):
    """How a convolution or a pooling moves over an image."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair | Literal["same"] = (0, 0)  # in elements, or TensorFlow's SAME padding
    dilation: Pair = (1, 1)


class Builder:
    """Layers in the order in which they are added."""

    def __init__(
        self,
        where: str,  # path of the file, for error messages
    ) -> None:
        self.where = where
        self.layers: list[Layer] = []
        self.place = NOWHERE
        self._name_counts: dict[str, int] = {}

    def fail(self, layer: str, problem: str) -> BadDescriptor:
        """Return the error for an invalid layer."""
        return BadDescriptor(f"{self.where}: layer {layer!r}: {problem}")

    def add(
        self,
        # Name and kind of the layer.
        name: str,
        kind: str,
        inputs: Sequence[Blob],  # operands
        output: Shape,  # shape of the result
        weights: tuple[Shape, ...] = (),  # shapes of the parameters
        attributes: dict[str, Any] | None = None,  # attributes of the layer
        # How PyTorch code calls the operation; by default the class of its kind, or a function.
        origin: str | None = None,
        # Number of parameters not already counted with an earlier layer; all of them by default.
        new_parameters: int | None = None,
    ) -> Blob:
        """Append a layer and return its output."""
        self._check_room(name, 1)
        parameters = 0
        self._count_elements(name, output, output, weights)
        for shape in weights:
            parameters += self._count_elements(name, shape, output, weights)
        if new_parameters is not None:
            parameters = new_parameters
        count = self._name_counts.get(name, 0) + 1
        self._name_counts[name] = count
        self.layers.append(
            Layer(
                name if count == 1 else f"{name}#{count}",
                kind,
                tuple([blob.shape for blob in inputs]),
                (output,),
                weights,
                tuple([blob.parent for blob in inputs]),
                parameters,
                attributes or {},
                _ORIGINS.get(kind, "function") if origin is None else origin,
                self.place._replace(module=module_of(name), matrix=matrix_of(last_part(name))),
            )
        )
        return Blob(output, len(self.layers) - 1)

    def extend(self, layers: Sequence[Layer]) -> None:
        """Append finished layers, whose names no other layer has."""
        self._check_room(layers[-1].name, len(layers))
        self.layers += layers

    def _check_room(self, name: str, count: int) -> None:
        if len(self.layers) + count > _MAX_LAYERS:
            raise self.fail(name, f"more than {_MAX_LAYERS} layers")

    def _count_elements(self, name: str, shape: Shape, output: Shape, weights: tuple[Shape, ...]) -> int:
        """Return the number of elements of a shape; raise for a layer with an invalid one."""
        for size in shape:
            if type(size) is not int:
                raise self.fail(name, f"sizes of its output {output} and weights {weights} must be integers")
        elements = prod(shape)
        if not 1 <= elements <= _MAX_ELEMENTS:
            raise self.fail(name, f"its output {output} or weights {weights} are empty or too large")
        return elements

    def image_shape(self, name: str, blob: Blob) -> tuple[int, int, int]:
        """Return channels, height and width of a blob of images."""
        if len(blob.shape) != 4:
            raise self.fail(name, f"needs an input of shape (channels, height, width) (got {blob.shape[1:]})")
        return blob.shape[1], blob.shape[2], blob.shape[3]

    def convolution(
        self,
        name: str,
        blob: Blob,
        channels_out: int,
        window: Window,
        *,
        groups: int = 1,
        bias: bool = True,
        transposed: bool = False,
    ) -> Blob:
        """Add a 2-D convolution or transposed convolution."""
        channels, *size = self.image_shape(name, blob)
        kernel, stride, padding, dilation = window
        self._check_positive(name, kernel, stride, dilation, (groups, channels_out))
        if groups < 1 or channels % groups or channels_out % groups:
            raise self.fail(name, f"{channels} and {channels_out} channels are not divisible by {groups} groups")
        reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
        attributes: dict[str, Any] = {"stride": list(stride)}
        if padding == "same":
            pads, out = self._same_padding(size, reach, stride)
            attributes["padding"] = pads
            attributes["same"] = True
        else:
            attributes["padding"] = list(padding)
            if transposed:
                out = [s * (n - 1) + r - 2 * p for n, r, s, p in zip(size, reach, stride, padding)]
            else:
                out = [(n + 2 * p - r) // s + 1 for n, r, s, p in zip(size, reach, stride, padding)]
        if min(out) < 1:
            raise self.fail(name, f"a {kernel[0]}x{kernel[1]} window does not fit into {size[0]}x{size[1]}")
        if groups > 1:
            attributes["groups"] = groups
        if dilation != (1, 1):
            attributes["dilation"] = list(dilation)
        if transposed:
            attributes["transposed"] = True
            weights: tuple[Shape, ...] = ((channels, channels_out // groups, *kernel),)
        else:
            weights = ((channels_out, channels // groups, *kernel),)
        if bias:
            weights += ((channels_out,),)
        kind = "conv_transpose2d" if transposed else "conv2d"
        return self.add(name, kind, [blob], (1, channels_out, *out), weights, attributes)

    def pooling(self, name: str, blob: Blob, maximum: bool, window: Window, ceil: bool = False) -> Blob:
        """Add max or average pooling.

        With `ceil` output sizes are rounded up, and windows that lie entirely in the padding are dropped.
        """
        channels, *size = self.image_shape(name, blob)
        kernel, stride, padding, _ = window
        self._check_positive(name, kernel, stride)
        attributes: dict[str, Any] = {"kernel": list(kernel), "stride": list(stride)}
        if padding == "same":
            pads, out = self._same_padding(size, kernel, stride)
            attributes["same"] = True
        else:
            pads = list(padding)
            room = [n + 2 * p - k for n, k, p in zip(size, kernel, padding)]
            if ceil:
                out = [-(-r // s) + 1 for r, s in zip(room, stride)]
                out = [o - (p > 0 and (o - 1) * s >= n + p) for o, n, s, p in zip(out, size, stride, padding)]
                attributes["ceil_mode"] = True
            else:
                out = [r // s + 1 for r, s in zip(room, stride)]
        is_too_large = padding != "same" and any(k > n + 2 * p for n, k, p in zip(size, kernel, pads))
        if min(out) < 1 or is_too_large:
            raise self.fail(name, f"a {kernel[0]}x{kernel[1]} window does not fit into {size[0]}x{size[1]}")
        if any(pads):
            attributes["padding"] = pads
        kind = "max_pool" if maximum else "avg_pool"
        return self.add(name, kind, [blob], (1, channels, *out), (), attributes)

    def linear(self, name: str, blob: Blob, outputs: int, bias: bool = True) -> Blob:
        """Add a fully connected layer over all elements of a sample, flattening its input."""
        self._check_positive(name, (outputs, 1))
        if len(blob.shape) != 2:
            flat = (1, prod(blob.shape[1:]))
            blob = self.add(f"{name}.flatten", "view", [blob], flat, (), {"function": "flatten"})
        weights: tuple[Shape, ...] = ((outputs, blob.shape[1]),)
        if bias:
            weights += ((outputs,),)
        return self.add(name, "linear", [blob], (1, outputs), weights)

    def concat(self, name: str, blobs: Sequence[Blob], axis: int = 1) -> Blob:
        """Concatenate blobs along an axis."""
        if not blobs:
            raise self.fail(name, "has no inputs to concatenate")
        rank = len(blobs[0].shape)
        if axis < 0:
            axis += rank
        other_sizes = {(*blob.shape[:axis], *blob.shape[axis + 1 :]) for blob in blobs}
        if not 0 < axis < rank or any(len(blob.shape) != rank for blob in blobs) or len(other_sizes) > 1:
            shapes = ", ".join(str(blob.shape[1:]) for blob in blobs)
            raise self.fail(name, f"its inputs cannot be concatenated along axis {axis}: {shapes}")
        shape = list(blobs[0].shape)
        shape[axis] = sum(blob.shape[axis] for blob in blobs)
        return self.add(name, "concat", blobs, tuple(shape))

    def elementwise(self, name: str, kind: str, blobs: Sequence[Blob]) -> Blob:
        """Add ``add``, ``mul`` or ``maximum`` of two or more blobs of one shape, two at a time."""
        if len(blobs) < 2 or len({blob.shape for blob in blobs}) > 1:
            raise self.fail(name, f"needs two or more inputs of one shape (got {[blob.shape[1:] for blob in blobs]})")
        result = blobs[0]
        for blob in blobs[1:]:
            result = self.add(name, kind, [result, blob], blob.shape)
        return result

    def network(self, name: str, inputs: tuple[Shape, ...], source: str, notes: tuple[str, ...] = ()) -> Network:
        """Return the network of all layers added so far."""
        if not self.layers:
            raise BadDescriptor(f"{self.where}: has no layers")
        parameters = sum(layer.parameters for layer in self.layers)
        return Network(name, inputs, self._placed_layers(), parameters, source, notes)

    def _placed_layers(self) -> tuple[Layer, ...]:
        """Return the layers; a file says nothing of their places but their names."""
        return place_layers(self.layers)

    def _same_padding(self, size: list[int], reach: Sequence[int], stride: Pair) -> tuple[list[int], list[int]]:
        """Return the padding before, and the output sizes, of TensorFlow's SAME padding."""
        out = [-(-n // s) for n, s in zip(size, stride)]
        pads = [max((o - 1) * s + r - n, 0) // 2 for n, r, s, o in zip(size, reach, stride, out)]
        return pads, out

    def _check_positive(self, name: str, *pairs: Sequence[int]) -> None:
        for pair in pairs:
            for number in pair:
                if not is_integer(number) or not 1 <= number <= 2**31:
                    raise self.fail(name, f"sizes must be integers >= 1 (got {number!r})")


def check_input_shape(where: str, shape: Any) -> Shape:
    """Check an input shape without the batch dimension, and return it with a batch dimension of 1.

    Raise BadDescriptor if it is not a list of 1 to 4 positive integers.
    """
    is_valid = isinstance(shape, (list, tuple)) and 1 <= len(shape) <= 4
    if not is_valid or any(not is_integer(n) or not 1 <= n <= 2**20 for n in shape):
        raise BadDescriptor(f"{where}: an input shape must be integers such as 3, 224, 224 (got {shape!r})")
    return (1, *shape)


__all__ = ["Blob", "Builder", "Window", "check_input_shape"]

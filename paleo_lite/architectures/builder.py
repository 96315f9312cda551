"""Putting a network together from what a file says: shapes are worked out here, once for all file formats.

Sizes: a convolution has ``floor((size + 2 pad - reach) / stride) + 1`` positions with ``reach = dilation (kernel - 1) +
1`` (Caffe and PyTorch); TensorFlow's SAME has ``ceil(size / stride)`` and puts the smaller half of the padding first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from ..counting import INPUT, KINDS, Layer, Shape
from ..errors import BadDescriptor
from .network import Network

_LAYERS_AT_MOST = 100_000
_ELEMENTS_AT_MOST = 2**40
_ORIGINS = {kind.name: f"module:{kind.module}" for kind in KINDS.values() if kind.module}
"""What the layer would be in PyTorch, for conventions that look at that."""

Pair = tuple[int, int]


class Blob(NamedTuple):
    """A tensor on its way: its shape at batch 1, and the layer that made it."""

    shape: Shape
    parent: int = INPUT


class Builder:
    """Collects layers in the order in which they are added.

    Parameters
    ----------
    where : str
        The file, for messages.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.layers: list[Layer] = []
        self._names: dict[str, int] = {}

    def fail(self, layer: str, problem: str) -> BadDescriptor:
        """The error of a layer that cannot be."""
        return BadDescriptor(f"{self.where}: layer {layer!r}: {problem}")

    def add(
        self,
        name: str,
        kind: str,
        inputs: Sequence[Blob],
        output: Shape,
        weights: tuple[Shape, ...] = (),
        attributes: dict[str, Any] | None = None,
    ) -> Blob:
        """Append a layer and hand out its output."""
        if len(self.layers) >= _LAYERS_AT_MOST:
            raise self.fail(name, f"more than {_LAYERS_AT_MOST} layers")
        if any(type(size) is not int for shape in (output, *weights) for size in shape):
            raise self.fail(name, f"its output {output} or weights {weights} are not whole numbers")
        elements = [prod(shape) for shape in (output, *weights)]
        if min(elements) < 1 or max(elements) > _ELEMENTS_AT_MOST:
            raise self.fail(name, f"its output {output} or weights {weights} are empty or too large")
        count = self._names[name] = self._names.get(name, 0) + 1
        self.layers.append(
            Layer(
                name if count == 1 else f"{name}#{count}",
                kind,
                tuple(blob.shape for blob in inputs),
                (output,),
                weights,
                tuple(blob.parent for blob in inputs),
                sum(prod(shape) for shape in weights),
                attributes or {},
                _ORIGINS.get(kind, "function"),
            )
        )
        return Blob(output, len(self.layers) - 1)

    def images(self, name: str, blob: Blob) -> tuple[int, int, int]:
        """Channels, height and width of a blob of images."""
        if len(blob.shape) != 4:
            raise self.fail(name, f"needs images (channels, height, width), its input is {blob.shape[1:]}")
        return blob.shape[1], blob.shape[2], blob.shape[3]

    def convolution(
        self,
        name: str,
        blob: Blob,
        channels_out: int,
        kernel: Pair,
        stride: Pair = (1, 1),
        padding: Pair | str = (0, 0),
        *,
        dilation: Pair = (1, 1),
        groups: int = 1,
        bias: bool = True,
        transposed: bool = False,
    ) -> Blob:
        """A 2-D convolution, or a transposed one; `padding` in elements, or ``"same"`` as TensorFlow has it."""
        channels, *size = self.images(name, blob)
        self._whole(name, kernel, stride, dilation, (groups, channels_out))
        if groups < 1 or channels % groups or channels_out % groups:
            raise self.fail(name, f"{channels} to {channels_out} channels do not divide into {groups} groups")
        reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
        attributes: dict[str, Any] = {"stride": list(stride)}
        if padding == "same":
            pads, out = self._same(size, reach, stride)
            attributes |= {"padding": pads, "same": True}
        else:
            assert not isinstance(padding, str)
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
        first, second = (channels, channels_out) if transposed else (channels_out, channels)
        weights: tuple[Shape, ...] = ((first, second // groups, *kernel),)
        if transposed:
            attributes["transposed"] = True
        kind = "conv_transpose2d" if transposed else "conv2d"
        return self.add(
            name, kind, [blob], (1, channels_out, *out), weights + (((channels_out,),) if bias else ()), attributes
        )

    def pooling(
        self,
        name: str,
        blob: Blob,
        maximum: bool,
        kernel: Pair,
        stride: Pair,
        padding: Pair | str = (0, 0),
        ceil: bool = False,
    ) -> Blob:
        """Maxima or means of windows; with `ceil` sizes are rounded up and windows all in the padding dropped."""
        channels, *size = self.images(name, blob)
        self._whole(name, kernel, stride)
        attributes: dict[str, Any] = {"kernel": list(kernel), "stride": list(stride)}
        if padding == "same":
            pads, out = self._same(size, kernel, stride)
            attributes["same"] = True
        else:
            assert not isinstance(padding, str)
            pads = list(padding)
            room = [n + 2 * p - k for n, k, p in zip(size, kernel, padding)]
            out = [(-(-r // s) if ceil else r // s) + 1 for r, s in zip(room, stride)]
            if ceil:
                out = [o - (p > 0 and (o - 1) * s >= n + p) for o, n, s, p in zip(out, size, stride, padding)]
                attributes["ceil_mode"] = True
        if min(out) < 1 or any(k > n + 2 * p for n, k, p in zip(size, kernel, pads) if padding != "same"):
            raise self.fail(name, f"a {kernel[0]}x{kernel[1]} window does not fit into {size[0]}x{size[1]}")
        if any(pads):
            attributes["padding"] = pads
        return self.add(name, "max_pool" if maximum else "avg_pool", [blob], (1, channels, *out), (), attributes)

    def linear(self, name: str, blob: Blob, outputs: int, bias: bool = True) -> Blob:
        """A fully connected layer over all elements of a sample."""
        self._whole(name, (outputs, 1))
        if len(blob.shape) != 2:
            flat = (1, prod(blob.shape[1:]))
            blob = self.add(f"{name}.flatten", "view", [blob], flat, (), {"function": "flatten"})
        weights: tuple[Shape, ...] = ((outputs, blob.shape[1]),)
        return self.add(name, "linear", [blob], (1, outputs), weights + (((outputs,),) if bias else ()))

    def concat(self, name: str, blobs: Sequence[Blob], axis: int = 1) -> Blob:
        """Blobs one after the other along an axis."""
        if not blobs:
            raise self.fail(name, "nothing to concatenate")
        rank = len(blobs[0].shape)
        axis = axis + rank if axis < 0 else axis
        rests = {(*blob.shape[:axis], *blob.shape[axis + 1 :]) for blob in blobs}
        if not 0 < axis < rank or any(len(blob.shape) != rank for blob in blobs) or len(rests) > 1:
            shapes = ", ".join(str(blob.shape[1:]) for blob in blobs)
            raise self.fail(name, f"its inputs do not go together along axis {axis}: {shapes}")
        shape = list(blobs[0].shape)
        shape[axis] = sum(blob.shape[axis] for blob in blobs)
        return self.add(name, "concat", blobs, tuple(shape))

    def elementwise(self, name: str, kind: str, blobs: Sequence[Blob]) -> Blob:
        """``add``, ``mul`` or ``maximum`` of two and more blobs of one shape, two at a time."""
        if len(blobs) < 2 or len({blob.shape for blob in blobs}) > 1:
            raise self.fail(name, f"needs inputs of one shape, has {[blob.shape[1:] for blob in blobs]}")
        result = blobs[0]
        for blob in blobs[1:]:
            result = self.add(name, kind, [result, blob], blob.shape)
        return result

    def network(self, name: str, inputs: tuple[Shape, ...], source: str, notes: tuple[str, ...] = ()) -> Network:
        """What has been put together."""
        if not self.layers:
            raise BadDescriptor(f"{self.where}: has no layers")
        parameters = sum(layer.parameters for layer in self.layers)
        return Network(name, inputs, tuple(self.layers), parameters, source, notes)

    def _same(self, size: list[int], reach: Sequence[int], stride: Pair) -> tuple[list[int], list[int]]:
        out = [-(-n // s) for n, s in zip(size, stride)]
        return [max((o - 1) * s + r - n, 0) // 2 for n, r, s, o in zip(size, reach, stride, out)], out

    def _whole(self, name: str, *pairs: Sequence[int]) -> None:
        for number in (value for pair in pairs for value in pair):
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 2**31:
                raise self.fail(name, f"{number!r} is not a whole number of 1 or more")


def check_input(where: str, shape: Any) -> Shape:
    """A shape of the network's input as a file gives it, without the batch dimension.

    Raises
    ------
    BadDescriptor
        If it is not a list of 1 to 4 whole numbers above 0.
    """
    fits = isinstance(shape, (list, tuple)) and 1 <= len(shape) <= 4
    if not fits or any(isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 2**20 for n in shape):
        raise BadDescriptor(
            f"{where}: {shape!r} is not the shape of an input: expected whole numbers such as 3, 224, 224"
        )
    return (1, *shape)


__all__ = ["Blob", "Builder", "check_input"]

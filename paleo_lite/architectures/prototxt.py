"""Reading Caffe's network files (``deploy.prototxt``, ``train_val.prototxt``): blobs that layers take and leave.

Sizes and defaults are those of BVLC Caffe's ``caffe.proto`` and layer sources: convolutions round down, pooling rounds
up, batch normalisation has no trained parameters, Scale a factor (and with ``bias_term`` an offset) per channel. Of a
file for training, the layers of the training phase are read, also in the old format (``layers { type: CONVOLUTION }``).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from ..counting import KINDS, Shape
from ..errors import BadDescriptor
from .builder import Blob, Builder, check_input
from .network import Network
from .prototxt_text import Message, parse_text

_DATA = {"data", "imagedata", "hdf5data", "memorydata", "windowdata", "annotateddata", "dummydata", "input"}
_NOTHING = {"accuracy", "silence", "hdf5output", "argmax"}


def read_prototxt(data: bytes, where: str, image_size: int | None = None) -> Network:
    """Read a Caffe network file.

    Parameters
    ----------
    data : bytes
        The file.
    where : str
        Its path, for messages and the source.
    image_size : int, optional
        Height and width of the input, instead of the file's; needed where a file for training does not say.

    Raises
    ------
    BadDescriptor
        If it is not such a file, has a layer whose type is not read, or sizes that do not fit: the message names it.
    """
    net = parse_text(data, where)
    reader = _Reader(where, image_size)
    reader.declared_inputs(net)
    for message in [*net.get("layer", []), *net.get("layers", [])]:
        if not isinstance(message, dict):
            raise BadDescriptor(f"{where}: a layer is a message in braces, not {message!r}")
        reader.layer(message)
    if not reader.inputs:
        raise BadDescriptor(f"{where}: has no input: expected a layer of type Input or Data, or input and input_shape")
    name = str(get(net, "name", Path(where).stem))
    return reader.builder.network(
        name, tuple(reader.inputs), f"Caffe prototxt {Path(where).name}", tuple(dict.fromkeys(reader.notes))
    )


class _Reader:
    """What has been read so far: the blobs by name. A layer that works in place leaves its output under that name."""

    def __init__(self, where: str, image_size: int | None) -> None:
        self.where, self.image_size = where, image_size
        self.builder = Builder(where)
        self.blobs: dict[str, Blob | None] = {}  # None: labels and what comes of them
        self.inputs: list[Shape] = []
        self.notes: list[str] = []

    def declared_inputs(self, net: Message) -> None:
        """``input`` with ``input_shape`` or the older ``input_dim``, at the top of the file."""
        names = net.get("input", [])
        shapes = [dims_of(message) for message in net.get("input_shape", [])]
        dims = net.get("input_dim", [])
        shapes = shapes or [dims[start : start + 4] for start in range(0, len(dims), 4)]
        if len(names) != len(shapes):
            raise BadDescriptor(f"{self.where}: {len(names)} inputs with {len(shapes)} shapes")
        for name, shape in zip(names, shapes):
            self._input(str(name), shape)

    def _input(self, name: str, dims: list[Any]) -> None:
        shape = check_input(f"{self.where}: input {name!r}", dims[1:])
        if self.image_size and len(shape) == 4:
            shape = (*shape[:2], self.image_size, self.image_size)
        self.inputs.append(shape)
        self.blobs[name] = Blob(shape)

    def layer(self, message: Message) -> None:
        """Add one layer of the file."""
        name, written = str(get(message, "name", "unnamed")), str(get(message, "type", ""))
        kind = "".join(letter for letter in written.lower() if letter.isalnum())
        if not _in_training(message):
            return
        tops = [str(top) for top in message.get("top", [])]
        if kind in _DATA:
            self._data(name, kind, message, tops)
            return
        bottoms = []
        for bottom in (str(bottom) for bottom in message.get("bottom", [])):
            if bottom not in self.blobs:
                raise self.builder.fail(name, f"takes the blob {bottom!r}, which no layer before it makes")
            bottoms.append(self.blobs[bottom])
        blobs = [blob for blob in bottoms if blob is not None]
        if kind in _NOTHING or not blobs or (kind.endswith("loss") and kind not in LAYERS):
            self.blobs |= dict.fromkeys(tops)
            if kind.endswith("loss"):
                self.notes.append(f"left out: {name}, of type {written}")
            return
        if kind == "split":
            self.blobs |= dict.fromkeys(tops, blobs[0])
        elif kind == "slice":
            self._slice(name, message, blobs[0], tops)
        else:
            add = LAYERS.get(kind)
            if add is None:
                known = sorted({*LAYERS, *_DATA, *_NOTHING, "slice", "split"})
                raise self.builder.fail(name, f"type {written!r} is not read: known are {', '.join(known)}")
            result = add(self.builder, name, message, blobs)
            if tops:
                self.blobs |= dict.fromkeys(tops)
                self.blobs[tops[0]] = result

    def _data(self, name: str, kind: str, message: Message, tops: list[str]) -> None:
        """Where the network begins. Layers that read files say no more than the size to which they crop."""
        shapes = [
            dims_of(shape)
            for shape in sub(message, f"{'input' if kind == 'input' else 'dummy_data'}_param").get("shape", [])
        ]
        if shapes:
            for index, top in enumerate(tops):
                self._input(top, shapes[min(index, len(shapes) - 1)])
            return
        sizes = [
            get(sub(message, field), "crop_size", None)
            for field in ("transform_param", f"{kind[:-4]}_param", "data_param")
        ]
        crop = self.image_size or next((size for size in sizes if size), None)
        if not tops or crop is None:
            raise self.builder.fail(name, "does not say how large its images are: give --image-size")
        self.notes.append(f"{Path(self.where).name} does not say how many channels its images have: taken to be 3")
        self._input(tops[0], [1, 3, crop, crop])
        self.blobs |= dict.fromkeys(tops[1:])

    def _slice(self, name: str, message: Message, blob: Blob, tops: list[str]) -> None:
        """Parts of a blob along an axis, each a layer of its own."""
        param = sub(message, "slice_param")
        axis = whole(self.builder, name, param, "axis", whole(self.builder, name, param, "slice_dim", 1, 0), -4)
        axis += len(blob.shape) if axis < 0 else 0
        if not 0 < axis < len(blob.shape) or not tops:
            raise self.builder.fail(name, f"cannot be cut along axis {axis}")
        size = blob.shape[axis]
        points = [0, *param.get("slice_point", []), size]
        if len(points) == 2:
            points = [size * part // len(tops) for part in range(len(tops) + 1)]
        if len(points) != len(tops) + 1 or any(not isinstance(p, int) for p in points) or points != sorted(set(points)):
            raise self.builder.fail(name, f"cannot be cut into {len(tops)} parts at {points[1:-1]}")
        for top, start, stop in zip(tops, points, points[1:]):
            shape = (*blob.shape[:axis], stop - start, *blob.shape[axis + 1 :])
            self.blobs[top] = self.builder.add(f"{name}.{top}", "slice", [blob], shape)


def _in_training(message: Message) -> bool:
    """Whether the layer belongs to a network that trains, without stages."""

    def met(rule: Any) -> bool:
        return isinstance(rule, dict) and get(rule, "phase", "TRAIN") in ("TRAIN", 0) and not rule.get("stage")

    include, exclude = message.get("include", []), message.get("exclude", [])
    return any(met(rule) for rule in include) if include else not any(met(rule) for rule in exclude)


_ELTWISE = {"SUM": "add", "PROD": "mul", "MAX": "maximum", 1: "add", 0: "mul", 2: "maximum"}

Add = Callable[[Builder, str, Message, "list[Blob]"], Blob]


def _same_shape(kind: str) -> Add:
    def add(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
        actual = kind
        if kind == "relu" and get(sub(message, "relu_param"), "negative_slope", 0):
            actual = "leaky_relu"
        off = get(sub(message, "dropout_param"), "dropout_ratio", 0.5) == 0
        return builder.add(name, actual, blobs[:1], blobs[0].shape, (), {"p": 0} if off else None)

    return add


def _convolution(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = sub(message, "convolution_param")
    kind = str(get(message, "type", "")).lower()
    outputs = whole(builder, name, param, "num_output", None)
    groups = blobs[0].shape[1] if "depthwise" in kind else whole(builder, name, param, "group", 1)
    return builder.convolution(
        name, blobs[0], outputs, pair(builder, name, param, "kernel", None), pair(builder, name, param, "stride", 1),
        pair(builder, name, param, "pad", 0, 0), dilation=pair(builder, name, param, "dilation", 1), groups=groups,
        bias=flag(builder, name, param, "bias_term", True), transposed=kind.startswith("deconvolution"),
    )  # fmt: skip


def _pooling(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = sub(message, "pooling_param")
    method = get(param, "pool", "MAX")
    if method not in ("MAX", "AVE", 0, 1):
        raise builder.fail(name, f"pooling {method!r} is not read: known are MAX and AVE")
    maximum = method in ("MAX", 0) and method is not False
    if flag(builder, name, param, "global_pooling", False):
        _, height, width = builder.images(name, blobs[0])
        return builder.pooling(name, blobs[0], maximum, (height, width), (1, 1))
    # round_mode is BVLC's name for it, ceil_mode that of others.
    ceil = get(param, "round_mode", "CEIL") in ("CEIL", 0) and flag(builder, name, param, "ceil_mode", True)
    return builder.pooling(
        name, blobs[0], maximum, pair(builder, name, param, "kernel", None), pair(builder, name, param, "stride", 1),
        pair(builder, name, param, "pad", 0, 0), ceil,
    )  # fmt: skip


def _inner_product(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = sub(message, "inner_product_param")
    if get(param, "axis", 1) != 1:
        raise builder.fail(name, "an inner product along another axis than 1 is not read")
    outputs = whole(builder, name, param, "num_output", None)
    return builder.linear(name, blobs[0], outputs, flag(builder, name, param, "bias_term", True))


def _lrn(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = sub(message, "lrn_param")
    size = whole(builder, name, param, "local_size", 5)
    within = get(param, "norm_region", "ACROSS_CHANNELS") in ("WITHIN_CHANNEL", 1)
    attributes = {"size": size * size if within else size}
    return builder.add(name, "local_response_norm", blobs[:1], blobs[0].shape, (), attributes)


def _scale(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    """A factor per channel, and with ``bias_term`` an offset; or the product of two blobs."""
    if len(blobs) > 1:
        return builder.add(name, "mul", blobs[:2], blobs[0].shape)
    vector = (blobs[0].shape[1], *(1 for _ in blobs[0].shape[2:]))
    offset = flag(builder, name, sub(message, "scale_param"), "bias_term", False)
    return builder.add(name, "scale", blobs, blobs[0].shape, (vector, vector) if offset else (vector,))


def _per_channel(kind: str) -> Add:
    def add(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
        vector = (blobs[0].shape[1], *(1 for _ in blobs[0].shape[2:]))
        return builder.add(name, kind, blobs[:1], blobs[0].shape, (vector,))

    return add


def _concat(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = sub(message, "concat_param")
    axis = whole(builder, name, param, "axis", whole(builder, name, param, "concat_dim", 1, 0), -4)
    return builder.concat(name, blobs, axis)


def _eltwise(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    operation = get(sub(message, "eltwise_param"), "operation", "SUM")
    if not isinstance(operation, (str, int)) or operation not in _ELTWISE:
        raise builder.fail(name, f"operation {operation!r} is not read: known are SUM, PROD and MAX")
    return builder.elementwise(name, _ELTWISE[operation], blobs)


def _flatten(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    return builder.add(name, "view", blobs[:1], (1, prod(blobs[0].shape)), (), {"function": "flatten"})


def _reshape(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    """0 keeps the input's size, -1 takes what is left; the batch stays in front."""
    dims = dims_of((sub(message, "reshape_param").get("shape") or [{}])[0])
    if any(type(size) is not int for size in dims):
        raise builder.fail(name, f"{dims} are not valid sizes")
    shape, had = [1], blobs[0].shape
    for place, size in enumerate(dims[1:], 1):
        shape.append(had[place] if size == 0 and place < len(had) else size)
    known = prod(size for size in shape if size != -1)
    shape = [prod(had) // known if size == -1 and known > 0 else size for size in shape]
    if len(shape) < 2 or prod(shape) != prod(had):
        raise builder.fail(name, f"{had[1:]} cannot be reshaped to {dims[1:]}")
    return builder.add(name, "view", blobs[:1], tuple(shape))


LAYERS: dict[str, Add] = {
    **dict.fromkeys(["convolution", "convolutiondepthwise", "depthwiseconvolution", "deconvolution"], _convolution),
    "pooling": _pooling,
    "innerproduct": _inner_product,
    "lrn": _lrn,
    "scale": _scale,
    "bias": _per_channel("add"),
    "prelu": _per_channel("prelu"),
    "concat": _concat,
    "eltwise": _eltwise,
    "flatten": _flatten,
    "reshape": _reshape,
    **{written: _same_shape(kind.name) for kind in KINDS.values() for written in kind.caffe.split()},
}
"""What adds a layer of each type, by the type's name in small letters without underscores."""


def get(message: Message, field: str, default: Any) -> Any:
    """The last value of a field, as protocol buffers have it."""
    return message[field][-1] if message.get(field) else default


def sub(message: Message, field: str) -> Message:
    value = get(message, field, {})
    return value if isinstance(value, dict) else {}


def dims_of(message: Any) -> list[Any]:
    return list(message.get("dim", [])) if isinstance(message, dict) else []


def whole(builder: Builder, name: str, param: Message, field: str, default: int | None, least: int = 1) -> int:
    value = get(param, field, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        missing = value is None
        raise builder.fail(
            name, f"{field} {'is missing' if missing else f'{value!r} is not a whole number of {least} or more'}"
        )
    return value


def flag(builder: Builder, name: str, param: Message, field: str, default: bool) -> bool:
    value = get(param, field, default)
    if value not in (True, False):
        raise builder.fail(name, f"{field} is true or false, not {value!r}")
    return bool(value)


def pair(
    builder: Builder, name: str, param: Message, field: str, default: int | None, least: int = 1
) -> tuple[int, int]:
    """``kernel_size: 3``, twice, or ``kernel_h`` and ``kernel_w``; pads, strides and dilations likewise."""
    joint = param.get("kernel_size" if field == "kernel" else field, [])
    if f"{field}_h" in param or f"{field}_w" in param:
        fallback = default if default is not None else None
        both = tuple(whole(builder, name, param, f"{field}_{axis}", fallback, least) for axis in "hw")
    elif len(joint) > 2:
        raise builder.fail(name, f"{field} has {len(joint)} dimensions: only images are read")
    else:
        values = joint or [default]
        both = tuple(whole(builder, name, {field: [value]}, field, None, least) for value in (values * 2)[:2])
    return both[0], both[1]

"""Reader of Caffe's network files (``deploy.prototxt``, ``train_val.prototxt``).

Sizes and defaults are those of BVLC Caffe's ``caffe.proto`` and layer sources: convolutions round down, pooling rounds
up, batch normalization has no trained parameters, and Scale has a factor (with ``bias_term`` also an offset) per
channel. Only the layers of the training phase are read from a training file. The old format (``layers { type:
CONVOLUTION }``) is supported.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from ..counting import KINDS, Shape
from ..errors import BadDescriptor
from ..text import letters_and_digits
from ..units import is_integer
from .builder import Blob, Builder, Window, check_input_shape
from .network import Network
from .prototxt_text import Message, parse_text

_DATA_TYPES = {"data", "imagedata", "hdf5data", "memorydata", "windowdata", "annotateddata", "dummydata", "input"}
_IGNORED_TYPES = {"accuracy", "silence", "hdf5output", "argmax"}


def read_prototxt(
    data: bytes,  # contents of the file
    where: str,  # path of the file, for error messages and the source
    # Height and width of the input, instead of those in the file; required if a training file has no input size.
    image_size: int | None,
) -> Network:
    """Read a Caffe network file.

    Raise BadDescriptor if the file is malformed, or a layer has an unsupported type or sizes that do not fit; the
    message names the layer.
    """
    net = parse_text(data, where)
    reader = _PrototxtReader(where, image_size)
    reader.read_inputs(net)
    for message in [*net.get("layer", []), *net.get("layers", [])]:
        if not isinstance(message, dict):
            raise BadDescriptor(f"{where}: a layer must be a message in braces (got {message!r})")
        reader.add_layer(message)
    if not reader.inputs:
        raise BadDescriptor(f"{where}: has no input: expected a layer of type Input or Data, or input and input_shape")
    name = str(last_value(net, "name", Path(where).stem))
    return reader.builder.network(
        name, tuple(reader.inputs), f"Caffe prototxt {Path(where).name}", tuple(dict.fromkeys(reader.notes))
    )


class _PrototxtReader:
    """State while a file is read: the network so far, and the current blob of each name.

    An in-place layer replaces the blob of its name.
    """

    def __init__(self, where: str, image_size: int | None) -> None:
        self.where = where
        self.image_size = image_size
        self.builder = Builder(where)
        self.blobs: dict[str, Blob | None] = {}  # None for labels, and for blobs computed from labels
        self.inputs: list[Shape] = []
        self.notes: list[str] = []

    def read_inputs(self, net: Message) -> None:
        """Read ``input`` with ``input_shape``, or the older ``input_dim``, at the top of the file."""
        names = net.get("input", [])
        shapes = [dims_of(message) for message in net.get("input_shape", [])]
        dims = net.get("input_dim", [])
        if not shapes:
            shapes = [dims[start : start + 4] for start in range(0, len(dims), 4)]
        if len(names) != len(shapes):
            raise BadDescriptor(f"{self.where}: {len(names)} inputs with {len(shapes)} shapes")
        for name, shape in zip(names, shapes):
            self._add_input(str(name), shape)

    def _add_input(self, name: str, dims: list[Any]) -> None:
        shape = check_input_shape(f"{self.where}: input {name!r}", dims[1:])
        if self.image_size and len(shape) == 4:
            shape = (*shape[:2], self.image_size, self.image_size)
        self.inputs.append(shape)
        self.blobs[name] = Blob(shape)

    def add_layer(self, message: Message) -> None:
        """Add a layer of the file to the network, unless it belongs to another phase or is not counted."""
        name = str(last_value(message, "name", "unnamed"))
        layer_type = str(last_value(message, "type", ""))
        kind = letters_and_digits(layer_type)
        if not _in_training(message):
            return
        tops = [str(top) for top in message.get("top", [])]
        if kind in _DATA_TYPES:
            self._read_data_layer(name, kind, message, tops)
            return
        bottoms = []
        for bottom in (str(bottom) for bottom in message.get("bottom", [])):
            if bottom not in self.blobs:
                raise self.builder.fail(name, f"no earlier layer produces its input {bottom!r}")
            bottoms.append(self.blobs[bottom])
        blobs = [blob for blob in bottoms if blob is not None]
        if kind in _IGNORED_TYPES or not blobs or (kind.endswith("loss") and kind not in LAYERS):
            self.blobs |= dict.fromkeys(tops)
            if kind.endswith("loss"):
                self.notes.append(f"not counted: {name}, of type {layer_type}")
            return
        if kind == "split":
            self.blobs |= dict.fromkeys(tops, blobs[0])
        elif kind == "slice":
            self._add_slices(name, message, blobs[0], tops)
        else:
            add = LAYERS.get(kind)
            if add is None:
                supported = sorted({*LAYERS, *_DATA_TYPES, *_IGNORED_TYPES, "slice", "split"})
                raise self.builder.fail(
                    name, f"type {layer_type!r} is not supported; supported are {', '.join(supported)}"
                )
            result = add(self.builder, name, message, blobs)
            if tops:
                self.blobs |= dict.fromkeys(tops)
                self.blobs[tops[0]] = result

    def _read_data_layer(self, name: str, kind: str, message: Message, tops: list[str]) -> None:
        """Add the inputs of a data layer; layers that read files specify only the size to which they crop images."""
        shape_field = "input_param" if kind == "input" else "dummy_data_param"
        shapes = [dims_of(shape) for shape in submessage(message, shape_field).get("shape", [])]
        if shapes:
            for index, top in enumerate(tops):
                self._add_input(top, shapes[min(index, len(shapes) - 1)])
            return
        crop = self.image_size
        for field in ("transform_param", f"{kind[:-4]}_param", "data_param"):
            crop = crop or last_value(submessage(message, field), "crop_size", None)
        if not tops or not crop:
            raise self.builder.fail(name, "does not specify the size of its images: give --image-size")
        self.notes.append(f"{Path(self.where).name} does not specify the channels of its images: assumed to be 3")
        self._add_input(tops[0], [1, 3, crop, crop])
        self.blobs |= dict.fromkeys(tops[1:])

    def _add_slices(self, name: str, message: Message, blob: Blob, tops: list[str]) -> None:
        """Split a blob along an axis, and add a layer for each part."""
        param = submessage(message, "slice_param")
        earlier_axis = read_integer(self.builder, name, param, "slice_dim", 1, 0)
        axis = read_integer(self.builder, name, param, "axis", earlier_axis, -4)
        if axis < 0:
            axis += len(blob.shape)
        if not 0 < axis < len(blob.shape) or not tops:
            raise self.builder.fail(name, f"cannot be split along axis {axis}")
        size = blob.shape[axis]
        points = [0, *param.get("slice_point", []), size]
        if len(points) == 2:
            points = [size * part // len(tops) for part in range(len(tops) + 1)]
        if len(points) != len(tops) + 1 or any(not isinstance(p, int) for p in points) or points != sorted(set(points)):
            raise self.builder.fail(name, f"cannot be split into {len(tops)} parts at {points[1:-1]}")
        for top, start, stop in zip(tops, points, points[1:]):
            shape = (*blob.shape[:axis], stop - start, *blob.shape[axis + 1 :])
            self.blobs[top] = self.builder.add(f"{name}.{top}", "slice", [blob], shape)


def _in_training(message: Message) -> bool:
    """Return whether a layer belongs to the training phase; rules with stages are not met."""

    def is_met(rule: Any) -> bool:
        return isinstance(rule, dict) and last_value(rule, "phase", "TRAIN") in ("TRAIN", 0) and not rule.get("stage")

    include = message.get("include", [])
    if include:
        return any(is_met(rule) for rule in include)
    return not any(is_met(rule) for rule in message.get("exclude", []))


_ELTWISE = {"SUM": "add", "PROD": "mul", "MAX": "maximum", 1: "add", 0: "mul", 2: "maximum"}

Add = Callable[[Builder, str, Message, "list[Blob]"], Blob]
"""Function that adds a layer, from the builder, the layer's name and message, and its input blobs."""


def _same_shape(kind: str) -> Add:
    """Return a function that adds a layer with an output of the shape of its input."""

    def add(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
        actual_kind = kind
        if kind == "relu" and last_value(submessage(message, "relu_param"), "negative_slope", 0):
            actual_kind = "leaky_relu"
        attributes = None
        if last_value(submessage(message, "dropout_param"), "dropout_ratio", 0.5) == 0:
            attributes = {"p": 0}
        return builder.add(name, actual_kind, blobs[:1], blobs[0].shape, (), attributes)

    return add


def _convolution(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = submessage(message, "convolution_param")
    kind = str(last_value(message, "type", "")).lower()
    outputs = read_integer(builder, name, param, "num_output", None)
    groups = blobs[0].shape[1] if "depthwise" in kind else read_integer(builder, name, param, "group", 1)
    window = _window(builder, name, param)
    return builder.convolution(
        name,
        blobs[0],
        outputs,
        window._replace(dilation=read_pair(builder, name, param, "dilation", 1)),
        groups=groups,
        bias=read_boolean(builder, name, param, "bias_term", True),
        transposed=kind.startswith("deconvolution"),
    )


def _window(builder: Builder, name: str, param: Message) -> Window:
    kernel = read_pair(builder, name, param, "kernel", None)
    stride = read_pair(builder, name, param, "stride", 1)
    padding = read_pair(builder, name, param, "pad", 0, 0)
    return Window(kernel, stride, padding)


def _pooling(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = submessage(message, "pooling_param")
    method = last_value(param, "pool", "MAX")
    if isinstance(method, bool) or method not in ("MAX", "AVE", 0, 1):
        raise builder.fail(name, f"pooling {method!r} is not supported; supported are MAX and AVE")
    is_maximum = method in ("MAX", 0)
    if read_boolean(builder, name, param, "global_pooling", False):
        _, height, width = builder.image_shape(name, blobs[0])
        return builder.pooling(name, blobs[0], is_maximum, Window((height, width)))
    # BVLC names the option round_mode, other forks ceil_mode.
    is_rounded_up = last_value(param, "round_mode", "CEIL") in ("CEIL", 0)
    is_rounded_up = is_rounded_up and read_boolean(builder, name, param, "ceil_mode", True)
    return builder.pooling(name, blobs[0], is_maximum, _window(builder, name, param), is_rounded_up)


def _inner_product(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = submessage(message, "inner_product_param")
    if last_value(param, "axis", 1) != 1:
        raise builder.fail(name, "inner products are supported along axis 1 only")
    outputs = read_integer(builder, name, param, "num_output", None)
    return builder.linear(name, blobs[0], outputs, read_boolean(builder, name, param, "bias_term", True))


def _lrn(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = submessage(message, "lrn_param")
    size = read_integer(builder, name, param, "local_size", 5)
    is_within_channel = last_value(param, "norm_region", "ACROSS_CHANNELS") in ("WITHIN_CHANNEL", 1)
    attributes = {"size": size * size if is_within_channel else size}
    return builder.add(name, "local_response_norm", blobs[:1], blobs[0].shape, (), attributes)


def _scale(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    """Add a scaling with a factor (and an offset with ``bias_term``) per channel, or the product of two blobs."""
    if len(blobs) > 1:
        return builder.add(name, "mul", blobs[:2], blobs[0].shape)
    vector = (blobs[0].shape[1], *(1 for _ in blobs[0].shape[2:]))
    has_offset = read_boolean(builder, name, submessage(message, "scale_param"), "bias_term", False)
    weights = (vector, vector) if has_offset else (vector,)
    return builder.add(name, "scale", blobs, blobs[0].shape, weights)


def _per_channel(kind: str) -> Add:
    """Return a function that adds a layer with one parameter per channel."""

    def add(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
        vector = (blobs[0].shape[1], *(1 for _ in blobs[0].shape[2:]))
        return builder.add(name, kind, blobs[:1], blobs[0].shape, (vector,))

    return add


def _concat(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    param = submessage(message, "concat_param")
    earlier_axis = read_integer(builder, name, param, "concat_dim", 1, 0)
    axis = read_integer(builder, name, param, "axis", earlier_axis, -4)
    return builder.concat(name, blobs, axis)


def _eltwise(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    operation = last_value(submessage(message, "eltwise_param"), "operation", "SUM")
    if not isinstance(operation, (str, int)) or operation not in _ELTWISE:
        raise builder.fail(name, f"operation {operation!r} is not supported; supported are SUM, PROD and MAX")
    return builder.elementwise(name, _ELTWISE[operation], blobs)


def _flatten(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    return builder.add(name, "view", blobs[:1], (1, prod(blobs[0].shape)), (), {"function": "flatten"})


def _reshape(builder: Builder, name: str, message: Message, blobs: list[Blob]) -> Blob:
    """Add a reshape: 0 keeps the size of the input, -1 is inferred; the batch dimension stays first."""
    dims = dims_of((submessage(message, "reshape_param").get("shape") or [{}])[0])
    if any(type(size) is not int for size in dims):
        raise builder.fail(name, f"sizes must be integers (got {dims})")
    input_shape = blobs[0].shape
    shape = [1]
    for axis, size in enumerate(dims[1:], 1):
        keeps_size = size == 0 and axis < len(input_shape)
        shape.append(input_shape[axis] if keeps_size else size)
    known_elements = prod(size for size in shape if size != -1)
    if known_elements > 0:
        inferred = prod(input_shape) // known_elements
        shape = [inferred if size == -1 else size for size in shape]
    if len(shape) < 2 or prod(shape) != prod(input_shape):
        raise builder.fail(name, f"{input_shape[1:]} cannot be reshaped to {dims[1:]}")
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
"""Functions that add a layer, by its Caffe type in lower case without underscores."""


def last_value(message: Message, field: str, default: Any) -> Any:
    """Return the last value of a field, as protocol buffers do."""
    return message[field][-1] if message.get(field) else default


def submessage(message: Message, field: str) -> Message:
    """Return the message in a field; empty if there is none."""
    value = last_value(message, field, {})
    return value if isinstance(value, dict) else {}


def dims_of(message: Any) -> list[Any]:
    """Return the sizes of a shape message."""
    return list(message.get("dim", [])) if isinstance(message, dict) else []


def read_integer(builder: Builder, name: str, param: Message, field: str, default: int | None, minimum: int = 1) -> int:
    """Return an integer field.

    Raise BadDescriptor if it is missing without a default, or below the minimum.
    """
    value = last_value(param, field, default)
    if value is None:
        raise builder.fail(name, f"{field} is missing")
    if not is_integer(value) or value < minimum:
        raise builder.fail(name, f"{field} must be an integer >= {minimum} (got {value!r})")
    return value


def read_boolean(builder: Builder, name: str, param: Message, field: str, default: bool) -> bool:
    """Return a Boolean field.

    Raise BadDescriptor if it is neither true nor false.
    """
    value = last_value(param, field, default)
    if value not in (True, False):
        raise builder.fail(name, f"{field} must be true or false (got {value!r})")
    return bool(value)


def read_pair(
    builder: Builder, name: str, param: Message, field: str, default: int | None, minimum: int = 1
) -> tuple[int, int]:
    """Return height and width of a kernel, pad, stride or dilation.

    They are given as ``kernel_size`` once or twice, or as ``kernel_h`` and ``kernel_w``.
    """
    joint = param.get("kernel_size" if field == "kernel" else field, [])
    if f"{field}_h" in param or f"{field}_w" in param:
        height = read_integer(builder, name, param, f"{field}_h", default, minimum)
        width = read_integer(builder, name, param, f"{field}_w", default, minimum)
        return height, width
    if len(joint) > 2:
        raise builder.fail(name, f"{field} has {len(joint)} dimensions; only images are supported")
    values = joint or [default]
    height = read_integer(builder, name, {field: [values[0]]}, field, None, minimum)
    width = read_integer(builder, name, {field: [values[-1]]}, field, None, minimum)
    return height, width

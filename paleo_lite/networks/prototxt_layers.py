"""Caffe's layers: from the parameters of each type, with ``caffe.proto``'s defaults, to a layer of the network."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..counting import KINDS
from .builder import Blob, Builder
from .prototxt_text import Message

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


__all__ = ["LAYERS", "dims_of", "get", "sub", "whole"]

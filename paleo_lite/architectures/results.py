"""What a call gives back, without running it where the shape is plain.

On the meta device batch norm, activations, linear layers and sums run through Python code that takes most of a trace.
Their shapes follow from those of the operands; whatever is not plain (another type, an odd layout, shapes that do not
fit) is left to torch, whose errors are the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..counting.kinds import ELEMENTWISE
from .readings import Reading

Shape = Sequence[int]


def make(function: Any, in_place: bool, args: Sequence[Any], kwargs: dict[str, Any], reading: Reading) -> Any:
    """The output of a call that was read as `reading`."""
    shortcut = _SHORTCUTS.get(reading.result)
    if (
        shortcut is None
        or "out" in kwargs
        or any(tensor.requires_grad for tensor in reading.tensors if tensor is not None)
    ):
        return function(*args, **kwargs)  # forward may itself ask for gradients
    in_place = in_place or kwargs.get("inplace", False)
    if in_place and reading.result == "like":
        return reading.tensors[0]
    result = shortcut(reading, args, kwargs)
    if result is None:
        return function(*args, **kwargs)
    if in_place:
        first = reading.tensors[0]
        return first if first.shape == result.shape else function(*args, **kwargs)
    return result


def _like(reading: Reading, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    first = reading.tensors[0]
    if first.is_contiguous():
        return _empty(first, first.shape)
    if reading.kind not in ELEMENTWISE:  # a softmax does not keep another layout
        return None
    with torch._C._DisableTorchDispatch():
        return torch.empty_like(first)


def _alias(reading: Reading, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return reading.tensors[0].view_as(reading.tensors[0])


def _attention(reading: Reading, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    query, _, value = reading.tensors[:3]
    return _empty(query, (*query.shape[:-1], value.shape[-1]))


def _linear(reading: Reading, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    (x,), (weight, bias) = reading.tensors, reading.weights
    fits = x.dim() and weight.dim() == 2 and x.shape[-1] == weight.shape[1] and x.dtype == weight.dtype
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    return _empty(x, (*x.shape[:-1], weight.shape[0]))


def _matrix(reading: Reading, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A product of two matrices, or of as many pairs; what is added to it changes no shape."""
    left, right = reading.tensors
    if left.dim() != right.dim() or left.dim() not in (2, 3) or left.dtype != right.dtype:
        return None
    if left.shape[-1] != right.shape[-2] or left.shape[:-2] != right.shape[:-2]:
        return None
    shape = [*left.shape[:-1], right.shape[-1]]
    for added in reading.weights:
        if added.dtype != left.dtype or _broadcast_shape(shape, added.shape) != shape:
            return None
    return None if "dtype" in kwargs or "out_dtype" in kwargs else _empty(left, shape)


def _convolution(reading: Reading, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The sizes of ``torch.nn.Conv2d``'s documentation."""
    (x,), (weight, bias) = reading.tensors, reading.weights
    attributes, rank = reading.attributes, weight.dim() - 2
    padding = attributes["padding"]
    if x.dim() != rank + 2 or isinstance(padding, str) or not (x.is_contiguous() and weight.is_contiguous()):
        return None
    if x.shape[1] != weight.shape[1] * attributes.get("groups", 1) or x.dtype != weight.dtype:
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    dilation = attributes.get("dilation", (1,) * rank)
    strides = attributes["stride"]
    sizes = [
        (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for size, pad, spread, kernel, step in zip(x.shape[2:], padding, dilation, weight.shape[2:], strides)
    ]
    return _empty(x, (x.shape[0], weight.shape[0], *sizes)) if min(sizes) > 0 else None


def _broadcast(reading: Reading, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Operands of one floating type in the usual order: the result is contiguous, as parts of tensors need not be."""
    first, *others = reading.tensors
    if not first.is_floating_point() or not _in_order(first) or kwargs.get("dtype") is not None:
        return None
    shape: Shape = first.shape
    for other in others:
        if other.dtype != first.dtype or not _in_order(other):
            return None
        if other.shape != shape:
            merged = _broadcast_shape(shape, other.shape)
            if merged is None:
                return None
            shape = merged
    return None if any(isinstance(value, complex) for value in args) else _empty(first, shape)


def _in_order(tensor: torch.Tensor) -> bool:
    """Whether each dimension has larger steps in memory than the next."""
    if tensor.is_contiguous():
        return True
    steps = [step for size, step in zip(tensor.shape, tensor.stride()) if size > 1]
    return all(step > after for step, after in zip(steps, [*steps[1:], 0]))


def _broadcast_shape(left: Shape, right: Shape) -> Shape | None:
    if len(left) < len(right):
        left, right = right, left
    right = (*([1] * (len(left) - len(right))), *right)
    sizes = [b if a == 1 else a for a, b in zip(left, right)]
    return sizes if all(b in (1, size) for b, size in zip(right, sizes)) else None


def _concat(reading: Reading, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    first, *others = tensors = reading.tensors
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if not isinstance(dim, int) or not -first.dim() <= dim < first.dim():
        return None
    around = _without(first.shape, dim)
    for other in others:
        if other.dim() != first.dim() or other.dtype != first.dtype or _without(other.shape, dim) != around:
            return None
    if not all(tensor.is_contiguous() for tensor in tensors):
        return None
    shape = list(first.shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return _empty(first, shape)


def _without(shape: Shape, dim: int) -> list[int]:
    rest = list(shape)
    del rest[dim]
    return rest


def _empty(like: torch.Tensor, shape: Shape) -> torch.Tensor:
    with torch._C._DisableTorchDispatch():  # which takes most of its time, and would hear nothing
        return torch.empty(shape, dtype=like.dtype, device="meta")


_SHORTCUTS = {
    "like": _like,
    "alias": _alias,
    "attended": _attention,
    "linear": _linear,
    "matrix": _matrix,
    "convolution": _convolution,
    "broadcast": _broadcast,
    "joined": _concat,
}

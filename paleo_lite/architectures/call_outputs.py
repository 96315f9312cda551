"""Outputs of torch calls on the meta device, made without running the call where the output shape is simple.

On the meta device batch normalization, activations, linear layers and sums run through Python code that takes most of
the time of a trace. Their output shapes follow from the shapes of the operands. Every other case (mixed types, unusual
memory layouts, shapes that do not fit) is left to torch, which raises the error that the user would see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..counting.kinds import ELEMENTWISE
from .call_readers import TorchCall

Shape = Sequence[int]


def make_output(
    function: Any,  # the torch function or operator
    in_place: bool,  # whether it writes into its first argument
    args: Sequence[Any],
    kwargs: dict[str, Any],
    call: TorchCall,  # operands and attributes that were read from the arguments
) -> Any:
    """Return the output of a call."""
    shape_rule = _SHAPE_RULES.get(call.result)
    if (
        shape_rule is None
        or "out" in kwargs
        or any(tensor.requires_grad for tensor in call.tensors if tensor is not None)  # forward may ask for gradients
    ):
        return function(*args, **kwargs)
    in_place = in_place or kwargs.get("inplace", False)
    if in_place and call.result == "same_shape":
        return call.tensors[0]
    result = shape_rule(call, args, kwargs)
    if result is None:
        return function(*args, **kwargs)
    if in_place:
        first = call.tensors[0]
        return first if first.shape == result.shape else function(*args, **kwargs)
    return result


def _same_shape(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    first = call.tensors[0]
    if first.is_contiguous():
        return _empty(first, first.shape)
    if call.kind not in ELEMENTWISE:  # softmax, for example, does not keep a non-contiguous layout
        return None
    return _empty_like(first)


def _alias(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return call.tensors[0].view_as(call.tensors[0])


def _attention(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    query, _, value = call.tensors[:3]
    return _empty(query, (*query.shape[:-1], value.shape[-1]))


def _linear(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    (x,) = call.tensors
    weight, bias = call.weights
    if not x.dim() or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype:
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    return _empty(x, (*x.shape[:-1], weight.shape[0]))


def _matmul(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the product of two matrices, or of two equal batches of matrices; an added operand must not change the
    shape."""
    left, right = call.tensors
    if left.dim() != right.dim() or left.dim() < 2 or left.dtype != right.dtype:
        return None
    if left.shape[-1] != right.shape[-2] or left.shape[:-2] != right.shape[:-2]:
        return None
    shape = [*left.shape[:-1], right.shape[-1]]
    for added in call.weights:
        if added.dtype != left.dtype or _broadcast_shape(shape, added.shape) != shape:
            return None
    if "dtype" in kwargs or "out_dtype" in kwargs:
        return None
    return _empty(left, shape)


def _convolution(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the output of a convolution; sizes as in the documentation of ``torch.nn.Conv2d``."""
    (x,) = call.tensors
    weight, bias = call.weights
    attributes = call.attributes
    rank = weight.dim() - 2
    padding = attributes["padding"]
    if x.dim() != rank + 2 or isinstance(padding, str) or not (x.is_contiguous() and weight.is_contiguous()):
        return None
    if x.shape[1] != weight.shape[1] * attributes.get("groups", 1) or x.dtype != weight.dtype:
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    dilations = attributes.get("dilation", (1,) * rank)
    strides = attributes["stride"]
    sizes = [
        (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        for size, pad, dilation, kernel, stride in zip(x.shape[2:], padding, dilations, weight.shape[2:], strides)
    ]
    if min(sizes) <= 0:
        return None
    return _empty(x, (x.shape[0], weight.shape[0], *sizes))


def _broadcast(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the broadcast result of operands of one floating type; a single operand keeps the order of its strides."""
    first, *others = call.tensors
    if not first.is_floating_point() or kwargs.get("dtype") is not None:
        return None
    if any(other.dtype != first.dtype for other in others) or any(isinstance(value, complex) for value in args):
        return None
    if not others and not _has_ordered_strides(first):
        return _empty_like(first)
    shape = _ordered_broadcast_shape(call.tensors)
    return None if shape is None else _empty(first, shape)


def _comparison(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of comparing operands of one floating type and numbers."""
    first, *others = call.tensors
    if not first.is_floating_point() or any(other.dtype != first.dtype for other in others) or kwargs:
        return None
    if not all(isinstance(value, (torch.Tensor, int, float)) for value in args):
        return None
    shape = _ordered_broadcast_shape(call.tensors)
    return None if shape is None else _empty(first, shape, torch.bool)


def _masked(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of filling a tensor of a floating type with a number where a mask is true."""
    if len(args) != 3 or kwargs or not isinstance(args[2], (int, float)):
        return None
    filled, mask = call.tensors
    if not filled.is_floating_point() or mask.dtype != torch.bool:
        return None
    shape = _ordered_broadcast_shape(call.tensors)
    return None if shape is None else _empty(filled, shape)


def _ordered_broadcast_shape(tensors: Sequence[torch.Tensor]) -> Shape | None:
    """Return the shape of the broadcast result of tensors, or None if it may not be contiguous or does not exist."""
    if not all(map(_has_ordered_strides, tensors)):
        return None
    shape: Shape = tensors[0].shape
    for tensor in tensors[1:]:
        if tensor.shape != shape:
            merged = _broadcast_shape(shape, tensor.shape)
            if merged is None:
                return None
            shape = merged
    return shape


def _has_ordered_strides(tensor: torch.Tensor) -> bool:
    """Return whether the strides of the dimensions larger than 1 decrease, and none is 0."""
    if tensor.is_contiguous():
        return True
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]
    return all(stride > following for stride, following in zip(strides, [*strides[1:], 0]))


def _broadcast_shape(left: Shape, right: Shape) -> Shape | None:
    """Return the broadcast shape of two shapes, or None where they cannot be broadcast."""
    if len(left) < len(right):
        left, right = right, left
    right = (*([1] * (len(left) - len(right))), *right)
    sizes = [b if a == 1 else a for a, b in zip(left, right)]
    return sizes if all(b in (1, size) for b, size in zip(right, sizes)) else None


def _concat(call: TorchCall, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    tensors = call.tensors
    first = tensors[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if not isinstance(dim, int) or not -first.dim() <= dim < first.dim():
        return None
    other_sizes = _without_dimension(first.shape, dim)
    for tensor in tensors[1:]:
        if tensor.dim() != first.dim() or tensor.dtype != first.dtype:
            return None
        if _without_dimension(tensor.shape, dim) != other_sizes:
            return None
    if not all(map(_has_channels_first, tensors)):
        return None
    shape = list(first.shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return _empty(first, shape)


def _has_channels_first(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous, or a part of such a tensor that cannot be taken for channels-last."""
    return tensor.is_contiguous() or (1 not in tensor.shape[1:] and _has_ordered_strides(tensor))


def _without_dimension(shape: Shape, dim: int) -> list[int]:
    sizes = list(shape)
    del sizes[dim]
    return sizes


def _empty(like: torch.Tensor, shape: Shape, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a contiguous tensor of a type, by default that of another tensor."""
    with torch._C._DisableTorchDispatch():  # dispatch would take most of the time, and there is nothing to record
        return torch.empty(shape, dtype=dtype or like.dtype, device="meta")


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor with the same order of strides."""
    with torch._C._DisableTorchDispatch():
        return torch.empty_like(tensor)


_SHAPE_RULES = {
    "same_shape": _same_shape,
    "alias": _alias,
    "attention": _attention,
    "linear": _linear,
    "matmul": _matmul,
    "convolution": _convolution,
    "broadcast": _broadcast,
    "comparison": _comparison,
    "masked": _masked,
    "concat": _concat,
}

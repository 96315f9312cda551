"""What a call of torch is: one small reader per sort of call, from its arguments to kind, operands and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Reading(NamedTuple):
    """What a call is.

    Attributes
    ----------
    kind : str
    tensors : list
        Data operands in order.
    weights : list
        Operands that play the part of parameters, whatever they are.
    attributes : dict
    result : str
        How `results.make` makes the output without the work: ``run`` the call on the meta device, a tensor ``like`` the
        first operand, an ``alias`` of it, or by the shape rule of that name.
    """

    kind: str
    tensors: list[Any]
    weights: list[Any]
    attributes: dict[str, Any]
    result: str = "run"


Reader = Callable[..., Reading]

ATOMS = frozenset((int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device, slice))
"""Types that hold no tensor; most arguments are of these."""


def _tuple(value: Any, rank: int) -> list[int]:
    if isinstance(value, int):
        return [value] * rank
    values = [int(item) for item in value]
    return values * rank if len(values) == 1 else values


def _unless(default: Any, **values: Any) -> dict[str, Any]:
    """Attributes that differ from their default."""
    return {name: value for name, value in values.items() if value not in (default, None) and value is not False}


def _rank(name: str) -> int:
    return next((int(letter) for letter in name if letter.isdigit()), 2)


def _convolution_attributes(rank: int, stride: Any, padding: Any, dilation: Any, groups: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"stride": _tuple(stride, rank)}
    attributes["padding"] = padding if isinstance(padding, str) else _tuple(padding, rank)
    dilation = _tuple(dilation, rank)
    if any(step != 1 for step in dilation):
        attributes["dilation"] = dilation
    if groups != 1:
        attributes["groups"] = groups
    return attributes


def convolution(name: str) -> Reader:
    rank = _rank(name)
    kind = f"conv{rank}d"

    def read(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):  # type: ignore[no-untyped-def]
        attributes = _convolution_attributes(rank, stride, padding, dilation, groups)
        return Reading(kind, [input], [weight, bias], attributes, "convolution")

    return read


def transposed_convolution(name: str) -> Reader:
    rank = _rank(name)

    def read(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):  # type: ignore[no-untyped-def]
        attributes = _convolution_attributes(rank, stride, padding, dilation, groups) | {"transposed": True}
        return Reading(f"conv_transpose{rank}d", [input], [weight, bias], attributes)

    return read


def aten_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):  # type: ignore[no-untyped-def]
    rank = len(weight.shape) - 2
    attributes = _convolution_attributes(rank, stride, padding, dilation, groups)
    kind = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    return Reading(kind, [input], [weight, bias], attributes | _unless(False, transposed=transposed))


def linear(input, weight, bias=None):  # type: ignore[no-untyped-def]
    return Reading("linear", [input], [weight, bias], {}, "linear")


def matmul(left, right, **_):  # type: ignore[no-untyped-def]
    return Reading("matmul", [left, right], [], {"inner": left.shape[-1]})


def matmul_added(added, left, right, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("matmul", [left, right], [added], {"inner": left.shape[-1], "bias": True})


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, **_):  # type: ignore[no-untyped-def]
    return Reading("attention", [query, key, value, attn_mask], [], _unless(False, causal=is_causal), "attention")


def batch_norm(input, running_mean=None, running_var=None, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("batch_norm", [input], [weight, bias], {}, "like")


def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("instance_norm", [input], [weight, bias], {}, "like")


def aten_batch_norm(input, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("batch_norm", [input], [weight, bias], {})


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, *_):  # type: ignore[no-untyped-def]
    return Reading("layer_norm", [input], [weight, bias], {}, "like")


def aten_layer_norm(input, normalized_shape, weight=None, bias=None, *_):  # type: ignore[no-untyped-def]
    return Reading("layer_norm", [input], [weight, bias], {})


def rms_norm(input, normalized_shape, weight=None, eps=None):  # type: ignore[no-untyped-def]
    return Reading("rms_norm", [input], [weight], {}, "like")


def group_norm(input, num_groups, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("group_norm", [input], [weight, bias], {"num_groups": num_groups}, "like")


def aten_group_norm(input, weight, bias, *_):  # type: ignore[no-untyped-def]
    return Reading("group_norm", [input], [weight, bias], {})


def response_norm(input, size, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("local_response_norm", [input], [], {"size": size}, "like")


def pool(name: str) -> Reader:
    kind = "max_pool" if name.startswith("max") else "avg_pool"
    rank = _rank(name)

    def read(input, kernel_size, stride=None, padding=0, *rest, ceil_mode=False, **_):  # type: ignore[no-untyped-def]
        kernel = _tuple(kernel_size, rank)
        attributes = {"kernel": kernel, "stride": _tuple(kernel if stride in (None, []) else stride, rank)}
        if _tuple(padding, rank) != [0] * rank:
            attributes["padding"] = _tuple(padding, rank)
        return Reading(kind, [input], [], attributes | _unless(False, ceil_mode=ceil_mode))

    return read


def adaptive_pool(name: str) -> Reader:
    kind = "adaptive_max_pool" if "max" in name else "adaptive_avg_pool"
    rank = _rank(name)

    def read(input, *_, **__):  # type: ignore[no-untyped-def]
        return Reading(kind, [input], [], {} if len(input.shape) == rank + 2 else {"dims": rank})

    return read


def interpolate(input, size=None, scale_factor=None, mode="nearest", *_, **__):  # type: ignore[no-untyped-def]
    family = next((word for word in ("linear", "cubic") if word in mode), "nearest" if "nearest" in mode else "linear")
    return Reading("interpolate", [input], [], {"mode": family})


def embedding(input, weight, *_, **__):  # type: ignore[no-untyped-def]
    if input.is_floating_point():  # torch.embedding has the table first, torch.nn.functional's the indices
        input, weight = weight, input
    return Reading("embedding", [input], [weight], {})


def gelu(input, *_, approximate="none", **__):  # type: ignore[no-untyped-def]
    return Reading("gelu_tanh" if approximate == "tanh" else "gelu", [input], [], {}, "like")


def prelu(input, weight):  # type: ignore[no-untyped-def]
    return Reading("prelu", [input], [weight], {}, "like")


def glu(input, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("glu", [input], [], {})


def dropout(input, p=0.5, *_, **__):  # type: ignore[no-untyped-def]
    # With a probability of 0 nothing is computed, in training neither.
    return Reading("dropout", [input], [], {"p": 0} if p == 0 else {}, "alias")


def activation(kind: str) -> Reader:
    def read(input, *_, **__):  # type: ignore[no-untyped-def]
        return Reading(kind, [input], [], {}, "like")

    return read


def extreme(kind: str) -> Reader:
    """``max`` and ``min``: of two tensors elementwise, of one a reduction."""

    def read(*args: Any, **kwargs: Any) -> Reading:
        operands = tensors_in(args, kwargs)
        return Reading(kind if len(operands) > 1 else "reduce", operands, [], {})

    return read


def copied(into, source, *_, **__):  # type: ignore[no-untyped-def]
    """``into.copy_(source)``: a copy of the whole, or a write into a part."""
    if into._base is None:
        return Reading("copy", [source], [], {})
    return Reading("assign", [into, source], [], {})


def filled(into, *_, **__):  # type: ignore[no-untyped-def]
    """``into.fill_(1)``, ``into.zero_()``: a write into the whole, or into a part."""
    return Reading("fill" if into._base is None else "assign", [into], [], {})


def weight_norm(v, g, dim=0):  # type: ignore[no-untyped-def]
    return Reading("weight_norm", [v, g], [], {})


def plain(kind: str, result: str = "run", **attributes: Any) -> Reader:
    """All tensors among the arguments are operands."""

    def read(*args: Any, **kwargs: Any) -> Reading:
        return Reading(kind, tensors_in(args, kwargs), [], attributes, result)

    return read


def tensors_in(*values: Any) -> list[Any]:
    """All tensors in nested tuples, lists and dicts, in order."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in ATOMS:
            continue
        elif isinstance(value, (tuple, list)):
            if value:
                found += tensors_in(*value)
        elif isinstance(value, dict) and value:
            found += tensors_in(*value.values())
    return found

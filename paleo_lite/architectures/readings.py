"""What a call of torch is: one small reader per sort of call, from kind and arguments to operands and attributes.

Which calls each reads, for which kind, is in the kinds' records (`paleo_lite.counting.kinds`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Reading(NamedTuple):
    """What a call is.

    Attributes
    ----------
    tensors : list
        Data operands in order.
    weights : list
        Operands that play the part of parameters, whatever they are.
    result : str
        How `results.make` makes the output without the work: ``run`` the call on the meta device, a tensor ``like`` the
        first operand, an ``alias`` of it, or by the shape rule of that name.
    alike : bool
        Whether its rule takes a parameter among the data operands for a weight; else such an operand is data all the
        same, which a view hands on.
    """

    kind: str
    tensors: list[Any]
    weights: list[Any]
    attributes: dict[str, Any]
    result: str = "run"
    alike: bool = False


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


def convolution(kind, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):  # type: ignore[no-untyped-def]
    attributes = _convolution_attributes(_rank(kind), stride, padding, dilation, groups)
    return Reading(kind, [input], [weight, bias], attributes, "convolution")


def transposed_convolution(  # type: ignore[no-untyped-def]
    kind, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    attributes = _convolution_attributes(_rank(kind), stride, padding, dilation, groups) | {"transposed": True}
    return Reading(kind, [input], [weight, bias], attributes)


def aten_convolution(  # type: ignore[no-untyped-def]
    _, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
):
    """One operation for all ranks, transposed or not."""
    rank = len(weight.shape) - 2
    attributes = _convolution_attributes(rank, stride, padding, dilation, groups)
    kind = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    return Reading(kind, [input], [weight, bias], attributes | _unless(False, transposed=transposed))


def linear(kind, input, weight, bias=None):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [weight, bias], {}, "linear")


def matmul(kind, left, right, **_):  # type: ignore[no-untyped-def]
    return Reading(kind, [left, right], [], {"inner": left.shape[-1]}, "matrix", alike=True)


def matmul_added(kind, added, left, right, *_, **__):  # type: ignore[no-untyped-def]
    return Reading(kind, [left, right], [added], {"inner": left.shape[-1], "bias": True}, "matrix", alike=True)


def matmul_summed(kind, added, left, right, *_, **__):  # type: ignore[no-untyped-def]
    """``torch.addbmm``: the products of a batch are added up."""
    inner = left.shape[0] * left.shape[-1]
    return Reading(kind, [left, right], [added], {"inner": inner, "bias": True}, alike=True)


def matmul_scaled(kind, left, right, *scales, bias=None, **_):  # type: ignore[no-untyped-def]
    """A product in 8-bit numbers: the scales come before the bias."""
    bias = scales[2] if bias is None and len(scales) > 2 and isinstance(scales[2], torch.Tensor) else bias
    attributes = {"inner": left.shape[-1]} | _unless(False, bias=bias is not None)
    return Reading(kind, [left, right], [bias], attributes, alike=True)


def bilinear(kind, left, right, weight, bias=None):  # type: ignore[no-untyped-def]
    attributes = {"inner": weight.shape[1] * weight.shape[2]} | _unless(False, bias=bias is not None)
    return Reading(kind, [left, right, weight], [bias], attributes, alike=True)


def grouped(kind, input, weight, offs=None, *_, **__):  # type: ignore[no-untyped-def]
    """Each row by the matrix of its group; of two matrices the groups divide the inner size, as in a gradient."""
    if input.dim() == weight.dim() == 2 and offs is not None:
        return Reading("matmul", [input, weight], [], {"inner": input.shape[-1] // offs.shape[0]}, alike=True)
    return Reading(kind, [input], [weight], {})


def attention(  # type: ignore[no-untyped-def]
    kind, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, **_
):
    return Reading(kind, [query, key, value, attn_mask], [], _unless(False, causal=is_causal), "attended")


def norm(kind, input, running_mean=None, running_var=None, weight=None, bias=None, *rest, **_):  # type: ignore[no-untyped-def]
    if len(rest) == 4:  # torch.batch_norm has the weights before the statistics, and one argument more
        weight, bias = running_mean, running_var
    return Reading(kind, [input], [weight, bias], {}, "like")


def aten_norm(kind, input, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [weight, bias], {})


def rows(kind, input, normalized_shape, weight=None, bias=None, eps=1e-5, *_):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [weight, bias], {}, "like")


def aten_rows(kind, input, normalized_shape, weight=None, bias=None, *_):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [weight, bias], {})


def scaled_rows(kind, input, normalized_shape, weight=None, eps=None):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [weight], {}, "like")


def groups(kind, input, num_groups, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [weight, bias], {"num_groups": num_groups}, "like")


def windows(kind, input, size, *_, **__):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [], {"size": size}, "like")


def _pool(rank: int) -> Reader:
    def read(kind, input, kernel_size, stride=None, padding=0, *rest, ceil_mode=False, **_):  # type: ignore[no-untyped-def]
        kernel = _tuple(kernel_size, rank)
        attributes = {"kernel": kernel, "stride": _tuple(kernel if stride in (None, []) else stride, rank)}
        if _tuple(padding, rank) != [0] * rank:
            attributes["padding"] = _tuple(padding, rank)
        return Reading(kind, [input], [], attributes | _unless(False, ceil_mode=ceil_mode))

    return read


def _adaptive_pool(rank: int) -> Reader:
    def read(kind, input, *_, **__):  # type: ignore[no-untyped-def]
        return Reading(kind, [input], [], {} if len(input.shape) == rank + 2 else {"dims": rank})

    return read


pool1d, pool2d, pool3d = (_pool(rank) for rank in (1, 2, 3))
adaptive_pool1d, adaptive_pool2d, adaptive_pool3d = (_adaptive_pool(rank) for rank in (1, 2, 3))


def interpolate(kind, input, size=None, scale_factor=None, mode="nearest", *_, **__):  # type: ignore[no-untyped-def]
    family = next((word for word in ("linear", "cubic") if word in mode), "nearest" if "nearest" in mode else "linear")
    return Reading(kind, [input], [], {"mode": family})


def embedding(kind, input, weight, *_, **__):  # type: ignore[no-untyped-def]
    if input.is_floating_point():  # torch.embedding has the table first, torch.nn.functional's the indices
        input, weight = weight, input
    return Reading(kind, [input], [weight], {})


def sampled(kind, input, grid, mode="bilinear", *_, **__):  # type: ignore[no-untyped-def]
    """``grid_sample``; at the level of ATen the mode is a number."""
    names = ("bilinear", "nearest", "bicubic")
    mode = mode if isinstance(mode, str) else names[mode]
    read: Reading = interpolate(kind, input, mode=mode)  # type: ignore[no-untyped-call]
    return read._replace(tensors=[input, grid])


def ordered(kind, input, dim=-1, *_, **__):  # type: ignore[no-untyped-def]
    dim = dim if isinstance(dim, int) and not isinstance(dim, bool) else -1
    return Reading(kind, [input], [], {"length": input.shape[dim] if input.dim() else 1})


def scattered(kind, into, dim, index, source=None, *_, **__):  # type: ignore[no-untyped-def]
    sources = [source] if isinstance(source, torch.Tensor) else []
    return Reading(kind, [into, index, *sources], [], {})


def transform(kind, input, dim, *rest):  # type: ignore[no-untyped-def]
    """ATen's Fourier transforms: of real numbers, to real numbers of a given size, of complex numbers."""
    sizes = [input.shape[axis] for axis in dim]
    if isinstance(rest[-1], int) and not isinstance(rest[-1], bool):
        sizes[-1] = rest[-1]
    return Reading(kind, [input], [], {"length": math.prod(sizes)})


def gelu(kind, input, *_, approximate="none", **__):  # type: ignore[no-untyped-def]
    return Reading("gelu_tanh" if approximate == "tanh" else kind, [input], [], {}, "like")


def prelu(kind, input, weight):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [weight], {}, "like")


def first(kind, input, *_, **__):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [], {})


def dropout(kind, input, p=0.5, *_, **__):  # type: ignore[no-untyped-def]
    # With a probability of 0 nothing is computed, in training neither.
    return Reading(kind, [input], [], {"p": 0} if p == 0 else {}, "alias")


def like(kind, input, *_, **__):  # type: ignore[no-untyped-def]
    return Reading(kind, [input], [], {}, "like")


def extreme(kind: str, *args: Any, **kwargs: Any) -> Reading:
    """``max`` and ``min``: of two tensors elementwise, of one a reduction."""
    operands = tensors_in(args, kwargs)
    return Reading(kind if len(operands) > 1 else "reduce", operands, [], {}, alike=True)


def copied(kind, into, source, *_, **__):  # type: ignore[no-untyped-def]
    """``into.copy_(source)``: a copy of the whole, or a write into a part."""
    if into._base is None:
        return Reading(kind, [source], [], {})
    return Reading("assign", [into, source], [], {})


def filled(kind, into, *_, **__):  # type: ignore[no-untyped-def]
    """``into.fill_(1)``, ``into.zero_()``: a write into the whole, or into a part."""
    return Reading(kind if into._base is None else "assign", [into], [], {})


def weight_norm(kind, v, g, dim=0):  # type: ignore[no-untyped-def]
    return Reading(kind, [v, g], [], {}, alike=True)


def _plain(result: str = "run", **attributes: Any) -> Reader:
    """All tensors among the arguments are operands."""

    def read(kind: str, *args: Any, **kwargs: Any) -> Reading:
        return Reading(kind, tensors_in(args, kwargs), [], attributes, result, alike=True)

    return read


plain, broadcast, joined = _plain(), _plain("broadcast"), _plain("joined")
without_gradient = _plain(no_gradient=True)
twice, three_times = _plain(per_element=2), _plain(per_element=3)


def tensors_in(*values: Any) -> list[Any]:
    """All tensors in nested tuples, lists and dicts, in order."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in ATOMS:
            continue
        elif isinstance(value, (tuple, list)):
            if value:
                tensors += tensors_in(*value)
        elif isinstance(value, dict) and value:
            tensors += tensors_in(*value.values())
    return tensors

"""Readers of torch calls: functions from a layer kind and the arguments of a call to its operands and attributes.

The parameters of a reader, and the fields of the settings that it takes, have the names of the call's parameters. The
records of layer kinds (`paleo_lite.counting.kinds`) list the calls that each reader reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class TorchCall(NamedTuple):
    """Operands and attributes of a torch call."""

    kind: str  # kind of the layer
    tensors: list[Any]  # data operands in order
    weights: list[Any]  # operands in the role of parameters, whether or not they are parameters
    attributes: dict[str, Any]  # attributes of the layer
    # How `call_outputs.make_output` makes the output: ``run`` the call on the meta device, ``same_shape`` as the
    # first operand, an ``alias`` of it, or the name of a shape rule.
    result: str = "run"
    # Whether a parameter among the data operands counts as a weight; otherwise it counts as data, read through a
    # view.
    parameters_are_weights: bool = False


Reader = Callable[..., TorchCall]

PLAIN_TYPES = frozenset((int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device, slice))
"""Types of most arguments other than tensors; values of these types contain no tensor."""


def _per_dimension(value: Any, rank: int) -> list[int]:
    """Return one integer per dimension from an integer, or a sequence of one or `rank` integers."""
    if isinstance(value, int):
        return [value] * rank
    values = [int(item) for item in value]
    return values * rank if len(values) == 1 else values


def _set_flags(**values: Any) -> dict[str, Any]:
    """Return the attributes that are true."""
    return {name: value for name, value in values.items() if value}


def _rank(kind: str) -> int:
    """Return the number of spatial dimensions in the name of a kind: 1 for ``conv1d``; 2 by default."""
    for letter in kind:
        if letter.isdigit():
            return int(letter)
    return 2


class ConvolutionSettings(NamedTuple):
    """Arguments of ``conv2d`` after the bias, in their order."""

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


class TransposedSettings(NamedTuple):
    """Arguments of ``conv_transpose2d`` after the bias, in their order."""

    stride: Any = 1
    padding: Any = 0
    output_padding: Any = 0
    groups: int = 1
    dilation: Any = 1


class AtenSettings(NamedTuple):
    """Arguments of ``aten.convolution`` after the bias, in their order."""

    stride: Any
    padding: Any
    dilation: Any
    transposed: bool
    output_padding: Any
    groups: int


def _convolution_attributes(
    rank: int, settings: ConvolutionSettings | TransposedSettings | AtenSettings
) -> dict[str, Any]:
    attributes: dict[str, Any] = {"stride": _per_dimension(settings.stride, rank)}
    padding = settings.padding
    attributes["padding"] = padding if isinstance(padding, str) else _per_dimension(padding, rank)
    dilation = _per_dimension(settings.dilation, rank)
    if any(step != 1 for step in dilation):
        attributes["dilation"] = dilation
    if settings.groups != 1:
        attributes["groups"] = settings.groups
    return attributes


def convolution(kind, input, weight, bias=None, *settings, **named):  # type: ignore[no-untyped-def]
    attributes = _convolution_attributes(_rank(kind), ConvolutionSettings(*settings, **named))
    return TorchCall(kind, [input], [weight, bias], attributes, "convolution")


def transposed_convolution(kind, input, weight, bias=None, *settings, **named):  # type: ignore[no-untyped-def]
    attributes = _convolution_attributes(_rank(kind), TransposedSettings(*settings, **named)) | {"transposed": True}
    return TorchCall(kind, [input], [weight, bias], attributes)


def aten_convolution(_, input, weight, bias, *settings):  # type: ignore[no-untyped-def]
    """Read ``aten.convolution``: one operation for all ranks, transposed or not."""
    rank = len(weight.shape) - 2
    aten = AtenSettings(*settings)
    attributes = _convolution_attributes(rank, aten) | _set_flags(transposed=aten.transposed)
    kind = f"conv_transpose{rank}d" if aten.transposed else f"conv{rank}d"
    return TorchCall(kind, [input], [weight, bias], attributes)


def linear(kind, input, weight, bias=None):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [weight, bias], {}, "linear")


def matmul(kind, left, right, **_):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [left, right], [], {"inner": left.shape[-1]}, "matmul", parameters_are_weights=True)


def addmm(kind, added, left, right, *_, **__):  # type: ignore[no-untyped-def]
    attributes = {"inner": left.shape[-1], "bias": True}
    return TorchCall(kind, [left, right], [added], attributes, "matmul", parameters_are_weights=True)


def addbmm(kind, added, left, right, *_, **__):  # type: ignore[no-untyped-def]
    """Read ``torch.addbmm``, which sums the products of a batch."""
    inner = left.shape[0] * left.shape[-1]
    return TorchCall(kind, [left, right], [added], {"inner": inner, "bias": True}, parameters_are_weights=True)


def scaled_matmul(kind, left, right, *scales, bias=None, **_):  # type: ignore[no-untyped-def]
    """Read a product of 8-bit numbers; the scales come before the bias."""
    if bias is None and len(scales) > 2 and isinstance(scales[2], torch.Tensor):
        bias = scales[2]
    attributes = {"inner": left.shape[-1]} | _set_flags(bias=bias is not None)
    return TorchCall(kind, [left, right], [bias], attributes, parameters_are_weights=True)


def bilinear(kind, left, right, weight, bias=None):  # type: ignore[no-untyped-def]
    attributes = {"inner": weight.shape[1] * weight.shape[2]} | _set_flags(bias=bias is not None)
    return TorchCall(kind, [left, right, weight], [bias], attributes, parameters_are_weights=True)


def grouped_matmul(kind, input, weight, offs=None, *_, **__):  # type: ignore[no-untyped-def]
    """Read a grouped product: each row is multiplied by the matrix of its group.

    For two 2-D operands the groups divide the inner size, as in a weight gradient.
    """
    if input.dim() == weight.dim() == 2 and offs is not None:
        attributes = {"inner": input.shape[-1] // offs.shape[0]}
        return TorchCall("matmul", [input, weight], [], attributes, parameters_are_weights=True)
    return TorchCall(kind, [input], [weight], {})


def attention(kind, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **_):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [query, key, value, attn_mask], [], _set_flags(causal=is_causal), "attention")


def norm(kind, input, running_mean=None, running_var=None, weight=None, bias=None, *rest, **_):  # type: ignore[no-untyped-def]
    if len(rest) == 4:  # torch.batch_norm has the weights before the statistics, and one more argument
        weight, bias = running_mean, running_var
    return TorchCall(kind, [input], [weight, bias], {}, "same_shape")


def aten_norm(kind, input, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [weight, bias], {})


def layer_norm(kind, input, normalized_shape, weight=None, bias=None, eps=1e-5, *_):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [weight, bias], {}, "same_shape")


def aten_layer_norm(kind, input, normalized_shape, weight=None, bias=None, *_):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [weight, bias], {})


def rms_norm(kind, input, normalized_shape, weight=None, eps=None):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [weight], {}, "same_shape")


def group_norm(kind, input, num_groups, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [weight, bias], {"num_groups": num_groups}, "same_shape")


def local_response_norm(kind, input, size, *_, **__):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [], {"size": size}, "same_shape")


def _pool(rank: int) -> Reader:
    def read(kind, input, kernel_size, stride=None, padding=0, *rest, ceil_mode=False, **_):  # type: ignore[no-untyped-def]
        kernel = _per_dimension(kernel_size, rank)
        attributes = {"kernel": kernel, "stride": _per_dimension(kernel if stride in (None, []) else stride, rank)}
        if _per_dimension(padding, rank) != [0] * rank:
            attributes["padding"] = _per_dimension(padding, rank)
        return TorchCall(kind, [input], [], attributes | _set_flags(ceil_mode=ceil_mode))

    return read


def _adaptive_pool(rank: int) -> Reader:
    def read(kind, input, *_, **__):  # type: ignore[no-untyped-def]
        return TorchCall(kind, [input], [], {} if len(input.shape) == rank + 2 else {"dims": rank})

    return read


pool1d = _pool(1)
pool2d = _pool(2)
pool3d = _pool(3)
adaptive_pool1d = _adaptive_pool(1)
adaptive_pool2d = _adaptive_pool(2)
adaptive_pool3d = _adaptive_pool(3)


def interpolate(kind, input, size=None, scale_factor=None, mode="nearest", *_, **__):  # type: ignore[no-untyped-def]
    family = "linear"
    for candidate in ("cubic", "nearest"):
        if candidate in mode:
            family = candidate
    return TorchCall(kind, [input], [], {"mode": family})


def embedding(kind, input, weight, *_, **__):  # type: ignore[no-untyped-def]
    if input.is_floating_point():  # torch.embedding takes the table first, torch.nn.functional.embedding the indices
        input, weight = weight, input
    return TorchCall(kind, [input], [weight], {})


def grid_sample(kind, input, grid, mode="bilinear", *_, **__):  # type: ignore[no-untyped-def]
    """Read ``grid_sample``; ATen operations have an integer mode."""
    names = ("bilinear", "nearest", "bicubic")
    mode = mode if isinstance(mode, str) else names[mode]
    call: TorchCall = interpolate(kind, input, mode=mode)  # type: ignore[no-untyped-call]
    return call._replace(tensors=[input, grid])


def sort(kind, input, dim=-1, *_, **__):  # type: ignore[no-untyped-def]
    dim = dim if isinstance(dim, int) and not isinstance(dim, bool) else -1
    return TorchCall(kind, [input], [], {"length": input.shape[dim] if input.dim() else 1})


def scatter(kind, into, dim, index, source=None, *_, **__):  # type: ignore[no-untyped-def]
    sources = [source] if isinstance(source, torch.Tensor) else []
    return TorchCall(kind, [into, index, *sources], [], {})


def fourier_transform(kind, input, dim, *rest):  # type: ignore[no-untyped-def]
    """Read ATen's Fourier transforms: real to complex, complex to real of a given size, complex to complex."""
    sizes = [input.shape[axis] for axis in dim]
    if isinstance(rest[-1], int) and not isinstance(rest[-1], bool):
        sizes[-1] = rest[-1]
    return TorchCall(kind, [input], [], {"length": math.prod(sizes)})


def gelu(kind, input, *_, approximate="none", **__):  # type: ignore[no-untyped-def]
    return TorchCall("gelu_tanh" if approximate == "tanh" else kind, [input], [], {}, "same_shape")


def prelu(kind, input, weight):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [weight], {}, "same_shape")


def first_tensor(kind, input, *_, **__):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [], {})


def dropout(kind, input, p=0.5, *_, **__):  # type: ignore[no-untyped-def]
    # With a probability of 0 nothing is computed, not even in training.
    return TorchCall(kind, [input], [], {"p": 0} if p == 0 else {}, "alias")


def same_shape(kind, input, *_, **__):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [input], [], {}, "same_shape")


def min_or_max(kind: str, *args: Any, **kwargs: Any) -> TorchCall:
    """Read ``max`` and ``min``: elementwise for two tensors, a reduction for one."""
    operands = tensors_in(args, kwargs)
    return TorchCall(kind if len(operands) > 1 else "reduce", operands, [], {}, parameters_are_weights=True)


def copy_into(kind, into, source, *_, **__):  # type: ignore[no-untyped-def]
    """Read ``into.copy_(source)``: a copy, or a write into a part where `into` is a view."""
    if into._base is None:
        return TorchCall(kind, [source], [], {})
    return TorchCall("assign", [into, source], [], {})


def fill(kind, into, *_, **__):  # type: ignore[no-untyped-def]
    """Read ``into.fill_(1)`` and ``into.zero_()``: a fill, or a write into a part where `into` is a view."""
    return TorchCall(kind if into._base is None else "assign", [into], [], {})


def weight_norm(kind, v, g, dim=0):  # type: ignore[no-untyped-def]
    return TorchCall(kind, [v, g], [], {}, parameters_are_weights=True)


def _read_all_tensors(result: str = "run", **attributes: Any) -> Reader:
    """Return a reader that takes all tensors among the arguments as operands."""

    def read(kind: str, *args: Any, **kwargs: Any) -> TorchCall:
        return TorchCall(kind, tensors_in(args, kwargs), [], attributes, result, parameters_are_weights=True)

    return read


all_tensors = _read_all_tensors()
broadcast = _read_all_tensors("broadcast")
concat = _read_all_tensors("concat")
masked = _read_all_tensors("masked")
comparison = _read_all_tensors("comparison", no_gradient=True)
without_gradient = _read_all_tensors(no_gradient=True)
two_per_element = _read_all_tensors(per_element=2)
three_per_element = _read_all_tensors(per_element=3)


def tensors_in(*values: Any) -> list[Any]:
    """Return all tensors in nested tuples, lists and dicts, in order."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in PLAIN_TYPES:
            continue
        elif isinstance(value, (tuple, list)):
            if value:
                tensors += tensors_in(*value)
        elif isinstance(value, dict) and value:
            tensors += tensors_in(*value.values())
    return tensors

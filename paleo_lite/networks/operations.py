"""From a torch call to a kind of layer: which tensors it reads, which parameters, and what else has to be known.

Calls are recognised by name, the same name whether it is a function, a method, an operator or an ATen operation
(``F.relu``, ``Tensor.relu_``, ``aten.relu``). `OPERATIONS` maps each name to a reader of its arguments. This module
looks at shapes and numbers only: torch itself is imported by `trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


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
    result : {"run", "like", "alias", "attention"}
        How to make the output without the work: run the call on the meta device, an empty tensor like the first
        operand, or the operand again. Batch norm and activations take most of a trace when run.
    """

    kind: str
    tensors: list[Any]
    weights: list[Any]
    attributes: dict[str, Any]
    result: str = "run"


Reader = Callable[..., Reading]


def operation_name(function: Any) -> str:
    """The plain name of a torch callable: ``__iadd__``, ``add_`` and ``aten.add.Tensor`` are all ``add``."""
    name: str = getattr(function, "__name__", str(function))
    if name == "__get__":  # a property such as Tensor.T
        return getattr(function.__self__, "__name__", name)
    overload = getattr(function, "overloadpacket", None)
    if overload is not None:
        name = overload.__name__
    if name.startswith("__") and name.endswith("__"):
        return _DUNDERS.get(name.strip("_"), name)
    return name.strip("_") or name


_DUNDERS = {
    **{prefix + name: name for name in ("add", "sub", "mul", "matmul", "pow") for prefix in ("", "i", "r")},
    **{prefix + "truediv": "div" for prefix in ("", "i", "r")},
    **{prefix + "div": "div" for prefix in ("", "i", "r")},
    **{prefix + "floordiv": "floor_divide" for prefix in ("", "i", "r")},
    **{prefix + "mod": "remainder" for prefix in ("", "i", "r")},
    **{name: name for name in ("lt", "le", "gt", "ge", "eq", "ne", "abs", "neg", "getitem", "setitem")},
    **{prefix + name: f"logical_{name}" for name in ("and", "or", "xor") for prefix in ("", "i", "r")},
    "invert": "logical_not",
}


def is_in_place(function: Any) -> bool:
    """Whether a call writes into its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    name: str = getattr(getattr(function, "overloadpacket", function), "__name__", "")
    if name.startswith("__"):
        return name[2:3] == "i" and name not in ("__invert__", "__index__", "__int__") or name == "__setitem__"
    return name.endswith("_")


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
    if _tuple(dilation, rank) != [1] * rank:
        attributes["dilation"] = _tuple(dilation, rank)
    return attributes | _unless(1, groups=groups)


def _convolution(name: str) -> Reader:
    rank = _rank(name)

    def read(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):  # type: ignore[no-untyped-def]
        attributes = _convolution_attributes(rank, stride, padding, dilation, groups)
        return Reading(f"conv{rank}d", [input], [weight, bias], attributes)

    return read


def _transposed_convolution(name: str) -> Reader:
    rank = _rank(name)

    def read(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):  # type: ignore[no-untyped-def]
        attributes = _convolution_attributes(rank, stride, padding, dilation, groups) | {"transposed": True}
        return Reading(f"conv_transpose{rank}d", [input], [weight, bias], attributes)

    return read


def _aten_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):  # type: ignore[no-untyped-def]
    rank = len(weight.shape) - 2
    attributes = _convolution_attributes(rank, stride, padding, dilation, groups)
    kind = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    return Reading(kind, [input], [weight, bias], attributes | _unless(False, transposed=transposed))


def _linear(input, weight, bias=None):  # type: ignore[no-untyped-def]
    return Reading("linear", [input], [weight, bias], {})


def _matmul(left, right, **_):  # type: ignore[no-untyped-def]
    return Reading("matmul", [left, right], [], {"inner": left.shape[-1]})


def _matmul_added(added, left, right, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("matmul", [left, right], [added], {"inner": left.shape[-1], "bias": True})


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, **_):  # type: ignore[no-untyped-def]
    return Reading("attention", [query, key, value, attn_mask], [], _unless(False, causal=is_causal), "attention")


def _batch_norm(input, running_mean=None, running_var=None, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("batch_norm", [input], [weight, bias], {}, "like")


def _instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("instance_norm", [input], [weight, bias], {}, "like")


def _aten_batch_norm(input, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("batch_norm", [input], [weight, bias], {})


def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, *_):  # type: ignore[no-untyped-def]
    return Reading("layer_norm", [input], [weight, bias], {}, "like")


def _aten_layer_norm(input, normalized_shape, weight=None, bias=None, *_):  # type: ignore[no-untyped-def]
    return Reading("layer_norm", [input], [weight, bias], {})


def _rms_norm(input, normalized_shape, weight=None, eps=None):  # type: ignore[no-untyped-def]
    return Reading("rms_norm", [input], [weight], {}, "like")


def _group_norm(input, num_groups, weight=None, bias=None, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("group_norm", [input], [weight, bias], {"num_groups": num_groups}, "like")


def _aten_group_norm(input, weight, bias, *_):  # type: ignore[no-untyped-def]
    return Reading("group_norm", [input], [weight, bias], {})


def _response_norm(input, size, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("local_response_norm", [input], [], {"size": size}, "like")


def _pool(name: str) -> Reader:
    kind = "max_pool" if name.startswith("max") else "avg_pool"
    rank = _rank(name)

    def read(input, kernel_size, stride=None, padding=0, *rest, ceil_mode=False, **_):  # type: ignore[no-untyped-def]
        kernel = _tuple(kernel_size, rank)
        attributes = {"kernel": kernel, "stride": _tuple(kernel if stride in (None, []) else stride, rank)}
        if _tuple(padding, rank) != [0] * rank:
            attributes["padding"] = _tuple(padding, rank)
        return Reading(kind, [input], [], attributes | _unless(False, ceil_mode=ceil_mode))

    return read


def _adaptive_pool(name: str) -> Reader:
    kind = "adaptive_max_pool" if "max" in name else "adaptive_avg_pool"
    rank = _rank(name)

    def read(input, *_, **__):  # type: ignore[no-untyped-def]
        return Reading(kind, [input], [], {} if len(input.shape) == rank + 2 else {"dims": rank})

    return read


def _interpolate(input, size=None, scale_factor=None, mode="nearest", *_, **__):  # type: ignore[no-untyped-def]
    family = next((word for word in ("linear", "cubic") if word in mode), "nearest" if "nearest" in mode else "linear")
    return Reading("interpolate", [input], [], {"mode": family})


def _embedding(input, weight, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("embedding", [input], [weight], {})


def _aten_embedding(weight, indices, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("embedding", [indices], [weight], {})


def _gelu(input, *_, approximate="none", **__):  # type: ignore[no-untyped-def]
    return Reading("gelu_tanh" if approximate == "tanh" else "gelu", [input], [], {}, "like")


def _prelu(input, weight):  # type: ignore[no-untyped-def]
    return Reading("prelu", [input], [weight], {}, "like")


def _glu(input, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("glu", [input], [], {})


def _dropout(input, *_, **__):  # type: ignore[no-untyped-def]
    return Reading("dropout", [input], [], {}, "alias")


def _activation(kind: str) -> Reader:
    def read(input, *_, **__):  # type: ignore[no-untyped-def]
        return Reading(kind, [input], [], {}, "like")

    return read


def _plain(kind: str, result: str = "run", **attributes: Any) -> Reader:
    """All tensors among the arguments are operands."""

    def read(*args: Any, **kwargs: Any) -> Reading:
        return Reading(kind, list(tensors_in((args, kwargs))), [], attributes, result)

    return read


def tensors_in(value: Any) -> Iterator[Any]:
    """All tensors in nested tuples, lists and dicts, in order."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def _same(names: str, reader: Reader) -> dict[str, Reader]:
    return dict.fromkeys(names.split(), reader)


_ACTIVATIONS = {
    "relu": "relu", "relu6": "relu6", "hardtanh": "hardtanh", "leaky_relu": "leaky_relu", "rrelu": "leaky_relu",
    "threshold": "threshold", "elu": "elu", "selu": "selu", "celu": "celu", "sigmoid": "sigmoid",
    "logsigmoid": "log_sigmoid", "hardsigmoid": "hard_sigmoid", "hardswish": "hard_swish", "silu": "silu", "tanh": "tanh",
    "softplus": "softplus", "softsign": "softsign", "mish": "mish",
}  # fmt: skip

OPERATIONS: dict[str, Reader] = {
    **{name: _convolution(name) for name in ("conv1d", "conv2d", "conv3d")},
    **{name: _transposed_convolution(name) for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")},
    "convolution": _aten_convolution,
    "linear": _linear,
    **_same("matmul mm bmm mv dot inner vdot", _matmul),
    **_same("addmm baddbmm addmv", _matmul_added),
    "scaled_dot_product_attention": _attention,
    "batch_norm": _batch_norm,
    "native_batch_norm": _aten_batch_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "native_layer_norm": _aten_layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "native_group_norm": _aten_group_norm,
    "local_response_norm": _response_norm,
    **{f"{kind}_pool{rank}d": _pool(f"{kind}_pool{rank}d") for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices": _pool(f"max_pool{rank}d") for rank in (2, 3)},
    **{f"adaptive_{kind}_pool{rank}d": _adaptive_pool(f"{kind}{rank}") for kind in ("max", "avg") for rank in (1, 2, 3)},
    "interpolate": _interpolate,
    "embedding": _embedding,
    "gelu": _gelu,
    "prelu": _prelu,
    "glu": _glu,
    **{name: _activation(kind) for name, kind in _ACTIVATIONS.items()},
    **_same("softmax softmin", _activation("softmax")),
    "log_softmax": _activation("log_softmax"),
    **_same("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout", _dropout),
    **_same("add", _plain("add")),
    **_same("sub rsub subtract", _plain("sub")),
    **_same("mul multiply", _plain("mul")),
    **_same("div divide true_divide floor_divide remainder fmod", _plain("div")),
    **{name: _plain(name) for name in ("pow", "sqrt", "rsqrt", "exp", "log", "abs", "neg", "sin", "cos", "erf")},
    **_same("square", _plain("mul")),
    **_same("addcmul addcdiv", _plain("scale")),
    **_same("exp2 expm1", _plain("exp")),
    **_same("log2 log10 log1p", _plain("log")),
    **{name: _plain(name) for name in ("reciprocal", "maximum", "minimum", "where", "lerp")},
    **_same("clamp clip", _plain("clamp")),
    **_same("clamp_min relu_min", _plain("maximum")),
    **_same("clamp_max", _plain("minimum")),
    **_same("floor ceil round trunc sign", _plain("round")),
    **_same("masked_fill", _plain("where")),
    **_same("eq ne lt le gt ge isnan isinf isfinite", _plain("compare", no_gradient=True)),
    **_same("logical_and logical_or logical_xor logical_not bitwise_not bitwise_and bitwise_or",
            _plain("logical", no_gradient=True)),
    **_same("sum mean amax amin prod max min logsumexp any all", _plain("reduce")),
    **_same("argmax argmin", _plain("reduce", no_gradient=True)),
    **_same("norm linalg_vector_norm vector_norm", _plain("reduce", per_element=2)),
    **_same("var std var_mean std_mean", _plain("reduce", per_element=3)),
    **_same("cat concat concatenate stack hstack vstack dstack", _plain("concat")),
    **_same("pad constant_pad_nd", _plain("pad")),
    "roll": _plain("roll"),
    **_same("clone copy repeat repeat_interleave tile flip pixel_shuffle pixel_unshuffle channel_shuffle tril triu",
            _plain("copy")),
    **_same("index_select gather take index take_along_dim", _plain("gather")),
    **_same("zeros ones full arange linspace zeros_like ones_like full_like new_zeros new_ones new_full zero fill "
            "tensor scalar_tensor as_tensor eye rand randn randint rand_like randn_like", _plain("fill")),
}  # fmt: skip
"""Calls that are one layer, by plain name."""

VIEWS_OR_COPIES = frozenset(
    "view reshape flatten permute transpose t T mT H unsqueeze squeeze expand expand_as broadcast_to swapaxes swapdims "
    "movedim moveaxis unflatten ravel detach contiguous view_as reshape_as to float half double bfloat16 type type_as "
    "unsafe_view alias data requires_grad numpy_T to_copy lift_fresh refine_names rename real imag".split()
)
"""Calls whose result is a view of their operand or, where memory does not allow it, a copy."""

SLICES_OR_GATHERS = frozenset(
    "getitem narrow select chunk split unbind tensor_split split_with_sizes slice diagonal unsafe_chunk unsafe_split "
    "as_strided unfold".split()
)
"""Calls whose result is part of their operand: a view, or a copy where an index says so."""

NOT_AN_OPERATION = frozenset("empty empty_like new_empty empty_strided new_empty_strided".split())
"""Memory without a value: nothing is computed or moved."""

VALUES = frozenset("item tolist __bool__ __int__ __float__ __index__ __complex__ is_nonzero equal allclose numpy".split())
"""Calls that want the numbers in a tensor, which the meta device does not have."""

"""Which calls of torch are layers: plain names of callables, and the reader of each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from . import readings
from .readings import Reader


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


@lru_cache(4096)
def operation_name(function: Any) -> str:
    """The plain name of a torch callable: ``__iadd__``, ``add_`` and ``aten.add.Tensor`` are all ``add``."""
    if function in _NAMESAKES:
        return _NAMESAKES[function]
    name: str = getattr(function, "__name__", str(function))
    if name == "__get__":  # a property such as Tensor.T
        return getattr(function.__self__, "__name__", name)
    overload = getattr(function, "overloadpacket", None)
    if overload is not None:
        name = overload.__name__
    if name.startswith("__") and name.endswith("__"):
        return _DUNDERS.get(name.strip("_"), name)
    return name.strip("_") or name


# Functions that share a method's name and do something else.
_NAMESAKES = {functional.unfold: "im2col", functional.fold: "col2im", torch.autograd.grad: "autograd_grad"}

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


@lru_cache(4096)
def is_in_place(function: Any) -> bool:
    """Whether a call writes into its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    name: str = getattr(getattr(function, "overloadpacket", function), "__name__", "")
    if name.startswith("__"):
        return name == "__setitem__" or (name[2:3] == "i" and name not in ("__invert__", "__index__", "__int__"))
    return name.endswith("_")


def _same(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


_ACTIVATIONS = {
    "relu": "relu", "relu6": "relu6", "hardtanh": "hardtanh", "leaky_relu": "leaky_relu", "rrelu": "leaky_relu",
    "threshold": "threshold", "elu": "elu", "selu": "selu", "celu": "celu", "sigmoid": "sigmoid",
    "logsigmoid": "log_sigmoid", "hardsigmoid": "hard_sigmoid", "hardswish": "hard_swish", "silu": "silu",
    "tanh": "tanh", "softplus": "softplus", "softsign": "softsign", "mish": "mish", "log_sigmoid": "log_sigmoid",
    "hardshrink": "hard_shrink", "softshrink": "soft_shrink",
}  # fmt: skip

_ARITHMETIC = {
    **{name: name for name in ("pow", "sqrt", "rsqrt", "exp", "log", "abs", "neg", "sin", "cos", "erf", "reciprocal")},
    **_same("add", "add"), **_same("sub rsub subtract", "sub"), **_same("mul multiply square", "mul"),
    **_same("div divide true_divide floor_divide remainder fmod", "div"), **_same("addcmul addcdiv", "scale"),
    **_same("exp2 expm1", "exp"), **_same("log2 log10 log1p", "log"), **_same("clamp clip", "clamp"),
    **_same("maximum clamp_min", "maximum"), **_same("minimum clamp_max", "minimum"),
    **_same("floor ceil round trunc sign", "round"),
}  # fmt: skip

OPERATIONS: dict[str, Reader] = {
    **{name: readings.convolution(name) for name in ("conv1d", "conv2d", "conv3d")},
    **{f"conv_transpose{rank}d": readings.transposed_convolution(str(rank)) for rank in (1, 2, 3)},
    "convolution": readings.aten_convolution,
    "linear": readings.linear,
    **_same("matmul mm bmm mv dot inner vdot", readings.matmul),
    **_same("addmm baddbmm addmv", readings.matmul_added),
    "scaled_dot_product_attention": readings.attention,
    "batch_norm": readings.batch_norm,
    "native_batch_norm": readings.aten_batch_norm,
    "instance_norm": readings.instance_norm,
    "layer_norm": readings.layer_norm,
    "native_layer_norm": readings.aten_layer_norm,
    "rms_norm": readings.rms_norm,
    "group_norm": readings.group_norm,
    "native_group_norm": readings.aten_group_norm,
    "local_response_norm": readings.response_norm,
    **{f"{kind}_pool{rank}d": readings.pool(f"{kind}_pool{rank}d") for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices": readings.pool(f"max_pool{rank}d") for rank in (2, 3)},
    **{f"adaptive_max_pool{rank}d": readings.adaptive_pool(f"max{rank}") for rank in (1, 2, 3)},
    **{f"adaptive_avg_pool{rank}d": readings.adaptive_pool(f"avg{rank}") for rank in (1, 2, 3)},
    "interpolate": readings.interpolate,
    "embedding": readings.embedding,
    "gelu": readings.gelu,
    "prelu": readings.prelu,
    "glu": readings.glu,
    **{name: readings.activation(kind) for name, kind in _ACTIVATIONS.items()},
    **_same("softmax softmin", readings.activation("softmax")),
    "log_softmax": readings.activation("log_softmax"),
    **_same("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout", readings.dropout),
    **{name: readings.plain(kind, "broadcast") for name, kind in _ARITHMETIC.items()},
    **_same("where masked_fill", readings.plain("where")),
    **_same("lerp", readings.plain("lerp")),
    **_same("eq ne lt le gt ge isnan isinf isfinite", readings.plain("compare", no_gradient=True)),
    **_same("logical_and logical_or logical_xor logical_not bitwise_not bitwise_and bitwise_or",
            readings.plain("logical", no_gradient=True)),
    **_same("sum mean amax amin prod logsumexp any all col2im", readings.plain("reduce")),
    "max": readings.extreme("maximum"),
    "min": readings.extreme("minimum"),
    **_same("argmax argmin", readings.plain("reduce", no_gradient=True)),
    **_same("norm linalg_vector_norm vector_norm", readings.plain("reduce", per_element=2)),
    **_same("var std var_mean std_mean", readings.plain("reduce", per_element=3)),
    **_same("cat concat concatenate", readings.plain("concat", "concat")),
    **_same("stack hstack vstack dstack", readings.plain("concat")),
    **_same("pad constant_pad_nd", readings.plain("pad")),
    "roll": readings.plain("roll", "like"),
    "copy": readings.copied,
    **_same("clone repeat repeat_interleave tile flip pixel_shuffle pixel_unshuffle channel_shuffle tril triu im2col",
            readings.plain("copy")),
    **_same("weight_norm_interface", readings.weight_norm),
    **_same("index_select gather take index take_along_dim", readings.plain("gather")),
    **_same("zeros ones full arange linspace zeros_like ones_like full_like new_zeros new_ones new_full "
            "tensor scalar_tensor as_tensor new_tensor eye rand randn randint rand_like randn_like randint_like",
            readings.plain("fill")),
    **_same("fill zero bernoulli uniform normal random exponential log_normal fill_diagonal", readings.filled),
}  # fmt: skip
"""Calls that are one layer, by plain name."""

VIEWS_OR_COPIES = words(
    "view reshape flatten permute transpose t T mT H unsqueeze squeeze expand expand_as broadcast_to swapaxes swapdims "
    "movedim moveaxis unflatten ravel detach contiguous view_as reshape_as to float half double bfloat16 type type_as "
    "unsafe_view alias data requires_grad numpy_T to_copy lift_fresh refine_names rename real imag"
)
"""Calls whose result is a view of their operand or, where memory does not allow it, a copy."""

SLICES_OR_GATHERS = words(
    "getitem narrow select chunk split unbind tensor_split split_with_sizes slice diagonal unsafe_chunk unsafe_split "
    "as_strided unfold"
)
"""Calls whose result is part of their operand: a view, or a copy where an index says so."""

NOT_AN_OPERATION = words("empty empty_like new_empty empty_strided new_empty_strided empty_permuted")
"""Memory without a value: nothing is computed or moved."""

CONDITIONS = words("__bool__ is_nonzero equal allclose __contains__")
"""Questions whose answer is yes or no."""

VALUES = CONDITIONS | words("item tolist __int__ __float__ __index__ __complex__ __format__ numpy __array__")
"""Calls that want the numbers in a tensor, which the meta device does not have."""

SHAPES_FROM_VALUES = words("nonzero argwhere masked_select unique unique_consecutive unique2 unique_dim bincount")
"""Calls whose result has a shape that depends on the numbers."""

WANTS_VALUES = words("pack_padded_sequence repeat_interleave split tensor_split")
"""Calls that need the numbers in some of their arguments: those that are known stay as they are."""

DETACHED = words("detach data")
"""Views that no gradient goes through."""

FACTS = words(
    "shape size dim ndim ndimension numel nelement stride storage_offset dtype device layout element_size itemsize "
    "nbytes is_cuda is_cpu is_meta is_floating_point is_complex is_contiguous is_leaf is_sparse is_quantized is_nested "
    "is_signed is_conj is_neg is_inference is_same_size is_pinned is_shared is_mkldnn get_device grad "
    "get_default_dtype get_default_device grad_fn names version base retains_grad data_ptr "
    "untyped_storage dim_order promote_types result_type can_cast __len__ __hash__ __repr__ is_tensor is_storage "
    "broadcast_shapes finfo iinfo is_grad_enabled"
)
"""Questions about a tensor that its shape and type answer."""

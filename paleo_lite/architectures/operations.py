"""Which calls of torch are layers: plain names of callables, and the reader of each."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch
from torch.nn import functional

from ..counting import KINDS
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


OPERATIONS: dict[str, Reader] = {
    operation: partial(getattr(readings, reader), kind.name)
    for kind in KINDS.values()
    for reader, operations in kind.torch.items()
    for operation in operations.split()
}
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

MADE_TO_SIZE = words("expand expand_as broadcast_to repeat tile repeat_interleave")
"""Calls whose result has the size that it is told."""

NOT_AN_OPERATION = words("empty empty_like new_empty empty_strided new_empty_strided empty_permuted")
"""Memory without a value: nothing is computed or moved."""

CONDITIONS = words("__bool__ is_nonzero equal allclose __contains__")
"""Questions whose answer is yes or no."""

VALUES = CONDITIONS | words("item tolist __int__ __float__ __index__ __complex__ __format__ numpy __array__")
"""Calls that want the numbers in a tensor, which the meta device does not have."""

SHAPES_FROM_VALUES = words("nonzero argwhere masked_select unique unique_consecutive unique2 unique_dim bincount")
"""Calls whose result has a shape that depends on the numbers."""

WANTS_VALUES = words("pack_padded_sequence pad_packed_sequence lstm gru rnn_tanh rnn_relu repeat_interleave split "
                     "tensor_split")  # fmt: skip
"""Calls that need the numbers in some of their arguments: whole ones that are known stay as they are."""

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

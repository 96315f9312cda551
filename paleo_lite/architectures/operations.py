"""Operations of torch: plain names of callables, the reader of each, and sets of calls with special treatment."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch
from torch.nn import functional

from ..counting import KINDS
from . import call_readers
from .call_readers import Reader


def name_set(text: str) -> frozenset[str]:
    """Return the set of names in a string separated by spaces."""
    return frozenset(text.split())


@lru_cache(4096)
def operation_name(function: Any) -> str:
    """Return the plain name of a torch callable: ``add`` for ``__iadd__``, ``add_`` and ``aten.add.Tensor``."""
    if function in _AMBIGUOUS_NAMES:
        return _AMBIGUOUS_NAMES[function]
    name: str = getattr(function, "__name__", str(function))
    if name == "__get__":  # a property such as Tensor.T
        return getattr(function.__self__, "__name__", name)
    overload = getattr(function, "overloadpacket", None)
    if overload is not None:
        name = overload.__name__
    if name.startswith("__") and name.endswith("__"):
        return _SPECIAL_METHODS.get(name.strip("_"), name)
    return name.strip("_") or name


# Functions that have the same name as a method and do something different.
_AMBIGUOUS_NAMES = {functional.unfold: "im2col", functional.fold: "col2im", torch.autograd.grad: "autograd_grad"}

_SPECIAL_METHODS = {
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
    """Return whether a call writes into its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    name: str = getattr(getattr(function, "overloadpacket", function), "__name__", "")
    if name.startswith("__"):
        return name == "__setitem__" or (name[2:3] == "i" and name not in ("__invert__", "__index__", "__int__"))
    return name.endswith("_")


OPERATIONS: dict[str, Reader] = {
    operation: partial(getattr(call_readers, reader), kind.name)
    for kind in KINDS.values()
    for reader, operations in kind.torch.items()
    for operation in operations.split()
}
"""Reader of each call that is one layer, by plain name."""

VIEWS_OR_COPIES = name_set(
    "view reshape flatten permute transpose t T mT H unsqueeze squeeze expand expand_as broadcast_to swapaxes swapdims "
    "movedim moveaxis unflatten ravel detach contiguous view_as reshape_as to float half double bfloat16 type type_as "
    "unsafe_view alias data requires_grad numpy_T to_copy lift_fresh refine_names rename real imag"
)
"""Calls that return a view of their operand or, where the memory layout does not allow it, a copy."""

SLICES_OR_GATHERS = name_set(
    "getitem narrow select chunk split unbind tensor_split split_with_sizes slice diagonal unsafe_chunk unsafe_split "
    "as_strided unfold"
)
"""Calls that return a part of their operand: a view, or a copy for advanced indexing."""

MADE_TO_SIZE = name_set("expand expand_as broadcast_to repeat tile repeat_interleave")
"""Calls that return a result of a size given as an argument."""

NOT_AN_OPERATION = name_set("empty empty_like new_empty empty_strided new_empty_strided empty_permuted")
"""Calls that allocate memory without computing or moving anything."""

CONDITIONS = name_set("__bool__ is_nonzero equal allclose __contains__")
"""Calls that return a bool that depends on values."""

VALUES = CONDITIONS | name_set("item tolist __int__ __float__ __index__ __complex__ __format__ numpy __array__")
"""Calls that read the values of a tensor, which meta tensors do not have."""

SHAPES_FROM_VALUES = name_set("nonzero argwhere masked_select unique unique_consecutive unique2 unique_dim bincount")
"""Calls with a result shape that depends on values."""

READS_VALUES = name_set("pack_padded_sequence pad_packed_sequence lstm gru rnn_tanh rnn_relu repeat_interleave split "
                     "tensor_split")  # fmt: skip
"""Calls that read the values of some arguments: integer tensors with known values are passed as they are."""

DETACHED = name_set("detach data")
"""Views that do not propagate gradients."""

METADATA_CALLS = name_set(
    "shape size dim ndim ndimension numel nelement stride storage_offset dtype device layout element_size itemsize "
    "nbytes is_cuda is_cpu is_meta is_floating_point is_complex is_contiguous is_leaf is_sparse is_quantized is_nested "
    "is_signed is_conj is_neg is_inference is_same_size is_pinned is_shared is_mkldnn get_device grad "
    "get_default_dtype get_default_device grad_fn names version base retains_grad data_ptr "
    "untyped_storage dim_order promote_types result_type can_cast __len__ __hash__ __repr__ is_tensor is_storage "
    "broadcast_shapes finfo iinfo is_grad_enabled"
)
"""Calls that depend only on the shape and type of a tensor."""

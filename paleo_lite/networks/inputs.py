"""What a module is called with: the shape and type of one sample of each input, by place or by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..counting import Shape
from ..errors import BadValue, UnknownName
from ..units import parse_shape

TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


class Input(NamedTuple):
    """One input of a module.

    Attributes
    ----------
    shape : tuple of int
        Of one sample, without the batch dimension.
    dtype : str
        One of `TYPES`.
    name : str
        The argument of forward; empty for the next one in order.
    """

    shape: Shape
    dtype: str = "float32"
    name: str = ""


def read_input(given: str | Sequence[int] | Input) -> Input:
    """Read ``"3x224x224"``, ``"int64:128"``, ``"input_ids=int64:128"``, or a shape.

    Raises
    ------
    BadValue, UnknownName
        If it is none of these.
    """
    if isinstance(given, Input):
        return given
    if not isinstance(given, str):
        return Input(tuple(given))
    name, equals, rest = given.rpartition("=")
    dtype, _, shape = rest.rpartition(":")
    if equals and not name.isidentifier():
        raise BadValue(f"{given!r}: {name!r} is not the name of an argument, as in input_ids=int64:128")
    if dtype and dtype not in TYPES:
        raise UnknownName("type of an input", dtype, TYPES)
    return Input(parse_shape(shape), dtype or "float32", name)


def arguments(inputs: Iterable[Input]) -> tuple[list[Any], dict[str, Any]]:
    """One sample of each input as tensors without memory: those by place, and those by name."""
    import torch

    args, kwargs = [], {}
    for one in inputs:
        tensor = torch.empty((1, *one.shape), dtype=getattr(torch, one.dtype), device="meta")
        if one.name:
            kwargs[one.name] = tensor
        else:
            args.append(tensor)
    return args, kwargs

"""Inputs of a module: shape and type of one sample of each, positional or by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import BadValue, UnknownName
from ..units import parse_shape

Size = int | tuple[int, int]
"""A size; or the shortest and longest sequence length."""

InputShapes = Sequence[str | Sequence[int]]
"""Shape of one sample for each input of a network: ``(3, 224, 224)``, ``"int64:128"`` or ``"input_ids=int64:128"``."""

TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


class Input(NamedTuple):
    """One input of a module."""

    # Shape of one sample, without the batch dimension. A pair of numbers is a range of sequence lengths.
    shape: tuple[Size, ...]
    dtype: str = "float32"  # one of `TYPES`
    name: str = ""  # name of the argument of ``forward``; empty for a positional argument
    # Values of every sample, where ``forward`` depends on them, such as the length of a padded sequence.
    values: tuple[float, ...] = ()


class Values:
    """A tensor whose values are used in a trace, for inputs on which the control flow or shapes of ``forward`` depend.

    >>> pl.trace(tagger, torch.zeros(3, 10, dtype=torch.int64), pl.Values([10, 6, 3]))  # doctest: +SKIP

    Parameters
    ----------
    values : tensor, array or sequence of numbers
        The first dimension is the batch.
    """

    def __init__(self, values: Any) -> None:
        import torch

        self.tensor = torch.as_tensor(values).detach().cpu()


class PreparedArgument:
    """An argument that a function makes before forward runs, such as a filled KV cache: it runs as forward does."""

    def __init__(
        self,
        make: Callable[[int], Any],  # function of the number of samples
    ) -> None:
        self.make = make


def read_input(
    # ``"3x224x224"``, ``"int64:128"``, ``"input_ids=int64:1-4096"`` (a range of sequence lengths),
    # ``"lengths=int64:=128"`` (values), or a shape.
    text: str | Sequence[int] | Input,
) -> Input:
    """Parse the description of an input.

    Raise BadValue if the shape, a value or the name is malformed, and UnknownName if the type is not one of `TYPES`.
    """
    if isinstance(text, Input):
        return text
    if not isinstance(text, str):
        return Input(tuple(text))
    description, has_values, values_text = text.partition(":=")
    name, equals, type_and_shape = description.rpartition("=")
    if has_values:
        type_and_shape += ":"
    dtype, _, shape = type_and_shape.rpartition(":")
    if equals and not name.isidentifier():
        raise BadValue(f"{description!r}: {name!r} is not the name of an argument, as in input_ids=int64:128")
    if dtype and dtype not in TYPES:
        raise UnknownName("type of an input", dtype, TYPES)
    if has_values:
        values = _parse_values(values_text)
        if not dtype:
            dtype = "float32" if any(isinstance(number, float) for number in values) else "int64"
        values_shape = (len(values),) if len(values) > 1 else ()
        return Input(values_shape, dtype, name, values)
    sizes = _parse_sizes(shape) if "-" in shape else parse_shape(shape)
    return Input(sizes, dtype or "float32", name)


def _parse_values(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) if "." in number else int(number) for number in text.split(","))
    except ValueError:
        raise BadValue(f"{text!r} are not numbers, as in lengths=int64:=128 or size=int64:=224,224") from None


def _parse_sizes(text: str) -> tuple[Size, ...]:
    """Parse a shape with ranges of sequence lengths, such as ``1-4096x768``."""
    sizes: list[Size] = []
    for size in text.lower().replace("×", "x").split("x"):
        if "-" not in size:
            sizes.append(parse_shape(size)[0])
            continue
        shortest, longest = 0, 0
        if size.count("-") == 1 and size[0] != "-":
            shortest, longest = (parse_shape(end)[0] for end in size.split("-"))
        if not shortest < longest:
            raise BadValue(f"{text!r} is not a shape: a range of sequence lengths must rise, as in int64:1-4096")
        sizes.append((shortest, longest))
    return tuple(sizes)


def make_arguments(
    inputs: Iterable[Input],  # inputs of the module
    length: int | None,  # sequence length, in place of ranges
) -> tuple[list[Any], dict[str, Any]]:
    """Return one sample of each input on the meta device: positional arguments and keyword arguments."""
    import torch

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for item in inputs:
        shape = [size if isinstance(size, int) else length for size in item.shape]
        dtype = getattr(torch, item.dtype)
        tensor: Any = torch.empty((1, *shape), dtype=dtype, device="meta")
        if item.values:
            fractions = [number for number in item.values if not isinstance(number, int)]
            try:
                if fractions and not dtype.is_floating_point:
                    raise ValueError
                tensor = Values(torch.tensor(item.values, dtype=dtype).reshape(1, *shape))
            except (RuntimeError, ValueError):
                value = fractions[0] if fractions else max(item.values, key=abs)
                raise BadValue(f"{item.dtype} cannot represent {value:.6g}") from None
        if item.name:
            kwargs[item.name] = tensor
        else:
            args.append(tensor)
    return args, kwargs

"""What a module is called with: the shape and type of one sample of each input, by place or by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import BadValue, UnknownName
from ..units import parse_shape

Size = int | tuple[int, int]
"""A size; or the sequence length, of which it is said between which two it lies."""

TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


class Input(NamedTuple):
    """One input of a module.

    Attributes
    ----------
    shape : tuple of int or (int, int)
        Of one sample, without the batch dimension. Two numbers are a span of sequence lengths.
    dtype : str
        One of `TYPES`.
    name : str
        The argument of forward; empty for the next one in order.
    values : tuple of float
        What every sample holds, where forward needs to know: the length of a padded sequence. Else empty.
    """

    shape: tuple[Size, ...]
    dtype: str = "float32"
    name: str = ""
    values: tuple[float, ...] = ()


class Values:
    """A tensor whose numbers forward needs to know: in a trace it stands for them, not for its shape alone.

    >>> pl.trace(tagger, torch.zeros(3, 10, dtype=torch.int64), pl.Values([10, 6, 3]))  # doctest: +SKIP

    Parameters
    ----------
    given : tensor, array or sequence of numbers
        The first dimension is the batch.
    """

    def __init__(self, given: Any) -> None:
        import torch

        self.tensor = torch.as_tensor(given).detach().cpu()


def read_input(given: str | Sequence[int] | Input) -> Input:
    """Read ``"3x224x224"``, ``"int64:128"``, ``"input_ids=int64:1-4096"``, values ``"lengths=int64:=128"``, or a shape.

    Raises
    ------
    BadValue, UnknownName
        If it is none of these.
    """
    if isinstance(given, Input):
        return given
    if not isinstance(given, str):
        return Input(tuple(given))
    given, with_values, said = given.partition(":=")
    name, equals, rest = given.rpartition("=")
    rest += ":" * bool(with_values)
    dtype, _, shape = rest.rpartition(":")
    if equals and not name.isidentifier():
        raise BadValue(f"{given!r}: {name!r} is not the name of an argument, as in input_ids=int64:128")
    if dtype and dtype not in TYPES:
        raise UnknownName("type of an input", dtype, TYPES)
    if with_values:
        values = _values(said)
        dtype = dtype or ("float32" if any(isinstance(number, float) for number in values) else "int64")
        return Input((len(values),) * (len(values) > 1), dtype, name, values)
    return Input(tuple(_spanned(shape)) if "-" in shape else parse_shape(shape), dtype or "float32", name)


def _values(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) if "." in number else int(number) for number in text.split(","))
    except ValueError:
        raise BadValue(f"{text!r} are no numbers, as in lengths=int64:=128 or size=int64:=224,224") from None


def _spanned(text: str) -> Iterator[Size]:
    """Sizes of which some are spans: ``1-4096x768``."""
    for size in text.lower().replace("×", "x").split("x"):
        ends = [parse_shape(end)[0] for end in size.split("-")] if size.count("-") == 1 and size[0] != "-" else []
        if "-" not in size:
            yield parse_shape(size)[0]
        elif len(ends) == 2 and ends[0] < ends[1]:
            yield ends[0], ends[1]
        else:
            raise BadValue(f"{text!r} is not a shape: a sequence length lies between two, as in int64:1-4096")


def span_of(inputs: Iterable[Input]) -> tuple[int, int] | None:
    """Between which two the sequence length lies, where the inputs have one.

    Raises
    ------
    BadValue
        If they differ.
    """
    spans = {size for one in inputs for size in one.shape if isinstance(size, tuple)}
    if len(spans) > 1:
        said = " and ".join(f"{least}-{most}" for least, most in sorted(spans))
        raise BadValue(f"inputs have one sequence length between them, not {said}")
    return spans.pop() if spans else None


def arguments(inputs: Iterable[Input], length: int | None = None) -> tuple[list[Any], dict[str, Any]]:
    """One sample of each input as tensors without memory, at a sequence length: those by place, and those by name."""
    import torch

    args, kwargs = [], {}
    for one in inputs:
        shape = [size if isinstance(size, int) else length for size in one.shape]
        dtype = getattr(torch, one.dtype)
        tensor: Any = torch.empty((1, *shape), dtype=dtype, device="meta")
        if one.values:
            broken = [number for number in one.values if not isinstance(number, int)]
            try:
                if broken and not dtype.is_floating_point:
                    raise ValueError
                tensor = Values(torch.tensor(one.values, dtype=dtype).reshape(1, *shape))
            except (RuntimeError, ValueError):
                raise BadValue(f"{one.dtype} cannot hold {(broken or [max(one.values, key=abs)])[0]:.6g}") from None
        if one.name:
            kwargs[one.name] = tensor
        else:
            args.append(tensor)
    return args, kwargs

"""Checks of the arguments of public functions against their annotations, before they are used.

An annotation is compared as text, so that nothing is imported for it: a class is known by its name.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from .errors import BadValue
from .text import truncate, with_article

F = TypeVar("F", bound=Callable[..., Any])

LARGEST_INTEGER = 2**63 - 1
"""Largest integer that an argument may be; numbers computed from larger ones exceed a floating-point number."""

LARGEST_WORDS = "2^63 - 1"

_QUOTED_AT_MOST = 80  # characters of a value in a message


class _Type(NamedTuple):
    """A type in an annotation: its words in a message, and whether a value is of it."""

    words: str
    accepts: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and abs(int(value)) <= LARGEST_INTEGER


def _is_number(value: Any) -> bool:
    if isinstance(value, numbers.Integral):
        return _is_integer(value)
    return isinstance(value, numbers.Real) and not math.isnan(value)


def _is_path(value: Any) -> bool:
    if not isinstance(value, (str, os.PathLike)):
        return False
    try:
        name = os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return name != b"" and b"\0" not in name


def _are_all(value: Any, accepts: Callable[[Any], bool]) -> bool:
    """Return whether a value is a collection of accepted values."""
    is_one_value = isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable)
    return not is_one_value and all(map(accepts, value))


_TYPES = {
    "str": _Type("text", lambda value: isinstance(value, str)),
    "bool": _Type("True or False", lambda value: isinstance(value, bool)),
    "int": _Type("an integer", _is_integer),
    "float": _Type("a number", _is_number),
    "Path": _Type("a path", _is_path),
    "Paths": _Type("a path or a list of paths", lambda value: _is_path(value) or _are_all(value, _is_path)),
    "Names": _Type(
        "a name or a list of names",
        lambda value: isinstance(value, str) or _are_all(value, lambda item: isinstance(item, str)),
    ),
    "Options": _Type(
        'a question, such as Train("resnet50", gpu=["t4", "l4"])', lambda value: has_class(value, "Options")
    ),
}
"""Types by their names in annotations."""

_CLASSES = ("Calibration", "Device", "EvidenceCalibration", "Measurement", "Network")
"""Classes whose objects functions take as well."""


def has_class(value: object, name: str) -> bool:
    """Return whether a value is an object of the class with a name, or of one derived from it."""
    return any(base.__name__ == name for base in type(value).__mro__)


def quote_value(value: object) -> str:
    """Return a value as a message shows it: its code in Python, or the number of digits of a very long integer."""
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return f"an integer of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"
    try:
        return truncate(repr(value), _QUOTED_AT_MOST)
    except ValueError:  # a collection with an integer that is too long to be printed
        return f"a {type(value).__name__}"


def as_plain(value: Any) -> Any:
    """Return an array or an iterator as a list, and a number of NumPy, a Decimal or a Fraction as a number of Python.

    Any other value is returned unchanged.
    """
    if isinstance(value, Iterator):
        return list(map(as_plain, value))
    if type(value) in (list, tuple):
        return type(value)(map(as_plain, value))
    if callable(getattr(value, "tolist", None)) and not isinstance(value, type):
        return value.tolist()
    is_other_number = isinstance(value, numbers.Number) and not isinstance(value, (int, float, complex))
    return _as_built_in(value) if is_other_number else value


def _as_built_in(value: Any) -> Any:
    """Return a number as an integer where it is one, else as a float; unchanged if it is neither."""
    try:
        return int(value) if value == int(value) else float(value)
    except (TypeError, ValueError, OverflowError):  # of NaN, infinities and complex numbers
        return value


def as_whole(value: Any) -> Any:
    """Return a float without decimals as an integer, and any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_argument(name: str, annotation: str, value: object) -> None:
    """Raise BadValue if a value is of none of the types of an annotation that is understood."""
    alternatives = [text for text in _split(annotation) if text != "None"]
    if "Path" in alternatives:
        alternatives = [text for text in alternatives if text != "str"]  # a text is a path
    types = [_find_type(text) for text in alternatives]
    if (value is None and "None" in _split(annotation)) or not all(types):
        return
    possible = [kind for kind in types if kind is not None]
    if any(kind.accepts(value) for kind in possible):
        return
    words = " or ".join(kind.words for kind in possible)
    raise BadValue(f"`{name}` must be {words} (got {quote_value(value)})")


def check_arguments(function: F) -> F:
    """Return a public function that first compares its arguments with their annotations."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                plain = as_plain(value)
                is_whole = "int" in _split(parameter.annotation) and "float" not in _split(parameter.annotation)
                bound.arguments[name] = as_whole(plain) if is_whole else plain
                check_argument(name, parameter.annotation, bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return cast("F", checked)


@functools.cache
def _split(annotation: str) -> list[str]:
    """Return the alternatives of an annotation: ``str | Sequence[int | str]`` has two."""
    return [text.strip() for text in re.split(r"\|(?![^\[]*\])", annotation)]


@functools.cache
def _find_type(text: str) -> _Type | None:
    """Return the type with a name in an annotation; None for one that is not compared, such as ``Any``."""
    if text in _TYPES:
        return _TYPES[text]
    several = re.fullmatch(r"Sequence\[(.+)\]", text)
    if several:
        return _find_list_type(several[1])
    if text.startswith("Mapping["):
        return _Type("a dictionary", lambda value: isinstance(value, Mapping))
    if text in _CLASSES:
        return _Type(with_article(text), lambda value: has_class(value, text))
    return None


def _find_list_type(item_annotation: str) -> _Type | None:
    """Return the type of a list whose items have an annotation; None if an item is not compared."""
    names = [name for name in _split(item_annotation) if name != "None"]
    items = [_find_type(name) for name in names]
    if not all(items):
        return None
    possible = [kind for kind in items if kind is not None]
    plurals = {"str": "texts", "Path": "paths", "int": "integers", "float": "numbers"}
    listed = [plurals.get(name, f"{name} objects") for name in names if not (name == "str" and "Path" in names)]

    def is_item(value: Any) -> bool:
        return any(kind.accepts(value) for kind in possible)

    return _Type(f"a list of {' or '.join(listed)}", lambda value: _are_all(value, is_item))

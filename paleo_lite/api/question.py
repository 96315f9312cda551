"""Questions: what a function of the Python face may be asked is one struct, with its defaults and what it refuses.

The command of the same name makes the question from its options, `paleo_lite.plot` and the page from theirs.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
from msgspec import NODEFAULT

from ..machines import Device

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, or several."""

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")


def asked(question: Callable[P, Q], answer: Callable[[Q], R]) -> Callable[P, R]:
    """Make a function of a question one that takes its fields: ``help`` and type checkers see them.

    Parameters
    ----------
    question : class
        The struct of the question; what its fields mean is said where it is asked, in the function's docstring.
    answer : callable
        The function, decorated ``@partial(asked, Struct)``.
    """
    kind: Any = question
    fields, positional = kind.__struct_fields__, kind.__match_args__
    defaults = dict(zip(reversed(fields), reversed(kind.__struct_defaults__)))
    types = ChainMap(*(vars(base).get("__annotations__", {}) for base in kind.__mro__))  # text: not all are imported
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if name in positional else inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if (said := defaults.get(name, NODEFAULT)) is NODEFAULT else said,
            annotation=types[name],
        )
        for name in fields
    ]
    signature = inspect.Signature(parameters, return_annotation=answer.__annotations__["return"])

    @functools.wraps(answer)
    def ask(*words: P.args, **named: P.kwargs) -> R:
        try:
            made = question(*words, **named)
        except TypeError:
            refuse_unknown(answer.__name__, named, signature.parameters)
            try:
                signature.bind(*words, **named)
            except TypeError as error:
                raise TypeError(f"{answer.__name__}() cannot be asked so: {error}") from None
            raise
        return answer(made)

    ask.__signature__ = signature  # type: ignore[attr-defined]
    return ask


def refuse_unknown(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that a function does not have.

    Raises
    ------
    TypeError
        Which argument is unknown, and which is meant.
    """
    known = list(known)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            rest = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
            raise TypeError(f"{function}() has no argument {name!r}: {rest}")


def option(name: str) -> str:
    """The option of an argument."""
    odd = {"inputs": "--input", "hardware_files": "--hardware-file", "training": "--optimizer",
           "overlap": "--no-overlap", "bucket_bytes": "--bucket-size"}  # fmt: skip
    return odd.get(name, f"--{name.replace('_', '-')}")


def paths_of(paths: Paths) -> list[Path]:
    """The paths that are meant."""
    return [Path(paths)] if isinstance(paths, (str, os.PathLike)) else [Path(path) for path in paths]


class OnDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A question about a device."""

    gpu: str | Device
    precision: str = "fp32"
    hardware_files: Paths = ()

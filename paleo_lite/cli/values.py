"""What the values of options may be: names of the package's lists, numbers, quantities, shapes, several of one kind."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..errors import BadValue, UnknownName
from ..files import is_there
from ..units import parse_quantity, parse_shape


class Names(click.Choice):  # type: ignore[type-arg]
    """One of the names in lists of the package: they are read when a name is given or explained, not at the start.

    Parameters
    ----------
    what : str
        What a name is called in a sentence: ``"time model"``.
    places : str
        ``"module:LIST"``, the module relative to the package; or a function that gives the list.
    """

    case_sensitive = True

    def __init__(self, what: str, *places: str) -> None:
        self.what, self.places = what, places

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names, in the order of their lists."""
        every_name: dict[str, None] = {}
        for where in self.places:
            module, _, name = where.partition(":")
            names = getattr(importlib.import_module(module, "paleo_lite"), name)
            every_name.update(dict.fromkeys(names() if callable(names) else names))
        return tuple(every_name)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if param is not None and text == param.default:  # of the lists by construction: a cold start reads none
            return text
        if text not in self.choices:
            raise UnknownName(self.what, text, self.choices)
        return text


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number of 1 or more, and of no more than `most`."""

    name = "number"

    def __init__(self, most: int | None = None) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_AT_MOST else 0
        if not 1 <= number <= (self.most or number):
            right = "of 1 or more" if self.most is None else f"from 1 to {self.most:,}"
            raise BadValue(f"{_called(param)} must be a whole number {right}, not {_quoted(text)}")
        return number


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number above 0; or between two bounds, which it may reach."""

    name = "number"

    def __init__(self, least: float | None = None, most: float | None = None, like: str = "") -> None:
        self.least, self.most, self.like = least, most, like

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if self.least is not None and self.most is not None:
            fine, right = self.least <= number <= self.most, f"from {self.least:g} to {self.most:,.0f}"
        else:
            fine, right = 0 < number < float("inf"), "above 0"
        if not fine:
            example = f", such as {self.like}" if self.like else ""
            raise BadValue(f"{_called(param)} must be a number {right}{example}, not {_quoted(str(value))}")
        return number


class Several(click.ParamType):  # type: ignore[type-arg]
    """One value, or several with commas between them: a list then. A file whose name has commas is one value."""

    def __init__(self, one: Any = click.STRING) -> None:
        self.one, self.name = one, one.name

    def get_metavar(self, *where: Any, **named: Any) -> str | None:
        """That of one value."""
        metavar: str | None = self.one.get_metavar(*where, **named)
        return metavar and f"{metavar}[,...]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """That of one value."""
        completions: list[CompletionItem] = self.one.shell_complete(ctx, param, incomplete)
        return completions

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        if isinstance(self.one, Whole) and re.search("[,:]", text):
            from ..ranges import parse_range

            words: list[Any] = list(map(str, parse_range(text, _called(param))))
        else:
            words = [text] if is_there(text, Path.exists) else [word.strip() for word in text.split(",")]
        values = list(dict.fromkeys(self.one.convert(word, param, ctx) for word in words))
        return values if len(values) > 1 else values[0]


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """A quantity above 0 in a unit, such as 110k or 25 MiB."""

    name = "quantity"

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = parse_quantity(value, self.unit)
        if not 0 < number < float("inf"):
            raise BadValue(f"{_called(param)} must be above 0, not {_quoted(str(value))}")
        return number


class Shape(click.ParamType):  # type: ignore[type-arg]
    """A shape such as 3x224x224."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        return value if isinstance(value, tuple) else parse_shape(value)


class Top(click.ParamType):  # type: ignore[type-arg]
    """How many rows: a whole number, or None for all."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        text = str(value)
        if text == "all":
            return None
        if not text.isdecimal():
            raise BadValue(f"{_called(param)} takes a whole number or 'all', not {text!r}")
        return int(text)


_DIGITS_AT_MOST = 4000  # Python refuses to read longer numbers


def _called(param: click.Parameter | None) -> str:
    """How a sentence calls a parameter; outside a command line there is none."""
    if param is None:
        return "it"
    return param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"-?\d[\d.,]{0,20}", text) else repr(text)


class ModuleInput(click.ParamType):  # type: ignore[type-arg]
    """What a module is called with, such as 3x224x224, int64:128 or input_ids=int64:128."""

    name = "input"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ..networks.inputs import read_input

        return read_input(value)


WHOLE, SHARE, SHAPE = Whole(), Number(like="0.62"), Shape()

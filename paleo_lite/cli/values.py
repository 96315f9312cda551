"""What the values of options and arguments may be, and what a shell offers for them as far as they are typed.

Names of the package's lists, numbers, quantities, shapes, several of one kind, files that are read at once.
"""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem

from ..errors import BadFile, BadValue, PaleoError, UnknownName
from ..files import is_there, shipped
from ..units import parse_quantity, parse_range, parse_shape

_DIGITS_AT_MOST = 4000  # Python refuses to read longer numbers
_LAST_NAME = re.compile(r"[\w.:/+-]*$")


class Value(click.ParamType):  # type: ignore[type-arg]
    """What an option takes: a kind of values is a class, and its `fields` are what differs between options."""

    name = "text"
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *given: Any, **named: Any) -> None:
        vars(self).update(zip(self.fields, given), **named)


class Names(Value, click.Choice):  # type: ignore[type-arg]
    """One of the names in lists of the package: they are read when a name is given or explained, not at the start.

    Attributes
    ----------
    what : str
        What a name is called in a sentence: ``"time model"``.
    places : str
        ``"module:LIST"``, the module relative to the package; or a function that gives the list; several with blanks.
    """

    name = "choice"
    fields = ("what", "places")
    what: str
    places: str
    case_sensitive = True

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if param is not None and text == param.default:  # of the lists by construction: a cold start reads none
            return text
        if text not in self.choices:
            raise UnknownName(self.what, text, self.choices)
        return text

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names, in the order of their lists."""
        every_name: dict[str, None] = {}
        for where in self.places.split():
            names = resolve_name(f"paleo_lite{where}")
            every_name.update(dict.fromkeys(names() if callable(names) else names))
        return tuple(every_name)


class Whole(Value):
    """A whole number of 1 or more, and of no more than `most`."""

    name = "number"
    fields = ("most",)
    most: int | None = None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_AT_MOST else 0
        if not 1 <= number <= (self.most or number):
            right = "of 1 or more" if self.most is None else f"from 1 to {self.most:,}"
            raise BadValue(f"{_called(param)} must be a whole number {right}, not {_quoted(text)}")
        return number


class Number(Value):
    """A number above 0; or between two bounds, which it may reach; it is `like` the example of a sentence."""

    name = "number"
    fields = ("least", "most")
    least: float | None = None
    most: float | None = None
    like = ""

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


class Several(Value):
    """One value, or several with commas between them: a list then. A file whose name has commas is one value."""

    fields = ("one",)
    one: Any = click.STRING

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of one value."""
        name: str = self.one.name
        return name

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
            words: list[Any] = list(map(str, parse_range(text, _called(param))))
        else:
            words = (
                [text] if "," in text and is_there(text, Path.exists) else [word.strip() for word in text.split(",")]
            )
        values = list(dict.fromkeys(self.one.convert(word, param, ctx) for word in words))
        return values if len(values) > 1 else values[0]


class Quantity(Value):
    """A quantity above 0 in a unit, such as 110k or 25 MiB."""

    name = "quantity"
    fields = ("unit",)
    unit: str

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = parse_quantity(value, self.unit)
        if not 0 < number < float("inf"):
            raise BadValue(f"{_called(param)} must be above 0, not {_quoted(str(value))}")
        return number


class Decompressed(Quantity):
    """How large a file may be once it is decompressed: of all processes, also those that read files for this one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from ..profiles.detect import allow

        most = super().convert(value, param, ctx)
        allow(most)
        return most


class Shape(Value):
    """A shape such as 3x224x224."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        return value if isinstance(value, tuple) else parse_shape(value)


class Top(Value):
    """How many rows: a whole number, or None for all."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        text = str(value)
        if text == "all":
            return None
        if not text.isdecimal():
            raise BadValue(f"{_called(param)} takes a whole number or 'all', not {text!r}")
        return int(text)


class ModuleInput(Value):
    """What a module is called with, such as 3x224x224, int64:128 or input_ids=int64:128."""

    name = "input"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ..architectures.inputs import read_input

        return read_input(value)


class Rules(click.Path):
    """A Python file that says how operations are counted, and is run as soon as it is named."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        import runpy

        if ctx is None or not ctx.resilient_parsing:
            try:
                runpy.run_path(str(value))
            except Exception as error:
                raise BadFile(f"{value}: {type(error).__name__}: {error}") from error
        return value


class Offered(Value, click.types.StringParamType):
    """Any text; a shell is offered names of lists as `Names` finds them, of a list or condition the last one.

    Attributes
    ----------
    places : str
        As of `Names`; a function may take what was typed before.
    files : bool
        Whether a file will do, too.
    """

    fields = ("places",)
    places: str
    files = False

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names that begin so, and files."""
        last = _LAST_NAME.search(incomplete)[0]  # type: ignore[index]  # it may be empty, so that it is found
        before = incomplete.removesuffix(last)
        fitting: dict[str, None] = {}
        for place in self.places.split():
            names = resolve_name(f"paleo_lite{place}")
            if callable(names):
                names = names(_typed(ctx)) if inspect.signature(names).parameters else names()
            fitting |= {known: None for known in names if known.startswith(last)}
        items = [CompletionItem(before + name) for name in fitting]
        return [*items, CompletionItem(incomplete, type="file")] if self.files else items


def _typed(ctx: click.Context) -> dict[str, Any]:
    """What was typed before: click leaves arguments aside where the last option waits for its value."""
    typed, words = dict(ctx.params), list(ctx.args)
    for param in ctx.command.params:
        if isinstance(param, click.Argument) and param.name and not typed.get(param.name) and words:
            typed[param.name] = tuple(words) if param.nargs == -1 else words.pop(0)
    return typed


def _called(param: click.Parameter | None) -> str:
    """How a sentence calls a parameter; outside a command line there is none."""
    if param is None:
        return "it"
    return param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"-?\d[\d.,]{0,20}", text) else repr(text)


def device_ids() -> list[str]:
    """Ids of the shipped devices, without reading their files."""
    return sorted(path.stem for path in shipped("hardware").glob("*.toml") if path.stem != "links")


def link_names() -> list[str]:
    """Links by name."""
    from ..machines import read_links

    return list(read_links().link)


def layer_names(typed: dict[str, Any]) -> list[str]:
    """Layers of the networks that were typed before."""
    from ..architectures import find_network

    networks = typed.get("networks") or [typed.get("network")]
    try:
        return [
            layer.name for network in networks if isinstance(network, str) for layer in find_network(network).layers
        ]
    except PaleoError:  # not typed to the end, or wrong: there is nothing to offer yet
        return []


def column_names(typed: dict[str, Any]) -> list[str]:
    """Columns of the sweep's file that was typed before."""
    from ..sweeps.best import columns_of

    try:
        return list(columns_of(Path(typed["file"]))) if typed.get("file") else []
    except PaleoError:
        return []


def configuration_names(typed: dict[str, Any]) -> list[str]:
    """Columns that the names of the profiles tell which were typed before."""
    from ..profiles.detect import parse_name

    try:
        paths = [Path(path) for path in typed.get("paths") or ()]
        inside = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
        return list(parse_name(inside[0].name, typed.get("name_pattern"))) if inside else []
    except (PaleoError, OSError):
        return []


WHOLE, SHARE, SHAPE = Whole(), Number(like="0.62"), Shape()
NETWORK = Offered(".architectures:network_names", files=True)
DEVICE = Offered(".cli.values:device_ids")
LINK = Offered(".cli.values:link_names")
LAYER = Offered(".cli.values:layer_names")
COLUMN = Offered(".cli.values:column_names")
CALIBRATION = Offered(".calibration.store:shipped_calibrations", files=True)
PLATFORM = Offered(".distributed.platforms:platform_names .distributed.platforms:computer_names", files=True)
TOPOLOGY = Offered(".cli.values:device_ids .cli.values:link_names", files=True)

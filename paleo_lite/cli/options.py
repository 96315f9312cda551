"""Options that several commands have besides those of their records: output, counting rules, limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..errors import BadFile, BadValue
from ..questions.completion import NETWORK
from ..questions.names import parameter_name
from ..questions.option import OutputOption
from ..questions.values import Quantity

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SharedOption:
    """An option that several commands have; called, it returns the decorator that adds it to a command.

    The settings are those of `click.option`, and a command may replace them.
    """

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings

    def __call__(self, **changes: Any) -> Decorator:
        """Return the decorator that adds the option."""
        return click.option(*self.names, **{**self.settings, **changes})

    def option(self) -> click.Option:
        """Return the option itself."""
        settings = dict(self.settings)
        option_class: type[click.Option] = settings.pop("cls", click.Option)
        return option_class(list(self.names), **settings)


def network(required: bool = True, type: Any = NETWORK) -> Decorator:
    """Return the decorator that adds the argument NETWORK."""
    return click.argument("network", required=required, type=type)


class DecompressedSize(Quantity):
    """Maximum size of a decompressed file, for this process and its worker processes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Set the limit and return it."""
        from ..profiles.detect import set_decompression_limit

        limit = super().convert(value, param, ctx)
        set_decompression_limit(limit)
        return limit


class RowCount(click.ParamType):  # type: ignore[type-arg]
    """A number of rows, or ``all``, which is converted to None."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number of rows; None for all."""
        text = str(value)
        if text == "all":
            return None
        if not text.isdecimal():
            raise BadValue(f"{parameter_name(param)} must be an integer >= 0 or 'all' (got {text!r})")
        return int(text)


class RulesFile(click.Path):
    """A Python file that registers counting rules; it is executed when the option is parsed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Execute the file and return its path."""
        import runpy

        if ctx is None or not ctx.resilient_parsing:
            path = Path(value).absolute()
            try:
                runpy.run_path(str(path))
            except Exception as error:
                if isinstance(error, OSError) and error.filename == str(path):
                    raise BadFile(f"{value}: cannot be read ({error.strerror})") from None
                raise BadFile(f"{value}: {type(error).__name__}: {error}") from error
        return value


rules = SharedOption(
    "--rules",
    metavar="FILE",
    type=RulesFile(),
    multiple=True,
    expose_value=False,
    is_eager=True,
    help="A Python file that registers counting rules with paleo_lite.rule; it is executed.",
)
decompressed = SharedOption(
    "--decompressed",
    metavar="SIZE",
    type=DecompressedSize("B"),
    expose_value=False,
    help="Maximum decompressed size of a gzip file, such as 20GB. [default: 64 times its size]",
)
top = SharedOption(
    "--top",
    type=RowCount(),
    default="20",
    show_default=True,
    metavar="N|all",
    cls=OutputOption,
    help="Number of rows of a table to list.",
)
output = SharedOption("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), cls=OutputOption)
# Parsed before the file names that it applies to.
force = SharedOption("--force", is_flag=True, is_eager=True, cls=OutputOption, help="Replace existing files.")

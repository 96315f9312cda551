"""Options that several commands have besides those of their records: output, counting rules, limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..questions.completion import NETWORK
from ..questions.option import OutputOption
from .values import DecompressedSize, RowCount, RulesFile

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

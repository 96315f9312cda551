"""What the commands share: the output option, numbers with one clear sentence, completion of names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..errors import BadValue
from ..report.sheet import Page, show_page
from ..units import parse_shape
from . import set_debug

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("table", "json", "csv", "markdown")


def output_options(command: Command) -> Command:
    """``--format`` and ``--debug``, which every command takes."""
    command = click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")(
        command
    )
    return click.option(
        "--format", "style", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print."
    )(command)


def network_options(command: Command) -> Command:
    """The network argument and what goes with it."""
    command = click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="SHAPE",
        help="Shape of one sample for package.module:factory, such as 3x224x224; once per input. It runs that module's "
        "code: name only what you would run.",
    )(command)
    return click.option(
        "--image-size",
        type=WHOLE,
        metavar="PIXELS",
        help="Another image size than the network's own (needs torch once).",
    )(command)


hardware_files = click.option(
    "--hardware-file",
    "hardware_files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML with a further device; may be given several times.",
)


class _Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number above 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if not text.isdecimal() or int(text) < 1:
            self.fail(f"{value!r} is not a whole number of 1 or more.", param, ctx)
        return int(text)


class _Share(click.ParamType):  # type: ignore[type-arg]
    """A number above 0, which may exceed 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not 0 < number < float("inf"):
            self.fail(f"{value!r} is not a number above 0 (a share of peak, such as 0.62).", param, ctx)
        return number


WHOLE = _Whole()
SHARE = _Share()


def parse_inputs(inputs: tuple[str, ...]) -> list[tuple[int, ...]]:
    """The shapes given by ``--input``."""
    return [parse_shape(text) for text in inputs]


def complete_networks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of shipped networks."""
    from ..networks import network_names

    return [CompletionItem(name) for name in network_names() if name.startswith(incomplete)]


def complete_devices(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of shipped devices, without reading the files."""
    from ..files import shipped

    names = sorted(path.stem for path in shipped("hardware").glob("*.toml") if path.stem != "links")
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def show(style: str, to_dict: Callable[[], Any], page: Callable[[], Page]) -> None:
    """Print a result in the chosen format on standard output; ``none`` prints nothing: only its chart is wanted."""
    if style == "none":
        return
    if style == "json":
        import json

        click.echo(json.dumps(to_dict(), indent=2, allow_nan=False))
    else:
        show_page(page(), style, sys.stdout)


__all__ = [
    "SHARE",
    "WHOLE",
    "BadValue",
    "complete_devices",
    "complete_networks",
    "hardware_files",
    "network_options",
    "output_options",
    "parse_inputs",
    "show",
]

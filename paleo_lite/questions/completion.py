"""Shell completion: the names that complete a text on the command line, and the types of options that hold one.

Lists of names are named as in `paleo_lite.questions.names`, and imported when needed.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import PaleoError
from ..files import shipped_folder
from .names import import_object

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_LAST_NAME = re.compile(r"[\w.:/+-]*$")  # the incomplete name at the end of a text


class CompletedText(click.types.StringParamType):
    """Any text, with shell completion of the last name in it, and of file names if it may name files.

    The sources are lists of names as for `Names`. A function may take the parameters that were already typed, as a
    dict.
    """

    def __init__(self, *sources: str, files: bool = False) -> None:
        self.sources = sources
        self.files = files

    def first_names(self) -> list[str]:
        """Return the names of the first list."""
        names = import_object(self.sources[0])
        return list(names() if callable(names) else names)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return completions of the last name in the text, and an item that lets the shell complete file names."""
        match = _LAST_NAME.search(incomplete)
        last = match[0] if match else ""
        before = incomplete.removesuffix(last)
        matching: dict[str, None] = {}
        for source in self.sources:
            names = import_object(source)
            if callable(names):
                takes_parameters = bool(inspect.signature(names).parameters)
                names = names(_typed_parameters(ctx)) if takes_parameters else names()
            matching.update(dict.fromkeys(name for name in names if name.startswith(last)))
        from click.shell_completion import CompletionItem

        items = [CompletionItem(before + name) for name in matching]
        if self.files:
            items.append(CompletionItem(incomplete, type="file"))
        return items


class PlatformText(CompletedText):
    """The name of a computer, or the text of a topology, which has commas."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return completions of the name of a computer, or of a device or link of a topology."""
        if " " in incomplete:
            return CompletedText(".questions.completion:device_ids", ".questions.completion:link_names").shell_complete(
                ctx, param, incomplete
            )
        return super().shell_complete(ctx, param, incomplete)


def _typed_parameters(ctx: click.Context) -> dict[str, Any]:
    """Return the parameters that were already typed.

    While an option without its value is being completed, click does not assign arguments to their parameters, so this
    function does.
    """
    typed = dict(ctx.params)
    unassigned = list(ctx.args)
    for param in ctx.command.params:
        if isinstance(param, click.Argument) and param.name and not typed.get(param.name) and unassigned:
            if param.nargs == -1:
                typed[param.name] = tuple(unassigned)
            else:
                typed[param.name] = unassigned.pop(0)
    return typed


def device_ids() -> list[str]:
    """Return the ids of the shipped devices, without reading their files."""
    return sorted(path.stem for path in shipped_folder("hardware").glob("*.toml") if path.stem != "links")


def link_names() -> list[str]:
    """Return the names of the links."""
    from ..machines import read_links

    return list(read_links().link)


def layer_names(typed: dict[str, Any]) -> list[str]:
    """Return the layers of the networks on the command line."""
    from ..architectures import find_network

    networks = typed.get("networks") or [typed.get("network")]
    names: list[str] = []
    for network in networks:
        if not isinstance(network, str):
            continue
        try:
            names += [layer.name for layer in find_network(network).layers]
        except PaleoError:  # the network is incomplete or invalid: there is nothing to complete
            return []
    return names


def column_names(typed: dict[str, Any]) -> list[str]:
    """Return the columns of the sweep's file on the command line."""
    from ..sweeps.best import read_columns

    if not typed.get("file"):
        return []
    try:
        return list(read_columns(Path(typed["file"])))
    except PaleoError:
        return []


def configuration_names(typed: dict[str, Any]) -> list[str]:
    """Return the configuration columns in the file name of the first profile on the command line."""
    from ..profiles.detect import parse_name

    files: list[Path] = []
    try:
        for path in (Path(path) for path in typed.get("paths") or ()):
            files += sorted(path.iterdir()) if path.is_dir() else [path]
        if not files:
            return []
        return list(parse_name(files[0].name, typed.get("name_pattern")))
    except (PaleoError, OSError):
        return []


NETWORK = CompletedText(".architectures:network_names", ".architectures.pipelines.records:pipelines", files=True)
DEVICE = CompletedText(".questions.completion:device_ids")
LINK = CompletedText(".questions.completion:link_names")
LAYER = CompletedText(".questions.completion:layer_names")
COLUMN = CompletedText(".questions.completion:column_names")
CALIBRATION = CompletedText(".calibration.store:shipped_calibrations", files=True)
PLATFORM = PlatformText(
    ".distributed.platforms:platform_names",
    ".distributed.platforms:computer_names",
    ".machines.clouds:instance_names",
    files=True,
)

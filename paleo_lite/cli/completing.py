"""What a shell offers: names of networks, devices, links, layers, columns, as far as they are typed."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem


def device_ids() -> list[str]:
    """Ids of the shipped devices, without reading their files."""
    from ..files import shipped

    return sorted(path.stem for path in shipped("hardware").glob("*.toml") if path.stem != "links")


def link_names() -> list[str]:
    """Links by name."""
    from ..hardware import read_links

    return list(read_links().link)


_LAST_NAME = re.compile(r"[\w.:/+-]*$")

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completing(*places: str, files: bool = False) -> Complete:
    """What completes an option from lists of the package, as `Names` finds them; of a list or condition its last name.

    Parameters
    ----------
    *places : str
        ``"module:LIST"``; or a function of the list, which may take what was typed before.
    files : bool
        Whether a file will do, too.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        last = _LAST_NAME.search(incomplete)[0]  # type: ignore[index]  # it may be empty, so that it is found
        before = incomplete.removesuffix(last)
        fitting: dict[str, None] = {}
        for place in places:
            module, _, name = place.partition(":")
            names = getattr(importlib.import_module(module, "paleo_lite"), name)
            if callable(names):
                names = names(_typed(ctx)) if inspect.signature(names).parameters else names()
            fitting |= {known: None for known in names if known.startswith(last)}
        items = [CompletionItem(before + name) for name in fitting]
        return [*items, CompletionItem(incomplete, type="file")] if files else items

    return complete


def _typed(ctx: click.Context) -> dict[str, Any]:
    """What was typed before: click leaves arguments aside where the last option waits for its value."""
    typed, words = dict(ctx.params), list(ctx.args)
    for param in ctx.command.params:
        if isinstance(param, click.Argument) and param.name and not typed.get(param.name) and words:
            typed[param.name] = tuple(words) if param.nargs == -1 else words.pop(0)
    return typed


def layer_names(typed: dict[str, Any]) -> list[str]:
    """Layers of the networks that were typed before."""
    from ..errors import PaleoError
    from ..networks import find_network

    networks = typed.get("networks") or [typed.get("network")]
    try:
        return [
            layer.name for network in networks if isinstance(network, str) for layer in find_network(network).layers
        ]
    except PaleoError:  # not typed to the end, or wrong: there is nothing to offer yet
        return []


def column_names(typed: dict[str, Any]) -> list[str]:
    """Columns of the sweep's file that was typed before."""
    from ..errors import PaleoError
    from ..sweeps.best import columns_of

    try:
        return list(columns_of(Path(typed["file"]))) if typed.get("file") else []
    except PaleoError:
        return []


def configuration_names(typed: dict[str, Any]) -> list[str]:
    """Columns that the names of the profiles tell which were typed before."""
    from ..errors import PaleoError
    from ..profiles.detect import parse_name

    try:
        paths = [Path(path) for path in typed.get("paths") or ()]
        inside = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
        return list(parse_name(inside[0].name, typed.get("name_pattern"))) if inside else []
    except (PaleoError, OSError):
        return []


complete_networks = completing(".networks:network_names", files=True)
complete_devices = completing(".cli.completing:device_ids")
complete_links = completing(".cli.completing:link_names")
complete_platforms = completing(
    ".distributed.platforms:platform_names", ".distributed.platforms:computer_names", files=True
)
complete_calibrations = completing(".calibration.store:shipped_calibrations", files=True)
complete_layers = completing(".cli.completing:layer_names")
complete_columns = completing(".cli.completing:column_names")
complete_topologies = completing(".cli.completing:device_ids", ".cli.completing:link_names", files=True)

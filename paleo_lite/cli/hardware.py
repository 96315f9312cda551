"""``paleo-lite hardware list|show|links|audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api import catalogue
from ..questions.completion import DEVICE
from ..questions.option import OutputOption, parameters_of
from ..questions.records import DeviceOptions
from ..questions.values import Quantity
from ..reporting.document import SCREEN_LINES
from ..result import Result
from .answers import AnswerCommand, CommandResult, Subcommands


def _hardware_files() -> list[click.Parameter]:
    return parameters_of(DeviceOptions, "hardware_files")


@click.group(cls=Subcommands)
def hardware() -> None:
    """List the devices and links, show the figures of a device with their sources, or audit the files."""


@hardware.command("list", cls=AnswerCommand, params=_hardware_files())
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--all", "lists_all", is_flag=True, cls=OutputOption, help="List more devices than a screen holds.")
@click.pass_obj
def list_devices(
    output: dict[str, Any], words: tuple[str, ...], lists_all: bool, hardware_files: tuple[Path, ...]
) -> CommandResult:
    """List the devices in whose id, name or alias each WORD occurs, with their peaks and memory; without one, all.

    \b
      paleo-lite hardware list a100 pcie
    """
    result = catalogue.hardware(hardware_files=hardware_files, words=words)
    max_lines = None if lists_all or output["format"] != "table" else SCREEN_LINES
    return CommandResult(result.to_dict, lambda: result.document(max_lines=max_lines))


@hardware.command("show", cls=AnswerCommand, params=_hardware_files())
@click.argument("device", type=DEVICE)
def show_device(device: str, hardware_files: tuple[Path, ...]) -> Result:
    """Show all figures of DEVICE with their sources."""
    return catalogue.hardware(device, hardware_files=hardware_files)


@hardware.command("links", cls=AnswerCommand)
@click.option(
    "--move",
    type=Quantity("B"),
    metavar="SIZE",
    help="Show the time to transfer this amount of data over each link, such as 1PB.",
)
def list_links(move: float | None) -> Result:
    """List the links between devices, hosts, nodes and storage, and the measured collectives over them.

    \b
      paleo-lite hardware links --move 1PB
    """
    return catalogue.links(move=move)


@hardware.command(cls=AnswerCommand, params=_hardware_files())
def audit(hardware_files: tuple[Path, ...]) -> CommandResult:
    """Check all files: sources, units, peak = cores x clock, bandwidth = bus width x data rate, names.

    Exits with 1 if there is an error; a deviation that the file explains is listed and is not an error.
    """
    result = catalogue.audit(hardware_files=hardware_files)
    has_errors = any(finding["severity"] == "error" for finding in result.data["findings"])
    return CommandResult(result.to_dict, result.document, exit_code=1 if has_errors else 0)

"""``paleo-lite hardware list|show|links|audit``."""

from __future__ import annotations

from pathlib import Path

import click

from ..api import catalogue
from ..questions.values import DEVICE, Quantity
from ..result import Result
from . import options
from .answers import Answer, AnswerCommand


@click.group()
def hardware() -> None:
    """List the devices and links, show the figures of a device with their sources, or audit the files."""


@hardware.command("list", cls=AnswerCommand)
@options.hardware_files()
def list_devices(hardware_files: tuple[Path, ...]) -> Result:
    """List all devices with their peaks and memory."""
    return catalogue.hardware(hardware_files=hardware_files)


@hardware.command("show", cls=AnswerCommand)
@click.argument("device", type=DEVICE)
@options.hardware_files()
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


@hardware.command(cls=AnswerCommand)
@options.hardware_files()
def audit(hardware_files: tuple[Path, ...]) -> Answer:
    """Check all files: sources, units, peak = cores x clock, bandwidth = bus width x data rate, names.

    Exits with 1 if there is an error; a deviation that the file explains is listed and is no error.
    """
    result = catalogue.audit(hardware_files=hardware_files)
    has_errors = any(finding["severity"] == "error" for finding in result.data["findings"])
    return Answer(result.to_dict, result.document, exit_code=1 if has_errors else 0)

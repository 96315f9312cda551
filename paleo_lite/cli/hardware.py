"""``paleo-lite hardware list|show|links|audit``."""

from __future__ import annotations

from pathlib import Path

import click

from ..api import catalogue
from ..result import Result
from . import options
from .options import Answer, AnswerCommand
from .values import DEVICE, Quantity


@click.group()
def hardware() -> None:
    """List the devices and links that predictions know, show one with its sources, or audit the files."""


@hardware.command("list", cls=AnswerCommand)
@options.hardware_files()
def list_all(hardware_files: tuple[Path, ...]) -> Result:
    """List all devices with their peaks and memory."""
    return catalogue.hardware(hardware_files=hardware_files)


@hardware.command("show", cls=AnswerCommand)
@click.argument("device", type=DEVICE)
@options.hardware_files()
def show_device(device: str, hardware_files: tuple[Path, ...]) -> Result:
    """Show all figures of DEVICE, each with its source."""
    return catalogue.hardware(device, hardware_files=hardware_files)


@hardware.command("links", cls=AnswerCommand)
@click.option(
    "--move",
    type=Quantity("B"),
    metavar="SIZE",
    help="Say how long it takes to move this much data over each link, such as 1PB.",
)
def list_links(move: float | None) -> Result:
    """List the links between devices, hosts, nodes and storage, and what was measured of collectives over them.

    \b
      paleo-lite hardware links --move 1PB
    """
    return catalogue.links(move=move)


@hardware.command(cls=AnswerCommand)
@options.hardware_files()
def audit(hardware_files: tuple[Path, ...]) -> Answer:
    """Check every file: sources, units, peaks against cores x clock, bandwidth against bus x rate, names.

    Exits with 1 if anything is wrong; what a file explains is listed and is not an error.
    """
    answer = catalogue.audit(hardware_files=hardware_files)
    wrong = any(finding["severity"] == "error" for finding in answer.data["findings"])
    return Answer(answer.to_dict, answer.document, exit_code=int(wrong))

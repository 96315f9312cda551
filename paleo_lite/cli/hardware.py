"""``paleo-lite hardware list|show|links|audit``."""

from __future__ import annotations

from pathlib import Path

import click

from ..hardware import find_device, list_devices, read_links
from ..report.devices import audit_page, device_dict, device_page, device_row, devices_page, links_page, moving_page
from . import options
from .command import Answer, AnswerCommand
from .options import Quantity


@click.group()
def hardware() -> None:
    """List the devices and links that predictions know, show one with its sources, or audit the files."""


@hardware.command("list", cls=AnswerCommand)
@options.hardware_files()
def list_all(hardware_files: tuple[Path, ...]) -> Answer:
    """List all devices with their peaks and memory."""
    devices = list_devices(hardware_files)
    return Answer(lambda: {"devices": [device_row(device) for device in devices]}, lambda: devices_page(devices))


@hardware.command("show", cls=AnswerCommand)
@click.argument("device", shell_complete=options.complete_devices)
@options.hardware_files()
def show_device(device: str, hardware_files: tuple[Path, ...]) -> Answer:
    """Show all figures of DEVICE, each with its source."""
    found = find_device(device, hardware_files)
    return Answer(lambda: device_dict(found), lambda: device_page(found))


@hardware.command("links", cls=AnswerCommand)
@click.option(
    "--move",
    type=Quantity("B"),
    metavar="SIZE",
    help="Say how long it takes to move this much data over each link, such as 1PB.",
)
def list_links(move: float | None) -> Answer:
    """List the links between devices, hosts, nodes and storage, and what was measured of collectives over them.

    \b
      paleo-lite hardware links --move 1PB
    """
    links = read_links().link
    if move is not None:
        moving = moving_page(links, move)
        return Answer(lambda: {"move_bytes": move, "links": list(moving.tables[0].rows)}, lambda: moving)
    from ..distributed.link_calibration import shipped_link_calibrations
    from ..report.links import add_measured

    page = add_measured(links_page(links), shipped_link_calibrations())
    names = ("links", "measured")
    return Answer(lambda: {name: list(table.rows) for name, table in zip(names, page.tables)}, lambda: page)


@hardware.command(cls=AnswerCommand)
@options.hardware_files()
def audit(hardware_files: tuple[Path, ...]) -> Answer:
    """Check every file: sources, units, peaks against cores x clock, bandwidth against bus x rate, names.

    Exits with 1 if anything is wrong; what a file explains is listed and is not an error.
    """
    from ..hardware.audit import audit_registry

    devices = list_devices(hardware_files)
    findings = audit_registry(devices, read_links())
    page = audit_page(len(devices), findings)
    return Answer(
        lambda: {"devices": len(devices), "findings": [row for table in page.tables for row in table.rows]},
        lambda: page,
        exit_code=int(any(finding.severity == "error" for finding in findings)),
    )

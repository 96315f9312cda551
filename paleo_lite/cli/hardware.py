"""``paleo-lite hardware list|show|links|audit``."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import BadValue
from ..hardware import find_device, list_devices, read_links
from ..report.devices import audit_page, device_dict, device_page, device_row, devices_page, links_page, moving_page
from ..units import parse_quantity
from .common import complete_devices, hardware_files, output_options, show


@click.group()
def hardware() -> None:
    """List the devices and links that predictions know, show one with its sources, or audit the files."""


@hardware.command("list")
@hardware_files
@output_options
def list_all(hardware_files: tuple[Path, ...], style: str) -> None:
    """List all devices with their peaks and memory."""
    devices = list_devices(hardware_files)
    show(style, lambda: {"devices": [device_row(device) for device in devices]}, lambda: devices_page(devices))


@hardware.command("show")
@click.argument("device", shell_complete=complete_devices)
@hardware_files
@output_options
def show_device(device: str, hardware_files: tuple[Path, ...], style: str) -> None:
    """Show all figures of DEVICE, each with its source."""
    found = find_device(device, hardware_files)
    show(style, lambda: device_dict(found), lambda: device_page(found))


@hardware.command("links")
@click.option(
    "--move", metavar="SIZE", help="Say how long it takes to move this much data over each link, such as 1PB."
)
@output_options
def list_links(move: str | None, style: str) -> None:
    """List the links between devices, hosts, nodes and storage, and what was measured of collectives over them.

    \b
      paleo-lite hardware links --move 1PB
    """
    amount = None if move is None else parse_quantity(move, "B")
    if amount is not None and not 0 < amount < float("inf"):
        raise BadValue(f"--move takes an amount above 0, such as 1PB, not {move!r}")
    links = read_links().link
    page = links_page(links) if amount is None else moving_page(links, amount)
    if amount is None:
        from ..distributed.link_calibration import shipped_link_calibrations
        from ..report.links import add_measured

        page = add_measured(page, shipped_link_calibrations())
    names = ("links", "measured")
    moved = {} if amount is None else {"move_bytes": amount}
    show(style, lambda: {**moved, **{name: list(s.rows) for name, s in zip(names, page.sheets)}}, lambda: page)


@hardware.command()
@hardware_files
@output_options
def audit(hardware_files: tuple[Path, ...], style: str) -> None:
    """Check every file: sources, units, peaks against cores x clock, bandwidth against bus x rate, names.

    Exits with 1 if anything is wrong; what a file explains is listed and is not an error.
    """
    from ..hardware.audit import audit_registry

    devices = list_devices(hardware_files)
    findings = audit_registry(devices, read_links())
    page = audit_page(len(devices), findings)
    show(style, lambda: {"devices": len(devices), "findings": list(page.sheets[0].rows)}, lambda: page)
    if any(finding.severity == "error" for finding in findings):
        click.get_current_context().exit(1)

"""What predictions know: `networks`, `export`, `hardware`, `devices`, `links`, `audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..architectures import (
    Network,
    find_network,
    is_network_file,
    network_names,
    read_network_file,
    trace_factory,
    trace_named,
    write_descriptor,
)
from ..architectures.catalog import network_rows
from ..errors import BadValue
from ..files import check_new
from ..machines import Device, find_device, list_devices, read_links
from ..reporting.devices import audit_page, device_dict, device_page, device_row, devices_page, links_page, moving_page
from ..reporting.document import Shown
from ..reporting.networks import network_dict, network_page, networks_page
from ..units import parse_quantity
from .question import Paths, paths_of


def networks(network: str | Network | None = None, *, image_size: int | None = None) -> Shown:
    """List the shipped networks with image size, parameters and MACs, or show the layers of one.

    Parameters
    ----------
    network : str or Network, optional
        As for `paleo_lite.predict`.
    image_size : int, optional
        Another image size than the network's own; needs torch once.

    Raises
    ------
    PaleoError
        If there is no such network.
    """
    if network is None:
        rows = network_rows(network_names())
        return Shown({"networks": rows}, networks_page(rows))
    shown = find_network(network, image_size) if isinstance(network, str) else network
    return Shown(network_dict(shown), network_page(shown))


def export(
    network: str | Network,
    output: str | Path,
    *,
    image_size: int | None = None,
    inputs: Sequence[str | Sequence[int]] = (),
    force: bool = False,
) -> Shown:
    """Write the descriptor of a network: traced with torch, or read from a file.

    Parameters
    ----------
    network : str or Network
        A torchvision classification model, ``googlenet-caffe``, ``resnet50-caffe``, ``package.module:factory`` (which
        is imported and called), a Caffe prototxt, a JSON network file of PALEO's, or a traced network.
    output : path
        The JSON to write; `force` replaces one that is there.
    image_size : int, optional
        Another image size than the network's own.
    inputs : sequence of shapes
        For a factory: the shape of one sample per input, without the batch dimension.

    Returns
    -------
    Shown
        What was written, as `networks` shows it.

    Raises
    ------
    PaleoError
        One of its classes.
    """
    path = Path(output)
    check_new(path, force=force)
    if isinstance(network, Network):
        exported = network
    elif is_network_file(network):
        if inputs:
            raise BadValue("--input is for package.module:factory; a file says its own, and takes --image-size")
        exported = read_network_file(Path(network), image_size)
    elif ":" in network:
        exported = trace_factory(network, inputs, image_size)
    else:
        exported = trace_named(network, image_size)
    write_descriptor(exported, path)
    return Shown(network_dict(exported), network_page(exported))


def hardware(device: str | Device | None = None, *, hardware_files: Paths = ()) -> Shown:
    """List all devices with their peaks and memory, or show all figures of one, each with its source.

    Parameters
    ----------
    device : str or Device, optional
    hardware_files : path, or sequence of paths
        Further hardware TOMLs.

    Raises
    ------
    PaleoError
        If there is no such device, or a file is malformed.
    """
    further = paths_of(hardware_files)
    if device is None:
        devices = list_devices(further)
        return Shown({"devices": [device_row(listed) for listed in devices]}, devices_page(devices))
    shown = find_device(device, further)
    return Shown(device_dict(shown), device_page(shown))


def devices(hardware_files: Sequence[str | Path] = ()) -> list[Device]:
    """All devices that predictions know, by id."""
    return list_devices([Path(file) for file in hardware_files])


def links(*, move: float | str | None = None) -> Shown:
    """List the links between devices, hosts, nodes and storage, and what was measured of collectives over them.

    Parameters
    ----------
    move : float or str, optional
        Say instead how long it takes to move this much data over each link: bytes, or ``"1PB"``.
    """
    known = read_links().link
    if move is not None:
        size = parse_quantity(move, "B")
        moving = moving_page(known, size)
        return Shown({"move_bytes": size, "links": list(moving.tables[0].rows)}, moving)
    from ..distributed.links import shipped_link_calibrations
    from ..reporting.devices import calibrated_links_table

    listed = links_page(known)
    page = listed.but(content=[*listed.tables, calibrated_links_table(shipped_link_calibrations())])
    return Shown({name: list(table.rows) for name, table in zip(("links", "measured"), page.tables)}, page)


def audit(*, hardware_files: Paths = ()) -> Shown:
    """Check every hardware file: sources, units, peaks against cores x clock, bandwidth against bus x rate, names.

    Returns
    -------
    Shown
        Its ``findings`` say their ``severity``; what a file explains is listed and is not an error.
    """
    from ..machines.audit import audit_registry

    devices = list_devices([Path(path) for path in paths_of(hardware_files)])
    page = audit_page(len(devices), audit_registry(devices, read_links()))
    return Shown({"devices": len(devices), "findings": [row for table in page.tables for row in table.rows]}, page)

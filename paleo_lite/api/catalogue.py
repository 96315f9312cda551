"""`networks`, `network_names`, `export`, `hardware`, `devices`, `links` and `audit`: the shipped data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..architectures import (
    Network,
    find_network,
    is_network_file,
    path_of_network,
    read_network_file,
    trace_factory,
    trace_named,
    write_descriptor,
)
from ..architectures import network_names as shipped_network_names
from ..architectures.catalog import is_factory
from ..architectures.inputs import InputShapes
from ..architectures.listing import network_rows, pipeline_rows
from ..arguments import check_arguments
from ..errors import BadFile, BadValue, UnknownName
from ..files import Paths, check_outputs, to_paths
from ..machines import Device, find_device, list_devices, read_links
from ..reporting.columns import select_columns
from ..reporting.devices import (
    audit_page,
    calibrated_links_table,
    device_dict,
    device_page,
    devices_page,
    links_page,
    transfer_page,
)
from ..reporting.document import Document, StaticResult, Table
from ..reporting.networks import network_dict, network_page, networks_page
from ..result import ResultList
from ..text import normalize_name
from ..units import check_positive, parse_quantity

_Item = TypeVar("_Item")


class LinkList(ResultList[dict[str, Any]]):
    """The links, one row each, and the measured collectives."""

    def to_dict(self) -> dict[str, Any]:
        """Return the rows of the links and of the measured collectives."""
        links_table, measured_table = self.document().tables
        return {"links": list(links_table.rows), "measured": list(measured_table.rows)}


@check_arguments
def networks(
    network: str | Network | None = None, *, image_size: int | None = None, words: str | Sequence[str] = ()
) -> ResultList[dict[str, Any]] | StaticResult:
    """List the shipped networks and pipelines with input, parameters and MACs, or show the layers of one network.

    Parameters
    ----------
    network : str or Network, optional
        As for `paleo_lite.predict`.
    image_size : int, optional
        Image size in pixels, if it differs from the network's own; needs torch once.
    words : str or sequence of str
        List only the networks in whose name or publisher all these words occur, in any case: ``"qwen3"``.

    Raises
    ------
    PaleoError
        If there is no such network.
    """
    if network is None:
        rows = [*network_rows(shipped_network_names()), *pipeline_rows()]
        rows = _with_words("network", "networks list", words, rows, lambda row: [row["name"], row["publisher"] or ""])
        return ResultList(rows, "networks", networks_page)
    shown = find_network(network, image_size) if isinstance(network, str) else network
    return StaticResult(network_dict(shown), network_page(shown))


def network_names() -> ResultList[str]:
    """List the names of the shipped networks."""
    return ResultList(shipped_network_names(), "networks", _names_page)


def _names_page(names: list[str]) -> Document:
    table = Table("", select_columns("name"), [{"name": name} for name in names])
    return Document(f"{len(names)} networks", (), [table])


@check_arguments
def export(
    network: str | Network,
    output: str | Path,
    *,
    image_size: int | None = None,
    inputs: InputShapes = (),
    force: bool = False,
) -> StaticResult:
    """Write the descriptor of a network that is traced with torch or read from a file.

    Parameters
    ----------
    network : str or Network
        A torchvision classification model, ``googlenet-caffe``, ``resnet50-caffe``, ``package.module:factory`` (which
        is imported and called), a Caffe prototxt, a JSON network file of PALEO, or a traced network.
    output : path
        JSON file of the descriptor; an existing file is replaced only with `force`.
    image_size : int, optional
        Image size in pixels, if it differs from the network's own.
    inputs : sequence of shapes
        For a factory: the shape of one sample for each input, without the batch dimension.

    Returns
    -------
    StaticResult
        The layers of the network, as from `networks`.

    Raises
    ------
    PaleoError
        If the network cannot be traced or read, or the file cannot be written.
    """
    path = Path(output)
    if path.suffix != ".json":
        raise BadValue(f"{path}: the file name of a descriptor must end in .json")
    check_outputs(path, force=force)
    if isinstance(network, Network):
        exported = network
    elif is_network_file(network):
        if inputs:
            raise BadValue("`--input` is for package.module:factory; a file defines its own inputs")
        exported = read_network_file(path_of_network(network), image_size)
    elif is_factory(network):
        exported = trace_factory(network, inputs, image_size)
    else:
        exported = trace_named(network, image_size)
    try:
        write_descriptor(exported, path)
    except OSError as error:
        raise BadFile(f"{path}: cannot be written ({error.strerror})") from None
    return StaticResult(network_dict(exported), network_page(exported))


def _with_words(
    category: str,
    command: str,
    words: str | Sequence[str],
    items: Iterable[_Item],
    names_of: Callable[[_Item], list[str]],
) -> list[_Item]:
    """Return the items of which all words occur in one of the names; raise UnknownName if there is none.

    The first name is the one that a command takes.
    """
    wanted = words.split() if isinstance(words, str) else words
    by_name = {names_of(item)[0]: item for item in items}
    matching = []
    for item in by_name.values():
        names = [name for full in names_of(item) for name in (full.lower(), normalize_name(full))]
        if all(any(word.lower() in name for name in names) for word in wanted):
            matching.append(item)
    if not matching:
        raise UnknownName(category, " ".join(wanted), by_name, f"`{command} --all` shows all.")
    return matching


@check_arguments
def hardware(
    device: str | Device | None = None, *, hardware_files: Paths = (), words: str | Sequence[str] = ()
) -> ResultList[Device] | StaticResult:
    """List all devices with their peaks and memory, or show all figures of one device with their sources.

    Parameters
    ----------
    device : str or Device, optional
        Device, by name or alias.
    hardware_files : path, or sequence of paths
        TOML files of further devices.
    words : str or sequence of str
        List only the devices in whose id, name or alias all these words occur, in any case: ``["a100", "pcie"]``.

    Raises
    ------
    PaleoError
        If there is no such device, or a file is malformed.
    """
    if device is None:
        matching = _with_words(
            "GPU", "hardware list", words, devices(hardware_files), lambda each: [each.id, each.name, *each.aliases]
        )
        return ResultList(matching, "devices", devices_page)
    shown = find_device(device, to_paths(hardware_files))
    return StaticResult(device_dict(shown), device_page(shown))


@check_arguments
def devices(hardware_files: Paths = ()) -> ResultList[Device]:
    """List all devices, ordered by id.

    Parameters
    ----------
    hardware_files : path, or sequence of paths
        TOML files of further devices.
    """
    return ResultList(list_devices(to_paths(hardware_files)), "devices", devices_page)


@check_arguments
def links(*, move: float | str | None = None) -> LinkList | StaticResult:
    """List the links between devices, hosts, nodes and storage, and the measured collectives over them.

    Parameters
    ----------
    move : float or str, optional
        Instead, give the time to transfer this amount of data over each link: bytes, or ``"1PB"``.

    Raises
    ------
    BadValue
        If the amount is not positive.
    """
    registered = read_links().link
    if move is not None:
        size = parse_quantity(move, "B")
        check_positive("`move`", size, repr(move), "an amount of data > 0, such as '1PB'")
        page = transfer_page(registered, size)
        return StaticResult({"move_bytes": size, "links": list(page.tables[0].rows)}, page)
    rows = list(links_page(registered).tables[0].rows)
    return LinkList(rows, "links", _links_document)


def _links_document(rows: list[dict[str, Any]]) -> Document:
    from ..distributed.link_calibrations import shipped_link_calibrations

    registered = read_links().link
    page = links_page({row["id"]: registered[row["id"]] for row in rows})
    measured_table = calibrated_links_table(shipped_link_calibrations())
    return page.replace(content=[*page.tables, measured_table])


@check_arguments
def audit(*, hardware_files: Paths = ()) -> StaticResult:
    """Check all hardware files: sources, units, peak = cores x clock, bandwidth = bus width x data rate, names.

    Parameters
    ----------
    hardware_files : path, or sequence of paths
        TOML files of further devices.

    Returns
    -------
    StaticResult
        Each of its ``findings`` has a ``severity``; a deviation that the file explains is not an error.
    """
    from ..machines.audit import audit_clouds, audit_registry
    from ..machines.clouds import list_clouds

    all_devices = list_devices(to_paths(hardware_files))
    audited = audit_registry(all_devices, read_links())
    audited += audit_clouds(list_clouds(), {device.id: device for device in all_devices})
    page = audit_page(len(all_devices), audited)
    findings = [row for table in page.tables for row in table.rows]
    return StaticResult({"devices": len(all_devices), "findings": findings}, page)

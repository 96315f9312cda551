"""``paleo-lite networks list|show|export``."""

from __future__ import annotations

from pathlib import Path

import click

from ..networks import (
    Network,
    find_network,
    is_network_file,
    network_names,
    read_network_file,
    trace_factory,
    trace_named,
    write_descriptor,
)
from ..networks.listing import network_rows
from ..report.networks import network_dict, network_page, networks_page
from .common import WHOLE, complete_networks, network_options, output_options, parse_inputs, show


@click.group()
def networks() -> None:
    """List the shipped networks, show one, or export a descriptor of your own."""


@networks.command("list")
@output_options
def list_networks(style: str) -> None:
    """List the shipped networks with image size, parameters and MACs."""
    rows = network_rows(network_names())
    show(style, lambda: {"networks": rows}, lambda: networks_page(rows))


@networks.command("show")
@click.argument("network", shell_complete=complete_networks)
@click.option("--image-size", type=WHOLE, metavar="PIXELS", help="Another image size than the network's own.")
@output_options
def show_network(network: str, image_size: int | None, style: str) -> None:
    """Show the layers of NETWORK: kinds, shapes, attributes, parents."""
    found = find_network(network, image_size)
    show(style, lambda: network_dict(found), lambda: network_page(found))


@networks.command("export")
@click.argument("network", shell_complete=complete_networks)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The JSON to write."
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@network_options
@click.option("--debug", is_flag=True, hidden=True, expose_value=False)
def export(network: str, output: Path, force: bool, image_size: int | None, inputs: tuple[str, ...]) -> None:
    """Write the descriptor of NETWORK: traced with torch, or read from a file.

    NETWORK is a torchvision classification model, googlenet-caffe, resnet50-caffe, package.module:factory (which
    is imported and called), a Caffe prototxt, or a JSON network file of PALEO's.
    """
    if output.exists() and not force:
        raise click.UsageError(f"{output} already exists: choose another name, or --force to replace it")
    found: Network
    if is_network_file(network):
        if inputs:
            raise click.UsageError("--input is for package.module:factory; a file says its own, and takes --image-size")
        found = read_network_file(Path(network), image_size)
    elif ":" in network:
        shapes = parse_inputs(inputs)
        if not shapes:
            raise click.UsageError(f"{network} needs the shape of its inputs: --input 3x224x224")
        found = trace_factory(network, shapes)
    else:
        found = trace_named(network, image_size)
    write_descriptor(found, output)
    click.echo(f"{output}: {len(found.layers)} layers, {found.parameters:,} parameters")

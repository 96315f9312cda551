"""``paleo-lite networks list|show|export``."""

from __future__ import annotations

from pathlib import Path

import click

from ..api import catalogue
from ..result import Result
from . import options
from .answers import AnswerCommand


@click.group()
def networks() -> None:
    """List the shipped networks, show the layers of one, or export a descriptor."""


@networks.command("list", cls=AnswerCommand)
def list_networks() -> Result:
    """List the shipped networks and pipelines by publisher and year, with input, parameters and MACs."""
    return catalogue.networks()


@networks.command("show", cls=AnswerCommand)
@options.network()
@options.image_size()
def show_network(network: str, image_size: int | None) -> Result:
    """Show the layers of NETWORK: kinds, shapes, attributes, parents."""
    return catalogue.networks(network, image_size=image_size)


@networks.command("export")
@options.network()
@options.output(help="JSON file of the descriptor.", required=True)
@options.force()
@options.image_size()
@options.inputs()
@options.debug()
def export(
    network: str, output: Path, force: bool, image_size: int | None, inputs: tuple[tuple[int, ...], ...]
) -> None:
    """Write the descriptor of NETWORK, traced with torch or read from a file.

    NETWORK is a torchvision classification model, googlenet-caffe, resnet50-caffe, package.module:factory (which is
    imported and called), timm:NAME, hf:FOLDER, ONNX, a program of torch.export, a Caffe prototxt, or a JSON of PALEO.
    """
    exported = catalogue.export(network, output, image_size=image_size, inputs=inputs, force=force).to_dict()
    click.echo(f"{output}: {len(exported['layers'])} layers, {exported['parameters']:,} parameters")

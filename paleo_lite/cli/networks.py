"""``paleo-lite networks list|show|export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api import catalogue
from ..questions.option import OutputOption, parameters_of
from ..questions.records import SizeOptions, SquareSize
from ..reporting.document import SCREEN_LINES
from ..result import Result
from . import DEBUG, options
from .answers import AnswerCommand, CommandResult, Subcommands


@click.group(cls=Subcommands)
def networks() -> None:
    """List the shipped networks, show the layers of one, or export a descriptor."""


@networks.command("list", cls=AnswerCommand)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--all", "lists_all", is_flag=True, cls=OutputOption, help="List more networks than a screen holds.")
@click.pass_obj
def list_networks(output: dict[str, Any], words: tuple[str, ...], lists_all: bool) -> CommandResult:
    """List the shipped networks and pipelines in whose name or publisher each WORD occurs; without one, all.

    They are listed by publisher and year, with input, parameters and MACs.

    \b
      paleo-lite networks list qwen3 32b
    """
    result = catalogue.networks(words=words)
    max_lines = None if lists_all or output["format"] != "table" else SCREEN_LINES
    return CommandResult(result.to_dict, lambda: result.document(max_lines=max_lines))


@networks.command("show", cls=AnswerCommand, params=parameters_of(SquareSize))
@options.network()
def show_network(network: str, image_size: int | None) -> Result:
    """Show the layers of NETWORK: kinds, shapes, attributes, parents."""
    return catalogue.networks(network, image_size=image_size)


@networks.command("export", params=[*parameters_of(SquareSize), *parameters_of(SizeOptions, "inputs"), DEBUG])
@options.network()
@options.output(help="JSON file of the descriptor.", required=True)
@options.force()
def export(
    network: str, output: Path, force: bool, image_size: int | None, inputs: tuple[tuple[int, ...], ...]
) -> None:
    """Write the descriptor of NETWORK, traced with torch or read from a file.

    NETWORK is a torchvision classification model, googlenet-caffe, resnet50-caffe, package.module:factory (which is
    imported and called), timm:NAME, hf:FOLDER, ONNX, a program of torch.export, a Caffe prototxt, or a JSON of PALEO.
    """
    exported = catalogue.export(network, output, image_size=image_size, inputs=inputs, force=force).to_dict()
    click.echo(f"{output}: {len(exported['layers'])} layers, {exported['parameters']:,} parameters")

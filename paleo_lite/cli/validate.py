"""``paleo-lite validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.calibrations import validate as hold_out
from ..questions.completion import DEVICE
from ..questions.names import Names
from ..questions.values import CommaSeparated, flatten
from .answers import CommandResult, command, progress


@command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="A measurements CSV, or a .json file with the output of this command.",
)
@click.option(
    "--split",
    type=Names("split", ".calibration.validate:SPLITS"),
    default="network",
    show_default=True,
    help="Groups that are held out one at a time.",
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    type=CommaSeparated(DEVICE),
    help="Report only these devices, separated by commas.",
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=CommaSeparated(),
    help="Report only these precisions, separated by commas.",
)
def validate(data: Path, split: str, gpus: tuple[Any, ...], precisions: tuple[Any, ...]) -> CommandResult:
    """Cross-validate the time model: hold measurements out, predict them from the others, and report the errors.

    One network, network family, device or source is held out at a time. Simpler models are evaluated on the same folds:
    one PPP per device, the roofline, one PPP per class of work.

    \b
      paleo-lite calibrate --template > measured.csv
      paleo-lite validate --data measured.csv --split network --format json > held_out.json
      paleo-lite plot accuracy --data held_out.json -o accuracy.png
    """
    with progress("holding out, by device") as on_done:
        validation = hold_out(data, split=split, gpus=flatten(gpus), precisions=flatten(precisions), on_done=on_done)
    return CommandResult(validation.to_dict, validation.document, lambda: validation)

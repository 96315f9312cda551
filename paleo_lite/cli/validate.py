"""``paleo-lite validate``."""

from __future__ import annotations

from pathlib import Path

import click

from ..api.calibrations import validate as hold_out
from .options import Answer, command, progress
from .values import DEVICE, Names


@command()
@click.option(
    "--data", type=click.Path(path_type=Path), required=True,
    help="A measurements CSV, or a .json that this command printed.",
)  # fmt: skip
@click.option(
    "--split", type=Names("split", ".calibration.validate:SPLITS"), default="network", show_default=True,
    help="What is held out at a time.",
)  # fmt: skip
@click.option("--gpu", "gpus", multiple=True, type=DEVICE, help="Only this device.")
@click.option("--precision", "precisions", multiple=True, help="Only this precision.")
def validate(data: Path, split: str, gpus: tuple[str, ...], precisions: tuple[str, ...]) -> Answer:
    """Hold measurements out, predict them from the rest, and say how far off that is.

    A network, a family of networks, a device or a source at a time. Beside the calibrated model stand simpler ones on
    the same folds: one PPP per device, the roofline, one PPP per class of work.

    \b
      paleo-lite calibrate --template > measured.csv
      paleo-lite validate --data measured.csv --split network --format json > held_out.json
      paleo-lite plot accuracy --data held_out.json -o accuracy.png
    """
    with progress("holding out, by device") as on_done:
        validation = hold_out(data, split=split, gpus=gpus, precisions=precisions, on_done=on_done)
    return Answer(validation.to_dict, validation.document, lambda: validation)

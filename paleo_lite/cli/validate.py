"""``paleo-lite validate``."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from ..calibration.datasets import published
from ..calibration.measurements import read_measurements
from ..calibration.validate import SPLITS
from ..calibration.validate import validate as hold_out
from ..errors import BadValue
from ..report.calibrations import validation_page
from .common import output_options, show


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path), help="A measurements CSV, or a folder of published measurements."
)
@click.option(
    "--split", type=click.Choice(SPLITS), default="network", show_default=True, help="What is held out at a time."
)
@click.option("--gpu", multiple=True, help="Only this device.")
@click.option("--precision", multiple=True, help="Only this precision.")
@output_options
def validate(data: Path | None, split: str, gpu: tuple[str, ...], precision: tuple[str, ...], style: str) -> None:
    """Hold measurements out, predict them from the rest, and say how far off that is.

    Beside the calibrated model: one PPP per device, the plain roofline, and one PPP per class of work.
    """
    path = data or Path(os.environ.get("PALEO_LITE_DATA", "../shared/data"))
    if path.is_file():
        measurements = read_measurements(path)
    else:
        measurements = published(path / "measured" if (path / "measured").is_dir() else path).measurements
    chosen = [m for m in measurements if (not gpu or m.gpu in gpu) and (not precision or m.precision in precision)]
    if not chosen:
        raise BadValue(f"no measurement of {', '.join((*gpu, *precision))} in {path}")
    rows, points = hold_out(chosen, split)
    show(style, lambda: {"rows": [msgspec.to_builtins(row) for row in rows]}, lambda: validation_page(rows, points))

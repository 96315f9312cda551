"""``paleo-lite validate``."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ..calibration.measurements import read_measurements
from ..calibration.validate import validate as hold_out
from ..errors import BadValue
from ..report.calibrations import validation_page
from .command import Answer, command
from .options import Names


@command()
@click.option("--data", type=click.Path(path_type=Path), required=True, help="A measurements CSV.")
@click.option(
    "--split", type=Names("split", ".calibration.validate:SPLITS"), default="network", show_default=True,
    help="What is held out at a time.",
)  # fmt: skip
@click.option("--gpu", "gpus", multiple=True, help="Only this device.")
@click.option("--precision", "precisions", multiple=True, help="Only this precision.")
def validate(data: Path, split: str, gpus: tuple[str, ...], precisions: tuple[str, ...]) -> Answer:
    """Hold measurements out, predict them from the rest, and say how far off that is.

    A network, a family of networks, a device or a source at a time. Beside the calibrated model stand simpler ones on
    the same folds: one PPP per device, the roofline, one PPP per class of work.

    \b
      paleo-lite calibrate --template > measured.csv
      paleo-lite validate --data measured.csv --split network
    """
    measurements = read_measurements(data)
    if not any((not gpus or m.gpu in gpus) and (not precisions or m.precision in precisions) for m in measurements):
        raise BadValue(f"no measurement of {', '.join((*gpus, *precisions))} in {data}")
    rows, points = hold_out(measurements, split, gpus, precisions)

    def drawn() -> list[object]:
        from ..report.charts.pairs import network_pairs

        title = f"Predicted beside measured: one {split} left out at a time"
        return [network_pairs(points), title, "dashed: a factor of 1.2 to either side"]

    return Answer(
        lambda: {"rows": [msgspec.to_builtins(row) for row in rows]}, lambda: validation_page(rows, points), drawn
    )

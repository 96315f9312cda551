"""``paleo-lite measure``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.measuring import measure as measure_machine
from ..measurement.running import DEVICES, STEPS
from ..questions.names import Names
from ..questions.values import INTEGER, CommaSeparated, flatten
from ..result import Result
from . import options
from .answers import command


@command()
@click.argument("steps", nargs=-1, metavar="[STEP]...")
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Device to measure.")
@click.option(
    "--quick", is_flag=True, help="Measure for less than a minute: fewer networks, inference only, wider intervals."
)
@click.option("--threads", type=INTEGER, help="Number of CPU threads. [default: that of torch]")
@options.precision(type=Names("precision", ".measurement.running:PRECISIONS"))
@click.option(
    "--phase",
    "phases",
    multiple=True,
    type=CommaSeparated(click.Choice(STEPS)),
    help="Phases to time. [default: inference,training]",
)
@click.option("--channels-last", is_flag=True, help="Store images as NHWC.")
@click.option("--compile", "compiled", is_flag=True, help="Run networks through torch.compile.")
@options.gpu(required=False, help="Name of this device, if it is not recognised automatically.")
@options.output(help="CSV file of the measurements.")
@click.option(
    "--calibration-out", type=click.Path(path_type=Path, dir_okay=False), help="TOML file of the calibration."
)
@click.option(
    "--hardware-out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file of this machine with its measured peaks, even if the device is known.",
)
@options.force()
@options.hardware_files()
def measure(phases: tuple[Any, ...], **arguments: Any) -> Result:
    """Calibrate this machine: time operations and networks, fit the model, then predict and time other networks.

    With STEPs, such as resnet18:16:inference (network, batch size, phase), only these are timed, and each is compared
    with its prediction. `paleo-lite calibrate --suggest` names the most informative steps.

    \b
      paleo-lite measure --quick
      paleo-lite measure vgg11:1:inference resnet18:16:training --device cuda -o mine.csv
      paleo-lite measure -o mine.csv --calibration-out mine.toml --hardware-out mine-hw.toml
      paleo-lite predict vgg16 --gpu ID --hardware-file mine-hw.toml --calibration mine.toml
    """
    return measure_machine(phases=tuple(flatten(phases)), on_step=_report_step, **arguments)


def _report_step(description: str) -> None:
    click.echo(f"measuring {description}", err=True)

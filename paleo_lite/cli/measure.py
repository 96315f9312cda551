"""``paleo-lite measure``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from ..api.measuring import measure as measure_machine
from ..measurement.running import DEVICES, STEPS
from ..result import Result
from . import options
from .options import Documented, command
from .values import WHOLE, Names

_documented = functools.partial(click.option, cls=Documented, of="measure")


@command()
@click.argument("steps", nargs=-1, metavar="[STEP]...")
@_documented("--device", type=click.Choice(DEVICES), default="cpu", show_default=True)
@_documented("--quick", is_flag=True)
@_documented("--threads", type=WHOLE)
@options.precision(type=Names("precision", ".measurement.running:PRECISIONS"))
@click.option("--phase", "phases", multiple=True, type=click.Choice(STEPS), help="Default: inference and training.")
@_documented("--channels-last", is_flag=True)
@_documented("--compile", "compiled", is_flag=True)
@options.gpu(required=False, of="measure")
@options.output(help="CSV of the measurements.")
@click.option("--calibration-out", type=click.Path(path_type=Path, dir_okay=False), help="TOML of the calibration.")
@click.option(
    "--hardware-out", type=click.Path(path_type=Path, dir_okay=False),
    help="TOML of this machine, its peaks as measured, even if it is known.",
)  # fmt: skip
@options.force()
@options.hardware_files()
def measure(**question: Any) -> Result:
    """Calibrate this machine: time operations and networks, fit, then predict other networks and run them.

    Of STEPs, such as resnet18:16:inference (network, batch size, phase), only those are timed, each beside what was
    expected of it: `paleo-lite calibrate --suggest` says which are worth it.

    \b
      paleo-lite measure --quick
      paleo-lite measure vgg11:1:inference resnet18:16:training --device cuda -o mine.csv
      paleo-lite measure -o mine.csv --calibration-out mine.toml --hardware-out mine-hw.toml
      paleo-lite predict vgg16 --gpu ID --hardware-file mine-hw.toml --calibration mine.toml
    """
    return measure_machine(**question, on_step=lambda text: click.echo(f"measuring {text}", err=True))

"""``paleo-lite calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.calibrations import CalibrateQuestion, learn
from ..api.calibrations import calibrate as run_calibrate
from ..calibration.measurements import TEMPLATE
from ..timing.models import LEARNT
from . import options
from .options import Answer, Printing, command
from .values import NETWORK, WHOLE


@command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@options.gpu(required=False, help="Device that was measured.")
@options.precision()
@click.option(
    "--network",
    metavar="NETWORK",
    type=NETWORK,
    help="What was profiled, needed for profiles; or what is asked about.",
)
@click.option(
    "--time-model", type=options.MODELS, default=LEARNT, show_default=True,
    help="What to learn: calibrated, all parameters; ppp, PALEO's one, the platform percent of peak.",
)  # fmt: skip
@options.batch_size(default=None, help="Only profiles of this batch size; or what is asked about.")
@click.option(
    "--suggest", type=WHOLE, metavar="K",
    help="Name the K measurements that would narrow the answer most: the time of --network, or of a typical set.",
)  # fmt: skip
@click.option("--phase", type=options.PHASES, help="What --suggest is asked about. [default: inference]")
@options.name_pattern()
@options.output(help="The TOML to write.")
@options.force()
@click.option("--date", default="", cls=Printing, help="When it was measured, for the record.")
@click.option("--template", is_flag=True, cls=Printing, help="Print a measurements CSV to fill in.")
@options.hardware_files()
def calibrate(
    paths: tuple[Path, ...], gpu: str | None, template: bool, suggest: int | None, **question: Any
) -> Answer | None:
    """Learn a device's parameters from measured steps in PATHS: measurements CSVs, profiles, folders of profiles.

    Of a profile the forward and the backward pass of a steady iteration are taken. The fit starts from the best
    that is known of the device: what was measured of it and of others, under the software that the CSV names.

    \b
      paleo-lite calibrate --template > measured.csv
      paleo-lite calibrate measured.csv --gpu k40m --precision fp32 -o k40m.toml
      paleo-lite calibrate run_*.gzip --gpu k40m --network resnet50 -o k40m.toml
      paleo-lite calibrate run_*.gzip --gpu k40m --network resnet50 --time-model ppp
      paleo-lite calibrate --suggest 2 --gpu k80 --network vgg16 --precision fp64
      paleo-lite predict vgg16 --gpu k40m --calibration k40m.toml
    """
    if template:
        click.echo(TEMPLATE, nl=False)
        return None
    if gpu is None or not (paths or suggest):
        raise click.UsageError("a calibration takes measurements CSVs and --gpu; --template prints a CSV to fill in")
    if suggest is not None:
        suggestions = run_calibrate(paths, gpu=gpu, suggest=suggest, **question)
        return Answer(suggestions.to_dict, suggestions.document)
    learnt = learn(CalibrateQuestion(paths, gpu=gpu, **question))
    made = learnt.calibration
    return Answer(made.to_dict, made.document, None if learnt.fit is None else lambda: learnt)

"""``paleo-lite calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.calibrations import RESULT_FACTS, find_result_files, fit_calibration
from ..api.calibrations import calibrate as run_calibrate
from ..calibration.measurements import TEMPLATE
from ..errors import BadFile
from ..files import NO_SUCH_FILE, file_exists
from ..questions.completion import LINK, NETWORK
from ..questions.values import INTEGER
from ..timing.models import CALIBRATED
from . import options
from .answers import CommandResult, command
from .options import OutputOption


@command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@options.gpu(required=False, help="Device that was measured.")
@options.precision(default=None, show_default=False, help="Precision. [default: fp32, or that of result files]")
@click.option(
    "--network",
    metavar="NETWORK",
    type=NETWORK,
    help="Network of the profiles (required for profiles), or of the prediction with --suggest.",
)
@click.option("--engine", metavar="ENGINE", help="Inference engine, where result files do not record it.")
@click.option("--tensor", type=INTEGER, metavar="N", help="Tensor parallelism, where result files do not record it.")
@click.option("--devices", type=INTEGER, metavar="N", help="Number of devices, where result files do not record it.")
@options.sequence_length(help="Tokens per sequence, where result files do not record them.")
@click.option(
    "--link", type=LINK, metavar="LINK", help="Link between the devices, where result files do not record it."
)
@click.option(
    "--time-model",
    type=options.MODELS,
    default=CALIBRATED,
    show_default=True,
    help="Model to fit: calibrated (all parameters), or ppp (platform percent of peak, the parameter of PALEO).",
)
@options.batch_size(
    default=None, help="Use only profiles with this batch size; with --suggest the batch size of the prediction."
)
@click.option(
    "--suggest",
    type=INTEGER,
    metavar="K",
    help="Suggest the K measurements that would most reduce the prediction interval of --network, or of a typical set "
    "of networks.",
)
@click.option("--phase", type=options.PHASES, help="With --suggest: phase of the prediction. [default: inference]")
@options.name_pattern()
@options.output(help="TOML file of the calibration.")
@options.force()
@click.option("--date", default="", cls=OutputOption, help="Date of the measurements, for the record.")
@click.option("--template", is_flag=True, cls=OutputOption, help="Print a measurements CSV to fill in.")
@options.hardware_files()
def calibrate(
    paths: tuple[Path, ...], gpu: str | None, template: bool, suggest: int | None, phase: str | None, **arguments: Any
) -> CommandResult | None:
    """Fit the parameters of a device to measured steps in PATHS: measurements CSVs, profiles, folders of profiles.

    Result files of servers, of llama.cpp and its like, and of training move the causes of their forecasts instead.

    From a profile, the forward and backward pass of a steady iteration are taken. The fit starts from a prior: earlier
    measurements of this device and of others, under the software that the CSV names.

    \b
      paleo-lite calibrate --template > measured.csv
      paleo-lite calibrate measured.csv --gpu k40m --precision fp32 -o k40m.toml
      paleo-lite calibrate run_*.gzip --gpu k40m --network resnet50 -o k40m.toml
      paleo-lite calibrate run_*.gzip --gpu k40m --network resnet50 --time-model ppp
      paleo-lite calibrate --suggest 2 --gpu k80 --network vgg16 --precision fp64
      paleo-lite predict vgg16 --gpu k40m --calibration k40m.toml
      paleo-lite calibrate bench.json --gpu h100-sxm --engine vllm -o mine.toml
      paleo-lite calibrate llama-bench.jsonl -o mine.toml
    """
    if template:
        click.echo(TEMPLATE, nl=False)
        return None
    if find_result_files(paths):
        learned: Any = run_calibrate(paths, gpu=gpu, suggest=suggest, phase=phase, **arguments)
        return CommandResult(learned.to_dict, learned.document)
    for path in paths if gpu is None else ():
        if not file_exists(path, Path.exists):
            raise BadFile(f"{path}: {NO_SUCH_FILE}")
    if gpu is None or not (paths or suggest):
        raise click.UsageError("`calibrate` needs measurements CSVs and `--gpu`; `--template` prints a CSV to fill in")
    if suggest is not None or phase is not None:  # a phase without --suggest raises an error
        suggestions = run_calibrate(paths, gpu=gpu, suggest=suggest, phase=phase, **arguments)
        return CommandResult(suggestions.to_dict, suggestions.document)
    for name in RESULT_FACTS:
        if arguments.pop(name) is not None:
            raise click.UsageError(f"`--{name.replace('_', '-')}` is for result files of benchmarks")
    precision = arguments.pop("precision") or "fp32"
    fitted = fit_calibration(paths, gpu=gpu, precision=precision, **arguments)
    calibration = fitted.calibration
    has_chart = fitted.fit is not None
    return CommandResult(calibration.to_dict, calibration.document, (lambda: fitted) if has_chart else None)

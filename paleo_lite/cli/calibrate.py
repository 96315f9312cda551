"""``paleo-lite calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.calibrations import answer_calibration, check_inputs, find_result_files, fit_calibration
from ..calibration.measurements import TEMPLATE
from ..files import check_outputs, to_paths
from ..questions.measured import OF_RESULT_FILES, CalibrationQuestion
from ..questions.option import OutputOption
from .answers import CommandResult, command, progress_of_long_answers


@command(CalibrationQuestion)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--template", is_flag=True, cls=OutputOption, help="Print a measurements CSV to fill in.")
def calibrate(paths: tuple[Path, ...], template: bool, **arguments: Any) -> CommandResult | None:
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
    question = CalibrationQuestion(measured=paths, **arguments)
    check_outputs(*to_paths(question.output or ()), force=question.force)
    if not find_result_files(paths):
        check_inputs(paths)
        if question.gpu is None or not (paths or question.suggest):
            needed = [] if paths or question.suggest else ["result files of benchmarks, profiles or measurements CSVs"]
            needed += [] if question.gpu is not None or not (paths or question.suggest) else ["`--gpu`"]
            raise click.UsageError(f"`calibrate` needs {' and '.join(needed)}; `--template` prints a CSV to fill in")
        if not set(question.given()) & {"suggest", "phase", *OF_RESULT_FILES}:
            fitted = fit_calibration(question)
            calibration = fitted.calibration
            has_chart = fitted.fit is not None
            return CommandResult(calibration.to_dict, calibration.document, (lambda: fitted) if has_chart else None)
    with progress_of_long_answers("forecasting rows"):
        answer = answer_calibration(question)
    return CommandResult(answer.to_dict, answer.document)

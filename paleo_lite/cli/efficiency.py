"""``paleo-lite efficiency``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import BadValue
from ..files import to_paths
from ..questions.efficiency import EfficiencyQuestion, answer_efficiency
from ..questions.option import OutputOption
from . import options
from .answers import CommandResult, command, progress_of_long_answers


@command(EfficiencyQuestion)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.decompressed()
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    cls=OutputOption,
    metavar="FILE",
    help="Also write what one profile says, with charts, into a .html file, or all tables into .xlsx or .zip (of CSV "
    "files).",
)
@click.pass_obj
def efficiency(
    output: dict[str, Any], /, paths: tuple[Path, ...], report: Path | None, **arguments: Any
) -> CommandResult:
    """Measure how well the device was used, from profiles.

    PATHS are profiles, or folders of profiles; several are read in parallel.

    \b
      paleo-lite efficiency run.parquet --gpu k40m
      paleo-lite efficiency h100.json.gz --by module
      paleo-lite efficiency decode.json.gz --capture-trace captures/
      paleo-lite efficiency profiles/ --gpu k40m --group-by batch_size,nodes
      paleo-lite efficiency profiles/ --gpu k40m --method notebook --durations batch_durations.csv
      paleo-lite efficiency profiles/ --gpu k40m --method notebook --durations markers/ --durations interval.parquet \\
          --tau-init one_batch.parquet
    """
    question = EfficiencyQuestion(paths=paths, **arguments)
    with progress_of_long_answers("reading profiles"):
        result = answer_efficiency(question)
    failures = [failure["error"] for failure in result.failed]
    if report is not None:
        _write_report(question, report, is_forced=bool(output.get("force")))
    return CommandResult(result.to_dict, result.document if result.rows else None, lambda: result, failures)


def _write_report(question: EfficiencyQuestion, file: Path, is_forced: bool) -> None:
    """Write the report of the only profile."""
    from ..questions.report import report_profile

    paths = to_paths(question.paths)
    if len(paths) != 1 or paths[0].is_dir() or question.gpu is None:
        raise BadValue("`--report` is for one profile and its device: give one PATH and `--gpu`")
    written = report_profile(
        paths[0],
        file,
        gpu=question.gpu,
        precision=question.precision,
        name_pattern=question.name_pattern,
        hardware_files=question.hardware_files,
        force=is_forced,
    )
    click.echo(f"{written.path}: {written.page.title}, {written.bytes / 1e6:.2f} MB", err=True)

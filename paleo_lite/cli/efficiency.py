"""``paleo-lite efficiency``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.profiles import efficiency as measure_efficiency
from ..errors import BadValue
from ..questions.completion import CompletedText
from ..questions.names import Names
from ..questions.values import INTEGER
from . import options
from .answers import CommandResult, command, progress


@command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.gpu(required=False, help="Device of the profiles. [default: the one recorded in the first profile]")
@click.option(
    "--method",
    type=Names("method", ".profile_analysis:METHODS"),
    default="steady",
    show_default=True,
    help="steady analyzes one steady iteration, notebook all rows as the notebook of SURFBoard does.",
)
@options.precision()
@click.option(
    "--steps",
    metavar="FIRST:LAST",
    help="Analyze only these iterations, by the numbers of their step markers: 3, or 2:5.",
)
@click.option(
    "--by",
    type=Names("grouping", ".profile_analysis:GROUPINGS"),
    default="op",
    show_default=True,
    help="Sum the time of an iteration by operation, by operation and shapes, by module (or marked range), or "
    "by kernel.",
)
@click.option(
    "--group-by",
    metavar="COLUMNS",
    default="",
    type=CompletedText(".questions.completion:configuration_names"),
    help="Also print means over these columns of the configuration, such as batch_size,nodes.",
)
@options.name_pattern()
@options.capture_traces()
@options.decompressed()
@click.option(
    "--durations",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True),
    help="Measured batch durations, used for rates instead of kernel times: CSV tables, CSVs of markers, TAU "
    "intervals, or folders of these; the shortest duration is used.",
)
@click.option(
    "--batches",
    type=INTEGER,
    default=25,
    show_default=True,
    help="With --durations and the method notebook: number of batches in the profiles.",
)
@click.option(
    "--tau-init",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="TAU intervals of runs with one batch; their median is subtracted as the initialization time.",
)
@click.option("--tau-batches", type=INTEGER, default=50, show_default=True, help="Number of batches of the TAU runs.")
@options.jobs()
@options.scheduler()
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    cls=options.OutputOption,
    metavar="FILE",
    help="Also write what one profile says, with charts, into a .html file, or all tables into .xlsx or .zip (of CSV "
    "files).",
)
@click.option("--keep-going", is_flag=True, help="Report unreadable files and continue with the others.")
@options.hardware_files()
@click.pass_obj
def efficiency(
    output: dict[str, Any], /, paths: tuple[Path, ...], group_by: str, report: Path | None, **arguments: Any
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
    columns = [name.strip() for name in group_by.split(",") if name.strip()]
    with progress("reading profiles") as on_done:
        result = measure_efficiency(paths, group_by=columns, on_done=on_done, **arguments)
    failures = [failure["error"] for failure in result.failed]
    if report is not None:
        _write_report(paths, report, output, arguments)
    return CommandResult(result.to_dict, result.document if result.rows else None, lambda: result, failures)


def _write_report(paths: tuple[Path, ...], file: Path, output: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Write the report of the only profile."""
    from ..questions.report import report_profile

    if len(paths) != 1 or paths[0].is_dir() or arguments["gpu"] is None:
        raise BadValue("`--report` is for one profile and its device: give one PATH and `--gpu`")
    names = ("gpu", "precision", "name_pattern", "hardware_files")
    settings = {name: arguments[name] for name in names}
    written = report_profile(paths[0], file, force=bool(output.get("force")), **settings)
    click.echo(f"{written.path}: {written.page.title}, {written.bytes / 1e6:.2f} MB", err=True)

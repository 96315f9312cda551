"""``paleo-lite efficiency``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.profiles import efficiency as measure_efficiency
from . import options
from .command import Answer, command, progress
from .completing import completing
from .values import WHOLE, Names


@command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.gpu()
@click.option(
    "--method", type=Names("method", ".efficiency:METHODS"), default="steady", show_default=True,
    help="One steady iteration with all that it computes, or all rows as SURFBoard's notebook counts them.",
)  # fmt: skip
@options.precision()
@click.option("--steps", metavar="FIRST:LAST", help="Only these iterations, by their marks' numbers: 3, or 2:5.")
@click.option(
    "--by", type=Names("grouping", ".efficiency:BY"), default="op", show_default=True,
    help="Sum the time of an iteration by operation, with its shapes, by module (and marked range), or by kernel.",
)  # fmt: skip
@click.option(
    "--group-by",
    metavar="COLUMNS",
    default="",
    shell_complete=completing(".cli.completing:configuration_names"),
    help="Print means too, such as by batch_size,nodes.",
)
@options.name_pattern()
@options.decompressed()
@click.option(
    "--durations", multiple=True, metavar="FILE", type=click.Path(path_type=Path, exists=True),
    help="Measured batch durations, which rates are over instead of kernel times: a CSV table, a CSV of markers, TAU "
    "intervals, or a folder of these; the shortest counts.",
)  # fmt: skip
@click.option(
    "--batches", type=WHOLE, default=25, show_default=True,
    help="With --durations and --method notebook: how many batches the profiles are of.",
)  # fmt: skip
@click.option(
    "--tau-init", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="TAU intervals of runs of one batch, whose median is taken for the initialisation.",
)  # fmt: skip
@click.option("--tau-batches", type=WHOLE, default=50, show_default=True, help="Batches of the TAU runs.")
@options.jobs()
@options.scheduler()
@click.option("--keep-going", is_flag=True, help="Report files that cannot be read and go on with the rest.")
@options.hardware_files()
def efficiency(
    paths: tuple[Path, ...],
    group_by: str,
    **question: Any,
) -> Answer:
    """Say how well the device was used, from profiles.

    PATHS are profiles, or folders of them; several are read in parallel.

    \b
      paleo-lite efficiency run.parquet --gpu k40m
      paleo-lite efficiency trace.json.gz --gpu a100-sxm-80gb --by module
      paleo-lite efficiency profiles/ --gpu k40m --group-by batch_size,nodes
      paleo-lite efficiency profiles/ --gpu k40m --method notebook --durations batch_durations.csv
      paleo-lite efficiency profiles/ --gpu k40m --method notebook --durations markers/ --durations interval.parquet \\
          --tau-init one_batch.parquet
    """
    columns = [name.strip() for name in group_by.split(",") if name.strip()]
    with progress("reading profiles") as on_done:
        result = measure_efficiency(paths, group_by=columns, on_done=on_done, **question)
    return Answer(
        result.to_dict,
        result.document if result.rows else None,
        lambda: result,
        [failure["error"] for failure in result.failed],
    )

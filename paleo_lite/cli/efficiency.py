"""``paleo-lite efficiency``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from ..api.profiles import efficiency as measure_efficiency
from . import options
from .options import Answer, Documented, command, progress
from .values import WHOLE, Names, Offered

_option = functools.partial(click.option, cls=Documented, of="efficiency", show_default=True)


@command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.gpu()
@_option("--method", type=Names("method", ".profile_analysis:METHODS"), default="steady")
@options.precision()
@_option("--steps", metavar="FIRST:LAST")
@_option("--by", type=Names("grouping", ".profile_analysis:BY"), default="op")
@click.option(
    "--group-by",
    metavar="COLUMNS",
    default="",
    type=Offered(".cli.values:configuration_names"),
    help="Print means too, such as by batch_size,nodes.",
)
@options.name_pattern()
@options.decompressed()
@_option("--durations", multiple=True, metavar="FILE", type=click.Path(path_type=Path, exists=True))
@_option("--batches", type=WHOLE, default=25)
@_option("--tau-init", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_option("--tau-batches", type=WHOLE, default=50)
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

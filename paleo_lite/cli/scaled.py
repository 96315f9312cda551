"""``paleo-lite scaled``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.profiles import scaled as report_scaled
from . import options
from .command import Answer, command
from .options import WHOLE


@command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.gpu()
@click.option(
    "--durations", required=True, multiple=True, metavar="FILE", type=click.Path(path_type=Path, exists=True),
    help="Durations: CSV table, CSV of markers, TAU intervals, or a folder of these; the shortest counts.",
)  # fmt: skip
@click.option(
    "--tau-init", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="TAU intervals of runs of one batch, whose median is taken for the initialisation.",
)  # fmt: skip
@click.option("--tau-batches", type=WHOLE, default=50, show_default=True, help="Batches of the TAU runs.")
@click.option(
    "--batches", type=WHOLE, default=25, show_default=True, help="How many batches the profiles' FLOPs are of."
)
@click.option(
    "--group-by", "groups", multiple=True, metavar="COLUMNS", help="Means by other columns: batch_size,nodes."
)
@options.precision()
@options.name_pattern()
@options.hardware_files()
def scaled(paths: tuple[Path, ...], groups: tuple[str, ...], **question: Any) -> Answer:
    """Efficiencies over the time that batches really took, from the profiles PATHS (files or folders).

    \b
      paleo-lite scaled profiles/ --gpu k40m --durations batch_durations.csv
      paleo-lite scaled profiles/ --gpu k40m --durations markers/ --durations interval.parquet \\
          --tau-init one_batch.parquet
    """
    columns = [[name.strip() for name in group.split(",") if name.strip()] for group in groups]
    report = report_scaled(paths, group_by=list(filter(None, columns)), **question)
    return Answer(report.to_dict, report.document)

"""``paleo-lite best``."""

from __future__ import annotations

from pathlib import Path

import click

from ..report.sweep import best_page
from ..scaling.best import find_best
from ..scaling.sweep_space import parse_names
from .common import WHOLE, output_options, show


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--minimise", "--minimize", metavar="COLUMN", help="cost, time_s, hours, energy, memory, ...")
@click.option("--maximise", "--maximize", metavar="COLUMN", help="throughput_per_s, efficiency, speedup, ...")
@click.option("--pareto", metavar="COLUMNS", help="Rows that none beats in all of these: time_s,cost.")
@click.option("--where", metavar="CONDITION", help="Such as 'time_s < 0.1 and (gpu == k80 or workers >= 4)'.")
@click.option("--top", type=WHOLE, default=10, show_default=True, help="How many rows at most.")
@output_options
def best(
    file: Path,
    minimise: str | None,
    maximise: str | None,
    pareto: str | None,
    where: str | None,
    top: int,
    style: str,
) -> None:
    """Find the best rows of a sweep's FILE; infeasible ones never are.

    \b
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1 and network == resnet50"
      paleo-lite best sweep.parquet --maximise throughput_per_s --where "precision == fp16" --top 3
      paleo-lite best sweep.parquet --pareto hours,cost
    """
    found = find_best(
        file,
        minimise=minimise,
        maximise=maximise,
        where=where,
        pareto=parse_names(pareto, "columns") if pareto else (),
        top=top,
    )
    show(
        style,
        lambda: {"objective": found.objective, "seen": found.seen, "fitting": found.fitting, "rows": found.rows},
        lambda: best_page(found),
    )

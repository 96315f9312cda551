"""``paleo-lite best``."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ..errors import BadValue
from ..report.sweep import best_page
from ..sweeps.best import FRONT_AT_MOST, find_best
from ..sweeps.space import parse_names
from .common import WHOLE, output_options, show
from .plot_options import Drawing, plot_options

SAMPLE = 3000
"""Rows that a chart shows behind the front."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--minimise", "--minimize", metavar="COLUMN", help="cost, time_s, hours, energy, memory, ...")
@click.option("--maximise", "--maximize", metavar="COLUMN", help="throughput_per_s, efficiency, speedup, ...")
@click.option(
    "--pareto", metavar="COLUMNS", help="The Pareto front: rows that no other beats in all of these: time_s,cost."
)
@click.option("--where", metavar="CONDITION", help="Such as 'time_s < 0.1 and (gpu == k80 or workers >= 4)'.")
@click.option("--top", type=WHOLE, default=10, show_default=True, help="How many rows at most.")
@plot_options("pareto")
@output_options
def best(
    file: Path,
    minimise: str | None,
    maximise: str | None,
    pareto: str | None,
    where: str | None,
    top: int,
    plot: Drawing | None,
    style: str,
) -> None:
    """Find the best rows of a sweep's FILE; infeasible ones never are.

    \b
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1 and network == resnet50"
      paleo-lite best sweep.parquet --maximise throughput_per_s --where "precision == fp16" --top 3
      paleo-lite best sweep.parquet --pareto hours,cost
    """
    columns = parse_names(pareto, "columns") if pareto else ()
    if plot is not None and len(columns) < 2:
        from ..report.charts.pareto import NO_FRONT

        raise BadValue(NO_FRONT)
    drawn = find_best(
        file,
        minimise=minimise,
        maximise=maximise,
        where=where,
        pareto=columns,
        top=top if plot is None else max(top, FRONT_AT_MOST),
        sample=0 if plot is None else SAMPLE,
    )
    found = msgspec.structs.replace(drawn, rows=drawn.rows[:top])
    show(
        style,
        lambda: {"objective": found.objective, "seen": found.seen, "fitting": found.fitting, "rows": found.rows},
        lambda: best_page(found),
    )
    if plot is not None:
        plot.draw(drawn)

"""``paleo-lite best``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from ..api.plotting import BACKGROUND_ROWS
from ..api.sweeps import best as find_best_rows
from ..questions.completion import COLUMN
from ..questions.names import Names
from ..questions.option import OutputOption
from ..questions.records import SiteOptions
from ..questions.values import INTEGER
from ..sweeps.best import MAX_FRONT_ROWS
from ..sweeps.space import parse_columns
from .answers import CommandResult, command


@command(SiteOptions)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--minimise",
    "--minimize",
    metavar="COLUMN",
    type=COLUMN,
    help="What to minimise: cost, time, energy, latency, ttft, tpot or any column, such as memory_bytes.",
)
@click.option(
    "--by",
    type=Names("ranking", ".sweeps.best:RANKINGS"),
    help="The same as --minimise.",
)
@click.option(
    "--maximise",
    "--maximize",
    metavar="COLUMN",
    type=COLUMN,
    help="What to maximise: throughput or any column, such as efficiency or speedup.",
)
@click.option(
    "--pareto",
    metavar="COLUMNS",
    type=COLUMN,
    help="Pareto front of several of them, such as time,cost: rows that no other row dominates.",
)
@click.option(
    "--where",
    metavar="CONDITION",
    type=COLUMN,
    help="Filter condition, such as 'time_s < 0.1 and (gpu == k80 or workers >= 4)'.",
)
@click.option(
    "--bounds", is_flag=True, help="Include rows whose times are lower bounds; by default only forecasts are ranked."
)
@click.option("--top", type=INTEGER, default=10, show_default=True, cls=OutputOption, help="Maximum number of rows.")
@click.pass_obj
def best(output: dict[str, Any], /, file: Path, pareto: str | None, top: int, **arguments: Any) -> CommandResult:
    """Find the best feasible rows of FILE, the output of a sweep, or its Pareto front.

    \b
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1 and network == resnet50"
      paleo-lite best sweep.parquet --maximise throughput_per_s --where "precision == fp16" --top 3
      paleo-lite best sweep.parquet --pareto hours,cost
      paleo-lite best sweep.parquet --minimise co2_g --site carbon-intensity=400
    """
    columns = parse_columns(pareto) if pareto else ()
    has_chart = output.get("chart") is not None
    if has_chart:
        from ..reporting.charts.pareto import check_front

        check_front(columns)
    result = find_best_rows(
        file,
        pareto=columns,
        top=max(top, MAX_FRONT_ROWS) if has_chart else top,
        sample=BACKGROUND_ROWS if has_chart else 0,
        **arguments,
    )
    listed = msgspec.structs.replace(result, rows=result.rows[:top])
    return CommandResult(listed.to_dict, listed.document, lambda: result)

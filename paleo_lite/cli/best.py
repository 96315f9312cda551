"""``paleo-lite best``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click
import msgspec

from ..api.plotting import ROWS_BEHIND_A_FRONT
from ..api.sweeps import best as search
from ..errors import BadValue
from ..sweeps.best import FRONT_AT_MOST
from ..sweeps.space import parse_names
from .options import Answer, Documented, Printing, command
from .values import COLUMN, WHOLE

_columns = functools.partial(click.option, type=COLUMN)


@command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_columns("--minimise", "--minimize", metavar="COLUMN", help="cost, time_s, hours, energy, memory, ...")
@_columns("--maximise", "--maximize", metavar="COLUMN", help="throughput_per_s, efficiency, speedup, ...")
@_columns(
    "--pareto", metavar="COLUMNS", help="The Pareto front: rows that no other beats in all of these: time_s,cost."
)
@_columns("--where", cls=Documented, of="best", metavar="CONDITION")
@click.option("--bounds", cls=Documented, of="best", is_flag=True)
@click.option("--top", type=WHOLE, default=10, show_default=True, cls=Printing, help="How many rows at most.")
@click.pass_obj
def best(said: dict[str, Any], /, file: Path, pareto: str | None, top: int, **question: Any) -> Answer:
    """Find the best rows of a sweep's FILE: of those that are feasible, and forecasts.

    \b
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1 and network == resnet50"
      paleo-lite best sweep.parquet --maximise throughput_per_s --where "precision == fp16" --top 3
      paleo-lite best sweep.parquet --pareto hours,cost
    """
    columns = parse_names(pareto, "columns") if pareto else ()
    charted = said.get("chart") is not None
    if charted and len(columns) < 2:
        from ..reporting.charts.pareto import NO_FRONT

        raise BadValue(NO_FRONT)
    drawn = search(
        file,
        pareto=columns,
        top=max(top, FRONT_AT_MOST) if charted else top,
        sample=ROWS_BEHIND_A_FRONT if charted else 0,
        **question,
    )
    listed = msgspec.structs.replace(drawn, rows=drawn.rows[:top])
    return Answer(listed.to_dict, listed.document, lambda: drawn)

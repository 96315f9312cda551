"""``paleo-lite best``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import msgspec

from ..questions.best import BestRows, answer_best
from ..sweeps.front import BACKGROUND_ROWS, MAX_FRONT_ROWS
from .answers import CommandResult, command


@command(BestRows)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def best(output: dict[str, Any], /, file: Path, top: int, **arguments: Any) -> CommandResult:
    """Find the best feasible rows of FILE, the output of a sweep, or its Pareto front.

    \b
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1 and network == resnet50"
      paleo-lite best sweep.parquet --maximise throughput_per_s --where "precision == fp16" --top 3
      paleo-lite best sweep.parquet --pareto hours,cost
      paleo-lite best sweep.parquet --minimise co2_g --site carbon-intensity=400
    """
    question = BestRows(file=file, top=top, **arguments)
    if output.get("chart") is not None:
        question = dataclasses.replace(question, top=max(top, MAX_FRONT_ROWS), sample=BACKGROUND_ROWS)
    result = answer_best(question)
    listed = msgspec.structs.replace(result, rows=result.rows[:top])
    return CommandResult(listed.to_dict, listed.document, lambda: result)

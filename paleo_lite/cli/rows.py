"""Output options of the commands of questions that write or rank the rows of all combinations."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from ..errors import BadValue
from ..questions.option import Options, OutputOption
from ..questions.values import INTEGER
from .answers import CommandResult, progress

_TOP = 10


def row_options() -> list[click.Option]:
    """Return the options, in the order of the help."""
    path = click.Path(path_type=Path, dir_okay=False)
    return [
        OutputOption(
            ["-o", "--output"], type=path, metavar="FILE",
            help="Write a row per combination of values to a .parquet or .csv file; an interrupted command resumes.",
        ),
        OutputOption(
            ["--best"], metavar="COLUMN",
            help="Show the best combinations by cost, time, energy, throughput or any column of these rows.",
        ),
        OutputOption(
            ["--pareto"], metavar="COLUMNS", help="Show the Pareto front of several of them, such as time,cost."
        ),
        OutputOption(
            ["--where"], metavar="CONDITION",
            help="Of --best and --pareto: only rows such as 'time_s < 0.1 and (gpu == k80 or workers >= 4)'.",
        ),
        OutputOption(["--jobs"], type=INTEGER, metavar="N", help="Processes for rows. [default: one per core]"),
        OutputOption(
            ["--scheduler"], metavar="ADDRESS", help="Dask scheduler, tcp://host:8786, whose workers compute rows."
        ),
        OutputOption(["--dry-run"], is_flag=True, help="Only print the number of combinations."),
        OutputOption(["--yes"], is_flag=True, help="Compute rows even if that takes more than two hours of a core."),
    ]  # fmt: skip


ROW_OPTIONS = ("output", "best", "pareto", "where", "jobs", "scheduler", "dry_run", "yes")
"""Python names of the options."""


def asks_for_rows(options: dict[str, Any]) -> bool:
    """Return whether an option that asks for rows is given.

    Raise BadValue if an option is given that has an effect only together with such an option.
    """
    if options["best"] and options["pareto"]:
        raise BadValue("give only one of `--best`, by one column, and `--pareto`, by several")
    is_ranked = bool(options["best"] or options["pareto"])
    if options["where"] and not is_ranked:
        raise BadValue("`--where` chooses among ranked rows: give `--best COLUMN` or `--pareto COLUMNS` as well")
    asks = is_ranked or options["output"] is not None or options["dry_run"]
    for name in ("jobs", "scheduler", "yes"):
        if options[name] and not asks:
            raise BadValue(
                f"`--{name}` is for rows of many combinations: give `-o FILE`, `--best` or `--pareto` as well"
            )
    return asks


def answer_with_rows(question: Options, options: dict[str, Any], output: dict[str, Any]) -> CommandResult:
    """Return the answer that writes rows, or ranks them."""
    from ..questions.sweep import sweep
    from ..sweeps.run import Sweep

    if getattr(question, "advise", None):
        raise BadValue(
            "`--advise` has a ranking of its own, beside which `-o`, `--best` and `--pareto` have no rows: leave it out"
        )
    columns = [name.strip() for name in options["pareto"].split(",")] if options["pareto"] else []
    has_chart = output.get("chart") is not None
    if has_chart and not (options["best"] or columns):
        raise BadValue(
            "`--plot` draws answers side by side, or with `--best` and `--pareto` a front of rows: leave `-o` out, or "
            "give one of them"
        )
    settings = {name: options[name] for name in ("jobs", "scheduler", "dry_run", "yes")}
    with tempfile.TemporaryDirectory() as folder:
        file = options["output"] or Path(folder) / "rows.parquet"
        force = bool(output.get("force")) and options["output"] is not None
        with progress("combinations, in chunks") as on_done:
            written = sweep(question, file, force=force and not has_chart, on_done=on_done, **settings)
        if not isinstance(written, Sweep) or not (options["best"] or columns):
            return CommandResult(written.to_dict, written.document)
        from ..sweeps.best import Goal, find_best
        from ..sweeps.front import BACKGROUND_ROWS, MAX_FRONT_ROWS

        try:
            result = find_best(
                file,
                Goal(objective=options["best"], pareto=columns),
                where=options["where"],
                top=MAX_FRONT_ROWS if has_chart else _TOP,
                sample=BACKGROUND_ROWS if has_chart else 0,
                facility=getattr(question, "facility", None),
            )
        except BadValue as error:
            raise BadValue(str(error).removeprefix(f"{file}: ")) from None  # a file that nobody asked for
    listed = msgspec.structs.replace(result, rows=result.rows[:_TOP])
    return CommandResult(listed.to_dict, listed.document, lambda: result, chart="pareto", result=result)

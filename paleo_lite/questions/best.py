"""`best`: the best rows of a file that a sweep wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..sweeps.best import Best, Goal, find_best
from ..sweeps.space import parse_columns
from .completion import COLUMN
from .kind import make_function
from .names import Names
from .option import argument, option
from .records import SiteOptions
from .values import INTEGER


@dataclass(frozen=True)
class BestRows(SiteOptions):
    """Find the best feasible rows of a sweep, or its Pareto front.

    What is best is one of `minimise`, `by`, `maximise` and `pareto`. The site adds the columns ``site_energy_j``,
    ``electricity_usd`` and ``co2_g`` of the energy in a row.
    """

    compares: ClassVar[bool] = False

    file: str | Path = argument("Output file of `sweep`.")
    minimise: str | None = option(
        type=COLUMN, metavar="COLUMN", spellings=("--minimise", "--minimize"),
        help="What to minimise: cost, time, energy, latency, ttft, tpot or any column, such as memory_bytes.",
    )  # fmt: skip
    by: str | None = option(type=Names("ranking", ".sweeps.best:RANKINGS"), help="The same as --minimise.")
    maximise: str | None = option(
        type=COLUMN, metavar="COLUMN", spellings=("--maximise", "--maximize"),
        help="What to maximise: throughput or any column, such as efficiency or speedup.",
    )  # fmt: skip
    pareto: str | Sequence[str] = option(
        (), type=COLUMN, metavar="COLUMNS",
        help="Pareto front of several of them, such as time,cost: rows that no other row dominates.",
    )  # fmt: skip
    where: str | None = option(
        type=COLUMN, metavar="CONDITION",
        help="Filter condition, such as 'time_s < 0.1 and (gpu == k80 or workers >= 4)'.",
    )  # fmt: skip
    bounds: bool = option(
        False, help="Include rows whose times are lower bounds; by default only forecasts are ranked."
    )
    top: int = option(10, type=INTEGER, is_output=True, help="Maximum number of rows.")
    # A chart shows these, a table does not: the command line has no option for them.
    sample: int = dataclasses.field(
        default=0, kw_only=True, metadata={"help": "Number of further rows that a chart shows as background."}
    )

    @property
    def front_columns(self) -> tuple[str, ...]:
        """Columns of the Pareto front; empty where something else is best."""
        return parse_columns(self.pareto) if self.pareto else ()


def answer_best(question: BestRows) -> Best:
    """Return the best rows.

    Raise PaleoError if the file is not the output of a sweep, a column is unknown, or no row matches.
    """
    goal = Goal(minimise=question.minimise, by=question.by, maximise=question.maximise, pareto=question.front_columns)
    return find_best(
        Path(question.file),
        goal,
        where=question.where,
        bounds=question.bounds,
        top=question.top,
        sample=question.sample,
        facility=question.facility,
    )


best = make_function("best", BestRows, answer_best)

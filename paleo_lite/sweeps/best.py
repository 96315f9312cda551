"""Selection of the best rows of a sweep, by one column or as the Pareto front of several.

The file is read batch by batch; only rows that may still be among the best are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from ..errors import BadFile, BadValue, UnknownName
from ..extras import require
from ..files import check_regular
from ..result import Result
from ..text import format_plural, make_printable
from ..timing.answer import BOUND, FORECAST
from ..units import check_integer
from .chunk import NUMBER_COLUMNS, STRING_COLUMNS
from .columns import SITE_COLUMNS, check_site_columns, site_columns, with_site
from .front import Sample, Selection, find_knee
from .rows import COLUMNS, INTEGERS, STRINGS
from .run import without_dictionaries
from .where import Condition, columns_of_numbers, find_column, parse_where
from .words import column_label, describe_amount

if TYPE_CHECKING:
    from ..timing.facility import Facility

LARGER_IS_BETTER = (
    "throughput_per_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "prompt_tokens_per_s",
    "largest_context",
    "efficiency",
    "scaling_efficiency",
    "speedup",
    "output_tokens_per_s",
    "output_tokens_per_s_per_gpu",
    "output_tokens_per_s_per_user",
    "requests_per_s",
    "saturation_requests_per_s",
    "utilisation",
)
"""Columns that a Pareto front maximises; it minimises all others."""

_COSTS = (
    "hours",
    "cost_usd",
    "usd_per_h",
    "usd_per_million",
    "usd_per_step",
    "usd_per_million_output_tokens",
    "energy_j",
    "kwh",
    "joules_per_million_output_tokens",
    *SITE_COLUMNS,
)
"""Columns of costs and energies, and of times that do not end with ``_s``."""

RANKINGS = ("joules", "cost")
"""Words of `words.WORDS` that `--by` minimises."""

TASK_COLUMNS = ("network", "phase")
"""Columns that say what a row computes: rows that differ in them are no alternatives to each other."""

_BATCH_ROWS = 2**17


class Best(Result, msgspec.Struct, frozen=True):
    """Best rows of a sweep.

    Attributes
    ----------
    rows : list of dict
        Best rows, best first; those of a front in the order of its first column.
    objective : str
        Description of the objective.
    seen, fitting : int
        Number of rows of the file, and of feasible rows that meet the condition.
    columns : tuple of str
        Objective column, or the columns of the front.
    sample : list of tuple of float
        Values of `columns` in a sample of the fitting rows, spread over the file.
    bounds : int
        Number of fitting rows that were left out because they are bounds, not forecasts.
    front : int
        Number of rows of the front, of which `rows` has the first; 0 without a front.
    tasks : dict of str to int
        Numbers of different networks and phases among the fitting rows, of which one row is no alternative to another.
    worst_first : bool
        Whether the objective is the opposite of what is better, such as the lowest throughput or the highest cost.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.sweep:best_page"

    rows: list[dict[str, Any]]
    objective: str
    seen: int
    fitting: int
    columns: tuple[str, ...] = ()
    sample: list[tuple[float, ...]] = []
    bounds: int = 0
    front: int = 0
    tasks: dict[str, int] = {}
    worst_first: bool = False

    @property
    def knee(self) -> dict[str, Any] | None:
        """Row at the knee of a whole front in two columns that are both minimised; None without one."""
        if len(self.columns) != 2 or self.front != len(self.rows) or any(map(is_better_larger, self.columns)):
            return None
        index = find_knee(*([row[name] for row in self.rows] for name in self.columns))
        return None if index is None else self.rows[index]

    @property
    def count_summary(self) -> str:
        """Number of rows considered, as text for the headings of tables and charts."""
        front = ""
        if self.front:
            front = f"{format_plural(self.front, 'row')} in the front, of "
        return f"{front}{self.fitting:,} rows that fit, of {self.seen:,} in all"

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "objective": self.objective,
            "seen": self.seen,
            "fitting": self.fitting,
            "front": self.front or None,
            "knee": self.knee,
            "rows": self.rows,
        }


def is_better_larger(column: str) -> bool:
    """Return whether a column, or the one whose interval it ends, is better the larger it is."""
    return _without_end(column) in LARGER_IS_BETTER


def is_better_smaller(column: str) -> bool:
    """Return whether a column, or the one whose interval it ends, is a time, a cost or an energy."""
    name = _without_end(column)
    return name in _COSTS or (name.endswith("_s") and not name.endswith("_per_s"))


def _without_end(column: str) -> str:
    """Return the column whose interval a column ends, or a column of no interval itself."""
    return column.removesuffix("_low").removesuffix("_high")


class Goal(NamedTuple):
    """What makes one row better than another, by exactly one of these."""

    objective: str | None = None  # column of numbers, better as `is_better_larger` says
    minimise: str | None = None  # column
    by: str | None = None  # one of `RANKINGS`, instead of a column to minimise
    maximise: str | None = None  # column
    pareto: Sequence[str] = ()  # columns of a Pareto front; of equal rows it has the first


def _objectives(
    columns: dict[str, bool],  # of the rows, with whether each is numeric
    goal: Goal,
    facility: Facility | None,
) -> tuple[list[str], list[float]]:
    """Return the columns that say what is best, and -1 for each that is better the larger it is, otherwise 1."""
    objective, minimise, by, maximise, pareto = goal
    if objective is not None:
        check_site_columns((objective,), facility)
        name = find_column(objective, columns)
        minimise, maximise = (None, name) if is_better_larger(name) else (name, None)
    if sum(map(bool, (minimise, by, maximise, pareto))) != 1:
        raise BadValue(
            "`best` needs exactly one of `--minimise`, `--by`, `--maximise` and `--pareto`, such as `--by cost`"
        )
    if by is not None and by not in RANKINGS:
        raise UnknownName("ranking", by, RANKINGS)
    check_site_columns((*pareto, minimise or "", maximise or ""), facility)
    names = list(pareto) or [minimise or by or maximise or ""]
    objectives = [find_column(name, columns) for name in names]
    are_maximised = map(is_better_larger, objectives) if pareto else [maximise is not None]
    return objectives, [-1.0 if is_maximised else 1.0 for is_maximised in are_maximised]


def find_best(
    path: Path,
    goal: Goal,
    *,
    where: str | None = None,  # condition, see `where.parse_where`
    top: int = 10,  # maximum number of rows
    sample: int = 0,  # maximum number of fitting rows to sample, for a chart
    bounds: bool = False,
    facility: Facility | None = None,  # what surrounds the devices, for the columns of `site.SITE_COLUMNS`
) -> Best:
    """Return the best rows of a sweep's ``.parquet`` or ``.csv`` file.

    Infeasible rows, which have a reason, are never among the best. Bounds, which no device reaches, are ranked among
    forecasts only with `bounds`, or if no forecast fits. Raise BadValue for a goal of none or several objectives, for a
    column that has no numbers or is absent in every fitting row, and if no row fits.
    """
    require("pyarrow", "reading a sweep", "profiles")
    check_integer("`--top`", top, 1)
    check_integer("`sample`", sample, 0)
    columns = read_columns(path) | dict.fromkeys(site_columns(facility), True)
    is_front = bool(goal.pareto)
    objectives, signs = _objectives(columns, goal, facility)
    for name in objectives:
        if not columns[name]:
            numeric = ", ".join(columns_of_numbers(columns))
            raise BadValue(f"column {name} of {path.name} has no numbers: choose one that has: {numeric}")
    condition = parse_where(where, columns) if where is not None else None
    selections = {answer: Selection(objectives, signs, top, is_front) for answer in (FORECAST, BOUND)}
    samples = {answer: Sample(objectives, sample) for answer in selections}
    fitting = dict.fromkeys(selections, 0)
    tasks = {answer: {name: set[str]() for name in TASK_COLUMNS if name in columns} for answer in selections}
    seen = feasible = 0
    for batch in (with_site(rows, facility) for rows in _read_batches(path)):
        seen += batch.num_rows
        candidates = batch.filter(batch.column("reason").is_null())
        feasible += candidates.num_rows
        if condition is not None:
            candidates = candidates.filter(condition.mask(candidates))  # a null in the mask drops the row
        for answer, rows in _split_by_answer(candidates, bounds):
            fitting[answer] += rows.num_rows
            for name, values in tasks[answer].items():
                values.update(rows.column(name).unique().to_pylist())
            selections[answer].add(rows)
            samples[answer].add(rows)
    if not any(fitting.values()):
        if feasible:
            available = "" if condition is None else f": {_describe_values(path, condition)}"
            raise BadValue(f"{path}: none of its {feasible} feasible rows meets the condition{available}")
        raise BadValue(f"{path}: none of its {seen:,} rows is feasible: see the column reason")
    answer = FORECAST if fitting[FORECAST] else BOUND
    selection = selections[answer]
    for name in objectives:
        if name not in selection.present:
            raise BadValue(f"{path}: {name} is absent in every row that fits{_HINTS.get(name, '')}")
    rows = selection.rows.slice(0, top).to_pylist()
    if not rows:
        raise BadValue(f"{path}: no row that fits has all of {', '.join(objectives)}")
    return Best(
        rows=rows,
        objective=_describe_objective(objectives, signs, rows, is_front, answer),
        seen=seen,
        fitting=fitting[answer],
        columns=tuple(objectives),
        sample=samples[answer].values,
        bounds=fitting[BOUND] if answer == FORECAST else 0,
        front=len(selection.rows) if is_front else 0,
        tasks={name: len(values) for name, values in tasks[answer].items()},
        worst_first=not is_front and (is_better_larger if signs[0] > 0 else is_better_smaller)(objectives[0]),
    )


_NAMED_VALUES = 8
"""Values of a column that a message names."""


def _describe_values(path: Path, condition: Condition) -> str:
    """Return what the columns of a condition have in feasible rows: ``gpu is h100-sxm or l40s, time_s 0.1 to 3``."""
    import pyarrow as pa

    names = list(dict.fromkeys(condition.columns))
    texts: dict[str, dict[str, None]] = {name: {} for name in names}
    numbers: dict[str, list[float]] = {name: [] for name in names}
    for batch in _read_batches(path):
        rows = without_dictionaries(pa.Table.from_batches([batch.filter(batch.column("reason").is_null())]))
        for name in names:
            present = [value for value in rows.column(name).unique().to_pylist() if value is not None]
            if present and all(isinstance(value, (int, float)) for value in present):
                numbers[name] = [min([*numbers[name], *present]), max([*numbers[name], *present])]
            else:
                texts[name] |= dict.fromkeys(map(str, present))
    parts = []
    for name in names:
        if numbers[name]:
            low, high = numbers[name]
            parts.append(f"{name} is {low:g}" if low == high else f"{name} is from {low:g} to {high:g}")
        elif texts[name]:
            more = len(texts[name]) - _NAMED_VALUES
            named = [make_printable(text) for text in list(texts[name])[:_NAMED_VALUES]]
            parts.append(f"{name} is {' or '.join(named)}{f' or one of {more} others' if more > 0 else ''}")
        else:
            parts.append(f"{name} is absent")
    return ", ".join(parts)


def _describe_objective(
    objectives: Sequence[str], signs: Sequence[float], rows: Sequence[dict[str, Any]], is_front: bool, answer: str
) -> str:
    """Return the objective as text: ``lowest cost of 1 M samples``, ``Pareto front: low step time, high speed-up``."""
    labels = [column_label(name, rows[0]) for name in objectives]
    amounts = [describe_amount(name, rows) for name in objectives]
    last = max((index for index, amount in enumerate(amounts) if amount), default=None)
    if last is not None:
        labels[last] += f" of {amounts[last]}"  # once, as all amounts of rows are the same
    if is_front:
        parts = [f"{'high' if sign < 0 else 'low'} {label}" for label, sign in zip(labels, signs)]
        objective = f"Pareto front: {', '.join(parts)}"
    else:
        objective = f"{'highest' if signs[0] < 0 else 'lowest'} {labels[0]}"
    if answer == BOUND:
        objective += ", of bounds alone: no row that fits is a forecast"
    return objective


def _split_by_answer(rows: Any, bounds: bool) -> Iterator[tuple[str, Any]]:
    """Iterate over forecasts and bounds; with `bounds` all rows count as forecasts."""
    import pyarrow.compute as pc

    if bounds or "answer" not in rows.schema.names:
        yield FORECAST, rows
        return
    is_bound = pc.fill_null(pc.equal(rows.column("answer").cast("string"), BOUND), False)
    yield FORECAST, rows.filter(pc.invert(is_bound))
    yield BOUND, rows.filter(is_bound)


_PRICE_HINT = ": the price of these devices is unknown; give `--price`, such as '0.90 USD/h'"

_HINTS = {
    "cost_usd": _PRICE_HINT,
    "usd_per_million_output_tokens": _PRICE_HINT,
    **dict.fromkeys(
        ("power_w", "energy_j", "kwh", *SITE_COLUMNS),
        ": the power of these devices is unknown; give `--power-limit`, such as '300 W'",
    ),
}
"""Remedies for absent columns."""


def read_columns(path: Path) -> dict[str, bool]:
    """Return the columns of a sweep's file, and whether each has numbers; raise BadFile if no sweep wrote it."""
    import pyarrow as pa

    try:
        first_batch = next(_read_batches(path), None)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror or error})") from None
    if first_batch is None:
        raise BadFile(f"{path}: it has no rows")
    schema = first_batch.schema
    has_numbers = {}
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise BadFile(f"{path}: duplicate column {field.name[:60]!r}")
        if pa.types.is_nested(field.type) or pa.types.is_boolean(field.type) or pa.types.is_binary(field.type):
            raise BadFile(f"{path}: column {field.name[:60]!r} must have numbers or strings")
        has_numbers[field.name] = not (pa.types.is_dictionary(field.type) or pa.types.is_string(field.type))
    of_servers = "ttft_p50_s" in has_numbers
    for name in ("network", "ttft_p50_s" if of_servers else "time_s", "reason"):
        if name not in has_numbers:
            raise BadFile(f"{path}: not the output of a sweep: column {name!r} is missing")
    return has_numbers


_INTEGER_COLUMNS = (
    "batch_size",
    "workers",
    "batch_size_per_worker",
    "sequence_length",
    "context",
    "tensor",
    "concurrency",
    *INTEGERS,
)
_STRING_COLUMNS = (*STRING_COLUMNS, *STRINGS)
_NUMBER_COLUMNS = tuple(
    {*NUMBER_COLUMNS, *(name for names in COLUMNS.values() for name in names)} - {*_STRING_COLUMNS, *_INTEGER_COLUMNS}
)


def _read_batches(path: Path) -> Iterator[Any]:
    """Iterate over the record batches of a CSV or Parquet file."""
    import pyarrow as pa

    try:
        check_regular(path)
        if path.suffix == ".csv":
            from pyarrow import csv

            column_types = {
                **dict.fromkeys(_STRING_COLUMNS, pa.string()),
                **dict.fromkeys(_NUMBER_COLUMNS, pa.float64()),
                **dict.fromkeys(_INTEGER_COLUMNS, pa.int64()),
            }
            options = csv.ConvertOptions(
                column_types=column_types, strings_can_be_null=True, quoted_strings_can_be_null=False
            )
            with csv.open_csv(path, convert_options=options) as reader:
                yield from map(_without_infinities, reader)
            return
        import pyarrow.parquet as pq

        with pq.ParquetFile(path, pre_buffer=False) as file:  # a buffer would grow with the file
            yield from map(_without_infinities, file.iter_batches(_BATCH_ROWS))
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not a valid table of a sweep ({str(error).splitlines()[0]})") from None


def _without_infinities(batch: Any) -> Any:
    """Return a batch with nulls in place of infinities and NaN, as in rows without a prediction."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, field in enumerate(batch.schema):
        if pa.types.is_floating(field.type):
            is_finite = pc.is_finite(batch.column(index))
            if pc.any(pc.invert(is_finite)).as_py():
                values = pc.if_else(is_finite, batch.column(index), None)
                batch = batch.set_column(index, field, values)
    return batch

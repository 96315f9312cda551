"""The best rows of a sweep: by one column, or those that no other row beats in all of several (the Pareto front).

The file is read batch by batch, and no more is kept than the rows that may still be among the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from ..errors import BadFile, BadValue
from ..extras import need
from ..result import Result
from .chunk import BOUND, FORECAST, NUMBERS, WORDS
from .run import without_dictionaries
from .where import column_of, parse_where

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LARGER_IS_BETTER = ("throughput_per_s", "efficiency", "scaling_efficiency", "speedup")
"""Columns of which more is better in a Pareto front; of all others less is."""

MEANINGS = {
    "time_s": "time of a step", "low_s": "time at best (90%)", "high_s": "time at worst (90%)",
    "bound_s": "time by the data sheet", "throughput_per_s": "samples per second", "memory_bytes": "memory",
    "exposed_s": "exposed communication", "speedup": "speed-up", "energy_j": "energy",
    "efficiency": "share of peak",
}  # fmt: skip
"""Columns in words, where their names are not words already."""


def in_words(column: str) -> str:
    """A column of a sweep as people say it."""
    return MEANINGS.get(column, column.replace("_", " "))


_BATCH_ROWS = 2**17
FRONT_AT_MOST = 200_000


class Best(Result, msgspec.Struct, frozen=True):
    """What was found.

    Attributes
    ----------
    rows : list of dict
        The best first; of a front in the order of its first column.
    objective : str
        What they are the best of, in words.
    seen, fitting : int
        Rows of the file, and how many of them are feasible and meet the condition.
    columns : tuple of str
        Which it is about: of a front its two or more.
    sample : list of tuple of float
        Their values in rows that fit, spread over the file: at most as many as were asked for.
    bounds : int
        Rows that would fit but are bounds of the data sheet, and were left out.
    front : int
        Rows of the front, of which the first are in `rows`; 0 where no front was asked for.
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

    @property
    def counted(self) -> str:
        """Of how many rows these are the best, in words: the same below a table's and a chart's heading."""
        of_front = f"{self.front:,} row{'s' * (self.front > 1)} in the front, of " if self.front else ""
        return f"{of_front}{self.fitting:,} rows that fit, of {self.seen:,} in all"

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        counts = {"seen": self.seen, "fitting": self.fitting, "front": self.front or None}
        return {"objective": self.objective, **counts, "rows": self.rows}


def find_best(
    path: Path,
    *,
    minimise: str | None = None,
    maximise: str | None = None,
    where: str | None = None,
    pareto: Sequence[str] = (),
    top: int = 10,
    sample: int = 0,
    bounds: bool = False,
) -> Best:
    """The best rows of a sweep's file.

    Parameters
    ----------
    path : Path
        ``.parquet`` or ``.csv``.
    minimise, maximise : str, optional
        A column of numbers.
    where : str, optional
        A condition, see `where.parse_where`. Rows with a reason (infeasible ones) are never among the best.
    pareto : sequence of str
        Columns whose front is wanted; of equal rows the first.
    top : int
        How many rows at most.
    sample : int
        How many of all rows that fit to keep the values of, for a chart.
    bounds : bool
        Also rank what is no forecast but a bound, which no device reaches. Without it bounds are ranked only where
        nothing but bounds fits.

    Raises
    ------
    BadValue
        If not exactly one of minimise, maximise and pareto is given, a column holds no numbers, is absent in every
        fitting row, or no row fits.
    """
    need("pyarrow", "reading a sweep", "profiles")
    if sum(map(bool, (minimise, maximise, pareto))) != 1:
        raise BadValue("the best by what? Give one of --minimise, --maximise and --pareto, such as --minimise cost")
    columns = columns_of(path)
    wanted = [column_of(name, list(columns)) for name in (pareto or [minimise or maximise or ""])]
    for name in wanted:
        if not columns[name]:
            raise BadValue(f"{name} holds words: choose a column of numbers, such as time_s or cost")
    condition = parse_where(where, columns) if where is not None else None
    larger = LARGER_IS_BETTER if pareto else tuple(wanted if maximise else ())
    signs = [-1.0 if name in larger else 1.0 for name in wanted]
    keepers = {answer: _Keeper(wanted, signs, top, bool(pareto)) for answer in (FORECAST, BOUND)}
    samplers = {answer: _Sampler(wanted, sample) for answer in keepers}
    fits = dict.fromkeys(keepers, 0)
    seen = feasible = 0
    for batch in _batches(path):
        seen += batch.num_rows
        chosen = batch.filter(batch.column("reason").is_null())
        feasible += chosen.num_rows
        if condition is not None:
            chosen = chosen.filter(condition.mask(chosen))  # what is null is dropped
        for answer, rows in _by_answer(chosen, bounds):
            fits[answer] += rows.num_rows
            keepers[answer].add(rows)
            samplers[answer].add(rows)
    if not any(fits.values()):
        what = "meets the condition" if feasible else "is feasible: their reasons say why"
        raise BadValue(f"{path}: none of its {feasible if feasible else seen:,} rows {what}")
    answer = FORECAST if fits[FORECAST] else BOUND
    keeper = keepers[answer]
    for name in wanted:
        if name not in keeper.present:
            raise BadValue(f"{path}: {name} is absent in every row that fits{_HINTS.get(name, '')}")
    rows = keeper.kept.slice(0, top).to_pylist()
    front = len(keeper.kept) if pareto else 0
    if not rows:
        raise BadValue(f"{path}: no row that fits has all of {', '.join(wanted)}")
    sought = [f"{'high' if sign < 0 else 'low'} {in_words(name)}" for name, sign in zip(wanted, signs)]
    objective = f"Pareto front: {', '.join(sought)}" if pareto else sought[0].replace(" ", "est ", 1)
    if answer == BOUND:
        objective += ", of bounds alone: no row that fits is a forecast"
    left_out = fits[BOUND] if answer == FORECAST else 0
    return Best(rows, objective, seen, fits[answer], tuple(wanted), samplers[answer].values, left_out, front)


def _by_answer(rows: Any, bounds: bool) -> Iterator[tuple[str, Any]]:
    """Forecasts and bounds apart; all together where bounds are to be ranked among forecasts."""
    import pyarrow.compute as pc

    if bounds or "answer" not in rows.schema.names:
        yield FORECAST, rows
        return
    is_bound = pc.fill_null(pc.equal(rows.column("answer").cast("string"), BOUND), False)
    yield FORECAST, rows.filter(pc.invert(is_bound))
    yield BOUND, rows.filter(is_bound)


_HINTS = {
    "cost": ": no price of these devices is on record; sweep with --price, such as '0.90 USD/h'",
    "energy_j": ": no power of these devices is on record; sweep with --power, such as '300 W'",
}
"""What would make a column present."""


class _Keeper:
    """The rows that may still be among the best; `kept` has the best first."""

    def __init__(self, names: Sequence[str], signs: Sequence[float], top: int, front: bool) -> None:
        self.names, self.signs, self.top, self.front = list(names), np.array(signs), top, front
        self.kept: Any = None
        self.present: set[str] = set()

    def add(self, batch: Any) -> None:
        """Take what is good enough of a batch; of equal rows the earlier stays."""
        import pyarrow as pa

        self.present |= {name for name in self.names if batch.column(name).null_count < batch.num_rows}
        batch = batch.take(pa.array(self._choose(batch)))
        table = without_dictionaries(pa.Table.from_batches([batch]))
        self.kept = table if self.kept is None else pa.concat_tables([self.kept, table]).combine_chunks()
        self.kept = self.kept.take(pa.array(self._choose(self.kept)))
        if len(self.kept) > FRONT_AT_MOST:
            raise BadValue(f"more than {FRONT_AT_MOST:,} rows are in the front: name fewer columns, or use --where")

    def _choose(self, rows: Any) -> NDArray[np.int64]:
        values = np.column_stack([_floats(rows.column(name)) for name in self.names])
        whole = np.flatnonzero(~np.isnan(values).any(axis=1))
        values = values[whole] * self.signs
        chosen = pareto_front(values) if self.front else np.argsort(values[:, 0], kind="stable")[: self.top]
        return np.asarray(whole[chosen], dtype=np.int64)


class _Sampler:
    """Every so many rows: every one until there are too many, then every second, fourth, ... of all."""

    def __init__(self, names: Sequence[str], most: int) -> None:
        self.names, self.most, self.step, self.seen = list(names), most, 1, 0
        self.values: list[tuple[float, ...]] = []

    def add(self, batch: Any) -> None:
        """Take what is due of a batch; rows without a value of some column are not."""
        if not self.most:
            return
        values = np.column_stack([_floats(batch.column(name)) for name in self.names])
        values = values[~np.isnan(values).any(axis=1)]
        self.values += map(tuple, values[-self.seen % self.step :: self.step].tolist())
        self.seen += len(values)
        while len(self.values) > self.most:
            self.values = self.values[::2]
            self.step *= 2


def _floats(column: Any) -> Floats:
    """Numbers of a column, NaN where absent."""
    import pyarrow as pa

    column = column.cast(pa.float64())
    array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return np.asarray(array, dtype=np.float64)


def pareto_front(values: Floats) -> NDArray[np.int64]:
    """Rows that no other row equals or beats in every column, in the order of the first column; little is better.

    Parameters
    ----------
    values : ndarray, shape (rows, columns)

    Returns
    -------
    ndarray of int
        Of equal rows the first alone.
    """
    order = np.lexsort((np.arange(len(values)), *values.T[::-1]))  # by the columns in turn, then by place
    if values.shape[1] == 1:
        return np.asarray(order[:1], dtype=np.int64)
    if values.shape[1] == 2:
        second = values[order, 1]
        before = np.concatenate([[np.inf], np.minimum.accumulate(second)[:-1]])
        return np.asarray(order[second < before], dtype=np.int64)
    kept: list[int] = []
    front = np.empty((0, values.shape[1]))
    for row in order.tolist():  # whatever beats a row comes before it
        if not (front <= values[row]).all(axis=1).any():
            kept.append(row)
            front = values[kept]
    return np.array(kept, dtype=np.int64)


def columns_of(path: Path) -> dict[str, bool]:
    """The columns of a sweep's file, and whether each holds numbers."""
    import pyarrow as pa

    try:
        for batch in _batches(path):
            schema = batch.schema
            break
        else:
            raise BadFile(f"{path}: it has no rows")
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror or error})") from None
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise BadFile(f"{path}: the column {field.name[:60]!r} is there twice")
        if pa.types.is_nested(field.type) or pa.types.is_boolean(field.type) or pa.types.is_binary(field.type):
            raise BadFile(f"{path}: the column {field.name[:60]!r} holds neither numbers nor words")
    names = {field.name: not (pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)) for field in schema}
    missing = [name for name in ("network", "gpu", "time_s", "reason") if name not in names]
    if missing:
        raise BadFile(f"{path}: not the rows of a sweep: column {missing[0]!r} is missing")
    return names


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    try:
        if path.suffix == ".csv":
            from pyarrow import csv

            convert = csv.ConvertOptions(
                column_types=dict.fromkeys(WORDS, pa.string())
                | dict.fromkeys(NUMBERS, pa.float64())
                | dict.fromkeys(("batch_size", "workers", "batch_size_per_worker", "sequence_length"), pa.int64()),
                strings_can_be_null=True, quoted_strings_can_be_null=False,
            )  # fmt: skip
            with csv.open_csv(path, convert_options=convert) as reader:
                yield from map(_finite, reader)
            return
        import pyarrow.parquet as pq

        with pq.ParquetFile(path, pre_buffer=False) as file:  # a buffer would grow with the file
            yield from map(_finite, file.iter_batches(_BATCH_ROWS))
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: is not a table of a sweep ({str(error).splitlines()[0]})") from None


def _finite(batch: Any) -> Any:
    """A batch whose numbers are numbers: what is not is absent, as in a row without an answer."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(batch.schema):
        if pa.types.is_floating(field.type):
            finite = pc.is_finite(batch.column(place))
            if pc.any(pc.invert(finite)).as_py():
                batch = batch.set_column(place, field, pc.if_else(finite, batch.column(place), None))
    return batch

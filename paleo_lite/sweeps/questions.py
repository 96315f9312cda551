"""Sweeps over questions of any kind: every combination of their options, each answered as the command answers it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec

from ..errors import BadValue, PaleoError
from ..files import file_exists
from ..machines.registry import parse_power_limit
from ..serving.requests import parse_rate
from ..version import __version__
from . import rows
from .axes import AxisSpace
from .columns import Columns, make_columns
from .inputs import hash_of_file

Answer = Callable[[str, Mapping[str, Any]], Any]
"""Function from the name of a kind of question, and its options, to the answer."""

MAX_CHUNK_ROWS = 64
"""Maximum rows of a chunk."""

OPTION_COLUMNS: Mapping[str, tuple[str, Callable[[Any], float]]] = {
    "rate": ("rate_per_s", parse_rate),
    "power_limit": ("power_limit_w", parse_power_limit),
}
"""Columns of options whose texts are numbers with a unit, with the function that reads them."""


class QuestionChunk(NamedTuple):
    """Some combinations: the values of the outer axes, with all values of the inner ones."""

    number: int
    outer: tuple[Any, ...]


class QuestionSpace(AxisSpace, msgspec.Struct, frozen=True):
    """All combinations of the values of the options of one kind of question."""

    kind: ClassVar[str] = "questions"
    rows_per_s: ClassVar[float] = 4.0

    asks: str  # kind of question: "serve"
    axes: tuple[tuple[str, tuple[Any, ...]], ...]  # options with several values, and the values, the slowest first
    options: dict[str, Any]  # options with a single value
    networks: tuple[str, ...]
    # Number of samples that hours, cost and energy refer to; None where the question has its own amount, or none.
    samples: float | None = None
    hardware_files: tuple[str, ...] = ()  # files with further devices
    as_of: date | None = None  # day of the first run, which decides what prices are old; set by `run.run_sweep`

    def values_by_axis(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of every axis."""
        return dict(self.axes)

    def check(self) -> None:
        """Raise BadValue if an option is no text, number or setting, which a sweep could send to another process."""
        for name, values in (*self.axes, *((name, (value,)) for name, value in self.options.items())):
            for value in values:
                if not _is_plain(value):
                    raise BadValue(
                        f"a file of rows needs names and numbers: `{name}` is a {type(value).__name__}, give its name"
                    )
        self.check_axes()

    def inputs(self) -> dict[str, str]:
        """Return a hash of everything that the results depend on, also of the files that options name."""
        hashes = super().inputs()
        values = [*self.options.values(), *(value for _, of_axis in self.axes for value in of_axis)]
        for value in values:
            if isinstance(value, str) and file_exists(value, Path.is_file):
                hashes[value] = hash_of_file(Path(value))
        return hashes

    @property
    def metadata(self) -> dict[str, Any]:
        """Properties of the sweep that its file states."""
        return {"samples": self.samples, "question": self.asks}

    @property
    def inner_axes(self) -> int:
        """Number of axes, from the last one on, that every chunk has in full."""
        size, count = 1, 0
        for _, values in reversed(self.axes):
            size *= len(values)
            if size > MAX_CHUNK_ROWS:
                break
            count += 1
        return count

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return math.prod(len(values) for _, values in self._outer_axes())

    def _outer_axes(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """Return the axes that differ between chunks."""
        return self.axes[: len(self.axes) - self.inner_axes]

    def chunks(self) -> Iterator[QuestionChunk]:
        """Iterate over all chunks in their order."""
        for number, outer in enumerate(product(*(values for _, values in self._outer_axes()))):
            yield QuestionChunk(number, outer)

    def combinations(self, chunk: QuestionChunk) -> Iterator[dict[str, Any]]:
        """Yield the values of the axes of each row of a chunk."""
        names = [name for name, _ in self.axes]
        inner = self.axes[len(chunk.outer) :]
        for values in product(*(values for _, values in inner)):
            yield dict(zip(names, (*chunk.outer, *values), strict=True))

    def columns(self) -> tuple[list[str], list[str], list[str]]:
        """Return the names of the columns of strings, integers and other numbers."""
        answer_columns = rows.COLUMNS[self.asks]
        strings = [name for name in answer_columns if name in rows.STRINGS]
        integers = [name for name in answer_columns if name in rows.INTEGERS]
        numbers = [name for name in answer_columns if name not in (*strings, *integers)]
        stated: dict[str, tuple[Any, ...]] = dict(self.axes)
        stated |= {name: (value,) for name, value in self.options.items() if isinstance(value, (str, int, float))}
        for name in reversed(stated):
            if name in answer_columns or name in OPTION_COLUMNS or isinstance(stated[name][0], bool):
                continue
            if all(isinstance(value, int) for value in stated[name]):
                integers.insert(0, name)
            elif all(isinstance(value, (int, float)) for value in stated[name]):
                numbers.insert(0, name)
            else:
                strings.insert(0, name)
        return strings, integers, numbers


def _is_plain(value: Any) -> bool:
    """Return whether a value is a text, a number, or made of them."""
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if type(value) in (list, tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, int, float))


def compute_question_chunk(space: QuestionSpace, chunk: QuestionChunk, answer: Answer) -> Columns:
    """Answer a chunk; a combination without an answer becomes a row with the reason."""
    terms = rows.RowTerms(space.samples or 1e6, space.as_of)
    table = []
    for values in space.combinations(chunk):
        options = {**space.options, **values}
        table.append(question_row(options) | _answer_row(space.asks, options, answer, terms))
    strings, integers, numbers = space.columns()
    return make_columns(table, strings, integers, numbers)


def question_row(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that state the question of a row."""
    row: dict[str, Any] = {}
    for name, value in options.items():
        if name in OPTION_COLUMNS:
            column, parse = OPTION_COLUMNS[name]
            row[column] = parse(value)
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            row[name] = value
    return row


def _answer_row(kind: str, options: Mapping[str, Any], answer: Answer, terms: rows.RowTerms) -> dict[str, Any]:
    """Return the columns of an answer; of a combination without one the reason."""
    try:
        row = rows.answer_row(answer(kind, options), terms)
    except PaleoError as error:
        return {"version": __version__, "reason": str(error)}
    return {name: value for name, value in row.items() if value is not None}

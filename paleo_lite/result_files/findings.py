"""`Findings`, what one result file says, `Reading`, one row of it, and `ResultFormat`, how a format is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..profiles.log_lines import COLOURS
from ..text import make_printable, truncate
from .quantities import KINDS, QUANTITIES

MOST_READINGS = 100_000
"""Most rows that are kept of one file; a log of days has more, and repeats itself."""

MOST_OF_A_ROW = 1e30
"""Largest number that a row takes."""

_MOST_DOUBTS = 40
_NAMED_ROWS = 5  # more rows are counted
_NAMED_FIGURES = 6  # more figures are counted
_NUMBERS = re.compile(r"[\d.,]+")
_NOT_MEASURED = "are left out: they cannot have been measured"


class Reading(msgspec.Struct, frozen=True):
    """One measured situation: the facts that identify its question, and the figures in SI units."""

    kind: str  # one of `KINDS`
    values: dict[str, Any]  # by the names of `QUANTITIES`, in their order
    doubts: tuple[str, ...] = ()  # why this row may mislead
    contradicted: tuple[str, ...] = ()  # figures of the row of which others say that they are wrong

    def contradicted_of(self, names: Iterable[str]) -> bool:
        """Return whether other figures of the row say that one of some figures is wrong."""
        return any(name in self.contradicted for name in names)

    def to_dict(self) -> dict[str, Any]:
        """Return the row of the JSON."""
        row: dict[str, Any] = {"kind": self.kind, **self.values}
        return {**row, "doubts": list(self.doubts)} if self.doubts else row


class Findings(msgspec.Struct):
    """What one result file says; readers fill it."""

    path: Path
    format: str  # name of the reader
    tool: str
    version: str = ""
    readings: list[Reading] = []
    configuration: dict[str, Any] = {}  # what the file records of the run, by the names of `configuration.FACTS`
    guessed: dict[str, str] = {}  # how a fact of the configuration was guessed
    missing: list[str] = []  # a sentence for each fact that the user has to add
    doubts: list[str] = []
    source: str = ""  # the path as the user knows it, where the file lies in an archive
    not_numbers: dict[str, None] = {}  # names in the file of figures that are NaN
    dropped: int = 0  # rows over `MOST_READINGS`
    needed: tuple[str, ...] | None = None  # facts that the rows need, where they differ from `configuration.NEEDED`

    @property
    def name(self) -> str:
        """The file as the user knows it."""
        return self.source or str(self.path)

    def add(
        self, kind: str, doubts: tuple[str, ...] = (), contradicted: tuple[str, ...] = (), /, **values: Any
    ) -> None:
        """Add a row; absent and infinite values are left out, and a row without any figure is not a row."""
        if kind not in KINDS:
            raise KeyError(kind)
        unknown = values.keys() - QUANTITIES.keys()
        if unknown:
            raise KeyError(f"{sorted(unknown)} of {self.format} are not among the quantities")
        row = {name: clean(values[name]) for name in QUANTITIES if name in values}
        for name, value in values.items():
            if row[name] is None and _is_finite(value):
                self.doubt(f"values of '{QUANTITIES[name].title}' above {MOST_OF_A_ROW:g} {_NOT_MEASURED}")
        row = {name: _as_count(name, value) for name, value in row.items() if value is not None and value != ""}
        for name in [name for name, value in row.items() if _is_negative(value)]:
            self.doubt(f"negative values of '{QUANTITIES[name].title}' {_NOT_MEASURED}")
            row.pop(name)
        if all(QUANTITIES[name].is_fact for name in row):
            return
        if len(self.readings) >= MOST_READINGS:
            self.dropped += 1
            return
        self.readings.append(Reading(kind, row, doubts, contradicted))

    def record(self, **facts: Any) -> None:
        """Record facts of the run; absent ones, and those that are known already, are left out."""
        for name, value in facts.items():
            cleaned = clean(value)
            if isinstance(cleaned, float) and cleaned.is_integer():
                cleaned = int(cleaned)
            if cleaned is not None and cleaned != "":
                self.configuration.setdefault(name, cleaned)

    def guess(self, how: str, **facts: Any) -> None:
        """Record facts that the file only suggests, with where they come from."""
        for name, value in facts.items():
            if value and name not in self.configuration:
                self.record(**{name: value})
                self.guessed[name] = how

    def doubt(self, sentence: str) -> None:
        """Add a sentence about what makes the file doubtful, once."""
        sentence = make_printable(sentence)
        if sentence not in self.doubts and len(self.doubts) < _MOST_DOUBTS:
            self.doubts.append(sentence)

    def doubt_not_numbers(self) -> None:
        """Add a sentence about the figures that the file gives as NaN, which are absent from its rows."""
        names = list(self.not_numbers)
        if names:
            others = f" and {len(names) - _NAMED_FIGURES} more" if len(names) > _NAMED_FIGURES else ""
            self.doubt(f"NaN is given for {', '.join(names[:_NAMED_FIGURES])}{others}: left out, as not measured")

    @property
    def guesses(self) -> list[str]:
        """A sentence for each place of the file that only suggests facts."""
        by_place: dict[str, list[str]] = {}
        for name, how in self.guessed.items():
            by_place.setdefault(how, []).append(f"{name} {self.configuration[name]}")
        return [f"guessed from {how}: {', '.join(facts)}" for how, facts in by_place.items()]

    def doubts_by_rows(self) -> list[tuple[str, list[int]]]:
        """Return each doubt about rows once, as that of the first row, and the numbers of its rows, from 1."""
        first: dict[str, str] = {}
        rows: dict[str, list[int]] = {}
        for number, reading in enumerate(self.readings, 1):
            for doubt in reading.doubts:
                pattern = _NUMBERS.sub("", doubt)
                first.setdefault(pattern, doubt)
                rows.setdefault(pattern, []).append(number)
        return [(doubt, rows[pattern]) for pattern, doubt in first.items()]

    @property
    def row_doubts(self) -> list[str]:
        """A sentence for each doubt about rows, which names the row if there are several."""
        sentences = []
        for doubt, rows in self.doubts_by_rows():
            place = f"row {rows[0]}: " if len(self.readings) > 1 else ""
            others = f" ({_name_rows(rows[1:])} likewise)" if len(rows) > 1 else ""
            sentences.append(f"{place}{doubt}{others}")
        return sentences

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "file": self.name,
            "format": self.format,
            "tool": self.tool,
            "version": self.version or None,
            "measurements": [reading.to_dict() for reading in self.readings],
            "configuration": self.configuration,
            "guessed": self.guessed,
            "missing": self.missing,
            "doubts": self.doubts,
        }


def _name_rows(rows: list[int]) -> str:
    """Return the numbers of rows, or how many there are."""
    if len(rows) > _NAMED_ROWS:
        return f"{len(rows):,} more rows"
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))}"


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < math.inf  # also false for NaN


def _is_negative(value: Any) -> bool:
    return isinstance(value, (int, float)) and value < 0


def _as_count(name: str, value: Any) -> Any:
    """Return a count as an integer where it is one."""
    is_count = QUANTITIES[name].unit in ("", "B")
    return int(value) if is_count and isinstance(value, float) and value.is_integer() else value


def clean(value: Any) -> Any:
    """Return a value as a row holds it: text printable and short, numbers finite; None for anything else."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return truncate(make_printable(COLOURS.sub("", value).strip()))
    if isinstance(value, (int, float)):
        return value if abs(value) <= MOST_OF_A_ROW else None  # also false for NaN
    return None


class ResultFormat(NamedTuple):
    """One format; the last lines of the module of its reader list it in `FORMATS`."""

    name: str  # such as ``vllm-serve``
    tool: str  # what wrote the file, as the output names it
    description: str  # the files, for the message that lists all formats
    read: Callable[[Path, Findings], None]  # fills the findings
    keys: tuple[str, ...] = ()  # JSON keys, all of which the first 64 KiB of a file have
    sign: re.Pattern[str] | None = None  # of text: found in the first 64 KiB, or in a line with a marker
    markers: tuple[str, ...] = ()  # literal texts, one of which is in each line with the sign
    magic: bytes = b""  # first bytes of a binary file

    def recognises(self, head: bytes, text: str) -> bool:
        """Return whether the first bytes of a file, and the same as text, have this format."""
        if self.magic:
            return head.startswith(self.magic)
        if self.keys:
            return all(f'"{key}"' in text for key in self.keys)
        return self.sign is not None and self.sign.search(text) is not None

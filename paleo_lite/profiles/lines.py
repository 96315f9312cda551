"""Reading of text profiles: numbered lines with limits, CSV tables, and numbers with units."""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from ..errors import BadProfile
from .detect import open_utf8, read_head
from .log_lines import cleaner_of
from .names import communicates
from .pasted import as_printed, is_pasted

LONGEST_LINE = 2**20
"""Bytes; the longest real line, a C++ name with template arguments, has about 20,000."""

MOST_BLANK = 2**16
"""Maximum of consecutive blank lines; a small gzip file can expand to an unlimited number."""

MOST_ROWS = 2**18
SUMMARY_BYTES = 2**27
"""Maximum rows and bytes of a summary, which is read into memory and has one row per kernel."""

MOST_PREAMBLE = 10_000
"""Maximum lines of the program's own output before a heading."""

TIME_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
SIZE_BYTES = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40}
"""nvprof counts in powers of 2: its 409,600-byte copy is 400 KB."""

_NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?", re.ASCII)


def numbered_lines(path: Path, most: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of every non-blank line, without trailing spaces.

    Gzip is decompressed. A line that is not UTF-8 is read as Latin-1; a byte-order mark is dropped. What launchers and
    terminals write into lines is removed (`log_lines`), and tables in Markdown or HTML come as printed (`pasted`).
    `most` limits the bytes, for callers that keep all lines (`SUMMARY_BYTES`).
    Raise BadProfile if the file cannot be read or decompressed or has more than `most` bytes, or a line is too long or
    not text.
    """
    head = _lines_of(read_head(path))
    clean = cleaner_of(head)
    if clean is not None:
        head = [clean(line) for line in head]
    pasted = is_pasted(head)
    lines = _raw_lines(path, most or SUMMARY_BYTES if pasted else most)
    if clean is not None:
        lines = ((number, text) for number, line in lines if (text := clean(line)))
    yield from as_printed(lines) if pasted else lines


def _raw_lines(path: Path, most: int | None) -> Iterator[tuple[int, str]]:
    number = blank = size = 0
    try:
        with open_utf8(path) as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                size += len(line)
                if most and size > most:
                    raise BadProfile(f"{path}: line {number}: more than {most:,} bytes, expected a summary")
                if len(line) > LONGEST_LINE:
                    raise BadProfile(f"{path}: line {number} is longer than {LONGEST_LINE:,} bytes")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if b"\0" in line:
                    raise BadProfile(f"{path}: line {number} holds a zero byte, expected text")
                text = decoded(line).rstrip(" \r\n")
                blank = 0 if text.strip() else blank + 1
                if blank > MOST_BLANK:
                    raise BadProfile(f"{path}: line {number}: {blank:,} lines without content in a row")
                if not blank:
                    yield number, text
    except OSError as error:
        raise BadProfile(f"{path}: line {number + 1} cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error) as error:
        raise BadProfile(f"{path}: gzip that is cut or corrupted after line {number} ({error})") from None


@lru_cache(2)
def decoded_head(head: bytes) -> tuple[str, ...]:
    """Return the lines of the first bytes of a file, for recognition; tables in Markdown or HTML as printed.

    A dozen readers ask for the same head, one after another.
    """
    lines = _lines_of(head)
    clean = cleaner_of(lines)
    if clean is not None:
        lines = [clean(line) for line in lines]
    return tuple(line for _, line in as_printed(enumerate(lines, 1))) if is_pasted(lines) else tuple(lines)


def _lines_of(head: bytes) -> list[str]:
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [decoded(line).rstrip(" \r\n") for line in lines if len(line) <= LONGEST_LINE]


def number_of(text: str) -> float:
    """Convert a finite decimal number.

    Raise ValueError if the text is anything else: empty, ``nan``, ``inf``, a number with a unit.
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


def quantity_of(text: str, units: Mapping[str, float]) -> float:
    """Convert a number with a unit to the base unit: ``quantity_of("230.07us", TIME_NS)`` is 230,070.

    Raise ValueError if it is not a number or the unit is not among `units`.
    """
    match = _NUMBER.match(text)
    factor = units.get(text[match.end() :].strip()) if match else None
    if match is None or factor is None:
        raise ValueError(text)
    value = number_of(match[0]) * factor
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return round(value, 6)  # removes rounding errors: 46.6474 s are exactly 46,647,400,000 ns


class CsvTable:
    """A CSV table between lines of the profiler (``==PID== ...``) and of the program.

    `heading` is the pattern of the start of the heading. The heading can be repeated with other columns: a file can
    hold several processes. `units` says whether the line below the heading contains the units, `most` is as for
    `numbered_lines`, and `fewest` names the least columns, for the error of a heading of two. With `has_long_cells`,
    a cell in quotation marks may go on in further lines. The attributes `names` and `units` are those of the most
    recent heading; a new list for every heading.
    """

    def __init__(
        self,
        path: Path,
        heading: re.Pattern[str],
        units: bool,
        delimiter: str = ",",
        most: int | None = None,
        fewest: str = "",
        has_long_cells: bool = False,
    ) -> None:
        self.path, self.heading, self.has_units, self.delimiter = path, heading, units, delimiter
        self.fewest, self.has_long_cells = fewest, has_long_cells
        self.most = most
        self.names: list[str] = []
        self.units: list[str] = []
        self.units_line = 0

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and fields of every row.

        Raise BadProfile if there is no heading, or a row has a different number of columns.
        """
        lines = numbered_lines(self.path, self.most)
        for number, line in _join_cells(self.path, lines) if self.has_long_cells else lines:
            if line.startswith("=="):
                continue
            if self.heading.match(line):
                self.names, self.units = self._names(number, line), []
                continue
            if not self.names:
                if number > MOST_PREAMBLE:
                    break
                continue
            fields = fields_of(self.path, number, line, self.delimiter)
            if len(fields) != len(self.names):
                raise BadProfile(f"{self.path}: line {number}: {len(fields)} columns, expected {len(self.names)}")
            if self.has_units and not self.units:
                self.units, self.units_line = fields, number
                continue
            yield number, fields
        if not self.names:
            raise BadProfile(f"{self.path}: the heading that this profiler prints above its table is missing")

    def _names(self, number: int, line: str) -> list[str]:
        try:
            names = [name.strip().rstrip("*") for name in fields_of(self.path, number, line, self.delimiter)]
        except BadProfile:
            names = []
        if len(names) < 3:
            expected = f"columns between {self.delimiter!r}"
            if len(names) > 1 and self.fewest:
                expected = f"at least the columns {self.fewest}"
            raise BadProfile(f"{self.path}: line {number}: the heading is {quoted(line)}, expected {expected}")
        if len(set(names)) < len(names):
            raise BadProfile(f"{self.path}: line {number}: a column appears twice in the heading")
        return names


def _join_cells(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, each with the lines in which a cell in quotation marks goes on."""
    begun, text = 0, ""
    for number, line in lines:
        text = f"{text} {line}" if begun else line
        begun = begun or number
        if len(text) > LONGEST_LINE:
            raise BadProfile(f"{path}: line {begun}: a cell in quotation marks does not end")
        if text.count('"') % 2 == 0:
            yield begun, text
            begun = 0
    if begun:
        raise BadProfile(f"{path}: line {begun}: a cell in quotation marks does not end")


def fields_of(path: Path, number: int, line: str, delimiter: str = ",") -> list[str]:
    """Split a line of CSV into fields."""
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise BadProfile(f"{path}: line {number}: not CSV ({error})") from None


def gpu_category(name: str) -> str:
    """Return the category of a GPU activity from its name in nvprof and similar tools."""
    if name.startswith(("[CUDA memcpy", "[Unified Memory Memcpy")):
        return "memcpy"
    if name.startswith("[CUDA memset"):
        return "memset"
    return "communication" if communicates(name) else "kernel"


def quoted(text: str, most: int = 60) -> str:
    """Return a text from a file for an error message: quoted, escaped, truncated."""
    return repr(text if len(text) <= most else text[:most] + "...")


def decoded(line: bytes) -> str:
    """Decode a line as UTF-8, or as Latin-1 if it is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def whole_cell(path: Path, number: int, name: str, text: str) -> int | None:
    """Return a cell of a line as an integer; None if it is blank."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise BadProfile(f"{path}: line {number}: {name} is {quoted(text)}, expected a whole number")
    return int(text)

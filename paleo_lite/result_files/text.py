"""Numbers, durations and lines of text as tools print them, and files read within bounded memory.

A log of days has hundreds of megabytes, of which few lines matter: `find_lines` looks for the literal markers of a
format in large chunks, and decodes only the lines around them.
"""

from __future__ import annotations

import csv
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadFile
from ..profiles.detect import UTF16_MARKS, is_gzip, open_decompressed, open_utf8, read_head
from ..profiles.log_lines import COLOURS, common_prefix

if TYPE_CHECKING:
    from .findings import Findings

CHUNK_BYTES = 2**20
LONGEST_LINE = 2**14
"""Bytes of a line; the rest is cut. Progress bars write thousands of updates into one line: they are lines here."""

MOST_TABLE_ROWS = 2**20
MANY_LINES = 5_000
READ_OF_MANY = 128
"""Lines with measurements after which only one of so many megabytes of a log is read: the mean is known by then.

A marker that no line has contained by then is not searched for any more.
"""

SAMPLED_BYTES = 2**16
"""Bytes of a chunk of which the density of lines with markers is known."""

LINE_ENDS = re.compile(rb"[\r\n]+")

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d{1,30},\d{1,30}")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?:\.\d{3})+,\d{1,30}|(?:[ \xa0\u2009\u202f'’]\d{3})+(?:[.,]\d{1,30})?)")
"""Thousands divided as in continental Europe: by points before a decimal comma, by blanks or by apostrophes."""
_GROUPS = re.compile(r"[ \xa0\u2009\u202f'’]")
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(h|min|ms|m|s|us|µs|μs|ns)")
_CLOCK = re.compile(r"(?:(\d{1,6}) days?, )?(\d{1,6}):(\d{2}):(\d{2}(?:\.\d{1,9})?)")
_SECONDS = {
    "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9
}  # fmt: skip

UNITS = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "MB/sec": 2.0**20, "MiB/sec": 2.0**20,
    "GB/s": 1e9, "Gb/sec": 1.25e8, "MB/s": 1e6, "mW": 1e-3, "W": 1.0, "MHz": 1e6, "kWh": 3.6e6, "mJ": 1e-3, "J": 1.0,
    "GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "GB": 1e9, "MB": 1e6, "TFLOP": 1e12, "GFLOP": 1e9,
}  # fmt: skip
"""Factors to SI units; ``MB/sec`` is perftest's, which counts in powers of 2."""


LARGEST = 1e300
"""Numbers above it are read as this one: sums of them are finite, and no row takes it."""


def to_number(value: Any) -> float | None:
    """Return a finite number, also from a text with divided thousands or a decimal comma; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return max(min(value, LARGEST), -LARGEST) if abs(value) < math.inf else None  # also false for NaN
    if not isinstance(value, str):
        return None
    text = value.strip().strip("'\"")
    match = _NUMBER.fullmatch(text)
    if match is None and _DECIMAL_COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    if match is None and _GROUPED.fullmatch(text):
        plain = _GROUPS.sub("", text)
        return float(plain.replace(".", "").replace(",", ".") if "," in plain else plain)
    if match is None:
        return None
    number = float(text.replace(",", ""))
    return number if math.isfinite(number) else None


def to_seconds(text: str) -> float | None:
    """Return the seconds of a duration as Go or Python prints it: ``1m2.496s``, ``355.5ms``, ``0:15:11.36``."""
    text = text.strip()
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        days, hours, minutes, seconds = clock.groups()
        return 86400.0 * int(days or 0) + 3600.0 * int(hours) + 60.0 * int(minutes) + float(seconds)
    pieces = _DURATION.findall(text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in pieces)


def scaled(value: Any, factor: float) -> float | None:
    """Return a number in SI units; None for anything else."""
    number = to_number(value)
    return None if number is None else number * factor


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return a quotient; None where a part is missing or the denominator is not positive."""
    if numerator is None or denominator is None or denominator <= 0:
        return None
    return numerator / denominator


def product(*factors: float | None) -> float | None:
    """Return a product; None where a factor is missing."""
    numbers = [factor for factor in factors if factor is not None]
    return math.prod(numbers) if len(numbers) == len(factors) else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None without any."""
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


def launcher_prefix(head: bytes) -> re.Pattern[bytes] | None:
    """Return the pattern of what a launcher wrote before every line, from the head of a file; None for nothing."""
    lines = plain_text(head).split("\n")
    prefix = common_prefix(lines[:-1] if len(lines) > 1 else lines)  # the last line may be cut
    return re.compile(rb"(?m)" + prefix.encode()) if prefix else None


def read_chunks(path: Path, is_wanted: Callable[[int], bool] | None = None) -> Iterator[bytes]:
    """Yield the file in chunks that end with a line, decompressed if it is gzip; a line that never ends is cut.

    Chunks whose number is not wanted are not read, and are yielded empty.
    """
    rest, number, starts_inside = b"", -1, False
    prefix = launcher_prefix(read_head(path))
    try:
        with open_utf8(path) as file:
            while True:
                number += 1
                if is_wanted is not None and not is_wanted(number):
                    if not file.read(1):  # nothing is left out behind the end
                        break
                    file.seek(CHUNK_BYTES - 1, io.SEEK_CUR)
                    rest, starts_inside = b"", True
                    yield b""
                    continue
                piece = file.read(CHUNK_BYTES)
                if not piece:
                    break
                if starts_inside:
                    piece, starts_inside = piece[piece.find(b"\n") + 1 :], False
                joined = rest + piece if rest else piece
                cut = max(joined.rfind(b"\n"), joined.rfind(b"\r")) + 1
                rest = joined[cut:][-CHUNK_BYTES:]
                if cut:
                    yield joined[:cut] if prefix is None else prefix.sub(b"", joined[:cut])
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error):  # `is_cut` says so
        rest = b""
    if rest:
        yield rest if prefix is None else prefix.sub(b"", rest)


def is_cut(path: Path) -> bool:
    """Return whether a file is a gzip whose end is missing; what comes before its last 256 KiB is read."""
    if not is_gzip(path):
        return False
    try:
        with open_decompressed(path) as file:
            while file.read(CHUNK_BYTES):
                continue
    except (EOFError, zlib.error):
        return True
    return False


_LAST_NUMBER = re.compile(r"(?<![\w.])[\d,]*\d(?:\.(\d*))?\Z", re.ASCII)
_DECIMALS = re.compile(r"\d\.(\d+)(?![\d.])", re.ASCII)
_LAST_BYTES = 4096


def number_at_end(path: Path) -> str:
    """Return the number with which a text ends that has no line break, where it may be cut; empty for any other file.

    It is taken to be whole if it has as many decimals as most numbers before it.
    """
    with path.open("rb") as file:
        file.seek(max(file.seek(0, io.SEEK_END) - _LAST_BYTES, 0))
        data = file.read()
    text = data.decode("utf-8", errors="replace")
    match = _LAST_NUMBER.search(text)
    if match is None or b"\0" in data or is_gzip(path):  # not the bytes of a text
        return ""
    before = Counter(len(decimals) for decimals in _DECIMALS.findall(text[: match.start()]))
    usual_decimals = before.most_common(1)[0][0] if before else 0
    return "" if usual_decimals and len(match[1] or "") >= usual_decimals else match[0]


def find_lines(path: Path, markers: Sequence[str], findings: Findings | None = None) -> Iterator[str]:
    """Yield the lines that contain one of the markers, without ANSI colours; updates of a progress bar are lines.

    With findings, whose rows are then means over many lines, only a part of a very long log is read, and a doubt says
    so.
    """
    looked_for = [marker.encode() for marker in markers]
    seen_markers: set[bytes] = set()
    line_count = skipped = 0

    def is_wanted(number: int) -> bool:
        return findings is None or line_count <= MANY_LINES or number % READ_OF_MANY == 0

    for chunk in read_chunks(path, is_wanted):
        skipped += not chunk
        if findings is not None and line_count > MANY_LINES:
            looked_for = [marker for marker in looked_for if marker in seen_markers]
        present = [marker for marker in looked_for if marker in chunk]
        if not present:
            continue
        seen_markers.update(present)
        if _is_dense(chunk[:SAMPLED_BYTES], present):
            lines = [line for line in LINE_ENDS.split(chunk) if any(marker in line for marker in present)]
        else:
            lines = _lines_around(chunk, present)
        line_count += len(lines)
        yield from map(plain, lines)
    if skipped and findings is not None:
        findings.doubt(f"of the lines after the first {MANY_LINES:,} only one of {READ_OF_MANY} megabytes was read")


def _is_dense(sample: bytes, markers: Sequence[bytes]) -> bool:
    """Return whether so many lines of a chunk have a marker that going through all is faster."""
    return 8 * sum(sample.count(marker) for marker in markers) > sample.count(b"\n")


def _lines_around(chunk: bytes, markers: Sequence[bytes]) -> list[bytes]:
    """Return the lines that contain a marker, by the places of the markers."""
    lines, end = [], 0
    for place in sorted(_places(chunk, markers)):
        if place >= end:
            start = max(chunk.rfind(b"\n", end, place), chunk.rfind(b"\r", end, place), end - 1) + 1
            end = _end_of_line(chunk, place)
            lines.append(chunk[start:end])
    return lines


def _places(chunk: bytes, markers: Sequence[bytes]) -> Iterator[int]:
    for marker in markers:
        place = chunk.find(marker)
        while place >= 0:
            yield place
            place = chunk.find(marker, _end_of_line(chunk, place))


def _end_of_line(chunk: bytes, place: int) -> int:
    newline = chunk.find(b"\n", place)
    end = newline if newline >= 0 else len(chunk)
    carriage = chunk.find(b"\r", place, end)
    return carriage if carriage >= 0 else end


def all_lines(path: Path) -> Iterator[str]:
    """Yield every line that is not blank, without ANSI colours."""
    for chunk in read_chunks(path):
        for line in LINE_ENDS.split(chunk):
            if line.strip():
                yield plain(line)


def plain(line: bytes) -> str:
    """Return a line as text, without ANSI colours, a byte-order mark, and what exceeds the longest line."""
    return plain_text(line[:LONGEST_LINE]).rstrip()


def plain_text(data: bytes) -> str:
    """Return bytes as text, without ANSI colours and a byte-order mark; each update of a progress bar is a line."""
    encoding = "utf-16" if data.startswith(UTF16_MARKS) else "utf-8"
    text = data.decode(encoding, errors="replace").removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
    return COLOURS.sub("", text) if "\x1b" in text else text


def split_csv(line: str) -> list[str]:
    """Return the cells of a line of CSV, without blanks and quotes around them; empty if it is none."""
    try:
        cells = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def read_table(path: Path, heading: re.Pattern[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV table as dictionaries; the heading, which the pattern matches, may be repeated."""
    names: list[str] = []
    count = 0
    for line in all_lines(path):
        if heading.search(line):
            names = split_csv(line)
            continue
        cells = split_csv(line) if names else []
        if len(cells) < max(len(names) - 2, 2):
            continue
        count += 1
        if count > MOST_TABLE_ROWS:
            raise BadFile(f"{path}: more than {MOST_TABLE_ROWS:,} rows, expected a table of results")
        yield dict(zip(names, cells, strict=False))

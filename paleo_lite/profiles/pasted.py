"""Tables of profilers pasted into Markdown or HTML, rewritten as the profiler prints them.

People paste tables into issues, notebooks and wikis, which turn columns into `|` or tags. The readers know only what
the profilers print: columns below rules of hyphens. A pasted table is rewritten in that form before it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

_SEPARATOR = re.compile(r"\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)+\|?\s*")
"""Line of hyphens between the heading and the rows of a table in Markdown."""
_PIPE = re.compile(r"(?<!\\)\|")
_MARKUP = re.compile(r"(\*\*|`)(.*)\1")

Row = tuple[int, list[str]]
"""Number of the line in the file, and its cells."""


def is_pasted(lines: Iterable[str]) -> bool:
    """Return whether lines hold a table in Markdown or HTML."""
    return any(_SEPARATOR.fullmatch(line) or _begins_html(line) for line in lines)


def as_printed(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield numbered lines with every pasted table as columns below rules; other lines as they are."""
    lines = list(numbered)
    index = 0
    while index < len(lines):
        number, line = lines[index]
        if _begins_html(line):
            end = _end_of_html(lines, index)
            yield from _printed(_html_rows(lines[index:end]))
        elif index + 1 < len(lines) and "|" in line and _SEPARATOR.fullmatch(lines[index + 1][1]):
            end = index + 2
            while end < len(lines) and _PIPE.search(lines[end][1]):
                end += 1
            body = [lines[index], *lines[index + 2 : end]]
            yield from _printed([(number, _markdown_cells(text)) for number, text in body])
        else:
            end = index + 1
            yield number, line
        index = end


def _begins_html(line: str) -> bool:
    return re.match(r"\s*<table\b", line, re.IGNORECASE) is not None


def _end_of_html(lines: list[tuple[int, str]], start: int) -> int:
    for index in range(start, len(lines)):
        if "</table" in lines[index][1].lower():
            return index + 1
    return len(lines)


def _markdown_cells(line: str) -> list[str]:
    text = line.strip().removeprefix("|")
    if text.endswith("|") and not text.endswith("\\|"):
        text = text[:-1]
    cells = [cell.strip().replace("\\|", "|") for cell in _PIPE.split(text)]
    return [_MARKUP.sub(r"\2", cell) if _MARKUP.fullmatch(cell) else cell for cell in cells]


class _TableParser(HTMLParser):
    """Collector of the rows of a table and of the lines on which they begin."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[Row] = []
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append((self.getpos()[0], []))
        elif tag in ("td", "th") and self.rows:
            self.rows[-1][1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "tr"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][1][-1] += data


def _html_rows(lines: list[tuple[int, str]]) -> list[Row]:
    parser = _TableParser()
    parser.feed("\n".join(text for _, text in lines))
    parser.close()
    return [(lines[line - 1][0], [" ".join(cell.split(" ")).strip() for cell in cells]) for line, cells in parser.rows]


def _printed(rows: list[Row]) -> Iterator[tuple[int, str]]:
    """Yield a table between rules as wide as its columns; the first row is the heading."""
    if not rows:
        return
    columns = max(len(cells) for _, cells in rows)
    table = [(number, [*cells, *[""] * (columns - len(cells))]) for number, cells in rows]
    widths = [max(3, *(len(cells[column]) for _, cells in table)) for column in range(columns)]
    rule = "  ".join("-" * width for width in widths)
    yield table[0][0], rule
    for place, (number, cells) in enumerate(table):
        yield number, "  ".join(cell.ljust(width) for cell, width in zip(cells, widths))
        if place == 0:
            yield number, rule
    yield table[-1][0], rule

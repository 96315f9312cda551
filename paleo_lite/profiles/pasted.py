"""Tables of profilers in Markdown, HTML or between lines, rewritten as the profiler prints them.

People paste tables into issues, notebooks and wikis, which turn columns into `|` or tags, and some tools draw lines
between columns (``nsys stats --format table``, rocprofv3). The readers know only columns below rules of hyphens. Any
other table is rewritten in that form before it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from itertools import zip_longest

_SEPARATOR = re.compile(r"\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)+\|?\s*")
"""Line of hyphens between the heading and the rows of a table in Markdown."""
_GRID = re.compile(r"\s*\+?-{2,}(?:\+-{2,})+\+?\s*")
"""Line between the rows of a table with lines around its cells, or below its heading as databases print it."""
_CORNERS = "┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╞╡╪╒╕╘╛╤╧╇┡┩"
_BOXES = str.maketrans(dict.fromkeys("│┃║", "|") | dict.fromkeys("─━═", "-") | dict.fromkeys(_CORNERS, "+"))
"""ASCII in place of the characters for lines around cells."""
_PIPE = re.compile(r"(?<!\\)\|")
_MARKUP = re.compile(r"(\*\*|`)(.*)\1")

Row = tuple[int, list[str]]
"""Number of the line in the file, and its cells."""


def is_pasted(lines: Iterable[str]) -> bool:
    """Return whether lines hold a table in Markdown or HTML, or one with lines around its cells."""
    return any(_SEPARATOR.fullmatch(line) or _begins_html(line) or _is_grid(line) for line in lines if line)


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
        elif _is_grid(line) or (index + 1 < len(lines) and "|" in line and _is_grid(lines[index + 1][1])):
            end = index
            while end < len(lines) and ("|" in (text := lines[end][1].translate(_BOXES)) or _is_grid(text)):
                end += 1
            yield from _printed(_grid_rows(lines[index:end]))
        else:
            end = index + 1
            yield number, line
        index = end


def _is_grid(line: str) -> bool:
    return _GRID.fullmatch(line.translate(_BOXES)) is not None


def _grid_rows(lines: list[tuple[int, str]]) -> list[Row]:
    """Return the rows between lines, which are as wide as the columns: a cell may hold a `|`."""
    texts = [(number, text.translate(_BOXES)) for number, text in lines]
    rule = next(text for _, text in texts if _GRID.fullmatch(text))
    corners = [match.start() for match in re.finditer(r"\+", rule)]
    rows = []
    for number, text in texts:
        if _GRID.fullmatch(text):
            continue
        if all(text[corner : corner + 1] == "|" for corner in corners):
            starts, ends = [-1, *corners], [*corners, None]
            cells = [text[start + 1 : end].strip() for start, end in zip(starts, ends)]
            is_framed = rule.strip().startswith("+")
            rows.append((number, cells[1:-1] if is_framed else cells))
        else:
            rows.append((number, _markdown_cells(text)))
    return rows


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
        if all(re.fullmatch("-*", cell) for cell in cells):  # the rule that the profiler drew below the last row
            yield number, rule
            yield from ((below, line) for below, footer in table[place + 1 :] for line in _footer_lines(footer))
            return
        yield number, "  ".join(cell.ljust(width) for cell, width in zip(cells, widths))
        if place == 0:
            yield number, rule
    yield table[-1][0], rule


def _footer_lines(cells: list[str]) -> list[str]:
    """Return the lines below a table that became cells of a row, such as totals with their values."""
    parts = [re.split(r"<br ?/?>", cell) for cell in cells if cell]
    return [" ".join(part.strip() for part in line) for line in zip_longest(*parts, fillvalue="")]

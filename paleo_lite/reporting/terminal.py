"""Formatting of documents for a terminal: tables that fit its width, with long text wrapped.

Not written with rich: importing and running rich takes a quarter of the time of the README's first command (40 of
185 ms, measured).
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Mapping
from itertools import zip_longest
from textwrap import indent
from typing import IO, Any

import msgspec

from ..text import make_printable
from .document import Chart, Column, Document, Table

GAP = 2
"""Blanks between two columns."""

MIN_WRAPPED_WIDTH = 16
"""Minimum width in characters of a wrapped column."""

BAR_WIDTH = 10
"""Characters of a bar of 100%."""

BAR_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")

_ASCII_SUBSTITUTES = {
    "─": "-",
    "█": "#",
    "µ": "u",
    **dict.fromkeys(BAR_EIGHTHS[1:4], ""),
    **dict.fromkeys(BAR_EIGHTHS[4:], "#"),
}

_COLOURED = {"bold": "\x1b[1m", "dim": "\x1b[2m", "note": "\x1b[33m", "end": "\x1b[0m"}
_UNCOLOURED = dict.fromkeys(_COLOURED, "")

_PIECES = re.compile(r"[^_/.,:-]*[_/.,:-]+|[^_/.,:-]+")
"""Pieces of a word between which a line may be broken."""


def show_document(document: Document, style: str, out: IO[str]) -> None:
    """Write a document to a file or terminal, in the style "table", which is for terminals, "markdown" or "csv".

    Characters that the output's encoding lacks are replaced by ASCII ones.
    """
    if style == "csv":
        document.write_csv(out)
        return
    if style == "markdown":
        text = document.markdown()
    else:
        is_coloured = out.isatty() and "NO_COLOR" not in os.environ
        styles = _COLOURED if is_coloured else _UNCOLOURED
        width = _terminal_width()
        blocks = _format_blocks(document, width, styles, width if out.isatty() else None)
        text = "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "paleo_lite.ascii").decode(encoding))


def _terminal_width() -> int:
    """Return the width of the terminal: COLUMNS, else that of standard output, else 80.

    The same as `shutil.get_terminal_size`, whose module takes long to import.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    if sys.__stdout__ is None:
        return 80
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80
    except (ValueError, OSError):  # closed, or not a terminal
        return 80


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Handle an encoding error: return ASCII substitutes and the position to continue at."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_ASCII_SUBSTITUTES.get(character, "?") for character in characters), error.end


codecs.register_error("paleo_lite.ascii", _replace_unencodable)


def _format_blocks(
    document: Document, width: int, styles: Mapping[str, str], line_width: int | None
) -> list[list[str]]:
    """Return the blocks of lines of a document: title and facts, content, commands, notes, sections.

    Title and notes are one line each, so that they can be searched for, unless the output is a terminal of
    `line_width`.
    """
    bold, dim, yellow, end = (styles[style] for style in ("bold", "dim", "note", "end"))
    head = []
    if document.title:
        head += [f"{bold}{line}{end}" for line in wrap_text(document.title, line_width)]
    for text in (document.question, *document.introduction):
        if text:
            head += wrap_text(text, width)
    facts = [*((answer.name, answer.text) for answer in document.answers), *document.facts]
    label_width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        first, *rest = wrap_text(value, max(width - label_width - 4, MIN_WRAPPED_WIDTH))
        head.append(f"  {dim}{name.ljust(label_width)}{end}  {first}")
        head += [" " * (label_width + 4) + line for line in rest]
    blocks = [head]
    for entry in document.content:
        if isinstance(entry, Table):
            title = [f"{bold}{line}{end}" for line in wrap_text(entry.title, width)] if entry.title else []
            blocks.append(title + format_table_lines(entry, width, styles))
        elif not isinstance(entry, Chart):
            blocks.append(wrap_text(entry, width))
    blocks += [[f"{purpose}:", *indent(command, "  ").split("\n")] for purpose, command in document.commands]
    notes = []
    for note in document.notes:
        notes += [f"{yellow}{line}{end}" for line in wrap_text(f"note: {note}", line_width)]
    blocks.append(notes)
    for section in document.sections:
        blocks += _format_blocks(section, width, styles, line_width)
    return blocks


class ColumnLayout(msgspec.Struct, eq=False):
    """A table column as text: its cells, its width, and its minimum width without breaking a word."""

    column: Column
    head: list[str]
    cells: list[str]
    footer: list[str]
    width: int
    min_width: int


def format_table_lines(table: Table, width: int, styles: Mapping[str, str] = _UNCOLOURED) -> list[str]:
    """Return the lines of a table for a terminal of the given width."""
    layouts = fit_columns(table, width)
    shown = [layout.column for layout in layouts]
    dropped = [column.heading for column in table.columns if column not in shown]
    _insert_bars(table, layouts, width)
    height = max(len(layout.head) for layout in layouts)
    head = [[""] * (height - len(layout.head)) + layout.head for layout in layouts]
    lines = _format_row(head, layouts)
    lines.append("─" * _total_width(layouts))
    for index in range(len(table.rows)):
        cells = [wrap_text(layout.cells[index], layout.width, break_words=True) for layout in layouts]
        lines += _format_row(cells, layouts)
    if table.footer:
        lines.append("")
    for index in range(len(table.footer)):
        for line in _format_row([[layout.footer[index]] for layout in layouts], layouts):
            lines.append(f"{styles['bold']}{line}{styles['end']}")
    if dropped:
        lines += wrap_text(f"not shown at this width: {', '.join(dropped)}", width)
    return lines


def _insert_bars(table: Table, layouts: list[ColumnLayout], width: int) -> None:
    """Insert a column of bars after each column with `Column.bar`, where the width allows it."""
    for layout in [layout for layout in layouts if layout.column.bar]:
        if _total_width(layouts) + GAP + BAR_WIDTH <= width:
            bars = _lay_out_column(table, Column(layout.column.key, "", text_bar, left=True))
            bars.width = BAR_WIDTH
            layouts.insert(layouts.index(layout) + 1, bars)


def text_bar(fraction: Any) -> str:
    """Return a bar of block characters for a fraction, exact to an eighth of a character."""
    clipped = min(max(float(fraction), 0.0), 1.0)
    eighths = round(8 * BAR_WIDTH * clipped)
    return "█" * (eighths // 8) + BAR_EIGHTHS[eighths % 8]


def _format_row(cells: list[list[str]], layouts: list[ColumnLayout]) -> list[str]:
    """Return the lines of one row, from the lines of each of its cells."""
    lines = []
    for texts in zip_longest(*cells, fillvalue=""):
        aligned = []
        for text, layout in zip(texts, layouts):
            aligned.append(text.ljust(layout.width) if layout.column.left else text.rjust(layout.width))
        lines.append((" " * GAP).join(aligned).rstrip())
    return lines


def _total_width(layouts: list[ColumnLayout]) -> int:
    return sum(layout.width + GAP for layout in layouts) - GAP


def fit_columns(table: Table, width: int) -> list[ColumnLayout]:
    """Return the columns that fit into a width.

    Columns are dropped by their `Column.drop_order` until the rest fits, with the first column limited to two fifths
    of the width and wrapped columns to their minimum width. Both ends of an interval are dropped together. The first
    and the wrapped columns then share the remaining width. If it is too small for the longest word, words are broken.
    """
    layouts = [_lay_out_column(table, column) for column in table.columns]
    needed_widths = {}
    for index, layout in enumerate(layouts):
        natural_width = max(map(len, (*layout.head, *layout.cells)))
        if layout.column.wrap:
            limit = layout.min_width
        elif index == 0:
            limit = max(width * 2 // 5, layout.min_width)
        else:
            limit = natural_width
        needed_widths[layout.column.key] = min(natural_width, limit)
    while sum(needed_widths[layout.column.key] + GAP for layout in layouts) - GAP > width:
        dropped = max((layout.column for layout in layouts), key=lambda column: column.drop_order)
        if dropped.drop_order == 0:
            break
        both_ends = (dropped.key, _other_end(dropped.key))
        layouts = [layout for layout in layouts if layout.column.key not in both_ends]
    wrapped = [layout for index, layout in enumerate(layouts) if layout.column.wrap or index == 0]
    for breaks_words in (False, True):
        while _total_width(layouts) > width:
            limits = {layout.column.key: MIN_WRAPPED_WIDTH if breaks_words else layout.min_width for layout in wrapped}
            reducible = [layout for layout in wrapped if layout.width > limits[layout.column.key]]
            if not reducible:
                break
            widest = max(reducible, key=lambda layout: layout.width)
            widest.width -= 1
    return layouts


_OTHER_ENDS = {"low": "high", "high": "low", "slowest": "fastest", "fastest": "slowest"}
"""Words in the keys of the ends of an interval, with those of the other end."""


def _other_end(key: str) -> str:
    """Return the key of the other end of an interval; the same one for columns of no interval."""
    return "_".join(_OTHER_ENDS.get(word, word) for word in key.split("_"))


def _lay_out_column(table: Table, column: Column) -> ColumnLayout:
    """Return the layout of a column at the width of its widest cell."""
    head = column.title.split("\n")
    cells = [wrap_text(column.text(row), None)[0] for row in table.rows]
    footer = [wrap_text(column.text(row), None)[0] if column.key in row else "" for row in table.footer]
    min_width = MIN_WRAPPED_WIDTH
    for text in (*head, *cells):
        for word in text.split():
            pieces = _PIECES.findall(word) if len(word) > MIN_WRAPPED_WIDTH else [word]
            min_width = max([min_width, *map(len, pieces)])
    width = max(map(len, (*head, *cells, *footer)))
    return ColumnLayout(column, head, cells, footer, width, min_width)


def wrap_text(text: str, width: int | None, *, break_words: bool = False) -> list[str]:
    """Wrap text to a width, or return it as one line if the width is None; control characters are removed.

    A word that is longer than the width is broken after a ``_``, ``/``, ``.``, ``,``, ``:`` or ``-``. A word without
    any of these is broken at the width with `break_words`, and otherwise stays on one line, which is then longer.
    """
    text = make_printable(text).replace("\xa0", " ")
    if width is None or len(text) <= width:
        return [text]
    lines = [text[: len(text) - len(text.lstrip())]]
    for word in text.split():
        indent = "" if lines[-1].strip() else lines[-1]
        pieces = _PIECES.findall(word) if len(indent + word) > width else [word]
        if break_words:
            pieces = [piece[start : start + width] for piece in pieces for start in range(0, len(piece), width)]
        for number, piece in enumerate(pieces):
            line_has_text = bool(lines[-1].strip())
            gap = " " if number == 0 and line_has_text else ""
            if line_has_text and len(lines[-1]) + len(gap) + len(piece) > width:
                lines.append(piece)
            else:
                lines[-1] += gap + piece
    return lines

"""Pages for a terminal: tables that fit its width, folded where text is long.

Written here rather than with rich: importing and running that takes a quarter of the README command's time (40 of
185 ms, measured), which may not exceed twice that of ``import numpy``.
"""

from __future__ import annotations

import codecs
import os
import re
import shutil
from collections.abc import Mapping
from itertools import zip_longest
from typing import IO

import msgspec

from ..text import printable
from .document import BAR, EIGHTHS, Chart, Column, Document, Table, bar_of

GAP = 2  # blanks between columns
FOLDED = 16  # the narrowest that a column of text is made

_PLAIN = {"─": "-", "█": "#", "µ": "u", **dict.fromkeys(EIGHTHS[1:4], ""), **dict.fromkeys(EIGHTHS[4:], "#")}

_COLOURED = {"bold": "\x1b[1m", "dim": "\x1b[2m", "note": "\x1b[33m", "end": "\x1b[0m"}
_UNCOLOURED = dict.fromkeys(_COLOURED, "")

_PIECES = re.compile(r"[^_/.,:-]*[_/.,:-]+|[^_/.,:-]+")
"""The parts that a word may be broken into."""


def show_document(document: Document, style: str, out: IO[str]) -> None:
    """Write a document as ``table`` (for a terminal), ``markdown`` or ``csv``.

    The output's encoding may lack letters: plain ones stand for them.
    """
    if style == "csv":
        document.write_csv(out)
        return
    if style == "markdown":
        text = document.markdown()
    else:
        look = _COLOURED if out.isatty() and "NO_COLOR" not in os.environ else _UNCOLOURED
        width = shutil.get_terminal_size().columns
        blocks = _blocks(document, width, look, width if out.isatty() else None)
        text = "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "paleo_lite.plain").decode(encoding))


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("paleo_lite.plain", _plain)


def _blocks(document: Document, width: int, look: Mapping[str, str], line: int | None) -> list[list[str]]:
    """Title and facts, content, notes, sections: lines that stand together.

    Title and notes are one line each, for whoever searches them, but where a terminal would break it: at `line`.
    """
    bold, dim, yellow, end = (look[style] for style in ("bold", "dim", "note", "end"))
    head = [f"{bold}{text}{end}" for text in fold(document.title, line)] if document.title else []
    head += [line for text in (document.question, *document.lead) if text for line in fold(text, width)]
    facts = [*((answer.name, answer.text) for answer in document.answers), *document.facts]
    label = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        first, *rest = fold(value, max(width - label - 4, FOLDED))
        head.append(f"  {dim}{name.ljust(label)}{end}  {first}")
        head += [" " * (label + 4) + line for line in rest]
    blocks = [head]
    for entry in document.content:
        if isinstance(entry, Table):
            title = [f"{bold}{entry.title}{end}"] if entry.title else []
            blocks.append(title + table_lines(entry, width, look))
        elif not isinstance(entry, Chart):
            blocks.append(fold(entry, width))
    blocks += [[f"{purpose}:", f"  {command}"] for purpose, command in document.commands]
    blocks.append([f"{yellow}{text}{end}" for note in document.notes for text in fold(f"note: {note}", line)])
    return blocks + [block for section in document.sections for block in _blocks(section, width, look, line)]


def table_lines(table: Table, width: int, look: Mapping[str, str] = _UNCOLOURED) -> list[str]:
    """The lines of a table for a terminal of that width."""
    columns = fitting(table, width)
    shown = [laid.column for laid in columns]
    dropped = [column.heading for column in table.columns if column not in shown]
    for share in [laid for laid in columns if laid.column.bar]:
        if sum(laid.width + GAP for laid in columns) + BAR <= width:  # beside each share, where there is room
            bars = _laid(table, Column(share.column.key, "", bar_of, left=True))
            bars.width = BAR
            columns.insert(columns.index(share) + 1, bars)
    height = max(len(laid.head) for laid in columns)
    rows = [[[""] * (height - len(laid.head)) + laid.head for laid in columns]]
    rows += [[fold(laid.cells[place], laid.width) for laid in columns] for place in range(len(table.rows))]
    rows += [[[laid.foot[place]] for laid in columns] for place in range(len(table.foot))]
    lines = []
    for place, cells in enumerate(rows):
        in_foot = place > len(table.rows)
        if place == len(table.rows) + 1:
            lines.append("")
        for texts in zip_longest(*cells, fillvalue=""):
            line = (" " * GAP).join(
                text.ljust(laid.width) if laid.column.left else text.rjust(laid.width)
                for text, laid in zip(texts, columns)
            ).rstrip()  # fmt: skip
            lines.append(f"{look['bold']}{line}{look['end']}" if in_foot else line)
        if place == 0:
            lines.append("─" * (sum(laid.width + GAP for laid in columns) - GAP))
    if dropped:
        lines += fold(f"not shown at this width: {', '.join(dropped)}", width)
    return lines


class Laid(msgspec.Struct, eq=False):
    """A column of a table as text: its cells, how wide it is, and how narrow without breaking a word."""

    column: Column
    head: list[str]
    cells: list[str]
    foot: list[str]
    width: int
    least: int


def fitting(table: Table, width: int) -> list[Laid]:
    """The columns that fit a width; the first may take two fifths of it, columns that fold little.

    Where they want more, folding ones share what the others leave. The two ends of an interval go together: one of
    them says nothing.
    """
    columns = [_laid(table, column) for column in table.columns]
    needed = {}
    for index, laid in enumerate(columns):
        natural = max(map(len, (*laid.head, *laid.cells)))
        most = laid.least if laid.column.fold else max(width * 2 // 5, laid.least) if index == 0 else natural
        needed[laid.column.key] = min(natural, most)
    while sum(needed[laid.column.key] + GAP for laid in columns) - GAP > width:
        spare = max((laid.column for laid in columns), key=lambda column: column.spare)
        if not spare.spare:
            break
        other = spare.key.replace("high", "low") if "high" in spare.key else spare.key.replace("low", "high")
        columns = [laid for laid in columns if laid.column.key not in (spare.key, other)]
    folding = [laid for index, laid in enumerate(columns) if laid.column.fold or index == 0]
    excess = sum(laid.width + GAP for laid in columns) - GAP - width
    while excess > 0 and (wider := [laid for laid in folding if laid.width > laid.least]):
        max(wider, key=lambda laid: laid.width).width -= 1
        excess -= 1
    return columns


def _laid(table: Table, column: Column) -> Laid:
    """A column as wide as its widest cell."""
    head = column.title.split("\n")
    cells = [fold(column.text(row), None)[0] for row in table.rows]
    foot = [fold(column.text(row), None)[0] if column.key in row else "" for row in table.foot]
    words = [word for cell in (*head, *cells) for word in cell.split()]
    pieces = [piece for word in words for piece in (_PIECES.findall(word) if len(word) > FOLDED else [word])]
    widest = max(map(len, (*head, *cells, *foot)))
    return Laid(column, head, cells, foot, widest, max([FOLDED, *map(len, pieces)]))


def fold(text: str, width: int | None) -> list[str]:
    """Text in lines of that width, or on one; without what a terminal would obey.

    A word that is longer goes on after a ``_``, ``/``, ``.``, ``,``, ``:`` or ``-`` of it; one without any stays
    whole, and its line is longer.
    """
    text = printable(text).replace("\xa0", " ")
    if width is None or len(text) <= width:
        return [text]
    lines = [text[: len(text) - len(text.lstrip())]]
    for word in text.split():
        indent = "" if lines[-1].strip() else lines[-1]
        for number, piece in enumerate(_PIECES.findall(word) if len(indent + word) > width else [word]):
            gap = " " * (number == 0 and bool(lines[-1].strip()))
            if lines[-1].strip() and len(lines[-1]) + len(gap) + len(piece) > width:
                lines.append(piece)
            else:
                lines[-1] += gap + piece
    return lines

"""Pages for a terminal: tables that fit its width, folded where text is long.

Written here rather than with rich: importing and running that takes a quarter of the README command's time (40 of
185 ms, measured), which may not exceed twice that of ``import numpy``.
"""

from __future__ import annotations

import codecs
import os
import shutil
from collections.abc import Callable
from typing import IO, Any

from ..text import printable
from .document import Chart, Column, Document, Table

GAP = 2  # blanks between columns
FOLDED = 16  # the narrowest that a column of text is made

BAR = 10  # letters of a bar of 100%

_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_PLAIN = {"─": "-", "█": "#", "µ": "u", **dict.fromkeys(_EIGHTHS[1:4], ""), **dict.fromkeys(_EIGHTHS[4:], "#")}

_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "note": "\x1b[33m"}
_END = "\x1b[0m"


def show_document(document: Document, style: str, out: IO[str]) -> None:
    """Write a document as ``table`` (for a terminal), ``markdown`` or ``csv``."""
    if style == "csv":
        document.write_csv(out)
        return
    if style == "markdown":
        write_text(document.markdown(), out)
        return
    coloured = out.isatty() and "NO_COLOR" not in os.environ

    def styled(text: str, style: str) -> str:
        return f"{_STYLES[style]}{text}{_END}" if coloured and text else text

    width = shutil.get_terminal_size().columns
    blocks = _blocks(document, width, styled, width if out.isatty() else None)
    write_text("\n\n".join("\n".join(block) for block in blocks if block) + "\n", out)


def _blocks(document: Document, width: int, styled: Callable[[str, str], str], line: int | None) -> list[list[str]]:
    """Title and facts, content, notes, sections: lines that stand together.

    Title and notes are one line each, for whoever searches them, but where a terminal would break it: at `line`.
    """

    def whole(text: str, style: str) -> list[str]:
        return [styled(entry, style) for entry in (fold(text, line) if line else [text])]

    head = whole(_clean(document.title), "bold") if document.title else []
    head += [line for text in (document.question, *document.lead) if text for line in fold(_clean(text), width)]
    facts = [*((answer.name, answer.text) for answer in document.answers), *document.facts]
    label = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        first, *rest = fold(_clean(value), max(width - label - 4, FOLDED)) or [""]
        head.append("  " + styled(name.ljust(label), "dim") + "  " + first)
        head += [" " * (label + 4) + line for line in rest]
    blocks = [head]
    for entry in document.content:
        if isinstance(entry, Table):
            title = [styled(entry.title, "bold")] if entry.title else []
            blocks.append(title + table_lines(entry, width, lambda text: styled(text, "bold")))
        elif not isinstance(entry, Chart):
            blocks.append(fold(_clean(entry), width))
    blocks += [[f"{purpose}:", f"  {command}"] for purpose, command in document.commands]
    blocks.append([entry for note in document.notes for entry in whole(f"note: {_clean(note)}", "note")])
    return blocks + [block for section in document.sections for block in _blocks(section, width, styled, line)]


def write_text(text: str, out: IO[str]) -> None:
    """Write text, with plain letters for those that the output's encoding lacks."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "paleo_lite.plain").decode(encoding))


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("paleo_lite.plain", _plain)


def fitting(table: Table, width: int) -> list[Column]:
    """The columns that fit a width; the first may take two fifths of it, columns that fold little.

    The two ends of an interval go together: one of them says nothing.
    """
    columns = list(table.columns)
    needed = {}
    for index, column in enumerate(columns):
        natural, least = _sizes(table, column)
        most = least if column.fold else max(width * 2 // 5, least) if index == 0 else natural
        needed[column.key] = min(natural, most)
    while sum(needed[column.key] + GAP for column in columns) - GAP > width:
        spare = max(columns, key=lambda column: column.spare)
        if not spare.spare:
            break
        other = spare.key.replace("high", "low") if "high" in spare.key else spare.key.replace("low", "high")
        columns = [column for column in columns if column.key not in (spare.key, other)]
    return columns


def _sizes(table: Table, column: Column) -> tuple[int, int]:
    """How wide the widest cell of a column is, and how narrow the column can be without breaking a word of it."""
    cells = [*column.title.split("\n"), *(_clean(column.text(row)) for row in table.rows)]
    words = [word for cell in cells for word in cell.split()]
    pieces = [piece for word in words for piece in (_pieces(word) if len(word) > FOLDED else [word])]
    return max(map(len, cells)), max([FOLDED, *map(len, pieces)])


def table_lines(table: Table, width: int, strong: object = None) -> list[str]:
    """The lines of a table for a terminal of that width; `strong` marks the foot."""
    emphasise = strong if callable(strong) else str
    columns = fitting(table, width)
    dropped = [column.heading for column in table.columns if column not in columns]
    widths = _widths(table, columns, width)
    for column in [column for column in columns if column.bar]:
        if sum(widths) + GAP * len(widths) + BAR <= width:  # beside each share, where there is room
            index = columns.index(column) + 1
            columns.insert(index, type(column)(column.key, "", bar_of, left=True))
            widths.insert(index, BAR)
    heads = [column.title.split("\n") for column in columns]
    height = max(map(len, heads))
    lines = _block([[""] * (height - len(head)) + head for head in heads], columns, widths)
    lines.append("─" * (sum(widths) + GAP * (len(widths) - 1)))
    for row in table.rows:
        cells = [fold(_clean(column.text(row)), size) for column, size in zip(columns, widths)]
        lines += _block(cells, columns, widths)
    for number, row in enumerate(table.foot):
        cells = [[_clean(column.text(row)) if column.key in row else ""] for column in columns]
        lines += [""] * (number == 0) + [emphasise(line) for line in _block(cells, columns, widths)]
    if dropped:
        lines += fold(f"not shown at this width: {', '.join(dropped)}", width)
    return lines


def bar_of(share: Any) -> str:
    """A bar as long as a share of 1, to an eighth of a letter."""
    eighths = round(8 * BAR * min(max(float(share), 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _widths(table: Table, columns: list[Column], width: int) -> list[int]:
    """The width of each column: what it needs where there is room, else folding ones share what the others leave."""
    wanted, folding = [], {}
    for index, column in enumerate(columns):
        natural, least = _sizes(table, column)
        foot = [len(_clean(column.text(row))) for row in table.foot if column.key in row]
        wanted.append(max([natural, *foot]))
        if column.fold or index == 0:
            folding[index] = least
    excess = sum(wanted) + GAP * (len(wanted) - 1) - width
    while excess > 0:
        wider = [index for index, least in folding.items() if wanted[index] > least]
        if not wider:
            break
        wanted[max(wider, key=lambda index: wanted[index])] -= 1
        excess -= 1
    return wanted


def _block(cells: list[list[str]], columns: list[Column], widths: list[int]) -> list[str]:
    """One row of a table, as many lines as its longest cell folds into."""
    lines = []
    for number in range(max(map(len, cells))):
        texts = [cell[number] if number < len(cell) else "" for cell in cells]
        aligned = (p.ljust(w) if c.left else p.rjust(w) for p, c, w in zip(texts, columns, widths))
        lines.append((" " * GAP).join(aligned).rstrip())
    return lines


def fold(text: str, width: int) -> list[str]:
    """Text in lines of that width. A word that is longer goes on after a ``_``, ``/``, ``.``, ``,``, ``:`` or ``-`` of
    it; one without any stays whole, and its line is longer."""
    if len(text) <= width:
        return [text]
    lines = [text[: len(text) - len(text.lstrip())]]
    for word in text.split():
        indent = "" if lines[-1].strip() else lines[-1]
        for number, piece in enumerate(_pieces(word) if len(indent + word) > width else [word]):
            gap = " " * (number == 0 and bool(lines[-1].strip()))
            if lines[-1].strip() and len(lines[-1]) + len(gap) + len(piece) > width:
                lines.append(piece)
            else:
                lines[-1] += gap + piece
    return lines


def _pieces(word: str) -> list[str]:
    """The parts that a word may be broken into."""
    import re

    return re.findall(r"[^_/.,:-]*[_/.,:-]+|[^_/.,:-]+", word)


def _clean(text: str) -> str:
    return printable(text).replace("\xa0", " ")

"""Pages for a terminal: tables that fit its width, folded where text is long.

Written here rather than with rich: importing and running that takes a quarter of the README command's time (40 of
185 ms, measured), which may not exceed twice that of ``import numpy``.
"""

from __future__ import annotations

import codecs
import os
import shutil
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sheet import Column, Page, Sheet

GAP = 2  # blanks between columns
FOLDED = 16  # the narrowest that a column of text is made

BAR = 10  # letters of a bar of 100 %

_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_PLAIN = {"─": "-", "█": "#", "µ": "u", **dict.fromkeys(_EIGHTHS[1:4], ""), **dict.fromkeys(_EIGHTHS[4:], "#")}

_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "note": "\x1b[33m"}
_END = "\x1b[0m"


def write_page(page: Page, out: IO[str]) -> None:
    """Write a page: headline, facts, tables, notes."""
    width = shutil.get_terminal_size().columns
    coloured = out.isatty() and "NO_COLOR" not in os.environ

    def styled(text: str, style: str) -> str:
        return f"{_STYLES[style]}{text}{_END}" if coloured and text else text

    blocks: list[list[str]] = [[styled(_clean(page.headline), "bold")]] if page.headline else []
    if page.facts:
        label = max(len(name) for name, _ in page.facts)
        facts = []
        for name, value in page.facts:
            first, *rest = fold(_clean(value), max(width - label - 4, FOLDED)) or [""]
            facts.append("  " + styled(name.ljust(label), "dim") + "  " + first)
            facts += [" " * (label + 4) + line for line in rest]
        blocks = [blocks[0] + facts] if blocks else [facts]
    for sheet in page.sheets:
        title = [styled(sheet.title, "bold")] if sheet.title else []
        blocks.append(title + table_lines(sheet, width, lambda text: styled(text, "bold")))
    notes = [styled(f"note: {_clean(note)}", "note") for note in page.notes]
    write_text("\n\n".join("\n".join(block) for block in [*blocks, notes] if block) + "\n", out)


def write_text(text: str, out: IO[str]) -> None:
    """Write text, with plain letters for those that the output's encoding lacks."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "paleo_lite.plain").decode(encoding))


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("paleo_lite.plain", _plain)


def fitting(sheet: Sheet, width: int) -> list[Column]:
    """The columns that fit a width; the first may take two fifths of it, columns that fold little."""
    columns = list(sheet.columns)
    needed = {}
    for place, column in enumerate(columns):
        natural = max(map(len, _cells(sheet, column)))
        most = FOLDED if column.fold else max(width * 2 // 5, FOLDED) if place == 0 else natural
        needed[column.key] = min(natural, most)
    while sum(needed[column.key] + GAP for column in columns) - GAP > width:
        spare = max(columns, key=lambda column: column.spare)
        if not spare.spare:
            break
        columns.remove(spare)
    return columns


def _cells(sheet: Sheet, column: Column) -> list[str]:
    return [*column.title.split("\n"), *(_clean(column.text(row)) for row in sheet.rows)]


def table_lines(sheet: Sheet, width: int, strong: object = None) -> list[str]:
    """The lines of a table for a terminal of that width; `strong` marks the foot."""
    emphasise = strong if callable(strong) else str
    columns = fitting(sheet, width)
    dropped = [column.title.replace("\n", " ") for column in sheet.columns if column not in columns]
    widths = _widths(sheet, columns, width)
    _add_bars(columns, widths, width)
    heads = [column.title.split("\n") for column in columns]
    height = max(map(len, heads))
    lines = _block([[""] * (height - len(head)) + head for head in heads], columns, widths)
    lines.append("─" * (sum(widths) + GAP * (len(widths) - 1)))
    for row in sheet.rows:
        cells = [fold(_clean(column.text(row)), size) for column, size in zip(columns, widths)]
        lines += _block(cells, columns, widths)
    for number, row in enumerate(sheet.foot):
        cells = [[_clean(column.text(row)) if column.key in row else ""] for column in columns]
        lines += [""] * (number == 0) + [emphasise(line) for line in _block(cells, columns, widths)]
    if dropped:
        lines += fold(f"not shown at this width: {', '.join(dropped)}", width)
    return lines


def _add_bars(columns: list[Column], widths: list[int], width: int) -> None:
    """A bar beside each share that is to have one, where there is room."""
    for column in [column for column in columns if column.bar]:
        if sum(widths) + GAP * len(widths) + BAR <= width:
            place = columns.index(column) + 1
            columns.insert(place, type(column)(column.key, "", bar_of, left=True))
            widths.insert(place, BAR)


def bar_of(share: Any) -> str:
    """A bar as long as a share of 1, to an eighth of a letter."""
    eighths = round(8 * BAR * min(max(float(share), 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _widths(sheet: Sheet, columns: list[Column], width: int) -> list[int]:
    """The width of each column: what it needs where there is room, else folding ones share what the others leave."""
    wanted = []
    for column in columns:
        foot = [_clean(column.text(row)) for row in sheet.foot if column.key in row]
        wanted.append(max(map(len, [*_cells(sheet, column), *foot])))
    excess = sum(wanted) + GAP * (len(wanted) - 1) - width
    folding = [place for place, column in enumerate(columns) if column.fold or place == 0]
    while excess > 0:
        widest = max(folding, key=lambda place: wanted[place])
        if wanted[widest] <= FOLDED:
            break
        wanted[widest] -= 1
        excess -= 1
    return wanted


def _block(cells: list[list[str]], columns: list[Column], widths: list[int]) -> list[str]:
    """One row of a table, as many lines as its longest cell folds into."""
    lines = []
    for number in range(max(map(len, cells))):
        parts = [cell[number] if number < len(cell) else "" for cell in cells]
        aligned = (p.ljust(w) if c.left else p.rjust(w) for p, c, w in zip(parts, columns, widths))
        lines.append((" " * GAP).join(aligned).rstrip())
    return lines


def fold(text: str, width: int) -> list[str]:
    """Text in lines of at most that width."""
    if len(text) <= width:
        return [text]
    import textwrap

    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _clean(text: str) -> str:
    """Text on one line without control characters, which a foreign name may hold."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)

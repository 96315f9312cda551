"""`Sheet`: a table before it is anything to look at, and how it becomes text, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

import msgspec

from .terminal import write_page, write_text


class Column(msgspec.Struct, frozen=True):
    """One column.

    Attributes
    ----------
    key : str
        Where the value stands in a row; also its name in CSV.
    title : str
        Above the column.
    show : callable
        From value to text; None is always shown as ``-``.
    left : bool
        Text is set to the left, numbers to the right.
    fold : bool
        Long text goes on in the next line rather than making the column wider.
    spare : int
        Where the terminal is too narrow the columns with the highest go first; 0 stays.
    bar : bool
        A share of 1 that a terminal shows as a bar too, where there is room.
    """

    key: str
    title: str
    show: Callable[[Any], str] = str
    left: bool = False
    fold: bool = False
    spare: int = 0
    bar: bool = False

    def text(self, row: dict[str, Any]) -> str:
        """The cell of a row."""
        value = row.get(self.key)
        return "-" if value is None else self.show(value)


class Sheet(msgspec.Struct, frozen=True):
    """A table: title, columns, rows, rows of the foot, and lines below.

    Rows hold raw values; columns know how to show them. CSV takes the raw values.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    foot: Sequence[dict[str, Any]] = ()

    def markdown(self) -> str:
        """A Markdown table, with the title as a bold line."""
        lines = [f"**{self.title}**", ""] if self.title else []
        lines.append("| " + " | ".join(column.title.replace("\n", " ") for column in self.columns) + " |")
        lines.append("|" + "|".join(" :-- " if column.left else " --: " for column in self.columns) + "|")
        for row in self.rows:
            lines.append("| " + " | ".join(_escaped(column.text(row)) for column in self.columns) + " |")
        for row in self.foot:
            cells = (column.text(row) if column.key in row else "" for column in self.columns)
            lines.append("| " + " | ".join(f"**{_escaped(cell)}**" if cell else "" for cell in cells) + " |")
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown()

    def write_csv(self, out: IO[str]) -> None:
        """Raw values, one line per row; absent is empty."""
        import csv

        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        for row in self.rows:
            writer.writerow([_raw(row.get(column.key)) for column in self.columns])


class Page(msgspec.Struct, frozen=True):
    """What a command shows: headline, facts, tables, notes; and the table that CSV gives."""

    headline: str
    facts: Sequence[tuple[str, str]] = ()
    sheets: Sequence[Sheet] = ()
    notes: Iterable[str] = ()
    data: Sheet | None = None

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return _markdown(self)


def show_page(page: Page, style: str, out: IO[str]) -> None:
    """Write a page as ``table``, ``markdown`` or ``csv``."""
    if style == "csv":
        (page.data or page.sheets[0]).write_csv(out)
    elif style == "markdown":
        write_text(_markdown(page), out)
    else:
        write_page(page, out)


def _markdown(page: Page) -> str:
    parts = [f"**{page.headline}**"] if page.headline else []
    if page.facts:
        parts.append("\n".join(f"- {name}: {value}" for name, value in page.facts))
    parts += [sheet.markdown() for sheet in page.sheets]
    notes = list(page.notes)
    if notes:
        parts.append("\n".join(f"> {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _raw(value: Any) -> Any:
    """A value for CSV; before Python 3.11 the csv module refuses NUL, which a foreign name may hold."""
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")

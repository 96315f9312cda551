"""`Sheet`: a table before it is anything to look at, and how it becomes text, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import RenderableType


_GAP = 2  # blanks between columns
_FOLDED = 16  # the narrowest that a column of text is made


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
    """

    key: str
    title: str
    show: Callable[[Any], str] = str
    left: bool = False
    fold: bool = False
    spare: int = 0

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

    def fitting(self, width: int) -> list[Column]:
        """The columns that fit a width; the first may take two fifths of it, columns that fold little."""
        columns = list(self.columns)
        needed = {}
        for place, column in enumerate(columns):
            cells = [*column.title.splitlines(), *(column.text(row) for row in self.rows)]
            natural = max((len(cell) for cell in cells), default=0)
            most = _FOLDED if column.fold else width * 2 // 5 if place == 0 else natural
            needed[column.key] = min(natural, most)
        while sum(needed[column.key] + _GAP for column in columns) - _GAP > width:
            spare = max(columns, key=lambda column: column.spare)
            if not spare.spare:
                break
            columns.remove(spare)
        return columns

    def rich(self, width: int) -> RenderableType:
        """A rich table for a terminal of that width."""
        from rich import box
        from rich.table import Table

        columns = self.fitting(width)
        dropped = [column.title.replace("\n", " ") for column in self.columns if column not in columns]
        table = Table(
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            caption=f"not shown at this width: {', '.join(dropped)}" if dropped else None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        for place, column in enumerate(columns):
            table.add_column(
                column.title,
                justify="left" if column.left else "right",
                overflow="fold",
                no_wrap=not column.fold and place > 0,
                max_width=max(width * 2 // 5, 16) if place == 0 else None,
            )
        for row in self.rows:
            table.add_row(*(_plain(column.text(row)) for column in columns))
        if self.foot:
            table.add_section()
        for row in self.foot:
            table.add_row(*(_plain(column.text(row) if column.key in row else "") for column in columns), style="bold")
        return table

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


def show_page(page: Page, style: str, out: IO[str]) -> None:
    """Write a page as ``table``, ``markdown`` or ``csv``."""
    if style == "csv":
        (page.data or page.sheets[0]).write_csv(out)
    elif style == "markdown":
        out.write(_markdown(page))
    else:
        _rich(page, out)


def _markdown(page: Page) -> str:
    parts = [f"**{page.headline}**"] if page.headline else []
    if page.facts:
        parts.append("\n".join(f"- {name}: {value}" for name, value in page.facts))
    parts += [sheet.markdown() for sheet in page.sheets]
    notes = list(page.notes)
    if notes:
        parts.append("\n".join(f"> {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _rich(page: Page, out: IO[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out, highlight=False, emoji=False, markup=False)
    if page.headline:
        console.print(_plain(page.headline), style="bold", soft_wrap=True)
    if page.facts:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in page.facts:
            grid.add_row(_plain("  " + name), _plain(value))
        console.print(grid)
    for sheet in page.sheets:
        console.print()
        console.print(sheet.rich(console.width))
    notes = list(page.notes)
    if notes:
        console.print()
    for note in notes:
        console.print(_plain(f"note: {note}"), style="yellow", soft_wrap=True)


def _plain(text: str) -> Any:
    """Text that rich takes as it is: names may hold brackets."""
    from rich.text import Text

    return Text(text)


def _raw(value: Any) -> Any:
    """A value for CSV; before Python 3.11 the csv module refuses NUL, which a foreign name may hold."""
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")

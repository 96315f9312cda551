"""`Document`: the output of a command independent of its format, with Markdown, CSV and notebook output.

`paleo_lite.reporting.terminal` formats a document for a terminal and `paleo_lite.reporting.page.html` as an HTML page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

import msgspec

from ..errors import BadValue
from ..result import Result
from ..text import escape_csv_cell, make_printable


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    key: str  # key of the value in each row; also the column's name in CSV
    title: str  # heading; may contain line breaks
    show: Callable[[Any], str] = str  # converts a value to text. None is always shown as ``-``.
    unit: str = ""  # of the value, as JSON and CSV contain it; "1" of a fraction or ratio
    meaning: str = ""  # what the column says, as a phrase
    left: bool = False  # align to the left (text) instead of the right (numbers)
    wrap: bool = False  # wrap long text instead of widening the column
    drop_order: int = 0  # in a narrow terminal, columns with the highest number are dropped first; 0 is never dropped
    bar: bool = False  # show the fraction as a bar as well, where the terminal is wide enough

    @property
    def heading(self) -> str:
        """The title on one line, without hyphenation."""
        return self.title.replace("-\n", "").replace("\n", " ")

    def replace(self, **changes: Any) -> Column:
        """Return a copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    def text(self, row: dict[str, Any]) -> str:
        """Return the text of the cell in a row."""
        value = row.get(self.key)
        return "-" if value is None else self.show(value)


class Table(msgspec.Struct, frozen=True):
    """A table: title, columns, rows and footer rows.

    Rows hold raw values, which CSV contains as they are; columns format them. On an HTML page, readers can sort a
    `sortable` table and search a `filterable` one.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    footer: Sequence[dict[str, Any]] = ()
    sortable: bool = False
    filterable: bool = False
    name: str = ""  # by which a report finds the table

    def replace(self, **changes: Any) -> Table:
        """Return a copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    def head(self, number: int | None, qualifier: str = "") -> Table:
        """Return the table with its first rows only; None keeps all.

        The qualifier precedes the number in the title of a shortened table: ``"the longest "`` gives
        ``Steps, the longest 3 of 12``.
        """
        if number is None or number >= len(self.rows):
            return self
        title = f"{self.title}, {qualifier}{number} of {len(self.rows)}"
        return self.replace(title=title, rows=self.rows[:number])

    def drop_empty_columns(self, *required: str) -> Table:
        """Return the table without columns that have no value in any row, except those with `required` keys."""
        columns = []
        for column in self.columns:
            has_values = any(row.get(column.key) is not None for row in self.rows)
            if has_values or column.key in required:
                columns.append(column)
        return self.replace(columns=columns)

    def markdown(self) -> str:
        """Return a Markdown table, below its title as a bold line."""
        lines = [f"**{_escape_markdown(self.title)}**", ""] if self.title else []
        lines.append(_markdown_row(column.heading for column in self.columns))
        lines.append("|" + "|".join(" :-- " if column.left else " --: " for column in self.columns) + "|")
        lines += [_markdown_row(column.text(row) for column in self.columns) for row in self.rows]
        lines += [_markdown_row(self._footer_texts(row), bold=True) for row in self.footer]
        return "\n".join(lines)

    def _footer_texts(self, row: dict[str, Any]) -> list[str]:
        """Return the cells of a footer row; those without a key are empty."""
        return [column.text(row) if column.key in row else "" for column in self.columns]

    def _repr_markdown_(self) -> str:
        """Return the Markdown that a notebook shows."""
        return self.markdown()

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        lines = [f"<caption>{_escape_html(self.title)}</caption>"] if self.title else []
        headings = "".join(f"<th>{_escape_html(column.heading)}</th>" for column in self.columns)
        lines.append(f"<tr>{headings}</tr>")
        lines += [_html_row(column.text(row) for column in self.columns) for row in self.rows]
        lines += [_html_row(self._footer_texts(row)) for row in self.footer]
        return "<table>{}</table>".format("\n".join(lines))

    def write_csv(self, out: IO[str]) -> None:
        """Write the raw values, one line per row: missing values are empty, intervals two columns."""
        import csv

        writer = csv.writer(out, lineterminator="\n")
        names, rows = [column.key for column in self.columns], self.rows
        if _INTERVAL in names and all(len(row.get(_INTERVAL) or _ENDS) == len(_ENDS) for row in rows):
            place = names.index(_INTERVAL)
            names[place : place + 1] = _ENDS
            rows = [{**row, **dict(zip(_ENDS, row.get(_INTERVAL) or ()))} for row in rows]
        writer.writerow([escape_csv_cell(name) for name in names])
        for row in rows:
            writer.writerow([_csv_value(row.get(name)) for name in names])


_INTERVAL = "interval"
_ENDS = ("low_s", "high_s")
"""Columns of the ends of an interval."""

SCREEN_LINES = 40
"""Most lines of a terminal that a list fills, unless all of it is requested."""

LINES_AROUND_ROWS = 9
"""Lines of a list that are not rows: titles, headings, empty lines, the columns that are not shown, and the note."""


def more_note(more: int, example: str) -> str:
    """Return the note below a list of which the end is left out."""
    return f"{more} more: give a word (such as {example}), or --all"


def raw_table(rows: Sequence[dict[str, Any]], keys: Iterable[str] = ()) -> Table:
    """Return a table of raw values for CSV, with a column per key (by default the keys of the first row)."""
    return Table("", [Column(key, key) for key in keys or rows[0]], rows)


class Chart(msgspec.Struct, frozen=True):
    """A chart, which HTML pages show and text formats omit."""

    chart: Any
    caption: str  # description, also the text alternative of the picture
    has_tooltips: bool = True  # whether the marks carry tooltips
    # Lines of the chart's subtitle that start with one of these are omitted, as the page has them elsewhere.
    omitted_lines: Sequence[str] = ()


class KeyFigure(msgspec.Struct, frozen=True):
    """One of the main results of a report."""

    name: str
    value: str
    detail: str = ""
    interval: tuple[float, float, float] | None = None  # the prediction interval, drawn on pages; (low, value, high)
    # Whether the figure reports that the request is impossible, such as a batch that does not fit into memory.
    is_alarm: bool = False

    @property
    def interval_style(self) -> str:
        """CSS variables with the positions of the interval's ends and of the value, on an axis that starts at 0."""
        if self.interval is None:
            return ""
        axis_end = 1.05 * self.interval[2]
        low, value, high = (f"{position / axis_end:.1%}" for position in self.interval)
        return f"--low: {low}; --at: {value}; --high: {high}"

    @property
    def text(self) -> str:
        """Value and detail."""
        return f"{self.value} ({self.detail})" if self.detail else self.value


class Source(msgspec.Struct, frozen=True):
    """An input file of a report: its role, its name, and the SHA-256 of its content."""

    role: str
    name: str
    sha256: str


class ReportProvenance(msgspec.Struct, frozen=True):
    """How a report was made."""

    command: str  # the command line, quoted for a POSIX shell
    version: str
    date: str
    sources: Sequence[Source] = ()
    next_commands: Sequence[tuple[str, str]] = ()  # commands that give more detail; (purpose, command)


class Document(msgspec.Struct, frozen=True):
    """The output of a command."""

    title: str
    facts: Sequence[tuple[str, str]] = ()  # (name, text)
    content: Sequence[Table | Chart | str] = ()  # shown in this order; a text explains why a table or chart is missing
    notes: Iterable[str] = ()
    data: Table | Callable[[], Table] | None = None  # the content of CSV output; by default the first table
    introduction: Sequence[str] = ()  # paragraphs before everything else
    commands: Sequence[tuple[str, str]] = ()  # (purpose, command)
    question: str = ""
    answers: Sequence[KeyFigure] = ()  # the main results
    sections: Sequence[Document] = ()  # sections with a heading; their `name` is the link target
    name: str = ""
    provenance: ReportProvenance | None = None  # how to reproduce the document

    @property
    def tables(self) -> list[Table]:
        """The tables of the content."""
        return [entry for entry in self.content if isinstance(entry, Table)]

    def replace(self, **changes: Any) -> Document:
        """Return a copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    def markdown(self, level: int = 1) -> str:
        """Return the document as Markdown, without charts; `level` is that of its heading."""
        blocks = []
        if self.title:
            title = _escape_markdown(self.title)
            blocks.append(f"**{title}**" if level == 1 else f"{'#' * level} {title}")
        blocks += [_escape_markdown(text) for text in (self.question, *self.introduction) if text]
        facts = [_escape_markdown(f"- {answer.name}: {answer.text}") for answer in self.answers]
        facts += [_escape_markdown(f"- {name}: {value}") for name, value in self.facts]
        if facts:
            blocks.append("\n".join(facts))
        for entry in self.content:
            if isinstance(entry, Table):
                blocks.append(entry.markdown())
            elif isinstance(entry, str):
                blocks.append(_escape_markdown(entry))
        blocks += [f"{purpose}:\n\n{_as_code(command)}" for purpose, command in self.commands]
        notes = [_escape_markdown(f"> {note}") for note in self.notes]
        if notes:
            blocks.append("\n".join(notes))
        blocks += [section.markdown(level + 1).rstrip("\n") for section in self.sections]
        return "\n\n".join(blocks) + "\n"

    def _repr_markdown_(self) -> str:
        """Return the Markdown that a notebook shows."""
        return self.markdown()

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        blocks = [f"<b>{_escape_html(self.title)}</b>"] if self.title else []
        blocks += [f"<p>{_escape_html(text)}</p>" for text in (self.question, *self.introduction) if text]
        facts = [(answer.name, answer.text) for answer in self.answers] + list(self.facts)
        if facts:
            items = "".join(f"<li>{_escape_html(name)}: {_escape_html(value)}</li>" for name, value in facts)
            blocks.append(f"<ul>{items}</ul>")
        for entry in self.content:
            if isinstance(entry, Table):
                blocks.append(entry._repr_html_())
            elif isinstance(entry, str):
                blocks.append(f"<p>{_escape_html(entry)}</p>")
        for purpose, command in self.commands:
            lines = "<br>".join(map(_escape_html, command.splitlines()))
            blocks.append(f"<p>{_escape_html(purpose)}: <code>{lines}</code></p>")
        blocks += [f"<p><small>{_escape_html(note)}</small></p>" for note in self.notes]
        blocks += [section._repr_html_() for section in self.sections]
        return "\n".join(blocks)

    @property
    def csv_table(self) -> Table:
        """The table of CSV output: `data`, else the first table, else the facts."""
        data = self.data() if callable(self.data) else self.data
        if data:
            return data
        if self.tables:
            return self.tables[0]
        facts = [{"name": name, "value": value} for name, value in self.facts]
        return raw_table(facts, ("name", "value"))

    def write_csv(self, out: IO[str]) -> None:
        """Write `csv_table` with raw values."""
        self.csv_table.write_csv(out)


class StaticResult(Result, msgspec.Struct, frozen=True):
    """A result that consists of its JSON and its document, such as a list of devices."""

    data: dict[str, Any]
    page: Document

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return self.data

    def document(self, **options: Any) -> Document:
        """Return the document that the command prints."""
        return self.page


def draw_chart(
    caption: str,
    draw: Callable[[], Any],
    has_tooltips: bool = True,
    omitted_lines: Sequence[str] = (),
    otherwise: str = "",
) -> Chart | str:
    """Draw a chart; without anything to draw, return `otherwise` or the reason as text."""
    try:
        return Chart(draw(), caption, has_tooltips, omitted_lines)
    except BadValue as error:
        return otherwise or f"No picture: {error}."


def _csv_value(value: Any) -> Any:
    """Return a value as CSV contains it: sequences joined by ``x``, text without spreadsheet formulas."""
    if isinstance(value, (list, tuple)):
        value = "x".join(map(str, value))
    return escape_csv_cell(value) if isinstance(value, str) else value


def _html_row(texts: Iterable[str]) -> str:
    cells = "".join(f"<td>{_escape_html(text)}</td>" for text in texts)
    return f"<tr>{cells}</tr>"


def _escape_html(text: str) -> str:
    from html import escape

    return escape(text)


def _markdown_row(texts: Iterable[str], bold: bool = False) -> str:
    cells = [_escape_markdown(text).replace("|", "\\|") for text in texts]
    if bold:
        cells = [f"**{text}**" if text else "" for text in cells]
    return "| " + " | ".join(cells) + " |"


_MARKUP = re.compile(r"(`[^`]*`)|(\](?=\()|<(?=[A-Za-z/!?]))")
"""Code in backticks; the bracket before a link's address; the start of an HTML tag."""


def _as_code(command: str) -> str:
    """Return the lines of a command or of settings as a block of Markdown."""
    return "\n".join(f"    {make_printable(line)}" for line in command.splitlines())


def _escape_markdown(text: str) -> str:
    """Return text on one line, with HTML tags and links escaped; code in backticks stays as it is."""
    return _MARKUP.sub(lambda match: match[1] or f"\\{match[2]}", make_printable(text))

"""`Document`: a result before it is anything to look at, and as Markdown and CSV; and how its columns say numbers.

`paleo_lite.reporting.terminal` writes it for a terminal, `paleo_lite.reporting.page.html` as a page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import IO, Any

import msgspec

from ..errors import BadValue
from ..result import Result
from ..text import cell, printable
from ..units import format_si

# How a `Column` shows what it holds; those that say it briefly are for many columns side by side.
say_time = partial(format_si, unit="s")  # 12.35 ms
say_time_briefly = partial(format_si, unit="s", digits=3)  # 12.3 ms
say_size = partial(format_si, unit="B")  # 1.024 GB
say_size_briefly = partial(format_si, unit="B", digits=3)  # 1.02 GB
say_bandwidth = partial(format_si, unit="B/s")  # 480 GB/s
say_whole_percent = "{:.0%}".format  # 6%
say_count = "{:,}".format  # 1,234
say_three_digits = "{:.3g}".format  # 0.872, 12.3

BAR = 10  # letters of a bar of 100%
_WIDE = 34  # characters of a module's path that are shown, from its end
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def say_percent(value: float) -> str:
    """A share, one digit behind the point: ``6.4%``; what is not nothing is never said to be 0."""
    return "< 0.05%" if 0 < value < 5e-4 else f"{value:.1%}"


def end_of_path(path: str) -> str:
    """The end of a module's path, cut where one begins."""
    if len(path) <= _WIDE or "/" not in path:
        return path
    place = path.find("/", len(path) - _WIDE)
    return "…" + path[place if place >= 0 else path.rfind("/") :]


def say_yes_or_no(value: object) -> str:
    """Whether something is so."""
    return "yes" if value else "no"


def bar_of(share: Any) -> str:
    """A bar as long as a share of 1, to an eighth of a letter."""
    eighths = round(8 * BAR * min(max(float(share), 0.0), 1.0))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8]


def say_many(count: int, what: str) -> str:
    """Several things by their number: ``1 kernel``, ``1,234 kernels``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


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

    @property
    def heading(self) -> str:
        """The title on one line."""
        return self.title.replace("\n", " ")

    def text(self, row: dict[str, Any]) -> str:
        """The cell of a row."""
        value = row.get(self.key)
        return "-" if value is None else self.show(value)


class Table(msgspec.Struct, frozen=True):
    """A table: title, columns, rows, rows of the foot.

    Rows hold raw values; columns know how to show them. CSV takes the raw values. On a page with JavaScript a reader
    can sort one that is `sortable` and search one that is `filterable`.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    foot: Sequence[dict[str, Any]] = ()
    sortable: bool = False
    filterable: bool = False

    def but(self, **changes: Any) -> Table:
        """The same table with these fields."""
        return msgspec.structs.replace(self, **changes)

    def first(self, number: int | None, which: str = "") -> Table:
        """Its first rows, all for None; where some are left out the title says ``which 3 of 12``."""
        if number is None or number >= len(self.rows):
            return self
        return self.but(title=f"{self.title}, {which}{number} of {len(self.rows)}", rows=self.rows[:number])

    def known(self, *always: str) -> Table:
        """Without the columns that no row has a value for; those of the keys `always` stay."""
        known = [c for c in self.columns if c.key in always or any(row.get(c.key) is not None for row in self.rows)]
        return self.but(columns=known)

    def markdown(self) -> str:
        """A Markdown table, with the title as a bold line."""
        lines = [f"**{_safe(self.title)}**", ""] if self.title else []
        lines.append("| " + " | ".join(_escaped(column.heading) for column in self.columns) + " |")
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

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        lines = [f"<caption>{_plain(self.title)}</caption>"] if self.title else []
        lines.append(f"<tr>{''.join(f'<th>{_plain(column.heading)}</th>' for column in self.columns)}</tr>")
        lines += [_line(column.text(row) for column in self.columns) for row in self.rows]
        lines += [_line(column.text(row) if column.key in row else "" for column in self.columns) for row in self.foot]
        return "<table>{}</table>".format("\n".join(lines))

    def write_csv(self, out: IO[str]) -> None:
        """Raw values, one line per row; absent is empty."""
        import csv

        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([cell(column.key) for column in self.columns])
        for row in self.rows:
            writer.writerow([_raw(row.get(column.key)) for column in self.columns])


def raw_table(rows: Sequence[dict[str, Any]], keys: Iterable[str] = ()) -> Table:
    """Rows as they are, for CSV: a column for each key, without any those of the first row."""
    return Table("", [Column(key, key) for key in keys or rows[0]], rows)


class Chart(msgspec.Struct, frozen=True):
    """A chart, which pages show and text leaves out.

    Attributes
    ----------
    caption : str
        What it shows, which also stands for it where it cannot be seen.
    tips : bool
        Whether its marks say what they are.
    known : sequence of str
        How lines of the chart's subtitle begin that the page says elsewhere.
    """

    chart: Any
    caption: str
    tips: bool = True
    known: Sequence[str] = ()


class KeyFigure(msgspec.Struct, frozen=True):
    """One of the figures that were asked for.

    Attributes
    ----------
    span : (low, value, high), optional
        Its interval, which pages draw.
    alarm : bool
        Whether it says that what was asked for cannot be.
    """

    name: str
    value: str
    detail: str = ""
    span: tuple[float, float, float] | None = None
    alarm: bool = False

    @property
    def marks(self) -> str:
        """Where the interval begins, the value lies and the interval ends, as shares of a line from 0 to beyond it."""
        if self.span is None:
            return ""
        low, value, high = (f"{each / (1.05 * self.span[2]):.1%}" for each in self.span)
        return f"--low: {low}; --at: {value}; --high: {high}"

    @property
    def text(self) -> str:
        """Value and detail."""
        return f"{self.value} ({self.detail})" if self.detail else self.value


class Source(msgspec.Struct, frozen=True):
    """A file that went into a document: what it is, its name, and the SHA-256 of its content."""

    what: str
    name: str
    sha256: str


class Made(msgspec.Struct, frozen=True):
    """How a document came about.

    Attributes
    ----------
    command : str
        The command line, quoted for a POSIX shell.
    further : sequence of (what for, command)
        Commands that tell more.
    """

    command: str
    version: str
    date: str
    sources: Sequence[Source] = ()
    further: Sequence[tuple[str, str]] = ()


class Document(msgspec.Struct, frozen=True):
    """What a result has to say.

    Attributes
    ----------
    facts : sequence of (name, text)
    content : sequence of Table, Chart or str
        In order; a text is a remark in the place of something that there is not.
    data : Table or function that makes it, optional
        What CSV gives; without it the first table.
    lead : sequence of str
        Paragraphs before all else.
    commands : sequence of (what for, command)
    answers : sequence of KeyFigure
        The figures that the question asks for.
    sections : sequence of Document
        Parts with a heading of their own, and a `name` that links point to.
    made : Made, optional
        How to get it again.
    """

    title: str
    facts: Sequence[tuple[str, str]] = ()
    content: Sequence[Table | Chart | str] = ()
    notes: Iterable[str] = ()
    data: Table | Callable[[], Table] | None = None
    lead: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()
    question: str = ""
    answers: Sequence[KeyFigure] = ()
    sections: Sequence[Document] = ()
    name: str = ""
    made: Made | None = None

    @property
    def tables(self) -> list[Table]:
        """The tables of its content."""
        return [entry for entry in self.content if isinstance(entry, Table)]

    def but(self, **changes: Any) -> Document:
        """The same document with these fields."""
        return msgspec.structs.replace(self, **changes)

    def markdown(self, level: int = 1) -> str:
        """The whole of it, sections under their headings; charts are left out."""
        title = _safe(self.title)
        blocks = [f"**{title}**" if level == 1 else f"{'#' * level} {title}"] if title else []
        blocks += [_safe(text) for text in (self.question, *self.lead) if text]
        facts = [_safe(f"- {answer.name}: {answer.text}") for answer in self.answers]
        facts += [_safe(f"- {name}: {value}") for name, value in self.facts]
        blocks += ["\n".join(facts)] if facts else []
        blocks += [entry.markdown() if isinstance(entry, Table) else _safe(entry)
                  for entry in self.content if not isinstance(entry, Chart)]  # fmt: skip
        blocks += [f"{purpose}:\n\n    {printable(command)}" for purpose, command in self.commands]
        notes = [_safe(f"> {note}") for note in self.notes]
        blocks += ["\n".join(notes)] if notes else []
        blocks += [section.markdown(level + 1).rstrip("\n") for section in self.sections]
        return "\n\n".join(blocks) + "\n"

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        facts = [(answer.name, answer.text) for answer in self.answers] + list(self.facts)
        blocks = [f"<b>{_plain(self.title)}</b>"] if self.title else []
        blocks += [f"<p>{_plain(text)}</p>" for text in (self.question, *self.lead) if text]
        blocks += [f"<ul>{''.join(f'<li>{_plain(name)}: {_plain(value)}</li>' for name, value in facts)}</ul>"]
        blocks += [entry._repr_html_() if isinstance(entry, Table) else f"<p>{_plain(entry)}</p>"
                  for entry in self.content if not isinstance(entry, Chart)]  # fmt: skip
        blocks += [f"<p>{_plain(purpose)}: <code>{_plain(command)}</code></p>" for purpose, command in self.commands]
        blocks += [f"<p><small>{_plain(note)}</small></p>" for note in self.notes]
        blocks += [section._repr_html_() for section in self.sections]
        return "\n".join(entry for entry in blocks if entry != "<ul></ul>")

    @property
    def csv_table(self) -> Table:
        """What CSV gives: its data; of a document without a table its facts."""
        facts = [{"name": name, "value": value} for name, value in self.facts]
        given = self.data() if callable(self.data) else self.data
        return given or next(iter(self.tables), raw_table(facts, ("name", "value")))

    def write_csv(self, out: IO[str]) -> None:
        """The table for it, of raw values."""
        self.csv_table.write_csv(out)


class Shown(Result, msgspec.Struct, frozen=True):
    """An answer that is a list, or a record of a file: its JSON, and its document."""

    data: dict[str, Any]
    page: Document

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        return self.data

    def document(self, **how: Any) -> Document:
        """What the command prints."""
        return self.page


def drawn(
    caption: str, draw: Callable[[], Any], tips: bool = True, known: Sequence[str] = (), otherwise: str = ""
) -> Chart | str:
    """A chart; or, where a result has nothing to draw, `otherwise` or the chart's own sentence why."""
    try:
        return Chart(draw(), caption, tips, known)
    except BadValue as error:
        return otherwise or f"No picture: {error}."


def _raw(value: Any) -> Any:
    """A value for CSV."""
    if isinstance(value, (list, tuple)):
        value = "x".join(map(str, value))
    return cell(value) if isinstance(value, str) else value


def _line(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{_plain(cell)}</td>' for cell in cells)}</tr>"


def _plain(text: str) -> str:
    from html import escape

    return escape(text)


def _escaped(text: str) -> str:
    return _safe(text).replace("|", "\\|")


def _safe(text: str) -> str:
    """Text on one line of Markdown that is neither a tag of HTML nor a link; what stands in backticks stays."""
    return _MARKUP.sub(lambda found: found[1] or f"\\{found[2]}", printable(text))


_MARKUP = re.compile(r"(`[^`]*`)|(\](?=\()|<(?=[A-Za-z/!?]))")

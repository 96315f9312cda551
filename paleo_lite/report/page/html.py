"""From a `Document` to the text of one HTML file: everything inside, nothing fetched, every name escaped."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec

from ...extras import need
from ...text import printable, short
from ..document import Chart, Column, Document, Table
from .pictures import picture

ROWS_AT_MOST = 2000
"""Rows of a table beyond this are gathered into one line of its foot."""

_PRINTED = 40
"""Rows of a table that are put on paper; the style says so, too."""

_BAR = "share"  # the column that is drawn as bars too

WORD, NAME = 16, 36
"""Letters that stay on one line everywhere, and on wide screens."""


class Cell(msgspec.Struct, frozen=True):
    """A cell: its text, the number that it is sorted by, the share that its bar shows, and its class in the style."""

    text: str
    number: str | None = None
    share: str | None = None
    style: str = ""


def to_html(document: Document) -> str:
    """The page.

    The page's policy lets nothing run but its own script, known by its hash, and nothing be fetched.

    Raises
    ------
    MissingExtra
        If Jinja2, Altair or vl-convert is not installed.
    """
    jinja2 = need("jinja2", "writing a report", "plots")
    markupsafe = need("markupsafe", "writing a report", "plots")
    folder = files(__package__) / "templates"
    parts = {name: (folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.css", "report.js")}
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )  # fmt: skip
    numbers = iter(range(1, 10_000))
    digest = base64.b64encode(hashlib.sha256(parts["report.js"].encode()).digest()).decode()
    page = environment.from_string(parts["report.html"]).render(
        report=document,
        style=markupsafe.Markup(parts["report.css"]),
        script=markupsafe.Markup(parts["report.js"]),
        script_hash=digest,
        draw=lambda chart: _drawn(chart, next(numbers), markupsafe.Markup),
        name_of=lambda thing: type(thing).__name__,
        heads=heads,
        cells=cells,
        foot=foot,
        number=lambda: next(numbers),
        printed=_PRINTED,
    )
    return str(page) + "\n"


def _drawn(figure: Chart, number: int, safe: Any) -> dict[str, Any]:
    """The picture, and its caption with what the chart says of itself."""
    svg, said = picture(figure.chart, number, figure.tips)
    further = "; ".join(line for line in said if not line.startswith(tuple(figure.known)))
    return {"svg": safe(svg), "said": f"{further[0].upper()}{further[1:]}." if further else ""}


def heads(table: Table) -> list[tuple[str, bool]]:
    """Titles of the columns, and whether each is set to the left."""
    return [(_title(column), column.left) for column in table.columns]


def _title(column: Column) -> str:
    return column.title.replace("-\n", "").replace("\n", " ")


def cells(table: Table) -> Iterator[list[Cell]]:
    """The rows that are shown: at most `ROWS_AT_MOST`."""
    for row in table.rows[:ROWS_AT_MOST]:
        yield [_cell(column, row) for column in table.columns]


def foot(table: Table) -> Iterator[list[Cell]]:
    """The rows of the foot, before them one for all rows that are not shown."""
    gathered = gather(table, table.rows[ROWS_AT_MOST:])
    for row in [gathered, *table.foot] if gathered else table.foot:
        yield [_cell(column, row) if column.key in row else Cell("", style=_style(column)) for column in table.columns]


_ADDED = ("time_s", "share", "calls", "layers", "flops", "bytes")


def gather(table: Table, rows: Any) -> dict[str, Any]:
    """One row for many: how many they are, and what they add up to."""
    if not rows:
        return {}
    summed: dict[str, Any] = {table.columns[0].key: f"{len(rows):,} further rows"}
    for column in table.columns[1:]:
        known = [row[column.key] for row in rows if row.get(column.key) is not None]
        if column.key in _ADDED and known:
            summed[column.key] = sum(known)
    return summed


def _cell(column: Column, row: dict[str, Any]) -> Cell:
    value, text = row.get(column.key), short(column.text(row))
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return Cell(text, style=_style(column, text))
    share = f"{min(max(value, 0.0), 1.0):.2%}" if column.key == _BAR else None
    return Cell(text, f"{value:.12g}", share, _style(column, text))


def _style(column: Column, text: str = "") -> str:
    """Class of a cell: numbers and words stay on one line, on a phone only the shorter ones."""
    if not column.left:
        return "number"
    width = "word" if len(text) <= WORD else "name" if len(text) <= NAME else "long"
    return f"text {width}"

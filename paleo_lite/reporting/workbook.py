"""All tables of a document in one file: a workbook of Excel, or an archive of CSV files."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from ..extras import require
from ..text import slug
from .document import Document, Table, raw_table

FACTS = "Facts"
_SHEET_CHARACTERS = 31  # of the name of a sheet, which Excel allows
_FORBIDDEN = re.compile(r"[\[\]:*?/\\']")
_WIDEST = 60  # characters of a column
_EPOCH = (1980, 1, 1, 0, 0, 0)  # date of the files of an archive, so that the same answer gives the same bytes


def tables_of(document: Document) -> dict[str, Table]:
    """Return all tables of a document and its sections by a name that is theirs alone, the facts first."""
    facts = list(_facts_of(document))
    tables = {FACTS: raw_table(facts, ("name", "value"))}
    for title, table in _tables_within(document, ""):
        name, number = title, 1
        while name.lower() in {other.lower() for other in tables}:
            number += 1
            name = f"{title[: _SHEET_CHARACTERS - 4]} ({number})"
        tables[name] = table
    return tables


def _tables_within(document: Document, section: str) -> Iterator[tuple[str, Table]]:
    for table in document.tables:
        if table.rows:
            yield _sheet_name(table.title or section or "Table"), table
    for part in document.sections:
        yield from _tables_within(part, part.title)


def _sheet_name(title: str) -> str:
    """Return a title as Excel allows it as the name of a sheet."""
    return _FORBIDDEN.sub(" ", title)[:_SHEET_CHARACTERS].strip() or "Table"


def _facts_of(document: Document) -> Iterator[dict[str, Any]]:
    yield {"name": "title", "value": document.title}
    for answer in document.answers:
        yield {"name": answer.name, "value": answer.text}
    for name, value in document.facts:
        yield {"name": name, "value": value}
    for note in document.notes:
        yield {"name": "note", "value": note}
    for section in document.sections:
        yield from (fact for fact in _facts_of(section) if fact["name"] != "title")
    if document.provenance is not None:
        yield {"name": "command", "value": document.provenance.command}
        yield {"name": "version", "value": document.provenance.version}


def to_workbook(document: Document) -> bytes:
    """Return a workbook with a sheet for each table, in raw numbers that formulas can use.

    Raise MissingExtra if XlsxWriter is not installed.
    """
    xlsxwriter = require("xlsxwriter", "writing a workbook", "tables")
    buffer = io.BytesIO()
    # Text of files stays text: nothing becomes a formula or a link.
    options = {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": True}
    with xlsxwriter.Workbook(buffer, options) as book:
        bold = book.add_format({"bold": True})
        for name, table in tables_of(document).items():
            sheet = book.add_worksheet(name)
            for place, column in enumerate(table.columns):
                heading = f"{column.heading} ({column.unit})" if column.unit not in ("", "1") else column.heading
                cells = [_cell(row.get(column.key)) for row in table.rows]
                sheet.write(0, place, heading, bold)
                sheet.write_column(1, place, cells)
                width = max(len(heading), *(len(str(cell)) for cell in cells[:1000]))
                sheet.set_column(place, place, min(width + 1, _WIDEST))
            sheet.freeze_panes(1, 0)
            if len(table.rows) > 1:
                sheet.autofilter(0, 0, len(table.rows), len(table.columns) - 1)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a cell: numbers and text as they are, all else as text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return value.item() if hasattr(value, "item") else str(value)


def to_archive(document: Document) -> bytes:
    """Return a ZIP archive with a CSV file for each table, in raw values."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, table in tables_of(document).items():
            text = io.StringIO()
            table.write_csv(text)
            file_name = slug(name) or "table"
            archive.writestr(zipfile.ZipInfo(f"{file_name}.csv", _EPOCH), text.getvalue())
    return buffer.getvalue()

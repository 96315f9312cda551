"""Workbooks and archives of tables, read again by a library that did not write them."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.workbook import tables_of, to_archive, to_workbook

NAMES = {"main": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}


def document() -> Document:
    columns = [Column("name", "layer", left=True), Column("time_s", "time", unit="s"), Column("shape", "shape")]
    rows = [
        {"name": "=HYPERLINK('http://x')", "time_s": 0.25, "shape": (3, 4)},
        {"name": "fc", "time_s": None, "shape": None},
    ]
    table = Table("Layers: of [all] the network, by the time of each", columns, rows)
    inner = Document("Further", content=[table.replace(title=table.title.upper()), Table("Empty", columns, [])])
    return Document("answer", facts=[("at least", "1 ms")], content=[table], notes=["a note"], sections=[inner])


def test_names_of_sheets_are_allowed_and_different() -> None:
    """At most 31 characters, none of []:*?/\\, and no two that differ by case alone."""
    names = list(tables_of(document()))
    assert names[0] == "Facts" and len(names) == 3
    assert len({name.lower() for name in names}) == 3
    assert all(len(name) <= 31 and not set(name) & set("[]:*?/\\") for name in names)


def test_a_workbook_has_numbers_and_text_but_no_formula() -> None:
    pytest.importorskip("xlsxwriter")
    with zipfile.ZipFile(io.BytesIO(to_workbook(document()))) as book:
        sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet2.xml"))
        strings = ["".join(part.itertext()) for part in ElementTree.fromstring(book.read("xl/sharedStrings.xml"))]
        relations = [name for name in book.namelist() if "worksheets/_rels" in name]
    cells = {cell.get("r"): cell for cell in sheet.iterfind(".//main:c", NAMES)}
    assert not sheet.findall(".//main:f", NAMES) and not relations  # neither formulas nor links
    assert float(cells["B2"].findtext("main:v", namespaces=NAMES)) == 0.25
    assert "time (s)" in strings and "=HYPERLINK('http://x')" in strings and "3x4" in strings
    assert "B3" not in cells  # no value


def test_an_archive_has_a_csv_per_table() -> None:
    with zipfile.ZipFile(io.BytesIO(to_archive(document()))) as archive:
        assert archive.namelist()[0] == "facts.csv" and len(archive.namelist()) == 3
        rows = list(csv.DictReader(io.StringIO(archive.read(archive.namelist()[1]).decode())))
    assert rows[0]["time_s"] == "0.25" and rows[1]["time_s"] == ""
    assert not rows[0]["name"].startswith("=")
    assert to_archive(document()) == to_archive(document())


@pytest.mark.parametrize("suffix", [".xlsx", ".zip"])
def test_a_report_of_a_question(tmp_path: Path, suffix: str) -> None:
    for library in ("xlsxwriter", "altair", "vl_convert"):
        pytest.importorskip(library)
    path = tmp_path / f"report{suffix}"
    pl.report(pl.Predict("alexnet", gpu="t4"), path)
    with zipfile.ZipFile(path) as written:
        names = written.namelist()
        text = "".join(
            written.read(name).decode("utf-8", "replace") for name in names if name.endswith((".csv", ".xml"))
        )
    assert "features.0" in text and "alexnet" in text
    assert len(names) > 3


def test_other_endings_of_reports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"must end in .html, or for its tables alone in .xlsx or .zip"):
        pl.report(pl.Predict("alexnet", gpu="t4"), tmp_path / "report.pdf")

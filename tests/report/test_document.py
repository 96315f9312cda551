"""Tables and documents: what fits a width, what absent looks like, and that names are shown as they are."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.report.document import Chart, Column, Document, KeyFigure, Table
from paleo_lite.report.terminal import fitting, show_document, table_lines


def render(page: Document, style: str) -> str:
    out = io.StringIO()
    show_document(page, style, out)
    return out.getvalue()


TABLE = Table(
    "Title",
    [
        Column("name", "name", left=True),
        Column("seen", "seen", left=True, spare=1),
        Column("much", "much", lambda value: f"{value:,}", spare=2),
    ],
    [{"name": "[bold]a[/bold]", "seen": "x" * 30, "much": 1234567}, {"name": "b|c", "seen": None, "much": None}],
    [{"name": "total", "much": 1234567}],
)


def test_the_most_spare_columns_go_first() -> None:
    assert [column.key for column in fitting(TABLE, 100)] == ["name", "seen", "much"]
    assert [column.key for column in fitting(TABLE, 50)] == ["name", "seen"]
    assert [column.key for column in fitting(TABLE, 20)] == ["name"]


def test_what_is_dropped_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert "not shown at this width: much" in render(Document("", (), [TABLE]), "table")


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_absent_is_a_dash_and_markup_is_text(style: str) -> None:
    text = render(Document("head [red]", [("fact", "[link]")], [TABLE], ["[dim] note"]), style)
    assert "[bold]a[/bold]" in text and "[link]" in text and "[dim] note" in text and "head [red]" in text
    assert "-" in next(line for line in text.splitlines() if "c" in line and "b" in line)


def test_csv_has_raw_values_and_empty_for_absent() -> None:
    rows = list(csv.DictReader(io.StringIO(render(Document("", (), [TABLE]), "csv"))))
    assert rows[0]["much"] == "1234567"
    assert rows[1] == {"name": "b|c", "seen": "", "much": ""}


def test_markdown_escapes_what_would_end_a_cell() -> None:
    assert "b\\|c" in render(Document("", (), [TABLE]), "markdown")


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40), st.integers()), max_size=5
    ),
    st.integers(20, 200),
)
def test_any_names_fit_any_width(cells: list[tuple[str, int]], width: int) -> None:
    rows = [{"name": name, "much": much} for name, much in cells]
    table = Table("", TABLE.columns, rows)
    assert fitting(table, width)[0].key == "name"
    assert len(list(csv.reader(io.StringIO(render(Document("", (), [table]), "csv"), newline="")))) == len(rows) + 1


@given(st.lists(st.tuples(st.text(max_size=60), st.integers()), max_size=5), st.integers(44, 120))
def test_a_table_is_never_wider_than_the_terminal(cells: list[tuple[str, int]], width: int) -> None:
    columns = [Column("name", "name", left=True), Column("note", "note", left=True, fold=True), Column("much", "much")]
    rows = [{"name": name[:20], "note": name * 3, "much": much % 10**6} for name, much in cells]
    lines = table_lines(Table("", columns, rows, [{"name": "total", "much": 1}]), width)
    assert max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)


def test_folded_cells_keep_every_word() -> None:
    text = "the quick brown fox jumps over the lazy dog again and again until it is tired"
    columns = [Column("name", "name", left=True), Column("note", "note", left=True, fold=True)]
    lines = table_lines(Table("", columns, [{"name": "a", "note": text}]), 40)
    assert len(lines) > 4
    assert " ".join(" ".join(lines[2:]).removeprefix("a").split()) == text


WHOLE = Document(
    "A report",
    question="How long?",
    answers=[KeyFigure("Time", "3 ms", "at 90%")],
    lead=["It was measured."],
    sections=[
        Document(
            "Why", [("peak", "4 TFLOP/s")], [TABLE, Chart(None, "a picture"), "No timeline."], ["rounded"], name="why"
        ),
        Document("Again", commands=[("This", "paleo-lite report x")], name="again"),
    ],
)


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_a_document_with_sections_says_all_but_its_charts(style: str) -> None:
    text = render(WHOLE, style)
    said = ["A report", "How long?", "It was measured.", "3 ms (at 90%)", "Why", "4 TFLOP/s", "b", "No timeline.",
            "rounded", "Again", "This:", "paleo-lite report x"]  # fmt: skip
    assert [text.index(word) for word in said] == sorted(text.index(word) for word in said)
    assert "a picture" not in text


def test_markdown_has_a_heading_for_each_section() -> None:
    assert [line for line in render(WHOLE, "markdown").splitlines() if line.startswith("#")] == ["## Why", "## Again"]


def test_csv_of_a_document_without_a_table_is_its_facts() -> None:
    assert render(Document("", [("rows", "1,000")]), "csv") == 'name,value\nrows,"1,000"\n'

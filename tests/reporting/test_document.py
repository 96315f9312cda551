"""Tables and documents: widths, missing values, escaping, and shortened tables."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.reporting.document import Chart, Column, Document, KeyFigure, Table
from paleo_lite.reporting.formats import format_percent
from paleo_lite.reporting.terminal import fit_columns, format_table_lines, show_document


def render(page: Document, style: str) -> str:
    out = io.StringIO()
    show_document(page, style, out)
    return out.getvalue()


TABLE = Table(
    "Title",
    [
        Column("name", "name", left=True),
        Column("seen", "seen", left=True, drop_order=1),
        Column("much", "much", lambda value: f"{value:,}", drop_order=2),
    ],
    [{"name": "[bold]a[/bold]", "seen": "x" * 30, "much": 1234567}, {"name": "b|c", "seen": None, "much": None}],
    [{"name": "total", "much": 1234567}],
)


def test_columns_are_dropped_in_their_order() -> None:
    assert [layout.column.key for layout in fit_columns(TABLE, 100)] == ["name", "seen", "much"]
    assert [layout.column.key for layout in fit_columns(TABLE, 50)] == ["name", "seen"]
    assert [layout.column.key for layout in fit_columns(TABLE, 20)] == ["name"]


def test_dropped_columns_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_markdown_escapes_cell_separators() -> None:
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
    assert fit_columns(table, width)[0].column.key == "name"
    assert len(list(csv.reader(io.StringIO(render(Document("", (), [table]), "csv"), newline="")))) == len(rows) + 1


@given(st.lists(st.tuples(st.text(max_size=60), st.integers()), max_size=5), st.integers(44, 120))
def test_a_table_is_never_wider_than_the_terminal(cells: list[tuple[str, int]], width: int) -> None:
    columns = [Column("name", "name", left=True), Column("note", "note", left=True, wrap=True), Column("much", "much")]
    rows = [{"name": name[:20], "note": name * 3, "much": much % 10**6} for name, much in cells]
    lines = format_table_lines(Table("", columns, rows, [{"name": "total", "much": 1}]), width)
    assert max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)


def test_folded_cells_keep_every_word() -> None:
    text = "the quick brown fox jumps over the lazy dog again and again until it is tired"
    columns = [Column("name", "name", left=True), Column("note", "note", left=True, wrap=True)]
    lines = format_table_lines(Table("", columns, [{"name": "a", "note": text}]), 40)
    assert len(lines) > 4
    assert " ".join(" ".join(lines[2:]).removeprefix("a").split()) == text


WHOLE = Document(
    "A report",
    question="How long?",
    answers=[KeyFigure("Time", "3 ms", "at 90%")],
    introduction=["It was measured."],
    sections=[
        Document(
            "Why", [("peak", "4 TFLOP/s")], [TABLE, Chart(None, "a picture"), "No timeline."], ["rounded"], name="why"
        ),
        Document("Again", commands=[("This", "paleo-lite report x")], name="again"),
    ],
)


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_text_formats_contain_everything_except_charts(style: str) -> None:
    text = render(WHOLE, style)
    texts = ["A report", "How long?", "It was measured.", "3 ms (at 90%)", "Why", "4 TFLOP/s", "b", "No timeline.",
            "rounded", "Again", "This:", "paleo-lite report x"]  # fmt: skip
    assert [text.index(word) for word in texts] == sorted(text.index(word) for word in texts)
    assert "a picture" not in text


def test_markdown_has_a_heading_for_each_section() -> None:
    assert [line for line in render(WHOLE, "markdown").splitlines() if line.startswith("#")] == ["## Why", "## Again"]


def test_csv_of_a_document_without_a_table_is_its_facts() -> None:
    assert render(Document("", [("rows", "1,000")]), "csv") == 'name,value\nrows,"1,000"\n'


def test_columns_without_a_value_are_left_out():
    table = Table("", [Column("a", "a"), Column("b", "b"), Column("c", "c")], [{"a": 1, "c": None}, {"a": None}])
    assert [column.key for column in table.drop_empty_columns("c").columns] == ["a", "c"]


def test_title_of_a_shortened_table_has_the_number_of_rows():
    table = Table("Steps", [Column("step", "step")], [{"step": 1}, {"step": 2}, {"step": 3}])
    assert (table.head(2, "the longest ").title, len(table.head(2).rows)) == ("Steps, the longest 2 of 3", 2)
    assert table.head(None) is table and table.head(3) is table


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0%"), (4.9e-4, "< 0.05%"), (5.1e-4, "0.1%"), (0.14, "14.0%"), (-0.002, "-0.2%"), (11.5, "1150.0%")],
)
def test_positive_fractions_never_read_0(share, text):
    assert format_percent(share) == text


def test_all_lines_of_settings_are_indented_alike() -> None:
    """Also as a block of Markdown, where a line with fewer than four spaces is text."""
    settings = Document("Answer", commands=[("Settings", "a.b=1\nc.d=2")])
    shown = io.StringIO()
    show_document(settings, "table", shown)
    assert "Settings:\n  a.b=1\n  c.d=2\n" in shown.getvalue()
    assert "Settings:\n\n    a.b=1\n    c.d=2\n" in settings.markdown()
    assert "<code>a.b=1<br>c.d=2</code>" in settings._repr_html_()

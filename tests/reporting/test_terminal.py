"""Terminal output: bars, encodings without Unicode characters, line breaks."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite as pl
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.predictions import prediction_page
from paleo_lite.reporting.terminal import BAR_WIDTH, fit_columns, format_table_lines, show_document, text_bar, wrap_text

SHARES = Table(
    "",
    [
        Column("what", "what", left=True),
        Column("share", "share", lambda value: f"{value:.1%}", bar=True),
        Column("next", "next", left=True),
    ],
    [{"what": "much", "share": 0.5, "next": "a"}, {"what": "little", "share": 0.03, "next": "b"}],
)


@pytest.mark.parametrize(
    ("share", "bar"),
    [(0.0, ""), (1.0, "█" * 10), (0.5, "█" * 5), (0.55, "█" * 5 + "▌"), (0.0125, "▏"), (0.006, ""), (1.7, "█" * 10)],
)
def test_a_bar_is_as_long_as_its_share(share, bar):
    assert text_bar(share) == bar


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_has_no_shorter_bar(first, second):
    low, high = sorted([first, second])
    assert len(text_bar(low)) <= len(text_bar(high)) <= BAR_WIDTH


def test_bars_are_shown_if_there_is_room_and_do_not_shift_columns():
    wide, narrow = format_table_lines(SHARES, 40), format_table_lines(SHARES, 29)
    assert wide[2] == "much    50.0%  █████       a"
    assert wide[3] == "little   3.0%  ▎           b"
    assert narrow[2:] == ["much    50.0%  a", "little   3.0%  b"]
    assert max(map(len, format_table_lines(SHARES, 30))) <= 30


@pytest.mark.parametrize("style", ["markdown", "csv"])
def test_only_a_terminal_has_bars(style):
    out = io.StringIO()
    show_document(prediction_page(pl.predict("alexnet", gpu="k80")), style, out)
    assert "█" not in out.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("style", ["table", "markdown"])
def test_every_encoding_can_be_written(monkeypatch, encoding, style):
    monkeypatch.setenv("COLUMNS", "100")
    page = prediction_page(pl.predict("alexnet", gpu="k80"))
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding)
    show_document(page, style, out)
    out.flush()
    text = raw.getvalue().decode(encoding)
    reference = io.StringIO()
    show_document(page, style, reference)
    if encoding == "utf-8":
        assert text == reference.getvalue()
    else:
        assert "?" not in text and ("#" in text or style == "markdown")
        assert ("µs" in text) == ("µs" in reference.getvalue() and encoding != "ascii")
        assert len(text.splitlines()) == len(reference.getvalue().splitlines())


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("adaptive_avg_pool", 16, ["adaptive_avg_", "pool"]),
        ("  pytorch-gpu-benchmark of 2021", 22, ["  pytorch-gpu-", "benchmark of 2021"]),
        ("unbreakable words stay", 8, ["unbreakable", "words", "stay"]),
        ("a.b/c", 80, ["a.b/c"]),
    ],
)
def test_words_are_broken_at_their_joints_only(text, width, lines):
    assert wrap_text(text, width) == lines


class Screen(io.StringIO):
    """An output that is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_no_word_is_broken_at_any_width(width, monkeypatch):
    """Titles and notes are wrapped as well: terminals would break them inside words."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    page = prediction_page(pl.predict("alexnet", gpu="k80", precision="fp64"), 10, False)
    screen = Screen()
    show_document(page, "table", screen)
    shown = screen.getvalue()
    pieces = {piece for line in shown.splitlines() for piece in re.split(r"[\s_/.,:-]+", line)}
    words = re.split(r"[\s_/.,:-]+", " ".join([page.title, *page.notes, *(row["kind"] for row in page.tables[0].rows)]))
    assert set(words) <= pieces
    title, notes = shown.partition("\n  ")[0].splitlines(), shown.partition("\nnote: ")[2].splitlines()
    assert max(map(len, [*title, *notes])) <= width


def test_a_long_table_title_is_wrapped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    table = Table(f"Counters of {'a_long_kernel_name_' * 6}", [Column("what", "what", left=True)], [{"what": "a"}])
    out = io.StringIO()
    show_document(Document("", content=[table]), "table", out)
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_both_ends_of_an_interval_are_shown_or_neither() -> None:
    """Of a time, whose ends are low and high, and of a rate, whose ends are slowest and fastest."""
    keys = ("gpu", "low_s", "high_s", "speedup_low", "speedup_high", "slowest_tokens_per_s", "fastest_tokens_per_s")
    columns = [Column(key, key, str, drop_order=number) for number, key in enumerate(keys)]
    table = Table("", columns, [dict.fromkeys(keys, 1)])
    for width in range(10, 100):
        shown = {layout.column.key for layout in fit_columns(table, width)}
        assert all((keys[number] in shown) == (keys[number + 1] in shown) for number in (1, 3, 5))

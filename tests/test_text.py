"""Text from elsewhere, in every format that it is printed in."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.cli import main
from paleo_lite.errors import BadFile, UnknownName
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.text import clean_message, escape_csv_cell, format_plural, normalize_name

HOSTILE = "=1+cmd|' /C calc'!A0\x1b[31m\x00\n| a | b |\r<img src=x onerror=alert(1)>[y](javascript:alert(1))\ud800"


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    said = str(BadFile(f"a.toml: the key {HOSTILE!s} is unknown, {'x' * 100_000} too: say one of these"))
    assert said.isprintable() and len(said) < 1000
    assert said.startswith("a.toml: the key") and said.endswith("too: say one of these")
    assert len(str(UnknownName("network", "x" * 100_000, ["vgg16"]))) < 1000


@given(st.text(max_size=50))
def test_no_cell_is_a_formula(text) -> None:
    """OWASP's "CSV Injection": spreadsheets evaluate cells that begin with one of these characters."""
    shown = escape_csv_cell(text)
    assert shown.isprintable() or "\xa0" in shown
    assert shown[:1] not in ("=", "+", "-", "@") or len(shown) == 1 or float(shown) == float(shown)


@pytest.mark.parametrize("number", ["-1.5", "+3", "-1e-9"])
def test_numbers_stay_numbers(number) -> None:
    assert escape_csv_cell(number) == number


def test_short_sentences_stay_as_they_are() -> None:
    assert clean_message("`--batch-size` must be an integer >= 1 (got 0)").endswith("(got 0)")


def page() -> Document:
    columns = [Column("name", "name", left=True), Column(HOSTILE, HOSTILE)]
    table = Table("of " + HOSTILE, columns, [{"name": HOSTILE}])
    return Document(HOSTILE, [("fact", HOSTILE)], [table, HOSTILE], [HOSTILE], introduction=[HOSTILE])


def test_markdown_has_no_row_link_or_tag_of_a_name() -> None:
    text = page().markdown()
    assert all(line.isprintable() for line in text.split("\n"))
    bare = text.replace("\\<", "").replace("\\]", "")
    assert "<img" not in bare and "](" not in bare
    rows = [line for line in text.split("\n") if line.startswith("|")]
    assert len(rows) == 3  # heading, rule, the row
    assert [row.count("|") - row.count("\\|") for row in rows] == [3, 3, 3]


def test_a_spreadsheet_computes_nothing() -> None:
    out = io.StringIO()
    page().write_csv(out)
    (row,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert row["name"].startswith("'=1+cmd") and row["name"].isprintable()


@pytest.mark.parametrize("style", ["table", "markdown", "csv", "json"])
def test_a_kernel_of_a_trace_in_every_format(tmp_path, style) -> None:
    name = HOSTILE.replace("\ud800", "")
    events = [{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {}}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    said = CliRunner().invoke(main, ["kernels", str(path), "--gpu", "k40m", "--format", style])
    assert said.exit_code == 0, said.output
    assert all(line.isprintable() for line in said.stdout.split("\n"))
    if style == "csv":
        assert "\n=" not in said.stdout and '"=' not in said.stdout


@pytest.mark.parametrize(
    ("name", "normalized"),
    [
        ("NVIDIA Tesla K80", "k80"),
        ("nvidiatesla_k80", "k80"),
        ("AMD-Instinct MI300X", "mi300x"),
        ("NVIDIA", "nvidia"),
        ("AMD Radeon", "radeon"),
        ("", ""),
    ],
)
def test_a_maker_is_left_out_unless_it_is_the_whole_name(name: str, normalized: str) -> None:
    assert normalize_name(name) == normalized


def test_plurals_have_their_number_with_separators() -> None:
    assert (format_plural(1, "kernel"), format_plural(1234, "kernel")) == ("1 kernel", "1,234 kernels")
    assert format_plural(2, "batch") == "2 batches"

"""Lines, numbers and quantities of text profiles."""

from __future__ import annotations

import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.lines import (
    SIZE_BYTES,
    TIME_NS,
    CsvTable,
    gpu_category,
    number_of,
    numbered_lines,
    quantity_of,
    quoted,
)


@pytest.fixture
def written(tmp_path):
    def write(raw):
        path = tmp_path / "text"
        path.write_bytes(raw)
        return path

    return write


def test_line_numbers_match_an_editor(written):
    path = written(b"\xef\xbb\xbffirst\r\n\r\n\n  third \nlast\t")
    assert list(numbered_lines(path)) == [(1, "first"), (4, "  third"), (5, "last\t")]


def test_each_line_has_its_own_encoding(written):
    assert [text for _, text in numbered_lines(written("é\n".encode() + "é\n".encode("latin-1")))] == ["é", "é"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reading_stops_at_the_limit(written, pack):
    path = written(pack(b"0123456789\n" * 1000))
    lines = []
    with pytest.raises(BadProfile, match="line 10: more than 100 bytes, expected a summary"):
        for line in numbered_lines(path, 100):
            lines.append(line)
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("text", "units", "expected"),
    [
        ("46.6474s", TIME_NS, 46_647_400_000.0),
        ("230.07us", TIME_NS, 230_070.0),
        ("1.5 µs", TIME_NS, 1500.0),
        ("0ns", TIME_NS, 0.0),
        ("-3ms", TIME_NS, -3e6),
        ("400KB", SIZE_BYTES, 409600.0),
    ],
)
def test_quantities(text, units, expected):
    assert quantity_of(text, units) == expected


@pytest.mark.parametrize(
    "text", ["", "s", "1", "1 m", "nan s", "infs", "0x1s", "1_0s", "1e999s", "１s", "1e308s", "1s s", "1.2.3s"]
)
def test_texts_that_are_no_quantities_are_refused(text):
    with pytest.raises(ValueError, match=f"^{re.escape(text.removesuffix('s'))}s?$"):
        quantity_of(text, TIME_NS)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_reads_back(value):
    assert number_of(repr(value)) == value


@given(st.text())
def test_numbers_are_finite_or_an_error(text):
    try:
        value = number_of(text)
    except ValueError:
        return
    assert value - value == 0


def test_categories():
    names = [
        "[CUDA memcpy HtoD]",
        "[CUDA memset]",
        "ncclAllReduceRing",
        "void gemm<int>()",
        "[Unified Memory Memcpy HtoD]",
    ]
    assert [gpu_category(name) for name in names] == ["memcpy", "memset", "communication", "kernel", "memcpy"]


def test_a_quoted_text_is_short_and_of_one_line():
    assert quoted("a\nb") == "'a\\nb'"
    assert len(quoted("x" * 10**6)) < 100


def test_a_table_among_other_lines(written):
    path = written(b'hello\n==1== profiling\n"A","B","C*"\n,s,\n1,2,"x, y"\n==1== bye\nA,B,D\n,ms,\n3,4,5\n')
    table = CsvTable(path, re.compile('"?A"?,'), units=True)
    found = [(number, fields, table.names, table.units) for number, fields in table.rows()]
    assert found == [
        (5, ["1", "2", "x, y"], ["A", "B", "C"], ["", "s", ""]),
        (9, ["3", "4", "5"], ["A", "B", "D"], ["", "ms", ""]),
    ]

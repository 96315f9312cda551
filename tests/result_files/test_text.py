"""Numbers, durations and lines as tools print them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from paleo_lite.result_files.findings import Findings
from paleo_lite.result_files.text import (
    CHUNK_BYTES,
    LONGEST_LINE,
    MANY_LINES,
    READ_OF_MANY,
    all_lines,
    find_lines,
    is_cut,
    to_number,
    to_seconds,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4,376", 4376),
        ("1,234,567.5", 1234567.5),
        ("3,14", 3.14),
        ("1e-5", 1e-5),
        (" '7' ", 7),
        ("-0.00", 0),
        (5, 5),
        ("1.000,5", 1000.5),
        ("1 000,5", 1000.5),
        ("12\u202f345.5", 12345.5),
        ("1’234’567", 1234567),
    ],
)
def test_numbers(text: object, number: float) -> None:
    assert to_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "1.2.3", "1.000.0", "10 00", "12 ms", "N/A", None, True, [], float("inf"), "9" * 400]
)
def test_texts_that_are_no_number_are_none(text: object) -> None:
    assert to_number(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1m2.5s", 62.5), ("355.5ms", 0.3555), ("282us", 282e-6), ("1h0m1s", 3601), ("0:15:11.5", 911.5),
     ("1 day, 0:00:01", 86401), ("12ns", 12e-9)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert to_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "1m2", "1m 2s", "a1s"])
def test_texts_that_are_no_duration_are_none(text: str) -> None:
    assert to_seconds(text) is None


@pytest.mark.parametrize("filler", ["", "noise\n" * 300_000])
def test_lines_with_a_marker(tmp_path: Path, filler: str) -> None:
    """In a file of which few lines have one, and in one of which all have."""
    path = tmp_path / "log"
    path.write_text(f"\ufeff{filler}a MARK 1\r\nbar 1\rbar MARK 2\r{filler}\x1b[31mMARK 3\x1b[0m\nMARK 4", "utf-8")
    assert list(find_lines(path, ("MARK",))) == ["a MARK 1", "bar MARK 2", "MARK 3", "MARK 4"]


def test_two_markers_in_a_line_give_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x\n" * 1000 + "one two one\n" + "x\n" * 1000 + "two\n")
    assert list(find_lines(path, ("one", "two"))) == ["one two one", "two"]


def test_of_many_lines_only_some_megabytes_are_read(tmp_path: Path) -> None:
    """Each line that is found is whole, also the first one behind megabytes that are left out."""
    path = tmp_path / "log"
    line = "MARK " + "x" * 506 + "\n"
    block = line * (CHUNK_BYTES // len(line) + 1)
    with path.open("w") as file:
        file.writelines([block] * 4)
        file.seek(READ_OF_MANY * CHUNK_BYTES - 100)  # over a hole of zeros, which no disk stores
        file.writelines([block] * 2)
    findings = Findings(path, "", "")
    found = list(find_lines(path, ("MARK",), findings))
    assert 8_000 < len(found) < 12_000
    assert set(found) == {line.rstrip()}
    assert "only one of" in findings.doubts[0]


def test_of_many_lines_in_one_megabyte_all_are_read(tmp_path: Path) -> None:
    """The last one, too, which has no end, and no note says that some were left out."""
    path = tmp_path / "log"
    lines = [f"MARK {number}" for number in range(MANY_LINES + 1_000)]
    path.write_text("\n".join(lines))
    findings = Findings(path, "", "")
    assert list(find_lines(path, ("MARK",), findings)) == lines
    assert not findings.doubts


def test_long_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"y" * (2 * LONGEST_LINE) + b"\nlast\n")
    assert [len(line) for line in all_lines(path)] == [5, LONGEST_LINE, 4]


def test_a_gzip_whose_end_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    whole = gzip.compress(b"".join(f"line {number}\n".encode() for number in range(200_000)))
    path.write_bytes(whole)
    assert not is_cut(path) and sum(1 for _ in all_lines(path)) == 200_000
    path.write_bytes(whole[: len(whole) // 2])
    lines = list(all_lines(path))
    assert is_cut(path) and len(lines) > 20_000 and lines[:2] == ["line 0", "line 1"]


def test_a_gzip_that_is_followed_by_something_else(tmp_path: Path) -> None:
    """Two logs were joined, of which only the first is compressed."""
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"first 1\n" * 1_000_000) + b"0: second 2\n" * 10)
    assert is_cut(path)
    assert 0 < len(list(find_lines(path, ("first",)))) <= 1_000_000

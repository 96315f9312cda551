"""Spreadsheets of DeepBench."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from paleo_lite.errors import BadFile
from paleo_lite.result_files.detect import read_result

TEXTS = ["GPU Model", "NVIDIA T4", "Dense Matrix Multiplication", "M", "N", "K", "A Transpose", "Time (msec)", "N"]


def sheet(rows: list[list[str]]) -> str:
    """Return a sheet; cells of letters are shared texts."""
    lines = []
    for number, row in enumerate(rows, 1):
        cells = "".join(
            f'<c r="{"ABCDEFG"[column]}{number}" t="s"><v>{TEXTS.index(cell)}</v></c>'
            if cell in TEXTS
            else f'<c r="{"ABCDEFG"[column]}{number}"><v>{cell}</v></c>'
            for column, cell in enumerate(row)
            if cell
        )
        lines.append(f'<row r="{number}">{cells}</row>')
    return f"<worksheet><sheetData>{''.join(lines)}</sheetData></worksheet>"


def write(path: Path, rows: list[list[str]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
        archive.writestr("xl/sharedStrings.xml", "".join(f"<si><t>{text}</t></si>" for text in TEXTS))
        archive.writestr("xl/worksheets/sheet1.xml", sheet(rows))
    return path


ROWS = [
    ["GPU Model", "NVIDIA T4"],
    ["Dense Matrix Multiplication", "M", "N", "K", "A Transpose", "Time (msec)"],
    ["", "1000", "10", "100", "N", "0.5"],
    ["", "1000", "10", "100", "N", "#DIV/0!"],
]


def test_a_product(tmp_path: Path) -> None:
    findings = read_result(write(tmp_path / "results.xlsx", ROWS))
    (reading,) = findings.readings
    assert findings.configuration["gpu"] == "NVIDIA T4"
    assert reading.values == {
        "operation": "product N",
        "shape": "1000x10x100",
        "flops": 2_000_000,
        "time_s": pytest.approx(5e-4),
        "flops_per_s": pytest.approx(4e9),
    }


def test_another_spreadsheet(tmp_path: Path) -> None:
    findings = read_result(write(tmp_path / "other.xlsx", [["GPU Model", "NVIDIA T4"]]))
    assert findings.doubts == ["a spreadsheet without a table of DeepBench", "no measurement was found in it"]


@pytest.mark.parametrize("kept", [60, 300])
def test_a_damaged_spreadsheet(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path / "results.xlsx", ROWS)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(BadFile, match="cannot be read"):
        read_result(path)

"""DeepBench's spreadsheets: times of products, convolutions and recurrent layers; nothing in them is run."""

from __future__ import annotations

import re
import zipfile
import zlib
from html import unescape
from pathlib import Path

from ..errors import BadFile
from .findings import Findings, ResultFormat
from .text import ratio, scaled, to_number

MAGIC = b"PK\x03\x04"
_MOST_BYTES = 16 * 2**20  # of a part of the spreadsheet, unpacked
_MS, _TFLOP = 1e-3, 1e12
_TEXT = re.compile(r"<si>(.*?)</si>", re.DOTALL)
_RUN = re.compile(r"<t[^>]*>([^<]*)</t>")
_ROW = re.compile(r"<row [^>]*>(.*?)</row>", re.DOTALL)
_CELL = re.compile(r'<c r="([A-Z]{1,3})\d+"([^>]*?)(?:/>|>(.*?)</c>)', re.DOTALL)
_VALUE = re.compile(r"<v>([^<]*)</v>")
_SECTIONS = {
    "Dense Matrix Multiplication": "product", "Sparse Matrix Multiplication": "sparse product",
    "Convolution": "convolution", "Recurrent Layers": "recurrent layer",
}  # fmt: skip
_TIME = re.compile(r"\(ms(?:ec)?\)", re.IGNORECASE)
_RATE = re.compile(r"TERAFLOPS|TFLOPS", re.IGNORECASE)
_DERIVED = re.compile(r"kernels|speedup|algo|transpose|pad_|^[PQ]$", re.IGNORECASE)


def is_spreadsheet(path: Path) -> bool:
    """Return whether a zip file is a spreadsheet."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def read_spreadsheet(path: Path, findings: Findings) -> None:
    """Read all sheets of a spreadsheet of DeepBench."""
    try:
        with zipfile.ZipFile(path) as archive:
            texts = [
                unescape("".join(_RUN.findall(item))) for item in _TEXT.findall(_part(archive, "xl/sharedStrings.xml"))
            ]
            sheets = sorted(name for name in archive.namelist() if name.startswith("xl/worksheets/sheet"))
            for name in sheets[:64]:
                _read_sheet(_part(archive, name), texts, findings)
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise BadFile(f"{path}: a spreadsheet that cannot be read ({error})") from None
    if not findings.readings:
        findings.doubt("a spreadsheet without a table of DeepBench")


def _part(archive: zipfile.ZipFile, name: str) -> str:
    """Return a part of a spreadsheet as text; raise BadFile if it is too large."""
    with archive.open(name) as part:
        data = part.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise BadFile(
            f"{archive.filename}: {name} has more than {_MOST_BYTES:,} bytes, too many for a table of results"
        )
    return data.decode("utf-8", errors="replace")


def _read_sheet(sheet: str, texts: list[str], findings: Findings) -> None:
    operation, heading = "", dict[str, str]()
    for row in _ROW.findall(sheet):
        cells = _cells(row, texts)
        first = cells.get("A", "")
        section = next((name for start, name in _SECTIONS.items() if first.startswith(start)), None)
        if section is not None:
            operation, heading = section, {}
        if first in ("GPU Model", "CPU Model", "Precision"):
            findings.record(**{first.split(" ")[0].lower(): cells.get("B")})
        elif operation and any(_TIME.search(text) for text in cells.values()):
            heading = {column: text.strip() for column, text in cells.items() if column != "A"}
        elif heading:
            _add_row(
                operation, {heading[column]: text for column, text in cells.items() if column in heading}, findings
            )


def _cells(row: str, texts: list[str]) -> dict[str, str]:
    """Return the texts of a row by column."""
    cells = {}
    for column, attributes, body in _CELL.findall(row):
        value = _VALUE.search(body)
        if value is None:
            continue
        text = unescape(value[1])
        if 't="s"' in attributes:
            text = texts[int(text)] if text.isdecimal() and int(text) < len(texts) else ""
        cells[column] = text
    return cells


def _add_row(operation: str, row: dict[str, str], findings: Findings) -> None:
    times = {name: to_number(text) for name, text in row.items() if _TIME.search(name)}
    sizes = {}
    for name, text in row.items():
        if name not in times and not _RATE.search(name) and not _DERIVED.search(name) and text:
            sizes[name] = text
    rate = next((to_number(text) for name, text in row.items() if _RATE.search(name)), None)
    transposed = "".join(text for name, text in row.items() if "ranspose" in name)
    mnk = [to_number(row.get(name)) for name in ("M", "N", "K")]
    is_product = operation == "product" and None not in mnk
    shape = "x".join(row[name] for name in ("M", "N", "K")) if is_product else None
    shape = shape or ", ".join(f"{name.split(' ')[0]}={text}" for name, text in sizes.items())
    for number, (name, milliseconds) in enumerate(times.items()):
        seconds = scaled(milliseconds, _MS)
        flops = None
        if is_product:
            flops = 2.0
            for size in mnk:
                flops *= size or 0.0
        computed = ratio(flops, seconds)
        findings.add(
            "kernel",
            operation=f"{operation} {transposed}".strip(),
            phase=name.replace("Time", "").partition("(")[0].strip().lower() or None,
            shape=shape,
            time_s=seconds,
            flops_per_s=computed or (scaled(rate, _TFLOP) if number == 0 and seconds else None),
            flops=flops if seconds else None,
        )


FORMATS = (ResultFormat("deepbench", "DeepBench", "the spreadsheets of DeepBench", read_spreadsheet, magic=MAGIC),)

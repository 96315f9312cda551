"""JSON as benchmarks write it: with NaN and Infinity, trailing commas, several objects, lines of a log, a cut end."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import BadFile
from ..profiles.detect import open_utf8
from ..text import truncate
from .findings import Findings
from .text import CHUNK_BYTES

MOST_BYTES = 64 * 2**20
"""Bytes of a document that is held in memory. Objects on lines of their own are read one by one, without a limit."""

_MOST_TO_MEND = 16 * 2**20
_DEEPEST = 200
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|,', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[\]}])', re.DOTALL)
_LINE_OF_OBJECT = re.compile(rb'\s*\{\s*"[^\n]*\}\s*[\r\n]+\s*\{')


def read_documents(path: Path, findings: Findings) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file: of one document, of a list, or one per line; a damaged end becomes a doubt."""
    try:
        with open_utf8(path) as file:
            head = file.read(CHUNK_BYTES)
    except (EOFError, zlib.error):
        raise BadFile(f"{path}: gzip that is cut or corrupted, of which too little is left") from None
    if _LINE_OF_OBJECT.match(head):
        yield from _objects_of_lines(path, findings)
        return
    yield from _objects_of(_read_all(path), path, findings)


def _read_all(path: Path) -> str:
    pieces, size = [], 0
    try:
        with open_utf8(path) as file:
            while piece := file.read(CHUNK_BYTES):
                size += len(piece)
                if size > MOST_BYTES:
                    raise BadFile(f"{path}: more than {MOST_BYTES:,} bytes of JSON, too large for a file of results")
                pieces.append(piece)
    except (EOFError, zlib.error):  # `text.is_cut` reports this
        pieces.append(b"")
    return b"".join(pieces).decode("utf-8", errors="replace").removeprefix("\ufeff")


def _objects_of_lines(path: Path, findings: Findings) -> Iterator[dict[str, Any]]:
    """Yield the object of each line; other lines, of a log around them, are skipped."""
    damaged = 0
    with open_utf8(path) as file:
        while line := _next_line(file, path):
            opening = line.find(b"{")
            if opening < 0:
                continue
            text = line[opening:].decode("utf-8", errors="replace").rstrip(" ,;\r\n")
            value = decode_json(text, path, findings)
            if isinstance(value, dict):
                yield value
            else:
                damaged += 1
    if damaged:
        findings.doubt(f"{damaged} line{'s' if damaged > 1 else ''} could not be read as JSON (a cut file?)")


def _next_line(file: BinaryIO, path: Path) -> bytes:
    """Return the next line, empty at the end of the file or where a gzip is cut."""
    try:
        line = file.readline(MOST_BYTES + 1)
    except (EOFError, zlib.error):
        return b""
    if len(line) > MOST_BYTES:
        raise BadFile(f"{path}: a line of more than {MOST_BYTES:,} bytes, too long for an object of results")
    return line


def _objects_of(text: str, path: Path, findings: Findings) -> Iterator[dict[str, Any]]:
    """Yield the objects of one document, or of several that follow each other, also behind lines of a log."""
    decoder = json.JSONDecoder(object_pairs_hook=_DoubtfulMembers(findings).make_object)
    start, has_object = 0, False
    while start < len(text):
        opening = re.compile(r"[\[{]").search(text, start)
        if opening is None:
            break
        try:
            value, start = decoder.raw_decode(text, opening.start())
        except RecursionError:
            raise BadFile(f"{path}: nested too deeply for a file of results") from None
        except ValueError:
            if has_object or opening.start() > CHUNK_BYTES:
                break
            mended = _mend(text[opening.start() :], path)
            if mended is None:
                start = opening.start() + 1
                following = text.find("\n", start)
                if following < 0:
                    break
                start = following
                continue
            value, was_cut = mended
            if was_cut:
                findings.doubt("the end of the file is damaged: what came before it was read")
            start = len(text)
        has_object = True
        yield from [value] if isinstance(value, dict) else [item for item in value if isinstance(item, dict)]


def is_damaged_json(text: str, path: Path) -> bool:
    """Return whether a text begins like JSON, but neither it nor its first line is valid JSON."""
    plain = text.lstrip("\ufeff \t\r\n")
    if not plain.startswith(("{", "[")):
        return False
    return decode_json(plain, path) is None and decode_json(plain.partition("\n")[0], path) is None


class _DoubtfulMembers:
    """Keys that stand twice in an object, with different values, and figures that are NaN."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    def make_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object; doubt its repeated keys, and keep the names of figures that are NaN."""
        members = dict(pairs)
        for name, value in pairs:
            if isinstance(value, float) and math.isnan(value):
                self.findings.not_numbers[truncate(name)] = None
        if len(members) < len(pairs):
            for name, value in pairs:
                if value is not members[name] and value != members[name]:
                    self.findings.doubt(f"{truncate(name)} stands twice in an object: the last value is taken")
        return members


def decode_json(text: str, path: Path, findings: Findings | None = None) -> Any:
    """Return the value of a text; None if it is not JSON, even without its trailing commas."""
    make_object = None if findings is None else _DoubtfulMembers(findings).make_object
    for candidate in (text, None):
        try:
            return json.loads(
                _without_trailing_commas(text) if candidate is None else candidate, object_pairs_hook=make_object
            )
        except RecursionError:
            raise BadFile(f"{path}: nested too deeply for a file of results") from None
        except ValueError:
            continue
    return None


def _without_trailing_commas(text: str) -> str:
    return _TRAILING_COMMA.sub(lambda match: match[1] or match[2], text)


def _mend(text: str, path: Path) -> tuple[Any, bool] | None:
    """Return the value of a text with trailing commas or a cut end, and whether it was cut; None if nothing helps."""
    if len(text) > _MOST_TO_MEND:
        return None
    value = decode_json(text.rstrip(), path)
    if value is not None:
        return value, False
    # Cut at the last comma between two values, and close what is open there.
    open_brackets: list[str] = []
    last_comma, closing = -1, ""
    for token in _TOKENS.finditer(text):
        sign = token[0]
        if sign in "[{":
            open_brackets.append("]" if sign == "[" else "}")
            if len(open_brackets) > _DEEPEST:
                return None
        elif sign in "]}":
            if not open_brackets or open_brackets.pop() != sign:
                break
        elif sign == ",":
            last_comma, closing = token.start(), "".join(reversed(open_brackets))
    if last_comma < 0:
        return None
    value = decode_json(text[:last_comma] + closing, path)
    return None if value is None else (value, True)


def dig(value: Any, *names: str) -> Any:
    """Return what lies at nested keys; None where one is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value

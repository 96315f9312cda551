"""What logs of training say of their run before the first step: printed arguments and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from .text import LINE_ENDS, plain, read_chunks, to_number

HEAD_CHUNKS = 8
"""Megabytes in which a log says how it runs: every process of a large job may print its arguments."""

_NOTHING = ("None", "none", "null", "", "~")
_TRUE, _FALSE = ("True", "true"), ("False", "false")


def head_lines(path: Path, markers: Sequence[str]) -> Iterator[str]:
    """Yield the lines at the beginning of a log that contain one of the markers."""
    looked_for = [marker.encode() for marker in markers]
    for chunk in islice(read_chunks(path), HEAD_CHUNKS):
        if any(marker in chunk for marker in looked_for):
            for line in LINE_ENDS.split(chunk):
                if any(marker in line for marker in looked_for):
                    yield plain(line)


def read_arguments(path: Path, pattern: re.Pattern[str], names: Sequence[str]) -> dict[str, str]:
    """Return the first value of each of the named arguments that the head of a log prints.

    The pattern has the name of an argument and its value as groups.
    """
    arguments: dict[str, str] = {}
    for line in head_lines(path, names):
        for name, value in pattern.findall(line):
            if name in names:
                arguments.setdefault(name, value.strip().rstrip(",").strip("'\""))
    return arguments


def value_of(text: str | None) -> Any:
    """Return a printed value as a number, a truth value or a text; None for none."""
    if text is None or text in _NOTHING:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    number = to_number(text)
    if number is not None:
        return number
    return text.removeprefix("torch.")


def facts_by_name(arguments: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts that arguments are, by the names of the arguments; absent and false ones are left out."""
    facts: dict[str, Any] = {}
    for argument, fact in names.items():
        value = value_of(arguments.get(argument))
        if value is not None and value is not False:
            facts.setdefault(fact, value)
    return facts

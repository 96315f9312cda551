"""What a report consists of, before it is HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...errors import BadValue
from ..sheet import Sheet

ROWS_AT_MOST = 2000
"""Rows of a table beyond this are gathered into one line of its foot."""


class Figure(msgspec.Struct, frozen=True):
    """A chart on the page.

    Attributes
    ----------
    chart : altair chart
    caption : str
        What it shows, which also stands for it where it cannot be seen.
    tips : bool
        Whether its marks say what they are.
    known : sequence of str
        How lines of the chart's subtitle begin that the page says elsewhere.
    """

    chart: Any
    caption: str
    tips: bool = True
    known: Sequence[str] = ()


class Table(msgspec.Struct, frozen=True):
    """A sheet on the page.

    Attributes
    ----------
    sheet : Sheet
    sortable, filterable : bool
        Whether a reader with JavaScript can sort it by its columns, and search it.
    bars : tuple of str
        Columns of shares of 1 that are drawn as bars too.
    """

    sheet: Sheet
    sortable: bool = False
    filterable: bool = False
    bars: tuple[str, ...] = ("share",)


class Section(msgspec.Struct, frozen=True):
    """A part of a report under its own heading.

    Attributes
    ----------
    name : str
        What links point to.
    title : str
    lead : sequence of str
        Paragraphs.
    facts : sequence of (name, text)
    content : sequence of Figure, Table or str
        Below these, in order; a text is a remark in the place of something that there is not.
    notes : sequence of str
    commands : sequence of (what for, command)
    """

    name: str
    title: str
    lead: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    content: Sequence[Figure | Table | str] = ()
    notes: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()


class Answer(msgspec.Struct, frozen=True):
    """One of the figures that the report was asked for."""

    name: str
    value: str
    detail: str = ""


class Source(msgspec.Struct, frozen=True):
    """A file that went into a report: what it is, its name, and the SHA-256 of its content."""

    what: str
    name: str
    sha256: str


class Made(msgspec.Struct, frozen=True):
    """How a report came about.

    Attributes
    ----------
    command : str
        The command line, quoted for a POSIX shell.
    version, date : str
    sources : sequence of Source
    further : sequence of (what for, command)
        Commands that tell more.
    """

    command: str
    version: str
    date: str
    sources: Sequence[Source] = ()
    further: Sequence[tuple[str, str]] = ()


class Report(msgspec.Struct, frozen=True):
    """A report: question, answers, sections."""

    title: str
    question: str
    summary: str
    answers: Sequence[Answer]
    sections: Sequence[Section]
    made: Made


def drawn(
    caption: str, draw: Callable[[], Any], tips: bool = True, known: Sequence[str] = (), otherwise: str = ""
) -> Figure | str:
    """A figure; or, where a result has nothing to draw, `otherwise` or the chart's own sentence why."""
    try:
        return Figure(draw(), caption, tips, known)
    except BadValue as error:
        return otherwise or f"No picture: {error}."

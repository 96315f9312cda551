"""Tables that profilers print on the terminal: columns below rules of hyphens.

Nsight Systems and Nsight Compute draw a rule of hyphens below (and above) the heading, as wide as the column. Such
tables are pasted into reports and issues more often than CSV is exported.
"""

from __future__ import annotations

import re

_RULE = re.compile(r"\s*-{2,}(?: +(?:-{2,}|\.{3}))+\s*")
_BLANK = "[ \u00a0\u202f\u2009'\u2019]"
"""What separates thousands in some locales: a blank of any width, or an apostrophe."""
_POINT = re.compile(rf"-?\d{{1,3}}(?:(?:,\d{{2,3}})*,\d{{3}}|(?:{_BLANK}\d{{3}})+)?(?:\.\d+)?%?")
_COMMA = re.compile(rf"-?\d{{1,3}}(?:(?:\.\d{{3}})+|(?:{_BLANK}\d{{3}})+)?(?:,\d+)?%?")
_PLAIN_COMMA = re.compile(r"-?\d+,\d+%?")

Spans = tuple[tuple[int, int], ...]
"""First character of each column and the one after its last."""

LEFT_OUT = "..."
"""Heading of columns that somebody has left out, with such a rule below it."""


def spans_of_rule(line: str) -> Spans | None:
    """Return the columns below a rule of hyphens; None if the line is not a rule with two columns or more."""
    if not _RULE.fullmatch(line):
        return None
    return tuple(match.span() for match in re.finditer(r"-+|\.{3}", line))


def split_columns(line: str, spans: Spans) -> list[str] | None:
    """Split a printed row into fields; None if there is text between two columns, so that it is not a row.

    The last column is open: its text may be longer than the rule.
    """
    starts = [start for start, _ in spans]
    ends = [*(end for _, end in spans[:-1]), max(len(line), spans[-1][1])]
    gaps = [line[end:start] for start, end in zip(starts, [0, *ends])]
    if any(gap.strip() for gap in gaps):
        return None
    return [line[start:end].strip() for start, end in zip(starts, ends)]


def plain_numbers(fields: list[str]) -> list[str]:
    """Return the fields of a row with every number as ``1234.5``, whichever locale printed it.

    ``1.234`` is a thousand in one locale and little more than one in another: the other numbers of the row decide.
    """
    has_comma = any(_is_decimal_comma(field) for field in fields)
    return [_plain_number(field, has_comma) for field in fields]


def without_thousands(text: str) -> str:
    """Return a number as ``1234.5``, without separators of thousands; any other text as it is."""
    return _plain_number(text, _is_decimal_comma(text))


def _is_decimal_comma(text: str) -> bool:
    """Return whether a text is a number only where a comma begins the decimals."""
    if _POINT.fullmatch(text):
        return False
    return _COMMA.fullmatch(text) is not None or _PLAIN_COMMA.fullmatch(text) is not None


def _plain_number(text: str, has_comma: bool) -> str:
    if has_comma and (_COMMA.fullmatch(text) or _PLAIN_COMMA.fullmatch(text)):
        return re.sub(rf"{_BLANK}|\.", "", text).replace(",", ".")
    if not has_comma and _POINT.fullmatch(text):
        return re.sub(rf"{_BLANK}|,", "", text)
    return text


_WHOLE_PERCENT = 95.0
"""Sum of the printed shares of rows from which a table is whole: single shares may be rounded to whole percents."""


def describe_cut(percent: float, table: str = "table") -> list[str]:
    """Return a sentence on a table whose rows print shares of the time that add up to less than all of it."""
    if not 0 < percent < _WHOLE_PERCENT:
        return []
    return [
        f"the {table} is cut: by the shares that it prints, its rows are {percent:.0f}% of the time, and shares given "
        "here are of these rows"
    ]

"""Tables that profilers print on the terminal: columns below rules of hyphens.

Nsight Systems and Nsight Compute draw a rule of hyphens below (and above) the heading, as wide as the column. Such
tables are pasted into reports and issues more often than CSV is exported.
"""

from __future__ import annotations

import re

_RULE = re.compile(r"\s*-{2,}(?: +-{2,})+\s*")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")

Spans = tuple[tuple[int, int], ...]
"""First character of each column and the one after its last."""


def spans_of_rule(line: str) -> Spans | None:
    """Return the columns below a rule of hyphens; None if the line is not a rule with two columns or more."""
    if not _RULE.fullmatch(line):
        return None
    return tuple(match.span() for match in re.finditer("-+", line))


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


def without_thousands(text: str) -> str:
    """Return a number without commas between thousands; any other text as it is."""
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text

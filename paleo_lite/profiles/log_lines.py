"""Lines as a profiler printed them, without what terminals, launchers and mail programs write into them.

Output comes back from clusters with the rank before each line (torchrun, ``srun --label``), with times (``kubectl logs
--timestamps``), with the colours of a terminal, quoted in mails and issues, as comments of a script, or indented as
code. What all lines of the beginning have in common is removed from every line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]{0,200}\x07")
"""Control sequences of a terminal, such as those that change its colour."""
_WIDE_BLANK = re.compile("(?<![0-9])[\u00a0\u202f\u2009]|[\u00a0\u202f\u2009](?![0-9])")
"""A blank of another width that does not stand between the digits of a number."""
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:>(?: |$))+",  # mails, issues
        r"\[(?:rank|default)?\d{1,6}\]: ?",  # torchrun
        r"[\w.-]{1,60}: (?=\[(?:rank|default)?\d{1,6}\]:)",  # a node before its ranks
        r"\[\d{1,6},\d{1,6}\]<std(?:out|err)>: ?",  # mpirun --tag-output
        r"(?:DEBUG|INFO|WARNING|ERROR):[\w.]{1,80}:",  # Python's logging
        r" {0,5}\d{1,6}:(?: |$)",  # srun --label, which fills numbers to the width of the last one
        r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)(?: std(?:out|err) [FP])?(?: |$)",  # kubectl, containerd
    )
)
_COMMENTS = re.compile(r"(?:#|//)(?: |$)")
"""What people write before the lines of a table in a script; logs of benchmarks begin with `#` themselves."""
_CONTAINER = re.compile(r"[\w.-]{1,60} +\|(?: |$)")
"""What ``docker compose logs`` writes before the lines of one container."""

MOST_PREFIXES = 3
"""Prefixes before one another, such as those of a node and of a rank."""

CODE_INDENT = 4
"""Blanks by which Markdown indents code; fewer are the profiler's own."""

FEWEST_LINES = 2
"""With fewer lines, a common prefix cannot be told from what the profiler printed."""


def cleaner_of(head: Sequence[str]) -> Callable[[str], str] | None:
    """Return the function that cleans a line, from the first lines of a text; None if they need none."""
    has_colours = any("\x1b" in line for line in head)
    has_wide_blanks = any(_WIDE_BLANK.search(line) for line in head)
    complete_lines = head[:-1] if len(head) > FEWEST_LINES else head  # the last line may be cut
    plain_lines = [_plain(line, has_colours, has_wide_blanks) for line in complete_lines]
    prefix = common_prefix(plain_lines, (*_PREFIXES, _COMMENTS))
    if not (has_colours or has_wide_blanks or prefix):
        return None
    pattern = re.compile(prefix)

    def clean(line: str) -> str:
        line = _plain(line, has_colours, has_wide_blanks)
        match = pattern.match(line)
        return line[match.end() :].rstrip() if match else line.rstrip()

    return clean


def _plain(line: str, has_colours: bool, has_wide_blanks: bool) -> str:
    if has_colours:
        line = COLOURS.sub("", line)
    return _WIDE_BLANK.sub(" ", line) if has_wide_blanks else line


def common_prefix(lines: Sequence[str], patterns: Sequence[re.Pattern[str]] = _PREFIXES) -> str:
    """Return the regular expression of what a launcher or a person wrote before every line; empty for nothing."""
    filled = [line for line in lines if line.strip()]
    if len(filled) < FEWEST_LINES:
        return ""
    prefix = ""
    for _ in range(MOST_PREFIXES):
        further = _written_before(filled, patterns)
        if not further:
            break
        prefix = f"{prefix or '^'}{further}"
        filled = [rest for line in filled if (rest := re.sub(f"^{further}", "", line, count=1)).strip()]
    indent = min((len(line) - len(line.lstrip(" ")) for line in filled), default=0) // CODE_INDENT * CODE_INDENT
    return f"{prefix or '^'} {{{indent}}}" if indent else prefix


def _written_before(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> str:
    for pattern in patterns:
        if all(pattern.match(line) for line in lines):
            return f"(?:{pattern.pattern})"
    containers = {match[0].rstrip() for line in lines if (match := _CONTAINER.match(line))}
    if len(containers) == 1 and all(_CONTAINER.match(line) for line in lines):
        return f"(?:{_CONTAINER.pattern})"
    return ""

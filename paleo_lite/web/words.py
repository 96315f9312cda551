"""The words of the page: sentences written for the command line, with the labels of controls for its options."""

from __future__ import annotations

import re
from functools import cache

from ..questions.kind import KINDS
from ..questions.option import documented_spelling, options_of
from .wanted import WANTED, label_of, record_of

_QUOTED = re.compile(r"`([^`\n]+)`")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![\w-])|(?<![\w-])-(?:b|tp|pp|dp|ngl|c)(?![\w-])")
_COMMAND = re.compile(rf"paleo-lite ({'|'.join(KINDS)})\b.*")


def on_page(text: str, kind: str = "") -> str:
    """Return a sentence with the labels of controls in place of options of the command line.

    The text is a note, a message or a help text; labels of the kind of question that is asked are taken first.
    """
    text = _QUOTED.sub(lambda quoted: _without_quotes(quoted[1], kind), text)
    return _FLAG.sub(lambda flag: f"“{label_of_flag(flag[0], kind)}”", text)


def _without_quotes(code: str, kind: str) -> str:
    """Return code of the command line in words: a question by its title, options by their labels."""
    question = _COMMAND.fullmatch(code)
    if question:
        return f"“{WANTED[question[1]].title}”"
    if code in KINDS:
        return f"“{WANTED[code].title}”"
    return f"“{_FLAG.sub(lambda flag: label_of_flag(flag[0], kind), code)}”"


def label_of_flag(flag: str, kind: str = "") -> str:
    """Return the label of the control of an option; for an option without a control, its words."""
    labels = _labels()
    return labels.get((kind, flag)) or labels.get(("", flag)) or flag.lstrip("-").replace("-", " ")


@cache
def _labels() -> dict[tuple[str, str], str]:
    """Return the label of each spelling, for each kind and, under an empty kind, for the first one that has it."""
    labels: dict[tuple[str, str], str] = {}
    for kind in KINDS:
        for name, declared in options_of(record_of(kind)).items():
            for spelling in declared.spellings or (documented_spelling(name, declared),):
                label = label_of(kind, name)
                labels[kind, spelling] = label
                labels.setdefault(("", spelling), label)
    return labels

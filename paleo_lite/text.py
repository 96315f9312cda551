"""Text from elsewhere: names of layers, kernels and files are data, whatever they hold. Every format cleans it here."""

from __future__ import annotations

import re

LETTERS_AT_MOST = 300
"""Longer names are cut on pages: a kernel's may run to thousands of letters."""

_LONG = re.compile(r"[^\s/]{200,}")
_SENTENCE_AT_MOST = 4000
_FORMULA = re.compile(r"[=+\-@].")


def printable(text: str) -> str:
    """Text on one line, without control characters and halves of surrogate pairs."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\xa0" else "\N{REPLACEMENT CHARACTER}" if _lone(letter) else " "
        for letter in text
    )


def _lone(letter: str) -> bool:
    return "\ud800" <= letter <= "\udfff"


def short(text: str, letters: int = LETTERS_AT_MOST) -> str:
    """Text of at most so many letters."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def sentence(text: str) -> str:
    """What is said of something from elsewhere: on one line, with words of more than 200 letters cut."""
    text = printable(text)
    if len(text) < 200:
        return text
    text = _LONG.sub(lambda word: short(word[0], 120), text)
    return text if len(text) <= _SENTENCE_AT_MOST else f"{text[: _SENTENCE_AT_MOST // 2]} … {text[-500:]}"


def cell(text: str) -> str:
    """Text as a cell of CSV, which no spreadsheet takes for a formula."""
    text = printable(text)
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

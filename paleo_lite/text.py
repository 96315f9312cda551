"""Text from elsewhere, made fit for a page: names of layers, kernels and files are data, whatever they hold."""

from __future__ import annotations

LETTERS_AT_MOST = 300
"""Longer names are cut: a kernel's may run to thousands of letters."""


def printable(text: str) -> str:
    """Text without control characters and halves of surrogate pairs, none of which a page can hold."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\xa0" else "\N{REPLACEMENT CHARACTER}" if _lone(letter) else " "
        for letter in text
    )


def _lone(letter: str) -> bool:
    return "\ud800" <= letter <= "\udfff"


def short(text: str) -> str:
    """Text of at most `LETTERS_AT_MOST` letters."""
    return text if len(text) <= LETTERS_AT_MOST else text[: LETTERS_AT_MOST - 1] + "…"

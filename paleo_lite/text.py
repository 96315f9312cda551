"""Text from outside, such as names of devices, kernels and files, before it is compared, displayed or written."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 300
"""Characters of a name that pages show; names of templated kernels can have thousands."""

_MAX_MESSAGE_LENGTH = 4000
_LONG_WORD = re.compile(r"[^\s/]{200,}")
_FORMULA = re.compile(r"[=+\-@].")
_MAKER_BEFORE_NAME = re.compile(r"^(?:nvidia|amd|apple|intel|tesla|geforce|quadro|instinct|radeon)+(?=.)")


def letters_and_digits(name: str) -> str:
    """Return a name without case and punctuation: ``ResNet-50`` and ``resnet50`` are the same network."""
    return "".join(character for character in name.lower() if character.isalnum())


def format_plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 kernel``, ``1,234 kernels``, ``2 batches``."""
    ending = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def near_multiples(option: str, number: int, divisor: int) -> str:
    """Return the multiples of a divisor next to a number, as values of an option: ```--batch-size 16` or 24``."""
    below = number // divisor * divisor
    if not below:
        return f"`{option} {divisor}`"
    return f"`{option} {below}` or {below + divisor}"


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article: ``a kimi_k25``, ``an idefics3``."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def slug(text: str, separator: str = "-") -> str:
    """Return a text in small letters and digits, with separators for all else."""
    return re.sub(r"[^a-z0-9]+", separator, text.lower()).strip(separator)


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in names by size: ``qwen2.5-7b`` before ``qwen2.5-14b``."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"([0-9]+)", name)]


def normalize_name(name: str) -> str:
    """Return the name of a device, link or platform in lower case without separators and manufacturer."""
    joined = re.sub(r"[^a-z0-9]", "", name.lower())
    return _MAKER_BEFORE_NAME.sub("", joined)


def make_printable(text: str) -> str:
    """Return the text on one line, without control characters and lone surrogates."""
    if text.isprintable():
        return text
    return "".join(_printable_character(character) for character in text)


def _printable_character(character: str) -> str:
    if character.isprintable() or character == "\xa0":
        return character
    if "\ud800" <= character <= "\udfff":  # half of a surrogate pair
        return "\N{REPLACEMENT CHARACTER}"
    return " "


def truncate(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return the text cut to `max_length` characters, with an ellipsis where it was cut."""
    if len(text) <= max_length:
        return text
    return text[: max_length - 1] + "…"


def clean_message(text: str) -> str:
    """Return a message on one line, with very long words and very long messages cut."""
    text = make_printable(text)
    if len(text) < 200:
        return text
    text = _LONG_WORD.sub(lambda word: truncate(word[0], 120), text)
    if len(text) <= _MAX_MESSAGE_LENGTH:
        return text
    return f"{text[: _MAX_MESSAGE_LENGTH // 2]} … {text[-500:]}"


def escape_csv_cell(text: str) -> str:
    """Return the text as a CSV cell that no spreadsheet evaluates as a formula."""
    text = make_printable(text)
    if _FORMULA.match(text) and not _is_number(text):
        return f"'{text}"
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Ranges of whole numbers as people write them: ``1,2,4,...,128``, ``1:128:x2``, ``8:64:8``, ``1,2,4``."""

from __future__ import annotations

from itertools import pairwise

from .errors import BadValue

LENGTH_AT_MOST = 100_000
FORM = "numbers such as 1,2,4, a series such as 1,2,4,...,128, or a range such as 1:128:x2 or 8:64:8"


def parse_range(text: str, what: str = "numbers") -> list[int]:
    """Read a range.

    Parameters
    ----------
    text : str
        Numbers with commas; two or more, ``...`` and a last one, which go on in equal steps (``1,2,...,8``) or, from
        three on, in equal ratios (``1,2,4,...,128``); or ``first:last:step`` with ``x2`` for a factor, ``first:last``
        for steps of 1.
    what : str
        What is counted, for the message: ``"workers"``.

    Returns
    -------
    list of int
        In the order given.

    Raises
    ------
    BadValue
        If a number is below 1 or none, a series has no one continuation or misses its last number, or the range is
        longer than `LENGTH_AT_MOST`.
    """
    parts = [part.strip() for part in text.replace("…", "...").split(",")]
    if len(parts) == 1 and ":" in parts[0]:
        return _colons(parts[0], what)
    if "..." not in parts:
        return [_whole(part, text, what) for part in parts]
    at = parts.index("...")
    if at < 2 or at != len(parts) - 2:
        raise BadValue(f"{what} {text!r}: '...' stands between two or more numbers and a last one, as in 1,2,4,...,128")
    given = [_whole(part, text, what) for part in parts[:at]]
    return _series(given, _whole(parts[-1], text, what), text, what)


def _whole(part: str, text: str, what: str) -> int:
    if not (part.isascii() and part.isdecimal() and len(part) <= 15 and int(part) >= 1):
        raise BadValue(f"{what} {text!r}: {part!r} is not a whole number of 1 or more; expected {FORM}")
    return int(part)


def _series(given: list[int], last: int, text: str, what: str) -> list[int]:
    step, ratio = given[1] - given[0], given[1] // given[0]
    pairs = list(pairwise(given))
    if all(b - a == step for a, b in pairs) and step > 0:
        return _until(given[0], last, step, 0, text, what)
    if all(b == a * ratio for a, b in pairs) and ratio > 1:
        return _until(given[0], last, 0, ratio, text, what)
    raise BadValue(f"{what} {text!r}: the numbers before '...' have neither equal steps nor equal ratios")


def _colons(part: str, what: str) -> list[int]:
    fields = part.split(":")
    if len(fields) not in (2, 3):
        raise BadValue(f"{what} {part!r}: expected {FORM}")
    first, last = (_whole(field.strip(), part, what) for field in fields[:2])
    step = fields[2].strip() if len(fields) == 3 else "1"
    factor = step.lower().startswith(("x", "*"))
    by = _whole(step[1:] if factor else step.removeprefix("+"), part, what)
    if factor and by < 2:
        raise BadValue(f"{what} {part!r}: a factor must be 2 or more")
    if last < first:
        raise BadValue(f"{what} {part!r}: the range ends before it begins")
    return _until(first, last, 0 if factor else by, by if factor else 0, part, what, exact=False)


def _until(first: int, last: int, step: int, ratio: int, text: str, what: str, exact: bool = True) -> list[int]:
    numbers: list[int] = []
    number = first
    while number <= last:
        if len(numbers) >= LENGTH_AT_MOST:
            raise BadValue(f"{what} {text!r}: more than {LENGTH_AT_MOST} numbers")
        numbers.append(number)
        number = number * ratio if ratio else number + step
    if exact and (not numbers or numbers[-1] != last):
        end = f"ends at {numbers[-1]}" if numbers else "begins beyond it"
        raise BadValue(f"{what} {text!r}: the series does not meet {last}, it {end}")
    return numbers

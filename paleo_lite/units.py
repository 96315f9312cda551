"""Quantities: reading "8.73 TFLOP/s", writing 8.73e12 back; the size of a number in each precision; ranges.

A prefix is decimal (1 GB = 10^9 B) unless it is written binary (1 GiB = 2^30 B).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Integral

from .errors import BadQuantity, BadValue

PREFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3, "u": -6, "µ": -6, "n": -9}
BINARY_PREFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}

# Spellings that people use for the same unit, towards the one that paleo-lite writes.
SPELLINGS = {
    "FLOP": "FLOP", "FLOPs": "FLOP", "MAC": "MAC", "MACs": "MAC",
    "FLOP/s": "FLOP/s", "FLOPs/s": "FLOP/s", "FLOPS": "FLOP/s", "OP/s": "OP/s", "OPS": "OP/s",
    "B": "B", "B/s": "B/s", "bit": "bit", "bit/s": "bit/s", "b/s": "bit/s", "bps": "bit/s",
    "Hz": "Hz", "W": "W", "s": "s", "USD": "USD", "USD/h": "USD/h", "IOPS": "IOPS",
}  # fmt: skip

PRECISION_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
"""Bytes that one number of each precision takes in memory (tf32 is a way to multiply: it is stored as fp32)."""

WEIGHT_BYTES = {**PRECISION_BYTES, "int4": 0.5}
"""The same of weights that are kept narrower than what they are computed with; scales of groups are not counted."""

LENGTH_AT_MOST = 100_000
FORM = "numbers such as 1,2,4, a series such as 1,2,4,...,128, or a range such as 1:128:x2 or 8:64:8"

_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ/]*)\s*")


def parse_quantity(text: str | int | float, unit: str) -> float:
    """Read a number with a prefix and a unit.

    Parameters
    ----------
    text : str, int or float
        ``"480 GB/s"``, ``"15503M"``, ``"24 GiB"``. A bare number, or a bare prefix, is taken to be in `unit`.
    unit : str
        The unit expected, as paleo-lite writes it (``"B/s"``, ``"FLOP/s"``, ``"Hz"``, ``"W"``, ...).

    Returns
    -------
    float
        The value in `unit` without prefix.

    Raises
    ------
    BadQuantity
        If the text is not such a quantity, or one of another unit.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise BadQuantity(f"{text!r} is not a quantity: expected a number and a unit, such as '1.5 G{unit}'")
    number, suffix = match.groups()
    value = float(number) if suffix == "" or SPELLINGS.get(suffix) == unit else None
    for length in (2, 1) if value is None else ():
        prefix, rest = suffix[:length], suffix[length:]
        if rest and SPELLINGS.get(rest) != unit:
            continue
        if length == 2 and prefix in BINARY_PREFIXES:
            value = float(number) * BINARY_PREFIXES[prefix]
            break
        if len(prefix) == length == 1 and prefix in PREFIXES:
            # Through the decimal text, so that "8.73T" is the float nearest to 8.73e12.
            mantissa, _, exponent = number.lower().partition("e")
            value = float(f"{mantissa}e{int(exponent or 0) + PREFIXES[prefix]}")
    if value is None:
        raise BadQuantity(f"{text!r} is not in {unit}: expected something like '1.5 G{unit}'")
    if not math.isfinite(value):
        raise BadQuantity(f"{text!r} is larger than any number that can be computed with")
    return value


def format_si(value: float | None, unit: str = "", digits: int = 4) -> str:
    """Write a value with an SI prefix: ``format_si(2.91e12, "FLOP/s")`` is ``"2.91 TFLOP/s"``.

    Nobody says kiloseconds: ``format_si(5241, "s")`` is ``"5,241 s"``.

    Parameters
    ----------
    value : float or None
        The value in `unit`; None (absent) is written ``"-"``.
    unit : str
        Put behind the prefix.
    digits : int
        Significant digits at most; trailing zeros go.
    """
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".rstrip()
    highest = 0 if unit == "s" else 18
    exponent = min(max(3 * math.floor(math.log10(abs(value)) / 3), -9), highest)
    scaled = f"{value / 10.0**exponent:.{digits}g}"
    if abs(float(scaled)) >= 1000 and exponent < highest:  # 999.96 rounds into the next prefix
        exponent += 3
        scaled = f"{value / 10.0**exponent:.{digits}g}"
    if "e" in scaled or abs(float(scaled)) >= 1000:
        scaled = f"{float(scaled):,.0f}"
    prefix = {power: name for name, power in PREFIXES.items() if name not in ("K", "u")}[exponent]
    return f"{scaled} {prefix}{unit}".rstrip()


def say_number(value: float) -> str:
    """Four digits, and all before the point: ``0.1235``, ``12.35``, ``15,250``; never with an exponent above 1."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def say_interval(ends_s: Sequence[float]) -> str:
    """From when to when, in seconds: ``say_interval((0.018, 0.0214))`` is ``"18 ms to 21.4 ms"``."""
    low, high = ends_s
    return f"{format_si(low, 's', 3)} to {format_si(high, 's', 3)}"


_SPANS = (
    ("year", 365.25 * 86400), ("month", 365.25 / 12 * 86400), ("week", 604800.0), ("day", 86400.0), ("hour", 3600.0),
    ("minute", 60.0), ("second", 1.0),
)  # fmt: skip


def say_duration(seconds: float) -> str:
    """A duration as people say it: ``say_duration(33_333)`` is ``"9 hours"``; shorter than a second it is exact.

    The largest span that fits at least once, in whole numbers; what would round to the next larger span is that.
    """
    if not math.isfinite(seconds) or seconds < 1:
        return format_si(seconds, "s", 3)
    smaller = [*(span for _, span in _SPANS[1:]), 1.0]
    name, span = next(
        (name, span)
        for (name, span), below in zip(_SPANS, smaller)
        if seconds >= span or round(seconds / below) * below >= span
    )
    number = max(round(seconds / span), 1)
    return f"{number} {name}{'s' if number > 1 else ''}"


def parse_shape(text: str) -> tuple[int, ...]:
    """Read ``"3x224x224"`` as ``(3, 224, 224)``.

    Raises
    ------
    BadValue
        If a dimension is missing, zero, negative or not a whole number.
    """
    parts = text.lower().replace("×", "x").split("x")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise BadValue(f"{text!r} is not a shape: expected whole numbers above 0 joined by x, such as 3x224x224")
    return tuple(int(part) for part in parts)


def format_shape(shape: tuple[int, ...]) -> str:
    """Write a shape the way `parse_shape` reads it; a scalar is ``"scalar"``."""
    return "x".join(str(size) for size in shape) or "scalar"


def element_bytes(precision: str) -> int:
    """Bytes of one number in `precision`.

    Raises
    ------
    BadValue
        If the precision is not one of `PRECISION_BYTES`.
    """
    if precision not in PRECISION_BYTES:
        raise BadValue(f"no precision is called {precision!r}: known are {', '.join(PRECISION_BYTES)}")
    return PRECISION_BYTES[precision]


def parse_range(given: str | int | Sequence[int], what: str = "numbers") -> list[int]:
    """Read a range.

    Parameters
    ----------
    given : str, int or sequence of int
        One number or several; as text with commas; two or more, ``...`` and a last one, which go on in equal steps
        (``1,2,...,8``) or, from three on, in equal ratios (``1,2,4,...,128``); or ``first:last:step`` with ``x2`` for
        a factor, ``first:last`` for steps of 1.
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
    if not isinstance(given, str):
        numbers = list(given) if isinstance(given, Iterable) else [given]
        if not numbers or any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in numbers):
            raise BadValue(f"{what} must be whole numbers of 1 or more, not {given!r}")
        return numbers
    text = given
    parts = [part.strip() for part in text.replace("…", "...").split(",")]
    if len(parts) == 1 and ":" in parts[0]:
        return _span(parts[0], what)
    if "..." not in parts:
        return [_whole(part, text, what) for part in parts]
    at = parts.index("...")
    if at < 2 or at != len(parts) - 2:
        raise BadValue(f"{what} {text!r}: '...' stands between two or more numbers and a last one, as in 1,2,4,...,128")
    given, last = [_whole(part, text, what) for part in parts[:at]], _whole(parts[-1], text, what)
    step, ratio, pairs = given[1] - given[0], given[1] // given[0], list(pairwise(given))
    if all(b - a == step for a, b in pairs) and step > 0:
        ratio = 0
    elif not (all(b == a * ratio for a, b in pairs) and ratio > 1):
        raise BadValue(f"{what} {text!r}: the numbers before '...' have neither equal steps nor equal ratios")
    numbers = _until(given[0], last, step, ratio, text, what)
    if not numbers or numbers[-1] != last:
        end = f"ends at {numbers[-1]}" if numbers else "begins beyond it"
        raise BadValue(f"{what} {text!r}: the series does not meet {last}, it {end}")
    return numbers


def _whole(part: str, text: str, what: str) -> int:
    if not (part.isascii() and part.isdecimal() and len(part) <= 15 and int(part) >= 1):
        raise BadValue(f"{what} {text!r}: {part!r} is not a whole number of 1 or more; expected {FORM}")
    return int(part)


def _until(number: int, last: int, step: int, ratio: int, text: str, what: str) -> list[int]:
    """Numbers as far as the last one, by a ratio, or where that is 0 by steps."""
    numbers: list[int] = []
    while number <= last:
        if len(numbers) >= LENGTH_AT_MOST:
            raise BadValue(f"{what} {text!r}: more than {LENGTH_AT_MOST} numbers")
        numbers.append(number)
        number = number * ratio if ratio else number + step
    return numbers


def _span(part: str, what: str) -> list[int]:
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
    return _until(first, last, by, by if factor else 0, part, what)

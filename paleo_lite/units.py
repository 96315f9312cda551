"""Quantities with units ("8.73 TFLOP/s"), sizes of number formats, shapes, durations and integer ranges.

A prefix is decimal (1 GB = 10^9 B) unless it is written as a binary prefix (1 GiB = 2^30 B).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from numbers import Integral
from typing import TypeGuard

from .errors import BadQuantity, BadValue

PREFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3, "u": -6, "µ": -6, "n": -9}
"""Decimal exponents of the SI prefixes."""

BINARY_PREFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
"""Factors of the binary prefixes."""

# Accepted spellings of each unit, mapped to the spelling that paleo-lite writes.
SPELLINGS = {
    "FLOP": "FLOP", "FLOPs": "FLOP", "MAC": "MAC", "MACs": "MAC",
    "FLOP/s": "FLOP/s", "FLOPs/s": "FLOP/s", "FLOPS": "FLOP/s", "OP/s": "OP/s", "OPS": "OP/s",
    "B": "B", "B/s": "B/s", "bit": "bit", "bit/s": "bit/s", "b/s": "bit/s", "bps": "bit/s",
    "Hz": "Hz", "W": "W", "s": "s", "USD": "USD", "USD/h": "USD/h", "IOPS": "IOPS",
    "USD/kWh": "USD/kWh", "g/kWh": "g/kWh",
}  # fmt: skip

_EXAMPLES = {
    "FLOP": "1.5 GFLOP", "MAC": "1.5 GMAC", "FLOP/s": "8.73 TFLOP/s", "OP/s": "130 TOP/s", "B": "24 GB",
    "B/s": "480 GB/s", "bit": "8 Gbit", "bit/s": "25 Gbit/s", "Hz": "1.2 GHz", "W": "300 W", "s": "50 ms",
    "USD": "100 USD", "USD/h": "3.06 USD/h", "USD/kWh": "0.12 USD/kWh", "g/kWh": "400 g/kWh",
    "IOPS": "90 kIOPS", "": "1.28M",
}  # fmt: skip
"""A quantity in each unit, for error messages."""

PRECISION_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 2}
"""Bytes per number between two operations, for each precision of arithmetic.

tf32 is only a multiplication format and is stored as fp32. Products in fp4 quantize their operands when they read them:
activations are stored in 16 bits. `paleo_lite.formats` has the formats of stored weights.
"""

MAX_RANGE_LENGTH = 100_000
_MOST_DIGITS = 15  # of an integer of a range
RANGE_FORMATS = "numbers such as 1,2,4, a series such as 1,2,4,...,128, or a range such as 1:128:x2 or 8:64:8"

_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ/]*)\s*")


def parse_quantity(text: str | int | float, unit: str, *, unit_required: bool = False) -> float:
    """Parse a number with an optional prefix and unit; return it in `unit`, without prefix.

    A text is ``"480 GB/s"``, ``"15503M"`` or ``"24 GiB"``. A number without unit, or with a prefix only, is in `unit`,
    as paleo-lite writes it (``"B/s"``, ``"FLOP/s"``, ``"Hz"``, ``"W"``, ...); a prefix of seconds needs the unit. With
    `unit_required`, a text without unit is an error: it would mean another quantity than the user intends, as 500
    seconds in place of milliseconds. Raise BadQuantity if the text is not a quantity, has another unit, or lacks a
    required one.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    if not isinstance(text, str):
        raise _not_a_quantity(text, unit)
    return _parse_text(text, unit, unit_required)


@lru_cache(4096)  # the figures of hardware files are read hundreds of times for one answer
def _parse_text(text: str, unit: str, unit_required: bool) -> float:
    """Return the value of a text in `unit`, as `parse_quantity` does."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise _not_a_quantity(text, unit)
    number, suffix = match.groups()
    is_prefix_of_seconds = unit == "s" and suffix in PREFIXES  # 10m would be 10 ms to one and 10 min to another
    if is_prefix_of_seconds or (unit_required and suffix == ""):
        raise BadQuantity(f"{text!r} has no unit: expected a quantity such as '{_EXAMPLES[unit]}'")
    value = _parse_number_with_suffix(number, suffix, unit)
    if value is None:
        kind = f"in {unit}" if unit else "a number"
        raise BadQuantity(f"{text!r} is not {kind}: expected a quantity such as '{_EXAMPLES[unit]}'")
    if not math.isfinite(value):
        raise BadQuantity(f"{text!r} is larger than any number that can be computed with")
    return value


def _not_a_quantity(text: object, unit: str) -> BadQuantity:
    """Return the error for what is not a quantity at all."""
    return BadQuantity(f"{text!r} is not a quantity: expected one such as '{_EXAMPLES[unit]}'")


SECONDS_PER_HOUR = 3600.0
_SECONDS_OF = {"min": 60.0, "h": SECONDS_PER_HOUR, "d": 24 * SECONDS_PER_HOUR, "w": 7 * 24 * SECONDS_PER_HOUR}


def parse_duration(text: str | int | float) -> float:
    """Return the seconds of a duration such as ``"10 ms"``, ``"90 min"``, ``"36h"`` or ``"10 d"``.

    Raise BadQuantity if the text is not a duration.
    """
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is not None and match[2] in _SECONDS_OF:
        return float(match[1]) * _SECONDS_OF[match[2]]
    return parse_quantity(text, "s")


_TOKEN_FACTORS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}
"""Factors of numbers of tokens: small letters are decimal and capitals binary, as in vLLM's ``human_readable_int``."""

_TOKEN_NUMBER = re.compile(r"(?<![\w.])(\d{1,15}(?:\.\d{1,15})?)([kKmM])(?!\w)")


def spell_out_tokens(text: str) -> str:
    """Return a text with its numbers of tokens in full: ``8k`` is 8000, ``8K`` 8192, ``1m`` 1000000."""
    return _TOKEN_NUMBER.sub(lambda match: f"{(Decimal(match[1]) * _TOKEN_FACTORS[match[2]]).normalize():f}", text)


def format_hours(hours: float) -> str:
    """Return hours as a person says them: ``"35 min"``, ``"8.4 h"`` or ``"9.2 days"``."""
    if hours < 1:
        return f"{hours * 60:.3g} min"
    if hours < 48:
        return f"{hours:.3g} h"
    days = hours / 24
    return f"{days:,.0f} days" if days >= 100 else f"{days:.3g} days"


def _parse_number_with_suffix(number: str, suffix: str, unit: str) -> float | None:
    """Return the value in `unit`, or None if the suffix is not a prefix, the unit, or both."""
    if suffix == "" or SPELLINGS.get(suffix) == unit:
        return float(number)
    for length in (2, 1):
        prefix, rest = suffix[:length], suffix[length:]
        if rest and SPELLINGS.get(rest) != unit:
            continue
        if length == 2 and prefix in BINARY_PREFIXES:
            return float(number) * BINARY_PREFIXES[prefix]
        if len(prefix) == length == 1 and prefix in PREFIXES:
            # Shift the decimal exponent of the text, so that "8.73T" is the float nearest to 8.73e12.
            mantissa, _, exponent = number.lower().partition("e")
            return float(f"{mantissa}e{int(exponent or 0) + PREFIXES[prefix]}")
    return None


def format_si(value: float | None, unit: str = "", digits: int = 4) -> str:
    """Format a value with an SI prefix: ``format_si(2.91e12, "FLOP/s")`` is ``"2.91 TFLOP/s"``.

    Seconds get no prefix above 1: ``format_si(5241, "s")`` is ``"5,241 s"``. None (absent) is written ``"-"``. The
    digits are the significant ones at most; trailing zeros are dropped.
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


def format_number(value: float) -> str:
    """Format a number with four digits, or all digits before the point: ``0.1235``, ``12.35``, ``15,250``."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_rate(per_s: float) -> str:
    """Format a rate without decimals, or with three digits below 10: ``27,273``, ``0.495``."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.3g}"


def format_interval(interval_s: Sequence[float]) -> str:
    """Format an interval of seconds: ``format_interval((0.018, 0.0214))`` is ``"18 ms to 21.4 ms"``."""
    low, high = interval_s
    return f"{format_si(low, 's', 3)} to {format_si(high, 's', 3)}"


_TIME_UNITS = (
    ("year", 365.25 * 86400), ("month", 365.25 / 12 * 86400), ("week", 604800.0), ("day", 86400.0), ("hour", 3600.0),
    ("minute", 60.0), ("second", 1.0),
)  # fmt: skip


def format_duration(seconds: float) -> str:
    """Format a duration in everyday units: ``format_duration(33_333)`` is ``"9 hours"``.

    The result is a whole number of the largest unit that fits at least once; a number that rounds up to the next larger
    unit is given in that unit. Durations below a second are written by `format_si`.
    """
    if not math.isfinite(seconds) or seconds < 1:
        return format_si(seconds, "s", 3)
    name, length_s = "second", 1.0
    for (unit, unit_s), (_, smaller_s) in pairwise(_TIME_UNITS):
        rounded_s = round(seconds / smaller_s) * smaller_s
        if seconds >= unit_s or rounded_s >= unit_s:
            name, length_s = unit, unit_s
            break
    number = max(round(seconds / length_s), 1)
    plural = "s" if number > 1 else ""
    return f"{number} {name}{plural}"


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse ``"3x224x224"`` into ``(3, 224, 224)``; raise BadValue if a dimension is missing or not an integer >= 1."""
    parts = text.lower().replace("×", "x").split("x")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise BadValue(f"{text!r} is not a shape: expected integers >= 1 joined by x, such as 3x224x224")
    return tuple(int(part) for part in parts)


def format_shape(shape: tuple[int, ...]) -> str:
    """Format a shape in the notation of `parse_shape`; a scalar is ``"scalar"``."""
    return "x".join(str(size) for size in shape) or "scalar"


def element_bytes(precision: str) -> int:
    """Return the bytes of one number in `precision` between two operations.

    Raise BadValue if the precision is not one of `PRECISION_BYTES`.
    """
    if precision not in PRECISION_BYTES:
        raise BadValue(f"no precision is called {precision!r}: valid names are {', '.join(PRECISION_BYTES)}")
    return PRECISION_BYTES[precision]


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer, of Python or numpy; true and false are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise BadValue unless a value is an integer in a range."""
    if is_integer(value) and value >= least and (most is None or value <= most):
        return
    allowed = f">= {least:,}" if most is None else f"from {least:,} to {most:,}"
    raise BadValue(f"{name} must be an integer {allowed} (got {value!r})")


SMALLEST, LARGEST = 1e-30, 1e30
"""Range of positive quantities: no size, rate, time or price of a machine is outside, nor are ratios of them."""


def check_positive(name: str, number: float, given: object, expected: str = "a number > 0") -> None:
    """Raise BadValue, which names the bound that is broken, unless a number is from `SMALLEST` to `LARGEST`."""
    if SMALLEST <= number <= LARGEST:
        return
    if number > LARGEST:
        expected = f"at most {LARGEST:g}"
    elif number > 0:
        expected = f"at least {SMALLEST:g}"
    raise BadValue(f"{name} must be {expected} (got {given})")


def parse_range(value: str | int | Sequence[int], name: str = "numbers") -> list[int]:
    """Parse one or several integers >= 1, and return them in the given order.

    A text is integers separated by commas (``1,2,4``); a series with an ellipsis that continues with equal steps
    (``1,2,...,8``) or, from three numbers on, with equal ratios (``1,2,4,...,128``); or ``first:last:step``, where a
    step such as ``x2`` is a factor and ``first:last`` has a step of 1. The name is a plural noun for the error message:
    ``"workers"``. Raise BadValue if there is no number or one below 1, a series is inconsistent or does not reach its
    last number, or the range is longer than `MAX_RANGE_LENGTH`.
    """
    if isinstance(value, str):
        return _parse_range_text(value, name)
    numbers = list(value) if isinstance(value, Iterable) else [value]
    for number in numbers:
        if not is_integer(number) or number < 1:
            raise BadValue(f"{name} must be integers >= 1 (got {value!r})")
    if not numbers:
        raise BadValue(f"{name} must be integers >= 1 (got {value!r})")
    return numbers


def _parse_range_text(text: str, name: str) -> list[int]:
    parts = [part.strip() for part in text.replace("…", "...").split(",")]
    if len(parts) == 1 and ":" in parts[0]:
        return _parse_span(parts[0], name)
    if "..." in parts:
        return _parse_series(parts, text, name)
    return [_parse_integer(part, text, name) for part in parts]


def _parse_integer(part: str, text: str, name: str) -> int:
    is_number = part.isascii() and part.isdecimal()
    if is_number and len(part.lstrip("0")) > _MOST_DIGITS:
        raise BadValue(f"{name} must be below 10^{_MOST_DIGITS} (got {part if len(part) < 50 else part[:40] + '...'})")
    if not (is_number and int(part) >= 1):
        raise BadValue(f"{name} {text!r}: {part!r} is not an integer >= 1; expected {RANGE_FORMATS}")
    return int(part)


def _parse_series(parts: list[str], text: str, name: str) -> list[int]:
    """Parse a series such as ``1,2,4,...,128``."""
    ellipsis = parts.index("...")
    if ellipsis < 2 or ellipsis != len(parts) - 2:
        raise BadValue(
            f"{name} {text!r}: '...' must be between at least two numbers and the last one, as in 1,2,4,...,128"
        )
    first_numbers = [_parse_integer(part, text, name) for part in parts[:ellipsis]]
    last = _parse_integer(parts[-1], text, name)
    step = first_numbers[1] - first_numbers[0]
    ratio = first_numbers[1] // first_numbers[0]
    pairs = list(pairwise(first_numbers))
    if step > 0 and all(b - a == step for a, b in pairs):
        numbers = _continue_series(first_numbers[0], last, text, name, step=step)
    elif ratio > 1 and all(b == a * ratio for a, b in pairs):
        numbers = _continue_series(first_numbers[0], last, text, name, factor=ratio)
    else:
        raise BadValue(f"{name} {text!r}: the numbers before '...' have neither equal steps nor equal ratios")
    if not numbers:
        raise BadValue(f"{name} {text!r}: the series starts above its last number {last}")
    if numbers[-1] != last:
        raise BadValue(f"{name} {text!r}: the series does not reach {last}, it ends at {numbers[-1]}")
    return numbers


def _parse_span(text: str, name: str) -> list[int]:
    """Parse a range such as ``1:128:x2`` or ``8:64:8``."""
    fields = [field.strip() for field in text.split(":")]
    if len(fields) not in (2, 3):
        raise BadValue(f"{name} {text!r}: expected {RANGE_FORMATS}")
    first = _parse_integer(fields[0], text, name)
    last = _parse_integer(fields[1], text, name)
    increment = fields[2] if len(fields) == 3 else "1"
    if increment.lower().startswith(("x", "*")):
        factor = _parse_integer(increment[1:], text, name)
        if factor < 2:
            raise BadValue(f"{name} {text!r}: the factor must be >= 2")
        step = 0
    else:
        factor = 1
        step = _parse_integer(increment.removeprefix("+"), text, name)
    if last < first:
        raise BadValue(f"{name} {text!r}: the last number is below the first")
    return _continue_series(first, last, text, name, step=step, factor=factor)


def _continue_series(first: int, last: int, text: str, name: str, step: int = 0, factor: int = 1) -> list[int]:
    """Return the numbers from `first` up to `last`, each the previous one times `factor` plus `step`."""
    numbers: list[int] = []
    number = first
    while number <= last:
        if len(numbers) >= MAX_RANGE_LENGTH:
            raise BadValue(f"{name} {text!r}: more than {MAX_RANGE_LENGTH} numbers")
        numbers.append(number)
        number = number * factor + step
    return numbers

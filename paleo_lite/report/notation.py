"""How documents write what columns hold: one notation for times, sizes, rates, shares and counts.

Each is the `show` of a `paleo_lite.report.document.Column`; those that say it `briefly` are for many columns
side by side.
"""

from __future__ import annotations

from ..units import format_si


def say_time(value: float) -> str:
    """A time, four digits: ``12.35 ms``."""
    return format_si(value, "s")


def say_time_briefly(value: float) -> str:
    """A time, three digits: ``12.3 ms``."""
    return format_si(value, "s", 3)


def say_size(value: float) -> str:
    """An amount of memory or traffic, four digits: ``1.024 GB``."""
    return format_si(value, "B")


def say_size_briefly(value: float) -> str:
    """An amount of memory, three digits: ``1.02 GB``."""
    return format_si(value, "B", 3)


def say_bandwidth(value: float) -> str:
    """Bytes per second: ``480 GB/s``."""
    return format_si(value, "B/s")


def say_percent(value: float) -> str:
    """A share, one digit behind the point: ``6.4%``; what is not nothing is never said to be 0."""
    return "< 0.05%" if 0 < value < 5e-4 else f"{value:.1%}"


def say_whole_percent(value: float) -> str:
    """A share without digits behind the point: ``6%``."""
    return f"{value:.0%}"


def say_count(value: float) -> str:
    """A count: ``1,234``."""
    return f"{value:,}"


def say_three_digits(value: float) -> str:
    """A number: ``0.872``, ``12.3``."""
    return f"{value:.3g}"


def say_yes_or_no(value: object) -> str:
    """Whether something is so."""
    return "yes" if value else "no"


def say_many(count: int, what: str) -> str:
    """Several things by their number: ``1 kernel``, ``1,234 kernels``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"

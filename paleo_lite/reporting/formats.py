"""How tables and facts show values: one function for each form, from a value to its text."""

from __future__ import annotations

from collections.abc import Collection

from ..text import make_printable
from ..units import format_number, format_si


def format_time(seconds: float) -> str:
    """Return a time with up to four digits: ``12.35 ms``."""
    return format_si(seconds, "s")


def format_time_short(seconds: float) -> str:
    """Return a time with up to three digits, for wide tables: ``12.3 ms``."""
    return format_si(seconds, "s", 3)


def format_bytes(size: float) -> str:
    """Return a number of bytes with up to four digits: ``1.024 GB``."""
    return format_si(size, "B")


def format_bytes_short(size: float) -> str:
    """Return a number of bytes with up to three digits, for wide tables: ``1.02 GB``."""
    return format_si(size, "B", 3)


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth: ``480 GB/s``."""
    return format_si(bytes_per_s, "B/s")


def format_percent(fraction: float) -> str:
    """Return a fraction as a percentage with one decimal: ``6.4%``; a positive fraction never reads 0."""
    return "< 0.05%" if 0 < fraction < 5e-4 else f"{fraction:.1%}"


def format_percent_rounded(fraction: float) -> str:
    """Return a fraction as a percentage without decimals: ``6%``."""
    return f"{fraction:.0%}"


def format_count(count: float) -> str:
    """Return a count with thousands separators: ``1,234``."""
    return f"{count:,}"


def format_3_digits(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point: ``0.872``, ``12.3``, ``1,271``."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def format_yes_no(value: object) -> str:
    """Return ``yes`` or ``no``."""
    return "yes" if value else "no"


def format_joules(energy_j: float) -> str:
    return format_si(energy_j, "J", 3)


def format_watts(power_w: float) -> str:
    return format_si(power_w, "W", 3)


def format_grams(grams: float) -> str:
    return format_si(grams, "g", 3)


def format_kj(energy_j: float) -> str:
    return format_number(energy_j / 1e3)


def format_ratio(ratio: float) -> str:
    return f"{ratio:.2f}"


def format_multiple(ratio: float) -> str:
    return f"{ratio:.2f}x"


def format_gain(gain: float) -> str:
    return "none" if abs(gain - 1) < 0.0005 else f"{gain:.2f} x"


def format_error(error: float) -> str:
    return f"{error:+.1%}"


def format_dollars(usd: float) -> str:
    return f"{usd:.2f}"


def format_exact_seconds(seconds: float) -> str:
    return f"{seconds:.6f}"


def format_option(value: object) -> str:
    return format_number(value) if isinstance(value, float) else make_printable(str(value))


def format_mark(is_marked: bool) -> str:
    return "*" if is_marked else " "


def format_flops(rate: float) -> str:
    return format_si(rate, "", 3)


def format_exact_share(share: float) -> str:
    return f"{share:.2%}"


def format_whole_seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def format_names(names: Collection[str]) -> str:
    return ", ".join(names) or "-"

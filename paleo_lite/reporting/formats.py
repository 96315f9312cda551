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
    """Return an energy with three digits: ``12.3 J``."""
    return format_si(energy_j, "J", 3)


def format_watts(power_w: float) -> str:
    """Return a power with three digits: ``246 W``."""
    return format_si(power_w, "W", 3)


def format_grams(grams: float) -> str:
    """Return a mass with three digits: ``1.23 kg``."""
    return format_si(grams, "g", 3)


def format_kj(energy_j: float) -> str:
    """Return an energy in kJ, without the unit."""
    return format_number(energy_j / 1e3)


def format_ratio(ratio: float) -> str:
    """Return a ratio with two decimals: ``1.05``."""
    return f"{ratio:.2f}"


def format_multiple(ratio: float) -> str:
    """Return a multiple: ``1.05x``."""
    return f"{ratio:.2f}x"


def format_gain(gain: float) -> str:
    """Return a gain as a multiple, or ``none``: ``1.05x``."""
    return "none" if abs(gain - 1) < 0.0005 else format_multiple(gain)


def format_error(error: float) -> str:
    """Return a relative error with its sign: ``+6.4%``."""
    return f"{error:+.1%}"


def format_dollars(usd: float) -> str:
    """Return dollars and cents, without the unit: ``12.35``."""
    return f"{usd:.2f}"


def format_exact_seconds(seconds: float) -> str:
    """Return seconds with six decimals, without the unit."""
    return f"{seconds:.6f}"


def format_option(value: object) -> str:
    """Return the value of an option as it is printed."""
    return format_number(value) if isinstance(value, float) else make_printable(str(value))


def format_mark(is_marked: bool) -> str:
    """Return an asterisk, or a blank."""
    return "*" if is_marked else " "


def format_flops(rate: float) -> str:
    """Return a rate in FLOP/s with three digits, without the unit: ``12.3 T``."""
    return format_si(rate, "", 3)


def format_exact_share(share: float) -> str:
    """Return a share as a percentage with two decimals: ``6.41%``."""
    return f"{share:.2%}"


def format_whole_seconds(seconds: float) -> str:
    """Return seconds without decimals, or three digits below 100, without the unit."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def format_names(names: Collection[str]) -> str:
    """Return names in a list, or a dash without any."""
    return ", ".join(names) or "-"

"""Forms of values: one value in each of them, and values that have a form of their own."""

from __future__ import annotations

import pytest

from paleo_lite.reporting import formats

FORMS = {
    "format_time": "12.35 s",
    "format_time_short": "12.3 s",
    "format_bytes": "12.35 B",
    "format_bytes_short": "12.3 B",
    "format_bandwidth": "12.35 B/s",
    "format_percent": "1234.6%",
    "format_percent_rounded": "1235%",
    "format_count": "12.345678",
    "format_3_digits": "12.3",
    "format_yes_no": "yes",
    "format_joules": "12.3 J",
    "format_watts": "12.3 W",
    "format_grams": "12.3 g",
    "format_kj": "0.01235",
    "format_ratio": "12.35",
    "format_multiple": "12.35x",
    "format_gain": "12.35x",
    "format_error": "+1234.6%",
    "format_dollars": "12.35",
    "format_exact_seconds": "12.345678",
    "format_option": "12.35",
    "format_mark": "*",
    "format_flops": "12.3",
    "format_exact_share": "1234.57%",
    "format_whole_seconds": "12.3",
}


@pytest.mark.parametrize("name", FORMS)
def test_one_value_in_each_form(name: str) -> None:
    assert getattr(formats, name)(12.345678) == FORMS[name]


def test_every_form_of_a_number_is_listed() -> None:
    defined = {name for name in vars(formats) if name.startswith("format_")}
    assert defined - {"format_si", "format_number", "format_names"} == set(FORMS)


def test_values_with_forms_of_their_own() -> None:
    assert formats.format_gain(1.0001) == "none"
    assert formats.format_names(()) == "-" and formats.format_names(["a", "b"]) == "a, b"
    assert formats.format_mark(False) == " " and formats.format_yes_no(None) == "no"
    assert formats.format_whole_seconds(1234.5) == "1,234"
    assert "\x1b" not in formats.format_option("v100\x1b[31m")

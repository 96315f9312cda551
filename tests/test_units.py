"""Quantities read and written, and ranges as people write them."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from paleo_lite.errors import BadQuantity, BadValue
from paleo_lite.units import (
    PRECISION_BYTES,
    check_integer,
    element_bytes,
    format_duration,
    format_interval,
    format_number,
    format_rate,
    format_shape,
    format_si,
    parse_duration,
    parse_quantity,
    parse_range,
    parse_shape,
)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("8.73 TFLOP/s", "FLOP/s", 8.73e12),
        ("8.73T", "FLOP/s", 8.73e12),
        ("15503M", "FLOP", 15503e6),
        ("15.503 GFLOPs", "FLOP", 15.503e9),
        ("480 GB/s", "B/s", 480e9),
        ("24 GiB", "B", 24 * 2**30),
        ("1.5e3 MHz", "Hz", 1.5e9),
        ("56 Gb/s", "bit/s", 56e9),
        ("1e9", "B", 1e9),
        (1.5, "W", 1.5),
        ("5 ms", "s", 0.005),
        ("3 µs", "s", 3e-6),
        ("-2 G", "B", -2e9),
    ],
)
def test_reading(text, unit, value):
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize(
    "text",
    ["", "fast", "8.73 TB/s", "8.73 XFLOP/s", "8,73T", "1.5 G W", "GFLOP/s", "0x10", "nan", None, True, "1 TFLOP"],
)
def test_texts_that_are_no_quantity_are_refused(text):
    with pytest.raises(BadQuantity):
        parse_quantity(text, "FLOP/s")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.91e12, "FLOP/s", "2.91 TFLOP/s"),
        (0, "B", "0 B"),
        (None, "B", "-"),
        (999.96, "B", "1 kB"),
        (5241.3, "s", "5,241 s"),  # nobody says kiloseconds
        (999_999_999, "", "1 G"),
        (0.00532749, "s", "5.327 ms"),
        (-1500, "B", "-1.5 kB"),
        (1, "", "1"),
    ],
)
def test_writing(value, unit, text):
    assert format_si(value, unit) == text


def test_few_digits_are_written_without_an_exponent():
    assert [format_si(0.7512, "s", digits) for digits in (1, 2, 3)] == ["800 ms", "750 ms", "751 ms"]


@given(st.floats(1e-9, 1e20))
def test_quantities_that_are_written_are_read_back(value):
    assert math.isclose(parse_quantity(format_si(value, "B", 12), "B"), value, rel_tol=1e-9)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=5))
def test_shapes_that_are_written_are_read_back(sizes):
    assert parse_shape(format_shape(tuple(sizes))) == tuple(sizes)


@pytest.mark.parametrize("text", ["", "x", "3x", "3x0", "3x-1", "3x2.5", "axb", "3,224,224"])
def test_texts_that_are_no_shape_are_refused(text):
    with pytest.raises(BadValue, match="3x224x224"):
        parse_shape(text)


def test_elements():
    assert [element_bytes(name) for name in ("fp64", "fp32", "tf32", "bf16", "int8")] == [8, 4, 4, 2, 1]
    with pytest.raises(BadValue, match=", ".join(PRECISION_BYTES)):
        element_bytes("fp23")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1e15 / 30e9, "9 hours"), (1e15 / 40e9, "7 hours"), (1e15 / 5e9, "2 days"), (1e15 / 6e9, "2 days"),
        (1e15 / 6.8e9, "2 days"), (1e15 / 1e9, "2 weeks"),  # a petabyte each: course slides "Performance and Profiling"
        (0.3, "300 ms"), (1, "1 second"), (59.4, "59 seconds"), (59.7, "1 minute"), (3580, "1 hour"),
        (6.4 * 86400, "6 days"), (6.6 * 86400, "1 week"), (28 * 86400, "4 weeks"), (8e6, "3 months"),
        (365.25 * 86400, "1 year"), (math.inf, "inf s"),
    ],
)  # fmt: skip
def test_durations_as_people_say_them(seconds, text):
    assert format_duration(seconds) == text


def test_an_interval_in_words():
    assert [format_number(value) for value in (0.12345, 12.345, 999.96, 1793.4, 15250.0)] == [
        "0.1235", "12.35", "1000", "1,793", "15,250"
    ]  # fmt: skip
    assert format_interval((0.018, 0.02142)) == "18 ms to 21.4 ms"
    assert format_interval([9.5e-7, 1.2]) == "950 ns to 1.2 s"


@pytest.mark.parametrize("text", ["1e999 TFLOP/s", "1e308 GFLOP/s"])
def test_no_quantity_is_infinite(text):
    with pytest.raises(BadQuantity, match="larger than any number"):
        parse_quantity(text, "FLOP/s")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", [4]),
        ("1, 3,2", [1, 3, 2]),
        ("1,2,4,...,128", [1, 2, 4, 8, 16, 32, 64, 128]),
        ("1,2,…,5", [1, 2, 3, 4, 5]),
        ("2,4,6,...,10", [2, 4, 6, 8, 10]),
        ("1:64:x4", [1, 4, 16, 64]),
        ("1:100:x10", [1, 10, 100]),
        ("8:30:8", [8, 16, 24]),
        ("2:4", [2, 3, 4]),
        (8, [8]),
        ((1, 3, 2), [1, 3, 2]),
    ],
)
def test_ranges(text, numbers):
    assert parse_range(text) == numbers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not an integer >= 1"),
        ("0", "not an integer >= 1"),
        ("-1", "not an integer >= 1"),
        ("1,2.5", "not an integer >= 1"),
        ("1,...,8", "must be between"),
        ("1,2,...", "must be between"),
        ("1,2,5,...,20", "neither equal steps nor equal ratios"),
        ("1,2,4,...,100", "does not reach 100"),
        ("8,16,...,4", "starts above its last number 4"),
        ("4:1", "the last number is below the first"),
        ("1:8:x1", "the factor must be >= 2"),
        ("1:2:3:4", "expected"),
        ("1:999999999", "more than 100000"),
        (0, r"must be integers >= 1 \(got 0\)"),
        ([], r">= 1 \(got \[\]\)"),
        ([8, -1], ">= 1"),
        ([1.5], ">= 1"),
        (1.5, r">= 1 \(got 1.5\)"),
        (True, ">= 1"),
    ],
)
def test_texts_that_are_no_range_are_refused(text, says):
    with pytest.raises(BadValue, match=says):
        parse_range(text, "workers")


def test_rates_never_read_0() -> None:
    rates = [format_rate(per_s) for per_s in (27272.7, 800.4, 80.94, 0.4953, 0.0)]
    assert rates == ["27,273", "800", "81", "0.495", "0"]


@pytest.mark.parametrize("text", ["10m", "3M", "5k"])
def test_seconds_need_their_unit_behind_a_prefix(text: str) -> None:
    """10m is 10 ms to one and 10 min to another."""
    with pytest.raises(BadQuantity, match="has no unit"):
        parse_duration(text)
    assert parse_duration("10ms") == 0.01 and parse_duration("10 min") == 600


@pytest.mark.parametrize("value", [1, 8, np.int64(8)])
def test_integers_in_a_range_pass(value: object) -> None:
    check_integer("`--tensor`", value, 1, 8)


@pytest.mark.parametrize(
    ("value", "most", "says"),
    [
        (0, None, r"`--tensor` must be an integer >= 1 \(got 0\)"),
        (True, None, r">= 1 \(got True\)"),
        (2.0, None, r">= 1 \(got 2.0\)"),
        ("2", None, r">= 1 \(got '2'\)"),
        (9000, 8000, r"from 1 to 8,000 \(got 9000\)"),
    ],
)
def test_the_error_of_a_bad_integer_says_what_is_right(value: object, most: int | None, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        check_integer("`--tensor`", value, 1, most)

"""Ranges as people write them."""

from __future__ import annotations

import pytest

from paleo_lite.errors import BadValue
from paleo_lite.ranges import parse_range


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
    ],
)
def test_ranges(text, numbers):
    assert parse_range(text) == numbers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a whole number"),
        ("0", "not a whole number"),
        ("-1", "not a whole number"),
        ("1,2.5", "not a whole number"),
        ("1,...,8", "stands between"),
        ("1,2,...", "stands between"),
        ("1,2,5,...,20", "neither equal steps nor equal ratios"),
        ("1,2,4,...,100", "does not meet 100"),
        ("8,16,...,4", "begins beyond it"),
        ("4:1", "ends before it begins"),
        ("1:8:x1", "a factor must be 2 or more"),
        ("1:2:3:4", "expected"),
        ("1:999999999", "more than 100000"),
    ],
)
def test_what_is_no_range(text, says):
    with pytest.raises(BadValue, match=says):
        parse_range(text, "workers")

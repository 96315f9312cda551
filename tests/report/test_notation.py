"""How columns write what they hold, and tables what they leave out."""

import pytest

from paleo_lite.report import notation
from paleo_lite.report.document import Column, Table


def test_one_value_in_each_notation():
    said = {
        name: function(12.345678)
        for name, function in vars(notation).items()
        if name.startswith("say_") and name != "say_many"
    }
    assert said == {
        "say_time": "12.35 s",
        "say_time_briefly": "12.3 s",
        "say_size": "12.35 B",
        "say_size_briefly": "12.3 B",
        "say_bandwidth": "12.35 B/s",
        "say_percent": "1234.6%",
        "say_whole_percent": "1235%",
        "say_count": "12.345678",
        "say_three_digits": "12.3",
        "say_yes_or_no": "yes",
    }
    assert (notation.say_many(1, "kernel"), notation.say_many(1234, "kernel")) == ("1 kernel", "1,234 kernels")


def test_columns_without_a_value_are_left_out():
    table = Table("", [Column("a", "a"), Column("b", "b"), Column("c", "c")], [{"a": 1, "c": None}, {"a": None}])
    assert [column.key for column in table.known("c").columns] == ["a", "c"]


def test_a_table_says_how_many_of_its_rows_it_lists_where_not_all():
    table = Table("Steps", [Column("step", "step")], [{"step": 1}, {"step": 2}, {"step": 3}])
    assert (table.first(2, "the longest ").title, len(table.first(2).rows)) == ("Steps, the longest 2 of 3", 2)
    assert table.first(None) is table and table.first(3) is table


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.0, "0.0%"), (4.9e-4, "< 0.05%"), (5.1e-4, "0.1%"), (0.14, "14.0%"), (-0.002, "-0.2%"), (11.5, "1150.0%")],
)
def test_what_is_not_nothing_is_never_said_to_be_none_of_it(share, said):
    assert notation.say_percent(share) == said
